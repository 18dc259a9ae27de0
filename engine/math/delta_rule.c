/* delta_rule.c - the gated delta rule in plain C, over rows of chunk_rows.h.
 *
 * May touch: what it is given. Must not: know of layers, sequences or threads.
 */
#include "math/delta_rule.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "math/chunk_rows.h"

enum { CHUNK = TKE_DELTA_CHUNK };

/* ---- forward ---- */

void tke_delta_multiply(const tke_delta_shape *s, tke_real *kt, size_t i, const tke_real *q,
                        const tke_real *k, tke_delta_products *out)
{
    assert(i < CHUNK && s->dk <= TKE_DELTA_DIM);
    memset(out, 0, sizeof *out);
    for (size_t a = 0; a < s->dk; a++) {
        kt[a * CHUNK + i] = k[a];
        tke_row_add(i + 1, k[a], kt + a * CHUNK, out->kk);
        tke_row_add(i + 1, q[a], kt + a * CHUNK, out->qk);
    }
}

void tke_delta_row(const tke_delta_shape *s, const tke_delta_chunk *c, size_t i, const tke_real *q,
                   const tke_real *k, const tke_real *v, tke_real strength,
                   const tke_delta_products *p, tke_real *o)
{
    tke_real sk[TKE_DELTA_DIM], sq[TKE_DELTA_DIM], *n = c->n + i * c->n_stride;
    double sums[CHUNK];
    assert(i < CHUNK && s->dv <= TKE_DELTA_DIM);
    tke_running_sums(i + 1, c->g, c->g_stride, sums);
    tke_real faded = (tke_real)exp(sums[i]);
    tke_row_times(s->dk, s->dv, k, c->s, sk);
    tke_row_times(s->dk, s->dv, q, c->s, sq);
    for (size_t b = 0; b < s->dv; b++) {
        n[b] = strength * (v[b] - faded * sk[b]);
        o[b] = faded * sq[b];
    }
    for (size_t j = 0; j < i; j++) {
        tke_real d = (tke_real)exp(sums[i] - sums[j]);
        tke_row_add(s->dv, -(strength * p->kk[j] * d), c->n + j * c->n_stride, n);
        tke_row_add(s->dv, p->qk[j] * d, c->n + j * c->n_stride, o);
    }
    tke_row_add(s->dv, p->qk[i], n, o);
}

void tke_delta_advance(const tke_delta_shape *s, const tke_delta_chunk *c)
{
    double sums[CHUNK];
    tke_real fade[CHUNK];
    tke_running_sums(CHUNK, c->g, c->g_stride, sums);
    tke_real whole = (tke_real)exp(sums[CHUNK - 1]);
    for (size_t i = 0; i < CHUNK; i++)
        fade[i] = (tke_real)exp(sums[CHUNK - 1] - sums[i]);
    for (size_t a = 0; a < s->dk; a++) {
        tke_row_scale(s->dv, whole, c->s + a * s->dv);
        for (size_t i = 0; i < CHUNK; i++)
            tke_row_add(s->dv, fade[i] * c->kt[a * CHUNK + i], c->n + i * c->n_stride,
                        c->s + a * s->dv);
    }
}

/* ---- backward ---- */

typedef struct space { /* of one chunk; matrices [CHUNK][CHUNK] are lower triangular */
    const tke_delta_shape *s;
    const tke_delta_grads *g;
    size_t rows;
    double sums[CHUNK];
    tke_real up[CHUNK], down[CHUNK]; /* e^G_i, e^(G_last - G_i) */
    tke_real whole;                  /* e^G_last */
    tke_real *d, *kk, *qk, *dp, *da; /* D, products, gradients of P and A */
    tke_real *kt, *nt;               /* [dk][CHUNK], [dv][CHUNK] */
    tke_real *st, *dst;              /* [dv][dk]: S and dS' transposed */
    tke_real *z, *sk;                /* [CHUNK][dv]: Z and S^T k */
    tke_real *sdo, *sz, *dsn;        /* [dk]: S dO_i, S Z_i, dS' N_i */
    tke_real *next;                  /* [dk][dv]: dS */
} space;

size_t tke_delta_scratch(const tke_delta_shape *s)
{
    return 5 * CHUNK * CHUNK + CHUNK * (s->dk + s->dv) + 2 * s->dk * s->dv + 2 * CHUNK * s->dv +
           3 * s->dk + s->dk * s->dv;
}

static void place(space *x)
{
    size_t dk = x->s->dk, dv = x->s->dv;
    tke_real *at = x->g->scratch;
    x->d = tke_cut(&at, CHUNK * CHUNK);
    x->kk = tke_cut(&at, CHUNK * CHUNK);
    x->qk = tke_cut(&at, CHUNK * CHUNK);
    x->dp = tke_cut(&at, CHUNK * CHUNK);
    x->da = tke_cut(&at, CHUNK * CHUNK);
    x->kt = tke_cut(&at, dk * CHUNK);
    x->nt = tke_cut(&at, dv * CHUNK);
    x->st = tke_cut(&at, dv * dk);
    x->dst = tke_cut(&at, dv * dk);
    x->z = tke_cut(&at, CHUNK * dv);
    x->sk = tke_cut(&at, CHUNK * dv);
    x->sdo = tke_cut(&at, dk);
    x->sz = tke_cut(&at, dk);
    x->dsn = tke_cut(&at, dk);
    x->next = tke_cut(&at, dk * dv);
    assert((size_t)(at - x->g->scratch) == tke_delta_scratch(x->s));
}

/* What forward had: D and the products. */
static void repeat_forward(space *x)
{
    const tke_delta_grads *g = x->g;
    size_t dk = x->s->dk, dv = x->s->dv;
    tke_running_sums(x->rows, g->g, g->gate_stride, x->sums);
    double last = x->sums[x->rows - 1];
    x->whole = (tke_real)exp(last);
    for (size_t i = 0; i < x->rows; i++) {
        x->up[i] = (tke_real)exp(x->sums[i]);
        x->down[i] = (tke_real)exp(last - x->sums[i]);
        for (size_t j = 0; j <= i; j++)
            x->d[i * CHUNK + j] = (tke_real)exp(x->sums[i] - x->sums[j]);
        tke_row_times(dk, dv, g->k + i * g->dk_stride, g->s, x->sk + i * dv);
    }
    tke_rows_transpose(x->rows, dk, g->k, g->dk_stride, x->kt, CHUNK);
    tke_rows_transpose(x->rows, dv, g->n, g->dv_stride, x->nt, CHUNK);
    tke_rows_transpose(dk, dv, g->s, dv, x->st, dk);
    tke_rows_transpose(dk, dv, g->ds, dv, x->dst, dk);
    tke_lower_products(x->rows, CHUNK, dk, g->k, g->dk_stride, x->kt, x->kk);
    tke_lower_products(x->rows, CHUNK, dk, g->q, g->dk_stride, x->kt, x->qk);
}

static tke_real a_of(const space *x, size_t i, size_t j)
{
    size_t at = i * CHUNK + j;
    return x->g->strength[i * x->g->gate_stride] * x->kk[at] * x->d[at];
}

/* Z = M^-T dN by back substitution, M = I + A; dN = P^T dO + e^(G_last - G) k dS'. */
static void solve(space *x)
{
    const tke_delta_grads *g = x->g;
    size_t dv = x->s->dv;
    for (size_t j = x->rows; j-- > 0;) {
        tke_real *z = x->z + j * dv;
        tke_row_times(x->s->dk, dv, g->k + j * g->dk_stride, g->ds, z);
        tke_row_scale(dv, x->down[j], z);
        for (size_t i = j; i < x->rows; i++)
            tke_row_add(dv, x->qk[i * CHUNK + j] * x->d[i * CHUNK + j], g->d_o + i * g->dv_stride,
                        z);
        for (size_t i = j + 1; i < x->rows; i++)
            tke_row_add(dv, -a_of(x, i, j), x->z + i * dv, z);
    }
    tke_lower_products(x->rows, CHUNK, dv, g->d_o, g->dv_stride, x->nt, x->dp);
    tke_lower_products(x->rows, CHUNK, dv, x->z, dv, x->nt, x->da);
    for (size_t i = 0; i < x->rows; i++) {
        for (size_t j = 0; j < i; j++)
            x->da[i * CHUNK + j] = -x->da[i * CHUNK + j];
        x->da[i * CHUNK + i] = 0;
    }
}

static void queries_and_keys(space *x, size_t i)
{
    const tke_delta_grads *g = x->g;
    size_t dk = x->s->dk, dv = x->s->dv, stride = g->dk_stride;
    tke_real strength = g->strength[i * g->gate_stride], *dq = g->dq + i * stride;
    tke_real *key = g->dk + i * stride;
    tke_row_times(dv, dk, g->d_o + i * g->dv_stride, x->st, x->sdo);
    tke_row_times(dv, dk, x->z + i * dv, x->st, x->sz);
    tke_row_times(dv, dk, g->n + i * g->dv_stride, x->dst, x->dsn);
    tke_row_add(dk, x->up[i], x->sdo, dq);
    tke_row_add(dk, x->down[i], x->dsn, key);
    tke_row_add(dk, -(strength * x->up[i]), x->sz, key);
    for (size_t j = 0; j <= i; j++) {
        size_t at = i * CHUNK + j;
        tke_row_add(dk, x->dp[at] * x->d[at], g->k + j * stride, dq);
        tke_row_add(dk, strength * x->da[at] * x->d[at], g->k + j * stride, key);
    }
    for (size_t j = i; j < x->rows; j++) {
        size_t at = j * CHUNK + i;
        tke_row_add(dk, x->dp[at] * x->d[at], g->q + j * stride, key);
        tke_row_add(dk, g->strength[j * g->gate_stride] * x->da[at] * x->d[at], g->k + j * stride,
                    key);
    }
}

/* Gradients of v, of the strength, and of G_i but for what concerns all rows; returns the part of
 * row i in the gradient of G_last. */
static double values_and_gates(space *x, size_t i, double *d_sum)
{
    const tke_delta_grads *g = x->g;
    size_t dk = x->s->dk, dv = x->s->dv;
    const tke_real *z = x->z + i * dv, *sk = x->sk + i * dv, *v = g->v + i * g->dv_stride;
    const tke_real *q = g->q + i * g->dk_stride, *k = g->k + i * g->dk_stride;
    tke_real strength = g->strength[i * g->gate_stride], by = 0;
    tke_real state = tke_row_dot(dv, z, sk), own = x->down[i] * tke_row_dot(dk, k, x->dsn);
    double sum = (double)(x->up[i] * tke_row_dot(dk, q, x->sdo)) -
                 (double)(strength * x->up[i] * state) - (double)own;
    for (size_t j = 0; j < x->rows; j++) {
        size_t at = j <= i ? i * CHUNK + j : j * CHUNK + i, row = j <= i ? i : j;
        tke_real a = j == i ? 0 : a_of(x, row, j <= i ? j : i);
        double e = (double)(x->dp[at] * x->qk[at] * x->d[at]) + (double)(x->da[at] * a);
        sum += j < i ? e : j > i ? -e : 0;
        if (j < i)
            by += x->da[at] * x->kk[at] * x->d[at];
    }
    for (size_t b = 0; b < dv; b++)
        g->dv[i * g->dv_stride + b] = strength * z[b];
    g->dstrength[i * g->gate_stride] = by + tke_row_dot(dv, z, v) - x->up[i] * state;
    *d_sum = sum;
    return (double)own;
}

static void states(space *x)
{
    const tke_delta_grads *g = x->g;
    size_t dk = x->s->dk, dv = x->s->dv;
    for (size_t a = 0; a < dk; a++) {
        tke_real *out = x->next + a * dv;
        for (size_t b = 0; b < dv; b++)
            out[b] = x->whole * g->ds[a * dv + b];
        for (size_t i = 0; i < x->rows; i++) {
            tke_real strength = g->strength[i * g->gate_stride];
            tke_row_add(dv, x->up[i] * g->q[i * g->dk_stride + a], g->d_o + i * g->dv_stride, out);
            tke_row_add(dv, -(strength * x->up[i] * g->k[i * g->dk_stride + a]), x->z + i * dv,
                        out);
        }
    }
}

void tke_delta_backward(const tke_delta_shape *s, const tke_delta_grads *g)
{
    space x = { .s = s, .g = g, .rows = g->rows };
    double d_sums[CHUNK], last = 0, ahead = 0;
    assert(g->rows > 0 && g->rows <= CHUNK);
    place(&x);
    repeat_forward(&x);
    solve(&x);
    for (size_t i = 0; i < g->rows; i++) {
        queries_and_keys(&x, i);
        last += values_and_gates(&x, i, &d_sums[i]);
    }
    last += (double)(x.whole * tke_row_dot(s->dk * s->dv, g->s, g->ds));
    d_sums[g->rows - 1] += last;
    for (size_t i = g->rows; i-- > 0;) {
        ahead += d_sums[i];
        g->dg[i * g->gate_stride] = (tke_real)ahead;
    }
    states(&x);
    memcpy(g->ds, x.next, s->dk * s->dv * sizeof *g->ds);
}
