/* records.c - progress over pages. */
#include "records.h"

#include "text.h"

enum { FIRST_PAGE = 100 };

void cli_pager_begin(cli_pager *p, cli_app *app, int64_t limit, const char *what)
{
    *p = (cli_pager){ .app = app };
    if (limit)
        (void)snprintf(p->label, sizeof p->label, "Fetching %lld %s", (long long)limit, what);
    else
        (void)snprintf(p->label, sizeof p->label, "Fetching all %s", what);
    cli_progress_begin(&p->bar, app, p->label, -1, false);
}

bool cli_pager_go(cli_pager *p, size_t done, int64_t total, tinkc_error *err)
{
    if (cli_stop_signal())
        tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted");
    if (cli_now_ms() > p->app->deadline_ms)
        tinkc_error_set(err, TINKC_E_DEADLINE, "the time given with --timeout has run out");
    if (done >= FIRST_PAGE && done % FIRST_PAGE == 0)
        cli_progress_step(&p->bar, (int64_t)done, total, NULL);
    return err->code == TINKC_OK;
}

bool cli_pager_fetch(cli_pager *p, tinkc_future *page, tinkc_error *err)
{
    bool here = cli_wait(p->app, page, "listing", err);
    tinkc_future_free(page);
    return here;
}

void cli_pager_end(cli_pager *p)
{
    cli_progress_end(&p->bar);
}
