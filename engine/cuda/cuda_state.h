/* cuda_state.h - the types of the host side of the CUDA backend. Private to engine/cuda.
 *
 * One device has one stream; everything is queued on it in order, and waited for where results are
 * read (block_read, which any thread may call, has a stream of its own). A call that fails leaves
 * the device usable unless the card itself is lost, which `dead` remembers. [one thread: the
 * worker; blocks may be freed by any thread, under the device's lock]
 */
#ifndef TKE_CUDA_STATE_H
#define TKE_CUDA_STATE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include "base/err.h"
#include "cuda/cuda_experts.h"
#include "cuda/cuda_gemm.h"
#include "cuda/cuda_kernels.h"
#include "device/device.h"
#include "device/residence.h"

typedef struct tcu_device {
    tke_device base;
    int index;
    cudaStream_t stream;
    cudaStream_t side;      /* for reads by other threads */
    cudaStream_t beside[2]; /* work that runs beside the stream's, between tcu_fork and tcu_join */
    cudaEvent_t forked, joined[2];
    struct cudaDeviceProp props;
    int driver; /* 13000 = 13.0 */
    tcu_gemm gemm;
    pthread_mutex_t lock;
    size_t used[5]; /* bytes by TCU_FOR_* */
    bool dead;
    bool layered;            /* few rows layer by layer, too: for comparison */
    bool apart;              /* an adapter's part in a launch of its own: for comparison */
    tke_residence residence; /* which adapters are on the card */
    double *parts;           /* sums of blocks */
    size_t n_parts;
    double *sums;                /* [4], of the host, pinned */
    struct tcu_profile *profile; /* NULL = not measured */
} tcu_device;

/* Time by the name of what was queued, for benchmarks: the device's stream is marked after each
 * call. */
typedef struct tcu_profile {
    struct {
        cudaEvent_t at;
        const char *what;
    } * marks;
    size_t n, cap;
} tcu_profile;

enum tcu_purpose {
    TCU_FOR_WEIGHTS = 0,
    TCU_FOR_CACHE,
    TCU_FOR_WORK,
    TCU_FOR_ADAPTERS,
    TCU_FOR_OTHER,
    TCU_PURPOSES
};
const char *tcu_purpose_name(int purpose);

/* ---- cuda_device.c ---- */

/* Checks whether device `index` (-1 = the first) can be used; err says why not. */
bool tcu_probe(int index, tinkc_error *err);
tcu_device *tcu_open(int index, tinkc_error *err);
void tcu_close(tcu_device *); /* NULL allowed */
/* From fork on `beside` may continue after what is queued; from join on the stream waits for it. */
bool tcu_fork(tcu_device *, int ways, tinkc_error *err);
bool tcu_join(tcu_device *, int ways, tinkc_error *err);
/* Marks the end of what was queued last. */
void tcu_mark(tcu_device *, const char *what);
/* Records the failure of a call; returns false if there was one. rc is a cudaError_t. */
bool tcu_ok(tcu_device *, int rc, const char *what, tinkc_error *err);
void *tcu_take(tcu_device *, size_t bytes, int purpose, tinkc_error *err);
void tcu_give(tcu_device *, void *at, size_t bytes, int purpose); /* NULL allowed; any thread */
bool tcu_upload(tcu_device *, void *to, const void *from, size_t bytes, tinkc_error *err);
bool tcu_download(tcu_device *, void *to, const void *from, size_t bytes,
                  tinkc_error *err); /* waits */
bool tcu_wait(tcu_device *, tinkc_error *err);
/* On any thread; what is read was finished before. */
bool tcu_fetch(tcu_device *, void *to, const void *from, size_t bytes, tinkc_error *err);
bool tcu_memory(tcu_device *, size_t *free_bytes, size_t *total_bytes);

/* Tables that kernels read: filled on the host, sent in one copy. */
typedef struct tcu_feed {
    unsigned char *host, *card;
    size_t size, used;
} tcu_feed;
bool tcu_feed_reserve(tcu_device *, tcu_feed *, size_t bytes,
                      tinkc_error *err); /* waits when it must grow */
void tcu_feed_free(tcu_device *, tcu_feed *);
/* Room for bytes: the host's address; *card = where the kernels will find it. NULL when it is full. */
void *tcu_feed_put(tcu_feed *, size_t bytes, void *card);
bool tcu_feed_send(tcu_device *, tcu_feed *, tinkc_error *err);

/* Memory of the host that kernels write results to. */
typedef struct tcu_results {
    unsigned char *at;
    size_t size;
} tcu_results;
/* Room for so many bytes; what was there before is lost. */
bool tcu_results_reserve(tcu_device *, tcu_results *, size_t bytes, tinkc_error *err);
void tcu_results_free(tcu_results *);

/* ---- cuda_weights.c ---- */

typedef struct tcu_linear { /* a group: matrices with one input, one below the other */
    tcu_bf16 *w;            /* [rows, in]; of experts and where matrices are packed NULL */
    tcu_coded coded[TCU_GROUP_MAX];
    int32_t n_coded;        /* 0, or how many lie one below the other: some stay packed */
    float *bias;            /* [rows] or NULL */
    int32_t group;          /* index in layouts */
    bool adapted;           /* false: never */
    int32_t n, in, out[TCU_GROUP_MAX], rows; /* with the zeros of their sides */
} tcu_linear;

typedef struct tcu_sides { /* of a group */
    tcu_side in, out[TCU_GROUP_MAX];
} tcu_sides;

/* What layers have of the parts of model.h. */
typedef struct tcu_attn {
    tcu_linear qkv, o;
    float *q_norm, *k_norm, *sinks; /* or NULL */
    int32_t d, q_width, k_width;    /* of a head, of all: with zeros */
    const tke_attn *of;
} tcu_attn;

typedef struct tcu_delta {
    tcu_linear in, gates, out;
    float *conv, *decay, *dt_bias, *norm;
    const tke_delta *of;
} tcu_delta;

typedef struct tcu_space {
    tcu_linear in, vectors, out;
    float *conv, *conv_bias, *decay, *dt_bias, *skip, *norm; /* conv_bias or NULL */
    const tke_space *of;
} tcu_space;

typedef struct tcu_dense {
    tcu_linear in, out;
    int32_t inner; /* with zeros */
    bool squared;
} tcu_dense;

typedef struct tcu_experts {
    tcu_bf16 *router;     /* [padded experts, H] */
    float *router_bias;   /* or NULL */
    tcu_stack gate_up, down;
    tcu_linear in, out;   /* for the adapters */
    int32_t n, padded;    /* experts; columns of router logits */
    int32_t top, width;   /* width: of an expert, with zeros */
    size_t unpacked;      /* numbers of the larger packed stack; 0: none is packed */
    float *choice;        /* of a sigmoid router; or NULL */
    tcu_dense shared;     /* the expert of every row; of nothing: there is none */
    tcu_linear shared_gate;
    const tke_experts *of;
} tcu_experts;

typedef struct tcu_part tcu_part; /* cuda_part.h */
typedef struct tcu_layer {
    const tcu_part *mixer, *feed;  /* NULL: there is none */
    float *mixer_norm, *feed_norm;
    size_t cache_at, state_at;     /* where its numbers begin in a block of the cache, its bytes in a sequence's state */
    tcu_attn attn;                 /* what belongs to these parts */
    tcu_delta delta;
    tcu_space space;
    tcu_dense dense;
    tcu_experts experts;
} tcu_layer;

typedef struct tcu_model {
    tke_device_model base;
    tcu_device *device;
    tke_config config;
    int32_t hidden, vocab;
    tcu_layer *layers;
    tcu_sides *sides;                  /* of all groups, by index */
    bool has_experts;
    size_t cache_numbers, state_bytes; /* of all layers: of a block of the cache, of a sequence's state */
    tcu_linear embed, head;            /* the same numbers if tied */
    float *norm;
    size_t unpacked;                   /* numbers of the largest packed group or head; 0: none is packed */
    float *cosine, *sine; /* [n_positions, rotary / 2] */
    size_t n_positions;
    unsigned char *block; /* weights and norms */
    size_t bytes;
} tcu_model;

size_t tcu_model_bytes(const tke_model *);
tcu_model *tcu_model_new(tcu_device *, tke_model *, tinkc_error *err);
void tcu_model_free(tcu_model *); /* NULL allowed */

/* A walk over a model's numbers: the first one measures, the second one places them and loads them. */
typedef struct tcu_loader tcu_loader;
/* in, out[n]: how the sides lie there; NULL = one run. */
void tcu_load_group(tcu_loader *, const tke_group *, const tcu_side *in, const tcu_side *out,
                    tcu_linear *);
/* n numbers, and zeros up to `room`; from NULL: *to = NULL. */
void tcu_load_vector(tcu_loader *, const float *from, size_t n, size_t room, float **to);
/* One matrix that is in no group. */
void tcu_load_weight(tcu_loader *, const tke_weight *, tcu_linear *);
void tcu_load_experts(tcu_loader *, const tke_experts *, tcu_experts *);
/* One run of n numbers. */
tcu_side tcu_side_of(size_t n);

/* Layers of plain attention and a plain dense feed-forward: what runs in one launch (cuda_decode.cu). */
enum { TCU_DECODE_GROUPS = 4 };
bool tcu_decode_model(const tcu_model *);
void tcu_decode_groups(const tcu_layer *, const tcu_linear *out[TCU_DECODE_GROUPS]);

/* ---- cuda_block.c ---- */

typedef struct tcu_block { /* weights, gradients or moments of one adapter: fp32 */
    tke_resident place;    /* first: the residence casts to it */
    tcu_device *device;
    float *data; /* on the card; NULL while the numbers wait on the host */
    float *host; /* there; else NULL */
    size_t n;
    /* made when it is first used as weights */
    int32_t rank, padded, n_groups;
    tcu_group *groups; /* on the card */
    tcu_bf16 *operands;
    size_t n_operands;
    bool fresh;    /* operands follow data */
    bool has_head; /* the output projection has an adapter */
    /* made when it is first used by a step in one launch */
    unsigned char *maps; /* on the card: of A of each group */
    uint32_t adapted;    /* bit i: group i of every layer has a part; the last: the head */
} tcu_block;

/* Moves between card and host, for the device's residence. */
bool tcu_block_leave(tke_resident *, tinkc_error *err);
bool tcu_block_come(tke_resident *, tinkc_error *err);
/* Brings it to the card; it stays there until the next call of the table. */
bool tcu_block_use(const tcu_block *, tinkc_error *err);

tcu_block *tcu_block_new(tcu_device *, size_t n, tinkc_error *err); /* zeroed */
void tcu_block_free(tcu_block *);                                   /* NULL allowed; any thread */
bool tcu_block_copy(tcu_block *to, const tcu_block *from, tinkc_error *err);
bool tcu_block_write(tcu_block *, const float *from, tinkc_error *err);
bool tcu_block_read(const tcu_block *, float *to, tinkc_error *err);
bool tcu_block_zero(tcu_block *, tinkc_error *err);
bool tcu_block_squares(const tcu_block *, double *sum, tinkc_error *err);
/* All or nothing: if a new number is not finite, nothing changes and *moved is NaN. */
bool tcu_block_adam(const tke_adam *, const tcu_block *g, tcu_block *theta, tcu_block *m,
                    tcu_block *v, double *moved, tinkc_error *err);
/* The bf16 operands of weights of this layout, made if they are not there. */
bool tcu_block_ready(tcu_block *, const tke_lora_layout *, const tcu_model *, tinkc_error *err);
/* The maps of a block that is ready, made if they are not there. False without err: layers differ in what is adapted, so no step runs in one launch. */
bool tcu_block_maps(tcu_block *, const tke_lora_layout *, const tcu_model *, tinkc_error *err);

/* ---- cuda_tables.c: segments, tiles, steps, spans from a batch's description ---- */

/* Tiles of up to tile_rows rows of one segment, for rows [begin, end); out NULL = only count. */
size_t tcu_fill_tiles(const tke_segment *, size_t n, int32_t begin, int32_t end, int32_t tile_rows,
                      tcu_tile *out);
/* Steps of up to 16 rows, sequence by sequence. starts: [n_seqs + 1]. */
size_t tcu_count_steps(const int64_t *starts, size_t n_seqs);
void tcu_fill_steps(const int64_t *starts, size_t n_seqs, tcu_step *out);
/* The segments of rows [begin, end), which lie between steps; steps may be NULL. */
void tcu_fill_segments(const tke_segment *, size_t n, const tcu_step *steps, size_t n_steps,
                       int32_t begin, int32_t end, tcu_segment *out);
/* Brings the adapters and gradients of all segments to the card. */
bool tcu_hold_segments(const tke_segment *, size_t n, tinkc_error *err);
/* Makes the operands of all adapters; *most = the largest padded rank, *head = does one adapt the
 * head? */
bool tcu_ready_segments(const tcu_model *, const tke_segment *, size_t n, int32_t *most, bool *head,
                        tinkc_error *err);
/* A group's sizes, for kernels. */
tcu_lora tcu_lora_of(const tcu_linear *, int32_t most);
int32_t tcu_pad_rows(int64_t n);
int64_t tcu_pad_vocab(const tcu_model *);
int32_t tcu_padded_rank(size_t rank);
/* Cuts runs at multiples of TCU_PIECE_ROWS positions; out NULL = only counts. Fills in where each run's pieces are. */
size_t tcu_fill_pieces(tcu_run *, size_t n, tcu_piece *out);

/* ---- memory: one walk over a list of buffers measures or places them ---- */

typedef struct tcu_walk {
    unsigned char *at; /* NULL = only measure */
    size_t used;
} tcu_walk;
void tcu_walk_take(tcu_walk *, void *out, size_t count, size_t size);
#define TCU_TAKE(w, out, count) tcu_walk_take((w), &(out), (size_t)(count), sizeof *(out))

/* ---- cuda_microbatch.c, cuda_backward.c ---- */

typedef struct tcu_trainer tcu_trainer;
tcu_trainer *tcu_trainer_new(tcu_model *, const tke_device_trainer_options *, tinkc_error *err);
void tcu_trainer_free(tcu_trainer *); /* NULL allowed */
void tcu_trainer_set_memory(tcu_trainer *, size_t bytes);
size_t tcu_trainer_memory(const tcu_trainer *);
size_t tcu_trainer_held(const tcu_trainer *);
size_t tcu_trainer_bytes(const tcu_trainer *, const tke_microbatch_size *, int32_t keep);
bool tcu_trainer_run(tcu_trainer *, const tke_microbatch *, tinkc_error *err);

/* ---- cuda_step.c ---- */

typedef struct tcu_sampler tcu_sampler;
tcu_sampler *tcu_sampler_new(tcu_model *, const tke_device_sampler_options *, tinkc_error *err);
void tcu_sampler_free(tcu_sampler *); /* NULL allowed */
const tke_device_cache *tcu_sampler_cache(const tcu_sampler *);
bool tcu_sampler_copy(tcu_sampler *, int32_t to, int32_t from, tinkc_error *err);
bool tcu_sampler_copy_state(tcu_sampler *, int32_t to, int32_t from, tinkc_error *err);
bool tcu_sampler_commit(tcu_sampler *, size_t slab, tinkc_error *err);
void tcu_sampler_release(tcu_sampler *, size_t slab);
bool tcu_sampler_run(tcu_sampler *, const tke_step *, tinkc_error *err);

#endif
