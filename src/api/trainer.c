/* trainer.c - the turn queue: strict order of submits, numbers taken at the turn, gaps mended.
 *
 * The service runs a model's requests by number and waits for missing ones. So a number that was
 * sent and never confirmed must not be forgotten: the trainer is broken until that request, sent
 * again under the same number, has been accepted. One attempt is made when the next operation's
 * turn comes; if it fails, that operation and all behind it fail at once with TINKC_E_SEQUENCE.
 *
 * May touch: the trainer's I/O side. Must not: know what operations send.
 */
#include "api/trainer.h"

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
    t->io.next_seq = 1;
    (void)snprintf(t->io.pause_prefix, sizeof t->io.pause_prefix, "Training for %.150s", model_id);
    return t;
}

void tkc_trainer_keep(tinkc_trainer *t)
{
    tkc_ref_keep(&t->refs);
}

static void free_lost(const tinkc_allocator *a, tkc_lost *lost)
{
    while (lost) {
        tkc_lost *next = lost->next;
        tkc_buf_free(&lost->body);
        tkc_release(a, lost, sizeof *lost);
        lost = next;
    }
}

void tkc_trainer_drop(tinkc_trainer *t)
{
    if (!t || !tkc_ref_drop(&t->refs))
        return;
    tinkc_client *client = t->client;
    free_lost(client->a, t->io.lost);
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

bool tkc_trainer_check(tinkc_trainer *t, tinkc_error *err)
{
    if (!t)
        return tkc_fail(err, TINKC_E_ARGUMENT, "trainer: must not be NULL");
    if (!tkc_client_check_open(t->client, err))
        return false;
    return !atomic_load(&t->unloaded) ||
           tkc_fail(err, TINKC_E_CLOSED, "trainer: its model was unloaded");
}

/* ---- the queue ---- */

static void run_head(tinkc_trainer *t);

static void unlink_turn(tinkc_trainer *t, tkc_turn *turn)
{
    if (turn->prev)
        turn->prev->next = turn->next;
    else
        t->io.first = turn->next;
    if (turn->next)
        turn->next->prev = turn->prev;
    else
        t->io.last = turn->prev;
    turn->next = turn->prev = NULL;
    turn->queued = false;
}

static void refuse_head(tinkc_trainer *t)
{
    tinkc_error err = { 0 };
    tkc_turn *turn = t->io.first;
    tkc_fail(&err, TINKC_E_SEQUENCE, "an earlier request of this model was lost: %.300s",
             t->io.broken.message);
    err.cause = t->io.broken.code;
    unlink_turn(t, turn);
    turn->go(turn, &err);
}

/* ---- mending ---- */

static void mended(tkc_call *call);

static bool send_lost(tinkc_trainer *t)
{
    tkc_lost *lost = t->io.lost;
    tinkc_error err = { 0 };
    tkc_buf copy;
    const char *headers[] = { "Content-Encoding", lost->content_encoding, NULL };
    if (!lost->content_encoding)
        headers[0] = NULL;
    tkc_buf_init(&copy, t->client->a, TKC_BUF_NO_MAX);
    tkc_buf_add(&copy, lost->body.data, lost->body.len, &err);
    if (!tkc_failed(&err))
        t->io.mend = tkc_call_new(t->client,
                                  &(tkc_call_spec){ .method = "POST",
                                                    .path = lost->path,
                                                    .pool = TINKC_POOL_TRAIN,
                                                    .need = TKC_NEED_SESSION,
                                                    .headers = headers,
                                                    .content_type = lost->content_type,
                                                    .body = &copy },
                                  &err);
    tkc_buf_free(&copy);
    if (!t->io.mend)
        return false;
    t->io.mend->owner = t;
    t->io.mend->done = mended;
    tkc_trainer_keep(t);
    tkc_call_start(t->io.mend);
    return true;
}

static void mended(tkc_call *call)
{
    tinkc_trainer *t = call->owner;
    bool ok = call->err.code == TINKC_OK;
    t->io.mend = NULL;
    tkc_call_free(call);
    if (ok) {
        tkc_lost *first = t->io.lost;
        t->io.lost = first->next;
        first->next = NULL;
        free_lost(t->client->a, first);
        if (!t->io.lost)
            t->io.broken = (tinkc_error){ 0 };
        run_head(t);
    } else {
        /* Those who wait now fail now; the next one to come tries again. */
        size_t n = 0;
        for (tkc_turn *turn = t->io.first; turn; turn = turn->next)
            n++;
        while (n-- && t->io.first)
            refuse_head(t);
    }
    tkc_trainer_drop(t);
}

/* Lets the first one go, if nothing stands in its way. */
static void run_head(tinkc_trainer *t)
{
    while (t->io.first && !t->io.head_runs && !t->io.mend) {
        if (t->io.broken.code) {
            if (t->io.lost && !t->client->io.ended && send_lost(t))
                return;
            refuse_head(t);
            continue;
        }
        t->io.head_runs = true;
        t->io.first->go(t->io.first, NULL);
    }
}

void tkc_turn_join(tinkc_trainer *t, tkc_turn *turn)
{
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
    if (!ran)
        return;
    t->io.head_runs = false;
    run_head(t);
}

int64_t tkc_turn_take(tinkc_trainer *t, size_t n)
{
    int64_t first = t->io.next_seq;
    t->io.next_seq += (int64_t)n;
    return first;
}

void tkc_turn_give_back(tinkc_trainer *t, size_t n)
{
    t->io.next_seq -= (int64_t)n;
}

void tkc_trainer_break(tinkc_trainer *t, const tinkc_error *why, tkc_lost *lost)
{
    if (!t->io.broken.code)
        t->io.broken = *why;
    if (!lost) { /* beyond repair */
        free_lost(t->client->a, t->io.lost);
        t->io.lost = NULL;
        return;
    }
    tkc_lost **at = &t->io.lost;
    while (*at)
        at = &(*at)->next;
    *at = lost;
}

/* ---- what became of a submit ---- */

int32_t tkc_submit_fate(const tkc_call *call)
{
    if (call->err.code == TINKC_OK)
        return TKC_SUBMIT_ACCEPTED;
    int32_t s = call->err.http_status;
    bool refused = s >= 400 && s < 500 && s != 408;
    if (refused || !call->may_have_run)
        return TKC_SUBMIT_NOT_TAKEN;
    return TKC_SUBMIT_LOST;
}

bool tkc_submit_read(const tkc_call *call, tkc_arena *arena, tinkc_str *request_id,
                     tinkc_error *err)
{
    tkc_untyped_future answer = { 0 };
    *request_id = (tinkc_str){ 0 };
    if (!tkc_message_decode(&tkc_untyped_future_type,
                            tkc_strn((const char *)call->body.data, call->body.len),
                            TINKC_E_BAD_RESPONSE, arena, &answer, err))
        return false;
    *request_id = tkc_str(answer.request_id);
    return true;
}
