/* run_source.h - the newest state of a run on disk, an image or a saved checkpoint, and what it makes superfluous. */
#ifndef TKE_SERVICE_RUN_SOURCE_H
#define TKE_SERVICE_RUN_SOURCE_H

#include "service/core/service_types.h"

/* Locks: needs svc->lock. A request changed the run's state. */
void tke_run_changed(tke_service *, tke_run *, int64_t seq);
/* Locks: needs svc->lock. The folder holds the state before next_seq; false: a newer one is known, or
 * the run is unloaded. */
bool tke_source_take(tke_service *, tke_run *, const char *folder, int64_t next_seq);
/* Locks: needs svc->lock. Is it an image, and not a checkpoint that a client saved? */
bool tke_source_is_image(const tke_run *);
/* Removes the images that are neither the source of the run nor being written. Any thread, no locks
 * held. */
void tke_images_remove(tke_service *, tke_run *);
/* The folder, a checkpoint, is about to be deleted (move) or replaced: if it is what the run continues
 * from, it becomes an image, too. True: the folder is gone. Thread: files. */
bool tke_source_keep(tke_service *, tke_run *, const char *folder, bool move, tinkc_error *err);
/* Removes images, journal and results of an unloaded run. Any thread. */
void tke_run_remove_files(tke_service *, const tke_run *);

#endif
