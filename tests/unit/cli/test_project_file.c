/* test_project_file.c - .tinkc.toml comes with a repository: neither it nor a file that it names runs
 * commands, chooses addresses, deletes, or writes outside the project. What the user names may. */
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/train/train_config.h"
#include "support/cli/held_output.h"
#include "support/test_case.h"

static char place[] = "/tmp/tinkc-project-XXXXXX";

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int enter(void **state)
{
    char config[200];
    (void)state;
    if (!mkdtemp(place))
        return -1;
    (void)snprintf(config, sizeof config, "%s/user", place);
    setenv("XDG_CONFIG_HOME", config, 1);
    setenv("XDG_CONFIG_DIRS", "/nowhere", 1);
    (void)snprintf(config, sizeof config, "%s/project", place);
    return mkdir(config, 0700) || chdir(config) || mkdir("../outside", 0700) || mkdir("runs", 0700);
}

static int leave(void **state)
{
    char *command = NULL;
    (void)state;
    if (chdir("/") || asprintf(&command, "rm -rf %s", place) < 0)
        return -1;
    int bad = system(command);
    free(command);
    return bad;
}

/* What a start of the program makes of the line and the files; *hook is a copy. */
static int start(const char *line, char **said, char **hook)
{
    char words[400], *argv[16];
    int argc = 0;
    (void)snprintf(words, sizeof words, "tinkc %s", line);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    argv[argc] = NULL;
    cli_app app = { .program = "tinkc", .deadline_ms = INT64_MAX };
    hold_output();
    int bad = cli_parse(&app, argc, argv);
    bad = bad ? bad : cli_config_load(&app);
    bad = bad ? bad : cli_config_report(&app);
    bad = bad ? bad : cli_config_defaults(&app);
    bool sweep = app.command && app.command->run == cli_train_sweep;
    bad = bad ? bad : sweep ? cli_train_sweep(&app) : cli_train_config_take(&app);
    *said = release_output();
    const char *text = bad || sweep ? NULL : cli_text(&app, "hook");
    *hook = text ? strdup(text) : NULL;
    cli_config_free(app.config);
    cli_parse_free(&app);
    return bad;
}

static void refused(const char *line, const char *why)
{
    char *said, *hook;
    int bad = start(line, &said, &hook);
    if (bad != CLI_EXIT_USAGE || !strstr(said, why))
        fail_msg("%s: %d, %s", line, bad, said);
    assert_null(hook);
    free(said);
}

static void taken(const char *line, const char *wanted)
{
    char *said, *hook;
    int bad = start(line, &said, &hook);
    if (bad || (wanted && (!hook || strcmp(hook, wanted) != 0)))
        fail_msg("%s: %d, hook %s, %s", line, bad, hook ? hook : "none", said);
    free(said);
    free(hook);
}

TEST(a_config_that_a_project_names_has_its_rights)
{
    static const char *const rows[][2] = {
        { "hook = \"touch x\"\n", "a project file may not name a command to run" },
        { "force = true\n", "a project file may not set what writes or overwrites files" },
        { "if_exists = \"delete\"\n", "has no setting" }, /* a --config never sets it */
    };
    put(".tinkc.toml", "[train.sft]\nconfig = \"evil.toml\"\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200];
        (void)snprintf(text, sizeof text, "[train.sft]\n%s", rows[i][0]);
        put("evil.toml", text);
        refused("train sft data.jsonl", rows[i][1]);
    }
    put("evil.toml", "[train.sft]\nlora_rank = 8\n");
    taken("train sft data.jsonl", NULL);
    put(".tinkc.toml", "[train.rl]\nconfig = \"evil.toml\"\n");
    put("evil.toml", "[train.rl]\nreward_cmd = \"touch x\"\n");
    refused("train rl data.jsonl", "a project file may not name a command to run");
    put("evil.toml", "[train.rl]\nreward_url = \"http://x\"\n");
    refused("train rl data.jsonl", "a project file may not name an address");
}

TEST(a_config_on_the_line_is_the_users)
{
    put("mine.toml", "[train.sft]\nhook = \"mail me\"\n");
    put(".tinkc.toml", "[train.sft]\nlora_rank = 8\n");
    taken("train sft data.jsonl --config mine.toml", "mail me");
    put(".tinkc.toml", "[train.sft]\nconfig = \"other.toml\"\n");
    taken("train sft data.jsonl --config mine.toml", "mail me");
}

TEST(a_grid_of_a_project_has_its_rights)
{
    put("mine.toml", "[train.sft]\nhook = \"x\"\n");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"hook=touch x\"\n");
    refused("train sweep sft data.jsonl --dry-run", "may not name a command to run");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"config=mine.toml\"\n");
    refused("train sweep sft data.jsonl --dry-run", "may not name a file of settings");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"if-exists=resume,delete\"\n");
    refused("train sweep sft data.jsonl --dry-run", "may not ask for a run to be deleted");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"base-url=http://x\"\n");
    refused("train sweep sft data.jsonl --dry-run", "may set only options of the recipe");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"yes=true\"\n");
    refused("train sweep sft data.jsonl --dry-run", "may set only");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"api-key-file=k\"\n");
    refused("train sweep sft data.jsonl --dry-run", "may set only");
    put(".tinkc.toml", "[train.sweep]\ngrid = \"lora-rank=4,8\"\n");
    taken("train sweep sft data.jsonl --dry-run", NULL);
    taken("train sweep sft data.jsonl --dry-run --grid hook=x", NULL);
}

TEST(a_log_dir_is_judged_where_its_links_lead)
{
    assert_int_equal(symlink("../outside", "link"), 0);
    assert_int_equal(symlink("../nothing-yet", "dangling"), 0);
    assert_int_equal(symlink("runs", "within"), 0);
    static const char *const out[] = { "link",         "link/x",   "link/x/y",
                                       "runs/../link", "dangling", "dangling/x" };
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
        char text[200];
        (void)snprintf(text, sizeof text, "[train.sft]\nlog_dir = \"%s\"\n", out[i]);
        put(".tinkc.toml", text);
        refused("train sft data.jsonl", "log_dir must be inside the project");
    }
    put(".tinkc.toml", "[train.sft]\nlog_dir = \"within/new/deep\"\n");
    taken("train sft data.jsonl", NULL);
    put(".tinkc.toml", "[train.sft]\nlog_dir = \"runs/a\"\n");
    taken("train sft data.jsonl", NULL);
}

RUN_TESTS(enter, leave)
