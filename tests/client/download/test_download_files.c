/* test_download_files.c - where the files of a download go, and what becomes of them when the disk refuses; external weights, which
 * have an address for each file. */
#include "support/client/download_scene.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/failing_calls.h"

/* ---- names and options ---- */

TEST(a_file_has_the_name_at_the_end_of_its_address)
{
    static const struct {
        const char *url, *request, *name, *portable;
    } rows[] = {
        { "https://files.test/a/name.bin?x=1", "/a/name.bin?x=1", "name.bin", "name.bin" },
        { "https://files.test/", "/", "download", "download" },
        { "https://files.test", "/", "download", "download" },
        { "https://files.test/a/..", "/a/..", "download", "download" },
        { "https://files.test/a/.", "/a/.", "download", "download" },
        { "https://files.test/a%20b", "/a%20b", "a_20b", "a_20b" },
        { "https://files.test/c:d", "/c:d", "c:d", "c_d" },
    };
    scene *s = download_begin();
    tinkc_mock_always(scene_mock(s), NULL, "*", &(tinkc_mock_answer){ .body = "1" }, scene_err(s));
    for (size_t i = 0; i < 2 * LEN(rows); i++) {
        char wanted[200];
        const char *name = i % 2 ? rows[i / 2].portable : rows[i / 2].name;
        (void)snprintf(wanted, sizeof wanted, "%s; done; ./%s: 1 bytes, 1 file; %s=1", rows[i / 2].request, name, name);
        fetch_url(s, rows[i / 2].url, (tinkc_download_options){ .portable_names = i % 2 });
        EXPECT_ROW(s, i / 2, wanted);
        clean_folder();
    }
    download_end(s);
}

TEST(an_address_is_http_or_https)
{
    scene *s = download_begin();
    fetch_url(s, "ftp://files.test/x", (tinkc_download_options){ 0 });
    EXPECT(s, "ARGUMENT \"URL: its scheme must be http or https\"; nothing on the disk");
    fetch_url(s, "no address", (tinkc_download_options){ 0 });
    EXPECT(s, "ARGUMENT \"URL: it has a space or a control character in it\"; nothing on the disk");
    download_end(s);
}

static bool take_all(void *user, const void *data, size_t len)
{
    (void)user, (void)data, (void)len;
    return true;
}

TEST(options_that_contradict_each_other_are_refused)
{
    static const char write[] = "write takes the bytes: dir, name, flat and replace have no meaning";
    static const char fd[] = "fd takes the bytes: dir, name, flat and replace have no meaning";
    static const char name[] = "name is not the name of a file";
    static const char reserved[] = "download options: reserved must be zero";
    static const struct {
        tinkc_download_options o;
        const char *cause;
    } rows[] = {
        { { .max_bytes = -1 }, "max_bytes is negative" },
        { { .write = take_all, .dir = "x" }, write },
        { { .write = take_all, .name = "x" }, write },
        { { .write = take_all, .flat = true }, write },
        { { .write = take_all, .replace = true }, write },
        { { .fd = 5, .dir = "x" }, fd },
        { { .fd = -1 }, "fd is negative" },
        { { .fd = 5, .write = take_all }, "fd and write: give one of them" },
        { { .reserved_int = 1 }, reserved },
        { { .reserved = { 1 } }, reserved },
        { { .reserved_bools = { true } }, reserved },
        { { .name = "" }, name },
        { { .name = "." }, name },
        { { .name = ".." }, name },
        { { .name = "a/b" }, name },
        { { .name = "a\n" }, name },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[200];
        (void)snprintf(wanted, sizeof wanted, "ARGUMENT \"%s\"; nothing on the disk", rows[i].cause);
        fetch_url(s, URL, rows[i].o);
        EXPECT_ROW(s, i, wanted);
    }
    fetch_url(s, URL, (tinkc_download_options){ .fd = 999 });
    EXPECT(s, "FILE \"descriptor 999: Bad file descriptor\"; nothing on the disk");
    (void)fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ .fd = 999 });
    scene_forget(s);
    complete(s, "path", tinkc_checkpoint_download(scene_client(s), "x", NULL, scene_err(s)));
    EXPECT(s, "path: PATH \"not a tinker path (tinker://RUN/weights/NAME or "
              "tinker://RUN/sampler_weights/NAME): x\"");
    download_end(s);
}

TEST(the_digest_of_a_file_needs_a_file_and_room_for_it)
{
    static const struct {
        const char *path;
        const char *error;
    } rows[] = { { "none", "none: No such file or directory" }, { ".", ".: not a file" }, { NULL, "path is NULL" } };
    char hex[65] = "unset";
    tinkc_error e = { 0 };
    scene *s = download_begin();
    put_file("one", "1");
    assert_true(tinkc_file_sha256("one", hex, &e));
    assert_string_equal(hex, "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b");
    for (size_t i = 0; i < LEN(rows); i++) {
        e = (tinkc_error){ 0 };
        assert_false(tinkc_file_sha256(rows[i].path, hex, &e));
        assert_int_equal(e.code, rows[i].path ? TINKC_E_FILE : TINKC_E_ARGUMENT);
        assert_string_equal(e.message, rows[i].error);
    }
    e = (tinkc_error){ 0 };
    assert_false(tinkc_file_sha256("one", NULL, &e));
    assert_string_equal(e.message, "out is NULL");
    hex[0] = 'x'; /* after an earlier error nothing is done */
    assert_false(tinkc_file_sha256("one", hex, &e));
    assert_int_equal(hex[0], 'x');
    download_end(s);
}

/* ---- a disk that refuses ---- */

/* Files may have at most so many bytes; 0 = any number. */
static void limit_files(rlim_t most)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = most ? most : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static tar large_archive(size_t len)
{
    tar t = { 0 };
    char *zeros = calloc(1, len);
    assert_non_null(zeros);
    tar_raw(&t, "a", '0', NULL, "{}", 2);
    tar_raw(&t, "d/large", '0', NULL, zeros, len);
    tar_end(&t);
    free(zeros);
    return t;
}

TEST(a_full_disk_leaves_what_the_next_run_can_use)
{
    static const struct {
        rlim_t most;
        tinkc_download_options o;
        const char *wanted;
    } rows[] = {
        { 1000,
          { 0 },
          "r_weights_c.partial/d/large: File too large\"; r_weights_c.partial/[a={} "
          "d/[large:1000]] "
          "r_weights_c.partial.state{\"v\" -1 1024 a:44136f}" },
        { 1000,
          { .no_digests = true },
          "r_weights_c.partial/d/large: File too large\"; r_weights_c.partial/[a={} "
          "d/[large:1000]] "
          "r_weights_c.partial.state{\"v\" -1 1024 a:}" },
        { 1000,
          { .keep_archive = true },
          "r_weights_c.tar.partial: File too large\"; r_weights_c.tar.partial:1000 "
          "r_weights_c.tar.partial.state{\"v\" -1 0}" },
        { 1000,
          { .keep_archive = true, .no_digests = true },
          "r_weights_c.tar.partial: File too large\"; r_weights_c.tar.partial:1000 "
          "r_weights_c.tar.partial.state{\"v\" -1 0}" },
        { 10, { 0 }, "r_weights_c.partial.state: File too large\"; r_weights_c.partial/[]" },
        { 10, { .keep_archive = true }, "r_weights_c.tar.partial.state: File too large\"; r_weights_c.tar.partial:0" },
    };
    scene *s = download_begin();
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    tar t = large_archive(3000);
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[400];
        serve_once(s, 200, PAIRS("ETag", "\"v\""), t.data, t.len);
        limit_files(rows[i].most);
        fetch(s, rows[i].o);
        limit_files(0);
        (void)snprintf(wanted, sizeof wanted, "archive; /x; FILE \"./%s", rows[i].wanted);
        EXPECT_ROW(s, i, wanted);
        clean_folder();
    }
    free(t.data);
    (void)signal(SIGXFSZ, before);
    download_end(s);
}

/* Of which more comes than one buffer holds. */
TEST(a_disk_that_is_full_in_the_middle_of_a_large_file_is_named)
{
    scene *s = download_begin();
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    tar t = large_archive(3 << 20);
    for (int i = 0; i < 4; i++) {
        serve_once(s, 200, NULL, t.data, t.len);
        limit_files(1000);
        (void)fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ .keep_archive = i & 1, .no_digests = i & 2 });
        limit_files(0);
        EXPECT_ROW(s, (size_t)i,
                   i & 1 ? "./r_weights_c.tar.partial: File too large"
                         : "./r_weights_c.partial/d/large: File too large");
        clean_folder();
    }
    free(t.data);
    (void)signal(SIGXFSZ, before);
    download_end(s);
}

TEST(a_folder_in_the_place_of_the_state_is_an_error)
{
    scene *s = download_begin();
    assert_int_equal(mkdir("r_weights_c.partial.state", 0777), 0);
    fetch(s, (tinkc_download_options){ 0 });
    EXPECT(s, "FILE \"./r_weights_c.partial.state: Is a directory\"; r_weights_c.partial.state/[]");
    download_end(s);
}

/* Whatever call of the system fails: the download fails or succeeds, and the next one succeeds. */
static size_t fail_each(scene *s, const char *call, const char *path, bool resumed, tinkc_download_options o,
                        size_t *refused)
{
    size_t n = 0;
    for (int nth = 1, failed = 1; failed; nth++, n++) {
        put_file("r_weights_c.tar", "old");
        assert_int_equal(mkdir("r_weights_c", 0777), 0);
        put_file("r_weights_c/old", "old");
        if (resumed) {
            put_file("r_weights_c.tar.partial", "a");
            put_file("r_weights_c.tar.partial.state", STATE(CHECKPOINT, "e", "-1", "0", ""));
        }
        fail_call(call, nth);
        bool succeeded = fetch_quietly(s, path, o);
        failed = call_has_failed();
        assert_true(succeeded || failed); /* nothing else makes it fail */
        *refused += !succeeded;
        if (!succeeded)
            assert_true(fetch_quietly(s, path, o));
        assert_true(access("r_weights_c", F_OK) == 0 || access("r_weights_c.tar", F_OK) == 0 || o.flat);
        clean_folder();
        assert_true(n < 100);
    }
    return n;
}

TEST(after_any_call_that_fails_the_next_download_succeeds)
{
    static const struct {
        const char *path;
        bool resumed; /* of a file of which a part is there */
        tinkc_download_options o;
    } rows[] = {
        { CHECKPOINT, false, { .replace = true } },
        { CHECKPOINT, false, { .replace = true, .flat = true, .dir = "x/y" } },
        { CHECKPOINT, true, { .replace = true, .keep_archive = true } },
        { CHECKPOINT, true, { .replace = true, .keep_archive = true, .no_digests = true } },
        { EXTERNAL, false, { .replace = true } },
    };
    static const char *const calls[] = { "fsync", "lseek",  "pread",  "short pread",
                                         "mkdir", "rename", "unlink", "unlinkat" };
    scene *s = download_begin();
    tar t = large_archive(3000);
    tinkc_mock_answer all = { .headers = PAIRS("ETag", "e"), .body = t.data, .body_len = t.len };
    assert_true(tinkc_mock_always(scene_mock(s), NULL, "/x", &all, scene_err(s)));
    answer_always(s, LINKS, 200, "{\"urls\":{\"d/e/b\":\"" URL "\"},\"expires\":\"2026-01-01T01:00:00Z\"}");
    size_t tried = 0, refused = 0;
    for (size_t i = 0; i < LEN(rows); i++)
        for (size_t k = 0; k < LEN(calls); k++)
            tried += fail_each(s, calls[k], rows[i].path, rows[i].resumed, rows[i].o, &refused);
    assert_in_range(refused, 40, tried); /* there are such calls on every way */
    free(t.data);
    download_end(s);
}

/* ---- external weights ---- */

#define URLS(list) "{\"urls\":{" list "},\"expires\":\"2026-01-01T01:00:00Z\"}"
#define TWO        URLS("\"a\":\"" URL "\",\"d/e/b\":\"https://files.test/y\"")
#define FETCHED    "done; ./r_external_weights_c: 8 bytes, 2 files; r_external_weights_c/[a=12345 d/[e/[b=678]]]"

TEST(external_weights_are_fetched_file_by_file)
{
    static const struct {
        const char *links;
        const char *wanted;
    } rows[] = {
        { TWO, "/x; /y; " FETCHED },
        { URLS(""), "BAD_RESPONSE \"external weights: the service names no files\"" },
        { URLS("\"../a\":\"" URL "\""), "UNSAFE_ARCHIVE \"external weights: unsafe name '../a'\"" },
        { URLS("\"/etc/x\":\"" URL "\""), "UNSAFE_ARCHIVE \"external weights: unsafe name '/etc/x'\"" },
        { URLS("\"a/../../b\":\"" URL "\""), "UNSAFE_ARCHIVE \"external weights: unsafe name 'a/../../b'\"" },
        { URLS("\"\":\"" URL "\""), "UNSAFE_ARCHIVE \"external weights: unsafe name ''\"" },
        { URLS("\"a\":\"no address\""), "BAD_RESPONSE 200 \"the address of \"a\" is not absolute\"" },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[300];
        answer(s, LINKS, 200, rows[i].links);
        serve_once(s, 200, NULL, "12345", 5);
        answer(s, "/y", 200, "678");
        fetch_external(s, (tinkc_download_options){ 0 });
        (void)snprintf(wanted, sizeof wanted, "links; %s%s", rows[i].wanted, i ? "; nothing on the disk" : "");
        EXPECT_ROW(s, i, wanted);
        clean_folder();
        use_up(s, URL);
        use_up(s, "https://files.test/y");
    }
    download_end(s);
}

TEST(max_bytes_counts_all_files_of_external_weights)
{
    static const char *const wanted[] = { "links; /x; BAD_RESPONSE \"larger than max_bytes\"; nothing on the disk",
                                          "links; /x; BAD_RESPONSE \"larger than max_bytes\"; nothing on the disk",
                                          "links; /x; /y; BAD_RESPONSE \"larger than max_bytes\"; nothing on the disk",
                                          "links; /x; /y; BAD_RESPONSE \"larger than max_bytes\"; nothing on the disk",
                                          "links; /x; /y; " FETCHED };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(wanted); i++) {
        answer(s, LINKS, 200, TWO);
        serve_once(s, 200, NULL, "12345", 5);
        answer_always(s, "/y", 200, "678");
        fetch_external(s, (tinkc_download_options){ .max_bytes = 4 + (int64_t)i });
        EXPECT_ROW(s, i, wanted[i]);
        use_up(s, URL);
        clean_folder();
    }
    download_end(s);
}

/* Twice, then its error is the download's. */
TEST(an_address_that_has_expired_is_asked_for_again)
{
    static const struct {
        int32_t status;
        const char *error;
        bool again;
    } rows[] = { { 400, "BAD_REQUEST", true }, { 401, "AUTH", true }, { 403, "FORBIDDEN", true },
                 { 404, "NOT_FOUND", true },   { 410, "GONE", true }, { 402, "BILLING", false } };
    scene *s = download_begin();
    answer_always(s, LINKS, 200, TWO);
    answer_always(s, "/x", 200, "12345");
    answer_always(s, "/y", 200, "678");
    for (size_t i = 0; i < 2 * LEN(rows); i++) {
        int32_t status = rows[i / 2].status;
        bool fails = i % 2 || !rows[i / 2].again;
        char wanted[300];
        for (size_t k = 0; k < (i % 2 ? 3 : 1); k++)
            serve_once(s, status, NULL, "expired", 7);
        fetch_external(s, (tinkc_download_options){ 0 });
        if (fails)
            (void)snprintf(wanted, sizeof wanted, "links; /x; %s%s %d \"HTTP %d: expired\"; nothing on the disk",
                           rows[i / 2].again ? "+100 links; /x; +200 links; /x; " : "", rows[i / 2].error, status,
                           status);
        EXPECT_ROW(s, i, fails ? wanted : "links; /x; +100 links; /x; /y; " FETCHED);
        use_up(s, URL);
        answer_always(s, "/x", 200, "12345");
        clean_folder();
    }
    download_end(s);
}

TEST(files_that_are_there_are_not_fetched_again_for_a_new_address)
{
    scene *s = download_begin();
    answer_always(s, LINKS, 200, TWO);
    serve_once(s, 200, NULL, "12345", 5);
    answer(s, "/y", 403, "expired");
    answer_always(s, "/y", 200, "678");
    fetch_external(s, (tinkc_download_options){ 0 });
    EXPECT(s, "links; /x; /y; +100 links; /y; " FETCHED);
    download_end(s);
}

TEST(a_file_that_is_no_longer_among_the_external_weights_is_an_error)
{
    scene *s = download_begin();
    answer(s, LINKS, 200, TWO);
    answer(s, LINKS, 200, URLS("\"d/e/b\":\"https://files.test/y\""));
    serve_once(s, 403, NULL, "expired", 7);
    fetch_external(s, (tinkc_download_options){ 0 });
    EXPECT(s, "links; /x; +100 links; NOT_FOUND \"a: no longer a file of " EXTERNAL "\"; nothing on the disk");
    download_end(s);
}

TEST(external_weights_have_no_archive)
{
    static const tinkc_download_options rows[] = { { .keep_archive = true }, { .write = take_all }, { .fd = 1 } };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        fetch_external(s, rows[i]);
        EXPECT_ROW(s, i,
                   "ARGUMENT \"external weights are separate files: there is no archive to keep or hand "
                   "on\"; nothing on the disk");
    }
    download_end(s);
}

/* ---- stages ---- */

/* From its first moment, whatever it is still asking for. */
TEST(the_stage_of_a_download_is_fetching)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    tinkc_mock_always(mock, NULL, CONFIG, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_future *f =
        tinkc_checkpoint_download(client, CHECKPOINT, &(tinkc_download_options){ .write = take_all }, &err);
    assert_ok(&err);
    wait_until(tinkc_mock_count(mock, NULL) > 0);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_FETCHING);
    tinkc_future_cancel(f);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    tinkc_future_free(f);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}
