#include "late.h"

#include <stdio.h>
#include <string.h>

/* Per name; the oldest are forgotten. One request may end two leases, and only one of them is seen here. */
enum { KEPT_MAX = 512, ENDED_MAX = HF_ENDED_MAX / 2 };

struct kept {
    struct hf_request req;
    char token[HF_UUID_LEN + 1], owner[24], execution_id[HF_UUID_LEN + 1];
    int code;
    bool had_execution;
};

static struct {
    struct kept kept[KEPT_MAX];
    int64_t n;
    struct hf_lock_id ended[ENDED_MAX];
    int64_t n_ended;
    struct hf_grant before;
} of[NAMES];

/* ---- copies --------------------------------------------------------------------------------- */

static const char *copy_text(char *ret, size_t size, const char *text)
{
    if (text)
        snprintf(ret, size, "%s", text);
    return text ? ret : NULL;
}

static struct kept *find(int name, const struct hf_request *asked)
{
    for (int i = 0; i < KEPT_MAX; i++)
        if (asked == &of[name].kept[i].req)
            return &of[name].kept[i];
    return NULL;
}

static void keep(int name, const struct hf_request *asked, const struct hf_answer *answer)
{
    struct kept *k = &of[name].kept[of[name].n++ % KEPT_MAX];
    k->req = *asked;
    k->req.token = copy_text(k->token, sizeof k->token, asked->token);
    k->req.owner = copy_text(k->owner, sizeof k->owner, asked->owner);
    k->req.execution_id = copy_text(k->execution_id, sizeof k->execution_id, asked->execution_id);
    k->code = answer->code;
    k->had_execution = answer->has_execution;
}

/* Only what lives can be asked for: a process is identified when a request names it. */
static bool names_the_living(const struct hf_request *req)
{
    bool living = !req->n_bound;
    for (int i = 0; i < PROCESSES; i++)
        living |= req->n_bound && h.processes[i] == req->bound[0];
    return living;
}

/*
 * A fault of the product, not yet mended: a failed execution that was to happen once leaves its key to the
 * next one, and a copy of its own request is taken for that; its id is there already.
 */
static bool would_repeat_an_id(const struct hf_request *req)
{
    const struct model_execution *x =
        req->once && req->execution_id ? model_execution(h.model, req->execution_id) : NULL;
    return x && (x->x.state == HF_FAILED || x->x.state == HF_ABORTED);
}

const struct hf_request *late_request(int name)
{
    int64_t n = of[name].n < KEPT_MAX ? of[name].n : KEPT_MAX;
    const struct hf_request *req = n ? &of[name].kept[chance(n)].req : NULL;
    return req && names_the_living(req) && !would_repeat_an_id(req) ? req : NULL;
}

/* ---- what must hold ------------------------------------------------------------------------- */

static bool is_over(int name, const struct hf_lock_id *id)
{
    for (int i = 0; i < ENDED_MAX && i < of[name].n_ended; i++)
        if (hf_lock_id_equal(&of[name].ended[i], id))
            return true;
    return false;
}

static void check_token(int name, const struct hf_request *asked, int code,
                        const struct hf_grant *after)
{
    struct hf_lock_id id = hf_lock_id_of(asked->token ? asked->token : "");
    bool holds = of[name].before.held && hf_lock_id_equal(&of[name].before.id, &id);
    if (!asked->token || holds || !is_over(name, &id))
        return;
    if (after->held && hf_lock_id_equal(&after->id, &id))
        give_up("a lease that had ended", "came back to life");
    if (code == 0 && asked->op == HF_OP_EXTEND)
        give_up("a lease that had ended", "was extended");
}

/* It names the lease that its token was granted last. */
static bool has_own_fence(int name, const struct hf_request *req)
{
    struct hf_lock_id id = hf_lock_id_of(req->token);
    const struct actor *a = find_actor(name, &id);
    return a && a->fence && a->fence == req->fence;
}

static void check_release(int name, const struct kept *first, int code)
{
    const struct hf_record *rec = &model_lock(h.model, names[name])->rec;
    if (!first || first->req.op != HF_OP_RELEASE || !has_own_fence(name, &first->req) ||
        (first->req.outcome != HF_OUTCOME_NONE && !first->had_execution))
        return;
    bool is_known =
        rec->n_lost_fences && first->req.fence > rec->lost_fences[rec->n_lost_fences - 1];
    if (first->code == 0 && code < 0 && is_known)
        give_up("a good release, said again", "was told that its lease was lost");
    /* An execution that was lost may have been aborted since, which is what was said of it. */
    bool may_be_so =
        first->req.outcome == HF_OUTCOME_ABORTED || first->req.outcome == HF_OUTCOME_LOST;
    if (first->code == -HF_LOST && code != -HF_LOST && !may_be_so)
        give_up("a release of what was lost, said again", "was told that it is done");
}

static void check_holders(void)
{
    for (size_t i = 0; i < h.model->n_executions; i++) {
        const struct hf_execution *x = &h.model->executions[i].x;
        const struct hf_grant *g = &model_lock(h.model, x->lock)->rec.grant;
        if (x->state == HF_RUNNING && (!g->held || strcmp(g->execution_id, x->id) != 0))
            give_up(x->id, "it is RUNNING, and nobody holds its lock");
    }
}

void note_before(int name) { of[name].before = model_lock(h.model, names[name])->rec.grant; }

void check_after(int name, const struct hf_request *asked, const struct hf_answer *answer)
{
    const struct hf_grant *before = &of[name].before;
    const struct hf_grant *after = &model_lock(h.model, names[name])->rec.grant;
    bool same = before->held && after->held && before->fence == after->fence;
    check_token(name, asked, answer->code, after);
    const struct kept *first = find(name, asked);
    check_release(name, first, answer->code);
    check_holders();
    if (same && after->expires_ms < before->expires_ms)
        give_up("what was granted", "got shorter");
    if (before->held && !same)
        of[name].ended[of[name].n_ended++ % ENDED_MAX] = before->id;
    if (!first)
        keep(name, asked, answer);
}
