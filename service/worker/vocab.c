/* vocab.c - token ids to bytes. Added tokens are written as they are. May touch: the file it is
 * given. Must not: depend on the tokenizer layer, which a build may leave out.
 */
#include "service/worker/vocab.h"

#include "base/file.h"
#include "base/gguf_read.h"
#include "base/str.h"
#include "base/tokenizer_json.h"
#include "codec/gguf_tokenizer.h"
#include "codec/utf8.h"

enum { MAX_TOKENS = 4 << 20, MAX_FILE = 256 << 20 };

struct tke_vocab {
    const tinkc_allocator *a;
    tkc_arena arena;   /* the bytes */
    tinkc_str *tokens; /* by id */
    size_t n, cap;
    uint16_t letters[TKC_BYTE_LETTERS];
    const tkc_tokenizer_json *file; /* while it is read */
    tinkc_error *err;               /* likewise */
};

static bool put(tke_vocab *v, int64_t id, tinkc_str bytes)
{
    tinkc_error *err = v->err;
    /* Ids come from a model's file: one large number must not allocate gigabytes. */
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

/* A text with characters that stand for no byte is kept unchanged. */
static bool put_token(void *user, tinkc_str text, int64_t id)
{
    tke_vocab *v = user;
    unsigned char *out = tkc_arena_alloc(&v->arena, text.len ? text.len : 1, v->err);
    if (!out)
        return false;
    size_t n =
        v->file->pieces ? tkc_from_piece(text, out) : tkc_from_letters(v->letters, text, out);
    if (n == SIZE_MAX)
        memcpy(out, text.data, n = text.len);
    return put(v, id, tkc_strn((const char *)out, n));
}

static bool put_added(void *user, tkc_added_token token, int64_t id)
{
    return put(user, id, tkc_strn(token.text, token.len));
}

tke_vocab *tke_vocab_parse(const tinkc_allocator *a, tinkc_str json, tinkc_error *err)
{
    tke_vocab *v = tkc_zalloc(a, sizeof *v, err);
    if (!v)
        return NULL;
    static const tkc_tokenizer_reader reader = { .token = put_token };
    tkc_tokenizer_json file;
    tkc_arena scratch;
    v->a = a;
    v->err = err;
    v->file = &file;
    tkc_byte_letters(v->letters);
    tkc_arena_init(&v->arena, a, 0);
    tkc_arena_init(&scratch, a, 0);
    tkc_json_open(&file.j, json, &scratch, err);
    file.j.code = TINKC_E_TOKENIZER;
    if (tkc_tokenizer_read(&file, &reader, v))
        tkc_tokenizer_added(&file, &v->arena, put_added, v); /* they override the others */
    tkc_arena_free(&scratch);
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
