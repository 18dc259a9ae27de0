/* hub_cache.c - the cache on disk, in the layout of Hugging Face's own library:
 *
 *     models--ORG--NAME/blobs/DIGEST            the bytes, named by their digest
 *     models--ORG--NAME/snapshots/COMMIT/FILE   a link to its blob
 *     models--ORG--NAME/refs/main               the commit that a name last meant
 *     .locks/models--ORG--NAME/DIGEST.lock      held while a blob is written
 *
 * May touch: files below the cache folder. Must not: use the network.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/str.h"
#include "hub/hub_priv.h"

enum {
    LOCK_PAUSE_MS = 200,
    LOCK_PATIENCE_MS = 10 * 60 * 1000,
    NAME_LEN_MAX = 200,
    PATH_LEN_MAX = 1024
};

/* ---- names ---- */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* Names become parts of paths and URLs: only letters, digits and "._-", at most one slash. */
static bool check_name(const char *name, tinkc_error *err)
{
    size_t slashes = 0, len = strlen(name);
    bool ok = len && len <= NAME_LEN_MAX && name[0] != '/' && name[0] != '.' &&
              name[len - 1] != '/' && !strstr(name, "..") && !strstr(name, "--") &&
              !strstr(name, "/.");
    for (size_t i = 0; ok && i < len; i++) {
        slashes += name[i] == '/';
        ok = is_plain(name[i]) || name[i] == '/';
    }
    return (ok && slashes <= 1) ||
           tkc_fail(err, TINKC_E_ARGUMENT, "\"%.100s\" is not the name of a repository", name);
}

bool tkc_hub_is_safe_path(const char *path)
{
    size_t len = strlen(path), part = 0;
    if (!len || len > PATH_LEN_MAX || path[0] == '/')
        return false;
    for (size_t i = 0; i <= len; i++) {
        unsigned char c = (unsigned char)path[i];
        if (c && c != '/') {
            if (c < 0x20 || c == 0x7f || c == '\\')
                return false;
            part++;
            continue;
        }
        const char *begin = path + i - part;
        if (part == 0 || part > 255 || (part == 1 && begin[0] == '.') ||
            (part == 2 && begin[0] == '.' && begin[1] == '.'))
            return false;
        part = 0;
    }
    return true;
}

bool tkc_is_commit(tinkc_str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!((s.data[i] >= '0' && s.data[i] <= '9') || (s.data[i] >= 'a' && s.data[i] <= 'f')))
            return false;
    return s.len == TKC_COMMIT_LEN;
}

bool tkc_hub_repo_init(tkc_hub_repo *r, tinkc_hub *hub, const char *name, const char *revision,
                       tkc_arena *arena, tinkc_error *err)
{
    if (!name)
        return tkc_fail(err, TINKC_E_ARGUMENT, "repo is NULL");
    if (!check_name(name, err))
        return false;
    if (!revision || !*revision)
        revision = "main";
    if (!tkc_hub_is_safe_path(revision))
        return tkc_fail(err, TINKC_E_ARGUMENT, "\"%.100s\" is not the name of a revision",
                        revision);
    const char *slash = strchr(name, '/');
    int org = slash ? (int)(slash - name) : 0;
    *r = (tkc_hub_repo){ .hub = hub, .arena = arena };
    r->name = tkc_arena_cstr(arena, name, err);
    r->revision = tkc_arena_cstr(arena, revision, err);
    r->folder = tkc_arena_printf(arena, err, "%s/models--%.*s%s%s", hub->cache, org, name,
                                 slash ? "--" : "", slash ? slash + 1 : name);
    return !tkc_failed(err);
}

/* ---- cached files ---- */

bool tkc_hub_cached_commit(tkc_hub_repo *r, tinkc_error *err)
{
    tinkc_error ignored = { 0 };
    tinkc_str commit = tkc_str(r->revision);
    if (!tkc_is_commit(commit)) {
        const char *ref = tkc_arena_printf(r->arena, err, "%s/refs/%s", r->folder, r->revision);
        tinkc_bytes text = { 0 };
        if (ref && tkc_is_file(ref))
            text = tkc_read_file(r->arena, ref, 1024, &ignored);
        commit = tkc_str_trim(tkc_strn((const char *)text.data, text.data ? text.len : 0));
    }
    if (!tkc_is_commit(commit))
        return false;
    r->commit = tkc_arena_str(r->arena, commit, err);
    return r->commit != NULL;
}

const char *tkc_hub_snapshot_path(const tkc_hub_repo *r, tinkc_error *err)
{
    return tkc_arena_printf(r->arena, err, "%s/snapshots/%s", r->folder, r->commit);
}

const char *tkc_hub_blob_path(const tkc_hub_repo *r, tkc_arena *arena, const char *digest,
                              tinkc_error *err)
{
    return tkc_arena_printf(arena, err, "%s/blobs/%s", r->folder, digest);
}

/* ---- locks ---- */

static int64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

static bool wait_for_lock(const tkc_hub_repo *r, int fd, const char *path, const char *watch,
                          tinkc_error *err)
{
    int64_t waited = 0, seen = size_of(watch);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return tkc_fail_errno(err, "%s", path);
        if (!tkc_hub_sleep(r->hub, LOCK_PAUSE_MS))
            return tkc_fail(err, TINKC_E_CANCELLED, "the transfer was stopped");
        int64_t now = size_of(watch);
        waited = now != seen ? 0 : waited + LOCK_PAUSE_MS;
        seen = now;
        if (waited >= LOCK_PATIENCE_MS)
            return tkc_fail(err, TINKC_E_FILE,
                            "%s: another process holds it and has made no progress for 10 minutes",
                            path);
    }
    return true;
}

int tkc_hub_lock(const tkc_hub_repo *r, tkc_arena *arena, const char *digest, const char *watch,
                 atomic_int *waits, tinkc_error *err)
{
    const char *folder =
        tkc_arena_printf(arena, err, "%s/.locks/%s", r->hub->cache, strrchr(r->folder, '/') + 1);
    const char *path = tkc_arena_printf(arena, err, "%s/%s.lock", folder ? folder : "", digest);
    if (!folder || !path || !tkc_make_dirs(folder, err))
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        tkc_fail_errno(err, "%s", path);
        return -1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    atomic_fetch_add(waits, 1);
    bool ok = wait_for_lock(r, fd, path, watch, err);
    atomic_fetch_sub(waits, 1);
    if (ok)
        return fd;
    close(fd);
    return -1;
}

/* ---- names in the snapshot ---- */

static bool make_parent(tkc_arena *arena, const char *path, tinkc_error *err)
{
    const char *parent =
        tkc_arena_str(arena, tkc_strn(path, (size_t)(strrchr(path, '/') - path)), err);
    return parent && tkc_make_dirs(parent, err);
}

bool tkc_hub_link(const tkc_hub_repo *r, const char *path, const char *digest, tinkc_error *err)
{
    char up[PATH_LEN_MAX * 3 / 2 + 16] = "../../", there[PATH_LEN_MAX * 3 / 2 + 200];
    size_t at = strlen(up);
    const char *folder = tkc_hub_snapshot_path(r, err);
    const char *name = folder ? tkc_path_join(r->arena, folder, path, err) : NULL;
    for (const char *p = path; *p; p++)
        if (*p == '/' && at + 4 < sizeof up) {
            memcpy(up + at, "../", 4);
            at += 3;
        }
    const char *target = tkc_arena_printf(r->arena, err, "%sblobs/%s", up, digest);
    const char *blob = tkc_hub_blob_path(r, r->arena, digest, err);
    if (!name || !target || !blob || !make_parent(r->arena, name, err))
        return false;
    ssize_t n = readlink(name, there, sizeof there - 1);
    if (n > 0) {
        there[n] = 0;
        if (strcmp(there, target) == 0)
            return true;
    }
    (void)unlink(name); /* a copy, or a link to another blob: this commit decides */
    if (symlink(target, name) == 0 || errno == EEXIST)
        return true;
    return link(blob, name) == 0 || errno == EEXIST || tkc_fail_errno(err, "%s", name);
}

bool tkc_hub_write_ref(const tkc_hub_repo *r, tinkc_error *err)
{
    if (tkc_is_commit(tkc_str(r->revision)))
        return true;
    const char *ref = tkc_arena_printf(r->arena, err, "%s/refs/%s", r->folder, r->revision);
    return ref && make_parent(r->arena, ref, err) &&
           tkc_write_file(ref, r->commit, strlen(r->commit), 0644, err);
}
