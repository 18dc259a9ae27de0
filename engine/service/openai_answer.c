/* openai_answer.c - completions in OpenAI's form: a whole answer, or server-sent events.
 *
 * Text ends before the token or string that stopped it. While a sequence grows, what could become a
 * stop string and half characters are held back, so that no event has to be taken back. Thread: the
 * worker's, under the stream's lock. May touch: the answer and its buffer. Must not: read files,
 * take the service's lock.
 */
#include "service/openai.h"

void tke_openai_error(tkc_buf *out, int32_t status, const char *code, const char *param,
                      const char *text, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "error");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "message");
    tkc_jsonw_cstr(&w, text);
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

/* ---- text ---- */

static bool is_end(const tke_openai_answer *a, int32_t token)
{
    const tke_gen_request *r = &a->job->in.sample.gen;
    for (size_t i = 0; i < r->n_stop_tokens; i++)
        if (r->stop_tokens[i] == token)
            return true;
    return tke_model_is_eos(a->job->in.sample.base->model, token);
}

/* The bytes of what is new in a sequence, behind those that are held. */
static void take_tokens(tke_openai_answer *a, tke_sequence q, bool last, tinkc_error *err)
{
    const tke_gen_request *r = &a->job->in.sample.gen;
    for (; a->n_seen < q.n; a->n_seen++) {
        const char *bytes;
        int32_t token = q.tokens[a->n_seen];
        if (last && q.stopped && a->n_seen + 1 == q.n && is_end(a, token))
            continue;
        size_t n = r->token_bytes(r->token_user, token, &bytes);
        if (n)
            tkc_buf_add(&a->held, bytes, n, err);
    }
}

/* Where the first stop string begins; the length if there is none. */
static size_t find_stop(const tke_gen_request *r, tinkc_str s)
{
    size_t first = s.len;
    for (size_t i = 0; i < r->n_stop_strings && s.len; i++) {
        tinkc_str stop = r->stop_strings[i];
        const char *at = memmem(s.data, s.len, stop.data, stop.len);
        if (at && (size_t)(at - s.data) < first)
            first = (size_t)(at - s.data);
    }
    return first;
}

/* How many bytes can be told already: whole characters that begin no stop string. */
static size_t certain(const tke_gen_request *r, tinkc_str s)
{
    size_t keep = 0;
    for (size_t i = 0; i < r->n_stop_strings; i++) {
        tinkc_str stop = r->stop_strings[i];
        size_t n = stop.len - 1 < s.len ? stop.len - 1 : s.len;
        while (n > keep && memcmp(s.data + s.len - n, stop.data, n) != 0)
            n--;
        keep = n > keep ? n : keep;
    }
    return tke_utf8_whole(tkc_strn(s.data, s.len - keep));
}

/* Moves text that is certain from held to *text. */
static void take_text(tke_openai_answer *a, tke_sequence q, bool last, tkc_buf *text,
                      tinkc_error *err)
{
    const tke_gen_request *r = &a->job->in.sample.gen;
    take_tokens(a, q, last, err);
    tinkc_str held = tkc_buf_view(&a->held);
    size_t n = held.len == 0 ? 0
               : !last       ? certain(r, held)
               : q.stopped   ? find_stop(r, held)
                             : held.len;
    tke_utf8_clean(text, tkc_strn(held.data, n), err);
    if (last)
        n = held.len;
    if (n)
        memmove(a->held.data, a->held.data + n, held.len - n);
    a->held.len -= n;
}

static tinkc_str text_of(const tkc_buf *b)
{
    return tkc_strn(b->data ? b->data : "", b->len);
}

/* ---- the parts of an answer ---- */

static void write_head(const tke_openai_answer *a, tkc_jsonw *w, const char *object)
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

static void write_usage(const tke_openai_answer *a, tkc_jsonw *w, const tke_gen *gen)
{
    int64_t prompt = (int64_t)a->job->in.sample.gen.n_prompt, made = 0;
    for (size_t i = 0; i < tke_gen_n_samples(gen); i++)
        made += (int64_t)tke_gen_sequence(gen, i).n;
    tkc_jsonw_key(w, "usage");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "prompt_tokens");
    tkc_jsonw_i64(w, prompt);
    tkc_jsonw_key(w, "completion_tokens");
    tkc_jsonw_i64(w, made);
    tkc_jsonw_key(w, "total_tokens");
    tkc_jsonw_i64(w, prompt + made);
    tkc_jsonw_end(w);
}

static const char *finish_reason(tke_sequence q)
{
    return q.stopped ? "stop" : "length";
}

static void write_choice(const tke_openai_answer *a, tkc_jsonw *w, size_t index, tinkc_str text,
                         tke_sequence q)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "index");
    tkc_jsonw_i64(w, (int64_t)index);
    if (a->chat) {
        tkc_jsonw_key(w, "message");
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, "role");
        tkc_jsonw_cstr(w, "assistant");
        tkc_jsonw_key(w, "content");
        tkc_jsonw_str(w, text);
        tkc_jsonw_end(w);
    } else {
        tkc_jsonw_key(w, "text");
        tkc_jsonw_str(w, text);
    }
    tkc_jsonw_key(w, "logprobs");
    tkc_jsonw_null(w);
    tkc_jsonw_key(w, "finish_reason");
    tkc_jsonw_cstr(w, finish_reason(q));
    tkc_jsonw_end(w);
}

/* ---- whole answers ---- */

static int32_t fail_whole(const tinkc_error *why, tkc_buf *out, tinkc_error *err)
{
    const char *code;
    int32_t status = tke_failure_status(why, &code);
    tke_openai_error(out, status, code, NULL, why->message, err);
    return status;
}

static int32_t whole_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                         tinkc_error *err)
{
    tke_openai_answer *a = user;
    int32_t status = 200;
    tkc_jsonw w;
    tkc_buf text;
    tkc_buf_init(&text, a->held.a, TKC_BUF_NO_MAX);
    if (why) {
        status = fail_whole(why, out, err);
    } else {
        tkc_jsonw_open(&w, out, err);
        write_head(a, &w, a->chat ? "chat.completion" : "text_completion");
        for (size_t i = 0; i < tke_gen_n_samples(gen) && !tkc_failed(err); i++) {
            tke_sequence q = tke_gen_sequence(gen, i);
            a->n_seen = 0;
            tkc_buf_clear(&text);
            take_text(a, q, true, &text, err);
            write_choice(a, &w, i, text_of(&text), q);
        }
        tkc_jsonw_end(&w);
        write_usage(a, &w, gen);
        tkc_jsonw_end(&w);
    }
    tkc_buf_free(&text);
    tkc_buf_free(&a->held);
    return status;
}

const tke_stream_style tke_openai_whole = { .whole = true, .end = whole_end };

/* ---- events ---- */

static void begin_event(const tke_openai_answer *a, tkc_jsonw *w, tkc_buf *out, tinkc_error *err)
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

/* One piece; role: the first of a message; finish NULL = more will come. */
static void piece_event(const tke_openai_answer *a, bool role, tinkc_str text, const char *finish,
                        tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    begin_event(a, &w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "index");
    tkc_jsonw_i64(&w, 0);
    tkc_jsonw_key(&w, a->chat ? "delta" : "text");
    if (a->chat) {
        tkc_jsonw_object(&w);
        if (role) {
            tkc_jsonw_key(&w, "role");
            tkc_jsonw_cstr(&w, "assistant");
        }
        if (!finish) {
            tkc_jsonw_key(&w, "content");
            tkc_jsonw_str(&w, text);
        }
        tkc_jsonw_end(&w);
    } else {
        tkc_jsonw_str(&w, text);
    }
    tkc_jsonw_key(&w, "logprobs");
    tkc_jsonw_null(&w);
    tkc_jsonw_key(&w, "finish_reason");
    tkc_jsonw_cstr(&w, finish);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    if (a->usage) {
        tkc_jsonw_key(&w, "usage");
        tkc_jsonw_null(&w);
    }
    end_event(&w, out, err);
}

static void send_text(tke_openai_answer *a, tke_sequence q, bool last, tkc_buf *out,
                      tinkc_error *err)
{
    tkc_buf text;
    tkc_buf_init(&text, a->held.a, TKC_BUF_NO_MAX);
    if (a->chat && !a->begun)
        piece_event(a, true, tkc_str(""), NULL, out, err);
    a->begun = true;
    take_text(a, q, last, &text, err);
    if (text.len)
        piece_event(a, false, text_of(&text), NULL, out, err);
    tkc_buf_free(&text);
}

static void events_tokens(void *user, const tke_gen *gen, tkc_buf *out, tinkc_error *err)
{
    tke_openai_answer *a = user;
    tke_sequence q = tke_gen_sequence(gen, 0);
    /* A sequence that is over waits for events_end, which knows that its last token may be its end.
     */
    if (q.n > a->n_seen && !q.done)
        send_text(a, q, false, out, err);
}

static int32_t events_end(void *user, const tke_gen *gen, const tinkc_error *why, tkc_buf *out,
                          tinkc_error *err)
{
    tke_openai_answer *a = user;
    tkc_jsonw w;
    if (why) {
        tkc_buf_cstr(out, "data: ", err);
        (void)fail_whole(why, out, err);
        tkc_buf_cstr(out, "\n\n", err);
    } else {
        tke_sequence q = tke_gen_sequence(gen, 0);
        send_text(a, q, true, out, err);
        piece_event(a, false, tkc_str(""), finish_reason(q), out, err);
        if (a->usage) {
            begin_event(a, &w, out, err);
            tkc_jsonw_end(&w);
            write_usage(a, &w, gen);
            end_event(&w, out, err);
        }
        tkc_buf_cstr(out, "data: [DONE]\n\n", err);
    }
    tkc_buf_free(&a->held);
    return 200;
}

const tke_stream_style tke_openai_events = { .tokens = events_tokens, .end = events_end };
