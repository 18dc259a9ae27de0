/* retry.h - the retry headers of a response, and HTTP dates. */
#ifndef TKC_CODEC_RETRY_H
#define TKC_CODEC_RETRY_H

#include "base/str.h"

/* HTTP and mail dates: "Wed, 27 May 2026 20:00:00 GMT", zones "+0200", none = UTC, the two obsolete
 * formats. False if it is not a date. */
bool tkc_parse_http_date(tinkc_str text, int64_t *wall_us);

enum { TKC_RETRY_AFTER_MOST_MS = 60 * 1000 };

/* Milliseconds to wait, from retry-after-ms, else retry-after (seconds or a date); NULL = header
 * absent. 0 = no usable value: absent, malformed, not above 0, more than 60 s. */
int64_t tkc_retry_after_ms(const char *retry_after_ms, const char *retry_after,
                           int64_t now_wall_us);
/* The same for those who ask again without end: more than 60 s counts as 60 s. */
int64_t tkc_retry_after_capped_ms(const char *retry_after_ms, const char *retry_after,
                                  int64_t now_wall_us);

/* x-should-retry: 1 = "true", 0 = "false", -1 = absent or another value. */
int tkc_should_retry(const char *value);

/* The value of `name` in pairs of headers; the name is case-insensitive. NULL if absent. */
const char *tkc_header(const char *const *pairs, const char *name);

#endif
