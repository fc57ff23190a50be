/*
 * What makes a lock safe even where its holder is paused: the fence. Each grant of a name carries a
 * greater one. Whoever keeps the data refuses a fence below the greatest it has seen, in the same
 * atomic step in which it writes. Then a holder that slept past its lease changes nothing.
 *
 *     fenced LEDGER       plays both: a holder that oversleeps, and the one that came after it
 */
#define _XOPEN_SOURCE 700
#include <err.h>
#include <fcntl.h>
#include <holdfast.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char NAME[] = "ledger";

/* ---- the one who keeps the data: it knows fences, and nothing of locks ---------------------- */

/*
 * Replace the ledger's line by `text` unless a greater fence has written already. The file is
 * locked for the moment of check and write: that is the atomic step. In SQL it would be one UPDATE
 * with WHERE fence <= :fence.
 */
static bool write_ledger(const char *path, long long fence, const char *text)
{
    char line[80] = "";
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || lockf(fd, F_LOCK, 0) < 0 || pread(fd, line, sizeof line - 1, 0) < 0)
        err(1, "%s", path);
    bool fresh = strtoll(line, NULL, 10) <= fence;
    if (fresh) {
        int n = snprintf(line, sizeof line, "%lld %s\n", fence, text);
        if (ftruncate(fd, 0) < 0 || pwrite(fd, line, (size_t)n, 0) != n)
            err(1, "%s", path);
    }
    close(fd);
    printf("fence %lld: \"%s\" was %s\n", fence, text, fresh ? "written" : "refused");
    return fresh;
}

/* ---- two holders ---------------------------------------------------------------------------- */

static struct hf_lease acquire(struct hf *hf)
{
    struct hf_error why;
    struct hf_lease lease;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    options.ttl_ms = HF_TTL_MIN_MS;
    options.wait_ms = HF_FOREVER;
    if (hf_acquire(hf, NAME, &options, &lease, &why) < 0)
        errx(hf_code_exit(why.code), "%s", why.message);
    return lease;
}

int main(int argc, char **argv)
{
    struct hf *hf;
    struct hf_error why;
    if (argc != 2)
        errx(64, "usage: fenced LEDGER");
    if (hf_open(NULL, &hf, &why) < 0)
        errx(hf_code_exit(why.code), "%s", why.message);

    struct hf_lease first = acquire(hf);
    struct timespec pause = {0, 3 * HF_TTL_MIN_MS * 1000000};
    nanosleep(&pause, NULL); /* swapped out, stopped, a virtual machine that was moved ... */
    struct hf_lease second = acquire(hf);

    bool second_wrote = write_ledger(argv[1], second.fence, "by the second");
    bool first_wrote = write_ledger(argv[1], first.fence, "by the first, which overslept");

    int r = hf_release(hf, &first, &why);
    printf("the first's release: %s\n", hf_code_meaning(r));
    hf_release(hf, &second, NULL); /* its ttl is tiny here: it may have run out by now */
    hf_close(hf);
    return second_wrote && !first_wrote && r == -HF_LOST ? 0 : 1;
}
