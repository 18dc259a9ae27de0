/* recent_ids.h - runs and checkpoints that were seen lately, kept in the cache folder for completion.
 *
 * One file for each address. Losing it costs nothing; no failure here is ever reported.
 */
#ifndef CLI_RECENT_IDS_H
#define CLI_RECENT_IDS_H

#include "cli/main/app.h"

/* Remembers what a list showed: `key` names the member of each item that is the id ("" = the item
 * itself is). `kind`: "run", "checkpoint", "session". */
void cli_ids_seen(const cli_app *, const char *kind, const tkc_tree *items, const char *key);
/* Remembers one. */
void cli_ids_add(const cli_app *, const char *kind, const char *id);
/* What is known, newest first: an array of texts. */
tkc_tree *cli_ids_known(const cli_app *, const char *kind);
/* The same after a short look at the service, if what is known is old. Uses the network for at most
 * 300 ms, and never the engine in this process: its store may be wanted by somebody else. */
tkc_tree *cli_ids_fresh(cli_app *, const char *kind);

#endif
