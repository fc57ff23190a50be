/* What is not about locks: probes, the API's description, a page for people. */
#include "server.h"

extern const char openapi_json[]; /* openapi.json, by scripts/embed */

void get_health(struct request *req)
{
    hf_buf_puts(&req->answer, "{\"status\":\"ok\"}");
    request_answer(req, 200);
}

static void ready_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (req && code < 0)
        request_problem(req, -code, err->message, NULL);
    else if (req)
        get_health(req);
}

/* Ready is who can read the store; a service that stops is not. */
void get_ready(struct request *req)
{
    if (req->server->draining) {
        request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
        return;
    }
    req->job.ask = (struct hf_request){.op = HF_OP_STATUS, .name = "readyz"};
    request_ask(req, LANE_READ, ready_done);
}

void get_openapi(struct request *req)
{
    hf_buf_puts(&req->answer, openapi_json);
    request_answer(req, 200);
}

void get_root(struct request *req)
{
    hf_buf_puts(&req->answer,
                "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Holdfast</title>"
                "<h1>Holdfast " HF_VERSION
                "</h1><p>Only one execution of a thing at a time.</p><ul>"
                "<li><a href=\"/v1/locks?state=all\">Locks</a>"
                "<li><a href=\"/v1/events\">Events</a>"
                "<li><a href=\"/metrics\">Metrics</a>"
                "<li><a href=\"/openapi.json\">The API's description</a></ul></html>\n");
    req->content_type = "text/html; charset=utf-8";
    request_answer(req, 200);
}
