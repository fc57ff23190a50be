/*
 * Waking those of this machine without the server. A NOTIFY wakes every session that listens in the
 * database, however few it concerns; where both are here, the releaser tells the waiter itself, by a
 * datagram to the socket that is named as the waiter's channel is. Whatever goes wrong with that costs a
 * NOTIFY, or a poll; whoever sends one without reason makes a waiter ask once more.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "error.h"
#include "postgres_store.h"

/* In the abstract namespace: nothing is left behind. */
static socklen_t address_of(const char *channel, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strnlen(channel, HF_PG_CHANNEL_LEN);
    memcpy(ret->sun_path + 1, channel, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* "holdfast_", 8 digits of the machine, by which release() knows it, and 8 of its own. */
static void name_channel(const char *here, char ret[HF_PG_CHANNEL_LEN + 1])
{
    uint8_t hash[HF_SHA256_LEN], random[4];
    hf_sha256(here, strlen(here), hash);
    hf_random(random, sizeof random);
    snprintf(ret, HF_PG_CHANNEL_LEN + 1, "holdfast_%02x%02x%02x%02x%02x%02x%02x%02x", hash[0],
             hash[1], hash[2], hash[3], random[0], random[1], random[2], random[3]);
}

int hf_pg_near_open(const char *here, char ret_channel[HF_PG_CHANNEL_LEN + 1])
{
    char nowhere[HF_UUID_LEN + 1];
    struct sockaddr_un address;
    name_channel(here, ret_channel);
    socklen_t n = address_of(ret_channel, &address);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, n) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    hf_token(nowhere); /* one that nobody takes for a channel of this machine */
    name_channel(nowhere, ret_channel);
    return -1;
}

bool hf_pg_near_receive(int fd, struct hf_lock_id *ret)
{
    return recv(fd, ret, sizeof *ret, MSG_TRUNC) == (ssize_t)sizeof *ret;
}

static bool send_near(const char *channel, const struct hf_lock_id *id)
{
    struct sockaddr_un address;
    socklen_t n = address_of(channel, &address);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool sent = fd >= 0 && sendto(fd, id, sizeof *id, MSG_NOSIGNAL, (struct sockaddr *)&address,
                                  n) == (ssize_t)sizeof *id;
    if (fd >= 0)
        close(fd);
    return sent;
}

void hf_pg_wake_near(struct hf_postgres *s, const char *channel, const struct hf_lock_id *id)
{
    struct hf_pg_statement st = {.sql = "SELECT pg_notify($1,$2)", .again = true};
    char hex[HF_LOCK_ID_LEN + 1];
    PGresult *result;
    if (send_near(channel, id))
        return;
    hf_lock_id_format(id, hex); /* in another network namespace, or there is no room */
    hf_pg_bind_text(&st, channel);
    hf_pg_bind_text(&st, hex);
    if (hf_pg_exchange(s, &st, 1, true, &result, NULL, NULL) >= 0)
        hf_pg_clear(&result, 1);
}
