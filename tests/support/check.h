/* check.h - cmocka with the headers it needs before it, and the few helpers every unit test uses.
 */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"
#include "support/patience.h"
#include "support/test_case.h"

/* Fails the test if `err` holds one, showing its message. */
#define assert_ok(err)                                                                                                 \
    do {                                                                                                               \
        if ((err).code)                                                                                                \
            fail_msg("%s", (err).message);                                                                             \
    } while (0)

/* Compares a span with a C string. */
#define assert_str(span, text)                                                                                         \
    do {                                                                                                               \
        tinkc_str s_ = (span);                                                                                         \
        const char *t_ = (text);                                                                                       \
        if (!tkc_str_is(s_, t_))                                                                                       \
            fail_msg("\"%.*s\" is not \"%s\"", (int)s_.len, s_.data ? s_.data : "", t_);                               \
    } while (0)

/* A copy of exactly `len` bytes on the heap, so that sanitizers see every byte read beyond it. */
static inline char *exact_copy(const void *bytes, size_t len)
{
    tinkc_error err = { 0 };
    char *copy = tkc_alloc(NULL, len, &err);
    assert_non_null(copy);
    if (len)
        memcpy(copy, bytes, len);
    return copy;
}
/* Bytes out of hex digits, in an arena. */
static inline tinkc_bytes unhex(tkc_arena *arena, const char *digits)
{
    static const char hex[] = "0123456789abcdef";
    tinkc_error err = { 0 };
    size_t n = strlen(digits) / 2;
    unsigned char *out = tkc_arena_alloc(arena, n, &err);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)((strchr(hex, digits[2 * i]) - hex) * 16 + (strchr(hex, digits[2 * i + 1]) - hex));
    return (tinkc_bytes){ out, n };
}

static inline void free_copy(char *copy, size_t len)
{
    tkc_release(NULL, copy, len);
}

#endif
