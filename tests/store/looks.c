#include "looks.h"

#include <stdlib.h>
#include <string.h>

#include "history.h"
#include "times.h"

void check(const struct comparison *c, const char *what)
{
    if (c->difference[0])
        give_up(what, c->difference);
}

int name_index(const char *name)
{
    for (int i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    give_up("a name that was never used", name);
}

void check_fence(const struct hf_execution *of_model, const struct hf_execution *of_store,
                 const char *what)
{
    struct comparison c = {.fences = &h.fences[name_index(of_model->lock)]};
    compare_fences(&c, of_model->fence, of_store->fence);
    check(&c, what);
}

/* ---- looking at everything ------------------------------------------------------------------ */

struct listing {
    struct hf_status of[NAMES + 1];
    size_t n;
};

static int keep_status(void *arg, const struct hf_status *status)
{
    struct listing *l = arg;
    if (l->n <= NAMES)
        l->of[l->n++] = *status;
    return 0;
}

void check_list(bool all)
{
    struct hf_store *store = h.handles[chance(HANDLES)];
    struct hf_error error;
    struct listing l = {.n = 0};
    struct hf_listing which = {HF_LIST_ALL, "", all || chance(2) ? "" : PICK(names)};
    if (store->ops->list(store, &which, keep_status, &l, &error) < 0)
        give_up("list", error.message);
    note_pause();
    size_t listed = 0, expected = 0;
    for (size_t i = 0; i < l.n; i++) {
        int name = name_index(l.of[i].name);
        struct comparison c = {.fences = &h.fences[name],
                               .tolerance_ms = h.real_clock ? PAUSE_MS : 0};
        struct hf_request req = {.op = HF_OP_STATUS, .name = names[name]};
        struct hf_answer answer;
        model_apply(h.model, &req, &answer);
        compare_statuses(&c, &answer.holder, &l.of[i]);
        check(&c, "list");
        listed += l.of[i].state != HF_STATE_FREE;
        if (strcmp(i ? l.of[i - 1].name : which.after, l.of[i].name) >= 0)
            give_up("list", "names are not in order");
    }
    for (size_t i = 0; i < h.model->n_locks; i++)
        expected +=
            h.model->locks[i].rec.grant.held && strcmp(h.model->locks[i].rec.name, which.after) > 0;
    if (listed != expected)
        give_up("list", "a name that is held is not listed");
}

void check_totals(void)
{
    struct hf_store *store = h.handles[chance(HANDLES)];
    struct hf_error error;
    struct hf_totals of_store = {0}, of_model = model_totals(h.model);
    if (store->ops->totals(store, &of_store, &error) < 0)
        give_up("totals", error.message);
    struct comparison c = {.fences = &h.fences[0], .without_executions = !h.has_executions};
    compare_totals(&c, &of_model, &of_store);
    check(&c, "totals");
}

struct events {
    struct hf_event *of;
    size_t n, size;
};

static int keep_event(void *arg, const struct hf_event *event)
{
    struct events *e = arg;
    if (e->n < e->size)
        e->of[e->n++] = *event;
    return 0;
}

void check_events(int name)
{
    struct hf_store *store = h.handles[chance(HANDLES)];
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    struct hf_error error;
    struct events told = {.size = h.model->n_events + 1};
    told.of = calloc(told.size, sizeof *told.of);
    query.name = names[name];
    if (!told.of || store->ops->events(store, &query, keep_event, &told, &error) < 0)
        give_up("events", error.message);
    struct comparison c = {.fences = &h.fences[name], .tolerance_ms = h.real_clock ? PAUSE_MS : 0};
    size_t i = h.model->n_events, j = told.n, missing = 0;
    while (i-- > 0) {
        const struct hf_event *event = &h.model->events[i];
        if (strcmp(event->name, names[name]) != 0)
            continue;
        if (j == 0)
            missing++;
        else
            compare_events(&c, event, &told.of[--j]);
    }
    check(&c, "events, from the last one backwards");
    if (j > 0 || (missing && h.has_all_events))
        give_up("events", "there are more, or fewer, than there should be");
    free(told.of);
}

/* ---- executions ----------------------------------------------------------------------------- */

struct data {
    char bytes[2 * MODEL_DATA_MAX];
    size_t n;
    int64_t skipped;
};

static int keep_data(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    struct data *d = arg;
    if (d->n + n > sizeof d->bytes)
        give_up("data", "more than was ever kept");
    if (n)
        memcpy(d->bytes + d->n, bytes, n);
    d->n += n;
    d->skipped += skipped;
    return 0;
}

static void check_data(struct hf_store *store, const struct model_execution *x)
{
    struct hf_error error;
    struct data input = {.n = 0}, output = {.n = 0};
    if (store->ops->execution_data(store, x->x.id, HF_DATA_INPUT, keep_data, &input, &error) < 0 ||
        store->ops->execution_data(store, x->x.id, HF_DATA_OUTPUT, keep_data, &output, &error) < 0)
        give_up("data", error.message);
    if (input.n != x->input.n || memcmp(input.bytes, x->input.bytes, input.n) != 0)
        give_up(x->x.id, "its input is not what it was");
    if (output.n != x->head.n + x->tail.n || output.skipped != x->skipped ||
        memcmp(output.bytes, x->head.bytes, x->head.n) != 0 ||
        memcmp(output.bytes + x->head.n, x->tail.bytes, x->tail.n) != 0)
        give_up(x->x.id, "its output is not what it was");
}

struct execution_list {
    struct hf_store *store;
    size_t at; /* in the model, from the newest back */
    const struct hf_execution_query *query;
    int64_t n;
};

static bool is_asked_for(const struct hf_execution *x, const struct hf_execution_query *query)
{
    return (!query->workflow || strcmp(x->workflow, query->workflow) == 0) &&
           (query->state < 0 || (int)x->state == query->state);
}

static int check_execution(void *arg, const struct hf_execution *of_store)
{
    struct execution_list *l = arg;
    while (l->at > 0 && !is_asked_for(&h.model->executions[l->at - 1].x, l->query))
        l->at--;
    if (l->at == 0)
        give_up("executions", "there are more than there should be");
    const struct model_execution *x = &h.model->executions[--l->at];
    struct comparison c = {.fences = &h.fences[0],
                           .tolerance_ms = h.real_clock ? PAUSE_MS : 0,
                           .without_turns = !h.has_turns};
    compare_executions(&c, &x->x, of_store);
    check(&c, "executions");
    check_fence(&x->x, of_store, "executions");
    if (chance(20) == 0)
        check_data(l->store, x);
    l->n++;
    return 0;
}

void check_executions(bool all)
{
    struct hf_store *store = h.handles[chance(HANDLES)];
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    struct execution_list l = {.store = store, .at = h.model->n_executions, .query = &query};
    struct hf_error error;
    if (!h.has_executions)
        return;
    if (!all) {
        query.workflow = chance(2) ? PICK(names) : NULL;
        query.state = chance(2) ? -1 : (int)chance(HF_EXECUTION_STATE_COUNT);
        query.limit = 1 + chance(100);
    }
    int64_t expected = 0;
    for (size_t i = 0; i < h.model->n_executions; i++)
        expected += is_asked_for(&h.model->executions[i].x, &query);
    if (query.limit && expected > query.limit)
        expected = query.limit;
    if (store->ops->executions(store, &query, check_execution, &l, &error) < 0)
        give_up("executions", error.message);
    if (l.n != expected)
        give_up("executions", "there are fewer than there should be");
}

void check_due(void)
{
    enum { DUE_MAX = 8 };
    struct hf_store *store = h.handles[chance(HANDLES)];
    const char *workflows[] = {names[0], SHARED_WORKFLOW};
    struct hf_due due = {.workflows = workflows,
                         .n_workflows = (size_t)chance(3),
                         .wall_ms = h.model->now_ms + h.model->wall_offset_ms,
                         .verifies = chance(2),
                         .skip = (size_t)chance(2),
                         .limit = DUE_MAX};
    struct hf_execution of_model[DUE_MAX], of_store[DUE_MAX];
    struct hf_error error;
    size_t n = 0;
    if (!h.has_turns)
        return;
    if (store->ops->due(store, &due, of_store, &n, &error) < 0)
        give_up("due", error.message);
    note_pause();
    if (n != model_due(h.model, &due, of_model))
        give_up("due", "there are more, or fewer, than there should be");
    struct comparison c = {.fences = &h.fences[0], .tolerance_ms = h.real_clock ? PAUSE_MS : 0};
    for (size_t i = 0; i < n; i++)
        compare_executions(&c, &of_model[i], &of_store[i]);
    check(&c, "due");
}
