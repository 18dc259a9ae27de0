/* Base64, UTF-8, query strings, URLs, tinker:// paths, multipart. */
#include "support/check.h"
#include "support/scratch.h"

#include "base/clock.h"
#include "codec/base64.h"
#include "codec/multipart.h"
#include "codec/query.h"
#include "codec/tinker_path.h"
#include "codec/url.h"
#include "codec/utf8.h"

/* ---- base64 ---- */

TEST(base64_of_known_texts)
{
    static const char *const pairs[][2] = { { "", "" },
                                            { "f", "Zg==" },
                                            { "fo", "Zm8=" },
                                            { "foo", "Zm9v" },
                                            { "foob", "Zm9vYg==" },
                                            { "fooba", "Zm9vYmE=" },
                                            { "foobar", "Zm9vYmFy" } };
    for (size_t i = 0; i < 7; i++) {
        tinkc_error err = { 0 };
        char text[16];
        tinkc_bytes back;
        size_t n = strlen(pairs[i][0]);
        assert_int_equal(tkc_base64_length(n), strlen(pairs[i][1]));
        tkc_base64_encode(pairs[i][0], n, text);
        assert_memory_equal(text, pairs[i][1], strlen(pairs[i][1]));
        assert_true(tkc_base64_decode(tkc_str(pairs[i][1]), &arena, &back, &err));
        assert_int_equal(back.len, n);
        assert_string_equal((const char *)back.data, pairs[i][0]);
    }
}

TEST(base64_of_every_length_survives)
{
    unsigned char bytes[70];
    char text[100];
    for (size_t n = 0; n < sizeof bytes; n++) {
        tinkc_error err = { 0 };
        tinkc_bytes back;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (unsigned char)(i * 37 + n * 11 + 200);
        tkc_base64_encode(bytes, n, text);
        assert_true(tkc_base64_decode(tkc_strn(text, tkc_base64_length(n)), &arena, &back, &err));
        assert_int_equal(back.len, n);
        assert_memory_equal(back.data, bytes, n);
    }
}

TEST(base64_is_strict)
{
    static const char *const bad[] = { "Z",    "Zg",     "Zg=",  "Zh==", "Zm9=", "=",     "====",     "Zg==Zg==",
                                       "Z g=", "Zm9v\n", "Zg=a", "Zm-v", "Zm_v", "Zm9v=", "Zm9vZ===", "Zg===" };
    tinkc_bytes back;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tinkc_error err = { 0 };
        if (tkc_base64_decode(tkc_str(bad[i]), &arena, &back, &err))
            fail_msg("%s was read", bad[i]);
        assert_ok(err);
    }
    tinkc_error err = { 0 };
    assert_true(tkc_base64url_decode(tkc_str("Zm8"), &arena, &back, &err));
    assert_true(tkc_base64url_decode(tkc_str("Zm8="), &arena, &back, &err));
    assert_true(tkc_base64url_decode(tkc_str("-_-_"), &arena, &back, &err));
    assert_memory_equal(back.data, "\xFB\xFF\xBF", 3);
    assert_false(tkc_base64url_decode(tkc_str("+/+/"), &arena, &back, &err));
    assert_false(tkc_base64url_decode(tkc_str("Zm8=="), &arena, &back, &err));
    assert_false(tkc_base64url_decode(tkc_str("Z"), &arena, &back, &err));
}

/* ---- UTF-8 ---- */

TEST(utf8_is_checked_strictly)
{
    static const struct {
        const char *text;
        size_t good;
    } cases[] = {
        { "", 0 },
        { "plain ascii, longer than eight", 30 },
        { "\xC3\xA9", 2 },
        { "\xE2\x82\xAC", 3 },
        { "\xF0\x9F\x98\x80", 4 },
        { "\xF4\x8F\xBF\xBF", 4 },
        { "a\xC3", 1 },
        { "\xC0\x80", 0 },
        { "\xC1\xBF", 0 },
        { "\xE0\x9F\xBF", 0 },
        { "\xED\xA0\x80", 0 },
        { "\xED\x9F\xBF", 3 },
        { "\xF0\x8F\xBF\xBF", 0 },
        { "\xF4\x90\x80\x80", 0 },
        { "\xF5\x80\x80\x80", 0 },
        { "\x80", 0 },
        { "\xE2\x28\xA1", 0 },
        { "12345678\xFFxyz", 8 },
        { "\xC3\xA9"
          "1234567\xFF",
          9 }, /* a word after an offset */
        { "12345678"
          "abcdefg\xFF",
          15 },
        { "12345678"
          "\xC3",
          8 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].text);
        char *copy = exact_copy(cases[i].text, n);
        assert_int_equal(tkc_utf8_prefix(copy, n), cases[i].good);
        assert_int_equal(tkc_utf8_valid(copy, n), cases[i].good == n);
        free_copy(copy, n);
    }
    assert_true(tkc_utf8_valid(NULL, 0));
}

/* ---- query strings ---- */

TEST(queries_value_by_value)
{
    tinkc_error err = { 0 };
    tkc_query q;
    tkc_buf_clear(&out);
    tkc_query_open(&q, &out, '?', &err);
    tkc_query_i64(&q, "limit", 20);
    tkc_query_i64(&q, "offset", 0);
    tkc_query_str(&q, "project_id", NULL);
    tkc_query_str(&q, "none", "");
    tkc_query_str(&q, "access_scope", "owned");
    tkc_query_str(&q, "s", "a b&c/d~e-f.g_h");
    tkc_query_str(&q, "t", "09azAZ@[`{:");
    assert_ok(err);
    assert_str(tkc_buf_view(&out), "?limit=20&offset=0&access_scope=owned&s=a+b%26c%2Fd~e-f.g_h"
                                   "&t=09azAZ%40%5B%60%7B%3A");
}

TEST(queries_are_read_back)
{
    tinkc_error err = { 0 };
    tinkc_str q = tkc_str("limit=20&name=a+b%26c&empty&x=%zz&bad=%00&%6Eam=1&limit=30&tail=%4");
    assert_string_equal(tkc_query_find(q, "limit", &arena, &err), "20");
    assert_string_equal(tkc_query_find(q, "name", &arena, &err), "a b&c");
    assert_string_equal(tkc_query_find(q, "empty", &arena, &err), "");
    assert_string_equal(tkc_query_find(q, "nam", &arena, &err), "1");
    assert_null(tkc_query_find(q, "x", &arena, &err));
    assert_null(tkc_query_find(q, "bad", &arena, &err));
    assert_null(tkc_query_find(q, "tail", &arena, &err));
    assert_null(tkc_query_find(q, "other", &arena, &err));
    assert_null(tkc_query_find(tkc_str(""), "a", &arena, &err));
    assert_ok(err);
}

/* ---- URLs ---- */

TEST(urls_are_taken_apart_and_normalised)
{
    static const struct {
        const char *text, *normal, *origin, *host, *path, *query;
        int32_t port;
    } cases[] = {
        { "HTTPS://Example.COM", "https://example.com/", "https://example.com", "example.com", "/", NULL, 443 },
        { "http://h:80/x?y=1#z", "http://h/x?y=1", "http://h", "h", "/x", "y=1", 80 },
        { "https://h:8443/", "https://h:8443/", "https://h:8443", "h", "/", NULL, 8443 },
        { "http://[::1]:9000/a", "http://[::1]:9000/a", "http://[::1]:9000", "::1", "/a", NULL, 9000 },
        { "http://[FE80::1]", "http://[fe80::1]/", "http://[fe80::1]", "fe80::1", "/", NULL, 80 },
        { "https://h?q", "https://h/?q", "https://h", "h", "/", "q", 443 },
        { "https://my_host.x/", "https://my_host.x/", "https://my_host.x", "my_host.x", "/", NULL, 443 },
        { "http://h:/p", "http://h/p", "http://h", "h", "/p", NULL, 80 },
        { "http://Z.ZA:1", "http://z.za:1/", "http://z.za:1", "z.za", "/", NULL, 1 },
        { "http://a:65535/", "http://a:65535/", "http://a:65535", "a", "/", NULL, 65535 },
        { "https://[::1]", "https://[::1]/", "https://[::1]", "::1", "/", NULL, 443 },
        { "http://[::1]:", "http://[::1]/", "http://[::1]", "::1", "/", NULL, 80 },
        { "http://\xC3\xA9/", "http://\xC3\xA9/", "http://\xC3\xA9", "\xC3\xA9", "/", NULL, 80 },
        { "http://\xE2\x82\x80/", "http://\xE2\x82\x80/", "http://\xE2\x82\x80", "\xE2\x82\x80", "/", NULL, 80 },
        { "http://@h", "http://h/", "http://h", "h", "/", NULL, 80 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinkc_error err = { 0 };
        tkc_url u;
        tkc_url_parse(tkc_str(cases[i].text), &arena, &u, &err);
        assert_ok(err);
        assert_string_equal(u.text, cases[i].normal);
        assert_string_equal(u.origin, cases[i].origin);
        assert_string_equal(u.host, cases[i].host);
        assert_string_equal(u.path, cases[i].path);
        assert_true(tkc_cstr_eq(u.query, cases[i].query));
        assert_int_equal(u.port, cases[i].port);
    }
}

TEST(malformed_urls_are_refused_without_repeating_them)
{
    static const char *const bad[] = {
        "",
        "h",
        "ftp://h",
        "http://",
        "http:///x",
        "https:h",
        "http://h:0",
        "http://h:65536",
        "http://h:x",
        "http://h:-1",
        "http://a b",
        "http://h\n",
        "http://[::1",
        "http://[::1]x:1",
        "http://h<x>",
        "http://user:geheim@",
        "://h",
        "http://\xFF",
        "http://h:80:90",
        "http://h:+1",
        "http://h\x7F",
        "http://h/\x7F",
        "http://h/a b",
        "http://h/a\tb",
        "http://[::1]x",
        "http://[::1]8",
        "http://h]",
        "http://h`",
        "http://h{",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tinkc_error err = { 0 };
        tkc_url u;
        if (tkc_url_parse(tkc_str(bad[i]), &arena, &u, &err))
            fail_msg("%s was read", bad[i]);
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_null(strstr(err.message, "geheim"));
    }
    tinkc_error err = { 0 };
    tkc_url u;
    assert_true(tkc_url_parse(tkc_str("https://user:geheim@h/x"), &arena, &u, &err));
    assert_true(u.has_userinfo);
    assert_string_equal(u.text, "https://h/x");
}

/* A text is terminated even where the arena's memory was used before. */
TEST(texts_in_used_memory)
{
    static const char *const rows[][2] = { { "a%20b", "a b" }, { "abc", "abc" }, { "%e2%82%AC", "\xE2\x82\xAC" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_bytes bytes;
        memset(tkc_arena_alloc(&arena, 1000, &err), 'z', 1000);
        tkc_arena_reset(&arena);
        assert_string_equal(tkc_percent_decode(tkc_str(rows[i][0]), &arena, &err), rows[i][1]);
        assert_true(tkc_base64_decode(tkc_str("YWI="), &arena, &bytes, &err));
        assert_string_equal((const char *)bytes.data, "ab");
        assert_ok(err);
    }
    static const char *const bad[] = { "%4g", "%g4", "%gg", "%4", "%", "a%4", "%00", "%ff" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tinkc_error err = { 0 };
        assert_null(tkc_percent_decode(tkc_str(bad[i]), &arena, &err));
        assert_null(tkc_form_decode(tkc_str(bad[i]), &arena, &err));
        assert_ok(err);
    }
}

/* What is wrong with an address is said by name. */
TEST(reasons_of_malformed_urls)
{
    static const char *const rows[][2] = {
        { "http://", "URL: it has no host" },
        { "http:/", "URL: it needs a scheme, http:// or https://" },
        { "http:/x", "URL: it needs a scheme, http:// or https://" },
        { "http", "URL: it needs a scheme, http:// or https://" },
        { "ftp://h", "URL: its scheme must be http or https" },
        { "http://:80", "URL: it has no host" },
        { "http://h:-1", "URL: its port must be a number from 1 to 65535" },
        { "http://h:0", "URL: its port must be a number from 1 to 65535" },
        { "http://h:65536", "URL: its port must be a number from 1 to 65535" },
        { "http://h:99999999999999999999", "URL: its port must be a number from 1 to 65535" },
        { "http://[::1", "URL: the bracket of its address is not closed" },
        { "http://[::1]x", "URL: something stands between its address and its port" },
        { "http://[]", "URL: it has no host" },
        { "http://h<", "URL: its host has a character that hosts cannot have" },
        { "http://<h", "URL: its host has a character that hosts cannot have" },
        { "http://h \xFF", "URL: it has a space or a control character in it" },
        { "http://h\xFF", "URL: it is not UTF-8" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_url u;
        assert_false(tkc_url_parse(tkc_str(rows[i][0]), &arena, &u, &err));
        if (strcmp(err.message, rows[i][1]) != 0)
            fail_msg("%s: %s", rows[i][0], err.message);
    }
}

TEST(origins_are_compared)
{
    assert_true(tkc_url_same_origin("https://h/a", "HTTPS://H:443/b?c"));
    assert_false(tkc_url_same_origin("https://h/a", "http://h/a"));
    assert_false(tkc_url_same_origin("https://h/a", "https://h:444/a"));
    assert_false(tkc_url_same_origin("https://h/a", "nonsense"));
}

TEST(redirects_are_resolved)
{
    static const char *const cases[][2] = {
        { "https://o/x", "https://o/x" },
        { "//o/x", "https://o/x" },
        { "/abs", "https://h/abs" },
        { "rel", "https://h/a/b/rel" },
        { "../up", "https://h/a/up" },
        { "../../../up", "https://h/up" },
        { "./x/./y/..", "https://h/a/b/x/" },
        { "?q=1", "https://h/a/b/c?q=1" },
        { "#f", "https://h/a/b/c?d=e" },
        { "", "https://h/a/b/c?d=e" },
        { "x?y=../z", "https://h/a/b/x?y=../z" },
        { "x/.", "https://h/a/b/x/" },
        { ".", "https://h/a/b/" },
        { "x:y", "https://h/a/b/x:y" },
        { "HTTPS://o", "https://o/" },
        { "http://o", "http://o/" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinkc_error err = { 0 };
        const char *got = tkc_url_resolve("https://h/a/b/c?d=e", cases[i][0], &arena, &err);
        assert_ok(err);
        assert_string_equal(got, cases[i][1]);
    }
    tinkc_error err = { 0 };
    assert_null(tkc_url_resolve("https://h/", "ftp://h/", &arena, &err));
    err = (tinkc_error){ 0 };
    assert_null(tkc_url_resolve("https://h/", "file:///etc/passwd", &arena, &err));
    static const char *const empty[] = { "http://", "https://", "//" };
    for (size_t i = 0; i < 3; i++) {
        err = (tinkc_error){ 0 };
        assert_null(tkc_url_resolve("https://h/", empty[i], &arena, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
}

/* 64 KiB of target is the most. */
TEST(redirects_are_bounded)
{
    enum { MOST = 65536 };
    static char location[MOST + 2];
    tinkc_error err = { 0 };
    memset(location, 'x', MOST + 1);
    assert_null(tkc_url_resolve("https://h/", location, &arena, &err));
    assert_string_equal(err.message, "URL: a redirect leads to more than 64 KiB of text");
    err = (tinkc_error){ 0 };
    location[MOST] = 0;
    const char *got = tkc_url_resolve("https://h/", location, &arena, &err);
    assert_ok(err);
    assert_int_equal(strlen(got), MOST + strlen("https://h/"));
}

/* Ids become one segment of a path, or several where a '/' is part of them. */
TEST(ids_are_escaped)
{
    static const struct {
        const char *id;
        bool slashes;
        const char *want; /* NULL = refused */
    } rows[] = {
        { "a", false, "a" },
        { "azAZ09-._~:", false, "azAZ09-._~:" },
        { "a b", false, "a%20b" },
        { "a/b", false, "a%2Fb" },
        { "a/b", true, "a/b" },
        { "a/b c", true, "a/b%20c" },
        { "@[`{%", false, "%40%5B%60%7B%25" },
        { "\xC3\xA9", false, "%C3%A9" },
        { "..a", true, "..a" },
        { "a\x7F", false, NULL },
        { "a\x1F", false, NULL },
        { "a?b", false, NULL },
        { "a#b", false, NULL },
        { "", false, NULL },
        { NULL, false, NULL },
        { ".", false, NULL },
        { "..", false, NULL },
        { "a/../b", true, NULL },
        { "a/./b", true, NULL },
        { "a//b", true, NULL },
        { "/a", true, NULL },
        { "a/", true, NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_buf_clear(&out);
        bool done = tkc_segment_escape(rows[i].id, rows[i].slashes, &out, &err);
        if (done != (rows[i].want != NULL) || err.code != (done ? 0 : TINKC_E_ARGUMENT))
            fail_msg("row %zu: %d, %s", i, (int)done, err.message);
        assert_str(tkc_buf_view(&out), done ? rows[i].want : "");
    }
    tinkc_error before = { .code = TINKC_E_STATE };
    tkc_buf_clear(&out);
    assert_false(tkc_segment_escape("a", false, &out, &before));
    assert_int_equal(out.len, 0);
}

TEST(percent_escapes_are_undone)
{
    tinkc_error err = { 0 };
    assert_string_equal(tkc_percent_decode(tkc_str("a%20b+c%2f"), &arena, &err), "a b+c/");
    assert_string_equal(tkc_percent_decode(tkc_str(""), &arena, &err), "");
    assert_null(tkc_percent_decode(tkc_str("%"), &arena, &err));
    assert_null(tkc_percent_decode(tkc_str("%2"), &arena, &err));
    static const char *const bad[] = { "%g0", "%0g", "%`0", "%/0", "%:0", "%@0", "%G0", "a%2", "ab%", "%-1", "%1" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tkc_percent_decode(tkc_str(bad[i]), &arena, &err))
            fail_msg("%s was read", bad[i]);
    assert_string_equal(tkc_percent_decode(tkc_str("%09%4a%4A%6F%4f%39"), &arena, &err), "\tJJoO9");
    assert_string_equal(tkc_percent_decode(tkc_str("x%41"), &arena, &err), "xA");
    /* What follows the given text does not belong to it. */
    assert_null(tkc_percent_decode(tkc_strn("%41", 2), &arena, &err));
    assert_null(tkc_percent_decode(tkc_strn("ab%41", 4), &arena, &err));
    assert_string_equal(tkc_percent_decode(tkc_strn("abc", 2), &arena, &err), "ab");
    assert_null(tkc_percent_decode(tkc_str("%00"), &arena, &err));
    assert_null(tkc_percent_decode(tkc_str("%ff"), &arena, &err));
    assert_ok(err);
}

/* ---- tinker paths ---- */

TEST(tinker_paths_are_taken_apart)
{
    tinkc_error err = { 0 };
    tinkc_path p;
    assert_true(tinkc_path_parse("tinker://r/weights/0001", &p, &err));
    assert_str(p.run_id, "r");
    assert_str(p.checkpoint_id, "weights/0001");
    assert_str(p.name, "0001");
    assert_int_equal(p.kind, TINKC_CHECKPOINT_TRAINING);
    assert_true(tinkc_path_parse("tinker://9d2c61f0:train:0/sampler_weights/final", &p, &err));
    assert_str(p.run_id, "9d2c61f0:train:0");
    assert_int_equal(p.kind, TINKC_CHECKPOINT_SAMPLER);
    assert_true(tinkc_path_parse("tinker://r/external_weights/hf", &p, &err));
    assert_str(p.checkpoint_id, "external_weights/hf");
    assert_int_equal(p.kind, TINKC_CHECKPOINT_EXTERNAL);
    static const char *const bad[] = { "tinker://r/other/x",  "tinker://r/weights",   "tinker://r/weights/a/b",
                                       "http://r/weights/x",  "tinker:///weights/",   "tinker:///weights/x",
                                       "tinker://r/weights/", "TINKER://r/weights/x", "",
                                       "tinker://",           "tinker://r",           "tinker://r/",
                                       "tinker://r//x",       "tinker://r/Weights/x" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (tinkc_error){ 0 };
        assert_true(tinkc_path_parse("tinker://r/weights/0001", &p, &err)); /* leaves nothing behind */
        if (tinkc_path_parse(bad[i], &p, &err))
            fail_msg("%s was read", bad[i]);
        assert_int_equal(err.code, TINKC_E_PATH);
    }
    assert_false(tinkc_path_parse(NULL, &p, NULL));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_path_parse("tinker://r/weights/x", NULL, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_true(tinkc_path_parse("tinker://r/weights/x", &p, NULL));
    err = (tinkc_error){ .code = TINKC_E_STATE };
    assert_false(tinkc_path_parse("tinker://r/weights/x", &p, &err)); /* an error that is set stays */
    assert_int_equal(err.code, TINKC_E_STATE);
}

/* Some services leave the kind out; the checkpoint is a sampler's then. */
TEST(tinker_paths_without_a_kind)
{
    tinkc_error err = { 0 };
    tinkc_path p = { 0 };
    assert_true(tkc_tinker_path_any("tinker://r/x", &p, &err));
    assert_str(p.run_id, "r");
    assert_str(p.checkpoint_id, "x");
    assert_str(p.name, "x");
    assert_int_equal(p.kind, TINKC_CHECKPOINT_SAMPLER);
    assert_true(tkc_tinker_path_any("tinker://r/weights/0001", &p, &err));
    assert_str(p.checkpoint_id, "weights/0001");
    assert_str(p.name, "0001");
    assert_int_equal(p.kind, TINKC_CHECKPOINT_TRAINING);
    static const char *const bad[] = { "tinker://r/", "tinker:///x", "tinker://r/a/b/c", "http://r/x", "" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (tinkc_error){ 0 };
        assert_false(tkc_tinker_path_any(bad[i], &p, &err));
        assert_int_equal(err.code, TINKC_E_PATH);
    }
    err = (tinkc_error){ 0 };
    assert_false(tkc_tinker_path_any(NULL, &p, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);

    static const struct {
        const char *path;
        int32_t code;
    } given[] = {
        { "tinker://x", 0 }, { "tinker://", TINKC_E_PATH }, { "http://x", TINKC_E_PATH }, { NULL, TINKC_E_ARGUMENT }
    };
    for (size_t i = 0; i < 4; i++) {
        err = (tinkc_error){ 0 };
        assert_int_equal(tkc_tinker_path_given(given[i].path, &err), given[i].code == 0);
        assert_int_equal(err.code, given[i].code);
    }
}

TEST(tinker_paths_are_put_together)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    assert_string_equal(tinkc_path_join("r:train:0", "weights/0001", &text, &err), "tinker://r:train:0/weights/0001");
    assert_string_equal(tinkc_path_join("r", "sampler_weights/x", &text, &err), "tinker://r/sampler_weights/x");
    assert_ok(err);
    assert_string_equal(tinkc_path_join("r", "x", &text, &err), "");
    assert_int_equal(err.code, TINKC_E_PATH);
    err = (tinkc_error){ 0 };
    assert_string_equal(tinkc_path_join("a/b", "weights/x", &text, &err), "");
    err = (tinkc_error){ 0 };
    assert_string_equal(tinkc_path_join("", "weights/x", &text, &err), "");
    assert_string_equal(tinkc_path_join(NULL, "weights/x", &text, NULL), "");
    const char *const nulls[][2] = { { NULL, "weights/x" }, { "r", NULL }, { "r", "weights/x" } };
    for (size_t i = 0; i < 3; i++) {
        err = (tinkc_error){ 0 };
        assert_string_equal(tinkc_path_join(nulls[i][0], nulls[i][1], i < 2 ? &text : NULL, &err), "");
        assert_string_equal(err.message, "run_id, checkpoint_id or out is NULL");
    }
    tinkc_text_free(&text);
}

/* ---- multipart ---- */

static int64_t no_time(void *self)
{
    (void)self;
    return 0;
}
static uint64_t counting(void *self)
{
    return (*(uint64_t *)self)++;
}

TEST(parts_are_written)
{
    uint64_t next = 0x1a2b;
    tinkc_clock clock = { .self = &next, .now_ms = no_time, .wall_us = no_time, .random = counting };
    tinkc_error err = { 0 };
    tkc_multipart m;
    tkc_buf_clear(&out);
    tkc_multipart_open(&m, &out, &clock, &err);
    assert_int_equal(strlen(m.boundary), 32);
    assert_string_equal(m.boundary, "b2a1000000000000c2a1000000000000");
    tkc_multipart_text(&m, "a", tkc_str("x\r\ny"));
    tkc_multipart_bytes(&m, "f\"\r\n", "na\"me", NULL, "\0\1", 2);
    tkc_multipart_bytes(&m, "g", NULL, "text/plain", "z", 1);
    tkc_multipart_close(&m);
    assert_ok(err);
    static const char want[] = "--b2a1000000000000c2a1000000000000\r\n"
                               "Content-Disposition: form-data; name=\"a\"\r\n\r\nx\r\ny\r\n"
                               "--b2a1000000000000c2a1000000000000\r\n"
                               "Content-Disposition: form-data; name=\"f%22%0D%0A\"; filename=\"na%22me\"\r\n"
                               "Content-Type: application/octet-stream\r\n\r\n\0\1\r\n"
                               "--b2a1000000000000c2a1000000000000\r\n"
                               "Content-Disposition: form-data; name=\"g\"\r\nContent-Type: text/plain\r\n\r\nz\r\n"
                               "--b2a1000000000000c2a1000000000000--\r\n";
    assert_int_equal(out.len, sizeof want - 1);
    assert_memory_equal(out.data, want, out.len);
    tkc_buf_clear(&out);
    tkc_multipart_type(&m, &out, &err);
    assert_str(tkc_buf_view(&out), "multipart/form-data; boundary=b2a1000000000000c2a1000000000000");
    tkc_multipart_bytes(&m, "a", NULL, "text/plain\r\nX: y", "", 0);
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
}

RUN_TESTS(set_up, tear_down)
