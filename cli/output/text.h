/* text.h - numbers, sizes, times and names as people read and write them.
 *
 * Pure functions, no program state; vectors in tests/cli.
 */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_SHORT_TEXT = 64 };

/* "1.5 MB"; negative is "N/A". */
void cli_format_size(int64_t bytes, char out[CLI_SHORT_TEXT]);
/* "3 hours ago", "in 2 weeks", "2026-01-31". */
void cli_format_relative(int64_t time_us, int64_t now_us, char out[CLI_SHORT_TEXT]);
/* "2026-11-15T09:30:00Z", with a fraction only if there is one. */
void cli_format_iso(int64_t time_us, char out[CLI_SHORT_TEXT]);
/* The Python tool's form: "2025-01-01 12:00:00.123456+00:00". */
void cli_format_python_time(int64_t time_us, char out[CLI_SHORT_TEXT]);
void cli_format_local(int64_t time_us, char out[CLI_SHORT_TEXT]);
/* "1m20s", "2h05m", "45s". */
void cli_format_duration(double seconds, char out[CLI_SHORT_TEXT]);
/* Shortest digits that read back as the same double, as Python prints them. */
void cli_format_number(double value, char out[CLI_SHORT_TEXT]);
/* 1234567 as "1,234,567". */
void cli_format_count(int64_t value, char out[CLI_SHORT_TEXT]);

bool cli_parse_int(const char *text, int64_t *out);
bool cli_parse_number(const char *text, double *out);
bool cli_parse_duration(const char *text, double *seconds);
bool cli_parse_size(const char *text, int64_t *bytes);
/* Any ISO 8601 date or date-time of cli.md, now, today, yesterday, -DURATION. */
bool cli_parse_date(const char *text, int64_t now_us, int64_t *time_us);

int64_t cli_now_us(void);
int64_t cli_now_ms(void); /* monotonic */
double cli_seconds_since(int64_t begun_ms);
int64_t cli_ms_of(double seconds); /* whole milliseconds */

/* Edits (insert, delete, replace, swap neighbours) between two words; SIZE_MAX from 64 bytes on. */
size_t cli_edits(const char *a, const char *b);
/* Which of the names (count of them) is nearest to `word`; NULL if none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* Terminal cells that UTF-8 text takes: wide characters count two. */
size_t cli_width(const char *text);
/* Where `cells` cells of the text end, in bytes. */
size_t cli_cut(const char *text, size_t cells);
/* Whether all of it is UTF-8. */
bool cli_is_utf8(const char *text, size_t len);
/* Copies with control characters and invalid bytes shown escaped; yours to free. */
char *cli_escape(const char *text);

char *cli_printf(const char *format, ...) __attribute__((format(printf, 1, 2))); /* yours */

#endif
