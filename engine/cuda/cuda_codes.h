/* cuda_codes.h - packed weights on their way from a file to the card. */
#ifndef TKE_CUDA_CODES_H
#define TKE_CUDA_CODES_H

#include "cuda/cuda_packed.h"
#include "math/dtype.h"

/* TCU_NOT_PACKED for numbers. */
int32_t tcu_format_of(tke_dtype);

typedef struct tcu_apart { /* factors of rows, where a format keeps them apart; bytes 0: it does not */
    const void *from;
    size_t bytes;
    int64_t row_bytes; /* FP8: of 128 rows */
} tcu_apart;
tcu_apart tcu_factors_apart(const tke_matrix *, size_t first, size_t n);

#endif
