/* test_gguf_tokenizer.c - the tokenizer of a GGUF file as the files of a model folder. The texts are those that the published
 * tokenizers of these names have. */
#include "codec/gguf_tokenizer.h"
#include "support/check.h"
#include "support/engine/tiny_gguf.h"

#define LAST  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define INNER "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SPLIT(regex)                                                                                                   \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                    \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," INNER "]}"
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
#define REST  "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define FLAGS "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":"

static const char *const tokens[] = { "<s>", "a", "b", "ab", "<u>" }, *const merges[] = { "a b" };
static const int32_t types[] = { 3, 1, 2, 1, 4 };

enum { NO_ID = 9 };

/* A file with this pre-tokenizer; what is said of the first key that is wrong. */
static void open_file(gguf_bytes *g, const char *model, const char *pre, size_t n, size_t n_types, uint32_t bos)
{
    gguf_bytes_init(g);
    gguf_key_text(g, "tokenizer.ggml.model", model);
    gguf_key_text(g, "tokenizer.ggml.pre", pre);
    if (n)
        gguf_key_texts(g, "tokenizer.ggml.tokens", tokens, n);
    if (n != 1)
        gguf_key_texts(g, "tokenizer.ggml.merges", merges, 1);
    if (n_types)
        gguf_key_i32s(g, "tokenizer.ggml.token_type", types, n_types);
    if (bos != NO_ID)
        gguf_key_u32(g, "tokenizer.ggml.bos_token_id", bos);
    gguf_key_u32(g, "tokenizer.ggml.eos_token_id", 2);
    gguf_key_u32(g, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    gguf_key_text(g, "tokenizer.chat_template", "{{x}}");
}

/* Both files of it, as one text; a failure is the message. */
static void expect(gguf_bytes *g, const char *wanted)
{
    tinkc_error err = { 0 };
    tkc_buf file, out;
    tkc_gguf read = { 0 };
    tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    gguf_whole(g, &file);
    assert_true(tkc_gguf_read(&read, (tinkc_bytes){ (const unsigned char *)file.data, file.len }, "x.gguf", &err));
    if (tkc_gguf_tokenizer_json(&read, &out, &err) && tkc_buf_char(&out, '\n', &err))
        (void)tkc_gguf_tokenizer_config(&read, &out, &err);
    if (err.code)
        assert_string_equal(err.message, wanted);
    else
        assert_str(tkc_buf_view(&out), wanted);
    tkc_gguf_free(&read);
    tkc_buf_free(&file);
    tkc_buf_free(&out);
    gguf_bytes_free(g);
}

TEST(a_name_stands_for_a_pattern)
{
    static const struct {
        const char *pre, *normalizer, *split, *ignores, *adds;
        uint32_t bos;
    } rows[] = {
        { "gpt-2", "null", "{\"type\":\"Sequence\",\"pretokenizers\":[" LAST "]}", "false", "false", 1 },
        { "smollm", "null",
          "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}," LAST "]}",
          "false", "false", NO_ID },
        { "qwen2", "{\"type\":\"NFC\"}", SPLIT(WORDS "\\\\p{N}" REST), "false", "false", NO_ID },
        { "llama-bpe", "null", SPLIT(WORDS "\\\\p{N}{1,3}" REST), "true", "true", 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char wanted[3000];
        gguf_bytes g;
        open_file(&g, "gpt2", rows[i].pre, 5, 5, rows[i].bos);
        (void)snprintf(
            wanted, sizeof wanted,
            "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\"," FLAGS "true},{\"id\":2,\"content\":\"b\"," FLAGS
            "true},{\"id\":4,\"content\":\"<u>\"," FLAGS "false}],\"normalizer\":%s,\"pre_tokenizer\":%s,"
            "\"decoder\":" LAST ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"byte_fallback\":false,"
            "\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"ab\":3,\"<u>\":4},\"merges\":[\"a b\"]}}\n"
            "{%s\"eos_token\":\"b\",\"add_bos_token\":%s,\"add_eos_token\":false,\"chat_template\":\"{{x}}\"}",
            rows[i].normalizer, rows[i].split, rows[i].ignores, rows[i].bos == NO_ID ? "" : "\"bos_token\":\"a\",",
            rows[i].adds);
        expect(&g, wanted);
    }
}

TEST(what_would_split_text_differently_is_refused)
{
    static const struct {
        const char *model, *pre;
        size_t n, n_types;
        uint32_t bos;
        const char *wanted;
    } rows[] = {
        { "bert", "gpt-2", 5, 5, 1,
          "key 'tokenizer.ggml.model': 'bert' is not supported; supported: gpt2 (byte-level BPE) and llama "
          "(SentencePiece)" },
        { "gpt2", "gpt-3", 5, 5, 1,
          "key 'tokenizer.ggml.pre': 'gpt-3' is not supported; supported: gpt-2, smollm, starcoder, refact, command-r, "
          "qwen2, "
          "llama-bpe and gpt-4o" },
        { "gpt2", "gpt-2", 0, 0, 1, "key 'tokenizer.ggml.tokens' is missing, empty or too long" },
        { "gpt2", "gpt-2", 1, 0, 0, "key 'tokenizer.ggml.merges' is missing" },
        { "gpt2", "gpt-2", 5, 4, 1, "key 'tokenizer.ggml.token_type' does not have as many items as tokens" },
        { "gpt2", "gpt-2", 5, 5, 5, "key 'tokenizer.ggml.bos_token_id' names a token that is not there" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char wanted[300];
        gguf_bytes g;
        open_file(&g, rows[i].model, rows[i].pre, rows[i].n, rows[i].n_types, rows[i].bos);
        (void)snprintf(wanted, sizeof wanted, "x.gguf: %s", rows[i].wanted);
        expect(&g, wanted);
    }
}
