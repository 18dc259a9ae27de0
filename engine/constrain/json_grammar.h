/* json_grammar.h - from a JSON schema to a grammar. */
#ifndef TKE_CONSTRAIN_JSON_GRAMMAR_H
#define TKE_CONSTRAIN_JSON_GRAMMAR_H

#include "constrain/grammar.h"

/* The texts that fit a schema; data NULL = any JSON object. In the arena, which must outlive it.
 * Errors: BAD_REQUEST, which names the keyword that is not supported. */
bool tke_json_grammar(tke_grammar *, tkc_arena *, tinkc_str schema, tinkc_error *err);

typedef struct tke_called { /* a function as a model calls it: text, arguments, tail */
    tinkc_str text, schema, tail;
} tke_called;
/* One call of one of the functions. */
bool tke_call_grammar(tke_grammar *, tkc_arena *, const tke_called *, size_t n, tinkc_error *err);
/* Either of the two; the texts of the calls begin with a character with which no JSON begins. */
bool tke_call_or_json_grammar(tke_grammar *, tkc_arena *, const tke_called *, size_t n,
                              tinkc_str text, tinkc_error *err);

#endif
