/* download_age.c - one file in the age format becomes another one. Waits for the disk; never on the I/O thread. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/platform.h"
#include "client/download/download.h"
#include "codec/age.h"

enum { SEALED = TKC_AGE_CHUNK + TKC_AGE_TAG };

static bool write_all(int fd, const unsigned char *bytes, size_t len, const char *path, tinkc_error *err)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, bytes + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return tkc_fail_errno(err, "%s", path);
        at += (size_t)n;
    }
    return true;
}

typedef struct decryption {
    tkc_age_stream stream;
    tkc_stopper *stop;
    tkc_digest *digest;
    int64_t size;
} decryption;

static bool write_chunks(decryption *d, tinkc_bytes sealed, int fd, const char *path, tinkc_error *err)
{
    unsigned char *text = tkc_alloc(NULL, SEALED, err);
    bool ok = text != NULL, last = false;
    for (size_t at = 0; ok && !last; at += SEALED) {
        size_t left = sealed.len - at, n = left < SEALED ? left : SEALED;
        last = n == left;
        if (tkc_stopper_is_stopped(d->stop))
            ok = tkc_fail(err, TINKC_E_CANCELLED, "stopped");
        ok = ok && tkc_age_unseal(&d->stream, sealed.data + at, n, last, text, err) &&
             write_all(fd, text, n - TKC_AGE_TAG, path, err);
        if (!ok)
            break;
        tkc_digest_add(d->digest, text, n - TKC_AGE_TAG);
        d->size += (int64_t)(n - TKC_AGE_TAG);
    }
    tkc_release(NULL, text, SEALED);
    return ok;
}

static bool write_decrypted(decryption *d, tinkc_bytes sealed, const char *to, tinkc_error *err)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", to);
    bool ok = write_chunks(d, sealed, fd, to, err) &&
              (tkc_sync_file(fd) == 0 || tkc_fail_errno(err, "%s", to));
    if (close(fd) != 0 && ok)
        ok = tkc_fail_errno(err, "%s", to);
    return ok;
}

/* What went wrong, and with which file. */
static bool name_file(const char *path, const tinkc_error *why, tinkc_error *err)
{
    const char *slash = strrchr(path, '/');
    if (!tkc_failed(why))
        return true;
    return tkc_fail(err, why->code, "%.100s: %.300s", slash ? slash + 1 : path, why->message);
}

bool tkc_age_decrypt(const char *from, const char *to, const char *const *identities, tkc_stopper *stop,
                     tkc_digest *digest, int64_t *size, tinkc_error *err)
{
    tinkc_error why = { 0 };
    tkc_mapping map = { 0 };
    decryption d = { .stop = stop, .digest = digest };
    tkc_sha256_init(digest);
    if (!tkc_map_file(from, &map, err))
        return false;
    tinkc_bytes file = { map.data, map.len };
    size_t at = tkc_age_open(&d.stream, file, identities, &why);
    if (at)
        (void)write_decrypted(&d, (tinkc_bytes){ file.data + at, file.len - at }, to, &why);
    tkc_age_close(&d.stream);
    tkc_unmap_file(&map);
    *size = d.size;
    return name_file(from, &why, err);
}
