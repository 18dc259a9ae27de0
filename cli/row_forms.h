/* row_forms.h - rows of training files in the forms that are in use, as conversations.
 *
 * One table for `data check`, `data preview`, `data convert` and `train`: each form has a name, the
 * members that tell it, and an example line.
 */
#ifndef CLI_ROW_FORMS_H
#define CLI_ROW_FORMS_H

#include <jansson.h>

#include "json_scan.h"

typedef struct cli_row_form {
    const char *name;                      /* as --from takes it */
    const char *example;                   /* one line */
    json_t *(*convert)(const json_t *row); /* messages, yours; NULL = not of this form */
} cli_row_form;

/* The i-th form; NULL past the end. The first that fits a row is the one. */
const cli_row_form *cli_row_form_at(size_t i);
const cli_row_form *cli_row_form_named(const char *name);
/* The messages of a row of any form; yours, NULL = of none. *form (may be NULL) says which. */
json_t *cli_row_messages(const json_t *row, const cli_row_form **form);

/* A line as {"messages": [...]}: itself where it has them, or no form fits (the check says why); else
 * what it means, in *owned, which is yours. */
cli_span cli_row_line(cli_span line, char **owned);

#endif
