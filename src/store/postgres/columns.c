/* Many rows as parameters: each column one array, in PostgreSQL's binary form. */
#include <ctype.h>
#include <string.h>

#include "error.h"
#include "postgres_store.h"

enum { ARRAY_MAX_BYTES = 64 << 20 };

static const struct {
    char letter;
    Oid array, element;
} types[] = {{'t', HF_PG_TEXT_ARRAY, HF_PG_TEXT}, {'b', HF_PG_BYTEA_ARRAY, HF_PG_BYTEA},
             {'l', HF_PG_INT8_ARRAY, HF_PG_INT8}, {'i', HF_PG_INT4_ARRAY, HF_PG_INT4},
             {'o', HF_PG_BOOL_ARRAY, HF_PG_BOOL}, {'u', HF_PG_UUID_ARRAY, HF_PG_UUID}};

static size_t type_of(char letter)
{
    size_t i = 0;
    while (types[i].letter != letter)
        i++;
    return i;
}

static void put_int(struct hf_buf *b, uint64_t value, int n_bytes)
{
    for (int i = n_bytes - 1; i >= 0; i--)
        hf_buf_putc(b, (char)(value >> 8 * i));
}

void hf_pg_columns_begin(struct hf_pg_columns *c, const char *letters, size_t n_rows)
{
    *c = (struct hf_pg_columns){.letters = letters};
    for (size_t i = 0; letters[i]; i++) {
        struct hf_buf *b = &c->of[i];
        *b = (struct hf_buf)HF_BUF(ARRAY_MAX_BYTES);
        put_int(b, 1, 4); /* dimensions */
        put_int(b, 1, 4); /* there may be NULLs */
        put_int(b, types[type_of(letters[i])].element, 4);
        put_int(b, n_rows, 4);
        put_int(b, 1, 4); /* the first index */
    }
}

void hf_pg_columns_clear(struct hf_pg_columns *c)
{
    for (size_t i = 0; c->letters && c->letters[i]; i++)
        hf_buf_clear(&c->of[i]);
}

static struct hf_buf *next(struct hf_pg_columns *c)
{
    struct hf_buf *b = &c->of[c->at++];
    if (!c->letters[c->at])
        c->at = 0;
    return b;
}

void hf_pg_put_null(struct hf_pg_columns *c) { put_int(next(c), UINT32_MAX, 4); }

void hf_pg_put_bytes(struct hf_pg_columns *c, const void *bytes, size_t n)
{
    struct hf_buf *b = next(c);
    put_int(b, n, 4);
    hf_buf_add(b, bytes, n);
}

void hf_pg_put_text(struct hf_pg_columns *c, const char *text)
{
    hf_pg_put_bytes(c, text ? text : "", text ? strlen(text) : 0);
}

void hf_pg_put_int(struct hf_pg_columns *c, int64_t value)
{
    int n = c->letters[c->at] == 'l' ? 8 : c->letters[c->at] == 'i' ? 4 : 1;
    struct hf_buf *b = next(c);
    put_int(b, (uint64_t)n, 4);
    put_int(b, (uint64_t)value, n);
}

static int digit(char c) { return isdigit((unsigned char)c) ? c - '0' : (c | 32) - 'a' + 10; }

void hf_pg_put_uuid(struct hf_pg_columns *c, const char *text)
{
    uint8_t bytes[16];
    size_t n = 0;
    if (!text) {
        hf_pg_put_null(c);
        return;
    }
    for (const char *at = text; *at && n < sizeof bytes; at++)
        if (*at != '-') {
            bytes[n++] = (uint8_t)(digit(at[0]) << 4 | digit(at[1]));
            at++;
        }
    hf_pg_put_bytes(c, bytes, n);
}

int hf_pg_bind_columns(struct hf_pg_statement *st, const struct hf_pg_columns *c,
                       struct hf_error *err)
{
    for (size_t i = 0; c->letters[i]; i++) {
        if (c->of[i].failed)
            return hf_fail(err, HF_NOMEM, "out of memory");
        st->formats[st->n] = 1;
        st->lengths[st->n] = (int)c->of[i].len;
        hf_pg_bind_as(st, types[type_of(c->letters[i])].array, c->of[i].data);
    }
    return 0;
}
