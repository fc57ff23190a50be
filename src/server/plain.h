/*
 * JSON objects of the usual kind: flat, with strings that need no escapes, whole numbers and nulls.
 * They are read in place, for a third of what a tree costs. Whatever else comes, good or bad, is
 * left to a real parser, which then finds it as it was.
 */
#ifndef HF_SERVER_PLAIN_H
#define HF_SERVER_PLAIN_H

#include <stdint.h>
#include <sys/types.h>

enum { PLAIN_MAX = 12 }; /* members */

enum value_kind { VALUE_NULL, VALUE_TEXT, VALUE_WHOLE, VALUE_OTHER };

struct member {
    const char *name;
    enum value_kind kind;
    const char *text;
    int64_t whole;
    const struct json_t *json; /* what it was read from; NULL: read in place */
};

/*
 * How many members the object at `text` has; their strings end in it from now on, so it must live
 * as long as they. -1: it is of another kind, or no JSON, and is as it was.
 */
ssize_t plain_read(char *text, size_t n, struct member ret[PLAIN_MAX]);

#endif
