/* cuda_codes.c - packed weights as files have them: their formats' names on the card, where their factors lie. */
#include "cuda/cuda_codes.h"

int32_t tcu_format_of(tke_dtype dtype)
{
    static const int32_t formats[TKE_DTYPES] = {
        [TKE_MXFP4] = TCU_MXFP4,   [TKE_MXFP4_BLOCKS] = TCU_MXFP4_BLOCKS,
        [TKE_Q4_0] = TCU_Q4_0,     [TKE_Q4_1] = TCU_Q4_1,
        [TKE_Q5_0] = TCU_Q5_0,     [TKE_Q5_1] = TCU_Q5_1,
        [TKE_Q8_0] = TCU_Q8_0,     [TKE_Q4_K] = TCU_Q4_K,
        [TKE_Q5_K] = TCU_Q5_K,     [TKE_Q6_K] = TCU_Q6_K,
        [TKE_IQ4_NL] = TCU_IQ4_NL, [TKE_NF4] = TCU_NF4,
        [TKE_FP8] = TCU_FP8,
    };
    return formats[dtype];
}

tcu_apart tcu_factors_apart(const tke_matrix *m, size_t first, size_t n)
{
    size_t ld = (size_t)m->ld, wide = (ld + 127) / 128;
    if (m->dtype == TKE_NF4)
        return (tcu_apart){ m->factors + first * ld / 64, n * ld / 64 * sizeof(float),
                            (int64_t)(ld / 64 * sizeof(float)) };
    if (m->dtype == TKE_MXFP4)
        return (tcu_apart){ m->scales + first * ld / TKE_MXFP4_BLOCK, n * ld / TKE_MXFP4_BLOCK,
                            (int64_t)ld / TKE_MXFP4_BLOCK };
    if (m->dtype == TKE_FP8)
        return (tcu_apart){ m->factors + first / 128 * wide,
                            ((first + n - 1) / 128 - first / 128 + 1) * wide * sizeof(float),
                            (int64_t)(wide * sizeof(float)) };
    return (tcu_apart){ 0 };
}
