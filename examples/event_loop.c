/*
 * Waiting for a lock without blocking: one poll loop that answers stdin while it stands in the
 * queue.
 *
 *     event_loop NAME     type lines; the end of the input gives up waiting
 */
#include <err.h>
#include <holdfast.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Answer what was typed; false at the end of the input. */
static bool answer_input(void)
{
    char text[256];
    ssize_t n = read(STDIN_FILENO, text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    printf("you said \"%s\"; still waiting\n", text);
    return true;
}

/* Poll both until the wait is over; 0 with the lease, or why not. */
static int wait_and_answer(struct hf_wait *wait, struct hf_lease *lease, struct hf_error *why)
{
    for (;;) {
        int r = hf_wait_check(wait, lease, why);
        if (r != -HF_HELD || hf_wait_is_over(wait))
            return r;
        struct pollfd fds[] = {{hf_wait_fd(wait), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
        while (fds[0].revents == 0) {
            if (poll(fds, 2, -1) > 0 && fds[1].revents && !answer_input())
                return r; /* -HF_HELD, with the holder in `why` */
        }
    }
}

int main(int argc, char **argv)
{
    struct hf *hf;
    struct hf_error why;
    struct hf_wait *wait;
    struct hf_lease lease;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    if (argc != 2)
        errx(64, "usage: event_loop NAME");
    options.wait_ms = HF_FOREVER;
    setvbuf(stdout, NULL, _IOLBF, 0);

    if (hf_open(NULL, &hf, &why) < 0 || hf_wait_start(hf, argv[1], &options, &wait, &why) < 0)
        errx(hf_code_exit(why.code), "%s", why.message);
    int r = wait_and_answer(wait, &lease, &why);
    hf_wait_end(wait); /* leaves the queue where nothing was granted */
    if (r < 0)
        fprintf(stderr, "gave up: %s\n", why.message);
    else {
        printf("granted; fence %lld\n", (long long)lease.fence);
        r = hf_release(hf, &lease, &why);
    }
    hf_close(hf);
    return hf_code_exit(r);
}
