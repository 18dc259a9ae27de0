/* cuda_wgmma.cuh - the matrix instruction of a warpgroup (compute capability 9.0a), for tiles of 64 rows of 128 numbers.
 *
 * A chain of wgmma gives the bits of the chain of mma.sync with the same steps. Tiles lie in shared memory as two halves of 64
 * columns, rows of 128 bytes whose pieces of 16 are permuted: the layout that one descriptor describes for both directions.
 * A kernel that uses this file is empty for other chips, so the host must not launch it there.
 */
#ifndef TKE_CUDA_WGMMA_CUH
#define TKE_CUDA_WGMMA_CUH

#include "cuda/cuda_warp.cuh"

#if !defined __CUDA_ARCH__ || (__CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum { GMMA_ROWS = 64, GMMA_D = 128, GMMA_TILE = GMMA_ROWS * GMMA_D, GMMA_HALF = GMMA_ROWS * 64 };

/* Element offset of piece c (8 numbers) of row r in a tile. */
DEVICE int gmma_place(int r, int c)
{
    return (c >> 3) * GMMA_HALF + r * 64 + (((c ^ r) & 7) << 3);
}

/* Describes a tile: 1024 bytes from eight rows to the next, 8192 from one half to the other. */
DEVICE uint64_t gmma_tile(const bf16 *tile)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(tile);
    uint32_t low = at >> 4 | (uint32_t)(GMMA_HALF * 2 / 16) << 16, high = 1024 / 16 | 1u << 30;
    return (uint64_t)high << 32 | low;
}

/* Step k16 along the rows of a tile. */
DEVICE uint64_t gmma_along(uint64_t tile, int step)
{
    return tile + (step & 3) * 2 + (step >> 2) * (GMMA_HALF * 2 / 16);
}

/* Step k16 down its columns: rows 16 step .. */
DEVICE uint64_t gmma_down(uint64_t tile, int step)
{
    return tile + step * (16 * 128 / 16);
}

/* Before the first instruction after registers or (with gmma_written) shared memory were written. */
DEVICE void gmma_begin(void)
{
#if HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE void gmma_commit(void)
{
#if HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* All groups but the last N are done. */
template <int N> DEVICE void gmma_wait(void)
{
#if HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

/* What this thread wrote to shared memory can be read by matrix instructions after the next barrier. */
DEVICE void gmma_written(void)
{
#if HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Sums are not read or written by anything that stands before this. */
template <int N> DEVICE void gmma_ready(float (&x)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])::"memory");
}

#define GMMA_SUMS(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define GMMA_SUMS_8(x, i)                                                                                                      \
    GMMA_SUMS(x, i), GMMA_SUMS(x, i + 1), GMMA_SUMS(x, i + 2), GMMA_SUMS(x, i + 3), GMMA_SUMS(x, i + 4), GMMA_SUMS(x, i + 5), \
        GMMA_SUMS(x, i + 6), GMMA_SUMS(x, i + 7)
#define GMMA_NEW(x, i) "=f"(x[i][0]), "=f"(x[i][1]), "=f"(x[i][2]), "=f"(x[i][3])
#define GMMA_NEW_8(x, i)                                                                                                       \
    GMMA_NEW(x, i), GMMA_NEW(x, i + 1), GMMA_NEW(x, i + 2), GMMA_NEW(x, i + 3), GMMA_NEW(x, i + 4), GMMA_NEW(x, i + 5),       \
        GMMA_NEW(x, i + 6), GMMA_NEW(x, i + 7)
#define GMMA_NAMES_32                                                                                                          \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GMMA_NAMES_64                                                                                                          \
    GMMA_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"  \
                  "%58,%59,%60,%61,%62,%63"

/* s[64][64] = a[64][16] b[64][16], both in shared memory. */
DEVICE void gmma_first(float (&s)[8][4], uint64_t a, uint64_t b)
{
#if HAS_WGMMA
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,0,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" GMMA_NAMES_32 "},%32,%33,p,1,1,0,0;\n}"
                 : GMMA_NEW_8(s, 0)
                 : "l"(a), "l"(b));
#endif
}

/* The same, added to s. */
DEVICE void gmma_next(float (&s)[8][4], uint64_t a, uint64_t b)
{
#if HAS_WGMMA
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,1,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" GMMA_NAMES_32 "},%32,%33,p,1,1,0,0;\n}"
                 : GMMA_SUMS_8(s, 0)
                 : "l"(a), "l"(b));
#endif
}

/* o[64][128] += w[64][16] b[16][128], w in registers. */
DEVICE void gmma_gather(float (&o)[16][4], const uint32_t (&w)[4], uint64_t b)
{
#if HAS_WGMMA
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" GMMA_NAMES_64 "},{%64,%65,%66,%67},%68,1,1,1,1;"
                 : GMMA_SUMS_8(o, 0), GMMA_SUMS_8(o, 8)
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(b));
#endif
}

#endif
