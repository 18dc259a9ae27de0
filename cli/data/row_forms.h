/* row_forms.h - rows of training files in the forms that are in use, as conversations.
 *
 * One table for `data check`, `data preview`, `data convert` and `train`: each form has a name, the
 * members that it reads, and an example line. Members that a form does not read stay in the row, and
 * the check names those that are not known to be harmless.
 */
#ifndef CLI_ROW_FORMS_H
#define CLI_ROW_FORMS_H

#include "cli/data/json_scan.h"
#include "cli/data/row_turns.h"

typedef struct cli_row_form cli_row_form;

/* The i-th form; false past the end. The first that fits a row is the one. */
bool cli_row_form_at(size_t i, const char **name, const char **example);
const cli_row_form *cli_row_form_named(const char *name); /* NULL = there is none */

/* A row of this form (NULL = of any) as {"messages": [...]}, with "tools" where it has some, and the
 * members that the form does not read. NULL = of none, or it must not be learnt (why). */
tkc_tree *cli_row_conversation(tkc_arena *, const tkc_tree *row, const cli_row_form *form,
                               cli_row_fault *why);

/* Two answers to one request, as two conversations. */
typedef struct cli_row_sides {
    tkc_tree *chosen, *rejected; /* NULL = it is not such a row (why), or a tie */
    bool tie;
} cli_row_sides;
cli_row_sides cli_row_preference(tkc_arena *, const tkc_tree *row, cli_row_fault *why);
/* One answer that is marked good or bad. NULL = it is not such a row (why). */
tkc_tree *cli_row_marked(tkc_arena *, const tkc_tree *row, bool *good, cli_row_fault *why);

/* A line as {"messages": [...]}: itself where it has them, or no form fits; else what it means, in
 * *owned, which is yours. */
cli_span cli_row_line(cli_span line, char **owned, cli_row_fault *why);

#endif
