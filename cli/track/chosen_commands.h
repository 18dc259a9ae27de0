/* chosen_commands.h - which commands of a log directory this user has chosen.
 *
 * A run's config.json names them (--hook, --reward-cmd), and `train resume` takes its settings from there.
 * A folder may have come with a repository: what only the user may choose is taken from it if this
 * program noted, in the user's state folder, that it started a run there with just that.
 */
#ifndef CLI_CHOSEN_COMMANDS_H
#define CLI_CHOSEN_COMMANDS_H

#include "cli/main/app.h"

/* Notes what only the user may choose among the options of a run that starts. Warns if it cannot. */
void cli_choices_note(const cli_app *, const char *folder, const tkc_tree *config);
/* Whether an option of the folder's config.json may be taken. 0, or an exit code after reporting. */
int cli_choices_check(const cli_app *, const char *folder, const cli_option *,
                      const tkc_tree *value);

#endif
