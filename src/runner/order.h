/* A command as bytes in a file without a name, so that another process can start it. */
#ifndef HF_RUNNER_ORDER_H
#define HF_RUNNER_ORDER_H

#include "holdfast.h"
#include "spawn.h"

/* What the command is, without its descriptors, group and mask. The file's descriptor. */
int hf_order_write(const struct hf_command *command, int *ret_fd, struct hf_error *err);

/* The same again; what it points to stays for as long as the process lives. 0 or -errno. */
int hf_order_read(int fd, struct hf_command *ret);

#endif
