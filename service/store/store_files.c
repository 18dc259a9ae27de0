/* store_files.c - folders of tensors: synced, moved into place in one step, measured.
 *
 * May touch: the file system below the store. Must not: touch the database or any lock.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/platform.h"
#include "base/str.h"
#include "service/store/failpoint.h"
#include "service/store/store.h"

static bool sync_path(int folder_fd, const char *name, tinkc_error *err)
{
    int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", name);
    bool ok = tkc_sync_file(fd) == 0 ? true : tkc_fail_errno(err, "%s", name);
    close(fd);
    return ok;
}

/* Files first, then the folder: after a crash no name may lead to missing bytes. */
bool tke_sync_folder(const char *path, tinkc_error *err)
{
    DIR *folder = opendir(path);
    if (!folder)
        return tkc_fail_errno(err, "%s", path);
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(folder));)
        if (e->d_name[0] != '.')
            ok = sync_path(dirfd(folder), e->d_name, err);
    if (ok && tkc_sync_file(dirfd(folder)) != 0)
        ok = tkc_fail_errno(err, "%s", path);
    closedir(folder);
    return ok;
}

static bool make_parent(const tke_store *s, const char *path, tinkc_error *err)
{
    char parent[4096];
    size_t len = (size_t)(strrchr(path, '/') - path);
    if (len >= sizeof parent)
        return tkc_fail(err, TINKC_E_FILE, "%s: path too long", path);
    memcpy(parent, path, len);
    parent[len] = '\0';
    /* The parents are synced as well: a power loss could otherwise take the whole folder of a run
     * with its first checkpoint, although its save was answered. */
    return tke_store_durable(s) ? tkc_make_lasting_dirs(parent, err) : tkc_make_dirs(parent, err);
}

/* A folder that is there already is exchanged, so that at every moment the name has a complete one.
 * False with *moved: it is moved, but a power failure may undo that. */
static bool move(tke_store *s, const char *from, const char *to, bool *moved, tinkc_error *err)
{
    *moved = false;
    if (!make_parent(s, to, err) || !TKE_FAILPOINT("place.begun", err))
        return false;
    if (rename(from, to) != 0 &&
        ((errno != ENOTEMPTY && errno != EEXIST) || !tkc_swap_names(from, to)))
        return tkc_fail_errno(err, "%s", to);
    *moved = true;
    return TKE_FAILPOINT("place.moved", err) && (!tke_store_durable(s) || tkc_sync_parent(to, err));
}

bool tke_store_place(tke_store *s, const char *temp, const char *final_path, tinkc_error *err)
{
    bool moved, ok = move(s, temp, final_path, &moved, err);
    if (moved && !ok)
        tke_store_take_back(s, temp, final_path);
    return ok;
}

bool tke_store_move(tke_store *s, const char *from, const char *to, tinkc_error *err)
{
    bool moved, ok = move(s, from, to, &moved, err);
    if (moved && !ok && !tkc_swap_names(to, from))
        (void)rename(to, from);
    return ok;
}

/* Undoes tke_store_place. If the exchange works, `temp` holds what was there before (place swapped
 * them); otherwise the name was new. */
void tke_store_take_back(tke_store *s, const char *temp, const char *final_path)
{
    tinkc_error ignored = { 0 };
    (void)s;
    /* By exchange again, not by removing and renaming: between these two the name would have
     * nothing. */
    if (tkc_swap_names(temp, final_path))
        tkc_remove_tree(temp, &ignored);
    else
        tkc_remove_tree(final_path, &ignored);
}

static bool copy_file(const char *from, const char *to, const char *name, tinkc_error *err)
{
    tkc_arena arena;
    tkc_mapping file = { 0 };
    tkc_arena_init(&arena, NULL, 0);
    char *source = tkc_path_join(&arena, from, name, err);
    char *target = tkc_path_join(&arena, to, name, err);
    bool mapped = source && target && tkc_map_file(source, &file, err);
    if (mapped) {
        tkc_write_file(target, file.data ? (const void *)file.data : "", file.len, 0600, err);
        tkc_unmap_file(&file);
    }
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

/* Hard links where the file system has them: checkpoints are never changed in place, so sharing
 * bytes is safe. */
bool tke_link_folder(const char *from, const char *to, tinkc_error *err)
{
    struct stat st;
    DIR *source = opendir(from);
    if (!source)
        return tkc_fail_errno(err, "%s", from);
    int target = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = target >= 0 ? true : tkc_fail_errno(err, "%s", to);
    for (struct dirent *e; ok && (e = readdir(source));) {
        if (fstatat(dirfd(source), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(st.st_mode))
            continue;
        /* A file system without hard links, or with a limit on their number, still gets its
         * checkpoint. */
        ok = linkat(dirfd(source), e->d_name, target, e->d_name, 0) == 0 ||
             copy_file(from, to, e->d_name, err);
    }
    if (target >= 0)
        close(target);
    closedir(source);
    return ok;
}

static bool same_bytes(const char *file, const char *other)
{
    tinkc_error ignored = { 0 };
    tkc_mapping a = { 0 }, b = { 0 };
    bool same = tkc_is_file(other) && tkc_map_file(file, &a, &ignored) &&
                tkc_map_file(other, &b, &ignored) && a.len == b.len && a.len &&
                memcmp(a.data, b.data, a.len) == 0;
    tkc_unmap_file(&a);
    tkc_unmap_file(&b);
    return same;
}

void tke_share_file(const char *file, const char *other)
{
    char link_name[4096];
    int n = snprintf(link_name, sizeof link_name, "%s.link", file);
    /* Compared, because a name alone proves nothing: the other checkpoint may be of another step.
     * The link is made under a second name first, so that a failure leaves the file that was just
     * written. */
    if (n < 0 || (size_t)n >= sizeof link_name || !same_bytes(file, other) ||
        link(other, link_name) != 0)
        return;
    if (rename(link_name, file) != 0)
        (void)unlink(link_name);
}

static bool any_entry(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    bool any = false;
    if (fd >= 0 && !dir)
        close(fd);
    for (struct dirent *e; dir && !any && (e = readdir(dir));)
        any = e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return any;
}

bool tke_store_has_checkpoints(const char *folder)
{
    static const char *const parts[] = { "weights", "sampler_weights", "external_weights",
                                         "image.0", "image.1" };
    char runs[4096], part[600];
    (void)snprintf(runs, sizeof runs, "%s/runs", folder);
    DIR *dir = opendir(runs);
    bool any = false;
    for (struct dirent *e; dir && !any && (e = readdir(dir));)
        for (size_t i = 0; e->d_name[0] != '.' && i < sizeof parts / sizeof *parts; i++) {
            (void)snprintf(part, sizeof part, "%s/%s", e->d_name, parts[i]);
            any |= any_entry(dirfd(dir), part);
        }
    if (dir)
        closedir(dir);
    return any;
}

int64_t tke_folder_bytes(const char *path)
{
    int64_t sum = 0;
    DIR *folder = opendir(path);
    struct stat st;
    if (!folder)
        return 0;
    for (struct dirent *e; (e = readdir(folder));)
        if (fstatat(dirfd(folder), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            sum += st.st_size;
    closedir(folder);
    return sum;
}

bool tke_store_has_room(const tke_store *s, int64_t reserve)
{
    struct statvfs st;
    const char *folder = tke_store_folder(s);
    /* Where the free space is unknown, saving goes ahead: a write that does not fit fails and is
     * undone. */
    if (!folder || statvfs(folder, &st) != 0)
        return true;
    return (uint64_t)st.f_bavail * st.f_frsize >= (uint64_t)reserve;
}
