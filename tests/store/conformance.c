/*
 * Does a store do what the model does? Random histories are played to both, and every answer must
 * be equal: codes, holders, times, queue positions, takeovers; fences by identity and order. So
 * must the lists, the totals, the events, and who is woken.
 *
 *     conformance --store URL [--seed N] [--steps N] [--real-clock] [--clocks FILE]
 *     conformance --mutants            the suite's own test: see below
 *
 * The seed is printed first; a failing one replays exactly. The store must be empty.
 *
 * Time: this program is linked with --wrap of the two clocks, so that the stores of one machine run
 * on the same virtual clock as the model, and a history jumps right onto the edge of a lease. The
 * clock of an engine that has its own is taken over (engine_clock.h), and a service is built with
 * the same wrapped clocks (serve_virtual.c), which both read from a file (--clocks). With
 * --real-clock everything runs in real time: nothing is asked near an edge, and times are compared
 * with a tolerance.
 *
 * That it can fail: `--mutants` plays histories to the store in memory (memory.h) with one mistake
 * planted at a time, and demands that each is caught, and the correct store is not.
 */
#include <err.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "history.h"
#include "late.h"
#include "looks.h"
#include "memory.h"
#include "seed.h"
#include "times.h"

/* ---- playing -------------------------------------------------------------------------------- */

/* Whoever the model wakes must be woken; whoever no longer waits need not be watched. */
static void check_wakes(int name, const char *what)
{
    for (size_t i = 0; i < h.model->n_wakes; i++) {
        struct actor *a = find_actor(name, &h.model->wakes[i]);
        if (!a || a->wake_fd < 0 || a->moved_step == h.step)
            continue; /* one that is watched only since this batch may have been told where it was before */
        struct pollfd fd = {.fd = a->wake_fd, .events = POLLIN};
        if (poll(&fd, 1, WAKE_MS) != 1)
            give_up(what, "the waiter that was granted the lock was not woken");
        unwatch(a, names[name]);
    }
}

/* Whoever waits is told through the handle that it last asked with. */
static void watch_before_asking(struct hf_store *store, const struct hf_request *req, int name)
{
    struct hf_error error;
    if (!req->wait_ms || !store->ops->watch)
        return;
    struct hf_lock_id id = hf_lock_id_of(req->token);
    struct actor *a = find_actor(name, &id);
    if (!a || (a->wake_fd >= 0 && a->watched_on == store))
        return;
    a->moved_step = h.step;
    unwatch(a, req->name);
    if (store->ops->watch(store, req->name, &a->id, &a->wake_fd, &error) < 0)
        give_up("watch", error.message);
    a->watched_on = store;
}

/* ---- an idle worker ------------------------------------------------------------------------- */

static struct {
    struct hf_store *store; /* NULL: it is awake */
    struct hf_lock_id id;
    const char *workflows[2];
    struct hf_due wanted;
    int fd;
} sleeper = {.workflows = {NULL, SHARED_WORKFLOW}};

static void wake_sleeper(void)
{
    if (!sleeper.store)
        return;
    sleeper.store->ops->idle(sleeper.store, &sleeper.id, NULL, NULL, NULL);
    sleeper.store->ops->unwatch(sleeper.store, NULL, &sleeper.id, sleeper.fd);
    sleeper.store = NULL;
}

/* It goes to sleep, and is told when the next one falls due. */
static void put_to_sleep(void)
{
    struct hf_error error;
    char token[HF_UUID_LEN + 1];
    int64_t next_ms = -1;
    struct hf_store *store = h.handles[chance(HANDLES)];
    wake_sleeper();
    if (!h.has_turns || !store->ops->idle)
        return;
    snprintf(token, sizeof token, "%08llx-0000-4000-a000-%012llx",
             (unsigned long long)(h.seed & 0xffffffff), (unsigned long long)h.step);
    sleeper.id = hf_lock_id_of(token);
    sleeper.workflows[0] = PICK(names);
    sleeper.wanted = (struct hf_due){.workflows = sleeper.workflows,
                                     .n_workflows = (size_t)chance(3),
                                     .wall_ms = h.model->now_ms + h.model->wall_offset_ms};
    if (store->ops->watch(store, NULL, &sleeper.id, &sleeper.fd, &error) < 0 ||
        store->ops->idle(store, &sleeper.id, &sleeper.wanted, &next_ms, &error) < 0)
        give_up("idle", error.message);
    note_pause();
    sleeper.store = store;
    int64_t expected_ms = model_next_due(h.model, &sleeper.wanted);
    if (llabs(next_ms - expected_ms) > (h.real_clock ? PAUSE_MS : 0))
        give_up("idle", "another one falls due next");
}

/* How often the model would wake it after its last request. */
static size_t count_calls(void)
{
    size_t n = 0;
    for (size_t i = 0; i < h.model->n_ready; i++)
        n += model_wants(&sleeper.wanted, h.model->ready[i]);
    return n;
}

/* It is woken once, by the first execution that becomes ready and is for it. */
static void check_sleeper(size_t n_ready, const char *what)
{
    struct pollfd fd = {.fd = sleeper.fd, .events = POLLIN};
    if (!sleeper.store)
        return;
    if (poll(&fd, 1, n_ready ? WAKE_MS : 0) != (n_ready ? 1 : 0))
        give_up(what, n_ready ? "the idle worker was not woken" : "the idle worker was woken");
    if (n_ready)
        wake_sleeper();
}

/* ---- playing, on ---------------------------------------------------------------------------- */

static void note_fence(int name, const struct hf_request *req, const struct hf_answer *answer)
{
    struct hf_lock_id id = hf_lock_id_of(req->token ? req->token : "");
    struct actor *a = find_actor(name, &id);
    if (a && answer->code == 0 && answer->lease.fence)
        a->fence = answer->lease.fence;
}

/* Play these to both, and compare. */
static void play_requests(struct hf_store *store, const struct hf_request *asked, size_t n)
{
    static struct hf_answer of_model[BATCH_MAX], of_store[BATCH_MAX];
    struct hf_request translated[BATCH_MAX];
    struct hf_error error;
    char what[HF_MESSAGE_MAX];
    for (size_t i = 0; i < n; i++) {
        translated[i] = asked[i];
        translated[i].fence = fence_of_store(&h.fences[name_index(asked[i].name)], asked[i].fence);
    }
    describe(&asked[0], what, sizeof what);
    int r = store->ops->apply(store, translated, n, of_store, &error);
    note_pause();
    if (r < 0)
        give_up(what, error.message);
    size_t n_ready = 0;
    for (size_t i = 0; i < n; i++) {
        int name = name_index(asked[i].name);
        struct comparison c = {.fences = &h.fences[name],
                               .tolerance_ms = h.real_clock ? PAUSE_MS : 0,
                               .without_turns = !h.has_turns,
                               .without_executions = !h.has_executions};
        describe(&asked[i], what, sizeof what);
        note_before(name);
        model_apply(h.model, &asked[i], &of_model[i]);
        check_after(name, &asked[i], &of_model[i]);
        n_ready += count_calls();
        check_wakes(name, what);
        compare_answers(&c, &of_model[i], &of_store[i]);
        check(&c, what);
        note_fence(name, &asked[i], &of_model[i]);
        if (of_model[i].has_execution && of_store[i].has_execution)
            check_fence(&of_model[i].execution, &of_store[i].execution, what);
    }
    check_sleeper(n_ready, what);
}

static void play(int name)
{
    struct hf_store *store = h.handles[chance(HANDLES)];
    struct hf_request asked[BATCH_MAX];
    size_t n = chance(8) ? 1 : 1 + (size_t)chance(BATCH_MAX);
    make_room(name);
    for (size_t i = 0; i < n; i++) {
        asked[i] = make_request(name);
        watch_before_asking(store, &asked[i], name);
    }
    play_requests(store, asked, n);
}

/* A copy of an earlier request, which a network has kept back. */
static void play_late(int name)
{
    const struct hf_request *asked = late_request(name);
    struct hf_store *store = h.handles[chance(HANDLES)];
    if (!asked)
        return;
    watch_before_asking(store, asked, name);
    play_requests(store, asked, 1);
}

static void play_many(void)
{
    struct hf_request asked[BATCH_MAX];
    for (int name = 0; name < NAMES; name++)
        make_room(name);
    size_t n = make_many(asked);
    play_requests(h.handles[chance(HANDLES)], asked, n);
}

/* ---- claiming ------------------------------------------------------------------------------- */

enum { CLAIM_MAX = 4, SEEN_MAX = 256 };

struct claim {
    struct hf_due due;
    struct hf_request like;
    struct hf_answer granted[CLAIM_MAX]; /* by the store */
    size_t n;
    char tokens[CLAIM_MAX][HF_UUID_LEN + 1];
};

static void new_token(char ret[HF_UUID_LEN + 1])
{
    static unsigned long long made;
    snprintf(ret, HF_UUID_LEN + 1, "%08llx-0000-4000-b000-%012llx",
             (unsigned long long)(h.seed & 0xffffffff), ++made);
}

/* As hf_claim() does: until it has all that it wants, or no more come. */
static void claim_of_store(struct hf_store *store, struct claim *c)
{
    struct hf_due due = c->due;
    struct hf_answer answers[CLAIM_MAX];
    struct hf_error error;
    size_t n, useful;
    do {
        const char *tokens[CLAIM_MAX];
        due.limit = c->due.limit - c->n;
        for (size_t i = 0; i < due.limit; i++) {
            new_token(c->tokens[i]);
            tokens[i] = c->tokens[i];
        }
        if (store->ops->claim(store, &due, &c->like, tokens, false, answers, &n, &error) < 0)
            give_up("claim", error.message);
        useful = 0;
        for (size_t i = 0; i < n; i++) {
            useful += answers[i].code == 0 || answers[i].execution.parked;
            if (answers[i].code == 0)
                c->granted[c->n++] = answers[i];
        }
    } while (n == due.limit && useful && c->n < c->due.limit);
}

/* What the store has granted for this execution, or NULL. */
static const struct hf_answer *granted_for(const struct claim *c, const char *id)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->granted[i].execution.id, id) == 0)
            return &c->granted[i];
    return NULL;
}

/* One that is due: the model must grant it exactly where the store has. False: it is in the way. */
static bool claim_one(const struct claim *c, const struct hf_execution *x, size_t *n, size_t *ready)
{
    const struct hf_answer *of_store = granted_for(c, x->id);
    struct hf_request req = c->like;
    struct hf_answer answer;
    char token[HF_UUID_LEN + 1];
    int name = name_index(x->lock);
    new_token(token);
    req.name = names[name];
    req.execution_id = x->id;
    req.token = of_store ? of_store->lease.token : token;
    model_apply(h.model, &req, &answer);
    *ready += count_calls();
    if ((answer.code == 0) != (of_store != NULL))
        give_up(x->id, of_store ? "it should not have been claimed" : "it was not claimed");
    if (!of_store)
        return answer.execution.parked || answer.code != -HF_HELD;
    struct comparison cmp = {.fences = &h.fences[name],
                             .tolerance_ms = h.real_clock ? PAUSE_MS : 0};
    compare_answers(&cmp, &answer, of_store);
    check(&cmp, "claim");
    check_fence(&answer.execution, &of_store->execution, "claim");
    make_room(name);
    add_worker(name, of_store->lease.token, x->id);
    (*n)++;
    return true;
}

/* One that was claimed before it in the same batch may have made its workflow full. */
static bool is_still_due(const struct claim *c, const struct hf_execution *x)
{
    enum { MOST = 64 };
    static struct hf_execution found[MOST];
    struct hf_due due = c->due;
    due.limit = MOST;
    size_t n = x->concurrency ? model_due(h.model, &due, found) : 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(found[i].id, x->id) == 0)
            return true;
    return !x->concurrency || n == MOST;
}

/* The store has looked at it: it has claimed it, or parked it. */
static bool was_looked_at(struct hf_store *store, const struct claim *c,
                          const struct hf_execution *x)
{
    struct hf_execution of_store;
    struct hf_error error;
    if (granted_for(c, x->id))
        return true;
    if (store->ops->execution(store, x->id, &of_store, &error) < 0)
        give_up("claim", error.message);
    return of_store.parked;
}

/*
 * A lease that was taken over may have made room in a workflow. Who had to look at a process in
 * between has begun anew and met what waited for that; others leave it to the next claim.
 */
static void claim_what_found_room(struct hf_store *store, const struct claim *c,
                                  const struct hf_execution *seen, size_t n_seen, size_t *n,
                                  size_t *ready)
{
    static struct hf_execution found[SEEN_MAX];
    struct hf_due due = c->due;
    due.limit = SEEN_MAX;
    size_t n_found = model_due(h.model, &due, found);
    for (size_t i = 0; i < n_found; i++) {
        bool is_new = found[i].concurrency > 0;
        for (size_t j = 0; j < n_seen; j++)
            is_new &= strcmp(seen[j].id, found[i].id) != 0;
        if (is_new && is_still_due(c, &found[i]) && was_looked_at(store, c, &found[i]))
            claim_one(c, &found[i], n, ready);
    }
}

static void claim_of_model(struct hf_store *store, const struct claim *c)
{
    static struct hf_execution seen[SEEN_MAX];
    struct hf_due due = c->due;
    size_t n = 0, ready = 0, n_found, n_seen = 0;
    do {
        due.limit = c->due.limit - n;
        struct hf_execution *found = &seen[n_seen];
        n_found = model_due(h.model, &due, found);
        n_seen += n_found;
        for (size_t i = 0; i < n_found; i++)
            due.skip += is_still_due(c, &found[i]) && !claim_one(c, &found[i], &n, &ready);
    } while (n_found == due.limit && n < c->due.limit && n_seen + CLAIM_MAX <= SEEN_MAX);
    claim_what_found_room(store, c, seen, n_seen, &n, &ready);
    if (n != c->n)
        give_up("claim", "more were claimed than are due");
    check_sleeper(ready, "claim");
}

static void play_claim(void)
{
    const char *workflows[] = {names[0], names[1], SHARED_WORKFLOW};
    static const int64_t ttls[] = {1000, 7000, 60000};
    struct hf_store *store = h.handles[chance(HANDLES)];
    struct claim c = {.due = {.workflows = workflows,
                              .n_workflows = chance(2) ? 0 : (size_t)chance(4),
                              .wall_ms = h.model->now_ms + h.model->wall_offset_ms,
                              .verifies = chance(2),
                              .limit = 1 + (size_t)chance(CLAIM_MAX)},
                      .like = {.op = HF_OP_ACQUIRE,
                               .claim = true,
                               .owner = "worker",
                               .ttl_ms = h.real_clock ? 2000 : PICK(ttls)}};
    int process = (int)chance(PROCESSES);
    if (!store->ops->claim)
        return;
    c.like.verifies = c.due.verifies;
    if (chance(2) && h.processes[process] > 0) {
        c.like.bound[0] = h.processes[process];
        c.like.n_bound = 1;
    }
    claim_of_store(store, &c);
    note_pause();
    claim_of_model(store, &c);
}

static void move_clock(int name)
{
    static const int64_t spans[] = {1, 50, 99, 100, 999, 2500, 4999, 5000, 7000, 20000, 61000};
    const struct hf_grant *g = &model_lock(h.model, names[name])->rec.grant;
    int64_t left_ms = g->expires_ms - h.model->now_ms;
    if (g->held && left_ms > 1 && chance(2))
        pass_time(left_ms - chance(2)); /* to its very end, or the moment before */
    else
        pass_time(PICK(spans));
}

static void kill_one(void)
{
    int i = (int)chance(PROCESSES);
    if (h.processes[i] > 0) {
        kill(h.processes[i], SIGKILL);
        waitpid(h.processes[i], NULL, 0);
        model_kill(h.model, h.processes[i]);
    }
    h.processes[i] = start_process();
}

/* ---- handles -------------------------------------------------------------------------------- */

static struct hf_store *open_store(void)
{
    struct hf_store *store;
    struct hf_error error;
    int r = strcmp(h.url, "memory:") == 0 ? memory_open(&store, &error)
                                          : hf_store_open(h.url, &store, &error);
    if (r < 0)
        errx(1, "%s: %s", h.url, error.message);
    return store;
}

static void reopen_one(void)
{
    int i = (int)chance(HANDLES);
    for (int name = 0; name < NAMES; name++)
        for (size_t j = 0; j < h.n_actors[name]; j++)
            if (h.actors[name][j].watched_on == h.handles[i])
                unwatch(&h.actors[name][j], names[name]);
    if (sleeper.store == h.handles[i])
        wake_sleeper();
    h.handles[i]->ops->close(h.handles[i]);
    h.handles[i] = open_store();
}

/* ---- a history ------------------------------------------------------------------------------ */

static bool keeps_once(void)
{
    struct hf_request req = {.op = HF_OP_ACQUIRE,
                             .name = names[0],
                             .token = "00000000-0000-4000-8000-000000000000",
                             .ttl_ms = 1000,
                             .owner = "probe",
                             .workflow = names[0],
                             .key = "probe",
                             .once = true,
                             .execution_id = "00000000-0000-4000-9000-000000000000"};
    struct hf_answer answer;
    struct hf_error error;
    int r = h.handles[0]->ops->apply(h.handles[0], &req, 1, &answer, &error);
    if (r >= 0)
        model_apply(h.model, &req, &answer);
    return r >= 0;
}

static void begin_history(void)
{
    h.model = model_new();
    h.model->now_ms = __real_hf_clock_boot_ms();
    h.model->wall_offset_ms = __real_hf_clock_wall_ms() - h.model->now_ms;
    set_clocks(h.model->now_ms);
    h.random = h.seed;
    for (int i = 0; i < HANDLES; i++)
        h.handles[i] = open_store();
    take_engine_clock();
    for (int i = 0; i < PROCESSES; i++)
        h.processes[i] = start_process();
    pass_time(0); /* a new store takes a while to be made */
    h.has_once = keeps_once();
    note_pause();
    h.has_executions = h.handles[0]->ops->executions != NULL;
    h.has_turns = h.has_executions;
    h.has_all_events = strncmp(h.url, "file:", 5) != 0;
    h.has_processes = strncmp(h.url, "http:", 5) != 0; /* the service may be on another machine */
    pass_time(5000);
}

static void end_history(void)
{
    for (int name = 0; name < NAMES; name++)
        for (size_t i = 0; i < h.n_actors[name]; i++)
            unwatch(&h.actors[name][i], names[name]);
    wake_sleeper();
    for (int i = 0; i < HANDLES; i++)
        h.handles[i]->ops->close(h.handles[i]);
    give_back_engine_clock();
    kill_processes();
    model_free(h.model);
}

static void play_history(void)
{
    begin_history();
    for (h.step = 1; h.step <= h.steps; h.step++) {
        int name = (int)chance(NAMES);
        int64_t dice = chance(100);
        pass_time(0);
        if (dice < 60)
            play(name);
        else if (dice < 68)
            play_late(name);
        else if (dice < 75)
            play_many();
        else if (dice < 80)
            play_claim();
        else if (dice < 92)
            move_clock(name);
        else if (dice < 94)
            kill_one();
        else if (dice < 96)
            reopen_one();
        else if (dice < 97)
            check_list(false);
        else if (dice < 98)
            check_executions(false);
        else if (dice < 99)
            check_due();
        else if (chance(2))
            put_to_sleep();
        else
            check_totals();
    }
    for (int name = 0; name < NAMES; name++)
        check_events(name);
    check_totals();
    check_list(true);
    check_executions(true);
    printf("ok: %lld steps, %lld actors, %lld grants, %zu executions, %zu events\n",
           (long long)h.steps, (long long)h.actors_made,
           (long long)model_totals(h.model).acquire_granted, h.model->n_executions,
           h.model->n_events);
    end_history();
}

/* ---- the suite's own test ------------------------------------------------------------------- */

/* One history in a process of its own: 0 where it went well. */
static bool survives(enum mutant mutant, uint64_t seed)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (mutant != MUTANT_NONE && !freopen("/dev/null", "w", stdout))
            _exit(3);
        memory_reset(mutant);
        h.seed = seed;
        play_history();
        memory_reset(MUTANT_NONE);
        exit(0);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        err(1, "fork");
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
        errx(1, "a history ended by itself: %d", status);
    return WEXITSTATUS(status) == 0;
}

static int test_mutants(void)
{
    int escaped = 0;
    h.url = "memory:";
    for (int mutant = MUTANT_NONE; mutant < MUTANT_COUNT; mutant++) {
        uint64_t seed = 1;
        while (seed < 20 && survives((enum mutant)mutant, seed))
            seed++;
        bool caught = seed < 20;
        bool wanted = mutant != MUTANT_NONE;
        printf("%s: %s (seed %llu)\n", mutant_text((enum mutant)mutant),
               caught ? "caught" : "not caught", (unsigned long long)seed);
        escaped += caught != wanted;
    }
    printf("%d of %d as expected\n", MUTANT_COUNT - escaped, MUTANT_COUNT);
    return escaped ? 1 : 0;
}

static uint64_t parse_seed(const char *text)
{
    return strcmp(text, "random") == 0 ? seed_of_run() : strtoull(text, NULL, 10);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"store", required_argument, NULL, 's'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {"steps", required_argument, NULL, 'n'},
                                            {"real-clock", no_argument, NULL, 'c'},
                                            {"mutants", no_argument, NULL, 'm'},
                                            {"clocks", required_argument, NULL, 'k'},
                                            {NULL, 0, NULL, 0}};
    bool mutants = false;
    h.seed = parse_seed("random");
    h.steps = 2000;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (o) {
        case 's':
            h.url = optarg;
            break;
        case 'r':
            h.seed = parse_seed(optarg);
            break;
        case 'n':
            h.steps = strtoll(optarg, NULL, 10);
            break;
        case 'c':
            h.real_clock = true;
            break;
        case 'm':
            mutants = true;
            break;
        case 'k':
            share_clocks(optarg);
            break;
        default:
            return 64;
        }
    if (mutants)
        return test_mutants();
    if (!h.url)
        errx(64, "usage: conformance --store URL [--seed N] [--steps N] [--real-clock]");
    printf("conformance --store %s --seed %llu --steps %lld\n", h.url, (unsigned long long)h.seed,
           (long long)h.steps);
    fflush(stdout);
    memory_reset(MUTANT_NONE);
    play_history();
    memory_reset(MUTANT_NONE);
    return 0;
}
