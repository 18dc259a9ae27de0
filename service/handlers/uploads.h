/* uploads.h - adapters whose files are sent to a link, without a key.
 *
 * Locks: svc->lock; a thread that has set `busy` may use the folder without it.
 */
#ifndef TKE_SERVICE_UPLOADS_H
#define TKE_SERVICE_UPLOADS_H

#include "service/core/service_types.h"

enum { TKE_UPLOAD_FILES = 2 };

struct tke_upload {
    char *id, *owner;
    char *base_model, *project_id; /* project_id may be NULL */
    char *folder;                  /* of its files, below tmp/; NULL = removed, it is finished */
    char *path;                    /* of the checkpoint that it became; NULL = none yet */
    int32_t rank;
    uint32_t train; /* TKE_TRAIN_*: what lora_config allows */
    int64_t expires_ms;
    bool busy;                      /* a thread uses its folder */
    tke_tenant *tenant;             /* who gets `held` back; NULL = nothing is held */
    int64_t held[TKE_UPLOAD_FILES]; /* bytes of the owner's storage, for each file */
};

void tke_upload_free(tke_service *, tke_upload *); /* leaves the folder */
#define TKE_UPLOADS "/api/v1/uploads/"
/* May the files of "ID/..." still be sent? No locks held. */
bool tke_upload_is_open(tke_service *, tinkc_str rest);
/* Ends those that are over, or all of an owner (NULL = none). Locks: needs svc->lock. */
void tke_uploads_expire(tke_service *, int64_t now_ms, const char *owner);

#endif
