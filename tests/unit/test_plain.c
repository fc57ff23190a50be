/* JSON read in place: whatever it accepts, a real parser reads as the same. */
#include "plain.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static struct member members[PLAIN_MAX];
static char text[1000];

static ssize_t read_text(const char *json)
{
    snprintf(text, sizeof text, "%s", json);
    return plain_read(text, strlen(text), members);
}

static void the_usual_kind_is_read(void **state)
{
    assert_int_equal(read_text("{}"), 0);
    assert_int_equal(read_text(" {\t} \r\n"), 0);
    assert_int_equal(read_text("{\"a\":\"x \xc3\xa9\",\"b\" : -12 , \"\":null,\"c\":0}"), 4);
    assert_string_equal(members[0].name, "a");
    assert_string_equal(members[0].text, "x \xc3\xa9");
    assert_true(members[1].kind == VALUE_WHOLE && members[1].whole == -12);
    assert_true(members[2].kind == VALUE_NULL && !*members[2].name);
    assert_true(members[3].kind == VALUE_WHOLE && members[3].whole == 0);
}

static void all_else_is_left_as_it_was(void **state)
{
    static const char *const others[] = {
        "",
        " ",
        "{",
        "}",
        "[]",
        "1",
        "\"a\"",
        "null",
        "{}x",
        "{},",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\":01}",
        "{\"a\":-}",
        "{\"a\":+1}",
        "{\"a\":1.5}",
        "{\"a\":1e3}",
        "{\"a\":1234567890123456}",
        "{\"a\":true}",
        "{\"a\":nul}",
        "{\"a\":nulls}",
        "{\"a\":[]}",
        "{\"a\":{}}",
        "{\"a\":\"b}",
        "{\"a\":\"\\n\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\xff\"}",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1 \"b\":1}",
        "{\"a\":null",
        "{\"a\":1",
        "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,\"k\":1,"
        "\"l\":1,\"m\":1}"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (read_text(others[i]) != -1)
            fail_msg("%s", others[i]);
        assert_string_equal(text, others[i]);
    }
}

static uint32_t dice = 1;

static uint32_t roll(uint32_t sides)
{
    dice = dice * 1664525 + 1013904223;
    return (dice >> 8) % sides;
}

static void check_against(json_t *object, ssize_t n, const char *json)
{
    if (!json_is_object(object) || json_object_size(object) != (size_t)n)
        fail_msg("%s", json);
    for (ssize_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(object, members[i].name);
        bool same =
            members[i].kind == VALUE_NULL ? json_is_null(value)
            : members[i].kind == VALUE_TEXT
                ? json_is_string(value) && strcmp(json_string_value(value), members[i].text) == 0
                : json_is_integer(value) && json_integer_value(value) == members[i].whole;
        if (!same)
            fail_msg("%s", json);
    }
}

static void what_is_accepted_is_what_a_real_parser_reads(void **state)
{
    static const char good[] = "{\"token\":\"0-a\",\"ttlMs\":30000, \"owner\":null,\"n\":-10}";
    static const char bytes[] = "{}[]\",:\\ 0123-+.eEnul\xc3\xa9\n\t\x01tf";
    int accepted = 0;
    for (int i = 0; i < 300000; i++) {
        char json[sizeof good];
        memcpy(json, good, sizeof good);
        for (uint32_t changes = roll(4); changes; changes--)
            json[roll(sizeof good - 1)] = bytes[roll(sizeof bytes - 1)];
        char *exact = malloc(strlen(json)); /* so that a sanitizer sees every byte beyond it */
        memcpy(exact, json, strlen(json));
        ssize_t n = plain_read(exact, strlen(json), members);
        json_t *object = json_loadb(json, strlen(json), JSON_REJECT_DUPLICATES, NULL);
        if (n < 0)
            assert_memory_equal(exact, json, strlen(json));
        else {
            check_against(object, n, json);
            accepted++;
        }
        json_decref(object);
        free(exact);
    }
    assert_true(accepted > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_usual_kind_is_read),
        cmocka_unit_test(all_else_is_left_as_it_was),
        cmocka_unit_test(what_is_accepted_is_what_a_real_parser_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
