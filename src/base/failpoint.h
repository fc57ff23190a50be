/*
 * Places at which tests end or stop the process: $HOLDFAST_FAILPOINT=N[@K][:kill|stop], at the Kth
 * time (the first) that failpoint N is passed. Compiled away but where tests are built.
 */
#ifndef HF_BASE_FAILPOINT_H
#define HF_BASE_FAILPOINT_H

enum hf_failpoint {
    HF_FAIL_BEFORE_COMMIT = 1, /* a durable transaction is about to be committed */
    HF_FAIL_AFTER_COMMIT = 2,  /* it was, and nobody has been told */
    HF_FAIL_BEGUN = 3,         /* an execution has begun, nothing is marked as spawned */
    HF_FAIL_MARKED = 4,        /* it is marked, the guardian was not told to start it */
    HF_FAIL_GUARDIAN = 5,      /* the guardian was told, and has started nothing */
    HF_FAIL_EXEC = 6,          /* the command's process is there, and executes nothing yet */
    HF_FAIL_ENDED = 7,         /* nothing of the command is left, its end is not recorded */
    HF_FAIL_FINISHED = 8,      /* its end was acknowledged */
    HF_FAIL_GUARDED = 9,       /* the fence was asked about, the file is not replaced yet */
    HF_FAIL_MAX = HF_FAIL_GUARDED
};

#ifdef HF_FAILPOINTS
void hf_failpoint(enum hf_failpoint which);
#else
static inline void hf_failpoint(enum hf_failpoint which) { (void)which; }
#endif

#endif
