/* adapter_forms.c - an adapter or a model in another form, with a bar; a signal ends it. Must not: need the service or a hub. */
#include "cli/models/adapter_forms.h"

#include "cli/output/term.h"

static bool show(int64_t done, int64_t total, void *bar)
{
    cli_progress_step(bar, done, total, NULL);
    return !cli_stop_signal();
}

int cli_make_form(const cli_app *app, const tinkc_adapter_options *o, const char *label)
{
    tinkc_error err = { 0 };
    cli_progress bar;
    cli_catch_signals(); /* what is half done is removed */
    cli_progress_begin(&bar, app, label, -1, true);
    bool ok = tinkc_adapter_export(o, show, &bar, &err);
    cli_progress_end(&bar);
    return ok ? 0 : cli_stop_signal() ? cli_stop_exit() : cli_fail_error(app, &err, NULL);
}
