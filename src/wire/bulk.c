/* bulk.c - shared parts of the protobuf readers and writers. May touch: what it was given. */
#include "wire/bulk.h"

#include <assert.h>
#include <string.h>

#include "base/map.h"
#include "base/str.h"
#include "codec/utf8.h"

bool tkc_bulk_fail(const tkc_bulk *b, const char *why)
{
    assert(b->arena && b->err && b->code != TINKC_OK);
    return tkc_fail(b->err, b->code, "%s: %s", b->what, why);
}

bool tkc_bulk_done(const tkc_bulk *b, const tkc_pb *p)
{
    if (p->bad)
        tkc_bulk_fail(b, "malformed protobuf");
    return !tkc_failed(b->err);
}

const char *tkc_bulk_str(const tkc_bulk *b, tinkc_bytes bytes)
{
    if (!tkc_utf8_valid(bytes.data, bytes.len) ||
        (bytes.len && memchr(bytes.data, '\0', bytes.len))) {
        tkc_bulk_fail(b, "text that is not UTF-8 or has a NUL in it");
        return NULL;
    }
    return tkc_arena_str(b->arena, tkc_strn((const char *)bytes.data, bytes.len), b->err);
}

const void *tkc_bulk_view(const tkc_bulk *b, tinkc_bytes bytes, size_t align)
{
    static const uint64_t nothing = 0;
    assert(align > 0 && align <= sizeof nothing && (align & (align - 1)) == 0);
    if (bytes.len == 0)
        return &nothing;
    if ((uintptr_t)bytes.data % align == 0)
        return bytes.data;
    void *copy = tkc_arena_alloc(b->arena, bytes.len, b->err);
    if (copy)
        memcpy(copy, bytes.data, bytes.len);
    return copy;
}

bool tkc_bulk_i32s(const tkc_bulk *b, tinkc_bytes bytes, tinkc_i32s *out)
{
    if (bytes.len % sizeof(int32_t) != 0)
        return tkc_bulk_fail(b, "an array of 32-bit numbers of odd length");
    *out = (tinkc_i32s){ tkc_bulk_view(b, bytes, sizeof(int32_t)), bytes.len / sizeof(int32_t) };
    return out->data != NULL;
}

bool tkc_bulk_f32s(const tkc_bulk *b, tinkc_bytes bytes, tinkc_f32s *out)
{
    if (bytes.len % sizeof(float) != 0)
        return tkc_bulk_fail(b, "an array of 32-bit numbers of odd length");
    *out = (tinkc_f32s){ tkc_bulk_view(b, bytes, sizeof(float)), bytes.len / sizeof(float) };
    return out->data != NULL;
}

size_t tkc_bulk_count(tinkc_bytes message, uint32_t field)
{
    tkc_pb p;
    size_t n = 0;
    tkc_pb_open(&p, message);
    while (tkc_pb_next(&p))
        n += tkc_pb_is(&p, field, TKC_PB_BYTES);
    return n;
}

/* Walks all values; stores them if `into` is given. False if a packed run is malformed. */
static bool walk_varints(tinkc_bytes message, uint32_t field, int64_t *into, size_t *n)
{
    tkc_pb p;
    uint64_t value;
    *n = 0;
    tkc_pb_open(&p, message);
    while (tkc_pb_next(&p)) {
        tinkc_bytes packed = { NULL, 0 };
        if (tkc_pb_is(&p, field, TKC_PB_BYTES)) {
            packed = p.bytes;
        } else if (tkc_pb_is(&p, field, TKC_PB_VARINT)) {
            if (into)
                into[*n] = (int64_t)p.number;
            ++*n;
        }
        while (packed.len) {
            if (!tkc_pb_varint(&packed, &value))
                return false;
            if (into)
                into[*n] = (int64_t)value;
            ++*n;
        }
    }
    return !p.bad;
}

bool tkc_bulk_varints(const tkc_bulk *b, tinkc_bytes message, uint32_t field, tinkc_i64s *out)
{
    size_t n;
    *out = (tinkc_i64s){ NULL, 0 };
    if (!walk_varints(message, field, NULL, &n))
        return tkc_bulk_fail(b, "malformed protobuf");
    if (n == 0)
        return true;
    int64_t *values = tkc_arena_array(b->arena, n, sizeof *values, b->err);
    if (!values)
        return false;
    const size_t counted = n;
    (void)walk_varints(message, field, values, &n);
    assert(n == counted); /* both walks see the same bytes */
    (void)counted;
    *out = (tinkc_i64s){ values, n };
    return true;
}

bool tkc_bulk_entry(const tkc_bulk *b, tinkc_bytes entry, const char **key, tkc_pb *value)
{
    tkc_pb p;
    tinkc_bytes name = { NULL, 0 };
    *value = (tkc_pb){ 0 };
    tkc_pb_open(&p, entry);
    while (tkc_pb_next(&p)) {
        if (tkc_pb_is(&p, 1, TKC_PB_BYTES))
            name = p.bytes;
        else if (p.field == 2)
            *value = p;
    }
    if (!tkc_bulk_done(b, &p))
        return false;
    *key = tkc_bulk_str(b, name);
    return *key != NULL;
}

typedef struct named_number {
    const char *name;
    double value;
} named_number;

static bool read_numbers(const tkc_bulk *b, tinkc_bytes message, uint32_t field,
                         named_number *items, size_t *n)
{
    tkc_pb p, value;
    *n = 0;
    tkc_pb_open(&p, message);
    while (tkc_pb_next(&p)) {
        if (!tkc_pb_is(&p, field, TKC_PB_BYTES))
            continue;
        named_number *item = &items[(*n)++];
        if (!tkc_bulk_entry(b, p.bytes, &item->name, &value))
            return false;
        if (tkc_pb_is(&value, 2, TKC_PB_FIXED64))
            memcpy(&item->value, &value.number, sizeof item->value);
    }
    return tkc_bulk_done(b, &p);
}

bool tkc_bulk_numbers(const tkc_bulk *b, tinkc_bytes message, uint32_t field, tkc_numbers *out)
{
    size_t n = tkc_bulk_count(message, field);
    const size_t most = n;
    named_number *items = tkc_arena_array(b->arena, n, sizeof *items, b->err);
    if (!items || !read_numbers(b, message, field, items, &n))
        return false;
    n = tkc_bulk_unique(b, items, n, sizeof *items);
    if (tkc_failed(b->err))
        return false;
    assert(n <= most);
    (void)most;
    const char **names = tkc_arena_array(b->arena, n, sizeof *names, b->err);
    double *values = tkc_arena_array(b->arena, n, sizeof *values, b->err);
    if (!names || !values)
        return false;
    for (size_t i = 0; i < n; i++) {
        names[i] = items[i].name;
        values[i] = items[i].value;
    }
    *out = (tkc_numbers){ n ? names : NULL, values, n };
    return true;
}

static const char *name_at(const void *items, size_t i, size_t size)
{
    const char *name;
    memcpy(&name, (const char *)items + i * size, sizeof name);
    assert(name);
    return name;
}

static bool comes_later(const void *items, size_t i, size_t n, size_t size)
{
    for (size_t k = i + 1; k < n; k++)
        if (strcmp(name_at(items, i, size), name_at(items, k, size)) == 0)
            return true;
    return false;
}

/* drop[i] = an equal name comes later. Few names by comparison, many by hashing. */
static bool find_repeats(const tkc_bulk *b, const void *items, size_t n, size_t size, bool *drop)
{
    enum { FEW = 16 };
    if (n <= FEW) {
        for (size_t i = 0; i < n; i++)
            drop[i] = comes_later(items, i, n, size);
        return true;
    }
    tkc_map seen;
    tkc_map_init(&seen, b->arena->a);
    for (size_t i = n; i-- > 0 && !tkc_failed(b->err);) {
        tinkc_str name = tkc_str(name_at(items, i, size));
        drop[i] = tkc_map_has(&seen, name);
        if (!drop[i])
            tkc_map_set(&seen, name, drop, NULL, b->err);
    }
    tkc_map_free(&seen);
    return !tkc_failed(b->err);
}

size_t tkc_bulk_unique(const tkc_bulk *b, void *items, size_t n, size_t size)
{
    assert(size >= sizeof(const char *)); /* an item begins with its name */
    bool *drop = tkc_arena_array(b->arena, n, sizeof *drop, b->err);
    if (!drop || !find_repeats(b, items, n, size, drop))
        return (size_t)-1;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!drop[i])
            memmove((char *)items + kept++ * size, (char *)items + i * size, size);
    return kept;
}

/* ---- writing ---- */

static size_t number_entry_size(const char *name)
{
    return tkc_pb_size_bytes(strlen(name)) + 1 + sizeof(double);
}

size_t tkc_bulk_numbers_size(const tkc_numbers *n)
{
    size_t size = 0;
    for (size_t i = 0; i < n->len; i++)
        size += tkc_pb_size_bytes(number_entry_size(n->names[i]));
    return size;
}

unsigned char *tkc_bulk_put_numbers(unsigned char *at, uint32_t field, const tkc_numbers *n)
{
    for (size_t i = 0; i < n->len; i++) {
        at = tkc_pb_put_head(at, field, number_entry_size(n->names[i]));
        at = tkc_pb_put_bytes(at, 1, n->names[i], strlen(n->names[i]));
        at = tkc_pb_put_tag(at, 2, TKC_PB_FIXED64);
        memcpy(at, &n->values[i], sizeof(double));
        at += sizeof(double);
    }
    return at;
}

static size_t varints_length(tinkc_i64s values)
{
    size_t len = 0;
    for (size_t i = 0; i < values.len; i++)
        len += tkc_pb_size_varint((uint64_t)values.data[i]);
    return len;
}

size_t tkc_bulk_varints_size(tinkc_i64s values)
{
    return values.len ? tkc_pb_size_bytes(varints_length(values)) : 0;
}

unsigned char *tkc_bulk_put_varints(unsigned char *at, uint32_t field, tinkc_i64s values)
{
    if (values.len == 0)
        return at;
    const size_t len = varints_length(values);
    at = tkc_pb_put_head(at, field, len);
    const unsigned char *from = at;
    for (size_t i = 0; i < values.len; i++)
        at = tkc_pb_put_varint(at, (uint64_t)values.data[i]);
    assert((size_t)(at - from) == len);
    (void)from;
    return at;
}

bool tkc_bulk_check_text(const char *text, const char *what, tinkc_error *err)
{
    if (!text)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is missing", what);
    if (!tkc_utf8_valid(text, strlen(text)))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is not UTF-8", what);
    return true;
}
