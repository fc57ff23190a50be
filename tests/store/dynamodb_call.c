/*
 * Calls to DynamoDB as the store makes them, for tests/store/test_dynamodb_*.py.
 *
 *     dynamodb_call URL
 *
 * Reads lines "ACTION JSON", "many ACTION JSON" (by eight threads at once, a few times each), "learn"
 * and "time", and answers each with a line of JSON.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "dynamodb/dynamo.h"

static void say(json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT);
    puts(text);
    fflush(stdout);
    free(text);
    json_decref(json);
}

static json_t *error_of(int r, const struct hf_error *err)
{
    return json_pack("{s:s,s:s,s:b}", "code", hf_code_name(r), "message", err->message, "same",
                     err->code == r);
}

static json_t *call(struct hf_dynamo *d, const char *action, const char *text)
{
    struct hf_error err = {0};
    json_t *body = json_loads(text, 0, NULL), *answer = NULL;
    const char *failure = NULL;
    int r = hf_dynamo_call(d, action, body, &answer, &failure, &err);
    json_decref(body);
    return r < 0 ? error_of(r, &err)
                 : json_pack("{s:s,s:s?,s:o}", "code", "OK", "failure", failure, "answer", answer);
}

/* ---- many at once --------------------------------------------------------------------------- */

enum { THREADS = 8, CALLS = 5 };

struct many {
    struct hf_dynamo *d;
    char *action, *text;
    _Atomic int well;
};

static void *call_often(void *arg)
{
    struct many *many = arg;
    for (int i = 0; i < CALLS; i++) {
        json_t *json = call(many->d, many->action, many->text);
        const char *code = json_string_value(json_object_get(json, "code"));
        many->well += strcmp(code, "OK") == 0;
        json_decref(json);
    }
    return NULL;
}

static json_t *call_many(struct hf_dynamo *d, char *text)
{
    struct many many = {.d = d, .action = strsep(&text, " "), .text = text};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call_often, &many);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return json_pack("{s:i}", "well", many.well);
}

/* ---- the time ------------------------------------------------------------------------------- */

static json_t *learn(struct hf_dynamo *d)
{
    struct hf_error err = {0};
    int r = hf_dynamo_learn_time(d, &err);
    return r < 0 ? error_of(r, &err) : json_pack("{s:s}", "code", "OK");
}

static json_t *tell_time(struct hf_dynamo *d)
{
    int64_t early = 0, late = 0;
    bool known = hf_dynamo_time(d, &early, &late);
    return json_pack("{s:b,s:I,s:I,s:I}", "known", known, "early", (json_int_t)early, "late",
                     (json_int_t)late, "wall", (json_int_t)hf_clock_wall_ms());
}

int main(int argc, char **argv)
{
    struct hf_url url;
    struct hf_dynamo *d;
    struct hf_error err = {0};
    char *line = NULL;
    size_t size = 0;
    int r = argc == 2 ? hf_url_parse(argv[1], &url, &err) : -HF_INVALID;
    if (r < 0 || (r = hf_dynamo_open(&url, &d, &err)) < 0) {
        say(error_of(r, &err));
        return 1;
    }
    while (getline(&line, &size, stdin) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *space = strchr(line, ' ');
        if (space)
            *space = '\0';
        say(strcmp(line, "learn") == 0  ? learn(d)
            : strcmp(line, "many") == 0 ? call_many(d, space + 1)
            : strcmp(line, "time") == 0 ? tell_time(d)
                                        : call(d, line, space ? space + 1 : "{}"));
    }
    free(line);
    hf_dynamo_close(d);
    return 0;
}
