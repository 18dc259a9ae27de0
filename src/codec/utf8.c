/* utf8.c - checks UTF-8. Pure. */
#include "codec/utf8.h"

#include <assert.h>

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
        size_t n = tkc_utf8_length(p + i, len - i);
        if (n == 0)
            return i;
        i += n;
    }
    assert(i == len);
    return len;
}

bool tkc_utf8_valid(const void *bytes, size_t len)
{
    return tkc_utf8_prefix(bytes, len) == len;
}
