/* lineedit.h - one line from a person, with editing and history where libedit is there. */
#ifndef CLI_LINEEDIT_H
#define CLI_LINEEDIT_H

#include <stdbool.h>

/* Opens libedit on first need; history_file NULL = none is kept. */
void cli_edit_begin(const char *history_file);
/* Yours; NULL at the end of input, or after a signal (*interrupted is then set). */
char *cli_edit_line(const char *prompt, bool *interrupted);
void cli_edit_end(void);

#endif
