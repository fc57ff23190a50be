/*
 * What this process may believe of the machine that it runs on. Containers hide files of /proc, put
 * others in their place, or show another namespace's. Read once, and again in a forked child.
 */
#ifndef HF_BASE_HOST_H
#define HF_BASE_HOST_H

#include "holdfast.h"

/*
 * This boot's id (36 characters); "unknown" where /proc does not say. An id that a container was given in
 * place of the machine's says nothing of when the machine was booted: its version digit is 8, not 4.
 */
const char *hf_boot_id(void);
bool hf_boot_id_is_the_machines(const char *id);

/* What this process's time namespace adds to the machine's boot clock, in ms. */
int64_t hf_boot_offset_ms(void);

/* -HF_UNAVAILABLE: this process can't know the machine's clock, or tell one process from another. */
int hf_host_check(struct hf_error *err);

/* The same of the processes that this one will start. */
int hf_host_check_children(struct hf_error *err);

#endif
