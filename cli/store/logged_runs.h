/* logged_runs.h - runs.jsonl of a store: which folder each run wrote its log to, and so its name.
 *
 * A run is called as the last part of its folder. The newest run of a name has it. Only an aid: what is
 * missing or damaged costs a name, never a run. */
#ifndef CLI_LOGGED_RUNS_H
#define CLI_LOGGED_RUNS_H

#include <stdbool.h>

#include "base/json_tree.h"

/* Notes that the run logs to this folder, which exists. One write: any number of commands may do so at once. */
bool cli_logged_runs_add(const char *store, const char *folder, const char *run_id);
/* Those whose folders still exist, the newest first: {"name", "dir", "run"}. */
tkc_tree *cli_logged_runs(tkc_arena *, const char *store);
/* The folder of the newest run of this name; yours, NULL = there is none. */
char *cli_logged_run_folder(const char *store, const char *name);
/* The name of a run by its id; borrowed from the list, NULL = not known. */
const char *cli_logged_run_name(const tkc_tree *runs, const char *run_id);
/* The id of the newest run of this name; the same. */
const char *cli_logged_run_id(const tkc_tree *runs, const char *name);

#endif
