/* tar.h - sends a folder of a few files as a plain tar, or any range of it.
 *
 * Not written by libarchive because the layout of a ustar follows from the file sizes: the length
 * is known before the first byte, any range can be sent, and nothing is buffered.
 */
#ifndef TKE_SERVICE_TAR_H
#define TKE_SERVICE_TAR_H

#include "base/arena.h"

typedef struct tke_tar_file {
    const char *name;
    int64_t bytes;
} tke_tar_file;

enum { TKE_TAR_MAX = 8 };

typedef struct tke_tar {
    const char *folder;
    tke_tar_file files[TKE_TAR_MAX];
    size_t n_files;
    int64_t mtime;
    int64_t total; /* bytes of the whole archive */
} tke_tar;

/* Plans an archive of those `names` that exist in the folder. folder must outlive the tar. */
bool tke_tar_plan(tke_tar *, const char *folder, const char *const *names, tinkc_error *err);

/* Sends bytes [from, until) to `write`; false from it ends. Reads files as it goes. */
typedef bool tke_tar_write(void *user, const void *data, size_t len);
bool tke_tar_send(const tke_tar *, int64_t from, int64_t until, tke_tar_write *write, void *user,
                  tinkc_error *err);

#endif
