/* unrecorded.c - records in a preallocated file. Touches only STORE/unrecorded.
 *
 * A record is 56 bytes and ends with a CRC-32C of the rest; all zero means none. Records are
 * appended; a torn one fails its check and is skipped.
 */
#include "service/store/unrecorded.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/platform.h"

enum { FILE_BYTES = 1 << 16, RECORD = 56 };

static int open_file(tke_store *s, int flags)
{
    tkc_arena arena;
    tinkc_error ignored = { 0 };
    if (!tke_store_durable(s))
        return -1;
    tkc_arena_init(&arena, NULL, 0);
    char *path = tkc_path_join(&arena, tke_store_folder(s), "unrecorded", &ignored);
    int fd = path ? open(path, flags | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && flags & O_CREAT)
        (void)tkc_sync_parent(path, &ignored); /* or a power loss takes the file with its name */
    tkc_arena_free(&arena);
    return fd;
}

tke_hash128 tke_unrecorded_run(const char *run_id)
{
    tke_hasher h;
    tke_hash_begin(&h);
    tke_hash_str(&h, run_id);
    return tke_hash_end(&h);
}

static void put(unsigned char out[RECORD], const tke_unrecorded *r)
{
    int32_t kind = r->kind, failed = r->failed;
    memset(out, 0, RECORD);
    memcpy(out, &r->run, 16);
    memcpy(out + 16, &r->seq, 8);
    memcpy(out + 24, &kind, 4);
    memcpy(out + 28, &failed, 4);
    memcpy(out + 32, &r->hash, 16);
    memcpy(out + 48, &r->epoch, 4);
    uint32_t crc = tke_crc32c(0, out, RECORD - 4);
    memcpy(out + RECORD - 4, &crc, 4);
}

static bool take(const unsigned char in[RECORD], tke_unrecorded *r)
{
    uint32_t crc;
    int32_t failed;
    memcpy(&crc, in + RECORD - 4, 4);
    memcpy(&r->run, in, 16);
    memcpy(&r->seq, in + 16, 8);
    memcpy(&r->kind, in + 24, 4);
    memcpy(&failed, in + 28, 4);
    memcpy(&r->hash, in + 32, 16);
    memcpy(&r->epoch, in + 48, 4);
    r->failed = failed != 0;
    return r->seq > 0 && crc == tke_crc32c(0, in, RECORD - 4);
}

bool tke_unrecorded_add(tke_store *s, const tke_unrecorded *r)
{
    unsigned char record[RECORD], there[RECORD];
    int fd = open_file(s, O_RDWR);
    bool done = false;
    put(record, r);
    /* Free places only, never beyond the end: the file was filled in advance, so this write needs
     * no space on the full disk. */
    for (off_t at = 0; fd >= 0 && at + RECORD <= FILE_BYTES; at += RECORD) {
        static const unsigned char none[RECORD];
        if (pread(fd, there, RECORD, at) != RECORD)
            break;
        if (memcmp(there, none, RECORD) != 0)
            continue;
        done = pwrite(fd, record, RECORD, at) == RECORD && tkc_sync_data(fd) == 0;
        break;
    }
    if (fd >= 0)
        (void)close(fd);
    return done;
}

bool tke_unrecorded_each(tke_store *s, tke_unrecorded_fn *fn, void *user, tinkc_error *err)
{
    unsigned char record[RECORD];
    tke_unrecorded r;
    int fd = open_file(s, O_RDONLY);
    for (off_t at = 0; fd >= 0 && at + RECORD <= FILE_BYTES && !tkc_failed(err); at += RECORD)
        if (pread(fd, record, RECORD, at) == RECORD && take(record, &r) && !fn(&r, user, err))
            break;
    if (fd >= 0)
        (void)close(fd);
    return !tkc_failed(err);
}

void tke_unrecorded_clear(tke_store *s)
{
    static const unsigned char zeros[4096];
    int fd = open_file(s, O_RDWR | O_CREAT);
    bool ok = fd >= 0;
    for (off_t at = 0; ok && at < FILE_BYTES; at += (off_t)sizeof zeros)
        ok = pwrite(fd, zeros, sizeof zeros, at) == (ssize_t)sizeof zeros;
    if (ok)
        (void)tkc_sync_data(fd);
    if (fd >= 0)
        (void)close(fd);
}
