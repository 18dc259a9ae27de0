/* test_gunzip.c - bodies in gzip: limits, and bodies that were changed. */
#include "service/handlers/gunzip.h"
#include "support/check.h"

/* The sum and the length at the end of a member are there to be compared. */
TEST(a_gzip_body_that_was_changed_is_refused)
{
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes packed = unhex(&arena, "1f8b0800000000000203cb48cdc9c95748afca2c0000196ad2df0a000000");
    for (size_t at = packed.len - 8; at < packed.len; at++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        unsigned char *copy = tkc_arena_alloc(&arena, packed.len, &err);
        memcpy(copy, packed.data, packed.len);
        copy[at] ^= 1;
        assert_false(tke_gunzip((tinkc_bytes){ copy, packed.len }, 100, &out, &err));
        assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        assert_string_equal(err.message, "gzip: the checksum or the length does not match");
        tkc_buf_free(&out);
    }
    tkc_arena_free(&arena);
}

TEST(gzip_bodies_are_bounded)
{
    enum { N = 10 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes packed = unhex(&arena, "1f8b0800000000000203cb48cdc9c95748afca2c0000196ad2df0a000000");
    for (size_t max = N - 1; max <= N + 1; max++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        assert_int_equal(tke_gunzip(packed, max, &out, &err), max >= N);
        if (max >= N)
            assert_str(tkc_buf_view(&out), "hello gzip");
        else {
            assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
            assert_int_equal(err.cause, TINKC_E_TOO_LARGE);
            assert_string_equal(err.message, "more than 9 bytes");
        }
        tkc_buf_free(&out);
    }
    for (size_t len = 0; len < packed.len; len++) { /* cut off anywhere */
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        char *cut = exact_copy(packed.data, len);
        assert_false(tke_gunzip((tinkc_bytes){ (const unsigned char *)cut, len }, N, &out, &err));
        assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        assert_int_equal(err.cause, 0);
        if (len < 10) /* not even a head */
            assert_string_equal(err.message, "not gzip");
        free_copy(cut, len);
        tkc_buf_free(&out);
    }
    /* Several members are one text; bytes that belong to none are refused. */
    static const struct {
        const char *more, *text; /* text NULL: refused */
    } tails[] = { { "1f8b0800000000000203cb48cdc9c95748afca2c0000196ad2df0a000000", "hello gziphello gzip" },
                  { "00", NULL },
                  { "7878", NULL },
                  { "1f8b", NULL },
                  { "000000000000000000000000000000000000", NULL } };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        tinkc_error err = { 0 };
        tkc_buf out, both;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        tkc_buf_init(&both, NULL, TKC_BUF_NO_MAX);
        tinkc_bytes more = unhex(&arena, tails[i].more);
        assert_true(tkc_buf_add(&both, packed.data, packed.len, &err));
        assert_true(tkc_buf_add(&both, more.data, more.len, &err));
        bool ok = tke_gunzip((tinkc_bytes){ (const unsigned char *)both.data, both.len }, 100, &out, &err);
        assert_int_equal(ok, tails[i].text != NULL);
        if (ok)
            assert_str(tkc_buf_view(&out), tails[i].text);
        else
            assert_string_equal(err.message, "bytes after the end of the gzip data");
        tkc_buf_free(&both);
        tkc_buf_free(&out);
    }
    /* Stored blocks, then one of a kind that does not exist. */
    enum { STORED = 65535, BLOCKS = 4, BLOCK_SIZE = 5 + STORED };
    static unsigned char broken[10 + BLOCKS * BLOCK_SIZE + 1] = { 0x1f, 0x8b, 8, [9] = 3 };
    for (size_t i = 0; i < BLOCKS; i++)
        memcpy(broken + 10 + i * BLOCK_SIZE, "\0\xff\xff\0\0", 5);
    broken[sizeof broken - 1] = 7;
    tinkc_error why = { 0 };
    tkc_buf all;
    tkc_buf_init(&all, NULL, TKC_BUF_NO_MAX);
    assert_false(tke_gunzip((tinkc_bytes){ broken, sizeof broken }, 1 << 20, &all, &why));
    assert_string_equal(why.message, "damaged or cut off gzip");
    assert_int_equal(why.code, TINKC_E_UNPROCESSABLE);
    tkc_buf_free(&all);
    static const char *const others[] = { "1f8c0800", "1f8b09000000000000ffcb48cdc9", "28b52ffd" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        assert_false(tke_gunzip(unhex(&arena, others[i]), N, &out, &err));
        assert_string_equal(err.message, "not gzip");
        tkc_buf_free(&out);
    }
    tkc_arena_free(&arena);
}
