/* registry.c - makes, finds and frees objects by name: sessions, runs, samplers, checkpoints.
 *
 * Locks: everything here needs svc->lock, except during startup and shutdown. Touches memory only.
 */
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/registry_state.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/worker/custom_losses.h"
#include "service/worker/jobs.h"
#include "service/worker/worker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

char *tke_copy(tke_service *svc, const char *text, tinkc_error *err)
{
    return text ? tkc_copy_str(svc->a, tkc_str(text), err) : NULL;
}

static void forget(tke_service *svc, char *text)
{
    if (text)
        tkc_release_str(svc->a, text);
}

bool tke_registry_open(tke_service *svc, tinkc_error *err)
{
    svc->registry = tkc_zalloc(svc->a, sizeof *svc->registry, err);
    for (size_t i = 0; svc->registry && i < TKE_N_OBJECTS; i++)
        tkc_map_init(&svc->registry->of[i], svc->a);
    return svc->registry != NULL;
}

/* ---- finding ---- */

/* Does somebody hold svc->lock? It is not needed while there is one thread. */
static bool is_locked(const tke_service *svc)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&svc->lock;
    if (!atomic_load(&svc->threads_run) || pthread_mutex_trylock(lock) != 0)
        return true;
    pthread_mutex_unlock(lock);
    return false;
}

static tkc_map *objects(const tke_service *svc, int32_t kind)
{
    assert(is_locked(svc));
    (void)is_locked;
    return &svc->registry->of[kind];
}

static void *next_of(tke_service *svc, int32_t kind, size_t *at)
{
    const tkc_map_entry *e = tkc_map_next(objects(svc, kind), at);
    return e ? e->value : NULL;
}

static void *get(tke_service *svc, int32_t kind, const char *name)
{
    return name ? tkc_map_get(objects(svc, kind), tkc_str(name)) : NULL;
}

size_t tke_count(const tke_service *svc, int32_t kind)
{
    return objects(svc, kind)->n_live;
}

tke_base *tke_next_base(tke_service *svc, size_t *at)
{
    return next_of(svc, TKE_BASES, at);
}

tke_session *tke_next_session(tke_service *svc, size_t *at)
{
    return next_of(svc, TKE_SESSIONS, at);
}

tke_run *tke_next_run(tke_service *svc, size_t *at)
{
    return next_of(svc, TKE_RUNS, at);
}

tke_sampler *tke_next_sampler(tke_service *svc, size_t *at)
{
    return next_of(svc, TKE_SAMPLERS, at);
}

tke_checkpoint *tke_next_checkpoint(tke_service *svc, size_t *at)
{
    return next_of(svc, TKE_CHECKPOINTS, at);
}

tke_job *tke_next_job(tke_service *svc, size_t *at)
{
    return next_of(svc, TKE_JOBS, at);
}

tke_base *tke_find_base(tke_service *svc, const char *name)
{
    return get(svc, TKE_BASES, name);
}

tke_session *tke_find_session(tke_service *svc, const char *id)
{
    return get(svc, TKE_SESSIONS, id);
}

tke_run *tke_find_run(tke_service *svc, const char *id)
{
    return get(svc, TKE_RUNS, id);
}

tke_sampler *tke_find_sampler(tke_service *svc, const char *id)
{
    return get(svc, TKE_SAMPLERS, id);
}

tke_run *tke_run_named(tke_service *svc, tinkc_str id)
{
    return tkc_map_get(objects(svc, TKE_RUNS), id);
}

tke_sampler *tke_sampler_named(tke_service *svc, tinkc_str id)
{
    return tkc_map_get(objects(svc, TKE_SAMPLERS), id);
}

tke_job *tke_find_job(tke_service *svc, const char *id)
{
    return get(svc, TKE_JOBS, id);
}

tke_checkpoint *tke_checkpoint_named(tke_service *svc, const char *path)
{
    return get(svc, TKE_CHECKPOINTS, path);
}

tke_checkpoint *tke_find_checkpoint(tke_service *svc, const char *path, int64_t *expired_us)
{
    tke_checkpoint *c = tke_checkpoint_named(svc, path);
    if (expired_us)
        *expired_us = 0;
    if (!c || c->state == TKE_CKPT_GONE)
        return NULL;
    /* Gone at its time, not when the housekeeper comes by. */
    if (c->expires_us && c->expires_us <= tkc_wall_us(svc->clock)) {
        if (expired_us)
            *expired_us = c->expires_us;
        return NULL;
    }
    return c;
}

void tke_session_touch(tke_service *svc, tke_session *session)
{
    if (!session)
        return;
    session->seen_ms = tkc_now_ms(svc->clock);
    assert(!session->forgotten);
    /* A session that was only silent is alive again; a finished one is not, whatever still
     * arrives. */
    session->expired = session->finished != NULL;
}

/* ---- making ---- */

bool tke_base_add(tke_service *svc, tke_base *base, tinkc_error *err)
{
    return tkc_map_set(objects(svc, TKE_BASES), tkc_str(base->name), base, NULL, err);
}

bool tke_job_add(tke_service *svc, tke_job *job, tinkc_error *err)
{
    return tkc_map_set(objects(svc, TKE_JOBS), tkc_str(job->request_id), job, NULL, err);
}

tke_job *tke_take_job(tke_service *svc, const char *id)
{
    return tkc_map_remove(objects(svc, TKE_JOBS), tkc_str(id));
}

tke_session *tke_session_add(tke_service *svc, const char *id, const char *owner, tinkc_error *err)
{
    tke_session *s = tkc_zalloc(svc->a, sizeof *s, err);
    if (!s)
        return NULL;
    s->id = tke_copy(svc, id, err);
    s->owner = tke_copy(svc, owner, err);
    s->created_us = tkc_wall_us(svc->clock);
    s->seen_ms = tkc_now_ms(svc->clock);
    if (tkc_failed(err) ||
        !tkc_map_set(objects(svc, TKE_SESSIONS), tkc_str(id), s, NULL, err)) {
        forget(svc, s->id);
        forget(svc, s->owner);
        tkc_release(svc->a, s, sizeof *s);
        return NULL;
    }
    return s;
}

tke_run *tke_run_add(tke_service *svc, const char *id, const char *owner, tinkc_error *err)
{
    tke_run *r = tkc_zalloc(svc->a, sizeof *r, err);
    if (!r)
        return NULL;
    r->id = tke_copy(svc, id, err);
    r->owner = tke_copy(svc, owner, err);
    r->next_seq = 1;
    r->created_us = r->last_request_us = tkc_wall_us(svc->clock);
    r->last_arrival_ms = tkc_now_ms(svc->clock);
    r->served = tke_next_turn(svc);
    if (tkc_failed(err) || !tkc_map_set(objects(svc, TKE_RUNS), tkc_str(id), r, NULL, err)) {
        forget(svc, r->id);
        forget(svc, r->owner);
        tkc_release(svc->a, r, sizeof *r);
        return NULL;
    }
    return r;
}

void tke_run_on(tke_run *run, tke_run_event event)
{
    bool possible = tke_run_move(&run->is, event);
    assert(possible);
    (void)possible;
}

tke_sampler *tke_sampler_add(tke_service *svc, const char *id, const char *owner, tinkc_error *err)
{
    tke_sampler *s = tkc_zalloc(svc->a, sizeof *s, err);
    if (!s)
        return NULL;
    s->id = tke_copy(svc, id, err);
    s->owner = tke_copy(svc, owner, err);
    if (tkc_failed(err) ||
        !tkc_map_set(objects(svc, TKE_SAMPLERS), tkc_str(id), s, NULL, err)) {
        forget(svc, s->id);
        forget(svc, s->owner);
        tkc_release(svc->a, s, sizeof *s);
        return NULL;
    }
    return s;
}

static void free_checkpoint(tke_service *svc, tke_checkpoint *c)
{
    tke_kept_give(svc, c->owner, &c->kept);
    forget(svc, c->path);
    forget(svc, c->run_id);
    forget(svc, c->name);
    forget(svc, c->owner);
    forget(svc, c->user_metadata);
    tke_snapshot_drop(c->snapshot);
    tkc_release(svc->a, c, sizeof *c);
}

/* A checkpoint object is never freed before the service ends: samplers and jobs hold plain pointers
 * to it. A new one can take its name. */
tke_checkpoint *tke_checkpoint_add(tke_service *svc, const char *run_id, int32_t kind,
                                   const char *name, tinkc_error *err)
{
    tke_checkpoint *c = tkc_zalloc(svc->a, sizeof *c, err);
    tkc_buf path;
    void *old = NULL;
    tkc_buf_init(&path, svc->a, TKC_BUF_NO_MAX);
    if (!c)
        return NULL;
    tkc_buf_printf(&path, err, "tinker://%s/%s/%s", run_id, tke_kind_name(kind), name);
    if (tkc_buf_terminate(&path, err))
        c->path = tke_copy(svc, path.data, err);
    c->run_id = tke_copy(svc, run_id, err);
    c->name = tke_copy(svc, name, err);
    c->run = tke_find_run(svc, run_id);
    c->owner = tke_copy(svc, c->run ? c->run->owner : "default", err);
    c->kind = kind;
    c->created_us = tkc_wall_us(svc->clock);
    tkc_buf_free(&path);
    if (tkc_failed(err) ||
        !tkc_map_set(objects(svc, TKE_CHECKPOINTS), tkc_str(c->path), c, &old, err)) {
        free_checkpoint(svc, c);
        return NULL;
    }
    if (old) { /* others still point to it: kept under a name that no request can have */
        tinkc_error ignored = { 0 };
        char key[48];
        (void)snprintf(key, sizeof key, "replaced %p", old);
        ((tke_checkpoint *)old)->state = TKE_CKPT_GONE;
        tkc_map_set(objects(svc, TKE_CHECKPOINTS), tkc_str(key), old, NULL, &ignored);
    }
    return c;
}

void tke_checkpoint_remove(tke_service *svc, tke_checkpoint *c)
{
    (void)svc;
    c->state = TKE_CKPT_GONE;
}

void tke_checkpoint_written(tke_checkpoint *c)
{
    assert(c->disk == TKE_DISK_WRITING && c->state != TKE_CKPT_DONE);
    c->disk = TKE_DISK_THERE;
    if (c->state == TKE_CKPT_PENDING)
        c->state = TKE_CKPT_DONE;
}

void tke_checkpoint_restore(tke_service *svc, tke_checkpoint *added, tke_checkpoint *old)
{
    tinkc_error ignored = { 0 };
    char key[48];
    added->state = TKE_CKPT_GONE;
    added->disk = TKE_DISK_FAILED;
    if (!old || tkc_map_get(objects(svc, TKE_CHECKPOINTS), tkc_str(added->path)) != added)
        return;
    (void)snprintf(key, sizeof key, "replaced %p", (void *)old);
    tkc_map_remove(objects(svc, TKE_CHECKPOINTS), tkc_str(key));
    (void)snprintf(key, sizeof key, "replaced %p", (void *)added);
    if (tkc_map_set(objects(svc, TKE_CHECKPOINTS), tkc_str(key), added, NULL, &ignored) &&
        tkc_map_set(objects(svc, TKE_CHECKPOINTS), tkc_str(added->path), old, NULL, &ignored))
        old->state = old->disk == TKE_DISK_THERE     ? TKE_CKPT_DONE
                     : old->disk == TKE_DISK_WRITING ? TKE_CKPT_PENDING
                                                     : TKE_CKPT_GONE;
}

/* ---- names ---- */

const char *tke_kind_name(int32_t kind)
{
    static const char *const names[] = { "weights", "sampler_weights", "external_weights" };
    assert(kind >= 0 && kind <= TKE_CKPT_EXTERNAL);
    return names[kind];
}

bool tke_name_ok(const char *name)
{
    size_t n = name ? strlen(name) : 0;
    /* Names become names of folders: with a slash or '..' a client could write outside its run, and
     * folders that begin with a dot are skipped by walks over the store. */
    if (n == 0 || n > 255 || strstr(name, ".."))
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool word =
            (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        if (!word && (i == 0 || (c != '.' && c != '-')))
            return false;
    }
    return true;
}

bool tke_path_split(tkc_arena *arena, const char *path, const char **run, int32_t *kind,
                    const char **name, tinkc_error *err)
{
    tinkc_str rest = tkc_str(path), parts[3];
    size_t n = 0;
    if (!tkc_starts_with(rest, "tinker://"))
        return tkc_fail(err, TINKC_E_PATH, "not a tinker:// path: '%.200s'", path ? path : "");
    rest = tkc_strn(rest.data + 9, rest.len - 9);
    for (tinkc_str part; tkc_str_cut(&rest, '/', &part); n++)
        if (n < 3)
            parts[n] = part;
    if (n != 3 || !parts[0].len || !parts[2].len ||
        !(tkc_str_is(parts[1], "weights") || tkc_str_is(parts[1], "sampler_weights") ||
          tkc_str_is(parts[1], "external_weights")))
        return tkc_fail(err, TINKC_E_PATH,
                        "Invalid path '%.200s'. Expected tinker://<run>/weights/<name> or "
                        "tinker://<run>/sampler_weights/<name>",
                        path);
    *kind = tkc_str_is(parts[1], "weights")           ? TKE_CKPT_TRAINING
            : tkc_str_is(parts[1], "sampler_weights") ? TKE_CKPT_SAMPLER
                                                      : TKE_CKPT_EXTERNAL;
    *run = tkc_arena_str(arena, parts[0], err);
    *name = tkc_arena_str(arena, parts[2], err);
    return !tkc_failed(err);
}

char *tke_checkpoint_folder(tke_service *svc, tkc_arena *arena, const char *run_id, int32_t kind,
                            const char *name, tinkc_error *err)
{
    char *part = tkc_arena_printf(arena, err, "%s/%s", tke_kind_name(kind), name);
    return part ? tke_store_run_path(svc->store, arena, run_id, part, err) : NULL;
}

/* ---- freeing ---- */

static void free_run(tke_service *svc, tke_run *r)
{
    assert(!r->queue && !r->create && !r->loaded); /* all its jobs have been answered */
    tke_adapter_free(r->adapter);
    tke_kept_give(svc, r->owner, &r->kept);
    forget(svc, r->id);
    forget(svc, r->owner);
    forget(svc, r->base_model);
    forget(svc, r->user_metadata);
    forget(svc, r->create_request_id);
    forget(svc, r->error);
    forget(svc, r->source);
    tkc_release(svc->a, r->curve, sizeof *r->curve);
    tkc_release(svc->a, r->seen, r->cap_seen * sizeof *r->seen);
    tkc_release(svc->a, r, sizeof *r);
}

static void free_sampler(tke_service *svc, tke_sampler *s)
{
    tke_snapshot_drop(s->snapshot);
    tke_kept_give(svc, s->owner, &s->kept);
    forget(svc, s->id);
    forget(svc, s->owner);
    forget(svc, s->base_model);
    forget(svc, s->model_path);
    forget(svc, s->spill);
    tkc_release(svc->a, s, sizeof *s);
}

bool tke_run_hide(tke_service *svc, tke_run *run, tinkc_error *err)
{
    char key[32];
    (void)snprintf(key, sizeof key, "%p", (void *)run);
    /* Kept until the end: checkpoints and jobs hold plain pointers to it. */
    if (!tkc_map_set(objects(svc, TKE_DELETED), tkc_str(key), run, NULL, err))
        return false;
    tkc_map_remove(objects(svc, TKE_RUNS), tkc_str(run->id));
    return true;
}

void tke_run_undo(tke_service *svc, tke_run *run)
{
    tkc_map_remove(objects(svc, TKE_RUNS), tkc_str(run->id));
    free_run(svc, run);
}

void tke_sampler_undo(tke_service *svc, tke_sampler *s)
{
    tkc_map_remove(objects(svc, TKE_SAMPLERS), tkc_str(s->id));
    free_sampler(svc, s);
}

static void free_session(tke_service *svc, tke_session *s)
{
    assert(atomic_load(&s->pins) == 0);
    tke_losses_free(svc, s);
    tke_kept_give(svc, s->owner, &s->kept);
    forget(svc, s->id);
    forget(svc, s->owner);
    forget(svc, s->user_metadata);
    forget(svc, s->project_id);
    forget(svc, s->display_name);
    forget(svc, s->finish_detail);
    tkc_release(svc->a, s, sizeof *s);
}

/* ---- forgetting sessions ----
 * A session that never trained owns only samplers, of models and checkpoints that exist without it.
 * Its row stays, because usage records refer to it; the next start skips it. */

static int longest_silence_first(const void *a, const void *b)
{
    const tke_session *one = *(tke_session *const *)a, *two = *(tke_session *const *)b;
    if (one->seen_ms != two->seen_ms)
        return one->seen_ms < two->seen_ms ? -1 : 1;
    return strcmp(one->id, two->id);
}

/* Locks: needs svc->lock. Sessions that may be forgotten, longest idle first; adds their number to *n. */
static tke_session **idle_sessions(tke_service *svc, size_t cap, size_t *n)
{
    tke_session *s;
    tinkc_error ignored = { 0 };
    tke_session **idle = tkc_alloc(svc->a, cap * sizeof *idle, &ignored);
    for (size_t at = 0; idle && (s = tke_next_session(svc, &at));) {
        if (s->expired && !s->n_runs && atomic_load(&s->pins) == 0)
            idle[(*n)++] = s;
    }
    if (idle)
        qsort(idle, *n, sizeof *idle, longest_silence_first);
    return idle;
}

/* Locks: needs svc->lock. Removes the samplers of sessions marked `forgotten`, and their rows. */
static void forget_samplers(tke_service *svc, tke_txn *txn)
{
    tke_sampler *s;
    for (size_t at = 0; (s = tke_next_sampler(svc, &at));) {
        if (!s->session->forgotten)
            continue;
        assert(!s->ephemeral && !s->snapshot && !s->spill); /* those come only from training */
        tke_txn_exec(txn, "DELETE FROM samplers WHERE id = ?", "t", s->id);
        tkc_map_remove(objects(svc, TKE_SAMPLERS), tkc_str(s->id));
        free_sampler(svc, s);
    }
}

void tke_sessions_forget(tke_service *svc, int64_t now_ms)
{
    tinkc_error err = { 0 };
    size_t n = 0, n_gone = 0;
    pthread_mutex_lock(&svc->lock);
    size_t cap = objects(svc, TKE_SESSIONS)->n_live + 1;
    tke_session **idle = idle_sessions(svc, cap, &n);
    for (; n_gone < n; n_gone++) {
        bool many = (int64_t)(n - n_gone) > svc->set.max_idle_sessions;
        if (!many && now_ms - idle[n_gone]->seen_ms <= svc->set.session_keep_ms)
            break;
        idle[n_gone]->forgotten = true;
    }
    tke_txn *txn = n_gone ? tke_txn_new(svc->store, &err) : NULL;
    if (n_gone)
        forget_samplers(svc, txn);
    for (size_t i = 0; i < n_gone; i++) {
        /* also those that were left out at the start */
        tke_txn_exec(txn, "DELETE FROM custom_losses WHERE session_id = ?", "t", idle[i]->id);
        tke_txn_exec(txn,
                     tke_store_durable(svc->store)
                         ? "INSERT INTO session_notes(id, finished) VALUES(?, 'forgotten') "
                           "ON CONFLICT(id) DO UPDATE SET finished = 'forgotten'"
                         : "DELETE FROM sessions WHERE id = ?",
                     "t", idle[i]->id);
        tkc_map_remove(objects(svc, TKE_SESSIONS), tkc_str(idle[i]->id));
        free_session(svc, idle[i]);
    }
    pthread_mutex_unlock(&svc->lock);
    if (n_gone)
        tke_txn_commit(txn, NULL, NULL);
    tkc_release(svc->a, idle, cap * sizeof *idle);
}

static void free_base(tke_service *svc, tke_base *b)
{
    tke_infer_free(b->infer);
    tke_trainer_free(b->trainer);
    if (b->loaded)
        svc->device->ops->model_free(b->loaded);
    tke_vocab_free(b->vocab);
    tke_base_free_tokenizer(b);
    tke_model_drop(b->model);
    forget(svc, b->name);
    tkc_release(svc->a, b, sizeof *b);
}

void tke_registry_close(tke_service *svc)
{
    size_t at[TKE_N_OBJECTS] = { 0 };
    if (!svc->registry)
        return;
    /* In this order, because each kind points to those after it: a sample's job, for one, unpins
     * its session. */
    for (tke_job *job; (job = tke_next_job(svc, &at[TKE_JOBS]));)
        tke_job_drop(job);
    for (tke_sampler *s; (s = tke_next_sampler(svc, &at[TKE_SAMPLERS]));)
        free_sampler(svc, s);
    for (tke_checkpoint *c; (c = tke_next_checkpoint(svc, &at[TKE_CHECKPOINTS]));)
        free_checkpoint(svc, c);
    for (tke_run *run; (run = tke_next_run(svc, &at[TKE_RUNS]));)
        free_run(svc, run);
    for (tke_run *run; (run = next_of(svc, TKE_DELETED, &at[TKE_DELETED]));)
        free_run(svc, run);
    for (tke_session *s; (s = tke_next_session(svc, &at[TKE_SESSIONS]));)
        free_session(svc, s);
    for (tke_base *base; (base = tke_next_base(svc, &at[TKE_BASES]));)
        free_base(svc, base);
    for (size_t i = 0; i < TKE_N_OBJECTS; i++)
        tkc_map_free(&svc->registry->of[i]);
    tkc_release(svc->a, svc->registry, sizeof *svc->registry);
}
