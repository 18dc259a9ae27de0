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

/* Yours; NULL = the folder is gone, or no memory. */
static json_t *record_of(const char *folder, const char *option, const json_t *value)
{
    char *whole = realpath(folder, NULL);
    json_t *v = whole ? json_pack("{s:o,s:s,s:O}", "dir", cli_json_text(whole), "option", option,
                                  "value", value)
                      : NULL;
    free(whole);
    return v;
}

static bool is_noted(const char *path, const json_t *record)
{
    FILE *f = path ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t cap = 0;
    bool found = false;
    while (f && !found && getline(&line, &cap, f) > 0) {
        json_t *v = json_loads(line, 0, NULL);
        found = v && json_equal(v, record);
        json_decref(v);
    }
    free(line);
    if (f)
        fclose(f);
    return found;
}

static bool add_line(const char *path, const json_t *record)
{
    char *text = json_dumps(record, JSON_COMPACT), *line = text ? cli_printf("%s\n", text) : NULL;
    bool ok = line && cli_make_parents(path, 0700);
    int fd = ok ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    ok = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0)
        close(fd);
    free(line);
    free(text);
    return ok;
}

static bool note(const char *path, const char *folder, const char *option, const json_t *value)
{
    json_t *record = record_of(folder, option, value);
    bool ok = path && record && (is_noted(path, record) || add_line(path, record));
    json_decref(record);
    return ok;
}

static bool is_users_alone(const cli_option *o, const json_t *value)
{
    return o && value && !json_is_null(value) && !json_is_false(value) && cli_users_alone(o);
}

void cli_choices_note(const cli_app *app, const char *folder, const json_t *config)
{
    char *path = cli_state_path("commands.jsonl");
    const char *name;
    json_t *v;
    bool ok = true;
    json_object_foreach(json_object_get(json_object_get(config, "tinkc"), "options"), name, v)
    {
        if (is_users_alone(cli_find_option(app->command, name, strlen(name)), v))
            ok = note(path, folder, name, v) && ok;
    }
    if (!ok)
        cli_warn(app, "%s cannot be written: train resume will refuse the commands of this run",
                 path ? path : "the state folder");
    free(path);
}

int cli_choices_check(const cli_app *app, const char *folder, const cli_option *o,
                      const json_t *value)
{
    if (!is_users_alone(o, value))
        return 0;
    char *path = cli_state_path("commands.jsonl"), *text = json_dumps(value, JSON_ENCODE_ANY);
    json_t *record = record_of(folder, o->name, value);
    char *hint = cli_printf("if you chose it: tinkc train %s --config %s/config.toml --log-dir %s "
                            "--resume",
                            app->command->verb, folder, folder);
    int bad = record && is_noted(path, record)
                  ? 0
                  : cli_fail(app, "config_invalid", hint,
                             "%s/config.json sets %s to %.200s, and no run of yours was started "
                             "there with it",
                             folder, o->name, text ? text : "");
    json_decref(record);
    free(hint);
    free(text);
    free(path);
    return bad;
}
