#include "signature.h"

#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "error.h"

/* ---- secrets -------------------------------------------------------------------------------- */

static const char prefix[] = "whsec_";
enum { PREFIX_LEN = sizeof prefix - 1 };

int secret_make(struct secret *ret, const char *text, size_t n, struct hf_error *err)
{
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (!n || n > SECRET_MAX)
        return hf_fail(err, HF_INVALID, "a secret has 1 to %d bytes", SECRET_MAX);
    struct secret s = {.bytes = malloc(n), .n = n};
    if (!s.bytes)
        return hf_fail(err, HF_NOMEM, "out of memory");
    memcpy(s.bytes, text, n);
    /* A secret of Stripe looks the same, but is meant as it stands: it need not be base64. */
    bool coded = n > PREFIX_LEN && memcmp(text, prefix, PREFIX_LEN) == 0;
    if (coded)
        hf_base64_read(text + PREFIX_LEN, n - PREFIX_LEN, &s.decoded, &s.n_decoded);
    *ret = s;
    return 0;
}

void secrets_clear(struct secrets *secrets)
{
    for (size_t i = 0; i < secrets->n; i++) {
        struct secret *s = &secrets->of[i];
        if (s->bytes)
            explicit_bzero(s->bytes, s->n);
        if (s->decoded)
            explicit_bzero(s->decoded, s->n_decoded);
        free(s->bytes);
        free(s->decoded);
    }
    free(secrets->of);
    *secrets = (struct secrets){0};
}

/* ---- what a message may have been signed with ----------------------------------------------- */

/* The right signatures, one for each secret. */
struct expected {
    uint8_t of[SECRETS_MAX][HF_SHA256_LEN];
    size_t n;
};

static void expect(struct expected *ret, const struct secrets *secrets, bool decoded,
                   const struct hf_bytes *parts, size_t n_parts)
{
    ret->n = 0;
    for (size_t i = 0; i < secrets->n && i < SECRETS_MAX; i++) {
        const struct secret *s = &secrets->of[i];
        struct hf_bytes key = {s->bytes, s->n};
        if (decoded && s->decoded)
            key = (struct hf_bytes){s->decoded, s->n_decoded};
        hf_hmac_sha256(key, parts, n_parts, ret->of[ret->n++]);
    }
}

/* Every one is compared, so that the time tells nothing of which was right. */
static bool is_expected(const struct expected *expected, const uint8_t given[HF_SHA256_LEN])
{
    bool found = false;
    for (size_t i = 0; i < expected->n; i++)
        found |= hf_sha256_equal(expected->of[i], given);
    return found;
}

static int refuse(struct hf_error *err, const char *why)
{
    return hf_fail(err, HF_UNAUTHORIZED, "%s", why);
}

static int judge(bool is_right, struct hf_error *err)
{
    return is_right ? 0
                    : refuse(err, "the signature is wrong; does the sender have the secret of this "
                                  "workflow, and is the body unchanged?");
}

/* Digits, and a time within the tolerance. */
static int check_time(const char *text, size_t n, int64_t now_s, struct hf_error *err)
{
    if (!n || n > 12 || strspn(text, "0123456789") < n)
        return refuse(err, "the signature's timestamp is not a number of seconds since 1970");
    int64_t at_s = strtoll(text, NULL, 10);
    if (at_s < now_s - SIGNATURE_TOLERANCE_S)
        return refuse(err, "the signature's timestamp is more than 5 minutes old");
    if (at_s > now_s + SIGNATURE_TOLERANCE_S)
        return refuse(err, "the signature's timestamp is more than 5 minutes ahead of this clock");
    return 0;
}

/* ---- the schemes ---------------------------------------------------------------------------- */

/* Is "v1,BASE64" a right one? */
static bool is_expected_base64(const struct expected *expected, const char *text, size_t n)
{
    void *given = NULL;
    size_t n_given = 0;
    bool found = n > 3 && strncmp(text, "v1,", 3) == 0 &&
                 hf_base64_read(text + 3, n - 3, &given, &n_given) && n_given == HF_SHA256_LEN &&
                 is_expected(expected, given);
    free(given);
    return found;
}

/* "v1,BASE64 v1,BASE64 v1a,...": one that is right is enough. */
static int check_standard(const struct signed_message *m, const struct secrets *secrets,
                          int64_t now_s, struct hf_error *err)
{
    if (!m->webhook_id || !*m->webhook_id || !m->webhook_timestamp)
        return refuse(err, "webhook-signature needs webhook-id and webhook-timestamp beside it");
    int r = check_time(m->webhook_timestamp, strlen(m->webhook_timestamp), now_s, err);
    if (r < 0)
        return r;
    const struct hf_bytes parts[] = {{m->webhook_id, strlen(m->webhook_id)},
                                     {".", 1},
                                     {m->webhook_timestamp, strlen(m->webhook_timestamp)},
                                     {".", 1},
                                     m->body};
    struct expected expected;
    expect(&expected, secrets, true, parts, sizeof parts / sizeof *parts);
    bool found = false;
    for (const char *at = m->webhook_signature; *at;) {
        size_t n = strcspn(at, " ");
        found |= is_expected_base64(&expected, at, n);
        at += n + strspn(at + n, " ");
    }
    return judge(found, err);
}

/*
 * Could this body be what another scheme signs, ID.TIME.BODY or TIME.BODY? A signature of that one,
 * seen by somebody, would be good here for ever.
 */
static bool is_of_another_scheme(struct hf_bytes body)
{
    enum { TIME_DIGITS = 9 };
    const char *text = body.bytes;
    size_t n = body.n < 1000 ? body.n : 1000, at = 0;
    for (;;) {
        size_t from = at, digits = 0;
        while (at < n && text[at] != '.' && !strchr("{[\"= \t\r\n", text[at])) {
            digits += text[at] >= '0' && text[at] <= '9';
            at++;
        }
        if (at == n || text[at] != '.')
            return false;
        if (digits >= TIME_DIGITS && digits == at - from)
            return true;
        at++;
    }
}

static int check_github(const struct signed_message *m, const struct secrets *secrets,
                        struct hf_error *err)
{
    static const char form[] = "sha256=";
    uint8_t given[HF_SHA256_LEN];
    struct expected expected;
    bool has_form = strncmp(m->hub_signature, form, sizeof form - 1) == 0;
    const char *hex = has_form ? m->hub_signature + sizeof form - 1 : "";
    if (!hf_hex_read(hex, strlen(hex), given, sizeof given))
        return refuse(err, "X-Hub-Signature-256 must be sha256= and 64 hex digits");
    if (is_of_another_scheme(m->body))
        return refuse(err, "this body begins like what another scheme signs; X-Hub-Signature-256 "
                           "is not enough for it");
    expect(&expected, secrets, false, &m->body, 1);
    return judge(is_expected(&expected, given), err);
}

/* The value of the first t= of "t=...,v1=...", and that there is no other. */
static bool find_stripe_time(const char *header, struct hf_bytes *ret)
{
    int found = 0;
    for (const char *at = header; *at;) {
        size_t n = strcspn(at, ",");
        if (n > 2 && strncmp(at, "t=", 2) == 0 && !found++)
            *ret = (struct hf_bytes){at + 2, n - 2};
        at += n + strspn(at + n, ", ");
    }
    return found == 1;
}

static int check_stripe(const struct signed_message *m, const struct secrets *secrets,
                        int64_t now_s, struct hf_error *err)
{
    struct hf_bytes time;
    if (!find_stripe_time(m->stripe_signature, &time))
        return refuse(err, "Stripe-Signature must have one t=TIME and a v1=SIGNATURE");
    int r = check_time(time.bytes, time.n, now_s, err);
    if (r < 0)
        return r;
    const struct hf_bytes parts[] = {time, {".", 1}, m->body};
    struct expected expected;
    expect(&expected, secrets, false, parts, sizeof parts / sizeof *parts);
    bool found = false;
    for (const char *at = m->stripe_signature; *at;) {
        uint8_t given[HF_SHA256_LEN];
        size_t n = strcspn(at, ",");
        if (n > 3 && strncmp(at, "v1=", 3) == 0 && hf_hex_read(at + 3, n - 3, given, sizeof given))
            found |= is_expected(&expected, given);
        at += n + strspn(at + n, ", ");
    }
    return judge(found, err);
}

int signature_check(const struct signed_message *message, const struct secrets *secrets,
                    int64_t now_s, enum signature_scheme *ret, struct hf_error *err)
{
    if (message->webhook_signature) {
        *ret = SIGNED_STANDARD;
        return check_standard(message, secrets, now_s, err);
    }
    if (message->stripe_signature) {
        *ret = SIGNED_STRIPE;
        return check_stripe(message, secrets, now_s, err);
    }
    if (message->hub_signature) {
        *ret = SIGNED_GITHUB;
        return check_github(message, secrets, err);
    }
    return refuse(err, "this webhook must be signed: webhook-signature, X-Hub-Signature-256 or "
                       "Stripe-Signature");
}
