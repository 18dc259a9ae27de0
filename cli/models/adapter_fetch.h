/* adapter_fetch.h - a checkpoint's files in a folder of their own, for as long as a command needs them. */
#ifndef CLI_ADAPTER_FETCH_H
#define CLI_ADAPTER_FETCH_H

#include "cli/manage/checkpoint_files.h"

/* Downloads the checkpoint into a new folder beside `beside`; *folder is yours. 0, or an exit code after
 * reporting. */
int cli_fetch_adapter(cli_app *, cli_wanted_files *, const char *beside, char **folder);
/* Removes such a folder with all that is in it, following no links. NULL allowed. */
void cli_remove_folder(const char *folder);

#endif
