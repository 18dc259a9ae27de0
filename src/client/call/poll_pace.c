/* poll_pace.c - when to poll again: spacing, back-off, what the service asks for.
 *
 * May touch: the client's billing state. Must not: send anything, know what is polled for.
 */
#include "client/call/poll_pace.h"

#include "base/str.h"
#include "codec/retry.h"
#include "wire/answer.h"

enum {
    BILLING_SLEEP_MS = 5000,
    BACKOFF_CAP_MS = 30 * 1000,
    BAD_REQUEST_BUDGET = 3,
    SPACING_MIN_MS = 100,
    SPACING_MAX_MS = 1000
};

void tkc_poll_begins(tkc_poll_pace *pace, tinkc_client *client)
{
    pace->begun_ms = tkc_now_ms(client->clock);
}

int64_t tkc_poll_soon_ms(tkc_poll_pace *pace, tinkc_client *client)
{
    int64_t took = tkc_now_ms(client->clock) - pace->begun_ms;
    /* The service held the poll: asking again at once does not spin. */
    if (took >= SPACING_MAX_MS) {
        pace->spacing_ms = 0;
        return 0;
    }
    int64_t spacing = pace->spacing_ms ? pace->spacing_ms * 2 : SPACING_MIN_MS;
    pace->spacing_ms = spacing < SPACING_MAX_MS ? spacing : SPACING_MAX_MS;
    return pace->spacing_ms > took ? pace->spacing_ms - took : 0;
}

/* What the service asked for (Retry-After) goes before our own pause: it knows when it has room. More
 * than a minute counts as one: there is another poll after this. */
static int64_t retry_after_ms_of(tinkc_client *client, const tkc_call *call)
{
    if (call->status == 0)
        return 0; /* the answer was cut off */
    return tkc_retry_after_capped_ms(tkc_call_header(call, "retry-after-ms"),
                                     tkc_call_header(call, "retry-after"),
                                     tkc_wall_us(client->clock));
}

static int64_t backoff_ms(tkc_poll_pace *pace, tinkc_client *client, const tkc_call *call)
{
    int64_t ms = pace->failures < 5 ? (int64_t)1000 << pace->failures : BACKOFF_CAP_MS;
    /* Failures are counted even when the service says when: without the header the back-off
     * continues. */
    int64_t asked = retry_after_ms_of(client, call);
    pace->failures++;
    return asked > 0 ? asked : ms;
}

/* At once, unless a 503 says when. */
static int64_t server_failed_ms(tkc_poll_pace *pace, tinkc_client *client, const tkc_call *call)
{
    int64_t asked = call->status == 503 ? retry_after_ms_of(client, call) : 0;
    return asked > 0 ? asked : tkc_poll_soon_ms(pace, client);
}

/* A 400 whose body is a JSON error says so once and for all; any other may be a proxy's. */
static int64_t bad_request_ms(tkc_poll_pace *pace, tinkc_client *client, const tkc_call *call)
{
    tkc_error_body text = { 0 };
    tinkc_error ignored = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, client->a, 1 << 20);
    size_t len = call->body.len < 65536 ? call->body.len : 65536;
    tinkc_str body = tkc_strn((const char *)call->body.data, len);
    (void)tkc_error_body_read(tkc_str_trim(body), &arena, &text, &ignored);
    tkc_arena_free(&arena);
    if (text.is_json || pace->bad_requests >= BAD_REQUEST_BUDGET)
        return TKC_POLL_NO_MORE;
    pace->bad_requests++;
    return tkc_poll_soon_ms(pace, client);
}

bool tkc_poll_is_lost(const tkc_call *call)
{
    return call->err.code == TINKC_E_MEMORY || call->err.code == TINKC_E_CLOSED ||
           call->err.code == TINKC_E_BAD_RESPONSE;
}

int64_t tkc_poll_retry_ms(tkc_poll_pace *pace, tinkc_client *client, const tkc_call *call,
                          tinkc_future *f)
{
    /* What the pool's rule has made of a bare 400 (call.c) counts as no connection. */
    int32_t status = call->err.code == TINKC_E_CONNECTION ? 0 : call->status;
    if (tkc_poll_is_lost(call))
        return TKC_POLL_NO_MORE;
    if (tkc_billing_pauses(client, status, tkc_str(call->err.message), f))
        return BILLING_SLEEP_MS;
    if (client->no_retries)
        return TKC_POLL_NO_MORE;
    if (status == 0 || status == 429)
        return backoff_ms(pace, client, call);
    /* An answer ends the row of failures; when that of bad requests ends, its owner decides. */
    pace->failures = 0;
    if (status >= 500)
        return server_failed_ms(pace, client, call);
    return status == 400 ? bad_request_ms(pace, client, call) : TKC_POLL_NO_MORE;
}
