/* worker_train.c - passes and optimizer steps on the worker. */
#include "service/core/base_models.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/usage.h"
#include "service/store/run_source.h"
#include "service/worker/jobs.h"
#include "service/worker/run_curve.h"
#include "service/worker/worker.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"

/* ---- results ---- */

typedef struct record_parts {
    tkc_batched_tensor fields[2];
    int64_t *offsets[2];
    int64_t trailing[1];
} record_parts;

/* Does this datum have two-dimensional targets? Then its outputs are too. */
static bool is_soft(const tke_job *job, size_t i)
{
    const tkc_tensor *t = tkc_datum_input(&job->in.pass.request->data.data[i], "target_tokens");
    return t && t->shape.len == 2;
}

static bool same_form(const tke_job *job, size_t a, size_t b)
{
    return is_soft(job, a) == is_soft(job, b) && job->in.pass.data[a].k == job->in.pass.data[b].k;
}

static void fill_field(tkc_batched_tensor *field, const char *name, const float *data,
                       const size_t *at, size_t first, size_t n, int64_t *offsets)
{
    for (size_t i = 0; i <= n; i++)
        offsets[i] = (int64_t)((at[first + i] - at[first]) * sizeof(float));
    field->name = name;
    field->data = (tinkc_bytes){ (const unsigned char *)(data + at[first]), (size_t)offsets[n] };
    field->offsets = (tinkc_i64s){ offsets, n + 1 };
    field->dtype = TINKC_F32;
}

/* Datums [first, first + n) as one record. */
static bool make_record(tke_job *job, const tke_pass *pass, size_t first, size_t n,
                        tkc_array_record *out, tinkc_error *err)
{
    record_parts *parts = tkc_arena_zalloc(&job->arena, sizeof *parts, err);
    if (!parts)
        return false;
    for (size_t f = 0; f < 2; f++)
        if (!(parts->offsets[f] = tkc_arena_array(&job->arena, n + 1, sizeof(int64_t), err)))
            return false;
    fill_field(&parts->fields[0], "logprobs", pass->out.logprobs, pass->out.logprobs_at, first, n,
               parts->offsets[0]);
    if (is_soft(job, first)) {
        parts->trailing[0] = (int64_t)job->in.pass.data[first].k;
        parts->fields[0].trailing = (tinkc_i64s){ parts->trailing, 1 };
    }
    fill_field(&parts->fields[1], "elementwise_loss", pass->out.elementwise,
               pass->out.elementwise_at, first, n, parts->offsets[1]);
    out->type_tag = "ArrayRecord";
    out->fields.data = parts->fields;
    /* a custom loss is one number for its datum */
    out->fields.len = job->svc->set.emit_elementwise_loss && !pass->loss.graph ? 2 : 1;
    out->n_datums = (int64_t)n;
    return true;
}

/* Datums of the same form share one record, so that a result of thousands of examples has only a
 * few; the client splits them by their offsets. */
static bool encode_pass(tke_job *job, const tke_pass *pass, tinkc_error *err)
{
    tkc_array_record *records = tkc_arena_array(&job->arena, pass->n_data, sizeof *records, err);
    const char *names[TKE_MAX_METRICS];
    double values[TKE_MAX_METRICS];
    size_t n_records = 0;
    if (!records)
        return false;
    for (size_t first = 0, end; first < pass->n_data; first = end) {
        for (end = first + 1; end < pass->n_data && same_form(job, first, end);)
            end++;
        if (!make_record(job, pass, first, end - first, &records[n_records++], err))
            return false;
    }
    for (size_t i = 0; i < pass->out.n_metrics; i++) {
        names[i] = pass->out.metrics[i].name;
        values[i] = pass->out.metrics[i].value;
    }
    tkc_forward_backward_output out = { .type = "ArrayRecord", .n_datums = pass->n_data };
    out.records.data = records;
    out.records.len = n_records;
    out.metrics = (tkc_numbers){ names, values, pass->out.n_metrics };
    job->result_is_pb = true;
    return tkc_output_to_pb(&out, &job->result, err);
}

/* ---- passes ---- */

enum { SLICE_NS = 600000000 }; /* what a sample may have to wait for a microbatch */

static void ready_trainer(tke_service *svc, tke_base *base, tinkc_error *err)
{
    tke_device_info info;
    if (base->trainer || !tke_work_base(svc, base, err))
        return;
    svc->device->ops->info(svc->device, &info);
    base->trainer = tke_trainer_new(
        base->loaded,
        &(tke_trainer_options){ .microbatch_tokens = (size_t)svc->set.microbatch_tokens,
                                .keep = svc->set.keep,
                                .between = tke_work_between,
                                .user = svc,
                                .slice_ns = SLICE_NS,
                                .starts_slowly = info.memory_bytes > 0 },
        err);
}

/* A failed pass changed nothing, so the run is not dirty; `strict_steps` counts it. */
static void count_pass(tke_service *svc, tke_job *job, bool failed)
{
    tke_run *run = job->run;
    if (failed && job->kind == TKE_JOB_PASS)
        run->n_failed_passes++;
    if (failed)
        return;
    svc->counters.tokens_trained += (uint64_t)job->in.pass.n_tokens;
    pthread_mutex_lock(&svc->lock);
    if (job->kind == TKE_JOB_PASS) {
        run->n_passes++;
        run->n_pass_tokens += job->in.pass.n_tokens;
        tke_run_changed(svc, run, job->seq);
    }
    pthread_mutex_unlock(&svc->lock);
    tke_usage_add(svc, run->owner, run->session->id, run->base_model, TKE_USE_TRAINING,
                  job->in.pass.n_tokens);
}

static void note_loss(tke_service *svc, const tke_job *job, const tke_pass *pass)
{
    for (size_t i = 0; job->kind == TKE_JOB_PASS && i < pass->out.n_metrics; i++) {
        if (!tkc_cstr_eq(pass->out.metrics[i].name, "loss:sum"))
            continue;
        pthread_mutex_lock(&svc->lock);
        tke_run_note_loss(svc, job->run, pass->out.metrics[i].value, job->in.pass.n_tokens);
        pthread_mutex_unlock(&svc->lock);
    }
}

static void finish_pass(tke_service *svc, tke_job *job, tke_pass *pass)
{
    tinkc_error err = pass->err;
    bool ok = !tkc_failed(&err) && encode_pass(job, pass, &err);
    /* Before the answer: a client that asks for a flush right after it must find the run marked as
     * changed. */
    count_pass(svc, job, !ok);
    if (ok)
        note_loss(svc, job, pass);
    tke_pass_free(pass);
    if (ok)
        tke_job_succeed(job, (tinkc_str){ 0 });
    else
        tke_job_fail(job, &err);
}

bool tke_work_refuse_lost(tke_job *job)
{
    const tke_run *run = job->run;
    if (!run->lost_from || job->seq < run->lost_from)
        return false;
    tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
             "the server stopped suddenly and requests from seq_id %lld on were lost; this run is "
             "back at its state after seq_id %lld; load a checkpoint (load_weights) to continue",
             (long long)run->lost_from, (long long)run->lost_after);
    return true;
}

/* What the longest datum needs at least, if it is trained on. */
static size_t least_bytes(const tke_trainer *t, tke_job *const *jobs, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t d = 0; d < jobs[i]->in.pass.n_data; d++) {
            const tke_datum *one = &jobs[i]->in.pass.data[d];
            size_t bytes = tke_trainer_bytes(t, one->n, one->k, &jobs[i]->run->spec);
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Overflow of weights that the client's learning rate has made is not a failure of the service. */
static void blame_weights(tke_pass *p)
{
    double rms;
    tinkc_error why = { 0 };
    if (p->err.code != TINKC_E_SERVER || !p->not_finite || !p->adapter ||
        !tke_adapter_is_huge(p->adapter, &rms))
        return;
    tkc_fail(&why, TINKC_E_BAD_REQUEST,
             "%.200s. The weights are very large (root mean square %.3g): an earlier learning_rate "
             "was too high; load an earlier checkpoint",
             p->err.message, rms);
    p->err = why;
}

void tke_work_passes(tke_service *svc, tke_job **jobs, size_t n)
{
    tinkc_error err = { 0 };
    /* As many as MAX_JOBS of worker.c, which bounds n. */
    tke_pass passes[64], *list[64];
    tke_job *running[64];
    size_t n_running = 0;
    tke_base *base = jobs[0]->run->base;
    if (base)
        ready_trainer(svc, base, &err);
    for (size_t i = 0; i < n; i++) {
        tke_job *job = jobs[i];
        tkc_error_copy(&job->invalid, &err);
        if (tkc_failed(&job->invalid) || tke_work_refuse_lost(job)) {
            const tinkc_error why = job->invalid;
            count_pass(svc, job, true);
            tke_job_fail(job, &why);
            continue;
        }
        passes[n_running] = (tke_pass){ .adapter = job->run->adapter,
                                        .backward = job->kind == TKE_JOB_PASS,
                                        .loss = job->in.pass.loss,
                                        .data = job->in.pass.data,
                                        .n_data = job->in.pass.n_data };
        list[n_running] = &passes[n_running];
        running[n_running++] = job;
    }
    if (!n_running)
        return;
    svc->worker->training = base;
    svc->worker->training_bytes = least_bytes(base->trainer, running, n_running);
    tke_work_train_room(svc);
    tke_trainer_run(base->trainer, list, n_running);
    svc->worker->training = NULL;
    for (size_t i = 0; i < n_running; i++) {
        blame_weights(&passes[i]);
        finish_pass(svc, running[i], &passes[i]);
    }
}

/* ---- steps ---- */

static bool encode_step(tke_job *job, const tke_metric *metrics, size_t n, tkc_buf *out,
                        tinkc_error *err)
{
    static const char failed[] = "failed_fwdbwd_since_last_step";
    const char *names[TKE_MAX_METRICS + 1];
    double values[TKE_MAX_METRICS + 1];
    const tke_run *run = job->run;
    size_t n_all = 0;
    for (size_t i = 0; i < n; i++) {
        if (run->n_failed_passes && tkc_cstr_eq(metrics[i].name, failed))
            continue; /* the trainer has not seen those that were refused before it */
        names[n_all] = metrics[i].name;
        values[n_all++] = metrics[i].value;
    }
    if (run->n_failed_passes) {
        names[n_all] = failed;
        values[n_all++] = (double)run->n_failed_passes;
    }
    /* Not the client's table, which has no tag: it accepts results with another tag or none. */
    static const tkc_field fields[] = {
        { "type", TKC_CONST, 0, 0, "optim_step" },
        { "metrics", TKC_NUMBERS, 0, offsetof(tkc_optim_step_result, metrics), NULL },
    };
    static const tkc_message tagged = { "optim_step result", sizeof(tkc_optim_step_result), fields,
                                        2, NULL };
    return tkc_message_encode(
        &tagged, &(tkc_optim_step_result){ .metrics = { names, values, n_all } }, out, err);
}

void tke_work_optim(tke_service *svc, tke_job *job)
{
    tke_run *run = job->run;
    tke_metric metrics[TKE_MAX_METRICS];
    size_t n = 0;
    tinkc_error err = job->invalid;
    tkc_buf out;
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    if (!tkc_failed(&err) && tke_work_refuse_lost(job))
        err = job->invalid;
    if (svc->set.strict_steps && run->n_failed_passes)
        tkc_fail(&err, TINKC_E_BAD_REQUEST,
                 "%lld forward_backward requests failed since the last step",
                 (long long)run->n_failed_passes);
    if (!tkc_failed(&err)) {
        /* A failed step has consumed the gradients. */
        job->touched = !tke_optim_step(run->adapter, &job->in.optim.adam, metrics, &n, &err);
        pthread_mutex_lock(&svc->lock);
        tke_run_changed(svc, run, job->seq);
        if (run->curve)
            tke_curve_step(run->curve);
        pthread_mutex_unlock(&svc->lock);
    }
    for (size_t i = 0; i < n; i++)
        if (tkc_cstr_eq(metrics[i].name, "optim/weights_too_large"))
            tkc_log_line(&svc->log, TINKC_LOG_WARN,
                         "%s: weights have a root mean square of %.3g after a step with "
                         "learning_rate %g; results will overflow",
                         run->id, metrics[i].value, job->in.optim.adam.learning_rate);
    if (!tkc_failed(&err) && encode_step(job, metrics, n, &out, &err))
        tke_job_succeed(job, tkc_buf_view(&out));
    else
        tke_job_fail(job, &err);
    run->n_passes = run->n_pass_tokens = run->n_failed_passes = 0;
    tkc_buf_free(&out);
}
