/* cuda_packed.h - base weights that stay packed on the card, as the numbers of 8 or 4 bits of their format (math/format.h).
 *
 * A format stands for a bf16 matrix, and every product has that matrix's bits: the numbers are unpacked where they are used. Codes and
 * scales are put into another order when a model is loaded: a tile has 8 rows and 128 columns, and in it each lane of a warp finds 32
 * codes side by side, in the order in which the matrix instruction takes them. Formats of 5 and 6 bits take 8 here.
 */
#ifndef TKE_CUDA_PACKED_H
#define TKE_CUDA_PACKED_H

#include "cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* By how a code becomes a number: (code - zero) * scale + least; a table; (byte - zero) * scale + least; e4m3. */
enum tcu_format {
    TCU_NOT_PACKED = 0,
    TCU_Q4_0,
    TCU_Q4_1,
    TCU_Q4_K,
    TCU_IQ4_NL,
    TCU_NF4,
    TCU_MXFP4,        /* exponents apart */
    TCU_MXFP4_BLOCKS, /* exponents before their codes */
    TCU_Q8_0,
    TCU_Q5_0,
    TCU_Q5_1,
    TCU_Q5_K,
    TCU_Q6_K,
    TCU_FP8
};
enum { TCU_TILE_ROWS = 8, TCU_TILE_COLUMNS = 128 };

typedef struct tcu_coded { /* a matrix, or one of a stack */
    uint8_t *tiles;         /* TCU_NOT_PACKED: numbers of bf16, row by row */
    int32_t format, out, in;
} tcu_coded;

/* Bytes of the tiles. */
size_t tcu_coded_bytes(int32_t format, int64_t out, int64_t in);

typedef struct tcu_stored { /* rows first .. first + n - 1 of a matrix as its file has them; first is a multiple of TCU_TILE_ROWS */
    const uint8_t *codes;   /* from row `first` on */
    int64_t row_bytes;
    const void *factors; /* where the format keeps them apart: a row's begin factor_bytes behind the last one's, FP8: of 128 rows */
    int64_t factor_bytes;
    int32_t first, n;
} tcu_stored;
/* Into the order of tiles. */
int tcu_pack_tiles(const tcu_coded *, const tcu_stored *, tcu_stream);
/* The bf16 matrix that it stands for. */
int tcu_unpack_tiles(const tcu_coded *, tcu_bf16 *w, tcu_stream);
/* y[m][out] = x[m][in] w^T for up to TCU_SMALL_ROWS rows; wide: y is fp32. Reads the weight once. */
int tcu_small_coded(bool wide, const tcu_bf16 *x, const tcu_coded *, void *y, int64_t ldy, int32_t m, tcu_stream);
/* Rows of an embedding; tcu_embed. */
int tcu_embed_coded(const int32_t *ids, const tcu_coded *, float *h, int32_t rows, tcu_stream);

#ifdef __cplusplus
}
#endif

#endif
