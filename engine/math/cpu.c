/* cpu.c - choosing a kernel set for this machine, and the memory and threads it works with.
 * May read the processor's features and one environment variable; computes nothing. */
#include "math/kernel_set.h"

#include <assert.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/str.h"

static const tke_kernel_set *find_set(int32_t isa, bool bf16)
{
    switch (isa) {
    case TKE_ISA_REF:
        return &tke_set_ref;
    case TKE_ISA_NEON:
        return tke_set_neon(bf16);
    case TKE_ISA_AVX2:
        return tke_set_avx2();
    case TKE_ISA_AVX512:
        return tke_set_avx512(bf16);
    default:
        return NULL;
    }
}

bool tke_isa_available(int32_t isa)
{
    return find_set(isa, false) != NULL;
}

/* The set that the environment variable names, or the best of this machine. */
static bool choose_isa(int32_t *isa, tinkc_error *err)
{
    static const char *const names[] = { "auto", "ref", "neon", "avx2", "avx512" };
    const char *wish = getenv("TINKC_ENGINE_ISA");
    for (int32_t i = TKE_ISA_REF; wish && i <= TKE_ISA_AVX512; i++)
        if (tkc_cstr_eq(wish, names[i])) {
            *isa = i;
            return true;
        }
    if (wish && *wish && !tkc_cstr_eq(wish, names[0]))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "TINKC_ENGINE_ISA: must be auto, ref, neon, avx2 or avx512, not '%.32s'",
                        wish);
    for (*isa = TKE_ISA_AVX512; *isa > TKE_ISA_REF && !tke_isa_available(*isa); --*isa)
        ;
    return true;
}

static bool make_scratch(tke_cpu *cpu, tinkc_error *err)
{
    int32_t n = tke_threads_count(cpu->threads);
    cpu->scratch = tkc_zalloc(NULL, (size_t)n * sizeof *cpu->scratch, err);
    if (!cpu->scratch)
        return false;
    for (int32_t i = 0; i < n; i++) {
        cpu->scratch[i] = tkc_alloc_pages(TKE_SCRATCH_BYTES + TKE_DECODE_BYTES, err);
        if (!cpu->scratch[i])
            return false;
        assert((uintptr_t)cpu->scratch[i] % 64 == 0);
    }
    return true;
}

tke_cpu *tke_cpu_new(const tke_cpu_options *options, tinkc_error *err)
{
    tke_cpu_options o = options ? *options : (tke_cpu_options){ 0 };
    if (o.isa == TKE_ISA_AUTO && !choose_isa(&o.isa, err))
        return NULL;
    if (o.precision == TKE_PRECISION_AUTO)
        o.precision = o.isa == TKE_ISA_AVX512 && tke_avx512_fast_bf16() ? TKE_PRECISION_BF16
                                                                        : TKE_PRECISION_F32;
    const tke_kernel_set *set = find_set(o.isa, o.precision == TKE_PRECISION_BF16);
    if (!set) {
        tkc_fail(err, TINKC_E_UNSUPPORTED, "this processor cannot run kernel set %d", (int)o.isa);
        return NULL;
    }
    tke_cpu *cpu = tkc_zalloc(NULL, sizeof *cpu, err);
    if (!cpu)
        return NULL;
    assert(set->tile_m > 0 && set->tile_n > 0 && set->gemm && set->attention && set->adam);
    cpu->set = set;
    cpu->precision = o.precision;
    cpu->threads = tke_threads_new(o.n_threads, err);
    if (!cpu->threads || !make_scratch(cpu, err)) {
        tke_cpu_free(cpu);
        return NULL;
    }
    return cpu;
}

void tke_cpu_free(tke_cpu *cpu)
{
    if (!cpu)
        return;
    int32_t n = cpu->threads ? tke_threads_count(cpu->threads) : 0;
    tke_threads_free(cpu->threads);
    for (int32_t i = 0; cpu->scratch && i < n; i++)
        tkc_release_pages(cpu->scratch[i], TKE_SCRATCH_BYTES + TKE_DECODE_BYTES);
    tkc_release(NULL, cpu->scratch, (size_t)n * sizeof *cpu->scratch);
    tkc_release(NULL, cpu, sizeof *cpu);
}

const char *tke_cpu_name(const tke_cpu *cpu)
{
    return cpu->set->name;
}

tke_threads *tke_cpu_threads(tke_cpu *cpu)
{
    return cpu->threads;
}
