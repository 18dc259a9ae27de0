/* cuda_pieces.cuh - tiles of few rows that move along k, copied in pieces of 16 bytes. */
#ifndef TKE_CUDA_PIECES_CUH
#define TKE_CUDA_PIECES_CUH

#include "cuda/cuda_warp.cuh"

/* A thread's 16-byte pieces of a tile of ROWS rows that moves along k: addresses are computed once, because a warp that is
 * alone on its scheduler waits for every instruction. */
template <int ROWS, int BK, int THREADS> struct pieces {
    enum { N = (ROWS * BK / 8 + THREADS - 1) / THREADS };
    const bf16 *from[N];
    int to[N], room[N]; /* room: the k from which on the piece is past the end; 0 = the row does not exist */
};

template <int ROWS, int BK, int THREADS> DEVICE void aim(pieces<ROWS, BK, THREADS> &p, const bf16 *x, int rows, int k)
{
#pragma unroll
    for (int i = 0; i < p.N; i++) {
        int at = threadIdx.x + i * THREADS, r = at / (BK / 8), c = at % (BK / 8);
        bool there = r < rows && r < ROWS;
        p.from[i] = x + (int64_t)(there ? r : 0) * k + c * 8;
        p.to[i] = swizzle<BK>(r, c);
        p.room[i] = !there ? 0 : k != c * 8 ? k - c * 8 : -1; /* a piece that begins at the end of a row is past it */
    }
}

/* Piece i of the tile at k0; rows past the end are left unchanged. It has no branch, so that it can be issued while
 * the warp waits for a product. */
template <typename P> DEVICE void fetch_one(const P &p, int i, int k0, bf16 *tile)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(tile + p.to[i]);
    int bytes = k0 < p.room[i] ? 16 : 0;
    const bf16 *from = p.from[i] + (bytes ? k0 : 0);
    asm volatile("{ .reg .pred q; setp.ne.b32 q, %3, 0; @q cp.async.cg.shared.global [%0],[%1],16,%2; }" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(p.room[i]));
}

template <typename P> DEVICE void fetch(const P &p, int k0, bf16 *tile)
{
#pragma unroll
    for (int i = 0; i < P::N; i++)
        fetch_one(p, i, k0, tile);
}

#endif
