/* jwt.h - the claims of a token. Nothing is verified here: the service does that. */
#ifndef TKC_CODEC_JWT_H
#define TKC_CODEC_JWT_H

#include "base/arena.h"

typedef struct tkc_jwt {
    int64_t exp_us;  /* TINKC_NO_TIME = none or unreadable */
    const char *sub; /* NULL = none, as for the others; in the arena */
    const char *email;
    const char *iss;
    const char *org_id;
    const char *jti;
} tkc_jwt;

/* Errors: TOKEN (not three parts, not base64url, not a JSON object). Messages never
 * contain the token. */
bool tkc_jwt_read(const char *token, tkc_arena *, tkc_jwt *out, tinkc_error *err);

#endif
