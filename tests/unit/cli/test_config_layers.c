/* test_config_layers.c - configuration files of every layer: what is read of them, which value wins, what is wrong, and
 * what a file becomes when one key changes. See support/cli/sheet.h. */
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "support/cli/held_output.h"
#include "support/cli/sheet.h"
#include "support/json_trees.h"
#include "support/test_case.h"

enum { PROJECT, USER, CREDENTIALS, SYSTEM };

static char place[] = "/tmp/tinkc-settings-XXXXXX";
static char *start; /* where the test was started */

static const char *const paths[] = { "project/.tinkc.toml", "user/tinkc/config.toml", "user/tinkc/credentials.toml",
                                     "system/tinkc/config.toml" };

static void in_place(const char *path, char out[200])
{
    (void)snprintf(out, 200, "%s/%s", place, path);
}

static int make_place(void **state)
{
    char path[200];
    (void)state;
    start = getcwd(NULL, 0);
    if (!start || !mkdtemp(place))
        return -1;
    in_place("project/below/x", path);
    if (!cli_make_parents(path, 0700))
        return -1;
    for (size_t i = 0; i < N(paths); i++) {
        in_place(paths[i], path);
        if (!cli_make_parents(path, 0700))
            return -1;
    }
    in_place("user", path);
    setenv("XDG_CONFIG_HOME", path, 1);
    char dirs[300];
    (void)snprintf(dirs, sizeof dirs, "relative:/nowhere:%s/system", place);
    setenv("XDG_CONFIG_DIRS", dirs, 1);
    return 0;
}

static int remove_place(void **state)
{
    static const char *const folders[] = { "project/below", "project", "user/tinkc", "user", "system/tinkc", "system" };
    char path[200];
    (void)state;
    for (size_t i = 0; i < N(folders); i++) {
        in_place(folders[i], path);
        (void)rmdir(path);
    }
    (void)rmdir(place);
    free(start);
    return 0;
}

static void put_file(int layer, const char *text)
{
    char path[200];
    in_place(paths[layer], path);
    if (!text) {
        (void)unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* The text without the folder that the test made. */
static void put_plain(const char *text)
{
    for (const char *at; (at = strstr(text, place)); text = at + strlen(place))
        fprintf(sheet, "%.*sHERE", (int)(at - text), text);
    fputs(text, sheet);
}

static void load(cli_app *app)
{
    char path[200];
    in_place("project/below", path);
    assert_int_equal(chdir(path), 0);
    assert_int_equal(cli_config_load(app), 0);
    assert_int_equal(chdir(start), 0);
}

/* All that was read, and all that was wrong. */
static void put_config(const cli_config *c)
{
    for (size_t i = 0; i < c->n_settings; i++) {
        put_plain(c->settings[i].key);
        fputs(" = ", sheet);
        put_quoted(c->settings[i].value, strlen(c->settings[i].value));
        fprintf(sheet, " layer %d ", c->settings[i].layer);
        put_plain(c->settings[i].origin);
        fputc('\n', sheet);
    }
    for (size_t i = 0; i < c->n_findings; i++) {
        fputs(c->findings[i].error ? "error " : "warning ", sheet);
        put_plain(c->findings[i].text);
        fprintf(sheet, " layer %d%s%s\n", c->findings[i].layer, c->findings[i].hint ? ": " : "",
                c->findings[i].hint ? c->findings[i].hint : "");
    }
}

/* Every warning is reported, then the first error with its hint, which is the command's end. */
static void check_report(const cli_app *app)
{
    const cli_config *c = app->config;
    const cli_finding *first = NULL;
    char *wanted = NULL;
    size_t len;
    FILE *to = open_memstream(&wanted, &len);
    assert_non_null(to);
    for (size_t i = 0; i < c->n_findings; i++)
        if (!c->findings[i].error)
            fprintf(to, "warning: %s\n", c->findings[i].text);
        else if (!first)
            first = &c->findings[i];
    if (first)
        fprintf(to, "error: %s\n", first->text);
    if (first && first->hint)
        fprintf(to, "hint: %s\n", first->hint);
    assert_int_equal(fclose(to), 0);
    hold_output();
    int bad = cli_config_report(app);
    char *said = release_output();
    assert_string_equal(said, wanted);
    assert_int_equal(bad, first ? CLI_EXIT_USAGE : 0);
    free(said);
    free(wanted);
}

static void put_case(int layer, const char *text)
{
    cli_app app = { .command = cli_find("run", "list") };
    fprintf(sheet, "--- layer %d ", layer);
    if (strlen(text) < 300)
        put_quoted(text, strlen(text));
    fputc('\n', sheet);
    put_file(layer, text);
    load(&app);
    put_file(layer, NULL);
    put_config(app.config);
    check_report(&app);
    cli_config_free(app.config);
    app.config = NULL;
}

TEST_WITH(what_is_read, open_sheet, close_sheet)
{
    static const char *const texts[] = {
        "", "\n\n", "# only\n", "model = \"x\"", "model = 'x\\y'", "model = \"a\\tb\\n\\\"c\\\\d\\b\\f\\r\"\n",
        "\xEF\xBB\xBFmodel = \"bom\"\n", "\xEF\xBB=1\n", "\"model\" = \"quoted key\"\n", "'model' = 1\n",
        "profile . default . model = \"dotted\"\n", "[ profile.\"default\" ]\nmodel = \"q\"\n",
        "\t[defaults]\t# c\n  model=\"d\"\r\n# c\r\n\r\n", "columns = [\"a\", \"b\",\n \"c\"]\nmodel = \"after\"\n",
        "columns = []\n", "columns = [ ]\n", "columns = [1, true]\n", "columns = [1\n,\n2\n]\ncolor = \"never\"\n",
        "columns = [1,]\n", "telemetry = true\ntimeout = 5\n", "telemetry = false # no\n", "timeout = 5# no\n",
        "timeout = 5 \n", "timeout = 5\t\r\n", "model = \"\"\n", "model = ''\n", "model = \"a#b\"#c\n",
        "model = \"\xc3\xa9\"\n", "a_b-C9 = 1\n", "share_store = true\nretry_for = \"5m\"\n",
        "time = \"iso\"\nproject_id = \"p\"\nrenderer = \"r\"\nformat = \"csv\"\n",
        "current_profile = \"w\"\n[profile.w]\nmodel = \"1\"\n[profile.w.x]\nmodel = \"2\"\n",
        /* values and names */
        "telemetry = 7\n", "telemetry = 7\nmodle = 1\ncolor = \"x\"\n", "share_store = \"yes\"\n",
        "retry_for = \"soon\"\n", "format = \"x\"\n", "color = \"x\"\n", "time = \"x\"\n", "api_key = \"tml-x\"\n",
        "[profile.a]\nhf_token = \"x\"\n", "credential_cmd = \"x\"\n", "cf_access_client_secret = \"x\"\n",
        "cf_access_client_id = \"x\"\n", "modle = \"x\"\n", "curent_profile = \"x\"\n", "x.y = 1\n", "defaults.x = 1\n",
        "profile.x = 1\n", "profile = \"x\"\n", "run.list.limit = 2\n", "\n\n[run.list]\nlimit = -2\n",
        "train.sft.lora_rank = \"x\"\n", "train.sft.learning_rate = \"x\"\n", "train.sft.learning_rate = 1\n",
        "train.sft.lora-rank = 8\n", "train.sft.lora_ran = 8\n", "train.sft.lora_rankk = 8\n",
        "train.sf.lora_rank = 8\n", "chat.system = \"s\"\n", "chat.x = \"s\"\n", "[x]\ny = 1\n", "train.sft = 1\n",
        "retry_for_ = 1\n"
    };
    for (size_t i = 0; i < N(texts); i++)
        put_case(USER, texts[i]);
    /* The longest name of a table, key and value. */
    static const struct {
        const char *form;
        int most;
    } longest[] = { { "[%0*d]\n", 255 },
                    { "%0*d = 1\n", 511 },
                    { "model = \"%0*d\"\n", 4095 },
                    { "model = %0*d\n", 4095 },
                    { "%0*d.a = 1\n", 509 },
                    { "[%0*d.a]\n", 253 },
                    { "%0*d.a = 1\n", 510 },
                    { "columns = [%0*d,1]\n", 4093 },
                    { "columns = [%0*d,1]\n", 4094 } };
    for (size_t i = 0; i < N(longest); i++)
        for (int more = 0; more < 2; more++) {
            char text[4200];
            (void)snprintf(text, sizeof text, longest[i].form, longest[i].most + more, 0);
            cli_app app = { .command = cli_find("run", "list") };
            put_file(USER, text);
            load(&app);
            put_file(USER, NULL);
            const char *why = app.config->n_findings ? strstr(app.config->findings[0].text, ":1: ") : "";
            fprintf(sheet, "%d letters: %zu read, %zu wrong%.60s\n", longest[i].most + more, app.config->n_settings,
                    app.config->n_findings, why ? why : " elsewhere");
            cli_config_free(app.config);
        }
    compare("settings");
}

/* Reading ends where a file is broken. */
TEST_WITH(what_cannot_be_read, open_sheet, close_sheet)
{
    static const char *const texts[] = { "model",
                                         "model =",
                                         "model = \n",
                                         "model = x",
                                         "model = \"x",
                                         "model = 'x\ny'",
                                         "model = \"x\\q\"",
                                         "model = \"x\\",
                                         "model = \"x\" y",
                                         "= 1",
                                         "[x",
                                         "[x\n]",
                                         "[]",
                                         "[a]b",
                                         "a..b = 1",
                                         ".a = 1",
                                         "a. = 1",
                                         "columns = [1",
                                         "columns = [1 2]",
                                         "columns = [,]",
                                         "columns = [\"a\" x]",
                                         "columns = [x]",
                                         "model = tru",
                                         "model = truee",
                                         "model = fals",
                                         "timeout = 1x",
                                         "timeout = -",
                                         "\"\" = 1",
                                         "\"model = 1",
                                         "'a\nb' = 1",
                                         "model 1",
                                         "color = \"never\"\nbad\nmodel = 1\n" };
    for (size_t i = 0; i < N(texts); i++)
        put_case(USER, texts[i]);
    compare("settings-broken");
}

TEST_WITH(a_projects_file_may_not_set_what_runs_or_writes_elsewhere, open_sheet, close_sheet)
{
    static const char *const projects[] = { "base_url = \"http://x\"\n",
                                            "train.sft.hook = \"x\"\n",
                                            "train.sft.log_dir = \"../x\"\n",
                                            "train.sft.log_dir = \"..\"\n",
                                            "train.sft.log_dir = \"/x\"\n",
                                            "train.sft.log_dir = \"~/x\"\n",
                                            "train.sft.log_dir = \"a/../b\"\n",
                                            "train.sft.log_dir = \"a/..\"\n",
                                            "train.sft.log_dir = \"a..b/..c/d..e\"\n",
                                            "train.sft.log_dir = \"..a\"\n",
                                            "train.sft.log_dir = \"a/..b/..\"\n",
                                            "train.sft.log_dir = \"a\"\n",
                                            "train.sft.if_exists = \"delete\"\n",
                                            "train.sft.if_exists = \"resume\"\n",
                                            "chat.save = \"x\"\n",
                                            "train.rl.reward_url = \"http://x\"\n",
                                            "train.rl.env_cmd = \"x\"\n",
                                            "train.sft.lora_rank = 8\n",
                                            "api_key = \"tml-x\"\n",
                                            "train.x.api_key = \"tml-x\"\n",
                                            "profile = \"nope\"\n",
                                            "run.list.limit = 1\n",
                                            "renderer = \"qwen3\"\n",
                                            "model = 'm'\n",
                                            "format = 'csv'\n",
                                            "columns = ['a']\n",
                                            "color = 'never'\n",
                                            "chatx.system = 's'\n",
                                            "chat.system = 's'\n",
                                            "train = 's'\n",
                                            "model.x = 's'\n" };
    char path[200];
    for (size_t i = 0; i < N(projects); i++)
        put_case(PROJECT, projects[i]);
    put_case(CREDENTIALS, "api_key = \"tml-x\"\n[profile.w]\nhf_token = \"h\"\ncredential_cmd = \"c\"\n");
    put_case(SYSTEM, "model = \"s\"\napi_key = \"tml-x\"\n");
    put_case(SYSTEM, "modell = \"s\"\n");
    /* A file that others can read, before another error, and one that is not a file. */
    cli_app app = { .command = cli_find("run", "list") };
    put_file(SYSTEM, "telemetry = 7\n");
    put_file(CREDENTIALS, "api_key = \"x\"\n");
    in_place(paths[CREDENTIALS], path);
    assert_int_equal(chmod(path, 0640), 0);
    load(&app);
    put_config(app.config);
    check_report(&app);
    cli_config_free(app.config);
    put_file(CREDENTIALS, NULL);
    put_file(SYSTEM, NULL);
    in_place(paths[USER], path);
    assert_int_equal(mkdir(path, 0700), 0);
    load(&app);
    put_config(app.config);
    check_report(&app);
    cli_config_free(app.config);
    assert_int_equal(rmdir(path), 0);
    compare("settings-layers");
}

/* Which value wins, and of which profile. */
TEST_WITH(the_nearest_layer_and_its_profile_win, open_sheet, close_sheet)
{
    static const char *const keys[] = { "model",   "color",    "time",    "renderer",
                                        "api_key", "base_url", "nothing", "run.list.limit" };
    static const struct {
        int layer;
        const char *text;
    } steps[] = { { SYSTEM, "time = \"epoch\"\nmodel = \"system\"\nrenderer = \"system\"\n[run.list]\nlimit = 3\n" },
                  { SYSTEM, "model = \"s\"\n[defaults]\nmodel = \"sd\"\n" },
                  { SYSTEM, "model = \"s\"\n[defaults]\nmodel = \"sd\"\n[profile.default]\nmodel = \"sp\"\n" },
                  { USER, "model = \"user\"\n" },
                  { USER, "model = \"user\"\n[defaults]\nmodel = \"defaults\"\ncolor = \"never\"\n" },
                  { USER, "model = \"1\"\nmodel = \"2\"\n[profile.default]\nmodel = "
                          "\"profile\"\n[run.list]\nlimit = 2\n" },
                  { USER, "current_profile = \"work\"\n[profile.work]\nmodel = "
                          "\"work\"\n[profile.default]\nmodel = \"d\"\n" },
                  { CREDENTIALS,
                    "[profile.work]\napi_key = \"k\"\nmodel = \"c\"\n[profile.default]\napi_key = \"d\"\n" },
                  { PROJECT, "model = \"project\"\n" },
                  { PROJECT, "model = \"project\"\nprofile = \"default\"\n" } };
    for (size_t i = 0; i < N(steps); i++) {
        cli_app app = { .command = cli_find("run", "list") };
        put_file(steps[i].layer, steps[i].text);
        load(&app);
        fprintf(sheet, "--- profile %s, ", app.config->profile);
        put_plain(app.config->profile_origin);
        fputc('\n', sheet);
        for (size_t k = 0; k < N(keys); k++) {
            const char *origin = "-", *value = cli_config_get(&app, keys[k], &origin);
            fprintf(sheet, "%s %s ", keys[k], value ? value : "none");
            put_plain(origin);
            fputc('\n', sheet);
        }
        tkc_tree *names = cli_config_profile_names(&app);
        char *text = cli_json_print(names, TKC_TREE_SPACED);
        fprintf(sheet, "%s %d%d%d%d\n", text, cli_config_has_profile(&app, "default"),
                cli_config_has_profile(&app, "work"), cli_config_has_profile(&app, "wor"),
                cli_config_has_profile(&app, "works"));
        free(text);
        hold_output();
        int bad = cli_config_no_profile(&app, i % 2 ? "wrok" : "nope", "test");
        char *said = release_output();
        fprintf(sheet, "%d %s", bad, said);
        free(said);
        assert_int_equal(cli_config_defaults(&app), 0);
        const char *limit = cli_text(&app, "limit");
        fprintf(sheet, "limit %s\n", limit ? limit : "none");
        cli_parse_free(&app);
        cli_config_free(app.config);
    }
    for (int layer = PROJECT; layer <= SYSTEM; layer++)
        put_file(layer, NULL);
    compare("settings-order");
}

/* A file with one key set or removed: all other lines stay. */
TEST_WITH(what_is_written, open_sheet, close_sheet)
{
    static const struct {
        const char *before, *profile, *key, *value;
    } rows[] = { { NULL, "default", "model", "nano" },
                 { NULL, "default", "model", NULL },
                 { NULL, NULL, "current_profile", "w" },
                 { "", "w", "model", "a \"quoted\" \\ one" },
                 { "model = \"a\"", "w", "model", "b" },
                 { "model = \"a\"\n", NULL, "model", "b" },
                 { "model = \"a\"\n", NULL, "model", NULL },
                 { "[profile.w]\nmodel = \"a\"\n", NULL, "current_profile", "w" },
                 { "# mine\nmodel = \"a\"\n\n[profile.x]\ntime = \"iso\"\n  color=\"never\" # "
                   "why\n[profile.xy]\ntime = \"epoch\"\n",
                   "x", "time", "local" },
                 { "[profile.x]\ntime = \"iso\"\n  color=\"never\" # why\n[profile.xy]\ntime = \"epoch\"\n", "x",
                   "columns", "id" },
                 { "[profile.x]\ntime = \"iso\"\n\tcolor\t=\"never\" # why\n[profile.xy]\ncolor = "
                   "\"auto\"\n",
                   "x", "color", NULL },
                 { "[profile.xy]\ntime = \"epoch\"\n[profile.x]\n", "x", "time", "iso" },
                 { "[profile.x]\ntimes = 1\ntime = \"a\"\ntime = \"b\"\n", "x", "time", "c" },
                 { "[profile.x]\ntime = \"a\"\n[profile.y]\ntime = \"b\"\n[profile.x]\ntime = \"c\"\n", "x", "time",
                   "d" },
                 { "[profile.x]\n[other]\ntime = 1\n", "x", "time", NULL },
                 { "time = 1\n[profile.x]\nmodel = 1\n", "y", "time", "e" } };
    for (size_t i = 0; i < N(rows); i++) {
        cli_app app = { .command = cli_find("run", "list") };
        char path[200];
        put_file(USER, rows[i].before);
        load(&app);
        assert_int_equal(cli_config_write(&app, rows[i].profile, rows[i].key, rows[i].value), 0);
        cli_config_free(app.config);
        in_place(paths[USER], path);
        char *now = read_file(path);
        fprintf(sheet, "--- %s %s %s\n%s", rows[i].profile ? rows[i].profile : "-", rows[i].key,
                rows[i].value ? rows[i].value : "-", now);
        free(now);
        put_file(USER, NULL);
    }
    compare("settings-written");
}

TEST(what_is_not_written)
{
    cli_app app = { .command = cli_find("run", "list") };
    struct stat st;
    char path[200];
    load(&app);
    hold_output();
    int controls = cli_config_write(&app, "w", "model", "a\nb"), bytes = cli_config_write(&app, "w", "model", "a\xff"),
        blank = cli_config_write(&app, "w", "model", "a b");
    char *said = release_output();
    assert_true(controls == CLI_EXIT_USAGE && bytes == CLI_EXIT_USAGE && blank == 0);
    assert_string_equal(said, "error: model: line ends and controls cannot be stored\n"
                              "error: model: the value is not UTF-8\n");
    free(said);
    assert_int_equal(cli_config_write(&app, "w", "hf_token", "h"), 0);
    in_place(paths[CREDENTIALS], path);
    assert_true(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    in_place(paths[USER], path);
    assert_true(stat(path, &st) == 0 && (st.st_mode & 0700) == 0600);
    put_file(USER, NULL);
    put_file(CREDENTIALS, NULL);
    cli_config_free(app.config);
    /* Without a home there is no file. */
    char *home = strdup(getenv("XDG_CONFIG_HOME")), *old = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setenv("XDG_CONFIG_HOME", "relative", 1);
    setenv("HOME", "relative", 1);
    load(&app);
    hold_output();
    int nowhere = cli_config_write(&app, "w", "model", "a");
    free(release_output());
    assert_int_equal(nowhere, CLI_EXIT_USAGE);
    assert_true(!app.config->user_file && !app.config->credentials_file);
    cli_config_free(app.config);
    setenv("XDG_CONFIG_HOME", home, 1);
    if (old)
        setenv("HOME", old, 1);
    free(home);
    free(old);
}

/* Settings stand in for options: the project's before the user's before the system's; what is given wins. */
TEST(settings_stand_in_for_options)
{
    static const struct {
        int layer;
        const char *rank;
    } rows[] = { { SYSTEM, "3" }, { USER, "2" }, { PROJECT, "1" } };
    for (size_t i = 0; i < N(rows); i++) {
        char text[60];
        cli_app app = { .command = cli_find("train", "sft") };
        (void)snprintf(text, sizeof text, "train.sft.lora_rank = %s\n", rows[i].rank);
        put_file(rows[i].layer, text);
        load(&app);
        assert_int_equal(cli_config_defaults(&app), 0);
        assert_string_equal(cli_text(&app, "lora-rank"), rows[i].rank);
        cli_parse_free(&app);
        cli_config_free(app.config);
    }
    cli_app app = { .command = cli_find("train", "sft") };
    load(&app);
    assert_int_equal(cli_set_value(&app, "lora-rank", "9", CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(cli_config_defaults(&app), 0);
    assert_string_equal(cli_text(&app, "lora-rank"), "9");
    cli_parse_free(&app);
    cli_config_free(app.config);
    for (int layer = PROJECT; layer <= SYSTEM; layer++)
        put_file(layer, NULL);
}

static void assert_no_profile(const cli_app *app, const char *name, const char *hint)
{
    char wanted[300];
    hold_output();
    int code = cli_config_no_profile(app, name, "test");
    char *said = release_output();
    (void)snprintf(wanted, sizeof wanted, "error: there is no profile '%s' (test)\nhint: %s\n", name, hint);
    assert_string_equal(said, wanted);
    assert_int_equal(code, CLI_EXIT_USAGE);
    free(said);
}

TEST(a_profile_has_to_exist)
{
    cli_app app = { .command = cli_find("run", "list") };
    put_file(USER, "current_profile = \"nope\"\n[profile.last]\nmodel = \"m\"\n");
    load(&app);
    assert_true(cli_config_has_profile(&app, "last") && !cli_config_has_profile(&app, "las"));
    tkc_tree *names = cli_config_profile_names(&app);
    assert_true(tkc_tree_members(names) == 2 && tkc_tree_get_true(names, "nope") &&
                (tkc_tree_is_bool(tkc_tree_get(names, "last")) && !tkc_tree_is_true(tkc_tree_get(names, "last"))));
    /* The one that is selected is not offered in its own place. */
    assert_no_profile(&app, "nope", "tinkc config profiles lists them; tinkc auth login --profile NAME makes one");
    assert_no_profile(&app, "lasst", "did you mean last?");
    cli_config_free(app.config);
    cli_config_free(NULL);
    cli_parse_free(&app);
    put_file(USER, NULL);
}

/* --config-file is read in place of the user's, the project's and the system's; --no-config reads none. */
TEST(a_named_file_replaces_all_layers)
{
    char path[200];
    put_file(PROJECT, "model = \"project\"\n");
    put_file(SYSTEM, "time = \"iso\"\n");
    put_file(USER, "model = \"user\"\n");
    in_place("user/own.toml", path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("color = \"never\"\n", f);
    assert_int_equal(fclose(f), 0);
    cli_app app = { .command = cli_find("run", "list") };
    assert_int_equal(cli_set_value(&app, "config-file", path, CLI_FROM_PROGRAM, "test"), 0);
    load(&app);
    assert_true(app.config->n_settings == 1 && app.config->n_findings == 0);
    assert_string_equal(cli_config_get(&app, "color", NULL), "never");
    cli_config_free(app.config);
    assert_int_equal(unlink(path), 0);
    load(&app);
    assert_true(app.config->n_settings == 0 && app.config->n_findings == 1);
    assert_true(app.config->findings[0].error && app.config->findings[0].layer == CLI_LAYER_USER);
    assert_non_null(strstr(app.config->findings[0].text, "own.toml: No such file or directory"));
    cli_config_free(app.config);
    cli_parse_free(&app);
    for (int layer = PROJECT; layer <= SYSTEM; layer++)
        put_file(layer, NULL);
}

/* What a command would use: the engine or a service, which model and format, and how long it tries. */
static void put_use(const char *noun, const char *verb, const char *text, const char *option, const char *value)
{
    cli_app app = { .command = cli_find(noun, verb), .deadline_ms = INT64_MAX };
    assert_non_null(app.command);
    int layer = strstr(text, "key") || strstr(text, "secret") || strstr(text, "token") || strstr(text, "cmd")
                    ? CREDENTIALS
                    : USER;
    put_file(layer, text);
    load(&app);
    put_file(layer, NULL);
    fprintf(sheet, "%s ", noun);
    put_input(text);
    fprintf(sheet, "--%s ", option);
    put_plain(value);
    fputs(": ", sheet);
    if (*option)
        assert_int_equal(cli_set_value(&app, option, value, CLI_FROM_PROGRAM, "test"), 0);
    bool local = cli_wants_local(&app);
    const char *model = cli_model(&app), *format = cli_renderer(&app, "Qwen/Qwen3-8B");
    assert_ptr_equal(cli_model(&app), model); /* a name stays where it is */
    fprintf(sheet, "%s, model ", local ? "local" : "service");
    put_plain(model ? model : "none");
    fprintf(sheet, ", %s", format ? format : "none");
    hold_output();
    int bad = cli_connect_as(&app, "tml-x", NULL); /* which does not take "local:" */
    free(release_output());
    fprintf(sheet, ", %d, %lld ms", bad, (long long)app.retry_window_ms);
    for (const char *const *v = (const char *const[]){ "HF_TOKEN", "CLOUDFLARE_ACCESS_CLIENT_ID",
                                                       "CLOUDFLARE_ACCESS_CLIENT_SECRET", NULL };
         *v; v++) {
        fprintf(sheet, " %s", getenv(*v) ? getenv(*v) : "-");
        unsetenv(*v);
    }
    fputc('\n', sheet);
    cli_disconnect(&app);
    assert_true(!app.client && !app.events && !app.engine);
    cli_parse_free(&app);
    cli_config_free(app.config);
}

/* Callers keep what cli_model gives them, with --base-bits, too. */
TEST(a_name_in_bits_stays_where_it_is)
{
    cli_app app = { .command = cli_find("train", "sft"), .deadline_ms = INT64_MAX };
    load(&app);
    assert_int_equal(cli_set_value(&app, "local", "on", CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(cli_set_value(&app, "base-bits", "4", CLI_FROM_PROGRAM, "test"), 0);
    const char *model = cli_model(&app);
    assert_string_equal(model, "nano#4bit");
    assert_ptr_equal(cli_model(&app), model);
    cli_parse_free(&app);
    cli_config_free(app.config);
}

TEST_WITH(what_it_uses, open_sheet, close_sheet)
{
    static const char *const names[] = { "TINKER_API_KEY", "TINKER_CREDENTIAL_CMD", "HF_TOKEN", "TINKER_BASE_URL",
                                         "HUGGING_FACE_HUB_TOKEN" };
    static const char *const commands[][2] = { { "sample", NULL }, { "chat", NULL },  { "logprobs", NULL },
                                               { "train", "sft" }, { "eval", "run" }, { "run", "list" } };
    static const char *const texts[] = {
        "",
        "model = 'm'",
        "base_url = 'local:'",
        "base_url = 'http://x'",
        "[profile.default]\napi_key = 'tml-k'",
        "[profile.default]\ncredential_cmd = 'c'",
        "renderer = 'r'",
        "retry_for = '5s'",
        "retry_for = '0'",
        "[profile.default]\nhf_token = 'h'",
        "cf_access_client_id = 'i'",
        "[profile.default]\ncf_access_client_secret = 's'",
    };
    static const char *const options[][2] = {
        { "model", "x" },      { "base-url", "local:" }, { "base-url", "http://y" },
        { "local", "true" },   { "retry-for", "0" },     { "retry-for", "0.5" },
        { "retry-for", "2m" }, { "renderer", "q" },      { "api-key-file", "k" },
    };
    char model[100], name[300];
    for (size_t i = 0; i < N(names); i++)
        unsetenv(names[i]);
    for (size_t i = 0; i < N(commands); i++)
        put_use(commands[i][0], commands[i][1], "", "", "");
    for (size_t i = 0; i < N(texts); i++)
        put_use("sample", NULL, texts[i], "", "");
    for (size_t i = 0; i < N(options); i++)
        put_use("sample", NULL, "base_url = 'http://x'\nmodel = 'm'\nrenderer = 'r'\nretry_for = '5s'", options[i][0],
                options[i][1]);
    for (size_t i = 0; i < 2; i++) { /* by the environment; empty is as if it were not set */
        setenv(names[i], "", 1);
        put_use("sample", NULL, "", "", "");
        setenv(names[i], "tml-e", 1);
        put_use("sample", NULL, "", "", "");
        put_use("sample", NULL, "", "local", "true");
        unsetenv(names[i]);
    }
    setenv("HF_TOKEN", "own", 1); /* what is there stays */
    put_use("sample", NULL, "[profile.default]\nhf_token = 'h'", "", "");
    setenv("HF_TOKEN", "", 1);
    setenv("HUGGING_FACE_HUB_TOKEN", "", 1);
    put_use("sample", NULL, "[profile.default]\nhf_token = 'h'", "", "");
    setenv("HUGGING_FACE_HUB_TOKEN", "other", 1);
    put_use("sample", NULL, "[profile.default]\nhf_token = 'h'", "", "");
    setenv("HF_TOKEN", "own", 1);
    put_use("sample", NULL, "", "", "");
    unsetenv("HUGGING_FACE_HUB_TOKEN");
    /* A folder with a model is named by its whole path, on the engine. */
    (void)snprintf(model, sizeof model, "%s/project/below", place);
    for (size_t i = 0; i < 3; i++) {
        static const char *const files[] = { "config.json", "tokenizer.json" };
        put_use("sample", NULL, "", "model", model);
        (void)snprintf(name, sizeof name, "%s/project/../project/below", place);
        put_use("sample", NULL, "", "model", name);
        put_use("sample", NULL, "base_url = 'http://x'", "model", name);
        if (i < 2) {
            (void)snprintf(name, sizeof name, "%s/%s", model, files[i]);
            FILE *f = fopen(name, "w");
            assert_non_null(f);
            assert_int_equal(fclose(f), 0);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", model, i ? "config.json" : "tokenizer.json");
        assert_int_equal(unlink(name), 0);
    }
    compare("uses");
}

/* Folders of the user, by the environment. */
TEST(folders_of_the_user_follow_the_environment)
{
    static const struct {
        const char *name, *fallback;
        char *(*path)(const char *);
    } rows[] = { { "XDG_CONFIG_HOME", "/home/of/.config/tinkc/a", cli_config_path },
                 { "XDG_CACHE_HOME", "/home/of/.cache/tinkc/a", cli_cache_path },
                 { "XDG_STATE_HOME", "/home/of/.local/state/tinkc/a", cli_state_path },
                 { "XDG_DATA_HOME", "/home/of/.local/share/tinkc/a", cli_data_path } };
    for (size_t i = 0; i < N(rows); i++) {
        setenv("HOME", "/home/of", 1);
        setenv(rows[i].name, "/own", 1);
        char *own = rows[i].path("a");
        assert_string_equal(own, "/own/tinkc/a");
        setenv(rows[i].name, "own", 1); /* a relative one does not count */
        char *fallback = rows[i].path("a");
        assert_string_equal(fallback, rows[i].fallback);
        unsetenv(rows[i].name);
        setenv("HOME", "home", 1);
        assert_null(rows[i].path("a"));
        unsetenv("HOME");
        assert_null(rows[i].path("a"));
        free(own);
        free(fallback);
    }
}

RUN_TESTS(make_place, remove_place)
