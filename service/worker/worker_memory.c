/* worker_memory.c - the memory of the device, shared by samples and passes (device/memory_plan.h).
 *
 * The two never compute at the same time, so what one holds can be had by the other: a cache that
 * must grow takes the work space of trainers, a pass that lacks work space makes caches shrink. No
 * result depends on it. Thread: the worker.
 */
#include <assert.h>

#include "base/platform.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"

/* Kept free on a card, for what its libraries take. */
static const size_t card_reserve = (size_t)1 << 30;

size_t tke_held_bytes(const tke_service *svc, int32_t kind)
{
    return atomic_load(&svc->held.bytes[kind]);
}

void tke_held_add(tke_service *svc, int32_t kind, size_t bytes)
{
    atomic_fetch_add(&svc->held.bytes[kind], bytes);
}

void tke_held_sub(tke_service *svc, int32_t kind, size_t bytes)
{
    size_t before = atomic_fetch_sub(&svc->held.bytes[kind], bytes);
    assert(before >= bytes);
    (void)before;
}

size_t tke_held_weights(const tke_service *svc)
{
    return tke_held_bytes(svc, TKE_HELD_ADAPTERS) + tke_held_bytes(svc, TKE_HELD_SNAPSHOTS);
}

typedef struct held { /* by all base models together */
    size_t weights, cache, work;
} held;

tke_base *tke_work_next_base(tke_service *svc, size_t *at)
{
    pthread_mutex_lock(&svc->lock);
    tke_base *base = tke_next_base(svc, at);
    pthread_mutex_unlock(&svc->lock);
    return base;
}

static held count_held(tke_service *svc)
{
    held h = { 0 };
    size_t at = 0;
    for (tke_base *base; (base = tke_work_next_base(svc, &at));) {
        h.weights += base->loaded ? base->model->n_bytes : 0;
        h.cache += base->infer ? tke_infer_bytes(base->infer) : 0;
        h.work += base->trainer ? tke_trainer_held(base->trainer) : 0;
    }
    return h;
}

/* Bytes of a block of the cache, as a device with numbers of this size has it. */
static size_t block_bytes(const tke_model *m, size_t number)
{
    return TKE_BLOCK_TOKENS * tke_model_cache_numbers(m) * number;
}

static size_t left(size_t all, size_t taken)
{
    return all > taken ? all - taken : 0;
}

tke_memory_need tke_service_need(tke_service *svc)
{
    tke_device_info info;
    const tke_base *base;
    svc->device->ops->info(svc->device, &info);
    bool card = info.memory_bytes > 0;
    tke_memory_need need = { .available = card ? left(info.memory_bytes, card_reserve)
                                               : (size_t)svc->set.memory_bytes,
                             .kv_bytes = (size_t)svc->set.kv_bytes,
                             .train_bytes = (size_t)svc->set.train_memory_bytes };
    need.adapters = card ? 0 : tke_held_weights(svc);
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (base = tke_next_base(svc, &at));) {
        need.weights +=
            card ? svc->device->ops->model_bytes(svc->device, base->model) : base->model->n_bytes;
    }
    pthread_mutex_unlock(&svc->lock);
    return need;
}

tke_memory_plan tke_work_plan(tke_service *svc, const tke_base *base)
{
    tke_device_info info;
    held h = count_held(svc);
    svc->device->ops->info(svc->device, &info);
    tke_memory_need need = { .block_tokens = TKE_BLOCK_TOKENS,
                             .context = base->context,
                             .max_seqs = 256,
                             .kv_bytes = (size_t)svc->set.kv_bytes,
                             .addresses_count =
                                 svc->memory_bounded && tkc_cstr_eq(svc->memory_bounded, "process"),
                             .train_bytes = (size_t)svc->set.train_memory_bytes };
    if (info.memory_bytes) { /* weights and adapters are no longer free there */
        need.block_bytes = block_bytes(base->model, 2);
        need.available = left(info.memory_free + h.cache + h.work, card_reserve);
    } else {
        need.block_bytes = block_bytes(base->model, sizeof(tke_real));
        need.available = (size_t)svc->set.memory_bytes;
        need.weights = h.weights;
        need.adapters = tke_held_weights(svc);
    }
    return tke_memory_plan_make(&need);
}

/* Work space of all trainers; a pass that is under way takes it again. */
static void release_work(tke_service *svc)
{
    size_t at = 0;
    for (tke_base *base; (base = tke_work_next_base(svc, &at));)
        if (base->trainer && !svc->set.train_memory_bytes)
            tke_trainer_set_memory(base->trainer, 1);
}

/* Caches that no sample uses give all back, the others down to what is left for them. */
static void shrink_caches(tke_service *svc, size_t most)
{
    size_t at = 0;
    for (tke_base *base; (base = tke_work_next_base(svc, &at)) && count_held(svc).cache > most;)
        if (base->infer && !tke_infer_n_unfinished(base->infer))
            tke_infer_shrink(base->infer,
                             left(most, count_held(svc).cache - tke_infer_bytes(base->infer)));
    at = 0;
    for (tke_base *base; (base = tke_work_next_base(svc, &at)) && count_held(svc).cache > most;)
        if (base->infer)
            tke_infer_shrink(base->infer,
                             left(most, count_held(svc).cache - tke_infer_bytes(base->infer)));
}

bool tke_work_cache_room(void *user, size_t bytes)
{
    tke_service *svc = user;
    size_t at = 0;
    tke_memory_plan plan = tke_work_plan(svc, tke_work_next_base(svc, &at)); /* one pool for all */
    held h = count_held(svc);
    size_t work = svc->set.train_memory_bytes ? 0 : h.work; /* else it is not of the pool */
    if (left(plan.pool, h.cache + work) >= bytes)
        return true;
    /* No pass computes at this moment: samples run before, after or between microbatches. */
    release_work(svc);
    return left(plan.pool, count_held(svc).cache) >= bytes;
}

void tke_work_train_room(tke_service *svc)
{
    tke_base *base = svc->worker->training;
    if (!base || !base->trainer)
        return;
    tke_memory_plan plan = tke_work_plan(svc, base);
    size_t want = plan.train_least > svc->worker->training_bytes ? plan.train_least
                                                                 : svc->worker->training_bytes;
    if (!svc->set.train_memory_bytes && !svc->set.kv_bytes) { /* else each has its own */
        if (left(plan.pool, count_held(svc).cache) < want)
            shrink_caches(svc, left(plan.pool, want));
        size_t most = left(plan.pool, count_held(svc).cache);
        plan.train_most = most < plan.train_most ? most : plan.train_most;
    }
    tke_trainer_set_memory(base->trainer, plan.train_most ? plan.train_most : 1);
}
