/* cuda_experts.h - rows and their experts on the card: who goes where, and products by expert.
 *
 * Each row has `top` slots, its experts in ascending order. A pair is a slot in the order of experts, and of rows within one, so
 * that an expert's rows lie together. Whatever is summed over a row's experts runs in ascending order of the experts: a row's bits
 * depend on no other row. The host does not learn who goes where: tables have room for every case, and tiles that are not needed are
 * empty.
 */
#ifndef TKE_CUDA_EXPERTS_H
#define TKE_CUDA_EXPERTS_H

#include "cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TCU_MAX_EXPERTS = 1024, TCU_MAX_TOP = 32, TCU_MAX_EXPERT_GROUPS = 32, TCU_ORDER_SLOTS = 512 };
enum { TCU_FEW_TILE = 16, TCU_MANY_TILE = 128 }; /* rows of a tile of pairs */

typedef struct tcu_pairs {
    int32_t n, top, n_experts; /* n: rows */
    int32_t tile_rows;         /* TCU_FEW_TILE or TCU_MANY_TILE */
    int32_t *chosen;           /* [n][top] experts; -1 in a padding row */
    int32_t *pair_of;          /* [n][top] -1 in a padding row */
    int32_t *slot_of;          /* [n * top] back */
    int32_t *start;            /* [n_experts + 2] first pair of each expert; all pairs, all tiles that are not empty */
    float *weight;             /* [n][top] */
    tcu_tile *tiles; /* [tcu_tile_room]: segment is the expert, rows are pairs; n = 0: empty */
    int32_t *counts; /* scratch: [tcu_order_chunks][n_experts] */
} tcu_pairs;

/* ---- index arithmetic, for kernels and tests ---- */

TCU_BOTH int32_t tcu_order_chunks(int32_t slots)
{
    return (slots + TCU_ORDER_SLOTS - 1) / TCU_ORDER_SLOTS;
}

/* Tiles that pairs need at most. */
TCU_BOTH int32_t tcu_tile_room(int32_t pairs, int32_t n_experts, int32_t tile_rows)
{
    int32_t whole = pairs / tile_rows + n_experts;
    return whole < pairs ? whole : pairs;
}

TCU_BOTH int32_t tcu_tiles_of(int32_t rows, int32_t tile_rows)
{
    return (rows + tile_rows - 1) / tile_rows;
}

/* Tile i of the pairs begin .. end - 1 of an expert. */
TCU_BOTH tcu_tile tcu_expert_tile(int32_t expert, int32_t begin, int32_t end, int32_t i,
                                  int32_t tile_rows)
{
    tcu_tile t;
    t.segment = expert;
    t.row = begin + i * tile_rows;
    t.n = end - t.row < tile_rows ? end - t.row : tile_rows;
    return t;
}

/* How many of list[0 .. i - 1] equal list[i]: the place among the pairs of an expert in a chunk. */
TCU_BOTH int32_t tcu_rank_in(const int32_t *list, int32_t i)
{
    int32_t rank = 0;
    for (int32_t j = 0; j < i; j++)
        rank += list[j] == list[i];
    return rank;
}

/* The first of the pairs begin .. end - 1 of an expert whose slot is not below `slot`; they ascend. */
TCU_BOTH int32_t tcu_first_pair(const int32_t *slot_of, int32_t begin, int32_t end, int32_t slot)
{
    while (begin < end) {
        int32_t middle = begin + (end - begin) / 2;
        if (slot_of[middle] < slot)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Steps of an expert: of each datum its pairs, up to 16 at a time. They lie from here on, and the next expert's do not begin before
 * their end: an expert has at most a step for each pair, and at most a sixteenth and one more for each datum. */
TCU_BOTH int32_t tcu_steps_at(int32_t start, int32_t expert, int32_t n_data)
{
    int64_t few = (int64_t)start / TCU_STEP_ROWS + (int64_t)expert * n_data;
    return few < start ? (int32_t)few : start;
}

/* ---- routing: cuda_pairs.cu ---- */

typedef struct tcu_router {
    int32_t all;            /* the softmax runs over all experts, not over the chosen */
    int32_t ld;             /* of logits */
    const float *bias;      /* or NULL */
    const int32_t *present; /* positions of rows: negative = a padding row, which gets no expert; or NULL */
    /* Sigmoids instead of a softmax: what is added to them, in double, for the choice alone; NULL = softmax. Experts are chosen from the
     * kept_groups groups with the largest sums of their two best. */
    const float *choice;
    int32_t n_groups, kept_groups;
    bool normalised; /* weights are divided by their sum */
    float scale;     /* and then multiplied by this */
} tcu_router;

/* logits [n][ld] (+ bias, written back) -> chosen, weights; then the order of pairs and their tiles. The larger logit wins, the
 * lower expert among equals. exp(z - max) are added in ascending order of the chosen experts; over all: 32 sums of every 32nd, then a tree. */
int tcu_route(const tcu_router *, float *logits, const tcu_pairs *, tcu_stream);
/* Norm, router, choice and order in one launch (cuda_route.cu), for the rows of a decoding step; rows that are not there are left out. */
enum { TCU_ROUTE_ROWS = 16 };
typedef struct tcu_norm_route {
    const float *h;
    const tcu_bf16 *y;  /* or NULL: h + y is normed, */
    float *h_out;       /* and written here, unless NULL */
    const float *norm;
    float eps;
    tcu_bf16 *a;        /* the normed rows */
    const tcu_bf16 *w;  /* the router's matrix, [padded][hidden] */
    int32_t padded, hidden;
    float *logits;      /* [rows][padded] */
    tcu_router router;
    tcu_pairs pairs;
} tcu_norm_route;
/* shared: bytes of shared memory that a block may have. Needs what tcu_decode_here asks about. */
bool tcu_norm_route_here(const tcu_norm_route *, size_t shared);
int tcu_norm_route_run(const tcu_norm_route *, tcu_stream);
/* As tcu_route but the written back biases, for few rows. */
bool tcu_route_few_here(const tcu_pairs *);
int tcu_route_few(const tcu_router *, const float *logits, const tcu_pairs *, tcu_stream);
/* dweight [n][top] -> dlogits in bf16 [n][ld], 0 in columns past the experts. */
int tcu_route_back(const tcu_router *, const float *logits, const tcu_pairs *, const float *dweight,
                   tcu_bf16 *dlogits, tcu_stream);
/* starts: rows at which data begin, [n_data + 1]; steps: room for tcu_steps_at of the end; n_steps: of each expert */
int tcu_expert_steps(const tcu_pairs *, const int32_t *starts, int32_t n_data, tcu_step *steps,
                     int32_t *n_steps, tcu_stream);

/* y = the weighted sum of a row's pairs x [pairs][width]: to y if wide is NULL, else in fp32. */
int tcu_pairs_combine(const tcu_pairs *, const tcu_bf16 *x, int32_t width, float *wide, tcu_bf16 *y,
                      tcu_stream);
/* dx = bf16(sum of the pairs + router + dx), rows of `width`; add: dx holds an adapter's part. */
int tcu_pairs_gradient(const tcu_pairs *, const tcu_bf16 *x, int32_t width, const float *router,
                       bool add, tcu_bf16 *dx, tcu_stream);
/* low = bf16 of the sum of the pairs x [pairs][width], weighted or not. */
int tcu_pairs_low(const tcu_pairs *, bool weighted, const float *x, int32_t width, tcu_bf16 *low,
                  tcu_stream);
/* to[pair] = from[its row], times its weight if `weighted`. */
int tcu_pairs_spread(const tcu_pairs *, bool weighted, const tcu_bf16 *from, int32_t width,
                     tcu_bf16 *to, tcu_stream);

typedef struct tcu_expert_act { /* gu: [pairs][gate | up], width each */
    int32_t width;
    float limit, alpha; /* limit 0: silu(gate) * up; else clamped (model.h) */
    bool squared;       /* max(up, 0)^2, and gu has only ups */
} tcu_expert_act;
int tcu_act(const tcu_expert_act *, const tcu_bf16 *gu, tcu_bf16 *m, int64_t rows, tcu_stream);
/* dm (before the weights) -> dweight [n][top] = m . dm (+ bias of the expert . dy of the row, `hidden` numbers); dgate, dup over gu. */
int tcu_act_back(const tcu_expert_act *, const tcu_pairs *, tcu_bf16 *gu, const tcu_bf16 *m,
                 const tcu_bf16 *dm, const float *bias, const tcu_bf16 *dy, int32_t hidden,
                 float *dweight, tcu_stream);

/* A dense feed-forward with squared ReLU: dm -> du, in the place of up. */
int tcu_squared_back(tcu_bf16 *up, const tcu_bf16 *dm, int64_t count, tcu_stream);

/* ---- the expert of every row: cuda_shared.cu ---- */

typedef struct tcu_shared { /* gate NULL: weight 1, else the sigmoid of gate[row * ld] */
    const float *gate;
    int32_t ld, rows, width;
} tcu_shared;
/* y = bf16(y + weight * x) */
int tcu_shared_add(const tcu_shared *, const tcu_bf16 *x, tcu_bf16 *y, tcu_stream);
/* dy -> dx = bf16(weight * dy); dgate [rows], where there is a gate. */
int tcu_shared_back(const tcu_shared *, const tcu_bf16 *x, const tcu_bf16 *dy, tcu_bf16 *dx, float *dgate, tcu_stream);
/* dx = bf16(dx + part + dgate w), where w is the gate's row; without a gate dx = bf16(dx + part). */
int tcu_shared_join(const tcu_shared *, const tcu_bf16 *part, const float *dgate, const tcu_bf16 *w, tcu_bf16 *dx, tcu_stream);

/* ---- products: cuda_grouped.cu ---- */

typedef struct tcu_stack {     /* one matrix of each expert: [out][in] */
    tcu_bf16 *w;               /* NULL: packed */
    uint8_t *blocks, *scales;  /* mxfp4: in / 2 bytes and in / 32 scales a row, eight rows a strip (cuda_mxfp4.cuh) */
    float *bias;               /* [experts][out] or NULL */
    int32_t out, in;           /* multiples of 8 */
} tcu_stack;

typedef struct tcu_grouped {
    tcu_pairs pairs;
    const tcu_bf16 *x; /* of rows or of pairs */
    int64_t ldx;
    bool by_row;     /* x and low are of rows, and not x of pairs */
    bool transposed; /* y = x W instead of x W^T */
    tcu_stack w;
    int32_t parts;             /* matrices side by side in the columns of y: gate, up */
    tcu_bf16 *y;               /* [pairs][columns] */
    const float *bias;         /* [experts][columns] or NULL */
    tcu_lora lora;             /* segments, group, most */
    const int32_t *segment_of; /* [rows] */
    const tcu_bf16 *low;       /* of rows: what the experts' own factors are multiplied with; NULL = no adapters */
    int64_t ld_low;
} tcu_grouped;
/* y = bf16(fma(scale, B_e low, W_e x) + bias), or transposed bf16(dy W_e + low A_e). */
int tcu_grouped_product(const tcu_grouped *, tcu_stream);
/* The same for many rows by warpgroups, where tcu_decode_here. */
int tcu_grouped_wide(const tcu_grouped *, tcu_stream);
/* Few pairs, tiles of TCU_FEW_TILE: the same without `transposed`, and m = what the act makes of y (cuda_strips.cu). y NULL: not kept; m NULL:
 * without an act. Packed weights. */
enum { TCU_STRIP_ROWS = 16 };
typedef struct tcu_inner {
    tcu_grouped g;
    tcu_expert_act act;
    tcu_bf16 *m;
} tcu_inner;
int tcu_strips_inner(const tcu_inner *, tcu_stream);
/* y [rows][out] = bf16(the weighted sum of a row's products), up to TCU_STRIP_ROWS rows; no adapters. */
int tcu_strips_outer(const tcu_grouped *, tcu_bf16 *y, tcu_stream);
/* The experts' own factors alone, of pairs x: low = A_e x, or (back) dlow = scale dy B_e of each part. fp32 [pairs][ld]. */
int tcu_own_low(const tcu_grouped *, bool back, float *low, int64_t ld, tcu_stream);
/* Gradients of the experts' own factors, over pairs in the order of steps: B_e += dy^T (scale low), A_e += dlow^T x. */
typedef struct tcu_own_gradient {
    tcu_pairs pairs;
    tcu_lora lora;
    const tcu_step *steps;
    const int32_t *n_steps;
    int32_t n_data;
    const tcu_bf16 *dy, *low; /* of pairs: [pairs][parts * width], [pairs][ld_low] */
    int32_t width, parts;     /* parts 0: A_e, whose dlow is `low` and whose x is `dy` */
    int64_t ld_low;
} tcu_own_gradient;
int tcu_own_grow(const tcu_own_gradient *, tcu_stream);
/* Rows of mxfp4 from a file's order into that of a tcu_stack, in place. rows: a multiple of 8. */
int tcu_order_blocks(uint8_t *blocks, uint8_t *scales, int32_t rows, int32_t in, tcu_stream);
/* The packed matrices of all experts that have pairs, exactly, as bf16. */
int tcu_unpack(const tcu_stack *, const tcu_pairs *, tcu_bf16 *w, tcu_stream);

#ifdef __cplusplus
}
#endif

#endif
