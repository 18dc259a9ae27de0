/* hub_pull.c - files from the hub into the cache: several at once, continued, checked.
 *
 * A pull has one thread for each transfer; the caller's thread shows progress. Workers share only
 * the queue, under a lock. A blob gets its name after its digest was verified, and the snapshot
 * gets its links after all blobs are there, so every file that has its final name is complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json_read.h"
#include "base/platform.h"
#include "base/str.h"
#include "base/thread.h"
#include "hub/hub_priv.h"

enum { SHOW_MS = 100, BLOCK = 1024 * 1024, INDEX_MAX = 64 * 1024 * 1024 };

typedef struct pull {
    tinkc_hub *hub;
    const tkc_hub_repo *repo;
    tinkc_hub_snapshot *snapshot;
    atomic_int waits; /* workers waiting for another process's lock */

    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t changed;
    size_t next; /* in the queue */
    const size_t *order;
    int32_t running, done_files;
    int64_t done_bytes, moved_bytes;
    const char *current;
    tinkc_error err; /* the first failure */
} pull;

/* ---- one file ---- */

typedef struct transfer {
    pull *p;
    const tinkc_hub_file *file;
    const char *part; /* the .incomplete file */
    int fd;
    int64_t have, skip; /* bytes on disk; bytes of the answer to skip because they are on disk */
    tkc_digest digest;
    tkc_hub_patience patience;
    tkc_arena *arena;
} transfer;

static void begin_digest(tkc_digest *d, const tinkc_hub_file *file)
{
    char head[48];
    if (file->is_lfs) {
        tkc_sha256_init(d);
        return;
    }
    /* Git's name of a file: the digest of "blob SIZE", a NUL and the bytes. */
    tkc_sha1_init(d);
    int len = snprintf(head, sizeof head, "blob %lld", (long long)file->size);
    tkc_digest_add(d, head, (size_t)len + 1);
}

static void count(pull *p, int64_t done, int64_t moved, const char *name)
{
    pthread_mutex_lock(&p->lock);
    p->done_bytes += done;
    p->moved_bytes += moved;
    p->current = name;
    pthread_mutex_unlock(&p->lock);
}

static bool add_existing(transfer *t, tinkc_error *err)
{
    char *block = tkc_alloc(NULL, BLOCK, err);
    int64_t at = 0;
    while (block && at < t->have && !tkc_failed(err)) {
        ssize_t n = pread(t->fd, block, BLOCK, (off_t)at);
        if (n <= 0)
            tkc_fail_errno(err, "%s", t->part);
        else if (atomic_load(&t->p->hub->stop))
            tkc_fail(err, TINKC_E_CANCELLED, "the transfer was stopped");
        else
            tkc_digest_add(&t->digest, block, (size_t)n);
        at += n > 0 ? n : 0;
    }
    tkc_release(NULL, block, BLOCK);
    return !tkc_failed(err);
}

/* Resumes what an earlier run left: hashes its bytes; starts over if there are too many. */
static bool take_up(transfer *t, tinkc_error *err)
{
    struct stat st;
    if (fstat(t->fd, &st) != 0)
        return tkc_fail_errno(err, "%s", t->part);
    t->have = st.st_size <= t->file->size ? (int64_t)st.st_size : 0;
    begin_digest(&t->digest, t->file);
    if (ftruncate(t->fd, (off_t)t->have) != 0 || lseek(t->fd, (off_t)t->have, SEEK_SET) < 0)
        return tkc_fail_errno(err, "%s", t->part);
    count(t->p, t->have, 0, t->file->name);
    return add_existing(t, err);
}

/* "bytes 100-199/200" must begin at our offset and name the expected file size. */
static bool is_our_range(const transfer *t, const char *text)
{
    int64_t from = -1, total = -1;
    tinkc_str s = tkc_str(text);
    size_t dash = tkc_str_find(s, '-'), slash = tkc_str_find(s, '/');
    if (!tkc_starts_with(s, "bytes ") || dash >= slash || slash == s.len)
        return false;
    tinkc_str last = tkc_strn(s.data + slash + 1, s.len - slash - 1);
    return tkc_parse_i64(tkc_strn(s.data + 6, dash - 6), &from) && from == t->have &&
           (tkc_str_is(last, "*") || (tkc_parse_i64(last, &total) && total == t->file->size));
}

static bool on_head(tkc_fetch *r, tinkc_error *err)
{
    transfer *t = r->user;
    t->skip = r->status == 206 ? 0 : t->have;
    if (r->status == 206 && !is_our_range(t, tkc_fetch_header(r, "content-range")))
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "%s: the hub sent another part than asked for",
                        t->file->name);
    return true;
}

static bool on_bytes(tkc_fetch *r, const void *bytes, size_t len, tinkc_error *err)
{
    transfer *t = r->user;
    size_t drop = (int64_t)len < t->skip ? len : (size_t)t->skip;
    const char *data = (const char *)bytes + drop;
    t->skip -= (int64_t)drop;
    count(t->p, 0, (int64_t)drop, t->file->name);
    len -= drop;
    if ((int64_t)len > t->file->size - t->have)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "%s: more bytes came than the hub's list says",
                        t->file->name);
    if (len && !tkc_write_all(t->fd, data, len))
        return tkc_fail_errno(err, "%s", t->part);
    tkc_digest_add(&t->digest, data, len);
    t->have += (int64_t)len;
    if (len)
        t->patience = (tkc_hub_patience){ 0 };
    count(t->p, (int64_t)len, (int64_t)len, t->file->name);
    return true;
}

/* One request for the bytes that are missing. */
static void ask_rest(transfer *t, tkc_fetcher *f, tkc_fetch *r, const char *url, tinkc_error *err)
{
    char range[48];
    const char *headers[] = {
        "Accept-Encoding", "identity", "User-Agent", "tinkc/" TINKC_VERSION, NULL, NULL, NULL
    };
    if (t->have > 0) {
        snprintf(range, sizeof range, "bytes=%lld-", (long long)t->have);
        headers[4] = "Range";
        headers[5] = range;
    }
    r->method = "GET";
    r->url = url;
    r->token = t->p->hub->token;
    r->headers = headers;
    r->head = on_head;
    r->take = on_bytes;
    r->user = t;
    tkc_fetch_run(f, r, err);
    tkc_hub_explain(t->p->hub, r, t->file->name, err);
    if (!tkc_failed(err) && t->have < t->file->size)
        tkc_fail(err, TINKC_E_CONNECTION, "%s: the answer ended %lld bytes early", t->file->name,
                 (long long)(t->file->size - t->have));
    else if (!tkc_failed(err))
        return;
    if (r->status >= 200 && r->status < 300)
        err->http_status = 0; /* the failure came after the status */
}

static bool check_digest(transfer *t, tinkc_error *err)
{
    char hex[TKC_SHA256_HEX];
    tkc_digest_hex(&t->digest, hex);
    if (strcmp(hex, t->file->digest) == 0)
        return tkc_sync_file(t->fd) == 0 || tkc_fail_errno(err, "%s", t->part);
    (void)!ftruncate(t->fd, 0); /* the next run must not resume from wrong bytes */
    return tkc_fail(
        err, TINKC_E_BAD_RESPONSE,
        "%s of %s: checksum mismatch: the bytes are not those that the hub's list names",
        t->file->name, t->p->repo->name);
}

static bool fetch_bytes(transfer *t, tkc_fetcher *f, tinkc_error *err)
{
    tkc_fetch r;
    const tkc_hub_repo *repo = t->p->repo;
    const char *path = tkc_hub_quote(t->arena, t->file->name, true, err);
    const char *url = tkc_arena_printf(t->arena, err, "%s/%s/resolve/%s/%s", t->p->hub->url,
                                       repo->name, repo->commit, path ? path : "");
    tkc_fetch_init(&r, t->p->hub->a);
    while (!tkc_failed(err) && t->have < t->file->size) {
        ask_rest(t, f, &r, url, err);
        if (tkc_failed(err) && !tkc_hub_try_again(t->p->hub, &t->patience, &r, err))
            break;
    }
    tkc_fetch_end(&r);
    return !tkc_failed(err) && check_digest(t, err);
}

static bool is_there(const char *blob, int64_t size)
{
    struct stat st;
    return stat(blob, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == size;
}

/* Locks: needs the blob's lock file. */
static bool write_blob(transfer *t, tkc_fetcher *f, const char *blob, tinkc_error *err)
{
    t->fd = open(t->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (t->fd < 0)
        return tkc_fail_errno(err, "%s", t->part);
    bool ok = take_up(t, err) && fetch_bytes(t, f, err);
    close(t->fd);
    return ok && (rename(t->part, blob) == 0 || tkc_fail_errno(err, "%s", blob));
}

static void fetch_file(pull *p, tkc_fetcher *f, const tinkc_hub_file *file, tinkc_error *err)
{
    tkc_arena arena;
    tkc_arena_init(&arena, p->hub->a, 0);
    transfer t = { .p = p, .file = file, .arena = &arena };
    const char *blob = tkc_hub_blob_path(p->repo, &arena, file->digest, err);
    t.part = blob ? tkc_arena_printf(&arena, err, "%s.incomplete", blob) : NULL;
    int lock = t.part ? tkc_hub_lock(p->repo, &arena, file->digest, t.part, &p->waits, err) : -1;
    if (lock >= 0) {
        if (is_there(blob, file->size)) /* another process has downloaded it */
            count(p, file->size, 0, file->name);
        else
            write_blob(&t, f, blob, err);
        close(lock); /* do not unlink: waiters must all lock the same file */
    }
    tkc_arena_free(&arena);
}

/* ---- workers ---- */

static const tinkc_hub_file *take_file(pull *p)
{
    const tinkc_hub_file *file = NULL;
    pthread_mutex_lock(&p->lock);
    if (p->next < p->snapshot->n && !p->err.code) {
        file = &p->snapshot->files[p->order[p->next++]];
        p->current = file->name;
    }
    pthread_mutex_unlock(&p->lock);
    return file;
}

static void finish_file(pull *p, const tinkc_error *err)
{
    pthread_mutex_lock(&p->lock);
    p->done_files += !err->code;
    tkc_error_copy(&p->err, err);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg)
{
    pull *p = arg;
    tinkc_error err = { 0 };
    const tinkc_hub_file *file;
    tkc_fetcher *f = tkc_fetcher_new(p->hub->a, &p->hub->fetch, &err);
    while (f && !err.code && (file = take_file(p))) {
        if (!file->was_cached)
            fetch_file(p, f, file, &err);
        if (!err.code)
            finish_file(p, &err);
    }
    if (err.code)
        finish_file(p, &err);
    tkc_fetcher_free(f);
    pthread_mutex_lock(&p->lock);
    p->running--;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Runs on the caller's thread until all workers have ended. */
static void watch(pull *p, const tinkc_pull_options *o, int64_t total)
{
    bool more = true;
    tinkc_hub_progress now = { .total_bytes = total, .total_files = (int32_t)p->snapshot->n };
    while (more) {
        pthread_mutex_lock(&p->lock);
        if (p->running)
            tkc_cond_wait_until(&p->changed, &p->lock, tkc_deadline_ns(SHOW_MS));
        more = p->running > 0;
        now.file = p->current ? p->current : "";
        now.done_bytes = p->done_bytes;
        now.moved_bytes = p->moved_bytes;
        now.done_files = p->done_files;
        now.waiting = more && atomic_load(&p->waits) == p->running ? "another process" : "";
        pthread_mutex_unlock(&p->lock);
        if (o->progress && !o->progress(&now, o->user))
            tinkc_hub_stop(p->hub);
    }
}

static void run_workers(pull *p, const tinkc_pull_options *o, int64_t total, tinkc_error *err)
{
    pthread_t threads[TKC_HUB_MAX_JOBS];
    int32_t n = 0,
            want = p->hub->jobs < (int32_t)p->snapshot->n ? p->hub->jobs : (int32_t)p->snapshot->n;
    tinkc_error ignored = { 0 };
    pthread_mutex_lock(&p->lock);
    for (; n < want; n++, p->running++)
        if (!tkc_thread_start(&threads[n], work, p, "tinkc-hub", n ? &ignored : err))
            break; /* fewer are enough */
    pthread_mutex_unlock(&p->lock);
    watch(p, o, total);
    for (int32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    tkc_error_copy(err, &p->err);
}

/* ---- before and after ---- */

static void format_size(int64_t bytes, char out[32])
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB", "PB" };
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1000 && unit < 5; unit++)
        value /= 1000;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

/* Marks the files that the cache has; *missing = bytes to download. */
static bool look_around(const tkc_hub_repo *r, tinkc_hub_snapshot *s, int64_t *missing,
                        int64_t *total, tinkc_error *err)
{
    struct stat st;
    *missing = *total = 0;
    for (size_t i = 0; i < s->n && !tkc_failed(err); i++) {
        tinkc_hub_file *file = &s->files[i];
        const char *blob = tkc_hub_blob_path(r, r->arena, file->digest, err);
        const char *part = tkc_arena_printf(r->arena, err, "%s.incomplete", blob ? blob : "");
        if (!blob || !part)
            return false;
        file->was_cached = is_there(blob, file->size);
        if (*total > INT64_MAX - file->size)
            return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub's list of %s: sizes overflow",
                            r->name);
        *total += file->size;
        if (!file->was_cached)
            *missing += file->size;
        if (!file->was_cached && stat(part, &st) == 0 && st.st_size <= file->size)
            *missing -= (int64_t)st.st_size;
    }
    return !tkc_failed(err);
}

static bool check_space(const tkc_hub_repo *r, int64_t missing, tinkc_error *err)
{
    struct statvfs fs;
    char need[32], have[32];
    if (missing == 0 || statvfs(r->folder, &fs) != 0)
        return true;
    double available = (double)fs.f_bavail * (double)fs.f_frsize;
    if ((double)missing <= available)
        return true;
    format_size(missing, need);
    format_size((int64_t)available, have);
    return tkc_fail(err, TINKC_E_FILE,
                    "not enough disk space: %s needs %s more, %s has %s free: free some space, or "
                    "set HF_HUB_CACHE to a folder on another disk",
                    r->name, need, r->hub->cache, have);
}

/* Largest first, so that no single large transfer runs alone at the end. */
static size_t *largest_first(tkc_arena *arena, const tinkc_hub_snapshot *s, tinkc_error *err)
{
    size_t *order = tkc_arena_array(arena, s->n, sizeof *order, err);
    for (size_t i = 0; order && i < s->n; i++) {
        size_t at = i;
        for (; at && s->files[order[at - 1]].size < s->files[i].size; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

/* Files whose presence tells other programs that the folder is usable are linked last. */
static bool is_marker(const char *name)
{
    static const char *const markers[] = { "tokenizer.json", "tiktoken.model", "merges.txt",
                                           "config.json",    "*.index.json",   NULL };
    return tkc_hub_matches(markers, name);
}

static bool link_all(const tkc_hub_repo *r, const tinkc_hub_snapshot *s, tinkc_error *err)
{
    for (int last = 0; last < 2; last++)
        for (size_t i = 0; i < s->n; i++)
            if (is_marker(s->files[i].name) == (last == 1) &&
                !tkc_hub_link(r, s->files[i].name, s->files[i].digest, err))
                return false;
    return tkc_hub_write_ref(r, err); /* last: the ref promises that all links are there */
}

static bool download(const tkc_hub_repo *r, const tinkc_pull_options *o, tinkc_hub_snapshot *s,
                     tinkc_error *err)
{
    int64_t missing, total;
    const char *blobs = tkc_path_join(r->arena, r->folder, "blobs", err);
    if (!blobs || !tkc_make_dirs(blobs, err) || !look_around(r, s, &missing, &total, err) ||
        !check_space(r, missing, err))
        return false;
    pull p = { .hub = r->hub, .repo = r, .snapshot = s };
    for (size_t i = 0; i < s->n; i++)
        p.done_bytes += s->files[i].was_cached ? s->files[i].size : 0;
    p.order = largest_first(r->arena, s, err);
    if (!p.order || !tkc_cond_init(&p.changed, err))
        return false;
    pthread_mutex_init(&p.lock, NULL);
    run_workers(&p, o, total, err);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.changed);
    s->moved = p.moved_bytes;
    return !tkc_failed(err) && link_all(r, s, err);
}

/* ---- the calls ---- */

static bool check_options(const tinkc_hub *h, const tinkc_pull_options *o, tinkc_error *err)
{
    if (!h || !o || !o->repo)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is NULL", !h ? "hub" : "repo");
    if (o->what < TINKC_PULL_MODEL || o->what > TINKC_PULL_ALL)
        return tkc_fail(err, TINKC_E_ARGUMENT, "what is none of TINKC_PULL_*");
    if (!tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) ||
        !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "pull options: reserved must be zero");
    return true;
}

static bool pull_into(tinkc_hub *h, const tinkc_pull_options *o, tinkc_hub_snapshot *s,
                      tinkc_error *err)
{
    tkc_hub_repo r;
    if (!tkc_hub_repo_init(&r, h, o->repo, o->revision, &s->arena, err))
        return false;
    if (h->offline)
        return tkc_fail(err, TINKC_E_OFFLINE,
                        "%s cannot be pulled: the hub is switched off (--offline, HF_HUB_OFFLINE)",
                        o->repo);
    tkc_fetcher *f = tkc_fetcher_new(h->a, &h->fetch, err);
    bool ok = f && tkc_hub_ask_commit(&r, f, err) && tkc_hub_ask_files(&r, f, o, s, err);
    tkc_fetcher_free(f);
    s->repo = r.name;
    s->commit = r.commit;
    s->folder = ok ? tkc_hub_snapshot_path(&r, err) : NULL;
    if (ok && o->dry_run) {
        int64_t missing, total;
        return look_around(&r, s, &missing, &total, err);
    }
    return ok && s->folder && download(&r, o, s, err);
}

tinkc_hub_snapshot *tinkc_hub_pull(tinkc_hub *h, const tinkc_pull_options *o, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(h, o, err))
        return NULL;
    tinkc_hub_snapshot *s = tkc_hub_snapshot_new(h, err);
    if (s && !pull_into(h, o, s, err)) {
        tinkc_hub_snapshot_free(s);
        s = NULL;
    }
    return s;
}

/* ---- finding ---- */

static bool has(const tinkc_hub_snapshot *s, tkc_arena *arena, const char *name)
{
    tinkc_error ignored = { 0 };
    const char *path = tkc_path_join(arena, s->folder, name, &ignored);
    return path && tkc_is_file(path);
}

static bool has_tokenizer(const tinkc_hub_snapshot *s, tkc_arena *arena)
{
    return has(s, arena, "tokenizer.json") || has(s, arena, "tiktoken.model") ||
           has(s, arena, "merges.txt");
}

/* The first shard named in an index that is missing; NULL = all are present. */
static const char *missing_shard(const tinkc_hub_snapshot *s, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key, tensor;
    const char *missing = NULL;
    const char *path = tkc_path_join(arena, s->folder, "model.safetensors.index.json", err);
    tinkc_bytes text = { 0 };
    if (path)
        text = tkc_read_file(arena, path, INDEX_MAX, err);
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.data ? text.len : 0), arena, err);
    if (!tkc_failed(err) && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (!tkc_str_is(key, "weight_map")) {
                tkc_json_skip(&j);
                continue;
            }
            tkc_json_object(&j);
            while (tkc_json_key(&j, &tensor)) {
                const char *file = tkc_arena_str(arena, tkc_json_string(&j), err);
                if (file && !missing && (!tkc_hub_is_safe_path(file) || !has(s, arena, file)))
                    missing = file;
            }
        }
    return missing;
}

static const char *missing_file(const tinkc_hub_snapshot *s, tkc_arena *arena, int32_t what,
                                tinkc_error *err)
{
    if (what != TINKC_PULL_ALL && !has_tokenizer(s, arena))
        return "tokenizer.json";
    if (what != TINKC_PULL_MODEL)
        return NULL;
    if (!has(s, arena, "config.json"))
        return "config.json";
    if (has(s, arena, "model.safetensors"))
        return NULL;
    if (has(s, arena, "model.safetensors.index.json"))
        return missing_shard(s, arena, err);
    return "model.safetensors";
}

tinkc_hub_snapshot *tinkc_hub_find(tinkc_hub *h, const char *repo, const char *revision,
                                   int32_t what, tinkc_error *err)
{
    tinkc_error local;
    tkc_hub_repo r;
    const char *missing;
    if (!tkc_enter(&err, &local) ||
        !check_options(h, &(tinkc_pull_options){ .repo = repo, .what = what }, err))
        return NULL;
    tinkc_hub_snapshot *s = tkc_hub_snapshot_new(h, err);
    if (s && tkc_hub_repo_init(&r, h, repo, revision, &s->arena, err)) {
        s->folder = tkc_hub_cached_commit(&r, err) ? tkc_hub_snapshot_path(&r, err) : NULL;
        s->repo = r.name;
        s->commit = r.commit;
        if (!tkc_failed(err) && (!s->folder || !tkc_is_dir(s->folder)))
            tkc_fail(err, TINKC_E_NOT_FOUND, "%s is not in %s", repo, h->cache);
        else if (!tkc_failed(err) && (missing = missing_file(s, &s->arena, what, err)))
            tkc_fail(err, TINKC_E_NOT_FOUND, "%s is only partly in %s: %s is missing", repo,
                     h->cache, missing);
    }
    if (s && tkc_failed(err)) {
        tinkc_hub_snapshot_free(s);
        s = NULL;
    }
    return s;
}
