/* tokenizer_fetch.h - tokenizers by model name: registered, cached on disk, or downloaded from a hub.
 *
 * One set belongs to one client and is made with it, because it reads the environment.
 */
#ifndef TKC_API_TOKENIZER_FETCH_H
#define TKC_API_TOKENIZER_FETCH_H

#include "tinkc/client.h"
#include "tinkc/tokenizer.h"

typedef struct tkc_tokenizers tkc_tokenizers;

/* Of the client's options it takes what transfers need: proxy and ca_file. */
tkc_tokenizers *tkc_tokenizers_new(tinkc_client *, const tinkc_client_options *, tinkc_error *err);
/* Once the I/O thread has ended. NULL allowed. */
void tkc_tokenizers_free(tkc_tokenizers *);

#endif
