/* engine_decode - decoding speed beside its bound, in one run.
 *
 *   engine_decode [--one-core] MODEL [rank 0] [prompt 64] [tokens 128] [batch]
 *
 * Batches of 1 and 32 sequences (or only that one), greedy, no stop. The bound of a step is the
 * larger of two times: the bytes that must be read (weights once, of experts those that are
 * reached, keys and values or states of every sequence) at the read bandwidth measured here over a buffer of the weights' size, and the useful
 * FLOPs at the rate of a 1024^3 product in fp32. A prompt of 512 tokens is measured beside the
 * second. rank > 0 adds an adapter to every matrix.
 * Products are what the engine takes by default here (bf16 where they are faster).
 * --one-core: one thread, by its processor time, which can be repeated on a busy machine.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/str.h"
#include "infer/infer.h"
#include "math/format.h"
#include "math/kernels.h"
#include "tests/support/engine/on_device.h"

typedef struct job {
    tke_model *model;
    tke_cpu *cpu; /* for the bounds */
    tke_device *device;
    tke_device_model *loaded;
    tke_snapshot *snapshot;
    int64_t rank, prompt, tokens;
} job;

static void die(const tinkc_error *err)
{
    fprintf(stderr, "engine_decode: %s\n", err->message);
    exit(2);
}

static bool one_core;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(one_core ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- what the machine can do ---- */

typedef struct reading {
    const uint64_t *data;
    int64_t n, parts;
    uint64_t sums[64];
} reading;

/* Four runs side by side, a few lines ahead of what is added up: one run alone waits at every page,
 * and then the bound would be too low. */
static void read_part(void *arg, int64_t task, int32_t worker)
{
    enum { RUNS = 4, LINE = 8, AHEAD = 64 * LINE };
    reading *r = arg;
    int64_t begin = r->n * task / r->parts, end = r->n * (task + 1) / r->parts;
    int64_t run = (end - begin) / RUNS / LINE * LINE;
    uint64_t s[RUNS] = { 0 };
    for (int64_t i = begin; i < begin + run; i += LINE)
        for (int k = 0; k < RUNS; k++) {
            const uint64_t *line = r->data + i + k * run;
            __builtin_prefetch(line + AHEAD);
            s[k] += (line[0] + line[1]) + (line[2] + line[3]);
            s[k] += (line[4] + line[5]) + (line[6] + line[7]);
        }
    (void)worker;
    r->sums[task] = s[0] + s[1] + s[2] + s[3];
}

/* Bytes a second, best of several. */
static double bandwidth(tke_cpu *cpu, size_t bytes)
{
    tinkc_error err = { 0 };
    uint64_t *data = tkc_alloc_aligned(64, bytes, &err);
    if (!data)
        die(&err);
    memset(data, 1, bytes);
    reading r = { .data = data, .n = (int64_t)(bytes / 8), .parts = 2 };
    r.parts = tke_threads_count(tke_cpu_threads(cpu));
    double best = 0;
    for (int i = 0; i < 20; i++) {
        double t = seconds();
        tke_threads_run(tke_cpu_threads(cpu), r.parts, read_part, &r);
        double rate = (double)bytes / (seconds() - t);
        best = rate > best ? rate : best;
    }
    tkc_release_aligned(data);
    return best;
}

static double flop_rate(tke_cpu *cpu)
{
    enum { N = 1024 };
    tinkc_error err = { 0 };
    float *a = tkc_alloc_aligned(64, 3 * N * N * sizeof *a, &err);
    if (!a)
        die(&err);
    for (size_t i = 0; i < 3 * N * N; i++)
        a[i] = 0.5f;
    tke_gemm call = { .form = TKE_NN,
                      .exact = true,
                      .m = N,
                      .n = N,
                      .k = N,
                      .alpha = 1,
                      .a = a,
                      .lda = N,
                      .b = tke_matrix_real(a + N * N, N),
                      .c = a + 2 * N * N,
                      .ldc = N };
    double best = 0;
    for (int i = 0; i < 10; i++) {
        double t = seconds();
        tke_gemm_run(cpu, &call);
        double rate = 2.0 * N * N * N / (seconds() - t);
        best = rate > best ? rate : best;
    }
    tkc_release_aligned(a);
    return best;
}

/* ---- what a step costs at least ---- */

/* Keys and values of one position on the CPU. */
static double kv_bytes(const tke_model *m)
{
    double sum = 0;
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (m->layers[i].attn)
            sum += (double)(2 * m->config.n_kv_heads * m->config.head_dim * sizeof(float));
    return sum;
}

/* The states of one sequence, which every token reads. */
static double state_bytes(const tke_model *m)
{
    size_t sum = 0;
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const tke_delta *d = m->layers[i].delta;
        const tke_space *s = m->layers[i].space;
        sum += d ? d->n_value_heads * d->key_dim * d->value_dim : 0;
        sum += s ? s->n_heads * s->head_dim * s->state_dim : 0;
    }
    return (double)(sum * sizeof(float));
}

static double matrix_bytes(const tke_matrix *m, size_t count)
{
    const tke_format *f = tke_format_of(m->dtype);
    double apart = m->dtype == TKE_MXFP4 ? 1.0 / 32
                   : m->dtype == TKE_NF4 ? 4.0 / 64
                                         : 0; /* scales */
    return ((double)f->block_bytes / f->block + apart) * (double)count;
}

/* Of the experts that a batch of so many tokens reaches, if it is routed evenly. */
static double experts_bytes(const tke_experts *x, double batch)
{
    double n = (double)x->n, reached = n * (1 - pow(1 - (double)x->top / n, batch));
    double one = matrix_bytes(&x->gate.m[0], x->gate.out * x->gate.in) +
                 matrix_bytes(&x->out.m[0], x->out.out * x->out.in);
    if (!x->paired && !x->squared)
        one += matrix_bytes(&x->up.m[0], x->up.out * x->up.in);
    return reached * one;
}

static double weight_bytes(const job *j, double batch)
{
    double sum = 0;
    for (size_t g = 0; g < j->model->n_groups; g++)
        for (size_t i = 0; i < j->model->groups[g]->n && !j->model->groups[g]->n_experts; i++) {
            const tke_weight *w = &j->model->groups[g]->w[i];
            sum += matrix_bytes(&w->m, w->in * w->out);
        }
    for (size_t i = 0; i < j->model->config.n_layers; i++)
        if (j->model->layers[i].experts)
            sum += experts_bytes(j->model->layers[i].experts, batch);
    return sum;
}

/* Each matrix of experts counts as often as a token uses it. */
static double token_flops(const job *j, double context)
{
    const tke_config *c = tke_model_config(j->model);
    const tke_weight *head = &j->model->head.w[0];
    double p = (double)head->in * (double)head->out, sums = (double)(head->in + head->out);
    double layers = 0, r = (double)j->rank;
    for (size_t l = 0; l < c->n_layers; l++) {
        const tke_layer *layer = &j->model->layers[l];
        layers += layer->attn != NULL;
        for (size_t g = 0; g < layer->n_groups; g++)
            for (size_t i = 0; i < layer->groups[g].n; i++) {
                const tke_weight *w = &layer->groups[g].w[i];
                double used = layer->groups[g].n_experts ? (double)layer->experts->top : 1;
                p += used * (double)w->in * (double)w->out;
                sums += layer->groups[g].train ? (double)w->in + used * (double)w->out : 0;
            }
    }
    return 2 * p + 2 * r * sums + 4 * layers * (double)(c->n_heads * c->head_dim) * context;
}

/* ---- runs ---- */

static void add_requests(const job *j, tke_infer *e, int64_t batch, tinkc_error *err)
{
    int32_t prompt[4096];
    size_t vocab = tke_model_config(j->model)->vocab;
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < j->prompt; i++)
            prompt[i] = (int32_t)((size_t)(b * 7919 + i * 104729 + 17) % vocab);
        tke_gen_request r = { .snapshot = j->snapshot,
                              .prompt = prompt,
                              .n_prompt = (size_t)j->prompt,
                              .n_samples = 1,
                              .max_tokens = (size_t)j->tokens,
                              .never_stop = true,
                              .rule = { .temperature = 0, .top_p = 1 } };
        if (!tke_infer_add(e, &r, err))
            die(err);
    }
}

/* Tokens a second after the prompts. */
static double decode(const job *j, int64_t batch)
{
    tinkc_error err = { 0 };
    tke_infer_options o = { .kv_bytes = (size_t)512 << 20,
                            .no_prefix_cache = true,
                            .prefill_chunk = (size_t)(j->prompt * batch) };
    tke_infer *e = tke_infer_new(j->loaded, &o, &err);
    if (!e)
        die(&err);
    add_requests(j, e, batch, &err);
    while (tke_infer_get_stats(e).tokens_decoded < (uint64_t)batch)
        tke_infer_step(e);
    uint64_t before = tke_infer_get_stats(e).tokens_decoded;
    double t = seconds();
    while (tke_infer_step(e))
        ;
    t = seconds() - t;
    double rate = (double)(tke_infer_get_stats(e).tokens_decoded - before) / t;
    tke_infer_free(e);
    return rate;
}

/* Prompt tokens a second: one prompt, up to its first token. */
static void measure_prefill(const job *j, double flops_a_second)
{
    enum { LENGTH = 512 };
    tinkc_error err = { 0 };
    job longer = *j;
    double best = 0, half = LENGTH / 2.0;
    longer.prompt = LENGTH;
    for (int i = 0; i < 2; i++) {
        tke_infer_options o = { .kv_bytes = (size_t)512 << 20,
                                .no_prefix_cache = true,
                                .prefill_chunk = LENGTH };
        tke_infer *e = tke_infer_new(j->loaded, &o, &err);
        if (!e)
            die(&err);
        add_requests(&longer, e, 1, &err);
        double t = seconds();
        while (tke_infer_get_stats(e).tokens_decoded < 1)
            tke_infer_step(e);
        double rate = LENGTH / (seconds() - t);
        best = rate > best ? rate : best;
        tke_infer_free(e);
    }
    /* logits are made for the last position only */
    double head = 2.0 * (double)(j->model->config.vocab * j->model->config.hidden);
    double bound = flops_a_second / (token_flops(j, half) - head);
    printf("prefill   %10.1f tokens/s  bound %8.1f (FLOPs, fp32)  %5.1f %%\n", best, bound,
           100 * best / bound);
}

static void measure(const job *j, int64_t batch, double bytes_a_second, double flops_a_second)
{
    double context = (double)j->prompt + (double)j->tokens / 2, rate = 0;
    double kv = (context * kv_bytes(j->model) + state_bytes(j->model)) * (double)batch;
    double adapter = j->snapshot ? (double)tke_snapshot_bytes(j->snapshot) : 0;
    double reading_s = (weight_bytes(j, (double)batch) + adapter + kv) / bytes_a_second;
    double computing_s = (double)batch * token_flops(j, context) / flops_a_second;
    double bound = (double)batch / (reading_s > computing_s ? reading_s : computing_s);
    for (int i = 0; i < 3; i++) {
        double now = decode(j, batch);
        rate = now > rate ? now : rate;
    }
    printf("batch %-3lld %10.1f tokens/s  bound %8.1f (%s)  %5.1f %%\n", (long long)batch, rate,
           bound, reading_s > computing_s ? "bandwidth" : "FLOPs", 100 * rate / bound);
}

static int64_t number(int argc, char **argv, int i, int64_t otherwise)
{
    int64_t n = otherwise;
    if (i < argc && (!tkc_parse_i64(tkc_str(argv[i]), &n) || n < 0 || n > 4096)) {
        fprintf(stderr, "engine_decode: '%s' is not a number\n", argv[i]);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    if (argc > 1 && strcmp(argv[1], "--one-core") == 0) {
        one_core = true;
        argc--;
        argv++;
    }
    if (argc < 2) {
        fprintf(stderr,
                "usage: engine_decode [--one-core] MODEL [rank] [prompt] [tokens] [batch]\n");
        return 2;
    }
    job j = { .rank = number(argc, argv, 2, 0),
              .prompt = number(argc, argv, 3, 64),
              .tokens = number(argc, argv, 4, 128) };
    j.cpu = tke_cpu_new(&(tke_cpu_options){ .n_threads = one_core }, &err);
    j.device = device_by_env(
        &(tke_device_options){ .n_threads = one_core, .precision = TKE_PRECISION_AUTO }, &err);
    j.model = err.code ? NULL : tke_model_open(argv[1], &err);
    j.loaded = j.model ? device_load(j.device, j.model) : NULL;
    if (j.model && j.rank) {
        tke_adapter_spec spec = { .rank = (int32_t)j.rank, .train = 7 };
        tke_adapter *a = tke_adapter_new(j.device, j.model, &spec, &err);
        j.snapshot = a ? tke_snapshot_take(a, &err) : NULL;
        tke_adapter_free(a);
    }
    if (err.code)
        die(&err);
    double bytes = bandwidth(j.cpu, (size_t)weight_bytes(&j, 1)), flops = flop_rate(j.cpu);
    printf("kernels     %s, %d threads\n", tke_cpu_name(j.cpu),
           (int)tke_threads_count(tke_cpu_threads(j.cpu)));
    printf("reading     %8.1f GB/s over %.1f MB\n", bytes * 1e-9, weight_bytes(&j, 1) * 1e-6);
    printf("computing   %8.1f GFLOP/s\n", flops * 1e-9);
    measure_prefill(&j, flops);
    int64_t batch = number(argc, argv, 5, 0);
    measure(&j, batch ? batch : 1, bytes, flops);
    if (!batch)
        measure(&j, 32, bytes, flops);
    tke_snapshot_drop(j.snapshot);
    device_unload(j.loaded);
    tke_model_drop(j.model);
    tke_device_close(j.device);
    tke_cpu_free(j.cpu);
    return 0;
}
