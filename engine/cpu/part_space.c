/* part_space.c - a state space mixer (Mamba-2): a short convolution over x, B and C, the rule
 * (math/state_space.h), a gate and a norm over groups of channels.
 *
 * A sequence's state while decoding: the last rows before the convolution, and of the open chunk
 * the rows B of each group, S before it, the rows u and the decays of each head. Training keeps the
 * same in work space.
 *
 * May touch: its slots and the states of its sequences.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "cpu/short_conv.h"
#include "math/state_space.h"

enum { CHUNK = TKE_SPACE_CHUNK };
_Static_assert((int)TKE_SPACE_MAX_DIM <= (int)TKE_SPACE_DIM,
               "heads and states that a model may have");
_Static_assert((int)TKE_STATE_EDGE == (int)CHUNK, "snapshots are taken between chunks");

/* kept: the gate, rows before the convolution, what the time step is made of, the rule's output,
 * A x of the groups */
enum { Z, MX, MB, MC, T, Y, LOW_IN, LOW_OUT };
/* work: after the convolution, time step, scaled input and decay, the gated output before and after
 * its norm, state of each group; then gradients, states at the chunks' edges, scratch of each
 * group */
enum {
    CX,
    CB,
    CC,
    STEP,
    U,
    A,
    V,
    O,
    STATE,
    D_O,
    DZ,
    DU,
    DA,
    DX,
    DB,
    DC,
    DT,
    DIN,
    EDGES,
    DS,
    SCRATCH
};

typedef struct sizes {
    size_t inner, gn;   /* of all heads; of B, and of C, of all groups */
    size_t per_group;   /* heads of a group */
    size_t state;       /* S of one head */
    size_t group;       /* numbers of a group's work space in training: rows B, states */
    tke_space_shape of; /* one head */
} sizes;

static sizes sizes_of(const tke_space *m)
{
    size_t state = m->state_dim * m->head_dim, per_group = m->n_heads / m->n_groups;
    return (sizes){ .inner = m->n_heads * m->head_dim,
                    .gn = m->n_groups * m->state_dim,
                    .per_group = per_group,
                    .state = state,
                    .group = m->state_dim * CHUNK + per_group * state,
                    .of = { m->state_dim, m->head_dim } };
}

static void keep(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_space *m = l->space;
    sizes s = sizes_of(m);
    size_t n = size->n;
    tke_take(w, &t->at[Z], n * s.inner);
    tke_take(w, &t->at[MX], n * s.inner);
    tke_take(w, &t->at[MB], n * s.gn);
    tke_take(w, &t->at[MC], n * s.gn);
    tke_take(w, &t->at[T], n * m->n_heads);
    tke_take(w, &t->at[Y], n * s.inner);
    tke_take(w, &t->at[LOW_IN], n * size->max_rank * m->in->n);
    tke_take(w, &t->at[LOW_OUT], n * size->max_rank * m->out->n);
}

static void work(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_space *m = l->space;
    sizes s = sizes_of(m);
    size_t n = size->n, steps = n * m->n_heads;
    tke_take(w, &t->at[CX], n * s.inner);
    tke_take(w, &t->at[CB], n * s.gn);
    tke_take(w, &t->at[CC], n * s.gn);
    tke_take(w, &t->at[STEP], steps);
    tke_take(w, &t->at[U], n * s.inner);
    tke_take(w, &t->at[A], steps);
    tke_take(w, &t->at[V], n * s.inner);
    tke_take(w, &t->at[O], n * s.inner);
    tke_take(w, &t->at[STATE], m->n_groups * s.group);
    if (size->depth != TKE_DEPTH_ALL)
        return;
    tke_take(w, &t->at[D_O], n * s.inner);
    tke_take(w, &t->at[DZ], n * s.inner);
    tke_take(w, &t->at[DU], n * s.inner);
    tke_take(w, &t->at[DA], steps);
    tke_take(w, &t->at[DX], n * s.inner);
    tke_take(w, &t->at[DB], n * s.gn);
    tke_take(w, &t->at[DC], n * s.gn);
    tke_take(w, &t->at[DT], steps);
    tke_take(w, &t->at[DIN], n * m->in->w[0].in);
    tke_take(w, &t->at[EDGES], (n / CHUNK + 1) * m->n_heads * s.state);
    tke_take(w, &t->at[DS], m->n_groups * 2 * s.state); /* a gradient, and zeros */
    tke_take(w, &t->at[SCRATCH], m->n_groups * tke_space_scratch(&s.of));
}

static tke_real sigmoid(tke_real x)
{
    return 1 / (1 + tke_real_exp(-x));
}

/* ---- inputs of the rule ---- */

static tke_conv conv_of(const tke_space *m)
{
    sizes s = sizes_of(m);
    return (tke_conv){ .weights = m->conv,
                       .bias = m->conv_bias,
                       .kernel = m->kernel,
                       .channels = s.inner + 2 * s.gn };
}

/* x, B or C of the layer: before the convolution, after it. */
static tke_stream stream_of(const tke_turn *u, int which)
{
    sizes s = sizes_of(u->layer->space);
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    return which == 0   ? (tke_stream){ t[MX], w[CX], s.inner, 0 }
           : which == 1 ? (tke_stream){ t[MB], w[CB], s.gn, s.inner }
                        : (tke_stream){ t[MC], w[CC], s.gn, s.inner + s.gn };
}

/* softplus is the identity above 20, as in the reference. */
static double soft_step(const tke_turn *u, size_t row, size_t head)
{
    const tke_space *m = u->layer->space;
    double x = (double)u->keep->at[T][row * m->n_heads + head] + (double)m->dt_bias[head];
    return x > 20 ? x : log1p(exp(x));
}

/* Time step, decay, and the input times its time step. */
static void make_steps(const tke_turn *u, size_t row)
{
    const tke_space *m = u->layer->space;
    tke_real *const *w = u->work->at;
    size_t p = m->head_dim;
    for (size_t h = 0; h < m->n_heads; h++) {
        size_t at = row * m->n_heads + h;
        tke_real step = (tke_real)fmin(fmax(soft_step(u, row, h), m->step_min), m->step_max);
        w[STEP][at] = step;
        w[A][at] = -(step * m->decay[h]);
        for (size_t i = at * p; i < (at + 1) * p; i++)
            w[U][i] = step * w[CX][i];
    }
}

static void row_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    tke_conv conv = conv_of(u->layer->space);
    size_t row = (size_t)task;
    (void)worker;
    for (int k = 0; k < 3; k++) {
        tke_stream s = stream_of(u, k);
        tke_real *x = s.c + row * s.n;
        tke_conv_row(u, &conv, &s, row);
        for (size_t i = 0; i < s.n; i++)
            x[i] *= sigmoid(x[i]);
    }
    make_steps(u, row);
}

/* ---- the rule ---- */

/* Rows of one sequence and one group, with its heads. */
typedef struct group_run {
    size_t group;
    tke_real *bt, *s;      /* of the group, of its first head */
    const tke_real *u, *a; /* rows of the open chunk's first position, first head */
    size_t u_stride, a_stride, u_head, a_head; /* from row to row, from head to head */
} group_run;

/* y += D x, the last of a row's sum. */
static void add_skip(const tke_turn *u, size_t row, size_t head)
{
    const tke_space *m = u->layer->space;
    size_t at = (row * m->n_heads + head) * m->head_dim;
    for (size_t i = at; i < at + m->head_dim; i++)
        u->keep->at[Y][i] += m->skip[head] * u->work->at[CX][i];
}

/* n rows of a chunk, the first of which is its i-th. Heads are the outer loop: a state stays near. */
static void run_rows(const tke_turn *u, const group_run *r, size_t row, size_t i, size_t n)
{
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    tke_real *const *w = u->work->at, products[CHUNK][CHUNK];
    const tke_real *b = w[CB] + row * s.gn + r->group * m->state_dim;
    const tke_real *c = w[CC] + row * s.gn + r->group * m->state_dim;
    assert(i + n <= CHUNK);
    for (size_t k = 0; k < n; k++)
        tke_space_multiply(&s.of, r->bt, i + k, b + k * s.gn, c + k * s.gn, products[k]);
    for (size_t h = 0; h < s.per_group; h++) {
        size_t head = r->group * s.per_group + h;
        tke_space_chunk chunk = { .bt = r->bt,
                                  .s = r->s + h * s.state,
                                  .u = r->u + h * r->u_head,
                                  .u_stride = r->u_stride,
                                  .a = r->a + h * r->a_head,
                                  .a_stride = r->a_stride };
        for (size_t k = 0; k < n; k++) {
            tke_space_row(&s.of, &chunk, i + k, c + k * s.gn, products[k],
                          u->keep->at[Y] + (row + k) * s.inner + head * m->head_dim);
            add_skip(u, row + k, head);
        }
        if (i + n == CHUNK)
            tke_space_advance(&s.of, &chunk);
    }
}

/* Training: a group of all sequences, one after the other. */
static void packed_group_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    size_t group = (size_t)task, first = group * s.per_group;
    group_run r = { .group = group,
                    .bt = u->work->at[STATE] + group * s.group,
                    .u_stride = s.inner,
                    .a_stride = m->n_heads,
                    .u_head = m->head_dim,
                    .a_head = 1 };
    (void)worker;
    r.s = r.bt + m->state_dim * CHUNK;
    for (size_t q = 0; q < u->n_seqs; q++) {
        size_t end = (size_t)u->starts[q + 1];
        memset(r.s, 0, s.per_group * s.state * sizeof *r.s);
        for (size_t row = (size_t)u->starts[q]; row < end; row += CHUNK) {
            r.u = u->work->at[U] + row * s.inner + first * m->head_dim;
            r.a = u->work->at[A] + row * m->n_heads + first;
            run_rows(u, &r, row, 0, end - row < CHUNK ? end - row : CHUNK);
        }
    }
}

static void make_inputs(const tke_turn *u, const tke_real *x)
{
    const tke_space *m = u->layer->space;
    tke_real *const *t = u->keep->at;
    tke_group_forward(u->rows, m->in, x, (tke_real *const[]){ t[Z], t[MX] }, t[LOW_IN]);
    tke_group_forward(u->rows, m->vectors, x, (tke_real *const[]){ t[MB], t[MC], t[T] }, NULL);
}

/* ---- the output ---- */

/* 1 / the root of the mean square. */
static tke_real inverse_rms(const tke_turn *u, size_t n, const tke_real *x)
{
    enum { LANES = 16 };
    tke_real sums[LANES] = { 0 }, sum = 0;
    for (size_t i = 0; i < n / LANES * LANES; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sums[k] += x[i + k] * x[i + k];
    for (size_t i = n / LANES * LANES; i < n; i++)
        sums[i % LANES] += x[i] * x[i];
    for (size_t k = 0; k < LANES; k++)
        sum += sums[k];
    return 1 / tke_real_sqrt(sum / (tke_real)n + (tke_real)u->rows->model->config.rms_eps);
}

/* O = norm(V), by groups. */
static void norm_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_space *m = u->layer->space;
    size_t inner = sizes_of(m).inner, n = inner / m->n_groups;
    (void)worker;
    for (size_t g = 0; g < m->n_groups; g++) {
        const tke_real *v = u->work->at[V] + (size_t)task * inner + g * n;
        tke_real *o = u->work->at[O] + (size_t)task * inner + g * n;
        tke_real by = inverse_rms(u, n, v);
        for (size_t i = 0; i < n; i++)
            o[i] = m->norm[g * n + i] * (v[i] * by);
    }
}

/* The gate comes before the norm. */
static void gated_norm(const tke_turn *u)
{
    size_t count = u->rows->n * sizes_of(u->layer->space).inner;
    tke_swiglu(u->rows->cpu, (int64_t)count, u->keep->at[Z], u->keep->at[Y], u->work->at[V]);
    tke_turn_spread(u, u->rows->n, norm_task);
}

static void make_output(const tke_turn *u, tke_real *y)
{
    const tke_group *out = u->layer->space->out;
    tke_real *low = u->keep->at[LOW_OUT], *o = u->work->at[O];
    gated_norm(u);
    if (y)
        tke_group_forward(u->rows, out, o, &y, low);
    else
        tke_group_low(u->rows, out, o, low);
}

static void forward(const tke_turn *u, const tke_real *x, tke_real *y)
{
    make_inputs(u, x);
    tke_turn_spread(u, u->rows->n, row_task);
    tke_turn_spread(u, u->layer->space->n_groups, packed_group_task);
    make_output(u, y);
}

/* ---- decoding ---- */

/* A sequence's state: rows before the convolution, then rows B of the groups, then S, rows u and
 * decays of the heads. */
typedef struct state {
    tke_real *bt, *s, *u, *a;
} state;

static size_t state_reals(const tke_layer *l)
{
    const tke_space *m = l->space;
    sizes s = sizes_of(m);
    tke_conv conv = conv_of(m);
    return tke_conv_reals(&conv) + s.gn * CHUNK +
           m->n_heads * (s.state + CHUNK * m->head_dim + CHUNK);
}

static state state_of(const tke_turn *u, size_t seq)
{
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    tke_conv conv = conv_of(m);
    state x = { .bt = tke_turn_state(u, seq) + tke_conv_reals(&conv) };
    x.s = x.bt + s.gn * CHUNK;
    x.u = x.s + m->n_heads * s.state;
    x.a = x.u + CHUNK * s.inner;
    return x;
}

static void keep_rows_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    tke_conv conv = conv_of(u->layer->space);
    (void)worker;
    for (int k = 0; k < 3; k++) {
        tke_stream s = stream_of(u, k);
        tke_conv_keep(u, &conv, &s, (size_t)task);
    }
}

/* Puts u and decay of a row's heads of a group into the open chunk. */
static void store_row(const tke_turn *u, const state *x, size_t group, size_t row, size_t i)
{
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    for (size_t h = group * s.per_group; h < (group + 1) * s.per_group; h++) {
        memcpy(x->u + (h * CHUNK + i) * m->head_dim,
               u->work->at[U] + row * s.inner + h * m->head_dim, m->head_dim * sizeof *x->u);
        x->a[h * CHUNK + i] = u->work->at[A][row * m->n_heads + h];
    }
}

/* A group of one sequence, chunk by chunk. */
static void cached_group_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    size_t seq = (size_t)task / m->n_groups, group = (size_t)task % m->n_groups;
    size_t first = group * s.per_group;
    state x = state_of(u, seq);
    const tke_kv_seq *q = &u->seqs[seq];
    group_run r = { .group = group,
                    .bt = x.bt + group * m->state_dim * CHUNK,
                    .s = x.s + first * s.state,
                    .u = x.u + first * CHUNK * m->head_dim,
                    .a = x.a + first * CHUNK,
                    .u_stride = m->head_dim,
                    .a_stride = 1,
                    .u_head = CHUNK * m->head_dim,
                    .a_head = CHUNK };
    (void)worker;
    if (q->first_pos == 0)
        memset(r.s, 0, s.per_group * s.state * sizeof *r.s);
    for (size_t at = 0, n; at < (size_t)q->n_rows; at += n) {
        size_t row = (size_t)q->first_row + at, i = ((size_t)q->first_pos + at) % CHUNK;
        n = (size_t)q->n_rows - at < CHUNK - i ? (size_t)q->n_rows - at : CHUNK - i;
        for (size_t k = 0; k < n; k++)
            store_row(u, &x, group, row + k, i + k);
        run_rows(u, &r, row, i, n);
    }
}

static void step(const tke_turn *u, const tke_real *x, tke_real *y)
{
    make_inputs(u, x);
    tke_turn_spread(u, u->rows->n, row_task);
    tke_turn_spread(u, u->n_seqs, keep_rows_task);
    tke_turn_spread(u, u->n_seqs * u->layer->space->n_groups, cached_group_task);
    make_output(u, y);
}

/* ---- backward ---- */

/* The states at the edges inside a sequence. Those of all sequences fit side by side: edge e of a
 * sequence that begins at row r has place r / CHUNK + e. */
static tke_real *edge(const tke_turn *u, size_t begin, size_t e, size_t head)
{
    const tke_space *m = u->layer->space;
    return u->work->at[EDGES] + ((begin / CHUNK + e) * m->n_heads + head) * sizes_of(m).state;
}

static void repeat_states(const tke_turn *u, size_t group, size_t begin, size_t end)
{
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    tke_real *const *w = u->work->at, *bt = w[STATE] + group * s.group;
    for (size_t row = begin, e = 0; row + CHUNK < end; row += CHUNK, e++) {
        for (size_t i = 0; i < CHUNK; i++)
            for (size_t k = 0; k < m->state_dim; k++)
                bt[k * CHUNK + i] = w[CB][(row + i) * s.gn + group * m->state_dim + k];
        for (size_t h = group * s.per_group; h < (group + 1) * s.per_group; h++) {
            tke_real *to = edge(u, begin, e, h);
            if (e)
                memcpy(to, edge(u, begin, e - 1, h), s.state * sizeof *to);
            else
                memset(to, 0, s.state * sizeof *to);
            tke_space_chunk c = { .bt = bt,
                                  .s = to,
                                  .u = w[U] + row * s.inner + h * m->head_dim,
                                  .u_stride = s.inner,
                                  .a = w[A] + row * m->n_heads + h,
                                  .a_stride = m->n_heads };
            tke_space_advance(&s.of, &c);
        }
    }
}

/* One head of one sequence, the last chunk first. */
static void sequence_backward(const tke_turn *u, size_t group, size_t head, size_t begin,
                              size_t end)
{
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    tke_real *const *w = u->work->at;
    tke_real *ds = w[DS] + 2 * group * s.state, *zeros = ds + s.state;
    memset(ds, 0, 2 * s.state * sizeof *ds);
    for (size_t e = (end - begin + CHUNK - 1) / CHUNK; e-- > 0;) {
        size_t row = begin + e * CHUNK, left = end - row;
        size_t vector = row * s.gn + group * m->state_dim, a = row * m->n_heads + head;
        size_t at = row * s.inner + head * m->head_dim;
        tke_space_backward(
            &s.of, &(tke_space_grads){ .rows = left < CHUNK ? left : CHUNK,
                                       .b = w[CB] + vector,
                                       .c = w[CC] + vector,
                                       .n_stride = s.gn,
                                       .u = w[U] + at,
                                       .dy = w[D_O] + at,
                                       .p_stride = s.inner,
                                       .a = w[A] + a,
                                       .a_stride = m->n_heads,
                                       .s = e ? edge(u, begin, e - 1, head) : zeros,
                                       .ds = ds,
                                       .db = w[DB] + vector,
                                       .dc = w[DC] + vector,
                                       .du = w[DU] + at,
                                       .da = w[DA] + a,
                                       .scratch = w[SCRATCH] + group * tke_space_scratch(&s.of) });
    }
}

/* A group of all sequences; gradients of B and C are summed over its heads. */
static void group_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_space *m = u->layer->space;
    sizes s = sizes_of(m);
    size_t group = (size_t)task;
    (void)worker;
    for (size_t row = 0; row < u->rows->n; row++) {
        size_t at = row * s.gn + group * m->state_dim;
        memset(u->work->at[DB] + at, 0, m->state_dim * sizeof(tke_real));
        memset(u->work->at[DC] + at, 0, m->state_dim * sizeof(tke_real));
    }
    for (size_t q = 0; q < u->n_seqs; q++) {
        size_t begin = (size_t)u->starts[q], end = (size_t)u->starts[q + 1];
        repeat_states(u, group, begin, end);
        for (size_t h = group * s.per_group; h < (group + 1) * s.per_group; h++)
            sequence_backward(u, group, h, begin, end);
    }
}

/* Gradients of a head's x and time step, from those of u, of the decay and of y. Nothing passes
 * where the time step was cut. */
static void step_backward(const tke_turn *u, size_t row, size_t head)
{
    const tke_space *m = u->layer->space;
    tke_real *const *w = u->work->at, sum = 0;
    size_t at = row * m->n_heads + head, p = m->head_dim;
    double soft = soft_step(u, row, head);
    for (size_t i = at * p; i < (at + 1) * p; i++) {
        sum += w[CX][i] * w[DU][i];
        w[DX][i] = w[STEP][at] * w[DU][i] + m->skip[head] * w[D_O][i];
    }
    double d = (double)sum - (double)m->decay[head] * (double)w[DA][at];
    double x = (double)u->keep->at[T][at] + (double)m->dt_bias[head];
    bool cut = soft < m->step_min || soft > m->step_max;
    w[DT][at] = cut ? 0 : (tke_real)(d / (1 + exp(-x)));
}

/* Of a row: to the gradients of what the convolution gave, and of the time step. */
static void row_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_space *m = u->layer->space;
    tke_conv conv = conv_of(m);
    tke_real *const *w = u->work->at, *const grads[3] = { w[DX], w[DB], w[DC] };
    size_t row = (size_t)task;
    (void)worker;
    for (size_t h = 0; h < m->n_heads; h++)
        step_backward(u, row, h);
    for (int k = 0; k < 3; k++) {
        tke_stream s = stream_of(u, k);
        tke_real *x = s.c + row * s.n, *dx = grads[k] + row * s.n; /* x: no longer needed */
        tke_conv_row(u, &conv, &s, row);
        for (size_t i = 0; i < s.n; i++) {
            tke_real g = sigmoid(x[i]);
            dx[i] *= g * (1 + x[i] * (1 - g));
        }
    }
}

static void conv_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    tke_real *const *w = u->work->at, *const grads[3] = { w[DX], w[DB], w[DC] };
    tke_conv conv = conv_of(u->layer->space);
    (void)worker;
    for (int k = 0; k < 3; k++) {
        tke_stream s = stream_of(u, k);
        tke_conv_backward(u, &conv, &s, (size_t)task, grads[k]);
    }
}

/* The gradient of the norm's output (D_O) becomes that of its input, by groups. */
static void norm_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_space *m = u->layer->space;
    size_t inner = sizes_of(m).inner, n = inner / m->n_groups;
    (void)worker;
    for (size_t g = 0; g < m->n_groups; g++) {
        const tke_real *v = u->work->at[V] + (size_t)task * inner + g * n;
        tke_real *d = u->work->at[D_O] + (size_t)task * inner + g * n;
        tke_real by = inverse_rms(u, n, v), along = 0;
        for (size_t i = 0; i < n; i++) {
            d[i] *= m->norm[g * n + i];
            along += d[i] * v[i];
        }
        along *= by * by / (tke_real)n;
        for (size_t i = 0; i < n; i++)
            d[i] = by * (d[i] - v[i] * along);
    }
}

/* dy -> gradients of the rule's output and of the gate. */
static void output_backward(const tke_turn *u, const tke_real *dy)
{
    const tke_space *m = u->layer->space;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    int64_t count = (int64_t)(u->rows->n * sizes_of(m).inner);
    gated_norm(u);
    tke_group_backward(u->rows, m->out, w[O], &dy, t[LOW_OUT], u->dlow, w[D_O]);
    tke_turn_spread(u, u->rows->n, norm_backward_task);
    tke_swiglu_backward(u->rows->cpu, count, t[Z], t[Y], w[D_O], w[DZ], w[D_O]);
}

static void backward(const tke_turn *u, const tke_real *x, const tke_real *dy, tke_real *dx)
{
    const tke_space *m = u->layer->space;
    const tke_rows *r = u->rows;
    tke_real *const *w = u->work->at;
    output_backward(u, dy);
    tke_turn_spread(u, r->n, row_task); /* again: forward's are not kept */
    tke_turn_spread(u, m->n_groups, group_backward_task);
    tke_turn_spread(u, r->n, row_backward_task);
    tke_turn_spread(u, u->n_seqs, conv_backward_task);
    tke_group_backward(r, m->in, x, (const tke_real *const[]){ w[DZ], w[DX] }, u->keep->at[LOW_IN],
                       u->dlow, dx);
    if (!dx)
        return;
    tke_group_backward(r, m->vectors, x, (const tke_real *const[]){ w[DB], w[DC], w[DT] }, NULL,
                       u->dlow, w[DIN]);
    tke_add(r->cpu, (int64_t)(r->n * m->in->w[0].in), w[DIN], dx);
}

const tke_part tke_part_space = { .keep = keep,
                                  .work = work,
                                  .forward = forward,
                                  .backward = backward,
                                  .step = step,
                                  .state_reals = state_reals };
