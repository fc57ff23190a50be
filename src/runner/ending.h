/* How a command ended, and what that means for its exit code and its execution. */
#ifndef HF_RUNNER_ENDING_H
#define HF_RUNNER_ENDING_H

#include "deadline.h"
#include "holdfast.h"

struct hf_capture;

struct hf_run_end {
    enum hf_ending why;
    int status;           /* of the command, as of wait() */
    int not_run;          /* errno: why it could not be started; 0: it was */
    uint32_t left_behind; /* processes that outlived it and had to be ended */
};

enum {
    HF_EXIT_TIMEOUT = 124,
    HF_EXIT_NOT_EXECUTABLE = 126,
    HF_EXIT_NOT_FOUND = 127,
    HF_EXIT_SIGNAL = 128 /* plus its number */
};

/* The exit code that tells of it: the command's own, or why it has none. */
int hf_end_code(const struct hf_run_end *end);

/* Was it ended for its lease's sake? */
bool hf_end_is_lost(const struct hf_run_end *end);

/*
 * How its execution ended, with what it printed (`capture` may be NULL). `code`: its exit code.
 * never_started: it was cancelled, or something failed, before the guardian was told to start it.
 */
struct hf_result hf_end_result(const struct hf_run_end *end, bool never_started, int code,
                               struct hf_capture *capture);

#endif
