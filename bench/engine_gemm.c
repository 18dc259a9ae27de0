/* engine_gemm - products at the shapes of a model beside OpenBLAS' sgemm, in one run.
 *
 *   engine_gemm [--one-core] [nano | 0.6b] [part of a name]
 *
 * Both use all processors, or with --one-core one thread each, by its own processor time: figures
 * that can be repeated on a busy machine. OpenBLAS is opened when it is installed; without it only
 * ours is shown. Figures are the best of several rounds taken in turn, in GFLOP/s. OpenBLAS'
 * threads spin for a while after a call (how long differs between builds): a side begins only when
 * this process uses no processor any more, or it would be measured on what the other leaves.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "math/kernels.h"

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef struct shape {
    const char *name;
    tke_form form;
    int64_t m, n, k;
    bool weight; /* b is a stored weight: bf16 on our side */
} shape;

static const shape nano[] = {
    { "q, o: y = x w'", TKE_NT, 512, 384, 384, true },
    { "k, v", TKE_NT, 512, 128, 384, true },
    { "gate, up", TKE_NT, 512, 1024, 384, true },
    { "down", TKE_NT, 512, 384, 1024, true },
    { "head", TKE_NT, 512, 4096, 384, true },
    { "dx of q, o: dy w", TKE_NN, 512, 384, 384, true },
    { "dx of k, v", TKE_NN, 512, 384, 128, true },
    { "dx of gate, up", TKE_NN, 512, 384, 1024, true },
    { "dx of down", TKE_NN, 512, 1024, 384, true },
    { "dh of head", TKE_NN, 512, 384, 4096, true },
    { "lora u = x a', r 32", TKE_NT, 512, 32, 384, false },
    { "lora u, in 1024", TKE_NT, 512, 32, 1024, false },
    { "lora y += u b'", TKE_NT, 512, 384, 32, false },
    { "lora y, out 1024", TKE_NT, 512, 1024, 32, false },
    { "lora du = dy b", TKE_NN, 512, 32, 384, false },
    { "lora dx += du a", TKE_NN, 512, 384, 32, false },
    { "lora da += du' x", TKE_TN, 32, 384, 512, false },
    { "lora da, in 1024", TKE_TN, 32, 1024, 512, false },
    { "lora db += dy' u", TKE_TN, 384, 32, 512, false },
    { "lora db, out 1024", TKE_TN, 1024, 32, 512, false },
    { "lora u, r 8", TKE_NT, 512, 8, 384, false },
    { "lora y, r 8", TKE_NT, 512, 384, 8, false },
    { "lora da, r 8", TKE_TN, 8, 384, 512, false },
    { "lora db, r 8", TKE_TN, 384, 8, 512, false },
    { "lora u, r 256", TKE_NT, 512, 256, 384, false },
    { "lora y, r 256", TKE_NT, 512, 384, 256, false },
    { "decode q, batch 1", TKE_NT, 1, 384, 384, true },
    { "decode gate, batch 1", TKE_NT, 1, 1024, 384, true },
    { "decode head, batch 1", TKE_NT, 1, 4096, 384, true },
    { "decode gate, batch 32", TKE_NT, 32, 1024, 384, true },
    { "square 1024", TKE_NN, 1024, 1024, 1024, false },
};

static const shape qwen06[] = {
    { "q: y = x w'", TKE_NT, 512, 2048, 1024, true },
    { "gate, up", TKE_NT, 512, 3072, 1024, true },
    { "down", TKE_NT, 512, 1024, 3072, true },
    { "head block", TKE_NT, 128, 8192, 1024, true },
    { "dx of gate", TKE_NN, 512, 1024, 3072, true },
    { "lora u", TKE_NT, 512, 32, 1024, false },
    { "lora y", TKE_NT, 512, 3072, 32, false },
    { "lora da", TKE_TN, 32, 1024, 512, false },
    { "lora db", TKE_TN, 3072, 32, 512, false },
    { "decode gate, batch 1", TKE_NT, 1, 3072, 1024, true },
    { "decode head, batch 1", TKE_NT, 1, 151936, 1024, true },
};

typedef struct operands {
    float *a, *b, *c;
    uint16_t *b16;
} operands;

static bool make_operands(const shape *s, operands *o)
{
    tinkc_error err = { 0 };
    size_t most = (size_t)(s->m * s->k);
    most = most > (size_t)(s->n * s->k) ? most : (size_t)(s->n * s->k);
    most = most > (size_t)(s->m * s->n) ? most : (size_t)(s->m * s->n);
    o->a = tkc_alloc_aligned(64, most * sizeof(float), &err);
    o->b = tkc_alloc_aligned(64, most * sizeof(float), &err);
    o->c = tkc_alloc_aligned(64, most * sizeof(float), &err);
    o->b16 = tkc_alloc_aligned(64, most * sizeof(uint16_t), &err);
    if (!o->a || !o->b || !o->c || !o->b16)
        return false;
    for (size_t i = 0; i < most; i++) {
        o->b16[i] = tke_f32_to_bf16((float)(i * 2654435761u % 1000) / 1000.f - .5f);
        o->b[i] = tke_bf16_to_f32(o->b16[i]);
        o->a[i] = (float)(i * 40503u % 1000) / 1000.f - .5f;
        o->c[i] = 0;
    }
    return true;
}

static void free_operands(operands *o)
{
    tkc_release_aligned(o->a);
    tkc_release_aligned(o->b);
    tkc_release_aligned(o->c);
    tkc_release_aligned(o->b16);
}

static void run_ours(tke_cpu *cpu, const shape *s, const operands *o)
{
    int64_t ldb = s->form == TKE_NT ? s->k : s->n;
    tke_matrix b =
        s->weight ? (tke_matrix){ o->b16, ldb, TKE_BF16, NULL, NULL } : tke_matrix_real(o->b, ldb);
    tke_gemm_run(cpu, &(tke_gemm){ .form = s->form,
                                   .m = s->m,
                                   .n = s->n,
                                   .k = s->k,
                                   .alpha = 1,
                                   .a = o->a,
                                   .lda = s->form == TKE_TN ? s->m : s->k,
                                   .b = b,
                                   .c = o->c,
                                   .ldc = s->n });
}

static void run_blas(sgemm_fn *sgemm, const shape *s, const operands *o)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    sgemm(ROW_MAJOR, s->form == TKE_TN ? TRANSPOSED : PLAIN, s->form == TKE_NT ? TRANSPOSED : PLAIN,
          (int)s->m, (int)s->n, (int)s->k, 1, o->a, (int)(s->form == TKE_TN ? s->m : s->k), o->b,
          (int)(s->form == TKE_NT ? s->k : s->n), 0, o->c, (int)s->n);
}

static bool one_core;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(one_core ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* GFLOP/s of one round of about 5 ms. */
static double one_round(tke_cpu *cpu, sgemm_fn *sgemm, const shape *s, const operands *o)
{
    double flop = 2.0 * (double)(s->m * s->n * s->k);
    int64_t per = (int64_t)(0.8e9 / flop) + 1, start = now_ns();
    for (int64_t i = 0; i < per; i++) {
        if (sgemm)
            run_blas(sgemm, s, o);
        else
            run_ours(cpu, s, o);
    }
    return flop * (double)per / (double)(now_ns() - start);
}

static sgemm_fn *open_blas(void)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    sgemm_fn *fn = NULL;
    void (*set_threads)(int) = NULL;
    if (lib)
        *(void **)&fn = dlsym(lib, "cblas_sgemm");
    if (lib && one_core)
        *(void **)&set_threads = dlsym(lib, "openblas_set_num_threads");
    if (set_threads)
        set_threads(1);
    return fn;
}

static void keep_best(double *best, double rate)
{
    if (rate > *best)
        *best = rate;
}

static int64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Until no thread of this process runs; a second at most. */
static void wait_for_calm(void)
{
    enum { STEP_US = 2000, STEPS = 500 };
    for (int i = 0; i < STEPS; i++) {
        int64_t before = processor_ns();
        usleep(STEP_US);
        if (processor_ns() - before < STEP_US * INT64_C(1000) / 10)
            return;
    }
}

static void measure(tke_cpu *cpu, sgemm_fn *sgemm, const shape *s, const operands *o, double *best)
{
    wait_for_calm();
    for (int round = 0; round < 3; round++)
        keep_best(best, one_round(cpu, sgemm, s, o));
}

static void compare(tke_cpu *f32, tke_cpu *bf16, sgemm_fn *sgemm, const shape *s)
{
    operands o = { 0 };
    double theirs = 0, ours = 0, half = 0;
    if (!make_operands(s, &o)) {
        free_operands(&o);
        printf("%-24s out of memory\n", s->name);
        return;
    }
    for (int turn = 0; turn < 6; turn++) {
        if (sgemm)
            measure(NULL, sgemm, s, &o, &theirs);
        measure(f32, NULL, s, &o, &ours);
        measure(bf16, NULL, s, &o, &half);
    }
    printf("%-24s %5d %6d %5d  %8.1f %8.1f %8.1f  %5.2f %5.2f\n", s->name, (int)s->m, (int)s->n,
           (int)s->k, theirs, ours, half, theirs > 0 ? ours / theirs : 0,
           theirs > 0 ? half / theirs : 0);
    fflush(stdout);
    free_operands(&o);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    if (argc > 1 && strcmp(argv[1], "--one-core") == 0) {
        one_core = true;
        argc--;
        argv++;
    }
    bool large = argc > 1 && strcmp(argv[1], "0.6b") == 0;
    const shape *shapes = large ? qwen06 : nano;
    size_t n = large ? sizeof qwen06 / sizeof *qwen06 : sizeof nano / sizeof *nano;
    tke_cpu_options options = { .n_threads = one_core };
    tke_cpu *f32 = tke_cpu_new(&options, &err);
    options.precision = TKE_PRECISION_BF16;
    tke_cpu *bf16 = tke_cpu_new(&options, &err);
    if (!f32 || !bf16) {
        fprintf(stderr, "engine_gemm: %s\n", err.message);
        return 1;
    }
    sgemm_fn *sgemm = open_blas();
    if (!sgemm)
        printf("libopenblas.so.0 is not here: nothing to compare with\n");
    printf("%-24s %5s %6s %5s  %8s %8s %8s  %5s %5s\n", "", "m", "n", "k", "openblas",
           tke_cpu_name(f32), "bf16", "x", "x");
    for (size_t i = 0; i < n; i++)
        if (argc < 3 || strstr(shapes[i].name, argv[2]))
            compare(f32, bf16, sgemm, &shapes[i]);
    tke_cpu_free(f32);
    tke_cpu_free(bf16);
    return 0;
}
