/* checkpoints.h - what the checkpoint commands share. */
#ifndef CLI_CHECKPOINTS_H
#define CLI_CHECKPOINTS_H

#include "cli/main/app.h"

/* Whether it passes --type, --before and --after. */
bool cli_checkpoint_wanted(const cli_app *, const tinkc_checkpoint *);
/* Up to `limit` (0 = all) that pass, as JSON in the documented order. */
tkc_tree *cli_collect_checkpoints(cli_app *, const tinkc_list_options *, int64_t limit,
                                  int64_t *total, tinkc_error *err);
/* What its log directory is called; yours, NULL = not known on this machine. */
char *cli_run_name(const cli_app *, const char *run_id);
/* The id of the newest run of this name, or what was given; yours. */
char *cli_run_id(const cli_app *, const char *given);

#endif
