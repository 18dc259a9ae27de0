/* downloads.h - links to archives of checkpoints, which may be fetched without a key while they live.
 *
 * Locks: its own, inside which only that of the tenants is taken.
 */
#ifndef TKE_SERVICE_DOWNLOADS_H
#define TKE_SERVICE_DOWNLOADS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/map.h"
#include "base/pool.h"
#include "service/core/service_types.h"

enum { TKE_MAX_DOWNLOADS = 64 };

typedef struct tke_link {
    char *token;
    char *owner;                /* who asked; access is checked again at download */
    tke_checkpoint *checkpoint; /* never freed */
    int64_t expires_ms;
    size_t kept; /* of what its owner keeps in memory */
} tke_link;

struct tke_downloads {
    pthread_mutex_t lock;
    tkc_map links;     /* by token */
    tkc_pool *threads; /* one for each, so that slow readers block nothing else */
    _Atomic size_t n_running;
};

bool tke_downloads_open(tke_service *, tinkc_error *err);
void tke_downloads_stop(tke_service *); /* those that run end first */
void tke_downloads_close(tke_service *);
/* Ends links that are over, or all of an owner (NULL = none). */
void tke_links_expire(tke_service *, int64_t now_ms, const char *owner);

#endif
