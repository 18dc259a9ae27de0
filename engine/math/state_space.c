/* state_space.c - the state-space rule in plain C, over rows of chunk_rows.h.
 *
 * May touch: what it is given. Must not: know of layers, sequences or threads.
 */
#include "math/state_space.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "math/chunk_rows.h"

enum { CHUNK = TKE_SPACE_CHUNK };

/* ---- forward ---- */

void tke_space_multiply(const tke_space_shape *s, tke_real *bt, size_t i, const tke_real *b,
                        const tke_real *c, tke_real *out)
{
    assert(i < CHUNK && s->n <= TKE_SPACE_DIM);
    memset(out, 0, (i + 1) * sizeof *out);
    for (size_t k = 0; k < s->n; k++) {
        bt[k * CHUNK + i] = b[k];
        tke_row_add(i + 1, c[k], bt + k * CHUNK, out);
    }
}

void tke_space_row(const tke_space_shape *s, const tke_space_chunk *c, size_t i, const tke_real *cs,
                   const tke_real *products, tke_real *y)
{
    double sums[CHUNK];
    assert(i < CHUNK && s->p <= TKE_SPACE_DIM);
    tke_running_sums(i + 1, c->a, c->a_stride, sums);
    tke_real faded = (tke_real)exp(sums[i]);
    tke_row_times(s->n, s->p, cs, c->s, y);
    for (size_t k = 0; k < s->p; k++)
        y[k] *= faded;
    for (size_t j = 0; j <= i; j++)
        tke_row_add(s->p, products[j] * (tke_real)exp(sums[i] - sums[j]), c->u + j * c->u_stride,
                    y);
}

void tke_space_advance(const tke_space_shape *s, const tke_space_chunk *c)
{
    double sums[CHUNK];
    tke_real fade[CHUNK];
    tke_running_sums(CHUNK, c->a, c->a_stride, sums);
    tke_real whole = (tke_real)exp(sums[CHUNK - 1]);
    for (size_t i = 0; i < CHUNK; i++)
        fade[i] = (tke_real)exp(sums[CHUNK - 1] - sums[i]);
    for (size_t k = 0; k < s->n; k++) {
        tke_real *row = c->s + k * s->p;
        for (size_t i = 0; i < s->p; i++)
            row[i] *= whole;
        for (size_t i = 0; i < CHUNK; i++)
            tke_row_add(s->p, fade[i] * c->bt[k * CHUNK + i], c->u + i * c->u_stride, row);
    }
}

/* ---- backward ---- */

typedef struct space { /* of one chunk; matrices [CHUNK][CHUNK] are lower triangular */
    const tke_space_shape *s;
    const tke_space_grads *g;
    size_t rows;
    tke_real up[CHUNK], down[CHUNK]; /* e^A_i, e^(A_last - A_i) */
    tke_real whole;                  /* e^A_last */
    tke_real *d, *cb, *dp;           /* D, C_i.B_j, the gradient of their product */
    tke_real *bt, *ut;               /* [n][CHUNK], [p][CHUNK] */
    tke_real *st, *dst;              /* [p][n]: S and dS' transposed */
    tke_real *out;                   /* [n]: S dy_i */
    tke_real *in;                    /* [p]: dS'^T B_i */
} space;

size_t tke_space_scratch(const tke_space_shape *s)
{
    return 3 * CHUNK * CHUNK + CHUNK * (s->n + s->p) + 2 * s->n * s->p + s->n + s->p;
}

static void place(space *x)
{
    size_t n = x->s->n, p = x->s->p;
    tke_real *at = x->g->scratch;
    x->d = tke_cut(&at, CHUNK * CHUNK);
    x->cb = tke_cut(&at, CHUNK * CHUNK);
    x->dp = tke_cut(&at, CHUNK * CHUNK);
    x->bt = tke_cut(&at, n * CHUNK);
    x->ut = tke_cut(&at, p * CHUNK);
    x->st = tke_cut(&at, p * n);
    x->dst = tke_cut(&at, p * n);
    x->out = tke_cut(&at, n);
    x->in = tke_cut(&at, p);
    assert((size_t)(at - x->g->scratch) == tke_space_scratch(x->s));
}

/* What forward had, D and the products; and dP. */
static void repeat_forward(space *x)
{
    const tke_space_grads *g = x->g;
    size_t n = x->s->n, p = x->s->p;
    double sums[CHUNK];
    tke_running_sums(x->rows, g->a, g->a_stride, sums);
    double last = sums[x->rows - 1];
    x->whole = (tke_real)exp(last);
    for (size_t i = 0; i < x->rows; i++) {
        x->up[i] = (tke_real)exp(sums[i]);
        x->down[i] = (tke_real)exp(last - sums[i]);
        for (size_t j = 0; j <= i; j++)
            x->d[i * CHUNK + j] = (tke_real)exp(sums[i] - sums[j]);
    }
    tke_rows_transpose(x->rows, n, g->b, g->n_stride, x->bt, CHUNK);
    tke_rows_transpose(x->rows, p, g->u, g->p_stride, x->ut, CHUNK);
    tke_rows_transpose(n, p, g->s, p, x->st, n);
    tke_rows_transpose(n, p, g->ds, p, x->dst, n);
    tke_lower_products(x->rows, CHUNK, n, g->c, g->n_stride, x->bt, x->cb);
    tke_lower_products(x->rows, CHUNK, p, g->dy, g->p_stride, x->ut, x->dp);
}

/* Gradients of u, B and C of row i, and of A_i but for what concerns all rows; returns the part of
 * row i in the gradient of A_last. */
static double row_backward(space *x, size_t i, double *d_sum)
{
    const tke_space_grads *g = x->g;
    size_t n = x->s->n, p = x->s->p;
    const tke_real *c = g->c + i * g->n_stride, *u = g->u + i * g->p_stride;
    tke_real *du = g->du + i * g->p_stride;
    tke_row_times(p, n, g->dy + i * g->p_stride, x->st, x->out);
    tke_row_add(n, x->up[i], x->out, g->dc + i * g->n_stride);
    tke_row_times(n, p, g->b + i * g->n_stride, g->ds, x->in);
    for (size_t k = 0; k < p; k++)
        du[k] = x->down[i] * x->in[k];
    double own = (double)(x->down[i] * tke_row_dot(p, u, x->in));
    double sum = (double)(x->up[i] * tke_row_dot(n, c, x->out)) - own;
    tke_row_times(p, n, u, x->dst, x->out);
    tke_row_add(n, x->down[i], x->out, g->db + i * g->n_stride);
    for (size_t j = 0; j <= i; j++) {
        size_t at = i * CHUNK + j;
        tke_row_add(n, x->dp[at] * x->d[at], g->b + j * g->n_stride, g->dc + i * g->n_stride);
        sum += j < i ? (double)(x->dp[at] * x->cb[at] * x->d[at]) : 0;
    }
    for (size_t j = i; j < x->rows; j++) {
        size_t at = j * CHUNK + i;
        tke_row_add(p, x->cb[at] * x->d[at], g->dy + j * g->p_stride, du);
        tke_row_add(n, x->dp[at] * x->d[at], g->c + j * g->n_stride, g->db + i * g->n_stride);
        sum -= j > i ? (double)(x->dp[at] * x->cb[at] * x->d[at]) : 0;
    }
    *d_sum = sum;
    return own;
}

/* dS = e^A_last dS' + sum of e^A_i C_i dy_i^T, in place. */
static void state_backward(space *x)
{
    const tke_space_grads *g = x->g;
    for (size_t k = 0; k < x->s->n; k++) {
        tke_real *row = g->ds + k * x->s->p;
        for (size_t i = 0; i < x->s->p; i++)
            row[i] *= x->whole;
        for (size_t i = 0; i < x->rows; i++)
            tke_row_add(x->s->p, x->up[i] * g->c[i * g->n_stride + k], g->dy + i * g->p_stride,
                        row);
    }
}

void tke_space_backward(const tke_space_shape *s, const tke_space_grads *g)
{
    space x = { .s = s, .g = g, .rows = g->rows };
    double d_sums[CHUNK], last = 0, ahead = 0;
    assert(g->rows > 0 && g->rows <= CHUNK);
    place(&x);
    repeat_forward(&x);
    for (size_t i = 0; i < g->rows; i++)
        last += row_backward(&x, i, &d_sums[i]);
    last += (double)(x.whole * tke_row_dot(s->n * s->p, g->s, g->ds));
    d_sums[g->rows - 1] += last;
    for (size_t i = g->rows; i-- > 0;) {
        ahead += d_sums[i];
        g->da[i * g->a_stride] = (tke_real)ahead;
    }
    state_backward(&x);
}
