/* test_logdirs.c - log directories as the page reads them: what is found, what is left out. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "service/page/logdirs.h"
#include "service/http/page_gate.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "tinkc/engine.h"

static char *folder;

static int setup(void **state)
{
    (void)state;
    folder = tiny_folder();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_model_remove(folder);
    return 0;
}

static const char *below(const char *name)
{
    static char paths[4][600];
    static size_t next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    tiny_write(folder, name, text);
}

static void make_folder(const char *name)
{
    assert_int_equal(mkdir(below(name), 0700), 0);
}

/* ---- lines ---- */

static void expect_rows(const char *text, int64_t from, bool numbers, const char *rows, tke_lines *place)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    put("lines", text);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    int fd = open(below("lines"), O_RDONLY);
    assert_true(tke_lines_read(fd, from, numbers, &out, place, &err));
    assert_ok(err);
    assert_string_equal(tkc_buf_terminate(&out, &err), rows);
    close(fd);
    tkc_buf_free(&out);
}

TEST_WITH(rows_are_read_from_a_place, setup, teardown)
{
    tke_lines place;
    expect_rows("{\"a\":1}\n{\"a\":2}\n", 0, false, "[{\"a\":1},{\"a\":2}]", &place);
    assert_int_equal(place.next, 16);
    assert_false(place.more);
    expect_rows("{\"a\":1}\n{\"a\":2}\n", 8, false, "[{\"a\":2}]", &place);
    assert_int_equal(place.from, 8);
    expect_rows("{\"a\":1}\n", 100, false, "[{\"a\":1}]", &place); /* the file has been cut */
    assert_int_equal(place.from, 0);
    expect_rows("{\"a\":1}\n{\"a\":", 0, false, "[{\"a\":1}]", &place); /* still being written */
    assert_int_equal(place.next, 8);
    assert_int_equal(place.left_out, 0);
    expect_rows("", 0, false, "[]", &place);
}

TEST_WITH(what_is_no_object_is_left_out, setup, teardown)
{
    tke_lines place;
    expect_rows("no\n[1]\n\n{\"a\":1} {\n{\"a\":\"\xff\"}\n{\"b\":2}\n", 0, false, "[{\"b\":2}]", &place);
    assert_int_equal(place.left_out, 4);
    assert_int_equal(place.rows, 1);
}

TEST_WITH(rows_hold_numbers_alone, setup, teardown)
{
    tke_lines place;
    expect_rows("{\"step\":1,\"x\":\"text\",\"y\":{\"z\":1},\"v\":-2.5e3,\"b\":true,\"n\":NaN,"
                "\"i\":-Infinity,\"s\":\"NaN\"}\n",
                0, true, "[{\"step\":1,\"v\":-2.5e3}]", &place);
    expect_rows("{\"s\":\"NaN \\\" NaN\",\"n\":NaN}\n", 0, false, "[{\"s\":\"NaN \\\" NaN\",\"n\":null}]", &place);
}

/* A line longer than everything that is read at once is skipped; the lines after it are read. */
TEST_WITH(an_endless_line_is_passed_over, setup, teardown)
{
    tinkc_error err = { 0 };
    tke_lines place = { .more = true };
    tkc_buf out;
    FILE *f = fopen(below("lines"), "w");
    for (size_t i = 0; i < 2 * TKE_LINES_CHUNK + 5; i++)
        fputc('x', f);
    fputs("\n{\"a\":1}\n", f);
    fclose(f);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    int fd = open(below("lines"), O_RDONLY);
    size_t rows = 0, left_out = 0, rounds = 0;
    for (int64_t from = 0; place.more && rounds < 10; from = place.next, rounds++) {
        tkc_buf_clear(&out);
        assert_true(tke_lines_read(fd, from, false, &out, &place, &err));
        rows += place.rows;
        left_out += place.left_out;
    }
    assert_int_equal(rounds, 3);
    assert_int_equal(rows, 1);
    assert_int_equal(left_out, 3);
    close(fd);
    tkc_buf_free(&out);
}

TEST_WITH(a_line_of_many_numbers_is_bounded, setup, teardown)
{
    tinkc_error err = { 0 };
    tkc_buf line;
    tkc_arena arena;
    tinkc_str row;
    tkc_buf_init(&line, NULL, TKC_BUF_NO_MAX);
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_cstr(&line, "{", &err);
    for (int i = 0; i < 3000; i++)
        tkc_buf_printf(&line, &err, "%s\"k%d\":1", i ? "," : "", i);
    tkc_buf_cstr(&line, "}", &err);
    assert_true(tke_line_row(tkc_buf_view(&line), true, &arena, &row));
    size_t n = 0;
    for (size_t i = 0; i < row.len; i++)
        n += row.data[i] == ':';
    assert_int_equal(n, TKE_LINES_MAX_KEYS);
    tkc_buf_free(&line);
    tkc_arena_free(&arena);
}

/* ---- folders ---- */

static tke_logdirs scan(const char *root)
{
    tinkc_error err = { 0 };
    tke_logdirs logs;
    const char *roots[] = { root, NULL };
    assert_true(tke_logdirs_init(&logs, NULL, roots, &err));
    assert_true(tke_logdirs_scan(&logs, &err));
    return logs;
}

static const tke_logged_run *named(const tke_logdirs *logs, const char *name)
{
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&logs->runs, &at));)
        if (strcmp(((const tke_logged_run *)e->value)->name, name) == 0)
            return e->value;
    return NULL;
}

TEST_WITH(runs_are_found, setup, teardown)
{
    make_folder("a");
    make_folder("b");
    make_folder("b/c");
    make_folder("deep");
    make_folder("deep/1");
    make_folder("deep/1/2");
    make_folder("deep/1/2/3");
    make_folder(".hidden");
    put("a/metrics.jsonl", "{\"step\":0,\"loss\":2}\n{\"step\":1,\"loss\":1.5}\n");
    put("a/config.json", "{\"model_name\":\"nano\",\"learning_rate\":0.1,\"secret\":\"s\",\"hf_token\":\"t\","
                         "\"wandb_api_key\":\"k\",\"nested\":{\"a\":1},\"max_tokens\":8}");
    put("a/checkpoints.jsonl", "{\"name\":\"final\"}\n");
    put("b/c/checkpoints.jsonl", "");
    put("deep/1/2/3/metrics.jsonl", "");
    put(".hidden/metrics.jsonl", "");
    tke_logdirs logs = scan(folder);
    assert_int_equal(logs.runs.n_live, 2);
    const tke_logged_run *a = named(&logs, "a");
    assert_non_null(a);
    assert_non_null(named(&logs, "b/c"));
    assert_string_equal(a->last, "{\"step\":1,\"loss\":1.5}");
    assert_string_equal(a->config, "{\"model_name\":\"nano\",\"learning_rate\":0.1,\"max_tokens\":8}");
    assert_true(a->final);
    assert_false(named(&logs, "b/c")->final);
    tke_logdirs_free(&logs);
}

/* It becomes a line of the event stream, where a line break would begin a field of its own. */
TEST_WITH(line_breaks_of_a_config_are_not_sent, setup, teardown)
{
    make_folder("a");
    put("a/config.json", "{\"model_name\":[\"nano\",\r\n\n\"event: forged\"],\n \"lora_rank\": 4}");
    tke_logdirs logs = scan(folder);
    const tke_logged_run *a = named(&logs, "a");
    assert_non_null(a);
    assert_non_null(a->config);
    assert_null(strpbrk(a->config, "\r\n"));
    assert_non_null(strstr(a->config, "\"lora_rank\":4"));
    tke_logdirs_free(&logs);
}

TEST_WITH(a_root_that_is_a_run_has_its_own_name, setup, teardown)
{
    make_folder("only");
    put("only/config.json", "{");
    tke_logdirs logs = scan(below("only"));
    assert_non_null(named(&logs, "only"));
    assert_null(named(&logs, "only")->config);
    tke_logdirs_free(&logs);
}

TEST_WITH(changes_are_noticed, setup, teardown)
{
    tinkc_error err = { 0 };
    make_folder("a");
    put("a/metrics.jsonl", "{\"step\":0}\n");
    tke_logdirs logs = scan(folder);
    uint64_t before = named(&logs, "a")->version;
    assert_true(tke_logdirs_scan(&logs, &err));
    assert_int_equal(named(&logs, "a")->version, before);
    put("a/metrics.jsonl", "{\"step\":0}\n{\"step\":1}\n");
    assert_true(tke_logdirs_scan(&logs, &err));
    assert_true(named(&logs, "a")->version > before);
    assert_string_equal(named(&logs, "a")->last, "{\"step\":1}");
    before = logs.version;
    assert_int_equal(unlink(below("a/metrics.jsonl")), 0);
    assert_true(tke_logdirs_scan(&logs, &err));
    assert_int_equal(logs.runs.n_live, 0);
    assert_true(logs.removed > before);
    tke_logdirs_free(&logs);
}

/* 1700000000.123456 s; the page counts in milliseconds, and a run that wrote in the last two minutes is running. */
TEST_WITH(the_time_of_a_change_says_whether_a_run_is_running, setup, teardown)
{
    static const struct {
        int64_t later_us;
        const char *status;
    } rows[] = { { 0, "\"status\":\"running\"" },
                 { 119999999, "\"status\":\"running\"" },
                 { 120000000, "\"status\":\"idle\"" } };
    const struct timespec at[2] = { { 1700000000, 123456789 }, { 1700000000, 123456789 } };
    make_folder("a");
    put("a/metrics.jsonl", "{\"step\":0}\n");
    assert_int_equal(utimensat(AT_FDCWD, below("a/metrics.jsonl"), at, 0), 0);
    tke_logdirs logs = scan(folder);
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        assert_true(tke_run_describe(named(&logs, "a"), 1700000000123456 + rows[i].later_us, &out, &err));
        assert_true(tkc_buf_terminate(&out, &err));
        assert_non_null(strstr(out.data, rows[i].status));
        assert_non_null(strstr(out.data, "\"changed_ms\":1700000000123,"));
        tkc_buf_free(&out);
    }
    tke_logdirs_free(&logs);
}

/* Links and pipes in a run are not opened: they could lead anywhere, or never end. */
TEST_WITH(only_regular_files_are_opened, setup, teardown)
{
    make_folder("a");
    put("secret", "{\"step\":7}\n");
    put("a/config.json", "{}");
    assert_int_equal(symlink("../secret", below("a/metrics.jsonl")), 0);
    assert_int_equal(mkfifo(below("a/samples.jsonl"), 0600), 0);
    assert_int_equal(symlink("a", below("link")), 0);
    tke_logdirs logs = scan(folder);
    assert_int_equal(logs.runs.n_live, 1);
    const tke_logged_run *run = named(&logs, "a");
    assert_null(run->last);
    assert_int_equal(tke_run_open(run, TKE_RUN_METRICS), -1);
    assert_int_equal(tke_run_open(run, TKE_RUN_SAMPLES), -1);
    assert_int_equal(tke_run_file_named(tkc_str("../secret")), -1);
    assert_null(tke_logdirs_run(&logs, tkc_str("../a")));
    tke_logdirs_free(&logs);
}

TEST_WITH(names_become_utf8, setup, teardown)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    make_folder("x\xff\ny");
    put("x\xff\ny/config.json", "{}");
    tke_logdirs logs = scan(folder);
    const tke_logged_run *run = named(&logs, "x??y");
    assert_non_null(run);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    assert_true(tke_run_describe(run, 0, &out, &err));
    assert_non_null(strstr(tkc_buf_terminate(&out, &err), "\"name\":\"x??y\""));
    tkc_buf_free(&out);
    tke_logdirs_free(&logs);
}

/* ---- reports ---- */

/* Not time(2): it may lag behind the clock that dates a report. */
static long long clock_ms(void)
{
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &now), 0);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

TEST_WITH(a_report_holds_the_data, setup, teardown)
{
    tinkc_error err = { 0 };
    tinkc_text html = { 0 };
    const char *roots[] = { folder, NULL };
    assert_string_equal(tinkc_logs_report(roots, &html, &err), "");
    assert_int_equal(err.code, TINKC_E_NOT_FOUND);
    err = (tinkc_error){ 0 };
    make_folder("a");
    put("a/metrics.jsonl", "{\"step\":0,\"loss\":2}\n");
    put("a/samples.jsonl", "{\"step\":0,\"completion\":\"</script><b>\"}\n");
    long long before_ms = clock_ms(), made_ms = 0;
    const char *text = tinkc_logs_report(roots, &html, &err);
    assert_ok(err);
    const char *made = strstr(text, "\"made_ms\":");
    assert_non_null(made);
    assert_int_equal(sscanf(made + 10, "%lld", &made_ms), 1);
    assert_true(made_ms >= before_ms && made_ms <= clock_ms());
    assert_non_null(strstr(text, "{\"step\":0,\"loss\":2}"));
    assert_non_null(strstr(text, "\\u003c/script>\\u003cb>"));
    assert_null(strstr(text, "</script><b>"));
    assert_null(strstr(text, "{{"));
    assert_null(strstr(text, "http://127"));
    tinkc_text_free(&html);
}

/* Of 9,000 rows every third stays, and each evaluation. */
TEST_WITH(a_long_run_is_thinned_out, setup, teardown)
{
    tinkc_error err = { 0 };
    tinkc_text html = { 0 };
    const char *roots[] = { folder, NULL };
    make_folder("a");
    FILE *f = fopen(below("a/metrics.jsonl"), "w");
    for (int i = 0; i < 9000; i++)
        fprintf(f, i == 4001 ? "{\"step\":%d,\"loss\":1,\"test\":3}\n" : "{\"step\":%d,\"loss\":1}\n", i);
    fclose(f);
    const char *text = tinkc_logs_report(roots, &html, &err);
    assert_ok(err);
    assert_non_null(strstr(text, "{\"step\":4001,\"loss\":1,\"test\":3}"));
    assert_non_null(strstr(text, "{\"step\":3000,"));
    assert_null(strstr(text, "{\"step\":3001,"));
    assert_non_null(strstr(text, "\"every\":3"));
    tinkc_text_free(&html);
}

/* ---- memory ---- */

typedef struct failing { /* the n-th allocation fails; knows how many bytes are out */
    size_t left, bytes;
} failing;

static void *failing_alloc(size_t size, void *user)
{
    failing *f = user;
    void *p = f->left && f->left-- ? malloc(size ? size : 1) : NULL;
    f->bytes += p ? size : 0;
    return p;
}

static void *failing_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    failing *f = user;
    void *p = f->left && f->left-- ? realloc(ptr, new_size ? new_size : 1) : NULL;
    f->bytes += p ? new_size - old_size : 0;
    return p;
}

static void failing_release(void *ptr, size_t size, void *user)
{
    ((failing *)user)->bytes -= ptr ? size : 0;
    free(ptr);
}

/* Scans, describes and reads; true if it got through. */
static bool look_once(const tinkc_allocator *a)
{
    tinkc_error err = { 0 };
    tke_logdirs logs;
    tkc_buf out;
    tke_lines place;
    const tkc_map_entry *e;
    const char *roots[] = { folder, NULL };
    tkc_buf_init(&out, a, TKC_BUF_NO_MAX);
    bool ok = tke_logdirs_init(&logs, a, roots, &err) && tke_logdirs_scan(&logs, &err);
    for (size_t at = 0; ok && (e = tkc_map_next(&logs.runs, &at));) {
        const tke_logged_run *run = e->value;
        int fd = tke_run_open(run, TKE_RUN_METRICS);
        ok = tke_run_describe(run, 0, &out, &err) && fd >= 0 && tke_lines_read(fd, 0, true, &out, &place, &err);
        if (fd >= 0)
            close(fd);
        ok = ok && place.left_out == 0 && run->last && run->config;
    }
    tkc_buf_free(&out);
    tke_logdirs_free(&logs);
    return ok;
}

/* Whichever allocation fails: no crash, nothing stays out. */
TEST_WITH(any_failed_allocation_leaves_the_answer_whole, setup, teardown)
{
    make_folder("a");
    put("a/metrics.jsonl", "{\"step\":0,\"loss\":2}\n");
    put("a/config.json", "{\"model_name\":\"nano\"}");
    put("a/checkpoints.jsonl", "{\"name\":\"x\"}\n");
    bool through = false;
    for (size_t n = 0; !through; n++) {
        failing f = { .left = n };
        tinkc_allocator a = { failing_alloc, failing_resize, failing_release, &f };
        assert_true(n < 1000);
        through = look_once(&a);
        assert_int_equal(f.bytes, 0);
    }
}

/* ---- who may ask ---- */

TEST(other_origins_are_refused)
{
    static const struct {
        tke_gate_request r;
        bool keys, open;
    } cases[] = {
        { { .host = "127.0.0.1:8000" }, false, true },
        { { .host = "localhost" }, false, true },
        { { .host = "[::1]:9" }, false, true },
        { { .host = "evil.example:8000" }, false, false }, /* a name that points here */
        { { .host = "evil.example:8000" }, true, true },
        { { .host = NULL }, false, false },
        { { .host = "127.0.0.1.evil.example" }, false, false },
        { { "127.0.0.1:8000", "http://127.0.0.1:8000", NULL }, false, true },
        { { "127.0.0.1:8000", "http://127.0.0.1:9000", NULL }, false, false },
        { { "127.0.0.1:8000", "https://evil.example", NULL }, true, false },
        { { "127.0.0.1:8000", "null", NULL }, false, false },
        { { "127.0.0.1:8000", NULL, "cross-site" }, true, false },
        { { "127.0.0.1:8000", NULL, "same-site" }, false, false },
        { { "127.0.0.1:8000", NULL, "same-origin" }, false, true },
        { { "127.0.0.1:8000", NULL, "none" }, false, true },
        { { "gpu.lan:8000", "https://gpu.lan:8000", "same-origin" }, true, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (tke_gate_allows(&cases[i].r, "http://127.0.0.1:8000", cases[i].keys) != cases[i].open)
            fail_msg("case %zu", i);
    assert_true(tke_gate_allows(&(tke_gate_request){ .host = "box:1" }, "http://box:1", false));
    assert_true(tke_gate_allows(&(tke_gate_request){ .host = "x" }, "unix:/tmp/s", false));
    assert_true(tke_gate_is_ui("/?x") && tke_gate_is_ui("/ui/a") && !tke_gate_is_ui("/uix"));
}
