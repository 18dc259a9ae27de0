/* housekeeping.c - the timer thread: polls, sessions, gaps, images, expiry.
 *
 * It neither computes nor waits for a disk; it marks what is due and wakes the thread that does it.
 */
#include <assert.h>

#include "base/file.h"
#include "base/heap.h"
#include "service/core/housekeeping.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/usage.h"
#include "service/handlers/downloads.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/idempotency.h"
#include "service/handlers/uploads.h"
#include "service/store/run_source.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "service/worker/sample_events.h"
#include "service/worker/worker.h"
#include "service/worker/worker_memory.h"

/* Expires sessions without heartbeats: their models go to sleep, and nothing is lost. */
static void expire_sessions(tke_service *svc, int64_t now_ms)
{
    tke_session *s;
    tke_run *run;
    bool any = false;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (s = tke_next_session(svc, &at));) {
        s->expired |= now_ms - s->seen_ms > svc->set.session_timeout_ms;
    }
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        /* After a failed image the weights exist in memory only, and must stay there. */
        bool written = !tke_run_image_is_written(run->is) && run->is.image != TKE_IMAGE_FAILED;
        if (run->session && run->session->expired && run->is.memory == TKE_RUN_AWAKE &&
            !run->queue && written) {
            tke_run_on(run, TKE_ON_ASKED_TO_SLEEP);
            any = true;
        }
    }
    if (any)
        pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
}

static void remove_spill(tke_store *store, void *folder, tinkc_error *err)
{
    (void)store;
    tkc_remove_tree(folder, err);
}

/* Also of a row that could not be deleted: the next start of the service finds it with its files. */
static void spill_forgotten(void *folder, const tinkc_error *err)
{
    (void)err;
    if (folder)
        tkc_release_str(NULL, folder);
}

/* Locks: needs svc->lock. Removes the row with the files, so later requests report that they are
 * gone. */
static void forget_spill(tke_service *svc, tke_sampler *s)
{
    tinkc_error err = { 0 };
    char *folder = tkc_copy_str(NULL, tkc_str(s->spill), &err);
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_txn_exec(txn, "DELETE FROM samplers WHERE id = ?", "t", s->id);
    if (txn && folder)
        /* Not here: removing files takes long, and this thread holds svc->lock. */
        tke_txn_call(txn, remove_spill, folder);
    tke_txn_commit(txn, spill_forgotten, folder);
    tkc_release_str(svc->a, s->spill);
    s->spill = NULL;
}

/* Locks: needs svc->lock. Drops its weights; running samples hold their own reference. */
static void drop_weights(tke_service *svc, tke_sampler *s)
{
    if (s->spill)
        forget_spill(svc, s);
    if (!s->snapshot)
        return;
    tke_held_sub(svc, TKE_HELD_SNAPSHOTS, tke_snapshot_bytes(s->snapshot));
    tke_snapshot_drop(s->snapshot);
    s->snapshot = NULL;
    tke_room_changed(svc);
}

static bool holds_weights(const tke_sampler *s)
{
    return s->ephemeral && (s->snapshot || s->spill);
}

/* Locks: needs svc->lock. Of a session's ephemeral samplers, how many were used after this one? */
static int64_t used_later(tke_service *svc, const tke_sampler *than)
{
    const tke_sampler *s;
    int64_t n = 0;
    for (size_t at = 0; (s = tke_next_sampler(svc, &at));) {
        n += holds_weights(s) && s->session == than->session && s->used_ms > than->used_ms;
    }
    return n;
}

/* Clients that sample while training make an ephemeral save at every step and never delete it. It
 * is dropped when its session expires, when it has not been sampled for ephemeral_idle_ms, or when
 * enough others were used more recently and it has been unused for a minute. */
static void drop_ephemeral(tke_service *svc, int64_t now_ms)
{
    tke_sampler *s;
    enum { IN_USE_MS = 60000 };
    int64_t after = svc->set.session_timeout_ms + svc->set.ephemeral_grace_ms;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (s = tke_next_sampler(svc, &at));) {
        if (!holds_weights(s))
            continue;
        bool over = s->session && s->session->expired && now_ms - s->session->seen_ms > after;
        int64_t unused_ms = now_ms - s->used_ms;
        /* The minute protects a sampler that is just being handed out: its first sample has not
         * arrived yet. */
        if (over || unused_ms > svc->set.ephemeral_idle_ms ||
            (unused_ms > IN_USE_MS && used_later(svc, s) >= svc->set.max_ephemeral))
            drop_weights(svc, s);
    }
    pthread_mutex_unlock(&svc->lock);
}

/* ---- memory ---- */

/* Under load the service is never idle, so unused heap is also returned from time to time. */
static void trim(void)
{
    enum { WORTH_IT = 64 << 20 };
    if (tkc_heap_now().unused > WORTH_IT)
        tkc_heap_trim();
}

static void ask_for_images(tke_service *svc, int64_t now_ms)
{
    tke_run *run;
    bool any = false;
    if (!tke_store_durable(svc->store) || svc->set.durability < TINKC_DURABILITY_SNAPSHOT)
        return;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        bool under_way = tke_run_image_is_written(run->is) || tke_run_image_is_wanted(run->is);
        if (run->adapter && run->dirty_since_ms && !under_way &&
            now_ms - run->dirty_since_ms >= svc->set.autosave_ms) {
            tke_run_on(run, TKE_ON_IMAGE_ASKED);
            any = true;
        }
    }
    if (any)
        pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
}

/* A client that went away without a word may come back, so its run keeps its image for some time. Named
 * checkpoints are never touched. */
static void retire_runs(tke_service *svc)
{
    tke_run *run;
    int64_t now_us = tkc_wall_us(svc->clock), keep_us = svc->set.run_keep_ms * 1000;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; svc->set.run_keep_ms && (run = tke_next_run(svc, &at));) {
        tinkc_error ignored = { 0 };
        char id[160];
        bool silent = run->session && run->session->expired && !run->queue && !run->create;
        /* A run that continues from a saved checkpoint takes no room of its own, so nothing is
         * gained by ending it. */
        if (run->is.life == TKE_RUN_READY && silent && tke_source_is_image(run) &&
            now_us - run->last_request_us > keep_us)
            (void)tke_run_unload(svc, run, id, &ignored);
    }
    pthread_mutex_unlock(&svc->lock);
}

/* Removes the files of expired checkpoints, which lookups already ignore. */
static void reap_checkpoints(tke_service *svc)
{
    tke_checkpoint *c;
    int64_t now_us = tkc_wall_us(svc->clock);
    for (;;) {
        tke_checkpoint *due = NULL;
        pthread_mutex_lock(&svc->lock);
        for (size_t at = 0; !due && (c = tke_next_checkpoint(svc, &at));) {
            if (c->state == TKE_CKPT_DONE && c->expires_us && c->expires_us <= now_us)
                due = c;
        }
        if (due)
            /* Under the same lock, so that it is found once; the deletion takes the lock itself,
             * and therefore comes after. */
            due->state = TKE_CKPT_GONE;
        pthread_mutex_unlock(&svc->lock);
        if (!due)
            return;
        tke_checkpoint_delete(svc, due, NULL);
    }
}

static void forget_keys(tke_service *svc, int64_t now_ms)
{
    pthread_mutex_lock(&svc->lock);
    tke_idempotency_expire(svc, now_ms);
    pthread_mutex_unlock(&svc->lock);
    tke_links_expire(svc, now_ms, NULL);
    tke_uploads_expire(svc, now_ms, NULL);
}

void tke_service_end_links(tke_service *svc, const char *owner)
{
    tke_links_expire(svc, 0, owner);
    tke_uploads_expire(svc, 0, owner);
}

int64_t tke_housekeep(tke_service *svc, tke_due *due)
{
    int64_t now = tkc_now_ms(svc->clock), next = tke_poll_expire(svc, now);
    if (now >= due->second) {
        due->second = now + 1000;
        expire_sessions(svc, now);
        tke_gaps_expire(svc, now);
        ask_for_images(svc, now);
        tke_streams_ping(svc, now);
        tke_worker_release_when_idle(svc, now);
        /* At once, since passes wait and samples are refused until there is room. */
        if (tke_results_full(svc))
            tke_results_reap(svc, now);
    }
    if (now >= due->flush) {
        due->flush = now + 5000;
        /* What a crash may lose of the usage, and of the tokens of a day that quotas count, is what
         * was used since. */
        tke_usage_flush(svc);
        tke_results_reap(svc, now);
    }
    if (now >= due->minute) {
        due->minute = now + 60000;
        drop_ephemeral(svc, now);
        tke_sessions_forget(svc, now);
        reap_checkpoints(svc);
        retire_runs(svc);
        forget_keys(svc, now);
        trim();
    }
    return next < now + 1000 ? next - now : 1000;
}

void *tke_housekeeping_main(void *arg)
{
    tke_service *svc = arg;
    tke_due due = { 0 };
    for (;;) {
        int64_t wait = tke_housekeep(svc, &due);
        pthread_mutex_lock(&svc->lock);
        if (svc->stop) {
            pthread_mutex_unlock(&svc->lock);
            return NULL;
        }
        /* Woken early by a clock that jumps, and by a poll that becomes the first in the list. */
        tkc_cond_wait_until(&svc->timer, &svc->lock, tkc_deadline_ns(wait > 0 ? wait : 1));
        pthread_mutex_unlock(&svc->lock);
    }
}
