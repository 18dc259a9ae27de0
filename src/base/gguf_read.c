/* gguf_read.c - the header of a GGUF file.
 *
 *     "GGUF" u32 version u64 n_tensors u64 n_keys
 *     n_keys    times: string key, u32 kind, value
 *     n_tensors times: string name, u32 n_dims, u64 dims (fastest first), u32 type, u64 offset
 *     padding to the alignment, then the tensors' bytes
 *
 * Strings are a u64 length and bytes; an array is u32 kind, u64 n, items. All is little-endian. May
 * touch: the bytes it is given. Must not: trust a count or a length in them.
 */
#include "base/gguf_read.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/str.h"

enum {
    LEAST_VERSION = 2,
    MOST_VERSION = 3,
    MOST_KEYS = 1 << 16,
    MOST_TENSORS = 1 << 18,
    LONGEST_NAME = 1 << 10,
    ALIGN = 32,
    MOST_ALIGN = 1 << 16
};

typedef struct reader {
    tkc_gguf *g;
    const unsigned char *at, *end;
    const unsigned char *begin;
    tinkc_error *err;
} reader;

static bool bad(reader *r, const char *fault)
{
    return tkc_fail(r->err, TINKC_E_MODEL, "%s: %s", r->g->what, fault);
}

static bool bad_key(const reader *r, const char *key, const char *fault)
{
    return tkc_fail(r->err, TINKC_E_MODEL, "%s: key '%.100s': %s", r->g->what, key, fault);
}

static bool bad_tensor(const reader *r, const char *name, const char *fault)
{
    return tkc_fail(r->err, TINKC_E_MODEL, "%s: tensor '%.100s': %s", r->g->what, name, fault);
}

/* ---- bytes ---- */

static uint64_t number_at(const unsigned char *b, size_t bytes)
{
    uint64_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n |= (uint64_t)b[i] << (8 * i);
    return n;
}

static size_t bytes_left(const reader *r)
{
    return (size_t)(r->end - r->at);
}

static bool take_number(reader *r, size_t bytes, uint64_t *out)
{
    *out = 0;
    if (bytes_left(r) < bytes)
        return bad(r, "the header is cut off");
    *out = number_at(r->at, bytes);
    r->at += bytes;
    return true;
}

static bool take_u32(reader *r, uint32_t *out)
{
    uint64_t n;
    bool ok = take_number(r, 4, &n);
    *out = (uint32_t)n;
    return ok;
}

/* A name: kept as text, because it is looked up and shown. */
static const char *take_name(reader *r, const char *of)
{
    uint64_t len;
    if (!take_number(r, 8, &len))
        return NULL;
    if (len == 0 || len > LONGEST_NAME || len > bytes_left(r) || memchr(r->at, 0, (size_t)len)) {
        tkc_fail(r->err, TINKC_E_MODEL,
                 "%s: the name of a %s is empty, too long, cut off or not a text", r->g->what, of);
        return NULL;
    }
    const char *name =
        tkc_arena_str(&r->g->arena, tkc_strn((const char *)r->at, (size_t)len), r->err);
    r->at += len;
    return name;
}

/* ---- values ---- */

/* Bytes of a value of fixed size; 0 = string, array or unknown. */
static size_t kind_size(uint32_t kind)
{
    static const unsigned char sizes[TKC_GGUF_KINDS] = {
        [TKC_GGUF_U8] = 1,  [TKC_GGUF_I8] = 1,  [TKC_GGUF_U16] = 2, [TKC_GGUF_I16] = 2,
        [TKC_GGUF_U32] = 4, [TKC_GGUF_I32] = 4, [TKC_GGUF_F32] = 4, [TKC_GGUF_BOOL] = 1,
        [TKC_GGUF_U64] = 8, [TKC_GGUF_I64] = 8, [TKC_GGUF_F64] = 8,
    };
    return kind < TKC_GGUF_KINDS ? sizes[kind] : 0;
}

static bool skip_strings(reader *r, const char *key, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = bytes_left(r) < 8 ? 0 : number_at(r->at, 8);
        if (bytes_left(r) < 8 || len > bytes_left(r) - 8)
            return bad_key(r, key, "a text is cut off");
        r->at += 8 + len;
    }
    return true;
}

static bool skip_items(reader *r, const char *key, uint32_t kind, uint64_t n)
{
    size_t size = kind_size(kind);
    if (kind == TKC_GGUF_STRING)
        return skip_strings(r, key, n);
    if (kind == TKC_GGUF_ARRAY)
        return bad_key(r, key, "arrays of arrays are not supported");
    if (!size)
        return bad_key(r, key, "its kind is unknown");
    if (n > bytes_left(r) / size)
        return bad_key(r, key, "its value is cut off");
    r->at += n * size;
    return true;
}

static bool take_value(reader *r, const char *key, tkc_gguf_value *v)
{
    if (!take_u32(r, &v->kind))
        return false;
    v->n = 1;
    v->item = v->kind;
    if (v->kind == TKC_GGUF_ARRAY && (!take_u32(r, &v->item) || !take_number(r, 8, &v->n)))
        return false;
    v->data = r->at;
    bool ok = skip_items(r, key, v->item, v->n);
    v->bytes = (size_t)(r->at - v->data);
    return ok;
}

static bool take_key(reader *r)
{
    tkc_gguf_value *v = tkc_arena_array(&r->g->arena, 1, sizeof *v, r->err);
    const char *key = v ? take_name(r, "key") : NULL;
    if (!key || !take_value(r, key, v))
        return false;
    if (tkc_map_has(&r->g->keys, tkc_str(key)))
        return bad_key(r, key, "it occurs twice");
    return tkc_map_set(&r->g->keys, tkc_str(key), v, NULL, r->err);
}

/* ---- tensors ---- */

static bool take_tensor(reader *r, tkc_gguf_tensor *t, uint64_t align)
{
    uint32_t n_dims;
    t->name = take_name(r, "tensor");
    if (!t->name || !take_u32(r, &n_dims))
        return false;
    if (n_dims > TKC_GGUF_MAX_DIMS)
        return bad_tensor(r, t->name, "more than 4 dimensions");
    t->n_dims = (int32_t)n_dims;
    uint64_t count = 1;
    for (int i = 0; i < TKC_GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && !take_number(r, 8, &t->dims[i]))
            return false;
        if (t->dims[i] == 0 || t->dims[i] > INT64_MAX / count)
            return bad_tensor(r, t->name, "its shape is empty or overflows");
        count *= t->dims[i];
    }
    if (!take_u32(r, &t->type) || !take_number(r, 8, &t->offset))
        return false;
    if (t->offset % align)
        return bad_tensor(r, t->name, "its data are not aligned");
    if (tkc_map_has(&r->g->names, tkc_str(t->name)))
        return bad_tensor(r, t->name, "the name occurs twice");
    return tkc_map_set(&r->g->names, tkc_str(t->name), t, NULL, r->err);
}

static bool take_tensors(reader *r, uint64_t n, uint64_t align)
{
    tkc_gguf *g = r->g;
    g->tensors = tkc_arena_array(&g->arena, n ? (size_t)n : 1, sizeof *g->tensors, r->err);
    for (; g->tensors && g->n_tensors < n; g->n_tensors++)
        if (!take_tensor(r, &g->tensors[g->n_tensors], align))
            return false;
    return g->tensors != NULL;
}

/* ---- the whole ---- */

static bool check_counts(reader *r, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    if (version < LEAST_VERSION || version > MOST_VERSION)
        return tkc_fail(r->err, TINKC_E_MODEL,
                        "%s: GGUF version %u is not supported; versions 2 and 3 are%s", r->g->what,
                        (unsigned)version, version > 0xffff ? " (the file may be big-endian)" : "");
    if (n_keys > MOST_KEYS || n_keys > bytes_left(r) / 13)
        return tkc_fail(r->err, TINKC_E_MODEL,
                        "%s: %llu keys do not fit the file or the limit of %d", r->g->what,
                        (unsigned long long)n_keys, MOST_KEYS);
    if (n_tensors > MOST_TENSORS || n_tensors > bytes_left(r) / 25)
        return tkc_fail(r->err, TINKC_E_MODEL,
                        "%s: %llu tensors do not fit the file or the limit of %d", r->g->what,
                        (unsigned long long)n_tensors, MOST_TENSORS);
    return true;
}

static bool read_all(reader *r)
{
    uint32_t version;
    uint64_t n_tensors, n_keys;
    if (!take_u32(r, &version) || !take_number(r, 8, &n_tensors) || !take_number(r, 8, &n_keys) ||
        !check_counts(r, version, n_tensors, n_keys))
        return false;
    for (uint64_t i = 0; i < n_keys; i++)
        if (!take_key(r))
            return false;
    uint64_t align = tkc_gguf_u64(r->g, "general.alignment", ALIGN, r->err);
    if (tkc_failed(r->err))
        return false;
    if (align < 8 || align > MOST_ALIGN || (align & (align - 1)))
        return bad_key(r, "general.alignment", "not a power of two from 8 to 65536");
    if (!take_tensors(r, n_tensors, align))
        return false;
    size_t used = (size_t)(r->at - r->begin), padding = (size_t)(-used & (align - 1));
    if (r->g->n_tensors && padding > bytes_left(r))
        return bad(r, "the tensors' data are missing");
    if (r->g->n_tensors)
        r->g->data = (tinkc_bytes){ r->at + padding, bytes_left(r) - padding };
    return true;
}

bool tkc_gguf_named(const char *path)
{
    return tkc_ends_with(tkc_str(path), ".gguf");
}

bool tkc_gguf_read(tkc_gguf *g, tinkc_bytes bytes, const char *what, tinkc_error *err)
{
    *g = (tkc_gguf){ .what = what };
    tkc_arena_init(&g->arena, NULL, 0);
    tkc_map_init(&g->keys, NULL);
    tkc_map_init(&g->names, NULL);
    if (tkc_failed(err))
        return false;
    reader r = { .g = g, .err = err, .begin = bytes.data };
    bool ok = (bytes.len >= 4 && memcmp(bytes.data, "GGUF", 4) == 0) ||
              bad(&r, "not a GGUF file: it does not begin with GGUF");
    if (ok) {
        r.at = bytes.data + 4;
        r.end = bytes.data + bytes.len;
        ok = read_all(&r);
    }
    if (!ok)
        tkc_gguf_free(g);
    return ok;
}

void tkc_gguf_free(tkc_gguf *g)
{
    tkc_map_free(&g->keys);
    tkc_map_free(&g->names);
    tkc_arena_free(&g->arena);
    *g = (tkc_gguf){ 0 };
}

/* ---- keys ---- */

const tkc_gguf_value *tkc_gguf_find(const tkc_gguf *g, const char *key)
{
    return tkc_map_get(&g->keys, tkc_str(key));
}

const tkc_gguf_tensor *tkc_gguf_tensor_find(const tkc_gguf *g, const char *name)
{
    return tkc_map_get(&g->names, tkc_str(name));
}

static void wrong_kind(const tkc_gguf *g, const char *key, const char *wanted, tinkc_error *err)
{
    tkc_fail(err, TINKC_E_MODEL, "%s: key '%.100s' is not %s", g->what, key, wanted);
}

static bool is_signed(uint32_t kind)
{
    return kind == TKC_GGUF_I8 || kind == TKC_GGUF_I16 || kind == TKC_GGUF_I32 ||
           kind == TKC_GGUF_I64;
}

static bool is_integer(uint32_t kind)
{
    return is_signed(kind) || kind == TKC_GGUF_U8 || kind == TKC_GGUF_U16 || kind == TKC_GGUF_U32 ||
           kind == TKC_GGUF_U64;
}

uint64_t tkc_gguf_u64(const tkc_gguf *g, const char *key, uint64_t otherwise, tinkc_error *err)
{
    const tkc_gguf_value *v = tkc_gguf_find(g, key);
    if (!v || tkc_failed(err))
        return otherwise;
    size_t size = kind_size(v->kind);
    uint64_t n = is_integer(v->kind) ? number_at(v->data, size) : 0;
    if (!is_integer(v->kind) || (is_signed(v->kind) && n >> (8 * size - 1))) {
        wrong_kind(g, key, "a whole number of at least 0", err);
        return otherwise;
    }
    return n;
}

double tkc_gguf_double(const tkc_gguf *g, const char *key, double otherwise, tinkc_error *err)
{
    const tkc_gguf_value *v = tkc_gguf_find(g, key);
    float narrow;
    double wide;
    if (!v || tkc_failed(err))
        return otherwise;
    if (v->kind == TKC_GGUF_F32) {
        memcpy(&narrow, v->data, sizeof narrow);
        return (double)narrow;
    }
    if (v->kind == TKC_GGUF_F64) {
        memcpy(&wide, v->data, sizeof wide);
        return wide;
    }
    if (is_integer(v->kind))
        return (double)tkc_gguf_u64(g, key, 0, err);
    wrong_kind(g, key, "a number", err);
    return otherwise;
}

bool tkc_gguf_bool(const tkc_gguf *g, const char *key, bool otherwise, tinkc_error *err)
{
    const tkc_gguf_value *v = tkc_gguf_find(g, key);
    if (!v || tkc_failed(err))
        return otherwise;
    if (v->kind != TKC_GGUF_BOOL)
        wrong_kind(g, key, "true or false", err);
    return v->kind == TKC_GGUF_BOOL ? *v->data != 0 : otherwise;
}

/* The text at *at, which lies inside the file: the reader has walked over it. */
static tinkc_str next_text(const unsigned char **at)
{
    uint64_t len = number_at(*at, 8);
    const char *text = (const char *)*at + 8;
    *at += 8 + len;
    return tkc_strn(text, (size_t)len);
}

tinkc_str tkc_gguf_str(const tkc_gguf *g, const char *key, tinkc_error *err)
{
    const tkc_gguf_value *v = tkc_gguf_find(g, key);
    tinkc_str none = { 0 };
    if (!v || tkc_failed(err))
        return none;
    if (v->kind != TKC_GGUF_STRING) {
        wrong_kind(g, key, "a text", err);
        return none;
    }
    const unsigned char *at = v->data;
    return next_text(&at);
}

tinkc_str *tkc_gguf_strs(tkc_gguf *g, const char *key, size_t *n, tinkc_error *err)
{
    const tkc_gguf_value *v = tkc_gguf_find(g, key);
    *n = 0;
    if (!v || tkc_failed(err))
        return NULL;
    if (v->kind != TKC_GGUF_ARRAY || v->item != TKC_GGUF_STRING) {
        wrong_kind(g, key, "an array of texts", err);
        return NULL;
    }
    tinkc_str *list = tkc_arena_array(&g->arena, v->n ? (size_t)v->n : 1, sizeof *list, err);
    const unsigned char *at = v->data;
    for (size_t i = 0; list && i < v->n; i++)
        list[i] = next_text(&at);
    *n = list ? (size_t)v->n : 0;
    return list;
}

/* The bits of an array's 32-bit items, if they are of either kind. */
static uint32_t *words_of(tkc_gguf *g, const char *key, uint32_t kind, uint32_t other,
                          const char *wanted, size_t *n, tinkc_error *err)
{
    const tkc_gguf_value *v = tkc_gguf_find(g, key);
    *n = 0;
    if (!v || tkc_failed(err))
        return NULL;
    if (v->kind != TKC_GGUF_ARRAY || (v->item != kind && v->item != other)) {
        wrong_kind(g, key, wanted, err);
        return NULL;
    }
    uint32_t *list = tkc_arena_array(&g->arena, v->n ? (size_t)v->n : 1, sizeof *list, err);
    for (size_t i = 0; list && i < v->n; i++)
        list[i] = (uint32_t)number_at(v->data + 4 * i, 4);
    *n = list ? (size_t)v->n : 0;
    return list;
}

int32_t *tkc_gguf_i32s(tkc_gguf *g, const char *key, size_t *n, tinkc_error *err)
{
    return (int32_t *)words_of(g, key, TKC_GGUF_I32, TKC_GGUF_U32, "an array of 32-bit integers", n,
                               err);
}

float *tkc_gguf_f32s(tkc_gguf *g, const char *key, size_t *n, tinkc_error *err)
{
    return (float *)words_of(g, key, TKC_GGUF_F32, TKC_GGUF_F32, "an array of 32-bit numbers", n,
                             err);
}
