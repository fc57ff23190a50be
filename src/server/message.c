#include "message.h"

#include <string.h>
#include <strings.h>

enum {
    DIGITS_MAX = 15,      /* of a Content-Length: far beyond what is accepted */
    CHUNK_DIGITS_MAX = 8, /* of a chunk's size */
    EXTRA_MAX = 4096,     /* bytes of a chunk's extension, or of all trailers */
};

static const char twice[] = "the length of the body is given twice; send either one Content-Length "
                            "or one Transfer-Encoding";

/* ---- characters ----------------------------------------------------------------------------- */

static bool is_token_char(unsigned char c)
{
    if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '-')
        return true;
    return c && strchr("!#$%&'*+.^_`|~", c);
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* How many bytes at `text` make a token. */
static size_t token_length(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && is_token_char((unsigned char)text[i]))
        i++;
    return i;
}

static bool is_value(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

/* A path, and perhaps a query: nobody uses this service as a proxy. */
static bool is_target(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f)
            return false;
    return n > 0 && text[0] == '/';
}

/* ---- where the head ends -------------------------------------------------------------------- */

ssize_t head_length(const char *text, size_t n, size_t *scanned)
{
    if (n && !is_token_char((unsigned char)text[0]))
        return -400;
    for (;;) {
        const char *line = text + *scanned, *end = memchr(line, '\n', n - *scanned);
        if (!end)
            return 0;
        if (end == text || end[-1] != '\r')
            return -400;
        *scanned = (size_t)(end + 1 - text);
        if (end == line + 1)
            return (ssize_t)*scanned;
    }
}

/* ---- the head ------------------------------------------------------------------------------- */

/* What is being read, line by line, and where it is copied to. */
struct reader {
    const char *at, *end;
    char *to;
    struct head *head;
    const char *why;
    unsigned n_fields, n_hosts, n_lengths, n_encodings;
};

static int refuse(struct reader *r, int status, const char *why)
{
    r->why = why;
    return status;
}

static const char *copy(struct reader *r, const char *text, size_t n)
{
    char *to = r->to;
    memcpy(to, text, n);
    to[n] = '\0';
    r->to += n + 1;
    return to;
}

/* The next line, without its end. */
static const char *take_line(struct reader *r, size_t *ret_n)
{
    const char *line = r->at, *end = memchr(line, '\n', (size_t)(r->end - line));
    *ret_n = end ? (size_t)(end - 1 - line) : 0; /* every line has one: head_length() has looked */
    r->at = end ? end + 1 : r->end;
    return line;
}

static int read_request_line(struct reader *r)
{
    static const char form[] = "the request line must be METHOD PATH HTTP/1.1";
    size_t n, n_method, n_target;
    const char *line = take_line(r, &n), *end = line + n;
    n_method = token_length(line, n);
    if (n_method == n || line[n_method] != ' ')
        return refuse(r, 400, form);
    const char *target = line + n_method + 1, *space = memchr(target, ' ', (size_t)(end - target));
    n_target = space ? (size_t)(space - target) : 0;
    if (!space || !is_target(target, n_target))
        return refuse(r, 400, form);
    const char *version = space + 1;
    if (end - version != 8 || memcmp(version, "HTTP/", 5) != 0)
        return refuse(r, 400, form);
    if (memcmp(version + 5, "1.1", 3) != 0 && memcmp(version + 5, "1.0", 3) != 0)
        return refuse(r, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    r->head->is_old = version[7] == '0';
    r->head->method = copy(r, line, n_method);
    const char *mark = memchr(target, '?', n_target);
    size_t n_path = mark ? (size_t)(mark - target) : n_target;
    r->head->path = copy(r, target, n_path);
    r->head->query = mark ? copy(r, mark + 1, n_target - n_path - 1) : NULL;
    return 0;
}

/* Is `word` in a list such as "keep-alive, Upgrade"? */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (*list) {
        list += strspn(list, " \t,");
        size_t length = strcspn(list, " \t,");
        if (length == n && strncasecmp(list, word, n) == 0)
            return true;
        list += length;
    }
    return false;
}

static int read_length(struct reader *r, const char *value)
{
    size_t n = strspn(value, "0123456789");
    if (r->n_lengths++)
        return refuse(r, 400, twice);
    if (!n || value[n])
        return refuse(r, 400, "the Content-Length must be one whole number");
    if (n > DIGITS_MAX)
        return refuse(r, 413, "the body is too large");
    r->head->length = 0;
    while (*value)
        r->head->length = r->head->length * 10 + (uint64_t)(*value++ - '0');
    return 0;
}

static int read_encoding(struct reader *r, const char *value)
{
    if (r->n_encodings++)
        return refuse(r, 400, twice);
    if (strcasecmp(value, "chunked") != 0 || r->head->is_old)
        return refuse(r, 400, "the only transfer encoding known here is chunked");
    r->head->chunked = true;
    return 0;
}

/* What is about the message itself. */
static int note_field(struct reader *r, const char *name, const char *value)
{
    struct head *head = r->head;
    switch (name[0] | 32) {
    case 'h':
        if (strcasecmp(name, "Host") == 0) {
            head->host = value;
            if (r->n_hosts++)
                return refuse(r, 400, "the Host is given twice");
        }
        break;
    case 'c':
        if (strcasecmp(name, "Content-Length") == 0)
            return read_length(r, value);
        if (strcasecmp(name, "Connection") == 0) {
            head->close |= has_word(value, "close");
            head->keep_alive |= has_word(value, "keep-alive");
        }
        break;
    case 't':
        if (strcasecmp(name, "Transfer-Encoding") == 0)
            return read_encoding(r, value);
        break;
    case 'e':
        if (strcasecmp(name, "Expect") == 0)
            head->wants_go_on = strcasecmp(value, "100-continue") == 0;
        break;
    default:
        break;
    }
    return 0;
}

static int read_field(struct reader *r, const char *line, size_t n)
{
    size_t n_name = token_length(line, n);
    if (!n_name || n_name == n || line[n_name] != ':')
        return refuse(r, 400, "a header must be NAME: VALUE, on one line");
    const char *value = line + n_name + 1, *end = line + n;
    while (value < end && is_blank(*value))
        value++;
    while (end > value && is_blank(end[-1]))
        end--;
    if (!is_value(value, (size_t)(end - value)))
        return refuse(r, 400, "a header's value must not have control characters");
    if (++r->n_fields > HEAD_FIELDS_MAX)
        return refuse(r, 431, "there are too many headers");
    const char *name = copy(r, line, n_name);
    return note_field(r, name, copy(r, value, (size_t)(end - value)));
}

int head_read(const char *text, size_t n, char *room, struct head *ret, const char **ret_why)
{
    struct reader r = {.at = text, .end = text + n, .to = room, .head = ret};
    *ret = (struct head){.method = "", .path = "", .fields = ""};
    int status = read_request_line(&r);
    const char *fields = r.to;
    while (!status) {
        size_t n_line;
        const char *line = take_line(&r, &n_line);
        if (!n_line)
            break;
        status = read_field(&r, line, n_line);
    }
    if (!status && ret->chunked && r.n_lengths)
        status = refuse(&r, 400, twice);
    if (!status && !ret->host && !ret->is_old)
        status = refuse(&r, 400, "HTTP/1.1 needs a Host header");
    if (status) {
        *ret_why = r.why;
        return status;
    }
    *r.to = '\0';
    ret->fields = fields;
    return 0;
}

bool head_next_field(const char **at, const char **ret_name, const char **ret_value)
{
    if (!**at)
        return false;
    *ret_name = *at;
    *ret_value = *ret_name + strlen(*ret_name) + 1;
    *at = *ret_value + strlen(*ret_value) + 1;
    return true;
}

/* ---- chunked bodies ------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return -1;
}

/* The byte is of a line that nobody needs. */
static int pass_over(struct chunks *c, char byte, enum chunk_state at_end)
{
    if (++c->extra > EXTRA_MAX || byte == '\n')
        return -400;
    if (byte == '\r')
        c->state = at_end;
    return 0;
}

static int take_size(struct chunks *c, char byte)
{
    int digit = hex_digit(byte);
    if (digit >= 0) {
        c->left = c->left << 4 | (unsigned)digit;
        return ++c->digits > CHUNK_DIGITS_MAX ? -413 : 0;
    }
    if (!c->digits)
        return -400;
    c->extra = 0;
    if (byte == '\r')
        c->state = CHUNK_SIZE_LF;
    else if (byte == ';' || is_blank(byte))
        c->state = CHUNK_EXTENSION;
    else
        return -400;
    return 0;
}

static int expect(struct chunks *c, char byte, char wanted, enum chunk_state next)
{
    c->state = next;
    return byte == wanted ? 0 : -400;
}

static int take_byte(struct chunks *c, char byte)
{
    switch (c->state) {
    case CHUNK_SIZE:
        return take_size(c, byte);
    case CHUNK_EXTENSION:
        return pass_over(c, byte, CHUNK_SIZE_LF);
    case CHUNK_SIZE_LF:
        c->extra = 0;
        return expect(c, byte, '\n', c->left ? CHUNK_DATA : CHUNK_TRAILER);
    case CHUNK_DATA_CR:
        return expect(c, byte, '\r', CHUNK_DATA_LF);
    case CHUNK_DATA_LF:
        c->digits = 0;
        return expect(c, byte, '\n', CHUNK_SIZE);
    case CHUNK_TRAILER:
        c->state = CHUNK_TRAILER_LINE;
        return pass_over(c, byte, CHUNK_LAST_LF);
    case CHUNK_TRAILER_LINE:
        return pass_over(c, byte, CHUNK_TRAILER_LF);
    case CHUNK_TRAILER_LF:
        return expect(c, byte, '\n', CHUNK_TRAILER);
    case CHUNK_LAST_LF:
        return expect(c, byte, '\n', CHUNK_END);
    case CHUNK_DATA:
    case CHUNK_END:
        break;
    }
    return 0;
}

int chunks_read(struct chunks *c, const char *text, size_t n, size_t *ret_used, struct hf_buf *out)
{
    size_t at = 0;
    int r = 0;
    while (at < n && r == 0 && c->state != CHUNK_END) {
        if (c->state != CHUNK_DATA) {
            r = take_byte(c, text[at++]);
            continue;
        }
        size_t piece = c->left < n - at ? (size_t)c->left : n - at;
        if (piece > out->cap - out->len) {
            r = -413;
            break;
        }
        hf_buf_add(out, text + at, piece);
        at += piece;
        c->left -= piece;
        if (!c->left)
            c->state = CHUNK_DATA_CR;
    }
    *ret_used = at;
    return r ? r : c->state == CHUNK_END;
}
