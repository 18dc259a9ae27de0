/* test_encode.c - the encoding calls: options, offsets, threads, and what bad input gets. */
#include "tok_support.h"

/* Which added tokens are looked for. */
TEST(the_option_says_which_added_tokens_are_found)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    const char *text = "x<|end|><tool>";
    int32_t end = tinkc_tokenizer_id(tok, "<|end|>"), tool = tinkc_tokenizer_id(tok, "<tool>");
    for (int32_t special = TINKC_SPECIAL_ALL; special <= TINKC_SPECIAL_NONE; special++) {
        tinkc_error err = { 0 };
        tinkc_tokens got = { 0 };
        tinkc_encode_options o = { .special = special };
        bool has_end = false, has_tool = false;
        assert_true(tinkc_encode_span(tok, text, strlen(text), &o, &got, NULL, &err));
        for (size_t i = 0; i < got.len; i++) {
            has_end |= got.data[i] == end;
            has_tool |= got.data[i] == tool;
        }
        assert_int_equal(has_end, special == TINKC_SPECIAL_ALL);
        assert_int_equal(has_tool, special != TINKC_SPECIAL_NONE);
        assert_int_equal(tinkc_encode_count(tok, text, strlen(text), &o, &err), got.len);
        tinkc_tokens_free(&got);
    }
    tinkc_tokenizer_free(tok);
}

/* Offsets lie side by side, and the bytes between them are the token's where nothing changed. */
TEST(offsets_lie_side_by_side)
{
    static unsigned char text[2000];
    static const char *const folders[] = { TINY, TINY_NFC };
    for (size_t f = 0; f < 2; f++) {
        tinkc_tokenizer *tok = open_tokenizer(folders[f]);
        dice d = { 3 };
        for (int i = 0; i < 2000; i++) {
            tinkc_error err = { 0 };
            tinkc_tokens got = { 0 }, plain = { 0 };
            tinkc_sizes offsets = { 0 };
            size_t len = random_text(&d, text, 60), at = 0;
            assert_true(tinkc_encode_span(tok, (char *)text, len, NULL, &got, &offsets, &err));
            plain = encode_all(tok, text, len);
            assert_same_ids(&got, plain.data, plain.len);
            assert_int_equal(offsets.len, 2 * got.len);
            for (size_t k = 0; k < got.len; k++) {
                size_t from = offsets.data[2 * k], to = offsets.data[2 * k + 1];
                assert_true(from <= to && to <= len);
                tinkc_bytes bytes = tinkc_tokenizer_bytes(tok, got.data[k]);
                if (f == 0) {
                    assert_int_equal(from, at);
                    assert_int_equal(to - from, bytes.len);
                    assert_memory_equal(text + from, bytes.data, bytes.len);
                }
                at = to;
            }
            if (f == 0)
                assert_int_equal(at, len);
            tinkc_tokens_free(&got);
            tinkc_tokens_free(&plain);
            tinkc_sizes_free(&offsets);
        }
        tinkc_tokenizer_free(tok);
    }
}

/* Words of ASCII letters have a fast path, which texts with offsets do not take. */
TEST(words_of_any_length_end_where_the_pattern_ends_them)
{
    static const char *const behind[] = { " x", "\xC3\xA9", "'s", "1", ".", "\n", "" };
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    for (size_t n = 1; n < 40; n++)
        for (size_t k = 0; k < 2 * sizeof behind / sizeof *behind; k++) {
            char text[200];
            size_t at = 0;
            tinkc_error err = { 0 };
            tinkc_tokens fast = { 0 }, slow = { 0 };
            tinkc_sizes places = { 0 };
            text[at] = ' ';
            at += k % 2;
            for (size_t i = 0; i < n; i++)
                text[at++] = (char)('a' + (i * 7 + n) % 26);
            snprintf(text + at, sizeof text - at, "%s and then the words of a text that goes further", behind[k / 2]);
            assert_true(tinkc_encode_span(tok, text, strlen(text), NULL, &fast, NULL, &err));
            assert_true(tinkc_encode_span(tok, text, strlen(text), NULL, &slow, &places, &err));
            assert_same_ids(&fast, slow.data, slow.len);
            tinkc_tokens_free(&fast);
            tinkc_tokens_free(&slow);
            tinkc_sizes_free(&places);
        }
    tinkc_tokenizer_free(tok);
}

TEST(offsets_of_normal_form)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = open_tokenizer(TINY_NFC);
    const char *text = "ab e\xCC\x81 z"; /* e and an acute accent become one character */
    tinkc_tokens got = { 0 };
    tinkc_sizes offsets = { 0 };
    assert_true(tinkc_encode_span(tok, text, strlen(text), NULL, &got, &offsets, &err));
    assert_int_equal(offsets.data[0], 0);
    assert_int_equal(offsets.data[offsets.len - 1], strlen(text));
    bool found = false;
    for (size_t i = 0; i < got.len; i++)
        found |= offsets.data[2 * i] <= 3 && offsets.data[2 * i + 1] == 6;
    assert_true(found);
    tinkc_tokens_free(&got);
    tinkc_sizes_free(&offsets);
    tinkc_tokenizer_free(tok);
}

/* Only what changed is one: a line break before it and a letter behind it are their own. */
TEST(offsets_beside_normal_form)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY_NFC);
    const char *text = "\n\xE2\x84\xABx"; /* the sign of Angstrom, three bytes, becomes two */
    tinkc_tokens got = { 0 };
    tinkc_sizes offsets = { 0 };
    tinkc_error err = { 0 };
    bool own[2] = { false, false };
    assert_true(tinkc_encode_span(tok, text, strlen(text), NULL, &got, &offsets, &err));
    for (size_t i = 0; i < got.len; i++) {
        size_t from = offsets.data[2 * i], to = offsets.data[2 * i + 1];
        own[0] |= from == 0 && to == 1;
        own[1] |= from == 4 && to == 5;
        assert_true(from >= 1 || to <= 1);
    }
    assert_true(own[0] && own[1]);
    tinkc_tokens_free(&got);
    tinkc_sizes_free(&offsets);
    tinkc_tokenizer_free(tok);
}

/* An added token that is looked for in normalised text has its own place, too. */
TEST(offsets_of_added_tokens)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":2,\"content\":\"zz\",\"single_word\":false,"
        "\"lstrip\":false,\"rstrip\":false,\"normalized\":true,\"special\":false}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{"
        "\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"z\":1},\"merges\":[]}}";
    static const size_t want[] = { 0, 1, 1, 3, 3, 4 };
    tinkc_error err = { 0 };
    tinkc_tokens got = { 0 };
    tinkc_sizes offsets = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_parse(json, sizeof json - 1, NULL, 0, NULL, &err);
    assert_true(tinkc_encode_span(tok, "azza", 4, NULL, &got, &offsets, &err));
    assert_int_equal(offsets.len, 6);
    assert_memory_equal(offsets.data, want, sizeof want);
    tinkc_tokens_free(&got);
    tinkc_sizes_free(&offsets);
    tinkc_tokenizer_free(tok);
}

static char *long_text(size_t *len)
{
    enum { LEN = 3 << 20 };
    dice d = { 77 };
    char *text = malloc(LEN + 4096);
    size_t n = 0;
    assert_non_null(text);
    while (n < LEN) {
        n += random_text(&d, (unsigned char *)text + n, 30);
        memcpy(text + n, " some words here ", 17);
        n += 17;
    }
    *len = n;
    return text;
}

/* The same ids, however many threads. */
TEST(ids_do_not_depend_on_the_number_of_threads)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY_NFC);
    size_t len;
    char *text = long_text(&len);
    tinkc_tokens want = encode_all(tok, text, len);
    for (int32_t threads = 2; threads <= 5; threads++) {
        tinkc_error err = { 0 };
        tinkc_tokens got = { 0 };
        tinkc_encode_options o = { .threads = threads };
        assert_true(tinkc_encode_span(tok, text, len, &o, &got, NULL, &err));
        assert_same_ids(&got, want.data, want.len);
        tinkc_tokens_free(&got);
    }
    tinkc_tokens_free(&want);
    free(text);
    tinkc_tokenizer_free(tok);
}

/* A long text that is cut for several threads (by a tokenizer whose added tokens have no rules about their
 * surroundings) has its marks once, in front and at the end, and the same ids between them. */
TEST(marks_stand_around_the_whole_text)
{
    static const char config[] = "{\"bos_token\":\"<|im_start|>\",\"eos_token\":\"<|im_end|>\","
                                 "\"add_bos_token\":true,\"add_eos_token\":true}";
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    size_t len;
    char *text = long_text(&len);
    tinkc_bytes json = tkc_read_file(&arena, "models/nano/tokenizer.json", 1 << 20, &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_parse((const char *)json.data, json.len, config, strlen(config), NULL, &err);
    assert_non_null(tok);
    tinkc_tokens want = encode_all(tok, text, len);
    for (int32_t threads = 1; threads <= 3; threads++) {
        tinkc_tokens got = { 0 };
        tinkc_encode_options o = { .threads = threads, .add_special = true };
        assert_true(tinkc_encode_span(tok, text, len, &o, &got, NULL, &err));
        assert_int_equal(got.len, want.len + 2);
        assert_int_equal(got.data[0], tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS));
        assert_int_equal(got.data[got.len - 1], tinkc_tokenizer_special(tok, TINKC_TOKEN_EOS));
        assert_memory_equal(got.data + 1, want.data, want.len * sizeof *want.data);
        tinkc_tokens_free(&got);
    }
    tinkc_tokens_free(&want);
    tinkc_tokenizer_free(tok);
    tkc_arena_free(&arena);
    free(text);
}

TEST(many_texts_are_encoded_as_each_alone)
{
    enum { N = 200 };
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    size_t len;
    char *text = long_text(&len);
    tinkc_str texts[N];
    tinkc_tokens want = { 0 };
    tinkc_sizes want_ends = { 0 };
    tinkc_error err = { 0 };
    for (size_t i = 0; i < N; i++) { /* begins at a character */
        size_t at = i * 1000, to;
        while (((unsigned char)text[at] & 0xC0) == 0x80)
            at++;
        for (to = at + i * 7; ((unsigned char)text[to] & 0xC0) == 0x80; to++)
            ;
        texts[i] = tkc_strn(text + at, to - at);
    }
    tinkc_encode_options o = { .add_special = true };
    assert_true(tinkc_encode_many(tok, texts, N, &o, &want, &want_ends, &err));
    assert_int_equal(want_ends.len, N);
    assert_int_equal(want_ends.data[N - 1], want.len);
    o.threads = 4;
    tinkc_tokens got = { 0 };
    tinkc_sizes ends = { 0 };
    assert_true(tinkc_encode_many(tok, texts, N, &o, &got, &ends, &err));
    assert_same_ids(&got, want.data, want.len);
    assert_memory_equal(ends.data, want_ends.data, N * sizeof *ends.data);
    /* One bad text: all fails, nothing is left behind. */
    texts[150] = tkc_str("\xFF");
    size_t before = got.len;
    assert_false(tinkc_encode_many(tok, texts, N, &o, &got, &ends, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_int_equal(got.len, before);
    assert_int_equal(ends.len, N);
    tinkc_tokens_free(&got);
    tinkc_tokens_free(&want);
    tinkc_sizes_free(&ends);
    tinkc_sizes_free(&want_ends);
    free(text);
    tinkc_tokenizer_free(tok);
}

TEST(text_that_is_not_utf8_is_refused)
{
    static const char *const bad[] = { "ok \xFF",   "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                       "a\xE2\x82", "\x80",     "\xE2\x28\xA1" };
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tinkc_error err = { 0 };
        tinkc_tokens out = { 0 };
        tinkc_text back = { 0 };
        size_t len = strlen(bad[i]);
        assert_false(tinkc_encode(tok, bad[i], &out, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_int_equal(out.len, 0);
        /* Every byte comes through with any_bytes. */
        err = (tinkc_error){ 0 };
        tinkc_encode_options o = { .any_bytes = true };
        tinkc_decode_options raw = { .raw_bytes = true };
        assert_true(tinkc_encode_span(tok, bad[i], len, &o, &out, NULL, &err));
        assert_true(tinkc_decode_span(tok, out.data, out.len, &raw, &back, &err));
        assert_int_equal(back.len, len);
        assert_memory_equal(back.data, bad[i], len);
        tinkc_tokens_free(&out);
        tinkc_text_free(&back);
    }
    tinkc_error err = { 0 };
    tinkc_tokens out = { 0 };
    assert_false(tinkc_encode(tok, "ok \xFF", &out, &err));
    assert_non_null(strstr(err.message, "byte 3"));
    tinkc_tokenizer_free(tok);
}

/* What the caller's arrays held before a text that fails is what they hold after it: with marks, with offsets, one text or
 * several, on one thread or more. */
TEST(a_failed_text_leaves_the_callers_arrays_as_they_were)
{
    enum { LONG = 3 << 18 };
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    char *text = malloc(LONG);
    assert_non_null(text);
    for (size_t i = 0; i < LONG; i++)
        text[i] = "the cat sat on "[i % 15];
    text[LONG - 1] = '\xFF';
    const struct {
        const char *text;
        size_t len;
    } bad[] = { { "ok \xFF", 4 }, { text, LONG } };
    for (int32_t threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < 2; i++) {
            tinkc_encode_options o = { .add_special = true, .threads = threads };
            tinkc_tokens out = { 0 };
            tinkc_sizes offsets = { 0 }, ends = { 0 };
            tinkc_error err = { 0 };
            assert_true(tinkc_encode_span(tok, "x", 1, &o, &out, &offsets, &err));
            assert_int_equal(out.len, 2); /* BOS and x */
            assert_int_equal(offsets.len, 4);
            assert_false(tinkc_encode_span(tok, bad[i].text, bad[i].len, &o, &out, NULL, &err));
            assert_int_equal(err.code, TINKC_E_ARGUMENT);
            assert_int_equal(out.len, 2);
            err = (tinkc_error){ 0 };
            assert_false(tinkc_encode_span(tok, bad[i].text, bad[i].len, &o, &out, &offsets, &err));
            assert_int_equal(out.len, 2);
            assert_int_equal(offsets.len, 4);
            tinkc_str texts[] = { { "x", 1 }, { bad[i].text, bad[i].len }, { "x", 1 } };
            err = (tinkc_error){ 0 };
            assert_false(tinkc_encode_many(tok, texts, 3, &o, &out, &ends, &err));
            assert_int_equal(out.len, 2);
            assert_int_equal(ends.len, 0);
            tinkc_tokens_free(&out);
            tinkc_sizes_free(&offsets);
            tinkc_sizes_free(&ends);
        }
    free(text);
    tinkc_tokenizer_free(tok);
}

TEST(random_bytes_are_refused_or_decoded_back)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    dice d = { 11 };
    for (int i = 0; i < 3000; i++) {
        unsigned char text[100];
        size_t len = roll(&d, sizeof text);
        tinkc_error err = { 0 };
        tinkc_tokens out = { 0 };
        tinkc_text back = { 0 };
        tinkc_encode_options o = { .any_bytes = true };
        tinkc_decode_options raw = { .raw_bytes = true };
        for (size_t k = 0; k < len; k++)
            text[k] = (unsigned char)roll(&d, 256);
        assert_true(tinkc_encode_span(tok, (char *)text, len, &o, &out, NULL, &err));
        assert_true(tinkc_decode_span(tok, out.data, out.len, &raw, &back, &err));
        assert_int_equal(back.len, len);
        assert_memory_equal(back.data, text, len);
        tinkc_tokens_free(&out);
        tinkc_text_free(&back);
    }
    tinkc_tokenizer_free(tok);
}

static void expect_argument(bool ok, tinkc_error *err)
{
    assert_false(ok);
    assert_int_equal(err->code, TINKC_E_ARGUMENT);
    *err = (tinkc_error){ 0 };
}

TEST(arguments_of_encode_are_checked)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    tinkc_error err = { 0 };
    tinkc_tokens out = { 0 };
    tinkc_encode_options o = { .special = 9 };
    expect_argument(tinkc_encode(NULL, "x", &out, &err), &err);
    expect_argument(tinkc_encode(tok, NULL, &out, &err), &err);
    expect_argument(tinkc_encode(tok, "x", NULL, &err), &err);
    expect_argument(tinkc_encode_span(tok, "x", 1, &o, &out, NULL, &err), &err);
    o = (tinkc_encode_options){ .threads = -1 };
    expect_argument(tinkc_encode_span(tok, "x", 1, &o, &out, NULL, &err), &err);
    o = (tinkc_encode_options){ .reserved = { 1 } };
    expect_argument(tinkc_encode_span(tok, "x", 1, &o, &out, NULL, &err), &err);
    o = (tinkc_encode_options){ .reserved_bools = { true } };
    expect_argument(tinkc_encode_span(tok, "x", 1, &o, &out, NULL, &err), &err);
    tinkc_text text = { 0 };
    static const tinkc_decode_options wrong[] = { { .reserved = { 1 } }, { .reserved_bools = { true } } };
    for (size_t i = 0; i < 2; i++)
        expect_argument(tinkc_decode_span(tok, (int32_t[]){ 0 }, 1, &wrong[i], &text, &err), &err);
    assert_int_equal(text.len, 0);
    /* After an error nothing happens. */
    err.code = TINKC_E_STATE;
    assert_false(tinkc_encode(tok, "x", &out, &err));
    assert_int_equal(out.len, 0);
    assert_int_equal(tinkc_encode_count(tok, "hello", 5, NULL, NULL) > 0, 1);
    tinkc_tokenizer_free(tok);
}
