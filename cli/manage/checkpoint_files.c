/* checkpoint_files.c - the files of a checkpoint: from its archive, or as external weights.
 *
 * The hosted service moves from archives to external weights: files with an address each, which only
 * a loaded model can write. So a refused archive of a training checkpoint costs a new run there:
 * load, save, fetch, delete. That is announced before it begins, and tried only where the
 * service knows the checkpoint.
 */
#include "cli/manage/checkpoint_files.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/term.h"
#include "cli/output/text.h"

enum { EXPORT_LIFE_S = 3600 };

int32_t cli_path_kind(const char *path)
{
    static const char prefix[] = "tinker://";
    tinkc_path parsed;
    tinkc_error err = { 0 };
    if (tinkc_path_parse(path, &parsed, &err))
        return parsed.kind;
    if (strncmp(path, prefix, strlen(prefix)) != 0)
        return 0;
    const char *run = path + strlen(prefix), *slash = strchr(run, '/');
    bool two_parts = slash && slash > run && slash[1] && !strchr(slash + 1, '/');
    return two_parts ? TINKC_CHECKPOINT_SAMPLER : 0;
}

/* The service answered, and the answer is that there is no archive: not a matter of the network, of
 * the account or of this disk. */
static bool is_refusal(const tinkc_error *err)
{
    switch (err->http_status) {
    case 400:
    case 403:
    case 404:
    case 405:
    case 410:
    case 422:
    case 501:
        return true;
    default:
        return false;
    }
}

static tinkc_future *fetch(cli_app *app, const char *path, const tinkc_download_options *o,
                           const char *label, tinkc_error *err)
{
    tinkc_future *f = tinkc_checkpoint_download(app->client, path, o, err);
    if (cli_wait_bytes(app, f, label, err))
        return f;
    tinkc_future_free(f);
    return NULL;
}

/* Whether the checkpoint is there at all, for this account. */
static bool is_known(cli_app *app, const char *path)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_checkpoint_get(app->client, path, &err);
    bool known = cli_wait(app, f, "checkpoint", &err);
    tinkc_future_free(f);
    return known;
}

/* Loads the weights into a run of their own and saves them again as external ones; the path is yours. */
static char *save_external(cli_app *app, const char *path, tinkc_error *err)
{
    static const char *const metadata[] = { "created_by", "tinkc checkpoint download", NULL };
    tinkc_state_options from = { .path = path, .user_metadata = metadata };
    tinkc_external_options how = { .ttl_s = EXPORT_LIFE_S };
    tinkc_future *f = tinkc_trainer_open_from(app->client, &from, err);
    tinkc_trainer *trainer = NULL;
    char *saved = NULL;
    if (cli_wait(app, f, "loading the weights", err))
        trainer = tinkc_future_trainer(f, 0, err);
    tinkc_future_free(f);
    f = trainer ? tinkc_trainer_save_external(trainer, "download", &how, err) : NULL;
    if (cli_wait(app, f, "saving external weights", err))
        saved = strdup(tinkc_future_path(f, 0, err));
    tinkc_future_free(f);
    tinkc_trainer_free(trainer);
    return saved;
}

static void remove_export(cli_app *app, const char *path)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_checkpoint_delete(app->client, path, &err);
    if (!cli_wait_through(app, f, "deleting the temporary weights", &err))
        cli_note(app, "the temporary weights %s could not be deleted (%s); they expire in an hour",
                 path, err.message);
    tinkc_future_free(f);
}

/* The folder's name as the library makes it from the path; of the original, not of the export. */
static char *folder_name(const char *path)
{
    char *name = strdup(path + strlen("tinker://"));
    for (char *c = name; c && *c; c++)
        if (*c == '/')
            *c = '_';
    return name;
}

static tinkc_future *fetch_as_external(cli_app *app, const char *path,
                                       const tinkc_download_options *o, tinkc_error *err)
{
    char *saved = save_external(app, path, err);
    if (!saved)
        return NULL;
    tinkc_download_options renamed = *o;
    char *name = o->name ? NULL : folder_name(path);
    if (name)
        renamed.name = name;
    tinkc_future *f = fetch(app, saved, &renamed, "Downloading files", err);
    remove_export(app, saved);
    free(name);
    free(saved);
    return f;
}

/* The checkpoint to load for an export after the service refused the archive; NULL = none. */
static const char *loadable(cli_app *app, const cli_wanted_files *w, int32_t kind,
                            const tinkc_error *refused)
{
    const char *path = kind == TINKC_CHECKPOINT_TRAINING  ? w->path
                       : kind == TINKC_CHECKPOINT_SAMPLER ? w->training
                                                          : NULL;
    return path && is_refusal(refused) && is_known(app, path) ? path : NULL;
}

tinkc_future *cli_fetch_files(cli_app *app, cli_wanted_files *w, const tinkc_download_options *o,
                              tinkc_error *err)
{
    tinkc_error refused = { 0 };
    int32_t kind = cli_path_kind(w->path);
    w->external = kind == TINKC_CHECKPOINT_EXTERNAL;
    tinkc_future *f =
        fetch(app, w->path, o, w->external ? "Downloading files" : "Downloading archive", &refused);
    bool as_files = !o->keep_archive && !o->write && !o->fd;
    const char *path = !f && as_files ? loadable(app, w, kind, &refused) : NULL;
    if (path) {
        cli_note(app,
                 "the service gives no archive of %s (%s); saving %s as external weights: this "
                 "starts a run on its base model",
                 w->path, refused.message, path);
        w->external = true;
        return fetch_as_external(app, path, o, err);
    }
    if (!f && kind == TINKC_CHECKPOINT_SAMPLER && is_refusal(&refused) &&
        refused.http_status != 404)
        cli_note(app,
                 "this service may give out training checkpoints only (tinker://RUN/weights/NAME)");
    if (!f)
        *err = refused;
    return f;
}
