/* service_state.h - the service's state: sessions, runs, samplers, checkpoints, jobs. Internal.
 *
 * Every field is guarded by svc->lock unless it is under "worker", which only that thread touches,
 * or is marked otherwise. Objects live until the service ends, with two exceptions: jobs are
 * reference-counted and dropped some time after their result was fetched; sessions that never
 * trained are forgotten, with their samplers, after a long time without requests. That happens
 * under the lock, so code that uses a sampler outside the lock must pin its session first.
 */
#ifndef TKE_SERVICE_SERVICE_STATE_H
#define TKE_SERVICE_SERVICE_STATE_H

#include "base/map.h"
#include "base/pool.h"
#include "base/str.h"
#include "base/thread.h"
#include "device/memory_plan.h"
#include "infer/infer.h"
#include "service/handlers/identity.h"
#include "service/worker/memory_budget.h"
#include "service/handlers/auth_token.h"
#include "service/worker/run_curve.h"
#include "service/worker/run_state.h"
#include "service/core/service.h"
#include "service/worker/vocab.h"
#include "train/training.h"
#include "wire/answer.h"
#include "wire/endpoint.h"
#include "wire/messages.h"
#include "wire/sample_message.h"
#include "wire/train_message.h"

/* ---- settings ---- */

/* How saved adapters name the output projection. AUTO: as PEFT does if the model has one of its
 * own; as the hosted service does if it is tied to the embedding, where tools that merge look for
 * it. */
enum { TKE_NAMING_AUTO = 0, TKE_NAMING_PEFT, TKE_NAMING_HOSTED };

typedef struct tke_settings {
    int64_t long_poll_ms;
    int64_t pending_status; /* 408 or 200 */
    int64_t metadata_only_threshold;
    int64_t result_grace_ms, result_ttl_ms, result_store_bytes, result_spill_bytes;
    int64_t seq_gap_timeout_ms;
    int64_t session_timeout_ms;
    int64_t run_keep_ms;        /* of an image whose client is silent; 0 = forever */
    int64_t session_keep_ms;    /* of a session that never trained, without requests */
    int64_t max_idle_sessions;  /* how many of those are kept once expired */
    int64_t max_kept_per_key, max_kept_bytes; /* see tke_kept_take */
    int64_t ephemeral_grace_ms; /* after its session has expired */
    int64_t ephemeral_idle_ms;  /* without a sample */
    int64_t idle_release_ms;    /* without work: frees work space and unused heap */
    int64_t max_ephemeral;      /* per session; beyond it the least recently used go */
    int64_t max_lora_rank;
    int64_t lora_alpha;
    int64_t microbatch_tokens; /* 0 until the device is open: its own */
    double train_share;
    int64_t kv_bytes, prefill_chunk;
    int64_t max_context;      /* of every base model; 0 = the model's own */
    int64_t max_batch_tokens; /* of a microbatch and of a sampling step; 0 = no limit */
    int64_t max_models;       /* training runs in memory at once; 0 = as many as fit */
    int64_t max_sample_queue, max_num_samples, max_topk;
    int64_t max_temperature; /* in OpenAI's form */
    int64_t max_queued_tokens;
    int64_t max_queued_bytes; /* of unfinished training requests, in memory */
    int64_t autosave_ms;
    int64_t disk_reserve;
    int64_t max_body_bytes;
    int64_t memory_bytes, train_memory_bytes;
    int64_t snapshot_memory_bytes; /* of snapshots that are also on disk */
    int64_t archive_ms;
    int64_t keep_last_k;     /* checkpoints of each kind and run; 0 = all */
    char public_url[256];    /* base of links; empty = as in the request */
    int32_t sample_logprobs; /* TKE_LOGPROBS_* */
    int32_t adapter_dtype;   /* of sampler checkpoints */
    int32_t adapter_names;   /* TKE_NAMING_* */
    int32_t durability;
    int32_t threads;
    int32_t compute; /* precision of products */
    int32_t keep;    /* TKE_KEEP_* */
    bool strict, strict_steps;
    bool emit_elementwise_loss;
    bool jwt_auth;             /* keys are exchanged for tokens */
    bool openai;               /* /v1/chat/completions and similar are served */
    bool use_pyqwest;          /* tell the official SDK to use its other transport */
    bool use_retrieve_futures; /* the SDK polls for all samples of a session at once */
    bool share_disk;           /* clients may open our model folders: say so in tokenizer_id */
} tke_settings;

/* ---- base models ---- */

/* What handlers_hub.c remembers of a file, and what makes it stale: another file, size or time. */
enum { TKE_HUB_FILES = 12 };
typedef struct tke_hub_file {
    uint64_t device, inode;
    int64_t size, mtime_ns;
    bool settled;  /* not changed shortly before it was read: a change shows in its time */
    char oid[41];  /* "" = not known */
} tke_hub_file;

typedef struct tke_base {
    char *name;
    tke_model *model;
    tke_vocab *vocab;                  /* NULL: the folder has no tokenizer.json */
    size_t context;                    /* offered to clients: the model's own, or less */
    int64_t added_us;                  /* constant */
    struct tinkc_tokenizer *tokenizer; /* opened on first use; tokenizer_lock */
    tke_token_order *order;            /* for constraints: made on first use, tokenizer_lock */
    tke_hub_file hub[TKE_HUB_FILES];   /* digests of small files; svc->lock */
    /* worker */
    tke_device_model *loaded; /* its weights on the device; NULL until first used */
    tke_trainer *trainer;
    tke_infer *infer;
} tke_base;

/* ---- sessions ---- */

typedef struct tke_custom_loss { /* made by create_custom_loss; lives as long as its session */
    struct tke_custom_loss *next;
    char *id;
    char *request_id; /* of the future that answered */
    int64_t seq;
    tke_hash128 hash;
    size_t bytes; /* of the request */
    size_t kept;  /* see tke_kept_take */
    tke_graph *graph;
} tke_custom_loss;

typedef struct tke_session {
    char *id, *owner;
    char *user_metadata; /* JSON; NULL = none */
    char *project_id;
    char *display_name;             /* NULL = none */
    _Atomic(const char *) finished; /* static: how its client finished it; NULL = active */
    char *finish_detail;
    int64_t created_us;
    int64_t seen_ms;
    tke_custom_loss *losses;
    size_t n_losses, loss_bytes;
    size_t kept;         /* see tke_kept_take */
    size_t n_runs;       /* ever made; a session with runs is never forgotten */
    _Atomic size_t pins; /* raised under svc->lock only */
    bool expired;
    bool forgotten; /* is being removed from the maps */
} tke_session;

/* ---- checkpoints ---- */

#define TKE_METADATA_FILE "user_metadata.json"
enum { TKE_CKPT_TRAINING = 0, TKE_CKPT_SAMPLER = 1, TKE_CKPT_EXTERNAL = 2 };
enum { TKE_CKPT_PENDING = 0, TKE_CKPT_DONE, TKE_CKPT_GONE };
/* What is on disk for this object, even if another object has its name by now. */
enum { TKE_DISK_WRITING = 0, TKE_DISK_THERE, TKE_DISK_FAILED };

typedef struct tke_checkpoint {
    char *path; /* "tinker://RUN/weights/NAME": the key in svc->checkpoints */
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
} tke_checkpoint;

/* ---- samplers ---- */

typedef struct tke_sampler {
    char *id, *owner, *base_model;
    char *model_path; /* NULL = bare model or ephemeral */
    tke_session *session;
    tke_base *base;
    tke_checkpoint *checkpoint; /* of model_path */
    tke_snapshot *snapshot;     /* ephemeral, resident */
    char *spill;                /* folder of an ephemeral one on disk */
    int64_t used_ms;
    int64_t n_clients; /* numbers given to copies; the original has 0 */
    bool ephemeral;
    tke_hash128 hash;
} tke_sampler;

/* ---- jobs: futures and the work behind them ---- */

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

typedef struct tke_session_poll { /* a poll for the next sample of a sampling session to end */
    char *sampler;
    int64_t clone; /* which of the copies of the sampler asks; 0 = the first */
    int64_t after; /* only samples with a higher done_number are reported */
} tke_session_poll;

typedef struct tke_waiter {         /* an open poll */
    struct tke_waiter *next, *prev; /* in the list of all polls, by deadline */
    struct tke_waiter *next_of_job;
    struct tke_job *job;
    tinkc_reply *reply;
    int64_t deadline_ms;
    bool proto, metadata, remote;
    tke_session_poll *poll; /* NULL = waits for its job only */
} tke_waiter;

typedef struct tke_stream tke_stream;
typedef struct tke_stream_style tke_stream_style;

typedef struct tke_job {
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
} tke_job;

/* ---- runs ---- */

enum { TKE_RUN_BY_LOAD = 1 << 8 }; /* beside TKE_TRAIN_* in the column runs.flags */
/* What is known of a seq_id for the life of its run. REFUSED: its request was refused; the client
 * may use the number again. If it continues with a higher number instead, the state becomes ABANDONED:
 * the number will never run. */
enum {
    TKE_SEEN_NOT = 0,
    TKE_SEEN_PENDING,
    TKE_SEEN_DONE,
    TKE_SEEN_LOST,
    TKE_SEEN_ABANDONED,
    TKE_SEEN_REFUSED
};

typedef struct tke_seen {
    tke_hash128 hash;
    uint32_t epoch;
    uint8_t kind, state;
    bool failed; /* done, and changed nothing */
} tke_seen;

typedef struct tke_run {
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
} tke_run;

/* ---- the service ---- */

enum { TKE_UPLOAD_FILES = 2 };

typedef struct tke_upload { /* an adapter whose files are sent without a key; svc->lock guards it */
    char *id, *owner;
    char *base_model, *project_id; /* project_id may be NULL */
    char *folder;                  /* of its files, below tmp/; NULL = removed, it is finished */
    char *path;                    /* of the checkpoint that it became; NULL = none yet */
    int32_t rank;
    uint32_t train; /* TKE_TRAIN_*: what lora_config allows */
    int64_t expires_ms;
    bool busy;                       /* a thread uses its folder */
    struct tke_tenant *tenant;       /* who gets `held` back; NULL = nothing is held */
    int64_t held[TKE_UPLOAD_FILES];  /* bytes of the owner's storage, for each file */
} tke_upload;

typedef struct tke_archive { /* a download that may be fetched without a key */
    char *token;
    char *owner;                /* who asked; access is checked again at download */
    tke_checkpoint *checkpoint; /* never freed */
    int64_t expires_ms;
} tke_archive;

typedef struct tke_tenant { /* an owner; svc->lock; lives as long as the service */
    tke_quota quota;
    int64_t minute, n_requests; /* in that minute */
    int64_t day, n_tokens;      /* on that day */
    size_t kept;                /* of svc->kept */
    /* The most that jobs in flight may still use; given back without a lock. */
    _Atomic int64_t held_tokens, held_bytes;
} tke_tenant;

typedef struct tke_idempotent { /* answers to X-Idempotency-Key of create_session, copy_weights */
    char *key;                  /* of whom, for what */
    char *made;                 /* a session's id, a copy's path */
    int64_t at_ms;
} tke_idempotent;

enum { TKE_MAX_DOWNLOADS = 64 };

struct tke_service {
    tkc_refs refs;
    const tinkc_allocator *a;
    tkc_log log;
    const tinkc_clock *clock;
    tke_settings set;
    tke_token_secret *token_secret; /* in secret pages; constant */
    tke_owner_salt owner_salt;      /* constant */
    tke_budget bodies;              /* of requests under way */
    _Atomic int64_t gauges[TKE_N_GAUGES];
    tke_store *store;
    tke_device *device; /* the worker's */
    tke_device_reason device_reason;
    const char *memory_bounded;
    /* static: by what the memory of the engine is bounded */ /* why this one; constant */
    tkc_pool *files;                                          /* one thread: tensor files */
    tkc_pool *downloads; /* a thread for each, so that slow readers block nothing else */
    tkc_pool *texts;     /* two threads: templates and tokenizers of requests */
    tkc_pool *results;   /* one thread: reads results that are in files */
    int64_t epoch;
    atomic_bool draining;
    _Atomic int64_t max_body;

    _Atomic(tke_gone_fn *) gone;
    pthread_mutex_t tokenizer_lock; /* to open one; never take svc->lock inside it */
    pthread_mutex_t usage_lock; /* to hand counters to the store; svc->lock is taken inside it */

    pthread_mutex_t lock;
    pthread_cond_t work;               /* the worker has something to look at */
    pthread_cond_t timer;              /* the housekeeper's next deadline has changed */
    pthread_cond_t idle;               /* an image was written, or a job ended */
    tkc_map bases;                     /* name -> tke_base */
    tkc_map sessions;                  /* id */
    tkc_map runs;                      /* id */
    tkc_map deleted_runs;              /* by their addresses: others may point to them */
    tkc_map samplers;                  /* id */
    tkc_map checkpoints;               /* tinker path */
    tkc_map jobs;                      /* request id */
    tkc_map archives;                  /* token */
    tkc_map uploads;                   /* id */
    tkc_map idempotent;                /* key */
    tkc_map tenants;                   /* owner */
    tke_job *samples, **samples_end;   /* not yet with the generator */
    size_t n_samples, n_sample_tokens; /* queued or running */
    tke_waiter *first_waiter, *last_waiter;
    size_t n_many; /* of them, those that wait for any sample of a session */
    int64_t n_samples_done;
    tke_stream *streams;
    size_t n_images;    /* being written */
    size_t n_file_work; /* queued or running on the file thread, or being recorded */
    size_t adapter_bytes, snapshot_bytes;
    size_t loss_bytes;     /* compiled custom losses */
    size_t kept;           /* see tke_kept_take */
    int64_t result_bytes;  /* of all results */
    int64_t result_memory; /* of those that are not in files */
    size_t queued_bytes;
    int64_t idle_since_ms; /* nothing is queued or running since; 0 = something is */
    bool wants_release;    /* the worker should free what only work needs */
    bool released;         /* it has done so since the last work */
    size_t n_downloads;
    struct tke_deferred *deferred; /* all of them */
    size_t n_texts;                /* requests queued or running on the text threads */
    uint64_t turn;
    uint64_t room_changes; /* counts every release of memory */
    tkc_map usage;         /* counters not yet in the store */
    uint64_t n_requests, n_tokens_trained, n_tokens_sampled, n_tokens_prefilled;
    uint64_t n_sample_steps, n_worker_waits;
    bool stop;

    /* worker */
    int64_t train_ns, sample_ns; /* had by each, while both had work */
    int64_t train_since_ns;      /* what training did since is not in train_ns yet */
    tke_base *training;          /* whose passes run now; NULL = none */
    size_t training_bytes;       /* and what they need at least */
    tke_job *generating;         /* samples that a generator has, by next */

    pthread_t worker, housekeeper;
    bool has_worker, has_housekeeper;

    tinkc_transport transport; /* constant after start */
};

/* ---- one request in progress (front threads) ---- */

typedef struct tke_call {
    tke_service *svc;
    const tinkc_request *request;
    tinkc_reply *reply;
    const char *owner;
    const tke_caller *caller;
    uint32_t flags;
    tkc_route route;
    tinkc_str path; /* without query; OpenAI's as if under /v1/ */
    tinkc_str query;
    tinkc_str body; /* after decompression */
    bool openai;    /* a form of service/chat; refusals have it */
    bool anthropic; /* Anthropic's */
    tkc_arena arena;
    tinkc_error err;
} tke_call;

/* ---- reply.c: answering ---- */

void tke_send(tinkc_reply *, int32_t status, const char *type, tinkc_str body);
void tke_send_json(tinkc_reply *, int32_t status, tinkc_str body);
/* {"detail", "code"}; any status. */
void tke_send_error(tinkc_reply *, const tinkc_allocator *a, int32_t status, const char *code,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Removes what clients must not see from an error: the location of our files. */
void tke_hide_paths(tinkc_error *);
/* The status and code that fit what is in err. */
int32_t tke_failure_status(const tinkc_error *err, const char **code);
void tke_send_failure(tinkc_reply *, const tinkc_allocator *a, const tinkc_error *err);
/* Encodes and sends; 200. */
void tke_answer(tke_call *, const tkc_message *, const void *msg);
void tke_refuse(tke_call *, int32_t status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* 429 with Retry-After. */
void tke_refuse_for(tke_call *, int64_t retry_after_s, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, once a transaction is committed; txn NULL = at once. */
void tke_refuse_after(tke_call *, tke_txn *, int32_t status, const char *code, const char *format,
                      ...) __attribute__((format(printf, 5, 6)));
/* 200 with this JSON, which is freed; or what call->err says. */
void tke_answer_text(tke_call *, tkc_buf *json);
/* Commits, then sends; the text is copied. Status 204 sends no body. */
void tke_answer_after(tke_call *, tke_txn *, int32_t status, tinkc_str json);
/* The same, with 200 and a message. After an error in call->err: commits, and sends that. */
void tke_answer_stored(tke_call *, tke_txn *, const tkc_message *, const void *msg);
const char *tke_call_header(const tke_call *, const char *name);
/* Is it one of the base models that the server which was called offers? */
bool tke_call_offers(const tke_call *, const char *model);
/* handlers_hub.c: the paths of a hub, for tokenizers and configurations of base models. */
void tke_handle_hub(tke_call *);
/* What its body is, by its Content-Type; one without a type is JSON. */
bool tke_call_is_protobuf(const tke_call *);
bool tke_call_is_json(const tke_call *);
/* A parameter of the query, decoded into the arena; NULL = not there. */
const char *tke_call_query(tke_call *, const char *name);
/* Where clients reach this server, without a slash at its end; in the call's arena. */
const char *tke_call_base_url(tke_call *);
/* An integer parameter; answers 400 and returns false if it is none. */
bool tke_call_query_i64(tke_call *, const char *name, int64_t fallback, int64_t *out);
/* Decodes the JSON body. False after an answer: 422 if it cannot, 400 if it has an unknown field. */
bool tke_call_decode(tke_call *, const tkc_message *, void *msg);
/* The same, but leaves unknown fields to the caller, who has a better answer to some of them. */
bool tke_call_parse(tke_call *, const tkc_message *, void *msg);

/* ---- jobs.c ---- */

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
/* Holds a poll until its job is done or the poll times out. Locks: needs svc->lock. */
tke_waiter *tke_poll_hold(tke_call *, tke_job *, bool proto, bool metadata);
/* futures_poll.c. The first needs svc->lock, the second must not have it. */
bool tke_session_poll_wants(const tke_session_poll *, const tke_job *);
void tke_session_poll_answer(tke_service *, const tke_session_poll *, tinkc_reply *);
void tke_handle_futures(tke_call *);
void tke_retrieve_future(tke_call *);
void tke_cancel_future(tke_call *);
/* Housekeeper. Locks: none held. Answers polls that have timed out; returns the next deadline. */
int64_t tke_poll_expire(tke_service *, int64_t now_ms);
/* Answers every open poll with 503, when the service ends. */
void tke_polls_close(tke_service *);
const char *tke_category(const tinkc_error *err);

/* ---- results.c: where results are stored, and for how long ---- */

/* Is this result large enough for a file? */
bool tke_result_is_large(const tke_job *);
/* tke_txn_fn with a job as user: moves its result to a file. One that cannot be written stays in
 * memory. Thread: the store's writer. */
void tke_result_spill(tke_store *, void *job, tinkc_error *err);
/* Finds the file of a result that survived a restart. */
bool tke_result_find(tke_job *, tinkc_error *err);
/* Calls send with the result's bytes, now or on another thread; err is set if they are gone. */
typedef struct tke_result_read tke_result_read;
struct tke_result_read {
    tkc_job base;
    tke_job *job; /* holds a reference */
    tinkc_reply *reply;
    bool proto, remote;
    void (*send)(tke_result_read *, tinkc_bytes, const tinkc_error *err);
};
void tke_result_fetch(tke_result_read *); /* consumes it: from tkc_zalloc(svc->a) */
/* Locks: needs svc->lock, for both. */
void tke_result_count(tke_service *, tke_job *);
void tke_result_uncount(tke_service *, tke_job *);
/* Housekeeper. Drops expired results and, if there are too many, delivered ones, oldest first. A
 * result that was not fetched is never dropped for lack of room. */
void tke_results_reap(tke_service *, int64_t now_ms);

/* ---- run_queue.c: order, replays, gaps ---- */

/* Locks: needs svc->lock for all of these. */
tke_seen *tke_run_seen(tke_run *, int64_t seq); /* NULL past the end */
bool tke_run_see(tke_service *, tke_run *, int64_t seq, int32_t kind, tke_hash128 hash,
                 uint32_t epoch, uint8_t state, tinkc_error *err);
/* The same of a number of which no request is known. */
bool tke_run_mark(tke_service *, tke_run *, int64_t seq, uint8_t state, tinkc_error *err);
void tke_run_insert(tke_run *, tke_job *);
/* The job whose turn it is, or NULL. */
tke_job *tke_run_head(const tke_run *);
/* Takes the head out; the next seq_id's turn comes. */
tke_job *tke_run_take(tke_run *);
/* The number that the run's next request must have; 0 = a number below those that wait is
 * missing. */
int64_t tke_run_next_number(const tke_run *);
/* Advances next_seq past numbers that need not run: used up, or known to be done. */
void tke_run_skip_settled(tke_run *);
/* Marks a number as refused, so later requests do not wait for it once a higher one arrives; after
 * the commit this also holds after a restart. NULL: nothing to commit. */
tke_txn *tke_run_refused(tke_service *, tke_run *, int64_t seq);
/* A number has arrived: refused ones below it will never run. */
void tke_run_settle_refused(tke_run *, int64_t arrived);
/* Removes the jobs that wait behind a missing number: linked by next, with `invalid` set. */
tke_job *tke_run_give_up(tke_run *);
/* Front: accepts or replays a training request of a run; consumes the job; answers the call. */
void tke_run_accept(tke_call *, tke_run *, tke_job *, tkc_opt_i64 seq, tinkc_str journal_body);
void tke_gaps_expire(tke_service *, int64_t now_ms);

/* ---- registry.c: objects by name. Locks: needs svc->lock ---- */

tke_base *tke_find_base(tke_service *, const char *name);
tke_session *tke_find_session(tke_service *, const char *id);
tke_run *tke_find_run(tke_service *, const char *id);
tke_sampler *tke_find_sampler(tke_service *, const char *id);
/* NULL if unknown, expired or gone; *expired_us (may be NULL) says when it expired. */
tke_checkpoint *tke_find_checkpoint(tke_service *, const char *path, int64_t *expired_us);
void tke_session_touch(tke_service *, tke_session *);
/* Housekeeper; takes svc->lock. Forgets sessions that never trained and have had no requests for
 * too long, or are too many. */
void tke_sessions_forget(tke_service *, int64_t now_ms);
tke_session *tke_session_add(tke_service *, const char *id, const char *owner, tinkc_error *err);
/* Applies an event to a run's states. An event that is impossible in its state is our bug. */
void tke_run_on(tke_run *, tke_run_event);
tke_run *tke_run_add(tke_service *, const char *id, const char *owner, tinkc_error *err);
tke_sampler *tke_sampler_add(tke_service *, const char *id, const char *owner, tinkc_error *err);
/* Locks: needs svc->lock. Nobody finds it any more; the object stays. */
bool tke_run_hide(tke_service *, tke_run *, tinkc_error *err);
/* Removes one that could not be completed; nobody else has it yet. */
void tke_run_undo(tke_service *, tke_run *);
void tke_sampler_undo(tke_service *, tke_sampler *);
tke_checkpoint *tke_checkpoint_add(tke_service *, const char *run_id, int32_t kind,
                                   const char *name, tinkc_error *err);
void tke_checkpoint_remove(tke_service *, tke_checkpoint *);
/* It is on disk and recorded: becomes visible, unless another has taken its name meanwhile. */
void tke_checkpoint_written(tke_checkpoint *);
/* A save failed: gives the name back to the checkpoint that had it before, written or still being
 * written. old NULL = there was none. */
void tke_checkpoint_restore(tke_service *, tke_checkpoint *added, tke_checkpoint *old);
bool tke_name_ok(const char *name);
/* "weights", "sampler_weights", "external_weights": the folder, and the part of a path. */
const char *tke_kind_name(int32_t kind);
/* Splits tinker://RUN/KIND/NAME into the arena. */
bool tke_path_split(tkc_arena *, const char *path, const char **run, int32_t *kind,
                    const char **name, tinkc_error *err);
/* STORE/runs/RUN/KIND/NAME. */
char *tke_checkpoint_folder(tke_service *, tkc_arena *, const char *run_id, int32_t kind,
                            const char *name, tinkc_error *err);
void tke_state_free_all(tke_service *);
void tke_idempotent_free(tke_service *, tke_idempotent *); /* NULL allowed */
void tke_archive_free(tke_service *, tke_archive *);
void tke_upload_free(tke_service *, tke_upload *); /* leaves the folder */
char *tke_copy(tke_service *, const char *text, tinkc_error *err); /* NULL stays NULL */

/* ---- handlers_*.c: handlers by endpoint ---- */

/* If a refused body still tells its model and seq_id, marks that number as refused, so later
 * requests do not wait for it. Returns what to commit before the refusal; NULL = nothing. */
tke_txn *tke_handle_refused(tke_call *);
void tke_handle_skip(tke_call *);
/* Cancels a request that is queued or running on the text threads. False: it is not one. */
bool tke_deferred_cancel(tke_service *, const tinkc_reply *);
void tke_handle_health(tke_call *);
void tke_handle_config(tke_call *);
void tke_handle_token(tke_call *);
void tke_handle_key(tke_call *);
void tke_handle_delete_key(tke_call *);
void tke_handle_dynamic_config(tke_call *);
void tke_handle_create_session(tke_call *);
void tke_handle_heartbeat(tke_call *);
void tke_handle_create_sampling_session(tke_call *);
void tke_handle_sampler(tke_call *);
void tke_handle_join(tke_call *);
void tke_handle_create_model(tke_call *);
void tke_handle_create_loss(tke_call *);
void tke_handle_get_info(tke_call *);
void tke_handle_unload(tke_call *);
/* Locks: needs svc->lock. Queues the unloading of a run behind its other requests, as a job of this id.
 * False: it is unloaded, or err says why not. */
bool tke_run_unload(tke_service *, tke_run *, char id[160], tinkc_error *err);
void tke_handle_pass(tke_call *);
void tke_handle_optim(tke_call *);
void tke_handle_save(tke_call *);
void tke_handle_save_sampler(tke_call *);
void tke_handle_load(tke_call *);
void tke_handle_sample(tke_call *);
bool tke_call_is_python(tke_call *); /* as its headers say */
/* Its three steps: find the base and checkpoint to sample from; take the prompt and the parameters;
 * queue, to be answered in this style. False: answered. */
bool tke_sample_target(tke_call *, const tkc_sample_request *, tke_job *);
bool tke_sample_fill(tke_call *, const tkc_sample_request *, tke_job *);
void tke_sample_stream(tke_call *, tke_job *const *jobs, size_t n, const tke_stream_style *);
/* handlers_openai.c: paths under /v1/. NULL: answered, there is no such path. */
typedef void tke_handle_fn(tke_call *);
tke_handle_fn *tke_openai_find(tke_call *, tinkc_str path);
tinkc_str tke_openai_path(tinkc_str path); /* without /oai/api or /anthropic/api */
bool tke_openai_knows(tinkc_str path);     /* with or without it */
void tke_openai_refuse(tke_call *, int32_t status, const char *code, const char *param,
                       const char *text);
/* Can this build read text? */
bool tke_openai_possible(tinkc_error *err);
void tke_base_free_tokenizer(tke_base *);
void tke_handle_capabilities(tke_call *);
void tke_handle_run(tke_call *);
void tke_handle_delete_run(tke_call *);
void tke_handle_runs(tke_call *);
void tke_handle_weights_info(tke_call *);
void tke_handle_run_checkpoints(tke_call *);
void tke_handle_checkpoints(tke_call *);
void tke_handle_checkpoint_change(tke_call *); /* delete, publish, unpublish, ttl */
/* What a call with this key made in the last ten minutes; NULL = nothing. Locks: both need
 * svc->lock. */
const char *tke_known_key(tke_service *, const char *key);
void tke_remember_key(tke_call *, const char *key, const char *made);
/* Add the row of a new object. Locks: what reading the object needs. */
void tke_session_store(tke_txn *, const tke_session *, const char *tags, const char *sdk_version);
void tke_run_store(tke_txn *, const tke_run *);
void tke_checkpoint_store(tke_txn *, const tke_checkpoint *);
/* What is wrong with a checkpoint's ttl; NULL = nothing. */
const char *tke_wrong_ttl(tkc_opt_i64 seconds);
void tke_handle_archive(tke_call *);
void tke_handle_external_urls(tke_call *);
void tke_handle_download(tke_call *, tinkc_str token);
void tke_handle_sessions(tke_call *);
void tke_handle_session(tke_call *);
void tke_handle_project(tke_call *);
void tke_handle_trace(tke_call *);
void tke_handle_finish(tke_call *);
void tke_handle_search(tke_call *);
void tke_handle_checkpoint_search(tke_call *);
/* Fills a message that is all zero. Locks: needs svc->lock, for what the message points to. */
void tke_fill_checkpoint(tke_call *, const tke_checkpoint *, tkc_checkpoint *out);
void tke_handle_storage(tke_call *);
void tke_handle_save_external(tke_call *);
void tke_handle_copy_weights(tke_call *);

/* ---- handlers_upload.c ---- */

#define TKE_UPLOADS "/api/v1/uploads/"
void tke_handle_upload_start(tke_call *);
void tke_handle_upload_file(tke_call *);   /* PUT TKE_UPLOADS "ID/FILE"; may wait */
void tke_handle_upload_finish(tke_call *); /* may wait */
/* May the files of "ID/..." still be sent? No locks held. */
bool tke_upload_is_open(tke_service *, tinkc_str rest);
/* Ends those that are over, or all of an owner (NULL = none). Locks: needs svc->lock. */
void tke_uploads_expire(tke_service *, int64_t now_ms, const char *owner);

/* ---- adapter_import.c ---- */

typedef struct tke_import_as {
    const char *owner, *project_id;
    int32_t rank;   /* that it must have; 0 = any */
    uint32_t train; /* TKE_TRAIN_* that it may have; 0 = any */
    bool fresh;     /* a run of its own, else the one named after the files */
} tke_import_as;
/* Waits, so never call it on the worker's thread. BAD_REQUEST: it is not what `as` says. */
bool tke_import_adapter(tke_service *, const tinkc_import_options *, tke_import_as,
                        tinkc_text *weights, tinkc_text *sampler, tinkc_error *err);
/* Refuses a request for a session with 404, 403 or 410. */
void tke_refuse_session(tke_call *, int32_t status, const char *id, const char *finished);
/* True: the session is finished, and the call was answered. `finished` NULL = active. */
bool tke_session_over(tke_call *, const char *id, const char *finished);
/* Static: the same text, or NULL if it is not a way to finish. */
const char *tke_finish_reason(const char *type);
/* Written and not expired. Locks: needs svc->lock. */
bool tke_checkpoint_visible(tke_service *, const tke_checkpoint *);
/* Answers and releases svc->lock, which the caller holds; the message may point to guarded data. */
void tke_answer_locked(tke_call *, const tkc_message *, const void *msg);
/* The folder of a model's files, in the call's arena; NULL: the caller may not open them (it has a
 * key and share_disk is off). Reads the disk, so the caller must hold no lock. */
const char *tke_shared_folder(tke_call *, const tke_base *);
/* A base model by its name, or by its folder if the caller may open that. NULL: there is none. */
tke_base *tke_base_named(tke_call *, const char *name);
/* A run or a checkpoint is there, but what it was trained from has not been registered. */
#define TKE_BASE_MISSING "the base model '%.150s' is not available here now"
/* A caller acts with one key: tokens of other accounts would be ignored. */
#define TKE_NO_ACCESS_TOKEN                                                                        \
    "is not supported by this server: publish the checkpoint, or use a key of its owner"
/* The owner's URN, which clients see; in the call's arena. NULL: call->err says why. */
const char *tke_call_urn(tke_call *, const char *owner);
void tke_handle_telemetry(tke_call *);
void tke_handle_audit(tke_call *);
void tke_handle_usage(tke_call *);

/* ---- custom_losses.c. Locks: needs svc->lock, except at startup ---- */

/* The graph of a session's custom loss, which lives as long as the session; NULL = none. */
const tke_graph *tke_loss_find(const tke_session *, const char *id);
void tke_losses_free(tke_service *, tke_session *);
/* Reads them, at startup after the sessions. */
bool tke_losses_load(tke_service *, tinkc_error *err);

/* ---- unknown_fields.c ---- */

/* The name of a member that this message, or an object inside it, does not have and whose value is
 * not a default (null, false, 0, empty); NULL = none. more: other known names, ended by NULL. The result is in the
 * arena. */
const char *tke_unknown_field(tkc_arena *, tinkc_str body, const tkc_message *,
                              const char *const *more);
/* The same for a forward_backward request in protobuf; also fields of the wrong type, fields given
 * twice and, if `config` is what was decoded, names given twice. True: `out` says which. */
bool tke_bad_field_in_pass(tinkc_str body, const tkc_numbers *config, tkc_arena *, char *out,
                           size_t size, tinkc_error *err);
/* Reads a value; false if it is null, false, 0 or empty. */
bool tke_value_is_set(tkc_json *);
/* False: an endpoint that takes no body got one with fields, and the call is refused. */
bool tke_call_bodiless(tke_call *);
/* False: an object of the JSON body has two members with one name, and the call is refused. */
bool tke_call_names_unique(tke_call *);
/* False: there is one, and the call is refused. */
bool tke_call_fields_known(tke_call *, const tkc_message *);
/* The same for the parameters of the query: unknown ones, ones given twice, and text that is not UTF-8. */
bool tke_call_query_known(tke_call *);

/* ---- request_decode.c: the bodies of training requests ---- */

/* The model and number of a request; seq absent: the body does not have it. */
typedef struct tke_head {
    const char *model_id;
    tkc_opt_i64 seq;
    bool whole; /* the body can be parsed to its end */
} tke_head;
/* False: not known. */
bool tke_read_head(tkc_arena *, tinkc_str body, bool is_pb, tke_head *out);
/* Decodes a training request's body into a job, for handlers and for the journal's replay. forward:
 * a pass without gradients, even if the body says otherwise. *model_id and *seq are those of the
 * body. False: it cannot be parsed or has no model_id; err (UNPROCESSABLE) says why. Errors in its
 * contents go to job->invalid. */
bool tke_decode_job(tke_job *, tinkc_str body, bool is_pb, bool forward, const char **model_id,
                    tkc_opt_i64 *seq, tinkc_error *err);
/* Is it the optimizer that this server has? NULL: the client does not say. */
bool tke_optimizer_ok(const tkc_optimizer_config *, tinkc_error *);
/* "an image", "audio": what a chunk without tokens is, by TINKC_CHUNK_*. */
const char *tke_chunk_name(int32_t kind);
/* The second half, once the run is known: checks against its base model. */
void tke_check_job(tke_job *, const tke_run *);
tke_hash128 tke_job_hash(const tke_job *);

/* ---- worker_*.c: the worker's operations ---- */

void *tke_worker_main(void *svc);
/* Has training had no more than its share of the time? */
bool tke_training_is_behind(double share, int64_t train_ns, int64_t sample_ns);
typedef struct tke_due { /* when the housekeeper's work of each kind is due; 0 = now */
    int64_t second, flush, minute;
} tke_due;
/* Does what is due; milliseconds until it must look again. Threads: one at a time while there are
 * streams. */
int64_t tke_housekeep(tke_service *, tke_due *);
void *tke_housekeeping_main(void *svc);
/* All of these: thread worker, no locks held. */
/* Between two microbatches: samples, until training has had no more than its share. */
void tke_work_between(void *svc);
/* worker_memory.c: what is to be divided, of all base models whether loaded or not. Any thread. */
tke_memory_need tke_service_need(tke_service *);
/* How the memory of the device is divided at present. */
tke_memory_plan tke_work_plan(tke_service *, const tke_base *);
/* A tke_infer_options.more: may a cache take so much more? Work space of training is given back. */
bool tke_work_cache_room(void *svc, size_t bytes);
/* Gives svc->training what it may have; where that is too little, caches shrink. */
void tke_work_train_room(tke_service *);
void tke_work_passes(tke_service *, tke_job **jobs, size_t n);
void tke_work_optim(tke_service *, tke_job *);
/* A run that lost requests in a crash accepts no passes, steps or saves until a load: the client
 * expects other weights. True: refused, job->invalid says why. */
bool tke_work_refuse_lost(tke_job *);
void tke_work_create(tke_service *, tke_job *);
void tke_work_save(tke_service *, tke_job *);
void tke_work_load(tke_service *, tke_job *);
void tke_work_unload(tke_service *, tke_job *);
/* Loads the run's adapter into memory. False with err: impossible; false without: no room yet.
 * from_scratch: ignores the stored state. */
bool tke_work_wake(tke_service *, tke_run *, bool from_scratch, tinkc_error *err);
/* run_source.c: the newest state of a run on disk, an image or a saved checkpoint, and what it makes
 * superfluous. */
/* Locks: needs svc->lock. For the curve of a run that the SDK drives. */
void tke_run_note_loss(tke_service *, tke_run *, double loss_sum, int64_t tokens);
/* Locks: needs svc->lock. A request changed the run's state. */
void tke_run_changed(tke_service *, tke_run *, int64_t seq);
/* Locks: needs svc->lock. The folder holds the state before next_seq; false: a newer one is known, or
 * the run is unloaded. */
bool tke_source_take(tke_service *, tke_run *, const char *folder, int64_t next_seq);
/* Locks: needs svc->lock. Is it an image, and not a checkpoint that a client saved? */
bool tke_source_is_image(const tke_run *);
/* Removes the images that are neither the source of the run nor being written. Any thread, no locks
 * held. */
void tke_images_remove(tke_service *, tke_run *);
/* The folder, a checkpoint, is about to be deleted (move) or replaced: if it is what the run continues
 * from, it becomes an image, too. True: the folder is gone. Thread: files. */
bool tke_source_keep(tke_service *, tke_run *, const char *folder, bool move, tinkc_error *err);
/* Removes images, journal and results of an unloaded run. Any thread. */
void tke_run_remove_files(tke_service *, const tke_run *);
/* Copies the run's state and queues it for writing. */
void tke_work_image(tke_service *, tke_run *);
void tke_work_sleep(tke_service *, tke_run *);
/* Any thread, no locks held. Brackets work on the file thread: until it ends, shutdown keeps that
 * thread and the store's writer alive. Work that leads to more work must begin the next one before
 * it ends, or shutdown could pass between the two. */
void tke_file_work_begin(tke_service *);
void tke_file_work_end(tke_service *);
/* Any thread, no locks held. Removes the files and the row of a checkpoint that is marked as gone,
 * then answers `reply` (may be NULL) with 204; or with an error, and the checkpoint is there again. */
void tke_checkpoint_delete(tke_service *, tke_checkpoint *, tinkc_reply *reply);
/* Loads the weights of a base model to the device, on first use. */
bool tke_work_base(tke_service *, tke_base *, tinkc_error *err);
/* True if `bytes` more fit in memory. If not, an idle model, if any, has been asked to sleep. */
bool tke_work_room(tke_service *, size_t bytes);
/* The same for one more snapshot, which evicts others that can be read again from disk. */
void tke_work_snapshot_room(tke_service *, size_t bytes);
/* Evicts all snapshots that can be read again from disk. */
void tke_work_forget_snapshots(tke_service *);
/* Locks: needs svc->lock. Are max_models in memory? staying: without those going to sleep. */
bool tke_models_full(const tke_service *, bool staying);
void tke_work_wait_room(tke_service *, tke_run *, tke_job *);
/* Hands queued samples to the generators. True if any generator has work. */
bool tke_work_samples_start(tke_service *);
void tke_work_samples_step(tke_service *);
void tke_work_samples_stop(tke_service *);

/* ---- sample_events.c ---- */

/* How an answer is written. `whole`: one body at the end, with its own status; otherwise events,
 * after a head that is sent at once. Both functions append to out, on the worker's thread; calls
 * for the jobs of one stream never overlap. */
struct tke_stream_style {
    bool whole;
    /* Writes what is new since the last call; NULL = nothing is written before the end. */
    void (*tokens)(void *user, const tke_gen *, tkc_buf *out, tinkc_error *err);
    /* Called exactly once for each job; why NULL = the generator's result. Frees what user holds.
     * For the last job it returns the status of a whole answer. */
    int32_t (*end)(void *user, const tke_gen *, const tinkc_error *why, tkc_buf *out,
                   tinkc_error *err);
};
extern const tke_stream_style tke_stream_native;
void *tke_stream_native_user(tke_job *, tinkc_error *err);

/* A stream that answers a call with the samples of n jobs. NULL: call->err says why. */
tke_stream *tke_stream_new(tke_call *, const tke_stream_style *, size_t n_jobs);
/* Worker: writes events for new tokens. */
void tke_stream_tokens(const tke_job *, const tke_gen *);
/* Worker: ends this job's part; `why` NULL = the generator's result. If one job fails, the others
 * need not continue. The caller must not use the stream afterwards. */
void tke_stream_end(const tke_job *, const tke_gen *, const tinkc_error *why);
bool tke_stream_closed(tke_stream *);
void tke_streams_ping(tke_service *, int64_t now_ms);
/* For the stream that answers into this reply, if there is one: writes more; cancels it. */
void tke_stream_resume(tke_service *, tinkc_reply *);
void tke_stream_cancel(tke_service *, tinkc_reply *);

/* ---- tenants.c ---- */

/* Counts a request; false: too many, and answered. No locks held. */
bool tke_quota_request(tke_call *);
/* False: err (TOO_LARGE) says which quota is used up. What jobs in flight hold counts as used, so
 * that requests which arrive together do not each find it unused; *soon (NULL allowed) is true if only
 * that is in the way. A job (NULL = none) then holds `most` until tke_quota_settle. No locks held. */
bool tke_quota_tokens(tke_service *, const char *owner, tke_job *, int64_t most, bool *soon,
                      tinkc_error *err);
bool tke_quota_storage(tke_service *, const char *owner, tke_job *, int64_t most, tinkc_error *err);
/* For what is not a job: room for exactly these bytes, held until tke_quota_release. Locks: needs
 * svc->lock. *tenant NULL: nothing is held. */
bool tke_quota_hold(tke_service *, const char *owner, int64_t bytes, tke_tenant **tenant);
void tke_quota_release(tke_tenant *, int64_t bytes); /* NULL allowed; any thread */
/* Its work is done, or will not be: what it used is counted elsewhere by now. Any thread. */
void tke_quota_settle(tke_job *);
/* Locks: needs svc->lock, for these. */
void tke_tenant_used(tke_service *, const char *owner, int64_t tokens);
int64_t tke_tenant_storage(tke_service *, const char *owner);
/* What clients have the service keep in memory: metadata and notes of sessions, runs and
 * checkpoints, and custom losses. Counted against three limits: of one note (TKE_MAX_NOTE), of the
 * owner, of all. *kept is what is counted for an object; `give` subtracts it when the object is
 * freed. Returns 0, or the status of a refusal: 400, 403, 503; err says which limit. */
enum { TKE_MAX_NOTE = 32 << 10, TKE_MAX_PROJECT = 256 };
int32_t tke_kept_take(tke_service *, const char *owner, size_t bytes, size_t *kept,
                      tinkc_error *err);
/* The same for a text of a client, which is a note. NULL allowed. */
int32_t tke_kept_note(tke_service *, const char *owner, const char *text, size_t *kept,
                      tinkc_error *err);
/* Without a limit: what a start reads was accepted before. */
void tke_kept_add(tke_service *, const char *owner, size_t bytes, size_t *kept);
void tke_kept_give(tke_service *, const char *owner, size_t *kept);
/* Answers with that status, after the transaction (NULL allowed: none). */
void tke_refuse_kept(tke_call *, tke_txn *, int32_t status, const tinkc_error *why);
void tke_quota_write(tke_service *, const char *owner, tkc_jsonw *);
void tke_tenants_free(tke_service *);
/* Reads what was used today, at startup before any thread. */
bool tke_tenants_load(tke_service *, tinkc_error *err);

/* ---- usage.c ---- */

enum {
    TKE_USE_TRAINING = 0,
    TKE_USE_PREFILL,
    TKE_USE_PREFILL_CACHED,
    TKE_USE_SAMPLED,
    TKE_USE_CHECKPOINT
};
/* Locks: none needed. */
void tke_usage_add(tke_service *, const char *owner, const char *session_id, const char *base_model,
                   int32_t kind, int64_t count);
void tke_usage_flush(tke_service *);
/* event: "<resource>_<action>", as the SDK documents it. Locks: none needed. */
void tke_audit_add(tke_service *, const char *owner, const char *event, const char *model_id,
                   const char *path, const char *purpose);

/* ---- recovery.c, journal.c ---- */

bool tke_boot(tke_service *, tinkc_error *err);
/* Connects runs and samplers to a base model that was just registered. Locks: needs svc->lock. */
void tke_boot_base(tke_service *, tke_base *);

#endif
