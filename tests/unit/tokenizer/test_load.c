/* test_load.c - opening tokenizers: what the files say, what is refused by name, broken files, and
 * the compiled form: written, used, stale, damaged, elsewhere. */
#include "tok_support.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <zstd.h>

#include "bpe/tables_layout.h"
#include "tokenizer/open_with.h"
#include "tokenizer/load.h"

/* A tokenizer.json around a few bytes' tokens; parts can be replaced. */
typedef struct parts {
    const char *top, *normalizer, *pre, *post, *decoder, *model, *vocab, *merges, *added;
} parts;

static const parts plain = {
    .top = "\"version\":\"1.0\"",
    .normalizer = "null",
    .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}",
    .post = "null",
    .decoder = "{\"type\":\"ByteLevel\"}",
    .model = "\"type\":\"BPE\"",
    .vocab = "{\"a\":0,\"b\":1,\"ab\":2}",
    .merges = "[\"a b\"]",
    .added = "[]",
};

static tinkc_tokenizer *parse_parts(parts p, tinkc_error *err)
{
    char text[8192];
    int n = snprintf(text, sizeof text,
                     "{%s,\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
                     "\"post_processor\":%s,\"decoder\":%s,\"model\":{%s,\"vocab\":%s,\"merges\":%s}}",
                     p.top, p.added, p.normalizer, p.pre, p.post, p.decoder, p.model, p.vocab, p.merges);
    assert_true(n > 0 && n < (int)sizeof text);
    *err = (tinkc_error){ 0 };
    return tinkc_tokenizer_parse(text, (size_t)n, NULL, 0, NULL, err);
}

static void expect_refused(parts p, const char *name)
{
    tinkc_error err;
    tinkc_tokenizer *tok = parse_parts(p, &err);
    if (tok)
        fail_msg("%s was not refused", name);
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    if (!strstr(err.message, name))
        fail_msg("\"%s\" does not name %s", err.message, name);
}

TEST(merges_follow_the_file)
{
    tinkc_error err;
    tinkc_tokenizer *tok = parse_parts(plain, &err);
    if (!tok)
        fail_msg("%s", err.message);
    tinkc_tokens ids = encode_all(tok, "abaxb", 5);
    /* x has no token: it is left out, and what is then side by side merges. */
    assert_same_ids(&ids, (int32_t[]){ 2, 2 }, 2);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

#define ADDED(tokens) "[" tokens "]"

static void expect_ids(const char *added, const char *text, const int32_t *want, size_t n)
{
    tinkc_error err;
    parts p = plain;
    p.added = added;
    tinkc_tokenizer *tok = parse_parts(p, &err);
    if (!tok)
        fail_msg("%s", err.message);
    tinkc_tokens ids = encode_all(tok, text, strlen(text));
    assert_same_ids(&ids, want, n);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

/* Corners in which the reference decides: seen with tokenizers 0.23. */
TEST(added_tokens_take_white_space_as_the_reference_does)
{
    /* a token in white space that another one swallowed is a token all the same */
    const char *swallowed = ADDED("{\"id\":3,\"content\":\"T\",\"rstrip\":true},"
                                  "{\"id\":4,\"content\":\"\\n\"}");
    expect_ids(swallowed, "T \n a", (int32_t[]){ 3, 4, 0 }, 3);
    /* but not if it would have to begin behind its end */
    const char *both = ADDED("{\"id\":3,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true}");
    expect_ids(both, "a\n\n b", (int32_t[]){ 0, 3, 1 }, 3);
    /* word characters: digits are, fractions are not, circled letters are */
    const char *word = ADDED("{\"id\":3,\"content\":\"W\",\"single_word\":true}");
    expect_ids(word, "\xC2\xBDW!", (int32_t[]){ 3 }, 1);
    expect_ids(word, "\xD9\xA3W!", NULL, 0);
    expect_ids(word, "!W\xE2\x93\x92", NULL, 0);
    expect_ids(word, "\xE2\x80\x8DW", NULL, 0);
    /* a content that reads like bytes is not those bytes */
    const char *alike = ADDED("{\"id\":3,\"content\":\"\\u0120\\u0120\"},"
                              "{\"id\":4,\"content\":\"  \"}");
    expect_ids(alike, "  ", (int32_t[]){ 4 }, 1);
    expect_ids(alike, "\xC4\xA0\xC4\xA0", (int32_t[]){ 3 }, 1);
}

#define WITH(field, text, name)                                                                                        \
    do {                                                                                                               \
        parts p_ = plain;                                                                                              \
        p_.field = text;                                                                                               \
        expect_refused(p_, name);                                                                                      \
    } while (0)

TEST(refused_by_name)
{
    WITH(top, "\"version\":\"2.0\"", "version");
    WITH(top, "\"version\":\"1.0\",\"truncation\":{}", "truncation");
    WITH(top, "\"version\":\"1.0\",\"padding\":{}", "padding");
    WITH(normalizer, "{\"type\":\"NFKC\"}", "NFKC");
    WITH(normalizer, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}", "Lowercase");
    WITH(pre, "{\"type\":\"Metaspace\"}", "Metaspace");
    WITH(pre, "null", "ByteLevel");
    WITH(pre, "{\"type\":\"Whitespace\"}", "Whitespace");
    WITH(pre, "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "ByteLevel");
    WITH(pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"MergedWithNext\"}", "MergedWithNext");
    WITH(pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}", "regular expression");
    WITH(pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[[:alpha:]]\"},\"behavior\":\"Isolated\"}", "POSIX");
    WITH(post, "{\"type\":\"RobertaProcessing\"}", "RobertaProcessing");
    WITH(decoder, "{\"type\":\"WordPiece\"}", "WordPiece");
    WITH(decoder, "null", "decoder");
    WITH(model, "\"type\":\"WordPiece\"", "WordPiece");
    WITH(model, "\"type\":\"Unigram\"", "Unigram");
    WITH(model, "\"type\":\"BPE\",\"dropout\":0.1", "dropout");
    WITH(model, "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\"", "continuing_subword_prefix");
    WITH(model, "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix");
    WITH(model, "\"type\":\"BPE\",\"byte_fallback\":true", "byte_fallback");
    WITH(model, "\"type\":\"BPE\",\"something_new\":1", "something_new");
}

TEST(a_vocabulary_that_contradicts_itself_is_refused)
{
    WITH(vocab, "{}", "empty");
    WITH(vocab, "{\"a\":0,\"b\":0,\"ab\":2}", "id 0");
    WITH(vocab, "{\"a\":0,\"b\":-1,\"ab\":2}", "range");
    WITH(vocab, "{\"a\":0,\"b\":1,\"ab\":900000000}", "range");
    WITH(vocab, "{\"a\":0,\"b\":1,\"ab\":400000000}", "too large");
    WITH(vocab, "{\"a\":0,\"a\":1,\"b\":2,\"ab\":3}", "same text");
    WITH(vocab, "{\"a\":0,\"b\":1}", "not in the vocabulary");
    WITH(merges, "[\"a c\"]", "not in the vocabulary");
    WITH(merges, "[\"ab\"]", "merge");
    WITH(merges, "[\"a b \"]", "merge");
    WITH(merges, "[[\"a\"]]", "merge");
    WITH(merges, "7", "array");
    WITH(added, "[{\"content\":7}]", "string");
    WITH(post, "{\"type\":\"TemplateProcessing\",\"single\":[]}", "template");
    static const char *const texts[] = { "",
                                         "{",
                                         "[]",
                                         "null",
                                         "{\"model\":{}}",
                                         "{\"version\":\"1.0\"}",
                                         "\xFF",
                                         "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}} x" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tinkc_error err = { 0 };
        assert_null(tinkc_tokenizer_parse(texts[i], strlen(texts[i]), NULL, 0, NULL, &err));
        assert_int_equal(err.code, TINKC_E_TOKENIZER);
    }
}

/* Merges that come before the vocabulary, pairs, repeats, and no type: all as the reference. */
TEST(merges_may_be_pairs_and_come_first)
{
    const char *text = "{\"version\":\"1.0\",\"model\":{\"merges\":[[\"a\",\"b\"],[\"b\",\"c\"],"
                       "[\"a\",\"b\"]],\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4}},"
                       "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                       "\"pattern\":{\"String\":\"|\"},\"behavior\":\"Removed\",\"invert\":false},"
                       "{\"type\":\"Digits\",\"individual_digits\":true},"
                       "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]},"
                       "\"decoder\":{\"type\":\"ByteLevel\"}}";
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_parse(text, strlen(text), NULL, 0, NULL, &err);
    if (!tok)
        fail_msg("%s", err.message);
    /* "a b" was repeated with a higher rank, so "b c" goes first. */
    tinkc_tokens ids = encode_all(tok, "abc|ab", 6);
    assert_same_ids(&ids, (int32_t[]){ 0, 4, 3 }, 3);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

/* The id in the file counts for nothing: the vocabulary's, else the next. */
TEST(an_added_token_has_the_id_of_the_vocabulary)
{
    tinkc_error err;
    parts p = plain;
    p.added = "[{\"id\":7,\"content\":\"<x>\",\"special\":true},{\"id\":7,\"content\":\"ab\"},"
              "{\"id\":0,\"content\":\"\"},{\"id\":99,\"content\":\"<y>\"},{\"id\":9,\"content\":"
              "\"<x>\"}]";
    tinkc_tokenizer *tok = parse_parts(p, &err);
    if (!tok)
        fail_msg("%s", err.message);
    assert_int_equal(tinkc_tokenizer_id(tok, "<x>"), 3);
    assert_int_equal(tinkc_tokenizer_id(tok, "ab"), 2);
    assert_int_equal(tinkc_tokenizer_id(tok, "<y>"), 4);
    assert_int_equal(tinkc_tokenizer_size(tok), 5);
    tinkc_tokens ids = encode_all(tok, "b<x>ab<y>", 9);
    assert_same_ids(&ids, (int32_t[]){ 1, 3, 2, 4 }, 4);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

/* A text that is added twice: what is said last counts, but special it stays. */
TEST(of_a_token_that_is_added_twice_the_last_counts)
{
    tinkc_error err;
    parts p = plain;
    p.added = "[{\"id\":3,\"content\":\"<x>\",\"special\":true,\"lstrip\":true,\"normalized\":false},"
              "{\"id\":3,\"content\":\"<x>\",\"special\":false,\"rstrip\":true,\"normalized\":false}]";
    p.vocab = "{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3}";
    tinkc_tokenizer *tok = parse_parts(p, &err);
    if (!tok)
        fail_msg("%s", err.message);
    tinkc_tokens ids = encode_all(tok, "a <x> b", 7);
    assert_same_ids(&ids, (int32_t[]){ 0, 3, 4, 1 }, 4);
    assert_true(tinkc_tokenizer_is_special(tok, 4));
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

static tinkc_tokenizer *parse_with_config(const char *json, const char *config)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_parse(json, strlen(json), config, strlen(config), NULL, &err);
    if (!tok)
        fail_msg("%s", err.message);
    return tok;
}

/* Tokens that only the config has: in the order of their ids, and apart from tokens of the
 * vocabulary that are spelled otherwise (a newline is no "\u010A"). */
TEST(tokens_of_the_config_come_in_the_order_of_their_ids)
{
    static const char json[] = "{\"version\":\"1.0\",\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                               "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                               "\"BPE\",\"vocab\":{\"a\":0,\"\u010A\":1,\"<\u4F60>\":2},\"merges\":[]}}";
    tinkc_tokenizer *tok =
        parse_with_config(json, "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<y>\"},\"3\":{\"content\":\"\\n\"},"
                                "\"8\":{\"content\":\"<x>\"},\"2\":{\"content\":\"<\u4F60>\"}}}");
    tinkc_tokens ids = encode_all(tok, "\n<x><y><\xE4\xBD\xA0>", strlen("\n<x><y><\xE4\xBD\xA0>"));
    assert_same_ids(&ids, (int32_t[]){ 3, 4, 5, 2 }, 4);
    tinkc_error err = { 0 };
    tinkc_text back = { 0 };
    assert_string_equal(tinkc_decode(tok, ids.data, ids.len, &back, &err), "\n<x><y><\xE4\xBD\xA0>");
    tinkc_text_free(&back);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

/* Models for pictures and speech add tens of thousands of tokens; a square of that would not end.
 */
TEST(many_added_tokens_are_read_in_linear_time)
{
    enum { MANY = 200000 };
    tinkc_error err = { 0 };
    tkc_buf json, config;
    tkc_buf_init(&json, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&config, NULL, TKC_BUF_NO_MAX);
    tkc_buf_cstr(&json,
                 "{\"version\":\"1.0\",\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":"
                 "{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},"
                 "\"merges\":[]},\"added_tokens\":[",
                 &err);
    tkc_buf_cstr(&config, "{\"added_tokens_decoder\":{", &err);
    for (int i = 0; i < MANY; i++) {
        tkc_buf_printf(&json, &err, "%s{\"id\":%d,\"content\":\"<\u4F60%d>\",\"special\":true}", i ? "," : "", i + 1,
                       i);
        tkc_buf_printf(&config, &err, "%s\"%d\":{\"content\":\"[\u4F60%d]\"}", i ? "," : "", 2 * MANY - i, i);
    }
    tkc_buf_cstr(&json, "]}", &err);
    tkc_buf_cstr(&config, "}}", &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_parse(json.data, json.len, config.data, config.len, NULL, &err);
    if (!tok)
        fail_msg("%s", err.message);
    assert_int_equal(tinkc_tokenizer_size(tok), 1 + 2 * MANY);
    assert_int_equal(tinkc_tokenizer_id(tok, "<\xE4\xBD\xA0"
                                             "7>"),
                     8);
    assert_int_equal(tinkc_tokenizer_id(tok, "[\xE4\xBD\xA0"
                                             "0]"),
                     2 * MANY);
    tinkc_tokenizer_free(tok);
    tkc_buf_free(&json);
    tkc_buf_free(&config);
}

/* A byte without a token is left out, and what is then side by side merges, in long pieces as well:
 * the second byte of each \xC3\xA9 here. */
TEST(a_byte_without_a_token_is_left_out)
{
    tinkc_error err;
    parts p = plain;
    p.vocab = "{\"\u00C3\":0,\"i\":1,\"\u00C3i\":2}";
    p.merges = "[\"\u00C3 i\"]";
    tinkc_tokenizer *tok = parse_parts(p, &err);
    if (!tok)
        fail_msg("%s", err.message);
    const char *text = "\xC3\xA9i\xC3\xA9i\xC3\xA9i\xC3\xA9i\xC3\xA9i\xC3\xA9i\xC3\xA9i\xC3\xA9i";
    tinkc_tokens ids = encode_all(tok, text, strlen(text));
    assert_same_ids(&ids, (int32_t[]){ 2, 2, 2, 2, 2, 2, 2, 2 }, 8);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

/* An empty match is not a piece, but the text is cut there. */
TEST(an_empty_match_cuts_the_text)
{
    tinkc_error err;
    parts p = plain;
    p.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"(?=b)\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false,\"use_regex\":false}]}";
    tinkc_tokenizer *tok = parse_parts(p, &err);
    if (!tok)
        fail_msg("%s", err.message);
    tinkc_tokens ids = encode_all(tok, "aab", 3);
    assert_same_ids(&ids, (int32_t[]){ 0, 0, 1 }, 3);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

TEST(special_tokens_come_from_the_config)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    assert_string_equal(tinkc_tokenizer_source(tok), TINY);
    int32_t bos = tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS);
    assert_int_equal(bos, tinkc_tokenizer_id(tok, "<|begin|>"));
    assert_int_equal(tinkc_tokenizer_special(tok, TINKC_TOKEN_EOS), tinkc_tokenizer_id(tok, "<|end|>"));
    assert_int_equal(tinkc_tokenizer_special(tok, TINKC_TOKEN_PAD), -1);
    assert_int_equal(tinkc_tokenizer_special(tok, 77), -1);
    assert_int_equal(tinkc_tokenizer_ends(tok).len, 1);
    assert_true(tinkc_tokenizer_is_special(tok, bos));
    assert_false(tinkc_tokenizer_is_special(tok, 0));
    assert_non_null(strstr(tinkc_tokenizer_template(tok, NULL), "messages"));
    assert_null(tinkc_tokenizer_template(tok, "tool_use"));
    assert_int_equal(tinkc_tokenizer_id(tok, "no such token"), -1);
    tinkc_tokenizer *mine = tinkc_tokenizer_keep(tok);
    tinkc_tokenizer_free(tok);
    assert_int_equal(tinkc_tokenizer_special(mine, TINKC_TOKEN_BOS), bos);
    tinkc_tokenizer_free(mine);
    tinkc_tokenizer_free(NULL);
    assert_int_equal(tinkc_tokenizer_size(NULL), 0);
}

static void parse_config(const char *config, int32_t *bos, tinkc_tokens *marked)
{
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    tinkc_bytes json = tkc_read_file(&arena, TINY "/tokenizer.json", 1 << 20, &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_parse((const char *)json.data, json.len, config, strlen(config), NULL, &err);
    if (!tok)
        fail_msg("%s", err.message);
    tinkc_encode_options o = { .add_special = true };
    *bos = tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS);
    assert_true(tinkc_encode_span(tok, "x", 1, &o, marked, NULL, &err));
    tinkc_tokenizer_free(tok);
    tkc_arena_free(&arena);
}

TEST(the_begin_mark_is_added_as_the_config_says)
{
    tinkc_tokens ids = { 0 };
    int32_t bos;
    parse_config("{\"bos_token\":\"<|begin|>\"}", &bos, &ids); /* the file's own template */
    assert_int_equal(ids.len, 2);
    assert_int_equal(ids.data[0], bos);
    ids.len = 0;
    parse_config("{\"bos_token\":\"<|begin|>\",\"add_bos_token\":false}", &bos, &ids);
    assert_int_equal(ids.len, 1);
    ids.len = 0;
    parse_config("{\"bos_token\":\"<|new|>\",\"eos_token\":{\"content\":\"<|end|>\"},"
                 "\"add_bos_token\":true,\"add_eos_token\":true}",
                 &bos, &ids);
    assert_int_equal(ids.len, 3);
    assert_int_equal(ids.data[0], bos);
    tinkc_tokens_free(&ids);
}

/* add_bos_token and add_eos_token: each mark is put in where its flag is set and the model has such a token,
 * whatever holds for the other one. */
TEST(each_mark_depends_on_its_own_flag_and_token)
{
#define BOS "\"bos_token\":\"<|begin|>\","
#define EOS "\"eos_token\":\"<|end|>\","
    static const struct {
        const char *config;
        bool begin, end;
    } rows[] = {
        { "{" EOS "\"add_eos_token\":true}", false, true },
        { "{" EOS "\"add_bos_token\":true,\"add_eos_token\":true}", false, true },
        { "{" BOS "\"add_bos_token\":true}", true, false },
        { "{" BOS "\"add_bos_token\":true,\"add_eos_token\":true}", true, false },
        { "{" BOS EOS "\"add_bos_token\":false,\"add_eos_token\":true}", false, true },
        { "{" BOS EOS "\"add_bos_token\":true,\"add_eos_token\":false}", true, false },
        { "{\"add_bos_token\":true,\"add_eos_token\":true}", false, false },
    };
#undef BOS
#undef EOS
    tinkc_tokenizer *tiny = open_tokenizer(TINY);
    int32_t begin = tinkc_tokenizer_id(tiny, "<|begin|>"), end = tinkc_tokenizer_id(tiny, "<|end|>");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_tokens ids = { 0 };
        int32_t bos;
        parse_config(rows[i].config, &bos, &ids);
        assert_int_equal(ids.len, 1 + rows[i].begin + rows[i].end);
        assert_int_equal(ids.data[0] == begin, rows[i].begin);
        assert_int_equal(ids.data[ids.len - 1] == end, rows[i].end);
        tinkc_tokens_free(&ids);
    }
    tinkc_tokenizer_free(tiny);
}

/* ---- folders ---- */

static char *copy_to_folder(char folder[], bool packed)
{
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    static char path[300];
    assert_non_null(mkdtemp(folder));
    tinkc_bytes json = tkc_read_file(&arena, TINY "/tokenizer.json", 1 << 20, &err);
    snprintf(path, sizeof path, "%s/tokenizer.json%s", folder, packed ? ".zst" : "");
    if (packed) {
        size_t cap = ZSTD_compressBound(json.len);
        void *out = tkc_arena_alloc(&arena, cap, &err);
        size_t n = ZSTD_compress(out, cap, json.data, json.len, 3);
        assert_true(tkc_write_file(path, out, n, 0644, &err));
    } else {
        assert_true(tkc_write_file(path, json.data, json.len, 0644, &err));
    }
    tkc_arena_free(&arena);
    return path;
}

static void put_file(const char *folder, const char *name, const char *text)
{
    tinkc_error err = { 0 };
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_true(tkc_write_file(path, text, strlen(text), 0644, &err));
}

TEST(a_template_of_its_own_file_replaces_that_of_the_config)
{
    char folder[] = "/tmp/tinkc-folder-XXXXXX", sub[100];
    tinkc_error err = { 0 };
    copy_to_folder(folder, true);
    put_file(folder, "tokenizer_config.json",
             "{\"chat_template\":[{\"name\":\"default\",\"template\":\"old\"},"
             "{\"name\":\"rag\",\"template\":\"R\"}],\"eos_token\":\"<|end|>\"}");
    put_file(folder, "chat_template.jinja", "new");
    put_file(folder, "generation_config.json", "{\"eos_token_id\":[1,2,99999]}");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", folder);
    assert_true(tkc_make_dirs(sub, &err));
    put_file(sub, "tool_use.jinja", "T");
    tinkc_tokenizer *tok = open_tokenizer(folder);
    assert_string_equal(tinkc_tokenizer_template(tok, NULL), "new");
    assert_string_equal(tinkc_tokenizer_template(tok, "rag"), "R");
    assert_string_equal(tinkc_tokenizer_template(tok, "tool_use"), "T");
    assert_int_equal(tinkc_tokenizer_ends(tok).len, 3);
    tinkc_tokenizer_free(tok);
    put_file(folder, "tokenizer.json.zst", "not zstd");
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    assert_null(tinkc_tokenizer_open(folder, &o, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    err = (tinkc_error){ 0 };
    assert_null(tinkc_tokenizer_open("/nonexistent/x", &o, &err));
    err = (tinkc_error){ 0 };
    assert_null(tinkc_tokenizer_open("/tmp", &o, &err));
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    err = (tinkc_error){ 0 };
    assert_true(tkc_remove_tree(folder, &err));
}

/* vocab.json and merges.txt instead of a tokenizer.json; the class says how pieces are made. */
TEST(vocab_and_merges_files_stand_in_for_tokenizer_json)
{
    char folder[] = "/tmp/tinkc-legacy-XXXXXX";
    tinkc_error err = { 0 };
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    assert_non_null(mkdtemp(folder));
    put_file(folder, "vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"1\":3,\"11\":4,\"<|endoftext|>\":5}");
    assert_null(tinkc_tokenizer_open(folder, &o, &err));
    assert_non_null(strstr(err.message, "merges.txt"));
    err = (tinkc_error){ 0 };
    put_file(folder, "merges.txt", "#version: 0.2\r\na b\n1 1\n");
    tinkc_tokenizer *tok = open_tokenizer(folder);
    tinkc_tokens ids = encode_all(tok, "ab11<|endoftext|>", 17);
    assert_same_ids(&ids, (int32_t[]){ 2, 4, 5 }, 3);
    tinkc_tokens_free(&ids);
    assert_int_equal(tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS), 5);
    assert_true(tinkc_tokenizer_is_special(tok, 5));
    tinkc_tokenizer_free(tok);
    put_file(folder, "added_tokens.json", "{\"<y>\":7,\"<x>\":6}");
    put_file(folder, "special_tokens_map.json", "{\"eos_token\":{\"content\":\"<x>\"},\"pad_token\":\"<x>\"}");
    put_file(folder, "tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"pad_token\":\"<y>\"}");
    tok = open_tokenizer(folder);
    ids = encode_all(tok, "ab11<y><x>", 10);
    assert_same_ids(&ids, (int32_t[]){ 2, 3, 3, 7, 6 }, 5); /* digits one by one */
    tinkc_tokens_free(&ids);
    assert_int_equal(tinkc_tokenizer_special(tok, TINKC_TOKEN_EOS), 6);
    assert_int_equal(tinkc_tokenizer_special(tok, TINKC_TOKEN_PAD), 7);
    assert_int_equal(tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS), -1);
    tinkc_tokenizer_free(tok);
    put_file(folder, "tokenizer_config.json", "{\"tokenizer_class\":\"BartTokenizer\"}");
    assert_null(tinkc_tokenizer_open(folder, &o, &err));
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    assert_non_null(strstr(err.message, "BartTokenizer"));
    err = (tinkc_error){ 0 };
    assert_true(tkc_remove_tree(folder, &err));
}

/* Opens a folder with one file spoilt; the message names that file, and what is wrong. */
static void expect_named(const char *folder, const char *file, const char *text, const char *wrong)
{
    char path[200];
    tinkc_error err = { 0 };
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    put_file(folder, file, text);
    assert_null(tinkc_tokenizer_open(folder, &o, &err));
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    snprintf(path, sizeof path, "%s/%s: ", folder, file);
    if (strncmp(err.message, path, strlen(path)) != 0 || !strstr(err.message, wrong))
        fail_msg("\"%s\" does not name %s and %s", err.message, path, wrong);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    assert_int_equal(unlink(path), 0);
}

TEST(messages_name_the_file_and_the_member)
{
    char folder[] = "/tmp/tinkc-messages-XXXXXX";
    tinkc_error err = { 0 };
    copy_to_folder(folder, true);
    expect_named(folder, "tokenizer_config.json", "{\"bos_token\": tru}", "at byte 14");
    expect_named(folder, "tokenizer_config.json", "{\"added_tokens_decoder\":{\"5\":7}}",
                 "added_tokens_decoder: JSON: an object");
    expect_named(folder, "tokenizer_config.json", "{\"extra_special_tokens\":[{\"content\":7}]}",
                 "extra_special_tokens: JSON: a string");
    expect_named(folder, "generation_config.json", "[]", "object");
    assert_true(tkc_remove_tree(folder, &err));
    char plain_folder[] = "/tmp/tinkc-messages-XXXXXX";
    assert_non_null(mkdtemp(plain_folder));
    expect_named(plain_folder, "tokenizer.json", "{\"version\":\"1.0\",\"model\":7}", "at byte 25");
    expect_named(plain_folder, "tokenizer.json", "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge 0");
    expect_named(plain_folder, "tokenizer.json",
                 "{\"added_tokens\":[{\"content\":7}],\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "at byte 28");
    expect_named(plain_folder, "tokenizer.json", "{\"normalizer\":7,\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
                 "normalizer: JSON: an object");
    expect_named(plain_folder, "tiktoken.model", "YQ== 0\nYQ 1\n", "line 2");
    static char huge[4000010];
    for (size_t i = 0; i < 4000000; i++)
        huge[i] = "YWFh"[i % 4];
    strcpy(huge + 4000000, " 0\n");
    expect_named(plain_folder, "tiktoken.model", huge, "line 1: a token of more than");
    put_file(plain_folder, "merges.txt", "");
    expect_named(plain_folder, "vocab.json", "{\"a\":0},\"ignore_merges\":true", "at byte 7");
    expect_named(plain_folder, "vocab.json", "[]", "object");
    assert_true(tkc_remove_tree(plain_folder, &err));
}

/* More than anybody has is refused, not read for hours or cut off. */
TEST(absurd_sizes_are_refused)
{
    enum { TEMPLATES = 100000, IDS = 65 };
    char *config = malloc((size_t)TEMPLATES * 40 + 100), ids[IDS * 2 + 400];
    assert_non_null(config);
    size_t n = (size_t)sprintf(config, "{\"chat_template\":[");
    for (int i = 0; i < TEMPLATES; i++)
        n += (size_t)sprintf(config + n, "%s{\"name\":\"n%d\",\"template\":\"x\"}", i ? "," : "", i);
    n += (size_t)sprintf(config + n, "]}");
    const char *json = "{\"version\":\"1.0\",\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
                       "\"decoder\":{\"type\":\"ByteLevel\"},"
                       "\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}";
    tinkc_error err = { 0 };
    assert_null(tinkc_tokenizer_parse(json, strlen(json), config, n, NULL, &err));
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    assert_non_null(strstr(err.message, "tokenizer_config.json: more than"));
    free(config);
    n = (size_t)sprintf(ids, "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"b\"}},"
                             "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"b\":{\"ids\":[0");
    for (int i = 1; i < IDS; i++)
        n += (size_t)sprintf(ids + n, ",0");
    (void)sprintf(ids + n, "]}}}");
    WITH(post, ids, "so many ids");
}

/* ---- the compiled form ---- */

static tinkc_tokenizer *open_cached(const char *folder)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(folder, NULL, &err);
    if (!tok)
        fail_msg("%s", err.message);
    return tok;
}

static void expect_works(tinkc_tokenizer *tok, bool mapped)
{
    assert_int_equal(tok->tables.mapped, mapped);
    tinkc_tokens ids = encode_all(tok, "the <|end|>", 11);
    tinkc_tokenizer *fresh = open_tokenizer(TINY);
    tinkc_tokens want = encode_all(fresh, "the <|end|>", 11);
    assert_same_ids(&ids, want.data, want.len);
    tinkc_tokens_free(&ids);
    tinkc_tokens_free(&want);
    tinkc_tokenizer_free(fresh);
    tinkc_tokenizer_free(tok);
}

/* A cache folder of the test's own. */
static void new_home(char home[])
{
    assert_non_null(mkdtemp(home));
    assert_int_equal(setenv("XDG_CACHE_HOME", home, 1), 0);
}

/* The one compiled file below it. */
static void find_compiled(const char *home, char out[400])
{
    char pattern[300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/tinkc/tokenizers/*.tkc", home);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(out, 400, "%s", found.gl_pathv[0]);
    globfree(&found);
}

TEST(a_compiled_tokenizer_is_used_while_its_source_is_the_same)
{
    char folder[] = "/tmp/tinkc-cache-XXXXXX", home[] = "/tmp/tinkc-home-XXXXXX", path[300];
    tinkc_error err = { 0 };
    struct timespec times[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    snprintf(path, sizeof path, "%s", copy_to_folder(folder, false));
    new_home(home);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    expect_works(open_cached(folder), false);
    expect_works(open_cached(folder), true);
    /* Touched but the same: still good. */
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
    expect_works(open_cached(folder), true);
    /* Changed: rebuilt, and good again afterwards. */
    tkc_arena arena = { 0 };
    tinkc_bytes json = tkc_read_file(&arena, path, 1 << 20, &err);
    char *text = tkc_arena_str(&arena, tkc_strn((const char *)json.data, json.len), &err);
    char *mark = strstr(text, "<|alone|>");
    assert_non_null(mark);
    memcpy(mark, "<|other|>", 9);
    assert_true(tkc_write_file(path, text, json.len, 0644, &err));
    /* With the time of the old one, as an archive can set it: contents count. */
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    tinkc_tokenizer *tok = open_cached(folder);
    assert_true(tinkc_tokenizer_id(tok, "<|other|>") > 0);
    expect_works(tok, false);
    expect_works(open_cached(folder), true);
    tkc_arena_free(&arena);
    assert_true(tkc_remove_tree(folder, &err) && tkc_remove_tree(home, &err));
}

/* A file that the group or others may write may hold what they wrote; each alone is enough. So does a
 * folder that they may write, and a link. */
TEST(a_cache_that_others_may_write_is_not_trusted)
{
    static const struct {
        mode_t mode, folder;
        bool trusted;
    } rows[] = { { 0600, 0700, true },  { 0644, 0755, true },  { 0444, 0700, true },  { 0620, 0700, false },
                 { 0602, 0700, false }, { 0666, 0700, false }, { 0600, 0770, false }, { 0600, 0702, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[] = "/tmp/tinkc-cache-XXXXXX", home[] = "/tmp/tinkc-home-XXXXXX";
        char compiled[400], kept[400];
        tinkc_error err = { 0 };
        (void)copy_to_folder(folder, false);
        new_home(home);
        expect_works(open_cached(folder), false);
        find_compiled(home, compiled);
        snprintf(kept, sizeof kept, "%s/tinkc/tokenizers", home);
        assert_int_equal(chmod(compiled, rows[i].mode), 0);
        assert_int_equal(chmod(kept, rows[i].folder), 0);
        expect_works(open_cached(folder), rows[i].trusted);
        assert_int_equal(chmod(kept, 0700), 0);
        assert_true(tkc_remove_tree(folder, &err) && tkc_remove_tree(home, &err));
    }
}

TEST(a_cache_that_is_a_link_is_not_trusted)
{
    char folder[] = "/tmp/tinkc-cache-XXXXXX", home[] = "/tmp/tinkc-home-XXXXXX";
    char compiled[400], moved[300];
    tinkc_error err = { 0 };
    (void)copy_to_folder(folder, false);
    new_home(home);
    expect_works(open_cached(folder), false);
    find_compiled(home, compiled);
    snprintf(moved, sizeof moved, "%s/moved", folder);
    assert_int_equal(rename(compiled, moved), 0);
    assert_int_equal(symlink(moved, compiled), 0);
    expect_works(open_cached(folder), false);
    assert_true(tkc_remove_tree(folder, &err) && tkc_remove_tree(home, &err));
}

/* A model's folder may come from a hub, with a compiled file whose checksum fits. It is not even
 * looked at, and none is written there. */
TEST(a_compiled_file_of_a_model_is_never_read)
{
    char folder[] = "/tmp/tinkc-cache-XXXXXX", home[] = "/tmp/tinkc-home-XXXXXX";
    char compiled[400], beside[310];
    tinkc_error err = { 0 };
    snprintf(beside, sizeof beside, "%s.tkc", copy_to_folder(folder, false));
    new_home(home);
    expect_works(open_cached(folder), false);
    assert_false(tkc_is_file(beside));
    find_compiled(home, compiled);
    assert_int_equal(rename(compiled, beside), 0); /* valid in all else */
    expect_works(open_cached(folder), false);
    assert_true(tkc_remove_tree(folder, &err) && tkc_remove_tree(home, &err));
}

/* ---- blocks whose checksum fits ---- */

static void seal(unsigned char *block, size_t len)
{
    tkc_block_header *h = (tkc_block_header *)block;
    h->checksum = tkc_block_hash(block + sizeof *h, len - sizeof *h);
}

static void *part_of(unsigned char *block, int which)
{
    return block + ((tkc_block_header *)block)->sections[which].offset;
}

static bool attaches(unsigned char *block, size_t len)
{
    tinkc_error err = { 0 };
    tkc_tables t;
    seal(block, len);
    bool ok = tkc_tables_attach(&t, block, len, false, &err);
    assert_true(ok || err.code == TINKC_E_TOKENIZER);
    return ok;
}

/* What each table promises to the encoder, broken one at a time. */
TEST(tables_that_contradict_each_other_are_refused)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    size_t len = tok->tables.block_len;
    unsigned char *copy = aligned_alloc(64, (len + 63) / 64 * 64);
    const tkc_tables *t = &tok->tables;
    assert_non_null(copy);
    uint32_t empty = 0, node = 1, slot = 0, merged = 0;
    while (empty < t->n && tkc_token_text(t, empty).len)
        empty++;
    while (t->nodes[node].token < 0)
        node++;
    while (!t->words[slot].tag)
        slot++;
    while (!t->split[merged].made)
        merged++;
    for (int fault = 0; fault < 13; fault++) {
        memcpy(copy, t->block, len);
        tkc_block_header *h = (tkc_block_header *)copy;
        tkc_trie_node *nodes = part_of(copy, TKC_SEC_NODES);
        tkc_word_slot *words = part_of(copy, TKC_SEC_WORDS);
        uint32_t *offset = part_of(copy, TKC_SEC_OFFSET);
        tkc_split *split = part_of(copy, TKC_SEC_SPLIT);
        int32_t *bytes = part_of(copy, TKC_SEC_BYTES);
        uint32_t id = (uint32_t)t->nodes[node].token;
        assert_true(attaches(copy, len));
        switch (fault) {
        case 0: /* the token of a node becomes empty: the encoder would not advance */
            offset[id + 1] = offset[id];
            break;
        case 1:
            nodes[0].token = (int32_t)id;
            break;
        case 2:
            nodes[node].token = (int32_t)merged == nodes[node].token ? 0 : (int32_t)merged;
            break;
        case 3: /* a node that is its own child */
            nodes[1].child = 1;
            break;
        case 4:
            nodes[0].child = 2;
            break;
        case 5:
            words[slot].len++;
            break;
        case 6:
            words[slot].offset++;
            break;
        case 7:
            split[merged].left = split[merged].right = merged;
            break;
        case 8:
            split[merged].made = t->n_ranks + 1;
            break;
        case 9:
            bytes['a'] = (int32_t)merged;
            break;
        case 10:
            h->max_len = 1;
            break;
        case 11:
            ((uint32_t *)part_of(copy, TKC_SEC_MERGED))[0] = (uint32_t)bytes['a'];
            break;
        case 12: /* sections that overlap */
            h->sections[TKC_SEC_LABELS].offset = h->sections[TKC_SEC_TEXT].offset;
            break;
        }
        if (attaches(copy, len))
            fail_msg("fault %d was not noticed", fault);
    }
    free(copy);
    tinkc_tokenizer_free(tok);
}

/* Every kind of damage is noticed; nothing is read out of bounds (run under sanitizers). */
TEST(a_damaged_compiled_block_is_refused)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    size_t len = tok->tables.block_len;
    unsigned char *copy = aligned_alloc(64, (len + 63) / 64 * 64);
    dice d = { 8 };
    assert_non_null(copy);
    for (int i = 0; i < 300; i++) {
        tinkc_error err = { 0 };
        tkc_tables t;
        memcpy(copy, tok->tables.block, len);
        copy[roll(&d, (uint32_t)(i % 2 ? len : 300))] ^= (unsigned char)(1 + roll(&d, 255));
        if (tkc_tables_attach(&t, copy, len, false, &err)) {
            /* Only bytes that nothing depends on: origin, unused, flags. */
            assert_true(t.n == tok->tables.n);
        } else {
            assert_int_equal(err.code, TINKC_E_TOKENIZER);
        }
        err = (tinkc_error){ 0 };
        memcpy(copy, tok->tables.block, len);
        assert_false(tkc_tables_attach(&t, copy, roll(&d, (uint32_t)len), false, &err));
    }
    free(copy);
    tinkc_tokenizer_free(tok);
}

/* A folder that cannot be written: the compiled form goes to the user's cache. */
TEST(a_folder_that_cannot_be_written_is_compiled_into_the_users_cache)
{
    char folder[] = "/tmp/tinkc-model-XXXXXX", home[] = "/tmp/tinkc-home-XXXXXX", compiled[300];
    tinkc_error err = { 0 };
    snprintf(compiled, sizeof compiled, "%s.tkc", copy_to_folder(folder, true));
    assert_non_null(mkdtemp(home));
    assert_int_equal(setenv("XDG_CACHE_HOME", home, 1), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    expect_works(open_cached(folder), false);
    assert_false(tkc_is_file(compiled));
    expect_works(open_cached(folder), true);
    assert_int_equal(setenv("XDG_CACHE_HOME", "/proc/nowhere", 1), 0);
    expect_works(open_cached(folder), false); /* nowhere to write: no matter */
    assert_int_equal(chmod(folder, 0755), 0);
    assert_true(tkc_remove_tree(folder, &err));
    assert_true(tkc_remove_tree(home, &err));
}

/* A link, as in a hub's cache: its folder belongs to somebody else, even if we may write it. */
TEST(cache_of_a_link)
{
    char folder[] = "/tmp/tinkc-model-XXXXXX", links[] = "/tmp/tinkc-links-XXXXXX";
    char home[] = "/tmp/tinkc-home-XXXXXX", source[300], name[300], compiled[310];
    tinkc_error err = { 0 };
    snprintf(source, sizeof source, "%s", copy_to_folder(folder, false));
    assert_true(mkdtemp(home) && mkdtemp(links));
    snprintf(name, sizeof name, "%s/tokenizer.json", links);
    snprintf(compiled, sizeof compiled, "%s.tkc", name);
    assert_int_equal(symlink(source, name), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", home, 1), 0);
    expect_works(open_cached(links), false);
    assert_false(tkc_is_file(compiled));
    snprintf(compiled, sizeof compiled, "%s.tkc", source);
    assert_false(tkc_is_file(compiled));
    expect_works(open_cached(links), true); /* from the user's cache */
    assert_true(tkc_remove_tree(folder, &err));
    assert_true(tkc_remove_tree(links, &err));
    assert_true(tkc_remove_tree(home, &err));
}

/* Who hands the folder in, as a client does, is not asked about the environment again. */
TEST(cache_folder_handed_in)
{
    char folder[] = "/tmp/tinkc-model-XXXXXX", home[] = "/tmp/tinkc-home-XXXXXX";
    char other[] = "/tmp/tinkc-other-XXXXXX", entry[300];
    tinkc_error err = { 0 };
    (void)copy_to_folder(folder, true);
    assert_true(mkdtemp(home) && mkdtemp(other));
    assert_int_equal(setenv("XDG_CACHE_HOME", other, 1), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    tinkc_tokenizer *tok = tkc_tokenizer_open_with(folder, NULL, home, &err);
    assert_non_null(tok);
    tinkc_tokenizer_free(tok);
    snprintf(entry, sizeof entry, "%s/tinkc", other);
    assert_false(tkc_is_dir(entry));
    assert_int_equal(rmdir(home), -1); /* the compiled form lies in it */
    assert_int_equal(chmod(folder, 0755), 0);
    assert_true(tkc_remove_tree(folder, &err) && tkc_remove_tree(home, &err) && tkc_remove_tree(other, &err));
}

TEST(reserved_options_must_be_zero)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer_options o = { .reserved = { 1 } };
    assert_null(tinkc_tokenizer_open(TINY, &o, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    o = (tinkc_tokenizer_options){ .reserved_bools = { true } };
    assert_null(tinkc_tokenizer_open(TINY, &o, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_null(tinkc_tokenizer_open(NULL, NULL, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_null(tinkc_tokenizer_open("", NULL, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, "path: empty");
    assert_null(tinkc_tokenizer_parse(NULL, 0, NULL, 0, NULL, NULL));
}

/* A pattern that backtracks without end is stopped by the clock, in one long text and in many short
 * ones between added tokens; what it matches quickly it still matches. */
TEST(patterns_have_a_budget)
{
    static const char *const patterns[] = { "(?:a+)+$", "(?:a|aa)+$", "(?:a?){60}a{60}$", "(?:a+|a)+$" };
    char dir[] = "/tmp/tinkc-slow-XXXXXX", path[64], json[8192];
    static char text[9600];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        tinkc_error err = { 0 };
        tinkc_tokens out = { 0 };
        snprintf(json, sizeof json,
                 "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true}],\"pre_tokenizer\":"
                 "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                 "\"%s\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"}"
                 ","
                 "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}",
                 patterns[i]);
        FILE *file = fopen(path, "w");
        fputs(json, file);
        fclose(file);
        tinkc_tokenizer *tok = open_tokenizer(path);
        memset(text, 'a', sizeof text);
        if (i % 2) /* many texts, each of them slow */
            for (size_t at = 60; at + 4 < sizeof text; at += 64)
                memcpy(text + at, "x<s>", 4);
        memcpy(text + sizeof text - 2, "x", 1);
        assert_false(tinkc_encode_span(tok, text, sizeof text - 1, NULL, &out, NULL, &err));
        assert_int_equal(err.code, TINKC_E_TOKENIZER);
        if (!strstr(err.message, "the tokenizer's pattern"))
            fail_msg("%s: %s", patterns[i], err.message);
        err = (tinkc_error){ 0 };
        assert_true(tinkc_encode_span(tok, "ab", 2, NULL, &out, NULL, &err));
        tinkc_tokens_free(&out);
        tinkc_tokenizer_free(tok);
    }
    unlink(path);
    rmdir(dir);
}
