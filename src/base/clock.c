#include "clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int64_t boot_offset_ms;
static char boot_id[37] = "unknown";

static size_t read_small(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, buf, size - 1);
    close(fd);
    if (n < 0)
        n = 0;
    buf[n] = '\0';
    return (size_t)n;
}

/* "boottime SECONDS NANOSECONDS" is what this namespace adds to the machine's clock. */
static void read_machine(void)
{
    char text[256];
    if (read_small("/proc/self/timens_offsets", text, sizeof text)) {
        const char *line = strstr(text, "boottime");
        long long seconds = 0, nanoseconds = 0;
        if (line && sscanf(line, "boottime %lld %lld", &seconds, &nanoseconds) == 2)
            boot_offset_ms = seconds * 1000 + nanoseconds / 1000000;
    }
    if (read_small("/proc/sys/kernel/random/boot_id", text, sizeof text) >= 36)
        memcpy(boot_id, text, 36);
}

static int64_t read_clock_ms(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t hf_clock_boot_offset_ms(void)
{
    pthread_once(&once, read_machine);
    return boot_offset_ms;
}

int64_t hf_clock_boot_ms(void) { return read_clock_ms(CLOCK_BOOTTIME) - hf_clock_boot_offset_ms(); }

/*
 * Armed by what is left, not by the moment: that is the same in every time namespace, and under a
 * library that fakes the wall clock and moves absolute timers of every clock with it. Who was
 * stopped in between starts again.
 */
void hf_clock_arm(int timer_fd, int64_t boot_ms)
{
    int64_t now_ms;
    do {
        now_ms = hf_clock_boot_ms();
        int64_t left_ms = boot_ms > now_ms ? boot_ms - now_ms : 0;
        /* The nanosecond: a time of zero would disarm it. */
        struct itimerspec when = {.it_value = {left_ms / 1000, left_ms % 1000 * 1000000 + 1}};
        timerfd_settime(timer_fd, 0, &when, NULL);
    } while (hf_clock_boot_ms() > now_ms + 1);
}

int64_t hf_clock_wall_ms(void) { return read_clock_ms(CLOCK_REALTIME); }

const char *hf_boot_id(void)
{
    pthread_once(&once, read_machine);
    return boot_id;
}
