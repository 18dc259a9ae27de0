/* format.h - how stored weights are packed, and their numbers as bf16.
 *
 * A format defines an fp32 value for each of its codes; the model that it stands for has those
 * values rounded to bf16 (to nearest, ties to even). Products unpack pieces of a weight where they
 * use them, so that a packed weight and the bf16 matrix it stands for give the same bits.
 *
 * A format is one file format_*.c and a line in format.c. Every set of a machine gives the same
 * bits; NaN is always 0x7fc0.
 */
#ifndef TKE_MATH_FORMAT_H
#define TKE_MATH_FORMAT_H

#include "math/dtype.h"

/* Row `row`, columns at .. at + n - 1 (multiples of the block) of a packed matrix, as bf16. */
typedef void tke_unpack(const tke_matrix *, int64_t row, int64_t at, int64_t n, uint16_t *to);

/* The codes of one block, and its factor where the format keeps factors apart. False: a number does not
 * fit. */
typedef bool tke_pack(const float *x, uint8_t *codes, float *factor);

/* In the order of TKE_ISA_*. NEON's are the plain ones, which the compiler makes wide. */
enum { TKE_UNPACK_REF = 0, TKE_UNPACK_NEON, TKE_UNPACK_AVX2, TKE_UNPACK_AVX512, TKE_UNPACK_SETS };
enum { TKE_NOT_IN_GGUF = -1, TKE_MAX_BLOCK = 256 };

typedef struct tke_format {
    const char *name;    /* "Q4_K" */
    int32_t gguf;        /* its number in GGUF files, or TKE_NOT_IN_GGUF */
    int32_t block;       /* numbers that are stored together along a row */
    int32_t block_bytes; /* of their codes; factors of NF4 and FP8 are stored elsewhere */
    tke_unpack *unpack[TKE_UNPACK_SETS]; /* NULL: numbers, which tke_widen reads */
    tke_pack *pack;                      /* NULL: it is only read */
} tke_format;

const tke_format *tke_format_of(tke_dtype);
/* By the number in GGUF files; NULL = unknown. */
const tke_format *tke_format_of_gguf(uint32_t type);
/* "F32, BF16, ...": those of GGUF files, for messages. */
const char *tke_format_list(void);
tke_dtype tke_format_dtype(const tke_format *);

/* Bytes of n numbers, a multiple of the block. */
static inline size_t tke_format_bytes(const tke_format *f, size_t n)
{
    return n / (size_t)f->block * (size_t)f->block_bytes;
}

/* Row `row`, columns at .. at + n - 1 of any matrix, widened. Both are multiples of the block. */
void tke_matrix_row(const tke_matrix *, int64_t row, int64_t at, int64_t n, tke_real *to);

/* The sixteen numbers that NF4's codes name. */
extern const float tke_nf4_values[16];

enum { TKE_FP8_SIDE = 128 };
/* FP8 of rows band * 128 and on (at most 128): codes of the whole matrix, factors of all its squares. The largest
 * magnitude of a square becomes 448. False: a number is not finite. */
bool tke_fp8_pack(const tke_matrix *from, int64_t rows, int64_t band, uint8_t *codes,
                  float *factors);

extern const tke_format tke_format_mxfp4, tke_format_mxfp4_blocks, tke_format_q4_0, tke_format_q4_1,
    tke_format_q5_0, tke_format_q5_1, tke_format_q8_0, tke_format_q4_k, tke_format_q5_k,
    tke_format_q6_k, tke_format_iq4_nl, tke_format_nf4, tke_format_fp8;

#endif
