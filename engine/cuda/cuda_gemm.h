/* cuda_gemm.h - products of rows with base weights, always with the definition's bits.
 *
 * cuBLASLt runs where an algorithm is known to equal one mma.sync chain along k and has been checked once on this card
 * against our own kernel; few rows run on our own small kernel; where nothing passes, our own kernel runs and `fallbacks`
 * counts the shapes.
 */
#ifndef TKE_CUDA_GEMM_H
#define TKE_CUDA_GEMM_H

#include "base/err.h"
#include "cuda/cuda_packed.h"

struct tcu_device;
typedef struct tcu_plan tcu_plan; /* one shape's choice */

typedef struct tcu_gemm {
    void *library; /* of dlopen */
    const struct tcu_lt *lt;
    void *handle;
    size_t version;
    void *workspace;
    uint32_t *turn; /* of tcu_few */
    bool few_here;
    uint64_t *differing; /* pinned, read by the host */
    tcu_plan *plans;
    size_t n_plans, cap_plans;
    size_t checked, fallbacks;
    tcu_bf16 *unpacked; /* what packed weights stand for, while a product reads it */
    size_t n_unpacked;
} tcu_gemm;

/* True if this algorithm of cuBLASLt gives the chain's bits. */
bool tcu_algorithm_exact(int id, int split_k, int reduction);

bool tcu_gemm_open(struct tcu_device *, tinkc_error *err);
void tcu_gemm_close(struct tcu_device *);

/* y[m][n] = x[m][k] w, w stored [n][k] (not transposed) or [k][n] (transposed: dx = dy w). ldx, ldy: of rows. */
typedef struct tcu_product {
    bool transposed, wide;
    bool add; /* y = bf16(y + bf16(x w)), as cuBLASLt adds to a y of bf16 */
    const tcu_bf16 *x, *w;
    void *y;
    int64_t ldx, ldy;
    int32_t m, n, k;
    int32_t valid; /* rows of x that hold numbers; the others may hold anything */
    const tcu_coded *coded; /* w is NULL: n_coded matrices side by side in the columns of w x */
    int32_t n_coded;
    int32_t parts; /* 0, or: k is cut into so many; y is fp32 [parts][m][ldy], one chain each */
} tcu_product;
bool tcu_multiply(struct tcu_device *, const tcu_product *, tinkc_error *err);
/* Room to unpack so many numbers; packed weights of a product with few rows need none. */
bool tcu_unpack_room(struct tcu_device *, size_t n, tinkc_error *err);
/* Chooses the algorithm, the first time that a shape is used, and overwrites y then: before a y that is added to. */
bool tcu_plan_product(struct tcu_device *, const tcu_product *, tinkc_error *err);
/* True if our own kernel for few rows is the fastest for this product. */
bool tcu_prefers_small(struct tcu_device *, const tcu_product *, tinkc_error *err);
/* True if the one by warpgroups is the fastest, or so little slower than what it also does takes in launches of its own. */
bool tcu_prefers_few(struct tcu_device *, const tcu_product *, double spared_us, tinkc_error *err);

#endif
