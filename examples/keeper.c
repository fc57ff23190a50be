/*
 * Work of unknown length. A keeper renews the lease in the background, and its descriptor becomes
 * readable when the lease is lost, or could not be renewed before its deadline: then stop at once.
 *
 *     keeper [STEPS]      each step takes a tenth of a second; the ttl is shorter than forty of them
 */
#include <err.h>
#include <holdfast.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TTL_MS = 3000, STEP_MS = 100 };

static void check(int r, const struct hf_error *why)
{
    if (r < 0)
        errx(hf_code_exit(r), "%s", why->message);
}

/* One small piece of the work; 0, or -HF_LOST when the lease ended meanwhile. */
static int work_a_step(struct hf_keeper *keeper, struct hf_error *why)
{
    struct pollfd lost = {hf_keeper_fd(keeper), POLLIN, 0};
    poll(&lost, 1, STEP_MS); /* a real program polls this beside its sockets */
    return hf_keeper_check(keeper, NULL, why);
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 40;
    struct hf *hf;
    struct hf_error why;
    struct hf_lease lease;
    struct hf_keeper *keeper;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    options.ttl_ms = TTL_MS;
    options.bound[0] = (int32_t)getpid(); /* if we are killed, the next one need not wait the ttl */
    options.n_bound = 1;

    check(hf_open(NULL, &hf, &why), &why);
    check(hf_acquire(hf, "long-work", &options, &lease, &why), &why);
    check(hf_keep(hf, &lease, NULL, &keeper, &why), &why);
    printf("working; fence %lld\n", (long long)lease.fence);
    fflush(stdout);

    int r = 0;
    for (int i = 0; i < steps && r >= 0; i++)
        r = work_a_step(keeper, &why);

    hf_keeper_stop(keeper); /* before the release, so that no renewal overtakes it */
    if (r < 0)
        fprintf(stderr, "stopped: %s\n", why.message);
    else
        r = hf_release(hf, &lease, &why);
    hf_close(hf);
    if (r >= 0)
        printf("done: %d steps, one lease\n", steps);
    return hf_code_exit(r);
}
