/* cuda_rules.h - what the rules with a state share on the card: runs of rows, and the short convolution before them.
 *
 * A run is the rows that one launch has of one sequence: all of it in training, from position 0; in a step the new rows, whose
 * sequence left in its slot what the rule needs of those before.
 */
#ifndef TKE_CUDA_RULES_H
#define TKE_CUDA_RULES_H

#include "cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TCU_CONV_KERNEL = 8, TCU_CONV_PARTS = 3 }; /* the most taps, the most parts */

typedef struct tcu_conv_part { /* some of the channels; rows of m have room for channels rounded up to 8, zeros behind them */
    const tcu_bf16 *m;
    int64_t ld; /* of its rows, a multiple of 8 */
    int32_t channels;
} tcu_conv_part;

/* c = bf16(silu(bias + sum over taps, the oldest first, of weight * m)), each channel by itself. Nothing comes before
 * position 0. c has the parts side by side, each rounded up to 8 columns. */
typedef struct tcu_conv {
    int32_t kernel, n_parts;
    tcu_conv_part part[TCU_CONV_PARTS];
    const float *weights; /* [kernel][channels of all parts]: the last row is the position's own */
    const float *bias;    /* or NULL */
    const tcu_run *runs;  /* on the card */
    int32_t n_runs, longest; /* rows of the longest run, or more */
    tcu_bf16 *slots; /* a step: the last kernel - 1 rows m of slot s at slots + s * stride, the oldest first, columns as in c; else NULL */
    int64_t stride;
} tcu_conv;

int32_t tcu_conv_columns(const tcu_conv *);
/* Rows of c are ldc apart, a multiple of 8. A step leaves its last rows m in the slots. */
int tcu_conv_forward(const tcu_conv *, tcu_bf16 *c, int64_t ldc, tcu_stream);
/* Training: the gradient of c becomes that of m, part by part, as m lies. */
int tcu_conv_back(const tcu_conv *, const tcu_bf16 *dc, int64_t ldc, tcu_bf16 *const dm[TCU_CONV_PARTS], tcu_stream);

#ifdef __cplusplus
}
#endif
#endif
