/*
 * A scene of the lease's tests: one model, one name, requests in one line each. Everybody's token
 * is their name, and so is their owner text.
 */
#ifndef HF_TESTS_SCENE_H
#define HF_TESTS_SCENE_H

#include <stdio.h>

#include "check.h"
#include "model.h"

static struct model *m;
static struct hf_answer a; /* the last answer */

enum { TTL = 60000, FOREVER = -1 };
#define NAME "job"

static inline int setup(void **state)
{
    m = model_new();
    return 0;
}

static inline int teardown(void **state)
{
    model_free(m);
    return 0;
}

static inline int ask(struct hf_request req)
{
    if (!req.name)
        req.name = NAME;
    model_apply(m, &req, &a);
    return a.code;
}

static inline int take(const char *who)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE, .token = who, .owner = who, .ttl_ms = TTL});
}

static inline int wait_for_it(const char *who, int32_t priority)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                   .token = who,
                                   .owner = who,
                                   .ttl_ms = TTL,
                                   .wait_ms = FOREVER,
                                   .priority = priority});
}

static inline int take_bound(const char *who, int32_t pid, int64_t wait_ms)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                   .token = who,
                                   .owner = who,
                                   .ttl_ms = TTL,
                                   .wait_ms = wait_ms,
                                   .bound = {pid},
                                   .n_bound = 1});
}

static inline int take_once(const char *who, const char *key, const char *execution,
                            int64_t wait_ms)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                   .token = who,
                                   .owner = who,
                                   .ttl_ms = TTL,
                                   .wait_ms = wait_ms,
                                   .workflow = NAME,
                                   .key = key,
                                   .once = true,
                                   .execution_id = execution});
}

static inline int extend(const char *who)
{
    return ask((struct hf_request){.op = HF_OP_EXTEND, .token = who});
}

static inline int release(const char *who)
{
    return ask((struct hf_request){.op = HF_OP_RELEASE, .token = who});
}

/* Said again by one who does not know that it was heard: with its fence. */
static inline int release_fence(const char *who, int64_t fence)
{
    return ask((struct hf_request){.op = HF_OP_RELEASE, .token = who, .fence = fence});
}

static inline int withdraw(const char *who)
{
    return ask((struct hf_request){.op = HF_OP_WITHDRAW, .token = who});
}

static inline int force(int64_t fence)
{
    return ask((struct hf_request){.op = HF_OP_FORCE, .fence = fence, .owner = "op"});
}

static inline int guard(int64_t fence)
{
    return ask((struct hf_request){.op = HF_OP_GUARD, .fence = fence});
}

static inline int settle(void) { return ask((struct hf_request){.op = HF_OP_SETTLE}); }

static inline struct hf_status *look(void)
{
    ask((struct hf_request){.op = HF_OP_STATUS});
    return &a.holder;
}

static inline int finish(const char *who, enum hf_outcome outcome)
{
    return ask((struct hf_request){.op = HF_OP_RELEASE, .token = who, .outcome = outcome});
}

static inline const struct hf_execution *execution(const char *id)
{
    const struct model_execution *x = model_execution(m, id);
    if (!x)
        fail_msg("no execution %s", id);
    return &x->x;
}

static inline void assert_held_by(const char *who)
{
    look();
    assert_int_equal(a.holder.state, HF_STATE_HELD);
    assert_string_equal(a.holder.owner, who);
}

static inline struct hf_record *record(void) { return &model_lock(m, NAME)->rec; }

static inline size_t count_events(enum hf_event_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_events; i++)
        n += m->events[i].kind == kind;
    return n;
}

static inline const struct hf_event *last_event(enum hf_event_kind kind)
{
    for (size_t i = m->n_events; i-- > 0;)
        if (m->events[i].kind == kind)
            return &m->events[i];
    fail_msg("no event %s", hf_event_kind_name(kind));
    return NULL;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
