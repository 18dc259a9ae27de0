/* digest.c - the two compression functions of FIPS 180-4, written from the standard. */
#include "base/digest.h"

#include <assert.h>
#include <string.h>

#include "base/processor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const uint32_t K256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
};

static uint32_t rotate_left(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t word(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void block256(uint32_t s[8], const unsigned char *p)
{
    uint32_t w[64], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (int i = 0; i < 16; i++)
        w[i] = word(p + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    for (int i = 0; i < 64; i++) {
        uint32_t e1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25),
                 choose = (e & f) ^ (~e & g);
        uint32_t a0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22),
                 most = (a & b) ^ (a & c) ^ (b & c);
        uint32_t t1 = h + e1 + choose + K256[i] + w[i], t2 = a0 + most;
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
}

#if defined(__x86_64__)

/* The same block with the processor's SHA instructions, which take the state as ABEF and CDGH and
 * do two rounds at a time; w holds the last sixteen words of the schedule in groups of four. */
__attribute__((target("sha,sse4.1"))) static void block256_hardware(uint32_t s[8],
                                                                    const unsigned char *p)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const void *)s), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const void *)(s + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    __m128i first = abef, second = cdgh, w[4];
    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(p + 16 * i)), big_endian);
    for (int i = 0; i < 16; i++) {
        if (i >= 4) {
            __m128i last = w[(i + 3) & 3];
            __m128i more = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]),
                                         _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
            w[i & 3] = _mm_sha256msg2_epu32(more, last);
        }
        __m128i k = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const void *)(K256 + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
    }
    __m128i feba = _mm_shuffle_epi32(_mm_add_epi32(abef, first), 0x1B);
    __m128i dchg = _mm_shuffle_epi32(_mm_add_epi32(cdgh, second), 0xB1);
    _mm_storeu_si128((void *)s, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((void *)(s + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#else

static void block256_hardware(uint32_t s[8], const unsigned char *p)
{
    block256(s, p);
}

#endif

static void block1(uint32_t s[8], const unsigned char *p)
{
    static const uint32_t k[4] = { 0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6 };
    uint32_t w[80], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
    for (int i = 0; i < 16; i++)
        w[i] = word(p + 4 * i);
    for (int i = 16; i < 80; i++)
        w[i] = rotate_left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20              ? (b & c) | (~b & d)
                     : i < 40 || i >= 60 ? b ^ c ^ d
                                         : (b & c) | (b & d) | (c & d);
        uint32_t t = rotate_left(a, 5) + f + e + k[i / 20] + w[i];
        e = d, d = c, c = rotate_left(b, 30), b = a, a = t;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e;
}

static void compress(tkc_digest *d, const unsigned char *p)
{
    if (d->is_sha1)
        block1(d->state, p);
    else if (d->hardware)
        block256_hardware(d->state, p);
    else
        block256(d->state, p);
}

void tkc_sha256_init(tkc_digest *d)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    *d = (tkc_digest){ .hardware = (tkc_processor() & TKC_HAS_SHA) != 0 };
    memcpy(d->state, start, sizeof start);
}

void tkc_sha1_init(tkc_digest *d)
{
    *d = (tkc_digest){ .is_sha1 = true,
                       .state = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 } };
}

void tkc_digest_add(tkc_digest *d, const void *data, size_t len)
{
    const unsigned char *p = data;
    size_t held = (size_t)(d->total % 64);
    assert(data || !len);
    if (!len)
        return;
    d->total += len;
    if (held) {
        size_t take = 64 - held < len ? 64 - held : len;
        memcpy(d->block + held, p, take);
        p += take, len -= take;
        if (held + take < 64)
            return;
        compress(d, d->block);
    }
    for (; len >= 64; p += 64, len -= 64)
        compress(d, p);
    if (len)
        memcpy(d->block, p, len);
}

size_t tkc_digest_bytes(tkc_digest *d, unsigned char *out)
{
    uint64_t bits = d->total * 8;
    unsigned char tail[72] = { 0x80 };
    size_t pad = (size_t)(119 - d->total % 64) % 64 + 1, n = d->is_sha1 ? 20 : 32; /* to 56 of 64 */
    for (int i = 0; i < 8; i++)
        tail[pad + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    assert(pad >= 1 && pad + 8 <= sizeof tail);
    tkc_digest_add(d, tail, pad + 8);
    assert(d->total % 64 == 0); /* the padding ended on a block boundary */
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)(d->state[i / 4] >> (24 - 8 * (i % 4)));
    return n;
}

void tkc_digest_hex(tkc_digest *d, char *out)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[TKC_SHA256_BYTES];
    size_t n = tkc_digest_bytes(d, bytes);
    assert(n <= sizeof bytes);
    for (size_t i = 0; i < n; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = 0;
}
