/* Time, log lines, files, threads, helper pools, opening libraries. */
#include "support/check.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dl.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/thread.h"

/* ---- time ---- */

TEST(times_are_read)
{
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {
        { "1970-01-01T00:00:00Z", 0 },
        { "2025-01-01T00:00:00.123456Z", 1735689600123456 },
        { "2025-01-01T00:00:00Z", 1735689600000000 },
        { "2025-01-01t00:00:00z", 1735689600000000 },
        { "2025-01-01 00:00:00", 1735689600000000 },
        { "2025-01-01T01:30:00+01:30", 1735689600000000 },
        { "2024-12-31T19:00:00-0500", 1735689600000000 },
        { "2025-01-01T00:00:00.1Z", 1735689600100000 },
        { "2025-01-01T00:00:00.123456789Z", 1735689600123456 },
        { "2024-02-29T12:00:00Z", 1709208000000000 },
        { "2016-12-31T23:59:60Z", 1483228800000000 },
        { "1969-12-31T23:59:59.5Z", -500000 },
        { "0001-01-01T00:00:00Z", -62135596800000000 },
        { "9999-12-31T23:59:59Z", 253402300799000000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t us = 1;
        if (!tkc_parse_time(cases[i].text, strlen(cases[i].text), &us) || us != cases[i].us)
            fail_msg("%s: %lld", cases[i].text, (long long)us);
    }
    static const char *const bad[] = {
        "",
        "2025",
        "2025-01-01",
        "2025-01-01T00:00Z",
        "2025-13-01T00:00:00Z",
        "2025-00-01T00:00:00Z",
        "2025-01-32T00:00:00Z",
        "2025-02-29T00:00:00Z",
        "2025-04-31T00:00:00Z",
        "2025-01-01T24:00:00Z",
        "2025-01-01T00:60:00Z",
        "2025-01-01T00:00:61Z",
        "2025-01-01T00:00:00.Z",
        "2025-01-01T00:00:00X",
        "2025-01-01T00:00:00Zx",
        "2025-01-01T00:00:00+1",
        "2025-01-01T00:00:00+24:00",
        "-025-01-01T00:00:00Z",
        "2025-01-01T00:00:00+00:60",
        "2025/01/01T00:00:00Z",
        "1735689600",
        "+2025-01-01T00:00:00Z",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t us;
        size_t n = strlen(bad[i]);
        char *copy = exact_copy(bad[i], n);
        if (tkc_parse_time(copy, n, &us))
            fail_msg("%s was read", bad[i]);
        free_copy(copy, n);
    }
}

TEST(times_are_written)
{
    char text[TKC_TIME_TEXT];
    tkc_format_time(1735689600123456, true, text);
    assert_string_equal(text, "2025-01-01T00:00:00.123456Z");
    tkc_format_time(1735689600123456, false, text);
    assert_string_equal(text, "2025-01-01T00:00:00Z");
    tkc_format_time(-500000, true, text);
    assert_string_equal(text, "1969-12-31T23:59:59.500000Z");
    for (int64_t us = -62135596800000000; us < 253402300799000000; us += 7919837460913241) {
        int64_t back;
        tkc_format_time(us, true, text);
        assert_true(tkc_parse_time(text, strlen(text), &back));
        assert_true(back == us);
    }
}

TEST(days_and_dates_agree)
{
    int32_t y, m, d, before = 0;
    for (int64_t days = -800000; days < 800000; days += 1) {
        tkc_civil_from_days(days, &y, &m, &d);
        if (tkc_days_from_civil(y, m, d) != days || (d != before + 1 && d != 1 && before))
            fail_msg("day %lld is %d-%d-%d", (long long)days, y, m, d);
        before = d;
    }
    tkc_civil_from_days(0, &y, &m, &d);
    assert_true(y == 1970 && m == 1 && d == 1);
}

static uint64_t most(void *self)
{
    (void)self;
    return UINT64_MAX;
}

TEST(chance_stays_below_one)
{
    tinkc_clock clock = { .random = most };
    assert_true(tkc_random_unit(&clock) < 1.0 && tkc_random_unit(&clock) > 0.999);
    const tinkc_clock *real = tkc_clock_real();
    assert_true(tkc_random(real) != tkc_random(real));
    int64_t a = tkc_now_ms(real), w = tkc_wall_us(real);
    assert_true(tkc_now_ms(real) >= a && w > 1700000000000000);
}

/* ---- log lines ---- */

static char logged[2048];
static int32_t logged_level;
static void keep_line(int32_t level, const char *line, void *user)
{
    (void)user;
    logged_level = level;
    snprintf(logged, sizeof logged, "%s", line);
}

TEST(secrets_are_redacted)
{
    static const char *const cases[][2] = {
        { "key tml-abc123 used", "key tml-****** used" },
        { "X-API-Key: tml-a", "X-API-Key: tml-*" },
        { "tml-", "tml-" },
        { "jwt eyJhbGciOi.eyJz.sig_x;", "jwt eyJ******************;" },
        { "eyJ in prose", "eyJ in prose" },
        { "eyJabc hf_x", "eyJabc hf_x" },
        { "Authorization: Bearer abc.def", "Authorization: Bearer *******" },
        { "hf_ABCDEFGHIJ", "hf_**********" },
        { "https://h/x?token=s3cret&a=b", "https://h/x?token=******&a=b" },
        { "?X-Amz-Signature=00ff&X=1", "?X-Amz-Signature=****&X=1" },
        { "api_key=k tml-z", "api_key=* tml-*" },
        { "CF-Access-Client-Secret: 0123456789abcdef.", "CF-Access-Client-Secret: *****************" },
        { "{\"cf-access-client-secret\": \"0123456789abcdef\"}",
          "{\"cf-access-client-secret\": \"****************\"}" },
        { "client_secret=0123456789abcdef&a", "client_secret=****************&a" },
        { "cf_access_client_secret: malformed", "cf_access_client_secret: malformed" },
        { "Authorization: Basic dXNlcg==", "Authorization: Basic ********" },
        { "Authorization", "Authorization" },
        { "nothing here", "nothing here" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *copy = exact_copy(cases[i][0], strlen(cases[i][0]));
        tkc_redact(copy, strlen(cases[i][0]));
        assert_str(tkc_strn(copy, strlen(cases[i][0])), cases[i][1]);
        free_copy(copy, strlen(cases[i][0]));
    }
}

/* A service may quote in an error what it was sent. */
TEST(errors_hold_no_credential)
{
    tinkc_error err = { 0 };
    tkc_fail(&err, TINKC_E_REQUEST_FAILED, "no such key: %s", "tml-secret9");
    assert_string_equal(err.message, "no such key: tml-*******");
    err = (tinkc_error){ 0 };
    tkc_fail_text(&err, TINKC_E_REQUEST_FAILED, "Bearer abc\nx", 12);
    assert_string_equal(err.message, "Bearer ***\nx");
    err = (tinkc_error){ 0 };
    tinkc_error_set(&err, TINKC_E_REQUEST_FAILED, "eyJhbGciOiJub25l");
    assert_string_equal(err.message, "eyJ*************");
    err = (tinkc_error){ .code = TINKC_E_FILE, .message = "x" };
    tkc_fail_before(&err, "hf_0123456789: ");
    assert_string_equal(err.message, "hf_**********: x");
}

TEST(lines_go_out_redacted_and_by_level)
{
    tkc_log log = { keep_line, NULL, TINKC_LOG_INFO };
    logged[0] = '\0';
    tkc_log_line(&log, TINKC_LOG_DEBUG, "too much");
    assert_string_equal(logged, "");
    tkc_log_line(&log, TINKC_LOG_INFO, "key %s", "tml-secret");
    assert_string_equal(logged, "key tml-******");
    assert_int_equal(logged_level, TINKC_LOG_INFO);
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    memcpy(big + 1015, "tml-abcdefgh", 12);
    tkc_log_line(&log, TINKC_LOG_INFO, "%s", big);
    assert_int_equal(strlen(logged), 1023);
    assert_string_equal(logged + 1015, "tml-****");
    tkc_log silent = { 0 };
    tkc_log_line(&silent, 0, "nobody");
}

TEST(repeated_warnings_are_held_back)
{
    tkc_log_gate gate = { 0 };
    uint64_t held;
    assert_true(tkc_log_gate_pass(&gate, 1000, 60000, &held) && held == 0);
    assert_false(tkc_log_gate_pass(&gate, 1001, 60000, &held));
    assert_false(tkc_log_gate_pass(&gate, 60999, 60000, &held));
    assert_true(tkc_log_gate_pass(&gate, 61000, 60000, &held) && held == 2);
    assert_false(tkc_log_gate_pass(&gate, 61001, 60000, &held));
    assert_true(tkc_log_gate_pass(&gate, 121000, 60000, &held) && held == 1); /* since the last one */
}

/* What is left of a minute is at most a minute, in the unit that it was given in. */
TEST(deadlines_are_nanoseconds_and_what_is_left_milliseconds)
{
    int64_t left = tkc_left_ms(tkc_deadline_ns(60000));
    assert_true(left > 0 && left <= 60000);
    assert_int_equal(tkc_left_ms(tkc_deadline_ns(0)), 0);
    assert_int_equal(tkc_left_ms(tkc_deadline_ns(TINKC_FOREVER)), TINKC_FOREVER);
}

/* ---- files ---- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tinkc-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    return tkc_remove_tree(folder, &err) && !tkc_is_dir(folder) ? 0 : -1;
}

TEST_WITH(files_are_written_whole, make_folder, remove_folder)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    const char *path = tkc_path_join(&arena, folder, "a", &err);
    assert_true(tkc_write_file(path, "hello\0x", 7, 0600, &err));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    tinkc_bytes read = tkc_read_file(&arena, path, 7, &err);
    assert_int_equal(read.len, 7);
    assert_memory_equal(read.data, "hello\0x", 8);
    assert_true(tkc_write_file(path, "", 0, 0644, &err));
    read = tkc_read_file(&arena, path, 0, &err);
    assert_true(read.data && read.len == 0);
    tkc_mapping map;
    assert_true(tkc_map_file(path, &map, &err) && !map.data && map.len == 0);
    tkc_unmap_file(&map);
    assert_true(tkc_write_file(path, "0123", 4, 0644, &err));
    assert_true(tkc_map_file(path, &map, &err));
    assert_memory_equal(map.data, "0123", 4);
    tkc_unmap_file(&map);
    assert_ok(err);
    assert_null(tkc_read_file(&arena, path, 3, &err).data);
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, path));
    tkc_arena_free(&arena);
}

TEST_WITH(what_is_no_file_is_refused_at_once, make_folder, remove_folder)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    const char *pipe_path = tkc_path_join(&arena, folder, "pipe", &err);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_null(tkc_read_file(&arena, pipe_path, 100, &err).data); /* and does not wait */
    assert_non_null(strstr(err.message, "not a regular file"));
    err = (tinkc_error){ 0 };
    assert_null(tkc_read_file(&arena, folder, 100, &err).data);
    err = (tinkc_error){ 0 };
    assert_null(tkc_read_file(&arena, tkc_path_join(&arena, folder, "none", &err), 100, &err).data);
    assert_non_null(strstr(err.message, "No such file"));
    err = (tinkc_error){ 0 };
    assert_false(tkc_write_file(tkc_path_join(&arena, folder, "no/such", &err), "x", 1, 0600, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    err = (tinkc_error){ 0 };
    tkc_mapping map;
    assert_false(tkc_map_file(pipe_path, &map, &err));
    tkc_arena_free(&arena);
}

TEST_WITH(folders_are_made_and_removed_without_following_links, make_folder, remove_folder)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    const char *deep = tkc_path_join(&arena, folder, "x/y//z", &err);
    assert_true(tkc_make_dirs(deep, &err) && tkc_make_dirs(deep, &err) && tkc_is_dir(deep));
    const char *kept = tkc_path_join(&arena, folder, "kept", &err);
    assert_true(tkc_write_file(kept, "k", 1, 0600, &err));
    assert_int_equal(symlink(folder, tkc_path_join(&arena, deep, "link", &err)), 0);
    assert_true(tkc_write_file(tkc_path_join(&arena, deep, "file", &err), "f", 1, 0600, &err));
    const char *top = tkc_path_join(&arena, folder, "x", &err);
    assert_true(tkc_remove_tree(top, &err));
    assert_false(tkc_is_dir(top));
    assert_true(tkc_is_file(kept) && !tkc_is_dir(kept) && !tkc_is_file(folder));
    assert_true(tkc_remove_tree(top, &err)); /* missing is fine */
    assert_ok(err);
    assert_false(tkc_make_dirs(tkc_path_join(&arena, kept, "sub", &err), &err));
    err = (tinkc_error){ 0 };
    assert_false(tkc_make_dirs("", &err));
    err = (tinkc_error){ 0 };
    assert_string_equal(tkc_path_join(&arena, "a", "b", &err), "a/b");
    assert_string_equal(tkc_path_join(&arena, "a/", "b", &err), "a/b");
    assert_string_equal(tkc_path_join(&arena, "a", "/b", &err), "/b");
    assert_string_equal(tkc_path_join(&arena, "", "b", &err), "b");
    tkc_arena_free(&arena);
}

TEST(errno_is_told)
{
    tinkc_error err = { 0 };
    errno = ENOENT;
    assert_false(tkc_fail_errno(&err, "%s", "/x"));
    assert_string_equal(err.message, "/x: No such file or directory");
    assert_int_equal(err.code, TINKC_E_FILE);
}

/* ---- threads ---- */

typedef struct counted {
    tkc_job job;
    atomic_int *runs;
} counted;

static void count_run(tkc_job *job)
{
    atomic_fetch_add(((counted *)job)->runs, 1);
}

TEST(every_job_runs_once)
{
    tinkc_error err = { 0 };
    atomic_int runs = 0;
    static counted jobs[2000];
    tkc_pool *pool = tkc_pool_new(NULL, 3, "test", &err);
    for (int i = 0; i < 2000; i++) {
        jobs[i] = (counted){ { count_run, NULL }, &runs };
        assert_true(tkc_pool_submit(pool, &jobs[i].job, &err));
    }
    tkc_pool_free(pool);
    assert_int_equal(runs, 2000);
    tkc_pool_free(NULL);
    tkc_pool_free(tkc_pool_new(NULL, 1, "a name that is far too long", &err));
    assert_ok(err);
}

/* Two jobs that wait for each other need two threads at the same time. An idle thread that has been
 * woken for the first must not be counted on for the second. */
typedef struct meeting {
    tkc_job job;
    pthread_mutex_t *lock;
    pthread_cond_t *cond;
    int *present;
    bool *met;
} meeting;

static void meet(tkc_job *job)
{
    meeting *m = (meeting *)job;
    int64_t deadline = tkc_deadline_ns(20000);
    pthread_mutex_lock(m->lock);
    ++*m->present;
    pthread_cond_broadcast(m->cond);
    while (*m->present % 2 && tkc_cond_wait_until(m->cond, m->lock, deadline))
        ;
    *m->met = *m->met && *m->present % 2 == 0;
    pthread_mutex_unlock(m->lock);
}

TEST(jobs_that_need_each_other_run_at_once)
{
    tinkc_error err = { 0 };
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    bool met = true;
    assert_true(tkc_cond_init(&cond, &err));
    for (int round = 0; round < 50 && met; round++) {
        int present = 0;
        atomic_int runs = 0;
        counted first = { { count_run, NULL }, &runs };
        tkc_pool *pool = tkc_pool_new(NULL, 2, "meet", &err);
        tkc_pool_submit(pool, &first.job, &err); /* starts the first thread, which then idles */
        while (atomic_load(&runs) == 0)
            ;
        meeting a = { { meet, NULL }, &lock, &cond, &present, &met }, b = a;
        tkc_pool_submit(pool, &a.job, &err);
        tkc_pool_submit(pool, &b.job, &err);
        tkc_pool_free(pool);
    }
    pthread_cond_destroy(&cond);
    assert_ok(err);
    assert_true(met);
}

TEST(waits_end_at_their_deadline)
{
    tinkc_error err = { 0 };
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    assert_true(tkc_cond_init(&cond, &err));
    pthread_mutex_lock(&lock);
    assert_false(tkc_cond_wait_until(&cond, &lock, tkc_monotonic_ns() - 1));
    int64_t start = tkc_monotonic_ns(), deadline = tkc_deadline_ns(5);
    while (tkc_cond_wait_until(&cond, &lock, deadline))
        ;
    assert_true(tkc_monotonic_ns() - start >= 5000000);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
    assert_true(tkc_deadline_ns(TINKC_FOREVER) == INT64_MAX);
    assert_true(tkc_deadline_ns(INT64_MAX) == INT64_MAX);
}

TEST(handles_are_counted)
{
    tkc_refs refs;
    tkc_ref_init(&refs);
    tkc_ref_keep(&refs);
    assert_false(tkc_ref_drop(&refs));
    assert_true(tkc_ref_drop(&refs));
}

/* ---- libraries ---- */

typedef struct maths {
    double (*cosine)(double);
    void *missing;
} maths;

TEST(libraries_are_opened_by_name)
{
    tinkc_error err = { 0 };
    maths table = { 0 };
    const char *const names[] = { "libnot-there.so.9", "libm.so.6", NULL };
    const tkc_dl_symbol good[] = { { "cos", offsetof(maths, cosine) }, { NULL, 0 } };
    const tkc_dl_symbol bad[] = { { "no_such_function", offsetof(maths, missing) }, { NULL, 0 } };
    assert_true(tkc_dl_load(names, good, &table, &err));
    assert_true(table.cosine(0.0) == 1.0);
    assert_false(tkc_dl_load(names, bad, &table, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    err = (tinkc_error){ 0 };
    assert_false(tkc_dl_load((const char *const[]){ "libnot-there.so.9", NULL }, good, &table, &err));
    assert_non_null(strstr(err.message, "libnot-there"));
}
