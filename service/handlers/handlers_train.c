/* handlers_train.c - training requests: models, passes, steps, saves, loads.
 *
 * Rule: a training request whose model and seq_id can be read is never refused for its contents,
 * because the client has already used that seq_id and later requests would wait for it. It is
 * queued with job->invalid set, and its future fails at its turn. Only requests whose model or
 * seq_id cannot be read are refused.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/request_decode.h"
#include "service/handlers/unknown_fields.h"
#include "service/store/age_files.h"
#include "service/worker/custom_losses.h"
#include "service/worker/jobs.h"
#include "service/worker/run_queue.h"

/* ---- shared by the handlers ---- */

/* The caller's run, or NULL after an answer. Runs live as long as the service. */
static tke_run *run_of(tke_call *call, const char *model_id)
{
    tke_service *svc = call->svc;
    pthread_mutex_lock(&svc->lock);
    tke_run *run = tke_find_run(svc, model_id);
    bool mine = run && tkc_cstr_eq(run->owner, call->owner);
    pthread_mutex_unlock(&svc->lock);
    if (!run)
        tke_refuse(call, 404, "not_found", "Unknown model '%.150s'", model_id ? model_id : "");
    else if (!mine)
        tke_refuse(call, 403, "forbidden", "You do not have access to this model");
    return mine ? run : NULL;
}

const char *tke_shared_folder(tke_call *call, const tke_base *base)
{
    char folder[PATH_MAX];
    bool local = !call->caller->key_id[0]; /* no keys: the client is on this machine */
    if (!(local || call->svc->set.share_disk) || !realpath(base->model->folder, folder))
        return NULL;
    return tkc_arena_str(&call->arena, tkc_str(folder), &call->err);
}

/* A base by the path of its folder, with "#4bit" or "#8bit" where it was packed. Without, the folder as it is;
 * or packed, if it is served in one form only. Nothing is opened. */
static tke_base *base_at(tke_call *call, const char *path, tke_base *const *all, size_t n)
{
    tinkc_str name = tkc_str(path);
    tke_base *packed = NULL;
    size_t n_packed = 0;
    while (name.len && name.data[name.len - 1] == '/')
        name.len--;
    tinkc_str plain = name;
    int32_t bits = tke_model_bits(&plain);
    for (size_t i = 0; i < n; i++) {
        const char *folder = tke_shared_folder(call, all[i]);
        int32_t has = all[i]->model->packed_bits;
        bool same = folder && tkc_str_is(name, folder);
        if (same && !has)
            return all[i];
        if (folder && bits && has == bits && tkc_str_is(plain, folder))
            return all[i];
        packed = same ? all[i] : packed;
        n_packed += same;
    }
    return n_packed == 1 ? packed : NULL;
}

tke_base *tke_base_named(tke_call *call, const char *name)
{
    tke_service *svc = call->svc;
    tke_base *one;
    pthread_mutex_lock(&svc->lock);
    tke_base *base = tke_find_base(svc, name);
    size_t n = 0;
    tke_base **all =
        !base && name && name[0] == '/'
            ? tkc_arena_array(&call->arena, tke_count(svc, TKE_BASES) + 1, sizeof *all, &call->err)
            : NULL;
    for (size_t at = 0; all && (one = tke_next_base(svc, &at));)
        all[n++] = one; /* never freed while the service lives */
    pthread_mutex_unlock(&svc->lock);
    base = n ? base_at(call, name, all, n) : base;
    return base && tke_call_offers(call, base->name) ? base : NULL;
}

static const char *flags_text(uint32_t train)
{
    static const char *const names[8] = { "nothing",     "attn",
                                          "mlp",         "attn+mlp",
                                          "unembed",     "attn+unembed",
                                          "mlp+unembed", "attn+mlp+unembed" };
    return names[train & 7];
}

/* ---- checks of a request's contents ---- */

static bool datum_tokens(tke_job *job, const tkc_datum *d, tke_datum *out, size_t index)
{
    tinkc_error *err = &job->invalid;
    size_t n = 0;
    for (size_t c = 0; c < d->chunks.len; c++) {
        if (d->chunks.data[c].kind != TINKC_CHUNK_TOKENS)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "datum %zu: chunk %zu is %s; this model accepts text only", index, c,
                            tke_chunk_name(d->chunks.data[c].kind));
        n += d->chunks.data[c].tokens.len;
    }
    out->n = n;
    if (d->chunks.len == 1) {
        out->tokens = d->chunks.data[0].tokens.data;
        return true;
    }
    int32_t *tokens = tkc_arena_array(&job->arena, n + 1, sizeof *tokens, err);
    if (!tokens)
        return false;
    out->tokens = tokens;
    for (size_t c = 0; c < d->chunks.len; c++) {
        tinkc_i32s part = d->chunks.data[c].tokens;
        if (part.len)
            memcpy(tokens, part.data, part.len * sizeof *tokens);
        tokens += part.len;
    }
    return true;
}

/* One input tensor, dense, in rows and columns. */
static bool datum_input(tke_job *job, const tkc_named_tensor *t, size_t vocab, size_t index,
                        tke_input *out)
{
    tinkc_error *err = &job->invalid;
    tinkc_tensor dense = { 0 };
    char what[128];
    (void)snprintf(what, sizeof what, "datum %zu: %.80s", index, t->name);
    if (!tkc_tensor_check(&t->tensor, what, err))
        return false;
    if (t->tensor.shape.len > 2 ||
        (t->tensor.shape.len == 2 && t->tensor.shape.data[1] > (int64_t)vocab))
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "%s: must have one or two dimensions, the second at most %zu", what, vocab);
    if (!tkc_tensor_dense(&t->tensor, &job->arena, &dense, err))
        return false;
    out->name = tkc_str(t->name);
    out->is_float = dense.dtype == TINKC_F32;
    out->data = dense.data;
    out->cols = dense.ndim == 2 ? (size_t)dense.shape[1] : 1;
    out->rows = dense.ndim == 2 ? (size_t)dense.shape[0] : dense.count;
    out->rank = (int32_t)t->tensor.shape.len;
    return true;
}

static bool check_datum(tke_job *job, const tke_base *base, const tkc_datum *d, size_t index)
{
    const tke_config *config = tke_model_config(base->model);
    /* A replayed request was accepted before a restart, perhaps with a larger context. */
    size_t context = job->replayed ? config->context : base->context;
    tinkc_error *err = &job->invalid;
    tke_datum *out = &job->in.pass.data[index];
    tke_input *inputs = tkc_arena_array(&job->arena, d->inputs.len + 1, sizeof *inputs, err);
    if (!inputs || !datum_tokens(job, d, out, index))
        return false;
    for (size_t i = 0; i < d->inputs.len; i++)
        if (!datum_input(job, &d->inputs.data[i], config->vocab, index, &inputs[i]))
            return false;
    const tke_loss *loss = &job->in.pass.loss;
    bool bound = loss->graph ? tke_datum_bind_custom(out, loss->graph, inputs, d->inputs.len,
                                                     &job->arena, index, err)
                             : tke_datum_bind(out, loss, inputs, d->inputs.len,
                                              job->kind == TKE_JOB_FORWARD, index, err);
    return bound && tke_datum_check(out, config->vocab, context, index, err);
}

/* The custom loss that a pass names. */
static bool find_custom(tke_job *job, const tke_run *run)
{
    const tkc_forward_backward_request *r = job->in.pass.request;
    tke_service *svc = job->svc;
    tinkc_error *err = &job->invalid;
    if (!tkc_cstr_eq(r->loss_fn, "custom"))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "loss_fn_config has no key 'loss_id' for %.60s",
                        r->loss_fn);
    if (r->loss_fn_config.len)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "loss_fn_config has no key '%.60s' for custom; it takes loss_id",
                        r->loss_fn_config.names[0]);
    if (!job->replayed) /* of those the caller has the lock, or is alone */
        pthread_mutex_lock(&svc->lock);
    const tke_graph *graph = tke_loss_find(run->session, r->loss_id);
    if (!job->replayed)
        pthread_mutex_unlock(&svc->lock);
    if (!graph)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "the session of this model has no custom loss '%.150s': a loss belongs to "
                        "the session that created it; create it again (create_custom_loss)",
                        r->loss_id);
    job->in.pass.loss = tke_loss_custom(graph);
    return true;
}

static void check_pass(tke_job *job, const tke_run *run)
{
    const tkc_forward_backward_request *r = job->in.pass.request;
    tinkc_error *err = &job->invalid;
    size_t n_keys = r->loss_fn_config.len;
    tke_loss_key *keys = tkc_arena_array(&job->arena, n_keys + 1, sizeof *keys, err);
    if (!keys)
        return;
    for (size_t i = 0; i < n_keys; i++)
        keys[i] =
            (tke_loss_key){ tkc_str(r->loss_fn_config.names[i]), r->loss_fn_config.values[i] };
    if (r->data.len == 0) {
        tkc_fail(err, TINKC_E_BAD_REQUEST, "data is empty: a pass needs at least one datum");
        return;
    }
    bool known = r->loss_id ? find_custom(job, run)
                            : tke_loss_parse(&job->in.pass.loss, tkc_str(r->loss_fn), keys, n_keys,
                                             job->svc->set.strict, err);
    if (!known)
        return;
    if (tke_loss_row_of(&job->in.pass.loss)->beta > 0 && !job->in.pass.loss.n_keys_given)
        tkc_log_line(&job->svc->log, TINKC_LOG_WARN, "%s: dro without beta: 0.05 is used", run->id);
    job->in.pass.data = tkc_arena_array(&job->arena, r->data.len, sizeof(tke_datum), err);
    if (!job->in.pass.data)
        return;
    job->in.pass.n_data = r->data.len;
    for (size_t i = 0; i < r->data.len && check_datum(job, run->base, &r->data.data[i], i); i++)
        job->in.pass.n_tokens += (int64_t)job->in.pass.data[i].n;
}

static void check_save_sampler(tke_job *job)
{
    const tkc_save_for_sampler_request *r = &job->in.save_sampler;
    bool named = r->path != NULL, numbered = r->sampling_session_seq_id.is == TKC_GIVEN;
    if (named == numbered)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "exactly one of path and sampling_session_seq_id must be given");
    else if (named && !tke_name_ok(r->path))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "Invalid checkpoint name '%.100s': letters, digits, '_', '.' and '-', at most 255",
                 r->path);
    else if (numbered && r->sampling_session_seq_id.value < 0)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "sampling_session_seq_id must not be negative");
    else if (tke_wrong_ttl(r->ttl_seconds))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "%s", tke_wrong_ttl(r->ttl_seconds));
    else if (r->kind && !tkc_cstr_eq(r->kind, "snapshot"))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "kind: '%.40s' is not supported; this server saves weights of kind snapshot",
                 r->kind);
}

static void check_save(tke_job *job)
{
    const tkc_save_weights_request *r = &job->in.save;
    if (!tke_name_ok(r->path))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "Invalid checkpoint name '%.100s': letters, digits, '_', '.' and '-', at most 255",
                 r->path ? r->path : "");
    else if (tke_wrong_ttl(r->ttl_seconds))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "%s", tke_wrong_ttl(r->ttl_seconds));
}

static void check_external(tke_job *job)
{
    const tkc_save_external_request *r = &job->in.save_external;
    if (!tke_name_ok(r->path))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "Invalid checkpoint name '%.100s': letters, digits, '_', '.' and '-', at most 255",
                 r->path ? r->path : "");
    else if (r->age_encryption_recipients &&
             !tke_age_check(r->age_encryption_recipients, &job->invalid))
        return;
    else if (tke_wrong_ttl(r->ttl_seconds))
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "%s", tke_wrong_ttl(r->ttl_seconds));
}

static void check_load(tke_job *job)
{
    const char *run, *name;
    int32_t kind;
    if (tke_path_split(&job->arena, job->in.load.path, &run, &kind, &name, &job->invalid) &&
        kind == TKE_CKPT_SAMPLER && job->in.load.optimizer)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST, "sampler checkpoints hold no optimizer state");
    if (job->svc->set.strict && job->seq > 1)
        tkc_fail(&job->invalid, TINKC_E_BAD_REQUEST,
                 "LoadWeights is not permitted with seq_id %lld", (long long)job->seq);
}

/* A save holds at least what it will write: the weights alone, or with gradients and moments in memory
 * more than the moments that are stored with them. */
static bool hold_storage(tke_job *job, const tke_run *run, bool optimizer)
{
    int64_t most = (int64_t)tke_adapter_bytes(run->base->model, &run->spec);
    /* A quarter is more than the weights: they are one of the five parts that tke_adapter_bytes
     * counts. */
    return tke_quota_storage(job->svc, run->owner, job, optimizer ? most : most / 4, &job->invalid);
}

void tke_check_job(tke_job *job, const tke_run *run)
{
    if (tkc_failed(&job->invalid))
        return;
    if (!run->base) {
        tkc_fail(&job->invalid, TINKC_E_SERVER, TKE_BASE_MISSING, run->base_model);
        return;
    }
    switch (job->kind) {
    case TKE_JOB_PASS:
    case TKE_JOB_FORWARD:
        check_pass(job, run); /* also counts its tokens */
        if (!job->replayed && !tkc_failed(&job->invalid))
            (void)tke_quota_tokens(job->svc, run->owner, job, job->in.pass.n_tokens, 0, NULL,
                                   &job->invalid);
        break;
    case TKE_JOB_OPTIM:
        tke_adam_check(&job->in.optim.adam, &job->invalid);
        break;
    case TKE_JOB_SAVE:
        if (job->replayed || hold_storage(job, run, true))
            check_save(job);
        break;
    case TKE_JOB_SAVE_SAMPLER:
        if (job->replayed || !job->in.save_sampler.path || hold_storage(job, run, false))
            check_save_sampler(job);
        break;
    case TKE_JOB_EXTERNAL:
        if (job->replayed || hold_storage(job, run, false))
            check_external(job);
        break;
    case TKE_JOB_LOAD:
        check_load(job);
        break;
    default:
        break;
    }
}

/* ---- handlers ---- */

static bool is_training(int32_t endpoint)
{
    return endpoint == TKC_EP_FORWARD_BACKWARD || endpoint == TKC_EP_FORWARD ||
           endpoint == TKC_EP_OPTIM_STEP || endpoint == TKC_EP_SAVE_WEIGHTS ||
           endpoint == TKC_EP_SAVE_FOR_SAMPLER || endpoint == TKC_EP_SAVE_EXTERNAL ||
           endpoint == TKC_EP_LOAD_WEIGHTS;
}

tke_txn *tke_handle_refused(tke_call *call)
{
    tke_service *svc = call->svc;
    const char *type = tke_call_header(call, "Content-Type");
    bool is_pb = type ? tke_call_is_protobuf(call) : !tkc_starts_with(call->body, "{");
    tke_head head;
    if (!call->route.endpoint || !is_training(call->route.endpoint->id) ||
        !tke_read_head(&call->arena, call->body, is_pb, &head) || head.seq.is != TKC_GIVEN)
        return NULL;
    pthread_mutex_lock(&svc->lock);
    tke_run *run = tke_find_run(svc, head.model_id);
    /* Or a client could use up numbers of models of others. */
    bool mine = run && tkc_cstr_eq(run->owner, call->owner);
    tke_txn *txn = mine ? tke_run_refused(svc, run, head.seq.value) : NULL;
    pthread_mutex_unlock(&svc->lock);
    return txn;
}

/* Locks: needs svc->lock. Is this the number that the first queued request of the run waits for? */
static bool is_awaited(const tke_run *run, int64_t seq)
{
    return run->queue && run->queue->kind != TKE_JOB_UNLOAD && run->queue->seq > run->next_seq &&
           seq == run->next_seq;
}

/* The sender of a number has failed and its owner knows: later requests need not wait for it. */
void tke_handle_skip(tke_call *call)
{
    tke_service *svc = call->svc;
    tke_head head;
    if (!tke_read_head(&call->arena, call->body, false, &head) || head.seq.is != TKC_GIVEN) {
        tke_refuse(call, 422, "unprocessable", "model_id and seq_id are required");
        return;
    }
    pthread_mutex_lock(&svc->lock);
    tke_run *run = tke_find_run(svc, head.model_id);
    bool mine = run && tkc_cstr_eq(run->owner, call->owner);
    /* Only while something waits for it: a number that is skipped in advance could be that of a
     * request on its way. */
    bool awaited = mine && is_awaited(run, head.seq.value);
    tke_txn *txn = awaited ? tke_run_refused(svc, run, head.seq.value) : NULL;
    pthread_mutex_unlock(&svc->lock);
    if (!mine)
        tke_refuse(call, 404, "not_found", "Unknown model '%.100s'", head.model_id);
    else if (!awaited)
        tke_refuse(call, 409, "not_awaited", "No request of this model waits for seq_id %lld",
                   (long long)head.seq.value);
    else if (txn)
        tke_answer_after(call, txn, 200, tkc_str("{}"));
    else
        tke_send_json(call->reply, 200, tkc_str("{}"));
}

static void accept_training(tke_call *call, int32_t kind)
{
    tke_service *svc = call->svc;
    const char *model_id = NULL;
    tkc_opt_i64 seq = { 0 };
    tke_job *job = tke_job_new(svc, kind, NULL, call->owner, &call->err);
    bool forward = call->route.endpoint->id == TKC_EP_FORWARD;
    bool is_pb = kind == TKE_JOB_PASS && tke_call_is_protobuf(call);
    if (!job || !tke_decode_job(job, call->body, is_pb, forward, &model_id, &seq, &call->err)) {
        /* The client has used its number for this body: refused without a mark, it would leave a
         * gap that later requests wait for. */
        if (call->err.code == TINKC_E_UNPROCESSABLE)
            tke_refuse_after(call, tke_handle_refused(call), 422, "unprocessable", "%s",
                             call->err.message);
        else if (call->err.cause == TINKC_E_TOO_LARGE)
            tke_refuse_after(call, tke_handle_refused(call), 413, "too_large",
                             "The request needs more memory than max_queued_bytes allows");
        else
            tke_send_failure(call->reply, svc->a, &call->err);
        tke_job_drop(job);
        return;
    }
    tke_run *run = run_of(call, model_id);
    if (!run) {
        tke_job_drop(job);
        return;
    }
    job->seq = seq.value;
    /* Before the lock and the queue: checking a large pass takes long, and what it finds is
     * reported at the job's turn. */
    tke_check_job(job, run);
    tke_run_accept(call, run, job, seq, call->body);
}

void tke_handle_pass(tke_call *call)
{
    if (!tke_call_is_protobuf(call) && !tke_call_is_json(call)) {
        tke_refuse_after(call, tke_handle_refused(call), 415, "unsupported_type",
                         "Content-Type '%.60s' is not supported",
                         tke_call_header(call, "Content-Type"));
        return;
    }
    accept_training(call, TKE_JOB_PASS);
}

void tke_handle_optim(tke_call *call)
{
    accept_training(call, TKE_JOB_OPTIM);
}

void tke_handle_save(tke_call *call)
{
    accept_training(call, TKE_JOB_SAVE);
}

void tke_handle_save_sampler(tke_call *call)
{
    accept_training(call, TKE_JOB_SAVE_SAMPLER);
}

void tke_handle_save_external(tke_call *call)
{
    accept_training(call, TKE_JOB_EXTERNAL);
}

void tke_handle_get_info(tke_call *call)
{
    tkc_get_info_request in;
    if (!tke_call_decode(call, &tkc_get_info_request_type, &in))
        return;
    const tke_run *run = run_of(call, in.model_id);
    if (!run)
        return;
    pthread_mutex_lock(&call->svc->lock);
    bool unloaded = run->is.life == TKE_RUN_UNLOADED;
    int64_t next_seq = tke_run_next_number(run);
    pthread_mutex_unlock(&call->svc->lock);
    if (unloaded) {
        tke_refuse(call, 404, "not_found", "Model was unloaded");
        return;
    }
    tkc_get_info_response out = { .model_id = run->id, .model_name = run->base_model };
    const tke_base *base = run->base;
    out.model_data.model_name = run->base_model;
    if (base) {
        out.model_data.arch = tke_model_config(base->model)->arch;
        const char *folder = tke_shared_folder(call, base);
        out.model_data.tokenizer_id = folder ? folder : run->base_model;
    }
    out.is_lora = (tkc_opt_bool)TKC_SOME(true);
    out.lora_rank = (tkc_opt_i64)TKC_SOME(run->spec.rank);
    if (next_seq)
        out.next_seq_id = (tkc_opt_i64)TKC_SOME(next_seq);
    tke_answer(call, &tkc_get_info_response_type, &out);
}

/* Locks: needs svc->lock. False: it could not be queued, or the run is unloaded. */
bool tke_run_unload(tke_service *svc, tke_run *run, char id[160], tinkc_error *err)
{
    (void)snprintf(id, 160, "%lld-%s:unload", (long long)svc->epoch, run->id);
    if (tke_find_job(svc, id))
        return true; /* it is under way, or was done a moment ago */
    if (tke_run_is_unloaded(run->is))
        return false;
    tke_job *job = tke_job_new(svc, TKE_JOB_UNLOAD, id, run->owner, err);
    bool queued = job && tke_job_publish(job, err);
    if (queued) {
        job->run = run;
        /* Behind all requests that have arrived: they still run, in order, before the model
         * goes. */
        job->seq = INT64_MAX;
        tke_run_on(run, TKE_ON_UNLOAD_ASKED);
        tke_job_keep(job);
        tke_run_insert(run, job);
        pthread_cond_signal(&svc->work);
    }
    tke_job_drop(job);
    return queued;
}

void tke_handle_unload(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_unload_model_request in;
    char id[160];
    if (!tke_call_decode(call, &tkc_unload_model_request_type, &in))
        return;
    tke_run *run = run_of(call, in.model_id);
    if (!run)
        return;
    pthread_mutex_lock(&svc->lock);
    bool again = tke_run_is_unloaded(run->is);
    bool known = tke_run_unload(svc, run, id, &call->err);
    pthread_mutex_unlock(&svc->lock);
    if (known)
        tke_answer(call, &tkc_untyped_future_type,
                   &(tkc_untyped_future){ .request_id = id, .model_id = run->id });
    else if (again)
        tke_refuse(call, 404, "not_found", "Model was unloaded");
    else
        tke_send_failure(call->reply, svc->a, &call->err);
}

/* ---- new models ---- */

static void available_models(tke_call *call, tkc_buf *out)
{
    tke_service *svc = call->svc;
    tinkc_error *err = &call->err;
    const tke_base *base;
    const char *comma = "";
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (base = tke_next_base(svc, &at));) {
        if (!tke_call_offers(call, base->name))
            continue;
        tkc_buf_cstr(out, comma, err);
        tkc_buf_cstr(out, base->name, err);
        comma = ", ";
    }
    pthread_mutex_unlock(&svc->lock);
    tkc_buf_terminate(out, err);
}

/* The base model; NULL: the request is invalid, and has been answered. */
static tke_base *check_create(tke_call *call, const tkc_create_model_request *in,
                              const tkc_lora_config *lora)
{
    tke_service *svc = call->svc;
    int64_t rank = lora->rank;
    tke_base *base = NULL;
    if (!in->base_model || !*in->base_model) {
        tke_refuse(call, 400, "bad_request", "base_model is required");
    } else if (rank <= 0) {
        tke_refuse(call, 400, "bad_request", "lora_config.rank must be positive");
    } else if (svc->set.strict && (rank & (rank - 1))) {
        tke_refuse(call, 400, "bad_request", "lora_config.rank must be a power of 2");
    } else if (rank > svc->set.max_lora_rank) {
        tke_refuse(call, 400, "bad_request", "lora_config.rank must be at most %lld",
                   (long long)svc->set.max_lora_rank);
    } else if (!lora->train_attn && !lora->train_mlp && !lora->train_unembed) {
        tke_refuse(call, 400, "bad_request",
                   "At least one of train_unembed, train_mlp, or train_attn must be True");
    } else if (in->model_seq_id < 0) {
        tke_refuse(call, 400, "bad_request", "model_seq_id must not be negative");
    } else if (!(base = tke_base_named(call, in->base_model)) && tkc_failed(&call->err)) {
        tke_send_failure(call->reply, svc->a, &call->err);
    } else if (!base) {
        tkc_buf names;
        tkc_buf_init(&names, svc->a, TKC_BUF_NO_MAX);
        available_models(call, &names);
        tke_refuse(call, 400, "unknown_model", "Unknown base model '%.100s'. Available: %.300s",
                   in->base_model, names.data ? names.data : "");
        tkc_buf_free(&names);
    }
    return base;
}

static tke_hash128 hash_create(const char *base_model, const tkc_lora_config *lora,
                               const char *path, bool optimizer, const tkc_metadata *metadata)
{
    tke_hasher h;
    tke_hash_begin(&h);
    tke_hash_str(&h, base_model);
    tke_hash_str(&h, path);
    tke_hash_i64(&h, optimizer);
    if (lora) {
        tke_hash_i64(&h, lora->rank);
        tke_hash_i64(&h, lora->seed.is == TKC_GIVEN ? (int64_t)lora->seed.value : -1);
        tke_hash_i64(&h, lora->seed.is);
        tke_hash_i64(&h, lora->train_attn | lora->train_mlp << 1 | lora->train_unembed << 2);
    }
    for (const char *const *p = metadata->pairs; p && *p; p++)
        tke_hash_str(&h, *p);
    return tke_hash_end(&h);
}

typedef struct new_run {
    const char *session_id;
    int64_t model_seq;
    const char *base_model;
    tke_base *base;
    tke_adapter_spec spec;
    tke_hash128 hash;
    const tkc_metadata *metadata;
    tke_job *job;
} new_run;

void tke_run_store(tke_txn *txn, const tke_run *run)
{
    /* OR IGNORE: the thread that accepts the request and the worker both write it, in any order. */
    tke_txn_exec(txn,
                 "INSERT OR IGNORE INTO runs(id, session_id, model_seq, owner, base_model, rank, "
                 "seed, flags,"
                 " user_metadata, created_us, last_request_us, state, corrupted, hash, request_id)"
                 " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
                 "ttittiiitiiibt", run->id, run->session->id, run->model_seq, run->owner,
                 run->base_model, (int64_t)run->spec.rank, (int64_t)run->spec.seed,
                 (int64_t)run->spec.train | (run->by_load ? TKE_RUN_BY_LOAD : 0),
                 run->user_metadata, run->created_us, run->last_request_us,
                 tke_run_stored_life(run->is),
                 (tinkc_bytes){ (const unsigned char *)&run->hash, sizeof run->hash },
                 run->create_request_id);
}

typedef struct refused_note {
    int32_t status; /* 0 = not refused */
    tinkc_error why;
} refused_note;

/* Locks: needs svc->lock. Adds the run and its first job. */
static tke_run *add_run(tke_call *call, const new_run *n, tke_session *session, const char *id,
                        refused_note *no)
{
    tke_service *svc = call->svc;
    size_t kept = 0;
    char *json =
        n->metadata->json.len ? tkc_arena_str(&call->arena, n->metadata->json, &call->err) : NULL;
    no->status = tke_kept_note(svc, call->owner, json, &kept, &no->why);
    tke_run *run = no->status ? NULL : tke_run_add(svc, id, call->owner, &call->err);
    if (!run) {
        tke_kept_give(svc, call->owner, &kept);
        return NULL;
    }
    run->kept = kept;
    run->session = session;
    session->n_runs++;
    run->model_seq = n->model_seq;
    run->base = n->base;
    run->spec = n->spec;
    run->hash = n->hash;
    run->base_model = tke_copy(svc, n->base_model, &call->err);
    run->user_metadata = tke_copy(svc, json, &call->err);
    run->create_request_id = tke_copy(svc, n->job->request_id, &call->err);
    run->create = n->job;
    run->by_load = n->job->kind == TKE_JOB_LOAD;
    n->job->run = run;
    if (tkc_failed(&call->err) || !tke_job_publish(n->job, &call->err)) {
        run->create = NULL;
        n->job->run = NULL;
        session->n_runs--;
        tke_run_undo(svc, run);
        return NULL;
    }
    tke_job_keep(n->job);
    return run;
}

/* Makes the run, or answers with the existing one if the same request made it before. */
static void make_run(tke_call *call, const new_run *n)
{
    tke_service *svc = call->svc;
    char id[128], request_id[160];
    int32_t status = 200;
    const char *finished = NULL;
    refused_note no = { 0 };
    tke_txn *txn = NULL;
    /* Made of the session and the client's number, so that a repeated request finds the run that it
     * made before. */
    (void)snprintf(id, sizeof id, "%.64s:train:%lld", n->session_id, (long long)n->model_seq);
    (void)snprintf(request_id, sizeof request_id, "%lld-%s:0", (long long)svc->epoch, id);
    n->job->request_id = tke_copy(svc, request_id, &call->err);
    pthread_mutex_lock(&svc->lock);
    tke_session *session = tke_find_session(svc, n->session_id);
    tke_run *run = tke_find_run(svc, id);
    if (!session) {
        status = 404;
    } else if (!tkc_cstr_eq(session->owner, call->owner)) {
        status = 403;
    } else if ((finished = session->finished)) {
        status = 410;
    } else if (run) {
        /* The same contents are a repetition of a request whose answer was lost; other contents
         * would give a client a model that it did not ask for. */
        status = tke_hash_eq(run->hash, n->hash) ? 200 : 400;
        (void)snprintf(request_id, sizeof request_id, "%s", run->create_request_id);
        if (status == 200) { /* its row may not have been written the first time */
            txn = tke_txn_new(svc->store, &call->err);
            tke_run_store(txn, run);
        }
    } else if ((run = add_run(call, n, session, id, &no))) {
        tke_session_touch(svc, session);
        txn = tke_txn_new(svc->store, &call->err);
        tke_run_store(txn, run);
        pthread_cond_signal(&svc->work);
    } /* else call->err says why */
    pthread_mutex_unlock(&svc->lock);
    if (status == 404 || status == 403 || status == 410)
        tke_refuse_session(call, status, n->session_id, finished);
    else if (status == 400)
        tke_refuse(call, 400, "model_seq_id_reused",
                   "model_seq_id was reused with different parameters");
    if (no.status)
        tke_refuse_kept(call, NULL, no.status, &no.why);
    if (status != 200 || no.status)
        return;
    tke_answer_stored(call, txn, &tkc_untyped_future_type,
                      &(tkc_untyped_future){ .request_id = request_id, .model_id = id });
}

/* False after an answer: it would not fit even if the server were empty. */
static bool can_ever_fit(tke_call *call, const new_run *n)
{
    int64_t memory = call->svc->set.memory_bytes;
    size_t bytes = tke_adapter_bytes(n->base->model, &n->spec);
    if (bytes <= (size_t)memory) {
        tkc_log_line(&call->svc->log, TINKC_LOG_INFO,
                     "a LoRA of rank %ld on %s of %s takes %zu MiB of %lld MiB", (long)n->spec.rank,
                     flags_text(n->spec.train), n->base_model, bytes >> 20,
                     (long long)(memory >> 20));
        return true;
    }
    tke_refuse(call, 400, "too_large",
               "A LoRA of rank %ld on %s needs %zu MiB; this server has %lld MiB in all",
               (long)n->spec.rank, flags_text(n->spec.train), bytes >> 20,
               (long long)(memory >> 20));
    return false;
}

bool tke_optimizer_ok(const tkc_optimizer_config *config, tinkc_error *err)
{
    return !config || tkc_cstr_eq(config->type, "adamw") ||
           tkc_fail(err, TINKC_E_BAD_REQUEST,
                    "The optimizer '%.60s' is not supported by this server; adamw is",
                    config->type);
}

/* False after an answer: this optimizer is not supported. */
static bool check_optimizer(tke_call *call, const tkc_optimizer_config *config)
{
    tinkc_error err = { 0 };
    if (!tke_optimizer_ok(config, &err))
        tke_refuse(call, 400, "bad_request", "%s", err.message);
    return !tkc_failed(&err);
}

void tke_handle_create_model(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_create_model_request in;
    if (!tke_call_parse(call, &tkc_create_model_request_type, &in) ||
        !check_optimizer(call, in.optimizer_config) ||
        !tke_call_fields_known(call))
        return;
    tkc_lora_config lora;
    tkc_message_init(&tkc_lora_config_type, &lora);
    if (in.lora_config)
        lora = *in.lora_config;
    else
        lora.rank = 32;
    tke_base *base = check_create(call, &in, &lora);
    if (!base)
        return;
    in.base_model = base->name;
    new_run n = { .session_id = in.session_id,
                  .model_seq = in.model_seq_id,
                  .base_model = in.base_model,
                  .base = base,
                  .metadata = &in.user_metadata };
    /* From the seed as it was given: a repetition without one would otherwise never match the
     * random one. */
    n.hash = hash_create(in.base_model, &lora, NULL, false, &in.user_metadata);
    uint64_t seed = lora.seed.is == TKC_GIVEN ? lora.seed.value : tkc_random(svc->clock);
    n.spec = (tke_adapter_spec){ .rank = (int32_t)lora.rank,
                                 .train = (lora.train_attn ? TKE_TRAIN_ATTN : 0u) |
                                          (lora.train_mlp ? TKE_TRAIN_MLP : 0u) |
                                          (lora.train_unembed ? TKE_TRAIN_UNEMBED : 0u),
                                 .alpha = (double)svc->set.lora_alpha,
                                 .seed = seed & 0x7fffffffffffffffu };
    /* Refused now: accepted, it would wait for room that can never come. */
    if (!can_ever_fit(call, &n))
        return;
    n.job = tke_job_new(svc, TKE_JOB_CREATE, NULL, call->owner, &call->err);
    if (!n.job) {
        tke_send_failure(call->reply, svc->a, &call->err);
        return;
    }
    make_run(call, &n);
    tke_job_drop(n.job);
}

/* load_weights without a model_id: makes a model like the one that the checkpoint is of. */
static void create_from_checkpoint(tke_call *call, const tkc_load_weights_request *in)
{
    tke_service *svc = call->svc;
    new_run n = { .session_id = in->session_id,
                  .model_seq = in->model_seq_id.value,
                  .metadata = &in->user_metadata };
    pthread_mutex_lock(&svc->lock);
    const tke_checkpoint *c = tke_find_checkpoint(svc, in->path, NULL);
    bool mine = c && (c->is_public || tkc_cstr_eq(c->owner, call->owner));
    if (mine && c->run) {
        n.base_model = c->run->base_model;
        n.base = c->run->base;
        n.spec = c->run->spec;
    }
    pthread_mutex_unlock(&svc->lock);
    if (n.base_model && !n.base) {
        tke_refuse(call, 400, "unknown_model", TKE_BASE_MISSING, n.base_model);
        return;
    }
    if (!mine || !n.base) {
        tke_refuse(call, c && !mine ? 403 : 404, c && !mine ? "forbidden" : "not_found",
                   "No checkpoint '%.200s'", in->path);
        return;
    }
    if (in->base_model && !tkc_cstr_eq(in->base_model, n.base_model)) {
        tke_refuse(call, 400, "bad_request", "The checkpoint is of '%.100s', not of '%.100s'",
                   n.base_model, in->base_model);
        return;
    }
    if (n.model_seq < 0) {
        tke_refuse(call, 400, "bad_request", "model_seq_id must not be negative");
        return;
    }
    if (!can_ever_fit(call, &n))
        return;
    n.hash = hash_create(in->base_model, NULL, in->path, in->optimizer, &in->user_metadata);
    n.job = tke_job_new(svc, TKE_JOB_LOAD, NULL, call->owner, &call->err);
    const char *ignored_id;
    tkc_opt_i64 ignored_seq;
    if (!n.job ||
        !tke_decode_job(n.job, call->body, false, false, &ignored_id, &ignored_seq, &call->err)) {
        tke_send_failure(call->reply, svc->a, &call->err);
        tke_job_drop(n.job);
        return;
    }
    n.job->in.load.creates = true;
    check_load(n.job);
    make_run(call, &n);
    tke_job_drop(n.job);
}

void tke_handle_load(tke_call *call)
{
    tkc_load_weights_request in;
    tinkc_error bad = { 0 }; /* accept_training decodes again and reports it */
    bool read = tkc_message_decode_noting(&tkc_load_weights_request_type, call->body,
                                          TINKC_E_UNPROCESSABLE, &call->arena, &in, &call->unknown,
                                          &bad);
    if (bad.code == TINKC_E_MEMORY)
        tke_send_failure(call->reply, call->svc->a, &bad);
    else if (!read || in.model_id)
        accept_training(call, TKE_JOB_LOAD);
    else if (!check_optimizer(call, in.optimizer_config) || !tke_call_fields_known(call))
        return;
    else if (in.weights_access_token && *in.weights_access_token)
        tke_refuse(call, 400, "bad_request", "weights_access_token " TKE_NO_ACCESS_TOKEN);
    else if (in.seq_id.value) /* a new model's first request has the number 0 */
        tke_refuse(call, 400, "bad_request",
                   "seq_id must not be given without model_id: it is for a load into a model");
    else if (in.session_id && in.model_seq_id.is == TKC_GIVEN)
        create_from_checkpoint(call, &in);
    else
        tke_refuse(call, 400, "bad_request",
                   "Either model_id and seq_id, or session_id and model_seq_id must be given");
}
