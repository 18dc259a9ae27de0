/* worker_files.h - jobs that read and write tensor files: create, save, load, unload, images.
 *
 * Thread: the worker, no locks held, unless a function says otherwise. Files are written on svc->files.
 */
#ifndef TKE_SERVICE_WORKER_FILES_H
#define TKE_SERVICE_WORKER_FILES_H

#include "service/core/service_types.h"

void tke_work_create(tke_service *, tke_job *);
void tke_work_save(tke_service *, tke_job *);
void tke_work_load(tke_service *, tke_job *);
void tke_work_unload(tke_service *, tke_job *);
/* Loads the run's adapter into memory. False with err: impossible; false without: no room yet.
 * from_scratch: ignores the stored state. */
bool tke_work_wake(tke_service *, tke_run *, bool from_scratch, tinkc_error *err);
/* Copies the run's state and queues it for writing. */
void tke_work_image(tke_service *, tke_run *);
void tke_work_sleep(tke_service *, tke_run *);
/* Any thread, no locks held. Brackets work on the file thread: until it ends, shutdown keeps that
 * thread and the store's writer alive. Work that leads to more work must begin the next one before
 * it ends, or shutdown could pass between the two. */
void tke_file_work_begin(tke_service *);
void tke_file_work_end(tke_service *);
/* Until all of it has ended. */
void tke_file_work_wait(tke_service *);
/* Locks: needs svc->lock. Is any image being written? */
bool tke_image_under_way(const tke_service *);

#endif
