/* part_experts.c - a feed-forward of experts: a router, the chosen experts of each row, their weighted
 * sum.
 *
 * Of the adapters of gate and up A is shared, so A x is computed once for a row; of down B is shared, so it is
 * applied once to the weighted sum of A_e h_e. May touch: its slots.
 */
#include <assert.h>
#include <string.h>
#include "cpu/experts.h"

/* kept */
enum { LOGITS, WEIGHT, CHOSEN, PAIR_OF, SLOT_OF, START, GATE, UP, LOW_IN, LOW_DOWN, SHARED };
/* work, by pair: wide [H], h and dh [inner], gates and ups in turn, A x of gate and up, A h; by row: the latter's gradient,
 * that of the weights */
enum { WIDE, H, BOTH, DH, LOW_PAIR, DLOW_PAIR, OWN_LOW, DLOW, DWEIGHT, SHARED_WORK };

static void keep(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_experts *x = l->experts;
    size_t n = size->n, pairs = n * x->top;
    tke_take(w, &t->at[LOGITS], n * x->n);
    tke_take(w, &t->at[WEIGHT], pairs);
    tke_take(w, &t->at[CHOSEN], pairs);
    tke_take(w, &t->at[PAIR_OF], pairs);
    tke_take(w, &t->at[SLOT_OF], pairs);
    tke_take(w, &t->at[START], x->n + 1);
    tke_take(w, &t->at[GATE], pairs * x->inner);
    tke_take(w, &t->at[UP], x->squared ? 0 : pairs * x->inner);
    tke_take(w, &t->at[LOW_IN], n * size->max_rank * x->gate_up->n);
    tke_take(w, &t->at[LOW_DOWN], n * size->max_rank);
    if (x->shared)
        tke_shared_keep(w, x, size, &t->at[SHARED]);
}

static void work(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_experts *x = l->experts;
    size_t n = size->n, pairs = n * x->top;
    tke_take(w, &t->at[WIDE], pairs * x->out.out);
    tke_take(w, &t->at[H], pairs * x->inner);
    tke_take(w, &t->at[BOTH], x->paired ? 2 * pairs * x->inner : 0);
    tke_take(w, &t->at[LOW_PAIR], pairs * size->max_rank * x->gate_up->n);
    tke_take(w, &t->at[OWN_LOW], pairs * size->max_rank);
    if (x->shared)
        tke_shared_work(w, x, size, &t->at[SHARED_WORK]);
    if (size->depth != TKE_DEPTH_ALL)
        return;
    tke_take(w, &t->at[DH], pairs * x->inner);
    tke_take(w, &t->at[DLOW_PAIR], pairs * size->max_rank * x->gate_up->n);
    tke_take(w, &t->at[DLOW], n * size->max_rank);
    tke_take(w, &t->at[DWEIGHT], pairs);
}

/* Whole numbers in a slot. */
static int32_t *ints(tke_real *slot)
{
    return (int32_t *)(void *)slot;
}

static tke_pairs pairs_of(const tke_turn *u)
{
    const tke_experts *x = u->layer->experts;
    tke_real *const *t = u->keep->at;
    return (tke_pairs){ .n = u->rows->n,
                        .top = x->top,
                        .n_experts = x->n,
                        .chosen = ints(t[CHOSEN]),
                        .pair_of = ints(t[PAIR_OF]),
                        .slot_of = ints(t[SLOT_OF]),
                        .start = ints(t[START]),
                        .weight = t[WEIGHT] };
}

static bool adapted(const tke_rows *r)
{
    return r->max_rank > 0;
}

/* ---- forward ---- */

/* The router's product is exact in every precision: a choice must not depend on rounding. */
static void route(const tke_turn *u, const tke_real *x, tke_pairs *p)
{
    const tke_weight *w = &u->layer->experts->router;
    tke_real *logits = u->keep->at[LOGITS];
    tke_gemm g = { .form = TKE_NT,
                   .exact = true,
                   .m = (int64_t)p->n,
                   .n = (int64_t)w->out,
                   .k = (int64_t)w->in,
                   .alpha = 1,
                   .a = x,
                   .lda = (int64_t)w->in,
                   .b = w->m,
                   .c = logits,
                   .ldc = (int64_t)w->out };
    if (w->bias) {
        g.accumulate = true;
        tke_fill_rows(u->rows->cpu, g.m, g.n, tke_matrix_real(w->bias, g.n), logits, g.n);
    }
    tke_gemm_run(u->rows->cpu, &g);
    tke_route(u->rows->cpu, u->layer->experts, logits, p);
}

/* gate, up and their product h of all pairs. */
static void make_h(const tke_turn *u, const tke_pairs *p, const tke_real *x)
{
    const tke_experts *e = u->layer->experts;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    tke_cpu *cpu = u->rows->cpu;
    tke_pairs_gather(cpu, p, e->gate.in, x, w[WIDE]);
    if (e->paired) {
        tke_stack_forward(cpu, p, &e->gate, w[WIDE], w[BOTH]);
        tke_pairs_split(cpu, p, e->inner, w[BOTH], t[GATE], t[UP]);
    } else {
        tke_stack_forward(cpu, p, &e->gate, w[WIDE], t[GATE]);
        if (!e->squared)
            tke_stack_forward(cpu, p, &e->up, w[WIDE], t[UP]);
    }
    if (adapted(u->rows)) {
        tke_group_low(u->rows, e->gate_up, x, t[LOW_IN]);
        tke_pairs_gather(cpu, p, e->gate_up->n * u->rows->max_rank, t[LOW_IN], w[LOW_PAIR]);
        tke_own_b_forward(u->rows, p, e->gate_up, w[LOW_PAIR], &t[GATE]);
    }
    tke_experts_act(cpu, e, p, t[GATE], t[UP], w[H]);
}

static void forward(const tke_turn *u, const tke_real *x, tke_real *y)
{
    const tke_experts *e = u->layer->experts;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    tke_cpu *cpu = u->rows->cpu;
    tke_pairs p = pairs_of(u);
    route(u, x, &p);
    make_h(u, &p, x);
    if (adapted(u->rows)) {
        tke_own_a_forward(u->rows, &p, e->down, w[H], w[OWN_LOW]);
        tke_pairs_sum(cpu, &p, u->rows->max_rank, true, w[OWN_LOW], t[LOW_DOWN]);
    }
    if (y) {
        tke_stack_forward(cpu, &p, &e->out, w[H], w[WIDE]);
        tke_pairs_sum(cpu, &p, e->out.out, true, w[WIDE], y);
    }
    if (y && adapted(u->rows))
        tke_shared_b_forward(u->rows, e->down, t[LOW_DOWN], y);
    if (e->shared) /* the last of the sum */
        tke_shared_forward(u, &t[SHARED], &w[SHARED_WORK], x, y);
}

/* ---- backward ---- */

/* dy -> dh of each pair (in DH), before its weight; and what the weights get: h . dh, plus the
 * bias's share. */
static void down_backward(const tke_turn *u, const tke_pairs *p, const tke_real *dy)
{
    const tke_experts *e = u->layer->experts;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    tke_cpu *cpu = u->rows->cpu;
    size_t rank = u->rows->max_rank;
    tke_pairs_gather(cpu, p, e->out.out, dy, w[WIDE]);
    tke_stack_backward(cpu, p, &e->out, w[WIDE], false, w[DH]);
    if (adapted(u->rows)) {
        tke_shared_b_backward(u->rows, e->down, t[LOW_DOWN], dy, w[DLOW]);
        tke_pairs_gather(cpu, p, rank, w[DLOW], w[OWN_LOW]);
        tke_own_a_backward(u->rows, p, e->down, w[OWN_LOW], w[DH]);
        tke_pairs_scale(cpu, p, rank, w[OWN_LOW]);
        tke_own_a_gradient(u->rows, p, e->down, w[OWN_LOW], w[H]);
    }
    tke_pairs_dot(cpu, p, e->inner, w[H], w[DH], w[DWEIGHT]);
    if (e->out.bias)
        tke_pairs_dot_bias(cpu, p, e->out.out, e->out.bias, w[WIDE], w[DWEIGHT]);
    tke_pairs_scale(cpu, p, e->inner, w[DH]);
}

/* dgate, dup (in GATE, UP) -> gradients of the adapters, dx. */
static void in_backward(const tke_turn *u, const tke_pairs *p, const tke_real *x, tke_real *dx)
{
    const tke_experts *e = u->layer->experts;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    const tke_real *dgu[2] = { t[GATE], t[UP] };
    tke_cpu *cpu = u->rows->cpu;
    size_t low = e->gate_up->n * u->rows->max_rank;
    if (dx && e->paired) {
        tke_pairs_join(cpu, p, e->inner, t[GATE], t[UP], w[BOTH]);
        tke_stack_backward(cpu, p, &e->gate, w[BOTH], false, w[WIDE]);
    } else if (dx) {
        tke_stack_backward(cpu, p, &e->gate, t[GATE], false, w[WIDE]);
        if (!e->squared)
            tke_stack_backward(cpu, p, &e->up, t[UP], true, w[WIDE]);
    }
    if (dx)
        tke_pairs_sum(cpu, p, e->gate.in, false, w[WIDE], dx);
    if (!adapted(u->rows))
        return;
    tke_pairs_gather(cpu, p, low, t[LOW_IN], w[LOW_PAIR]);
    tke_own_b_backward(u->rows, p, e->gate_up, w[LOW_PAIR], dgu, w[DLOW_PAIR]);
    tke_pairs_sum(cpu, p, low, false, w[DLOW_PAIR], u->dlow);
    tke_group_low_backward(u->rows, e->gate_up, x, u->dlow, dx);
}

static void router_backward(const tke_turn *u, const tke_pairs *p, tke_real *dx)
{
    const tke_experts *e = u->layer->experts;
    tke_real *logits = u->keep->at[LOGITS];
    tke_route_backward(u->rows->cpu, e, p, u->work->at[DWEIGHT], logits);
    tke_gemm_run(u->rows->cpu, &(tke_gemm){ .form = TKE_NN,
                                            .accumulate = true,
                                            .exact = true,
                                            .m = (int64_t)p->n,
                                            .n = (int64_t)e->router.in,
                                            .k = (int64_t)e->n,
                                            .alpha = 1,
                                            .a = logits,
                                            .lda = (int64_t)e->n,
                                            .b = e->router.m,
                                            .c = dx,
                                            .ldc = (int64_t)e->router.in });
}

static void backward(const tke_turn *u, const tke_real *x, const tke_real *dy, tke_real *dx)
{
    const tke_experts *e = u->layer->experts;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    tke_pairs p = pairs_of(u);
    tke_experts_act(u->rows->cpu, e, &p, t[GATE], t[UP], w[H]);
    down_backward(u, &p, dy);
    tke_experts_act_backward(u->rows->cpu, e, &p, w[DH], t[GATE], t[UP]);
    in_backward(u, &p, x, dx);
    if (dx)
        router_backward(u, &p, dx);
    if (e->shared)
        tke_shared_backward(u, &t[SHARED], &w[SHARED_WORK], x, dy, dx);
}

const tke_part tke_part_experts = {
    .keep = keep, .work = work, .forward = forward, .backward = backward, .step = forward
};
