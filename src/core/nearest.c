#include "nearest.h"

#include <string.h>

enum { WORD_MAX = 32 };

static unsigned min_of(unsigned a, unsigned b) { return a < b ? a : b; }

/* How many letters to insert, drop, change or swap with their neighbour to make b of a. */
static unsigned distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > WORD_MAX || m > WORD_MAX)
        return WORD_MAX;
    unsigned d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = (unsigned)i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            unsigned change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = min_of(change, min_of(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min_of(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

struct hf_nearest hf_nearest_to(const char *word)
{
    return (struct hf_nearest){.word = word, .distance = WORD_MAX};
}

void hf_nearest_consider(struct hf_nearest *g, const char *candidate)
{
    unsigned d = distance(g->word, candidate);
    if (d < g->distance && d <= 1 + strlen(candidate) / 4) {
        g->distance = d;
        g->best = candidate;
    }
}
