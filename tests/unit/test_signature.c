/* Signatures of webhooks: those of the senders' own documents and libraries, and all that is near them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "signature.h"

/* From the documents of Standard Webhooks and GitHub; Stripe's by its own library. */
#define STANDARD_SECRET "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define STANDARD_RIGHT "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
#define STANDARD_WRONG "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
#define GITHUB_SECRET "It's a Secret to Everybody"
#define GITHUB_RIGHT "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
#define STRIPE_SECRET "whsec_test"
#define STRIPE_RIGHT "v1=35495024f4ef3f94e5a93e22221544c4b75e9a42300cd965ab81cb85cd994e91"
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

enum { STANDARD_TIME = 1614265330, STRIPE_TIME = 1700000000 };

#define BODY(text) .body = {text, sizeof(text) - 1}

static const struct signed_message standard = {.webhook_id = "msg_p5jXN8AQM9LWM0D4loKWxJek",
                                               .webhook_timestamp = "1614265330",
                                               .webhook_signature = STANDARD_RIGHT,
                                               BODY("{\"test\": 2432232314}")};
static const struct signed_message github = {.hub_signature = GITHUB_RIGHT, BODY("Hello, World!")};
static const struct signed_message stripe = {.stripe_signature = "t=1700000000," STRIPE_RIGHT,
                                             BODY("{}")};

static struct hf_error err;

static struct secrets secrets_of(const char *const *texts, size_t n)
{
    struct secrets s = {.of = calloc(n, sizeof *s.of)};
    assert_non_null(s.of);
    for (; s.n < n; s.n++)
        assert_int_equal(secret_make(&s.of[s.n], texts[s.n], strlen(texts[s.n]), &err), 0);
    return s;
}

/* Is it accepted with these secrets at this time, and as what? */
static int check(const struct signed_message *m, int64_t now_s, enum signature_scheme *scheme)
{
    static const char *const texts[] = {"another one", STANDARD_SECRET "\r\n", GITHUB_SECRET "\n",
                                        STRIPE_SECRET};
    struct secrets s = secrets_of(texts, sizeof texts / sizeof *texts);
    int r = signature_check(m, &s, now_s, scheme, &err);
    secrets_clear(&s);
    if (r < 0)
        assert_int_equal(r, -HF_UNAUTHORIZED);
    return r;
}

static void assert_accepted(const struct signed_message *m, int64_t now_s,
                            enum signature_scheme expected)
{
    enum signature_scheme scheme = (enum signature_scheme) - 1;
    assert_int_equal(check(m, now_s, &scheme), 0);
    assert_int_equal(scheme, expected);
}

static void assert_refused(const struct signed_message *m, int64_t now_s, const char *why)
{
    enum signature_scheme scheme;
    assert_int_equal(check(m, now_s, &scheme), -HF_UNAUTHORIZED);
    if (!strstr(err.message, why))
        fail_msg("'%s' does not say '%s'", err.message, why);
    /* Never what would have been right. */
    assert_null(strstr(err.message, "g0hM9SsE"));
    assert_null(strstr(err.message, "757107ea"));
    assert_null(strstr(err.message, "35495024"));
}

static void what_the_senders_document_is_accepted(void **state)
{
    assert_accepted(&standard, STANDARD_TIME, SIGNED_STANDARD);
    assert_accepted(&github, 0, SIGNED_GITHUB);
    assert_accepted(&stripe, STRIPE_TIME, SIGNED_STRIPE);
}

static void a_timestamp_is_good_for_five_minutes_either_way(void **state)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        const char *why = sign < 0 ? "ahead" : "old";
        assert_accepted(&standard, STANDARD_TIME + sign * 300, SIGNED_STANDARD);
        assert_refused(&standard, STANDARD_TIME + sign * 301, why);
        assert_accepted(&stripe, STRIPE_TIME + sign * 300, SIGNED_STRIPE);
        assert_refused(&stripe, STRIPE_TIME + sign * 301, why);
    }
}

static void whatever_is_signed_must_be_as_it_was(void **state)
{
    struct signed_message m = standard;
    m.webhook_id = "msg_other";
    assert_refused(&m, STANDARD_TIME, "wrong");
    m = standard;
    m.webhook_timestamp = "1614265331";
    assert_refused(&m, STANDARD_TIME, "wrong");
    m = standard;
    m.body.n--;
    assert_refused(&m, STANDARD_TIME, "wrong");
    m = github;
    m.body.n--;
    assert_refused(&m, 0, "wrong");
    m = stripe;
    m.body.n--;
    assert_refused(&m, STRIPE_TIME, "wrong");
    m.stripe_signature = "t=1700000001," STRIPE_RIGHT;
    assert_refused(&m, STRIPE_TIME, "wrong");
    m = (struct signed_message){BODY("{}")};
    assert_refused(&m, 0, "must be signed");
}

static void one_right_signature_among_several_is_enough(void **state)
{
    struct signed_message m = standard;
    m.webhook_signature = STANDARD_WRONG " v1a,abc v2, v1, " STANDARD_RIGHT " x";
    assert_accepted(&m, STANDARD_TIME, SIGNED_STANDARD);
    m = stripe;
    m.stripe_signature = "v0=" ZEROS ",t=1700000000,v1=" ZEROS ", " STRIPE_RIGHT ",,v1";
    assert_accepted(&m, STRIPE_TIME, SIGNED_STRIPE);
}

static void malformed_headers_are_refused(void **state)
{
    static const char *const standards[] = {"",
                                            " ",
                                            "v1",
                                            "v1,",
                                            "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                                            "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                                            "v1," STANDARD_RIGHT,
                                            STANDARD_RIGHT "A",
                                            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1A==",
                                            "v1,====",
                                            STANDARD_WRONG};
    static const char *const times[] = {"",
                                        "now",
                                        "1614265330.0",
                                        "-1614265330",
                                        " 1614265330",
                                        "16142653301614265330",
                                        "0x1614265330"};
    static const char *const githubs[] = {
        "",
        "sha256=",
        "sha1=757107ea0eb2509fc211221cce984b8a37570b6d",
        "sha256=" ZEROS,
        GITHUB_RIGHT "0",
        "SHA256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"};
    static const char *const stripes[] = {
        "",
        "t=",
        "t=1700000000",
        STRIPE_RIGHT,
        "t=," STRIPE_RIGHT,
        "t=x," STRIPE_RIGHT,
        "t=1700000000,v0=35495024f4ef3f94e5a93e22221544c4b75e9a42300cd965ab81cb85cd994e91",
        "t=1700000000,t=1700000000," STRIPE_RIGHT,
        "t=1700000000,v1=",
        "t=1700000000,v1=" ZEROS,
        "t=1700000000,v1=35495024"};
    struct signed_message m = standard;
    for (size_t i = 0; i < sizeof standards / sizeof *standards; i++) {
        m.webhook_signature = standards[i];
        assert_refused(&m, STANDARD_TIME, "");
    }
    m = standard;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        m.webhook_timestamp = times[i];
        assert_refused(&m, STANDARD_TIME, "timestamp");
    }
    m.webhook_timestamp = NULL;
    assert_refused(&m, STANDARD_TIME, "webhook-timestamp");
    m = standard;
    m.webhook_id = NULL;
    assert_refused(&m, STANDARD_TIME, "webhook-id");
    m = github;
    for (size_t i = 0; i < sizeof githubs / sizeof *githubs; i++) {
        m.hub_signature = githubs[i];
        assert_refused(&m, 0, "");
    }
    m = stripe;
    for (size_t i = 0; i < sizeof stripes / sizeof *stripes; i++) {
        m.stripe_signature = stripes[i];
        assert_refused(&m, STRIPE_TIME, "");
    }
}

/* The strictest scheme that is there decides: a second header is no way around the first. */
static void the_headers_say_which_scheme(void **state)
{
    struct signed_message m = github;
    m.webhook_signature = STANDARD_WRONG;
    m.webhook_id = "x";
    m.webhook_timestamp = "1614265330";
    assert_refused(&m, STANDARD_TIME, "wrong");
    m = github;
    m.stripe_signature = "t=1700000000,v1=" ZEROS;
    assert_refused(&m, STRIPE_TIME, "wrong");
}

static void to_hex(const uint8_t *bytes, char ret[2 * HF_SHA256_LEN + 1])
{
    for (size_t i = 0; i < HF_SHA256_LEN; i++)
        sprintf(ret + 2 * i, "%02x", bytes[i]);
}

/* Who has seen "t=TIME,v1=SIGNATURE" of a body could send TIME.BODY as GitHub would, for ever. */
static void a_signature_of_one_scheme_is_none_of_another(void **state)
{
    static const char *const bodies[] = {"1700000000.{}", "msg_1.1700000000.{}",
                                         "a.b.1700000000.{}"};
    static const char *const fine[] = {
        "{\"v\":\"1.1700000000.2\"}", "1.5", "payload=1.1700000000.2", "", ".", "a.b",
        "Hello. 1700000000.5"};
    const struct hf_bytes key = {GITHUB_SECRET, strlen(GITHUB_SECRET)};
    char header[80] = "sha256=";
    uint8_t hmac[HF_SHA256_LEN];
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct signed_message m = {.hub_signature = header, .body = {bodies[i], strlen(bodies[i])}};
        hf_hmac_sha256(key, &m.body, 1, hmac);
        to_hex(hmac, header + 7);
        assert_refused(&m, 0, "another scheme");
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct signed_message m = {.hub_signature = header, .body = {fine[i], strlen(fine[i])}};
        hf_hmac_sha256(key, &m.body, 1, hmac);
        to_hex(hmac, header + 7);
        assert_accepted(&m, 0, SIGNED_GITHUB);
    }
}

static void secrets_are_bounded_and_not_empty(void **state)
{
    static char large[SECRET_MAX + 2];
    struct secret s;
    memset(large, 'x', sizeof large);
    assert_int_equal(secret_make(&s, "\r\n\n", 3, &err), -HF_INVALID);
    assert_int_equal(secret_make(&s, "", 0, &err), -HF_INVALID);
    assert_int_equal(secret_make(&s, large, SECRET_MAX + 1, &err), -HF_INVALID);
    large[SECRET_MAX] = large[SECRET_MAX + 1] = '\n';
    assert_int_equal(secret_make(&s, large, SECRET_MAX + 2, &err), 0);
    assert_int_equal(s.n, SECRET_MAX);
    struct secrets all = {.of = malloc(sizeof s), .n = 1};
    assert_non_null(all.of);
    all.of[0] = s;
    secrets_clear(&all);
    assert_null(all.of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_senders_document_is_accepted),
        cmocka_unit_test(a_timestamp_is_good_for_five_minutes_either_way),
        cmocka_unit_test(whatever_is_signed_must_be_as_it_was),
        cmocka_unit_test(one_right_signature_among_several_is_enough),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(the_headers_say_which_scheme),
        cmocka_unit_test(a_signature_of_one_scheme_is_none_of_another),
        cmocka_unit_test(secrets_are_bounded_and_not_empty),
    };
    return cmocka_run_group_tests_name("signature", tests, NULL, NULL);
}
