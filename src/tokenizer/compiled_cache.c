/* compiled_cache.c - the compiled form of a vocabulary: a block of tables in a file.
 *
 * Stored beside its source (tokenizer.json.tkc), or in the user's cache folder if the model's
 * folder is read-only or not the user's own: another user's, the system's, or a cache that other
 * programs manage. Written to a temporary file and renamed. Stale if the source's size has changed,
 * or its time and its contents have. Trusted only if owner and mode are right and it passes all
 * checks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "tokenizer/open_with.h"
#include "tokenizer/load.h"

enum { PATH_MAX_LEN = 4096 };

bool tkc_origin_of(const char *source, tkc_origin *out)
{
    struct stat st;
    if (stat(source, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *out =
        (tkc_origin){ (uint64_t)st.st_size,
                      (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec, 0 };
    return true;
}

static bool beside(const char *source, char out[PATH_MAX_LEN])
{
    int n = snprintf(out, PATH_MAX_LEN, "%s.tkc", source);
    return n > 0 && n < PATH_MAX_LEN;
}

const char *tkc_user_cache(tkc_arena *arena, tinkc_error *err)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        return tkc_arena_printf(arena, err, "%s/tinkc/tokenizers", xdg);
    if (home && home[0] == '/')
        return tkc_arena_printf(arena, err, "%s/.cache/tinkc/tokenizers", home);
    return "";
}

/* FOLDER/HASH.tkc, where HASH is of the source's full path. */
static bool in_user_cache(const char *source, const char *folder, char out[PATH_MAX_LEN])
{
    char full[PATH_MAX_LEN];
    if (!folder[0] || strlen(folder) >= PATH_MAX_LEN - 32 || !realpath(source, full))
        return false;
    int n = snprintf(out, PATH_MAX_LEN, "%s/%016llx.tkc", folder,
                     (unsigned long long)tkc_block_hash(full, strlen(full)));
    return n > 0 && n < PATH_MAX_LEN;
}

/* Owned by us or root, and writable by no one else: the checks of a block prevent wild reads, not
 * wrong tokens. */
static bool is_trusted(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
           (st.st_uid == geteuid() || st.st_uid == 0) && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static bool is_fresh(const char *source, const tkc_origin *built, const tkc_origin *now)
{
    tinkc_error err = { 0 };
    tkc_mapping map;
    if (built->size != now->size)
        return false;
    if (built->mtime_ns == now->mtime_ns)
        return true;
    if (!tkc_map_file(source, &map, &err))
        return false;
    bool same = tkc_block_hash(map.data, map.len) == built->hash;
    tkc_unmap_file(&map);
    return same;
}

static bool read_one(const char *path, const char *source, const tkc_origin *now, tkc_tables *out)
{
    tinkc_error err = { 0 };
    tkc_mapping map;
    if (!is_trusted(path) || !tkc_map_file(path, &map, &err))
        return false;
    if (!tkc_tables_attach(out, map.data, map.len, true, &err)) {
        tkc_unmap_file(&map);
        return false;
    }
    if (is_fresh(source, &out->origin, now))
        return true;
    tkc_tables_free(out);
    return false;
}

bool tkc_cache_read(const char *source, const char *user_cache, tkc_tables *out)
{
    char path[PATH_MAX_LEN];
    tkc_origin now;
    if (!tkc_origin_of(source, &now))
        return false;
    if (beside(source, path) && read_one(path, source, &now, out))
        return true;
    return in_user_cache(source, user_cache, path) && read_one(path, source, &now, out);
}

/* Installed by a package manager, which would not know about our file. */
static bool is_system_path(const char *source)
{
    char full[PATH_MAX_LEN];
    return realpath(source, full) &&
           (strncmp(full, "/usr/", 5) == 0 || strncmp(full, "/opt/", 5) == 0 ||
            strncmp(full, "/nix/", 5) == 0 || strncmp(full, "/gnu/", 5) == 0);
}

/* A read-only folder is left alone, even by root; so is one that is not the user's own. A link
 * means that the file is in a cache that another program manages. */
static bool may_write_beside(const char *source)
{
    char folder[PATH_MAX_LEN];
    struct stat st;
    if (lstat(source, &st) != 0 || !S_ISREG(st.st_mode) || is_system_path(source))
        return false;
    const char *slash = strrchr(source, '/');
    int n = slash ? snprintf(folder, sizeof folder, "%.*s", (int)(slash - source + 1), source)
                  : snprintf(folder, sizeof folder, "./");
    return n > 0 && n < (int)sizeof folder && stat(folder, &st) == 0 && st.st_uid == geteuid() &&
           (st.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) && access(folder, W_OK) == 0;
}

void tkc_cache_write(const char *source, const char *user_cache, const tkc_tables *tables)
{
    char path[PATH_MAX_LEN];
    tinkc_error err = { 0 };
    if (may_write_beside(source) && beside(source, path) &&
        tkc_write_file(path, tables->block, tables->block_len, 0644, &err))
        return;
    err = (tinkc_error){ 0 };
    if (in_user_cache(source, user_cache, path) && tkc_make_dirs(user_cache, &err))
        (void)tkc_write_file(path, tables->block, tables->block_len, 0644, &err);
}
