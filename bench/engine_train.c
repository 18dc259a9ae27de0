/* engine_train - training speed beside its bound, in one run.
 *
 *   engine_train MODEL [rank 32] [tokens 512] [datums 4] [seconds 3]
 *
 * One step = forward_backward on `datums` sequences of `tokens` tokens (cross-entropy, a weight on
 * each token) and optim_step; all adapters on, activations kept. The bound is the count of useful
 * FLOPs of a step divided by what OpenBLAS' sgemm reaches at 1024^3 (ours, where it is missing),
 * measured before and after in the same process. Both precisions.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "math/kernels.h"
#include "tests/support/engine/on_device.h"
#include "train/training.h"

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef struct job {
    tke_model *model;
    int64_t rank, tokens, datums, seconds;
    int32_t *ids;
    int64_t *targets;
    float *weights;
    tke_datum *data;
} job;

/* The rules that run in chunks of 64: of a token, forward and backward. */
static double rule_flops(const tke_layer *l)
{
    const tke_delta *d = l->delta;
    const tke_space *m = l->space;
    double sum = 0;
    if (d)
        sum = (double)(d->n_value_heads * (6 * d->key_dim * d->value_dim + 128 * d->value_dim) +
                       d->n_key_heads * 128 * d->key_dim);
    if (m)
        sum = (double)(m->n_heads * (4 * m->head_dim * m->state_dim + 64 * m->head_dim) +
                       m->n_groups * 64 * m->state_dim);
    return 3 * sum;
}

/* Useful FLOPs of one datum of t tokens, all with gradient, everything trained. */
static double useful_flops(const job *j)
{
    const tke_config *c = tke_model_config(j->model);
    double t = (double)j->tokens, r = (double)j->rank, p = 0, sum = 0;
    double hidden = (double)c->hidden, vocab = (double)c->vocab, layers = 0, rules = 0;
    const tke_group *lowest = j->model->groups[0]; /* its input needs no gradient */
    double first = 0;
    for (size_t i = 0; i < lowest->n; i++)
        first += (double)lowest->w[i].in * (double)lowest->w[i].out;
    for (size_t l = 0; l < c->n_layers; l++) {
        const tke_layer *layer = &j->model->layers[l];
        layers += layer->attn != NULL;
        rules += rule_flops(layer);
        for (size_t g = 0; g < layer->n_groups; g++)
            for (size_t i = 0; i < layer->groups[g].n; i++) {
                const tke_weight *w = &layer->groups[g].w[i];
                double used = layer->groups[g].n_experts ? (double)layer->experts->top : 1;
                p += used * (double)w->in * (double)w->out;
                sum += layer->groups[g].train ? (double)w->in + used * (double)w->out : 0;
            }
    }
    return t * rules + t * (4 * p - 2 * first) + 4 * t * hidden * vocab +
           t * r * (6 * sum - 6 * hidden) + 6 * r * t * (hidden + vocab) +
           6 * layers * (double)(c->n_heads * c->head_dim) * t * (t + 1);
}

static double sgemm_rate(void)
{
    enum { N = 1024, ROW_MAJOR = 101, PLAIN = 111 };
    tinkc_error err = { 0 };
    sgemm_fn *sgemm = NULL;
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (lib)
        *(void **)&sgemm = dlsym(lib, "cblas_sgemm");
    tke_cpu *cpu = tke_cpu_new(NULL, &err);
    float *a = tkc_alloc_aligned(64, 3 * (size_t)N * N * sizeof *a, &err), *b = a + N * N;
    double best = 0;
    for (int i = 0; i < 3 * N * N; i++)
        a[i] = (float)(i % 7) - 3;
    for (int round = 0; round < 30; round++) {
        int64_t start = tkc_monotonic_ns();
        if (sgemm)
            sgemm(ROW_MAJOR, PLAIN, PLAIN, N, N, N, 1, a, N, b, N, 0, b + N * N, N);
        else
            tke_gemm_run(cpu, &(tke_gemm){ .form = TKE_NN,
                                           .m = N,
                                           .n = N,
                                           .k = N,
                                           .alpha = 1,
                                           .a = a,
                                           .lda = N,
                                           .b = tke_matrix_real(b, N),
                                           .c = b + N * N,
                                           .ldc = N });
        double rate = 2.0 * N * N * N / (double)(tkc_monotonic_ns() - start);
        best = rate > best ? rate : best;
    }
    tkc_release_aligned(a);
    tke_cpu_free(cpu);
    usleep(100 * 1000); /* OpenBLAS' threads spin on for a while */
    return best;
}

static bool make_data(job *j, tinkc_error *err)
{
    size_t n = (size_t)(j->tokens * j->datums), vocab = tke_model_config(j->model)->vocab;
    j->ids = tkc_zalloc(NULL, n * sizeof *j->ids, err);
    j->targets = tkc_zalloc(NULL, n * sizeof *j->targets, err);
    j->weights = tkc_zalloc(NULL, n * sizeof *j->weights, err);
    j->data = tkc_zalloc(NULL, (size_t)j->datums * sizeof *j->data, err);
    if (tkc_failed(err))
        return false;
    for (size_t i = 0; i < n; i++) {
        j->ids[i] = (int32_t)(i * 7919 % vocab);
        j->targets[i] = (int64_t)((i + 1) * 7919 % vocab);
        j->weights[i] = 1;
    }
    for (int64_t i = 0; i < j->datums; i++)
        j->data[i] = (tke_datum){ .tokens = j->ids + i * j->tokens,
                                  .n = (size_t)j->tokens,
                                  .k = 1,
                                  .targets = j->targets + i * j->tokens,
                                  .weights = j->weights + i * j->tokens };
    return true;
}

static bool one_step(const job *j, tke_trainer *t, tke_adapter *a, tinkc_error *err)
{
    tke_pass pass = { .adapter = a,
                      .backward = true,
                      .loss = { .kind = TKE_CROSS_ENTROPY },
                      .data = j->data,
                      .n_data = (size_t)j->datums };
    tke_pass *passes[] = { &pass };
    tke_adam_params adam = { 1e-4, 0.9, 0.95, 1e-12, 0, 0 };
    tke_metric metrics[TKE_MAX_METRICS];
    size_t n;
    tke_trainer_run(t, passes, 1);
    tkc_error_copy(err, &pass.err);
    tke_pass_free(&pass);
    return !tkc_failed(err) && tke_optim_step(a, &adam, metrics, &n, err);
}

/* Tokens per second, the best of windows of half a second. */
static double speed(const job *j, int32_t precision, tinkc_error *err)
{
    tke_device *device = device_by_env(&(tke_device_options){ .precision = precision }, err);
    tke_device_model *loaded = device ? device_load(device, j->model) : NULL;
    tke_adapter *a = NULL;
    tke_trainer *t = NULL;
    double best = 0;
    if (loaded)
        a = tke_adapter_new(
            device, j->model,
            &(tke_adapter_spec){ .rank = (int32_t)j->rank,
                                 .train = TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED },
            err);
    if (a)
        t = tke_trainer_new(
            loaded, &(tke_trainer_options){ .memory_bytes = (size_t)8 << 30, .keep = TKE_KEEP_ALL },
            err);
    int64_t begin = tkc_monotonic_ns();
    while (t && !tkc_failed(err) && tkc_monotonic_ns() - begin < j->seconds * 1000000000) {
        int64_t steps = 0, start = tkc_monotonic_ns();
        for (; tkc_monotonic_ns() - start < 500000000 && one_step(j, t, a, err); steps++)
            ;
        double rate =
            (double)(steps * j->tokens * j->datums) * 1e9 / (double)(tkc_monotonic_ns() - start);
        best = rate > best ? rate : best;
    }
    tke_trainer_free(t);
    tke_adapter_free(a);
    device_unload(loaded);
    tke_device_close(device);
    return best;
}

static void number(int argc, char **argv, int at, int64_t *out)
{
    if (at < argc && (!tkc_parse_i64(tkc_str(argv[at]), out) || *out <= 0)) {
        fprintf(stderr, "engine_train: '%s' is not a number\n", argv[at]);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    job j = { .rank = 32, .tokens = 512, .datums = 4, .seconds = 3 };
    if (argc < 2) {
        fprintf(stderr, "usage: engine_train MODEL [rank] [tokens] [datums] [seconds]\n");
        return 2;
    }
    number(argc, argv, 2, &j.rank);
    number(argc, argv, 3, &j.tokens);
    number(argc, argv, 4, &j.datums);
    number(argc, argv, 5, &j.seconds);
    j.model = tke_model_open(argv[1], &err);
    if (j.model && make_data(&j, &err)) {
        double rate = sgemm_rate();
        double f32 = speed(&j, TKE_PRECISION_F32, &err);
        double bf16 = speed(&j, TKE_PRECISION_BF16, &err), again = sgemm_rate();
        rate = again > rate ? again : rate;
        double flops = useful_flops(&j) / (double)j.tokens, bound = rate * 1e9 / flops;
        printf("sgemm 1024^3     %8.1f GFLOP/s\n", rate);
        printf("useful           %8.2f MFLOP per token\n", flops / 1e6);
        printf("bound            %8.0f tokens/s\n", bound);
        printf("fp32             %8.0f tokens/s  %5.1f %%\n", f32, 100 * f32 / bound);
        printf("bf16 products    %8.0f tokens/s  %5.1f %%\n", bf16, 100 * bf16 / bound);
    }
    tke_model_drop(j.model);
    if (err.code)
        fprintf(stderr, "engine_train: %s\n", err.message);
    return err.code != 0;
}
