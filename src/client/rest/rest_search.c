/* rest_search.c - sessions: searched for, and finished; checkpoints searched for.
 *
 * May touch: its arguments, wire messages, the pager. Must not: know of threads, sockets or
 * retries.
 */
#include "client/core/client_priv.h"
#include "client/rest/pager.h"
#include "base/str.h"

enum { N_FINISHES = TINKC_FINISH_INTERRUPTED + 1 };

static const char *const finishes[N_FINISHES] = { "success", "errored", "interrupted" };

/* ---- ending ---- */

tinkc_future *tinkc_session_finish(tinkc_client *client, const char *session_id, int32_t how,
                                   const char *detail, tinkc_error *err)
{
    static const tkc_rest_class class = { "session_finish", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_check_id(session_id, "session_id", err))
        return NULL;
    if (how < TINKC_FINISH_SUCCESS || how > TINKC_FINISH_INTERRUPTED) {
        tkc_fail(err, TINKC_E_ARGUMENT, "how %d is not a TINKC_FINISH_* value", how);
        return NULL;
    }
    tkc_finish_session_request msg = { .reason = { .type = finishes[how] }, .detail = detail };
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

static bool check_search(const tinkc_search_options *o, tinkc_error *err)
{
    const uint32_t all = TINKC_SESSION_ACTIVE | TINKC_SESSION_CANCELLED | TINKC_SESSION_FAILED |
                         TINKC_SESSION_FINISHED;
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) || o->reserved_int)
        return tkc_fail(err, TINKC_E_ARGUMENT, "search options: reserved must be zero");
    if (o->page_size < 0 || o->page_size > PAGE_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "page_size: must be from 1 to %d, or 0", PAGE_MAX);
    if (o->states & ~all)
        return tkc_fail(err, TINKC_E_ARGUMENT, "states: unknown bits");
    if (o->finished_as >> N_FINISHES)
        return tkc_fail(err, TINKC_E_ARGUMENT, "finished_as: unknown bits");
    if (o->finished_as && !(o->states & TINKC_SESSION_FINISHED))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "finished_as: needs TINKC_SESSION_FINISHED in states");
    if (list_length(o->user_metadata) % 2)
        return tkc_fail(err, TINKC_E_ARGUMENT, "user_metadata: a name without a value");
    if (o->limit < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "limit is negative");
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

static void decode_found(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_search_response msg = { 0 };
    const char **ids;
    unsigned char *items;
    if (!tkc_rest_decode(f, answer, &tkc_search_response_type, &msg, err))
        return;
    tkc_page *p =
        tkc_page_new(f, msg.sessions.len, sizeof(tinkc_session_summary), &ids, &items, err);
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        fill_session((tinkc_session_summary *)(void *)items + i, &msg.sessions.data[i]);
        ids[i] = msg.sessions.data[i].session_id;
    }
    p->cursor = msg.next_cursor;
}

static tinkc_future *ask_sessions(tkc_pager *p, int64_t limit, tinkc_error *err)
{
    static const tkc_rest_class class = { "search_list", "page" };
    static const char *const no_pairs[] = { NULL };
    const tinkc_search_options *o = p->question;
    tkc_search_status wanted[N_STATES];
    const char *reasons[N_FINISHES + 1];
    size_t n = 0, n_reasons = 0;
    for (size_t i = 0; i < N_FINISHES; i++)
        if (o->finished_as & 1u << i)
            reasons[n_reasons++] = finishes[i];
    reasons[n_reasons] = NULL;
    for (size_t i = 0; i < N_STATES; i++)
        if (o->states & 1u << i)
            wanted[n++] = states[i];
    if (n_reasons) /* of the last state, "client_finished": check_search has seen to it */
        wanted[n - 1].reasons = reasons;
    tkc_search_request msg = {
        .session_id = o->session_id,
        .project_ids = o->project_ids,
        .user_metadata = { .pairs = o->user_metadata ? o->user_metadata : no_pairs },
        .display_name = o->display_name && o->display_name[0] ? o->display_name : NULL,
        .owner = owner_of(o),
        .limit = limit,
        .cursor = tkc_pager_cursor(p),
    };
    if (n) {
        msg.statuses.data = wanted;
        msg.statuses.len = n;
    }
    return tkc_rest_start(
        p->client, &class,
        &(tkc_rest_request){ .endpoint = TKC_EP_SEARCH_SESSIONS, .message = &msg }, decode_found,
        err);
}

/* ---- the list ---- */

struct tinkc_search {
    tkc_pager p;
};

static const char *const *copy_list(tkc_arena *arena, const char *const *list, tinkc_error *err)
{
    size_t n = list_length(list);
    const char **copy = list ? tkc_arena_array(arena, n + 1, sizeof *copy, err) : NULL;
    for (size_t i = 0; copy && i < n; i++)
        if (!(copy[i] = tkc_arena_cstr(arena, list[i], err)))
            return NULL;
    return copy;
}

/* Pages are asked for later, so nothing of the caller's may be pointed at. */
static const tinkc_search_options *copy_options(tkc_arena *arena, const tinkc_search_options *o,
                                                tinkc_error *err)
{
    tinkc_search_options *copy = tkc_arena_alloc(arena, sizeof *copy, err);
    if (!copy)
        return NULL;
    *copy = *o;
    copy->session_id = o->session_id ? tkc_arena_cstr(arena, o->session_id, err) : NULL;
    copy->display_name = o->display_name ? tkc_arena_cstr(arena, o->display_name, err) : NULL;
    copy->project_ids = copy_list(arena, o->project_ids, err);
    copy->user_metadata = copy_list(arena, o->user_metadata, err);
    copy->owners = copy_list(arena, o->owners, err);
    return copy;
}

tinkc_search *tinkc_search_list(tinkc_client *client, const tinkc_search_options *options,
                                tinkc_error *err)
{
    static const tkc_list_kind kind = { .page_size = PAGE_DEFAULT,
                                        .by_cursor = true,
                                        .ask = ask_sessions };
    static const tinkc_search_options none;
    const tinkc_search_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_search(o, err))
        return NULL;
    tkc_pager *p = tkc_pager_new(client, &kind, o->limit, 0, o->page_size, err);
    if (p)
        p->question = copy_options(&p->texts, o, err);
    if (tkc_failed(err)) {
        tkc_pager_free(p);
        return NULL;
    }
    return (tinkc_search *)(void *)p;
}

const tinkc_session_summary *tinkc_search_next(tinkc_search *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    const tkc_page *pg =
        tkc_enter(&err, &local) ? tkc_pager_next((tkc_pager *)list, &i, err) : NULL;
    return pg ? (const tinkc_session_summary *)(const void *)pg->items + i : NULL;
}

tinkc_future *tinkc_search_fetch(tinkc_search *list, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) ? tkc_pager_fetch((tkc_pager *)list, err) : NULL;
}

size_t tinkc_search_ready(const tinkc_search *list)
{
    return tkc_pager_ready((const tkc_pager *)list);
}

void tinkc_search_free(tinkc_search *list)
{
    tkc_pager_free((tkc_pager *)list);
}

/* ---- checkpoints ---- */

static void decode_checkpoints_found(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_checkpoint_search_response msg = { 0 };
    const char **ids;
    unsigned char *items;
    if (!tkc_rest_decode(f, answer, &tkc_checkpoint_search_response_type, &msg, err))
        return;
    tkc_page *p = tkc_page_new(f, msg.checkpoints.len, sizeof(tinkc_checkpoint), &ids, &items, err);
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        tkc_fill_checkpoint((tinkc_checkpoint *)(void *)items + i, &msg.checkpoints.data[i]);
        ids[i] = msg.checkpoints.data[i].tinker_path;
    }
    p->cursor = msg.next_cursor;
}

static tinkc_future *ask_checkpoints(tkc_pager *p, int64_t limit, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoints_search", "page" };
    static const char *const kinds[] = { [TINKC_CHECKPOINT_TRAINING] = "training",
                                         [TINKC_CHECKPOINT_SAMPLER] = "sampler",
                                         [TINKC_CHECKPOINT_EXTERNAL] = "external" };
    const tinkc_checkpoint_search_options *o = p->question;
    const tkc_checkpoint_search_request msg = {
        .project_ids = o->project_ids,
        .user_metadata = { .pairs = o->user_metadata },
        .checkpoint_type = o->kind ? kinds[o->kind] : NULL,
        .owner =
            o->owners
                ? (tkc_search_owner){ "user", o->owners }
                : (tkc_search_owner){ o->scope == TINKC_ACCESSIBLE ? "accessible" : "own", NULL },
        .base_models = o->base_models,
        .limit = limit,
        .cursor = tkc_pager_cursor(p),
    };
    return tkc_rest_start(
        p->client, &class,
        &(tkc_rest_request){ .endpoint = TKC_EP_SEARCH_CHECKPOINTS, .message = &msg },
        decode_checkpoints_found, err);
}

static bool check_checkpoint_search(const tinkc_checkpoint_search_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) || o->reserved_int)
        return tkc_fail(err, TINKC_E_ARGUMENT, "search options: reserved must be zero");
    if (o->page_size < 0 || o->page_size > PAGE_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "page_size: must be from 1 to %d, or 0", PAGE_MAX);
    if (o->kind && o->kind != TINKC_CHECKPOINT_TRAINING && o->kind != TINKC_CHECKPOINT_SAMPLER &&
        o->kind != TINKC_CHECKPOINT_EXTERNAL)
        return tkc_fail(err, TINKC_E_ARGUMENT, "kind: unknown value %d", (int)o->kind);
    if (list_length(o->user_metadata) % 2)
        return tkc_fail(err, TINKC_E_ARGUMENT, "user_metadata: a name without a value");
    if (o->limit < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "limit is negative");
    if (o->owners && (!o->owners[0] || list_length(o->owners) > OWNERS_MAX))
        return tkc_fail(err, TINKC_E_ARGUMENT, "owners: must be from 1 to %d", OWNERS_MAX);
    return tkc_scope_name(o->scope, err) != NULL;
}

tinkc_checkpoints *tinkc_checkpoints_search(tinkc_client *client,
                                            const tinkc_checkpoint_search_options *options,
                                            tinkc_error *err)
{
    static const tkc_list_kind kind = { .page_size = PAGE_DEFAULT,
                                        .by_cursor = true,
                                        .ask = ask_checkpoints };
    static const tinkc_checkpoint_search_options none;
    const tinkc_checkpoint_search_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_checkpoint_search(o, err))
        return NULL;
    tkc_pager *p = tkc_pager_new(client, &kind, o->limit, 0, o->page_size, err);
    tinkc_checkpoint_search_options *copy =
        p ? tkc_arena_alloc(&p->texts, sizeof *copy, err) : NULL;
    if (copy) {
        *copy = *o;
        copy->project_ids = copy_list(&p->texts, o->project_ids, err);
        copy->user_metadata = copy_list(&p->texts, o->user_metadata, err);
        copy->base_models = copy_list(&p->texts, o->base_models, err);
        copy->owners = copy_list(&p->texts, o->owners, err);
        p->question = copy;
    }
    if (tkc_failed(err)) {
        tkc_pager_free(p);
        return NULL;
    }
    return (tinkc_checkpoints *)(void *)p;
}
