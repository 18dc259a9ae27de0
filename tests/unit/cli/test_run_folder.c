/* test_run_folder.c - a run's log directory: who may write into it, rows that are appended, taken back and read again,
 * hooks, and what a removed run leaves. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/files.h"
#include "support/cli/held_output.h"
#include "support/cli/own_folder.h"
#include "support/json_trees.h"
#include "support/patience.h"
#include "cli/track/train_log.h"
#include "support/test_case.h"

static cli_app app;

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void assert_said(const char *wanted)
{
    char *said = release_output();
    assert_string_equal(said, wanted);
    free(said);
}

/* As the command does: what is said later is not for the log. */
static void end_log(cli_trainlog *log)
{
    app.log_file = NULL;
    cli_trainlog_close(log);
}

TEST(a_folder_has_one_writer)
{
    cli_claim first, second;
    assert_int_equal(cli_trainlog_claim(&app, "new/run", &first), 0);
    assert_true(first.made && first.held && is_there("new/run"));
    hold_output();
    int code = cli_trainlog_claim(&app, "new/run", &second);
    assert_said("error: another process is training into new/run\n"
                "hint: wait until it ends, or give another --log-dir\n");
    assert_int_equal(code, CLI_EXIT_CONFLICT);
    assert_false(second.made);
    cli_trainlog_release(&second, "new/run");
    assert_true(is_there("new/run"));
    cli_trainlog_release(&first, "new/run"); /* it was made, and nothing is in it */
    assert_false(is_there("new/run"));
    assert_int_equal(mkdir("old", 0700), 0);
    assert_int_equal(cli_trainlog_claim(&app, "old", &first), 0);
    assert_false(first.made);
    cli_trainlog_release(&first, "old");
    assert_true(is_there("old"));
    assert_int_equal(cli_trainlog_claim(&app, "old", &first), 0); /* free again */
    cli_trainlog_release(&first, "old");
    put("file", "x");
    hold_output();
    code = cli_trainlog_claim(&app, "file", &first);
    assert_said("error: file: Not a directory\n");
    assert_int_equal(code, CLI_EXIT_FAILED);
    cli_trainlog_release(&first, "file");
    assert_true(is_there("file") && !first.held);
}

/* A folder may have come with a repository: writing a run into it changes nothing outside. */
TEST(links_out_of_the_folder_are_refused)
{
    static const char *const targets[] = { "../precious", "../nothing-yet", "/etc/hostname", ".." };
    cli_claim claim;
    put("precious", "x");
    assert_int_equal(mkdir("came", 0700), 0);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        assert_int_equal(symlink(targets[i], "came/metrics.jsonl"), 0);
        hold_output();
        int code = cli_trainlog_claim(&app, "came", &claim);
        assert_said("error: came/metrics.jsonl is a link that leads out of the folder\n"
                    "hint: remove it, or give another --log-dir\n");
        assert_int_equal(code, CLI_EXIT_CONFLICT);
        cli_trainlog_release(&claim, "came");
        assert_int_equal(unlink("came/metrics.jsonl"), 0);
    }
    static const char *const deep[] = { "iteration_000001", "tensorboard", "wandb/run/files" };
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) { /* what runs make in theirs */
        char path[100];
        (void)snprintf(path, sizeof path, "came/%s/x", deep[i]);
        assert_true(cli_make_parents(path, 0700));
        assert_int_equal(symlink("/etc/hostname", path), 0);
        hold_output();
        assert_int_equal(cli_trainlog_claim(&app, "came", &claim), CLI_EXIT_CONFLICT);
        free(release_output());
        cli_trainlog_release(&claim, "came");
        assert_int_equal(unlink(path), 0);
    }
    put("came/real", "x");
    assert_int_equal(symlink("real", "came/latest"), 0);
    assert_int_equal(mkdir("came/venv", 0700), 0); /* nothing is written there */
    assert_int_equal(symlink("/usr/bin/python3", "came/venv/python3"), 0);
    assert_int_equal(cli_trainlog_claim(&app, "came", &claim), 0);
    cli_trainlog_release(&claim, "came");
}

TEST(rows_are_appended_to_their_files)
{
    cli_trainlog log;
    tkc_tree *row = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 1, "loss", 2.5);
    assert_false(cli_trainlog_exists("run"));
    char *words[] = { (char *)"tinkc", (char *)"a b", (char *)"", (char *)"c", NULL };
    app.command_line = words;
    assert_int_equal(cli_trainlog_open(&app, "run", NULL, &log), 0);
    app.command_line = NULL;
    assert_true(app.log_file == log.text && !log.hook.pipe && !log.samples);
    assert_true(cli_trainlog_metrics(&log, row) && cli_trainlog_spans(&log, row) && cli_trainlog_checkpoint(&log, row));
    assert_false(is_there("run/samples.jsonl"));
    assert_true(cli_trainlog_sample(&log, row) && cli_trainlog_sample(&log, row));
    cli_trainlog_info(&log, "seed", "7");
    cli_trainlog_event(&app, &log, row); /* to nobody */
    end_log(&log);
    assert_true(!log.metrics && !log.folder);
    assert_true(cli_trainlog_exists("run"));
    assert_holds("run/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    assert_holds("run/timing_spans.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    assert_holds("run/checkpoints.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    assert_holds("run/samples.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":1,\"loss\":2.5}\n");
    char text[4000] = "";
    FILE *f = fopen("run/logs.log", "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    const char *first = "trainlog:0 [INFO] tinkc 'a b' '' c\n"; /* as it was started */
    assert_int_equal(strncmp(text, first, strlen(first)), 0);
    assert_non_null(strstr(text, "\ntrainlog:0 [INFO] seed 7\n"));
    /* Another start appends. */
    assert_int_equal(cli_trainlog_open(&app, "run", NULL, &log), 0);
    assert_true(cli_trainlog_metrics(&log, row));
    end_log(&log);
    assert_holds("run/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":1,\"loss\":2.5}\n");
}

TEST(a_full_disk_is_an_error)
{
    static const char *const names[] = { "metrics", "timing_spans", "checkpoints", "samples" };
    tkc_tree *row = tkc_tree_pack(&json_arena, "{s:i}", "step", 1);
    for (size_t i = 0; i < 4; i++) {
        cli_trainlog log;
        char path[100];
        (void)snprintf(path, sizeof path, "full%zu/%s.jsonl", i, names[i]);
        assert_true(cli_make_parents(path, 0700));
        assert_int_equal(symlink("/dev/full", path), 0);
        (void)snprintf(path, sizeof path, "full%zu", i);
        assert_int_equal(cli_trainlog_open(&app, path, NULL, &log), 0);
        assert_true(cli_trainlog_metrics(&log, row) == (i != 0));
        assert_true(cli_trainlog_spans(&log, row) == (i != 1));
        assert_true(cli_trainlog_checkpoint(&log, row) == (i > 2)); /* /dev/full cannot be synced either */
        assert_true(cli_trainlog_sample(&log, row) == (i != 3));
        end_log(&log);
        (void)snprintf(path, sizeof path, "full%zu/checkpoints.jsonl", i);
        if (i < 2) /* a checkpoint whose rows are not on the disk is not one to continue from */
            assert_holds(path, "");
    }
    cli_trainlog log;
    put("blocked", "x");
    hold_output();
    int code = cli_trainlog_open(&app, "blocked", NULL, &log);
    char *said = release_output();
    assert_int_equal(code, CLI_EXIT_FAILED);
    assert_non_null(strstr(said, "error: blocked: "));
    free(said);
    end_log(&log);
}

/* Rows from a step on go, and lines that were torn. */
TEST(rewinding_drops_later_and_torn_rows)
{
    assert_true(cli_trainlog_rewind("nothing", 3)); /* no files: nothing to do */
    put("back/metrics.jsonl", "{\"step\":0}\n{\"step\":2,\"a\":1}\n{\"step\":3}\n{\"note\":1}\n{\"step\":\"4\"}\n"
                              "not JSON\n{\"step\":7}\n{\"st");
    put("back/timing_spans.jsonl", "{\"step\":3}\n{\"step\":2}\n");
    put("back/samples.jsonl", "{\"step\":4}\n");
    put("back/checkpoints.jsonl", "{\"step\":9,\"state_path\":\"s\"}\n{\"na");
    assert_true(cli_trainlog_rewind("back", 3));
    assert_holds("back/metrics.jsonl",
                 "{\"step\":0}\n{\"step\":2,\"a\":1}\n{\"note\":1}\n{\"step\":\"4\"}\nnot JSON\n");
    assert_holds("back/timing_spans.jsonl", "{\"step\":2}\n");
    assert_holds("back/samples.jsonl", "");
    assert_holds("back/checkpoints.jsonl", "{\"step\":9,\"state_path\":\"s\"}\n");
    assert_false(is_there("back/metrics.jsonl.new"));
    assert_int_equal(mkdir("back/metrics.jsonl.new", 0700), 0); /* where the new rows would be written */
    assert_false(cli_trainlog_rewind("back", 1));
    assert_int_equal(rmdir("back/metrics.jsonl.new"), 0);
    assert_int_equal(mkdir("back/samples.jsonl.new", 0700), 0);
    assert_false(cli_trainlog_rewind("back", 1));
    assert_int_equal(rmdir("back/samples.jsonl.new"), 0);
    assert_int_equal(mkdir("odd", 0700) + mkdir("odd/samples.jsonl", 0700), 0); /* what cannot be replaced */
    assert_false(cli_trainlog_rewind("odd", 0));
    assert_true(cli_trainlog_rewind("back", 0));
    assert_holds("back/metrics.jsonl", "{\"note\":1}\n{\"step\":\"4\"}\nnot JSON\n");
}

/* A run that cannot be taken back stays as it was. */
TEST(rewinding_on_a_full_disk_loses_nothing)
{
    static const char rows[] = "{\"step\":0,\"a\":\"0123456789012345678901234567890123456789\"}\n{"
                               "\"step\":1}\n{\"step\":2}\n";
    struct rlimit before, none;
    put("fits/metrics.jsonl", rows);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){ .rlim_cur = 20, .rlim_max = before.rlim_max };
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    bool ok = cli_trainlog_rewind("fits", 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, was);
    assert_false(ok);
    assert_holds("fits/metrics.jsonl", rows);
}

TEST(records_are_listed_from_checkpoints)
{
    tkc_tree *none = cli_trainlog_records(&json_arena, "nothing", "state_path");
    assert_int_equal(tkc_tree_length(none), 0);
    put("records/checkpoints.jsonl", "{\"state_path\":\"a\"}\n{\"state_path\":5}\n{\"sampler_path\":\"b\"}\n"
                                     "{\"state_path\":\"c\"}\n{\"state_path\":\"torn");
    tkc_tree *all = cli_trainlog_records(&json_arena, "records", "state_path");
    char *text = json_print(all);
    assert_string_equal(text, "[{\"state_path\":\"a\"},{\"state_path\":\"c\"}]");
    assert_true(cli_trainlog_exists("records"));
    /* Settings are written whole. */
    tkc_tree *config = tkc_tree_pack(&json_arena, "{s:i}", "a", 1);
    assert_null(cli_trainlog_read_config(&json_arena, "records"));
    assert_int_equal(cli_trainlog_config(&app, "records", config), 0);
    assert_holds("records/config.json", "{\n  \"a\": 1\n}\n");
    tkc_tree *again = cli_trainlog_read_config(&json_arena, "records");
    assert_true(tkc_tree_equal(config, again));
}

TEST(what_tells_a_run)
{
    static const struct {
        const char *name;
        bool tells;
    } rows[] = { { "config.json", true },         { "metrics.jsonl", true },
                 { "checkpoints.jsonl", true },   { "code.diff", false },
                 { "logs.log", false },           { "samples.jsonl", false },
                 { "config.toml", false },        { "other", false },
                 { "timing_spans.jsonl", false }, { "reference_logprobs.json", false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[100];
        (void)snprintf(path, sizeof path, "telling/%s", rows[i].name);
        put(path, "x");
        assert_true(cli_trainlog_exists("telling") == rows[i].tells);
        assert_true(cli_trainlog_remove("telling"));
        assert_true(is_there(path) == (strcmp(rows[i].name, "other") == 0)); /* what is not a run's stays */
    }
}

/* Where there is no repository now, nothing tells of another. */
TEST(the_changes_of_an_earlier_start_go)
{
    put("elsewhere/code.diff", "### repo: /old\n");
    assert_int_equal(cli_trainlog_code(&app, "elsewhere"), 0);
    assert_false(is_there("elsewhere/code.diff"));
}

TEST(removing_a_log_leaves_other_files)
{
    assert_true(cli_trainlog_remove("nothing"));
    put("gone/metrics.jsonl", "x");
    put("gone/samples.jsonl", "x");
    put("gone/iteration_000001/train_rollout_summaries.jsonl", "x");
    put("gone/iteration_000002/train_rollout_summaries.jsonl", "x");
    put("gone/iteration_000002/mine", "x");
    put("gone/iterations/train_rollout_summaries.jsonl", "x");
    assert_true(cli_trainlog_remove("gone"));
    assert_true(is_there("gone") && !is_there("gone/metrics.jsonl") && !is_there("gone/samples.jsonl"));
    assert_false(is_there("gone/iteration_000001") || is_there("gone/iteration_000002/train_rollout_summaries.jsonl"));
    assert_true(is_there("gone/iteration_000002/mine") && is_there("gone/iterations/train_rollout_summaries.jsonl"));
    /* What cannot be removed is noticed, and the rest stays. */
    put("kept/metrics.jsonl/in", "x");
    put("kept/samples.jsonl", "x");
    assert_false(cli_trainlog_remove("kept"));
    assert_true(is_there("kept/samples.jsonl"));
    put("stuck/iteration_000001/train_rollout_summaries.jsonl/in", "x");
    put("stuck/metrics.jsonl", "x");
    assert_false(cli_trainlog_remove("stuck"));
    assert_true(is_there("stuck/metrics.jsonl"));
}

TEST(a_hook_reads_events_from_its_input)
{
    cli_trainlog log;
    tkc_tree *event = tkc_tree_pack(&json_arena, "{s:s}", "event", "start");
    assert_int_equal(cli_trainlog_open(&app, "hooked", "cat > hooked/events", &log), 0);
    assert_non_null(log.hook.pipe);
    cli_trainlog_event(&app, &log, event);
    cli_trainlog_event(&app, &log, event);
    end_log(&log); /* waits for it */
    assert_holds("hooked/events", "{\"event\":\"start\"}\n{\"event\":\"start\"}\n");
    /* One that has ended: training continues without it, and its signal is not ours. */
    assert_int_equal(cli_trainlog_open(&app, "hooked", "exec <&-; echo > hooked/ended", &log), 0);
    wait_until(is_there("hooked/ended"));
    hold_output();
    cli_trainlog_event(&app, &log, event);
    cli_trainlog_event(&app, &log, event);
    assert_said("warning: --hook: the command has ended; training continues without it\n");
    assert_null(log.hook.pipe);
    end_log(&log);
}

/* The run's key is not for the hook, nor are its connections. */
TEST(a_hook_gets_no_credentials_and_no_descriptors)
{
    static const char tells[] = "exec > seen; env | grep -o 'SECRET.*'; n=3; while [ $n -lt 256 ]; do "
                                "[ -e /proc/$$/fd/$n ] && echo $n; n=$((n+1)); done";
    cli_trainlog log;
    app.command = cli_find("train", "sft");
    setenv("TINKER_API_KEY", "SECRET1", 1);
    setenv("GIVEN", "SECRET2", 1);
    int leaked = dup(1); /* not close-on-exec */
    assert_int_equal(cli_trainlog_open(&app, "seeing", tells, &log), 0);
    end_log(&log);
    assert_holds("seen", "");
    assert_int_equal(cli_set_value(&app, "pass-env", "GIVEN", CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(cli_trainlog_open(&app, "seeing", tells, &log), 0);
    end_log(&log);
    assert_holds("seen", "SECRET2\n");
    assert_int_equal(cli_set_value(&app, "pass-env", "A=B", CLI_FROM_PROGRAM, "test"), 0);
    hold_output();
    assert_int_equal(cli_trainlog_open(&app, "seeing", tells, &log), CLI_EXIT_USAGE);
    assert_said("error: --pass-env: 'A=B' is not the name of a variable\n");
    end_log(&log);
    close(leaked);
    cli_parse_free(&app);
    app = (cli_app){ 0 };
}

RUN_TESTS(enter_folder, leave_folder)
