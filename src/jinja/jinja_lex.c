/* jinja_lex.c - cuts a template into tokens, doing all white space control on the way.
 *
 * The rules are those of an environment with trim_blocks and lstrip_blocks: a newline after a block
 * tag or comment is removed, blanks before one are removed if it is the first thing on its line,
 * "-" removes all white space on its side and "+" disables the rules there. May touch: the arena it
 * was given.
 */
#include "jinja/jinja.h"

#include <string.h>

typedef struct lexer {
    tkc_arena *arena;
    tinkc_error *err;
    tinkc_str s; /* newlines normalised */
    size_t at;
    int32_t line;
    bool line_starting; /* the last consumed text ended a line */
    tkc_jtoken *tokens;
    size_t n, cap;
    char *open; /* open brackets */
    size_t n_open, cap_open;
} lexer;

static bool fail(lexer *lx, const char *what)
{
    return tkc_fail(lx->err, TINKC_E_TEMPLATE, "line %d: %s", lx->line, what);
}

static bool add_token(lexer *lx, int32_t kind, int32_t line, tinkc_str text)
{
    if (lx->n == lx->cap) {
        size_t cap = lx->cap ? lx->cap * 2 : 256;
        tkc_jtoken *grown = tkc_arena_alloc(lx->arena, cap * sizeof *grown, lx->err);
        if (!grown)
            return false;
        if (lx->n)
            memcpy(grown, lx->tokens, lx->n * sizeof *grown);
        lx->tokens = grown;
        lx->cap = cap;
    }
    lx->tokens[lx->n++] = (tkc_jtoken){ kind, line, text };
    return true;
}

/* CRLF and CR become LF, and one newline at the end is dropped. */
static bool normalise(lexer *lx, tinkc_str text)
{
    char *copy = tkc_arena_alloc(lx->arena, text.len + 1, lx->err);
    if (!copy)
        return false;
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c == '\r') {
            if (i + 1 < text.len && text.data[i + 1] == '\n')
                i++;
            c = '\n';
        }
        copy[n++] = c;
    }
    if (n && copy[n - 1] == '\n')
        n--;
    copy[n] = '\0';
    lx->s = (tinkc_str){ copy, n };
    return true;
}

static char peek(const lexer *lx, size_t ahead)
{
    size_t i = lx->at + ahead;
    return i < lx->s.len ? lx->s.data[i] : '\0';
}

/* Moves to `to`, counting lines. */
static void advance(lexer *lx, size_t to)
{
    for (size_t i = lx->at; i < to; i++)
        lx->line += lx->s.data[i] == '\n';
    if (to > lx->at)
        lx->line_starting = lx->s.data[to - 1] == '\n';
    lx->at = to;
}

/* The end of the white space at `at`. */
static size_t space_end(const lexer *lx, size_t at)
{
    while (at < lx->s.len) {
        size_t next = at;
        if (!tkc_j_is_space(tkc_j_char(lx->s, &next)))
            break;
        at = next;
    }
    return at;
}

/* The text before a tag, after its sign and the lstrip rule were applied. */
static tinkc_str strip_before(const lexer *lx, tinkc_str text, char sign, bool is_variable)
{
    if (sign == '-')
        return tkc_j_strip(text, NULL, false, true);
    if (sign == '+' || is_variable)
        return text;
    size_t line = text.len;
    while (line > 0 && text.data[line - 1] != '\n')
        line--;
    if (line == 0 && !lx->line_starting)
        return text;
    tinkc_str last = { text.data + line, text.len - line };
    if (tkc_j_strip(last, NULL, true, true).len == 0)
        text.len = line;
    return text;
}

/* The end of a block tag or comment whose delimiter is `close`: "-%}", "+%}" or "%}", with the
 * white space it removes. 0 = no end here. */
static size_t tag_end(const lexer *lx, size_t at, char close, bool trim)
{
    char sign = at < lx->s.len ? lx->s.data[at] : '\0';
    size_t i = at + (sign == '-' || sign == '+');
    if (i + 1 >= lx->s.len || lx->s.data[i] != close || lx->s.data[i + 1] != '}')
        return 0;
    i += 2;
    if (sign == '-')
        return space_end(lx, i);
    if (sign != '+' && trim && i < lx->s.len && lx->s.data[i] == '\n')
        i++;
    return i;
}

/* The end of `word` at `at`, with optional white space around it; 0 if it is not there. */
static size_t skip_word(const lexer *lx, size_t at, const char *word)
{
    at = space_end(lx, at);
    size_t n = strlen(word);
    if (lx->s.len - at < n || memcmp(lx->s.data + at, word, n) != 0)
        return 0;
    return space_end(lx, at + n);
}

/* After "{% raw %}": everything up to "{% endraw %}" is text. */
static bool lex_raw(lexer *lx)
{
    size_t begin = lx->at;
    for (size_t i = begin; i + 1 < lx->s.len; i++) {
        if (lx->s.data[i] != '{' || lx->s.data[i + 1] != '%')
            continue;
        char sign = i + 2 < lx->s.len ? lx->s.data[i + 2] : '\0';
        bool has_sign = sign == '-' || sign == '+';
        size_t word = skip_word(lx, i + 2 + has_sign, "endraw");
        size_t end = word ? tag_end(lx, word, '%', true) : 0;
        if (!end)
            continue;
        tinkc_str text = { lx->s.data + begin, i - begin };
        text = strip_before(lx, text, has_sign ? sign : '\0', false);
        int32_t line = lx->line;
        advance(lx, end);
        return text.len == 0 || add_token(lx, TKC_JT_TEXT, line, text);
    }
    return fail(lx, "missing end of raw block");
}

/* "{% raw %}" at lx->at: where it ends, or 0. */
static size_t raw_begin(const lexer *lx, bool has_sign)
{
    size_t word = skip_word(lx, lx->at + 2 + has_sign, "raw");
    if (!word)
        return 0;
    if (word < lx->s.len && lx->s.data[word] == '+')
        return 0;
    return tag_end(lx, word, '%', false);
}

static bool skip_comment(lexer *lx)
{
    for (size_t i = lx->at; i + 1 < lx->s.len; i++) {
        bool here = lx->s.data[i] == '#' && lx->s.data[i + 1] == '}';
        bool signed_here = (lx->s.data[i] == '-' || lx->s.data[i] == '+') && i + 2 < lx->s.len &&
                           lx->s.data[i + 1] == '#' && lx->s.data[i + 2] == '}';
        if (here || signed_here) {
            advance(lx, tag_end(lx, i, '#', true));
            return true;
        }
    }
    return fail(lx, "missing end of comment");
}

/* ---- inside tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static bool is_base_digit(char c, int base)
{
    if (base == 16)
        return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    return c >= '0' && c < '0' + base;
}

/* Digits with single underscores between them; returns how many bytes. */
static size_t digits(const lexer *lx, size_t ahead, int base)
{
    size_t i = ahead;
    while (is_base_digit(peek(lx, i), base) ||
           (peek(lx, i) == '_' && i > ahead && is_base_digit(peek(lx, i + 1), base)))
        i++;
    return i - ahead;
}

/* Length of a fraction or exponent after `n` digits; 0 = it is an integer. */
static size_t float_length(const lexer *lx, size_t n)
{
    size_t i = n;
    bool is_float = false;
    if (peek(lx, i) == '.' && digits(lx, i + 1, 10)) {
        i += 1 + digits(lx, i + 1, 10);
        is_float = true;
    }
    if ((peek(lx, i) | 0x20) == 'e') {
        size_t sign = peek(lx, i + 1) == '+' || peek(lx, i + 1) == '-';
        size_t exponent = digits(lx, i + 1 + sign, 10);
        if (exponent) {
            i += 1 + sign + exponent;
            is_float = true;
        }
    }
    return is_float ? i : 0;
}

/* A number without its underscores. */
static bool lex_number(lexer *lx, bool after_dot)
{
    size_t n = 0;
    int32_t kind = TKC_JT_INT;
    char mark = (char)(peek(lx, 1) | 0x20);
    int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    if (peek(lx, 0) == '0' && base != 10) {
        size_t skip = peek(lx, 2) == '_';
        if (digits(lx, 2 + skip, base))
            n = 2 + skip + digits(lx, 2 + skip, base);
    }
    if (n == 0) {
        n = digits(lx, 0, 10);
        size_t with_fraction = after_dot ? 0 : float_length(lx, n);
        if (with_fraction) {
            n = with_fraction;
            kind = TKC_JT_FLOAT;
        }
    }
    char *text = tkc_arena_alloc(lx->arena, n + 1, lx->err);
    if (!text)
        return false;
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        if (peek(lx, i) != '_')
            text[len++] = peek(lx, i);
    text[len] = '\0';
    if (kind == TKC_JT_INT && len > 1 && text[0] == '0' && is_digit(text[1]) &&
        strspn(text, "0") != len)
        return fail(lx, "a number may not begin with 0");
    bool ok = add_token(lx, kind, lx->line, (tinkc_str){ text, len });
    advance(lx, lx->at + n);
    return ok;
}

static bool read_hex(tinkc_str s, size_t at, size_t n, uint32_t *out)
{
    *out = 0;
    if (s.len - at < n)
        return false;
    for (size_t i = at; i < at + n; i++) {
        char c = s.data[i];
        if (!is_base_digit(c, 16))
            return false;
        *out = *out * 16 + (uint32_t)(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return true;
}

/* The escapes of one backslash at s[*at]; appends to out. False = not a character. */
static bool unescape(tinkc_str s, size_t *at, char *out, size_t *n)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = *at + 1 < s.len ? s.data[*at + 1] : '\0';
    const char *simple = c ? strchr(from, c) : NULL;
    uint32_t code = 0;
    size_t hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (simple) {
        out[(*n)++] = to[simple - from];
        *at += 2;
        return true;
    }
    if (c == '\n') { /* a line that continues */
        *at += 2;
        return true;
    }
    if (c >= '0' && c <= '7') {
        size_t i = *at + 1;
        for (size_t k = 0; k < 3 && i < s.len && s.data[i] >= '0' && s.data[i] <= '7'; k++)
            code = code * 8 + (uint32_t)(s.data[i++] - '0');
        *at = i;
    } else if (hex) {
        if (!read_hex(s, *at + 2, hex, &code))
            return false;
        *at += 2 + hex;
        uint32_t low;
        if (code >= 0xD800 && code < 0xDC00 && hex == 4 && *at + 1 < s.len && s.data[*at] == '\\' &&
            s.data[*at + 1] == 'u' && read_hex(s, *at + 2, 4, &low) && low >= 0xDC00 &&
            low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            *at += 6;
        }
    } else {
        out[(*n)++] = '\\'; /* not an escape: keep the backslash */
        *at += 1;
        return c != 'N';
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return false;
    *n += tkc_j_encode(code, out + *n);
    return true;
}

static bool lex_string(lexer *lx)
{
    char quote = peek(lx, 0);
    size_t end = lx->at + 1;
    while (end < lx->s.len && lx->s.data[end] != quote)
        end += lx->s.data[end] == '\\' ? 2 : 1;
    if (end >= lx->s.len)
        return fail(lx, "a string without end");
    tinkc_str raw = { lx->s.data + lx->at + 1, end - lx->at - 1 };
    tinkc_str text = raw;
    if (memchr(raw.data, '\\', raw.len)) {
        char *out = tkc_arena_alloc(lx->arena, raw.len + 4, lx->err);
        if (!out)
            return false;
        size_t n = 0, i = 0;
        while (i < raw.len) {
            if (raw.data[i] != '\\')
                out[n++] = raw.data[i++];
            else if (!unescape(raw, &i, out, &n))
                return fail(lx, "a string has an invalid escape");
        }
        text = (tinkc_str){ out, n };
    }
    bool ok = add_token(lx, TKC_JT_STRING, lx->line, text);
    advance(lx, end + 1);
    return ok;
}

static bool track_bracket(lexer *lx, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (lx->n_open == lx->cap_open) {
            size_t cap = lx->cap_open ? lx->cap_open * 2 : 64;
            char *grown = tkc_arena_alloc(lx->arena, cap, lx->err);
            if (!grown)
                return false;
            if (lx->n_open)
                memcpy(grown, lx->open, lx->n_open);
            lx->open = grown;
            lx->cap_open = cap;
        }
        lx->open[lx->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (lx->n_open == 0 || lx->open[lx->n_open - 1] != c)
            return fail(lx, "brackets do not match");
        lx->n_open--;
    }
    return true;
}

static bool lex_operator(lexer *lx)
{
    static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                       "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                       ">",  "<",  "=",  ".",  ":",  "|",  ",", ";" };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        size_t n = strlen(ops[i]);
        if (lx->s.len - lx->at < n || memcmp(lx->s.data + lx->at, ops[i], n) != 0)
            continue;
        if (!track_bracket(lx, ops[i][0]) ||
            !add_token(lx, TKC_JT_OP, lx->line, (tinkc_str){ ops[i], n }))
            return false;
        advance(lx, lx->at + n);
        return true;
    }
    return tkc_fail(lx->err, TINKC_E_TEMPLATE, "line %d: unexpected character 0x%02x in a tag",
                    lx->line, (unsigned)(unsigned char)peek(lx, 0));
}

/* One token inside a tag. */
static bool lex_inside(lexer *lx)
{
    char c = peek(lx, 0);
    size_t end = space_end(lx, lx->at);
    if (end > lx->at) {
        advance(lx, end);
        return true;
    }
    if (is_digit(c)) {
        const tkc_jtoken *last = lx->n ? &lx->tokens[lx->n - 1] : NULL;
        return lex_number(lx, last && last->kind == TKC_JT_OP && tkc_str_is(last->text, "."));
    }
    if (c == '\'' || c == '"')
        return lex_string(lx);
    if (is_name_char(c)) {
        end = lx->at;
        while (end < lx->s.len && is_name_char(lx->s.data[end]))
            end++;
        tinkc_str name = { lx->s.data + lx->at, end - lx->at };
        bool ok = add_token(lx, TKC_JT_NAME, lx->line, name);
        advance(lx, end);
        return ok;
    }
    return lex_operator(lx);
}

/* After "{{" or "{%": tokens up to the end of the tag. */
static bool lex_tag(lexer *lx, bool is_variable)
{
    lx->n_open = 0;
    int32_t end_kind = is_variable ? TKC_JT_VAR_END : TKC_JT_BLOCK_END;
    while (lx->at < lx->s.len) {
        size_t end = 0;
        if (lx->n_open == 0 && !(is_variable && peek(lx, 0) == '+'))
            end = tag_end(lx, lx->at, is_variable ? '}' : '%', !is_variable);
        if (end) {
            if (!add_token(lx, end_kind, lx->line, (tinkc_str){ "", 0 }))
                return false;
            advance(lx, end);
            return true;
        }
        if (!lex_inside(lx))
            return false;
    }
    return fail(lx, is_variable ? "missing end of a {{ tag" : "missing end of a {% tag");
}

/* Text up to the next tag, then the tag. */
static bool lex_root(lexer *lx)
{
    size_t i = lx->at;
    char kind = '\0';
    for (; i < lx->s.len; i++) {
        const char *brace = memchr(lx->s.data + i, '{', lx->s.len - i);
        i = brace ? (size_t)(brace - lx->s.data) : lx->s.len;
        kind = i + 1 < lx->s.len ? lx->s.data[i + 1] : '\0';
        if (kind == '{' || kind == '%' || kind == '#')
            break;
    }
    if (i >= lx->s.len)
        i = lx->s.len;
    tinkc_str text = { lx->s.data + lx->at, i - lx->at };
    int32_t line = lx->line;
    char sign = '\0';
    if (i < lx->s.len && i + 2 < lx->s.len &&
        (lx->s.data[i + 2] == '-' || lx->s.data[i + 2] == '+'))
        sign = lx->s.data[i + 2];
    if (i < lx->s.len)
        text = strip_before(lx, text, sign, kind == '{');
    if (text.len && !add_token(lx, TKC_JT_TEXT, line, text))
        return false;
    advance(lx, i);
    if (i >= lx->s.len)
        return true;
    if (kind == '%') {
        size_t raw = raw_begin(lx, sign != '\0');
        if (raw) {
            advance(lx, raw);
            return lex_raw(lx);
        }
    }
    advance(lx, i + 2 + (sign != '\0'));
    if (kind == '#')
        return skip_comment(lx);
    int32_t begin = kind == '{' ? TKC_JT_VAR_BEGIN : TKC_JT_BLOCK_BEGIN;
    return add_token(lx, begin, lx->line, (tinkc_str){ "", 0 }) && lex_tag(lx, kind == '{');
}

bool tkc_jinja_lex(tkc_arena *arena, tinkc_str text, tkc_jtoken **tokens, size_t *n_tokens,
                   tinkc_error *err)
{
    lexer lx = { .arena = arena, .err = err, .line = 1, .line_starting = true };
    if (text.len > TKC_JINJA_MAX_TEXT)
        return tkc_fail(err, TINKC_E_TEMPLATE, "template: larger than %d bytes",
                        TKC_JINJA_MAX_TEXT);
    if (!tkc_j_valid_utf8(text))
        return tkc_fail(err, TINKC_E_TEMPLATE, "template: not UTF-8");
    if (!normalise(&lx, text))
        return false;
    while (lx.at < lx.s.len)
        if (!lex_root(&lx))
            return false;
    if (!add_token(&lx, TKC_JT_END, lx.line, (tinkc_str){ "", 0 }))
        return false;
    *tokens = lx.tokens;
    *n_tokens = lx.n;
    return true;
}
