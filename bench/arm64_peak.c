/* arm64_peak - what one core of this machine can multiply at most: FMLA and, where it has it, BFMMLA, in GFLOP/s. For bench/arm64.sh. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/processor.h"

#if defined(__aarch64__)

#include <arm_neon.h>

enum { CHAINS = 24, STEPS = 1 << 16 };

#define FMLA(i) "fmla v" #i ".4s, v24.4s, v25.4s\n\t"
#define BFMMLA(i) "bfmmla v" #i ".4s, v24.8h, v25.8h\n\t"
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define SUMS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25"

static void fmla(void)
{
    for (int i = 0; i < STEPS; i++)
        __asm__ volatile(ALL(FMLA)::: SUMS);
}

#if defined(__clang__)
__attribute__((target("bf16")))
#else
__attribute__((target("+bf16")))
#endif
static void bfmmla(void)
{
    for (int i = 0; i < STEPS; i++)
        __asm__ volatile(ALL(BFMMLA)::: SUMS);
}

static double best(void (*loop)(void), double flops)
{
    int64_t least = INT64_MAX;
    for (int round = 0; round < 20; round++) {
        int64_t start = tkc_monotonic_ns();
        loop();
        int64_t took = tkc_monotonic_ns() - start;
        least = took < least ? took : least;
    }
    return flops * CHAINS * STEPS / (double)least;
}

int main(void)
{
    printf("peak of one core, fp32   %8.1f GFLOP/s (FMLA)\n", best(fmla, 8));
    if (tkc_processor() & TKC_HAS_BF16)
        printf("peak of one core, bf16   %8.1f GFLOP/s (BFMMLA)\n", best(bfmmla, 32));
    return 0;
}

#else

int main(void)
{
    fprintf(stderr, "arm64_peak: this is not an arm64 processor\n");
    return 1;
}

#endif
