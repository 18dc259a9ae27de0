/* unicode.c - checking UTF-8, one character at a time or many ASCII ones at once. Pure functions.
 */
#include "unicode/unicode.h"

size_t tkc_put_char(unsigned char out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (unsigned char)(0xC0 | c >> 6);
        out[1] = (unsigned char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (unsigned char)(0xE0 | c >> 12);
        out[1] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (unsigned char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (unsigned char)(0xF0 | c >> 18);
    out[1] = (unsigned char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (unsigned char)(0x80 | (c & 0x3F));
    return 4;
}

/* The valid range of the second byte depends on the first: overlong forms, surrogates and code
 * points above U+10FFFF are detected there. */
static bool second_fits(unsigned char first, unsigned char second)
{
    switch (first) {
    case 0xE0:
        return second >= 0xA0 && second < 0xC0;
    case 0xED:
        return second >= 0x80 && second < 0xA0;
    case 0xF0:
        return second >= 0x90 && second < 0xC0;
    case 0xF4:
        return second >= 0x80 && second < 0x90;
    default:
        return (second & 0xC0) == 0x80;
    }
}

static size_t wanted_bytes(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xC2)
        return 0;
    if (first < 0xE0)
        return 2;
    if (first < 0xF0)
        return 3;
    return first < 0xF5 ? 4 : 0;
}

size_t tkc_utf8_broken(const unsigned char *p, size_t len, bool *may_go_on)
{
    size_t want = wanted_bytes(p[0]), have = 1;
    *may_go_on = false;
    if (want < 2)
        return 1;
    while (have < want && have < len &&
           (have == 1 ? second_fits(p[0], p[1]) : (p[have] & 0xC0) == 0x80))
        have++;
    *may_go_on = have == len && have < want;
    return have;
}

/* Length of the well-formed character at p, or 0. */
static size_t whole_char(const unsigned char *p, size_t len)
{
    size_t want = wanted_bytes(p[0]);
    if (want == 0 || want > len)
        return 0;
    if (want >= 2 && !second_fits(p[0], p[1]))
        return 0;
    for (size_t i = 2; i < want; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return want;
}

/* Four bytes, the first lowest. */
static inline uint32_t load32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static size_t ascii_prefix(const unsigned char *p, size_t len)
{
    const uint64_t high = UINT64_C(0x8080808080808080);
    size_t i = 0;
    for (uint64_t w[4]; i + 32 <= len; i += 32) {
        memcpy(w, p + i, 32);
        if ((w[0] | w[1] | w[2] | w[3]) & high)
            break;
    }
    for (uint64_t w; i + 8 <= len; i += 8) {
        memcpy(&w, p + i, 8);
        if (w & high)
            break;
    }
    while (i < len && p[i] < 0x80)
        i++;
    return i;
}

/* Length of the run of three-byte characters at p whose lead bytes need no further check (most
 * scripts); *check collects their NFC flags if `flags`. */
static inline size_t three_byte_run(const unsigned char *p, size_t len, bool flags, uint8_t *check)
{
    size_t at = 0;
    for (; at + 4 <= len; at += 3) {
        uint32_t c = load32(p + at);
        if ((c & 0xC0C0F0) != 0x8080E0 || (c & 0xFF) == 0xE0 || (c & 0xFF) == 0xED)
            break;
        if (flags)
            *check |= tkc_nfc_of((c & 0x0F) << 12 | (c >> 2 & 0xFC0) | (c >> 16 & 0x3F));
    }
    return at;
}

static inline __attribute__((always_inline)) size_t sound(const unsigned char *p, size_t len,
                                                          bool flags, uint8_t *check)
{
    size_t at = 0;
    while (at < len) {
        if (p[at] < 0x80) {
            at += ascii_prefix(p + at, len - at);
            continue;
        }
        size_t n = three_byte_run(p + at, len - at, flags, check);
        if (n == 0) {
            n = whole_char(p + at, len - at);
            if (n == 0)
                break;
            const unsigned char *q = p + at;
            if (flags && p[at] >= 0xCC) /* below U+0300 nothing changes */
                *check |= tkc_nfc_of(tkc_next_char(&q));
        }
        at += n;
    }
    return at;
}

size_t tkc_utf8_sound(const unsigned char *p, size_t len, bool *needs_nfc)
{
    uint8_t check = 0;
    if (!needs_nfc)
        return sound(p, len, false, &check);
    size_t n = sound(p, len, true, &check);
    *needs_nfc = check & TKC_NFC_CHECK;
    return n;
}

size_t tkc_nfc_prefix(const unsigned char *p, size_t len)
{
    const unsigned char *at = p, *end = p + len, *next;
    while (at < end) {
        if (*at < 0x80) {
            at += ascii_prefix(at, (size_t)(end - at));
            continue;
        }
        next = at;
        if (tkc_nfc_of(tkc_next_char(&next)) & TKC_NFC_CHECK)
            break;
        at = next;
    }
    return (size_t)(at - p);
}
