#include "order.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "error.h"
#include "outfit.h"

enum { ORDER_MAX = 4 << 20 };

/* The words follow, each with its NUL: argv, env, cwd. */
struct head {
    int64_t grace_ms, timeout_ms;
    uint32_t n_argv, n_env;
    bool has_cwd, has_user;
    struct hf_user user;
};

static uint32_t add_words(struct hf_buf *out, char *const *words)
{
    uint32_t n = 0;
    for (; words && words[n]; n++)
        hf_buf_add(out, words[n], strlen(words[n]) + 1);
    return n;
}

int hf_order_write(const struct hf_command *command, int *ret_fd, struct hf_error *err)
{
    struct hf_buf words = HF_BUF(ORDER_MAX);
    struct head head = {.grace_ms = command->grace_ms,
                        .timeout_ms = command->timeout_ms,
                        .has_cwd = command->cwd != NULL,
                        .has_user = command->user != NULL};
    if (command->user)
        head.user = *command->user;
    head.n_argv = add_words(&words, command->argv);
    head.n_env = add_words(&words, command->env);
    if (command->cwd)
        hf_buf_add(&words, command->cwd, strlen(command->cwd) + 1);
    int fd = words.failed ? -E2BIG : hf_input_open();
    int r = fd < 0 ? fd : hf_input_add(fd, &head, sizeof head);
    if (r >= 0)
        r = hf_input_add(fd, words.data, words.len);
    hf_buf_clear(&words);
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        return hf_fail_errno(err, HF_UNAVAILABLE, -r, "can't describe the command");
    }
    hf_input_rewind(fd);
    *ret_fd = fd;
    return 0;
}

static char *read_whole(int fd, size_t *ret_n)
{
    struct stat stat;
    if (fstat(fd, &stat) < 0 || stat.st_size < (off_t)sizeof(struct head))
        return NULL;
    size_t n = (size_t)stat.st_size, at = 0;
    char *bytes = malloc(n + 1);
    while (bytes && at < n) {
        ssize_t some = pread(fd, bytes + at, n - at, (off_t)at);
        if (some <= 0 && errno != EINTR)
            break;
        at += some > 0 ? (size_t)some : 0;
    }
    if (!bytes || at < n) {
        free(bytes);
        return NULL;
    }
    bytes[n] = '\0';
    *ret_n = n;
    return bytes;
}

static char **take_words(char **at, uint32_t n)
{
    char **words = calloc((size_t)n + 1, sizeof *words);
    for (uint32_t i = 0; words && i < n; i++) {
        words[i] = *at;
        *at += strlen(*at) + 1;
    }
    return words;
}

int hf_order_read(int fd, struct hf_command *ret)
{
    size_t n;
    char *bytes = read_whole(fd, &n);
    if (!bytes)
        return -EIO;
    struct head head;
    memcpy(&head, bytes, sizeof head);
    char *at = bytes + sizeof head;
    struct hf_user *user = head.has_user ? malloc(sizeof *user) : NULL;
    char **argv = take_words(&at, head.n_argv), **env = take_words(&at, head.n_env);
    if (!argv || !env || (head.has_user && !user)) {
        free(user);
        free(argv);
        free(env);
        free(bytes);
        return -ENOMEM;
    }
    if (user)
        *user = head.user;
    *ret = (struct hf_command){.argv = argv,
                               .env = env,
                               .cwd = head.has_cwd ? at : NULL,
                               .user = user,
                               .grace_ms = head.grace_ms,
                               .timeout_ms = head.timeout_ms,
                               .in_fd = -1,
                               .out_fd = -1,
                               .err_fd = -1};
    return 0;
}
