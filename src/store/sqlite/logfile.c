/*
 * SQLite writes each frame of its log with two system calls, 24 bytes of header and then the page,
 * and these are most of what an ordinary commit costs. This VFS differs from the default one only
 * in the log's file: frames that are appended right behind the one before are held back until the
 * frame that commits comes, and are written with it, at once.
 *
 * Nothing else is ever held back: SQLite also rewrites headers in the middle of the log, after
 * reading them, and nobody would come to fetch those. Every other call writes what is held first.
 * Since cache_spill is off (database.c), frames are only ever written by a commit, all of them in a
 * row: so nothing is held when another process may write, and nothing of what was rolled back.
 */
#include <pthread.h>
#include <string.h>

#include "sqlite_store.h"

enum { FRAME_HEADER = 24, HELD_MAX = 64 * (FRAME_HEADER + 1024) };
enum { NOWHERE = -1 };

struct log_file {
    sqlite3_file base;
    sqlite3_int64 next_at;   /* where the next frame would be appended; NOWHERE: not known */
    sqlite3_int64 header_at; /* of the frame whose page comes next; NOWHERE: none */
    bool commits;            /* that frame ends a transaction */
    sqlite3_int64 held_at;
    int n_held;
    unsigned char held[HELD_MAX];
    _Alignas(8) unsigned char real[]; /* the default VFS's own file */
};

static sqlite3_vfs *default_vfs;
static sqlite3_vfs log_vfs;

static struct log_file *log_of(sqlite3_file *file) { return (struct log_file *)file; }
static sqlite3_file *real_of(sqlite3_file *file) { return (sqlite3_file *)log_of(file)->real; }

static int write_held(sqlite3_file *file)
{
    struct log_file *log = log_of(file);
    sqlite3_file *real = real_of(file);
    int n = log->n_held;
    log->n_held = 0;
    return n ? real->pMethods->xWrite(real, log->held, n, log->held_at) : SQLITE_OK;
}

/* Write what is held back; from here on the end of the log must be found anew. */
static int settle(sqlite3_file *file)
{
    log_of(file)->next_at = log_of(file)->header_at = NOWHERE;
    return write_held(file);
}

static void hold(struct log_file *log, const void *bytes, int n, sqlite3_int64 at)
{
    if (!log->n_held)
        log->held_at = at;
    memcpy(log->held + log->n_held, bytes, (size_t)n);
    log->n_held += n;
}

/* The header of a frame that ends a transaction has the size of the database after it. */
static bool ends_transaction(const unsigned char *header)
{
    return header[4] | header[5] | header[6] | header[7];
}

static int write_log(sqlite3_file *file, const void *bytes, int n, sqlite3_int64 at)
{
    struct log_file *log = log_of(file);
    bool header = n == FRAME_HEADER;
    bool page = log->header_at != NOWHERE && at == log->header_at + FRAME_HEADER;
    bool fits = n <= HELD_MAX - log->n_held;
    int rc = SQLITE_OK;
    if (fits && ((header && at == log->next_at) || (page && log->n_held))) {
        hold(log, bytes, n, at);
        if (page && log->commits)
            rc = write_held(file);
    } else {
        if ((rc = settle(file)) != SQLITE_OK)
            return rc;
        rc = real_of(file)->pMethods->xWrite(real_of(file), bytes, n, at);
    }
    log->next_at = page && rc == SQLITE_OK ? at + n : NOWHERE;
    log->header_at = header ? at : NOWHERE;
    log->commits = header && ends_transaction(bytes);
    return rc;
}

static int read_log(sqlite3_file *file, void *ret, int n, sqlite3_int64 at)
{
    int rc = settle(file);
    return rc ? rc : real_of(file)->pMethods->xRead(real_of(file), ret, n, at);
}

static int truncate_log(sqlite3_file *file, sqlite3_int64 size)
{
    int rc = settle(file);
    return rc ? rc : real_of(file)->pMethods->xTruncate(real_of(file), size);
}

static int sync_log(sqlite3_file *file, int flags)
{
    int rc = settle(file);
    return rc ? rc : real_of(file)->pMethods->xSync(real_of(file), flags);
}

static int size_of_log(sqlite3_file *file, sqlite3_int64 *ret)
{
    int rc = settle(file);
    return rc ? rc : real_of(file)->pMethods->xFileSize(real_of(file), ret);
}

static int close_log(sqlite3_file *file) { return real_of(file)->pMethods->xClose(real_of(file)); }

/* ---- passed on as they are ------------------------------------------------------------------ */

static int lock_log(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xLock(real_of(file), level);
}

static int unlock_log(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xUnlock(real_of(file), level);
}

static int check_reserved(sqlite3_file *file, int *ret)
{
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), ret);
}

static int control_log(sqlite3_file *file, int op, void *arg)
{
    return real_of(file)->pMethods->xFileControl(real_of(file), op, arg);
}

static int sector_size(sqlite3_file *file)
{
    return real_of(file)->pMethods->xSectorSize(real_of(file));
}

static int characteristics(sqlite3_file *file)
{
    return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

static const sqlite3_io_methods log_methods = {
    .iVersion = 1, /* SQLite asks no more of a log */
    .xClose = close_log,
    .xRead = read_log,
    .xWrite = write_log,
    .xTruncate = truncate_log,
    .xSync = sync_log,
    .xFileSize = size_of_log,
    .xLock = lock_log,
    .xUnlock = unlock_log,
    .xCheckReservedLock = check_reserved,
    .xFileControl = control_log,
    .xSectorSize = sector_size,
    .xDeviceCharacteristics = characteristics,
};

/* ---- the VFS -------------------------------------------------------------------------------- */

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                     int *ret_flags)
{
    (void)vfs;
    if (!(flags & SQLITE_OPEN_WAL))
        return default_vfs->xOpen(default_vfs, name, file, flags, ret_flags);
    struct log_file *log = log_of(file);
    memset(log, 0, offsetof(struct log_file, held)); /* the rest is only touched where it is used */
    memset(log->real, 0, (size_t)default_vfs->szOsFile);
    log->next_at = log->header_at = NOWHERE;
    int rc = default_vfs->xOpen(default_vfs, name, real_of(file), flags, ret_flags);
    file->pMethods = rc == SQLITE_OK ? &log_methods : NULL;
    return rc;
}

static void register_vfs(void)
{
    default_vfs = sqlite3_vfs_find(NULL);
    if (!default_vfs)
        return;
    log_vfs = *default_vfs;
    log_vfs.zName = "holdfast";
    log_vfs.pNext = NULL;
    log_vfs.szOsFile = (int)sizeof(struct log_file) + default_vfs->szOsFile;
    log_vfs.xOpen = open_file;
    sqlite3_vfs_register(&log_vfs, 0);
}

/* SQLite must not keep what goes away with this library. */
__attribute__((destructor)) static void unregister_vfs(void)
{
    if (log_vfs.zName)
        sqlite3_vfs_unregister(&log_vfs);
}

const char *hf_sqlite_vfs(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_vfs);
    return log_vfs.zName; /* NULL: the default one */
}
