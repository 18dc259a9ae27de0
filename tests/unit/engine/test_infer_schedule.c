/* test_infer_schedule.c - what the sampling engine asks of a device, step by step, on a device of the
 * test's own: its "keys and values" are hashes of the tokens before them, so a sequence that reads a
 * wrong block, position, adapter or seed draws other tokens than a plain loop over the request. */
#include <math.h>

#include "base/str.h"
#include "constrain/json_grammar.h"
#include "infer/infer_state.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"

enum { VOCAB = 130, CONTEXT = 256, BLOCK = TKE_BLOCK_TOKENS, MOST_BLOCKS = 4096, MOST_ROWS = 2048 };

/* ---- the device ---- */

static struct {
    tke_device_cache cache; /* a sampler begins with it */
    size_t max_rows, max_seqs;
    uint64_t content[MOST_BLOCKS][BLOCK];
    bool echo;             /* every draw repeats the row's own token */
    int32_t fail_at;       /* the token whose draw fails; -1 = none */
    size_t rows_of[VOCAB]; /* of the last step, by token */
    size_t n_rows, n_draws, n_copies;
    bool copies_fail;
    size_t slab_blocks;      /* of the next sampler; 0 = all memory is there */
    bool there[MOST_BLOCKS]; /* by slab */
    size_t n_there, budget;  /* blocks with memory, and how many more() allows */
    bool commits_fail;
} fake;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9E3779B97F4A7C15u + b + 1;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static int32_t drawn(uint64_t h, const tke_sample_rule *rule, uint64_t seed, uint32_t sample, uint32_t position)
{
    uint64_t x = mix(mix(h, seed), (uint64_t)sample << 32 | position);
    return (int32_t)(mix(x, (uint64_t)(rule->temperature * 64) + (uint64_t)rule->top_k) % 100);
}

static float scored(uint64_t h, int32_t token)
{
    return -(float)(mix(h, (uint64_t)token) % 4096) / 256;
}

static tke_device_sampler *sampler_new(tke_device_model *m, const tke_device_sampler_options *o, tinkc_error *err)
{
    (void)m, (void)err;
    fake.cache =
        (tke_device_cache){ .n_blocks = o->cache_bytes, .block_bytes = 1 << 20, .slab_blocks = fake.slab_blocks };
    memset(fake.there, 0, sizeof fake.there);
    fake.n_there = 0;
    fake.max_rows = o->max_rows;
    fake.max_seqs = o->max_seqs;
    assert_true(fake.cache.n_blocks <= MOST_BLOCKS && o->max_rows <= MOST_ROWS);
    memset(fake.content, 0, sizeof fake.content);
    return (tke_device_sampler *)&fake.cache;
}

static void sampler_free(tke_device_sampler *s)
{
    (void)s;
}

static const tke_device_cache *sampler_cache(const tke_device_sampler *s)
{
    (void)s;
    return &fake.cache;
}

static bool cache_copy(tke_device_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    (void)s;
    if (fake.copies_fail)
        return tkc_fail(err, TINKC_E_SERVER, "the card has failed");
    memcpy(fake.content[to], fake.content[from], sizeof fake.content[to]);
    fake.n_copies++;
    return true;
}

static size_t slab_size(size_t slab)
{
    size_t left = fake.cache.n_blocks - slab * fake.cache.slab_blocks;
    return left < fake.cache.slab_blocks ? left : fake.cache.slab_blocks;
}

static bool may_grow(void *user, size_t bytes)
{
    assert_ptr_equal(user, &fake);
    return fake.n_there + (bytes >> 20) <= fake.budget;
}

static bool cache_commit(tke_device_sampler *s, size_t slab, tinkc_error *err)
{
    (void)s;
    assert_false(fake.there[slab]);
    if (fake.commits_fail)
        return tkc_fail(err, TINKC_E_MEMORY, "the card is full");
    fake.there[slab] = true;
    fake.n_there += slab_size(slab);
    return true;
}

static void cache_release(tke_device_sampler *s, size_t slab)
{
    (void)s;
    assert_true(fake.there[slab]);
    fake.there[slab] = false;
    fake.n_there -= slab_size(slab);
    for (size_t i = 0; i < slab_size(slab); i++)
        memset(fake.content[slab * fake.cache.slab_blocks + i], 0xee, sizeof fake.content[0]);
}

static void check_segments(const tke_step *p)
{
    size_t row = 0, rank = 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        const tke_segment *s = &p->segments[i];
        assert_int_equal(s->begin, row);
        assert_true(s->end > s->begin);
        for (size_t k = 0; k < i; k++) /* rows of one adapter stand together */
            assert_true(p->segments[k].lora != s->lora);
        assert_null(s->grads);
        if (s->lora && s->lora->layout->rank > rank)
            rank = s->lora->layout->rank;
        row = s->end;
    }
    assert_int_equal(row, p->n);
    assert_int_equal(p->max_rank, rank);
}

/* Computes the rows of a step, each from the position before it in the cache. */
static void run_rows(const tke_step *p, uint64_t *h)
{
    size_t row = 0, segment = 0;
    for (size_t i = 0; i < p->n_seqs; i++) {
        const tke_step_seq *q = &p->seqs[i];
        assert_int_equal(q->first_row, row);
        assert_true(q->n_rows > 0);
        for (size_t k = 0; k < q->n_rows; k++, row++) {
            size_t pos = q->first_pos + k;
            while (row >= p->segments[segment].end)
                segment++;
            const tke_lora *lora = p->segments[segment].lora;
            assert_int_equal(p->positions[row], pos);
            assert_true(!fake.cache.slab_blocks || fake.there[(size_t)q->blocks[pos / BLOCK] / fake.cache.slab_blocks]);
            uint64_t before = pos ? fake.content[q->blocks[(pos - 1) / BLOCK]][(pos - 1) % BLOCK] : 0;
            h[row] = mix(before + (lora ? lora->layout->rank : 0), (uint64_t)p->ids[row]);
            fake.content[q->blocks[pos / BLOCK]][pos % BLOCK] = h[row];
            fake.rows_of[p->ids[row]]++;
        }
    }
    assert_int_equal(row, p->n);
}

static int32_t next_allowed(int32_t token, const uint32_t *allowed)
{
    for (int32_t i = 0; allowed && i < VOCAB; i++) {
        int32_t t = (token + i) % VOCAB;
        if (allowed[t / 32] >> t % 32 & 1)
            return t;
    }
    return token;
}

static bool step_run(tke_device_sampler *s, const tke_step *p, tinkc_error *err)
{
    uint64_t h[MOST_ROWS];
    (void)s, (void)err;
    assert_true(p->n > 0 && p->n <= fake.max_rows && p->n_seqs <= fake.max_seqs);
    memset(fake.rows_of, 0, sizeof fake.rows_of);
    fake.n_rows = p->n;
    fake.n_draws = p->n_draws;
    check_segments(p);
    run_rows(p, h);
    for (size_t i = 1; i < p->n_wants; i++)
        assert_true(p->wants[i - 1] < p->wants[i]);
    for (size_t i = 0; i < p->n_scores; i++) {
        assert_true(i == 0 || p->scores[i - 1].want <= p->scores[i].want);
        *p->scores[i].logprob = scored(h[p->wants[p->scores[i].want]], p->scores[i].token);
    }
    for (size_t i = 0; i < p->n_tops; i++) {
        const tke_top *t = &p->tops[i];
        assert_true(i == 0 || p->tops[i - 1].want <= t->want);
        for (size_t k = 0; k < t->k; k++) {
            t->tokens[k] = (int32_t)(mix(h[p->wants[t->want]], 1000 + k) % VOCAB);
            t->logprobs[k] = scored(h[p->wants[t->want]], t->tokens[k]);
        }
    }
    for (size_t i = 0; i < p->n_draws; i++) {
        const tke_draw *d = &p->draws[i];
        size_t row = p->wants[d->want];
        assert_true(i == 0 || p->draws[i - 1].want <= d->want);
        assert_true(d->rule->top_p > 0 && d->rule->top_p <= 1);
        *d->token = fake.echo ? p->ids[row] : drawn(h[row], d->rule, d->seed, d->sample, d->position);
        *d->token = next_allowed(*d->token, d->allowed);
        *d->logprob = scored(h[row], *d->token);
        *d->bad = *d->token == fake.fail_at;
    }
    return true;
}

static tke_device_ops ops = { .sampler_new = sampler_new,
                              .sampler_free = sampler_free,
                              .sampler_cache = sampler_cache,
                              .cache_copy = cache_copy,
                              .cache_commit = cache_commit,
                              .cache_release = cache_release,
                              .step_run = step_run };
static tke_device device = { .ops = &ops };
static tke_device_model loaded = { .device = &device };

/* ---- the world ---- */

static char *folder;
static tke_device *cpu;
static tke_snapshot *snapshots[2]; /* of rank 1 and 2 */

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .layers = 1, .vocab = VOCAB, .context = CONTEXT });
    loaded.model = tke_model_open(folder, &err);
    assert_string_equal(err.message, "");
    cpu = device_cpu(1);
    for (int32_t i = 0; i < 2; i++) {
        tke_adapter_spec spec = { .rank = i + 1, .train = TKE_TRAIN_MLP };
        tke_adapter *a = tke_adapter_new(cpu, loaded.model, &spec, &err);
        snapshots[i] = tke_snapshot_take(a, &err);
        tke_adapter_free(a);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        tke_snapshot_drop(snapshots[i]);
    tke_model_drop(loaded.model);
    tke_device_close(cpu);
    tiny_model_remove(folder);
    return 0;
}

static tke_infer *engine_of(size_t blocks, size_t chunk, size_t running, size_t rows)
{
    tinkc_error err = { 0 };
    fake.echo = false;
    fake.fail_at = -1;
    fake.n_copies = fake.n_rows = 0;
    fake.copies_fail = false;
    tke_infer *e = tke_infer_new(&loaded,
                                 &(tke_infer_options){ .kv_bytes = blocks,
                                                       .prefill_chunk = chunk,
                                                       .max_running = running,
                                                       .max_rows = rows,
                                                       .more = fake.slab_blocks ? may_grow : NULL,
                                                       .user = &fake },
                                 &err);
    assert_non_null(e);
    return e;
}

static tke_gen *add(tke_infer *e, const tke_gen_request *r)
{
    tinkc_error err = { 0 };
    tke_gen *g = tke_infer_add(e, r, &err);
    assert_string_equal(err.message, "");
    return g;
}

/* ---- what a request gives, computed by itself ---- */

static size_t letter(void *user, int32_t token, const char **bytes)
{
    static const char letters[] = "abcdefghij";
    (void)user;
    *bytes = &letters[token % 10];
    return (size_t)(token % 10 < 9); /* one in ten has no bytes */
}

static uint64_t chain(const tke_gen_request *r, uint64_t h, int32_t token)
{
    return mix(h + (r->snapshot ? tke_snapshot_lora(r->snapshot)->layout->rank : 0), (uint64_t)token);
}

static bool ends(const tke_gen_request *r, int32_t token, const char *text)
{
    bool stop = !r->never_stop && token == 1; /* the model's end */
    for (size_t i = 0; i < r->n_stop_tokens; i++)
        stop = stop || (!r->never_stop && r->stop_tokens[i] == token);
    for (size_t i = 0; i < r->n_stop_strings; i++)
        stop = stop || (r->stop_strings[i].len && strstr(text, r->stop_strings[i].data));
    return stop;
}

static void check_sample(const tke_gen *g, const tke_gen_request *r, uint32_t sample, uint64_t h)
{
    char text[CONTEXT + 1] = "";
    tke_sequence s = tke_gen_sequence(g, sample);
    size_t n = 0;
    bool stop = false;
    assert_true(s.done);
    while (n < r->max_tokens && !stop) {
        int32_t token = drawn(h, &r->rule, r->seed, sample, (uint32_t)n);
        const char *bytes;
        size_t len = letter(NULL, token, &bytes);
        assert_true(n < s.n);
        assert_int_equal(s.tokens[n], token);
        assert_true(s.logprobs[n] == scored(h, token));
        for (size_t k = 0; k < r->topk_sample_logprobs; k++) {
            int32_t top = (int32_t)(mix(h, 1000 + k) % VOCAB);
            assert_int_equal(s.topk_tokens[n * r->topk_sample_logprobs + k], top);
            assert_true(s.topk_logprobs[n * r->topk_sample_logprobs + k] == scored(h, top));
        }
        strncat(text, bytes, len);
        stop = ends(r, token, text);
        h = chain(r, h, token);
        n++;
    }
    assert_int_equal(s.n, n);
    assert_int_equal(s.stopped, stop);
}

static void check_prompt(const tke_gen *g, const tke_gen_request *r, size_t at, uint64_t h)
{
    size_t k = r->topk_prompt_logprobs, last = r->prompt_logprobs_last_n;
    size_t first = last && last < r->n_prompt ? r->n_prompt - last : 1;
    if (r->prompt_logprobs)
        assert_true(at < first ? isnan(tke_gen_prompt_logprobs(g)[at])
                               : tke_gen_prompt_logprobs(g)[at] == scored(h, r->prompt[at]));
    for (size_t i = 0; i < k; i++) {
        int32_t top = at < first ? 0 : (int32_t)(mix(h, 1000 + i) % VOCAB);
        assert_int_equal(tke_gen_topk_tokens(g)[at * k + i], top);
        assert_true(tke_gen_topk_logprobs(g)[at * k + i] == (at < first ? -99999.0f : scored(h, top)));
    }
    for (size_t i = 0; i < r->n_targets; i++) {
        size_t to = (at - 1) * r->n_targets + i;
        int32_t token = r->target_tokens[to];
        assert_true(tke_gen_target_logprobs(g)[to] == (token < 0 ? 0 : scored(h, token)));
    }
    for (size_t i = 0; i < r->n_alternatives; i++) {
        size_t to = (at - 1) * r->n_alternatives + i;
        tke_sample_rule rule = { .temperature = r->rule.temperature };
        int32_t token = drawn(h, &rule, r->seed, UINT32_C(1) << 31 | (uint32_t)i, (uint32_t)at);
        assert_int_equal(tke_gen_alternatives(g)[to], token);
        assert_true(tke_gen_alternative_logprobs(g)[to] == scored(h, token));
    }
}

static void check_result(const tke_gen *g, const tke_gen_request *r)
{
    uint64_t h = 0;
    assert_int_equal(tke_gen_error(g)->code, 0);
    assert_int_equal(tke_gen_n_samples(g), r->n_samples);
    assert_ptr_equal(tke_gen_user(g), r->user);
    for (size_t i = 0; i < r->n_prompt; i++) {
        if (i > 0)
            check_prompt(g, r, i, h);
        h = chain(r, h, r->prompt[i]);
    }
    for (uint32_t i = 0; i < r->n_samples; i++)
        check_sample(g, r, i, h);
    assert_int_equal(tke_gen_sequence(g, r->n_samples).n, 0);
    assert_false(tke_gen_sequence(g, r->n_samples).done);
    assert_int_equal(tke_gen_prompt_logprobs(g) != NULL,
                     r->prompt_logprobs || r->topk_prompt_logprobs || r->n_targets || r->n_alternatives);
    assert_int_equal(tke_gen_topk_tokens(g) != NULL, r->topk_prompt_logprobs > 0);
    assert_int_equal(tke_gen_topk_logprobs(g) != NULL, r->topk_prompt_logprobs > 0);
    assert_int_equal(tke_gen_target_logprobs(g) != NULL, r->n_targets > 0);
    assert_int_equal(tke_gen_alternatives(g) != NULL, r->n_alternatives > 0);
    assert_int_equal(tke_gen_alternative_logprobs(g) != NULL, r->n_alternatives > 0);
}

/* ---- any requests in any company ---- */

enum { JOBS = 12, LONGEST = 90 };

typedef struct job {
    tke_gen_request r;
    int32_t prompt[LONGEST], targets[LONGEST * 2], stops[2];
    tinkc_str strings[2];
    tke_gen *g; /* while it runs */
    bool cancelled;
} job;

static uint64_t dice(uint64_t *state, uint64_t n)
{
    return tiny_random(state) % n;
}

/* Prompts share beginnings, so that blocks are shared; some differ only in their last tokens. */
static void make_job(job *j, uint64_t *state)
{
    *j = (job){ .strings = { { "aa", 2 }, { "bcd", 3 } }, .stops = { 17, 55 } };
    size_t n = 1 + dice(state, LONGEST - 1), same = dice(state, n + 1);
    for (size_t i = 0; i < n; i++)
        j->prompt[i] = (int32_t)(i < same ? i % 7 : dice(state, VOCAB));
    for (size_t i = 0; i < LONGEST * 2; i++)
        j->targets[i] = (int32_t)dice(state, VOCAB + 1) - 1;
    uint64_t owner = dice(state, 3);
    j->r = (tke_gen_request){ .snapshot = owner ? snapshots[owner - 1] : NULL,
                              .prompt = j->prompt,
                              .n_prompt = n,
                              .n_samples = 1 + dice(state, 4),
                              .max_tokens = dice(state, 40),
                              .rule = { .temperature = (double)dice(state, 3), .top_p = 1, .top_k = 5 },
                              .seed = dice(state, 1000),
                              .never_stop = dice(state, 2),
                              .n_stop_tokens = dice(state, 3),
                              .stop_tokens = j->stops,
                              .n_stop_strings = dice(state, 3),
                              .stop_strings = j->strings,
                              .token_bytes = letter,
                              .prompt_logprobs = dice(state, 2),
                              .prompt_logprobs_last_n = dice(state, 30),
                              .topk_prompt_logprobs = dice(state, 3),
                              .target_tokens = j->targets,
                              .n_targets = dice(state, 3) * dice(state, 2),
                              .n_alternatives = dice(state, 3) * dice(state, 2),
                              .topk_sample_logprobs = dice(state, 3),
                              .tenant = dice(state, 3),
                              .user = j };
}

/* How many requests came before this one. */
static size_t place_of(const tke_infer *e, const tke_gen *g)
{
    size_t n = 0;
    for (const tke_gen *o = e->first; o != g; o = o->next)
        n++;
    return n;
}

static void check_books(const tke_infer *e)
{
    size_t held = 0;
    for (size_t i = 1; i < e->n_running; i++) { /* oldest first, samples of a request in order */
        const tke_seq *a = e->running[i - 1], *b = e->running[i];
        assert_true(a->gen == b->gen ? a->sample < b->sample : place_of(e, a->gen) < place_of(e, b->gen));
    }
    tke_infer_stats s = tke_infer_get_stats(e);
    for (size_t i = 0; i < e->kv.n_blocks; i++)
        held += e->kv.blocks[i].refs > 0;
    assert_int_equal(s.n_blocks, e->kv.n_blocks);
    assert_int_equal(s.n_free + s.n_cached + held, s.n_blocks);
    assert_true(!fake.slab_blocks || tke_infer_bytes(e) == fake.n_there << 20);
}

/* Someone else wants memory, or gives some back; a longest sequence always fits. */
static void change_budget(tke_infer *e, uint64_t *state)
{
    if (dice(state, 8))
        return;
    fake.budget = 12 + dice(state, 60);
    tke_infer_shrink(e, fake.budget << 20);
    assert_true(fake.n_there <= fake.budget);
}

static void run_jobs(uint64_t seed, size_t blocks, size_t chunk, size_t running, size_t rows)
{
    uint64_t state = seed;
    tke_infer *e = engine_of(blocks, chunk, running, rows);
    job *jobs = test_calloc(JOBS, sizeof *jobs);
    size_t done = 0, started = 0;
    for (int guard = 0; done < JOBS; guard++) {
        assert_true(guard < 20000);
        if (started < JOBS && dice(&state, 3) == 0) {
            job *j = &jobs[started++];
            make_job(j, &state);
            j->g = add(e, &j->r);
        }
        if (started && dice(&state, 30) == 0) {
            job *j = &jobs[dice(&state, started)];
            j->cancelled = j->g != NULL;
            if (j->g)
                tke_gen_cancel(j->g);
        }
        tke_infer_step(e);
        check_books(e);
        if (fake.slab_blocks)
            change_budget(e, &state);
        for (tke_gen *g; (g = tke_infer_next_done(e)); done++) {
            job *j = tke_gen_user(g);
            assert_ptr_equal(j->g, g);
            assert_true(tke_gen_done(g));
            if (tke_gen_error(g)->code)
                assert_true(j->cancelled && tke_gen_error(g)->code == TINKC_E_CANCELLED);
            else
                check_result(g, &j->r);
            j->g = NULL;
            if (dice(&state, 2))
                tke_gen_free(g);
        }
    }
    assert_int_equal(tke_infer_n_unfinished(e), 0);
    assert_false(tke_infer_step(e));
    tke_infer_stats s = tke_infer_get_stats(e);
    assert_true(s.n_running == 0 && s.n_waiting == 0 && s.n_free + s.n_cached == s.n_blocks);
    test_free(jobs);
    tke_infer_free(e);
}

TEST(a_result_does_not_depend_on_company)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        run_jobs(seed, 400, 512, 256, 0); /* room for all */
        run_jobs(seed, 14, 32, 8, 0);     /* hardly any: they preempt each other */
        run_jobs(seed, 30, 5, 3, 7);      /* few rows */
        run_jobs(seed, 20, 16, 1, 1);
    }
}

/* Nor does a result depend on memory that comes and goes meanwhile. */
TEST(a_result_does_not_depend_on_memory)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        fake.slab_blocks = 1 + seed % 4;
        fake.budget = 12;
        run_jobs(seed, 400, 512, 256, 0);
        run_jobs(seed, 14, 32, 8, 0);
        run_jobs(seed, 61, 5, 3, 7); /* the last slab is a short one */
    }
    fake.slab_blocks = 0;
}

/* What a request points to is copied: the caller's arrays may change at once. */
TEST(requests_are_copied)
{
    uint64_t dies = 77;
    tke_infer *e = engine_of(100, 16, 8, 0);
    job *j = test_malloc(2 * sizeof *j);
    make_job(j, &dies);
    char strings[2][4] = { "c", "bcd" };
    j->strings[0] = (tinkc_str){ strings[0], 1 };
    j->strings[1] = (tinkc_str){ strings[1], 3 };
    j->r.n_stop_strings = j->r.n_stop_tokens = j->r.n_targets = 2;
    j->r.max_tokens = 40;
    j->r.n_samples = 4;
    j->r.never_stop = false;
    j[1] = j[0];
    j[1].r.prompt = j[1].prompt;
    j[1].r.target_tokens = j[1].targets;
    j[1].r.stop_tokens = j[1].stops;
    j[1].strings[0] = (tinkc_str){ "c", 1 };
    j[1].strings[1] = (tinkc_str){ "bcd", 3 };
    j[1].r.stop_strings = j[1].strings;
    j[1].r.user = j[0].r.user;
    tke_gen *g = add(e, &j->r);
    memset(j->prompt, 0, sizeof j->prompt);
    memset(j->targets, 0, sizeof j->targets);
    memset(j->stops, 0, sizeof j->stops);
    memset(strings, 'x', sizeof strings);
    j->strings[0] = j->strings[1] = (tinkc_str){ "", 0 };
    while (tke_infer_step(e))
        ;
    check_result(g, &j[1].r);
    bool by_string = false;
    for (size_t i = 0; i < 4; i++) {
        tke_sequence s = tke_gen_sequence(g, i);
        by_string = by_string || (s.stopped && s.tokens[s.n - 1] % 10 == 2);
    }
    assert_true(by_string);
    tke_infer_free(e);
    test_free(j);
}

/* ---- what needs no step ---- */

static tke_device_sampler_options asked;

static tke_device_sampler *no_sampler(tke_device_model *m, const tke_device_sampler_options *o, tinkc_error *err)
{
    (void)m;
    asked = *o;
    tkc_fail(err, TINKC_E_MEMORY, "no sampler");
    return NULL;
}

TEST(a_sampler_has_defaults)
{
    tinkc_error err = { 0 };
    ops.sampler_new = no_sampler;
    assert_null(tke_infer_new(&loaded, &(tke_infer_options){ 0 }, &err));
    ops.sampler_new = sampler_new;
    assert_string_equal(err.message, "no sampler");
    assert_int_equal(asked.cache_bytes, (size_t)256 << 20);
    assert_int_equal(asked.max_rows, 512 + 256);
    assert_int_equal(asked.max_seqs, 256);
}

/* Nothing to draw and nothing to score: done without a row. */
TEST(nothing_to_compute)
{
    int32_t prompt[20] = { 3, 4, 5 };
    for (size_t n = 1; n < 4; n++)
        for (int scores = 0; scores < (n == 1 ? 2 : 1); scores++) {
            tke_infer *e = engine_of(10, 64, 16, 0);
            tke_gen *g = add(e, &(tke_gen_request){ .prompt = prompt,
                                                    .n_prompt = n,
                                                    .n_samples = 2,
                                                    .prompt_logprobs = scores,
                                                    .rule = { 1, 1, 0, 0 } });
            assert_false(tke_infer_step(e)); /* and nothing is left */
            assert_int_equal(fake.n_rows, 0);
            assert_true(tke_gen_done(g));
            assert_int_equal(tke_gen_error(g)->code, 0);
            tke_infer_free(e);
        }
}

/* Scores of a prompt are there when all of them are; where nothing is drawn, no draw is asked for. */
TEST(scores_when_complete)
{
    int32_t prompt[20] = { 3, 4, 5 };
    tke_gen_request r = { .prompt = prompt,
                          .n_prompt = 20,
                          .n_samples = 1,
                          .prompt_logprobs = true,
                          .topk_prompt_logprobs = 2,
                          .rule = { 1, 1, 0, 0 } };
    tke_infer *e = engine_of(10, 8, 16, 0);
    tke_gen *g = add(e, &r);
    for (int i = 0; i < 3; i++) {
        assert_null(tke_gen_prompt_logprobs(g));
        assert_null(tke_gen_topk_tokens(g));
        assert_null(tke_gen_topk_logprobs(g));
        assert_true(tke_infer_step(e));
        assert_int_equal(fake.n_draws, 0);
    }
    assert_true(tke_gen_done(g) && tke_gen_prompt_logprobs(g) && tke_gen_topk_logprobs(g));
    assert_null(tke_gen_target_logprobs(g)); /* what was not asked for */
    assert_null(tke_gen_alternatives(g));
    check_result(g, &r);
    r.prompt_logprobs = false;
    r.topk_prompt_logprobs = 0;
    r.max_tokens = 2;
    g = add(e, &r);
    while (tke_infer_step(e))
        ;
    assert_null(tke_gen_prompt_logprobs(g));
    tke_infer_free(e);
}

/* ---- prefixes ---- */

/* Without the cache of prefixes nothing is found, and nothing is kept when its sequence ends. */
TEST(without_the_prefix_cache_nothing_is_kept)
{
    tinkc_error err = { 0 };
    int32_t prompt[3 * BLOCK] = { 3, 4, 5 };
    tke_gen_request r = { .prompt = prompt,
                          .n_prompt = 3 * BLOCK,
                          .n_samples = 2,
                          .max_tokens = BLOCK,
                          .rule = { .temperature = 1, .top_p = 1 },
                          .never_stop = true };
    for (int without = 0; without < 2; without++) {
        tke_infer *e = tke_infer_new(&loaded, &(tke_infer_options){ .kv_bytes = 30, .no_prefix_cache = without }, &err);
        for (int i = 0; i < 2; i++) {
            tke_gen *g = add(e, &r);
            fake.echo = false;
            while (tke_infer_step(e))
                ;
            check_result(g, &r);
            assert_int_equal(tke_gen_cache_hits(g), i && !without ? 2 * BLOCK : 0);
            assert_int_equal(tke_infer_get_stats(e).n_cached > 0, !without);
        }
        tke_infer_free(e);
    }
}

/* Two requests compute the same prompt in one step, so the blocks of the second stay without a name; its samples
 * must not give them the name of a later place. */
TEST(names_of_shared_blocks)
{
    int32_t prompt[3 * BLOCK + 1];
    for (int32_t i = 0; i < 3 * BLOCK + 1; i++)
        prompt[i] = i % (2 * BLOCK); /* the third block repeats the first */
    tke_gen_request r = { .prompt = prompt,
                          .n_prompt = 2 * BLOCK + 1,
                          .n_samples = 3,
                          .max_tokens = 3,
                          .rule = { .temperature = 1, .top_p = 1 },
                          .never_stop = true };
    tke_infer *e = engine_of(60, 512, 16, 0);
    tke_gen *a = add(e, &r), *b = add(e, &r);
    while (tke_infer_step(e))
        ;
    check_result(a, &r);
    check_result(b, &r);
    r.n_prompt = 3 * BLOCK + 1;
    r.n_samples = 1;
    tke_gen *c = add(e, &r);
    while (tke_infer_step(e))
        ;
    check_result(c, &r);
    assert_int_equal(tke_gen_cache_hits(c), 2 * BLOCK);
    tke_infer_free(e);
}

static size_t hits_of(tke_infer *e, const int32_t *prompt, size_t n, size_t n_samples, size_t max_tokens, tke_gen **out)
{
    tke_gen *g = add(e, &(tke_gen_request){ .prompt = prompt,
                                            .n_prompt = n,
                                            .n_samples = n_samples,
                                            .max_tokens = max_tokens,
                                            .never_stop = true,
                                            .rule = { 1, 1, 0, 0 } });
    while (tke_infer_step(e))
        ;
    size_t hits = tke_gen_cache_hits(g);
    if (out)
        *out = g;
    return hits;
}

/* Whole blocks of a prompt are found again, but for its last token; so is what any sample generated. */
TEST(prefixes_are_found)
{
    static const size_t lengths[][2] = { { 15, 0 },  { 16, 0 },  { 17, 16 }, { 32, 16 },
                                         { 33, 32 }, { 48, 32 }, { 49, 48 }, { 80, 64 } };
    int32_t prompt[100];
    tke_gen *g;
    for (int32_t i = 0; i < 100; i++)
        prompt[i] = i;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tke_infer *e = engine_of(100, 64, 16, 0);
        assert_int_equal(hits_of(e, prompt, lengths[i][0], 1, 1, NULL), 0);
        assert_int_equal(hits_of(e, prompt, lengths[i][0], 1, 1, NULL), lengths[i][1]);
        tke_infer_free(e);
    }
    tke_infer *e = engine_of(100, 64, 16, 0);
    hits_of(e, prompt, 35, 3, 50, &g);
    for (size_t i = 0; i < 3; i++) {
        tke_sequence s = tke_gen_sequence(g, i);
        for (size_t k = 0; k < 50; k++)
            prompt[35 + k] = s.tokens[k];
        assert_int_equal(hits_of(e, prompt, 85, 1, 1, NULL), 80);
    }
    tke_infer_free(e);
}

/* ---- who gets how many rows ---- */

/* A request whose rows all hold one token, which tells them apart. */
static tke_gen *add_echo(tke_infer *e, int32_t token, size_t n_prompt, size_t n_samples, size_t max_tokens,
                         uint64_t tenant)
{
    int32_t prompt[CONTEXT];
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = token;
    tke_gen_request r = { .prompt = prompt,
                          .n_prompt = n_prompt,
                          .n_samples = n_samples,
                          .max_tokens = max_tokens,
                          .rule = { .temperature = 1, .top_p = 1 },
                          .never_stop = true,
                          .tenant = tenant };
    fake.echo = true;
    return add(e, &r);
}

static void expect_rows(tke_infer *e, size_t steps, int32_t token, size_t want)
{
    for (size_t i = 0; i < steps; i++) {
        assert_true(tke_infer_step(e));
        if (fake.rows_of[token] != want)
            fail_msg("step %zu has %zu rows of %d, not %zu", i, fake.rows_of[token], (int)token, want);
    }
}

/* Alone a request gets all rows: chunks of its prompt, then as many samples as may run. */
TEST(rows_of_one_request)
{
    tke_infer *e = engine_of(400, 32, 16, 0);
    add_echo(e, 7, 100, 20, 40, 0);
    expect_rows(e, 3, 7, 32);
    expect_rows(e, 1, 7, 4); /* and the first token of all twenty */
    assert_int_equal(tke_infer_get_stats(e).tokens_decoded, 20);
    assert_int_equal(tke_infer_get_stats(e).tokens_prefilled, 100);
    assert_int_equal(tke_infer_get_stats(e).n_running, 20);
    expect_rows(e, 39, 7, 16);
    expect_rows(e, 39, 7, 4);
    assert_false(tke_infer_step(e));
    assert_int_equal(tke_infer_get_stats(e).tokens_decoded, 800);
    add_echo(e, 8, 2, 1, 1, 0); /* two tokens are a prompt, one is a row like any other */
    add_echo(e, 9, 1, 1, 1, 0);
    assert_true(tke_infer_step(e));
    assert_int_equal(tke_infer_get_stats(e).tokens_prefilled, 102);
    /* seven blocks hold a prompt of 100: full ones are shared, the last is copied by all but one */
    assert_int_equal(fake.n_copies, 19);
    tke_infer_free(e);
}

/* Beside a small request a large one has 64 rows of its prompt, then eight, and for 128 steps after. */
TEST(rows_beside_a_small_request)
{
    tke_infer *e = engine_of(400, 512, 32, 0);
    add_echo(e, 7, 200, 64, 40, 1);
    tke_gen *small = add_echo(e, 8, 10, 1, 4, 2);
    expect_rows(e, 1, 7, 64);
    assert_int_equal(fake.rows_of[8], 10);
    expect_rows(e, 2, 7, 64);
    assert_int_equal(fake.rows_of[8], 1);
    expect_rows(e, 1, 7, 8); /* the rest of its prompt */
    assert_true(tke_gen_done(small));
    expect_rows(e, 127, 7, 8);
    expect_rows(e, 1, 7, 32);
    tke_infer_free(e);
}

/* A small request has its rows first, also where a large one came before it and could take them all. */
TEST(a_small_request_is_served_before_a_large_one)
{
    tke_infer *e = engine_of(400, 40, 32, 0);
    add_echo(e, 7, 200, 64, 40, 1);
    add_echo(e, 8, 30, 1, 4, 2);
    expect_rows(e, 1, 8, 30);
    assert_int_equal(fake.rows_of[7], 10); /* what is left of the chunk */
    tke_infer_free(e);
}

/* 512 tokens of work are small, 513 are not; a product that overflows is large. */
TEST(what_is_small)
{
    static const struct {
        size_t prompt, samples, tokens;
        bool small;
    } cases[] = { { 12, 10, 50, true }, { 13, 10, 50, false }, { 1, 511, 1, true }, { 1, 512, 1, false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tke_infer *e = engine_of(1000, 1024, 600, 0);
        tke_gen *g = add_echo(e, 8, cases[i].prompt, cases[i].samples, cases[i].tokens, 2);
        assert_int_equal(g->small, cases[i].small);
        add_echo(e, 7, 200, 20, 40, 1);
        expect_rows(e, 1, 7, cases[i].small ? 64 : 200);
        tke_infer_free(e);
    }
}

/* Tenants share the rows evenly, whatever the number of their requests. */
TEST(tenants_share_rows_evenly)
{
    tke_infer *e = engine_of(1000, 512, 24, 0);
    tke_gen *gone = add_echo(e, 3, 1, 1, 1, 9); /* done, but still held: no tenant any more */
    assert_true(tke_infer_step(e));
    assert_true(tke_gen_done(gone));
    for (int i = 0; i < 200; i++) /* until the small one is forgotten */
        tke_infer_step(e);
    e->n_steps = 1000;
    add_echo(e, 4, 1, 30, 100, 1);
    add_echo(e, 5, 1, 30, 100, 1);
    add_echo(e, 6, 1, 30, 100, 2);
    expect_rows(e, 1, 6, 1);
    for (int i = 0; i < 20; i++) {
        expect_rows(e, 1, 6, 12);
        assert_int_equal(fake.rows_of[4], 12);
        assert_int_equal(fake.rows_of[5], 0);
    }
    tke_infer_free(e);
}

/* With more tenants than eight rows each: the least served first, so none falls behind. */
TEST(tenants_take_turns)
{
    size_t sum[4] = { 0 };
    tke_infer *e = engine_of(1000, 512, 24, 0);
    e->n_steps = 1000;
    tke_gen *old = add_echo(e, 20, 1, 30, 50, 0); /* what is done does not count against a tenant */
    while (!tke_gen_done(old))
        tke_infer_step(e);
    for (int32_t i = 0; i < 4; i++)
        add_echo(e, 10 + i, 1, 30, 100, (uint64_t)i);
    for (int step = 0; step < 60; step++) {
        assert_true(tke_infer_step(e));
        size_t least = SIZE_MAX, most = 0;
        for (int i = 0; i < 4; i++) {
            sum[i] += fake.rows_of[10 + i];
            assert_true(fake.rows_of[10 + i] == 8 || fake.rows_of[10 + i] <= 1);
            least = sum[i] < least ? sum[i] : least;
            most = sum[i] > most ? sum[i] : most;
        }
        assert_true(most - least <= 8);
        assert_int_equal(fake.n_rows, step ? 24 : 4);
    }
    tke_infer_free(e);
}

/* Prompts of a step share its chunk. */
TEST(prompts_share_the_chunk)
{
    tke_infer *e = engine_of(400, 100, 24, 0);
    e->n_steps = 1000;
    add_echo(e, 4, 150, 10, 60, 1);
    add_echo(e, 5, 150, 10, 60, 2);
    expect_rows(e, 1, 4, 100);
    assert_int_equal(fake.rows_of[5], 0);
    expect_rows(e, 1, 5, 100);
    expect_rows(e, 1, 4, 50);
    assert_int_equal(fake.rows_of[5], 50);
    tke_infer_free(e);
    e = engine_of(400, 1, 24, 0); /* two tokens are a prompt, too */
    add_echo(e, 4, 2, 1, 2, 1);
    expect_rows(e, 3, 4, 1);
    tke_infer_free(e);
    e = engine_of(400, 10, 24, 0); /* rows that are decoded take none of it */
    e->n_steps = 1000;
    add_echo(e, 4, 1, 8, 100, 1);
    expect_rows(e, 1, 4, 1);
    add_echo(e, 5, 100, 10, 60, 1);
    expect_rows(e, 1, 4, 8);
    assert_int_equal(fake.rows_of[5], 10);
    tke_infer_free(e);
    e = engine_of(400, 10, 24, 0); /* nor do they wait where a prompt has taken all of it */
    e->n_steps = 1000;
    add_echo(e, 4, 1, 8, 100, 1);
    expect_rows(e, 1, 4, 1);
    add_echo(e, 5, 100, 10, 60, 2);
    expect_rows(e, 1, 4, 8);
    assert_int_equal(fake.rows_of[5], 10);
    tke_infer_free(e);
    e = engine_of(400, 5, 24, 0); /* a prompt of two takes two */
    add_echo(e, 4, 2, 1, 2, 1);
    add_echo(e, 5, 10, 1, 2, 1);
    expect_rows(e, 1, 4, 2);
    assert_int_equal(fake.rows_of[5], 3);
    tke_infer_free(e);
    e = engine_of(400, 100, 24, 0); /* small ones in the order of what they had */
    add_echo(e, 4, 150, 1, 60, 1);
    add_echo(e, 5, 150, 1, 60, 1);
    expect_rows(e, 1, 4, 100);
    expect_rows(e, 1, 5, 100);
    expect_rows(e, 1, 4, 50);
    tke_infer_free(e);
}

/* ---- room ---- */

/* The youngest sample of the request with the most running goes first. */
TEST(who_is_preempted)
{
    tke_infer *e = engine_of(9, 64, 16, 0);
    tke_gen *a = add_echo(e, 4, 16, 3, 60, 0), *b = add_echo(e, 5, 16, 1, 60, 0);
    while (!tke_infer_get_stats(e).preemptions)
        assert_true(tke_infer_step(e));
    assert_int_equal(a->seqs[2].state, TKE_SEQ_WAITING);
    assert_int_equal(a->seqs[1].state, TKE_SEQ_RUNNING);
    assert_int_equal(b->seqs[0].state, TKE_SEQ_RUNNING);
    assert_int_equal(tke_infer_get_stats(e).n_waiting, 1);
    while (tke_infer_step(e))
        ;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(tke_gen_sequence(a, i).n, 60);
    assert_int_equal(tke_gen_sequence(b, 0).n, 60);
    assert_true(tke_gen_cache_hits(a) + tke_gen_cache_hits(b) == 0); /* what it finds again is its own */
    tke_infer_free(e);
    e = engine_of(9, 64, 16, 0); /* one each: the younger request */
    a = add_echo(e, 4, 16, 1, 100, 0);
    b = add_echo(e, 5, 16, 1, 100, 0);
    while (!tke_infer_get_stats(e).preemptions)
        assert_true(tke_infer_step(e));
    assert_int_equal(b->seqs[0].state, TKE_SEQ_WAITING);
    tke_infer_free(e);
}

/* What was preempted comes back when fewer run than may, and not before; a first sample need not wait. */
TEST(when_samples_come_back)
{
    tke_infer *e = engine_of(14, 128, 2, 0);
    tke_gen *a = add_echo(e, 4, 10, 2, 100, 0), *b = add_echo(e, 5, 70, 1, 30, 0);
    while (!tke_infer_get_stats(e).preemptions)
        assert_true(tke_infer_step(e));
    assert_int_equal(a->seqs[1].state, TKE_SEQ_WAITING);
    tke_gen_cancel(b);
    tke_gen *c = add_echo(e, 6, 1, 1, 3, 0);
    for (int i = 0; i < 2; i++) {
        assert_true(tke_infer_step(e));
        assert_int_equal(c->seqs[0].state, TKE_SEQ_RUNNING);
        assert_int_equal(a->seqs[1].state, TKE_SEQ_WAITING);
        assert_int_equal(tke_infer_get_stats(e).n_running, 2);
    }
    while (!tke_gen_done(c))
        assert_true(tke_infer_step(e));
    assert_true(tke_infer_step(e));
    assert_int_equal(a->seqs[1].state, TKE_SEQ_RUNNING);
    tke_infer_free(e);
}

/* A new request makes way for itself where another has several samples running. */
TEST(a_new_request_finds_room)
{
    tke_infer *e = engine_of(10, 64, 16, 0);
    tke_gen *a = add_echo(e, 4, 10, 5, 40, 0);
    while (a->seqs[4].n < 23) /* two blocks each: none is left */
        assert_true(tke_infer_step(e));
    assert_int_equal(tke_infer_get_stats(e).preemptions, 0);
    tke_gen *b = add_echo(e, 5, 20, 1, 10, 0);
    assert_true(tke_infer_step(e));
    assert_int_equal(b->seqs[0].state, TKE_SEQ_RUNNING);
    assert_int_equal(fake.rows_of[5], 20);
    assert_int_equal(a->seqs[4].state, TKE_SEQ_WAITING);
    tke_infer_free(e);
}

/* A new request waits where it does not fit with its next token, and then takes what is there. */
TEST(room_for_one_more_token)
{
    tke_infer *e = engine_of(4, 64, 16, 0);
    tke_gen *a = add_echo(e, 4, 33, 1, 10, 0); /* three blocks, to its end */
    assert_true(tke_infer_step(e));
    tke_gen *b = add_echo(e, 5, 16, 1, 2, 0); /* a block, and one for its first token */
    while (!tke_gen_done(a)) {
        assert_int_equal(b->seqs[0].state, TKE_SEQ_WAITING);
        assert_true(tke_infer_step(e));
    }
    while (tke_infer_step(e))
        ;
    assert_true(tke_gen_done(b) && tke_infer_get_stats(e).preemptions == 0);
    tke_infer_free(e);
    e = engine_of(6, 64, 16, 0); /* two samples with two blocks each, and two that are free */
    a = add_echo(e, 4, 10, 2, 20, 0);
    while (a->seqs[1].n < 8)
        assert_true(tke_infer_step(e));
    assert_int_equal(tke_infer_get_stats(e).n_free, 2);
    b = add_echo(e, 5, 31, 1, 1, 0); /* both, to the last token */
    assert_true(tke_infer_step(e));
    assert_int_equal(b->seqs[0].n, 1);
    assert_int_equal(tke_infer_get_stats(e).preemptions, 0);
    tke_infer_free(e);
}

/* Several samples of another request make way at once, down to its last one. */
TEST(several_make_way)
{
    static const struct {
        size_t samples, blocks, prompt, gone;
    } cases[] = { { 5, 10, 50, 2 }, { 2, 4, 20, 1 } };
    for (size_t i = 0; i < 2; i++) {
        tke_infer *e = engine_of(cases[i].blocks, 64, 16, 0);
        tke_gen *a = add_echo(e, 4, 10, cases[i].samples, 20, 0);
        while (a->seqs[cases[i].samples - 1].n < 8) /* two blocks each: none is left */
            assert_true(tke_infer_step(e));
        assert_int_equal(tke_infer_get_stats(e).n_free, 0);
        tke_gen *b = add_echo(e, 5, cases[i].prompt, 1, 4, 0);
        assert_true(tke_infer_step(e));
        assert_int_equal(b->seqs[0].n, 1);
        assert_int_equal(tke_infer_get_stats(e).preemptions, cases[i].gone);
        for (size_t k = 0; k < cases[i].samples; k++)
            assert_int_equal(a->seqs[k].state,
                             k + cases[i].gone < cases[i].samples ? TKE_SEQ_RUNNING : TKE_SEQ_WAITING);
        bool back = false; /* while the others still run */
        const tke_seq *first = &a->seqs[0], *last = &a->seqs[cases[i].samples - 1];
        while (tke_infer_step(e)) {
            back = back || (first->state == TKE_SEQ_RUNNING && last->state == TKE_SEQ_RUNNING);
            for (size_t k = 1; k < e->n_running; k++) /* what comes back takes its old place */
                assert_true(e->running[k - 1]->gen == e->running[k]->gen
                                ? e->running[k - 1]->sample < e->running[k]->sample
                                : e->running[k - 1]->gen == a);
        }
        assert_true(back);
        tke_infer_free(e);
    }
}

/* Blocks that cannot be copied end their request, and no other. */
TEST(copies_that_fail)
{
    tke_infer *e = engine_of(20, 64, 16, 0);
    tke_gen *a = add_echo(e, 4, 10, 2, 8, 0), *b = add_echo(e, 5, 10, 1, 8, 0);
    fake.copies_fail = true;
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_gen_error(a)->code, TINKC_E_SERVER);
    assert_string_equal(tke_gen_error(a)->message, "the card has failed");
    assert_int_equal(tke_gen_error(b)->code, 0);
    assert_int_equal(tke_gen_sequence(b, 0).n, 8);
    assert_int_equal(tke_infer_get_stats(e).n_free + tke_infer_get_stats(e).n_cached, 20);
    a = add_echo(e, 4, 10, 2, 8, 0); /* alone: nothing of it is left */
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_gen_error(a)->code, TINKC_E_SERVER);
    assert_int_equal(tke_infer_get_stats(e).n_running, 0);
    tke_infer_free(e);
}

/* A sequence needs its blocks and one more; exactly that many are enough. */
TEST(the_least_cache)
{
    tinkc_error err = { 0 };
    int32_t prompt[40] = { 0 };
    tke_gen_request r = { .prompt = prompt, .n_prompt = 33, .n_samples = 1, .max_tokens = 15, .rule = { 1, 1, 0, 0 } };
    tke_infer *e = engine_of(4, 64, 16, 0);
    tke_gen *g = add(e, &r);
    r.max_tokens = 16;
    assert_null(tke_infer_add(e, &r, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_string_equal(err.message, "a sequence of 49 tokens needs 5 MiB of cache, there are 4: ask for fewer "
                                     "tokens, or give the cache more memory (setting kv_bytes)");
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_gen_error(g)->code, 0);
    tke_infer_free(e);
}

static tke_infer *growing(size_t blocks, size_t slab, size_t budget)
{
    fake.slab_blocks = slab;
    fake.budget = budget;
    tke_infer *e = engine_of(blocks, 64, 16, 0);
    fake.slab_blocks = 0;
    return e;
}

static void run_all(tke_infer *e)
{
    for (int guard = 0; tke_infer_step(e); guard++)
        assert_true(guard < 1000);
}

/* Memory is taken when a block is first needed, a slab at a time, and prefixes stay in it until
 * others want it: first those that nobody uses, then those of sequences, which run again. */
TEST(the_cache_grows_and_shrinks)
{
    tke_infer *e = growing(40, 4, 40);
    assert_int_equal(tke_infer_bytes(e), 0);
    add_echo(e, 4, 30, 1, 4, 0);
    run_all(e);
    assert_int_equal(fake.n_there, 4); /* three blocks */
    tke_gen *g = add_echo(e, 5, 30, 1, 50, 0);
    tke_infer_step(e);
    assert_int_equal(fake.n_there, 4); /* two kept, two in use */
    for (int i = 0; i < 10; i++)
        tke_infer_step(e);
    assert_int_equal(fake.n_there, 8); /* growing comes before forgetting */
    assert_int_equal(tke_infer_get_stats(e).n_cached, 2);
    tke_infer_shrink(e, 4 << 20); /* of slabs with blocks in use none goes; the sequence does */
    assert_int_equal(fake.n_there, 4);
    assert_int_equal(tke_infer_get_stats(e).preemptions, 1);
    tke_infer_shrink(e, 0);
    assert_int_equal(fake.n_there, 0);
    run_all(e);
    assert_int_equal(tke_gen_sequence(g, 0).n, 50);
    tke_infer_free(e);
}

/* A sequence that has the cache to itself and still too little of it: one without a limit of its
 * own ends there, with what it has; another fails. Both say so. */
TEST(a_cache_too_small_for_one)
{
    tke_infer *e = growing(20, 1, 3);
    for (int cap = 0; cap < 2; cap++) {
        int32_t prompt[20] = { 4 };
        tke_gen_request r = { .prompt = prompt,
                              .n_prompt = 20,
                              .n_samples = 1,
                              .max_tokens = 200,
                              .never_stop = true,
                              .may_cap = cap,
                              .rule = { 1, 1, 0, 0 } };
        tke_gen *g = add(e, &r);
        run_all(e);
        assert_int_equal(tke_gen_capped(g), cap);
        assert_int_equal(tke_gen_error(g)->code, cap ? 0 : TINKC_E_MEMORY);
        tke_sequence q = tke_gen_sequence(g, 0);
        assert_true(q.done && !q.stopped);
        assert_int_equal(q.n, 29); /* 48 positions hold all tokens but the last */
        if (!cap)
            assert_string_equal(tke_gen_error(g)->message,
                                "a sequence of 50 tokens needs 5 MiB of cache, there are 3: ask "
                                "for fewer tokens, or give the cache more memory (setting "
                                "kv_bytes)");
    }
    fake.budget = 20; /* what was refused once is asked for again */
    tke_gen *later = add_echo(e, 6, 20, 1, 100, 0);
    run_all(e);
    assert_int_equal(tke_gen_error(later)->code, 0);
    fake.commits_fail = true; /* a device that has no memory is like a refusal */
    tke_infer_shrink(e, 0);
    tke_gen *none = add_echo(e, 7, 20, 1, 10, 0);
    run_all(e);
    assert_int_equal(tke_gen_error(none)->code, TINKC_E_MEMORY);
    fake.commits_fail = false;
    tke_infer_free(e);
}

/* Without a limit of its own a sample has as many tokens as the whole cache can hold. */
TEST(samples_are_capped_by_the_cache)
{
    tinkc_error err = { 0 };
    int32_t prompt[60] = { 4 };
    tke_infer *e = engine_of(4, 64, 16, 0);
    tke_gen_request r = { .prompt = prompt,
                          .n_prompt = 33,
                          .n_samples = 2,
                          .max_tokens = 200,
                          .never_stop = true,
                          .may_cap = true,
                          .rule = { 1, 1, 0, 0 } };
    tke_gen *g = add(e, &r);
    run_all(e);
    assert_true(tke_gen_capped(g) && !tke_gen_sequence(g, 0).stopped);
    assert_int_equal(tke_gen_sequence(g, 0).n, 15); /* three blocks, and one for a copy */
    assert_int_equal(tke_gen_sequence(g, 1).n, 15);
    r.max_tokens = 15;
    assert_false(tke_gen_capped(add(e, &r)));
    r.n_prompt = 48; /* the prompt alone is too long */
    assert_null(tke_infer_add(e, &r, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    tke_infer_free(e);
}

/* ---- ends ---- */

/* Logits that give no token end their request, and no other. */
TEST(logits_without_a_token_end_their_request)
{
    tke_infer *e = engine_of(100, 64, 16, 0);
    tke_gen *bad = add_echo(e, 4, 10, 2, 8, 0), *good = add_echo(e, 5, 10, 2, 8, 0);
    for (int i = 0; i < 3; i++)
        tke_infer_step(e);
    fake.fail_at = 4;
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_gen_error(bad)->code, TINKC_E_SERVER);
    assert_string_equal(tke_gen_error(bad)->message, "the logits are not finite");
    assert_int_equal(tke_gen_sequence(bad, 0).n, 3);
    assert_int_equal(tke_gen_error(good)->code, 0);
    assert_int_equal(tke_gen_sequence(good, 1).n, 8);
    fake.fail_at = -1;
    int32_t prompt[3] = { 6, 6, 6 };
    tke_gen_request r = {
        .prompt = prompt, .n_prompt = 3, .n_samples = 1, .n_alternatives = 2, .rule = { 1, 1, 0, 0 }
    };
    tke_gen *scores = add(e, &r);
    fake.fail_at = 6;
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_gen_error(scores)->code, TINKC_E_SERVER);
    r.n_alternatives = 1; /* the last of them alone */
    prompt[1] = 7;
    scores = add(e, &r);
    fake.fail_at = 7;
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_gen_error(scores)->code, TINKC_E_SERVER);
    tke_infer_free(e);
}

TEST(done_in_order)
{
    tke_infer *e = engine_of(100, 64, 16, 0);
    tke_gen *g[4];
    static const size_t lengths[4] = { 8, 2, 5, 2 };
    for (int32_t i = 0; i < 4; i++)
        g[i] = add_echo(e, 4 + i, 4, 1, lengths[i], 0);
    assert_int_equal(tke_infer_n_unfinished(e), 4);
    while (tke_infer_step(e))
        ;
    tke_gen_free(g[3]); /* in the middle of the list */
    assert_ptr_equal(tke_infer_next_done(e), g[1]);
    tke_gen_free(g[0]); /* at its end, where the next one goes */
    g[1] = add_echo(e, 4, 4, 1, 2, 0);
    while (tke_infer_step(e))
        ;
    assert_ptr_equal(tke_infer_next_done(e), g[2]);
    assert_ptr_equal(tke_infer_next_done(e), g[1]);
    assert_null(tke_infer_next_done(e));
    g[0] = add_echo(e, 4, 4, 1, 2, 0);
    while (tke_infer_step(e))
        ;
    assert_ptr_equal(tke_infer_next_done(e), g[0]);
    assert_null(tke_infer_next_done(e));
    tke_infer_free(e);
}

/* ---- constraints ---- */

static size_t byte_token(void *user, int32_t token, const char **bytes)
{
    static char all[VOCAB];
    (void)user;
    for (int i = 0; i < VOCAB; i++)
        all[i] = (char)i;
    *bytes = &all[token];
    return token < 128;
}

TEST(a_constraint_bounds_the_draw)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tke_grammar grammar = { 0 };
    tke_json_grammar(&grammar, &arena, tkc_str("{\"enum\":[\"ab\",\"abcd\"]}"), &err);
    tke_token_order *order = tke_token_order_new(VOCAB, byte_token, NULL, &err);
    assert_string_equal(err.message, "");
    tke_constraint constraint = { &grammar, order };
    int32_t prompt[2] = { 5, 6 }, stop = 128;
    tke_infer *e = engine_of(100, 64, 16, 0);
    tke_gen_request r = { .prompt = prompt,
                          .n_prompt = 2,
                          .n_samples = 8,
                          .max_tokens = 6,
                          .rule = { 1, 1, 0, 0 },
                          .constraint = &constraint,
                          .stop_tokens = &stop,
                          .n_stop_tokens = 1 };
    for (r.max_tokens = 4; r.max_tokens < 8; r.max_tokens++)
        for (r.seed = 0; r.seed < 6; r.seed++) {
            tke_gen *g = add(e, &r);
            while (tke_infer_step(e))
                ;
            assert_string_equal(tke_gen_error(g)->message, "");
            for (size_t i = 0; i < 8; i++) {
                tke_sequence s = tke_gen_sequence(g, i);
                char text[16];
                for (size_t k = 0; k < s.n; k++)
                    text[k] = (char)s.tokens[k];
                text[s.n] = '\0';
                assert_true(strcmp(text, "\"ab\"") == 0 || (r.max_tokens >= 6 && strcmp(text, "\"abcd\"") == 0));
                assert_true(s.stopped);
            }
            tke_gen_free(g);
        }
    r.max_tokens = 3;
    assert_null(tke_infer_add(e, &r, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_string_equal(err.message, "max_tokens of 3 is too small: the shortest text that fits has 4 bytes");
    tke_infer_free(e);
    tke_token_order_free(order);
    tkc_arena_free(&arena);
}

/* A number may end after each of its digits: at the model's end or at a stop token, or at the length;
 * with never_stop only there. */
TEST(ends_of_constrained_texts)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tke_grammar grammar = { 0 };
    tkc_arena_init(&arena, NULL, 0);
    tke_json_grammar(&grammar, &arena, tkc_str("{\"type\":\"integer\",\"minimum\":1}"), &err);
    tke_token_order *order = tke_token_order_new(VOCAB, byte_token, NULL, &err);
    assert_string_equal(err.message, "");
    tke_constraint constraint = { &grammar, order };
    int32_t prompt[2] = { 5, 6 }, stops[3] = { -1, VOCAB };
    size_t by[4] = { 0 }; /* the model's end, token 0, the length, the last token */
    tke_infer *e = engine_of(100, 64, 16, 0);
    for (uint64_t seed = 0; seed < 40; seed++) {
        stops[2] = seed % 4 ? 0 : VOCAB - 1; /* the first and the last id */
        tke_gen_request r = { .prompt = prompt,
                              .n_prompt = 2,
                              .n_samples = 4,
                              .max_tokens = 3,
                              .rule = { 1, 1, 0, 0 },
                              .seed = seed,
                              .never_stop = seed % 2,
                              .constraint = &constraint,
                              .stop_tokens = stops,
                              .n_stop_tokens = 3 };
        tke_gen *g = add(e, &r);
        while (tke_infer_step(e))
            ;
        assert_string_equal(tke_gen_error(g)->message, "");
        for (size_t i = 0; i < 4; i++) {
            tke_sequence s = tke_gen_sequence(g, i);
            assert_true(s.n > 0 && s.tokens[0] >= '0' && s.tokens[0] <= '9');
            for (size_t k = 1; k + 1 < s.n; k++)
                assert_true(s.tokens[k] >= '0' && s.tokens[k] <= '9');
            int32_t last = s.tokens[s.n - 1];
            by[0] += last == 1;
            by[seed % 4 ? 1 : 3] += last == stops[2];
            by[2] += s.n == 3;
            assert_true(!r.never_stop || (last >= '0' && last <= '9'));
        }
        tke_gen_free(g);
    }
    assert_true(by[0] > 0 && by[1] > 0 && by[2] > 0 && by[3] > 0);
    tke_infer_free(e);
    tke_token_order_free(order);
    tkc_arena_free(&arena);
}

RUN_TESTS(setup, teardown)
