/* pretok_scan.c - the scanners as functions, their patterns, and DeepSeek's chain. Pure functions. */
#include "bpe/pretok_scan.h"

typedef const unsigned char uchar;

static uchar *scan_cl100k(uchar *p, uchar *end)
{
    return tkc_scan_cl100k(p, end, TKC_F_DIGITS3);
}

static uchar *scan_qwen2(uchar *p, uchar *end)
{
    return tkc_scan_cl100k(p, end, 0);
}

static uchar *scan_qwen35(uchar *p, uchar *end)
{
    return tkc_scan_cl100k(p, end, TKC_F_MARKS);
}

static uchar *scan_gpt2(uchar *p, uchar *end)
{
    return tkc_scan_gpt2(p, end);
}

static uchar *scan_o200k(uchar *p, uchar *end)
{
    return tkc_scan_o200k(p, end, TKC_F_DIGITS3 | TKC_F_SUFFIX | TKC_F_SLASH);
}

static uchar *scan_tekken(uchar *p, uchar *end)
{
    return tkc_scan_o200k(p, end, TKC_F_SLASH);
}

static uchar *scan_kimi(uchar *p, uchar *end)
{
    return tkc_scan_o200k(p, end, TKC_F_DIGITS3 | TKC_F_SUFFIX | TKC_F_HAN);
}

static uchar *scan_number(uchar *p, uchar *end)
{
    uchar *q = tkc_scan_numbers(p, end, 1);
    return q > p ? q : tkc_run_without(p, end, TKC_NUMBER);
}

static uchar *scan_numbers3(uchar *p, uchar *end)
{
    uchar *q = tkc_scan_numbers(p, end, 3);
    return q > p ? q : tkc_run_without(p, end, TKC_NUMBER);
}

/* ---- DeepSeek ----
 *
 * Three patterns in sequence, each applied separately to the pieces of the one before: numbers in
 * threes; runs of Chinese characters and kana; words. A run in the third pattern therefore ends at
 * a number, and where Chinese begins or ends, as if the text ended there. */

static bool is_cjk(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

static uchar *scan_cjk(uchar *p, uchar *end)
{
    uchar *q = p;
    bool first = is_cjk(tkc_next_char(&q));
    for (uchar *next = q; q < end && is_cjk(tkc_next_char(&next)) == first; q = next)
        ;
    return q;
}

/* What the third pattern sees at a position: its class, or IS_END. */
enum { IS_END = 0x100 };
typedef struct view {
    uchar *end;
    bool whole; /* the pattern alone, without the two before it */
    bool cjk;   /* of the current segment */
} view;

static inline unsigned see(const view *v, uchar *p, uchar **next)
{
    *next = p;
    if (p >= v->end)
        return IS_END;
    uint32_t c = tkc_next_char(next);
    unsigned class = tkc_class_of(c);
    if (!v->whole && (class & TKC_NUMBER || is_cjk(c) != v->cjk))
        return IS_END;
    return class;
}

static inline uchar *see_run(const view *v, uchar *p, unsigned bits)
{
    uchar *next;
    for (unsigned class; (class = see(v, p, &next)) != IS_END && class & bits;)
        p = next;
    return p;
}

static bool ascii_letter(unsigned char c)
{
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

static uchar *deepseek_space(const view *v, uchar *p)
{
    uchar *q = p, *last = p, *newline = NULL, *next;
    unsigned class;
    while ((class = see(v, q, &next)) != IS_END && class & TKC_SPACE) {
        if (tkc_is_newline(*q))
            newline = next;
        last = q;
        q = next;
    }
    if (newline)
        return newline;
    return class != IS_END && last > p ? last : q;
}

/* [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+, and text that matches none of them, up to the next match. */
static uchar *deepseek_word(const view *v, uchar *p)
{
    uchar *next, *behind;
    unsigned class = see(v, p, &next);
    if (class & TKC_PUNCT && *p < 0x80 && next < v->end && ascii_letter(*next)) {
        while (next < v->end && ascii_letter(*next))
            next++;
        return next;
    }
    if (class & (TKC_LETTER | TKC_MARK))
        return see_run(v, next, TKC_LETTER | TKC_MARK);
    unsigned after = see(v, next, &behind);
    if (!(class & TKC_PUNCT) && !tkc_is_newline(*p) && after != IS_END &&
        after & (TKC_LETTER | TKC_MARK))
        return see_run(v, behind, TKC_LETTER | TKC_MARK);
    uchar *start = *p == ' ' ? next : p;
    uchar *stop = see_run(v, start, TKC_PUNCT);
    if (stop > start) {
        while (stop < v->end && !v->cjk && tkc_is_newline(*stop))
            stop++;
        return stop;
    }
    if (class & TKC_SPACE)
        return deepseek_space(v, p);
    for (p = next; (class = see(v, p, &next)) != IS_END; p = next) {
        after = see(v, next, &behind);
        if (class & (TKC_LETTER | TKC_MARK | TKC_PUNCT | TKC_SPACE) ||
            (after != IS_END && after & (TKC_LETTER | TKC_MARK)))
            break;
    }
    return p;
}

static uchar *scan_deepseek(uchar *p, uchar *end)
{
    uchar *q = p;
    uint32_t c = tkc_next_char(&q);
    if (tkc_class_of(c) & TKC_NUMBER)
        return tkc_scan_numbers(q, end, 2);
    view v = { end, false, is_cjk(c) };
    return deepseek_word(&v, p);
}

static uchar *scan_deepseek_word(uchar *p, uchar *end)
{
    view v = { end, true, false };
    return deepseek_word(&v, p);
}

static uchar *scan_space(uchar *p, uchar *end)
{
    uchar *next = memchr(p + 1, ' ', (size_t)(end - p - 1));
    return next ? next : end;
}

static uchar *scan_spaces(uchar *p, uchar *end)
{
    while (p + 1 < end && *p == ' ')
        p++;
    return scan_space(p, end);
}

tkc_scan_fn *const tkc_scanners[TKC_SCANS] = {
    [TKC_SCAN_GPT2] = scan_gpt2,     [TKC_SCAN_CL100K] = scan_cl100k,
    [TKC_SCAN_QWEN2] = scan_qwen2,   [TKC_SCAN_QWEN35] = scan_qwen35,
    [TKC_SCAN_O200K] = scan_o200k,   [TKC_SCAN_TEKKEN] = scan_tekken,
    [TKC_SCAN_KIMI] = scan_kimi,     [TKC_SCAN_DEEPSEEK] = scan_deepseek,
    [TKC_SCAN_NUMBER] = scan_number, [TKC_SCAN_NUMBERS3] = scan_numbers3,
    [TKC_SCAN_CJK] = scan_cjk,       [TKC_SCAN_DEEPSEEK_WORD] = scan_deepseek_word,
    [TKC_SCAN_SPACE] = scan_space,   [TKC_SCAN_SPACES] = scan_spaces,
};

/* ---- patterns ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL         "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPERS       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERS       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PREFIX       "[^\\r\\n\\p{L}\\p{N}]?"

static const char *const patterns[TKC_SCANS] = {
    [TKC_SCAN_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                      "\\s+(?!\\S)|\\s+",
    [TKC_SCAN_CL100K] =
        CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
    [TKC_SCAN_QWEN2] = CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
    [TKC_SCAN_QWEN35] =
        CONTRACTIONS "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL,
    [TKC_SCAN_O200K] =
        PREFIX UPPERS "*" LOWERS "+" CONTRACTIONS "?|" PREFIX UPPERS "+" LOWERS "*" CONTRACTIONS
                      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
    [TKC_SCAN_TEKKEN] = PREFIX UPPERS "*" LOWERS "+|" PREFIX UPPERS "+" LOWERS
                                      "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
    [TKC_SCAN_NUMBER] = "\\p{N}",
    [TKC_SCAN_NUMBERS3] = "\\p{N}{1,3}",
    [TKC_SCAN_CJK] =
        "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    [TKC_SCAN_DEEPSEEK_WORD] =
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
        "\\s+(?!\\S)|\\s+",
};

int tkc_scanner_of_pattern(const char *pattern, size_t len)
{
    for (int i = 1; i < TKC_SCANS; i++)
        if (patterns[i] && strlen(patterns[i]) == len && memcmp(patterns[i], pattern, len) == 0)
            return i;
    return TKC_SCAN_NONE;
}

const char *tkc_pattern_of_scanner(int scanner)
{
    return scanner > 0 && scanner < TKC_SCANS ? patterns[scanner] : NULL;
}
