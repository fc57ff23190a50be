/* What locks.c, waits.c and batch.c share: answers of the store as answers to a client. */
#ifndef HF_SERVER_LOCKS_H
#define HF_SERVER_LOCKS_H

#include "server.h"

/* Who asks, where the client does not say: its address. */
void describe_client(const struct request *req, char *ret, size_t size);

/* A lease as the answer, announced where it took over a stale one. */
void answer_lease(struct request *req, const struct hf_lease *lease, bool is_new);

/* A refusal as the answer, in the words of the command line. */
void answer_refusal(struct request *req, const struct hf_request *ask,
                    const struct hf_answer *answer);

/* Say loudly that a stale lock was taken over. */
void announce_takeover(const struct request *req, const struct hf_lease *lease);

#endif
