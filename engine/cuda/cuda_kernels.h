/* cuda_kernels.h - the kernels of the CUDA backend as the host side calls them.
 *
 * All pointers are to the card's memory unless said otherwise; every call only queues work on the stream, and
 * returns cudaSuccess (0) or the error of the launch. Matrices are row-major; a row is a token.
 *
 * Rounding points (docs/gpu.md): weights and activations are bf16, sums fp32. base = bf16(W x);
 * y = bf16(fma(scale, B low, base + bias)), low = bf16(A x). The residual stream is fp32. Both the packed and the
 * paged path run these same kernels.
 */
#ifndef TKE_CUDA_KERNELS_H
#define TKE_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
typedef __nv_bfloat16 tcu_bf16;
#else
typedef uint16_t tcu_bf16;
#endif
typedef struct CUstream_st *tcu_stream;
#ifdef __CUDACC__
#define TCU_BOTH static inline __host__ __device__
#else
#define TCU_BOTH static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- low-rank adapters ---- */

enum { TCU_GROUP_MAX = 4, TCU_LORA_ROWS = 64, TCU_STEP_ROWS = 16, TCU_STRIP_RANK = 64 };

/* How the numbers of a side of a matrix lie on the card: runs of `run` numbers, each followed by zeros up to `step`, a multiple of 8. A
 * head of 10 numbers has a step of 16; a side without parts is one run. */
typedef struct tcu_side {
    int32_t run, step;
} tcu_side;

typedef struct
    tcu_group { /* of one adapter; offsets in elements; rank is padded to 16 in the operands */
    int32_t n;  /* matrices; 0 = none */
    int32_t in; /* with the zeros of its side */
    int64_t a;                /* operands: A [n * padded, in] */
    int64_t b[TCU_GROUP_MAX]; /* operands: B [out, padded] */
    int32_t out[TCU_GROUP_MAX];
    int64_t master_a;                /* in the fp32 block, without those zeros: A [n * rank, in] */
    int64_t master_b[TCU_GROUP_MAX]; /* B [out, rank] */
    tcu_side side_in, side_out[TCU_GROUP_MAX];
    int32_t n_a, n_b; /* copies of A and of each B: 1, or the experts' */
} tcu_group;

typedef struct tcu_segment { /* rows of one adapter */
    int32_t begin, end;
    int32_t rank, padded; /* 0 = no adapter */
    float scale;
    int32_t first_step, n_steps; /* of its rows among the steps of 16 tokens */
    int32_t unused;
    const tcu_group *groups;
    const tcu_bf16 *operands;
    float *grads; /* or NULL */
} tcu_segment;

typedef struct tcu_tile {    /* up to tile_rows rows of one segment */
    int32_t segment, row, n; /* segment -1 = a padding tile */
} tcu_tile;
typedef struct tcu_step { /* 1 to 16 rows of one datum */
    int32_t row, n;
} tcu_step;

/* ---- sequences with a state ---- */

enum { TCU_PIECE_ROWS = 64 };
typedef struct tcu_run {   /* rows of one sequence in a batch */
    int32_t row, n;        /* first row, number; n = 0: not there */
    int32_t position;      /* of its first row; 0 in training */
    int32_t slot;          /* of its state, which is worthless at position 0; -1 in training */
    int32_t piece, n_pieces;
} tcu_run;
typedef struct tcu_piece { /* its rows that lie in one chunk of TCU_PIECE_ROWS positions */
    int32_t run, row, n, position;
    int32_t edge; /* training: which state lies before it, counted over all pieces that begin past position 0; else -1 */
} tcu_piece;

typedef struct tcu_lora {
    const tcu_segment *segments;
    const tcu_tile *tiles;
    const tcu_step *steps;
    int32_t n_segments, n_tiles, tile_rows; /* tile_rows: 16 or 64 */
    int32_t group;                          /* index of the group */
    int32_t n;                              /* matrices of the group */
    int32_t most;                           /* the largest padded rank */
    int32_t in, out[TCU_GROUP_MAX];
    int32_t ld_out; /* of y and dy: the matrices of a group lie side by side */
    int32_t ld_low; /* of low and dlow */
} tcu_lora;

/* Numbers of a side without its zeros. */
TCU_BOTH int32_t tcu_side_count(tcu_side s, int32_t n)
{
    return s.run == s.step ? n : n / s.step * s.run;
}

/* The other way round. */
TCU_BOTH int32_t tcu_side_width(tcu_side s, size_t n)
{
    return s.run == s.step ? (int32_t)n : (int32_t)(n / (size_t)s.run) * s.step;
}

/* The place of number i of a side among those; -1 = it is a zero. */
TCU_BOTH int32_t tcu_side_place(tcu_side s, int32_t i)
{
    if (s.run == s.step)
        return i;
    return i % s.step < s.run ? i / s.step * s.run + i % s.step : -1;
}

int tcu_lora_low(const tcu_lora *, const tcu_bf16 *x, tcu_bf16 *low, tcu_stream);
/* y = bf16(base + scale B low), base in fp32, then bf16(y + bias) unless bias is NULL. Not launched without adapters. */
int tcu_lora_high(const tcu_lora *, const tcu_bf16 *low, const float *base, const float *bias,
                  tcu_bf16 *y, tcu_stream);
/* z += scale B low, in fp32. */
int tcu_lora_logits(const tcu_lora *, const tcu_bf16 *low, float *z, tcu_stream);
int tcu_lora_dlow(const tcu_lora *, const tcu_bf16 *dy, tcu_bf16 *dlow, tcu_stream);
/* The same of one matrix with very many outputs, by up to TCU_DLOW_PARTS chains that are added in order; sums: so many times
 * rows of ld_low. */
enum { TCU_DLOW_PARTS = 16 };
int tcu_lora_dlow_wide(const tcu_lora *, const tcu_bf16 *dy, float *sums, int32_t rows, tcu_bf16 *dlow, tcu_stream);
/* The adapter's part of dx: bf16(dlow A), -0 in rows without an adapter. */
int tcu_lora_dx(const tcu_lora *, const tcu_bf16 *dlow, tcu_bf16 *dx, tcu_stream);
int tcu_lora_da(const tcu_lora *, const tcu_bf16 *dlow, const tcu_bf16 *x, tcu_stream);
int tcu_lora_db(const tcu_lora *, const tcu_bf16 *dy, const tcu_bf16 *low, tcu_stream);

/* ---- products with the definition's bits, by our own kernels ---- */

/* c[m][n] = a[m][k] b, with b [n][k] (not transposed) or [k][n] (transposed); c is bf16 or fp32.
 * add: c = bf16(c + bf16(a b)), c bf16. */
int tcu_chain(bool transposed, bool wide, bool add, const tcu_bf16 *a, int64_t lda,
              const tcu_bf16 *b, int64_t ldb, void *c, int64_t ldc, int32_t m, int32_t n, int32_t k,
              tcu_stream);
enum { TCU_SMALL_ROWS = 64 };
/* The same for up to TCU_SMALL_ROWS rows, b [n][k] dense: reads the weight once. k must be a multiple of 8. With an
 * adapter list low = A x is made by blocks of the same launch; n = 0: only that, for any number of rows in tiles. */
int tcu_small(bool wide, const tcu_bf16 *x, const tcu_bf16 *w, void *y, int64_t ldy, int32_t m,
              int32_t n, int32_t k, const tcu_lora *, tcu_bf16 *low, tcu_stream);
/* The same by warpgroups, for 17 to TCU_SMALL_ROWS rows: k a multiple of 64, n of 8, ranks of up to TCU_STRIP_RANK. With adapters y
 * contains their part, and in bf16 the bias. turn: two counts, 0 between launches. */
bool tcu_few_here(void); /* compute capability 9.0a */
int tcu_few(bool wide, const tcu_bf16 *x, const tcu_bf16 *w, void *y, int64_t ldy, int32_t m,
            int32_t n, int32_t k, const float *bias, const tcu_lora *, tcu_bf16 *low,
            uint32_t *turn, tcu_stream);
/* low = A x alone, for tiles of 16 rows. */
int tcu_few_low(const tcu_lora *, const tcu_bf16 *x, tcu_bf16 *low, tcu_stream);
/* Adds to *count the elements in which two outputs differ. */
int tcu_differ(bool wide, const void *a, const void *b, int64_t count, uint64_t *differing,
               tcu_stream);

/* ---- rows ---- */

/* y = bf16(y + bias), rows of n numbers. */
int tcu_add_bias(const float *bias, tcu_bf16 *y, int64_t rows, int32_t n, tcu_stream);
int tcu_embed(const int32_t *ids, const tcu_bf16 *e, float *h, int32_t rows, int32_t n, tcu_stream);
/* h += y (y may be NULL), written to h_out (may be h); a = bf16(norm(h_out) * w) if a. */
int tcu_add_norm(const float *h, const tcu_bf16 *y, float *h_out, const float *w, float eps,
                 tcu_bf16 *a, int32_t rows, int32_t n, tcu_stream);
/* a = bf16(norm(h + y) * w) of rows picked by number. */
int tcu_pick_norm(const int32_t *which, const float *h, const tcu_bf16 *y, const float *w,
                  float eps, tcu_bf16 *a, int32_t rows, int32_t n, tcu_stream);
/* dh (+)= gradient of norm(x) at dy; also rounded to dh16. first: dh is written, not added to. */
int tcu_norm_back(const float *x, const float *w, float eps, const tcu_bf16 *dy, bool first,
                  float *dh, tcu_bf16 *dh16, int32_t rows, int32_t n, tcu_stream);

typedef struct tcu_heads {
    int32_t rows, n_heads, n_kv_heads, d;
    int32_t ld;                   /* of qkv: [q | k | v] */
    const float *q_norm, *k_norm; /* [d] or NULL */
    const float *cosine, *sine;   /* [pos][d/2] */
    const int32_t *positions;     /* [rows]; -1 = a padding row */
    float eps;
} tcu_heads;
/* qkv -> q [rows][n_heads d], k [rows][n_kv_heads d]: norm, rotation. With cache != NULL keys and values go there
 * instead of k: slots[row] = block * 16 + place. */
typedef struct tcu_paged {
    tcu_bf16
        *data; /* of the layer: block b at data + b * stride; keys, then values, [head][16][d] */
    int64_t stride, values;
    const int32_t *slots;
} tcu_paged;
int tcu_heads_forward(const tcu_heads *, const tcu_bf16 *qkv, tcu_bf16 *q, tcu_bf16 *k,
                      const tcu_paged *, tcu_stream);
/* dq, dk (rotated) -> in dqkv, back through rotation and norm. */
int tcu_heads_back(const tcu_heads *, const tcu_bf16 *qkv, const tcu_bf16 *dq, const tcu_bf16 *dk,
                   tcu_bf16 *dqkv, tcu_stream);
/* The same from the fp32 base product of q, k, v, to which the adapters' part and the bias are added on the way; ranks of up to
 * TCU_STRIP_RANK, heads of whole 16 numbers. Rows without a tile are left out. */
int tcu_high_heads(const tcu_heads *, const tcu_lora *, const tcu_bf16 *low, const float *base,
                   const float *bias, tcu_bf16 *q, const tcu_paged *, tcu_stream);
/* m from the fp32 base product of gate and up in the same way. */
int tcu_high_swiglu(const tcu_lora *, const tcu_bf16 *low, const float *base, const float *bias,
                    tcu_bf16 *m, tcu_stream);
/* gu: [rows][2 n], gate then up. */
int tcu_swiglu(const tcu_bf16 *gu, tcu_bf16 *m, int64_t rows, int32_t n, tcu_stream);
int tcu_swiglu_back(const tcu_bf16 *gu, const tcu_bf16 *dm, tcu_bf16 *dgu, int64_t rows, int32_t n,
                    tcu_stream);

/* ---- attention: causal, grouped heads; keys in blocks of 64 from position 0 ---- */

enum { TCU_MAX_HEAD_DIM = 128, TCU_MAX_HEAD_GROUP = 64, TCU_KEY_BLOCK = 64, TCU_CACHE_TOKENS = 16 };

typedef struct tcu_span { /* tokens of one sequence that one block of threads takes */
    int32_t origin;       /* row of position 0: row = origin + position; may be negative */
    int32_t begin, end;   /* positions */
    int32_t table; /* paged: where its block ids begin in tables; packed: length of the sequence */
} tcu_span;

typedef struct tcu_attention {
    int32_t n_heads, n_kv_heads, d, window;
    float scale;
    const tcu_span *spans;
    int32_t n_spans;
    const tcu_bf16 *q;     /* [rows][n_heads d] */
    const tcu_bf16 *k, *v; /* packed: [rows][ld]; paged: of the layer, by blocks */
    int64_t ldk, ldv;      /* packed: of rows; paged: from block to block */
    const int32_t *tables; /* paged: block ids; NULL = packed */
    const float *sinks;    /* [n_heads]: one more score in each softmax, without a value; or NULL */
    tcu_bf16 *o;           /* [rows][n_heads d] */
    float *lse;            /* [rows][n_heads], base 2, or NULL */
    /* backward */
    const tcu_bf16 *d_o;
    const float *delta;     /* [rows][n_heads] */
    tcu_bf16 *dq, *dk, *dv; /* [rows][n_heads d], [rows][n_kv_heads d], [rows][lddv] */
    int64_t lddv;
    bool grouped; /* see tcu_attention_groups */
} tcu_attention;

/* Most tokens of a span: of the wide form (many rows of a sequence), of the narrow one (few). */
int32_t tcu_span_tokens(int32_t n_heads, int32_t n_kv_heads, bool narrow);
int tcu_attention_forward(const tcu_attention *, bool narrow, tcu_stream);
/* delta = sum of d_o * o of each head */
int tcu_attention_delta(const tcu_bf16 *d_o, const tcu_bf16 *o, float *delta, int64_t heads,
                        int32_t d, tcu_stream);
/* spans are those of the wide form */
int tcu_attention_dq(const tcu_attention *, tcu_stream);
/* spans are blocks of 64 keys: begin a multiple of 64, table = length of the sequence */
int tcu_attention_dkv(const tcu_attention *, tcu_stream);

/* Whether warpgroups can do it (cuda_attention_wgmma.cu), with the same bits: on chips that have their matrix instruction, packed
 * sequences alone. With p->grouped, spans have TCU_WARPGROUPS times the tokens of the wide form, and TCU_KEY_WARPGROUPS
 * blocks of keys. The three calls above then run these. */
enum { TCU_WARPGROUPS = 3, TCU_KEY_WARPGROUPS = 2 };
bool tcu_attention_groups(int32_t d);
int tcu_grouped_forward(const tcu_attention *, tcu_stream);
int tcu_grouped_dq(const tcu_attention *, tcu_stream);
int tcu_grouped_dkv(const tcu_attention *, tcu_stream);

/* ---- all layers and the logits of a decoding step of very few rows, which have no adapter or all the same, in one launch ---- */

enum { TCU_DECODE_ROWS = 4, TCU_DECODE_RANK = 64 }; /* most rows; the largest padded rank */
typedef struct tcu_decode_layer {
    const void
        *map[4]; /* q k v, o, gate and up, down: TCU_MAP_BYTES on the card, by tcu_decode_map */
    const float *bias[4]; /* or NULL */
    const float *norm_in, *norm_post, *q_norm, *k_norm;
    const tcu_bf16 *cache;
    int64_t window;
    int32_t group[4]; /* indices of the adapter's groups */
} tcu_decode_layer;

typedef struct tcu_decode_adapter { /* of all rows; on the card */
    const tcu_bf16 *operands;
    const tcu_group *groups;
    const void *maps; /* of A of each group: TCU_MAP_BYTES, by tcu_decode_map */
    int32_t has[5];   /* is there one for q k v, o, gate and up, down, the head? */
    int32_t padded;   /* rank */
    float scale;
} tcu_decode_adapter;

typedef struct tcu_decode {
    /* and one more: norm_in is the last norm, map[0] and group[0] are the head's */
    const tcu_decode_layer *layers;
    int32_t n_layers, rows, hidden, inner, n_heads, n_kv_heads, d, vocab;
    float eps, scale;
    const float *cosine, *sine;
    const void *key_map, *value_map; /* TCU_MAP_BYTES on the card, by tcu_decode_cache_map */
    int64_t stride, values;          /* of the cache: from block to block, from keys to values */
    const tcu_span *spans;           /* of the rows, one each */
    const int32_t *slots, *tables;
    const int32_t *ids; /* of the rows */
    const tcu_bf16 *embed;
    float *z;    /* logits, rows ldz apart */
    float *tops; /* the largest logit of each row that a block computed: [rows][processors] */
    int64_t ldz;
    uint32_t *groups;    /* scratch: the next part of the head */
    uint64_t *words[5];  /* what blocks exchange: q k v, o's, m, down's, heads; [rows][width / 2] */
    uint64_t *scores;    /* [rows][n_heads][ld_scores] */
    uint64_t *all_words; /* all of them, n_words */
    int64_t n_words, ld_scores;
    const tcu_decode_adapter *adapter; /* or NULL */
    uint64_t
        *low[5]; /* A x of q k v, o, gate and up, down, the head: [rows][matrices * padded / 2] */
    const uint32_t *tag; /* first of n_layers tags, which no word has; not 0 */
    /* filled in by tcu_decode_plan */
    int32_t group, pieces, on_the_way, tiles, tile_shift, head_shift, turns, left_turns;
} tcu_decode;
/* True if the card runs code that was compiled for 9.0a, and not PTX of an older chip: other code has no such instructions. */
bool tcu_decode_here(void);
/* False: such a step runs layer by layer. shared: bytes that a block may have. */
enum { TCU_MAP_BYTES = 128 };
int tcu_decode_map(void *map, const tcu_bf16 *w, int64_t rows, int64_t k);
/* Rows of k numbers, a multiple of 64, in tiles of 64 columns and box_rows rows. */
int tcu_rows_map(void *map, const tcu_bf16 *x, int64_t rows, int64_t k, int32_t box_rows);
int tcu_decode_cache_map(void *map, bool keys, const tcu_bf16 *data, int64_t d, int64_t stride,
                         int64_t blocks);
bool tcu_decode_plan(tcu_decode *, int32_t processors, size_t shared);
int tcu_decode_layers(const tcu_decode *, int32_t processors, tcu_stream);

/* ---- the head ---- */

/* For rows of logits z [rows][ldz], vocabulary v: max and log of the sum of exp(z - max). */
enum { TCU_FEW_SUMS = 16 };
/* parts: scratch of TCU_FEW_SUMS * 2048 floats, with which several blocks share a row where there are few; or NULL */
int tcu_log_sum(const float *z, int64_t ldz, int32_t rows, int32_t v, float *max, float *log_sum,
                float *parts, tcu_stream);
/* lp[i] = z[row[i]][token[i]] - max - log_sum, 0 where the token is negative; row NULL: i / per */
int tcu_score(const float *z, int64_t ldz, const int32_t *row, int32_t per, const int32_t *token,
              const float *max, const float *log_sum, float *lp, int32_t n, tcu_stream);
/* dz (bf16, in the place of z, rows ldz * 2 apart) = g at the targets - (sum of g) softmax(z); zero rows for g = 0.
 * targets, g, fix (scratch): [rows][k]. Columns v .. ldz become zero. */
int tcu_head_back(float *z, int64_t ldz, int32_t rows, int32_t v, const float *max,
                  const float *log_sum, const int32_t *targets, const float *g, float *fix,
                  int32_t k, tcu_stream);

/* ---- blocks of adapters ---- */

int tcu_operands(const float *master, const tcu_group *groups, int32_t n_groups, int32_t rank,
                 int32_t padded, tcu_bf16 *operands, tcu_stream);
typedef struct tcu_adam {
    float step, decay, clip, one1, one2, beta2, root, eps;
} tcu_adam;
enum { TCU_SUM_BLOCK = 8192 };
/* parts[i]: squares of the change of numbers i * TCU_SUM_BLOCK ...; not finite if a new number or moment is not. Writes
 * nothing unless `apply`. */
int tcu_adam_step(const tcu_adam *, bool apply, const float *g, float *theta, float *m, float *v,
                  int64_t n, double *parts, tcu_stream);
int tcu_sum_squares(const float *x, int64_t n, double *parts, tcu_stream);
/* sum of parts in order */
int tcu_sum_parts(const double *parts, int64_t n, double *out, tcu_stream);

/* ---- sampling ---- */

typedef struct tcu_bias {
    int32_t token;
    float by;
} tcu_bias;

typedef struct tcu_draw {
    int32_t want; /* row of logits */
    int32_t logprobs;
    uint32_t sample, position;
    uint64_t seed;
    double temperature, top_p;
    int64_t top_k;
    const uint32_t *allowed; /* on the card: bit t % 32 of word t / 32; NULL = every token */
    const uint32_t *biased;  /* the same, of the tokens that have a bias; NULL = none has */
    const tcu_bias *biases;  /* those, sorted by token */
    int32_t n_biases;
} tcu_draw;
/* Each half is written at once, so a host that waits for the mark in both has the whole. */
typedef struct tcu_drawn {
    int32_t token; /* -1: the row has no distribution */
    uint32_t mark;
    float logprob;
    uint32_t mark_too;
} tcu_drawn;
enum { TCU_DRAW_SLOTS = 2048, TCU_DRAW_GROUP = 256 };
/* slots: scratch, [TCU_DRAW_GROUP][TCU_DRAW_SLOTS] */
int tcu_sample(const float *z, int64_t ldz, int32_t v, const float *max, const float *log_sum,
               const tcu_draw *, int32_t n, uint64_t *slots, tcu_drawn *out, tcu_stream);
enum {
    TCU_DRAW_VOCAB = 400000
}; /* of tcu_sum_and_draw at most: its columns lie in shared memory */
/* tcu_log_sum and tcu_sample of very few rows in one launch; draw i is of row i. tops: the largest logits of n_tops parts of
 * each row, [rows][n_tops]. sum_parts: [rows][2048], slots: [rows][TCU_DRAW_SLOTS], scratch; turns: [rows], zero before the
 * first call; mark: what marks the results. */
int tcu_sum_and_draw(const float *z, int64_t ldz, int32_t v, const float *tops, int32_t n_tops,
                     const tcu_draw *, int32_t rows, float *sum_parts, uint64_t *slots,
                     uint32_t *turns, const uint32_t *mark, tcu_drawn *out, tcu_stream);
/* The k likeliest of row which[i], best first, the lower id on ties: tokens and lp [n][ld], ks[i] of them. */
int tcu_top_k(const float *z, int64_t ldz, int32_t v, const float *max, const float *log_sum,
              const int32_t *which, const int32_t *ks, int32_t n, int32_t *tokens, float *lp,
              int32_t ld, tcu_stream);

/* ---- conversions, test data ---- */

int tcu_round(const float *x, tcu_bf16 *y, int64_t n, tcu_stream);
/* y = bf16(the sum over parts, in order), and, with add, bf16(that + y); parts lie n apart. */
int tcu_join_parts(const float *x, int32_t parts, bool add, tcu_bf16 *y, int64_t n, tcu_stream);
int tcu_random(tcu_bf16 *p, int64_t n, uint32_t seed, float scale, tcu_stream);

#ifdef __cplusplus
}
#endif
#endif
