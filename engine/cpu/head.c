/* head.c - the output projection, log-probs and the gradient of the logits, by chunks of rows.
 *
 * The logits of a chunk live only here: log-sum-exp, losses (a callback) and the gradient of the
 * logits are computed in place, so memory is chunk x vocabulary and each logit is computed once;
 * twice if the losses need the log-probs of whole sequences first. Rows without gradient are left
 * out of the backward products.
 *
 * May touch: the batch's head buffers, dh, gradient blocks. Must not: know what a loss is.
 */
#include <assert.h>
#include <string.h>
#include "cpu/microbatch.h"

enum { MOST_ROWS = 1024, MOST_SEGMENTS = 64 };

typedef struct chunk {
    tke_batch *u;
    size_t begin, n;                     /* rows of the batch */
    size_t n_active;                     /* rows with gradient, moved to the front */
    size_t source[MOST_ROWS];            /* their rows in the chunk */
    tke_segment segments[MOST_SEGMENTS]; /* overlapping the chunk, rows counted in it */
    size_t n_segments;
} chunk;

static const int32_t *targets_of(const chunk *c, size_t i)
{
    const tke_microbatch *job = c->u->job;
    return job->targets + (c->begin + i) * job->size.max_k;
}

/* Log-probs of the targets; 0 where there is none. */
static void chunk_logprobs(chunk *c)
{
    tke_batch *u = c->u;
    size_t vocab = u->rows.model->config.vocab, max_k = u->job->size.max_k;
    for (size_t i = 0; i < c->n; i++) {
        const tke_real *z = u->logits.z + i * vocab;
        const int32_t *t = targets_of(c, i);
        tke_real log_sum = tke_real_log(u->logits.sum[i]), *lp = u->lp + i * max_k;
        for (size_t j = 0; j < max_k; j++)
            lp[j] = t[j] >= 0 ? (z[t[j]] - u->logits.max[i]) - log_sum : 0;
    }
}

/* Rows with gradient move to the front. */
static void chunk_compact(chunk *c)
{
    tke_batch *u = c->u;
    size_t vocab = u->rows.model->config.vocab, k = u->job->size.max_k;
    c->n_active = 0;
    for (size_t i = 0; i < c->n; i++) {
        size_t at = c->n_active;
        bool any = false;
        tke_real sum = 0;
        for (size_t j = 0; j < k; j++) {
            any = any || u->g[i * k + j] != 0;
            sum += u->g[i * k + j];
        }
        if (!any)
            continue;
        if (at != i) {
            memcpy(u->logits.z + at * vocab, u->logits.z + i * vocab, vocab * sizeof(tke_real));
            memcpy(u->g + at * k, u->g + i * k, k * sizeof *u->g);
        }
        u->lse[at] = u->lse[i];
        u->scale[at] = -sum;
        c->source[at] = i;
        c->n_active++;
    }
}

/* dz = -(sum g) p, plus g at the targets. */
static void chunk_dz(chunk *c)
{
    tke_batch *u = c->u;
    size_t vocab = u->rows.model->config.vocab, k = u->job->size.max_k;
    tke_softmax_scaled(u->rows.cpu, (int64_t)c->n_active, (int64_t)vocab, u->logits.z,
                       (int64_t)vocab, u->lse, u->scale);
    for (size_t a = 0; a < c->n_active; a++) {
        const int32_t *t = targets_of(c, c->source[a]);
        for (size_t j = 0; j < k; j++)
            if (t[j] >= 0)
                u->logits.z[a * vocab + (size_t)t[j]] += u->g[a * k + j];
    }
}

/* Segments of the batch cut to the chunk. */
static void chunk_segments(chunk *c)
{
    const tke_rows *r = &c->u->rows;
    c->n_segments = 0;
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_segment *from = &r->segments[s];
        if (from->end <= c->begin || from->begin >= c->begin + c->n)
            continue;
        size_t begin = from->begin > c->begin ? from->begin - c->begin : 0;
        size_t end = from->end - c->begin < c->n ? from->end - c->begin : c->n;
        assert(c->n_segments < MOST_SEGMENTS && begin < end);
        c->segments[c->n_segments++] = (tke_segment){ begin, end, from->lora, from->grads };
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

static tke_rows chunk_rows(const chunk *c, size_t n)
{
    tke_rows rows = c->u->rows;
    rows.n = n;
    rows.segments = c->segments;
    rows.n_segments = c->n_segments;
    return rows;
}

static void chunk_forward(chunk *c)
{
    tke_batch *u = c->u;
    tke_rows rows = chunk_rows(c, c->n);
    tke_rows_logits(&rows, u->h + c->begin * u->rows.model->config.hidden, &u->logits);
    tke_lse_finish((int64_t)c->n, u->logits.max, u->logits.sum, u->lse);
    chunk_logprobs(c);
}

static void chunk_backward(chunk *c)
{
    tke_batch *u = c->u;
    const tke_model *m = u->rows.model;
    size_t width = m->config.hidden, rank = u->rows.max_rank;
    bool below = u->job->size.depth == TKE_DEPTH_ALL;
    const tke_real *dz = u->logits.z;
    tke_real *hf = u->logits.hf;
    for (size_t a = 0; a < c->n_active; a++) {
        memcpy(u->hc + a * width, hf + c->source[a] * width, width * sizeof *hf);
        if (rank)
            memcpy(u->low_c + a * rank, u->logits.low + c->source[a] * rank, rank * sizeof *hf);
    }
    active_segments(c);
    tke_rows rows = chunk_rows(c, c->n_active);
    tke_group_backward(&rows, &m->head, u->hc, &dz, u->low_c, u->dlow_head, below ? hf : NULL);
    if (!below)
        return;
    memset(u->dhf, 0, c->n * width * sizeof *u->dhf);
    for (size_t a = 0; a < c->n_active; a++)
        memcpy(u->dhf + c->source[a] * width, hf + a * width, width * sizeof *hf);
    tke_rows_norm_backward(&rows, c->n, u->h + c->begin * width, m->norm, u->dhf,
                           u->dh + c->begin * width, false);
}

/* Rows of a chunk: at most u->chunk, and no more segments than fit. */
static size_t chunk_length(const tke_batch *u, size_t begin)
{
    size_t end = begin + u->chunk < u->rows.n ? begin + u->chunk : u->rows.n, seen = 0;
    for (size_t s = 0; s < u->rows.n_segments; s++) {
        if (u->rows.segments[s].end <= begin)
            continue;
        if (++seen == MOST_SEGMENTS && u->rows.segments[s].end < end)
            end = u->rows.segments[s].end;
    }
    return end - begin;
}

static void run_chunk(chunk *c, bool only_logprobs)
{
    tke_batch *u = c->u;
    const tke_microbatch *job = u->job;
    size_t width = u->rows.model->config.hidden;
    chunk_segments(c);
    chunk_forward(c);
    job->losses(job->user, c->begin, c->n, u->lp, only_logprobs ? NULL : u->g);
    if (only_logprobs || job->size.depth == TKE_DEPTH_NONE)
        return;
    chunk_compact(c);
    if (c->n_active) {
        chunk_dz(c);
        chunk_backward(c);
    } else if (job->size.depth == TKE_DEPTH_ALL) {
        memset(u->dh + c->begin * width, 0, c->n * width * sizeof *u->dh);
    }
}

bool tke_batch_head(tke_batch *u)
{
    chunk c = { .u = u };
    for (int sweep = u->job->sweep ? 0 : 1; sweep < 2; sweep++)
        for (c.begin = 0; c.begin < u->rows.n; c.begin += c.n) {
            if (tke_batch_stopped(u))
                return false;
            c.n = chunk_length(u, c.begin);
            assert(c.n > 0 && c.n <= u->chunk && c.n <= MOST_ROWS);
            run_chunk(&c, sweep == 0);
        }
    return true;
}
