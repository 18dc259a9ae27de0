/* config_file.c - a TOML subset: tables, dotted keys, strings, numbers, booleans, flat arrays.
 *
 * A project file may set only harmless keys: otherwise a cloned repository could run commands or send
 * the user's key to a stranger. What it may not set, a file that it names may not set either: the
 * source of a value stays with the value, and the parser asks cli_project_may_set for each. The
 * credentials file must be the user's alone.
 */
#include "cli/main/config_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/files.h"
#include "cli/output/text.h"

const char *const cli_profile_keys[] = { "base_url",
                                         "project_id",
                                         "model",
                                         "base_bits",
                                         "renderer",
                                         "format",
                                         "color",
                                         "time",
                                         "telemetry",
                                         "retry_for",
                                         "share_store",
                                         "timeout",
                                         "columns",
                                         "api_key",
                                         "credential_cmd",
                                         "cf_access_client_id",
                                         "cf_access_client_secret",
                                         "hf_token",
                                         NULL };

bool cli_config_is_secret(const char *key)
{
    static const char *const secrets[] = { "api_key", "credential_cmd", "cf_access_client_secret",
                                           "hf_token" };
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        if (strcmp(key, secrets[i]) == 0)
            return true;
    return false;
}

/* ---- places ---- */

static char *xdg_path(const char *variable, const char *fallback, const char *name)
{
    const char *root = getenv(variable), *home = getenv("HOME");
    if (root && root[0] == '/')
        return cli_printf("%s/tinkc/%s", root, name);
    /* An empty or relative one would scatter files over the root or wherever we are. */
    return home && home[0] == '/' ? cli_printf("%s/%s/tinkc/%s", home, fallback, name) : NULL;
}

char *cli_config_path(const char *name)
{
    return xdg_path("XDG_CONFIG_HOME", ".config", name);
}
char *cli_cache_path(const char *name)
{
    return xdg_path("XDG_CACHE_HOME", ".cache", name);
}
char *cli_state_path(const char *name)
{
    return xdg_path("XDG_STATE_HOME", ".local/state", name);
}
char *cli_data_path(const char *name)
{
    return xdg_path("XDG_DATA_HOME", ".local/share", name);
}

/* .tinkc.toml here or in the nearest parent. */
static char *find_project_file(void)
{
    char *here = getcwd(NULL, 0);
    while (here) {
        char *file = cli_printf("%s/.tinkc.toml", strcmp(here, "/") == 0 ? "" : here);
        if (file && access(file, R_OK) == 0) {
            free(here);
            return file;
        }
        free(file);
        char *slash = strrchr(here, '/');
        if (!slash || !here[1])
            break;
        slash[slash == here] = '\0';
    }
    free(here);
    return NULL;
}

/* The first of $XDG_CONFIG_DIRS that has one, else /etc. */
static char *find_system_file(void)
{
    const char *dirs = getenv("XDG_CONFIG_DIRS");
    for (const char *p = dirs ? dirs : ""; *p;) {
        size_t n = strcspn(p, ":");
        char *file = cli_printf("%.*s/tinkc/config.toml", (int)n, p);
        if (file && *p == '/' && access(file, R_OK) == 0)
            return file;
        free(file);
        p += n + (p[n] == ':');
    }
    return strdup("/etc/tinkc/config.toml");
}

/* ---- reading TOML ---- */

typedef struct reader {
    cli_app *app;
    const char *file;
    const char *at;
    int line;
    int layer;
    char table[256];
} reader;

/* Takes the text over. 0, or an exit code when there is no memory for it. */
static int add_finding(cli_app *app, int layer, bool error, char *text, const char *hint)
{
    cli_config *config = app->config;
    cli_finding *grown =
        text ? realloc(config->findings, (config->n_findings + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(text);
        return cli_fail(app, "internal", NULL, "out of memory");
    }
    config->findings = grown;
    grown[config->n_findings++] = (cli_finding){ text, hint, layer, error };
    return 0;
}

/* False, so that reading of this file ends here. */
static bool bad_file(const reader *r, const char *what)
{
    (void)add_finding(r->app, r->layer, true, cli_printf("%s:%d: %s", r->file, r->line, what),
                      NULL);
    return false;
}

static void skip_blanks(reader *r)
{
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
}

static bool is_bare(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

static bool add_char(char *out, size_t cap, size_t *n, char c)
{
    if (*n + 1 >= cap)
        return false;
    out[(*n)++] = c;
    out[*n] = '\0';
    return true;
}

/* "basic" or 'literal', on one line. */
static bool read_quoted(reader *r, char *out, size_t cap, size_t *n)
{
    static const char names[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
    char quote = *r->at++;
    while (*r->at && *r->at != quote && *r->at != '\n') {
        char c = *r->at++;
        if (c == '\\' && quote == '"') {
            const char *name = *r->at ? strchr(names, *r->at) : NULL;
            if (!name)
                return false;
            c = values[name - names];
            r->at++;
        }
        if (!add_char(out, cap, n, c))
            return false;
    }
    return *r->at == quote && *r->at++;
}

/* a.b."c d" */
static bool read_key(reader *r, char *out, size_t cap, size_t *n)
{
    for (;;) {
        skip_blanks(r);
        size_t before = *n;
        if (*r->at == '"' || *r->at == '\'') {
            if (!read_quoted(r, out, cap, n))
                return false;
        } else {
            while (is_bare(*r->at))
                if (!add_char(out, cap, n, *r->at++))
                    return false;
        }
        if (*n == before)
            return false;
        skip_blanks(r);
        if (*r->at != '.')
            return true;
        r->at++;
        if (!add_char(out, cap, n, '.'))
            return false;
    }
}

static bool read_scalar(reader *r, char *out, size_t cap, size_t *n)
{
    if (*r->at == '"' || *r->at == '\'')
        return read_quoted(r, out, cap, n);
    size_t before = *n;
    while (*r->at && !strchr(" \t\r\n#,]", *r->at))
        if (!add_char(out, cap, n, *r->at++))
            return false;
    double number;
    const char *word = out + before;
    return strcmp(word, "true") == 0 || strcmp(word, "false") == 0 ||
           cli_parse_number(word, &number);
}

static bool read_array(reader *r, char *out, size_t cap, size_t *n)
{
    r->at++;
    for (bool first = true;; first = false) {
        while (*r->at && strchr(" \t\r\n", *r->at))
            r->line += *r->at++ == '\n';
        if (*r->at == ']')
            return r->at++, true;
        if (!first && !add_char(out, cap, n, ','))
            return false;
        if (!read_scalar(r, out, cap, n))
            return false;
        while (*r->at && strchr(" \t\r\n", *r->at))
            r->line += *r->at++ == '\n';
        if (*r->at == ',')
            r->at++;
        else if (*r->at != ']')
            return false;
    }
}

static bool add_setting(reader *r, const char *key, const char *value)
{
    cli_config *config = r->app->config;
    cli_setting *grown = realloc(config->settings, (config->n_settings + 1) * sizeof *grown);
    if (!grown)
        return bad_file(r, "out of memory");
    config->settings = grown;
    grown[config->n_settings++] = (cli_setting){ strdup(key), strdup(value),
                                                 cli_printf("%s:%d", r->file, r->line), r->layer };
    return true;
}

/* ---- which keys there are ---- */

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* "train.sft.lora_rank" is the option --lora-rank of `tinkc train sft`, also by the name of its
 * cookbook field. */
static bool names_option(const char *key, const cli_command *c, const cli_option *o)
{
    char *prefix = cli_printf("%s%s%s.", c->noun, c->verb ? "." : "", c->verb ? c->verb : "");
    size_t n = prefix ? strlen(prefix) : 0;
    bool same = prefix && strncmp(key, prefix, n) == 0;
    free(prefix);
    if (!same)
        return false;
    if (o->cookbook && strcmp(key + n, o->cookbook) == 0)
        return true;
    const char *a = key + n, *b = o->name;
    for (; *a && *b && (*a == *b || (*a == '_' && *b == '-')); a++)
        b++;
    return !*a && !*b;
}

/* The option that a key such as train.sft.lora_rank stands for, and whose it is; NULL = none. */
static const cli_option *option_of_key(const char *key, const cli_command **command)
{
    for (const cli_command *c = cli_commands; c->noun; c++) {
        *command = c;
        for (const cli_option *o = c->options; o && o->name; o++)
            if (names_option(key, c, o))
                return o;
    }
    *command = NULL;
    return NULL;
}

/* The part of a key that is named in cli_profile_keys; NULL = the key is of another kind. */
static const char *profile_part(const char *key)
{
    const char *dot = strchr(key, '.');
    if (!dot)
        return key;
    if (strncmp(key, "defaults.", 9) == 0)
        return key + 9;
    if (strncmp(key, "profile.", 8) == 0 && strchr(key + 8, '.'))
        return strrchr(key, '.') + 1;
    return NULL;
}

static void warn_unknown(const reader *r, const char *key, const char *part)
{
    const char *near = NULL;
    size_t n = 0;
    while (cli_profile_keys[n])
        n++;
    if (part)
        near = cli_nearest(part, cli_profile_keys, n);
    if (part == key && !near)
        near = cli_nearest(key, (const char *const[]){ "current_profile" }, 1);
    (void)add_finding(r->app, r->layer, false,
                      cli_printf("%s:%d: unknown key '%s'%s%s", r->file, r->line, part ? part : key,
                                 near ? "; did you mean " : "", near ? near : ""),
                      NULL);
}

/* The global option that a key of a profile stands for, retry_for for one; NULL = none. */
static const cli_option *option_of_part(const char *part)
{
    char name[64];
    size_t n = 0;
    for (; part[n] && n + 1 < sizeof name; n++)
        name[n] = part[n] == '_' ? '-' : part[n];
    return cli_find_option(NULL, name, n);
}

bool cli_config_check_value(const char *key, const char *value, char why[CLI_WHY])
{
    const cli_option *o = option_of_part(key);
    if ((strcmp(key, "telemetry") == 0 || strcmp(key, "share_store") == 0) &&
        strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return (void)snprintf(why, CLI_WHY, "'%.60s' is not true or false", value), false;
    if (strcmp(key, "base_bits") == 0 && strcmp(value, "4") != 0 && strcmp(value, "8") != 0)
        return (void)snprintf(why, CLI_WHY, "'%.60s' is not 4 or 8", value), false;
    return !o || cli_check_value(o, value, why);
}

/* What is wrong with the value of one command's option is that command's affair, and a warning to
 * the others. */
static bool check_setting(const reader *r, const char *key, const char *value)
{
    const char *part = profile_part(key);
    const cli_command *command = NULL;
    char why[CLI_WHY];
    bool fine = true;
    if (strcmp(key, "current_profile") == 0 || strcmp(key, "profile") == 0)
        return true;
    if (part && listed(cli_profile_keys, part)) {
        fine = cli_config_check_value(part, value, why);
    } else {
        const cli_option *o = part ? NULL : option_of_key(key, &command);
        if (!o)
            return warn_unknown(r, key, part), true;
        fine = cli_check_value(o, value, why);
    }
    if (fine)
        return true;
    char *text = cli_printf("%s:%d: %s: %s", r->file, r->line, part ? part : key, why);
    bool fatal = !command || command == r->app->command;
    return add_finding(r->app, r->layer, fatal, text, NULL) == 0 && !fatal;
}

/* Whether a path has no way up by its own words: relative, and without "..". */
static bool leads_down(const char *path)
{
    if (path[0] == '/' || path[0] == '~')
        return false;
    for (const char *p = path; (p = strstr(p, "..")) != NULL; p += 2)
        if ((p == path || p[-1] == '/') && (p[2] == '\0' || p[2] == '/'))
            return false;
    return true;
}

/* The real name of the part of a path that exists already; yours. NULL = not known: no memory, no
 * permission, or a link to something that is not there yet. */
static char *resolve_existing(const char *path)
{
    struct stat st;
    char *part = cli_printf("./%s", path), *real = NULL;
    while (part && !(real = realpath(part, NULL)) && errno == ENOENT && lstat(part, &st) != 0)
        *strrchr(part, '/') = '\0';
    free(part);
    return real;
}

/* Whether a path, seen from here, stays below the folder that the project file lies in. */
static bool stays_inside(const char *project_file, const char *path)
{
    char *folder = leads_down(path) ? strdup(project_file) : NULL;
    if (!folder)
        return false;
    strrchr(folder, '/')[folder[0] == '/' && !strchr(folder + 1, '/')] = '\0';
    char *root = realpath(folder, NULL), *real = resolve_existing(path);
    size_t n = root ? strlen(root) : 0;
    bool inside =
        root && real && (n == 1 || (strncmp(real, root, n) == 0 && (!real[n] || real[n] == '/')));
    free(folder);
    free(root);
    free(real);
    return inside;
}

const char *cli_users_alone(const cli_option *o)
{
    static const char *const never[] = { "save", "output", "force", "yes", NULL };
    if (o->value && strcmp(o->value, "CMD") == 0)
        return "a project file may not name a command to run";
    if (o->value && strcmp(o->value, "URL") == 0)
        return "a project file may not name an address";
    if (listed(never, o->name))
        return "a project file may not set what writes or overwrites files";
    if (strcmp(o->name, "pass-env") == 0)
        return "a project file may not pass variables of the environment on";
    return NULL;
}

/* What a repository that was cloned must not choose; NULL = it may. */
static const char *project_forbids(const char *project_file, const cli_option *o, const char *value)
{
    const char *no = cli_users_alone(o);
    if (no)
        return no;
    if (strcmp(o->name, "if-exists") == 0 && strcmp(value, "delete") == 0)
        return "a project file may not ask for a run to be deleted";
    if (strcmp(o->name, "log-dir") == 0 && !stays_inside(project_file, value))
        return "a project file's log_dir must be inside the project";
    return NULL;
}

bool cli_project_may_set(const cli_app *app, const cli_option *o, const char *value,
                         char why[CLI_WHY])
{
    const char *file = app->config ? app->config->project_file : NULL;
    const char *no = file ? project_forbids(file, o, value) : "there is no project file";
    (void)snprintf(why, CLI_WHY, "%s", no ? no : "");
    return !no;
}

/* Whether a file of this layer may set this key to this value. */
static bool check_key(const reader *r, const char *key, const char *value)
{
    const char *last = strrchr(key, '.');
    last = last ? last + 1 : key;
    if (r->layer == CLI_LAYER_PROJECT) {
        static const char *const harmless[] = { "model",   "renderer", "format",
                                                "columns", "profile",  NULL };
        if (strncmp(key, "train.", 6) != 0 && strncmp(key, "chat.", 5) != 0 &&
            !listed(harmless, key))
            return bad_file(r, "a project file may set only model, renderer, format, columns, "
                               "profile, train.* and chat.*");
        const cli_command *command;
        const cli_option *option = option_of_key(key, &command);
        const char *no = option ? project_forbids(r->file, option, value) : NULL;
        if (no)
            return bad_file(r, no);
    }
    if (r->layer != CLI_LAYER_CREDENTIALS && cli_config_is_secret(last))
        return bad_file(r, "secrets belong into credentials.toml");
    return true;
}

static bool read_line(reader *r)
{
    char key[512], value[4096] = "";
    size_t n = 0, m = 0;
    if (*r->at == '[') {
        r->at++;
        if (!read_key(r, r->table, sizeof r->table, &n) || *r->at++ != ']')
            return bad_file(r, "a table header such as [profile.work] is needed");
        return true;
    }
    if (r->table[0]) {
        n = strlen(r->table);
        memcpy(key, r->table, n);
        key[n++] = '.';
    }
    key[n] = '\0';
    if (!read_key(r, key, sizeof key, &n))
        return bad_file(r, "a key is needed");
    if (*r->at++ != '=')
        return bad_file(r, "'=' is needed after the key");
    skip_blanks(r);
    if (!(*r->at == '[' ? read_array(r, value, sizeof value, &m)
                        : read_scalar(r, value, sizeof value, &m)))
        return bad_file(r, "a value is needed: \"text\", a number, true, false or an array");
    return check_key(r, key, value) && check_setting(r, key, value) && add_setting(r, key, value);
}

static void read_text(reader *r)
{
    if (strncmp(r->at, "\xEF\xBB\xBF", 3) == 0)
        r->at += 3;
    for (r->line = 1; *r->at; r->line++) {
        skip_blanks(r);
        if (*r->at && !strchr("#\r\n", *r->at)) {
            if (!read_line(r))
                return;
            skip_blanks(r);
        }
        if (*r->at == '#')
            r->at += strcspn(r->at, "\n");
        if (*r->at == '\r')
            r->at++;
        if (*r->at && *r->at++ != '\n') {
            (void)bad_file(r, "the end of the line is needed here");
            return;
        }
    }
}

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t n = 0;
    if (!f)
        return NULL;
    if (getdelim(&text, &n, '\0', f) < 0) {
        free(text);
        text = ferror(f) ? NULL : strdup("");
    }
    fclose(f);
    return text;
}

static void read_file(cli_app *app, const char *file, int layer)
{
    struct stat st;
    if (!file || stat(file, &st) != 0)
        return;
    if (layer == CLI_LAYER_PROJECT && !S_ISREG(st.st_mode)) { /* a terminal or a pipe would block */
        (void)add_finding(app, layer, true, cli_printf("%s: not a regular file", file), NULL);
        return;
    }
    if (layer == CLI_LAYER_CREDENTIALS && (st.st_mode & 077)) {
        (void)add_finding(app, layer, true, cli_printf("%s: others can read this file", file),
                          "chmod 600 it");
        return;
    }
    char *text = slurp(file);
    if (!text) {
        (void)add_finding(app, layer, true,
                          cli_printf("%s: cannot be read: %s", file, tkc_errno_text(errno)), NULL);
        return;
    }
    reader r = { .app = app, .file = file, .at = text, .layer = layer };
    read_text(&r);
    free(text);
}

/* ---- asking ---- */

static const cli_setting *find_setting(const cli_app *app, int layer, const char *key)
{
    const cli_config *config = app->config;
    for (size_t i = config ? config->n_settings : 0; i-- > 0;)
        if (config->settings[i].layer == layer && strcmp(config->settings[i].key, key) == 0)
            return &config->settings[i];
    return NULL;
}

static const cli_setting *find_any(const cli_app *app, const char *key)
{
    char name[600];
    const char *forms[] = { key, NULL, NULL };
    char profile[600];
    (void)snprintf(profile, sizeof profile, "profile.%s.%s", app->config->profile, key);
    (void)snprintf(name, sizeof name, "defaults.%s", key);
    forms[1] = profile;
    forms[2] = name;
    static const struct {
        int layer, form;
    } order[] = { { CLI_LAYER_PROJECT, 0 }, { CLI_LAYER_CREDENTIALS, 1 }, { CLI_LAYER_USER, 1 },
                  { CLI_LAYER_USER, 2 },    { CLI_LAYER_USER, 0 },        { CLI_LAYER_SYSTEM, 1 },
                  { CLI_LAYER_SYSTEM, 2 },  { CLI_LAYER_SYSTEM, 0 } };
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const cli_setting *s = find_setting(app, order[i].layer, forms[order[i].form]);
        if (s)
            return s;
    }
    return NULL;
}

const char *cli_config_get(const cli_app *app, const char *key, const char **origin)
{
    const cli_setting *s = app->config && app->config->profile ? find_any(app, key) : NULL;
    if (s && origin)
        *origin = s->origin;
    return s ? s->value : NULL;
}

int cli_config_defaults(cli_app *app)
{
    static const int layers[] = { CLI_LAYER_PROJECT, CLI_LAYER_USER, CLI_LAYER_SYSTEM };
    const cli_config *config = app->config;
    int bad = 0;
    for (const cli_option *o = app->command->options; o && o->name && !bad; o++) {
        const cli_setting *found = NULL;
        for (size_t l = 0; !cli_given(app, o->name) && !found && l < 3; l++)
            for (size_t i = config->n_settings; i-- > 0 && !found;)
                if (config->settings[i].layer == layers[l] &&
                    names_option(config->settings[i].key, app->command, o))
                    found = &config->settings[i];
        if (found)
            bad =
                cli_set_value(app, o->name, found->value,
                              found->layer == CLI_LAYER_PROJECT ? CLI_FROM_PROJECT : CLI_FROM_USER,
                              found->origin);
    }
    return bad;
}

tkc_tree *cli_config_profile_names(const cli_app *app)
{
    tkc_tree *seen = cli_object(app);
    tkc_tree_set_bool(seen, app->config->profile, true);
    for (size_t i = 0; i < app->config->n_settings; i++) {
        const char *key = app->config->settings[i].key;
        if (strncmp(key, "profile.", 8) != 0)
            continue;
        char *name = strndup(key + 8, strcspn(key + 8, "."));
        if (name && !tkc_tree_get(seen, name))
            tkc_tree_set_bool(seen, name, false);
        free(name);
    }
    return seen;
}

bool cli_config_has_profile(const cli_app *app, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < app->config->n_settings; i++) {
        const char *key = app->config->settings[i].key;
        if (strncmp(key, "profile.", 8) == 0 && strncmp(key + 8, name, n) == 0 && key[8 + n] == '.')
            return true;
    }
    return strcmp(name, "default") == 0;
}

int cli_config_no_profile(const cli_app *app, const char *name, const char *origin)
{
    const char *key;
    char hint[160] = "tinkc config profiles lists them; tinkc auth login --profile NAME makes one";
    tkc_tree *known = cli_config_profile_names(app), *current;
    const char **names = calloc(tkc_tree_members(known) + 1, sizeof *names);
    size_t n = 0;
    TKC_TREE_EACH (known, key, current) {
        if (names && strcmp(key, name) != 0)
            names[n++] = key;
    }
    const char *near = cli_nearest(name, names, n);
    if (near)
        (void)snprintf(hint, sizeof hint, "did you mean %.120s?", near);
    free(names);
    return cli_fail(app, "config_invalid", hint, "there is no profile '%s' (%s)", name, origin);
}

static void choose_profile(cli_app *app)
{
    cli_config *config = app->config;
    const cli_value *flag = cli_value_of(app, "profile");
    const cli_setting *project = find_setting(app, CLI_LAYER_PROJECT, "profile");
    const cli_setting *current = find_setting(app, CLI_LAYER_USER, "current_profile");
    const char *name = flag      ? flag->text
                       : project ? project->value
                       : current ? current->value
                                 : "default";
    config->profile_origin = flag      ? flag->origin
                             : project ? project->origin
                             : current ? current->origin
                                       : "built in";
    config->profile = strdup(name);
}

int cli_config_load(cli_app *app)
{
    cli_config *config = calloc(1, sizeof *config);
    if (!config)
        return cli_fail(app, "internal", NULL, "out of memory");
    app->config = config;
    const char *only = cli_text(app, "config-file");
    if (!cli_flag(app, "no-config")) {
        config->user_file = only ? strdup(only) : cli_config_path("config.toml");
        config->credentials_file = cli_config_path("credentials.toml");
        config->project_file = only ? NULL : find_project_file();
        config->system_file = only ? NULL : find_system_file();
        read_file(app, config->project_file, CLI_LAYER_PROJECT);
        if (only && access(only, R_OK) != 0)
            (void)add_finding(app, CLI_LAYER_USER, true,
                              cli_printf("%s: %s", only, tkc_errno_text(errno)), NULL);
        else
            read_file(app, config->user_file, CLI_LAYER_USER);
        read_file(app, config->credentials_file, CLI_LAYER_CREDENTIALS);
        read_file(app, config->system_file, CLI_LAYER_SYSTEM);
    }
    choose_profile(app);
    return config->profile ? 0 : cli_fail(app, "internal", NULL, "out of memory");
}

int cli_config_report(const cli_app *app)
{
    const cli_config *config = app->config;
    const cli_finding *first = NULL;
    for (size_t i = 0; i < config->n_findings; i++) {
        const cli_finding *f = &config->findings[i];
        if (!f->error)
            cli_warn(app, "%s", f->text);
        else if (!first)
            first = f;
    }
    return first ? cli_fail(app, "config_invalid", first->hint, "%s", first->text) : 0;
}

void cli_config_free(cli_config *config)
{
    if (!config)
        return;
    for (size_t i = 0; i < config->n_settings; i++) {
        free(config->settings[i].key);
        free(config->settings[i].value);
        free(config->settings[i].origin);
    }
    free(config->settings);
    for (size_t i = 0; i < config->n_findings; i++)
        free(config->findings[i].text);
    free(config->findings);
    free(config->user_file);
    free(config->credentials_file);
    free(config->project_file);
    free(config->system_file);
    free(config->profile);
    free(config);
}

/* ---- writing ---- */

static void put_setting(FILE *f, const char *key, const char *value)
{
    fprintf(f, "%s = \"", key);
    for (; *value; value++)
        fprintf(f, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    fputs("\"\n", f);
}

/* The text of a file with `table.key` set (or removed): one line is changed, all others stay. */
static char *edit_text(const char *text, const char *table, const char *key, const char *value)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    if (!f)
        return NULL;
    bool inside = table[0] == '\0', done = false;
    size_t key_len = strlen(key);
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        const char *p = line + strspn(line, " \t");
        bool header = *p == '[';
        if (header && inside && !done && value) {
            put_setting(f, key, value);
            done = true;
        }
        if (header) {
            size_t m = strlen(table);
            inside = m && strncmp(p + 1, table, m) == 0 && p[1 + m] == ']';
        }
        bool same =
            inside && !header && strncmp(p, key, key_len) == 0 && strchr(" \t=", p[key_len]);
        if (same && value && !done)
            put_setting(f, key, value);
        else if (!same)
            fprintf(f, "%.*s\n", (int)n, line);
        done = done || same;
        line += n + (line[n] == '\n');
    }
    fflush(f); /* brings `size` up to date */
    if (!done && value) {
        if (!inside)
            fprintf(f, "%s[%s]\n", size ? "\n" : "", table);
        put_setting(f, key, value);
    }
    return fclose(f) == 0 ? out : (free(out), NULL);
}

static int replace_file(cli_app *app, const char *path, const char *text, mode_t mode)
{
    cli_save s = { 0 };
    if (!cli_make_parents(path, 0700))
        return cli_fail(app, "local_io", NULL, "%s: %s", path, tkc_errno_text(errno));
    cli_save_begin(&s, path, mode);
    if (s.f)
        fputs(text, s.f);
    return cli_save_end(&s, app, true);
}

int cli_config_write(cli_app *app, const char *profile, const char *key, const char *value)
{
    bool secret = cli_config_is_secret(key);
    const char *file = secret ? app->config->credentials_file : app->config->user_file;
    if (!file)
        return cli_fail(app, "config_invalid", NULL, "there is no configuration file to write to");
    if (value && !cli_is_utf8(value, strlen(value)))
        return cli_fail(app, "usage", NULL, "%s: the value is not UTF-8", key);
    for (const char *p = value; p && *p; p++)
        if ((unsigned char)*p < 0x20)
            return cli_fail(app, "usage", NULL, "%s: line ends and controls cannot be stored", key);
    char *table = profile ? cli_printf("profile.%s", profile) : strdup("");
    char *old = slurp(file);
    char *text = edit_text(old ? old : "", table ? table : "", key, value);
    int bad = text ? replace_file(app, file, text, secret ? 0600 : 0644)
                   : cli_fail(app, "internal", NULL, "out of memory");
    free(text);
    free(old);
    free(table);
    return bad;
}
