/*
 * Calls to DynamoDB: signed, within deadlines, tried again where that is safe; and the server's time.
 *
 *     struct hf_dynamo *d;
 *     hf_dynamo_open(url, &d, err);                   // talks to nobody yet
 *     hf_dynamo_call(d, "GetItem", body, &json, &failure, err);
 *     hf_dynamo_close(d);
 *
 * Every call may come from many threads at once.
 */
#ifndef HF_DYNAMODB_DYNAMO_H
#define HF_DYNAMODB_DYNAMO_H

#include <jansson.h>

#include "buf.h"
#include "url.h"

struct hf_dynamo;

/* dynamodb://REGION/TABLE[?endpoint=URL]; the parameters are checked by the caller. */
int hf_dynamo_open(const struct hf_url *url, struct hf_dynamo **ret, struct hf_error *err);
void hf_dynamo_close(struct hf_dynamo *d);

const char *hf_dynamo_table(const struct hf_dynamo *d);
const char *hf_dynamo_endpoint(const struct hf_dynamo *d); /* for error texts */

/*
 * One action ("UpdateItem"). `body` stays the caller's; TableName is set in it: at its top, or in
 * each of TransactItems; Batch* and List* are sent as they are. A NULL `body` is -HF_NOMEM, so that
 * json_pack() need not be checked.
 *
 * 0: *ret is the answer's JSON, the caller's. *ret_failure is NULL where it was done, else the short
 * name of what failed, and *ret the error's JSON (message, Item, CancellationReasons):
 *   ConditionalCheckFailedException, TransactionCanceledException, ResourceNotFoundException,
 *   ResourceInUseException, IdempotentParameterMismatchException, ValidationException
 * Whoever can't use a failure calls hf_dynamo_fail(). It certainly was not done then.
 *
 * Throttling, 5xx, and transactions that only met another one are tried again, with full jitter,
 * until a deadline. -HF_UNKNOWN: it may have been done; also where a try whose end is not known was
 * followed by a failure, which may be our own doing. Reads are never unknown.
 */
int hf_dynamo_call(struct hf_dynamo *d, const char *action, json_t *body, json_t **ret,
                   const char **ret_failure, struct hf_error *err);

/* The same with a body that is written already, TableName and all. */
int hf_dynamo_call_text(struct hf_dynamo *d, const char *action, const struct hf_buf *body,
                        json_t **ret, const char **ret_failure, struct hf_error *err);

/* A failure as an error, with the message of its JSON; the JSON stays the caller's. */
int hf_dynamo_fail(struct hf_dynamo *d, const char *action, const char *failure, const json_t *json,
                   struct hf_error *err);

/*
 * Bounds of the server's time in ms since 1970, from the Date of its answers, carried on by the boot
 * clock: early <= now <= late, about a second apart. False: nothing was answered yet, or for long. That
 * one front end's clock may differ from another's is not in them: see HF_DYNAMO_SKEW_MS.
 */
bool hf_dynamo_time(struct hf_dynamo *d, int64_t *ret_early_ms, int64_t *ret_late_ms);

/* The same, after asking where it is not known. The question needs no credentials. */
int hf_dynamo_learn_time(struct hf_dynamo *d, struct hf_error *err);

/* A margin for clocks of front ends: add it to what is written, or take it off what is judged. */
enum { HF_DYNAMO_SKEW_MS = 1000 };

#endif
