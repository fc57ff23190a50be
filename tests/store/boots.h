/*
 * A machine that a test can boot again, and containers on it that are told a boot id of their own. To
 * be linked with --wrap=hf_boot_id,hf_clock_boot_ms,hf_clock_arm; included once per program.
 */
#ifndef HF_TESTS_BOOTS_H
#define HF_TESTS_BOOTS_H

#include "holdfast.h"

static struct {
    char boot_id[HF_UUID_LEN + 1], own_id[HF_UUID_LEN + 1];
    int64_t booted_ms; /* by the real machine's clock */
} machine = {.boot_id = "00000000-0000-4000-8000-000000000001"};

const char *__wrap_hf_boot_id(void);
const char *__wrap_hf_boot_id(void) { return machine.own_id[0] ? machine.own_id : machine.boot_id; }

int64_t __real_hf_clock_boot_ms(void);
int64_t __wrap_hf_clock_boot_ms(void);
int64_t __wrap_hf_clock_boot_ms(void) { return __real_hf_clock_boot_ms() - machine.booted_ms; }

void __real_hf_clock_arm(int timer_fd, int64_t boot_ms);
void __wrap_hf_clock_arm(int timer_fd, int64_t boot_ms);
void __wrap_hf_clock_arm(int timer_fd, int64_t boot_ms)
{
    __real_hf_clock_arm(timer_fd, boot_ms + machine.booted_ms);
}

/* A boot id such as hf_boot_id() makes them for the machine (version 4), or a container (8). */
static inline void make_boot_id(char version, char ret[HF_UUID_LEN + 1])
{
    hf_token(ret);
    ret[14] = version;
}

/* The machine is up for so long; a container keeps its id. */
static inline void boot(int64_t up_ms)
{
    make_boot_id('4', machine.boot_id);
    machine.booted_ms = __real_hf_clock_boot_ms() - up_ms;
}

static inline void boot_again(void) { boot(1000); }

static inline void enter_container(void) { make_boot_id('8', machine.own_id); }
static inline void leave_container(void) { machine.own_id[0] = '\0'; }

#endif
