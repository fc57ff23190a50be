#include "link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

int hf_link_open(int ret_ends[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret_ends) < 0 ? -errno : 0;
}

void hf_link_tell(int link, const struct hf_note *note, const void *data, size_t n)
{
    struct iovec parts[] = {
        {.iov_base = (void *)(uintptr_t)note, .iov_len = sizeof *note},
        {.iov_base = (void *)(uintptr_t)data, .iov_len = n},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n ? 2 : 1};
    while (sendmsg(link, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR)
        continue;
}

/*
 * ECONNRESET tells once that the other side died with notes of ours unread; what it said before can
 * still be read.
 */
int hf_link_hear(int link, struct hf_note *ret, void *data, size_t size, size_t *ret_n)
{
    struct iovec parts[] = {
        {.iov_base = ret, .iov_len = sizeof *ret},
        {.iov_base = data, .iov_len = data ? size : 0},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = data ? 2 : 1};
    ssize_t n;
    do
        n = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n < (ssize_t)sizeof *ret)
        return -1;
    if (ret_n)
        *ret_n = (size_t)n - sizeof *ret;
    return 1;
}

/* ---- descriptors ---------------------------------------------------------------------------- */

union control {
    char bytes[CMSG_SPACE(HF_LINK_FDS_MAX * sizeof(int))];
    struct cmsghdr align;
};

int hf_link_send(int link, const void *data, size_t n, const int *fds, size_t n_fds)
{
    union control control = {{0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = n};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (n_fds) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, n_fds * sizeof(int));
    }
    while (sendmsg(link, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

int hf_link_receive(int link, void *data, size_t n, int *ret_fds, size_t n_fds)
{
    union control control;
    struct iovec part = {.iov_base = data, .iov_len = n};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(n_fds * sizeof(int))};
    ssize_t got;
    do
        got = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    if (got < 0 && errno == EAGAIN)
        return 0;
    if (got < (ssize_t)n)
        return -1;
    for (size_t i = 0; i < n_fds; i++)
        ret_fds[i] = -1;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights && rights->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fds, CMSG_DATA(rights), rights->cmsg_len - CMSG_LEN(0));
    return 1;
}
