/* settings.h - the engine's settings as the service uses them: read once at start (service.c), then constant,
 * except where a field says otherwise. Any part may read them, none needs a lock.
 */
#ifndef TKE_SERVICE_SETTINGS_H
#define TKE_SERVICE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
