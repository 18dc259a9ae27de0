/* handlers.h - one function for each endpoint: it decodes, checks and answers a call.
 *
 * The table in handlers.c says which serves what. A handler never waits: what takes long becomes a job,
 * goes to another thread, or is one of those that the table lets wait on the text threads. No locks held.
 */
#ifndef TKE_SERVICE_HANDLERS_H
#define TKE_SERVICE_HANDLERS_H

#include "service/core/service_types.h"
#include "service/handlers/handler_call.h"
#include "service/store/store.h"

/* handlers_hub.c: the paths of a hub, for tokenizers and configurations of base models. */
void tke_handle_hub(tke_call *);
void tke_handle_futures(tke_call *);
void tke_retrieve_future(tke_call *);
void tke_cancel_future(tke_call *);
/* If a refused body still tells its model and seq_id, marks that number as refused, so later
 * requests do not wait for it. Returns what to commit before the refusal; NULL = nothing. */
tke_txn *tke_handle_refused(tke_call *);
void tke_handle_skip(tke_call *);
void tke_handle_health(tke_call *);
void tke_handle_config(tke_call *);
void tke_handle_token(tke_call *);
void tke_handle_key(tke_call *);
void tke_handle_delete_key(tke_call *);
void tke_handle_dynamic_config(tke_call *);
void tke_handle_create_session(tke_call *);
void tke_handle_heartbeat(tke_call *);
void tke_handle_create_sampling_session(tke_call *);
void tke_handle_sampler(tke_call *);
void tke_handle_join(tke_call *);
void tke_handle_create_model(tke_call *);
void tke_handle_create_loss(tke_call *);
void tke_handle_get_info(tke_call *);
void tke_handle_unload(tke_call *);
void tke_handle_pass(tke_call *);
void tke_handle_optim(tke_call *);
void tke_handle_save(tke_call *);
void tke_handle_save_sampler(tke_call *);
void tke_handle_load(tke_call *);
void tke_handle_sample(tke_call *);
void tke_handle_capabilities(tke_call *);
void tke_handle_run(tke_call *);
void tke_handle_delete_run(tke_call *);
void tke_handle_runs(tke_call *);
void tke_handle_weights_info(tke_call *);
void tke_handle_run_checkpoints(tke_call *);
void tke_handle_checkpoints(tke_call *);
void tke_handle_checkpoint_change(tke_call *); /* delete, publish, unpublish, ttl */
void tke_handle_archive(tke_call *);
void tke_handle_external_urls(tke_call *);
void tke_handle_download(tke_call *, tinkc_str token);
void tke_handle_sessions(tke_call *);
void tke_handle_session(tke_call *);
void tke_handle_project(tke_call *);
void tke_handle_trace(tke_call *);
void tke_handle_finish(tke_call *);
void tke_handle_search(tke_call *);
void tke_handle_checkpoint_search(tke_call *);
void tke_handle_storage(tke_call *);
void tke_handle_save_external(tke_call *);
void tke_handle_copy_weights(tke_call *);
void tke_handle_upload_start(tke_call *);
void tke_handle_upload_file(tke_call *);   /* PUT TKE_UPLOADS "ID/FILE"; may wait */
void tke_handle_upload_finish(tke_call *); /* may wait */
void tke_handle_telemetry(tke_call *);
void tke_handle_audit(tke_call *);
void tke_handle_usage(tke_call *);

#endif
