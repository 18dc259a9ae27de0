/* loss_upload.c - losses that run at the service: create_custom_loss -> promise -> the loss's id.
 *
 * Thread: argument checks on the caller's, all else on the I/O thread. May touch: its operation.
 */
#include "base/json_read.h"
#include "base/str.h"
#include "client/call/poller.h"
#include "client/train/loss_priv.h"
#include "client/train/trainer.h"
#include "tinkc/train.h"
#include "wire/endpoint.h"

typedef struct loss_upload {
    tinkc_future f;
    tkc_create_custom_loss_request message; /* in the arena */
    tkc_poller poller;
    tkc_log_gate pause_gate;
} loss_upload;

static void uploaded(tkc_poller *poller)
{
    tkc_create_custom_loss_result result = { 0 };
    tinkc_error err = { 0 };
    if (!tkc_poller_result(poller, &result))
        return;
    if (!result.loss_id[0])
        tkc_fail(&err, TINKC_E_BAD_RESPONSE, "loss_create: the answer names no loss");
    poller->f->result = (void *)(uintptr_t)result.loss_id;
    tkc_op_finish(poller->f, &err);
}

static void session_ready(tkc_poller *poller)
{
    loss_upload *u = TKC_OWNER(poller, loss_upload, poller);
    u->message.session_id = u->f.client->shared.session_id;
    tkc_poller_submit(poller, TKC_EP_CREATE_CUSTOM_LOSS, &u->message, uploaded);
}

static void upload_start(tinkc_future *f)
{
    loss_upload *u = (loss_upload *)f;
    tkc_poller_begin(&u->poller, f, NULL);
    u->poller.pause_prefix = "A custom loss";
    u->poller.pause_gate = &u->pause_gate;
    tkc_poller_need(&u->poller, TKC_NEED_SESSION, session_ready);
}

static void upload_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_poller_end(&((loss_upload *)f)->poller);
    tkc_op_finish(f, why);
}

/* ---- the call ---- */

static bool check_graph(const tinkc_loss_graph *g, tinkc_error *err)
{
    if (!g || !g->nodes_json || !g->inputs || !g->inputs[0] || !g->ranks)
        return tkc_fail(err, TINKC_E_ARGUMENT, "nodes_json, inputs and ranks are required");
    if (!tkc_all_zero(g->reserved, sizeof g->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    for (size_t i = 0; g->inputs[i]; i++)
        if (g->ranks[i] < 0 || g->ranks[i] > 2)
            return tkc_fail(err, TINKC_E_ARGUMENT, "ranks[%zu]: must be 0, 1 or 2", i);
    return true;
}

static void keep_graph(loss_upload *u, const tinkc_loss_graph *g, tinkc_error *err)
{
    tkc_arena *arena = &u->f.arena;
    tkc_json j;
    size_t n = 0;
    while (g->inputs[n])
        n++;
    tkc_custom_loss_input *inputs = tkc_arena_array(arena, n, sizeof *inputs, err);
    for (size_t i = 0; inputs && i < n; i++)
        inputs[i] =
            (tkc_custom_loss_input){ tkc_arena_cstr(arena, g->inputs[i], err), g->ranks[i] };
    const char *nodes = tkc_arena_cstr(arena, g->nodes_json, err);
    u->message.name = tkc_arena_cstr(arena, g->name && g->name[0] ? g->name : "custom", err);
    u->message.inputs.data = inputs;
    u->message.inputs.len = n;
    if (tkc_failed(err))
        return;
    tkc_json_open(&j, tkc_str(nodes), arena, err); /* it becomes part of a body as it is */
    j.code = TINKC_E_ARGUMENT;
    if (tkc_json_peek(&j) != TKC_JSON_OBJECT)
        tkc_json_fail(&j, "nodes_json: an object is expected");
    else
        u->message.graph = tkc_json_skip(&j);
    (void)tkc_json_close(&j);
}

tinkc_future *tinkc_loss_create(tinkc_client *client, const tinkc_loss_graph *graph,
                                tinkc_error *err)
{
    static const tkc_op_class class = { "loss_create", "loss_id",   sizeof(loss_upload),
                                        upload_start,  upload_stop, NULL };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_graph(graph, err) || !tkc_client_check(client, err))
        return NULL;
    loss_upload *u = (loss_upload *)tkc_op_new(client, &class, err);
    if (!u)
        return NULL;
    keep_graph(u, graph, err);
    if (tkc_failed(err)) {
        tkc_future_drop(&u->f);
        return NULL;
    }
    pthread_mutex_lock(&client->shared.lock);
    u->message.custom_loss_seq_id = client->shared.next_loss_seq++;
    pthread_mutex_unlock(&client->shared.lock);
    return tkc_op_submit(&u->f);
}

/* ---- a tape ---- */

/* Runs the function on no examples; the graph lies in the loss's memory. */
static bool record(tinkc_loss *loss, tinkc_loss_fn *fn, void *user, tinkc_error *err)
{
    tinkc_error said = { 0 };
    bool ok = fn(loss, user, &said) && !said.code;
    if (ok && loss->recorder->nodes_json)
        return true;
    tkc_fail(err, TINKC_E_CALLBACK, "the loss function %s%.300s",
             ok          ? "did not end with tinkc_tape_backward"
             : said.code ? "cannot run at the service: "
                         : "failed",
             said.message);
    err->cause = said.code;
    return false;
}

tinkc_future *tinkc_loss_record(tinkc_client *client, const char *name, tinkc_loss_fn *fn,
                                void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return NULL;
    if (!fn) {
        tkc_fail(err, TINKC_E_ARGUMENT, "fn: must not be NULL");
        return NULL;
    }
    tinkc_loss_graph graph = { .name = name };
    /* Without examples: recorded is what is computed, not the values. */
    tinkc_batch *none = tinkc_batch_new(client, err);
    tinkc_loss loss = { .batch = none, .recorder = &graph };
    tkc_arena_init(&loss.arena, client->a, 0);
    tinkc_future *f =
        none && record(&loss, fn, user, err) ? tinkc_loss_create(client, &graph, err) : NULL;
    tkc_arena_free(&loss.arena);
    tinkc_batch_free(none);
    return f;
}

const char *tinkc_future_loss_id(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "loss_id", timeout_ms, err);
}
