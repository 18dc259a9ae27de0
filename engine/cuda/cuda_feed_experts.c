/* cuda_feed_experts.c - a feed-forward of experts: a router, the chosen experts of each row, their weighted sum.
 *
 * Of the adapters of gate and up A is shared, so A x is computed once for a row; of down B is shared, so it is applied once to the
 * weighted sum of A_e h_e. Training and sampling run this same code. May touch: the buffers it is given.
 *
 * Rounding points: logits and weights are fp32; gate and up are bf16(fma(scale, B_e low, W_e x) + bias), an expert's result
 * bf16(W_e h + bias); the weighted sums are fp32, and y = bf16(fma(scale, B sum(w A_e h), sum(w result))).
 */
#include "cuda/cuda_part.h"

enum { FEW_ROWS = 256 };

/* kept: gates and ups of pairs, A x of the groups, who goes where */
enum { GU, LOW_IN, LOW_OUT, CHOSEN, PAIR_OF, SLOT_OF, WEIGHT, START, TILES, COUNTS, LOGITS };
/* and of the expert of every row: the dense part's, its result, the gate before the sigmoid */
enum { SHARED = LOGITS + 1, RESULT = SHARED + TCU_DENSE_KEPT, GATE };
/* work: what pairs make, in bf16 and in fp32; a stack without packing; logits that nobody reads again; backward */
enum { M, WIDE, LOW, UNPACKED, CHOICE, DM, PAIR_LOW, DWEIGHT, DLOGITS, STEPS, N_STEPS };
enum { SHARED_M = N_STEPS + 1, SHARED_DM, DRESULT, DINPUT, DGATE };

static bool runs(const tke_model *m, const tke_layer *l, tinkc_error *err)
{
    const tke_experts *x = l->experts;
    (void)m;
    if (x->n > TCU_MAX_EXPERTS || x->top > TCU_MAX_TOP)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "%zu experts, %zu of them for a row (up to %d, %d)",
                        x->n, x->top, TCU_MAX_EXPERTS, TCU_MAX_TOP);
    if (x->gate.bias && !x->paired) /* gpt-oss of a GGUF file */
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "biases of gates and of ups apart");
    return (x->route != TKE_ROUTE_SIGMOID || x->sigmoid.n_groups <= TCU_MAX_EXPERT_GROUPS) ||
           tkc_fail(err, TINKC_E_UNSUPPORTED, "experts in %zu groups (up to %d)",
                    x->sigmoid.n_groups, TCU_MAX_EXPERT_GROUPS);
}

static void weights(tcu_loader *loader, const tke_layer *from, tcu_layer *to)
{
    tcu_load_experts(loader, from->experts, &to->experts);
}

/* ---- memory ---- */

static int32_t tile_rows(size_t n)
{
    return n <= FEW_ROWS ? TCU_FEW_TILE : TCU_MANY_TILE;
}

/* Is more than the chosen experts' weights needed to go back through the router? */
static bool keeps_logits(const tcu_experts *x)
{
    return x->of->route != TKE_ROUTE_CHOSEN;
}

static void keep(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tcu_experts *x = &l->experts;
    size_t n = s->n, pairs = n * (size_t)x->top, experts = (size_t)x->n;
    size_t few_pairs = (n < FEW_ROWS ? n : FEW_ROWS) * (size_t)x->top;
    size_t few = (size_t)tcu_tile_room((int32_t)few_pairs, x->n, TCU_FEW_TILE),
           many = (size_t)tcu_tile_room((int32_t)pairs, x->n, TCU_MANY_TILE);
    TCU_SLOT(w, t, GU, tcu_bf16, pairs * (size_t)x->in.n * (size_t)x->width);
    TCU_SLOT(w, t, LOW_IN, tcu_bf16, n * (size_t)x->in.n * s->most);
    TCU_SLOT(w, t, LOW_OUT, tcu_bf16, n * s->most);
    TCU_SLOT(w, t, CHOSEN, int32_t, pairs);
    TCU_SLOT(w, t, PAIR_OF, int32_t, pairs);
    TCU_SLOT(w, t, SLOT_OF, int32_t, pairs);
    TCU_SLOT(w, t, WEIGHT, float, pairs);
    TCU_SLOT(w, t, START, int32_t, experts + 2);
    TCU_SLOT(w, t, TILES, tcu_tile, few > many ? few : many);
    TCU_SLOT(w, t, COUNTS, int32_t, (size_t)tcu_order_chunks((int32_t)pairs) * experts);
    if (keeps_logits(x))
        TCU_SLOT(w, t, LOGITS, float, n * (size_t)x->padded);
    if (!x->shared.inner)
        return;
    tcu_dense_keep(w, &x->shared, s, t, SHARED);
    TCU_SLOT(w, t, RESULT, tcu_bf16, n * (size_t)m->hidden);
    TCU_SLOT(w, t, GATE, float, n * (size_t)x->shared_gate.rows);
}

static void work(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tcu_experts *x = &l->experts;
    size_t n = s->n, pairs = n * (size_t)x->top, in = (size_t)x->in.n;
    TCU_SLOT(w, t, M, tcu_bf16, pairs * (size_t)x->width);
    TCU_SLOT(w, t, WIDE, tcu_bf16, pairs * (size_t)m->hidden);
    TCU_SLOT(w, t, LOW, float, pairs * in * s->most);
    TCU_SLOT(w, t, UNPACKED, tcu_bf16, x->unpacked);
    TCU_SLOT(w, t, CHOICE, float, n * (size_t)x->padded);
    TCU_SLOT(w, t, SHARED_M, tcu_bf16, n * (size_t)x->shared.inner);
    if (!s->n_data)
        return;
    if (x->shared.inner) {
        TCU_SLOT(w, t, SHARED_DM, tcu_bf16, n * (size_t)x->shared.inner);
        TCU_SLOT(w, t, DRESULT, tcu_bf16, n * (size_t)m->hidden);
        TCU_SLOT(w, t, DINPUT, tcu_bf16, n * (size_t)m->hidden);
        TCU_SLOT(w, t, DGATE, float, n);
    }
    TCU_SLOT(w, t, DM, tcu_bf16, pairs * (size_t)x->width);
    TCU_SLOT(w, t, PAIR_LOW, tcu_bf16, pairs * in * s->most);
    TCU_SLOT(w, t, DWEIGHT, float, pairs);
    TCU_SLOT(w, t, DLOGITS, tcu_bf16, n * (size_t)x->padded);
    TCU_SLOT(w, t, STEPS, tcu_step,
             (size_t)tcu_steps_at((int32_t)pairs, x->n, (int32_t)s->n_data) + 1);
    TCU_SLOT(w, t, N_STEPS, int32_t, (size_t)x->n);
}

/* ---- what forward and backward share ---- */

static const tcu_experts *experts_of(const tcu_turn *u)
{
    return &u->layer->experts;
}

/* The tables of the rows at hand, which may be fewer than there is room for. */
static tcu_pairs pairs_of(const tcu_turn *u)
{
    void *const *t = u->keep->at;
    return (tcu_pairs){ .n = u->rows->n,
                        .top = experts_of(u)->top,
                        .n_experts = experts_of(u)->n,
                        .tile_rows = tile_rows((size_t)u->rows->n),
                        .chosen = t[CHOSEN],
                        .pair_of = t[PAIR_OF],
                        .slot_of = t[SLOT_OF],
                        .start = t[START],
                        .weight = t[WEIGHT],
                        .tiles = t[TILES],
                        .counts = t[COUNTS] };
}

static tcu_router router_of(const tcu_turn *u)
{
    const tcu_experts *x = experts_of(u);
    const tke_sigmoid_route *s = &x->of->sigmoid;
    return (tcu_router){ .all = x->of->route == TKE_ROUTE_ALL,
                         .ld = x->padded,
                         .bias = x->router_bias,
                         .present = u->rows->positions,
                         .choice = x->choice,
                         .n_groups = (int32_t)s->n_groups,
                         .kept_groups = (int32_t)s->kept_groups,
                         .normalised = s->normalised,
                         .scale = (float)s->scale };
}

static tcu_expert_act act_of(const tcu_turn *u)
{
    const tcu_experts *x = experts_of(u);
    return (tcu_expert_act){ .width = x->width,
                             .limit = (float)x->of->limit,
                             .alpha = (float)x->of->alpha,
                             .squared = x->of->squared };
}

static float *logits_of(const tcu_turn *u)
{
    return keeps_logits(experts_of(u)) ? u->keep->at[LOGITS] : u->work->at[CHOICE];
}

/* Are products made strip by strip (cuda_strips.cu)? */
static bool by_strips(const tcu_pairs *pairs, const tcu_stack *s)
{
    return pairs->tile_rows == TCU_FEW_TILE && !s->w;
}

/* A stack that products can read: few rows read packed ones. */
static bool ready_stack(const tcu_turn *u, const tcu_stack *s, const tcu_pairs *pairs,
                        bool transposed, tcu_stack *out, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    *out = *s;
    if (s->w || (!transposed && pairs->tile_rows == TCU_FEW_TILE))
        return true;
    out->w = u->work->at[UNPACKED];
    return tcu_ok(d, tcu_unpack(s, pairs, out->w, d->stream), "unpacking experts", err);
}

static tcu_grouped grouped_of(const tcu_turn *u, const tcu_linear *g)
{
    return (tcu_grouped){ .pairs = pairs_of(u),
                          .parts = 1,
                          .lora = tcu_rows_lora(u->rows, g),
                          .segment_of = u->rows->segment_of };
}

/* The experts' product with x; `how` says everything but the matrices. */
static bool multiply(const tcu_turn *u, const tcu_stack *s, tcu_grouped *how, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    how->bias = how->transposed ? NULL : s->bias;
    return ready_stack(u, s, &how->pairs, how->transposed, &how->w, err) &&
           tcu_ok(d, tcu_grouped_product(how, d->stream), "experts", err);
}

/* ---- forward ---- */

static tcu_norm_route norm_route_of(const tcu_turn *u)
{
    const tcu_model *m = u->rows->model;
    const tcu_experts *x = experts_of(u);
    tcu_norm_route p = { .eps = (float)m->config.rms_eps,
                         .w = x->router,
                         .padded = x->padded,
                         .hidden = m->hidden,
                         .logits = u->work->at[CHOICE],
                         .router = router_of(u),
                         .pairs = pairs_of(u) };
    if (u->normed) {
        p.h = u->normed->h;
        p.y = u->normed->y;
        p.h_out = u->normed->h_out;
        p.norm = u->normed->weights;
        p.a = u->normed->a;
    }
    return p;
}

static bool norms(const tcu_turn *u)
{
    const tcu_norm_route p = norm_route_of(u);
    return tcu_decode_here() &&
           tcu_norm_route_here(&p, u->rows->model->device->props.sharedMemPerBlockOptin);
}

static bool route(const tcu_turn *u, const tcu_bf16 *a, tinkc_error *err)
{
    tcu_model *m = u->rows->model;
    tcu_device *d = m->device;
    tcu_router router = router_of(u);
    tcu_pairs pairs = pairs_of(u);
    const tcu_experts *x = experts_of(u);
    tcu_product q = { .wide = true,
                      .x = a,
                      .w = x->router,
                      .y = logits_of(u),
                      .ldx = m->hidden,
                      .ldy = x->padded,
                      .m = u->rows->padded,
                      .n = x->padded,
                      .k = m->hidden,
                      .valid = u->rows->n };
    if (u->normed) {
        const tcu_norm_route p = norm_route_of(u);
        return tcu_ok(d, tcu_norm_route_run(&p, d->stream), "routing", err);
    }
    if (!tcu_multiply(d, &q, err))
        return false;
    if (u->cached && tcu_route_few_here(&pairs))
        return tcu_ok(d, tcu_route_few(&router, logits_of(u), &pairs, d->stream), "routing", err);
    return tcu_ok(d, tcu_route(&router, logits_of(u), &pairs, d->stream), "routing", err);
}

/* a -> gu, m of pairs. */
static bool make_inner(const tcu_turn *u, const tcu_bf16 *a, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_experts *x = experts_of(u);
    void *const *t = u->keep->at;
    tcu_grouped g = grouped_of(u, &x->in);
    tcu_expert_act act = act_of(u);
    g.x = a;
    g.ldx = u->rows->model->hidden;
    g.by_row = true;
    g.parts = x->in.n;
    g.y = t[GU];
    g.low = t[LOW_IN];
    g.ld_low = g.lora.ld_low;
    if (!tcu_group_low(u, &x->in, a, t[LOW_IN], err))
        return false;
    if (by_strips(&g.pairs, &x->gate_up)) {
        tcu_inner p = { .g = g, .act = act, .m = u->work->at[M] };
        p.g.w = x->gate_up;
        p.g.bias = x->gate_up.bias;
        p.g.y = u->cached ? NULL : g.y; /* for the backward pass */
        return tcu_ok(d, tcu_strips_inner(&p, d->stream), "experts", err);
    }
    return multiply(u, &x->gate_up, &g, err) &&
           tcu_ok(d,
                  tcu_act(&act, t[GU], u->work->at[M], (int64_t)u->rows->n * x->top, d->stream),
                  "SwiGLU", err);
}

/* The weighted sum of A_e h_e, once for a row. */
static bool make_low_down(const tcu_turn *u, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    tcu_grouped g = grouped_of(u, &experts_of(u)->out);
    float *low = u->work->at[LOW];
    g.x = u->work->at[M];
    g.ldx = g.w.in = experts_of(u)->width;
    int64_t ld = g.lora.ld_low;
    return !g.lora.most ||
           (tcu_ok(d, tcu_own_low(&g, false, low, ld, d->stream), "multiplying with an adapter",
                   err) &&
            tcu_ok(d,
                   tcu_pairs_low(&g.pairs, true, low, (int32_t)ld, u->keep->at[LOW_OUT], d->stream),
                   "adding experts", err));
}

static bool make_output(const tcu_turn *u, tcu_bf16 *y, tinkc_error *err)
{
    tcu_model *m = u->rows->model;
    tcu_device *d = m->device;
    const tcu_experts *x = experts_of(u);
    tcu_grouped g = grouped_of(u, &x->out);
    bool adapters = g.lora.most > 0;
    g.x = u->work->at[M];
    g.ldx = x->width;
    g.y = u->work->at[WIDE];
    if (!adapters && u->rows->n <= TCU_STRIP_ROWS && by_strips(&g.pairs, &x->down)) {
        g.w = x->down;
        g.bias = x->down.bias;
        return tcu_ok(d, tcu_strips_outer(&g, y, d->stream), "experts", err);
    }
    return multiply(u, &x->down, &g, err) &&
           tcu_ok(d,
                  tcu_pairs_combine(&g.pairs, g.y, m->hidden, adapters ? u->wide : NULL, y,
                                    d->stream),
                  "adding experts", err) &&
           (!adapters ||
            tcu_ok(d, tcu_lora_high(&g.lora, u->keep->at[LOW_OUT], u->wide, NULL, y, d->stream),
                   "adding an adapter", err));
}

/* ---- the expert of every row ---- */

static tcu_shared shared_of(const tcu_turn *u)
{
    const tcu_linear *gate = &experts_of(u)->shared_gate;
    return (tcu_shared){ .gate = gate->rows ? u->keep->at[GATE] : NULL,
                         .ld = gate->rows,
                         .rows = u->rows->n,
                         .width = u->rows->model->hidden };
}

/* Its result and its gate. */
static bool make_shared(const tcu_turn *u, const tcu_bf16 *a, tinkc_error *err)
{
    const tcu_experts *x = experts_of(u);
    void *const *t = u->keep->at;
    return tcu_dense_forward(u, &x->shared, SHARED, u->work->at[SHARED_M], a, t[RESULT], err) &&
           (!x->shared_gate.rows || tcu_group_wide(u, &x->shared_gate, a, t[GATE], err));
}

/* Is it made beside the chosen ones? Adapters have launches of their own beside products. */
static bool is_beside(const tcu_turn *u)
{
    return experts_of(u)->shared.inner && u->cached && !u->rows->most;
}

static bool make_beside(const tcu_turn *u, const tcu_bf16 *a, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    cudaStream_t stream = d->stream;
    if (!tcu_fork(d, 1, err))
        return false;
    d->stream = d->beside[0];
    bool ok = make_shared(u, a, err);
    d->stream = stream;
    return ok;
}

/* Adds its weighted result to y. */
static bool add_shared(const tcu_turn *u, tcu_bf16 *y, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    tcu_shared p = shared_of(u);
    return !y || tcu_ok(d, tcu_shared_add(&p, u->keep->at[RESULT], y, d->stream), "adding experts", err);
}

/* After the chosen ones: adds to dx. */
static bool shared_backward(const tcu_turn *u, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                            tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_experts *x = experts_of(u);
    void *const *w = u->work->at;
    tcu_shared p = shared_of(u);
    return !x->shared.inner ||
           (tcu_ok(d,
                   tcu_shared_back(&p, u->keep->at[RESULT], dy, w[DRESULT], w[DGATE], d->stream),
                   "the shared expert", err) &&
            tcu_dense_backward(u, &x->shared, SHARED, w[SHARED_M], w[SHARED_DM], a, w[DRESULT],
                               dx ? w[DINPUT] : NULL, err) &&
            (!dx || tcu_ok(d,
                           tcu_shared_join(&p, w[DINPUT], w[DGATE], x->shared_gate.w, dx,
                                           d->stream),
                           "the shared expert", err)));
}

static bool make_chosen(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    return make_inner(u, a, err) && make_low_down(u, err) && (!y || make_output(u, y, err));
}

static bool forward(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    if (!route(u, a, err))
        return false;
    if (is_beside(u))
        return make_beside(u, a, err) && make_chosen(u, a, y, err) &&
               tcu_join(u->rows->model->device, 1, err) && add_shared(u, y, err);
    return make_chosen(u, a, y, err) &&
           (!experts_of(u)->shared.inner || (make_shared(u, a, err) && add_shared(u, y, err)));
}

/* ---- backward ---- */

/* dy -> dm of each pair, before its weight; gradients of the shared B. */
static bool down_backward(const tcu_turn *u, const tcu_bf16 *dy, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    tcu_grouped g = grouped_of(u, &experts_of(u)->out);
    g.x = dy;
    g.ldx = u->rows->model->hidden;
    g.by_row = g.transposed = true;
    g.y = u->work->at[DM];
    g.low = u->dlow;
    g.ld_low = g.lora.ld_low;
    return tcu_ok(d, tcu_lora_dlow(&g.lora, dy, u->dlow, d->stream), "dlow", err) &&
           tcu_ok(d, tcu_lora_db(&g.lora, dy, u->keep->at[LOW_OUT], d->stream), "dB", err) &&
           multiply(u, &experts_of(u)->down, &g, err);
}

static tcu_own_gradient gradient_of(const tcu_turn *u, const tcu_linear *of, const tcu_bf16 *dy,
                                    int32_t parts)
{
    tcu_own_gradient g = { .pairs = pairs_of(u),
                           .lora = tcu_rows_lora(u->rows, of),
                           .steps = u->work->at[STEPS],
                           .n_steps = u->work->at[N_STEPS],
                           .n_data = u->rows->n_data,
                           .dy = dy,
                           .low = u->work->at[PAIR_LOW],
                           .width = experts_of(u)->width,
                           .parts = parts };
    g.ld_low = g.lora.ld_low;
    return g;
}

/* A_e += (w dlow)^T h; then dm -> the gradients of gate and up, over them, and of the router's weights. */
static bool inner_backward(const tcu_turn *u, const tcu_bf16 *dy, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *w = u->work->at;
    tcu_expert_act act = act_of(u);
    tcu_own_gradient g = gradient_of(u, &experts_of(u)->out, w[M], 0);
    return tcu_ok(d,
                  tcu_pairs_spread(&g.pairs, true, u->dlow, (int32_t)g.ld_low, w[PAIR_LOW],
                                   d->stream),
                  "dlow", err) &&
           tcu_ok(d, tcu_own_grow(&g, d->stream), "dA", err) &&
           tcu_ok(d,
                  tcu_act_back(&act, &g.pairs, u->keep->at[GU], w[M], w[DM],
                               experts_of(u)->down.bias, dy, u->rows->model->hidden, w[DWEIGHT],
                               d->stream),
                  "SwiGLU", err);
}

/* The gradients of gate and up -> those of their adapters; dlow of rows. */
static bool factors_backward(const tcu_turn *u, const tcu_bf16 *a, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *t = u->keep->at, *const *w = u->work->at;
    const tcu_linear *in = &experts_of(u)->in;
    tcu_own_gradient own = gradient_of(u, in, t[GU], in->n);
    tcu_grouped g = grouped_of(u, in);
    g.x = t[GU];
    g.ldx = in->n * (int64_t)own.width;
    g.w.in = own.width;
    g.parts = in->n;
    return tcu_ok(d,
                  tcu_pairs_spread(&g.pairs, false, t[LOW_IN], (int32_t)own.ld_low, w[PAIR_LOW],
                                   d->stream),
                  "low", err) &&
           tcu_ok(d, tcu_own_grow(&own, d->stream), "dB", err) &&
           tcu_ok(d, tcu_own_low(&g, true, w[LOW], own.ld_low, d->stream), "dlow", err) &&
           tcu_ok(d,
                  tcu_pairs_low(&g.pairs, false, w[LOW], (int32_t)own.ld_low, u->dlow, d->stream),
                  "dlow", err) &&
           tcu_ok(d, tcu_lora_da(&g.lora, u->dlow, a, d->stream), "dA", err);
}

/* What the router passes on to its input, in fp32 (u->wide). */
static bool router_backward(const tcu_turn *u, tinkc_error *err)
{
    tcu_model *m = u->rows->model;
    tcu_device *d = m->device;
    void *const *w = u->work->at;
    const tcu_experts *x = experts_of(u);
    tcu_router router = router_of(u);
    tcu_pairs pairs = pairs_of(u);
    tcu_product q = { .transposed = true,
                      .wide = true,
                      .x = w[DLOGITS],
                      .w = x->router,
                      .y = u->wide,
                      .ldx = x->padded,
                      .ldy = m->hidden,
                      .m = u->rows->padded,
                      .n = m->hidden,
                      .k = x->padded,
                      .valid = u->rows->n };
    return tcu_ok(d,
                  tcu_route_back(&router, logits_of(u), &pairs, w[DWEIGHT], w[DLOGITS], d->stream),
                  "routing", err) &&
           tcu_multiply(d, &q, err);
}

static bool input_backward(const tcu_turn *u, tcu_bf16 *dx, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_experts *x = experts_of(u);
    tcu_grouped g = grouped_of(u, &x->in);
    tcu_lora p = g.lora;
    g.x = u->keep->at[GU];
    g.ldx = x->in.n * (int64_t)x->width;
    g.transposed = true;
    g.y = u->work->at[WIDE];
    return router_backward(u, err) && multiply(u, &x->gate_up, &g, err) &&
           tcu_ok(d, tcu_lora_dx(&p, u->dlow, dx, d->stream), "dx of an adapter", err) &&
           tcu_ok(d,
                  tcu_pairs_gradient(&g.pairs, g.y, u->rows->model->hidden, u->wide, p.most > 0, dx,
                                     d->stream),
                  "adding experts", err);
}

static bool backward(const tcu_turn *u, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                     tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *w = u->work->at;
    tcu_expert_act act = act_of(u);
    tcu_pairs pairs = pairs_of(u);
    return tcu_ok(d,
                  tcu_act(&act, u->keep->at[GU], w[M], (int64_t)u->rows->n * pairs.top, d->stream),
                  "SwiGLU", err) &&
           tcu_ok(d,
                  tcu_expert_steps(&pairs, u->rows->starts, u->rows->n_data, w[STEPS], w[N_STEPS],
                                   d->stream),
                  "steps of experts", err) &&
           down_backward(u, dy, err) && inner_backward(u, dy, err) &&
           factors_backward(u, a, err) && (!dx || input_backward(u, dx, err)) &&
           shared_backward(u, a, dy, dx, err);
}

const tcu_part tcu_part_experts = { .runs = runs,
                                    .weights = weights,
                                    .keep = keep,
                                    .work = work,
                                    .forward = forward,
                                    .backward = backward,
                                    .norms = norms,
                                    .step = forward };
