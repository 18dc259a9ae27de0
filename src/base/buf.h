/* buf.h - bytes that grow up to a maximum.
 *
 * Appending to a buffer whose err already holds a failure does nothing, so a message can be built
 * in straight-line code and checked once at its end. Going over the maximum is TINKC_E_ARGUMENT.
 */
#ifndef TKC_BASE_BUF_H
#define TKC_BASE_BUF_H

#include "base/mem.h"

typedef struct tkc_buf {
    char *data;
    size_t len, cap;
    size_t max;
    const tinkc_allocator *a;
} tkc_buf;

/* Allocates nothing yet. max must be given: TKC_BUF_NO_MAX where the contents are our own. */
#define TKC_BUF_NO_MAX ((size_t)-1 / 2)
void tkc_buf_init(tkc_buf *, const tinkc_allocator *a, size_t max);
void tkc_buf_free(tkc_buf *);
void tkc_buf_clear(tkc_buf *); /* keeps the memory */

/* Makes room for `more` bytes after len; returns a pointer to it, or NULL. The caller advances
 * len. */
char *tkc_buf_room(tkc_buf *, size_t more, tinkc_error *err);

bool tkc_buf_add(tkc_buf *, const void *bytes, size_t len, tinkc_error *err);
bool tkc_buf_str(tkc_buf *, tinkc_str s, tinkc_error *err);
bool tkc_buf_cstr(tkc_buf *, const char *s, tinkc_error *err);
bool tkc_buf_char(tkc_buf *, char c, tinkc_error *err);
bool tkc_buf_printf(tkc_buf *, tinkc_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool tkc_buf_i64(tkc_buf *, int64_t value, tinkc_error *err);
bool tkc_buf_u64(tkc_buf *, uint64_t value, tinkc_error *err);

/* Appends a NUL (not counted in len) and returns the bytes; NULL on failure. */
const char *tkc_buf_terminate(tkc_buf *, tinkc_error *err);

static inline tinkc_str tkc_buf_view(const tkc_buf *b)
{
    return (tinkc_str){ b->data, b->len };
}

#endif
