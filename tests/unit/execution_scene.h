/* A scene with executions: their lock and their workflow are called NAME. */
#ifndef HF_TESTS_EXECUTION_SCENE_H
#define HF_TESTS_EXECUTION_SCENE_H

#include "scene.h"

static inline int begin_with(const char *who, const char *id, const char *key, const char *input,
                             struct hf_request more)
{
    more.op = HF_OP_ACQUIRE;
    more.token = more.owner = who;
    more.ttl_ms = TTL;
    more.workflow = NAME;
    more.execution_id = id;
    more.key = key;
    more.input = input;
    more.input_size = input ? strlen(input) : 0;
    return ask(more);
}

static inline int begin(const char *who, const char *id)
{
    return begin_with(who, id, NULL, NULL, (struct hf_request){0});
}

static inline int begin_key(const char *who, const char *id, const char *key, const char *input)
{
    return begin_with(who, id, key, input, (struct hf_request){0});
}

static inline int spawn(const char *who)
{
    return ask((struct hf_request){.op = HF_OP_EXTEND, .token = who, .spawned = true});
}

static inline int cancel(const char *id)
{
    return ask((struct hf_request){.op = HF_OP_CANCEL, .execution_id = id, .owner = "op"});
}

static inline int claim(const char *who, const char *id)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                   .token = who,
                                   .owner = who,
                                   .ttl_ms = TTL,
                                   .execution_id = id,
                                   .claim = true});
}

static inline int enqueue(const char *id, const char *key, const char *input, int32_t priority)
{
    return ask((struct hf_request){.op = HF_OP_ENQUEUE,
                                   .owner = "q",
                                   .workflow = NAME,
                                   .execution_id = id,
                                   .key = key,
                                   .input = input,
                                   .input_size = input ? strlen(input) : 0,
                                   .priority = priority,
                                   .overlap = HF_OVERLAP_QUEUE});
}

/* Wanted now, and this becomes of it where its lock has another one. */
static inline int enqueue_as(const char *id, enum hf_overlap overlap, struct hf_request more)
{
    more.op = HF_OP_ENQUEUE;
    more.owner = "q";
    more.workflow = more.workflow ? more.workflow : NAME;
    more.execution_id = id;
    more.overlap = overlap;
    return ask(more);
}

static inline int64_t wall_ms(void) { return m->now_ms + m->wall_offset_ms; }

static inline void assert_state(const char *id, enum hf_execution_state state)
{
    assert_string_equal(hf_execution_state_name(execution(id)->state),
                        hf_execution_state_name(state));
}

#define NOTHING_MORE ((struct hf_request){0})

static inline int queue_up(const char *id, int32_t priority)
{
    return enqueue(id, NULL, NULL, priority);
}

/* The ids of what is due, in order, with blanks between them. */
static inline const char *due_with(struct hf_due due)
{
    enum { MOST = 8 };
    static char ids[MOST * (HF_UUID_LEN + 1) + 1];
    struct hf_execution found[MOST];
    due.wall_ms = wall_ms();
    due.limit = due.limit ? due.limit : MOST;
    size_t n = model_due(m, &due, found);
    ids[0] = '\0';
    for (size_t i = 0; i < n; i++)
        strcat(strcat(ids, i ? " " : ""), found[i].id);
    return ids;
}

static inline int64_t next_due(void)
{
    return model_next_due(m, &(struct hf_due){.wall_ms = wall_ms()});
}

static inline const char *due(void) { return due_with((struct hf_due){0}); }

#endif
