/* test_project_file.c - what comes with a repository: neither .tinkc.toml nor a file that it names nor a log
 * directory runs commands, chooses addresses, deletes, or writes outside. What the user names may. */
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/track/chosen_commands.h"
#include "cli/train/train_config.h"
#include "support/cli/held_output.h"
#include "support/json_trees.h"
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
    setenv("XDG_STATE_HOME", config, 1);
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
    bool whole = app.command && (app.command->run == cli_train_sweep || app.command->run == cli_train_resume);
    bad = bad ? bad : whole ? app.command->run(&app) : cli_train_config_take(&app);
    *said = release_output();
    const char *text = bad || whole ? NULL : cli_text(&app, "hook");
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
    static const char *const out[] = { "link", "link/x", "link/x/y", "runs/../link", "dangling", "dangling/x" };
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

/* Values of a grid name folders: none of them is a way up, and links in the sweep's folder lead nowhere. */
TEST(runs_of_a_sweep_stay_in_its_folder)
{
    char *said, *hook;
    put(".tinkc.toml", "[train.sweep]\ngrid = \"metadata=a=b/../../../outside/x\"\n");
    assert_int_equal(start("train sweep sft data.jsonl --log-dir runs --dry-run", &said, &hook), 0);
    assert_non_null(strstr(said, "runs/metadata=a=b_.._.._.._outside_x\n"));
    free(said);
    put(".tinkc.toml", "[train.sweep]\nlog_dir = \"swept\"\ngrid = \"lr=1\"\n");
    static const char *const names[] = { "swept/lr=1.log", "swept/lr=1" };
    assert_int_equal(mkdir("swept", 0700), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(symlink("../../outside", names[i]), 0);
        assert_int_equal(start("train sweep sft data.jsonl", &said, &hook), CLI_EXIT_CONFLICT);
        assert_non_null(strstr(said, "is a link that leads out of the folder"));
        free(said);
        assert_int_equal(unlink(names[i]), 0);
    }
}

/* ---- a log directory that came along ---- */

static const char *const came = "{\"model_name\":\"nano\",\"tinkc\":{\"recipe\":\"%s\",\"files\":"
                                "[\"d.jsonl\"],\"options\":{%s}}}";

TEST(a_log_directory_that_came_along_runs_nothing)
{
    static const char *const rows[][2] = {
        { "sft", "\"hook\":\"touch x\"" },
        { "rl", "\"reward-cmd\":\"touch x\"" },
        { "rl", "\"env-cmd\":\"touch x\"" },
        { "rl", "\"reward-url\":\"http://x\"" },
        { "rl", "\"pass-env\":[\"HF_TOKEN\"]" },
        { "distill", "\"hook\":[\"touch x\"]" },
        { "sft", "\"force\":true" },
    };
    put(".tinkc.toml", "");
    assert_int_equal(mkdir("came", 0700), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[300];
        (void)snprintf(text, sizeof text, came, rows[i][0], rows[i][1]);
        put("came/config.json", text);
        refused("train resume came", "no run of yours was started there with it");
    }
}

/* What config.json has, as train resume asks for it: 0 or a refusal. */
static int ask(const char *folder, const tkc_tree *config, const char *option)
{
    cli_app app = { .command = cli_find("train", "rl") };
    hold_output();
    int bad = cli_choices_check(&app, folder, cli_find_option(app.command, option, strlen(option)),
                                tkc_tree_get(tkc_tree_get(tkc_tree_get(config, "tinkc"), "options"), option));
    free(release_output());
    return bad;
}

TEST(commands_that_the_user_chose_there_run_again)
{
    tkc_tree *mine = tkc_tree_pack(&json_arena, "{s:{s:{s:s,s:[s],s:s}}}", "tinkc", "options", "hook", "mail me",
                                   "pass-env", "HOME", "lr", "1e-3");
    tkc_tree *other = tkc_tree_pack(&json_arena, "{s:{s:{s:s}}}", "tinkc", "options", "hook", "touch x");
    cli_app app = { .command = cli_find("train", "rl") };
    cli_choices_note(&app, "runs", mine);
    cli_choices_note(&app, "runs", mine); /* again: noted once */
    assert_int_equal(ask("runs", mine, "hook"), 0);
    assert_int_equal(ask("./runs/../runs", mine, "pass-env"), 0);
    assert_int_equal(ask("runs", other, "hook"), CLI_EXIT_USAGE);
    assert_int_equal(ask("came", mine, "hook"), CLI_EXIT_USAGE); /* a copy elsewhere */
    assert_int_equal(ask("came", mine, "lr"), 0);
    char text[2000] = "", *end = text;
    FILE *f = fopen("../user/tinkc/commands.jsonl", "r");
    assert_non_null(f);
    (void)fread(text, 1, sizeof text - 1, f);
    fclose(f);
    size_t lines = 0;
    while ((end = strchr(end, '\n')))
        lines++, end++;
    assert_int_equal(lines, 2);
}

RUN_TESTS(enter, leave)
