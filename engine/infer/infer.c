/* infer.c - decides which sequences run: admission, room in the cache, preemption, forks.
 *
 * The rows of a step are shared. Small requests (little total work) get theirs first. While there
 * is one, each large request gets only a few rows, so that a step stays short; otherwise tenants
 * share the rows evenly, the least served request first. A single request gets all of them.
 * A sequence that finds no room preempts the youngest of the largest request, which gives up its
 * blocks and is computed again later, with the same result. No result depends on any of this.
 *
 * May touch: the engine's lists and blocks. Must not: compute (that is the device's work).
 */
#include "infer/infer.h"

#include <assert.h>
#include <string.h>
#include "infer/infer_state.h"

enum {
    DEFAULT_CHUNK = 512,
    DEFAULT_RUNNING = 256,
    SMALL_WORK = 512, /* tokens, prompt and samples */
    LARGE_ROWS = 8,   /* of each large request, beside small ones */
    LARGE_CHUNK = 64, /* and of its prompt */
    /* steps stay short for so long: a client of small requests sends the next one soon */
    CALM_STEPS = 128,
    /* a cache that was refused memory asks again after so many steps */
    GROW_STEPS = 64
};
static const size_t default_kv = (size_t)256 << 20;

/* ---- life ---- */

static bool make_parts(tke_infer *e, tke_device_model *m, tinkc_error *err)
{
    if (tke_step_init(e, err))
        e->sampler =
            e->ops->sampler_new(m,
                                &(tke_device_sampler_options){ .cache_bytes = e->o.kv_bytes,
                                                               .max_rows = e->max_rows,
                                                               .max_seqs = e->o.max_running },
                                err);
    if (!e->sampler || !tke_kv_init(&e->kv, e->ops, e->sampler, err) ||
        !tke_states_init(&e->states, e->ops, e->sampler, err))
        return false;
    e->kv.more = e->o.more;
    e->kv.user = e->o.user;
    return true;
}

tke_infer *tke_infer_new(tke_device_model *m, const tke_infer_options *options, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    tke_infer *e = tkc_zalloc(NULL, sizeof *e, err);
    if (!e)
        return NULL;
    e->ops = m->device->ops;
    e->model = tke_model_keep(m->model);
    e->o = *options;
    if (!e->o.kv_bytes)
        e->o.kv_bytes = default_kv;
    if (!e->o.prefill_chunk)
        e->o.prefill_chunk = DEFAULT_CHUNK;
    if (!e->o.max_running)
        e->o.max_running = DEFAULT_RUNNING;
    if (make_parts(e, m, err))
        return e;
    tke_infer_free(e);
    return NULL;
}

void tke_infer_free(tke_infer *e)
{
    if (!e)
        return;
    while (e->first)
        tke_gen_free(e->first);
    assert(!e->n_running && !e->n_waiting && !e->n_unfinished && !e->done_first);
    tke_step_free(e);
    tke_kv_free(&e->kv);
    tke_states_free(&e->states);
    e->ops->sampler_free(e->sampler);
    tkc_release(NULL, e->running, e->cap_running * sizeof *e->running);
    tke_model_drop(e->model);
    tkc_release(NULL, e, sizeof *e);
}

/* ---- memory ---- */

static size_t blocks_for(size_t tokens)
{
    return (tokens + TKE_BLOCK_TOKENS - 1) / TKE_BLOCK_TOKENS;
}

tke_infer_stats tke_infer_get_stats(const tke_infer *e)
{
    tke_infer_stats s = e->stats;
    s.n_blocks = e->kv.n_blocks;
    s.n_free = e->kv.n_free + (e->kv.n_blocks - e->kv.n_there);
    s.n_cached = e->kv.n_kept;
    s.n_running = e->n_running;
    s.n_waiting = e->n_waiting;
    return s;
}

void tke_infer_clear_cache(tke_infer *e)
{
    tke_kv_clear(&e->kv);
    tke_states_clear(&e->states);
}

size_t tke_infer_bytes(const tke_infer *e)
{
    return e->kv.n_there * e->kv.block_bytes;
}

/* ---- requests ---- */

/* Says what a sequence of so many tokens lacks. */
static bool fail_cache(const tke_infer *e, size_t tokens, size_t n_blocks, int32_t code,
                       tinkc_error *err)
{
    return tkc_fail(err, code,
                    "a sequence of %zu tokens needs %zu MiB of cache, there are %zu: ask for fewer "
                    "tokens, or give the cache more memory (setting kv_bytes)",
                    tokens, ((blocks_for(tokens) + 1) * e->kv.block_bytes + ((1 << 20) - 1)) >> 20,
                    n_blocks * e->kv.block_bytes >> 20);
}

/* The most tokens of a sample whose sequence fits the cache, with a block for copying a shared
 * one. */
static size_t most_tokens(const tke_infer *e, size_t n_prompt)
{
    size_t room = (e->kv.n_blocks - 1) * TKE_BLOCK_TOKENS;
    return room > n_prompt ? room - n_prompt : 0;
}

static bool fit_cache(tke_infer *e, tke_gen *g, tinkc_error *err)
{
    size_t most = most_tokens(e, g->r.n_prompt), sum = g->r.n_prompt + g->r.max_tokens;
    if (g->r.max_tokens <= most && blocks_for(sum) + 1 <= e->kv.n_blocks)
        return true;
    if (!g->r.may_cap || !most)
        return fail_cache(e, sum, e->kv.n_blocks, TINKC_E_BAD_REQUEST, err);
    g->r.max_tokens = most;
    g->capped = true;
    return true;
}

tke_gen *tke_infer_add(tke_infer *e, const tke_gen_request *request, tinkc_error *err)
{
    tke_gen *g = tke_gen_new(e, request, err);
    if (!g)
        return NULL;
    if (!fit_cache(e, g, err)) {
        tke_gen_destroy(g);
        return NULL;
    }
    const tke_gen_request *r = &g->r;
    size_t work;
    bool counted =
        tkc_mul_size(r->n_samples, r->max_tokens, &work) && tkc_add_size(work, r->n_prompt, &work);
    g->small = counted && work <= SMALL_WORK;
    g->order = e->next_order++;
    g->prev = e->last;
    if (e->last)
        e->last->next = g;
    else
        e->first = g;
    e->last = g;
    e->n_unfinished++;
    assert(g->seqs[0].state == TKE_SEQ_IDLE);
    g->seqs[0].state = TKE_SEQ_WAITING;
    e->n_waiting++;
    return g;
}

static void leave_done_list(tke_infer *e, tke_gen *g)
{
    tke_gen **at = &e->done_first, *before = NULL;
    while (*at && *at != g) {
        before = *at;
        at = &(*at)->next_done;
    }
    if (!*at)
        return;
    *at = g->next_done;
    if (e->done_last == g)
        e->done_last = before;
}

static void leave_running(tke_infer *e, const tke_gen *g)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_running; i++)
        if (e->running[i]->gen != g)
            e->running[n++] = e->running[i];
    e->n_running = n;
}

void tke_gen_free(tke_gen *g)
{
    if (!g)
        return;
    tke_infer *e = g->engine;
    tke_gen_finish(g, &(tinkc_error){ 0 });
    leave_running(e, g);
    leave_done_list(e, g);
    if (g->prev)
        g->prev->next = g->next;
    else
        e->first = g->next;
    if (g->next)
        g->next->prev = g->prev;
    else
        e->last = g->prev;
    tke_gen_destroy(g);
}

tke_gen *tke_infer_next_done(tke_infer *e)
{
    tke_gen *g = e->done_first;
    if (!g)
        return NULL;
    e->done_first = g->next_done;
    if (!e->done_first)
        e->done_last = NULL;
    return g;
}

size_t tke_infer_n_unfinished(const tke_infer *e)
{
    return e->n_unfinished;
}

/* ---- running ---- */

static bool older(const tke_seq *a, const tke_seq *b)
{
    return a->gen->order < b->gen->order || (a->gen == b->gen && a->sample < b->sample);
}

/* Puts a sequence among the running ones, oldest first. */
static bool start(tke_infer *e, tke_seq *s, tinkc_error *err)
{
    tke_seq **grown =
        tkc_grow(NULL, e->running, &e->cap_running, e->n_running + 1, sizeof(tke_seq *), err);
    if (!grown)
        return false;
    e->running = grown;
    size_t at = e->n_running++;
    for (; at > 0 && older(s, e->running[at - 1]); at--)
        e->running[at] = e->running[at - 1];
    e->running[at] = s;
    assert(s->state == TKE_SEQ_IDLE || s->state == TKE_SEQ_WAITING);
    if (s->state == TKE_SEQ_WAITING)
        e->n_waiting--;
    s->state = TKE_SEQ_RUNNING;
    return true;
}

/* Frees a sequence's blocks; it will be computed again. */
static void preempt(tke_infer *e, tke_seq *s)
{
    size_t at = 0;
    assert(s->state == TKE_SEQ_RUNNING);
    while (e->running[at] != s)
        at++;
    assert(at < e->n_running);
    memmove(&e->running[at], &e->running[at + 1], (e->n_running - at - 1) * sizeof(tke_seq *));
    e->n_running--;
    tke_seq_release_blocks(s);
    s->state = TKE_SEQ_WAITING;
    e->n_waiting++;
    e->stats.preemptions++;
}

static bool push_block(tke_seq *s, int32_t id, tinkc_error *err)
{
    int32_t *grown = tkc_grow(NULL, s->blocks, &s->cap_blocks, s->n_blocks + 1, sizeof *grown, err);
    if (!grown)
        return false;
    s->blocks = grown;
    s->blocks[s->n_blocks++] = id;
    return true;
}

static uint64_t owner_of(const tke_gen *g)
{
    return g->r.snapshot ? tke_snapshot_id(g->r.snapshot) : 0;
}

static void tokens_of_block(const tke_seq *s, size_t block, int32_t out[TKE_BLOCK_TOKENS])
{
    for (size_t i = 0; i < TKE_BLOCK_TOKENS; i++)
        out[i] = tke_seq_token(s, block * TKE_BLOCK_TOKENS + i);
}

/* Releases the blocks behind the last one whose end has a snapshot, which the sequence's state
 * becomes. */
static void reuse_state(tke_infer *e, tke_seq *s, size_t n_blocks, uint64_t serial,
                        tinkc_error *err)
{
    int32_t from = n_blocks ? tke_states_find(&e->states, serial) : -1;
    if (from < 0 || !tke_states_copy(&e->states, s->slot, from, err))
        n_blocks = 0;
    while (s->n_blocks > n_blocks)
        tke_kv_drop(&e->kv, s->blocks[--s->n_blocks]);
    s->serial = n_blocks ? serial : 0;
    s->n_published = n_blocks;
    s->n_computed = n_blocks * TKE_BLOCK_TOKENS;
}

/* Reuses the cached blocks of a sequence's prefix; at least one token is left to compute. */
static void reuse_prefix(tke_infer *e, tke_seq *s, tinkc_error *err)
{
    tke_gen *g = s->gen;
    int32_t tokens[TKE_BLOCK_TOKENS];
    size_t with_state = 0; /* so many blocks lead to a snapshot */
    uint64_t its_serial = 0;
    size_t most = (tke_seq_length(s) - 1) / TKE_BLOCK_TOKENS;
    if (g->prompt_logprobs && g->n_scored < g->r.n_prompt && /* what is scored is computed */
        (g->n_scored - 1) / TKE_BLOCK_TOKENS < most)
        most = (g->n_scored - 1) / TKE_BLOCK_TOKENS;
    assert(!s->n_blocks && !s->n_computed && !s->serial); /* a waiting sequence holds no blocks */
    for (size_t b = 0; b < most && !e->o.no_prefix_cache; b++) {
        tokens_of_block(s, b, tokens);
        int32_t id = tke_kv_find(&e->kv, owner_of(g), s->serial, tokens);
        if (id < 0)
            break;
        if (!push_block(s, id, err)) {
            tke_kv_drop(&e->kv, id);
            return;
        }
        s->serial = tke_kv_serial(&e->kv, id);
        s->n_published = s->n_blocks;
        s->n_computed = s->n_blocks * TKE_BLOCK_TOKENS;
        if (s->slot >= 0 && tke_states_find(&e->states, s->serial) >= 0) {
            with_state = s->n_blocks;
            its_serial = s->serial;
        }
    }
    if (s->slot >= 0)
        reuse_state(e, s, with_state, its_serial, err);
    if (!g->hits_counted) {
        g->hits_counted = true;
        g->cache_hits = s->n_computed < g->r.n_prompt ? s->n_computed : g->r.n_prompt;
    }
}

static size_t n_running_of(const tke_infer *e, const tke_gen *g)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_running; i++)
        n += e->running[i]->gen == g && e->running[i]->state == TKE_SEQ_RUNNING;
    return n;
}

static tke_seq *waiting_of(tke_gen *g)
{
    for (size_t i = 0; !g->done && i < g->r.n_samples; i++)
        if (g->seqs[i].state == TKE_SEQ_WAITING)
            return &g->seqs[i];
    return NULL;
}

/* The sequence to start next: of a request with none running, else the oldest waiting one. */
static tke_seq *next_waiting(tke_infer *e)
{
    tke_seq *oldest = NULL;
    for (tke_gen *g = e->first; g && e->n_waiting; g = g->next) {
        tke_seq *s = waiting_of(g);
        if (s && n_running_of(e, g) == 0)
            return s;
        oldest = oldest ? oldest : s;
    }
    return oldest;
}

/* The running sequence to preempt first: the youngest of the request with the most running; if all
 * have one, that of the youngest request. */
static tke_seq *first_to_go(const tke_infer *e)
{
    tke_seq *victim = NULL;
    size_t most = 0;
    for (size_t i = 0, n; i < e->n_running; i += n) { /* those of one request are adjacent */
        for (n = 1; i + n < e->n_running && e->running[i + n]->gen == e->running[i]->gen;)
            n++;
        if (n >= most) {
            most = n;
            victim = e->running[i + n - 1];
        }
    }
    return victim;
}

static void sweep_running(tke_infer *e)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_running; i++)
        if (e->running[i]->state == TKE_SEQ_RUNNING)
            e->running[n++] = e->running[i];
    e->n_running = n;
}

void tke_infer_shrink(tke_infer *e, size_t bytes)
{
    size_t n = bytes / e->kv.block_bytes;
    sweep_running(e);
    tke_kv_shrink(&e->kv, n);
    while (e->kv.grows && e->kv.n_there > n && e->n_running) {
        preempt(e, first_to_go(e));
        tke_kv_shrink(&e->kv, n);
    }
}

/* Makes room for the first sequence of a request, from one that has several. False: none has. */
static bool make_way(tke_infer *e, const tke_gen *waiting)
{
    tke_seq *victim = e->n_running ? first_to_go(e) : NULL;
    if (!victim || victim->gen == waiting || n_running_of(e, victim->gen) < 2)
        return false;
    preempt(e, victim);
    return true;
}

/* A slot for its state, if the model has states. False: there is none now. */
static bool take_slot(tke_infer *e, tke_seq *s, bool first)
{
    if (!e->states.n)
        return true;
    while ((s->slot = tke_states_take(&e->states)) < 0)
        if (!first || !make_way(e, s->gen))
            return false;
    return true;
}

static void admit(tke_infer *e)
{
    size_t promised = 0; /* blocks that those who start now will take in this step */
    tke_seq *s;
    while ((s = next_waiting(e))) {
        tinkc_error err = { 0 };
        tke_gen *g = s->gen;
        bool first = n_running_of(e, g) == 0; /* a request never waits for all of another */
        if (e->n_running >= e->o.max_running && !first)
            return;
        if (g->r.max_tokens == 0 && (!g->prompt_logprobs || g->n_scored == g->r.n_prompt)) {
            tke_gen_finish(g, &err);
            continue;
        }
        if (!take_slot(e, s, first)) /* those that run have them all */
            return;
        reuse_prefix(e, s, &err);
        size_t need = promised + blocks_for(tke_seq_length(s) + 1) - s->n_blocks;
        while (first && need > tke_kv_available(&e->kv) && make_way(e, g))
            ;
        if (!e->n_running) /* one fits, as tke_infer_add checked, if there is the memory */
            e->kv.limit = e->kv.n_blocks;
        if (need > tke_kv_available(&e->kv)) { /* something runs */
            tke_seq_release_blocks(s);
            return;
        }
        if (tkc_failed(&err) || !start(e, s, &err))
            tke_gen_finish(g, &err);
        else
            promised = need;
    }
}

/* ---- room ---- */

static size_t n_holding(const tke_infer *e)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_running; i++)
        n += e->running[i]->state == TKE_SEQ_RUNNING;
    return n;
}

/* A sequence has the cache alone and it is too small, which tke_infer_add could not know: the
 * memory is in use elsewhere. To compute it again would change nothing. */
static void end_alone(tke_infer *e, tke_seq *s)
{
    tinkc_error err = { 0 };
    if (s->gen->r.may_cap && s->n > 0 && !s->gen->r.constraint) {
        s->gen->capped = true;
        tke_seq_finish(s, false);
    } else {
        (void)fail_cache(e, tke_seq_length(s) + 1, e->kv.n_there, TINKC_E_MEMORY, &err);
        tke_gen_finish(s->gen, &err);
    }
    sweep_running(e);
}

/* A block for a sequence: from the cache, or from a preempted sequence. -1: the sequence itself was
 * preempted or has ended. */
static int32_t find_block(tke_infer *e, tke_seq *s)
{
    int32_t id;
    while ((id = tke_kv_take(&e->kv)) < 0) {
        assert(e->n_running > 0);
        tke_seq *victim = first_to_go(e);
        if (victim == s && n_holding(e) == 1) {
            end_alone(e, s);
            return -1;
        }
        preempt(e, victim);
        if (victim == s)
            return -1;
    }
    return id;
}

/* Room for n more positions, with none of the blocks to be written shared. Where there is none, the
 * sequence does not run any more: it is preempted, or its request has failed. */
static void make_room(tke_infer *e, tke_seq *s, size_t n)
{
    tinkc_error err = { 0 };
    size_t first = s->n_computed / TKE_BLOCK_TOKENS;
    if (first < s->n_blocks && e->kv.blocks[s->blocks[first]].refs > 1) {
        int32_t mine = find_block(e, s);
        if (mine < 0)
            return;
        if (!tke_kv_copy(&e->kv, mine, s->blocks[first], &err)) {
            tke_kv_drop(&e->kv, mine);
            tke_gen_finish(s->gen, &err);
            return;
        }
        tke_kv_drop(&e->kv, s->blocks[first]);
        s->blocks[first] = mine;
    }
    assert(first >= s->n_blocks || !e->kv.blocks[s->blocks[first]].published);
    while (s->n_blocks < blocks_for(s->n_computed + n)) {
        int32_t id = find_block(e, s);
        if (id < 0)
            return;
        if (!push_block(s, id, &err)) {
            tke_kv_drop(&e->kv, id);
            tke_gen_finish(s->gen, &err);
            return;
        }
    }
}

/* ---- a step ---- */

typedef struct share {  /* what may still be computed */
    size_t rows, chunk; /* chunk: of them, of prompts */
    size_t seqs;
} share;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Where a prompt's state is worth a snapshot: at its last edge. 0 = nowhere. */
static size_t snapshot_at(const tke_infer *e, const tke_seq *s)
{
    if (s->slot < 0 || e->o.no_prefix_cache)
        return 0;
    return (s->gen->r.n_prompt - 1) / TKE_STATE_EDGE * TKE_STATE_EDGE;
}

/* A step that would cross that place ends there. */
static size_t up_to_edge(const tke_infer *e, const tke_seq *s, size_t n)
{
    size_t at = snapshot_at(e, s);
    return at > s->n_computed && at < s->n_computed + n ? at - s->n_computed : n;
}

/* Takes rows of a request, oldest sequences first, within the share. */
static void take_rows(tke_infer *e, tke_gen *g, share *left)
{
    for (size_t i = 0; i < e->n_running && left->seqs && left->rows;) {
        tke_seq *s = e->running[i];
        bool own = s->state == TKE_SEQ_RUNNING && s->gen == g; /* a failed request's is done */
        size_t todo = own ? tke_seq_length(s) - s->n_computed : 0;
        size_t n = least(todo > 1 ? least(todo, left->chunk) : todo, left->rows);
        if (n == 0) {
            i++;
            continue;
        }
        n = up_to_edge(e, s, n);
        make_room(e, s, n);
        if (s->state != TKE_SEQ_RUNNING) /* it has left the list, or is done */
            continue;
        left->chunk -= todo > 1 ? n : 0;
        left->rows -= n;
        left->seqs--;
        s->gen->served += n;
        e->entries[e->n_entries++] =
            (tke_entry){ .seq = s, .first_pos = s->n_computed, .n_rows = n };
        i++;
    }
}

/* The rows computed for the current requests of a request's tenant. */
static uint64_t tenant_served(const tke_infer *e, const tke_gen *g)
{
    uint64_t sum = 0;
    for (const tke_gen *o = e->first; o; o = o->next)
        sum += !o->done && o->r.tenant == g->r.tenant ? o->served : 0;
    return sum;
}

/* The next request to serve in this step: small ones first, then by their tenants' share so far. */
static tke_gen *next_to_serve(tke_infer *e)
{
    tke_gen *best = NULL;
    uint64_t best_served = 0;
    for (tke_gen *g = e->first; g; g = g->next) {
        if (g->done || g->in_step == e->n_steps)
            continue;
        uint64_t served = g->small ? g->served : tenant_served(e, g);
        bool before = !best || (g->small && !best->small) ||
                      (g->small == best->small && served < best_served);
        if (before) {
            best = g;
            best_served = served;
        }
    }
    return best;
}

static size_t count_tenants(const tke_infer *e)
{
    size_t n = 0;
    for (const tke_gen *g = e->first; g; g = g->next) {
        bool seen = g->done;
        for (const tke_gen *o = e->first; o != g && !seen; o = o->next)
            seen = !o->done && o->r.tenant == g->r.tenant;
        n += !seen;
    }
    return n ? n : 1;
}

/* Is there a small request, or was there one recently? A new one must wait for the current step. */
static bool any_small(tke_infer *e)
{
    for (const tke_gen *g = e->first; g; g = g->next)
        if (!g->done && g->small)
            e->calm_until = e->n_steps + CALM_STEPS;
    return e->n_steps < e->calm_until;
}

/* Chooses the rows of this step. */
static void choose_entries(tke_infer *e)
{
    share all = { e->max_rows, e->o.prefill_chunk, e->o.max_running };
    e->n_entries = 0;
    e->n_steps++;
    bool small = any_small(e);
    size_t fair = e->o.max_running / count_tenants(e);
    size_t seqs = small ? LARGE_ROWS : fair > LARGE_ROWS ? fair : LARGE_ROWS;
    for (tke_gen *g; all.rows && all.seqs && (g = next_to_serve(e));) {
        bool bounded = !g->small;
        share own = { all.rows, bounded && small ? least(all.chunk, LARGE_CHUNK) : all.chunk,
                      bounded ? least(all.seqs, seqs) : all.seqs };
        const share given = own;
        g->in_step = e->n_steps;
        take_rows(e, g, &own);
        all.rows -= given.rows - own.rows;
        all.chunk -= given.chunk - own.chunk;
        all.seqs -= given.seqs - own.seqs;
    }
}

/* Drops entries of requests that failed while making room: their blocks are freed. */
static void drop_ended(tke_infer *e)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_entries; i++)
        if (e->entries[i].seq->state == TKE_SEQ_RUNNING)
            e->entries[n++] = e->entries[i];
    e->n_entries = n;
}

/* Groups entries by adapter. Insertion sort: few entries, mostly sorted. */
static void sort_entries(tke_infer *e)
{
    size_t row = 0;
    for (size_t i = 1; i < e->n_entries; i++) {
        tke_entry held = e->entries[i];
        uint64_t owner = owner_of(held.seq->gen);
        size_t at = i;
        for (; at > 0 && owner_of(e->entries[at - 1].seq->gen) > owner; at--)
            e->entries[at] = e->entries[at - 1];
        e->entries[at] = held;
    }
    for (size_t i = 0; i < e->n_entries; i++) {
        assert(e->entries[i].seq->state == TKE_SEQ_RUNNING);
        e->entries[i].row = row;
        row += e->entries[i].n_rows;
    }
    assert(row <= e->max_rows);
}

/* Publishes full blocks, so that other sequences find them. */
static void publish(tke_infer *e, tke_seq *s)
{
    int32_t tokens[TKE_BLOCK_TOKENS];
    while (!e->o.no_prefix_cache && (s->n_published + 1) * TKE_BLOCK_TOKENS <= s->n_computed) {
        tokens_of_block(s, s->n_published, tokens);
        s->serial =
            tke_kv_publish(&e->kv, s->blocks[s->n_published], owner_of(s->gen), s->serial, tokens);
        s->n_published++;
    }
}

/* A copy of the leader's state, if the model has states. Without a slot for it the sample waits and
 * is computed from its prompt later. */
static bool fork_state(tke_infer *e, const tke_seq *leader, tke_seq *s, tinkc_error *err)
{
    if (!e->states.n)
        return true;
    s->slot = tke_states_take(&e->states);
    if (s->slot >= 0)
        return tke_states_copy(&e->states, s->slot, leader->slot, err);
    s->state = TKE_SEQ_WAITING;
    e->n_waiting++;
    return false;
}

/* The prompt is computed: the other samples share its blocks. */
static void fork_samples(tke_infer *e, tke_gen *g)
{
    tinkc_error err = { 0 };
    tke_seq *leader = &g->seqs[0];
    assert(!g->forked && leader->n_computed == g->r.n_prompt && leader->n == 0);
    g->forked = true;
    for (size_t i = 1; i < g->r.n_samples && !tkc_failed(&err); i++) {
        tke_seq *s = &g->seqs[i];
        if (!fork_state(e, leader, s, &err))
            continue;
        for (size_t b = 0; b < leader->n_blocks && !tkc_failed(&err); b++)
            if (push_block(s, leader->blocks[b], &err))
                tke_kv_keep(&e->kv, leader->blocks[b]);
        s->n_computed = leader->n_computed;
        s->n_published = leader->n_published;
        s->serial = leader->serial;
        if (!tkc_failed(&err))
            start(e, s, &err);
    }
    if (tkc_failed(&err))
        tke_gen_finish(g, &err);
}

static void after_step(tke_infer *e)
{
    tinkc_error err = { 0 };
    for (size_t i = 0; i < e->n_entries; i++) {
        tke_seq *s = e->entries[i].seq;
        if (s->state != TKE_SEQ_RUNNING)
            continue;
        assert(s->n_computed == e->entries[i].first_pos);
        s->n_computed = e->entries[i].first_pos + e->entries[i].n_rows;
        assert(s->n_computed <= s->n_blocks * TKE_BLOCK_TOKENS);
        if (e->entries[i].n_rows > 1)
            e->stats.tokens_prefilled += e->entries[i].n_rows;
        publish(e, s);
        if (s->n_computed && s->n_computed == snapshot_at(e, s) &&
            !tke_states_save(&e->states, s->slot, s->serial, &err))
            tke_gen_finish(s->gen, &err);
    }
}

static void append_drawn(tke_seq *s)
{
    if (s->state != TKE_SEQ_RUNNING)
        return;
    if (s->bad) {
        tinkc_error err = { 0 };
        tkc_fail(&err, TINKC_E_SERVER, "the logits are not finite");
        tke_gen_finish(s->gen, &err);
        return;
    }
    s->gen->engine->stats.tokens_decoded++;
    tke_seq_append(s, s->next_token, s->next_logprob);
}

/* Appends the tokens that the step drew; forks the samples of completed prompts. */
static void take_results(tke_infer *e)
{
    for (size_t i = 0; i < e->n_entries; i++) {
        tke_seq *s = e->entries[i].seq;
        tke_gen *g = s->gen;
        if (s->state != TKE_SEQ_RUNNING || s->n_computed < tke_seq_length(s))
            continue;
        if (g->r.max_tokens == 0) {
            tke_gen_finish(g, &(tinkc_error){ 0 });
        } else if (g->forked) {
            append_drawn(s);
        } else {
            fork_samples(e, g);
            for (size_t k = 0; k < g->r.n_samples; k++)
                append_drawn(&g->seqs[k]);
        }
    }
}

static void end_cancelled(tke_infer *e)
{
    for (tke_gen *g = e->first; g; g = g->next)
        if (g->cancelled && !g->done) {
            tinkc_error err = { 0 };
            tkc_fail(&err, TINKC_E_CANCELLED, "the sample was cancelled");
            tke_gen_finish(g, &err);
        }
}

bool tke_infer_step(tke_infer *e)
{
    tinkc_error err = { 0 };
    if (!e->n_unfinished)
        return false;
    if (e->n_steps % GROW_STEPS == 0)
        e->kv.limit = e->kv.n_blocks;
    end_cancelled(e);
    sweep_running(e);
    admit(e);
    choose_entries(e);
    drop_ended(e);
    sort_entries(e);
    if (!e->n_entries) {
        sweep_running(e);
        return e->n_unfinished > 0;
    }
    if (!tke_step_go(e, &err)) {
        for (size_t i = 0; i < e->n_entries; i++)
            tke_gen_finish(e->entries[i].seq->gen, &err);
    } else {
        after_step(e);
        take_results(e);
    }
    sweep_running(e);
    return true;
}
