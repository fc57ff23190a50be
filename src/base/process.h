/*
 * Who a process is, so that it is never mistaken for another: pid, start time, pid namespace (the
 * boot is kept beside it). Only a certain death counts: in any doubt the answer is "unknown".
 */
#ifndef HF_BASE_PROCESS_H
#define HF_BASE_PROCESS_H

#include "holdfast.h"

struct hf_process {
    int32_t pid;         /* 0: none */
    int64_t start_ticks; /* since boot, in clock ticks of the machine, not of the time namespace */
};

/* The processes that keep one lease alive: it is dead when every one of them is. */
struct hf_processes {
    uint32_t n; /* 0: bound to no process */
    struct hf_process of[HF_BOUND_MAX];
    uint64_t pid_namespace; /* inode; pids mean nothing in another one */
    char boot[HF_UUID_LEN + 1];
};

/* "web1/4121": how people are told of a process that has no other name. */
void hf_process_describe(int32_t pid, char *ret, size_t size);

/* What /proc says of a process now; start times are the machine's, as in struct hf_process. */
struct hf_process_stat {
    char state; /* R, S, D, T, Z, ... */
    int32_t parent, group, session;
    int64_t start_ticks;
};
bool hf_process_read_stat(int32_t pid, struct hf_process_stat *ret);

/* Describe local processes by their pids; fails where one does not exist. Always sets the boot. */
int hf_processes_identify(const int32_t *pids, size_t n, struct hf_processes *ret,
                          struct hf_error *err);

/* Alive while any is; unknown where none is bound, or in another pid namespace or boot. */
enum hf_alive hf_processes_alive(const struct hf_processes *all);

/* Has every thread of this process ended, whether or not somebody has reaped it? Its main thread may
 * have, and look like a zombie, while others go on. */
bool hf_process_has_ended(int pidfd);

/*
 * As text, for stores that keep them so: boot, pid namespace, "pid:start" of each; none is empty.
 * What can't be read stands for no process: then only the ttl ends it.
 */
enum { HF_PROCESSES_TEXT_MAX = 160 };
void hf_processes_format(const struct hf_processes *all, char ret[HF_PROCESSES_TEXT_MAX]);
void hf_processes_parse(const char *text, struct hf_processes *ret);

/*
 * Descriptors that become readable as these processes end (for poll), -1 where there is none to
 * watch. Only for processes of this pid namespace that are alive now.
 */
void hf_processes_watch(const struct hf_processes *all, int ret_fds[HF_BOUND_MAX]);

#endif
