/* cuda_step.c - one step of sampling: rows of many sequences over the paged cache, logits, draws.
 *
 * Everything a step needs to know goes to the card as one table. A step of pure decoding (one row of each sequence, one
 * draw of each row) is replayed as a graph: the same launches at the same addresses, for a number of rows rounded up to
 * 16 or more; rows that are not there have position -1, spans and tiles that are not there are empty. Up to TCU_DECODE_ROWS
 * rows without adapters, or all with the same, need two launches, one for all layers and the logits (cuda_decode.cu) and one
 * for the draws, if the model and the chip allow it. Results are written to memory of the host.
 *
 * May touch: the sampler's buffers and cache. Must not: decide what runs.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "cuda/cuda_part.h"
#include "cuda/cuda_slabs.h"

enum { ALIGN = 256, FEW_ROWS = 256, LOGIT_ROWS = 256, GRAPHS = 24 };

typedef struct graph { /* of one shape of decoding step */
    int32_t padded, n_tiles, most, at_once;
    bool head, fused;
    const void *feed, *unpacked;
    size_t seen;
    cudaGraphExec_t exec;
} graph;

struct tcu_sampler {
    tke_device_cache cache; /* first: the device interface casts to it */
    tcu_model *model;
    tke_device_sampler_options o;
    tcu_slabs slabs; /* of the cache */
    tcu_bf16 *data;  /* their array */
    size_t stride;   /* elements of a block */
    unsigned char *block;
    size_t bytes, max_padded;
    unsigned char *parts_block; /* of layers and their parts, for ranks of up to `most` */
    size_t parts_bytes;
    tcu_size parts_size;
    unsigned char *states; /* [n_states][state_bytes] */
    tcu_feed feed;
    tcu_results out;
    graph graphs[GRAPHS];
    size_t n_graphs;
    /* buffers */
    float *h, *z, *max, *log_sum, *sum_parts;
    uint64_t *draw_slots;
    uint32_t *draw_turns;
    float *h_mid, *wide;
    tcu_bf16 *a, *y;
    unsigned char *keep, *work; /* of the layer, of the part at hand */
    tcu_residual residual;
    tcu_bf16 *hf, *low_head;
    tcu_decode decode; /* layers NULL: no step runs in one launch */
    uint32_t next_tag; /* of words that its blocks exchange; 0 = of none */
    /* the step at hand: on the card */
    tcu_rows rows;
    int32_t at_once; /* rows whose layers and logits are one launch; 0 = layer by layer */
    const uint32_t *tag;
    const tcu_decode_adapter *adapter; /* of these */
    uint32_t mark;                     /* of the results */
    const int32_t *slots, *tables, *wants;
    const tcu_span *narrow, *wide_spans;
    int32_t n_narrow, n_wide;
    tcu_lora want_tables;
    int32_t *chunk_tiles; /* on the host: first tile of each chunk of wanted rows, and the end */
    bool head_adapters;
    const int32_t *score_want, *score_token, *top_want, *top_k;
    const tcu_draw *draws;
    int32_t n_wants, n_draws, most_top;
    float *score_out, *top_out;
    int32_t *top_tokens;
    tcu_drawn *drawn;
};

/* ---- memory ---- */

static void drop_graphs(tcu_sampler *s)
{
    if (s->n_graphs)
        cudaStreamSynchronize(s->model->device->stream); /* the last one may still be running */
    for (size_t i = 0; i < s->n_graphs; i++)
        if (s->graphs[i].exec)
            cudaGraphExecDestroy(s->graphs[i].exec);
    s->n_graphs = 0;
}

static void place_words(tcu_walk *w, tcu_sampler *s)
{
    const tcu_model *m = s->model;
    const tcu_layer *l = &m->layers[0];
    const int32_t widths[5] = { l->attn.qkv.rows, m->hidden, l->dense.inner, m->hidden,
                                l->attn.q_width };
    size_t begin = w->used;
    TCU_TAKE(w, s->decode.scores, TCU_DECODE_ROWS * m->config.n_heads * (size_t)s->decode.ld_scores);
    for (size_t i = 0; i < 5; i++)
        TCU_TAKE(w, s->decode.words[i], TCU_DECODE_ROWS * (size_t)widths[i] / 2);
    for (size_t i = 0; i < 5; i++)
        TCU_TAKE(w, s->decode.low[i], TCU_DECODE_ROWS * TCU_GROUP_MAX * TCU_DECODE_RANK / 2);
    s->decode.all_words = s->decode.scores;
    s->decode.n_words = (int64_t)((w->used - begin) / sizeof *s->decode.all_words);
}

static void place(tcu_walk *w, tcu_sampler *s)
{
    const tcu_model *m = s->model;
    size_t n = s->max_padded, h = (size_t)m->hidden;
    TCU_TAKE(w, s->h, n * h);
    TCU_TAKE(w, s->h_mid, n * h);
    TCU_TAKE(w, s->a, n * h);
    TCU_TAKE(w, s->y, n * h);
    TCU_TAKE(w, s->hf, LOGIT_ROWS * h);
    TCU_TAKE(w, s->z, LOGIT_ROWS * (size_t)tcu_pad_vocab(m));
    TCU_TAKE(w, s->max, LOGIT_ROWS);
    TCU_TAKE(w, s->log_sum, LOGIT_ROWS);
    TCU_TAKE(w, s->sum_parts, TCU_FEW_SUMS * 2048);
    TCU_TAKE(w, s->draw_slots, TCU_DRAW_GROUP * TCU_DRAW_SLOTS);
    TCU_TAKE(w, s->draw_turns, TCU_DECODE_ROWS);
    TCU_TAKE(w, s->decode.groups, 1);
    TCU_TAKE(w, s->decode.tops, TCU_DECODE_ROWS * m->device->props.multiProcessorCount);
    if (tcu_decode_model(m))
        place_words(w, s);
}

static void place_parts(tcu_walk *w, const tcu_size *size, tcu_sampler *s)
{
    const tcu_model *m = s->model;
    TCU_TAKE(w, s->keep, tcu_layers_keep(m, size));
    TCU_TAKE(w, s->work, tcu_layers_work(m, size));
    if (size->most)
        TCU_TAKE(w, s->wide, size->n * tcu_widest_group(m));
    TCU_TAKE(w, s->low_head, LOGIT_ROWS * size->most);
}

/* They grow with the largest rank seen. Graphs contain their addresses, so they are dropped then. */
static bool reserve_parts(tcu_sampler *s, int32_t most, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    tcu_size size = { .n = s->max_padded, .most = (size_t)most };
    tcu_walk measure = { 0 }, w;
    if (s->parts_block && size.most <= s->parts_size.most)
        return true;
    drop_graphs(s);
    tcu_give(d, s->parts_block, s->parts_bytes, TCU_FOR_WORK);
    place_parts(&measure, &size, s);
    s->parts_size = size;
    s->parts_bytes = measure.used;
    s->parts_block = tcu_take(d, s->parts_bytes, TCU_FOR_WORK, err);
    if (!s->parts_block ||
        !tcu_ok(d, cudaMemsetAsync(s->parts_block, 0, s->parts_bytes, d->stream), "clearing", err))
        return false;
    w = (tcu_walk){ .at = s->parts_block };
    place_parts(&w, &size, s);
    return true;
}

static bool make_buffers(tcu_sampler *s, tinkc_error *err)
{
    tcu_walk measure = { 0 };
    tcu_device *d = s->model->device;
    s->decode.ld_scores =
        (int64_t)(s->model->n_positions + TCU_KEY_BLOCK - 1) / TCU_KEY_BLOCK * TCU_KEY_BLOCK;
    s->max_padded = (size_t)tcu_pad_rows((int64_t)s->o.max_rows);
    place(&measure, s);
    s->bytes = measure.used;
    s->block = tcu_take(d, s->bytes, TCU_FOR_WORK, err);
    tcu_walk w = { .at = s->block };
    if (s->block)
        place(&w, s);
    return s->block &&
           tcu_ok(d, cudaMemsetAsync(s->block, 0, s->bytes, d->stream), "clearing", err) &&
           reserve_parts(s, 0, err);
}

/* What of the cache's memory states may have, and how many a step of all sequences needs beside snapshots. */
enum { STATE_SHARE = 4, STATES_EACH = 4 };

static bool make_states(tcu_sampler *s, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    size_t bytes = s->model->state_bytes, least = s->o.max_seqs + 1;
    if (!bytes)
        return true;
    size_t n = s->o.cache_bytes / STATE_SHARE / bytes;
    n = n > STATES_EACH * least ? STATES_EACH * least : n < 2 ? 2 : n;
    s->cache.state_bytes = bytes;
    s->cache.n_states = n;
    s->states = tcu_take(d, n * bytes, TCU_FOR_CACHE, err);
    return s->states &&
           tcu_ok(d, cudaMemsetAsync(s->states, 0, n * bytes, d->stream), "clearing", err);
}

static bool make_cache(tcu_sampler *s, tinkc_error *err)
{
    const tcu_model *m = s->model;
    s->stride = m->cache_numbers ? m->cache_numbers : ALIGN; /* a model without attention */
    s->cache.block_bytes = s->stride * sizeof *s->data;
    size_t left = s->o.cache_bytes, states = s->cache.n_states * s->cache.state_bytes;
    s->cache.n_blocks = (left > states ? left - states : 0) / s->cache.block_bytes;
    if (s->cache.n_blocks < 2)
        s->cache.n_blocks = 2;
    if (s->cache.n_blocks > INT32_MAX / TKE_BLOCK_TOKENS)
        s->cache.n_blocks = INT32_MAX / TKE_BLOCK_TOKENS;
    if (!tcu_slabs_make(&s->slabs, m->device, s->cache.block_bytes, &s->cache.n_blocks,
                        &s->cache.slab_blocks, err))
        return false;
    s->data = (tcu_bf16 *)s->slabs.at;
    return true;
}

bool tcu_sampler_commit(tcu_sampler *s, size_t slab, tinkc_error *err)
{
    return tcu_slabs_commit(&s->slabs, slab, err);
}

void tcu_sampler_release(tcu_sampler *s, size_t slab)
{
    tcu_slabs_release(&s->slabs, slab);
}

/* The layers' table and, behind it, the maps of their matrices and of the cache. */
static size_t decode_bytes(const tcu_sampler *s)
{
    size_t n = s->model->config.n_layers;
    return (n + 1) * sizeof(tcu_decode_layer) + (n * 4 + 3) * TCU_MAP_BYTES + ALIGN;
}

static bool map_layer(const tcu_sampler *s, const tcu_linear *const list[TCU_DECODE_GROUPS],
                      unsigned char *maps, tinkc_error *err)
{
    for (size_t i = 0; i < TCU_DECODE_GROUPS; i++)
        if (!tcu_ok(s->model->device,
                    tcu_decode_map(maps + i * TCU_MAP_BYTES, list[i]->w, list[i]->rows,
                                   list[i]->in),
                    "a map of a matrix", err))
            return false;
    return true;
}

static bool send_decode(tcu_sampler *s, tinkc_error *err)
{
    tcu_model *m = s->model;
    tcu_device *d = m->device;
    size_t n = m->config.n_layers, bytes = decode_bytes(s),
           at = ((n + 1) * sizeof(tcu_decode_layer) + ALIGN - 1) / ALIGN * ALIGN;
    unsigned char *host = tkc_zalloc(NULL, bytes, err),
                  *card = host ? tcu_take(d, bytes, TCU_FOR_WORK, err) : NULL;
    tcu_decode_layer *table = (void *)host;
    bool ok = card != NULL;
    s->decode.layers = (void *)card;
    for (size_t i = 0; ok && i < n; i++) {
        const tcu_layer *l = &m->layers[i];
        const tcu_linear *list[TCU_DECODE_GROUPS];
        size_t maps = at + i * 4 * TCU_MAP_BYTES;
        tcu_decode_groups(l, list);
        table[i] = (tcu_decode_layer){ .norm_in = l->mixer_norm,
                                       .norm_post = l->feed_norm,
                                       .q_norm = l->attn.q_norm,
                                       .k_norm = l->attn.k_norm,
                                       .cache = s->data + l->cache_at,
                                       .window = (int64_t)l->attn.of->window };
        for (size_t j = 0; j < TCU_DECODE_GROUPS; j++) {
            table[i].map[j] = card + maps + j * TCU_MAP_BYTES;
            table[i].group[j] = list[j]->group;
            table[i].bias[j] = list[j]->bias;
        }
        ok = map_layer(s, list, host + maps, err);
    }
    if (ok) {
        table[n].norm_in = m->norm;
        table[n].group[0] = m->head.group;
        table[n].map[0] = card + at + n * 4 * TCU_MAP_BYTES;
        ok = tcu_ok(d,
                    tcu_decode_map(host + at + n * 4 * TCU_MAP_BYTES, m->head.w, m->vocab, m->hidden),
                    "a map of the head", err);
    }
    for (size_t i = 0; ok && i < 2; i++) {
        size_t map = at + (n * 4 + 1 + i) * TCU_MAP_BYTES;
        *(i ? &s->decode.value_map : &s->decode.key_map) = card + map;
        ok = tcu_ok(d,
                    tcu_decode_cache_map(host + map, i == 0, s->data, s->decode.d, s->decode.stride,
                                         (int64_t)s->cache.n_blocks),
                    "a map of the cache", err);
    }
    ok = ok && tcu_upload(d, card, host, bytes, err) && tcu_wait(d, err);
    tkc_release(NULL, host, bytes);
    return ok;
}

/* What a step in one launch needs to know of the model; its addresses never change. */
static bool make_decode(tcu_sampler *s, tinkc_error *err)
{
    tcu_model *m = s->model;
    tcu_device *d = m->device;
    tcu_decode *p = &s->decode;
    if (!tcu_decode_model(m)) /* layer by layer */
        return true;
    const tcu_layer *l = &m->layers[0];
    p->n_layers = (int32_t)m->config.n_layers;
    p->rows = 1;
    p->hidden = m->hidden;
    p->inner = l->dense.inner;
    p->n_heads = (int32_t)m->config.n_heads;
    p->n_kv_heads = (int32_t)m->config.n_kv_heads;
    p->d = l->attn.d;
    p->eps = (float)m->config.rms_eps;
    p->scale = (float)(1.0 / sqrt((double)m->config.head_dim));
    p->cosine = m->cosine;
    p->sine = m->sine;
    p->stride = (int64_t)s->stride;
    p->values = (int64_t)l->attn.k_width * TKE_BLOCK_TOKENS;
    p->embed = m->embed.w;
    p->vocab = m->vocab;
    p->z = s->z;
    p->ldz = tcu_pad_vocab(m);
    if (!d->props.cooperativeLaunch || !tcu_decode_here() ||
        !tcu_decode_plan(p, d->props.multiProcessorCount, d->props.sharedMemPerBlockOptin))
        return true;
    return send_decode(s, err);
}

static size_t chunks_of(const tcu_sampler *s)
{
    return s->o.max_rows / LOGIT_ROWS + 2;
}

tcu_sampler *tcu_sampler_new(tcu_model *m, const tke_device_sampler_options *o, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    tcu_sampler *s = tkc_zalloc(NULL, sizeof *s, err);
    if (!s)
        return NULL;
    s->model = m;
    s->o = *o;
    s->chunk_tiles = tkc_zalloc(NULL, chunks_of(s) * sizeof *s->chunk_tiles, err);
    if (s->chunk_tiles && make_states(s, err) && make_cache(s, err) &&
        make_buffers(s, err) && make_decode(s, err))
        return s;
    tcu_sampler_free(s);
    return NULL;
}

void tcu_sampler_free(tcu_sampler *s)
{
    if (!s)
        return;
    tcu_device *d = s->model->device;
    drop_graphs(s);
    if (s->data)
        tcu_slabs_free(&s->slabs);
    tcu_give(d, s->block, s->bytes, TCU_FOR_WORK);
    tcu_give(d, s->parts_block, s->parts_bytes, TCU_FOR_WORK);
    tcu_give(d, s->states, s->cache.n_states * s->cache.state_bytes, TCU_FOR_CACHE);
    tcu_give(d, (void *)(uintptr_t)s->decode.layers, decode_bytes(s), TCU_FOR_WORK);
    tcu_feed_free(d, &s->feed);
    tcu_results_free(&s->out);
    tkc_release(NULL, s->chunk_tiles, chunks_of(s) * sizeof *s->chunk_tiles);
    tkc_release(NULL, s, sizeof *s);
}

const tke_device_cache *tcu_sampler_cache(const tcu_sampler *s)
{
    return &s->cache;
}

bool tcu_sampler_copy(tcu_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    return tcu_ok(d,
                  cudaMemcpyAsync(s->data + (size_t)to * s->stride,
                                  s->data + (size_t)from * s->stride, s->cache.block_bytes,
                                  cudaMemcpyDeviceToDevice, d->stream),
                  "copying a block of the cache", err);
}

bool tcu_sampler_copy_state(tcu_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    size_t bytes = s->cache.state_bytes;
    return tcu_ok(d,
                  cudaMemcpyAsync(s->states + (size_t)to * bytes, s->states + (size_t)from * bytes,
                                  bytes, cudaMemcpyDeviceToDevice, d->stream),
                  "copying a state", err);
}

/* ---- tables ---- */

/* Pure decoding: one row of each sequence, all wanted in their order, one draw of each. */
static bool is_decoding(const tke_step *j)
{
    if (j->n > FEW_ROWS || j->n_seqs != j->n || j->n_wants != j->n || j->n_draws != j->n ||
        j->n_scores || j->n_tops)
        return false;
    for (size_t i = 0; i < j->n; i++)
        if (j->draws[i].want != i || j->wants[i] != i)
            return false;
    return true;
}

static size_t table_entries(const tke_step *j)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n_seqs; i++)
        n += (j->seqs[i].first_pos + j->seqs[i].n_rows + TKE_BLOCK_TOKENS - 1) / TKE_BLOCK_TOKENS;
    return n;
}

static size_t mask_bytes(const tcu_sampler *s)
{
    return ((size_t)s->model->vocab + 31) / 32 * sizeof(uint32_t);
}

static size_t all_mask_bytes(const tcu_sampler *s, const tke_step *j)
{
    size_t masks = 0, biases = 0;
    for (size_t i = 0; i < j->n_draws; i++) {
        masks += j->draws[i].allowed != NULL;
        masks += j->draws[i].n_biases != 0;
        biases += j->draws[i].n_biases;
    }
    return masks * (mask_bytes(s) + 2 * ALIGN) + biases * sizeof(tcu_bias);
}

static size_t feed_bytes(const tcu_sampler *s, const tke_step *j)
{
    size_t rows = s->max_padded, lists = j->n_scores * 2 + j->n_tops * 2 + j->n_wants;
    return rows * (6 * sizeof(int32_t) + 2 * sizeof(tcu_run) + 2 * sizeof(tcu_piece) + 2 * sizeof(tcu_segment) + 4 * sizeof(tcu_tile) +
                   2 * sizeof(tcu_span)) +
           lists * sizeof(int32_t) + (j->n_draws + FEW_ROWS) * sizeof(tcu_draw) +
           table_entries(j) * sizeof(int32_t) + all_mask_bytes(s, j) + ((size_t)1 << 20) +
           28 * ALIGN;
}

static void *put(tcu_sampler *s, size_t bytes, void *card)
{
    void *host = tcu_feed_put(&s->feed, bytes, card);
    assert(host); /* feed_bytes counted it */
    return host;
}

/* The segment of each row, for experts. */
static void put_segment_of(tcu_sampler *s, const tke_step *j)
{
    size_t padded = (size_t)s->rows.padded;
    int32_t *of = put(s, padded * sizeof *of, &s->rows.segment_of);
    memset(of, 0, padded * sizeof *of);
    for (size_t i = 0; i < j->n_segments; i++)
        for (size_t r = j->segments[i].begin; r < j->segments[i].end; r++)
            of[r] = (int32_t)i;
}

/* Where layers have a state: the sequences, and their rows chunk by chunk. A graph has an entry for each row. */
static void put_runs(tcu_sampler *s, const tke_step *j, bool fixed)
{
    tcu_rows *r = &s->rows;
    size_t padded = (size_t)r->padded, n = fixed ? padded : j->n_seqs;
    tcu_run *runs = put(s, n * sizeof *runs, &r->runs);
    int32_t *of = put(s, padded * sizeof *of, &r->run_of);
    memset(of, 0, padded * sizeof *of);
    memset(runs, 0, n * sizeof *runs);
    r->longest = 1;
    for (size_t i = 0; i < j->n_seqs; i++) {
        const tke_step_seq *q = &j->seqs[i];
        runs[i] = (tcu_run){ .row = (int32_t)q->first_row,
                             .n = (int32_t)q->n_rows,
                             .position = (int32_t)q->first_pos,
                             .slot = q->state };
        r->longest = runs[i].n > r->longest ? runs[i].n : r->longest;
        for (size_t k = 0; k < q->n_rows; k++)
            of[q->first_row + k] = (int32_t)i;
    }
    size_t count = tcu_fill_pieces(runs, n, NULL), room = fixed ? padded : count;
    tcu_piece *pieces = put(s, room * sizeof *pieces, &r->pieces);
    memset(pieces, 0, room * sizeof *pieces);
    tcu_fill_pieces(runs, n, pieces);
    r->n_runs = (int32_t)n;
    r->n_pieces = (int32_t)room;
}

static void put_rows(tcu_sampler *s, const tke_step *j)
{
    size_t padded = (size_t)s->rows.padded;
    int32_t *ids = put(s, padded * sizeof *ids, &s->rows.ids);
    int32_t *positions = put(s, padded * sizeof *positions, &s->rows.positions);
    int32_t *slots = put(s, padded * sizeof *slots, &s->slots);
    for (size_t i = 0; i < padded; i++) {
        ids[i] = i < j->n ? j->ids[i] : 0;
        positions[i] = i < j->n ? j->positions[i] : -1;
        slots[i] = 0;
    }
    for (size_t i = 0; i < j->n_seqs; i++)
        for (size_t r = 0; r < j->seqs[i].n_rows; r++) {
            size_t pos = j->seqs[i].first_pos + r;
            slots[j->seqs[i].first_row + r] =
                j->seqs[i].blocks[pos / TKE_BLOCK_TOKENS] * TKE_BLOCK_TOKENS +
                (int32_t)(pos % TKE_BLOCK_TOKENS);
        }
}

/* Rounds up to a exp_of of two. */
static int32_t round_up(size_t n)
{
    int32_t p = 1;
    while ((size_t)p < n)
        p *= 2;
    return p;
}

/* Segments and tiles of n rows; with `room` (a graph's rows) places do not depend on how many there are. */
static tcu_lora put_tables(tcu_sampler *s, const tke_segment *segments, size_t n_segments,
                           int32_t rows, int32_t tile_rows, size_t room)
{
    tcu_lora l = { .n_segments = (int32_t)n_segments, .tile_rows = tile_rows };
    size_t n_tiles = tcu_fill_tiles(segments, n_segments, 0, rows, tile_rows, NULL);
    size_t cap = room ? (size_t)round_up(room) : n_tiles;
    tcu_segment *table =
        put(s, (room > n_segments ? room : n_segments) * sizeof *table, &l.segments);
    tcu_tile *tiles = put(s, cap * sizeof *tiles, &l.tiles);
    tcu_fill_segments(segments, n_segments, NULL, 0, 0, rows, table);
    tcu_fill_tiles(segments, n_segments, 0, rows, tile_rows, tiles);
    l.n_tiles = room ? round_up(n_tiles) : (int32_t)n_tiles;
    for (size_t i = n_tiles; i < (size_t)l.n_tiles; i++)
        tiles[i] = (tcu_tile){ -1, 0, 0 };
    return l;
}

/* Cuts each sequence's rows into spans, one for each block of threads: narrow if it has few rows, else wide. */
static void put_spans(tcu_sampler *s, const tke_step *j, bool fixed)
{
    const tke_config *c = &s->model->config;
    int32_t few = tcu_span_tokens((int32_t)c->n_heads, (int32_t)c->n_kv_heads, true);
    int32_t many = tcu_span_tokens((int32_t)c->n_heads, (int32_t)c->n_kv_heads, false);
    size_t room = fixed ? (size_t)s->rows.padded : j->n, table = 0;
    tcu_span *narrow = put(s, room * sizeof *narrow, &s->narrow),
             *wide = put(s, room * sizeof *wide, &s->wide_spans);
    s->n_narrow = s->n_wide = 0;
    for (size_t i = 0; i < j->n_seqs; i++) {
        const tke_step_seq *q = &j->seqs[i];
        int32_t begin = (int32_t)q->first_pos, end = begin + (int32_t)q->n_rows;
        bool is_narrow = (int32_t)q->n_rows <= few;
        for (int32_t at = begin; at < end; at += is_narrow ? few : many) {
            int32_t last = at + (is_narrow ? few : many);
            tcu_span span = { (int32_t)q->first_row - begin, at, last < end ? last : end,
                              (int32_t)table };
            if (is_narrow)
                narrow[s->n_narrow++] = span;
            else
                wide[s->n_wide++] = span;
        }
        table += ((size_t)end + TKE_BLOCK_TOKENS - 1) / TKE_BLOCK_TOKENS;
    }
    for (; fixed && s->n_narrow < s->rows.padded; s->n_narrow++)
        narrow[s->n_narrow] = (tcu_span){ 0, 0, 0, 0 };
}

static void put_block_ids(tcu_sampler *s, const tke_step *j)
{
    int32_t *ids = put(s, table_entries(j) * sizeof *ids, &s->tables);
    for (size_t i = 0; i < j->n_seqs; i++) {
        size_t n =
            (j->seqs[i].first_pos + j->seqs[i].n_rows + TKE_BLOCK_TOKENS - 1) / TKE_BLOCK_TOKENS;
        memcpy(ids, j->seqs[i].blocks, n * sizeof *ids);
        ids += n;
    }
}

/* Returns the table on the host. */
static tcu_draw *put_draws(tcu_sampler *s, const tke_step *j, size_t room)
{
    size_t n = j->n_draws > room ? j->n_draws : room;
    tcu_draw *draws = put(s, n * sizeof *draws, &s->draws);
    for (size_t i = 0; i < n; i++) {
        const tke_draw *d = &j->draws[i];
        draws[i] = (tcu_draw){ .want = -1 };
        if (i < j->n_draws)
            draws[i] = (tcu_draw){ .want = (int32_t)(d->want % LOGIT_ROWS),
                                   .logprobs = d->rule->logprobs,
                                   .sample = d->sample,
                                   .position = d->position,
                                   .seed = d->seed,
                                   .temperature = d->rule->temperature,
                                   .top_p = d->rule->top_p,
                                   .top_k = d->rule->top_k };
    }
    s->n_draws = (int32_t)n;
    return draws;
}

static void put_biases(tcu_sampler *s, const tke_draw *from, tcu_draw *to)
{
    uint32_t *bits = put(s, mask_bytes(s), &to->biased);
    tcu_bias *biases = put(s, from->n_biases * sizeof *biases, &to->biases);
    memset(bits, 0, mask_bytes(s));
    to->n_biases = (int32_t)from->n_biases;
    for (size_t i = 0; i < from->n_biases; i++) {
        int32_t token = from->biases[i].token;
        bits[token / 32] |= UINT32_C(1) << token % 32;
        biases[i] = (tcu_bias){ token, from->biases[i].by };
    }
}

/* Constraints and biases of the draws that have them. The draws point to them, so a graph does not care where they are. */
static void put_masks(tcu_sampler *s, const tke_step *j, tcu_draw *draws)
{
    for (size_t i = 0; i < j->n_draws; i++) {
        if (j->draws[i].allowed)
            memcpy(put(s, mask_bytes(s), &draws[i].allowed), j->draws[i].allowed, mask_bytes(s));
        if (j->draws[i].n_biases)
            put_biases(s, &j->draws[i], &draws[i]);
    }
}

static void put_lists(tcu_sampler *s, const tke_step *j)
{
    int32_t *want = put(s, j->n_scores * sizeof *want, &s->score_want);
    int32_t *token = put(s, j->n_scores * sizeof *token, &s->score_token);
    for (size_t i = 0; i < j->n_scores; i++) {
        want[i] = (int32_t)(j->scores[i].want % LOGIT_ROWS);
        token[i] = j->scores[i].token;
    }
    int32_t *top = put(s, j->n_tops * sizeof *top, &s->top_want),
            *k = put(s, j->n_tops * sizeof *k, &s->top_k);
    s->most_top = 0;
    for (size_t i = 0; i < j->n_tops; i++) {
        top[i] = (int32_t)(j->tops[i].want % LOGIT_ROWS);
        k[i] = (int32_t)j->tops[i].k;
        s->most_top = k[i] > s->most_top ? k[i] : s->most_top;
    }
}

/* The wanted rows, and the segments among them. */
static bool put_wants(tcu_sampler *s, const tke_step *j, bool fixed, tinkc_error *err)
{
    size_t padded = fixed ? (size_t)s->rows.padded : j->n_wants, n = 0, at = 0;
    int32_t *rows = put(s, padded * sizeof *rows, &s->wants);
    for (size_t i = 0; i < padded; i++)
        rows[i] = i < j->n_wants ? (int32_t)j->wants[i] : 0;
    s->n_wants = (int32_t)padded;
    s->want_tables = (tcu_lora){ 0 };
    if (!s->head_adapters || !j->n_wants)
        return true;
    size_t bytes = (j->n_segments + j->n_wants / LOGIT_ROWS + 1) * sizeof(tke_segment);
    tke_segment *segments = tkc_alloc(NULL, bytes, err);
    if (!segments)
        return false;
    for (size_t i = 0; i < j->n_wants; i++) {
        while (j->wants[i] >= j->segments[at].end)
            at++;
        if (i % LOGIT_ROWS && segments[n - 1].lora == j->segments[at].lora)
            segments[n - 1].end = i + 1;
        else
            segments[n++] = (tke_segment){ .begin = i, .end = i + 1, .lora = j->segments[at].lora };
    }
    s->want_tables =
        put_tables(s, segments, n, (int32_t)j->n_wants, 16, fixed ? (size_t)s->rows.padded : 0);
    for (size_t c = 0; c * LOGIT_ROWS < j->n_wants; c++) {
        int32_t end =
            (int32_t)((c + 1) * LOGIT_ROWS < j->n_wants ? (c + 1) * LOGIT_ROWS : j->n_wants);
        s->chunk_tiles[c + 1] = (int32_t)tcu_fill_tiles(segments, n, 0, end, 16, NULL);
    }
    if (fixed)
        s->chunk_tiles[1] = s->want_tables.n_tiles;
    tkc_release(NULL, segments, bytes);
    return true;
}

static bool put_outputs(tcu_sampler *s, const tke_step *j, tinkc_error *err)
{
    size_t n = (size_t)s->n_draws, tops = j->n_tops * (size_t)s->most_top;
    size_t bytes =
        j->n_scores * sizeof(float) + tops * 8 + (n + FEW_ROWS) * sizeof(tcu_drawn) + 8 * ALIGN;
    const void *before = s->out.at;
    if (!tcu_results_reserve(s->model->device, &s->out, bytes, err))
        return false;
    if (before != s->out.at)
        drop_graphs(s);
    tcu_walk w = { .at = s->out.at };
    TCU_TAKE(&w, s->drawn, n); /* first, since graphs contain its address */
    TCU_TAKE(&w, s->score_out, j->n_scores);
    TCU_TAKE(&w, s->top_tokens, tops);
    TCU_TAKE(&w, s->top_out, tops);
    return true;
}

/* The one adapter that all rows of a step have; NULL: none, or several. */
static tcu_block *common_adapter(const tke_step *j)
{
    const tke_lora *lora = j->n_segments == 1 ? j->segments[0].lora : NULL;
    return lora ? (tcu_block *)(uintptr_t)lora->weights : NULL;
}

/* Can a step in one launch use the adapters? */
static bool adapters_at_once(const tcu_sampler *s, const tke_step *j, tinkc_error *err)
{
    tcu_block *w = common_adapter(j);
    if (!s->rows.most)
        return true;
    return w && w->padded <= TCU_DECODE_RANK &&
           tcu_block_maps(w, j->segments[0].lora->layout, s->model, err);
}

/* How many rows' layers run in one launch: few rows of pure decoding, with one adapter at most. */
static int32_t rows_at_once(const tcu_sampler *s, const tke_step *j, bool fixed, tinkc_error *err)
{
    const tcu_device *d = s->model->device;
    const tcu_decode_adapter any = { 0 };
    tcu_decode p = s->decode;
    p.rows = (int32_t)j->n;
    p.adapter = s->rows.most ? &any : NULL; /* it takes some shared memory */
    bool can = fixed && p.layers && !d->layered && j->n <= TCU_DECODE_ROWS &&
               tcu_decode_plan(&p, d->props.multiProcessorCount, d->props.sharedMemPerBlockOptin) &&
               adapters_at_once(s, j, err);
    return can ? p.rows : 0;
}

/* What a step in one launch needs to know of its adapter. It has its place in steps without one, too. */
static void put_adapter(tcu_sampler *s, const tke_step *j)
{
    tcu_decode_adapter *a = put(s, sizeof *a, &s->adapter);
    const tcu_block *w = s->at_once && s->rows.most ? common_adapter(j) : NULL;
    *a = (tcu_decode_adapter){ 0 };
    if (!w) {
        s->adapter = NULL;
        return;
    }
    a->operands = w->operands;
    a->groups = w->groups;
    a->maps = w->maps;
    a->padded = w->padded;
    a->scale = j->segments[0].lora->scale;
    for (int i = 0; i <= TCU_DECODE_GROUPS; i++)
        a->has[i] = w->adapted >> i & 1;
}

/* Tags of a step in one launch. They begin again after 2^32 layers; then words of former rounds are forgotten. */
static bool put_tags(tcu_sampler *s, tinkc_error *err)
{
    uint32_t layers = (uint32_t)s->model->config.n_layers + 1;
    uint32_t *tag = put(s, sizeof *tag, &s->tag);
    tcu_device *d = s->model->device;
    *tag = s->next_tag + 1;
    if (!s->at_once)
        return true;
    bool again = s->next_tag > UINT32_MAX - 2 * layers;
    if (again)
        *tag = 1;
    s->next_tag = *tag - 1 + layers;
    s->mark = *tag;
    return !again || tcu_ok(d,
                            cudaMemsetAsync(s->decode.all_words, 0,
                                            (size_t)s->decode.n_words * sizeof *s->decode.all_words,
                                            d->stream),
                            "clearing", err);
}

static bool make_tables(tcu_sampler *s, const tke_step *j, bool fixed, tinkc_error *err)
{
    int32_t most;
    const void *before = s->feed.card;
    bool few = j->n <= FEW_ROWS;
    if (!tcu_ready_segments(s->model, j->segments, j->n_segments, &most, &s->head_adapters, err) ||
        !reserve_parts(s, most, err) ||
        !tcu_feed_reserve(s->model->device, &s->feed, feed_bytes(s, j), err))
        return false;
    if (before != s->feed.card)
        drop_graphs(s);
    s->rows = (tcu_rows){ .model = s->model,
                          .n = (int32_t)j->n,
                          .padded = tcu_pad_rows((int64_t)j->n),
                          .most = most,
                          .fused = !s->model->device->apart };
    if (fixed)
        s->rows.n = s->rows.padded;
    s->at_once = rows_at_once(s, j, fixed, err);
    if (tkc_failed(err) || !put_tags(s, err))
        return false;
    put_adapter(s, j);
    put_rows(s, j);
    if (s->model->has_experts)
        put_segment_of(s, j);
    if (s->model->state_bytes)
        put_runs(s, j, fixed);
    s->rows.lora = put_tables(s, j->segments, j->n_segments, (int32_t)j->n,
                              few ? 16 : TCU_LORA_ROWS, fixed ? (size_t)s->rows.padded : 0);
    put_spans(s, j, fixed);
    if (!put_wants(s, j, fixed, err))
        return false;
    tcu_draw *draws = put_draws(s, j, fixed ? (size_t)s->rows.padded : 0);
    put_lists(s, j);
    /* last: the tables whose length differs between replays of a graph */
    put_block_ids(s, j);
    put_masks(s, j, draws);
    return put_outputs(s, j, err) && tcu_feed_send(s->model->device, &s->feed, err);
}

/* ---- the launches of a step ---- */

static bool run_layer(tcu_sampler *s, size_t layer, tinkc_error *err)
{
    const tcu_model *m = s->model;
    const tcu_layer *l = &m->layers[layer];
    tcu_acts acts;
    tcu_walk w = { .at = s->keep };
    tcu_layer_keep(&w, m, l, &s->parts_size, &acts);
    acts.h_mid = s->h_mid; /* the next layer reads it */
    tcu_cached c = { .keys = { .data = s->data + l->cache_at,
                               .stride = (int64_t)s->stride,
                               .values = (int64_t)l->attn.k_width * TKE_BLOCK_TOKENS,
                               .slots = s->slots },
                     .tables = s->tables,
                     .narrow = s->narrow,
                     .wide = s->wide_spans,
                     .n_narrow = s->n_narrow,
                     .n_wide = s->n_wide };
    const tcu_turn turn = { .rows = &s->rows,
                            .layer = l,
                            .wide = s->wide,
                            .cached = &c,
                            .states = s->states ? s->states + l->state_at : NULL,
                            .state_stride = s->cache.state_bytes };
    const tcu_place at = { .acts = &acts,
                           .work = s->work,
                           .size = s->parts_size,
                           .h_in = s->h,
                           .a = s->a,
                           .y = s->y };
    return tcu_layer_run(&turn, &at, &s->residual, true, err);
}

static bool run_at_once(tcu_sampler *s, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    tcu_decode p = s->decode;
    int32_t processors = d->props.multiProcessorCount;
    p.rows = s->at_once;
    p.ids = s->rows.ids;
    p.tag = s->tag;
    p.adapter = s->adapter;
    p.spans = s->narrow;
    p.slots = s->slots;
    p.tables = s->tables;
    tcu_decode_plan(&p, processors, d->props.sharedMemPerBlockOptin);
    return tcu_ok(d, tcu_decode_layers(&p, processors, d->stream), "layers and logits", err) &&
           tcu_ok(d,
                  tcu_sum_and_draw(p.z, p.ldz, p.vocab, p.tops, processors, s->draws, p.rows,
                                   s->sum_parts, s->draw_slots, s->draw_turns, s->tag, s->drawn,
                                   d->stream),
                  "drawing", err);
}

static bool run_layers(tcu_sampler *s, tinkc_error *err)
{
    tcu_model *m = s->model;
    tcu_device *d = m->device;
    s->residual = (tcu_residual){ .h = s->h };
    if (!tcu_ok(d, tcu_embed_rows(m, s->rows.ids, s->h, s->rows.n),
                "embedding", err))
        return false;
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (!run_layer(s, i, err))
            return false;
    return true;
}

/* The head's adapters for wanted rows first ..; their rows count from the first of all. */
static tcu_lora head_lora(const tcu_sampler *s, int32_t first)
{
    const int32_t *tile = &s->chunk_tiles[first / LOGIT_ROWS];
    tcu_lora p = tcu_lora_of(&s->model->head, s->rows.most);
    p.segments = s->want_tables.segments;
    p.tiles = s->want_tables.tiles + tile[0];
    p.n_tiles = tile[1] - tile[0];
    p.tile_rows = s->want_tables.tile_rows;
    p.ld_out = (int32_t)tcu_pad_vocab(s->model);
    return p;
}

/* W x in s->z, and what adapters add. */
static bool multiply_head(tcu_sampler *s, const tcu_product *q, int32_t first, tinkc_error *err)
{
    enum { SPARED_US = 30 }; /* of the launches for low and for adding it: logits are read and written again */
    tcu_device *d = s->model->device;
    tcu_lora p = s->head_adapters ? head_lora(s, first) : (tcu_lora){ 0 };
    if (s->head_adapters && !first && s->rows.fused && p.most <= TCU_STRIP_RANK &&
        tcu_prefers_few(d, q, SPARED_US, err))
        return tcu_ok(d,
                      tcu_few(true, q->x, q->w, q->y, q->ldy, q->m, q->n, q->k, NULL, &p,
                              s->low_head, d->gemm.turn, d->stream),
                      "multiplying with an adapter", err);
    if (tkc_failed(err) || !tcu_multiply(d, q, err))
        return false;
    const tcu_bf16 *x = q->x - (int64_t)first * q->k;
    tcu_bf16 *low = s->low_head - (int64_t)first * p.ld_low;
    return !s->head_adapters ||
           (tcu_ok(d,
                   d->gemm.few_here
                       ? tcu_few_low(&p, x, low, d->stream)
                       : tcu_small(false, x, NULL, NULL, 0, 0, 0, p.in, &p, low, d->stream),
                   "multiplying with an adapter", err) &&
            tcu_ok(d, tcu_lora_logits(&p, low, s->z - (int64_t)first * q->ldy, d->stream),
                   "adding an adapter", err));
}

/* Logits of wanted rows first .. first + n - 1. */
static bool run_logits(tcu_sampler *s, int32_t first, int32_t n, tinkc_error *err)
{
    tcu_model *m = s->model;
    tcu_device *d = m->device;
    int64_t ldz = tcu_pad_vocab(m);
    tcu_product q = { .wide = true,
                      .x = s->hf,
                      .w = m->head.w,
                      .coded = tcu_coded_of(&m->head),
                      .n_coded = m->head.n_coded,
                      .y = s->z,
                      .ldx = m->hidden,
                      .ldy = ldz,
                      .m = tcu_pad_rows(n),
                      .n = m->vocab,
                      .k = m->hidden,
                      .valid = n };
    return tcu_ok(d,
                  tcu_pick_norm(s->wants + first, s->residual.h, s->residual.y, m->norm,
                                (float)m->config.rms_eps, s->hf, n, m->hidden, d->stream),
                  "a norm", err) &&
           multiply_head(s, &q, first, err) &&
           tcu_ok(d,
                  tcu_log_sum(s->z, ldz, n, m->vocab, s->max, s->log_sum, s->sum_parts, d->stream),
                  "log-sum-exp", err);
}

/* The part of the lists that belongs to a chunk of wanted rows. */
typedef struct part {
    size_t scores, n_scores, tops, n_tops, draws, n_draws;
} part;

static void next_part(const tke_step *j, size_t end, part *p)
{
    p->scores += p->n_scores;
    p->tops += p->n_tops;
    p->draws += p->n_draws;
    for (p->n_scores = 0;
         p->scores + p->n_scores < j->n_scores && j->scores[p->scores + p->n_scores].want < end;)
        p->n_scores++;
    for (p->n_tops = 0; p->tops + p->n_tops < j->n_tops && j->tops[p->tops + p->n_tops].want < end;)
        p->n_tops++;
    for (p->n_draws = 0;
         p->draws + p->n_draws < j->n_draws && j->draws[p->draws + p->n_draws].want < end;)
        p->n_draws++;
}

static bool run_results(tcu_sampler *s, const part *p, tinkc_error *err)
{
    tcu_model *m = s->model;
    tcu_device *d = m->device;
    int64_t ldz = tcu_pad_vocab(m);
    size_t ld = (size_t)s->most_top;
    return tcu_ok(d,
                  tcu_score(s->z, ldz, s->score_want + p->scores, 1, s->score_token + p->scores,
                            s->max, s->log_sum, s->score_out + p->scores, (int32_t)p->n_scores,
                            d->stream),
                  "log-probs", err) &&
           tcu_ok(d,
                  tcu_top_k(s->z, ldz, m->vocab, s->max, s->log_sum, s->top_want + p->tops,
                            s->top_k + p->tops, (int32_t)p->n_tops, s->top_tokens + p->tops * ld,
                            s->top_out + p->tops * ld, (int32_t)ld, d->stream),
                  "the likeliest tokens", err) &&
           tcu_ok(d,
                  tcu_sample(s->z, ldz, m->vocab, s->max, s->log_sum, s->draws + p->draws,
                             (int32_t)p->n_draws, s->draw_slots, s->drawn + p->draws, d->stream),
                  "drawing", err);
}

static bool run_plain(tcu_sampler *s, const tke_step *j, tinkc_error *err)
{
    part p = { 0 };
    if (!run_layers(s, err))
        return false;
    for (size_t first = 0; first < j->n_wants; first += LOGIT_ROWS) {
        size_t n = j->n_wants - first < LOGIT_ROWS ? j->n_wants - first : LOGIT_ROWS;
        next_part(j, first + n, &p);
        if (!run_logits(s, (int32_t)first, (int32_t)n, err) || !run_results(s, &p, err))
            return false;
    }
    return true;
}

/* ---- graphs ---- */

static bool run_decoding(tcu_sampler *s, tinkc_error *err)
{
    part all = { .n_draws = (size_t)s->n_draws };
    if (s->at_once)
        return run_at_once(s, err);
    return run_layers(s, err) && run_logits(s, 0, s->n_wants, err) && run_results(s, &all, err);
}

static graph *find_graph(tcu_sampler *s)
{
    graph key = { .padded = s->rows.padded,
                  .n_tiles = s->rows.lora.n_tiles,
                  .most = s->rows.most,
                  .at_once = s->at_once,
                  .head = s->head_adapters,
                  .fused = s->rows.fused,
                  .feed = s->feed.card,
                  .unpacked = s->model->device->gemm.unpacked };
    for (size_t i = 0; i < s->n_graphs; i++) {
        graph *g = &s->graphs[i];
        if (g->padded == key.padded && g->n_tiles == key.n_tiles && g->most == key.most &&
            g->at_once == key.at_once && g->head == key.head && g->fused == key.fused &&
            g->unpacked == key.unpacked)
            return g;
    }
    if (s->n_graphs == GRAPHS)
        drop_graphs(s);
    s->graphs[s->n_graphs] = key;
    return &s->graphs[s->n_graphs++];
}

static bool capture(tcu_sampler *s, graph *g, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    cudaGraph_t made = NULL;
    if (!tcu_ok(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed),
                "capturing a step", err))
        return false;
    bool ok = run_decoding(s, err);
    int rc = cudaStreamEndCapture(d->stream, &made);
    ok = ok && tcu_ok(d, rc, "capturing a step", err) &&
         tcu_ok(d, cudaGraphInstantiate(&g->exec, made, 0), "capturing a step", err);
    if (made)
        cudaGraphDestroy(made);
    return ok;
}

/* The first time without a graph, so that algorithms are chosen and checked; from the second time on as a graph. */
static bool run_graph(tcu_sampler *s, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    graph *g = find_graph(s);
    if (!g->seen++)
        return run_decoding(s, err);
    if (!g->exec && !capture(s, g, err))
        return false;
    return tcu_ok(d, cudaGraphLaunch(g->exec, d->stream), "a step", err);
}

/* ---- results ---- */

static void hand_over(const tcu_sampler *s, const tke_step *j)
{
    for (size_t i = 0; i < j->n_draws; i++) {
        bool bad = s->drawn[i].token < 0;
        *j->draws[i].token = bad ? 0 : s->drawn[i].token;
        *j->draws[i].logprob = s->drawn[i].logprob;
        *j->draws[i].bad = bad;
    }
    for (size_t i = 0; i < j->n_scores; i++)
        *j->scores[i].logprob = s->score_out[i];
    for (size_t i = 0; i < j->n_tops; i++) {
        size_t at = i * (size_t)s->most_top, k = j->tops[i].k;
        memcpy(j->tops[i].tokens, s->top_tokens + at, k * sizeof *s->top_tokens);
        memcpy(j->tops[i].logprobs, s->top_out + at, k * sizeof *s->top_out);
    }
}

static bool is_marked(const tcu_drawn *d, uint32_t mark)
{
    return __atomic_load_n(&d->mark, __ATOMIC_ACQUIRE) == mark &&
           __atomic_load_n(&d->mark_too, __ATOMIC_ACQUIRE) == mark;
}

/* Waits for results. Those of very few rows are marked: their marks are there some microseconds before the card reports the end of
 * the launch, which matters for so short a step. */
static bool await_results(tcu_sampler *s, tinkc_error *err)
{
    enum { LOOKS = 4096 }; /* between questions about the card */
    tcu_device *d = s->model->device;
    for (int32_t i = 0; i < s->at_once; i++)
        for (unsigned looks = 1; !is_marked(&s->drawn[i], s->mark); looks++)
            if (looks % LOOKS == 0 && cudaStreamQuery(d->stream) != cudaErrorNotReady)
                return tcu_wait(d, err);
    return s->at_once || tcu_wait(d, err);
}

bool tcu_sampler_run(tcu_sampler *s, const tke_step *j, tinkc_error *err)
{
    tcu_device *d = s->model->device;
    bool fixed = is_decoding(j);
    tke_residence_turn(&d->residence);
    if (tkc_failed(err) || !make_tables(s, j, fixed, err))
        return false;
    bool ok = fixed ? run_graph(s, err) : run_plain(s, j, err);
    if (!ok) {
        tcu_wait(d, err);
        return false;
    }
    if (!await_results(s, err)) /* the card has read the tables: they may be overwritten */
        return false;
    hand_over(s, j);
    return true;
}
