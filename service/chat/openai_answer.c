/* openai_answer.c - completions in OpenAI's form: a whole answer, or server-sent events.
 *
 * Text ends before the token or string that stopped it. While a sequence grows, incomplete
 * characters and text that may become a stop string or a tool call are held back, because an event
 * cannot be withdrawn. Thread: the worker's, under the stream's lock. May touch: the answer and its
 * buffer. Must not: read files, take the service's lock.
 */
#include "base/str.h"
#include "service/chat/chat_state.h"
#include "service/core/base_models.h"
#include "service/handlers/handler_call.h"
#include "service/worker/jobs.h"
#include "service/worker/sample_events.h"
#include "service/worker/vocab.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

void tke_openai_error(tkc_buf *out, int32_t status, const char *code, const char *param,
                      const char *text, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "error");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "message");
    tkc_jsonw_message(&w, text);
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error");
    tkc_jsonw_key(&w, "param");
    tkc_jsonw_cstr(&w, param);
    tkc_jsonw_key(&w, "code");
    tkc_jsonw_cstr(&w, code);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
}

/* ---- life ---- */

tke_chat_answer *tke_chat_answer_new(const tinkc_allocator *a, const tke_chat_answer *like,
                                     size_t n_parts, size_t n_choices, tinkc_error *err)
{
    tkc_arena arena;
    tkc_arena_init(&arena, a, 0);
    tke_chat_answer *x = tkc_arena_alloc(&arena, sizeof *x, err);
    tke_chat_part *parts = tkc_arena_array(&arena, n_parts, sizeof *parts, err);
    const char *model = tkc_arena_cstr(&arena, like->model, err);
    const char *tools = like->tools.data ? tkc_arena_str(&arena, like->tools, err) : NULL;
    const char *settings = like->settings ? tkc_arena_cstr(&arena, like->settings, err) : NULL;
    for (size_t i = 0; parts && i < n_parts && !tkc_failed(err); i++) {
        tke_chat_part *p = &parts[i];
        p->answer = x;
        p->index = i * n_choices;
        p->choices = tkc_arena_array(&arena, n_choices, sizeof *p->choices, err);
        tkc_buf_init(&p->text, a, TKC_BUF_NO_MAX);
        for (size_t k = 0; p->choices && k < n_choices; k++) {
            tkc_buf_init(&p->choices[k].held, a, TKC_BUF_NO_MAX);
            tkc_buf_init(&p->choices[k].unsent, a, TKC_BUF_NO_MAX);
            tkc_buf_init(&p->choices[k].block_text, a, TKC_BUF_NO_MAX);
        }
    }
    if (tkc_failed(err)) {
        tkc_arena_free(&arena);
        return NULL;
    }
    *x = *like;
    x->arena = arena;
    x->model = model;
    x->tools.data = tools;
    x->settings = settings;
    x->parts = parts;
    x->n_parts = x->n_left = n_parts;
    return x;
}

void tke_chat_answer_free(tke_chat_answer *a, size_t n_choices)
{
    for (size_t i = 0; i < a->n_parts; i++) {
        tkc_buf_free(&a->parts[i].text);
        for (size_t k = 0; k < n_choices; k++) {
            tkc_buf_free(&a->parts[i].choices[k].held);
            tkc_buf_free(&a->parts[i].choices[k].unsent);
            tkc_buf_free(&a->parts[i].choices[k].block_text);
        }
    }
    tkc_arena arena = a->arena; /* the arena holds `a` itself */
    tkc_arena_free(&arena);
}

/* A part has finished or failed. True: it was the last, so the answer can be completed. */
bool tke_chat_part_over(tke_chat_part *p, const tke_gen *gen, const tinkc_error *why)
{
    tke_chat_answer *a = p->answer;
    assert(a->n_left > 0);
    if (why && !tkc_failed(&a->failed))
        a->failed = *why;
    if (why && !tkc_failed(&a->failed))
        tkc_fail(&a->failed, TINKC_E_SERVER, "the sample failed");
    a->prompt_tokens += (int64_t)p->job->in.sample.gen.n_prompt;
    for (size_t i = 0; gen && i < tke_gen_n_samples(gen); i++)
        a->made += (int64_t)tke_gen_sequence(gen, i).n;
    return --a->n_left == 0;
}

/* ---- text ---- */

static bool is_end(const tke_chat_part *p, int32_t token)
{
    const tke_gen_request *r = &p->job->in.sample.gen;
    for (size_t i = 0; i < r->n_stop_tokens; i++)
        if (r->stop_tokens[i] == token)
            return true;
    return tke_model_is_eos(p->job->in.sample.base->model, token);
}

/* Appends the bytes of new tokens to the text that is held. */
static void take_tokens(const tke_chat_part *p, tke_chat_choice *c, tke_sequence q, bool last,
                        tinkc_error *err)
{
    const tke_gen_request *r = &p->job->in.sample.gen;
    for (; c->n_seen < q.n; c->n_seen++) {
        const char *bytes;
        int32_t token = q.tokens[c->n_seen];
        if (last && q.stopped && c->n_seen + 1 == q.n && is_end(p, token))
            continue;
        size_t n = r->token_bytes(r->token_user, token, &bytes);
        if (n)
            tkc_buf_add(&c->held, bytes, n, err);
    }
}

/* The offset of the first stop string; s.len if there is none. */
static size_t find_stop(const tke_gen_request *r, tinkc_str s, tinkc_str *which)
{
    size_t first = s.len;
    for (size_t i = 0; i < r->n_stop_strings && s.len; i++) {
        tinkc_str stop = r->stop_strings[i];
        const char *at = memmem(s.data, s.len, stop.data, stop.len);
        /* The first in the text, not the first in the request's list: nothing behind any of them
         * may be sent. */
        if (at && (size_t)(at - s.data) < first) {
            first = (size_t)(at - s.data);
            *which = stop;
        }
    }
    return first;
}

/* How many bytes can be sent now: complete characters that cannot begin a stop string or a tool
 * call. */
static size_t certain(const tke_chat_part *p, const tke_chat_choice *c, tinkc_str s)
{
    const tke_gen_request *r = &p->job->in.sample.gen;
    size_t keep = 0;
    for (size_t i = 0; i < r->n_stop_strings; i++) {
        tinkc_str stop = r->stop_strings[i];
        size_t n = stop.len - 1 < s.len ? stop.len - 1 : s.len;
        while (n > keep && memcmp(s.data + s.len - n, stop.data, n) != 0)
            n--;
        keep = n > keep ? n : keep;
    }
    size_t n = tke_utf8_whole(tkc_strn(s.data, s.len - keep));
    /* A bare call is the whole answer: once text was sent, no call can follow. */
    if (p->answer->calls == TKE_CALLS_BARE && c->n_sent)
        return n;
    return tke_calls_certain(p->answer->calls, tkc_strn(s.data, n));
}

/* Moves text that can be sent from held to *text. */
void tke_chat_take_text(const tke_chat_part *p, tke_chat_choice *c, tke_sequence q, bool last,
                        tkc_buf *text, tinkc_error *err)
{
    const tke_gen_request *r = &p->job->in.sample.gen;
    take_tokens(p, c, q, last, err);
    tinkc_str held = tkc_buf_view(&c->held);
    size_t n = held.len == 0 ? 0
               : !last       ? certain(p, c, held)
               : q.stopped   ? find_stop(r, held, &c->stopped_by)
                             : held.len;
    tke_utf8_clean(text, tkc_strn(held.data, n), err);
    c->n_sent += n;
    if (n)
        memmove(c->held.data, c->held.data + n, held.len - n);
    c->held.len -= n;
}

/* The prompt's text, for a choice that echoes it. */
static void take_echo(const tke_chat_part *p, tkc_buf *text, tinkc_error *err)
{
    const tke_gen_request *r = &p->job->in.sample.gen;
    tkc_buf raw;
    tkc_buf_init(&raw, p->answer->arena.a, TKC_BUF_NO_MAX);
    for (size_t i = 0; i < r->n_prompt && !tkc_failed(err); i++) {
        const char *bytes;
        size_t n = r->token_bytes(r->token_user, r->prompt[i], &bytes);
        if (n)
            tkc_buf_add(&raw, bytes, n, err);
    }
    tke_utf8_clean(text, tkc_buf_view(&raw), err);
    tkc_buf_free(&raw);
}

static tinkc_str text_of(const tkc_buf *b)
{
    return tkc_strn(b->data ? b->data : "", b->len);
}

/* ---- log-probs ---- */

typedef struct told { /* a token with its log-probs */
    int32_t token;
    float logprob; /* NaN: the first of a prompt */
    const int32_t *top;
    const float *top_logprobs;
} told;

/* The i-th token of a choice, counting the echoed prompt first. */
static told told_at(const tke_chat_part *p, const tke_gen *gen, tke_sequence q, size_t i)
{
    const tke_chat_answer *a = p->answer;
    const tke_gen_request *r = &p->job->in.sample.gen;
    size_t n_echo = a->echo ? r->n_prompt : 0;
    if (i >= n_echo) {
        i -= n_echo;
        return (told){ q.tokens[i], q.logprobs[i], a->top ? q.topk_tokens + i * a->top : NULL,
                       a->top ? q.topk_logprobs + i * a->top : NULL };
    }
    const float *logprobs = tke_gen_prompt_logprobs(gen);
    const int32_t *top = tke_gen_topk_tokens(gen);
    return (told){ r->prompt[i], logprobs ? logprobs[i] : NAN,
                   top && a->top && i ? top + i * a->top : NULL,
                   top && a->top && i ? tke_gen_topk_logprobs(gen) + i * a->top : NULL };
}

static void write_bytes_as_text(const tke_chat_part *p, tkc_jsonw *w, int32_t token, bool key)
{
    const char *bytes = "";
    tkc_buf text;
    size_t n = p->answer->names(p->job->in.sample.gen.token_user, token, &bytes);
    tkc_buf_init(&text, p->answer->arena.a, TKC_BUF_NO_MAX);
    tke_utf8_clean(&text, tkc_strn(bytes, n), w->err);
    if (key)
        tkc_jsonw_key_str(w, text_of(&text));
    else
        tkc_jsonw_str(w, text_of(&text));
    tkc_buf_free(&text);
}

static void write_logprob(tkc_jsonw *w, float logprob)
{
    if (isfinite(logprob))
        tkc_jsonw_float(w, logprob);
    else if (isnan(logprob))
        tkc_jsonw_null(w);
    else
        tkc_jsonw_float(w, -9999.0f); /* JSON has no infinity */
}

/* The members "token", "logprob" and "bytes" of a chat's log-probs. */
static void write_token(const tke_chat_part *p, tkc_jsonw *w, int32_t token, float logprob)
{
    const char *bytes = "";
    size_t n = p->answer->names(p->job->in.sample.gen.token_user, token, &bytes);
    tkc_jsonw_key(w, "token");
    write_bytes_as_text(p, w, token, false);
    tkc_jsonw_key(w, "logprob");
    write_logprob(w, logprob);
    tkc_jsonw_key(w, "bytes");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < n; i++)
        tkc_jsonw_i64(w, (unsigned char)bytes[i]);
    tkc_jsonw_end(w);
}

static void chat_logprobs(const tke_chat_part *p, tkc_jsonw *w, const tke_gen *gen, tke_sequence q,
                          size_t from, size_t to)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "content");
    tkc_jsonw_array(w);
    for (size_t i = from; i < to; i++) {
        told t = told_at(p, gen, q, i);
        tkc_jsonw_object(w);
        write_token(p, w, t.token, t.logprob);
        tkc_jsonw_key(w, "top_logprobs");
        tkc_jsonw_array(w);
        for (size_t k = 0; t.top && k < p->answer->top; k++) {
            tkc_jsonw_object(w);
            write_token(p, w, t.top[k], t.top_logprobs[k]);
            tkc_jsonw_end(w);
        }
        tkc_jsonw_end(w);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "refusal");
    tkc_jsonw_null(w);
    tkc_jsonw_end(w);
}

static void write_top(const tke_chat_part *p, tkc_jsonw *w, told t)
{
    if (!t.top) {
        tkc_jsonw_null(w);
        return;
    }
    tkc_jsonw_object(w);
    for (size_t k = 0; k < p->answer->top; k++) {
        write_bytes_as_text(p, w, t.top[k], true);
        write_logprob(w, t.top_logprobs[k]);
    }
    tkc_jsonw_end(w);
}

/* Characters that begin in the bytes of a token. */
static size_t count_chars(const tke_chat_part *p, int32_t token)
{
    const tke_gen_request *r = &p->job->in.sample.gen;
    const char *bytes;
    size_t chars = 0, n = r->token_bytes(r->token_user, token, &bytes);
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return chars;
}

static void text_logprobs(const tke_chat_part *p, tke_chat_choice *c, tkc_jsonw *w,
                          const tke_gen *gen, tke_sequence q, size_t from, size_t to)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "tokens");
    tkc_jsonw_array(w);
    for (size_t i = from; i < to; i++)
        write_bytes_as_text(p, w, told_at(p, gen, q, i).token, false);
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "token_logprobs");
    tkc_jsonw_array(w);
    for (size_t i = from; i < to; i++)
        write_logprob(w, told_at(p, gen, q, i).logprob);
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "top_logprobs");
    if (p->answer->top)
        tkc_jsonw_array(w);
    else
        tkc_jsonw_null(w);
    for (size_t i = from; p->answer->top && i < to; i++)
        write_top(p, w, told_at(p, gen, q, i));
    if (p->answer->top)
        tkc_jsonw_end(w);
    tkc_jsonw_key(w, "text_offset");
    tkc_jsonw_array(w);
    for (size_t i = from; i < to; i++) {
        tkc_jsonw_i64(w, (int64_t)c->told_chars);
        c->told_chars += count_chars(p, told_at(p, gen, q, i).token);
    }
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

/* The member "logprobs": of the tokens whose text was sent since the last call. */
static void write_logprobs(const tke_chat_part *p, tke_chat_choice *c, tkc_jsonw *w,
                           const tke_gen *gen, tke_sequence q)
{
    const tke_chat_answer *a = p->answer;
    const tke_gen_request *r = &p->job->in.sample.gen;
    size_t from = c->n_told, n_echo = a->echo ? r->n_prompt : 0;
    tkc_jsonw_key(w, "logprobs");
    if (!a->logprobs) {
        tkc_jsonw_null(w);
        return;
    }
    if (c->n_told < n_echo)
        c->n_told = n_echo;
    while (c->n_told - n_echo < q.n && c->told_bytes < c->n_sent) {
        const char *bytes;
        c->told_bytes += r->token_bytes(r->token_user, q.tokens[c->n_told - n_echo], &bytes);
        c->n_told++;
    }
    if (a->chat)
        chat_logprobs(p, w, gen, q, from, c->n_told);
    else
        text_logprobs(p, c, w, gen, q, from, c->n_told);
}

/* ---- the parts of an answer ---- */

static void write_head(const tke_chat_answer *a, tkc_jsonw *w, const char *object)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, a->id);
    tkc_jsonw_key(w, "object");
    tkc_jsonw_cstr(w, object);
    tkc_jsonw_key(w, "created");
    tkc_jsonw_i64(w, a->created_s);
    tkc_jsonw_key(w, "model");
    tkc_jsonw_cstr(w, a->model);
    tkc_jsonw_key(w, "choices");
    tkc_jsonw_array(w);
}

static void write_usage(const tke_chat_answer *a, tkc_jsonw *w)
{
    tkc_jsonw_key(w, "usage");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "prompt_tokens");
    tkc_jsonw_i64(w, a->prompt_tokens);
    tkc_jsonw_key(w, "completion_tokens");
    tkc_jsonw_i64(w, a->made);
    tkc_jsonw_key(w, "total_tokens");
    tkc_jsonw_i64(w, a->prompt_tokens + a->made);
    tkc_jsonw_end(w);
}

static const char *finish_reason(tke_sequence q, size_t n_calls)
{
    return n_calls ? "tool_calls" : q.stopped ? "stop" : "length";
}

const char *tke_chat_cut(const tke_chat_part *p, const tke_gen *gen, size_t i)
{
    if (!p->job->in.sample.gen.may_cap || tke_gen_sequence(gen, i).stopped)
        return NULL;
    return tke_gen_capped(gen) ? "no limit of tokens was given, and the answer was cut where the "
                                 "server's memory for keys and values ends (setting kv_bytes)"
                               : "no limit of tokens was given, and the answer was cut where the "
                                 "model's context ends";
}

static void write_cut(tkc_jsonw *w, const char *why)
{
    if (!why)
        return;
    tkc_jsonw_key(w, "warning");
    tkc_jsonw_cstr(w, why);
}

/* ---- tool calls ---- */

tke_chat_said tke_chat_take_calls(const tke_chat_part *p, tinkc_str text, tkc_arena *arena)
{
    tke_chat_said s = { .text = text };
    size_t before = 0;
    s.n_calls = tke_calls_read(p->answer->calls, p->answer->tools, text, arena, s.calls, &before);
    if (s.n_calls)
        s.text = tkc_str_trim(tkc_strn(text.data, before));
    return s;
}

static void write_calls(const tke_chat_part *p, tkc_jsonw *w, size_t choice, const tke_chat_said *s,
                        bool index)
{
    char id[80];
    tkc_jsonw_key(w, "tool_calls");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < s->n_calls; i++) {
        (void)snprintf(id, sizeof id, "call_%s_%zu_%zu", p->answer->id, p->index + choice, i);
        tkc_jsonw_object(w);
        if (index) {
            tkc_jsonw_key(w, "index");
            tkc_jsonw_i64(w, (int64_t)i);
        }
        tkc_jsonw_key(w, "id");
        tkc_jsonw_cstr(w, id);
        tkc_jsonw_key(w, "type");
        tkc_jsonw_cstr(w, "function");
        tkc_jsonw_key(w, "function");
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, "name");
        tkc_jsonw_str(w, s->calls[i].name);
        tkc_jsonw_key(w, "arguments");
        tkc_jsonw_str(w, s->calls[i].arguments);
        tkc_jsonw_end(w);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
}

static void write_message(const tke_chat_part *p, tkc_jsonw *w, size_t choice,
                          const tke_chat_said *s)
{
    tkc_jsonw_key(w, "message");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "role");
    tkc_jsonw_cstr(w, "assistant");
    tkc_jsonw_key(w, "content");
    if (s->n_calls && !s->text.len)
        tkc_jsonw_null(w);
    else
        tkc_jsonw_str(w, s->text);
    if (s->n_calls)
        write_calls(p, w, choice, s, false);
    tkc_jsonw_end(w);
}

static void write_choice(tke_chat_part *p, tkc_jsonw *w, size_t i, tinkc_str text,
                         const tke_gen *gen)
{
    tke_sequence q = tke_gen_sequence(gen, i);
    tkc_arena arena;
    tkc_arena_init(&arena, p->answer->arena.a, 0);
    tke_chat_said s = tke_chat_take_calls(p, text, &arena);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "index");
    tkc_jsonw_i64(w, (int64_t)(p->index + i));
    if (p->answer->chat) {
        write_message(p, w, i, &s);
    } else {
        tkc_jsonw_key(w, "text");
        tkc_jsonw_str(w, text);
    }
    write_logprobs(p, &p->choices[i], w, gen, q);
    tkc_jsonw_key(w, "finish_reason");
    tkc_jsonw_cstr(w, finish_reason(q, s.n_calls));
    write_cut(w, tke_chat_cut(p, gen, i));
    tkc_jsonw_end(w);
    tkc_arena_free(&arena);
}

/* ---- whole answers ---- */

static int32_t fail_whole(const tinkc_error *why, tkc_buf *out, tinkc_error *err)
{
    const char *code;
    int32_t status = tke_failure_status(why, &code);
    tke_openai_error(out, status, code, NULL, why->message, err);
    return status;
}

/* Stores the choices of one part until all are done: they are sent in the order of the prompts. */
static void keep_choices(tke_chat_part *p, const tke_gen *gen, tinkc_error *err)
{
    tkc_buf text;
    tkc_buf_init(&text, p->answer->arena.a, TKC_BUF_NO_MAX);
    for (size_t i = 0; i < tke_gen_n_samples(gen) && !tkc_failed(err); i++) {
        tkc_jsonw w;
        tkc_buf_clear(&text);
        if (p->answer->echo)
            take_echo(p, &text, err);
        tke_chat_take_text(p, &p->choices[i], tke_gen_sequence(gen, i), true, &text, err);
        if (i)
            tkc_buf_cstr(&p->text, ",", err);
        tkc_jsonw_open(&w, &p->text, err);
        write_choice(p, &w, i, text_of(&text), gen);
    }
    tkc_buf_free(&text);
}

static int32_t whole_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                         tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_answer *a = p->answer;
    size_t n_choices = p->job->in.sample.gen.n_samples;
    int32_t status = 200;
    tkc_jsonw w;
    if (!why)
        keep_choices(p, gen, err);
    if (!tke_chat_part_over(p, gen, why))
        return status;
    if (tkc_failed(&a->failed)) {
        status = fail_whole(&a->failed, out, err);
    } else {
        tkc_jsonw_open(&w, out, err);
        write_head(a, &w, a->chat ? "chat.completion" : "text_completion");
        for (size_t i = 0; i < a->n_parts; i++)
            tkc_jsonw_raw(&w, text_of(&a->parts[i].text));
        tkc_jsonw_end(&w);
        write_usage(a, &w);
        tkc_jsonw_end(&w);
    }
    tke_chat_answer_free(a, n_choices);
    return status;
}

const tke_stream_style tke_openai_whole = { .whole = true, .end = whole_end };

/* ---- events ---- */

static void begin_event(const tke_chat_answer *a, tkc_jsonw *w, tkc_buf *out, tinkc_error *err)
{
    tkc_buf_cstr(out, "data: ", err);
    tkc_jsonw_open(w, out, err);
    write_head(a, w, a->chat ? "chat.completion.chunk" : "text_completion");
}

static void end_event(tkc_jsonw *w, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw_end(w);
    tkc_buf_cstr(out, "\n\n", err);
}

typedef struct piece {
    tinkc_str text;
    const char *finish;         /* NULL = more will come */
    bool role;                  /* the first of a message */
    const tke_chat_said *calls; /* NULL = text */
} piece;

static void piece_event(tke_chat_part *p, size_t i, piece what, const tke_gen *gen, tkc_buf *out,
                        tinkc_error *err)
{
    const tke_chat_answer *a = p->answer;
    tkc_jsonw w;
    begin_event(a, &w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "index");
    tkc_jsonw_i64(&w, (int64_t)(p->index + i));
    tkc_jsonw_key(&w, a->chat ? "delta" : "text");
    if (a->chat) {
        tkc_jsonw_object(&w);
        if (what.role) {
            tkc_jsonw_key(&w, "role");
            tkc_jsonw_cstr(&w, "assistant");
        }
        if (what.calls) {
            write_calls(p, &w, i, what.calls, true);
        } else if (!what.finish) {
            tkc_jsonw_key(&w, "content");
            tkc_jsonw_str(&w, what.text);
        }
        tkc_jsonw_end(&w);
    } else {
        tkc_jsonw_str(&w, what.text);
    }
    if (what.text.len) {
        write_logprobs(p, &p->choices[i], &w, gen, tke_gen_sequence(gen, i));
    } else {
        tkc_jsonw_key(&w, "logprobs");
        tkc_jsonw_null(&w);
    }
    tkc_jsonw_key(&w, "finish_reason");
    tkc_jsonw_cstr(&w, what.finish);
    write_cut(&w, what.finish ? tke_chat_cut(p, gen, i) : NULL);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    if (a->usage) {
        tkc_jsonw_key(&w, "usage");
        tkc_jsonw_null(&w);
    }
    end_event(&w, out, err);
}

/* Sends the new text of one choice, and its end if it is done. */
static void send_choice(tke_chat_part *p, size_t i, const tke_gen *gen, tkc_buf *out,
                        tinkc_error *err)
{
    tke_chat_choice *c = &p->choices[i];
    tke_sequence q = tke_gen_sequence(gen, i);
    tkc_buf text;
    if (c->finished || (q.n == c->n_seen && !q.done))
        return;
    tkc_buf_init(&text, p->answer->arena.a, TKC_BUF_NO_MAX);
    if (p->answer->chat && !c->begun)
        piece_event(p, i, (piece){ .text = tkc_str(""), .role = true }, gen, out, err);
    if (p->answer->echo && !c->begun)
        take_echo(p, &text, err);
    c->begun = true;
    tke_chat_take_text(p, c, q, q.done, &text, err);
    tkc_arena arena;
    tkc_arena_init(&arena, p->answer->arena.a, 0);
    tke_chat_said s = { .text = text_of(&text) };
    if (q.done)
        s = tke_chat_take_calls(p, s.text, &arena);
    if (s.text.len)
        piece_event(p, i, (piece){ .text = s.text }, gen, out, err);
    if (s.n_calls)
        piece_event(p, i, (piece){ .text = tkc_str(""), .calls = &s }, gen, out, err);
    if (q.done) {
        c->finished = true;
        piece_event(p, i, (piece){ .text = tkc_str(""), .finish = finish_reason(q, s.n_calls) },
                    gen, out, err);
    }
    tkc_arena_free(&arena);
    tkc_buf_free(&text);
}

static void events_tokens(void *user, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    tke_chat_part *p = user;
    for (size_t i = 0; i < tke_gen_n_samples(gen); i++)
        send_choice(p, i, gen, out, err);
}

static int32_t events_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                          tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_answer *a = p->answer;
    size_t n_choices = p->job->in.sample.gen.n_samples;
    tkc_jsonw w;
    if (!why)
        events_tokens(user, gen, out, err);
    if (!tke_chat_part_over(p, gen, why))
        return 200;
    /* As an event: the status was sent before the first of them. */
    if (tkc_failed(&a->failed)) {
        tkc_buf_cstr(out, "data: ", err);
        (void)fail_whole(&a->failed, out, err);
        tkc_buf_cstr(out, "\n\n", err);
    } else {
        if (a->usage) {
            begin_event(a, &w, out, err);
            tkc_jsonw_end(&w);
            write_usage(a, &w);
            end_event(&w, out, err);
        }
        tkc_buf_cstr(out, "data: [DONE]\n\n", err);
    }
    tke_chat_answer_free(a, n_choices);
    return 200;
}

const tke_stream_style tke_openai_events = { .tokens = events_tokens, .end = events_end };
