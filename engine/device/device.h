/* device.h - the interface between the engine and its devices: one table of functions for each.
 *
 * Above it: training (passes, transactions), sampling (scheduling, results) and the service. They
 * know a device only by this table and carry no #ifdef for one. Below it: engine/cpu, and modules
 * that are opened at run time (engine/cuda). A module calls nothing of the engine by name; it reads
 * the plain structs named here (tke_model, tke_lora_layout, ...) and gets functions as pointers.
 *
 * A device computes at the level of a microbatch (forward, head with losses, backward) and of a
 * step (a few tokens of many sequences over the paged cache). Weights of a base model lie on it
 * once, for all trainers and samplers. Adapters are blocks of numbers that the device stores
 * where it likes; the host accesses them only through block_read and block_write. A device whose
 * memory is full moves the blocks that were unused for longest to the host (device/residence.h)
 * before a request fails with MEMORY.
 *
 * Bits (docs/engine.md): a row's numbers depend on its weights and request alone, and a packed
 * sequence gives the same numbers as the cached steps, on one device and build.
 *
 * Threads: one worker calls everything, but block_free, block_read, info and memory may come from
 * any thread; the device takes its own lock there.
 *
 * Errors: every function that can fail returns false (or NULL) and fills err: MEMORY if the device
 * has none left (the request fails, the device keeps working), SERVER if the device itself has
 * failed (every later call fails likewise), CANCELLED if *stop was set.
 */
#ifndef TKE_DEVICE_DEVICE_H
#define TKE_DEVICE_DEVICE_H

#include "model/lora.h"
#include "math/adam.h"

/* Raised whenever a struct or function that a module sees changes. */
enum { TKE_DEVICE_ABI = 5 };

typedef struct tke_device_ops tke_device_ops;

/* Every device begins with this; the rest is its own. */
typedef struct tke_device {
    const tke_device_ops *ops;
} tke_device;
/* The same for what a device makes. */
typedef struct tke_device_model {
    tke_device *device;
    tke_model *model; /* borrowed by a device; above the seam it is kept as long as this */
} tke_device_model;
typedef struct tke_device_trainer tke_device_trainer;
typedef struct tke_device_sampler tke_device_sampler;

/* ---- what a device is ---- */

typedef struct tke_device_options {
    int32_t index;     /* which of its kind: 1 for "cuda:1" */
    int32_t n_threads; /* of the host; 0 = all processors */
    int32_t precision; /* TKE_PRECISION_* and TKE_ISA_* of the CPU's kernels; for others 0 */
    int32_t isa;
} tke_device_options;

typedef struct tke_device_info {
    char name[32];            /* "cpu", "cuda:0" */
    char text[160];           /* "avx512, 2 threads"; "NVIDIA H200, driver 580.65, CUDA 13.0" */
    size_t memory_bytes;      /* all of it; 0 = the host's */
    size_t memory_free;       /* now */
    size_t microbatch_tokens; /* how many rows make a good microbatch */
    int32_t capability;       /* 90 for sm_90; 0 where it says nothing */
} tke_device_info;

typedef struct tke_memory_use { /* one line of a device's memory */
    const char *name;           /* "weights", "cache", "activations", "adapters": static */
    size_t bytes;
} tke_memory_use;

/* ---- adapters in a batch ---- */

/* Numbers of an adapter on a device: weights, gradients or a moment, in the order of its layout. */
typedef struct tke_block tke_block;

typedef struct tke_lora { /* low-rank weights as a batch reads them */
    const tke_lora_layout *layout;
    const tke_block *weights;
    tke_real scale; /* alpha / rank */
} tke_lora;

typedef struct tke_segment { /* a run of rows with one adapter */
    size_t begin, end;
    const tke_lora *lora; /* NULL = the bare model. Equal pointers mean equal adapters */
    tke_block *grads;     /* what gradients are added to; NULL = none wanted */
} tke_segment;

/* ---- training ---- */

enum tke_depth { TKE_DEPTH_NONE = 0, TKE_DEPTH_HEAD, TKE_DEPTH_ALL }; /* how far gradients go */
enum { TKE_KEEP_AUTO = 0, TKE_KEEP_NONE, TKE_KEEP_ALL }; /* activations: by memory; not; all */

typedef struct tke_device_trainer_options {
    size_t memory_bytes;       /* for activations and work space; 0 = the device chooses */
    int32_t keep;              /* TKE_KEEP_*: kept or recomputed, the same bits */
    const _Atomic(bool) *stop; /* NULL, or set from outside: a microbatch ends soon, CANCELLED */
} tke_device_trainer_options;

typedef struct tke_microbatch_size {
    size_t n;        /* rows */
    size_t max_rank; /* of all segments; 0 = no adapters */
    size_t max_k;    /* targets of a row, at most */
    int32_t depth;   /* TKE_DEPTH_* of all rows */
} tke_microbatch_size;

/* The losses of rows first .. first + n - 1, whose log-probs of their targets are lp [n][max_k] (0
 * where there is no target): fills g [n][max_k] with d loss / d lp, 0 where there is none. A row
 * whose g are all 0 takes no part in the backward pass. Called on the host, in the order of rows,
 * each row once; with `sweep` twice: first for all rows with g NULL, then for all again. */
typedef void tke_losses_fn(void *user, size_t first, size_t n, const tke_real *lp, tke_real *g);

typedef struct tke_microbatch { /* packed sequences, positions from 0 in each */
    tke_microbatch_size size;
    const int32_t *ids;       /* [n] tokens */
    const int32_t *positions; /* [n] */
    const int64_t *starts;    /* [n_seqs + 1]: rows starts[i] .. starts[i+1]-1 are sequence i */
    size_t n_seqs;
    const tke_segment *segments; /* all rows, in order */
    size_t n_segments;
    bool attn;              /* does any adapter here train attention? Only for depth ALL */
    bool sweep;             /* losses need the log-probs of whole sequences first */
    const int32_t *targets; /* [n][max_k]; -1 = none */
    tke_losses_fn *losses;
    void *user;
} tke_microbatch;

/* ---- sampling ---- */

enum { TKE_BLOCK_TOKENS = 16 }; /* positions in a block of the cache */
enum { TKE_STATE_EDGE = 64 };   /* states are snapshots at multiples of it: chunks of the rules */

enum { TKE_LOGPROBS_SCALED = 0, TKE_LOGPROBS_RAW, TKE_LOGPROBS_PROCESSED };

typedef struct tke_sample_rule {
    double temperature; /* 0 = greedy */
    double top_p;       /* >= 1 = off */
    int64_t top_k;      /* <= 0 = off */
    int32_t logprobs;   /* TKE_LOGPROBS_* */
} tke_sample_rule;

typedef struct tke_device_sampler_options {
    size_t cache_bytes; /* for keys and values, at most */
    size_t max_rows;    /* of a step */
    size_t max_seqs;    /* of a step */
} tke_device_sampler_options;

/* Every sampler begins with this. Which blocks hold what is kept above the seam. */
typedef struct tke_device_cache {
    size_t n_blocks;    /* ids 0 .. n_blocks - 1; at least 2 */
    size_t block_bytes; /* all layers, keys and values */
    /* What a sequence carries beside its blocks (recurrent states, open chunks): slots 0 ..
     * n_states - 1. 0 bytes where the model has none; then there are no slots. */
    size_t n_states, state_bytes;
    /* Memory is taken and given back in slabs of so many blocks (the last may be shorter): see
     * cache_commit. 0 = all of it is there from the beginning. */
    size_t slab_blocks;
} tke_device_cache;

typedef struct tke_step_seq { /* new tokens of one sequence */
    size_t first_row, n_rows;
    size_t first_pos;      /* position of the first row; what comes before is in the cache */
    const int32_t *blocks; /* ids: position p is row p % TKE_BLOCK_TOKENS of blocks[p / that] */
    int32_t state; /* its slot, which is first_pos positions far; at 0 its content does not matter;
                      -1 where the model has none */
} tke_step_seq;

/* What is wanted of the logits of a row. Each list is ordered by want; results go to where the
 * pointers say. Log-probs are of the raw logits, as the training forward has them, to the bit. */
typedef struct tke_score { /* the log-prob of a token */
    size_t want;           /* index into tke_step.wants */
    int32_t token;
    float *logprob;
} tke_score;

typedef struct tke_top { /* the k likeliest, descending, lower id first on ties */
    size_t want, k;
    int32_t *tokens; /* [k]; beyond the vocabulary: 0 */
    float *logprobs; /* [k]; beyond the vocabulary: -99999 */
} tke_top;

typedef struct tke_bias { /* is added to the logit of a token, for a draw alone */
    int32_t token;
    float by; /* finite */
} tke_bias;

typedef struct tke_draw { /* one token by a rule */
    size_t want;
    const tke_sample_rule *rule;
    uint64_t seed;
    uint32_t sample, position; /* the random number is Philox at these, under the seed */
    int32_t *token;
    float *logprob;
    bool *bad; /* set to true if no token could be drawn: logits are not finite */
    /* The only tokens that may be drawn: bit t % 32 of word t / 32; NULL = all. Applied before the
     * other filters; log-probs are still those of all logits. */
    const uint32_t *allowed;
    /* Added before the other filters, in float; log-probs are still those of all logits. Sorted by
     * token, each at most once. The step reads them before it returns. */
    const tke_bias *biases;
    size_t n_biases;
} tke_draw;

typedef struct tke_step {
    size_t n; /* rows, at most max_rows */
    const int32_t *ids, *positions;
    const tke_segment *segments;
    size_t n_segments;
    size_t max_rank; /* of all segments */
    const tke_step_seq *seqs;
    size_t n_seqs;
    const size_t *wants; /* rows whose logits are wanted, ascending */
    size_t n_wants;
    const tke_score *scores;
    size_t n_scores;
    const tke_top *tops;
    size_t n_tops;
    const tke_draw *draws; /* several may name one want: samples that fork */
    size_t n_draws;
} tke_step;

/* ---- the table ---- */

struct tke_device_ops {
    uint32_t abi;     /* TKE_DEVICE_ABI */
    const char *kind; /* "cpu", "cuda" */

    /* Errors: UNSUPPORTED, with the reason in words: no driver, one that is too old, no device. */
    tke_device *(*open)(const tke_device_options *, tinkc_error *err);
    void (*close)(tke_device *); /* everything made on it must be freed before */
    void (*info)(tke_device *, tke_device_info *out);
    size_t (*memory)(tke_device *, tke_memory_use *out, size_t room); /* returns lines filled */

    /* Bytes of the device that load would take; 0 = none of its own. Reads only the headers
     * of files. */
    size_t (*model_bytes)(tke_device *, const tke_model *);
    /* MEMORY before anything is loaded if it cannot fit, with both numbers. */
    tke_device_model *(*model_load)(tke_device *, tke_model *, tinkc_error *err);
    void (*model_free)(tke_device_model *);

    /* Blocks of n numbers; a new one is zero. */
    tke_block *(*block_new)(tke_device *, size_t n, tinkc_error *err);
    void (*block_free)(tke_device *, tke_block *); /* NULL allowed */
    bool (*block_zero)(tke_device *, tke_block *, size_t n, tinkc_error *err);
    bool (*block_copy)(tke_device *, tke_block *to, const tke_block *from, size_t n,
                       tinkc_error *err);
    bool (*block_write)(tke_device *, tke_block *to, const tke_real *from, size_t n,
                        tinkc_error *err);
    bool (*block_read)(tke_device *, const tke_block *from, tke_real *to, size_t n,
                       tinkc_error *err);
    /* The block's own numbers if they are in host memory, else NULL: saves a copy. */
    tke_real *(*block_host)(tke_device *, const tke_block *);
    bool (*block_finite)(tke_device *, const tke_block *, size_t n, bool *out, tinkc_error *err);
    /* Sum of squares, in double, in an order that depends only on n. */
    bool (*block_squares)(tke_device *, const tke_block *, size_t n, double *out, tinkc_error *err);
    /* One AdamW step as torch does it; g stays. *moved: sum of squares of the change. All or
     * nothing: if a new weight or moment is not finite, nothing changes and *moved is NaN. */
    bool (*adam)(tke_device *, const tke_adam *, size_t n, const tke_block *g, tke_block *theta,
                 tke_block *m, tke_block *v, double *moved, tinkc_error *err);

    tke_device_trainer *(*trainer_new)(tke_device_model *, const tke_device_trainer_options *,
                                       tinkc_error *err);
    void (*trainer_free)(tke_device_trainer *); /* NULL allowed */
    void (*trainer_set_memory)(tke_device_trainer *, size_t memory_bytes);
    size_t (*trainer_memory)(const tke_device_trainer *); /* the budget in force */
    /* Work space held between microbatches; set_memory with less gives it back. */
    size_t (*trainer_held)(const tke_device_trainer *);
    /* Bytes that a microbatch needs: with TKE_KEEP_NONE the least, with ALL if all is kept. */
    size_t (*microbatch_bytes)(const tke_device_trainer *, const tke_microbatch_size *,
                               int32_t keep);
    /* Forward, losses, backward. On failure gradient blocks are undefined. */
    bool (*microbatch_run)(tke_device_trainer *, const tke_microbatch *, tinkc_error *err);

    tke_device_sampler *(*sampler_new)(tke_device_model *, const tke_device_sampler_options *,
                                       tinkc_error *err);
    void (*sampler_free)(tke_device_sampler *); /* NULL allowed */
    const tke_device_cache *(*sampler_cache)(const tke_device_sampler *);
    bool (*cache_copy)(tke_device_sampler *, int32_t to, int32_t from, tinkc_error *err);
    /* Copies a sequence's slot: for samples that fork, and for snapshots that a prefix can be
     * resumed from. Only where cache->state_bytes > 0; else NULL is allowed. */
    bool (*state_copy)(tke_device_sampler *, int32_t to, int32_t from, tinkc_error *err);
    /* The memory of a slab: none is there at first, and a step names only blocks whose slab is.
     * cache_release forgets what it holds. */
    bool (*cache_commit)(tke_device_sampler *, size_t slab, tinkc_error *err);
    void (*cache_release)(tke_device_sampler *, size_t slab);
    /* Keys and values of the rows go into the cache, their sequences' states move on, results go
     * where the lists say. */
    bool (*step_run)(tke_device_sampler *, const tke_step *, tinkc_error *err);
};

/* ---- making one: device.c ---- */

/* By name: "auto" (or NULL), "cpu", "cuda", "cuda:1". auto takes a card if there is one that can be
 * used, else the CPU, and says in `why` (may be NULL) which and why not the other. Asked for by
 * name, a card that cannot be used is an error. */
typedef struct tke_device_reason {
    char text[256];
} tke_device_reason;
tke_device *tke_device_open(const char *name, const tke_device_options *, tke_device_reason *why,
                            tinkc_error *err);
void tke_device_close(tke_device *); /* NULL allowed */
/* Is it a name that tke_device_open knows? ARGUMENT if not. */
bool tke_device_name_check(const char *name, tinkc_error *err);

/* A block's numbers in host memory: its own if they are there, else a copy. */
typedef struct tke_view {
    tke_real *data;
    size_t n;
    bool copied;
} tke_view;
bool tke_view_open(tke_view *, tke_device *, const tke_block *, size_t n, tinkc_error *err);
/* Ends a view; what was changed is written back to `to` (NULL = nothing was). */
bool tke_view_close(tke_view *, tke_device *, tke_block *to, tinkc_error *err);

extern const tke_device_ops tke_cpu_device; /* engine/cpu */

/* What a module exports: `tinkc_engine_cuda` in libtinkc-engine-cuda.so. NULL if it was built for
 * another abi. */
typedef const tke_device_ops *tke_device_module_fn(uint32_t abi);

#endif
