/* token_text.c - one token as people read it. */
#include "cli/sample/token_text.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/text.h"

char *cli_piece(const tinkc_tokenizer *t, int32_t id)
{
    tinkc_bytes b = tinkc_tokenizer_bytes(t, id);
    char *raw = strndup(b.data ? (const char *)b.data : "", b.len);
    char *safe = raw ? cli_escape(raw) : NULL;
    free(raw);
    return safe;
}
