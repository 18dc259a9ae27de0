/* training.c - passes as transactions: fills microbatches, commits or discards their results.
 *
 * Datums of all passes are packed, adapter by adapter, into microbatches that fit the memory; each
 * is one forward (and backward) over its rows on the device. Gradients are added to a copy of each
 * adapter's accumulator; the copy takes its place when every pass of that adapter has succeeded. A
 * pass that fails is removed and the others of its adapter run again: the result is as if the
 * failed one had never been sent. Between two microbatches the device may do other work: samples wait
 * for a microbatch, not for a pass.
 *
 * May touch: the adapters of its passes. Must not: change anything for a pass that fails; know what
 * kind of device computes.
 */
#include "train/training.h"

#include <assert.h>
#include <string.h>
#include "base/clock.h"
#include "train/adapter_state.h"
#include "train/pass_state.h"

enum {
    GOOD_TOKENS = 1024, /* more rows than this do not make products faster */
    FEW_TOKENS = 256    /* fewer make them slow: no slice of time is cut below it */
};

struct tke_trainer {
    const tke_device_ops *ops;
    tke_device *device;
    tke_model *model;
    tke_device_trainer *work;
    tke_trainer_options o;
    int64_t token_ns[TKE_DEPTH_ALL + 1]; /* what a token took last, by depth; 0 = not known */
    bool started[TKE_DEPTH_ALL + 1];     /* has one of this depth run? */
    bool ran;                            /* a microbatch of this tke_trainer_run */
};

tke_trainer *tke_trainer_new(tke_device_model *m, const tke_trainer_options *o, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    tke_trainer *t = tkc_zalloc(NULL, sizeof *t, err);
    if (!t)
        return NULL;
    tke_device_info info;
    t->device = m->device;
    t->ops = m->device->ops;
    t->model = tke_model_keep(m->model);
    t->ops->info(t->device, &info);
    t->o = *o;
    if (!o->microbatch_tokens)
        t->o.microbatch_tokens = info.microbatch_tokens;
    if (!o->now_ns)
        t->o.now_ns = tkc_monotonic_ns;
    t->work = t->ops->trainer_new(
        m, &(tke_device_trainer_options){ o->memory_bytes, o->keep, o->stop }, err);
    if (t->work)
        return t;
    tke_trainer_free(t);
    return NULL;
}

void tke_trainer_free(tke_trainer *t)
{
    if (!t)
        return;
    t->ops->trainer_free(t->work);
    tke_model_drop(t->model);
    tkc_release(NULL, t, sizeof *t);
}

void tke_trainer_set_memory(tke_trainer *t, size_t memory_bytes)
{
    t->ops->trainer_set_memory(t->work, memory_bytes);
}

size_t tke_trainer_held(const tke_trainer *t)
{
    return t->ops->trainer_held(t->work);
}

void tke_pass_free(tke_pass *p)
{
    tkc_arena_free(&p->arena);
    p->out = (tke_pass_out){ 0 };
}

/* ---- memory ---- */

static int32_t depth_of(const tke_pass *p)
{
    if (!p->backward)
        return TKE_DEPTH_NONE;
    assert(p->adapter);
    return p->adapter->spec.train & (TKE_TRAIN_ATTN | TKE_TRAIN_MLP) ? TKE_DEPTH_ALL
                                                                     : TKE_DEPTH_HEAD;
}

/* The minimum memory of a microbatch. */
static size_t bytes_of(const tke_trainer *t, const tke_microbatch_size *size)
{
    return t->ops->microbatch_bytes(t->work, size, TKE_KEEP_NONE);
}

size_t tke_trainer_bytes(const tke_trainer *t, size_t n_tokens, size_t max_k,
                         const tke_adapter_spec *spec)
{
    return bytes_of(t, &(tke_microbatch_size){ .n = n_tokens,
                                               .max_rank = spec ? (size_t)spec->rank : 0,
                                               .max_k = max_k,
                                               .depth = spec ? TKE_DEPTH_ALL : TKE_DEPTH_NONE });
}

/* ---- before a pass ---- */

static bool check_data(tke_trainer *t, tke_pass *p)
{
    const tke_config *c = tke_model_config(t->model);
    if (!p->n_data)
        return tkc_fail(&p->err, TINKC_E_BAD_REQUEST, "data is empty");
    if (p->backward && !p->adapter)
        return tkc_fail(&p->err, TINKC_E_BAD_REQUEST, "a backward pass needs an adapter");
    if (p->adapter && p->adapter->model != t->model)
        return tkc_fail(&p->err, TINKC_E_STATE, "the adapter belongs to another model");
    bool ok = true;
    for (size_t i = 0; i < p->n_data && ok; i++)
        ok = tke_datum_check(&p->data[i], c->vocab, c->context, i, &p->err);
    return ok;
}

static bool check_memory(tke_trainer *t, tke_pass *p)
{
    size_t allowed = t->ops->trainer_memory(t->work);
    for (size_t i = 0; i < p->n_data; i++) {
        tke_microbatch_size size = { .n = p->data[i].n,
                                     .max_rank = p->adapter ? p->adapter->layout->rank : 0,
                                     .max_k = p->data[i].k,
                                     .depth = depth_of(p) };
        size_t bytes = bytes_of(t, &size);
        if (bytes > allowed)
            return tkc_fail(&p->err, TINKC_E_BAD_REQUEST,
                            "datum %zu of %zu tokens needs %zu MiB of work space, %zu are there: "
                            "send a shorter one, or give training more memory (setting "
                            "train_memory_bytes)",
                            i, p->data[i].n, bytes >> 20, allowed >> 20);
    }
    return true;
}

static bool make_outputs(tke_pass *p)
{
    size_t n = 0, nk = 0;
    tke_pass_out *o = &p->out;
    o->logprobs_at = tkc_arena_array(&p->arena, p->n_data + 1, sizeof(size_t), &p->err);
    o->elementwise_at = tkc_arena_array(&p->arena, p->n_data + 1, sizeof(size_t), &p->err);
    if (tkc_failed(&p->err))
        return false;
    for (size_t i = 0; i < p->n_data; i++) {
        o->elementwise_at[i] = n;
        o->logprobs_at[i] = nk;
        n += p->data[i].n;
        nk += p->data[i].n * p->data[i].k;
    }
    o->elementwise_at[p->n_data] = n;
    o->logprobs_at[p->n_data] = nk;
    o->elementwise = tkc_arena_array(&p->arena, n, sizeof(float), &p->err);
    o->logprobs = tkc_arena_array(&p->arena, nk, sizeof(float), &p->err);
    return !tkc_failed(&p->err);
}

static void begin_pass(tke_trainer *t, tke_pass_state *s, tke_pass *p)
{
    *s = (tke_pass_state){ .pass = p };
    p->err = (tinkc_error){ 0 };
    p->out = (tke_pass_out){ 0 };
    tkc_arena_init(&p->arena, NULL, 0);
    s->done = !check_data(t, p) || !check_memory(t, p) || !make_outputs(p);
}

/* ---- after a pass ---- */

static void add_metric(tke_pass_out *o, const char *name, double value)
{
    assert(o->n_metrics < TKE_MAX_METRICS);
    o->metrics[o->n_metrics++] = (tke_metric){ name, value };
}

/* A mean is over the datums of the pass; clients that join passes weight it by their number. */
static void add_custom_metrics(tke_pass_out *o, const tke_pass *p, const tke_loss_sums *sums)
{
    const tke_graph *g = p->loss.graph;
    for (size_t i = 0; i < tke_graph_n_metrics(g); i++)
        add_metric(o, tke_graph_metric(g, i),
                   sums->custom[i] / (tke_graph_metric_is_mean(g, i) ? (double)p->n_data : 1));
}

static void finish_pass(tke_pass_state *s)
{
    tke_pass_out *o = &s->pass->out;
    const tke_loss_sums *sums = &s->sums;
    assert(!s->done && !s->failed && !tkc_failed(&s->pass->err)); /* a pass ends only once */
    assert(sums->n_tokens == (int64_t)o->elementwise_at[s->pass->n_data]);
    double n = sums->n_ratio ? (double)sums->n_ratio : 1;
    add_metric(o, "loss:sum", sums->loss);
    add_metric(o, "num_tokens:sum", (double)sums->n_tokens);
    add_metric(o, "num_loss_tokens:sum", (double)sums->n_loss_tokens);
    if (tke_loss_row_of(&s->pass->loss)->ratios) {
        add_metric(o, "clip_frac:mean", (double)sums->n_clipped / n);
        add_metric(o, "ratio:mean", sums->ratio / n);
        add_metric(o, "ratio:max", sums->ratio_max);
        add_metric(o, "kl_v1:mean", sums->kl / n);
    }
    if (s->pass->loss.graph)
        add_custom_metrics(o, s->pass, sums);
    s->done = true;
}

/* ---- microbatches ---- */

typedef struct attempt {
    tke_trainer *t;
    tke_pass_state *states;
    size_t n;
    tkc_arena arena; /* tables, for the whole attempt */
    tke_item *items; /* of all chosen passes, adapter by adapter, depth by depth */
    size_t n_items;
    tinkc_error err; /* memory, cancelled: ends the attempt */
} attempt;

/* Passes of one adapter side by side, in their own order; passes of one depth side by side. */
static bool collect_items(attempt *a)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < a->n; i++)
        total += a->states[i].chosen ? a->states[i].pass->n_data : 0;
    a->items = tkc_arena_array(&a->arena, total ? total : 1, sizeof *a->items, &a->err);
    bool *taken = tkc_arena_array(&a->arena, a->n, sizeof *taken, &a->err);
    if (!a->items || !taken)
        return false;
    for (int32_t depth = TKE_DEPTH_ALL; depth >= TKE_DEPTH_NONE; depth--)
        for (size_t first = 0; first < a->n; first++)
            for (size_t i = first; i < a->n; i++) {
                tke_pass_state *s = &a->states[i];
                tke_pass *p = s->pass;
                if (!s->chosen || taken[i] || depth_of(p) != depth ||
                    p->adapter != a->states[first].pass->adapter)
                    continue;
                taken[i] = true;
                for (size_t d = 0; d < p->n_data; d++)
                    a->items[at++] =
                        (tke_item){ .state = s,
                                    .datum = &p->data[d],
                                    .index = d,
                                    .logprobs = p->out.logprobs + p->out.logprobs_at[d],
                                    .elementwise = p->out.elementwise + p->out.elementwise_at[d] };
            }
    assert(at == total); /* every chosen pass has its place */
    a->n_items = total;
    return true;
}

static size_t rank_of(const tke_item *item)
{
    const tke_adapter *adapter = item->state->pass->adapter;
    return adapter ? adapter->layout->rank : 0;
}

/* Most rows of a microbatch, by number and by time. */
static size_t most_rows(const tke_trainer *t, int32_t depth)
{
    int64_t each = t->token_ns[depth];
    size_t most = t->o.microbatch_tokens;
    if (!t->o.slice_ns || (!each && t->o.starts_slowly))
        return most;
    size_t in_time = each ? (size_t)(t->o.slice_ns / each) : FEW_TOKENS;
    if (in_time < FEW_TOKENS)
        in_time = FEW_TOKENS;
    return in_time < most ? in_time : most;
}

/* Is this size beyond what makes a good microbatch? */
static bool too_large(const tke_trainer *t, const tke_microbatch_size *size)
{
    size_t allowed = t->ops->trainer_memory(t->work);
    if (size->n > most_rows(t, size->depth) || bytes_of(t, size) > allowed)
        return true;
    return size->n > GOOD_TOKENS && t->ops->microbatch_bytes(t->work, size, TKE_KEEP_ALL) > allowed;
}

/* Takes as many datums from items[first] on as make a good microbatch. */
static size_t fill(const attempt *a, size_t first, tke_microbatch_size *size)
{
    size_t i = first;
    *size = (tke_microbatch_size){ .depth = depth_of(a->items[first].state->pass) };
    for (; i < a->n_items; i++) {
        const tke_item *item = &a->items[i];
        tke_microbatch_size more = *size;
        more.n += item->datum->n;
        if (rank_of(item) > more.max_rank)
            more.max_rank = rank_of(item);
        if (item->datum->k > more.max_k)
            more.max_k = item->datum->k;
        if (i > first && (depth_of(item->state->pass) != size->depth || too_large(a->t, &more)))
            break;
        *size = more;
    }
    assert(i > first); /* a datum that is too long gets its own microbatch */
    return i - first;
}

/* One segment for each run of items of one adapter. */
static void make_segments(tke_microbatch *u, const tke_item *items, tke_segment *segments)
{
    u->segments = segments;
    for (size_t i = 0; i < u->n_seqs; i++) {
        tke_pass *p = items[i].state->pass;
        const tke_lora *lora = p->adapter ? &p->adapter->lora : NULL;
        size_t n = u->n_segments, end = items[i].row + items[i].datum->n;
        assert(p->backward == (u->size.depth != TKE_DEPTH_NONE));
        if (u->size.depth == TKE_DEPTH_ALL && p->adapter->spec.train & TKE_TRAIN_ATTN)
            u->attn = true;
        if (tke_loss_row_of(&p->loss)->gather || p->loss.graph)
            u->sweep = true;
        if (n && segments[n - 1].lora == lora) {
            segments[n - 1].end = end;
            continue;
        }
        assert(!p->backward || p->adapter->work); /* copy_accumulators made it */
        segments[n] =
            (tke_segment){ items[i].row, end, lora, p->backward ? p->adapter->work : NULL };
        u->n_segments++;
    }
}

/* Concatenates the rows of the datums; everything is in the arena. */
static bool make_microbatch(tke_microbatch *u, tke_item *items, tkc_arena *arena, tinkc_error *err)
{
    size_t row = 0, n = u->size.n;
    int32_t *ids = tkc_arena_array(arena, n, sizeof *ids, err);
    int32_t *positions = tkc_arena_array(arena, n, sizeof *positions, err);
    int64_t *starts = tkc_arena_array(arena, u->n_seqs + 1, sizeof *starts, err);
    tke_segment *segments = tkc_arena_array(arena, u->n_seqs, sizeof *segments, err);
    if (tkc_failed(err))
        return false;
    for (size_t i = 0; i < u->n_seqs; i++) {
        const tke_datum *d = items[i].datum;
        items[i].row = row;
        starts[i] = (int64_t)row;
        memcpy(ids + row, d->tokens, d->n * sizeof *ids);
        for (size_t p = 0; p < d->n; p++)
            positions[row + p] = (int32_t)p;
        row += d->n;
    }
    starts[u->n_seqs] = (int64_t)row;
    assert(row == n);
    u->ids = ids;
    u->positions = positions;
    u->starts = starts;
    make_segments(u, items, segments);
    return true;
}

static bool run_microbatch(attempt *a, tke_item *items, size_t n_items,
                           const tke_microbatch_size *size, tkc_arena *arena)
{
    tke_pass_losses losses = {
        .items = items, .n_items = n_items, .max_k = size->max_k, .stop = a->t->o.stop
    };
    tke_microbatch u = {
        .size = *size, .n_seqs = n_items, .losses = tke_pass_losses_run, .user = &losses
    };
    /* bytes_of is within the budget: the product is small */
    int32_t *targets = tkc_arena_array(arena, size->n * size->max_k, sizeof *targets, &a->err);
    if (!targets || !tke_pass_losses_prepare(&losses, arena, &a->err) ||
        !make_microbatch(&u, items, arena, &a->err))
        return false;
    tke_pass_targets(&losses, a->t->model->config.vocab, targets);
    u.targets = targets;
    return a->t->ops->microbatch_run(a->t->work, &u, &a->err);
}

static bool run_measured(attempt *a, tke_item *items, size_t n_items,
                         const tke_microbatch_size *size, tkc_arena *arena)
{
    tke_trainer *t = a->t;
    int64_t start = t->o.now_ns();
    bool ok = run_microbatch(a, items, n_items, size, arena);
    int64_t each = (t->o.now_ns() - start) / (int64_t)size->n;
    if (t->started[size->depth] || !t->o.starts_slowly)
        t->token_ns[size->depth] = each > 0 ? each : 1;
    t->ran = t->started[size->depth] = true;
    return ok;
}

static bool run_microbatches(attempt *a)
{
    tkc_arena arena;
    bool ok = true;
    tkc_arena_init(&arena, NULL, 0);
    for (size_t first = 0, n; first < a->n_items && ok; first += n) {
        tke_microbatch_size size;
        if (a->t->ran && a->t->o.between)
            a->t->o.between(a->t->o.user);
        n = fill(a, first, &size);
        tkc_arena_reset(&arena);
        ok = run_measured(a, a->items + first, n, &size, &arena);
    }
    tkc_arena_free(&arena);
    return ok;
}

/* ---- attempts ---- */

/* Chooses what runs now: all that is left, except that an adapter whose passes must run alone gets
 * one pass at a time. */
static bool choose(tke_pass_state *states, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        tke_pass_state *s = &states[i];
        s->chosen = !s->done;
        for (size_t k = 0; k < i && s->chosen && s->solo; k++)
            if (states[k].chosen && states[k].pass->adapter == s->pass->adapter)
                s->chosen = false;
        s->sums = (tke_loss_sums){ 0 };
        any = any || s->chosen;
    }
    return any;
}

/* The copies that gradients are added to. */
static void copy_accumulators(tke_trainer *t, tke_pass_state *states, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tke_pass *p = states[i].pass;
        if (!states[i].chosen || !p->backward)
            continue;
        tke_adapter *a = p->adapter;
        size_t count = a->layout->n_floats;
        if (!a->work)
            a->work = t->ops->block_new(t->device, count, &p->err);
        if (!a->work || !t->ops->block_copy(t->device, a->work, a->grads, count, &p->err))
            states[i].done = true, states[i].chosen = false;
    }
}

/* Did every chosen backward pass of this adapter succeed? */
static bool adapter_succeeded(const tke_pass_state *states, size_t n, const tke_adapter *adapter)
{
    for (size_t i = 0; i < n; i++)
        if (states[i].chosen && states[i].pass->backward && states[i].pass->adapter == adapter &&
            states[i].failed)
            return false;
    return true;
}

/* The sum is NaN: if one pass ran, it fails; otherwise each must run alone to find which one. */
static void blame(tke_pass_state *states, size_t n, const tke_adapter *adapter)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += states[i].chosen && states[i].pass->backward && states[i].pass->adapter == adapter;
    for (size_t i = 0; i < n; i++) {
        tke_pass_state *s = &states[i];
        if (!s->chosen || !s->pass->backward || s->pass->adapter != adapter)
            continue;
        s->solo = true;
        if (count == 1) {
            s->failed = !tkc_fail(&s->pass->err, TINKC_E_SERVER, "the gradient is not finite");
            s->pass->not_finite = true;
        }
    }
}

static void commit(tke_pass_state *states, size_t n, tke_adapter *adapter)
{
    assert(adapter->work && adapter->work != adapter->grads);
    tke_block *old = adapter->grads;
    adapter->grads = adapter->work;
    adapter->work = old;
    for (size_t i = 0; i < n; i++) {
        tke_pass_state *s = &states[i];
        if (!s->chosen || s->done || !s->pass->backward || s->pass->adapter != adapter)
            continue;
        adapter->n_fwdbwd++;
        adapter->n_tokens += s->sums.n_tokens;
        finish_pass(s);
    }
}

/* All passes of an adapter have succeeded: commits their sum if it is finite. */
static void settle_adapter(attempt *a, tke_adapter *adapter)
{
    bool finite;
    if (!a->t->ops->block_finite(a->t->device, adapter->work, adapter->layout->n_floats, &finite,
                                 &a->err))
        return;
    if (finite)
        commit(a->states, a->n, adapter);
    else
        blame(a->states, a->n, adapter);
}

/* Outcomes of an attempt that ran to its end. */
static void settle(attempt *a)
{
    for (size_t i = 0; i < a->n; i++) {
        tke_pass_state *s = &a->states[i];
        if (!s->chosen || s->done || s->failed || tkc_failed(&a->err))
            continue;
        if (!s->pass->backward) {
            finish_pass(s);
        } else if (adapter_succeeded(a->states, a->n, s->pass->adapter)) {
            settle_adapter(a, s->pass->adapter);
        }
    }
    for (size_t i = 0; i < a->n; i++)
        if (a->states[i].chosen && a->states[i].failed)
            a->states[i].done = true;
}

/* One attempt at all that is left. False if nothing is left or nothing more can be done. */
static bool run_attempt(tke_trainer *t, tke_pass_state *states, size_t n)
{
    attempt a = { .t = t, .states = states, .n = n };
    if (!choose(states, n))
        return false;
    copy_accumulators(t, states, n);
    tkc_arena_init(&a.arena, NULL, 0);
    if (collect_items(&a) && run_microbatches(&a))
        settle(&a);
    tkc_arena_free(&a.arena);
    for (size_t i = 0; i < n && tkc_failed(&a.err); i++)
        if (!states[i].done) {
            tkc_error_copy(&states[i].pass->err, &a.err);
            states[i].done = true;
        }
    return true;
}

void tke_trainer_run(tke_trainer *t, tke_pass *const *passes, size_t n)
{
    tinkc_error err = { 0 };
    tke_pass_state *states = tkc_zalloc(NULL, n * sizeof *states, &err);
    for (size_t i = 0; i < n && !states; i++) {
        passes[i]->err = err;
        passes[i]->out = (tke_pass_out){ 0 };
        tkc_arena_init(&passes[i]->arena, NULL, 0);
    }
    if (!states)
        return;
    t->ran = false;
    for (size_t i = 0; i < n; i++)
        begin_pass(t, &states[i], passes[i]);
    while (run_attempt(t, states, n))
        ;
    for (size_t i = 0; i < n; i++) {
        assert(states[i].done);
        if (passes[i]->err.code && passes[i]->backward && passes[i]->adapter)
            passes[i]->adapter->n_failed++;
    }
    tkc_release(NULL, states, n * sizeof *states);
}
