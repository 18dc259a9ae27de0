/* test_pieces.c - vocabularies of pieces (SentencePiece): characters are merged by score or by a list of merges, bytes stand for
 * characters without a piece, spaces are U+2581. Small vocabularies whose results a person can check. */
#include "tok_support.h"

#include <math.h>

#include "base/tokenizer_json.h"

#define M       "\xE2\x96\x81" /* U+2581 */
#define E_ACUTE "\xC3\xA9"
#define ZHONG   "\xE4\xB8\xAD"

/* ---- a vocabulary: three named tokens, 256 bytes, and these ---- */

typedef struct piece {
    const char *text;
    double score;
} piece;

typedef struct vocabulary {
    piece pieces[24];
    const char *merges; /* NULL: the scores decide */
    const char *normalizer, *pre, *decoders, *added, *options;
} vocabulary;

#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" M "\"}"
#define PREPEND "{\"type\":\"Prepend\",\"prepend\":\"" M "\"}"
#define DECODERS                                                                                            \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" M "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"}," \
    "{\"type\":\"Fuse\"}"
#define STRIP        ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define SEQUENCE(of) "{\"type\":\"Sequence\",\"normalizers\":[" of "]}"
#define METASPACE(scheme, split) \
    "{\"type\":\"Metaspace\",\"replacement\":\"" M "\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"
#define SPECIAL(normalized) \
    "[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":" normalized "}]"

static const vocabulary plain = {
    /* "ab" and "bc" are as good as each other, "bd" is better, "abc" worse. */
    .pieces = { { M, -9 }, { "a", -9 }, { "b", -9 }, { "c", -9 }, { "d", -9 }, { E_ACUTE, -9 }, { "bc", -2 }, { "ab", -2 },
                { "bd", -1 }, { "abc", -3 }, { M "a", -4 }, { M M, -5 }, { M M M, -5 }, { M M M M, -5 }, { "c" E_ACUTE, -6 } },
    .normalizer = SEQUENCE(PREPEND "," REPLACE),
    .pre = "null",
    .decoders = DECODERS STRIP,
    .added = SPECIAL("false"),
    .options = "\"byte_fallback\":true",
};

static tinkc_tokenizer *make(const vocabulary *v, tinkc_error *err)
{
    char text[16384];
    int n = snprintf(text, sizeof text,
                     "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[%s]},"
                     "\"model\":{\"type\":\"BPE\",%s,\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2",
                     v->added, v->normalizer, v->pre, v->decoders, v->options);
    for (int i = 0; i < 256; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"<0x%02X>\":%d", (unsigned)i, 3 + i);
    for (int i = 0; v->pieces[i].text; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"%s\":%d", v->pieces[i].text, 259 + i);
    n += snprintf(text + n, sizeof text - (size_t)n, "},%s", v->merges ? "\"merges\":" : "\"scores\":[null");
    for (int i = 1; !v->merges && i < 259; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ",null");
    for (int i = 0; !v->merges && v->pieces[i].text; i++)
        n += isnan(v->pieces[i].score) ? snprintf(text + n, sizeof text - (size_t)n, ",null")
                                       : snprintf(text + n, sizeof text - (size_t)n, ",%g", v->pieces[i].score);
    n += snprintf(text + n, sizeof text - (size_t)n, "%s}}", v->merges ? v->merges : "]");
    assert_true(n < (int)sizeof text);
    *err = (tinkc_error){ 0 };
    return tinkc_tokenizer_parse(text, (size_t)n, NULL, 0, NULL, err);
}

static tinkc_tokenizer *make_good(const vocabulary *v)
{
    tinkc_error err;
    tinkc_tokenizer *tok = make(v, &err);
    if (!tok)
        fail_msg("%s", err.message);
    return tok;
}

/* The tokens of a text as they stand in the vocabulary, with one space between them. */
static void assert_pieces(const vocabulary *v, const char *text, const char *want)
{
    static const char *const named[] = { "<unk>", "<s>", "</s>" };
    char got[512] = "";
    tinkc_tokenizer *tok = make_good(v);
    tinkc_tokens ids = encode_all(tok, text, strlen(text));
    for (size_t i = 0; i < ids.len; i++) {
        char byte[8];
        int32_t id = ids.data[i];
        snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(id - 3));
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "",
                 id < 3     ? named[id]
                 : id < 259 ? byte
                            : v->pieces[id - 259].text);
    }
    if (strcmp(got, want) != 0)
        fail_msg("\"%s\": \"%s\", not \"%s\"", text, got, want);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
}

/* ---- merging ---- */

TEST(the_best_score_merges_first_and_of_equal_ones_the_leftmost)
{
    vocabulary v = plain;
    v.normalizer = REPLACE;
    assert_pieces(&v, "abd", "a bd");        /* -1 before -2 */
    assert_pieces(&v, "abc", "abc");         /* ab and bc are equal: the left one, which then takes c */
    assert_pieces(&v, "babcbc", "b abc bc"); /* the same inside a word */
    assert_pieces(&v, "bcbd", "bc bd");
    assert_pieces(&v, " a", M "a");
    /* Five equal spaces: the pair at the left grows until no longer piece is there. */
    assert_pieces(&v, "     ", M M M M " " M);
    assert_pieces(&v, "       ", M M M M " " M M M);
    assert_pieces(&v, "c" E_ACUTE, "c" E_ACUTE);
    assert_pieces(&v, "", "");
}

/* The definition: of all neighbours that are a piece together, those with the best score merge, the leftmost of equal ones. */
static size_t by_definition(const vocabulary *v, const char *text, int32_t *out)
{
    struct {
        const char *at;
        size_t len;
    } parts[400];
    size_t n = 0, n_out = 0;
    for (const char *p = text; *p; p += parts[n++].len) {
        parts[n].at = p;
        parts[n].len = tkc_char_bytes((unsigned char)*p);
    }
    for (;;) {
        size_t best = n;
        double score = -INFINITY;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; v->pieces[k].text; k++)
                if (strlen(v->pieces[k].text) == parts[i].len + parts[i + 1].len &&
                    !memcmp(v->pieces[k].text, parts[i].at, parts[i].len + parts[i + 1].len) && v->pieces[k].score > score) {
                    score = v->pieces[k].score;
                    best = i;
                }
        if (best == n)
            break;
        parts[best].len += parts[best + 1].len;
        memmove(&parts[best + 1], &parts[best + 2], (--n - best - 1) * sizeof *parts);
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (v->pieces[k].text && (strlen(v->pieces[k].text) != parts[i].len || memcmp(v->pieces[k].text, parts[i].at, parts[i].len)))
            k++;
        for (size_t b = 0; !v->pieces[k].text && b < parts[i].len; b++)
            out[n_out++] = 3 + (unsigned char)parts[i].at[b];
        if (v->pieces[k].text)
            out[n_out++] = 259 + (int32_t)k;
    }
    return n_out;
}

/* Texts are drawn as the vocabulary has them: with U+2581. */
static void draw(dice *d, char *out, uint32_t chars, uint32_t kinds)
{
    static const char *const of[] = { M, "a", "b", E_ACUTE, "c", ZHONG };
    *out = '\0';
    for (uint32_t i = 0; i < chars; i++)
        strcat(out, of[roll(d, kinds)]);
}

TEST(words_of_any_length_follow_the_definition)
{
    static char pieces[24][16], text[1600];
    dice d = { 5 };
    for (int turn = 0; turn < 60; turn++) {
        vocabulary v = plain;
        v.normalizer = REPLACE;
        for (size_t i = 0; i < 20; i++) {
            bool again = i >= 4;
            v.pieces[i] = (piece){ pieces[i], -1 - (double)roll(&d, turn % 3 ? 3 : 1) };
            strcpy(pieces[i], i == 0 ? M : i == 1 ? "a" : i == 2 ? "b" : E_ACUTE);
            while (again) {
                draw(&d, pieces[i], 2 + roll(&d, 3), 4);
                again = false;
                for (size_t k = 0; k < i; k++)
                    again |= strcmp(pieces[k], pieces[i]) == 0;
            }
        }
        v.pieces[20].text = NULL;
        tinkc_tokenizer *tok = make_good(&v);
        for (int i = 0; i < 60; i++) {
            int32_t want[1600];
            if (i < 20)
                strcpy(text, pieces[i]); /* its own text may merge into something else */
            else
                draw(&d, text, 1 + roll(&d, i % 2 ? 20 : 300), i % 3 ? 4 : 6);
            size_t n = by_definition(&v, text, want);
            tinkc_tokens ids = encode_all(tok, text, strlen(text));
            assert_same_ids(&ids, want, n);
            tinkc_tokens_free(&ids);
        }
        tinkc_tokenizer_free(tok);
    }
}

/* The rule is about the whole text, so it must not be cut into words before. */
TEST(ignore_merges_takes_a_whole_text_and_no_word_of_it)
{
    vocabulary v = plain;
    v.normalizer = REPLACE;
    v.merges = "[]";
    v.options = "\"byte_fallback\":true,\"ignore_merges\":true";
    assert_pieces(&v, " a", M "a");
    assert_pieces(&v, "b a", "b " M " a");
}

/* Leftmost means the position in the text: a list of merges has an order of its own instead. */
TEST(merges_of_a_list_go_by_their_place_in_it)
{
    vocabulary v = plain;
    v.normalizer = REPLACE;
    v.merges = "[\"b c\",\"a b\",\"" M " a\",\"" M " " M "\"]";
    assert_pieces(&v, "abc", "a bc");
    assert_pieces(&v, "ab", "ab");
    assert_pieces(&v, "     ", M M " " M M " " M);
}

TEST(bytes_stand_for_characters_without_a_piece)
{
    vocabulary v = plain;
    v.normalizer = REPLACE;
    assert_pieces(&v, "a" ZHONG "b\n", "a <0xE4> <0xB8> <0xAD> b <0x0A>");
    assert_pieces(&v, E_ACUTE "\xC3\xAA", E_ACUTE " <0xC3> <0xAA>");
    assert_pieces(&v, "<0x41>", "<0x3C> <0x30> <0x78> <0x34> <0x31> <0x3E>"); /* the text of a token is not the token */
}

TEST(a_token_without_a_score_is_never_produced)
{
    vocabulary v = plain;
    v.normalizer = REPLACE;
    v.pieces[8].score = NAN; /* "bd"; NaN is written as null */
    assert_pieces(&v, "abd", "ab d");
    v.pieces[4].score = NAN; /* "d": a byte takes its place */
    assert_pieces(&v, "abd", "ab <0x64>");
    assert_pieces(&v, "a</s>", "a <0x3C> <0x2F> <0x73> <0x3E>");
}

/* ---- spaces ---- */

TEST(where_a_space_is_put_before_the_text)
{
    static const struct {
        const char *normalizer, *pre, *text, *want;
    } rows[] = {
        { SEQUENCE(PREPEND "," REPLACE), "null", "a", M "a" },
        { SEQUENCE(PREPEND "," REPLACE), "null", " a", M " " M "a" }, /* always, even before a space */
        { SEQUENCE(PREPEND "," REPLACE), "null", "", "" },
        { SEQUENCE(PREPEND "," REPLACE), "null", "b<s>b", M " b <s> " M " b" }, /* and behind a token */
        { REPLACE, "null", "a b", "a " M " b" },
        { REPLACE, "null", "a" M "b", "a " M " b" }, /* U+2581 is a space itself */
        { "null", METASPACE("always", "false"), "b", M " b" },
        { "null", METASPACE("always", "false"), " b", M " b" }, /* unless there is one */
        { "null", METASPACE("always", "false"), M "b", M " b" },
        { "null", METASPACE("always", "false"), "<s>b", "<s> " M " b" },
        { "null", METASPACE("first", "false"), "b", M " b" },
        { "null", METASPACE("first", "false"), "<s>b", "<s> b" }, /* not at the beginning of the text */
        { "null", METASPACE("first", "false"), "b<s>b", M " b <s> b" },
        { "null", METASPACE("never", "false"), "b b", "b " M " b" },
        { "null", METASPACE("never", "true"), "   a", M " " M " " M "a" },   /* split: a piece begins at each space */
        { "null", METASPACE("never", "false"), "   a", M M " " M "a" },
        { "null", "{\"type\":\"Metaspace\",\"replacement\":\"" M "\",\"add_prefix_space\":false}", "b", "b" },
        { "null", "{\"type\":\"Metaspace\",\"replacement\":\"" M "\",\"add_prefix_space\":true}", "b", M " b" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        vocabulary v = plain;
        v.normalizer = rows[i].normalizer;
        v.pre = rows[i].pre;
        assert_pieces(&v, rows[i].text, rows[i].want);
    }
}

/* The reference looks for such tokens in normalised text, in their own normal form: with the space. */
TEST(a_normalized_token_is_found_behind_the_space_that_it_gets)
{
    vocabulary v = plain;
    v.added = SPECIAL("true");
    assert_pieces(&v, "<s>b", "<s> b");
    assert_pieces(&v, "b<s>", M " b <0x3C> <0x73> <0x3E>");
    assert_pieces(&v, "b <s>", M " b <s>");
}

TEST(offsets_are_those_of_the_text)
{
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_sizes at = { 0 };
    vocabulary v = plain;
    static const size_t want[] = { 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6 };
    tinkc_tokenizer *tok = make_good(&v); /* space+a, space, the three bytes of a character, b */
    assert_true(tinkc_encode_span(tok, "a " ZHONG "b", 6, NULL, &ids, &at, &err));
    assert_int_equal(at.len, 12);
    assert_memory_equal(at.data, want, sizeof want);
    tinkc_tokenizer_free(tok);
    v.normalizer = "null";
    v.pre = METASPACE("first", "false");
    tok = make_good(&v);
    ids.len = at.len = 0;
    assert_true(tinkc_encode_span(tok, "b<s>" M "b", 8, NULL, &ids, &at, &err)); /* space, b, <s>, space, b */
    static const size_t late[] = { 0, 1, 0, 1, 1, 4, 4, 7, 7, 8 };
    assert_int_equal(at.len, 10);
    assert_memory_equal(at.data, late, sizeof late);
    tinkc_tokens_free(&ids);
    tinkc_sizes_free(&at);
    tinkc_tokenizer_free(tok);
}

/* ---- back ---- */

static const char *text_of(const tinkc_tokenizer *tok, const int32_t *ids, size_t n, tinkc_text *out)
{
    tinkc_error err = { 0 };
    return tinkc_decode(tok, ids, n, out, &err);
}

TEST(decoding_gives_spaces_and_bytes_back_and_drops_the_first_space)
{
    enum { SPACE = 259, A = 260, B = 261, SPACE_A = 269, BYTE = 3 };
    static const struct {
        int32_t ids[5];
        size_t n;
        const char *want, *kept; /* kept: by a decoder without Strip */
    } rows[] = {
        { { SPACE_A, SPACE, B }, 3, "a b", " a b" },
        { { SPACE, SPACE_A }, 2, " a", "  a" }, /* one space only */
        { { 1, SPACE_A }, 2, "<s> a", "<s> a" },
        { { SPACE }, 1, "", " " },
        { { BYTE + 0xE4, BYTE + 0xB8, BYTE + 0xAD, A }, 4, ZHONG "a", ZHONG "a" },
        { { BYTE + 0x41, BYTE + 0x20, A }, 3, "A a", "A a" },
        { { BYTE + 0xE4, A }, 2, "\xEF\xBF\xBD" "a", "\xEF\xBF\xBD" "a" },
    };
    vocabulary v = plain;
    tinkc_tokenizer *tok = make_good(&v);
    v.decoders = DECODERS;
    tinkc_tokenizer *keeps = make_good(&v);
    tinkc_error err = { 0 };
    tinkc_text out = { 0 }, piecewise = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_string_equal(text_of(tok, rows[i].ids, rows[i].n, &out), rows[i].want);
        assert_string_equal(text_of(keeps, rows[i].ids, rows[i].n, &out), rows[i].kept);
        tinkc_decoder *d = tinkc_decoder_new(tok, NULL, &err);
        piecewise.len = 0;
        assert_true(tinkc_decoder_push(d, NULL, 0, &piecewise, &err)); /* nothing is not the beginning */
        for (size_t k = 0; k < rows[i].n; k++)
            assert_true(tinkc_decoder_push(d, &rows[i].ids[k], 1, &piecewise, &err));
        assert_true(tinkc_decoder_finish(d, &piecewise, &err));
        assert_string_equal(piecewise.data, rows[i].want);
        tinkc_decoder_free(d);
    }
    tinkc_text_free(&out);
    tinkc_text_free(&piecewise);
    tinkc_tokenizer_free(tok);
    tinkc_tokenizer_free(keeps);
}

TEST(a_piece_has_its_id_by_its_text_in_the_file_and_by_its_bytes)
{
    tinkc_tokenizer *tok = make_good(&plain);
    assert_int_equal(tinkc_tokenizer_id(tok, M "a"), 269);
    assert_int_equal(tinkc_tokenizer_id(tok, " a"), 269);
    assert_int_equal(tinkc_tokenizer_id(tok, "<0x0A>"), 13);
    assert_int_equal(tinkc_tokenizer_id(tok, "<0x61>"), 3 + 'a'); /* not the piece "a" */
    assert_int_equal(tinkc_tokenizer_id(tok, "a"), 260);
    assert_int_equal(tinkc_tokenizer_bytes(tok, 269).len, 2);
    assert_int_equal(*tinkc_tokenizer_bytes(tok, 3 + 'a').data, 'a');
    tinkc_tokenizer_free(tok);
}

/* ---- the compiled form, and what is refused ---- */

TEST(a_model_may_come_before_the_decoder_that_says_what_its_tokens_are)
{
    unsigned char out[8];
    assert_int_equal(tkc_piece_byte(tkc_str("<0xE4>")), 0xE4);
    assert_int_equal(tkc_piece_byte(tkc_str("<0xe4>")), -1);
    assert_int_equal(tkc_from_piece(tkc_str(M "x" M), out), 3);
    assert_memory_equal(out, " x ", 3);
    tinkc_error err;
    tinkc_tokenizer *late = NULL;
    char text[16384];
    int n = snprintf(text, sizeof text, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"merges\":[[\"" M "\",\"a\"]],\"vocab\":{");
    for (int i = 0; i < 256; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "\"<0x%02X>\":%d,", (unsigned)i, i);
    snprintf(text + n, sizeof text - (size_t)n,
             "\"" M "\":256,\"a\":257,\"" M "a\":258}},\"normalizer\":%s,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[%s]}}",
             SEQUENCE(REPLACE), DECODERS);
    err = (tinkc_error){ 0 };
    late = tinkc_tokenizer_parse(text, strlen(text), NULL, 0, NULL, &err);
    if (!late)
        fail_msg("%s", err.message);
    tinkc_tokens ids = encode_all(late, "a a\n", 4);
    assert_same_ids(&ids, (int32_t[]){ 257, 258, 10 }, 3);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(late);
}

TEST(what_cannot_be_obeyed_is_refused_by_name)
{
    static const struct {
        const char *normalizer, *pre, *decoders, *merges, *message;
    } rows[] = {
        { "null", "null", DECODERS, "[]", "replaces spaces" },
        { REPLACE, METASPACE("first", "true"), DECODERS, "[]", "replaces spaces" },
        { SEQUENCE("{\"type\":\"NFC\"}," REPLACE), "null", DECODERS, "[]", "replaces spaces" },
        { SEQUENCE(PREPEND "," PREPEND "," REPLACE), "null", DECODERS, "[]", "normalizer Prepend" },
        { "{\"type\":\"Prepend\",\"prepend\":\"x\"}", "null", DECODERS, "[]", "normalizer Prepend" },
        { "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" \"},\"content\":\"" M "\"}", "null", DECODERS, "[]", "normalizer Replace" },
        { "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}", "null", DECODERS, "[]", "normalizer Replace" },
        { "null", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", DECODERS, "[]", "Metaspace" },
        { "null", METASPACE("sometimes", "true"), DECODERS, "[]", "prepend_scheme sometimes" },
        { "null", "{\"type\":\"Whitespace\"}", DECODERS, "[]", "Whitespace" },
        { REPLACE, "null", DECODERS ",{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}", "[]", "decoder Strip" },
        { REPLACE, "null", DECODERS ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}", "[]", "decoder Strip" },
        { REPLACE, "null", DECODERS ",{\"type\":\"CTC\"}", "[]", "decoder CTC" },
        { REPLACE, "null", DECODERS, "[\"a x\"]", "merge 0" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err;
        vocabulary v = plain;
        v.normalizer = rows[i].normalizer;
        v.pre = rows[i].pre;
        v.decoders = rows[i].decoders;
        v.merges = rows[i].merges;
        tinkc_tokenizer *tok = make(&v, &err);
        if (tok || !strstr(err.message, rows[i].message))
            fail_msg("row %zu: \"%s\" does not name %s", i, err.message, rows[i].message);
    }
    tinkc_error err;
    vocabulary v = plain;
    v.pieces[0].text = "x"; /* no U+2581 */
    assert_null(make(&v, &err));
    assert_non_null(strstr(err.message, "no space (U+2581)"));
    v = plain;
    v.pieces[5].text = "e"; /* "cé" is a piece, "é" is not */
    assert_null(make(&v, &err));
    assert_non_null(strstr(err.message, "token 273 has a character without a token"));
}
