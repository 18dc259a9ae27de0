/* test_vocab.c - the texts of tokens, and where a character ends. */
#include "service/worker/vocab.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"

static tke_vocab *vocab_of(const char *json)
{
    tinkc_error err = { 0 };
    tke_vocab *v = tke_vocab_parse(NULL, tkc_str(json), &err);
    assert_ok(err);
    return v;
}

/* Byte-level vocabularies: 33-126, 161-172 and 174-255 stand for themselves; the others are U+0100
 * and up in order: 0-32, 127-160, 173. */
TEST(bytes_have_their_letters)
{
    char json[40000], *at = json;
    unsigned wanted[256], n_others = 0;
    at += sprintf(at, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        wanted[b] = itself ? b : 256 + n_others++;
        at += sprintf(at, "%s\"\\u%04x\":%u", b ? "," : "", wanted[b], b);
    }
    sprintf(at, "},\"merges\":[]}}");
    assert_int_equal(n_others, 68);
    tke_vocab *v = vocab_of(json);
    for (int b = 0; b < 256; b++) {
        tinkc_str bytes = tke_vocab_bytes(v, b);
        assert_int_equal(bytes.len, 1);
        assert_int_equal((unsigned char)bytes.data[0], b);
    }
    assert_int_equal(tke_vocab_bytes(v, 256).len, 0);
    tke_vocab_free(v);
}

TEST(vocabularies_of_each_kind_are_read)
{
    static const struct {
        const char *text, *bytes;
    } rows[] = {
        { "\\u0120a\\u010a", " a\n" },
        { "\\u0143", "\xad" },
        { "\\u0144a", "\xc5\x84"
                      "a" },       /* beyond the alphabet: kept as it is */
        { "\\u0541", "\xd5\x81" }, /* not the alphabet's U+0141, U+0146, U+0120 with more bits */
        { "\\u8146", "\xe8\x85\x86" },
        { "\\udbc0\\udd20", "\xf4\x80\x84\xa0" },
        { "a b", "a b" }, /* so is a plain space */
        { "\\u0120\\u00ad", "\xc4\xa0\xc2\xad" },
        { "\\u2581x", "\xe2\x96\x81x" },
        { "\\ud83d\\ude00", "\xf0\x9f\x98\x80" },
        { "\\u0120\\ud83d\\ude00", "\xc4\xa0\xf0\x9f\x98\x80" },
        { "", "" },
    };
    char json[300];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(json, sizeof json, "{\"model\":{\"vocab\":{\"%s\":3}}}", rows[i].text);
        tke_vocab *v = vocab_of(json);
        assert_str(tke_vocab_bytes(v, 3), rows[i].bytes);
        for (int id = 0; id < 3; id++)
            assert_int_equal(tke_vocab_bytes(v, id).len, 0);
        tke_vocab_free(v);
    }
    /* Added tokens count wherever they stand, and are what they say. */
    static const char *const both[] = {
        "{\"added_tokens\":[{\"content\":\"\\u0120<x>\",\"id\":1,\"special\":true}],"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1}}}",
        "{\"version\":\"1\",\"model\":{\"vocab\":{\"a\":0,\"b\":1}},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"\\u0120<x>\"}]}",
    };
    for (int i = 0; i < 2; i++) {
        tke_vocab *v = vocab_of(both[i]);
        const char *bytes;
        assert_str(tke_vocab_bytes(v, 0), "a");
        assert_str(tke_vocab_bytes(v, 1), "\xc4\xa0<x>");
        assert_int_equal(tke_vocab_token_bytes(v, 1, &bytes), 5);
        assert_memory_equal(bytes, "\xc4\xa0<x>", 5);
        tke_vocab_free(v);
    }
    tke_vocab *list = vocab_of("{\"model\":{\"vocab\":[[\"a\",0]]}}"); /* another kind of model */
    assert_int_equal(tke_vocab_bytes(list, 0).len, 0);
    tke_vocab_free(list);
    assert_int_equal(tke_vocab_bytes(NULL, 0).len, 0);
}

static void *dirty_alloc(size_t size, void *user)
{
    (void)user;
    void *p = malloc(size);
    return p ? memset(p, 0x5a, size) : NULL;
}
static void *dirty_resize(void *old, size_t old_size, size_t size, void *user)
{
    char *p = dirty_alloc(size, user);
    if (p && old)
        memcpy(p, old, old_size < size ? old_size : size);
    if (p)
        free(old);
    return p;
}
static void dirty_release(void *p, size_t size, void *user)
{
    (void)size, (void)user;
    free(p);
}

/* Ids between those of a vocabulary have no text, whatever was in that memory before. */
TEST(ids_without_tokens)
{
    static const tinkc_allocator dirty = { dirty_alloc, dirty_resize, dirty_release, NULL };
    tinkc_error err = { 0 };
    tke_vocab *v =
        tke_vocab_parse(&dirty, tkc_str("{\"model\":{\"vocab\":{\"a\":0,\"b\":40,\"c\":20,\"d\":300}}}"), &err);
    assert_ok(err);
    for (int32_t id = -1; id < 310; id++) {
        const char *text = id == 0 ? "a" : id == 40 ? "b" : id == 20 ? "c" : id == 300 ? "d" : "";
        assert_str(tke_vocab_bytes(v, id), text);
    }
    tke_vocab_free(v);
}

TEST(a_token_id_has_bounds)
{
    static const struct {
        const char *id;
        bool ok;
    } rows[] = { { "0", true }, { "4194303", true }, { "4194304", false }, { "-1", false } };
    char json[200], text[100];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int added = 0; added < 2; added++) {
            tinkc_error err = { 0 };
            snprintf(json, sizeof json,
                     added ? "{\"added_tokens\":[{\"id\":%s,\"content\":\"a\"}]}"
                           : "{\"model\":{\"vocab\":{\"a\":%s}}}",
                     rows[i].id);
            tke_vocab *v = tke_vocab_parse(NULL, tkc_str(json), &err);
            assert_int_equal(v != NULL, rows[i].ok);
            if (v)
                assert_str(tke_vocab_bytes(v, (int32_t)strtol(rows[i].id, NULL, 10)), "a");
            else {
                snprintf(text, sizeof text, "tokenizer.json: token id %s is out of range", rows[i].id);
                assert_string_equal(err.message, text);
                assert_int_equal(err.code, TINKC_E_TOKENIZER);
            }
            tke_vocab_free(v);
        }
    tinkc_error err = { 0 };
    assert_null(tke_vocab_parse(NULL, tkc_str("{\"added_tokens\":[{\"content\":\"a\"}]}"), &err));
    assert_string_equal(err.message, "tokenizer.json: token id -1 is out of range");
    char *folder = tiny_folder(); /* a folder without the file has no vocabulary, and no error */
    err = (tinkc_error){ 0 };
    assert_null(tke_vocab_open(NULL, folder, &err));
    assert_ok(err);
    tiny_write(folder, "tokenizer.json", "{\"model\":{\"vocab\":{\"a\":0}}}");
    tke_vocab *v = tke_vocab_open(NULL, folder, &err);
    assert_str(tke_vocab_bytes(v, 0), "a");
    tke_vocab_free(v);
    tiny_write(folder, "tokenizer.json", "{");
    assert_null(tke_vocab_open(NULL, folder, &err));
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    tiny_model_remove(folder);
}

TEST(text_ends_at_a_whole_character)
{
    static const struct {
        const char *text;
        size_t whole;
        const char *clean;
    } rows[] = {
        { "", 0, "" },
        { "a", 1, "a" },
        { "\xc3", 0, "\xef\xbf\xbd" },
        { "\xc3\xa9", 2, "\xc3\xa9" },
        { "\xdf", 0, "\xef\xbf\xbd" },
        { "\xe0", 0, "\xef\xbf\xbd" },
        { "\xc1", 1, "\xef\xbf\xbd" }, /* never the first byte of anything */
        { "a\xe2\x96", 1, "a\xef\xbf\xbd\xef\xbf\xbd" },
        { "a\xe2", 1, "a\xef\xbf\xbd" },
        { "\xe2\x96\x81", 3, "\xe2\x96\x81" },
        { "\xef\xbf", 0, "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f\x98", 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f", 0, "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80" },
        { "b\x80", 2, "b\xef\xbf\xbd" },
        { "\x80\x80\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xff"
          "c\xfe",
          2,
          "\xef\xbf\xbd"
          "c\xef\xbf\xbd" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        size_t n = strlen(rows[i].text);
        char *text = exact_copy(rows[i].text, n);
        assert_int_equal(tke_utf8_whole(tkc_strn(text, n)), rows[i].whole);
        assert_true(tke_utf8_clean(&out, tkc_strn(text, n), &err));
        assert_str(tkc_buf_view(&out), rows[i].clean);
        free_copy(text, n);
        tkc_buf_free(&out);
    }
}
