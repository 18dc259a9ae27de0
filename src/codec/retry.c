/* retry.c - retry headers and HTTP dates. Pure. */
#include "codec/retry.h"

#include <assert.h>
#include <math.h>

#include "base/clock.h"

/* ---- dates ---- */

static const char month_names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

typedef struct date {
    int64_t year, month, day, hour, minute, second, zone_minutes;
} date;

/* The next word: up to a space, comma or '-' (the obsolete form has "06-Nov-94"). */
static tinkc_str next_word(tinkc_str *rest)
{
    while (rest->len && (rest->data[0] == ' ' || rest->data[0] == ',' || rest->data[0] == '\t'))
        *rest = tkc_strn(rest->data + 1, rest->len - 1);
    size_t n = 0;
    while (n < rest->len && rest->data[n] != ' ' && rest->data[n] != ',' && rest->data[n] != '\t' &&
           !(n > 0 && rest->data[n] == '-'))
        n++;
    tinkc_str word = tkc_strn(rest->data, n);
    n += n < rest->len; /* what ended the word */
    *rest = tkc_strn(rest->data + n, rest->len - n);
    return word;
}

static bool number(tinkc_str s, size_t least, size_t most, int64_t *out)
{
    return s.len >= least && s.len <= most && s.data[0] != '-' && tkc_parse_i64(s, out);
}

static bool month(tinkc_str s, int64_t *out)
{
    for (int64_t i = 0; i < 12; i++) {
        char name[4] = { month_names[3 * i], month_names[3 * i + 1], month_names[3 * i + 2], 0 };
        if (tkc_str_is_nocase(s, name)) {
            *out = i + 1;
            return true;
        }
    }
    return false;
}

/* Two digits: 00 to 68 are this century, as in mail. */
static bool year(tinkc_str s, int64_t *out)
{
    if (number(s, 4, 4, out))
        return true;
    if (!number(s, 2, 2, out))
        return false;
    *out += *out < 69 ? 2000 : 1900;
    return true;
}

static bool time_of_day(tinkc_str s, date *d)
{
    tinkc_str part;
    d->second = 0;
    if (!tkc_str_cut(&s, ':', &part) || !number(part, 1, 2, &d->hour) ||
        !tkc_str_cut(&s, ':', &part) || !number(part, 2, 2, &d->minute))
        return false;
    if (tkc_str_cut(&s, ':', &part) && !number(part, 2, 2, &d->second))
        return false;
    return s.data == NULL;
}

/* "+0200", or a name. Unknown names are UTC, as in mail: *minutes is left at 0. */
static bool zone(tinkc_str s, int64_t *minutes)
{
    static const struct {
        const char *name;
        int64_t hours;
    } names[] = { { "EST", -5 }, { "EDT", -4 }, { "CST", -6 }, { "CDT", -5 },
                  { "MST", -7 }, { "MDT", -6 }, { "PST", -8 }, { "PDT", -7 } };
    int64_t value;
    if (s.len == 5 && (s.data[0] == '+' || s.data[0] == '-')) {
        if (!number(tkc_strn(s.data + 1, 4), 4, 4, &value) || value % 100 > 59)
            return false;
        *minutes = (value / 100 * 60 + value % 100) * (s.data[0] == '-' ? -1 : 1);
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tkc_str_is_nocase(s, names[i].name))
            *minutes = names[i].hours * 60;
    for (size_t i = 0; i < s.len; i++)
        if ((s.data[i] | 0x20) < 'a' || (s.data[i] | 0x20) > 'z')
            return false;
    return true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* [Wed,] 27 May 2026 20:00:00 GMT | Wednesday, 27-May-26 20:00:00 GMT | Wed May 27 20:00:00 2026 */
static bool read_date(tinkc_str text, date *d)
{
    tinkc_str word = next_word(&text);
    if (word.len == 0)
        return false;
    if (!is_digit(word.data[0])) {
        if (word.len < 3)
            return false;
        word = next_word(&text);
    }
    if (month(word, &d->month)) /* C's asctime format */
        return number(next_word(&text), 1, 2, &d->day) && time_of_day(next_word(&text), d) &&
               year(next_word(&text), &d->year) && next_word(&text).len == 0;
    return number(word, 1, 2, &d->day) && month(next_word(&text), &d->month) &&
           year(next_word(&text), &d->year) && time_of_day(next_word(&text), d) &&
           zone(tkc_str_trim(text), &d->zone_minutes);
}

bool tkc_parse_http_date(tinkc_str text, int64_t *wall_us)
{
    date d = { 0 };
    int32_t y, m, day;
    text = tkc_str_trim(text);
    if (text.len > 64 || !read_date(text, &d))
        return false;
    if (d.hour > 23 || d.minute > 59 || d.second > 60 || d.day < 1 || d.day > 31)
        return false;
    assert(d.year >= 0 && d.year <= 9999 && d.month >= 1 && d.month <= 12);
    int64_t days = tkc_days_from_civil((int32_t)d.year, (int32_t)d.month, (int32_t)d.day);
    tkc_civil_from_days(days, &y, &m, &day);
    if (day != d.day) /* no such day in this month, such as April 31 */
        return false;
    int64_t seconds = days * 86400 + d.hour * 3600 + d.minute * 60 + d.second;
    *wall_us = (seconds - d.zone_minutes * 60) * 1000000;
    return true;
}

/* ---- headers ---- */

/* A number as Python's float() reads it: spaces around it, a sign, digits on only one side of the
 * point. */
static bool loose_number(const char *text, double *out)
{
    char copy[64] = "";
    tinkc_str s = tkc_str_trim(tkc_str(text));
    bool negative = s.len && s.data[0] == '-';
    if (s.len && (s.data[0] == '+' || s.data[0] == '-'))
        s = tkc_strn(s.data + 1, s.len - 1);
    while (s.len > 1 && s.data[0] == '0' && is_digit(s.data[1])) /* "007" */
        s = tkc_strn(s.data + 1, s.len - 1);
    if (s.len == 0 || s.len + 4 > sizeof copy)
        return false;
    size_t n = 0, point = tkc_str_find(s, '.');
    if (point == 0)
        copy[n++] = '0';
    memcpy(copy + n, s.data, s.len);
    n += s.len;
    if (point + 1 == s.len && point > 0)
        copy[n++] = '0';
    assert(n < sizeof copy);
    if (!tkc_parse_double(tkc_strn(copy, n), true, out))
        return false;
    if (negative)
        *out = -*out;
    return true;
}

/* Not a number, or below 0, where nothing was asked for. */
static double header_delay_ms(const char *retry_after_ms, const char *retry_after,
                              int64_t now_wall_us)
{
    double ms = 0;
    int64_t at;
    /* The first one that is a number decides, even if it is out of range: so in the Python SDK. */
    if (retry_after_ms && loose_number(retry_after_ms, &ms))
        ;
    else if (retry_after && loose_number(retry_after, &ms))
        ms *= 1000;
    else if (retry_after && tkc_parse_http_date(tkc_str(retry_after), &at))
        ms = ((double)at - (double)now_wall_us) / 1000;
    return ms;
}

int64_t tkc_retry_after_ms(const char *retry_after_ms, const char *retry_after, int64_t now_wall_us)
{
    double ms = header_delay_ms(retry_after_ms, retry_after, now_wall_us);
    /* Rounded up: a client that comes a fraction of a millisecond early is refused again. */
    return ms > 0 && ms <= (double)TKC_RETRY_AFTER_MOST_MS ? (int64_t)ceil(ms) : 0; /* NaN: 0 */
}

int64_t tkc_retry_after_capped_ms(const char *retry_after_ms, const char *retry_after,
                                  int64_t now_wall_us)
{
    double ms = header_delay_ms(retry_after_ms, retry_after, now_wall_us);
    if (ms > (double)TKC_RETRY_AFTER_MOST_MS)
        return TKC_RETRY_AFTER_MOST_MS;
    return ms > 0 ? (int64_t)ceil(ms) : 0;
}

int tkc_should_retry(const char *value)
{
    if (tkc_cstr_eq(value, "true"))
        return 1;
    return tkc_cstr_eq(value, "false") ? 0 : -1;
}

const char *tkc_header(const char *const *pairs, const char *name)
{
    for (; pairs && pairs[0] && pairs[1]; pairs += 2)
        if (tkc_str_is_nocase(tkc_str(pairs[0]), name))
            return pairs[1];
    return NULL;
}
