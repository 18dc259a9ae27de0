/* philox.c - the counter-based generator (Salmon et al. 2011: ten rounds, four words). */
#include "model/philox.h"

void tke_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double tke_uniform(uint64_t seed, uint32_t sample, uint32_t position)
{
    uint64_t folded = tke_fold_seed(seed);
    uint32_t key[2] = { (uint32_t)folded, (uint32_t)(folded >> 32) };
    uint32_t counter[4] = { sample, position, 0, 0 }, x[4];
    tke_philox(counter, key, x);
    return (double)(((uint64_t)x[1] << 32 | x[0]) >> 11) * 0x1p-53;
}
