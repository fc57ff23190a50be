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
/* Many, since most of them are used up for ever. */
static const char *const keys[] = {"mo", "tu", "we", "th", "fr", "sa", "su", "k1", "k2", "k3", "k4",
                                   "k5", "k6", "k7", "k8", "k9", "l1", "l2", "l3", "l4", "l5", "l6",
                                   "l7", "l8", "l9", "m1", "m2", "m3", "m4", "m5", "m6", "m7"};

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
    bool is_fair = h.paused_ms < EDGE_MS;
    printf("%s at step %lld of seed %llu on %s\n%s\n%s\n", is_fair ? "FAILED" : "not judged",
           (long long)h.step, (unsigned long long)h.seed, h.url, what, why);
    if (!is_fair)
        printf(
            "the machine stood still for %lld ms: edges that the model had not reached were met\n",
            (long long)h.paused_ms);
    fflush(stdout);
    kill_processes();
    _exit(is_fair ? 1 : SKIPPED);
}

void describe(const struct hf_request *req, char *ret, size_t size)
{
    static const char *const ops[] = {"acquire", "extend", "release", "withdraw", "force", "settle",
                                      "lost",    "status", "guard",   "enqueue",  "cancel"};
    snprintf(ret, size,
             "%s %s owner=%s token=%.8s fence=%lld ttl=%lld wait=%lld priority=%d bound=%zu"
             " workflow=%s key=%s once=%d input=%.*s execution=%s claim=%d spawned=%d outcome=%d"
             " overlap=%d limit=%d concurrency=%d run_at=%lld verifies=%d",
             ops[req->op], req->name, req->owner ? req->owner : "-", req->token ? req->token : "-",
             (long long)req->fence, (long long)req->ttl_ms, (long long)req->wait_ms, req->priority,
             req->n_bound, req->workflow ? req->workflow : "-", req->key ? req->key : "-",
             req->once, (int)req->input_size, req->input_size ? (const char *)req->input : "",
             req->execution_id ? req->execution_id : "-", req->claim, req->spawned,
             (int)req->outcome, (int)req->overlap, req->queue_limit, req->concurrency,
             (long long)req->run_at_ms, req->verifies);
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

static void add_turns(struct actor *a)
{
    static const int64_t backoffs[] = {0, 0, 1000, 20000};
    a->max_attempts = (int32_t)chance(3);
    a->overlap = (enum hf_overlap)chance(HF_OVERLAP_CANCEL + 1);
    a->queue_limit = (int32_t)chance(4);
    a->concurrency = (int32_t)chance(3);
    a->retry_backoff_ms = PICK(backoffs);
}

static void add_execution(struct actor *a, int name)
{
    static const char *const inputs[] = {NULL, "in", "other"};
    static const enum hf_on_lost on_losts[] = {HF_ON_LOST_ABORT, HF_ON_LOST_RETRY,
                                               HF_ON_LOST_VERIFY};
    if (!h.has_executions) { /* the store knows only those that are to happen once */
        a->workflow = names[name];
        a->key = PICK(keys);
        a->once = true;
        return;
    }
    a->workflow = chance(h.has_turns ? 3 : 8) ? names[name] : SHARED_WORKFLOW;
    if (chance(3))
        a->key = PICK(keys);
    a->once = a->key && chance(2);
    a->input = PICK(inputs);
    a->on_lost = PICK(on_losts);
    a->overlap = HF_OVERLAP_QUEUE;
    if (h.has_turns)
        add_turns(a);
}

static int64_t some_ttl(void)
{
    static const int64_t ttls[] = {100, 1000, 4000, 7000, 60000};
    return h.real_clock ? 2000 : PICK(ttls);
}

static struct actor *new_actor(int name)
{
    static const int64_t waits[] = {HF_FOREVER, HF_FOREVER, 300, 3000, 60000};
    struct actor *a = &h.actors[name][h.n_actors[name]++];
    *a = (struct actor){.ttl_ms = some_ttl(),
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
    if (h.has_executions ? chance(2) : h.has_once && chance(4) == 0)
        add_execution(a, name);
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

static void put_execution(struct hf_request *req, const struct actor *a)
{
    if (!a->workflow)
        return;
    req->workflow = a->workflow;
    req->key = a->key;
    req->once = a->once;
    req->input = a->input;
    req->input_size = a->input ? strlen(a->input) : 0;
    req->execution_id = a->execution_id;
    req->on_lost = a->on_lost;
    req->max_attempts = a->max_attempts;
    req->retry_backoff_ms = a->retry_backoff_ms;
    req->concurrency = a->concurrency;
    req->overlap = a->overlap;
    req->queue_limit = a->queue_limit;
}

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
    put_execution(&req, a);
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

/* What a runner says with its heartbeat and at the end. */
static void tell_of_execution(struct hf_request *req, const struct actor *a)
{
    static const enum hf_outcome outcomes[] = {HF_OUTCOME_NONE, HF_OUTCOME_SUCCESS,
                                               HF_OUTCOME_FAILED, HF_OUTCOME_ABORTED,
                                               HF_OUTCOME_LOST};
    if (req->op == HF_OP_EXTEND)
        req->spawned = chance(2);
    if (req->op == HF_OP_RELEASE)
        req->outcome = PICK(outcomes);
    if (req->outcome != HF_OUTCOME_NONE) {
        req->execution_id = h.has_executions && chance(4) ? a->execution_id : NULL;
        req->has_exit_code = chance(2);
        req->exit_code = req->has_exit_code ? (int)chance(3) : 0;
    }
    req->has_output = (req->op == HF_OP_EXTEND || req->outcome != HF_OUTCOME_NONE) && chance(2);
    if (!req->has_output)
        return;
    req->output_head = "hello \xff";
    req->output_head_size = (size_t)chance(8);
    req->output_tail = "the end";
    req->output_tail_size = (size_t)chance(8);
    req->output_skipped = chance(3);
}

/* Some execution of this lock; its id stays until enough others were asked for. */
static const char *some_execution(int name)
{
    static char ids[2 * BATCH_MAX][HF_UUID_LEN + 1];
    static unsigned at;
    const struct hf_execution *x = NULL;
    for (int tries = 0; tries < 20 && h.model->n_executions; tries++) {
        /* rather a new one: most of the old ones are over */
        size_t n = h.model->n_executions, back = (size_t)chance(1 + chance((int64_t)n));
        const struct hf_execution *some = &h.model->executions[n - 1 - back].x;
        if (strcmp(some->lock, names[name]) == 0)
            x = some;
        if (x == some && x->state == HF_PENDING)
            break;
    }
    char *id = ids[at++ % (2 * BATCH_MAX)];
    snprintf(id, sizeof ids[0], "%s", x ? x->id : "00000000-0000-4000-9000-ffffffffffff");
    return id;
}

static struct hf_request execution_request(int name)
{
    struct hf_request req = {.name = names[name], .owner = "operator"};
    struct actor *a = new_actor(name);
    switch (chance(4)) {
    case 0:
        req.op = HF_OP_CANCEL;
        req.execution_id = some_execution(name);
        break;
    case 1:
        req.op = HF_OP_SETTLE;
        req.execution_id = some_execution(name);
        break;
    case 2:
        req = acquire_request(name, a, false);
        req = (struct hf_request){.op = HF_OP_ACQUIRE,
                                  .name = names[name],
                                  .token = a->token,
                                  .ttl_ms = a->ttl_ms,
                                  .owner = a->owner,
                                  .claim = true,
                                  .verifies = h.has_turns && chance(2),
                                  .execution_id = some_execution(name)};
        a->workflow = names[name]; /* so that it goes on as a runner does */
        snprintf(a->execution_id, sizeof a->execution_id, "%s", req.execution_id);
        break;
    default:
        if (!a->workflow)
            add_execution(a, name);
        put_execution(&req, a);
        req.op = HF_OP_ENQUEUE;
        req.priority = a->priority;
        req.run_at_ms = chance(2) ? 0 : h.model->now_ms + h.model->wall_offset_ms + chance(60000);
    }
    return req;
}

struct hf_request make_request(int name)
{
    static const enum hf_op by_token[] = {HF_OP_EXTEND,  HF_OP_EXTEND,  HF_OP_RELEASE,
                                          HF_OP_RELEASE, HF_OP_RELEASE, HF_OP_WITHDRAW};
    static const enum hf_op by_fence[] = {HF_OP_FORCE, HF_OP_GUARD, HF_OP_GUARD, HF_OP_LOST};
    static const enum hf_op looking[] = {HF_OP_STATUS, HF_OP_STATUS, HF_OP_SETTLE};
    bool rush = h.step / 150 % 3 == 1; /* the queue outgrows the window that a record carries */
    if (rush && chance(2))
        return acquire_request(name, new_actor(name), true);
    if (h.has_executions && chance(6) == 0)
        return execution_request(name);
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
        else if (chance(2)) /* as the library does, and its repetitions */
            req.fence = a->fence;
        if (req.op == HF_OP_EXTEND && chance(2))
            req.ttl_ms = some_ttl();
        if (a->workflow)
            tell_of_execution(&req, a);
    } else if (dice < 90) {
        req.op = PICK(by_fence);
        req.fence = some_fence(name);
        req.owner = "operator";
        req.reason = "said so";
    } else
        req.op = PICK(looking);
    return req;
}

/* ---- many at once --------------------------------------------------------------------------- */

static struct actor *holder_of(int name)
{
    struct model_lock *lock = model_lock(h.model, names[name]);
    struct actor *a = lock->rec.grant.held ? find_actor(name, &lock->rec.grant.id) : NULL;
    return a ? a : some_actor(name);
}

/* Its fence, where that has been shown; else any will do. */
static int64_t holders_fence(int name)
{
    const struct fences *f = &h.fences[name];
    int64_t fence = model_lock(h.model, names[name])->rec.grant.fence;
    return f->n && f->pairs[f->n - 1].model == fence ? fence : 0;
}

/* What the holder of this name says: it goes on, or ends. */
static struct hf_request holders_request(int name, enum hf_op op, bool of_execution)
{
    struct actor *a = holder_of(name);
    struct hf_request req = {.op = op, .name = names[name], .token = a->token};
    req.fence = chance(8) ? holders_fence(name) : some_fence(name);
    req.ttl_ms = op == HF_OP_EXTEND && chance(2) ? some_ttl() : 0;
    req.reason = chance(2) ? "so it ended" : NULL;
    if (of_execution)
        tell_of_execution(&req, a);
    if (op == HF_OP_RELEASE && of_execution && req.outcome == HF_OUTCOME_NONE)
        req.outcome = HF_OUTCOME_SUCCESS;
    return req;
}

static struct hf_request plain_acquire(int name)
{
    struct actor *a = new_actor(name);
    a->workflow = NULL;
    return acquire_request(name, a, false);
}

/* It waits its turn, whatever its lock has. */
static struct hf_request plain_enqueue(int name)
{
    struct actor *a = new_actor(name);
    struct hf_request req = {.name = names[name], .owner = "operator", .op = HF_OP_ENQUEUE};
    if (!a->workflow)
        add_execution(a, name);
    put_execution(&req, a);
    req.priority = a->priority;
    req.overlap = HF_OVERLAP_QUEUE;
    req.queue_limit = 0;
    req.run_at_ms = chance(2) ? 0 : h.model->now_ms + h.model->wall_offset_ms + chance(3000);
    return req;
}

static bool all_are_free(void)
{
    for (int name = 0; name < NAMES; name++) {
        const struct model_lock *lock = model_lock(h.model, names[name]);
        if (lock->rec.grant.held || lock->n_queue)
            return false;
    }
    return true;
}

size_t make_many(struct hf_request ret[BATCH_MAX])
{
    int64_t kind = chance(h.has_executions ? 5 : 3);
    size_t n = kind == 4 ? 3 + (size_t)chance(BATCH_MAX - 2) : NAMES;
    /* Of those whose lock is held a store may be told after the others. */
    bool mixed = all_are_free();
    int one = (int)chance(NAMES);
    for (size_t i = 0; i < n; i++) {
        int name = kind != 4 ? (int)i : mixed ? (int)chance(NAMES) : one;
        ret[i] = kind == 0   ? plain_acquire(name)
                 : kind == 1 ? holders_request(name, HF_OP_EXTEND, h.has_executions)
                 : kind == 2 ? holders_request(name, HF_OP_RELEASE, false)
                 : kind == 3 ? holders_request(name, HF_OP_RELEASE, true)
                             : plain_enqueue(name);
    }
    return n;
}

void add_worker(int name, const char *token, const char *execution_id)
{
    struct actor *a = new_actor(name);
    snprintf(a->token, sizeof a->token, "%s", token);
    snprintf(a->execution_id, sizeof a->execution_id, "%s", execution_id);
    a->id = hf_lock_id_of(token);
    a->workflow = names[name];
    a->key = NULL;
}
