/* test_kept_results.c - what the command keeps on disk and reads again: ids that were seen lately, and answers of
 * evaluations with what they come to. What a model's folder says, and the bar while its weights are read. */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/eval/eval_results.h"
#include "cli/main/files.h"
#include "cli/models/model_folder.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "cli/manage/recent_ids.h"
#include "support/cli/held_output.h"
#include "support/cli/own_folder.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "support/json_trees.h"
#include "support/test_case.h"

static cli_app app;

static int enter(void **state)
{
    if (enter_folder(state) != 0)
        return -1;
    setenv("XDG_CACHE_HOME", place, 1);
    unsetenv("TINKER_BASE_URL");
    app = (cli_app){ .command = cli_find("run", "list"), .offline = true };
    return cli_set_value(&app, "base-url", "http://one", CLI_FROM_PROGRAM, "test");
}

static int leave(void **state)
{
    cli_parse_free(&app);
    return leave_folder(state);
}

/* ---- ids ---- */

static void assert_known(const char *kind, const char *wanted)
{
    tkc_tree *ids = cli_ids_known(&app, kind);
    char *text = json_print(ids);
    assert_string_equal(text, wanted);
}

static void seen(const char *kind, const char *items, const char *key)
{
    tkc_tree *v = json_of(items);
    assert_non_null(v);
    cli_ids_seen(&app, kind, v, key);
}

TEST(kept_ids_come_newest_first_and_once)
{
    assert_known("run", "[]");
    cli_ids_add(&app, "run", "a");
    assert_known("run", "[\"a\"]");
    cli_ids_add(&app, "run", "b"); /* newest first */
    cli_ids_add(&app, "run", "a"); /* which is known, and comes first again */
    assert_known("run", "[\"a\",\"b\"]");
    seen("run", "[{\"id\":\"c\"},{\"id\":5},{},{\"id\":\"b\"},{\"id\":\"c\"}]", "id");
    assert_known("run", "[\"c\",\"b\",\"a\"]");
    seen("session", "[\"s\",\"t\"]", "");
    assert_known("session", "[\"s\",\"t\"]");
    assert_known("run", "[\"c\",\"b\",\"a\"]");
    assert_known("checkpoint", "[]");
    seen("checkpoint", "[]", "id");
    assert_known("checkpoint", "[]");
    tkc_tree *fresh = cli_ids_fresh(&app, "run"); /* offline: what is known */
    assert_int_equal(tkc_tree_length(fresh), 3);
    /* Another address has ids of its own. */
    assert_int_equal(cli_set_value(&app, "base-url", "http://two", CLI_FROM_PROGRAM, "test"), 0);
    assert_known("run", "[]");
    cli_ids_add(&app, "run", "z");
    assert_int_equal(cli_set_value(&app, "base-url", "http://one", CLI_FROM_PROGRAM, "test"), 0);
    assert_known("run", "[\"c\",\"b\",\"a\"]");
}

/* The file that holds the ids of this address: the name is the same for everybody. */
TEST(the_file_of_ids)
{
    struct stat before, after;
    char path[200];
    assert_int_equal(cli_set_value(&app, "base-url", "http://three", CLI_FROM_PROGRAM, "test"), 0);
    assert_known("run", "[]");
    cli_ids_add(&app, "run", "a");
    tkc_tree *one = tkc_tree_pack(&json_arena, "[s]", "a");
    uint64_t h = 1469598103934665603u;
    for (const char *p = "http://three"; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    (void)snprintf(path, sizeof path, "%s/tinkc/ids-%016llx.json", place, (unsigned long long)h);
    assert_int_equal(stat(path, &before), 0);
    cli_ids_seen(&app, "run", one, ""); /* nothing new: it is not written again */
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    /* A file that was spoilt is forgotten. */
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("[1]", f);
    assert_int_equal(fclose(f), 0);
    assert_known("run", "[]");
    cli_ids_add(&app, "run", "b");
    assert_known("run", "[\"b\"]");
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"run\":{}}", f);
    assert_int_equal(fclose(f), 0);
    assert_known("run", "[]");
}

TEST(kept_ids_are_bounded)
{
    assert_int_equal(cli_set_value(&app, "base-url", "http://many", CLI_FROM_PROGRAM, "test"), 0);
    tkc_tree *items = tkc_tree_array(&json_arena);
    for (int i = 0; i < 600; i++) {
        char id[20];
        (void)snprintf(id, sizeof id, "r%d", i);
        tkc_tree_add_text(items, id);
    }
    cli_ids_seen(&app, "run", items, "");
    tkc_tree *ids = cli_ids_known(&app, "run");
    assert_int_equal(tkc_tree_length(ids), 500);
    assert_string_equal(tkc_tree_text(tkc_tree_at(ids, 499)), "r499");
    cli_ids_add(&app, "run", "new"); /* the oldest goes */
    ids = cli_ids_known(&app, "run");
    assert_int_equal(tkc_tree_length(ids), 500);
    assert_string_equal(tkc_tree_text(tkc_tree_at(ids, 0)), "new");
    assert_string_equal(tkc_tree_text(tkc_tree_at(ids, 499)), "r498");
}

/* ---- evaluations ---- */

#define TURNS                                                                                                          \
    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\"},"                                  \
    "{\"role\":\"assistant\",\"content\":\"x\"}]"

static const char answers[] =
    "{\"benchmark\":\"sums\",\"example_id\":\"a\",\"sample\":0,\"reward\":1.0,\"text\":\"4\","
    "\"answer\":\"4\",\"error\":null,\"stop_reason\":\"stop\",\"turns\":" TURNS "}\n"
    "{\"benchmark\":\"other\",\"example_id\":\"a\",\"sample\":1,\"reward\":0.0,\"text\":\"5\","
    "\"answer\":4,\"stop_reason\":\"length\"}\n"
    "{\"example_id\":7,\"sample\":0,\"reward\":0.5,\"turns\":[{\"role\":\"user\",\"content\":[1]}]}"
    "\n"
    "{\"example_id\":\"b\",\"sample\":0,\"reward\":0.0,\"error\":\"lost\"}\n"
    "{\"example_id\":\"c\",\"sample\":0,\"reward\":0.0,\"error\":\"lost\"}\n"
    "{\"example_id\":\"b\",\"sample\":0,\"reward\":0.25,\"error\":null}\n"
    "not JSON\n"
    "{\"example_id\":\"d\"}\n"
    "{\"reward\":1}\n"
    "{\"example_id\":\"a\",\"sample\":2,\"reward\":1.0,\"stop_reason\":\"length\"}\n"
    "{\"example_id\":\"torn\",\"rew";

TEST(answers_of_an_evaluation_become_its_result)
{
    cli_eval e;
    size_t n;
    put("e/sums/trajectories.jsonl", answers);
    assert_int_equal(cli_eval_read(&app, "e", &e), 0);
    assert_string_equal(e.name, "sums");
    assert_int_equal(e.n, 6);
    assert_string_equal(e.rows[0].prompt, "q");
    assert_string_equal(e.rows[0].text, "4");
    assert_string_equal(e.rows[0].answer, "4");
    assert_true(!e.rows[0].error && !e.rows[0].truncated && e.rows[0].reward == 1);
    assert_string_equal(e.rows[1].answer, "4"); /* a number */
    assert_string_equal(e.rows[1].prompt, "");
    assert_true(e.rows[1].truncated);
    assert_string_equal(e.rows[2].example_id, "7");
    assert_string_equal(e.rows[2].prompt, "[1]");
    assert_string_equal(e.rows[2].text, "");
    assert_null(e.rows[2].answer);
    assert_string_equal(e.rows[3].example_id, "b"); /* asked again: the later one counts */
    assert_true(!e.rows[3].error && e.rows[3].reward == 0.25);
    assert_string_equal(e.rows[4].error, "lost");
    assert_true(cli_eval_has(&e, "a", 0) && cli_eval_has(&e, "a", 2) && cli_eval_has(&e, "b", 0));
    assert_false(cli_eval_has(&e, "a", 3) || cli_eval_has(&e, "c", 0) || cli_eval_has(&e, "x", 0));
    cli_eval_example *all = cli_eval_examples(&e, &n);
    assert_int_equal(n, 3); /* 7, a, b; c has no graded answer */
    assert_string_equal(all[0].first->example_id, "7");
    assert_true(all[0].n == 1 && all[0].right == 1 && all[0].mean == 0.5);
    assert_true(all[1].n == 3 && all[1].right == 2 && all[1].first == &e.rows[0]);
    assert_true(all[1].mean > 0.666 && all[1].mean < 0.667);
    assert_true(all[2].n == 1 && all[2].right == 0 && all[2].mean == 0.25);
    free(all);
    tkc_tree *v = cli_eval_result(&json_arena, &e, 2.5);
    assert_string_equal(tkc_tree_get_text(v, "name"), "sums");
    assert_true(tkc_tree_get_i64(v, "num_examples") == 3 && tkc_tree_get_i64(v, "num_correct") == 2 &&
                tkc_tree_get_i64(v, "num_errors") == 1 && tkc_tree_get_i64(v, "num_truncated") == 2);
    double score = tkc_tree_get_number(v, "score");
    assert_true(score > 0.4722 && score < 0.4723);
    assert_true(tkc_tree_get_number(v, "time_seconds") == 2.5);
    const tkc_tree *pass = tkc_tree_get(v, "pass_at_k");
    assert_int_equal(tkc_tree_members(pass), 2); /* of 1 and 2; nobody has 4 answers */
    double one = tkc_tree_get_number(pass, "1");
    assert_true(one > 0.5555 && one < 0.5556);
    assert_true(tkc_tree_get_number(pass, "2") == 1);
    cli_eval_free(&e);
    assert_true(!e.rows && !e.places && e.n == 0);
}

/* A benchmark of the folder, the file itself, the harness's samples; what holds none of these. */
TEST(an_evaluation_is_found_by_folder_or_file)
{
    cli_eval e;
    put("f/trajectories.jsonl", "{\"example_id\":\"a\",\"reward\":1}\n{\"example_id\":\"a\",\"reward\":0}\n");
    assert_int_equal(cli_eval_read(&app, "f", &e), 0);
    assert_string_equal(e.name, "f");
    assert_int_equal(e.n, 2); /* without a number of the sample each line is an answer */
    cli_eval_free(&e);
    assert_int_equal(cli_eval_read(&app, "f/trajectories.jsonl", &e), 0);
    cli_eval_free(&e);
    put("g/.hidden/trajectories.jsonl", "{\"example_id\":\"a\",\"reward\":1}\n");
    put("g/empty/other", "");
    put("none.jsonl", "{}\n");
    static const char *const nothing[] = { "g", "nowhere", "none.jsonl" };
    for (size_t i = 0; i < 3; i++) {
        hold_output();
        int code = cli_eval_read(&app, nothing[i], &e);
        char *said = release_output();
        assert_int_equal(code, CLI_EXIT_NOT_FOUND);
        assert_non_null(strstr(said, "holds no evaluation"));
        free(said);
        cli_eval_free(&e);
    }
    put("harness.jsonl", "{\"doc_id\":0,\"filtered_resps\":[\"x\"],\"exact_match\":1.0,\"acc\":0.0,"
                         "\"target\":\"t\"}\n"
                         "{\"doc_id\":1,\"filtered_resps\":[[\"y\",\"z\"]],\"acc\":0.0}\n"
                         "{\"doc_id\":2,\"filtered_resps\":[\"x\"],\"other\":1.0}\n"
                         "{\"doc_id\":3,\"acc_norm\":0.75}\n{\"doc_id\":4,\"pass@1\":0.5}\n{\"doc_"
                         "id\":5,\"f1\":0.25}\n");
    assert_int_equal(cli_eval_read(&app, "harness.jsonl", &e), 0);
    static const double rewards[] = { 1, 0, 0.75, 0.5, 0.25 };
    assert_int_equal(e.n, 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(e.rows[i].reward == rewards[i]);
    assert_string_equal(e.rows[0].text, "x");
    assert_string_equal(e.rows[0].answer, "t");
    assert_string_equal(e.rows[0].prompt, "");
    assert_string_equal(e.rows[1].text, "y");
    assert_string_equal(e.rows[2].text, "");
    cli_eval_free(&e);
}

static tkc_tree *result_of(const char *lines)
{
    cli_eval e;
    put("few.jsonl", lines);
    assert_int_equal(cli_eval_read(&app, "few.jsonl", &e), 0);
    tkc_tree *v = cli_eval_result(&json_arena, &e, 1);
    cli_eval_free(&e);
    return v;
}

/* Answers of one example, of which the last has most. */
TEST(pass_at_k_needs_k_answers_of_each_example)
{
    tkc_tree *one =
        result_of("{\"example_id\":\"a\",\"doc_id\":1,\"reward\":1}\n{\"example_id\":\"b\",\"reward\":0}\n");
    assert_int_equal(tkc_tree_members(tkc_tree_get(one, "pass_at_k")), 0);
    assert_true(tkc_tree_get_number(one, "score") == 0.5);
    tkc_tree *two = result_of("{\"example_id\":\"a\",\"reward\":1}\n{\"example_id\":\"b\",\"reward\":0}\n"
                              "{\"example_id\":\"b\",\"reward\":1}\n");
    const tkc_tree *pass = tkc_tree_get(two, "pass_at_k");
    assert_true(tkc_tree_members(pass) == 2 && tkc_tree_get_number(pass, "1") == 0.75 &&
                tkc_tree_get_number(pass, "2") == 1);
    assert_true(tkc_tree_get_number(two, "score") == 0.75);
}

TEST(a_rollout_is_one_line)
{
    static const char *const names[] = { "format", "correct", NULL };
    static const double values[] = { 1, 0 };
    const tinkc_rollout r = { .metric_names = names,
                              .metric_values = values,
                              .text = "x",
                              .messages_json = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\"}]",
                              .answer = "y",
                              .reward = 0.5,
                              .sampled_tokens = 7,
                              .stop_reason = TINKC_STOP,
                              .took_ms = 1500 };
    tkc_tree *v = cli_eval_line(&json_arena, "sums", 3, "a", 2, &r);
    char *text = cli_json_dump(json_rounded(v, 6));
    assert_string_equal(text, "{\"idx\":3,\"benchmark\":\"sums\",\"example_id\":\"a\",\"sample\":2,"
                              "\"turns\":[{\"role\":\"user\",\"content\":\"q\",\"token_count\":null},"
                              "{\"role\":\"assistant\",\"content\":null,\"token_count\":7}],"
                              "\"text\":\"x\",\"answer\":\"y\",\"reward\":0.5,"
                              "\"metrics\":{\"format\":1.0,\"correct\":0.0},\"error\":null,"
                              "\"stop_reason\":\"stop\",\"time_seconds\":1.5}");
    free(text);
}

/* ---- a model's folder ---- */

TEST(what_a_folder_says)
{
    static const struct {
        const char *config;
        int64_t hidden;
        const char *type, *logged;
    } rows[] = {
        { "{\"hidden_size\":384,\"model_type\":\"qwen3\",\"model_name\":\"a/b\"}", 384, "qwen3", "a/b" },
        { "{\"text_config\":{\"hidden_size\":5,\"model_type\":\"in\"},\"model_type\":\"out\"}", 5, "out", NULL },
        { "{\"text_config\":{\"hidden_size\":1,\"model_name\":\"x\"}}", 1, NULL, "x" },
        { "{\"hidden_size\":-1,\"model_type\":7}", 0, NULL, NULL },
        { "{\"hidden_size\":0}", 0, NULL, NULL },
        { "{\"hidden_size\":\"9\"}", 0, NULL, NULL },
        { "[]", 0, NULL, NULL },
        { "{", 0, NULL, NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("model/config.json", rows[i].config);
        char *type = cli_folder_type("model"), *logged = cli_logged_model("model");
        assert_int_equal(cli_folder_number("model", "hidden_size"), rows[i].hidden);
        assert_true(rows[i].type ? type && strcmp(type, rows[i].type) == 0 : !type);
        assert_true(rows[i].logged ? logged && strcmp(logged, rows[i].logged) == 0 : !logged);
        free(type);
        free(logged);
    }
    assert_int_equal(cli_folder_number("nowhere", "hidden_size"), 0);
    assert_null(cli_folder_type("nowhere"));
}

TEST(the_default_rate_follows_from_the_model)
{
    static const struct {
        const char *name, *config; /* "" = no folder */
        double rate;
        const char *why;
    } rows[] = {
        { "nano", "", CLI_NANO_RATE, "the default for nano" },
        { "x/y", "", 5e-4, "the default for a model of unknown size" },
        { "x/y", "{}", 5e-4, "the default for a model of unknown size" },
        { "x/y", "{\"hidden_size\":1}", 9e-4, "the default for hidden size 1" },
        { "x/y", "{\"hidden_size\":4000}", 4.7e-4, "the default for hidden size 4000" },
        { "x/y", "{\"hidden_size\":4000,\"model_type\":\"llama\"}", 2.9e-4, "the default for hidden size 4000" },
        { "x/y", "{\"hidden_size\":4000,\"model_type\":\"llam\"}", 4.7e-4, "the default for hidden size 4000" },
        { "openai/gpt-oss-20b", "", 4.9e-4, "the default for hidden size 2880" },
        { "openai/gpt-oss-20b", "{\"hidden_size\":1,\"model_type\":\"llama4\"}", 3.8e-4,
          "the default for hidden size 2880" },
    };
    char why[96];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("model/config.json", rows[i].config);
        double rate = cli_model_default_rate(rows[i].name, *rows[i].config ? "model" : NULL, why);
        assert_string_equal(why, rows[i].why);
        if (rate != rows[i].rate)
            fail_msg("row %zu: %g", i, rate);
    }
    double known = cli_model_default_rate("Qwen/Qwen3-8B", NULL, why);
    assert_true(known == cli_model_suggested_rate("Qwen/Qwen3-8B") && known > 4e-4 && known < 5e-4);
    assert_string_equal(why, "the default for Qwen/Qwen3-8B");
}

/* Of so many bytes, none of which was ever read: a hole. */
static void put_hole(const char *path, int64_t size)
{
    put(path, "");
    assert_int_equal(truncate(path, size), 0);
}

/* What is drawn while the folder's weights are read; the exit code. */
static int read_weights(int64_t least, char **drawn)
{
    const cli_app at_terminal = { .draws = true, .progress = true };
    hold_output();
    int code = cli_read_weights(&at_terminal, "large", least);
    *drawn = release_output();
    return code;
}

/* The first number of a line of /proc/meminfo, in bytes. */
static long long memory(const char *name)
{
    char line[256];
    long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    assert_non_null(f);
    while (kb == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            kb = strtoll(line + strlen(name), NULL, 10);
    fclose(f);
    return kb * 1024;
}

TEST(reading_weights_shows_their_size)
{
    static const char bar[] = "loading the weights ", done[] = "############################ ";
    enum { MB = 1 << 20 };
    char *drawn;
    put("large/config.json", "{}");
    put_hole("large/.safetensors", 7);    /* has no name */
    put_hole("large/a.safetensorsx", 99); /* something else */
    assert_int_equal(read_weights(-1, &drawn), 0);
    assert_string_equal(drawn, "");
    free(drawn);
    put_hole("large/a.safetensors", 40 * MB + 1);
    put_hole("large/b.safetensors", 2 * MB);
    assert_int_equal(read_weights(42 * MB + 1, &drawn), 0); /* not larger than that */
    assert_string_equal(drawn, "");
    free(drawn);
    assert_int_equal(read_weights(42 * MB, &drawn), 0);
    char *last = strstr(drawn, done);
    assert_true(strstr(drawn, bar) && last);
    assert_string_equal(last + strlen(done), "42.0 MB/42.0 MB  ^[[K^M^[[K");
    free(drawn);
    /* Too large for the memory: left alone here, refused before that. */
    put_hole("large/a.safetensors", (int64_t)1 << 42);
    assert_int_equal(read_weights(42 * MB, &drawn), 0);
    assert_string_equal(drawn, "");
    free(drawn);
    hold_output();
    assert_int_equal(cli_model_fits(&app, "large"), CLI_EXIT_FAILED);
    drawn = release_output();
    static const char fault[] = "error: large does not fit into memory: its weights are 4.0 TB "
                                "(4398048608256 bytes), ";
    assert_int_equal(strncmp(drawn, fault, strlen(fault)), 0);
    long long left = 0;
    assert_int_equal(sscanf(drawn + strlen(fault), "%*[^(](%lld bytes) are available", &left), 1);
    assert_true(left > 0 && left % 1024 == 0 && left < memory("MemTotal:"));
    free(drawn);
    assert_int_equal(unlink("large/a.safetensors"), 0);
    assert_int_equal(cli_model_fits(&app, "large"), 0);
    assert_int_equal(cli_model_fits(&app, "nowhere"), 0);
    /* What cannot be read is left to the engine; what is cached is not shown. */
    assert_int_equal(mkdir("large/c.safetensors", 0700), 0);
    put("large/b.safetensors", "abc");
    assert_int_equal(read_weights(0, &drawn), 0);
    free(drawn);
    assert_int_equal(rmdir("large/c.safetensors"), 0);
    assert_int_equal(read_weights(0, &drawn), 0);
    assert_string_equal(drawn, "");
    free(drawn);
    /* A file that is shorter than it says: reading ends, and not only when a signal comes. */
    static const char shorter[] = "/sys/devices/system/cpu/online";
    if (access(shorter, R_OK) == 0) {
        assert_int_equal(symlink(shorter, "large/d.safetensors"), 0);
        assert_int_equal(read_weights(0, &drawn), 0);
        free(drawn);
        assert_int_equal(unlink("large/d.safetensors"), 0);
    }
    /* A signal ends it. */
    put_hole("large/a.safetensors", 40 * MB);
    cli_leave_on_signals(); /* which reading takes back */
    assert_int_equal(read_weights(0, &drawn), 0);
    free(drawn);
    raise(SIGINT);
    assert_int_equal(read_weights(0, &drawn), 130);
    assert_string_equal(drawn, "");
    free(drawn);
    cli_forget_signal();
}

RUN_TESTS(enter, leave)
