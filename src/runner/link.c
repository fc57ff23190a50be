#include "link.h"

#include <errno.h>
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
