/*
 * A lock in ten lines. With Holdfast installed:
 *
 *     cc -std=c99 lock.c $(pkg-config --cflags --libs holdfast) -o lock
 *
 * The store is $HOLDFAST_STORE, else this user's own. The lease has a ttl of HF_TTL_DEFAULT_MS: for
 * work that may take longer see keeper.c.
 */
#include <err.h>
#include <holdfast.h>
#include <stdio.h>

int main(void)
{
    struct hf *hf;
    struct hf_error why;
    struct hf_lease lease;
    if (hf_open(NULL, &hf, &why) < 0)
        errx(hf_code_exit(why.code), "%s", why.message);
    if (hf_acquire(hf, "nightly-report", NULL, &lease, &why) < 0)
        errx(hf_code_exit(why.code), "%s", why.message); /* says who holds it, and since when */
    printf("only one of me; fence %lld\n", (long long)lease.fence);
    if (hf_release(hf, &lease, &why) < 0)
        errx(hf_code_exit(why.code), "%s", why.message); /* it ran out: somebody else may work */
    hf_close(hf);
    return 0;
}
