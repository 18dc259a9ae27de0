/* test_children.c - commands that answer lines, and those that do not. */
#include <unistd.h>

#include "base/clock.h"
#include "support/check.h"

/* The time of the machine and what a test has skipped. */
static int64_t skipped_ms;
static int64_t later_ns(void)
{
    return tkc_monotonic_ns() + skipped_ms * 1000000;
}
#define tkc_monotonic_ns later_ns
#include "../../../recipes/children.c"
#undef tkc_monotonic_ns
#include "recipes/env.h"
#include "recipes/reward.h"

/* A command that hangs makes this file first: its time is skipped. */
static char hangs_at[64];

typedef struct seen {
    int answers, failures;
    double last;
    char why[300];
    char log[4000];
} seen;

static void on_answer(void *user, const tkc_tree *answer, const char *why)
{
    seen *s = user;
    if (answer) {
        s->answers++;
        s->last = tkc_tree_get_number(answer, "reward");
    } else {
        s->failures++;
        (void)snprintf(s->why, sizeof s->why, "%s", why);
    }
}

static void on_log(int32_t level, const char *line, void *user)
{
    seen *s = user;
    size_t n = strlen(s->log);
    (void)level;
    (void)snprintf(s->log + n, sizeof s->log - n, "%s\n", line);
}

/* Asks n lines of a command and waits for all; returns err. */
static tinkc_error ask_all(const char *command, size_t processes, size_t asks_each, int64_t timeout_ms, int n, seen *s)
{
    tinkc_error err = { 0 };
    *s = (seen){ 0 };
    tkr_children *c = tkr_children_new(&(tkr_children_options){ .command = command,
                                                                .name = "grader",
                                                                .processes = processes,
                                                                .asks_each = asks_each,
                                                                .attempts = 2,
                                                                .timeout_ms = timeout_ms,
                                                                .log = on_log,
                                                                .user = s },
                                       &err);
    assert_non_null(c);
    for (int i = 1; i <= n; i++) {
        char line[60];
        (void)snprintf(line, sizeof line, "{\"id\":%d}", i);
        assert_true(tkr_children_ask(c, (uint64_t)i, line, TKR_ANY_CHILD, on_answer, s, &err));
    }
    while (s->answers + s->failures < n && tkr_children_run(c, &err)) {
        struct pollfd fds[16];
        int64_t until = INT64_MAX;
        size_t m = tkr_children_poll(c, fds, 16, &until);
        int64_t left = until - tkr_now_ms(), most = hangs_at[0] ? 10 : 20000;
        if (s->answers + s->failures < n)
            (void)poll(fds, m, (int)(left < 0 ? 0 : left > most ? most : left));
        if (hangs_at[0] && unlink(hangs_at) == 0)
            skipped_ms += timeout_ms;
    }
    tkr_children_free(c);
    return err;
}

#define EACH "while read -r l; do "
#define ID   "i=${l#*:}; i=${i%\\}}; "

TEST(each_line_is_answered_by_a_process)
{
    seen s;
    tinkc_error err = ask_all(EACH ID "echo \"{\\\"id\\\":$i,\\\"reward\\\":0.5}\"; done", 3, 1, PATIENCE_MS, 20, &s);
    assert_ok(err);
    assert_int_equal(s.answers, 20);
    assert_true(s.last == 0.5);
}

/* One process with all lines at once, answered last to first. */
TEST(answers_may_come_in_any_order)
{
    seen s;
    tinkc_error err = ask_all("head -n 5 | tac | sed 's/}/,\"reward\":1}/'", 1, SIZE_MAX, PATIENCE_MS, 5, &s);
    assert_ok(err);
    assert_int_equal(s.answers, 5);
}

/* Dies over every second line; what it had is asked again of the next process. */
TEST(the_lines_of_a_dead_process_are_asked_again)
{
    seen s;
    tinkc_error err = ask_all("read -r l; " ID "echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; read -r l; exit 3", 1, 1,
                              PATIENCE_MS, 6, &s);
    assert_ok(err);
    assert_int_equal(s.answers, 6);
    assert_non_null(strstr(s.log, "ended with status 3"));
}

/* A line that kills each process fails after two, and the others live. */
TEST(a_line_that_kills_two_processes_fails)
{
    seen s;
    tinkc_error err = ask_all(EACH ID "[ $i = 3 ] && exit 9; echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; done", 1, 1,
                              PATIENCE_MS, 5, &s);
    assert_ok(err);
    assert_int_equal(s.answers, 4);
    assert_int_equal(s.failures, 1);
    assert_non_null(strstr(s.why, "status 9"));
}

TEST(a_process_that_hangs_is_ended)
{
    seen s;
    char folder[] = "/tmp/tinkc-hangs-XXXXXX", command[300];
    assert_non_null(mkdtemp(folder));
    snprintf(hangs_at, sizeof hangs_at, "%s/now", folder);
    snprintf(command, sizeof command,
             EACH "i=${l#*:}; i=${i%%\\}}; [ $i = 2 ] && : > %s && exec sleep 1000; "
                  "echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; done",
             hangs_at);
    tinkc_error err = ask_all(command, 1, 1, PATIENCE_MS, 3, &s);
    assert_ok(err);
    assert_int_equal(s.answers, 2);
    assert_non_null(strstr(s.why, "did not answer within 120000 ms"));
    const char *said = strstr(s.log, "did not answer within");
    assert_non_null(said);
    assert_null(strstr(said + 1, "did not answer within")); /* the next process is not tried with it */
    hangs_at[0] = '\0';
    assert_int_equal(rmdir(folder), 0);
}

/* A process answers what it was asked, not what another was. */
TEST(an_answer_in_the_place_of_another_process_is_none)
{
    seen s;
    tinkc_error err = ask_all("read -r l; " ID "echo \"{\\\"id\\\":$((3 - i)),\\\"reward\\\":1}\"; exec sleep 100", 2,
                              1, PATIENCE_MS, 2, &s);
    assert_ok(err);
    assert_int_equal(s.answers, 0);
    assert_non_null(strstr(s.log, "unknown id"));
}

/* What a process wrote explains its own end, not that of the next. */
TEST(the_last_words_are_those_of_the_process_that_died)
{
    seen s;
    char folder[] = "/tmp/tinkc-words-XXXXXX", command[200];
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "read -r l; rmdir %s 2>/dev/null && echo no such module >&2 && exit 4; exit 5",
             folder);
    (void)ask_all(command, 1, 1, PATIENCE_MS, 1, &s);
    assert_non_null(strstr(s.log, "ended with status 4: no such module"));
    assert_non_null(strstr(s.log, "ended with status 5 ("));
}

/* Who polls wakes up for the first of the answers that is late. */
TEST(the_next_deadline_is_the_earliest)
{
    tinkc_error err = { 0 };
    seen s = { 0 };
    int64_t first = 0;
    tkr_children *c = tkr_children_new(&(tkr_children_options){ .command = "exec sleep 100",
                                                                .name = "grader",
                                                                .processes = 1,
                                                                .asks_each = 2,
                                                                .attempts = 1,
                                                                .timeout_ms = PATIENCE_MS },
                                       &err);
    for (uint64_t id = 1; id <= 2; id++, skipped_ms += 1000) {
        struct pollfd fds[4];
        int64_t until = INT64_MAX;
        assert_true(tkr_children_ask(c, id, "{}", TKR_ANY_CHILD, on_answer, &s, &err));
        assert_true(tkr_children_run(c, &err));
        (void)tkr_children_poll(c, fds, 4, &until);
        first = first ? first : until;
        assert_true(until == first && until < INT64_MAX);
    }
    tkr_children_free(c);
}

static void expect_rules(const char *command, const char *word)
{
    seen s;
    tinkc_error err = ask_all(command, 1, 1, PATIENCE_MS, 1, &s);
    assert_true(s.answers == 0 && (s.failures == 1 || err.code));
    if (!strstr(s.log, word))
        fail_msg("\"%s\" does not say %s", s.log, word);
}

TEST(an_answer_without_sense_is_explained)
{
    expect_rules("echo first >&2; read -r l; echo no such module >&2; exit 4", "ended with status 4: no such module");
    expect_rules(EACH "echo hello; done", "not a JSON object");
    expect_rules(EACH "echo '[1]'; done", "not a JSON object");
    expect_rules(EACH "echo '{\"id\":99,\"reward\":1}'; done", "unknown id");
    expect_rules(EACH "echo '{\"id\":\"1\",\"reward\":1}'; done", "unknown id");
    expect_rules(EACH "echo '{\"reward\":1}'; done", "unknown id");
    expect_rules("read -r l; head -c 20000000 /dev/zero | tr '\\0' x; sleep 9", "16 MiB");
}

/* The second answer to the same id ends the process; the next line goes to a new one. */
TEST(a_second_answer_ends_the_process)
{
    seen s;
    tinkc_error err = ask_all(EACH ID "echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; "
                                      "echo \"{\\\"id\\\":$i,\\\"reward\\\":2}\"; done",
                              1, 1, PATIENCE_MS, 2, &s);
    assert_ok(err);
    assert_int_equal(s.answers + s.failures, 2);
    assert_non_null(strstr(s.log, "has its answer already"));
}

TEST(a_command_that_does_not_start_is_an_error)
{
    seen s;
    tinkc_error err = ask_all("/nowhere/grader", 1, 1, PATIENCE_MS, 20, &s);
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, "/nowhere/grader"));
    assert_int_equal(s.answers, 0);
}

TEST(the_error_output_is_kept)
{
    seen s;
    tinkc_error err = ask_all("echo starting >&2; " EACH ID "echo line $i >&2; "
                              "echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; done",
                              1, 1, PATIENCE_MS, 2, &s);
    assert_ok(err);
    assert_non_null(strstr(s.log, "grader 0: starting\n"));
    assert_non_null(strstr(s.log, "grader 0: line 1\n"));
}

/* Answers, and writes its variables and descriptors to the log first. */
#define TELLS                                                                                                          \
    "env | sed 's/^/var /' >&2; n=0; while [ $n -lt 256 ]; do [ -e /proc/$$/fd/$n ] && "                               \
    "echo \"fd $n\" >&2; n=$((n+1)); done; " EACH ID "echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; done"

TEST(children_see_no_credentials)
{
    static const char *const secrets[] = { "TINKER_API_KEY",        "HF_TOKEN",    "WANDB_API_KEY",
                                           "AWS_SECRET_ACCESS_KEY", "https_proxy", "A_NEW_SECRET" };
    seen s;
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        assert_int_equal(setenv(secrets[i], "do-not-show", 1), 0);
    tinkc_error err = ask_all(TELLS, 1, 1, PATIENCE_MS, 1, &s);
    assert_ok(err);
    assert_non_null(strstr(s.log, "var PATH="));
    assert_non_null(strstr(s.log, "var HOME="));
    assert_null(strstr(s.log, "do-not-show"));
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
        assert_false(tinkc_recipe_command_sees(secrets[i]));
        assert_int_equal(unsetenv(secrets[i]), 0);
    }
}

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 300; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

TEST(children_leave_no_descriptors)
{
    seen s;
    int before = open_descriptors();
    for (int i = 0; i < 2; i++)
        assert_ok(ask_all(TELLS, 1, 1, PATIENCE_MS, 1, &s));
    assert_int_equal(open_descriptors(), before);
}

TEST(children_inherit_no_descriptors)
{
    seen s;
    int ours = socket(AF_UNIX, SOCK_STREAM, 0); /* of a library that does not say CLOEXEC */
    int far = fcntl(ours, F_DUPFD, 200);
    assert_true(ours >= 3 && far >= 200);
    tinkc_error err = ask_all(TELLS, 1, 1, PATIENCE_MS, 1, &s);
    close(ours);
    close(far);
    assert_ok(err);
    const char *fds = strstr(s.log, "grader 0: fd ");
    assert_string_equal(fds, "grader 0: fd 0\ngrader 0: fd 1\ngrader 0: fd 2\n");
}

TEST(a_variable_that_is_named_is_passed)
{
    tinkc_error err = { 0 };
    seen s = { 0 };
    setenv("GRADER_KEY", "shown", 1);
    setenv("GRADER_KEYS", "do-not-show", 1);
    tkr_children *c = tkr_children_new(&(tkr_children_options){ .command = TELLS,
                                                                .name = "grader",
                                                                .processes = 1,
                                                                .asks_each = 1,
                                                                .attempts = 1,
                                                                .timeout_ms = PATIENCE_MS,
                                                                .log = on_log,
                                                                .user = &s },
                                       &err);
    assert_true(tkr_children_pass(c, "GRADER_KEY", &err));
    assert_true(tkr_children_ask(c, 1, "{\"id\":1}", TKR_ANY_CHILD, on_answer, &s, &err));
    while (!s.answers && tkr_children_run(c, &err)) {
        struct pollfd fds[4];
        int64_t until = INT64_MAX;
        if (!s.answers)
            (void)poll(fds, tkr_children_poll(c, fds, 4, &until), 20000);
    }
    assert_ok(err);
    assert_non_null(strstr(s.log, "var GRADER_KEY=shown\n"));
    assert_null(strstr(s.log, "do-not-show"));
    static const char *const wrong[] = { "", "A=B", NULL };
    for (size_t i = 0; i < 3; i++) {
        assert_false(tkr_children_pass(c, wrong[i], &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        err = (tinkc_error){ 0 };
    }
    tkr_children_free(c);
}

static void expect_numbers(const tkr_children *c, size_t processes, size_t asks_each, int64_t ms)
{
    assert_non_null(c);
    assert_int_equal(c->how.processes, processes);
    assert_int_equal(c->how.asks_each, asks_each);
    assert_int_equal(c->how.timeout_ms, ms);
}

/* What rewards and environments make of their arguments. */
TEST(processes_and_times_have_defaults)
{
    tinkc_error err = { 0 };
    for (int given = 0; given < 2; given++) {
        size_t n = given ? 7 : 0;
        int64_t ms = given ? 8 : 0;
        tinkc_reward *r = tinkc_reward_command("cat", n, ms, NULL, NULL, &err);
        tinkc_env *e = tinkc_env_command("cat", n, ms, NULL, NULL, &err);
        assert_ok(err);
        expect_numbers(tkr_reward_children(r), given ? 7 : 4, 1, given ? 8 : 60000);
        expect_numbers(tkr_env_children(e), given ? 7 : 1, SIZE_MAX, given ? 8 : 60000);
        tinkc_reward_free(r);
        tinkc_env_free(e);
    }
}
