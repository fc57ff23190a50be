/*
 * Events: JSON lines, appended by one write per operation to the current of two segments. An
 * event's number is where it stands: its segment's base, told in the segment's first line, plus
 * its offset. So no counter is touched for it. A full segment becomes the previous one.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "error.h"
#include "file_store.h"
#include "wire.h"

#define CURRENT "events.jsonl"
#define PREVIOUS "events.1.jsonl"
#define NEXT "events.new"

enum {
    SEGMENT_MAX = 4 << 20,
    SEGMENT_SPAN = 4 * SEGMENT_MAX, /* numbers per segment: more than it can ever grow to */
    LINE_MAX_BYTES = 8192
};

static const struct hf_wire_field fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_event, member, name, type)
    F(at_ms, "at", HF_WIRE_TIME),      F(kind, "kind", HF_WIRE_KIND),
    F(name, "name", HF_WIRE_STRING),   F(fence, "fence", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_TEXT),   F(execution_id, "executionId", HF_WIRE_TEXT),
    F(reason, "reason", HF_WIRE_TEXT), F(detail, "detail", HF_WIRE_TEXT),
#undef F
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

struct segment_head {
    int64_t format, base;
};
static const struct hf_wire_field head_fields[] = {
    HF_WIRE(struct segment_head, format, "format", HF_WIRE_INT),
    HF_WIRE(struct segment_head, base, "base", HF_WIRE_INT),
};

/* ---- writing -------------------------------------------------------------------------------- */

static bool is_usable(int fd)
{
    struct statx st;
    return fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_NLINK | STATX_SIZE, &st) == 0 &&
           st.stx_nlink > 0 && st.stx_size < SEGMENT_MAX;
}

static int open_current(struct hf_file_store *fs)
{
    int fd;
    if (hf_file_open_own(&fs->dir, fs->dir.inner, CURRENT, O_WRONLY | O_APPEND, &fd, NULL) < 0)
        return -1;
    if (is_usable(fd))
        return fd;
    close(fd);
    return -1;
}

/* Make a new segment current, unless another process has just done so. */
static int start_segment(void *arg, int64_t base)
{
    struct hf_file_store *fs = arg;
    int fd = open_current(fs);
    if (fd >= 0) {
        fs->events.fd = fd;
        return 0;
    }
    struct segment_head head = {HF_FILE_FORMAT, base};
    struct hf_buf line = HF_BUF(LINE_MAX_BYTES);
    hf_wire_write(&line, &head, head_fields, 2);
    hf_buf_putc(&line, '\n');
    int inner = fs->dir.inner;
    unlinkat(inner, NEXT, 0);
    int r = hf_file_open_own(&fs->dir, inner, NEXT, O_WRONLY | O_APPEND | O_CREAT, &fd, NULL);
    if (r >= 0) {
        bool whole = !line.failed && write(fd, line.data, line.len) == (ssize_t)line.len;
        if (whole && (renameat(inner, CURRENT, inner, PREVIOUS) == 0 || errno == ENOENT) &&
            renameat(inner, NEXT, inner, CURRENT) == 0)
            fs->events.fd = fd;
        else
            close(fd);
    }
    hf_buf_clear(&line);
    return r;
}

/* The current segment's descriptor; -1 where there is none to be had. */
static int current_segment(struct hf_file_store *fs)
{
    if (is_usable(fs->events.fd))
        return fs->events.fd;
    if (fs->events.fd >= 0)
        close(fs->events.fd);
    fs->events.fd = open_current(fs);
    if (fs->events.fd < 0)
        hf_file_with_segment(&fs->state, SEGMENT_SPAN, start_segment, fs);
    return fs->events.fd;
}

void hf_file_tell(struct hf_file_store *fs, const struct hf_event *events, size_t n)
{
    struct hf_buf lines = HF_BUF(HF_EFFECTS_MAX * LINE_MAX_BYTES);
    for (size_t i = 0; i < n; i++) {
        hf_wire_write(&lines, &events[i], fields, N_FIELDS);
        hf_buf_putc(&lines, '\n');
    }
    pthread_mutex_lock(&fs->events.mutex);
    int fd = n && !lines.failed ? current_segment(fs) : -1;
    ssize_t ignored = fd < 0 ? 0 : write(fd, lines.data, lines.len);
    (void)ignored;
    pthread_mutex_unlock(&fs->events.mutex);
    hf_buf_clear(&lines);
}

/* ---- reading -------------------------------------------------------------------------------- */

struct segment {
    char *text;
    size_t len;
    int64_t base;
    uint64_t inode;
};

static bool read_head(struct segment *s)
{
    struct segment_head head;
    const char *end = memchr(s->text, '\n', s->len);
    json_t *object = end ? json_loadb(s->text, (size_t)(end - s->text), 0, NULL) : NULL;
    bool ok = object && hf_wire_read(object, &head, head_fields, 2, NULL) >= 0 &&
              head.format == HF_FILE_FORMAT && head.base >= 0;
    json_decref(object);
    if (ok)
        s->base = head.base;
    return ok;
}

/* All of a segment that is there; an unreadable one is empty. */
static int read_segment(struct hf_file_store *fs, const char *file, struct segment *ret,
                        struct hf_error *err)
{
    struct segment s = {0};
    struct stat st;
    int fd;
    int r = hf_file_open_own(&fs->dir, fs->dir.inner, file, O_RDONLY, &fd, err);
    if (r == -HF_NOT_FOUND)
        return 0;
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0 || st.st_size > SEGMENT_SPAN ||
        !(s.text = malloc((size_t)st.st_size + 1))) {
        close(fd);
        return hf_fail(err, HF_UNAVAILABLE, "can't read the events in %s", fs->dir.path);
    }
    s.inode = (uint64_t)st.st_ino;
    while (s.len < (size_t)st.st_size) {
        ssize_t n = read(fd, s.text + s.len, (size_t)st.st_size - s.len);
        if (n <= 0)
            break;
        s.len += (size_t)n;
    }
    close(fd);
    if (!read_head(&s))
        s.len = 0;
    *ret = s;
    return 0;
}

struct search {
    const struct hf_event_query *query;
    struct hf_buf name; /* as it stands in a line */
    struct segment segments[2];
    struct {
        const char *line;
        size_t len;
        int64_t seq;
    } * found; /* newest first */
    size_t n_found, size;
};

static bool parse_event(const char *line, size_t len, int64_t seq, struct hf_event *ret)
{
    json_t *object = json_loadb(line, len, 0, NULL);
    bool ok = object && hf_wire_read(object, ret, fields, N_FIELDS, NULL) >= 0;
    json_decref(object);
    ret->seq = seq;
    return ok;
}

static bool is_wanted(const struct search *s, const char *line, size_t len, int64_t seq)
{
    const struct hf_event_query *q = s->query;
    struct hf_event e;
    if (q->name && !memmem(line, len, s->name.data, s->name.len))
        return false;
    return parse_event(line, len, seq, &e) && e.at_ms >= q->since_ms &&
           (!q->name || strcmp(e.name, q->name) == 0);
}

static int note_found(struct search *s, const char *line, size_t len, int64_t seq,
                      struct hf_error *err)
{
    if (s->n_found == s->size) {
        size_t size = s->size ? 2 * s->size : 256;
        void *found = realloc(s->found, size * sizeof *s->found);
        if (!found)
            return hf_fail(err, HF_NOMEM, "out of memory");
        s->found = found;
        s->size = size;
    }
    s->found[s->n_found].line = line;
    s->found[s->n_found].len = len;
    s->found[s->n_found++].seq = seq;
    return 0;
}

/* Note the wanted lines of a segment from its end on, until there are enough. */
static int search_segment(struct search *s, const struct segment *segment, struct hf_error *err)
{
    size_t end = segment->len;
    while (end && segment->text[end - 1] != '\n')
        end--; /* the last line is being written */
    while (end && (s->query->limit <= 0 || s->n_found < (size_t)s->query->limit)) {
        const char *before = memrchr(segment->text, '\n', end - 1);
        size_t start = before ? (size_t)(before - segment->text) + 1 : 0;
        int64_t seq = segment->base + (int64_t)start;
        if (start == 0 || seq <= s->query->after_seq)
            break;
        const char *line = segment->text + start;
        int r = is_wanted(s, line, end - 1 - start, seq)
                    ? note_found(s, line, end - 1 - start, seq, err)
                    : 0;
        if (r < 0)
            return r;
        end = start;
    }
    return 0;
}

static void show_found(const struct search *s, hf_event_fn fn, void *arg)
{
    struct hf_event e;
    for (size_t i = s->n_found; i-- > 0;)
        if (parse_event(s->found[i].line, s->found[i].len, s->found[i].seq, &e) && fn(arg, &e) != 0)
            return;
}

int hf_file_read_events(struct hf_file_store *fs, const struct hf_event_query *query,
                        hf_event_fn fn, void *arg, struct hf_error *err)
{
    struct search s = {.query = query, .name = HF_BUF(LINE_MAX_BYTES)};
    if (query->name)
        hf_wire_string(&s.name, query->name, strlen(query->name));
    /* The current one first: if it is then moved, the same file is found twice, and none missed. */
    int r = read_segment(fs, CURRENT, &s.segments[0], err);
    if (r >= 0)
        r = read_segment(fs, PREVIOUS, &s.segments[1], err);
    if (r >= 0)
        r = search_segment(&s, &s.segments[0], err);
    if (r >= 0 && s.segments[0].inode != s.segments[1].inode)
        r = search_segment(&s, &s.segments[1], err);
    if (r >= 0)
        show_found(&s, fn, arg);
    free(s.segments[0].text);
    free(s.segments[1].text);
    free(s.found);
    hf_buf_clear(&s.name);
    return r;
}
