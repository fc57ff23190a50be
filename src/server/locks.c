/* The routes of single locks, the list and the sweep. */
#include "locks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "body.h"
#include "text.h"
#include "wire.h"

/* ---- answers -------------------------------------------------------------------------------- */

void describe_client(const struct request *req, char *ret, size_t size)
{
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof from;
    char text[INET6_ADDRSTRLEN] = "a local client";
    getpeername(req->connection->fd, (struct sockaddr *)&from, &length);
    if (from.ss_family == AF_INET)
        inet_ntop(AF_INET, &((struct sockaddr_in *)&from)->sin_addr, text, sizeof text);
    else if (from.ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&from)->sin6_addr, text, sizeof text);
    snprintf(ret, size, "%s", text);
}

void announce_takeover(const struct request *req, const struct hf_lease *lease)
{
    log_takeover(lease, req->id);
}

void answer_lease(struct request *req, const struct hf_lease *lease, bool is_new)
{
    metrics_lease(req->server, lease, is_new);
    if (is_new)
        announce_takeover(req, lease);
    hf_wire_lease(&req->answer, lease);
    request_answer(req, 200);
}

void answer_refusal(struct request *req, const struct hf_request *ask,
                    const struct hf_answer *answer)
{
    struct hf_error err;
    hf_refusal(ask, answer, &err);
    request_fail(req, &err);
}

/* The request that a job belongs to, unless the client has gone, the store failed or it refused. */
static struct request *take(struct job *job, int code, const struct hf_answer *answer,
                            const struct hf_error *err)
{
    enum hf_op op = job->ask.op;
    struct request *req = request_back(job);
    if (!req)
        return NULL;
    if (code < 0) {
        metrics_store_error(req->server, op);
        request_problem(req, -code, err->message, NULL);
        return NULL;
    }
    if (answer->code < 0) {
        answer_refusal(req, &req->job.ask, answer);
        return NULL;
    }
    return req;
}

/* ---- single locks --------------------------------------------------------------------------- */

static void status_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = take(job, code, answer, err);
    if (!req)
        return;
    hf_wire_status(&req->answer, &answer->holder);
    request_answer(req, 200);
}

void get_lock(struct request *req)
{
    req->job.ask = (struct hf_request){.op = HF_OP_STATUS, .name = req->name};
    request_ask(req, LANE_READ, status_done);
}

void post_acquire(struct request *req)
{
    struct fields f;
    if (body_read(req,
                  FIELD(TOKEN) | FIELD(OWNER) | FIELD(NOTE) | FIELD(TTL) | FIELD(WAIT) |
                      FIELD(PRIORITY),
                  &f))
        waits_begin(req, &f);
}

static void extend_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = take(job, code, answer, err);
    if (req)
        answer_lease(req, &answer->lease, false);
}

void post_extend(struct request *req)
{
    struct fields f;
    if (!body_read(req, FIELD(TOKEN) | FIELD(FENCE) | FIELD(TTL), &f) ||
        !body_require(req, f.token, "token"))
        return;
    req->job.ask = (struct hf_request){.op = HF_OP_EXTEND,
                                       .name = req->name,
                                       .token = f.token,
                                       .fence = f.fence > 0 ? f.fence : 0,
                                       .ttl_ms = f.ttl_ms > 0 ? f.ttl_ms : 0,
                                       .durable = true};
    request_ask(req, LANE_WRITE, extend_done);
}

static void release_done(struct job *job, int code, const struct hf_answer *answer,
                         const struct hf_error *err)
{
    struct request *req = take(job, code, answer, err);
    if (!req)
        return;
    metrics_released(req->server, req->job.ask.token);
    hf_buf_puts(&req->answer, "{\"name\":");
    hf_wire_string(&req->answer, req->name, strlen(req->name));
    hf_buf_puts(&req->answer, ",\"released\":true}");
    request_answer(req, 200);
}

void post_release(struct request *req)
{
    struct fields f;
    if (!body_read(req, FIELD(TOKEN) | FIELD(FENCE), &f) || !body_require(req, f.token, "token"))
        return;
    req->job.ask = (struct hf_request){.op = HF_OP_RELEASE,
                                       .name = req->name,
                                       .token = f.token,
                                       .fence = f.fence > 0 ? f.fence : 0,
                                       .durable = true};
    request_ask(req, LANE_WRITE, release_done);
}

/* Force and guard: done, with the name and the fence. */
static void fence_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    struct request *req = take(job, code, answer, err);
    if (!req)
        return;
    hf_buf_puts(&req->answer, "{\"name\":");
    hf_wire_string(&req->answer, req->name, strlen(req->name));
    hf_buf_printf(&req->answer, ",\"fence\":%lld,\"%s\":true}", (long long)req->job.ask.fence,
                  req->job.ask.op == HF_OP_FORCE ? "freed" : "current");
    request_answer(req, 200);
}

void post_force(struct request *req)
{
    struct fields f;
    if (!body_read(req, FIELD(FENCE) | FIELD(REASON), &f) ||
        !body_require(req, f.fence >= 0, "fence"))
        return;
    char client[64], by[HF_OWNER_MAX + 1];
    describe_client(req, client, sizeof client);
    snprintf(by, sizeof by, "%s through the service", client);
    if (!req->json)
        req->json = json_object();
    json_object_set_new(req->json, "by", json_string(by)); /* lives as long as the job */
    req->job.ask = (struct hf_request){.op = HF_OP_FORCE,
                                       .name = req->name,
                                       .fence = f.fence,
                                       .reason = f.reason,
                                       .owner = json_string_value(json_object_get(req->json, "by")),
                                       .durable = true};
    request_ask(req, LANE_WRITE, fence_done);
}

void post_guard(struct request *req)
{
    struct fields f;
    if (!body_read(req, FIELD(FENCE), &f) || !body_require(req, f.fence >= 0, "fence"))
        return;
    req->job.ask = (struct hf_request){.op = HF_OP_GUARD, .name = req->name, .fence = f.fence};
    request_ask(req, LANE_READ, fence_done);
}

/* ---- the list ------------------------------------------------------------------------------- */

struct listing {
    enum hf_list_filter filter;
    char prefix[HF_NAME_MAX + 1],
        after[HF_NAME_MAX + 1]; /* after: the last name of the page before */
    char last[HF_NAME_MAX + 1];
    int64_t limit, n;
    bool more;
    struct hf_buf items;
};

static void listing_forget(struct request *req)
{
    struct listing *l = req->context;
    if (req->working || !l)
        return;
    hf_buf_clear(&l->items);
    free(l);
    req->context = NULL;
}

static int list_one(void *arg, const struct hf_status *status)
{
    struct listing *l = arg;
    l->more = l->n == l->limit;
    if (l->more)
        return 1;
    if (l->n++)
        hf_buf_putc(&l->items, ',');
    hf_wire_status(&l->items, status);
    strcpy(l->last, status->name);
    return 0;
}

static int list_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct listing *l = req->context;
    return hf_list_after(hf, l->filter, l->prefix, l->after, list_one, l, err);
}

static void list_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    (void)answer;
    struct request *req = request_of(job);
    struct listing *l = req->context;
    if (!req->gone && code >= 0) {
        hf_buf_puts(&req->answer, "{\"items\":[");
        hf_buf_add(&req->answer, l->items.data, l->items.len);
        hf_buf_puts(&req->answer, "],\"nextCursor\":");
        if (l->more)
            hf_wire_string(&req->answer, l->last, strlen(l->last));
        else
            hf_buf_puts(&req->answer, "null");
        hf_buf_putc(&req->answer, '}');
    }
    req->working = false;
    listing_forget(req);
    if (!(req = request_back(job)))
        return;
    if (code < 0)
        request_problem(req, -code, err->message, NULL);
    else
        request_answer(req, 200);
}

/* A token's prefix narrows what is asked for; two that do not fit together have nothing in common. */
static bool narrow_prefix(struct request *req, char *prefix)
{
    const char *own = req->may.prefix;
    if (strncmp(prefix, own, strlen(own)) == 0)
        return true;
    if (strncmp(own, prefix, strlen(prefix)) == 0) {
        strcpy(prefix, own);
        return true;
    }
    request_problem(req, HF_FORBIDDEN, "this token is for names with another prefix", NULL);
    return false;
}

void get_locks(struct request *req)
{
    static const char *const states[] = {
        [HF_LIST_HELD] = "held", [HF_LIST_STALE] = "stale", [HF_LIST_ALL] = "all"};
    char state[16] = "held";
    struct listing *l = calloc(1, sizeof *l);
    if (!l) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    req->context = l;
    req->forget = listing_forget;
    l->items.cap = ANSWER_MAX;
    request_query(req, "state", state, sizeof state);
    request_query(req, "prefix", l->prefix, sizeof l->prefix);
    request_query(req, "cursor", l->after, sizeof l->after);
    int filter = 0;
    while (filter < 3 && strcmp(states[filter], state) != 0)
        filter++;
    l->filter = (enum hf_list_filter)filter;
    if (filter == 3)
        request_problem(req, HF_INVALID, "the parameter state must be held, stale or all", NULL);
    else if (query_int(req, "limit", 1, PAGE_MAX, PAGE_DEFAULT, &l->limit) &&
             narrow_prefix(req, l->prefix)) {
        req->job.work = list_work;
        request_ask(req, LANE_CHORE, list_done);
    }
}

/* ---- sweep ---------------------------------------------------------------------------------- */

static int sweep_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    return hf_sweep(hf, false, log_swept, NULL, &job->ask.fence, err);
}

static void sweep_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    (void)answer;
    struct request *req = request_back(job);
    if (!req)
        return;
    if (code < 0) {
        request_problem(req, -code, err->message, NULL);
        return;
    }
    hf_buf_printf(&req->answer, "{\"freed\":%lld}", (long long)req->job.ask.fence);
    request_answer(req, 200);
}

void post_sweep(struct request *req)
{
    struct fields f;
    if (!body_read(req, 0, &f))
        return;
    if (*req->may.prefix) {
        request_problem(req, HF_FORBIDDEN, "a token with a prefix can't sweep all names", NULL);
        return;
    }
    req->job.work = sweep_work;
    request_ask(req, LANE_CHORE, sweep_done);
}
