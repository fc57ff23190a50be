#include "retention.h"

#include <stdlib.h>

#include "id.h"

enum {
    TICK_MS = 50,
    EVERY_MS = 60000, /* 3/4 to 5/4 of it */
    MORE = 500,       /* removed in one tick: there will be more */
    MORE_EVERY_MS = 1000
};

static struct hf_retention rule_of(const struct hf_workflow *w)
{
    return (struct hf_retention){w->name, w->keep_ms, w->keep_count};
}

static int64_t pause_ms(void)
{
    uint16_t dice;
    hf_random(&dice, sizeof dice);
    return EVERY_MS * 3 / 4 + dice % (EVERY_MS / 2);
}

int64_t hf_retention_tick(const struct hf_workflows *workflows, struct hf *hf, int64_t now_ms)
{
    size_t n = workflows ? workflows->n : 0;
    int64_t removed = 0;
    struct hf_retention *rules = calloc(n + 1, sizeof *rules);
    for (size_t i = 0; rules && i < n; i++)
        rules[i] = rule_of(&workflows->of[i]);
    if (rules)
        hf_prune(hf, rules, n, TICK_MS, &removed, NULL);
    free(rules);
    return now_ms + (removed >= MORE ? MORE_EVERY_MS : pause_ms());
}

void hf_retention_once(const struct hf_workflow *workflow, struct hf *hf)
{
    struct hf_retention rule = rule_of(workflow);
    hf_prune(hf, &rule, 1, 1, NULL, NULL);
}
