/* cmd_serve.c - `tinkc serve`: the engine behind the Tinker HTTP API. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/models/hub_models.h"
#include "cli/models/model_folder.h"
#include "cli/serve/serving.h"
#include "cli/store/logged_runs.h"
#include "cli/store/store_host.h"
#include "cli/store/store_link.h"
#include "cli/store/store_models.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* Where other commands share the store, they continue with another process when this one ends:
 * nothing that was accepted may be lost then. */
static int32_t durability(const cli_app *app)
{
    const char *name = cli_text(app, "durability");
    if (!name)
        name = cli_store_shared(app) ? "journal" : "snapshot";
    return strcmp(name, "checkpoint") == 0 ? TINKC_DURABILITY_CHECKPOINT
           : strcmp(name, "journal") == 0  ? TINKC_DURABILITY_JOURNAL
                                           : TINKC_DURABILITY_SNAPSHOT;
}

enum { MAX_SETTINGS = 64 };

typedef struct settings {
    char *texts[MAX_SETTINGS];               /* "NAME\0VALUE" */
    const char *pairs[2 * MAX_SETTINGS + 3]; /* name, value, ..., NULL; --chat-apis is the last */
    size_t n;
} settings;

/* Options that are settings under a name of their own. */
/* --openai is its older name. */
static bool serves_chat(const cli_app *app)
{
    return cli_flag(app, "chat-apis") || cli_flag(app, "openai");
}

static const char *const named[][2] = {
    { "max-context", "max_context" },
    { "max-batch-tokens", "max_batch_tokens" },
    { "max-adapters", "max_models" },
};

/* Takes "NAME=VALUE", which is cut at `equals`. */
static void add_setting(settings *s, char *text, size_t equals)
{
    text[equals] = '\0';
    s->texts[s->n] = text;
    s->pairs[2 * s->n] = text;
    s->pairs[2 * s->n + 1] = text + equals + 1;
    s->n++;
}

static int read_settings(cli_app *app, settings *s)
{
    const char *text;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        char *made;
        if (!cli_given(app, named[i][0]))
            continue;
        if (asprintf(&made, "%s=%lld", named[i][1], (long long)cli_int(app, named[i][0])) < 0)
            return cli_fail(app, "internal", NULL, "out of memory");
        add_setting(s, made, strlen(named[i][1]));
    }
    for (size_t i = 0; (text = cli_text_at(app, "set", i)); i++) {
        const char *equals = strchr(text, '=');
        if (!equals || equals == text || s->n == MAX_SETTINGS)
            return cli_fail(app, "usage", "for example: --set jwt_auth=true",
                            s->n == MAX_SETTINGS ? "too many --set: %s"
                                                 : "--set wants NAME=VALUE, not '%s'",
                            text);
        char *copy = strdup(text);
        if (!copy)
            return cli_fail(app, "internal", NULL, "out of memory");
        add_setting(s, copy, (size_t)(equals - text));
    }
    if (serves_chat(app)) {
        s->pairs[2 * s->n] = "openai";
        s->pairs[2 * s->n + 1] = "true";
    }
    return 0;
}

static const char *store_of(const cli_app *app)
{
    return cli_given(app, "store") ? cli_text(app, "store") : cli_store_folder(app);
}

/* Says who has the store, once. */
static void say_who(const cli_app *app, const tkc_tree *status, bool *said)
{
    const char *who = tkc_tree_text(tkc_tree_at(tkc_tree_get(status, "users"), 0));
    if (!*said)
        cli_note(app, "the store is in use (%s); waiting until that ends",
                 who ? who : "another command");
    *said = true;
}

/* Commands that use the store through each other end sooner or later; this one waits for them, and
 * says so. A host that ends answers no more and has the store until all is written. A signal ends
 * the wait. */
static tinkc_engine *wait_for_store(cli_app *app, const tinkc_engine_options *o, tinkc_error *err)
{
    enum { ENDING_MS = 60000 };
    bool said = false;
    int64_t until = 0;
    for (;;) {
        *err = (tinkc_error){ 0 };
        tinkc_engine *engine = tinkc_engine_new(o, err);
        if (engine || err->cause != TINKC_E_CONFLICT || !cli_store_shared(app))
            return engine;
        tkc_arena arena = { 0 };
        const tkc_tree *status = cli_store_link_status(&arena, o->store);
        if (status) {
            say_who(app, status, &said);
            until = cli_now_ms() + ENDING_MS;
        }
        tkc_arena_free(&arena);
        if (cli_now_ms() >= until)
            return NULL;
        cli_serving_block_signals(false);
        (void)poll(NULL, 0, 200);
        cli_serving_block_signals(true);
    }
}

static int open_engine(cli_app *app)
{
    tinkc_error err = { 0 };
    settings set = { .n = 0 };
    int bad = read_settings(app, &set);
    tinkc_engine_options o = {
        .store = store_of(app),
        .device = cli_text(app, "device"),
        .dtype = cli_text(app, "dtype"),
        .threads = (int32_t)cli_int(app, "threads"),
        .memory_bytes = cli_int(app, "memory"),
        .session_timeout_ms = cli_ms_of((double)cli_int(app, "session-timeout")),
        .durability = durability(app),
        .max_lora_rank = (int32_t)cli_int(app, "max-rank"),
        .settings = set.pairs,
        .log = cli_log_line,
        .log_user = app,
        .log_level = cli_log_level(app, TINKC_LOG_WARN),
    };
    app->engine = bad ? NULL : wait_for_store(app, &o, &err);
    if (app->engine && o.store)
        cli_store_models_restore(app->engine, o.store);
    for (size_t i = 0; i < set.n; i++)
        free(set.texts[i]);
    return bad ? bad : app->engine ? 0 : cli_fail_error(app, &err, NULL);
}

/* A model of a hub, pulled if need be: signals end that, and only the server waits for them itself.
 * */
static char *get_model(cli_app *app, const char *model, int *bad)
{
    cli_serving_block_signals(false);
    char *folder = cli_hub_model(app, model, bad);
    cli_serving_block_signals(true);
    return folder;
}

/* ---- models ---- */

typedef struct served {
    char *name;
    char *folder;
} served;
typedef struct served_list {
    served *at;
    size_t n;
} served_list;

static void free_models(served_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->at[i].name);
        free(list->at[i].folder);
    }
    free(list->at);
}

/* The last part of a path. Yours. */
static char *own_name(const char *folder)
{
    size_t end = strlen(folder), begin;
    while (end > 1 && folder[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && folder[begin - 1] != '/';)
        begin--;
    return strndup(folder + begin, end - begin);
}

/* "NAME=FOLDER", a folder under its own name, or a name on a hub; "nano" is the shipped one. */
static int name_model(cli_app *app, const char *text, served *m)
{
    int bad = 0;
    const char *equals = strchr(text, '=');
    m->name = equals ? strndup(text, (size_t)(equals - text)) : NULL;
    const char *folder = equals ? equals + 1 : text;
    if (cli_is_hub_name(folder)) {
        m->name = m->name ? m->name : strdup(folder);
        m->folder = get_model(app, folder, &bad);
    } else if (!equals && strcmp(text, "nano") == 0 && cli_nano_folder()) {
        m->name = strdup("nano");
        m->folder = strdup(cli_nano_folder());
    } else {
        m->name = m->name ? m->name : own_name(folder);
        m->folder = strdup(folder);
    }
    return bad;
}

/* --base-bits is for all that are served; FOLDER#4bit says it for one. */
static int take_bits(cli_app *app, served *m)
{
    const char *bits = cli_text(app, "base-bits");
    bits = bits ? bits : cli_config_get(app, "base_bits", NULL);
    if (!bits || cli_base_bits(m->folder))
        return 0;
    char *packed = cli_printf("%s#%sbit", m->folder, bits);
    free(m->folder);
    m->folder = packed;
    return packed ? 0 : cli_fail(app, "internal", NULL, "out of memory");
}

/* A signal ends the reading of large weights; later ones are the server's. */
static int load_model(cli_app *app, const served *m)
{
    int bad = cli_flag(app, "force") ? 0 : cli_model_fits(app, m->folder);
    if (bad)
        return bad;
    cli_serving_block_signals(false);
    bad = cli_load_weights(app, m->folder);
    cli_serving_block_signals(true);
    cli_leave_on_signals();
    return bad;
}

/* Before the store is opened: other commands can use it while models are pulled and read. */
static int take_model(cli_app *app, served_list *list, const char *text)
{
    served *m = &list->at[list->n++];
    int bad = name_model(app, text, m);
    bad = bad ? bad : take_bits(app, m);
    return bad ? bad : load_model(app, m);
}

static int take_models(cli_app *app, served_list *list)
{
    int bad = 0;
    size_t n = 0;
    const char *usual = cli_config_get(app, "model", NULL);
    while (cli_text_at(app, "model", n))
        n++;
    list->at = calloc(n + app->n_args + 1, sizeof *list->at);
    if (!list->at)
        return cli_fail(app, "internal", NULL, "out of memory");
    for (size_t i = 0; !bad && i < n; i++)
        bad = take_model(app, list, cli_text_at(app, "model", i));
    for (size_t i = 0; !bad && i < app->n_args; i++)
        bad = take_model(app, list, app->args[i]);
    if (bad || n + app->n_args)
        return bad;
    if (!usual && !cli_nano_folder())
        return cli_fail(app, "usage", "tinkc serve FOLDER", "no model was named");
    return take_model(app, list, usual ? usual : "nano");
}

static int add_models(cli_app *app, const served_list *list)
{
    tinkc_error err = { 0 };
    for (size_t i = 0; i < list->n; i++)
        if (!tinkc_engine_add_model(app->engine, list->at[i].name, list->at[i].folder, &err))
            return cli_fail_error(app, &err, NULL);
    return 0;
}

static int open_models(cli_app *app, served_list *list)
{
    int bad = take_models(app, list);
    bad = bad ? bad : open_engine(app);
    return bad ? bad : add_models(app, list);
}

/* Those that were named, and no others that the store remembers. A list; yours. */
static const char **names_of(const served_list *models)
{
    const char **list = calloc(models->n + 1, sizeof *list);
    for (size_t i = 0; list && i < models->n; i++)
        list[i] = models->at[i].name;
    return list;
}

/* ---- serving ---- */

static void log_access(int32_t level, const char *line, void *user)
{
    (void)level;
    fprintf((FILE *)user, "%s\n", line);
}

/* Other commands on this machine use the store through this process; NULL = they cannot. */
static cli_store_host *share_store(cli_app *app)
{
    tinkc_error err = { 0 };
    const char *store = store_of(app);
    cli_store_host *host =
        store && cli_store_shared(app)
            ? cli_store_host_start(app->engine, store, cli_text(app, "device"), &err)
            : NULL;
    if (err.code)
        cli_warn(app, "other commands cannot use this store meanwhile: %s", err.message);
    return host;
}

static void announce(cli_app *app, const char *url, bool keys)
{
    char device[CLI_DEVICE_TEXT];
    if (cli_device_text(app->engine, device))
        cli_note(app, "device: %s", device);
    cli_note(app, "serving; to use it:");
    cli_note(app, "  export TINKER_BASE_URL=%s", url);
    if (!keys)
        cli_note(app, "  export TINKER_API_KEY=tml-local");
    if (serves_chat(app) && !cli_given(app, "unix")) {
        cli_note(app, "for OpenAI's and Anthropic's clients:");
        cli_note(app, "  export OPENAI_BASE_URL=%s/v1%s", url,
                 keys ? "" : " OPENAI_API_KEY=tml-local");
        cli_note(app, "  export ANTHROPIC_BASE_URL=%s/anthropic/api%s", url,
                 keys ? "" : " ANTHROPIC_API_KEY=tml-local");
    }
    if (cli_flag(app, "page") && !cli_given(app, "unix"))
        cli_note(app, "to look at it: %s/", url);
    cli_serving_ready(app, url);
}

/* --log-dir; else the usual folder and those of runs that the store knows, where everybody who can reach
 * the server may see them. A list; yours. */
static const char **log_folders(const cli_app *app, const tkc_tree *known, bool keys)
{
    size_t n = 0, n_known = keys ? 0 : tkc_tree_length(known);
    while (cli_text_at(app, "log-dir", n))
        n++;
    const char **list = calloc(n + n_known + 2, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = cli_text_at(app, "log-dir", i);
    if (list && n == 0 && !keys)
        list[0] = "tinkc-runs";
    for (size_t i = 0; list && n == 0 && i < n_known; i++)
        list[1 + i] = tkc_tree_get_text(tkc_tree_at(known, i), "dir");
    return list;
}

/* --allow-host. A list; yours. */
static const char **allowed_hosts(const cli_app *app)
{
    size_t n = 0;
    while (cli_text_at(app, "allow-host", n))
        n++;
    const char **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = cli_text_at(app, "allow-host", i);
    return list;
}

int cli_serve(cli_app *app)
{
    tinkc_error err = { 0 };
    const char *of_tcp = cli_on_the_line(app, "host")   ? "host"
                         : cli_on_the_line(app, "port") ? "port"
                                                        : NULL;
    if (cli_given(app, "unix") && of_tcp)
        return cli_fail(app, "usage", NULL, "--%s cannot be combined with --unix", of_tcp);
    cli_serving_block_signals(true);
    int bad = cli_serving_watch_stop(app);
    served_list models = { 0 };
    bad = bad ? bad : open_models(app, &models);
    const char **offered = names_of(&models);
    char **keys = cli_serving_keys(app, &bad);
    tkc_tree *known = cli_logged_runs(cli_arena(app), store_of(app));
    const char **logs = log_folders(app, known, keys != NULL);
    const char *log = cli_text(app, "log");
    FILE *access = !log ? NULL : strcmp(log, "-") == 0 ? stderr : fopen(log, "ae");
    if (!bad && log && !access)
        bad = cli_fail(app, "local_io", NULL, "%s: %s", log, tkc_errno_text(errno));
    if (access)
        setvbuf(access, NULL, _IOLBF, 0);
    if (!bad && cli_int(app, "port") > 65535)
        bad = cli_fail(app, "usage", NULL, "--port must be at most 65535");
    if (!bad) {
        const char **hosts = allowed_hosts(app);
        tinkc_serve_options o = { .host = cli_text(app, "host"),
                                  .unix_socket = cli_text(app, "unix"),
                                  .api_keys = (const char *const *)keys,
                                  .access_log = access ? log_access : NULL,
                                  .access_log_user = access,
                                  .port = (int32_t)cli_int(app, "port"),
                                  .metrics = cli_flag(app, "metrics"),
                                  .page = cli_flag(app, "page"),
                                  .log_dirs = logs,
                                  .allow_hosts = hosts,
                                  .models = offered };
        tinkc_server *server = tinkc_engine_serve(app->engine, &o, &err);
        free(hosts);
        if (server) {
            cli_store_host *host = share_store(app);
            announce(app, tinkc_server_url(server), keys != NULL);
            bad = cli_serving_run(app, server);
            cli_store_host_stop(host, 0);
        } else {
            bad = cli_serving_failed(app, &err);
        }
        tinkc_server_free(server);
    }
    cli_serving_free(keys);
    free(logs);
    free(offered);
    free_models(&models);
    if (access && access != stderr)
        fclose(access);
    return bad;
}
