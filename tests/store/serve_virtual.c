/*
 * The service on a virtual clock, for the conformance suite: serve_virtual STORE SOCKET CLOCKS. The
 * clocks of leases are read from the file CLOCKS, which the suite moves.
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "serve.h"

static const int64_t *clocks;

int64_t __wrap_hf_clock_boot_ms(void);
int64_t __wrap_hf_clock_wall_ms(void);

int64_t __wrap_hf_clock_boot_ms(void) { return clocks[0]; }
int64_t __wrap_hf_clock_wall_ms(void) { return clocks[1]; }

int main(int argc, char **argv)
{
    char at[200];
    struct hf_error error;
    if (argc != 4)
        errx(64, "usage: serve_virtual STORE SOCKET CLOCKS");
    int fd = open(argv[3], O_RDONLY | O_CLOEXEC);
    clocks = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *clocks, PROT_READ, MAP_SHARED, fd, 0);
    if (clocks == MAP_FAILED)
        err(1, "%s", argv[3]);
    snprintf(at, sizeof at, "unix:%s", argv[2]);
    struct serve_options opts = {.store_url = argv[1],
                                 .listen = at,
                                 .max_connections = 1000,
                                 .max_body = 1 << 20,
                                 .receive_ms = SERVE_RECEIVE_DEFAULT_MS};
    if (serve(&opts, &error) < 0)
        errx(1, "%s", error.message);
    return 0;
}
