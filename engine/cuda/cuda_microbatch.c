/* cuda_microbatch.c - a microbatch: its memory, its tables, the forward pass.
 *
 * May touch: the trainer's buffers. Must not: know about losses (the caller's; cuda_logits.c calls them). How many
 * layers keep their activations depends on the memory alone and changes no bit.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cuda/cuda_trainer.h"

enum { ALIGN = 256, CHUNK_ROWS = 1024, RESERVE = 768 << 20 };

/* ---- memory ---- */

static int32_t chunk_rows(int32_t padded)
{
    return padded < CHUNK_ROWS ? padded : CHUNK_ROWS;
}

static tcu_size size_of(const tke_microbatch_size *s)
{
    return (tcu_size){ .n = (size_t)tcu_pad_rows((int64_t)s->n),
                       .most = (size_t)tcu_padded_rank(s->max_rank),
                       .n_data = s->depth == TKE_DEPTH_ALL ? s->n : 0 };
}

static size_t layer_bytes(const tcu_model *m, size_t layer, const tcu_size *s, size_t n_whole)
{
    tcu_walk w = { 0 };
    tcu_acts unused;
    tcu_size own = *s;
    own.whole = layer + n_whole >= m->config.n_layers;
    tcu_layer_keep(&w, m, &m->layers[layer], &own, &unused);
    return w.used;
}

static void place_layers(tcu_walk *w, const tcu_size *s, size_t n_kept, size_t n_whole, tcu_trainer *t)
{
    const tcu_model *m = t->model;
    size_t layers = m->config.n_layers;
    float *h;
    unsigned char *kept;
    if (!s->n_data || n_kept < layers)
        TCU_TAKE(w, t->shared, tcu_layers_keep(m, s));
    for (size_t i = 0; s->n_data && i < layers; i++)
        TCU_TAKE(w, *(w->at ? &t->h_in[i] : &h), s->n * (size_t)m->hidden);
    for (size_t i = layers - n_kept; s->n_data && i < layers; i++)
        TCU_TAKE(w, *(w->at ? &t->kept[i] : &kept), layer_bytes(m, i, s, n_whole));
}

static void place(tcu_walk *w, const tke_microbatch_size *from, size_t n_kept, size_t n_whole, tcu_trainer *t)
{
    const tcu_model *m = t->model;
    tcu_size s = size_of(from);
    size_t n = s.n, h = (size_t)m->hidden, chunk = (size_t)(t->chunk = chunk_rows((int32_t)n));
    TCU_TAKE(w, t->h, n * h);
    TCU_TAKE(w, t->a, (n + chunk) * h); /* the last chunk's product is padded */
    TCU_TAKE(w, t->y, n * h);
    if (s.most)
        TCU_TAKE(w, t->wide, n * tcu_widest_group(m));
    TCU_TAKE(w, t->work, tcu_layers_work(m, &s));
    place_layers(w, &s, n_kept, n_whole, t);
    if (s.n_data) {
        TCU_TAKE(w, t->dh, n * h);
        TCU_TAKE(w, t->dy, n * h);
        TCU_TAKE(w, t->dlow, n * tcu_largest_group(m) * s.most);
    }
    TCU_TAKE(w, t->tmp, (n + chunk) * h);
    TCU_TAKE(w, t->z, chunk * (size_t)tcu_pad_vocab(m));
    TCU_TAKE(w, t->max, chunk);
    TCU_TAKE(w, t->log_sum, chunk);
    TCU_TAKE(w, t->fix, chunk * from->max_k);
    TCU_TAKE(w, t->parts, s.n_data ? chunk * h * (size_t)tcu_head_parts(m) : 1);
    TCU_TAKE(w, t->low_head, n * s.most);
    TCU_TAKE(w, t->dlow_head, n * s.most);
    TCU_TAKE(w, t->dlow_parts, TCU_DLOW_PARTS * chunk * s.most);
}

static size_t bytes_of(const tcu_trainer *t, const tke_microbatch_size *s, size_t n_kept, size_t n_whole)
{
    tcu_walk w = { 0 };
    tcu_trainer measured = { .model = t->model };
    place(&w, s, n_kept, n_whole, &measured);
    return w.used;
}

size_t tcu_trainer_bytes(const tcu_trainer *t, const tke_microbatch_size *s, int32_t keep)
{
    bool all = keep == TKE_KEEP_ALL && s->depth == TKE_DEPTH_ALL;
    return bytes_of(t, s, all ? t->model->config.n_layers : 0, 0);
}

/* What is free; with `idle` also what adapters that nobody uses now could free. */
static size_t budget(const tcu_trainer *t, bool idle)
{
    tcu_device *d = t->model->device;
    size_t left = 0, total = 0;
    if (t->o.memory_bytes || !tcu_memory(d, &left, &total))
        return t->o.memory_bytes;
    left += t->bytes + (idle ? tke_residence_idle(&d->residence) : 0);
    return left > RESERVE ? left - RESERVE : 0;
}

size_t tcu_trainer_memory(const tcu_trainer *t)
{
    return budget(t, true);
}

size_t tcu_trainer_held(const tcu_trainer *t)
{
    return t->bytes;
}

/* Idle adapters make room for what a microbatch needs, but not for activations that can be recomputed. */
static size_t layers_to_keep(const tcu_trainer *t, const tke_microbatch_size *s)
{
    size_t layers = t->model->config.n_layers, free_bytes = budget(t, false), keep = layers;
    if (s->depth != TKE_DEPTH_ALL || t->o.keep == TKE_KEEP_NONE)
        return 0;
    while (keep > 0 && t->o.keep != TKE_KEEP_ALL && bytes_of(t, s, keep, 0) > free_bytes)
        keep--;
    return keep;
}

/* How many layers make nothing again: three quarters of the memory at most are for that. */
static size_t layers_whole(const tcu_trainer *t, const tke_microbatch_size *s, size_t n_kept)
{
    const tcu_model *m = t->model;
    tcu_size size = size_of(s);
    size_t layers = m->config.n_layers, n = 0;
    if (n_kept < layers)
        return 0;
    size_t bytes = bytes_of(t, s, n_kept, 0), most = budget(t, false) / 4 * 3;
    for (; n < layers; n++) {
        size_t layer = layers - 1 - n;
        bytes += layer_bytes(m, layer, &size, layers) - layer_bytes(m, layer, &size, 0);
        if (bytes > most)
            break;
    }
    return n;
}

static bool reserve(tcu_trainer *t, const tke_microbatch_size *s, tinkc_error *err)
{
    tcu_device *d = t->model->device;
    if (!tcu_unpack_room(d, t->model->unpacked, err))
        return false;
    t->n_kept = layers_to_keep(t, s);
    t->n_whole = layers_whole(t, s, t->n_kept);
    size_t bytes = bytes_of(t, s, t->n_kept, t->n_whole);
    if (bytes > t->bytes) {
        tcu_give(d, t->block, t->bytes, TCU_FOR_WORK);
        t->bytes = 0;
        t->block = tcu_take(d, bytes, TCU_FOR_WORK, err);
        if (!t->block ||
            !tcu_ok(d, cudaMemsetAsync(t->block, 0, bytes, d->stream), "clearing", err))
            return false;
        t->bytes = bytes;
    }
    tcu_walk w = { .at = t->block };
    place(&w, s, t->n_kept, t->n_whole, t);
    return true;
}

/* ---- life ---- */

tcu_trainer *tcu_trainer_new(tcu_model *m, const tke_device_trainer_options *o, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    tcu_trainer *t = tkc_zalloc(NULL, sizeof *t, err);
    if (!t)
        return NULL;
    t->model = m;
    t->o = *o;
    t->h_in = tkc_zalloc(NULL, m->config.n_layers * sizeof *t->h_in, err);
    t->kept = tkc_zalloc(NULL, m->config.n_layers * sizeof *t->kept, err);
    if (t->h_in && t->kept)
        return t;
    tcu_trainer_free(t);
    return NULL;
}

void tcu_trainer_free(tcu_trainer *t)
{
    if (!t)
        return;
    tcu_device *d = t->model->device;
    tcu_give(d, t->block, t->bytes, TCU_FOR_WORK);
    tcu_feed_free(d, &t->feed);
    tcu_feed_free(d, &t->exchange);
    tkc_release(NULL, t->h_in, t->model->config.n_layers * sizeof *t->h_in);
    tkc_release(NULL, t->kept, t->model->config.n_layers * sizeof *t->kept);
    tkc_release(NULL, t->chunks, t->cap_chunks * sizeof *t->chunks);
    tkc_release(NULL, t, sizeof *t);
}

void tcu_trainer_set_memory(tcu_trainer *t, size_t bytes)
{
    t->o.memory_bytes = bytes;
    if (bytes && t->bytes > bytes) {
        tcu_give(t->model->device, t->block, t->bytes, TCU_FOR_WORK);
        t->block = NULL;
        t->bytes = 0;
    }
}

/* ---- tables ---- */

static int by_work(const void *a, const void *b)
{
    const tcu_span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin > y->begin ? -1 : 1;
    return x->origin < y->origin ? -1 : x->origin > y->origin;
}

static int by_work_of_keys(const void *a, const void *b)
{
    const tcu_span *x = a, *y = b;
    int32_t left_x = x->table - x->begin, left_y = y->table - y->begin;
    if (left_x != left_y)
        return left_x > left_y ? -1 : 1;
    return x->origin < y->origin ? -1 : x->origin > y->origin;
}

/* Runs of `tokens` positions of every sequence; the order decides only which starts first. */
static size_t fill_spans(const tke_microbatch *b, int32_t tokens, tcu_span *out)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_seqs; i++) {
        int32_t length = (int32_t)(b->starts[i + 1] - b->starts[i]);
        for (int32_t at = 0; at < length; at += tokens, n++)
            if (out)
                out[n] = (tcu_span){ (int32_t)b->starts[i], at,
                                     at + tokens < length ? at + tokens : length, length };
    }
    return n;
}

/* Chunks of the head: up to t->chunk rows; a step of rows is never split. */
static bool cut_chunks(tcu_trainer *t, const tcu_step *steps, size_t n_steps, tinkc_error *err)
{
    t->n_chunks = 0;
    for (size_t i = 0; i < n_steps;) {
        tcu_chunk c = { .begin = steps[i].row };
        for (; i < n_steps && steps[i].row + steps[i].n - c.begin <= t->chunk; i++)
            c.n = steps[i].row + steps[i].n - c.begin;
        tcu_chunk *grown =
            tkc_grow(NULL, t->chunks, &t->cap_chunks, t->n_chunks + 1, sizeof *grown, err);
        if (!grown)
            return false;
        t->chunks = grown;
        t->chunks[t->n_chunks++] = c;
    }
    return true;
}

static size_t feed_bytes(const tcu_trainer *t, const tke_microbatch *b, size_t n_steps,
                         size_t n_spans, size_t n_keys)
{
    size_t n = b->size.n, tiles = n / TCU_LORA_ROWS + b->n_segments + 1, tables = 1 + t->n_chunks;
    return n * (4 + b->size.max_k) * sizeof(int32_t) +
           b->n_seqs * sizeof(tcu_run) + (b->n_seqs + n / TCU_PIECE_ROWS) * sizeof(tcu_piece) + (b->n_seqs + 1) * sizeof(int32_t) + n_steps * sizeof(tcu_step) +
           (n_spans + n_keys) * sizeof(tcu_span) +
           tables * (b->n_segments * sizeof(tcu_segment) + tiles * sizeof(tcu_tile) + 2 * ALIGN) +
           22 * ALIGN;
}

static const void *put_copy(tcu_feed *f, const void *from, size_t bytes)
{
    const void *card = NULL;
    void *host = tcu_feed_put(f, bytes, &card);
    assert(host);
    memcpy(host, from, bytes);
    return card;
}

/* Tables of the rows [begin, end). */
static tcu_lora put_tables(tcu_feed *f, const tke_microbatch *b, int32_t begin, int32_t end,
                           const tcu_step *steps, size_t n_steps, const tcu_step *steps_card)
{
    tcu_lora l = { .steps = steps_card,
                   .n_segments = (int32_t)b->n_segments,
                   .tile_rows = TCU_LORA_ROWS };
    tcu_segment *segments = tcu_feed_put(f, b->n_segments * sizeof *segments, &l.segments);
    l.n_tiles =
        (int32_t)tcu_fill_tiles(b->segments, b->n_segments, begin, end, TCU_LORA_ROWS, NULL);
    tcu_tile *tiles = tcu_feed_put(f, (size_t)l.n_tiles * sizeof *tiles, &l.tiles);
    assert(segments && tiles);
    tcu_fill_segments(b->segments, b->n_segments, steps, n_steps, begin, end, segments);
    tcu_fill_tiles(b->segments, b->n_segments, begin, end, TCU_LORA_ROWS, tiles);
    return l;
}

static void put_spans(tcu_trainer *t, const tke_microbatch *b, int32_t tokens, int32_t keys_each)
{
    tcu_packed *p = &t->packed;
    tcu_span *spans = tcu_feed_put(&t->feed, (size_t)p->n_spans * sizeof *spans, &p->spans);
    tcu_span *keys = tcu_feed_put(&t->feed, (size_t)p->n_key_spans * sizeof *keys, &p->key_spans);
    assert(spans && keys);
    fill_spans(b, tokens, spans);
    fill_spans(b, keys_each, keys);
    qsort(spans, (size_t)p->n_spans, sizeof *spans, by_work);
    qsort(keys, (size_t)p->n_key_spans, sizeof *keys, by_work_of_keys);
}

/* What experts need to know of rows. */
static void put_experts(tcu_trainer *t, const tke_microbatch *b)
{
    int32_t *of = tcu_feed_put(&t->feed, b->size.n * sizeof *of, &t->rows.segment_of);
    int32_t *starts = tcu_feed_put(&t->feed, (b->n_seqs + 1) * sizeof *starts, &t->rows.starts);
    assert(of && starts);
    for (size_t s = 0; s < b->n_segments; s++)
        for (size_t i = b->segments[s].begin; i < b->segments[s].end; i++)
            of[i] = (int32_t)s;
    for (size_t i = 0; i <= b->n_seqs; i++)
        starts[i] = (int32_t)b->starts[i];
    t->rows.n_data = (int32_t)b->n_seqs;
}

/* Where layers have a state: the sequences, and their rows chunk by chunk. */
static void put_runs(tcu_trainer *t, const tke_microbatch *b)
{
    tcu_rows *r = &t->rows;
    tcu_run *runs = tcu_feed_put(&t->feed, b->n_seqs * sizeof *runs, &r->runs);
    int32_t *of = tcu_feed_put(&t->feed, b->size.n * sizeof *of, &r->run_of);
    assert(runs && of);
    r->n_runs = (int32_t)b->n_seqs;
    for (size_t i = 0; i < b->n_seqs; i++) {
        runs[i] = (tcu_run){ .row = (int32_t)b->starts[i],
                             .n = (int32_t)(b->starts[i + 1] - b->starts[i]),
                             .slot = -1 };
        r->longest = runs[i].n > r->longest ? runs[i].n : r->longest;
        for (int32_t j = 0; j < runs[i].n; j++)
            of[runs[i].row + j] = (int32_t)i;
    }
    size_t n = tcu_fill_pieces(runs, b->n_seqs, NULL);
    tcu_piece *pieces = tcu_feed_put(&t->feed, n * sizeof *pieces, &r->pieces);
    assert(pieces);
    r->n_pieces = (int32_t)tcu_fill_pieces(runs, b->n_seqs, pieces);
    int32_t edges = 0;
    for (size_t i = 0; i < n; i++)
        pieces[i].edge = pieces[i].position ? edges++ : -1;
}

static bool make_tables(tcu_trainer *t, const tke_microbatch *b, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    int32_t most,
        keys = TCU_KEY_BLOCK,
        tokens = tcu_span_tokens((int32_t)m->config.n_heads, (int32_t)m->config.n_kv_heads, false);
    size_t n_steps = tcu_count_steps(b->starts, b->n_seqs);
    if (!tcu_ready_segments(m, b->segments, b->n_segments, &most, &t->head_adapters, err))
        return false;
    assert(most <= tcu_padded_rank(b->size.max_rank));
    tcu_step *steps = tkc_alloc(NULL, n_steps * sizeof *steps, err);
    if (!steps)
        return false;
    tcu_fill_steps(b->starts, b->n_seqs, steps);
    t->packed.grouped = tcu_attention_groups(tcu_side_of(m->config.head_dim).step);
    if (t->packed.grouped) {
        tokens *= TCU_WARPGROUPS;
        keys *= TCU_KEY_WARPGROUPS;
    }
    t->packed.n_spans = (int32_t)fill_spans(b, tokens, NULL);
    t->packed.n_key_spans = (int32_t)fill_spans(b, keys, NULL);
    bool ok = cut_chunks(t, steps, n_steps, err) &&
              tcu_feed_reserve(
                  d, &t->feed,
                  feed_bytes(t, b, n_steps, (size_t)t->packed.n_spans, (size_t)t->packed.n_key_spans), err) &&
              tcu_feed_reserve(d, &t->exchange,
                               2 * ((size_t)t->chunk * b->size.max_k * sizeof(float) + ALIGN), err);
    if (ok) {
        tcu_feed *f = &t->feed;
        t->rows = (tcu_rows){ .model = m,
                              .n = (int32_t)b->size.n,
                              .padded = tcu_pad_rows((int64_t)b->size.n) };
        t->rows.most = tcu_padded_rank(b->size.max_rank);
        t->rows.ids = put_copy(f, b->ids, b->size.n * sizeof *b->ids);
        t->rows.positions = put_copy(f, b->positions, b->size.n * sizeof *b->positions);
        t->targets = put_copy(f, b->targets, b->size.n * b->size.max_k * sizeof *b->targets);
        const tcu_step *card = put_copy(f, steps, n_steps * sizeof *steps);
        t->rows.lora = put_tables(f, b, 0, t->rows.n, steps, n_steps, card);
        put_spans(t, b, tokens, keys);
        if (m->has_experts)
            put_experts(t, b);
        if (m->state_bytes)
            put_runs(t, b);
        for (size_t i = 0; t->head_adapters && i < t->n_chunks; i++)
            t->chunks[i].lora =
                put_tables(f, b, t->chunks[i].begin, t->chunks[i].begin + t->chunks[i].n, steps,
                           n_steps, card);
        ok = tcu_feed_send(d, f, err);
    }
    tkc_release(NULL, steps, n_steps * sizeof *steps);
    return ok;
}

/* ---- forward ---- */

bool tcu_trainer_stopped(const tcu_trainer *t, tinkc_error *err)
{
    if (!t->o.stop || !atomic_load_explicit(t->o.stop, memory_order_relaxed))
        return false;
    tkc_fail(err, TINKC_E_CANCELLED, "the engine is stopping");
    return true;
}

void tcu_trainer_acts(const tcu_trainer *t, size_t layer, tcu_acts *out)
{
    const tcu_model *m = t->model;
    tcu_size s = size_of(&t->batch->size);
    bool kept = s.n_data && layer + t->n_kept >= m->config.n_layers;
    s.whole = layer + t->n_whole >= m->config.n_layers;
    tcu_walk w = { .at = kept ? t->kept[layer] : t->shared };
    tcu_layer_keep(&w, m, &m->layers[layer], &s, out);
}

tcu_turn tcu_trainer_turn(const tcu_trainer *t, size_t layer)
{
    return (tcu_turn){ .rows = &t->rows,
                       .layer = &t->model->layers[layer],
                       .wide = t->wide,
                       .dlow = t->dlow,
                       .packed = &t->packed };
}

tcu_place tcu_trainer_place(const tcu_trainer *t, size_t layer, const tcu_acts *acts)
{
    tcu_size s = size_of(&t->batch->size);
    return (tcu_place){ .acts = acts,
                        .work = t->work,
                        .size = s,
                        .h_in = s.n_data ? t->h_in[layer] : t->h,
                        .a = t->a,
                        .y = t->y };
}

bool tcu_trainer_layer(tcu_trainer *t, size_t layer, tcu_residual *r, bool output, tinkc_error *err)
{
    tcu_acts acts;
    tcu_trainer_acts(t, layer, &acts);
    tcu_turn turn = tcu_trainer_turn(t, layer);
    tcu_place at = tcu_trainer_place(t, layer, &acts);
    return !tcu_trainer_stopped(t, err) && tcu_layer_run(&turn, &at, r, output, err);
}

/* h becomes the output of the last layer. */
static bool forward(tcu_trainer *t, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    float *first = t->batch->size.depth == TKE_DEPTH_ALL ? t->h_in[0] : t->h;
    tcu_residual r = { .h = first };
    if (!tcu_ok(d, tcu_embed_rows(m, t->rows.ids, first, t->rows.n),
                "embedding", err))
        return false;
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (!tcu_trainer_layer(t, i, &r, true, err))
            return false;
    return tcu_ok(d,
                  tcu_add_norm(r.h, r.y, t->h, m->norm, (float)m->config.rms_eps, t->a, t->rows.n,
                               m->hidden, d->stream),
                  "a norm", err);
}

bool tcu_trainer_run(tcu_trainer *t, const tke_microbatch *b, tinkc_error *err)
{
    t->batch = b;
    tke_residence_turn(&t->model->device->residence);
    bool ok = !tkc_failed(err) && tcu_hold_segments(b->segments, b->n_segments, err) &&
              reserve(t, &b->size, err) && make_tables(t, b, err) && forward(t, err) &&
              tcu_trainer_head(t, err) &&
              (b->size.depth != TKE_DEPTH_ALL || tcu_trainer_backward(t, err));
    return tcu_wait(t->model->device, err) &&
           ok; /* the card has read the tables: they may be overwritten */
}
