/* base64.c - bytes to text and back. May touch: the arena it was given. */
#include "codec/base64.h"

#include <assert.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void tkc_base64_encode(const void *bytes, size_t len, char *out)
{
    assert((bytes || !len) && len < SIZE_MAX / 2);
    const unsigned char *p = bytes;
    for (; len >= 3; len -= 3, p += 3, out += 4) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        out[0] = alphabet[v >> 18];
        out[1] = alphabet[v >> 12 & 63];
        out[2] = alphabet[v >> 6 & 63];
        out[3] = alphabet[v & 63];
    }
    if (len == 0)
        return;
    uint32_t v = (uint32_t)p[0] << 16 | (len > 1 ? (uint32_t)p[1] << 8 : 0);
    out[0] = alphabet[v >> 18];
    out[1] = alphabet[v >> 12 & 63];
    out[2] = len > 1 ? alphabet[v >> 6 & 63] : '=';
    out[3] = '=';
}

static int value_of(char c, bool url)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == (url ? '-' : '+'))
        return 62;
    return c == (url ? '_' : '/') ? 63 : -1;
}

/* `text` has no padding, and its length modulo 4 is not 1. */
static bool decode_body(tinkc_str text, bool url, unsigned char *out)
{
    assert(text.len % 4 != 1);
    uint32_t v = 0;
    for (size_t i = 0; i < text.len; i++) {
        int digit = value_of(text.data[i], url);
        if (digit < 0)
            return false;
        v = v << 6 | (uint32_t)digit;
        if (i % 4 == 3) {
            *out++ = (unsigned char)(v >> 16);
            *out++ = (unsigned char)(v >> 8);
            *out++ = (unsigned char)v;
        }
    }
    if (text.len % 4 == 2) {
        *out = (unsigned char)(v >> 4);
        return (v & 15) == 0;
    }
    if (text.len % 4 == 3) {
        *out++ = (unsigned char)(v >> 10);
        *out = (unsigned char)(v >> 2);
        return (v & 3) == 0;
    }
    return true;
}

static bool decode_characters(tinkc_str text, bool url, tkc_arena *arena, tinkc_bytes *out,
                              tinkc_error *err)
{
    size_t padded = text.len;
    while (text.len && padded - text.len < 2 && text.data[text.len - 1] == '=')
        text.len--;
    bool pads = padded != text.len || !url;
    if (text.len % 4 == 1 || (pads && padded % 4 != 0))
        return false;
    size_t n = text.len / 4 * 3 + (text.len % 4 ? text.len % 4 - 1 : 0);
    assert(n <= text.len);
    unsigned char *data = tkc_arena_alloc(arena, n + 1, err);
    if (!data || !decode_body(text, url, data))
        return false;
    data[n] = '\0';
    *out = (tinkc_bytes){ data, n };
    return true;
}

bool tkc_base64_decode(tinkc_str text, tkc_arena *arena, tinkc_bytes *out, tinkc_error *err)
{
    return decode_characters(text, false, arena, out, err);
}

bool tkc_base64url_decode(tinkc_str text, tkc_arena *arena, tinkc_bytes *out, tinkc_error *err)
{
    return decode_characters(text, true, arena, out, err);
}
