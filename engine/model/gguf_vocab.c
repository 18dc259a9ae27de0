/* gguf_vocab.c - tokenizer.json, tokenizer_config.json and the chat template as GGUF keys.
 *
 * llama.cpp has its own tokenizers and takes only the tables and the name of a pre-tokenizer: one
 * that it does not know is refused here, because it would silently split text differently. May
 * touch: the model's folder.
 */
#include <string.h>
#include "base/file.h"
#include "base/map.h"
#include "base/str.h"
#include "base/tokenizer_json.h"
#include "model/gguf.h"

enum { TEXT_MAX = 256 << 20 };
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 }; /* of llama.cpp */

typedef struct vocab {
    tkc_arena *arena;
    const char *path; /* of tokenizer.json */
    tinkc_error *err;
    tinkc_str *tokens; /* [size] */
    int32_t *types;
    size_t size;
    tkc_map ids; /* text -> id + 1 */
    tinkc_str *merges;
    size_t n_merges, cap_merges;
    tinkc_str model, regex; /* its type; the pattern of the pre-tokenizer */
    tinkc_str first;        /* the token that the post-processor puts first */
    bool byte_level, use_regex, byte_fallback;
} vocab;

static bool refuse(vocab *v, const char *what)
{
    return tkc_fail(v->err, TINKC_E_UNSUPPORTED, "%s: GGUF has no %s", v->path, what);
}

/* ---- tokens ---- */

static bool set_token(vocab *v, int64_t id, tinkc_str text, int32_t type)
{
    if (id < 0 || id >= (int64_t)v->size)
        return tkc_fail(v->err, TINKC_E_MODEL,
                        "%s: token %lld is beyond the model's vocabulary of %zu", v->path,
                        (long long)id, v->size);
    if (type != NORMAL || !v->types[id]) { /* an added token is one whatever the table calls it */
        v->tokens[id] = text;
        v->types[id] = type;
    }
    return tkc_map_set(&v->ids, text, (void *)(uintptr_t)(id + 1), NULL, v->err);
}

static bool add_token(void *user, tinkc_str text, int64_t id)
{
    return set_token(user, id, text, NORMAL);
}

static bool add_special(void *user, tkc_added_token token, int64_t id)
{
    return set_token(user, id, tkc_strn(token.text, token.len),
                     token.special ? CONTROL : USER_DEFINED);
}

/* As "left right". */
static bool add_merge(void *user, tinkc_str left, tinkc_str right)
{
    vocab *v = user;
    tinkc_str *grown =
        tkc_grow(NULL, v->merges, &v->cap_merges, v->n_merges + 1, sizeof *grown, v->err);
    if (!grown)
        return false;
    v->merges = grown;
    const char *both = tkc_arena_printf(v->arena, v->err, "%.*s %.*s", (int)left.len, left.data,
                                        (int)right.len, right.data);
    v->merges[v->n_merges++] = tkc_str(both);
    return both != NULL;
}

static void read_option(void *user, tkc_json *j, tinkc_str key)
{
    vocab *v = user;
    if (tkc_str_is(key, "type"))
        v->model = tkc_json_string(j);
    else if (tkc_str_is(key, "byte_fallback") && tkc_json_peek(j) == TKC_JSON_TRUE)
        v->byte_fallback = tkc_json_bool(j);
    else
        tkc_json_skip(j);
}

/* ---- pre-tokenizer, post-processor ---- */

/* { "type": ..., "pretokenizers": [...], "pattern": { "Regex": ... }, "use_regex": ... } */
static void read_pre(vocab *v, tkc_json *j)
{
    tinkc_str key, inner, type = { 0 };
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type")) {
            type = tkc_json_string(j);
        } else if (tkc_str_is(key, "pretokenizers") && tkc_json_array(j)) {
            while (tkc_json_item(j))
                read_pre(v, j);
        } else if (tkc_str_is(key, "pattern") && tkc_json_object(j)) {
            while (tkc_json_key(j, &inner)) {
                tinkc_str text = tkc_json_string(j);
                v->regex = v->regex.data ? tkc_str("several patterns") : text;
            }
        } else if (tkc_str_is(key, "use_regex")) {
            v->use_regex = tkc_json_bool(j);
        } else {
            tkc_json_skip(j);
        }
    }
    v->byte_level = v->byte_level || tkc_str_is(type, "ByteLevel");
}

/* The first of "single": [ { "SpecialToken": { "id": ... } }, ... ] */
static void read_single(vocab *v, tkc_json *j)
{
    tinkc_str key, inner;
    bool first = true;
    tkc_json_array(j);
    while (tkc_json_item(j)) {
        tkc_json_object(j);
        while (tkc_json_key(j, &key)) {
            if (!first || !tkc_str_is(key, "SpecialToken")) {
                tkc_json_skip(j);
                continue;
            }
            tkc_json_object(j);
            while (tkc_json_key(j, &inner)) {
                if (tkc_str_is(inner, "id"))
                    v->first = tkc_json_string(j);
                else
                    tkc_json_skip(j);
            }
        }
        first = false;
    }
}

static void read_post(vocab *v, tkc_json *j)
{
    tinkc_str key;
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "processors") && tkc_json_array(j)) {
            while (tkc_json_item(j))
                read_post(v, j);
        } else if (tkc_str_is(key, "single") && tkc_json_peek(j) == TKC_JSON_ARRAY) {
            read_single(v, j);
        } else {
            tkc_json_skip(j);
        }
    }
}

/* llama.cpp's name of the pre-tokenizer; NULL = it has none. */
static const char *pre_name(const vocab *v)
{
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    if (tkc_str_is(v->regex, WORDS "\\p{N}" REST))
        return "qwen2";
    if (tkc_str_is(v->regex, WORDS "\\p{N}{1,3}" REST))
        return "llama-bpe";
    return !v->regex.data && v->use_regex ? "gpt-2" : NULL;
#undef WORDS
#undef REST
}

/* ---- files ---- */

static tinkc_str read_text(vocab *v, const char *folder, const char *name)
{
    const char *path = tkc_path_join(v->arena, folder, name, v->err);
    tinkc_bytes bytes = { 0 };
    if (path && tkc_is_file(path))
        bytes = tkc_read_file(v->arena, path, TEXT_MAX, v->err);
    return tkc_strn((const char *)bytes.data, bytes.data ? bytes.len : 0);
}

static void read_part(vocab *v, const tkc_tokenizer_json *file, tinkc_str part,
                      void (*read)(vocab *, tkc_json *))
{
    tkc_json j;
    tkc_tokenizer_part(file, part, &j);
    if (part.data)
        read(v, &j);
}

static bool read_tokenizer(vocab *v, const char *folder)
{
    static const tkc_tokenizer_reader reader = { add_token, add_merge, read_option, NULL };
    tkc_tokenizer_json file;
    tinkc_str text = read_text(v, folder, "tokenizer.json");
    if (!text.len)
        return tkc_failed(v->err)
                   ? false
                   : tkc_fail(v->err, TINKC_E_MODEL,
                              "%s is missing: GGUF files hold their tokenizer", v->path);
    tkc_json_open(&file.j, text, v->arena, v->err);
    file.j.code = TINKC_E_MODEL;
    if (tkc_tokenizer_read(&file, &reader, v) &&
        tkc_tokenizer_added(&file, v->arena, add_special, v)) {
        read_part(v, &file, file.pre_tokenizer, read_pre);
        read_part(v, &file, file.post_processor, read_post);
    }
    if (tkc_failed(v->err))
        return tkc_fail_before(v->err, "%s: ", v->path);
    if (!tkc_str_is(v->model, "BPE") || !v->byte_level || v->byte_fallback)
        return refuse(v, "tokenizer of this kind (byte-level BPE only)");
    return pre_name(v) ||
           refuse(v, "pre-tokenizer like this one (qwen2, llama-bpe and gpt-2 only)");
}

static void fill_gaps(vocab *v)
{
    for (size_t i = 0; i < v->size && !tkc_failed(v->err); i++)
        if (!v->tokens[i].data) {
            const char *text = tkc_arena_printf(v->arena, v->err, "[PAD%zu]", i);
            v->tokens[i] = tkc_str(text);
            v->types[i] = UNUSED;
        }
}

typedef struct specials { /* of tokenizer_config.json */
    tinkc_str bos, eos, pad, unk, template;
    int add_bos; /* -1 = it does not say */
} specials;

/* "text", or { "content": "text" }; null is none. */
static tinkc_str read_name(tkc_json *j)
{
    tinkc_str key, text = { 0 };
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_json_string(j);
    if (tkc_json_null(j) || !tkc_json_object(j))
        return text;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "content"))
            text = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    return text;
}

/* A text, or a list of { "name": ..., "template": ... } with one that is called "default". */
static tinkc_str read_template(tkc_json *j)
{
    tinkc_str key, chosen = { 0 };
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_json_string(j);
    if (tkc_json_null(j) || !tkc_json_array(j))
        return chosen;
    while (tkc_json_item(j)) {
        tinkc_str name = { 0 }, text = { 0 };
        tkc_json_object(j);
        while (tkc_json_key(j, &key)) {
            if (tkc_str_is(key, "name"))
                name = tkc_json_string(j);
            else if (tkc_str_is(key, "template"))
                text = tkc_json_string(j);
            else
                tkc_json_skip(j);
        }
        if (tkc_str_is(name, "default"))
            chosen = text;
    }
    return chosen;
}

static void read_specials(vocab *v, const char *folder, specials *s)
{
    tkc_json j;
    tinkc_str key, text = read_text(v, folder, "tokenizer_config.json");
    tinkc_str template = read_text(v, folder, "chat_template.jinja");
    *s = (specials){ .add_bos = -1 };
    if (text.len) {
        tkc_json_open(&j, text, v->arena, v->err);
        j.code = TINKC_E_MODEL;
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                tinkc_str *to = tkc_str_is(key, "bos_token")   ? &s->bos
                                : tkc_str_is(key, "eos_token") ? &s->eos
                                : tkc_str_is(key, "pad_token") ? &s->pad
                                : tkc_str_is(key, "unk_token") ? &s->unk
                                                               : NULL;
                int kind = tkc_json_peek(&j);
                if (to)
                    *to = read_name(&j);
                else if (tkc_str_is(key, "chat_template"))
                    s->template = read_template(&j);
                else if (tkc_str_is(key, "add_bos_token") &&
                         (kind == TKC_JSON_TRUE || kind == TKC_JSON_FALSE))
                    s->add_bos = tkc_json_bool(&j);
                else
                    tkc_json_skip(&j);
            }
        if (tkc_failed(v->err))
            tkc_fail_before(v->err, "%s/tokenizer_config.json: ", folder);
    }
    if (template.len)
        s->template = template;
}

/* ---- keys ---- */

static int64_t id_of(const vocab *v, tinkc_str text)
{
    uintptr_t id = text.len ? (uintptr_t)tkc_map_get(&v->ids, text) : 0;
    return (int64_t)id - 1;
}

static void add_id(tke_gguf *g, const vocab *v, const char *key, tinkc_str text, int64_t otherwise)
{
    int64_t id = id_of(v, text);
    id = id >= 0 ? id : otherwise;
    if (id >= 0)
        tke_gguf_u32(g, key, (uint64_t)id, v->err);
}

static void write_keys(tke_gguf *g, const vocab *v, const specials *s, const tke_config *c)
{
    tke_gguf_str(g, "tokenizer.ggml.model", tkc_str("gpt2"), v->err);
    tke_gguf_str(g, "tokenizer.ggml.pre", tkc_str(pre_name(v)), v->err);
    tke_gguf_strs(g, "tokenizer.ggml.tokens", v->tokens, v->size, v->err);
    tke_gguf_i32s(g, "tokenizer.ggml.token_type", v->types, v->size, v->err);
    tke_gguf_strs(g, "tokenizer.ggml.merges", v->merges, v->n_merges, v->err);
    add_id(g, v, "tokenizer.ggml.bos_token_id", s->bos.len ? s->bos : v->first, -1);
    add_id(g, v, "tokenizer.ggml.eos_token_id", s->eos, c->n_eos ? c->eos[0] : -1);
    add_id(g, v, "tokenizer.ggml.padding_token_id", s->pad, -1);
    add_id(g, v, "tokenizer.ggml.unknown_token_id", s->unk, -1);
    bool first = v->first.len > 0 && (!s->bos.len || tkc_str_eq(v->first, s->bos));
    tke_gguf_bool(g, "tokenizer.ggml.add_bos_token", first || s->add_bos == 1, v->err);
    if (s->template.len)
        tke_gguf_str(g, "tokenizer.chat_template", s->template, v->err);
}

bool tke_gguf_vocab(tke_gguf *g, const char *folder, const tke_config *c, tkc_arena *arena,
                    tinkc_error *err)
{
    specials s;
    vocab v = { .arena = arena, .err = err, .size = c->vocab, .use_regex = true };
    tkc_map_init(&v.ids, NULL);
    v.path = tkc_path_join(arena, folder, "tokenizer.json", err);
    v.tokens = tkc_arena_array(arena, c->vocab, sizeof *v.tokens, err);
    v.types = tkc_arena_array(arena, c->vocab, sizeof *v.types, err);
    if (!tkc_failed(err) && read_tokenizer(&v, folder)) {
        fill_gaps(&v);
        read_specials(&v, folder, &s);
        if (!tkc_failed(err))
            write_keys(g, &v, &s, c);
    }
    tkc_map_free(&v.ids);
    tkc_release(NULL, v.merges, v.cap_merges * sizeof *v.merges);
    return !tkc_failed(err);
}
