/* hub_models.c - models by their names on a hub: in the cache, or pulled when the user agrees.
 *
 * Touches the hub's cache through tinkc/hub.h. Must not: connect to the service.
 */
#include "cli/models/hub_models.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/main/config_file.h"
#include "cli/models/model_folder.h"
#include "cli/models/models.h"
#include "cli/store/store_models.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

tinkc_hub *cli_hub_open_as(const cli_app *app, const char *token, tinkc_error *err)
{
    double seconds;
    const char *env = getenv("HF_TOKEN"), *other = getenv("HUGGING_FACE_HUB_TOKEN");
    const char *retry = cli_text(app, "retry-for");
    if (!retry)
        retry = cli_config_get(app, "retry_for", NULL);
    tinkc_hub_options o = { .offline = app->offline };
    o.token = token;
    if (!token && !(env && *env) && !(other && *other))
        o.token = cli_config_get(app, "hf_token", NULL);
    if (retry && cli_parse_duration(retry, &seconds)) {
        o.no_retries = seconds <= 0;
        o.retry_window_ms = cli_ms_of(seconds);
    }
    if (cli_find_option(app->command, "jobs", 4))
        o.jobs = (int32_t)cli_int(app, "jobs");
    return tinkc_hub_new(&o, err);
}

/* Hints of errors that name the service's key or address would mislead here. */
int cli_fail_hub_at(const cli_app *app, const char *file, int line, const tinkc_error *err)
{
    static const struct {
        int32_t code;
        const char *hint;
    } hints[] = {
        { TINKC_E_NO_CREDENTIAL,
          "make a token in the hub's settings; hf_token in the configuration keeps it" },
        { TINKC_E_AUTH, "the token: HF_TOKEN, or hf_token in the configuration" },
        { TINKC_E_CONNECTION, "check the network and HF_ENDPOINT: tinkc doctor" },
        { TINKC_E_BAD_RESPONSE, "is HF_ENDPOINT the address of a hub?" },
    };
    cli_problem p;
    if (cli_stop_signal())
        return cli_stop_exit();
    cli_problem_of(err, &p);
    p.file = file;
    p.line = line;
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (hints[i].code == err->code)
            (void)snprintf(p.hint, sizeof p.hint, "%s", hints[i].hint);
    return cli_report(app, &p);
}

tinkc_hub *cli_hub_open(const cli_app *app, tinkc_error *err)
{
    return cli_hub_open_as(app, NULL, err);
}

const char **cli_values(const cli_app *app, const char *name)
{
    size_t n = 0;
    while (cli_text_at(app, name, n))
        n++;
    const char **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = cli_text_at(app, name, i);
    return list;
}

void cli_hub_split(const char *text, char **name, char **revision)
{
    const char *at = strchr(text, '@');
    *name = at ? strndup(text, (size_t)(at - text)) : strdup(text);
    *revision = at && at[1] ? strdup(at + 1) : NULL;
}

bool cli_hub_show(const tinkc_hub_progress *p, void *user)
{
    cli_progress *bar = user;
    char text[200];
    if (p->waiting[0])
        (void)snprintf(text, sizeof text, "waiting for %s", p->waiting);
    else
        (void)snprintf(text, sizeof text, "%d/%d files  %.120s", (int)p->done_files,
                       (int)p->total_files, p->file);
    cli_progress_step(bar, p->done_bytes, p->total_bytes, text);
    return !cli_stop_signal();
}

/* ---- --timeout ---- */

static void *wait_for_deadline(void *user)
{
    cli_hub_limit *l = user;
    pthread_mutex_lock(&l->lock);
    while (!l->ended && cli_now_ms() < l->at_ms) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1; /* a clock that is set meanwhile costs a second at most */
        if (l->at_ms - cli_now_ms() < 1000) {
            until.tv_sec -= 1;
            until.tv_nsec += (l->at_ms - cli_now_ms() + 1) * 1000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
        }
        (void)pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    l->ran_out = !l->ended;
    pthread_mutex_unlock(&l->lock);
    if (l->ran_out)
        tinkc_hub_stop(l->hub);
    return NULL;
}

void cli_hub_limit_begin(cli_hub_limit *l, const cli_app *app, tinkc_hub *hub)
{
    *l = (cli_hub_limit){ .hub = hub, .at_ms = app->deadline_ms };
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    if (app->deadline_ms != INT64_MAX)
        l->started = pthread_create(&l->thread, NULL, wait_for_deadline, l) == 0;
}

bool cli_hub_limit_end(cli_hub_limit *l)
{
    pthread_mutex_lock(&l->lock);
    l->ended = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (l->started)
        pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    return l->ran_out;
}

tinkc_hub_snapshot *cli_hub_pull(cli_app *app, tinkc_hub *hub, tinkc_pull_options *o, int *bad)
{
    tinkc_error err = { 0 };
    cli_progress bar;
    cli_catch_signals();
    cli_progress_begin(&bar, app, o->dry_run ? "Asking the hub" : "Pulling", -1, true);
    o->progress = cli_hub_show;
    o->user = &bar;
    cli_hub_limit limit;
    cli_hub_limit_begin(&limit, app, hub);
    tinkc_hub_snapshot *s = tinkc_hub_pull(hub, o, &err);
    bool late = cli_hub_limit_end(&limit);
    cli_progress_end(&bar);
    *bad = 0;
    if (!s && late) {
        err = (tinkc_error){ 0 };
        cli_run_out(&err);
    }
    if (!s && cli_stop_signal()) {
        cli_note(app, "stopped; the same command continues where it stopped");
        *bad = cli_stop_exit();
    } else if (!s) {
        *bad = cli_fail_hub(app, &err);
    }
    return s;
}

bool cli_is_hub_name(const char *model)
{
    const char *slash = strchr(model, '/');
    return slash && slash != model && slash[1] && !strchr(slash + 1, '/') && model[0] != '.' &&
           model[0] != '~' && !strstr(model, "://") && access(model, F_OK) != 0;
}

/* What a pull would bring, so that the question says how much it is; and that it cannot be answered,
 * where the hub cannot be reached. */
static int offer(cli_app *app, tinkc_hub *hub, const char *model, const char *name,
                 const char *revision)
{
    int bad;
    char size[CLI_SHORT_TEXT], hint[400];
    tinkc_pull_options look = { .repo = name, .revision = revision, .dry_run = true };
    tinkc_hub_snapshot *s = cli_hub_pull(app, hub, &look, &bad);
    if (!s)
        return bad;
    int64_t bytes = 0;
    const tinkc_hub_file *f;
    for (size_t i = 0; (f = tinkc_hub_snapshot_at(s, i)); i++)
        bytes += f->was_cached ? 0 : f->size;
    tinkc_hub_snapshot_free(s);
    cli_format_size(bytes, size);
    if (!app->yes && (!app->stdin_tty || !app->stderr_tty)) {
        (void)snprintf(hint, sizeof hint, "tinkc pull %s, or add --yes", model);
        return cli_fail(app, "not_found", hint, "%s is not on this machine (%s on the hub)", model,
                        size);
    }
    char *question = cli_printf("%s is not on this machine. Pull it from %s (%s)?", model,
                                tinkc_hub_url(hub), size);
    int answer = cli_confirm(app, question ? question : "Pull the model?", "--yes");
    free(question);
    if (answer < 0)
        return -answer;
    return answer ? 0 : CLI_EXIT_DECLINED;
}

/* A name that is nearly a known one is not looked for on the hub. */
static int check_spelling(const cli_app *app, const char *name)
{
    char hint[200];
    const char *meant = cli_model_meant(name);
    if (!meant)
        return 0;
    (void)snprintf(hint, sizeof hint, "did you mean %s? (if not: tinkc pull %.80s)", meant, name);
    return cli_fail(app, "not_found", hint, "%s is not on this machine", name);
}

static char *find_or_pull(cli_app *app, tinkc_hub *hub, const char *model, int *bad)
{
    tinkc_error err = { 0 };
    char *name, *revision;
    cli_hub_split(model, &name, &revision);
    tinkc_hub_snapshot *s = tinkc_hub_find(hub, name, revision, TINKC_PULL_MODEL, &err);
    if (err.code == TINKC_E_NOT_FOUND && !app->offline) {
        tinkc_pull_options o = { .repo = name, .revision = revision };
        *bad = check_spelling(app, name);
        *bad = *bad ? *bad : offer(app, hub, model, name, revision);
        s = *bad ? NULL : cli_hub_pull(app, hub, &o, bad);
    } else if (err.code) {
        *bad = cli_fail_hub(app, &err);
    }
    char *folder = s ? strdup(tinkc_hub_snapshot_folder(s)) : NULL;
    tinkc_hub_snapshot_free(s);
    free(name);
    free(revision);
    return folder;
}

char *cli_hub_model(cli_app *app, const char *model, int *bad)
{
    tinkc_error err = { 0 };
    tinkc_hub *hub = cli_hub_open(app, &err);
    char *folder = hub ? find_or_pull(app, hub, model, bad) : NULL;
    if (err.code)
        *bad = cli_fail_hub(app, &err);
    tinkc_hub_free(hub);
    return folder;
}

/* The folder that the store knows under this name, if it is still there (tinkc model add). */
static char *remembered_folder(const cli_app *app, const char *name)
{
    const char *store = cli_store_folder(app);
    char *folder = store ? cli_store_models_get(store, name) : NULL;
    if (folder && access(folder, R_OK) == 0)
        return folder;
    free(folder);
    return NULL;
}

/* What was trained on packed weights is merged into the whole ones, which other programs have. */
static char *whole_base(cli_app *app, const char *name, int *bad)
{
    char *plain = cli_printf("%.*s", cli_plain_length(name), name);
    char *folder = plain ? cli_base_folder(app, plain, bad) : NULL;
    if (folder)
        cli_note(app, "trained on %s in %d bits; %s, as stored, is the base from here on", plain,
                 cli_base_bits(name), folder);
    free(plain);
    return folder;
}

char *cli_base_folder(cli_app *app, const char *name, int *bad)
{
    if (cli_base_bits(name))
        return whole_base(app, name, bad);
    if (strcmp(name, "nano") == 0 && cli_nano_folder())
        return strdup(cli_nano_folder());
    char *remembered = remembered_folder(app, name);
    if (remembered)
        return remembered;
    if (cli_is_hub_name(name))
        return cli_hub_model(app, name, bad);
    if (access(name, R_OK) == 0)
        return strdup(name);
    *bad = cli_fail(app, "not_found",
                    "if it has moved: tinkc model add NAME FOLDER; else name a folder or ORG/NAME",
                    "%s: no such model folder", name);
    return NULL;
}
