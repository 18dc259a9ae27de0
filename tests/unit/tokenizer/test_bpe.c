/* test_bpe.c - the ways to merge a piece agree with each other, and cuts change nothing. */
#include "tok_support.h"

#include "base/buf.h"
#include "bpe/bpe.h"
#include "tokenizer/tokenizer_priv.h"

enum { MOST = 4000 };

/* Definition, literally: merge the lowest rank, leftmost first, until nothing merges. */
static size_t by_definition(const tkc_tables *t, const unsigned char *p, size_t len, int32_t *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        if (t->byte_ids[p[i]] >= 0)
            ids[n++] = t->byte_ids[p[i]];
    for (;;) {
        uint32_t best = TKC_NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = tkc_pair_rank(t, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == TKC_NO_RANK)
            return n;
        ids[at] = (int32_t)t->merged[best];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* What tkc_bpe_chars has learnt of one vocabulary. Forgotten with it: the next may have its
 * address. */
static tkc_char_entry chars[TKC_BPE_CHARS];

static void end_vocabulary(tinkc_tokenizer *tok)
{
    tinkc_tokenizer_free(tok);
    memset(chars, 0, sizeof chars);
}

static void check_piece(const tkc_tables *t, const unsigned char *p, size_t len)
{
    static int32_t want[MOST], got[MOST];
    tinkc_error err = { 0 };
    tkc_bpe_work work = { 0 };
    size_t n = by_definition(t, p, len, want);
    assert_int_equal(tkc_bpe_heap(t, &work, p, len, got, &err), n);
    assert_memory_equal(got, want, n * sizeof *got);
    assert_int_equal(tkc_bpe_walk(t, &work, p, len, got, &err), n);
    assert_memory_equal(got, want, n * sizeof *got);
    if (len <= TKC_BPE_SHORT) {
        assert_int_equal(tkc_bpe_short(t, p, len, got), n);
        assert_memory_equal(got, want, n * sizeof *got);
    }
    if (len <= TKC_BPE_SHORT && t->all_bytes && tkc_utf8_sound(p, len, NULL) == len) {
        assert_int_equal(tkc_bpe_chars(t, chars, p, len, got), n);
        assert_memory_equal(got, want, n * sizeof *got);
    }
    tkc_bpe_work_free(&work);
}

/* Characters that text in other scripts is full of, and a few that are rare. */
static size_t foreign_piece(dice *d, unsigned char *out)
{
    static const uint32_t rows[][2] = { { 0x4E00, 0x300 }, { 0x5000, 0x4F00 }, { 0x3001, 2 },     { 0x3042, 0x50 },
                                        { 0x30A2, 0x50 },  { 0xFF0C, 1 },      { 0xAC00, 0x400 }, { 0x0E01, 0x50 },
                                        { 0x0430, 0x20 },  { 0x0627, 0x20 },   { 0x1F600, 0x40 }, { 0x20, 0x5E } };
    size_t n = 0;
    uint32_t row = roll(d, 12);
    for (uint32_t left = roll(d, 12) + 1; left > 0; left--) {
        row = roll(d, 3) ? row : roll(d, 12);
        n += tkc_put_char(out + n, rows[row][0] + roll(d, rows[row][1]));
    }
    return n;
}

/* Random strings over small alphabets merge a lot; over large ones they look like text. */
static size_t random_piece(dice *d, unsigned char *out, const tkc_tables *t)
{
    static const char *const alphabets[] = { "a", "ab", "aeinst", "the andi", "-=", "01", " \n" };
    uint32_t kind = roll(d, 13);
    size_t len = roll(d, roll(d, 8) ? 40 : 700) + 1, n = 0;
    if (kind < 7) {
        const char *letters = alphabets[kind];
        for (; n < len; n++)
            out[n] = (unsigned char)letters[roll(d, (uint32_t)strlen(letters))];
        return n;
    }
    if (kind == 7)
        return random_text(d, out, (uint32_t)len / 2 + 1);
    if (kind > 9)
        return foreign_piece(d, out);
    while (n < len) { /* tokens side by side */
        tinkc_bytes text = tkc_token_text(t, roll(d, t->n));
        if (n + text.len > 900)
            break;
        memcpy(out + n, text.data, text.len);
        n += text.len;
    }
    if (n == 0)
        out[n++] = 'x';
    return n;
}

static void check_model(const char *path, int rounds)
{
    tinkc_tokenizer *tok = open_tokenizer(path);
    static unsigned char piece[MOST];
    dice d = { 88172645463325252u };
    for (int i = 0; i < rounds; i++) {
        size_t n = random_piece(&d, piece, &tok->tables);
        check_piece(&tok->tables, piece, n);
    }
    end_vocabulary(tok);
}

TEST(a_tiny_model_agrees_with_the_slow_encoder)
{
    check_model(TINY, 3000);
    check_model(TINY_NFC, 3000);
}

TEST(models_of_all_families_agree_with_the_slow_encoder)
{
    static const char *const families[] = {
        TINY "-gpt2",    TINY "-three",     TINY "-ranks",         SHARED "/llama3",
        SHARED "/qwen3", SHARED "/gpt-oss", SHARED "/deepseek-v3",
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strncmp(families[i], SHARED, sizeof SHARED - 1) != 0 || tkc_is_dir(families[i]))
            check_model(families[i], 1500);
}

/* ---- vocabularies that nobody would train ---- */

enum { WORDS = 300, LONGEST = 40 };

typedef struct words {
    char text[WORDS][LONGEST + 1];
    size_t n;
} words;

/* Which of the words it is, or -1. */
static int find_text(const words *w, const char *text, size_t len)
{
    for (size_t i = 0; i < w->n; i++)
        if (strlen(w->text[i]) == len && memcmp(w->text[i], text, len) == 0)
            return (int)i;
    return -1;
}

static bool has_word(const words *w, const char *text, size_t len)
{
    return find_text(w, text, len) >= 0;
}

static void random_words(words *w, dice *d, const char *letters)
{
    w->n = 0;
    for (const char *c = letters; *c; c++)
        snprintf(w->text[w->n++], sizeof w->text[0], "%c", *c);
    for (int tries = 0; tries < 3000 && w->n < WORDS; tries++) {
        char both[2 * LONGEST + 1];
        int n = snprintf(both, sizeof both, "%s%s", w->text[roll(d, (uint32_t)w->n)], w->text[roll(d, (uint32_t)w->n)]);
        if (n <= LONGEST && !has_word(w, both, (size_t)n))
            memcpy(w->text[w->n++], both, (size_t)n + 1);
    }
}

/* A word as the byte-level alphabet writes it; bytes above ASCII must be above 0xA0. */
static const char *spelled(const char *word)
{
    static char ring[2][2 * LONGEST + 1];
    static size_t turn;
    char *out = ring[turn++ % 2];
    size_t n = 0;
    for (; *word; word++)
        n += tkc_put_char((unsigned char *)out + n, (unsigned char)*word);
    out[n] = '\0';
    return out;
}

static bool whole_words; /* ignore_merges, in the next vocabulary */

/* A tokenizer of these words and the other bytes, with merges of pairs of words. */
static tinkc_tokenizer *odd_tokenizer(const words *w, int (*merges)[2], size_t n_merges)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    size_t id = w->n;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    tkc_buf_cstr(&out,
                 "{\"version\":\"1.0\",\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
                 "\"model\":{\"type\":\"BPE\",",
                 &err);
    tkc_buf_cstr(&out, whole_words ? "\"ignore_merges\":true,\"vocab\":{" : "\"vocab\":{", &err);
    for (size_t i = 0; i < w->n; i++)
        tkc_buf_printf(&out, &err, "%s\"%s\":%zu", i ? "," : "", spelled(w->text[i]), i);
    for (uint32_t c = 0x21; c < 0x144; c++) { /* all characters of the byte alphabet */
        unsigned char text[5] = { 0 };
        char byte = (char)c;
        bool in = (c < 0x7F) || (c >= 0xA1 && c != 0xAD);
        tkc_put_char(text, c);
        if (in && c != '"' && c != '\\' && !(c < 0x100 && has_word(w, &byte, 1)))
            tkc_buf_printf(&out, &err, ",\"%s\":%zu", (char *)text, id++);
    }
    tkc_buf_printf(&out, &err, ",\"\\\"\":%zu,\"\\\\\":%zu},\"merges\":[", id, id + 1);
    for (size_t i = 0; i < n_merges; i++)
        tkc_buf_printf(&out, &err, "%s\"%s %s\"", i ? "," : "", spelled(w->text[merges[i][0]]),
                       spelled(w->text[merges[i][1]]));
    tkc_buf_cstr(&out, "]}}", &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_parse(out.data, out.len, NULL, 0, NULL, &err);
    if (!tok)
        fail_msg("%s", err.message);
    tkc_buf_free(&out);
    return tok;
}

/* Every split of a word into two words is a merge; shuffled, ranks need not follow how words come
 * about. */
static tinkc_tokenizer *all_splits_tokenizer(const words *w, dice *d, bool shuffled)
{
    int(*merges)[2] = malloc(WORDS * LONGEST * sizeof *merges);
    size_t n = 0;
    assert_non_null(merges);
    for (size_t i = 0; i < w->n; i++)
        for (size_t k = 1; k < strlen(w->text[i]); k++) {
            int left = find_text(w, w->text[i], k);
            int right = find_text(w, w->text[i] + k, strlen(w->text[i]) - k);
            if (left >= 0 && right >= 0) {
                merges[n][0] = left;
                merges[n++][1] = right;
            }
        }
    for (size_t i = n; shuffled && i > 1; i--) {
        int swap[2];
        size_t k = roll(d, (uint32_t)i);
        memcpy(swap, merges[k], sizeof swap);
        memcpy(merges[k], merges[i - 1], sizeof swap);
        memcpy(merges[i - 1], swap, sizeof swap);
    }
    tinkc_tokenizer *tok = odd_tokenizer(w, merges, n);
    free(merges);
    return tok;
}

TEST(random_vocabularies_agree_with_the_slow_encoder)
{
    static const char *const letters[] = { "a", "ab", "abc", "abcdef" };
    static words w;
    static unsigned char piece[MOST];
    size_t irregular = 0;
    dice d = { 31337 };
    for (int round = 0; round < 24; round++) {
        const char *alphabet = letters[round % 4];
        random_words(&w, &d, alphabet);
        tinkc_tokenizer *tok = all_splits_tokenizer(&w, &d, round % 3 != 0);
        assert_true(tok->tables.all_bytes);
        irregular += !tok->tables.regular;
        for (int i = 0; i < 150; i++) {
            size_t len = roll(&d, 120) + 1;
            for (size_t k = 0; k < len; k++)
                piece[k] = (unsigned char)alphabet[roll(&d, (uint32_t)strlen(alphabet))];
            check_piece(&tok->tables, piece, len);
        }
        end_vocabulary(tok);
    }
    assert_true(irregular > 3); /* merges out of order did occur */
}

/* Random characters: from leads and following bytes that are few, so that they compete. */
static size_t random_chars(dice *d, const char *leads, uint32_t most, unsigned char *out)
{
    size_t len = 0;
    for (uint32_t left = roll(d, most) + 1; left > 0; left--) {
        unsigned char lead = (unsigned char)leads[roll(d, (uint32_t)strlen(leads))];
        out[len++] = lead;
        for (size_t more = tkc_char_bytes(lead) - 1; more > 0; more--)
            out[len++] = (unsigned char)(0xA1 + roll(d, 2));
    }
    return len;
}

/* Adds the pair of tokens at `at` in a row of n tokens, merges it everywhere, returns the new n. */
static size_t learn_pair(words *w, int (*merges)[2], size_t *n_merges, int *row, size_t n, size_t at)
{
    int left = row[at], right = row[at + 1];
    size_t left_len = strlen(w->text[left]), right_len = strlen(w->text[right]);
    if (w->n == WORDS || left_len + right_len > LONGEST)
        return n;
    memcpy(w->text[w->n], w->text[left], left_len);
    memcpy(w->text[w->n] + left_len, w->text[right], right_len + 1);
    if (has_word(w, w->text[w->n], strlen(w->text[w->n])))
        return n;
    merges[*n_merges][0] = left;
    merges[(*n_merges)++][1] = right;
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        bool both = i + 1 < n && row[i] == left && row[i + 1] == right;
        row[out++] = both ? (int)w->n : row[i];
        i += both;
    }
    w->n++;
    return out;
}

/* Characters in vocabularies learnt from random text by taking random pairs: tokens hold parts of
 * characters, across their borders as well, and whole ones, in orders that make neighbours
 * compete. */
TEST(tokens_across_characters_agree_with_the_slow_encoder)
{
    static const char *const leads[] = { "\xC3", "\xC3\xC4", "a\xC3\xE5", "\xE5", "ab\xE5\xE6" };
    static words w;
    static unsigned char text[MOST];
    static int merges[WORDS][2], row[MOST];
    dice d = { 4711 };
    for (int round = 0; round < 200; round++) {
        const char *alphabet = leads[round % 5];
        size_t n = random_chars(&d, alphabet, 300, text), n_merges = 0;
        w.n = 0;
        for (const char *c = alphabet; *c; c++)
            snprintf(w.text[w.n++], sizeof w.text[0], "%c", *c);
        snprintf(w.text[w.n++], sizeof w.text[0], "\xA1");
        snprintf(w.text[w.n++], sizeof w.text[0], "\xA2");
        for (size_t i = 0; i < n; i++)
            for (row[i] = 0; w.text[row[i]][0] != (char)text[i];)
                row[i]++;
        for (uint32_t left = roll(&d, 120); left > 0 && n > 1; left--)
            n = learn_pair(&w, merges, &n_merges, row, n, roll(&d, (uint32_t)n - 1));
        tinkc_tokenizer *tok = odd_tokenizer(&w, merges, n_merges);
        for (int i = 0; i < 200; i++)
            check_piece(&tok->tables, text, random_chars(&d, alphabet, 14, text));
        end_vocabulary(tok);
    }
}

/* With ignore_merges a token that no merge makes is found for a whole word, and not for a part of a longer one, whichever
 * comes first: what is remembered of one is not taken for the other. */
TEST(a_word_and_the_same_part_of_another_are_remembered_apart)
{
    static const char pair[] = "\xC3\xA1\xC3\xA2", others[] = "\xC3\xA3\xC3\xA3\xC3\xA3\xC3\xA3\xC3\xA3\xC3\xA3";
    for (size_t i = 0; i < 4; i++) { /* short and long; the word first or the part */
        words w = { .n = 4, .text = { "\xC3", "\xA1", "\xA2" } };
        size_t pairs = i < 2 ? 1 : 5;
        for (size_t k = 0; k < pairs; k++)
            strcat(w.text[3], pair);
        whole_words = true;
        tinkc_tokenizer *tok = odd_tokenizer(&w, NULL, 0);
        whole_words = false;
        for (size_t k = 0; k < 4; k++) {
            tinkc_error err = { 0 };
            tinkc_tokens ids = { 0 };
            char text[60];
            bool is_word = (i + k) % 2 == 0;
            (void)snprintf(text, sizeof text, "%s%s", w.text[3], is_word ? "" : others);
            assert_true(tinkc_encode(tok, text, &ids, &err));
            assert_int_equal(ids.len, is_word ? 1 : strlen(text));
            assert_int_equal(ids.data[0], is_word ? 3 : 0);
            tinkc_tokens_free(&ids);
        }
        end_vocabulary(tok);
    }
}

/* Merges may only be found as the vocabulary says: every token comes out of its own text, or is
 * marked as one that does not. */
TEST(every_token_comes_out_of_its_own_text)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    const tkc_tables *t = &tok->tables;
    int32_t ids[256];
    size_t reachable = 0;
    for (uint32_t id = 0; id < t->n; id++) {
        tinkc_bytes text = tkc_token_text(t, id);
        if (!(t->flags[id] & TKC_TOKEN_BYTES))
            continue;
        size_t n = by_definition(t, text.data, text.len, ids);
        assert_int_equal(n == 1 && ids[0] == (int32_t)id, !!(t->flags[id] & TKC_TOKEN_REACHABLE));
        reachable += n == 1;
    }
    assert_true(reachable > 400);
    end_vocabulary(tok);
}

/* Text through the caches and cuts of the encoder is what the definition gives piece by piece. */
TEST(encoder_against_definition)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY_NFC);
    static unsigned char text[MOST];
    static int32_t want[MOST];
    dice d = { 5 };
    for (int i = 0; i < 3000; i++) {
        size_t len = random_text(&d, text, 60), n = 0;
        if (tkc_utf8_sound(text, len, &(bool){ false }) != len)
            fail();
        bool may_change;
        tkc_utf8_sound(text, len, &may_change);
        if (may_change || memchr(text, '<', len))
            continue;
        for (const unsigned char *p = text, *q; p < text + len; p = q) {
            q = tkc_scanners[tok->pretok.fast](p, text + len);
            n += by_definition(&tok->tables, p, (size_t)(q - p), want + n);
        }
        tinkc_tokens got = encode_all(tok, text, len);
        assert_same_ids(&got, want, n);
        tinkc_tokens_free(&got);
    }
    end_vocabulary(tok);
}

/* Twenty megabytes that are a single word, in time that a square would never do. */
TEST(a_long_word_takes_linear_time)
{
    enum { LEN = 20000000 };
    static const char *const units[] = { "a", "ab", " ", "\xE5\x90\xBE", "\xC3\xA9" };
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    char *text = malloc(LEN);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), len = LEN / unit * unit;
        for (size_t i = 0; i < len; i++)
            text[i] = units[u][i % unit];
        tinkc_error err = { 0 };
        tinkc_text back = { 0 };
        tinkc_tokens ids = encode_all(tok, text, len);
        tinkc_decode(tok, ids.data, ids.len, &back, &err);
        assert_int_equal(back.len, len);
        assert_memory_equal(back.data, text, len);
        tinkc_tokens_free(&ids);
        tinkc_text_free(&back);
    }
    free(text);
    end_vocabulary(tok);
}

/* The heap counts places in 31 bits: what is longer is refused before it is looked at. */
TEST(a_word_of_more_than_31_bits_is_refused)
{
    tinkc_tokenizer *tok = open_tokenizer(TINY);
    tkc_bpe_work work = { 0 };
    tinkc_error err = { 0 };
    int32_t out[1];
    assert_int_equal(tkc_bpe_heap(&tok->tables, &work, (const unsigned char *)"a", (size_t)INT32_MAX + 1, out, &err),
                     TKC_BPE_FAILED);
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_tokenizer_free(tok);
}
