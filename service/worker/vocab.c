/* vocab.c - token ids to bytes.
 *
 * Byte-level vocabularies write each byte as a printable character: printable bytes stand for
 * themselves, the other 68 are mapped to U+0100 and up, in order. Added tokens
 * are written as they are. May touch: the file it is given. Must not: depend on the tokenizer
 * layer, which a build may leave out.
 */
#include "service/worker/vocab.h"

#include "base/file.h"
#include "base/gguf_read.h"
#include "base/json_read.h"
#include "base/str.h"
#include "codec/gguf_tokenizer.h"
#include "codec/utf8.h"

enum { MAX_TOKENS = 4 << 20, MAX_FILE = 256 << 20 };

struct tke_vocab {
    const tinkc_allocator *a;
    tkc_arena arena;   /* the bytes */
    tinkc_str *tokens; /* by id */
    size_t n, cap;
};

static bool stands_for_itself(uint32_t c)
{
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

/* The byte that a character of the byte alphabet stands for, or -1. */
static int byte_of(uint32_t c)
{
    if (c < 256)
        return stands_for_itself(c) ? (int)c : -1;
    uint32_t nth = c - 256;
    for (uint32_t b = 0; b < 256; b++)
        if (!stands_for_itself(b) && nth-- == 0)
            return (int)b;
    return -1;
}

/* The JSON reader has checked that the text is valid UTF-8. */
static uint32_t next_char(tinkc_str s, size_t *at)
{
    const unsigned char *p = (const unsigned char *)s.data + *at;
    size_t n = *p < 0x80 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
    uint32_t c = n == 1 ? *p : *p & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n && *at + i < s.len; i++)
        c = c << 6 | (p[i] & 0x3Fu);
    *at += n;
    return c;
}

/* "Ġthe" -> " the". A text with other characters is kept unchanged. */
static tinkc_str to_bytes(tke_vocab *v, tinkc_str text, tinkc_error *err)
{
    char *out = tkc_arena_alloc(&v->arena, text.len ? text.len : 1, err);
    size_t n = 0;
    if (!out)
        return (tinkc_str){ 0 };
    for (size_t at = 0; at < text.len;) {
        int byte = byte_of(next_char(text, &at));
        if (byte < 0) {
            memcpy(out, text.data, text.len);
            return tkc_strn(out, text.len);
        }
        out[n++] = (char)byte;
    }
    return tkc_strn(out, n);
}

static bool put(tke_vocab *v, int64_t id, tinkc_str bytes, tinkc_error *err)
{
    if (id < 0 || id >= MAX_TOKENS)
        return tkc_fail(err, TINKC_E_TOKENIZER, "tokenizer.json: token id %lld is out of range",
                        (long long)id);
    size_t need = (size_t)id + 1;
    if (need > v->n) {
        tinkc_str *grown = tkc_grow(v->a, v->tokens, &v->cap, need, sizeof *grown, err);
        if (!grown)
            return false;
        v->tokens = grown;
        memset(v->tokens + v->n, 0, (need - v->n) * sizeof *grown);
        v->n = need;
    }
    v->tokens[id] = bytes;
    return true;
}

static void read_added(tke_vocab *v, tkc_json *j)
{
    tinkc_str key;
    if (!tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        int64_t id = -1;
        tinkc_str content = { 0 };
        if (!tkc_json_object(j))
            return;
        while (tkc_json_key(j, &key)) {
            if (tkc_str_is(key, "id"))
                id = tkc_json_i64(j);
            else if (tkc_str_is(key, "content"))
                content = tkc_json_string(j);
            else
                tkc_json_skip(j);
        }
        if (tkc_failed(j->err))
            return;
        char *copy = tkc_arena_str(&v->arena, content, j->err);
        if (copy)
            put(v, id, tkc_strn(copy, content.len), j->err);
    }
}

static void read_model(tke_vocab *v, tkc_json *j)
{
    tinkc_str key, token;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (!tkc_str_is(key, "vocab") || tkc_json_peek(j) != TKC_JSON_OBJECT) {
            tkc_json_skip(j);
            continue;
        }
        tkc_json_object(j);
        while (tkc_json_key(j, &token)) {
            tinkc_str bytes = to_bytes(v, token, j->err);
            int64_t id = tkc_json_i64(j);
            if (!tkc_failed(j->err))
                put(v, id, bytes, j->err);
        }
    }
}

/* Reads the members of this name and skips the others. */
static void read_members(tke_vocab *v, tinkc_str json, const char *name,
                         void (*read)(tke_vocab *, tkc_json *), tinkc_error *err)
{
    tkc_arena scratch;
    tkc_json j;
    tinkc_str key;
    tkc_arena_init(&scratch, v->a, 0);
    tkc_json_open(&j, json, &scratch, err);
    j.code = TINKC_E_TOKENIZER;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, name))
                read(v, &j);
            else
                tkc_json_skip(&j);
        }
    tkc_json_close(&j);
    tkc_arena_free(&scratch);
}

tke_vocab *tke_vocab_parse(const tinkc_allocator *a, tinkc_str json, tinkc_error *err)
{
    tke_vocab *v = tkc_zalloc(a, sizeof *v, err);
    if (!v)
        return NULL;
    v->a = a;
    tkc_arena_init(&v->arena, a, 0);
    read_members(v, json, "model", read_model, err);
    read_members(v, json, "added_tokens", read_added, err); /* they override the others */
    if (tkc_failed(err)) {
        tke_vocab_free(v);
        return NULL;
    }
    return v;
}

/* Of a GGUF file. */
static tke_vocab *open_gguf(const tinkc_allocator *a, const char *path, tinkc_error *err)
{
    tkc_mapping map = { 0 };
    tkc_gguf g = { 0 };
    tkc_buf text;
    tke_vocab *v = NULL;
    tkc_buf_init(&text, a, MAX_FILE);
    if (tkc_map_file(path, &map, err) &&
        tkc_gguf_read(&g, (tinkc_bytes){ map.data, map.len }, path, err) &&
        tkc_gguf_tokenizer_json(&g, &text, err))
        v = tke_vocab_parse(a, tkc_strn(text.data, text.len), err);
    tkc_gguf_free(&g);
    tkc_buf_free(&text);
    if (map.data)
        tkc_unmap_file(&map);
    return v;
}

tke_vocab *tke_vocab_open(const tinkc_allocator *a, const char *folder, tinkc_error *err)
{
    tkc_arena arena;
    tke_vocab *v = NULL;
    if (tkc_gguf_named(folder) && tkc_is_file(folder))
        return open_gguf(a, folder, err);
    tkc_arena_init(&arena, a, 0);
    char *path = tkc_path_join(&arena, folder, "tokenizer.json", err);
    if (path && tkc_is_file(path)) {
        tinkc_bytes text = tkc_read_file(&arena, path, MAX_FILE, err);
        if (!tkc_failed(err))
            v = tke_vocab_parse(a, tkc_strn((const char *)text.data, text.len), err);
    }
    tkc_arena_free(&arena);
    return v;
}

void tke_vocab_free(tke_vocab *v)
{
    if (!v)
        return;
    tkc_arena_free(&v->arena);
    tkc_release(v->a, v->tokens, v->cap * sizeof *v->tokens);
    tkc_release(v->a, v, sizeof *v);
}

tinkc_str tke_vocab_bytes(const tke_vocab *v, int32_t token)
{
    return v && token >= 0 && (size_t)token < v->n ? v->tokens[token] : (tinkc_str){ 0 };
}

size_t tke_vocab_token_bytes(void *vocab, int32_t token, const char **bytes)
{
    tinkc_str s = tke_vocab_bytes(vocab, token);
    *bytes = s.data;
    return s.len;
}

size_t tke_utf8_whole(tinkc_str s)
{
    const unsigned char *p = (const unsigned char *)s.data;
    /* An incomplete character has at most three bytes. */
    for (size_t back = 1; back <= 3 && back <= s.len; back++) {
        unsigned char c = p[s.len - back];
        if ((c & 0xC0) == 0x80)
            continue;
        bool cut = c >= 0xF0 || (c >= 0xE0 && back < 3) || (c >= 0xC2 && back < 2);
        return cut ? s.len - back : s.len;
    }
    return s.len;
}

bool tke_utf8_clean(tkc_buf *out, tinkc_str s, tinkc_error *err)
{
    for (size_t at = 0; at < s.len && !tkc_failed(err);) {
        size_t good = tkc_utf8_prefix(s.data + at, s.len - at);
        tkc_buf_add(out, s.data + at, good, err);
        at += good;
        if (at < s.len) {
            tkc_buf_cstr(out, "\xEF\xBF\xBD", err);
            at++;
        }
    }
    return !tkc_failed(err);
}
