/* auth_token.h - short-lived tokens: POST /auth/token exchanges a key for one, X-API-Key accepts
 * it.
 *
 * A token is a JWT signed with a secret of the store, so it survives a restart. It holds the owner,
 * the key it was exchanged for (claim jti: id and generation) and the expiry; it is accepted if the
 * signature is valid, it has not expired and the key still exists.
 */
#ifndef TKE_SERVICE_AUTH_TOKEN_H
#define TKE_SERVICE_AUTH_TOKEN_H

#include "base/buf.h"
#include "service/handlers/identity.h"
#include "service/core/service.h"

enum { TKE_TOKEN_LIFE_S = 24 * 3600 }; /* clients renew five minutes before the end */

typedef struct tke_token_secret {
    unsigned char bytes[32];
} tke_token_secret;

/* Reads it from the store, or makes one. Call before the store's writer has work. */
bool tke_token_secret_load(tke_token_secret *, tke_store *, const tinkc_clock *, tinkc_error *err);
/* Appends the token. */
bool tke_token_make(const tke_token_secret *, const tke_token_claims *, int64_t now_us,
                    tkc_buf *out, tinkc_error *err);
/* False: not signed by us, altered, or expired. */
bool tke_token_check(const tke_token_secret *, const char *token, int64_t now_us,
                     tke_token_claims *out);

/* The salt of this store; none if an older version made the store without one. */
bool tke_owner_salt_load(tke_owner_salt *, tke_store *, const tinkc_clock *, tinkc_error *err);

#endif
