#include "store.h"

#include <stdio.h>
#include <string.h>

#include "error.h"

static const struct hf_store_ops *const stores[] = {
    &hf_sqlite_store,
    &hf_file_store,
    &hf_http_store,
    &hf_https_store,
};

enum { N_STORES = sizeof stores / sizeof *stores };

static int unknown_scheme(const struct hf_url *url, struct hf_error *err)
{
    char forms[200] = "";
    for (size_t i = 0; i < N_STORES; i++) {
        size_t used = strlen(forms);
        snprintf(forms + used, sizeof forms - used, "%s%s", i ? ", " : "", stores[i]->form);
    }
    return hf_fail(err, HF_INVALID, "there is no store '%s:'; known are %s", url->scheme, forms);
}

int hf_store_open(const char *url_text, struct hf_store **ret, struct hf_error *err)
{
    struct hf_url url;
    int r = hf_url_parse(url_text, &url, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < N_STORES; i++) {
        struct hf_store *store;
        if (strcmp(stores[i]->scheme, url.scheme) != 0)
            continue;
        if ((r = stores[i]->open(&url, &store, err)) < 0)
            return r;
        store->ops = stores[i];
        memcpy(store->shown_url, url.shown, sizeof store->shown_url);
        *ret = store;
        return 0;
    }
    return unknown_scheme(&url, err);
}
