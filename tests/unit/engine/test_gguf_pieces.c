/* test_gguf_pieces.c - the tokenizer of a GGUF file of SentencePiece ("llama"): what its keys say, and what is refused. How pieces are
 * merged and decoded is stated in unit/tokenizer/test_pieces.c. */
#include "service/worker/vocab.h"
#include "support/engine/tiny_gguf.h"
#include "support/test_case.h"

#include <math.h>

#include "base/str.h"
#include "tinkc/tinkc.h"

#define M "\xE2\x96\x81" /* U+2581 */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { BYTES = 3, SPACE = 259, A, B, AB, USER, N_TOKENS }; /* <unk>, <s>, </s>, the bytes, and these */

typedef struct file {
    gguf_bytes g;
    char bytes[256][8];
    const char *tokens[N_TOKENS];
    int32_t types[N_TOKENS];
    float scores[N_TOKENS];
    const char *model;
    size_t n_types, n_scores;
} file;

static void begin(file *f)
{
    static const char *const texts[] = { M, "a", "b", "ab", "!" };
    *f = (file){ .tokens = { "<unk>", "<s>", "</s>" }, .types = { UNKNOWN, CONTROL, CONTROL }, .model = "llama" };
    f->n_types = f->n_scores = N_TOKENS;
    for (int i = 0; i < 256; i++) {
        snprintf(f->bytes[i], sizeof f->bytes[i], "<0x%02X>", (unsigned)i);
        f->tokens[BYTES + i] = f->bytes[i];
        f->types[BYTES + i] = BYTE;
    }
    for (int i = SPACE; i < N_TOKENS; i++) {
        f->tokens[i] = texts[i - SPACE];
        f->types[i] = i == USER ? USER_DEFINED : NORMAL;
        f->scores[i] = -(float)i;
    }
    f->scores[0] = NAN; /* only scores of tokens that encoding produces count */
    gguf_bytes_init(&f->g);
    gguf_key_u32(&f->g, "tokenizer.ggml.bos_token_id", 1);
    gguf_key_u32(&f->g, "tokenizer.ggml.eos_token_id", 2);
}

static tinkc_tokenizer *finish(file *f, tinkc_error *err, tke_vocab **vocab)
{
    char *folder = tiny_folder(), path[512];
    gguf_key_text(&f->g, "tokenizer.ggml.model", f->model);
    gguf_key_texts(&f->g, "tokenizer.ggml.tokens", f->tokens, N_TOKENS);
    gguf_key_i32s(&f->g, "tokenizer.ggml.token_type", f->types, f->n_types);
    gguf_key_f32s(&f->g, "tokenizer.ggml.scores", f->scores, f->n_scores);
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    gguf_save(&f->g, path);
    gguf_bytes_free(&f->g);
    *err = (tinkc_error){ 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(path, NULL, err);
    if (vocab)
        *vocab = tke_vocab_open(NULL, path, err);
    tiny_model_remove(folder);
    return tok;
}

static void assert_ids(const tinkc_tokenizer *tok, const char *text, bool add_special, const int32_t *want, size_t n)
{
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_encode_options o = { .add_special = add_special };
    assert_true(tinkc_encode_span(tok, text, strlen(text), &o, &ids, NULL, &err));
    assert_int_equal(ids.len, n);
    assert_memory_equal(ids.data, want, n * sizeof *want);
    tinkc_tokens_free(&ids);
}

TEST(a_file_that_says_nothing_begins_texts_with_bos_and_a_space)
{
    file f;
    tinkc_error err;
    tke_vocab *vocab;
    tinkc_text out = { 0 };
    begin(&f);
    tinkc_tokenizer *tok = finish(&f, &err, &vocab);
    if (!tok)
        fail_msg("%s", err.message);
    static const int32_t marked[] = { 1, SPACE, AB, BYTES + '\n' }, user[] = { SPACE, A, USER, SPACE, B },
                         token[] = { 2, SPACE, B };
    assert_ids(tok, "ab\n", true, marked, 4);
    assert_ids(tok, "a!b", false, user, 5); /* a token of the user is found in any text, as one of the model is */
    assert_ids(tok, "</s>b", false, token, 3);
    tinkc_tokens plain = { 0 };
    tinkc_encode_options none = { .special = TINKC_SPECIAL_NONE };
    assert_true(tinkc_encode_span(tok, "a!", 2, &none, &plain, NULL, &err)); /* a piece like others where none is looked for */
    assert_int_equal(plain.len, 3);
    assert_int_equal(plain.data[2], USER);
    tinkc_tokens_free(&plain);
    assert_string_equal(tinkc_decode(tok, marked + 1, 3, &out, &err), "ab\n");
    assert_true(tinkc_tokenizer_is_special(tok, 2));
    assert_false(tinkc_tokenizer_is_special(tok, USER));
    tinkc_text_free(&out);
    tinkc_tokenizer_free(tok);
    /* The server's stop strings see the same bytes. */
    assert_true(tkc_str_is(tke_vocab_bytes(vocab, SPACE), " "));
    assert_true(tkc_str_is(tke_vocab_bytes(vocab, BYTES + '\n'), "\n"));
    assert_true(tkc_str_is(tke_vocab_bytes(vocab, 2), "</s>"));
    tke_vocab_free(vocab);
}

TEST(a_file_says_which_marks_and_which_space_texts_get)
{
    file f;
    tinkc_error err;
    tinkc_text out = { 0 };
    begin(&f);
    gguf_key_bool(&f.g, "tokenizer.ggml.add_space_prefix", false);
    gguf_key_bool(&f.g, "tokenizer.ggml.add_bos_token", false);
    gguf_key_bool(&f.g, "tokenizer.ggml.add_eos_token", true);
    tinkc_tokenizer *tok = finish(&f, &err, NULL);
    if (!tok)
        fail_msg("%s", err.message);
    static const int32_t ids[] = { A, 2 }, spaced[] = { SPACE, A };
    assert_ids(tok, "a", true, ids, 2);
    assert_string_equal(tinkc_decode(tok, spaced, 2, &out, &err), " a"); /* no space was put in: none is taken out */
    tinkc_text_free(&out);
    tinkc_tokenizer_free(tok);
}

static void expect_refused(file *f, const char *message)
{
    tinkc_error err;
    assert_null(finish(f, &err, NULL));
    if (!strstr(err.message, message))
        fail_msg("\"%s\" does not say %s", err.message, message);
}

TEST(what_would_split_texts_differently_is_refused_by_key)
{
    file f;
    begin(&f);
    gguf_key_bool(&f.g, "tokenizer.ggml.remove_extra_whitespaces", true);
    expect_refused(&f, "key 'tokenizer.ggml.remove_extra_whitespaces' is true");
    begin(&f);
    gguf_key_text(&f.g, "tokenizer.ggml.precompiled_charsmap", "x");
    expect_refused(&f, "key 'tokenizer.ggml.precompiled_charsmap' is not supported");
    begin(&f);
    f.n_scores--;
    expect_refused(&f, "key 'tokenizer.ggml.scores' does not have as many items as tokens");
    begin(&f);
    f.scores[AB] = INFINITY;
    expect_refused(&f, "key 'tokenizer.ggml.scores' has an item that is not a finite number");
    begin(&f);
    f.n_types = 0;
    expect_refused(&f, "key 'tokenizer.ggml.token_type' does not have as many items as tokens");
    begin(&f);
    f.model = "t5";
    expect_refused(&f, "'t5' is not supported; supported: gpt2 (byte-level BPE) and llama (SentencePiece)");
    begin(&f);
    f.tokens[BYTES] = "zero"; /* a byte without a token: some texts could not be written */
    expect_refused(&f, "byte_fallback are not supported where bytes are missing");
}
