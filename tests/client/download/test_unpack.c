/* test_unpack.c - archives of the mock, unpacked: which files come out where, which archives are refused. */
#include "support/client/download_scene.h"

#include <sys/stat.h>
#include <unistd.h>

#include "codec/zstd.h"
#include "support/client/packed_tars.h"

#define ASKED "archive; /x; "
#define ALL   "[a.json={} deep/[empty/[] er/[model.bin:3000]] end:0]"

static char big[3000];

static tar usual_archive(void)
{
    tar t = { 0 };
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 7 + i / 251);
    tar_raw(&t, "./", '5', NULL, NULL, 0);
    tar_raw(&t, "a.json", '0', NULL, "{}", 2);
    tar_raw(&t, "./deep//er/model.bin", '0', NULL, big, sizeof big);
    tar_raw(&t, "deep/empty/", '5', NULL, NULL, 0);
    tar_raw(&t, "end", '0', NULL, NULL, 0);
    tar_end(&t);
    return t;
}

/* Fetches this archive and compares; the folder is empty again afterwards. */
static void expect_unpacked(scene *s, size_t row, const tar *t, tinkc_download_options o, const char *wanted)
{
    char all[4000];
    (void)snprintf(all, sizeof all, ASKED "%s", wanted);
    serve_once(s, 200, NULL, t->data, t->len);
    fetch(s, o);
    EXPECT_ROW(s, row, all);
    clean_folder();
}

TEST(options_name_the_place_of_the_files)
{
    static const struct {
        tinkc_download_options o;
        const char *wanted;
    } rows[] = {
        { { 0 }, "./r_weights_c: 7168 bytes, 3 files; r_weights_c/" ALL },
        { { .name = "mine" }, "./mine: 7168 bytes, 3 files; mine/" ALL },
        { { .dir = "x/y", .portable_names = true },
          "x/y/r_weights_c: 7168 bytes, 3 files; x/[y/[r_weights_c/" ALL "]]" },
        { { .flat = true }, ".: 7168 bytes, 3 files; a.json={} deep/[empty/[] er/[model.bin:3000]] end:0" },
        { { .keep_archive = true }, "./r_weights_c.tar: 7168 bytes, 1 file; r_weights_c.tar:7168" },
        { { .keep_archive = true, .name = "n", .no_digests = true }, "./n: 7168 bytes, 1 file; n:7168" },
        { { .no_digests = true }, "./r_weights_c: 7168 bytes, 3 files; r_weights_c/" ALL },
        { { .max_bytes = 7168 }, "./r_weights_c: 7168 bytes, 3 files; r_weights_c/" ALL },
    };
    scene *s = download_begin();
    tar t = usual_archive();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[400];
        (void)snprintf(wanted, sizeof wanted, "done; %s", rows[i].wanted);
        expect_unpacked(s, i, &t, rows[i].o, wanted);
    }
    free(t.data);
    download_end(s);
}

/* 7168 bytes of archive, 3002 bytes of files. */
TEST(more_than_max_bytes_is_refused_and_leaves_nothing)
{
    static const int64_t limits[] = { 7167, 3002, 3001 };
    scene *s = download_begin();
    tar t = usual_archive();
    for (size_t i = 0; i < LEN(limits); i++)
        expect_unpacked(s, i, &t, (tinkc_download_options){ .max_bytes = limits[i] },
                        "BAD_RESPONSE \"larger than max_bytes\"; nothing on the disk");
    free(t.data);
    download_end(s);
}

#define PARTIAL "r_weights_c.partial/" ALL " r_weights_c.partial.state{ -1 0}"

TEST(what_is_there_already_is_replaced_only_when_asked)
{
    static const struct {
        bool flat, replace;
        const char *wanted;
    } rows[] = {
        { false, false, "EXISTS \"./r_weights_c: already exists\"; a.json=old too r_weights_c/[old=old]" },
        { false, true, ASKED "done; ./r_weights_c: 7168 bytes, 3 files; a.json=old too r_weights_c/" ALL },
        { true, false, ASKED "EXISTS \"./a.json: already exists\"; a.json=old too r_weights_c/[old=old] " PARTIAL },
        { true, true,
          ASKED "done; .: 7168 bytes, 3 files; a.json={} deep/[empty/[] er/[model.bin:3000]] end:0 "
                "r_weights_c/[old=old]" },
    };
    scene *s = download_begin();
    tar t = usual_archive();
    for (size_t i = 0; i < LEN(rows); i++) {
        assert_int_equal(mkdir("r_weights_c", 0777), 0);
        put_file("r_weights_c/old", "old");
        put_file("a.json", "old too");
        serve_once(s, 200, NULL, t.data, t.len);
        fetch(s, (tinkc_download_options){ .flat = rows[i].flat, .replace = rows[i].replace });
        EXPECT_ROW(s, i, rows[i].wanted);
        clean_folder();
        use_up(s, URL);
    }
    free(t.data);
    download_end(s);
}

TEST(no_file_is_moved_when_the_last_of_them_is_in_the_way)
{
    scene *s = download_begin();
    tar t = usual_archive();
    put_file("end", "old");
    serve_once(s, 200, NULL, t.data, t.len);
    fetch(s, (tinkc_download_options){ .flat = true });
    EXPECT(s, ASKED "EXISTS \"./end: already exists\"; end=old " PARTIAL);
    free(t.data);
    download_end(s);
}

TEST(a_file_where_a_folder_is_needed_is_an_error)
{
    scene *s = download_begin();
    put_file("dir", "in the way");
    fetch(s, (tinkc_download_options){ .dir = "dir/x" });
    EXPECT(s, "FILE \"dir: File exists\"; dir=in the way");
    download_end(s);
}

static bool count_all(void *user, const void *data, size_t len)
{
    (void)data;
    return (*(int64_t *)user += (int64_t)len) >= 0;
}

TEST(a_receiver_gets_the_archive_itself_and_may_end_the_download)
{
    scene *s = download_begin();
    tar t = usual_archive();
    int64_t n = 0, no_more = INT64_MIN;
    expect_unpacked(s, 0, &t, (tinkc_download_options){ .write = count_all, .write_user = &n },
                    "done; : 7168 bytes, 0 files; nothing on the disk");
    assert_int_equal(n, t.len);
    expect_unpacked(s, 1, &t, (tinkc_download_options){ .write = count_all, .write_user = &no_more },
                    "CANCELLED \"the receiver ended the download\"; nothing on the disk");
    free(t.data);
    download_end(s);
}

TEST(bytes_behind_the_end_of_an_archive_are_not_unpacked)
{
    scene *s = download_begin();
    tar t = usual_archive();
    t.data = realloc(t.data, t.len + 5000);
    memset(t.data + t.len, 'x', 5000);
    t.len += 5000;
    expect_unpacked(s, 0, &t, (tinkc_download_options){ 0 },
                    "done; ./r_weights_c: 12168 bytes, 3 files; r_weights_c/" ALL);
    free(t.data);
    download_end(s);
}

/* ---- entries ---- */

/* An archive of a file "first", this entry, and a file "last". */
static tar archive_with(const char *name, char type, const char *link)
{
    tar t = { 0 };
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, name, type, link, NULL, 0);
    tar_raw(&t, "last", '0', NULL, "2", 1);
    tar_end(&t);
    return t;
}

TEST(an_unsafe_entry_refuses_the_whole_archive)
{
    static const char outside[] = "a path that leads outside";
    static const struct {
        const char *name;
        char type;
        const char *cause;
    } rows[] = {
        { "../x", '0', outside },
        { "a/../b", '0', outside },
        { "a/../../evil", '0', outside },
        { "a/..", '0', outside },
        { "..", '5', outside },
        { "/abs", '0', outside },
        { "/etc", '5', outside },
        { "a\\b", '0', outside },
        { "a\nb", '0', outside },
        { "a\x1f", '0', outside },
        { "a\x7f", '0', outside },
        { ".", '0', "a file without a name" },
        { "l", '1', "a link: l" },
        { "l", '2', "a link: l" },
        { "d", '3', "neither file nor folder: d" },
        { "d", '4', "neither file nor folder: d" },
        { "d", '6', "neither file nor folder: d" },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[200];
        tar t = archive_with(rows[i].name, rows[i].type, rows[i].name[0] == 'l' ? "a" : NULL);
        (void)snprintf(wanted, sizeof wanted, "UNSAFE_ARCHIVE \"archive: %s\"; nothing on the disk", rows[i].cause);
        expect_unpacked(s, i, &t, (tinkc_download_options){ 0 }, wanted);
        free(t.data);
    }
    download_end(s);
}

/* "/" is the folder itself, as SkyRL packs it. */
TEST(a_safe_entry_lies_below_the_folder)
{
    static const struct {
        const char *name;
        char type;
        int files;
        const char *on_disk;
    } rows[] = {
        { "/", '5', 2, "[first=1 last=2]" },
        { "/", '0', 2, "[first=1 last=2]" },
        { "./", '5', 2, "[first=1 last=2]" },
        { ".", '5', 2, "[first=1 last=2]" },
        { "./.", '5', 2, "[first=1 last=2]" },
        { "...", '0', 3, "[...:0 first=1 last=2]" },
        { "a//./b/", '5', 2, "[a/[b/[]] first=1 last=2]" },
        { "one/two/three", '0', 3, "[first=1 last=2 one/[two/[three:0]]]" },
        { "e", '5', 2, "[e/[] first=1 last=2]" },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[200];
        tar t = archive_with(rows[i].name, rows[i].type, NULL);
        (void)snprintf(wanted, sizeof wanted, "done; ./r_weights_c: 3584 bytes, %d files; r_weights_c/%s",
                       rows[i].files, rows[i].on_disk);
        expect_unpacked(s, i, &t, (tinkc_download_options){ 0 }, wanted);
        free(t.data);
    }
    download_end(s);
}

TEST(names_are_utf8)
{
    scene *s = download_begin();
    tar t = { 0 };
    tar_raw(&t, "PaxHeader", 'x', NULL, "15 path=\xc3\xa4.bin\n", 15);
    tar_raw(&t, "x", '0', NULL, "1", 1);
    tar_end(&t);
    expect_unpacked(s, 0, &t, (tinkc_download_options){ 0 },
                    "done; ./r_weights_c: 3072 bytes, 1 file; r_weights_c/[ä.bin=1]");
    free(t.data);
    download_end(s);
}

/* A file "a", another one of this name, and a file in a folder of this name. */
static tar archive_that_contradicts_itself(void)
{
    tar t = { 0 };
    tar_raw(&t, "a", '0', NULL, "1", 1);
    tar_raw(&t, "a", '0', NULL, "two", 3);
    tar_raw(&t, "a/b", '0', NULL, "2", 1);
    tar_end(&t);
    return t;
}

TEST(the_later_of_two_files_of_one_name_counts)
{
    scene *s = download_begin();
    tar t = archive_that_contradicts_itself();
    expect_unpacked(s, 0, &t, (tinkc_download_options){ 0 },
                    "FILE \"./r_weights_c.partial/a/b: Not a directory\"; r_weights_c.partial/[a=two] "
                    "r_weights_c.partial.state{ -1 2048 a:6b86b2 a:3fc4cc}");
    free(t.data);
    download_end(s);
}

TEST(a_damaged_archive_is_refused_and_leaves_nothing)
{
    static const struct {
        size_t len; /* 0 = all of it, with a damaged header */
        const char *cause;
    } rows[] = { { 100, "Unrecognized archive format" },
                 { 700, "Truncated input file (needed 511 bytes, only 187 available)" },
                 { 512 * 3, "Truncated tar archive" },
                 { 0, "Damaged tar archive" } };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[200];
        tar t = archive_that_contradicts_itself();
        if (rows[i].len)
            t.len = rows[i].len;
        else
            memset(t.data + 1024, 'x', 400);
        (void)snprintf(wanted, sizeof wanted, "BAD_RESPONSE \"archive: %s\"; nothing on the disk", rows[i].cause);
        expect_unpacked(s, i, &t, (tinkc_download_options){ 0 }, wanted);
        free(t.data);
    }
    download_end(s);
}

/* ---- sparse files ---- */

/* Between the pieces and behind the last one. */
TEST(holes_are_filled_with_zeros)
{
    static const unsigned pieces[][2] = { { 5000, 3 }, { 9000, 2 }, { 10000, 0 } };
    static const unsigned whole[][2] = { { 0, 5 }, { 4096 + 5, 0 } };
    static const char done[] = "done; ./r_weights_c: 4096 bytes, 3 files; r_weights_c/[holes:10000 "
                               "last=1 one:4101]";
    static const struct {
        tinkc_download_options o;
        const char *wanted;
    } rows[] = {
        { { 0 }, done },
        { { .no_digests = true }, done },
        { { .max_bytes = 10000 + 4101 + 1 }, done },
        { { .max_bytes = 10000 + 4101 },
          "BAD_RESPONSE \"archive: unpacks to more than max_bytes\"; nothing on the disk" },
    };
    scene *s = download_begin();
    tar t = { 0 };
    tar_sparse(&t, "holes", pieces, 3, 10000, "abcde", 5);
    tar_sparse(&t, "one", whole, 2, 4096 + 5, "vwxyz", 5);
    tar_raw(&t, "last", '0', NULL, "1", 1);
    tar_end(&t);
    for (size_t i = 0; i < LEN(rows); i++)
        expect_unpacked(s, i, &t, rows[i].o, rows[i].wanted);
    serve_once(s, 200, NULL, t.data, t.len);
    assert_true(fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ 0 }));
    char hex[65]; /* 5000 zeros, abc, 3997 zeros, de, 998 zeros */
    assert_true(tinkc_file_sha256("r_weights_c/holes", hex, NULL));
    assert_memory_equal(hex, "b96f3d", 6);
    free(t.data);
    download_end(s);
}

TEST(pieces_that_overlap_are_refused)
{
    static const unsigned back[][2] = { { 5000, 3 }, { 100, 2 }, { 10000, 0 } };
    scene *s = download_begin();
    tar t = { 0 };
    tar_sparse(&t, "holes", back, 3, 10000, "abcde", 5);
    tar_end(&t);
    expect_unpacked(s, 0, &t, (tinkc_download_options){ 0 },
                    "BAD_RESPONSE \"archive: its pieces overlap\"; nothing on the disk");
    free(t.data);
    download_end(s);
}

/* Before they are written: one file with too many, and two that have too many together. */
TEST(holes_of_more_than_256_MiB_are_refused)
{
    enum { MOST = 256 << 20 };
    scene *s = download_begin();
    for (unsigned first = 0; first <= 5000; first += 5000) {
        const unsigned before[][2] = { { first, 3 } }, far[][2] = { { MOST - first + 1, 2 } };
        tar t = { 0 };
        tar_sparse(&t, "a", before, 1, first + 3, "abc", 3);
        tar_sparse(&t, "b", far, 1, MOST - first + 3, "de", 2);
        tar_end(&t);
        expect_unpacked(s, first > 0, &t, (tinkc_download_options){ 0 },
                        "UNSAFE_ARCHIVE \"archive: sparse files with holes of more than 256 MiB; "
                        "max_bytes allows more\"; nothing on the disk");
        /* with a limit that the first file uses up */
        serve_once(s, 200, NULL, t.data, t.len);
        (void)fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ .max_bytes = first + 3 });
        EXPECT_ROW(s, first > 0, first ? "archive: unpacks to more than max_bytes" : "larger than max_bytes");
        free(t.data);
    }
    download_end(s);
}

/* ---- compressed ---- */

TEST(every_compression_is_unpacked)
{
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(packed_tars); i++) {
        serve_once(s, 200, NULL, packed_tars[i].data, packed_tars[i].len);
        assert_true(fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ 0 }));
        show_folder(s);
        EXPECT_ROW(s, i, "r_weights_c/[a=1]");
        clean_folder();
    }
    download_end(s);
}

/* A compressed archive that breaks off between two files: nothing says where it could be resumed. */
TEST(a_compressed_archive_begins_again)
{
    enum { NOISE = 300 * 1024 };
    scene *s = download_begin();
    char *noise = malloc(NOISE);
    assert_non_null(noise);
    uint32_t x = 1;
    for (size_t i = 0; i < NOISE; i++)
        noise[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
    tar t = { 0 };
    tkc_buf packed;
    tkc_buf_init(&packed, NULL, TKC_BUF_NO_MAX);
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, "noise", '0', NULL, noise, NOISE);
    tar_end(&t);
    assert_true(tkc_zstd_compress(t.data, t.len, &packed, scene_err(s)));
    serve_cut(s, 200, NULL, packed.data, packed.len, 200 * 1024);
    serve_gone(s, 2);
    assert_false(fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ 0 }));
    assert_int_equal(unlink("r_weights_c.partial/noise"), 0); /* how much came is libarchive's choice */
    show_folder(s);
    EXPECT(s, "HTTP 404: gone; r_weights_c.partial/[first=1] r_weights_c.partial.state{ -1 0 "
              "first:6b86b2}");
    serve_once(s, 200, NULL, packed.data, packed.len);
    assert_true(fetch_quietly(s, CHECKPOINT, (tinkc_download_options){ 0 }));
    tkc_buf_free(&packed);
    free(noise);
    free(t.data);
    download_end(s);
}
