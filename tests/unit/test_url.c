/* The URLs of stores. */
#include "url.h"

#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static struct hf_error err;
static struct hf_url url;

static void paths_are_percent_decoded(void **state)
{
    static const struct {
        const char *text, *scheme, *path;
    } good[] = {
        {"sqlite:/a/b.db", "sqlite", "/a/b.db"},
        {"sqlite:rel.db", "sqlite", "rel.db"},
        {"file:/tmp/x%20y", "file", "/tmp/x y"},
        {"file:/tmp/100%25", "file", "/tmp/100%"},
        {"file:/tmp/%C3%a9", "file", "/tmp/\xc3\xa9"},
        {"file:/a%3Fb?stale=5m", "file", "/a?b"},
        {"file:", "file", ""},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(hf_url_parse(good[i].text, &url, &err), 0);
        assert_string_equal(url.scheme, good[i].scheme);
        assert_string_equal(url.path, good[i].path);
        assert_string_equal(url.whole, good[i].text);
    }
}

static void parameters_are_taken_off(void **state)
{
    assert_int_equal(hf_url_parse("file:/x?stale=5m&a%3d=b%26c&empty=", &url, &err), 0);
    assert_int_equal(url.n_params, 3);
    assert_string_equal(hf_url_param(&url, "stale"), "5m");
    assert_string_equal(hf_url_param(&url, "a="), "b&c");
    assert_string_equal(hf_url_param(&url, "empty"), "");
    assert_null(hf_url_param(&url, "stal"));
    static const char *const known[] = {"stale", "a=", "empty", NULL}, *const few[] = {"stale",
                                                                                       NULL};
    assert_int_equal(hf_url_check_params(&url, known, &err), 0);
    assert_int_equal(hf_url_check_params(&url, few, &err), -HF_INVALID);
    assert_non_null(strstr(err.message, "a="));
}

static void what_is_bad_is_refused_and_the_output_left_alone(void **state)
{
    static const char *const bad[] = {
        "nonsense",
        ":x",
        "/path/only",
        "averyveryverylongscheme:x",
        "file:/a%",
        "file:/a%4",
        "file:/a%zz",
        "file:/a%00b",
        "file:/a?b",
        "file:/a?=b",
        "file:/a?b=%g0",
        "file:/a?a=1&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1&j=1&k=1&l=1&m=1&n=1&o=1&p=1&q=1",
        "file:/a?a-key-that-is-longer-than-any-that-is-known=1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        strcpy(url.scheme, "before");
        assert_int_equal(hf_url_parse(bad[i], &url, &err), -HF_INVALID);
        assert_string_equal(url.scheme, "before");
        assert_true(strlen(err.message) > 0);
    }
}

static void a_long_url_is_refused(void **state)
{
    char text[HF_URL_MAX + 10];
    memset(text, 'x', sizeof text);
    memcpy(text, "file:", 5);
    text[HF_URL_MAX] = '\0';
    assert_int_equal(hf_url_parse(text, &url, &err), -HF_INVALID);
    text[HF_URL_MAX - 1] = '\0';
    assert_int_equal(hf_url_parse(text, &url, &err), 0);
}

static void passwords_are_never_shown(void **state)
{
    static const struct {
        const char *text, *shown;
    } urls[] = {
        {"postgres://u:secret@h:5432/db", "postgres://u:***@h:5432/db"},
        {"postgres://u:sec:ret@h/db", "postgres://u:***@h/db"},
        {"postgres://u:s@cret@h/db", "postgres://u:***@h/db"},
        {"postgres://u:s/cret@h/db", "postgres://u:***@h/db"},
        {"postgres://u@h/db", "postgres://u@h/db"},
        {"postgres://h:5432/db", "postgres://h:5432/db"},
        {"postgres://h/db?password=secret&x=1", "postgres://h/db?password=***&x=1"},
        {"postgres://h/db?sslpassword=secret&password=secret",
         "postgres://h/db?sslpassword=***&password=***"},
        {"postgres://h/db?listen=postgres%3A%2F%2Fu%3Asecret%40h2&pool=2",
         "postgres://h/db?listen=***&pool=2"},
        {"sqlite:/a/b", "sqlite:/a/b"},
    };
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        assert_int_equal(hf_url_parse(urls[i].text, &url, &err), 0);
        assert_string_equal(url.shown, urls[i].shown);
    }
}

static void without_a_url_the_environment_decides(void **state)
{
    setenv("HOLDFAST_STORE", "file:/from/env", 1);
    assert_int_equal(hf_url_parse(NULL, &url, &err), 0);
    assert_string_equal(url.path, "/from/env");
    assert_int_equal(hf_url_parse("sqlite:/named", &url, &err), 0);
    assert_string_equal(url.path, "/named");
    unsetenv("HOLDFAST_STORE");
    setenv("XDG_STATE_HOME", "/xdg", 1);
    assert_int_equal(hf_url_parse(NULL, &url, &err), 0);
    assert_string_equal(url.scheme, "sqlite");
    assert_non_null(strstr(url.path, "/holdfast/holdfast.db"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_percent_decoded),
        cmocka_unit_test(parameters_are_taken_off),
        cmocka_unit_test(what_is_bad_is_refused_and_the_output_left_alone),
        cmocka_unit_test(a_long_url_is_refused),
        cmocka_unit_test(passwords_are_never_shown),
        cmocka_unit_test(without_a_url_the_environment_decides),
    };
    return cmocka_run_group_tests_name("url", tests, NULL, NULL);
}
