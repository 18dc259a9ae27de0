/* dtype.h - the numbers of the maths: what they are stored as, what they are computed in.
 *
 * tke_real is what activations, adapters and gradients are held in. It is float; a build with
 * -DTKE_REAL_DOUBLE makes it double, has the reference kernels only, and is the oracle that finite
 * differences are taken from. Weights stay as they are in their file (tke_dtype) and are widened
 * where they are used.
 */
#ifndef TKE_TENSOR_DTYPE_H
#define TKE_TENSOR_DTYPE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* From MXFP4 on: packed formats (format.h), which products and tke_matrix_row read. */
typedef enum tke_dtype {
    TKE_F32 = 0,
    TKE_BF16 = 1,
    TKE_F16 = 2,
    TKE_F64 = 3,
    TKE_MXFP4 = 4,    /* exponents in a tensor of their own, as in folders of gpt-oss */
    TKE_MXFP4_BLOCKS, /* this and what follows: as in GGUF files */
    TKE_Q4_0,
    TKE_Q4_1,
    TKE_Q5_0,
    TKE_Q5_1,
    TKE_Q8_0,
    TKE_Q4_K,
    TKE_Q5_K,
    TKE_Q6_K,
    TKE_IQ4_NL,
    TKE_NF4, /* bitsandbytes */
    TKE_FP8, /* e4m3 with a factor for each 128 x 128 numbers */
    TKE_DTYPES
} tke_dtype;
enum { TKE_MXFP4_BLOCK = 32, TKE_MXFP4_MAX_SCALE = 252 /* larger ones overflow, or are NaN */ };

#ifdef TKE_REAL_DOUBLE
typedef double tke_real;
#define TKE_REAL      TKE_F64
#define tke_real_exp  exp
#define tke_real_log  log
#define tke_real_sqrt sqrt
#define tke_real_fabs fabs
#else
typedef float tke_real;
#define TKE_REAL      TKE_F32
#define tke_real_exp  expf
#define tke_real_log  logf
#define tke_real_sqrt sqrtf
#define tke_real_fabs fabsf
#endif

enum {
    TKE_PRECISION_F32 = 0, /* products of fp32 numbers */
    TKE_PRECISION_BF16 = 1, /* NT and NN with b stored as bf16 round a to bf16 too (fp32 sums) */
    TKE_PRECISION_AUTO = 2  /* of options alone: BF16 where its dot products are faster */
};

/* What attention can do; a model beyond it is refused when it is opened. */
enum { TKE_MAX_HEAD_DIM = 256, TKE_MAX_HEAD_GROUP = 252 /* n_heads / n_kv_heads */ };
enum { TKE_MAX_TOP = 64 }; /* experts of a row */

/* A row-major matrix (or a vector: one row) as stored; ld = elements from row to row. */
typedef struct tke_matrix {
    const void *data;
    int64_t ld;
    tke_dtype dtype;
    const uint8_t *scales; /* MXFP4: one for each block; a row's begin at row * ld / 32 */
    const float *factors;  /* NF4: one for each 64 numbers; FP8: [rows / 128][ld / 128] */
} tke_matrix;

static inline bool tke_is_packed(tke_dtype dtype)
{
    return dtype >= TKE_MXFP4;
}

static inline tke_matrix tke_matrix_real(const tke_real *data, int64_t ld)
{
    return (tke_matrix){ .data = data, .ld = ld, .dtype = TKE_REAL };
}

/* Bytes of one element that is not packed. */
static inline size_t tke_dtype_size(tke_dtype dtype)
{
    return dtype == TKE_F64 ? 8 : dtype == TKE_F32 ? 4 : 2;
}

static inline float tke_bits_to_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t tke_f32_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tke_bf16_to_f32(uint16_t h)
{
    return tke_bits_to_f32((uint32_t)h << 16);
}

/* To the nearest, ties to even; NaN stays a (quiet) NaN. */
static inline uint16_t tke_f32_to_bf16(float x)
{
    uint32_t bits = tke_f32_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float tke_f16_to_f32(uint16_t h);
/* To the nearest, ties to even; overflow gives infinity. */
uint16_t tke_f32_to_f16(float x);

/* n elements of `dtype` to tke_real and back. The buffers must not overlap. Stored elements need
 * not be aligned. */
void tke_widen(tke_dtype dtype, const void *from, size_t n, tke_real *to);
void tke_narrow(tke_dtype dtype, const tke_real *from, size_t n, void *to);

/* Element i of a stored row. For the reference; fast code widens in registers. */
tke_real tke_load(tke_dtype dtype, const void *data, int64_t i);

#endif
