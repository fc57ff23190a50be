/*
 * Workers that look for work, and wait for it:
 *
 *     post_claim -> hungry -> look -> asked -> inputs read -> marked as started -> answered
 *                     ^        |        '-> all were refused: look again
 *                     |        '-> nothing is due: idle
 *                     '-- something may be there, or it was time to look again
 *
 * hunger.c lets them look and wait, claims.c asks and answers. All that are hungry at one moment
 * share a look (LANE_READ), and what they ask for shares a commit with everything else (LANE_WRITE).
 * Two never ask for the same one. An idle worker is an entry in a list: no thread, no descriptor
 * beside its connection. While there are any, the service sleeps among the store's workers (hf_idle)
 * on behalf of all of them.
 */
#ifndef HF_SERVER_CLAIMS_H
#define HF_SERVER_CLAIMS_H

#include "executions.h"

enum {
    LOOK_MAX = 64,     /* workers that one look is for */
    FLIGHT_MAX = 1024, /* executions that are being asked for */
    WANTED_MAX = 256,  /* workflows that we sleep for; for more: for all */
};

typedef char execution_id[HF_UUID_LEN + 1];

/* One that is being asked for. */
struct item {
    struct job job; /* first */
    struct claim *claim;
    execution_id id;
    char lock[HF_NAME_MAX + 1], token[HF_UUID_LEN + 1];
    bool got, marked;
    struct hf_lease lease;
    struct hf_execution x;
};

/* A worker's request. */
struct claim {
    struct execution_call call; /* first */
    struct claim *next;         /* in the list of the hungry, or of the idle */
    struct hf_claim_options options;
    const char *workflows[WORKFLOWS_MAX];
    size_t max;
    struct item *items;
    size_t n_items, left; /* left: not yet answered */
    size_t n_told;        /* in the answer as it is written */
    size_t refused;       /* those that stand before others and can't be had */
    int64_t until_ms;
    bool is_idle, marks; /* marks: what it claims is taken to be started */
    int code;            /* of the first that failed */
    struct hf_error err;
};

struct list {
    struct claim *first, **end;
};

struct claims {
    struct job job; /* first: the look */
    struct server *server;
    struct list hungry, idle;
    struct claim *lookers[LOOK_MAX];
    size_t n_lookers;
    bool looking;
    execution_id flight[FLIGHT_MAX]; /* being asked for, on our thread ... */
    size_t n_flight;
    execution_id taken[FLIGHT_MAX]; /* ... and as the look knows it, with what it has found */
    size_t n_taken;
    int64_t next_ms; /* when an idle one's time is over ... */
    int64_t poll_ms; /* ... or all are to look again */
    uint32_t random;
    struct hf_idle *sleep;                    /* NULL: the store can't wake us */
    struct job bed;                           /* lies down, or gets up */
    char wanted[WANTED_MAX][HF_NAME_MAX + 1]; /* what those who are idle would claim ... */
    size_t n_wanted;
    bool any_wanted, verifies_wanted; /* any: of every workflow */
    int64_t bed_due_ms;               /* what it was told then */
    bool asleep, turning;             /* turning: the bed is at work */
    int64_t turn_ms;                  /* not before */
    int64_t due_ms; /* when, by the wall clock, the next one falls due; 0: none is known */
};

/* ---- hunger.c ------------------------------------------------------------------------------- */

/* It wants work. From here on it may be freed only by request_back(). */
void claim_hungers(struct claim *c);

/* Let the hungry look, unless others are looking. */
void claims_find_work(struct claims *t);

/* The client has gone, or is answered. */
void claim_forget(struct request *req);

/* ---- claims.c ------------------------------------------------------------------------------- */

/* Ask for what the look has found. */
void claim_ask_all(struct claim *c);

#endif
