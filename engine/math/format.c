/* format.c - the table of formats. */
#include "math/format.h"

#include <assert.h>
#include <string.h>

static const tke_format f32 = { .name = "F32", .gguf = 0, .block = 1, .block_bytes = 4 };
static const tke_format bf16 = { .name = "BF16", .gguf = 30, .block = 1, .block_bytes = 2 };
static const tke_format f16 = { .name = "F16", .gguf = 1, .block = 1, .block_bytes = 2 };
static const tke_format f64 = { .name = "F64", .gguf = 28, .block = 1, .block_bytes = 8 };

static const tke_format *const formats[TKE_DTYPES] = {
    [TKE_F32] = &f32,
    [TKE_BF16] = &bf16,
    [TKE_F16] = &f16,
    [TKE_F64] = &f64,
    [TKE_MXFP4] = &tke_format_mxfp4,
    [TKE_MXFP4_BLOCKS] = &tke_format_mxfp4_blocks,
    [TKE_Q4_0] = &tke_format_q4_0,
    [TKE_Q4_1] = &tke_format_q4_1,
    [TKE_Q5_0] = &tke_format_q5_0,
    [TKE_Q5_1] = &tke_format_q5_1,
    [TKE_Q8_0] = &tke_format_q8_0,
    [TKE_Q4_K] = &tke_format_q4_k,
    [TKE_Q5_K] = &tke_format_q5_k,
    [TKE_Q6_K] = &tke_format_q6_k,
    [TKE_IQ4_NL] = &tke_format_iq4_nl,
    [TKE_NF4] = &tke_format_nf4,
    [TKE_FP8] = &tke_format_fp8,
};

const tke_format *tke_format_of(tke_dtype dtype)
{
    assert(dtype >= 0 && dtype < TKE_DTYPES);
    return formats[dtype];
}

const tke_format *tke_format_of_gguf(uint32_t type)
{
    for (int i = 0; i < TKE_DTYPES; i++)
        if (formats[i]->gguf >= 0 && (uint32_t)formats[i]->gguf == type)
            return formats[i];
    return NULL;
}

tke_dtype tke_format_dtype(const tke_format *f)
{
    int i = 0;
    while (formats[i] != f)
        i++;
    return (tke_dtype)i;
}

const char *tke_format_list(void)
{
    return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL and MXFP4";
}

static void widen_packed(const tke_matrix *m, int64_t row, int64_t at, int64_t n, tke_real *to)
{
    uint16_t piece[TKE_MAX_BLOCK];
    const tke_format *f = tke_format_of(m->dtype);
    for (int64_t i = 0; i < n; i += TKE_MAX_BLOCK) {
        int64_t count = n - i < TKE_MAX_BLOCK ? n - i : TKE_MAX_BLOCK;
        f->unpack[TKE_UNPACK_REF](m, row, at + i, count, piece);
        tke_widen(TKE_BF16, piece, (size_t)count, to + i);
    }
}

void tke_matrix_row(const tke_matrix *m, int64_t row, int64_t at, int64_t n, tke_real *to)
{
    if (tke_is_packed(m->dtype)) {
        widen_packed(m, row, at, n, to);
        return;
    }
    size_t first = (size_t)(row * m->ld + at) * tke_dtype_size(m->dtype);
    tke_widen(m->dtype, (const char *)m->data + first, (size_t)n, to);
}
