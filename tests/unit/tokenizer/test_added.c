/* test_added.c - finding added tokens: leftmost, then longest, in time that does not depend on how
 * long they are. */
#include "tok_support.h"

#include "bpe/added.h"

enum { MOST_TOKENS = 8, MOST_BYTES = 6, TEXT = 60 };

typedef struct sample {
    tkc_added_token tokens[MOST_TOKENS];
    const tkc_added_token *list[MOST_TOKENS];
    tinkc_str patterns[MOST_TOKENS];
    char bytes[MOST_TOKENS][MOST_BYTES];
    size_t n;
} sample;

/* Few different bytes, so that tokens begin and end alike. */
static void make_sample(sample *s, dice *d)
{
    memset(s, 0, sizeof *s);
    s->n = 1 + roll(d, MOST_TOKENS);
    for (size_t i = 0; i < s->n; i++) {
        size_t len = 1 + roll(d, MOST_BYTES);
        for (size_t k = 0; k < len; k++)
            s->bytes[i][k] = (char)('a' + roll(d, 2 + (uint32_t)(i % 2)));
        s->patterns[i] = tkc_strn(s->bytes[i], len);
        s->tokens[i].special = roll(d, 2);
        s->list[i] = &s->tokens[i];
    }
}

/* The definition: at each place the longest token, of equal ones the first, special ones first. */
static bool find_slowly(const sample *s, const char *text, size_t len, size_t from, tkc_added_match *out)
{
    for (size_t at = from; at < len; at++) {
        size_t best = MOST_TOKENS;
        for (size_t i = 0; i < s->n; i++) {
            tinkc_str p = s->patterns[i];
            if (p.len > len - at || memcmp(p.data, text + at, p.len) != 0)
                continue;
            if (best == MOST_TOKENS || p.len > s->patterns[best].len ||
                (p.len == s->patterns[best].len && s->tokens[i].special && !s->tokens[best].special))
                best = i;
        }
        if (best != MOST_TOKENS) {
            *out = (tkc_added_match){ at, at + s->patterns[best].len, s->list[best] };
            return true;
        }
    }
    return false;
}

TEST(added_tokens_are_found_as_defined)
{
    dice d = { 20260 };
    size_t matches = 0;
    for (int round = 0; round < 20000; round++) {
        sample s;
        tkc_arena arena = { 0 };
        tinkc_error err = { 0 };
        char text[TEXT];
        size_t len = roll(&d, TEXT), from = 0;
        make_sample(&s, &d);
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + roll(&d, 3));
        tkc_added_set *set = tkc_added_set_new(&arena, s.list, s.patterns, s.n, &err);
        assert_non_null(set);
        tkc_added_search search = { 0 };
        for (;;) {
            tkc_added_match got = { 0 }, want = { 0 };
            bool found = tkc_added_next(set, (const unsigned char *)text, len, false, &search, &got);
            assert_int_equal(found, find_slowly(&s, text, len, from, &want));
            if (!found)
                break;
            assert_int_equal(got.start, want.start);
            assert_int_equal(got.end, want.end);
            assert_ptr_equal(got.token, want.token);
            from = want.end;
            matches++;
        }
        tkc_arena_free(&arena);
    }
    assert_true(matches > 100000);
}

/* Counts the matches of tokens in n times `unit`. */
static size_t count_in_run(const tkc_added_token *token, tinkc_str pattern, char unit, size_t n)
{
    tkc_arena arena = { 0 };
    tinkc_error err = { 0 };
    tkc_added_search search = { 0 };
    tkc_added_match m;
    size_t found = 0;
    unsigned char *text = malloc(n);
    assert_non_null(text);
    memset(text, unit, n);
    tkc_added_set *set = tkc_added_set_new(&arena, &token, &pattern, 1, &err);
    assert_non_null(set);
    while (tkc_added_next(set, text, n, false, &search, &m))
        found++;
    free(text);
    tkc_arena_free(&arena);
    return found;
}

/* A search that started again at each place, or white space that was looked through for each token in
 * it, would take hours. */
TEST(added_tokens_are_found_in_linear_time)
{
    enum { TOKEN = 200000, RUN = 4000000 };
    static char text[TOKEN];
    memset(text, 'a', TOKEN);
    text[TOKEN - 1] = 'b';
    tkc_added_token plain = { .text = text, .len = TOKEN },
                    greedy = { .text = " ", .len = 1, .lstrip = true, .rstrip = true };
    assert_int_equal(count_in_run(&plain, tkc_strn(text, TOKEN), 'a', RUN), 0);
    assert_int_equal(count_in_run(&plain, tkc_strn(text, TOKEN - 1), 'a', RUN), RUN / (TOKEN - 1));
    assert_int_equal(count_in_run(&greedy, tkc_str(" "), ' ', RUN), 1);
}
