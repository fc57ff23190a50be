#include "standin.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "link.h"

static void tell_renewed(void *arg, const struct hf_lease *lease)
{
    struct hf_note note = {.kind = HF_NOTE_RENEWED,
                           .deadline_ms = lease->deadline_ms,
                           .cancel = lease->cancel_requested};
    hf_link_tell(*(const int *)arg, &note, NULL, 0);
}

/*
 * Renew until the line ends or the lease does. Where the store can't be opened nothing is said: then
 * the deadline ends the command.
 */
static void stand_in(const char *url, const struct hf_lease *lease, int link)
{
    struct hf *hf;
    struct hf_keeper *keeper;
    struct hf_keep_options options = HF_KEEP_INIT;
    options.renewed = tell_renewed;
    options.arg = &link;
    if (hf_open(url, &hf, NULL) < 0 || hf_keep(hf, lease, &options, &keeper, NULL) < 0)
        return;
    struct pollfd fds[] = {{.fd = link, .events = POLLIN},
                           {.fd = hf_keeper_fd(keeper), .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        continue;
    if (fds[1].revents) {
        struct hf_note note = {.kind = HF_NOTE_LOST};
        hf_link_tell(link, &note, NULL, 0);
    }
    hf_keeper_stop(keeper);
    hf_close(hf);
}

pid_t hf_stand_in_start(const char *url, const struct hf_lease *lease, int *ret_link)
{
    int ends[2];
    int r = hf_link_open(ends);
    if (r < 0)
        return r;
    pid_t guardian = getpid(), pid = fork();
    if (pid == 0) {
        close(ends[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "holdfast-keep");
        if (getppid() == guardian)
            stand_in(url, lease, ends[1]);
        _exit(0);
    }
    int saved_errno = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return -saved_errno;
    }
    *ret_link = ends[0];
    return pid;
}
