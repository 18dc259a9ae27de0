/* token_text.h - one token as people read it. */
#ifndef CLI_TOKEN_TEXT_H
#define CLI_TOKEN_TEXT_H

#include <tinkc/tinkc.h>

/* The bytes of a token with everything unprintable shown escaped. Yours; never NULL but when memory
 * is short. */
char *cli_piece(const tinkc_tokenizer *, int32_t id);

#endif
