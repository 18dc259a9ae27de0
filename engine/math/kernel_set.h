/* kernel_set.h - a kernel set: functions over a range of rows, on one thread.
 *
 * The front ends (gemm.c, rows.c, attention.c) split calls into ranges and hand each to a worker;
 * the sets (reference.c, neon, avx2, avx512) know nothing of threads. A set's functions must give a row
 * the same bits whatever range it is in. Private to engine/math.
 */
#ifndef TKE_KERNELS_KERNEL_SET_H
#define TKE_KERNELS_KERNEL_SET_H

#include "math/format.h"
#include "math/kernels.h"

/* Scratch of one worker, aligned to 64 bytes; behind it there is room for unpacked weights. */
enum { TKE_SCRATCH_BYTES = 4 << 20, TKE_DECODE_BYTES = 512 << 10 };

/* Where attention finds keys and values: contiguous (ids NULL) or in cache blocks. Position p of
 * key head h starts at element row(p) + h*head_stride. */
typedef struct tke_keys {
    const void *k, *v;
    tke_dtype dtype;
    int64_t ld;          /* elements from position to position inside a block */
    int64_t head_stride; /* and from head to head */
    const int32_t *ids;
    int64_t block_stride;
    int32_t block_tokens;
} tke_keys;

static inline int64_t tke_keys_row(const tke_keys *keys, int64_t position)
{
    if (!keys->ids)
        return position * keys->ld;
    return keys->ids[position / keys->block_tokens] * keys->block_stride +
           position % keys->block_tokens * keys->ld;
}

/* Rows [begin, end) of one sequence, all heads of one group. q, o, lse point at the row of index
 * 0, whose position is first_pos. */
typedef struct tke_attention_part {
    const tke_attention *shape;
    tke_keys keys;
    int64_t first_pos;
    int64_t kv_head;
    const tke_real *q;
    tke_real *o, *lse; /* lse may be NULL */
} tke_attention_part;

/* One sequence and one key/value head of the backward pass; pointers at the sequence's row 0. All
 * of it at once, or in parts that compute the weights twice but can run side by side: first dq and
 * delta of some rows, then, from the deltas of all rows, dk and dv of some blocks of keys. Whole or
 * in parts, the bits are the same. */
enum { TKE_BACK_WHOLE = 0, TKE_BACK_ROWS, TKE_BACK_KEYS };
typedef struct tke_attention_back {
    const tke_attention *shape;
    int64_t length, kv_head;
    int32_t part;
    int64_t begin, end; /* of a part; keys begin at a multiple of TKE_KEY_BLOCK */
    tke_attention_grads g;
} tke_attention_back;

typedef struct tke_kernel_set {
    const char *name;
    int32_t isa;
    int64_t tile_m, tile_n; /* good multiples for splitting products */
    /* c[m0..m1)[n0..n1) of the call */
    void (*gemm)(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch);
    /* Of any format; NULL = the format's own for this set. */
    tke_unpack *unpack;
    /* NULL, or: c[m0..m1)[n0..n) of a product with a packed b, n the returned number. */
    int64_t (*packed)(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                      void *scratch);
    void (*rmsnorm)(int64_t rows, int64_t n, const tke_real *x, const tke_real *w, tke_real eps,
                    tke_real *y);
    void (*rmsnorm_backward)(int64_t rows, int64_t n, const tke_real *x, const tke_real *w,
                             tke_real eps, const tke_real *dy, tke_real *dx, bool accumulate);
    void (*rope)(int64_t rows, int64_t heads, int64_t d, const int32_t *positions,
                 const tke_real *cos_table, const tke_real *sin_table, bool inverse, tke_real *x,
                 int64_t ldx);
    void (*swiglu)(int64_t count, const tke_real *g, const tke_real *u, tke_real *m);
    void (*swiglu_backward)(int64_t count, const tke_real *g, const tke_real *u, const tke_real *dm,
                            tke_real *dg, tke_real *du);
    void (*attention)(const tke_attention_part *, int64_t begin, int64_t end, void *scratch);
    void (*attention_backward)(const tke_attention_back *, void *scratch);
    void (*lse_update)(int64_t rows, int64_t n, const tke_real *z, int64_t ldz, tke_real *max,
                       tke_real *sum);
    void (*softmax_scaled)(int64_t rows, int64_t n, tke_real *z, int64_t ldz, const tke_real *lse,
                           const tke_real *scale);
    /* one block of at most TKE_SUM_BLOCK numbers */
    double (*sum_squares)(int64_t count, const tke_real *x);
    /* Sum of squares of the change, NaN or infinite if a new number is not finite. */
    double (*adam)(const tke_adam *, int64_t count, const tke_real *g, tke_real *theta, tke_real *m,
                   tke_real *v, bool store);
} tke_kernel_set;

enum { TKE_SUM_BLOCK = 8192 };

/* A loop over the rows or columns of a tile, n a constant: unrolled before the compiler decides what it keeps
 * in registers. Left as a loop it has the tile's sums in memory. */
#if defined(__clang__)
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

extern const tke_kernel_set tke_set_ref;
/* NULL if the compiler does not support the target. */
const tke_kernel_set *tke_set_neon(bool bf16);
const tke_kernel_set *tke_set_avx2(void);
const tke_kernel_set *tke_set_avx512(bool bf16);
/* Has this processor dot products of bf16 numbers that are faster than fp32 ones? */
bool tke_avx512_fast_bf16(void);

/* avx512packed.c: for processors with AVX-512 BF16. */
tke_unpack tke_unpack_avx512bf16;
int64_t tke_packed_few_avx512bf16(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                  void *scratch);
void tke_gemm_avx512(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     void *scratch);
void tke_gemm_avx512bf16(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                         void *scratch);
/* Between neon.c and neonbf16.c. */
void tke_gemm_neon(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch);
void tke_gemm_neonbf16(const tke_gemm *, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                       void *scratch);

struct tke_cpu {
    const tke_kernel_set *set;
    tke_threads *threads;
    int32_t precision;
    void **scratch; /* one for each worker */
};

#endif
