/*
 * What wrapper, guardian and stand-in tell each other: notes over a socket pair that keeps their
 * borders. The end of the line is a note too: it means that the other side has died.
 */
#ifndef HF_RUNNER_LINK_H
#define HF_RUNNER_LINK_H

#include <stddef.h>

#include "deadline.h"
#include "holdfast.h"

enum hf_note_kind {
    /* to the guardian */
    HF_NOTE_START,   /* run the command; deadline_ms, ttl_ms; data: lines for its environment */
    HF_NOTE_RENEWED, /* deadline_ms; cancel */
    HF_NOTE_SIGNAL,  /* pass the signal `number` on; from_terminal */
    HF_NOTE_PAUSE,   /* the wrapper is about to stop; data: the lease that must be kept meanwhile */
    HF_NOTE_RESUME,  /* it is back */
    HF_NOTE_LOST,    /* kill the tree at once */
    HF_NOTE_STOP,    /* end the tree, the worker is to stop; `number` not 0: at once */
    /* to the wrapper */
    HF_NOTE_NOT_RUN, /* the command could not be started; `number` is the errno */
    HF_NOTE_STOPPED, /* the command was stopped by the signal `number` */
    HF_NOTE_RESUMED, /* deadline_ms, as the stand-in left it */
    HF_NOTE_ENDED    /* the tree is gone; `number` is the command's wait status; why, left_behind */
};

enum { HF_NOTE_DATA_MAX = 16384 };

struct hf_note {
    enum hf_note_kind kind;
    int number;
    enum hf_ending why;
    bool cancel;        /* its execution is to stop */
    bool from_terminal; /* the terminal sent the signal to the whole process group */
    uint32_t left_behind;
    int64_t deadline_ms, ttl_ms;
};

/* Both ends of a new line; 0 or -errno. */
int hf_link_open(int ret_ends[2]);

/* A side that has died does not hear it; that is no failure here: the end of the line says so. */
void hf_link_tell(int link, const struct hf_note *note, const void *data, size_t n);

/*
 * The next note. 1: there is one, its data in `data` (NULL: of no interest); 0: none has come;
 * -1: the other side has died and everything it said has been read.
 */
int hf_link_hear(int link, struct hf_note *ret, void *data, size_t size, size_t *ret_n);

/*
 * A message with descriptors, on lines that carry no notes: as many of them as both sides know of. Nobody
 * waits. 0 or -errno.
 */
enum { HF_LINK_FDS_MAX = 8 };
int hf_link_send(int link, const void *data, size_t n, const int *fds, size_t n_fds);

/* 1: such a message has come, with -1 for descriptors that did not; 0, -1: as above. */
int hf_link_receive(int link, void *data, size_t n, int *ret_fds, size_t n_fds);

#endif
