/*
 * What follows a commit in the same round trip may take too long: what was committed is told all the
 * same, and nobody takes the late answer for one to something else.
 *
 *     test_postgres_late --store URL        (tests/store/in-scratch has one)
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "../unit/check.h"
#include "holdfast.h"

static const char *store_url;

static void sql(PGconn *conn, const char *text)
{
    PGresult *result = PQexec(conn, text);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    PQclear(result);
}

static void enqueue(struct hf *hf, const char *workflow)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    struct hf_execution x;
    struct hf_error err;
    o.workflow = workflow;
    o.run_at_ms = 1;
    if (hf_enqueue(hf, &o, &x, &err) < 0)
        fail_msg("%s", err.message);
    assert_string_equal(x.workflow, workflow);
}

/* Telling workers that sleep waits for whoever has locked their table. */
static void a_late_wake_up_is_nobodys_answer(void **state)
{
    (void)state;
    struct hf *hf;
    struct hf_error err;
    struct hf_claimed claimed[2];
    size_t n;
    char url[400];
    snprintf(url, sizeof url, "%s%cpool=1", store_url, strchr(store_url, '?') ? '&' : '?');
    assert_int_equal(hf_open(url, &hf, &err), 0);
    enqueue(hf, "before");
    PGconn *conn = PQconnectdb(store_url);
    sql(conn, "BEGIN");
    sql(conn, "LOCK TABLE holdfast.sleeper IN ACCESS EXCLUSIVE MODE");
    enqueue(hf, "meanwhile");
    sql(conn, "ROLLBACK");
    assert_int_equal(hf_claim(hf, NULL, 2, claimed, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_string_equal(claimed[0].execution.workflow, "before");
    assert_string_equal(claimed[1].execution.workflow, "meanwhile");
    PQfinish(conn);
    hf_close(hf);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(a_late_wake_up_is_nobodys_answer)};
    if (argc != 3 || strcmp(argv[1], "--store") != 0) {
        fprintf(stderr, "usage: test_postgres_late --store URL\n");
        return 2;
    }
    store_url = argv[2];
    return cmocka_run_group_tests_name("postgres-late", tests, NULL, NULL);
}
