/* test_download_scripts.c - downloads from the mock, word for word: requests, files on the disk, state files,
 * names, limits and refusals. Records as in test_client_scripts.c. A download's thread waits on the
 * mock's clock, so its pauses cost nothing. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec/zstd.h"
#include "support/client_script.h"
#include "support/failing_calls.h"
#include "support/packed_tars.h"
#include "support/tar_write.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define PATH       "tinker://r/weights/c"
#define ARCHIVE    "/api/v1/training_runs/r/checkpoints/weights/c/archive"
#define ADDRESS                                                                                    \
    "{\"url\":\"https://files.test/store/x?sig=1\",\"expires\":\"2026-01-01T01:00:00Z\"}"
#define STORE      "/store/x"
#define LINKS      "/api/v1/training_runs/r/checkpoints/external_weights/c/external_weights_urls"
#define URLS(list) "{\"urls\":{" list "},\"expires\":\"2026-01-01T01:00:00Z\"}"

/* ---- a folder of its own for each script ---- */

static int home = -1;
static char folder[64];

static script *begin(const char *name)
{
    script *s = script_begin(name, TINKC_MOCK_EMPTY, NULL);
    /* Whether a body that is no longer wanted still ends as an exchange is a matter of moments. */
    tinkc_client_on_event(script_client(s), NULL, 0, NULL, NULL, script_err(s));
    (void)snprintf(folder, sizeof folder, "/tmp/tinkc-dl-XXXXXX");
    assert_non_null(mkdtemp(folder));
    home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(chdir(folder), 0);
    answer_always(s, "/api/v1/client/config", 200, NULL, "{}");
    answer_always(s, ARCHIVE, 200, NULL, ADDRESS);
    return s;
}

static void clean(void)
{
    assert_int_equal(system("find . -mindepth 1 -delete"), 0);
}

static void end(script *s)
{
    clean();
    assert_int_equal(fchdir(home), 0);
    close(home);
    assert_int_equal(rmdir(folder), 0);
    script_end(s);
}

/* Without the number of this process, which the names of files that were replaced end with. */
static const char *masked(const char *text)
{
    static char out[700];
    const char *old = strstr(text, ".old-");
    if (!old)
        return text;
    old += strlen(".old-");
    (void)snprintf(out, sizeof out, "%.*sPID%s", (int)(old - text), text,
                   old + strspn(old, "0123456789"));
    return out;
}

static void show_file(script *s, const char *path, int64_t size)
{
    char text[700] = "";
    uint64_t h = 0xcbf29ce484222325u;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    bool shown = n == (size_t)size && strlen(text) == n && !strchr(text, '\n');
    rewind(f);
    for (int c; (c = fgetc(f)) != EOF;)
        h = (h ^ (unsigned char)c) * 0x100000001b3u;
    fclose(f);
    note(s, "  %s: %" PRId64 " bytes %016" PRIx64 " %s", masked(path + 2), size, h,
         shown ? text : "");
}

static void show_folder(script *s, const char *path)
{
    struct dirent **all;
    int n = scandir(path, &all, NULL, alphasort);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        char name[600];
        struct stat st;
        (void)snprintf(name, sizeof name, "%s/%.250s", path, all[i]->d_name);
        if (strcmp(all[i]->d_name, ".") != 0 && strcmp(all[i]->d_name, "..") != 0 &&
            lstat(name, &st) == 0) {
            if (S_ISDIR(st.st_mode)) {
                note(s, "  %s/", masked(name + 2));
                show_folder(s, name);
            } else {
                show_file(s, name, st.st_size);
            }
        }
        free(all[i]);
    }
    free(all);
}

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    (void)fputs(text, f);
    fclose(f);
}

/* To its end, from pause to pause. */
static void await(script *s, const tinkc_future *f)
{
    tinkc_error err = { 0 };
    while (f && !tinkc_future_done(f)) {
        int64_t next = TINKC_FOREVER;
        wait_until(tinkc_future_done(f) ||
                   (next = tinkc_mock_settle(script_mock(s), PATIENCE_MS, &err)) != TINKC_FOREVER);
        assert_ok(&err);
        if (!tinkc_future_done(f))
            tinkc_mock_advance(script_mock(s), next);
    }
}

/* To its end; then everything that can be seen of it. */
static void run(script *s, const char *name, tinkc_future *f)
{
    await(s, f);
    f = follow(s, name, f);
    const tinkc_download *d =
        f && tinkc_future_wait(f, 0, NULL) ? tinkc_future_download(f, 0, NULL) : NULL;
    if (d)
        note(s, "%s, %" PRId64 " bytes", tinkc_download_target(d), tinkc_download_bytes(d));
    for (size_t i = 0; i <= tinkc_download_count(d); i++)
        if (tinkc_download_at(d, i))
            note(s, "  %s %.12s %" PRId64, tinkc_download_at(d, i)->name,
                 tinkc_download_at(d, i)->sha256, tinkc_download_at(d, i)->size_bytes);
    note(s, "on the disk:");
    show_folder(s, ".");
    if (f)
        let_go(s, f);
}

static void store_once(script *s, int32_t status, const char *const *headers, const void *body,
                       size_t len)
{
    tinkc_mock_answer a = { .status = status, .headers = headers, .body = body, .body_len = len };
    assert_true(tinkc_mock_once(script_mock(s), NULL, STORE, &a, script_err(s)));
}

static void get(script *s, const char *name, tinkc_download_options o)
{
    run(s, name, tinkc_checkpoint_download(script_client(s), PATH, &o, script_err(s)));
}

/* A download of which nothing is written down but its outcome. True if it went well. */
static bool try_it(script *s, const char *name, const char *path, const tinkc_download_options *o)
{
    tinkc_error err = { 0 };
    hush(s, true);
    tinkc_future *f = tinkc_checkpoint_download(script_client(s), path, o, &err);
    assert_ok(&err);
    await(s, f);
    hush(s, false);
    bool good = tinkc_future_wait(f, 0, &err);
    note(s, "%s: %s", name, good ? "well" : masked(err.message));
    tinkc_future_free(f);
    return good;
}

/* ---- archives ---- */

static char big[3000];

static void usual_archive(tar *t)
{
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 7 + i / 251);
    tar_raw(t, "./", '5', NULL, NULL, 0);
    tar_raw(t, "a.json", '0', NULL, "{}", 2);
    tar_raw(t, "./deep//er/model.bin", '0', NULL, big, sizeof big);
    tar_raw(t, "deep/empty/", '5', NULL, NULL, 0);
    tar_raw(t, "end", '0', NULL, NULL, 0);
    tar_end(t);
}

static bool count_all(void *user, const void *data, size_t len)
{
    (void)data;
    return (*(int64_t *)user += (int64_t)len) >= 0;
}

static void unpacked(void **state)
{
    (void)state;
    script *s = begin("unpacked");
    tar t = { 0 };
    usual_archive(&t);
    const tinkc_download_options rows[] = {
        { 0 },
        { .name = "mine" },
        { .dir = "x/y", .portable_names = true },
        { .flat = true },
        { .keep_archive = true },
        { .keep_archive = true, .name = "n", .no_digests = true },
        { .no_digests = true },
        { .max_bytes = (int64_t)t.len },
        { .max_bytes = (int64_t)t.len - 1 },
        { .max_bytes = 3002 },
        { .max_bytes = 3001 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        store_once(s, 200, PAIRS("ETag", "\"v\""), t.data, t.len);
        get(s, "download", rows[i]);
        clean();
    }
    note(s, "twice, in the place of another, and beside it");
    for (int flat = 0; flat < 2; flat++)
        for (int replace = 0; replace < 2; replace++) {
            assert_int_equal(mkdir("r_weights_c", 0777), 0);
            put_file("r_weights_c/old", "old");
            put_file("a.json", "old too");
            store_once(s, 200, NULL, t.data, t.len);
            get(s, "download", (tinkc_download_options){ .flat = flat, .replace = replace });
            clean();
        }
    note(s, "the last of several is in the way: none is moved");
    put_file("end", "old");
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "download", (tinkc_download_options){ .flat = true });
    clean();
    put_file("dir", "in the way");
    get(s, "no folder", (tinkc_download_options){ .dir = "dir/x" });
    note(s, "into a function");
    int64_t n = 0;
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "write", (tinkc_download_options){ .write = count_all, .write_user = &n });
    note(s, "%" PRId64, n);
    n = INT64_MIN;
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "no more", (tinkc_download_options){ .write = count_all, .write_user = &n });
    note(s, "what stands behind the end counts");
    t.data = realloc(t.data, t.len + 5000);
    memset(t.data + t.len, 'x', 5000);
    clean();
    store_once(s, 200, NULL, t.data, t.len + 5000);
    get(s, "longer", (tinkc_download_options){ 0 });
    free(t.data);
    end(s);
}

static void entries(void **state)
{
    (void)state;
    static const struct {
        const char *name, *link;
        char type;
    } rows[] = {
        { "../x", NULL, '0' },
        { "a/../b", NULL, '0' },
        { "..", NULL, '5' },
        { "/abs", NULL, '0' },
        { "/", NULL, '5' },
        { "/", NULL, '0' },
        { "a\\b", NULL, '0' },
        { "a\x1f", NULL, '0' },
        { "a\x7f", NULL, '0' },
        { ".", NULL, '0' },
        { "./.", NULL, '5' },
        { "...", NULL, '0' },
        { "a//./b/", NULL, '5' },
        { "l", "a", '1' },
        { "l", "a", '2' },
        { "d", NULL, '3' },
        { "d", NULL, '4' },
        { "d", NULL, '6' },
        { "one/two/three", NULL, '0' },
        { "e", NULL, '5' },
    };
    script *s = begin("entries");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu: %c", i, rows[i].type);
        tar t = { 0 };
        tar_raw(&t, "first", '0', NULL, "1", 1);
        tar_raw(&t, rows[i].name, rows[i].type, rows[i].link, NULL, 0);
        tar_raw(&t, "last", '0', NULL, "2", 1);
        tar_end(&t);
        store_once(s, 200, NULL, t.data, t.len);
        get(s, "download", (tinkc_download_options){ 0 });
        clean();
        free(t.data);
    }
    note(s, "a name that is not in ASCII");
    tar t = { 0 };
    tar_raw(&t, "PaxHeader", 'x', NULL, "15 path=\xc3\xa4.bin\n", 15);
    tar_raw(&t, "x", '0', NULL, "1", 1);
    tar_end(&t);
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "download", (tinkc_download_options){ 0 });
    clean();
    free(t.data);
    t = (tar){ 0 };
    note(s, "a file where a folder is needed, and the same name twice");
    tar_raw(&t, "a", '0', NULL, "1", 1);
    tar_raw(&t, "a", '0', NULL, "two", 3);
    tar_raw(&t, "a/b", '0', NULL, "2", 1);
    tar_end(&t);
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "download", (tinkc_download_options){ 0 });
    clean();
    note(s, "cut off, damaged, no archive");
    for (size_t cut = 0; cut < 4; cut++) {
        static const size_t lens[] = { 100, 700, 512 * 3, 0 };
        char *copy = calloc(1, t.len);
        assert_non_null(copy);
        memcpy(copy, t.data, t.len);
        if (cut == 3)
            memset(copy + 1024, 'x', 400);
        store_once(s, 200, NULL, copy, lens[cut] ? lens[cut] : t.len);
        get(s, "download", (tinkc_download_options){ 0 });
        free(copy);
        clean();
    }
    free(t.data);
    end(s);
}

/* Holes are filled with zeros, between the pieces and behind the last one. */
static void sparse_files(void **state)
{
    (void)state;
    static const unsigned pieces[][2] = { { 5000, 3 }, { 9000, 2 }, { 10000, 0 } };
    static const unsigned back[][2] = { { 5000, 3 }, { 100, 2 }, { 10000, 0 } };
    static const unsigned whole[][2] = { { 0, 5 }, { 4096 + 5, 0 } };
    static const tinkc_download_options rows[] = {
        { 0 },
        { .no_digests = true },
        { .max_bytes = 10000 + 4101 + 1 },
        { .max_bytes = 10000 + 4101 },
    };
    script *s = begin("sparse_files");
    tar t = { 0 };
    tar_sparse(&t, "holes", pieces, 3, 10000, "abcde", 5);
    tar_sparse(&t, "one", whole, 2, 4096 + 5, "vwxyz", 5);
    tar_raw(&t, "last", '0', NULL, "1", 1);
    tar_end(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        store_once(s, 200, NULL, t.data, t.len);
        get(s, "download", rows[i]);
        clean();
    }
    free(t.data);
    t = (tar){ 0 };
    note(s, "pieces in the wrong order");
    tar_sparse(&t, "holes", back, 3, 10000, "abcde", 5);
    tar_end(&t);
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "download", (tinkc_download_options){ 0 });
    free(t.data);
    note(s, "holes of more than 256 MiB, in one file and in two: refused before they are written");
    enum { MOST = 256 << 20 };
    for (unsigned first = 0; first <= 5000; first += 5000) {
        const unsigned before[][2] = { { first, 3 } }, far[][2] = { { MOST - first + 1, 2 } };
        t = (tar){ 0 };
        tar_sparse(&t, "a", before, 1, first + 3, "abc", 3);
        tar_sparse(&t, "b", far, 1, MOST - first + 3, "de", 2);
        tar_end(&t);
        clean();
        store_once(s, 200, NULL, t.data, t.len);
        get(s, "download", (tinkc_download_options){ 0 });
        store_once(s, 200, NULL, t.data, t.len); /* with a limit that the first file has used up */
        (void)try_it(s, "limited", PATH, &(tinkc_download_options){ .max_bytes = first + 3 });
        free(t.data);
    }
    end(s);
}

/* ---- heads ---- */

static void heads(void **state)
{
    (void)state;
    static const struct {
        int32_t status;
        const char *headers[5];
        const char *body;
        int32_t fault;
    } rows[][3] = {
        { { 200, { "Content-Length", "10" }, "0123456789", 0 } },
        { { 200, { "Content-Length", "11" }, "0123456789", 0 },
          { 206, { "Content-Range", "bytes 10-10/11" }, "A", 0 } },
        { { 200, { "Content-Length", "9" }, "0123456789", 0 } },
        { { 200, { "Content-Length", "x" }, "0123456789", 0 } },
        { { 200, { "Content-Length", "-1" }, "0123456789", 0 } },
        { { 206, { "Content-Range", "bytes 0-9/10" }, "0123456789", 0 } },
        { { 206, { "Content-Range", "bytes 1-9/10" }, "123456789", 0 } },
        { { 206, { "Content-Range", "bytes 0-9/*" }, "0123456789", 0 } },
        { { 206, { "Content-Range", "items 0-9/10" }, "0123456789", 0 } },
        { { 206, { "Content-Range", "bytes 0-9" }, "0123456789", 0 } },
        { { 206, { "Content-Range", "bytes x-9/10" }, "0123456789", 0 } },
        { { 206, { "Content-Range", "bytes 0/10-9" }, "0123456789", 0 } },
        { { 206, { NULL }, "0123456789", 0 } },
        /* broken off, and taken up in several ways */
        { { 200, { "ETag", "\"a\"" }, "0123456789", 4 },
          { 206, { "Content-Range", "bytes 4-9/10", "ETag", "\"a\"" }, "456789", 0 } },
        { { 200, { "ETag", "\"a\"" }, "0123456789", 4 },
          { 206, { "Content-Range", "bytes 4-9/10", "ETag", "\"b\"" }, "456789", 0 } },
        { { 200, { "ETag", "W/\"a\"" }, "0123456789", 4 },
          { 206, { "Content-Range", "bytes 4-9/10" }, "456789", 0 } },
        { { 200, { NULL }, "0123456789", 4 },
          { 206, { "Content-Range", "bytes 4-10/11" }, "456789A", 0 } },
        { { 200, { NULL }, "0123456789", 4 },
          { 206, { "Content-Range", "bytes 5-9/10" }, "56789", 0 } },
        { { 200, { NULL }, "0123456789", 4 }, { 200, { NULL }, "0123456789", 0 } },
        { { 200, { NULL }, "0123456789", 4 },
          { 200, { NULL }, "0123456789", 2 },
          { 206, { "Content-Range", "bytes 4-9/10" }, "456789", 0 } },
        { { 200, { NULL }, "0123456789", 4 }, { 416, { NULL }, "no", 0 } },
        { { 404, { NULL }, "gone", 0 } },
        { { 429, { "Retry-After", "2" }, "busy", 0 },
          { 503, { "Retry-After", "60" }, "busy", 0 },
          { 200, { NULL }, "0123456789", 0 } },
        { { 200, { "Content-Length", "0" }, "0123456789", 0 } },
        { { 200, { "Content-Length", "0" }, "", 0 } },
        { { 200, { "ETag", "\"a\"" }, "0123456789", 1 },
          { 206, { "Content-Range", "bytes 1-9/10", "ETag", "\"a\"" }, "123456789", 0 } },
        { { 200, { NULL }, "0123456789", 4 },
          { 206, { "Content-Range", "bytes 4-9/10" }, "456", 1 },
          { 206, { "Content-Range", "bytes 5-9/0" }, "56789", 0 } },
    };
    script *s = begin("heads");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        for (size_t k = 0; k < 3 && rows[i][k].status; k++) {
            tinkc_mock_answer a = { .status = rows[i][k].status,
                                    .headers = rows[i][k].headers,
                                    .body = rows[i][k].body,
                                    .fault = rows[i][k].fault ? TINKC_FAULT_RESET : 0,
                                    .fault_after = rows[i][k].fault };
            assert_true(tinkc_mock_once(script_mock(s), NULL, STORE, &a, script_err(s)));
        }
        run(s, "file",
            tinkc_url_download(script_client(s), "https://files.test/store/x?sig=1", NULL,
                               script_err(s)));
        clean();
    }
    note(s, "limits");
    for (int64_t max = 9; max < 11; max++)
        for (int length = 0; length < 2; length++) {
            store_once(s, 200, length ? PAIRS("Content-Length", "10") : NULL, "0123456789", 10);
            run(s, "file",
                tinkc_url_download(script_client(s), "https://files.test/store/x",
                                   &(tinkc_download_options){ .max_bytes = max }, script_err(s)));
            clean();
        }
    end(s);
}

/* ---- what an earlier run has left ---- */

#define STATE(what, etag, total, offset, files)                                                    \
    "{\"what\":\"" what "\",\"etag\":\"" etag "\",\"total\":" total ",\"offset\":" offset          \
    ",\"files\":[" files "]}"
#define FILE_STATE "https://files.test/store/x"

static tinkc_future *what_is_left(script *s)
{
    return tinkc_http_call(
        script_client(s),
        &(tinkc_http_options){ .path = "https://files.test/store/x", .any_status = true },
        script_err(s));
}

static void resumed_files(void **state)
{
    (void)state;
    static const struct {
        const char *partial, *saved;
        bool no_resume;
    } rows[] = {
        { "0123", STATE(FILE_STATE, "e", "10", "0", ""), false },
        { "0123", STATE(FILE_STATE, "e", "10", "0", ""), true },
        { "0123", STATE(FILE_STATE, "", "10", "9", ""), false },
        { "0123", STATE(FILE_STATE, "e", "-1", "0", ""), false },
        { "0123", STATE(FILE_STATE, "", "-1", "0", ""), false },
        { "0123", STATE("https://files.test/store/y", "e", "10", "0", ""), false },
        { "0123456789", STATE(FILE_STATE, "e", "10", "0", ""), false },
        { "0123456789A", STATE(FILE_STATE, "e", "10", "0", ""), false },
        { "", STATE(FILE_STATE, "e", "10", "0", ""), false },
        { "0123", "{\"what\":5}", false },
        { "0123", "no JSON", false },
        { "0123", "{}", false },
        { "0123", NULL, false },
        { "0123", STATE(FILE_STATE, "other", "10", "0", ""), false },
        { "0123", STATE(FILE_STATE, "e", "12", "0", ""), false },
        { "0123", "{\"what\":\"" FILE_STATE "\",\"more\":[1],\"etag\":\"e\",\"total\":10}", false },
        { "0123", "{\"what\":\"" FILE_STATE "\",\"etag\":\"e\"}", false },
        { "0", STATE(FILE_STATE, "e", "1", "0", ""), false },
        { "", STATE(FILE_STATE, "", "0", "0", ""), false },
    };
    script *s = begin("resumed_files");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        put_file("x.partial", rows[i].partial);
        if (rows[i].saved)
            put_file("x.partial.state", rows[i].saved);
        for (int k = 0; k < 2; k++) { /* the part, or all of it */
            size_t from = strlen(rows[i].partial) < 10 ? strlen(rows[i].partial) : 0;
            tinkc_mock_answer part = { .status = 206,
                                       .headers = PAIRS("ETag", "e", "Content-Range",
                                                        from ? "bytes 4-9/10" : "bytes 0-9/10"),
                                       .body = "456789" };
            tinkc_mock_answer all = { .headers = PAIRS("ETag", "e"), .body = "0123456789" };
            bool resumes = (i == 0 || i == 2 || i == 3 || (i >= 13 && i <= 16)) && k == 0;
            assert_true(tinkc_mock_once(script_mock(s), NULL, STORE, resumes ? &part : &all,
                                        script_err(s)));
        }
        run(s, "file",
            tinkc_url_download(script_client(s), "https://files.test/store/x?sig=2",
                               &(tinkc_download_options){ .no_resume = rows[i].no_resume },
                               script_err(s)));
        clean();
        run(s, "what is left", what_is_left(s));
    }
    for (int i = 0; i < 3; i++) /* of the row that needed no answer */
        run(s, "what is left", what_is_left(s));
    note(s, "long marks");
    for (int len = 255; len <= 256; len++) {
        char etag[300], saved[600];
        (void)snprintf(etag, sizeof etag, "%0*d", len, 0);
        (void)snprintf(saved, sizeof saved, STATE(FILE_STATE, "%s", "10", "0", ""), etag);
        put_file("x.partial", "0123");
        put_file("x.partial.state", saved);
        if (len == 255)
            store_once(s, 206, PAIRS("ETag", etag, "Content-Range", "bytes 4-9/10"), "456789", 6);
        else
            store_once(s, 200, PAIRS("ETag", etag), "0123456789", 10);
        run(s, "file",
            tinkc_url_download(script_client(s), "https://files.test/store/x", NULL,
                               script_err(s)));
        clean();
        tinkc_mock_answer cut = { .headers = PAIRS("ETag", etag),
                                  .body = "0123456789",
                                  .fault = TINKC_FAULT_RESET,
                                  .fault_after = 4 };
        assert_true(tinkc_mock_once(script_mock(s), NULL, STORE, &cut, script_err(s)));
        store_once(s, 206, PAIRS("Content-Range", "bytes 4-9/10"), "456789", 6);
        run(s, "file",
            tinkc_url_download(script_client(s), "https://files.test/store/x", NULL,
                               script_err(s)));
        clean();
    }
    note(s, "a folder in the file's place, and a link");
    assert_int_equal(mkdir("x.partial", 0777), 0);
    put_file("x.partial/inside", "1");
    put_file("x.partial.state", STATE(FILE_STATE, "e", "10", "0", ""));
    store_once(s, 200, NULL, "0123456789", 10);
    run(s, "file",
        tinkc_url_download(script_client(s), "https://files.test/store/x", NULL, script_err(s)));
    clean();
    put_file("elsewhere", "mine");
    assert_int_equal(symlink("elsewhere", "x.partial"), 0);
    store_once(s, 200, NULL, "0123456789", 10);
    run(s, "file",
        tinkc_url_download(script_client(s), "https://files.test/store/x", NULL, script_err(s)));
    end(s);
}

#define ONE(name, sha, size) "{\"name\":\"" name "\",\"sha256\":\"" sha "\",\"size\":" size "}"
#define SHA_OF_1             "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"

static void resumed_archives(void **state)
{
    (void)state;
    static const struct {
        const char *files, *offset, *on_disk;
        bool no_digests;
    } rows[] = {
        { ONE("first", SHA_OF_1, "1"), "1024", "1", false },
        { ONE("first", "", "1"), "1024", "1", false },
        { ONE("first", "", "1"), "1024", "1", true },
        { ONE("first", SHA_OF_1, "1"), "1024", "12", false },
        { ONE("first", SHA_OF_1, "1"), "1024", NULL, false },
        { ONE("../first", SHA_OF_1, "1"), "1024", "1", false },
        { ONE("first", "abc", "1"), "1024", "1", false },
        { ONE("first", SHA_OF_1, "-1"), "1024", "1", false },
        { "{}", "1024", "1", false },
        { "5", "1024", "1", false },
        { "", "1024", "1", false },
        { ONE("first", SHA_OF_1, "1"), "-1", "1", false },
        { ONE("first", SHA_OF_1, "1"), "3073", "1", false },
        { ONE("first", SHA_OF_1, "1") "," ONE("last", "", "1"), "2048", "1", false },
        { "{\"name\":\"first\",\"more\":[1],\"sha256\":\"" SHA_OF_1 "\",\"size\":1}", "1024", "1",
          false },
    };
    script *s = begin("resumed_archives");
    tar t = { 0 };
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, "last", '0', NULL, "2", 1);
    tar_end(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char saved[900], range[60];
        note(s, "row %zu", i);
        (void)snprintf(saved, sizeof saved, STATE(PATH, "e", "3072", "%s", "%s"), rows[i].offset,
                       rows[i].files);
        assert_int_equal(mkdir("r_weights_c.partial", 0777), 0);
        put_file("r_weights_c.partial.state", saved);
        if (rows[i].on_disk)
            put_file("r_weights_c.partial/first", rows[i].on_disk);
        long at = strtol(rows[i].offset, NULL, 10);
        (void)snprintf(range, sizeof range, "bytes %ld-3071/3072", at);
        if (i < 3 || i == 10 || i == 14)
            store_once(s, 206, PAIRS("ETag", "e", "Content-Range", range), t.data + at,
                       t.len - (size_t)at);
        else
            store_once(s, 200, PAIRS("ETag", "e"), t.data, t.len);
        get(s, "download", (tinkc_download_options){ .no_digests = rows[i].no_digests });
        clean();
    }
    note(s, "taken up behind a file and an empty one");
    assert_int_equal(mkdir("r_weights_c.partial", 0777), 0);
    put_file("r_weights_c.partial/first", "1");
    put_file("r_weights_c.partial/none", "");
    put_file(
        "r_weights_c.partial.state",
        STATE(PATH, "e", "3072", "1024", ONE("first", SHA_OF_1, "1") "," ONE("none", "", "0")));
    store_once(s, 206, PAIRS("ETag", "e", "Content-Range", "bytes 1024-3071/3072"), t.data + 1024,
               t.len - 1024);
    get(s, "download", (tinkc_download_options){ 0 });
    clean();
    note(s, "taken up, and broken off before anything more has come");
    assert_int_equal(mkdir("r_weights_c.partial", 0777), 0);
    put_file("r_weights_c.partial/first", "1");
    put_file("r_weights_c.partial.state",
             STATE(PATH, "e", "3072", "1024", ONE("first", SHA_OF_1, "1")));
    for (int k = 0; k < 3; k++)
        store_once(s, 404, NULL, "gone", 4);
    get(s, "no more", (tinkc_download_options){ 0 });
    clean();
    note(s, "broken off between two files, then taken up by another run");
    for (int again = 0; again < 2; again++) {
        tinkc_mock_answer cut = { .headers = PAIRS("ETag", "e"),
                                  .body = t.data,
                                  .body_len = t.len,
                                  .fault = TINKC_FAULT_RESET,
                                  .fault_after = 1600 };
        assert_true(tinkc_mock_once(script_mock(s), NULL, STORE, &cut, script_err(s)));
        store_once(s, 404, NULL, "gone", 4);
        store_once(s, 404, NULL, "gone", 4);
        store_once(s, 404, NULL, "gone", 4);
        get(s, "first run", (tinkc_download_options){ 0 });
        store_once(s, 206,
                   PAIRS("ETag", again ? "f" : "e", "Content-Range", "bytes 1024-3071/3072"),
                   t.data + 1024, t.len - 1024);
        if (again)
            store_once(s, 200, PAIRS("ETag", "f"), t.data, t.len);
        get(s, "second run", (tinkc_download_options){ 0 });
        clean();
    }
    free(t.data);
    end(s);
}

/* ---- a disk that takes no more ---- */

/* Files may have at most so many bytes; 0 = any number. */
static void limit_files(rlim_t most)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = most ? most : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void full_disk(void **state)
{
    (void)state;
    static const struct {
        rlim_t most;
        tinkc_download_options o;
    } rows[] = {
        { 1000, { 0 } },
        { 1000, { .no_digests = true } },
        { 1000, { .keep_archive = true } },
        { 1000, { .keep_archive = true, .no_digests = true } },
        { 10, { 0 } },
        { 10, { .keep_archive = true } },
    };
    script *s = begin("full_disk");
    tar t = { 0 };
    usual_archive(&t);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        store_once(s, 200, PAIRS("ETag", "\"v\""), t.data, t.len);
        limit_files(rows[i].most);
        get(s, "download", rows[i].o);
        limit_files(0);
        clean();
    }
    note(s, "in the middle of a large file");
    enum { LARGE = 3 << 20 };
    tar large = { 0 };
    char *zeros = calloc(1, LARGE);
    assert_non_null(zeros);
    tar_raw(&large, "large", '0', NULL, zeros, LARGE);
    tar_end(&large);
    for (int i = 0; i < 4; i++) {
        store_once(s, 200, NULL, large.data, large.len);
        limit_files(1000);
        (void)try_it(s, i & 1 ? "kept" : "unpacked", PATH,
                     &(tinkc_download_options){ .keep_archive = i & 1, .no_digests = i & 2 });
        limit_files(0);
        clean();
    }
    free(zeros);
    free(large.data);
    (void)signal(SIGXFSZ, before);
    note(s, "a folder in the place of the state");
    assert_int_equal(mkdir("r_weights_c.partial.state", 0777), 0);
    get(s, "download", (tinkc_download_options){ 0 });
    free(t.data);
    end(s);
}

/* ---- a disk of which one call fails ---- */

/* Every compression; an archive that is broken off between two files: nothing says where it could be taken up. */
static void compressed(void **state)
{
    (void)state;
    enum { LEN = 300 * 1024 };
    script *s = begin("compressed");
    for (size_t i = 0; i < sizeof packed_tars / sizeof *packed_tars; i++) {
        store_once(s, 200, NULL, packed_tars[i].data, packed_tars[i].len);
        (void)try_it(s, packed_tars[i].how, PATH, &(tinkc_download_options){ 0 });
        show_folder(s, ".");
        clean();
    }
    char *noise = malloc(LEN);
    assert_non_null(noise);
    uint32_t x = 1;
    for (size_t i = 0; i < LEN; i++)
        noise[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
    tar t = { 0 };
    tkc_buf packed;
    tkc_buf_init(&packed, NULL, TKC_BUF_NO_MAX);
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, "noise", '0', NULL, noise, LEN);
    tar_end(&t);
    assert_true(tkc_zstd_compress(t.data, t.len, &packed, script_err(s)));
    tinkc_mock_answer cut = { .body = packed.data,
                              .body_len = packed.len,
                              .fault = TINKC_FAULT_RESET,
                              .fault_after = 200 * 1024 };
    assert_true(tinkc_mock_once(script_mock(s), NULL, STORE, &cut, script_err(s)));
    for (int k = 0; k < 2; k++)
        store_once(s, 404, NULL, "gone", 4);
    assert_false(try_it(s, "broken off", PATH, &(tinkc_download_options){ 0 }));
    assert_int_equal(unlink("r_weights_c.partial/noise"),
                     0); /* how much of it came is libarchive's choice */
    show_folder(s, ".");
    store_once(s, 200, NULL, packed.data, packed.len);
    assert_true(try_it(s, "again", PATH, &(tinkc_download_options){ 0 }));
    tkc_buf_free(&packed);
    free(noise);
    free(t.data);
    end(s);
}

static void failing_calls(void **state)
{
    (void)state;
    static const struct {
        const char *name, *path;
        bool resumed; /* of a file of which a part is there */
        tinkc_download_options o;
    } rows[] = {
        { "unpacked", PATH, false, { .replace = true } },
        { "flat", PATH, false, { .replace = true, .flat = true, .dir = "x/y" } },
        { "a file", PATH, true, { .replace = true, .keep_archive = true } },
        { "without digests",
          PATH,
          true,
          { .replace = true, .keep_archive = true, .no_digests = true } },
        { "files", "tinker://r/external_weights/c", false, { .replace = true } },
    };
    static const char *const calls[] = { "fsync", "lseek",  "pread",  "short pread",
                                         "mkdir", "rename", "unlink", "unlinkat" };
    script *s = begin("failing_calls");
    tar t = { 0 };
    usual_archive(&t);
    tinkc_mock_answer all = { .headers = PAIRS("ETag", "e"), .body = t.data, .body_len = t.len };
    assert_true(tinkc_mock_always(script_mock(s), NULL, STORE, &all, script_err(s)));
    answer_always(s, LINKS, 200, NULL, URLS("\"d/e/b\":\"https://files.test/store/x\""));
    size_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows * (sizeof calls / sizeof *calls); i++) {
        size_t row = i / (sizeof calls / sizeof *calls), call = i % (sizeof calls / sizeof *calls);
        for (int nth = 1, failed = 1; failed; nth++) {
            put_file("r_weights_c.tar", "old");
            assert_int_equal(mkdir("r_weights_c", 0777), 0);
            put_file("r_weights_c/old", "old");
            if (rows[row].resumed) {
                put_file("r_weights_c.tar.partial", "a.js");
                put_file("r_weights_c.tar.partial.state", STATE(PATH, "e", "-1", "0", ""));
            }
            note(s, "%s: %s %d fails", rows[row].name, calls[call], nth);
            fail_call(calls[call], nth);
            bool good = try_it(s, "first", rows[row].path, &rows[row].o);
            failed = call_has_failed();
            if (!good) {
                show_folder(s, ".");
                assert_true(try_it(s, "again", rows[row].path, &rows[row].o));
            }
            clean();
            assert_true(++n < 500);
        }
    }
    free(t.data);
    end(s);
}

/* ---- names, options, digests ---- */

static void names_and_options(void **state)
{
    (void)state;
    static const char *const urls[] = {
        "https://files.test/a/name.bin?x=1",
        "https://files.test/",
        "https://files.test",
        "https://files.test/a/..",
        "https://files.test/a/.",
        "https://files.test/a%20b",
        "https://files.test/c:d",
        "ftp://files.test/x",
        "no address",
    };
    script *s = begin("names_and_options");
    tinkc_mock_always(script_mock(s), NULL, "*", &(tinkc_mock_answer){ .body = "1" },
                      script_err(s));
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        for (int portable = 0; portable < 2; portable++) {
            note(s, "%s", urls[i]);
            run(s, "url",
                tinkc_url_download(script_client(s), urls[i],
                                   &(tinkc_download_options){ .portable_names = portable },
                                   script_err(s)));
            clean();
        }
    int64_t n = 0;
    const tinkc_download_options bad[] = {
        { .max_bytes = -1 },
        { .write = count_all, .dir = "x" },
        { .write = count_all, .name = "x" },
        { .write = count_all, .flat = true },
        { .write = count_all, .replace = true },
        { .fd = 5, .dir = "x" },
        { .fd = -1 },
        { .fd = 5, .write = count_all },
        { .reserved_int = 1 },
        { .reserved = { 1 } },
        { .reserved_bools = { true } },
        { .name = "" },
        { .name = "." },
        { .name = ".." },
        { .name = "a/b" },
        { .name = "a\n" },
        { .fd = 999 },
        { .write = count_all, .write_user = &n },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        note(s, "options %zu", i);
        run(s, "url",
            tinkc_url_download(script_client(s), "https://files.test/x", &bad[i], script_err(s)));
        clean();
    }
    note(s, "external weights have no archive");
    static const tinkc_download_options external[] = { { .keep_archive = true },
                                                       { .write = count_all, .write_user = NULL },
                                                       { .fd = 1 } };
    for (size_t i = 0; i < 3; i++)
        run(s, "external",
            tinkc_checkpoint_download(script_client(s), "tinker://r/external_weights/c",
                                      &external[i], script_err(s)));
    run(s, "path", tinkc_checkpoint_download(script_client(s), "x", NULL, script_err(s)));
    char hex[65] = "unset";
    tinkc_error e = { 0 };
    put_file("one", "1");
    note(s, "%d %s", tinkc_file_sha256("one", hex, &e), hex);
    e.code = TINKC_E_STATE; /* after a failure nothing is done */
    hex[0] = 0;
    note(s, "%d %s", tinkc_file_sha256("one", hex, &e), hex);
    static const char *const paths[] = { "none", ".", NULL, "one" };
    for (size_t i = 0; i < 4; i++) {
        e = (tinkc_error){ 0 };
        note(s, "%d", tinkc_file_sha256(paths[i], i == 3 ? NULL : hex, &e));
        note(s, "%s: %s", tinkc_code_name(e.code), e.message);
    }
    end(s);
}

static void external_files(void **state)
{
    (void)state;
    static const char *const answers[] = {
        URLS("\"a\":\"https://files.test/store/x\",\"d/e/b\":\"https://files.test/store/y\""),
        URLS(""),
        URLS("\"../a\":\"https://files.test/store/x\""),
        URLS("\"a\":\"no address\""),
    };
    script *s = begin("external_files");
    for (size_t i = 0; i < 4; i++) {
        note(s, "row %zu", i);
        answer_once(s, LINKS, 200, NULL, answers[i]);
        store_once(s, 200, NULL, "12345", 5);
        answer_once(s, "/store/y", 200, NULL, "678");
        run(s, "files",
            tinkc_checkpoint_download(script_client(s), "tinker://r/external_weights/c", NULL,
                                      script_err(s)));
        clean();
        for (int k = 0; i && k < 1; k++) { /* what was not used */
            run(s, "rest",
                tinkc_http_call(script_client(s),
                                &(tinkc_http_options){ .path = "https://files.test/store/x",
                                                       .any_status = true },
                                script_err(s)));
            run(s, "rest",
                tinkc_http_call(script_client(s),
                                &(tinkc_http_options){ .path = "https://files.test/store/y",
                                                       .any_status = true },
                                script_err(s)));
        }
    }
    note(s, "limits");
    for (int64_t max = 4; max < 9; max++) {
        answer_once(s, LINKS, 200, NULL, answers[0]);
        store_once(s, 200, NULL, "12345", 5);
        answer_always(s, "/store/y", 200, NULL, "678");
        run(s, "files",
            tinkc_checkpoint_download(script_client(s), "tinker://r/external_weights/c",
                                      &(tinkc_download_options){ .max_bytes = max },
                                      script_err(s)));
        clean();
    }
    note(s, "the address of the last file has expired");
    answer_always(s, LINKS, 200, NULL, answers[0]);
    store_once(s, 200, NULL, "12345", 5);
    answer_once(s, "/store/y", 403, NULL, "expired");
    run(s, "files",
        tinkc_checkpoint_download(script_client(s), "tinker://r/external_weights/c", NULL,
                                  script_err(s)));
    clean();
    note(s, "a file that is no longer among them");
    answer_once(s, LINKS, 200, NULL, answers[0]);
    answer_once(s, LINKS, 200, NULL, URLS("\"d/e/b\":\"https://files.test/store/y\""));
    store_once(s, 403, NULL, "expired", 7);
    run(s, "files",
        tinkc_checkpoint_download(script_client(s), "tinker://r/external_weights/c", NULL,
                                  script_err(s)));
    clean();
    note(s, "an address that has expired");
    static const int32_t statuses[] = { 400, 401, 403, 404, 410, 402 };
    for (size_t i = 0; i < 6; i++)
        for (int twice = 0; twice < 2; twice++) {
            answer_always(s, LINKS, 200, NULL, answers[0]);
            for (int k = 0; k <= 2 * twice; k++)
                store_once(s, statuses[i], NULL, "expired", 7);
            answer_always(s, STORE, 200, NULL, "12345");
            run(s, "files",
                tinkc_checkpoint_download(script_client(s), "tinker://r/external_weights/c", NULL,
                                          script_err(s)));
            clean();
        }
    end(s);
}

/* From its first moment a download fetches, whatever it is still asking for. */
static void the_stage_of_a_download(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    int64_t n = 0;
    tinkc_future *f = tinkc_checkpoint_download(
        client, PATH, &(tinkc_download_options){ .write = count_all, .write_user = &n }, &err);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpacked),       cmocka_unit_test(entries),
        cmocka_unit_test(sparse_files),   cmocka_unit_test(heads),
        cmocka_unit_test(resumed_files),  cmocka_unit_test(resumed_archives),
        cmocka_unit_test(full_disk),      cmocka_unit_test(names_and_options),
        cmocka_unit_test(external_files), cmocka_unit_test(the_stage_of_a_download),
        cmocka_unit_test(failing_calls),  cmocka_unit_test(compressed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
