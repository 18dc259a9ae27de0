/* vocab.h - the bytes behind each token id, from a model folder's tokenizer.json.
 *
 * This is all that stop strings and streams need of a tokenizer: no merges, splitting or templates.
 */
#ifndef TKE_SERVICE_VOCAB_H
#define TKE_SERVICE_VOCAB_H

#include "base/arena.h"
#include "base/buf.h"

typedef struct tke_vocab tke_vocab;

/* NULL without an error if the folder has no tokenizer.json. Errors: TOKENIZER, MEMORY. */
tke_vocab *tke_vocab_open(const tinkc_allocator *a, const char *folder, tinkc_error *err);
/* From the text of a tokenizer.json. */
tke_vocab *tke_vocab_parse(const tinkc_allocator *a, tinkc_str json, tinkc_error *err);
void tke_vocab_free(tke_vocab *); /* NULL allowed */

/* Empty for an unknown id. Any thread. */
tinkc_str tke_vocab_bytes(const tke_vocab *, int32_t token);
/* For tke_gen_request: user is the vocab. */
size_t tke_vocab_token_bytes(void *vocab, int32_t token, const char **bytes);

/* How many bytes at the start of s are complete UTF-8 characters; the rest may become one. Invalid
 * bytes count as complete. */
size_t tke_utf8_whole(tinkc_str s);
/* Appends s; bytes that are not UTF-8 become U+FFFD. */
bool tke_utf8_clean(tkc_buf *out, tinkc_str s, tinkc_error *err);

#endif
