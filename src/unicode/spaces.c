/* spaces.c - see spaces.h. May touch: the output it is given. */
#include "unicode/spaces.h"

#include "unicode/unicode.h"

static const char mark[3] = { '\xE2', '\x96', '\x81' }; /* U+2581 */

/* The next mark at or after p; `end` if there is none. */
static const unsigned char *next_mark(const unsigned char *p, const unsigned char *end)
{
    for (; (p = memchr(p, mark[0] & 0xFF, (size_t)(end - p))); p++)
        if (end - p >= 3 && memcmp(p, mark, 3) == 0)
            return p;
    return end;
}

bool tkc_begins_with_space(const unsigned char *text, size_t len)
{
    return len && (*text == ' ' || next_mark(text, text + (len < 3 ? len : 3)) == text);
}

bool tkc_spaces(const unsigned char *text, size_t len, bool prefix, tkc_buf *out,
                tkc_origins *origins, bool *changes, tinkc_error *err)
{
    const unsigned char *end = text + len, *at = next_mark(text, end), *done = text;
    *changes = len && (prefix || at < end);
    if (!*changes)
        return true;
    tkc_buf_clear(out);
    if (origins)
        origins->len = 0;
    if (prefix && (!tkc_buf_char(out, ' ', err) ||
                   !tkc_origins_add(origins, 1, 0, tkc_char_bytes(*text), false, err)))
        return false;
    for (;; at = next_mark(done, end)) {
        size_t from = (size_t)(done - text), n = (size_t)(at - done);
        if (!tkc_buf_add(out, done, n, err) ||
            !tkc_origins_add(origins, n, from, from + n, true, err))
            return false;
        if (at == end)
            return true;
        from += n;
        if (!tkc_buf_char(out, ' ', err) ||
            !tkc_origins_add(origins, 1, from, from + 3, false, err))
            return false;
        done = at + 3;
    }
}
