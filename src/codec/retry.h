/* retry.h - what a response's headers say about trying again, and dates as HTTP writes them. */
#ifndef TKC_CODEC_RETRY_H
#define TKC_CODEC_RETRY_H

#include "base/str.h"

/* HTTP and mail dates: "Wed, 27 May 2026 20:00:00 GMT", zones "+0200", none = UTC, the two obsolete
 * forms. False if it is none. */
bool tkc_parse_http_date(tinkc_str text, int64_t *wall_us);

/* Milliseconds to wait by retry-after-ms, else retry-after (seconds or a date); NULL = header
 * absent. 0 = they say nothing usable: absent, malformed, not above 0, more than 60 s. */
int64_t tkc_retry_after_ms(const char *retry_after_ms, const char *retry_after,
                           int64_t now_wall_us);

/* x-should-retry: 1 = "true", 0 = "false", -1 = says nothing. */
int tkc_should_retry(const char *value);

/* `name` among pairs of headers, in any case; NULL if it is not there. */
const char *tkc_header(const char *const *pairs, const char *name);

#endif
