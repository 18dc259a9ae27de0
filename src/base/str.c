/* str.c - spans of text, numbers to and from text. May touch: only its arguments. */
#include "base/str.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/platform.h"

tinkc_str tkc_str(const char *s)
{
    return (tinkc_str){ s, s ? strlen(s) : 0 };
}

bool tkc_str_eq(tinkc_str a, tinkc_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

bool tkc_str_is(tinkc_str a, const char *b)
{
    return tkc_str_eq(a, tkc_str(b));
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool tkc_str_is_nocase(tinkc_str a, const char *b)
{
    tinkc_str s = tkc_str(b);
    if (a.len != s.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (lower(a.data[i]) != lower(s.data[i]))
            return false;
    return true;
}

bool tkc_cstr_eq(const char *a, const char *b)
{
    if (!a || !b)
        return a == b;
    return strcmp(a, b) == 0;
}

bool tkc_starts_with(tinkc_str s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.len >= n && memcmp(s.data, prefix, n) == 0;
}

bool tkc_ends_with(tinkc_str s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.len >= n && memcmp(s.data + s.len - n, suffix, n) == 0;
}

int tkc_str_compare(tinkc_str a, tinkc_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    if (order)
        return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

tinkc_str tkc_str_trim(tinkc_str s)
{
    while (s.len && is_space(s.data[0])) {
        s.data++;
        s.len--;
    }
    while (s.len && is_space(s.data[s.len - 1]))
        s.len--;
    return s;
}

void tkc_blank_controls(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

size_t tkc_str_find(tinkc_str s, char c)
{
    const char *at = s.len ? memchr(s.data, c, s.len) : NULL;
    return at ? (size_t)(at - s.data) : s.len;
}

bool tkc_str_cut(tinkc_str *rest, char c, tinkc_str *part)
{
    if (!rest->data)
        return false;
    size_t n = tkc_str_find(*rest, c);
    *part = (tinkc_str){ rest->data, n };
    if (n == rest->len)
        *rest = (tinkc_str){ NULL, 0 };
    else
        *rest = (tinkc_str){ rest->data + n + 1, rest->len - n - 1 };
    return true;
}

bool tkc_parse_u64(tinkc_str s, uint64_t *out)
{
    uint64_t value = 0;
    if (s.len == 0)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '9')
            return false;
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(s.data[i] - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

bool tkc_parse_i64(tinkc_str s, int64_t *out)
{
    bool negative = s.len > 0 && s.data[0] == '-';
    uint64_t size;
    if (!tkc_parse_u64(negative ? tkc_strn(s.data + 1, s.len - 1) : s, &size))
        return false;
    if (size > (uint64_t)INT64_MAX + (negative ? 1u : 0u))
        return false;
    *out = negative ? (int64_t)(0 - size) : (int64_t)size;
    return true;
}

enum { LONGEST_NUMBER = 2047 }; /* more digits than any double needs */

/* Length of the JSON number at the start of s; 0 if there is none. */
static size_t number_length(tinkc_str s)
{
    size_t i = 0;
    if (i < s.len && s.data[i] == '-')
        i++;
    size_t digits = i;
    while (i < s.len && s.data[i] >= '0' && s.data[i] <= '9')
        i++;
    if (i == digits || (s.data[digits] == '0' && i - digits > 1))
        return 0;
    if (i < s.len && s.data[i] == '.') {
        size_t fraction = ++i;
        while (i < s.len && s.data[i] >= '0' && s.data[i] <= '9')
            i++;
        if (i == fraction)
            return 0;
    }
    if (i < s.len && (s.data[i] == 'e' || s.data[i] == 'E')) {
        i++;
        if (i < s.len && (s.data[i] == '+' || s.data[i] == '-'))
            i++;
        size_t exponent = i;
        while (i < s.len && s.data[i] >= '0' && s.data[i] <= '9')
            i++;
        if (i == exponent)
            return 0;
    }
    return i;
}

/* The powers of ten that are exact in a double. */
static const double powers[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                 1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
enum { N_POWERS = sizeof powers / sizeof *powers };

/* Clinger's case: at most 15 digits and a small power of ten are exact in double arithmetic. */
static bool parse_short(tinkc_str s, double *out)
{
    assert(s.len > 0);
    size_t i = s.data[0] == '-' ? 1 : 0;
    uint64_t mantissa = 0;
    int digits = 0, scale = 0;
    bool fraction = false;
    for (; i < s.len && s.data[i] != 'e' && s.data[i] != 'E'; i++) {
        if (s.data[i] == '.') {
            fraction = true;
            continue;
        }
        mantissa = mantissa * 10 + (uint64_t)(s.data[i] - '0');
        digits += mantissa != 0;
        scale -= fraction;
        if (digits > 15)
            return false;
    }
    if (i < s.len) {
        int64_t exponent;
        tinkc_str e = tkc_strn(s.data + i + 1, s.len - i - 1);
        if (e.data[0] == '+')
            e = tkc_strn(e.data + 1, e.len - 1);
        if (e.len > 4 || !tkc_parse_i64(e, &exponent))
            return false;
        scale += (int)exponent;
    }
    if (scale <= -(int)N_POWERS || scale >= (int)N_POWERS)
        return false;
    double value = scale < 0 ? (double)mantissa / powers[-scale] : (double)mantissa * powers[scale];
    *out = s.data[0] == '-' ? -value : value;
    return true;
}

static bool parse_special(tinkc_str s, double *out)
{
    bool negative = s.len > 0 && s.data[0] == '-';
    tinkc_str word = negative ? tkc_strn(s.data + 1, s.len - 1) : s;
    if (tkc_str_is_nocase(word, "inf") || tkc_str_is_nocase(word, "infinity"))
        *out = negative ? -INFINITY : INFINITY;
    else if (tkc_str_is_nocase(word, "nan"))
        *out = NAN;
    else
        return false;
    return true;
}

bool tkc_is_number(tinkc_str s)
{
    return s.len > 0 && s.len <= LONGEST_NUMBER && number_length(s) == s.len;
}

bool tkc_parse_double(tinkc_str s, bool special, double *out)
{
    if (!tkc_is_number(s))
        return special && parse_special(s, out);
    if (parse_short(s, out))
        return true;
    char copy[LONGEST_NUMBER + 1];
    memcpy(copy, s.data, s.len);
    copy[s.len] = '\0';
    *out = tkc_parse_decimal(copy, NULL);
    return true;
}

static const char *special_name(double value)
{
    if (isnan(value))
        return "nan";
    if (isinf(value))
        return value < 0 ? "-inf" : "inf";
    return NULL;
}

/* Rewrites C's "1.5e-07" in the format of Python's repr. */
static size_t lay_out(const char *scientific, char *out)
{
    char digits[TKC_NUMBER_MAX];
    size_t n_digits = 0, at = 0;
    const char *p = scientific;
    bool negative = *p == '-';
    p += negative;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n_digits++] = *p;
    assert(*p == 'e' && n_digits > 0 && n_digits < sizeof digits);
    int64_t exponent = 0;
    (void)tkc_parse_i64(tkc_str(p[1] == '+' ? p + 2 : p + 1), &exponent);
    while (n_digits > 1 && digits[n_digits - 1] == '0')
        n_digits--;
    if (negative)
        out[at++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[at++] = digits[0];
        if (n_digits > 1) {
            out[at++] = '.';
            memcpy(out + at, digits + 1, n_digits - 1);
            at += n_digits - 1;
        }
        at += (size_t)snprintf(out + at, TKC_NUMBER_MAX - at, "e%c%02d", exponent < 0 ? '-' : '+',
                               (int)(exponent < 0 ? -exponent : exponent));
        return at;
    }
    /* Digits before the point, then after it; an empty side becomes a zero. */
    for (int64_t i = 0; i <= exponent; i++)
        out[at++] = i < (int64_t)n_digits ? digits[i] : '0';
    if (exponent < 0)
        out[at++] = '0';
    out[at++] = '.';
    for (int64_t i = exponent + 1; i < 0; i++)
        out[at++] = '0';
    size_t rest = exponent < 0 ? 0 : (size_t)exponent + 1;
    if (rest >= n_digits)
        out[at++] = '0';
    for (; rest < n_digits; rest++)
        out[at++] = digits[rest];
    assert(at < TKC_NUMBER_MAX);
    out[at] = '\0';
    return at;
}

/* `precision` digits of a value, and whether they read back equal. snprintf may write a locale's
 * decimal comma; reading back needs the point itself. */
static bool try_digits(double value, int precision, bool as_float, char *text, size_t cap)
{
    int n = snprintf(text, cap, "%.*e", precision - 1, value);
    for (int i = 0; i < n; i++)
        if (text[i] == ',')
            text[i] = '.';
    double back = tkc_parse_decimal(text, NULL);
    return as_float ? (float)back == (float)value : back == value;
}

/* The same for up to 15 digits of a number of moderate size, without the C library: digits q and a
 * scale that make q / 10^scale read back equal, as parse_short would compute it. */
static bool few_digits(double value, int most, bool as_float, char *text, size_t cap)
{
    double size = fabs(value);
    if (!(size >= 1e-6 && size < 1e15))
        return false;
    int exponent = (int)floor(log10(size));
    for (int precision = 1; precision <= most; precision++) {
        int scale = precision - 1 - exponent;
        assert(scale > -(int)N_POWERS && scale < (int)N_POWERS);
        long double scaled = scale < 0 ? (long double)size / (long double)powers[-scale]
                                       : (long double)size * (long double)powers[scale];
        uint64_t q = (uint64_t)llrintl(scaled);
        double back = scale < 0 ? (double)q * powers[-scale] : (double)q / powers[scale];
        if (q && (as_float ? (float)back == (float)size : back == size)) {
            int n = snprintf(text, cap, "%s%llu", value < 0 ? "-" : "", (unsigned long long)q);
            int digits = n - (value < 0);
            (void)snprintf(text + n, cap - (size_t)n, "e%d", digits - 1 - scale);
            return true;
        }
    }
    return false;
}

/* Fewest digits that read back equal. More digits are closer, so the number of digits is found by
 * binary search. Except at a power of two: there the neighbour below is nearer than the one above,
 * and closer may still be too far, so every length is tried. */
static size_t format_shortest(double value, int most, bool as_float, char *out)
{
    char text[TKC_NUMBER_MAX + 16];
    int least = 1, exponent;
    assert(isfinite(value) && most <= 17);
    if (few_digits(value, most < 15 ? most : 15, as_float, text, sizeof text))
        return lay_out(text, out);
    bool power_of_two = fabs(frexp(value, &exponent)) == 0.5;
    while (least < most) {
        int middle = power_of_two ? least : (least + most) / 2;
        if (try_digits(value, middle, as_float, text, sizeof text))
            most = middle;
        else
            least = middle + 1;
    }
    (void)try_digits(value, most, as_float, text, sizeof text);
    return lay_out(text, out);
}

size_t tkc_format_double(double value, char out[TKC_NUMBER_MAX])
{
    const char *special = special_name(value);
    if (special)
        return (size_t)snprintf(out, TKC_NUMBER_MAX, "%s", special);
    if (value == floor(value) && fabs(value) < 1e15)
        return (size_t)snprintf(out, TKC_NUMBER_MAX, "%s%lld.0", signbit(value) ? "-" : "",
                                (long long)fabs(value));
    return format_shortest(value, 17, false, out);
}

size_t tkc_format_float(float value, char out[TKC_NUMBER_MAX])
{
    const char *special = special_name((double)value);
    if (special)
        return (size_t)snprintf(out, TKC_NUMBER_MAX, "%s", special);
    return format_shortest((double)value, 9, true, out);
}

size_t tkc_utf8_length(const void *text, size_t left)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = text;
    assert(left > 0);
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    if (n == 0 || n > left)
        return 0;
    uint32_t c = p[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    return c < least[n] || c > 0x10FFFF || surrogate ? 0 : n;
}

uint64_t tkc_hash(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

bool tkc_equal_secret(tinkc_str a, tinkc_str b)
{
    unsigned char difference = a.len != b.len;
    for (size_t i = 0; i < a.len; i++)
        difference |= (unsigned char)(a.data[i] ^ (b.len ? b.data[i % b.len] : 1));
    return difference == 0;
}
