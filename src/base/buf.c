/* buf.c - growing bytes. May touch: mem. */
#include "base/buf.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void tkc_buf_init(tkc_buf *b, const tinkc_allocator *a, size_t max)
{
    assert(max <= TKC_BUF_NO_MAX); /* so that len + room never overflows */
    *b = (tkc_buf){ .max = max, .a = a };
}

void tkc_buf_free(tkc_buf *b)
{
    assert(b->len <= b->cap);
    tkc_release(b->a, b->data, b->cap);
    tkc_buf_init(b, b->a, b->max);
}

void tkc_buf_clear(tkc_buf *b)
{
    b->len = 0;
}

char *tkc_buf_room(tkc_buf *b, size_t more, tinkc_error *err)
{
    size_t need;
    assert(b->len <= b->cap && (b->data || !b->cap));
    if (tkc_failed(err))
        return NULL;
    if (!tkc_add_size(b->len, more, &need) || need > b->max) {
        tkc_fail(err, TINKC_E_ARGUMENT, "larger than the %zu bytes allowed here", b->max);
        return NULL;
    }
    char *grown = tkc_grow(b->a, b->data, &b->cap, need, 1, err);
    if (!grown)
        return NULL;
    b->data = grown;
    assert(b->len <= need && need <= b->cap);
    return grown + b->len;
}

bool tkc_buf_add(tkc_buf *b, const void *bytes, size_t len, tinkc_error *err)
{
    char *room = tkc_buf_room(b, len, err);
    if (!room)
        return false;
    assert(bytes || !len);
    if (len)
        memcpy(room, bytes, len);
    b->len += len;
    return true;
}

bool tkc_buf_str(tkc_buf *b, tinkc_str s, tinkc_error *err)
{
    return tkc_buf_add(b, s.data, s.len, err);
}

bool tkc_buf_cstr(tkc_buf *b, const char *s, tinkc_error *err)
{
    assert(s);
    return tkc_buf_add(b, s, strlen(s), err);
}

bool tkc_buf_char(tkc_buf *b, char c, tinkc_error *err)
{
    return tkc_buf_add(b, &c, 1, err);
}

bool tkc_buf_printf(tkc_buf *b, tinkc_error *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *room = n < 0 ? NULL : tkc_buf_room(b, (size_t)n + 1, err);
    if (room) {
        (void)vsnprintf(room, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
    if (n < 0)
        tkc_fail(err, TINKC_E_STATE, "a text could not be formatted");
    return room != NULL;
}

bool tkc_buf_u64(tkc_buf *b, uint64_t value, tinkc_error *err)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    return tkc_buf_add(b, digits + at, sizeof digits - at, err);
}

bool tkc_buf_i64(tkc_buf *b, int64_t value, tinkc_error *err)
{
    if (value >= 0)
        return tkc_buf_u64(b, (uint64_t)value, err);
    return tkc_buf_char(b, '-', err) && tkc_buf_u64(b, 0 - (uint64_t)value, err);
}

const char *tkc_buf_terminate(tkc_buf *b, tinkc_error *err)
{
    char *room = tkc_buf_room(b, 1, err);
    if (!room)
        return NULL;
    *room = '\0';
    return b->data;
}
