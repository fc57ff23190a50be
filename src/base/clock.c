#include "clock.h"

#include <sys/timerfd.h>
#include <time.h>

#include "host.h"

static int64_t read_clock_ms(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t hf_clock_boot_ms(void) { return read_clock_ms(CLOCK_BOOTTIME) - hf_boot_offset_ms(); }

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
