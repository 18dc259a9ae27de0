/* user_cache.c - where the user's cache is, and whether a file in it may be believed. Touches the environment
 * and the file system; writes nothing. */
#include "base/user_cache.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char *tkc_cache_folder(tkc_arena *arena, const char *part, tinkc_error *err)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        return tkc_arena_printf(arena, err, "%s/tinkc/%s", xdg, part);
    if (home && home[0] == '/')
        return tkc_arena_printf(arena, err, "%s/.cache/tinkc/%s", home, part);
    return "";
}

/* Checks of a file's form prevent wild reads, not wrong contents. */
static bool is_ours(const struct stat *st)
{
    return st->st_uid == geteuid() && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool tkc_cache_trusted(const char *path, const char *folder)
{
    struct stat st;
    return stat(folder, &st) == 0 && S_ISDIR(st.st_mode) && is_ours(&st) && lstat(path, &st) == 0 &&
           S_ISREG(st.st_mode) && is_ours(&st);
}
