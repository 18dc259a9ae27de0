/* test_double_space.c - the state-space rule in double: chunks against its definition, gradients against
 * central differences, over the edges of chunks. */
#include <math.h>

#include "math/state_space.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"

enum { N = 5, P = 6, MOST = 130, CHUNK = TKE_SPACE_CHUNK };
static const tke_space_shape shape = { N, P };

typedef struct inputs {
    double b[MOST][N], c[MOST][N], u[MOST][P], a[MOST];
} inputs;

static void fill(inputs *x, uint64_t seed)
{
    for (size_t t = 0; t < MOST; t++) {
        for (size_t k = 0; k < N; k++) {
            x->b[t][k] = 0.5 * (double)tiny_normal(&seed);
            x->c[t][k] = 0.4 * (double)tiny_normal(&seed);
        }
        for (size_t k = 0; k < P; k++)
            x->u[t][k] = (double)tiny_normal(&seed);
        x->a[t] = -0.1 * fabs((double)tiny_normal(&seed));
    }
}

/* S <- e^a S + B u^T; y = S^T C. */
static void by_definition(const inputs *x, size_t n, double y[MOST][P])
{
    double s[N][P] = { { 0 } };
    memset(y, 0, n * sizeof *y);
    for (size_t t = 0; t < n; t++)
        for (size_t k = 0; k < N; k++)
            for (size_t p = 0; p < P; p++) {
                s[k][p] = exp(x->a[t]) * s[k][p] + x->b[t][k] * x->u[t][p];
                y[t][p] += s[k][p] * x->c[t][k];
            }
}

typedef struct result {
    double y[MOST][P];
    double before[MOST / CHUNK + 2][N][P]; /* the state before each chunk */
} result;

static void by_chunks(const inputs *x, size_t n, result *r)
{
    double bt[N * CHUNK], s[N][P] = { { 0 } }, products[CHUNK];
    for (size_t t = 0; t < n; t++) {
        size_t i = t % CHUNK, first = t - i;
        tke_space_chunk c = { .bt = bt, .s = s[0], .u = x->u[first], .u_stride = P, .a = x->a + first, .a_stride = 1 };
        if (i == 0)
            memcpy(r->before[t / CHUNK], s, sizeof s);
        tke_space_multiply(&shape, bt, i, x->b[t], x->c[t], products);
        tke_space_row(&shape, &c, i, x->c[t], products, r->y[t]);
        if (i == CHUNK - 1)
            tke_space_advance(&shape, &c);
    }
}

TEST(chunks_are_the_rule)
{
    static const size_t lengths[] = { 1, 63, 64, 65, 128, 129 };
    static inputs x;
    static result r;
    static double want[MOST][P];
    fill(&x, 4);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        memset(&r, 0xff, sizeof r);
        by_chunks(&x, lengths[l], &r);
        by_definition(&x, lengths[l], want);
        for (size_t t = 0; t < lengths[l]; t++)
            for (size_t p = 0; p < P; p++)
                assert_true(fabs(r.y[t][p] - want[t][p]) < 1e-12);
    }
}

/* What the gradients are of: a weighted sum of all outputs. */
static double weight(size_t t, size_t p)
{
    return sin(1 + (double)t * 0.7 + (double)p * 1.3);
}

static double loss_of(const inputs *x)
{
    static double y[MOST][P];
    double sum = 0;
    by_definition(x, MOST, y);
    for (size_t t = 0; t < MOST; t++)
        for (size_t p = 0; p < P; p++)
            sum += weight(t, p) * y[t][p];
    return sum;
}

static void gradients_of(const inputs *x, inputs *out)
{
    static result r;
    static double dy[MOST][P];
    double ds[N][P] = { { 0 } };
    double *scratch = malloc(tke_space_scratch(&shape) * sizeof *scratch);
    assert_non_null(scratch);
    memset(out, 0, sizeof *out);
    by_chunks(x, MOST, &r);
    for (size_t t = 0; t < MOST; t++)
        for (size_t p = 0; p < P; p++)
            dy[t][p] = weight(t, p);
    for (size_t c = (MOST + CHUNK - 1) / CHUNK; c-- > 0;) {
        size_t t = c * CHUNK;
        tke_space_backward(&shape, &(tke_space_grads){ .rows = MOST - t < CHUNK ? MOST - t : CHUNK,
                                                       .b = x->b[t],
                                                       .c = x->c[t],
                                                       .n_stride = N,
                                                       .u = x->u[t],
                                                       .dy = dy[t],
                                                       .p_stride = P,
                                                       .a = x->a + t,
                                                       .a_stride = 1,
                                                       .s = r.before[c][0],
                                                       .ds = ds[0],
                                                       .db = out->b[t],
                                                       .dc = out->c[t],
                                                       .du = out->u[t],
                                                       .da = out->a + t,
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
