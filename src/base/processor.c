/* processor.c - what the processor has that compilers may not assume. Uses: the platform's facts. Asks the processor itself: what
 * compilers offer for it (__builtin_cpu_supports) needs a library of theirs that is not part of every toolchain. */
#include "base/processor.h"

#include <stdatomic.h>
#include <stdio.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The vector registers that the system saves for each thread: without that they cannot be used. */
static bool saves(uint32_t registers)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27))
        return false;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & registers) == registers;
}

static bool all_of(unsigned word, unsigned bits)
{
    return (word & bits) == bits;
}

static uint32_t find_features(void)
{
    enum { SSE41 = 1 << 19, FMA = 1 << 12, F16C = 1 << 29 };          /* leaf 1, ecx */
    enum { AVX2 = 1 << 5, SHA = 1 << 29, F = 1 << 16, DQ = 1 << 17 }; /* leaf 7, ebx */
    const unsigned bw_vl = 1u << 30 | 1u << 31, amd = 0x68747541;     /* "Auth" */
    unsigned a, b, c, d, leaf1_c = 0, leaf7_b = 0, leaf7_most = 0;
    uint32_t has = 0;
    if (__get_cpuid(1, &a, &b, &c, &d))
        leaf1_c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        leaf7_b = b, leaf7_most = a;
    if (all_of(leaf1_c, SSE41) && all_of(leaf7_b, SHA))
        has |= TKC_HAS_SHA;
    if (all_of(leaf1_c, FMA | F16C) && all_of(leaf7_b, AVX2) && saves(0x6))
        has |= TKC_HAS_AVX2;
    if ((has & TKC_HAS_AVX2) && all_of(leaf7_b, F | DQ | bw_vl) && saves(0xe6))
        has |= TKC_HAS_AVX512;
    if ((has & TKC_HAS_AVX512) && leaf7_most >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
        (a & 1u << 5))
        has |= TKC_HAS_BF16;
    if (__get_cpuid(0, &a, &b, &c, &d) && b == amd)
        has |= TKC_HAS_AMD;
    return has;
}

#elif defined(__aarch64__)

static uint32_t find_features(void)
{
    return TKC_HAS_NEON | (tkc_arm_bf16() ? (uint32_t)TKC_HAS_BF16 : 0);
}

#else

static uint32_t find_features(void)
{
    return 0;
}

#endif

uint32_t tkc_processor(void)
{
    enum { KNOWN = 1u << 30 };
    static _Atomic uint32_t found; /* by any thread; all find the same */
    uint32_t has = atomic_load_explicit(&found, memory_order_relaxed);
    if (!has) {
        has = find_features() | KNOWN;
        atomic_store_explicit(&found, has, memory_order_relaxed);
    }
    return has & ~(uint32_t)KNOWN;
}

void tkc_vector_units(char *out, size_t cap)
{
    uint32_t has = tkc_processor();
    const char *first = has & TKC_HAS_NEON   ? " neon"
                        : has & TKC_HAS_AVX2 ? " avx2"
                                             : " none that the engine uses";
    (void)snprintf(out, cap, "%s%s%s", first, has & TKC_HAS_AVX512 ? " avx512" : "",
                   has & TKC_HAS_BF16 ? " bf16" : "");
}
