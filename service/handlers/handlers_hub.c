/* handlers_hub.c - tokenizers and configurations of base models, at the paths of a Hugging Face hub.
 *
 *     GET  /api/models/NAME[/revision/REVISION]          commit and names of files
 *     GET  /api/models/NAME/tree/REVISION                files with sizes and digests
 *     GET  /NAME/resolve/REVISION/FILE                   a file (HEAD: its size and digest)
 *
 * With these, clients on other machines need no folder of this one: HF_ENDPOINT names this server,
 * and our own client asks it by itself. Only the files that are listed here are served, by exact
 * name, never weights; of the models that this server offers. A revision is "main" or the commit,
 * which changes when one of the files does.
 *
 * Digests are remembered for as long as a file's device, inode, size and time of change are the same;
 * so a request reads the one file that it asks for, and a file that changes is served as it is now.
 *
 * May touch: the folders of base models, read-only. Holds no lock while it reads.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/json_write.h"
#include "codec/url.h"
#include "service/core/base_models.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"

enum { MAX_FILE = 256 << 20 };

static const char *const served[] = {
    "config.json",         "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "chat_template.json",
    "tokenizer.model",     "tiktoken.model",          "vocab.json",        "merges.txt",
};
enum { N_SERVED = sizeof served / sizeof *served };
_Static_assert((int)N_SERVED == (int)TKE_HUB_FILES, "one digest for each");

enum { ASKED_INFO = 1, ASKED_TREE, ASKED_FILE };

typedef struct asked {
    int what;           /* ASKED_*; 0 = not a path of a hub */
    tinkc_str name;     /* of a model */
    tinkc_str revision; /* empty = main */
    tinkc_str rest;     /* FILE, or a folder of the tree */
} asked;

/* Cuts s at the last "/word/"; false if it has none. */
static bool cut_at(tinkc_str s, const char *word, tinkc_str *before, tinkc_str *behind)
{
    size_t n = strlen(word);
    for (size_t i = s.len >= n ? s.len - n + 1 : 0; i-- > 0;)
        if (memcmp(s.data + i, word, n) == 0) {
            *before = tkc_strn(s.data, i);
            *behind = tkc_strn(s.data + i + n, s.len - i - n);
            return true;
        }
    return false;
}

static void split_revision(asked *a, tinkc_str behind)
{
    const char *slash = memchr(behind.data, '/', behind.len);
    size_t n = slash ? (size_t)(slash - behind.data) : behind.len;
    a->revision = tkc_strn(behind.data, n);
    a->rest = slash ? tkc_strn(slash + 1, behind.len - n - 1) : tkc_strn("", 0);
}

static asked read_path(tinkc_str path)
{
    static const char api[] = "/api/models/";
    asked a = { 0 };
    tinkc_str behind;
    if (tkc_starts_with(path, api)) {
        path = tkc_strn(path.data + sizeof api - 1, path.len - (sizeof api - 1));
        a.what = ASKED_INFO;
        if (cut_at(path, "/tree/", &a.name, &behind)) {
            a.what = ASKED_TREE;
            split_revision(&a, behind);
        } else if (!cut_at(path, "/revision/", &a.name, &a.revision)) {
            a.name = path;
        }
    } else if (path.len > 1 && cut_at(path, "/resolve/", &a.name, &behind) && a.name.len > 1) {
        a.what = ASKED_FILE;
        a.name = tkc_strn(a.name.data + 1, a.name.len - 1);
        split_revision(&a, behind);
    }
    return a;
}

bool tke_service_is_hub(tinkc_str uri)
{
    tinkc_str path = uri;
    (void)tkc_str_cut(&uri, '?', &path);
    return read_path(path).what != 0;
}

/* ---- answers ---- */

/* As the hub says it: its clients tell by the code what is missing. */
static void refuse_hub(tke_call *call, const char *code, const char *detail)
{
    call->reply->header(call->reply, "X-Error-Code", code);
    call->reply->header(call->reply, "X-Error-Message", detail);
    tke_refuse(call, 404, "not_found", "%s", detail);
}

typedef struct repo {
    const char *name, *folder;
    char commit[TKC_SHA1_HEX];
    tke_hub_file files[N_SERVED]; /* oid "" = the folder has no such file */
} repo;

/* The digest that git gives a file. */
static void digest_file(tinkc_bytes data, char out[TKC_SHA1_HEX])
{
    tkc_digest d;
    char head[40];
    int n = snprintf(head, sizeof head, "blob %zu", data.len);
    tkc_sha1_init(&d);
    tkc_digest_add(&d, head, (size_t)n + 1);
    tkc_digest_add(&d, data.data, data.len);
    tkc_digest_hex(&d, out);
}

/* What the file is now, without its digest. False: there is none. */
static bool look_at(const char *path, tke_hub_file *now)
{
    enum { SETTLED_NS = 2000000000 }; /* the coarsest clock of a file system */
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *now = (tke_hub_file){ .device = (uint64_t)st.st_dev,
                           .inode = st.st_ino,
                           .size = st.st_size,
                           .mtime_ns = st.st_mtim.tv_sec * (int64_t)1000000000 +
                                       st.st_mtim.tv_nsec };
    /* A file that was changed just now may change again within the same tick of the clock, with the
     * same size: its digest is not remembered yet. */
    now->settled = tkc_wall_us(tkc_clock_real()) * 1000 - now->mtime_ns >= SETTLED_NS;
    return true;
}

static bool is_unchanged(const tke_hub_file *known, const tke_hub_file *now)
{
    return known->oid[0] && known->settled && known->device == now->device &&
           known->inode == now->inode && known->size == now->size &&
           known->mtime_ns == now->mtime_ns;
}

static char *path_of(tke_call *call, const repo *r, size_t file)
{
    return tkc_path_join(&call->arena, r->folder, served[file], &call->err);
}

/* Its bytes, with what they were read from in r->files. */
static tinkc_bytes read_served(tke_call *call, repo *r, size_t file)
{
    const char *path = path_of(call, r, file);
    tke_hub_file now;
    if (!path || !look_at(path, &now)) { /* before: a change while it is read is noticed next time */
        r->files[file].oid[0] = '\0';
        return (tinkc_bytes){ 0 };
    }
    tinkc_bytes data = tkc_read_file(&call->arena, path, MAX_FILE, &call->err);
    if (tkc_failed(&call->err))
        return data;
    digest_file(data, now.oid);
    r->files[file] = now;
    return data;
}

static void name_commit(repo *r)
{
    tkc_digest d;
    tkc_sha1_init(&d);
    for (size_t i = 0; i < N_SERVED; i++)
        if (r->files[i].oid[0]) {
            tkc_digest_add(&d, served[i], strlen(served[i]));
            tkc_digest_add(&d, r->files[i].oid, sizeof r->files[i].oid);
        }
    tkc_digest_hex(&d, r->commit);
}

/* The digests of all files: those that changed since they were last read are read again. */
static bool read_repo(tke_call *call, tke_base *base, repo *r)
{
    tke_service *svc = call->svc;
    /* Copied, so that no lock is held while files are read. Two requests may read the same file at
     * once; both get the same digest. */
    pthread_mutex_lock(&svc->lock);
    memcpy(r->files, base->hub, sizeof r->files);
    pthread_mutex_unlock(&svc->lock);
    for (size_t i = 0; i < N_SERVED; i++) {
        tke_hub_file now;
        const char *path = path_of(call, r, i);
        if (!path)
            return false;
        if (!look_at(path, &now))
            r->files[i].oid[0] = '\0';
        else if (!is_unchanged(&r->files[i], &now))
            (void)read_served(call, r, i);
        if (tkc_failed(&call->err))
            return false;
    }
    pthread_mutex_lock(&svc->lock);
    memcpy(base->hub, r->files, sizeof r->files);
    pthread_mutex_unlock(&svc->lock);
    name_commit(r);
    return true;
}

static void write_info(tkc_jsonw *w, const repo *r)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, r->name);
    tkc_jsonw_key(w, "modelId");
    tkc_jsonw_cstr(w, r->name);
    tkc_jsonw_key(w, "sha");
    tkc_jsonw_cstr(w, r->commit);
    tkc_jsonw_key(w, "private");
    tkc_jsonw_bool(w, false);
    tkc_jsonw_key(w, "tags");
    tkc_jsonw_array(w);
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "siblings");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < N_SERVED; i++)
        if (r->files[i].oid[0]) {
            tkc_jsonw_object(w);
            tkc_jsonw_key(w, "rfilename");
            tkc_jsonw_cstr(w, served[i]);
            tkc_jsonw_end(w);
        }
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

static void write_tree(tkc_jsonw *w, const repo *r)
{
    tkc_jsonw_array(w);
    for (size_t i = 0; i < N_SERVED; i++)
        if (r->files[i].oid[0]) {
            tkc_jsonw_object(w);
            tkc_jsonw_key(w, "type");
            tkc_jsonw_cstr(w, "file");
            tkc_jsonw_key(w, "oid");
            tkc_jsonw_cstr(w, r->files[i].oid);
            tkc_jsonw_key(w, "size");
            tkc_jsonw_i64(w, r->files[i].size);
            tkc_jsonw_key(w, "path");
            tkc_jsonw_cstr(w, served[i]);
            tkc_jsonw_end(w);
        }
    tkc_jsonw_end(w);
}

static void send_list(tke_call *call, const repo *r, bool tree)
{
    tkc_buf out;
    tkc_jsonw w;
    tkc_buf_init(&out, call->svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    if (tree)
        write_tree(&w, r);
    else
        write_info(&w, r);
    tke_answer_text(call, &out);
}

static void send_file(tke_call *call, repo *r, tinkc_str name)
{
    char etag[TKC_SHA1_HEX + 2];
    size_t i = 0;
    while (i < N_SERVED && !(tkc_str_is(name, served[i]) && r->files[i].oid[0]))
        i++;
    tinkc_bytes data = i < N_SERVED ? read_served(call, r, i) : (tinkc_bytes){ 0 };
    if (tkc_failed(&call->err)) {
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return;
    }
    if (i < N_SERVED && !r->files[i].oid[0])
        i = N_SERVED; /* it is gone by now */
    name_commit(r); /* the file may have changed just now: digest and bytes belong together */
    call->reply->header(call->reply, "X-Repo-Commit", r->commit);
    if (i == N_SERVED) {
        refuse_hub(call, "EntryNotFound", "Entry not found");
        return;
    }
    (void)snprintf(etag, sizeof etag, "\"%s\"", r->files[i].oid);
    call->reply->header(call->reply, "ETag", etag);
    tke_send(call->reply, 200,
             tkc_ends_with(name, ".json") ? TKC_TYPE_JSON : "application/octet-stream",
             tkc_strn((const char *)data.data, data.len));
}

/* ---- the call ---- */

static tke_base *find_offered(tke_call *call, tinkc_str name)
{
    const char *text = tkc_arena_str(&call->arena, name, &call->err);
    pthread_mutex_lock(&call->svc->lock);
    tke_base *base = text ? tke_find_base(call->svc, text) : NULL;
    pthread_mutex_unlock(&call->svc->lock);
    return base && tke_call_offers(call, base->name) ? base : NULL;
}

void tke_handle_hub(tke_call *call)
{
    repo r = { 0 };
    /* Decoded before it is divided; what it names is only compared with models and with the list of
     * files, and never opened. */
    const char *path = tkc_percent_decode(call->path, &call->arena, &call->err);
    asked a = read_path(tkc_str(path ? path : ""));
    tke_base *base = tkc_failed(&call->err) ? NULL : find_offered(call, a.name);
    if (!base && !tkc_failed(&call->err)) {
        refuse_hub(call, "RepoNotFound", "This server offers no such model");
        return;
    }
    if (base) {
        r.name = base->name;
        r.folder = base->model->folder;
    }
    if (!base || !read_repo(call, base, &r))
        tke_send_failure(call->reply, call->svc->a, &call->err);
    else if (a.revision.len && !tkc_str_is(a.revision, "main") && !tkc_str_is(a.revision, r.commit))
        refuse_hub(call, "RevisionNotFound", "There is only the revision main");
    else if (a.what == ASKED_FILE)
        send_file(call, &r, a.rest);
    else if (a.what == ASKED_TREE && a.rest.len)
        refuse_hub(call, "EntryNotFound", "Entry not found");
    else
        send_list(call, &r, a.what == ASKED_TREE);
}
