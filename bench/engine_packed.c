/* engine_packed - products of one row (decoding) with packed weights, beside the same with bf16.
 *
 *   engine_packed [THREADS 1] [ROWS 1]
 *
 * A weight of 50 million random numbers, larger than the caches, in each format. Prints numbers and
 * bytes of the weight read in a second; bf16's bytes are close to what the memory gives.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/str.h"
#include "math/format.h"
#include "math/kernels.h"
#include "tests/support/engine/numbers.h"

enum { N = 49152, K = 1024, ROUNDS = 12 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes whose every pair is a small f16, so that all are sensible scales, too. */
static uint8_t *codes_new(numbers *rng, size_t bytes)
{
    uint8_t *codes = malloc(bytes);
    for (size_t i = 0; codes && i < bytes; i++)
        codes[i] = (uint8_t)(4 + numbers_next(rng) % 48);
    return codes;
}

static void measure(tke_cpu *cpu, numbers *rng, tke_dtype dtype, int64_t rows)
{
    const tke_format *f = tke_format_of(dtype);
    size_t count = (size_t)N * K, bytes = tke_format_bytes(f, count);
    uint8_t *codes = codes_new(rng, bytes), *powers = codes_new(rng, count / 32);
    tke_real *factors = numbers_new(rng, N * K / 64, 1);
    tke_real *a = numbers_new(rng, rows * K, 1), *c = numbers_new(rng, rows * N, 1);
    if (!codes || !powers) {
        fprintf(stderr, "engine_packed: out of memory\n");
        exit(2);
    }
    tke_gemm g = { .form = TKE_NT, .m = rows, .n = N, .k = K, .alpha = 1 };
    g.b = (tke_matrix){
        .data = codes, .ld = K, .dtype = dtype, .scales = powers, .factors = factors
    };
    g.a = a;
    g.lda = K;
    g.c = c;
    g.ldc = N;
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double t = seconds();
        tke_gemm_run(cpu, &g);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    printf("%-8s %5.2f bits %8.2f G numbers/s %8.2f GB/s\n", f->name,
           (double)bytes * 8 / (double)count, (double)count / best * 1e-9,
           (double)bytes / best * 1e-9);
    free(codes);
    free(powers);
    numbers_free(factors);
    numbers_free(a);
    numbers_free(c);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    int64_t threads = 1, rows = 1;
    if ((argc > 1 && !tkc_parse_i64(tkc_str(argv[1]), &threads)) ||
        (argc > 2 && !tkc_parse_i64(tkc_str(argv[2]), &rows)) || threads < 1 || rows < 1) {
        fprintf(stderr, "engine_packed: threads and rows must be positive numbers\n");
        return 2;
    }
    tke_cpu_options o = { .n_threads = (int32_t)threads, .precision = TKE_PRECISION_AUTO };
    tke_cpu *cpu = tke_cpu_new(&o, &err);
    numbers rng = { 3 };
    if (!cpu) {
        fprintf(stderr, "engine_packed: %s\n", err.message);
        return 2;
    }
    printf("%s\n", tke_cpu_name(cpu));
    measure(cpu, &rng, TKE_BF16, rows);
    for (int d = TKE_MXFP4; d < TKE_DTYPES; d++)
        measure(cpu, &rng, (tke_dtype)d, rows);
    tke_cpu_free(cpu);
    return 0;
}
