/*
 * Are two answers the same? Everything must be equal but fences, which may have gaps: there, equal
 * ones stay equal, different ones different, and their order is the same.
 */
#ifndef HF_TESTS_COMPARE_H
#define HF_TESTS_COMPARE_H

#include "holdfast.h"

enum { FENCES_MAX = 4096 };

/* Which of the store's fences stands for which of the model's, for one name. */
struct fences {
    struct {
        int64_t model, store;
    } pairs[FENCES_MAX];
    size_t n;
};

struct comparison {
    struct fences *fences;
    int64_t tolerance_ms;            /* of times */
    bool without_executions;         /* the store does not tell of them */
    bool without_turns;              /* it knows neither parking nor retries */
    char difference[HF_MESSAGE_MAX]; /* empty: none */
};

/* The store's fence for the model's; one that was never seen stays what it is. */
int64_t fence_of_store(const struct fences *fences, int64_t model);

void compare_answers(struct comparison *c, const struct hf_answer *model,
                     const struct hf_answer *store);
void compare_statuses(struct comparison *c, const struct hf_status *model,
                      const struct hf_status *store);
void compare_events(struct comparison *c, const struct hf_event *model,
                    const struct hf_event *store);
/* Without the fence, whose numbering is its lock's: that is compare_fences(). */
void compare_executions(struct comparison *c, const struct hf_execution *model,
                        const struct hf_execution *store);
void compare_fences(struct comparison *c, int64_t model, int64_t store);
void compare_totals(struct comparison *c, const struct hf_totals *model,
                    const struct hf_totals *store);

#endif
