/* cuda_mix_space.c - a state space (Mamba-2) as a layer's mixer: a short convolution over x, B and C, the rule, a gate and a norm
 * over groups.
 *
 * A sequence's state: of each head S before the open chunk, the open chunk's rows of x, B and what time steps are made of
 * (cuda_space.h), and the last rows before the convolution. May touch: its slots and the states.
 */
#include "cuda/cuda_part.h"
#include "cuda/cuda_space.h"

/* kept: z and x; B, C and what time steps are made of; the rule's output; A x of the groups */
enum { ZX, VECTORS, Y, LOW_IN, LOW_OUT };
/* work: after the convolution; after the norm; gradients, of o and y in one place; at the chunks' edges */
enum { C, O, D_O, DC, DZX, D_VECTORS, STATES, D_STATES };

static bool runs(const tke_model *m, const tke_layer *l, tinkc_error *err)
{
    const tke_space *s = l->space;
    (void)m;
    return (s->head_dim <= TCU_SPACE_P && s->state_dim <= TCU_SPACE_N &&
            s->kernel <= TCU_CONV_KERNEL) ||
           tkc_fail(err, TINKC_E_UNSUPPORTED,
                    "state spaces with heads of %zu numbers, states of %zu (up to %d, %d)",
                    s->head_dim, s->state_dim, TCU_SPACE_P, TCU_SPACE_N);
}

static void weights(tcu_loader *loader, const tke_layer *from, tcu_layer *to)
{
    const tke_space *m = from->space;
    tcu_space *x = &to->space;
    size_t heads = m->n_heads, inner = heads * m->head_dim;
    size_t channels = inner + 2 * m->n_groups * m->state_dim;
    tcu_load_group(loader, m->in, NULL, NULL, &x->in);
    tcu_load_group(loader, m->vectors, NULL, NULL, &x->vectors);
    tcu_load_group(loader, m->out, NULL, NULL, &x->out);
    tcu_load_vector(loader, m->conv, m->kernel * channels, m->kernel * channels, &x->conv);
    tcu_load_vector(loader, m->conv_bias, channels, channels, &x->conv_bias);
    tcu_load_vector(loader, m->decay, heads, heads, &x->decay);
    tcu_load_vector(loader, m->dt_bias, heads, heads, &x->dt_bias);
    tcu_load_vector(loader, m->skip, heads, heads, &x->skip);
    tcu_load_vector(loader, m->norm, inner, inner, &x->norm);
    x->of = m;
}

/* ---- descriptions for the kernels ---- */

static tcu_conv conv_of(const tcu_turn *u)
{
    const tcu_space *x = &u->layer->space;
    const tke_space *m = x->of;
    const tcu_bf16 *zx = u->keep->at[ZX], *vectors = u->keep->at[VECTORS];
    int32_t gn = (int32_t)(m->n_groups * m->state_dim);
    return (tcu_conv){ .kernel = (int32_t)m->kernel,
                       .n_parts = 3,
                       .part = { { zx + x->in.out[0], x->in.rows,
                                   (int32_t)(m->n_heads * m->head_dim) },
                                 { vectors, x->vectors.rows, gn },
                                 { vectors + x->vectors.out[0], x->vectors.rows, gn } },
                       .weights = x->conv,
                       .bias = x->conv_bias,
                       .runs = u->rows->runs,
                       .n_runs = u->rows->n_runs,
                       .longest = u->rows->longest };
}

/* The sizes of a layer's rule, without rows. */
static tcu_space_rule sizes_of(const tcu_space *x)
{
    const tke_space *m = x->of;
    tcu_space_rule r = { .n_heads = (int32_t)m->n_heads,
                         .n_groups = (int32_t)m->n_groups,
                         .p = (int32_t)m->head_dim,
                         .n = (int32_t)m->state_dim,
                         .decay = x->decay,
                         .dt_bias = x->dt_bias,
                         .skip = x->skip,
                         .step_min = (float)m->step_min,
                         .step_max = (float)m->step_max,
                         .b_at = x->in.out[1] };
    r.c_at = r.b_at + x->vectors.out[0];
    r.ldc = r.c_at + x->vectors.out[1];
    r.ldy = x->in.out[1];
    r.ld_times = x->vectors.rows;
    return r;
}

/* Of B, C and what time steps are made of, the last. */
static int32_t times_at(const tcu_space *x)
{
    return x->vectors.out[0] + x->vectors.out[1];
}

static tcu_space_rule rule_of(const tcu_turn *u)
{
    tcu_space_rule r = sizes_of(&u->layer->space);
    r.c = u->work->at[C];
    r.times = (const tcu_bf16 *)u->keep->at[VECTORS] + times_at(&u->layer->space);
    r.runs = u->rows->runs;
    r.n_runs = u->rows->n_runs;
    r.longest = u->rows->longest;
    r.y = u->keep->at[Y];
    r.slots = u->states;
    r.stride = (int64_t)u->state_stride;
    return r;
}

static tcu_space_norm norm_of(const tcu_turn *u)
{
    const tcu_space *x = &u->layer->space;
    const tke_space *m = x->of;
    return (tcu_space_norm){ .rows = u->rows->n,
                             .width = (int32_t)(m->n_heads * m->head_dim),
                             .n_groups = (int32_t)m->n_groups,
                             .weights = x->norm,
                             .eps = (float)u->rows->model->config.rms_eps,
                             .y = u->keep->at[Y],
                             .z = u->keep->at[ZX],
                             .ldy = x->in.out[1],
                             .ldz = x->in.rows,
                             .o = u->work->at[O],
                             .run_of = u->rows->run_of };
}

/* ---- memory ---- */

static void keep(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tcu_space *x = &l->space;
    (void)m;
    TCU_SLOT(w, t, ZX, tcu_bf16, s->n * (size_t)x->in.rows);
    TCU_SLOT(w, t, VECTORS, tcu_bf16, s->n * (size_t)x->vectors.rows);
    TCU_SLOT(w, t, Y, tcu_bf16, s->n * (size_t)x->in.out[1]);
    TCU_SLOT(w, t, LOW_IN, tcu_bf16, s->n * (size_t)x->in.n * s->most);
    TCU_SLOT(w, t, LOW_OUT, tcu_bf16, s->n * s->most);
}

static void work(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tcu_space *x = &l->space;
    tcu_space_rule r = sizes_of(x);
    (void)m;
    TCU_SLOT(w, t, C, tcu_bf16, s->n * (size_t)r.ldc);
    TCU_SLOT(w, t, O, tcu_bf16, s->n * (size_t)r.ldy);
    if (!s->n_data)
        return;
    TCU_SLOT(w, t, D_O, tcu_bf16, s->n * (size_t)r.ldy);
    TCU_SLOT(w, t, DC, tcu_bf16, s->n * (size_t)r.ldc);
    TCU_SLOT(w, t, DZX, tcu_bf16, s->n * (size_t)x->in.rows);
    TCU_SLOT(w, t, D_VECTORS, tcu_bf16, s->n * (size_t)x->vectors.rows);
    TCU_SLOT(w, t, STATES, tcu_bf16, tcu_space_edges(&r, s->n));
    TCU_SLOT(w, t, D_STATES, tcu_bf16, tcu_space_edges(&r, s->n));
}

static size_t conv_bytes(const tcu_space *x)
{
    tcu_space_rule r = sizes_of(x);
    return (x->of->kernel - 1) * (size_t)r.ldc * sizeof(tcu_bf16);
}

static size_t state_bytes(const tcu_model *m, const tcu_layer *l)
{
    tcu_space_rule r = sizes_of(&l->space);
    (void)m;
    return tcu_space_slot(&r) + conv_bytes(&l->space);
}

/* ---- forward ---- */

/* Can B, C and what time steps are made of be multiplied beside z and x? By our own kernel: the library's have one work space. */
static bool is_beside(const tcu_turn *u)
{
    const tcu_linear *v = &u->layer->space.vectors;
    return u->cached && !u->rows->most && v->w && !v->bias && u->rows->padded <= TCU_SMALL_ROWS;
}

static bool make_inputs(const tcu_turn *u, const tcu_bf16 *a, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_space *x = &u->layer->space;
    const tcu_linear *v = &x->vectors;
    void *const *t = u->keep->at;
    if (!is_beside(u))
        return tcu_group_forward(u, &x->in, a, t[LOW_IN], t[ZX], err) &&
               tcu_group_forward(u, v, a, NULL, t[VECTORS], err);
    return tcu_fork(d, 1, err) &&
           tcu_ok(d,
                  tcu_small(false, a, v->w, t[VECTORS], v->rows, u->rows->padded, v->rows, v->in,
                            NULL, NULL, d->beside[0]),
                  "multiplying few rows", err) &&
           tcu_group_forward(u, &x->in, a, t[LOW_IN], t[ZX], err) && tcu_join(d, 1, err);
}

static bool convolve(const tcu_turn *u, const tcu_conv *c, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    int64_t columns = sizes_of(&u->layer->space).ldc;
    return tcu_ok(d, tcu_conv_forward(c, u->work->at[C], columns, d->stream), "the convolution",
                  err);
}

static bool normed(const tcu_turn *u, const tcu_space_norm *norm, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    return tcu_ok(d, tcu_space_norm_forward(norm, d->stream), "the state space's norm", err);
}

static bool make_output(const tcu_turn *u, tcu_bf16 *y, tinkc_error *err)
{
    const tcu_linear *out = &u->layer->space.out;
    const tcu_bf16 *o = u->work->at[O];
    tcu_bf16 *low = u->keep->at[LOW_OUT];
    return y ? tcu_group_forward(u, out, o, low, y, err) : tcu_group_low(u, out, o, low, err);
}

/* In training and in a step; conv and rule say where the rows before these are. */
static bool run(const tcu_turn *u, const tcu_conv *conv, const tcu_space_rule *rule,
                const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    tcu_space_norm norm = norm_of(u);
    norm.rule = rule->slots ? rule : NULL;
    return make_inputs(u, a, err) && convolve(u, conv, err) &&
           tcu_ok(d, tcu_space_forward(rule, d->stream), "the state space", err) &&
           normed(u, &norm, err) && make_output(u, y, err);
}

static bool forward(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    tcu_conv conv = conv_of(u);
    tcu_space_rule rule = rule_of(u);
    rule.slots = NULL;
    return run(u, &conv, &rule, a, y, err);
}

static bool step(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    tcu_conv conv = conv_of(u);
    tcu_space_rule rule = rule_of(u);
    conv.slots = (tcu_bf16 *)(u->states + tcu_space_slot(&rule));
    conv.stride = (int64_t)(u->state_stride / sizeof(tcu_bf16));
    return run(u, &conv, &rule, a, y, err);
}

/* ---- backward ---- */

/* dy -> gradients of the rule's output and of the gate. */
static bool output_backward(const tcu_turn *u, const tcu_bf16 *dy, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *w = u->work->at;
    tcu_space_norm norm = norm_of(u);
    norm.d_o = norm.dy = w[D_O];
    norm.dz = w[DZX];
    return normed(u, &norm, err) &&
           tcu_group_back(u, &u->layer->space.out, w[O], dy, u->keep->at[LOW_OUT], false, w[D_O],
                          err) &&
           tcu_ok(d, tcu_space_norm_back(&norm, d->stream), "the state space's norm", err);
}

static bool rule_backward(const tcu_turn *u, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_space *x = &u->layer->space;
    void *const *w = u->work->at;
    tcu_conv conv = conv_of(u);
    tcu_space_rule r = rule_of(u);
    tcu_bf16 *vectors = w[D_VECTORS];
    tcu_bf16 *const grads[] = { (tcu_bf16 *)w[DZX] + x->in.out[0], vectors,
                                vectors + x->vectors.out[0] };
    r.slots = NULL;
    r.dy = w[D_O];
    r.dc = w[DC];
    r.d_times = vectors + times_at(x);
    r.states = w[STATES];
    r.d_states = w[D_STATES];
    return convolve(u, &conv, err) && /* again: forward's is not kept */
           tcu_ok(d, tcu_space_back(&r, d->stream), "the state space's gradient", err) &&
           tcu_ok(d, tcu_conv_back(&conv, w[DC], r.ldc, grads, d->stream),
                  "the convolution's gradient", err);
}

static bool backward(const tcu_turn *u, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                     tinkc_error *err)
{
    const tcu_space *x = &u->layer->space;
    void *const *w = u->work->at;
    return output_backward(u, dy, err) && rule_backward(u, err) &&
           tcu_group_back(u, &x->in, a, w[DZX], u->keep->at[LOW_IN], false, dx, err) &&
           (!dx || tcu_group_back(u, &x->vectors, a, w[D_VECTORS], NULL, true, dx, err));
}

const tcu_part tcu_part_space = { .runs = runs,
                                  .weights = weights,
                                  .keep = keep,
                                  .work = work,
                                  .forward = forward,
                                  .backward = backward,
                                  .step = step,
                                  .state_bytes = state_bytes };
