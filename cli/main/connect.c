/* connect.c - what a command stands on: the service, or the engine in this process.
 *
 * With --local, base URL "local:", or neither key nor address configured, an engine is opened on
 * the user's data folder with the shipped model; everything above it is the same either way.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/app.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/models/hub_models.h"
#include "cli/models/model_folder.h"
#include "cli/models/models.h"
#include "cli/store/logged_runs.h"
#include "cli/store/store_host.h"
#include "cli/store/store_link.h"
#include "cli/store/store_models.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

#ifndef TINKC_DATADIR
#define TINKC_DATADIR "/usr/local/share/tinkc"
#endif

/* ---- the shipped model ---- */

/* folder: of a model, with "#4bit" or without. */
static bool has_file(const char *folder, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%.*s/%s", cli_plain_length(folder), folder, name);
    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

/* Beside the program (a build tree), else where it was installed. */
const char *cli_nano_folder(void)
{
    static const char *const places[] = { "../models/nano", "../../models/nano",
                                          "../share/tinkc/models/nano",
                                          TINKC_DATADIR "/models/nano" };
    static char found[TKC_PATH + 64];
    const char *given = getenv("TINKC_NANO");
    if (given && *given)
        return has_file(given, "config.json") ? given : NULL;
    char self[TKC_PATH];
    char *slash = tkc_program_path(self) ? strrchr(self, '/') : NULL;
    (void)snprintf(slash ? slash : self, 2, "/"); /* else not the folder that the user happens to be in */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        (void)snprintf(found, sizeof found, "%s%s", *places[i] == '/' ? "" : self, places[i]);
        if (has_file(found, "config.json"))
            return found;
    }
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

static bool names_gguf(const char *path)
{
    char *plain = cli_printf("%.*s", cli_plain_length(path), path);
    bool gguf = plain && cli_is_gguf(plain);
    free(plain);
    return gguf;
}

/* A model's folder, or a GGUF file. */
static bool is_model_folder(const char *folder)
{
    return names_gguf(folder) ||
           (has_file(folder, "config.json") && has_file(folder, "tokenizer.json"));
}

/* On the local engine a folder's model is named by its whole path, wherever the command runs. */
static const char *whole_name(const char *model)
{
    static char *given, *whole;
    if (given && strcmp(given, model) == 0)
        return whole;
    free(given);
    free(whole);
    given = strdup(model);
    char *plain = cli_printf("%.*s", cli_plain_length(model), model);
    char *path = plain ? realpath(plain, NULL) : NULL;
    whole = path ? cli_printf("%s%s", path, model + cli_plain_length(model)) : NULL;
    free(plain);
    free(path);
    return whole ? whole : model;
}

static const char *bits_wanted(const cli_app *app)
{
    bool option = cli_find_option(app->command, "base-bits", 9) != NULL;
    return option ? setting(app, "base-bits", "base_bits") : NULL;
}

/* With --base-bits N a base model is called MODEL#Nbit, in the store, too: what is trained on it goes with
 * these numbers and no others. A run says itself what it stands on. */
static const char *name_in_bits(const cli_app *app, const char *model)
{
    static char *name; /* the last answer: callers keep it, as cli_model's others */
    const char *bits = bits_wanted(app);
    if (!bits || strncmp(model, "tinker://", 9) == 0 || has_file(model, "checkpoints.jsonl") ||
        cli_base_bits(model))
        return model;
    char *now = cli_printf("%s#%sbit", model, bits);
    if (name && now && strcmp(name, now) == 0) {
        free(now);
        return name;
    }
    free(name);
    name = now;
    return name ? name : model;
}

/* --base-bits where it would have no effect. */
static int check_bits(const cli_app *app, const char *model)
{
    const char *bits = cli_on_the_line(app, "base-bits") ? cli_text(app, "base-bits") : NULL;
    int64_t wanted = 0;
    if (!bits || !model)
        return 0;
    if (!cli_wants_local(app))
        return cli_fail(app, "usage", "leave it out, or add --local",
                        "--base-bits works with the local engine only");
    (void)cli_parse_int(bits, &wanted);
    char *logged = cli_logged_model(model); /* of a run; else config.json does not name one */
    int64_t bits_now = cli_base_bits(logged ? logged : model);
    free(logged);
    if (bits_now == wanted)
        return 0;
    return cli_fail(app, "usage", "leave --base-bits out: a run keeps the base that it was trained on",
                    "--base-bits %s cannot be had of %s", bits, model);
}

/* A name without a slash that is nothing here may be that of a run: then it stands for its folder. */
static const char *run_folder(const cli_app *app, const char *model)
{
    static char *name, *folder; /* the last answer */
    const char *store = cli_store_folder(app);
    if (!store || strchr(model, '/') || strcmp(model, "nano") == 0 || access(model, F_OK) == 0)
        return NULL;
    if (name && strcmp(name, model) == 0)
        return folder;
    free(name);
    free(folder);
    name = strdup(model);
    folder = cli_logged_run_folder(store, model);
    return folder;
}

const char *cli_model(const cli_app *app)
{
    const char *model = cli_text(app, "model");
    if (!model)
        model = cli_config_get(app, "model", NULL);
    const char *run = model ? run_folder(app, model) : NULL;
    if (run)
        return run;
    if (!cli_wants_local(app))
        return model;
    model = !model ? "nano" : is_model_folder(model) ? whole_name(model) : model;
    return name_in_bits(app, model);
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
    *bad = cli_check_secret_file(app, path);
    char *text = *bad ? NULL : cli_read_all(app, path, &len, bad);
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

/* Said by the commands that compute, so that nobody trains on the wrong machine unawares. */
static void say_local(const cli_app *app)
{
    const char *url = setting(app, "base-url", "base_url");
    if (!cli_flag(app, "local") && !url && strcmp(app->command->noun, "train") == 0)
        cli_note(app, "no key is configured: using the engine inside this program (tinkc auth "
                      "login to use the service)");
}

/* ---- the engine ---- */

/* Only these need the weights of the model that is named; others may run beside it. */
static bool needs_weights(const cli_app *app)
{
    static const char *const nouns[] = { "sample", "chat", "logprobs", "train", "eval" };
    for (size_t i = 0; i < sizeof nouns / sizeof *nouns; i++)
        if (strcmp(app->command->noun, nouns[i]) == 0)
            return true;
    return false;
}

static bool looks_like_path(const char *model)
{
    size_t n = strlen(model);
    return model[0] == '/' || model[0] == '.' || model[0] == '~' || (n && model[n - 1] == '/');
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

int cli_check_model_path(const cli_app *app, const char *model)
{
    bool gguf = ends_with(model, ".gguf");
    if ((!looks_like_path(model) && !gguf) || has_file(model, "checkpoints.jsonl"))
        return 0;
    if (access(model, F_OK) != 0)
        return cli_fail(app, "not_found", NULL, "there is no such %s: %s", gguf ? "file" : "folder",
                        model);
    if (has_file(model, "adapter_config.json"))
        return cli_fail(app, "usage", "name its base model with -m, and add --from-adapter DIR",
                        "%s is a PEFT adapter, not a model", model);
    return cli_fail(app, "not_found",
                    "a model is a folder with config.json, tokenizer.json and *.safetensors, or a "
                    "*.gguf file",
                    "%s is neither a model nor a log directory", model);
}

static char *named_folder(cli_app *app, const char *model, char **name, int *bad);

/* The folder of a model in fewer bits: that of the whole one, with the same end. */
static char *folder_in_bits(cli_app *app, const char *model, char **name, int *bad)
{
    char *plain = cli_printf("%.*s", cli_plain_length(model), model), *whole = NULL;
    char *folder = plain ? named_folder(app, plain, &whole, bad) : NULL;
    if (!folder && plain && !*bad)
        folder = cli_base_folder(app, plain, bad);
    char *packed = folder && !*bad ? cli_printf("%s%s", folder, model + strlen(plain)) : NULL;
    *name = packed ? strdup(model) : NULL;
    free(plain);
    free(whole);
    free(folder);
    return packed;
}

/* The folder of a model: a folder of the user's, or one that was pulled from a hub; yours, NULL = it is
 * named otherwise. Pulling comes before the store is opened: it may take long. *name is what the
 * engine is to call it; yours. */
static char *named_folder(cli_app *app, const char *model, char **name, int *bad)
{
    char *folder = NULL;
    if (!model)
        return NULL;
    if (needs_weights(app) && cli_base_bits(model))
        return folder_in_bits(app, model, name, bad);
    if (needs_weights(app) && cli_is_hub_name(model)) {
        folder = cli_hub_model(app, model, bad);
        *name = folder ? strdup(model) : NULL;
    } else if (*model == '/' &&
               is_model_folder(model)) { /* not the shipped one's name in a folder "nano" */
        folder = strdup(model);
        *name = strdup(model);
    } else if (needs_weights(app)) {
        *bad = cli_check_model_path(app, model);
    }
    if (folder && !*bad && needs_weights(app) && !cli_flag(app, "force") && !bits_wanted(app))
        *bad = cli_model_fits(app, folder);
    return folder;
}

/* Where the weights lie that a log directory's run stands on; yours, NULL = not known. */
static char *logged_folder(const char *log_dir, const char *store)
{
    char *model = has_file(log_dir, "checkpoints.jsonl") ? cli_logged_model(log_dir) : NULL;
    if (!model || is_model_folder(model))
        return model;
    char *folder = store ? cli_store_models_get(store, model) : NULL;
    free(model);
    return folder;
}

/* Large weights are read now, with a bar, and not while a request waits for them. */
static int load_weights(const cli_app *app, const char *named, const char *store)
{
    const char *model = cli_model(app);
    if (!needs_weights(app))
        return 0;
    char *logged = named || !model ? NULL : logged_folder(model, store);
    const char *folder = named ? named : logged;
    int bad = folder ? cli_load_weights(app, folder) : 0;
    free(logged);
    return bad;
}

/* The store in this process: nobody else can use it meanwhile. */
static int open_alone(cli_app *app, const char *store, const char *name, const char *folder)
{
    tinkc_error err = { 0 };
    app->engine =
        tinkc_engine_new(&(tinkc_engine_options){ .store = store,
                                                  .device = cli_text(app, "device"),
                                                  .log = cli_log_line,
                                                  .log_user = app,
                                                  .log_level = cli_log_level(app, TINKC_LOG_WARN) },
                         &err);
    if (err.code == TINKC_E_STORE && err.cause == TINKC_E_CONFLICT)
        return cli_fail(
            app, "local_io",
            "wait until it ends, or share the store: unset TINKC_SHARE_STORE and share_store", "%s",
            err.message);
    if (app->engine && folder && tinkc_engine_add_model(app->engine, name, folder, &err) && store)
        (void)cli_store_models_set(store, name, folder);
    if (app->engine && !err.code)
        (void)cli_store_models_add(app->engine, store, &err);
    return err.code ? cli_fail_error(app, &err, "local engine") : 0;
}

static int open_shared(cli_app *app, const char *store, const char *name, const char *folder)
{
    tinkc_error err = { 0 };
    int bad = cli_store_link_open(app, store);
    if (!bad && folder && !cli_store_link_model(app, name, folder, &err))
        bad = cli_fail_error(app, &err, NULL);
    return bad;
}

static int open_engine(cli_app *app)
{
    if (cli_text(app, "dtype")) /* for the engine here, and for a process that is started to have the store */
        (void)setenv("TINKC_DTYPE", cli_text(app, "dtype"), 1);
    int bad = check_bits(app, cli_model(app));
    char *name = NULL, *folder = bad ? NULL : named_folder(app, cli_model(app), &name, &bad);
    const char *store = cli_store_folder(app);
    if (!bad && !store)
        cli_warn(app, "no folder for the store can be made: nothing will be kept");
    if (!bad)
        bad = load_weights(app, folder, store);
    if (!bad)
        bad = store && cli_store_shared(app) ? open_shared(app, store, name, folder)
                                             : open_alone(app, store, name, folder);
    free(name);
    free(folder);
    return bad;
}

int cli_add_model(cli_app *app, const char *name, const char *folder)
{
    tinkc_error err = { 0 };
    char *whole = realpath(folder, NULL);
    int bad = whole ? cli_connect(app)
                    : cli_fail(app, "not_found", NULL, "there is no such folder: %s", folder);
    const char *store = cli_store_folder(app);
    if (!bad && app->engine && tinkc_engine_add_model(app->engine, name, whole, &err) && store)
        (void)cli_store_models_set(store, name, whole);
    else if (!bad && !app->engine)
        (void)cli_store_link_model(app, name, whole, &err);
    free(whole);
    return bad ? bad : err.code ? cli_fail_error(app, &err, NULL) : 0;
}

/* A name without "ORG/" that the local engine does not know is on no hub either: says what may have been
 * meant before one is asked. */
static bool unknown_here(const char *model, tinkc_error *err)
{
    char text[320];
    const char *meant = cli_model_meant(model);
    if (strchr(model, '/'))
        return false;
    (void)snprintf(text, sizeof text, "there is no model '%.100s' on this machine%s%s%s", model,
                   meant ? "; did you mean " : ": name a folder, a log directory or ORG/NAME",
                   meant ? meant : "", meant ? "?" : "");
    tinkc_error_set(err, TINKC_E_NOT_FOUND, text);
    return true;
}

char *cli_named_here(cli_app *app, const char *model, int *bad)
{
    const char *store = cli_store_folder(app);
    if (is_model_folder(model))
        return strdup(model);
    if (strcmp(model, "nano") == 0 && cli_nano_folder())
        return strdup(cli_nano_folder());
    tinkc_error err = { 0 };
    *bad = cli_check_model_path(app, model);
    char *folder = !*bad && store ? cli_store_models_get(store, model) : NULL;
    bool logged = has_file(model, "checkpoints.jsonl");
    if (!folder && !*bad && !logged && unknown_here(model, &err))
        *bad = cli_fail_error(app, &err, NULL);
    return folder;
}

char *cli_add_named(cli_app *app, const char *model, int *bad)
{
    char *name = NULL;
    if (!cli_wants_local(app))
        return strdup(model);
    char *whole = is_model_folder(model) ? realpath(model, NULL) : NULL;
    char *folder = named_folder(app, whole ? whole : model, &name, bad);
    if (folder && name && !*bad)
        *bad = cli_add_model(app, name, folder);
    free(folder);
    free(whole);
    return name ? name : strdup(model);
}

/* ---- the client ---- */

void cli_log_line(int32_t level, const char *line, void *user)
{
    static const char *const names[] = { "", "error", "warning", "info", "debug" };
    const cli_app *app = user;
    if (app && app->quiet && level > TINKC_LOG_ERROR)
        return;
    cli_progress_clear();
    fprintf(stderr, "%s: %s\n", names[level], line);
}

int32_t cli_log_level(const cli_app *app, int32_t quietest)
{
    return app->verbose >= 2 ? TINKC_LOG_DEBUG : app->verbose == 1 ? TINKC_LOG_INFO : quietest;
}

/* Management gives up after half a minute, work after five: --retry-for overrides both. */
static int64_t retry_window_ms(const cli_app *app)
{
    double seconds;
    const char *given = setting(app, "retry-for", "retry_for");
    if (given && cli_parse_duration(given, &seconds)) {
        int64_t ms = cli_ms_of(seconds);
        return ms ? ms : TINKC_ZERO;
    }
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
    o->log = cli_log_line;
    o->log_user = app;
    o->log_level = cli_log_level(app, TINKC_LOG_ERROR);
    o->retry_window_ms = app->retry_window_ms = retry_window_ms(app);
    /* Ten attempts at one exchange take a minute by themselves: with less than that to spend, the
     * time alone decides. */
    o->max_retries = o->retry_window_ms < 60000 ? 1 : 0;
    o->billing_pause_ms = o->retry_window_ms; /* an hour is too long at a prompt */
    if (app->deadline_ms != INT64_MAX) {
        int64_t left = app->deadline_ms - cli_now_ms();
        o->operation_timeout_ms = left > 1 ? left : 1;
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

/* Events are a convenience: without them waiting is only less talkative. `what` begins the message of an error. */
static int make_client(cli_app *app, const tinkc_client_options *o, const char *what)
{
    tinkc_error err = { 0 };
    tkc_dl_give_back(NULL);
    app->client = tinkc_client_new(o, &err);
    if (!app->client)
        return cli_fail_error(app, &err, what);
    app->events = tinkc_queue_new(app->client, NULL);
    if (app->events)
        (void)tinkc_client_on_event(app->client, app->events, TINKC_EVENT_RETRY, cli_note_retry,
                                    app, NULL);
    return 0;
}

static int reach_service(cli_app *app, tinkc_client_options *o)
{
    if (app->offline)
        return cli_fail(app, "network", "leave --offline out, or add --local",
                        "this command needs the network");
    o->base_url = setting(app, "base-url", "base_url");
    return make_client(app, o, NULL);
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
    bad = reach_service(app, o);
    free(key);
    return bad;
}

int cli_connect(cli_app *app)
{
    tinkc_client_options o = { 0 };
    if (app->client)
        return 0;
    fill_options(app, &o);
    hand_on_settings(app);
    if (!cli_wants_local(app)) {
        int bad = check_bits(app, cli_model(app));
        return bad ? bad : connect_service(app, &o);
    }
    say_local(app);
    int bad = open_engine(app);
    char socket[TKC_SOCKET_PATH];
    if (bad)
        return bad;
    o.base_url = "http://localhost"; /* not what the environment says: it may be "local:" */
    o.api_key = "tml-local";
    if (app->engine) {
        o.transport = tinkc_engine_transport(app->engine);
    } else {
        (void)tkc_socket_path(app->store, "engine.sock", &app->store_folder_fd, socket);
        o.unix_socket = socket;
    }
    return make_client(app, &o, "local engine");
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
    return reach_service(app, &o);
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
    cli_store_link_close(app);
    app->client = NULL;
    app->engine = NULL;
}

/* ---- tokenizers ---- */

tinkc_tokenizer *cli_tokenizer(cli_app *app, const char *model, tinkc_error *err)
{
    char plain[4096];
    (void)snprintf(plain, sizeof plain, "%.*s", cli_plain_length(model), model);
    if (has_file(plain, "tokenizer.json") || has_file(plain, "tiktoken.model") ||
        access(plain, R_OK) == 0)
        return tinkc_tokenizer_open(plain, NULL, err);
    if (strcmp(plain, "nano") == 0 && cli_nano_folder())
        return tinkc_tokenizer_open(cli_nano_folder(), NULL, err);
    const char *store = cli_wants_local(app) ? cli_store_folder(app) : NULL;
    char *folder = store ? cli_store_models_get(store, model) : NULL;
    if (folder)
        folder[cli_plain_length(folder)] = '\0';
    if (folder && (has_file(folder, "tokenizer.json") || cli_is_gguf(folder))) {
        tinkc_tokenizer *remembered = tinkc_tokenizer_open(folder, NULL, err);
        free(folder);
        return remembered;
    }
    if (folder) {
        char *why =
            cli_printf("the base model %s was in %s, which no longer exists; say where it is "
                       "now with: tinkc model add %s FOLDER",
                       model, folder, model);
        tinkc_error_set(err, TINKC_E_MODEL, why ? why : "out of memory");
        free(why);
        free(folder);
        return NULL;
    }
    if (!store || !unknown_here(model, err)) {
        if (cli_connect(app) != 0)
            tinkc_error_set(err, TINKC_E_CLOSED, "no connection to fetch the tokenizer with");
    }
    if (err->code)
        return NULL;
    tinkc_tokenizer_options options = { .offline = app->offline };
    tinkc_future *f = tinkc_tokenizer_fetch(app->client, model, NULL, &options, err);
    tinkc_tokenizer *tokenizer = NULL;
    if (cli_wait(app, f, "tokenizer", err))
        tokenizer = tinkc_future_tokenizer(f, 0, err);
    tinkc_future_free(f);
    return tokenizer;
}
