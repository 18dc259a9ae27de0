/* hub_files.c - the files of one repository, in the cache that Hugging Face's own library uses:
 *
 *     models--ORG--NAME/blobs/DIGEST                 the bytes, named by what they are
 *     models--ORG--NAME/snapshots/COMMIT/FILE        a link to its blob
 *     models--ORG--NAME/refs/main                    the commit that a name stood for
 *
 * A file is checked against the digest that the hub's list gives before it gets its name, so
 * whatever has a name can be used. Runs on a thread that may wait.
 */
#include "api/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "api/client_priv.h"
#include "api/download.h"
#include "base/json_read.h"
#include "base/str.h"
#include "codec/url.h"

enum {
    LIST_MAX = 16 * 1024 * 1024,  /* of a repository's list */
    FILE_MAX = 256 * 1024 * 1024, /* of one file */
    MAX_WANTED = 64,
    LOCK_PATIENCE_MS = 10 * 60 * 1000,
    LOCK_PAUSE_MS = 200,
    BLOCK = 64 * 1024
};

/* ---- the environment ---- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is_on(const char *value)
{
    tinkc_str s = tkc_str(value);
    return value && (tkc_str_is(s, "1") || tkc_str_is_nocase(s, "true") ||
                     tkc_str_is_nocase(s, "yes") || tkc_str_is_nocase(s, "on"));
}

static const char *read_home(tkc_arena *arena, tinkc_error *err)
{
    const char *home = variable("HF_HOME"), *xdg = variable("XDG_CACHE_HOME");
    if (home)
        return tkc_arena_cstr(arena, home, err);
    if (xdg)
        return tkc_path_join(arena, xdg, "huggingface", err);
    home = variable("HOME");
    return tkc_path_join(arena, home ? home : ".", ".cache/huggingface", err);
}

/* One line without white space around it, or NULL. */
static const char *read_token_file(tkc_arena *arena, const char *path)
{
    tinkc_error ignored = { 0 };
    tinkc_bytes text = tkc_read_file(arena, path, 64 * 1024, &ignored);
    if (!text.data)
        return NULL;
    tinkc_str token = tkc_str_trim(tkc_strn((const char *)text.data, text.len));
    return token.len ? tkc_arena_str(arena, token, &ignored) : NULL;
}

bool tkc_hub_place_read(tkc_hub_place *p, tkc_arena *arena, tinkc_error *err)
{
    const char *home = read_home(arena, err), *token = variable("HF_TOKEN");
    const char *cache = variable("HF_HUB_CACHE"), *endpoint = variable("HF_ENDPOINT");
    if (!home)
        return false;
    p->cache = cache ? tkc_arena_cstr(arena, cache, err) : tkc_path_join(arena, home, "hub", err);
    p->endpoint = tkc_arena_cstr(arena, endpoint ? endpoint : "https://huggingface.co", err);
    p->offline = is_on(variable("HF_HUB_OFFLINE")) || is_on(variable("TRANSFORMERS_OFFLINE"));
    if (!token)
        token = variable("HUGGING_FACE_HUB_TOKEN");
    if (token) {
        p->token = tkc_arena_cstr(arena, token, err);
    } else {
        const char *file = variable("HF_TOKEN_PATH");
        if (!file)
            file = tkc_path_join(arena, home, "token", err);
        p->token = file ? read_token_file(arena, file) : NULL;
    }
    return !tkc_failed(err);
}

/* ---- one repository ---- */

typedef struct wanted {
    const char *path;   /* in the repository */
    const char *digest; /* SHA-256 of a large file, Git's SHA-1 of a small one */
    int64_t size;
    bool is_sha256;
} wanted;

typedef struct repository {
    tinkc_client *client;
    tkc_stopper *stop;
    const tkc_hub_place *place;
    const char *repo, *revision; /* revision never "": "main" */
    tkc_arena *arena;
    const char *folder; /* models--ORG--NAME */
    const char *commit;
    wanted files[MAX_WANTED];
    size_t n;
} repository;

/* Names become parts of paths and URLs: letters, digits and "._-", at most one slash. */
static bool check_repo(const char *repo, tinkc_error *err)
{
    size_t slashes = 0, len = strlen(repo);
    for (size_t i = 0; i < len; i++) {
        char c = repo[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '.' || c == '_' || c == '-';
        slashes += c == '/';
        if (!plain && c != '/')
            return tkc_fail(err, TINKC_E_TOKENIZER, "\"%.100s\" is not the name of a repository",
                            repo);
    }
    if (!len || len > 200 || slashes > 1 || repo[0] == '/' || repo[len - 1] == '/' ||
        strstr(repo, "..") || strstr(repo, "--") || repo[0] == '.')
        return tkc_fail(err, TINKC_E_TOKENIZER, "\"%.100s\" is not the name of a repository", repo);
    return true;
}

static bool is_hex(tinkc_str s, size_t len)
{
    if (s.len != len)
        return false;
    for (size_t i = 0; i < s.len; i++)
        if (!((s.data[i] >= '0' && s.data[i] <= '9') || (s.data[i] >= 'a' && s.data[i] <= 'f')))
            return false;
    return true;
}

/* What a tokenizer can be made of; weights and the like are never fetched. */
static bool is_wanted(tinkc_str path)
{
    static const char *const names[] = { "tokenizer.json",
                                         "tokenizer_config.json",
                                         "chat_template.jinja",
                                         "special_tokens_map.json",
                                         "generation_config.json",
                                         "added_tokens.json",
                                         "tiktoken.model",
                                         "vocab.json",
                                         "merges.txt",
                                         NULL };
    for (size_t i = 0; names[i]; i++)
        if (tkc_str_is(path, names[i]))
            return true;
    return tkc_starts_with(path, "additional_chat_templates/") && tkc_ends_with(path, ".jinja");
}

static bool has_tokenizer(const char *folder, tkc_arena *arena, tinkc_error *err)
{
    const char *json = tkc_path_join(arena, folder, "tokenizer.json", err);
    const char *ranks = tkc_path_join(arena, folder, "tiktoken.model", err);
    const char *merges = tkc_path_join(arena, folder, "merges.txt", err);
    return json && ranks && merges &&
           (tkc_is_file(json) || tkc_is_file(ranks) || tkc_is_file(merges));
}

/* ---- what the cache has ---- */

static const char *snapshot_of(repository *r, const char *commit, tinkc_error *err)
{
    return tkc_arena_printf(r->arena, err, "%s/snapshots/%s", r->folder, commit);
}

/* The folder of a snapshot that holds a tokenizer; NULL = there is none. */
static const char *find_cached(repository *r, tinkc_error *err)
{
    tinkc_error ignored = { 0 };
    tinkc_str commit = tkc_str(r->revision);
    if (!is_hex(commit, 40)) {
        const char *ref = tkc_arena_printf(r->arena, err, "%s/refs/%s", r->folder, r->revision);
        tinkc_bytes text = { 0 };
        if (ref)
            text = tkc_read_file(r->arena, ref, 1024, &ignored);
        commit = tkc_str_trim(tkc_strn((const char *)text.data, text.len));
        if (!text.data || !is_hex(commit, 40))
            return NULL;
    }
    const char *name = tkc_arena_str(r->arena, commit, err);
    const char *folder = name ? snapshot_of(r, name, err) : NULL;
    return folder && has_tokenizer(folder, r->arena, err) ? folder : NULL;
}

/* ---- what the hub says ---- */

static bool begin_source(repository *r, tkc_source *s, const char *path, const char **headers,
                         tinkc_error *err)
{
    size_t n = 0;
    tkc_source_init(s, r->client, r->stop, NULL);
    headers[n++] = "User-Agent";
    headers[n++] = "tinkc/" TINKC_VERSION;
    if (r->place->token) {
        headers[n++] = "Authorization";
        headers[n++] = tkc_arena_printf(&s->arena, err, "Bearer %s", r->place->token);
    }
    headers[n] = NULL;
    s->headers = headers;
    s->url = tkc_arena_printf(&s->arena, err, "%s%s", r->place->endpoint, path);
    return !tkc_failed(err);
}

/* A status says whose fault it is; the rest passes as it is. */
static void explain(repository *r, const char *what, tinkc_error *err)
{
    tinkc_error was = *err;
    if (was.http_status == 401 || was.http_status == 403 || was.http_status == 404) {
        *err = (tinkc_error){ 0 };
        tkc_fail(err, TINKC_E_TOKENIZER, "%s of %s: the hub says %d%s", what, r->repo,
                 was.http_status,
                 was.http_status == 404 ? ", it has no such thing"
                                        : ", it needs a token ($HF_TOKEN) that may read it");
        err->http_status = was.http_status;
    }
}

static tinkc_str fetch_text(repository *r, const char *path, tinkc_error *err)
{
    const char *headers[8];
    tkc_source s;
    tkc_buf text;
    tinkc_str out = { 0 };
    const void *bytes;
    size_t n;
    tkc_buf_init(&text, r->client->a, LIST_MAX);
    if (begin_source(r, &s, path, headers, err))
        while ((n = tkc_source_next(&s, &bytes, err)) > 0)
            tkc_buf_add(&text, bytes, n, err);
    if (!tkc_failed(err)) {
        out.data = tkc_arena_str(r->arena, tkc_buf_view(&text), err);
        out.len = text.len;
    }
    tkc_source_end(&s);
    tkc_buf_free(&text);
    return out;
}

static bool ask_commit(repository *r, tinkc_error *err)
{
    const char *path =
        tkc_arena_printf(r->arena, err, "/api/models/%s/revision/%s", r->repo, r->revision);
    tinkc_str text = path ? fetch_text(r, path, err) : (tinkc_str){ 0 }, key;
    tkc_json j;
    if (tkc_failed(err)) {
        explain(r, "the revision", err);
        return false;
    }
    tkc_json_open(&j, text, r->arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "sha"))
                r->commit = tkc_arena_str(r->arena, tkc_json_string(&j), err);
            else
                tkc_json_skip(&j);
        }
    if (!tkc_failed(err) && (!r->commit || !is_hex(tkc_str(r->commit), 40)))
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub gives no commit for %s", r->repo);
    return !tkc_failed(err);
}

/* { "type": "file", "path": ..., "size": n, "oid": ..., "lfs": { "oid": ..., "size": n } } */
static void read_listed(repository *r, tkc_json *j, tinkc_error *err)
{
    tinkc_str key, path = { 0 }, oid = { 0 }, lfs = { 0 }, inner;
    int64_t size = -1;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "path"))
            path = tkc_json_string(j);
        else if (tkc_str_is(key, "size"))
            size = tkc_json_i64(j);
        else if (tkc_str_is(key, "oid"))
            oid = tkc_json_string(j);
        else if (tkc_str_is(key, "lfs") && tkc_json_peek(j) == TKC_JSON_OBJECT &&
                 tkc_json_object(j))
            while (tkc_json_key(j, &inner)) {
                if (tkc_str_is(inner, "oid"))
                    lfs = tkc_json_string(j);
                else
                    tkc_json_skip(j);
            }
        else
            tkc_json_skip(j);
    }
    if (tkc_failed(err) || !is_wanted(path) || r->n == MAX_WANTED)
        return;
    bool large = lfs.len > 0;
    if (!is_hex(large ? lfs : oid, large ? 64 : 40) || size < 0 || size > FILE_MAX) {
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub's list of %s is not usable", r->repo);
        return;
    }
    r->files[r->n++] = (wanted){ .path = tkc_arena_str(r->arena, path, err),
                                 .digest = tkc_arena_str(r->arena, large ? lfs : oid, err),
                                 .size = size,
                                 .is_sha256 = large };
}

static bool ask_list(repository *r, tinkc_error *err)
{
    const char *path = tkc_arena_printf(r->arena, err, "/api/models/%s/tree/%s?recursive=true",
                                        r->repo, r->commit);
    tinkc_str text = path ? fetch_text(r, path, err) : (tinkc_str){ 0 };
    tkc_json j;
    if (tkc_failed(err)) {
        explain(r, "the list", err);
        return false;
    }
    tkc_json_open(&j, text, r->arena, err);
    if (tkc_json_array(&j))
        while (tkc_json_item(&j))
            read_listed(r, &j, err);
    tkc_json_close(&j);
    bool found = false;
    for (size_t i = 0; i < r->n; i++)
        found = found || strcmp(r->files[i].path, "tokenizer.json") == 0 ||
                strcmp(r->files[i].path, "tiktoken.model") == 0 ||
                strcmp(r->files[i].path, "merges.txt") == 0;
    if (!tkc_failed(err) && !found)
        tkc_fail(err, TINKC_E_TOKENIZER, "%s has no tokenizer.json", r->repo);
    return !tkc_failed(err);
}

/* ---- fetching one file ---- */

/* Waits for other processes that fetch the same file. Returns the lock's descriptor, or -1. */
static int take_lock(repository *r, const char *path, tinkc_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        tkc_fail_errno(err, "%s", path);
        return -1;
    }
    for (int64_t waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited += LOCK_PAUSE_MS)
        if (waited >= LOCK_PATIENCE_MS || !tkc_stopper_sleep(r->stop, LOCK_PAUSE_MS)) {
            close(fd);
            tkc_fail(err, TINKC_E_FILE, "%s: another process holds it", path);
            return -1;
        }
    return fd;
}

static void begin_digest(tkc_digest *d, const wanted *w)
{
    char head[48];
    if (w->is_sha256) {
        tkc_sha256_init(d);
        return;
    }
    /* Git's name of a file: the digest of "blob SIZE", a NUL and the bytes. */
    tkc_sha1_init(d);
    int len = snprintf(head, sizeof head, "blob %lld", (long long)w->size);
    tkc_digest_add(d, head, (size_t)len + 1);
}

static bool add_existing(int fd, tkc_digest *d, int64_t len, const char *path, tinkc_error *err)
{
    char block[BLOCK];
    for (int64_t at = 0; at < len;) {
        ssize_t n = pread(fd, block, sizeof block, (off_t)at);
        if (n <= 0)
            return tkc_fail_errno(err, "%s", path);
        tkc_digest_add(d, block, (size_t)n);
        at += n;
    }
    return true;
}

/* Continues the bytes in fd from where they end, and checks the whole. */
static bool fetch_into(repository *r, const wanted *w, int fd, const char *path, tinkc_error *err)
{
    const char *headers[8];
    char hex[TKC_SHA256_HEX];
    const void *bytes;
    tkc_source s;
    tkc_digest d;
    struct stat st;
    size_t n;
    if (fstat(fd, &st) != 0)
        return tkc_fail_errno(err, "%s", path);
    int64_t have = st.st_size <= w->size ? (int64_t)st.st_size : 0;
    begin_digest(&d, w);
    const char *from =
        tkc_arena_printf(r->arena, err, "/%s/resolve/%s/%s", r->repo, r->commit, w->path);
    if (!from || ftruncate(fd, (off_t)have) != 0 || lseek(fd, (off_t)have, SEEK_SET) < 0 ||
        !add_existing(fd, &d, have, path, err))
        return tkc_failed(err) ? false : tkc_fail_errno(err, "%s", path);
    bool ok = begin_source(r, &s, from, headers, err);
    s.pos = have;
    s.total = w->size;
    s.max_bytes = w->size ? w->size : 1;
    while (ok && s.pos < w->size && (n = tkc_source_next(&s, &bytes, err)) > 0) {
        if (!tkc_write_all(fd, bytes, n))
            ok = tkc_fail_errno(err, "%s", path);
        tkc_digest_add(&d, bytes, n);
    }
    ok = ok && !tkc_failed(err);
    int64_t got = s.pos;
    tkc_source_end(&s);
    if (!ok) {
        explain(r, w->path, err);
        return false;
    }
    tkc_digest_hex(&d, hex);
    if (got == w->size && strcmp(hex, w->digest) == 0)
        return fsync(fd) == 0 || tkc_fail_errno(err, "%s", path);
    (void)!ftruncate(fd, 0); /* bytes that are wrong are of no use to the next run */
    return tkc_fail(err, TINKC_E_TOKENIZER, "%s of %s: the bytes are not those the hub names",
                    w->path, r->repo);
}

/* Where Hugging Face's own library has its locks, so that the two keep out of each other's way. */
static const char *lock_path(repository *r, const wanted *w, tinkc_error *err)
{
    const char *name = strrchr(r->folder, '/') + 1;
    const char *dir = tkc_arena_printf(r->arena, err, "%s/.locks/%s", r->place->cache, name);
    if (!dir || !tkc_make_dirs(dir, err))
        return NULL;
    return tkc_arena_printf(r->arena, err, "%s/%s.lock", dir, w->digest);
}

static bool fetch_blob(repository *r, const wanted *w, const char *blob, tinkc_error *err)
{
    struct stat st;
    const char *part = tkc_arena_printf(r->arena, err, "%s.incomplete", blob);
    const char *lock = lock_path(r, w, err);
    if (!part || !lock)
        return false;
    int lock_fd = take_lock(r, lock, err);
    if (lock_fd < 0)
        return false;
    bool ok = stat(blob, &st) == 0 && st.st_size == w->size; /* somebody else was quicker */
    if (!ok) {
        int fd = open(part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd < 0) {
            tkc_fail_errno(err, "%s", part);
        } else {
            ok = fetch_into(r, w, fd, part, err);
            close(fd);
            if (ok && rename(part, blob) != 0)
                ok = tkc_fail_errno(err, "%s", blob);
        }
    }
    close(lock_fd); /* the file stays: whoever waits for it must wait for the same one */
    return ok;
}

/* The name in the snapshot: a link to the blob, or a copy of its name where links do not work. */
static bool link_file(repository *r, const wanted *w, const char *folder, const char *blob,
                      tinkc_error *err)
{
    const char *name = tkc_path_join(r->arena, folder, w->path, err);
    bool deep = strchr(w->path, '/') != NULL;
    const char *target =
        tkc_arena_printf(r->arena, err, "%s../../blobs/%s", deep ? "../" : "", w->digest);
    const char *parent =
        deep ? tkc_path_join(r->arena, folder, "additional_chat_templates", err) : folder;
    if (!name || !target || !parent || !tkc_make_dirs(parent, err))
        return false;
    if (symlink(target, name) == 0 || errno == EEXIST)
        return true;
    return link(blob, name) == 0 || errno == EEXIST || tkc_fail_errno(err, "%s", name);
}

static bool fetch_file(repository *r, const wanted *w, const char *folder, tinkc_error *err)
{
    struct stat st;
    const char *blob = tkc_arena_printf(r->arena, err, "%s/blobs/%s", r->folder, w->digest);
    if (!blob)
        return false;
    if ((stat(blob, &st) != 0 || st.st_size != w->size) && !fetch_blob(r, w, blob, err))
        return false;
    return link_file(r, w, folder, blob, err);
}

static const char *fetch_all(repository *r, tinkc_error *err)
{
    if (!ask_commit(r, err) || !ask_list(r, err))
        return NULL;
    const char *folder = snapshot_of(r, r->commit, err);
    const char *blobs = tkc_path_join(r->arena, r->folder, "blobs", err);
    const char *refs = tkc_path_join(r->arena, r->folder, "refs", err);
    if (!folder || !blobs || !refs || !tkc_make_dirs(blobs, err) || !tkc_make_dirs(folder, err))
        return NULL;
    /* The tokenizer itself comes last: its presence says that the rest is there. */
    for (int last = 0; last < 2; last++)
        for (size_t i = 0; i < r->n; i++) {
            bool main_file = strcmp(r->files[i].path, "tokenizer.json") == 0 ||
                             strcmp(r->files[i].path, "tiktoken.model") == 0;
            if (main_file == (last == 1) && !fetch_file(r, &r->files[i], folder, err))
                return NULL;
        }
    if (!is_hex(tkc_str(r->revision), 40)) {
        const char *ref = tkc_path_join(r->arena, refs, r->revision, err);
        if (!ref || !tkc_make_dirs(refs, err) ||
            !tkc_write_file(ref, r->commit, strlen(r->commit), 0644, err))
            return NULL;
    }
    return folder;
}

const char *tkc_hub_folder(tinkc_client *client, struct tkc_stopper *stop,
                           const tkc_hub_place *place, const char *repo, const char *revision,
                           tkc_arena *arena, tinkc_error *err)
{
    if (!check_repo(repo, err))
        return NULL;
    repository r = { .client = client,
                     .stop = stop,
                     .place = place,
                     .repo = repo,
                     .revision = *revision ? revision : "main",
                     .arena = arena };
    char *name = tkc_arena_printf(arena, err, "%s/models--%s", place->cache, repo);
    if (!name)
        return NULL;
    char *slash = strchr(repo, '/') ? strrchr(name, '/') : NULL;
    if (slash) {
        *slash = 0;
        name = tkc_arena_printf(arena, err, "%s--%s", name, slash + 1);
    }
    r.folder = name;
    const char *folder = name ? find_cached(&r, err) : NULL;
    if (folder || tkc_failed(err))
        return folder;
    if (place->offline) {
        tkc_fail(err, TINKC_E_OFFLINE,
                 "the tokenizer of %s is not in %s, and the hub is off limits", repo, place->cache);
        return NULL;
    }
    return fetch_all(&r, err);
}
