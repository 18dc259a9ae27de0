/* store_link.h - a command's way into the local store: the process that has it open, started if there
 * is none.
 *
 * While a command runs it holds a connection to that process (store_host.h); the process ends with
 * the last command, so nothing is left running. Switched off by share_store = false or
 * TINKC_SHARE_STORE=0: then the command opens the store itself, and one at a time can.
 */
#ifndef CLI_STORE_LINK_H
#define CLI_STORE_LINK_H

#include "cli/main/app.h"

/* Why commands do not share the store; NULL if they do. */
const char *cli_store_not_shared(const cli_app *);
bool cli_store_shared(const cli_app *);

/* Connects, and starts the host if need be; waits visibly while a store is busy. 0, or an exit code
 * after reporting. */
int cli_store_link_open(cli_app *, const char *store);
/* Again, where the host has gone (killed, or a `tinkc serve` that ended); nothing if it is there. */
void cli_store_link_keep(cli_app *);
/* Makes a model known to the engine and remembers its folder. False with err set. */
bool cli_store_link_model(cli_app *, const char *name, const char *folder, tinkc_error *err);
/* Takes a PEFT adapter into the store: the path of its weights, for training or for sampling; yours.
 * NULL with err set. */
char *cli_store_link_adapter(cli_app *, const char *base, const char *folder, bool training,
                             tinkc_error *err);
/* Leaves; the last command waits until the store is written. Does nothing without a link. */
void cli_store_link_close(cli_app *);

/* What the host says about itself, without starting one: its JSON, or NULL = none runs. */
tkc_tree *cli_store_link_status(tkc_arena *, const char *store);

#endif
