/* gunzip.c - reads gzip through libarchive; the only file of the engine that uses it.
 *
 * No client of ours sends gzip; others may. Archives are written without the library (tar.c).
 */
#include "service/handlers/gunzip.h"

#include <archive.h>
#include <archive_entry.h>
#include <pthread.h>
#include <stddef.h>

#include "base/dl.h"

typedef struct library {
    struct archive *(*read_new)(void);
    int (*filter_gzip)(struct archive *);
    int (*format_raw)(struct archive *);
    int (*open_memory)(struct archive *, const void *, size_t);
    int (*next_header)(struct archive *, struct archive_entry **);
    int (*filter_code)(struct archive *, int);
    la_int64_t (*filter_bytes)(struct archive *, int);
    la_ssize_t (*read_data)(struct archive *, void *, size_t);
    int (*end)(struct archive *);
} library;

static library la;

static const tkc_dl_symbol symbols[] = {
    { "archive_read_new", offsetof(library, read_new) },
    { "archive_read_support_filter_gzip", offsetof(library, filter_gzip) },
    { "archive_read_support_format_raw", offsetof(library, format_raw) },
    { "archive_read_open_memory", offsetof(library, open_memory) },
    { "archive_read_next_header", offsetof(library, next_header) },
    { "archive_filter_code", offsetof(library, filter_code) },
    { "archive_filter_bytes", offsetof(library, filter_bytes) },
    { "archive_read_data", offsetof(library, read_data) },
    { "archive_read_free", offsetof(library, end) },
    { NULL, 0 },
};

static bool load(tinkc_error *err)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;
    const char *const names[] = { "libarchive.so.13", "libarchive.so", NULL };
    pthread_mutex_lock(&once);
    if (!loaded)
        loaded = tkc_dl_load(names, symbols, &la, err);
    bool ok = loaded;
    pthread_mutex_unlock(&once);
    return ok;
}

/* The checksum of gzip, four bits at a time. */
static uint32_t crc32_of(const unsigned char *p, size_t len)
{
    static const uint32_t table[16] = { 0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                        0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c };
    uint32_t crc = ~0u;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        crc = table[crc & 15] ^ crc >> 4;
        crc = table[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

static uint32_t le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The library reads past the checksum and the length without a look. They are of the last member: of the
 * whole text where there is one only, which is what clients send. */
static bool check_end(tinkc_bytes packed, const unsigned char *text, size_t len, tinkc_error *err)
{
    uint32_t sum = packed.len >= 18 ? le32(packed.data + packed.len - 8) : 0;
    uint32_t size = packed.len >= 18 ? le32(packed.data + packed.len - 4) : UINT32_MAX;
    if (size <= len && crc32_of(text + (len - size), size) == sum)
        return true;
    return tkc_fail(err, TINKC_E_UNPROCESSABLE, "gzip: the checksum or the length does not match");
}

bool tke_gunzip(tinkc_bytes packed, size_t max, tkc_buf *out, tinkc_error *err)
{
    enum { CHUNK = 1 << 16 };
    struct archive_entry *entry;
    const size_t before = out->len;
    if (!load(err))
        return false;
    struct archive *a = la.read_new();
    if (!a)
        return tkc_fail_memory(err);
    /* What it does not take for gzip, the library would pass on as it is. */
    bool ok = la.filter_gzip(a) == ARCHIVE_OK && la.format_raw(a) == ARCHIVE_OK &&
              la.open_memory(a, packed.data, packed.len) == ARCHIVE_OK &&
              la.next_header(a, &entry) == ARCHIVE_OK &&
              la.filter_code(a, 0) == ARCHIVE_FILTER_GZIP;
    if (!ok)
        tkc_fail(err, TINKC_E_UNPROCESSABLE, "not gzip");
    while (ok) {
        char *room = tkc_buf_room(out, CHUNK, err);
        la_ssize_t n = room ? la.read_data(a, room, CHUNK) : -1;
        if (n <= 0) {
            if (n < 0)
                ok = tkc_fail(err, TINKC_E_UNPROCESSABLE, "damaged or cut off gzip");
            break;
        }
        out->len += (size_t)n;
        /* While it grows, not at the end: a small body may unpack to any size. */
        if (out->len > max) {
            ok = tkc_fail(err, TINKC_E_UNPROCESSABLE, "more than %zu bytes", max);
            err->cause = TINKC_E_TOO_LARGE;
        }
    }
    /* The library ends at the first byte after a member that does not begin another one. */
    if (ok && la.filter_bytes(a, -1) != (la_int64_t)packed.len)
        ok = tkc_fail(err, TINKC_E_UNPROCESSABLE, "bytes after the end of the gzip data");
    if (ok)
        ok = check_end(packed, (const unsigned char *)out->data + before, out->len - before, err);
    la.end(a);
    return ok;
}
