/*
 * What a mistyped word was probably meant to be:
 *
 *     struct hf_nearest guess = hf_nearest_to(word);
 *     for (...)
 *         hf_nearest_consider(&guess, candidate);
 *     if (guess.best) ...;
 */
#ifndef HF_CORE_NEAREST_H
#define HF_CORE_NEAREST_H

/* The best candidate so far, or NULL: one that shares too little with the word is no help. */
struct hf_nearest {
    const char *word, *best;
    unsigned distance;
};

struct hf_nearest hf_nearest_to(const char *word);
void hf_nearest_consider(struct hf_nearest *guess, const char *candidate);

#endif
