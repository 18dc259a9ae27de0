/* file.c - files and folders. May touch: the file system. Must not: follow links while removing. */
#include "base/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"

static bool read_exact(int fd, unsigned char *data, size_t len)
{
    while (len) {
        ssize_t n = read(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno; /* the file shrank during the read */
            return false;
        }
        assert((size_t)n <= len);
        data += n;
        len -= (size_t)n;
    }
    return true;
}

int tkc_open_regular(const char *path, size_t *size, tinkc_error *err)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe without a writer would block; pipes are rejected below. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) != 0) {
        tkc_fail_errno(err, "%s", path);
    } else if (!S_ISREG(st.st_mode)) {
        tkc_fail(err, TINKC_E_FILE, "%s: not a regular file", path);
    } else {
        *size = (size_t)st.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

tinkc_bytes tkc_read_file(tkc_arena *arena, const char *path, size_t max, tinkc_error *err)
{
    tinkc_bytes out = { NULL, 0 };
    size_t size;
    int fd = tkc_open_regular(path, &size, err);
    if (fd < 0)
        return out;
    unsigned char *data = NULL;
    if (size > max)
        tkc_fail(err, TINKC_E_FILE, "%s: larger than %zu bytes", path, max);
    else
        data = tkc_arena_alloc(arena, size + 1, err);
    if (data && !read_exact(fd, data, size))
        tkc_fail_errno(err, "%s", path);
    else if (data) {
        data[size] = '\0';
        out = (tinkc_bytes){ data, size };
    }
    close(fd);
    return out;
}

bool tkc_write_all(int fd, const void *data, size_t len)
{
    const unsigned char *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

bool tkc_sync_parent(const char *path, tinkc_error *err)
{
    char folder[4096];
    size_t len = strlen(path);
    while (len > 0 && path[len - 1] != '/')
        len--;
    if (len >= sizeof folder)
        return tkc_fail(err, TINKC_E_FILE, "%s: path too long", path);
    memcpy(folder, len ? path : ".", len ? len : 1);
    folder[len ? len : 1] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", folder);
    bool ok = tkc_sync_file(fd) == 0 || errno == EINVAL; /* some file systems cannot sync folders */
    if (!ok)
        tkc_fail_errno(err, "%s", folder);
    close(fd);
    return ok;
}

/* Beside it, to the disk, then renamed: after a power loss the old file is there or the new one,
 * whole. */
bool tkc_write_file(const char *path, const void *data, size_t len, uint32_t mode, tinkc_error *err)
{
    char beside[4096];
    assert((mode & ~07777u) == 0 && (data || !len));
    int n = snprintf(beside, sizeof beside, "%s.XXXXXX", path);
    if (n < 0 || (size_t)n >= sizeof beside)
        return tkc_fail(err, TINKC_E_FILE, "%s: path too long", path);
    int fd = mkostemp(beside, O_CLOEXEC);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", path);
    bool ok =
        tkc_write_all(fd, data, len) && fchmod(fd, (mode_t)mode) == 0 && tkc_sync_file(fd) == 0;
    if (!ok)
        tkc_fail_errno(err, "%s", path);
    if (close(fd) != 0 && ok)
        ok = tkc_fail_errno(err, "%s", path);
    if (ok && rename(beside, path) != 0)
        ok = tkc_fail_errno(err, "%s", path);
    if (!ok)
        (void)unlink(beside);
    return ok && tkc_sync_parent(path, err);
}

bool tkc_map_file(const char *path, tkc_mapping *out, tinkc_error *err)
{
    size_t size;
    struct stat st;
    *out = (tkc_mapping){ 0 };
    int fd = tkc_open_regular(path, &size, err);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0)
        out->changed_ns = st.st_mtim.tv_sec * (int64_t)1000000000 + st.st_mtim.tv_nsec;
    if (size) {
        void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            tkc_fail_errno(err, "%s", path);
        else
            out->data = data, out->len = size;
    }
    close(fd);
    return !tkc_failed(err);
}

void tkc_unmap_file(tkc_mapping *map)
{
    assert(!map->data == !map->len);
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->len);
    *map = (tkc_mapping){ 0 };
}

bool tkc_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool tkc_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool make_dirs(const char *path, bool lasting, tinkc_error *err)
{
    char part[4096];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof part)
        return tkc_fail(err, TINKC_E_FILE, "%s: %s", path, len ? "path too long" : "empty path");
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        char kept = part[i];
        part[i] = '\0';
        bool made = mkdir(part, 0700) == 0;
        if (!made && (errno != EEXIST || !tkc_is_dir(part)))
            return tkc_fail_errno(err, "%s", part);
        if (made && lasting && !tkc_sync_parent(part, err))
            return false;
        part[i] = kept;
    }
    return true;
}

bool tkc_make_dirs(const char *path, tinkc_error *err)
{
    return make_dirs(path, false, err);
}

bool tkc_make_lasting_dirs(const char *path, tinkc_error *err)
{
    return make_dirs(path, true, err);
}

static bool remove_at(int parent, const char *name, const char *path, tinkc_error *err);

static bool remove_entries(int fd, const char *path, tinkc_error *err)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return tkc_fail_errno(err, "%s", path);
    }
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            ok = remove_at(dirfd(dir), e->d_name, path, err);
    closedir(dir);
    return ok;
}

/* Recursion is as deep as the tree; the limit on open descriptors bounds it. */
static bool remove_at(int parent, const char *name, const char *path, tinkc_error *err)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return true;
    if (errno != EISDIR && errno != EPERM)
        return tkc_fail_errno(err, "%s", path);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", path);
    if (!remove_entries(fd, path, err))
        return false;
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0)
        return tkc_fail_errno(err, "%s", path);
    return true;
}

bool tkc_remove_tree(const char *path, tinkc_error *err)
{
    return remove_at(AT_FDCWD, path, path, err);
}

char *tkc_path_join(tkc_arena *arena, const char *a, const char *b, tinkc_error *err)
{
    assert(a && b);
    size_t n = strlen(a);
    if (b[0] == '/' || n == 0)
        return tkc_arena_cstr(arena, b, err);
    return tkc_arena_printf(arena, err, "%s%s%s", a, a[n - 1] == '/' ? "" : "/", b);
}
