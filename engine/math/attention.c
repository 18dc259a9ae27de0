/* attention.c - attention split over threads: the forward pass by tiles of rows and by key/value
 * head; the backward pass by sequence and key/value head or, where that would leave threads idle, by
 * tiles of rows and then of keys. The kernel set does the arithmetic. */
#include <assert.h>

#include "math/kernel_set.h"

enum { ROWS_A_TASK = TKE_KEY_BLOCK };

typedef struct attention_loop {
    tke_cpu *cpu;
    const tke_attention *shape;
    int64_t n_seqs;
    const int64_t *starts;     /* packed: NULL if cached */
    const tke_kv_cache *cache; /* cached: NULL if packed */
    const tke_kv_seq *seqs;
    const tke_real *q, *k, *v;
    tke_real *o, *lse;
    const tke_attention_grads *grads;
    int32_t part; /* of the backward pass */
} attention_loop;

static int64_t rows_of(const attention_loop *l, int64_t seq)
{
    return l->starts ? l->starts[seq + 1] - l->starts[seq] : l->seqs[seq].n_rows;
}

static int64_t tiles_of(const attention_loop *l, int64_t seq)
{
    return (rows_of(l, seq) + ROWS_A_TASK - 1) / ROWS_A_TASK;
}

/* The sequence of a task, and which of its tiles (the last first: they are the longest). */
static int64_t find_tile(const attention_loop *l, int64_t unit, int64_t *tile)
{
    int64_t seq = 0;
    for (int64_t tiles; unit >= (tiles = tiles_of(l, seq)); seq++)
        unit -= tiles;
    assert(unit >= 0 && seq < l->n_seqs);
    *tile = tiles_of(l, seq) - 1 - unit;
    return seq;
}

static tke_attention_part make_part(const attention_loop *l, int64_t seq, int64_t kv_head)
{
    const tke_attention *s = l->shape;
    int64_t ldq = (int64_t)s->n_heads * s->head_dim, ldk = (int64_t)s->n_kv_heads * s->head_dim;
    int64_t first = l->starts ? l->starts[seq] : l->seqs[seq].first_row;
    tke_attention_part part = { .shape = s,
                                .kv_head = kv_head,
                                .q = l->q + first * ldq,
                                .o = l->o + first * ldq,
                                .lse = l->lse ? l->lse + first * s->n_heads : NULL };
    if (l->starts) {
        part.keys = (tke_keys){
            .k = l->k + first * ldk,
            .v = l->v + first * ldk,
            .dtype = TKE_REAL,
            .ld = ldk,
            .head_stride = s->head_dim,
        };
        return part;
    }
    part.first_pos = l->seqs[seq].first_pos;
    part.keys = (tke_keys){ .k = l->cache->k,
                            .v = l->cache->v,
                            .dtype = l->cache->dtype,
                            .ld = s->head_dim,
                            .head_stride = (int64_t)l->cache->block_tokens * s->head_dim,
                            .ids = l->seqs[seq].ids,
                            .block_stride = l->cache->block_stride,
                            .block_tokens = l->cache->block_tokens };
    return part;
}

static void forward_task(void *arg, int64_t task, int32_t worker)
{
    const attention_loop *l = arg;
    int64_t tile, seq = find_tile(l, task / l->shape->n_kv_heads, &tile);
    tke_attention_part part = make_part(l, seq, task % l->shape->n_kv_heads);
    int64_t begin = tile * ROWS_A_TASK, end = begin + ROWS_A_TASK, rows = rows_of(l, seq);
    l->cpu->set->attention(&part, begin, end < rows ? end : rows, l->cpu->scratch[worker]);
}

/* What the scratch and tiles of the sets can hold. A model's configuration is checked against the same limits. */
static void check_shape(const tke_attention *s)
{
    assert(s->head_dim > 0 && s->head_dim <= TKE_MAX_HEAD_DIM && s->window >= 0);
    assert(s->n_kv_heads > 0 && s->n_heads % s->n_kv_heads == 0);
    assert(s->n_heads / s->n_kv_heads <= TKE_MAX_HEAD_GROUP);
    (void)s;
}

static void run_tiles(attention_loop *l, tke_task_fn *task)
{
    check_shape(l->shape);
    int64_t tiles = 0;
    for (int64_t i = 0; i < l->n_seqs; i++) {
        assert(rows_of(l, i) >= 0);
        tiles += tiles_of(l, i);
    }
    tke_threads_run(l->cpu->threads, tiles * l->shape->n_kv_heads, task, l);
}

void tke_attention_forward(tke_cpu *cpu, const tke_attention *shape, int64_t n_seqs,
                           const int64_t *starts, const tke_real *q, const tke_real *k,
                           const tke_real *v, tke_real *o, tke_real *lse)
{
    attention_loop l = { .cpu = cpu,
                         .shape = shape,
                         .n_seqs = n_seqs,
                         .starts = starts,
                         .q = q,
                         .k = k,
                         .v = v,
                         .o = o,
                         .lse = lse };
    run_tiles(&l, forward_task);
}

void tke_attention_cached(tke_cpu *cpu, const tke_attention *shape, const tke_kv_cache *cache,
                          int64_t n_seqs, const tke_kv_seq *seqs, const tke_real *q, tke_real *o)
{
    attention_loop l = {
        .cpu = cpu, .shape = shape, .n_seqs = n_seqs, .cache = cache, .seqs = seqs, .q = q, .o = o
    };
    assert(cache->block_tokens > 0 && TKE_KEY_BLOCK % cache->block_tokens == 0);
    run_tiles(&l, forward_task);
}

/* ---- storing keys and values ---- */

static void store_task(void *arg, int64_t task, int32_t worker)
{
    const attention_loop *l = arg;
    const tke_kv_cache *c = l->cache;
    const tke_kv_seq *seq = &l->seqs[task];
    int64_t heads = l->shape->n_kv_heads, d = l->shape->head_dim;
    size_t size = tke_dtype_size(c->dtype);
    (void)worker;
    for (int64_t i = 0; i < seq->n_rows; i++) {
        int64_t p = seq->first_pos + i, from = (seq->first_row + i) * heads * d;
        int64_t at = seq->ids[p / c->block_tokens] * c->block_stride + p % c->block_tokens * d;
        assert(at >= 0);
        for (int64_t h = 0; h < heads; h++, from += d, at += c->block_tokens * d) {
            tke_narrow(c->dtype, l->k + from, (size_t)d, (char *)c->k + (size_t)at * size);
            tke_narrow(c->dtype, l->v + from, (size_t)d, (char *)c->v + (size_t)at * size);
        }
    }
}

void tke_kv_store(tke_cpu *cpu, const tke_attention *shape, const tke_kv_cache *cache,
                  int64_t n_seqs, const tke_kv_seq *seqs, const tke_real *k, const tke_real *v)
{
    attention_loop l = {
        .cpu = cpu, .shape = shape, .n_seqs = n_seqs, .cache = cache, .seqs = seqs, .k = k, .v = v
    };
    int64_t rows = 0;
    for (int64_t i = 0; i < n_seqs; i++) {
        assert(seqs[i].first_pos >= 0 && seqs[i].n_rows >= 0);
        rows += seqs[i].n_rows;
    }
    if (rows > 64) {
        tke_threads_run(cpu->threads, n_seqs, store_task, &l);
        return;
    }
    for (int64_t i = 0; i < n_seqs; i++) /* waking threads would cost more than the copy */
        store_task(&l, i, 0);
}

/* ---- backward ---- */

static tke_attention_back make_back(const attention_loop *l, int64_t seq, int64_t kv_head)
{
    const tke_attention *s = l->shape;
    int64_t first = l->starts[seq];
    int64_t q = first * s->n_heads * s->head_dim, k = first * s->n_kv_heads * s->head_dim;
    const tke_attention_grads *g = l->grads;
    return (tke_attention_back){
        .shape = s,
        .length = rows_of(l, seq),
        .kv_head = kv_head,
        .g = { .q = g->q + q,
               .k = g->k + k,
               .v = g->v + k,
               .o = g->o + q,
               .lse = g->lse + first * s->n_heads,
               .d_o = g->d_o + q,
               .dq = g->dq + q,
               .dk = g->dk + k,
               .dv = g->dv + k,
               .delta = g->delta + first * s->n_heads },
    };
}

static void whole_task(void *arg, int64_t task, int32_t worker)
{
    const attention_loop *l = arg;
    int64_t heads = l->shape->n_kv_heads;
    tke_attention_back back = make_back(l, task / heads, task % heads);
    l->cpu->set->attention_backward(&back, l->cpu->scratch[worker]);
}

static void part_task(void *arg, int64_t task, int32_t worker)
{
    const attention_loop *l = arg;
    int64_t tile, seq = find_tile(l, task / l->shape->n_kv_heads, &tile);
    tke_attention_back back = make_back(l, seq, task % l->shape->n_kv_heads);
    back.part = l->part;
    back.begin = tile * ROWS_A_TASK;
    back.end = back.begin + ROWS_A_TASK < back.length ? back.begin + ROWS_A_TASK : back.length;
    assert(back.begin < back.end);
    l->cpu->set->attention_backward(&back, l->cpu->scratch[worker]);
}

/* In parts there are seven products instead of five. That is faster if otherwise the thread with the
 * longest sequence would finish after all others. */
static bool pays_in_parts(const attention_loop *l)
{
    double longest = 0, all = 0;
    for (int64_t i = 0; i < l->n_seqs; i++) {
        double rows = (double)rows_of(l, i);
        all += rows * rows;
        longest = rows > longest ? rows : longest;
    }
    double share = all * l->shape->n_kv_heads / tke_threads_count(l->cpu->threads);
    return 5 * longest * longest > 7 * share;
}

void tke_attention_backward(tke_cpu *cpu, const tke_attention *shape, int64_t n_seqs,
                            const int64_t *starts, const tke_attention_grads *grads)
{
    attention_loop l = {
        .cpu = cpu, .shape = shape, .n_seqs = n_seqs, .starts = starts, .grads = grads
    };
    check_shape(shape);
    assert(grads->lse && grads->delta && grads->dq != grads->q);
    if (!pays_in_parts(&l)) {
        tke_threads_run(cpu->threads, n_seqs * shape->n_kv_heads, whole_task, &l);
        return;
    }
    for (l.part = TKE_BACK_ROWS; l.part <= TKE_BACK_KEYS; l.part++)
        run_tiles(&l, part_task);
}
