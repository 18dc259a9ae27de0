/* auth_token.h - short-lived tokens for keys: what POST /auth/token gives out and X-API-Key brings back.
 *
 * A token is a JWT signed with a secret of the store, so it outlives a restart. It says whose it is,
 * which key it was exchanged for (claim jti: id and generation) and until when; it is believed if the
 * signature is ours and the key is still one.
 */
#ifndef TKE_SERVICE_AUTH_TOKEN_H
#define TKE_SERVICE_AUTH_TOKEN_H

#include "base/buf.h"
#include "service/identity.h"
#include "service/service.h"

enum { TKE_TOKEN_LIFE_S = 24 * 3600 }; /* clients renew five minutes before the end */

typedef struct tke_token_secret {
    unsigned char bytes[32];
} tke_token_secret;

/* Reads it from the store, or makes one. Before the store's writer has anything to do. */
bool tke_token_secret_load(tke_token_secret *, tke_store *, const tinkc_clock *, tinkc_error *err);
/* Appends the token. */
bool tke_token_make(const tke_token_secret *, const tke_token_claims *, int64_t now_us,
                    tkc_buf *out, tinkc_error *err);
/* False: not ours, changed, or over. */
bool tke_token_check(const tke_token_secret *, const char *token, int64_t now_us,
                     tke_token_claims *out);

/* The salt of this store; none in a store that has sessions and no salt. */
bool tke_owner_salt_load(tke_owner_salt *, tke_store *, const tinkc_clock *, tinkc_error *err);

#endif
