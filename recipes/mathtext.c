/* mathtext.c - numbers and formulas in the text of an answer.
 *
 * Formulas are compared as text after meaningless parts are removed, and as numbers if both are
 * numbers. This is not algebra: x+1 and 1+x differ. Must not: fail on any bytes.
 */
#include "recipes/mathtext.h"

#include <math.h>
#include <string.h>

#include "base/str.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ---- numbers ---- */

/* Digits with commas between groups of three taken out; how many bytes that was. 0 = no number. */
static size_t number_at(const char *s, double *out)
{
    char text[64];
    size_t n = 0, i = 0;
    if (s[i] == '-')
        text[n++] = s[i++];
    if (!is_digit(s[i]) && !(s[i] == '.' && is_digit(s[i + 1])))
        return 0;
    if (s[i] == '.')
        text[n++] = '0';
    while (n < 40 &&
           (is_digit(s[i]) || (s[i] == ',' && i && is_digit(s[i - 1]) && is_digit(s[i + 1]) &&
                               is_digit(s[i + 2]) && is_digit(s[i + 3]) && !is_digit(s[i + 4])))) {
        if (s[i] != ',')
            text[n++] = s[i];
        i++;
    }
    if (s[i] == '.' && is_digit(s[i + 1])) {
        text[n++] = s[i++];
        while (n < 56 && is_digit(s[i]))
            text[n++] = s[i++];
    }
    if ((s[i] == 'e' || s[i] == 'E') &&
        (is_digit(s[i + 1]) || ((s[i + 1] == '-' || s[i + 1] == '+') && is_digit(s[i + 2])))) {
        text[n++] = 'e';
        i++;
        if (s[i] == '-' || s[i] == '+')
            text[n++] = s[i++];
        while (n < 62 && is_digit(s[i]))
            text[n++] = s[i++];
    }
    /* JSON's grammar has no leading zeros: "007" is 7 here. */
    size_t from = text[0] == '-', lead = from;
    while (lead + 1 < n && text[lead] == '0' && is_digit(text[lead + 1]))
        lead++;
    memmove(text + from, text + lead, n - lead);
    n -= lead - from;
    return tkc_parse_double((tinkc_str){ text, n }, false, out) ? i : 0;
}

bool tkr_last_number(const char *text, double *out)
{
    bool found = false;
    for (size_t i = 0; text[i];) {
        double value;
        /* The dash of "5-3" subtracts. */
        bool minus = text[i] == '-' && i && is_digit(text[i - 1]);
        size_t n = minus ? 0 : number_at(text + i, &value);
        if (n) {
            *out = value;
            found = true;
        }
        i += n ? n : 1;
    }
    return found;
}

/* Whether what was read so far ends with "/" or "out of": then a 10 is the scale, not a grade. */
static bool names_scale(tinkc_str before)
{
    before = tkc_str_trim(before);
    return tkc_ends_with(before, "/") || tkc_ends_with(before, "out of");
}

static tinkc_str last_line(const char *text)
{
    tinkc_str all = tkc_str_trim(tkc_str(text));
    for (size_t i = all.len; i > 0; i--)
        if (all.data[i - 1] == '\n')
            return tkc_strn(all.data + i, all.len - i);
    return all;
}

bool tkr_read_grade(const char *text, double *out)
{
    tinkc_str line = last_line(text); /* the text's end ends it too, so a number cannot run over */
    size_t found = 0;
    for (size_t i = 0; i < line.len;) {
        double value;
        bool minus = line.data[i] == '-' && i && is_digit(line.data[i - 1]);
        size_t n = minus ? 0 : number_at(line.data + i, &value);
        if (n && value == 10 && found && names_scale(tkc_strn(line.data, i)))
            ;
        else if (n && found && value != *out)
            return false;
        else if (n) {
            *out = value;
            found++;
        }
        i += n ? n : 1;
    }
    return found && *out >= 0 && *out <= 10;
}

bool tkr_same_number(double a, double b)
{
    double scale = fmax(1, fmax(fabs(a), fabs(b)));
    return isfinite(a) && isfinite(b) && fabs(a - b) <= 1e-6 * scale;
}

/* ---- boxes ---- */

/* The text between the brace at `open` and the one that closes it; data NULL = none does. */
static tinkc_str in_braces(const char *open)
{
    size_t depth = 0;
    for (const char *p = open; *p; p++) {
        if (*p == '\\' && p[1])
            p++;
        else if (*p == '{')
            depth++;
        else if (*p == '}' && --depth == 0)
            return (tinkc_str){ open + 1, (size_t)(p - open) - 1 };
    }
    return (tinkc_str){ NULL, 0 };
}

tinkc_str tkr_last_boxed(const char *text)
{
    tinkc_str last = { NULL, 0 };
    static const char *const marks[] = { "\\boxed", "\\fbox" };
    for (size_t m = 0; m < 2; m++)
        for (const char *p = text; (p = strstr(p, marks[m]));) {
            p += strlen(marks[m]);
            while (*p == ' ')
                p++;
            tinkc_str inside = *p == '{' ? in_braces(p) : (tinkc_str){ NULL, 0 };
            if (inside.data && (!last.data || inside.data > last.data))
                last = inside;
        }
    return last;
}

/* ---- formulas ---- */

/* Replacements for parts without meaning; a text comes before its own prefixes. */
static const char *const rewrites[][2] = {
    { "\\left", "" },
    { "\\right", "" },
    { "\\dfrac", "\\frac" },
    { "\\tfrac", "\\frac" },
    { "\\cdot", "*" },
    { "\\times", "*" },
    { "\\displaystyle", "" },
    { "\\text", "" },
    { "\\mathrm", "" },
    { "\\mathbf", "" },
    { "\\mbox", "" },
    { "\\quad", "" },
    { "\\circ", "" },
    { "^{}", "" },
    { "\\%", "%" },
    { "\\$", "" },
    { "\\!", "" },
    { "\\,", "" },
    { "\\;", "" },
    { "\\:", "" },
    { "\\ ", "" },
    { "\\{", "{" },
    { "\\}", "}" },
    { "$", "" },
    { " ", "" },
    { "\n", "" },
    { "\t", "" },
    { "~", "" },
};

static bool simplify(tinkc_str s, tkc_buf *out, tinkc_error *err)
{
    s = tkc_str_trim(s);
    while (s.len && s.data[s.len - 1] == '.')
        s.len--;
    for (size_t i = 0; i < s.len && !tkc_failed(err);) {
        size_t k = 0, n = 0;
        for (; k < sizeof rewrites / sizeof *rewrites; k++) {
            n = strlen(rewrites[k][0]);
            if (s.len - i >= n && memcmp(s.data + i, rewrites[k][0], n) == 0)
                break;
        }
        if (k < sizeof rewrites / sizeof *rewrites) {
            tkc_buf_cstr(out, rewrites[k][1], err);
            i += n;
        } else {
            tkc_buf_char(out, s.data[i++], err);
        }
    }
    return tkc_buf_terminate(out, err) != NULL;
}

static const char *past_braces(const char *p, bool *ok, double *value)
{
    bool braced = *p == '{';
    size_t n = number_at(p + braced, value);
    p += braced + n;
    *ok = n > 0 && (!braced || *p == '}');
    return p + (*ok && braced);
}

/* The number that a simplified formula is: 3, -1/2, \frac{1}{2}, 50%, {7}. */
static bool as_number(const char *p, double *out)
{
    bool ok = true, minus = *p == '-' && p[1] == '\\';
    double top, bottom = 1;
    p += minus;
    bool frac = strncmp(p, "\\frac", 5) == 0;
    p = past_braces(p + (frac ? 5 : 0), &ok, &top);
    if (ok && frac)
        p = past_braces(p, &ok, &bottom);
    else if (ok && *p == '/')
        p = past_braces(p + 1, &ok, &bottom);
    if (ok && *p == '%')
        p++;
    if (!ok || *p || bottom == 0)
        return false;
    *out = (minus ? -1 : 1) * top / bottom;
    return true;
}

bool tkr_same_formula(tinkc_str a, tinkc_str b, tinkc_error *err)
{
    tkc_buf x, y;
    double p, q;
    bool same = false;
    tkc_buf_init(&x, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&y, NULL, TKC_BUF_NO_MAX);
    if (simplify(a, &x, err) && simplify(b, &y, err))
        same = as_number(x.data, &p) && as_number(y.data, &q)
                   ? tkr_same_number(p, q)
                   : tkc_str_eq(tkc_buf_view(&x), tkc_buf_view(&y));
    tkc_buf_free(&x);
    tkc_buf_free(&y);
    return same;
}
