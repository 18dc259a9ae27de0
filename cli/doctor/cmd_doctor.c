/* cmd_doctor.c - `tinkc doctor`: is everything in order? Prints no secret: its output may go into
 * a bug report. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/platform.h"
#include "base/processor.h"
#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/doctor/doctor.h"
#include "cli/serve/serving.h"
#include "cli/output/out.h"
#include "cli/store/store_link.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static const char *const status_names[] = { "ok", "warn", "fail", "skip" };

void cli_config_value(doctor *d, const char *id, int status, const char *hint, const char *format,
                      ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tkc_tree_add(d->checks, cli_pack(d->app, "{s:s,s:s,s:s,s:s?,s:I}", "id", id, "status",
                                     status_names[status], "message", message, "hint",
                                     status == CHECK_WARN || status == CHECK_FAIL ? hint : NULL,
                                     "ms", (int64_t)(cli_now_ms() - d->begun_ms)));
    d->counts[status]++;
    d->begun_ms = cli_now_ms();
}

bool cli_doctor_is_skewed(int64_t seconds)
{
    return seconds > 30 || seconds < -30;
}

int64_t cli_doctor_left_ms(const doctor *d, int64_t begun_ms)
{
    int64_t until = begun_ms + CHECK_SECONDS * 1000, now = cli_now_ms();
    if (d->app->deadline_ms < until)
        until = d->app->deadline_ms;
    return until > now ? until - now : 0;
}

/* ---- tool, configuration, credential ---- */

static void check_tool(doctor *d)
{
    cli_config_value(d, "tool.version", CHECK_OK, NULL, "tinkc %s, for Tinker SDK %s; %s",
                     tinkc_version(), tinkc_version_tinker(), tinkc_version_detail("features"));
    const char *nano = cli_nano_folder();
    cli_config_value(d, "tool.nano", nano ? CHECK_OK : CHECK_WARN, "set TINKC_NANO to its folder",
                     nano ? "the shipped model is at %s" : "the shipped model was not found%s",
                     nano ? nano : "");
    if (d->online)
        cli_config_value(d, "tool.release", CHECK_SKIP, NULL,
                         "not checked: this build has no address to look up releases");
}

/* Another tinkc that a shell would find first. */
static void check_path(doctor *d)
{
    char self[TKC_PATH], other[TKC_PATH];
    const char *path = getenv("PATH");
    if (!tkc_program_path(self))
        self[0] = '\0';
    for (const char *p = path ? path : ""; *p;) {
        size_t len = strcspn(p, ":");
        char *file = cli_printf("%.*s/tinkc", (int)len, p);
        bool here = file && access(file, X_OK) == 0 && realpath(file, other);
        free(file);
        if (here) {
            bool same = strcmp(self, other) == 0;
            cli_config_value(
                d, "tool.path", same ? CHECK_OK : CHECK_WARN, "change PATH, or give the whole path",
                same ? "%s is the one on the PATH" : "%s comes before this one on the PATH", other);
            return;
        }
        p += len + (p[len] == ':');
    }
    cli_config_value(d, "tool.path", CHECK_SKIP, NULL, "tinkc is not on the PATH");
}

/* Every effective value, and where it comes from. */
static void check_values(doctor *d)
{
    for (size_t i = 0; cli_profile_keys[i]; i++) {
        const char *origin = NULL, *key = cli_profile_keys[i];
        const char *value = cli_config_get(d->app, key, &origin);
        if (value)
            cli_config_value(d, "config.value", CHECK_OK, NULL, "%s = %s (%s)", key,
                             cli_config_is_secret(key) ? "(secret)" : value, origin);
    }
    for (const cli_option *o = cli_globals; o->name; o++)
        if (o->env && getenv(o->env) && *getenv(o->env))
            cli_config_value(d, "config.value", CHECK_OK, NULL, "--%s = %s (%s)", o->name,
                             getenv(o->env), o->env);
}

/* As the library reads TINKER_TELEMETRY. */
bool cli_doctor_is_on(const char *text)
{
    static const char *const words[] = { "1", "true", "yes", "on" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(words[i], text) == 0)
            return true;
    return false;
}

/* One row for the file, and one for each key in it that is unknown. */
static void check_file(doctor *d, int layer, const char *id, const char *file)
{
    const cli_config *c = d->app->config;
    bool there = file && access(file, F_OK) == 0, broken = false;
    for (size_t i = 0; i < c->n_findings; i++) {
        const cli_finding *f = &c->findings[i];
        if (f->layer != layer)
            continue;
        cli_config_value(d, f->error ? id : "config.key", f->error ? CHECK_FAIL : CHECK_WARN,
                         f->hint ? f->hint : "fix it; the lines after an error are not read", "%s",
                         f->text);
        broken = broken || f->error;
    }
    if (!broken)
        cli_config_value(d, id, there ? CHECK_OK : CHECK_SKIP, NULL, "%s: %s",
                         file ? file : "no file", there ? "read" : "not there");
}

static void check_config(doctor *d)
{
    const cli_config *c = d->app->config;
    const char *const files[][2] = {
        [CLI_LAYER_PROJECT] = { "config.project", c->project_file },
        [CLI_LAYER_USER] = { "config.user", c->user_file },
        [CLI_LAYER_CREDENTIALS] = { "config.credentials", c->credentials_file },
        [CLI_LAYER_SYSTEM] = { "config.system", c->system_file },
    };
    for (int i = 0; i < (int)(sizeof files / sizeof *files); i++)
        check_file(d, i, files[i][0], files[i][1]);
    cli_config_value(d, "config.profile",
                     cli_config_has_profile(d->app, c->profile) ? CHECK_OK : CHECK_FAIL,
                     "tinkc config profiles lists those there are", "%s (%s), %zu settings",
                     c->profile, c->profile_origin, c->n_settings);
    check_values(d);
    const char *wanted = getenv("TINKER_TELEMETRY"),
               *stored = cli_config_get(d->app, "telemetry", NULL);
    bool on = wanted && *wanted ? cli_doctor_is_on(wanted) : stored && strcmp(stored, "true") == 0;
    cli_config_value(d, "config.telemetry", CHECK_OK, NULL, "telemetry is %s", on ? "on" : "off");
}

/* The seconds since 1970 at which a token ends; 0 = it does not say. */
static int64_t token_end(const char *token)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const char *p = strchr(token, '.');
    char *text = malloc(strlen(token) + 1);
    size_t n = 0;
    uint32_t bits = 0;
    int held = 0;
    for (p = p ? p + 1 : ""; text && *p && *p != '.'; p++) {
        const char *digit = strchr(digits, *p);
        if (!digit) {
            n = 0;
            break;
        }
        bits = bits << 6 | (uint32_t)(digit - digits);
        held += 6;
        if (held >= 8) {
            held -= 8;
            text[n++] = (char)(bits >> held & 0xFF);
        }
    }
    tkc_arena arena = { 0 };
    int64_t end = tkc_tree_get_i64(tkc_tree_read(&arena, tkc_strn(text, n), 0), "exp");
    tkc_arena_free(&arena);
    free(text);
    return end;
}

static void check_expiry(doctor *d, const char *token)
{
    char when[CLI_SHORT_TEXT];
    int64_t end = token_end(token);
    if (end <= 0 || end > INT64_MAX / 1000000) {
        cli_config_value(d, "credential.expiry", CHECK_SKIP, NULL, "the token has no expiry time");
        return;
    }
    bool over = end * 1000000 <= cli_now_us();
    cli_format_iso(end * 1000000, when);
    cli_config_value(d, "credential.expiry", over ? CHECK_FAIL : CHECK_OK,
                     "get a fresh one: tinkc auth login",
                     over ? "the token expired at %s" : "the token is valid until %s", when);
}

static bool check_credential(doctor *d)
{
    const char *key = getenv("TINKER_API_KEY"), *cmd = getenv("TINKER_CREDENTIAL_CMD");
    const char *stored = cli_config_get(d->app, "api_key", NULL);
    const char *used = key && *key ? key : stored;
    if (cli_given(d->app, "api-key-file")) {
        cli_config_value(d, "credential.present", CHECK_OK, NULL, "a key from --api-key-file");
        return true;
    }
    if (used) {
        bool shape = strncmp(used, "tml-", 4) == 0 || strncmp(used, "eyJ", 3) == 0;
        cli_config_value(d, "credential.shape", shape ? CHECK_OK : CHECK_FAIL,
                         "a key begins with tml-, a token with eyJ", "a %s from %s",
                         strncmp(used, "eyJ", 3) == 0 ? "token" : "key",
                         key && *key ? "TINKER_API_KEY" : "the profile");
        if (strncmp(used, "eyJ", 3) == 0)
            check_expiry(d, used);
        return shape;
    }
    if ((cmd && *cmd) || cli_config_get(d->app, "credential_cmd", NULL)) {
        cli_config_value(d, "credential.command", CHECK_OK, NULL, "a command gives the credential");
        return true;
    }
    cli_config_value(d, "credential.present", d->online ? CHECK_FAIL : CHECK_WARN,
                     "tinkc auth login",
                     "no credential: commands use the engine inside this program");
    return false;
}

/* ---- machine ---- */

static void check_space(doctor *d, const char *id, const char *path)
{
    struct statvfs st;
    char text[CLI_SHORT_TEXT];
    if (!path || statvfs(path, &st) != 0) {
        cli_config_value(d, id, CHECK_SKIP, NULL, "%s is not there yet",
                         path ? path : "the folder");
        return;
    }
    int64_t free_bytes = (int64_t)st.f_bavail * (int64_t)st.f_frsize;
    cli_format_size(free_bytes, text);
    cli_config_value(d, id, free_bytes < INT64_C(1) << 30 ? CHECK_WARN : CHECK_OK,
                     "free some space", "%s: %s free", path, text);
}

/* Who has the local store open, and whether commands share it. */
static void check_store(doctor *d)
{
    const char *store = cli_store_folder(d->app);
    if (!store)
        return;
    const char *off = cli_store_not_shared(d->app);
    if (off) {
        cli_config_value(d, "store.sharing", CHECK_OK, NULL,
                         "off (%s): one command at a time can use the store", off);
        return;
    }
    tkc_tree *status = cli_store_link_status(cli_arena(d->app), store);
    const tkc_tree *users = tkc_tree_get(status, "users");
    if (!status)
        cli_config_value(d, "store.sharing", CHECK_OK, NULL, "on; no command uses the store now");
    else
        cli_config_value(d, "store.sharing", CHECK_OK, NULL,
                         "on; process %lld serves it to %zu command%s%s%s",
                         (long long)tkc_tree_get_i64(status, "pid"), tkc_tree_length(users),
                         tkc_tree_length(users) == 1 ? "" : "s", tkc_tree_length(users) ? ": " : "",
                         tkc_tree_length(users) ? tkc_tree_text(tkc_tree_at(users, 0)) : "");
}

static void check_machine(doctor *d)
{
    struct utsname u;
    struct rlimit files;
    char memory[CLI_SHORT_TEXT], features[64];
    if (uname(&u) == 0)
        cli_config_value(d, "machine.system", CHECK_OK, NULL, "%s %s, %s", u.sysname, u.release,
                         u.machine);
    tkc_vector_units(features, sizeof features);
    cli_format_size((int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), memory);
    cli_config_value(d, "machine.cpu", CHECK_OK, NULL, "%ld cores, %s memory, vector units:%s",
                     sysconf(_SC_NPROCESSORS_ONLN), memory, features);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        cli_config_value(d, "machine.files", files.rlim_cur < 1024 ? CHECK_WARN : CHECK_OK,
                         "ulimit -n 4096", "%llu open files allowed",
                         (unsigned long long)files.rlim_cur);
    check_space(d, "machine.store", cli_store_folder(d->app));
    check_store(d);
    const char *tmp = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    check_space(d, "machine.tmp", tmp);
    int in_memory = tkc_in_memory(tmp);
    if (in_memory >= 0)
        cli_config_value(d, "machine.tmp_kind", in_memory ? CHECK_WARN : CHECK_OK,
                         "large files in it use memory: set TMPDIR to a folder on disk", "%s: %s",
                         tmp, in_memory ? "in memory (tmpfs)" : "on disk");
}

/* What a local engine would compute on, and why; asked of an engine without a store. */
static void check_device(doctor *d)
{
    tinkc_error err = { 0 };
    char text[CLI_DEVICE_TEXT];
    tinkc_engine *engine =
        tinkc_engine_new(&(tinkc_engine_options){ .device = cli_text(d->app, "device") }, &err);
    if (engine && cli_device_text(engine, text))
        cli_config_value(d, "machine.device", CHECK_OK, NULL, "%s", text);
    else
        cli_config_value(d, "machine.device", CHECK_FAIL, "--device auto", "%s", err.message);
    tinkc_engine_free(engine);
}

/* The folder, or the nearest above it that is there: what is missing can be made. */
static bool can_write(const char *folder)
{
    char *path = strdup(folder);
    while (path && *path && access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    bool ok = path && access(*path ? path : "/", W_OK) == 0;
    free(path);
    return ok;
}

static void check_cache(doctor *d)
{
    const char *home = getenv("HF_HOME"), *user = getenv("HOME");
    const char *offline = getenv("HF_HUB_OFFLINE");
    char *folder =
        home && *home ? strdup(home) : cli_printf("%s/.cache/huggingface", user ? user : "");
    bool ok = folder && can_write(folder);
    cli_config_value(
        d, "hub.cache", ok ? CHECK_OK : CHECK_WARN, "set HF_HOME to a folder that can be written",
        "tokenizers are cached in %s%s%s", folder ? folder : "?", ok ? "" : ", which is read-only",
        offline && cli_doctor_is_on(offline) ? "; HF_HUB_OFFLINE is set" : "");
    if (folder && access(folder, F_OK) == 0)
        check_space(d, "hub.space", folder);
    free(folder);
}

static void check_hub(doctor *d, bool begun)
{
    bool token = getenv("HF_TOKEN") || getenv("HUGGING_FACE_HUB_TOKEN") ||
                 cli_config_get(d->app, "hf_token", NULL);
    cli_config_value(d, "hub.token", token ? CHECK_OK : CHECK_SKIP, NULL, "%s",
                     token ? "there is one"
                           : "no token (HF_TOKEN, hf_token): only public repositories can be read");
    cli_doctor_hub_reach(d, begun);
    check_cache(d);
}

static void check_terminal(doctor *d)
{
    cli_config_value(d, "terminal", d->app->utf8 ? CHECK_OK : CHECK_WARN, "use a UTF-8 locale",
                     "width %zu, colour %s, %s", cli_term_width(d->app),
                     d->app->color ? "on" : "off", d->app->utf8 ? "UTF-8" : "not UTF-8");
}

static int print_checks(doctor *d, const cli_column *columns)
{
    if (d->app->format != CLI_JSON) {
        cli_list list = { .key = "checks", .columns = columns };
        return cli_print_list(d->app, &list, d->checks);
    }
    tkc_tree *summary = cli_object(d->app);
    for (size_t i = 0; i < 4; i++)
        tkc_tree_set_i64(summary, status_names[i], (int64_t)d->counts[i]);
    tkc_tree *v = cli_pack(d->app, "{s:o,s:o}", "checks", d->checks, "summary", summary);
    return cli_print_json(d->app, v);
}

int cli_doctor(cli_app *app)
{
    static const cli_column columns[] = {
        { .name = "status", .header = "Status", .path = "status", .is_default = true },
        { .name = "id", .header = "Check", .path = "id", .is_default = true },
        { .name = "message",
          .header = "Finding",
          .path = "message",
          .fit = CLI_FIT_WRAP,
          .is_default = true },
        { .name = "hint",
          .header = "Hint",
          .path = "hint",
          .fit = CLI_FIT_NOTE,
          .is_default = true },
        { 0 }
    };
    doctor d = { .app = app, .checks = cli_array(app), .begun_ms = cli_now_ms() };
    d.online = cli_flag(app, "online");
    if (d.online && app->offline)
        return cli_fail(app, "usage", NULL, "--online and --offline exclude each other");
    bool begun = cli_doctor_begin_hub(&d);
    check_tool(&d);
    check_path(&d);
    check_config(&d);
    cli_doctor_service(&d, check_credential(&d));
    check_hub(&d, begun);
    check_machine(&d);
    check_device(&d);
    check_terminal(&d);
    int bad = print_checks(&d, columns);
    if (!bad && cli_now_ms() >= app->deadline_ms)
        bad = cli_fail(app, "timeout", "give it more time with --timeout",
                       "the time given with --timeout has run out");
    return bad ? bad : d.counts[CHECK_FAIL] ? CLI_EXIT_CHECK : 0;
}
