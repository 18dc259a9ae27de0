/* checkpoints.h - what the checkpoint commands share. */
#ifndef CLI_CHECKPOINTS_H
#define CLI_CHECKPOINTS_H

#include "cli/main/app.h"

/* Whether it passes --type, --before and --after. */
bool cli_checkpoint_wanted(const cli_app *, const tinkc_checkpoint *);
/* Up to `limit` (0 = all) that pass, as JSON in the documented order. Yours. */
json_t *cli_collect_checkpoints(cli_app *, const tinkc_list_options *, int64_t limit,
                                int64_t *total, tinkc_error *err);

#endif
