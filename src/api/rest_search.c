/* rest_search.c - sessions: looked for, and ended.
 *
 * May touch: its arguments, wire messages, tkc_rest_call. Must not: know of threads, sockets or
 * retries.
 */
#include <string.h>

#include "api/client_priv.h"
#include "api/rest_priv.h"
#include "base/json_read.h"
#include "base/str.h"

/* ---- ending ---- */

tinkc_future *tinkc_session_finish(tinkc_client *client, const char *session_id, int32_t how,
                                   const char *detail, tinkc_error *err)
{
    static const tkc_rest_class class = { "session_finish", "nothing" };
    static const char *const names[] = { "success", "errored", "interrupted" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_check_id(session_id, "session_id", err))
        return NULL;
    if (how < TINKC_FINISH_SUCCESS || how > TINKC_FINISH_INTERRUPTED) {
        tkc_fail(err, TINKC_E_ARGUMENT, "how %d is not a TINKC_FINISH_* value", how);
        return NULL;
    }
    tkc_finish_session_request msg = { .reason = { .type = names[how] }, .detail = detail };
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_FINISH_SESSION,
                                               .ids = { session_id },
                                               .message = &msg,
                                               .conflict_is_final = true },
                          NULL, err);
}

/* ---- searching: the question ---- */

enum { PAGE_DEFAULT = 50, PAGE_MAX = 200, OWNERS_MAX = 10, N_STATES = 4 };

static const tkc_search_status states[N_STATES] = {
    { "active", NULL }, { "cancelled", NULL }, { "failed", NULL }, { "client_finished", NULL }
};

static size_t list_length(const char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

static bool is_json(const char *text)
{
    tinkc_error bad = { 0 };
    tkc_arena arena;
    tkc_json j;
    tkc_arena_init(&arena, NULL, 1 << 20);
    tkc_json_open(&j, tkc_str(text), &arena, &bad);
    tkc_json_skip(&j);
    bool ok = tkc_json_close(&j);
    tkc_arena_free(&arena);
    return ok;
}

static bool check_search(const tinkc_search_options *o, tinkc_error *err)
{
    const uint32_t all = TINKC_SESSION_ACTIVE | TINKC_SESSION_CANCELLED | TINKC_SESSION_FAILED |
                         TINKC_SESSION_FINISHED;
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "search options: reserved must be zero");
    if (o->page_size < 0 || o->page_size > PAGE_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "page_size: must be from 1 to %d, or 0", PAGE_MAX);
    if (o->states & ~all)
        return tkc_fail(err, TINKC_E_ARGUMENT, "states: unknown bits");
    if (list_length(o->user_metadata) % 2)
        return tkc_fail(err, TINKC_E_ARGUMENT, "user_metadata: a name without a value");
    if (o->cursor && !is_json(o->cursor))
        return tkc_fail(err, TINKC_E_ARGUMENT, "cursor: not from tinkc_session_page_cursor");
    if (o->owners && (!o->owners[0] || list_length(o->owners) > OWNERS_MAX))
        return tkc_fail(err, TINKC_E_ARGUMENT, "owners: must be from 1 to %d", OWNERS_MAX);
    return tkc_scope_name(o->scope, err) != NULL;
}

static tkc_search_owner owner_of(const tinkc_search_options *o)
{
    if (o->owners)
        return (tkc_search_owner){ "user", o->owners };
    return (tkc_search_owner){ o->scope == TINKC_ACCESSIBLE ? "accessible" : "own", NULL };
}

/* ---- the answer ---- */

struct tinkc_session_page {
    const tinkc_session_summary *sessions;
    size_t n;
    const char *cursor;
};

static void fill_session(tinkc_session_summary *to, const tkc_session_summary *from)
{
    const tkc_session_status *status = from->status;
    const tkc_opt_i64 *bytes = &from->checkpoint_storage_bytes;
    *to = (tinkc_session_summary){
        .session_id = from->session_id,
        .created = from->created_at.text,
        .created_us = tkc_time_us(&from->created_at),
        .owner = from->owner,
        .project_id = from->project_id,
        .display_name = from->display_name,
        .state = status ? status->type.text : NULL,
        .state_bit = status && status->type.value > 0 ? status->type.value : 0,
        .checkpoints = from->checkpoints_count,
        .storage_bytes = bytes->is == TKC_GIVEN ? bytes->value : -1,
        .user_metadata = from->user_metadata.pairs,
        .json = from->json,
    };
}

static bool decode_found(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_search_response msg = { 0 };
    if (!tkc_rest_decode(f, answer, &tkc_search_response_type, &msg, err))
        return false;
    tinkc_session_page *found = tkc_arena_zalloc(&f->arena, sizeof *found, err);
    tinkc_session_summary *all =
        found ? tkc_arena_array(&f->arena, msg.sessions.len, sizeof *all, err) : NULL;
    if (!all)
        return false;
    for (size_t i = 0; i < msg.sessions.len; i++)
        fill_session(&all[i], &msg.sessions.data[i]);
    found->sessions = all;
    found->n = msg.sessions.len;
    if (msg.next_cursor.len)
        found->cursor = tkc_arena_str(&f->arena, msg.next_cursor, err);
    f->result = found;
    return !tkc_failed(err);
}

static tinkc_future *ask(tinkc_client *client, const tinkc_search_options *o, tinkc_error *err)
{
    static const tkc_rest_class class = { "session_search", "found" };
    static const char *const no_pairs[] = { NULL };
    tkc_search_status wanted[N_STATES];
    size_t n = 0;
    for (size_t i = 0; i < N_STATES; i++)
        if (o->states & 1u << i)
            wanted[n++] = states[i];
    tkc_search_request msg = {
        .session_id = o->session_id,
        .project_ids = o->project_ids,
        .user_metadata = { .pairs = o->user_metadata ? o->user_metadata : no_pairs },
        .display_name = o->display_name && o->display_name[0] ? o->display_name : NULL,
        .owner = owner_of(o),
        .limit = o->page_size ? o->page_size : PAGE_DEFAULT,
        .cursor = tkc_str(o->cursor),
    };
    if (n) {
        msg.statuses.data = wanted;
        msg.statuses.len = n;
    }
    return tkc_rest_start(
        client, &class, &(tkc_rest_request){ .endpoint = TKC_EP_SEARCH_SESSIONS, .message = &msg },
        decode_found, err);
}

tinkc_future *tinkc_session_search(tinkc_client *client, const tinkc_search_options *options,
                                   tinkc_error *err)
{
    static const tinkc_search_options none;
    const tinkc_search_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_search(o, err))
        return NULL;
    return ask(client, o, err);
}

const tinkc_session_page *tinkc_future_session_page(tinkc_future *f, int64_t timeout_ms,
                                                    tinkc_error *err)
{
    return tkc_future_get(f, "found", timeout_ms, err);
}

size_t tinkc_session_page_count(const tinkc_session_page *found)
{
    return found ? found->n : 0;
}

const tinkc_session_summary *tinkc_session_page_at(const tinkc_session_page *found, size_t i)
{
    return found && i < found->n ? &found->sessions[i] : NULL;
}

const char *tinkc_session_page_cursor(const tinkc_session_page *found)
{
    return found ? found->cursor : NULL;
}
