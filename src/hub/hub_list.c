/* hub_list.c - listing the hub: the commit of a revision, its files, and which of them are wanted.
 *
 * Answers are untrusted: paths, digests and sizes are checked here, before any of them becomes part
 * of a path. May touch: the network.
 */
#include <fnmatch.h>
#include <string.h>
#include "base/json_read.h"
#include "base/str.h"
#include "codec/url.h"
#include "hub/hub_priv.h"

enum { LIST_MAX = 16 * 1024 * 1024, PAGES_MAX = 1000, FILES_MAX = 200000 };

/* ---- snapshots ---- */

tinkc_hub_snapshot *tkc_hub_snapshot_new(tinkc_hub *h, tinkc_error *err)
{
    tinkc_hub_snapshot *s = tkc_zalloc(h->a, sizeof *s, err);
    if (!s)
        return NULL;
    s->a = h->a;
    tkc_arena_init(&s->arena, h->a, 0);
    return s;
}

bool tkc_hub_snapshot_add(tinkc_hub_snapshot *s, const tinkc_hub_file *file, tinkc_error *err)
{
    tinkc_hub_file *grown = tkc_grow(s->a, s->files, &s->cap, s->n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    s->files = grown;
    s->files[s->n] = *file;
    s->files[s->n].name = tkc_arena_cstr(&s->arena, file->name, err);
    s->files[s->n].digest = tkc_arena_cstr(&s->arena, file->digest, err);
    s->n++;
    return !tkc_failed(err);
}

void tinkc_hub_snapshot_free(tinkc_hub_snapshot *s)
{
    if (!s)
        return;
    tkc_release(s->a, s->files, s->cap * sizeof *s->files);
    tkc_arena_free(&s->arena);
    tkc_release(s->a, s, sizeof *s);
}

const char *tinkc_hub_snapshot_repo(const tinkc_hub_snapshot *s)
{
    return s && s->repo ? s->repo : "";
}

const char *tinkc_hub_snapshot_folder(const tinkc_hub_snapshot *s)
{
    return s && s->folder ? s->folder : "";
}

const char *tinkc_hub_snapshot_commit(const tinkc_hub_snapshot *s)
{
    return s && s->commit ? s->commit : "";
}

const char *tinkc_hub_snapshot_url(const tinkc_hub_snapshot *s)
{
    return s && s->url ? s->url : "";
}

const char *tinkc_hub_snapshot_request(const tinkc_hub_snapshot *s)
{
    return s && s->request ? s->request : "";
}

int64_t tinkc_hub_snapshot_moved(const tinkc_hub_snapshot *s)
{
    return s ? s->moved : 0;
}

size_t tinkc_hub_snapshot_count(const tinkc_hub_snapshot *s)
{
    return s ? s->n : 0;
}

const tinkc_hub_file *tinkc_hub_snapshot_at(const tinkc_hub_snapshot *s, size_t i)
{
    return s && i < s->n ? &s->files[i] : NULL;
}

/* ---- the commit ---- */

bool tkc_hub_ask_commit(tkc_hub_repo *r, tkc_fetcher *f, tinkc_error *err)
{
    tkc_fetch fetch;
    tkc_json j;
    tinkc_str key;
    const char *quoted = tkc_hub_quote(r->arena, r->revision, false, err);
    const char *what = tkc_arena_printf(r->arena, err, strcmp(r->revision, "main") ? "%s@%s" : "%s",
                                        r->name, r->revision);
    tkc_fetch_init(&fetch, r->hub->a);
    fetch.method = "GET";
    fetch.max_text = LIST_MAX;
    fetch.url = tkc_arena_printf(r->arena, err, "%s/api/models/%s/revision/%s", r->hub->url,
                                 r->name, quoted ? quoted : "");
    r->commit = NULL;
    if (!tkc_failed(err) && tkc_hub_call(r->hub, f, &fetch, what, err)) {
        tkc_json_open(&j, tkc_buf_view(&fetch.text), r->arena, err);
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                if (tkc_str_is(key, "sha"))
                    r->commit = tkc_arena_str(r->arena, tkc_json_string(&j), err);
                else
                    tkc_json_skip(&j);
            }
        if (!tkc_failed(err) && (!r->commit || !tkc_is_commit(tkc_str(r->commit))))
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub names no commit for %s", what);
    }
    tkc_fetch_end(&fetch);
    return !tkc_failed(err);
}

/* ---- which files ---- */

bool tkc_hub_matches(const char *const *patterns, const char *path)
{
    for (; patterns && *patterns; patterns++) {
        size_t len = strlen(*patterns);
        if (fnmatch(*patterns, path, 0) == 0)
            return true;
        if (len && (*patterns)[len - 1] == '/' && strncmp(*patterns, path, len) == 0)
            return true;
    }
    return false;
}

static bool is_tokenizer_file(const char *path)
{
    static const char *const names[] = { "tokenizer.json",
                                         "tokenizer_config.json",
                                         "tokenizer.model",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "generation_config.json",
                                         "tiktoken.model",
                                         "vocab.json",
                                         "merges.txt",
                                         "config.json",
                                         "additional_chat_templates/*.jinja",
                                         NULL };
    return tkc_hub_matches(names, path);
}

/* The same weights in another format: not wanted beside safetensors. */
static bool is_other_form(const char *path)
{
    static const char *const forms[] = { "*.bin",       "*.pt",      "*.pth",    "*.ckpt",
                                         "*.h5",        "*.msgpack", "*.onnx",   "*.onnx_data",
                                         "*.gguf",      "*.ot",      "*.tflite", "*.mlmodel",
                                         "original/*",  "onnx/*",    "coreml/*", "openvino/*",
                                         "flax_model*", NULL };
    return tkc_hub_matches(forms, path);
}

static bool has_safetensors(const tinkc_hub_snapshot *s)
{
    static const char *const top[] = { "model*.safetensors", "*/model*.safetensors", NULL };
    for (size_t i = 0; i < s->n; i++)
        if (tkc_hub_matches(top, s->files[i].name))
            return true;
    return false;
}

/* Keeps only the files that the options select. */
static void choose(tinkc_hub_snapshot *s, const tinkc_pull_options *o)
{
    bool given = (o->include && o->include[0]) || (o->exclude && o->exclude[0]);
    bool skip_forms = !given && o->what == TINKC_PULL_MODEL && has_safetensors(s);
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->files[i].name;
        bool want = !(o->include && o->include[0]) || tkc_hub_matches(o->include, name);
        want = want && !tkc_hub_matches(o->exclude, name) && !(skip_forms && is_other_form(name));
        if (o->what == TINKC_PULL_TOKENIZER)
            want = want && is_tokenizer_file(name);
        if (want)
            s->files[kept++] = s->files[i];
    }
    s->n = kept;
}

/* ---- the list ---- */

typedef struct listed { /* one entry as the hub sends it */
    tinkc_str type, path, oid, lfs;
    int64_t size;
} listed;

/* { "type": "file", "path": ..., "size": n, "oid": ..., "lfs": { "oid": ..., "size": n } } */
static void read_listed(tkc_json *j, listed *l)
{
    tinkc_str key, inner;
    *l = (listed){ .size = -1 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        bool lfs = tkc_str_is(key, "lfs") && tkc_json_peek(j) == TKC_JSON_OBJECT;
        if (tkc_str_is(key, "path"))
            l->path = tkc_json_string(j);
        else if (tkc_str_is(key, "type"))
            l->type = tkc_json_string(j);
        else if (tkc_str_is(key, "size"))
            l->size = tkc_json_i64(j);
        else if (tkc_str_is(key, "oid"))
            l->oid = tkc_json_string(j);
        else if (lfs && tkc_json_object(j))
            while (tkc_json_key(j, &inner)) {
                if (tkc_str_is(inner, "oid"))
                    l->lfs = tkc_json_string(j);
                else
                    tkc_json_skip(j);
            }
        else
            tkc_json_skip(j);
    }
}

static bool is_hex(tinkc_str s, size_t len)
{
    size_t i = 0;
    while (i < s.len &&
           ((s.data[i] >= '0' && s.data[i] <= '9') || (s.data[i] >= 'a' && s.data[i] <= 'f')))
        i++;
    return i == s.len && s.len == len;
}

static bool add_listed(tkc_hub_repo *r, tinkc_hub_snapshot *s, const listed *l, tinkc_error *err)
{
    bool large = l->lfs.len > 0;
    const char *path = tkc_arena_str(r->arena, l->path, err);
    if (tkc_failed(err) || (l->type.len && !tkc_str_is(l->type, "file")))
        return !tkc_failed(err);
    if (strlen(path) != l->path.len || !tkc_hub_is_safe_path(path))
        return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                        "the hub's list of %s has an unsafe path: %.100s", r->name, path);
    if (s->n == FILES_MAX)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "%s has more than %d files", r->name, FILES_MAX);
    const char *digest = tkc_arena_str(r->arena, large ? l->lfs : l->oid, err);
    tinkc_hub_file file = { .name = path, .digest = digest, .size = l->size, .is_lfs = large };
    if (!is_hex(large ? l->lfs : l->oid, large ? 64 : 40) || l->size < 0)
        file.size = -1; /* invalid; an error only if the file is wanted */
    return tkc_hub_snapshot_add(s, &file, err);
}

static bool read_page(tkc_hub_repo *r, tinkc_hub_snapshot *s, tinkc_str text, tinkc_error *err)
{
    tkc_json j;
    listed l;
    tkc_json_open(&j, text, r->arena, err);
    if (tkc_json_array(&j))
        while (tkc_json_item(&j)) {
            read_listed(&j, &l);
            if (!tkc_failed(err))
                add_listed(r, s, &l, err);
        }
    return tkc_json_close(&j);
}

/* Link: <https://...cursor=...>; rel="next". It must be on the hub itself: the token is
 * sent there. */
static const char *next_page(tkc_hub_repo *r, const tkc_fetch *f, tinkc_error *err)
{
    tinkc_str rest = tkc_str(tkc_fetch_header(f, "link")), part;
    while (tkc_str_cut(&rest, ',', &part)) {
        size_t from = tkc_str_find(part, '<'), to = tkc_str_find(part, '>');
        const char *whole = tkc_arena_str(r->arena, part, err);
        if (!whole || from >= to || to == part.len || !strstr(whole + to, "rel=\"next\""))
            continue;
        const char *link =
            tkc_arena_str(r->arena, tkc_strn(part.data + from + 1, to - from - 1), err);
        const char *url = link ? tkc_url_resolve(f->url, link, r->arena, err) : NULL;
        if (url && !tkc_url_same_origin(url, r->hub->url))
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "the hub's list continues on another host");
        return tkc_failed(err) ? NULL : url;
    }
    return NULL;
}

static bool check_chosen(const tkc_hub_repo *r, const tinkc_hub_snapshot *s, tinkc_error *err)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->files[i].size < 0)
            return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                            "the hub's list of %s gives no usable digest and size for %s", r->name,
                            s->files[i].name);
    return s->n || tkc_fail(err, TINKC_E_NOT_FOUND, "%s has no file that was asked for", r->name);
}

bool tkc_hub_ask_files(tkc_hub_repo *r, tkc_fetcher *f, const tinkc_pull_options *o,
                       tinkc_hub_snapshot *s, tinkc_error *err)
{
    const char *url = tkc_arena_printf(r->arena, err, "%s/api/models/%s/tree/%s?recursive=true",
                                       r->hub->url, r->name, r->commit);
    for (int page = 0; url && !tkc_failed(err); page++) {
        tkc_fetch fetch;
        tkc_fetch_init(&fetch, r->hub->a);
        fetch.method = "GET";
        fetch.url = url;
        fetch.max_text = LIST_MAX;
        url = NULL;
        if (page == PAGES_MAX)
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "the list of %s does not end", r->name);
        else if (tkc_hub_call(r->hub, f, &fetch, r->name, err) &&
                 read_page(r, s, tkc_buf_view(&fetch.text), err))
            url = next_page(r, &fetch, err);
        tkc_fetch_end(&fetch);
    }
    if (tkc_failed(err))
        return false;
    choose(s, o);
    return check_chosen(r, s, err);
}
