/* store_host.h - one process has a store open and lets others use it through two sockets in it.
 *
 * engine.sock speaks the service's HTTP protocol. control.sock takes lines: each command that uses the
 * store keeps a connection to it open for as long as it runs, and the host ends when the last one
 * is gone. The folder's mode keeps other users out.
 */
#ifndef CLI_STORE_HOST_H
#define CLI_STORE_HOST_H

#include "cli/main/app.h"

#define CLI_STORE_PROTOCOL "tinkc-store 1"

typedef struct cli_store_host cli_store_host;

/* Serves an engine's store on a thread of its own, until cli_store_host_stop. Yours; NULL with err
 * set. The engine must outlive it. */
cli_store_host *cli_store_host_start(tinkc_engine *, const char *store, const char *device,
                                     tinkc_error *err);
/* Ends it; requests under way have grace_ms. NULL allowed. */
void cli_store_host_stop(cli_store_host *, int64_t grace_ms);

/* `tinkc __store-host`: opens the store, serves it while anybody uses it, and ends. */
int cli_store_host_main(cli_app *);

#endif
