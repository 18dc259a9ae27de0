/* body_stream.c - bodies as they come: tkc_pull, and the public stream on top of it.
 *
 * The transport writes on its own thread (sink), the reader reads on its own; they meet under
 * shared.lock and nowhere else. The operation around them belongs to the I/O thread.
 */
#include "client/call/body_stream.h"

#include <assert.h>
#include <string.h>
#include "client/core/client_priv.h"
#include "base/chunks.h"
#include "base/str.h"
#include "codec/sse.h"

enum { BUFFER_BYTES = 512 * 1024, READ_BYTES = 16 * 1024, MANY_BYTES = 256 * 1024, GATHER_MS = 2 };

struct tkc_pull {
    tinkc_future f; /* first: the pull is an operation */
    tkc_call *call; /* the I/O thread's, after the start */
    tkc_task resume_task;
    bool any_status;
    size_t (*take)(void *arg, const void *bytes, size_t len); /* constant after the start */
    void *take_arg;

    struct {
        pthread_mutex_t lock;
        pthread_cond_t cond;
        tkc_chunks bytes;
        size_t lent; /* of them, by tkc_pull_next */
        bool flows;  /* the last tkc_pull_next found a lot */
        size_t want; /* the reader sleeps until so many are here; 0 = it does not sleep */
        bool reads;  /* tkc_pull_next was called: while there is no news it sleeps there */
        bool head_ready, ended, held, resume_posted;
        tinkc_error err;
        struct tinkc_response head;
        void (*notify)(void *arg);
        void *notify_arg;
    } shared;
};

static tkc_pull *pull_of(tinkc_future *f)
{
    return (tkc_pull *)(void *)f;
}

/* Needs shared.lock. */
static void tell_reader(tkc_pull *p)
{
    pthread_cond_broadcast(&p->shared.cond);
    if (p->shared.notify)
        p->shared.notify(p->shared.notify_arg);
}

/* Needs shared.lock. */
static bool has_news(const tkc_pull *p)
{
    return p->shared.ended || p->shared.err.code || p->shared.bytes.len > 0;
}

/* ---- the transport's side ---- */

/* Needs shared.lock. */
static void take_head(tkc_pull *p, tinkc_error *err)
{
    if (p->shared.head_ready)
        return;
    if (tkc_response_fill(&p->shared.head, p->call, &p->f.arena, err))
        p->shared.head_ready = true;
}

/* Wakes who waits for the head; it is nothing to read yet. */
static void pull_head(void *user)
{
    tkc_pull *p = user;
    tinkc_error err = { 0 };
    pthread_mutex_lock(&p->shared.lock);
    if (!p->shared.ended) {
        take_head(p, &err);
        tkc_error_copy(&p->shared.err, &err);
        pthread_cond_broadcast(&p->shared.cond);
    }
    pthread_mutex_unlock(&p->shared.lock);
}

/* How many of the bytes were handed on at once, in the sleeping reader's place. It has nothing to read, and
 * only this thread can change that: no lock is needed for the call. */
static size_t hand_on_bytes(tkc_pull *p, const void *data, size_t len)
{
    if (!p->take)
        return 0;
    pthread_mutex_lock(&p->shared.lock);
    bool may = p->shared.reads && !has_news(p);
    pthread_mutex_unlock(&p->shared.lock);
    size_t n = may ? p->take(p->take_arg, data, len) : 0;
    assert(n <= len);
    return n;
}

static bool keep_bytes(tkc_pull *p, const void *data, size_t len)
{
    tinkc_error err = { 0 };
    pthread_mutex_lock(&p->shared.lock);
    bool wanted = !p->shared.ended;
    if (wanted) {
        take_head(p, &err);
        if (!tkc_chunks_add(&p->shared.bytes, data, len, &err))
            wanted = false;
        tkc_error_copy(&p->shared.err, &err);
        /* A reader that gathers wants many; one that is notified has no such number. */
        if (p->shared.bytes.len >= p->shared.want || !wanted || p->shared.notify)
            tell_reader(p);
    }
    pthread_mutex_unlock(&p->shared.lock);
    return wanted;
}

static bool pull_sink(void *user, const void *data, size_t len)
{
    tkc_pull *p = user;
    size_t gone = hand_on_bytes(p, data, len);
    return (gone && gone == len) || keep_bytes(p, (const char *)data + gone, len - gone);
}

static size_t pull_room(void *user)
{
    tkc_pull *p = user;
    pthread_mutex_lock(&p->shared.lock);
    size_t held = p->shared.bytes.len;
    size_t room = held < BUFFER_BYTES ? BUFFER_BYTES - held : 0;
    /* The transport now stops until it is resumed: the reader that empties the buffer must know. */
    p->shared.held = room == 0;
    pthread_mutex_unlock(&p->shared.lock);
    return room;
}

void tkc_pull_sink(tkc_pull *p, tkc_call_spec *spec)
{
    spec->sink = pull_sink;
    spec->sink_room = pull_room;
    spec->sink_head = pull_head;
    spec->sink_user = p;
}

/* ---- the I/O thread's side ---- */

static void end_pull(tkc_pull *p, const tinkc_error *err)
{
    pthread_mutex_lock(&p->shared.lock);
    if (!p->shared.ended) {
        tkc_error_copy(&p->shared.err, err);
        p->shared.ended = true;
    }
    tell_reader(p);
    pthread_mutex_unlock(&p->shared.lock);
}

/* With any_status the body of an error was collected by the call: now it is the stream's. */
static void call_answered(tkc_call *call)
{
    tkc_pull *p = call->owner;
    tinkc_error err = call->err;
    pthread_mutex_lock(&p->shared.lock);
    bool as_answer = err.code && err.http_status && p->any_status && !p->shared.head_ready;
    if (as_answer)
        err = (tinkc_error){ 0 };
    if (!err.code)
        take_head(p, &err);
    if (as_answer)
        tkc_chunks_add(&p->shared.bytes, call->body.data, call->body.len, &err);
    pthread_mutex_unlock(&p->shared.lock);
    if (call->err.code)
        tkc_op_error_body(&p->f, call->body);
    end_pull(p, &err);
    tkc_call_free(call);
    p->call = NULL;
    tkc_op_finish(&p->f, &err);
}

static void pull_begin(tinkc_future *f)
{
    tkc_pull *p = pull_of(f);
    p->call->owner = p;
    p->call->f = f;
    p->call->done = call_answered;
    tkc_call_start(p->call);
}

static void pull_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_pull *p = pull_of(f);
    /* First: when this has returned the sink writes no more. */
    tkc_call_free(p->call);
    p->call = NULL;
    end_pull(p, why);
    tkc_op_finish(f, why);
}

static void pull_destroy(tinkc_future *f)
{
    tkc_pull *p = pull_of(f);
    tkc_call_free(p->call); /* one that was never started */
    tkc_chunks_free(&p->shared.bytes);
    pthread_cond_destroy(&p->shared.cond);
    pthread_mutex_destroy(&p->shared.lock);
}

static void resume_transport(tkc_task *task)
{
    tkc_pull *p = TKC_OWNER(task, tkc_pull, resume_task);
    pthread_mutex_lock(&p->shared.lock);
    p->shared.resume_posted = false;
    pthread_mutex_unlock(&p->shared.lock);
    if (p->call)
        tkc_call_resume(p->call);
    tkc_future_drop(&p->f);
}

/* ---- the reader's side ---- */

tkc_pull *tkc_pull_new(tinkc_client *client, const char *operation, tinkc_error *err)
{
    static const tkc_op_class pull_class = { "stream",   "stream",  sizeof(tkc_pull),
                                             pull_begin, pull_stop, pull_destroy };
    static const tkc_op_class download_class = { "download_body", "stream",  sizeof(tkc_pull),
                                                 pull_begin,      pull_stop, pull_destroy };
    bool is_download = strcmp(operation, "download_body") == 0;
    tinkc_future *f = tkc_op_new(client, is_download ? &download_class : &pull_class, err);
    if (!f)
        return NULL;
    tkc_pull *p = pull_of(f);
    p->resume_task.run = resume_transport;
    pthread_mutex_init(&p->shared.lock, NULL);
    tkc_chunks_init(&p->shared.bytes, client->a);
    if (!tkc_cond_init(&p->shared.cond, err)) {
        tkc_future_drop(f);
        return NULL;
    }
    return p;
}

void tkc_pull_start(tkc_pull *p, tkc_call *call, bool any_status)
{
    p->call = call;
    p->any_status = any_status;
    tkc_op_submit(&p->f);
}

/* Waits, lock held, until `what` holds. False: err says why not. */
static bool wait_for(tkc_pull *p, bool (*what)(const tkc_pull *), int64_t timeout_ms,
                     tinkc_error *err)
{
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    while (!what(p))
        if (!tkc_cond_wait_until(&p->shared.cond, &p->shared.lock, deadline) && !what(p))
            return tkc_fail(err, TINKC_E_TIMEOUT, "nothing came within %lld ms",
                            (long long)timeout_ms);
    return true;
}

static bool has_head(const tkc_pull *p)
{
    return p->shared.head_ready || p->shared.ended;
}

const struct tinkc_response *tkc_pull_head(tkc_pull *p, int64_t timeout_ms, tinkc_error *err)
{
    const struct tinkc_response *head = NULL;
    pthread_mutex_lock(&p->shared.lock);
    if (wait_for(p, has_head, timeout_ms, err)) {
        if (p->shared.head_ready)
            head = &p->shared.head;
        else
            tkc_error_copy(err, &p->shared.err);
    }
    pthread_mutex_unlock(&p->shared.lock);
    return head;
}

/* Needs shared.lock. Half of the buffer is free again: the transport may continue. */
static void let_transport_go_on(tkc_pull *p)
{
    if (!p->shared.held || p->shared.bytes.len > BUFFER_BYTES / 2 || p->shared.resume_posted ||
        p->shared.ended)
        return;
    p->shared.held = false;
    p->shared.resume_posted = true;
    /* The task uses the pull, which may be freed before it runs. */
    tkc_future_keep(&p->f);
    tkc_loop_post(p->f.client->loop, &p->resume_task);
}

/* Needs shared.lock. */
static void take_back(tkc_pull *p, size_t n)
{
    tkc_chunks_drop(&p->shared.bytes, n);
    let_transport_go_on(p);
}

/* Needs shared.lock. Waking for every packet would cost more than the packet: while much is coming,
 * waits a moment until a good part of the buffer is full. */
static void gather_bytes(tkc_pull *p)
{
    int64_t deadline = tkc_deadline_ns(GATHER_MS);
    p->shared.want = MANY_BYTES;
    while (p->shared.bytes.len < MANY_BYTES && !p->shared.ended && !p->shared.err.code &&
           tkc_cond_wait_until(&p->shared.cond, &p->shared.lock, deadline))
        ;
    p->shared.want = 0;
}

size_t tkc_pull_next(tkc_pull *p, const void **bytes, tinkc_error *err)
{
    pthread_mutex_lock(&p->shared.lock);
    take_back(p, p->shared.lent);
    if (p->shared.flows && !p->take)
        gather_bytes(p);
    p->shared.reads = true;
    (void)wait_for(p, has_news, TINKC_FOREVER, err);
    p->shared.flows = p->shared.bytes.len >= MANY_BYTES / 4;
    /* What is lent still counts as held, so has_news stays true and `take` is not called before
     * the reader is back. */
    size_t n = p->shared.lent = tkc_chunks_peek(&p->shared.bytes, bytes);
    if (!n)
        tkc_error_copy(err, &p->shared.err);
    pthread_mutex_unlock(&p->shared.lock);
    return n;
}

/* Needs shared.lock. Copies out as much as fits. */
static size_t copy_out(tkc_pull *p, char *buf, size_t cap)
{
    const void *bytes;
    size_t done = 0, n;
    while (done < cap && (n = tkc_chunks_peek(&p->shared.bytes, &bytes)) > 0) {
        n = n < cap - done ? n : cap - done;
        memcpy(buf + done, bytes, n);
        take_back(p, n);
        done += n;
    }
    return done;
}

size_t tkc_pull_read(tkc_pull *p, void *buf, size_t cap, int64_t timeout_ms, tinkc_error *err)
{
    size_t n = 0;
    pthread_mutex_lock(&p->shared.lock);
    if (wait_for(p, has_news, timeout_ms, err)) {
        n = copy_out(p, buf, cap);
        if (!n && cap)
            tkc_error_copy(err, &p->shared.err);
    }
    pthread_mutex_unlock(&p->shared.lock);
    return n;
}

void tkc_pull_take(tkc_pull *p, size_t (*take)(void *arg, const void *bytes, size_t len), void *arg)
{
    p->take = take;
    p->take_arg = arg;
}

bool tkc_pull_ready(tkc_pull *p)
{
    pthread_mutex_lock(&p->shared.lock);
    bool ready = has_news(p);
    pthread_mutex_unlock(&p->shared.lock);
    return ready;
}

void tkc_pull_notify(tkc_pull *p, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&p->shared.lock);
    p->shared.notify = fn;
    p->shared.notify_arg = arg;
    pthread_mutex_unlock(&p->shared.lock);
}

void tkc_pull_cancel(tkc_pull *p)
{
    tinkc_future_cancel(&p->f);
}

void tkc_pull_free(tkc_pull *p)
{
    if (p)
        tinkc_future_free(&p->f);
}

/* ---- the public stream ---- */

struct tinkc_stream {
    tkc_pull *pull;
    tinkc_client *client;
    tinkc_sse_parser *sse; /* made by the first _event */
    bool sse_ended;
    /* on_ready: the item is lined up at most once; reading allows it again. */
    tinkc_queue *queue;
    tinkc_stream_fn *fn;
    void *user;
    tkc_queue_item item;
    pthread_mutex_t lock; /* of the next two; a leaf but for the queue's */
    bool lined_up;        /* the item is on the queue */
    bool notified;        /* fn was called and nothing has been read since */
};

tinkc_stream *tinkc_stream_open(tinkc_client *client, const tinkc_http_options *options,
                                tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check_open(client, err))
        return NULL;
    tkc_call_spec spec = { 0 };
    tkc_pull *pull = tkc_pull_new(client, "stream", err);
    if (!pull)
        return NULL;
    tkc_pull_sink(pull, &spec);
    tkc_call *call = tkc_call_from_options(client, options, &spec, err);
    tinkc_stream *s = call ? tkc_zalloc(client->a, sizeof *s, err) : NULL;
    if (!s) {
        tkc_call_free(call);
        tkc_future_drop(&pull->f);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->pull = pull;
    s->client = client;
    tkc_client_keep(client);
    tkc_pull_start(pull, call, options->any_status);
    return s;
}

static bool enter_stream(tinkc_stream *s, tinkc_error **err, tinkc_error *local)
{
    if (!tkc_enter(err, local))
        return false;
    if (!s)
        return tkc_fail(*err, TINKC_E_ARGUMENT, "the stream is NULL");
    return tkc_client_check(s->client, *err) && tkc_client_check_waits(s->client, *err);
}

const tinkc_response *tinkc_stream_head(tinkc_stream *s, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    return enter_stream(s, &err, &local) ? tkc_pull_head(s->pull, timeout_ms, err) : NULL;
}

static void line_up(void *arg)
{
    tinkc_stream *s = arg;
    pthread_mutex_lock(&s->lock);
    bool push = s->queue && !s->lined_up && !s->notified;
    s->lined_up = s->lined_up || (push && tkc_queue_push(s->queue, &s->item));
    pthread_mutex_unlock(&s->lock);
}

static void run_ready(tkc_queue_item *item)
{
    tinkc_stream *s = TKC_OWNER(item, tinkc_stream, item);
    pthread_mutex_lock(&s->lock);
    s->lined_up = false;
    s->notified = true;
    pthread_mutex_unlock(&s->lock);
    s->fn(s, s->user);
}

/* Reading is what makes room for the next call of on_ready. */
static void after_read(tinkc_stream *s)
{
    if (!s->queue)
        return;
    pthread_mutex_lock(&s->lock);
    s->notified = false;
    pthread_mutex_unlock(&s->lock);
    if (tkc_pull_ready(s->pull))
        line_up(s);
}

size_t tinkc_stream_read(tinkc_stream *s, void *buf, size_t cap, int64_t timeout_ms,
                         tinkc_error *err)
{
    tinkc_error local;
    if (!enter_stream(s, &err, &local))
        return 0;
    if (!buf && cap) {
        tkc_fail(err, TINKC_E_ARGUMENT, "buf is NULL");
        return 0;
    }
    size_t n = tkc_pull_read(s->pull, buf, cap, timeout_ms, err);
    if (n)
        after_read(s);
    return n;
}

bool tinkc_stream_on_ready(tinkc_stream *s, tinkc_queue *queue, tinkc_stream_fn *fn, void *user,
                           tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!s || (fn && !queue))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is NULL", s ? "queue" : "stream");
    if (!tkc_client_check(s->client, err))
        return false;
    /* First: no line_up runs after this, and the fields are this thread's. */
    tkc_pull_notify(s->pull, NULL, NULL);
    if (s->queue) {
        tkc_queue_remove(s->queue, &s->item);
        tkc_queue_drop(s->queue);
    }
    s->queue = fn ? queue : NULL;
    s->lined_up = s->notified = false;
    if (!fn)
        return true;
    tkc_queue_keep(queue);
    s->fn = fn;
    s->user = user;
    s->item.run = run_ready;
    tkc_pull_notify(s->pull, line_up, s);
    /* What is here already is not announced again. */
    if (tkc_pull_ready(s->pull))
        line_up(s);
    return true;
}

/* Feeds the parser until it has a whole event. NULL = the end or an error. */
const tinkc_sse *tinkc_stream_event(tinkc_stream *s, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    char bytes[READ_BYTES];
    if (!enter_stream(s, &err, &local))
        return NULL;
    if (!s->sse)
        s->sse = tinkc_sse_new(0, s->client->a, err);
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    while (s->sse && !tkc_failed(err)) {
        const tinkc_sse *event = tinkc_sse_next(s->sse, err);
        if (event || s->sse_ended || tkc_failed(err))
            return event;
        size_t n = tkc_pull_read(s->pull, bytes, sizeof bytes, tkc_left_ms(deadline), err);
        if (n) {
            after_read(s);
            tinkc_sse_feed(s->sse, bytes, n, err);
        } else if (!tkc_failed(err)) {
            s->sse_ended = true;
            tkc_sse_end(s->sse, false, err);
        }
    }
    return NULL;
}

void tinkc_stream_free(tinkc_stream *s)
{
    if (!s || tkc_client_forked(s->client))
        return;
    tinkc_client *client = s->client;
    tkc_pull_notify(s->pull, NULL, NULL);
    if (s->queue) {
        tkc_queue_remove(s->queue, &s->item);
        tkc_queue_drop(s->queue);
    }
    tkc_pull_free(s->pull);
    tinkc_sse_free(s->sse);
    pthread_mutex_destroy(&s->lock);
    tkc_release(client->a, s, sizeof *s);
    tkc_client_drop(client);
}
