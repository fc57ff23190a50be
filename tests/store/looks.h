/* All that can be seen of the store that plays the history, held against the model. */
#ifndef HF_TESTS_LOOKS_H
#define HF_TESTS_LOOKS_H

#include "compare.h"

/* Give up where something differs. */
void check(const struct comparison *c, const char *what);

/* An execution's fence is one of its lock's. */
void check_fence(const struct hf_execution *of_model, const struct hf_execution *of_store,
                 const char *what);

int name_index(const char *name);

/* Every listed name, or those behind some name, is as the model has it, in order, and none that is not free is missing. */
void check_list(bool all);
void check_totals(void);

/* What the store tells of a name is the model's story, or the end of it where it keeps less. */
void check_events(int name);

/* All of them, or a part that chance chooses. */
void check_executions(bool all);
void check_due(void);

#endif
