#include "nursery.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "error.h"
#include "guardian.h"
#include "host.h"
#include "link.h"
#include "order.h"
#include "tree.h"

enum {
    KILL_AGAIN_MS = 5,
    PATIENCE_MS = 5000, /* how long an order may wait for a nursery that is busy, or stopped */
    CHILDREN_MAX = 1 << 20
};

enum word_kind { ORDER, KILL, GONE };

struct word {
    enum word_kind kind;
    uint64_t id;
};

/* The descriptors that come with an order. */
enum { LINK, COMMAND, STDIN, STDOUT, STDERR, N_FDS };

/* ---- the nursery's side --------------------------------------------------------------------- */

struct child {
    uint64_t id;
    pid_t pid;  /* 0: it is dead, and what it may have left is being ended */
    bool asked; /* the worker wants to know when it is gone */
};

struct nursery {
    int link, signal_fd;
    sigset_t inherited; /* the mask for commands */
    struct child *children;
    pid_t *pids; /* of the children, for struct hf_tree */
    size_t n, size;
    bool abandoned; /* the worker has gone */
};

/* So that one guardian's line does not stay open in another one. */
static void close_all_but(const int *fds, size_t n)
{
    unsigned from = STDERR_FILENO + 1;
    for (;;) {
        unsigned next = ~0u;
        for (size_t i = 0; i < n; i++)
            if ((unsigned)fds[i] >= from && (unsigned)fds[i] < next)
                next = (unsigned)fds[i];
        if (next > from)
            close_range(from, next - (next != ~0u), 0);
        if (next == ~0u)
            return;
        from = next + 1;
    }
}

_Noreturn static void be_guardian(const struct nursery *s, const int fds[N_FDS])
{
    struct hf_command command;
    close_all_but(fds, N_FDS);
    if (hf_order_read(fds[COMMAND], &command) < 0)
        _exit(1);
    close(fds[COMMAND]);
    command.in_fd = fds[STDIN];
    command.out_fd = fds[STDOUT];
    command.err_fd = fds[STDERR];
    command.mask = s->inherited;
    hf_guardian_be(&command, 0, fds[LINK]);
}

static bool make_room(struct nursery *s)
{
    if (s->n < s->size)
        return true;
    size_t size = s->size ? 2 * s->size : 64;
    struct child *children =
        size > CHILDREN_MAX ? NULL : realloc(s->children, size * sizeof *children);
    if (!children)
        return false;
    s->children = children;
    pid_t *pids = realloc(s->pids, size * sizeof *pids);
    if (!pids)
        return false;
    s->pids = pids;
    s->size = size;
    return true;
}

static void tell_gone(const struct nursery *s, uint64_t id)
{
    struct word word = {.kind = GONE, .id = id};
    while (send(s->link, &word, sizeof word, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

/* Where it can't be started, the end of its line tells that. */
static void start_guardian(struct nursery *s, uint64_t id, const int fds[N_FDS])
{
    pid_t pid = make_room(s) ? fork() : -1;
    if (pid == 0)
        be_guardian(s, fds);
    if (pid > 0)
        s->children[s->n++] = (struct child){.id = id, .pid = pid};
}

static void forget(struct nursery *s, size_t i)
{
    if (s->children[i].asked)
        tell_gone(s, s->children[i].id);
    s->children[i] = s->children[--s->n];
}

static void kill_guardian(struct nursery *s, uint64_t id)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->children[i].id != id)
            continue;
        s->children[i].asked = true;
        if (s->children[i].pid)
            kill(s->children[i].pid, SIGKILL);
        return;
    }
    tell_gone(s, id);
}

static void listen_to_worker(struct nursery *s)
{
    struct word word;
    int fds[N_FDS];
    int r = hf_link_receive(s->link, &word, sizeof word, fds, N_FDS);
    if (r < 0)
        s->abandoned = true;
    if (r <= 0)
        return;
    if (word.kind == ORDER)
        start_guardian(s, word.id, fds);
    else
        kill_guardian(s, word.id);
    for (int i = 0; i < N_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* A guardian that exits by itself leaves nobody; of one that was killed that is to be seen to. */
static void reaped(struct nursery *s, pid_t pid, int status)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->children[i].pid != pid)
            continue;
        if (WIFEXITED(status))
            forget(s, i);
        else
            s->children[i].pid = 0;
        return;
    }
}

/* End what has no guardian any more. True: look again soon. */
static bool end_orphans(struct nursery *s)
{
    size_t n_dead = 0;
    for (size_t i = 0; i < s->n; i++) {
        s->pids[i] = s->children[i].pid;
        n_dead += s->children[i].pid == 0;
    }
    if (n_dead == 0)
        return false;
    struct hf_tree tree = {.root = getpid(), .spared = s->pids, .n_spared = s->n};
    if (hf_tree_kill_once(&tree))
        return true;
    for (size_t i = s->n; i-- > 0;)
        if (s->children[i].pid == 0)
            forget(s, i);
    return false;
}

static void reap(struct nursery *s)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        reaped(s, pid, status);
}

_Noreturn static void nurse(struct nursery *s)
{
    while (!s->abandoned || s->n) {
        struct pollfd fds[] = {{.fd = s->abandoned ? -1 : s->link, .events = POLLIN},
                               {.fd = s->signal_fd, .events = POLLIN}};
        struct signalfd_siginfo info;
        reap(s);
        bool again = end_orphans(s);
        if (s->abandoned && !s->n)
            break;
        if (poll(fds, 2, again ? KILL_AGAIN_MS : -1) <= 0)
            continue;
        ssize_t ignored = fds[1].revents ? read(s->signal_fd, &info, sizeof info) : 0;
        (void)ignored;
        if (fds[0].revents)
            listen_to_worker(s);
    }
    _exit(0);
}

static bool prepare(struct nursery *s)
{
    sigset_t signals;
    sigfillset(&signals);
    sigprocmask(SIG_SETMASK, &signals, &s->inherited);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    setpgid(0, 0);
    prctl(PR_SET_NAME, "holdfast-nurse");
    s->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && s->signal_fd >= 0;
}

/* ---- the worker's side ---------------------------------------------------------------------- */

int hf_nursery_start(struct hf_nursery *ret, struct hf_error *err)
{
    int ends[2];
    struct nursery s = {0};
    int r = hf_host_check_children(err);
    if (r < 0)
        return r;
    r = hf_link_open(ends);
    pid_t pid = r < 0 ? r : fork();
    if (pid == 0) {
        close(ends[0]);
        s.link = ends[1];
        if (!prepare(&s))
            _exit(1);
        nurse(&s);
    }
    if (pid < 0) {
        int saved_errno = r < 0 ? -r : errno;
        if (r >= 0)
            close(ends[0]), close(ends[1]);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved_errno, "can't start the nursery");
    }
    close(ends[1]);
    *ret = (struct hf_nursery){.pid = pid, .link = ends[0]};
    return 0;
}

void hf_nursery_end(struct hf_nursery *nursery)
{
    close(nursery->link);
    while (waitpid(nursery->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

static int send_word(const struct hf_nursery *nursery, const struct word *word, const int *fds)
{
    struct pollfd ready = {.fd = nursery->link, .events = POLLOUT};
    if (poll(&ready, 1, PATIENCE_MS) == 0)
        return -EAGAIN;
    return hf_link_send(nursery->link, word, sizeof *word, fds, fds ? N_FDS : 0);
}

int hf_nursery_order(const struct hf_nursery *nursery, uint64_t id,
                     const struct hf_command *command, int *ret_link, struct hf_error *err)
{
    int ends[2] = {-1, -1}, description = -1;
    struct word word = {.kind = ORDER, .id = id};
    int failed = hf_link_open(ends), r = 0;
    if (failed >= 0 && (r = hf_order_write(command, &description, err)) >= 0) {
        const int fds[N_FDS] = {[LINK] = ends[1],
                                [COMMAND] = description,
                                [STDIN] = command->in_fd,
                                [STDOUT] = command->out_fd,
                                [STDERR] = command->err_fd};
        failed = send_word(nursery, &word, fds);
        close(description);
    }
    hf_command_close(command);
    if (ends[1] >= 0)
        close(ends[1]);
    if (failed >= 0 && r >= 0) {
        *ret_link = ends[0];
        return 0;
    }
    if (ends[0] >= 0)
        close(ends[0]);
    return r < 0 ? r : hf_fail_errno(err, HF_UNAVAILABLE, -failed, "can't start a guardian");
}

void hf_nursery_kill(const struct hf_nursery *nursery, uint64_t id)
{
    struct word word = {.kind = KILL, .id = id};
    send_word(nursery, &word, NULL);
}

int hf_nursery_hear(const struct hf_nursery *nursery, uint64_t *ret_id)
{
    struct word word;
    int r = hf_link_receive(nursery->link, &word, sizeof word, NULL, 0);
    if (r > 0)
        *ret_id = word.id;
    return r;
}
