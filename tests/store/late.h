/*
 * Every request may arrive a second time, as late as it likes: what was asked is kept, and played again.
 * And what must hold whatever arrives, in the model's words; the store's answers equal the model's.
 */
#ifndef HF_TESTS_LATE_H
#define HF_TESTS_LATE_H

#include "history.h"

/* One that was asked before, byte for byte, or NULL: there is none that can be asked again. */
const struct hf_request *late_request(int name);

/* Before the model answers, and after it: what is against the rules ends the process. */
void note_before(int name);
void check_after(int name, const struct hf_request *asked, const struct hf_answer *answer);

#endif
