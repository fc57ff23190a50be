/* What a workflow's command is given to run with: a user, a directory, variables, its stdin. */
#ifndef HF_RUNNER_OUTFIT_H
#define HF_RUNNER_OUTFIT_H

#include "spawn.h"
#include "workflows.h"

struct hf_outfit {
    struct hf_user user;
    char home[4096 + 8], user_name[2][300];
    char **env;
};

/*
 * Fill in the command's argv, user, env, cwd and times; what they point to is the outfit's and the
 * workflow's. -HF_FORBIDDEN: it can't be that user; -HF_INVALID: there is no such directory.
 */
int hf_outfit_open(struct hf_outfit *outfit, const struct hf_workflow *workflow,
                   struct hf_command *command, struct hf_error *err);
void hf_outfit_close(struct hf_outfit *outfit);

/*
 * The input as a file of its own that needs no place on disk and can be read again. The descriptor,
 * or -errno; bytes are added, then it is turned back to its beginning.
 */
int hf_input_open(void);
int hf_input_add(int fd, const void *bytes, size_t n);
void hf_input_rewind(int fd);

#endif
