/* train_start.h - what a run takes over from the weights that it starts from.
 *
 * Rank and layers of an adapter are fixed when it is made. An option on the command line that says
 * otherwise is refused; the others take the weights' values, so that the plan and the settings that are
 * kept with the run are true.
 */
#ifndef CLI_TRAIN_START_H
#define CLI_TRAIN_START_H

#include "cli/main/app.h"

/* The weights at `path`; the app is connected. 0, or an exit code after reporting. */
int cli_start_from(cli_app *, const char *model, const char *path);
/* The run in `folder`, which is continued, by its settings; NULL = they are not known. The same. */
int cli_start_resumed(cli_app *, const char *model, const char *folder, const tkc_tree *settings);

#endif
