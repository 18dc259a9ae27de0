/* cuda_mxfp4.cuh - mxfp4 on the card: 8 rows of a matrix are a strip, in which the codes that a lane of a warp unpacks lie side by side.
 *
 * A strip's groups of four blocks (128 columns) follow each other, the last one may have fewer. In a group, lane 4 g + t has a word of
 * each block of row g: pairs i = 0 .. 3 of neighbours along k, from 8 i + 2 t on, one code in either half of the word. Their bits lie so
 * that few instructions bring them to the places of a bf16: signs at 15, 12, 14, 13, the other three bits from 6, 3, 0, 9 on. Scales of a
 * group follow each other by row, then by block.
 */
#ifndef TKE_CUDA_MXFP4_CUH
#define TKE_CUDA_MXFP4_CUH

#include "cuda/cuda_bits.cuh"
#include "cuda/cuda_warp.cuh"

enum { STRIP = 8, GROUP = 4, GROUP_BYTES = STRIP * GROUP * 16, GROUP_SCALES = STRIP * GROUP };

/* Blocks of the group that block b is in, of `blocks` in a row. */
static __host__ __device__ int group_size(int b, int blocks)
{
    int left = blocks - b / GROUP * GROUP;
    return left < GROUP ? left : GROUP;
}

/* Where in a strip the word of lane t of a block lies, and its scale. */
static __host__ __device__ int word_at(int row, int b, int t, int blocks)
{
    return b / GROUP * GROUP_BYTES + ((row * 4 + t) * group_size(b, blocks) + b % GROUP) * 4;
}

static __host__ __device__ int scale_at(int row, int b, int blocks)
{
    return b / GROUP * GROUP_SCALES + row * group_size(b, blocks) + b % GROUP;
}

/* The codes of pair i, in the halves of a word. */
DEVICE uint32_t pack_codes(int i, uint32_t low, uint32_t high)
{
    int sign = i == 0 ? 15 : i == 1 ? 12 : i == 2 ? 14 : 13, rest = i == 0 ? 6 : i == 1 ? 3 : i == 2 ? 0 : 9;
    uint32_t both = low | high << 16;
    return (both >> 3 & 0x00010001u) << sign | (both & 0x00070007u) << rest;
}

/* Pair i of a word: as bf16 the codes times 2^-126. */
DEVICE uint32_t code_pair(uint32_t word, int i)
{
    if (i < 2)
        return (i ? word << 3 : word) & 0x81c081c0u;
    uint32_t rest = (i == 2 ? word << 6 : word >> 3) & 0x01c001c0u;
    return and_or(i == 2 ? word << 1 : word << 2, 0x80008000u, rest);
}

DEVICE uint32_t times_pair(uint32_t v, uint32_t by)
{
    __nv_bfloat162 x = __hmul2(*(__nv_bfloat162 *)&v, *(__nv_bfloat162 *)&by);
    return *(uint32_t *)&x;
}

/* The scale of a block as two factors, for what code_pair leaves open, too; the second is 1 unless numbers are above 6. Powers of two
 * as bf16, twice. */
DEVICE uint32_t first_factor(int scale)
{
    return (uint32_t)min(scale, 127 + 1) * 0x00800080u + 0x3f003f00u - (scale > 128 ? 0x00800080u : 0);
}

DEVICE uint32_t second_factor(int scale)
{
    return scale <= 128 ? 0x3f803f80u : (uint32_t)scale * 0x00800080u;
}

#endif
