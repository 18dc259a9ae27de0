/* gguf.c - the GGUF container: keys, tensor table, rows of numbers.
 *
 *     "GGUF" u32 version u64 n_tensors u64 n_keys
 *     n_keys    times: string key, u32 type, value
 *     n_tensors times: string name, u32 n_dims, u64 dims (fastest first), u32 type, u64 offset
 *     padding to 32, then the tensors' bytes, each padded to 32
 *
 * Strings are a u64 length and bytes; all numbers are little-endian. May touch: the file it writes.
 */
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/file.h"
#include "base/platform.h"
#include "base/str.h"
#include "math/format.h"

enum { ALIGN = 32, VERSION = 3, COLS_MAX = 1 << 24, ROOM_FROM = 1 << 20 };
enum { KEY_U32 = 4, KEY_I32 = 5, KEY_F32 = 6, KEY_BOOL = 7, KEY_STRING = 8, KEY_ARRAY = 9 };

void tke_gguf_init(tke_gguf *g)
{
    *g = (tke_gguf){ .fd = -1 };
    tkc_buf_init(&g->keys, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&g->tensors, NULL, TKC_BUF_NO_MAX);
}

void tke_gguf_end(tke_gguf *g)
{
    if (g->fd >= 0) {
        close(g->fd);
        (void)unlink(g->temp);
    }
    g->fd = -1;
    tkc_buf_free(&g->keys);
    tkc_buf_free(&g->tensors);
}

/* ---- bytes ---- */

static void put(tkc_buf *b, uint64_t value, size_t bytes, tinkc_error *err)
{
    unsigned char le[8];
    for (size_t i = 0; i < bytes; i++)
        le[i] = (unsigned char)(value >> (8 * i));
    tkc_buf_add(b, le, bytes, err);
}

static void put_text(tkc_buf *b, tinkc_str s, tinkc_error *err)
{
    put(b, s.len, 8, err);
    tkc_buf_add(b, s.len ? s.data : "", s.len, err);
}

static void begin_key(tke_gguf *g, const char *key, uint32_t type, tinkc_error *err)
{
    put_text(&g->keys, tkc_str(key), err);
    put(&g->keys, type, 4, err);
    g->n_keys++;
}

void tke_gguf_u32(tke_gguf *g, const char *key, uint64_t value, tinkc_error *err)
{
    if (value > UINT32_MAX)
        tkc_fail(err, TINKC_E_UNSUPPORTED, "%s is too large for GGUF", key);
    begin_key(g, key, KEY_U32, err);
    put(&g->keys, value, 4, err);
}

void tke_gguf_f32(tke_gguf *g, const char *key, double value, tinkc_error *err)
{
    begin_key(g, key, KEY_F32, err);
    put(&g->keys, tke_f32_to_bits((float)value), 4, err);
}

void tke_gguf_bool(tke_gguf *g, const char *key, bool value, tinkc_error *err)
{
    begin_key(g, key, KEY_BOOL, err);
    put(&g->keys, value, 1, err);
}

void tke_gguf_str(tke_gguf *g, const char *key, tinkc_str value, tinkc_error *err)
{
    begin_key(g, key, KEY_STRING, err);
    put_text(&g->keys, value, err);
}

void tke_gguf_strs(tke_gguf *g, const char *key, const tinkc_str *values, size_t n,
                   tinkc_error *err)
{
    begin_key(g, key, KEY_ARRAY, err);
    put(&g->keys, KEY_STRING, 4, err);
    put(&g->keys, n, 8, err);
    for (size_t i = 0; i < n; i++)
        put_text(&g->keys, values[i], err);
}

void tke_gguf_i32s(tke_gguf *g, const char *key, const int32_t *values, size_t n, tinkc_error *err)
{
    begin_key(g, key, KEY_ARRAY, err);
    put(&g->keys, KEY_I32, 4, err);
    put(&g->keys, n, 8, err);
    for (size_t i = 0; i < n; i++)
        put(&g->keys, (uint32_t)values[i], 4, err);
}

void tke_gguf_value(tke_gguf *g, const char *key, const tkc_gguf_value *v, tinkc_error *err)
{
    begin_key(g, key, v->kind, err);
    if (v->kind == KEY_ARRAY) {
        put(&g->keys, v->item, 4, err);
        put(&g->keys, v->n, 8, err);
    }
    tkc_buf_add(&g->keys, v->data, v->bytes, err);
}

static uint64_t row_bytes(int type, size_t cols)
{
    return tke_format_bytes(tke_format_of_gguf((uint32_t)type), cols);
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

void tke_gguf_tensor(tke_gguf *g, const char *name, int type, size_t n, size_t rows, size_t cols,
                     tinkc_error *err)
{
    put_text(&g->tensors, tkc_str(name), err);
    put(&g->tensors, n ? 3 : rows ? 2 : 1, 4, err);
    put(&g->tensors, cols, 8, err);
    if (rows)
        put(&g->tensors, rows, 8, err);
    if (n)
        put(&g->tensors, n, 8, err);
    put(&g->tensors, (uint64_t)type, 4, err);
    put(&g->tensors, g->data_bytes, 8, err);
    g->data_bytes += padded(row_bytes(type, cols) * (rows ? rows : 1) * (n ? n : 1));
    g->n_tensors++;
}

/* ---- the file ---- */

static bool write_bytes(tke_gguf *g, const void *bytes, size_t len, tinkc_error *err)
{
    return tkc_write_all(g->fd, bytes, len) || tkc_fail_errno(err, "%s", g->temp);
}

/* A full disk is noticed before the work, where that can be. */
static bool take_room(tke_gguf *g, uint64_t bytes, tinkc_error *err)
{
    errno = bytes > ROOM_FROM ? tkc_reserve_file(g->fd, (size_t)bytes) : 0;
    return !errno || tkc_fail_errno(err, "%s", g->path);
}

bool tke_gguf_open(tke_gguf *g, const char *path, tkc_arena *arena, tinkc_error *err)
{
    static const char zeros[ALIGN] = { 0 };
    tkc_buf head;
    tkc_buf_init(&head, NULL, 64);
    g->path = path;
    g->temp = tkc_arena_printf(arena, err, "%s.partial", path);
    tkc_buf_add(&head, "GGUF", 4, err);
    put(&head, VERSION, 4, err);
    put(&head, g->n_tensors, 8, err);
    put(&head, g->n_keys, 8, err);
    if (!tkc_failed(err)) {
        g->fd = open(g->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (g->fd < 0)
            tkc_fail_errno(err, "%s", g->temp);
    }
    uint64_t len = head.len + g->keys.len + g->tensors.len;
    bool ok = g->fd >= 0 && take_room(g, padded(len) + g->data_bytes, err) && write_bytes(g, head.data, head.len, err) &&
              write_bytes(g, g->keys.data, g->keys.len, err) &&
              write_bytes(g, g->tensors.data, g->tensors.len, err) &&
              write_bytes(g, zeros, (size_t)(padded(len) - len), err);
    tkc_buf_free(&head);
    return ok;
}

bool tke_gguf_raw(tke_gguf *g, const void *bytes, size_t n, tinkc_error *err)
{
    g->written += n;
    return write_bytes(g, bytes, n, err);
}

bool tke_gguf_pad(tke_gguf *g, tinkc_error *err)
{
    static const char zeros[ALIGN] = { 0 };
    size_t more = (size_t)(padded(g->written) - g->written);
    g->written = 0;
    return write_bytes(g, zeros, more, err);
}

bool tke_gguf_close(tke_gguf *g, tinkc_error *err)
{
    if (tkc_sync_file(g->fd) != 0 || rename(g->temp, g->path) != 0)
        return tkc_fail_errno(err, "%s", g->path);
    close(g->fd);
    g->fd = -1;
    return tkc_sync_parent(g->path, err);
}

/* ---- rows ---- */

/* n: whole blocks. False: a number does not fit. */
static bool convert(const tke_format *f, const float *x, size_t n, unsigned char *out)
{
    bool fits = true;
    float unused;
    for (size_t i = 0; i < n; i++)
        fits = fits && isfinite(x[i]);
    for (size_t i = 0; f->pack && fits && i < n; i += (size_t)f->block)
        fits = f->pack(x + i, out + tke_format_bytes(f, i), &unused);
    if (f->pack || !fits)
        return fits;
    tke_narrow(tke_format_dtype(f), x, n, out);
    for (size_t i = 0; f->gguf == TKE_GGUF_F16 && i < n; i++)
        fits = fits && (out[2 * i + 1] & 0x7cu) != 0x7cu; /* not infinite */
    return fits;
}

bool tke_gguf_row(tke_gguf *g, int type, const float *row, size_t cols, const char *name,
                  tinkc_error *err)
{
    enum { PIECE = 1024 }; /* a multiple of the block */
    unsigned char out[PIECE * 4];
    for (size_t at = 0; at < cols; at += PIECE) {
        size_t n = cols - at < PIECE ? cols - at : PIECE;
        if (!convert(tke_format_of_gguf((uint32_t)type), row + at, n, out))
            return tkc_fail(err, TINKC_E_MODEL,
                            "%s has numbers that this type cannot hold: choose another (bf16)",
                            name);
        if (!write_bytes(g, out, (size_t)row_bytes(type, n), err))
            return false;
    }
    g->written += row_bytes(type, cols);
    return true;
}
