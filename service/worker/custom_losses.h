/* custom_losses.h - losses that a client sent as a graph; each lives as long as its session.
 *
 * Locks: needs svc->lock for all, except at startup.
 */
#ifndef TKE_SERVICE_CUSTOM_LOSSES_H
#define TKE_SERVICE_CUSTOM_LOSSES_H

#include "service/core/service_types.h"
#include "service/handlers/identity.h"
#include "train/loss_graph.h"

struct tke_custom_loss { /* made by create_custom_loss; lives as long as its session */
    struct tke_custom_loss *next;
    char *id;
    char *request_id; /* of the future that answered */
    int64_t seq;
    tke_hash128 hash;
    size_t bytes; /* of the request */
    size_t kept;  /* see tke_kept_take */
    tke_graph *graph;
};

/* The graph of a session's custom loss, which lives as long as the session; NULL = none. */
const tke_graph *tke_loss_find(const tke_session *, const char *id);
void tke_losses_free(tke_service *, tke_session *);
/* Reads them, at startup after the sessions. */
bool tke_losses_load(tke_service *, tinkc_error *err);

#endif
