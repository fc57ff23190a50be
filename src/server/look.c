/* Looking at executions: one, its input, output and log; lists; what is due. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "executions.h"
#include "printed.h"
#include "text.h"
#include "wire.h"

enum {
    WHOLE_MAX = 3 * HF_INPUT_MAX, /* of an answer with an input in it */
    SCAN_MAX = 10000              /* executions that one page of a token with a prefix looks at */
};

/* The lane has written the answer into the call. */
static void out_done(struct job *job, int code, const struct hf_answer *answer,
                     const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (!req)
        return;
    struct execution_call *call = req->context;
    if (code < 0)
        request_fail(req, err);
    else
        execution_answer_out(req, call->content_type);
}

static void write_out(struct request *req, job_work_fn *work, const char *content_type)
{
    struct execution_call *call = req->context;
    call->content_type = content_type;
    call->out.cap = WHOLE_MAX;
    req->job.work = work;
    request_ask(req, LANE_READ, out_done);
}

/* ---- what is kept of one -------------------------------------------------------------------- */

static int read_output(struct hf *hf, const char *id, struct hf_printed *ret, struct hf_error *err)
{
    int r = hf_execution_data(hf, id, HF_DATA_OUTPUT, hf_printed_add, ret, err);
    if (r >= 0 && (ret->head.failed || ret->tail.failed))
        r = hf_fail(err, HF_NOMEM, "out of memory");
    if (r < 0)
        hf_printed_clear(ret);
    return r;
}

int execution_write_output(struct hf *hf, const char *id, struct hf_buf *out, struct hf_error *err)
{
    struct hf_printed output = HF_PRINTED;
    int r = read_output(hf, id, &output, err);
    if (r < 0)
        return r;
    hf_printed_write(out, &output);
    hf_printed_clear(&output);
    return 0;
}

/* ---- one ------------------------------------------------------------------------------------ */

static int whole_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    struct hf_printed output = HF_PRINTED;
    int r = hf_execution_data(hf, req->execution, HF_DATA_INPUT, hf_data_add, &call->input, err);
    if (r >= 0 && call->input.failed)
        r = hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0)
        r = read_output(hf, req->execution, &output, err);
    if (r < 0)
        return r;
    hf_wire_execution(&call->out, &call->x);
    hf_wire_reopen(&call->out, NULL);
    hf_wire_bytes(&call->out, "input", call->input.data, call->input.len);
    hf_buf_putc(&call->out, ',');
    hf_printed_write(&call->out, &output);
    hf_buf_putc(&call->out, '}');
    hf_buf_clear(&call->input);
    hf_printed_clear(&output);
    return 0;
}

static void put_brief(struct request *req)
{
    hf_wire_execution(&req->answer, &((struct execution_call *)req->context)->x);
    request_answer(req, 200);
}

static void put_whole(struct request *req) { write_out(req, whole_work, "application/json"); }

void get_execution(struct request *req)
{
    char brief[8] = "false";
    request_query(req, "brief", brief, sizeof brief);
    bool is_brief = strcmp(brief, "true") == 0;
    if (!is_brief && strcmp(brief, "false") != 0)
        request_problem(req, HF_INVALID, "the parameter brief must be true or false", NULL);
    else
        execution_find(req, true, is_brief ? put_brief : put_whole);
}

static int input_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    return hf_execution_data(hf, req->execution, HF_DATA_INPUT, hf_data_add, &call->out, err);
}

static void put_input(struct request *req)
{
    write_out(req, input_work, "application/octet-stream");
}

void get_input(struct request *req) { execution_find(req, false, put_input); }

static int output_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    struct hf_printed output = HF_PRINTED;
    int r = read_output(hf, req->execution, &output, err);
    if (r < 0)
        return r;
    hf_buf_printf(&call->out, "{\"id\":\"%s\",", req->execution);
    hf_printed_write(&call->out, &output);
    hf_buf_putc(&call->out, '}');
    hf_printed_clear(&output);
    return 0;
}

static void put_output(struct request *req) { write_out(req, output_work, "application/json"); }

void get_output(struct request *req) { execution_find(req, false, put_output); }

static int log_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    struct hf_printed output = HF_PRINTED;
    int r = read_output(hf, req->execution, &output, err);
    if (r < 0)
        return r;
    hf_buf_add(&call->out, output.head.data, output.head.len);
    if (output.skipped)
        hf_buf_printf(&call->out, "\n[holdfast: %lld bytes were not kept]\n",
                      (long long)output.skipped);
    hf_buf_add(&call->out, output.tail.data, output.tail.len);
    hf_printed_clear(&output);
    return 0;
}

static void put_log(struct request *req) { write_out(req, log_work, "text/plain"); }

void get_log(struct request *req) { execution_find(req, false, put_log); }

/* ---- lists ---------------------------------------------------------------------------------- */

struct listing {
    struct execution_call call; /* first: freed as one */
    char workflow[HF_NAME_MAX + 1], cursor[HF_NAME_MAX + 1], last[HF_UUID_LEN + 1];
    int64_t limit, n, seen;
    int state;
    bool more;
};

static int list_one(void *arg, const struct hf_execution *x)
{
    struct request *req = arg;
    struct listing *l = req->context;
    struct hf_buf *out = &l->call.out;
    l->more = l->n == l->limit || l->seen == SCAN_MAX;
    if (l->more)
        return 1;
    l->seen += req->may.prefix[0] != '\0';
    memcpy(l->last, x->id, sizeof l->last);
    if (strncmp(x->workflow, req->may.prefix, strlen(req->may.prefix)) != 0)
        return 0;
    if (l->n++)
        hf_buf_putc(out, ',');
    hf_wire_execution(out, x);
    return 0;
}

static int list_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct listing *l = req->context;
    struct hf_buf *out = &l->call.out;
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    query.workflow = l->workflow[0] ? l->workflow : NULL;
    query.state = l->state;
    query.limit = req->may.prefix[0] ? 0 : l->limit + 1;
    query.before = l->cursor[0] ? l->cursor : NULL;
    hf_buf_puts(out, "{\"items\":[");
    int r = hf_executions(hf, &query, list_one, req, err);
    hf_buf_printf(out, l->more ? "],\"nextCursor\":\"%s\"}" : "],\"nextCursor\":null}", l->last);
    return r;
}

static bool take_state(struct request *req, struct listing *l)
{
    char text[16];
    l->state = -1;
    if (!request_has_query(req, "state"))
        return true;
    if (request_query(req, "state", text, sizeof text))
        l->state = hf_wire_find(text, HF_WIRE_STAGE);
    if (l->state >= 0)
        return true;
    request_problem(req, HF_INVALID,
                    "the parameter state must be PENDING, RUNNING, SUCCESS, FAILED or ABORTED",
                    NULL);
    return false;
}

void get_executions(struct request *req)
{
    struct listing *l = calloc(1, sizeof *l);
    if (!l) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    execution_call_init(req, &l->call);
    request_query(req, "workflow", l->workflow, sizeof l->workflow);
    request_query(req, "cursor", l->cursor, sizeof l->cursor);
    if (l->workflow[0] && !execution_is_for(req, l->workflow))
        return;
    if (l->cursor[0] && !body_is_token(l->cursor))
        request_problem(req, HF_INVALID, "the parameter cursor must be nextCursor of a page", NULL);
    else if (take_state(req, l) && query_int(req, "limit", 1, PAGE_MAX, PAGE_DEFAULT, &l->limit)) {
        l->call.content_type = "application/json";
        l->call.out.cap = ANSWER_MAX;
        req->job.work = list_work;
        request_ask(req, LANE_CHORE, out_done);
    }
}

/* ---- keys ----------------------------------------------------------------------------------- */

struct key_query {
    struct execution_call call; /* first */
    char workflow[HF_NAME_MAX + 1], from[HF_KEY_MAX + 1], to[HF_KEY_MAX + 1];
};

static int key_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct key_query *q = request_of(job)->context;
    char key[HF_KEY_MAX + 1];
    int r = hf_last_key(hf, q->workflow, q->from, q->to, key, err);
    if (r < 0)
        return r;
    hf_buf_puts(&q->call.out, "{\"key\":");
    hf_wire_string(&q->call.out, key, strlen(key));
    hf_buf_putc(&q->call.out, '}');
    return 0;
}

void get_last_key(struct request *req)
{
    struct key_query *q = calloc(1, sizeof *q);
    if (!q) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    execution_call_init(req, &q->call);
    if (!request_query(req, "workflow", q->workflow, sizeof q->workflow) ||
        !request_query(req, "from", q->from, sizeof q->from) ||
        !request_query(req, "to", q->to, sizeof q->to) || hf_check_name(q->workflow, NULL) < 0)
        request_problem(req, HF_INVALID, "the parameters workflow, from and to are needed", NULL);
    else if (execution_is_for(req, q->workflow))
        write_out(req, key_work, "application/json");
}

/* ---- what is due ---------------------------------------------------------------------------- */

static int due_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    const struct fields *f = &call->fields;
    size_t max = f->max ? (size_t)f->max : CLAIM_MAX, n = 0;
    struct hf_execution *found = calloc(max, sizeof *found);
    struct hf_claim_options o = HF_CLAIM_INIT;
    const char *workflows[WORKFLOWS_MAX];
    if (!found)
        return hf_fail(err, HF_NOMEM, "out of memory");
    o.workflows = workflows;
    o.n_workflows = execution_workflows(f->workflows, workflows);
    o.verifies = f->verifies;
    int r = hf_due(hf, &o, (size_t)f->skip, max, found, &n, err);
    hf_buf_puts(&call->out, "{\"items\":[");
    for (size_t i = 0; r >= 0 && i < n; i++) {
        if (i)
            hf_buf_putc(&call->out, ',');
        hf_wire_execution(&call->out, &found[i]);
    }
    hf_buf_puts(&call->out, "]}");
    free(found);
    return r;
}

void post_due(struct request *req)
{
    struct execution_call *call = execution_call(req);
    if (!call)
        request_problem(req, HF_NOMEM, "out of memory", NULL);
    else if (body_read(req, FIELD(WORKFLOWS) | FIELD(MAX) | FIELD(SKIP) | FIELD(VERIFIES),
                       &call->fields) &&
             execution_workflows_are_for(req, call->fields.workflows))
        write_out(req, due_work, "application/json");
}
