/* cuda_part.h - the parts of a layer on a card: one object for each kind of mixer and feed-forward.
 *
 * As on the CPU (cpu/part.h) a part computes y from its normed input a; norm and residual are the layer's (cuda_layer.c). It says
 * what memory it needs by walking over its buffers: `keep` for what its backward pass reads, `work` for what nothing outlives. Both
 * place the buffers in slots that only the part's own file knows by name. Training (forward) and sampling (step) must give a row
 * the same bits. Work is only queued: a step may be recorded as a graph, so its launches depend on the tables' lengths, not on what
 * they hold. Private to engine/cuda.
 */
#ifndef TKE_CUDA_PART_H
#define TKE_CUDA_PART_H

#include "cuda/cuda_state.h"

enum { TCU_SLOTS = 24 };
typedef struct tcu_slots {
    void *at[TCU_SLOTS];
} tcu_slots;
#define TCU_SLOT(w, slots, i, type, count) \
    tcu_walk_take((w), &(slots)->at[i], (size_t)(count), sizeof(type))

typedef struct tcu_size {
    size_t n;      /* rows, rounded up */
    size_t most;   /* the largest padded rank; 0 = no adapters */
    size_t n_data; /* sequences at most, if there is a backward pass; else 0 */
    bool whole;    /* the layer keeps what its backward pass would make again, too */
} tcu_size;

typedef struct tcu_rows { /* a batch of rows */
    tcu_model *model;
    int32_t n, padded; /* rows; what products run over */
    const int32_t *ids, *positions;
    tcu_lora lora; /* tables of segments, tiles, steps; the group is filled in for each product */
    int32_t most;
    bool fused;                /* what adapters add may be made where it is read next */
    const int32_t *segment_of; /* [n]: of each row; where there are experts */
    const int32_t *starts;     /* [n_data + 1] training: rows at which data begin; where there are experts */
    int32_t n_data;
    /* where layers have a state */
    const tcu_run *runs;
    const tcu_piece *pieces;
    const int32_t *run_of; /* [n] */
    int32_t n_runs, n_pieces, longest; /* longest: no run has more rows; fixed in a graph */
} tcu_rows;

typedef struct tcu_packed { /* training: attention's spans */
    const tcu_span *spans, *key_spans;
    int32_t n_spans, n_key_spans;
    bool grouped; /* they are those of warpgroups */
} tcu_packed;

typedef struct tcu_cached { /* a step: the paged cache, of one layer */
    tcu_paged keys;
    const int32_t *tables;
    const tcu_span *narrow, *wide;
    int32_t n_narrow, n_wide;
} tcu_cached;

typedef struct tcu_normed { /* what a part's input is the norm of */
    const float *h;
    const tcu_bf16 *y;   /* or NULL: h + y is normed, */
    float *h_out;        /* and written here, unless NULL */
    const float *weights;
    tcu_bf16 *a;         /* the input */
} tcu_normed;

typedef struct tcu_turn { /* a part at work on all rows of a layer */
    const tcu_rows *rows;
    const tcu_layer *layer;
    const tcu_slots *keep, *work;
    float *wide;              /* [n][widest group] scratch of products; NULL without adapters */
    tcu_bf16 *dlow;           /* scratch of backward passes */
    const tcu_packed *packed; /* NULL in a step */
    const tcu_cached *cached; /* NULL in training */
    const tcu_normed *normed; /* a step: the norm is the part's to make; else NULL */
    unsigned char *states;    /* a step: the layer's bytes of slot 0 */
    size_t state_stride;
} tcu_turn;

struct tcu_part {
    /* Can the card do it? UNSUPPORTED says what it cannot. */
    bool (*runs)(const tke_model *, const tke_layer *, tinkc_error *err);
    /* Fills in its struct of the layer. */
    void (*weights)(tcu_loader *, const tke_layer *from, tcu_layer *to);
    void (*keep)(tcu_walk *, const tcu_model *, const tcu_layer *, const tcu_size *, tcu_slots *);
    void (*work)(tcu_walk *, const tcu_model *, const tcu_layer *, const tcu_size *, tcu_slots *);
    /* a [n][H] -> y [n][H]. y NULL: leaves out what only y needs, where forward is run again for the backward pass. */
    bool (*forward)(const tcu_turn *, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err);
    /* dy -> dx (NULL = not wanted); adds to the gradients of the adapters. May write over what was kept. */
    bool (*backward)(const tcu_turn *, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                     tinkc_error *err);
    /* Does a step make the norm of its input itself? NULL = no. */
    bool (*norms)(const tcu_turn *);
    /* As forward, over the cache and the states. */
    bool (*step)(const tcu_turn *, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err);
    /* Numbers of a block of the cache; bytes of a sequence's state, a multiple of 16. NULL = none. */
    size_t (*cache_numbers)(const tcu_layer *);
    size_t (*state_bytes)(const tcu_model *, const tcu_layer *);
};
extern const tcu_part tcu_part_attention, tcu_part_delta, tcu_part_space, tcu_part_dense,
    tcu_part_experts;

/* ---- cuda_layer.c ---- */

/* The part of a kind of model.h; NULL = it does not run here. */
const tcu_part *tcu_mixer_part(int32_t kind);
const tcu_part *tcu_feed_part(int32_t kind);

typedef struct tcu_acts { /* a layer's buffers */
    tcu_slots mixer, feed;
    float *h_mid; /* between its two parts */
} tcu_acts;
void tcu_layer_keep(tcu_walk *, const tcu_model *, const tcu_layer *, const tcu_size *, tcu_acts *);
/* The most that any layer keeps, and that any part works in. */
size_t tcu_layers_keep(const tcu_model *, const tcu_size *);
size_t tcu_layers_work(const tcu_model *, const tcu_size *);
/* Columns of the widest product with adapters; matrices of the largest group. */
size_t tcu_widest_group(const tcu_model *);
size_t tcu_largest_group(const tcu_model *);

typedef struct tcu_residual { /* the stream of residuals is h + y */
    const float *h;
    const tcu_bf16 *y; /* or NULL */
} tcu_residual;

typedef struct tcu_place { /* where a layer computes */
    const tcu_acts *acts;
    unsigned char *work; /* of tcu_layers_work */
    tcu_size size;       /* that it was placed for */
    float *h_in;         /* gets the layer's input */
    tcu_bf16 *a, *y;     /* normed inputs and results of its parts */
} tcu_place;
/* The turn of a part, its work space placed. */
tcu_turn tcu_part_turn(const tcu_turn *, const tcu_part *, const tcu_slots *keep, tcu_slots *work,
                       const tcu_place *);
/* One layer; not `output`: what only its result needs is left out. */
bool tcu_layer_run(const tcu_turn *, const tcu_place *, tcu_residual *, bool output,
                   tinkc_error *err);

/* ---- cuda_linear.c: groups of matrices with their adapters ---- */

/* Its packed matrices; NULL = none is packed. */
const tcu_coded *tcu_coded_of(const tcu_linear *);
/* The embeddings of n ids. Returns what the launch returns. */
int tcu_embed_rows(const tcu_model *, const int32_t *ids, float *h, int32_t n);
/* The batch's adapter tables, completed with the sizes of one group. */
tcu_lora tcu_rows_lora(const tcu_rows *, const tcu_linear *);
/* y = W x with adapters and bias; `low` [n][g->n * most] stays for the backward pass. */
bool tcu_group_forward(const tcu_turn *, const tcu_linear *, const tcu_bf16 *x, tcu_bf16 *low,
                       tcu_bf16 *y, tinkc_error *err);
/* Only low = A x. */
bool tcu_group_low(const tcu_turn *, const tcu_linear *, const tcu_bf16 *x, tcu_bf16 *low,
                   tinkc_error *err);
/* W x in fp32, without adapters. */
bool tcu_group_wide(const tcu_turn *, const tcu_linear *, const tcu_bf16 *x, float *y,
                    tinkc_error *err);
/* tcu_group_forward in one launch, if that is faster than any other way: then *done. */
bool tcu_group_once(const tcu_turn *, const tcu_linear *, const tcu_bf16 *x, tcu_bf16 *low,
                    tcu_bf16 *y, bool *done, tinkc_error *err);
/* Should the sum with the adapters' part be made where it is read next? Then this leaves W x in u->wide, A x in low. */
bool tcu_turn_fused(const tcu_turn *);
bool tcu_group_halves(const tcu_turn *, const tcu_linear *, const tcu_bf16 *x, tcu_bf16 *low,
                      tcu_lora *, tinkc_error *err);
/* The reverse of tcu_group_forward: gradients of the group's adapters; dx = dy W + dlow A unless NULL. add: is added to dx, and the
 * group has no adapters. */
bool tcu_group_back(const tcu_turn *, const tcu_linear *, const tcu_bf16 *x, const tcu_bf16 *dy,
                    const tcu_bf16 *low, bool add, tcu_bf16 *dx, tinkc_error *err);

/* ---- cuda_feed_dense.c: a dense feed-forward as a piece of another part ---- */

enum { TCU_DENSE_KEPT = 3 };
void tcu_dense_weights(tcu_loader *, const tke_dense *, tcu_dense *);
void tcu_dense_keep(tcu_walk *, const tcu_dense *, const tcu_size *, tcu_slots *, int first);
/* m: [n][inner] of work space. */
bool tcu_dense_forward(const tcu_turn *, const tcu_dense *, int first, tcu_bf16 *m,
                       const tcu_bf16 *x, tcu_bf16 *y, tinkc_error *err);
/* dm: [n][inner] too. */
bool tcu_dense_backward(const tcu_turn *, const tcu_dense *, int first, tcu_bf16 *m, tcu_bf16 *dm,
                        const tcu_bf16 *x, const tcu_bf16 *dy, tcu_bf16 *dx, tinkc_error *err);

#endif
