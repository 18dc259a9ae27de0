/* folder_info.h - `tinkc model info FOLDER`. */
#ifndef CLI_FOLDER_INFO_H
#define CLI_FOLDER_INFO_H

#include "cli/main/app.h"

/* Shows what the folder, or GGUF file, holds. The exit code. */
int cli_folder_info(const cli_app *, const char *folder);

#endif
