/* worker_sample.c - samples on the worker: finds weights, runs generators, encodes results.
 *
 * A sample reads an immutable snapshot, never the weights in training. Snapshots of checkpoints are
 * read when first needed and kept while there is room.
 */
#include <assert.h>

#include "service/core/base_models.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/usage.h"
#include "service/store/checksums.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/sample_events.h"
#include "service/worker/worker.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"
#include "tinkc/sample.h"
#include "wire/sample_message.h"

/* ---- which weights ---- */

/* The snapshot to sample from, with a reference for the caller; NULL without err = the bare model.
 * *wait: the checkpoint is still being written. */
static tke_snapshot *find_snapshot(tke_service *svc, tke_job *job, bool *wait, tinkc_error *err)
{
    tke_sampler *s = job->in.sample.sampler;
    tke_checkpoint *c = job->in.sample.checkpoint;
    tke_base *base = job->in.sample.base;
    char *folder = NULL;
    tke_snapshot *found = NULL;
    pthread_mutex_lock(&svc->lock);
    if (s && s->ephemeral) {
        s->used_ms = tkc_now_ms(svc->clock);
        found = s->snapshot ? tke_snapshot_keep(s->snapshot) : NULL;
        folder = s->spill ? tkc_arena_cstr(&job->arena, s->spill, err) : NULL;
        if (!found && !folder)
            tkc_fail(err, TINKC_E_NOT_FOUND,
                     "the weights of this sampling session are gone: it was not used for long, or "
                     "many newer ones were made; save under a name what is needed for longer");
    } else if (c) {
        *wait = c->state == TKE_CKPT_PENDING;
        found = c->snapshot ? tke_snapshot_keep(c->snapshot) : NULL;
        c->used_ms = tkc_now_ms(svc->clock);
        if (!found && c->state == TKE_CKPT_GONE)
            tkc_fail(err, TINKC_E_NOT_FOUND, "Checkpoint '%.200s' was deleted", c->path);
        else if (!found)
            folder = tke_checkpoint_folder(svc, &job->arena, c->run_id, c->kind, c->name, err);
    }
    pthread_mutex_unlock(&svc->lock);
    if (found || *wait || !folder || tkc_failed(err))
        return found;
    found = tke_sums_check(folder, err) ? tke_snapshot_read(svc->device, base->model, folder, err)
                                        : NULL;
    if (!found)
        return NULL;
    size_t bytes = tke_snapshot_bytes(found);
    tke_work_snapshot_room(svc, bytes);
    pthread_mutex_lock(&svc->lock);
    /* Still empty, although the lock was released to read the file: only the worker sets it. */
    *(s && s->ephemeral ? &s->snapshot : &c->snapshot) = tke_snapshot_keep(found);
    tke_held_add(svc, TKE_HELD_SNAPSHOTS, bytes);
    pthread_mutex_unlock(&svc->lock);
    return found;
}

/* ---- the queue ---- */

bool tke_samples_have_room(const tke_service *svc, size_t n)
{
    /* Tokens are compared before the new ones are added: a single sample of any length is accepted
     * by an idle server. */
    return (int64_t)(svc->worker->n_samples + n) <= svc->set.max_sample_queue &&
           !tke_results_full(svc) &&
           (int64_t)svc->worker->n_sample_tokens <= svc->set.max_queued_tokens;
}

void tke_samples_push(tke_service *svc, tke_job *job)
{
    assert(!job->next && job->state == TKE_QUEUED && job->in.sample.base);
    svc->worker->n_samples++;
    svc->worker->n_sample_tokens += job->in.sample.gen.n_prompt;
    *svc->worker->samples_end = job;
    svc->worker->samples_end = &job->next;
    pthread_cond_signal(&svc->work);
}

size_t tke_samples_in_flight(const tke_service *svc)
{
    return svc->worker->n_samples;
}

/* Takes all out. */
static tke_job *take_samples(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    tke_job *jobs = svc->worker->samples;
    svc->worker->samples = NULL;
    svc->worker->samples_end = &svc->worker->samples;
    pthread_mutex_unlock(&svc->lock);
    return jobs;
}

/* ---- starting ---- */

static bool ready_infer(tke_service *svc, tke_base *base, tinkc_error *err)
{
    if (base->infer)
        return true;
    if (!tke_work_base(svc, base, err))
        return false;
    base->infer =
        tke_infer_new(base->loaded,
                      &(tke_infer_options){ .kv_bytes = tke_work_plan(svc, base).cache_most,
                                            .prefill_chunk = (size_t)svc->set.prefill_chunk,
                                            .max_rows = (size_t)svc->set.max_batch_tokens,
                                            .more = svc->set.kv_bytes ? NULL : tke_work_cache_room,
                                            .user = svc },
                      err);
    return base->infer != NULL;
}

static void leave(tke_service *svc, const tke_job *job)
{
    pthread_mutex_lock(&svc->lock);
    assert(svc->worker->n_samples > 0 &&
           svc->worker->n_sample_tokens >= job->in.sample.gen.n_prompt);
    svc->worker->n_samples--;
    svc->worker->n_sample_tokens -= job->in.sample.gen.n_prompt;
    pthread_mutex_unlock(&svc->lock);
}

static void fail_sample(tke_service *svc, tke_job *job, const tinkc_error *why)
{
    leave(svc, job);
    if (job->in.sample.stream) {
        tke_stream_end(job, NULL, why);
        tke_job_drop(job);
    } else {
        tke_job_fail(job, why);
    }
}

static uint64_t tenant_number(const char *owner)
{
    tke_hasher h;
    tke_hash_begin(&h);
    tke_hash_str(&h, owner);
    return tke_hash_end(&h).lo;
}

/* Gives one sample to its generator. False: it must wait for a file. */
static bool start(tke_service *svc, tke_job *job)
{
    tinkc_error err = { 0 };
    bool wait = false;
    tke_base *base = job->in.sample.base;
    tke_snapshot *snapshot = NULL;
    pthread_mutex_lock(&svc->lock);
    bool cancelled = job->in.sample.cancelled;
    pthread_mutex_unlock(&svc->lock);
    if (cancelled)
        tkc_fail(&err, TINKC_E_CANCELLED, "the sample was cancelled");
    if (!tkc_failed(&err) && ready_infer(svc, base, &err))
        snapshot = find_snapshot(svc, job, &wait, &err);
    /* Not started, and not failed: the save that it waits for has not been answered either. */
    if (wait)
        return false;
    if (!tkc_failed(&err)) {
        job->in.sample.gen.snapshot = snapshot;
        job->in.sample.gen.user = job;
        /* Owners take turns in the generator: one with many requests must not hold up the
         * others. */
        job->in.sample.gen.tenant = tenant_number(job->owner);
        job->in.sample.running = tke_infer_add(base->infer, &job->in.sample.gen, &err);
    }
    tke_snapshot_drop(snapshot);
    if (tkc_failed(&err)) {
        fail_sample(svc, job, &err);
        return true;
    }
    pthread_mutex_lock(&svc->lock);
    job->state = TKE_RUNNING;
    pthread_mutex_unlock(&svc->lock);
    job->next = svc->worker->generating;
    svc->worker->generating = job;
    return true;
}

bool tke_work_samples_start(tke_service *svc)
{
    tke_job *jobs = take_samples(svc);
    for (tke_job *next; jobs; jobs = next) {
        next = jobs->next;
        jobs->next = NULL;
        if (start(svc, jobs))
            continue;
        pthread_mutex_lock(&svc->lock); /* back to the end of the queue */
        /* At the end, so that samples of other checkpoints do not wait for this one's file. */
        *svc->worker->samples_end = jobs;
        svc->worker->samples_end = &jobs->next;
        pthread_mutex_unlock(&svc->lock);
    }
    return svc->worker->generating != NULL;
}

/* ---- results ---- */

static tkc_topk sampled_topk(tke_sequence q, size_t k)
{
    return (tkc_topk){ .ids = { q.topk_tokens, q.n * k },
                       .logprobs = { q.topk_logprobs, q.n * k },
                       .k = (uint32_t)k,
                       .rows = (uint32_t)q.n };
}

/* Encodes in the layout of the request. */
static bool encode_targets(tke_job *job, const tke_gen *gen, tkc_tensor *out, tinkc_error *err)
{
    const tkc_tensor *like = job->in.sample.targets;
    const tke_gen_request *in = &job->in.sample.gen;
    const float *dense = tke_gen_target_logprobs(gen);
    if (!like || !dense)
        return true;
    *out = *like;
    out->dtype = TINKC_F32;
    out->data = dense;
    if (!like->sparse)
        return true;
    float *cells = tkc_arena_array(&job->arena, like->count + 1, sizeof *cells, err);
    for (size_t i = 0, row = 0; cells && i < like->count; i++) {
        while ((int64_t)i >= like->crow.data[row + 1])
            row++;
        cells[i] = dense[row * in->n_targets + (size_t)like->col.data[i]];
    }
    out->data = cells;
    return cells != NULL;
}

static bool encode_alternatives(tke_job *job, const tke_gen *gen, tkc_sample_response *out,
                                tinkc_error *err)
{
    const tke_gen_request *in = &job->in.sample.gen;
    const int32_t *tokens = tke_gen_alternatives(gen);
    if (!in->n_alternatives || !tokens)
        return true;
    size_t cells = (in->n_prompt - 1) * in->n_alternatives;
    int64_t *wide = tkc_arena_array(&job->arena, cells + 1, sizeof *wide, err);
    int64_t *shape = tkc_arena_array(&job->arena, 2, sizeof *shape, err);
    if (!wide || !shape)
        return false;
    for (size_t i = 0; i < cells; i++)
        wide[i] = tokens[i];
    shape[0] = (int64_t)in->n_prompt - 1;
    shape[1] = (int64_t)in->n_alternatives;
    out->alt_tokens =
        (tkc_tensor){ .data = wide, .count = cells, .shape = { shape, 2 }, .dtype = TINKC_I64 };
    out->alt_logprobs = (tkc_tensor){ .data = tke_gen_alternative_logprobs(gen),
                                      .count = cells,
                                      .shape = { shape, 2 },
                                      .dtype = TINKC_F32 };
    return true;
}

static bool encode_sample(tke_job *job, const tke_gen *gen, tinkc_error *err)
{
    const tke_gen_request *in = &job->in.sample.gen;
    size_t n = tke_gen_n_samples(gen);
    tinkc_sequence *sequences = tkc_arena_array(&job->arena, n + 1, sizeof *sequences, err);
    tkc_sample_response out = { 0 };
    if (!sequences)
        return false;
    for (size_t i = 0; i < n; i++) {
        tke_sequence q = tke_gen_sequence(gen, i);
        sequences[i].tokens = (tinkc_i32s){ q.tokens, q.n };
        sequences[i].logprobs = (tinkc_f32s){ q.logprobs, q.n };
        sequences[i].stop_reason = q.stopped ? TINKC_STOP : TINKC_STOP_LENGTH;
    }
    out.sequences.data = sequences;
    out.sequences.len = n;
    if (in->topk_sample_logprobs) {
        tkc_topk *beside = tkc_arena_array(&job->arena, n, sizeof *beside, err);
        if (!beside)
            return false;
        for (size_t i = 0; i < n; i++)
            beside[i] = sampled_topk(tke_gen_sequence(gen, i), in->topk_sample_logprobs);
        out.sampled_topk = beside;
    }
    if (in->prompt_logprobs)
        out.prompt_logprobs = (tinkc_f32s){ tke_gen_prompt_logprobs(gen), in->n_prompt };
    if (in->topk_prompt_logprobs) {
        size_t cells = in->n_prompt * in->topk_prompt_logprobs;
        out.topk = (tkc_topk){ .ids = { tke_gen_topk_tokens(gen), cells },
                               .logprobs = { tke_gen_topk_logprobs(gen), cells },
                               .k = (uint32_t)in->topk_prompt_logprobs,
                               .rows = (uint32_t)in->n_prompt };
    }
    if (!encode_targets(job, gen, &out.target_prompt_logprobs, err) ||
        !encode_alternatives(job, gen, &out, err))
        return false;
    out.prompt_cache_hit_tokens = (int32_t)tke_gen_cache_hits(gen);
    job->result_is_pb = true;
    return tkc_sample_response_to_pb(&out, &job->result, err);
}

static void count_sample(tke_service *svc, const tke_job *job, const tke_gen *gen)
{
    const tke_sampler *s = job->in.sample.sampler;
    const char *session = s && s->session ? s->session->id : "";
    const char *base = job->in.sample.base->name;
    int64_t sampled = 0, cached = (int64_t)tke_gen_cache_hits(gen);
    int64_t prefill = (int64_t)job->in.sample.gen.n_prompt - cached;
    for (size_t i = 0; i < tke_gen_n_samples(gen); i++)
        sampled += (int64_t)tke_gen_sequence(gen, i).n;
    tke_usage_add(svc, job->owner, session, base, TKE_USE_PREFILL, prefill);
    tke_usage_add(svc, job->owner, session, base, TKE_USE_PREFILL_CACHED, cached);
    tke_usage_add(svc, job->owner, session, base, TKE_USE_SAMPLED, sampled);
    svc->counters.tokens_sampled += (uint64_t)sampled;
    svc->counters.tokens_prefilled += (uint64_t)prefill;
}

static void forget_running(tke_service *svc, const tke_job *job)
{
    tke_job **at = &svc->worker->generating;
    while (*at != job) {
        assert(*at); /* every sample of a generator is in the list */
        at = &(*at)->next;
    }
    *at = job->next;
}

static void finish(tke_service *svc, tke_gen *gen)
{
    tke_job *job = tke_gen_user(gen);
    tinkc_error err = *tke_gen_error(gen);
    forget_running(svc, job);
    if (!tkc_failed(&err))
        count_sample(svc, job, gen);
    if (!tkc_failed(&err) && tke_gen_capped(gen))
        tkc_log_line(&svc->log, TINKC_LOG_WARN,
                     "request %s gave no limit of tokens and was cut where the memory for its keys "
                     "and values ends (setting kv_bytes)",
                     job->request_id);
    if (tkc_failed(&err)) {
        fail_sample(svc, job, &err);
    } else if (job->in.sample.stream) {
        /* Before the answer: a client that sends its next sample at once must find this one's place
         * free. */
        leave(svc, job);
        tke_stream_end(job, gen, NULL);
        tke_job_drop(job);
    } else if (encode_sample(job, gen, &err)) {
        leave(svc, job);
        tke_job_succeed(job, (tinkc_str){ 0 });
    } else {
        fail_sample(svc, job, &err);
    }
    tke_gen_free(gen);
}

/* ---- one iteration ---- */

static void attend_running(tke_service *svc)
{
    for (tke_job *job = svc->worker->generating; job; job = job->next) {
        pthread_mutex_lock(&svc->lock);
        bool cancelled = job->in.sample.cancelled;
        pthread_mutex_unlock(&svc->lock);
        tke_stream *stream = job->in.sample.stream;
        if (stream && !tke_gen_done(job->in.sample.running))
            tke_stream_tokens(job, job->in.sample.running);
        if (cancelled || (stream && tke_stream_closed(stream)))
            tke_gen_cancel(job->in.sample.running);
    }
}

static void collect(tke_service *svc, tke_infer *infer)
{
    for (tke_gen *gen; (gen = tke_infer_next_done(infer));)
        finish(svc, gen);
}

/* Runs one step of each generator. */
void tke_work_samples_step(tke_service *svc)
{
    size_t at = 0;
    for (tke_base *base; (base = tke_work_next_base(svc, &at));) {
        if (base->infer && tke_infer_n_unfinished(base->infer) && tke_infer_step(base->infer))
            svc->counters.sample_steps++;
        if (base->infer)
            collect(svc, base->infer);
    }
    attend_running(svc);
}

/* The service ends: unfinished samples are lost. */
void tke_work_samples_stop(tke_service *svc)
{
    tinkc_error why = { 0 };
    tkc_fail(&why, TINKC_E_SERVER, "the server is stopping");
    for (tke_job *job = svc->worker->generating; job; job = job->next)
        tke_gen_cancel(job->in.sample.running);
    /* Bounded, so that a generator that does not end cannot hold up the end of the process. */
    for (int round = 0; svc->worker->generating && round < 1000; round++)
        tke_work_samples_step(svc);
    tke_job *jobs = take_samples(svc);
    for (tke_job *next; jobs; jobs = next) {
        next = jobs->next;
        fail_sample(svc, jobs, &why);
    }
}
