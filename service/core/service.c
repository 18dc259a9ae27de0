/* service.c - puts the parts together: settings, startup, shutdown, and calls from outside. */
#include "service/chat/chat_paths.h"
#include "service/core/base_models.h"
#include "service/core/housekeeping.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/core/settings.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/downloads.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/idempotency.h"
#include "service/handlers/long_requests.h"
#include "service/handlers/uploads.h"
#include "service/store/recovery.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/sample_events.h"
#include "service/worker/worker.h"
#include "service/worker/worker_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/heap.h"
#include "base/platform.h"

/* ---- settings ---- */

typedef struct setting {
    const char *name;
    size_t offset;
    int64_t scale; /* of the value in the table; 0 = a bool, -1 = a double */
    int64_t min, max;
} setting;

#define INT(name, scale, min, max)                                                                 \
    {                                                                                              \
#name, offsetof(tke_settings, name), scale, min, max                                       \
    }
#define SECONDS(name, min, max)                                                                    \
    {                                                                                              \
#name "_s", offsetof(tke_settings, name##_ms), 1000, min, max                              \
    }
#define FLAG(name)                                                                                 \
    {                                                                                              \
#name, offsetof(tke_settings, name), 0, 0, 1                                               \
    }
static const setting known[] = {
    /* Clients give up a poll after 45 s, and would count it as a failure. */
    SECONDS(long_poll, 0, 44),
    INT(pending_status, 1, 200, 408),
    INT(metadata_only_threshold, 1, 0, INT64_MAX),
    SECONDS(result_grace, 0, 1000000),
    SECONDS(result_ttl, 0, 100000000),
    INT(result_store_bytes, 1, 0, INT64_MAX),
    INT(result_spill_bytes, 1, 0, INT64_MAX),
    SECONDS(seq_gap_timeout, 1, 1000000),
    SECONDS(session_timeout, 1, 100000000),
    SECONDS(ephemeral_grace, 0, 100000000),
    SECONDS(ephemeral_idle, 1, 100000000),
    INT(max_ephemeral, 1, 1, 1 << 20),
    SECONDS(idle_release, 0, 100000000),
    SECONDS(session_keep, 1, 1000000000),
    SECONDS(run_keep, 0, 1000000000),
    INT(max_idle_sessions, 1, 0, 1 << 24),
    INT(max_kept_per_key, 1, 0, INT64_MAX),
    INT(max_kept_bytes, 1, 0, INT64_MAX),
    INT(max_lora_rank, 1, 1, 65536),
    INT(lora_alpha, 1, 1, 65536),
    INT(microbatch_tokens, 1, 1, 1 << 30),
    { "train_share", offsetof(tke_settings, train_share), -1, 0, 1 },
    INT(kv_bytes, 1, 1 << 20, INT64_MAX),
    INT(prefill_chunk, 1, 1, 1 << 20),
    INT(max_context, 1, 0, 1 << 26),
    INT(max_batch_tokens, 1, 0, 1 << 30),
    INT(max_models, 1, 0, 1 << 20),
    INT(max_sample_queue, 1, 1, 1 << 20),
    INT(max_queued_tokens, 1, 1, INT64_MAX),
    INT(max_queued_bytes, 1, 1 << 16, INT64_MAX),
    INT(max_num_samples, 1, 1, 1 << 20),
    INT(max_topk, 1, 1, 1 << 16),
    INT(max_temperature, 1, 1, INT64_MAX),
    SECONDS(autosave, 1, 1000000),
    INT(disk_reserve, 1, 0, INT64_MAX),
    INT(max_body_bytes, 1, 1024, INT64_MAX),
    INT(train_memory_bytes, 1, 1 << 20, INT64_MAX),
    INT(snapshot_memory_bytes, 1, 1, INT64_MAX),
    INT(keep_last_k, 1, 0, 1 << 20),
    FLAG(strict_steps),
    FLAG(emit_elementwise_loss),
    FLAG(share_disk),
    FLAG(jwt_auth),
    FLAG(use_pyqwest),
    FLAG(use_retrieve_futures),
    FLAG(openai),
};

typedef struct choice {
    const char *setting;
    const char *value;
    size_t offset;
    int32_t number;
} choice;

static const choice choices[] = {
    { "sample_logprobs", "scaled", offsetof(tke_settings, sample_logprobs), TKE_LOGPROBS_SCALED },
    { "sample_logprobs", "raw", offsetof(tke_settings, sample_logprobs), TKE_LOGPROBS_RAW },
    { "sample_logprobs", "processed", offsetof(tke_settings, sample_logprobs),
      TKE_LOGPROBS_PROCESSED },
    { "adapter_dtype", "f32", offsetof(tke_settings, adapter_dtype), TKE_F32 },
    { "adapter_dtype", "bf16", offsetof(tke_settings, adapter_dtype), TKE_BF16 },
    { "adapter_names", "auto", offsetof(tke_settings, adapter_names), TKE_NAMING_AUTO },
    { "adapter_names", "peft", offsetof(tke_settings, adapter_names), TKE_NAMING_PEFT },
    { "adapter_names", "hosted", offsetof(tke_settings, adapter_names), TKE_NAMING_HOSTED },
    { "keep_activations", "auto", offsetof(tke_settings, keep), TKE_KEEP_AUTO },
    { "keep_activations", "none", offsetof(tke_settings, keep), TKE_KEEP_NONE },
    { "keep_activations", "all", offsetof(tke_settings, keep), TKE_KEEP_ALL },
};

static bool set_number(tke_settings *set, const setting *s, const char *value, tinkc_error *err)
{
    unsigned char *at = (unsigned char *)set + s->offset;
    double d;
    bool whole = s->scale == 1; /* times may be fractions of a second */
    if (!tkc_parse_double(tkc_str(value), false, &d) || d < (double)s->min || d > (double)s->max ||
        (whole && d < 9e15 && (double)(int64_t)d < d))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "setting %s: '%.60s' is not a %snumber from %lld to %lld", s->name, value,
                        whole ? "whole " : "", (long long)s->min, (long long)s->max);
    if (s->scale < 0) {
        memcpy(at, &d, sizeof d);
        return true;
    }
    if (s->scale == 0) {
        bool flag = d != 0;
        memcpy(at, &flag, sizeof flag);
        return true;
    }
    d *= (double)s->scale;
    int64_t i = d < 9.2e18 ? (int64_t)d : INT64_MAX;
    memcpy(at, &i, sizeof i);
    return true;
}

static bool set_public_url(tke_settings *set, const char *value, tinkc_error *err)
{
    tinkc_str url = tkc_str(value);
    while (url.len && url.data[url.len - 1] == '/')
        url.len--;
    if (url.len >= sizeof set->public_url ||
        !(tkc_starts_with(url, "http://") || tkc_starts_with(url, "https://")))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "setting public_url: '%.60s' is not an http or https address", value);
    memcpy(set->public_url, url.data, url.len);
    set->public_url[url.len] = '\0';
    return true;
}

static bool set_one(tke_settings *set, const char *name, const char *value, tinkc_error *err)
{
    bool is_choice = false;
    if (tkc_cstr_eq(name, "public_url"))
        return set_public_url(set, value, err);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (tkc_cstr_eq(known[i].name, name)) {
            const char *number = value;
            if (known[i].scale == 0 && (tkc_cstr_eq(value, "on") || tkc_cstr_eq(value, "true")))
                number = "1";
            if (known[i].scale == 0 && (tkc_cstr_eq(value, "off") || tkc_cstr_eq(value, "false")))
                number = "0";
            return set_number(set, &known[i], number, err);
        }
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (!tkc_cstr_eq(choices[i].setting, name))
            continue;
        is_choice = true;
        if (tkc_cstr_eq(choices[i].value, value)) {
            memcpy((unsigned char *)set + choices[i].offset, &choices[i].number, sizeof(int32_t));
            return true;
        }
    }
    if (is_choice)
        return tkc_fail(err, TINKC_E_ARGUMENT, "setting %s: '%.60s' is none of its values", name,
                        value);
    return tkc_fail(err, TINKC_E_ARGUMENT, "unknown setting '%.60s'", name);
}

static int64_t free_memory(void)
{
    tkc_host_memory m = tkc_host_memory_now();
    return m.available < INT64_MAX ? (int64_t)m.available : INT64_MAX;
}

static void default_settings(tke_settings *s)
{
    *s = (tke_settings){ .long_poll_ms = 30000,
                         .pending_status = 408,
                         .metadata_only_threshold = 1 << 20,
                         .result_grace_ms = 300000,
                         .result_ttl_ms = 86400000,
                         .result_store_bytes = (int64_t)4 << 30,
                         .result_spill_bytes = 1 << 20,
                         .seq_gap_timeout_ms = 660000,
                         .session_timeout_ms = 300000,
                         .ephemeral_grace_ms = 3600000,
                         .ephemeral_idle_ms = 3600000,
                         .max_ephemeral = 64,
                         .idle_release_ms = 30000,
                         .session_keep_ms = 604800000,
                         .run_keep_ms = 604800000,
                         .max_idle_sessions = 10000,
                         .max_kept_per_key = (int64_t)32 << 20,
                         .max_kept_bytes = (int64_t)256 << 20,
                         .max_lora_rank = 256,
                         .lora_alpha = 32,
                         .train_share = 0.5,
                         .prefill_chunk = 512,
                         .max_sample_queue = 2000,
                         .max_queued_tokens = 8000000,
                         .max_num_samples = 1024,
                         .max_topk = 128,
                         .max_temperature = 2,
                         .autosave_ms = 60000,
                         .disk_reserve = (int64_t)1 << 30,
                         .max_body_bytes = (int64_t)1 << 30,
                         .archive_ms = 7200000,
                         .adapter_dtype = TKE_F32,
                         .emit_elementwise_loss = true,
                         .jwt_auth = true };
}

/* The caller's choice, else TINKC_DEVICE; NULL = auto. */
static const char *device_name(const tinkc_engine_options *o)
{
    return o->device && *o->device ? o->device : getenv("TINKC_DEVICE");
}

/* The caller's choice, else TINKC_DTYPE, else auto. */
static bool read_dtype(const tinkc_engine_options *o, int32_t *out, tinkc_error *err)
{
    static const char *const names[] = {
        [TKE_PRECISION_F32] = "f32", [TKE_PRECISION_BF16] = "bf16", [TKE_PRECISION_AUTO] = "auto"
    };
    const char *env = getenv("TINKC_DTYPE"), *name = o->dtype;
    if (!name)
        name = env && *env ? env : "auto";
    for (*out = 0; *out <= TKE_PRECISION_AUTO; ++*out)
        if (tkc_cstr_eq(name, names[*out]))
            return true;
    return tkc_fail(err, TINKC_E_ARGUMENT, "dtype '%.60s' is none of auto, f32, bf16", name);
}

static bool read_options(tke_settings *s, const tinkc_engine_options *o, tinkc_error *err)
{
    default_settings(s);
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved fields must be zero");
    if (!tke_device_name_check(device_name(o), err))
        return false;
    if (!read_dtype(o, &s->compute, err))
        return false;
    if (!tkc_check_range(o->durability, 0, TINKC_DURABILITY_JOURNAL, "durability", err) ||
        !tkc_check_range(o->threads, 0, INT64_MAX, "threads", err) ||
        !tkc_check_range(o->memory_bytes, 0, INT64_MAX, "memory_bytes", err) ||
        !tkc_check_range(o->session_timeout_ms, 0, INT64_MAX, "session_timeout_ms", err) ||
        !tkc_check_range(o->max_lora_rank, 0, INT64_MAX, "max_lora_rank", err))
        return false;
    s->strict = o->strict;
    s->threads = o->threads;
    s->memory_bytes = o->memory_bytes ? o->memory_bytes : free_memory() / 10 * 9;
    if (o->session_timeout_ms)
        s->session_timeout_ms = o->session_timeout_ms;
    if (o->max_lora_rank)
        s->max_lora_rank = o->max_lora_rank;
    s->durability = !o->store       ? TINKC_DURABILITY_CHECKPOINT
                    : o->durability ? o->durability
                                    : TINKC_DURABILITY_SNAPSHOT;
    for (const char *const *p = o->settings; p && p[0] && p[1]; p += 2)
        if (!set_one(s, p[0], p[1], err))
            return false;
    if (s->openai && !tke_openai_possible(err))
        return false;
    /* The two that clients take for 'not yet'. */
    if (s->pending_status != 200 && s->pending_status != 408)
        return tkc_fail(err, TINKC_E_ARGUMENT, "setting pending_status: 200 or 408");
    if (!s->max_queued_bytes)
        s->max_queued_bytes =
            s->memory_bytes / 4 > (int64_t)64 << 20 ? s->memory_bytes / 4 : (int64_t)64 << 20;
    if (!s->snapshot_memory_bytes)
        s->snapshot_memory_bytes =
            s->memory_bytes / 8 < (int64_t)1 << 30 ? s->memory_bytes / 8 : (int64_t)1 << 30;
    return true;
}

/* ---- start ---- */

static void wake_housekeeper(void *arg)
{
    tke_service *svc = arg;
    pthread_mutex_lock(&svc->lock);
    pthread_cond_signal(&svc->timer);
    pthread_mutex_unlock(&svc->lock);
}

/* Closed in the opposite order: objects give back what they hold of those before them. */
static const struct part {
    bool (*open)(tke_service *, tinkc_error *);
    void (*close)(tke_service *);
} parts[] = {
    { tke_tenants_open, tke_tenants_close },
    { tke_usage_open, tke_usage_close },
    { tke_results_open, tke_results_close },
    { tke_worker_open, tke_worker_close },
    { tke_registry_open, tke_registry_close },
    { tke_polls_open, tke_polls_free },
    { tke_streams_open, tke_streams_close },
    { tke_idempotency_open, tke_idempotency_close },
    { tke_uploads_open, tke_uploads_close },
    { tke_downloads_open, tke_downloads_close },
    { tke_long_requests_open, tke_long_requests_close },
};
enum { N_PARTS = sizeof parts / sizeof *parts };

bool tke_parts_open(tke_service *svc, tinkc_error *err)
{
    for (size_t i = 0; i < N_PARTS; i++)
        if (!parts[i].open(svc, err))
            return false;
    return true;
}

void tke_parts_close(tke_service *svc)
{
    for (size_t i = N_PARTS; i-- > 0;)
        parts[i].close(svc);
}

static void free_service(tke_service *svc)
{
    /* Before the store closes, so that what was used since the last flush still counts against
     * quotas. */
    if (svc->usage && svc->store)
        tke_usage_flush(svc);
    tkc_pool_free(svc->files);
    /* Before the parts: the callbacks of what it still commits use them. */
    tke_store_close(svc->store);
    tke_parts_close(svc);
    tke_device_close(svc->device);
    tkc_secret_free(svc->token_secret, sizeof *svc->token_secret);
    svc->clock->release(svc->clock->self);
    pthread_mutex_destroy(&svc->lock);
    pthread_mutex_destroy(&svc->tokenizer_lock);
    pthread_cond_destroy(&svc->work);
    pthread_cond_destroy(&svc->timer);
    pthread_cond_destroy(&svc->idle);
    tkc_release(svc->a, svc, sizeof *svc);
}

/* What is not set follows from the device. */
static void settle_microbatch(tke_settings *s, const tke_device_info *info)
{
    if (!s->microbatch_tokens)
        s->microbatch_tokens = (int64_t)info->microbatch_tokens;
    if (s->max_batch_tokens && s->microbatch_tokens > s->max_batch_tokens)
        s->microbatch_tokens = s->max_batch_tokens;
}

static void open_device(tke_service *svc, const tinkc_engine_options *o, tinkc_error *err)
{
    tke_device_info info;
    svc->device = tke_device_open(
        device_name(o),
        &(tke_device_options){ .n_threads = svc->set.threads, .precision = svc->set.compute },
        &svc->device_reason, err);
    if (!svc->device)
        return;
    svc->device->ops->info(svc->device, &info);
    settle_microbatch(&svc->set, &info);
    svc->memory_bounded = info.memory_bytes ? "card"
                          : o->memory_bytes ? "setting"
                                            : tkc_host_memory_now().bounded;
    tkc_log_line(&svc->log, TINKC_LOG_INFO, "device %s (%s): %s", info.name, info.text,
                 svc->device_reason.text);
}

static bool start(tke_service *svc, const tinkc_engine_options *o, tinkc_error *err)
{
    if (!tkc_cond_init(&svc->work, err) || !tkc_cond_init(&svc->timer, err) ||
        !tkc_cond_init(&svc->idle, err))
        return false;
    svc->store = tke_store_open(svc->a, &svc->log, o->store, err);
    if (svc->store)
        open_device(svc, o, err);
    svc->files = svc->device ? tkc_pool_new(svc->a, 1, "tinkc-files", err) : NULL;
    if (!svc->files || !tke_parts_open(svc, err))
        return false;
    svc->epoch = tke_store_epoch(svc->store);
    svc->token_secret = tkc_secret_alloc(sizeof *svc->token_secret, err);
    if (!svc->token_secret || !tke_owner_salt_load(&svc->owner_salt, svc->store, svc->clock, err))
        return false;
    if (svc->set.jwt_auth && !tke_token_secret_load(svc->token_secret, svc->store, svc->clock, err))
        return false;
    if (!tke_boot(svc, err))
        return false;
    /* After tke_boot: no thread runs yet, so the start needs no lock, and nothing may change what
     * it reads. */
    svc->clock->attach(svc->clock->self, wake_housekeeper, svc);
    atomic_store(&svc->threads_run, true);
    svc->has_housekeeper =
        tke_worker_start(svc, err) &&
        tkc_thread_start(&svc->housekeeper, tke_housekeeping_main, svc, "tinkc-cleanup", err);
    if (!svc->has_housekeeper)
        svc->clock->detach(svc->clock->self, svc);
    return svc->has_housekeeper;
}

static void stop_threads(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    svc->stop = true;
    pthread_cond_broadcast(&svc->work);
    pthread_cond_broadcast(&svc->timer);
    pthread_mutex_unlock(&svc->lock);
    tke_worker_join(svc);
    if (svc->has_housekeeper) {
        pthread_join(svc->housekeeper, NULL);
        svc->clock->detach(svc->clock->self, svc);
    }
    atomic_store(&svc->threads_run, false);
}

/* Fails the jobs that will never run, so that no future stays open. */
static void fail_leftovers(tke_service *svc)
{
    tke_run *run;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        tke_job_drop(run->create);
        tke_job_drop(run->loaded);
        run->create = run->loaded = NULL;
        while (run->queue) {
            tke_job *job = run->queue;
            run->queue = job->next;
            tke_job_drop(job);
        }
    }
}

/* A quarter of the memory, so that a server under load still trains; at least what one body of the
 * usual size needs. */
static size_t body_budget(const tke_settings *set)
{
    const int64_t least = (int64_t)128 << 20;
    int64_t quarter = set->memory_bytes / 4;
    return (size_t)(quarter > least ? quarter : least);
}

tke_service *tke_service_new(const tinkc_engine_options *options, tinkc_error *err)
{
    static const tinkc_engine_options none;
    const tinkc_engine_options *o = options ? options : &none;
    tke_settings set;
    if (!read_options(&set, o, err))
        return NULL;
    tke_service *svc = tkc_zalloc(o->allocator, sizeof *svc, err);
    if (!svc)
        return NULL;
    tkc_ref_init(&svc->refs);
    svc->a = o->allocator;
    svc->set = set;
    svc->log = (tkc_log){ o->log, o->log_user, o->log_level ? o->log_level : TINKC_LOG_WARN };
    svc->clock = o->clock ? o->clock : tkc_clock_real();
    svc->clock->acquire(svc->clock->self);
    atomic_init(&svc->draining, false);
    atomic_init(&svc->max_body, set.max_body_bytes);
    atomic_init(&svc->gone, NULL);
    pthread_mutex_init(&svc->lock, NULL);
    pthread_mutex_init(&svc->tokenizer_lock, NULL);
    tke_budget_init(&svc->bodies, svc->a, body_budget(&set));
    if (!start(svc, o, err)) {
        if (svc->worker)
            stop_threads(svc);
        tkc_pool_free(svc->files);
        svc->files = NULL;
        if (svc->registry)
            fail_leftovers(svc);
        free_service(svc);
        return NULL;
    }
    return svc;
}

/* ---- end ---- */

void tke_service_keep(tke_service *svc)
{
    tkc_ref_keep(&svc->refs);
}

void tke_service_drop(tke_service *svc)
{
    if (!svc || !tkc_ref_drop(&svc->refs))
        return;
    tinkc_error err = { 0 };
    if (tke_store_durable(svc->store) && svc->set.durability >= TINKC_DURABILITY_SNAPSHOT &&
        !tke_service_flush(svc, 60000, &err))
        tkc_log_line(&svc->log, TINKC_LOG_ERROR, "images could not be written: %s", err.message);
    /* The order matters: each pool may still feed those that are stopped after it, and leftover
     * jobs are failed only when nothing can complete them any more. */
    tke_long_requests_stop(svc); /* what they queue is still run or failed below */
    stop_threads(svc);
    tke_polls_close(svc);
    tke_downloads_stop(svc);
    tke_results_stop(svc);
    tke_file_work_wait(svc); /* a recorded save may start a delete (keep_last) */
    tkc_pool_free(svc->files);
    svc->files = NULL;
    tke_store_sync(svc->store);
    fail_leftovers(svc);
    tke_streams_ping(svc, INT64_MAX / 2);
    free_service(svc);
}

void tke_service_drain(tke_service *svc)
{
    atomic_store(&svc->draining, true);
}

/* ---- from outside ---- */

bool tke_service_add_model(tke_service *svc, const char *name, const char *folder, tinkc_error *err)
{
    if (!folder || !*folder)
        return tkc_fail(err, TINKC_E_ARGUMENT, "a model's folder is required");
    /* Before the lock is taken: it reads files, and every request would wait for them. */
    tke_model *model = tke_model_open(folder, err);
    tke_vocab *vocab = model ? tke_vocab_open(svc->a, model->folder, err) : NULL;
    tke_base *base = tkc_failed(err) ? NULL : tkc_zalloc(svc->a, sizeof *base, err);
    tinkc_str last = tkc_str(folder);
    while (last.len > 1 && last.data[last.len - 1] == '/')
        last.len--;
    for (size_t i = last.len; !name && i-- > 0;)
        if (last.data[i] == '/') {
            last = tkc_strn(last.data + i + 1, last.len - i - 1);
            break;
        }
    if (base)
        base->name = tkc_copy_str(svc->a, name ? tkc_str(name) : last, err);
    if (tkc_failed(err)) {
        tke_vocab_free(vocab);
        tke_model_drop(model);
        tkc_release(svc->a, base, sizeof *base);
        return false;
    }
    base->model = model;
    base->vocab = vocab;
    base->context = tke_model_config(model)->context;
    if (svc->set.max_context && base->context > (size_t)svc->set.max_context)
        base->context = (size_t)svc->set.max_context;
    base->added_us = tkc_wall_us(svc->clock);
    pthread_mutex_lock(&svc->lock);
    bool taken = tke_find_base(svc, base->name);
    if (!taken && tke_base_add(svc, base, err))
        /* In the same step, or a request could find the model while the runs from the store still
         * have none. */
        tke_boot_base(svc, base);
    pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
    if (taken)
        tkc_fail(err, TINKC_E_EXISTS, "a model named '%.150s' is registered already", base->name);
    if (tkc_failed(err)) {
        tke_vocab_free(vocab);
        tke_model_drop(model);
        tkc_release_str(svc->a, base->name);
        tkc_release(svc->a, base, sizeof *base);
        return false;
    }
    return true;
}

/* Locks: needs svc->lock. Has the run changed since its last image, and can one be written? */
static bool needs_image(const tke_run *run)
{
    return run->adapter && run->dirty_since_ms && run->is.image != TKE_IMAGE_FAILED;
}

static bool anything_dirty(tke_service *svc)
{
    const tke_run *run;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (tke_run_image_is_written(run->is) || tke_run_image_is_wanted(run->is) ||
            needs_image(run))
            return true;
    }
    return tke_image_under_way(svc);
}

/* Waits until every run's state is on disk. A run may change while its image is written, so the
 * loop asks for another one; unless new requests have stopped, this lasts until the deadline. */
bool tke_service_flush(tke_service *svc, int64_t timeout_ms, tinkc_error *err)
{
    tke_run *run;
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    bool in_time = true, failed = false;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (run->is.image == TKE_IMAGE_FAILED)
            tke_run_on(run, TKE_ON_IMAGE_FORGIVEN);
        if (needs_image(run) && !tke_run_image_is_written(run->is))
            tke_run_on(run, TKE_ON_IMAGE_ASKED);
    }
    pthread_cond_signal(&svc->work);
    while (in_time && anything_dirty(svc) && !svc->stop) {
        in_time = tkc_cond_wait_until(&svc->idle, &svc->lock, deadline);
        for (size_t at = 0; (run = tke_next_run(svc, &at));) {
            /* became dirty while its image was being written */
            if (needs_image(run) && run->is.image == TKE_IMAGE_IDLE) {
                tke_run_on(run, TKE_ON_IMAGE_ASKED);
                pthread_cond_signal(&svc->work);
            }
        }
    }
    for (size_t at = 0; (run = tke_next_run(svc, &at));)
        failed |= run->is.image == TKE_IMAGE_FAILED;
    pthread_mutex_unlock(&svc->lock);
    if (failed)
        return tkc_fail(err, TINKC_E_STORE, "an image could not be written; the log says why");
    return in_time ? true : tkc_fail(err, TINKC_E_TIMEOUT, "not all images were written in time");
}

bool tke_service_ready(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    bool ready = tke_count(svc, TKE_BASES) > 0;
    pthread_mutex_unlock(&svc->lock);
    return ready;
}

bool tke_service_openai(const tke_service *svc, bool wanted, bool *on, tinkc_error *err)
{
    *on = wanted || svc->set.openai;
    return !*on || tke_openai_possible(err);
}

void tke_service_gauge(tke_service *svc, int32_t gauge, int64_t change)
{
    atomic_fetch_add(&svc->gauges[gauge], change);
}

size_t tke_service_body_memory(const tke_service *svc)
{
    return svc->bodies.max;
}

const tinkc_allocator *tke_service_body_allocator(tke_service *svc)
{
    return &svc->bodies.allocator;
}

void tke_service_owner_of_key(tke_service *svc, tinkc_str key, char owner[32],
                              char key_id[TKE_KEY_ID])
{
    tke_owner_of_key(&svc->owner_salt, key, owner);
    tke_id_of_key(&svc->owner_salt, key, key_id);
}

void tke_service_set_gone(tke_service *svc, tke_gone_fn *gone)
{
    atomic_store(&svc->gone, gone);
}

const tinkc_allocator *tke_service_allocator(const tke_service *svc)
{
    return svc->a;
}

int64_t tke_service_max_body(const tke_service *svc)
{
    return atomic_load(&svc->max_body);
}

void tke_service_set_max_body(tke_service *svc, int64_t bytes)
{
    atomic_store(&svc->max_body, bytes);
}
