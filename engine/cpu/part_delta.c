/* part_delta.c - linear attention by the gated delta rule: a short convolution over q, k and v, the rule
 * (math/delta_rule.h), a gated norm.
 *
 * A sequence's state while decoding: the last rows before the convolution, and of the open chunk
 * the keys, the rows N and the decays, and S before it. Training keeps the same in work space.
 *
 * May touch: its slots and the states of its sequences.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "cpu/short_conv.h"
#include "math/delta_rule.h"

enum { CHUNK = TKE_DELTA_CHUNK };
_Static_assert((int)TKE_DELTA_MAX_DIM <= (int)TKE_DELTA_DIM, "heads that a model may have");
_Static_assert((int)TKE_STATE_EDGE == (int)CHUNK, "snapshots are taken between chunks");
static const tke_real l2_eps = (tke_real)1e-6; /* fixed, whatever the norms of the model have */

/* kept: rows before the convolution, the gate, what strength and decay are made of, the rule's
 * output and its rows N, A x of the groups */
enum { MQ, MK, MV, Z, B, A, O, N, LOW_IN, LOW_OUT };
/* work: after the convolution, strength and decay, the gated output, state of each key head; then
 * gradients, states at the chunks' edges, scratch of each key head */
enum { CQ, CK, CV, BETA, G, Y, STATE, DQ, DK, DV, DB, DA, D_O, DZ, DX, HEADS, EDGES, DS, SCRATCH };

typedef struct sizes {
    size_t kd, vd;      /* of all key heads, of all value heads */
    size_t per_key;     /* value heads of a key head */
    size_t state;       /* S of one head */
    size_t key_head;    /* numbers of a key head's work space in training: keys, states */
    tke_delta_shape of; /* one head */
} sizes;

static sizes sizes_of(const tke_delta *d)
{
    size_t state = d->key_dim * d->value_dim, per_key = d->n_value_heads / d->n_key_heads;
    return (sizes){ .kd = d->n_key_heads * d->key_dim,
                    .vd = d->n_value_heads * d->value_dim,
                    .per_key = per_key,
                    .state = state,
                    .key_head = d->key_dim * CHUNK + per_key * state,
                    .of = { d->key_dim, d->value_dim } };
}

static void keep(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_delta *d = l->delta;
    sizes s = sizes_of(d);
    size_t n = size->n;
    tke_take(w, &t->at[MQ], n * s.kd);
    tke_take(w, &t->at[MK], n * s.kd);
    tke_take(w, &t->at[MV], n * s.vd);
    tke_take(w, &t->at[Z], n * s.vd);
    tke_take(w, &t->at[B], n * d->n_value_heads);
    tke_take(w, &t->at[A], n * d->n_value_heads);
    tke_take(w, &t->at[O], n * s.vd);
    tke_take(w, &t->at[N], n * s.vd);
    tke_take(w, &t->at[LOW_IN], n * size->max_rank * d->in->n);
    tke_take(w, &t->at[LOW_OUT], n * size->max_rank * d->out->n);
}

static void work(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_delta *d = l->delta;
    sizes s = sizes_of(d);
    size_t n = size->n, gates = n * d->n_value_heads;
    tke_take(w, &t->at[CQ], n * s.kd);
    tke_take(w, &t->at[CK], n * s.kd);
    tke_take(w, &t->at[CV], n * s.vd);
    tke_take(w, &t->at[BETA], gates);
    tke_take(w, &t->at[G], gates);
    tke_take(w, &t->at[Y], n * s.vd);
    tke_take(w, &t->at[STATE], d->n_key_heads * s.key_head);
    if (size->depth != TKE_DEPTH_ALL)
        return;
    tke_take(w, &t->at[DQ], n * s.kd);
    tke_take(w, &t->at[DK], n * s.kd);
    tke_take(w, &t->at[DV], n * s.vd);
    tke_take(w, &t->at[DB], gates);
    tke_take(w, &t->at[DA], gates);
    tke_take(w, &t->at[D_O], n * s.vd);
    tke_take(w, &t->at[DZ], n * s.vd);
    tke_take(w, &t->at[DX], n * d->in->w[0].in);
    tke_take(w, &t->at[HEADS], n * s.kd);
    tke_take(w, &t->at[EDGES], (n / CHUNK + 1) * d->n_value_heads * s.state);
    tke_take(w, &t->at[DS], 2 * d->n_key_heads * s.state); /* a gradient, and zeros */
    tke_take(w, &t->at[SCRATCH], d->n_key_heads * tke_delta_scratch(&s.of));
}

static tke_real sigmoid(tke_real x)
{
    return 1 / (1 + tke_real_exp(-x));
}

static void silu(size_t n, tke_real *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= sigmoid(x[i]);
}

/* Heads of unit length, times `by`. */
static void unit_heads(const tke_delta *d, tke_real by, tke_real *x)
{
    for (size_t h = 0; h < d->n_key_heads; h++, x += d->key_dim) {
        tke_real sum = 0;
        for (size_t i = 0; i < d->key_dim; i++)
            sum += x[i] * x[i];
        tke_real scale = by / tke_real_sqrt(sum + l2_eps);
        for (size_t i = 0; i < d->key_dim; i++)
            x[i] *= scale;
    }
}

static tke_real query_scale(const tke_delta *d)
{
    return 1 / tke_real_sqrt((tke_real)d->key_dim);
}

static tke_conv conv_of(const tke_delta *d)
{
    sizes s = sizes_of(d);
    return (tke_conv){ .weights = d->conv, .kernel = d->kernel, .channels = 2 * s.kd + s.vd };
}

/* q, k or v of the layer: before the convolution, after it. */
static tke_stream stream_of(const tke_turn *u, int which)
{
    sizes s = sizes_of(u->layer->delta);
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    return which == 0   ? (tke_stream){ t[MQ], w[CQ], s.kd, 0 }
           : which == 1 ? (tke_stream){ t[MK], w[CK], s.kd, s.kd }
                        : (tke_stream){ t[MV], w[CV], s.vd, 2 * s.kd };
}

/* Strength and decay of a row. softplus is the identity above 20, as in the reference. */
static void make_gates(const tke_turn *u, size_t row)
{
    const tke_delta *d = u->layer->delta;
    size_t at = row * d->n_value_heads;
    for (size_t h = 0; h < d->n_value_heads; h++) {
        double x = (double)u->keep->at[A][at + h] + (double)d->dt_bias[h];
        double soft = x > 20 ? x : log1p(exp(x));
        u->work->at[BETA][at + h] = sigmoid(u->keep->at[B][at + h]);
        u->work->at[G][at + h] = (tke_real)(-(double)d->decay[h] * soft);
    }
}

static void row_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_delta *d = u->layer->delta;
    tke_conv conv = conv_of(d);
    sizes s = sizes_of(d);
    size_t row = (size_t)task;
    (void)worker;
    for (int i = 0; i < 3; i++) {
        tke_stream x = stream_of(u, i);
        tke_conv_row(u, &conv, &x, row);
        silu(x.n, x.c + row * x.n);
    }
    unit_heads(d, query_scale(d), u->work->at[CQ] + row * s.kd);
    unit_heads(d, 1, u->work->at[CK] + row * s.kd);
    make_gates(u, row);
}

/* ---- the rule ---- */

/* Rows of one sequence and one key head, with its value heads. */
typedef struct head_run {
    size_t head;              /* of the keys */
    size_t first_row, n_rows; /* in the batch */
    size_t first_pos;
    tke_real *kt, *s; /* of the key head, of its first value head */
    tke_real *n, *g;  /* rows of the open chunk's first position, first value head */
    size_t n_stride, g_stride, n_head, g_head; /* from row to row, from head to head */
} head_run;

static void run_row(const tke_turn *u, const head_run *r, size_t row, size_t i)
{
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    tke_real *const *w = u->work->at;
    const tke_real *q = w[CQ] + row * s.kd + r->head * d->key_dim;
    const tke_real *k = w[CK] + row * s.kd + r->head * d->key_dim;
    tke_delta_products p;
    tke_delta_multiply(&s.of, r->kt, i, q, k, &p);
    for (size_t h = 0; h < s.per_key; h++) {
        size_t head = r->head * s.per_key + h, at = row * s.vd + head * d->value_dim;
        size_t gate = row * d->n_value_heads + head;
        tke_delta_chunk c = { .kt = r->kt,
                              .s = r->s + h * s.state,
                              .n = r->n + h * r->n_head,
                              .n_stride = r->n_stride,
                              .g = r->g + h * r->g_head,
                              .g_stride = r->g_stride };
        c.g[i * c.g_stride] = w[G][gate];
        tke_delta_row(&s.of, &c, i, q, k, w[CV] + at, w[BETA][gate], &p, u->keep->at[O] + at);
        if (i == CHUNK - 1)
            tke_delta_advance(&s.of, &c);
    }
}

/* Training: a key head of all sequences, one after the other. */
static void packed_head_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    (void)worker;
    size_t head = (size_t)task, first = head * s.per_key;
    head_run r = { .head = head,
                   .kt = u->work->at[STATE] + head * s.key_head,
                   .n_stride = s.vd,
                   .g_stride = d->n_value_heads,
                   .n_head = d->value_dim,
                   .g_head = 1 };
    r.s = r.kt + d->key_dim * CHUNK;
    for (size_t q = 0; q < u->n_seqs; q++) {
        size_t begin = (size_t)u->starts[q], end = (size_t)u->starts[q + 1];
        memset(r.s, 0, s.per_key * s.state * sizeof *r.s);
        for (size_t row = begin; row < end; row++) {
            size_t i = (row - begin) % CHUNK;
            r.n = u->keep->at[N] + (row - i) * s.vd + first * d->value_dim;
            r.g = u->work->at[G] + (row - i) * d->n_value_heads + first;
            run_row(u, &r, row, i);
        }
    }
}

static void make_inputs(const tke_turn *u, const tke_real *x)
{
    const tke_delta *d = u->layer->delta;
    tke_real *const *t = u->keep->at;
    tke_group_forward(u->rows, d->in, x, (tke_real *const[]){ t[MQ], t[MK], t[MV], t[Z] },
                      t[LOW_IN]);
    tke_group_forward(u->rows, d->gates, x, (tke_real *const[]){ t[B], t[A] }, NULL);
}

/* y = norm(o) * silu(z) by heads, in work space. */
static void gated_norm(const tke_turn *u)
{
    const tke_delta *d = u->layer->delta;
    const tke_rows *r = u->rows;
    tke_real *const *t = u->keep->at, *y = u->work->at[Y];
    int64_t dv = (int64_t)d->value_dim, heads = (int64_t)(r->n * d->n_value_heads);
    tke_rmsnorm(r->cpu, heads, dv, t[O], tke_matrix_real(d->norm, dv),
                (tke_real)r->model->config.rms_eps, y);
    tke_swiglu(r->cpu, heads * dv, t[Z], y, y);
}

static void make_output(const tke_turn *u, tke_real *y)
{
    const tke_delta *d = u->layer->delta;
    tke_real *low = u->keep->at[LOW_OUT];
    gated_norm(u);
    if (y)
        tke_group_forward(u->rows, d->out, u->work->at[Y], &y, low);
    else
        tke_group_low(u->rows, d->out, u->work->at[Y], low);
}

static void forward(const tke_turn *u, const tke_real *x, tke_real *y)
{
    make_inputs(u, x);
    tke_turn_spread(u, u->rows->n, row_task);
    tke_turn_spread(u, u->layer->delta->n_key_heads, packed_head_task);
    make_output(u, y);
}

/* ---- decoding ---- */

/* A sequence's state: rows before the convolution, then keys of the key heads, then S, N and the
 * decays of the value heads. */
typedef struct state {
    tke_real *kt, *s, *n, *g;
} state;

static size_t state_reals(const tke_layer *l)
{
    const tke_delta *d = l->delta;
    sizes s = sizes_of(d);
    tke_conv conv = conv_of(d);
    return tke_conv_reals(&conv) + s.kd * CHUNK +
           d->n_value_heads * (s.state + CHUNK * d->value_dim + CHUNK);
}

static state state_of(const tke_turn *u, size_t seq)
{
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    tke_conv conv = conv_of(d);
    state x = { .kt = tke_turn_state(u, seq) + tke_conv_reals(&conv) };
    x.s = x.kt + s.kd * CHUNK;
    x.n = x.s + d->n_value_heads * s.state;
    x.g = x.n + d->n_value_heads * CHUNK * d->value_dim;
    return x;
}

static void keep_rows_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    tke_conv conv = conv_of(u->layer->delta);
    (void)worker;
    for (int i = 0; i < 3; i++) {
        tke_stream s = stream_of(u, i);
        tke_conv_keep(u, &conv, &s, (size_t)task);
    }
}

/* A key head of one sequence. */
static void cached_head_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    size_t seq = (size_t)task / d->n_key_heads, head = (size_t)task % d->n_key_heads;
    size_t first = head * s.per_key;
    const tke_kv_seq *q = &u->seqs[seq];
    state x = state_of(u, seq);
    (void)worker;
    head_run r = { .head = head,
                   .kt = x.kt + head * d->key_dim * CHUNK,
                   .s = x.s + first * s.state,
                   .n = x.n + first * CHUNK * d->value_dim,
                   .g = x.g + first * CHUNK,
                   .n_stride = d->value_dim,
                   .g_stride = 1,
                   .n_head = CHUNK * d->value_dim,
                   .g_head = CHUNK };
    if (q->first_pos == 0)
        memset(r.s, 0, s.per_key * s.state * sizeof *r.s);
    for (int64_t i = 0; i < q->n_rows; i++)
        run_row(u, &r, (size_t)(q->first_row + i), (size_t)(q->first_pos + i) % CHUNK);
}

static void step(const tke_turn *u, const tke_real *x, tke_real *y)
{
    make_inputs(u, x);
    tke_turn_spread(u, u->rows->n, row_task);
    tke_turn_spread(u, u->n_seqs, keep_rows_task);
    tke_turn_spread(u, u->n_seqs * u->layer->delta->n_key_heads, cached_head_task);
    make_output(u, y);
}

/* ---- backward ---- */

/* The states at the edges inside a sequence, from its keys and rows N. Those of all sequences fit
 * side by side: edge e of a sequence that begins at row r has place r / CHUNK + e. */
static tke_real *edge(const tke_turn *u, size_t begin, size_t e, size_t head)
{
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    return u->work->at[EDGES] + ((begin / CHUNK + e) * d->n_value_heads + head) * s.state;
}

static void repeat_states(const tke_turn *u, size_t head, size_t begin, size_t end)
{
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    tke_real *const *w = u->work->at, *kt = w[STATE] + head * s.key_head;
    for (size_t row = begin, e = 0; row + CHUNK < end; row += CHUNK, e++) {
        for (size_t i = 0; i < CHUNK; i++)
            for (size_t a = 0; a < d->key_dim; a++)
                kt[a * CHUNK + i] = w[CK][(row + i) * s.kd + head * d->key_dim + a];
        for (size_t h = head * s.per_key; h < (head + 1) * s.per_key; h++) {
            tke_real *to = edge(u, begin, e, h);
            if (e)
                memcpy(to, edge(u, begin, e - 1, h), s.state * sizeof *to);
            else
                memset(to, 0, s.state * sizeof *to);
            tke_delta_chunk c = { .kt = kt,
                                  .s = to,
                                  .n = u->keep->at[N] + row * s.vd + h * d->value_dim,
                                  .n_stride = s.vd,
                                  .g = w[G] + row * d->n_value_heads + h,
                                  .g_stride = d->n_value_heads };
            tke_delta_advance(&s.of, &c);
        }
    }
}

/* One value head of one sequence, the last chunk first. */
static void sequence_backward(const tke_turn *u, size_t key_head, size_t head, size_t begin,
                              size_t end)
{
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    tke_real *ds = w[DS] + 2 * key_head * s.state, *zeros = ds + s.state;
    memset(ds, 0, 2 * s.state * sizeof *ds);
    for (size_t e = (end - begin + CHUNK - 1) / CHUNK; e-- > 0;) {
        size_t row = begin + e * CHUNK, left = end - row;
        size_t keys = row * s.kd + key_head * d->key_dim, at = row * s.vd + head * d->value_dim;
        size_t gate = row * d->n_value_heads + head;
        tke_delta_backward(
            &s.of,
            &(tke_delta_grads){ .rows = left < CHUNK ? left : CHUNK,
                                .q = w[CQ] + keys,
                                .k = w[CK] + keys,
                                .dk_stride = s.kd,
                                .v = w[CV] + at,
                                .n = t[N] + at,
                                .d_o = w[D_O] + at,
                                .dv_stride = s.vd,
                                .g = w[G] + gate,
                                .strength = w[BETA] + gate,
                                .gate_stride = d->n_value_heads,
                                .s = e ? edge(u, begin, e - 1, head) : zeros,
                                .ds = ds,
                                .dq = w[DQ] + keys,
                                .dk = w[DK] + keys,
                                .dv = w[DV] + at,
                                .dg = w[DA] + gate,
                                .dstrength = w[DB] + gate,
                                .scratch = w[SCRATCH] + key_head * tke_delta_scratch(&s.of) });
    }
}

/* A key head of all sequences; gradients of its keys are summed over its value heads. */
static void head_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_delta *d = u->layer->delta;
    sizes s = sizes_of(d);
    tke_real *const *w = u->work->at;
    size_t head = (size_t)task;
    (void)worker;
    for (size_t row = 0; row < u->rows->n; row++) {
        memset(w[DQ] + row * s.kd + head * d->key_dim, 0, d->key_dim * sizeof *w[DQ]);
        memset(w[DK] + row * s.kd + head * d->key_dim, 0, d->key_dim * sizeof *w[DK]);
    }
    for (size_t q = 0; q < u->n_seqs; q++) {
        size_t begin = (size_t)u->starts[q], end = (size_t)u->starts[q + 1];
        repeat_states(u, head, begin, end);
        for (size_t h = head * s.per_key; h < (head + 1) * s.per_key; h++)
            sequence_backward(u, head, h, begin, end);
    }
}

/* Gradients of heads of unit length: x is what they are, pre what they were made from. */
static void unit_backward(const tke_delta *d, tke_real by, const tke_real *pre, tke_real *dx)
{
    for (size_t h = 0; h < d->n_key_heads; h++, pre += d->key_dim, dx += d->key_dim) {
        tke_real sum = 0, along = 0;
        for (size_t i = 0; i < d->key_dim; i++) {
            sum += pre[i] * pre[i];
            along += pre[i] * dx[i];
        }
        tke_real scale = 1 / tke_real_sqrt(sum + l2_eps);
        for (size_t i = 0; i < d->key_dim; i++)
            dx[i] = by * scale * (dx[i] - pre[i] * (along * scale * scale));
    }
}

/* Of a row: through the lengths and silu, to the gradient of what the convolution gave. */
static void row_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_delta *d = u->layer->delta;
    tke_conv conv = conv_of(d);
    tke_real *const *w = u->work->at, *const grads[3] = { w[DQ], w[DK], w[DV] };
    size_t row = (size_t)task, at = row * d->n_value_heads;
    (void)worker;
    for (int k = 0; k < 3; k++) {
        tke_stream s = stream_of(u, k);
        tke_real *x = s.c + row * s.n, *dx = grads[k] + row * s.n; /* x: no longer needed */
        tke_conv_row(u, &conv, &s, row);
        if (k < 2) {
            tke_real *after = w[HEADS] + row * s.n;
            for (size_t i = 0; i < s.n; i++)
                after[i] = x[i] * sigmoid(x[i]);
            unit_backward(d, k == 0 ? query_scale(d) : 1, after, dx);
        }
        for (size_t i = 0; i < s.n; i++) {
            tke_real g = sigmoid(x[i]);
            dx[i] *= g * (1 + x[i] * (1 - g));
        }
    }
    for (size_t h = 0; h < d->n_value_heads; h++) {
        double x = (double)u->keep->at[A][at + h] + (double)d->dt_bias[h];
        tke_real b = w[BETA][at + h];
        w[DB][at + h] *= b * (1 - b);
        w[DA][at + h] = (tke_real)(-(double)w[DA][at + h] * (double)d->decay[h] / (1 + exp(-x)));
    }
}

static void conv_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    tke_real *const *w = u->work->at, *const grads[3] = { w[DQ], w[DK], w[DV] };
    tke_conv conv = conv_of(u->layer->delta);
    (void)worker;
    for (int k = 0; k < 3; k++) {
        tke_stream s = stream_of(u, k);
        tke_conv_backward(u, &conv, &s, (size_t)task, grads[k]);
    }
}

/* dy -> gradients of the rule's output and of the gate. */
static void output_backward(const tke_turn *u, const tke_real *dy)
{
    const tke_delta *d = u->layer->delta;
    const tke_rows *r = u->rows;
    tke_real *const *t = u->keep->at, *const *w = u->work->at, *y = w[Y];
    int64_t dv = (int64_t)d->value_dim, heads = (int64_t)(r->n * d->n_value_heads);
    tke_matrix norm = tke_matrix_real(d->norm, dv);
    tke_real eps = (tke_real)r->model->config.rms_eps;
    gated_norm(u);
    tke_group_backward(r, d->out, y, &dy, t[LOW_OUT], u->dlow, w[D_O]);
    tke_rmsnorm(r->cpu, heads, dv, t[O], norm, eps, y);
    tke_swiglu_backward(r->cpu, heads * dv, t[Z], y, w[D_O], w[DZ], w[D_O]);
    tke_rmsnorm_backward(r->cpu, heads, dv, t[O], norm, eps, w[D_O], w[D_O], false);
}

static void backward(const tke_turn *u, const tke_real *x, const tke_real *dy, tke_real *dx)
{
    const tke_delta *d = u->layer->delta;
    const tke_rows *r = u->rows;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    output_backward(u, dy);
    tke_turn_spread(u, r->n, row_task); /* q, k, v and gates again: forward's are not kept */
    tke_turn_spread(u, d->n_key_heads, head_backward_task);
    tke_turn_spread(u, r->n, row_backward_task);
    tke_turn_spread(u, u->n_seqs, conv_backward_task);
    tke_group_backward(r, d->in, x, (const tke_real *const[]){ w[DQ], w[DK], w[DV], w[DZ] },
                       t[LOW_IN], u->dlow, dx);
    if (!dx)
        return;
    tke_group_backward(r, d->gates, x, (const tke_real *const[]){ w[DB], w[DA] }, NULL, u->dlow,
                       w[DX]);
    tke_add(r->cpu, (int64_t)(r->n * d->in->w[0].in), w[DX], dx);
}

const tke_part tke_part_delta = { .keep = keep,
                                  .work = work,
                                  .forward = forward,
                                  .backward = backward,
                                  .step = step,
                                  .state_reals = state_reals };
