/* poller.c - submit, then poll until it is done. May touch: the client's I/O side. Must not: know what
 * is asked for. */
#include "client/call/poller.h"

#include <assert.h>

#include "base/str.h"
#include "wire/messages.h"

static void fail_poller(tkc_poller *poller, const tinkc_error *err)
{
    if (poller->failed)
        poller->failed(poller, err);
    else
        tkc_op_finish(poller->f, err);
}

void tkc_poller_begin(tkc_poller *poller, tinkc_future *f, tkc_poller_failed *failed)
{
    poller->f = f;
    poller->failed = failed;
    poller->begun_ms = tkc_now_ms(f->client->clock);
}

/* ---- the start-up, pauses ---- */

static void is_ready(tkc_ready_wait *wait, const tinkc_error *err)
{
    tkc_poller *poller = TKC_OWNER(wait, tkc_poller, inner.ready);
    if (err)
        fail_poller(poller, err);
    else
        poller->inner.step(poller);
}

void tkc_poller_need(tkc_poller *poller, int32_t need, tkc_poller_step *next)
{
    poller->inner.step = next;
    poller->inner.ready.ready = is_ready;
    poller->inner.ready.need = need;
    if (tkc_client_need(poller->f->client, &poller->inner.ready))
        next(poller);
}

static void pause_over(tkc_timer *timer)
{
    tkc_poller *poller = TKC_OWNER(timer, tkc_poller, inner.timer);
    poller->inner.step(poller);
}

void tkc_poller_pause(tkc_poller *poller, int64_t ms, tkc_poller_step *next)
{
    poller->inner.step = next;
    poller->inner.timer.fire = pause_over;
    tkc_loop_arm(poller->f->client->loop, &poller->inner.timer, ms);
}

/* ---- calls ---- */

/* The step may end the operation, so this keeps it. */
static void poller_answered(tkc_call *call)
{
    tkc_poller *poller = call->owner;
    tinkc_future *f = poller->f;
    assert(poller->inner.call == call);
    tkc_future_keep(f);
    poller->inner.call = NULL;
    poller->answer = call;
    poller->inner.step(poller);
    poller->answer = NULL;
    tkc_call_free(call);
    tkc_future_drop(f);
}

void tkc_poller_ask(tkc_poller *poller, tkc_call *call, const tinkc_error *err,
                    tkc_poller_step *next)
{
    assert(!poller->inner.call);
    if (!call) {
        fail_poller(poller, err);
        return;
    }
    poller->inner.step = next;
    poller->inner.call = call;
    call->f = tkc_op_is_done(poller->f) ? NULL : poller->f; /* what is over shows nothing more */
    call->owner = poller;
    call->done = poller_answered;
    tkc_call_start(call);
}

/* ---- results ---- */

static void promise_done(tkc_promise *p)
{
    tkc_poller *poller = p->owner;
    tinkc_error err = p->err;
    if (!err.code) {
        poller->inner.step(poller);
        return;
    }
    tkc_op_error_body(poller->f, p->error_body);
    tkc_promise_end(p);
    fail_poller(poller, &err);
}

void tkc_poller_poll(tkc_poller *poller, int32_t endpoint, tinkc_str request_id,
                     tkc_poller_step *next)
{
    tinkc_client *client = poller->f->client;
    poller->inner.step = next;
    poller->inner.endpoint = endpoint;
    poller->promise = (tkc_promise){ .client = client,
                                     .f = poller->f,
                                     .request_type = tkc_endpoint_get(endpoint)->request_type,
                                     .pause_prefix = poller->pause_prefix,
                                     .pause_gate = poller->pause_gate,
                                     .wants_protobuf = poller->wants_protobuf,
                                     .roundtrip_ms = tkc_now_ms(client->clock) - poller->begun_ms,
                                     .done = promise_done,
                                     .owner = poller };
    tkc_promise_start(&poller->promise, request_id);
}

bool tkc_poller_result(tkc_poller *poller, void *result)
{
    tinkc_error err = { 0 };
    const tinkc_bytes body = poller->promise.body;
    (void)tkc_message_decode(tkc_endpoint_get(poller->inner.endpoint)->result,
                             tkc_strn((const char *)body.data, body.len), TINKC_E_BAD_RESPONSE,
                             &poller->f->arena, result, &err);
    tkc_poller_release(poller);
    if (err.code)
        fail_poller(poller, &err);
    return !err.code;
}

void tkc_poller_release(tkc_poller *poller)
{
    tkc_promise_end(&poller->promise);
}

/* ---- both ---- */

bool tkc_submit_read(const tkc_call *call, tkc_arena *arena, tinkc_str *request_id,
                     tinkc_error *err)
{
    tkc_untyped_future answer = { 0 };
    if (!tkc_message_decode(&tkc_untyped_future_type,
                            tkc_strn((const char *)call->body.data, call->body.len),
                            TINKC_E_BAD_RESPONSE, arena, &answer, err))
        return false;
    *request_id = tkc_str(answer.request_id);
    return true;
}

static void submitted(tkc_poller *poller)
{
    tinkc_error err = poller->answer->err;
    tinkc_str id;
    if (err.code)
        tkc_op_error_body(poller->f, poller->answer->body);
    else
        (void)tkc_submit_read(poller->answer, &poller->f->arena, &id, &err);
    if (err.code) {
        fail_poller(poller, &err);
        return;
    }
    tkc_op_request_id(poller->f, id);
    tkc_poller_poll(poller, poller->inner.endpoint, id, poller->inner.then);
}

void tkc_poller_submit(tkc_poller *poller, int32_t endpoint, const void *message,
                       tkc_poller_step *next)
{
    tinkc_error err = { 0 };
    tkc_call_spec spec = tkc_call_to(endpoint);
    tkc_call *call =
        tkc_call_with(poller->f->client, &spec, tkc_endpoint_get(endpoint)->request, message, &err);
    if (call)
        tkc_op_stage(poller->f, TINKC_STAGE_SENDING);
    poller->inner.endpoint = endpoint;
    poller->inner.then = next;
    tkc_poller_ask(poller, call, &err, submitted);
}

/* ---- its end ---- */

bool tkc_poller_is_asking(const tkc_poller *poller)
{
    return poller->inner.call != NULL;
}

bool tkc_poller_is_out(const tkc_poller *poller)
{
    return tkc_call_is_out(poller->inner.call);
}

bool tkc_poller_is_polling(const tkc_poller *poller)
{
    return poller->promise.inner.running;
}

void tkc_poller_no_more(tkc_poller *poller)
{
    if (poller->inner.call)
        tkc_call_no_more(poller->inner.call);
}

bool tkc_poller_end(tkc_poller *poller)
{
    bool seen = tkc_poller_is_out(poller) || tkc_poller_is_polling(poller);
    if (!poller->f)
        return false;
    tkc_loop_disarm(poller->f->client->loop, &poller->inner.timer);
    tkc_client_need_end(poller->f->client, &poller->inner.ready);
    tkc_call_free(poller->inner.call);
    poller->inner.call = NULL;
    tkc_promise_end(&poller->promise);
    return seen;
}
