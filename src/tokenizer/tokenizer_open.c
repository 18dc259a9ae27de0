/* tokenizer_open.c - tinkc_tokenizer_open and _parse: finds the files and reads them in order.
 *
 * May touch: the model's folder, the compiled form (compiled_cache.c).
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/file.h"
#include "base/gguf_read.h"
#include "codec/gguf_tokenizer.h"
#include "tokenizer/open_with.h"
#include "bpe/encoder.h"
#include "tokenizer/load.h"

/* ---- new and free ---- */

static tinkc_tokenizer *new_tokenizer(const tinkc_tokenizer_options *o, tinkc_error *err)
{
    const tinkc_allocator *a = o ? o->allocator : NULL;
    tinkc_tokenizer *tok = tkc_zalloc(a, sizeof *tok, err);
    if (!tok)
        return NULL;
    tok->a = a;
    tkc_arena_init(&tok->arena, a, 0);
    tkc_map_init(&tok->added_index, a);
    tkc_map_init(&tok->literals, a);
    tkc_ref_init(&tok->refs);
    pthread_mutex_init(&tok->cache.lock, NULL);
    pthread_mutex_init(&tok->chat.lock, NULL);
    for (size_t i = 0; i < TKC_NAMES; i++)
        tok->specials[i].id = -1;
    return tok;
}

tinkc_tokenizer *tinkc_tokenizer_keep(const tinkc_tokenizer *tok)
{
    tinkc_tokenizer *mine = (tinkc_tokenizer *)(uintptr_t)tok; /* only the count changes */
    if (mine)
        tkc_ref_keep(&mine->refs);
    return mine;
}

void tinkc_tokenizer_free(tinkc_tokenizer *tok)
{
    if (!tok || !tkc_ref_drop(&tok->refs))
        return;
    const tinkc_allocator *a = tok->a;
    if (tok->chat.value && tok->chat.end)
        tok->chat.end(tok->chat.value);
    for (tkc_scratch *s = tok->cache.first, *next; s; s = next) {
        next = s->next;
        tkc_scratch_free(s);
    }
    tkc_pretok_free(&tok->pretok);
    tkc_tables_free(&tok->tables);
    tkc_map_free(&tok->added_index);
    tkc_map_free(&tok->literals);
    pthread_mutex_destroy(&tok->cache.lock);
    pthread_mutex_destroy(&tok->chat.lock);
    tkc_arena_free(&tok->arena);
    tkc_release(a, tok, sizeof *tok);
}

static bool check_options(const tinkc_tokenizer_options *o, tinkc_error *err)
{
    if (o && (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
              !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools)))
        return tkc_fail(err, TINKC_E_ARGUMENT, "options: reserved fields must be zero");
    return true;
}

/* ---- files ---- */

static tinkc_str unpack(tinkc_bytes packed, const char *path, tkc_arena *temp, tinkc_error *err)
{
    tinkc_str none = { NULL, 0 };
    unsigned long long size = ZSTD_getFrameContentSize(packed.data, packed.len);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR ||
        size > TKC_MAX_TOKENIZER_FILE) {
        tkc_fail(err, TINKC_E_FILE, "%s: zstd: content size missing or above %d MiB", path,
                 TKC_MAX_TOKENIZER_FILE >> 20);
        return none;
    }
    char *text = tkc_arena_alloc(temp, (size_t)size + 1, err);
    if (!text)
        return none;
    size_t n = ZSTD_decompress(text, (size_t)size, packed.data, packed.len);
    if (ZSTD_isError(n) || n != size) {
        tkc_fail(err, TINKC_E_FILE, "%s: damaged zstd file", path);
        return none;
    }
    text[n] = '\0';
    return tkc_strn(text, n);
}

/* A small file beside the tokenizer; empty if it does not exist. */
static tinkc_str read_beside(const char *folder, const char *name, tkc_arena *temp,
                             tinkc_error *err)
{
    char *path = tkc_path_join(temp, folder, name, err);
    if (!path || !tkc_is_file(path))
        return (tinkc_str){ NULL, 0 };
    tinkc_bytes bytes = tkc_read_file(temp, path, TKC_MAX_CONFIG_FILE, err);
    return tkc_strn((const char *)bytes.data, bytes.len);
}

static bool is_tiktoken_name(const char *path)
{
    tinkc_str s = tkc_str(path);
    return tkc_ends_with(s, "tiktoken.model") || tkc_ends_with(s, "tiktoken.model.zst") ||
           tkc_ends_with(s, ".tiktoken") || tkc_ends_with(s, ".tiktoken.zst");
}

/* The only file in a folder whose name is that of a tiktoken rank file; NULL if there is none. */
static char *find_ranks(const char *folder, tkc_arena *temp, tinkc_error *err)
{
    char *found = NULL;
    DIR *dir = opendir(folder);
    if (!dir)
        return NULL;
    for (const struct dirent *e; (e = readdir(dir));)
        if (is_tiktoken_name(e->d_name)) {
            if (found)
                tkc_fail(err, TINKC_E_TOKENIZER, "%s: more than one tiktoken file", folder);
            found = tkc_path_join(temp, folder, e->d_name, err);
        }
    closedir(dir);
    return found;
}

/* NULL: an error, or the folder has only vocab.json and merges.txt. */
static char *find_source(const char *folder, tkc_arena *temp, tinkc_error *err)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.json.zst", "tiktoken.model",
                                         "tiktoken.model.zst" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = tkc_path_join(temp, folder, names[i], err);
        if (!path || tkc_is_file(path))
            return path;
    }
    char *ranks = find_ranks(folder, temp, err);
    if (!ranks && !tkc_failed(err) && !tkc_is_legacy(folder, temp, err))
        tkc_fail(err, TINKC_E_TOKENIZER,
                 "%s: no tokenizer.json, tiktoken.model, .tiktoken file, nor vocab.json and "
                 "merges.txt in it",
                 folder);
    return ranks;
}

static const char *folder_of(const char *path, tkc_arena *temp, tinkc_error *err)
{
    const char *slash = strrchr(path, '/');
    return slash ? tkc_arena_str(temp, tkc_strn(path, (size_t)(slash - path) + 1), err) : ".";
}

/* additional_chat_templates/NAME.jinja, in any order: names are looked up. */
static void read_named_templates(tinkc_tokenizer *tok, const char *folder, tkc_arena *temp,
                                 tinkc_error *err)
{
    char *path = tkc_path_join(temp, folder, "additional_chat_templates", err);
    DIR *dir = path ? opendir(path) : NULL;
    if (!dir)
        return;
    for (const struct dirent *e; !tkc_failed(err) && (e = readdir(dir));) {
        tinkc_str name = tkc_str(e->d_name);
        if (name.len <= 6 || !tkc_ends_with(name, ".jinja"))
            continue;
        tinkc_str text = read_beside(path, e->d_name, temp, err);
        if (text.data)
            tkc_add_template(tok, tkc_strn(name.data, name.len - 6), text, err);
    }
    closedir(dir);
}

/* ---- tables ---- */

/* name: of the file, for messages. */
static bool read_tables(tinkc_tokenizer *tok, tinkc_str text, const char *name, tkc_origin origin,
                        tinkc_error *err)
{
    bool tiktoken = is_tiktoken_name(name);
    tkc_arena temp;
    tkc_arena_init(&temp, NULL, 0);
    bool ok = tiktoken ? tkc_read_tiktoken(text, origin, &tok->tables, &temp, err)
                       : tkc_read_tokenizer_json(text, origin, &tok->tables, &temp, err);
    tkc_arena_free(&temp);
    return ok || tkc_fail_before(err, "%s: ", name);
}

/* user_cache NULL = neither read nor write a compiled form. */
static bool open_tables(tinkc_tokenizer *tok, const char *source, const char *user_cache,
                        tkc_arena *temp, tinkc_error *err)
{
    tkc_origin origin = { 0 };
    const bool use_cache = user_cache != NULL;
    if (use_cache && tkc_cache_read(source, user_cache, &tok->tables))
        return true;
    tinkc_bytes file = tkc_read_file(temp, source, TKC_MAX_TOKENIZER_FILE, err);
    if (!file.data)
        return false;
    tinkc_str text = tkc_strn((const char *)file.data, file.len);
    if (tkc_ends_with(tkc_str(source), ".zst"))
        text = unpack(file, source, temp, err);
    if (!text.data)
        return false;
    if (use_cache && tkc_origin_of(source, &origin))
        tkc_origin_digest(file.data, file.len, origin.digest);
    if (!read_tables(tok, text, source, origin, err))
        return false;
    if (use_cache && origin.size)
        tkc_cache_write(source, user_cache, &tok->tables);
    return true;
}

/* ---- GGUF files: they hold everything ---- */

static bool read_gguf(tinkc_tokenizer *tok, tkc_gguf *g, tkc_buf *text, tkc_buf *config,
                      tinkc_error *err)
{
    if (!tkc_gguf_tokenizer_json(g, text, err) || !tkc_gguf_tokenizer_config(g, config, err) ||
        !read_tables(tok, tkc_strn(text->data, text->len), g->what, (tkc_origin){ 0 }, err))
        return false;
    if (!tkc_read_meta(tok, err) ||
        !tkc_read_config(tok, &(tkc_configs){ .config = tkc_strn(config->data, config->len) }, err))
        return tkc_fail_before(err, "%s: ", g->what);
    return tkc_finish_tokenizer(tok, err);
}

static bool open_gguf(tinkc_tokenizer *tok, const char *path, tinkc_error *err)
{
    tkc_mapping map = { 0 };
    tkc_gguf g = { 0 };
    tkc_buf text, config;
    tkc_buf_init(&text, NULL, TKC_MAX_TOKENIZER_FILE);
    tkc_buf_init(&config, NULL, TKC_MAX_CONFIG_FILE);
    bool ok = tkc_map_file(path, &map, err) &&
              tkc_gguf_read(&g, (tinkc_bytes){ map.data, map.len }, path, err) &&
              read_gguf(tok, &g, &text, &config, err);
    tkc_gguf_free(&g);
    tkc_buf_free(&text);
    tkc_buf_free(&config);
    if (map.data)
        tkc_unmap_file(&map);
    return ok;
}

/* Everything except the tables, from the folder; source NULL = only vocab.json and merges.txt;
 * defaults NULL = none. */
static bool open_rest(tinkc_tokenizer *tok, const char *folder, const char *source,
                      const char *defaults, tkc_arena *temp, tinkc_error *err)
{
    tkc_configs c = { .config = read_beside(folder, "tokenizer_config.json", temp, err),
                      .generation = read_beside(folder, "generation_config.json", temp, err) };
    if (defaults || !c.config.data)
        c.special_map = read_beside(folder, "special_tokens_map.json", temp, err);
    if (defaults)
        c.defaults = tkc_str(defaults);
    if (tkc_failed(err))
        return false;
    if (!tkc_read_meta(tok, err))
        return tkc_fail_before(err, "%s: ", source ? source : folder);
    if (!tkc_read_config(tok, &c, err))
        return tkc_fail_before(err, "%s%s", folder, tkc_ends_with(tkc_str(folder), "/") ? "" : "/");
    read_named_templates(tok, folder, temp, err);
    tinkc_str template = read_beside(folder, "chat_template.jinja", temp, err);
    if (template.data)
        tkc_add_template(tok, tkc_str("default"), template, err);
    return !tkc_failed(err) && tkc_finish_tokenizer(tok, err);
}

tinkc_tokenizer *tinkc_tokenizer_open(const char *path, const tinkc_tokenizer_options *options,
                                      tinkc_error *err)
{
    tinkc_error local;
    tkc_arena temp;
    tinkc_tokenizer *tok = NULL;
    if (!tkc_enter(&err, &local))
        return NULL;
    tkc_arena_init(&temp, NULL, 0);
    const char *cache = tkc_user_cache(&temp, err);
    if (cache)
        tok = tkc_tokenizer_open_with(path, options, cache, err);
    tkc_arena_free(&temp);
    return tok;
}

tinkc_tokenizer *tkc_tokenizer_open_with(const char *path, const tinkc_tokenizer_options *options,
                                         const char *user_cache, tinkc_error *err)
{
    tkc_arena temp;
    if (!check_options(options, err))
        return NULL;
    if (!path || !*path) {
        tkc_fail(err, TINKC_E_ARGUMENT, path ? "path: empty" : "path: missing");
        return NULL;
    }
    tinkc_tokenizer *tok = new_tokenizer(options, err);
    if (!tok)
        return NULL;
    tok->source = tkc_arena_cstr(&tok->arena, path, err);
    bool is_folder = tkc_is_dir(path);
    if (!is_folder && tkc_gguf_named(path)) {
        if (tok->source && open_gguf(tok, path, err))
            return tok;
        tinkc_tokenizer_free(tok);
        return NULL;
    }
    tkc_arena_init(&temp, NULL, 0);
    const char *source = is_folder ? find_source(path, &temp, err) : path;
    const char *folder = is_folder ? path : folder_of(path, &temp, err);
    const char *defaults = NULL; /* of a folder that has only vocab.json and merges.txt */
    bool ok = !tkc_failed(err) && folder;
    if (ok && source)
        ok = open_tables(tok, source, options && options->no_compiled_cache ? NULL : user_cache,
                         &temp, err);
    else if (ok)
        ok = tkc_read_legacy(folder, &tok->tables, &defaults, &temp, err);
    ok = ok && open_rest(tok, folder, source, defaults, &temp, err);
    tkc_arena_free(&temp);
    if (ok)
        return tok;
    tinkc_tokenizer_free(tok);
    return NULL;
}

tinkc_tokenizer *tinkc_tokenizer_parse(const char *json, size_t len, const char *config,
                                       size_t config_len, const tinkc_tokenizer_options *options,
                                       tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(options, err))
        return NULL;
    if (!json) {
        tkc_fail(err, TINKC_E_ARGUMENT, "json: missing");
        return NULL;
    }
    tinkc_tokenizer *tok = new_tokenizer(options, err);
    if (!tok)
        return NULL;
    tok->source = "memory";
    if (read_tables(tok, tkc_strn(json, len), "tokenizer.json", (tkc_origin){ 0 }, err) &&
        (tkc_read_meta(tok, err) || tkc_fail_before(err, "tokenizer.json: ")) &&
        tkc_read_config(tok, &(tkc_configs){ .config = tkc_strn(config, config ? config_len : 0) },
                        err) &&
        tkc_finish_tokenizer(tok, err))
        return tok;
    tinkc_tokenizer_free(tok);
    return NULL;
}
