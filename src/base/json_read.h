/* json_read.h - a pull reader for JSON: no tree, no recursion of its own, exact errors.
 *
 *     tkc_json j;
 *     tkc_json_open(&j, text, &arena, err);
 *     tinkc_str key;
 *     if (tkc_json_object(&j))
 *         while (tkc_json_key(&j, &key)) {
 *             if (tkc_str_is(key, "rank")) rank = tkc_json_i64(&j);
 *             else tkc_json_skip(&j);
 *         }
 *     tkc_json_close(&j);                // nothing may follow the value
 *     if (tkc_failed(err)) ...
 *
 * After a failure every call returns an empty value and reads no further, so loops end.
 * Errors are TINKC_E_BAD_RESPONSE unless j.code is changed after opening; they name the byte.
 * Strings must be UTF-8; lone surrogates in \u escapes are rejected. Depth is limited to 256.
 */
#ifndef TKC_BASE_JSON_READ_H
#define TKC_BASE_JSON_READ_H

#include "base/arena.h"

enum {
    TKC_JSON_ERROR = 0,
    TKC_JSON_OBJECT,
    TKC_JSON_ARRAY,
    TKC_JSON_STRING,
    TKC_JSON_NUMBER,
    TKC_JSON_TRUE,
    TKC_JSON_FALSE,
    TKC_JSON_NULL
};

enum { TKC_JSON_MAX_DEPTH = 256 };

typedef struct tkc_json {
    const char *begin, *at, *end;
    tkc_arena *arena; /* for strings with escapes; others are spans into the text */
    tinkc_error *err;
    int32_t code; /* of errors */
    int32_t depth;
    bool first; /* just entered a container: no comma yet */
    const char **unknown; /* where wire/message_codec.h notes a member it does not know; NULL = nowhere */
} tkc_json;

void tkc_json_open(tkc_json *, tinkc_str text, tkc_arena *arena, tinkc_error *err);
/* Checks that only white space is left. */
bool tkc_json_close(tkc_json *);

/* Kind of the value that comes next; TKC_JSON_ERROR at the end or after a failure. */
int tkc_json_peek(tkc_json *);

/* Enter a container: false (and an error) if the next value is something else. */
bool tkc_json_object(tkc_json *);
bool tkc_json_array(tkc_json *);
/* Moves to the next member or element: false after the last one; the container is then left. */
bool tkc_json_key(tkc_json *, tinkc_str *key);
bool tkc_json_item(tkc_json *);

/* Read a value of this type, or fail. i64 rejects fractions and overflow (1e3 and 5.0 are accepted
 * as integers). */
tinkc_str tkc_json_string(tkc_json *);
int64_t tkc_json_i64(tkc_json *);
double tkc_json_double(tkc_json *);
bool tkc_json_bool(tkc_json *);
bool tkc_json_null(tkc_json *); /* true if the next value was null (consumed); never fails */
/* Skips one value of any kind; returns its text. */
tinkc_str tkc_json_skip(tkc_json *);
/* Skips one value of any kind; false if it is null, false, 0 or empty. */
bool tkc_json_is_set(tkc_json *);

/* Records a failure at the reader's position. */
bool tkc_json_fail(tkc_json *, const char *what);

/* A whole array of numbers at once, in the arena: the fast path for long arrays. */
tinkc_i32s tkc_json_i32s(tkc_json *);
tinkc_i64s tkc_json_i64s(tkc_json *);
tinkc_f32s tkc_json_f32s(tkc_json *); /* null becomes NaN */

/* Readers take the last of two members with one name (a map keeps both), so what must not be
 * ambiguous is checked with this: a name that some object of the text has twice. data NULL: none,
 * or the text is malformed, which its reader reports; err only for lack of memory. */
tinkc_str tkc_json_repeated(tinkc_str text, tkc_arena *, tinkc_error *err);
/* One of the names that occurs twice; data NULL: none. May change their order. */
tinkc_str tkc_repeated_name(tinkc_str *names, size_t n);

#endif
