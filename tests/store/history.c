#include "history.h"

#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct history h;

const char *const names[NAMES] = {"alpha", "beta/with slash", "ga%mma é"};
static const char *const keys[] = {"monday", "tuesday"};

/* ---- chance --------------------------------------------------------------------------------- */

/* 0 to n-1 (splitmix64) */
int64_t chance(int64_t n)
{
    uint64_t z = h.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

/* ---- failing -------------------------------------------------------------------------------- */

void kill_processes(void)
{
    for (int i = 0; i < PROCESSES; i++)
        if (h.processes[i] > 0) {
            kill(h.processes[i], SIGKILL);
            waitpid(h.processes[i], NULL, 0);
        }
}

void give_up(const char *what, const char *why)
{
    printf("FAILED at step %lld of seed %llu on %s\n%s\n%s\n", (long long)h.step,
           (unsigned long long)h.seed, h.url, what, why);
    fflush(stdout);
    kill_processes();
    _exit(1);
}

void describe(const struct hf_request *req, char *ret, size_t size)
{
    static const char *const ops[] = {"acquire", "extend", "release", "withdraw", "force",
                                      "settle",  "lost",   "status",  "guard"};
    snprintf(ret, size,
             "%s %s owner=%s token=%.8s fence=%lld ttl=%lld wait=%lld priority=%d bound=%zu key=%s",
             ops[req->op], req->name, req->owner ? req->owner : "-", req->token ? req->token : "-",
             (long long)req->fence, (long long)req->ttl_ms, (long long)req->wait_ms, req->priority,
             req->n_bound, req->once_key ? req->once_key : "-");
}

/* ---- actors --------------------------------------------------------------------------------- */

pid_t start_process(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent)
            pause();
        _exit(0);
    }
    if (pid < 0)
        err(1, "fork");
    return pid;
}

void unwatch(struct actor *a, const char *name)
{
    if (a->wake_fd >= 0)
        a->watched_on->ops->unwatch(a->watched_on, name, &a->id, a->wake_fd);
    a->wake_fd = -1;
}

void make_room(int name)
{
    struct actor *all = h.actors[name];
    for (size_t *n = &h.n_actors[name]; *n > ACTORS - BATCH_MAX; (*n)--) {
        unwatch(&all[0], names[name]);
        memmove(&all[0], &all[1], (*n - 1) * sizeof *all);
    }
}

static struct actor *new_actor(int name)
{
    static const int64_t ttls[] = {100, 1000, 4000, 7000, 60000};
    static const int64_t waits[] = {HF_FOREVER, HF_FOREVER, 300, 3000, 60000};
    struct actor *a = &h.actors[name][h.n_actors[name]++];
    *a = (struct actor){.ttl_ms = h.real_clock ? 2000 : PICK(ttls),
                        .wait_ms = PICK(waits),
                        .priority = (int32_t)chance(3) - 1,
                        .process = chance(3) ? -1 : (int)chance(PROCESSES),
                        .wake_fd = -1};
    /* Not random, so that a seed replays exactly. */
    uint64_t number = (uint64_t)++h.actors_made;
    snprintf(a->token, sizeof a->token, "%08llx-0000-4000-8000-%012llx",
             (unsigned long long)(h.seed & 0xffffffff), (unsigned long long)number);
    snprintf(a->execution_id, sizeof a->execution_id, "%08llx-0000-4000-9000-%012llx",
             (unsigned long long)(h.seed & 0xffffffff), (unsigned long long)number);
    snprintf(a->owner, sizeof a->owner, "actor-%llu", (unsigned long long)number);
    a->id = hf_lock_id_of(a->token);
    if (h.has_once && chance(4) == 0)
        a->once_key = PICK(keys);
    return a;
}

struct actor *find_actor(int name, const struct hf_lock_id *id)
{
    for (size_t i = 0; i < h.n_actors[name]; i++)
        if (hf_lock_id_equal(&h.actors[name][i].id, id))
            return &h.actors[name][i];
    return NULL;
}

/* Often the holder, sometimes the head of the queue, else anybody, also of the past. */
static struct actor *some_actor(int name)
{
    struct model_lock *lock = model_lock(h.model, names[name]);
    struct actor *a = NULL;
    if (chance(3) && lock->rec.grant.held)
        a = find_actor(name, &lock->rec.grant.id);
    else if (chance(2) && lock->n_queue)
        a = find_actor(name, &lock->queue[chance((int64_t)lock->n_queue)].id);
    if (!a && h.n_actors[name])
        a = &h.actors[name][chance((int64_t)h.n_actors[name])];
    return a ? a : new_actor(name);
}

/* ---- requests ------------------------------------------------------------------------------- */

static struct hf_request acquire_request(int name, struct actor *a, bool waits)
{
    struct hf_request req = {.op = HF_OP_ACQUIRE,
                             .name = names[name],
                             .token = a->token,
                             .ttl_ms = a->ttl_ms,
                             .wait_ms = waits ? a->wait_ms : 0,
                             .owner = a->owner,
                             .note = chance(2) ? "a \"note\"" : NULL,
                             .priority = a->priority,
                             .durable = chance(20) == 0};
    if (a->once_key) {
        req.once_key = a->once_key;
        req.execution_id = a->execution_id;
    }
    if (h.has_processes && a->process >= 0 && h.processes[a->process] > 0) {
        req.bound[0] = h.processes[a->process];
        req.n_bound = 1;
    }
    return req;
}

/* The last fence that was shown, one before it, or nobody's; as the model counts them. */
static int64_t some_fence(int name)
{
    const struct fences *f = &h.fences[name];
    size_t back = chance(4) ? 1 : 2;
    return f->n < back || chance(4) == 0 ? 999999999 : f->pairs[f->n - back].model;
}

struct hf_request make_request(int name)
{
    static const enum hf_op by_token[] = {HF_OP_EXTEND,  HF_OP_EXTEND,  HF_OP_RELEASE,
                                          HF_OP_RELEASE, HF_OP_RELEASE, HF_OP_WITHDRAW};
    static const enum hf_op by_fence[] = {HF_OP_FORCE, HF_OP_GUARD, HF_OP_GUARD, HF_OP_LOST};
    static const enum hf_op looking[] = {HF_OP_STATUS, HF_OP_STATUS, HF_OP_SETTLE};
    static const enum hf_outcome outcomes[] = {HF_OUTCOME_NONE, HF_OUTCOME_SUCCESS,
                                               HF_OUTCOME_FAILED};
    bool rush = h.step / 150 % 3 == 1; /* the queue outgrows the window that a record carries */
    if (rush && chance(2))
        return acquire_request(name, new_actor(name), true);
    int64_t dice = chance(100);
    if (dice < 45)
        return acquire_request(name, dice < 30 ? new_actor(name) : some_actor(name), dice % 3 > 0);
    struct hf_request req = {.name = names[name]};
    if (dice < 80) {
        struct actor *a = some_actor(name);
        req.op = PICK(by_token);
        req.token = a->token;
        if (chance(4) == 0)
            req.fence = some_fence(name);
        if (req.op == HF_OP_EXTEND && chance(2))
            req.ttl_ms = a->ttl_ms;
        if (req.op == HF_OP_RELEASE && a->once_key)
            req.outcome = PICK(outcomes);
    } else if (dice < 90) {
        req.op = PICK(by_fence);
        req.fence = some_fence(name);
        req.owner = "operator";
        req.reason = "said so";
    } else
        req.op = PICK(looking);
    return req;
}
