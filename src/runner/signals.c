#include "signals.h"

#include <errno.h>
#include <unistd.h>

#include "error.h"

static const struct {
    int number;
    bool ends_waiting;
} passed_on[] = {
    {SIGHUP, true},    {SIGINT, true},   {SIGQUIT, true},  {SIGTERM, true},
    {SIGUSR1, true},   {SIGUSR2, true},  {SIGALRM, true},  {SIGCONT, false},
    {SIGWINCH, false}, {SIGTSTP, false}, {SIGTTIN, false}, {SIGTTOU, false},
};

/* Real-time signals mean to the command whatever it likes. */
static void add_real_time(sigset_t *set)
{
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        sigaddset(set, number);
}

/* One that is ignored (nohup, a shell's background job) or blocked would not have ended us. */
static bool would_end_us(int number, const sigset_t *inherited)
{
    struct sigaction action;
    return !sigismember(inherited, number) && sigaction(number, NULL, &action) == 0 &&
           action.sa_handler != SIG_IGN;
}

int hf_signals_open(struct hf_signals *signals, struct hf_error *err)
{
    sigset_t set, blocked;
    sigprocmask(SIG_SETMASK, NULL, &signals->inherited);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (passed_on[i].ends_waiting && would_end_us(passed_on[i].number, &signals->inherited))
            sigaddset(&set, passed_on[i].number);
    signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals->fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't receive signals");
    blocked = set;
    sigaddset(&blocked, SIGPIPE); /* a closed stderr must not keep us from giving the lock back */
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    return 0;
}

void hf_signals_pass_on(struct hf_signals *signals)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaddset(&set, passed_on[i].number);
    add_real_time(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signalfd(signals->fd, &set, 0);
}

bool hf_signals_next(struct hf_signals *signals, struct signalfd_siginfo *ret)
{
    return read(signals->fd, ret, sizeof *ret) == sizeof *ret;
}
