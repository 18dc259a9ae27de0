/* tensor.c - tensors of datums: checks, conversion to dense, JSON. May touch: what it was given. */
#include "wire/tensor.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/str.h"

/* ---- checking ---- */

static bool bad(const char *name, const char *why, tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_TENSOR, "%s: %s", name, why);
}

bool tkc_shape_count(tinkc_i64s shape, size_t *out)
{
    size_t count = 1;
    for (size_t i = 0; i < shape.len; i++)
        if (shape.data[i] < 0 || !tkc_mul_size(count, (size_t)shape.data[i], &count))
            return false;
    *out = count;
    return true;
}

static bool check_sparse(const tkc_tensor *t, const char *name, tinkc_error *err)
{
    if (t->shape.len != 2) /* neither is negative: tkc_shape_count has seen them */
        return bad(name, "a sparse tensor needs a shape of two dimensions", err);
    if (t->crow.len == 0 || (uint64_t)t->shape.data[0] != t->crow.len - 1)
        return bad(name, "it needs one row pointer more than rows", err);
    if (t->col.len != t->count)
        return bad(name, "it needs as many column numbers as values", err);
    if (t->crow.data[0] != 0 || (uint64_t)t->crow.data[t->crow.len - 1] != t->count)
        return bad(name, "its row pointers must begin at 0 and end at the number of values", err);
    for (size_t i = 1; i < t->crow.len; i++)
        if (t->crow.data[i] < t->crow.data[i - 1])
            return bad(name, "its row pointers must not fall", err);
    for (size_t i = 0; i < t->col.len; i++)
        if (t->col.data[i] < 0 || t->col.data[i] >= t->shape.data[1])
            return bad(name, "a column number lies outside its shape", err);
    return true;
}

bool tkc_tensor_check(const tkc_tensor *t, const char *name, tinkc_error *err)
{
    size_t count;
    if (*tkc_dtype_name(t->dtype) == '\0')
        return bad(name, "its element type is not known", err);
    if (t->ragged)
        return bad(name, "its length in bytes is not a multiple of the element size", err);
    if (!tkc_shape_count(t->shape, &count))
        return bad(name, "its shape is negative or too large", err);
    if (t->sparse)
        return check_sparse(t, name, err);
    if (t->shape.len && count != t->count)
        return bad(name, "its shape does not fit the number of its elements", err);
    return true;
}

/* ---- dense and wide ---- */

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

const void *tkc_widen(const void *data, size_t count, int32_t dtype, tkc_arena *arena,
                      tinkc_error *err)
{
    if (dtype == TINKC_F32 || dtype == TINKC_I64)
        return data;
    assert(dtype == TINKC_I32 || dtype == TINKC_BF16);
    size_t size = dtype == TINKC_I32 ? sizeof(int64_t) : sizeof(float);
    void *out = tkc_arena_array(arena, count, size, err);
    for (size_t i = 0; out && i < count; i++) {
        if (dtype == TINKC_I32)
            ((int64_t *)out)[i] = ((const int32_t *)data)[i];
        else
            ((float *)out)[i] = from_bf16(((const uint16_t *)data)[i]);
    }
    return out;
}

int32_t tkc_wide_dtype(int32_t dtype)
{
    return dtype == TINKC_I64 || dtype == TINKC_I32 ? TINKC_I64 : TINKC_F32;
}

/* Copies the stored values into a zero matrix. A cell that is stored twice keeps the last value. */
static const void *scatter(const tkc_tensor *t, const void *values, size_t size, tkc_arena *arena,
                           tinkc_error *err)
{
    enum { MOST_BYTES = 1 << 30 };
    assert(t->shape.len == 2 && t->crow.len > 0); /* it passed tkc_tensor_check */
    size_t cells, columns = (size_t)t->shape.data[1];
    if (!tkc_shape_count(t->shape, &cells) || !tkc_mul_size(cells, size, &cells) ||
        cells > MOST_BYTES) {
        tkc_fail(err, TINKC_E_TENSOR, "a sparse tensor is too large to be made dense");
        return NULL;
    }
    char *out = tkc_arena_zalloc(arena, cells, err);
    for (size_t row = 0; out && row + 1 < t->crow.len; row++)
        for (int64_t k = t->crow.data[row]; k < t->crow.data[row + 1]; k++) {
            size_t cell = row * columns + (size_t)t->col.data[k];
            assert((size_t)k < t->col.len && (cell + 1) * size <= cells);
            memcpy(out + cell * size, (const char *)values + (size_t)k * size, size);
        }
    return out;
}

bool tkc_tensor_dense(const tkc_tensor *t, tkc_arena *arena, tinkc_tensor *out, tinkc_error *err)
{
    assert(!t->ragged && tkc_dtype_size(t->dtype));
    int32_t dtype = tkc_wide_dtype(t->dtype);
    const void *data = tkc_widen(t->data, t->count, t->dtype, arena, err);
    size_t count = t->count;
    if (data && t->sparse) {
        data = scatter(t, data, tkc_dtype_size(dtype), arena, err);
        tkc_shape_count(t->shape, &count);
    }
    if (!data)
        return false;
    const int64_t *shape = t->shape.data;
    if (t->shape.len == 0) {
        int64_t *flat = tkc_arena_alloc(arena, sizeof *flat, err);
        if (!flat)
            return false;
        *flat = (int64_t)count;
        shape = flat;
    }
    int32_t ndim = t->shape.len ? (int32_t)t->shape.len : 1;
    *out = (tinkc_tensor){ dtype, ndim, shape, data, count };
    return true;
}

/* ---- JSON ---- */

void tkc_tensor_write(tkc_jsonw *w, const tkc_tensor *t)
{
    if (t->dtype != TINKC_F32 && t->dtype != TINKC_I64) {
        tkc_fail(w->err, TINKC_E_TENSOR, "JSON carries float32 and int64 only");
        return;
    }
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "data");
    if (t->dtype == TINKC_F32)
        tkc_jsonw_f32s(w, t->data, t->count);
    else
        tkc_jsonw_i64s(w, t->data, t->count);
    tkc_jsonw_key(w, "dtype");
    tkc_jsonw_cstr(w, tkc_dtype_name(t->dtype));
    if (t->shape.len || t->sparse) {
        tkc_jsonw_key(w, "shape");
        tkc_jsonw_i64s(w, t->shape.data, t->shape.len);
    }
    if (t->sparse) {
        tkc_jsonw_key(w, "sparse_crow_indices");
        tkc_jsonw_i64s(w, t->crow.data, t->crow.len);
        tkc_jsonw_key(w, "sparse_col_indices");
        tkc_jsonw_i64s(w, t->col.data, t->col.len);
    }
    tkc_jsonw_end(w);
}

/* A list of integers, or null for none. */
static tinkc_i64s optional_list(tkc_json *j)
{
    return tkc_json_null(j) ? (tinkc_i64s){ NULL, 0 } : tkc_json_i64s(j);
}

/* `data` may come before the dtype that says how to read it, so its position is kept. */
static void read_members(tkc_json *j, tkc_tensor *out, tkc_json *data)
{
    tinkc_str key;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "data")) {
            *data = *j;
            (void)tkc_json_skip(j);
        } else if (tkc_str_is(key, "dtype")) {
            out->dtype = tkc_dtype_of(tkc_json_string(j));
            if (!tkc_failed(j->err) && out->dtype == 0)
                tkc_json_fail(j, "dtype must be float32 or int64");
        } else if (tkc_str_is(key, "shape")) {
            out->shape = optional_list(j);
        } else if (tkc_str_is(key, "sparse_crow_indices")) {
            out->crow = optional_list(j);
            out->sparse = out->crow.data != NULL;
        } else if (tkc_str_is(key, "sparse_col_indices")) {
            out->col = optional_list(j);
        } else {
            tkc_read_unknown(j, key);
        }
    }
}

void tkc_tensor_read(tkc_json *j, tkc_tensor *out)
{
    tkc_json data = { 0 };
    *out = (tkc_tensor){ 0 };
    if (!tkc_json_object(j))
        return;
    read_members(j, out, &data);
    if (tkc_failed(j->err))
        return;
    if (!data.at || out->dtype == 0) {
        tkc_json_fail(j, "a tensor needs data and dtype");
    } else if (out->dtype == TINKC_I64 || out->dtype == TINKC_I32) {
        tinkc_i64s values = tkc_json_i64s(&data);
        out->data = values.data;
        out->count = values.len;
        out->dtype = TINKC_I64;
    } else {
        tinkc_f32s values = tkc_json_f32s(&data);
        out->data = values.data;
        out->count = values.len;
        out->dtype = TINKC_F32;
    }
}
