/* editor.h - a file in the user's editor. */
#ifndef CLI_EDITOR_H
#define CLI_EDITOR_H

#include <stdbool.h>

/* $VISUAL, $EDITOR or vi, as a command that may have options; waits for it. False if it did not end
 * well. */
bool cli_edit_file(const char *path);
/* Its name, for messages. */
const char *cli_editor(void);

#endif
