/* numbers.c - see numbers.h. */
#include "support/engine/numbers.h"
#include "support/test_case.h"

uint32_t numbers_next(numbers *n)
{
    n->state = n->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(n->state >> 33);
}

float numbers_unit(numbers *n)
{
    return (float)(numbers_next(n) >> 7) / 8388608.0f - 1.0f;
}

int64_t numbers_range(numbers *n, int64_t low, int64_t high)
{
    return low + (int64_t)(numbers_next(n) % (uint64_t)(high - low + 1));
}

tke_real *numbers_new(numbers *n, int64_t count, float scale)
{
    tke_real *x = malloc((size_t)(count > 0 ? count : 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = numbers_unit(n) * scale;
    return x;
}

void *numbers_new_stored(numbers *n, tke_dtype dtype, int64_t count, float scale)
{
    tke_real *x = numbers_new(n, count, scale);
    void *stored = malloc((size_t)(count > 0 ? count : 1) * tke_dtype_size(dtype));
    assert_non_null(stored);
    tke_narrow(dtype, x, (size_t)count, stored);
    free(x);
    return stored;
}

tke_real *numbers_copy(const tke_real *x, int64_t n)
{
    tke_real *copy = malloc((size_t)(n > 0 ? n : 1) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    return copy;
}

void numbers_free(void *x)
{
    free(x);
}

bool numbers_same_bits(const tke_real *x, const tke_real *y, int64_t n)
{
    return memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

void each_isa(void (*fn)(int32_t isa))
{
    for (int32_t isa = TKE_ISA_REF; isa <= TKE_ISA_AVX512; isa++)
        if (tke_isa_available(isa))
            fn(isa);
        else
            print_message("kernel set %d: not on this machine, skipped\n", (int)isa);
}

tke_cpu *cpu_new(int32_t isa, int32_t n_threads, int32_t precision)
{
    tinkc_error err = { 0 };
    tke_cpu *cpu = tke_cpu_new(&(tke_cpu_options){ .n_threads = n_threads, .isa = isa, .precision = precision }, &err);
    if (!cpu)
        fail_msg("%s", err.message);
    return cpu;
}
