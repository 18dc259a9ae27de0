/* test_download_files.c - downloads from the mock: requests, files on the disk, state files, names, limits and refusals. A
 * download's thread waits on the mock's clock, so its pauses cost nothing. What is on the disk is shown as names with sizes, short
 * texts with what they say. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec/zstd.h"
#include "support/client/client_scene.h"
#include "support/failing_calls.h"
#include "support/client/packed_tars.h"
#include "support/client/tar_write.h"

#define PATH    "tinker://r/weights/c"
#define ARCHIVE "/api/v1/training_runs/r/checkpoints/weights/c/archive"
#define ADDRESS                                                                                    \
    "{\"url\":\"https://files.test/store/x?sig=1\",\"expires\":\"2026-01-01T01:00:00Z\"}"
#define STORE      "/store/x"
#define LINKS      "/api/v1/training_runs/r/checkpoints/external_weights/c/external_weights_urls"
#define URLS(list) "{\"urls\":{" list "},\"expires\":\"2026-01-01T01:00:00Z\"}"

/* ---- a folder of its own for each script ---- */

static int home = -1;
static char folder[64];

static scene *begin(void)
{
    scene *s = scene_new(TINKC_MOCK_EMPTY, NULL);
    (void)snprintf(folder, sizeof folder, "/tmp/tinkc-dl-XXXXXX");
    assert_non_null(mkdtemp(folder));
    home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(chdir(folder), 0);
    answer_always(s, CONFIG, 200, "{}");
    answer_always(s, ARCHIVE, 200, ADDRESS);
    complete(s, "",
             tinkc_http_call(scene_client(s),
                             &(tinkc_http_options){ .path = "/first", .any_status = true },
                             scene_err(s)));
    scene_forget(s);
    return s;
}

static void clean(void)
{
    assert_int_equal(system("find . -mindepth 1 -delete"), 0);
}

static void end(scene *s)
{
    clean();
    assert_int_equal(fchdir(home), 0);
    close(home);
    assert_int_equal(rmdir(folder), 0);
    scene_end(s);
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

static void show_file(scene *s, const char *path, int64_t size)
{
    char text[300] = "";
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    bool shown = size && n == (size_t)size && strlen(text) == n && !strchr(text, '\n');
    note(s, "%s %" PRId64 "%s%s", masked(path + 2), size, shown ? " = " : "", shown ? text : "");
}

static void show_folder(scene *s, const char *path)
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
                note(s, "%s/", masked(name + 2));
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
static void await(scene *s, const tinkc_future *f)
{
    tinkc_error err = { 0 };
    while (f && !tinkc_future_done(f)) {
        int64_t next = TINKC_FOREVER;
        wait_until(tinkc_future_done(f) ||
                   (next = tinkc_mock_settle(scene_mock(s), PATIENCE_MS, &err)) != TINKC_FOREVER);
        assert_ok(&err);
        if (!tinkc_future_done(f))
            tinkc_mock_advance(scene_mock(s), next);
    }
}

/* To its end; then everything that can be seen of it. */
static void run(scene *s, const char *name, tinkc_future *f)
{
    await(s, f);
    f = follow(s, name, f);
    const tinkc_download *d =
        f && tinkc_future_wait(f, 0, NULL) ? tinkc_future_download(f, 0, NULL) : NULL;
    if (d)
        note(s, "%s, %" PRId64 " bytes", tinkc_download_target(d), tinkc_download_bytes(d));
    for (size_t i = 0; i < tinkc_download_count(d); i++)
        note(s, "%s %.6s %" PRId64, tinkc_download_at(d, i)->name, tinkc_download_at(d, i)->sha256,
             tinkc_download_at(d, i)->size_bytes);
    note(s, "on the disk");
    show_folder(s, ".");
    if (f)
        release(s, f);
}

static void store_once(scene *s, int32_t status, const char *const *headers, const void *body,
                       size_t len)
{
    tinkc_mock_answer a = { .status = status, .headers = headers, .body = body, .body_len = len };
    assert_true(tinkc_mock_once(scene_mock(s), NULL, STORE, &a, scene_err(s)));
}

static void get(scene *s, const char *name, tinkc_download_options o)
{
    run(s, name, tinkc_checkpoint_download(scene_client(s), PATH, &o, scene_err(s)));
}

/* A download of which nothing is shown but its outcome. True if it went well. */
static bool try_it(scene *s, const char *name, const char *path, const tinkc_download_options *o)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_checkpoint_download(scene_client(s), path, o, &err);
    assert_ok(&err);
    await(s, f);
    settle(s);
    scene_forget(s);
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

TEST(unpacked)
{
    scene *s = begin();
    tar t = { 0 };
    usual_archive(&t);
    const struct {
        tinkc_download_options o;
        const char *seen;
    } rows[] = {
        { { 0 },
          "archive; /store/x?sig=1; done; ./r_weights_c, 7168 bytes; a.json 44136f 2; "
          "deep/er/model.bin fcfcbc 3000; end e3b0c4 0; on the disk; r_weights_c/; "
          "r_weights_c/a.json 2 = {}; r_weights_c/deep/; r_weights_c/deep/empty/; "
          "r_weights_c/deep/er/; r_weights_c/deep/er/model.bin 3000; r_weights_c/end 0" },
        { { .name = "mine" },
          "archive; /store/x?sig=1; done; ./mine, 7168 bytes; a.json 44136f 2; deep/er/model.bin "
          "fcfcbc 3000; end e3b0c4 0; on the disk; mine/; mine/a.json 2 = {}; mine/deep/; "
          "mine/deep/empty/; mine/deep/er/; mine/deep/er/model.bin 3000; mine/end 0" },
        { { .dir = "x/y", .portable_names = true },
          "archive; /store/x?sig=1; done; x/y/r_weights_c, 7168 bytes; a.json 44136f 2; "
          "deep/er/model.bin fcfcbc 3000; end e3b0c4 0; on the disk; x/; x/y/; x/y/r_weights_c/; "
          "x/y/r_weights_c/a.json 2 = {}; x/y/r_weights_c/deep/; x/y/r_weights_c/deep/empty/; "
          "x/y/r_weights_c/deep/er/; x/y/r_weights_c/deep/er/model.bin 3000; x/y/r_weights_c/end "
          "0" },
        { { .flat = true },
          "archive; /store/x?sig=1; done; ., 7168 bytes; a.json 44136f 2; deep/er/model.bin fcfcbc "
          "3000; end e3b0c4 0; on the disk; a.json 2 = {}; deep/; deep/empty/; deep/er/; "
          "deep/er/model.bin 3000; end 0" },
        { { .keep_archive = true },
          "archive; /store/x?sig=1; done; ./r_weights_c.tar, 7168 bytes; r_weights_c.tar cc8bfe "
          "7168; on the disk; r_weights_c.tar 7168" },
        { { .keep_archive = true, .name = "n", .no_digests = true },
          "archive; /store/x?sig=1; done; ./n, 7168 bytes; n  7168; on the disk; n 7168" },
        { { .no_digests = true },
          "archive; /store/x?sig=1; done; ./r_weights_c, 7168 bytes; a.json  2; deep/er/model.bin  "
          "3000; end  0; on the disk; r_weights_c/; r_weights_c/a.json 2 = {}; r_weights_c/deep/; "
          "r_weights_c/deep/empty/; r_weights_c/deep/er/; r_weights_c/deep/er/model.bin 3000; "
          "r_weights_c/end 0" },
        { { .max_bytes = (int64_t)t.len },
          "archive; /store/x?sig=1; done; ./r_weights_c, 7168 bytes; a.json 44136f 2; "
          "deep/er/model.bin fcfcbc 3000; end e3b0c4 0; on the disk; r_weights_c/; "
          "r_weights_c/a.json 2 = {}; r_weights_c/deep/; r_weights_c/deep/empty/; "
          "r_weights_c/deep/er/; r_weights_c/deep/er/model.bin 3000; r_weights_c/end 0" },
        { { .max_bytes = (int64_t)t.len - 1 },
          "archive; /store/x?sig=1; BAD_RESPONSE \"larger than max_bytes\"; on the disk" },
        { { .max_bytes = 3002 },
          "archive; /store/x?sig=1; BAD_RESPONSE \"larger than max_bytes\"; on the disk" },
        { { .max_bytes = 3001 },
          "archive; /store/x?sig=1; BAD_RESPONSE \"larger than max_bytes\"; on the disk" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        store_once(s, 200, PAIRS("ETag", "\"v\""), t.data, t.len);
        get(s, "", rows[i].o);
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
    }
    /* twice, in the place of another, and beside it */
    static const char *const places[] = {
        "EXISTS \"./r_weights_c: already exists\"; on the disk; a.json 7 = old too; r_weights_c/; "
        "r_weights_c/old 3 = old",
        "archive; /store/x?sig=1; done; ./r_weights_c, 7168 bytes; a.json 44136f 2; "
        "deep/er/model.bin fcfcbc 3000; end e3b0c4 0; on the disk; a.json 7 = old too; "
        "r_weights_c/; r_weights_c/a.json 2 = {}; r_weights_c/deep/; r_weights_c/deep/empty/; "
        "r_weights_c/deep/er/; r_weights_c/deep/er/model.bin 3000; r_weights_c/end 0",
        "archive; /store/x?sig=1; EXISTS \"./a.json: already exists\"; on the disk; a.json 7 = old "
        "too; r_weights_c/; r_weights_c/old 3 = old; r_weights_c.partial/; "
        "r_weights_c.partial/a.json 2 = {}; r_weights_c.partial/deep/; "
        "r_weights_c.partial/deep/empty/; r_weights_c.partial/deep/er/; "
        "r_weights_c.partial/deep/er/model.bin 3000; r_weights_c.partial/end 0; "
        "r_weights_c.partial.state 74 = "
        "{\"what\":\"tinker://r/weights/c\",\"etag\":\"\",\"total\":-1,\"offset\":0,\"files\":[]}",
        "archive; /store/x?sig=1; done; ., 7168 bytes; a.json 44136f 2; deep/er/model.bin fcfcbc "
        "3000; end e3b0c4 0; on the disk; a.json 2 = {}; deep/; deep/empty/; deep/er/; "
        "deep/er/model.bin 3000; end 0; r_weights_c/; r_weights_c/old 3 = old"
    };
    for (int flat = 0; flat < 2; flat++)
        for (int replace = 0; replace < 2; replace++) {
            assert_int_equal(mkdir("r_weights_c", 0777), 0);
            put_file("r_weights_c/old", "old");
            put_file("a.json", "old too");
            store_once(s, 200, NULL, t.data, t.len);
            get(s, "", (tinkc_download_options){ .flat = flat, .replace = replace });
            EXPECT_ROW(s, (size_t)(2 * flat + replace), places[2 * flat + replace]);
            clean();
        }
    /* the last of several is in the way: none is moved */
    put_file("end", "old");
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "", (tinkc_download_options){ .flat = true });
    EXPECT(
        s,
        "archive; /store/x?sig=1; EXISTS \"./end: already exists\"; on the disk; end 3 = old; "
        "r_weights_c.partial/; r_weights_c.partial/a.json 2 = {}; r_weights_c.partial/deep/; "
        "r_weights_c.partial/deep/empty/; r_weights_c.partial/deep/er/; "
        "r_weights_c.partial/deep/er/model.bin 3000; r_weights_c.partial/end 0; "
        "r_weights_c.partial.state 74 = "
        "{\"what\":\"tinker://r/weights/c\",\"etag\":\"\",\"total\":-1,\"offset\":0,\"files\":[]}");
    clean();
    put_file("dir", "in the way");
    get(s, "", (tinkc_download_options){ .dir = "dir/x" });
    EXPECT(s, "FILE \"dir: File exists\"; on the disk; dir 10 = in the way");
    /* into a function */
    int64_t n = 0;
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "write", (tinkc_download_options){ .write = count_all, .write_user = &n });
    assert_int_equal(n, t.len);
    EXPECT(s,
           "archive; /store/x?sig=1; write: done; , 7168 bytes; on the disk; dir 10 = in the way");
    n = INT64_MIN;
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "no more", (tinkc_download_options){ .write = count_all, .write_user = &n });
    EXPECT(s, "archive; /store/x?sig=1; no more: CANCELLED \"the receiver ended the download\"; on "
              "the disk; dir 10 = in the way");
    /* what stands behind the end counts */
    t.data = realloc(t.data, t.len + 5000);
    memset(t.data + t.len, 'x', 5000);
    clean();
    store_once(s, 200, NULL, t.data, t.len + 5000);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s, "archive; /store/x?sig=1; done; ./r_weights_c, 7168 bytes; a.json 44136f 2; "
              "deep/er/model.bin fcfcbc 3000; end e3b0c4 0; on the disk; r_weights_c/; "
              "r_weights_c/a.json 2 = {}; r_weights_c/deep/; r_weights_c/deep/empty/; "
              "r_weights_c/deep/er/; r_weights_c/deep/er/model.bin 3000; r_weights_c/end 0");
    free(t.data);
    end(s);
}

TEST(entries)
{
    static const struct {
        const char *name, *link;
        char type;
        const char *seen;
    } rows[] = {
        { "../x", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { "a/../b", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { "..", NULL, '5',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { "/abs", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { "/", NULL, '5',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "/", NULL, '0',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "a\\b", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { "a\x1f", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { "a\x7f", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a path that leads outside\"; on the "
          "disk" },
        { ".", NULL, '0',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a file without a name\"; on the "
          "disk" },
        { "./.", NULL, '5',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "...", NULL, '0',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; ... e3b0c4 0; "
          "last d4735e 1; on the disk; r_weights_c/; r_weights_c/... 0; r_weights_c/first 1 = 1; "
          "r_weights_c/last 1 = 2" },
        { "a//./b/", NULL, '5',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/a/; r_weights_c/a/b/; r_weights_c/first 1 = "
          "1; r_weights_c/last 1 = 2" },
        { "l", "a", '1',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a link: l\"; on the disk" },
        { "l", "a", '2',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: a link: l\"; on the disk" },
        { "d", NULL, '3',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: neither file nor folder: d\"; on the "
          "disk" },
        { "d", NULL, '4',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: neither file nor folder: d\"; on the "
          "disk" },
        { "d", NULL, '6',
          "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: neither file nor folder: d\"; on the "
          "disk" },
        { "one/two/three", NULL, '0',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; one/two/three "
          "e3b0c4 0; last d4735e 1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; "
          "r_weights_c/last 1 = 2; r_weights_c/one/; r_weights_c/one/two/; "
          "r_weights_c/one/two/three 0" },
        { "e", NULL, '5',
          "archive; /store/x?sig=1; done; ./r_weights_c, 3584 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/e/; r_weights_c/first 1 = 1; r_weights_c/last "
          "1 = 2" },
    };
    scene *s = begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tar t = { 0 };
        tar_raw(&t, "first", '0', NULL, "1", 1);
        tar_raw(&t, rows[i].name, rows[i].type, rows[i].link, NULL, 0);
        tar_raw(&t, "last", '0', NULL, "2", 1);
        tar_end(&t);
        store_once(s, 200, NULL, t.data, t.len);
        get(s, "", (tinkc_download_options){ 0 });
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
        free(t.data);
    }
    /* a name that is not in ASCII */
    tar t = { 0 };
    tar_raw(&t, "PaxHeader", 'x', NULL, "15 path=\xc3\xa4.bin\n", 15);
    tar_raw(&t, "x", '0', NULL, "1", 1);
    tar_end(&t);
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s, "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; ä.bin 6b86b2 1; on the "
              "disk; r_weights_c/; r_weights_c/ä.bin 1 = 1");
    clean();
    free(t.data);
    t = (tar){ 0 };
    /* a file where a folder is needed, and the same name twice */
    tar_raw(&t, "a", '0', NULL, "1", 1);
    tar_raw(&t, "a", '0', NULL, "two", 3);
    tar_raw(&t, "a/b", '0', NULL, "2", 1);
    tar_end(&t);
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s, "archive; /store/x?sig=1; FILE \"./r_weights_c.partial/a/b: Not a directory\"; on "
              "the disk; r_weights_c.partial/; r_weights_c.partial/a 3 = two; "
              "r_weights_c.partial.state 272 = "
              "{\"what\":\"tinker://r/weights/"
              "c\",\"etag\":\"\",\"total\":-1,\"offset\":2048,\"files\":[{\"name\":\"a\","
              "\"sha256\":\"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b\","
              "\"size\":1},{\"name\":\"a\",\"sha256\":"
              "\"3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3\",\"size\":3}]}");
    clean();
    /* cut off, damaged, no archive */
    static const char *const damaged[] = {
        "archive; /store/x?sig=1; BAD_RESPONSE \"archive: Unrecognized archive format\"; on the "
        "disk",
        "archive; /store/x?sig=1; BAD_RESPONSE \"archive: Truncated input file (needed 511 bytes, "
        "only 187 available)\"; on the disk",
        "archive; /store/x?sig=1; BAD_RESPONSE \"archive: Truncated tar archive\"; on the disk",
        "archive; /store/x?sig=1; BAD_RESPONSE \"archive: Damaged tar archive\"; on the disk"
    };
    for (size_t cut = 0; cut < 4; cut++) {
        static const size_t lens[] = { 100, 700, 512 * 3, 0 };
        char *copy = calloc(1, t.len);
        assert_non_null(copy);
        memcpy(copy, t.data, t.len);
        if (cut == 3)
            memset(copy + 1024, 'x', 400);
        store_once(s, 200, NULL, copy, lens[cut] ? lens[cut] : t.len);
        get(s, "", (tinkc_download_options){ 0 });
        EXPECT_ROW(s, cut, damaged[cut]);
        free(copy);
        clean();
    }
    free(t.data);
    end(s);
}

/* Holes are filled with zeros, between the pieces and behind the last one. */
TEST(sparse_files)
{
    static const unsigned pieces[][2] = { { 5000, 3 }, { 9000, 2 }, { 10000, 0 } };
    static const unsigned back[][2] = { { 5000, 3 }, { 100, 2 }, { 10000, 0 } };
    static const unsigned whole[][2] = { { 0, 5 }, { 4096 + 5, 0 } };
    static const struct {
        tinkc_download_options o;
        const char *seen;
    } rows[] = {
        { { 0 },
          "archive; /store/x?sig=1; done; ./r_weights_c, 4096 bytes; holes b96f3d 10000; one "
          "dd30bb 4101; last 6b86b2 1; on the disk; r_weights_c/; r_weights_c/holes 10000; "
          "r_weights_c/last 1 = 1; r_weights_c/one 4101" },
        { { .no_digests = true },
          "archive; /store/x?sig=1; done; ./r_weights_c, 4096 bytes; holes  10000; one  4101; last "
          " 1; on the disk; r_weights_c/; r_weights_c/holes 10000; r_weights_c/last 1 = 1; "
          "r_weights_c/one 4101" },
        { { .max_bytes = 10000 + 4101 + 1 },
          "archive; /store/x?sig=1; done; ./r_weights_c, 4096 bytes; holes b96f3d 10000; one "
          "dd30bb 4101; last 6b86b2 1; on the disk; r_weights_c/; r_weights_c/holes 10000; "
          "r_weights_c/last 1 = 1; r_weights_c/one 4101" },
        { { .max_bytes = 10000 + 4101 },
          "archive; /store/x?sig=1; BAD_RESPONSE \"archive: unpacks to more than max_bytes\"; on "
          "the disk" },
    };
    scene *s = begin();
    tar t = { 0 };
    tar_sparse(&t, "holes", pieces, 3, 10000, "abcde", 5);
    tar_sparse(&t, "one", whole, 2, 4096 + 5, "vwxyz", 5);
    tar_raw(&t, "last", '0', NULL, "1", 1);
    tar_end(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        store_once(s, 200, NULL, t.data, t.len);
        get(s, "", rows[i].o);
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
    }
    free(t.data);
    t = (tar){ 0 };
    /* pieces in the wrong order */
    tar_sparse(&t, "holes", back, 3, 10000, "abcde", 5);
    tar_end(&t);
    store_once(s, 200, NULL, t.data, t.len);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s, "archive; /store/x?sig=1; BAD_RESPONSE \"archive: its pieces overlap\"; on the disk");
    free(t.data);
    /* holes of more than 256 MiB, in one file and in two: refused before they are written */
    enum { MOST = 256 << 20 };
    for (unsigned first = 0; first <= 5000; first += 5000) {
        const unsigned before[][2] = { { first, 3 } }, far[][2] = { { MOST - first + 1, 2 } };
        t = (tar){ 0 };
        tar_sparse(&t, "a", before, 1, first + 3, "abc", 3);
        tar_sparse(&t, "b", far, 1, MOST - first + 3, "de", 2);
        tar_end(&t);
        clean();
        store_once(s, 200, NULL, t.data, t.len);
        get(s, "", (tinkc_download_options){ 0 });
        EXPECT_ROW(s, first > 0,
                   first ? "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: sparse files with "
                           "holes of more than 256 MiB; max_bytes allows more\"; on the disk"
                         : "archive; /store/x?sig=1; UNSAFE_ARCHIVE \"archive: sparse files with "
                           "holes of more than 256 MiB; max_bytes allows more\"; on the disk");
        store_once(s, 200, NULL, t.data, t.len); /* with a limit that the first file has used up */
        (void)try_it(s, "limited", PATH, &(tinkc_download_options){ .max_bytes = first + 3 });
        EXPECT_ROW(s, first > 0,
                   first ? "limited: archive: unpacks to more than max_bytes"
                         : "limited: larger than max_bytes");
        free(t.data);
    }
    end(s);
}

/* ---- heads ---- */

TEST(heads)
{
    static const struct {
        struct {
            int32_t status;
            const char *headers[5];
            const char *body;
            int32_t fault;
        } a[3];
        const char *seen;
    } rows[] = {
        { { { 200, { "Content-Length", "10" }, "0123456789", 0 } },
          "/store/x?sig=1; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { { { 200, { "Content-Length", "11" }, "0123456789", 0 },
            { 206, { "Content-Range", "bytes 10-10/11" }, "A", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=10-}; done; ./x, 11 bytes; x bf6edd "
          "11; on the disk; x 11 = 0123456789A" },
        { { { 200, { "Content-Length", "9" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"more bytes came than the length said\"; on the disk; "
          "x.partial 0" },
        { { { 200, { "Content-Length", "x" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the length is not a number\"; on the disk" },
        { { { 200, { "Content-Length", "-1" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the length is not a number\"; on the disk" },
        { { { 206, { "Content-Range", "bytes 0-9/10" }, "0123456789", 0 } },
          "/store/x?sig=1; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { { { 206, { "Content-Range", "bytes 1-9/10" }, "123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; on the "
          "disk" },
        { { { 206, { "Content-Range", "bytes 0-9/*" }, "0123456789", 0 } },
          "/store/x?sig=1; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { { { 206, { "Content-Range", "items 0-9/10" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; on the "
          "disk" },
        { { { 206, { "Content-Range", "bytes 0-9" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; on the "
          "disk" },
        { { { 206, { "Content-Range", "bytes x-9/10" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; on the "
          "disk" },
        { { { 206, { "Content-Range", "bytes 0/10-9" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; on the "
          "disk" },
        { { { 206, { NULL }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; on the "
          "disk" },
        /* broken off, and taken up in several ways */
        { { { 200, { "ETag", "\"a\"" }, "0123456789", 4 },
            { 206, { "Content-Range", "bytes 4-9/10", "ETag", "\"a\"" }, "456789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-} {If-Range: \"a\"}; done; ./x, 10 "
          "bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { { { 200, { "ETag", "\"a\"" }, "0123456789", 4 },
            { 206, { "Content-Range", "bytes 4-9/10", "ETag", "\"b\"" }, "456789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-} {If-Range: \"a\"}; BAD_RESPONSE "
          "\"the file has changed since the download began\"; on the disk; x.partial 4 = 0123; "
          "x.partial.state 85 = "
          "{\"what\":\"https://files.test/store/"
          "x\",\"etag\":\"\\\"a\\\"\",\"total\":-1,\"offset\":0,\"files\":[]}" },
        { { { 200, { "ETag", "W/\"a\"" }, "0123456789", 4 },
            { 206, { "Content-Range", "bytes 4-9/10" }, "456789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; done; ./x, 10 bytes; x 84d898 "
          "10; on the disk; x 10 = 0123456789" },
        { { { 200, { NULL }, "0123456789", 4 },
            { 206, { "Content-Range", "bytes 4-10/11" }, "456789A", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; done; ./x, 11 bytes; x bf6edd "
          "11; on the disk; x 11 = 0123456789A" },
        { { { 200, { NULL }, "0123456789", 4 },
            { 206, { "Content-Range", "bytes 5-9/10" }, "56789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; BAD_RESPONSE \"the server sent "
          "another part than asked for\"; on the disk; x.partial 4 = 0123; x.partial.state 80 = "
          "{\"what\":\"https://files.test/store/"
          "x\",\"etag\":\"\",\"total\":-1,\"offset\":0,\"files\":[]}" },
        { { { 200, { NULL }, "0123456789", 4 }, { 200, { NULL }, "0123456789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; done; ./x, 14 bytes; x 84d898 "
          "10; on the disk; x 10 = 0123456789" },
        { { { 200, { NULL }, "0123456789", 4 },
            { 200, { NULL }, "0123456789", 2 },
            { 206, { "Content-Range", "bytes 4-9/10" }, "456789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; +200 /store/x?sig=1 {Range: "
          "bytes=4-}; done; ./x, 12 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { { { 200, { NULL }, "0123456789", 4 }, { 416, { NULL }, "no", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; HTTP 416 \"HTTP 416: no\"; on "
          "the disk; x.partial 4 = 0123; x.partial.state 80 = "
          "{\"what\":\"https://files.test/store/"
          "x\",\"etag\":\"\",\"total\":-1,\"offset\":0,\"files\":[]}" },
        { { { 404, { NULL }, "gone", 0 } },
          "/store/x?sig=1; NOT_FOUND 404 \"HTTP 404: gone\"; on the disk" },
        { { { 429, { "Retry-After", "2" }, "busy", 0 },
            { 503, { "Retry-After", "60" }, "busy", 0 },
            { 200, { NULL }, "0123456789", 0 } },
          "/store/x?sig=1; +2000 /store/x?sig=1; +5000 /store/x?sig=1; done; ./x, 10 bytes; x "
          "84d898 10; on the disk; x 10 = 0123456789" },
        { { { 200, { "Content-Length", "0" }, "0123456789", 0 } },
          "/store/x?sig=1; BAD_RESPONSE \"more bytes came than the length said\"; on the disk; "
          "x.partial 0" },
        { { { 200, { "Content-Length", "0" }, "", 0 } },
          "/store/x?sig=1; done; ./x, 0 bytes; x e3b0c4 0; on the disk; x 0" },
        { { { 200, { "ETag", "\"a\"" }, "0123456789", 1 },
            { 206, { "Content-Range", "bytes 1-9/10", "ETag", "\"a\"" }, "123456789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=1-} {If-Range: \"a\"}; done; ./x, 10 "
          "bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { { { 200, { NULL }, "0123456789", 4 },
            { 206, { "Content-Range", "bytes 4-9/10" }, "456", 1 },
            { 206, { "Content-Range", "bytes 5-9/0" }, "56789", 0 } },
          "/store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=4-}; +100 /store/x?sig=1 {Range: "
          "bytes=5-}; BAD_RESPONSE \"the file has changed since the download began\"; on the disk; "
          "x.partial 5 = 01234; x.partial.state 80 = "
          "{\"what\":\"https://files.test/store/"
          "x\",\"etag\":\"\",\"total\":-1,\"offset\":0,\"files\":[]}" },
    };
    scene *s = begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < 3 && rows[i].a[k].status; k++) {
            tinkc_mock_answer a = { .status = rows[i].a[k].status,
                                    .headers = rows[i].a[k].headers,
                                    .body = rows[i].a[k].body,
                                    .fault = rows[i].a[k].fault ? TINKC_FAULT_RESET : 0,
                                    .fault_after = rows[i].a[k].fault };
            assert_true(tinkc_mock_once(scene_mock(s), NULL, STORE, &a, scene_err(s)));
        }
        run(s, "",
            tinkc_url_download(scene_client(s), "https://files.test/store/x?sig=1", NULL,
                               scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
    }
    static const char *const limits[] = {
        "/store/x; BAD_RESPONSE \"larger than max_bytes\"; on the disk; x.partial 0",
        "/store/x; BAD_RESPONSE \"larger than max_bytes: 10 bytes\"; on the disk",
        "/store/x; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789",
        "/store/x; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789"
    };
    for (int64_t max = 9; max < 11; max++)
        for (int length = 0; length < 2; length++) {
            store_once(s, 200, length ? PAIRS("Content-Length", "10") : NULL, "0123456789", 10);
            run(s, "",
                tinkc_url_download(scene_client(s), "https://files.test/store/x",
                                   &(tinkc_download_options){ .max_bytes = max }, scene_err(s)));
            EXPECT_ROW(s, (size_t)(2 * (max - 9) + length), limits[2 * (max - 9) + length]);
            clean();
        }
    end(s);
}

/* ---- what an earlier run has left ---- */

#define STATE(what, etag, total, offset, files)                                                    \
    "{\"what\":\"" what "\",\"etag\":\"" etag "\",\"total\":" total ",\"offset\":" offset          \
    ",\"files\":[" files "]}"
#define FILE_STATE "https://files.test/store/x"

TEST(resumed_files)
{
    static const struct {
        const char *partial, *saved;
        bool no_resume;
        const char *seen;
    } rows[] = {
        { "0123", STATE(FILE_STATE, "e", "10", "0", ""), false,
          "/store/x?sig=2 {Range: bytes=4-} {If-Range: e}; done; ./x, 6 bytes; x 84d898 10; on the "
          "disk; x 10 = 0123456789" },
        { "0123", STATE(FILE_STATE, "e", "10", "0", ""), true,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", STATE(FILE_STATE, "", "10", "9", ""), false,
          "/store/x?sig=2 {Range: bytes=4-}; done; ./x, 6 bytes; x 84d898 10; on the disk; x 10 = "
          "0123456789" },
        { "0123", STATE(FILE_STATE, "e", "-1", "0", ""), false,
          "/store/x?sig=2 {Range: bytes=4-} {If-Range: e}; done; ./x, 6 bytes; x 84d898 10; on the "
          "disk; x 10 = 0123456789" },
        { "0123", STATE(FILE_STATE, "", "-1", "0", ""), false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", STATE("https://files.test/store/y", "e", "10", "0", ""), false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123456789", STATE(FILE_STATE, "e", "10", "0", ""), false,
          "done; ./x, 0 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123456789A", STATE(FILE_STATE, "e", "10", "0", ""), false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "", STATE(FILE_STATE, "e", "10", "0", ""), false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", "{\"what\":5}", false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", "no JSON", false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", "{}", false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", NULL, false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", STATE(FILE_STATE, "other", "10", "0", ""), false,
          "/store/x?sig=2 {Range: bytes=4-} {If-Range: other}; /store/x?sig=2; done; ./x, 10 "
          "bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", STATE(FILE_STATE, "e", "12", "0", ""), false,
          "/store/x?sig=2 {Range: bytes=4-} {If-Range: e}; /store/x?sig=2; done; ./x, 10 bytes; x "
          "84d898 10; on the disk; x 10 = 0123456789" },
        { "0123", "{\"what\":\"" FILE_STATE "\",\"more\":[1],\"etag\":\"e\",\"total\":10}", false,
          "/store/x?sig=2 {Range: bytes=4-} {If-Range: e}; done; ./x, 6 bytes; x 84d898 10; on the "
          "disk; x 10 = 0123456789" },
        { "0123", "{\"what\":\"" FILE_STATE "\",\"etag\":\"e\"}", false,
          "/store/x?sig=2 {Range: bytes=4-} {If-Range: e}; done; ./x, 6 bytes; x 84d898 10; on the "
          "disk; x 10 = 0123456789" },
        { "0", STATE(FILE_STATE, "e", "1", "0", ""), false,
          "done; ./x, 0 bytes; x 5feceb 1; on the disk; x 1 = 0" },
        { "", STATE(FILE_STATE, "", "0", "0", ""), false,
          "/store/x?sig=2; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789" },
    };
    scene *s = begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
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
            assert_true(
                tinkc_mock_once(scene_mock(s), NULL, STORE, resumes ? &part : &all, scene_err(s)));
        }
        run(s, "",
            tinkc_url_download(scene_client(s), "https://files.test/store/x?sig=2",
                               &(tinkc_download_options){ .no_resume = rows[i].no_resume },
                               scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
        use_up(s, "https://files.test/store/x");
    }
    /* long marks */
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
        run(s, "",
            tinkc_url_download(scene_client(s), "https://files.test/store/x", NULL, scene_err(s)));
        EXPECT_ROW(
            s, (size_t)(len - 255),
            len > 255 ? "/store/x; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789"
                      : "/store/x {Range: bytes=4-} {If-Range: "
                        "0000000000000000000000000000000000000000}; done; ./x, 6 bytes; x 84d898 "
                        "10; on the disk; x 10 = 0123456789");
        clean();
        tinkc_mock_answer cut = { .headers = PAIRS("ETag", etag),
                                  .body = "0123456789",
                                  .fault = TINKC_FAULT_RESET,
                                  .fault_after = 4 };
        assert_true(tinkc_mock_once(scene_mock(s), NULL, STORE, &cut, scene_err(s)));
        store_once(s, 206, PAIRS("Content-Range", "bytes 4-9/10"), "456789", 6);
        run(s, "",
            tinkc_url_download(scene_client(s), "https://files.test/store/x", NULL, scene_err(s)));
        EXPECT_ROW(s, (size_t)(len - 255),
                   len > 255 ? "/store/x; +100 /store/x {Range: bytes=4-}; done; ./x, 10 bytes; x "
                               "84d898 10; on the disk; x 10 = 0123456789"
                             : "/store/x; +100 /store/x {Range: bytes=4-} {If-Range: "
                               "0000000000000000000000000000000000000000}; done; ./x, 10 bytes; x "
                               "84d898 10; on the disk; x 10 = 0123456789");
        clean();
    }
    /* a folder in the file's place, and a link */
    assert_int_equal(mkdir("x.partial", 0777), 0);
    put_file("x.partial/inside", "1");
    put_file("x.partial.state", STATE(FILE_STATE, "e", "10", "0", ""));
    store_once(s, 200, NULL, "0123456789", 10);
    run(s, "",
        tinkc_url_download(scene_client(s), "https://files.test/store/x", NULL, scene_err(s)));
    EXPECT(s, "/store/x; done; ./x, 10 bytes; x 84d898 10; on the disk; x 10 = 0123456789");
    clean();
    put_file("elsewhere", "mine");
    assert_int_equal(symlink("elsewhere", "x.partial"), 0);
    store_once(s, 200, NULL, "0123456789", 10);
    run(s, "",
        tinkc_url_download(scene_client(s), "https://files.test/store/x", NULL, scene_err(s)));
    EXPECT(s, "/store/x; done; ./x, 10 bytes; x 84d898 10; on the disk; elsewhere 4 = mine; x 10 = "
              "0123456789");
    end(s);
}

#define ONE(name, sha, size) "{\"name\":\"" name "\",\"sha256\":\"" sha "\",\"size\":" size "}"
#define SHA_OF_1             "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"

TEST(resumed_archives)
{
    static const struct {
        const char *files, *offset, *on_disk;
        bool no_digests;
        const char *seen;
    } rows[] = {
        { ONE("first", SHA_OF_1, "1"), "1024", "1", false,
          "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; done; ./r_weights_c, 2048 "
          "bytes; first 6b86b2 1; last d4735e 1; on the disk; r_weights_c/; r_weights_c/first 1 = "
          "1; r_weights_c/last 1 = 2" },
        { ONE("first", "", "1"), "1024", "1", false,
          "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; done; ./r_weights_c, 2048 "
          "bytes; first 6b86b2 1; last d4735e 1; on the disk; r_weights_c/; r_weights_c/first 1 = "
          "1; r_weights_c/last 1 = 2" },
        { ONE("first", "", "1"), "1024", "1", true,
          "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; done; ./r_weights_c, 2048 "
          "bytes; first  1; last  1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; "
          "r_weights_c/last 1 = 2" },
        { ONE("first", SHA_OF_1, "1"), "1024", "12", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { ONE("first", SHA_OF_1, "1"), "1024", NULL, false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { ONE("../first", SHA_OF_1, "1"), "1024", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { ONE("first", "abc", "1"), "1024", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { ONE("first", SHA_OF_1, "-1"), "1024", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "{}", "1024", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "5", "1024", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "", "1024", "1", false,
          "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; done; ./r_weights_c, 2048 "
          "bytes; last d4735e 1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; "
          "r_weights_c/last 1 = 2" },
        { ONE("first", SHA_OF_1, "1"), "-1", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { ONE("first", SHA_OF_1, "1"), "3073", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { ONE("first", SHA_OF_1, "1") "," ONE("last", "", "1"), "2048", "1", false,
          "archive; /store/x?sig=1; done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e "
          "1; on the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2" },
        { "{\"name\":\"first\",\"more\":[1],\"sha256\":\"" SHA_OF_1 "\",\"size\":1}", "1024", "1",
          false,
          "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; done; ./r_weights_c, 2048 "
          "bytes; first 6b86b2 1; last d4735e 1; on the disk; r_weights_c/; r_weights_c/first 1 = "
          "1; r_weights_c/last 1 = 2" },
    };
    scene *s = begin();
    tar t = { 0 };
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, "last", '0', NULL, "2", 1);
    tar_end(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char saved[900], range[60];
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
        get(s, "", (tinkc_download_options){ .no_digests = rows[i].no_digests });
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
    }
    /* taken up behind a file and an empty one */
    assert_int_equal(mkdir("r_weights_c.partial", 0777), 0);
    put_file("r_weights_c.partial/first", "1");
    put_file("r_weights_c.partial/none", "");
    put_file(
        "r_weights_c.partial.state",
        STATE(PATH, "e", "3072", "1024", ONE("first", SHA_OF_1, "1") "," ONE("none", "", "0")));
    store_once(s, 206, PAIRS("ETag", "e", "Content-Range", "bytes 1024-3071/3072"), t.data + 1024,
               t.len - 1024);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s, "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; done; ./r_weights_c, "
              "2048 bytes; first 6b86b2 1; none e3b0c4 0; last d4735e 1; on the disk; "
              "r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2; r_weights_c/none 0");
    clean();
    /* taken up, and broken off before anything more has come */
    assert_int_equal(mkdir("r_weights_c.partial", 0777), 0);
    put_file("r_weights_c.partial/first", "1");
    put_file("r_weights_c.partial.state",
             STATE(PATH, "e", "3072", "1024", ONE("first", SHA_OF_1, "1")));
    for (int k = 0; k < 3; k++)
        store_once(s, 404, NULL, "gone", 4);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s,
           "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; +100 archive; "
           "/store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; +200 archive; /store/x?sig=1 "
           "{Range: bytes=1024-} {If-Range: e}; NOT_FOUND 404 \"HTTP 404: gone\"; on the disk; "
           "r_weights_c.partial/; r_weights_c.partial/first 1 = 1; r_weights_c.partial.state 181 = "
           "{\"what\":\"tinker://r/weights/"
           "c\",\"etag\":\"e\",\"total\":3072,\"offset\":1024,\"files\":[{\"name\":\"first\","
           "\"sha256\":\"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b\","
           "\"size\":1}]}");
    clean();
    use_up(s, "https://files.test/store/x");
    /* broken off between two files, then taken up by another run */
    for (int again = 0; again < 2; again++) {
        tinkc_mock_answer cut = { .headers = PAIRS("ETag", "e"),
                                  .body = t.data,
                                  .body_len = t.len,
                                  .fault = TINKC_FAULT_RESET,
                                  .fault_after = 1600 };
        assert_true(tinkc_mock_once(scene_mock(s), NULL, STORE, &cut, scene_err(s)));
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
        EXPECT_ROW(
            s, (size_t)again,
            again
                ? "archive; /store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=1600-} {If-Range: "
                  "e}; +200 archive; /store/x?sig=1 {Range: bytes=1600-} {If-Range: e}; first run: "
                  "NOT_FOUND 404 \"HTTP 404: gone\"; on the disk; r_weights_c.partial/; "
                  "r_weights_c.partial/first 1 = 1; r_weights_c.partial/last 1 = 2; "
                  "r_weights_c.partial.state 179 = "
                  "{\"what\":\"tinker://r/weights/"
                  "c\",\"etag\":\"e\",\"total\":-1,\"offset\":1024,\"files\":[{\"name\":\"first\","
                  "\"sha256\":\"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b\","
                  "\"size\":1}]}; archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; +100 "
                  "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; /store/x?sig=1; "
                  "second run: done; ./r_weights_c, 3072 bytes; first 6b86b2 1; last d4735e 1; on "
                  "the disk; r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2"
                : "archive; /store/x?sig=1; +100 /store/x?sig=1 {Range: bytes=1600-} {If-Range: "
                  "e}; +200 archive; /store/x?sig=1 {Range: bytes=1600-} {If-Range: e}; first run: "
                  "NOT_FOUND 404 \"HTTP 404: gone\"; on the disk; r_weights_c.partial/; "
                  "r_weights_c.partial/first 1 = 1; r_weights_c.partial/last 1 = 2; "
                  "r_weights_c.partial.state 179 = "
                  "{\"what\":\"tinker://r/weights/"
                  "c\",\"etag\":\"e\",\"total\":-1,\"offset\":1024,\"files\":[{\"name\":\"first\","
                  "\"sha256\":\"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b\","
                  "\"size\":1}]}; archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; +100 "
                  "archive; /store/x?sig=1 {Range: bytes=1024-} {If-Range: e}; second run: done; "
                  "./r_weights_c, 2048 bytes; first 6b86b2 1; last d4735e 1; on the disk; "
                  "r_weights_c/; r_weights_c/first 1 = 1; r_weights_c/last 1 = 2");
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

TEST(full_disk)
{
    static const struct {
        rlim_t most;
        tinkc_download_options o;
        const char *seen;
    } rows[] = {
        { 1000,
          { 0 },
          "archive; /store/x?sig=1; FILE \"./r_weights_c.partial/deep/er/model.bin: File too "
          "large\"; on the disk; r_weights_c.partial/; r_weights_c.partial/a.json 2 = {}; "
          "r_weights_c.partial/deep/; r_weights_c.partial/deep/er/; "
          "r_weights_c.partial/deep/er/model.bin 1000; r_weights_c.partial.state 184 = "
          "{\"what\":\"tinker://r/weights/"
          "c\",\"etag\":\"\\\"v\\\"\",\"total\":-1,\"offset\":1536,\"files\":[{\"name\":\"a.json\","
          "\"sha256\":\"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\","
          "\"size\":2}]}" },
        { 1000,
          { .no_digests = true },
          "archive; /store/x?sig=1; FILE \"./r_weights_c.partial/deep/er/model.bin: File too "
          "large\"; on the disk; r_weights_c.partial/; r_weights_c.partial/a.json 2 = {}; "
          "r_weights_c.partial/deep/; r_weights_c.partial/deep/er/; "
          "r_weights_c.partial/deep/er/model.bin 1000; r_weights_c.partial.state 120 = "
          "{\"what\":\"tinker://r/weights/"
          "c\",\"etag\":\"\\\"v\\\"\",\"total\":-1,\"offset\":1536,\"files\":[{\"name\":\"a.json\","
          "\"sha256\":\"\",\"size\":2}]}" },
        { 1000,
          { .keep_archive = true },
          "archive; /store/x?sig=1; FILE \"./r_weights_c.tar.partial: File too large\"; on the "
          "disk; r_weights_c.tar.partial 1000; r_weights_c.tar.partial.state 79 = "
          "{\"what\":\"tinker://r/weights/"
          "c\",\"etag\":\"\\\"v\\\"\",\"total\":-1,\"offset\":0,\"files\":[]}" },
        { 1000,
          { .keep_archive = true, .no_digests = true },
          "archive; /store/x?sig=1; FILE \"./r_weights_c.tar.partial: File too large\"; on the "
          "disk; r_weights_c.tar.partial 1000; r_weights_c.tar.partial.state 79 = "
          "{\"what\":\"tinker://r/weights/"
          "c\",\"etag\":\"\\\"v\\\"\",\"total\":-1,\"offset\":0,\"files\":[]}" },
        { 10,
          { 0 },
          "archive; /store/x?sig=1; FILE \"./r_weights_c.partial.state: File too large\"; on the "
          "disk; r_weights_c.partial/" },
        { 10,
          { .keep_archive = true },
          "archive; /store/x?sig=1; FILE \"./r_weights_c.tar.partial.state: File too large\"; on "
          "the disk; r_weights_c.tar.partial 0" },
    };
    scene *s = begin();
    tar t = { 0 };
    usual_archive(&t);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        store_once(s, 200, PAIRS("ETag", "\"v\""), t.data, t.len);
        limit_files(rows[i].most);
        get(s, "", rows[i].o);
        limit_files(0);
        EXPECT_ROW(s, i, rows[i].seen);
        clean();
    }
    /* in the middle of a large file */
    enum { LARGE = 3 << 20 };
    tar large = { 0 };
    char *zeros = calloc(1, LARGE);
    assert_non_null(zeros);
    tar_raw(&large, "large", '0', NULL, zeros, LARGE);
    tar_end(&large);
    static const char *const middle[] = { "unpacked: ./r_weights_c.partial/large: File too large",
                                          "kept: ./r_weights_c.tar.partial: File too large",
                                          "unpacked: ./r_weights_c.partial/large: File too large",
                                          "kept: ./r_weights_c.tar.partial: File too large" };
    for (int i = 0; i < 4; i++) {
        store_once(s, 200, NULL, large.data, large.len);
        limit_files(1000);
        (void)try_it(s, i & 1 ? "kept" : "unpacked", PATH,
                     &(tinkc_download_options){ .keep_archive = i & 1, .no_digests = i & 2 });
        limit_files(0);
        EXPECT_ROW(s, (size_t)i, middle[i]);
        clean();
    }
    free(zeros);
    free(large.data);
    (void)signal(SIGXFSZ, before);
    /* a folder in the place of the state */
    assert_int_equal(mkdir("r_weights_c.partial.state", 0777), 0);
    get(s, "", (tinkc_download_options){ 0 });
    EXPECT(s, "FILE \"./r_weights_c.partial.state: Is a directory\"; on the disk; "
              "r_weights_c.partial.state/");
    free(t.data);
    end(s);
}

/* ---- a disk of which one call fails ---- */

/* Every compression; an archive that is broken off between two files: nothing says where it could be taken up. */
TEST(compressed)
{
    enum { LEN = 300 * 1024 };
    scene *s = begin();
    static const char *const kinds[LEN(packed_tars)] = {
        "gzip: well; r_weights_c/; r_weights_c/a 1 = 1",
        "bzip2: well; r_weights_c/; r_weights_c/a 1 = 1",
        "xz: well; r_weights_c/; r_weights_c/a 1 = 1",
        "zstd: well; r_weights_c/; r_weights_c/a 1 = 1",
        "lz4: well; r_weights_c/; r_weights_c/a 1 = 1"
    };
    for (size_t i = 0; i < LEN(packed_tars); i++) {
        store_once(s, 200, NULL, packed_tars[i].data, packed_tars[i].len);
        (void)try_it(s, packed_tars[i].how, PATH, &(tinkc_download_options){ 0 });
        show_folder(s, ".");
        EXPECT_ROW(s, i, kinds[i]);
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
    assert_true(tkc_zstd_compress(t.data, t.len, &packed, scene_err(s)));
    tinkc_mock_answer cut = { .body = packed.data,
                              .body_len = packed.len,
                              .fault = TINKC_FAULT_RESET,
                              .fault_after = 200 * 1024 };
    assert_true(tinkc_mock_once(scene_mock(s), NULL, STORE, &cut, scene_err(s)));
    for (int k = 0; k < 2; k++)
        store_once(s, 404, NULL, "gone", 4);
    assert_false(try_it(s, "broken off", PATH, &(tinkc_download_options){ 0 }));
    assert_int_equal(unlink("r_weights_c.partial/noise"),
                     0); /* how much of it came is libarchive's choice */
    show_folder(s, ".");
    EXPECT(s,
           "broken off: HTTP 404: gone; r_weights_c.partial/; r_weights_c.partial/first 1 = 1; "
           "r_weights_c.partial.state 175 = "
           "{\"what\":\"tinker://r/weights/"
           "c\",\"etag\":\"\",\"total\":-1,\"offset\":0,\"files\":[{\"name\":\"first\",\"sha256\":"
           "\"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b\",\"size\":1}]}");
    store_once(s, 200, NULL, packed.data, packed.len);
    assert_true(try_it(s, "again", PATH, &(tinkc_download_options){ 0 }));
    tkc_buf_free(&packed);
    free(noise);
    free(t.data);
    end(s);
}

TEST(failing_calls)
{
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
    scene *s = begin();
    tar t = { 0 };
    usual_archive(&t);
    tinkc_mock_answer all = { .headers = PAIRS("ETag", "e"), .body = t.data, .body_len = t.len };
    assert_true(tinkc_mock_always(scene_mock(s), NULL, STORE, &all, scene_err(s)));
    answer_always(s, LINKS, 200, URLS("\"d/e/b\":\"https://files.test/store/x\""));
    size_t n = 0, n_refused = 0;
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
            fail_call(calls[call], nth);
            bool good = try_it(s, "first", rows[row].path, &rows[row].o);
            failed = call_has_failed();
            assert_true(good || failed); /* nothing else makes it fail */
            n_refused += !good;
            if (!good)
                assert_true(try_it(s, "again", rows[row].path, &rows[row].o));
            assert_true(access("r_weights_c", F_OK) == 0 || access("r_weights_c.tar", F_OK) == 0 ||
                        rows[row].o.flat);
            clean();
            assert_true(++n < 500);
        }
    }
    assert_in_range(n_refused, 40, n); /* there are such calls on every way */
    free(t.data);
    end(s);
}

/* ---- names, options, digests ---- */

TEST(names_and_options)
{
    static const struct {
        const char *url, *seen, *portable;
    } urls[] = {
        { "https://files.test/a/name.bin?x=1",
          "/a/name.bin?x=1; url: done; ./name.bin, 1 bytes; name.bin 6b86b2 1; on the disk; "
          "name.bin 1 = 1",
          "/a/name.bin?x=1; url: done; ./name.bin, 1 bytes; name.bin 6b86b2 1; on the disk; "
          "name.bin 1 = 1" },
        { "https://files.test/",
          "/; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1",
          "/; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1" },
        { "https://files.test",
          "/; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1",
          "/; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1" },
        { "https://files.test/a/..",
          "/a/..; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1",
          "/a/..; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1" },
        { "https://files.test/a/.",
          "/a/.; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1",
          "/a/.; url: done; ./download, 1 bytes; download 6b86b2 1; on the disk; download 1 = 1" },
        { "https://files.test/a%20b",
          "/a%20b; url: done; ./a_20b, 1 bytes; a_20b 6b86b2 1; on the disk; a_20b 1 = 1",
          "/a%20b; url: done; ./a_20b, 1 bytes; a_20b 6b86b2 1; on the disk; a_20b 1 = 1" },
        { "https://files.test/c:d",
          "/c:d; url: done; ./c:d, 1 bytes; c:d 6b86b2 1; on the disk; c:d 1 = 1",
          "/c:d; url: done; ./c_d, 1 bytes; c_d 6b86b2 1; on the disk; c_d 1 = 1" },
        { "ftp://files.test/x",
          "url: ARGUMENT \"URL: its scheme must be http or https\"; on the disk",
          "url: ARGUMENT \"URL: its scheme must be http or https\"; on the disk" },
        { "no address",
          "url: ARGUMENT \"URL: it has a space or a control character in it\"; on the disk",
          "url: ARGUMENT \"URL: it has a space or a control character in it\"; on the disk" },
    };
    scene *s = begin();
    tinkc_mock_always(scene_mock(s), NULL, "*", &(tinkc_mock_answer){ .body = "1" }, scene_err(s));
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        for (int portable = 0; portable < 2; portable++) {
            run(s, "url",
                tinkc_url_download(scene_client(s), urls[i].url,
                                   &(tinkc_download_options){ .portable_names = portable },
                                   scene_err(s)));
            EXPECT_ROW(s, i, portable ? urls[i].portable : urls[i].seen);
            clean();
        }
    int64_t n = 0;
    const struct {
        tinkc_download_options o;
        const char *seen;
    } bad[] = {
        { { .max_bytes = -1 }, "url: ARGUMENT \"max_bytes is negative\"; on the disk" },
        { { .write = count_all, .dir = "x" },
          "url: ARGUMENT \"write takes the bytes: dir, name, flat and replace have no meaning\"; "
          "on the disk" },
        { { .write = count_all, .name = "x" },
          "url: ARGUMENT \"write takes the bytes: dir, name, flat and replace have no meaning\"; "
          "on the disk" },
        { { .write = count_all, .flat = true },
          "url: ARGUMENT \"write takes the bytes: dir, name, flat and replace have no meaning\"; "
          "on the disk" },
        { { .write = count_all, .replace = true },
          "url: ARGUMENT \"write takes the bytes: dir, name, flat and replace have no meaning\"; "
          "on the disk" },
        { { .fd = 5, .dir = "x" },
          "url: ARGUMENT \"fd takes the bytes: dir, name, flat and replace have no meaning\"; on "
          "the disk" },
        { { .fd = -1 }, "url: ARGUMENT \"fd is negative\"; on the disk" },
        { { .fd = 5, .write = count_all },
          "url: ARGUMENT \"fd and write: give one of them\"; on the disk" },
        { { .reserved_int = 1 },
          "url: ARGUMENT \"download options: reserved must be zero\"; on the disk" },
        { { .reserved = { 1 } },
          "url: ARGUMENT \"download options: reserved must be zero\"; on the disk" },
        { { .reserved_bools = { true } },
          "url: ARGUMENT \"download options: reserved must be zero\"; on the disk" },
        { { .name = "" }, "url: ARGUMENT \"name is not the name of a file\"; on the disk" },
        { { .name = "." }, "url: ARGUMENT \"name is not the name of a file\"; on the disk" },
        { { .name = ".." }, "url: ARGUMENT \"name is not the name of a file\"; on the disk" },
        { { .name = "a/b" }, "url: ARGUMENT \"name is not the name of a file\"; on the disk" },
        { { .name = "a\n" }, "url: ARGUMENT \"name is not the name of a file\"; on the disk" },
        { { .fd = 999 }, "url: FILE \"descriptor 999: Bad file descriptor\"; on the disk" },
        { { .write = count_all, .write_user = &n }, "/x; url: done; , 1 bytes; on the disk" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        run(s, "url",
            tinkc_url_download(scene_client(s), "https://files.test/x", &bad[i].o, scene_err(s)));
        EXPECT_ROW(s, i, bad[i].seen);
        clean();
    }
    /* external weights have no archive */
    static const tinkc_download_options external[] = { { .keep_archive = true },
                                                       { .write = count_all, .write_user = NULL },
                                                       { .fd = 1 } };
    for (size_t i = 0; i < 3; i++)
        run(s, "external",
            tinkc_checkpoint_download(scene_client(s), "tinker://r/external_weights/c",
                                      &external[i], scene_err(s)));
    run(s, "path", tinkc_checkpoint_download(scene_client(s), "x", NULL, scene_err(s)));
    EXPECT(s, "external: ARGUMENT \"external weights are separate files: there is no archive to "
              "keep or hand on\"; on the disk; external: ARGUMENT \"external weights are separate "
              "files: there is no archive to keep or hand on\"; on the disk; external: ARGUMENT "
              "\"external weights are separate files: there is no archive to keep or hand on\"; on "
              "the disk; path: PATH \"not a tinker path (tinker://RUN/weights/NAME or "
              "tinker://RUN/sampler_weights/NAME): x\"; on the disk");
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
    EXPECT(s, "1 6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b; 0 ; 0; "
              "TINKC_E_FILE: none: No such file or directory; 0; TINKC_E_FILE: .: not a file; 0; "
              "TINKC_E_ARGUMENT: path is NULL; 0; TINKC_E_ARGUMENT: out is NULL");
    end(s);
}

TEST(external_files)
{
    static const char *const answers[] = {
        URLS("\"a\":\"https://files.test/store/x\",\"d/e/b\":\"https://files.test/store/y\""),
        URLS(""),
        URLS("\"../a\":\"https://files.test/store/x\""),
        URLS("\"a\":\"no address\""),
    };
    scene *s = begin();
    for (size_t i = 0; i < 4; i++) {
        answer(s, LINKS, 200, answers[i]);
        store_once(s, 200, NULL, "12345", 5);
        answer(s, "/store/y", 200, "678");
        run(s, "files",
            tinkc_checkpoint_download(scene_client(s), "tinker://r/external_weights/c", NULL,
                                      scene_err(s)));
        static const char *const seen[] = {
            "links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 bytes; a 599447 5; "
            "d/e/b cebe3d 3; on the disk; r_external_weights_c/; r_external_weights_c/a 5 = 12345; "
            "r_external_weights_c/d/; r_external_weights_c/d/e/; r_external_weights_c/d/e/b 3 = "
            "678",
            "links; files: BAD_RESPONSE \"external weights: the service names no files\"; on the "
            "disk",
            "links; files: UNSAFE_ARCHIVE \"external weights: unsafe name '../a'\"; on the disk",
            "links; files: BAD_RESPONSE 200 \"the address of \"a\" is not absolute\"; on the disk"
        };
        EXPECT_ROW(s, i, seen[i]);
        clean();
        use_up(s, "https://files.test/store/x");
        use_up(s, "https://files.test/store/y");
    }
    static const char *const limits[] = {
        "links; /store/x; files: BAD_RESPONSE \"larger than max_bytes\"; on the disk",
        "links; /store/x; files: BAD_RESPONSE \"larger than max_bytes\"; on the disk",
        "links; /store/x; /store/y; files: BAD_RESPONSE \"larger than max_bytes\"; on the disk",
        "links; /store/x; /store/y; files: BAD_RESPONSE \"larger than max_bytes\"; on the disk",
        "links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 bytes; a 599447 5; "
        "d/e/b cebe3d 3; on the disk; r_external_weights_c/; r_external_weights_c/a 5 = 12345; "
        "r_external_weights_c/d/; r_external_weights_c/d/e/; r_external_weights_c/d/e/b 3 = 678"
    };
    for (int64_t max = 4; max < 9; max++) {
        answer(s, LINKS, 200, answers[0]);
        store_once(s, 200, NULL, "12345", 5);
        answer_always(s, "/store/y", 200, "678");
        run(s, "files",
            tinkc_checkpoint_download(scene_client(s), "tinker://r/external_weights/c",
                                      &(tinkc_download_options){ .max_bytes = max }, scene_err(s)));
        EXPECT_ROW(s, (size_t)(max - 4), limits[max - 4]);
        use_up(s, "https://files.test/store/x");
        clean();
    }
    /* the address of the last file has expired */
    answer_always(s, LINKS, 200, answers[0]);
    store_once(s, 200, NULL, "12345", 5);
    answer(s, "/store/y", 403, "expired");
    run(s, "files",
        tinkc_checkpoint_download(scene_client(s), "tinker://r/external_weights/c", NULL,
                                  scene_err(s)));
    EXPECT(s, "links; /store/x; /store/y; +100 links; /store/y; files: done; "
              "./r_external_weights_c, 8 bytes; a 599447 5; d/e/b cebe3d 3; on the disk; "
              "r_external_weights_c/; r_external_weights_c/a 5 = 12345; r_external_weights_c/d/; "
              "r_external_weights_c/d/e/; r_external_weights_c/d/e/b 3 = 678");
    clean();
    /* a file that is no longer among them */
    answer(s, LINKS, 200, answers[0]);
    answer(s, LINKS, 200, URLS("\"d/e/b\":\"https://files.test/store/y\""));
    store_once(s, 403, NULL, "expired", 7);
    run(s, "files",
        tinkc_checkpoint_download(scene_client(s), "tinker://r/external_weights/c", NULL,
                                  scene_err(s)));
    EXPECT(s, "links; /store/x; +100 links; files: NOT_FOUND \"a: no longer a file of "
              "tinker://r/external_weights/c\"; on the disk");
    clean();
    /* an address that has expired */
    static const struct {
        int32_t status;
        const char *once, *thrice;
    } expired[] = {
        { 400,
          "links; /store/x; +100 links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 "
          "bytes; a 599447 5; d/e/b cebe3d 3; on the disk; r_external_weights_c/; "
          "r_external_weights_c/a 5 = 12345; r_external_weights_c/d/; r_external_weights_c/d/e/; "
          "r_external_weights_c/d/e/b 3 = 678",
          "links; /store/x; +100 links; /store/x; +200 links; /store/x; files: BAD_REQUEST 400 "
          "\"HTTP 400: expired\"; on the disk" },
        { 401,
          "links; /store/x; +100 links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 "
          "bytes; a 599447 5; d/e/b cebe3d 3; on the disk; r_external_weights_c/; "
          "r_external_weights_c/a 5 = 12345; r_external_weights_c/d/; r_external_weights_c/d/e/; "
          "r_external_weights_c/d/e/b 3 = 678",
          "links; /store/x; +100 links; /store/x; +200 links; /store/x; files: AUTH 401 \"HTTP "
          "401: expired\"; on the disk" },
        { 403,
          "links; /store/x; +100 links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 "
          "bytes; a 599447 5; d/e/b cebe3d 3; on the disk; r_external_weights_c/; "
          "r_external_weights_c/a 5 = 12345; r_external_weights_c/d/; r_external_weights_c/d/e/; "
          "r_external_weights_c/d/e/b 3 = 678",
          "links; /store/x; +100 links; /store/x; +200 links; /store/x; files: FORBIDDEN 403 "
          "\"HTTP 403: expired\"; on the disk" },
        { 404,
          "links; /store/x; +100 links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 "
          "bytes; a 599447 5; d/e/b cebe3d 3; on the disk; r_external_weights_c/; "
          "r_external_weights_c/a 5 = 12345; r_external_weights_c/d/; r_external_weights_c/d/e/; "
          "r_external_weights_c/d/e/b 3 = 678",
          "links; /store/x; +100 links; /store/x; +200 links; /store/x; files: NOT_FOUND 404 "
          "\"HTTP 404: expired\"; on the disk" },
        { 410,
          "links; /store/x; +100 links; /store/x; /store/y; files: done; ./r_external_weights_c, 8 "
          "bytes; a 599447 5; d/e/b cebe3d 3; on the disk; r_external_weights_c/; "
          "r_external_weights_c/a 5 = 12345; r_external_weights_c/d/; r_external_weights_c/d/e/; "
          "r_external_weights_c/d/e/b 3 = 678",
          "links; /store/x; +100 links; /store/x; +200 links; /store/x; files: GONE 410 \"HTTP "
          "410: expired\"; on the disk" },
        { 402, "links; /store/x; files: BILLING 402 \"HTTP 402: expired\"; on the disk",
          "links; /store/x; files: BILLING 402 \"HTTP 402: expired\"; on the disk" }
    };
    for (size_t i = 0; i < 6; i++)
        for (int twice = 0; twice < 2; twice++) {
            answer_always(s, LINKS, 200, answers[0]);
            for (int k = 0; k <= 2 * twice; k++)
                store_once(s, expired[i].status, NULL, "expired", 7);
            answer_always(s, STORE, 200, "12345");
            run(s, "files",
                tinkc_checkpoint_download(scene_client(s), "tinker://r/external_weights/c", NULL,
                                          scene_err(s)));
            EXPECT_ROW(s, i, twice ? expired[i].thrice : expired[i].once);
            use_up(s, "https://files.test/store/x");
            clean();
        }
    end(s);
}

/* From its first moment a download fetches, whatever it is still asking for. */
TEST(the_stage_of_a_download)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    tinkc_mock_always(mock, NULL, CONFIG, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &err);
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
