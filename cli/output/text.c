/* text.c - numbers, sizes, times and names as people read and write them. Pure functions. */
#include "cli/output/text.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/platform.h"

enum { DAY_S = 86400 };
#define US_PER_S INT64_C(1000000)

char *cli_printf(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    return text;
}

int64_t cli_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * US_PER_S + t.tv_nsec / 1000;
}

int64_t cli_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

double cli_seconds_since(int64_t begun_ms)
{
    return (double)(cli_now_ms() - begun_ms) / 1000;
}

int64_t cli_ms_of(double seconds)
{
    return (int64_t)(seconds * 1000);
}

/* ---- out ---- */

void cli_format_size(int64_t bytes, char out[CLI_SHORT_TEXT])
{
    static const char *const units[] = { "KB", "MB", "GB", "TB", "PB", "EB" };
    if (bytes < 0) {
        (void)snprintf(out, CLI_SHORT_TEXT, "N/A");
        return;
    }
    if (bytes < 1024) {
        (void)snprintf(out, CLI_SHORT_TEXT, "%lld B", (long long)bytes);
        return;
    }
    double size = (double)bytes / 1024;
    size_t unit = 0;
    while (size >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        size /= 1024;
        unit++;
    }
    (void)snprintf(out, CLI_SHORT_TEXT, "%.1f %s", size, units[unit]);
}

static void split_time(int64_t time_us, struct tm *out, int64_t *micros)
{
    time_t seconds = (time_t)(time_us / US_PER_S);
    *micros = time_us % US_PER_S;
    if (*micros < 0) {
        *micros += US_PER_S;
        seconds--;
    }
    gmtime_r(&seconds, out);
}

/* The date and, in `form` of strftime, the rest; returns the length. strftime's %Y has no leading zeros. */
static size_t write_date(const struct tm *t, const char *form, char out[CLI_SHORT_TEXT])
{
    int n = snprintf(out, CLI_SHORT_TEXT, "%04d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1,
                     t->tm_mday);
    return (size_t)n + (*form ? strftime(out + n, (size_t)(CLI_SHORT_TEXT - n), form, t) : 0);
}

static void write_utc(int64_t time_us, const char *form, const char *zone, char out[CLI_SHORT_TEXT])
{
    struct tm t;
    int64_t micros;
    split_time(time_us, &t, &micros);
    size_t n = write_date(&t, form, out);
    if (micros)
        n += (size_t)snprintf(out + n, CLI_SHORT_TEXT - n, ".%06d", (int)micros);
    (void)snprintf(out + n, CLI_SHORT_TEXT - n, "%s", zone);
}

void cli_format_iso(int64_t time_us, char out[CLI_SHORT_TEXT])
{
    write_utc(time_us, "T%H:%M:%S", "Z", out);
}

void cli_format_python_time(int64_t time_us, char out[CLI_SHORT_TEXT])
{
    write_utc(time_us, " %H:%M:%S", "+00:00", out);
}

void cli_format_local(int64_t time_us, char out[CLI_SHORT_TEXT])
{
    struct tm t;
    time_t seconds = (time_t)(time_us / US_PER_S);
    localtime_r(&seconds, &t);
    (void)write_date(&t, " %H:%M:%S %z", out);
}

/* "W weeks", "1 day", "60 minutes"; empty below a minute. */
static void distance(int64_t seconds, char out[CLI_SHORT_TEXT])
{
    int64_t days = seconds / DAY_S, n;
    const char *unit;
    if (days > 7) {
        n = days / 7;
        unit = "week";
    } else if (days >= 1) {
        n = days;
        unit = "day";
    } else if (seconds > 3600) {
        n = seconds / 3600;
        unit = "hour";
    } else if (seconds > 60) {
        n = seconds / 60;
        unit = "minute";
    } else {
        out[0] = '\0';
        return;
    }
    (void)snprintf(out, CLI_SHORT_TEXT, "%lld %s%s", (long long)n, unit, n > 1 ? "s" : "");
}

void cli_format_relative(int64_t time_us, int64_t now_us, char out[CLI_SHORT_TEXT])
{
    char text[CLI_SHORT_TEXT];
    bool future = time_us > now_us;
    int64_t seconds = (future ? time_us - now_us : now_us - time_us) / US_PER_S;
    if (seconds / DAY_S > 30) {
        struct tm t;
        int64_t micros;
        split_time(time_us, &t, &micros);
        (void)write_date(&t, "", out);
        return;
    }
    distance(seconds, text);
    if (!text[0])
        (void)snprintf(out, CLI_SHORT_TEXT, "%s", future ? "in less than a minute" : "just now");
    else
        (void)snprintf(out, CLI_SHORT_TEXT, future ? "in %.50s" : "%.50s ago", text);
}

void cli_format_duration(double seconds, char out[CLI_SHORT_TEXT])
{
    if (!(seconds >= 0) || seconds > 1e9) {
        (void)snprintf(out, CLI_SHORT_TEXT, "?");
        return;
    }
    long long s = (long long)seconds;
    if (seconds < 10)
        (void)snprintf(out, CLI_SHORT_TEXT, "%.1fs", seconds);
    else if (s < 60)
        (void)snprintf(out, CLI_SHORT_TEXT, "%llds", s);
    else if (s < 3600)
        (void)snprintf(out, CLI_SHORT_TEXT, "%lldm%02llds", s / 60, s % 60);
    else if (s < 2 * DAY_S)
        (void)snprintf(out, CLI_SHORT_TEXT, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else
        (void)snprintf(out, CLI_SHORT_TEXT, "%lldd%02lldh", s / DAY_S, s / 3600 % 24);
}

void cli_format_number(double value, char out[CLI_SHORT_TEXT])
{
    if (!isfinite(value)) {
        (void)snprintf(out, CLI_SHORT_TEXT, "null");
        return;
    }
    if (value == floor(value) && fabs(value) < 1e16) {
        (void)snprintf(out, CLI_SHORT_TEXT, "%.1f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        if (fabs(value) < 1e16)
            (void)snprintf(out, CLI_SHORT_TEXT, "%.*g", digits, value);
        else
            (void)snprintf(out, CLI_SHORT_TEXT, "%.*e", digits - 1, value);
        if (tkc_parse_decimal(out, NULL) == value)
            break;
    }
}

void cli_format_count(int64_t value, char out[CLI_SHORT_TEXT])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)(value < 0 ? -value : value));
    size_t at = 0;
    if (value < 0)
        out[at++] = '-';
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

/* ---- in ---- */

bool cli_parse_number(const char *text, double *out)
{
    char *end;
    if (!*text || *text == ' ')
        return false;
    *out = tkc_parse_decimal(text, &end);
    return *end == '\0' && isfinite(*out) && !strpbrk(text, "xXpP");
}

bool cli_parse_int(const char *text, int64_t *out)
{
    const char *p = text;
    bool negative = *p == '-';
    p += negative || *p == '+';
    if (!*p)
        return false;
    int64_t value = 0;
    for (; *p; p++) {
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_sub_overflow(value, (int64_t)(*p - '0'), &value))
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *out = negative ? value : -value;
    return true;
}

/* Number, then one letter of `units` (or none); *unit is its index, -1 = none. */
static bool number_and_unit(const char *text, const char *units, double *number, int *unit)
{
    char copy[CLI_SHORT_TEXT];
    size_t n = strlen(text);
    if (n == 0 || n >= sizeof copy)
        return false;
    memcpy(copy, text, n + 1);
    const char *found = strchr(units, copy[n - 1]);
    *unit = found ? (int)(found - units) : -1;
    if (found)
        copy[n - 1] = '\0';
    return cli_parse_number(copy, number) && *number >= 0;
}

bool cli_parse_duration(const char *text, double *seconds)
{
    static const double scale[] = { 1, 60, 3600, DAY_S, 7.0 * (double)DAY_S };
    double number;
    int unit;
    if (!number_and_unit(text, "smhdw", &number, &unit))
        return false;
    *seconds = unit < 0 ? number : number * scale[unit];
    return *seconds < 1e12;
}

bool cli_parse_size(const char *text, int64_t *bytes)
{
    double number;
    int unit;
    if (!number_and_unit(text, "KMGT", &number, &unit))
        return false;
    for (int i = -1; i < unit; i++)
        number *= 1024;
    if (unit < 0 && number != floor(number))
        return false;
    if (number >= 9e18)
        return false;
    *bytes = (int64_t)number;
    return true;
}

static bool digits(const char **p, int n, int *out)
{
    *out = 0;
    for (int i = 0; i < n; i++, (*p)++) {
        if (**p < '0' || **p > '9')
            return false;
        *out = *out * 10 + (**p - '0');
    }
    return true;
}

static bool leap(int y)
{
    return y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
}

static int64_t days_since_1970(int y, int m, int d)
{
    static const int before[] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 };
    int64_t years = y - 1;
    int64_t days = years * 365 + years / 4 - years / 100 + years / 400 + before[m - 1] + d - 1;
    return days + (m > 2 && leap(y)) - 719162;
}

/* YYYY-MM-DD, YYYYMMDD or YYYY-Www-D; moves *p behind it. */
static bool read_day(const char **p, int64_t *days)
{
    static const int lengths[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    int y, m, d;
    if (!digits(p, 4, &y) || y < 1)
        return false;
    bool dashes = **p == '-';
    *p += dashes;
    if (**p == 'W') {
        int week, weekday;
        (*p)++;
        if (!digits(p, 2, &week) || (dashes && *(*p)++ != '-') || !digits(p, 1, &weekday) ||
            week < 1 || week > 53 || weekday < 1 || weekday > 7)
            return false;
        int64_t fourth = days_since_1970(y, 1, 4); /* always in week 1 */
        int64_t monday = fourth - ((fourth + 3) % 7 + 7) % 7;
        *days = monday + (week - 1) * 7 + weekday - 1;
        return true;
    }
    if (!digits(p, 2, &m) || (dashes && *(*p)++ != '-') || !digits(p, 2, &d) || m < 1 || m > 12)
        return false;
    if (d < 1 || d > lengths[m - 1] + (m == 2 && leap(y)))
        return false;
    *days = days_since_1970(y, m, d);
    return true;
}

/* "+02:00", "-0530", "Z" or nothing, which leave *offset_s at 0. */
static bool read_zone(const char **p, int64_t *offset_s)
{
    int h, m = 0;
    if (**p == '\0')
        return true;
    if (**p == 'Z' || **p == 'z') {
        (*p)++;
        return true;
    }
    int sign = **p == '-' ? -1 : 1;
    if (**p != '+' && **p != '-')
        return false;
    (*p)++;
    if (!digits(p, 2, &h))
        return false;
    if (**p == ':')
        (*p)++;
    if (**p && !digits(p, 2, &m))
        return false;
    *offset_s = sign * (h * 3600 + m * 60);
    return h < 24 && m < 60;
}

static bool read_clock(const char **p, int64_t *micros)
{
    int h, m = 0, s = 0;
    int64_t fraction = 0, scale = US_PER_S / 10;
    if (!digits(p, 2, &h))
        return false;
    if (**p == ':' && ((*p)++, !digits(p, 2, &m)))
        return false;
    if (**p == ':' && ((*p)++, !digits(p, 2, &s)))
        return false;
    if (**p == '.')
        for ((*p)++; **p >= '0' && **p <= '9'; (*p)++, scale /= 10)
            fraction += scale * (**p - '0');
    *micros = ((int64_t)h * 3600 + m * 60 + s) * US_PER_S + fraction;
    return h < 24 && m < 60 && s < 60;
}

bool cli_parse_date(const char *text, int64_t now_us, int64_t *time_us)
{
    char copy[CLI_SHORT_TEXT];
    while (*text == ' ')
        text++;
    size_t n = strlen(text);
    while (n && text[n - 1] == ' ')
        n--;
    if (n == 0 || n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    int64_t today =
        now_us - ((now_us % (DAY_S * US_PER_S)) + DAY_S * US_PER_S) % (DAY_S * US_PER_S);
    double seconds;
    if (strcmp(copy, "now") == 0)
        return *time_us = now_us, true;
    if (strcmp(copy, "today") == 0)
        return *time_us = today, true;
    if (strcmp(copy, "yesterday") == 0)
        return *time_us = today - DAY_S * US_PER_S, true;
    if (copy[0] == '-' && cli_parse_duration(copy + 1, &seconds))
        return *time_us = now_us - (int64_t)(seconds * 1e6), true;
    const char *p = copy;
    int64_t days, micros = 0, offset_s = 0;
    if (!read_day(&p, &days))
        return false;
    if (*p && ((*p != 'T' && *p != 't' && *p != ' ') || (p++, !read_clock(&p, &micros)) ||
               !read_zone(&p, &offset_s)))
        return false;
    *time_us = (days * DAY_S - offset_s) * US_PER_S + micros;
    return *p == '\0';
}

/* ---- names ---- */

size_t cli_edits(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    size_t rows[3][64];
    if (n >= 64 || m >= 64)
        return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[n % 3][m];
}

/* The one name that has `word` among its parts: --rank for --lora-rank. */
static const char *name_with_part(const char *word, const char *const *names, size_t n)
{
    const char *found = NULL;
    size_t len = strlen(word);
    for (size_t i = 0; len >= 2 && i < n; i++)
        for (const char *at = names[i]; (at = strstr(at, word)); at++) {
            bool whole = (at == names[i] || at[-1] == '-') && (!at[len] || at[len] == '-');
            if (whole && found && found != names[i])
                return NULL;
            if (whole)
                found = names[i];
        }
    return found;
}

const char *cli_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 > 2 ? strlen(word) / 3 : 2;
    for (size_t i = 0; i < n; i++) {
        /* Beginnings are not taken for the whole, but they are what was meant. */
        bool begins = strlen(word) > 1 && strncmp(names[i], word, strlen(word)) == 0;
        size_t d = begins ? 1 : cli_edits(word, names[i]);
        if (d < strlen(names[i]) && (best ? d < least : d <= least)) {
            best = names[i];
            least = d;
        }
    }
    return best ? best : name_with_part(word, names, n);
}

/* ---- cells ---- */

/* Reads one UTF-8 character; returns its length, 1 and U+FFFD for a bad byte. */
static size_t read_char(const char *p, uint32_t *c)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xC2 ? 0
               : s[0] < 0xE0 ? 2
               : s[0] < 0xF0 ? 3
               : s[0] < 0xF5 ? 4
                             : 0;
    *c = n == 1 ? s[0] : n == 2 ? s[0] & 0x1Fu : n == 3 ? s[0] & 0xFu : s[0] & 7u;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            n = 0;
            break;
        }
        *c = *c << 6 | (s[i] & 0x3Fu);
    }
    if ((n == 3 && (*c < 0x800 || (*c >= 0xD800 && *c < 0xE000))) ||
        (n == 4 && (*c < 0x10000 || *c > 0x10FFFF)))
        n = 0; /* too long a form, half a pair, or beyond the last */
    if (n == 0) {
        *c = 0xFFFD;
        return 1;
    }
    return n;
}

/* Cells of one character: 0 for combining marks, 2 for East Asian wide ones and emoji. */
static size_t char_cells(uint32_t c)
{
    static const uint32_t wide[][2] = {
        { 0x1100, 0x115F },   { 0x231A, 0x231B },   { 0x2329, 0x232A },   { 0x23E9, 0x23EC },
        { 0x25FD, 0x25FE },   { 0x2614, 0x2615 },   { 0x2648, 0x2653 },   { 0x26AA, 0x26AB },
        { 0x26BD, 0x26BE },   { 0x2705, 0x2705 },   { 0x270A, 0x270B },   { 0x2728, 0x2728 },
        { 0x274C, 0x274C },   { 0x2753, 0x2755 },   { 0x2795, 0x2797 },   { 0x2B1B, 0x2B1C },
        { 0x2E80, 0x303E },   { 0x3041, 0xA4CF },   { 0xA960, 0xA97C },   { 0xAC00, 0xD7A3 },
        { 0xF900, 0xFAFF },   { 0xFE10, 0xFE19 },   { 0xFE30, 0xFE6F },   { 0xFF00, 0xFF60 },
        { 0xFFE0, 0xFFE6 },   { 0x17000, 0x18CD5 }, { 0x1B000, 0x1B2FB }, { 0x1F004, 0x1F004 },
        { 0x1F0CF, 0x1F0CF }, { 0x1F18E, 0x1F18E }, { 0x1F191, 0x1F19A }, { 0x1F200, 0x1F320 },
        { 0x1F32D, 0x1F335 }, { 0x1F337, 0x1F37C }, { 0x1F37E, 0x1F393 }, { 0x1F3A0, 0x1F3CA },
        { 0x1F3E0, 0x1F3F0 }, { 0x1F3F8, 0x1F43E }, { 0x1F440, 0x1F440 }, { 0x1F442, 0x1F4FC },
        { 0x1F4FF, 0x1F53D }, { 0x1F550, 0x1F567 }, { 0x1F5FB, 0x1F64F }, { 0x1F680, 0x1F6C5 },
        { 0x1F6D0, 0x1F6D2 }, { 0x1F6EB, 0x1F6EC }, { 0x1F6F4, 0x1F6FC }, { 0x1F7E0, 0x1F7EB },
        { 0x1F90C, 0x1F9FF }, { 0x1FA70, 0x1FAFF }, { 0x20000, 0x3FFFD },
    };
    if ((c >= 0x300 && c <= 0x36F) || (c >= 0x200B && c <= 0x200F) ||
        (c >= 0xFE00 && c <= 0xFE0F) || (c >= 0x1AB0 && c <= 0x1AFF) ||
        (c >= 0x20D0 && c <= 0x20FF))
        return 0;
    if (c < 0x1100)
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (c >= wide[i][0] && c <= wide[i][1])
            return 2;
    return 1;
}

size_t cli_width(const char *text)
{
    size_t cells = 0;
    for (uint32_t c; *text; cells += char_cells(c))
        text += read_char(text, &c);
    return cells;
}

size_t cli_cut(const char *text, size_t cells)
{
    size_t at = 0;
    for (size_t used = 0; text[at];) {
        uint32_t c;
        size_t n = read_char(text + at, &c), more = char_cells(c);
        if (used + more > cells)
            break;
        used += more;
        at += n;
    }
    return at;
}

bool cli_is_utf8(const char *text, size_t len)
{
    uint32_t c;
    for (size_t i = 0; i < len;) {
        char four[5] = "";
        memcpy(four, text + i, len - i < 4 ? len - i : 4);
        size_t n = read_char(four, &c);
        if (n == 1 && (unsigned char)four[0] >= 0x80)
            return false;
        i += n;
    }
    return true;
}

char *cli_escape(const char *text)
{
    size_t n = strlen(text), at = 0;
    char *out = malloc(n * 6 + 1);
    if (!out)
        return NULL;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = read_char(text + i, &c);
        unsigned char b = (unsigned char)text[i];
        bool bad = len == 1 && b >= 0x80;
        if (b == '\n')
            at += (size_t)snprintf(out + at, 3, "\\n");
        else if (b == '\t')
            at += (size_t)snprintf(out + at, 3, "\\t");
        else if (bad || b < 0x20 || b == 0x7F)
            at += (size_t)snprintf(out + at, 5, "\\x%02x", b);
        else if (c >= 0x80 && c < 0xA0)
            at += (size_t)snprintf(out + at, 7, "\\u%04x", (unsigned)c);
        else {
            memcpy(out + at, text + i, len);
            at += len;
        }
        i += len;
    }
    out[at] = '\0';
    return out;
}
