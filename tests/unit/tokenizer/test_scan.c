/* test_scan.c - the hand-written scanners against the regex engine, on random characters;
 * their classes of characters; and the translation of patterns against what the reference made of
 * them. */
#include "tok_support.h"
#include "support/json_trees.h"

#include "base/clock.h"
#include "bpe/pretok.h"

static const char kimi_pattern[] = "[\\p{Han}]+|"
                                   "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
                                   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                                   "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
                                   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                                   "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static tkc_regex *regex_of(const char *pattern)
{
    tinkc_error err = { 0 };
    tkc_regex *r = tkc_regex_new(tkc_str(pattern), false, &err);
    if (!r)
        fail_msg("%s", err.message);
    return r;
}

/* ---- PCRE2 and our tables class all characters alike ---- */

static const struct {
    const char *pattern;
    uint8_t bits;
} class_patterns[7] = { { "[\\p{Lu}\\p{Lt}]", TKC_UPPER },
                        { "\\p{Ll}", TKC_LOWER },
                        { "[\\p{Lm}\\p{Lo}]", TKC_OTHER_LETTER },
                        { "\\p{M}", TKC_MARK },
                        { "\\p{N}", TKC_NUMBER },
                        { "[\\p{P}\\p{S}]", TKC_PUNCT },
                        { "\\p{Han}", TKC_HAN } };

/* Every character there is has the classes of our tables on the way through PCRE2 as well, whatever
 * version of Unicode it knows. */
TEST(characters_have_the_same_classes_in_patterns)
{
    enum { LAST = 0x10FFFF };
    unsigned char *text = malloc(4u * (LAST + 1));
    size_t n = 0;
    assert_non_null(text);
    for (uint32_t c = 0; c <= LAST; c++)
        if (c < 0xD800 || c > 0xDFFF)
            n += tkc_put_char(text + n, c);
    for (size_t i = 0; i < sizeof class_patterns / sizeof *class_patterns; i++) {
        tinkc_error err = { 0 };
        char pattern[80];
        (void)snprintf(pattern, sizeof pattern, "(?:%s)+", class_patterns[i].pattern);
        tkc_regex *r = regex_of(pattern);
        const unsigned char *p = text;
        tkc_regex_walk w = { 0 };
        for (size_t start, end = 0; end < n;) {
            bool found = tkc_regex_next(r, text, n, &w, NULL, &err) == 1;
            start = found ? w.start : n;
            end = found ? w.end : n;
            while (p < text + end) {
                bool inside = p >= text + start;
                uint32_t c = tkc_next_char(&p);
                if (inside != !!(tkc_class_of(c) & class_patterns[i].bits))
                    fail_msg("U+%04X: %s", c, class_patterns[i].pattern);
            }
        }
        assert_int_equal(err.code, 0);
        tkc_regex_free(r);
    }
    free(text);
}

static size_t mixed_text(dice *d, unsigned char *out, uint32_t chars)
{
    size_t n = 0;
    for (uint32_t i = roll(d, chars) + 1; i > 0; i--) {
        uint32_t c = random_char(d);
        for (uint32_t times = roll(d, 3) ? 1 : roll(d, 4) + 1; times > 0; times--)
            n += tkc_put_char(out + n, c);
    }
    return n;
}

/* ---- both over the same text ---- */

static void compare(tkc_scan_fn *scan, const tkc_regex *r, const unsigned char *text, size_t len)
{
    tkc_regex_walk w = { 0 };
    tinkc_error err = { 0 };
    for (size_t at = 0; at < len;) {
        /* A gap is a piece of its own, and so is a match. */
        int found = at < w.end ? 1 : tkc_regex_next(r, text, len, &w, NULL, &err);
        assert_true(found >= 0);
        size_t want = !found ? len : w.start > at ? w.start : w.end;
        size_t got = (size_t)(scan(text + at, text + len) - text);
        if (got != want)
            fail_msg("piece at byte %zu of %zu: %zu by hand, %zu by pattern: %.*s", at, len, got, want, (int)len, text);
        at = got;
    }
}

TEST(each_scanner_agrees_with_its_pattern)
{
    static unsigned char text[4096];
    for (int s = 1; s < TKC_SCANS; s++) {
        const char *pattern = s == TKC_SCAN_KIMI ? kimi_pattern : tkc_pattern_of_scanner(s);
        if (!pattern)
            continue;
        dice d = { 1234567u + (unsigned)s };
        tkc_regex *r = regex_of(pattern);
        for (int i = 0; i < 4000; i++)
            compare(tkc_scanners[s], r, text, mixed_text(&d, text, 40));
        tkc_regex_free(r);
    }
}

/* ---- DeepSeek's chain, step by step ---- */

typedef struct pieces {
    size_t ends[2048], n;
    const unsigned char *text;
} pieces;

static bool note_piece(void *self, const unsigned char *p, size_t len, size_t skew, size_t origin)
{
    pieces *s = self;
    assert_int_equal(skew, 0);
    assert_ptr_equal(p, s->text + origin);
    s->ends[s->n++] = origin + len;
    return true;
}

TEST(the_deepseek_scanner_agrees_with_its_three_patterns)
{
    static unsigned char text[4096];
    static const int chain[] = { TKC_SCAN_NUMBERS3, TKC_SCAN_CJK, TKC_SCAN_DEEPSEEK_WORD };
    tkc_pretok steps = { .n = 3 };
    dice d = { 99 };
    for (size_t i = 0; i < 3; i++)
        steps.steps[i].scanner = chain[i];
    for (int i = 0; i < 20000; i++) {
        static pieces got;
        tinkc_error err = { 0 };
        size_t len = mixed_text(&d, text, 40), k = 0;
        got.n = 0;
        got.text = text;
        assert_true(tkc_pretok_run(&steps, text, len, note_piece, &got, NULL, &err));
        for (const unsigned char *p = text; p < text + len; k++) {
            p = tkc_scanners[TKC_SCAN_DEEPSEEK](p, text + len);
            assert_int_equal(got.ends[k], p - text);
        }
        assert_int_equal(k, got.n);
    }
}

static void expect_pieces(int scanner, const char *text, const char *want)
{
    char got[200];
    size_t n = 0;
    const unsigned char *p = (const unsigned char *)text, *end = p + strlen(text);
    while (p < end) {
        const unsigned char *q = tkc_scanners[scanner](p, end);
        memcpy(got + n, p, (size_t)(q - p));
        n += (size_t)(q - p);
        got[n++] = '|';
        p = q;
    }
    got[n ? n - 1 : 0] = '\0';
    assert_string_equal(got, want);
}

TEST(pieces_of_known_texts)
{
    expect_pieces(TKC_SCAN_CL100K, "It's 12345 o'CLOCK  now", "It|'s| |123|45| o|'CLOCK| | now");
    expect_pieces(TKC_SCAN_CL100K, "a  \n\n  b", "a|  \n\n| | b");
    expect_pieces(TKC_SCAN_QWEN2, "12", "1|2");
    expect_pieces(TKC_SCAN_CL100K, "x'\xC5\xBF y", "x|'\xC5\xBF| y");
    expect_pieces(TKC_SCAN_O200K, "HTMLElement's fooBar a/b!!/\n", "HTMLElement's| foo|Bar| a|/b|!!/\n");
    expect_pieces(TKC_SCAN_TEKKEN, "it's 12", "it|'s| |1|2");
    expect_pieces(TKC_SCAN_GPT2, "I'M i'm  12ab", "I|'|M| i|'m| | 12|ab");
    expect_pieces(TKC_SCAN_DEEPSEEK, "a  1", "a|  |1");
    expect_pieces(TKC_SCAN_DEEPSEEK, "a  b", "a| | b");
    expect_pieces(TKC_SCAN_DEEPSEEK, "\xE3\x82\xAB\xE3\x83\xBB\xE3\x82\xAB", "\xE3\x82\xAB|\xE3\x83\xBB|\xE3\x82\xAB");
}

/* ---- translation ---- */

static void expect_translation(const char *from, const char *want)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    bool ok = tkc_regex_translate(tkc_str(from), &out, &err);
    if (want) {
        assert_true(ok);
        assert_string_equal(tkc_buf_terminate(&out, &err), want);
    } else {
        assert_false(ok);
        assert_int_equal(err.code, TINKC_E_TOKENIZER);
    }
    tkc_buf_free(&out);
}

TEST(patterns_are_translated_to_pcre2)
{
    expect_translation("\\u00e9\\h[\\h]", "\\x{00e9}[0-9a-fA-F][0-9a-fA-F]");
    expect_translation("^a$", "(?m:^)a(?m:$)");
    expect_translation("a{2,3}+", "(?:a{2,3})+");
    expect_translation("(ab){2}+c", "(?:(ab){2})+c");
    expect_translation("[a&&[^b]]", "(?:(?![b])[a])");
    expect_translation("\\p{Han}", "[\\p{sc:Han}\\x{2B739}-\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"
                                   "\\x{31350}-\\x{323AF}]");
    expect_translation("[^\\p{Lt}x]\\P{Lt}", "[^\\p{Lt}x][^\\p{Lt}]");
    expect_translation("[\\W]", NULL);
    expect_translation("[a[bc]]", NULL);
    expect_translation("[a&&b]", NULL);
    expect_translation("[[:alpha:]]", NULL);
    expect_translation("(?~x)", NULL);
    expect_translation("a\\", NULL);
    expect_translation("[a", NULL);
}

static bool matches(const char *pattern, uint32_t c)
{
    unsigned char text[4];
    tinkc_error err = { 0 };
    tkc_regex_walk w = { 0 };
    tkc_regex *r = regex_of(pattern);
    bool found = tkc_regex_next(r, text, tkc_put_char(text, c), &w, NULL, &err) == 1;
    tkc_regex_free(r);
    return found;
}

/* Scripts are those of the character itself, not the others it is used with; what is younger than
 * PCRE2 belongs to them; a property for which that is not known is refused. */
TEST(a_property_has_the_references_meaning_or_is_refused)
{
    /* The first ones are PCRE2's own, or mean something else there. */
    static const char *const refused[] = { "\\C",     "\\Qa\\E",       "\\N",      "(*UTF)a",  "(*ACCEPT)",
                                           "(?C1)a",  "(?R)?",         "(?1)",     "(?P<n>a)", "(?|a)",
                                           "(?(1)a)", "(?s:.)",        "(?m:.)",   "(?~a)",    "(?",
                                           "\\p{So}", "\\p{Nonsense}", "[\\P{L}]", "\\pL",     "\\p{L" };
    assert_true(matches("\\p{Katakana}", 0x30A2));
    assert_false(matches("\\p{Katakana}", 0x30FC)); /* also used with Hiragana: script Common */
    assert_true(matches("\\p{Katakana}", 0x1B155));
    assert_true(matches("[\\p{Hiragana}]", 0x1B132));
    assert_false(matches("\\P{Latin}", 0xA7CB));
    assert_true(matches("\\p{^Latin}", 0x0363));
    assert_true(matches("\\p{Alpha}", 0x2EBF0));
    assert_true(matches("\\p{Letter}", 0x31350));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        tinkc_error err = { 0 };
        assert_null(tkc_regex_new(tkc_str(refused[i]), false, &err));
        assert_non_null(strstr(err.message, "is not supported"));
    }
}

/* From match to match as the reference goes: an empty one right behind another is passed over. */
TEST(an_empty_match_behind_another_is_passed_over)
{
    static const size_t want[][2] = { { 0, 0 }, { 5, 5 }, { 6, 7 } };
    const unsigned char *text = (const unsigned char *)"aBcD aba";
    tkc_regex *r = regex_of("(?=a)|b");
    tkc_regex_walk w = { 0 };
    tinkc_error err = { 0 };
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(tkc_regex_next(r, text, 8, &w, NULL, &err), 1);
        assert_int_equal(w.start, want[i][0]);
        assert_int_equal(w.end, want[i][1]);
    }
    assert_int_equal(tkc_regex_next(r, text, 8, &w, NULL, &err), 0);
    tkc_regex_free(r);
}

/* The budget is the thread's own time: a late clock alone ends nothing. */
TEST(the_budget_is_the_threads_own_time)
{
    const int64_t over = 1, far = INT64_MAX;
    const struct {
        int64_t deadline_ns, cpu_end_ns;
        int found;
    } rows[] = { { over, over, -1 }, { over, far, 1 }, { far, over, 1 }, { 0, over, 1 } };
    tkc_regex *r = regex_of("b");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tkc_regex_budget b = { 1234, rows[i].deadline_ns, rows[i].cpu_end_ns };
        tkc_regex_walk w = { 0 };
        tinkc_error err = { 0 };
        int found = tkc_regex_next(r, (const unsigned char *)"ab", 2, &w, &b, &err);
        assert_int_equal(found, rows[i].found);
        assert_string_equal(err.message,
                            found < 0 ? "the tokenizer's pattern takes more than 1234 ms for this text" : "");
    }
    tkc_regex_budget started = { 0 };
    int64_t clock = tkc_monotonic_ns(), own = tkc_thread_cpu_ns();
    tkc_regex_budget_start(&started, 5000);
    assert_int_equal(started.allowed_ms, 1050);
    assert_true(started.deadline_ns >= clock + 1050000000);
    assert_true(started.deadline_ns <= tkc_monotonic_ns() + 1050000000);
    assert_true(started.cpu_end_ns >= own + 1050000000);
    assert_true(started.cpu_end_ns <= tkc_thread_cpu_ns() + 1050000000);
    tkc_regex_free(r);
}

/* ---- the reference's matches for many patterns, from the data beside the checkout ---- */

typedef struct tally {
    size_t agree, differ, refused;
} tally;

static bool same_matches(const tkc_regex *r, const tkc_tree *text, const tkc_tree *want)
{
    const unsigned char *input = (const unsigned char *)tkc_tree_text(text);
    size_t len = tkc_tree_str(text).len, i = 0;
    tkc_regex_walk w = { 0 };
    tinkc_error err = { 0 };
    while (tkc_regex_next(r, input, len, &w, NULL, &err) == 1) {
        const tkc_tree *match = tkc_tree_at(want, i);
        if (w.start == w.end)
            continue; /* the data leaves them out */
        if (!tkc_str_eq(tkc_strn((const char *)input + w.start, w.end - w.start),
                        tkc_strn(tkc_tree_text(match), tkc_tree_str(match).len)))
            return false;
        i++;
    }
    return i == tkc_tree_length(want);
}

static void check_one(const tkc_tree *row, const tkc_tree *inputs, const tkc_tree *want, tally *t)
{
    tinkc_error err = { 0 };
    const char *pattern = tkc_tree_get_text(row, "pattern");
    assert_non_null(pattern);
    assert_int_equal(tkc_tree_length(want), tkc_tree_length(inputs));
    tkc_regex *r = tkc_regex_new(tkc_strn(pattern, tkc_tree_str(tkc_tree_get(row, "pattern")).len), false, &err);
    for (size_t i = 0; i < tkc_tree_length(inputs); i++) {
        const tkc_tree *input = tkc_tree_at(inputs, i);
        if (!r)
            t->refused++;
        else if (same_matches(r, input, tkc_tree_at(want, i)))
            t->agree++;
        else
            t->differ++, print_message("differs: %s\n", pattern);
    }
    if (!r)
        print_message("refused: %s (%s)\n", pattern, err.message);
    tkc_regex_free(r);
}

static void check_pattern(const tkc_tree *row, const tkc_tree *inputs, const tkc_tree *tokens, tally *t)
{
    const tkc_tree *own = tkc_tree_get(row, "inputs");
    const tkc_tree *want = tkc_tree_get(tokens, tkc_tree_get_text(row, "id"));
    if (want)
        check_one(row, own ? own : inputs, want, t);
}

/* Our own patterns, one for each part of the syntax. */
TEST(each_part_of_the_syntax_agrees_with_the_reference)
{
    tkc_tree *whole = json_file("tests/data/tokenizer/patterns.json");
    assert_non_null(whole);
    const tkc_tree *rows = tkc_tree_get(whole, "patterns");
    const tkc_tree *inputs = tkc_tree_get(whole, "inputs");
    tally t = { 0, 0, 0 };
    for (size_t i = 0; i < tkc_tree_length(rows); i++)
        check_one(tkc_tree_at(rows, i), inputs, tkc_tree_get(tkc_tree_at(rows, i), "matches"), &t);
    print_message("%zu agree, %zu differ, %zu refused\n", t.agree, t.differ, t.refused);
    assert_int_equal(t.differ, 0);
    assert_int_equal(t.refused, 0);
    assert_true(t.agree > 1000);
}

/* Patterns of published models, where the data lies beside the checkout. */
TEST(published_patterns_agree_with_the_reference)
{
    if (!tkc_is_dir(SHARED "/vectors/split-regex"))
        return;
    tkc_tree *patterns = json_file(SHARED "/vectors/split-regex/splitRegexPatterns.json");
    tkc_tree *oracle = json_file(SHARED "/vectors/split-regex/splitRegexOracle.json");
    assert_non_null(patterns);
    assert_non_null(oracle);
    const tkc_tree *rows = tkc_tree_get(patterns, "patterns");
    const tkc_tree *inputs = tkc_tree_get(tkc_tree_get(patterns, "defaults"), "inputs");
    tally t = { 0, 0, 0 };
    for (size_t i = 0; i < tkc_tree_length(rows); i++)
        check_pattern(tkc_tree_at(rows, i), inputs, tkc_tree_get(oracle, "tokens"), &t);
    print_message("%zu agree, %zu differ, %zu refused\n", t.agree, t.differ, t.refused);
    /* What differs is folding of one character to two: (?i:ss) and U+00DF. */
    assert_true(t.agree >= 1959);
    assert_true(t.differ <= 1);
}
