/* safetensors.c - reads and writes tensor files.
 *
 * May touch: files. Must not: trust a header. The whole table is checked before the first tensor
 * is handed out, so later code may use n_bytes and dims as they are.
 */
#include "model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/platform.h"
#include "base/str.h"

enum { HEADER_MAX = 100 * 1000 * 1000, DATA_ALIGN = 64, ROOM_FROM = 1 << 20 };

static const struct {
    const char *name;
    size_t size;
} dtypes[TKE_FILE_DTYPES] = {
    [TKE_FILE_F32] = { "F32", 4 },         [TKE_FILE_BF16] = { "BF16", 2 },
    [TKE_FILE_F16] = { "F16", 2 },         [TKE_FILE_F64] = { "F64", 8 },
    [TKE_FILE_I64] = { "I64", 8 },         [TKE_FILE_I32] = { "I32", 4 },
    [TKE_FILE_I16] = { "I16", 2 },         [TKE_FILE_I8] = { "I8", 1 },
    [TKE_FILE_U64] = { "U64", 8 },         [TKE_FILE_U32] = { "U32", 4 },
    [TKE_FILE_U16] = { "U16", 2 },         [TKE_FILE_U8] = { "U8", 1 },
    [TKE_FILE_BOOL] = { "BOOL", 1 },       [TKE_FILE_F8_E4M3] = { "F8_E4M3", 1 },
    [TKE_FILE_F8_E5M2] = { "F8_E5M2", 1 },
};

size_t tke_file_dtype_size(int dtype)
{
    return dtype >= 0 && dtype < TKE_FILE_DTYPES ? dtypes[dtype].size : 0;
}

const char *tke_file_dtype_name(int dtype)
{
    return dtype >= 0 && dtype < TKE_FILE_DTYPES ? dtypes[dtype].name : "unknown";
}

static int dtype_of(tinkc_str name)
{
    for (int i = 0; i < TKE_FILE_DTYPES; i++)
        if (tkc_str_is(name, dtypes[i].name))
            return i;
    return -1;
}

/* ---- reading ---- */

typedef struct reader {
    tke_tensor_file *file;
    const char *what;
    tinkc_bytes data; /* behind the header */
    tkc_json json;
    size_t cap;
    tinkc_error *err;
} reader;

static bool bad(reader *r, const char *name, const char *fault)
{
    return tkc_fail(r->err, TINKC_E_MODEL, "%s: tensor '%.100s': %s", r->what, name, fault);
}

static bool read_shape(reader *r, tke_file_tensor *t)
{
    tkc_json *j = &r->json;
    if (!tkc_json_array(j))
        return false;
    while (tkc_json_item(j)) {
        int64_t dim = tkc_json_i64(j);
        if (tkc_failed(r->err))
            return false;
        if (t->n_dims == TKE_MAX_DIMS)
            return bad(r, t->name, "more than 8 dimensions");
        if (dim < 0)
            return bad(r, t->name, "a negative dimension");
        t->dims[t->n_dims++] = dim;
    }
    return !tkc_failed(r->err);
}

static bool read_offsets(reader *r, int64_t *begin, int64_t *end)
{
    tkc_json *j = &r->json;
    size_t n = 0;
    if (!tkc_json_array(j))
        return false;
    while (tkc_json_item(j)) {
        int64_t value = tkc_json_i64(j);
        if (n < 2)
            *(n == 0 ? begin : end) = value;
        n++;
    }
    if (!tkc_failed(r->err) && n != 2)
        return tkc_json_fail(j, "data_offsets must be two numbers");
    return !tkc_failed(r->err);
}

/* Checks the header's numbers against each other and the file's length. */
static bool check_tensor(reader *r, tke_file_tensor *t, int64_t begin, int64_t end)
{
    size_t bytes = tke_file_dtype_size(t->dtype);
    for (int32_t i = 0; i < t->n_dims; i++)
        if (!tkc_mul_size(bytes, (size_t)t->dims[i], &bytes))
            return bad(r, t->name, "its shape overflows");
    if (begin < 0 || end < begin || (uint64_t)end > r->data.len)
        return bad(r, t->name, "its data lie outside the file");
    if ((size_t)(end - begin) != bytes)
        return bad(r, t->name, "its shape and its data differ in size");
    if ((size_t)begin % tke_file_dtype_size(t->dtype) != 0)
        return bad(r, t->name, "its data are not aligned");
    t->data = r->data.data + begin;
    t->n_bytes = bytes;
    assert(t->data + t->n_bytes <= r->data.data + r->data.len);
    return true;
}

static bool read_tensor(reader *r, tinkc_str key)
{
    tke_tensor_file *f = r->file;
    tke_file_tensor t = { .dtype = -1 };
    int64_t begin = -1, end = -1;
    bool has_shape = false;
    tinkc_str field;

    if (memchr(key.data, 0, key.len))
        return tkc_json_fail(&r->json, "a tensor name with a zero byte");
    t.name = tkc_arena_str(&f->arena, key, r->err);
    if (!t.name || !tkc_json_object(&r->json))
        return false;
    while (tkc_json_key(&r->json, &field)) {
        if (tkc_str_is(field, "dtype")) {
            t.dtype = dtype_of(tkc_json_string(&r->json));
            if (t.dtype < 0 && !tkc_failed(r->err))
                return bad(r, t.name, "an unknown dtype");
        } else if (tkc_str_is(field, "shape") && !has_shape) {
            has_shape = true;
            if (!read_shape(r, &t))
                return false;
        } else if (tkc_str_is(field, "data_offsets")) {
            if (!read_offsets(r, &begin, &end))
                return false;
        } else {
            tkc_json_skip(&r->json);
        }
    }
    if (tkc_failed(r->err))
        return false;
    if (t.dtype < 0 || !has_shape || begin < 0)
        return bad(r, t.name, "dtype, shape or data_offsets are missing");
    if (!check_tensor(r, &t, begin, end))
        return false;
    tke_file_tensor *grown =
        tkc_grow(NULL, f->tensors, &r->cap, f->n_tensors + 1, sizeof *grown, r->err);
    if (!grown)
        return false;
    f->tensors = grown;
    f->tensors[f->n_tensors++] = t;
    return true;
}

static int by_place(const void *a, const void *b)
{
    const tke_file_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

/* Tensors must cover the data exactly: no byte twice, none left over. */
static bool check_cover(reader *r)
{
    tke_tensor_file *f = r->file;
    const unsigned char *at = r->data.data;
    if (f->n_tensors)
        qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_place);
    for (size_t i = 0; i < f->n_tensors; i++) {
        if (f->tensors[i].data < at)
            return bad(r, f->tensors[i].name, "its data overlap another tensor's");
        if (f->tensors[i].data > at)
            return bad(r, f->tensors[i].name, "a hole lies before its data");
        at += f->tensors[i].n_bytes;
    }
    assert(at <= r->data.data + r->data.len);
    if (at != r->data.data + r->data.len)
        return tkc_fail(r->err, TINKC_E_MODEL, "%s: bytes behind the last tensor", r->what);
    return true;
}

static bool index_names(reader *r)
{
    tke_tensor_file *f = r->file;
    for (size_t i = 0; i < f->n_tensors; i++) {
        tke_file_tensor *t = &f->tensors[i];
        if (tkc_map_has(&f->names, tkc_str(t->name)))
            return bad(r, t->name, "the name occurs twice");
        if (!tkc_map_set(&f->names, tkc_str(t->name), t, NULL, r->err))
            return false;
    }
    return true;
}

static bool read_header(reader *r, tinkc_str header)
{
    tinkc_str key;
    tkc_json_open(&r->json, header, &r->file->arena, r->err);
    r->json.code = TINKC_E_MODEL;
    if (!tkc_json_object(&r->json))
        return false;
    while (tkc_json_key(&r->json, &key)) {
        if (tkc_str_is(key, "__metadata__"))
            tkc_json_skip(&r->json);
        else if (!read_tensor(r, key))
            return false;
    }
    return tkc_json_close(&r->json) && !tkc_failed(r->err);
}

/* Puts the file's name before a message of the JSON reader. */
static void name_file(tinkc_error *err, const char *what)
{
    char text[sizeof err->message];
    if (strncmp(err->message, what, strlen(what)) == 0)
        return;
    snprintf(text, sizeof text, "%.200s: %.180s", what, err->message);
    memcpy(err->message, text, sizeof text);
}

bool tke_tensor_file_read(tke_tensor_file *f, tinkc_bytes bytes, const char *what, tinkc_error *err)
{
    uint64_t len = 0;
    tkc_mapping keep = f->mapping;
    *f = (tke_tensor_file){ .mapping = keep };
    tkc_arena_init(&f->arena, NULL, 0);
    tkc_map_init(&f->names, NULL);
    if (tkc_failed(err))
        return false;
    if (bytes.len < 8)
        return tkc_fail(err, TINKC_E_MODEL, "%s: too short for a tensor file", what);
    for (int i = 0; i < 8; i++)
        len |= (uint64_t)bytes.data[i] << (8 * i);
    if (len > HEADER_MAX || len > bytes.len - 8)
        return tkc_fail(err, TINKC_E_MODEL, "%s: the header does not fit the file", what);
    if (len == 0 || bytes.data[8] != '{')
        return tkc_fail(err, TINKC_E_MODEL, "%s: the header is not an object", what);

    assert(!f->tensors && !f->n_tensors);
    reader r = { .file = f, .what = what, .err = err };
    r.data = (tinkc_bytes){ bytes.data + 8 + len, bytes.len - 8 - (size_t)len };
    bool ok = read_header(&r, tkc_strn((const char *)bytes.data + 8, (size_t)len)) &&
              check_cover(&r) && index_names(&r);
    if (!ok) {
        name_file(err, what);
        f->mapping = (tkc_mapping){ 0 };
        tke_tensor_file_close(f);
        f->mapping = keep;
    }
    return ok;
}

bool tke_tensor_file_open(tke_tensor_file *f, const char *path, tinkc_error *err)
{
    *f = (tke_tensor_file){ 0 };
    if (tkc_failed(err) || !tkc_map_file(path, &f->mapping, err))
        return false;
    tinkc_bytes bytes = { f->mapping.data, f->mapping.len };
    if (tke_tensor_file_read(f, bytes, path, err))
        return true;
    tke_tensor_file_close(f);
    return false;
}

void tke_tensor_file_close(tke_tensor_file *f)
{
    tkc_release(NULL, f->tensors, 0);
    tkc_map_free(&f->names);
    tkc_arena_free(&f->arena);
    if (f->mapping.data)
        tkc_unmap_file(&f->mapping);
    *f = (tke_tensor_file){ 0 };
}

const tke_file_tensor *tke_tensor_file_find(const tke_tensor_file *f, const char *name)
{
    return tkc_map_get(&f->names, tkc_str(name));
}

size_t tke_tensor_count(const tke_file_tensor *t)
{
    assert(t->dtype >= 0 && t->dtype < TKE_FILE_DTYPES);
    return t->n_bytes / tke_file_dtype_size(t->dtype);
}

bool tke_tensor_is(const tke_file_tensor *t, int32_t n_dims, int64_t d0, int64_t d1)
{
    assert(n_dims >= 0 && n_dims <= 2); /* more dimensions nobody asks for */
    return t->n_dims == n_dims && (n_dims < 1 || t->dims[0] == d0) &&
           (n_dims < 2 || t->dims[1] == d1);
}

/* ---- writing ---- */

static int by_size_and_name(const void *a, const void *b)
{
    const tke_file_tensor *x = a, *y = b;
    size_t sx = tke_file_dtype_size(x->dtype), sy = tke_file_dtype_size(y->dtype);
    if (sx != sy)
        return sx > sy ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void write_metadata(tkc_jsonw *w, const char *const *pairs)
{
    if (!pairs || !pairs[0])
        return;
    tkc_jsonw_key(w, "__metadata__");
    tkc_jsonw_object(w);
    for (size_t i = 0; pairs[i]; i += 2) {
        tkc_jsonw_key(w, pairs[i]);
        tkc_jsonw_cstr(w, pairs[i + 1]);
    }
    tkc_jsonw_end(w);
}

static bool write_header(tkc_buf *out, const tke_file_tensor *sorted, size_t n,
                         const char *const *metadata, tinkc_error *err)
{
    tkc_jsonw w;
    int64_t at = 0;
    tkc_buf_add(out, "\0\0\0\0\0\0\0\0", 8, err);
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    write_metadata(&w, metadata);
    for (size_t i = 0; i < n; i++) {
        const tke_file_tensor *t = &sorted[i];
        assert(t->name && t->n_dims >= 0 && t->n_dims <= TKE_MAX_DIMS);
        assert((size_t)at % tke_file_dtype_size(t->dtype) == 0); /* larger elements come first */
        tkc_jsonw_key(&w, t->name);
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "dtype");
        tkc_jsonw_cstr(&w, tke_file_dtype_name(t->dtype));
        tkc_jsonw_key(&w, "shape");
        tkc_jsonw_i64s(&w, t->dims, (size_t)t->n_dims);
        tkc_jsonw_key(&w, "data_offsets");
        tkc_jsonw_i64s(&w, (int64_t[]){ at, at + (int64_t)t->n_bytes }, 2);
        tkc_jsonw_end(&w);
        at += (int64_t)t->n_bytes;
    }
    tkc_jsonw_end(&w);
    while (!tkc_failed(err) && out->len % DATA_ALIGN)
        tkc_buf_char(out, ' ', err);
    if (tkc_failed(err))
        return false;
    assert(out->len % DATA_ALIGN == 0);
    uint64_t len = out->len - 8;
    for (int i = 0; i < 8; i++)
        out->data[i] = (char)(len >> (8 * i));
    return true;
}

static bool give_up(tke_tensor_writer *w, const char *path)
{
    tkc_fail_errno(w->err, "%s", path);
    return false;
}

/* Room for the whole file is taken now where the file system can: a full disk is noticed before the work. */
static bool open_file(tke_tensor_writer *w, const tkc_buf *header, uint32_t mode)
{
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, (mode_t)mode);
    if (w->fd < 0)
        return give_up(w, w->temporary);
    int why = w->end > ROOM_FROM ? tkc_reserve_file(w->fd, w->end) : 0;
    errno = why;
    if (why)
        return give_up(w, w->path);
    return tkc_write_all(w->fd, header->data, header->len) || give_up(w, w->path);
}

static void place(tke_tensor_writer *w, size_t from)
{
    w->end = from;
    for (size_t i = 0; i < w->n; i++) {
        w->offsets[i] = w->end;
        w->end += w->sorted[i].n_bytes;
    }
}

bool tke_tensor_writer_open(tke_tensor_writer *w, const char *path, const tke_file_tensor *tensors,
                            size_t n, const char *const *metadata, uint32_t mode, tinkc_error *err)
{
    tkc_buf header;
    *w = (tke_tensor_writer){ .fd = -1, .n = n, .err = err };
    if (tkc_failed(err))
        return false;
    tkc_arena_init(&w->arena, NULL, 0);
    tkc_buf_init(&header, NULL, HEADER_MAX);
    w->sorted = tkc_arena_array(&w->arena, n ? n : 1, sizeof *w->sorted, err);
    w->offsets = tkc_arena_array(&w->arena, n ? n : 1, sizeof *w->offsets, err);
    w->path = tkc_arena_cstr(&w->arena, path, err);
    w->temporary = tkc_arena_printf(&w->arena, err, "%s.tmp", path);
    bool ok = !tkc_failed(err);
    if (ok && n) {
        memcpy(w->sorted, tensors, n * sizeof *w->sorted);
        qsort(w->sorted, n, sizeof *w->sorted, by_size_and_name);
    }
    ok = ok && write_header(&header, w->sorted, n, metadata, err);
    if (ok)
        place(w, header.len);
    ok = ok && open_file(w, &header, mode);
    tkc_buf_free(&header);
    if (!ok)
        tke_tensor_writer_close(w);
    return ok;
}

bool tke_tensor_writer_put(tke_tensor_writer *w, const tke_file_tensor *of, const void *data)
{
    const tke_file_tensor *t =
        w->n ? bsearch(of, w->sorted, w->n, sizeof *t, by_size_and_name) : NULL;
    assert(t);
    if (lseek(w->fd, (off_t)w->offsets[t - w->sorted], SEEK_SET) < 0 ||
        !tkc_write_all(w->fd, data, t->n_bytes))
        return give_up(w, w->path);
    return true;
}

bool tke_tensor_writer_commit(tke_tensor_writer *w)
{
    if (tkc_sync_file(w->fd) != 0 || rename(w->temporary, w->path) != 0)
        return give_up(w, w->path);
    close(w->fd);
    w->fd = -1;
    return tkc_sync_parent(w->path, w->err);
}

void tke_tensor_writer_close(tke_tensor_writer *w)
{
    if (w->fd >= 0) {
        close(w->fd);
        (void)unlink(w->temporary);
    }
    tkc_arena_free(&w->arena);
    w->fd = -1;
}

bool tke_tensor_file_write(const char *path, const tke_file_tensor *tensors, size_t n,
                           const char *const *metadata, uint32_t mode, tinkc_error *err)
{
    tke_tensor_writer w;
    if (!tke_tensor_writer_open(&w, path, tensors, n, metadata, mode, err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) /* in the order of the file */
        ok = tke_tensor_writer_put(&w, &w.sorted[i], w.sorted[i].data);
    ok = ok && tke_tensor_writer_commit(&w);
    tke_tensor_writer_close(&w);
    return ok;
}
