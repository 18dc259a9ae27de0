/* str.h - spans of text, and numbers to and from text without a locale. */
#ifndef TKC_BASE_STR_H
#define TKC_BASE_STR_H

#include <string.h>
#include "base/err.h"

/* A span over a C string; empty for NULL. */
tinkc_str tkc_str(const char *s);
static inline tinkc_str tkc_strn(const char *s, size_t len)
{
    return (tinkc_str){ s, len };
}

bool tkc_str_eq(tinkc_str a, tinkc_str b);
bool tkc_str_is(tinkc_str a, const char *b);
/* ASCII letters only: header names, schemes, booleans in the environment. */
bool tkc_str_is_nocase(tinkc_str a, const char *b);
bool tkc_cstr_eq(const char *a, const char *b); /* NULL equals only NULL */
bool tkc_starts_with(tinkc_str s, const char *prefix);
bool tkc_ends_with(tinkc_str s, const char *suffix);
/* Byte order, as in strcmp. */
int tkc_str_compare(tinkc_str a, tinkc_str b);

/* Without ASCII white space at both ends. */
tinkc_str tkc_str_trim(tinkc_str s);
/* Line ends and other control characters become spaces: for texts that are shown on one line. */
void tkc_blank_controls(char *text);
/* Index of the first c, or s.len. */
size_t tkc_str_find(tinkc_str s, char c);
/* Cuts the part before the first `c` off *rest; the last part leaves *rest with data NULL. False
 * when nothing is left. "a,,b" gives "a", "", "b". */
bool tkc_str_cut(tinkc_str *rest, char c, tinkc_str *part);

/* The whole text must be the number, without white space or "+". False if not, or too large. */
bool tkc_parse_i64(tinkc_str s, int64_t *out);
bool tkc_parse_u64(tinkc_str s, uint64_t *out);
/* JSON's grammar, plus "inf", "-inf", "nan" in any case if `special` is set. */
bool tkc_parse_double(tinkc_str s, bool special, double *out);
/* Would it be parsed, without `special`? */
bool tkc_is_number(tinkc_str s);

enum { TKC_NUMBER_MAX = 32 };
/* The shortest digits that read back as the same number, as Python's repr writes them: "0.1",
 * "1e-05", "3.0". Terminated; returns the length. inf and nan become "inf", "-inf", "nan". */
size_t tkc_format_double(double value, char out[TKC_NUMBER_MAX]);
/* The same for a 32-bit float: the shortest digits that read back as the same float. */
size_t tkc_format_float(float value, char out[TKC_NUMBER_MAX]);

/* Length of the UTF-8 character at p, of which `left` bytes (at least 1) may be read; 0 if it is
 * invalid: overlong, a surrogate, too large, cut off. */
size_t tkc_utf8_length(const void *p, size_t left);

/* FNV-1a: for tables in memory whose keys are trusted. */
uint64_t tkc_hash(const void *bytes, size_t len);

/* The time depends only on the lengths, not on where the bytes differ. */
bool tkc_equal_secret(tinkc_str a, tinkc_str b);

#endif
