/* schema_pattern.h - the "pattern" of a JSON schema as an automaton over the bytes of a JSON string.
 *
 * A bounded subset of ECMAScript's regular expressions: literals, ., classes, \d \w \s and their
 * opposites, groups, |, * + ? {n,m}, and ^ and $ at the ends. Everything else is refused by name.
 * As in JSON schema, a pattern without ^ or $ may match anywhere. Depends only on base.
 */
#ifndef TKE_CONSTRAIN_SCHEMA_PATTERN_H
#define TKE_CONSTRAIN_SCHEMA_PATTERN_H

#include "base/arena.h"

enum { TKE_PATTERN_NONE = 0xffff };

typedef struct tke_pattern {
    size_t n;       /* states; 0 is the first */
    uint16_t *next; /* [n][256], TKE_PATTERN_NONE = the byte may not follow */
    int32_t *cost;  /* [n] bytes of the shortest way to where the string may end; 0 = here */
} tke_pattern;

/* Errors: BAD_REQUEST (what is not supported or too large; nothing can match), MEMORY. */
bool tke_pattern_compile(tke_pattern *, tkc_arena *, tinkc_str text, tinkc_error *err);

#endif
