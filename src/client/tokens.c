/* The tokens of the service: 32 random bytes, of which the store keeps only the hash. */
#include <string.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "text.h"

static int unsupported(const struct hf *hf, struct hf_error *err)
{
    return hf_fail(
        err, HF_UNSUPPORTED,
        "%s keeps no tokens of the service; those are kept by sqlite: and postgres:", hf_url(hf));
}

static void to_hex(const uint8_t *bytes, size_t n, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        ret[2 * i] = digits[bytes[i] >> 4];
        ret[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret[2 * n] = '\0';
}

int hf_api_token_create(struct hf *hf, struct hf_api_token *token,
                        char ret_secret[HF_API_TOKEN_LEN + 1], struct hf_error *err)
{
    uint8_t random[32];
    char secret[HF_API_TOKEN_LEN + 1] = "hft_";
    struct hf_api_token t = *token;
    int r = hf_check_handle(hf, err);
    if (r >= 0 && !hf->store->ops->token_add)
        r = unsupported(hf, err);
    if (r >= 0)
        r = hf_check_text("note", t.note, HF_NOTE_MAX, err);
    if (r >= 0)
        r = hf_check_text("prefix", t.prefix, HF_NAME_MAX, err);
    if (r < 0)
        return r;
    hf_random(random, sizeof random);
    to_hex(random, sizeof random, secret + strlen(secret));
    hf_sha256(secret, strlen(secret), t.hash);
    to_hex(t.hash, HF_API_TOKEN_ID_LEN / 2, t.id);
    t.created_at_ms = hf_clock_wall_ms();
    if ((r = hf->store->ops->token_add(hf->store, &t, err)) < 0)
        return r;
    *token = t;
    memcpy(ret_secret, secret, sizeof secret);
    return 0;
}

int hf_api_token_revoke(struct hf *hf, const char *id, struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    if (r < 0)
        return r;
    return hf->store->ops->token_remove ? hf->store->ops->token_remove(hf->store, id, err)
                                        : unsupported(hf, err);
}

int hf_api_tokens(struct hf *hf, hf_api_token_fn fn, void *arg, struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    if (r < 0)
        return r;
    return hf->store->ops->token_list ? hf->store->ops->token_list(hf->store, fn, arg, err)
                                      : unsupported(hf, err);
}
