/* decode_step.c - sampling on the CPU: the paged cache's memory, rows of many sequences through the
 * model, logits, draws.
 *
 * The memory of all cache blocks is allocated at once; pages that are never written cost nothing.
 *
 * May touch: its work space and cache, the results that a step's lists point to. Must not: know of
 * requests or decide what runs.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "cpu/cpu_device.h"
#include "cpu/sampling.h"

enum { ALIGN = 64, CHUNK_MAX = 128, CHUNK_MIN = 8 };

struct tke_device_sampler {
    tke_device_cache cache;
    tke_cpu_model *model;
    tke_real *keys;      /* keys and values of all blocks */
    size_t stride;       /* numbers of a block: all layers, keys and values */
    size_t layer_stride; /* of one layer within a block */
    tke_rope_table rope;
    size_t max_rows, max_seqs, chunk, max_rank;
    tke_kv_seq *seqs;
    tke_real *block, *low; /* what the pointers below point into */
    size_t block_bytes;
    tke_real *h;
    tke_logits logits;
    tke_acts acts;
    tke_sample_space *spaces; /* one for each thread */
    size_t n_spaces;
};

/* ---- life ---- */

static size_t walk_buffers(tke_device_sampler *s, tke_real *block)
{
    const tke_config *c = &s->model->base.model->config;
    tke_walk w = { .at = block };
    size_t n = s->max_rows, qd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    tke_take(&w, &s->h, n * c->hidden);
    tke_take(&w, &s->acts.a, n * c->hidden);
    tke_take(&w, &s->acts.b, n * c->hidden);
    tke_take(&w, &s->acts.h_mid, n * c->hidden);
    tke_take(&w, &s->acts.q, n * qd);
    tke_take(&w, &s->acts.k, n * kd);
    tke_take(&w, &s->acts.v, n * kd);
    tke_take(&w, &s->acts.q_pre, c->qk_norm ? n * qd : 1);
    tke_take(&w, &s->acts.k_pre, c->qk_norm ? n * kd : 1);
    tke_take(&w, &s->acts.o, n * qd);
    tke_take(&w, &s->acts.g, n * c->inner);
    tke_take(&w, &s->acts.u, n * c->inner);
    tke_take(&w, &s->acts.m, n * c->inner);
    tke_take(&w, &s->logits.hf, s->chunk * c->hidden);
    tke_take(&w, &s->logits.z, s->chunk * c->vocab);
    tke_take(&w, &s->logits.max, s->chunk);
    tke_take(&w, &s->logits.sum, s->chunk);
    return w.used;
}

static bool make_cache(tke_device_sampler *s, size_t bytes, tinkc_error *err)
{
    const tke_config *c = &s->model->base.model->config;
    s->layer_stride = TKE_BLOCK_TOKENS * 2 * c->n_kv_heads * c->head_dim;
    s->stride = c->n_layers * s->layer_stride;
    s->cache.block_bytes = s->stride * sizeof *s->keys;
    s->cache.n_blocks = bytes / s->cache.block_bytes;
    if (s->cache.n_blocks < 2)
        s->cache.n_blocks = 2;
    if (s->cache.n_blocks > INT32_MAX / 2)
        s->cache.n_blocks = INT32_MAX / 2;
    s->keys = tkc_alloc_pages(s->cache.n_blocks * s->cache.block_bytes, err);
    return s->keys != NULL;
}

static bool make_spaces(tke_device_sampler *s, tinkc_error *err)
{
    size_t workers = (size_t)tke_threads_count(tke_cpu_threads(s->model->cpu));
    s->seqs = tkc_alloc(NULL, s->max_seqs * sizeof *s->seqs, err);
    s->spaces = tkc_zalloc(NULL, workers * sizeof *s->spaces, err);
    s->n_spaces = s->spaces ? workers : 0;
    for (size_t i = 0; i < s->n_spaces && !tkc_failed(err); i++)
        tke_sample_space_init(&s->spaces[i], s->model->base.model->config.vocab, err);
    return !tkc_failed(err);
}

tke_device_sampler *tke_cpu_sampler_new(tke_device_model *m, const tke_device_sampler_options *o,
                                        tinkc_error *err)
{
    tke_device_sampler *s = tkc_zalloc(NULL, sizeof *s, err);
    if (!s)
        return NULL;
    s->model = (tke_cpu_model *)m;
    s->max_rows = o->max_rows;
    s->max_seqs = o->max_seqs;
    s->chunk = tke_chunk_rows(m->model, CHUNK_MIN, CHUNK_MAX, s->max_rows);
    if (make_cache(s, o->cache_bytes, err) && make_spaces(s, err)) {
        s->block_bytes = walk_buffers(s, NULL) * sizeof *s->block;
        s->block = tkc_alloc_pages(s->block_bytes, err);
    }
    if (!s->block) {
        tke_cpu_sampler_free(s);
        return NULL;
    }
    walk_buffers(s, s->block);
    return s;
}

void tke_cpu_sampler_free(tke_device_sampler *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_spaces; i++)
        tke_sample_space_free(&s->spaces[i]);
    tkc_release(NULL, s->spaces, s->n_spaces * sizeof *s->spaces);
    tkc_release(NULL, s->seqs, s->max_seqs * sizeof *s->seqs);
    tkc_release_pages(s->block, s->block_bytes);
    tkc_release_aligned(s->low);
    tkc_release_pages(s->keys, s->cache.n_blocks * s->cache.block_bytes);
    tke_rope_table_free(&s->rope);
    tkc_release(NULL, s, sizeof *s);
}

const tke_device_cache *tke_cpu_sampler_cache(const tke_device_sampler *s)
{
    return &s->cache;
}

bool tke_cpu_cache_copy(tke_device_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    (void)err;
    assert(to != from && (size_t)to < s->cache.n_blocks && (size_t)from < s->cache.n_blocks);
    memcpy(s->keys + (size_t)to * s->stride, s->keys + (size_t)from * s->stride,
           s->cache.block_bytes);
    return true;
}

/* Buffers of the adapters grow with the largest rank seen. */
static bool reserve_rank(tke_device_sampler *s, size_t rank, tinkc_error *err)
{
    const tke_layer *l = &s->model->base.model->layers[0];
    size_t per_row = 0;
    if (rank <= s->max_rank)
        return true;
    for (size_t g = 0; g < l->n_groups; g++)
        per_row += l->groups[g].n;
    tke_real *low =
        tkc_alloc_aligned(ALIGN, (s->max_rows * per_row + s->chunk) * rank * sizeof *low, err);
    if (!low)
        return false;
    tkc_release_aligned(s->low);
    s->low = low;
    for (size_t g = 0; g < l->n_groups; g++) {
        s->acts.low[g] = low;
        low += s->max_rows * l->groups[g].n * rank;
    }
    s->logits.low = low;
    s->max_rank = rank;
    return true;
}

/* ---- layers ---- */

static bool make_rows(tke_device_sampler *s, const tke_step *step, tke_rows *rows, tinkc_error *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < step->n_seqs; i++) {
        const tke_step_seq *q = &step->seqs[i];
        size_t end = q->first_pos + q->n_rows;
        longest = end > longest ? end : longest;
        s->seqs[i] = (tke_kv_seq){ (int64_t)q->first_row, (int64_t)q->n_rows, (int64_t)q->first_pos,
                                   q->blocks };
    }
    if (!reserve_rank(s, step->max_rank, err) ||
        !tke_rope_table_grow(&s->rope, s->model->base.model, longest, err))
        return false;
    *rows = (tke_rows){ .cpu = s->model->cpu,
                        .model = s->model->base.model,
                        .n = step->n,
                        .positions = step->positions,
                        .segments = step->segments,
                        .n_segments = step->n_segments,
                        .max_rank = s->max_rank,
                        .cos_table = s->rope.cos_table,
                        .sin_table = s->rope.sin_table };
    return true;
}

/* One layer's view of the cache for the kernels. */
static tke_kv_cache layer_cache(const tke_device_sampler *s, size_t layer)
{
    tke_real *base = s->keys + layer * s->layer_stride;
    return (tke_kv_cache){ .k = base,
                           .v = base + s->layer_stride / 2,
                           .dtype = TKE_REAL,
                           .block_tokens = TKE_BLOCK_TOKENS,
                           .block_stride = (int64_t)s->stride };
}

static void run_layers(tke_device_sampler *s, const tke_step *step, const tke_rows *rows)
{
    const tke_config *c = &rows->model->config;
    int64_t n_seqs = (int64_t)step->n_seqs;
    tke_embed(rows->cpu, (int64_t)rows->n, (int64_t)c->hidden, step->ids, rows->model->embed.m,
              s->h);
    for (size_t l = 0; l < c->n_layers; l++) {
        tke_attention shape = tke_block_attention(rows->model, l);
        tke_kv_cache cache = layer_cache(s, l);
        tke_block_before_attention(rows, l, s->h, &s->acts);
        tke_kv_store(rows->cpu, &shape, &cache, n_seqs, s->seqs, s->acts.k, s->acts.v);
        tke_attention_cached(rows->cpu, &shape, &cache, n_seqs, s->seqs, s->acts.q, s->acts.o);
        tke_block_after_attention(rows, l, s->h, &s->acts, s->h);
    }
}

/* ---- logits ---- */

/* Wants first .. end - 1, whose logits are computed, and their list entries. */
typedef struct chunk {
    tke_device_sampler *s;
    const tke_step *step;
    size_t first, end;
    size_t score, top, draw; /* the next of each list */
    size_t n_scores, n_tops, n_draws;
} chunk;

/* How many entries of each list belong to the chunk: they are ordered by want. */
static void count_lists(chunk *c)
{
    const tke_step *p = c->step;
    c->score += c->n_scores;
    c->top += c->n_tops;
    c->draw += c->n_draws;
    c->n_scores = c->n_tops = c->n_draws = 0;
    while (c->score + c->n_scores < p->n_scores && p->scores[c->score + c->n_scores].want < c->end)
        c->n_scores++;
    while (c->top + c->n_tops < p->n_tops && p->tops[c->top + c->n_tops].want < c->end)
        c->n_tops++;
    while (c->draw + c->n_draws < p->n_draws && p->draws[c->draw + c->n_draws].want < c->end)
        c->n_draws++;
}

static const tke_real *logits_of(const chunk *c, size_t want, tke_norm *norm)
{
    size_t at = want - c->first;
    assert(want >= c->first && want < c->end);
    *norm = (tke_norm){ c->s->logits.max[at], tke_real_log(c->s->logits.sum[at]) };
    return c->s->logits.z + at * c->s->model->base.model->config.vocab;
}

/* One entry of the lists: touches only its own results. */
static void list_task(void *arg, int64_t task, int32_t worker)
{
    const chunk *c = arg;
    const tke_step *p = c->step;
    size_t i = (size_t)task, vocab = c->s->model->base.model->config.vocab;
    tke_norm norm;
    assert((size_t)worker < c->s->n_spaces);
    if (i < c->n_draws) {
        const tke_draw *d = &p->draws[c->draw + i];
        tinkc_error err = { 0 };
        const tke_real *z = logits_of(c, d->want, &norm);
        *d->bad =
            !tke_sample_draw(z, vocab, norm, d, &c->s->spaces[worker], d->token, d->logprob, &err);
    } else if (i - c->n_draws < c->n_tops) {
        const tke_top *t = &p->tops[c->top + i - c->n_draws];
        const tke_real *z = logits_of(c, t->want, &norm);
        tke_top_k(z, vocab, norm, t->k, t->tokens, t->logprobs);
    } else {
        const tke_score *t = &p->scores[c->score + i - c->n_draws - c->n_tops];
        const tke_real *z = logits_of(c, t->want, &norm);
        *t->logprob = (float)tke_log_prob(z[t->token], norm);
    }
}

/* Gathers the rows of a chunk and their segments. */
static size_t gather(const chunk *c, tke_segment *segments)
{
    const tke_step *p = c->step;
    tke_device_sampler *s = c->s;
    size_t width = s->model->base.model->config.hidden, n_segments = 0, at = 0;
    for (size_t i = 0; i < c->end - c->first; i++) {
        size_t row = p->wants[c->first + i];
        memcpy(s->acts.a + i * width, s->h + row * width, width * sizeof *s->h);
        while (row >= p->segments[at].end)
            at++;
        if (n_segments && segments[n_segments - 1].lora == p->segments[at].lora)
            segments[n_segments - 1].end = i + 1;
        else
            segments[n_segments++] = (tke_segment){ i, i + 1, p->segments[at].lora, NULL };
    }
    return n_segments;
}

static void run_chunk(chunk *c, const tke_rows *all)
{
    tke_segment segments[CHUNK_MAX];
    tke_rows rows = *all;
    assert(c->end > c->first && c->end - c->first <= CHUNK_MAX);
    rows.n = c->end - c->first;
    rows.segments = segments;
    rows.n_segments = gather(c, segments);
    tke_rows_logits(&rows, c->s->acts.a, &c->s->logits);
    count_lists(c);
    tke_threads_run(tke_cpu_threads(rows.cpu), (int64_t)(c->n_draws + c->n_tops + c->n_scores),
                    list_task, c);
}

bool tke_cpu_step_run(tke_device_sampler *s, const tke_step *step, tinkc_error *err)
{
    tke_rows rows;
    chunk c = { .s = s, .step = step };
    assert(step->n > 0 && step->n <= s->max_rows && step->n_seqs <= s->max_seqs);
    if (!make_rows(s, step, &rows, err))
        return false;
    run_layers(s, step, &rows);
    for (; c.first < step->n_wants; c.first = c.end) {
        c.end = step->n_wants - c.first < s->chunk ? step->n_wants : c.first + s->chunk;
        run_chunk(&c, &rows);
    }
    return true;
}
