/* results.c - where results are stored and for how long: small ones in memory, large ones in files.
 *
 * A result above result_spill_bytes is written to a file before its future completes: under tmp/,
 * which is emptied at startup, or with a journal in its run's folder, so that it survives a
 * restart. All results together may take result_store_bytes; above that, delivered ones are
 * dropped, oldest first, and new passes wait. May touch: those files, and the results of jobs.
 */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"

bool tke_results_open(tke_service *svc, tinkc_error *err)
{
    svc->results = tkc_zalloc(svc->a, sizeof *svc->results, err);
    if (svc->results)
        svc->results->readers = tkc_pool_new(svc->a, 1, "tinkc-results", err);
    return !tkc_failed(err);
}

void tke_results_stop(tke_service *svc)
{
    tkc_pool_free(svc->results->readers);
    svc->results->readers = NULL;
}

void tke_results_close(tke_service *svc)
{
    if (svc->results)
        tke_results_stop(svc);
    tkc_release(svc->a, svc->results, sizeof *svc->results);
}

int64_t tke_results_bytes(const tke_service *svc)
{
    return atomic_load(&svc->results->bytes);
}

int64_t tke_results_memory(const tke_service *svc)
{
    return atomic_load(&svc->results->memory);
}

bool tke_results_full(const tke_service *svc)
{
    return tke_results_bytes(svc) > svc->set.result_store_bytes;
}

bool tke_result_is_large(const tke_job *job)
{
    return !job->failed && job->result_is_pb &&
           (int64_t)job->result.len > job->svc->set.result_spill_bytes;
}

/* ---- files ---- */

/* True: its file is in the run's folder and lives as long as the run. */
static bool is_lasting(const tke_job *job)
{
    return job->run && job->seq > 0 && tke_store_durable(job->svc->store) &&
           job->svc->set.durability == TINKC_DURABILITY_JOURNAL;
}

static char *lasting_path(const tke_job *job, tkc_arena *arena, tinkc_error *err)
{
    char part[48];
    (void)snprintf(part, sizeof part, "results/%lld", (long long)job->seq);
    return tke_store_run_path(job->svc->store, arena, job->run->id, part, err);
}

/* Not synced: the file is not used after a crash. */
static bool write_plain(const char *path, const tkc_buf *bytes, tinkc_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", path);
    if (!tkc_write_all(fd, bytes->data, bytes->len))
        tkc_fail_errno(err, "%s", path);
    if (close(fd) != 0 && !tkc_failed(err))
        tkc_fail_errno(err, "%s", path);
    if (tkc_failed(err))
        (void)unlink(path);
    return !tkc_failed(err);
}

static char *write_result(tke_job *job, tkc_arena *arena, tinkc_error *err)
{
    if (!is_lasting(job)) {
        char *folder = tke_store_temp(job->svc->store, arena, err);
        char *path = folder ? tkc_path_join(arena, folder, "result", err) : NULL;
        if (path && write_plain(path, &job->result, err))
            return path;
        if (folder)
            (void)rmdir(folder);
        return NULL;
    }
    char *folder = tke_store_run_path(job->svc->store, arena, job->run->id, "results", err);
    char *path = lasting_path(job, arena, err);
    /* Synced, since its row, committed next, promises the result after a restart. */
    return path && tkc_make_lasting_dirs(folder, err) &&
                   tkc_write_file(path, job->result.data, job->result.len, 0600, err)
               ? path
               : NULL;
}

void tke_result_spill(tke_store *store, void *user, tinkc_error *err)
{
    tke_job *job = user;
    tkc_arena arena;
    tinkc_error why = { 0 };
    (void)store, (void)err;
    assert(!job->spill && tke_result_is_large(job));
    tkc_arena_init(&arena, job->svc->a, 0);
    char *path = write_result(job, &arena, &why);
    job->spill = path ? tke_copy(job->svc, path, &why) : NULL;
    if (job->spill) {
        job->result_bytes = (int64_t)job->result.len;
        tkc_buf_free(&job->result);
        tkc_buf_init(&job->result, job->svc->a, TKC_BUF_NO_MAX);
    } else {
        /* A full disk must not fail a pass that was computed: its number is used, and the client
         * could not repeat it. */
        tkc_log_line(&job->svc->log, TINKC_LOG_WARN, "%s: its result stays in memory: %s",
                     job->request_id, why.message);
    }
    tkc_arena_free(&arena);
}

bool tke_result_find(tke_job *job, tinkc_error *err)
{
    tkc_arena arena;
    struct stat st;
    tkc_arena_init(&arena, job->svc->a, 0);
    char *path = is_lasting(job) ? lasting_path(job, &arena, err) : NULL;
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        job->spill = tke_copy(job->svc, path, err);
        job->result_bytes = st.st_size;
    }
    tkc_arena_free(&arena);
    return job->spill != NULL;
}

static void remove_file(tke_job *job)
{
    if (!job->spill)
        return;
    (void)unlink(job->spill);
    char *slash = strrchr(job->spill, '/');
    if (slash && !is_lasting(job)) { /* it has a folder of its own under tmp/ */
        *slash = '\0';
        (void)rmdir(job->spill);
        *slash = '/';
    }
}

/* ---- reading ---- */

static void read_and_send(tkc_job *base)
{
    tke_result_read *r = (tke_result_read *)base;
    tke_job *job = r->job;
    tinkc_error err = { 0 };
    tkc_mapping file = { .data = (const unsigned char *)job->result.data, .len = job->result.len };
    bool mapped = job->spill && tkc_map_file(job->spill, &file, &err);
    /* A file that was cut off would be sent as a valid, shorter result. */
    if (mapped && (int64_t)file.len != job->result_bytes)
        tkc_fail(&err, TINKC_E_STORE, "%s: its size has changed", job->spill);
    r->send(r, (tinkc_bytes){ file.data, file.len }, &err);
    if (mapped)
        tkc_unmap_file(&file);
    const tinkc_allocator *a = job->svc->a;
    tke_job_drop(job);
    tkc_release(a, r, sizeof *r);
}

void tke_result_fetch(tke_result_read *r)
{
    tinkc_error err = { 0 };
    tke_service *svc = r->job->svc;
    r->base.run = read_and_send;
    /* Reading a file may wait for the disk, so it is left to a thread of its own; without one (the
     * service stops), it is read here. */
    if (!r->job->spill || !svc->results->readers ||
        !tkc_pool_submit(svc->results->readers, &r->base, &err))
        read_and_send(&r->base);
}

/* ---- expiry ---- */

void tke_result_count(tke_service *svc, tke_job *job)
{
    if (!job->spill)
        job->result_bytes = (int64_t)job->result.len;
    assert(job->result_bytes >= 0 && job->state == TKE_DONE);
    svc->results->bytes += job->result_bytes;
    svc->results->memory += job->spill ? 0 : job->result_bytes;
}

void tke_result_uncount(tke_service *svc, tke_job *job)
{
    assert(job->result_bytes >= 0 && tke_results_bytes(svc) >= job->result_bytes);
    svc->results->bytes -= job->result_bytes;
    svc->results->memory -= job->spill ? 0 : job->result_bytes;
}

static bool is_over(const tke_service *svc, const tke_job *job, int64_t now_ms)
{
    if (job->state != TKE_DONE)
        return false;
    /* A client that lost the connection in the middle of an answer may fetch it again for this
     * time. */
    if (job->delivered)
        return now_ms - job->delivered_ms > svc->set.result_grace_ms;
    return now_ms - job->done_ms > svc->set.result_ttl_ms;
}

/* Locks: needs svc->lock. Moves it from the map to the list of jobs to drop. */
static void take_out(tke_service *svc, tke_job *job, tke_job **gone)
{
    assert(job->state == TKE_DONE && !job->waiters);
    tke_result_uncount(svc, job);
    tke_take_job(svc, job->request_id);
    job->next = *gone;
    *gone = job;
}

/* Locks: needs svc->lock. The delivered result that was delivered longest ago. */
static tke_job *oldest_delivered(tke_service *svc)
{
    tke_job *job;
    tke_job *oldest = NULL;
    for (size_t at = 0; (job = tke_next_job(svc, &at));) {
        if (job->state == TKE_DONE && job->delivered && job->result_bytes > 0 &&
            (!oldest || job->delivered_ms < oldest->delivered_ms))
            oldest = job;
    }
    return oldest;
}

void tke_results_reap(tke_service *svc, int64_t now_ms)
{
    tke_job *gone = NULL, *job, *oldest;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (job = tke_next_job(svc, &at));)
        if (is_over(svc, job, now_ms))
            take_out(svc, job, &gone);
    /* Only delivered ones: a result that no client has yet cannot be computed again. */
    while (tke_results_full(svc) && (oldest = oldest_delivered(svc)))
        take_out(svc, oldest, &gone);
    if (gone)
        pthread_cond_signal(&svc->work); /* there may be room for the next pass */
    pthread_mutex_unlock(&svc->lock);
    for (tke_job *next; gone; gone = next) {
        next = gone->next;
        remove_file(gone);
        tke_job_drop(gone);
    }
}
