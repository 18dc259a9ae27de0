/* test_decode.c - tokens to text: replacement, special tokens, and streams in any pieces. */
#include "tok_support.h"

TEST(stream_equals_batch)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    uint32_t size = (uint32_t)tinkc_tokenizer_size(tok);
    dice d = { 42 };
    for (int round = 0; round < 4000; round++) {
        tinkc_decode_options o = { .skip_special = roll(&d, 2), .raw_bytes = roll(&d, 4) == 0 };
        tinkc_error err = { 0 };
        tinkc_text batch = { 0 }, stream = { 0 };
        int32_t ids[60];
        size_t n = roll(&d, 60), at = 0;
        for (size_t i = 0; i < n; i++) /* mostly single bytes: half characters */
            ids[i] = (int32_t)(roll(&d, 3) ? roll(&d, 256) : roll(&d, size + 5)) - (roll(&d, 50) == 0);
        assert_true(tinkc_decode_span(tok, ids, n, &o, &batch, &err));
        tinkc_decoder *decoder = tinkc_decoder_new(tok, &o, &err);
        while (at < n) {
            size_t some = roll(&d, 4);
            some = some > n - at ? n - at : some;
            assert_true(tinkc_decoder_push(decoder, ids + at, some, &stream, &err));
            if (!o.raw_bytes) /* never half a character */
                assert_int_equal(tkc_utf8_sound((unsigned char *)stream.data, stream.len, NULL), stream.len);
            at += some;
        }
        assert_true(tinkc_decoder_finish(decoder, &stream, &err));
        assert_int_equal(stream.len, batch.len);
        if (batch.len)
            assert_memory_equal(stream.data, batch.data, batch.len);
        tinkc_decoder_free(decoder);
        tinkc_text_free(&batch);
        tinkc_text_free(&stream);
    }
    tinkc_tokenizer_free(tok);
}

/* One U+FFFD for each maximal part that could have begun a character. */
TEST(each_broken_part_becomes_one_replacement_character)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        { "a\xFFz", "a\xEF\xBF\xBDz" },
        { "\xE2\x82", "\xEF\xBF\xBD" },
        { "\xE2\x82\x41", "\xEF\xBF\xBD\x41" },
        { "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80" },
        { "\xF0\x9F\x98", "\xEF\xBF\xBD" },
        { "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41" },
    };
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        tinkc_tokens ids = { 0 };
        tinkc_text out = { 0 };
        tinkc_encode_options any = { .any_bytes = true };
        tinkc_encode_span(tok, cases[i].bytes, strlen(cases[i].bytes), &any, &ids, NULL, &err);
        assert_string_equal(tinkc_decode(tok, ids.data, ids.len, &out, &err), cases[i].text);
        tinkc_tokens_free(&ids);
        tinkc_text_free(&out);
    }
    tinkc_tokenizer_free(tok);
}

TEST(half_is_held_back)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_text out = { 0 };
    tinkc_encode(tok, "\xF0\x9F\x98\x80", &ids, &err); /* a token for each byte */
    assert_int_equal(ids.len, 4);
    tinkc_decoder *d = tinkc_decoder_new(tok, NULL, &err);
    for (size_t i = 0; i < 3; i++) {
        assert_true(tinkc_decoder_push(d, ids.data + i, 1, &out, &err));
        assert_int_equal(out.len, 0);
    }
    assert_true(tinkc_decoder_push(d, ids.data + 3, 1, &out, &err));
    assert_string_equal(out.data, "\xF0\x9F\x98\x80");
    /* What is left is replaced at the end, and the decoder starts over. */
    out.len = 0;
    assert_true(tinkc_decoder_push(d, ids.data, 2, &out, &err));
    assert_true(tinkc_decoder_finish(d, &out, &err));
    assert_string_equal(out.data, "\xEF\xBF\xBD");
    assert_true(tinkc_decoder_finish(d, &out, &err));
    assert_int_equal(out.len, 3);
    tinkc_decoder_free(d);
    tinkc_tokens_free(&ids);
    tinkc_text_free(&out);
    tinkc_tokenizer_free(tok);
}

TEST(ids_without_a_token_are_refused)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    tinkc_error err = { 0 };
    tinkc_text out = { 0 };
    int32_t end = tinkc_tokenizer_id(tok, "<|end|>"), late = tinkc_tokenizer_id(tok, "<|late|>");
    int32_t x = tinkc_tokenizer_id(tok, "x");
    assert_true(end > 0 && late > end && x >= 0);
    assert_int_equal(late + 1, tinkc_tokenizer_size(tok));
    const int32_t ids[] = { x, end, INT32_MAX, INT32_MIN, -1, late, x, tinkc_tokenizer_size(tok) };
    assert_string_equal(tinkc_decode(tok, ids, 8, &out, &err), "x<|end|><|late|>x");
    tinkc_decode_options skip = { .skip_special = true };
    out.len = 0;
    assert_true(tinkc_decode_span(tok, ids, 8, &skip, &out, &err));
    assert_string_equal(out.data, "xx");
    /* Appends. */
    assert_true(tinkc_decode_span(tok, ids, 1, NULL, &out, &err));
    assert_string_equal(out.data, "xxx");
    assert_string_equal(tinkc_decode(tok, NULL, 0, &out, &err), "");
    tinkc_text_free(&out);
    tinkc_tokenizer_free(tok);
}
