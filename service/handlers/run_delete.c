/* run_delete.c - DELETE /api/v1/training_runs/{id}: a run that has no checkpoints any more goes for good.
 *
 * An extension of this server. Checkpoints are deleted one by one, by their own request, so that nothing
 * that somebody named goes with something else. The model is unloaded first; then its rows go, and last
 * what is left of its folder. An end in between leaves an unloaded run, or an empty folder.
 */
#include <stdio.h>

#include "base/file.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/worker/worker_files.h"

typedef struct deletion {
    tke_service *svc;
    tke_run *run;
    tinkc_reply *reply;
} deletion;

static void remove_folder(tke_service *svc, const tke_run *run)
{
    tkc_arena arena;
    tinkc_error ignored = { 0 };
    tkc_arena_init(&arena, svc->a, 0);
    char *path = tke_store_run_path(svc->store, &arena, run->id, NULL, &ignored);
    char *temp = path && tkc_is_dir(path) ? tke_store_temp(svc->store, &arena, &ignored) : NULL;
    if (temp && tke_store_move(svc->store, path, temp, &ignored))
        tkc_remove_tree(temp, &ignored);
    tkc_arena_free(&arena);
}

static void rows_deleted(void *user, const tinkc_error *err)
{
    deletion *d = user;
    tke_service *svc = d->svc;
    tinkc_error local = *err;
    if (!tkc_failed(&local)) {
        remove_folder(svc, d->run);
        pthread_mutex_lock(&svc->lock);
        (void)tke_run_hide(svc, d->run, &local);
        pthread_mutex_unlock(&svc->lock);
    }
    if (tkc_failed(&local))
        tke_send_failure(d->reply, svc->a, &local);
    else
        tke_send(d->reply, 204, NULL, (tinkc_str){ 0 });
    tkc_release(svc->a, d, sizeof *d);
    tke_file_work_end(svc);
}

static void delete_rows(tke_call *call, tke_run *run)
{
    tke_service *svc = call->svc;
    deletion *d = tkc_zalloc(svc->a, sizeof *d, &call->err);
    if (!d) {
        tke_send_failure(call->reply, svc->a, &call->err);
        return;
    }
    *d = (deletion){ svc, run, call->reply };
    /* A service that stops waits for it, and so does not free what the callback uses. */
    tke_file_work_begin(svc);
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    tke_txn_exec(txn, "DELETE FROM requests WHERE run_id = ?", "t", run->id);
    tke_txn_exec(txn, "DELETE FROM runs WHERE id = ?", "t", run->id);
    tke_txn_commit(txn, rows_deleted, d);
    tke_audit_add(svc, call->owner, "model_delete", run->id, NULL, NULL);
}

/* Locks: needs svc->lock. */
static size_t count_checkpoints(tke_service *svc, const tke_run *run)
{
    const tke_checkpoint *c;
    size_t n = 0;
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));) {
        n += c->run == run && c->state != TKE_CKPT_GONE;
    }
    return n;
}

void tke_handle_delete_run(tke_call *call)
{
    tke_service *svc = call->svc;
    char id[160];
    pthread_mutex_lock(&svc->lock);
    tke_run *run = tke_find_run(svc, call->route.id);
    bool mine = run && tkc_cstr_eq(run->owner, call->owner);
    size_t n = mine ? count_checkpoints(svc, run) : 0;
    bool busy = mine && (run->queue || run->create || run->loaded) && !tke_run_is_unloaded(run->is);
    bool gone = mine && (run->is.life == TKE_RUN_UNLOADED || run->is.life == TKE_RUN_FAILED);
    if (mine && !n && !busy && !gone)
        (void)tke_run_unload(svc, run, id, &call->err);
    pthread_mutex_unlock(&svc->lock);
    if (!mine)
        tke_refuse(call, 404, "not_found", "Unknown training run '%.150s'", call->route.id);
    else if (n)
        tke_refuse(call, 409, "conflict", "The run has %zu checkpoints; delete them first", n);
    else if (busy)
        tke_refuse(call, 409, "conflict", "The run has requests under way; end its client first");
    else if (gone)
        delete_rows(call, run);
    else
        tke_refuse(call, 409, "unloading", "The model is being unloaded; ask again");
}
