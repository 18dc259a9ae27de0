/* The reference kernels in double: each backward kernel against central differences of its forward
 * one. The sources are compiled here once more, with tke_real = double and names of their own. */
#define TKE_REAL_DOUBLE
#define tke_set_ref    tke_set_ref_double
#define tke_load       tke_load_double
#define tke_widen      tke_widen_double
#define tke_narrow     tke_narrow_double
#define tke_f16_to_f32 tke_f16_to_f32_double
#define tke_f32_to_f16 tke_f32_to_f16_double
#include "../../../engine/math/dtype.c"
#include "../../../engine/math/reference.c"
#include "support/test_case.h"

static uint64_t random_state = 7;

static double unit(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 33) / 1073741824.0 - 1.0;
}

static void fill(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = unit();
}

/* A forward kernel as a function of one flat input, and a loss = sum of weights * output. */
typedef struct check {
    void (*forward)(const struct check *, double *out);
    double *in; /* what is varied */
    int64_t n_in, n_out;
    const double *weights; /* also the gradient at the output */
    const void *more;
} check;

enum { MOST = 4096 };

static double loss(const check *c)
{
    double out[MOST], sum = 0;
    assert_true(c->n_out <= MOST);
    c->forward(c, out);
    for (int64_t i = 0; i < c->n_out; i++)
        sum += out[i] * c->weights[i];
    return sum;
}

static void expect_gradient(const check *c, const double *gradient, const char *what)
{
    const double h = 1e-5;
    for (int64_t i = 0; i < c->n_in; i++) {
        double x = c->in[i];
        c->in[i] = x + h;
        double up = loss(c);
        c->in[i] = x - h;
        double slope = (up - loss(c)) / (2 * h);
        c->in[i] = x;
        if (!(fabs(slope - gradient[i]) <= 1e-8 + 1e-6 * fabs(slope)))
            fail_msg("%s: gradient[%d] = %.10g, by differences %.10g", what, (int)i, gradient[i], slope);
    }
}

enum { ROWS = 3, N = 13 };
static double norm_weight[N];

static void norm_forward(const check *c, double *out)
{
    tke_set_ref.rmsnorm(ROWS, N, c->in, norm_weight, 1e-3, out);
}

TEST(the_gradient_of_the_norm_is_its_finite_difference)
{
    double x[ROWS * N], dy[ROWS * N], dx[ROWS * N], twice[ROWS * N];
    fill(x, ROWS * N);
    fill(dy, ROWS * N);
    fill(norm_weight, N);
    check c = { norm_forward, x, ROWS * N, ROWS * N, dy, NULL };
    tke_set_ref.rmsnorm_backward(ROWS, N, x, norm_weight, 1e-3, dy, dx, false);
    expect_gradient(&c, dx, "rmsnorm");
    memcpy(twice, dx, sizeof dx);
    tke_set_ref.rmsnorm_backward(ROWS, N, x, norm_weight, 1e-3, dy, twice, true);
    for (int i = 0; i < ROWS * N; i++)
        assert_true(twice[i] == 2 * dx[i]);
}

enum { HEADS = 2, D = 6 };
static const int32_t positions[ROWS] = { 4, 0, 7 };
static double cosines[8 * D / 2], sines[8 * D / 2];

static void rope_forward(const check *c, double *out)
{
    memcpy(out, c->in, sizeof(double) * ROWS * HEADS * D);
    tke_set_ref.rope(ROWS, HEADS, D, positions, cosines, sines, false, out, HEADS * D);
}

TEST(the_gradient_of_rope_is_its_finite_difference)
{
    double x[ROWS * HEADS * D], dy[ROWS * HEADS * D], dx[ROWS * HEADS * D];
    for (int i = 0; i < 8 * D / 2; i++) {
        cosines[i] = cos(i * 0.37);
        sines[i] = sin(i * 0.37);
    }
    fill(x, ROWS * HEADS * D);
    fill(dy, ROWS * HEADS * D);
    memcpy(dx, dy, sizeof dy);
    check c = { rope_forward, x, ROWS * HEADS * D, ROWS * HEADS * D, dy, NULL };
    tke_set_ref.rope(ROWS, HEADS, D, positions, cosines, sines, true, dx, HEADS * D);
    expect_gradient(&c, dx, "rope");
}

enum { GATES = 40 };

static void swiglu_forward(const check *c, double *out)
{
    tke_set_ref.swiglu(GATES, c->in, c->in + GATES, out);
}

TEST(the_gradient_of_swiglu_is_its_finite_difference)
{
    double in[2 * GATES], dm[GATES], d[2 * GATES];
    fill(in, 2 * GATES);
    fill(dm, GATES);
    for (int i = 0; i < GATES; i++)
        in[i] *= 6;
    check c = { swiglu_forward, in, 2 * GATES, GATES, dm, NULL };
    tke_set_ref.swiglu_backward(GATES, in, in + GATES, dm, d, d + GATES);
    expect_gradient(&c, d, "swiglu");
}

/* Attention: q, k, v one behind the other. */
enum { T = 70, NH = 4, NK = 2, HD = 3, NQ = T * NH * HD, NKV = T * NK * HD };

static void attention_forward(const check *c, double *out)
{
    const tke_attention *shape = c->more;
    for (int64_t h = 0; h < NK; h++) {
        tke_attention_part part = {
            .shape = shape,
            .keys = { .k = c->in + NQ, .v = c->in + NQ + NKV, .dtype = TKE_F64, .ld = NK * HD, .head_stride = HD },
            .kv_head = h,
            .q = c->in,
            .o = out,
            .lse = out + NQ
        };
        tke_set_ref.attention(&part, 0, T, NULL);
    }
}

static void attention_gradient_for(int64_t window)
{
    static double in[NQ + 2 * NKV], d[NQ + 2 * NKV], weights[NQ + T * NH], out[NQ + T * NH];
    static double delta[T * NH];
    tke_attention shape = { .n_heads = NH, .n_kv_heads = NK, .head_dim = HD, .window = window, .scale = 0.8 };
    fill(in, NQ + 2 * NKV);
    fill(weights, NQ);
    for (int i = 0; i < NQ; i++)
        in[i] *= 3;
    /* The log-sum-exps are outputs too, but carry no gradient. */
    memset(weights + NQ, 0, sizeof(double) * T * NH);
    check c = { attention_forward, in, NQ + 2 * NKV, NQ + T * NH, weights, &shape };
    attention_forward(&c, out);
    for (int64_t h = 0; h < NK; h++) {
        tke_attention_back back = { .shape = &shape,
                                    .length = T,
                                    .kv_head = h,
                                    .g = { .q = in,
                                           .k = in + NQ,
                                           .v = in + NQ + NKV,
                                           .o = out,
                                           .lse = out + NQ,
                                           .d_o = weights,
                                           .dq = d,
                                           .dk = d + NQ,
                                           .dv = d + NQ + NKV,
                                           .delta = delta } };
        tke_set_ref.attention_backward(&back, NULL);
    }
    expect_gradient(&c, d, "attention");
}

TEST(the_gradient_of_attention_is_its_finite_difference)
{
    attention_gradient_for(0);
    attention_gradient_for(5);
}

/* d lse / d z is softmax. */
enum { V = 1100 };

static void lse_forward(const check *c, double *out)
{
    double max, sum;
    max = -INFINITY;
    sum = 0;
    tke_set_ref.lse_update(1, V, c->in, V, &max, &sum);
    out[0] = max + log(sum);
}

TEST(the_gradient_of_logsumexp_is_its_finite_difference)
{
    static double z[V], d[V];
    double weight = -1.75, lse;
    fill(z, V);
    for (int i = 0; i < V; i++)
        z[i] *= 4;
    check c = { lse_forward, z, V, 1, &weight, NULL };
    lse_forward(&c, &lse);
    memcpy(d, z, sizeof z);
    tke_set_ref.softmax_scaled(1, V, d, V, &lse, &weight);
    expect_gradient(&c, d, "softmax");
}
