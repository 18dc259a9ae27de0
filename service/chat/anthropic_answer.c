/* anthropic_answer.c - messages in Anthropic's form: a whole message, or server-sent events.
 *
 * Thread: the worker's, under the stream's lock. May touch: the answer and its buffer. Must not: read
 * files, take the service's lock.
 */
#include "base/str.h"
#include "service/chat/chat_state.h"
#include "service/handlers/handler_call.h"
#include "service/worker/jobs.h"
#include "service/worker/sample_events.h"

#include <stdio.h>

#include "base/json_write.h"

void tke_anthropic_error(tkc_buf *out, int32_t status, const char *code, const char *text,
                         tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, "error");
    tkc_jsonw_key(&w, "error");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status == 413 ? "request_too_large"
                       : status == 429 ? "rate_limit_error"
                       : status == 503 ? "overloaded_error"
                       : status >= 500 ? "api_error"
                                       : "invalid_request_error");
    tkc_jsonw_key(&w, "message");
    tkc_jsonw_message(&w, text);
    if (tkc_cstr_eq(code,
                    TKE_THREAD_UNSUPPORTED)) { /* its client then sends the whole conversation */
        tkc_jsonw_key(&w, "details");
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "error_code");
        tkc_jsonw_cstr(&w, code);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
}

/* ---- common parts ---- */

static const char *stop_reason(const tke_chat_choice *c, tke_sequence q, size_t n_calls)
{
    return n_calls              ? "tool_use"
           : c->stopped_by.data ? "stop_sequence"
           : q.stopped          ? "end_turn"
                                : "max_tokens";
}

static void write_end(const tke_chat_choice *c, tkc_jsonw *w, const char *reason)
{
    tkc_jsonw_key(w, "stop_reason");
    tkc_jsonw_cstr(w, reason);
    tkc_jsonw_key(w, "stop_sequence");
    if (reason && c->stopped_by.data && strcmp(reason, "stop_sequence") == 0)
        tkc_jsonw_str(w, c->stopped_by);
    else
        tkc_jsonw_null(w);
}

static void write_usage(const tke_chat_part *p, tkc_jsonw *w, size_t made)
{
    tkc_jsonw_key(w, "usage");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "input_tokens");
    tkc_jsonw_i64(w, (int64_t)p->job->in.sample.gen.n_prompt);
    tkc_jsonw_key(w, "output_tokens");
    tkc_jsonw_i64(w, (int64_t)made);
    tkc_jsonw_end(w);
}

/* Opens the message, up to its content. */
static void begin_message(const tke_chat_part *p, tkc_jsonw *w)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, p->answer->id);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, "message");
    tkc_jsonw_key(w, "role");
    tkc_jsonw_cstr(w, "assistant");
    tkc_jsonw_key(w, "model");
    tkc_jsonw_cstr(w, p->answer->model);
    tkc_jsonw_key(w, "content");
    tkc_jsonw_array(w);
}

/* A block of text or thought; whole, or empty at the beginning of its events. */
static void write_block(tkc_jsonw *w, int32_t kind, tinkc_str text)
{
    bool thinking = kind == TKE_BLOCK_THINKING;
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, thinking ? "thinking" : "text");
    tkc_jsonw_key(w, thinking ? "thinking" : "text");
    tkc_jsonw_str(w, text);
    if (thinking) {
        tkc_jsonw_key(w, "signature"); /* nothing vouches for it */
        tkc_jsonw_cstr(w, "");
    }
    tkc_jsonw_end(w);
}

static void write_call(const tke_chat_part *p, tkc_jsonw *w, const tke_tool_call *call, size_t i,
                       bool whole)
{
    char id[80];
    (void)snprintf(id, sizeof id, "toolu_%s_%zu", p->answer->id, i);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, "tool_use");
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, id);
    tkc_jsonw_key(w, "name");
    tkc_jsonw_str(w, call->name);
    tkc_jsonw_key(w, "input");
    tkc_jsonw_raw(w, whole ? call->arguments : tkc_str("{}"));
    tkc_jsonw_end(w);
}

/* ---- whole messages ---- */

typedef struct gathered {
    tkc_buf thinking, text;
    tinkc_error *err;
} gathered;

static void gather(const tke_chat_part *p, tke_chat_choice *c, int32_t kind, tinkc_str text,
                   void *arg)
{
    gathered *g = arg;
    (void)p, (void)c;
    tkc_buf_add(kind == TKE_BLOCK_THINKING ? &g->thinking : &g->text, text.data, text.len, g->err);
}

static void write_message(tke_chat_part *p, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    tke_chat_choice *c = &p->choices[0];
    tke_sequence q = tke_gen_sequence(gen, 0);
    tkc_buf text;
    tkc_arena arena;
    gathered g = { .err = err };
    tkc_jsonw w;
    tkc_buf_init(&text, p->answer->arena.a, TKC_BUF_NO_MAX);
    tkc_buf_init(&g.text, p->answer->arena.a, TKC_BUF_NO_MAX);
    tkc_buf_init(&g.thinking, p->answer->arena.a, TKC_BUF_NO_MAX);
    tkc_arena_init(&arena, p->answer->arena.a, 0);
    tke_chat_take_text(p, c, q, true, &text, err);
    tke_chat_said s = tke_chat_take_calls(p, tkc_buf_view(&text), &arena);
    tke_chat_blocks(p, c, s.text, true, gather, &g, err);
    tkc_jsonw_open(&w, out, err);
    begin_message(p, &w);
    if (g.thinking.len)
        write_block(&w, TKE_BLOCK_THINKING, tkc_buf_view(&g.thinking));
    if (g.text.len)
        write_block(&w, TKE_BLOCK_TEXT, tkc_buf_view(&g.text));
    for (size_t i = 0; i < s.n_calls; i++)
        write_call(p, &w, &s.calls[i], i, true);
    tkc_jsonw_end(&w);
    write_end(c, &w, stop_reason(c, q, s.n_calls));
    write_usage(p, &w, q.n);
    tkc_jsonw_end(&w);
    tkc_arena_free(&arena);
    tkc_buf_free(&text);
    tkc_buf_free(&g.text);
    tkc_buf_free(&g.thinking);
}

static int32_t whole_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                         tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_answer *a = p->answer;
    int32_t status = 200;
    if (!why)
        write_message(p, gen, out, err);
    (void)tke_chat_part_over(p, gen, why);
    if (tkc_failed(&a->failed)) {
        const char *code;
        status = tke_failure_status(&a->failed, &code);
        tke_anthropic_error(out, status, code, a->failed.message, err);
    }
    tke_chat_answer_free(a, 1);
    return status;
}

const tke_stream_style tke_anthropic_whole = { .whole = true, .end = whole_end };

/* ---- events ---- */

typedef struct sending {
    tkc_buf *out;
    tinkc_error *err;
} sending;

/* Opens an event of this type; the caller adds members and calls end_event. */
static void begin_event(tkc_jsonw *w, const char *type, tkc_buf *out, tinkc_error *err)
{
    tkc_buf_cstr(out, "event: ", err);
    tkc_buf_cstr(out, type, err);
    tkc_buf_cstr(out, "\ndata: ", err);
    tkc_jsonw_open(w, out, err);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, type);
}

static void end_event(tkc_jsonw *w, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw_end(w);
    tkc_buf_cstr(out, "\n\n", err);
}

static void start_message(const tke_chat_part *p, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    begin_event(&w, "message_start", out, err);
    tkc_jsonw_key(&w, "message");
    begin_message(p, &w);
    tkc_jsonw_end(&w);
    write_end(&p->choices[0], &w, NULL);
    write_usage(p, &w, 0);
    tkc_jsonw_end(&w);
    end_event(&w, out, err);
}

static void index_event(tkc_jsonw *w, const char *type, size_t index, tkc_buf *out,
                        tinkc_error *err)
{
    begin_event(w, type, out, err);
    tkc_jsonw_key(w, "index");
    tkc_jsonw_i64(w, (int64_t)index);
}

static void close_block(tke_chat_choice *c, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    if (!c->block)
        return;
    index_event(&w, "content_block_stop", c->n_blocks - 1, out, err);
    end_event(&w, out, err);
    c->block = TKE_BLOCK_NONE;
}

static void delta_event(tke_chat_choice *c, const char *type, const char *member, tinkc_str text,
                        tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    index_event(&w, "content_block_delta", c->n_blocks - 1, out, err);
    tkc_jsonw_key(&w, "delta");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, type);
    tkc_jsonw_key(&w, member);
    tkc_jsonw_str(&w, text);
    tkc_jsonw_end(&w);
    end_event(&w, out, err);
}

static void send_piece(const tke_chat_part *p, tke_chat_choice *c, int32_t kind, tinkc_str text,
                       void *arg)
{
    sending *s = arg;
    tkc_jsonw w;
    (void)p;
    if (c->block != kind) {
        close_block(c, s->out, s->err);
        index_event(&w, "content_block_start", c->n_blocks, s->out, s->err);
        tkc_jsonw_key(&w, "content_block");
        write_block(&w, kind, tkc_str(""));
        end_event(&w, s->out, s->err);
        c->block = kind;
        c->n_blocks++;
    }
    bool thinking = kind == TKE_BLOCK_THINKING;
    delta_event(c, thinking ? "thinking_delta" : "text_delta", thinking ? "thinking" : "text", text,
                s->out, s->err);
}

static void send_call(const tke_chat_part *p, tke_chat_choice *c, const tke_tool_call *call,
                      size_t i, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    close_block(c, out, err);
    index_event(&w, "content_block_start", c->n_blocks, out, err);
    tkc_jsonw_key(&w, "content_block");
    write_call(p, &w, call, i, false);
    end_event(&w, out, err);
    c->block = TKE_BLOCK_CALL;
    c->n_blocks++;
    delta_event(c, "input_json_delta", "partial_json", call->arguments, out, err);
    close_block(c, out, err);
}

static void finish_message(const tke_chat_part *p, tke_chat_choice *c, tke_sequence q,
                           size_t n_calls, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    close_block(c, out, err);
    begin_event(&w, "message_delta", out, err);
    tkc_jsonw_key(&w, "delta");
    tkc_jsonw_object(&w);
    write_end(c, &w, stop_reason(c, q, n_calls));
    tkc_jsonw_end(&w);
    write_usage(p, &w, q.n);
    end_event(&w, out, err);
    begin_event(&w, "message_stop", out, err);
    end_event(&w, out, err);
}

static void events_tokens(void *user, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_choice *c = &p->choices[0];
    tke_sequence q = tke_gen_sequence(gen, 0);
    sending to = { out, err };
    tkc_buf text;
    tkc_arena arena;
    if (c->finished || (q.n == c->n_seen && !q.done))
        return;
    if (!c->begun)
        start_message(p, out, err);
    c->begun = true;
    tkc_buf_init(&text, p->answer->arena.a, TKC_BUF_NO_MAX);
    tkc_arena_init(&arena, p->answer->arena.a, 0);
    tke_chat_take_text(p, c, q, q.done, &text, err);
    tke_chat_said s = { .text = tkc_buf_view(&text) };
    if (q.done)
        s = tke_chat_take_calls(p, s.text, &arena);
    tke_chat_blocks(p, c, s.text, q.done, send_piece, &to, err);
    for (size_t i = 0; i < s.n_calls; i++)
        send_call(p, c, &s.calls[i], i, out, err);
    if (q.done) {
        c->finished = true;
        finish_message(p, c, q, s.n_calls, out, err);
    }
    tkc_arena_free(&arena);
    tkc_buf_free(&text);
}

static int32_t events_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                          tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_answer *a = p->answer;
    if (!why)
        events_tokens(user, gen, out, err);
    (void)tke_chat_part_over(p, gen, why);
    if (tkc_failed(&a->failed)) {
        const char *code;
        int32_t status;
        tkc_buf_cstr(out, "event: error\ndata: ", err);
        status = tke_failure_status(&a->failed, &code);
        tke_anthropic_error(out, status, code, a->failed.message, err);
        tkc_buf_cstr(out, "\n\n", err);
    }
    tke_chat_answer_free(a, 1);
    return 200;
}

const tke_stream_style tke_anthropic_events = { .tokens = events_tokens, .end = events_end };
