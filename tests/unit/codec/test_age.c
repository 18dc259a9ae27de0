/* test_age.c - the age format: what we sealed is opened again by each of its keys, and nothing else is. That other programs agree
 * is in test_age_files.c. */
#include "support/check.h"
#include "support/age_keys.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })

enum { CHUNK = TKC_AGE_CHUNK, SEALED = CHUNK + TKC_AGE_TAG };
static char text[3 * CHUNK];

static void fill_text(void)
{
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 2654435761u >> 11);
}

TEST(each_identity_opens_what_was_sealed_to_it)
{
    static const size_t lengths[] = { 0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, sizeof text };
    fill_text();
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        tinkc_error err = { 0 };
        tkc_buf file;
        size_t n;
        tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
        age_seal_text(PAIRS(age_keys[0].recipient, age_keys[1].recipient), text, lengths[i / 2], &file);
        unsigned char *got = age_open_text((tinkc_bytes){ (unsigned char *)file.data, file.len },
                                           PAIRS(age_keys[i % 2].identity), &n, &err);
        assert_ok(err);
        assert_int_equal(n, lengths[i / 2]);
        assert_memory_equal(got, text, n);
        free(got);
        tkc_buf_free(&file);
    }
}

/* The file, refused with this code and these words. */
static void refused(tinkc_bytes file, const char *const *identities, int32_t code, const char *words)
{
    tinkc_error err = { 0 };
    size_t n;
    assert_null(age_open_text(file, identities, &n, &err));
    if ((code && err.code != code) || !strstr(err.message, words))
        fail_msg("%d %s, not %d %s", err.code, err.message, code, words);
}

TEST(another_key_is_told_from_a_damaged_file)
{
    tkc_buf file;
    tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
    age_seal_text(PAIRS(age_keys[0].recipient), "secret", 6, &file);
    tinkc_bytes all = { (unsigned char *)file.data, file.len };
    refused(all, PAIRS(age_keys[1].identity), TINKC_E_ARGUMENT, "encrypted to another key");
    file.data[file.len - 1] ^= 1;
    refused(all, PAIRS(age_keys[1].identity, age_keys[0].identity), TINKC_E_BAD_RESPONSE,
            "was changed or is incomplete");
    tkc_buf_free(&file);
}

TEST(no_changed_bit_goes_unnoticed)
{
    tkc_buf file;
    tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
    age_seal_text(PAIRS(age_keys[0].recipient), "secret", 6, &file);
    for (size_t i = 0; i < 8 * file.len; i++) {
        file.data[i / 8] = (char)(file.data[i / 8] ^ 1 << i % 8);
        refused((tinkc_bytes){ (unsigned char *)file.data, file.len }, PAIRS(age_keys[0].identity), 0, "age: ");
        file.data[i / 8] = (char)(file.data[i / 8] ^ 1 << i % 8);
    }
    tkc_buf_free(&file);
}

TEST(no_shorter_file_goes_unnoticed)
{
    tkc_buf file;
    tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
    age_seal_text(PAIRS(age_keys[0].recipient), "secret", 6, &file);
    for (size_t n = 0; n < file.len; n++)
        refused((tinkc_bytes){ (unsigned char *)file.data, n }, PAIRS(age_keys[0].identity),
                TINKC_E_BAD_RESPONSE, "age: ");
    tkc_buf_free(&file);
}

/* Chunks are at their places: none is missing, added or moved, and only a file that is empty ends with an empty one. */
TEST(chunks_stay_in_order)
{
    tinkc_error err = { 0 };
    tkc_age_stream s;
    tkc_buf file, other;
    fill_text();
    tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&other, NULL, TKC_BUF_NO_MAX);
    age_seal_text(PAIRS(age_keys[0].recipient), text, sizeof text, &file);
    size_t head = file.len - 3 * SEALED;
    tinkc_bytes all = { (unsigned char *)file.data, file.len };
    refused((tinkc_bytes){ all.data, head + SEALED }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "incomplete");
    refused((tinkc_bytes){ all.data, head + 2 * SEALED }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "incomplete");
    refused((tinkc_bytes){ all.data, head + 2 * SEALED + 5 }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "incomplete");
    tkc_buf_add(&other, file.data, file.len, &err);
    tkc_buf_add(&other, file.data + head, SEALED, &err); /* one more */
    refused((tinkc_bytes){ (unsigned char *)other.data, other.len }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "changed");
    memcpy(other.data + head, file.data + head + SEALED, SEALED);
    memcpy(other.data + head + SEALED, file.data + head, SEALED); /* two change places */
    refused((tinkc_bytes){ (unsigned char *)other.data, file.len }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "changed");
    tkc_buf_clear(&other); /* a full chunk, then an empty one */
    unsigned char *sealed = malloc(SEALED);
    assert_true(tkc_age_begin(&s, PAIRS(age_keys[0].recipient), &other, &err));
    for (size_t i = 0; i < 2; i++) {
        size_t n = i ? 0 : CHUNK;
        assert_true(tkc_age_seal(&s, text, n, i, sealed, &err));
        tkc_buf_add(&other, sealed, n + TKC_AGE_TAG, &err);
    }
    assert_ok(err);
    refused((tinkc_bytes){ (unsigned char *)other.data, other.len }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "changed");
    free(sealed);
    tkc_buf_free(&file);
    tkc_buf_free(&other);
}

#define V1    "age-encryption.org/v1\n"
#define ZERO  "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
#define BODY  "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI\n"
#define SHARE "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI"

TEST(headers_are_read_strictly)
{
    static const struct {
        const char *file, *words;
    } rows[] = {
        { "", "not a file in the age format" },
        { "PK\3\4", "not a file in the age format" },
        { "age-encryption.org/v2\n", "not a file in the age format" },
        { "age-encryption.org/v1", "it has no end" },
        { "age-encryption.org/v12\n", "not a file in the age format" },
        { V1, "it has no end" },
        { V1 "x\n", "a line is neither a recipient nor the end" },
        { V1 "-> X25519 " SHARE "\n", "it has no end" },
        { V1 "-> X25519 " SHARE "x\n" BODY, "a recipient cannot be read" },
        { V1 "-> X25519 " SHARE " x\n" BODY, "a recipient cannot be read" },
        { V1 "-> X25519 MTI=\n" BODY, "a recipient cannot be read" },
        { V1 "-> X25519 " SHARE "\nMTI\n", "a recipient cannot be read" },
        { V1 "-> X25519 MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTJ\n" BODY, "a recipient cannot be read" },
        { V1 "-> X25519 " ZERO "\n" BODY, "a recipient has no usable key" },
        { V1 "-> other\n" SHARE SHARE "\n", "a line is too long" },
        { V1 "-> other\nMTI\n--- x\n", "its MAC cannot be read" },
        { V1 "-> X25519 " SHARE "\n" BODY "--- " SHARE "\n", "encrypted to another key" },
        { V1 "-> other a b\n\n-> X25519 " SHARE "\n" BODY "--- " SHARE "\n", "encrypted to another key" },
        { V1 "-> scrypt " SHARE " 18\n" BODY "--- " SHARE "\n", "encrypted to another key" },
        { "-----BEGIN AGE ENCRYPTED FILE-----\n", "armored files are not read" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused((tinkc_bytes){ (const unsigned char *)rows[i].file, strlen(rows[i].file) },
                PAIRS(age_keys[0].identity), 0, rows[i].words);
}

/* No header of any file is longer, so nothing is read in vain of one that claims to be. */
TEST(a_header_has_an_end)
{
    size_t len = 1 << 17;
    char *file = malloc(len);
    memset(file, '\n', len);
    memcpy(file, V1 "-> a\n", sizeof V1 + 4);
    for (size_t at = sizeof V1 + 4; at + 7 < len; at += 7)
        memcpy(file + at, "\n-> a b", 7);
    refused((tinkc_bytes){ (const unsigned char *)file, len }, PAIRS(age_keys[0].identity), TINKC_E_BAD_RESPONSE, "it has no end");
    free(file);
}

TEST(keys_are_read_strictly)
{
    unsigned char key[TKC_AGE_KEY];
    char changed[100];
    const char *good = age_keys[0].identity;
    assert_true(tkc_age_identity(good, key) && tkc_age_recipient(age_keys[0].recipient, key));
    assert_false(tkc_age_identity(age_keys[0].recipient, key) || tkc_age_recipient(good, key));
    for (size_t i = 0; i <= strlen(good); i++) {
        snprintf(changed, sizeof changed, "%s", good);
        changed[i] = i == strlen(good) ? 'Q' : good[i] == 'Q' ? 'P' : 'Q';
        changed[strlen(good) + 1] = '\0';
        assert_false(tkc_age_identity(changed, key)); /* one letter: the checksum tells */
        snprintf(changed, sizeof changed, "%.*s", (int)i, good);
        assert_int_equal(tkc_age_identity(changed, key), i == strlen(good));
    }
    for (size_t i = 0; good[i]; i++) /* in upper case alone */
        changed[i] = (char)(good[i] >= 'A' && good[i] <= 'Z' ? good[i] + 32 : good[i]);
    assert_false(tkc_age_identity(changed, key));
}
