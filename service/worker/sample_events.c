/* sample_events.c - samples as server-sent events (docs/stream.md).
 *
 * The worker appends events to the stream's own buffer; they are written as far as the reply has
 * room, so that a slow reader blocks nothing. The stream's lock serializes the worker, the
 * housekeeper (which sends pings) and the thread that reports new room in the reply.
 */
#include <assert.h>
#include <stdio.h>

#include "service/core/base_models.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/worker/jobs.h"
#include "service/worker/sample_events.h"
#include "service/worker/vocab.h"

enum { PING_MS = 15000 };

struct tke_stream {
    tkc_refs refs;            /* one of the list, one of each job */
    tke_stream *next;         /* in the list; its lock */
    tke_stream *next_ping;    /* the housekeeper's */
    const tinkc_reply *key;   /* constant: identifies the stream */
    atomic_bool over;         /* the reply has ended */
    _Atomic int64_t quiet_ms; /* time of the last write */
    tke_service *svc;
    const tke_stream_style *style; /* constant */
    bool remote;                   /* constant: the peer may disconnect unnoticed */
    pthread_mutex_t lock;          /* guards all below; never take svc->lock inside it */
    tinkc_reply *reply;            /* NULL once it has ended */
    tkc_buf out;                   /* events not yet written */
    size_t written;                /* of out */
    size_t n_jobs;                 /* jobs that have not ended */
    tinkc_error err;               /* the first error while writing */
    bool ended, closed;
};

struct tke_streams {
    pthread_mutex_t lock;
    tke_stream *newest; /* of the list: newest first */
};

bool tke_streams_open(tke_service *svc, tinkc_error *err)
{
    svc->streams = tkc_zalloc(svc->a, sizeof *svc->streams, err);
    if (svc->streams)
        pthread_mutex_init(&svc->streams->lock, NULL);
    return svc->streams != NULL;
}

void tke_streams_close(tke_service *svc)
{
    if (!svc->streams)
        return;
    assert(!svc->streams->newest);
    pthread_mutex_destroy(&svc->streams->lock);
    tkc_release(svc->a, svc->streams, sizeof *svc->streams);
}

static void drop(tke_stream *s)
{
    if (!tkc_ref_drop(&s->refs))
        return;
    tkc_buf_free(&s->out);
    pthread_mutex_destroy(&s->lock);
    tkc_release(s->svc->a, s, sizeof *s);
}

/* Locks: needs s->lock. Writes what fits; ends the reply when all is written. */
static void flush(tke_stream *s)
{
    assert(s->written <= s->out.len);
    /* Before the write: a reader that has the bytes may move a scripted clock. */
    int64_t now_ms = tkc_now_ms(s->svc->clock);
    while (s->reply && s->written < s->out.len) {
        size_t n = s->out.len - s->written;
        /* Only what fits: the worker calls this too, and a write that waits for a slow reader would
         * stop all samples and all training. */
        size_t room = s->reply->room ? s->reply->room(s->reply) : n;
        if (room == 0)
            return;
        n = n < room ? n : room;
        if (!s->reply->write(s->reply, s->out.data + s->written, n)) {
            s->closed = s->ended = true;
            break;
        }
        s->written += n;
    }
    tkc_buf_clear(&s->out); /* written, or nobody reads it */
    s->written = 0;
    s->quiet_ms = now_ms;
    if (s->ended && s->reply) {
        s->reply->end(s->reply);
        s->reply = NULL;
        atomic_store(&s->over, true);
    }
}

tke_stream *tke_stream_new(tke_call *call, const tke_stream_style *style, size_t n_jobs)
{
    tke_service *svc = call->svc;
    tinkc_reply *reply = call->reply;
    tke_stream *s = tkc_zalloc(svc->a, sizeof *s, &call->err);
    if (!s)
        return NULL;
    tkc_ref_init(&s->refs);
    for (size_t i = 0; i < n_jobs; i++)
        tkc_ref_keep(&s->refs);
    s->svc = svc;
    s->style = style;
    s->n_jobs = n_jobs;
    s->remote = call->flags & TKE_CALL_REMOTE;
    s->reply = reply;
    s->key = reply;
    s->quiet_ms = tkc_now_ms(svc->clock);
    pthread_mutex_init(&s->lock, NULL);
    tkc_buf_init(&s->out, svc->a, TKC_BUF_NO_MAX);
    if (!style->whole) {
        reply->status(reply, 200);
        reply->header(reply, "Content-Type", "text/event-stream");
        reply->header(reply, "Cache-Control", "no-cache");
    }
    pthread_mutex_lock(&svc->streams->lock);
    s->next = svc->streams->newest;
    svc->streams->newest = s;
    pthread_mutex_unlock(&svc->streams->lock);
    return s;
}

bool tke_stream_closed(tke_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool closed = s->closed;
    pthread_mutex_unlock(&s->lock);
    return closed;
}

/* ---- our own events (docs/stream.md) ---- */

typedef struct native { /* in its job's arena; used only by the worker */
    const tke_vocab *vocab;
    tkc_buf held;  /* bytes of an incomplete character */
    size_t n_sent; /* tokens */
} native;

static void begin_event(tkc_jsonw *w, tkc_buf *out, const char *type, tinkc_error *err)
{
    tkc_buf_printf(out, err, "event: %s\ndata: ", type);
    tkc_jsonw_open(w, out, err);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "event_type");
    tkc_jsonw_cstr(w, type);
}

static void end_event(tkc_jsonw *w, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw_end(w);
    tkc_buf_cstr(out, "\n\n", err);
}

/* Writes the held bytes and one more token as text; an incomplete character stays held. */
static void write_text(native *n, tkc_jsonw *w, int32_t token, tinkc_error *err)
{
    tkc_buf text;
    tkc_buf_init(&text, n->held.a, TKC_BUF_NO_MAX);
    tkc_buf_str(&n->held, tke_vocab_bytes(n->vocab, token), err);
    size_t whole = tke_utf8_whole(tkc_buf_view(&n->held));
    tke_utf8_clean(&text, tkc_strn(n->held.data, whole), err);
    tkc_jsonw_str(w, tkc_strn(text.data ? text.data : "", text.len));
    if (whole)
        memmove(n->held.data, n->held.data + whole, n->held.len - whole);
    n->held.len -= whole;
    tkc_buf_free(&text);
}

static void token_event(native *n, int32_t token, float logprob, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    begin_event(&w, out, "token", err);
    tkc_jsonw_key(&w, "token");
    write_text(n, &w, token, err);
    tkc_jsonw_key(&w, "token_id");
    tkc_jsonw_i64(&w, token);
    tkc_jsonw_key(&w, "index");
    tkc_jsonw_i64(&w, (int64_t)n->n_sent);
    tkc_jsonw_key(&w, "logprob");
    tkc_jsonw_float(&w, logprob);
    end_event(&w, out, err);
    n->n_sent++;
}

static void native_tokens(void *user, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    native *n = user;
    tke_sequence q = tke_gen_sequence(gen, 0);
    while (n->n_sent < q.n && !tkc_failed(err))
        token_event(n, q.tokens[n->n_sent], q.logprobs[n->n_sent], out, err);
}

static void done_event(const native *n, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    begin_event(&w, out, "done", err);
    tkc_jsonw_key(&w, "finish_reason");
    tkc_jsonw_cstr(&w, tke_gen_sequence(gen, 0).stopped ? "stop" : "length");
    tkc_jsonw_key(&w, "total_tokens");
    tkc_jsonw_i64(&w, (int64_t)n->n_sent);
    end_event(&w, out, err);
}

static void error_event(const tinkc_error *why, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    begin_event(&w, out, "error", err);
    tkc_jsonw_key(&w, "error");
    tkc_jsonw_cstr(&w, why->message);
    tkc_jsonw_key(&w, "category");
    tkc_jsonw_cstr(&w, tke_category(why));
    tkc_jsonw_key(&w, "token");
    tkc_jsonw_cstr(&w, why->message);
    end_event(&w, out, err);
}

static int32_t native_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                          tinkc_error *err)
{
    native *n = user;
    if (why) {
        error_event(why, out, err);
    } else {
        native_tokens(n, gen, out, err);
        done_event(n, gen, out, err);
    }
    tkc_buf_free(&n->held);
    return 200;
}

const tke_stream_style tke_stream_native = { .tokens = native_tokens, .end = native_end };

void *tke_stream_native_user(tke_job *job, tinkc_error *err)
{
    native *n = tkc_arena_alloc(&job->arena, sizeof *n, err);
    if (n) {
        *n = (native){ .vocab = job->in.sample.base->vocab };
        tkc_buf_init(&n->held, job->svc->a, TKC_BUF_NO_MAX);
    }
    return n;
}

/* ---- the worker's calls ---- */

void tke_stream_tokens(const tke_job *job, const tke_gen *gen)
{
    tke_stream *s = job->in.sample.stream;
    if (!s->style->tokens)
        return;
    pthread_mutex_lock(&s->lock);
    if (!s->closed) {
        s->style->tokens(job->in.sample.stream_user, gen, &s->out, &s->err);
        flush(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void tke_stream_end(const tke_job *job, const tke_gen *gen, const tinkc_error *why)
{
    tke_stream *s = job->in.sample.stream;
    pthread_mutex_lock(&s->lock);
    assert(s->n_jobs > 0);
    int32_t status = s->style->end(job->in.sample.stream_user, gen, why, &s->out, &s->err);
    s->closed |= why != NULL;
    bool last = --s->n_jobs == 0;
    if (last && s->style->whole) {
        if (tkc_failed(&s->err)) { /* never send part of an answer */
            tinkc_error again = { 0 };
            tkc_buf_clear(&s->out);
            tkc_buf_cstr(&s->out, "{\"error\":{\"message\":\"out of memory\"}}", &again);
            status = 503;
        }
        if (s->reply) {
            s->reply->status(s->reply, status);
            s->reply->header(s->reply, "Content-Type", TKC_TYPE_JSON);
        }
    }
    s->ended |= last;
    if (last || !s->style->whole)
        flush(s);
    pthread_mutex_unlock(&s->lock);
    drop(s);
}

/* ---- from outside ---- */

/* The stream of a reply, with a reference, or NULL. Also removes finished ones from the list. */
static tke_stream *find(tke_service *svc, const tinkc_reply *reply)
{
    pthread_mutex_lock(&svc->streams->lock);
    tke_stream *s = svc->streams->newest;
    while (s &&
           s->key != reply) /* newest first, so an old one with a reused address is not found */
        s = s->next;
    if (s)
        tkc_ref_keep(&s->refs);
    pthread_mutex_unlock(&svc->streams->lock);
    return s;
}

void tke_stream_resume(tke_service *svc, tinkc_reply *reply)
{
    tke_stream *s = find(svc, reply);
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    flush(s);
    pthread_mutex_unlock(&s->lock);
    drop(s);
}

void tke_stream_cancel(tke_service *svc, tinkc_reply *reply)
{
    tke_stream *s = find(svc, reply);
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    if (s->reply == reply) {
        s->reply->fail(s->reply, TINKC_E_CONNECTION, "the stream was cancelled");
        s->reply = NULL;
        atomic_store(&s->over, true);
    }
    pthread_mutex_unlock(&s->lock);
    /* After s->lock, inside which svc->lock is never taken. The worker may be asleep, and the
     * sample would hold its place until it wakes. */
    pthread_mutex_lock(&svc->lock);
    pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
    drop(s);
}

/* Locks: needs s->lock. A whole answer writes nothing before its end, so a failed write cannot tell
 * that the reader has disconnected. */
static void notice_gone(tke_stream *s)
{
    tke_gone_fn *gone = atomic_load(&s->svc->gone);
    if (s->reply && !s->ended && gone && gone(s->reply))
        s->closed = true; /* the worker sees it and cancels */
}

void tke_streams_ping(tke_service *svc, int64_t now_ms)
{
    tke_stream *dead = NULL, *quiet = NULL;
    pthread_mutex_lock(&svc->streams->lock);
    for (tke_stream **at = &svc->streams->newest; *at;) {
        tke_stream *s = *at;
        if (atomic_load(&s->over)) {
            *at = s->next;
            s->next = dead;
            dead = s;
            continue;
        }
        if (s->style->whole ? s->remote : now_ms - atomic_load(&s->quiet_ms) >= PING_MS) {
            tkc_ref_keep(&s->refs);
            s->next_ping = quiet;
            quiet = s;
        }
        at = &s->next;
    }
    pthread_mutex_unlock(&svc->streams->lock);
    /* Outside the list's lock: writing calls into the transport, whose cancel looks into the
     * list. */
    for (tke_stream *next; quiet; quiet = next) {
        tinkc_error err = { 0 };
        next = quiet->next_ping;
        pthread_mutex_lock(&quiet->lock);
        if (quiet->style->whole)
            notice_gone(quiet);
        else if (quiet->reply && !quiet->ended)
            tkc_buf_cstr(&quiet->out, ": waiting\n\n", &err);
        if (!quiet->style->whole || quiet->ended)
            flush(quiet);
        pthread_mutex_unlock(&quiet->lock);
        drop(quiet);
    }
    for (tke_stream *next; dead; dead = next) {
        next = dead->next;
        drop(dead);
    }
}
