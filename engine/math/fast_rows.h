/* fast_rows.h - norms, rotation, swiglu, softmax pieces, sums and Adam for the fast sets, written
 * in the operations of simd_*.h. Included by neon.c, avx2.c and avx512.c.
 *
 * A sum over a row goes into four vectors in turn (vector i of the row into number i mod 4), which
 * are added as (0+1)+(2+3), then their lanes in halves. The order depends on the row's length alone.
 */
#ifndef TKE_KERNELS_FAST_ROWS_H
#define TKE_KERNELS_FAST_ROWS_H

INLINE float sum_of_four(const vf s[4])
{
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* exp to about one unit in the last place: x = n ln2 + r, a polynomial in r, times 2^n. */
INLINE vf v_exp(vf x)
{
    x = v_max(v_set(-110.0f), v_min(v_set(89.0f), x)); /* NaN passes through both */
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    vf r = v_fnma(n, v_set(0.693359375f), x);
    r = v_fnma(n, v_set(-2.12194440e-4f), r);
    vf p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), v_add(r, v_set(1.0f)));
    return v_scale2(p, n);
}

/* ---- norms ---- */

INLINE float inverse_rms(int64_t n, const float *x, float eps)
{
    vf s[4] = { v_zero(), v_zero(), v_zero(), v_zero() };
    int64_t j = 0;
    for (; j + 4 * VW <= n; j += 4 * VW)
        for (int i = 0; i < 4; i++) {
            vf v = v_load(x + j + i * VW);
            s[i] = v_fma(v, v, s[i]);
        }
    for (int i = 0; j < n; i++, j += VW) {
        vf v = v_load_part(x + j, n - j < VW ? n - j : VW);
        s[i] = v_fma(v, v, s[i]);
    }
    return 1.0f / sqrtf(sum_of_four(s) / (float)n + eps);
}

static void rmsnorm(int64_t rows, int64_t n, const float *x, const float *w, float eps, float *y)
{
    for (int64_t i = 0; i < rows; i++, x += n, y += n) {
        vf rho = v_set(inverse_rms(n, x, eps));
        int64_t j = 0;
        for (; j + VW <= n; j += VW)
            v_store(y + j, v_mul(v_load(w + j), v_mul(v_load(x + j), rho)));
        if (j < n)
            v_store_part(y + j, n - j,
                         v_mul(v_load_part(w + j, n - j), v_mul(v_load_part(x + j, n - j), rho)));
    }
}

/* The sum of w * dy * x. */
INLINE float weighted_dot(int64_t n, const float *w, const float *dy, const float *x)
{
    vf s[4] = { v_zero(), v_zero(), v_zero(), v_zero() };
    int64_t j = 0;
    for (; j + 4 * VW <= n; j += 4 * VW)
        for (int i = 0; i < 4; i++) {
            int64_t at = j + i * VW;
            s[i] = v_fma(v_mul(v_load(w + at), v_load(dy + at)), v_load(x + at), s[i]);
        }
    for (int i = 0; j < n; i++, j += VW) {
        int64_t left = n - j < VW ? n - j : VW;
        s[i] = v_fma(v_mul(v_load_part(w + j, left), v_load_part(dy + j, left)),
                     v_load_part(x + j, left), s[i]);
    }
    return sum_of_four(s);
}

static void rmsnorm_backward(int64_t rows, int64_t n, const float *x, const float *w, float eps,
                             const float *dy, float *dx, bool accumulate)
{
    for (int64_t i = 0; i < rows; i++, x += n, dy += n, dx += n) {
        float r = inverse_rms(n, x, eps);
        vf rho = v_set(r), back = v_set(r * r * r * weighted_dot(n, w, dy, x) / (float)n);
        for (int64_t j = 0; j < n; j += VW) {
            int64_t left = n - j < VW ? n - j : VW;
            vf e = v_mul(v_load_part(w + j, left), v_load_part(dy + j, left));
            vf d = v_fnma(v_load_part(x + j, left), back, v_mul(rho, e));
            if (accumulate)
                d = v_add(v_load_part(dx + j, left), d);
            v_store_part(dx + j, left, d);
        }
    }
}

/* ---- rotation, swiglu ---- */

static void rope(int64_t rows, int64_t heads, int64_t d, const int32_t *positions,
                 const float *cos_table, const float *sin_table, bool inverse, float *x,
                 int64_t ldx)
{
    int64_t half = d / 2;
    vf sign = v_set(inverse ? -1.0f : 1.0f);
    for (int64_t i = 0; i < rows; i++, x += ldx) {
        const float *c = cos_table + positions[i] * half, *s = sin_table + positions[i] * half;
        for (int64_t j = 0; j < half; j += VW) {
            int64_t left = half - j < VW ? half - j : VW;
            vf cosine = v_load_part(c + j, left), sine = v_mul(sign, v_load_part(s + j, left));
            for (int64_t h = 0; h < heads; h++) {
                float *lo = x + h * d + j, *hi = lo + half;
                vf a = v_load_part(lo, left), b = v_load_part(hi, left);
                v_store_part(lo, left, v_fnma(b, sine, v_mul(a, cosine)));
                v_store_part(hi, left, v_fma(a, sine, v_mul(b, cosine)));
            }
        }
    }
}

/* exp(-|x|) cannot overflow. */
INLINE vf v_sigmoid(vf x)
{
    vf one = v_set(1.0f), e = v_exp(v_sub(v_zero(), v_abs(x)));
    return v_div(v_if_negative(x, e, one), v_add(one, e));
}

static void swiglu(int64_t count, const float *g, const float *u, float *m)
{
    for (int64_t i = 0; i < count; i += VW) {
        int64_t left = count - i < VW ? count - i : VW;
        vf gate = v_load_part(g + i, left);
        gate = v_mul(gate, v_sigmoid(gate));
        v_store_part(m + i, left, v_mul(gate, v_load_part(u + i, left)));
    }
}

static void swiglu_backward(int64_t count, const float *g, const float *u, const float *dm,
                            float *dg, float *du)
{
    vf one = v_set(1.0f);
    for (int64_t i = 0; i < count; i += VW) {
        int64_t left = count - i < VW ? count - i : VW;
        vf gate = v_load_part(g + i, left), up = v_load_part(u + i, left);
        vf d = v_load_part(dm + i, left), s = v_sigmoid(gate);
        vf slope = v_mul(s, v_fma(gate, v_sub(one, s), one));
        v_store_part(du + i, left, v_mul(d, v_mul(gate, s)));
        v_store_part(dg + i, left, v_mul(v_mul(d, up), slope));
    }
}

/* ---- the vocabulary ---- */

/* The largest that is not NaN. */
INLINE float largest_of(int64_t n, const float *z, float start)
{
    vf top = v_set(start);
    int64_t j = 0;
    for (; j + VW <= n; j += VW)
        top = v_max(v_load(z + j), top);
    if (j < n)
        top = v_max(v_first(n - j, v_load_part(z + j, n - j), top), top);
    return v_largest(top);
}

static bool any_nan(int64_t n, const float *z)
{
    for (int64_t j = 0; j < n; j++)
        if (z[j] != z[j])
            return true;
    return false;
}

INLINE float sum_of_exp(int64_t n, const float *z, float top)
{
    vf s[4] = { v_zero(), v_zero(), v_zero(), v_zero() }, shift = v_set(top);
    int64_t j = 0;
    for (; j + 4 * VW <= n; j += 4 * VW)
        for (int i = 0; i < 4; i++)
            s[i] = v_add(s[i], v_exp(v_sub(v_load(z + j + i * VW), shift)));
    for (int i = 0; j < n; i++, j += VW) {
        int64_t left = n - j < VW ? n - j : VW;
        vf e = v_exp(v_sub(v_load_part(z + j, left), shift));
        s[i] = v_add(s[i], v_first(left, e, v_zero()));
    }
    return sum_of_four(s);
}

INLINE float exp_of(float x)
{
    float lanes[VW];
    v_store(lanes, v_exp(v_set(x)));
    return lanes[0];
}

static void lse_update(int64_t rows, int64_t n, const float *z, int64_t ldz, float *max, float *sum)
{
    for (int64_t i = 0; i < rows; i++, z += ldz)
        for (int64_t j = 0; j < n; j += TKE_VOCAB_BLOCK) {
            int64_t piece = n - j < TKE_VOCAB_BLOCK ? n - j : TKE_VOCAB_BLOCK;
            float top = largest_of(piece, z + j, max[i]);
            if (top == -INFINITY && any_nan(piece, z + j))
                sum[i] = NAN;
            if (top == -INFINITY)
                continue; /* only -inf so far */
            sum[i] = __builtin_fmaf(sum[i], exp_of(max[i] - top), sum_of_exp(piece, z + j, top));
            max[i] = top;
        }
}

static void softmax_scaled(int64_t rows, int64_t n, float *z, int64_t ldz, const float *lse,
                           const float *scale)
{
    for (int64_t i = 0; i < rows; i++, z += ldz) {
        vf shift = v_set(lse[i]), s = v_set(scale[i]);
        for (int64_t j = 0; j < n; j += VW) {
            int64_t left = n - j < VW ? n - j : VW;
            vf e = v_exp(v_sub(v_load_part(z + j, left), shift));
            v_store_part(z + j, left, v_mul(s, e));
        }
    }
}

/* ---- sums and Adam ---- */

static double sum_squares(int64_t count, const float *x)
{
    vd s = vd_zero();
    for (int64_t i = 0; i < count; i += VW)
        s = vd_add_square(s, v_load_part(x + i, count - i < VW ? count - i : VW));
    return vd_sum(s);
}

static double adam(const tke_adam *a, int64_t count, const float *g, float *theta, float *m,
                   float *v, bool store)
{
    double bc1 = 1 - pow(a->beta1, (double)a->t), bc2 = 1 - pow(a->beta2, (double)a->t);
    vf decay = v_set((float)(1 - a->lr * a->weight_decay)), clip = v_set((float)a->clip);
    vf step = v_set((float)(a->lr / bc1)), root = v_set((float)sqrt(bc2));
    vf eps = v_set((float)a->eps), beta2 = v_set((float)a->beta2);
    vf one1 = v_set((float)(1 - a->beta1)), one2 = v_set((float)(1 - a->beta2));
    vd change = vd_zero();
    for (int64_t i = 0; i < count; i += VW) {
        int64_t left = count - i < VW ? count - i : VW;
        vf d = v_mul(v_load_part(g + i, left), clip), old = v_load_part(theta + i, left);
        vf m1 = v_load_part(m + i, left), v1 = v_load_part(v + i, left);
        m1 = v_add(m1, v_mul(one1, v_sub(d, m1)));
        v1 = v_add(v_mul(beta2, v1), v_mul(one2, v_mul(d, d)));
        /* eps may be 0: lanes past the end would be 0/0, but are not stored. */
        vf ratio = v_div(m1, v_add(v_div(v_sqrt(v1), root), eps));
        vf moved = v_sub(v_mul(old, decay), v_mul(step, ratio));
        if (store) {
            v_store_part(m + i, left, m1);
            v_store_part(v + i, left, v1);
            v_store_part(theta + i, left, moved);
        }
        /* 0 times a moment adds nothing, but NaN if that is not finite. */
        vf bad = v_add(v_mul(v_zero(), m1), v_mul(v_zero(), v1));
        vf off = v_add(v_sub(moved, old), bad);
        change = vd_add_square(change, v_first(left, off, v_zero()));
    }
    return vd_sum(change);
}

#endif
