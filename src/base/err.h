/* err.h - filling in a tinkc_error: the first failure wins.
 *
 * Inside the libraries `err` is never NULL: public functions replace NULL with a local error
 * (tkc_enter), so everything below them may read err->code.
 */
#ifndef TKC_BASE_ERR_H
#define TKC_BASE_ERR_H

#include <stdarg.h>
#include "tinkc/error.h"

/* First line of a public function: makes *err usable (NULL becomes `local`). False if it already
 * holds an error: the function must then return at once. */
bool tkc_enter(tinkc_error **err, tinkc_error *local);

static inline bool tkc_failed(const tinkc_error *err)
{
    return err->code != TINKC_OK;
}

/* Records a failure unless one is there already. category and flags come from the code's row in
 * the table behind tinkc_code_flags. Returns false, so that `return tkc_fail(...)` reads well. */
bool tkc_fail(tinkc_error *err, int32_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Is a number of the caller's in its range? most INT64_MAX = no end. Otherwise ARGUMENT, with its name. */
bool tkc_check_range(int64_t value, int64_t least, int64_t most, const char *name,
                     tinkc_error *err);
bool tkc_vfail(tinkc_error *err, int32_t code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* TINKC_E_FILE; appends ": " and the text of errno to the message. Reads errno first. */
bool tkc_fail_errno(tinkc_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Records a message from outside unchanged, including its line breaks and tabs. Other messages are
 * one line. */
bool tkc_fail_text(tinkc_error *err, int32_t code, const char *text, size_t len);

/* TINKC_E_MEMORY, without formatting anything. */
bool tkc_fail_memory(tinkc_error *err);

/* Prefixes the message of a failure, for callers that know which file was read; a path that is too
 * long loses its beginning. Does nothing without a failure, or if the failure is TINKC_E_MEMORY.
 * Returns false. */
bool tkc_fail_before(tinkc_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Copies `from` into `to` unless `to` holds an error already. */
void tkc_error_copy(tinkc_error *to, const tinkc_error *from);

/* The default TINKC_BY_* of a code. */
int32_t tkc_code_category(int32_t code);

/* The code for an HTTP status of 300 or more: 404 -> NOT_FOUND, 502 -> SERVER, 418 -> HTTP. */
int32_t tkc_code_of_status(int32_t http_status);

#endif
