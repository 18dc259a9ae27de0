/* runs.h - a training run: who it belongs to, the order of its requests, where its newest state is.
 *
 * A run object is never freed while the service lives; a deleted one is only hidden from those who look
 * for it by name. run_state.h moves its states, run_queue.h orders its requests, run_source.h knows its
 * newest state on disk.
 *
 * Locks: fields and functions need svc->lock; those under "worker" are the worker's alone.
 */
#ifndef TKE_SERVICE_RUNS_H
#define TKE_SERVICE_RUNS_H

#include <stdatomic.h>

#include "service/core/service_types.h"
#include "service/store/store.h"
#include "service/worker/run_curve.h"
#include "service/worker/run_queue.h"
#include "service/worker/run_state.h"
#include "train/training.h"

enum { TKE_RUN_BY_LOAD = 1 << 8 }; /* beside TKE_TRAIN_* in the column runs.flags */
struct tke_run {
    char *id, *owner;
    tke_session *session;
    int64_t model_seq;
    _Atomic(tke_base *) base; /* NULL: not registered yet; once set it stays */
    char *base_model;
    tke_adapter_spec spec;
    char *user_metadata; /* JSON; NULL = none */
    size_t kept;         /* see tke_kept_take */
    int64_t created_us, last_request_us;
    tke_run_states is; /* changed only by tke_run_on */
    bool corrupted;    /* shown to clients: requests or the state were lost */
    bool by_load;      /* constant: made from a checkpoint, not from a seed */
    tke_hash128 hash;  /* of its create request */
    char *create_request_id;
    char *error; /* why it failed */

    /* order */
    tke_job *create;  /* NULL once it has run */
    tke_job *loaded;  /* a load that waits for an image before it is answered */
    tke_job *queue;   /* arrived, not started; by seq_id */
    int64_t next_seq; /* the seq_id that runs next */
    tke_seen *seen;   /* by seq_id - 1 */
    size_t n_seen, cap_seen;
    int64_t last_arrival_ms;
    uint64_t served;    /* when it last had its turn: smallest first */
    int64_t lost_from;  /* 0 = none; else passes, steps, saves fail until a load */
    int64_t lost_after; /* the state is that after this seq_id */
    int64_t n_failed_passes, n_passes, n_pass_tokens; /* since the last step */
    tke_checkpoint *waits_for;
    uint64_t room_seen;    /* while it waits for room: svc->room_changes when it last looked */
    int64_t room_since_ns; /* when it began to wait */
    int64_t room_retry_ns;
    int64_t dirty_since_ms; /* 0 = the newest state on disk is current */
    int64_t changed_seq;    /* of the last request that changed the state */
    int64_t image_seq;      /* next_seq of the newest state on disk; 0 = none */
    int32_t image_slot;     /* the one to write next: 0 or 1 */
    char *source;           /* folder of the newest state; NULL = start from the seed */

    bool by_python;   /* the official SDK drives it: nobody else keeps its numbers */
    tke_curve *curve; /* NULL = none */

    /* worker; NULL while it sleeps on disk */
    tke_adapter *adapter;
    size_t adapter_bytes;
};

tke_run *tke_find_run(tke_service *, const char *id);
/* Applies an event to a run's states. An event that is impossible in its state is our bug. */
void tke_run_on(tke_run *, tke_run_event);
tke_run *tke_run_add(tke_service *, const char *id, const char *owner, tinkc_error *err);
/* Nobody finds it any more; the object stays. */
bool tke_run_hide(tke_service *, tke_run *, tinkc_error *err);
/* Removes one that could not be completed; nobody else has it yet. */
void tke_run_undo(tke_service *, tke_run *);
/* Queues the unloading of a run behind its other requests, as a job of this id.
 * False: it is unloaded, or err says why not. */
bool tke_run_unload(tke_service *, tke_run *, char id[160], tinkc_error *err);
/* Adds its row. */
void tke_run_store(tke_txn *, const tke_run *);

#endif
