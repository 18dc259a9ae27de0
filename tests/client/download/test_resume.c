/* test_resume.c - what a download does with the head of an answer, with a connection that breaks, and with what an earlier run has
 * left on the disk. */
#include "support/client/download_scene.h"

#include <sys/stat.h>
#include <unistd.h>

#define TEN        "0123456789"
#define ALL_OF_TEN "done; ./x: 10 bytes, 1 file; x=" TEN

typedef struct head {
    int32_t status;
    const char *headers[5];
    const char *body;
    int64_t cut_after; /* 0 = complete */
} head;

typedef struct head_row {
    head heads[3]; /* of the answers, one after the other */
    const char *wanted;
} head_row;

static void expect_rows(const head_row *rows, size_t n)
{
    scene *s = download_begin();
    for (size_t i = 0; i < n; i++) {
        for (const head *h = rows[i].heads; h < rows[i].heads + 3 && h->status; h++)
            serve_cut(s, h->status, h->headers, h->body, strlen(h->body), h->cut_after);
        fetch_url(s, URL "?sig=1", (tinkc_download_options){ 0 });
        EXPECT_ROW(s, i, rows[i].wanted);
        clean_folder();
    }
    download_end(s);
}

TEST(the_body_has_the_length_that_its_head_states)
{
    static const head_row rows[] = {
        { { { 200, { "Content-Length", "10" }, TEN, 0 } }, "/x?sig=1; " ALL_OF_TEN },
        { { { 200, { "Content-Length", "0" }, "", 0 } }, "/x?sig=1; done; ./x: 0 bytes, 1 file; x:0" },
        { { { 200, { "Content-Length", "9" }, TEN, 0 } },
          "/x?sig=1; BAD_RESPONSE \"more bytes came than the length said\"; x.partial:0" },
        { { { 200, { "Content-Length", "0" }, TEN, 0 } },
          "/x?sig=1; BAD_RESPONSE \"more bytes came than the length said\"; x.partial:0" },
        { { { 200, { "Content-Length", "x" }, TEN, 0 } },
          "/x?sig=1; BAD_RESPONSE \"the length is not a number\"; nothing on the disk" },
        { { { 200, { "Content-Length", "-1" }, TEN, 0 } },
          "/x?sig=1; BAD_RESPONSE \"the length is not a number\"; nothing on the disk" },
        /* too short: the rest is fetched */
        { { { 200, { "Content-Length", "11" }, TEN, 0 }, { 206, { "Content-Range", "bytes 10-10/11" }, "A", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=10-}; done; ./x: 11 bytes, 1 file; x=" TEN "A" },
    };
    expect_rows(rows, LEN(rows));
}

TEST(a_part_is_accepted_only_where_it_was_asked_for)
{
    static const char *const ranges[] = { "bytes 1-9/10", "items 0-9/10", "bytes 0-9",
                                          "bytes x-9/10", "bytes 0/10-9", NULL };
    static const head_row whole[] = {
        { { { 206, { "Content-Range", "bytes 0-9/10" }, TEN, 0 } }, "/x?sig=1; " ALL_OF_TEN },
        { { { 206, { "Content-Range", "bytes 0-9/*" }, TEN, 0 } }, "/x?sig=1; " ALL_OF_TEN },
    };
    expect_rows(whole, LEN(whole));
    for (size_t i = 0; i < LEN(ranges); i++) {
        const head_row refused = { { { 206, { ranges[i] ? "Content-Range" : NULL, ranges[i] }, TEN, 0 } },
                                   "/x?sig=1; BAD_RESPONSE \"the server sent another part than asked for\"; nothing on "
                                   "the disk" };
        expect_rows(&refused, 1);
    }
}

/* The mark of the first answer, if it is a strong one, says that it is still the same file. */
TEST(a_broken_connection_is_resumed_if_the_file_is_still_the_same)
{
    static const head_row rows[] = {
        { { { 200, { "ETag", "\"a\"" }, TEN, 4 },
            { 206, { "Content-Range", "bytes 4-9/10", "ETag", "\"a\"" }, "456789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-} {If-Range: \"a\"}; " ALL_OF_TEN },
        { { { 200, { "ETag", "\"a\"" }, TEN, 1 },
            { 206, { "Content-Range", "bytes 1-9/10", "ETag", "\"a\"" }, "123456789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=1-} {If-Range: \"a\"}; " ALL_OF_TEN },
        { { { 200, { "ETag", "W/\"a\"" }, TEN, 4 }, { 206, { "Content-Range", "bytes 4-9/10" }, "456789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; " ALL_OF_TEN },
        { { { 200, { NULL }, TEN, 4 }, { 206, { "Content-Range", "bytes 4-10/11" }, "456789A", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; done; ./x: 11 bytes, 1 file; x=" TEN "A" },
        /* all of it again */
        { { { 200, { NULL }, TEN, 4 }, { 200, { NULL }, TEN, 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; done; ./x: 14 bytes, 1 file; x=" TEN },
        { { { 200, { NULL }, TEN, 4 },
            { 200, { NULL }, TEN, 2 },
            { 206, { "Content-Range", "bytes 4-9/10" }, "456789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; +200 /x?sig=1 {Range: bytes=4-}; done; ./x: "
          "12 "
          "bytes, 1 file; x=" TEN },
        /* another mark, another part, another length, no part */
        { { { 200, { "ETag", "\"a\"" }, TEN, 4 },
            { 206, { "Content-Range", "bytes 4-9/10", "ETag", "\"b\"" }, "456789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-} {If-Range: \"a\"}; BAD_RESPONSE \"the file "
          "has "
          "changed since the download began\"; x.partial=0123 x.partial.state{\"a\" -1 0}" },
        { { { 200, { NULL }, TEN, 4 }, { 206, { "Content-Range", "bytes 5-9/10" }, "56789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; BAD_RESPONSE \"the server sent another part "
          "than "
          "asked for\"; x.partial=0123 x.partial.state{ -1 0}" },
        { { { 200, { NULL }, TEN, 4 },
            { 206, { "Content-Range", "bytes 4-9/10" }, "456", 1 },
            { 206, { "Content-Range", "bytes 5-9/0" }, "56789", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; +100 /x?sig=1 {Range: bytes=5-}; "
          "BAD_RESPONSE "
          "\"the file has changed since the download began\"; x.partial=01234 x.partial.state{ -1 "
          "0}" },
        { { { 200, { NULL }, TEN, 4 }, { 416, { NULL }, "no", 0 } },
          "/x?sig=1; +100 /x?sig=1 {Range: bytes=4-}; HTTP 416 \"HTTP 416: no\"; x.partial=0123 "
          "x.partial.state{ -1 0}" },
    };
    expect_rows(rows, LEN(rows));
}

TEST(a_refusal_ends_a_download_and_a_busy_server_delays_it)
{
    static const head_row rows[] = {
        { { { 404, { NULL }, "gone", 0 } }, "/x?sig=1; NOT_FOUND 404 \"HTTP 404: gone\"; nothing on the disk" },
        { { { 429, { "Retry-After", "2" }, "busy", 0 },
            { 503, { "Retry-After", "60" }, "busy", 0 }, /* at most 5 s */
            { 200, { NULL }, TEN, 0 } },
          "/x?sig=1; +2000 /x?sig=1; +5000 /x?sig=1; " ALL_OF_TEN },
    };
    expect_rows(rows, LEN(rows));
}

TEST(max_bytes_counts_what_comes_and_what_is_announced)
{
    static const struct {
        int64_t max;
        const char *length, *wanted;
    } rows[] = {
        { 9, NULL, "/x; BAD_RESPONSE \"larger than max_bytes\"; x.partial:0" },
        { 9, "10", "/x; BAD_RESPONSE \"larger than max_bytes: 10 bytes\"; nothing on the disk" },
        { 10, NULL, "/x; " ALL_OF_TEN },
        { 10, "10", "/x; " ALL_OF_TEN },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        serve_once(s, 200, rows[i].length ? PAIRS("Content-Length", rows[i].length) : NULL, TEN, 10);
        fetch_url(s, URL, (tinkc_download_options){ .max_bytes = rows[i].max });
        EXPECT_ROW(s, i, rows[i].wanted);
        clean_folder();
    }
    download_end(s);
}

/* ---- what an earlier run has left ---- */

/* Fetches URL with this on the disk. It serves the part from byte 4 on if `resumed`, else all; then all. */
static void expect_with(scene *s, size_t row, const char *partial, const char *state, bool no_resume, bool resumed,
                        const char *wanted)
{
    put_file("x.partial", partial);
    if (state)
        put_file("x.partial.state", state);
    if (resumed)
        serve_once(s, 206, PAIRS("ETag", "e", "Content-Range", "bytes 4-9/10"), "456789", 6);
    serve_once(s, 200, PAIRS("ETag", "e"), TEN, 10);
    fetch_url(s, URL "?sig=2", (tinkc_download_options){ .no_resume = no_resume });
    EXPECT_ROW(s, row, wanted);
    clean_folder();
    use_up(s, URL);
}

/* Not its query, which changes with each address. */
TEST(a_file_is_resumed_if_its_state_names_the_address_and_a_mark_or_a_length)
{
    static const struct {
        const char *state, *if_range;
    } rows[] = {
        { STATE(URL, "e", "10", "0", ""), " {If-Range: e}" },
        { STATE(URL, "", "10", "9", ""), "" },
        { STATE(URL, "e", "-1", "0", ""), " {If-Range: e}" },
        { "{\"what\":\"" URL "\",\"more\":[1],\"etag\":\"e\",\"total\":10}", " {If-Range: e}" },
        { "{\"what\":\"" URL "\",\"etag\":\"e\"}", " {If-Range: e}" },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[200];
        (void)snprintf(wanted, sizeof wanted, "/x?sig=2 {Range: bytes=4-}%s; done; ./x: 6 bytes, 1 file; x=" TEN,
                       rows[i].if_range);
        expect_with(s, i, "0123", rows[i].state, false, true, wanted);
    }
    download_end(s);
}

TEST(a_file_that_is_complete_is_not_fetched_again)
{
    scene *s = download_begin();
    expect_with(s, 0, TEN, STATE(URL, "e", "10", "0", ""), false, false, "done; ./x: 0 bytes, 1 file; x=" TEN);
    expect_with(s, 1, "0", STATE(URL, "e", "1", "0", ""), false, false, "done; ./x: 0 bytes, 1 file; x=0");
    download_end(s);
}

TEST(a_file_begins_again_if_what_is_there_cannot_be_its_beginning)
{
    static const struct {
        const char *partial, *state;
        bool no_resume;
    } rows[] = {
        { "0123", STATE(URL, "e", "10", "0", ""), true },
        { "0123", STATE(URL, "", "-1", "0", ""), false },
        { "0123", STATE("https://files.test/y", "e", "10", "0", ""), false },
        { TEN "A", STATE(URL, "e", "10", "0", ""), false },
        { "", STATE(URL, "e", "10", "0", ""), false },
        { "", STATE(URL, "", "0", "0", ""), false },
        { "0123", "{\"what\":5}", false },
        { "0123", "no JSON", false },
        { "0123", "{}", false },
        { "0123", NULL, false },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++)
        expect_with(s, i, rows[i].partial, rows[i].state, rows[i].no_resume, false, "/x?sig=2; " ALL_OF_TEN);
    download_end(s);
}

TEST(a_part_of_another_file_is_dropped_and_the_file_begins_again)
{
    scene *s = download_begin();
    expect_with(s, 0, "0123", STATE(URL, "other", "10", "0", ""), false, true,
                "/x?sig=2 {Range: bytes=4-} {If-Range: other}; /x?sig=2; " ALL_OF_TEN);
    expect_with(s, 1, "0123", STATE(URL, "e", "12", "0", ""), false, true,
                "/x?sig=2 {Range: bytes=4-} {If-Range: e}; /x?sig=2; " ALL_OF_TEN);
    download_end(s);
}

/* (Requests are shown with the first 40 characters of a mark.) */
TEST(a_mark_of_more_than_255_characters_is_not_used)
{
    scene *s = download_begin();
    for (int len = 255; len <= 256; len++) {
        char etag[300], left[600];
        const char *if_range = len == 255 ? " {If-Range: 0000000000000000000000000000000000000000}" : "";
        char resumed[200], broken[200];
        (void)snprintf(etag, sizeof etag, "%0*d", len, 0);
        (void)snprintf(left, sizeof left, STATE(URL, "%s", "10", "0", ""), etag);
        put_file("x.partial", "0123");
        put_file("x.partial.state", left);
        if (len == 255)
            serve_once(s, 206, PAIRS("ETag", etag, "Content-Range", "bytes 4-9/10"), "456789", 6);
        else
            serve_once(s, 200, PAIRS("ETag", etag), TEN, 10);
        fetch_url(s, URL, (tinkc_download_options){ 0 });
        (void)snprintf(resumed, sizeof resumed, "/x {Range: bytes=4-}%s; done; ./x: 6 bytes, 1 file; x=" TEN, if_range);
        EXPECT_ROW(s, (size_t)len, len == 255 ? resumed : "/x; " ALL_OF_TEN);
        clean_folder();
        serve_cut(s, 200, PAIRS("ETag", etag), TEN, 10, 4);
        serve_once(s, 206, PAIRS("Content-Range", "bytes 4-9/10"), "456789", 6);
        fetch_url(s, URL, (tinkc_download_options){ 0 });
        (void)snprintf(broken, sizeof broken, "/x; +100 /x {Range: bytes=4-}%s; " ALL_OF_TEN, if_range);
        EXPECT_ROW(s, (size_t)len, broken);
        clean_folder();
    }
    download_end(s);
}

TEST(a_folder_or_a_link_in_the_place_of_the_partial_file_is_removed)
{
    scene *s = download_begin();
    assert_int_equal(mkdir("x.partial", 0777), 0);
    put_file("x.partial/inside", "1");
    put_file("x.partial.state", STATE(URL, "e", "10", "0", ""));
    serve_once(s, 200, NULL, TEN, 10);
    fetch_url(s, URL, (tinkc_download_options){ 0 });
    EXPECT(s, "/x; " ALL_OF_TEN);
    clean_folder();
    put_file("elsewhere", "mine");
    assert_int_equal(symlink("elsewhere", "x.partial"), 0);
    serve_once(s, 200, NULL, TEN, 10);
    fetch_url(s, URL, (tinkc_download_options){ 0 });
    EXPECT(s, "/x; done; ./x: 10 bytes, 1 file; elsewhere=mine x=" TEN);
    download_end(s);
}

/* ---- archives ---- */

#define FILE_OF(name, sha, size) "{\"name\":\"" name "\",\"sha256\":\"" sha "\",\"size\":" size "}"
#define SHA_OF_1                 "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
#define FIRST                    FILE_OF("first", SHA_OF_1, "1")
#define RESUMED                  "archive; /x {Range: bytes=1024-} {If-Range: e}; "
#define BOTH                     "r_weights_c/[first=1 last=2]"

static tar two_files(void)
{
    tar t = { 0 };
    tar_raw(&t, "first", '0', NULL, "1", 1);
    tar_raw(&t, "last", '0', NULL, "2", 1);
    tar_end(&t);
    return t;
}

static void serve_part(scene *s, const tar *t, const char *etag, size_t from)
{
    char range[60];
    (void)snprintf(range, sizeof range, "bytes %zu-%zu/%zu", from, t->len - 1, t->len);
    serve_once(s, 206, PAIRS("ETag", etag, "Content-Range", range), t->data + from, t->len - from);
}

static void leave_partial(const char *state, const char *first)
{
    assert_int_equal(mkdir("r_weights_c.partial", 0777), 0);
    put_file("r_weights_c.partial.state", state);
    if (first)
        put_file("r_weights_c.partial/first", first);
}

TEST(an_archive_is_resumed_behind_the_last_whole_file)
{
    static const struct {
        const char *files;
        bool no_digests;
        int n; /* files of the result */
    } rows[] = {
        { FIRST, false, 2 },
        { FILE_OF("first", "", "1"), false, 2 }, /* its digest is computed now */
        { FILE_OF("first", "", "1"), true, 2 },
        { "", false, 1 },
        { "{\"name\":\"first\",\"more\":[1],\"sha256\":\"" SHA_OF_1 "\",\"size\":1}", false, 2 },
    };
    scene *s = download_begin();
    tar t = two_files();
    for (size_t i = 0; i < LEN(rows); i++) {
        char left[900], wanted[300];
        (void)snprintf(left, sizeof left, STATE(CHECKPOINT, "e", "3072", "1024", "%s"), rows[i].files);
        leave_partial(left, "1");
        serve_part(s, &t, "e", 1024);
        fetch(s, (tinkc_download_options){ .no_digests = rows[i].no_digests });
        (void)snprintf(wanted, sizeof wanted, RESUMED "done; ./r_weights_c: 2048 bytes, %d file%s; " BOTH, rows[i].n,
                       rows[i].n == 1 ? "" : "s");
        EXPECT_ROW(s, i, wanted);
        clean_folder();
    }
    free(t.data);
    download_end(s);
}

TEST(an_archive_begins_again_if_its_state_and_the_disk_disagree)
{
    static const struct {
        const char *files, *offset, *first;
    } rows[] = {
        { FIRST, "1024", "12" },
        { FIRST, "1024", NULL },
        { FILE_OF("../first", SHA_OF_1, "1"), "1024", "1" },
        { FILE_OF("first", "abc", "1"), "1024", "1" },
        { FILE_OF("first", SHA_OF_1, "-1"), "1024", "1" },
        { "{}", "1024", "1" },
        { "5", "1024", "1" },
        { FIRST, "-1", "1" },
        { FIRST, "3073", "1" },
        { FIRST "," FILE_OF("last", "", "1"), "2048", "1" },
    };
    scene *s = download_begin();
    tar t = two_files();
    for (size_t i = 0; i < LEN(rows); i++) {
        char left[900];
        (void)snprintf(left, sizeof left, STATE(CHECKPOINT, "e", "3072", "%s", "%s"), rows[i].offset, rows[i].files);
        leave_partial(left, rows[i].first);
        serve_once(s, 200, PAIRS("ETag", "e"), t.data, t.len);
        fetch(s, (tinkc_download_options){ 0 });
        EXPECT_ROW(s, i, "archive; /x; done; ./r_weights_c: 3072 bytes, 2 files; " BOTH);
        clean_folder();
    }
    free(t.data);
    download_end(s);
}

TEST(an_empty_file_counts_among_those_that_are_there)
{
    scene *s = download_begin();
    tar t = two_files();
    leave_partial(STATE(CHECKPOINT, "e", "3072", "1024", FIRST "," FILE_OF("none", "", "0")), "1");
    put_file("r_weights_c.partial/none", "");
    serve_part(s, &t, "e", 1024);
    fetch(s, (tinkc_download_options){ 0 });
    EXPECT(s, RESUMED "done; ./r_weights_c: 2048 bytes, 3 files; r_weights_c/[first=1 last=2 none:0]");
    free(t.data);
    download_end(s);
}

TEST(a_run_that_fetches_nothing_leaves_what_it_has_found)
{
    scene *s = download_begin();
    leave_partial(STATE(CHECKPOINT, "e", "3072", "1024", FIRST), "1");
    serve_gone(s, 3);
    fetch(s, (tinkc_download_options){ 0 });
    EXPECT(s, RESUMED "+100 " RESUMED "+200 " RESUMED "NOT_FOUND 404 \"HTTP 404: gone\"; r_weights_c.partial/[first=1] "
                      "r_weights_c.partial.state{e 3072 1024 first:6b86b2}");
    download_end(s);
}

/* With another mark it is another archive, and begins again. */
TEST(a_run_that_breaks_off_is_resumed_by_the_next_one)
{
    static const struct {
        const char *etag, *second;
    } rows[] = {
        { "e", "done; ./r_weights_c: 2048 bytes, 2 files; " BOTH },
        { "f", "/x; done; ./r_weights_c: 3072 bytes, 2 files; " BOTH },
    };
    scene *s = download_begin();
    tar t = two_files();
    for (size_t i = 0; i < LEN(rows); i++) {
        char second[300];
        serve_cut(s, 200, PAIRS("ETag", "e"), t.data, t.len, 1600);
        serve_gone(s, 3);
        fetch(s, (tinkc_download_options){ 0 });
        EXPECT_ROW(s, i,
                   "archive; /x; +100 /x {Range: bytes=1600-} {If-Range: e}; +200 archive; /x {Range: "
                   "bytes=1600-} {If-Range: e}; NOT_FOUND 404 \"HTTP 404: gone\"; "
                   "r_weights_c.partial/[first=1 last=2] r_weights_c.partial.state{e -1 1024 "
                   "first:6b86b2}");
        serve_part(s, &t, rows[i].etag, 1024);
        if (i == 1)
            serve_once(s, 200, PAIRS("ETag", "f"), t.data, t.len);
        fetch(s, (tinkc_download_options){ 0 });
        (void)snprintf(second, sizeof second, RESUMED "+100 " RESUMED "%s", rows[i].second);
        EXPECT_ROW(s, i, second);
        clean_folder();
    }
    free(t.data);
    download_end(s);
}
