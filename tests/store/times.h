/* The time of a history: one for the model, the store and its engine. See conformance.c. */
#ifndef HF_TESTS_TIMES_H
#define HF_TESTS_TIMES_H

#include <stdint.h>

int64_t __real_hf_clock_boot_ms(void);
int64_t __real_hf_clock_wall_ms(void);

void set_clocks(int64_t boot_ms);

/* A service that was built to read the same file runs on the same time. */
void share_clocks(const char *path);

/* Where the engine has a clock of its own. */
void take_engine_clock(void);
void give_back_engine_clock(void);

/* Let time pass in both worlds; afterwards it is a moment at which something may be asked. */
void pass_time(int64_t ms);

/* The store has answered: in real time, how long after the moment that the model knows? */
void note_pause(void);

#endif
