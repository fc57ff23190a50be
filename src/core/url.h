/* A store's URL: scheme, the rest, and the query's parameters taken off it. */
#ifndef HF_CORE_URL_H
#define HF_CORE_URL_H

#include "holdfast.h"

enum { HF_URL_MAX = 4096, HF_URL_PARAMS_MAX = 16 };

struct hf_url {
    char whole[HF_URL_MAX];
    char shown[HF_URL_MAX]; /* password redacted */
    char scheme[16];
    char path[HF_URL_MAX]; /* sqlite:, file: what follows the colon, percent-decoded, no query */
    struct {
        char key[32];
        char value[1024];
    } params[HF_URL_PARAMS_MAX];
    size_t n_params;
};

/* NULL: $HOLDFAST_STORE, else the default sqlite store. */
int hf_url_parse(const char *text, struct hf_url *ret, struct hf_error *err);

/* The value of a query parameter, or NULL. */
const char *hf_url_param(const struct hf_url *url, const char *key);

/* Refuse parameters that the store does not know; `known` ends with NULL. */
int hf_url_check_params(const struct hf_url *url, const char *const *known, struct hf_error *err);

#endif
