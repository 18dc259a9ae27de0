/* list.h - what all lists share: items as JSON, filters, order, titles, choosing pages. */
#ifndef CLI_LIST_H
#define CLI_LIST_H

#include "cli/output/out.h"

/* The list options as given: --limit, --offset, --project, --access-scope. */
tinkc_list_options cli_list_options(const cli_app *);
/* A record's own JSON; an empty object if it cannot be read. */
tkc_tree *cli_record_json(tkc_arena *, tinkc_str json);
/* Whether every --filter can be read. 0, or an exit code after reporting. */
int cli_check_filters(const cli_app *);
/* Whether items such as this one have what --sort and --filter name. 0, or an exit code after
 * reporting. */
int cli_check_keys(const cli_app *, const tkc_tree *item);
/* Whether an item passes every --filter. */
bool cli_passes(const cli_app *, const tkc_tree *item);
/* Applies --sort and --reverse in place. */
void cli_arrange(const cli_app *, tkc_tree *items);
/* "No checkpoints found", "1 checkpoint", "20 checkpoints (5 more not shown, ...)", with
 * `suffix` (" for run R") behind the noun. Yours. */
char *cli_list_title(const char *singular, int64_t shown, int64_t total, const char *suffix);

/* Paths from the arguments; "-" reads them from stdin, one a line. A list (NULL at its end); yours
 * with all its texts. NULL after reporting in *bad. */
char **cli_paths(cli_app *, int *bad);
void cli_free_paths(char **);

#endif
