/*
 * DIR/metrics.json: how many stale locks were cleaned up, by reason, and the last of them. It is
 * written whole beside the old one, read back, and only then renamed over it.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "error.h"
#include "file_store.h"
#include "flock.h"
#include "local.h"
#include "text.h"

#define FILE_NAME "metrics.json"
#define TEMPORARY "metrics.new"
#define LOCK "metrics.guard"

enum { RECENT_MAX = 50, PATIENCE_MS = 1000 };

static json_t *read_json(struct hf_file_store *fs, int at, const char *file)
{
    int fd;
    if (hf_file_open_own(&fs->dir, at, file, O_RDONLY, &fd, NULL) < 0)
        return NULL;
    FILE *f = fdopen(fd, "r"); /* json_loadfd() would read byte by byte */
    if (!f) {
        close(fd);
        return NULL;
    }
    json_t *object = json_loadf(f, JSON_REJECT_DUPLICATES, NULL);
    fclose(f);
    return object;
}

/* The member, made where it is missing or not what it should be. */
static json_t *member(json_t *object, const char *key, json_type type)
{
    json_t *value = json_object_get(object, key);
    if (value && json_typeof(value) == type)
        return value;
    value = type == JSON_INTEGER ? json_integer(0)
            : type == JSON_ARRAY ? json_array()
                                 : json_object();
    json_object_set_new(object, key, value);
    return value;
}

static void increment(json_t *object, const char *key)
{
    json_t *value = member(object, key, JSON_INTEGER);
    json_integer_set(value, json_integer_value(value) + 1);
}

static json_t *describe(const struct hf_file_cleanup *c)
{
    char created[HF_TIME_LEN + 1], at[HF_TIME_LEN + 1];
    hf_format_time(c->created_at_ms, created);
    hf_format_time(c->at_ms, at);
    return json_pack("{s:s, s:s, s:s, s:I, s:s, s:s}", "lockId", c->lock_id, "processId",
                     c->process_id, "createdAt", created, "ageMs", (json_int_t)c->age_ms, "at", at,
                     "reason", c->reason);
}

static void add(json_t *metrics, const struct hf_file_cleanup *cleanup)
{
    increment(metrics, "totalCleanups");
    increment(member(metrics, "cleanupsByReason", JSON_OBJECT), cleanup->reason);
    json_t *recent = member(metrics, "recentCleanups", JSON_ARRAY);
    json_array_append_new(recent, describe(cleanup));
    while (json_array_size(recent) > RECENT_MAX)
        json_array_remove(recent, 0);
}

/* Replace the file by one that has been read back and found to say the same. */
static void write_json(struct hf_file_store *fs, const json_t *metrics)
{
    char *text = json_dumps(metrics, JSON_INDENT(2));
    int fd = -1;
    unlinkat(fs->dir.inner, TEMPORARY, 0);
    if (!text || hf_file_open_own(&fs->dir, fs->dir.inner, TEMPORARY, O_WRONLY | O_CREAT | O_EXCL,
                                  &fd, NULL) < 0) {
        free(text);
        return;
    }
    size_t len = strlen(text);
    bool written = write(fd, text, len) == (ssize_t)len && write(fd, "\n", 1) == 1;
    free(text);
    bool synced = written && fsync(fd) == 0;
    close(fd);
    json_t *again = synced ? read_json(fs, fs->dir.inner, TEMPORARY) : NULL;
    if (again && json_equal(again, metrics))
        renameat(fs->dir.inner, TEMPORARY, fs->dir.top, FILE_NAME);
    else
        unlinkat(fs->dir.inner, TEMPORARY, 0);
    json_decref(again);
}

void hf_file_count_cleanup(struct hf_file_store *fs, const struct hf_file_cleanup *cleanup)
{
    int lock;
    if (hf_file_open_own(&fs->dir, fs->dir.inner, LOCK, O_RDWR | O_CREAT, &lock, NULL) < 0)
        return;
    if (hf_flock(lock, LOCK_EX, PATIENCE_MS, LOCK, NULL) >= 0) {
        json_t *metrics = read_json(fs, fs->dir.top, FILE_NAME);
        if (!json_is_object(metrics)) {
            json_decref(metrics);
            metrics = json_object();
        }
        if (metrics) {
            add(metrics, cleanup);
            write_json(fs, metrics);
        }
        json_decref(metrics);
    }
    close(lock);
}
