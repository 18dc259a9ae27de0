/* run_source.c - the newest state of a run on disk, and what it makes superfluous.
 *
 * A run continues from one folder, its source: an image, or a training checkpoint that its client saved,
 * which has the same contents. Everything older goes, so that a run which ends with a save keeps no image.
 * Since clients may delete or replace a checkpoint at any time, one that is the source becomes an image
 * first.
 *
 * Order of writes: a folder becomes the source when it and the rows of all requests in it are on disk;
 * only then are older states and journal records removed. What is removed is first moved below tmp/,
 * in one step: a folder that is half removed never has its name.
 */
#include <stdio.h>

#include "base/file.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/store/failpoint.h"
#include "service/store/run_source.h"

void tke_run_changed(tke_service *svc, tke_run *run, int64_t seq)
{
    run->changed_seq = seq;
    if (!run->dirty_since_ms)
        run->dirty_since_ms = tkc_now_ms(svc->clock);
}

static void set_source(tke_service *svc, tke_run *run, char *folder)
{
    if (run->source)
        tkc_release_str(svc->a, run->source);
    run->source = folder;
}

bool tke_source_take(tke_service *svc, tke_run *run, const char *folder, int64_t next_seq)
{
    tinkc_error ignored = { 0 };
    /* An image and a save may overtake each other; going back to the older one would lose the
     * requests between, whose journal records are gone. */
    if (run->is.life == TKE_RUN_UNLOADED || next_seq < run->image_seq)
        return false;
    char *source = tke_copy(svc, folder, &ignored);
    if (!source)
        return false;
    set_source(svc, run, source);
    run->image_seq = next_seq;
    /* Work that was done while the folder was written is not in it: the run then stays due for
     * another image. */
    if (run->changed_seq < next_seq)
        run->dirty_since_ms = 0;
    return true;
}

bool tke_source_is_image(const tke_run *run)
{
    tinkc_str source = tkc_str(run->source);
    return tkc_ends_with(source, "/image.0") || tkc_ends_with(source, "/image.1");
}

static const char *slot_name(int32_t slot)
{
    return slot ? "image.1" : "image.0";
}

/* Locks: needs svc->lock. May this image be removed? */
static bool is_superfluous(tke_run *run, const char *path, int32_t slot)
{
    bool written = tke_run_image_is_written(run->is) && slot == run->image_slot;
    return !written && !tkc_cstr_eq(run->source, path) && tkc_is_dir(path);
}

static void remove_image(tke_service *svc, tke_run *run, int32_t slot)
{
    tkc_arena arena;
    tinkc_error err = { 0 };
    tkc_arena_init(&arena, svc->a, 0);
    char *path = tke_store_run_path(svc->store, &arena, run->id, slot_name(slot), &err);
    char *temp = NULL;
    pthread_mutex_lock(&svc->lock); /* while it moves: nobody takes it as the source meanwhile */
    if (path && run->source && is_superfluous(run, path, slot) &&
        (temp = tke_store_temp(svc->store, &arena, &err)))
        tke_store_move(svc->store, path, temp, &err);
    pthread_mutex_unlock(&svc->lock);
    if (temp && !tkc_failed(&err))
        tkc_remove_tree(temp, &err);
    if (tkc_failed(&err))
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "%s: an old image stays: %s", run->id, err.message);
    tkc_arena_free(&arena);
}

void tke_images_remove(tke_service *svc, tke_run *run)
{
    remove_image(svc, run, 0);
    remove_image(svc, run, 1);
}

/* The slot that no image is written to. */
static int32_t free_slot(const tke_run *run)
{
    return tke_run_image_is_written(run->is) ? 1 - run->image_slot : run->image_slot;
}

static bool is_source(tke_service *svc, const tke_run *run, const char *folder)
{
    (void)svc;
    return run && run->is.life == TKE_RUN_READY && tkc_cstr_eq(run->source, folder);
}

/* Locks: needs svc->lock. Moves the folder `from` to a free slot, and makes it the source. What was
 * there before is then named `from`. */
static bool to_slot(tke_service *svc, tke_run *run, const char *from, tkc_arena *arena,
                    tinkc_error *err)
{
    int32_t slot = free_slot(run);
    char *target = tke_store_run_path(svc->store, arena, run->id, slot_name(slot), err);
    char *source = target ? tke_copy(svc, target, err) : NULL;
    if (!source)
        return false;
    if (!tke_store_move(svc->store, from, target, err)) {
        tkc_release_str(svc->a, source);
        return false;
    }
    /* Under the same lock as the move: a run that wakes up in between would look for its state in a
     * folder that is gone. */
    set_source(svc, run, source);
    if (!tke_run_image_is_written(run->is))
        run->image_slot = 1 - slot;
    return true;
}

bool tke_source_keep(tke_service *svc, tke_run *run, const char *folder, bool move,
                     tinkc_error *err)
{
    tkc_arena arena;
    tinkc_error ignored = { 0 };
    bool moved = false;
    tkc_arena_init(&arena, svc->a, 0);
    pthread_mutex_lock(&svc->lock);
    bool needed = is_source(svc, run, folder);
    pthread_mutex_unlock(&svc->lock);
    char *copy = needed && !move ? tke_store_temp(svc->store, &arena, err) : NULL;
    /* Outside the lock, because it touches the disk and may have to copy; what changed meanwhile is
     * checked again below. */
    if (copy && tke_link_folder(folder, copy, err) && tke_store_durable(svc->store))
        tke_sync_folder(copy, err);
    if (needed && !tkc_failed(err) && TKE_FAILPOINT("source.linked", err)) {
        pthread_mutex_lock(&svc->lock);
        if (is_source(svc, run, folder)) /* still */
            moved = to_slot(svc, run, move ? folder : copy, &arena, err);
        pthread_mutex_unlock(&svc->lock);
    }
    if (copy || moved)
        tkc_remove_tree(copy ? copy : folder, &ignored); /* the older image, or a copy of no use */
    tkc_arena_free(&arena);
    return moved && move;
}

void tke_run_remove_files(tke_service *svc, const tke_run *run)
{
    static const char *const parts[] = { "image.0", "image.1", "journal", "results" };
    tkc_arena arena;
    tkc_arena_init(&arena, svc->a, 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        tinkc_error ignored = { 0 };
        char *path = tke_store_run_path(svc->store, &arena, run->id, parts[i], &ignored);
        if (path)
            tkc_remove_tree(path, &ignored); /* often there is nothing */
    }
    tkc_arena_free(&arena);
}
