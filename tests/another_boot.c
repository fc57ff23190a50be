/* Preloaded into a program: it runs on a machine that was booted again, as far as the boot's id tells. */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char id[] = "01234567-89ab-4cde-8f01-23456789abcd\n";
static int id_fd = -1;

static int open_as(const char *name, const char *path, int flags, mode_t mode)
{
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, name);
    if (strcmp(path, "/proc/sys/kernel/random/boot_id") != 0)
        return real(path, flags, mode);
    id_fd = memfd_create("boot_id", MFD_CLOEXEC);
    return pwrite(id_fd, id, sizeof id - 1, 0) < 0 ? -1 : id_fd;
}

static int statfs_as(const char *name, int fd, void *ret)
{
    int (*real)(int, void *) = dlsym(RTLD_NEXT, name);
    int r = real(fd, ret);
    if (fd == id_fd && r == 0)
        ((struct statfs *)ret)->f_type = PROC_SUPER_MAGIC; /* the 64-bit one begins alike */
    return r;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        return open_as(#name, path, flags, mode);                                                  \
    }
OPEN(open)
OPEN(open64)

int fstatfs(int fd, struct statfs *ret) { return statfs_as("fstatfs", fd, ret); }
int fstatfs64(int fd, struct statfs64 *ret) { return statfs_as("fstatfs64", fd, ret); }
