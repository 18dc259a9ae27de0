/* test_double_delta.c - the gated delta rule in double: chunks against its definition, gradients against
 * central differences, over the edges of chunks. */
#include <math.h>

#include "math/delta_rule.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"

enum { DK = 5, DV = 6, MOST = 130, CHUNK = TKE_DELTA_CHUNK };
static const tke_delta_shape shape = { DK, DV };

typedef struct inputs {
    double q[MOST][DK], k[MOST][DK], v[MOST][DV], g[MOST], strength[MOST];
} inputs;

static void fill(inputs *x, uint64_t seed)
{
    for (size_t t = 0; t < MOST; t++) {
        for (size_t a = 0; a < DK; a++) {
            x->q[t][a] = 0.5 * (double)tiny_normal(&seed);
            x->k[t][a] = 0.4 * (double)tiny_normal(&seed);
        }
        for (size_t b = 0; b < DV; b++)
            x->v[t][b] = (double)tiny_normal(&seed);
        x->g[t] = -0.1 * fabs((double)tiny_normal(&seed));
        x->strength[t] = 0.5 + 0.1 * (double)tiny_normal(&seed);
    }
}

/* S <- e^g S; S <- S + k (b (v - S^T k))^T; o = S^T q. */
static void by_definition(const inputs *x, size_t n, double o[MOST][DV])
{
    double s[DK][DV] = { { 0 } };
    for (size_t t = 0; t < n; t++)
        for (size_t b = 0; b < DV; b++) {
            double seen = 0, out = 0;
            for (size_t a = 0; a < DK; a++) {
                s[a][b] *= exp(x->g[t]);
                seen += s[a][b] * x->k[t][a];
            }
            for (size_t a = 0; a < DK; a++) {
                s[a][b] += x->k[t][a] * x->strength[t] * (x->v[t][b] - seen);
                out += s[a][b] * x->q[t][a];
            }
            o[t][b] = out;
        }
}

typedef struct result {
    double o[MOST][DV], n[MOST][DV];
    double before[MOST / CHUNK + 2][DK][DV]; /* the state before each chunk */
} result;

static void by_chunks(inputs *x, size_t n, result *r)
{
    double kt[DK * CHUNK], s[DK][DV] = { { 0 } };
    for (size_t t = 0; t < n; t++) {
        size_t i = t % CHUNK, first = t - i;
        tke_delta_products p;
        tke_delta_chunk c = { .kt = kt, .s = s[0], .n = r->n[first], .n_stride = DV, .g = x->g + first, .g_stride = 1 };
        if (i == 0)
            memcpy(r->before[t / CHUNK], s, sizeof s);
        tke_delta_multiply(&shape, kt, i, x->q[t], x->k[t], &p);
        tke_delta_row(&shape, &c, i, x->q[t], x->k[t], x->v[t], x->strength[t], &p, r->o[t]);
        if (i == CHUNK - 1)
            tke_delta_advance(&shape, &c);
    }
}

TEST(chunks_are_the_rule)
{
    static const size_t lengths[] = { 1, 63, 64, 65, 128, 129 };
    static inputs x;
    static result r;
    static double want[MOST][DV];
    fill(&x, 4);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        memset(&r, 0xff, sizeof r);
        by_chunks(&x, lengths[l], &r);
        by_definition(&x, lengths[l], want);
        for (size_t t = 0; t < lengths[l]; t++)
            for (size_t b = 0; b < DV; b++)
                assert_true(fabs(r.o[t][b] - want[t][b]) < 1e-12);
    }
}

/* What the gradients are of: a weighted sum of all outputs. */
static double weight(size_t t, size_t b)
{
    return sin(1 + (double)t * 0.7 + (double)b * 1.3);
}

static double loss_of(const inputs *x)
{
    static double o[MOST][DV];
    double sum = 0;
    by_definition(x, MOST, o);
    for (size_t t = 0; t < MOST; t++)
        for (size_t b = 0; b < DV; b++)
            sum += weight(t, b) * o[t][b];
    return sum;
}

static void gradients_of(inputs *x, inputs *out)
{
    static result r;
    static double d_o[MOST][DV];
    double ds[DK][DV] = { { 0 } };
    double *scratch = malloc(tke_delta_scratch(&shape) * sizeof *scratch);
    assert_non_null(scratch);
    memset(out, 0, sizeof *out);
    by_chunks(x, MOST, &r);
    for (size_t t = 0; t < MOST; t++)
        for (size_t b = 0; b < DV; b++)
            d_o[t][b] = weight(t, b);
    for (size_t c = (MOST + CHUNK - 1) / CHUNK; c-- > 0;) {
        size_t t = c * CHUNK;
        tke_delta_backward(&shape, &(tke_delta_grads){ .rows = MOST - t < CHUNK ? MOST - t : CHUNK,
                                                       .q = x->q[t],
                                                       .k = x->k[t],
                                                       .dk_stride = DK,
                                                       .v = x->v[t],
                                                       .n = r.n[t],
                                                       .d_o = d_o[t],
                                                       .dv_stride = DV,
                                                       .g = x->g + t,
                                                       .strength = x->strength + t,
                                                       .gate_stride = 1,
                                                       .s = r.before[c][0],
                                                       .ds = ds[0],
                                                       .dq = out->q[t],
                                                       .dk = out->k[t],
                                                       .dv = out->v[t],
                                                       .dg = out->g + t,
                                                       .dstrength = out->strength + t,
                                                       .scratch = scratch });
    }
    free(scratch);
}

TEST(gradients_are_differences)
{
    static inputs x, grads;
    const double step = 1e-5;
    fill(&x, 5);
    gradients_of(&x, &grads);
    double *all = (double *)&x;
    const double *got = (const double *)&grads;
    for (size_t i = 0; i < sizeof x / sizeof *all; i += 7) { /* of each kind, in every chunk */
        double kept = all[i];
        all[i] = kept + step;
        double up = loss_of(&x);
        all[i] = kept - step;
        double down = loss_of(&x);
        all[i] = kept;
        assert_true(fabs((up - down) / (2 * step) - got[i]) < 1e-6 * (1 + fabs(got[i])));
    }
}
