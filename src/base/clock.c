/* clock.c - the machine's clock and randomness, and times as text. Touches no state of ours. */
#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <time.h>

#include "base/platform.h"
#include "base/str.h"

int64_t tkc_monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t tkc_thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t real_now_ms(void *self)
{
    (void)self;
    return tkc_monotonic_ns() / 1000000;
}

static int64_t real_wall_us(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static uint64_t real_random(void *self)
{
    (void)self;
    uint64_t value;
    if (tkc_random_bytes(&value, sizeof value))
        return value;
    /* Reached only on an old kernel early at boot; the time alone still spreads retries. */
    value = (uint64_t)tkc_monotonic_ns() * 0x9E3779B97F4A7C15u;
    return value ^ value >> 29;
}

static void nothing(void *self)
{
    (void)self;
}

static void real_attach(void *self, void (*wake)(void *arg), void *arg)
{
    (void)self, (void)wake, (void)arg; /* real time never jumps */
}

static void real_detach(void *self, void *arg)
{
    (void)self, (void)arg;
}

const tinkc_clock *tkc_clock_real(void)
{
    static const tinkc_clock real = { .acquire = nothing,
                                      .release = nothing,
                                      .now_ms = real_now_ms,
                                      .wall_us = real_wall_us,
                                      .random = real_random,
                                      .attach = real_attach,
                                      .detach = real_detach };
    return &real;
}

double tkc_random_unit(const tinkc_clock *clock)
{
    return (double)(tkc_random(clock) >> 11) * 0x1p-53;
}

/* Both directions use Howard Hinnant's algorithm: years begin in March, eras have 400 years. */
void tkc_civil_from_days(int64_t days, int32_t *year, int32_t *month, int32_t *day)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    int64_t of_era = days - era * 146097;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t m = (5 * of_year + 2) / 153;
    *day = (int32_t)(of_year - (153 * m + 2) / 5 + 1);
    *month = (int32_t)(m < 10 ? m + 3 : m - 9);
    *year = (int32_t)(year_of_era + era * 400 + (*month <= 2));
    assert(*day >= 1 && *day <= 31 && *month >= 1 && *month <= 12);
}

int64_t tkc_days_from_civil(int32_t year, int32_t month, int32_t day)
{
    assert(month >= 1 && month <= 12); /* callers check dates from outside */
    int64_t y = (int64_t)year - (month <= 2);
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t year_of_era = y - era * 400;
    int64_t of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    int64_t of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    return era * 146097 + of_era - 719468;
}

void tkc_format_time(int64_t wall_us, bool with_micros, char out[TKC_TIME_TEXT])
{
    int64_t seconds = wall_us / 1000000, micros = wall_us % 1000000;
    if (micros < 0) {
        micros += 1000000;
        seconds--;
    }
    int64_t days = seconds / 86400, of_day = seconds % 86400;
    if (of_day < 0) {
        of_day += 86400;
        days--;
    }
    int32_t year, month, day;
    assert(micros >= 0 && micros < 1000000 && of_day >= 0 && of_day < 86400);
    tkc_civil_from_days(days, &year, &month, &day);
    int n = snprintf(out, TKC_TIME_TEXT, "%04d-%02d-%02dT%02d:%02d:%02d", (int)year, (int)month,
                     (int)day, (int)(of_day / 3600), (int)(of_day / 60 % 60), (int)(of_day % 60));
    if (n > 0 && n < TKC_TIME_TEXT - 9)
        (void)snprintf(out + n, (size_t)(TKC_TIME_TEXT - n), with_micros ? ".%06dZ" : "Z",
                       (int)micros);
}

/* Reads exactly n digits. */
static bool take_digits(tinkc_str *s, size_t n, int32_t *out)
{
    int64_t value;
    assert(n > 0 && n < 10); /* the value fits */
    if (s->len < n || s->data[0] == '-' || !tkc_parse_i64(tkc_strn(s->data, n), &value))
        return false;
    *s = tkc_strn(s->data + n, s->len - n);
    *out = (int32_t)value;
    return true;
}

static bool take_char(tinkc_str *s, const char *any_of)
{
    if (s->len == 0 || s->data[0] == '\0' || !strchr(any_of, s->data[0]))
        return false;
    *s = tkc_strn(s->data + 1, s->len - 1);
    return true;
}

static bool take_fraction(tinkc_str *s, int64_t *micros)
{
    *micros = 0;
    if (!take_char(s, "."))
        return true;
    int64_t scale = 100000;
    size_t digits = 0;
    for (; s->len && s->data[0] >= '0' && s->data[0] <= '9'; digits++) {
        *micros += scale * (s->data[0] - '0');
        scale /= 10;
        *s = tkc_strn(s->data + 1, s->len - 1);
    }
    return digits > 0;
}

static bool take_zone(tinkc_str *s, int64_t *offset_s)
{
    int32_t hours, minutes;
    *offset_s = 0;
    if (s->len == 0 || take_char(s, "Zz"))
        return true;
    bool west = s->data[0] == '-';
    if (!take_char(s, "+-") || !take_digits(s, 2, &hours))
        return false;
    (void)take_char(s, ":");
    if (!take_digits(s, 2, &minutes) || hours > 23 || minutes > 59)
        return false;
    *offset_s = ((int64_t)hours * 60 + minutes) * (west ? -60 : 60);
    return true;
}

bool tkc_parse_time(const char *text, size_t len, int64_t *wall_us)
{
    tinkc_str s = { text, len };
    int32_t year, month, day, hour, minute, second;
    int64_t micros, offset_s;
    if (!take_digits(&s, 4, &year) || !take_char(&s, "-") || !take_digits(&s, 2, &month) ||
        !take_char(&s, "-") || !take_digits(&s, 2, &day) || !take_char(&s, "Tt ") ||
        !take_digits(&s, 2, &hour) || !take_char(&s, ":") || !take_digits(&s, 2, &minute) ||
        !take_char(&s, ":") || !take_digits(&s, 2, &second) || !take_fraction(&s, &micros) ||
        !take_zone(&s, &offset_s) || s.len != 0)
        return false;
    if (month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60)
        return false;
    int64_t days = tkc_days_from_civil(year, month, day);
    int32_t y, m, d;
    tkc_civil_from_days(days, &y, &m, &d);
    if (d != day) /* no such day in this month, such as April 31 */
        return false;
    int64_t seconds = days * 86400 + hour * 3600 + minute * 60 + second - offset_s;
    *wall_us = seconds * 1000000 + micros;
    return true;
}
