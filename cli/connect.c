/* connect.c - what a command stands on: the service, or the engine in this process.
 *
 * With --local, base URL "local:", or neither key nor address configured, an engine is opened on
 * the user's data folder with the shipped model; everything above it is the same either way.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "config_file.h"
#include "files.h"
#include "hub_models.h"
#include "term.h"
#include "text.h"

#ifndef TINKC_DATADIR
#define TINKC_DATADIR "/usr/local/share/tinkc"
#endif

/* ---- the shipped model ---- */

static bool has_file(const char *folder, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

/* Beside the program (a build tree), else where it was installed. */
const char *cli_nano_folder(void)
{
    static char found[4096];
    const char *given = getenv("TINKC_NANO");
    if (given && *given)
        return has_file(given, "config.json") ? given : NULL;
    if (found[0])
        return found;
    char self[3800];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = '\0';
        char *slash = strrchr(self, '/');
        if (slash)
            *slash = '\0';
        static const char *const places[] = { "../models/nano", "../../models/nano",
                                              "../share/tinkc/models/nano" };
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            (void)snprintf(found, sizeof found, "%s/%s", self, places[i]);
            if (has_file(found, "config.json"))
                return found;
        }
    }
    (void)snprintf(found, sizeof found, "%s/models/nano", TINKC_DATADIR);
    if (has_file(found, "config.json"))
        return found;
    found[0] = '\0';
    return NULL;
}

const char *cli_store_folder(const cli_app *app)
{
    static char *folder;
    (void)app;
    if (!folder)
        folder = cli_data_path("store");
    return folder && cli_make_folder(folder, 0700) ? folder : NULL;
}

/* ---- settings ---- */

static const char *setting(const cli_app *app, const char *option, const char *key)
{
    const char *text = cli_text(app, option);
    return text && *text ? text : cli_config_get(app, key, NULL);
}

const char *cli_model(const cli_app *app)
{
    const char *model = cli_text(app, "model");
    if (!model)
        model = cli_config_get(app, "model", NULL);
    return model ? model : cli_wants_local(app) ? "nano" : NULL;
}

const char *cli_renderer(const cli_app *app, const char *model)
{
    const char *given = cli_text(app, "renderer");
    given = given ? given : cli_config_get(app, "renderer", NULL);
    return given ? given : tinkc_chat_renderer(model);
}

static char *read_key_file(cli_app *app, const char *path, int *bad)
{
    size_t len;
    char *text = cli_read_all(app, path, &len, bad);
    if (text)
        text[strcspn(text, "\r\n")] = '\0';
    return text;
}

static bool has_credential(const cli_app *app)
{
    const char *key = getenv("TINKER_API_KEY"), *cmd = getenv("TINKER_CREDENTIAL_CMD");
    return (key && *key) || (cmd && *cmd) || cli_given(app, "api-key-file") ||
           cli_config_get(app, "api_key", NULL) || cli_config_get(app, "credential_cmd", NULL);
}

bool cli_wants_local(const cli_app *app)
{
    const char *url = setting(app, "base-url", "base_url");
    if (cli_flag(app, "local") || (url && strcmp(url, "local:") == 0))
        return true;
    return !url && !has_credential(app);
}

/* Said once, so that nobody trains on the wrong machine unawares. */
static void say_local(const cli_app *app)
{
    const char *url = setting(app, "base-url", "base_url");
    if (!cli_flag(app, "local") && !url)
        cli_note(app, "no key is configured: using the engine inside this program (tinkc auth "
                      "login to use the service)");
}

/* ---- the engine ---- */

static bool add_nano(tinkc_engine *engine, tinkc_error *err)
{
    const char *nano = cli_nano_folder();
    return nano ? tinkc_engine_add_model(engine, "nano", nano, err) : true;
}

/* Only these need the weights of the model that is named; others may run beside it. */
static bool needs_weights(const cli_app *app)
{
    static const char *const nouns[] = { "sample", "chat", "logprobs", "train" };
    for (size_t i = 0; i < sizeof nouns / sizeof *nouns; i++)
        if (strcmp(app->command->noun, nouns[i]) == 0)
            return true;
    return false;
}

/* A model named as a folder is made known to the engine under its own name; one named as on a hub
 * lies in `pulled`. */
static bool add_named(cli_app *app, tinkc_engine *engine, const char *pulled, tinkc_error *err)
{
    const char *model = cli_model(app);
    if (model && pulled)
        return tinkc_engine_add_model(engine, model, pulled, err);
    if (!model || !has_file(model, "config.json") || !has_file(model, "tokenizer.json"))
        return true;
    return tinkc_engine_add_model(engine, model, model, err);
}

char *cli_serving_file(const char *store)
{
    return cli_printf("%s/serving", store);
}

/* The address of a `tinkc serve` that has the store open; yours, NULL = it is somebody else. */
static char *served_at(const char *store)
{
    char line[512] = "", *path = cli_serving_file(store);
    FILE *f = path ? fopen(path, "re") : NULL;
    bool ok = f && fgets(line, sizeof line, f);
    if (f)
        fclose(f);
    free(path);
    line[strcspn(line, "\n")] = '\0';
    return ok && strncmp(line, "http://", 7) == 0 ? strdup(line) : NULL;
}

/* What an earlier server left when it was killed: the process that has the store open may say so. */
static void forget_server(const char *store)
{
    char *path = store ? cli_serving_file(store) : NULL;
    if (path)
        (void)unlink(path);
    free(path);
}

/* *served is set instead where a server of ours has the store; yours. `pulled` as in add_named. */
static int open_store(cli_app *app, const char *pulled, char **served)
{
    tinkc_error err = { 0 };
    const char *store = cli_store_folder(app);
    if (!store)
        cli_warn(app, "no folder for the store can be made: nothing will be kept");
    app->engine = tinkc_engine_new(
        &(tinkc_engine_options){ .store = store, .device = cli_text(app, "device") }, &err);
    if (app->engine)
        forget_server(store);
    if (err.code == TINKC_E_STORE && store && (*served = served_at(store)))
        return 0;
    if (err.code == TINKC_E_STORE && err.cause == TINKC_E_CONFLICT)
        return cli_fail(
            app, "local_io",
            "wait until it ends; or let one tinkc serve have it, and all others use that", "%s",
            err.message);
    if (app->engine && add_nano(app->engine, &err))
        add_named(app, app->engine, pulled, &err);
    return err.code ? cli_fail_error(app, &err, "local engine") : 0;
}

/* Pulling comes first: it may take long, and others need the store meanwhile. */
static int open_engine(cli_app *app, char **served)
{
    int bad = 0;
    const char *model = cli_model(app);
    char *pulled = NULL;
    if (model && needs_weights(app) && cli_is_hub_name(model))
        pulled = cli_hub_model(app, model, &bad);
    if (!bad)
        bad = open_store(app, pulled, served);
    free(pulled);
    return bad;
}

/* ---- the client ---- */

static void log_line(int32_t level, const char *line, void *user)
{
    static const char *const names[] = { "", "error", "warning", "info", "debug" };
    const cli_app *app = user;
    if (app->quiet && level > TINKC_LOG_ERROR)
        return;
    cli_progress_clear();
    fprintf(stderr, "%s: %s\n", level >= 1 && level <= 4 ? names[level] : "log", line);
}

/* Management gives up after half a minute, work after five: --retry-for overrides both. */
static int64_t retry_window_ms(const cli_app *app)
{
    double seconds;
    const char *given = setting(app, "retry-for", "retry_for");
    if (given && cli_parse_duration(given, &seconds))
        return seconds > 0 ? (int64_t)(seconds * 1000) : 1;
    static const char *const work[] = { "sample", "chat", "logprobs", "train" };
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        if (strcmp(app->command->noun, work[i]) == 0)
            return 300000;
    return 30000;
}

static void fill_options(cli_app *app, tinkc_client_options *o)
{
    const char *retry = setting(app, "retry-for", "retry_for");
    const char *telemetry = cli_config_get(app, "telemetry", NULL);
    const char *wanted = getenv("TINKER_TELEMETRY");
    o->project_id = setting(app, "project", "project_id");
    o->user_metadata = app->session_metadata;
    o->user_agent = "tinkc-cli/" TINKC_VERSION;
    o->log = log_line;
    o->log_user = app;
    o->log_level = app->verbose >= 2   ? TINKC_LOG_DEBUG
                   : app->verbose == 1 ? TINKC_LOG_INFO
                                       : TINKC_LOG_ERROR;
    o->retry_window_ms = app->retry_window_ms = retry_window_ms(app);
    /* Ten attempts at one exchange take a minute by themselves: with less than that to spend, the
     * time alone decides. */
    o->max_retries = o->retry_window_ms < 60000 ? 1 : 0;
    o->billing_pause_ms = o->retry_window_ms; /* an hour is too long at a prompt */
    if (app->deadline_ms != INT64_MAX) {
        int64_t left = app->deadline_ms - cli_now_ms();
        o->operation_timeout_ms = left > 0 ? left : 1;
    }
    o->no_retries = retry && strcmp(retry, "0") == 0;
    o->telemetry = wanted && *wanted                             ? TINKC_TELEMETRY_DEFAULT
                   : telemetry && strcmp(telemetry, "true") == 0 ? TINKC_TELEMETRY_ON
                                                                 : TINKC_TELEMETRY_OFF;
}

/* Settings that the library knows by its environment alone. */
static void hand_on(const cli_app *app, const char *key, const char *variable)
{
    const char *value = cli_config_get(app, key, NULL), *there = getenv(variable);
    if (value && *value && !(there && *there))
        setenv(variable, value, 1);
}

static void hand_on_settings(const cli_app *app)
{
    const char *token = getenv("HF_TOKEN"), *other = getenv("HUGGING_FACE_HUB_TOKEN");
    if (!(token && *token) && other && *other)
        setenv("HF_TOKEN", other, 1);
    hand_on(app, "hf_token", "HF_TOKEN");
    hand_on(app, "cf_access_client_id", "CLOUDFLARE_ACCESS_CLIENT_ID");
    hand_on(app, "cf_access_client_secret", "CLOUDFLARE_ACCESS_CLIENT_SECRET");
}

static int make_client(cli_app *app, tinkc_client_options *o)
{
    tinkc_error err = { 0 };
    if (app->offline)
        return cli_fail(app, "network", "leave --offline out, or add --local",
                        "this command needs the network");
    o->base_url = setting(app, "base-url", "base_url");
    cli_give_back_pages();
    app->client = tinkc_client_new(o, &err);
    return app->client ? 0 : cli_fail_error(app, &err, NULL);
}

static int connect_service(cli_app *app, tinkc_client_options *o)
{
    int bad = 0;
    char *key = NULL;
    if (cli_given(app, "api-key-file"))
        key = read_key_file(app, cli_text(app, "api-key-file"), &bad);
    if (bad)
        return bad;
    const char *env_key = getenv("TINKER_API_KEY"), *env_cmd = getenv("TINKER_CREDENTIAL_CMD");
    o->api_key = key ? key
                 : (env_key && *env_key) || (env_cmd && *env_cmd)
                     ? NULL
                     : cli_config_get(app, "api_key", NULL);
    o->credential_cmd = cli_config_get(app, "credential_cmd", NULL);
    bad = make_client(app, o);
    free(key);
    return bad;
}

/* Runs inside tinkc_queue_run, while somebody waits. */
static void note_retry(const tinkc_event *e, void *user)
{
    cli_app *app = user;
    char left[CLI_SHORT_TEXT];
    cli_format_duration((double)e->left_ms / 1000, left);
    (void)snprintf(app->failing, sizeof app->failing, "%.120s; trying again%s%s", e->text,
                   e->left_ms > 0 ? " for " : "", e->left_ms > 0 ? left : "");
    if (e->left_ms == TINKC_FOREVER) {
        int64_t now = cli_now_ms();
        if (!app->trouble_ms || e->wait_ms <= 1000) /* the first wait: it had worked before */
            app->trouble_ms = now;
        app->next_try_ms = now + e->wait_ms;
        (void)snprintf(app->trouble, sizeof app->trouble, "%s", e->text);
    }
    if (app->on_retry)
        app->on_retry(e, app->on_retry_user);
}

/* A convenience: without it waiting is only less talkative. */
static void watch_attempts(cli_app *app)
{
    app->events = tinkc_queue_new(app->client, NULL);
    if (app->events)
        (void)tinkc_client_on_event(app->client, app->events, TINKC_EVENT_RETRY, note_retry, app,
                                    NULL);
}

static int open_client(cli_app *app)
{
    tinkc_client_options o = { 0 };
    tinkc_error err = { 0 };
    fill_options(app, &o);
    hand_on_settings(app);
    if (!cli_wants_local(app))
        return connect_service(app, &o);
    say_local(app);
    char *url = NULL;
    int bad = open_engine(app, &url);
    if (url) {
        cli_note(app, "the store is served at %s: using that", url);
        o.base_url = url;
        o.api_key = "tml-local";
        app->client = tinkc_client_new(&o, &err);
        free(url);
        return app->client ? 0 : cli_fail_error(app, &err, NULL);
    }
    if (bad)
        return bad;
    o.transport = tinkc_engine_transport(app->engine);
    app->client = tinkc_client_new(&o, &err);
    return app->client ? 0 : cli_fail_error(app, &err, "local engine");
}

int cli_connect(cli_app *app)
{
    if (app->client)
        return 0;
    int bad = open_client(app);
    if (!bad)
        watch_attempts(app);
    return bad;
}

int cli_connect_as(cli_app *app, const char *key, const char *command)
{
    tinkc_client_options o = { 0 };
    fill_options(app, &o);
    hand_on_settings(app);
    o.api_key = key;
    o.credential_cmd = command;
    if (command) { /* the library would take these first, and so try another credential */
        unsetenv("TINKER_API_KEY");
        unsetenv("TINKER_CREDENTIAL_CMD");
    }
    int bad = make_client(app, &o);
    if (!bad)
        watch_attempts(app);
    return bad;
}

bool cli_prove_credential(cli_app *app, tinkc_error *err)
{
    tinkc_future *f = tinkc_capabilities_get(app->client, err);
    bool ok = cli_wait(app, f, "checking the credential", err);
    tinkc_future_free(f);
    return ok;
}

void cli_disconnect(cli_app *app)
{
    tinkc_queue_free(app->events);
    app->events = NULL;
    if (app->client)
        tinkc_client_close(app->client, cli_stop_count() > 1 ? 0 : 2000, NULL);
    tinkc_client_free(app->client);
    tinkc_engine_free(app->engine);
    app->client = NULL;
    app->engine = NULL;
}

/* ---- tokenizers ---- */

tinkc_tokenizer *cli_tokenizer(cli_app *app, const char *model, tinkc_error *err)
{
    if (has_file(model, "tokenizer.json") || has_file(model, "tiktoken.model") ||
        access(model, R_OK) == 0)
        return tinkc_tokenizer_open(model, NULL, err);
    if (strcmp(model, "nano") == 0 && cli_nano_folder())
        return tinkc_tokenizer_open(cli_nano_folder(), NULL, err);
    if (cli_connect(app) != 0) {
        tinkc_error_set(err, TINKC_E_CLOSED, "no connection to fetch the tokenizer with");
        return NULL;
    }
    tinkc_tokenizer_options options = { .offline = app->offline };
    tinkc_future *f = tinkc_tokenizer_fetch(app->client, model, NULL, &options, err);
    tinkc_tokenizer *tokenizer = NULL;
    if (cli_wait(app, f, "tokenizer", err))
        tokenizer = tinkc_future_tokenizer(f, 0, err);
    tinkc_future_free(f);
    return tokenizer;
}
