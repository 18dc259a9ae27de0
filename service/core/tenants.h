/* tenants.h - owners: what they may use (quotas), and what they have the service keep in memory.
 *
 * A tenant lives as long as the service.
 *
 * Locks: its own, inside which no other is taken; what jobs in flight hold is atomic, so that they can give it
 * back without. Call with svc->lock or without it, unless a function says otherwise.
 */
#ifndef TKE_SERVICE_TENANTS_H
#define TKE_SERVICE_TENANTS_H

#include "base/json_write.h"
#include "service/core/service_types.h"
#include "service/store/store.h"

bool tke_tenants_open(tke_service *, tinkc_error *err);
void tke_tenants_close(tke_service *);
/* Reads what was used today, at startup before any thread. */
bool tke_tenants_load(tke_service *, tinkc_error *err);

/* Its limits; 0 = none. */
tke_quota tke_quota_of(tke_service *, const char *owner);
/* Counts a request; false: too many, and answered. No locks held. */
bool tke_quota_request(tke_call *);
/* False: err (TOO_LARGE) says which quota is used up. What jobs in flight hold counts as used, so
 * that requests which arrive together do not each find it unused; *soon (NULL allowed) is true if only
 * that is in the way. A job (NULL = none) then holds `most` until tke_quota_settle. own: what earlier
 * jobs of the same request hold, which is not in its way. No locks held. */
bool tke_quota_tokens(tke_service *, const char *owner, tke_job *, int64_t most, int64_t own,
                      bool *soon, tinkc_error *err);
/* The same for bytes of storage. Takes svc->lock. */
bool tke_quota_storage(tke_service *, const char *owner, tke_job *, int64_t most, tinkc_error *err);
/* For what is not a job: room for exactly these bytes, held until tke_quota_release. Locks: needs
 * svc->lock. *tenant NULL: nothing is held. */
bool tke_quota_hold(tke_service *, const char *owner, int64_t bytes, tke_tenant **tenant);
void tke_quota_release(tke_tenant *, int64_t bytes); /* NULL allowed; any thread */
/* Its work is done, or will not be: what it used is counted elsewhere by now. Any thread. */
void tke_quota_settle(tke_job *);
void tke_tenant_used(tke_service *, const char *owner, int64_t tokens);
/* Locks: needs svc->lock. */
int64_t tke_tenant_storage(tke_service *, const char *owner);
/* What clients have the service keep in memory: sessions, samplers that they ask for, metadata and notes
 * of sessions, runs and checkpoints, custom losses, links to archives. Counted against three limits: of one note (TKE_MAX_NOTE), of the
 * owner, of all. *kept is what is counted for an object; `give` subtracts it when the object is
 * freed. Returns 0, or the status of a refusal: 400, 403, 503; err says which limit. */
enum { TKE_MAX_NOTE = 32 << 10, TKE_MAX_PROJECT = 256 };
/* About what an object takes with its id and its place in a map. */
enum { TKE_KEPT_SESSION = 1024, TKE_KEPT_SAMPLER = 512 };
int32_t tke_kept_take(tke_service *, const char *owner, size_t bytes, size_t *kept,
                      tinkc_error *err);
/* The same for a text of a client, which is a note. NULL allowed. */
int32_t tke_kept_note(tke_service *, const char *owner, const char *text, size_t *kept,
                      tinkc_error *err);
/* Without a limit: what a start reads was accepted before. */
void tke_kept_add(tke_service *, const char *owner, size_t bytes, size_t *kept);
void tke_kept_give(tke_service *, const char *owner, size_t *kept);
/* Of all owners. */
size_t tke_kept_total(tke_service *);
/* Answers with that status, after the transaction (NULL allowed: none). */
void tke_refuse_kept(tke_call *, tke_txn *, int32_t status, const tinkc_error *why);
/* Locks: needs svc->lock. */
void tke_quota_write(tke_service *, const char *owner, tkc_jsonw *);

#endif
