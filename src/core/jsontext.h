/*
 * JSON as text, looked at without building anything of it: for values that are kept as they came,
 * whatever their numbers and however many there are.
 */
#ifndef HF_CORE_JSONTEXT_H
#define HF_CORE_JSONTEXT_H

#include "buf.h"

/* Past the one valid value that begins at `at`, nested at most `depth` deep; NULL: it is none. */
const char *hf_json_skip(const char *at, const char *end, int depth);

/*
 * Where the value of this member of the object stands. 1: there it is; 0: there is none, or what
 * comes before it is not JSON; -1: its value is none, or nests deeper than `depth`.
 */
int hf_json_member(const char *text, size_t n, const char *name, int depth, const char **ret,
                   size_t *ret_n);

/* Append a valid value without the white space between its tokens. */
void hf_json_compact(struct hf_buf *out, const char *text, size_t n);

#endif
