/* uploads.h - adapters whose files are sent to a link, without a key.
 *
 * Locks: its own, for which uploads there are and which are busy; an upload belongs to the thread that has made it
 * busy. Hold none when you call.
 */
#ifndef TKE_SERVICE_UPLOADS_H
#define TKE_SERVICE_UPLOADS_H

#include "service/core/service_types.h"

bool tke_uploads_open(tke_service *, tinkc_error *err);
void tke_uploads_close(tke_service *); /* leaves the folders */
#define TKE_UPLOADS "/api/v1/uploads/"
/* May the files of "ID/..." still be sent? */
bool tke_upload_is_open(tke_service *, tinkc_str rest);
/* Ends those that are over, or all of an owner (NULL = none). */
void tke_uploads_expire(tke_service *, int64_t now_ms, const char *owner);

#endif
