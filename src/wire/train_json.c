/* train_json.c - forward_backward requests and model inputs as JSON. May touch: what it was given.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/str.h"
#include "codec/base64.h"
#include "wire/tensor.h"

/* ---- chunks ---- */

static void write_base64(tkc_jsonw *w, const char *key, tinkc_bytes bytes)
{
    size_t len = tkc_base64_length(bytes.len);
    tkc_jsonw_key(w, key);
    tkc_jsonw_raw(w, tkc_str("\""));
    char *room = tkc_buf_room(w->out, len + 1, w->err);
    if (!room)
        return;
    tkc_base64_encode(bytes.data, bytes.len, room);
    assert(len + 1 <= w->out->cap - w->out->len);
    room[len] = '"';
    w->out->len += len + 1;
}

static void write_text_member(tkc_jsonw *w, const char *key, const char *text)
{
    tkc_jsonw_key(w, key);
    tkc_write_text(w, text ? text : "");
}

static void write_expected(tkc_jsonw *w, const tinkc_chunk *c)
{
    if (c->expected_tokens < 0)
        return;
    tkc_jsonw_key(w, "expected_tokens");
    tkc_jsonw_i64(w, c->expected_tokens);
}

static void write_chunk(tkc_jsonw *w, const tinkc_chunk *c)
{
    tkc_jsonw_object(w);
    switch (c->kind) {
    case TINKC_CHUNK_TOKENS:
        tkc_jsonw_key(w, "tokens");
        tkc_jsonw_i32s(w, c->tokens.data, c->tokens.len);
        write_text_member(w, "type", "encoded_text");
        break;
    case TINKC_CHUNK_IMAGE:
        write_base64(w, "data", c->bytes);
        write_text_member(w, "format", c->format);
        write_expected(w, c);
        write_text_member(w, "type", "image");
        break;
    case TINKC_CHUNK_IMAGE_POINTER:
        write_text_member(w, "format", c->format);
        write_text_member(w, "location", c->location);
        write_expected(w, c);
        write_text_member(w, "type", "image_asset_pointer");
        break;
    case TINKC_CHUNK_DMEL:
        write_base64(w, "dmel", c->bytes);
        write_text_member(w, "type", "dmel");
        break;
    default:
        tkc_fail(w->err, TINKC_E_UNSUPPORTED, "a chunk of unknown kind %d", (int)c->kind);
        break;
    }
    tkc_jsonw_end(w);
}

static const tkc_name chunk_kinds[] = {
    { "encoded_text", TINKC_CHUNK_TOKENS },
    { "image", TINKC_CHUNK_IMAGE },
    { "image_asset_pointer", TINKC_CHUNK_IMAGE_POINTER },
    { "dmel", TINKC_CHUNK_DMEL },
    { NULL, 0 },
};

/* What a chunk may hold, before its type is known. */
typedef struct chunk_parts {
    tkc_name type;
    tinkc_chunk chunk;
    tinkc_bytes data, dmel;
    bool has_tokens, has_data, has_dmel, has_location;
} chunk_parts;

static tinkc_bytes read_base64(tkc_json *j)
{
    tinkc_bytes out = { NULL, 0 };
    tinkc_str text = tkc_json_string(j);
    if (!tkc_failed(j->err) && !tkc_base64_decode(text, j->arena, &out, j->err))
        tkc_json_fail(j, "not base64");
    return out;
}

static void read_kind(tkc_json *j, int32_t *kind)
{
    tinkc_str text = tkc_json_string(j);
    for (const tkc_name *known = chunk_kinds; known->text; known++)
        if (tkc_str_is(text, known->text))
            *kind = known->value;
    if (!tkc_failed(j->err) && *kind == 0)
        tkc_json_fail(j, "a chunk of unknown type");
}

static void read_expected(tkc_json *j, int32_t *out)
{
    int64_t value = tkc_json_null(j) ? -1 : tkc_json_i64(j);
    if (value > INT32_MAX)
        tkc_json_fail(j, "expected_tokens is too large");
    *out = value < 0 ? -1 : (int32_t)value;
}

static void read_chunk_member(tkc_json *j, tinkc_str key, chunk_parts *out)
{
    if (tkc_str_is(key, "type")) {
        read_kind(j, &out->chunk.kind);
    } else if (tkc_str_is(key, "tokens")) {
        out->chunk.tokens = tkc_json_i32s(j);
        out->has_tokens = true;
    } else if (tkc_str_is(key, "data")) {
        out->data = read_base64(j);
        out->has_data = true;
    } else if (tkc_str_is(key, "dmel")) {
        out->dmel = read_base64(j);
        out->has_dmel = true;
    } else if (tkc_str_is(key, "format")) {
        out->chunk.format = tkc_read_cstr(j);
    } else if (tkc_str_is(key, "location")) {
        out->chunk.location = tkc_read_cstr(j);
        out->has_location = true;
    } else if (tkc_str_is(key, "expected_tokens")) {
        read_expected(j, &out->chunk.expected_tokens);
    } else {
        tkc_read_unknown(j, key);
    }
}

/* The type decides, never which members are present. */
static void finish_chunk(tkc_json *j, chunk_parts *p, tinkc_chunk *out)
{
    assert(!p->chunk.bytes.data); /* data and dmel wait until the type is known */
    bool complete = (p->chunk.kind == TINKC_CHUNK_TOKENS && p->has_tokens) ||
                    (p->chunk.kind == TINKC_CHUNK_IMAGE && p->has_data) ||
                    (p->chunk.kind == TINKC_CHUNK_IMAGE_POINTER && p->has_location) ||
                    (p->chunk.kind == TINKC_CHUNK_DMEL && p->has_dmel);
    if (tkc_failed(j->err))
        return;
    if (p->chunk.kind == 0)
        tkc_json_fail(j, "a chunk without type");
    else if (!complete)
        tkc_json_fail(j, "a chunk without its contents");
    *out = p->chunk;
    if (out->kind == TINKC_CHUNK_IMAGE)
        out->bytes = p->data;
    if (out->kind == TINKC_CHUNK_DMEL)
        out->bytes = p->dmel;
}

static void read_chunk(tkc_json *j, tinkc_chunk *out)
{
    chunk_parts parts = { .chunk = { .expected_tokens = -1, .format = "", .location = "" } };
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        read_chunk_member(j, key, &parts);
    finish_chunk(j, &parts, out);
}

static bool always(const void *member)
{
    (void)member;
    return true;
}

static void write_chunks(tkc_jsonw *w, const void *member)
{
    const tkc_model_input *input = member;
    tkc_jsonw_array(w);
    for (size_t i = 0; i < input->chunks.len; i++)
        write_chunk(w, &input->chunks.data[i]);
    tkc_jsonw_end(w);
}

static void read_chunks(tkc_json *j, void *member)
{
    tkc_model_input *out = member;
    tinkc_chunk *chunks = NULL;
    size_t n = 0, cap = 0;
    if (!tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        chunks = tkc_read_grow(j, chunks, n, &cap, sizeof *chunks);
        if (!chunks)
            return;
        read_chunk(j, &chunks[n++]);
    }
    out->chunks.data = chunks;
    out->chunks.len = n;
}

static const tkc_custom chunks_codec = { always, write_chunks, read_chunks };
static const tkc_field model_input_fields[] = {
    { "chunks", TKC_CUSTOM, TKC_MUST, offsetof(tkc_model_input, chunks), &chunks_codec },
};
const tkc_message tkc_model_input_type = { "model_input", sizeof(tkc_model_input),
                                           model_input_fields, 1, NULL };

/* ---- datums ---- */

typedef struct inputs_span { /* the layout of tkc_datum.inputs */
    const tkc_named_tensor *data;
    size_t len;
} inputs_span;

static void write_inputs(tkc_jsonw *w, const void *member)
{
    inputs_span inputs;
    memcpy(&inputs, member, sizeof inputs);
    tkc_jsonw_object(w);
    for (size_t i = 0; i < inputs.len && !tkc_failed(w->err); i++) {
        tkc_jsonw_key(w, inputs.data[i].name);
        tkc_tensor_write(w, &inputs.data[i].tensor);
    }
    tkc_jsonw_end(w);
}

static bool has_input(const tkc_named_tensor *inputs, size_t n, tinkc_str name)
{
    for (size_t i = 0; i < n; i++)
        if (tkc_str_is(name, inputs[i].name))
            return true;
    return false;
}

static void read_inputs(tkc_json *j, void *member)
{
    enum { MOST = 1000 }; /* a limit keeps the search for duplicate names cheap */
    inputs_span out = { NULL, 0 };
    tkc_named_tensor *inputs = NULL;
    size_t cap = 0;
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        inputs = tkc_read_grow(j, inputs, out.len, &cap, sizeof *inputs);
        if (!inputs)
            return;
        if (out.len == MOST || has_input(inputs, out.len, key))
            tkc_json_fail(j, "too many loss inputs, or one twice");
        if (key.len && memchr(key.data, '\0', key.len))
            tkc_json_fail(j, "U+0000 in a key");
        tkc_named_tensor *input = &inputs[out.len++];
        input->name = tkc_arena_str(j->arena, key, j->err);
        tkc_tensor_read(j, &input->tensor);
    }
    out.data = inputs;
    memcpy(member, &out, sizeof out);
}

static const tkc_custom inputs_codec = { always, write_inputs, read_inputs };

typedef struct spans_span { /* the layout of tkc_datum.input_spans */
    const tinkc_span *data;
    size_t len;
} spans_span;

static bool has_spans(const void *member)
{
    spans_span spans;
    memcpy(&spans, member, sizeof spans);
    return spans.len > 0;
}

/* As protobuf's own rules for JSON have it. */
static void write_spans(tkc_jsonw *w, const void *member)
{
    spans_span spans;
    memcpy(&spans, member, sizeof spans);
    tkc_jsonw_array(w);
    for (size_t i = 0; i < spans.len && !tkc_failed(w->err); i++) {
        const tinkc_span *s = &spans.data[i];
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, s->kind == TINKC_SPAN_SAMPLED ? "sampled_tokens" : "prompt_tokens");
        tkc_jsonw_object(w);
        write_text_member(w, "sequence_id", s->sequence_id);
        tkc_jsonw_key(w, "offset");
        tkc_jsonw_i64(w, s->offset);
        tkc_jsonw_key(w, "length");
        tkc_jsonw_i64(w, s->length);
        tkc_jsonw_end(w);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
}

static void skip_spans(tkc_json *j, void *member)
{
    (void)member;
    (void)tkc_json_skip(j);
}

static const tkc_custom spans_codec = { has_spans, write_spans, skip_spans };
static const tkc_field datum_fields[] = {
    { "model_input", TKC_OBJECT, TKC_MUST, offsetof(tkc_datum, chunks), &tkc_model_input_type },
    { "loss_fn_inputs", TKC_CUSTOM, TKC_MUST, offsetof(tkc_datum, inputs), &inputs_codec },
    { "model_input_spans", TKC_CUSTOM, TKC_NULLABLE, offsetof(tkc_datum, input_spans),
      &spans_codec },
    { "loss_fn_input_spans", TKC_CUSTOM, TKC_NULLABLE, offsetof(tkc_datum, target_spans),
      &spans_codec },
};
static const tkc_message datum_type = { "datum", sizeof(tkc_datum), datum_fields, 4, NULL };

/* ---- the request ---- */

typedef struct json_config {
    tkc_numbers numbers;
    const char *loss_id;
} json_config;

static bool config_given(const void *member)
{
    const json_config *config = member;
    return config->numbers.names || config->loss_id;
}

static void write_config(tkc_jsonw *w, const void *member)
{
    const json_config *config = member;
    tkc_write_numbers(w, &config->numbers, "loss_id", config->loss_id);
}

static void read_config(tkc_json *j, void *member)
{
    json_config *config = member;
    tkc_read_numbers(j, "loss_id", &config->numbers, &config->loss_id);
}

static const tkc_custom config_codec = { config_given, write_config, read_config };

typedef struct json_input {
    TKC_ARRAY(tkc_datum) data;
    const char *loss_fn;
    json_config loss_fn_config;
} json_input;

typedef struct json_request {
    const char *model_id;
    tkc_opt_i64 seq_id;
    const json_input *backward, *forward;
} json_request;

static const tkc_field input_fields[] = {
    { "data", TKC_OBJECTS, TKC_MUST, offsetof(json_input, data), &datum_type },
    { "loss_fn", TKC_STR, TKC_MUST, offsetof(json_input, loss_fn), NULL },
    { "loss_fn_config", TKC_CUSTOM, TKC_NULLABLE, offsetof(json_input, loss_fn_config),
      &config_codec },
};
static const tkc_message input_type = { "input", sizeof(json_input), input_fields, 3, NULL };

static const tkc_field request_fields[] = {
    { "model_id", TKC_STR, TKC_MUST, offsetof(json_request, model_id), NULL },
    { "seq_id", TKC_OPT_I64, TKC_NULLABLE, offsetof(json_request, seq_id), NULL },
    { "forward_backward_input", TKC_OBJECT_PTR, TKC_NULLABLE, offsetof(json_request, backward),
      &input_type },
    { "forward_input", TKC_OBJECT_PTR, TKC_NULLABLE, offsetof(json_request, forward), &input_type },
};
static const tkc_message request_type = { "forward_backward request", sizeof(json_request),
                                                request_fields, 4, NULL };

bool tkc_forward_backward_to_json(const tkc_forward_backward_request *r, tkc_buf *out,
                                  tinkc_error *err)
{
    json_input input = { .loss_fn = r->loss_fn,
                         .loss_fn_config = { r->loss_fn_config, r->loss_id } };
    json_request request = { .model_id = r->model_id };
    input.data.data = r->data.data;
    input.data.len = r->data.len;
    if (r->seq_id)
        request.seq_id = (tkc_opt_i64)TKC_SOME(r->seq_id);
    *(r->forward_only ? &request.forward : &request.backward) = &input;
    return tkc_message_encode(&request_type, &request, out, err);
}

bool tkc_forward_backward_from_json(tinkc_str json, int32_t code, tkc_arena *arena,
                                    tkc_forward_backward_request *out, const char **unknown,
                                    tinkc_error *err)
{
    json_request request;
    *out = (tkc_forward_backward_request){ .model_id = "", .loss_fn = "" };
    if (!tkc_message_decode_noting(&request_type, json, code, arena, &request, unknown,
                                   err))
        return false;
    const json_input *input = request.backward ? request.backward : request.forward;
    if (!input || (request.backward && request.forward))
        return tkc_fail(err, code,
                        "forward_backward request: it needs forward_backward_input or "
                        "forward_input, and not both");
    out->model_id = request.model_id;
    out->seq_id = request.seq_id.value;
    out->data.data = input->data.data;
    out->data.len = input->data.len;
    out->loss_fn = input->loss_fn;
    out->loss_fn_config = input->loss_fn_config.numbers;
    out->loss_id = input->loss_fn_config.loss_id;
    out->forward_only = request.forward != NULL;
    return true;
}
