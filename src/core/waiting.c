#include "waiting.h"

int64_t hf_waiter_looks_in_ms(const struct hf_answer *answer)
{
    return answer->holder.remaining_ms + 1 + HF_STAGGER_MS * (int64_t)answer->ahead;
}

/* It is the waiter's for the asking, or the next of the dead can be seen. Where somebody is ahead, either
 * that one died since the answer, or lives and is concerned first, whoever may be dead in between. */
bool hf_waiter_asks_at_once(bool *asked_twice, const struct hf_answer *answer, bool dead_ahead)
{
    *asked_twice = dead_ahead && answer->ahead > 0 && !*asked_twice;
    return dead_ahead && (answer->ahead == 0 || *asked_twice);
}
