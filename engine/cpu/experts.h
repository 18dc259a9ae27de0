/* experts.h - rows and their experts: who goes where, and products by expert. Private to engine/cpu.
 *
 * Each row has `top` pairs (row, expert). Pairs are ordered by expert, and by row within one, so that
 * an expert's rows lie together. Whatever is summed over a row's experts runs in ascending order of
 * the experts: a row's bits depend on no other row.
 */
#ifndef TKE_CPU_EXPERTS_H
#define TKE_CPU_EXPERTS_H

#include "cpu/part.h"

typedef struct tke_pairs {
    size_t n, top, n_experts; /* n: rows */
    int32_t *chosen;          /* [n, top] experts, ascending */
    int32_t *pair_of;         /* [n, top] the pair's place */
    int32_t *slot_of;         /* [n * top] back: row * top + which of them */
    int32_t *start;           /* [n_experts + 1] first pair of each expert */
    tke_real *weight;         /* [n, top] */
} tke_pairs;

static inline size_t tke_pairs_count(const tke_pairs *p)
{
    return p->n * p->top;
}

/* ---- experts_route.c ---- */

/* logits [n, E] -> chosen, weights; then the order of pairs. */
void tke_route(tke_cpu *, const tke_experts *, const tke_real *logits, tke_pairs *);
/* dweight [n, top], logits -> dlogits [n, E], over logits. */
void tke_route_backward(tke_cpu *, const tke_experts *, const tke_pairs *, const tke_real *dweight,
                        tke_real *logits);
/* to[pair] = from[its row], rows of `width` numbers. */
void tke_pairs_gather(tke_cpu *, const tke_pairs *, size_t width, const tke_real *from,
                      tke_real *to);
/* to[row] = the sum of from[pair], each times its weight if `weighted`. */
void tke_pairs_sum(tke_cpu *, const tke_pairs *, size_t width, bool weighted, const tke_real *from,
                   tke_real *to);
/* x[pair] *= its weight. */
void tke_pairs_scale(tke_cpu *, const tke_pairs *, size_t width, tke_real *x);
/* out[row, which] = x[pair] . y[pair]. */
void tke_pairs_dot(tke_cpu *, const tke_pairs *, size_t width, const tke_real *x, const tke_real *y,
                   tke_real *out);

/* out[row, which] += bias[expert] . y[pair]; bias [E, width]. */
void tke_pairs_dot_bias(tke_cpu *, const tke_pairs *, size_t width, const tke_real *bias,
                        const tke_real *y, tke_real *out);
/* Gates and ups in turn [pairs, 2 * width] <-> two arrays. */
void tke_pairs_split(tke_cpu *, const tke_pairs *, size_t width, const tke_real *both, tke_real *x,
                     tke_real *y);
void tke_pairs_join(tke_cpu *, const tke_pairs *, size_t width, const tke_real *x,
                    const tke_real *y, tke_real *both);
/* h of gate and up, by the experts' formula; and dgate, dup from dh, which may lie over them. */
void tke_experts_act(tke_cpu *, const tke_experts *, const tke_pairs *, const tke_real *gate,
                     const tke_real *up, tke_real *h);
void tke_experts_act_backward(tke_cpu *, const tke_experts *, const tke_pairs *, const tke_real *dh,
                              tke_real *gate, tke_real *up);

/* ---- experts_shared.c: the expert of every row ---- */

enum { TKE_SHARED_KEPT = TKE_DENSE_KEPT + 2, TKE_SHARED_WORK = 2 }; /* places */
void tke_shared_keep(tke_walk *, const tke_experts *, const tke_microbatch_size *, tke_real **at);
void tke_shared_work(tke_walk *, const tke_experts *, const tke_microbatch_size *, tke_real **at);
/* y += its weighted result (y NULL: only what the backward pass reads); dx += its gradient. */
void tke_shared_forward(const tke_turn *, tke_real *const *keep, tke_real *const *work,
                        const tke_real *x, tke_real *y);
void tke_shared_backward(const tke_turn *, tke_real *const *keep, tke_real *const *work,
                         const tke_real *x, const tke_real *dy, tke_real *dx);

/* ---- experts_linear.c: all of them over pairs ---- */

/* y = W_e x (+ bias) */
void tke_stack_forward(tke_cpu *, const tke_pairs *, const tke_stack *, const tke_real *x,
                       tke_real *y);
/* dx (+)= dy W_e */
void tke_stack_backward(tke_cpu *, const tke_pairs *, const tke_stack *, const tke_real *dy,
                        bool accumulate, tke_real *dx);
/* Adapters with an own B for each expert: y_i += scale B_ei low_i. low [pairs, group size * max_rank]. */
void tke_own_b_forward(const tke_rows *, const tke_pairs *, const tke_group *, const tke_real *low,
                       tke_real *const *y);
/* dlow_i = scale dy_i B_ei; the gradient of B_ei. */
void tke_own_b_backward(const tke_rows *, const tke_pairs *, const tke_group *, const tke_real *low,
                        const tke_real *const *dy, tke_real *dlow);
/* Adapters with an own A: low = A_e x. low [pairs, max_rank]; rows without an adapter become 0. */
void tke_own_a_forward(const tke_rows *, const tke_pairs *, const tke_group *, const tke_real *x,
                       tke_real *low);
/* dx += dlow A_e. */
void tke_own_a_backward(const tke_rows *, const tke_pairs *, const tke_group *,
                        const tke_real *dlow, tke_real *dx);
/* The gradient of A_e += dlow^T x. */
void tke_own_a_gradient(const tke_rows *, const tke_pairs *, const tke_group *,
                        const tke_real *dlow, const tke_real *x);
/* The shared B, over rows: y += scale B low; dlow = scale dy B and the gradient of B. */
void tke_shared_b_forward(const tke_rows *, const tke_group *, const tke_real *low, tke_real *y);
void tke_shared_b_backward(const tke_rows *, const tke_group *, const tke_real *low,
                           const tke_real *dy, tke_real *dlow);

#endif
