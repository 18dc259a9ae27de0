/* trainer.c - the turn queue: strict order of submits, numbers taken at the turn, gaps resent.
 *
 * The service runs a model's requests by number and waits for missing ones. So a number that was
 * sent and never confirmed must not be forgotten: the trainer is broken until that request, sent
 * again under the same number, has been accepted. One attempt is made when the next operation's
 * turn comes; if it fails, that operation and all behind it fail at once with TINKC_E_SEQUENCE. (A
 * request that was only cancelled has not failed yet: its attempt is a whole call with retries.)
 * Nothing is sent while no operation waits.
 *
 * May touch: the trainer's I/O side. Must not: know what operations send.
 */
#include "client/train/trainer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

tinkc_trainer *tkc_trainer_new(tinkc_client *client, const char *model_id, const char *base_model,
                               tinkc_error *err)
{
    tinkc_trainer *t = tkc_zalloc(client->a, sizeof *t, err);
    if (!t)
        return NULL;
    t->model_id = tkc_copy_str(client->a, tkc_str(model_id), err);
    t->base_model = tkc_copy_str(client->a, tkc_str(base_model), err);
    if (tkc_failed(err)) {
        tkc_release_str(client->a, t->model_id);
        tkc_release_str(client->a, t->base_model);
        tkc_release(client->a, t, sizeof *t);
        return NULL;
    }
    t->client = client;
    tkc_client_keep(client);
    tkc_ref_init(&t->refs);
    pthread_mutex_init(&t->tokenizer_lock, NULL);
    /* Number 0 is the creation of the model. */
    t->io.next_seq = 1;
    (void)snprintf(t->io.pause_prefix, sizeof t->io.pause_prefix, "Training for %.150s", model_id);
    return t;
}

void tkc_trainer_keep(tinkc_trainer *t)
{
    tkc_ref_keep(&t->refs);
}

void tkc_unconfirmed_free_all(tkc_unconfirmed *unconfirmed)
{
    while (unconfirmed) {
        tkc_unconfirmed *next = unconfirmed->next;
        unconfirmed->free(unconfirmed);
        unconfirmed = next;
    }
}

void tkc_trainer_drop(tinkc_trainer *t)
{
    if (!t || !tkc_ref_drop(&t->refs))
        return;
    tinkc_client *client = t->client;
    assert(!t->io.first && !t->io.resend.running); /* each of them holds the trainer */
    tkc_unconfirmed_free_all(t->io.unconfirmed);
    if (t->tokenizer)
        t->tokenizer_free(t->tokenizer);
    pthread_mutex_destroy(&t->tokenizer_lock);
    tkc_release_str(client->a, t->model_id);
    tkc_release_str(client->a, t->base_model);
    tkc_release(client->a, t, sizeof *t);
    tkc_client_drop(client);
}

void tinkc_trainer_free(tinkc_trainer *t)
{
    if (t && !tkc_client_forked(t->client))
        tkc_trainer_drop(t);
}

const char *tinkc_trainer_id(const tinkc_trainer *t)
{
    return t ? t->model_id : "";
}

bool tkc_fail_unloaded(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_CLOSED, "trainer: its model was unloaded");
}

bool tkc_trainer_check(tinkc_trainer *t, tinkc_error *err)
{
    if (!t)
        return tkc_fail(err, TINKC_E_ARGUMENT, "trainer: must not be NULL");
    return tkc_client_check_open(t->client, err) &&
           (!atomic_load(&t->unloaded) || tkc_fail_unloaded(err));
}

/* ---- the queue ---- */

static void run_head(tinkc_trainer *t);

static void unlink_turn(tinkc_trainer *t, tkc_turn *turn)
{
    assert(turn->queued && (turn->prev ? turn->prev->next : t->io.first) == turn);
    assert((turn->next ? turn->next->prev : t->io.last) == turn);
    if (turn->prev)
        turn->prev->next = turn->next;
    else
        t->io.first = turn->next;
    if (turn->next)
        turn->next->prev = turn->prev;
    else
        t->io.last = turn->prev;
    turn->queued = false;
}

static void refuse_head(tinkc_trainer *t)
{
    tinkc_error err = { 0 };
    tkc_turn *turn = t->io.first;
    assert(turn && !t->io.head_runs && !t->io.resend.running);
    if (t->client->io.ended) {
        tkc_fail(&err, TINKC_E_CLOSED, "the client was closed");
    } else {
        tkc_fail(&err, TINKC_E_SEQUENCE,
                 "an earlier request of this model was not confirmed: %.300s",
                 t->io.broken.message);
        err.cause = t->io.broken.code;
    }
    unlink_turn(t, turn);
    turn->go(turn, &err);
}

/* Those who wait now fail now; the next one to come tries again. */
static void refuse_waiting(tinkc_trainer *t)
{
    size_t n = 0;
    for (tkc_turn *turn = t->io.first; turn; turn = turn->next)
        n++;
    while (n-- && t->io.first)
        refuse_head(t);
}

/* ---- sending unconfirmed numbers again ---- */

enum { OFFLOAD_BYTES = 256 * 1024 };

typedef struct written_request {
    tkc_unconfirmed unconfirmed;
    const tinkc_allocator *a;
    tkc_buf body;
} written_request;

static bool copy_written(tkc_unconfirmed *unconfirmed, tkc_buf *out, const char **encoding,
                         tinkc_error *err)
{
    written_request *w = TKC_OWNER(unconfirmed, written_request, unconfirmed);
    (void)encoding; /* none */
    return tkc_buf_add(out, w->body.data, w->body.len, err);
}

static void free_written(tkc_unconfirmed *unconfirmed)
{
    written_request *w = TKC_OWNER(unconfirmed, written_request, unconfirmed);
    tkc_buf_free(&w->body);
    tkc_release(w->a, w, sizeof *w);
}

tkc_unconfirmed *tkc_unconfirmed_new(const tinkc_allocator *a, int64_t seq, int32_t endpoint,
                                     tkc_buf *body, tinkc_error *err)
{
    written_request *w = tkc_zalloc(a, sizeof *w, err);
    if (!w)
        return NULL;
    w->unconfirmed = (tkc_unconfirmed){ .seq = seq,
                                        .endpoint = endpoint,
                                        .bytes = body->len,
                                        .write = copy_written,
                                        .free = free_written };
    w->a = a;
    w->body = *body;
    tkc_buf_init(body, a, TKC_BUF_NO_MAX);
    return &w->unconfirmed;
}

/* Nothing is under way any more; gives the reference of the attempt back. */
static void end_resend(tinkc_trainer *t)
{
    assert(t->io.resend.running);
    tkc_buf_free(&t->io.resend.body);
    tkc_call_free(t->io.resend.call);
    t->io.resend.call = NULL;
    t->io.resend.running = false;
    tkc_trainer_drop(t);
}

/* What is wrong with a request itself was so at the attempts before, too. */
static bool is_wrong(const tkc_call *call)
{
    int32_t s = call->err.http_status;
    return s == 400 || s == 404 || s == 405 || s == 413 || s == 422;
}

/* The service will never take it and never has. If no number behind it was given out, it is as if
 * it had not been sent. */
static bool give_up_lost(tinkc_trainer *t, const tkc_call *call)
{
    if (!is_wrong(call) || t->io.unconfirmed->next || t->io.unconfirmed->seq != t->io.next_seq - 1)
        return false;
    t->io.next_seq--;
    return true;
}

static void resent(tkc_call *call)
{
    tinkc_trainer *t = call->owner;
    tkc_unconfirmed *first = t->io.unconfirmed;
    assert(first && t->io.resend.call == call);
    bool ok = call->err.code == TINKC_OK || give_up_lost(t, call);
    /* Those who wait may hold the last references. */
    tkc_trainer_keep(t);
    end_resend(t);
    if (ok) {
        t->io.unconfirmed = first->next;
        first->free(first);
        if (!t->io.unconfirmed)
            t->io.broken = (tinkc_error){ 0 };
        run_head(t);
    } else {
        /* It has had all its retries: from now on each operation that comes tries once, so that
         * a dead service does not cost every one of them a whole window. */
        first->retry_fully = false;
        refuse_waiting(t);
    }
    tkc_trainer_drop(t);
}

/* The body is written: it is sent, unless the operation has ended meanwhile. */
static bool send_lost(tinkc_trainer *t)
{
    tkc_unconfirmed *unconfirmed = t->io.unconfirmed;
    tinkc_error *err = &t->io.resend.err;
    const char *headers[] = { "Content-Encoding", t->io.resend.encoding, NULL };
    if (!t->io.resend.encoding)
        headers[0] = NULL;
    if (tkc_failed(err) || !t->io.first || t->client->io.ended)
        return false;
    tkc_call_spec spec = tkc_call_to(unconfirmed->endpoint);
    spec.retries = unconfirmed->retry_fully ? TKC_RETRIES_DEFAULT : 0;
    spec.window = unconfirmed->retry_fully;
    spec.headers = headers;
    if (unconfirmed->json)
        spec.content_type = TKC_TYPE_JSON;
    spec.body = &t->io.resend.body;
    t->io.resend.call = tkc_call_new(t->client, &spec, err);
    if (!t->io.resend.call)
        return false;
    t->io.resend.call->owner = t;
    t->io.resend.call->done = resent;
    tkc_call_start(t->io.resend.call);
    return true;
}

static void write_lost(tkc_offload *o)
{
    tinkc_trainer *t = TKC_OWNER(o, tinkc_trainer, io.resend.offload);
    tkc_unconfirmed *unconfirmed = t->io.unconfirmed;
    (void)unconfirmed->write(unconfirmed, &t->io.resend.body, &t->io.resend.encoding,
                             &t->io.resend.err);
}

static void lost_written(tkc_offload *o)
{
    tinkc_trainer *t = TKC_OWNER(o, tinkc_trainer, io.resend.offload);
    if (send_lost(t))
        return;
    tkc_trainer_keep(t);
    end_resend(t);
    refuse_waiting(t);
    tkc_trainer_drop(t);
}

/* False: it could not even be begun. */
static bool begin_resend(tinkc_trainer *t)
{
    assert(t->io.broken.code && !t->io.resend.running && !t->io.head_runs);
    if (!t->io.unconfirmed || t->client->io.ended)
        return false;
    t->io.resend.running = true;
    t->io.resend.err = (tinkc_error){ 0 };
    t->io.resend.encoding = NULL;
    tkc_buf_init(&t->io.resend.body, t->client->a, TKC_BUF_NO_MAX);
    tkc_trainer_keep(t);
    if (t->io.unconfirmed->bytes >= OFFLOAD_BYTES) {
        t->io.resend.offload.work = write_lost;
        t->io.resend.offload.after = lost_written;
        tkc_offload_start(t->client, &t->io.resend.offload);
        return true;
    }
    write_lost(&t->io.resend.offload);
    if (send_lost(t))
        return true;
    end_resend(t);
    return false;
}

/* Lets the first one go, if nothing stands in its way. One that ends at once may have been the last
 * to hold the trainer. */
static void run_head(tinkc_trainer *t)
{
    tkc_trainer_keep(t);
    while (t->io.first && !t->io.head_runs && !t->io.resend.running) {
        if (!t->io.broken.code) {
            t->io.head_runs = true;
            t->io.first->go(t->io.first, NULL);
        } else if (!begin_resend(t)) {
            refuse_head(t);
        }
    }
    tkc_trainer_drop(t);
}

void tkc_turn_join(tinkc_trainer *t, tkc_turn *turn)
{
    assert(tkc_loop_is_current(t->client->loop) && !turn->queued && turn->go);
    turn->prev = t->io.last;
    turn->next = NULL;
    if (t->io.last)
        t->io.last->next = turn;
    else
        t->io.first = turn;
    t->io.last = turn;
    turn->queued = true;
    run_head(t);
}

void tkc_turn_leave(tinkc_trainer *t, tkc_turn *turn)
{
    if (!turn->queued)
        return;
    bool ran = turn == t->io.first && t->io.head_runs;
    unlink_turn(t, turn);
    if (ran)
        t->io.head_runs = false;
    if (!t->io.first && t->io.resend.call)
        end_resend(t); /* nobody waits for it any more: the next one begins again */
    run_head(t);
}

int64_t tkc_turn_take(tinkc_trainer *t, size_t n)
{
    int64_t first = t->io.next_seq;
    assert(n > 0 && first >= 1 && t->io.head_runs); /* only whose turn it is takes numbers */
    t->io.next_seq += (int64_t)n;
    return first;
}

void tkc_turn_give_back(tinkc_trainer *t, size_t n)
{
    t->io.next_seq -= (int64_t)n;
    assert(t->io.next_seq >= 1);
}

void tkc_trainer_break(tinkc_trainer *t, const tinkc_error *why, tkc_unconfirmed *unconfirmed)
{
    /* Whose turn it is found a trainer that was not broken. */
    assert(why->code && !t->io.broken.code && !t->io.unconfirmed);
    t->io.broken = *why;
    t->io.unconfirmed = unconfirmed; /* NULL: beyond repair */
}

/* ---- what became of a submit ---- */

int32_t tkc_submit_fate(const tkc_call *call)
{
    if (call->err.code == TINKC_OK)
        return TKC_SUBMIT_ACCEPTED;
    /* Another refusal says nothing about the attempts before it: one may have been accepted. */
    return is_wrong(call) || !call->may_have_run ? TKC_SUBMIT_NOT_TAKEN : TKC_SUBMIT_UNCONFIRMED;
}
