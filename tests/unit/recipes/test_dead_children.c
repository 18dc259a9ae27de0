/* test_dead_children.c - commands that answer lines, after one of their processes has died. */
#include <unistd.h>

#include "base/clock.h"
#include "recipes/children.h"
#include "support/check.h"

typedef struct seen {
    int answers, failures;
    char log[4000];
} seen;

static void on_answer(void *user, const tkc_tree *answer, const char *why)
{
    seen *s = user;
    (void)why;
    s->answers += answer != NULL;
    s->failures += answer == NULL;
}

static void on_log(int32_t level, const char *line, void *user)
{
    seen *s = user;
    size_t n = strlen(s->log);
    (void)level;
    (void)snprintf(s->log + n, sizeof s->log - n, "%s\n", line);
}

static tkr_children *begin(const char *command, seen *s, tinkc_error *err)
{
    return tkr_children_new(&(tkr_children_options){ .command = command,
                                                     .name = "grader",
                                                     .processes = 1,
                                                     .asks_each = 1,
                                                     .attempts = 2,
                                                     .timeout_ms = PATIENCE_MS,
                                                     .log = on_log,
                                                     .user = s },
                            err);
}

static void run(tkr_children *c, int n, seen *s, tinkc_error *err)
{
    while (s->answers + s->failures < n && tkr_children_run(c, err)) {
        struct pollfd fds[16];
        int64_t until = INT64_MAX;
        size_t m = tkr_children_poll(c, fds, 16, &until);
        if (s->answers + s->failures < n)
            (void)poll(fds, m, 1000);
    }
}

/* A command whose first process does `first`, and each later one answers its lines with their ids. `%s` in first: a
 * folder of the test. */
static void expect_answer_after(const char *first, size_t row_bytes, const char *folder)
{
    tinkc_error err = { 0 };
    seen s = { 0 };
    char command[1000], begun[600];
    (void)snprintf(begun, sizeof begun, first, folder);
    (void)snprintf(command, sizeof command,
                   "if mkdir %s/first 2> /dev/null; then %s; exit 1; fi; while read -r l; do "
                   "i=${l#*:}; echo \"{\\\"id\\\":${i%%%%,*},\\\"reward\\\":1}\"; done",
                   folder, begun);
    char *line = malloc(row_bytes + 60);
    assert_non_null(line);
    int n = snprintf(line, 40, "{\"id\":1,\"row\":\"");
    memset(line + n, 'x', row_bytes);
    (void)snprintf(line + (size_t)n + row_bytes, 4, "\"}");
    tkr_children *c = begin(command, &s, &err);
    assert_true(tkr_children_ask(c, 1, line, TKR_ANY_CHILD, on_answer, &s, &err));
    run(c, 1, &s, &err);
    assert_ok(err);
    if (s.answers != 1)
        fail_msg("no answer of the second process: %s", s.log);
    tkr_children_free(c);
    free(line);
}

static void remove_folder(const char *folder)
{
    char command[100];
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* Half a line that the first one wrote, and half a request that it never read. */
TEST(a_new_process_inherits_no_half_lines)
{
    static const struct {
        const char *first;
        size_t row_bytes;
    } rows[] = { { "read -r l; printf '{\"id\":1,'", 10 }, { ": %s", 4 << 20 } };
    for (size_t i = 0; i < 2; i++) {
        char folder[] = "/tmp/tinkc-halves-XXXXXX";
        assert_non_null(mkdtemp(folder));
        expect_answer_after(rows[i].first, rows[i].row_bytes, folder);
        remove_folder(folder);
    }
}

/* Running, as opposed to gone or waiting for its parent to take note. */
static bool runs(long pid)
{
    char path[64], line[300] = "";
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    return end && end[1] && end[2] != 'Z' && end[2] != 'X';
}

/* What a process has started ends with it, even where it ends by itself. */
TEST(what_a_process_started_ends_with_it)
{
    char folder[] = "/tmp/tinkc-kin-XXXXXX", path[64];
    long pid = 0;
    assert_non_null(mkdtemp(folder));
    expect_answer_after("sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > %s/pid; read -r l", 10, folder);
    (void)snprintf(path, sizeof path, "%s/pid", folder);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pid), 1);
    fclose(f);
    int64_t until = tkc_monotonic_ns() + (int64_t)PATIENCE_MS * 1000000 / 20;
    while (runs(pid) && tkc_monotonic_ns() < until)
        (void)poll(NULL, 0, 1); /* a signal that was sent takes its time to arrive */
    assert_false(runs(pid));
    remove_folder(folder);
}

/* Ten deaths in a row end the whole; an answer in between begins the count again. */
TEST(deaths_are_counted_from_the_last_answer)
{
    tinkc_error err = { 0 };
    seen s = { 0 };
    tkr_children *c = begin("read -r l; i=${l#*:}; i=${i%\\}}; echo \"{\\\"id\\\":$i,\\\"reward\\\":1}\"; "
                            "exit 3",
                            &s, &err);
    for (unsigned i = 1; i <= 14; i++) {
        char line[60];
        (void)snprintf(line, sizeof line, "{\"id\":%u}", i);
        assert_true(tkr_children_ask(c, i, line, TKR_ANY_CHILD, on_answer, &s, &err));
    }
    run(c, 14, &s, &err);
    assert_ok(err);
    assert_int_equal(s.answers, 14);
    tkr_children_free(c);
}
