/* nfc.c - NFC, piece by piece around the characters that can change; utf8proc does the rest.
 *
 * The reference's tables are of Unicode 9.0: newer characters neither decompose nor compose nor
 * move. They stay where they are, and the text on both sides is normalised separately.
 */
#include "unicode/nfc.h"

#include <assert.h>
#include <string.h>
#include <utf8proc.h>

#include "base/str.h"
#include "unicode/unicode.h"

void tkc_origins_free(tkc_origins *o)
{
    if (o->data)
        tkc_release(NULL, o->data, o->cap * sizeof *o->data);
    *o = (tkc_origins){ 0 };
}

bool tkc_origins_add(tkc_origins *o, size_t n, size_t start, size_t end, bool same,
                     tinkc_error *err)
{
    if (!o)
        return true;
    if (end > UINT32_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "text: too long for offsets");
    uint32_t(*grown)[2] = tkc_grow(NULL, o->data, &o->cap, o->len + n, sizeof *grown, err);
    if (!grown)
        return false;
    o->data = grown;
    for (size_t i = 0; i < n; i++) {
        uint32_t from = (uint32_t)(same ? start + i : start);
        grown[o->len + i][0] = from;
        grown[o->len + i][1] = same ? from + 1 : (uint32_t)end;
    }
    o->len += n;
    return true;
}

static bool is_inside(unsigned char c) /* a character */
{
    return (c & 0xC0) == 0x80;
}

/* The next bytes of the normal form are `now`, from [from, to): whole characters that are the same
 * at the beginning and at the end come from themselves. */
static bool note_change(tkc_origins *o, const unsigned char *text, size_t from, size_t to,
                        tinkc_str now, tinkc_error *err)
{
    const unsigned char *old = text + from, *new = (const unsigned char *)now.data;
    size_t n = to - from, most = n < now.len ? n : now.len, head = 0, tail = 0;
    if (!o)
        return true;
    while (head < most && old[head] == new[head])
        head++;
    while (head > 0 &&
           ((head < n && is_inside(old[head])) || (head < now.len && is_inside(new[head]))))
        head--;
    while (tail < most - head && old[n - tail - 1] == new[now.len - tail - 1])
        tail++;
    while (tail > 0 && is_inside(old[n - tail]))
        tail--;
    return tkc_origins_add(o, head, from, from + head, true, err) &&
           tkc_origins_add(o, now.len - head - tail, from + head, to - tail, false, err) &&
           tkc_origins_add(o, tail, to - tail, to, true, err);
}

static bool copy_same(const unsigned char *text, size_t from, size_t to, tkc_buf *out,
                      tkc_origins *o, tinkc_error *err)
{
    return from == to || (tkc_buf_add(out, text + from, to - from, err) &&
                          tkc_origins_add(o, to - from, from, to, true, err));
}

/* Normalises [from, to), which has no characters newer than Unicode 9.0. */
static bool change(const unsigned char *text, size_t from, size_t to, tkc_buf *out, tkc_origins *o,
                   tinkc_error *err)
{
    if (from == to)
        return true;
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t len = (utf8proc_ssize_t)(to - from);
    utf8proc_ssize_t n = utf8proc_decompose(text + from, len, NULL, 0, options);
    if (n < 0)
        return tkc_fail(err, TINKC_E_STATE, "NFC: %s", utf8proc_errmsg(n));
    size_t bytes = ((size_t)n + 1) * sizeof(utf8proc_int32_t), before = out->len;
    utf8proc_int32_t *points = tkc_alloc(NULL, bytes, err);
    if (!points)
        return false;
    n = utf8proc_decompose(text + from, len, points, n, options);
    if (n >= 0)
        n = utf8proc_normalize_utf32(points, n, options);
    bool ok = n >= 0;
    for (utf8proc_ssize_t i = 0; ok && i < n; i++) {
        unsigned char c[4];
        ok = tkc_buf_add(out, c, tkc_put_char(c, (uint32_t)points[i]), err);
    }
    tkc_release(NULL, points, bytes);
    if (!ok)
        return tkc_fail(err, TINKC_E_STATE, "NFC failed");
    return note_change(o, text, from, to, tkc_strn(out->data + before, out->len - before), err);
}

/* Normalises [from, to), split at its newer characters. */
static bool change_around_young(const unsigned char *text, size_t from, size_t to, tkc_buf *out,
                                tkc_origins *o, tinkc_error *err)
{
    size_t start = from;
    assert(from <= to);
    for (size_t at = from; at < to;) {
        const unsigned char *p = text + at;
        bool young = tkc_nfc_of(tkc_next_char(&p)) & TKC_NFC_YOUNG;
        size_t next = (size_t)(p - text);
        if (young) {
            if (!change(text, start, at, out, o, err) || !copy_same(text, at, next, out, o, err))
                return false;
            start = next;
        }
        at = next;
    }
    return change(text, start, to, out, o, err);
}

bool tkc_nfc(const unsigned char *text, size_t len, tkc_buf *out, tkc_origins *o, bool *changes,
             tinkc_error *err)
{
    size_t copied = 0, at = tkc_nfc_prefix(text, len);
    *changes = at < len;
    if (!*changes)
        return true;
    tkc_buf_clear(out);
    if (o)
        o->len = 0;
    for (; at < len; at += tkc_nfc_prefix(text + at, len - at)) {
        /* From the previous character, which a mark may combine with, to the next starter. */
        size_t from = at > copied ? (size_t)(tkc_char_before(text + at) - text) : at;
        for (const unsigned char *p; at < len; at = (size_t)(p - text)) {
            p = text + at;
            if (!(tkc_nfc_of(tkc_next_char(&p)) & TKC_NFC_CHECK))
                break;
        }
        if (!copy_same(text, copied, from, out, o, err) ||
            !change_around_young(text, from, at, out, o, err))
            return false;
        copied = at;
    }
    return copy_same(text, copied, len, out, o, err);
}
