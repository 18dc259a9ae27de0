/* head.c - the output projection, log-probs and losses, chunk by chunk of rows.
 *
 * The logits of a chunk live only here: log-sum-exp, losses and the gradient of the logits are made
 * in place, so memory is chunk x vocabulary and each logit is computed once. Rows without gradient
 * are left out of the backward products.
 *
 * May touch: the unit's head buffers, dh, outputs and sums of its passes, gradient blocks.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "train/microbatch.h"

typedef struct chunk {
    tke_microbatch *u;
    size_t begin, n;          /* rows of the unit */
    const tke_item *item;     /* of the first row */
    size_t n_active;          /* rows with gradient, moved to the front */
    size_t *source;           /* their rows in the chunk */
    tke_segment segments[64]; /* overlapping the chunk, rows counted in it */
    size_t n_segments;
    size_t first_segment;
} chunk;

static void fail_token(const tke_item *item, size_t position, bool loss)
{
    tke_pass_state *s = item->state;
    if (s->failed)
        return;
    s->failed = true;
    /* Log-probs that are not finite are ours; a ratio that overflows is the request's. */
    tkc_fail(&s->pass->err, loss ? TINKC_E_BAD_REQUEST : TINKC_E_SERVER,
             "datum %zu: the %s at position %zu is not finite", item->index,
             loss ? "loss (ratio of log-probs)" : "log-prob", position);
}

/* Log-probs and loss of row i of the chunk; g[k] = d loss / d lp. True if it carries gradient. */
static bool row_loss(const tke_microbatch *u, const tke_item *item, size_t position, size_t i,
                     tke_real *g)
{
    const tke_datum *d = item->datum;
    tke_pass_state *s = item->state;
    size_t vocab = tke_model_config(u->rows.model)->vocab;
    const tke_real *z = u->z + i * vocab;
    assert(position < d->n && d->k >= 1 && d->k <= u->max_k);
    tke_real lp_small[16], *lp = d->k <= 16 ? lp_small : g + u->max_k; /* the next row is free */
    bool any = false;
    for (size_t j = 0; j < d->k; j++) {
        int64_t t = d->targets[position * d->k + j];
        lp[j] = t >= 0 && (uint64_t)t < vocab ? (z[t] - u->max[i]) - u->log_sum[i] : 0;
        if (!isfinite(lp[j]))
            fail_token(item, position, false);
        item->logprobs[position * d->k + j] = (float)lp[j];
    }
    tke_real l = tke_loss_token(&s->pass->loss, d, position, lp, g, &s->sums);
    item->elementwise[position] = (float)l;
    for (size_t j = 0; j < d->k; j++) {
        if (!isfinite(g[j]))
            fail_token(item, position, true);
        any = any || g[j] != 0;
    }
    if (!isfinite(l))
        fail_token(item, position, true);
    return any && s->pass->backward && !s->failed;
}

/* The item that holds a row of the unit, from `item` on. */
static const tke_item *item_at(const tke_item *item, size_t row)
{
    while (row >= item->row + item->datum->n)
        item++;
    assert(row >= item->row); /* rows are asked for in order */
    return item;
}

/* Losses of all rows; rows with gradient are moved to the front and become dz. */
static void chunk_losses(chunk *c)
{
    tke_microbatch *u = c->u;
    size_t vocab = tke_model_config(u->rows.model)->vocab;
    const tke_item *item = c->item;
    c->n_active = 0;
    for (size_t i = 0; i < c->n; i++) {
        item = item_at(item, c->begin + i);
        size_t at = c->n_active, k = item->datum->k;
        tke_real *g = u->g + at * u->max_k, sum = 0;
        if (!row_loss(u, item, c->begin + i - item->row, i, g))
            continue;
        for (size_t j = 0; j < k; j++)
            sum += g[j];
        if (at != i)
            memcpy(u->z + at * vocab, u->z + i * vocab, vocab * sizeof *u->z);
        u->lse[at] = u->lse[i];
        u->scale[at] = -sum;
        assert(at <= i); /* rows move to the front only */
        c->source[at] = i;
        c->n_active++;
    }
}

/* dz = -(sum g) p, plus g at the targets. */
static void chunk_dz(chunk *c)
{
    tke_microbatch *u = c->u;
    size_t vocab = tke_model_config(u->rows.model)->vocab;
    const tke_item *item = c->item;
    tke_softmax_scaled(u->rows.cpu, (int64_t)c->n_active, (int64_t)vocab, u->z, (int64_t)vocab,
                       u->lse, u->scale);
    for (size_t a = 0; a < c->n_active; a++) {
        item = item_at(item, c->begin + c->source[a]);
        const tke_datum *d = item->datum;
        size_t position = c->begin + c->source[a] - item->row;
        for (size_t j = 0; j < d->k; j++) {
            int64_t t = d->targets[position * d->k + j];
            if (t >= 0 && (uint64_t)t < vocab)
                u->z[a * vocab + (size_t)t] += u->g[a * u->max_k + j];
        }
    }
}

/* Segments of the unit cut to the chunk. */
static void chunk_segments(chunk *c)
{
    const tke_rows *r = &c->u->rows;
    c->n_segments = 0;
    c->first_segment = 0;
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_segment *from = &r->segments[s];
        if (from->end <= c->begin || from->begin >= c->begin + c->n)
            continue;
        if (c->n_segments == 0)
            c->first_segment = s;
        size_t begin = from->begin > c->begin ? from->begin - c->begin : 0;
        size_t end = from->end - c->begin < c->n ? from->end - c->begin : c->n;
        assert(c->n_segments < sizeof c->segments / sizeof *c->segments && begin < end);
        c->segments[c->n_segments++] = (tke_segment){ begin, end, from->lora };
    }
    assert(c->n_segments > 0 && c->segments[c->n_segments - 1].end == c->n);
}

/* The same over the rows that were moved to the front. */
static void active_segments(chunk *c)
{
    size_t at = 0;
    for (size_t s = 0; s < c->n_segments; s++) {
        size_t begin = at;
        while (at < c->n_active && c->source[at] < c->segments[s].end)
            at++;
        c->segments[s].begin = begin;
        c->segments[s].end = at;
    }
    assert(at == c->n_active);
}

static void chunk_forward(chunk *c)
{
    tke_microbatch *u = c->u;
    const tke_model *m = u->rows.model;
    const tke_config *cfg = tke_model_config(m);
    int64_t n = (int64_t)c->n, width = (int64_t)cfg->hidden, vocab = (int64_t)cfg->vocab;
    tke_rows rows = u->rows;
    rows.n = c->n;
    rows.segments = c->segments;
    rows.n_segments = c->n_segments;
    tke_rmsnorm(rows.cpu, n, width, u->h + c->begin * cfg->hidden,
                tke_matrix_real(tke_model_norm(m), width), (tke_real)cfg->rms_eps, u->hf);
    tke_group_forward(&rows, tke_model_head(m), 1, tke_head_group(m), u->hf, &u->z, u->low_head);
    tke_lse_start(n, u->max, u->scale);
    tke_lse_update(rows.cpu, n, vocab, u->z, vocab, u->max, u->scale);
    tke_lse_finish(n, u->max, u->scale, u->lse);
    for (size_t i = 0; i < c->n; i++)
        u->log_sum[i] = tke_real_log(u->scale[i]);
}

static void chunk_backward(chunk *c)
{
    tke_microbatch *u = c->u;
    const tke_model *m = u->rows.model;
    const tke_config *cfg = tke_model_config(m);
    size_t width = cfg->hidden, rank = u->rows.max_rank;
    bool below = u->depth == TKE_DEPTH_ALL;
    tke_rows rows = u->rows;
    const tke_real *dz = u->z;
    for (size_t a = 0; a < c->n_active; a++) {
        memcpy(u->hc + a * width, u->hf + c->source[a] * width, width * sizeof *u->hc);
        if (rank)
            memcpy(u->low_c + a * rank, u->low_head + c->source[a] * rank, rank * sizeof *u->hc);
    }
    active_segments(c);
    rows.n = c->n_active;
    rows.segments = c->segments;
    rows.n_segments = c->n_segments;
    tke_group_backward(&rows, u->grads + c->first_segment, tke_model_head(m), 1, tke_head_group(m),
                       u->hc, &dz, u->low_c, u->dlow_head, below ? u->hf : NULL);
    if (!below)
        return;
    memset(u->dhf, 0, c->n * width * sizeof *u->dhf);
    for (size_t a = 0; a < c->n_active; a++)
        memcpy(u->dhf + c->source[a] * width, u->hf + a * width, width * sizeof *u->dhf);
    tke_rmsnorm_backward(rows.cpu, (int64_t)c->n, (int64_t)width, u->h + c->begin * width,
                         tke_matrix_real(tke_model_norm(m), (int64_t)width), (tke_real)cfg->rms_eps,
                         u->dhf, u->dh + c->begin * width, false);
}

/* Rows of a chunk: at most u->chunk, and no more segments than fit. */
static size_t chunk_length(const tke_microbatch *u, size_t begin)
{
    enum { MOST = sizeof((chunk *)0)->segments / sizeof(tke_segment) };
    size_t end = begin + u->chunk < u->rows.n ? begin + u->chunk : u->rows.n, seen = 0;
    for (size_t s = 0; s < u->rows.n_segments; s++) {
        if (u->rows.segments[s].end <= begin)
            continue;
        if (++seen == MOST && u->rows.segments[s].end < end)
            end = u->rows.segments[s].end;
    }
    return end - begin;
}

void tke_microbatch_head(tke_microbatch *u)
{
    enum { MOST_ROWS = 1024 };
    size_t source[MOST_ROWS], width = tke_model_config(u->rows.model)->hidden;
    chunk c = { .u = u, .source = source, .item = u->items };
    for (c.begin = 0; c.begin < u->rows.n; c.begin += c.n) {
        c.n = chunk_length(u, c.begin);
        assert(c.n > 0 && c.n <= u->chunk && c.n <= MOST_ROWS);
        c.item = item_at(c.item, c.begin);
        chunk_segments(&c);
        chunk_forward(&c);
        chunk_losses(&c);
        if (u->depth == TKE_DEPTH_NONE)
            continue;
        if (c.n_active) {
            chunk_dz(&c);
            chunk_backward(&c);
        } else if (u->depth == TKE_DEPTH_ALL) {
            memset(u->dh + c.begin * width, 0, c.n * width * sizeof *u->dh);
        }
    }
}
