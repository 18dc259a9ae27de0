/* worker.c - the worker: one thread that owns all weights and decides what runs next.
 *
 * It takes one work item at a time: passes of any number of runs on one base model, one optimizer
 * step, one save or load, or one iteration of the generators. Runs take turns, the least
 * recently served first; passes of several runs share a work item and its tokens evenly. Training
 * and sampling share the time by train_share: the one that is behind runs first. Passes are cut at
 * microbatches, between which samples have their share (tke_work_between), so a short sample waits
 * for one microbatch, however long the pass is.
 *
 * Invariants. Only this thread takes jobs from the front of a run's queue, changes run->adapter and
 * begins images; so a job that it has seen runnable under svc->lock is still runnable when it takes
 * the lock again. It never computes, reads a file or waits under svc->lock.
 */
#include <assert.h>

#include "base/heap.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "service/worker/worker.h"
#include "service/worker/worker_files.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"

enum { MAX_JOBS = 64 }; /* in one work item */

typedef struct work_item {
    tke_job *jobs[MAX_JOBS];
    size_t n;
} work_item;

bool tke_worker_open(tke_service *svc, tinkc_error *err)
{
    svc->worker = tkc_zalloc(svc->a, sizeof *svc->worker, err);
    if (svc->worker)
        svc->worker->samples_end = &svc->worker->samples;
    return svc->worker != NULL;
}

void tke_worker_close(tke_service *svc)
{
    tkc_release(svc->a, svc->worker, sizeof *svc->worker);
}

void tke_worker_join(tke_service *svc)
{
    if (svc->worker->has_thread)
        pthread_join(svc->worker->thread, NULL);
    svc->worker->has_thread = false;
}

uint64_t tke_next_turn(tke_service *svc)
{
    return svc->worker->turn++;
}

void tke_room_changed(tke_service *svc)
{
    svc->worker->room_changes++;
}

bool tke_work_base(tke_service *svc, tke_base *base, tinkc_error *err)
{
    if (!base->loaded)
        base->loaded = svc->device->ops->model_load(svc->device, base->model, err);
    return base->loaded != NULL;
}

/* ---- choosing ---- */

/* A load waits for a checkpoint that is still being written. Locks: needs svc->lock. */
static bool waits_for_file(tke_service *svc, const tke_job *job)
{
    if (job->kind != TKE_JOB_LOAD)
        return false;
    const tke_checkpoint *c = tke_find_checkpoint(svc, job->in.load.path, NULL);
    return c && c->state == TKE_CKPT_PENDING;
}

static bool is_pass(const tke_job *job)
{
    return job->kind == TKE_JOB_PASS || job->kind == TKE_JOB_FORWARD;
}

/* The job that could run now, or NULL. Locks: needs svc->lock. */
static tke_job *runnable(tke_service *svc, tke_run *run)
{
    tke_job *job = run->create ? run->create : tke_run_head(run);
    if (!job || run->loaded || run->is.memory == TKE_RUN_YIELDING || waits_for_file(svc, job))
        return NULL;
    if (!run->base && job->replayed) /* its model has not been registered yet */
        return NULL;
    /* Looking for room walks all models, so a run that found none is not tried again until
     * something was released or some time has passed. */
    if (run->is.memory == TKE_RUN_WAITING && run->room_seen == svc->worker->room_changes &&
        tkc_monotonic_ns() < run->room_retry_ns)
        return NULL;
    if (!run->adapter && tke_run_image_is_written(run->is))
        return NULL;
    if (is_pass(job) && tke_results_full(svc)) {
        job->paused = true; /* results that were not fetched must not be dropped */
        job->reason = "results that were not fetched yet take all the room there is for results";
        return NULL;
    }
    return job;
}

/* The least recently served run that has work. Locks: needs svc->lock. */
static tke_run *next_run(tke_service *svc, const tke_base *base, uint64_t not_before)
{
    tke_run *run;
    tke_run *best = NULL;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        const tke_job *job;
        if (run->served >= not_before || (best && run->served >= best->served))
            continue;
        if (!(job = runnable(svc, run)))
            continue;
        if (base && (run->base != base || !is_pass(job) || !run->adapter))
            continue;
        best = run;
    }
    return best;
}

/* Takes at least one pass of a run, and more up to its share of tokens. Locks: needs svc->lock. */
static void take_passes(work_item *item, tke_run *run, int64_t share)
{
    tke_job *job = tke_run_head(run);
    do {
        share -= job->in.pass.n_tokens;
        item->jobs[item->n++] = tke_run_take(run);
        job = tke_run_head(run);
    } while (share > 0 && item->n < MAX_JOBS && job && is_pass(job));
}

static size_t count_pass_runs(tke_service *svc, const tke_base *base)
{
    tke_run *run;
    size_t n = 0;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        const tke_job *job = run->base == base && run->adapter ? runnable(svc, run) : NULL;
        n += job && is_pass(job);
    }
    return n ? n : 1;
}

/* Locks: needs svc->lock. The run is awake. */
static void fill_with_passes(tke_service *svc, work_item *item, tke_run *run)
{
    assert(run->adapter && run->base && !run->loaded);
    uint64_t before = svc->worker->turn;
    /* The same for each run, so that one with large passes does not take the whole work item. */
    int64_t share = svc->set.microbatch_tokens / (int64_t)count_pass_runs(svc, run->base);
    for (tke_run *next = run; next && item->n < MAX_JOBS; next = next_run(svc, run->base, before)) {
        take_passes(item, next, share);
        next->served = tke_next_turn(svc);
    }
}

/* A run that was asked for an image or to sleep. Locks: needs svc->lock. */
static tke_run *housekeeping(tke_service *svc)
{
    tke_run *run;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (run->adapter && !tke_run_image_is_written(run->is) &&
            (tke_run_image_is_wanted(run->is) || tke_run_goes_to_sleep(run->is)))
            return run;
    }
    return NULL;
}

/* ---- running ---- */

static void run_one(tke_service *svc, tke_job *job)
{
    switch (job->kind) {
    case TKE_JOB_CREATE:
        tke_work_create(svc, job);
        break;
    case TKE_JOB_OPTIM:
        tke_work_optim(svc, job);
        break;
    case TKE_JOB_SAVE:
    case TKE_JOB_SAVE_SAMPLER:
    case TKE_JOB_EXTERNAL:
        tke_work_save(svc, job);
        break;
    case TKE_JOB_LOAD:
        tke_work_load(svc, job);
        break;
    default:
        assert(job->kind == TKE_JOB_UNLOAD);
        tke_work_unload(svc, job);
        break;
    }
}

/* Pauses the job until memory has been released. */
void tke_work_wait_room(tke_service *svc, tke_run *run, tke_job *job)
{
    pthread_mutex_lock(&svc->lock);
    if (run->is.memory != TKE_RUN_WAITING)
        run->room_since_ns = tkc_monotonic_ns();
    tke_run_on(run, TKE_ON_NO_ROOM);
    run->room_seen = svc->worker->room_changes;
    run->room_retry_ns = tkc_deadline_ns(400); /* others may have become idle by then */
    job->paused = true;
    job->reason =
        tke_models_full(svc, false)
            ? "the server keeps no more models in memory (its setting max_models), and those have "
              "work; its turn comes when one of them is idle or has had a while"
            : "the server's memory is taken by other models; its turn comes when one of them is "
              "idle or has had a while";
    pthread_mutex_unlock(&svc->lock);
}

/* A run whose stored state is damaged can still load a checkpoint, but do nothing else before. */
static bool wake_for_load(tke_service *svc, tke_run *run, const tke_job *load, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    bool awake = tke_work_wake(svc, run, true, err);
    pthread_mutex_lock(&svc->lock);
    if (awake) {
        run->corrupted = true;
        run->lost_from = load->seq;
        run->lost_after = 0;
    }
    pthread_mutex_unlock(&svc->lock);
    return awake;
}

/* Runs one work item of training, starting with `run`; nothing if that must wait for memory. */
static void train(tke_service *svc, tke_run *run)
{
    tinkc_error err = { 0 };
    work_item item = { 0 };
    pthread_mutex_lock(&svc->lock);
    tke_job *first = run->create ? run->create : tke_run_head(run);
    assert(first); /* only the worker takes jobs from the front */
    /* An unload must not wait for memory only to give it back. */
    bool needs_adapter = !run->create && first->kind != TKE_JOB_UNLOAD;
    pthread_mutex_unlock(&svc->lock);
    if (needs_adapter && !run->adapter) {
        bool awake = tke_work_wake(svc, run, false, &err);
        /* A load replaces the state that cannot be read, and is the only way out for its client. */
        if (!awake && tkc_failed(&err) && first->kind == TKE_JOB_LOAD)
            awake = wake_for_load(svc, run, first, &err);
        if (!awake && !tkc_failed(&err)) {
            tke_work_wait_room(svc, run, first);
            return;
        }
    }
    pthread_mutex_lock(&svc->lock);
    if (!run->create) /* creating looks for room itself */
        tke_run_on(run, TKE_ON_ROOM_SETTLED);
    tke_job *job = run->create ? run->create : tke_run_head(run);
    assert(job == first);
    job->paused = false;
    job->reason = NULL;
    if (tkc_failed(&err))
        tkc_error_copy(&job->invalid, &err);
    if (!run->create && is_pass(job) && !tkc_failed(&err)) {
        fill_with_passes(svc, &item, run);
    } else {
        item.jobs[item.n++] = run->create ? run->create : tke_run_take(run);
        run->served = tke_next_turn(svc);
    }
    assert(item.n > 0);
    pthread_mutex_unlock(&svc->lock);
    if (is_pass(item.jobs[0]))
        tke_work_passes(svc, item.jobs, item.n);
    else
        run_one(svc, item.jobs[0]);
}

static void tend(tke_service *svc, tke_run *run)
{
    pthread_mutex_lock(&svc->lock);
    assert(run->adapter &&
           !tke_run_image_is_written(run->is)); /* only this thread begins an image */
    bool current = run->image_seq == run->next_seq || !run->dirty_since_ms;
    bool sleep = tke_run_goes_to_sleep(run->is) && current;
    pthread_mutex_unlock(&svc->lock);
    if (sleep)
        tke_work_sleep(svc, run);
    else
        tke_work_image(svc, run);
}

bool tke_training_is_behind(double share, int64_t train_ns, int64_t sample_ns)
{
    return (double)train_ns * (1 - share) <= (double)sample_ns * share;
}

/* Unused time is not carried over. */
static bool training_first(tke_service *svc, bool sampling)
{
    if (!sampling) {
        /* Training that had the machine for itself for an hour would otherwise stand still for as
         * long when samples come. */
        svc->worker->train_ns = svc->worker->sample_ns = 0;
        return true;
    }
    return tke_training_is_behind(svc->set.train_share, svc->worker->train_ns,
                                  svc->worker->sample_ns);
}

/* The time of training since it began or was last looked at. */
static void count_training(tke_service *svc)
{
    int64_t now = tkc_monotonic_ns();
    svc->worker->train_ns += now - svc->worker->train_since_ns;
    svc->worker->train_since_ns = now;
}

void tke_work_between(void *user)
{
    tke_service *svc = user;
    count_training(svc);
    while (!training_first(svc, tke_work_samples_start(svc))) {
        int64_t start = tkc_monotonic_ns();
        tke_work_samples_step(svc);
        svc->worker->sample_ns += tkc_monotonic_ns() - start;
    }
    tke_work_train_room(svc); /* the cache may have grown */
    svc->worker->train_since_ns = tkc_monotonic_ns();
}

/* Does one thing. False: there was nothing to do. */
static bool work_once(tke_service *svc)
{
    bool sampling = tke_work_samples_start(svc);
    pthread_mutex_lock(&svc->lock);
    tke_run *chore = housekeeping(svc);
    tke_run *run = next_run(svc, NULL, UINT64_MAX);
    pthread_mutex_unlock(&svc->lock);
    /* Before the run: one that waits for room may get it from the one that is to be written and put
     * to sleep. */
    if (chore)
        tend(svc, chore);
    int64_t start = tkc_monotonic_ns();
    if (run && training_first(svc, sampling)) {
        svc->worker->train_since_ns = start;
        train(svc, run); /* even if it must wait for room, others may have work */
        count_training(svc);
        return true;
    }
    if (sampling) {
        tke_work_samples_step(svc);
        if (!run)
            svc->worker->train_ns = svc->worker->sample_ns = 0;
        else
            svc->worker->sample_ns += tkc_monotonic_ns() - start;
        return true;
    }
    return chore != NULL;
}

/* After some time without requests, frees work space and the prompt cache. The first request that
 * needs them makes them again, and no result depends on them. */
static void release_idle(tke_service *svc)
{
    size_t at = 0;
    for (tke_base *base; (base = tke_work_next_base(svc, &at));) {
        if (base->infer && tke_infer_n_unfinished(base->infer))
            continue;
        tke_infer_free(base->infer);
        tke_trainer_free(base->trainer);
        base->infer = NULL;
        base->trainer = NULL;
    }
    tke_work_forget_snapshots(svc);
    tkc_heap_trim();
}

/* Locks: needs svc->lock. Is nothing of any size running or queued? The worker, which releases, does
 * so between two things. */
static bool is_idle(const tke_service *svc)
{
    return !svc->worker->n_samples && !svc->worker->n_images &&
           !tke_held_bytes(svc, TKE_HELD_QUEUED);
}

void tke_worker_release_when_idle(tke_service *svc, int64_t now_ms)
{
    pthread_mutex_lock(&svc->lock);
    if (!is_idle(svc)) {
        svc->worker->idle_since_ms = 0;
    } else if (!svc->worker->idle_since_ms) {
        svc->worker->idle_since_ms = now_ms;
    } else if (!svc->worker->released &&
               now_ms - svc->worker->idle_since_ms >= svc->set.idle_release_ms) {
        svc->worker->released = svc->worker->wants_release = true;
        pthread_cond_signal(&svc->work);
    }
    pthread_mutex_unlock(&svc->lock);
}

void *tke_worker_main(void *arg)
{
    tke_service *svc = arg;
    for (;;) {
        bool did = work_once(svc);
        pthread_mutex_lock(&svc->lock);
        /* Released only after a round without work: nothing may be under way in what is freed. */
        bool stop = svc->stop, release = svc->worker->wants_release && !did;
        svc->worker->wants_release &= !release;
        if (did) { /* the idle time starts again */
            svc->worker->idle_since_ms = 0;
            svc->worker->released = false;
        }
        if (release && !stop) {
            pthread_mutex_unlock(&svc->lock);
            release_idle(svc);
            pthread_mutex_lock(&svc->lock);
        }
        /* Looks twice a second for work that was not signalled. */
        if (!did && !stop) {
            svc->counters.worker_waits++;
            /* remaining samples wait for a file to be written */
            tkc_cond_wait_until(&svc->work, &svc->lock,
                                tkc_deadline_ns(svc->worker->samples ? 5 : 500));
        }
        pthread_mutex_unlock(&svc->lock);
        if (stop)
            break;
    }
    tke_work_samples_stop(svc);
    return NULL;
}

bool tke_worker_start(tke_service *svc, tinkc_error *err)
{
    svc->worker->has_thread =
        tkc_thread_start(&svc->worker->thread, tke_worker_main, svc, "tinkc-worker", err);
    return svc->worker->has_thread;
}
