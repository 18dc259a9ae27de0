/* train_start.c - what a run takes over from the weights that it starts from: train_start.h.
 *
 * May touch: the service through the client. Must not: open a trainer.
 */
#include "cli/train/train_start.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* Text as an option takes it; NULL = not known. */
typedef struct start {
    const char *name; /* of the weights, or the folder of the run */
    const char *model;
    const char *rank, *mlp, *attn, *unembed;
} start;

/* Unlike cli_on_the_line, --no-NAME counts. */
static bool on_the_line(const cli_app *app, const char *option)
{
    const cli_value *v = cli_value_of(app, option);
    return v && v->source == CLI_FROM_LINE;
}

static int take_over(cli_app *app, const start *s, const char *option, const char *theirs,
                     const char *fact)
{
    bool flag = cli_find_option(app->command, option, strlen(option))->kind == CLI_FLAG;
    const char *ours = !flag ? cli_text(app, option) : cli_flag(app, option) ? "true" : "false";
    if (!theirs || strcmp(ours, theirs) == 0)
        return 0;
    if (!on_the_line(app, option))
        return cli_give_value(app, option, strdup(theirs), CLI_FROM_PROGRAM, "the weights");
    bool off = flag && !cli_flag(app, option);
    return cli_fail(app, "usage", "leave the option out, or train new weights",
                    "--%s%s%s%s: the adapter of %s %s", off ? "no-" : "", option, flag ? "" : " ",
                    flag ? "" : ours, s->name, fact);
}

static int settle(cli_app *app, const char *model, const start *s)
{
    char rank[CLI_SHORT_TEXT];
    const struct {
        const char *option, *theirs, *on, *off;
    } layers[] = { { "train-mlp", s->mlp, "adapts the MLPs", "does not adapt the MLPs" },
                   { "train-attn", s->attn, "adapts attention", "does not adapt attention" },
                   { "train-unembed", s->unembed, "adapts the output layer",
                     "does not adapt the output layer" } };
    if (s->model && strcmp(s->model, model) != 0)
        cli_warn(app, "%s was trained from %s: that model is trained, not %s", s->name, s->model,
                 model);
    (void)snprintf(rank, sizeof rank, "has rank %s", s->rank ? s->rank : "");
    int bad = take_over(app, s, "lora-rank", s->rank, rank);
    for (size_t i = 0; !bad && i < sizeof layers / sizeof *layers; i++)
        bad = take_over(app, s, layers[i].option, layers[i].theirs,
                        layers[i].theirs && strcmp(layers[i].theirs, "true") == 0 ? layers[i].on
                                                                                  : layers[i].off);
    return bad;
}

int cli_start_from(cli_app *app, const char *model, const char *path)
{
    tinkc_error err = { 0 };
    char rank[CLI_SHORT_TEXT];
    tinkc_future *f = tinkc_checkpoint_get(app->client, path, &err);
    const tinkc_weights *w = cli_wait(app, f, "reading about the weights", &err)
                                 ? tinkc_future_weights(f, 0, &err)
                                 : NULL;
    int bad = w ? 0 : cli_fail_error(app, &err, err.code == TINKC_E_PATH ? NULL : path);
    if (w && w->lora_rank) { /* other weights cannot be trained: opening them says so */
        (void)snprintf(rank, sizeof rank, "%d", w->lora_rank);
        bad = settle(app, model,
                     &(start){ .name = path,
                               .model = w->base_model,
                               .rank = rank,
                               .mlp = w->freeze & TINKC_FREEZE_MLP ? "false" : "true",
                               .attn = w->freeze & TINKC_FREEZE_ATTN ? "false" : "true",
                               .unembed = w->freeze & TINKC_FREEZE_UNEMBED ? "false" : "true" });
    }
    tinkc_future_free(f);
    return bad;
}

static const char *flag_of(const tkc_tree *settings, const char *name)
{
    const tkc_tree *v = tkc_tree_get(settings, name);
    return tkc_tree_is_bool(v) ? tkc_tree_is_true(v) ? "true" : "false" : NULL;
}

int cli_start_resumed(cli_app *app, const char *model, const char *folder, const tkc_tree *settings)
{
    char rank[CLI_SHORT_TEXT];
    const tkc_tree *known = tkc_tree_get(settings, "lora_rank");
    (void)snprintf(rank, sizeof rank, "%lld", (long long)tkc_tree_i64(known));
    return settle(app, model,
                  &(start){ .name = folder,
                            .model = tkc_tree_get_text(settings, "model_name"),
                            .rank = tkc_tree_is_i64(known) ? rank : NULL,
                            .mlp = flag_of(settings, "train_mlp"),
                            .attn = flag_of(settings, "train_attn"),
                            .unembed = flag_of(settings, "train_unembed") });
}
