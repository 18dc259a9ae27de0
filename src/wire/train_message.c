/* train_message.c - forward_backward requests as protobuf, both ways. May touch: what it was given.
 *
 * Writing makes two passes over the request, to measure and to copy, so that a batch of many
 * megabytes costs one allocation and one memcpy of each payload.
 */
#include "wire/train_message.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "wire/bulk.h"
#include "wire/tensor.h"

size_t tkc_dtype_size(int32_t dtype)
{
    static const size_t sizes[] = { 0, 4, 8, 4, 2, 2, 8 };
    return dtype > 0 && dtype < (int32_t)(sizeof sizes / sizeof *sizes) ? sizes[dtype] : 0;
}

static const char *const dtype_names[] = { "", "float32", "int64", "int32", "bfloat16" };
enum { N_DTYPES = sizeof dtype_names / sizeof dtype_names[0] };

const char *tkc_dtype_name(int32_t dtype)
{
    return dtype > 0 && dtype < N_DTYPES ? dtype_names[dtype] : "";
}

int32_t tkc_dtype_of(tinkc_str name)
{
    for (int32_t i = 1; i < N_DTYPES; i++)
        if (tkc_str_is(name, dtype_names[i]))
            return i;
    return 0;
}

const tkc_tensor *tkc_datum_input(const tkc_datum *d, const char *name)
{
    for (size_t i = 0; i < d->inputs.len; i++)
        if (strcmp(d->inputs.data[i].name, name) == 0)
            return &d->inputs.data[i].tensor;
    return NULL;
}

static size_t data_bytes(const tkc_tensor *t)
{
    return t->count * tkc_dtype_size(t->dtype);
}

/* ---- writing ---- */

static size_t optional_text_size(const char *text)
{
    return text && *text ? tkc_pb_size_bytes(strlen(text)) : 0;
}

static size_t optional_bytes_size(size_t len)
{
    return len ? tkc_pb_size_bytes(len) : 0;
}

/* Size of the message inside a Chunk: EncodedTextChunk, ImageChunk or DmelChunk. */
static size_t chunk_body_size(const tinkc_chunk *c)
{
    if (c->kind == TINKC_CHUNK_TOKENS)
        return optional_bytes_size(c->tokens.len * sizeof(int32_t));
    size_t size = optional_bytes_size(c->bytes.len);
    if (c->kind == TINKC_CHUNK_IMAGE) {
        size += optional_text_size(c->format);
        if (c->expected_tokens >= 0)
            size += 1 + tkc_pb_size_varint((uint64_t)c->expected_tokens);
    }
    return size;
}

static size_t sparse_size(const tkc_tensor *t)
{
    return optional_bytes_size(data_bytes(t)) + optional_bytes_size(t->crow.len * 8) +
           optional_bytes_size(t->col.len * 8);
}

size_t tkc_tensor_pb_size(const tkc_tensor *t)
{
    size_t encoding = t->sparse ? sparse_size(t) : data_bytes(t);
    size_t dtype = 1 + tkc_pb_size_varint((uint64_t)t->dtype);
    return tkc_pb_size_bytes(encoding) + dtype + tkc_bulk_varints_size(t->shape);
}

static size_t input_size(const tkc_named_tensor *t)
{
    return tkc_pb_size_bytes(strlen(t->name)) + tkc_pb_size_bytes(tkc_tensor_pb_size(&t->tensor));
}

/* Size of the message inside a ProvenanceSpan. */
static size_t span_body_size(const tinkc_span *s)
{
    return tkc_pb_size_bytes(strlen(s->sequence_id)) +
           (s->offset ? 1 + tkc_pb_size_varint((uint64_t)s->offset) : 0) +
           (s->length ? 1 + tkc_pb_size_varint((uint64_t)s->length) : 0);
}

static size_t spans_size(const tinkc_span *spans, size_t n)
{
    size_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += tkc_pb_size_bytes(tkc_pb_size_bytes(span_body_size(&spans[i])));
    return size;
}

static size_t datum_size(const tkc_datum *d)
{
    size_t size = 0;
    for (size_t i = 0; i < d->chunks.len; i++)
        size += tkc_pb_size_bytes(tkc_pb_size_bytes(chunk_body_size(&d->chunks.data[i])));
    for (size_t i = 0; i < d->inputs.len; i++)
        size += tkc_pb_size_bytes(input_size(&d->inputs.data[i]));
    size += spans_size(d->input_spans.data, d->input_spans.len);
    size += spans_size(d->target_spans.data, d->target_spans.len);
    return size;
}

/* An entry of the second map of the configuration: {1: "loss_id", 2: {2: text}}. */
static const char loss_id_key[] = "loss_id";

static size_t loss_id_size(const char *text)
{
    return tkc_pb_size_bytes(sizeof loss_id_key - 1) +
           tkc_pb_size_bytes(tkc_pb_size_bytes(strlen(text)));
}

size_t tkc_forward_backward_pb_size(const tkc_forward_backward_request *r)
{
    size_t size = optional_text_size(r->model_id) + optional_text_size(r->loss_fn) +
                  tkc_bulk_numbers_size(&r->loss_fn_config);
    if (r->loss_id)
        size += tkc_pb_size_bytes(loss_id_size(r->loss_id));
    if (r->seq_id)
        size += 1 + tkc_pb_size_varint((uint64_t)r->seq_id);
    for (size_t i = 0; i < r->data.len; i++)
        size += tkc_pb_size_bytes(datum_size(&r->data.data[i]));
    return size + (r->forward_only ? 2 : 0);
}

static unsigned char *put_optional(unsigned char *at, uint32_t field, const void *bytes, size_t len)
{
    return len ? tkc_pb_put_bytes(at, field, bytes, len) : at;
}

static unsigned char *put_text(unsigned char *at, uint32_t field, const char *text)
{
    return put_optional(at, field, text, strlen(text));
}

static unsigned char *put_number(unsigned char *at, uint32_t field, uint64_t value)
{
    return tkc_pb_put_varint(tkc_pb_put_tag(at, field, TKC_PB_VARINT), value);
}

static unsigned char *put_chunk(unsigned char *at, const tinkc_chunk *c)
{
    size_t body = chunk_body_size(c);
    assert(c->kind != TINKC_CHUNK_IMAGE_POINTER); /* check_chunk rejects it */
    uint32_t member = c->kind == TINKC_CHUNK_TOKENS ? 1 : c->kind == TINKC_CHUNK_IMAGE ? 2 : 3;
    at = tkc_pb_put_head(at, 1, tkc_pb_size_bytes(body));
    at = tkc_pb_put_head(at, member, body);
    if (c->kind == TINKC_CHUNK_TOKENS)
        return put_optional(at, 1, c->tokens.data, c->tokens.len * sizeof(int32_t));
    at = put_optional(at, 1, c->bytes.data, c->bytes.len);
    if (c->kind == TINKC_CHUNK_IMAGE) {
        at = put_text(at, 2, c->format);
        if (c->expected_tokens >= 0)
            at = put_number(at, 3, (uint64_t)c->expected_tokens);
    }
    return at;
}

unsigned char *tkc_tensor_pb_put(unsigned char *at, const tkc_tensor *t)
{
    assert(tkc_dtype_size(t->dtype)); /* tkc_forward_backward_check has checked it */
    if (t->sparse) {
        at = tkc_pb_put_head(at, 2, sparse_size(t));
        at = put_optional(at, 1, t->data, data_bytes(t));
        at = put_optional(at, 2, t->crow.data, t->crow.len * 8);
        at = put_optional(at, 3, t->col.data, t->col.len * 8);
    } else {
        /* Also when there are none: this member says that the tensor is dense. */
        at = tkc_pb_put_bytes(at, 1, t->data, data_bytes(t));
    }
    at = put_number(at, 3, (uint64_t)t->dtype);
    return tkc_bulk_put_varints(at, 4, t->shape);
}

static unsigned char *put_spans(unsigned char *at, uint32_t field, const tinkc_span *spans,
                                size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const tinkc_span *s = &spans[i];
        size_t body = span_body_size(s);
        at = tkc_pb_put_head(at, field, tkc_pb_size_bytes(body));
        at = tkc_pb_put_head(at, (uint32_t)s->kind, body);
        at = tkc_pb_put_bytes(at, 1, s->sequence_id, strlen(s->sequence_id));
        if (s->offset)
            at = put_number(at, 2, (uint64_t)s->offset);
        if (s->length)
            at = put_number(at, 3, (uint64_t)s->length);
    }
    return at;
}

static unsigned char *put_datum(unsigned char *at, const tkc_datum *d)
{
    at = tkc_pb_put_head(at, 3, datum_size(d));
    for (size_t i = 0; i < d->chunks.len; i++)
        at = put_chunk(at, &d->chunks.data[i]);
    for (size_t i = 0; i < d->inputs.len; i++) {
        const tkc_named_tensor *input = &d->inputs.data[i];
        at = tkc_pb_put_head(at, 2, input_size(input));
        at = tkc_pb_put_bytes(at, 1, input->name, strlen(input->name));
        at = tkc_pb_put_head(at, 2, tkc_tensor_pb_size(&input->tensor));
        at = tkc_tensor_pb_put(at, &input->tensor);
    }
    at = put_spans(at, 3, d->input_spans.data, d->input_spans.len);
    return put_spans(at, 4, d->target_spans.data, d->target_spans.len);
}

static bool check_chunk(const tinkc_chunk *c, tinkc_error *err)
{
    switch (c->kind) {
    case TINKC_CHUNK_IMAGE:
        return tkc_bulk_check_text(c->format, "an image's format", err);
    case TINKC_CHUNK_TOKENS:
    case TINKC_CHUNK_DMEL:
        return true;
    case TINKC_CHUNK_IMAGE_POINTER:
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "an image pointer can be sampled from, not trained on");
    default:
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "a chunk of unknown kind %d", (int)c->kind);
    }
}

static bool check_spans(const tinkc_span *spans, size_t n, tinkc_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!tkc_bulk_check_text(spans[i].sequence_id, "the sequence_id of a span", err))
            return false;
    return true;
}

static bool check_datum(const tkc_datum *d, tinkc_error *err)
{
    for (size_t i = 0; i < d->chunks.len; i++)
        if (!check_chunk(&d->chunks.data[i], err))
            return false;
    for (size_t i = 0; i < d->inputs.len; i++) {
        const tkc_named_tensor *t = &d->inputs.data[i];
        if (!tkc_bulk_check_text(t->name, "the name of a loss input", err))
            return false;
        if (tkc_dtype_size(t->tensor.dtype) == 0 || t->tensor.dtype >= N_DTYPES)
            return tkc_fail(err, TINKC_E_TENSOR, "%s: no element type that can be sent", t->name);
    }
    return check_spans(d->input_spans.data, d->input_spans.len, err) &&
           check_spans(d->target_spans.data, d->target_spans.len, err);
}

bool tkc_forward_backward_check(const tkc_forward_backward_request *r, tinkc_error *err)
{
    if (r->seq_id < 0 || r->seq_id > INT32_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "seq_id does not fit 32 bits");
    if (!tkc_bulk_check_text(r->model_id, "model_id", err) ||
        !tkc_bulk_check_text(r->loss_fn, "loss_fn", err) ||
        (r->loss_id && !tkc_bulk_check_text(r->loss_id, "loss_id", err)))
        return false;
    for (size_t i = 0; i < r->loss_fn_config.len; i++)
        if (!tkc_bulk_check_text(r->loss_fn_config.names[i], "a name in loss_fn_config", err))
            return false;
    for (size_t i = 0; i < r->data.len; i++)
        if (!check_datum(&r->data.data[i], err))
            return false;
    return true;
}

static unsigned char *put_loss_id(unsigned char *at, const char *text)
{
    at = tkc_pb_put_head(at, 7, loss_id_size(text));
    at = tkc_pb_put_bytes(at, 1, loss_id_key, sizeof loss_id_key - 1);
    at = tkc_pb_put_head(at, 2, tkc_pb_size_bytes(strlen(text)));
    return tkc_pb_put_bytes(at, 2, text, strlen(text));
}

bool tkc_forward_backward_to_pb(const tkc_forward_backward_request *r, tkc_buf *out,
                                tinkc_error *err)
{
    if (tkc_failed(err) || !tkc_forward_backward_check(r, err))
        return false;
    size_t size = tkc_forward_backward_pb_size(r);
    unsigned char *at = (unsigned char *)tkc_buf_room(out, size, err);
    if (!at)
        return false;
    at = put_text(at, 1, r->model_id);
    if (r->seq_id)
        at = put_number(at, 2, (uint64_t)r->seq_id);
    for (size_t i = 0; i < r->data.len; i++)
        at = put_datum(at, &r->data.data[i]);
    at = put_text(at, 4, r->loss_fn);
    at = tkc_bulk_put_numbers(at, 5, &r->loss_fn_config);
    if (r->forward_only)
        at = put_number(at, 6, 1);
    if (r->loss_id)
        at = put_loss_id(at, r->loss_id);
    size_t written = (size_t)((char *)at - (out->data + out->len));
    if (written != size)
        return tkc_fail(err, TINKC_E_STATE, "a request of %zu bytes was measured as %zu", written,
                        size);
    assert(out->len + size <= out->cap);
    out->len += size;
    return true;
}

/* ---- reading ---- */

static bool read_text_chunk(const tkc_bulk *b, tinkc_bytes bytes, tinkc_chunk *out)
{
    tkc_pb p;
    tinkc_bytes tokens = { NULL, 0 };
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p))
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            tokens = p.bytes;
    out->kind = TINKC_CHUNK_TOKENS;
    return tkc_bulk_done(b, &p) && tkc_bulk_i32s(b, tokens, &out->tokens);
}

static bool read_image(const tkc_bulk *b, tinkc_bytes bytes, tinkc_chunk *out)
{
    tkc_pb p;
    tkc_pb_open(&p, bytes);
    out->kind = TINKC_CHUNK_IMAGE;
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            out->bytes = p.bytes;
        else if (tkc_pb_is(&p, 2, TKC_PB_BYTES))
            out->format = tkc_bulk_str(b, p.bytes);
        else if (tkc_pb_is(&p, 3, TKC_PB_VARINT))
            out->expected_tokens = (int32_t)(uint32_t)p.number;
    }
    if (out->expected_tokens < 0)
        out->expected_tokens = -1;
    return tkc_bulk_done(b, &p);
}

static bool read_dmel(const tkc_bulk *b, tinkc_bytes bytes, tinkc_chunk *out)
{
    tkc_pb p;
    tkc_pb_open(&p, bytes);
    out->kind = TINKC_CHUNK_DMEL;
    while (tkc_pb_next(&p))
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            out->bytes = p.bytes;
    return tkc_bulk_done(b, &p);
}

static bool read_chunk(const tkc_bulk *b, tinkc_bytes bytes, tinkc_chunk *out)
{
    tkc_pb p;
    tinkc_bytes body = { NULL, 0 };
    uint32_t member = 0;
    *out = (tinkc_chunk){ .expected_tokens = -1, .format = "", .location = "" };
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p))
        if (p.wire == TKC_PB_BYTES && p.field <= 3) {
            member = p.field;
            body = p.bytes;
        }
    if (!tkc_bulk_done(b, &p))
        return false;
    switch (member) {
    case 1:
        return read_text_chunk(b, body, out);
    case 2:
        return read_image(b, body, out);
    case 3:
        return read_dmel(b, body, out);
    default:
        return tkc_bulk_fail(b, "a chunk of no known kind");
    }
}

/* Elements of an unknown type stay bytes: tkc_tensor_check rejects the tensor. */
static bool keep_elements(const tkc_bulk *b, tinkc_bytes bytes, tkc_tensor *out)
{
    size_t known = tkc_dtype_size(out->dtype), size = known ? known : 1;
    assert(!out->data);
    out->data = tkc_bulk_view(b, bytes, size);
    out->count = bytes.len / size;
    if (bytes.len % size)
        out->ragged = true;
    return out->data != NULL;
}

static bool keep_indices(const tkc_bulk *b, tinkc_bytes bytes, tinkc_i64s *out, bool *ragged)
{
    *out = (tinkc_i64s){ tkc_bulk_view(b, bytes, 8), bytes.len / 8 };
    if (bytes.len % 8)
        *ragged = true;
    return out->data != NULL;
}

static bool read_sparse(const tkc_bulk *b, tinkc_bytes bytes, tkc_tensor *out)
{
    tkc_pb p;
    tinkc_bytes part[4] = { { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 } };
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p))
        if (p.wire == TKC_PB_BYTES && p.field <= 3)
            part[p.field] = p.bytes;
    out->sparse = true;
    return tkc_bulk_done(b, &p) && keep_elements(b, part[1], out) &&
           keep_indices(b, part[2], &out->crow, &out->ragged) &&
           keep_indices(b, part[3], &out->col, &out->ragged);
}

bool tkc_tensor_pb_read(const tkc_bulk *b, tinkc_bytes bytes, tkc_tensor *out)
{
    tkc_pb p;
    tinkc_bytes body = { NULL, 0 };
    bool sparse = false;
    *out = (tkc_tensor){ 0 };
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES) || tkc_pb_is(&p, 2, TKC_PB_BYTES)) {
            sparse = p.field == 2;
            body = p.bytes;
        } else if (tkc_pb_is(&p, 3, TKC_PB_VARINT)) {
            out->dtype = (int32_t)(uint32_t)p.number;
        }
    }
    if (!tkc_bulk_done(b, &p) || !tkc_bulk_varints(b, bytes, 4, &out->shape))
        return false;
    return sparse ? read_sparse(b, body, out) : keep_elements(b, body, out);
}

static bool read_input(const tkc_bulk *b, tinkc_bytes entry, tkc_named_tensor *out)
{
    tkc_pb value;
    if (!tkc_bulk_entry(b, entry, &out->name, &value))
        return false;
    bool given = tkc_pb_is(&value, 2, TKC_PB_BYTES);
    return tkc_tensor_pb_read(b, given ? value.bytes : (tinkc_bytes){ NULL, 0 }, &out->tensor);
}

static bool read_datum(const tkc_bulk *b, tinkc_bytes bytes, tkc_datum *out)
{
    tkc_pb p;
    size_t n_chunks = tkc_bulk_count(bytes, 1), n_inputs = tkc_bulk_count(bytes, 2), c = 0, i = 0;
    tinkc_chunk *chunks = tkc_arena_array(b->arena, n_chunks, sizeof *chunks, b->err);
    tkc_named_tensor *inputs = tkc_arena_array(b->arena, n_inputs, sizeof *inputs, b->err);
    if (!chunks || !inputs)
        return false;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        bool good = true;
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            good = read_chunk(b, p.bytes, &chunks[c++]);
        else if (tkc_pb_is(&p, 2, TKC_PB_BYTES))
            good = read_input(b, p.bytes, &inputs[i++]);
        if (!good)
            return false;
    }
    if (!tkc_bulk_done(b, &p))
        return false;
    assert(c == n_chunks && i == n_inputs); /* as many as were counted */
    i = tkc_bulk_unique(b, inputs, i, sizeof *inputs);
    out->chunks.data = chunks;
    out->chunks.len = c;
    out->inputs.data = inputs;
    out->inputs.len = i;
    return !tkc_failed(b->err);
}

/* Since 0.36 the configuration is sent twice: numbers as before, and all values in a second map,
 * where they may be strings. Only one string has a meaning: the id of a custom loss. */
static bool read_text_entry(const tkc_bulk *b, tinkc_bytes entry, const char **loss_id)
{
    tkc_pb p, value;
    tinkc_bytes key = { NULL, 0 }, text = { NULL, 0 };
    tkc_pb_open(&p, entry);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            key = p.bytes;
        if (!tkc_pb_is(&p, 2, TKC_PB_BYTES))
            continue;
        tkc_pb_open(&value, p.bytes);
        while (tkc_pb_next(&value))
            if (tkc_pb_is(&value, 2, TKC_PB_BYTES))
                text = value.bytes;
    }
    if (!text.data)
        return true;
    if (!tkc_str_is(tkc_strn((const char *)key.data, key.len), loss_id_key))
        return tkc_bulk_fail(b, "loss_fn_config has texts: the losses here take numbers");
    return (*loss_id = tkc_bulk_str(b, text)) != NULL;
}

static bool read_field(const tkc_bulk *b, const tkc_pb *p, tkc_datum *data, size_t *n,
                       tkc_forward_backward_request *out)
{
    if (tkc_pb_is(p, 1, TKC_PB_BYTES))
        return (out->model_id = tkc_bulk_str(b, p->bytes)) != NULL;
    if (tkc_pb_is(p, 2, TKC_PB_VARINT))
        out->seq_id = (int32_t)(uint32_t)p->number;
    if (tkc_pb_is(p, 3, TKC_PB_BYTES))
        return read_datum(b, p->bytes, &data[(*n)++]);
    if (tkc_pb_is(p, 4, TKC_PB_BYTES))
        return (out->loss_fn = tkc_bulk_str(b, p->bytes)) != NULL;
    if (tkc_pb_is(p, 7, TKC_PB_BYTES))
        return read_text_entry(b, p->bytes, &out->loss_id);
    if (tkc_pb_is(p, 6, TKC_PB_VARINT))
        out->forward_only = p->number != 0;
    return true;
}

bool tkc_forward_backward_from_pb(tinkc_bytes bytes, int32_t code, tkc_arena *arena,
                                  tkc_forward_backward_request *out, tinkc_error *err)
{
    tkc_bulk b = { arena, err, code, "forward_backward request" };
    tkc_pb p;
    size_t n = tkc_bulk_count(bytes, 3);
    *out = (tkc_forward_backward_request){ .model_id = "", .loss_fn = "" };
    if (tkc_failed(err))
        return false;
    tkc_datum *data = tkc_arena_array(arena, n, sizeof *data, err);
    if (!data)
        return false;
    n = 0;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p))
        if (!read_field(&b, &p, data, &n, out))
            return false;
    out->data.data = data;
    out->data.len = n;
    return tkc_bulk_done(&b, &p) && tkc_bulk_numbers(&b, bytes, 5, &out->loss_fn_config);
}
