/* step_lists.c - describes one step to the device: rows, adapters, blocks, and what to compute from
 * which logits.
 *
 * May touch: the lists of the step, results of sequences in the batch. Must not: decide what runs,
 * or compute.
 */
#include <assert.h>
#include "infer/infer_state.h"

bool tke_step_init(tke_infer *e, tinkc_error *err)
{
    size_t m = e->o.max_running;
    e->max_rows = m + e->o.prefill_chunk;
    if (e->o.max_rows && e->max_rows > e->o.max_rows)
        e->max_rows = e->o.max_rows;
    e->entries = tkc_alloc(NULL, m * sizeof *e->entries, err);
    e->segments = tkc_alloc(NULL, m * sizeof *e->segments, err);
    e->seqs = tkc_alloc(NULL, m * sizeof *e->seqs, err);
    e->wants = tkc_alloc(NULL, e->max_rows * sizeof *e->wants, err);
    e->ids = tkc_alloc(NULL, e->max_rows * sizeof *e->ids, err);
    e->positions = tkc_alloc(NULL, e->max_rows * sizeof *e->positions, err);
    return !tkc_failed(err);
}

void tke_step_free(tke_infer *e)
{
    size_t n = e->max_rows, m = e->o.max_running;
    tkc_release(NULL, e->entries, m * sizeof *e->entries);
    tkc_release(NULL, e->segments, m * sizeof *e->segments);
    tkc_release(NULL, e->seqs, m * sizeof *e->seqs);
    tkc_release(NULL, e->wants, n * sizeof *e->wants);
    tkc_release(NULL, e->ids, n * sizeof *e->ids);
    tkc_release(NULL, e->positions, n * sizeof *e->positions);
    tkc_release(NULL, e->scores, e->cap_scores * sizeof *e->scores);
    tkc_release(NULL, e->tops, e->cap_tops * sizeof *e->tops);
    tkc_release(NULL, e->draws, e->cap_draws * sizeof *e->draws);
}

/* ---- rows ---- */

static void add_rows(tke_infer *e, size_t i)
{
    const tke_entry *x = &e->entries[i];
    const tke_snapshot *snapshot = x->seq->gen->r.snapshot;
    const tke_lora *lora = snapshot ? tke_snapshot_lora(snapshot) : NULL;
    tke_step *p = &e->step;
    size_t n = p->n_segments;
    assert(x->row == p->n && x->first_pos + x->n_rows <= tke_seq_length(x->seq));
    assert(x->first_pos + x->n_rows <= x->seq->n_blocks * TKE_BLOCK_TOKENS);
    for (size_t k = 0; k < x->n_rows; k++, p->n++) {
        e->ids[p->n] = tke_seq_token(x->seq, x->first_pos + k);
        e->positions[p->n] = (int32_t)(x->first_pos + k);
    }
    if (lora && lora->layout->rank > p->max_rank)
        p->max_rank = lora->layout->rank;
    e->seqs[p->n_seqs++] =
        (tke_step_seq){ x->row, x->n_rows, x->first_pos, x->seq->blocks, x->seq->slot };
    if (n && e->segments[n - 1].lora == lora)
        e->segments[n - 1].end = p->n;
    else
        e->segments[p->n_segments++] = (tke_segment){ x->row, p->n, lora, NULL };
}

/* ---- lists ---- */

static bool add_score(tke_infer *e, const tke_score *s, tinkc_error *err)
{
    size_t n = e->step.n_scores;
    tke_score *grown = tkc_grow(NULL, e->scores, &e->cap_scores, n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    e->scores = grown;
    e->scores[e->step.n_scores++] = *s;
    return true;
}

static bool add_top(tke_infer *e, const tke_top *t, tinkc_error *err)
{
    size_t n = e->step.n_tops;
    tke_top *grown = tkc_grow(NULL, e->tops, &e->cap_tops, n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    e->tops = grown;
    e->tops[e->step.n_tops++] = *t;
    return true;
}

static bool add_draw(tke_infer *e, const tke_draw *d, tinkc_error *err)
{
    size_t n = e->step.n_draws;
    tke_draw *grown = tkc_grow(NULL, e->draws, &e->cap_draws, n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    e->draws = grown;
    e->draws[e->step.n_draws++] = *d;
    return true;
}

/* The next token of a sequence, and the likeliest beside it. */
static bool add_next(tke_infer *e, tke_seq *s, size_t want, tinkc_error *err)
{
    const tke_gen_request *r = &s->gen->r;
    tke_draw draw = { .want = want,
                      .rule = &r->rule,
                      .seed = r->seed,
                      .sample = s->sample,
                      .position = (uint32_t)s->n,
                      .token = &s->next_token,
                      .logprob = &s->next_logprob,
                      .bad = &s->bad,
                      .allowed = s->allowed,
                      .biases = s->biases,
                      .n_biases = s->n_biases };
    tke_top top = { want, r->topk_sample_logprobs, s->next_topk, s->next_topk_logprobs };
    return add_draw(e, &draw, err) && (!s->next_topk || add_top(e, &top, err));
}

/* The log-prob of the prompt token at position `at`, and the likeliest there. */
static bool add_prompt_scores(tke_infer *e, tke_gen *g, size_t at, size_t want, tinkc_error *err)
{
    size_t k = g->r.topk_prompt_logprobs;
    tke_score score = { want, g->r.prompt[at], &g->prompt_logprobs[at] };
    tke_top top = { want, k, g->topk_tokens + at * k, g->topk_logprobs + at * k };
    if (at < g->first_logprob)
        return true;
    return add_score(e, &score, err) && (!k || add_top(e, &top, err));
}

/* The request's own ids at that position, and tokens drawn in place of the prompt's. */
static bool add_prompt_others(tke_infer *e, tke_gen *g, size_t at, size_t want, tinkc_error *err)
{
    const uint32_t not_a_sample = UINT32_C(1) << 31; /* samples are numbered from 0 */
    size_t first = (at - 1) * g->r.n_targets;
    for (size_t i = first; i < first + g->r.n_targets; i++) {
        tke_score score = { want, g->r.target_tokens[i], &g->target_logprobs[i] };
        if (score.token >= 0 && !add_score(e, &score, err))
            return false;
    }
    first = (at - 1) * g->r.n_alternatives;
    for (size_t i = 0; i < g->r.n_alternatives; i++) {
        tke_draw draw = { .want = want,
                          .rule = &g->alternative_rule,
                          .seed = g->r.seed,
                          .sample = not_a_sample | (uint32_t)i,
                          .position = (uint32_t)at,
                          .token = &g->alternatives[first + i],
                          .logprob = &g->alternative_logprobs[first + i],
                          .bad = &g->alternatives_bad[first + i] };
        if (!add_draw(e, &draw, err))
            return false;
    }
    return true;
}

/* What a position's logits are wanted for: the next prompt token, the next token of its sequence.
 * Before the fork a request's first sequence draws for all of them. */
static bool add_wants(tke_infer *e, const tke_entry *x, size_t pos, tinkc_error *err)
{
    tke_gen *g = x->seq->gen;
    bool prompt = g->prompt_logprobs && pos + 1 < g->r.n_prompt && pos + 1 >= g->n_scored;
    bool sample = pos + 1 == tke_seq_length(x->seq) && g->r.max_tokens > 0;
    size_t want = e->step.n_wants;
    if (!prompt && !sample)
        return true;
    assert(want < e->max_rows);
    e->wants[e->step.n_wants++] = x->row + pos - x->first_pos;
    if (prompt && (!add_prompt_scores(e, g, pos + 1, want, err) ||
                   !add_prompt_others(e, g, pos + 1, want, err)))
        return false;
    if (sample && g->forked)
        return add_next(e, x->seq, want, err);
    for (size_t i = 0; sample && i < g->r.n_samples; i++)
        if (!add_next(e, &g->seqs[i], want, err))
            return false;
    return true;
}

static bool make_step(tke_infer *e, tinkc_error *err)
{
    e->step = (tke_step){ 0 };
    for (size_t i = 0; i < e->n_entries; i++) {
        const tke_entry *x = &e->entries[i];
        add_rows(e, i);
        for (size_t p = x->first_pos; p < x->first_pos + x->n_rows; p++)
            if (!add_wants(e, x, p, err))
                return false;
    }
    assert(e->step.n <= e->max_rows && e->step.n_segments <= e->o.max_running);
    e->step.ids = e->ids;
    e->step.positions = e->positions;
    e->step.segments = e->segments;
    e->step.seqs = e->seqs;
    e->step.wants = e->wants;
    e->step.scores = e->scores;
    e->step.tops = e->tops;
    e->step.draws = e->draws;
    return true;
}

static bool any_bad(const tke_gen *g)
{
    for (size_t i = 0; i < (g->r.n_prompt - 1) * g->r.n_alternatives; i++)
        if (g->alternatives_bad[i])
            return true;
    return false;
}

/* Prompt positions are computed in order, so one count is enough. */
static void count_scored(tke_infer *e)
{
    for (size_t i = 0; i < e->n_entries; i++) {
        tke_gen *g = e->entries[i].seq->gen;
        size_t end = e->entries[i].first_pos + e->entries[i].n_rows + 1;
        end = end < g->r.n_prompt ? end : g->r.n_prompt;
        if (end <= g->n_scored)
            continue;
        g->n_scored = end;
        if (end == g->r.n_prompt && any_bad(g)) {
            tinkc_error err = { 0 };
            tkc_fail(&err, TINKC_E_SERVER, "the logits are not finite");
            tke_gen_finish(g, &err);
        }
    }
}

bool tke_step_go(tke_infer *e, tinkc_error *err)
{
    if (!make_step(e, err) || !e->ops->step_run(e->sampler, &e->step, err))
        return false;
    count_scored(e);
    return true;
}
