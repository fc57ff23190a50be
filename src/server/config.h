/*
 * The service's configuration: the workflows, with the secrets of their webhooks. SIGHUP reads it
 * again; a request goes on with the one that it began with, so that nothing it uses is ever freed.
 */
#ifndef HF_SERVER_CONFIG_H
#define HF_SERVER_CONFIG_H

#include "server.h"
#include "signature.h"
#include "workflows.h"

/* The workflow of this name as the request sees it, and its secrets (none: NULL); NULL: there is none. */
const struct hf_workflow *request_workflow(struct request *req, const char *name,
                                           const struct secrets **ret_secrets);

#endif
