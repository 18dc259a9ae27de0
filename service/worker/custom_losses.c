/* custom_losses.c - custom losses of sessions: create_custom_loss, finding one, and restarts.
 *
 * A loss belongs to the session that created it and lives as long as it. It is checked when it is
 * created, on the front thread: the answer is a future that is already complete. The request is
 * stored as received and compiled again at startup, so what an older server accepted goes through
 * the same checks.
 *
 * May touch: svc under its lock, the store through transactions. Must not: compute a loss.
 */
#include <stdio.h>

#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/worker/custom_losses.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/worker_memory.h"

enum { MAX_LOSSES = 64, MAX_LOSS_BYTES = 256 << 10, MAX_SESSION_BYTES = 4 << 20 };

/* ---- losses of a session. Locks: needs svc->lock ---- */

const tke_graph *tke_loss_find(const tke_session *s, const char *id)
{
    for (const tke_custom_loss *l = s->losses; l; l = l->next)
        if (tkc_cstr_eq(l->id, id))
            return l->graph;
    return NULL;
}

static tke_custom_loss *loss_with_number(const tke_session *s, int64_t seq)
{
    tke_custom_loss *l = s->losses;
    while (l && l->seq != seq)
        l = l->next;
    return l;
}

static void free_loss(tke_service *svc, const tke_session *s, tke_custom_loss *l)
{
    tke_kept_give(svc, s->owner, &l->kept);
    if (l->graph)
        tke_held_sub(svc, TKE_HELD_LOSSES, tke_graph_bytes(l->graph));
    tke_graph_free(l->graph);
    if (l->id)
        tkc_release_str(svc->a, l->id);
    if (l->request_id)
        tkc_release_str(svc->a, l->request_id);
    tkc_release(svc->a, l, sizeof *l);
}

void tke_losses_free(tke_service *svc, tke_session *s)
{
    while (s->losses) {
        tke_custom_loss *next = s->losses->next;
        free_loss(svc, s, s->losses);
        s->losses = next;
    }
}

/* Makes its answer retrievable, unless it is. */
static bool publish(tke_service *svc, const tke_session *s, const tke_custom_loss *l,
                    tinkc_error *err)
{
    if (tke_find_job(svc, l->request_id))
        return true;
    tke_job *job = tke_job_new(svc, TKE_JOB_LOSS, l->request_id, s->owner, err);
    if (!job)
        return false;
    job->state = TKE_DONE;
    job->done_ms = tkc_now_ms(svc->clock);
    bool ok = tkc_message_encode(&tkc_create_custom_loss_result_type,
                                 &(tkc_create_custom_loss_result){ .loss_id = l->id }, &job->result,
                                 err) &&
              tke_job_publish(job, err);
    if (ok)
        tke_result_count(svc, job);
    tke_job_drop(job);
    return ok;
}

/* What a request or a row makes a loss of. */
typedef struct new_loss {
    tkc_create_custom_loss_request in;
    tinkc_str body;
    tke_graph *graph;
    tke_hash128 hash;
    const char *request_id; /* NULL = a new one */
} new_loss;

/* Takes the graph over. */
static tke_custom_loss *add_loss(tke_service *svc, tke_session *s, new_loss *n, tinkc_error *err)
{
    char id[160], request_id[200];
    tke_custom_loss *l = tkc_zalloc(svc->a, sizeof *l, err);
    if (!l)
        return NULL;
    (void)snprintf(id, sizeof id, "%.64s:loss:%lld", s->id, (long long)n->in.custom_loss_seq_id);
    (void)snprintf(request_id, sizeof request_id, "%lld-%s:0", (long long)svc->epoch, id);
    l->seq = n->in.custom_loss_seq_id;
    l->hash = n->hash;
    l->bytes = n->body.len;
    l->id = tke_copy(svc, id, err);
    l->request_id = tke_copy(svc, n->request_id ? n->request_id : request_id, err);
    if (tkc_failed(err) || !publish(svc, s, l, err)) {
        free_loss(svc, s, l);
        return NULL;
    }
    l->graph = n->graph;
    n->graph = NULL;
    tke_held_add(svc, TKE_HELD_LOSSES, tke_graph_bytes(l->graph));
    tke_kept_add(svc, s->owner, tke_graph_bytes(l->graph), &l->kept);
    l->next = s->losses;
    s->losses = l;
    s->n_losses++;
    s->loss_bytes += l->bytes;
    return l;
}

/* ---- reading a request ---- */

static tke_hash128 hash_loss(const tkc_create_custom_loss_request *in)
{
    tke_hasher h;
    tke_hash_begin(&h);
    tke_hash_str(&h, in->name);
    tke_hash_i64(&h, (int64_t)in->inputs.len);
    for (size_t i = 0; i < in->inputs.len; i++) {
        tke_hash_str(&h, in->inputs.data[i].name);
        tke_hash_i64(&h, in->inputs.data[i].rank);
    }
    tke_hash_add(&h, in->graph.data, in->graph.len);
    return tke_hash_end(&h);
}

/* Checks and compiles n->in. */
static bool compile(new_loss *n, tinkc_error *err)
{
    tke_graph_input inputs[TKE_GRAPH_INPUTS];
    size_t given = n->in.inputs.len, few = given < TKE_GRAPH_INPUTS ? given : TKE_GRAPH_INPUTS;
    for (size_t i = 0; i < few; i++)
        inputs[i] = (tke_graph_input){ n->in.inputs.data[i].name, n->in.inputs.data[i].rank };
    if (given > few)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "a custom loss takes at most %d inputs, logprobs included, not %zu",
                        TKE_GRAPH_INPUTS, given);
    n->hash = hash_loss(&n->in);
    n->graph = tke_graph_new(&(tke_graph_spec){ n->in.name, inputs, given, n->in.graph }, err);
    return n->graph != NULL;
}

static bool read_request(tke_call *call, new_loss *n)
{
    if (call->body.len > MAX_LOSS_BYTES) {
        tke_refuse(call, 413, "too_large", "A custom loss has %zu bytes; at most %d are possible",
                   call->body.len, MAX_LOSS_BYTES);
        return false;
    }
    n->body = call->body;
    if (!tke_call_decode(call, &tkc_create_custom_loss_request_type, &n->in))
        return false;
    if (n->in.custom_loss_seq_id < 0) {
        tke_refuse(call, 400, "bad_request", "custom_loss_seq_id must not be negative");
        return false;
    }
    if (compile(n, &call->err))
        return true;
    if (call->err.code == TINKC_E_BAD_REQUEST)
        tke_refuse(call, 400, "bad_request", "%s", call->err.message);
    else
        tke_send_failure(call->reply, call->svc->a, &call->err);
    return false;
}

/* ---- the endpoint ---- */

static void store_loss(tke_txn *txn, const tke_session *s, const tke_custom_loss *l, tinkc_str body)
{
    tke_txn_exec(txn,
                 "INSERT OR REPLACE INTO custom_losses(session_id, seq, request_id, body) "
                 "VALUES(?, ?, ?, ?)",
                 "titb", s->id, l->seq, l->request_id,
                 (tinkc_bytes){ (const unsigned char *)body.data, body.len });
}

enum { REUSED = 400, TOO_MANY = 429, NO_STORAGE = 507, NO_MEMORY = 508 };

typedef struct outcome {
    tinkc_error full;     /* set before: the owner has no storage left */
    int32_t refused;      /* for lack of memory: the status */
    const char *finished; /* of the session; NULL = it is active */
    char request_id[200]; /* of the future that answers */
    tke_txn *txn;
} outcome;

/* Locks: needs svc->lock. */
static int32_t check_memory(tke_service *svc, const tke_session *s, const new_loss *n,
                            tinkc_error *err)
{
    size_t kept = 0;
    int32_t refused = tke_kept_take(svc, s->owner, tke_graph_bytes(n->graph), &kept, err);
    tke_kept_give(svc, s->owner, &kept); /* add_loss counts it */
    return refused;
}

/* Locks: needs svc->lock. The status. */
static int32_t make_loss(tke_call *call, new_loss *n, outcome *out)
{
    tke_service *svc = call->svc;
    tke_session *s = tke_find_session(svc, n->in.session_id);
    if (!s)
        return 404;
    if (!tkc_cstr_eq(s->owner, call->owner))
        return 403;
    if ((out->finished = s->finished))
        return 410;
    tke_custom_loss *l = loss_with_number(s, n->in.custom_loss_seq_id);
    if (l && !tke_hash_eq(l->hash, n->hash))
        return REUSED;
    if (!l && (s->n_losses >= MAX_LOSSES || s->loss_bytes + n->body.len > MAX_SESSION_BYTES))
        return TOO_MANY;
    if (!l && tkc_failed(&out->full))
        return NO_STORAGE;
    if (!l && (out->refused = check_memory(svc, s, n, &out->full)))
        return NO_MEMORY;
    if (l)
        (void)publish(svc, s, l, &call->err); /* its answer may have expired */
    else
        l = add_loss(svc, s, n, &call->err);
    if (!l)
        return 200; /* call->err says why */
    tke_session_touch(svc, s);
    (void)snprintf(out->request_id, sizeof out->request_id, "%s", l->request_id);
    out->txn = tke_txn_new(svc->store, &call->err);
    store_loss(out->txn, s, l, n->body);
    return 200;
}

void tke_handle_create_loss(tke_call *call)
{
    tke_service *svc = call->svc;
    new_loss n = { 0 };
    outcome out = { 0 };
    if (!read_request(call, &n))
        return;
    /* Before svc->lock, which it takes itself. */
    (void)tke_quota_storage(svc, call->owner, NULL, 0, &out.full);
    pthread_mutex_lock(&svc->lock);
    int32_t status = make_loss(call, &n, &out);
    pthread_mutex_unlock(&svc->lock);
    tke_graph_free(n.graph);
    if (status == REUSED)
        tke_refuse(call, 400, "custom_loss_seq_id_reused",
                   "custom_loss_seq_id was reused with different parameters");
    else if (status == TOO_MANY)
        tke_refuse(call, 400, "too_many",
                   "A session may have %d custom losses of %d KiB in all; reuse them, or create "
                   "another session",
                   MAX_LOSSES, MAX_SESSION_BYTES >> 10);
    else if (status == NO_STORAGE)
        tke_refuse(call, 403, "quota_storage", "%s", out.full.message);
    else if (status == NO_MEMORY)
        tke_refuse_kept(call, NULL, out.refused, &out.full);
    else if (status != 200)
        tke_refuse_session(call, status, n.in.session_id, out.finished);
    else
        tke_answer_stored(call, out.txn, &tkc_untyped_future_type,
                          &(tkc_untyped_future){ .request_id = out.request_id });
}

/* ---- restarts ---- */

static bool loss_row(const tke_row *row, void *user, tinkc_error *err)
{
    tke_service *svc = user;
    tkc_arena arena;
    tinkc_error bad = { 0 };
    tkc_arena_init(&arena, svc->a, 0);
    const char *session_id = tkc_arena_str(&arena, tke_row_text(row, 0), err);
    tinkc_bytes body = tke_row_blob(row, 2);
    new_loss n = { .body = { (const char *)body.data, body.len } };
    n.request_id = tkc_arena_str(&arena, tke_row_text(row, 1), err);
    tke_session *s = tkc_failed(err) ? NULL : tke_find_session(svc, session_id);
    /* A loss that this version refuses is left out: it must not keep the service from starting. */
    if (s && !(tkc_message_decode(&tkc_create_custom_loss_request_type, n.body,
                                  TINKC_E_UNPROCESSABLE, &arena, &n.in, &bad) &&
               compile(&n, &bad)))
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "session %s: a custom loss is left out: %s", s->id,
                     bad.message);
    if (n.graph)
        (void)add_loss(svc, s, &n, err);
    tke_graph_free(n.graph);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

bool tke_losses_load(tke_service *svc, tinkc_error *err)
{
    return tke_store_query(svc->store,
                           "SELECT session_id, request_id, body FROM custom_losses "
                           "ORDER BY session_id, seq",
                           loss_row, svc, err, "");
}
