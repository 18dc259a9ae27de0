/* sampler_join.c - a copy of a sampler asks the service for its place among the copies.
 *
 * Samples are numbered within their sampling session, and a copy in another process must not use
 * the numbers of the original or of another copy. Where the service's settings say so it hands out
 * the blocks; elsewhere a copy takes one at random (sampler.c). The first sample asks; those that
 * come meanwhile wait. A failure goes to all that wait, and the next sample asks again.
 *
 * May touch: the sampler's I/O side.
 */
#include <assert.h>
#include <string.h>

#include "client/sample/sampler.h"
#include "base/str.h"

static void unlink_wait(tinkc_sampler *s, tkc_join_wait *wait)
{
    assert(wait->waiting && (wait->prev ? wait->prev->next : s->io.joiners) == wait);
    if (wait->prev)
        wait->prev->next = wait->next;
    else
        s->io.joiners = wait->next;
    if (wait->next)
        wait->next->prev = wait->prev;
    else
        s->io.last_joiner = wait->prev;
    wait->waiting = false;
}

/* Each may end its operation, or another one's. Those who come meanwhile are not meant. */
static void tell_all(tinkc_sampler *s, const tinkc_error *err)
{
    size_t n = 0;
    for (tkc_join_wait *wait = s->io.joiners; wait; wait = wait->next)
        n++;
    while (n-- && s->io.joiners) {
        tkc_join_wait *wait = s->io.joiners;
        unlink_wait(s, wait);
        wait->ready(wait, err);
    }
}

static bool read_place(const tkc_call *call, int64_t *first, tinkc_error *err)
{
    tkc_join_sampling_session_response answer = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 1 << 16);
    bool ok = tkc_message_decode(&tkc_join_sampling_session_response_type,
                                 tkc_strn((const char *)call->body.data, call->body.len),
                                 TINKC_E_BAD_RESPONSE, &arena, &answer, err);
    tkc_arena_free(&arena);
    if (ok && (answer.client_counter < 1 ||
               __builtin_mul_overflow(answer.client_counter, (int64_t)TKC_SAMPLER_BLOCK, first)))
        ok = tkc_fail(err, TINKC_E_BAD_RESPONSE, "join_sampling_session: no place is left");
    return ok;
}

static void joined(tkc_call *call)
{
    tinkc_sampler *s = call->owner;
    tinkc_error err = call->err;
    int64_t first = 0;
    assert(s->io.join_call == call && s->io.joiners);
    s->io.join_call = NULL;
    if (!err.code && read_place(call, &first, &err)) {
        atomic_store(&s->next_request, first);
        s->io.needs_place = false;
    }
    tkc_call_free(call);
    tkc_sampler_keep(s); /* those who wait may be all that holds it */
    tell_all(s, err.code ? &err : NULL);
    tkc_sampler_drop(s);
}

static bool ask_place(tinkc_sampler *s, tinkc_error *err)
{
    tkc_join_sampling_session_request message = { .sampling_session_id = s->id };
    tkc_call_spec spec = tkc_call_to(TKC_EP_JOIN_SAMPLING_SESSION);
    s->io.join_call =
        tkc_call_with(s->client, &spec, &tkc_join_sampling_session_request_type, &message, err);
    if (!s->io.join_call)
        return false;
    s->io.join_call->owner = s;
    s->io.join_call->done = joined;
    tkc_call_start(s->io.join_call);
    return true;
}

bool tkc_sampler_join(tinkc_sampler *s, tkc_join_wait *wait, tinkc_error *err)
{
    assert(tkc_loop_is_current(s->client->loop) && !wait->waiting && wait->ready);
    if (!s->io.needs_place)
        return true;
    if (!s->io.join_call && !ask_place(s, err))
        return false;
    wait->next = NULL;
    wait->prev = s->io.last_joiner;
    if (wait->prev)
        wait->prev->next = wait;
    else
        s->io.joiners = wait;
    s->io.last_joiner = wait;
    wait->waiting = true;
    return false;
}

void tkc_sampler_join_end(tinkc_sampler *s, tkc_join_wait *wait)
{
    if (!wait->waiting)
        return;
    unlink_wait(s, wait);
    if (!s->io.joiners) { /* nobody waits for it any more */
        tkc_call_free(s->io.join_call);
        s->io.join_call = NULL;
    }
}
