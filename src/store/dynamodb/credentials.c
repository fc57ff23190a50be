#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "text.h"
#include "transport.h"

/*
 * Keys that expire are asked for again while the old ones still serve:
 *
 *     found .......... refresh ............... expires
 *       |  these serve    |  one thread looks for   |  all wait for
 *       |                 |  others, these serve    |  who looks
 */
enum { EARLY_MS = 5 * 60 * 1000, AGAIN_MS = 10 * 1000, LEAST_MS = 1000 };

/* ---- keys ----------------------------------------------------------------------------------- */

static void free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

void hf_dynamo_keys_put(struct hf_dynamo_keys *keys)
{
    if (!keys || --keys->refs > 0)
        return;
    free(keys->id);
    free_secret(keys->secret);
    free_secret(keys->session);
    free(keys);
}

/* They become part of a header: with a line end in them they could become two. */
static bool is_one_word(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

/* By how long they last rather than until when: so a clock that is off does no harm. */
static void set_expiry(struct hf_dynamo_keys *keys, int64_t expiration_ms, int64_t date_ms)
{
    int64_t now = hf_clock_boot_ms();
    int64_t lasts = expiration_ms - (date_ms ? date_ms : hf_clock_wall_ms());
    if (lasts < LEAST_MS) /* then the service will say so */
        lasts = LEAST_MS;
    keys->expires_ms = now + lasts;
    keys->refresh_ms = keys->expires_ms - (lasts / 2 < EARLY_MS ? lasts / 2 : EARLY_MS);
}

int hf_dynamo_keys_make(const struct hf_dynamo_found *found, const char *where,
                        struct hf_dynamo_keys **ret, struct hf_error *err)
{
    bool has_session = found->session && *found->session;
    int64_t expiration_ms = 0;
    if (!found->id || !*found->id || !found->secret || !*found->secret || !is_one_word(found->id) ||
        !is_one_word(found->secret) || (has_session && !is_one_word(found->session)))
        return hf_fail(err, HF_UNAUTHORIZED, "%s: these are no AWS credentials", where);
    if (found->expiration && *found->expiration &&
        hf_parse_time(found->expiration, &expiration_ms, err) < 0)
        return hf_fail(err, HF_UNAUTHORIZED, "%s: does not say when its credentials expire", where);
    struct hf_dynamo_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return hf_fail(err, HF_NOMEM, "out of memory");
    *keys = (struct hf_dynamo_keys){
        .refs = 1,
        .refresh_ms = INT64_MAX,
        .expires_ms = INT64_MAX,
        .id = strdup(found->id),
        .secret = strdup(found->secret),
        .session = has_session ? strdup(found->session) : NULL,
    };
    if (!keys->id || !keys->secret || (has_session && !keys->session)) {
        hf_dynamo_keys_put(keys);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    if (expiration_ms)
        set_expiry(keys, expiration_ms, found->date_ms);
    *ret = keys;
    return 1;
}

/* ---- sources -------------------------------------------------------------------------------- */

static int from_environment(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_dynamo_found found = {.id = getenv("AWS_ACCESS_KEY_ID"),
                                    .secret = getenv("AWS_SECRET_ACCESS_KEY"),
                                    .session = getenv("AWS_SESSION_TOKEN")};
    (void)d;
    if (!found.id || !*found.id || !found.secret || !*found.secret)
        return 0;
    return hf_dynamo_keys_make(&found, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", ret, err);
}

/* The first that is set up decides, as in AWS's own tools. */
static int find_keys(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    static hf_dynamo_source *const sources[] = {
        from_environment,         hf_dynamo_from_web_identity, hf_dynamo_from_profile,
        hf_dynamo_from_container, hf_dynamo_from_instance,
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof sources / sizeof *sources; i++)
        r = sources[i](d, ret, err);
    return r ? r
             : hf_fail(err, HF_UNAUTHORIZED,
                       "no AWS credentials: none in the environment (AWS_ACCESS_KEY_ID, "
                       "AWS_SECRET_ACCESS_KEY), in ~/.aws, of a web identity, a container or an "
                       "instance");
}

/* ---- getting them --------------------------------------------------------------------------- */

void hf_dynamo_credentials_init(struct hf_dynamo_credentials *c)
{
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
}

void hf_dynamo_credentials_clear(struct hf_dynamo_credentials *c)
{
    hf_dynamo_keys_put(c->keys);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
}

static bool serve(const struct hf_dynamo_credentials *c, int64_t now)
{
    return c->keys && now < c->keys->expires_ms;
}

static bool are_fresh(const struct hf_dynamo_credentials *c, int64_t now)
{
    return serve(c, now) && (now < c->keys->refresh_ms || now < c->not_before_ms);
}

/* With the mutex held, which is let go of meanwhile. */
static void look(struct hf_dynamo *d, struct hf_dynamo_credentials *c)
{
    struct hf_dynamo_keys *found = NULL;
    struct hf_error failure = {0};
    c->asking = true;
    pthread_mutex_unlock(&c->mutex);
    int r = find_keys(d, &found, &failure);
    pthread_mutex_lock(&c->mutex);
    c->asking = false;
    if (r > 0) {
        hf_dynamo_keys_put(c->keys);
        c->keys = found;
    } else {
        c->failures++;
        c->failure = failure;
        c->not_before_ms = hf_clock_boot_ms() + AGAIN_MS;
    }
    pthread_cond_broadcast(&c->changed);
}

int hf_dynamo_keys_get(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_dynamo_credentials *c = &d->credentials;
    int r = 0;
    pthread_mutex_lock(&c->mutex);
    unsigned failures = c->failures;
    while (!are_fresh(c, hf_clock_boot_ms()) && failures == c->failures) {
        if (!c->asking)
            look(d, c);
        else if (serve(c, hf_clock_boot_ms()))
            break;
        else
            pthread_cond_wait(&c->changed, &c->mutex);
    }
    if (serve(c, hf_clock_boot_ms())) {
        c->keys->refs++;
        *ret = c->keys;
    } else {
        r = -HF_UNAUTHORIZED;
        if (failures != c->failures)
            r = c->failure.code;
        if (err)
            *err = c->failure;
    }
    pthread_mutex_unlock(&c->mutex);
    return r;
}

void hf_dynamo_keys_reject(struct hf_dynamo *d, const struct hf_dynamo_keys *keys)
{
    struct hf_dynamo_credentials *c = &d->credentials;
    pthread_mutex_lock(&c->mutex);
    if (c->keys == keys) {
        hf_dynamo_keys_put(c->keys);
        c->keys = NULL;
    }
    pthread_mutex_unlock(&c->mutex);
}
