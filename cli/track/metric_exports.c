/* metric_exports.c - the rows of a run, to TensorBoard's and Weights & Biases' files. */
#include "cli/track/metric_exports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/track/tfevents.h"
#include "cli/track/wandb_run.h"

struct cli_exports {
    const cli_app *app;
    cli_tfevents board;
    cli_wandb wandb;
    bool has_board, has_wandb;
};

static void give_up(const cli_exports *e, bool *has, const char *option)
{
    cli_warn(e->app, "%s: %s; continuing without it", option, tkc_errno_text(errno));
    *has = false;
}

/* What the run has measured so far. */
static void write_again(cli_exports *e, const char *folder)
{
    char *path = cli_printf("%s/metrics.jsonl", folder), *line = NULL;
    FILE *f = path ? fopen(path, "re") : NULL;
    size_t cap = 0;
    tkc_arena arena = { 0 };
    while (f && e->has_wandb && getline(&line, &cap, f) > 0) {
        const tkc_tree *row = tkc_tree_read(&arena, tkc_str(line), 0);
        if (tkc_tree_is_object(row) && !cli_wandb_row(&e->wandb, row))
            give_up(e, &e->has_wandb, "--wandb");
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    if (f)
        fclose(f);
    free(line);
    free(path);
}

static bool open_board(cli_exports *e, const char *folder, size_t step)
{
    e->has_board = true;
    return cli_tfevents_open(&e->board, folder, step);
}

static bool open_wandb(cli_exports *e, const char *folder, const tkc_tree *config)
{
    const char *project = cli_text(e->app, "wandb-project"), *slash = strrchr(folder, '/');
    e->has_wandb = true;
    if (!cli_wandb_open(&e->wandb, folder, project && *project ? project : "tinkc",
                        slash && slash[1] ? slash + 1 : folder, config))
        return false;
    write_again(e, folder);
    return true;
}

int cli_exports_open(const cli_app *app, const char *folder, const tkc_tree *config, size_t step,
                     cli_exports **out)
{
    bool board = cli_flag(app, "tensorboard"),
         wandb = cli_flag(app, "wandb") || cli_given(app, "wandb-project");
    *out = NULL;
    if (!board && !wandb)
        return 0;
    cli_exports *e = calloc(1, sizeof *e);
    if (!e)
        return cli_fail(app, "internal", NULL, "out of memory");
    e->app = app;
    if ((board && !open_board(e, folder, step)) || (wandb && !open_wandb(e, folder, config))) {
        int bad = cli_fail(app, "local_io", NULL, "%s/%s: %s", folder,
                           e->has_wandb ? "wandb" : "tensorboard", tkc_errno_text(errno));
        cli_exports_close(e);
        return bad;
    }
    *out = e;
    return 0;
}

void cli_exports_remove(const char *folder)
{
    cli_tfevents_remove(folder);
    cli_wandb_remove(folder);
}

void cli_exports_row(cli_exports *e, const tkc_tree *row)
{
    if (e && e->has_board && !cli_tfevents_row(&e->board, row))
        give_up(e, &e->has_board, "--tensorboard");
    if (e && e->has_wandb && !cli_wandb_row(&e->wandb, row))
        give_up(e, &e->has_wandb, "--wandb");
}

void cli_exports_close(cli_exports *e)
{
    if (!e)
        return;
    cli_tfevents_close(&e->board);
    if (!cli_wandb_close(&e->wandb) && e->has_wandb)
        give_up(e, &e->has_wandb, "--wandb");
    free(e);
}
