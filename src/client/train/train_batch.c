/* train_batch.c - examples to train on, in one arena; everything is checked when it is added.
 *
 * May touch: its own memory. One thread at a time.
 */
#include <math.h>
#include <string.h>

#include "client/train/train_batch.h"
#include "base/str.h"

static bool check_batch(tinkc_batch *batch, tinkc_error *err)
{
    if (!batch)
        return tkc_fail(err, TINKC_E_ARGUMENT, "batch: must not be NULL");
    return tkc_client_check(batch->client, err);
}

tinkc_batch *tinkc_batch_new(tinkc_client *client, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return NULL;
    tinkc_batch *batch = tkc_zalloc(client->a, sizeof *batch, err);
    if (!batch)
        return NULL;
    batch->client = client;
    tkc_client_keep(client);
    return batch;
}

/* ---- where the examples lie ---- */

void tkc_store_drop(tkc_store *store)
{
    while (store && tkc_ref_drop(&store->refs)) {
        tkc_store *base = store->base;
        const tinkc_allocator *a = store->arena.a;
        tkc_arena_free(&store->arena);
        tkc_release(a, store, sizeof *store);
        store = base;
    }
}

/* Makes sure that there is one; base (or NULL) is kept. */
static bool need_store(tinkc_batch *batch, tkc_store *base, tinkc_error *err)
{
    if (batch->store)
        return true;
    tkc_store *store = tkc_zalloc(batch->client->a, sizeof *store, err);
    if (!store)
        return false;
    tkc_ref_init(&store->refs);
    tkc_arena_init(&store->arena, batch->client->a, 0);
    if (base)
        tkc_ref_keep(&base->refs);
    store->base = base;
    batch->store = store;
    return true;
}

void tinkc_batch_clear(tinkc_batch *batch)
{
    if (!batch)
        return;
    /* Only this thread could take another reference: 1 stays 1. */
    if (batch->store && atomic_load(&batch->store->refs) == 1) {
        tkc_arena_reset(&batch->store->arena);
    } else { /* a pass still reads it */
        tkc_store_drop(batch->store);
        batch->store = NULL;
    }
    batch->n = 0;
    batch->bytes = 0;
}

void tinkc_batch_free(tinkc_batch *batch)
{
    if (!batch || tkc_client_forked(batch->client))
        return;
    tinkc_client *client = batch->client;
    tkc_store_drop(batch->store);
    tkc_release(client->a, batch->examples, batch->cap * sizeof *batch->examples);
    tkc_release(client->a, batch, sizeof *batch);
    tkc_client_drop(client);
}

/* ---- adding examples ---- */

/* Checked and copied on the caller's thread: the Python SDK finds many of these mistakes only
 * when it writes the request, inside the future, and the error then names no call. */

static size_t chunk_bytes(const tinkc_chunk *chunk)
{
    /* The Python SDK's estimate, so that batches are cut where it cuts them. */
    return chunk->kind == TINKC_CHUNK_TOKENS ? 4 * chunk->tokens.len : chunk->bytes.len;
}

/* Room for one more; not counted yet, so that a failure further on leaves no half of one. */
static tkc_example *new_example(tinkc_batch *batch, tinkc_error *err)
{
    if (!need_store(batch, NULL, err))
        return NULL;
    /* Passes have a table of their own, so this one may move. */
    tkc_example *grown =
        tkc_grow(batch->client->a, batch->examples, &batch->cap, batch->n + 1, sizeof *grown, err);
    if (!grown)
        return NULL;
    batch->examples = grown;
    grown += batch->n;
    *grown = (tkc_example){ 0 };
    return grown;
}

static void count_example(tinkc_batch *batch, tkc_example *e)
{
    for (size_t i = 0; i < e->n_chunks; i++)
        e->bytes += chunk_bytes(&e->chunks[i]);
    batch->bytes += e->bytes;
    batch->n++;
}

static bool copy_chunk(tkc_arena *arena, tinkc_chunk *to, const tinkc_chunk *from, tinkc_error *err)
{
    *to = *from;
    if (from->kind == TINKC_CHUNK_TOKENS) {
        int32_t *ids = tkc_arena_array(arena, from->tokens.len, sizeof *ids, err);
        if (ids && from->tokens.len)
            memcpy(ids, from->tokens.data, from->tokens.len * sizeof *ids);
        to->tokens.data = ids;
        return ids != NULL;
    }
    void *bytes = tkc_arena_alloc(arena, from->bytes.len, err);
    if (bytes && from->bytes.len)
        memcpy(bytes, from->bytes.data, from->bytes.len);
    to->bytes.data = bytes;
    return bytes != NULL;
}

bool tinkc_batch_add(tinkc_batch *batch, const tinkc_input *input, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err))
        return false;
    if (!input)
        return tkc_fail(err, TINKC_E_ARGUMENT, "input: must not be NULL");
    size_t n;
    const tinkc_chunk *chunks = tkc_input_chunks(input, &n);
    if (n == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "input: is empty");
    /* The wire form of a pass has no such chunk. */
    for (size_t i = 0; i < n; i++)
        if (chunks[i].kind == TINKC_CHUNK_IMAGE_POINTER)
            return tkc_fail(err, TINKC_E_UNSUPPORTED,
                            "input: chunk %zu is a pointer to an image, which cannot be trained on",
                            i);
    tkc_example *e = new_example(batch, err);
    tinkc_chunk *copies = e ? tkc_arena_array(&batch->store->arena, n, sizeof *copies, err) : NULL;
    if (!copies)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!copy_chunk(&batch->store->arena, &copies[i], &chunks[i], err))
            return false;
    e->chunks = copies;
    e->n_chunks = n;
    count_example(batch, e);
    return true;
}

static bool check_ids(const int32_t *ids, size_t len, size_t least, tinkc_error *err)
{
    if (!ids)
        return tkc_fail(err, TINKC_E_ARGUMENT, "ids: must not be NULL");
    if (len < least)
        return tkc_fail(err, TINKC_E_ARGUMENT, "len: at least %zu tokens are needed", least);
    for (size_t i = 0; i < len; i++)
        if (ids[i] < 0)
            return tkc_fail(err, TINKC_E_ARGUMENT, "ids: token %zu is negative", i);
    return true;
}

static bool check_finite(const float *values, size_t len, const char *name, tinkc_error *err)
{
    if (!values && len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must not be NULL", name);
    for (size_t i = 0; i < len; i++)
        if (!isfinite(values[i]))
            return tkc_fail(err, TINKC_E_ARGUMENT, "%s: number %zu is not finite", name, i);
    return true;
}

/* An example of tokens alone. */
static tkc_example *add_ids(tinkc_batch *batch, const int32_t *ids, size_t len, tinkc_error *err)
{
    tkc_example *e = new_example(batch, err);
    tinkc_chunk *chunk = e ? tkc_arena_zalloc(&batch->store->arena, sizeof *chunk, err) : NULL;
    tinkc_chunk from = { .kind = TINKC_CHUNK_TOKENS,
                         .expected_tokens = -1,
                         .tokens = { ids, len },
                         .format = "",
                         .location = "" };
    if (!chunk || !copy_chunk(&batch->store->arena, chunk, &from, err))
        return NULL;
    e->chunks = chunk;
    e->n_chunks = 1;
    return e;
}

bool tinkc_batch_add_tokens(tinkc_batch *batch, const int32_t *ids, size_t len, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err) || !check_ids(ids, len, 1, err))
        return false;
    tkc_example *e = add_ids(batch, ids, len, err);
    if (!e)
        return false;
    count_example(batch, e);
    return true;
}

/* ---- loss inputs ---- */

static size_t tensor_bytes(const tkc_tensor *t)
{
    return t->count * tkc_dtype_size(t->dtype) + 8 * (t->crow.len + t->col.len);
}

/* Puts a tensor whose memory is the arena's into an example. */
static bool put_tensor(tinkc_batch *batch, tkc_example *e, const char *name, const tkc_tensor *t,
                       tinkc_error *err)
{
    if (e->n_inputs == e->cap_inputs) {
        size_t cap = e->cap_inputs ? 2 * e->cap_inputs : 4;
        /* The old table stays in the arena: a pass may be reading it. */
        tkc_named_tensor *grown = tkc_arena_array(&batch->store->arena, cap, sizeof *grown, err);
        if (!grown)
            return false;
        if (e->n_inputs)
            memcpy(grown, e->inputs, e->n_inputs * sizeof *grown);
        e->inputs = grown;
        e->cap_inputs = cap;
    }
    const char *copy = tkc_arena_cstr(&batch->store->arena, name, err);
    if (!copy)
        return false;
    e->inputs[e->n_inputs++] = (tkc_named_tensor){ copy, *t };
    e->bytes += tensor_bytes(t);
    return true;
}

static bool put_f32(tinkc_batch *batch, tkc_example *e, const char *name, float *values, size_t len,
                    tinkc_error *err)
{
    tkc_tensor t = { .data = values, .count = len, .dtype = TINKC_F32 };
    int64_t *shape = tkc_arena_array(&batch->store->arena, 1, sizeof *shape, err);
    if (!shape)
        return false;
    shape[0] = (int64_t)len;
    t.shape = (tinkc_i64s){ shape, 1 };
    return put_tensor(batch, e, name, &t, err);
}

static bool put_targets(tinkc_batch *batch, tkc_example *e, const int32_t *ids, size_t len,
                        tinkc_error *err)
{
    int64_t *values = tkc_arena_array(&batch->store->arena, len, sizeof *values, err);
    int64_t *shape = tkc_arena_array(&batch->store->arena, 1, sizeof *shape, err);
    if (!values || !shape)
        return false;
    for (size_t i = 0; i < len; i++)
        values[i] = ids[i];
    shape[0] = (int64_t)len;
    tkc_tensor t = { .data = values, .count = len, .dtype = TINKC_I64, .shape = { shape, 1 } };
    return put_tensor(batch, e, "target_tokens", &t, err);
}

/* tokens[0..n-1) with tokens[1..n) as targets, and a weight for each target. */
static bool add_shifted(tinkc_batch *batch, const int32_t *ids, size_t len, size_t context,
                        const float *weights, tinkc_error *err)
{
    size_t n = len - 1;
    tkc_example *e = add_ids(batch, ids, n, err);
    float *w = e ? tkc_arena_array(&batch->store->arena, n, sizeof *w, err) : NULL;
    if (!w)
        return false;
    for (size_t i = 0; i < n; i++)
        w[i] = weights ? weights[i + 1] : i + 1 < context ? 0.0f : 1.0f;
    if (!put_targets(batch, e, ids + 1, n, err) || !put_f32(batch, e, "weights", w, n, err))
        return false;
    count_example(batch, e);
    return true;
}

bool tinkc_batch_add_sft(tinkc_batch *batch, const int32_t *ids, size_t len, size_t context,
                         tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err) || !check_ids(ids, len, 2, err))
        return false;
    if (context >= len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "context: leaves no token to learn");
    return add_shifted(batch, ids, len, context, NULL, err);
}

bool tinkc_batch_add_weighted(tinkc_batch *batch, const int32_t *ids, size_t len,
                              const float *weights, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err) || !check_ids(ids, len, 2, err) ||
        !check_finite(weights, len, "weights", err))
        return false;
    return add_shifted(batch, ids, len, 0, weights, err);
}

bool tinkc_batch_add_rl(tinkc_batch *batch, const int32_t *ids, size_t len, size_t context,
                        const float *logprobs, const float *advantages, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err) || !check_ids(ids, len, 2, err))
        return false;
    if (context == 0 || context >= len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "context: must be from 1 to len - 1");
    size_t n = len - 1, sampled = len - context;
    if (!check_finite(logprobs, sampled, "logprobs", err) ||
        !check_finite(advantages, sampled, "advantages", err))
        return false;
    tkc_example *e = add_ids(batch, ids, n, err);
    float *p = e ? tkc_arena_array(&batch->store->arena, n, sizeof *p, err) : NULL;
    float *a = e ? tkc_arena_array(&batch->store->arena, n, sizeof *a, err) : NULL;
    if (!p || !a)
        return false;
    memcpy(p + context - 1, logprobs, sampled * sizeof *p); /* zero over the prompt */
    memcpy(a + context - 1, advantages, sampled * sizeof *a);
    if (!put_targets(batch, e, ids + 1, n, err) || !put_f32(batch, e, "logprobs", p, n, err) ||
        !put_f32(batch, e, "advantages", a, n, err))
        return false;
    count_example(batch, e);
    return true;
}

/* ---- arrays of any type ---- */

/* Two element types travel, float32 and int64. Others are converted when they are set, so that a
 * number that does not fit fails there and names itself. */

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    float value;
    if (exponent == 0)
        value = ldexpf((float)mantissa, -24);
    else if (exponent == 31)
        value = mantissa ? NAN : INFINITY;
    else
        value = ldexpf((float)(mantissa | 0x400), (int)exponent - 25);
    return sign ? -value : value;
}

static bool to_f32(const tinkc_array *array, float *out, const char *name, tinkc_error *err)
{
    for (size_t i = 0; i < array->count; i++) {
        if (array->dtype == TINKC_F32) {
            out[i] = ((const float *)array->data)[i];
        } else if (array->dtype == TINKC_F64) {
            double wide = ((const double *)array->data)[i];
            out[i] = (float)wide;
            if (isfinite(wide) && !isfinite(out[i]))
                return tkc_fail(err, TINKC_E_TENSOR, "%s: number %zu does not fit 32 bits", name,
                                i);
        } else if (array->dtype == TINKC_BF16) {
            uint32_t bits = (uint32_t)((const uint16_t *)array->data)[i] << 16;
            memcpy(&out[i], &bits, sizeof bits);
        } else {
            out[i] = half_to_float(((const uint16_t *)array->data)[i]);
        }
    }
    return true;
}

static bool is_integer(int32_t dtype)
{
    return dtype == TINKC_I64 || dtype == TINKC_I32;
}

/* The elements as they travel: 32-bit floats or 64-bit integers. */
static void *convert_elements(tinkc_batch *batch, const tinkc_array *array, const char *name,
                              tinkc_error *err)
{
    if (is_integer(array->dtype)) {
        int64_t *out = tkc_arena_array(&batch->store->arena, array->count, sizeof *out, err);
        for (size_t i = 0; out && i < array->count; i++)
            out[i] = array->dtype == TINKC_I64 ? ((const int64_t *)array->data)[i]
                                               : ((const int32_t *)array->data)[i];
        return out;
    }
    float *out = tkc_arena_array(&batch->store->arena, array->count, sizeof *out, err);
    return out && to_f32(array, out, name, err) ? out : NULL;
}

static bool copy_i64s(tkc_arena *arena, const int64_t *from, size_t n, tinkc_i64s *out,
                      tinkc_error *err)
{
    int64_t *copy = tkc_arena_array(arena, n, sizeof *copy, err);
    if (!copy)
        return false;
    if (n)
        memcpy(copy, from, n * sizeof *copy);
    *out = (tinkc_i64s){ copy, n };
    return true;
}

static bool is_zero(const tkc_tensor *t, size_t i)
{
    return t->dtype == TINKC_I64 ? ((const int64_t *)t->data)[i] == 0
                                 : ((const float *)t->data)[i] == 0.0f;
}

/* A dense matrix becomes CSR where (rows + 1) + 2 nnz < rows * cols. */
static bool pack_matrix(tkc_arena *arena, tkc_tensor *t, tinkc_error *err)
{
    size_t rows = (size_t)t->shape.data[0], cols = (size_t)t->shape.data[1], nnz = 0;
    for (size_t i = 0; i < t->count; i++)
        nnz += !is_zero(t, i);
    if (rows + 1 + 2 * nnz >= rows * cols)
        return true;
    size_t size = tkc_dtype_size(t->dtype), k = 0;
    char *values = tkc_arena_array(arena, nnz, size, err);
    int64_t *crow = tkc_arena_array(arena, rows + 1, sizeof *crow, err);
    int64_t *col = tkc_arena_array(arena, nnz, sizeof *col, err);
    if (!values || !crow || !col)
        return false;
    for (size_t i = 0; i < t->count; i++) {
        if (!is_zero(t, i)) {
            memcpy(values + k * size, (const char *)t->data + i * size, size);
            col[k++] = (int64_t)(i % cols);
        }
        crow[i / cols + 1] = (int64_t)k;
    }
    t->data = values;
    t->count = nnz;
    t->crow = (tinkc_i64s){ crow, rows + 1 };
    t->col = (tinkc_i64s){ col, nnz };
    t->sparse = true;
    return true;
}

static bool check_array(const char *name, const tinkc_array *array, tinkc_error *err)
{
    if (!name || !name[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "name: must not be empty");
    if (!array)
        return tkc_fail(err, TINKC_E_ARGUMENT, "array: must not be NULL");
    if (!tkc_all_zero(array->reserved, sizeof array->reserved) ||
        !tkc_all_zero(array->reserved_bools, sizeof array->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (array->dtype < TINKC_F32 || array->dtype > TINKC_F64)
        return tkc_fail(err, TINKC_E_TENSOR, "%s: no such element type: %d", name,
                        (int)array->dtype);
    if (!array->data && array->count)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: data must not be NULL", name);
    if (array->row_ptr && (!array->shape || array->ndim != 2))
        return tkc_fail(err, TINKC_E_TENSOR, "%s: a sparse array needs both dimensions", name);
    if (array->row_ptr && !array->col)
        return tkc_fail(err, TINKC_E_TENSOR, "%s: row_ptr without col", name);
    if (array->shape && (array->ndim < 1 || array->ndim > 8))
        return tkc_fail(err, TINKC_E_TENSOR, "%s: ndim must be from 1 to 8", name);
    for (size_t i = 0; array->shape && i < array->ndim; i++)
        if (array->shape[i] < 0 || (array->row_ptr && array->shape[i] > INT32_MAX))
            return tkc_fail(err, TINKC_E_TENSOR, "%s: dimension %zu is out of range", name, i);
    return true;
}

/* What is not a number spoils a whole step: no loss takes it. */
static bool check_elements(const tkc_tensor *t, const char *name, tinkc_error *err)
{
    const float *values = t->data;
    for (size_t i = 0; t->dtype == TINKC_F32 && i < t->count; i++)
        if (!isfinite(values[i]))
            return tkc_fail(err, TINKC_E_TENSOR, "%s: number %zu is not finite", name, i);
    return true;
}

static bool build_tensor(tinkc_batch *batch, const char *name, const tinkc_array *array,
                         tkc_tensor *t, tinkc_error *err)
{
    int64_t flat = (int64_t)array->count;
    *t = (tkc_tensor){ .count = array->count,
                       .dtype = is_integer(array->dtype) ? TINKC_I64 : TINKC_F32,
                       .sparse = array->row_ptr != NULL };
    t->data = convert_elements(batch, array, name, err);
    if (!t->data || !copy_i64s(&batch->store->arena, array->shape ? array->shape : &flat,
                               array->shape ? array->ndim : 1, &t->shape, err))
        return false;
    if (t->sparse && (!copy_i64s(&batch->store->arena, array->row_ptr, (size_t)array->shape[0] + 1,
                                 &t->crow, err) ||
                      !copy_i64s(&batch->store->arena, array->col, array->count, &t->col, err)))
        return false;
    if (!tkc_tensor_check(t, name, err) || !check_elements(t, name, err))
        return false;
    if (array->may_pack && !t->sparse && t->shape.len == 2)
        return pack_matrix(&batch->store->arena, t, err);
    return true;
}

bool tinkc_batch_set(tinkc_batch *batch, const char *name, const tinkc_array *array,
                     tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err) || !check_array(name, array, err))
        return false;
    if (batch->n == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "batch: has no example to set %s of", name);
    tkc_example *e = &batch->examples[batch->n - 1];
    for (size_t i = 0; i < e->n_inputs; i++)
        if (strcmp(e->inputs[i].name, name) == 0)
            return tkc_fail(err, TINKC_E_ARGUMENT, "name: %s is set already", name);
    tkc_tensor t;
    size_t before = e->bytes;
    if (!build_tensor(batch, name, array, &t, err) || !put_tensor(batch, e, name, &t, err))
        return false;
    /* It has a place for each input, and now there is one more. */
    e->shown = NULL;
    batch->bytes += e->bytes - before;
    return true;
}

bool tinkc_batch_set_f32(tinkc_batch *batch, const char *name, const float *values, size_t len,
                         tinkc_error *err)
{
    return tinkc_batch_set(batch, name,
                           &(tinkc_array){ .data = values, .count = len, .dtype = TINKC_F32 }, err);
}

bool tinkc_batch_set_i64(tinkc_batch *batch, const char *name, const int64_t *values, size_t len,
                         tinkc_error *err)
{
    return tinkc_batch_set(batch, name,
                           &(tinkc_array){ .data = values, .count = len, .dtype = TINKC_I64 }, err);
}

/* ---- looking ---- */

size_t tinkc_batch_count(const tinkc_batch *batch)
{
    return batch ? batch->n : 0;
}

size_t tinkc_batch_bytes(const tinkc_batch *batch)
{
    return batch ? batch->bytes : 0;
}

const tinkc_input *tinkc_batch_input(const tinkc_batch *cb, size_t i)
{
    tinkc_batch *batch = (tinkc_batch *)cb; /* one thread: the view is made at first need */
    if (!batch || i >= batch->n)
        return NULL;
    tkc_example *e = &batch->examples[i];
    tinkc_error ignored = { 0 };
    if (!e->as_input)
        e->as_input = tkc_arena_zalloc(&batch->store->arena, sizeof *e->as_input, &ignored);
    if (e->as_input) {
        e->as_input->chunks = e->chunks;
        e->as_input->n_chunks = e->n_chunks;
    }
    return e->as_input;
}

const tinkc_tensor *tinkc_batch_tensor(const tinkc_batch *batch, size_t i, const char *name)
{
    tinkc_error ignored = { 0 };
    return tkc_batch_show(batch, i, name, &ignored);
}

const tinkc_tensor *tkc_batch_show(const tinkc_batch *cb, size_t i, const char *name,
                                   tinkc_error *err)
{
    tinkc_batch *batch = (tinkc_batch *)cb;
    if (!batch || i >= batch->n || !name)
        return NULL;
    tkc_example *e = &batch->examples[i];
    if (!e->shown)
        e->shown = tkc_arena_array(&batch->store->arena, e->cap_inputs + 1, sizeof *e->shown, err);
    for (size_t k = 0; e->shown && k < e->n_inputs; k++) {
        if (strcmp(e->inputs[k].name, name) != 0)
            continue;
        if (!e->shown[k]) {
            tinkc_tensor *view = tkc_arena_zalloc(&batch->store->arena, sizeof *view, err);
            if (view && tkc_tensor_dense(&e->inputs[k].tensor, &batch->store->arena, view, err))
                e->shown[k] = view;
        }
        return e->shown[k];
    }
    return NULL;
}

tinkc_f32s tinkc_tensor_f32s(const tinkc_tensor *t)
{
    if (!t || t->dtype != TINKC_F32)
        return (tinkc_f32s){ 0 };
    return (tinkc_f32s){ t->data, t->count };
}

tinkc_i64s tinkc_tensor_i64s(const tinkc_tensor *t)
{
    if (!t || t->dtype != TINKC_I64)
        return (tinkc_i64s){ 0 };
    return (tinkc_i64s){ t->data, t->count };
}

/* ---- as a whole ---- */

static const tkc_tensor *find_input(const tkc_example *e, const char *name)
{
    for (size_t i = 0; i < e->n_inputs; i++)
        if (strcmp(e->inputs[i].name, name) == 0)
            return &e->inputs[i].tensor;
    return NULL;
}

bool tinkc_batch_set_provenance(tinkc_batch *batch, const tinkc_span *input, size_t n_input,
                                const tinkc_span *targets, size_t n_targets, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_batch(batch, err))
        return false;
    if (batch->n == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "batch: has no example to set provenance of");
    tkc_example *e = &batch->examples[batch->n - 1];
    /* Changed as a whole or not at all. */
    tkc_example with = *e;
    if (!tkc_provenance_set(&with, input, n_input, targets, n_targets, &batch->store->arena, err) ||
        !tkc_provenance_check(&with, find_input(e, "target_tokens"), err))
        return false;
    batch->bytes += with.bytes - e->bytes;
    *e = with;
    return true;
}

/* How many positions it covers. */
static size_t rows_of(const tkc_tensor *t)
{
    return t->shape.len ? (size_t)t->shape.data[0] : t->count;
}

bool tkc_batch_check(const tinkc_batch *batch, tinkc_error *err)
{
    static const char *const beside[] = { "weights", "logprobs", "advantages", NULL };
    if (!batch || batch->n == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "batch: must not be %s", batch ? "empty" : "NULL");
    for (size_t i = 0; i < batch->n; i++) {
        const tkc_tensor *targets = find_input(&batch->examples[i], "target_tokens");
        if (!tkc_provenance_check(&batch->examples[i], targets, err))
            return false;
        for (size_t k = 0; targets && beside[k]; k++) {
            const tkc_tensor *t = find_input(&batch->examples[i], beside[k]);
            if (t && rows_of(t) != rows_of(targets))
                return tkc_fail(err, TINKC_E_TENSOR,
                                "batch: example %zu has %zu %s for %zu target_tokens", i,
                                rows_of(t), beside[k], rows_of(targets));
        }
    }
    return true;
}

/* ---- batches out of batches ---- */

/* An empty batch whose examples may point into those of `from`. */
static tinkc_batch *new_on_top(const tinkc_batch *from, tinkc_error *err)
{
    tinkc_batch *to = tinkc_batch_new(from->client, err);
    if (to && !need_store(to, from->store, err)) {
        tinkc_batch_free(to);
        return NULL;
    }
    return to;
}

tinkc_batch *tkc_batch_share(const tinkc_batch *from, tinkc_error *err)
{
    tinkc_batch *to = new_on_top(from, err);
    for (size_t i = 0; to && i < from->n; i++) {
        tkc_example *e = new_example(to, err);
        if (!e) {
            tinkc_batch_free(to);
            return NULL;
        }
        *e = from->examples[i];
        e->cap_inputs = e->n_inputs; /* the room behind them is the other batch's */
        e->shown = NULL;
        e->as_input = NULL;
        to->n++;
    }
    if (to)
        to->bytes = from->bytes;
    return to;
}

/* How many elements a tensor has when written out. */
static size_t dense_count(const tkc_tensor *t)
{
    if (!t->sparse)
        return t->count;
    return (size_t)t->shape.data[0] * (size_t)t->shape.data[1];
}

/* Zeros in the shape of the targets. */
static bool new_weights(tinkc_batch *to, const tkc_tensor *targets, tkc_tensor *out, float **at,
                        tinkc_error *err)
{
    size_t n = dense_count(targets);
    float *zeros = tkc_arena_array(&to->store->arena, n, sizeof *zeros, err);
    *out = (tkc_tensor){ .data = zeros, .count = n, .dtype = TINKC_F32, .shape = targets->shape };
    if (at)
        *at = zeros;
    return zeros != NULL;
}

static bool add_reweighted(tinkc_batch *to, const tkc_example *from, float **fresh,
                           tinkc_error *err)
{
    const tkc_tensor *targets = find_input(from, "target_tokens");
    const tkc_tensor *old = fresh ? NULL : find_input(from, "weights");
    tkc_tensor weights;
    /* Cross-entropy takes these two; what else an example has is for the user's function. */
    tkc_example *e = new_example(to, err);
    if (!e || !put_tensor(to, e, "target_tokens", targets, err))
        return false;
    if (!old && !new_weights(to, targets, &weights, fresh, err))
        return false;
    if (!put_tensor(to, e, "weights", old ? old : &weights, err))
        return false;
    e->chunks = from->chunks;
    e->n_chunks = from->n_chunks;
    e->input_spans = from->input_spans;
    e->n_input_spans = from->n_input_spans;
    e->target_spans = from->target_spans;
    e->n_target_spans = from->n_target_spans;
    count_example(to, e);
    return true;
}

tinkc_batch *tkc_batch_with_weights(const tinkc_batch *from, float **fresh, tinkc_error *err)
{
    tinkc_batch *to = new_on_top(from, err);
    for (size_t i = 0; to && i < from->n; i++)
        if (!add_reweighted(to, &from->examples[i], fresh ? &fresh[i] : NULL, err)) {
            tinkc_batch_free(to);
            return NULL;
        }
    return to;
}
