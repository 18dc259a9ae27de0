/* checksums.c - a list of the hashes of a folder's files, written once, compared when it is loaded.
 *
 * It detects corruption on disk. It does not protect against an attacker who can write the folder
 * and so the list as well. May touch: that folder.
 */
#include "service/store/checksums.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/str.h"
#include "service/handlers/identity.h"

enum { HEX = 32 };

static bool hash_file(const char *path, char hex[HEX + 1], size_t *size, tinkc_error *err)
{
    tkc_mapping file = { 0 };
    tke_hasher h;
    if (!tkc_map_file(path, &file, err))
        return false;
    tke_hash_begin(&h);
    tke_hash_add(&h, file.data ? (const void *)file.data : "", file.len);
    tke_hash128 sum = tke_hash_end(&h);
    *size = file.len;
    tkc_unmap_file(&file);
    (void)snprintf(hex, HEX + 1, "%016llx%016llx", (unsigned long long)sum.hi,
                   (unsigned long long)sum.lo);
    return true;
}

/* Excludes the list itself, and checkpoint_complete, which is written after it. */
static bool is_listed(int folder_fd, const char *name)
{
    struct stat st;
    return strcmp(name, TKE_SUMS_FILE) != 0 && strcmp(name, "checkpoint_complete") != 0 &&
           fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

bool tke_sums_write(const char *folder, tinkc_error *err)
{
    tkc_arena arena;
    tkc_buf out;
    char hex[HEX + 1];
    size_t size;
    DIR *dir = opendir(folder);
    if (!dir)
        return tkc_fail_errno(err, "%s", folder);
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    for (struct dirent *e; !tkc_failed(err) && (e = readdir(dir));) {
        if (!is_listed(dirfd(dir), e->d_name))
            continue;
        char *path = tkc_path_join(&arena, folder, e->d_name, err);
        if (path && hash_file(path, hex, &size, err))
            tkc_buf_printf(&out, err, "%s %zu %s\n", hex, size, e->d_name);
    }
    closedir(dir);
    char *list = tkc_path_join(&arena, folder, TKE_SUMS_FILE, err);
    if (list && !tkc_failed(err))
        tkc_write_file(list, out.data ? out.data : "", out.len, 0600, err);
    tkc_buf_free(&out);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

static bool check_line(const char *folder, tinkc_str line, tkc_arena *arena, tinkc_error *err)
{
    tinkc_str rest = line, sum, size;
    tinkc_error why = { 0 };
    char hex[HEX + 1] = "";
    size_t n = 0;
    uint64_t want;
    /* A name with a slash would be a file outside the folder. */
    if (!tkc_str_cut(&rest, ' ', &sum) || !tkc_str_cut(&rest, ' ', &size) || !rest.len ||
        sum.len != HEX || !tkc_parse_u64(size, &want) || tkc_str_find(rest, '/') != rest.len)
        return tkc_fail(err, TINKC_E_MODEL, "%s: its list of checksums is damaged", folder);
    char *name = tkc_arena_str(arena, rest, err);
    char *path = name ? tkc_path_join(arena, folder, name, err) : NULL;
    if (!path)
        return false;
    if (!tkc_is_file(path))
        return tkc_fail(err, TINKC_E_MODEL, "%s: %s is missing", folder, name);
    if (!hash_file(path, hex, &n, &why))
        return tkc_fail(err, TINKC_E_MODEL, "%s: %s cannot be read: %.200s", folder, name,
                        why.message);
    if (n != want || !tkc_str_is(sum, hex))
        return tkc_fail(err, TINKC_E_MODEL,
                        "%s: %s is damaged: its bytes are not those that were written", folder,
                        name);
    return true;
}

/* A folder without a list was written by an older version: accepted. */
bool tke_sums_check(const char *folder, tinkc_error *err)
{
    tkc_arena arena;
    tinkc_str line;
    tkc_arena_init(&arena, NULL, 0);
    char *list = tkc_path_join(&arena, folder, TKE_SUMS_FILE, err);
    bool there = list && tkc_is_file(list);
    tinkc_bytes text = there ? tkc_read_file(&arena, list, 1 << 20, err) : (tinkc_bytes){ 0 };
    tinkc_str rest = tkc_strn((const char *)text.data, text.len);
    bool ok = !tkc_failed(err);
    while (ok && there && tkc_str_cut(&rest, '\n', &line))
        ok = !line.len || check_line(folder, line, &arena, err);
    tkc_arena_free(&arena);
    return ok;
}
