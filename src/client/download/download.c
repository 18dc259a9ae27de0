/* download.c - checkpoints and files onto the disk: names, resuming, moving into place.
 *
 * Each download has a thread of its own, because files and libarchive wait. The future around it
 * belongs to the I/O thread as always: stopping it completes it at once and tells the worker, which
 * then ends as soon as it can; the operation's memory stays until it has.
 *
 * On disk: NAME.partial (a folder while unpacking, else a file) and NAME.partial.state, which says
 * which bytes it is made of. Both are gone once NAME is there. External weights have no state: each of
 * their files has an address of its own and nothing says that they belong to one save, so another
 * run begins again.
 */
#include "client/download/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/platform.h"
#include "client/core/client_priv.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "codec/age.h"
#include "codec/tinker_path.h"
#include "codec/url.h"

enum { STATE_MAX = 64 * 1024 * 1024, BLOCK = 64 * 1024, STATE_EVERY_MS = 1000 };

struct tinkc_download {
    const char *target;
    int64_t bytes;
    tkc_file_list list;
};

typedef struct download_op {
    tinkc_future f;
    tkc_stopper stop;
    bool stop_ready;
    pthread_t thread;
    tkc_task after;
    tinkc_error err; /* the worker's outcome */

    /* set before the start, then the worker's; all in the future's arena */
    const char *path, *url; /* one of them */
    const char *what;       /* names the bytes in the state file: the path, or the URL's own part */
    const char *dir, *name;
    tinkc_download_options o;
    char *target, *partial, *state;
    tinkc_download result;
    tkc_source source;
    int64_t state_due_ms; /* marks are written down from then on */
    int64_t newest_mark;  /* where a failed run can be taken up */
    bool external;        /* files with an address each, instead of an archive */
    char **identities;    /* a list, of external weights that are encrypted; NULL = as they come */
} download_op;

static download_op *op_of(tinkc_future *f)
{
    return (download_op *)(void *)f;
}

/* ---- the state file ---- */

static bool write_state(download_op *op, int64_t offset, tinkc_error *err)
{
    tkc_buf buf;
    tkc_jsonw w;
    tkc_buf_init(&buf, NULL, STATE_MAX);
    tkc_jsonw_open(&w, &buf, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "what");
    tkc_jsonw_cstr(&w, op->what);
    tkc_jsonw_key(&w, "etag");
    tkc_jsonw_cstr(&w, op->source.etag);
    tkc_jsonw_key(&w, "total");
    tkc_jsonw_i64(&w, op->source.total);
    tkc_jsonw_key(&w, "offset");
    tkc_jsonw_i64(&w, offset);
    tkc_jsonw_key(&w, "files");
    tkc_jsonw_array(&w);
    for (size_t i = 0; i < op->result.list.n; i++) {
        const tinkc_file *file = op->result.list.files[i];
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "name");
        tkc_jsonw_cstr(&w, file->name);
        tkc_jsonw_key(&w, "sha256");
        tkc_jsonw_cstr(&w, file->sha256);
        tkc_jsonw_key(&w, "size");
        tkc_jsonw_i64(&w, file->size_bytes);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    bool ok = !tkc_failed(err) && tkc_write_file(op->state, buf.data, buf.len, 0600, err);
    tkc_buf_free(&buf);
    return ok;
}

typedef struct saved {
    tinkc_str what, etag;
    int64_t total, offset;
} saved;

/* A bad one shows in err or in the reader. */
static void read_file_entry(tkc_json *j, tkc_file_list *list, tinkc_error *err)
{
    tinkc_str key, name = { 0 }, sha = { 0 };
    int64_t size = -1;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "name"))
            name = tkc_json_string(j);
        else if (tkc_str_is(key, "sha256"))
            sha = tkc_json_string(j);
        else if (tkc_str_is(key, "size"))
            size = tkc_json_i64(j);
        else
            tkc_json_skip(j);
    }
    const char *text = tkc_arena_str(list->arena, name, err);
    const char *digest = tkc_arena_str(list->arena, sha, err);
    if (!text || !digest || !tkc_is_safe_name(text) || (sha.len != 64 && sha.len != 0) || size < 0)
        tkc_fail(err, TINKC_E_FILE, "state: not a file's entry");
    else
        tkc_file_list_add(list, text, digest, size, err);
}

static bool parse_state(tinkc_bytes text, tkc_arena *arena, saved *s, tkc_file_list *list,
                        tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    *s = (saved){ .total = -1, .offset = -1 };
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "what"))
                s->what = tkc_json_string(&j);
            else if (tkc_str_is(key, "etag"))
                s->etag = tkc_json_string(&j);
            else if (tkc_str_is(key, "total"))
                s->total = tkc_json_i64(&j);
            else if (tkc_str_is(key, "offset"))
                s->offset = tkc_json_i64(&j);
            else if (tkc_str_is(key, "files") && tkc_json_array(&j))
                while (tkc_json_item(&j))
                    read_file_entry(&j, list, err);
            else
                tkc_json_skip(&j);
        }
    tkc_json_close(&j);
    return !tkc_failed(err);
}

/* An earlier run left a file without its digest, and now it is wanted. */
static bool digest_late(download_op *op, tinkc_file *file, const char *path)
{
    tinkc_error ignored = { 0 };
    char hex[TKC_SHA256_HEX];
    if (op->result.list.no_digests || file->sha256[0])
        return true;
    if (!tinkc_file_sha256(path, hex, &ignored))
        return false;
    file->sha256 = tkc_arena_cstr(&op->f.arena, hex, &ignored);
    return file->sha256 != NULL;
}

/* The files that an earlier run finished are still as it left them. */
static bool files_are_there(download_op *op)
{
    for (size_t i = 0; i < op->result.list.n; i++) {
        tinkc_file *file = op->result.list.files[i];
        tinkc_error ignored = { 0 };
        struct stat st;
        const char *path = tkc_path_join(&op->f.arena, op->partial, file->name, &ignored);
        if (!path || lstat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
            st.st_size != file->size_bytes || !digest_late(op, file, path))
            return false;
    }
    return true;
}

/* Takes over what an earlier run left, if all of it fits. False: begin again, which costs time; a mixture
 * of two files would cost the file. */
static bool load_state(download_op *op, bool unpacks)
{
    tinkc_error err = { 0 };
    saved s;
    struct stat st;
    if (op->o.no_resume || lstat(op->partial, &st) != 0)
        return false;
    if (unpacks ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
        return false;
    tinkc_bytes text = tkc_read_file(&op->f.arena, op->state, STATE_MAX, &err);
    if (tkc_failed(&err) || !parse_state(text, &op->f.arena, &s, &op->result.list, &err) ||
        !tkc_str_is(s.what, op->what) || s.etag.len >= sizeof op->source.etag)
        return false;
    /* A file is as long as it is; of a folder only the mark says what is whole. */
    int64_t offset = unpacks ? s.offset : (int64_t)st.st_size;
    if (offset <= 0 || (s.total >= 0 && offset > s.total) || (unpacks && !files_are_there(op)))
        return false;
    /* Without a length or a mark nobody could tell whether the bytes are still the same. */
    if (s.total < 0 && s.etag.len == 0)
        return false;
    op->source.pos = offset;
    op->source.total = s.total;
    memcpy(op->source.etag, s.etag.data, s.etag.len); /* the rest is zero */
    return true;
}

static bool clear_partial(download_op *op, tinkc_error *err)
{
    struct stat st;
    op->result.list.n = 0;
    op->source.pos = 0;
    op->source.total = -1;
    op->source.etag[0] = 0;
    /* First: without it nobody takes up a folder of which only a part is removed. */
    if (unlink(op->state) != 0 && errno != ENOENT)
        return tkc_fail_errno(err, "%s", op->state);
    if (lstat(op->partial, &st) != 0)
        return true;
    if (S_ISDIR(st.st_mode))
        return tkc_remove_tree(op->partial, err);
    return unlink(op->partial) == 0 || tkc_fail_errno(err, "%s", op->partial);
}

/* ---- unpacking a checkpoint ---- */

static bool on_mark(void *user, int64_t offset, tinkc_error *err)
{
    download_op *op = user;
    int64_t now = tkc_now_ms(op->f.client->clock);
    op->newest_mark = offset;
    if (now < op->state_due_ms)
        return true;
    op->state_due_ms = now + STATE_EVERY_MS;
    return write_state(op, offset, err);
}

static bool unpack_checkpoint(download_op *op, tinkc_error *err)
{
    op->newest_mark = op->source.pos;
    if (mkdir(op->partial, 0777) != 0 && errno != EEXIST)
        return tkc_fail_errno(err, "%s", op->partial);
    if (tkc_unpack(&op->source, op->partial, op->o.max_bytes, &op->result.list, on_mark, op, err))
        return true;
    /* What is whole stays for the next run; a bad archive does not. */
    tinkc_error ignored = { 0 };
    if (err->code == TINKC_E_UNSAFE_ARCHIVE || err->code == TINKC_E_BAD_RESPONSE)
        clear_partial(op, &ignored);
    else
        write_state(op, op->newest_mark, &ignored);
    return false;
}

/* ---- one file ---- */

/* The bytes that are there already count towards the digest. */
static bool digest_existing(int fd, const char *path, tkc_digest *digest, int64_t len,
                            tinkc_error *err)
{
    char block[BLOCK];
    for (int64_t at = 0; at < len;) {
        size_t most = len - at < BLOCK ? (size_t)(len - at) : BLOCK;
        ssize_t n = pread(fd, block, most, (off_t)at);
        if (n <= 0)
            return n < 0 ? tkc_fail_errno(err, "%s", path)
                         : tkc_fail(err, TINKC_E_FILE, "%s: shorter than it was", path);
        tkc_digest_add(digest, block, (size_t)n);
        at += n;
    }
    return true;
}

static bool copy_bytes(download_op *op, tkc_writer *writer, int fd, tkc_digest *digest,
                       tinkc_error *err)
{
    const void *bytes;
    size_t n;
    bool wrote_state = false;
    while ((n = tkc_source_next(&op->source, &bytes, err)) > 0) {
        /* Before the first byte: bytes without it could not be taken up. */
        if (!wrote_state && !op->external && !write_state(op, 0, err))
            return false;
        wrote_state = true;
        errno = tkc_writer_add(writer, fd, bytes, n);
        if (errno)
            return tkc_fail_errno(err, "%s", op->partial);
        if (!op->o.no_digests)
            tkc_digest_add(digest, bytes, n); /* while the other thread writes */
    }
    return !tkc_failed(err);
}

static bool fetch_bytes(download_op *op, int fd, tkc_digest *digest, tinkc_error *err)
{
    const tinkc_allocator *a = op->f.client->a;
    tkc_writer *writer = op->o.no_digests ? NULL : tkc_writer_new(a, err);
    bool ok = !tkc_failed(err) && copy_bytes(op, writer, fd, digest, err);
    int fault =
        tkc_writer_flush(writer, fd); /* what has come is worth keeping after a failure, too */
    tkc_writer_free(writer, a);
    /* On the disk before it gets its name. */
    if (ok && fault == 0 && tkc_sync_file(fd) != 0)
        fault = errno;
    errno = fault;
    return ok && (!fault || tkc_fail_errno(err, "%s", op->partial));
}

/* All of the source into the file at `path`, from where the source is; `name` is its name in the list. */
static bool save_file(download_op *op, const char *path, const char *name, tinkc_error *err)
{
    char hex[TKC_SHA256_HEX];
    tkc_digest digest;
    int64_t from = op->source.pos;
    /* O_NOFOLLOW: a link that lies there must not lead the bytes elsewhere. */
    int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (from ? 0 : O_TRUNC);
    int fd = open(path, flags, 0666);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", path);
    tkc_sha256_init(&digest);
    bool ok = (op->o.no_digests || digest_existing(fd, path, &digest, from, err)) &&
              (lseek(fd, (off_t)from, SEEK_SET) >= 0 || tkc_fail_errno(err, "%s", path)) &&
              fetch_bytes(op, fd, &digest, err);
    if (close(fd) != 0 && ok)
        ok = tkc_fail_errno(err, "%s", path);
    if (!ok)
        return false;
    tkc_digest_hex(&digest, hex);
    return tkc_file_list_add(&op->result.list, name, hex, op->source.pos, err);
}

/* ---- external weights ---- */

static void open_source(download_op *op)
{
    tkc_source_init(&op->source, op->f.client, &op->stop, &op->f);
    op->source.path = op->path;
    op->source.max_bytes = op->o.max_bytes;
}

/* One file into the partial folder, in folders of its own if its name says so. */
static bool fetch_link(download_op *op, const char *name, const char *url, tinkc_error *err)
{
    tkc_arena *arena = &op->f.arena;
    int64_t before = op->source.before + op->source.pos, travelled = op->source.travelled;
    if (op->o.max_bytes && before >= op->o.max_bytes)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "larger than max_bytes");
    char *path = tkc_path_join(arena, op->partial, name, err);
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash) {
        *slash = 0;
        tkc_make_dirs(path, err);
        *slash = '/';
    }
    if (tkc_failed(err))
        return false;
    tkc_source_end(&op->source);
    open_source(op);
    op->source.file = name;
    op->source.url = tkc_arena_cstr(&op->source.arena, url, err);
    op->source.before = before;
    op->source.travelled = travelled;
    if (op->o.max_bytes)
        op->source.max_bytes = op->o.max_bytes - before;
    return !tkc_failed(err) && save_file(op, path, name, err);
}

static const char age_suffix[] = ".age";

/* The newest file of the list is encrypted: another one, without the suffix, takes its place. */
static bool decrypt_newest(download_op *op, tinkc_error *err)
{
    char hex[TKC_SHA256_HEX];
    tkc_digest digest;
    tkc_arena *arena = &op->f.arena;
    tinkc_file *file = op->result.list.files[--op->result.list.n];
    size_t len = strlen(file->name) - (sizeof age_suffix - 1);
    int64_t size = 0;
    const char *from = tkc_path_join(arena, op->partial, file->name, err);
    const char *name = tkc_arena_str(arena, tkc_strn(file->name, len), err);
    const char *to = name ? tkc_path_join(arena, op->partial, name, err) : NULL;
    const char *const *identities = (const char *const *)op->identities;
    if (!to || !from ||
        !tkc_age_decrypt(from, to, identities, &op->stop, &digest, &size, err))
        return false;
    tkc_digest_hex(&digest, hex);
    return (unlink(from) == 0 || tkc_fail_errno(err, "%s", from)) &&
           tkc_file_list_add(&op->result.list, name, hex, size, err);
}

/* A file that would lie outside the folder, or where another one does, makes all of them suspect. */
static bool check_links(const tinkc_links *links, bool encrypted, tinkc_error *err)
{
    size_t n = tinkc_links_count(links);
    if (n == 0)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "external weights: the service names no files");
    for (size_t i = 0; i < n; i++) {
        const char *name = tinkc_links_at(links, i)->name;
        if (!tkc_is_safe_name(name))
            return tkc_fail(err, TINKC_E_UNSAFE_ARCHIVE, "external weights: unsafe name '%.200s'",
                            name);
        const char *slash = strrchr(name, '/');
        tinkc_str file = tkc_str(slash ? slash + 1 : name);
        if (encrypted && (file.len < sizeof age_suffix || !tkc_ends_with(file, age_suffix)))
            return tkc_fail(err, TINKC_E_BAD_RESPONSE,
                            "external weights: '%.200s' is not encrypted; save them with recipients, or "
                            "download them without an identity",
                            name);
    }
    return true;
}

static bool fetch_links(download_op *op, tinkc_error *err)
{
    tinkc_future *f = tinkc_checkpoint_links(op->f.client, op->path, err);
    const tinkc_links *links = NULL;
    if (tkc_stopper_wait(&op->stop, f, err))
        links = tinkc_future_links(f, 0, err);
    bool ok = links && check_links(links, op->identities, err);
    if (ok && mkdir(op->partial, 0777) != 0 && errno != EEXIST)
        ok = tkc_fail_errno(err, "%s", op->partial);
    for (size_t i = 0; ok && i < tinkc_links_count(links); i++) {
        const char *name = tkc_arena_cstr(&op->f.arena, tinkc_links_at(links, i)->name, err);
        ok = name && fetch_link(op, name, tinkc_links_at(links, i)->url, err) &&
             (!op->identities || decrypt_newest(op, err));
    }
    tinkc_future_free(f);
    return ok;
}

/* ---- handing the bytes to the caller ---- */

static bool hand_on_download(download_op *op, tinkc_error *err)
{
    const void *bytes;
    size_t n;
    while ((n = tkc_source_next(&op->source, &bytes, err)) > 0)
        if (!op->o.write(op->o.write_user, bytes, n))
            return tkc_fail(err, TINKC_E_CANCELLED, "the receiver ended the download");
    return !tkc_failed(err);
}

static bool pour_out(download_op *op, tinkc_error *err)
{
    const void *bytes;
    size_t n;
    tkc_fd_sink sink;
    if (!tkc_fd_sink_open(&sink, op->o.fd, err))
        return false;
    op->source.sink = &sink;
    while ((n = tkc_source_next(&op->source, &bytes, err)) > 0)
        if (!tkc_fd_sink_write(&sink, &op->stop, bytes, n, err))
            break;
    tkc_source_end(&op->source); /* nobody uses the sink any more */
    tkc_fd_sink_close(&sink);
    return !tkc_failed(err);
}

/* ---- moving into place ---- */

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Where `path` lies while it is replaced. What a run before this one could not remove is left alone. */
static char *free_name(download_op *op, const char *path, tinkc_error *err)
{
    int number = (int)getpid();
    char *name;
    do
        name = tkc_arena_printf(&op->f.arena, err, "%s.old-%d", path, number++);
    while (name && exists(name));
    return name;
}

/* `from` becomes `to`; what was there is taken away only after it has made room. */
static bool move_into_place(download_op *op, const char *from, const char *to, tinkc_error *err)
{
    char *old = free_name(op, to, err);
    bool replaced = false;
    if (!old)
        return false;
    if (exists(to)) {
        if (!op->o.replace)
            return tkc_fail(err, TINKC_E_EXISTS, "%s: already exists", to);
        if (rename(to, old) != 0)
            return tkc_fail_errno(err, "%s", to);
        replaced = true;
    }
    if (rename(from, to) != 0) {
        tkc_fail_errno(err, "%s", to);
        if (replaced)
            (void)!rename(old, to); /* or it lies beside it under its other name */
        return false;
    }
    struct stat st;
    if (replaced && lstat(old, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            tkc_remove_tree(old, err);
        else if (unlink(old) != 0)
            tkc_fail_errno(err, "%s", old);
    }
    return !tkc_failed(err);
}

/* The first part of a name: what stands directly in the folder. */
static tinkc_str top_of(const char *name)
{
    return tkc_strn(name, strcspn(name, "/"));
}

/* flat: each top entry moves into dir by itself. With `check` only looks whether it could. */
static bool place_flat(download_op *op, bool check, tinkc_error *err)
{
    tinkc_str last = { 0 };
    for (size_t i = 0; i < op->result.list.n; i++) {
        tinkc_str top = top_of(op->result.list.files[i]->name);
        if (tkc_str_eq(top, last))
            continue;
        last = top;
        const char *name = tkc_arena_str(&op->f.arena, top, err);
        const char *from = name ? tkc_path_join(&op->f.arena, op->partial, name, err) : NULL;
        const char *to = from ? tkc_path_join(&op->f.arena, op->dir, name, err) : NULL;
        if (!to)
            return false;
        if (check && !op->o.replace && exists(to))
            return tkc_fail(err, TINKC_E_EXISTS, "%s: already exists", to);
        if (!check && exists(from) && !move_into_place(op, from, to, err))
            return false;
    }
    return check || tkc_remove_tree(op->partial, err);
}

static bool place_download(download_op *op, bool flat, tinkc_error *err)
{
    tinkc_error ignored = { 0 };
    /* All are looked at before the first one moves. */
    bool ok = flat ? place_flat(op, true, err) && place_flat(op, false, err)
                   : move_into_place(op, op->partial, op->target, err);
    if (!ok)
        return false;
    /* Last: until here another run could have taken up. */
    (void)unlink(op->state);
    tkc_sync_parent(op->target, &ignored);
    return true;
}

/* ---- the worker ---- */

static bool fetch_once(download_op *op, bool unpacks, tinkc_error *err)
{
    if (op->external)
        return fetch_links(op, err);
    if (unpacks)
        return unpack_checkpoint(op, err);
    op->result.list.n = 0;
    return save_file(op, op->partial, op->name, err);
}

static bool begin_source(download_op *op, tinkc_error *err)
{
    open_source(op);
    op->source.url = op->url ? tkc_arena_cstr(&op->source.arena, op->url, err) : NULL;
    return !tkc_failed(err);
}

static bool fetch_into_dir(download_op *op, tinkc_error *err)
{
    bool unpacks = op->path && !op->o.keep_archive, flat = unpacks && op->o.flat;
    if (!flat && !op->o.replace && exists(op->target))
        return tkc_fail(err, TINKC_E_EXISTS, "%s: already exists", op->target);
    bool resumed = !op->external && load_state(op, unpacks);
    if (!resumed && !clear_partial(op, err))
        return false;
    bool ok = fetch_once(op, unpacks, err);
    if (!ok && resumed && op->source.changed) { /* other bytes than last time: all again, once */
        *err = (tinkc_error){ 0 };
        ok = clear_partial(op, err) && fetch_once(op, unpacks, err);
    }
    if (!ok && (op->source.pos == 0 || op->external)) { /* nothing to resume from */
        tinkc_error ignored = { 0 };
        clear_partial(op, &ignored);
    }
    if (!ok || !place_download(op, flat, err))
        return false;
    op->result.target = flat ? op->dir : op->target;
    return true;
}

/* The first folder on the way to op->dir that is not there yet, as a length of op->dir; 0 = it is there. */
static size_t first_missing(download_op *op, tinkc_error *err)
{
    char *path = tkc_arena_cstr(&op->f.arena, op->dir, err);
    size_t len = 0;
    while (path && *path && !tkc_is_dir(path)) {
        len = strlen(path);
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = 0;
    }
    return len;
}

/* Folders that were made for a download of which nothing came do not stay behind. */
static void remove_empty_dirs(download_op *op, size_t first, tinkc_error *err)
{
    char *path = tkc_arena_cstr(&op->f.arena, op->dir, err);
    for (size_t len = path ? strlen(path) : 0; len >= first; len = strlen(path)) {
        if (rmdir(path) != 0 && errno != ENOENT) /* "a/b/" is "a/b", too */
            return;
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = 0;
    }
}

static bool download_to_disk(download_op *op, tinkc_error *err)
{
    size_t first = first_missing(op, err);
    if (tkc_failed(err) || (first && !tkc_make_dirs(op->dir, err)))
        return false;
    if (fetch_into_dir(op, err))
        return true;
    tinkc_error ignored = { 0 };
    if (first)
        remove_empty_dirs(op, first, &ignored);
    return false;
}

static void run_download(download_op *op, tinkc_error *err)
{
    op->result.target = "";
    bool ok = begin_source(op, err) && (op->o.fd      ? pour_out(op, err)
                                        : op->o.write ? hand_on_download(op, err)
                                                      : download_to_disk(op, err));
    if (ok)
        op->result.bytes = op->source.travelled;
}

static void *worker(void *arg)
{
    download_op *op = arg;
    run_download(op, &op->err);
    tkc_source_end(&op->source);
    tkc_loop_post(op->f.client->loop, &op->after);
    return NULL;
}

/* ---- the operation ---- */

static void after_worker(tkc_task *task)
{
    download_op *op = TKC_OWNER(task, download_op, after);
    tinkc_client *client = op->f.client;
    pthread_join(op->thread, NULL);
    tkc_client_worker(client, false);
    if (!tkc_failed(&op->err))
        op->f.result = &op->result;
    /* If it was stopped meanwhile it has completed already; this then only releases it. */
    tkc_op_finish(&op->f, &op->err);
    tkc_client_reply_back(client); /* the last thing: it may end the loop */
}

static void download_start(tinkc_future *f)
{
    download_op *op = op_of(f);
    tinkc_error err = { 0 };
    op->after.run = after_worker;
    tkc_op_stage(f, TINKC_STAGE_FETCHING);
    /* The worker may be through already: its task waits for this thread. */
    if (tkc_thread_start(&op->thread, worker, op, "tinkc-download", &err)) {
        atomic_fetch_add(&f->client->replies, 1); /* the client's loop stays until it is back */
        tkc_client_worker(f->client, true);
    } else
        tkc_op_finish(f, &err);
}

static void download_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_stopper_stop(&op_of(f)->stop);
    tkc_op_complete(f, why); /* the worker releases the operation when it ends */
}

static void download_destroy(tinkc_future *f)
{
    for (char **one = op_of(f)->identities; one && *one; one++)
        tkc_wipe(*one, strlen(*one));
    if (op_of(f)->stop_ready)
        tkc_stopper_destroy(&op_of(f)->stop);
}

static const tkc_op_class checkpoint_class = { "checkpoint_download", "download",
                                               sizeof(download_op),   download_start,
                                               download_stop,         download_destroy };
static const tkc_op_class url_class = { "url_download", "download",    sizeof(download_op),
                                        download_start, download_stop, download_destroy };

/* ---- arguments ---- */

static bool check_download_options(const tinkc_download_options *o, tinkc_error *err)
{
    if (o->max_bytes < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "max_bytes is negative");
    if ((o->write || o->fd) && (o->dir || o->name || o->flat || o->replace))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "%s takes the bytes: dir, name, flat and replace have no meaning",
                        o->write ? "write" : "fd");
    if (o->fd < 0 || (o->fd && o->write))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        o->fd < 0 ? "fd is negative" : "fd and write: give one of them");
    if (o->reserved_int || !tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "download options: reserved must be zero");
    if (o->name &&
        (!tkc_is_safe_name(o->name) || strchr(o->name, '/') || strcmp(o->name, ".") == 0))
        return tkc_fail(err, TINKC_E_ARGUMENT, "name is not the name of a file");
    return true;
}

/* A copy that lasts as long as the download. */
static void keep_identities(download_op *op, tinkc_error *err)
{
    unsigned char key[TKC_AGE_KEY];
    const char *const *from = op->o.age_identities;
    size_t n = 0;
    while (from && from[n])
        n++;
    if (!from || tkc_failed(err))
        return;
    if (!op->external || !n) {
        tkc_fail(err, TINKC_E_ARGUMENT, "age_identities: %s",
                 n ? "only external weights are encrypted (tinker://RUN/external_weights/NAME)"
                   : "an empty list would decrypt nothing");
        return;
    }
    op->identities = tkc_arena_zalloc(&op->f.arena, (n + 1) * sizeof *op->identities, err);
    for (size_t i = 0; op->identities && i < n && !tkc_failed(err); i++)
        if (tkc_age_identity(from[i], key))
            op->identities[i] = tkc_arena_cstr(&op->f.arena, from[i], err);
        else
            tkc_fail(err, TINKC_E_ARGUMENT,
                     "age_identities[%zu]: not an X25519 identity (AGE-SECRET-KEY-1...)", i);
    tkc_wipe(key, sizeof key);
}

/* "run:train:0/weights/final" to "run:train:0_weights_final". */
static char *name_of_path(tkc_arena *arena, const char *path, tinkc_error *err)
{
    char *name = tkc_arena_cstr(arena, path + strlen("tinker://"), err);
    for (char *c = name; c && *c; c++)
        if (*c == '/')
            *c = '_';
    return name;
}

/* The last part of the URL's path, as far as it can be a file's name. */
static char *name_of_url(tkc_arena *arena, const char *path, tinkc_error *err)
{
    const char *slash = strrchr(path, '/');
    char *name = tkc_arena_cstr(arena, slash ? slash + 1 : path, err);
    for (char *c = name; c && *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f || *c == '\\' || *c == '%')
            *c = '_';
    if (name && (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
        return tkc_arena_cstr(arena, "download", err);
    return name;
}

static bool choose_names(download_op *op, char *name, tinkc_error *err)
{
    tkc_arena *arena = &op->f.arena;
    const tinkc_download_options *o = &op->o;
    if (o->name)
        name = tkc_arena_cstr(arena, o->name, err);
    /* Ids of runs have colons, which some file systems refuse. */
    for (char *c = name; c && *c && o->portable_names; c++)
        if (*c == ':')
            *c = '_';
    op->name = name;
    op->dir = tkc_arena_cstr(arena, o->dir && *o->dir ? o->dir : ".", err);
    if (tkc_failed(err))
        return false;
    if (!tkc_is_safe_name(op->name))
        return tkc_fail(err, TINKC_E_ARGUMENT, "the path gives no name for a file: give one");
    op->target = tkc_path_join(arena, op->dir, op->name, err);
    if (op->target)
        op->partial = tkc_arena_printf(arena, err, "%s.partial", op->target);
    if (op->partial)
        op->state = tkc_arena_printf(arena, err, "%s.state", op->partial);
    return !tkc_failed(err);
}

static download_op *new_op(tinkc_client *client, const tkc_op_class *class,
                           const tinkc_download_options *options, tinkc_error *err)
{
    static const tinkc_download_options defaults = { 0 };
    if (!options)
        options = &defaults;
    if (!tkc_client_check(client, err) || !check_download_options(options, err))
        return NULL;
    tinkc_future *f = tkc_op_new(client, class, err);
    if (!f)
        return NULL;
    download_op *op = op_of(f);
    op->o = *options;
    op->result.list = (tkc_file_list){ .arena = &f->arena, .no_digests = op->o.no_digests };
    op->stop_ready = tkc_stopper_init(&op->stop, err);
    return op;
}

static tinkc_future *submit_download(download_op *op, char *name, tinkc_error *err)
{
    if (tkc_failed(err) || !choose_names(op, name, err)) {
        tkc_future_drop(&op->f);
        return NULL;
    }
    return tkc_op_submit(&op->f);
}

tinkc_future *tinkc_checkpoint_download(tinkc_client *client, const char *path,
                                        const tinkc_download_options *options, tinkc_error *err)
{
    tinkc_error local;
    tinkc_path parts;
    if (!tkc_enter(&err, &local) || !tkc_tinker_path_any(path, &parts, err))
        return NULL;
    download_op *op = new_op(client, &checkpoint_class, options, err);
    if (!op)
        return NULL;
    op->external = parts.kind == TINKC_CHECKPOINT_EXTERNAL;
    if (op->external && (op->o.keep_archive || op->o.write || op->o.fd))
        tkc_fail(err, TINKC_E_ARGUMENT,
                 "external weights are separate files: there is no archive to keep or hand on");
    op->path = op->what = tkc_arena_cstr(&op->f.arena, path, err);
    keep_identities(op, err);
    char *name = op->path ? name_of_path(&op->f.arena, op->path, err) : NULL;
    if (name && op->o.keep_archive && !op->o.name)
        name = tkc_arena_printf(&op->f.arena, err, "%s.tar", name);
    return submit_download(op, name, err);
}

tinkc_future *tinkc_url_download(tinkc_client *client, const char *url,
                                 const tinkc_download_options *options, tinkc_error *err)
{
    tinkc_error local;
    tkc_url parts;
    if (!tkc_enter(&err, &local))
        return NULL;
    download_op *op = new_op(client, &url_class, options, err);
    if (!op)
        return NULL;
    tkc_arena *arena = &op->f.arena;
    char *name = NULL;
    keep_identities(op, err);
    if (tkc_url_parse(tkc_str(url), arena, &parts, err)) {
        op->url = parts.text;
        /* A signature changes from one address to the next; the file does not. */
        op->what = tkc_arena_printf(arena, err, "%s%s", parts.origin, parts.path);
        name = name_of_url(arena, parts.path, err);
    }
    return submit_download(op, name, err);
}

bool tinkc_file_sha256(const char *path, char out[65], tinkc_error *err)
{
    tinkc_error local;
    tkc_digest digest;
    struct stat st;
    if (!tkc_enter(&err, &local))
        return false;
    if (!path || !out)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is NULL", path ? "out" : "path");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", path);
    tkc_sha256_init(&digest);
    bool ok = fstat(fd, &st) == 0 || tkc_fail_errno(err, "%s", path);
    if (ok && !S_ISREG(st.st_mode))
        ok = tkc_fail(err, TINKC_E_FILE, "%s: not a file", path);
    ok = ok && digest_existing(fd, path, &digest, (int64_t)st.st_size, err);
    close(fd);
    tkc_digest_hex(&digest, out);
    return ok;
}

/* ---- results ---- */

const tinkc_download *tinkc_future_download(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "download", timeout_ms, err);
}

const char *tinkc_download_target(const tinkc_download *d)
{
    return d ? d->target : "";
}

int64_t tinkc_download_bytes(const tinkc_download *d)
{
    return d ? d->bytes : 0;
}

size_t tinkc_download_count(const tinkc_download *d)
{
    return d ? d->list.n : 0;
}

const tinkc_file *tinkc_download_at(const tinkc_download *d, size_t i)
{
    return d && i < d->list.n ? d->list.files[i] : NULL;
}
