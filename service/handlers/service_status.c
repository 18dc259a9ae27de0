/* service_status.c - the status report: counters, memory by name, the device, quotas.
 *
 * Reads everything, changes nothing. Locks: takes svc->lock for as long as it copies numbers.
 */
#include "base/heap.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "service/handlers/futures_poll.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/worker.h"
#include "service/worker/worker_memory.h"

typedef struct counts {
    const char *name;
    const char *help;
    uint64_t value;
} counts;

enum { N_COUNTS = 20, MAX_PARTS = 32, DEVICE_PARTS = 16 };

static void take_counts(tke_service *svc, counts c[N_COUNTS])
{
    const tke_run *run;
    uint64_t awake = 0, queued = 0;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        awake += run->adapter != NULL;
        for (const tke_job *job = run->queue; job; job = job->next)
            queued++;
    }
    const counts now[N_COUNTS] = {
        { "requests_total", "Requests taken in", svc->counters.requests },
        { "trained_tokens_total", "Tokens of finished passes", svc->counters.tokens_trained },
        { "sampled_tokens_total", "Tokens generated", svc->counters.tokens_sampled },
        { "prefilled_tokens_total", "Prompt tokens computed", svc->counters.tokens_prefilled },
        { "sample_steps_total", "Steps of sampling, each a token for every running sample",
          svc->counters.sample_steps },
        { "worker_waits_total", "Times that the worker found nothing to do",
          svc->counters.worker_waits },
        { "base_models", "Base models registered", tke_count(svc, TKE_BASES) },
        { "sessions", "Sessions known", tke_count(svc, TKE_SESSIONS) },
        { "runs", "Training runs known", tke_count(svc, TKE_RUNS) },
        { "runs_in_memory", "Training runs whose weights are in memory", awake },
        { "queued_training_requests", "Training requests not yet started", queued },
        { "samples_in_flight", "Samples queued or running", tke_samples_in_flight(svc) },
        { "open_polls", "Polls that wait for a result", tke_polls_count(svc) },
        { "adapter_bytes", "Memory of weights, gradients and moments",
          tke_held_bytes(svc, TKE_HELD_ADAPTERS) },
        { "snapshot_bytes", "Memory of snapshots for sampling",
          tke_held_bytes(svc, TKE_HELD_SNAPSHOTS) },
        { "result_bytes", "Memory of results not yet dropped", (uint64_t)tke_results_bytes(svc) },
        { "queued_bytes", "Memory of training requests not yet run",
          tke_held_bytes(svc, TKE_HELD_QUEUED) },
        { "request_bytes", "Memory of requests being read and decoded",
          tke_budget_used(&svc->bodies) },
        { "exchanges", "HTTP requests and their answers under way",
          (uint64_t)atomic_load(&svc->gauges[TKE_GAUGE_EXCHANGES]) },
        { "connections", "HTTP connections",
          (uint64_t)atomic_load(&svc->gauges[TKE_GAUGE_CONNECTIONS]) },
    };
    memcpy(c, now, sizeof now);
    pthread_mutex_unlock(&svc->lock);
}

/* ---- memory, by name ---- */

typedef struct part {
    const char *name; /* static */
    uint64_t bytes;
} part;

/* All memory of this process: what each part of the service reports, what the C library keeps
 * unused, and the remaining resident pages. */
static size_t take_memory(tke_service *svc, part out[MAX_PARTS])
{
    tke_memory_use device[DEVICE_PARTS];
    tke_device_info info;
    svc->device->ops->info(svc->device, &info);
    size_t n = 0, n_device = svc->device->ops->memory(svc->device, device, DEVICE_PARTS);
    tkc_heap heap = tkc_heap_now();
    uint64_t named = 0, anonymous = heap.resident - heap.resident_files;
    pthread_mutex_lock(&svc->lock);
    out[n++] = (part){ "adapters", tke_held_bytes(svc, TKE_HELD_ADAPTERS) };
    out[n++] = (part){ "snapshots", tke_held_bytes(svc, TKE_HELD_SNAPSHOTS) };
    out[n++] = (part){ "custom_losses", tke_held_bytes(svc, TKE_HELD_LOSSES) };
    out[n++] = (part){ "results", (uint64_t)tke_results_memory(svc) };
    out[n++] = (part){ "queued_requests", tke_held_bytes(svc, TKE_HELD_QUEUED) };
    pthread_mutex_unlock(&svc->lock);
    out[n++] = (part){ "requests_under_way", tke_budget_used(&svc->bodies) };
    out[n++] = (part){ "work_space", heap.pages };
    out[n++] = (part){ "database", (uint64_t)tke_store_memory(svc->store) };
    for (size_t i = 0; !info.memory_bytes && i < n_device; i++)
        if (!tkc_cstr_eq(device[i].name, "weights")) /* mapped files: in resident_files */
            out[n++] = (part){ device[i].name, device[i].bytes };
    for (size_t i = 0; i < n; i++)
        named += out[i].bytes;
    out[n++] = (part){ "unused_heap", heap.unused };
    named += heap.unused;
    out[n++] = (part){ "other", anonymous > named ? anonymous - named : 0 };
    out[n++] = (part){ "resident", heap.resident };
    out[n++] = (part){ "resident_files", heap.resident_files };
    return n;
}

/* The memory of a device that has its own: apart from the process's. */
static void write_device_memory(tke_service *svc, tkc_buf *out, tinkc_error *err)
{
    tke_memory_use uses[DEVICE_PARTS];
    tke_device_info info;
    svc->device->ops->info(svc->device, &info);
    size_t n = svc->device->ops->memory(svc->device, uses, DEVICE_PARTS);
    if (!info.memory_bytes)
        return;
    tkc_buf_cstr(out,
                 "# HELP tinkc_device_memory_bytes Memory of the card by what holds it\n# TYPE "
                 "tinkc_device_memory_bytes gauge\n",
                 err);
    for (size_t i = 0; i < n; i++)
        tkc_buf_printf(out, err, "tinkc_device_memory_bytes{part=\"%s\"} %llu\n", uses[i].name,
                       (unsigned long long)uses[i].bytes);
    tkc_buf_printf(out, err, "tinkc_device_memory_bytes{part=\"free\"} %llu\n",
                   (unsigned long long)info.memory_free);
}

bool tke_service_metrics(tke_service *svc, tkc_buf *out, tinkc_error *err)
{
    counts c[N_COUNTS];
    take_counts(svc, c);
    for (size_t i = 0; i < N_COUNTS; i++)
        tkc_buf_printf(out, err, "# HELP tinkc_%s %s\n# TYPE tinkc_%s %s\ntinkc_%s %llu\n",
                       c[i].name, c[i].help, c[i].name,
                       tkc_ends_with(tkc_str(c[i].name), "_total") ? "counter" : "gauge", c[i].name,
                       (unsigned long long)c[i].value);
    part parts[MAX_PARTS];
    size_t n = take_memory(svc, parts);
    tkc_buf_cstr(out,
                 "# HELP tinkc_memory_bytes Memory of the process by what holds it\n# TYPE "
                 "tinkc_memory_bytes gauge\n",
                 err);
    for (size_t i = 0; i < n; i++)
        tkc_buf_printf(out, err, "tinkc_memory_bytes{part=\"%s\"} %llu\n", parts[i].name,
                       (unsigned long long)parts[i].bytes);
    write_device_memory(svc, out, err);
    return !tkc_failed(err);
}

/* The device, why it was chosen, and its memory. */
static void write_device(tke_service *svc, tkc_jsonw *w)
{
    tke_device_info info;
    tke_memory_use uses[DEVICE_PARTS];
    svc->device->ops->info(svc->device, &info);
    size_t n = svc->device->ops->memory(svc->device, uses, DEVICE_PARTS);
    tkc_jsonw_key(w, "device");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "name");
    tkc_jsonw_cstr(w, info.name);
    tkc_jsonw_key(w, "text");
    tkc_jsonw_cstr(w, info.text);
    tkc_jsonw_key(w, "reason");
    tkc_jsonw_cstr(w, svc->device_reason.text);
    if (info.memory_bytes) {
        tkc_jsonw_key(w, "memory_bytes");
        tkc_jsonw_u64(w, info.memory_bytes);
        tkc_jsonw_key(w, "memory_free_bytes");
        tkc_jsonw_u64(w, info.memory_free);
    }
    tkc_jsonw_key(w, "memory");
    tkc_jsonw_object(w);
    for (size_t i = 0; i < n; i++) {
        tkc_jsonw_key(w, uses[i].name);
        tkc_jsonw_u64(w, uses[i].bytes);
    }
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

/* What was planned for all base models together; what is held now is in "memory". */
static void write_plan(tke_service *svc, tkc_jsonw *w)
{
    tke_memory_need need = tke_service_need(svc);
    tke_memory_plan plan = tke_memory_plan_make(&need);
    const struct {
        const char *name;
        size_t value;
    } rows[] = { { "available_bytes", need.available },
                 { "weights_bytes", need.weights },
                 { "shared_bytes", plan.pool },
                 { "cache_most_bytes", plan.cache_most },
                 { "train_most_bytes", plan.train_most },
                 { "microbatch_tokens", (size_t)svc->set.microbatch_tokens } };
    tkc_jsonw_key(w, "plan");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "bounded_by");
    tkc_jsonw_cstr(w, svc->memory_bounded);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_jsonw_key(w, rows[i].name);
        tkc_jsonw_u64(w, rows[i].value);
    }
    tkc_jsonw_end(w);
}

static const char *durability_name(const tke_service *svc)
{
    return !tke_store_durable(svc->store)                       ? "none"
           : svc->set.durability == TINKC_DURABILITY_CHECKPOINT ? "checkpoint"
           : svc->set.durability == TINKC_DURABILITY_SNAPSHOT   ? "snapshot"
                                                                : "journal";
}

bool tke_service_status(tke_service *svc, const char *owner, tkc_buf *out, tinkc_error *err)
{
    counts c[N_COUNTS];
    tkc_jsonw w;
    const tke_base *base;
    const tke_run *run;
    take_counts(svc, c);
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    for (size_t i = 0; i < N_COUNTS; i++) {
        tkc_jsonw_key(&w, c[i].name);
        tkc_jsonw_u64(&w, c[i].value);
    }
    tkc_jsonw_key(&w, "memory_bytes");
    tkc_jsonw_i64(&w, svc->set.memory_bytes);
    tkc_jsonw_key(&w, "durability");
    tkc_jsonw_cstr(&w, durability_name(svc));
    write_device(svc, &w);
    write_plan(svc, &w);
    part parts[MAX_PARTS];
    size_t n_parts = take_memory(svc, parts);
    tkc_jsonw_key(&w, "memory");
    tkc_jsonw_object(&w);
    for (size_t i = 0; i < n_parts; i++) {
        tkc_jsonw_key(&w, parts[i].name);
        tkc_jsonw_u64(&w, parts[i].bytes);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "models");
    tkc_jsonw_array(&w);
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (base = tke_next_base(svc, &at));)
        tkc_jsonw_cstr(&w, base->name);
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "training_runs");
    tkc_jsonw_array(&w);
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (owner && !tkc_cstr_eq(run->owner, owner))
            continue;
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "id");
        tkc_jsonw_cstr(&w, run->id);
        tkc_jsonw_key(&w, "next_seq_id");
        tkc_jsonw_i64(&w, run->next_seq);
        tkc_jsonw_key(&w, "in_memory");
        tkc_jsonw_bool(&w, run->adapter != NULL);
        if (run->queue && !run->create && run->queue->seq > run->next_seq) {
            tkc_jsonw_key(&w, "waits_for_seq_id"); /* others are here, this one is not */
            tkc_jsonw_i64(&w, run->next_seq);
        }
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    if (owner) { /* as in the access log; does not reveal the key */
        tkc_jsonw_key(&w, "owner");
        tkc_jsonw_cstr(&w, owner);
        tkc_jsonw_key(&w, "quota");
        tke_quota_write(svc, owner, &w);
    }
    pthread_mutex_unlock(&svc->lock);
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}
