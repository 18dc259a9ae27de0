/* sample_json.c - results of asample as JSON, for clients older than the protobuf form. May touch:
 * what it was given.
 *
 * {"sequences": [{"stop_reason", "tokens", "logprobs"}], "prompt_logprobs": [null, -2.0],
 *  "topk_prompt_logprobs": [null, [[9, -0.25], [4, -1.5]]], "prompt_cache_hit_tokens": 0}
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/str.h"
#include "wire/sample_message.h"
#include "wire/tensor.h"

/* ---- writing ---- */

static const char *reason_text(int32_t reason)
{
    return reason == TINKC_STOP ? "stop" : reason == TINKC_STOP_LENGTH ? "length" : NULL;
}

static void write_sequence(tkc_jsonw *w, const tinkc_sequence *s)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "stop_reason");
    if (!reason_text(s->stop_reason))
        tkc_fail(w->err, TINKC_E_ARGUMENT, "a stop reason without name");
    tkc_jsonw_cstr(w, reason_text(s->stop_reason));
    tkc_jsonw_key(w, "tokens");
    tkc_jsonw_i32s(w, s->tokens.data, s->tokens.len);
    if (s->logprobs.data) {
        tkc_jsonw_key(w, "logprobs");
        tkc_jsonw_f32s(w, s->logprobs.data, s->logprobs.len);
    }
    tkc_jsonw_end(w);
}

static void write_topk_row(tkc_jsonw *w, const tkc_topk *t, size_t i)
{
    const int32_t *ids;
    const float *logprobs;
    size_t n = tkc_topk_row(t, i, &ids, &logprobs);
    if (n == 0) {
        tkc_jsonw_null(w);
        return;
    }
    tkc_jsonw_array(w);
    for (size_t k = 0; k < n; k++) {
        tkc_jsonw_array(w);
        tkc_jsonw_i64(w, ids[k]);
        tkc_jsonw_float(w, logprobs[k]);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
}

bool tkc_sample_response_to_json(const tkc_sample_response *r, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "sequences");
    tkc_jsonw_array(&w);
    for (size_t i = 0; i < r->sequences.len && !tkc_failed(err); i++)
        write_sequence(&w, &r->sequences.data[i]);
    tkc_jsonw_end(&w);
    if (r->prompt_logprobs.data) {
        tkc_jsonw_key(&w, "prompt_logprobs");
        tkc_jsonw_f32s(&w, r->prompt_logprobs.data, r->prompt_logprobs.len);
    }
    if (r->topk.ids.data) {
        tkc_jsonw_key(&w, "topk_prompt_logprobs");
        tkc_jsonw_array(&w);
        for (size_t i = 0; i < r->topk.rows && !tkc_failed(err); i++)
            write_topk_row(&w, &r->topk, i);
        tkc_jsonw_end(&w);
    }
    if (r->target_prompt_logprobs.dtype) {
        tkc_jsonw_key(&w, "target_prompt_logprobs");
        tkc_tensor_write(&w, &r->target_prompt_logprobs);
    }
    if (r->alt_tokens.dtype) {
        tkc_jsonw_key(&w, "prompt_alt_tokens");
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "tokens");
        tkc_tensor_write(&w, &r->alt_tokens);
        tkc_jsonw_key(&w, "logprobs");
        tkc_tensor_write(&w, &r->alt_logprobs);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_key(&w, "prompt_cache_hit_tokens");
    tkc_jsonw_i64(&w, r->prompt_cache_hit_tokens);
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}

/* ---- reading ---- */

static int32_t read_reason(tkc_json *j)
{
    tinkc_str text = tkc_json_string(j);
    if (tkc_str_is(text, "stop"))
        return TINKC_STOP;
    return tkc_str_is(text, "length") ? TINKC_STOP_LENGTH : -1; /* unknown values survive as -1 */
}

static tinkc_f32s read_floats(tkc_json *j)
{
    tinkc_f32s out = { NULL, 0 };
    if (!tkc_json_null(j))
        out = tkc_json_f32s(j);
    return out.len ? out : (tinkc_f32s){ NULL, 0 };
}

static void read_sequence(tkc_json *j, tinkc_sequence *out)
{
    tinkc_str key;
    bool has_tokens = false;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "stop_reason")) {
            out->stop_reason = read_reason(j);
        } else if (tkc_str_is(key, "tokens")) {
            out->tokens = tkc_json_i32s(j);
            has_tokens = true;
        } else if (tkc_str_is(key, "logprobs")) {
            out->logprobs = read_floats(j);
        } else {
            (void)tkc_json_skip(j);
        }
    }
    if (!has_tokens)
        tkc_json_fail(j, "a sequence without tokens");
}

static void read_sequences(tkc_json *j, tkc_sample_response *out)
{
    size_t n = 0, cap = 0;
    tinkc_sequence *list = NULL;
    if (!tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        list = tkc_read_grow(j, list, n, &cap, sizeof *list);
        if (!list)
            return;
        read_sequence(j, &list[n++]);
    }
    out->sequences.data = list;
    out->sequences.len = n;
}

/* One pass to find the size of the matrices: the number of rows and the longest row. */
static void measure_topk(tkc_json j, size_t *rows, size_t *k)
{
    *rows = *k = 0;
    if (!tkc_json_array(&j))
        return;
    while (tkc_json_item(&j)) {
        size_t n = 0;
        ++*rows;
        if (tkc_json_null(&j))
            continue;
        if (!tkc_json_array(&j))
            return;
        for (; tkc_json_item(&j); n++)
            (void)tkc_json_skip(&j);
        if (n > *k)
            *k = n;
    }
}

static void read_cell(tkc_json *j, int32_t *id, float *logprob)
{
    if (!tkc_json_array(j) || !tkc_json_item(j))
        return;
    int64_t value = tkc_json_i64(j);
    if (value < INT32_MIN || value > INT32_MAX)
        tkc_json_fail(j, "a token that does not fit 32 bits");
    *id = (int32_t)value;
    if (!tkc_json_item(j))
        tkc_json_fail(j, "a candidate without log-probability");
    *logprob = (float)tkc_json_double(j);
    if (tkc_json_item(j))
        tkc_json_fail(j, "a candidate of more than two numbers");
}

/* k columns; `ids` is zero already. */
static void read_topk_row(tkc_json *j, size_t k, int32_t *ids, float *logprobs)
{
    for (size_t i = 0; i < k; i++)
        logprobs[i] = TKC_TOPK_NONE;
    if (tkc_json_null(j) || !tkc_json_array(j))
        return;
    for (size_t i = 0; tkc_json_item(j); i++) {
        assert(i < k); /* k was measured before */
        read_cell(j, &ids[i], &logprobs[i]);
    }
}

static void read_topk(tkc_json *j, tkc_sample_response *out)
{
    size_t rows, k, cells;
    if (tkc_json_null(j))
        return;
    measure_topk(*j, &rows, &k);
    if (tkc_failed(j->err))
        return;
    /* One long row among many empty ones must not cost far more memory than the text is long. */
    size_t bound = 4096 + 4 * (size_t)(j->end - j->begin);
    if (!tkc_mul_size(rows, k, &cells) || cells > bound || k > UINT32_MAX || rows > UINT32_MAX) {
        tkc_json_fail(j, "too many candidates");
        return;
    }
    int32_t *ids = tkc_arena_array(j->arena, cells, sizeof *ids, j->err);
    float *logprobs = tkc_arena_array(j->arena, cells, sizeof *logprobs, j->err);
    if (!ids || !logprobs || !tkc_json_array(j))
        return;
    for (size_t i = 0; tkc_json_item(j); i++) {
        assert(i < rows);
        read_topk_row(j, k, ids + i * k, logprobs + i * k);
    }
    if (cells == 0)
        return;
    out->topk = (tkc_topk){ { ids, cells }, { logprobs, cells }, (uint32_t)k, (uint32_t)rows };
}

static void read_alt_tokens(tkc_json *j, tkc_sample_response *out)
{
    tinkc_str key;
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "tokens"))
            tkc_tensor_read(j, &out->alt_tokens);
        else if (tkc_str_is(key, "logprobs"))
            tkc_tensor_read(j, &out->alt_logprobs);
        else
            (void)tkc_json_skip(j);
    }
}

static void read_response(tkc_json *j, tkc_sample_response *out)
{
    tinkc_str key;
    bool has_sequences = false;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "sequences")) {
            read_sequences(j, out);
            has_sequences = true;
        } else if (tkc_str_is(key, "prompt_logprobs")) {
            out->prompt_logprobs = read_floats(j);
        } else if (tkc_str_is(key, "topk_prompt_logprobs")) {
            read_topk(j, out);
        } else if (tkc_str_is(key, "target_prompt_logprobs")) {
            if (!tkc_json_null(j))
                tkc_tensor_read(j, &out->target_prompt_logprobs);
        } else if (tkc_str_is(key, "prompt_alt_tokens")) {
            read_alt_tokens(j, out);
        } else if (tkc_str_is(key, "prompt_cache_hit_tokens") && !tkc_json_null(j)) {
            int64_t n = tkc_json_i64(j);
            out->prompt_cache_hit_tokens = n < 0 ? 0 : n > INT32_MAX ? INT32_MAX : (int32_t)n;
        } else if (!tkc_str_is(key, "prompt_cache_hit_tokens")) {
            (void)tkc_json_skip(j);
        }
    }
    if (!has_sequences)
        tkc_json_fail(j, "a sample result without sequences");
}

bool tkc_sample_response_from_json(tinkc_str json, tkc_arena *arena, tkc_sample_response *out,
                                   tinkc_error *err)
{
    tkc_json j;
    *out = (tkc_sample_response){ 0 };
    tkc_json_open(&j, json, arena, err);
    read_response(&j, out);
    return tkc_json_close(&j);
}
