/* numbers.h - test data for kernels: repeatable numbers, buffers that end exactly where they should
 * (so that the sanitizer sees a step too far), and kernel sets to try. */
#ifndef TEST_SUPPORT_NUMBERS_H
#define TEST_SUPPORT_NUMBERS_H

#include "math/kernels.h"

/* A small generator; the same numbers everywhere. */
typedef struct numbers {
    uint64_t state;
} numbers;

uint32_t numbers_next(numbers *);
/* Uniform in [-1, 1). */
float numbers_unit(numbers *);
int64_t numbers_range(numbers *, int64_t low, int64_t high); /* both included */

/* n floats from malloc, filled with numbers_unit * scale; ended with numbers_free. */
tke_real *numbers_new(numbers *, int64_t n, float scale);
/* n elements of a dtype, from numbers_unit * scale. */
void *numbers_new_stored(numbers *, tke_dtype dtype, int64_t n, float scale);
tke_real *numbers_copy(const tke_real *x, int64_t n);
void numbers_free(void *);

bool numbers_same_bits(const tke_real *x, const tke_real *y, int64_t n);

/* Calls fn for each set this machine has. */
void each_isa(void (*fn)(int32_t isa));
/* Fails the test if it cannot be made. */
tke_cpu *cpu_new(int32_t isa, int32_t n_threads, int32_t precision);

#endif
