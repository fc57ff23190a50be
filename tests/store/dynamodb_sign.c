/*
 * One request, signed as those to DynamoDB are, for AWS's published examples of signatures.
 *
 *     dynamodb_sign HOST:PORT:TO_HOST:TO_PORT <<JSON
 *
 * {"method", "url", "headers": [...], "body", "id", "secret", "session", "atMs", "scope"}; the request
 * goes to TO_HOST:TO_PORT, which tells the test what was sent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb/transport.h"

static const char *text_of(const json_t *json, const char *key)
{
    return json_string_value(json_object_get(json, key));
}

static CURLcode send_signed(const struct hf_curl *c, const json_t *json, struct curl_slist *to)
{
    const char *session = text_of(json, "session");
    struct hf_dynamo_found found = {
        .id = text_of(json, "id"), .secret = text_of(json, "secret"), .session = session};
    struct hf_dynamo_keys *keys;
    struct hf_error err;
    struct curl_slist *headers = NULL;
    json_t *line;
    size_t i;
    if (hf_dynamo_keys_make(&found, "the test", &keys, &err) < 0)
        return CURLE_BAD_FUNCTION_ARGUMENT;
    struct hf_dynamo_signature s = {
        .scope = text_of(json, "scope"),
        .keys = keys,
        .at_ms = json_integer_value(json_object_get(json, "atMs")),
    };
    CURL *easy = c->easy_init();
    json_array_foreach(json_object_get(json, "headers"), i, line) headers =
        c->slist_append(headers, json_string_value(line));
    CURLcode code = hf_dynamo_sign(c, easy, &s, &headers) ? CURLE_OK : CURLE_OUT_OF_MEMORY;
    hf_dynamo_set_up(c, easy, true);
    c->easy_setopt(easy, CURLOPT_URL, text_of(json, "url"));
    c->easy_setopt(easy, CURLOPT_CONNECT_TO, to);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    if (strcmp(text_of(json, "method"), "POST") == 0)
        c->easy_setopt(easy, CURLOPT_POSTFIELDS, text_of(json, "body"));
    if (code == CURLE_OK)
        code = c->easy_perform(easy);
    c->easy_cleanup(easy);
    c->slist_free_all(headers);
    hf_dynamo_keys_put(keys);
    return code;
}

int main(int argc, char **argv)
{
    const struct hf_curl *c;
    struct hf_error err;
    json_t *json = json_loadf(stdin, 0, NULL);
    if (argc != 2 || !json || hf_curl_load(&c, &err) < 0)
        return 1;
    struct curl_slist *to = c->slist_append(NULL, argv[1]);
    CURLcode code = send_signed(c, json, to);
    c->slist_free_all(to);
    json_decref(json);
    return code == CURLE_OK ? 0 : 1;
}
