/* download_unpack.c - a tar from a source onto the disk, file by file. The only file of the library
 * that knows libarchive, which is opened on first use.
 *
 * An archive comes from outside: nothing in it may name a place outside the target folder, and
 * nothing but plain files and folders is made, so no link can ever lead out of it.
 */
#include "api/download.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "api/client_priv.h"
#include "base/dl.h"
#include "base/str.h"

enum { MAX_FILES = 100 * 1000, MAX_NAME = 4096, BLOCK = 64 * 1024 };

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
    la_ssize_t (*read_data)(struct archive *, void *, size_t);
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
    static const char *const names[] = { "libarchive.so.13", "libarchive.13.dylib", NULL };
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
                                             SYMBOL(read_data),
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
    int64_t base; /* of the source, where the archive reader began */
    int64_t left; /* bytes that may still be written; -1 = any number */
    unsigned char in[BLOCK], out[BLOCK];
} unpacker;

static la_ssize_t feed(struct archive *a, void *user, const void **block)
{
    unpacker *u = user;
    (void)a;
    *block = u->in;
    size_t n = tkc_source_read(u->source, u->in, sizeof u->in, u->err);
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

static bool check_entry(unpacker *u, struct archive_entry *entry, const char *name)
{
    __LA_MODE_T type = u->la->entry_filetype(entry);
    if (u->la->entry_hardlink(entry) || u->la->entry_symlink(entry))
        return tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE, "archive: a link: %.200s",
                        name ? name : "?");
    if (type != AE_IFREG && type != AE_IFDIR)
        return tkc_fail(u->err, TINKC_E_UNSAFE_ARCHIVE, "archive: neither file nor folder: %.200s",
                        name ? name : "?");
    if (!tkc_is_safe_name(name))
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

static bool write_file_data(unpacker *u, int fd, const char *path, int64_t *size, char *hex)
{
    tkc_digest digest;
    la_ssize_t n;
    tkc_sha256_init(&digest);
    *size = 0;
    while ((n = u->la->read_data(u->archive, u->out, sizeof u->out)) > 0) {
        if (u->left >= 0 && (u->left -= n) < 0)
            return tkc_fail(u->err, TINKC_E_BAD_RESPONSE,
                            "archive: unpacks to more than max_bytes");
        if (!tkc_write_all(fd, u->out, (size_t)n))
            return tkc_fail_errno(u->err, "%s", path);
        tkc_digest_add(&digest, u->out, (size_t)n);
        *size += n;
    }
    if (n < 0 && !tkc_failed(u->err))
        tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: %s", u->la->error_string(u->archive));
    tkc_digest_hex(&digest, hex);
    return !tkc_failed(u->err);
}

static bool write_file(unpacker *u, const char *name, char *path)
{
    char hex[TKC_SHA256_HEX];
    int64_t size;
    if (unlink(path) != 0 && errno != ENOENT)
        return tkc_fail_errno(u->err, "%s", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return tkc_fail_errno(u->err, "%s", path);
    bool ok = write_file_data(u, fd, path, &size, hex);
    if (close(fd) != 0 && ok)
        ok = tkc_fail_errno(u->err, "%s", path);
    return ok && tkc_file_list_add(u->list, name, hex, size, u->err);
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
    int64_t at = u->la->read_header_position(u->archive);
    if (!u->mark || u->la->filter_code(u->archive, 0) != ARCHIVE_FILTER_NONE || at % 512 != 0)
        return true;
    return u->mark(u->user, u->base + at, u->err);
}

static bool unpack_all(unpacker *u)
{
    struct archive_entry *entry;
    int r;
    while ((r = u->la->read_next_header(u->archive, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN)
        if (!mark_place(u) || !unpack_entry(u, entry))
            return false;
    if (r != ARCHIVE_EOF && !tkc_failed(u->err))
        return tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: %s",
                        u->la->error_string(u->archive));
    /* What stands behind the end of the archive counts towards the length. */
    while (!tkc_failed(u->err) && tkc_source_read(u->source, u->in, sizeof u->in, u->err) > 0)
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
        tkc_fail(u->err, TINKC_E_BAD_RESPONSE, "archive: %s", la->error_string(u->archive));
    return !tkc_failed(u->err);
}

bool tkc_unpack(tkc_source *source, const char *folder, int64_t max_bytes, tkc_file_list *list,
                tkc_mark_fn *mark, void *user, tinkc_error *err)
{
    const library_table *la = open_library(err);
    unpacker *u = la ? tkc_zalloc(NULL, sizeof *u, err) : NULL;
    if (!u)
        return false;
    u->la = la;
    u->source = source;
    u->folder = folder;
    u->list = list;
    u->mark = mark;
    u->user = user;
    u->err = err;
    u->base = source->pos;
    u->left = max_bytes > 0 ? max_bytes : -1;
    bool ok = open_archive(u) && unpack_all(u);
    if (u->archive)
        la->read_free(u->archive);
    tkc_release(NULL, u, sizeof *u);
    return ok;
}

bool tkc_file_list_add(tkc_file_list *list, const char *name, const char *sha256, int64_t size,
                       tinkc_error *err)
{
    tinkc_file *file = tkc_arena_alloc(list->arena, sizeof *file, err);
    if (!file)
        return false;
    *file = (tinkc_file){ .name = tkc_arena_cstr(list->arena, name, err),
                          .sha256 = tkc_arena_cstr(list->arena, sha256, err),
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
