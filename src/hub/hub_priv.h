/* hub_priv.h - what the files of src/hub share: the session, repositories, the cache's layout.
 *
 *     hub_session.c  the environment, requests with retries, error messages for statuses
 *     hub_list.c     listing the hub: a revision's commit and its files, and which are wanted
 *     hub_cache.c    the cache on disk: folders, locks, links, references
 *     hub_pull.c     downloads from the hub into the cache
 *     hub_push.c     a folder as a commit
 *     hub_lfs.c      the large files of a commit, in pieces
 */
#ifndef TKC_HUB_HUB_PRIV_H
#define TKC_HUB_HUB_PRIV_H

#include <pthread.h>
#include "base/arena.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "net/fetch.h"
#include "tinkc/hub.h"

enum { TKC_HUB_MAX_JOBS = 64, TKC_COMMIT_LEN = 40 };

struct tinkc_hub {
    const tinkc_allocator *a;
    tkc_arena texts;
    const char *url, *token, *cache; /* url without a trailing slash; token NULL = none */
    tkc_fetcher_options fetch;
    tkc_log log;
    int32_t jobs;
    int64_t retry_window_ms;
    int64_t unreached_window_ms; /* while it never answered and nobody is there */
    bool no_retries, offline;
    atomic_bool stop, answered;
};

/* ---- hub_session.c ---- */

/* A copy of `base` with the given values (not NULL, not "") replaced; the environment is not read
 * again. */
tinkc_hub *tkc_hub_with(const tinkc_hub *base, const char *url, const char *token,
                        const char *cache_dir, bool offline, tinkc_error *err);
/* Sleeps in steps; false if the hub was stopped. */
bool tkc_hub_sleep(const tinkc_hub *, int64_t ms);

/* One request, retried while that is worthwhile. `what` names the object in messages:
 * "Qwen/Qwen3-8B". A status of 300 or more is an error, with the code for that status. */
bool tkc_hub_call(tinkc_hub *, tkc_fetcher *, tkc_fetch *, const char *what, tinkc_error *err);

/* Failed attempts at one operation. Zeroed = none has failed. */
typedef struct tkc_hub_patience {
    int32_t failures; /* since the last success */
    int64_t since_ms; /* time of the first of them; 0 = none */
} tkc_hub_patience;
/* After a failure in *err: sleeps and returns true if another attempt is worthwhile; err is then
 * cleared. */
bool tkc_hub_try_again(tinkc_hub *, tkc_hub_patience *, const tkc_fetch *, tinkc_error *err);
/* Turns a status of 300 or more into an error, and adds the hub's name to a connection failure. */
void tkc_hub_explain(tinkc_hub *, const tkc_fetch *, const char *what, tinkc_error *err);

/* Percent-encodes text for the path of a URL, with or without its slashes; in the arena. */
const char *tkc_hub_quote(tkc_arena *, const char *text, bool keep_slashes, tinkc_error *err);

/* ---- hub_cache.c ---- */

typedef struct tkc_hub_repo {
    tinkc_hub *hub;
    tkc_arena *arena;     /* the caller's thread only */
    const char *name;     /* "org/name", checked */
    const char *revision; /* never "" */
    const char *folder;   /* CACHE/models--org--name */
    const char *commit;   /* NULL = not known yet */
} tkc_hub_repo;

/* Checks the names; makes no request. Errors: ARGUMENT. */
bool tkc_hub_repo_init(tkc_hub_repo *, tinkc_hub *, const char *name, const char *revision,
                       tkc_arena *, tinkc_error *err);
bool tkc_is_commit(tinkc_str);
/* False for an empty path, an absolute one, one with empty, "." or ".." parts, or with bytes that
 * file names must not have. */
bool tkc_hub_is_safe_path(const char *path);

/* The commit that the cache has for the revision; false = none. */
bool tkc_hub_cached_commit(tkc_hub_repo *, tinkc_error *err);
const char *tkc_hub_snapshot_path(const tkc_hub_repo *, tinkc_error *err);
const char *tkc_hub_blob_path(const tkc_hub_repo *, tkc_arena *, const char *digest,
                              tinkc_error *err);
/* Waits for the lock that Python's library takes for the same blob. `watch` is the file that grows
 * while the holder works; *waits counts the callers that wait. Returns a descriptor, or -1. */
int tkc_hub_lock(const tkc_hub_repo *, tkc_arena *, const char *digest, const char *watch,
                 atomic_int *waits, tinkc_error *err);
/* Links the name in the snapshot to the blob; a hard link where symbolic links do not work. */
bool tkc_hub_link(const tkc_hub_repo *, const char *path, const char *digest, tinkc_error *err);
/* Records the commit that the revision means. */
bool tkc_hub_write_ref(const tkc_hub_repo *, tinkc_error *err);

/* ---- hub_list.c ---- */

struct tinkc_hub_snapshot {
    const tinkc_allocator *a;
    tkc_arena arena;
    const char *repo, *folder, *commit, *url, *request;
    tinkc_hub_file *files;
    size_t n, cap;
    int64_t moved;
};

tinkc_hub_snapshot *tkc_hub_snapshot_new(tinkc_hub *, tinkc_error *err);
bool tkc_hub_snapshot_add(tinkc_hub_snapshot *, const tinkc_hub_file *, tinkc_error *err);
/* Asks the hub for the revision's current commit. */
bool tkc_hub_ask_commit(tkc_hub_repo *, tkc_fetcher *, tinkc_error *err);
/* Fills the snapshot with the files that the options select. */
bool tkc_hub_ask_files(tkc_hub_repo *, tkc_fetcher *, const tinkc_pull_options *,
                       tinkc_hub_snapshot *, tinkc_error *err);
/* One of `patterns` (a list) matches, as in Python's fnmatch; "folder/" matches all in it. */
bool tkc_hub_matches(const char *const *patterns, const char *path);

/* ---- hub_lfs.c ---- */

typedef struct tkc_hub_upload { /* one file of a push */
    const char *path, *full;    /* in the repository; on this machine */
    int64_t size;
    char sha256[TKC_SHA256_HEX]; /* "" = not computed */
    bool is_lfs, ignored;
    bool same; /* the hub already has it in this revision */
} tkc_hub_upload;

typedef struct tkc_hub_push {
    tkc_hub_repo repo;
    const tinkc_push_options *o;
    tkc_fetcher *fetcher; /* the calling thread's */
    tkc_hub_upload *files;
    size_t n, cap;
    tinkc_hub_progress now; /* last shown */
    int64_t moved;
} tkc_hub_push;

/* Shows progress; false after a stop, with err set. The calling thread. */
bool tkc_hub_push_show(tkc_hub_push *, tinkc_error *err);
/* Uploads the objects of all LFS files that are not `same`. */
bool tkc_hub_send_objects(tkc_hub_push *, tinkc_error *err);

#endif
