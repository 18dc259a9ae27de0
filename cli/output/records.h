/* records.h - what run, checkpoint and other lists share about the service's records. */
#ifndef CLI_RECORDS_H
#define CLI_RECORDS_H

#include "cli/output/out.h"
#include "cli/output/term.h"

/* Keys whose values are times, at any depth. */
extern const char *const cli_time_keys[];

/* The members of `sent` in the documented order (absent ones null), then what else was sent; times
 * normalised. */
tkc_tree *cli_in_order(const cli_app *, tkc_arena *, const tkc_tree *sent, const char *const *keys,
                       size_t n);
tkc_tree *cli_checkpoint_json(const cli_app *, tkc_arena *, const tkc_tree *sent);

/* Progress over the pages of a list, shown only when a second page is needed. */
typedef struct cli_pager {
    cli_app *app;
    cli_progress bar;
    char label[64];
    tkc_arena arena; /* of the item that comes next */
    tkc_tree *items; /* what was collected and is not printed yet */
    int64_t limit, found;
    size_t seen; /* before the filters */
    int bad;     /* an exit code: a key or printing was wrong, and was reported */
} cli_pager;
/* limit 0 = all of them; `what` names them: "training runs". */
void cli_pager_begin(cli_pager *, cli_app *, int64_t limit, const char *what);
/* False when there are enough, or the command was stopped: err then says so. */
bool cli_pager_go(cli_pager *, int64_t total, tinkc_error *err);
/* Takes an item, made in the pager's arena: a copy is kept, or it is printed at once (JSON lines), if it
 * passes the filters. */
void cli_pager_add(cli_pager *, const tkc_tree *item);
/* Waits for a page (and frees its future) while showing why; true if it is here. */
bool cli_pager_fetch(cli_pager *, tinkc_future *page, tinkc_error *err);
void cli_pager_end(cli_pager *);

#endif
