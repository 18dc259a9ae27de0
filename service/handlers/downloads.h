/* downloads.h - links to archives of checkpoints, which may be fetched without a key while they live.
 *
 * Locks: svc->lock.
 */
#ifndef TKE_SERVICE_DOWNLOADS_H
#define TKE_SERVICE_DOWNLOADS_H

#include "service/core/service_types.h"

struct tke_archive {
    char *token;
    char *owner;                /* who asked; access is checked again at download */
    tke_checkpoint *checkpoint; /* never freed */
    int64_t expires_ms;
    size_t kept; /* of what its owner keeps in memory */
};

enum { TKE_MAX_DOWNLOADS = 64 };
void tke_archive_free(tke_service *, tke_archive *);

#endif
