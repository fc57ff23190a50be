/*
 * A client for the tests of real processes, on the public API only.
 *
 *     hammer count NAME COUNTER LOG N     N times: take NAME, raise the number in COUNTER, note
 *                                         "number fence takeover" in LOG, give NAME back
 *     hammer endure NAME COUNTER LOG N    the same, asking again for as long as the store is away
 *     hammer talk                         one command per line of stdin, one answer per line
 *
 * The store is $HOLDFAST_STORE. Commands of talk:
 *     acquire NAME TTL_MS WAIT_MS PRIORITY BOUND    BOUND 1: to this process
 *     extend | release | guard                      of what was acquired last
 *     keep | lost                                   start a keeper; has it lost the lease?
 *     status NAME
 *     waits NAME N                                  N waits for NAME at once, all on this handle
 *     fork | reopen                                 a child goes on; with another handle
 *     shift SECONDS                                 children will have another time namespace, that far ahead
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holdfast.h"

static struct hf *hf;
static struct hf_error error;
static struct hf_lease lease;
static struct hf_keeper *keeper;
static bool endures;

static void bind_to_us(struct hf_acquire_options *options)
{
    options->bound[0] = getpid();
    options->n_bound = 1;
}

/* ---- count ---------------------------------------------------------------------------------- */

/* Read and write apart, and somebody else in between if the lock lets them. */
static long raise_counter(const char *path)
{
    char text[32] = "";
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || pread(fd, text, sizeof text - 1, 0) < 0)
        err(1, "%s", path);
    long value = strtol(text, NULL, 10) + 1;
    sched_yield();
    int n = snprintf(text, sizeof text, "%020ld", value);
    if (pwrite(fd, text, (size_t)n, 0) != n)
        err(1, "%s", path);
    close(fd);
    return value;
}

/* The store is away, not refusing: after a moment the same token may be sent again. */
static bool is_away(int r)
{
    bool away = endures && (r == -HF_UNAVAILABLE || r == -HF_UNKNOWN);
    if (away)
        usleep(20000);
    return away;
}

static void take(const char *name, struct hf_acquire_options *options)
{
    char token[HF_UUID_LEN + 1];
    hf_token(token);
    options->token = endures ? token : NULL;
    for (int r; (r = hf_acquire(hf, name, options, &lease, &error)) < 0;) {
        if (endures && r == -HF_LOST)
            hf_token(token); /* it was granted while we could not hear of it, and has ended */
        else if (!is_away(r))
            errx(1, "acquire: %s", error.message);
    }
}

static void give_back(void)
{
    int tries = 1;
    for (int r; (r = hf_release(hf, &lease, &error)) < 0; tries++)
        if (!is_away(r))
            errx(1, "release of fence %lld, try %d: %s", (long long)lease.fence, tries,
                 error.message);
}

static int count(const char *name, const char *counter, const char *log, long n)
{
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    options.wait_ms = HF_FOREVER;
    bind_to_us(&options);
    for (long i = 0; i < n; i++) {
        char line[64];
        take(name, &options);
        long value = raise_counter(counter);
        int length = snprintf(line, sizeof line, "%ld %lld %d\n", value, (long long)lease.fence,
                              (int)lease.takeover.reason);
        if (write(log_fd, line, (size_t)length) != length)
            err(1, "%s", log);
        give_back();
    }
    return 0;
}

/* ---- talk ----------------------------------------------------------------------------------- */

static void say(int r)
{
    if (r < 0)
        printf("%s %s\n", hf_code_name(r), error.message);
    else
        printf("OK %lld %d\n", (long long)lease.fence, (int)lease.takeover.reason);
    fflush(stdout);
}

static void talk_acquire(const char *line)
{
    char name[HF_NAME_MAX + 1];
    long long ttl_ms, wait_ms;
    int priority, bound;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    if (sscanf(line, "acquire %200s %lld %lld %d %d", name, &ttl_ms, &wait_ms, &priority, &bound) !=
        5)
        errx(64, "bad command: %s", line);
    options.ttl_ms = ttl_ms;
    options.wait_ms = wait_ms;
    options.priority = priority;
    if (bound)
        bind_to_us(&options);
    say(hf_acquire(hf, name, &options, &lease, &error));
}

static void talk_status(const char *line)
{
    static const char *const alive[] = {"unknown", "dead", "alive"};
    char name[HF_NAME_MAX + 1];
    struct hf_status status;
    if (sscanf(line, "status %200s", name) != 1)
        errx(64, "bad command: %s", line);
    int r = hf_status_of(hf, name, &status, &error);
    if (r < 0)
        say(r);
    else
        printf("OK %s %s %lld %u\n", hf_lock_state_name(status.state), alive[status.alive + 1],
               (long long)status.fence, status.waiters);
    fflush(stdout);
}

static void talk_waits(const char *line)
{
    char name[HF_NAME_MAX + 1];
    int n, r = 0;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    struct hf_wait *wait;
    if (sscanf(line, "waits %200s %d", name, &n) != 2)
        errx(64, "bad command: %s", line);
    options.wait_ms = HF_FOREVER;
    for (int i = 0; i < n && (r == 0 || r == -HF_HELD); i++) {
        r = hf_wait_start(hf, name, &options, &wait, &error);
        if (r == 0)
            r = hf_wait_check(wait, &lease, &error);
    }
    say(r);
}

/* The child goes on with the conversation. */
static void talk_fork(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        say(0);
    else if (pid < 0 || waitpid(pid, &status, 0) < 0)
        err(1, "fork");
    else
        _exit(status != 0);
}

static void talk_reopen(void)
{
    hf_close(hf);
    hf = NULL;
    say(hf_open(NULL, &hf, &error));
}

static void talk_shift(const char *line)
{
    char text[40];
    int n = snprintf(text, sizeof text, "boottime %d 0", atoi(line + strlen("shift ")));
    int fd =
        unshare(CLONE_NEWTIME) < 0 ? -1 : open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, (size_t)n) == n;
    if (fd >= 0)
        close(fd);
    say(done ? 0 : -HF_UNSUPPORTED);
}

static int talk(void)
{
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "acquire ", 8) == 0)
            talk_acquire(line);
        else if (strncmp(line, "status ", 7) == 0)
            talk_status(line);
        else if (strncmp(line, "waits ", 6) == 0)
            talk_waits(line);
        else if (strncmp(line, "shift ", 6) == 0)
            talk_shift(line);
        else if (strcmp(line, "fork") == 0)
            talk_fork();
        else if (strcmp(line, "reopen") == 0)
            talk_reopen();
        else if (strcmp(line, "extend") == 0)
            say(hf_extend(hf, &lease, 0, &error));
        else if (strcmp(line, "release") == 0)
            say(hf_release(hf, &lease, &error));
        else if (strcmp(line, "guard") == 0)
            say(hf_guard(hf, lease.name, lease.fence, &error));
        else if (strcmp(line, "keep") == 0)
            say(hf_keep(hf, &lease, NULL, &keeper, &error));
        else if (strcmp(line, "lost") == 0)
            say(hf_keeper_check(keeper, NULL, &error));
        else
            errx(64, "bad command: %s", line);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int r;
    endures = argc == 6 && strcmp(argv[1], "endure") == 0;
    while ((r = hf_open(NULL, &hf, &error)) < 0)
        if (!is_away(r))
            errx(1, "open: %s", error.message);
    r = 64;
    if (endures || (argc == 6 && strcmp(argv[1], "count") == 0))
        r = count(argv[2], argv[3], argv[4], strtol(argv[5], NULL, 10));
    else if (argc == 2 && strcmp(argv[1], "talk") == 0)
        r = talk();
    hf_close(hf);
    return r;
}
