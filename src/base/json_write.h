/* json_write.h - JSON into a tkc_buf: handles commas, escapes and numbers.
 *
 *     tkc_jsonw w;
 *     tkc_jsonw_open(&w, &buf, err);
 *     tkc_jsonw_object(&w);
 *     tkc_jsonw_key(&w, "rank"); tkc_jsonw_i64(&w, 32);
 *     tkc_jsonw_end(&w);
 *
 * Output is compact and UTF-8 (above U+001F only '"' and '\' are escaped). Non-finite numbers
 * are TINKC_E_ARGUMENT: JSON has none.
 */
#ifndef TKC_BASE_JSON_WRITE_H
#define TKC_BASE_JSON_WRITE_H

#include "base/buf.h"

enum { TKC_JSONW_MAX_DEPTH = 64 };

typedef struct tkc_jsonw {
    tkc_buf *out;
    tinkc_error *err;
    int32_t depth;
    bool comma;                             /* a value came before at this level */
    bool named;                             /* a key waits for its value */
    bool is_array[TKC_JSONW_MAX_DEPTH + 1]; /* which bracket closes each level */
} tkc_jsonw;

void tkc_jsonw_open(tkc_jsonw *, tkc_buf *out, tinkc_error *err);
void tkc_jsonw_object(tkc_jsonw *);
void tkc_jsonw_array(tkc_jsonw *);
void tkc_jsonw_end(tkc_jsonw *); /* closes the innermost */
void tkc_jsonw_key(tkc_jsonw *, const char *key);
void tkc_jsonw_key_str(tkc_jsonw *, tinkc_str key);
void tkc_jsonw_str(tkc_jsonw *, tinkc_str value);
void tkc_jsonw_cstr(tkc_jsonw *, const char *value); /* NULL becomes null */
/* A message for people. It may quote what somebody sent, or be cut inside a character: bytes that are not
 * valid UTF-8 become '?'. */
void tkc_jsonw_message(tkc_jsonw *, const char *text);
void tkc_jsonw_i64(tkc_jsonw *, int64_t value);
void tkc_jsonw_u64(tkc_jsonw *, uint64_t value);
void tkc_jsonw_double(tkc_jsonw *, double value);
void tkc_jsonw_float(tkc_jsonw *, float value);
void tkc_jsonw_bool(tkc_jsonw *, bool value);
void tkc_jsonw_null(tkc_jsonw *);
void tkc_jsonw_raw(tkc_jsonw *, tinkc_str json); /* a value that is already JSON */

/* Whole arrays: the fast path. */
void tkc_jsonw_i32s(tkc_jsonw *, const int32_t *values, size_t n);
void tkc_jsonw_i64s(tkc_jsonw *, const int64_t *values, size_t n);
void tkc_jsonw_f32s(tkc_jsonw *, const float *values, size_t n); /* NaN becomes null */

#endif
