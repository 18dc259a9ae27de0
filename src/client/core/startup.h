/* startup.h - what a client does before and beside its work: settings, token, session, heartbeat.
 * */
#ifndef TKC_API_STARTUP_H
#define TKC_API_STARTUP_H

#include "client/core/client_priv.h"

tkc_boot *tkc_boot_new(tinkc_client *, tinkc_error *err);
void tkc_boot_free(tkc_boot *);
/* Ends timers and calls; those who wait get TINKC_E_CLOSED. Thread: I/O. */
void tkc_boot_stop(tkc_boot *);

/* Starts from what an earlier client knew: the service's settings as JSON, and for an imported
 * sampler the session to keep alive. Before the first use. */
bool tkc_boot_seed(tkc_boot *, tinkc_str config_json, int64_t refresh_interval_s,
                   const char *session_id, tinkc_error *err);

/* What a later client can start from, as a JSON object; with a sampler of this client also what
 * another process needs to continue with its session: secrets. Thread: I/O. */
bool tkc_boot_save(tinkc_client *, const tinkc_sampler *, tkc_buf *out, tinkc_error *err);

#endif
