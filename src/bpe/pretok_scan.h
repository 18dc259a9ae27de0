/* pretok_scan.h - the pre-tokenisation patterns of the model families, written out by hand.
 *
 * Each family's pattern is a list of alternatives, tried in order where the previous piece ended;
 * the functions below implement them by hand. All patterns cover the whole text. A scanner takes
 * well-formed UTF-8 and reads nothing outside [p, end).
 *
 * Families differ by a few flags only, so the body is written once and the compiler makes a copy
 * for each set of flags.
 */
#ifndef TKC_TOKENIZER_PRETOK_SCAN_H
#define TKC_TOKENIZER_PRETOK_SCAN_H

#include "unicode/unicode.h"

enum {
    TKC_SCAN_NONE = 0, /* a pattern for the regex engine */
    TKC_SCAN_GPT2,
    TKC_SCAN_CL100K,        /* Llama 3 */
    TKC_SCAN_QWEN2,         /* as cl100k, digits one by one */
    TKC_SCAN_QWEN35,        /* as qwen2, marks join letters */
    TKC_SCAN_O200K,         /* gpt-oss */
    TKC_SCAN_TEKKEN,        /* as o200k, no contractions, digits one by one: Nemotron 3 */
    TKC_SCAN_KIMI,          /* as o200k, runs of Han separate, no slash at the end of punctuation */
    TKC_SCAN_DEEPSEEK,      /* the whole chain of three patterns */
    TKC_SCAN_NUMBER,        /* \p{N} */
    TKC_SCAN_NUMBERS3,      /* \p{N}{1,3} */
    TKC_SCAN_CJK,           /* DeepSeek's second pattern: runs of Chinese characters and kana */
    TKC_SCAN_DEEPSEEK_WORD, /* DeepSeek's third pattern */
    TKC_SCAN_SPACE,         /* a piece begins at each space */
    TKC_SCAN_SPACES,        /* a piece begins at each run of spaces */
    TKC_SCANS
};

/* Where the piece that begins at p ends; p < end. */
typedef const unsigned char *tkc_scan_fn(const unsigned char *p, const unsigned char *end);
extern tkc_scan_fn *const tkc_scanners[TKC_SCANS];

/* The scanner for the text of a pattern, or TKC_SCAN_NONE. */
int tkc_scanner_of_pattern(const char *pattern, size_t len);
/* The text of a scanner's pattern, for tests against the regex engine; NULL if it has none of its
 * own. */
const char *tkc_pattern_of_scanner(int scanner);

/* ---- flags ---- */

enum {
    TKC_F_MARKS = 1,   /* marks join letters */
    TKC_F_DIGITS3 = 2, /* numbers in threes, else one by one */
    TKC_F_SUFFIX = 4,  /* contractions end a word, as in o200k */
    TKC_F_SLASH = 8,   /* a slash may end punctuation */
    TKC_F_HAN = 16     /* runs of Han are separate */
};

#define TKC_INLINE static inline __attribute__((always_inline))

TKC_INLINE uint8_t tkc_class_at(const unsigned char *p, const unsigned char **next)
{
    if (*p < 0x80) {
        *next = p + 1;
        return tkc_class_blocks[0][*p];
    }
    const unsigned char *q = p;
    uint8_t class = tkc_class_of(tkc_next_char(&q));
    *next = q;
    return class;
}

/* The end of the run of characters that have one of the bits. */
TKC_INLINE const unsigned char *tkc_run_of(const unsigned char *p, const unsigned char *end,
                                           uint8_t bits)
{
    const unsigned char *next;
    while (p < end && tkc_class_at(p, &next) & bits)
        p = next;
    return p;
}

TKC_INLINE const unsigned char *tkc_run_without(const unsigned char *p, const unsigned char *end,
                                                uint8_t bits)
{
    const unsigned char *next;
    while (p < end && !(tkc_class_at(p, &next) & bits))
        p = next;
    return p;
}

TKC_INLINE bool tkc_is_newline(unsigned char c)
{
    return c == '\n' || c == '\r';
}

/* Length of 's 't 'm 'd 're 've 'll at p, in any case; 0 if there is none. U+017F folds to s. */
static inline size_t tkc_contraction(const unsigned char *p, const unsigned char *end)
{
    if (end - p < 2 || *p != '\'')
        return 0;
    unsigned char a = p[1] | 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (end - p < 3)
        return 0;
    unsigned char b = p[2] | 0x20;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return p[1] == 0xC5 && p[2] == 0xBF ? 3 : 0;
}

/* Up to `most` numbers; p points to the first. */
TKC_INLINE const unsigned char *tkc_scan_numbers(const unsigned char *p, const unsigned char *end,
                                                 int most)
{
    const unsigned char *next;
    for (; most > 0 && p < end && tkc_class_at(p, &next) & TKC_NUMBER; most--)
        p = next;
    return p;
}

/* A run of white space: up to and including its last newline if it has one; else without its last
 * character if text follows, because that may begin the next piece; else all of it. */
static inline const unsigned char *tkc_scan_space(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *q = p, *last = p, *newline = NULL, *next;
    while (q < end && tkc_class_at(q, &next) & TKC_SPACE) {
        if (tkc_is_newline(*q))
            newline = next;
        last = q;
        q = next;
    }
    if (newline)
        return newline;
    return q < end && last > p ? last : q;
}

/* cl100k and similar patterns:
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
TKC_INLINE const unsigned char *tkc_scan_cl100k(const unsigned char *p, const unsigned char *end,
                                                int flags)
{
    const uint8_t letters = flags & TKC_F_MARKS ? TKC_LETTER | TKC_MARK : TKC_LETTER;
    const unsigned char *next, *behind;
    size_t n = *p == '\'' ? tkc_contraction(p, end) : 0;
    if (n)
        return p + n;
    uint8_t class = tkc_class_at(p, &next);
    if (class & letters)
        return tkc_run_of(next, end, letters);
    if (class & TKC_NUMBER)
        return flags & TKC_F_DIGITS3 ? tkc_scan_numbers(next, end, 2) : next;
    if (!tkc_is_newline(*p) && next < end && tkc_class_at(next, &behind) & letters)
        return tkc_run_of(behind, end, letters);
    const unsigned char *start = *p == ' ' ? next : p;
    const uint8_t others = TKC_SPACE | TKC_NUMBER | letters;
    const unsigned char *stop = tkc_run_without(start, end, others);
    if (stop > start) {
        while (stop < end && tkc_is_newline(*stop))
            stop++;
        return stop;
    }
    return tkc_scan_space(p, end);
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static inline const unsigned char *tkc_scan_gpt2(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *next;
    if (*p == '\'') {
        size_t n = tkc_contraction(p, end);
        bool lower = n > 0 && p[1] >= 'a' && p[1] <= 'z' && (n < 3 || (p[2] >= 'a' && p[2] <= 'z'));
        if (lower)
            return p + n;
    }
    const unsigned char *start = *p == ' ' && p + 1 < end ? p + 1 : p;
    uint8_t class = tkc_class_at(start, &next);
    if (class & TKC_LETTER)
        return tkc_run_of(next, end, TKC_LETTER);
    if (class & TKC_NUMBER)
        return tkc_run_of(next, end, TKC_NUMBER);
    if (!(class & TKC_SPACE))
        return tkc_run_without(next, end, TKC_LETTER | TKC_NUMBER | TKC_SPACE);
    const unsigned char *q = p, *last = p;
    while (q < end && tkc_class_at(q, &next) & TKC_SPACE) {
        last = q;
        q = next;
    }
    return q < end && last > p ? last : q;
}

TKC_INLINE bool tkc_in_upper(uint8_t class, int flags)
{
    return class & (TKC_UPPER | TKC_OTHER_LETTER | TKC_MARK) &&
           !(flags & TKC_F_HAN && class & TKC_HAN);
}

TKC_INLINE bool tkc_in_lower(uint8_t class, int flags)
{
    return class & (TKC_LOWER | TKC_OTHER_LETTER | TKC_MARK) &&
           !(flags & TKC_F_HAN && class & TKC_HAN);
}

/* Uppers* lowers+ from s, where some characters are in both classes; NULL if there is none.
 * *uppers is where the leading run of uppers ends, for the second alternative. */
TKC_INLINE const unsigned char *tkc_cased_word(const unsigned char *s, const unsigned char *end,
                                               int flags, const unsigned char **uppers)
{
    const unsigned char *q = s, *next, *both = NULL;
    uint8_t class;
    while (q < end && tkc_in_upper(class = tkc_class_at(q, &next), flags)) {
        if (!(class & TKC_UPPER))
            both = next; /* this character could also be the last lower */
        q = next;
    }
    *uppers = q;
    const unsigned char *lower = q;
    while (lower < end && tkc_in_lower(tkc_class_at(lower, &next), flags))
        lower = next;
    return lower > q ? lower : both;
}

/* The two word alternatives of o200k; NULL if neither matches at p. */
TKC_INLINE const unsigned char *tkc_o200k_word(const unsigned char *p, const unsigned char *end,
                                               int flags)
{
    const unsigned char *next, *uppers_behind = NULL, *uppers, *found;
    uint8_t class = tkc_class_at(p, &next);
    bool prefix = !(class & (TKC_LETTER | TKC_NUMBER)) && !tkc_is_newline(*p);
    if (prefix && next < end) {
        found = tkc_cased_word(next, end, flags, &uppers_behind);
        if (found)
            return found;
    }
    found = tkc_cased_word(p, end, flags, &uppers);
    if (found)
        return found;
    if (uppers_behind && uppers_behind > next)
        return uppers_behind;
    return uppers > p ? uppers : NULL;
}

/* [^\r\n\p{L}\p{N}]?U*L+(?i:'s|...)?|[^\r\n\p{L}\p{N}]?U+L*(?i:'s|...)?|\p{N}{1,3}|
 *  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
TKC_INLINE const unsigned char *tkc_scan_o200k(const unsigned char *p, const unsigned char *end,
                                               int flags)
{
    const unsigned char *next;
    uint8_t class = tkc_class_at(p, &next);
    if (flags & TKC_F_HAN && class & TKC_HAN)
        return tkc_run_of(next, end, TKC_HAN);
    const unsigned char *word = tkc_o200k_word(p, end, flags);
    if (word) {
        if (flags & TKC_F_SUFFIX && word < end && *word == '\'')
            word += tkc_contraction(word, end);
        return word;
    }
    if (class & TKC_NUMBER)
        return flags & TKC_F_DIGITS3 ? tkc_scan_numbers(next, end, 2) : next;
    const unsigned char *start = *p == ' ' ? next : p;
    const unsigned char *stop = tkc_run_without(start, end, TKC_SPACE | TKC_NUMBER | TKC_LETTER);
    if (stop > start) {
        while (stop < end && (tkc_is_newline(*stop) || (flags & TKC_F_SLASH && *stop == '/')))
            stop++;
        return stop;
    }
    return tkc_scan_space(p, end);
}

#endif
