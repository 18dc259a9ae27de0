/* sample_message.c - asample requests, their results in protobuf and JSON, events of token streams. May
 * touch: what it was given. */
#include "wire/sample_message.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "wire/answer.h"
#include "wire/bulk.h"
#include "wire/tensor.h"

/* ---- requests ---- */

size_t tkc_model_input_estimate(const tinkc_chunk *chunks, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += 10 * chunks[i].tokens.len + chunks[i].bytes.len;
        if (chunks[i].kind == TINKC_CHUNK_IMAGE_POINTER && chunks[i].location)
            sum += strlen(chunks[i].location);
    }
    return sum;
}

static bool stop_given(const void *member)
{
    return ((const tkc_stop *)member)->kind != TKC_STOP_NONE;
}

static void write_stop(tkc_jsonw *w, const void *member)
{
    const tkc_stop *stop = member;
    const char *const *s = stop->strings;
    assert(stop->kind != TKC_STOP_NONE);
    if (stop->kind == TKC_STOP_TOKENS) {
        tkc_jsonw_i32s(w, stop->tokens.data, stop->tokens.len);
    } else if (stop->kind == TKC_STOP_STRING) {
        tkc_write_text(w, s && *s ? *s : "");
    } else {
        tkc_jsonw_array(w);
        for (; s && *s; s++)
            tkc_write_text(w, *s);
        tkc_jsonw_end(w);
    }
}

static const char *const *one_string(tkc_json *j)
{
    const char **list = tkc_arena_array(j->arena, 2, sizeof *list, j->err);
    if (list)
        list[0] = tkc_read_cstr(j);
    return list;
}

/* Numbers or strings: the first element decides; a mixed array fails at the first that differs. */
static void read_stop(tkc_json *j, void *member)
{
    tkc_stop *stop = member;
    if (tkc_json_null(j))
        return;
    if (tkc_json_peek(j) == TKC_JSON_STRING) {
        *stop = (tkc_stop){ .kind = TKC_STOP_STRING, .strings = one_string(j) };
        return;
    }
    tkc_json ahead = *j;
    bool numbers =
        tkc_json_array(&ahead) && tkc_json_item(&ahead) && tkc_json_peek(&ahead) == TKC_JSON_NUMBER;
    if (numbers)
        *stop = (tkc_stop){ .kind = TKC_STOP_TOKENS, .tokens = tkc_json_i32s(j) };
    else
        *stop = (tkc_stop){ .kind = TKC_STOP_STRINGS, .strings = tkc_read_strs(j) };
}

static const tkc_custom stop_codec = { .given = stop_given,
                                       .write = write_stop,
                                       .read = read_stop };

static bool tensor_given(const void *member)
{
    return ((const tkc_tensor *)member)->dtype != 0;
}

static void write_tensor(tkc_jsonw *w, const void *member)
{
    tkc_tensor_write(w, member);
}

static void read_optional_tensor(tkc_json *j, void *member)
{
    if (!tkc_json_null(j))
        tkc_tensor_read(j, member);
}

static const tkc_custom tensor_codec = { tensor_given, write_tensor, read_optional_tensor };

static const tkc_name stream_events[] = {
    { "token", TKC_STREAM_TOKEN },
    { "done", TKC_STREAM_DONE },
    { "error", TKC_STREAM_ERROR },
    { NULL, 0 },
};
static const tkc_name finish_reasons[] = {
    { "stop", TKC_FINISH_STOP },
    { "length", TKC_FINISH_LENGTH },
    { NULL, 0 },
};
static const tkc_name stream_categories[] = {
    { "unknown", TKC_CATEGORY_UNKNOWN },
    { "server", TKC_CATEGORY_SERVER },
    { "user", TKC_CATEGORY_USER },
    { NULL, 0 },
};

#define TKC_LIST "wire/sample_messages.inc"
#include "wire/fields_as_tables.h"

/* ---- results: writing protobuf ---- */

static size_t given_size(const void *data, size_t bytes)
{
    return data ? tkc_pb_size_bytes(bytes) : 0;
}

static size_t some_size(size_t bytes)
{
    return bytes ? tkc_pb_size_bytes(bytes) : 0;
}

static size_t number_size(uint64_t value)
{
    return value ? 1 + tkc_pb_size_varint(value) : 0;
}

static size_t topk_size(const tkc_topk *t)
{
    return some_size(t->ids.len * 4) + some_size(t->logprobs.len * 4) + number_size(t->k) +
           number_size(t->rows);
}

static const tkc_topk no_topk;

static const tkc_topk *topk_of(const tkc_sample_response *r, size_t i)
{
    return r->sampled_topk ? &r->sampled_topk[i] : &no_topk;
}

static size_t sequence_size(const tinkc_sequence *s, const tkc_topk *t)
{
    return number_size((uint64_t)s->stop_reason) + some_size(s->tokens.len * 4) +
           given_size(s->logprobs.data, s->logprobs.len * 4) +
           given_size(t->ids.data, topk_size(t));
}

static size_t optional_tensor_size(const tkc_tensor *t)
{
    return t->dtype ? tkc_pb_size_bytes(tkc_tensor_pb_size(t)) : 0;
}

static size_t alternatives_size(const tkc_sample_response *r)
{
    return optional_tensor_size(&r->alt_tokens) + optional_tensor_size(&r->alt_logprobs);
}

static size_t response_size(const tkc_sample_response *r)
{
    size_t size = given_size(r->prompt_logprobs.data, r->prompt_logprobs.len * 4) +
                  given_size(r->topk.ids.data, topk_size(&r->topk)) +
                  number_size((uint64_t)r->prompt_cache_hit_tokens) +
                  optional_tensor_size(&r->target_prompt_logprobs) +
                  (r->alt_tokens.dtype ? tkc_pb_size_bytes(alternatives_size(r)) : 0);
    for (size_t i = 0; i < r->sequences.len; i++)
        size += tkc_pb_size_bytes(sequence_size(&r->sequences.data[i], topk_of(r, i)));
    return size;
}

static unsigned char *put_number(unsigned char *at, uint32_t field, uint64_t value)
{
    return value ? tkc_pb_put_varint(tkc_pb_put_tag(at, field, TKC_PB_VARINT), value) : at;
}

static unsigned char *put_some(unsigned char *at, uint32_t field, const void *data, size_t bytes)
{
    return bytes ? tkc_pb_put_bytes(at, field, data, bytes) : at;
}

static unsigned char *put_given(unsigned char *at, uint32_t field, const void *data, size_t bytes)
{
    return data ? tkc_pb_put_bytes(at, field, data, bytes) : at;
}

static unsigned char *put_topk(unsigned char *at, uint32_t field, const tkc_topk *t)
{
    if (!t->ids.data)
        return at;
    at = tkc_pb_put_head(at, field, topk_size(t));
    at = put_some(at, 1, t->ids.data, t->ids.len * 4);
    at = put_some(at, 2, t->logprobs.data, t->logprobs.len * 4);
    at = put_number(at, 3, t->k);
    return put_number(at, 4, t->rows);
}

static unsigned char *put_optional_tensor(unsigned char *at, uint32_t field, const tkc_tensor *t)
{
    if (!t->dtype)
        return at;
    return tkc_tensor_pb_put(tkc_pb_put_head(at, field, tkc_tensor_pb_size(t)), t);
}

static unsigned char *put_sequence(unsigned char *at, const tinkc_sequence *s, const tkc_topk *t)
{
    at = tkc_pb_put_head(at, 1, sequence_size(s, t));
    at = put_number(at, 1, (uint64_t)s->stop_reason);
    at = put_some(at, 2, s->tokens.data, s->tokens.len * 4);
    at = put_given(at, 3, s->logprobs.data, s->logprobs.len * 4);
    return put_topk(at, 4, t);
}

static bool check_topk(const tkc_topk *t, tinkc_error *err)
{
    size_t cells = (size_t)t->k * t->rows;
    if (t->ids.data && (t->ids.len != cells || t->logprobs.len != cells))
        return tkc_fail(err, TINKC_E_ARGUMENT, "top-k matrices do not fit their size");
    return true;
}

static bool check_response(const tkc_sample_response *r, tinkc_error *err)
{
    for (size_t i = 0; r->sampled_topk && i < r->sequences.len; i++)
        if (!check_topk(&r->sampled_topk[i], err))
            return false;
    return check_topk(&r->topk, err);
}

bool tkc_sample_response_to_pb(const tkc_sample_response *r, tkc_buf *out, tinkc_error *err)
{
    if (tkc_failed(err) || !check_response(r, err))
        return false;
    size_t size = response_size(r);
    unsigned char *at = (unsigned char *)tkc_buf_room(out, size, err);
    if (!at)
        return false;
    for (size_t i = 0; i < r->sequences.len; i++)
        at = put_sequence(at, &r->sequences.data[i], topk_of(r, i));
    at = put_given(at, 2, r->prompt_logprobs.data, r->prompt_logprobs.len * 4);
    at = put_topk(at, 3, &r->topk);
    at = put_number(at, 4, (uint64_t)r->prompt_cache_hit_tokens);
    at = put_optional_tensor(at, 5, &r->target_prompt_logprobs);
    if (r->alt_tokens.dtype) {
        at = tkc_pb_put_head(at, 6, alternatives_size(r));
        at = put_optional_tensor(at, 1, &r->alt_tokens);
        at = put_optional_tensor(at, 2, &r->alt_logprobs);
    }
    size_t written = (size_t)((char *)at - (out->data + out->len));
    if (written != size)
        return tkc_fail(err, TINKC_E_STATE, "a response of %zu bytes was measured as %zu", written,
                        size);
    assert(out->len + size <= out->cap);
    out->len += size;
    return true;
}

/* ---- results: reading protobuf ---- */

static bool read_topk(const tkc_bulk *b, tinkc_bytes bytes, tkc_topk *out)
{
    tkc_pb p;
    tinkc_bytes ids = { NULL, 0 }, logprobs = { NULL, 0 };
    uint64_t k = 0, rows = 0;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            ids = p.bytes;
        else if (tkc_pb_is(&p, 2, TKC_PB_BYTES))
            logprobs = p.bytes;
        else if (tkc_pb_is(&p, 3, TKC_PB_VARINT))
            k = (uint32_t)p.number;
        else if (tkc_pb_is(&p, 4, TKC_PB_VARINT))
            rows = (uint32_t)p.number;
    }
    if (!tkc_bulk_done(b, &p))
        return false;
    if (k == 0 || rows == 0)
        return true;
    if (ids.len / 4 < k * rows || logprobs.len / 4 < k * rows)
        return tkc_bulk_fail(b, "top-k matrices shorter than they say");
    ids.len = logprobs.len = (size_t)(k * rows) * 4;
    out->k = (uint32_t)k;
    out->rows = (uint32_t)rows;
    return tkc_bulk_i32s(b, ids, &out->ids) && tkc_bulk_f32s(b, logprobs, &out->logprobs);
}

/* A response while it is being read. */
typedef struct reading {
    const tkc_bulk *b;
    tkc_sample_response *out;
    tinkc_sequence *sequences; /* room for n */
    tkc_topk *topk;            /* likewise; allocated at the first sequence that has any */
    size_t n;
} reading;

static bool read_sampled_topk(reading *r, tinkc_bytes bytes, size_t i)
{
    if (!r->topk)
        r->topk = tkc_arena_array(r->b->arena, r->n, sizeof *r->topk, r->b->err);
    return r->topk && read_topk(r->b, bytes, &r->topk[i]);
}

static bool read_sequence(reading *r, tinkc_bytes bytes)
{
    const tkc_bulk *b = r->b;
    const size_t i = r->out->sequences.len++;
    tkc_pb p;
    tinkc_bytes tokens = { NULL, 0 }, logprobs = { NULL, 0 };
    assert(i < r->n);
    tinkc_sequence *out = &r->sequences[i];
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_VARINT))
            out->stop_reason = (int32_t)(uint32_t)p.number;
        else if (tkc_pb_is(&p, 2, TKC_PB_BYTES))
            tokens = p.bytes;
        else if (tkc_pb_is(&p, 3, TKC_PB_BYTES))
            logprobs = p.bytes;
        else if (tkc_pb_is(&p, 4, TKC_PB_BYTES) && !read_sampled_topk(r, p.bytes, i))
            return false;
    }
    if (!tkc_bulk_done(b, &p) || !tkc_bulk_i32s(b, tokens, &out->tokens))
        return false;
    return logprobs.len == 0 || tkc_bulk_f32s(b, logprobs, &out->logprobs);
}

/* What the type's elements are must be known: the tensor may be written again. */
static bool read_tensor(const tkc_bulk *b, tinkc_bytes bytes, tkc_tensor *out)
{
    if (!tkc_tensor_pb_read(b, bytes, out))
        return false;
    return !out->dtype || tkc_dtype_size(out->dtype) ||
           tkc_bulk_fail(b, "a tensor of an unknown type");
}

static bool read_alternatives(const tkc_bulk *b, tinkc_bytes bytes, tkc_sample_response *out)
{
    tkc_pb p;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        bool tokens = tkc_pb_is(&p, 1, TKC_PB_BYTES);
        if ((tokens || tkc_pb_is(&p, 2, TKC_PB_BYTES)) &&
            !read_tensor(b, p.bytes, tokens ? &out->alt_tokens : &out->alt_logprobs))
            return false;
    }
    return tkc_bulk_done(b, &p);
}

static bool read_field(reading *r, const tkc_pb *p)
{
    tkc_sample_response *out = r->out;
    if (tkc_pb_is(p, 1, TKC_PB_BYTES))
        return read_sequence(r, p->bytes);
    if (tkc_pb_is(p, 2, TKC_PB_BYTES) && p->bytes.len)
        return tkc_bulk_f32s(r->b, p->bytes, &out->prompt_logprobs);
    if (tkc_pb_is(p, 3, TKC_PB_BYTES))
        return read_topk(r->b, p->bytes, &out->topk);
    if (tkc_pb_is(p, 5, TKC_PB_BYTES))
        return read_tensor(r->b, p->bytes, &out->target_prompt_logprobs);
    if (tkc_pb_is(p, 6, TKC_PB_BYTES))
        return read_alternatives(r->b, p->bytes, out);
    if (tkc_pb_is(p, 4, TKC_PB_VARINT))
        out->prompt_cache_hit_tokens = (int32_t)(uint32_t)p->number;
    return true;
}

bool tkc_sample_response_from_pb(tinkc_bytes bytes, tkc_arena *arena, tkc_sample_response *out,
                                 tinkc_error *err)
{
    tkc_bulk b = { arena, err, TINKC_E_BAD_RESPONSE, "sample result" };
    tkc_pb p;
    reading r = { .b = &b, .out = out, .n = tkc_bulk_count(bytes, 1) };
    *out = (tkc_sample_response){ 0 };
    if (tkc_failed(err))
        return false;
    r.sequences = tkc_arena_array(arena, r.n, sizeof *r.sequences, err);
    if (!r.sequences)
        return false;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p))
        if (!read_field(&r, &p))
            return false;
    assert(out->sequences.len <= r.n);
    out->sequences.data = r.sequences;
    out->sampled_topk = r.topk;
    return tkc_bulk_done(&b, &p);
}

size_t tkc_topk_row(const tkc_topk *t, size_t i, const int32_t **ids, const float **logprobs)
{
    if (!t->ids.data || i >= t->rows)
        return 0;
    assert(t->k > 0 && t->ids.len == (size_t)t->k * t->rows && t->logprobs.len == t->ids.len);
    const int32_t *row = t->ids.data + i * t->k;
    const float *values = t->logprobs.data + i * t->k;
    size_t n = t->k;
    bool none = row[0] == 0 && values[0] == TKC_TOPK_NONE;
    while (n && row[n - 1] == 0 && values[n - 1] == TKC_TOPK_NONE)
        n--;
    *ids = row;
    *logprobs = values;
    return none ? 0 : n;
}
