/* records.c - progress over pages. */
#include "cli/output/records.h"

#include "cli/output/list.h"
#include "cli/output/text.h"

enum { FIRST_PAGE = 100 };

void cli_pager_begin(cli_pager *p, cli_app *app, int64_t limit, const char *what)
{
    *p = (cli_pager){ .app = app, .items = cli_array(app), .limit = limit };
    if (limit)
        (void)snprintf(p->label, sizeof p->label, "Fetching %lld %s", (long long)limit, what);
    else
        (void)snprintf(p->label, sizeof p->label, "Fetching all %s", what);
    cli_progress_begin(&p->bar, app, p->label, -1, false);
}

void cli_pager_add(cli_pager *p, const tkc_tree *item)
{
    if (p->seen++ == 0)
        p->bad = cli_check_keys(p->app, item);
    if (!p->bad && cli_passes(p->app, item)) {
        p->found++;
        if (!cli_print_early(p->app, item, &p->bad))
            tkc_tree_add(p->items, tkc_tree_clone(cli_arena(p->app), item));
    }
    tkc_arena_reset(&p->arena);
}

bool cli_pager_go(cli_pager *p, int64_t total, tinkc_error *err)
{
    if (p->bad || (p->limit && p->found >= p->limit))
        return false;
    if (cli_stop_signal())
        tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted");
    if (cli_now_ms() > p->app->deadline_ms)
        cli_run_out(err);
    if (p->found >= FIRST_PAGE && p->found % FIRST_PAGE == 0)
        cli_progress_step(&p->bar, p->found, total, NULL);
    return err->code == TINKC_OK;
}

bool cli_pager_fetch(cli_pager *p, tinkc_future *page, tinkc_error *err)
{
    fflush(stdout); /* lines that are printed already are seen while the next page comes */
    bool here = cli_wait(p->app, page, "listing", err);
    tinkc_future_free(page);
    return here;
}

void cli_pager_end(cli_pager *p)
{
    tkc_arena_free(&p->arena);
    cli_progress_end(&p->bar);
}
