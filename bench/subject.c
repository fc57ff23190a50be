#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "bench.h"
#include "holdfast.h"

double opened_slice(void *arg, int64_t for_ns)
{
    struct opened *o = arg;
    int64_t began_ns = bench_now_ns(), now_ns = began_ns;
    double pairs = 0;
    for (; now_ns - began_ns < for_ns; now_ns = bench_now_ns(), pairs++) {
        o->subject->take(o->state, o->name);
        o->subject->give(o->state, o->name);
    }
    return pairs * 1e9 / (double)(now_ns - began_ns);
}

void subject_name(int i, char ret[32]) { snprintf(ret, 32, "item-%08d", i); }

static void *allocate(size_t size)
{
    void *p = calloc(1, size);
    if (!p)
        err(1, "calloc");
    return p;
}

/* ---- ours, through the public header -------------------------------------------------------- */

struct handle {
    struct hf *hf;
    struct hf_lease lease;
};

static void *open_ours(const char *url)
{
    struct handle *h = allocate(sizeof *h);
    struct hf_error error;
    if (hf_open(url, &h->hf, &error) < 0)
        errx(1, "%s", error.message);
    return h;
}

static void take_with(struct handle *h, const char *name, const struct hf_acquire_options *opts)
{
    struct hf_error error;
    if (hf_acquire(h->hf, name, opts, &h->lease, &error) < 0)
        errx(1, "%s", error.message);
}

static void take_ours(void *h, const char *name) { take_with(h, name, NULL); }

static void take_ours_waiting(void *h, const char *name)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    opts.wait_ms = HF_FOREVER;
    opts.bound[0] = getpid();
    opts.n_bound = 1;
    take_with(h, name, &opts);
}

static void give_ours(void *state, const char *name)
{
    (void)name;
    struct handle *h = state;
    struct hf_error error;
    if (hf_release(h->hf, &h->lease, &error) < 0)
        errx(1, "%s", error.message);
}

static void close_ours(void *state)
{
    struct handle *h = state;
    hf_close(h->hf);
    free(h);
}

const struct subject ours = {open_ours, take_ours, give_ours, close_ours};
const struct subject ours_waiting = {open_ours, take_ours_waiting, give_ours, close_ours};

/* ---- ours, many at once ---------------------------------------------------------------------- */

enum { HUNDRED = 100 };

struct many {
    struct hf *hf;
    char names[HUNDRED][48], tokens[HUNDRED][HF_UUID_LEN + 1];
    struct hf_request requests[HUNDRED];
    struct hf_answer answers[HUNDRED];
};

static void *open_many(const char *url)
{
    struct many *m = allocate(sizeof *m);
    struct hf_error error;
    if (hf_open(url, &m->hf, &error) < 0)
        errx(1, "%s", error.message);
    return m;
}

static void apply_many(struct many *m)
{
    struct hf_error error;
    if (hf_apply(m->hf, m->requests, HUNDRED, m->answers, &error) < 0)
        errx(1, "%s", error.message);
    for (int i = 0; i < HUNDRED; i++)
        if (m->answers[i].code < 0)
            errx(1, "%s: %s", m->names[i], hf_code_meaning(m->answers[i].code));
}

static void take_many(void *state, const char *name)
{
    struct many *m = state;
    for (int i = 0; i < HUNDRED; i++) {
        snprintf(m->names[i], sizeof m->names[i], "%s-%d", name, i);
        hf_token(m->tokens[i]);
        m->requests[i] = (struct hf_request){.op = HF_OP_ACQUIRE,
                                             .name = m->names[i],
                                             .token = m->tokens[i],
                                             .ttl_ms = HF_TTL_DEFAULT_MS,
                                             .owner = "bench"};
    }
    apply_many(m);
}

static void give_many(void *state, const char *name)
{
    (void)name;
    struct many *m = state;
    for (int i = 0; i < HUNDRED; i++)
        m->requests[i] = (struct hf_request){.op = HF_OP_RELEASE,
                                             .name = m->names[i],
                                             .token = m->tokens[i],
                                             .fence = m->answers[i].lease.fence,
                                             .owner = "bench"};
    apply_many(m);
}

static void close_many(void *state)
{
    struct many *m = state;
    hf_close(m->hf);
    free(m);
}

const struct subject ours_hundred = {open_many, take_many, give_many, close_many};

/* ---- bare SQLite: the two statements that a lock needs, and nothing else -------------------- */

struct bare_db {
    sqlite3 *db;
    sqlite3_stmt *take, *give;
    int64_t lock_id;
};

static const char bare_schema[] =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
    "CREATE TABLE IF NOT EXISTS lock(name TEXT PRIMARY KEY, lock_id TEXT, fence INTEGER NOT NULL,"
    " owner TEXT, locked_at INTEGER, locked_until INTEGER NOT NULL) WITHOUT ROWID";
static const char bare_take[] =
    "INSERT INTO lock VALUES(?1, ?2, 1, 'owner/1', ?3, ?3 + 60000) ON CONFLICT(name) DO UPDATE SET"
    " lock_id = excluded.lock_id, fence = fence + 1, owner = excluded.owner,"
    " locked_at = excluded.locked_at, locked_until = excluded.locked_until"
    " WHERE locked_until < ?3";
static const char bare_give[] = "UPDATE lock SET lock_id = NULL, locked_until = 0"
                                " WHERE name = ?1 AND lock_id = ?2";

static void must(struct bare_db *b, int code)
{
    if (code != SQLITE_OK && code != SQLITE_DONE)
        errx(1, "bare SQLite: %s", sqlite3_errmsg(b->db));
}

static void *open_bare_db(const char *path)
{
    struct bare_db *b = allocate(sizeof *b);
    must(b, sqlite3_open(path, &b->db));
    sqlite3_busy_timeout(b->db, 30000);
    must(b, sqlite3_exec(b->db, bare_schema, NULL, NULL, NULL));
    must(b, sqlite3_prepare_v2(b->db, bare_take, -1, &b->take, NULL));
    must(b, sqlite3_prepare_v2(b->db, bare_give, -1, &b->give, NULL));
    return b;
}

static void run_statement(struct bare_db *b, sqlite3_stmt *stmt, const char *name)
{
    char lock_id[40];
    int n = snprintf(lock_id, sizeof lock_id, "%036lld", (long long)b->lock_id);
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, lock_id, n, SQLITE_STATIC);
    must(b, sqlite3_step(stmt));
    must(b, sqlite3_reset(stmt));
    if (sqlite3_changes(b->db) != 1)
        errx(1, "bare SQLite: the statement changed nothing");
}

static void take_bare_db(void *state, const char *name)
{
    struct bare_db *b = state;
    b->lock_id++;
    sqlite3_bind_int64(b->take, 3, bench_now_ns() / 1000000);
    run_statement(b, b->take, name);
}

static void give_bare_db(void *state, const char *name)
{
    struct bare_db *b = state;
    run_statement(b, b->give, name);
}

static void close_bare_db(void *state)
{
    struct bare_db *b = state;
    sqlite3_finalize(b->take);
    sqlite3_finalize(b->give);
    sqlite3_close(b->db);
    free(b);
}

void bare_sqlite_fill(void *state, int n)
{
    struct bare_db *b = state;
    char name[32];
    must(b, sqlite3_exec(b->db, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    for (int i = 0; i < n; i++) {
        subject_name(i, name);
        take_bare_db(b, name);
        give_bare_db(b, name);
    }
    must(b, sqlite3_exec(b->db, "COMMIT", NULL, NULL, NULL));
}

const struct subject bare_sqlite = {open_bare_db, take_bare_db, give_bare_db, close_bare_db};

/* ---- bare files ----------------------------------------------------------------------------- */

static void *open_directory(const char *path)
{
    int *fd = allocate(sizeof *fd);
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        err(1, "%s", path);
    return fd;
}

static int create(void *dir, const char *name)
{
    int fd = openat(*(int *)dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        err(1, "create");
    return fd;
}

static void take_create(void *dir, const char *name) { close(create(dir, name)); }

static void take_create_300(void *dir, const char *name)
{
    static const char content[300];
    int fd = create(dir, name);
    if (write(fd, content, sizeof content) != (ssize_t)sizeof content)
        err(1, "write");
    close(fd);
}

static void give_unlink(void *dir, const char *name)
{
    if (unlinkat(*(int *)dir, name, 0) < 0)
        err(1, "unlink");
}

static void close_fd(void *state)
{
    close(*(int *)state);
    free(state);
}

const struct subject bare_create = {open_directory, take_create, give_unlink, close_fd};
const struct subject bare_create_300 = {open_directory, take_create_300, give_unlink, close_fd};

static void *open_lock_file(const char *path)
{
    int *fd = allocate(sizeof *fd);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0)
        err(1, "%s", path);
    return fd;
}

static void change_flock(int fd, int operation)
{
    while (flock(fd, operation) < 0)
        if (errno != EINTR)
            err(1, "flock");
}

static void take_flock(void *fd, const char *name)
{
    (void)name;
    change_flock(*(int *)fd, LOCK_EX);
}

static void give_flock(void *fd, const char *name)
{
    (void)name;
    change_flock(*(int *)fd, LOCK_UN);
}

const struct subject bare_flock = {open_lock_file, take_flock, give_flock, close_fd};
