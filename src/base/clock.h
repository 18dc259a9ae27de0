/* clock.h - time and random numbers: the machine's, or those of a test. */
#ifndef TKC_BASE_CLOCK_H
#define TKC_BASE_CLOCK_H

#include "tinkc/sys/transport.h"

/* The machine's clock and random numbers. Static. */
const tinkc_clock *tkc_clock_real(void);

static inline int64_t tkc_now_ms(const tinkc_clock *clock)
{
    return clock->now_ms(clock->self);
}
static inline int64_t tkc_wall_us(const tinkc_clock *clock)
{
    return clock->wall_us(clock->self);
}
static inline uint64_t tkc_random(const tinkc_clock *clock)
{
    return clock->random(clock->self);
}
/* Uniform in [0, 1). */
double tkc_random_unit(const tinkc_clock *clock);

/* Nanoseconds of the machine's monotonic clock: for measuring only. Decisions use a tinkc_clock. */
int64_t tkc_monotonic_ns(void);
/* Nanoseconds that the calling thread has computed: other programs on the machine do not count. */
int64_t tkc_thread_cpu_ns(void);

/* "2026-11-15T09:30:00Z" or with microseconds ("...00.123456Z"); terminated. */
enum { TKC_TIME_TEXT = 32 };
void tkc_format_time(int64_t wall_us, bool with_micros, char out[TKC_TIME_TEXT]);
/* RFC 3339 with any offset, a space instead of T, or no zone (then UTC). False if malformed. */
bool tkc_parse_time(const char *text, size_t len, int64_t *wall_us);

/* Civil date from days since 1970 and back; proleptic Gregorian. */
void tkc_civil_from_days(int64_t days, int32_t *year, int32_t *month, int32_t *day);
int64_t tkc_days_from_civil(int32_t year, int32_t month, int32_t day);

#endif
