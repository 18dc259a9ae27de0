/* download_unpack.c - a tar from a source onto the disk, file by file. The only file of the library
 * that knows libarchive, which is opened on first use.
 *
 * An archive comes from outside: nothing in it may name a place outside the target folder, and
 * only plain files and folders are made, so no link can ever lead out of it.
 */
#include "client/download/download.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/core/client_priv.h"
#include "base/dl.h"
#include "base/str.h"

enum { MAX_FILES = 100 * 1000, MAX_NAME = 4096 };

/* A few bytes of an archive can stand for any number of zeros; no checkpoint has any. */
static const int64_t MAX_HOLES = (int64_t)256 << 20;

/* ---- libarchive ---- */

typedef struct library_table {
    struct archive *(*read_new)(void);
    int (*read_free)(struct archive *);
    int (*read_support_format_tar)(struct archive *);
    int (*read_support_filter_gzip)(struct archive *);
    int (*read_support_filter_bzip2)(struct archive *);
    int (*read_support_filter_xz)(struct archive *);
    int (*read_support_filter_zstd)(struct archive *);
    int (*read_support_filter_lz4)(struct archive *);
    int (*read_open)(struct archive *, void *, archive_open_callback *, archive_read_callback *,
                     archive_close_callback *);
    int (*read_next_header)(struct archive *, struct archive_entry **);
    la_int64_t (*read_header_position)(struct archive *);
    int (*read_data_block)(struct archive *, const void **, size_t *, la_int64_t *);
    int (*filter_code)(struct archive *, int);
    const char *(*error_string)(struct archive *);
    const char *(*entry_pathname_utf8)(struct archive_entry *);
    const char *(*entry_pathname)(struct archive_entry *);
    const char *(*entry_hardlink)(struct archive_entry *);
    const char *(*entry_symlink)(struct archive_entry *);
    __LA_MODE_T (*entry_filetype)(struct archive_entry *);
} library_table;

#define SYMBOL(name)                                                                               \
    {                                                                                              \
        "archive_" #name, offsetof(library_table, name)                                            \
    }

static const library_table *open_library(tinkc_error *err)
{
    static const char *const names[] = { "libarchive.so.13", NULL };
    static const tkc_dl_symbol symbols[] = { SYMBOL(read_new),
                                             SYMBOL(read_free),
                                             SYMBOL(read_support_format_tar),
                                             SYMBOL(read_support_filter_gzip),
                                             SYMBOL(read_support_filter_bzip2),
                                             SYMBOL(read_support_filter_xz),
                                             SYMBOL(read_support_filter_zstd),
                                             SYMBOL(read_support_filter_lz4),
                                             SYMBOL(read_open),
                                             SYMBOL(read_next_header),
                                             SYMBOL(read_header_position),
                                             SYMBOL(read_data_block),
                                             SYMBOL(filter_code),
                                             SYMBOL(error_string),
                                             SYMBOL(entry_pathname_utf8),
                                             SYMBOL(entry_pathname),
                                             SYMBOL(entry_hardlink),
                                             SYMBOL(entry_symlink),
                                             SYMBOL(entry_filetype),
                                             { NULL, 0 } };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static library_table table;
    static bool ready;
    pthread_mutex_lock(&lock);
    if (!ready)
        ready = tkc_dl_load(names, symbols, &table, err);
    const library_table *la = ready ? &table : NULL;
    pthread_mutex_unlock(&lock);
    return la;
}

/* ---- one unpacking ---- */

typedef struct unpacker {
    const library_table *la;
    tkc_source *source;
    const char *folder;
    tkc_file_list *list;
    tkc_mark_fn *mark;
    void *user;
    tinkc_error *err;
    struct archive *archive;
    int64_t base;  /* of the source, where the archive reader began */
    int64_t left;  /* bytes that may still be written; -1 = any number */
    int64_t holes; /* bytes of sparse files that were not sent */
    tkc_writer *writer;
} unpacker;

/* A file on its way to the disk. */
typedef struct out_file {
    int fd;
    const char *path;
    int64_t size;
    tkc_digest digest;
} out_file;

static la_ssize_t feed(struct archive *a, void *user, const void **block)
{
    unpacker *u = user;
    (void)a;
    size_t n = tkc_source_next(u->source, block, u->err);
    return tkc_failed(u->err) ? -1 : (la_ssize_t)n;
}

/* Where an entry stops being just a file or a folder below the target. */
bool tkc_is_safe_name(const char *name)
{
    tinkc_str rest = tkc_str(name), part;
    if (!name || !*name || name[0] == '/' || rest.len > MAX_NAME)
        return false;
    for (size_t i = 0; i < rest.len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '\\')
            return false;
    while (tkc_str_cut(&rest, '/', &part))
        if (tkc_str_is(part, ".."))
            return false;
    return true;
}

/* libarchive has no words for some kinds of damage. */
static const char *reason_of(const unpacker *u)
{
    const char *said = u->la->error_string(u->archive);
    return said && *said ? said : "it is damaged";
}

static bool check_entry(unpacker *u, struct archive_entry *entry, const char *name)
{
    __LA_MODE_T type = u->la->entry_filetype(entry);
    if (u->la->entry_hardlink(entry) || u->la->entry_symlink(entry))
        return tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE, "archive: a link: %.200s",
                        name ? name : "?");
    if (type != AE_IFREG && type != AE_IFDIR)
        return tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE, "archive: neither file nor folder: %.200s",
                        name ? name : "?");
    /* Python's tarfile writes a folder that is added under no name as "/": it is the target itself. */
    bool itself = type == AE_IFDIR && tkc_cstr_eq(name, "/");
    if (!itself && !tkc_is_safe_name(name))
        return tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE, "archive: a path that leads outside");
    if (u->list->n >= MAX_FILES)
        return tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: more than %d files", MAX_FILES);
    return true;
}

/* "./a//b/" to "a/b", into out; "" for the folder itself. */
static void tidy_name(const char *name, char out[MAX_NAME + 1])
{
    tinkc_str rest = tkc_str(name), part;
    size_t len = 0;
    while (tkc_str_cut(&rest, '/', &part)) {
        if (part.len == 0 || tkc_str_is(part, "."))
            continue;
        if (len)
            out[len++] = '/';
        memcpy(out + len, part.data, part.len);
        len += part.len;
    }
    out[len] = 0;
}

/* Makes the folders on the way to a file; whole = the last part is a folder, too. */
static bool make_way(char *path, size_t from, bool whole, tinkc_error *err)
{
    for (char *c = path + from; *c; c++) {
        if (*c != '/')
            continue;
        *c = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return tkc_fail_errno(err, "%s", path);
        *c = '/';
    }
    if (whole && mkdir(path, 0777) != 0 && errno != EEXIST)
        return tkc_fail_errno(err, "%s", path);
    return true;
}

static bool put_bytes(unpacker *u, out_file *f, const void *bytes, size_t n)
{
    if (u->left >= 0 && (u->left -= (int64_t)n) < 0)
        return tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: unpacks to more than max_bytes");
    int fault = tkc_writer_add(u->writer, f->fd, bytes, n);
    if (fault) {
        errno = fault;
        return tkc_fail_errno(u->err, "%s", f->path);
    }
    if (!u->list->no_digests)
        tkc_digest_add(&f->digest, bytes, n); /* while the other thread writes */
    f->size += (int64_t)n;
    return true;
}

/* A sparse file's holes. Those of more than MAX_HOLES in all are refused before they are written. */
static bool put_zeros(unpacker *u, out_file *f, int64_t until)
{
    static const char zeros[4 * 1024]; /* constant data is part of the library's file */
    int64_t hole = until - f->size;
    if (hole <= 0)
        return true;
    if (u->left < 0 && hole > MAX_HOLES - u->holes)
        return tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE,
                        "archive: sparse files with holes of more than %lld MiB; max_bytes "
                        "allows more",
                        (long long)(MAX_HOLES >> 20));
    u->holes += hole;
    while (f->size < until) {
        int64_t n = until - f->size;
        if (tkc_stopper_is_stopped(u->source->stop))
            return tkc_fail(u->err, TINKC_E_CANCELLED, "the download was stopped");
        if (!put_bytes(u, f, zeros, n < (int64_t)sizeof zeros ? (size_t)n : sizeof zeros))
            return false;
    }
    return true;
}

static bool write_file_data(unpacker *u, out_file *f)
{
    const void *bytes;
    size_t n;
    la_int64_t at;
    int r;
    while ((r = u->la->read_data_block(u->archive, &bytes, &n, &at)) == ARCHIVE_OK ||
           r == ARCHIVE_WARN)
        if (at < f->size || !put_zeros(u, f, at) || !put_bytes(u, f, bytes, n))
            break;
    if (r == ARCHIVE_EOF && !put_zeros(u, f, at))
        return false;
    if (r != ARCHIVE_EOF && !tkc_failed(u->err))
        tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: %s",
                 r < ARCHIVE_WARN ? reason_of(u) : "its pieces overlap");
    return !tkc_failed(u->err);
}

static bool write_file(unpacker *u, const char *name, const char *path)
{
    char hex[TKC_SHA256_HEX];
    /* What an earlier run left, or a link, must not be written through. */
    if (unlink(path) != 0 && errno != ENOENT)
        return tkc_fail_errno(u->err, "%s", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return tkc_fail_errno(u->err, "%s", path);
    out_file f = { .fd = fd, .path = path };
    tkc_sha256_init(&f.digest);
    bool ok = write_file_data(u, &f);
    int fault = tkc_writer_flush(u->writer, fd); /* also before a close that gives up */
    if (close(fd) != 0 && !fault)
        fault = errno;
    errno = fault;
    if (ok && fault)
        ok = tkc_fail_errno(u->err, "%s", path);
    tkc_digest_hex(&f.digest, hex);
    return ok && tkc_file_list_add(u->list, name, hex, f.size, u->err);
}

static bool unpack_entry(unpacker *u, struct archive_entry *entry)
{
    char name[MAX_NAME + 1];
    const char *raw = u->la->entry_pathname_utf8(entry);
    if (!raw)
        raw = u->la->entry_pathname(entry);
    if (!check_entry(u, entry, raw))
        return false;
    tidy_name(raw, name);
    size_t folder_len = strlen(u->folder), size = folder_len + strlen(name) + 2;
    char *path = tkc_alloc(NULL, size, u->err);
    if (!path)
        return false;
    snprintf(path, size, "%s/%s", u->folder, name);
    bool is_folder = u->la->entry_filetype(entry) == AE_IFDIR;
    bool ok = !name[0] || make_way(path, folder_len + 1, is_folder, u->err);
    if (ok && !is_folder)
        ok = name[0] ? write_file(u, name, path)
                     : tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE, "archive: a file without a name");
    tkc_release(NULL, path, size);
    return ok;
}

/* What the list holds is on disk, and the source can be taken up where this entry begins: only in
 * a tar that is not compressed. */
static bool mark_place(unpacker *u)
{
    if (u->la->filter_code(u->archive, 0) != ARCHIVE_FILTER_NONE)
        return true;
    return u->mark(u->user, u->base + u->la->read_header_position(u->archive), u->err);
}

static bool unpack_all(unpacker *u)
{
    struct archive_entry *entry;
    int r;
    while ((r = u->la->read_next_header(u->archive, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN)
        if (!mark_place(u) || !unpack_entry(u, entry))
            return false;
    if (r != ARCHIVE_EOF && !tkc_failed(u->err))
        return tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: %s", reason_of(u));
    /* What stands behind the end of the archive counts towards the length. */
    const void *rest;
    while (!tkc_failed(u->err) && tkc_source_next(u->source, &rest, u->err) > 0)
        ;
    return !tkc_failed(u->err);
}

static bool open_archive(unpacker *u)
{
    const library_table *la = u->la;
    u->archive = la->read_new();
    if (!u->archive)
        return tkc_fail_memory(u->err);
    la->read_support_format_tar(u->archive);
    la->read_support_filter_gzip(u->archive);
    la->read_support_filter_bzip2(u->archive);
    la->read_support_filter_xz(u->archive);
    la->read_support_filter_zstd(u->archive);
    la->read_support_filter_lz4(u->archive);
    if (la->read_open(u->archive, u, NULL, feed, NULL) != ARCHIVE_OK && !tkc_failed(u->err))
        tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: %s", reason_of(u));
    return !tkc_failed(u->err);
}

bool tkc_unpack(tkc_source *source, const char *folder, int64_t max_bytes, tkc_file_list *list,
                tkc_mark_fn *mark, void *user, tinkc_error *err)
{
    const tinkc_allocator *a = source->client->a;
    unpacker u = { .la = open_library(err),
                   .source = source,
                   .folder = folder,
                   .list = list,
                   .mark = mark,
                   .user = user,
                   .err = err,
                   .base = source->pos,
                   .left = max_bytes > 0 ? max_bytes : -1 };
    if (u.la && !list->no_digests)
        u.writer = tkc_writer_new(a, err);
    bool ok = !tkc_failed(err) && open_archive(&u) && unpack_all(&u);
    if (u.archive)
        u.la->read_free(u.archive);
    tkc_writer_free(u.writer, a);
    return ok;
}

bool tkc_file_list_add(tkc_file_list *list, const char *name, const char *sha256, int64_t size,
                       tinkc_error *err)
{
    tinkc_file *file = tkc_arena_alloc(list->arena, sizeof *file, err);
    if (!file)
        return false;
    *file =
        (tinkc_file){ .name = tkc_arena_cstr(list->arena, name, err),
                      .sha256 = tkc_arena_cstr(list->arena, list->no_digests ? "" : sha256, err),
                      .size_bytes = size };
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 16;
        tinkc_file **grown = tkc_arena_array(list->arena, cap, sizeof *grown, err);
        if (!grown)
            return false;
        if (list->n)
            memcpy(grown, list->files, list->n * sizeof *grown);
        list->files = grown;
        list->cap = cap;
    }
    if (tkc_failed(err))
        return false;
    list->files[list->n++] = file;
    return true;
}
