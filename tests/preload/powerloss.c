/* powerloss.c - see powerloss.h.
 *
 * Recording: each call on the folder is made and noted under one lock, so the list is the order in
 * which things happened. Files are known by numbers of our own, because the system uses the number of
 * a removed file again. Building: a moment is a length of the list. A name counts as kept for certain
 * if a later sync of one of its folders is in that part of the list, a write if one of its file is; the
 * rest is kept or not as `way` says. What remains is applied in the order of the list, to nothing.
 *
 * May touch: the C library and the kernel alone. SQLite's shared-memory file is left out: it is made
 * again by the process that opens the database first.
 */
#include "preload/powerloss.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ADD, REMOVE, MOVE, SWAP, WRITE, CUT, SYNC, MARK }; /* kinds of records */

typedef struct record {
    int kind;
    int node;          /* the file or folder; MARK: the promise */
    int folder, other; /* where its name is; MOVE, SWAP: where it was */
    int other_node;    /* SWAP: what has the old name now; MOVE: what had the new name, or -1 */
    char *name, *other_name;
    bool is_folder; /* ADD */
    off_t at;       /* WRITE; CUT: the length */
    size_t len;
    char *data;
} record;

static struct {
    pthread_mutex_t lock;
    char root[512];
    _Atomic bool on;
    const char *ignored;
    record *list;
    size_t n, room;
    ino_t *inodes; /* of each node; 0 = gone */
    int n_nodes;
} log_ = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The C library's own function; several threads may look for it at once. */
#define REAL(name, ...)                                                                                                \
    __extension__({                                                                                                    \
        static __typeof__(&name) next;                                                                                 \
        __typeof__(&name) found = __atomic_load_n(&next, __ATOMIC_ACQUIRE);                                            \
        if (!found) {                                                                                                  \
            *(void **)&found = dlsym(RTLD_NEXT, #name);                                                                \
            __atomic_store_n(&next, found, __ATOMIC_RELEASE);                                                          \
        }                                                                                                              \
        found(__VA_ARGS__);                                                                                            \
    })

static void stop(const char *why)
{
    dprintf(2, "powerloss: %s\n", why);
    _exit(99);
}

static void *must(void *memory)
{
    if (!memory)
        stop("no memory");
    return memory;
}

/* ---- recording ---- */

/* Locks: all below need log_.lock. */

static record *add(int kind, int node)
{
    if (log_.n == log_.room) {
        log_.room = log_.room ? 2 * log_.room : 4096;
        log_.list = must(realloc(log_.list, log_.room * sizeof *log_.list));
    }
    record *r = &log_.list[log_.n++];
    *r = (record){ .kind = kind, .node = node, .folder = -1, .other = -1, .other_node = -1 };
    return r;
}

static int new_node(ino_t inode)
{
    for (int i = 0; i < log_.n_nodes; i++)
        if (log_.inodes[i] == inode)
            log_.inodes[i] = 0;
    log_.inodes = must(realloc(log_.inodes, (size_t)(log_.n_nodes + 1) * sizeof *log_.inodes));
    log_.inodes[log_.n_nodes] = inode;
    return log_.n_nodes++;
}

static int node_of(const struct stat *st)
{
    for (int i = log_.n_nodes - 1; i >= 0; i--)
        if (log_.inodes[i] == st->st_ino)
            return i;
    return -1;
}

static int node_of_fd(int fd)
{
    struct stat st;
    return log_.on && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) ? node_of(&st) : -1;
}

/* A name below the recorded folder. */
typedef struct place {
    int folder; /* -1 = not ours */
    int node;   /* what has it; -1 = nothing */
    char name[256];
} place;

static place find(int at, const char *path)
{
    char full[4096], base[2048] = "";
    struct stat st;
    place p = { .folder = -1, .node = -1 };
    if (!log_.on || !path)
        return p;
    if (path[0] != '/' && at != AT_FDCWD) {
        char link[40];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = readlink(link, base, sizeof base - 2);
        base[n > 0 ? n : 0] = '\0';
        strcat(base, "/");
    }
    snprintf(full, sizeof full, "%s%s", base, path);
    size_t root = strlen(log_.root);
    if (strncmp(full, log_.root, root) != 0 || full[root] != '/')
        return p;
    char *slash = strrchr(full, '/');
    snprintf(p.name, sizeof p.name, "%s", slash + 1);
    if (lstat(full, &st) == 0)
        p.node = node_of(&st);
    *slash = '\0';
    if (stat(full, &st) == 0)
        p.folder = node_of(&st);
    return p;
}

static void name_it(record *r, const place *p)
{
    r->folder = p->folder;
    r->name = must(strdup(p->name));
}

static void added(const place *p, int node, bool is_folder)
{
    record *r = add(ADD, node);
    name_it(r, p);
    r->is_folder = is_folder;
}

static void removed(const place *p)
{
    if (p->folder >= 0 && p->node >= 0)
        name_it(add(REMOVE, p->node), p);
}

static void moved(const place *from, const place *to, bool swap)
{
    if (from->folder < 0 || to->folder < 0 || from->node < 0)
        return;
    record *r = add(swap ? SWAP : MOVE, from->node);
    name_it(r, to);
    r->other = from->folder;
    r->other_name = must(strdup(from->name));
    r->other_node = to->node;
}

static void wrote(int node, off_t at, const void *data, ssize_t n)
{
    if (node < 0 || n <= 0)
        return;
    record *r = add(WRITE, node);
    r->at = at;
    r->len = (size_t)n;
    r->data = must(malloc((size_t)n));
    memcpy(r->data, data, (size_t)n);
}

static void cut(int node, off_t length)
{
    if (node >= 0)
        add(CUT, node)->at = length;
}

/* A file was opened: it may be new, or have been emptied. */
static void opened(const place *p, int fd, int flags)
{
    struct stat st;
    if (fd < 0 || p->folder < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    if (p->node < 0)
        added(p, new_node(st.st_ino), false);
    else if (flags & O_TRUNC)
        cut(p->node, 0);
}

static bool is_ignored(int fd)
{
    char link[40], path[1024];
    if (!log_.ignored)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISDIR(st.st_mode))
        return strstr(path, log_.ignored) != NULL;
    size_t len = strlen(path), part = strlen(log_.ignored);
    return len >= part && strcmp(path + len - part, log_.ignored) == 0;
}

static void synced(int fd)
{
    int node = node_of_fd(fd);
    if (node >= 0 && !is_ignored(fd))
        add(SYNC, node);
}

/* ---- the C library's functions ---- */

#define LOCKED(type, call, note)                                                                                       \
    do {                                                                                                               \
        pthread_mutex_lock(&log_.lock);                                                                                \
        type result = call;                                                                                            \
        int kept = errno;                                                                                              \
        if (log_.on) {                                                                                                 \
            note;                                                                                                      \
        }                                                                                                              \
        errno = kept;                                                                                                  \
        pthread_mutex_unlock(&log_.lock);                                                                              \
        return result;                                                                                                 \
    } while (0)

#pragma GCC visibility push(default) /* SQLite must find them */

static int open_at(int at, const char *path, int flags, mode_t mode)
{
    pthread_mutex_lock(&log_.lock);
    place p = flags & (O_CREAT | O_TRUNC) ? find(at, path) : (place){ .folder = -1 };
    int fd = REAL(openat, at, path, flags, mode);
    int kept = errno;
    opened(&p, fd, flags);
    errno = kept;
    pthread_mutex_unlock(&log_.lock);
    return fd;
}

static mode_t mode_of(int flags, va_list *args)
{
    return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(*args, int) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, &args);
    va_end(args);
    return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, &args);
    va_end(args);
    return open_at(AT_FDCWD, path, flags, mode);
}

int mkostemp(char *path, int flags)
{
    pthread_mutex_lock(&log_.lock);
    int fd = REAL(mkostemp, path, flags);
    int kept = errno;
    place p = fd >= 0 ? find(AT_FDCWD, path) : (place){ .folder = -1 };
    p.node = -1;
    opened(&p, fd, 0);
    errno = kept;
    pthread_mutex_unlock(&log_.lock);
    return fd;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (!log_.on)
        return REAL(write, fd, data, n);
    pthread_mutex_lock(&log_.lock);
    int node = node_of_fd(fd);
    pthread_mutex_unlock(&log_.lock);
    if (node < 0) /* a pipe may wait for its reader */
        return REAL(write, fd, data, n);
    LOCKED(ssize_t, REAL(write, fd, data, n),
           wrote(node, lseek(fd, 0, SEEK_CUR) - (result > 0 ? result : 0), data, result));
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    LOCKED(ssize_t, REAL(pwrite, fd, data, n, at), wrote(node_of_fd(fd), at, data, result));
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    LOCKED(ssize_t, REAL(pwrite64, fd, data, n, at), wrote(node_of_fd(fd), at, data, result));
}

int ftruncate(int fd, off_t length)
{
    LOCKED(int, REAL(ftruncate, fd, length), result == 0 ? cut(node_of_fd(fd), length) : (void)0);
}

int ftruncate64(int fd, off64_t length)
{
    LOCKED(int, REAL(ftruncate64, fd, length), result == 0 ? cut(node_of_fd(fd), length) : (void)0);
}

int truncate(const char *path, off_t length)
{
    LOCKED(int, REAL(truncate, path, length), result == 0 ? cut(find(AT_FDCWD, path).node, length) : (void)0);
}

int fsync(int fd)
{
    LOCKED(int, REAL(fsync, fd), result == 0 ? synced(fd) : (void)0);
}

int fdatasync(int fd)
{
    LOCKED(int, REAL(fdatasync, fd), result == 0 ? synced(fd) : (void)0);
}

static int rename_at(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    pthread_mutex_lock(&log_.lock);
    place a = find(from_at, from), b = find(to_at, to);
    int result = REAL(renameat2, from_at, from, to_at, to, flags), kept = errno;
    if (result == 0)
        moved(&a, &b, flags & RENAME_EXCHANGE);
    errno = kept;
    pthread_mutex_unlock(&log_.lock);
    return result;
}

int rename(const char *from, const char *to)
{
    return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    return rename_at(from_at, from, to_at, to, flags);
}

int unlinkat(int at, const char *path, int flags)
{
    pthread_mutex_lock(&log_.lock);
    place p = find(at, path);
    int result = REAL(unlinkat, at, path, flags), kept = errno;
    if (result == 0)
        removed(&p);
    errno = kept;
    pthread_mutex_unlock(&log_.lock);
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdir(const char *path, mode_t mode)
{
    struct stat st;
    pthread_mutex_lock(&log_.lock);
    place p = find(AT_FDCWD, path);
    int result = REAL(mkdir, path, mode), kept = errno;
    if (result == 0 && p.folder >= 0 && stat(path, &st) == 0)
        added(&p, new_node(st.st_ino), true);
    errno = kept;
    pthread_mutex_unlock(&log_.lock);
    return result;
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    pthread_mutex_lock(&log_.lock);
    place a = find(from_at, from), b = find(to_at, to);
    int result = REAL(linkat, from_at, from, to_at, to, flags), kept = errno;
    if (result == 0 && a.node >= 0 && b.folder >= 0)
        added(&b, a.node, false);
    errno = kept;
    pthread_mutex_unlock(&log_.lock);
    return result;
}

#pragma GCC visibility pop

/* ---- from outside ---- */

static void forget(void)
{
    for (size_t i = 0; i < log_.n; i++) {
        free(log_.list[i].name);
        free(log_.list[i].other_name);
        free(log_.list[i].data);
    }
    free(log_.list);
    free(log_.inodes);
    log_.list = NULL;
    log_.inodes = NULL;
    log_.n = log_.room = 0;
    log_.n_nodes = 0;
}

void powerloss_start(const char *folder)
{
    struct stat st;
    pthread_mutex_lock(&log_.lock);
    forget();
    if (!realpath(folder, log_.root) || stat(log_.root, &st) != 0)
        stop("the folder to record does not exist");
    new_node(st.st_ino);
    log_.on = true;
    pthread_mutex_unlock(&log_.lock);
}

void powerloss_stop(void)
{
    pthread_mutex_lock(&log_.lock);
    log_.on = false;
    pthread_mutex_unlock(&log_.lock);
}

void powerloss_mark(int promise)
{
    pthread_mutex_lock(&log_.lock);
    if (log_.on)
        add(MARK, promise);
    pthread_mutex_unlock(&log_.lock);
}

void powerloss_ignore(const char *path_part)
{
    pthread_mutex_lock(&log_.lock);
    log_.ignored = path_part;
    pthread_mutex_unlock(&log_.lock);
}

size_t powerloss_moments(void)
{
    return log_.n + 1;
}

bool powerloss_at_sync(size_t moment)
{
    return (moment < log_.n && log_.list[moment].kind == SYNC) || (moment > 0 && log_.list[moment - 1].kind == SYNC);
}

int powerloss_promised(size_t moment)
{
    for (size_t i = moment; i-- > 0;)
        if (log_.list[i].kind == MARK)
            return log_.list[i].node;
    return 0;
}

/* ---- building ---- */

typedef struct entry {
    int folder, node;
    const char *name;
} entry;

typedef struct built { /* what is there after the power loss */
    entry *names;
    size_t n_names, room;
    struct {
        char *data;
        size_t len;
        bool is_folder;
    } * nodes;
} built;

static bool is_name(const record *r)
{
    return r->kind == ADD || r->kind == REMOVE || r->kind == MOVE || r->kind == SWAP;
}

/* Marks what the syncs before the moment keep. last[node]: behind its last sync. */
static void find_kept(size_t moment, bool *kept)
{
    size_t *last = must(calloc((size_t)log_.n_nodes, sizeof *last));
    for (size_t i = 0; i < moment; i++)
        if (log_.list[i].kind == SYNC)
            last[log_.list[i].node] = i;
    for (size_t i = 0; i < moment; i++) {
        const record *r = &log_.list[i];
        if (is_name(r))
            kept[i] = last[r->folder] > i || (r->other >= 0 && last[r->other] > i);
        else if (r->kind == WRITE || r->kind == CUT)
            kept[i] = last[r->node] > i;
    }
    free(last);
}

static uint64_t roll(uint64_t *seed)
{
    *seed += 0x9E3779B97F4A7C15u;
    uint64_t x = *seed;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* A name is there or not; those of one folder are there in their order, up to some point. */
static void choose_names(size_t moment, int way, uint64_t seed, bool *kept)
{
    bool *lost = must(calloc((size_t)log_.n_nodes, sizeof *lost));
    for (size_t i = 0; i < moment; i++) {
        const record *r = &log_.list[i];
        if (!is_name(r) || kept[i])
            continue;
        bool stays = way == POWERLOSS_KEPT || way == POWERLOSS_NAMES || (way == POWERLOSS_MIXED && roll(&seed) % 3);
        if (stays && !lost[r->folder] && !(r->other >= 0 && lost[r->other])) {
            kept[i] = true;
            continue;
        }
        lost[r->folder] = true;
        if (r->other >= 0)
            lost[r->other] = true;
    }
    free(lost);
}

static void set_name(built *b, int folder, const char *name, int node)
{
    size_t at = 0;
    while (at < b->n_names && (b->names[at].folder != folder || strcmp(b->names[at].name, name) != 0))
        at++;
    if (node < 0) {
        if (at < b->n_names)
            b->names[at] = b->names[--b->n_names];
        return;
    }
    if (at == b->n_names) {
        if (b->n_names == b->room) {
            b->room = b->room ? 2 * b->room : 256;
            b->names = must(realloc(b->names, b->room * sizeof *b->names));
        }
        b->n_names++;
    }
    b->names[at] = (entry){ folder, node, name };
}

static void apply_name(built *b, const record *r)
{
    switch (r->kind) {
    case ADD:
        set_name(b, r->folder, r->name, r->node);
        break;
    case REMOVE:
        set_name(b, r->folder, r->name, -1);
        break;
    case MOVE:
        set_name(b, r->other, r->other_name, -1);
        set_name(b, r->folder, r->name, r->node);
        break;
    default:
        set_name(b, r->other, r->other_name, r->other_node);
        set_name(b, r->folder, r->name, r->node);
    }
}

static void set_length(built *b, int node, size_t len)
{
    if (len > b->nodes[node].len) {
        b->nodes[node].data = must(realloc(b->nodes[node].data, len));
        memset(b->nodes[node].data + b->nodes[node].len, 0, len - b->nodes[node].len);
    }
    b->nodes[node].len = len;
}

static void apply_write(built *b, const record *r, size_t len)
{
    if (r->kind == CUT) {
        set_length(b, r->node, (size_t)r->at);
        return;
    }
    if (!len) /* torn at its first byte */
        return;
    size_t end = (size_t)r->at + len;
    if (end > b->nodes[r->node].len)
        set_length(b, r->node, end);
    memcpy(b->nodes[r->node].data + r->at, r->data, len);
}

static void apply(built *b, size_t moment, int way, uint64_t seed, const bool *kept)
{
    for (size_t i = 0; i < moment; i++) {
        const record *r = &log_.list[i];
        if (r->kind == ADD && r->is_folder)
            b->nodes[r->node].is_folder = true;
        if (is_name(r) && kept[i])
            apply_name(b, r);
        if (r->kind != WRITE && r->kind != CUT)
            continue;
        size_t len = r->len;
        bool stays = kept[i] || way == POWERLOSS_KEPT || way == POWERLOSS_BYTES;
        if (!stays && way == POWERLOSS_MIXED) {
            uint64_t luck = roll(&seed);
            stays = luck % 3 != 0;
            if (luck % 3 == 1 && len) /* torn */
                len = (size_t)(luck >> 8) % len;
        }
        if (stays)
            apply_write(b, r, len);
    }
}

static void write_out(const built *b, int folder, const char *path)
{
    char below[2048];
    if (REAL(mkdir, path, 0700) != 0)
        stop("the folder to build cannot be made");
    for (size_t i = 0; i < b->n_names; i++) {
        const entry *e = &b->names[i];
        size_t n = strlen(e->name);
        if (e->folder != folder || (n > 4 && strcmp(e->name + n - 4, "-shm") == 0))
            continue;
        snprintf(below, sizeof below, "%s/%s", path, e->name);
        if (b->nodes[e->node].is_folder) {
            write_out(b, e->node, below);
            continue;
        }
        int fd = REAL(openat, AT_FDCWD, below, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        size_t len = b->nodes[e->node].len;
        if (fd < 0 || REAL(write, fd, b->nodes[e->node].data, len) != (ssize_t)len)
            stop("a file to build cannot be written");
        close(fd);
    }
}

void powerloss_build(size_t moment, int way, uint64_t seed, const char *folder)
{
    built b = { .nodes = must(calloc((size_t)log_.n_nodes, sizeof *b.nodes)) };
    bool *kept = must(calloc(moment + 1, sizeof *kept));
    find_kept(moment, kept);
    choose_names(moment, way, seed, kept);
    apply(&b, moment, way, seed, kept);
    write_out(&b, 0, folder);
    for (int i = 0; i < log_.n_nodes; i++)
        free(b.nodes[i].data);
    free(b.nodes);
    free(b.names);
    free(kept);
}
