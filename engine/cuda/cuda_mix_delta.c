/* cuda_mix_delta.c - linear attention by the gated delta rule as a layer's mixer: a short convolution over q, k and v, the rule, a
 * gated norm.
 *
 * A sequence's slot has the last rows before the convolution, then the rule's state. Of the forward pass only the products with the
 * input are kept, because the states at the chunks' edges are larger than all the rule reads: the backward pass runs the rule again,
 * unless there is room to keep a layer whole.
 *
 * May touch: its slots and the states of its sequences.
 */
#include "cuda/cuda_delta.h"
#include "cuda/cuda_part.h"
#include "cuda/cuda_rules.h"

_Static_assert((int)TCU_DELTA_CHUNK == (int)TCU_PIECE_ROWS, "a piece lies in one chunk");
_Static_assert((int)TCU_DELTA_CHUNK == (int)TKE_STATE_EDGE, "snapshots are taken between chunks");

/* kept: q, k, v before the convolution and z side by side, A x; of a layer that is kept whole what follows, as in work */
enum { IN, LOW_IN, WHOLE };
/* work: after the convolution; of the rule, with N and states at edges; then gradients */
enum {
    C,
    GATES,
    Q,
    K,
    STRENGTH,
    G,
    SUMS,
    KK,
    QK,
    O,
    Y,
    ROWS,
    STATES,
    OF_FORWARD,
    LOW_OUT = OF_FORWARD,
    DSTATES,
    Z,
    DQ,
    DK,
    DC,
    DGATES,
    DY,
    D_IN
};

static size_t conv_columns(const tcu_layer *l)
{
    const tcu_linear *in = &l->delta.in;
    return (size_t)(in->out[0] + in->out[1] + in->out[2]);
}

static bool runs(const tke_model *m, const tke_layer *l, tinkc_error *err)
{
    const tke_delta *d = l->delta;
    (void)m;
    return ((d->n_value_heads * d->value_dim) % 8 == 0 && d->key_dim <= TCU_DELTA_KEYS &&
            d->value_dim <= TCU_DELTA_DIM && d->kernel <= TCU_CONV_KERNEL) ||
           tkc_fail(
               err, TINKC_E_UNSUPPORTED,
               "linear attention with heads of %zu and %zu numbers, a convolution of %zu (up to "
               "%d, %d, %d; all heads of values a multiple of 8)",
               d->key_dim, d->value_dim, d->kernel, TCU_DELTA_KEYS, TCU_DELTA_DIM, TCU_CONV_KERNEL);
}

static void weights(tcu_loader *loader, const tke_layer *from, tcu_layer *to)
{
    const tke_delta *d = from->delta;
    tcu_delta *x = &to->delta;
    size_t heads = d->n_value_heads,
           channels = 2 * d->n_key_heads * d->key_dim + heads * d->value_dim;
    tcu_load_group(loader, d->in, NULL, NULL, &x->in);
    tcu_load_group(loader, d->gates, NULL, NULL, &x->gates);
    tcu_load_group(loader, d->out, NULL, NULL, &x->out);
    x->of = d;
    tcu_load_vector(loader, d->conv, d->kernel * channels, d->kernel * channels, &x->conv);
    tcu_load_vector(loader, d->decay, heads, heads, &x->decay);
    tcu_load_vector(loader, d->dt_bias, heads, heads, &x->dt_bias);
    tcu_load_vector(loader, d->norm, d->value_dim, d->value_dim, &x->norm);
}

/* What the forward pass makes of the products with the input; `back`: for a backward pass. */
static void made(tcu_walk *w, const tcu_layer *l, const tcu_size *s, bool back, tcu_slots *t, int first)
{
    const tke_delta *d = l->delta.of;
    size_t n = s->n, heads = d->n_value_heads, kd = d->n_key_heads * d->key_dim,
           vd = heads * d->value_dim, edges = (n / TCU_DELTA_CHUNK + 1) * vd * d->key_dim;
    TCU_SLOT(w, t, first + C, tcu_bf16, n * conv_columns(l));
    TCU_SLOT(w, t, first + GATES, float, n *(size_t)l->delta.gates.rows);
    TCU_SLOT(w, t, first + Q, float, n *kd);
    TCU_SLOT(w, t, first + K, float, n *kd);
    TCU_SLOT(w, t, first + STRENGTH, float, n *heads);
    TCU_SLOT(w, t, first + G, float, n *heads);
    TCU_SLOT(w, t, first + SUMS, double, n *heads);
    TCU_SLOT(w, t, first + KK, float, n *heads *TCU_DELTA_CHUNK);
    TCU_SLOT(w, t, first + QK, float, n *heads *TCU_DELTA_CHUNK);
    TCU_SLOT(w, t, first + O, float, n *vd);
    TCU_SLOT(w, t, first + Y, tcu_bf16, n * vd);
    if (!back)
        return;
    TCU_SLOT(w, t, first + ROWS, float, n *vd);
    TCU_SLOT(w, t, first + STATES, float, edges);
}

static void keep(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    (void)m;
    TCU_SLOT(w, t, IN, tcu_bf16, s->n * (size_t)l->delta.in.rows);
    TCU_SLOT(w, t, LOW_IN, tcu_bf16, s->n * (size_t)l->delta.in.n * s->most);
    for (int i = 0; i < OF_FORWARD; i++)
        t->at[WHOLE + i] = NULL;
    if (s->whole)
        made(w, l, s, true, t, WHOLE);
}

static void work(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tke_delta *d = l->delta.of;
    size_t n = s->n, heads = d->n_value_heads, kd = d->n_key_heads * d->key_dim,
           vd = heads * d->value_dim, edges = (n / TCU_DELTA_CHUNK + 1) * vd * d->key_dim;
    (void)m;
    made(w, l, s, s->n_data > 0, t, 0);
    TCU_SLOT(w, t, LOW_OUT, tcu_bf16, n * s->most);
    if (!s->n_data)
        return;
    TCU_SLOT(w, t, DSTATES, float, edges);
    TCU_SLOT(w, t, Z, float, n *vd);
    TCU_SLOT(w, t, DQ, float, n *kd);
    TCU_SLOT(w, t, DK, float, n *kd);
    TCU_SLOT(w, t, DC, tcu_bf16, n * conv_columns(l));
    TCU_SLOT(w, t, DGATES, tcu_bf16, n * (size_t)l->delta.gates.rows);
    TCU_SLOT(w, t, DY, tcu_bf16, n * vd);
    TCU_SLOT(w, t, D_IN, tcu_bf16, n * (size_t)l->delta.in.rows);
}

/* Is all kept that the forward pass makes? */
static bool whole(const tcu_turn *u)
{
    return u->keep->at[WHOLE] != NULL;
}

/* Where something is that the forward pass makes. */
static void *of_forward(const tcu_turn *u, int i)
{
    return whole(u) ? u->keep->at[WHOLE + i] : u->work->at[i];
}

/* ---- forward ---- */

static tcu_delta_shape shape_of(const tcu_layer *l)
{
    const tke_delta *d = l->delta.of;
    return (tcu_delta_shape){ .n_key_heads = (int32_t)d->n_key_heads,
                              .n_value_heads = (int32_t)d->n_value_heads,
                              .dk = (int32_t)d->key_dim,
                              .dv = (int32_t)d->value_dim,
                              .decay = l->delta.decay,
                              .dt_bias = l->delta.dt_bias };
}

/* Bytes of the rows before the convolution in a slot. */
static size_t conv_bytes(const tcu_layer *l)
{
    size_t bytes = (l->delta.of->kernel - 1) * conv_columns(l) * sizeof(tcu_bf16);
    return (bytes + 15) / 16 * 16;
}

static size_t state_bytes(const tcu_model *m, const tcu_layer *l)
{
    tcu_delta_shape shape = shape_of(l);
    (void)m;
    return conv_bytes(l) + tcu_delta_slot(&shape);
}

static tcu_conv conv_of(const tcu_turn *u)
{
    const tcu_delta *d = &u->layer->delta;
    const tcu_bf16 *m = u->keep->at[IN];
    int32_t kd = (int32_t)(d->of->n_key_heads * d->of->key_dim),
            vd = (int32_t)(d->of->n_value_heads * d->of->value_dim);
    int64_t ld = d->in.rows;
    return (tcu_conv){ .kernel = (int32_t)d->of->kernel,
                       .n_parts = 3,
                       .part = { { m, ld, kd },
                                 { m + d->in.out[0], ld, kd },
                                 { m + d->in.out[0] + d->in.out[1], ld, vd } },
                       .weights = d->conv,
                       .runs = u->rows->runs,
                       .n_runs = u->rows->n_runs,
                       .longest = u->rows->longest,
                       .slots = (tcu_bf16 *)u->states,
                       .stride = (int64_t)(u->state_stride / sizeof(tcu_bf16)) };
}

static tcu_delta_rule rule_of(const tcu_turn *u)
{
    const tcu_delta *d = &u->layer->delta;
    return (tcu_delta_rule){ .of = shape_of(u->layer),
                             .n = u->rows->n,
                             .runs = u->rows->runs,
                             .pieces = u->rows->pieces,
                             .n_runs = u->rows->n_runs,
                             .n_pieces = u->rows->n_pieces,
                             .longest = u->rows->longest,
                             .c = of_forward(u, C),
                             .ld_c = (int32_t)conv_columns(u->layer),
                             .k_at = d->in.out[0],
                             .v_at = d->in.out[0] + d->in.out[1],
                             .gates = of_forward(u, GATES),
                             .ld_gates = d->gates.rows,
                             .decay_at = d->gates.out[0],
                             .q = of_forward(u, Q),
                             .k = of_forward(u, K),
                             .strength = of_forward(u, STRENGTH),
                             .g = of_forward(u, G),
                             .sums = of_forward(u, SUMS),
                             .kk = of_forward(u, KK),
                             .qk = of_forward(u, QK),
                             .o = of_forward(u, O),
                             .slots = u->states ? u->states + conv_bytes(u->layer) : NULL,
                             .stride = u->state_stride };
}

static tcu_gated_norm norm_of(const tcu_turn *u)
{
    const tcu_delta *d = &u->layer->delta;
    return (tcu_gated_norm){ .n = u->rows->n,
                             .heads = (int32_t)d->of->n_value_heads,
                             .d = (int32_t)d->of->value_dim,
                             .w = d->norm,
                             .eps = (float)u->rows->model->config.rms_eps,
                             .z = (const tcu_bf16 *)u->keep->at[IN] + conv_columns(u->layer),
                             .ldz = d->in.rows };
}

/* From the products with the input to y before the last product. */
static bool run_rule(const tcu_turn *u, const tcu_delta_rule *rule, const tcu_bf16 *a,
                     tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    tcu_conv conv = conv_of(u);
    tcu_gated_norm norm = norm_of(u);
    if (!tcu_group_wide(u, &u->layer->delta.gates, a, of_forward(u, GATES), err) ||
        !tcu_ok(d, tcu_conv_forward(&conv, of_forward(u, C), rule->ld_c, d->stream),
                "a convolution", err))
        return false;
    if (tcu_delta_steps(rule)) {
        tcu_delta_rule step = *rule;
        step.o = NULL;
        return tcu_ok(d, tcu_delta_step(&step, &norm, of_forward(u, Y), d->stream),
                      "the delta rule", err);
    }
    return tcu_ok(d, tcu_delta_heads(rule, d->stream), "heads of unit length", err) &&
           tcu_ok(d, tcu_delta_forward(rule, d->stream), "the delta rule", err) &&
           tcu_ok(d, tcu_gated_forward(&norm, of_forward(u, O), of_forward(u, Y), d->stream),
                  "a gated norm", err);
}

/* In training u has no states, so a step and a forward pass differ in nothing else. */
static bool forward(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    tcu_delta_rule rule = rule_of(u);
    if (whole(u)) {
        rule.rows = of_forward(u, ROWS);
        rule.states = of_forward(u, STATES);
    }
    if (!tcu_group_forward(u, &u->layer->delta.in, a, u->keep->at[LOW_IN], u->keep->at[IN], err))
        return false;
    return !y || (run_rule(u, &rule, a, err) &&
                  tcu_group_forward(u, &u->layer->delta.out, of_forward(u, Y), u->work->at[LOW_OUT],
                                    y, err));
}

/* ---- backward ---- */

/* dy -> gradients of the rule's output, over it, and of z. */
static bool output_back(const tcu_turn *u, const tcu_bf16 *dy, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_delta *x = &u->layer->delta;
    tcu_gated_norm norm = norm_of(u);
    void *const *w = u->work->at;
    tcu_bf16 *dz = (tcu_bf16 *)w[D_IN] + conv_columns(u->layer);
    return tcu_group_low(u, &x->out, of_forward(u, Y), w[LOW_OUT], err) &&
           tcu_group_back(u, &x->out, of_forward(u, Y), dy, w[LOW_OUT], false, w[DY], err) &&
           tcu_ok(d, tcu_gated_back(&norm, of_forward(u, O), w[DY], dz, x->in.rows, d->stream),
                  "a gated norm", err);
}

static bool rule_back(const tcu_turn *u, const tcu_delta_rule *rule, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_delta *x = &u->layer->delta;
    tcu_conv conv = conv_of(u);
    tcu_bf16 *dm = u->work->at[D_IN], *const parts[] = { dm, dm + rule->k_at, dm + rule->v_at };
    size_t bytes = (size_t)u->rows->padded * (size_t)x->gates.rows * sizeof(tcu_bf16);
    return tcu_ok(d, (int)cudaMemsetAsync(rule->dgates, 0, bytes, d->stream), "clearing", err) &&
           tcu_ok(d, tcu_delta_backward(rule, d->stream), "the delta rule, backward", err) &&
           tcu_ok(d, tcu_delta_heads_back(rule, d->stream), "heads of unit length", err) &&
           tcu_ok(d, tcu_conv_back(&conv, rule->dc, rule->ld_c, parts, d->stream), "a convolution",
                  err);
}

static bool backward(const tcu_turn *u, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                     tinkc_error *err)
{
    const tcu_delta *x = &u->layer->delta;
    void *const *t = u->keep->at, *const *w = u->work->at;
    tcu_delta_rule rule = rule_of(u);
    rule.rows = of_forward(u, ROWS);
    rule.states = of_forward(u, STATES);
    rule.d_o = of_forward(u, O);
    rule.z = w[Z];
    rule.dstates = w[DSTATES];
    rule.dq = w[DQ];
    rule.dk = w[DK];
    rule.dc = w[DC];
    rule.dgates = w[DGATES];
    return (whole(u) || run_rule(u, &rule, a, err)) && output_back(u, dy, err) && rule_back(u, &rule, err) &&
           tcu_group_back(u, &x->in, a, w[D_IN], t[LOW_IN], false, dx, err) &&
           (!dx || tcu_group_back(u, &x->gates, a, w[DGATES], NULL, true, dx, err));
}

const tcu_part tcu_part_delta = { .runs = runs,
                                  .weights = weights,
                                  .keep = keep,
                                  .work = work,
                                  .forward = forward,
                                  .backward = backward,
                                  .step = forward,
                                  .state_bytes = state_bytes };
