/*
 * An execution's bytes as JSON. What is valid UTF-8 is a string, anything else is base64, and
 * `...Encoding` says which: "utf-8" or "base64". Nothing is lost either way.
 */
#ifndef HF_CLI_OUTPUT_H
#define HF_CLI_OUTPUT_H

#include "cli.h"

/* The execution with its input and output as one JSON object. The exit code. */
int cli_put_whole_execution(struct cli *cli, struct hf *hf, const struct hf_execution *execution);

#endif
