/* jobs.h - a job: a request that was accepted, the work behind it and, once done, its result.
 *
 * Jobs are counted by reference. A job is dropped some time after its result was fetched (results.c).
 *
 * Locks: `state`, `next`, `waiters` and the times need svc->lock. The request (`in`) belongs to the thread that
 * runs the job; the result is written once, before the state becomes DONE, and then constant.
 */
#ifndef TKE_SERVICE_JOBS_H
#define TKE_SERVICE_JOBS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/thread.h"
#include "infer/infer.h"
#include "service/core/service_types.h"
#include "service/handlers/identity.h"
#include "service/store/store.h"
#include "train/training.h"
#include "wire/messages.h"
#include "wire/train_message.h"

enum {
    TKE_JOB_CREATE = 1,
    TKE_JOB_PASS,    /* forward_backward */
    TKE_JOB_FORWARD, /* forward_backward with forward_only */
    TKE_JOB_OPTIM,
    TKE_JOB_SAVE,
    TKE_JOB_SAVE_SAMPLER,
    TKE_JOB_LOAD,
    TKE_JOB_UNLOAD,
    TKE_JOB_SAMPLE,
    TKE_JOB_EXTERNAL, /* save_weights_external: an adapter in the form that other programs read */
    TKE_JOB_LOSS      /* create_custom_loss: done when it is accepted */
};

enum { TKE_QUEUED = 0, TKE_RUNNING, TKE_COMMITTING, TKE_DONE };
/* The column requests.state. */
enum {
    TKE_ROW_DONE = 1,
    TKE_ROW_FAILED,      /* and changed nothing */
    TKE_ROW_TENSORS,     /* done; the result is a pass's protobuf */
    TKE_ROW_FAILED_STEP, /* but changed the state of its run */
    TKE_ROW_REFUSED      /* its body was refused, or lost before it ran */
};

struct tke_job {
    tkc_refs refs;
    tke_service *svc;
    struct tke_job *next; /* in the queue of its run (by seq_id) or of samples */
    char *request_id, *owner;
    int32_t kind, state;
    struct tke_run *run; /* NULL for samples */
    int64_t seq;
    tke_hash128 hash;
    bool held; /* not yet in the journal */
    bool delivered;
    bool replayed; /* re-executed from the journal: its row may already exist */
    int64_t done_ms, delivered_ms;
    int64_t done_number; /* of samples: their order of completion, from 1 */
    tke_waiter *waiters;
    const char *reason; /* static: why it cannot run at its turn; NULL = no reason */
    bool paused;        /* for lack of capacity */

    /* the request; freed when the job completes */
    tkc_arena arena;
    size_t queued_bytes;       /* counted in svc->queued_bytes */
    struct tke_tenant *tenant; /* whose quotas hold what follows; NULL = nothing is held */
    int64_t held_tokens, held_bytes;
    tinkc_error invalid; /* found on arrival, reported at its turn */
    union {
        struct {
            const tkc_forward_backward_request *request;
            tke_loss loss;
            tke_datum *data;
            size_t n_data;
            int64_t n_tokens;
        } pass;
        struct {
            tke_adam_params adam;
        } optim;
        tkc_save_weights_request save;
        tkc_save_for_sampler_request save_sampler;
        tkc_save_external_request save_external;
        struct {
            const char *path;
            bool optimizer;
            bool creates;
        } load;
        struct {
            tke_sampler *sampler; /* its session is pinned; NULL: base, checkpoint */
            tke_base *base;
            tke_checkpoint *checkpoint;
            tke_gen_request gen;
            tke_gen *running;
            tke_stream *stream;        /* NULL: the client polls for the result */
            void *stream_user;         /* the style's, for this job */
            const tkc_tensor *targets; /* the layout of target_prompt_logprobs; NULL = none */
            bool cancelled;
        } sample;
    } in;

    /* the result */
    tkc_buf result;       /* empty if it is in a file */
    int64_t result_bytes; /* in memory or in a file; set when done */
    char *spill;          /* the file; NULL = in memory */
    bool result_is_pb;
    bool failed;
    bool touched; /* failed, but changed the run */
    tinkc_error error;
};

/* Makes a job that is in no list yet; request_id is copied. */
tke_job *tke_job_new(tke_service *, int32_t kind, const char *request_id, const char *owner,
                     tinkc_error *err);
void tke_job_keep(tke_job *);
void tke_job_drop(tke_job *);
/* Locks: needs svc->lock. Makes it retrievable by its request_id. */
bool tke_job_publish(tke_job *, tinkc_error *err);
/* Ends the job; any thread, no locks held. The result is `json`, or job->result if json is empty.
 * The row of a training request is committed before its future completes. Consumes a reference. */
void tke_job_succeed(tke_job *, tinkc_str json);
void tke_job_fail(tke_job *, const tinkc_error *why);
/* For results that are committed together with other rows: adds the row of a job whose result is in
 * job->result. After the commit, call tke_job_complete. */
void tke_job_add_row(tke_txn *, tke_job *);
/* Ids begin with the epoch in which the request was accepted; 0 = this one does not. */
uint32_t tke_epoch_of(const char *request_id);
/* Completes the future and answers its polls, without a row. No locks held. Consumes a
 * reference. */
void tke_job_complete(tke_job *);
const char *tke_category(const tinkc_error *err);

#endif
