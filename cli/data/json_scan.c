/* json_scan.c - JSON passed over at full speed. Pure functions over the text. */
#include "cli/data/json_scan.h"

#include <string.h>

enum { MAX_DEPTH = 128 };

static bool fault(cli_scan *s, const char *what)
{
    if (!s->fault)
        s->fault = what;
    return false;
}

void cli_scan_open(cli_scan *s, const char *text, size_t len)
{
    *s = (cli_scan){ .begin = text, .at = text, .end = text + len };
}

static void skip_space(cli_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

char cli_scan_peek(cli_scan *s)
{
    if (s->fault)
        return 0;
    skip_space(s);
    if (s->at == s->end)
        return fault(s, "ends early"), (char)0;
    char c = *s->at;
    if (c == '-' || (c >= '0' && c <= '9'))
        return '0';
    if (!memchr("{[\"tfn", c, 6))
        return fault(s, "a value is needed"), (char)0;
    return c;
}

static bool enter(cli_scan *s, char open, const char *what)
{
    if (cli_scan_peek(s) != open)
        return fault(s, what);
    if (s->depth == MAX_DEPTH)
        return fault(s, "nested too deeply");
    s->at++;
    s->depth++;
    s->first = true;
    return true;
}

bool cli_scan_object(cli_scan *s)
{
    return enter(s, '{', "an object is needed");
}

bool cli_scan_array(cli_scan *s)
{
    return enter(s, '[', "an array is needed");
}

static bool another(cli_scan *s, char close)
{
    if (s->fault)
        return false;
    skip_space(s);
    if (s->at == s->end)
        return fault(s, "ends early");
    bool first = s->first;
    s->first = false;
    if (*s->at == close) {
        s->at++;
        s->depth--;
        return false;
    }
    if (first)
        return true;
    if (*s->at != ',')
        return fault(s, "a comma is needed");
    s->at++;
    return true;
}

bool cli_scan_item(cli_scan *s)
{
    return another(s, ']');
}

bool cli_scan_key(cli_scan *s, cli_span *key)
{
    if (!another(s, '}') || !cli_scan_string(s, key))
        return false;
    skip_space(s);
    if (s->at == s->end || *s->at != ':')
        return fault(s, "a colon is needed");
    s->at++;
    return true;
}

/* Bytes that end the quick run through a string: quote, backslash, controls, non-ASCII. */
static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

static bool skip_utf8(cli_scan *s)
{
    const unsigned char *p = (const unsigned char *)s->at;
    size_t left = (size_t)(s->end - s->at);
    size_t n = p[0] >= 0xC2 && p[0] < 0xE0   ? 2
               : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
               : p[0] >= 0xF0 && p[0] < 0xF5 ? 4
                                             : 0;
    if (n == 0 || left < n)
        return fault(s, "not UTF-8");
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return fault(s, "not UTF-8");
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] >= 0xA0) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] >= 0x90))
        return fault(s, "not UTF-8");
    s->at += n;
    return true;
}

/* The four digits behind "\\u" at `p`; -1 if they are none. */
static int code_unit(const char *p, const char *end)
{
    int unit = 0;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        char c = p[i], letter = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            unit = unit * 16 + (c - '0');
        else if (letter >= 'a' && letter <= 'f')
            unit = unit * 16 + (letter - 'a' + 10);
        else
            return -1;
    }
    return unit;
}

static bool skip_escape(cli_scan *s)
{
    if (s->end - s->at < 2)
        return fault(s, "a string without end");
    char c = s->at[1];
    if (memchr("\"\\/bfnrt", c, 8)) {
        s->at += 2;
        return true;
    }
    int unit = code_unit(s->at, s->end);
    if (unit < 0)
        return fault(s, "a bad escape");
    bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    int next = code_unit(s->at + 6, s->end);
    if (low || (high && (next < 0xDC00 || next >= 0xE000)))
        return fault(s, "half of a surrogate pair");
    s->at += high ? 12 : 6;
    return true;
}

bool cli_scan_string(cli_scan *s, cli_span *out)
{
    *out = (cli_span){ "", 0 }; /* also after a fault: callers look at it */
    if (cli_scan_peek(s) != '"')
        return fault(s, "a string is needed");
    const char *from = ++s->at;
    for (;;) {
        while (s->at < s->end && is_plain((unsigned char)*s->at))
            s->at++;
        if (s->at == s->end)
            return fault(s, "a string without end");
        unsigned char c = (unsigned char)*s->at;
        if (c == '"')
            break;
        if (c < 0x20)
            return fault(s, "a control character in a string");
        if (!(c == '\\' ? skip_escape(s) : skip_utf8(s)))
            return false;
    }
    *out = (cli_span){ from, (size_t)(s->at++ - from) };
    return true;
}

static bool skip_digits(cli_scan *s)
{
    const char *from = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > from || fault(s, "a malformed number");
}

static void skip_number(cli_scan *s)
{
    s->at += *s->at == '-';
    if (s->at < s->end && *s->at == '0')
        s->at++;
    else if (!skip_digits(s))
        return;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!skip_digits(s))
            return;
    }
    if (s->at < s->end && (*s->at | 0x20) == 'e') {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        (void)skip_digits(s);
    }
}

static void skip_word(cli_scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        (void)fault(s, "a value is needed");
    else
        s->at += n;
}

/* Recursion is bounded by MAX_DEPTH. */
bool cli_scan_skip(cli_scan *s)
{
    cli_span text;
    switch (cli_scan_peek(s)) {
    case '{':
        if (cli_scan_object(s))
            while (cli_scan_key(s, &text))
                cli_scan_skip(s);
        break;
    case '[':
        if (cli_scan_array(s))
            while (cli_scan_item(s))
                cli_scan_skip(s);
        break;
    case '"':
        cli_scan_string(s, &text);
        break;
    case '0':
        skip_number(s);
        break;
    case 't':
        skip_word(s, "true");
        break;
    case 'f':
        skip_word(s, "false");
        break;
    case 'n':
        skip_word(s, "null");
        break;
    default:
        break;
    }
    return !s->fault;
}

bool cli_scan_close(cli_scan *s)
{
    skip_space(s);
    return !s->fault && (s->at == s->end || fault(s, "text after the value"));
}

bool cli_span_is(cli_span s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}
