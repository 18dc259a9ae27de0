/* cuda_logits.c - the head of a microbatch: logits chunk by chunk, log-probs to the host, gradients back from it.
 *
 * The logits of a chunk live only here; their gradient overwrites them. Losses are computed by the caller (engine/train),
 * so there is one implementation of them. May touch: the trainer's head buffers, dh, dy, gradient blocks.
 */
#include <string.h>
#include "cuda/cuda_trainer.h"

typedef struct exchange { /* log-probs and their gradients of a chunk, on both sides */
    float *lp, *g, *lp_card, *g_card;
} exchange;

static exchange exchange_of(tcu_trainer *t)
{
    exchange x;
    size_t bytes = (size_t)t->chunk * t->batch->size.max_k * sizeof(float);
    t->exchange.used = 0;
    x.lp = tcu_feed_put(&t->exchange, bytes, &x.lp_card);
    x.g = tcu_feed_put(&t->exchange, bytes, &x.g_card);
    return x;
}

static tcu_lora head_tables(const tcu_trainer *t, const tcu_lora *tables, int64_t ld)
{
    tcu_lora p = tcu_lora_of(&t->model->head, t->rows.most);
    p.segments = tables->segments;
    p.tiles = tables->tiles;
    p.steps = tables->steps;
    p.n_segments = tables->n_segments;
    p.n_tiles = tables->n_tiles;
    p.tile_rows = tables->tile_rows;
    p.ld_out = (int32_t)ld;
    return p;
}

/* Rows of a chunk's products: t->chunk, so that all have one shape; only the last chunk may have fewer. */
static int32_t product_rows(const tcu_trainer *t, const tcu_chunk *c)
{
    int32_t padded = tcu_pad_rows(c->n);
    return padded < t->chunk && c->begin + c->n >= t->rows.n ? padded : t->chunk;
}

static bool chunk_forward(tcu_trainer *t, const tcu_chunk *c, float *lp_card, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    int64_t ldz = tcu_pad_vocab(m);
    size_t k = t->batch->size.max_k;
    tcu_product q = { .wide = true,
                      .x = t->a + (size_t)c->begin * (size_t)m->hidden,
                      .w = m->head.w,
                      .coded = tcu_coded_of(&m->head),
                      .n_coded = m->head.n_coded,
                      .y = t->z,
                      .ldx = m->hidden,
                      .ldy = ldz,
                      .m = product_rows(t, c),
                      .n = m->vocab,
                      .k = m->hidden,
                      .valid = c->n };
    tcu_lora p = head_tables(t, &c->lora, ldz);
    return tcu_multiply(d, &q, err) &&
           (!t->head_adapters ||
            tcu_ok(d, tcu_lora_logits(&p, t->low_head, t->z - (int64_t)c->begin * ldz, d->stream),
                   "adding an adapter", err)) &&
           tcu_ok(d, tcu_log_sum(t->z, ldz, c->n, m->vocab, t->max, t->log_sum, NULL, d->stream),
                  "log-sum-exp", err) &&
           tcu_ok(d,
                  tcu_score(t->z, ldz, NULL, (int32_t)k, t->targets + (size_t)c->begin * k, t->max,
                            t->log_sum, lp_card, c->n * (int32_t)k, d->stream),
                  "log-probs", err);
}

int32_t tcu_head_parts(const tcu_model *m)
{
    int32_t parts = m->hidden <= 1024 ? 4 : m->hidden <= 2560 ? 2 : 1;
    return m->vocab % (8 * parts) ? 1 : parts;
}

/* dx = dz W of a chunk. The vocabulary is split into parts, which are added in order. */
static tcu_product dx_product(const tcu_trainer *t, const tcu_chunk *c, const tcu_bf16 *dz,
                              tcu_bf16 *dx)
{
    tcu_model *m = t->model;
    int32_t parts = tcu_head_parts(m);
    bool split = parts > 1;
    return (tcu_product){ .transposed = true,
                          .wide = split,
                          .add = t->head_adapters && !split,
                          .x = dz,
                          .w = m->head.w,
                          .coded = tcu_coded_of(&m->head),
                          .n_coded = m->head.n_coded,
                          .y = split ? (void *)t->parts : dx,
                          .ldx = tcu_pad_vocab(m) * 2,
                          .ldy = m->hidden,
                          .m = product_rows(t, c),
                          .n = m->hidden,
                          .k = m->vocab,
                          .valid = c->n,
                          .parts = split ? parts : 0 };
}

/* Gradients of the head's adapters, and dlow A where dx will be, beside the large product, until the join. A product in parts is added to
 * dx when they are joined, so dlow is made beside it, too. */
static bool adapters_back(tcu_trainer *t, const tcu_chunk *c, const tcu_bf16 *dz_of_rows,
                          bool split, bool below, tinkc_error *err)
{
    tcu_device *d = t->model->device;
    tcu_lora p = head_tables(t, &c->lora, tcu_pad_vocab(t->model) * 2);
    tcu_stream stream = split ? d->beside[1] : d->stream;
    return (!split || tcu_fork(d, 2, err)) &&
           tcu_ok(d,
                  tcu_lora_dlow_wide(&p, dz_of_rows, t->dlow_parts - (int64_t)c->begin * p.ld_low,
                                     t->chunk, t->dlow_head, stream),
                  "dlow", err) &&
           (split || tcu_fork(d, 2, err)) &&
           (!below || tcu_ok(d, tcu_lora_dx(&p, t->dlow_head, t->tmp, stream),
                             "dx of an adapter", err)) &&
           tcu_ok(d, tcu_lora_db(&p, dz_of_rows, t->low_head, d->beside[0]), "dB", err) &&
           tcu_ok(d, tcu_lora_da(&p, t->dlow_head, t->a, d->beside[1]), "dA", err);
}

/* Overwrites z with dz, adds the gradients of the head's adapters, leaves the chunk's dx in t->tmp. */
static bool chunk_backward(tcu_trainer *t, const tcu_chunk *c, const float *g_card,
                           tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    int64_t ldz = tcu_pad_vocab(m);
    size_t k = t->batch->size.max_k;
    tcu_bf16 *dz = (tcu_bf16 *)t->z, *dx = t->tmp + (size_t)c->begin * (size_t)m->hidden;
    tcu_product q = dx_product(t, c, dz, dx);
    bool below = t->batch->size.depth == TKE_DEPTH_ALL, split = q.parts > 1,
         add = t->head_adapters;
    return tcu_ok(d,
                  tcu_head_back(t->z, ldz, c->n, m->vocab, t->max, t->log_sum,
                                t->targets + (size_t)c->begin * k, g_card, t->fix, (int32_t)k,
                                d->stream),
                  "the gradient of the logits", err) &&
           (!below || tcu_plan_product(d, &q, err)) &&
           (!add || adapters_back(t, c, dz - (int64_t)c->begin * ldz * 2, split, below, err)) &&
           (!below || tcu_multiply(d, &q, err)) && (!add || tcu_join(d, 2, err)) &&
           (!below || !split ||
            tcu_ok(d,
                   tcu_join_parts(t->parts, q.parts, add, dx, (int64_t)q.m * m->hidden, d->stream),
                   "adding parts", err));
}

static bool any_gradient(const float *g, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (g[i] != 0)
            return true;
    return false;
}

/* want_g: the losses also return gradients; otherwise they only read the log-probs. */
static bool run_chunk(tcu_trainer *t, const tcu_chunk *c, bool want_g, tinkc_error *err)
{
    const tke_microbatch *b = t->batch;
    tcu_device *d = t->model->device;
    exchange x = exchange_of(t);
    size_t count = (size_t)c->n * b->size.max_k, width = (size_t)t->model->hidden;
    if (tcu_trainer_stopped(t, err) || !chunk_forward(t, c, x.lp_card, err) ||
        !tcu_download(d, x.lp, x.lp_card, count * sizeof *x.lp, err))
        return false;
    memset(x.g, 0, count * sizeof *x.g);
    b->losses(b->user, (size_t)c->begin, (size_t)c->n, x.lp, want_g ? x.g : NULL);
    if (b->size.depth == TKE_DEPTH_NONE || !want_g)
        return true;
    if (!any_gradient(x.g, count))
        return tcu_ok(d,
                      cudaMemsetAsync(t->tmp + (size_t)c->begin * width, 0,
                                      (size_t)c->n * width * sizeof *t->tmp, d->stream),
                      "clearing", err);
    return tcu_upload(d, x.g_card, x.g, count * sizeof *x.g, err) &&
           chunk_backward(t, c, x.g_card, err) &&
           tcu_wait(d, err); /* before the next chunk overwrites these log-probs */
}

bool tcu_trainer_head(tcu_trainer *t, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    if (t->head_adapters) {
        tcu_lora p = head_tables(t, &t->rows.lora, 0);
        if (!tcu_ok(d, tcu_lora_low(&p, t->a, t->low_head, d->stream),
                    "multiplying with an adapter", err))
            return false;
    }
    for (int sweep = t->batch->sweep ? 0 : 1; sweep < 2; sweep++)
        for (size_t i = 0; i < t->n_chunks; i++)
            if (!run_chunk(t, &t->chunks[i], sweep == 1, err))
                return false;
    if (t->batch->size.depth != TKE_DEPTH_ALL)
        return true;
    return tcu_ok(d,
                  tcu_norm_back(t->h, m->norm, (float)m->config.rms_eps, t->tmp, true, t->dh, t->dy,
                                t->rows.n, m->hidden, d->stream),
                  "a norm", err);
}
