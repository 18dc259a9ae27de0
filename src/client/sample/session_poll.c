/* session_poll.c - retrieve_futures: one poll that says which samples of a sampling session have ended.
 *
 *     idle -> ask -> answer: each request it names is made to fetch its result
 *      ^       ^        |  requests are left: again
 *      |       +--------+  a failure: again after a pause (poll_pace.c), or every request polls by itself
 *      +----------------+  nobody is left
 *
 * Nothing depends on the service naming a request: one that has not been named for a minute asks for
 * its result by itself, and then again after twice the time. That finds what a restarted service has
 * forgotten, and what it should have named and did not; the next poll then begins at the start of the
 * list. An id that nobody waits for (cancelled, or another client's) is passed over.
 *
 * Requests are woken through their timers, never from inside an answer: what they do may end operations
 * and free the sampler that this is part of.
 *
 * May touch: the client's I/O side. Must not: fetch results, complete a future.
 */
#include "client/sample/session_poll.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "wire/messages.h"

enum {
    CHECK_MS = 60 * 1000, /* twice what services hold a poll for */
    CHECK_MAX_MS = 600 * 1000,
    MOST_RETRIEVED = 4096, /* kept; more are not reported, and expire at the service */
    RETRIEVED_EACH = 512   /* in one poll */
};

void tkc_session_poll_init(tkc_session_poll *s, tinkc_client *client, const char *session_id)
{
    *s = (tkc_session_poll){ .client = client, .session_id = session_id };
    tkc_map_init(&s->waits, client->a);
}

/* Forgets the first n. */
static void drop_retrieved(tkc_session_poll *s, size_t n)
{
    assert(n <= s->retrieved.n);
    for (size_t i = 0; i < n; i++)
        tkc_release_str(s->client->a, s->retrieved.ids[i]);
    s->retrieved.n -= n;
    if (s->retrieved.n)
        memmove((void *)s->retrieved.ids, (void *)(s->retrieved.ids + n),
                s->retrieved.n * sizeof *s->retrieved.ids);
    s->retrieved.sent = 0;
}

void tkc_session_poll_free(tkc_session_poll *s)
{
    assert(!s->waits.n_live && !s->call && !s->timer.armed);
    drop_retrieved(s, s->retrieved.n);
    tkc_release(s->client->a, (void *)s->retrieved.ids,
                s->retrieved.cap * sizeof *s->retrieved.ids);
    tkc_map_free(&s->waits);
}

bool tkc_session_poll_is_used(const tkc_session_poll *s)
{
    return !s->refused && s->client->io.flags.sample_use_retrieve_futures.value;
}

/* ---- requests that wait ---- */

static void rest_if_idle(tkc_session_poll *s)
{
    if (s->waits.n_live)
        return;
    tkc_call_free(s->call);
    s->call = NULL;
    s->retrieved.sent = 0;
    tkc_loop_disarm(s->client->loop, &s->timer);
}

static void check_after(tkc_session_wait *w, int64_t ms)
{
    tinkc_client *client = w->poll->client;
    w->check_ms = ms < CHECK_MAX_MS ? ms : CHECK_MAX_MS;
    w->asking = false;
    /* Less up to a quarter, so that samples sent together do not look together. */
    tkc_loop_arm(client->loop, &w->check,
                 w->check_ms - (int64_t)((double)w->check_ms / 4 * tkc_random_unit(client->clock)));
}

static void check_fired(tkc_timer *timer)
{
    tkc_session_wait *w = TKC_OWNER(timer, tkc_session_wait, check);
    w->asking = true;
    w->ask(w);
}

/* Off the list; it asks for its result, if it is not doing so already. */
static void release(tkc_session_poll *s, tkc_session_wait *w, int64_t size)
{
    (void)tkc_map_remove(&s->waits, tkc_str(w->request_id));
    w->poll = NULL;
    w->size = size;
    if (!w->asking)
        tkc_loop_arm(s->client->loop, &w->check, 0);
}

static void release_all(tkc_session_poll *s)
{
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&s->waits, &at));)
        release(s, e->value, 0);
    rest_if_idle(s);
}

/* ---- answers ---- */

static void ask_after(tkc_session_poll *s, int64_t ms)
{
    assert(s->waits.n_live && !s->call);
    tkc_loop_arm(s->client->loop, &s->timer, ms);
}

/* Shows all that wait how the last poll ended. */
static void tell_waiting(tkc_session_poll *s, const tinkc_error *err, int64_t wait_ms)
{
    const tkc_map_entry *e;
    if (!err->code && !s->in_trouble)
        return;
    s->in_trouble = err->code != 0;
    for (size_t at = 0; (e = tkc_map_next(&s->waits, &at));) {
        tinkc_future *f = ((tkc_session_wait *)e->value)->f;
        tkc_op_exchanged(f, err);
        if (err->code)
            tkc_op_status(f, "results cannot be asked for: %.40s, next try in %.1f s", err->message,
                          (double)wait_ms / 1000.0);
    }
}

/* For good: samples of this sampler poll one by one from now on. */
static void give_up_session_poll(tkc_session_poll *s, const tinkc_error *err)
{
    s->refused = true;
    if (err->code != TINKC_E_CLOSED)
        tkc_client_log(
            s->client, TINKC_LOG_INFO,
            "sampler %.100s: the service refuses retrieve_futures (%.100s): each sample is "
            "polled by itself",
            s->session_id, err->message);
    release_all(s);
}

static void on_failure(tkc_session_poll *s, const tkc_call *call)
{
    tinkc_error err = call->err;
    if (err.code == TINKC_E_REQUEST_TIMEOUT) { /* nothing has ended: not a failure */
        static const tinkc_error fine;
        s->pace.failures = s->pace.bad_requests = 0;
        tell_waiting(s, &fine, 0);
        ask_after(s, tkc_poll_soon_ms(&s->pace, s->client));
        return;
    }
    int64_t wait = tkc_poll_retry_ms(&s->pace, s->client, call, NULL);
    if (wait == TKC_POLL_NO_MORE) {
        give_up_session_poll(s, &err);
        return;
    }
    tell_waiting(s, &err, wait);
    tkc_emit_about(s->client, NULL, TKC_EP_RETRIEVE_FUTURES,
                   &(tinkc_event){ .kind = TINKC_EVENT_RETRY,
                                   .http_status = err.http_status,
                                   .attempt = s->iteration,
                                   .wait_ms = wait,
                                   .left_ms = TINKC_FOREVER,
                                   .text = err.message });
    ask_after(s, wait);
}

/* How many of those that wait it names. */
static size_t take_names(tkc_session_poll *s, const tkc_retrieve_futures_response *answer)
{
    size_t named = 0;
    for (size_t i = 0; i < answer->completions.len; i++) {
        const tkc_future_completion *c = &answer->completions.data[i];
        tkc_session_wait *w = tkc_map_get(&s->waits, tkc_str(c->request_id));
        if (!w)
            continue;
        int64_t size = c->response_payload_uncompressed_size.value;
        release(s, w, size > 0 ? size : 0);
        named++;
    }
    return named;
}

static void on_answer(tkc_session_poll *s, const tkc_call *call)
{
    static const tinkc_error fine;
    tkc_retrieve_futures_response answer = { 0 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, s->client->a, 1 << 26);
    if (tkc_message_decode(&tkc_retrieve_futures_response_type,
                           tkc_strn((const char *)call->body.data, call->body.len),
                           TINKC_E_BAD_RESPONSE, &arena, &answer, &err)) {
        s->pace.failures = s->pace.bad_requests = 0;
        s->cursor = answer.cursor;
        /* Only now: a poll that failed may not have reached the service. */
        drop_retrieved(s, s->retrieved.sent);
        tell_waiting(s, &fine, 0);
        bool progress = take_names(s, &answer) > 0;
        int64_t wait = progress ? 0 : tkc_poll_soon_ms(&s->pace, s->client);
        if (s->waits.n_live)
            ask_after(s, wait);
    } else {
        give_up_session_poll(s, &err);
    }
    tkc_arena_free(&arena);
}

static void session_answered(tkc_call *call)
{
    tkc_session_poll *s = call->owner;
    assert(s->call == call && s->waits.n_live && !s->timer.armed);
    s->call = NULL;
    if (call->err.code)
        on_failure(s, call);
    else
        on_answer(s, call);
    tkc_call_free(call);
}

/* ---- asking ---- */

static tkc_call *new_poll(tkc_session_poll *s, tinkc_error *err)
{
    const char *ids[RETRIEVED_EACH + 1];
    size_t n = s->retrieved.n < RETRIEVED_EACH ? s->retrieved.n : RETRIEVED_EACH;
    for (size_t i = 0; i < n; i++)
        ids[i] = s->retrieved.ids[i];
    ids[n] = NULL;
    if (s->rewind)
        s->cursor = 0;
    s->rewind = false;
    s->retrieved.sent = n;
    tkc_retrieve_futures_request request = { .target = { .sampling_session_id = s->session_id,
                                                         .cloned_sampler_id = s->clone },
                                             .prev_cursor = s->cursor,
                                             .retrieved_request_ids = ids };
    tkc_call_spec spec = tkc_call_to(TKC_EP_RETRIEVE_FUTURES);
    return tkc_call_with(s->client, &spec, &tkc_retrieve_futures_request_type, &request, err);
}

static void ask_completions(tkc_timer *timer)
{
    tkc_session_poll *s = TKC_OWNER(timer, tkc_session_poll, timer);
    tinkc_error err = { 0 };
    assert(!s->call && s->waits.n_live);
    if (!tkc_session_poll_is_used(s)) { /* the settings have changed */
        release_all(s);
        return;
    }
    s->iteration++;
    tkc_poll_begins(&s->pace, s->client);
    s->call = new_poll(s, &err);
    if (!s->call) {
        give_up_session_poll(s, &err);
        return;
    }
    s->call->owner = s;
    s->call->done = session_answered;
    tkc_call_start(s->call);
}

bool tkc_session_wait_start(tkc_session_poll *s, tkc_session_wait *w, const char *request_id)
{
    tinkc_error ignored = { 0 };
    tinkc_str id = tkc_str(request_id);
    assert(tkc_loop_is_current(s->client->loop) && w->ask && !w->poll);
    if (!tkc_session_poll_is_used(s) || tkc_map_has(&s->waits, id) ||
        !tkc_map_set(&s->waits, id, w, NULL, &ignored))
        return false;
    w->poll = s;
    w->request_id = request_id;
    w->size = 0;
    w->check.fire = check_fired;
    check_after(w, CHECK_MS);
    s->timer.fire = ask_completions;
    if (!s->call && !s->timer.armed)
        ask_after(s, 0);
    return true;
}

bool tkc_session_wait_more(tkc_session_wait *w)
{
    if (!w->poll)
        return false;
    check_after(w, w->check_ms * 2);
    return true;
}

void tkc_session_wait_end(tkc_session_wait *w, bool found)
{
    tkc_session_poll *s = w->poll;
    /* The service had it and did not name it: its list is read from the start. */
    if (s && found)
        s->rewind = true;
    if (w->f && w->check.armed)
        tkc_loop_disarm(w->f->client->loop, &w->check);
    if (!s)
        return;
    (void)tkc_map_remove(&s->waits, tkc_str(w->request_id));
    w->poll = NULL;
    rest_if_idle(s);
}

void tkc_session_poll_retrieved(tkc_session_poll *s, const char *request_id)
{
    tinkc_error ignored = { 0 };
    if (!tkc_session_poll_is_used(s) || s->retrieved.n >= MOST_RETRIEVED)
        return;
    char **grown = tkc_grow(s->client->a, (void *)s->retrieved.ids, &s->retrieved.cap,
                            s->retrieved.n + 1, sizeof *grown, &ignored);
    if (!grown)
        return;
    s->retrieved.ids = grown;
    grown[s->retrieved.n] = tkc_copy_str(s->client->a, tkc_str(request_id), &ignored);
    if (grown[s->retrieved.n])
        s->retrieved.n++;
}
