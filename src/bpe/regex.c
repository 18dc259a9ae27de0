/* regex.c - a wrapper around PCRE2. The only file that uses it.
 *
 * May touch: PCRE2. Must not: treat a limit that was hit as "no match".
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "bpe/regex.h"

#include <assert.h>
#include <pcre2.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "unicode/unicode.h"

struct tkc_regex {
    pcre2_code *code;
    pcre2_match_context *context;
};

/* PCRE2's limit on steps applies to each position where a match may begin. A match of a long piece
 * may take steps for each of its bytes; one call covers only a few positions, so that it ends soon,
 * and the clock is checked between calls. */
enum {
    STEPS_A_MATCH = 1 << 20,
    STEPS_A_BYTE = 16,
    STEPS_A_CALL = 1 << 26,
    JIT_STACK_MAX = 16 << 20
};

/* ---- translation ---- */

typedef struct translation {
    const char *at, *end;
    tkc_buf *out;
    tinkc_error *err;
    size_t atom; /* where the atom that a quantifier would bind to begins in out */
    bool in_class;
} translation;

static bool refuse(translation *t, const char *what)
{
    return tkc_fail(t->err, TINKC_E_TOKENIZER, "regular expression: %s is not supported", what);
}

static bool put(translation *t, const char *text)
{
    return tkc_buf_cstr(t->out, text, t->err);
}

static bool begins(const translation *t, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(t->end - t->at) >= n && memcmp(t->at, text, n) == 0;
}

#define SPACES                                                                                     \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* The properties that are the same in PCRE2 and the reference once the characters added since
 * Unicode 14 are listed. `more`: those characters; NULL = looked up by name (tkc_young_next). */
static const struct property {
    const char *name, *pcre2, *more;
} properties[] = {
    { "L", "L", NULL },
    { "Lu", "Lu", NULL },
    { "Ll", "Ll", NULL },
    { "Lt", "Lt", NULL },
    { "Lm", "Lm", NULL },
    { "Lo", "Lo", NULL },
    { "M", "M", NULL },
    { "N", "N", NULL },
    { "Nd", "Nd", NULL },
    { "Nl", "Nl", NULL },
    { "No", "No", NULL },
    { "P", "P", NULL },
    { "S", "S", NULL },
    { "Han", "sc:Han", NULL },
    { "Letter", "L", NULL },
    { "Mark", "M", NULL },
    { "Number", "N", NULL },
    { "Punctuation", "P", NULL },
    { "Symbol", "S", NULL },
    { "Uppercase_Letter", "Lu", NULL },
    { "Lowercase_Letter", "Ll", NULL },
    { "Me", "Me", "" },
    { "Pc", "Pc", "" },
    { "Pd", "Pd", "\\x{10D6E}" },
    { "Ps", "Ps", "" },
    { "Pe", "Pe", "" },
    { "Pi", "Pi", "" },
    { "Pf", "Pf", "" },
    { "Sc", "Sc", "" },
    { "Sk", "Sk", "" },
    { "Sm", "Sm", "\\x{10D8E}-\\x{10D8F}" },
    { "Z", "Z", "" },
    { "Zs", "Zs", "" },
    { "Zl", "Zl", "" },
    { "Zp", "Zp", "" },
    { "Cc", "Cc", "" },
    { "Cf", "Cf", "\\x{13439}-\\x{1343F}" },
    { "Co", "Co", "" },
    { "ASCII", "ASCII", "" },
    { "Any", "Any", "" },
    { "Space", "Space", "" },
    { "White_Space", "White_Space", "" },
    { "Upper", "Uppercase", "\\x{1C89}\\x{A7CB}-\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}" },
    { "Lower", "Lowercase",
      "\\x{10FC}\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{A7F2}-\\x{A7F4}\\x{AB69}\\x{10D70}-\\x{10D85}"
      "\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}" },
    { "Alpha", "Alphabetic",
      "\\x{363}-\\x{36F}\\x{897}\\x{C04}\\x{CF3}\\x{F82}-\\x{F83}\\x{1C89}-\\x{1C8A}\\x{1DD3}-"
      "\\x{1DE6}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}"
      "\\x{10D69}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{10EFC}\\x{11080}-\\x{11081}"
      "\\x{1123F}-\\x{11241}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}"
      "\\x{113B7}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113CD}"
      "\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F00}-\\x{11F10}\\x{11F12}-\\x{11F3A}"
      "\\x{11F3E}-\\x{11F40}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-"
      "\\x{1612E}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"
      "\\x{1E030}-\\x{1E06D}\\x{1E08F}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}"
      "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}" },
    /* Scripts: without "sc:" PCRE2 reads their names as script extensions. */
    { "Latin", "sc:Latin", "\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{1DF25}-\\x{1DF2A}" },
    { "Greek", "sc:Greek", "" },
    { "Cyrillic", "sc:Cyrillic", "\\x{1C89}-\\x{1C8A}\\x{1E030}-\\x{1E06D}\\x{1E08F}" },
    { "Arabic", "sc:Arabic", "\\x{897}\\x{10EC2}-\\x{10EC4}\\x{10EFC}-\\x{10EFF}" },
    { "Hebrew", "sc:Hebrew", "" },
    { "Hiragana", "sc:Hiragana", "\\x{1B132}" },
    { "Katakana", "sc:Katakana", "\\x{1B155}" },
    { "Hangul", "sc:Hangul", "" },
    { "Bopomofo", "sc:Bopomofo", "" },
    { "Thai", "sc:Thai", "" },
    { "Lao", "sc:Lao", "\\x{ECE}" },
    { "Khmer", "sc:Khmer", "" },
    { "Myanmar", "sc:Myanmar", "\\x{116D0}-\\x{116E3}" },
    { "Tibetan", "sc:Tibetan", "" },
    { "Mongolian", "sc:Mongolian", "" },
    { "Devanagari", "sc:Devanagari", "\\x{11B00}-\\x{11B09}" },
    { "Bengali", "sc:Bengali", "" },
    { "Gurmukhi", "sc:Gurmukhi", "" },
    { "Gujarati", "sc:Gujarati", "" },
    { "Oriya", "sc:Oriya", "" },
    { "Tamil", "sc:Tamil", "" },
    { "Telugu", "sc:Telugu", "" },
    { "Kannada", "sc:Kannada", "\\x{CF3}" },
    { "Malayalam", "sc:Malayalam", "" },
    { "Sinhala", "sc:Sinhala", "" },
    { "Georgian", "sc:Georgian", "" },
    { "Armenian", "sc:Armenian", "" },
    { "Ethiopic", "sc:Ethiopic", "" },
};

static const struct property *find_property(tinkc_str name)
{
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (tkc_str_is(name, properties[i].name))
            return &properties[i];
    return NULL;
}

/* The members of a property, for inside a class. */
static bool put_property(translation *t, const char *name)
{
    const struct property *p = find_property(tkc_str(name));
    assert(p);
    bool ok = tkc_buf_printf(t->out, t->err, "\\p{%s}%s", p->pcre2, p->more ? p->more : "");
    const char *young = tkc_str_is(tkc_str(p->pcre2), "sc:Han") ? "Han" : p->pcre2;
    for (const tkc_young_range *r = NULL; ok && !p->more && (r = tkc_young_next(r, young));)
        ok = tkc_buf_printf(t->out, t->err, "\\x{%X}-\\x{%X}", r->from, r->to);
    return ok;
}

/* \w inside a class; outside a class it also contains the numbers of Latin-1. */
static bool put_word(translation *t)
{
    static const char *const parts[] = { "L", "M", "Nd", "Nl", "Pc" };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof parts / sizeof *parts; i++)
        ok = put_property(t, parts[i]);
    if (ok && !t->in_class)
        ok = put(t, "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}");
    return ok && put(t, "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"
                        "\\x{1F170}-\\x{1F189}");
}

/* \b and \B, for \w as defined here: PCRE2's own does not treat marks as parts of words. */
static bool put_boundary(translation *t, bool negated)
{
    static const char *const parts[] = { "(?<=[", "])(?", "[", "])|(?<![", "])(?", "[", "]))" };
    bool ok = put(t, "(?:");
    for (size_t i = 0; ok && i < sizeof parts / sizeof *parts; i++) {
        ok = put(t, parts[i]);
        if (ok && (i == 1 || i == 4)) /* the lookahead: no word after a word, a word after none */
            ok = put(t, (i == 1) != negated ? "!" : "=");
        if (ok && (i == 0 || i == 2 || i == 3 || i == 5))
            ok = put_word(t);
    }
    return ok;
}

static bool put_hex(translation *t)
{
    return put(t, "0-9a-fA-F");
}

static bool put_space(translation *t)
{
    return put(t, SPACES);
}

static bool put_digit(translation *t)
{
    return put_property(t, "Nd");
}

/* A set of characters, as part of a class or as its own class. */
static bool put_set(translation *t, const char *from, bool (*members)(translation *), bool negated)
{
    t->at += strlen(from);
    if (t->in_class)
        return negated ? refuse(t, from) : members(t);
    return put(t, negated ? "[^" : "[") && members(t) && put(t, "]");
}

/* \p{X}, \P{X} and \p{^X}. */
static bool put_property_escape(translation *t)
{
    bool negated = t->at[1] == 'P';
    const char *name = t->at + 3;
    const char *close =
        begins(t, "\\p{") || begins(t, "\\P{") ? memchr(name, '}', (size_t)(t->end - name)) : NULL;
    if (!close)
        return refuse(t, "\\p without a name in braces");
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    size_t len = (size_t)(close - name);
    const struct property *p = find_property(tkc_strn(name, len));
    if (!p)
        return tkc_fail(t->err, TINKC_E_TOKENIZER,
                        "regular expression: property %.*s is not supported",
                        (int)(len < 60 ? len : 60), name);
    if (negated && t->in_class)
        return refuse(t, "\\P in a class");
    t->at = close + 1;
    if (t->in_class)
        return put_property(t, p->name);
    return put(t, negated ? "[^" : "[") && put_property(t, p->name) && put(t, "]");
}

/* An escape; *at points to the backslash. */
static bool put_escape(translation *t)
{
    if (t->end - t->at < 2)
        return refuse(t, "a backslash at the end");
    char c = t->at[1];
    static const struct {
        const char *from;
        bool (*members)(translation *);
        bool negated;
    } table[] = {
        { "\\h", put_hex, false },   { "\\H", put_hex, true },   { "\\s", put_space, false },
        { "\\w", put_word, false },  { "\\W", put_word, true },  { "\\p{Word}", put_word, false },
        { "\\d", put_digit, false }, { "\\D", put_digit, true },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (begins(t, table[i].from))
            return put_set(t, table[i].from, table[i].members, table[i].negated);
    if (c == 'S') {
        t->at += 2;
        return put(t, t->in_class ? "\\S\\x{180E}" : "[^" SPACES "]");
    }
    if (c == 'p' || c == 'P')
        return put_property_escape(t);
    if ((c == 'b' || c == 'B') && !t->in_class) {
        t->at += 2;
        return put_boundary(t, c == 'B');
    }
    if (c == 'u') {
        if (t->end - t->at < 6)
            return refuse(t, "a short \\u");
        bool ok = tkc_buf_printf(t->out, t->err, "\\x{%.4s}", t->at + 2);
        t->at += 6;
        return ok;
    }
    if (c == 'v') { /* a class in PCRE2 */
        t->at += 2;
        return put(t, "\\x0B");
    }
    /* Other letters have a different meaning in PCRE2 than in the reference; one of them splits
     * characters. */
    if (((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !strchr("tnrfaebBAzZxc", c))
        return refuse(t, (char[]){ '\\', c, '\0' });
    /* Copy a code point in braces as a whole. */
    const char *brace = t->end - t->at > 2 && t->at[2] == '{' && c == 'x'
                            ? memchr(t->at, '}', (size_t)(t->end - t->at))
                            : NULL;
    size_t n = brace ? (size_t)(brace - t->at) + 1 : 2;
    bool ok = tkc_buf_add(t->out, t->at, n, t->err);
    t->at += n;
    return ok;
}

/* A class; *at points to its bracket. Nested classes and intersections are rejected, except the one
 * form that models use: [A&&[^B]]. */
static bool put_class(translation *t)
{
    size_t start = t->out->len;
    t->in_class = true;
    if (!put(t, "["))
        return false;
    t->at++;
    if (t->at < t->end && *t->at == '^') {
        t->at++;
        if (!put(t, "^"))
            return false;
    }
    bool first = true;
    while (t->at < t->end && (*t->at != ']' || first)) {
        first = false;
        if (begins(t, "[:") || (*t->at == '[' && !begins(t, "[:")))
            return refuse(t, begins(t, "[:") ? "a POSIX class" : "a class inside a class");
        if (begins(t, "&&[^")) {
            const char *inner = t->at + 4, *close = inner;
            while (close < t->end && *close != ']')
                close += *close == '\\' ? 2 : 1;
            if (t->end - close < 2 || close[1] != ']' || t->out->data[start + 1] == '^')
                return refuse(t, "this intersection of classes");
            tkc_buf body;
            tkc_buf_init(&body, NULL, TKC_BUF_NO_MAX);
            translation sub = { inner, close, &body, t->err, 0, true };
            bool ok = true;
            while (ok && sub.at < sub.end)
                ok = *sub.at == '\\' ? put_escape(&sub) : tkc_buf_char(&body, *sub.at++, t->err);
            tkc_buf whole;
            tkc_buf_init(&whole, NULL, TKC_BUF_NO_MAX);
            ok = ok && tkc_buf_printf(&whole, t->err, "(?:(?![%.*s])%.*s])", (int)body.len,
                                      body.data ? body.data : "", (int)(t->out->len - start),
                                      t->out->data + start);
            t->out->len = start;
            ok = ok && tkc_buf_str(t->out, tkc_buf_view(&whole), t->err);
            tkc_buf_free(&whole);
            tkc_buf_free(&body);
            t->at = close + 2;
            t->in_class = false;
            return ok;
        }
        if (begins(t, "&&"))
            return refuse(t, "this intersection of classes");
        if (*t->at == '\\' ? !put_escape(t) : !tkc_buf_char(t->out, *t->at++, t->err))
            return false;
    }
    if (t->at == t->end)
        return refuse(t, "a class without end");
    t->at++;
    t->in_class = false;
    return put(t, "]");
}

/* {n,m} at *at: its length, 0 if it is not an interval. */
static size_t interval_length(const translation *t)
{
    const char *p = t->at + 1;
    size_t digits = 0;
    for (; p < t->end && ((*p >= '0' && *p <= '9') || *p == ','); p++)
        digits += *p != ',';
    return p < t->end && *p == '}' && digits ? (size_t)(p - t->at) + 1 : 0;
}

/* An interval. A plus after it is another repetition (possessive in PCRE2), so the atom with its
 * interval is wrapped in a group. */
static bool put_interval(translation *t, size_t n)
{
    bool ok = true;
    if (t->at[1] == ',') /* {,m} means {0,m} */
        ok = tkc_buf_printf(t->out, t->err, "{0%.*s", (int)n - 1, t->at + 1);
    else
        ok = tkc_buf_add(t->out, t->at, n, t->err);
    t->at += n;
    while (ok && t->at < t->end && *t->at == '+') {
        char *room = tkc_buf_room(t->out, 3, t->err);
        if (!room)
            return false;
        memmove(t->out->data + t->atom + 3, t->out->data + t->atom, t->out->len - t->atom);
        memcpy(t->out->data + t->atom, "(?:", 3);
        t->out->len += 3;
        ok = put(t, ")+");
        t->at++;
    }
    return ok;
}

/* After "(?": true if it means the same in PCRE2 and the reference. */
static bool is_known_group(const translation *t)
{
    const char *p = t->at + 2;
    if (p < t->end && strchr(":=!>", *p))
        return *p != '\0';
    if (t->end - p >= 2 && *p == '<')
        return p[1] == '=' || p[1] == '!' || p[1] == '_' ||
               ((p[1] | 0x20) >= 'a' && (p[1] | 0x20) <= 'z');
    while (p < t->end && (*p == 'i' || *p == 'x' || *p == '-'))
        p++;
    return p < t->end && p > t->at + 2 && (*p == ':' || *p == ')');
}

static bool put_next(translation *t, size_t *group_starts, size_t *depth)
{
    size_t n;
    switch (*t->at) {
    case '\\':
        t->atom = t->out->len;
        return put_escape(t);
    case '[':
        t->atom = t->out->len;
        return put_class(t);
    case '^':
    case '$':
        t->atom = t->out->len;
        return put(t, *t->at++ == '^' ? "(?m:^)" : "(?m:$)");
    case '(':
        if (begins(t, "(*") || (begins(t, "(?") && !is_known_group(t)))
            return refuse(t, begins(t, "(*") ? "a verb" : "this kind of group");
        if (*depth == 64)
            return refuse(t, "such deep nesting");
        group_starts[(*depth)++] = t->out->len;
        t->at++;
        return put(t, "(");
    case ')':
        if (*depth == 0)
            return refuse(t, "a parenthesis that closes nothing");
        t->atom = group_starts[--*depth];
        t->at++;
        return put(t, ")");
    case '{':
        n = interval_length(t);
        if (n)
            return put_interval(t, n);
        break;
    case '*':
    case '+':
    case '?':
    case '|':
        return tkc_buf_char(t->out, *t->at++, t->err);
    default:
        break;
    }
    t->atom = t->out->len;
    do /* a character of several bytes is one atom */
        if (!tkc_buf_char(t->out, *t->at++, t->err))
            return false;
    while (t->at < t->end && ((unsigned char)*t->at & 0xC0) == 0x80);
    return true;
}

bool tkc_regex_translate(tinkc_str pattern, tkc_buf *out, tinkc_error *err)
{
    translation t = { pattern.data, pattern.data + pattern.len, out, err, 0, false };
    size_t group_starts[64], depth = 0;
    while (t.at < t.end)
        if (!put_next(&t, group_starts, &depth))
            return false;
    return true;
}

/* ---- matching ---- */

static pcre2_code *compile(tinkc_str pattern, uint32_t options, tinkc_error *err)
{
    int number;
    PCRE2_SIZE place;
    const char *data = pattern.len ? pattern.data : ""; /* PCRE2 refuses NULL */
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)data, pattern.len, options, &number, &place, NULL);
    if (!code) {
        char text[128] = "";
        pcre2_get_error_message(number, (PCRE2_UCHAR *)text, sizeof text);
        tkc_fail(err, TINKC_E_TOKENIZER, "regular expression: %s at byte %zu", text, (size_t)place);
        return NULL;
    }
    /* Without JIT support the interpreter is used. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}

static pcre2_jit_stack *give_stack(void *unused)
{
    (void)unused;
    return NULL; /* 32 KiB of the machine's own stack */
}

tkc_regex *tkc_regex_new(tinkc_str pattern, bool literal, tinkc_error *err)
{
    tkc_buf text;
    tkc_buf_init(&text, NULL, 1 << 20);
    tkc_regex *r = NULL;
    pcre2_code *code = NULL;
    if (literal)
        code = compile(pattern, PCRE2_UTF | PCRE2_LITERAL | PCRE2_USE_OFFSET_LIMIT, err);
    else if (tkc_regex_translate(pattern, &text, err))
        code =
            compile(tkc_buf_view(&text),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, err);
    tkc_buf_free(&text);
    if (!code)
        return NULL;
    r = tkc_zalloc(NULL, sizeof *r, err);
    pcre2_match_context *context = r ? pcre2_match_context_create(NULL) : NULL;
    if (!context) {
        tkc_fail_memory(err);
        pcre2_code_free(code);
        if (r)
            tkc_release(NULL, r, sizeof *r);
        return NULL;
    }
    pcre2_jit_stack_assign(context, give_stack, NULL);
    r->code = code;
    r->context = context;
    return r;
}

void tkc_regex_free(tkc_regex *r)
{
    if (!r)
        return;
    pcre2_match_context_free(r->context);
    pcre2_code_free(r->code);
    tkc_release(NULL, r, sizeof *r);
}

void tkc_regex_budget_start(tkc_regex_budget *b, size_t len)
{
    b->allowed_ms = 1000 + (int64_t)(len / 100);
    b->deadline_ns = tkc_monotonic_ns() + b->allowed_ms * 1000000;
    b->cpu_end_ns = tkc_thread_cpu_ns() + b->allowed_ms * 1000000;
}

/* One text and the state of a search in it. */
typedef struct search {
    const tkc_regex *r;
    const unsigned char *text;
    size_t len;
    pcre2_match_data *data;
    pcre2_match_context *context; /* the limits of this search */
    const tkc_regex_budget *budget;
    tinkc_error *err;
} search;

static bool in_time(const search *s)
{
    const tkc_regex_budget *b = s->budget;
    if (!b || b->deadline_ns == 0 || tkc_monotonic_ns() <= b->deadline_ns ||
        tkc_thread_cpu_ns() <= b->cpu_end_ns)
        return true;
    return tkc_fail(s->err, TINKC_E_TOKENIZER,
                    "the tokenizer's pattern takes more than %lld ms for this text",
                    (long long)b->allowed_ms);
}

/* Tries again with a large separate stack, for patterns that need it. */
static int match_with_stack(const search *s, size_t from)
{
    pcre2_jit_stack *stack = pcre2_jit_stack_create(1 << 16, JIT_STACK_MAX, NULL);
    int rc = PCRE2_ERROR_NOMEMORY;
    if (stack) {
        pcre2_jit_stack_assign(s->context, NULL, stack);
        rc =
            pcre2_match(s->r->code, s->text, s->len, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
        pcre2_jit_stack_assign(s->context, give_stack, NULL);
        pcre2_jit_stack_free(stack);
    }
    return rc;
}

/* The first match that begins in [from, last]: 1 found, 0 none, -1 failed. */
static int match_within(const search *s, size_t from, size_t last)
{
    pcre2_set_offset_limit(s->context, last);
    int rc =
        pcre2_match(s->r->code, s->text, s->len, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = match_with_stack(s, from);
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH)
        return rc >= 0;
    char reason[128] = "";
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
    tkc_fail(s->err, TINKC_E_TOKENIZER, "the tokenizer's pattern: %s", reason);
    return -1;
}

static size_t next_char(const search *s, size_t at)
{
    for (at++; at < s->len && (s->text[at] & 0xC0) == 0x80;)
        at++;
    return at;
}

/* The first match at or after `from`, empty or not: 1 found, 0 none, -1 failed. */
static int match_from(const search *s, size_t from)
{
    size_t steps = STEPS_A_MATCH;
    if (s->len - from < (UINT32_MAX - steps) / STEPS_A_BYTE)
        steps += (s->len - from) * STEPS_A_BYTE;
    else
        steps = UINT32_MAX;
    size_t places = steps < STEPS_A_CALL ? STEPS_A_CALL / steps : 1;
    pcre2_set_match_limit(s->context, (uint32_t)steps);
    while (from <= s->len) {
        size_t last = s->len - from > places ? from + places : s->len;
        if (!in_time(s))
            return -1;
        int found = match_within(s, from, last);
        if (found || last == s->len)
            return found;
        from = next_char(s, last);
    }
    return 0;
}

int tkc_regex_next(const tkc_regex *r, const unsigned char *text, size_t len, tkc_regex_walk *w,
                   const tkc_regex_budget *budget, tinkc_error *err)
{
    search s = {
        r,      text, len, pcre2_match_data_create(1, NULL), pcre2_match_context_copy(r->context),
        budget, err
    };
    int found = s.data && s.context ? 0 : (tkc_fail_memory(err), -1);
    for (bool again = found == 0; again && w->from <= len;) {
        found = match_from(&s, w->from);
        if (found <= 0)
            break;
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s.data);
        /* As in the reference, an empty match directly after the last one is skipped. */
        again = at[0] == at[1] && w->any && at[1] == w->end;
        if (again) {
            w->from = next_char(&s, w->from);
            found = 0;
        } else {
            *w = (tkc_regex_walk){ at[1], at[0], at[1], true };
        }
    }
    pcre2_match_data_free(s.data);
    if (s.context)
        pcre2_match_context_free(s.context);
    return found;
}
