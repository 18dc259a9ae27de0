/* idempotency.h - what calls with an X-Idempotency-Key made, for ten minutes: create_session, copy_weights.
 *
 * Locks: svc->lock.
 */
#ifndef TKE_SERVICE_IDEMPOTENCY_H
#define TKE_SERVICE_IDEMPOTENCY_H

#include "service/core/service_types.h"

struct tke_idempotent {
    char *key;  /* of whom, for what */
    char *made; /* a session's id, a copy's path */
    int64_t at_ms;
};

void tke_idempotent_free(tke_service *, tke_idempotent *); /* NULL allowed */
/* What a call with this key made in the last ten minutes; NULL = nothing. */
const char *tke_known_key(tke_service *, const char *key);
void tke_remember_key(tke_call *, const char *key, const char *made);
/* The call's own key, for its owner and for `what`, in its arena; *key NULL: it has none. Needs no
 * lock. False: answered. */
enum { TKE_MAX_IDEMPOTENCY_KEY = 256 };
bool tke_take_key(tke_call *, const char *what, const char **key);

#endif
