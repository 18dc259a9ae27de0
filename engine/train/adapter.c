/* adapter.c - adapters in memory: layout, seeded weights, snapshots, training states.
 *
 * May touch: memory. Must not: compute gradients (training.c), read or write files (adapter_file.c).
 */
#include "train/adapter.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include "base/str.h"
#include "model/philox.h"
#include "train/adapter_state.h"

enum { PAD = 16, MAX_RANK = 1 << 16, DEFAULT_ALPHA = 32 };

/* ---- layout ---- */

static size_t padded(size_t n)
{
    return (n + PAD - 1) / PAD * PAD;
}

/* Places one group at the end of the block. Sizes are bounded by the configuration's checks, so
 * nothing overflows a size_t. */
static void place_group(tke_lora_layout *l, const tke_group *of)
{
    tke_lora_group *g = &l->groups[of->index];
    assert(of->n >= 1 && of->n <= TKE_GROUP_MAX && !g->n); /* each is placed once */
    assert(l->n_floats % PAD == 0);
    *g = (tke_lora_group){ .of = of,
                           .n = of->n,
                           .in = of->w[0].in,
                           .rank = l->rank,
                           .n_a = of->shared == TKE_SHARED_B ? of->n_experts : 1,
                           .n_b = of->shared == TKE_SHARED_A ? of->n_experts : 1,
                           .a = l->n_floats };
    assert(g->n_a == 1 || g->n == 1); /* copies of one A lie together */
    l->n_floats += padded(g->n_a * g->n * l->rank * g->in);
    for (size_t i = 0; i < g->n; i++) {
        g->out[i] = of->w[i].out;
        g->b[i] = l->n_floats;
        l->n_floats += padded(g->n_b * g->out[i] * l->rank);
    }
}

tke_lora_layout *tke_layout_new(const tke_model *m, const tke_adapter_spec *spec, tinkc_error *err)
{
    tke_lora_layout *l = tkc_zalloc(NULL, sizeof *l + m->n_groups * sizeof *l->groups, err);
    if (!l)
        return NULL;
    l->groups = (tke_lora_group *)(l + 1);
    l->n_groups = m->n_groups;
    l->rank = (size_t)spec->rank;
    for (size_t i = 0; i < m->n_groups; i++)
        if (spec->train & m->groups[i]->train)
            place_group(l, m->groups[i]);
    return l;
}

void tke_layout_free(tke_lora_layout *l)
{
    if (l)
        tkc_release(NULL, l, sizeof *l + l->n_groups * sizeof *l->groups);
}

bool tke_layout_next(const tke_lora_layout *l, size_t *place, tke_tensor_ref *ref)
{
    for (; *place < l->n_groups * TKE_GROUP_MAX * 2; ++*place) {
        size_t at = *place / (TKE_GROUP_MAX * 2), i = *place / 2 % TKE_GROUP_MAX;
        const tke_lora_group *g = &l->groups[at];
        if (i >= g->n)
            continue;
        ref->weight = &g->of->w[i];
        ref->head = at == l->n_groups - 1;
        ref->is_b = *place % 2;
        size_t copies = ref->is_b ? g->n_b : g->n_a;
        ref->copies = g->of->shared ? copies : 0;
        ref->rows = ref->is_b ? g->out[i] : g->rank;
        ref->cols = ref->is_b ? g->rank : g->in;
        ref->offset = ref->is_b ? g->b[i] : g->a + i * g->rank * g->in;
        ref->count = copies * ref->rows * ref->cols;
        assert(ref->offset + ref->count <= l->n_floats);
        ++*place;
        return true;
    }
    return false;
}

tke_real *tke_reals_new(const tke_lora_layout *l, tinkc_error *err)
{
    enum { ALIGN = 64 };
    tke_real *reals = tkc_alloc_aligned(ALIGN, l->n_floats * sizeof *reals, err);
    if (reals)
        memset(reals, 0, l->n_floats * sizeof *reals);
    return reals;
}

/* ---- initialisation ---- */

float tke_lora_init(uint64_t hash, uint64_t seed, size_t in, uint64_t e)
{
    uint64_t folded = tke_fold_seed(seed);
    uint32_t key[2] = { (uint32_t)folded, (uint32_t)(folded >> 32) }, x[4];
    uint32_t counter[4] = { (uint32_t)e, (uint32_t)(e >> 32), (uint32_t)hash,
                            (uint32_t)(hash >> 32) };
    assert(in > 0);
    float bound = (float)(1.0 / sqrt((double)in));
    tke_philox(counter, key, x);
    return (float)(2.0 * (double)(x[0] >> 8) * 0x1p-24 - 1.0) * bound; /* the bracket is exact */
}

static void init_tensor(const tke_tensor_ref *ref, uint64_t seed, tke_real *a)
{
    uint64_t hash = tkc_hash(ref->weight->path, strlen(ref->weight->path));
    for (uint64_t e = 0; e < ref->count; e++)
        a[e] = (tke_real)tke_lora_init(hash, seed, ref->cols, e);
}

void tke_layout_init(const tke_lora_layout *l, uint64_t seed, tke_real *reals)
{
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(l, &place, &ref);)
        if (!ref.is_b)
            init_tensor(&ref, seed, reals + ref.offset);
}

static bool init_weights(tke_adapter *a, tinkc_error *err)
{
    tke_view view;
    if (!tke_view_open(&view, a->device, a->weights, a->layout->n_floats, err))
        return false;
    tke_layout_init(a->layout, a->spec.seed, view.data);
    return tke_view_close(&view, a->device, a->weights, err);
}

/* ---- adapters ---- */

static bool spec_ok(const tke_adapter_spec *spec, tinkc_error *err)
{
    if (spec->rank < 1 || spec->rank > MAX_RANK)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rank must be 1 to %d", MAX_RANK);
    if (!(spec->train & (TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED)))
        return tkc_fail(err, TINKC_E_ARGUMENT, "an adapter must train something");
    if (!(spec->alpha >= 0) || !isfinite(spec->alpha))
        return tkc_fail(err, TINKC_E_ARGUMENT, "alpha must be a positive number");
    return true;
}

static tke_lora view_of(const tke_lora_layout *l, const tke_block *weights,
                        const tke_adapter_spec *spec)
{
    assert(spec->alpha > 0 && spec->rank > 0 && l->rank == (size_t)spec->rank);
    return (tke_lora){ l, weights, (tke_real)(spec->alpha / (double)spec->rank) };
}

size_t tke_adapter_bytes(const tke_model *m, const tke_adapter_spec *spec)
{
    tinkc_error err = { 0 };
    if (!spec_ok(spec, &err))
        return SIZE_MAX;
    tke_lora_layout *l = tke_layout_new(m, spec, &err);
    size_t bytes = l ? l->n_floats * sizeof(tke_real) : SIZE_MAX;
    tke_layout_free(l);
    /* weights, gradients, two moments, and the copy a pass works on */
    return bytes == SIZE_MAX || !tkc_mul_size(bytes, 5, &bytes) ? SIZE_MAX : bytes;
}

static tke_block *new_block(const tke_adapter *a, tinkc_error *err)
{
    assert(a->layout->n_floats > 0); /* an adapter trains something */
    return a->device->ops->block_new(a->device, a->layout->n_floats, err);
}

tke_adapter *tke_adapter_new(tke_device *d, tke_model *m, const tke_adapter_spec *spec,
                             tinkc_error *err)
{
    if (tkc_failed(err) || !spec_ok(spec, err))
        return NULL;
    tke_adapter *a = tkc_zalloc(NULL, sizeof *a, err);
    if (!a)
        return NULL;
    a->device = d;
    a->model = tke_model_keep(m);
    a->spec = *spec;
    a->spec.seed = tke_fold_seed(spec->seed);
    if (a->spec.alpha == 0)
        a->spec.alpha = DEFAULT_ALPHA;
    a->layout = tke_layout_new(m, spec, err);
    if (a->layout) {
        a->weights = new_block(a, err);
        a->grads = new_block(a, err);
        a->m = new_block(a, err);
        a->v = new_block(a, err);
    }
    if (tkc_failed(err) || !init_weights(a, err)) {
        tke_adapter_free(a);
        return NULL;
    }
    a->lora = view_of(a->layout, a->weights, &a->spec);
    return a;
}

void tke_adapter_free(tke_adapter *a)
{
    if (!a)
        return;
    tke_block *blocks[] = { a->weights, a->grads, a->m, a->v, a->work };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        a->device->ops->block_free(a->device, blocks[i]);
    tke_layout_free(a->layout);
    tke_model_drop(a->model);
    tkc_release(NULL, a, sizeof *a);
}

const tke_adapter_spec *tke_adapter_get_spec(const tke_adapter *a)
{
    return &a->spec;
}

int64_t tke_adapter_step(const tke_adapter *a)
{
    return a->step;
}

size_t tke_adapter_n_params(const tke_adapter *a)
{
    size_t n = 0;
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(a->layout, &place, &ref);)
        n += ref.count;
    return n;
}

const tke_lora *tke_adapter_lora(const tke_adapter *a)
{
    return &a->lora;
}

/* ---- snapshots ---- */

tke_snapshot *tke_snapshot_new(tke_device *d, const tke_model *m, const tke_adapter_spec *spec,
                               tinkc_error *err)
{
    static atomic_ullong next_id = 1;
    if (tkc_failed(err) || !spec_ok(spec, err))
        return NULL;
    tke_snapshot *s = tkc_zalloc(NULL, sizeof *s, err);
    if (!s)
        return NULL;
    tkc_ref_init(&s->refs);
    s->id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed);
    s->device = d;
    s->model = tke_model_keep(m);
    s->spec = *spec;
    s->layout = tke_layout_new(m, spec, err);
    s->weights = s->layout ? d->ops->block_new(d, s->layout->n_floats, err) : NULL;
    if (!s->weights) {
        tke_snapshot_drop(s);
        return NULL;
    }
    s->lora = view_of(s->layout, s->weights, &s->spec);
    return s;
}

tke_snapshot *tke_snapshot_take(const tke_adapter *a, tinkc_error *err)
{
    tke_snapshot *s = tke_snapshot_new(a->device, a->model, &a->spec, err);
    assert(!s || s->layout->n_floats == a->layout->n_floats);
    if (s &&
        a->device->ops->block_copy(a->device, s->weights, a->weights, a->layout->n_floats, err))
        return s;
    tke_snapshot_drop(s);
    return NULL;
}

tke_snapshot *tke_snapshot_keep(const tke_snapshot *s)
{
    tke_snapshot *mine = (tke_snapshot *)(uintptr_t)s;
    tkc_ref_keep(&mine->refs);
    return mine;
}

void tke_snapshot_drop(tke_snapshot *s)
{
    if (!s || !tkc_ref_drop(&s->refs))
        return;
    s->device->ops->block_free(s->device, s->weights);
    tke_layout_free(s->layout);
    tke_model_drop(s->model);
    tkc_release(NULL, s, sizeof *s);
}

size_t tke_snapshot_bytes(const tke_snapshot *s)
{
    return s->layout->n_floats * sizeof(tke_real);
}

uint64_t tke_snapshot_id(const tke_snapshot *s)
{
    return s->id;
}

const tke_lora *tke_snapshot_lora(const tke_snapshot *s)
{
    return &s->lora;
}

const tke_model *tke_snapshot_model(const tke_snapshot *s)
{
    return s->model;
}

/* ---- training states ---- */

static tke_real *read_block(const tke_adapter *a, const tke_block *b, tinkc_error *err)
{
    tke_real *reals = tke_reals_new(a->layout, err);
    if (reals && !a->device->ops->block_read(a->device, b, reals, a->layout->n_floats, err)) {
        tkc_release_aligned(reals);
        reals = NULL;
    }
    return reals;
}

tke_state *tke_state_take(const tke_adapter *a, tinkc_error *err)
{
    tke_state *s = tkc_zalloc(NULL, sizeof *s, err);
    if (!s)
        return NULL;
    s->model = tke_model_keep(a->model);
    s->spec = a->spec;
    s->layout = tke_layout_new(a->model, &a->spec, err);
    s->weights = read_block(a, a->weights, err);
    s->grads = read_block(a, a->grads, err);
    s->m = read_block(a, a->m, err);
    s->v = read_block(a, a->v, err);
    s->step = a->step;
    s->n_fwdbwd = a->n_fwdbwd;
    s->n_tokens = a->n_tokens;
    if (!tkc_failed(err))
        return s;
    tke_state_free(s);
    return NULL;
}

void tke_state_free(tke_state *s)
{
    if (!s)
        return;
    tkc_release_aligned(s->weights);
    tkc_release_aligned(s->grads);
    tkc_release_aligned(s->m);
    tkc_release_aligned(s->v);
    tke_layout_free(s->layout);
    tke_model_drop(s->model);
    tkc_release(NULL, s, sizeof *s);
}

const tke_adapter_spec *tke_state_spec(const tke_state *s)
{
    return &s->spec;
}

int64_t tke_state_step(const tke_state *s)
{
    return s->step;
}
