/* Where a webhook's body has its key. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "workflows.h"

static struct hf_error err;
static char key[HF_KEY_MAX + 1];

static int find(const char *path, const char *body)
{
    char *copy = strdup(path);
    struct hf_workflow w = {.name = "hook", .key_path = copy};
    int r = hf_workflow_key(&w, body, strlen(body), key, &err);
    free(copy);
    return r;
}

static void assert_key(const char *path, const char *body, const char *expected)
{
    assert_int_equal(hf_key_path_check(path, &err), 0);
    assert_int_equal(find(path, body), 0);
    assert_string_equal(key, expected);
}

static void a_path_leads_to_a_text_or_a_number(void **state)
{
    assert_key("$.id", "{\"id\":\"evt_1\"}", "evt_1");
    assert_key("$.id", "{\"id\":-42}", "-42");
    assert_key("$.a.b[1].c", "{\"a\":{\"b\":[0,{\"c\":\"x\"}]}}", "x");
    assert_key("$[0][1]", "[[1,2]]", "2");
    assert_key("$[\"a.b\"]['c d']", "{\"a.b\":{\"c d\":\"x\"}}", "x");
    assert_key("$.grün", "{\"grün\":\"ja\"}", "ja");
    assert_key("$.id", "{\"id\":\"x\",\"other\":\"\\u0000\"}", "x");
}

static void what_is_not_there_is_no_key(void **state)
{
    assert_key("$.id", "{}", "");
    assert_key("$.id", "[]", "");
    assert_key("$.id", "7", "");
    assert_key("$.id.x", "{\"id\":\"evt_1\"}", "");
    assert_key("$[1]", "[1]", "");
    assert_key("$[18446744073709551615]", "[1]", "");
    assert_key("$.id", "{\"id\":null}", "");
    assert_key("$.id", "{\"id\":{}}", "");
    assert_key("$.id", "{\"id\":1.5}", "");
    assert_key("$.id", "{\"id\":true}", "");
    assert_key("$.id", "{\"id\":\"\"}", "");
    struct hf_workflow without = {.name = "hook"};
    assert_int_equal(hf_workflow_key(&without, "no json", 7, key, &err), 0);
    assert_string_equal(key, "");
}

static void what_can_not_be_a_key_is_refused(void **state)
{
    char body[400];
    snprintf(body, sizeof body, "{\"id\":\"%0200d\"}", 7);
    assert_int_equal(find("$.id", body), 0);
    assert_int_equal(strlen(key), 200);
    snprintf(body, sizeof body, "{\"id\":\"%0201d\"}", 7);
    assert_int_equal(find("$.id", body), -HF_INVALID);
    assert_int_equal(find("$.id", "{\"id\":\"a\\u0000b\"}"), -HF_INVALID);
    assert_int_equal(find("$.id", "{\"id\":\"a\\nb\"}"), -HF_INVALID);
    assert_int_equal(find("$.id", "{\"id\":"), -HF_INVALID);
    assert_int_equal(find("$.id", ""), -HF_INVALID);
    assert_int_equal(find("$.id", "{\"id\":1,\"id\":2}"), -HF_INVALID);
    assert_int_equal(find("$.id", "\xff"), -HF_INVALID);
}

static void deep_bodies_are_refused_and_do_no_harm(void **state)
{
    enum { DEEP = 1 << 20 };
    struct hf_workflow w = {.name = "hook"};
    char *body = malloc(DEEP), path[] = "$.id";
    assert_non_null(body);
    w.key_path = path;
    memset(body, '[', DEEP);
    assert_int_equal(hf_workflow_key(&w, body, DEEP, key, &err), -HF_INVALID);
    for (size_t i = 0; i + 5 <= DEEP; i += 5)
        memcpy(body + i, "{\"a\":", 5);
    assert_int_equal(hf_workflow_key(&w, body, DEEP, key, &err), -HF_INVALID);
    free(body);
}

static void other_paths_are_none(void **state)
{
    static const char *const bad[] = {
        "",    "$",    "id",    ".id",   "$id",     "$.",    "$..id",  "$.a.",
        "$[",  "$[]",  "$[x]",  "$[-1]", "$[1",     "$[1]x", "$[\"a]", "$['a'",
        "$.*", "$[*]", "$.a b", "$ .a",  "$.a['b]", "$.a]",  "$[1 ]",  "$[99999999999999999999]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hf_key_path_check(bad[i], &err) >= 0)
            fail_msg("%s was taken for a path", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_leads_to_a_text_or_a_number),
        cmocka_unit_test(what_is_not_there_is_no_key),
        cmocka_unit_test(what_can_not_be_a_key_is_refused),
        cmocka_unit_test(deep_bodies_are_refused_and_do_no_harm),
        cmocka_unit_test(other_paths_are_none),
    };
    return cmocka_run_group_tests_name("key path", tests, NULL, NULL);
}
