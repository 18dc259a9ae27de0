/* test_digest.c - the standard's examples, and every way of cutting the input. */
#include "base/digest.h"
#include "support/test_case.h"

static void check(const char *text, const char *sha256, const char *sha1)
{
    char hex[TKC_SHA256_HEX];
    tkc_digest d;
    tkc_sha256_init(&d);
    tkc_digest_add(&d, text, strlen(text));
    tkc_digest_hex(&d, hex);
    assert_string_equal(hex, sha256);
    tkc_sha1_init(&d);
    tkc_digest_add(&d, text, strlen(text));
    tkc_digest_hex(&d, hex);
    assert_string_equal(hex, sha1);
}

TEST(digests_of_known_texts)
{
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
          "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
          "a9993e364706816aba3e25717850c26c9cd0d89d");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
          "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
}

TEST(a_million_letters_in_pieces)
{
    static char piece[1000];
    char hex[TKC_SHA256_HEX];
    tkc_digest d;
    memset(piece, 'a', sizeof piece);
    tkc_sha256_init(&d);
    for (int i = 0; i < 1000; i++)
        tkc_digest_add(&d, piece, sizeof piece);
    tkc_digest_hex(&d, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(a_digest_does_not_depend_on_the_pieces)
{
    unsigned char data[200];
    char whole[TKC_SHA256_HEX], cut[TKC_SHA256_HEX];
    tkc_digest d;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7);
    for (size_t len = 0; len <= sizeof data; len++) {
        tkc_sha256_init(&d);
        tkc_digest_add(&d, data, len);
        tkc_digest_hex(&d, whole);
        for (size_t at = 0; at <= len; at += 13) {
            tkc_sha256_init(&d);
            tkc_digest_add(&d, data, at);
            tkc_digest_add(&d, data + at, len - at);
            tkc_digest_hex(&d, cut);
            assert_string_equal(whole, cut);
        }
    }
}

/* The plain code gives what the processor's instructions give (where there are none: itself). */
TEST(the_plain_code_agrees_with_the_processors_instructions)
{
    unsigned char data[700];
    char fast[TKC_SHA256_HEX], plain[TKC_SHA256_HEX];
    tkc_digest d;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 131 + i / 7);
    for (size_t len = 0; len <= sizeof data; len += 13) {
        tkc_sha256_init(&d);
        tkc_digest_add(&d, data, len);
        tkc_digest_hex(&d, fast);
        tkc_sha256_init(&d);
        d.hardware = false;
        tkc_digest_add(&d, data, len);
        tkc_digest_hex(&d, plain);
        assert_string_equal(fast, plain);
    }
}

/* Nothing may come without an address, in the middle of a block too. */
TEST(nothing_may_be_added_without_an_address)
{
    char hex[TKC_SHA256_HEX];
    tkc_digest d;
    tkc_sha256_init(&d);
    tkc_digest_add(&d, NULL, 0);
    tkc_digest_add(&d, "ab", 2);
    tkc_digest_add(&d, NULL, 0);
    tkc_digest_add(&d, "c", 1);
    tkc_digest_hex(&d, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
