/* reference.c - the reference kernel set: plain C, any machine, float or double.
 *
 * It defines what each kernel computes; the fast sets are tested against it. Sums run in index order with
 * a rounding after each product. Plain loops that are easy to check; no intrinsics.
 */
#include "math/kernel_set.h"

#include <string.h>

/* ---- products ---- */

static tke_real round_bf16(tke_real x)
{
    return tke_bf16_to_f32(tke_f32_to_bf16((float)x));
}

/* One element: alpha * a is rounded first, then the products are added in order of k. */
static tke_real gemm_element(const tke_gemm *g, int64_t i, int64_t j)
{
    bool narrow = !g->exact && g->form != TKE_TN && g->b.dtype == TKE_BF16;
    const tke_real *a = g->form == TKE_TN ? g->a + i : g->a + i * g->lda;
    int64_t a_step = g->form == TKE_TN ? g->lda : 1;
    int64_t b = g->form == TKE_NT ? j * g->b.ld : j, b_step = g->form == TKE_NT ? 1 : g->b.ld;
    tke_real sum = g->accumulate ? g->c[i * g->ldc + j] : 0;
    for (int64_t p = 0; p < g->k; p++) {
        tke_real x = g->alpha * a[p * a_step];
        sum += (narrow ? round_bf16(x) : x) * tke_load(g->b.dtype, g->b.data, b + p * b_step);
    }
    return sum;
}

static void gemm(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    (void)scratch;
    for (int64_t i = m0; i < m1; i++)
        for (int64_t j = n0; j < n1; j++)
            g->c[i * g->ldc + j] = gemm_element(g, i, j);
}

/* ---- norms, rotation, swiglu ---- */

static tke_real inverse_rms(int64_t n, const tke_real *x, tke_real eps)
{
    tke_real sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += x[j] * x[j];
    return 1 / tke_real_sqrt(sum / (tke_real)n + eps);
}

static void rmsnorm(int64_t rows, int64_t n, const tke_real *x, const tke_real *w, tke_real eps,
                    tke_real *y)
{
    for (int64_t i = 0; i < rows; i++, x += n, y += n) {
        tke_real rho = inverse_rms(n, x, eps);
        for (int64_t j = 0; j < n; j++)
            y[j] = w[j] * (x[j] * rho);
    }
}

static void rmsnorm_backward(int64_t rows, int64_t n, const tke_real *x, const tke_real *w,
                             tke_real eps, const tke_real *dy, tke_real *dx, bool accumulate)
{
    for (int64_t i = 0; i < rows; i++, x += n, dy += n, dx += n) {
        tke_real rho = inverse_rms(n, x, eps), dot = 0;
        for (int64_t j = 0; j < n; j++)
            dot += w[j] * dy[j] * x[j];
        tke_real back = rho * rho * rho * dot / (tke_real)n;
        for (int64_t j = 0; j < n; j++) {
            tke_real d = rho * (w[j] * dy[j]) - x[j] * back;
            dx[j] = accumulate ? dx[j] + d : d;
        }
    }
}

static void rope(int64_t rows, int64_t heads, int64_t d, const int32_t *positions,
                 const tke_real *cos_table, const tke_real *sin_table, bool inverse, tke_real *x,
                 int64_t ldx)
{
    int64_t half = d / 2;
    for (int64_t i = 0; i < rows; i++, x += ldx) {
        const tke_real *c = cos_table + positions[i] * half, *s = sin_table + positions[i] * half;
        for (int64_t h = 0; h < heads; h++) {
            tke_real *lo = x + h * d, *hi = lo + half;
            for (int64_t j = 0; j < half; j++) {
                tke_real sine = inverse ? -s[j] : s[j], a = lo[j], b = hi[j];
                lo[j] = a * c[j] - b * sine;
                hi[j] = b * c[j] + a * sine;
            }
        }
    }
}

/* exp(-|x|) cannot overflow. */
static tke_real sigmoid(tke_real x)
{
    tke_real e = tke_real_exp(-tke_real_fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

static void swiglu(int64_t count, const tke_real *g, const tke_real *u, tke_real *m)
{
    for (int64_t i = 0; i < count; i++)
        m[i] = g[i] * sigmoid(g[i]) * u[i];
}

static void swiglu_backward(int64_t count, const tke_real *g, const tke_real *u, const tke_real *dm,
                            tke_real *dg, tke_real *du)
{
    for (int64_t i = 0; i < count; i++) {
        tke_real s = sigmoid(g[i]), gate = g[i] * s, d = dm[i], up = u[i];
        tke_real slope = s * (1 + g[i] * (1 - s));
        du[i] = d * gate;
        dg[i] = d * up * slope;
    }
}

/* ---- attention ---- */

static int64_t first_key(const tke_attention *s, int64_t position)
{
    return s->window > 0 && position >= s->window ? position - s->window + 1 : 0;
}

/* q . k of each valid key of one block, scaled; the largest of them. */
static tke_real block_scores(const tke_attention_part *p, const tke_real *q, int64_t from,
                             int64_t to, tke_real *scores)
{
    int64_t d = p->shape->head_dim;
    tke_real max = -(tke_real)INFINITY;
    for (int64_t j = from; j < to; j++) {
        int64_t at = tke_keys_row(&p->keys, j) + p->kv_head * p->keys.head_stride;
        tke_real s = 0;
        for (int64_t e = 0; e < d; e++)
            s += q[e] * p->shape->scale * tke_load(p->keys.dtype, p->keys.k, at + e);
        scores[j - from] = s;
        if (s > max || s != s)
            max = s;
    }
    return max;
}

static void attention_row(const tke_attention_part *p, int64_t position, const tke_real *sink,
                          const tke_real *q, tke_real *o, tke_real *lse)
{
    int64_t d = p->shape->head_dim, first = first_key(p->shape, position);
    tke_real max = sink ? *sink : -(tke_real)INFINITY, sum = sink ? 1 : 0, scores[TKE_KEY_BLOCK];
    for (int64_t e = 0; e < d; e++)
        o[e] = 0;
    for (int64_t block = first / TKE_KEY_BLOCK; block * TKE_KEY_BLOCK <= position; block++) {
        int64_t from = block * TKE_KEY_BLOCK, to = from + TKE_KEY_BLOCK;
        from = from < first ? first : from;
        to = to > position + 1 ? position + 1 : to;
        tke_real block_max = block_scores(p, q, from, to, scores);
        tke_real new_max = block_max > max || block_max != block_max ? block_max : max;
        tke_real shrink = tke_real_exp(max - new_max);
        sum *= shrink;
        for (int64_t e = 0; e < d; e++)
            o[e] *= shrink;
        for (int64_t j = from; j < to; j++) {
            tke_real weight = tke_real_exp(scores[j - from] - new_max);
            int64_t at = tke_keys_row(&p->keys, j) + p->kv_head * p->keys.head_stride;
            sum += weight;
            for (int64_t e = 0; e < d; e++)
                o[e] += weight * tke_load(p->keys.dtype, p->keys.v, at + e);
        }
        max = new_max;
    }
    for (int64_t e = 0; e < d; e++)
        o[e] /= sum;
    if (lse)
        *lse = max + tke_real_log(sum);
}

static void attention(const tke_attention_part *p, int64_t begin, int64_t end, void *scratch)
{
    const tke_attention *s = p->shape;
    int64_t group = s->n_heads / s->n_kv_heads, d = s->head_dim;
    (void)scratch;
    for (int64_t i = begin; i < end; i++)
        for (int64_t h = p->kv_head * group; h < (p->kv_head + 1) * group; h++) {
            int64_t at = (i * s->n_heads + h) * d;
            attention_row(p, p->first_pos + i, s->sinks ? s->sinks + h : NULL, p->q + at, p->o + at,
                          p->lse ? p->lse + i * s->n_heads + h : NULL);
        }
}

static tke_real dot(int64_t n, const tke_real *x, const tke_real *y)
{
    tke_real sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += x[j] * y[j];
    return sum;
}

/* What query row i, head h sends back to its keys, its values and itself, as far as wanted. */
static void attention_row_backward(const tke_attention_back *b, int64_t i, int64_t h)
{
    bool to_row = b->part != TKE_BACK_KEYS, to_keys = b->part != TKE_BACK_ROWS;
    const tke_attention *s = b->shape;
    const tke_attention_grads *g = &b->g;
    int64_t d = s->head_dim, ldk = (int64_t)s->n_kv_heads * d, at = (i * s->n_heads + h) * d;
    const tke_real *q = g->q + at, *d_o = g->d_o + at;
    tke_real *dq = g->dq + at;
    tke_real delta = dot(d, d_o, g->o + at), lse = g->lse[i * s->n_heads + h];
    for (int64_t e = 0; to_row && e < d; e++)
        dq[e] = 0;
    /* With a single key (and no sink) the weight is 1 whatever the score: exactly no gradient. */
    tke_real scale = first_key(s, i) == i && !s->sinks ? 0 : s->scale;
    for (int64_t j = first_key(s, i); j <= i; j++) {
        if (!to_row && (j < b->begin || j >= b->end))
            continue;
        int64_t key = j * ldk + b->kv_head * d;
        const tke_real *k = g->k + key, *v = g->v + key;
        tke_real p = tke_real_exp(dot(d, q, k) * s->scale - lse);
        tke_real ds = p * (dot(d, d_o, v) - delta) * scale;
        for (int64_t e = 0; to_row && e < d; e++)
            dq[e] += ds * k[e];
        for (int64_t e = 0; to_keys && e < d; e++) {
            g->dk[key + e] += ds * q[e];
            g->dv[key + e] += p * d_o[e];
        }
    }
}

static void attention_backward(const tke_attention_back *b, void *scratch)
{
    const tke_attention *s = b->shape;
    int64_t d = s->head_dim, ldk = (int64_t)s->n_kv_heads * d, group = s->n_heads / s->n_kv_heads;
    (void)scratch;
    int64_t first = b->part == TKE_BACK_ROWS ? b->begin : 0;
    int64_t end = b->part == TKE_BACK_ROWS ? b->end : b->length;
    for (int64_t j = 0; j < b->length && b->part != TKE_BACK_ROWS; j++) {
        if (b->part == TKE_BACK_KEYS && (j < b->begin || j >= b->end))
            continue;
        int64_t key = j * ldk + b->kv_head * d;
        memset(b->g.dk + key, 0, (size_t)d * sizeof(tke_real));
        memset(b->g.dv + key, 0, (size_t)d * sizeof(tke_real));
    }
    for (int64_t i = first; i < end; i++)
        for (int64_t h = b->kv_head * group; h < (b->kv_head + 1) * group; h++)
            attention_row_backward(b, i, h);
}

/* ---- the vocabulary ---- */

static void lse_piece(int64_t n, const tke_real *z, tke_real *max, tke_real *sum)
{
    tke_real top = *max, piece = 0;
    for (int64_t j = 0; j < n; j++)
        if (z[j] > top || z[j] != z[j])
            top = z[j];
    if (top == -(tke_real)INFINITY)
        return; /* only -inf so far */
    for (int64_t j = 0; j < n; j++)
        piece += tke_real_exp(z[j] - top);
    *sum = *sum * tke_real_exp(*max - top) + piece;
    *max = top;
}

static void lse_update(int64_t rows, int64_t n, const tke_real *z, int64_t ldz, tke_real *max,
                       tke_real *sum)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j += TKE_VOCAB_BLOCK)
            lse_piece(n - j < TKE_VOCAB_BLOCK ? n - j : TKE_VOCAB_BLOCK, z + i * ldz + j, &max[i],
                      &sum[i]);
}

static void softmax_scaled(int64_t rows, int64_t n, tke_real *z, int64_t ldz, const tke_real *lse,
                           const tke_real *scale)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            z[i * ldz + j] = scale[i] * tke_real_exp(z[i * ldz + j] - lse[i]);
}

/* ---- sums and Adam ---- */

static double sum_squares(int64_t count, const tke_real *x)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static double adam(const tke_adam *a, int64_t count, const tke_real *g, tke_real *theta,
                   tke_real *m, tke_real *v, bool store)
{
    double bc1 = 1 - pow(a->beta1, (double)a->t), bc2 = 1 - pow(a->beta2, (double)a->t);
    tke_real decay = (tke_real)(1 - a->lr * a->weight_decay), clip = (tke_real)a->clip;
    tke_real step = (tke_real)(a->lr / bc1), root = (tke_real)sqrt(bc2), eps = (tke_real)a->eps;
    tke_real one1 = (tke_real)(1 - a->beta1), one2 = (tke_real)(1 - a->beta2);
    tke_real beta2 = (tke_real)a->beta2;
    double change = 0;
    for (int64_t i = 0; i < count; i++) {
        tke_real d = g[i] * clip, old = theta[i];
        tke_real m1 = m[i] + one1 * (d - m[i]);
        tke_real v1 = beta2 * v[i] + one2 * (d * d);
        tke_real now = old * decay - step * (m1 / (tke_real_sqrt(v1) / root + eps));
        double moved = (double)now - (double)old;
        if (store) {
            m[i] = m1;
            v[i] = v1;
            theta[i] = now;
        }
        change += isfinite(m1) && isfinite(v1) ? moved * moved : (double)NAN;
    }
    return change;
}

const tke_kernel_set tke_set_ref = {
    .name = "ref",
    .isa = TKE_ISA_REF,
    .tile_m = 8,
    .tile_n = 16,
    .gemm = gemm,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .attention = attention,
    .attention_backward = attention_backward,
    .lse_update = lse_update,
    .softmax_scaled = softmax_scaled,
    .sum_squares = sum_squares,
    .adam = adam,
};
