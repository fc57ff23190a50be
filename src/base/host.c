#include "host.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "error.h"

enum { VERSION_AT = 14, OWN_VERSION = '8' }; /* in an id: xxxxxxxx-xxxx-4xxx-xxxx-xxxxxxxxxxxx */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    char boot_id[HF_UUID_LEN + 1];
    bool is_shown;    /* /proc knows this process by its pid */
    bool keeps_clock; /* it has the time namespace of its children, which /proc tells of */
    int64_t offset_ms;
} host;

/* The file's text; 0: none. */
static size_t read_small(int fd, char *buf, size_t size)
{
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);
    if (n < 0)
        n = 0;
    buf[n] = '\0';
    return (size_t)n;
}

/* ---- the boot ------------------------------------------------------------------------------- */

/* The kernel's own file, or one that stands in its place? */
static bool is_of_proc(int fd)
{
    struct statfs fs;
    struct statx st;
    return fstatfs(fd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC &&
           statx(fd, "", AT_EMPTY_PATH, 0, &st) == 0 &&
           !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

static void read_boot(void)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    strcpy(host.boot_id, "unknown");
    if (read_small(fd, text, sizeof text) >= HF_UUID_LEN &&
        strspn(text, "0123456789abcdef-") == HF_UUID_LEN) {
        memcpy(host.boot_id, text, HF_UUID_LEN);
        host.boot_id[HF_UUID_LEN] = '\0';
        if (!is_of_proc(fd))
            host.boot_id[VERSION_AT] = OWN_VERSION;
    }
    if (fd >= 0)
        close(fd);
}

/* ---- the clock ------------------------------------------------------------------------------ */

/* Has this process the namespace that its children will have? Where there are none, there is but one. */
static bool keeps_namespace(const char *own, const char *of_children)
{
    struct stat a, b, link;
    if (lstat(of_children, &link) < 0)
        return true;
    return stat(own, &a) == 0 && stat(of_children, &b) == 0 && a.st_ino == b.st_ino;
}

/* "boottime SECONDS NANOSECONDS" is what the namespace of this process's children adds to the clock. */
static void read_offset(void)
{
    char text[256];
    long long seconds = 0, nanoseconds = 0;
    int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    const char *line = read_small(fd, text, sizeof text) ? strstr(text, "boottime") : NULL;
    if (fd >= 0)
        close(fd);
    if (line)
        sscanf(line, "boottime %lld %lld", &seconds, &nanoseconds);
    host.keeps_clock = keeps_namespace("/proc/self/ns/time", "/proc/self/ns/time_for_children");
    host.offset_ms = host.keeps_clock ? seconds * 1000 + nanoseconds / 1000000 : 0;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void forget(void) { once = (pthread_once_t)PTHREAD_ONCE_INIT; }

static void forget_after_fork(void) { pthread_atfork(NULL, NULL, forget); }

static void examine(void)
{
    static pthread_once_t handler_once = PTHREAD_ONCE_INIT;
    char pid[16];
    pthread_once(&handler_once, forget_after_fork);
    read_boot();
    read_offset();
    ssize_t n = readlink("/proc/self", pid, sizeof pid - 1);
    pid[n > 0 ? n : 0] = '\0';
    host.is_shown = atoi(pid) == getpid();
}

const char *hf_boot_id(void)
{
    pthread_once(&once, examine);
    return host.boot_id;
}

bool hf_boot_id_is_the_machines(const char *id)
{
    return strlen(id) == HF_UUID_LEN && id[VERSION_AT] != OWN_VERSION;
}

int64_t hf_boot_offset_ms(void)
{
    pthread_once(&once, examine);
    return host.offset_ms;
}

int hf_host_check(struct hf_error *err)
{
    pthread_once(&once, examine);
    if (!host.is_shown)
        return hf_fail(
            err, HF_UNAVAILABLE,
            "/proc does not show this process, so neither the machine's clock nor other "
            "processes can be known; mount the /proc of this pid namespace (mount -t proc "
            "proc /proc; unshare: --mount-proc)");
    if (!host.keeps_clock)
        return hf_fail(
            err, HF_UNAVAILABLE,
            "this process is in another time namespace than its children will be, so the "
            "machine's clock can't be known; start it as such a child (unshare: --fork)");
    return 0;
}

int hf_host_check_children(struct hf_error *err)
{
    int r = hf_host_check(err);
    if (r >= 0 && !keeps_namespace("/proc/self/ns/pid", "/proc/self/ns/pid_for_children"))
        r = hf_fail(err, HF_UNAVAILABLE,
                    "this process's children will be in another pid namespace than it is, where it "
                    "can't find them; start it as such a child (unshare: --fork --mount-proc)");
    return r;
}
