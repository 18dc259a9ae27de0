/* folder_quant.c - packed weights of model folders, from the tensors that they consist of.
 *
 * Factors that are packed themselves (NF4 with double quantization) are unpacked here: they are a
 * hundredth of the weight. Must not: trust a shape or a count.
 */
#include "model/folder_quant.h"

#include <stdio.h>
#include <string.h>
#include "base/json_read.h"
#include "base/str.h"
#include "math/format.h"

enum { NF4_BLOCK = 64, SIDE = 128, NAME_LEN = 300, MOST = 1 << 20 };

static const tke_file_tensor *refuse(const tke_folder_quant *q, const char *name, const char *fault)
{
    tkc_fail(q->err, TINKC_E_MODEL, "%s: tensor '%.150s': %s", q->folder, name, fault);
    return NULL;
}

/* NAME + end: n numbers of fp32 or bf16, widened; NULL = missing or something else. */
static float *numbers_of(const tke_folder_quant *q, const char *name, const char *end, size_t n)
{
    char full[NAME_LEN];
    snprintf(full, sizeof full, "%s%s", name, end);
    const tke_file_tensor *t = q->find(q->files, full);
    bool bf16 = t && t->dtype == TKE_FILE_BF16;
    if (!t || (t->dtype != TKE_FILE_F32 && !bf16) || tke_tensor_count(t) != n)
        return NULL;
    float *out = tkc_arena_array(q->arena, n ? n : 1, sizeof *out, q->err);
    for (size_t i = 0; out && i < n; i++) {
        uint16_t half;
        if (bf16) {
            memcpy(&half, t->data + 2 * i, sizeof half);
            out[i] = tke_bf16_to_f32(half);
        } else {
            memcpy(&out[i], t->data + 4 * i, sizeof *out);
        }
    }
    return out;
}

/* ---- NF4 ---- */

typedef struct state { /* of bitsandbytes, as JSON in a tensor of bytes */
    tinkc_str type;
    int64_t shape[2], block, nested_block;
    size_t n_dims;
    double offset;
} state;

static void read_shape(tkc_json *j, state *s)
{
    if (tkc_json_array(j))
        while (tkc_json_item(j)) {
            int64_t dim = tkc_json_i64(j);
            if (s->n_dims < 2)
                s->shape[s->n_dims] = dim;
            s->n_dims++;
        }
}

static bool read_state(const tke_folder_quant *q, const tke_file_tensor *t, state *s)
{
    tkc_json j;
    tinkc_str key;
    *s = (state){ 0 };
    tkc_json_open(&j, tkc_strn((const char *)t->data, t->n_bytes), q->arena, q->err);
    j.code = TINKC_E_MODEL;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "quant_type"))
                s->type = tkc_json_string(&j);
            else if (tkc_str_is(key, "shape"))
                read_shape(&j, s);
            else if (tkc_str_is(key, "blocksize"))
                s->block = tkc_json_i64(&j);
            else if (tkc_str_is(key, "nested_blocksize"))
                s->nested_block = tkc_json_i64(&j);
            else if (tkc_str_is(key, "nested_offset"))
                s->offset = tkc_json_double(&j);
            else
                tkc_json_skip(&j);
        }
    return tkc_json_close(&j) && !tkc_failed(q->err);
}

/* A table of 256 values, larger factors for each 256, and an offset. */
static const float *unpack_factors(const tke_folder_quant *q, const char *name,
                                   const tke_file_tensor *codes, const state *s, size_t n)
{
    size_t groups = (n + (size_t)s->nested_block - 1) / (size_t)s->nested_block;
    const float *map = numbers_of(q, name, ".nested_quant_map", 256);
    const float *large = numbers_of(q, name, ".nested_absmax", groups);
    float *out = map && large ? tkc_arena_array(q->arena, n, sizeof *out, q->err) : NULL;
    for (size_t i = 0; out && i < n; i++) {
        float product = map[codes->data[i]] * large[i / (size_t)s->nested_block];
        out[i] = product + (float)s->offset;
    }
    return out;
}

static const float *factors_of(const tke_folder_quant *q, const char *name, const state *s,
                               size_t n)
{
    char full[NAME_LEN];
    snprintf(full, sizeof full, "%s.absmax", name);
    const tke_file_tensor *t = q->find(q->files, full);
    if (t && t->dtype == TKE_FILE_U8 && t->n_bytes == n && s->nested_block > 0)
        return unpack_factors(q, name, t, s, n);
    return numbers_of(q, name, ".absmax", n);
}

static bool same_values(const float *map)
{
    static const uint8_t codes[32] = { 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef };
    uint16_t ours[64];
    tke_matrix m = { .data = codes, .ld = 64, .dtype = TKE_NF4, .factors = (const float[]){ 1 } };
    tke_format_nf4.unpack[TKE_UNPACK_REF](&m, 0, 0, 64, ours);
    for (int i = 0; map && i < 16; i++)
        if (tke_f32_to_bf16(map[i]) != ours[i])
            return false;
    return map != NULL;
}

static const tke_file_tensor *nf4(const tke_folder_quant *q, const tke_file_tensor *t,
                                  const tke_file_tensor *stored_state)
{
    state s;
    if (!read_state(q, stored_state, &s))
        return NULL;
    if (!tkc_str_is(s.type, "nf4") || s.block != NF4_BLOCK)
        return refuse(q, t->name, "only NF4 in blocks of 64 is supported");
    if (s.n_dims != 2 || s.shape[0] < 1 || s.shape[1] < 1 || s.shape[0] > MOST ||
        s.shape[1] > MOST || s.shape[1] % NF4_BLOCK)
        return refuse(q, t->name, "its shape is not of whole blocks of 64 along a row");
    size_t n = (size_t)(s.shape[0] * s.shape[1]);
    if (t->n_bytes != n / 2)
        return refuse(q, t->name, "its shape and its data differ in size");
    if (!same_values(numbers_of(q, t->name, ".quant_map", 16)))
        return refuse(q, t->name, "quant_map is missing or not that of NF4");
    const float *factors = factors_of(q, t->name, &s, n / NF4_BLOCK);
    tke_file_tensor *out = tkc_arena_array(q->arena, 1, sizeof *out, q->err);
    if (!factors || !out)
        return refuse(q, t->name, "absmax or what belongs to it is missing or has the wrong size");
    *out = (tke_file_tensor){ .name = t->name,
                              .data = t->data,
                              .n_bytes = t->n_bytes + n / NF4_BLOCK * sizeof *factors,
                              .dtype = TKE_FILE_U8,
                              .n_dims = 2,
                              .dims = { s.shape[0], s.shape[1] },
                              .packed = TKE_NF4,
                              .factors = factors };
    return out;
}

/* ---- FP8 ---- */

static const tke_file_tensor *fp8(const tke_folder_quant *q, const tke_file_tensor *t)
{
    size_t down = t->n_dims == 2 ? ((size_t)t->dims[0] + SIDE - 1) / SIDE : 0;
    size_t across = t->n_dims == 2 ? ((size_t)t->dims[1] + SIDE - 1) / SIDE : 0;
    const float *factors = numbers_of(q, t->name, "_scale_inv", down * across);
    tke_file_tensor *out = tkc_arena_array(q->arena, 1, sizeof *out, q->err);
    if (!factors || !out)
        return refuse(q, t->name, "weight_scale_inv with a factor for each 128 x 128 is missing");
    *out = *t;
    out->packed = TKE_FP8;
    out->factors = factors;
    return out;
}

const tke_file_tensor *tke_folder_weight(const tke_folder_quant *q, const tke_file_tensor *t)
{
    char name[NAME_LEN];
    if (!tkc_ends_with(tkc_str(t->name), ".weight"))
        return t;
    if (t->dtype == TKE_FILE_F8_E4M3)
        return fp8(q, t);
    if (t->dtype != TKE_FILE_U8)
        return t;
    snprintf(name, sizeof name, "%s.quant_state.bitsandbytes__nf4", t->name);
    const tke_file_tensor *stored_state = q->find(q->files, name);
    return stored_state ? nf4(q, t, stored_state) : t;
}
