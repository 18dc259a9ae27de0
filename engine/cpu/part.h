/* part.h - the parts of a layer on the CPU: one object for each kind of mixer and feed-forward.
 *
 * A part computes y from its normed input a; norm and residual are the layer's (layer.c). It says
 * what memory it needs by walking over its buffers: `keep` for what its backward pass reads,
 * `work` for what nothing outlives. Both place the buffers in slots that only the part's own file
 * knows by name. Memory of layers that do not keep theirs is shared, so a part must leave nothing
 * there. Training (forward) and decoding (step) must give a row the same bits.
 *
 * A new kind of part: its struct in model/model.h, a file part_*.c with its object, a line in
 * layer.c. Private to engine/cpu.
 */
#ifndef TKE_CPU_PART_H
#define TKE_CPU_PART_H

#include "cpu/block.h"

enum { TKE_SLOTS = 24 };
typedef struct tke_slots {
    tke_real *at[TKE_SLOTS];
} tke_slots;

/* A part at work on all rows of one layer. */
typedef struct tke_turn {
    const tke_rows *rows;
    const tke_layer *layer;
    const tke_slots *keep, *work;
    size_t n_seqs;
    /* training: packed sequences, as in tke_microbatch */
    const int64_t *starts;
    tke_real *dlow; /* [n, group size * max_rank]: backward */
    /* decoding */
    const tke_kv_seq *seqs;
    tke_kv_cache cache; /* this layer's keys and values */
    tke_real *states;   /* slots of sequences: this layer's numbers of slot 0 */
    size_t state_stride;
    const int32_t *state_of; /* [n_seqs] slots */
} tke_turn;

typedef struct tke_part {
    void (*keep)(tke_walk *, const tke_layer *, const tke_microbatch_size *, tke_slots *);
    void (*work)(tke_walk *, const tke_layer *, const tke_microbatch_size *, tke_slots *);
    /* a [n, H] -> y [n, H], which is not a. y NULL: leaves out what only y needs, where forward is
     * run again for the backward pass. */
    void (*forward)(const tke_turn *, const tke_real *a, tke_real *y);
    /* dy -> da (NULL = not wanted); adds to the gradients of the segments. Runs once after
     * forward, and may write over what that kept. */
    void (*backward)(const tke_turn *, const tke_real *a, const tke_real *dy, tke_real *da);
    /* As forward, over the cache and the states. */
    void (*step)(const tke_turn *, const tke_real *a, tke_real *y);
    /* Numbers of one block of the cache, and of a sequence's state; NULL = none. */
    size_t (*cache_reals)(const tke_layer *);
    size_t (*state_reals)(const tke_layer *);
} tke_part;

extern const tke_part tke_part_attention, tke_part_delta, tke_part_space, tke_part_dense,
    tke_part_experts;

/* ---- part_dense.c: a dense feed-forward as a piece of another part ---- */

/* keep: TKE_DENSE_KEPT places; m: [n, inner] of work space. dx may be dy. */
enum { TKE_DENSE_KEPT = 4 };
void tke_dense_keep(tke_walk *, const tke_dense *, const tke_microbatch_size *, tke_real **at);
void tke_dense_forward(const tke_turn *, const tke_dense *, tke_real *const *keep, tke_real *m,
                       const tke_real *x, tke_real *y);
void tke_dense_backward(const tke_turn *, const tke_dense *, tke_real *const *keep, tke_real *m,
                        const tke_real *x, const tke_real *dy, tke_real *dx);

/* ---- layer.c ---- */

/* Runs n tasks, which get the turn, on all threads. */
void tke_turn_spread(const tke_turn *, size_t n_tasks, tke_task_fn *);
/* Decoding: the layer's numbers of a sequence. */
tke_real *tke_turn_state(const tke_turn *, size_t seq);

/* NULL = the layer has none. */
const tke_part *tke_mixer_of(const tke_layer *);
const tke_part *tke_feed_of(const tke_layer *);

typedef struct tke_layer_acts { /* a layer's buffers */
    tke_slots mixer, feed, mixer_work, feed_work;
    tke_real *h_mid; /* [H] between the two parts; of a single one, its result */
} tke_layer_acts;
void tke_layer_keep(tke_walk *, const tke_model *, const tke_layer *, const tke_microbatch_size *,
                    tke_layer_acts *);
void tke_layer_work(tke_walk *, const tke_layer *, const tke_microbatch_size *, tke_layer_acts *);
/* The most that any layer takes. */
size_t tke_layers_keep(const tke_model *, const tke_microbatch_size *);
size_t tke_layers_work(const tke_model *, const tke_microbatch_size *);
/* The largest group of the model: buffers of A x are [n, that * max_rank]. */
size_t tke_largest_group(const tke_model *);
/* h_out = h + the parts' results, one after the other; a, b [n, H]: their normed inputs, which may be
 * one buffer. h_out may be h, or NULL: what only it needs is left out. */
void tke_layer_run(tke_turn *, const tke_layer_acts *, const tke_real *h, tke_real *a, tke_real *b,
                   tke_real *h_out);
size_t tke_layer_cache_reals(const tke_layer *);
size_t tke_layer_state_reals(const tke_layer *);

#endif
