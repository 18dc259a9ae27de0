/* poll_pace.h - when to poll again (docs/failures.md, retry layer "poll").
 *
 * Polls for one result (promise.c) and for a whole sampling session (session_poll.c) follow the
 * same rules; what an answer means is theirs.
 */
#ifndef TKC_API_POLL_PACE_H
#define TKC_API_POLL_PACE_H

#include "client/core/client_priv.h"

/* All zero = no poll yet. */
typedef struct tkc_poll_pace {
    int64_t begun_ms, spacing_ms;
    int32_t failures;     /* in a row: no connection, 429 */
    int32_t bad_requests; /* bare ones, since the last answer that could be read */
} tkc_poll_pace;

/* A poll is sent now. */
void tkc_poll_begins(tkc_poll_pace *, tinkc_client *);
/* At once, unless answers come so quickly that this would be a busy loop: then starts of polls are
 * spaced, from 100 ms up to 1 s. */
int64_t tkc_poll_soon_ms(tkc_poll_pace *, tinkc_client *);
/* A poll failed, with another status than 408 and 410: how long until the next; TKC_POLL_NO_MORE = it
 * makes no sense. f (may be NULL) is whose billing event it is. */
enum { TKC_POLL_NO_MORE = -1 };
int64_t tkc_poll_retry_ms(tkc_poll_pace *, tinkc_client *, const tkc_call *, tinkc_future *f);
/* It failed here, not at the service: whatever its status is, another poll fails too. */
bool tkc_poll_is_lost(const tkc_call *);

#endif
