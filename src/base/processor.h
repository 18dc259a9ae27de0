/* processor.h - what the processor has that compilers may not assume, and the system lets programs use. Uses: the C library.
 * Must not: say anything about a system. */
#ifndef TKC_BASE_PROCESSOR_H
#define TKC_BASE_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TKC_HAS_SHA = 1,    /* x86-64: SHA instructions */
    TKC_HAS_AVX2 = 2,   /* and FMA, F16C */
    TKC_HAS_AVX512 = 4, /* F, BW, VL, DQ */
    TKC_HAS_NEON = 8,   /* every arm64 processor */
    TKC_HAS_BF16 = 16,  /* products of bf16 numbers: AVX-512 BF16, or arm64's FEAT_BF16 */
    TKC_HAS_AMD = 32
};
uint32_t tkc_processor(void);
/* The vector units that kernels exist for, by name, a space before each. */
void tkc_vector_units(char *out, size_t cap);

/* An arm64 processor with FEAT_BF16: a fact of the system (platform_proc.c, platform_darwin.c). */
bool tkc_arm_bf16(void);

#endif
