/* hub_push.c - a folder as a commit: the repository and branch it goes to, which files are large, the
 * commit itself.
 *
 * May touch: files below the folder it is given (reading), the network. What is sent, in this order:
 * create, branch, preupload (what kind of file is each?), objects (hub_lfs.c), commit.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "codec/base64.h"
#include "hub/hub_priv.h"

enum {
    ASK_FILES = 256, /* of one preupload */
    SAMPLE = 512,    /* bytes of each file that the hub sees before it decides */
    REGULAR_MAX = 64 * 1024 * 1024,
    FILES_MAX = 100000,
    DEPTH_MAX = 32,
    BLOCK = 1024 * 1024
};

/* ---- requests with JSON ---- */

/* POSTs the text; *answer is in the arena. A status in `fine` counts as success with no answer. */
static bool post(tkc_hub_push *p, const char *url, const char *type, tinkc_str body, int32_t fine,
                 tinkc_str *answer, tinkc_error *err)
{
    tkc_fetch r;
    const char *headers[] = { "Content-Type", type, "User-Agent", "tinkc/" TINKC_VERSION, NULL };
    tkc_fetch_init(&r, p->repo.hub->a);
    r.method = "POST";
    r.url = url;
    r.headers = headers;
    r.max_text = 16 * 1024 * 1024;
    r.body = (tinkc_bytes){ (const unsigned char *)body.data, body.len };
    bool ok =
        url && !tkc_failed(err) && tkc_hub_call(p->repo.hub, p->fetcher, &r, p->repo.name, err);
    if (!ok && fine && r.status == fine) {
        *err = (tinkc_error){ 0 };
        ok = true;
    } else if (ok) {
        answer->data = tkc_arena_str(p->repo.arena, tkc_buf_view(&r.text), err);
        answer->len = r.text.len;
    }
    tkc_fetch_end(&r);
    return ok && !tkc_failed(err);
}

static const char *api(tkc_hub_push *p, const char *what, tinkc_error *err)
{
    const char *rev = tkc_hub_quote(p->repo.arena, p->repo.revision, false, err);
    return tkc_arena_printf(p->repo.arena, err, "%s/api/models/%s/%s/%s%s", p->repo.hub->url,
                            p->repo.name, what, rev ? rev : "",
                            p->o->create_pr && strcmp(what, "branch") ? "?create_pr=1" : "");
}

/* ---- the repository ---- */

static bool ask_user(tinkc_hub *h, tkc_fetcher *fetcher, char name[TINKC_HUB_USER_SIZE],
                     tinkc_error *err)
{
    tkc_fetch r;
    tkc_json j;
    tkc_arena arena;
    tinkc_str key, user = { 0 };
    tkc_arena_init(&arena, h->a, 0);
    tkc_fetch_init(&r, h->a);
    r.method = "GET";
    r.url = tkc_arena_printf(&arena, err, "%s/api/whoami-v2", h->url);
    if (r.url && tkc_hub_call(h, fetcher, &r, "the token's user", err)) {
        tkc_json_open(&j, tkc_buf_view(&r.text), &arena, err);
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                if (tkc_str_is(key, "name"))
                    user = tkc_json_string(&j);
                else
                    tkc_json_skip(&j);
            }
    }
    if (!tkc_failed(err) && (user.len == 0 || user.len >= TINKC_HUB_USER_SIZE))
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub does not name the token's user");
    if (!tkc_failed(err))
        (void)snprintf(name, TINKC_HUB_USER_SIZE, "%.*s", (int)user.len, user.data);
    tkc_fetch_end(&r);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

/* A name without an organisation belongs to the user. */
static bool complete_name(tkc_hub_push *p, tinkc_error *err)
{
    char user[TINKC_HUB_USER_SIZE];
    tkc_hub_repo *repo = &p->repo;
    if (strchr(repo->name, '/'))
        return true;
    const char *name = ask_user(repo->hub, p->fetcher, user, err)
                           ? tkc_arena_printf(repo->arena, err, "%s/%s", user, repo->name)
                           : NULL;
    return name && tkc_hub_repo_init(repo, repo->hub, name, repo->revision, repo->arena, err);
}

static bool check_private(tkc_hub_push *p, tinkc_error *err)
{
    tkc_fetch r;
    tkc_json j;
    tinkc_str key;
    bool is_private = false;
    tkc_fetch_init(&r, p->repo.hub->a);
    r.method = "GET";
    r.max_text = 16 * 1024 * 1024;
    r.url =
        tkc_arena_printf(p->repo.arena, err, "%s/api/models/%s", p->repo.hub->url, p->repo.name);
    if (r.url && tkc_hub_call(p->repo.hub, p->fetcher, &r, p->repo.name, err)) {
        tkc_json_open(&j, tkc_buf_view(&r.text), p->repo.arena, err);
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                if (tkc_str_is(key, "private"))
                    is_private = tkc_json_peek(&j) == TKC_JSON_TRUE;
                tkc_json_skip(&j);
            }
    }
    tkc_fetch_end(&r);
    return !tkc_failed(err) &&
           (is_private || tkc_fail(err, TINKC_E_BAD_RESPONSE,
                                   "%s was asked for as private and made public: nothing was "
                                   "uploaded; delete it, or push with is_public",
                                   p->repo.name));
}

/* Older hubs read "private", newer ones "visibility"; check_private then verifies the result. */
static bool create_repo(tkc_hub_push *p, tinkc_error *err)
{
    tkc_buf text;
    tkc_jsonw w;
    tinkc_str answer = { 0 };
    const char *name = p->repo.name, *slash = strchr(name, '/');
    const char *url = tkc_arena_printf(p->repo.arena, err, "%s/api/repos/create", p->repo.hub->url);
    tkc_buf_init(&text, p->repo.hub->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &text, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "name");
    tkc_jsonw_cstr(&w, slash ? slash + 1 : name);
    tkc_jsonw_key(&w, "organization");
    if (slash)
        tkc_jsonw_str(&w, tkc_strn(name, (size_t)(slash - name)));
    else
        tkc_jsonw_null(&w);
    tkc_jsonw_key(&w, "private");
    tkc_jsonw_bool(&w, !p->o->is_public);
    tkc_jsonw_key(&w, "visibility");
    tkc_jsonw_cstr(&w, p->o->is_public ? "public" : "private");
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, "model");
    tkc_jsonw_end(&w);
    bool ok = post(p, url, "application/json", tkc_buf_view(&text), 409, &answer, err);
    tkc_buf_free(&text);
    bool made = answer.data != NULL; /* 409: it exists and keeps its visibility */
    return ok && (!made || p->o->is_public || check_private(p, err));
}

static bool create_branch(tkc_hub_push *p, tinkc_error *err)
{
    tinkc_str answer = { 0 };
    return strcmp(p->repo.revision, "main") == 0 || p->o->create_pr ||
           post(p, api(p, "branch", err), "application/json", tkc_str("{}"), 409, &answer, err);
}

/* ---- which files ---- */

static bool is_ours(const tkc_hub_push *p, const char *path)
{
    static const char *const never[] = { ".git/", "*/.git/*", ".cache/huggingface/",
                                         "*/.cache/huggingface/*", NULL };
    bool wanted = !p->o->include || !p->o->include[0] || tkc_hub_matches(p->o->include, path);
    return wanted && !tkc_hub_matches(p->o->exclude, path) && !tkc_hub_matches(never, path);
}

static bool add_file(tkc_hub_push *p, const char *path, const char *full, int64_t size,
                     tinkc_error *err)
{
    if (!is_ours(p, path))
        return true;
    if (!tkc_hub_is_safe_path(path))
        return tkc_fail(err, TINKC_E_FILE, "%s: the hub cannot store a file of this name", full);
    if (p->n == FILES_MAX)
        return tkc_fail(err, TINKC_E_FILE, "%s has more than %d files", p->o->folder, FILES_MAX);
    tkc_hub_upload *grown =
        tkc_grow(p->repo.hub->a, p->files, &p->cap, p->n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    p->files = grown;
    p->files[p->n++] = (tkc_hub_upload){ .path = path, .full = full, .size = size };
    return true;
}

/* Links to files are followed (a snapshot in the cache consists of them), links to folders are
 * not. */
static bool scan(tkc_hub_push *p, const char *folder, const char *prefix, int depth,
                 tinkc_error *err)
{
    struct dirent *entry;
    struct stat st;
    DIR *dir = depth < DEPTH_MAX ? opendir(folder) : NULL;
    if (!dir)
        return depth < DEPTH_MAX ? tkc_fail_errno(err, "%s", folder)
                                 : tkc_fail(err, TINKC_E_FILE, "%s: folders too deep", folder);
    while (!tkc_failed(err) && (entry = readdir(dir))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, ".git") == 0)
            continue;
        const char *full = tkc_path_join(p->repo.arena, folder, name, err);
        const char *path = *prefix ? tkc_arena_printf(p->repo.arena, err, "%s/%s", prefix, name)
                                   : tkc_arena_cstr(p->repo.arena, name, err);
        if (!full || !path)
            break;
        if (stat(full, &st) != 0)
            tkc_fail_errno(err, "%s", full);
        else if (S_ISREG(st.st_mode))
            add_file(p, path, full, (int64_t)st.st_size, err);
        else if (S_ISDIR(st.st_mode) && lstat(full, &st) == 0 && S_ISDIR(st.st_mode))
            scan(p, full, path, depth + 1, err);
    }
    closedir(dir);
    return !tkc_failed(err);
}

static void sort_files(tkc_hub_push *p)
{
    for (size_t i = 1; i < p->n; i++) {
        tkc_hub_upload f = p->files[i];
        size_t at = i;
        for (; at && strcmp(p->files[at - 1].path, f.path) > 0; at--)
            p->files[at] = p->files[at - 1];
        p->files[at] = f;
    }
}

/* ---- preupload: how each file is sent ---- */

static tkc_hub_upload *find_file(tkc_hub_push *p, tinkc_str path)
{
    size_t from = 0, to = p->n; /* sorted */
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        int order = tkc_str_compare(tkc_str(p->files[middle].path), path);
        if (order == 0)
            return &p->files[middle];
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return NULL;
}

static bool write_sample(tkc_jsonw *w, const tkc_hub_upload *f, tinkc_error *err)
{
    unsigned char bytes[SAMPLE];
    char text[SAMPLE / 3 * 4 + 8];
    int fd = open(f->full, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, bytes, sizeof bytes) : -1;
    if (n < 0)
        tkc_fail_errno(err, "%s", f->full);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return false;
    tkc_base64_encode(bytes, (size_t)n, text);
    tkc_jsonw_str(w, tkc_strn(text, tkc_base64_length((size_t)n)));
    return true;
}

/* The Git or LFS object id of the file. */
static bool digest_file(tkc_hub_push *p, const tkc_hub_upload *f, bool lfs, char *hex,
                        tinkc_error *err)
{
    tkc_digest d;
    char head[48], *block = tkc_alloc(p->repo.hub->a, BLOCK, err);
    int fd = block ? open(f->full, O_RDONLY | O_CLOEXEC) : -1;
    int64_t at = 0;
    ssize_t n = 0;
    if (lfs) {
        tkc_sha256_init(&d);
    } else {
        tkc_sha1_init(&d);
        int len = snprintf(head, sizeof head, "blob %lld", (long long)f->size);
        tkc_digest_add(&d, head, (size_t)len + 1);
    }
    if (block && fd < 0)
        tkc_fail_errno(err, "%s", f->full);
    while (fd >= 0 && !tkc_failed(err) && (n = read(fd, block, BLOCK)) > 0) {
        tkc_digest_add(&d, block, (size_t)n);
        at += n;
        p->now.file = f->path;
        tkc_hub_push_show(p, err);
    }
    if (fd >= 0 && n < 0)
        tkc_fail_errno(err, "%s", f->full);
    else if (fd >= 0 && at != f->size && !tkc_failed(err))
        tkc_fail(err, TINKC_E_FILE, "%s changed while it was read", f->full);
    if (fd >= 0)
        close(fd);
    tkc_release(p->repo.hub->a, block, BLOCK);
    tkc_digest_hex(&d, hex);
    return !tkc_failed(err);
}

/* { "path": ..., "uploadMode": "lfs" | "regular", "shouldIgnore": false, "oid": ... } */
static void read_mode(tkc_hub_push *p, tkc_json *j, tinkc_error *err)
{
    tinkc_str key, path = { 0 }, mode = { 0 }, oid = { 0 };
    char hex[TKC_SHA256_HEX];
    bool ignored = false;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "path"))
            path = tkc_json_string(j);
        else if (tkc_str_is(key, "uploadMode"))
            mode = tkc_json_string(j);
        else if (tkc_str_is(key, "shouldIgnore"))
            ignored = tkc_json_bool(j);
        else if (tkc_str_is(key, "oid") && tkc_json_peek(j) == TKC_JSON_STRING)
            oid = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    tkc_hub_upload *f = tkc_failed(err) ? NULL : find_file(p, path);
    if (!f)
        return;
    f->ignored = ignored;
    f->is_lfs = tkc_str_is(mode, "lfs") && f->size > 0; /* an empty file cannot be an LFS object */
    if (f->ignored)
        return;
    if (f->is_lfs && digest_file(p, f, true, f->sha256, err))
        f->same = tkc_str_is(oid, f->sha256);
    else if (!f->is_lfs && oid.len && digest_file(p, f, false, hex, err))
        f->same = tkc_str_is(oid, hex);
    if (!f->is_lfs && !f->same && f->size > REGULAR_MAX)
        tkc_fail(err, TINKC_E_UNSUPPORTED,
                 "%s is too large (%lld bytes), and the hub does not take "
                 "it as an LFS file",
                 f->full, (long long)f->size);
}

static void read_modes(tkc_hub_push *p, tinkc_str answer, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    tkc_json_open(&j, answer, p->repo.arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (!tkc_str_is(key, "files")) {
                tkc_json_skip(&j);
                continue;
            }
            tkc_json_array(&j);
            while (tkc_json_item(&j))
                read_mode(p, &j, err);
        }
}

static bool ask_modes(tkc_hub_push *p, tinkc_error *err)
{
    const char *url = api(p, "preupload", err);
    for (size_t from = 0; from < p->n && !tkc_failed(err); from += ASK_FILES) {
        tkc_buf text;
        tkc_jsonw w;
        tinkc_str answer = { 0 };
        tkc_buf_init(&text, p->repo.hub->a, TKC_BUF_NO_MAX);
        tkc_jsonw_open(&w, &text, err);
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "files");
        tkc_jsonw_array(&w);
        for (size_t i = from; i < p->n && i < from + ASK_FILES; i++) {
            tkc_jsonw_object(&w);
            tkc_jsonw_key(&w, "path");
            tkc_jsonw_cstr(&w, p->files[i].path);
            tkc_jsonw_key(&w, "sample");
            write_sample(&w, &p->files[i], err);
            tkc_jsonw_key(&w, "size");
            tkc_jsonw_i64(&w, p->files[i].size);
            tkc_jsonw_end(&w);
        }
        tkc_jsonw_end(&w);
        tkc_jsonw_end(&w);
        if (post(p, url, "application/json", tkc_buf_view(&text), 0, &answer, err))
            read_modes(p, answer, err);
        tkc_buf_free(&text);
    }
    return !tkc_failed(err);
}

/* ---- the commit ---- */

static void write_head(tkc_jsonw *w, const tinkc_push_options *o)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "key");
    tkc_jsonw_cstr(w, "header");
    tkc_jsonw_key(w, "value");
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "summary");
    tkc_jsonw_cstr(w, o->message && *o->message ? o->message : "Upload folder using tinkc");
    tkc_jsonw_key(w, "description");
    tkc_jsonw_cstr(w, o->description ? o->description : "");
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

static void write_object(tkc_jsonw *w, const tkc_hub_upload *f)
{
    tkc_jsonw_key(w, "path");
    tkc_jsonw_cstr(w, f->path);
    tkc_jsonw_key(w, "algo");
    tkc_jsonw_cstr(w, "sha256");
    tkc_jsonw_key(w, "oid");
    tkc_jsonw_cstr(w, f->sha256);
    tkc_jsonw_key(w, "size");
    tkc_jsonw_i64(w, f->size);
}

static void write_content(tkc_hub_push *p, tkc_jsonw *w, const tkc_hub_upload *f, tinkc_error *err)
{
    tkc_arena arena;
    tkc_arena_init(&arena, p->repo.hub->a, 0);
    tinkc_bytes bytes = tkc_read_file(&arena, f->full, REGULAR_MAX, err);
    size_t len = tkc_base64_length(bytes.len);
    char *text = tkc_failed(err) ? NULL : tkc_arena_alloc(&arena, len + 1, err);
    if (text && (int64_t)bytes.len != f->size)
        tkc_fail(err, TINKC_E_FILE, "%s changed while it was read", f->full);
    if (text) {
        tkc_base64_encode(bytes.data, bytes.len, text);
        tkc_jsonw_key(w, "content");
        tkc_jsonw_str(w, tkc_strn(text, len));
        tkc_jsonw_key(w, "path");
        tkc_jsonw_cstr(w, f->path);
        tkc_jsonw_key(w, "encoding");
        tkc_jsonw_cstr(w, "base64");
    }
    tkc_arena_free(&arena);
}

/* Writes one line per file; returns how many. */
static size_t write_commit(tkc_hub_push *p, tkc_buf *text, tinkc_error *err)
{
    tkc_jsonw w;
    size_t lines = 0;
    tkc_jsonw_open(&w, text, err);
    write_head(&w, p->o);
    tkc_buf_char(text, '\n', err);
    for (size_t i = 0; i < p->n && !tkc_failed(err); i++) {
        const tkc_hub_upload *f = &p->files[i];
        if (f->ignored || f->same)
            continue;
        tkc_jsonw_open(&w, text, err);
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "key");
        tkc_jsonw_cstr(&w, f->is_lfs ? "lfsFile" : "file");
        tkc_jsonw_key(&w, "value");
        tkc_jsonw_object(&w);
        if (f->is_lfs)
            write_object(&w, f);
        else
            write_content(p, &w, f, err);
        tkc_jsonw_end(&w);
        tkc_jsonw_end(&w);
        tkc_buf_char(text, '\n', err);
        lines++;
    }
    return lines;
}

static bool read_commit(tkc_hub_push *p, tinkc_hub_snapshot *s, tinkc_str answer, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    tkc_json_open(&j, answer, p->repo.arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            const char **to = tkc_str_is(key, "commitOid")        ? &s->commit
                              : tkc_str_is(key, "commitUrl")      ? &s->url
                              : tkc_str_is(key, "pullRequestUrl") ? &s->request
                                                                  : NULL;
            if (to && tkc_json_peek(&j) == TKC_JSON_STRING)
                *to = tkc_arena_str(&s->arena, tkc_json_string(&j), err);
            else
                tkc_json_skip(&j);
        }
    return !tkc_failed(err) &&
           (s->commit || tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub's answer names no commit"));
}

static bool commit(tkc_hub_push *p, tinkc_hub_snapshot *s, tinkc_error *err)
{
    tkc_buf text;
    tinkc_str answer = { 0 };
    tkc_buf_init(&text, p->repo.hub->a, TKC_BUF_NO_MAX);
    size_t lines = write_commit(p, &text, err);
    bool ok = !tkc_failed(err);
    if (ok && lines == 0) { /* nothing differs: make no empty commit */
        ok = tkc_hub_ask_commit(&p->repo, p->fetcher, err);
        s->commit = p->repo.commit;
        s->url = ok ? tkc_arena_printf(&s->arena, err, "%s/%s/commit/%s", p->repo.hub->url,
                                       p->repo.name, s->commit)
                    : NULL;
    } else if (ok) {
        ok = post(p, api(p, "commit", err), "application/x-ndjson", tkc_buf_view(&text), 0, &answer,
                  err) &&
             read_commit(p, s, answer, err);
    }
    tkc_buf_free(&text);
    return ok;
}

/* ---- the call ---- */

bool tkc_hub_push_show(tkc_hub_push *p, tinkc_error *err)
{
    if (p->o->progress && !p->o->progress(&p->now, p->o->user))
        tinkc_hub_stop(p->repo.hub);
    return !atomic_load(&p->repo.hub->stop) ||
           tkc_fail(err, TINKC_E_CANCELLED, "the upload was stopped");
}

static bool may_write(const tinkc_hub *h, const char *what, tinkc_error *err)
{
    if (h->offline)
        return tkc_fail(err, TINKC_E_OFFLINE,
                        "%s cannot be pushed: the hub is switched off (--offline, HF_HUB_OFFLINE)",
                        what);
    return h->token ||
           tkc_fail(err, TINKC_E_NO_CREDENTIAL,
                    "pushing needs a token for %s: set HF_TOKEN to one that may write", h->url);
}

static bool check_options(const tinkc_hub *h, const tinkc_push_options *o, tinkc_error *err)
{
    if (!h || !o || !o->repo || !o->folder)
        return tkc_fail(err, TINKC_E_ARGUMENT, "hub, repo and folder are required");
    if (!tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) ||
        !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "push options: reserved must be zero");
    if (!tkc_is_dir(o->folder))
        return tkc_fail(err, TINKC_E_FILE, "%s: no such folder", o->folder);
    return o->dry_run || may_write(h, o->repo, err);
}

static bool gather(tkc_hub_push *p, tinkc_error *err)
{
    if (!scan(p, p->o->folder, "", 0, err))
        return false;
    sort_files(p);
    for (size_t i = 0; i < p->n; i++)
        p->now.total_bytes += p->files[i].size;
    p->now.total_files = (int32_t)p->n;
    return p->n || tkc_fail(err, TINKC_E_FILE, "%s has no file to upload", p->o->folder);
}

static bool push_all(tkc_hub_push *p, tinkc_hub_snapshot *s, tinkc_error *err)
{
    p->now.waiting = "checksums";
    p->fetcher = tkc_fetcher_new(p->repo.hub->a, &p->repo.hub->fetch, err);
    bool ok = p->fetcher && complete_name(p, err) && create_repo(p, err) && create_branch(p, err) &&
              ask_modes(p, err);
    p->now.waiting = "";
    ok = ok && tkc_hub_send_objects(p, err) && commit(p, s, err);
    tkc_fetcher_free(p->fetcher);
    return ok;
}

tinkc_hub_snapshot *tinkc_hub_push(tinkc_hub *h, const tinkc_push_options *o, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(h, o, err))
        return NULL;
    tinkc_hub_snapshot *s = tkc_hub_snapshot_new(h, err);
    if (!s)
        return NULL;
    tkc_hub_push p = { .o = o, .now = { .file = "", .waiting = "" } };
    bool ok = tkc_hub_repo_init(&p.repo, h, o->repo, o->revision, &s->arena, err) &&
              gather(&p, err) && (o->dry_run || push_all(&p, s, err));
    s->folder = ok ? tkc_arena_cstr(&s->arena, o->folder, err) : NULL;
    s->moved = p.moved;
    s->repo = p.repo.name;
    for (size_t i = 0; ok && i < p.n; i++) {
        const tkc_hub_upload *f = &p.files[i];
        tinkc_hub_file file = { .name = f->path,
                                .digest = f->sha256,
                                .size = f->size,
                                .is_lfs = f->is_lfs,
                                .was_cached = f->same };
        ok = f->ignored || tkc_hub_snapshot_add(s, &file, err);
    }
    tkc_release(h->a, p.files, p.cap * sizeof *p.files);
    if (!ok) {
        tinkc_hub_snapshot_free(s);
        s = NULL;
    }
    return s;
}

bool tinkc_hub_user(tinkc_hub *h, char name[TINKC_HUB_USER_SIZE], tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!h || !name)
        return tkc_fail(err, TINKC_E_ARGUMENT, "hub and name are required");
    if (!may_write(h, "a repository", err))
        return false;
    tkc_fetcher *fetcher = tkc_fetcher_new(h->a, &h->fetch, err);
    bool ok = fetcher && ask_user(h, fetcher, name, err);
    tkc_fetcher_free(fetcher);
    return ok;
}
