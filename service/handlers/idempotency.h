/* idempotency.h - what calls with an X-Idempotency-Key made, for ten minutes: create_session, copy_weights.
 *
 * Locks: needs svc->lock, so that nothing comes between looking and making.
 */
#ifndef TKE_SERVICE_IDEMPOTENCY_H
#define TKE_SERVICE_IDEMPOTENCY_H

#include "service/core/service_types.h"

bool tke_idempotency_open(tke_service *, tinkc_error *err);
void tke_idempotency_close(tke_service *);
void tke_idempotency_expire(tke_service *, int64_t now_ms);
/* What a call with this key made in the last ten minutes; NULL = nothing. */
const char *tke_known_key(tke_service *, const char *key);
void tke_remember_key(tke_call *, const char *key, const char *made);
/* The call's own key, for its owner and for `what`, in its arena; *key NULL: it has none. Needs no
 * lock. False: answered. */
enum { TKE_MAX_IDEMPOTENCY_KEY = 256 };
bool tke_take_key(tke_call *, const char *what, const char **key);

#endif
