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
 * May touch: the folders of base models, read-only. Holds no lock while it reads.
 */
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/json_write.h"
#include "codec/url.h"
#include "service/core/service_state.h"

enum { MAX_FILE = 256 << 20 };

static const char *const served[] = {
    "config.json",         "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "chat_template.json",
    "tokenizer.model",     "tiktoken.model",          "vocab.json",        "merges.txt",
};
enum { N_SERVED = sizeof served / sizeof *served };

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
    char oid[N_SERVED][TKC_SHA1_HEX]; /* "" = the folder has no such file */
    tinkc_bytes data[N_SERVED];       /* in the call's arena */
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

static bool read_repo(tke_call *call, repo *r)
{
    tkc_digest d;
    tkc_sha1_init(&d);
    for (size_t i = 0; i < N_SERVED; i++) {
        const char *path = tkc_path_join(&call->arena, r->folder, served[i], &call->err);
        if (!path)
            return false;
        if (!tkc_is_file(path))
            continue;
        r->data[i] = tkc_read_file(&call->arena, path, MAX_FILE, &call->err);
        if (tkc_failed(&call->err))
            return false;
        digest_file(r->data[i], r->oid[i]);
        tkc_digest_add(&d, served[i], strlen(served[i]));
        tkc_digest_add(&d, r->oid[i], sizeof r->oid[i]);
    }
    tkc_digest_hex(&d, r->commit);
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
        if (r->oid[i][0]) {
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
        if (r->oid[i][0]) {
            tkc_jsonw_object(w);
            tkc_jsonw_key(w, "type");
            tkc_jsonw_cstr(w, "file");
            tkc_jsonw_key(w, "oid");
            tkc_jsonw_cstr(w, r->oid[i]);
            tkc_jsonw_key(w, "size");
            tkc_jsonw_u64(w, r->data[i].len);
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

static void send_file(tke_call *call, const repo *r, tinkc_str name)
{
    char etag[TKC_SHA1_HEX + 2];
    size_t i = 0;
    while (i < N_SERVED && !(tkc_str_is(name, served[i]) && r->oid[i][0]))
        i++;
    call->reply->header(call->reply, "X-Repo-Commit", r->commit);
    if (i == N_SERVED) {
        refuse_hub(call, "EntryNotFound", "Entry not found");
        return;
    }
    (void)snprintf(etag, sizeof etag, "\"%s\"", r->oid[i]);
    call->reply->header(call->reply, "ETag", etag);
    tke_send(call->reply, 200,
             tkc_ends_with(name, ".json") ? TKC_TYPE_JSON : "application/octet-stream",
             tkc_strn((const char *)r->data[i].data, r->data[i].len));
}

/* ---- the call ---- */

static const tke_base *find_offered(tke_call *call, tinkc_str name)
{
    const char *text = tkc_arena_str(&call->arena, name, &call->err);
    pthread_mutex_lock(&call->svc->lock);
    const tke_base *base = text ? tke_find_base(call->svc, text) : NULL;
    pthread_mutex_unlock(&call->svc->lock);
    return base && tke_call_offers(call, base->name) ? base : NULL;
}

void tke_handle_hub(tke_call *call)
{
    repo r = { 0 };
    const char *path = tkc_percent_decode(call->path, &call->arena, &call->err);
    asked a = read_path(tkc_str(path ? path : ""));
    const tke_base *base = tkc_failed(&call->err) ? NULL : find_offered(call, a.name);
    if (!base && !tkc_failed(&call->err)) {
        refuse_hub(call, "RepoNotFound", "This server offers no such model");
        return;
    }
    if (base) {
        r.name = base->name;
        r.folder = base->model->folder;
    }
    if (!base || !read_repo(call, &r))
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
