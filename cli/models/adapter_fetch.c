/* adapter_fetch.c - a checkpoint's files in a folder of their own, for as long as a command needs them. */
#include "cli/models/adapter_fetch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output/text.h"

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    (void)remove(path);
    return 0;
}

void cli_remove_folder(const char *folder)
{
    if (folder)
        (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* What a download that was not finished has left; it is of use to nobody under this name. */
static void remove_partial(const char *dir, const char *name)
{
    char *folder = cli_printf("%s/%s.partial", dir ? dir : ".", name);
    char *state = cli_printf("%s.state", folder ? folder : "");
    cli_remove_folder(folder);
    if (state)
        (void)unlink(state);
    free(folder);
    free(state);
}

int cli_fetch_adapter(cli_app *app, cli_wanted_files *w, const char *beside, char **folder)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    const char *slash = strrchr(beside, '/');
    char *dir = slash ? strndup(beside, (size_t)(slash - beside) + 1) : NULL;
    char *name = cli_printf(".%s.adapter-%d", slash ? slash + 1 : beside, (int)getpid());
    tinkc_download_options o = { .dir = dir, .name = name, .replace = true, .no_resume = true };
    tinkc_future *f = cli_fetch_files(app, w, &o, &err);
    if (f)
        *folder = strdup(tinkc_download_target(tinkc_future_download(f, 0, &err)));
    else
        bad = cli_stop_signal() ? cli_stop_exit() : cli_fail_error(app, &err, w->path);
    tinkc_future_free(f);
    if (bad) {
        cli_disconnect(app); /* its thread may still be writing */
        remove_partial(dir, name);
    }
    free(name);
    free(dir);
    return bad;
}
