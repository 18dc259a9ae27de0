/* responses_answer.c - answers in the form of OpenAI's responses: a whole one, or server-sent events.
 *
 * An answer is a list of items: a thought, a message, calls. Items that are complete are kept as
 * JSON in the part's text, because the last event repeats them all. Thread: the worker's, under the
 * stream's lock. May touch: the answer and its buffer. Must not: read files, take the service's lock.
 */
#include "base/str.h"
#include "service/chat/chat_state.h"
#include "service/handlers/handler_call.h"
#include "service/worker/jobs.h"
#include "service/worker/sample_events.h"

#include <stdio.h>

#include "base/json_write.h"

typedef struct sending {
    tke_chat_part *p;
    tkc_buf *out; /* NULL = a whole answer: no events */
    tinkc_error *err;
} sending;

/* ---- items ---- */

enum { ID_TEXT = 64 };

static void item_id(const tke_chat_part *p, int32_t kind, size_t index, char out[ID_TEXT])
{
    (void)snprintf(out, ID_TEXT, "%s_%s_%zu",
                   kind == TKE_BLOCK_THINKING ? "rs"
                   : kind == TKE_BLOCK_TEXT   ? "msg"
                                              : "fc",
                   p->answer->id, index);
}

static void write_part(tkc_jsonw *w, int32_t kind, tinkc_str text)
{
    bool thought = kind == TKE_BLOCK_THINKING;
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, thought ? "reasoning_text" : "output_text");
    tkc_jsonw_key(w, "text");
    tkc_jsonw_str(w, tkc_strn(text.data ? text.data : "", text.len));
    if (!thought) {
        tkc_jsonw_key(w, "annotations");
        tkc_jsonw_array(w);
        tkc_jsonw_end(w);
        tkc_jsonw_key(w, "logprobs");
        tkc_jsonw_array(w);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
}

static void begin_item(const tke_chat_part *p, tkc_jsonw *w, int32_t kind, size_t index,
                       const char *status)
{
    char id[ID_TEXT];
    item_id(p, kind, index, id);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, id);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, kind == TKE_BLOCK_THINKING ? "reasoning"
                      : kind == TKE_BLOCK_TEXT   ? "message"
                                                 : "function_call");
    tkc_jsonw_key(w, "status");
    tkc_jsonw_cstr(w, status);
}

/* A thought or a message; empty at the beginning of its events. */
static void write_block(const tke_chat_part *p, tkc_jsonw *w, int32_t kind, size_t index,
                        const char *status, const tinkc_str *text)
{
    begin_item(p, w, kind, index, status);
    if (kind == TKE_BLOCK_THINKING) {
        tkc_jsonw_key(w, "summary");
        tkc_jsonw_array(w);
        tkc_jsonw_end(w);
    } else {
        tkc_jsonw_key(w, "role");
        tkc_jsonw_cstr(w, "assistant");
    }
    tkc_jsonw_key(w, "content");
    tkc_jsonw_array(w);
    if (text)
        write_part(w, kind, *text);
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

static void write_call(const tke_chat_part *p, tkc_jsonw *w, const tke_tool_call *call,
                       size_t index, bool done)
{
    char id[ID_TEXT];
    (void)snprintf(id, sizeof id, "call_%s_%zu", p->answer->id, index);
    begin_item(p, w, TKE_BLOCK_CALL, index, done ? "completed" : "in_progress");
    tkc_jsonw_key(w, "call_id");
    tkc_jsonw_cstr(w, id);
    tkc_jsonw_key(w, "name");
    tkc_jsonw_str(w, call->name);
    tkc_jsonw_key(w, "arguments");
    tkc_jsonw_str(w, done ? call->arguments : tkc_str(""));
    tkc_jsonw_end(w);
}

/* ---- the response ---- */

static void write_usage(const tke_chat_part *p, tkc_jsonw *w, size_t made)
{
    int64_t prompt = (int64_t)p->job->in.sample.gen.n_prompt;
    tkc_jsonw_key(w, "usage");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "input_tokens");
    tkc_jsonw_i64(w, prompt);
    tkc_jsonw_key(w, "input_tokens_details");
    tkc_jsonw_raw(w, tkc_str("{\"cached_tokens\":0}"));
    tkc_jsonw_key(w, "output_tokens");
    tkc_jsonw_i64(w, (int64_t)made);
    tkc_jsonw_key(w, "output_tokens_details");
    tkc_jsonw_raw(w, tkc_str("{\"reasoning_tokens\":0}"));
    tkc_jsonw_key(w, "total_tokens");
    tkc_jsonw_i64(w, prompt + (int64_t)made);
    tkc_jsonw_end(w);
}

static void write_details(const tke_chat_part *p, tkc_jsonw *w, const tke_gen *gen)
{
    const char *why = tke_chat_cut(p, gen, 0);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "reason");
    tkc_jsonw_cstr(w, "max_output_tokens");
    if (why) {
        tkc_jsonw_key(w, "warning");
        tkc_jsonw_cstr(w, why);
    }
    tkc_jsonw_end(w);
}

/* status: "in_progress", "completed" or "incomplete"; gen is NULL before the end. */
static void write_response(const tke_chat_part *p, tkc_jsonw *w, const char *status,
                           const tke_gen *gen)
{
    static const char *const nothing[] = { "error", "previous_response_id", "user" };
    const tke_chat_answer *a = p->answer;
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, a->id);
    tkc_jsonw_key(w, "object");
    tkc_jsonw_cstr(w, "response");
    tkc_jsonw_key(w, "created_at");
    tkc_jsonw_i64(w, a->created_s);
    tkc_jsonw_key(w, "status");
    tkc_jsonw_cstr(w, status);
    tkc_jsonw_key(w, "incomplete_details");
    if (strcmp(status, "incomplete") == 0)
        write_details(p, w, gen);
    else
        tkc_jsonw_null(w);
    tkc_jsonw_key(w, "model");
    tkc_jsonw_cstr(w, a->model);
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        tkc_jsonw_key(w, nothing[i]);
        tkc_jsonw_null(w);
    }
    tkc_jsonw_key(w, "store");
    tkc_jsonw_bool(w, false);
    tkc_jsonw_key(w, "truncation");
    tkc_jsonw_cstr(w, "disabled");
    tkc_jsonw_key(w, "output");
    tkc_jsonw_array(w);
    if (p->text.len)
        tkc_jsonw_raw(w, tkc_buf_view(&p->text));
    tkc_jsonw_end(w);
    if (gen)
        write_usage(p, w, tke_gen_sequence(gen, 0).n);
    else {
        tkc_jsonw_key(w, "usage");
        tkc_jsonw_null(w);
    }
    if (!tkc_failed(w->err)) {
        tkc_buf_cstr(w->out, ",", w->err);
        tkc_buf_cstr(w->out, a->settings ? a->settings : "\"metadata\":{}", w->err);
    }
    tkc_jsonw_end(w);
}

static const char *status_of(tke_sequence q)
{
    return q.stopped ? "completed" : "incomplete";
}

/* ---- events ---- */

static void begin_event(sending *s, tkc_jsonw *w, const char *type)
{
    tkc_buf_cstr(s->out, "event: ", s->err);
    tkc_buf_cstr(s->out, type, s->err);
    tkc_buf_cstr(s->out, "\ndata: ", s->err);
    tkc_jsonw_open(w, s->out, s->err);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, type);
    tkc_jsonw_key(w, "sequence_number");
    tkc_jsonw_i64(w, s->p->choices[0].n_events++);
}

static void end_event(sending *s, tkc_jsonw *w)
{
    tkc_jsonw_end(w);
    tkc_buf_cstr(s->out, "\n\n", s->err);
}

static void response_event(sending *s, const char *type, const char *status, const tke_gen *gen)
{
    tkc_jsonw w;
    begin_event(s, &w, type);
    tkc_jsonw_key(&w, "response");
    write_response(s->p, &w, status, gen);
    end_event(s, &w);
}

/* An event of a part of an item: its place, then a member with text. */
static void place_event(sending *s, tkc_jsonw *w, const char *type, int32_t kind, bool in_content)
{
    char id[ID_TEXT];
    size_t index = s->p->choices[0].n_blocks - 1;
    item_id(s->p, kind, index, id);
    begin_event(s, w, type);
    tkc_jsonw_key(w, "item_id");
    tkc_jsonw_cstr(w, id);
    tkc_jsonw_key(w, "output_index");
    tkc_jsonw_i64(w, (int64_t)index);
    if (in_content) {
        tkc_jsonw_key(w, "content_index");
        tkc_jsonw_i64(w, 0);
    }
}

static void text_event(sending *s, const char *type, int32_t kind, const char *member,
                       tinkc_str text)
{
    tkc_jsonw w;
    place_event(s, &w, type, kind, kind != TKE_BLOCK_CALL);
    tkc_jsonw_key(&w, member);
    tkc_jsonw_str(&w, tkc_strn(text.data ? text.data : "", text.len));
    if (kind == TKE_BLOCK_TEXT) {
        tkc_jsonw_key(&w, "logprobs");
        tkc_jsonw_array(&w);
        tkc_jsonw_end(&w);
    }
    end_event(s, &w);
}

static void part_event(sending *s, const char *type, int32_t kind, tinkc_str text)
{
    tkc_jsonw w;
    place_event(s, &w, type, kind, true);
    tkc_jsonw_key(&w, "part");
    write_part(&w, kind, text);
    end_event(s, &w);
}

static void open_item_event(sending *s, tkc_jsonw *w, const char *type)
{
    begin_event(s, w, type);
    tkc_jsonw_key(w, "output_index");
    tkc_jsonw_i64(w, (int64_t)s->p->choices[0].n_blocks - 1);
    tkc_jsonw_key(w, "item");
}

/* ---- the items as they come ---- */

/* Adds a complete item to those of the answer: the caller writes it. */
static void begin_kept(sending *s, tkc_jsonw *w)
{
    if (s->p->text.len)
        tkc_buf_cstr(&s->p->text, ",", s->err);
    tkc_jsonw_open(w, &s->p->text, s->err);
}

static void open_block(sending *s, tke_chat_choice *c, int32_t kind)
{
    tkc_jsonw w;
    c->block = kind;
    c->n_blocks++;
    tkc_buf_clear(&c->block_text);
    if (!s->out)
        return;
    open_item_event(s, &w, "response.output_item.added");
    write_block(s->p, &w, kind, c->n_blocks - 1, "in_progress", NULL);
    end_event(s, &w);
    part_event(s, "response.content_part.added", kind, tkc_str(""));
}

static void close_block(sending *s, tke_chat_choice *c)
{
    tkc_jsonw w;
    int32_t kind = c->block;
    tinkc_str text = tkc_buf_view(&c->block_text);
    if (!kind)
        return;
    begin_kept(s, &w);
    write_block(s->p, &w, kind, c->n_blocks - 1, "completed", &text);
    c->block = TKE_BLOCK_NONE;
    if (!s->out)
        return;
    text_event(s,
               kind == TKE_BLOCK_THINKING ? "response.reasoning_text.done"
                                          : "response.output_text.done",
               kind, "text", text);
    part_event(s, "response.content_part.done", kind, text);
    open_item_event(s, &w, "response.output_item.done");
    write_block(s->p, &w, kind, c->n_blocks - 1, "completed", &text);
    end_event(s, &w);
}

static void take_piece(const tke_chat_part *p, tke_chat_choice *c, int32_t kind, tinkc_str text,
                       void *arg)
{
    sending *s = arg;
    (void)p;
    if (c->block != kind) {
        close_block(s, c);
        open_block(s, c, kind);
    }
    tkc_buf_add(&c->block_text, text.data, text.len, s->err);
    if (s->out)
        text_event(s,
                   kind == TKE_BLOCK_THINKING ? "response.reasoning_text.delta"
                                              : "response.output_text.delta",
                   kind, "delta", text);
}

static void take_call(sending *s, tke_chat_choice *c, const tke_tool_call *call)
{
    tkc_jsonw w;
    close_block(s, c);
    size_t index = c->n_blocks++;
    begin_kept(s, &w);
    write_call(s->p, &w, call, index, true);
    if (!s->out)
        return;
    open_item_event(s, &w, "response.output_item.added");
    write_call(s->p, &w, call, index, false);
    end_event(s, &w);
    text_event(s, "response.function_call_arguments.delta", TKE_BLOCK_CALL, "delta",
               call->arguments);
    text_event(s, "response.function_call_arguments.done", TKE_BLOCK_CALL, "arguments",
               call->arguments);
    open_item_event(s, &w, "response.output_item.done");
    write_call(s->p, &w, call, index, true);
    end_event(s, &w);
}

/* Takes what the sequence has beyond what was taken before. */
static void take_new(sending *s, tke_sequence q)
{
    tke_chat_choice *c = &s->p->choices[0];
    tkc_buf text;
    tkc_arena arena;
    tkc_buf_init(&text, s->p->answer->arena.a, TKC_BUF_NO_MAX);
    tkc_arena_init(&arena, s->p->answer->arena.a, 0);
    tke_chat_take_text(s->p, c, q, q.done, &text, s->err);
    tke_chat_said said = { .text = tkc_buf_view(&text) };
    if (q.done)
        said = tke_chat_take_calls(s->p, said.text, &arena);
    tke_chat_blocks(s->p, c, said.text, q.done, take_piece, s, s->err);
    for (size_t i = 0; i < said.n_calls; i++)
        take_call(s, c, &said.calls[i]);
    if (q.done)
        close_block(s, c);
    tkc_arena_free(&arena);
    tkc_buf_free(&text);
}

/* ---- styles ---- */

static int32_t whole_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                         tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_answer *a = p->answer;
    int32_t status = 200;
    tkc_jsonw w;
    if (!why) {
        tke_sequence q = tke_gen_sequence(gen, 0);
        q.done = true;
        take_new(&(sending){ .p = p, .err = err }, q);
        tkc_jsonw_open(&w, out, err);
        write_response(p, &w, status_of(q), gen);
    }
    (void)tke_chat_part_over(p, gen, why);
    if (tkc_failed(&a->failed)) {
        const char *code;
        status = tke_failure_status(&a->failed, &code);
        tke_openai_error(out, status, code, NULL, a->failed.message, err);
    }
    tke_chat_answer_free(a, 1);
    return status;
}

const tke_stream_style tke_responses_whole = { .whole = true, .end = whole_end };

static void events_tokens(void *user, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    tke_chat_part *p = user;
    tke_chat_choice *c = &p->choices[0];
    tke_sequence q = tke_gen_sequence(gen, 0);
    sending s = { p, out, err };
    if (c->finished || (q.n == c->n_seen && !q.done))
        return;
    if (!c->begun) {
        response_event(&s, "response.created", "in_progress", NULL);
        response_event(&s, "response.in_progress", "in_progress", NULL);
    }
    c->begun = true;
    take_new(&s, q);
    if (!q.done)
        return;
    c->finished = true;
    response_event(&s, q.stopped ? "response.completed" : "response.incomplete", status_of(q),
                   gen);
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
        tkc_jsonw w;
        sending s = { p, out, err };
        (void)tke_failure_status(&a->failed, &code);
        begin_event(&s, &w, "error");
        tkc_jsonw_key(&w, "code");
        tkc_jsonw_cstr(&w, code);
        tkc_jsonw_key(&w, "message");
        tkc_jsonw_cstr(&w, a->failed.message);
        tkc_jsonw_key(&w, "param");
        tkc_jsonw_null(&w);
        end_event(&s, &w);
    }
    tke_chat_answer_free(a, 1);
    return 200;
}

const tke_stream_style tke_responses_events = { .tokens = events_tokens, .end = events_end };
