/* serving.h - what commands that listen have in common: keys, log directories, stopping. */
#ifndef CLI_SERVING_H
#define CLI_SERVING_H

#include "cli/main/app.h"

/* Before the first thread is started: only cli_serving_run sees the signals that stop it. False lets
 * them through for as long as this thread does something that they may end. */
void cli_serving_block_signals(bool block);

/* The keys of --auth-token-file, one a line; NULL = not given, or *bad is an exit code after
 * reporting. A list; end it with cli_serving_free. */
char **cli_serving_keys(cli_app *, int *bad);
void cli_serving_free(char **list);

/* Before models are loaded: when --stop-fd ends, the server stops as on SIGTERM. 0, or an exit code
 * after reporting. */
int cli_serving_watch_stop(cli_app *);

/* Until a signal: the first stops it in good order, a second at once. */
int cli_serving_run(cli_app *, tinkc_server *);

/* Why the server could not be started, reported; an exit code. */
int cli_serving_failed(cli_app *, const tinkc_error *);

/* Writes the address to --ready-fd where it is given. */
void cli_serving_ready(const cli_app *, const char *url);

/* "cpu (avx512, 2 threads): asked for by name": what an engine computes on, and why. */
enum { CLI_DEVICE_TEXT = 512 };
bool cli_device_text(tinkc_engine *, char out[CLI_DEVICE_TEXT]);
/* The same from the status of an engine, which is JSON. */
bool cli_device_line(const char *status, char out[CLI_DEVICE_TEXT]);

#endif
