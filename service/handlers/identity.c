/* identity.c - hashes and random names. Pure functions of their arguments. */
#include "service/handlers/identity.h"

#include <stdio.h>

#include "base/digest.h"
#include "base/mem.h"
#include "base/platform.h"

/* Two lanes of multiply and rotate with different odd constants (from splitmix and Weyl sequences),
 * eight bytes a step: fast enough for bodies of megabytes, 128 bits against accidental
 * collisions. */
static inline uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline void mix(tke_hash128 *h, uint64_t word)
{
    h->lo = rotate(h->lo ^ word, 29) * 0x9E3779B97F4A7C15u;
    h->hi = (rotate(h->hi, 37) ^ word * 0xC2B2AE3D27D4EB4Fu) * 0xBF58476D1CE4E5B9u + h->lo;
}

void tke_hash_begin(tke_hasher *s)
{
    *s = (tke_hasher){ { 0x243F6A8885A308D3u, 0x13198A2E03707344u }, 0 };
}

void tke_hash_add(tke_hasher *s, const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    uint64_t word;
    size_t left = len;
    for (; left >= 8; left -= 8, at += 8) {
        memcpy(&word, at, 8);
        mix(&s->h, word);
    }
    word = (uint64_t)left << 56;
    for (size_t i = 0; i < left; i++)
        word |= (uint64_t)at[i] << (8 * i);
    mix(&s->h, word);
    mix(&s->h, len);
    s->len += len;
}

void tke_hash_str(tke_hasher *s, const char *text)
{
    /* An absent text and an empty one are different requests. */
    tke_hash_i64(s, text != NULL);
    tke_hash_add(s, text ? text : "", text ? strlen(text) : 0);
}

void tke_hash_i64(tke_hasher *s, int64_t value)
{
    mix(&s->h, (uint64_t)value);
}

void tke_hash_f64(tke_hasher *s, double value)
{
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    mix(&s->h, word);
}

static uint64_t finish(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

tke_hash128 tke_hash_end(tke_hasher *s)
{
    mix(&s->h, s->len);
    return (tke_hash128){ finish(s->h.lo + s->h.hi), finish(s->h.hi ^ rotate(s->h.lo, 17)) };
}

bool tke_hash_eq(tke_hash128 a, tke_hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

void tke_uuid(const tinkc_clock *clock, char out[TKE_UUID_TEXT])
{
    uint64_t a = tkc_random(clock), b = tkc_random(clock);
    (void)snprintf(out, TKE_UUID_TEXT, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(a >> 32),
                   (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xfff),
                   (unsigned)(0x8000 | (b >> 48 & 0x3fff)),
                   (unsigned long long)(b & 0xffffffffffffu));
}

static void hash_key(const tke_owner_salt *salt, const char *purpose, tinkc_str key,
                     char hex[TKC_SHA256_HEX])
{
    tkc_digest sum;
    tkc_sha256_init(&sum);
    /* Stores from before the salt existed: their owners must stay the same. */
    if (!tkc_all_zero(salt->bytes, sizeof salt->bytes))
        tkc_digest_add(&sum, salt->bytes, sizeof salt->bytes);
    tkc_digest_add(&sum, purpose, strlen(purpose));
    tkc_digest_add(&sum, key.data, key.len);
    tkc_digest_hex(&sum, hex);
    tkc_wipe(&sum, sizeof sum);
}

void tke_owner_of_key(const tke_owner_salt *salt, tinkc_str key, char out[TKE_OWNER_TEXT])
{
    char hex[TKC_SHA256_HEX];
    hash_key(salt, "", key, hex);
    (void)snprintf(out, TKE_OWNER_TEXT, "key-%.16s", hex);
}

void tke_owner_urn(const char *owner, char out[TKE_URN_TEXT])
{
    (void)snprintf(out, TKE_URN_TEXT, TKE_USER_URN "%.63s", owner);
}

void tke_id_of_key(const tke_owner_salt *salt, tinkc_str key, char out[17])
{
    char hex[TKC_SHA256_HEX];
    hash_key(salt, "id:", key, hex);
    (void)snprintf(out, 17, "%.16s", hex);
}

/* Four bits at a time: a small table, and fast enough for a log on disk. */
static const uint32_t crc_nibble[16] = { 0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                         0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                         0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                         0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75 };

uint32_t tke_crc32c(uint32_t seed, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    uint32_t crc = ~seed;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ crc_nibble[crc & 15];
        crc = crc >> 4 ^ crc_nibble[crc & 15];
    }
    return ~crc;
}
