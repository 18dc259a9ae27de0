/* cmd_tool.c - version, config: commands about the program itself. No network. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/output/editor.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

int cli_version(cli_app *app)
{
    if (app->compat) { /* the Python command knows one form */
        printf("tinker 0.%d.0\n", app->compat);
        return 0;
    }
    if (!cli_given(app, "json") && app->format != CLI_JSON && app->format != CLI_JSONL) {
        printf("tinkc %s\n", tinkc_version());
        return 0;
    }
    tkc_tree *features = cli_array(app);
    const char *text = tinkc_version_detail("features");
    for (const char *p = text ? text : ""; *p;) {
        size_t n = strcspn(p, " ");
        tkc_tree_add(features, tkc_tree_new_str(cli_arena(app), tkc_strn(p, n)));
        p += n + (p[n] == ' ');
    }
    tkc_tree *v =
        cli_pack(app, "{s:s,s:s,s:s,s:o,s:s}", "version", tinkc_version(), "commit",
                 tinkc_version_detail("commit"), "build_date", tinkc_version_detail("date"),
                 "features", features, "sdk_compat", tinkc_version_tinker());
    return cli_print_json(app, v);
}

/* Secrets show their kind and their last four letters. */
static char *redact(const char *key, const char *value)
{
    size_t n = strlen(value);
    if (!cli_config_is_secret(key) || strcmp(key, "credential_cmd") == 0)
        return strdup(value);
    return cli_printf("%.4s…%s", n > 8 ? value : "", n > 12 ? value + n - 4 : "");
}

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

int cli_config_list(cli_app *app)
{
    static const cli_column columns[] = {
        { .name = "key", .header = "Key", .path = "key", .is_default = true },
        { .name = "value",
          .header = "Value",
          .path = "value",
          .fit = CLI_FIT_WRAP,
          .is_default = true },
        { .name = "origin",
          .header = "Origin",
          .path = "origin",
          .is_default = true,
          .cut_left = true },
        { 0 }
    };
    cli_column shown[4];
    memcpy(shown, columns, sizeof columns);
    shown[2].is_default = cli_flag(app, "show-origin");
    tkc_tree *items = cli_array(app);
    for (size_t i = 0; i < app->config->n_settings; i++) {
        const cli_setting *s = &app->config->settings[i];
        char *value = redact(last_part(s->key), s->value);
        tkc_tree_add(items, cli_pack(app, "{s:s,s:s,s:s}", "key", s->key, "value",
                                     value ? value : "", "origin", s->origin));
        free(value);
    }
    cli_list list = { .key = "values", .columns = shown, .no_counts = true };
    return cli_print_list(app, &list, items);
}

int cli_config_get_command(cli_app *app)
{
    const char *origin = NULL, *value = cli_config_get(app, app->args[0], &origin);
    if (!value)
        return cli_fail(app, "not_found", "see: tinkc config list", "'%s' is not set",
                        app->args[0]);
    char *shown = redact(last_part(app->args[0]), value);
    int bad = 0;
    if (app->format == CLI_JSON) {
        tkc_tree *v =
            cli_pack(app, "{s:s,s:s,s:s}", "key", app->args[0], "value", shown, "origin", origin);
        bad = cli_print_json(app, v);
    } else {
        puts(shown ? shown : "");
    }
    free(shown);
    return bad;
}

static int check_profile_key(cli_app *app, const char *key)
{
    size_t n = 0;
    for (; cli_profile_keys[n]; n++)
        if (strcmp(cli_profile_keys[n], key) == 0)
            return 0;
    const char *near = cli_nearest(key, cli_profile_keys, n);
    char hint[128];
    (void)snprintf(hint, sizeof hint, "did you mean %s?", near ? near : "base_url or model");
    return cli_fail(app, "usage", hint, "a profile has no key '%s'", key);
}

int cli_config_set(cli_app *app)
{
    char why[CLI_WHY];
    int bad = check_profile_key(app, app->args[0]);
    if (!bad && !cli_config_check_value(app->args[0], app->args[1], why))
        bad = cli_fail(app, "usage", NULL, "%s: %s", app->args[0], why);
    if (!bad)
        bad = cli_config_write(app, app->config->profile, app->args[0], app->args[1]);
    if (bad)
        return bad;
    char *shown = redact(app->args[0], app->args[1]);
    tkc_tree *v = cli_pack(app, "{s:s,s:s,s:s}", "key", app->args[0], "value", shown ? shown : "",
                           "profile", app->config->profile);
    free(shown);
    return cli_print_done(app, v, "%s set in profile %s", app->args[0], app->config->profile);
}

int cli_config_unset(cli_app *app)
{
    int bad = check_profile_key(app, app->args[0]);
    if (!bad)
        bad = cli_config_write(app, app->config->profile, app->args[0], NULL);
    if (bad)
        return bad;
    tkc_tree *v = cli_pack(app, "{s:s,s:n,s:s}", "key", app->args[0], "value", "profile",
                           app->config->profile);
    return cli_print_done(app, v, "%s removed from profile %s", app->args[0], app->config->profile);
}

int cli_config_show_path(cli_app *app)
{
    const struct {
        const char *name, *path;
    } files[] = { { "project", app->config->project_file },
                  { "user", app->config->user_file },
                  { "credentials", app->config->credentials_file },
                  { "system", app->config->system_file } };
    tkc_tree *rows = cli_array(app), *object = cli_object(app);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        cli_row(app, rows, files[i].name, files[i].path);
        tkc_tree_set(object, files[i].name, cli_json_text(cli_arena(app), files[i].path));
    }
    int bad = cli_show_record(app, NULL, rows, object);
    return bad;
}

int cli_config_edit(cli_app *app)
{
    if (!app->config->user_file)
        return cli_fail(app, "config_invalid", NULL, "there is no configuration file");
    if (access(app->config->user_file, F_OK) != 0) {
        int bad = cli_config_write(app, app->config->profile, "format", NULL);
        if (bad)
            return bad;
    }
    if (!cli_edit_file(app->config->user_file))
        return cli_fail(app, "local_io", "set EDITOR", "%s failed", cli_editor());
    return 0;
}

int cli_config_use_profile(cli_app *app)
{
    if (!cli_config_has_profile(app, app->args[0]))
        return cli_config_no_profile(app, app->args[0], "command line");
    int bad = cli_config_write(app, NULL, "current_profile", app->args[0]);
    if (bad)
        return bad;
    return cli_print_done(app, cli_pack(app, "{s:s}", "profile", app->args[0]),
                          "profile %s is now the default", app->args[0]);
}

int cli_config_profiles(cli_app *app)
{
    static const cli_column columns[] = {
        { .name = "profile", .header = "Profile", .path = "profile", .is_default = true },
        { .name = "current",
          .header = "Current",
          .path = "current",
          .kind = CLI_CELL_BOOL,
          .is_default = true },
        { 0 }
    };
    tkc_tree *seen = cli_config_profile_names(app), *items = cli_array(app);
    const char *name;
    tkc_tree *current;
    TKC_TREE_EACH (seen, name, current)
        tkc_tree_add(items, cli_pack(app, "{s:s,s:o}", "profile", name, "current", current));
    cli_list list = { .key = "profiles", .columns = columns, .no_counts = true };
    return cli_print_list(app, &list, items);
}
