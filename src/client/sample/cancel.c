/* cancel.c - reports cancelled samples to the service, one by one, in the background.
 *
 * Without it the service works on them until it notices that nobody asks any more. Thousands may be
 * cancelled at once: only as many are reported at a time as the service allows.
 *
 * May touch: the client's I/O side. Must not: hold a future, or fail anything.
 */
#include "client/sample/cancel.h"

#include "client/call/call.h"
#include "base/str.h"
#include "wire/messages.h"

enum { MOST_WAITING = 10000 };

struct tkc_errand {
    struct tkc_errand *next;
    tinkc_client *client;
    tkc_call *call;
};

static void report_next(tinkc_client *client);

static void reported(tkc_call *call)
{
    struct tkc_errand *e = call->owner;
    tinkc_client *client = e->client;
    /* Nobody waits for it, and the service notices by itself in the end. */
    if (call->err.code && call->err.code != TINKC_E_CLOSED)
        tkc_client_log(client, TINKC_LOG_DEBUG, "a sample could not be cancelled: %s",
                       call->err.message);
    tkc_call_free(call);
    tkc_release(client->a, e, sizeof *e);
    client->io.cancels.out--;
    report_next(client);
}

static void report_next(tinkc_client *client)
{
    while (client->io.cancels.first && client->io.cancels.out < client->io.cancels.at_once &&
           !client->io.ended) {
        struct tkc_errand *e = client->io.cancels.first;
        client->io.cancels.first = e->next;
        client->io.cancels.waiting--;
        client->io.cancels.out++;
        tkc_call_start(e->call);
    }
}

static tkc_call *new_call(tinkc_client *client, const char *request_id, tinkc_error *err)
{
    tkc_cancel_future_request message = { .request_id = request_id };
    tkc_call_spec spec = tkc_call_to(TKC_EP_CANCEL_FUTURE);
    return tkc_call_with(client, &spec, &tkc_cancel_future_request_type, &message, err);
}

void tkc_cancel_at_service(tinkc_client *client, const char *request_id)
{
    tinkc_error ignored = { 0 };
    /* More than that are not reported: the service notices those by itself. */
    if (client->io.cancels.at_once <= 0 || client->io.ended || !request_id ||
        client->io.cancels.waiting >= MOST_WAITING)
        return;
    struct tkc_errand *e = tkc_zalloc(client->a, sizeof *e, &ignored);
    tkc_call *call = e ? new_call(client, request_id, &ignored) : NULL;
    if (!call) {
        tkc_release(client->a, e, sizeof *e);
        return;
    }
    *e = (struct tkc_errand){ .client = client, .call = call };
    call->owner = e;
    call->done = reported;
    if (client->io.cancels.first)
        client->io.cancels.last->next = e;
    else
        client->io.cancels.first = e;
    client->io.cancels.last = e;
    client->io.cancels.waiting++;
    report_next(client);
}

void tkc_cancels_end(tinkc_client *client)
{
    while (client->io.cancels.first) {
        struct tkc_errand *e = client->io.cancels.first;
        client->io.cancels.first = e->next;
        tkc_call_free(e->call);
        tkc_release(client->a, e, sizeof *e);
    }
}
