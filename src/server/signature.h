/*
 * Is a webhook from who knows one of the workflow's secrets? Three schemes are known, by the headers
 * that are there:
 *
 *   Standard Webhooks  webhook-signature: v1,BASE64 ...    of webhook-id.webhook-timestamp.body
 *   GitHub             X-Hub-Signature-256: sha256=HEX     of the body
 *   Stripe             Stripe-Signature: t=TIME,v1=HEX...  of TIME.body
 *
 * All are HMAC-SHA256 over the raw bytes. Several secrets are good at once, for rotation.
 */
#ifndef HF_SERVER_SIGNATURE_H
#define HF_SERVER_SIGNATURE_H

#include "hmac.h"

enum { SIGNATURE_TOLERANCE_S = 300, SECRET_MAX = 4096, SECRETS_MAX = 32 };

struct secret {
    uint8_t *bytes;
    size_t n;
    void *decoded; /* what whsec_BASE64 stands for in Standard Webhooks; else NULL: the same */
    size_t n_decoded;
};

struct secrets {
    struct secret *of;
    size_t n;
};

/* Takes a copy of the file's content, without newlines at its end. */
int secret_make(struct secret *ret, const char *text, size_t n, struct hf_error *err);
void secrets_clear(struct secrets *secrets);

/* What came; headers that are absent are NULL. */
struct signed_message {
    const char *webhook_id, *webhook_timestamp, *webhook_signature;
    const char *hub_signature;
    const char *stripe_signature;
    struct hf_bytes body;
};

enum signature_scheme { SIGNED_STANDARD, SIGNED_GITHUB, SIGNED_STRIPE };

/* 0, or -HF_UNAUTHORIZED with why, which never tells what would have been right. */
int signature_check(const struct signed_message *message, const struct secrets *secrets,
                    int64_t now_s, enum signature_scheme *ret, struct hf_error *err);

#endif
