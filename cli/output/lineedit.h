/* lineedit.h - one line from a person, with editing and history where libedit is there. */
#ifndef CLI_LINEEDIT_H
#define CLI_LINEEDIT_H

enum { CLI_EDIT_NOT, CLI_EDIT_CLEARED, CLI_EDIT_EMPTY }; /* what a signal met: a line, or none */

/* Opens libedit on first need; history_file NULL = none is kept. */
void cli_edit_begin(const char *history_file);
/* Yours; NULL at the end of input, or after a signal: *interrupted then says what it met, and the
 * signal is for the caller to look at and to forget. */
char *cli_edit_line(const char *prompt, int *interrupted);
void cli_edit_end(void);

#endif
