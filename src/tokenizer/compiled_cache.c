/* compiled_cache.c - the compiled form of a vocabulary: a block of tables in a file.
 *
 * Lies in the user's cache folder and nowhere else: a model's folder may come from a hub, and a block
 * is taken as it is. It is named by the digest of the source's full path, and believed while the source
 * has the size and the change time that it was built from (which, unlike the time of modification, no
 * archive can set), or else the same SHA-256. File and folder must be ours, and writable by no one
 * else. Written to a temporary file and renamed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/user_cache.h"
#include "tokenizer/open_with.h"
#include "tokenizer/load.h"

enum { PATH_MAX_LEN = 4096 };

bool tkc_origin_of(const char *source, tkc_origin *out)
{
    struct stat st;
    if (stat(source, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *out = (tkc_origin){ .size = (uint64_t)st.st_size,
                         .ctime_ns = (uint64_t)st.st_ctim.tv_sec * 1000000000u +
                                     (uint64_t)st.st_ctim.tv_nsec };
    return true;
}

void tkc_origin_digest(const void *data, size_t len, unsigned char out[TKC_ORIGIN_DIGEST])
{
    tkc_digest d;
    tkc_sha256_init(&d);
    tkc_digest_add(&d, data, len);
    (void)tkc_digest_bytes(&d, out);
}

const char *tkc_user_cache(tkc_arena *arena, tinkc_error *err)
{
    return tkc_cache_folder(arena, "tokenizers", err);
}

/* FOLDER/DIGEST.tkc, where DIGEST is of the source's full path. */
static bool in_user_cache(const char *source, const char *folder, char out[PATH_MAX_LEN])
{
    char full[PATH_MAX_LEN], hex[TKC_SHA256_HEX];
    tkc_digest d;
    if (!folder[0] || strlen(folder) >= PATH_MAX_LEN - TKC_SHA256_HEX - 8 ||
        !realpath(source, full))
        return false;
    tkc_sha256_init(&d);
    tkc_digest_add(&d, full, strlen(full));
    tkc_digest_hex(&d, hex);
    int n = snprintf(out, PATH_MAX_LEN, "%s/%s.tkc", folder, hex);
    return n > 0 && n < PATH_MAX_LEN;
}

static bool is_fresh(const char *source, const tkc_origin *built, const tkc_origin *now)
{
    tinkc_error err = { 0 };
    tkc_mapping map;
    if (built->size != now->size)
        return false;
    if (built->ctime_ns == now->ctime_ns)
        return true;
    unsigned char digest[TKC_SHA256_BYTES];
    if (!tkc_map_file(source, &map, &err))
        return false;
    tkc_origin_digest(map.data, map.len, digest);
    tkc_unmap_file(&map);
    return memcmp(digest, built->digest, sizeof digest) == 0;
}

bool tkc_cache_read(const char *source, const char *user_cache, tkc_tables *out)
{
    char path[PATH_MAX_LEN];
    tkc_origin now;
    tinkc_error err = { 0 };
    tkc_mapping map;
    if (!tkc_origin_of(source, &now) || !in_user_cache(source, user_cache, path) ||
        !tkc_cache_trusted(path, user_cache) || !tkc_map_file(path, &map, &err))
        return false;
    if (!tkc_tables_attach(out, map.data, map.len, true, &err)) {
        tkc_unmap_file(&map);
        return false;
    }
    if (is_fresh(source, &out->origin, &now))
        return true;
    tkc_tables_free(out);
    return false;
}

void tkc_cache_write(const char *source, const char *user_cache, const tkc_tables *tables)
{
    char path[PATH_MAX_LEN];
    tinkc_error err = { 0 };
    if (in_user_cache(source, user_cache, path) && tkc_make_dirs(user_cache, &err))
        (void)tkc_write_file(path, tables->block, tables->block_len, 0600, &err);
}
