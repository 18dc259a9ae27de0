/* chosen_commands.c - see chosen_commands.h. Touches commands.jsonl in the user's state folder only:
 * {"dir", "option", "value"} a line, dir with its links resolved. */
#include "cli/track/chosen_commands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

/* NULL = the folder is gone, or no memory. */
static tkc_tree *record_of(tkc_arena *arena, const char *folder, const char *option,
                           const tkc_tree *value)
{
    char *whole = realpath(folder, NULL);
    tkc_tree *v = whole ? tkc_tree_pack(arena, "{s:o,s:s,s:o}", "dir", cli_json_text(arena, whole),
                                        "option", option, "value", value)
                        : NULL;
    free(whole);
    return v;
}

static bool is_noted(const char *path, const tkc_tree *record)
{
    FILE *f = path ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t cap = 0;
    bool found = false;
    tkc_arena arena = { 0 };
    while (f && !found && getline(&line, &cap, f) > 0) {
        found = tkc_tree_equal(tkc_tree_read(&arena, tkc_str(line), 0), record);
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    free(line);
    if (f)
        fclose(f);
    return found;
}

static bool add_line(const char *path, const tkc_tree *record)
{
    char *text = cli_json_print(record, TKC_TREE_COMPACT),
         *line = text ? cli_printf("%s\n", text) : NULL;
    bool ok = line && cli_make_parents(path, 0700);
    int fd = ok ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    ok = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0)
        close(fd);
    free(line);
    free(text);
    return ok;
}

static bool note(const char *path, const char *folder, const char *option, const tkc_tree *value)
{
    tkc_arena arena = { 0 };
    const tkc_tree *record = record_of(&arena, folder, option, value);
    bool ok = path && record && (is_noted(path, record) || add_line(path, record));
    tkc_arena_free(&arena);
    return ok;
}

static bool is_users_alone(const cli_option *o, const tkc_tree *value)
{
    return o && value && !tkc_tree_is_null(value) &&
           !(tkc_tree_is_bool(value) && !tkc_tree_is_true(value)) && cli_users_alone(o);
}

void cli_choices_note(const cli_app *app, const char *folder, const tkc_tree *config)
{
    char *path = cli_state_path("commands.jsonl");
    const char *name;
    tkc_tree *v;
    bool ok = true;
    TKC_TREE_EACH (tkc_tree_get(tkc_tree_get(config, "tinkc"), "options"), name, v) {
        if (is_users_alone(cli_find_option(app->command, name, strlen(name)), v))
            ok = note(path, folder, name, v) && ok;
    }
    if (!ok)
        cli_warn(app, "%s cannot be written: train resume will refuse the commands of this run",
                 path ? path : "the state folder");
    free(path);
}

int cli_choices_check(const cli_app *app, const char *folder, const cli_option *o,
                      const tkc_tree *value)
{
    if (!is_users_alone(o, value))
        return 0;
    char *path = cli_state_path("commands.jsonl"), *text = cli_json_print(value, TKC_TREE_SPACED);
    tkc_arena arena = { 0 };
    const tkc_tree *record = record_of(&arena, folder, o->name, value);
    char *hint = cli_printf("if you chose it: tinkc train %s --config %s/config.toml --log-dir %s "
                            "--resume",
                            app->command->verb, folder, folder);
    int bad = record && is_noted(path, record)
                  ? 0
                  : cli_fail(app, "config_invalid", hint,
                             "%s/config.json sets %s to %.200s, and no run of yours was started "
                             "there with it",
                             folder, o->name, text ? text : "");
    tkc_arena_free(&arena);
    free(hint);
    free(text);
    free(path);
    return bad;
}
