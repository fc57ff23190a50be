/* The store's table of operations, its URL, and opening it. See postgres_store.h for the rest. */
#include "postgres_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"

/* ---- the URL -------------------------------------------------------------------------------- */

static const char *const ours[] = {"listen", "pool", "timeout"};

static bool is_ours(const char *key, size_t n)
{
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strlen(ours[i]) == n && memcmp(ours[i], key, n) == 0)
            return true;
    return false;
}

/* The URL as libpq takes it: our parameters are left out, the rest is as it was. */
static void without_ours(const char *url, char ret[HF_URL_MAX])
{
    size_t path = strcspn(url, "?");
    char *out = mempcpy(ret, url, path), separator = '?';
    for (const char *at = url + path; *at;) {
        size_t n = strcspn(++at, "&");
        if (!is_ours(at, strcspn(at, "=&"))) {
            *out++ = separator;
            out = mempcpy(out, at, n);
            separator = '&';
        }
        at += n;
    }
    *out = '\0';
}

static int read_params(struct hf_postgres *s, const struct hf_url *url, int *ret_pool,
                       struct hf_error *err)
{
    const char *pool = hf_url_param(url, "pool"), *timeout = hf_url_param(url, "timeout");
    const char *listen = hf_url_param(url, "listen");
    char *end = NULL;
    long n = pool ? strtol(pool, &end, 10) : HF_PG_POOL_DEFAULT;
    if (n < 1 || n > HF_PG_POOL_MAX || (end && *end))
        return hf_fail(err, HF_INVALID, "pool=%.20s in the store's URL; expected 1 to %d", pool,
                       HF_PG_POOL_MAX);
    *ret_pool = (int)n;
    s->timeout_ms = HF_PG_TIMEOUT_DEFAULT_MS;
    if (timeout && (hf_parse_duration(timeout, &s->timeout_ms, NULL) < 0 || s->timeout_ms < 100 ||
                    s->timeout_ms > 3600000))
        return hf_fail(err, HF_INVALID, "timeout=%.20s in the store's URL; expected 100ms to 1h",
                       timeout);
    if (listen)
        snprintf(s->listen_url, sizeof s->listen_url, "%s", listen);
    return 0;
}

/* libpq quotes what it can't parse, and that may be a password: nothing longer than a character. */
static void cut_quoted(char *text)
{
    for (char *at = text; (at = strchr(at, '"'));) {
        if (!at[1] || at[2] != '"') {
            strcpy(at, strlen(at) > 3 ? "..." : "");
            return;
        }
        at += 3;
    }
}

/* Refuse what libpq can't read before anything is tried. */
static int check_conninfo(const char *url, struct hf_error *err)
{
    char *why = NULL;
    PQconninfoOption *options = hf_pq.PQconninfoParse(url, &why);
    if (options) {
        hf_pq.PQconninfoFree(options);
        return 0;
    }
    int r = hf_fail(err, HF_INVALID, "libpq can't read the store's URL");
    if (why && err) {
        why[strcspn(why, "\n")] = '\0';
        if (!strstr(why, "query parameter"))
            cut_quoted(why);
        r = hf_fail(err, HF_INVALID, "libpq can't read the store's URL: %s", why);
    }
    if (why)
        hf_pq.PQfreemem(why);
    return r;
}

/* ---- opening and closing -------------------------------------------------------------------- */

/* Whose processes we can judge. */
static int find_here(struct hf_postgres *s, struct hf_error *err)
{
    struct hf_processes self;
    int32_t pid = getpid();
    int r = hf_processes_identify(&pid, 1, &self, err);
    if (r >= 0)
        snprintf(s->here, sizeof s->here, "%s %" PRIu64, self.boot, self.pid_namespace);
    return r;
}

static void pg_close(struct hf_store *store)
{
    struct hf_postgres *s = hf_postgres_of(store);
    hf_pg_listener_free(s->listener);
    hf_pg_pool_close(&s->pool);
    hf_pg_memory_free(s->memory);
    free(s);
}

static int pg_open(const struct hf_url *url, struct hf_store **ret, struct hf_error *err)
{
    struct hf_postgres *s = calloc(1, sizeof *s);
    int pool = 0;
    if (!s)
        return hf_fail(err, HF_NOMEM, "out of memory");
    without_ours(url->whole, s->url);
    memcpy(s->shown, url->shown, sizeof s->shown);
    int r = read_params(s, url, &pool, err);
    if (r >= 0)
        r = hf_pq_load(err);
    if (r >= 0)
        r = check_conninfo(s->url, err);
    if (r >= 0 && s->listen_url[0])
        r = check_conninfo(s->listen_url, err);
    if (r >= 0)
        r = find_here(s, err);
    if (r >= 0)
        r = hf_pg_pool_open(&s->pool, pool, err);
    if (r < 0) {
        free(s);
        return r;
    }
    s->memory = hf_pg_memory_new();
    s->listener = hf_pg_listener_new(s);
    if (!s->memory || !s->listener)
        r = hf_fail(err, HF_NOMEM, "out of memory or descriptors");
    if (r >= 0)
        r = hf_pg_prepare(s, err);
    if (r < 0) {
        pg_close(&s->base);
        return r;
    }
    *ret = &s->base;
    return 0;
}

static const char *caution(struct hf_store *store)
{
    const struct hf_postgres *s = hf_postgres_of(store);
    return s->caution[0] ? s->caution : NULL;
}

const struct hf_store_ops hf_postgres_store = {
    .scheme = "postgres",
    .alias = "postgresql",
    .form = "postgres://USER@HOST/DATABASE",
    .open = pg_open,
    .close = pg_close,
    .apply = hf_pg_apply,
    .list = hf_pg_list,
    .events = hf_pg_events,
    .totals = hf_pg_totals,
    .execution = hf_pg_execution,
    .execution_data = hf_pg_execution_data,
    .executions = hf_pg_executions,
    .due = hf_pg_due,
    .claim = hf_pg_claim,
    .last_key = hf_pg_last_key,
    .retain = hf_pg_retain,
    .prune = hf_pg_prune,
    .idle = hf_pg_idle,
    .init = hf_pg_init,
    .schema = hf_pg_schema,
    .caution = caution,
    .watch = hf_pg_watch,
    .unwatch = hf_pg_unwatch,
    .rewatch = hf_pg_rewatch,
    .share = hf_pg_share,
    .unshare = hf_pg_unshare,
    .runners = hf_pg_runners,
    .ahead = hf_pg_ahead,
    .token_add = hf_pg_token_add,
    .token_remove = hf_pg_token_remove,
    .token_list = hf_pg_token_list,
};
