/* hub.h - models from a Hugging Face-compatible hub, and back to it.
 *
 * Pulled files are stored in the standard cache (models--ORG--NAME/{blobs,refs,snapshots}), shared
 * with Python's library. No client and no account with the service is needed. Calls that wait run
 * transfers on their own threads; tinkc_hub_stop ends them from any thread. Names, paths, sizes and
 * digests that the hub sends are checked before they are used.
 */
#ifndef TINKC_HUB_H
#define TINKC_HUB_H

#include "client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tinkc_hub          tinkc_hub;          /* an address, a token, a cache folder      */
typedef struct tinkc_hub_snapshot tinkc_hub_snapshot; /* the files of one commit, in the cache    */

typedef struct tinkc_hub_options {
    const char            *url;       /* NULL = $HF_ENDPOINT, else https://huggingface.co        */
    const char            *token;     /* NULL = $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN, the file at
                                         $HF_TOKEN_PATH or $HF_HOME/token; "" = none             */
    const char            *cache_dir; /* NULL = $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub */
    const char            *proxy;     /* NULL = $HTTPS_PROXY and similar; "" = none              */
    const char            *ca_file;   /* NULL = $SSL_CERT_FILE, else the system's                */
    const tinkc_allocator *allocator; /* NULL = malloc and friends; must outlive the hub         */
    tinkc_log_fn          *log;       /* NULL = silent                                           */
    void                  *log_user;
    int32_t                log_level; /* TINKC_LOG_*; 0 = warn                                   */
    int32_t                jobs;      /* transfers at once; 0 = 4, at most 64                    */
    int64_t                connect_timeout_ms; /* 0 = 10 000                                     */
    int64_t                idle_timeout_ms;    /* no byte either way; 0 = 60 000                 */
    int64_t                retry_window_ms;    /* 0 = 30 000; 2 000 if no connection is made; FOREVER */
    bool                   no_retries;         /* nothing is tried twice                         */
    bool                   offline;   /* only what the cache has; also $HF_HUB_OFFLINE           */
    bool                   reserved_bools[6];
    uint64_t               reserved[7];
} tinkc_hub_options;
TINKC_PIN_SIZE(tinkc_hub_options, 160);

/* Reads the environment; no request is made. Options may be NULL. Errors: ARGUMENT (address). */
TINKC_API tinkc_hub *tinkc_hub_new(const tinkc_hub_options *, tinkc_error *);
/* After every call on it has returned. NULL allowed. */
TINKC_API void tinkc_hub_free(tinkc_hub *);
/* Ends the calls that are waiting, and all later ones, with TINKC_E_CANCELLED. Any thread, also a
 * signal handler. Partial files stay, so that the next pull continues them. */
TINKC_API void tinkc_hub_stop(tinkc_hub *);
TINKC_API const char *tinkc_hub_url(const tinkc_hub *);   /* without a slash at its end      */
TINKC_API const char *tinkc_hub_cache(const tinkc_hub *); /* the folder that holds models--* */
TINKC_API bool tinkc_hub_has_token(const tinkc_hub *);

enum { TINKC_HUB_USER_SIZE = 128 };
/* Asks the hub whose token it is: the owner of repositories that are named without one. Waits.
 * Errors: NO_CREDENTIAL (there is no token), OFFLINE, AUTH, CONNECTION, BAD_RESPONSE. */
TINKC_API bool tinkc_hub_user(tinkc_hub *, char name[TINKC_HUB_USER_SIZE], tinkc_error *);

/* ---- progress ---- */

typedef struct tinkc_hub_progress {
    const char *file;       /* one that is under way; "" = none yet                     */
    const char *waiting;    /* what all transfers wait for: "another process"; "" = nothing */
    int64_t     done_bytes; /* counts what was there already                            */
    int64_t     total_bytes;
    int64_t     moved_bytes; /* over the network                                        */
    int32_t     done_files, total_files;
    uint64_t    reserved[4];
} tinkc_hub_progress;

/* Called a few times a second on the thread that called; false stops the call (CANCELLED). */
typedef bool tinkc_hub_progress_fn(const tinkc_hub_progress *, void *user);

/* ---- pull ---- */

enum { /* which files, where neither include nor exclude is given */
    TINKC_PULL_MODEL     = 0, /* not the same weights twice: safetensors where there are any */
    TINKC_PULL_TOKENIZER = 1, /* what a tokenizer is made of, and config.json                */
    TINKC_PULL_ALL       = 2
};

typedef struct tinkc_pull_options {
    const char            *repo;     /* required: "org/name" or "name"                       */
    const char            *revision; /* branch, tag or commit; NULL = "main"                 */
    const char *const     *include;  /* list of shell patterns; "*" also matches "/"         */
    const char *const     *exclude;  /* list; wins over include                              */
    tinkc_hub_progress_fn *progress; /* or NULL                                              */
    void                  *user;
    int32_t                what;     /* TINKC_PULL_*                                         */
    bool                   dry_run;  /* asks the hub for the list and downloads nothing      */
    bool                   reserved_bools[3];
    uint64_t               reserved[4];
} tinkc_pull_options;
TINKC_PIN_SIZE(tinkc_pull_options, 88);

/* Downloads what is missing: several files at once, partial files are continued, every file is
 * checked against the digest that the hub names before it gets its name in the cache. Two pulls at
 * once, also by Python, wait for each other file by file. Waits.
 * Errors: NOT_FOUND, AUTH, FORBIDDEN, RATE_LIMITED, SERVER, CONNECTION (the hub was not reached),
 * OFFLINE, BAD_RESPONSE (wrong bytes), FILE (no space, no permission). */
TINKC_API tinkc_hub_snapshot *tinkc_hub_pull(tinkc_hub *, const tinkc_pull_options *,
                                             tinkc_error *);
/* What the cache has of a revision, without a request; `what` says which files must be there:
 * weights with all their shards and a tokenizer for MODEL, a tokenizer for TOKENIZER, any for ALL.
 * revision NULL = "main". Errors: NOT_FOUND (it says what is missing), FILE. */
TINKC_API tinkc_hub_snapshot *tinkc_hub_find(tinkc_hub *, const char *repo, const char *revision,
                                             int32_t what, tinkc_error *);
TINKC_API void tinkc_hub_snapshot_free(tinkc_hub_snapshot *);

typedef struct tinkc_hub_file {
    const char *name;   /* in the repository                                        */
    const char *digest; /* SHA-256 of an LFS file, Git's SHA-1 of others; "" = not known */
    int64_t     size;   /* -1 = not known                                           */
    bool        is_lfs;
    bool        was_cached;
} tinkc_hub_file;

/* All borrowed from the snapshot. */
TINKC_API const char *tinkc_hub_snapshot_repo(const tinkc_hub_snapshot *); /* "org/name" */
TINKC_API const char *tinkc_hub_snapshot_folder(const tinkc_hub_snapshot *);
TINKC_API const char *tinkc_hub_snapshot_commit(const tinkc_hub_snapshot *);
TINKC_API int64_t tinkc_hub_snapshot_moved(const tinkc_hub_snapshot *); /* bytes downloaded */
TINKC_API size_t tinkc_hub_snapshot_count(const tinkc_hub_snapshot *);
TINKC_API const tinkc_hub_file *tinkc_hub_snapshot_at(const tinkc_hub_snapshot *, size_t i);

/* "https://.../commit/...": where the commit of a push can be seen; "" after a pull. */
TINKC_API const char *tinkc_hub_snapshot_url(const tinkc_hub_snapshot *);
/* Where the pull request is that a push opened; "" = none. */
TINKC_API const char *tinkc_hub_snapshot_request(const tinkc_hub_snapshot *);

/* ---- push ---- */

typedef struct tinkc_push_options {
    const char            *repo;        /* required: "org/name", or "name" of your own; made if
                                           it is not there                                      */
    const char            *folder;      /* required: what to upload, with its folders           */
    const char            *revision;    /* branch, made if it is not there; NULL = "main"       */
    const char            *message;     /* of the commit; NULL = "Upload folder using tinkc"    */
    const char            *description; /* NULL = none                                          */
    const char *const     *include;     /* list of shell patterns, as in tinkc_pull_options     */
    const char *const     *exclude;
    tinkc_hub_progress_fn *progress;    /* or NULL                                              */
    void                  *user;
    bool                   is_public;   /* of a repository that is made; otherwise private      */
    bool                   create_pr;   /* opens a pull request instead of adding to the branch */
    bool                   dry_run;     /* lists the files and sends nothing                    */
    bool                   reserved_bools[5];
    uint64_t               reserved[4];
} tinkc_push_options;
TINKC_PIN_SIZE(tinkc_push_options, 112);

/* Uploads the files of a folder as one commit. Large files go first, several pieces at once; a push
 * that was stopped and is started again sends only what the hub does not have yet. Files of the
 * repository that the folder does not have stay. If nothing differs no commit is made, and the
 * snapshot is the branch's newest. was_cached of a file says that the hub had it. Waits.
 * Errors: AUTH, FORBIDDEN, NOT_FOUND, CONFLICT, CONNECTION, FILE, BAD_RESPONSE. */
TINKC_API tinkc_hub_snapshot *tinkc_hub_push(tinkc_hub *, const tinkc_push_options *, tinkc_error *);

#ifdef __cplusplus
}
#endif
#endif
