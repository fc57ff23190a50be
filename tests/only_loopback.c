/* Preloaded into a server that would listen on every address: it listens on loopback only. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    if (address->sa_family == AF_INET && size >= sizeof in) {
        memcpy(&in, address, sizeof in);
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return real(fd, (struct sockaddr *)&in, sizeof in);
    }
    if (address->sa_family == AF_INET6 && size >= sizeof in6) {
        memcpy(&in6, address, sizeof in6);
        in6.sin6_addr = in6addr_loopback;
        return real(fd, (struct sockaddr *)&in6, sizeof in6);
    }
    return real(fd, address, size);
}
