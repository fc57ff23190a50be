#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

static const struct hf_store_ops *const stores[] = {
    &hf_sqlite_store, &hf_file_store,     &hf_postgres_store,
    &hf_http_store,   &hf_dynamodb_store, &hf_etcd_store,
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

/* The store of this URL, which is parsed into `ret_url`. */
static int find(const char *url_text, struct hf_url *ret_url, const struct hf_store_ops **ret,
                struct hf_error *err)
{
    int r = hf_url_parse(url_text, ret_url, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < N_STORES; i++) {
        const char *alias = stores[i]->alias;
        if (strcmp(stores[i]->scheme, ret_url->scheme) != 0 &&
            (!alias || strcmp(alias, ret_url->scheme) != 0))
            continue;
        *ret = stores[i];
        return 0;
    }
    return unknown_scheme(ret_url, err);
}

int hf_store_open(const char *url_text, struct hf_store **ret, struct hf_error *err)
{
    struct hf_url url;
    const struct hf_store_ops *ops;
    struct hf_store *store;
    int r = find(url_text, &url, &ops, err);
    if (r < 0 || (r = ops->open(&url, &store, err)) < 0)
        return r;
    store->ops = ops;
    memcpy(store->shown_url, url.shown, sizeof store->shown_url);
    *ret = store;
    return 0;
}

int hf_store_schema(const char *url_text, const char **ret, struct hf_error *err)
{
    struct hf_url url;
    const struct hf_store_ops *ops;
    int r = find(url_text, &url, &ops, err);
    if (r < 0)
        return r;
    if (!ops->schema)
        return hf_fail(err, HF_UNSUPPORTED, "%s has no schema to print", url.shown);
    *ret = ops->schema();
    return 0;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char **hf_due_workflows(const struct hf_due *due, size_t *ret_n)
{
    size_t n = 0;
    const char **sorted = malloc(due->n_workflows * sizeof *sorted);
    if (!sorted)
        return NULL;
    memcpy(sorted, due->workflows, due->n_workflows * sizeof *sorted);
    qsort(sorted, due->n_workflows, sizeof *sorted, compare_texts);
    for (size_t i = 0; i < due->n_workflows; i++)
        if (i == 0 || strcmp(sorted[i], sorted[n - 1]) != 0)
            sorted[n++] = sorted[i];
    *ret_n = n;
    return sorted;
}
