/* sessions.h - what a client opens first: a session owns samplers and custom losses, and makes runs.
 *
 * A session that never trained is forgotten, with its samplers, after a long time without requests.
 * That happens under the lock, so code that uses a sampler outside it pins the session first.
 *
 * Locks: fields and functions need svc->lock, unless they say otherwise.
 */
#ifndef TKE_SERVICE_SESSIONS_H
#define TKE_SERVICE_SESSIONS_H

#include <stdatomic.h>

#include "service/core/service_types.h"
#include "service/store/store.h"

struct tke_session {
    char *id, *owner;
    char *user_metadata; /* JSON; NULL = none */
    char *project_id;
    char *display_name;             /* NULL = none */
    _Atomic(const char *) finished; /* static: how its client finished it; NULL = active */
    char *finish_detail;
    int64_t created_us;
    int64_t seen_ms;
    tke_custom_loss *losses;
    size_t n_losses, loss_bytes;
    size_t kept;         /* see tke_kept_take */
    size_t n_runs;       /* ever made; a session with runs is never forgotten */
    _Atomic size_t pins; /* raised under svc->lock only */
    bool expired;
    bool forgotten; /* is being removed from the maps */
};

tke_session *tke_find_session(tke_service *, const char *id);
void tke_session_touch(tke_service *, tke_session *);
/* Housekeeper; takes svc->lock. Forgets sessions that never trained and have had no requests for
 * too long, or are too many. */
void tke_sessions_forget(tke_service *, int64_t now_ms);
tke_session *tke_session_add(tke_service *, const char *id, const char *owner, tinkc_error *err);
/* Adds the row of a new session. */
void tke_session_store(tke_txn *, const tke_session *, const char *tags, const char *sdk_version);
/* Refuses a request for a session with 404, 403 or 410. */
void tke_refuse_session(tke_call *, int32_t status, const char *id, const char *finished);
/* True: the session is finished, and the call was answered. `finished` NULL = active. */
bool tke_session_over(tke_call *, const char *id, const char *finished);
/* Static: the same text, or NULL if it is not a way to finish. */
const char *tke_finish_reason(const char *type);

#endif
