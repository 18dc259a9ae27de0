/* open_with.h - opening a tokenizer without reading the environment: for the client, which reads it
 * once. */
#ifndef TKC_TOKENIZER_OPEN_WITH_H
#define TKC_TOKENIZER_OPEN_WITH_H

#include "base/arena.h"
#include "tinkc/tokenizer.h"

/* The folder for compiled forms that cannot be stored beside their source: in $XDG_CACHE_HOME, else
 * in ~/.cache; "" = neither is set. NULL if memory is exhausted. */
const char *tkc_user_cache(tkc_arena *, tinkc_error *err);

/* tinkc_tokenizer_open with that folder as an argument. */
tinkc_tokenizer *tkc_tokenizer_open_with(const char *path, const tinkc_tokenizer_options *,
                                         const char *user_cache, tinkc_error *err);

#endif
