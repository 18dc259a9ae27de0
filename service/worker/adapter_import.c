/* adapter_import.c - imports adapters made elsewhere as checkpoints, to sample from or train
 * further.
 *
 * The adapter is rewritten with our own tensor names, which checks every name and shape against the
 * base model. The run is named after a digest of the files and the base model, so importing the
 * same adapter again finds the existing run; an uploaded one gets a run of its own, and a training
 * checkpoint alone, which can be sampled too. Order as for copies: the rows of the run, the folder,
 * the checkpoint's row; a crash leaves nothing visible, and the next import completes it. Thread:
 * the caller's, which may wait.
 */
#include <stdio.h>

#include "base/digest.h"
#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/store/checksums.h"
#include "service/worker/adapter_import.h"
#include "service/worker/worker_files.h"

typedef struct import {
    tke_service *svc;
    const tinkc_import_options *o;
    tke_import_as as;
    const char *name;
    tke_base *base;
    tke_run *run;
    char run_id[128], session_id[TKE_UUID_TEXT];
    tke_adapter_spec spec;
    tkc_arena arena;
    tinkc_error *err;
} import;

/* ---- the store, awaited ---- */

typedef struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
    tinkc_error err;
} waiting;

static void committed(void *user, const tinkc_error *err)
{
    waiting *w = user;
    pthread_mutex_lock(&w->lock);
    tkc_error_copy(&w->err, err);
    w->done = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static bool commit(tke_txn *txn, tinkc_error *err)
{
    waiting w = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
    /* It waits, so never on the store's writer: that would wait for itself. */
    tke_txn_commit(txn, committed, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.cond, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.cond);
    tkc_error_copy(err, &w.err);
    return !tkc_failed(err);
}

/* ---- names ---- */

static bool add_file(import *x, tkc_digest *d, const char *name)
{
    tkc_mapping m;
    char *path = tkc_path_join(&x->arena, x->o->adapter, name, x->err);
    if (!path || !tkc_map_file(path, &m, x->err))
        return false;
    tkc_digest_add(d, m.data, m.len);
    tkc_unmap_file(&m);
    return true;
}

/* The names of the session and run, derived from the digest. */
static bool choose_names(import *x)
{
    tkc_digest d;
    unsigned char b[TKC_SHA256_BYTES];
    if (x->as.fresh) {
        tke_uuid(x->svc->clock, x->session_id);
        (void)snprintf(x->run_id, sizeof x->run_id, "%s:train:0", x->session_id);
        return true;
    }
    tkc_sha256_init(&d);
    tkc_digest_add(&d, x->base->name, strlen(x->base->name) + 1);
    tkc_digest_add(&d, x->base->model->fingerprint, sizeof x->base->model->fingerprint);
    tkc_digest_add(&d, x->name, strlen(x->name) + 1);
    if (!add_file(x, &d, "adapter_config.json") || !add_file(x, &d, "adapter_model.safetensors"))
        return false;
    (void)tkc_digest_bytes(&d, b);
    (void)snprintf(x->session_id, sizeof x->session_id,
                   "%02x%02x%02x%02x-%02x%02x-8%01x%02x-a%01x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6] & 15, b[7], b[8] & 15, b[9], b[10], b[11],
                   b[12], b[13], b[14], b[15]);
    (void)snprintf(x->run_id, sizeof x->run_id, "%s:train:0", x->session_id);
    return true;
}

/* ---- rows ---- */

/* Locks: needs svc->lock. */
static bool add_run(import *x)
{
    tke_service *svc = x->svc;
    char request_id[160];
    tke_session *s = tke_find_session(svc, x->session_id);
    if (!s && (s = tke_session_add(svc, x->session_id, x->as.owner, x->err)))
        tke_kept_add(svc, s->owner, TKE_KEPT_SESSION, &s->kept); /* its files have a quota */
    tke_run *run = s ? tke_run_add(svc, x->run_id, x->as.owner, x->err) : NULL;
    if (!run)
        return false;
    if (!s->project_id)
        s->project_id = tke_copy(svc, x->as.project_id, x->err);
    (void)snprintf(request_id, sizeof request_id, "%lld-%s:0", (long long)svc->epoch, x->run_id);
    run->session = s;
    s->n_runs++;
    run->base = x->base;
    run->spec = x->spec;
    run->base_model = tke_copy(svc, x->base->name, x->err);
    run->create_request_id = tke_copy(svc, request_id, x->err);
    tke_run_on(run, tkc_failed(x->err) ? TKE_ON_NOT_MADE : TKE_ON_UNLOADED);
    x->run = run;
    return !tkc_failed(x->err);
}

static bool make_run(import *x)
{
    tke_service *svc = x->svc;
    tke_txn *txn = tke_txn_new(svc->store, x->err);
    pthread_mutex_lock(&svc->lock);
    x->run = tke_find_run(svc, x->run_id);
    bool ok = x->run || (!tkc_failed(x->err) && add_run(x));
    if (ok) { /* of a known run too: an import before may have failed to record it */
        tke_session_store(txn, x->run->session, "[]", NULL);
        tke_run_store(txn, x->run);
    }
    pthread_mutex_unlock(&svc->lock);
    return commit(txn, x->err) && ok;
}

/* ---- folders ---- */

/* Moves a finished folder to its place and makes it a checkpoint. */
static bool place(import *x, char *temp, int32_t kind)
{
    tke_service *svc = x->svc;
    tinkc_error *err = x->err;
    char *target = tke_checkpoint_folder(svc, &x->arena, x->run_id, kind, x->name, err);
    if (!target || (tke_store_durable(svc->store) && !tke_sync_folder(temp, err)) ||
        !tke_store_place(svc->store, temp, target, err))
        return false;
    tke_txn *txn = tke_txn_new(svc->store, err);
    pthread_mutex_lock(&svc->lock);
    tke_checkpoint *c = tke_checkpoint_add(svc, x->run_id, kind, x->name, err);
    if (c) {
        c->bytes = tke_folder_bytes(target);
        c->created_us = tkc_wall_us(svc->clock);
        tke_checkpoint_store(txn, c);
    }
    pthread_mutex_unlock(&svc->lock);
    bool ok = commit(txn, err) && c;
    pthread_mutex_lock(&svc->lock);
    if (ok)
        tke_checkpoint_written(c);
    else if (c)
        tke_checkpoint_remove(svc, c);
    pthread_mutex_unlock(&svc->lock);
    if (!ok) /* or the next start would adopt it */
        tke_store_take_back(svc->store, temp, target);
    return ok;
}

/* The adapter is what its sender said it is. */
static bool check_spec(import *x)
{
    if (x->as.rank && x->spec.rank != x->as.rank)
        return tkc_fail(x->err, TINKC_E_BAD_REQUEST,
                        "the adapter has rank %d, and lora_config says %d", (int)x->spec.rank,
                        (int)x->as.rank);
    uint32_t more = x->as.train ? x->spec.train & ~x->as.train : 0;
    return !more || tkc_fail(x->err, TINKC_E_BAD_REQUEST,
                             "the adapter has matrices that lora_config excludes: %s",
                             more & TKE_TRAIN_ATTN  ? "train_attn is false"
                             : more & TKE_TRAIN_MLP ? "train_mlp is false"
                                                    : "train_unembed is false");
}

static bool write_folder(import *x, char *temp)
{
    tke_adapter_save save = { .base_name = x->base->name,
                              .names = TKE_NAMES_PEFT,
                              .dtype = TKE_F32 };
    char *mark = tkc_path_join(&x->arena, temp, "checkpoint_complete", x->err);
    if (!mark ||
        !tke_adapter_convert(x->base->model, x->o->adapter, temp, 0, &save, &x->spec, x->err))
        return false;
    if (x->spec.rank > x->svc->set.max_lora_rank)
        return tkc_fail(x->err, TINKC_E_ARGUMENT,
                        "%s: its rank %d is above the engine's limit of %lld (max_lora_rank)",
                        x->o->adapter, (int)x->spec.rank, (long long)x->svc->set.max_lora_rank);
    return check_spec(x) && tke_sums_write(temp, x->err) &&
           tkc_write_file(mark, "", 0, 0600, x->err);
}

static bool take_in(import *x)
{
    tke_store *store = x->svc->store;
    tinkc_error ignored = { 0 };
    char *first = tke_store_temp(store, &x->arena, x->err);
    char *second = first ? tke_store_temp(store, &x->arena, x->err) : NULL;
    /* The second is linked before the first is placed, which moves it away. The run's row comes
     * before the folders: files without one mean lost rows to a check of the store. */
    bool ok = second && write_folder(x, first) && tke_link_folder(first, second, x->err) &&
              make_run(x) && place(x, first, TKE_CKPT_TRAINING) &&
              (x->as.fresh || place(x, second, TKE_CKPT_SAMPLER));
    if (first)
        tkc_remove_tree(first, &ignored);
    if (second)
        tkc_remove_tree(second, &ignored);
    return ok;
}

/* ---- the call ---- */

static const char *path_of(import *x, int32_t kind)
{
    return tkc_arena_printf(&x->arena, x->err, "tinker://%s/%s/%s", x->run_id,
                            kind == TKE_CKPT_TRAINING ? "weights" : "sampler_weights", x->name);
}

static bool is_there(import *x)
{
    bool there = true;
    pthread_mutex_lock(&x->svc->lock);
    for (int32_t kind = TKE_CKPT_TRAINING; kind <= TKE_CKPT_SAMPLER; kind++) {
        const char *path = path_of(x, kind);
        const tke_checkpoint *c = path ? tke_find_checkpoint(x->svc, path, NULL) : NULL;
        there = there && c && c->state == TKE_CKPT_DONE;
    }
    pthread_mutex_unlock(&x->svc->lock);
    return there;
}

static bool check_options(const tinkc_import_options *o, tinkc_error *err)
{
    if (!o || !o->adapter || !o->base_model)
        return tkc_fail(err, TINKC_E_ARGUMENT, "adapter and base_model are required");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "import options: reserved must be zero");
    if (!tkc_is_dir(o->adapter))
        return tkc_fail(err, TINKC_E_FILE, "%s: no such folder", o->adapter);
    return true;
}

static bool give(tinkc_text *to, const char *path, tinkc_error *err)
{
    if (!to || !path)
        return path != NULL;
    to->len = 0;
    return tinkc_text_append(to, path, strlen(path), err);
}

static bool find_base(import *x)
{
    pthread_mutex_lock(&x->svc->lock);
    x->base = tke_find_base(x->svc, x->o->base_model); /* never freed while the service lives */
    pthread_mutex_unlock(&x->svc->lock);
    return x->base || tkc_fail(x->err, TINKC_E_NOT_FOUND, "no base model '%.150s' is registered",
                               x->o->base_model);
}

/* The name is checked like one in a request. */
static bool check_name(import *x)
{
    const char *run, *name;
    int32_t kind;
    const char *path = path_of(x, TKE_CKPT_TRAINING);
    return path && tke_path_split(&x->arena, path, &run, &kind, &name, x->err);
}

bool tke_import_adapter(tke_service *svc, const tinkc_import_options *o, tke_import_as as,
                        tinkc_text *weights, tinkc_text *sampler, tinkc_error *err)
{
    if (!check_options(o, err))
        return false;
    import x = { .svc = svc, .o = o, .as = as, .err = err };
    x.name = o->name && *o->name ? o->name : "imported";
    tkc_arena_init(&x.arena, svc->a, 0);
    tke_file_work_begin(svc);
    bool ok = find_base(&x) && tke_adapter_check(x.base->model, o->adapter, err) &&
              choose_names(&x) && check_name(&x) && ((!as.fresh && is_there(&x)) || take_in(&x)) &&
              give(weights, path_of(&x, TKE_CKPT_TRAINING), err) &&
              give(sampler, path_of(&x, TKE_CKPT_SAMPLER), err);
    tke_file_work_end(svc);
    tkc_arena_free(&x.arena);
    return ok;
}

bool tke_service_import(tke_service *svc, const tinkc_import_options *o, tinkc_text *weights,
                        tinkc_text *sampler, tinkc_error *err)
{
    const tke_import_as here = { .owner = "default" }; /* of calls in this process */
    return tke_import_adapter(svc, o, here, weights, sampler, err);
}
