#include "forked.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "error.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int *fds;
    size_t n, size;
} kept_from_children;

static void lock(void) { pthread_mutex_lock(&mutex); }

static void unlock(void) { pthread_mutex_unlock(&mutex); }

static void close_all(void)
{
    for (size_t i = 0; i < kept_from_children.n; i++)
        close(kept_from_children.fds[i]);
    kept_from_children.n = 0;
    unlock();
}

static void install(void) { pthread_atfork(lock, unlock, close_all); }

static bool make_room(void)
{
    if (kept_from_children.n < kept_from_children.size)
        return true;
    size_t size = kept_from_children.size ? 2 * kept_from_children.size : 8;
    int *fds = realloc(kept_from_children.fds, size * sizeof *fds);
    if (!fds)
        return false;
    kept_from_children.fds = fds;
    kept_from_children.size = size;
    return true;
}

int hf_forked_add(int fd, struct hf_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    lock();
    bool room = make_room();
    if (room)
        kept_from_children.fds[kept_from_children.n++] = fd;
    unlock();
    return room ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
}

void hf_forked_remove(int fd)
{
    lock();
    for (size_t i = 0; i < kept_from_children.n; i++)
        if (kept_from_children.fds[i] == fd) {
            kept_from_children.fds[i] = kept_from_children.fds[--kept_from_children.n];
            break;
        }
    unlock();
}
