/* saved_checkpoints.h - named weights of a run: their names and paths, and their way from being written to being gone.
 *
 * A checkpoint object is never freed while the service lives, so others may point to it; one that was
 * deleted or replaced is marked as gone and no longer in the map.
 *
 * Locks: fields and functions need svc->lock, unless they say otherwise.
 */
#ifndef TKE_SERVICE_SAVED_CHECKPOINTS_H
#define TKE_SERVICE_SAVED_CHECKPOINTS_H

#include "infer/infer.h"
#include "service/core/service_types.h"
#include "service/store/store.h"
#include "wire/messages.h"

#define TKE_METADATA_FILE "user_metadata.json"
enum { TKE_CKPT_TRAINING = 0, TKE_CKPT_SAMPLER = 1, TKE_CKPT_EXTERNAL = 2 };
enum { TKE_CKPT_PENDING = 0, TKE_CKPT_DONE, TKE_CKPT_GONE };
/* What is on disk for this object, even if another object has its name by now. */
enum { TKE_DISK_WRITING = 0, TKE_DISK_THERE, TKE_DISK_FAILED };
struct tke_checkpoint {
    char *path; /* "tinker://RUN/weights/NAME": its name */
    char *run_id, *name, *owner;
    char *user_metadata; /* JSON, as it is in TKE_METADATA_FILE of its folder; NULL = none */
    size_t kept;         /* see tke_kept_take */
    struct tke_run *run; /* NULL if its row is gone */
    int32_t kind, state;
    int32_t disk; /* TKE_DISK_* */
    bool is_public;
    int64_t created_us, bytes;
    int64_t seq_id;         /* of the save; 0 = unknown (a folder without a row) */
    int64_t expires_us;     /* 0 = never */
    tke_snapshot *snapshot; /* resident, or NULL; counted in svc->snapshot_bytes */
    int64_t used_ms;
};

/* NULL if unknown, expired or gone; *expired_us (may be NULL) says when it expired. */
tke_checkpoint *tke_find_checkpoint(tke_service *, const char *path, int64_t *expired_us);
tke_checkpoint *tke_checkpoint_add(tke_service *, const char *run_id, int32_t kind,
                                   const char *name, tinkc_error *err);
void tke_checkpoint_remove(tke_service *, tke_checkpoint *);
/* It is on disk and recorded: becomes visible, unless another has taken its name meanwhile. */
void tke_checkpoint_written(tke_checkpoint *);
/* A save failed: gives the name back to the checkpoint that had it before, written or still being
 * written. old NULL = there was none. */
void tke_checkpoint_restore(tke_service *, tke_checkpoint *added, tke_checkpoint *old);
/* Names and paths. Locks: none needed. */
bool tke_name_ok(const char *name);
/* "weights", "sampler_weights", "external_weights": the folder, and the part of a path. */
const char *tke_kind_name(int32_t kind);
/* Splits tinker://RUN/KIND/NAME into the arena. */
bool tke_path_split(tkc_arena *, const char *path, const char **run, int32_t *kind,
                    const char **name, tinkc_error *err);
/* STORE/runs/RUN/KIND/NAME. */
char *tke_checkpoint_folder(tke_service *, tkc_arena *, const char *run_id, int32_t kind,
                            const char *name, tinkc_error *err);
/* Adds its row. */
void tke_checkpoint_store(tke_txn *, const tke_checkpoint *);
/* What is wrong with a checkpoint's ttl; NULL = nothing. */
const char *tke_wrong_ttl(tkc_opt_i64 seconds);
/* Fills a message that is all zero. Locks: needs svc->lock, for what the message points to. */
void tke_fill_checkpoint(tke_call *, const tke_checkpoint *, tkc_checkpoint *out);
/* Written and not expired. Locks: needs svc->lock. */
bool tke_checkpoint_visible(tke_service *, const tke_checkpoint *);
/* Any thread, no locks held. Removes the files and the row of a checkpoint that is marked as gone,
 * then answers `reply` (may be NULL) with 204; or with an error, and the checkpoint is there again. */
void tke_checkpoint_delete(tke_service *, tke_checkpoint *, tinkc_reply *reply);

#endif
