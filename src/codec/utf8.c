/* utf8.c - checks UTF-8. Pure. */
#include "codec/utf8.h"

/* Length of the character at p, 0 if it is none. */
static size_t char_length(const unsigned char *p, size_t left)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t n = p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    if (n == 0 || n > left)
        return 0;
    uint32_t c = p[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    return c < least[n] || c > 0x10FFFF || surrogate ? 0 : n;
}

size_t tkc_utf8_prefix(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= sizeof word) { /* mostly ASCII: eight at a time */
            memcpy(&word, p + i, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                i += sizeof word;
                continue;
            }
        }
        size_t n = p[i] < 0x80 ? 1 : char_length(p + i, len - i);
        if (n == 0)
            return i;
        i += n;
    }
    return len;
}

bool tkc_utf8_valid(const void *bytes, size_t len)
{
    return tkc_utf8_prefix(bytes, len) == len;
}
