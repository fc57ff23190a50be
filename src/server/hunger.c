/* Who looks for work, when, and how those wait who find none. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "clock.h"
#include "error.h"
#include "id.h"

enum {
    POLL_MS = 10000, /* how often the idle look again by themselves, jittered down to half ... */
    BLIND_MS = 1000, /* ... and where the store can't wake us */
    FOUND_MAX = 1024 /* executions that one look at a store takes */
};

/* ---- lists ---------------------------------------------------------------------------------- */

static void list_init(struct list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct list *l, struct claim *c)
{
    c->next = NULL;
    *l->end = c;
    l->end = &c->next;
}

/* Take out the one that *at points to. */
static struct claim *list_take(struct list *l, struct claim **at)
{
    struct claim *c = *at;
    *at = c->next;
    if (!*at)
        l->end = at;
    return c;
}

/* ---- a worker's way ------------------------------------------------------------------------- */

void claim_hungers(struct claim *c)
{
    c->call.req->working = true;
    list_add(&c->call.req->server->claims->hungry, c);
}

void claim_forget(struct request *req)
{
    struct claims *t = req->server->claims;
    struct claim *c = req->context, **at = &t->idle.first;
    if (!c->is_idle)
        return;
    while (*at != c)
        at = &(*at)->next;
    list_take(&t->idle, at)->is_idle = false;
}

static void answer_none(struct request *req)
{
    hf_buf_puts(&req->answer, "{\"items\":[]}");
    request_answer(req, 200);
}

static bool is_wanted(const struct claims *t, const char *workflow)
{
    for (size_t i = 0; i < t->n_wanted; i++)
        if (strcmp(t->wanted[i], workflow) == 0)
            return true;
    return t->any_wanted;
}

/* Would we be woken for whatever it wants? */
static bool is_slept_for(const struct claims *t, const struct claim *c)
{
    const struct hf_claim_options *o = &c->options;
    bool all = (o->n_workflows || t->any_wanted) && (!o->verifies || t->verifies_wanted);
    for (size_t i = 0; all && i < o->n_workflows; i++)
        all = is_wanted(t, o->workflows[i]);
    return all;
}

/* Nothing is there for it: it waits, if it wanted to. */
static void become_idle(struct claim *c)
{
    struct request *req = request_back(&c->call.req->job);
    if (!req)
        return;
    struct claims *t = req->server->claims;
    if (req->server->draining || c->until_ms <= now_ms()) {
        answer_none(req);
        return;
    }
    c->is_idle = true;
    list_add(&t->idle, c);
    t->asleep &= is_slept_for(t, c);
    if (c->until_ms < t->next_ms)
        t->next_ms = c->until_ms;
}

/* ---- looking -------------------------------------------------------------------------------- */

static bool is_taken(const struct claims *t, const char *id)
{
    for (size_t i = 0; i < t->n_taken; i++)
        if (strcmp(t->taken[i], id) == 0)
            return true;
    return false;
}

static bool same_filter(const struct claim *a, const struct claim *b)
{
    const struct hf_claim_options *x = &a->options, *y = &b->options;
    if (x->n_workflows != y->n_workflows || x->verifies != y->verifies || a->refused != b->refused)
        return false;
    for (size_t i = 0; i < x->n_workflows; i++)
        if (strcmp(x->workflows[i], y->workflows[i]) != 0)
            return false;
    return true;
}

/* One before it, that looks for the same, has got less than it wanted: there is nothing more. */
static bool is_in_vain(const struct claims *t, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (t->lookers[j]->n_items < t->lookers[j]->max &&
            same_filter(t->lookers[j], t->lookers[i]))
            return true;
    return false;
}

/* Take for this worker what nobody else is asking for. */
static int pick(struct claims *t, struct claim *c, const struct hf_execution *found, size_t n,
                struct hf_error *err)
{
    struct item *items = calloc(c->max, sizeof *items);
    if (!items)
        return hf_fail(err, HF_NOMEM, "out of memory");
    c->items = items;
    for (size_t i = 0; i < n && c->n_items < c->max && t->n_taken < FLIGHT_MAX; i++) {
        if (is_taken(t, found[i].id))
            continue;
        struct item *item = &items[c->n_items++];
        memcpy(item->id, found[i].id, sizeof item->id);
        memcpy(item->lock, found[i].lock, sizeof item->lock);
        memcpy(t->taken[t->n_taken++], found[i].id, sizeof item->id);
    }
    return 0;
}

/* For each of the lookers; on a lane's thread, which has them and `taken` meanwhile. */
static int look_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct claims *t = (struct claims *)job;
    struct hf_execution *found = calloc(FOUND_MAX, sizeof *found);
    int r = found ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < t->n_lookers; i++) {
        struct claim *c = t->lookers[i];
        size_t n = 0, most = c->max + t->n_taken;
        if (is_in_vain(t, i))
            continue;
        r = hf_due(hf, &c->options, c->refused, most < FOUND_MAX ? most : FOUND_MAX, found, &n,
                   err);
        if (r >= 0 && n)
            r = pick(t, c, found, n, err);
    }
    free(found);
    return r;
}

static void look_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct claims *t = (struct claims *)job;
    (void)answer;
    t->looking = false;
    for (size_t i = 0; i < t->n_lookers; i++) {
        struct claim *c = t->lookers[i];
        struct request *req;
        if (code < 0 || c->call.req->gone) {
            if ((req = request_back(&c->call.req->job)))
                request_fail(req, err);
        } else if (c->n_items)
            claim_ask_all(c);
        else
            become_idle(c);
    }
    t->n_lookers = 0;
    claims_find_work(t);
}

/* The service stops: nobody looks any more. */
static void drop_hungry(struct claims *t)
{
    struct request *req;
    while (t->hungry.first)
        if ((req = request_back(&list_take(&t->hungry, &t->hungry.first)->call.req->job)))
            request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
}

void claims_find_work(struct claims *t)
{
    if (t->server->closed)
        drop_hungry(t);
    if (t->looking || t->n_flight + LOOK_MAX > FLIGHT_MAX)
        return;
    while (t->hungry.first && t->n_lookers < LOOK_MAX) {
        struct claim *c = list_take(&t->hungry, &t->hungry.first);
        free(c->items);
        c->items = NULL;
        c->n_items = 0;
        t->lookers[t->n_lookers++] = c;
    }
    if (!t->n_lookers)
        return;
    t->looking = true;
    t->n_taken = t->n_flight;
    memcpy(t->taken, t->flight, t->n_flight * sizeof t->flight[0]);
    t->job = (struct job){.work = look_work, .done = look_done};
    lane_put(t->server->lanes, LANE_READ, &t->job);
}

/* ---- those who wait ------------------------------------------------------------------------- */

static bool wants(const struct claim *c, const char *workflow)
{
    bool any = !workflow || !c->options.n_workflows;
    for (size_t i = 0; !any && i < c->options.n_workflows; i++)
        any = strcmp(c->options.workflows[i], workflow) == 0;
    return any;
}

static void wake(struct claims *t, struct claim **at)
{
    struct claim *c = list_take(&t->idle, at);
    c->is_idle = false;
    c->refused = 0;
    claim_hungers(c);
}

void claims_nudge(struct server *server, const char *workflow)
{
    struct claims *t = server->claims;
    struct claim **at = &t->idle.first;
    while (*at && !wants(*at, workflow))
        at = &(*at)->next;
    if (!*at)
        return;
    wake(t, at);
    claims_find_work(t);
}

static void wake_all(struct claims *t)
{
    while (t->idle.first)
        wake(t, &t->idle.first);
    claims_find_work(t);
}

static void send_away(struct claims *t, struct claim **at)
{
    struct claim *c = list_take(&t->idle, at);
    c->is_idle = false;
    answer_none(c->call.req);
}

/* Those whose time is over; t->next_ms: when the next one's is. */
static void end_waits(struct claims *t, int64_t at_ms)
{
    t->next_ms = INT64_MAX;
    for (struct claim **at = &t->idle.first; *at;) {
        if ((*at)->until_ms <= at_ms) {
            send_away(t, at);
            continue;
        }
        if ((*at)->until_ms < t->next_ms)
            t->next_ms = (*at)->until_ms;
        at = &(*at)->next;
    }
}

/* ---- sleeping among the store's workers ----------------------------------------------------- */

static int64_t jittered(struct claims *t, int64_t ms)
{
    t->random = t->random * 1664525 + 1013904223;
    return ms / 2 + (t->random >> 8) % (uint32_t)(ms / 2);
}

/* When all look again, if nobody wakes us before. */
static void set_poll(struct claims *t, int64_t at_ms)
{
    int64_t in_ms = jittered(t, t->asleep ? POLL_MS : BLIND_MS);
    int64_t due_in_ms = t->due_ms - hf_clock_wall_ms();
    if (due_in_ms > 0 && due_in_ms < in_ms) /* what is due already we have looked for */
        in_ms = due_in_ms;
    t->poll_ms = at_ms + in_ms;
}

/* The store does not do what is asked of it: who waits is told, and asks again when it wants to. */
static void fail_all(struct claims *t, const struct hf_error *err)
{
    while (t->idle.first) {
        struct claim *c = list_take(&t->idle, &t->idle.first);
        c->is_idle = false;
        request_fail(c->call.req, err);
    }
}

/* What all who are idle would claim, together. */
static void gather_wanted(struct claims *t)
{
    t->n_wanted = 0;
    t->any_wanted = t->verifies_wanted = false;
    for (const struct claim *c = t->idle.first; c; c = c->next) {
        t->any_wanted |= !c->options.n_workflows;
        t->verifies_wanted |= c->options.verifies;
        for (size_t i = 0; i < c->options.n_workflows; i++) {
            if (is_wanted(t, c->options.workflows[i]))
                continue;
            if (t->n_wanted == WANTED_MAX)
                t->any_wanted = true;
            else
                strcpy(t->wanted[t->n_wanted++], c->options.workflows[i]);
        }
    }
}

static int lie_down_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct claims *t = (struct claims *)((char *)job - offsetof(struct claims, bed));
    const char *workflows[WANTED_MAX];
    struct hf_claim_options wants = HF_CLAIM_INIT;
    (void)hf;
    for (size_t i = 0; i < t->n_wanted; i++)
        workflows[i] = t->wanted[i];
    wants.workflows = workflows;
    wants.n_workflows = t->any_wanted ? 0 : t->n_wanted;
    wants.verifies = t->verifies_wanted;
    return hf_idle_begin(t->sleep, &wants, &t->bed_due_ms, err);
}

/* From here on the store may wake us; something may have come just before, so all look once more. */
static void lie_down_done(struct job *job, int code, const struct hf_answer *answer,
                          const struct hf_error *err)
{
    struct claims *t = (struct claims *)((char *)job - offsetof(struct claims, bed));
    (void)answer;
    t->turning = false;
    t->asleep = code >= 0;
    t->due_ms = t->asleep ? t->bed_due_ms : 0;
    t->turn_ms = t->asleep ? 0 : now_ms() + BLIND_MS;
    set_poll(t, now_ms());
    if (t->asleep)
        wake_all(t);
    else
        fail_all(t, err);
}

static int get_up_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct claims *t = (struct claims *)((char *)job - offsetof(struct claims, bed));
    (void)hf, (void)err;
    hf_idle_end(t->sleep);
    return 0;
}

static void get_up_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct claims *t = (struct claims *)((char *)job - offsetof(struct claims, bed));
    (void)code, (void)answer, (void)err;
    t->turning = false;
}

/* Sleep while somebody is idle, and only then: else a wake-up that is for others would be lost. */
static void turn(struct claims *t)
{
    bool busy = t->looking || t->hungry.first || t->n_flight;
    if (!t->sleep || t->turning || t->server->closed || now_ms() < t->turn_ms)
        return;
    if (t->idle.first && !t->asleep) {
        gather_wanted(t);
        t->bed = (struct job){.work = lie_down_work, .done = lie_down_done};
    } else if (!t->idle.first && t->asleep && !busy) {
        t->asleep = false;
        t->bed = (struct job){.work = get_up_work, .done = get_up_done};
    } else
        return;
    t->turning = true;
    lane_put(t->server->lanes, LANE_READ, &t->bed);
}

int claims_fd(const struct server *server)
{
    return server->claims->sleep ? hf_idle_fd(server->claims->sleep) : -1;
}

void claims_woken(struct server *server)
{
    char bytes[256];
    struct claims *t = server->claims;
    while (read(hf_idle_fd(t->sleep), bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        continue;
    t->asleep = false;
    wake_all(t);
}

/* ---- all of them ---------------------------------------------------------------------------- */

int64_t claims_tick(struct server *server, int64_t at_ms)
{
    struct claims *t = server->claims;
    turn(t);
    if (!t->idle.first)
        return INT64_MAX;
    if (at_ms >= t->next_ms)
        end_waits(t, at_ms);
    if (at_ms >= t->poll_ms) {
        t->due_ms = 0; /* the next one is told by the store when we lie down again */
        t->asleep = false;
        set_poll(t, at_ms);
        wake_all(t);
    }
    return t->next_ms < t->poll_ms ? t->next_ms : t->poll_ms;
}

void claims_drain(struct server *server)
{
    while (server->claims->idle.first)
        send_away(server->claims, &server->claims->idle.first);
}

int claims_open(struct server *server, struct hf_error *err)
{
    struct claims *t = server->claims = calloc(1, sizeof *t);
    if (!t)
        return hf_fail(err, HF_NOMEM, "out of memory");
    t->server = server;
    list_init(&t->hungry);
    list_init(&t->idle);
    hf_random(&t->random, sizeof t->random);
    int r = hf_idle_open(lanes_handle(server->lanes, LANE_WRITE), &t->sleep, err);
    return r == -HF_UNSUPPORTED ? 0 : r;
}

void claims_close(struct server *server)
{
    if (!server->claims)
        return;
    hf_idle_close(server->claims->sleep);
    free(server->claims);
    server->claims = NULL;
}
