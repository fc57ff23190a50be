/*
 * libpq, loaded when the first postgres store is opened: who uses another store neither needs nor
 * pays for it. Its functions are called through one table, by their own names:
 *
 *     if (hf_pq_load(err) < 0) ...
 *     hf_pq.PQfinish(conn);
 */
#ifndef HF_STORE_POSTGRES_LIBPQ_H
#define HF_STORE_POSTGRES_LIBPQ_H

#include <libpq-fe.h>

#include "holdfast.h"

#define HF_PQ_FUNCTIONS(X)                                                                         \
    X(PQbackendPID)                                                                                \
    X(PQclear)                                                                                     \
    X(PQconninfoFree)                                                                              \
    X(PQconninfoParse)                                                                             \
    X(PQconnectPoll)                                                                               \
    X(PQconnectStartParams)                                                                        \
    X(PQconnectionNeedsPassword)                                                                   \
    X(PQconsumeInput)                                                                              \
    X(PQenterPipelineMode)                                                                         \
    X(PQerrorMessage)                                                                              \
    X(PQexitPipelineMode)                                                                          \
    X(PQfinish)                                                                                    \
    X(PQflush)                                                                                     \
    X(PQfreemem)                                                                                   \
    X(PQgetResult)                                                                                 \
    X(PQgetisnull)                                                                                 \
    X(PQgetlength)                                                                                 \
    X(PQgetvalue)                                                                                  \
    X(PQisBusy)                                                                                    \
    X(PQnfields)                                                                                   \
    X(PQnotifies)                                                                                  \
    X(PQntuples)                                                                                   \
    X(PQpipelineSync)                                                                              \
    X(PQresultErrorField)                                                                          \
    X(PQresultStatus)                                                                              \
    X(PQsendPrepare)                                                                               \
    X(PQsendQuery)                                                                                 \
    X(PQsendQueryParams)                                                                           \
    X(PQsendQueryPrepared)                                                                         \
    X(PQsetErrorVerbosity)                                                                         \
    X(PQsetNoticeProcessor)                                                                        \
    X(PQsetnonblocking)                                                                            \
    X(PQsocket)                                                                                    \
    X(PQstatus)

struct hf_pq {
#define X(name) __typeof__(&(name)) name;
    HF_PQ_FUNCTIONS(X)
#undef X
};
extern struct hf_pq hf_pq;

/* Load it once; every later call answers the same. */
int hf_pq_load(struct hf_error *err);

#endif
