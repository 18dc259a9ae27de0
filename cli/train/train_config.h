/* train_config.h - config.toml of a run: its settings in a form that people edit and --config reads. */
#ifndef CLI_TRAIN_CONFIG_H
#define CLI_TRAIN_CONFIG_H

#include "cli/main/app.h"

/* Takes the settings of --config FILE for options that were not given. 0, or an exit code. */
int cli_train_config_take(cli_app *);
/* Writes FOLDER/config.toml from what goes into config.json. 0, or an exit code. */
int cli_train_config_write(const cli_app *, const char *folder, const tkc_tree *config);

#endif
