/* A store that is new for each test: a path of its own, or the same database without its schema. */
#ifndef HF_TESTS_FRESH_H
#define HF_TESTS_FRESH_H

#include <libpq-fe.h>
#include <stdio.h>

#include "../unit/check.h"
#include "holdfast.h"

enum { FRESH_URL_MAX = 300 };

static inline void drop_schema(const char *store_url)
{
    PGconn *conn = PQconnectdb(store_url);
    PGresult *result = PQexec(conn, "SET client_min_messages = error;"
                                    "DROP SCHEMA IF EXISTS holdfast CASCADE");
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s", PQerrorMessage(conn));
    PQclear(result);
    PQfinish(conn);
}

/* As a set-up of cmocka returns it: 0, or -1 where it can't be opened. */
static inline int open_fresh(const char *store_url, char ret_url[FRESH_URL_MAX], struct hf **ret)
{
    static int stores;
    struct hf_error err;
    bool is_postgres = strncmp(store_url, "postgres:", 9) == 0;
    if (is_postgres)
        drop_schema(store_url);
    snprintf(ret_url, FRESH_URL_MAX, is_postgres ? "%s" : "%s%d", store_url, ++stores);
    if (hf_open(ret_url, ret, &err) < 0) {
        print_error("%s: %s\n", ret_url, err.message);
        return -1;
    }
    return 0;
}

#endif
