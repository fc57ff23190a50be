/*
 * HTTP/1.1 messages, read strictly: no I/O, no memory of its own. Where two readers could disagree
 * on what a request is or where it ends (a bare LF, a folded line, a space before the colon, two
 * lengths), one of them can be made to read what the other has not checked: such a request is
 * refused.
 *
 *     ssize_t n = head_length(text, size, &scanned);   // 0: receive more, and ask again
 *     status = head_read(text, n, room, &head, &why);  // 0, or what to refuse it with
 *     ... then head.length bytes follow, or chunks: chunks_read()
 */
#ifndef HF_SERVER_MESSAGE_H
#define HF_SERVER_MESSAGE_H

#include <stdint.h>
#include <sys/types.h>

#include "buf.h"

enum { HEAD_FIELDS_MAX = 100 };

struct head {
    const char *method, *path, *query; /* query: behind the '?', as it came; NULL: none */
    const char *fields;                /* see head_next_field() */
    bool is_old;                       /* HTTP/1.0 */
    bool chunked;
    bool close;       /* the client wants no more answers on this connection */
    bool keep_alive;  /* ... or says that it does */
    bool wants_go_on; /* it waits for 100 Continue before it sends the body */
    uint64_t length;  /* of the body, where it is not chunked */
    const char *host;
};

/*
 * How many bytes the head has, the empty line at its end included. 0: more must come; negative: it
 * is none, -status. `scanned` starts as 0 and remembers how far it was looked at.
 */
ssize_t head_length(const char *text, size_t n, size_t *scanned);

/*
 * Read a whole head. What `ret` points to is in `room`, which has the size of the head. 0, or the
 * status it is to be refused with, and why.
 */
int head_read(const char *text, size_t n, char *room, struct head *ret, const char **ret_why);

/* The next field: start with head.fields. False: there are no more. */
bool head_next_field(const char **at, const char **ret_name, const char **ret_value);

/* ---- chunked bodies ------------------------------------------------------------------------- */

enum chunk_state {
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* at the beginning of a line */
    CHUNK_TRAILER_LINE,
    CHUNK_TRAILER_LF,
    CHUNK_LAST_LF,
    CHUNK_END
};

struct chunks {
    enum chunk_state state;
    uint64_t left; /* of this chunk */
    unsigned digits, extra;
};

/*
 * Decode what has come into `out`; *ret_used bytes of it belonged to the body. 1: it has ended; 0:
 * more must come; negative: -status. -413: `out` has no room for what comes next; with more of it,
 * one can go on.
 */
int chunks_read(struct chunks *c, const char *text, size_t n, size_t *ret_used, struct hf_buf *out);

#endif
