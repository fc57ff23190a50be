/*
 * The two clocks. Leases are judged by the boot clock: it cannot be stepped, counts through
 * suspend, and is the same in every time namespace of this boot. The wall clock is for people only.
 */
#ifndef HF_BASE_CLOCK_H
#define HF_BASE_CLOCK_H

#include <stdint.h>

/* By how much two sound clocks may run apart: 500 ms in a million ms. NTP slews no faster. */
enum { HF_CLOCK_DRIFT_PPM = 500 };

/* CLOCK_BOOTTIME of the machine, in ms: the time namespace's offset is taken off. */
int64_t hf_clock_boot_ms(void);

/* Let a CLOCK_BOOTTIME timerfd fire at this boot time of the machine; in the past: at once. */
void hf_clock_arm(int timer_fd, int64_t boot_ms);

/* Milliseconds since 1970. */
int64_t hf_clock_wall_ms(void);

#endif
