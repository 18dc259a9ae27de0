/* decode_step.c - the arithmetic of one iteration: rows of many sequences through the model, logits,
 * draws.
 *
 * May touch: the engine's work space, the cache, results of sequences in the batch. Must not:
 * decide what runs.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "infer/infer_state.h"

enum { ALIGN = 64, PAD = 16, CHUNK_MAX = 128, CHUNK_MIN = 8, CHUNK_REALS = 8 << 20 };

/* ---- work space ---- */

typedef struct walk {
    tke_real *at;
    size_t used;
} walk;

static void take(walk *w, tke_real **out, size_t count)
{
    if (w->at)
        *out = w->at + w->used;
    w->used += (count + PAD - 1) / PAD * PAD;
}

static size_t walk_buffers(tke_infer *e, tke_real *block)
{
    const tke_config *c = tke_model_config(e->model);
    walk w = { .at = block };
    assert(e->max_rows > 0 && e->chunk > 0 && e->chunk <= CHUNK_MAX);
    size_t n = e->max_rows, qd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    take(&w, &e->h, n * c->hidden);
    take(&w, &e->acts.a, n * c->hidden);
    take(&w, &e->acts.b, n * c->hidden);
    take(&w, &e->acts.h_mid, n * c->hidden);
    take(&w, &e->acts.q, n * qd);
    take(&w, &e->acts.k, n * kd);
    take(&w, &e->acts.v, n * kd);
    take(&w, &e->acts.q_pre, c->qk_norm ? n * qd : 1);
    take(&w, &e->acts.k_pre, c->qk_norm ? n * kd : 1);
    take(&w, &e->acts.o, n * qd);
    take(&w, &e->acts.g, n * c->inner);
    take(&w, &e->acts.u, n * c->inner);
    take(&w, &e->acts.m, n * c->inner);
    take(&w, &e->hf, e->chunk * c->hidden);
    take(&w, &e->z, e->chunk * c->vocab);
    take(&w, &e->max, e->chunk);
    take(&w, &e->sum, e->chunk);
    return w.used;
}

static bool make_tables(tke_infer *e, tinkc_error *err)
{
    size_t n = e->max_rows, m = e->o.max_running;
    e->entries = tkc_alloc(NULL, m * sizeof *e->entries, err);
    e->segments = tkc_alloc(NULL, m * sizeof *e->segments, err);
    e->kv_seqs = tkc_alloc(NULL, m * sizeof *e->kv_seqs, err);
    e->wants = tkc_alloc(NULL, n * sizeof *e->wants, err);
    e->ids = tkc_alloc(NULL, n * sizeof *e->ids, err);
    e->positions = tkc_alloc(NULL, n * sizeof *e->positions, err);
    size_t workers = (size_t)tke_threads_count(tke_cpu_threads(e->o.cpu));
    e->spaces = tkc_zalloc(NULL, workers * sizeof *e->spaces, err);
    e->n_spaces = e->spaces ? workers : 0;
    for (size_t i = 0; i < e->n_spaces; i++)
        if (!tke_sample_space_init(&e->spaces[i], tke_model_config(e->model)->vocab, err))
            return false;
    return !tkc_failed(err);
}

bool tke_step_init(tke_infer *e, tinkc_error *err)
{
    size_t vocab = tke_model_config(e->model)->vocab;
    e->max_rows = e->o.max_running + e->o.prefill_chunk;
    if (e->o.max_rows && e->max_rows > e->o.max_rows)
        e->max_rows = e->o.max_rows;
    e->chunk = CHUNK_REALS / vocab;
    if (e->chunk > CHUNK_MAX)
        e->chunk = CHUNK_MAX;
    if (e->chunk < CHUNK_MIN)
        e->chunk = CHUNK_MIN;
    if (e->chunk > e->max_rows)
        e->chunk = e->max_rows;
    if (!make_tables(e, err))
        return false;
    e->block_bytes = walk_buffers(e, NULL) * sizeof *e->block;
    e->block = tkc_alloc_pages(e->block_bytes, err);
    if (e->block)
        walk_buffers(e, e->block);
    return e->block != NULL;
}

void tke_step_free(tke_infer *e)
{
    size_t n = e->max_rows, m = e->o.max_running;
    for (size_t i = 0; i < e->n_spaces; i++)
        tke_sample_space_free(&e->spaces[i]);
    tkc_release(NULL, e->spaces, e->n_spaces * sizeof *e->spaces);
    tkc_release(NULL, e->entries, m * sizeof *e->entries);
    tkc_release(NULL, e->segments, m * sizeof *e->segments);
    tkc_release(NULL, e->kv_seqs, m * sizeof *e->kv_seqs);
    tkc_release(NULL, e->wants, n * sizeof *e->wants);
    tkc_release(NULL, e->ids, n * sizeof *e->ids);
    tkc_release(NULL, e->positions, n * sizeof *e->positions);
    tkc_release_pages(e->block, e->block_bytes);
    tkc_release_aligned(e->low);
}

/* Buffers of the adapters grow with the largest rank seen. */
static bool reserve_rank(tke_infer *e, size_t rank, tinkc_error *err)
{
    if (rank <= e->max_rank)
        return true;
    size_t per_row = 0;
    for (int g = 0; g < TKE_GROUPS; g++)
        per_row += tke_group_size(g);
    tke_real *low =
        tkc_alloc_aligned(ALIGN, (e->max_rows * per_row + e->chunk) * rank * sizeof *low, err);
    if (!low)
        return false;
    tkc_release_aligned(e->low);
    e->low = low;
    for (int g = 0; g < TKE_GROUPS; g++) {
        e->acts.low[g] = low;
        low += e->max_rows * tke_group_size(g) * rank;
    }
    e->low_head = low;
    assert(e->low_head + e->chunk * rank == e->low + (e->max_rows * per_row + e->chunk) * rank);
    e->max_rank = rank;
    return true;
}

/* ---- the batch ---- */

static const tke_lora *lora_of(const tke_entry *entry)
{
    const tke_snapshot *s = entry->seq->gen->r.snapshot;
    return s ? tke_snapshot_lora(s) : NULL;
}

static bool make_rows(tke_infer *e, tke_rows *rows, tinkc_error *err)
{
    size_t n = 0, rank = 0, longest = 0, n_segments = 0;
    for (size_t i = 0; i < e->n_entries; i++) {
        const tke_entry *x = &e->entries[i];
        const tke_lora *lora = lora_of(x);
        assert(x->row == n && x->first_pos + x->n_rows <= tke_seq_length(x->seq));
        assert(x->first_pos + x->n_rows <= x->seq->n_blocks * TKE_BLOCK_TOKENS);
        for (size_t k = 0; k < x->n_rows; k++, n++) {
            e->ids[n] = tke_seq_token(x->seq, x->first_pos + k);
            e->positions[n] = (int32_t)(x->first_pos + k);
        }
        longest = x->first_pos + x->n_rows > longest ? x->first_pos + x->n_rows : longest;
        if (lora && lora->layout->rank > rank)
            rank = lora->layout->rank;
        e->kv_seqs[i] = (tke_kv_seq){ (int64_t)x->row, (int64_t)x->n_rows, (int64_t)x->first_pos,
                                      x->seq->blocks };
        if (n_segments && e->segments[n_segments - 1].lora == lora)
            e->segments[n_segments - 1].end = n;
        else
            e->segments[n_segments++] = (tke_segment){ x->row, n, lora };
    }
    assert(n <= e->max_rows && n_segments <= e->o.max_running);
    if (!reserve_rank(e, rank, err) ||
        !tke_rope_table_grow(&e->rope, tke_model_config(e->model), longest, err))
        return false;
    *rows = (tke_rows){ .cpu = e->o.cpu,
                        .model = e->model,
                        .n = n,
                        .positions = e->positions,
                        .segments = e->segments,
                        .n_segments = n_segments,
                        .max_rank = e->max_rank,
                        .cos_table = e->rope.cos_table,
                        .sin_table = e->rope.sin_table };
    return true;
}

static void run_layers(tke_infer *e, const tke_rows *rows)
{
    const tke_config *c = tke_model_config(e->model);
    tke_embed(e->o.cpu, (int64_t)rows->n, (int64_t)c->hidden, e->ids, tke_model_embed(e->model)->m,
              e->h);
    for (size_t l = 0; l < c->n_layers; l++) {
        tke_attention shape = tke_block_attention(e->model, l);
        tke_kv_cache cache = tke_kv_layer(&e->kv, e->model, l);
        tke_block_before_attention(rows, l, e->h, &e->acts);
        tke_kv_store(e->o.cpu, &shape, &cache, (int64_t)e->n_entries, e->kv_seqs, e->acts.k,
                     e->acts.v);
        tke_attention_cached(e->o.cpu, &shape, &cache, (int64_t)e->n_entries, e->kv_seqs, e->acts.q,
                             e->acts.o);
        tke_block_after_attention(rows, l, e->h, &e->acts, e->h);
    }
}

/* ---- logits ---- */

static void find_wants(tke_infer *e)
{
    e->n_wants = 0;
    for (size_t i = 0; i < e->n_entries; i++) {
        const tke_entry *x = &e->entries[i];
        const tke_gen *g = x->seq->gen;
        size_t end = x->first_pos + x->n_rows;
        for (size_t p = x->first_pos; p < end; p++) {
            tke_want w = { .entry = x, .row = x->row + p - x->first_pos, .pos = p };
            w.prompt = g->prompt_logprobs && p + 1 < g->r.n_prompt && p + 1 >= g->n_prompt_logprobs;
            w.sample = p + 1 == tke_seq_length(x->seq) && g->r.max_tokens > 0;
            assert(e->n_wants < e->max_rows);
            if (w.prompt || w.sample)
                e->wants[e->n_wants++] = w;
        }
    }
}

static void draw_one(const tke_infer *e, tke_seq *s, const float *z, tke_norm norm,
                     tke_sample_space *space)
{
    tinkc_error err = { 0 };
    const tke_gen_request *r = &s->gen->r;
    s->bad =
        !tke_sample_draw(z, tke_model_config(e->model)->vocab, norm, &r->rule, r->seed, s->sample,
                         (uint32_t)s->n, space, &s->next_token, &s->next_logprob, &err);
    if (s->next_topk && !s->bad)
        tke_top_k(z, tke_model_config(e->model)->vocab, norm, r->topk_sample_logprobs, s->next_topk,
                  s->next_topk_logprobs);
}

typedef struct draw_job {
    tke_infer *e;
    const tke_want *wants; /* of this chunk */
} draw_job;

/* One row of a chunk: touches only what belongs to its sequence (or, before the fork, its
 * request). */
static void draw_task(void *arg, int64_t task, int32_t worker)
{
    const draw_job *job = arg;
    tke_infer *e = job->e;
    const tke_want *w = &job->wants[task];
    size_t vocab = tke_model_config(e->model)->vocab;
    const float *z = e->z + (size_t)task * vocab;
    tke_seq *s = w->entry->seq;
    tke_gen *g = s->gen;
    tke_norm norm = { e->max[task], logf(e->sum[task]) };
    if (w->prompt) {
        size_t k = g->r.topk_prompt_logprobs, at = w->pos + 1;
        assert(at < g->r.n_prompt);
        g->prompt_logprobs[at] = tke_log_prob(z[g->r.prompt[at]], norm);
        if (k)
            tke_top_k(z, vocab, norm, k, g->topk_tokens + at * k, g->topk_logprobs + at * k);
    }
    if (!w->sample)
        return;
    assert((size_t)worker < e->n_spaces);
    if (g->forked)
        draw_one(e, s, z, norm, &e->spaces[worker]);
    for (size_t i = 0; !g->forked && i < g->r.n_samples; i++)
        draw_one(e, &g->seqs[i], z, norm, &e->spaces[worker]);
}

/* The segments of the rows that a chunk gathers. */
static size_t gather(tke_infer *e, const tke_want *wants, size_t n, tke_segment *segments)
{
    size_t width = tke_model_config(e->model)->hidden, n_segments = 0;
    for (size_t i = 0; i < n; i++) {
        const tke_lora *lora = lora_of(wants[i].entry);
        memcpy(e->acts.a + i * width, e->h + wants[i].row * width, width * sizeof *e->h);
        if (n_segments && segments[n_segments - 1].lora == lora)
            segments[n_segments - 1].end = i + 1;
        else
            segments[n_segments++] = (tke_segment){ i, i + 1, lora };
    }
    return n_segments;
}

static void run_chunk(tke_infer *e, const tke_want *wants, size_t n)
{
    const tke_config *c = tke_model_config(e->model);
    tke_segment segments[CHUNK_MAX];
    assert(n > 0 && n <= CHUNK_MAX);
    int64_t rows_n = (int64_t)n, width = (int64_t)c->hidden, vocab = (int64_t)c->vocab;
    tke_rows rows = {
        .cpu = e->o.cpu, .model = e->model, .n = n, .segments = segments, .max_rank = e->max_rank
    };
    rows.n_segments = gather(e, wants, n, segments);
    tke_rmsnorm(e->o.cpu, rows_n, width, e->acts.a,
                tke_matrix_real(tke_model_norm(e->model), width), (tke_real)c->rms_eps, e->hf);
    tke_group_forward(&rows, tke_model_head(e->model), 1, tke_head_group(e->model), e->hf, &e->z,
                      e->low_head);
    tke_lse_start(rows_n, e->max, e->sum);
    tke_lse_update(e->o.cpu, rows_n, vocab, e->z, vocab, e->max, e->sum);
    draw_job job = { e, wants };
    tke_threads_run(tke_cpu_threads(e->o.cpu), rows_n, draw_task, &job);
}

/* Prompt positions are computed in order: the count moves to the last one filled. */
static void count_prompt_logprobs(tke_infer *e)
{
    for (size_t i = 0; i < e->n_wants; i++) {
        tke_gen *g = e->wants[i].entry->seq->gen;
        if (e->wants[i].prompt && e->wants[i].pos + 2 > g->n_prompt_logprobs)
            g->n_prompt_logprobs = e->wants[i].pos + 2;
    }
}

bool tke_step_run(tke_infer *e, tinkc_error *err)
{
    tke_rows rows;
    if (!make_rows(e, &rows, err))
        return false;
    run_layers(e, &rows);
    find_wants(e);
    for (size_t i = 0; i < e->n_wants; i += e->chunk)
        run_chunk(e, e->wants + i, e->n_wants - i < e->chunk ? e->n_wants - i : e->chunk);
    count_prompt_logprobs(e);
    return true;
}
