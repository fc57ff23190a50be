/*
 * Schedules of faults, played to the pure step on a virtual clock: clients that crash and pause,
 * requests that are lost, delayed and duplicated, replies that are lost, an operator who forces.
 *
 *     sim [--seed N] [--schedules N]
 *     sim --mutants                       the simulator's own test: planted bugs must be caught
 *
 * What is checked (numbers as in docs/promise.md), each at every step or by a scan at the end:
 *   I1  what a resource that checks fences accepts never goes down in fence order
 *   I2  every grant has a fence above that of every earlier one
 *   I3  a live lease is freed only by its token, or by force naming its fence
 *   I4  who acts before its own deadline, and was not forced, is the holder
 *   I8  once faults have healed, every waiter acquires or times out as it asked
 *
 * The seed is printed first; a failing schedule prints its own and replays exactly.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "seed.h"

enum {
    CLIENTS = 5,
    FLIGHTS_MAX = 32,
    GRANTS_MAX = 512,
    STEPS = 40,          /* with faults */
    HEALED_STEPS = 4000, /* the most that it may take afterwards */
    TTL_MS = 6000,
    MARGIN_MS = TTL_MS / 10,
    SCHEDULES = 100000
};

enum mutant {
    MUTANT_NONE,
    MUTANT_RELEASES_ANYBODY, /* release does not look at the token */
    MUTANT_REPEATS_FENCES,   /* the fence is forgotten with the lease */
    MUTANT_CHECKS_NO_FENCE,  /* the resource takes what comes */
    MUTANT_NEVER_EXPIRES,    /* a dead holder holds for ever */
    MUTANT_EXPIRES_EARLY,    /* the store ends a lease before the holder's deadline */
    MUTANT_SHORTENS,         /* a late copy of a request for less makes a lease end earlier */
    MUTANT_COUNT
};

enum role { IDLE, ASKING, HOLDING, RELEASING, GONE };

struct client {
    enum role role;
    char token[40];
    int64_t fence, deadline_ms;
    int64_t wait_ms, until_ms; /* of this wait */
    int64_t paused_until_ms;
    int32_t pid;
    bool bound, forced;
    int32_t priority;
};

/* A request that arrives some time after it was sent, its reply unheard. */
struct flight {
    struct hf_request req;
    char token[40];
    int64_t at_ms;
};

static struct {
    uint64_t seed, random;
    enum mutant mutant;
    bool healed;
    struct model *m;
    struct client clients[CLIENTS];
    struct flight flights[FLIGHTS_MAX];
    size_t n_flights;
    int64_t last_grant_fence, accepted_fence;
    int64_t made; /* tokens and pids */
    int64_t forced_fence;
    const char *broken; /* the first invariant that did not hold */
} s;

static struct { /* that the faults really happened */
    int64_t grants, crashes, pauses, lost, delayed, duplicated, forced, takeovers, refused_effects;
} happened;

/* ---- chance and failing --------------------------------------------------------------------- */

static int64_t chance(int64_t n)
{
    uint64_t z = s.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

static void require(bool holds, const char *invariant)
{
    if (!holds && !s.broken)
        s.broken = invariant;
}

/* ---- the store ------------------------------------------------------------------------------ */

static bool is_live(const struct hf_grant *g)
{
    struct hf_world world = model_world(s.m);
    return g->held && hf_grant_stale(g, &world) == HF_STALE_NOT;
}

static bool may_free(const struct hf_request *req, const struct hf_grant *g)
{
    if (req->op == HF_OP_FORCE)
        return req->fence == g->fence;
    struct hf_lock_id id = req->token ? hf_lock_id_of(req->token) : (struct hf_lock_id){0};
    return (req->op == HF_OP_RELEASE || req->op == HF_OP_WITHDRAW) && hf_lock_id_equal(&id, &g->id);
}

static void plant_before(struct hf_request *req, struct hf_grant *g)
{
    static char token[40];
    if (s.mutant == MUTANT_RELEASES_ANYBODY && req->op == HF_OP_RELEASE && g->held) {
        snprintf(token, sizeof token, "%s", req->token);
        req->token = token;
        g->id = hf_lock_id_of(token);
    }
    if (s.mutant == MUTANT_NEVER_EXPIRES && g->held) {
        g->expires_ms = s.m->now_ms + 1000;
        g->bound.n = 0;
    }
    if (s.mutant == MUTANT_EXPIRES_EARLY && g->held && !g->offered &&
        g->expires_ms - s.m->now_ms < TTL_MS / 2)
        g->expires_ms = s.m->now_ms;
}

static void plant_after(const struct hf_request *req, const struct hf_grant *before,
                        struct hf_record *rec)
{
    struct hf_grant *g = &rec->grant;
    bool renews = req->op == HF_OP_ACQUIRE || req->op == HF_OP_EXTEND;
    if (s.mutant == MUTANT_SHORTENS && renews && g->held && g->fence == before->fence &&
        g->ttl_ms < before->ttl_ms)
        g->expires_ms = s.m->now_ms + g->ttl_ms;
    if (s.mutant == MUTANT_REPEATS_FENCES && !g->held)
        rec->last_fence = s.m->last_fence = 0;
}

/* One request, with everything that must hold around it. */
static void apply(const struct hf_request *asked, struct hf_answer *answer)
{
    struct hf_request req = *asked;
    struct hf_record *rec = &model_lock(s.m, req.name)->rec;
    struct hf_grant before = rec->grant;
    bool was_live = is_live(&before);
    plant_before(&req, &rec->grant);
    model_apply(s.m, &req, answer);
    const struct hf_grant *after = &rec->grant;
    bool same = after->held && after->fence == before.fence;
    require(!was_live || same || may_free(asked, &before), "I3: a live lease was freed");
    if (after->held && (!before.held || after->fence != before.fence)) {
        require(after->fence > s.last_grant_fence, "I2: a fence did not grow");
        s.last_grant_fence = after->fence;
        happened.grants++;
        happened.takeovers += after->took.reason != HF_STALE_NOT;
    }
    plant_after(&req, &before, rec);
}

/* ---- the network ---------------------------------------------------------------------------- */

static void send_later(const struct hf_request *req)
{
    if (s.n_flights == FLIGHTS_MAX)
        return;
    struct flight *f = &s.flights[s.n_flights++];
    f->req = *req;
    f->at_ms = s.m->now_ms + chance(3 * TTL_MS);
    f->token[0] = '\0';
    if (req->token)
        snprintf(f->token, sizeof f->token, "%s", req->token);
}

static void land(size_t i)
{
    struct flight f = s.flights[i];
    struct hf_answer unheard;
    s.flights[i] = s.flights[--s.n_flights];
    if (f.token[0])
        f.req.token = f.token;
    apply(&f.req, &unheard);
}

static void land_what_is_due(void)
{
    for (size_t i = 0; i < s.n_flights;)
        if (s.flights[i].at_ms <= s.m->now_ms)
            land(i);
        else
            i++;
}

/* Ask, over a network that does what networks do. False: no reply; it may or may not have happened. */
static bool ask(const struct hf_request *req, struct hf_answer *answer)
{
    int64_t fate = s.healed ? 99 : chance(20);
    if (fate == 0) { /* the request is lost */
        happened.lost++;
        return false;
    }
    if (fate == 1) { /* it arrives, but not yet */
        happened.delayed++;
        send_later(req);
        return false;
    }
    apply(req, answer);
    if (fate == 2) { /* and again */
        happened.duplicated++;
        send_later(req);
    }
    if (fate == 3) { /* the reply is lost */
        happened.lost++;
        return false;
    }
    return true;
}

/* ---- clients -------------------------------------------------------------------------------- */

static void new_token(struct client *c)
{
    snprintf(c->token, sizeof c->token, "token-%lld", (long long)++s.made);
}

static struct hf_request request(const struct client *c, enum hf_op op)
{
    return (struct hf_request){.op = op, .name = "it", .token = c->token};
}

static void begin(struct client *c)
{
    static const int64_t waits[] = {0, HF_FOREVER, HF_FOREVER, TTL_MS, 500};
    new_token(c);
    c->role = ASKING;
    c->forced = false;
    c->priority = (int32_t)chance(2);
    c->wait_ms = waits[chance(5)];
    c->until_ms = c->wait_ms < 0 ? INT64_MAX : s.m->now_ms + c->wait_ms;
}

/* It counts from when it sent, and on whatever it was ever told. */
static void confirm(struct client *c, int64_t sent_ms, const struct hf_lease *lease)
{
    int64_t deadline_ms = sent_ms + lease->ttl_ms - MARGIN_MS;
    if (c->role != HOLDING || deadline_ms > c->deadline_ms)
        c->deadline_ms = deadline_ms;
    c->role = HOLDING;
}

static void ask_for_it(struct client *c)
{
    struct hf_request req = request(c, HF_OP_ACQUIRE);
    struct hf_answer answer;
    int64_t sent_ms = s.m->now_ms;
    req.ttl_ms = TTL_MS;
    req.priority = c->priority;
    if (c->wait_ms)
        req.wait_ms = c->until_ms == INT64_MAX    ? HF_FOREVER
                      : c->until_ms > s.m->now_ms ? c->until_ms - s.m->now_ms
                                                  : 0;
    if (c->bound) {
        req.bound[0] = c->pid;
        req.n_bound = 1;
    }
    if (!ask(&req, &answer))
        return; /* unknown: the same token again */
    if (answer.code == 0) {
        c->fence = answer.lease.fence;
        confirm(c, sent_ms, &answer.lease);
    } else if (answer.code == -HF_LOST)
        new_token(c); /* slept through an offer */
    else if (!answer.queued)
        c->role = IDLE; /* refused, or timed out */
}

static void renew(struct client *c)
{
    static const int64_t ttls[] = {0, TTL_MS / 3, 3 * TTL_MS};
    struct hf_request req = request(c, HF_OP_EXTEND);
    struct hf_answer answer;
    int64_t sent_ms = s.m->now_ms;
    req.ttl_ms = ttls[chance(3)];
    if (!ask(&req, &answer))
        return;
    if (answer.code == 0)
        confirm(c, sent_ms, &answer.lease);
    else
        c->role = IDLE;
}

static void give_back(struct client *c)
{
    struct hf_request req = request(c, HF_OP_RELEASE);
    struct hf_answer answer;
    c->role = RELEASING;
    if (ask(&req, &answer))
        c->role = IDLE; /* done, or lost: either way it is over */
}

/* Two resources: one asks the store in the same step, the other remembers the highest fence. */
static void act(struct client *c, bool just_woke)
{
    struct hf_request req = {.op = HF_OP_GUARD, .name = "it", .fence = c->fence};
    struct hf_answer answer;
    model_apply(s.m, &req, &answer);
    bool in_time = s.m->now_ms < c->deadline_ms;
    c->forced |= s.forced_fence == c->fence;
    if (in_time && !c->forced)
        require(answer.code == 0, "I4: not the holder before its own deadline");
    if (!in_time && !just_woke) { /* a client that is awake keeps to its deadline */
        c->role = IDLE;
        return;
    }
    happened.refused_effects += answer.code != 0;
    bool accepted = c->fence >= s.accepted_fence || s.mutant == MUTANT_CHECKS_NO_FENCE;
    if (!accepted)
        return;
    require(c->fence >= s.accepted_fence, "I1: an accepted effect went down in fence order");
    s.accepted_fence = c->fence;
}

static void crash(struct client *c)
{
    happened.crashes++;
    if (c->bound)
        model_kill(s.m, c->pid);
    c->role = GONE;
}

static void misbehave(struct client *c)
{
    if (chance(3) == 0)
        crash(c);
    else {
        happened.pauses++;
        c->paused_until_ms = s.m->now_ms + chance(3 * TTL_MS);
    }
}

static void live(struct client *c)
{
    bool just_woke = c->paused_until_ms != 0;
    if (s.m->now_ms < c->paused_until_ms || c->role == GONE)
        return;
    c->paused_until_ms = 0;
    if (!s.healed && chance(12) == 0) {
        misbehave(c);
        return;
    }
    switch (c->role) {
    case IDLE:
        if (!s.healed)
            begin(c);
        break;
    case ASKING:
        ask_for_it(c);
        break;
    case HOLDING:
        if (just_woke || chance(2))
            act(c, just_woke);
        else if (s.healed || chance(2))
            give_back(c);
        else
            renew(c);
        break;
    case RELEASING:
        give_back(c);
        break;
    case GONE:
        break;
    }
}

static void force_somebody(void)
{
    struct hf_request req = {.op = HF_OP_FORCE, .name = "it", .fence = s.last_grant_fence};
    struct hf_answer answer;
    apply(&req, &answer);
    if (answer.code == 0) {
        s.forced_fence = req.fence;
        for (int i = 0; i < CLIENTS; i++)
            s.clients[i].forced |= s.clients[i].fence == req.fence;
        happened.forced++;
    }
}

/* ---- schedules ------------------------------------------------------------------------------ */

static void pass_time(void)
{
    static const int64_t spans[] = {1, 1, 10, 100, 500, 1000, 3000, HF_OFFER_MS, TTL_MS};
    s.m->now_ms += spans[chance(9)];
    land_what_is_due();
}

static bool anybody_waits(void)
{
    for (int i = 0; i < CLIENTS; i++)
        if (s.clients[i].role != IDLE && s.clients[i].role != GONE)
            return true;
    return false;
}

static void begin_schedule(uint64_t seed)
{
    struct model *m = s.m;
    enum mutant mutant = s.mutant;
    model_clear(m);
    memset(&s, 0, sizeof s);
    s.m = m;
    s.mutant = mutant;
    s.seed = s.random = seed;
    for (int i = 0; i < CLIENTS; i++) {
        s.clients[i].pid = i + 1;
        s.clients[i].bound = chance(2);
    }
}

static void play_schedule(uint64_t seed)
{
    begin_schedule(seed);
    for (int step = 0; step < STEPS && !s.broken; step++) {
        int64_t dice = chance(20);
        if (dice < 14)
            live(&s.clients[chance(CLIENTS)]);
        else if (dice < 19)
            pass_time();
        else
            force_somebody();
    }
    s.healed = true;
    int step = 0;
    for (; step < HEALED_STEPS && anybody_waits() && !s.broken; step++) {
        live(&s.clients[chance(CLIENTS)]);
        if (step % CLIENTS == 0) {
            s.m->now_ms += 100;
            land_what_is_due();
        }
    }
    require(step < HEALED_STEPS, "I8: somebody still waits after faults have healed");
}

static int play_schedules(uint64_t seed, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        play_schedule(seed + (uint64_t)i);
        if (s.broken) {
            printf("%s\nreplay with: sim --seed %llu --schedules 1\n", s.broken,
                   (unsigned long long)s.seed);
            return 1;
        }
    }
    return 0;
}

static int test_mutants(uint64_t seed)
{
    int escaped = 0;
    for (int mutant = MUTANT_NONE + 1; mutant < MUTANT_COUNT; mutant++) {
        s.mutant = (enum mutant)mutant;
        printf("mutant %d: ", mutant);
        if (!play_schedules(seed, SCHEDULES / 10)) {
            printf("not caught\n");
            escaped++;
        }
    }
    return escaped ? 1 : 0;
}

static bool faults_happened(void)
{
    printf("grants %lld, takeovers %lld, crashes %lld, pauses %lld, lost %lld, delayed %lld, "
           "duplicated %lld, forced %lld, stale effects refused %lld\n",
           (long long)happened.grants, (long long)happened.takeovers, (long long)happened.crashes,
           (long long)happened.pauses, (long long)happened.lost, (long long)happened.delayed,
           (long long)happened.duplicated, (long long)happened.forced,
           (long long)happened.refused_effects);
    return happened.grants && happened.takeovers && happened.crashes && happened.pauses &&
           happened.lost && happened.delayed && happened.duplicated && happened.forced &&
           happened.refused_effects;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"seed", required_argument, NULL, 's'},
                                            {"schedules", required_argument, NULL, 'n'},
                                            {"mutants", no_argument, NULL, 'm'},
                                            {NULL, 0, NULL, 0}};
    uint64_t seed = seed_of_run();
    int64_t n = SCHEDULES;
    bool mutants = false;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (o) {
        case 's':
            seed = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            n = strtoll(optarg, NULL, 10);
            break;
        case 'm':
            mutants = true;
            break;
        default:
            return 64;
        }
    printf("sim --seed %llu --schedules %lld\n", (unsigned long long)seed, (long long)n);
    s.m = model_new();
    s.m->keeps_events = false;
    int r = mutants ? test_mutants(seed) : play_schedules(seed, n);
    if (r == 0 && !mutants && n == SCHEDULES && !faults_happened()) {
        printf("not every fault happened: this proves nothing\n");
        r = 1;
    }
    model_free(s.m);
    return r;
}
