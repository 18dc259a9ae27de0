/* body.c - the body of a request in pieces. May touch: its own memory, the files it was given. */
#include "client/call/body.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/platform.h"
#include "base/str.h"

struct tkc_upload {
    tkc_refs refs;
    const tinkc_allocator *a;
    char *path; /* for messages */
    int fd;
    uint64_t size;
    struct timespec changed;
};

/* A run of the bytes, or a file. */
typedef struct piece {
    tkc_upload *file; /* a reference; NULL = bytes */
    size_t from;      /* in the bytes */
    uint64_t begin, size;
} piece;

struct tkc_body {
    tkc_refs refs;
    const tinkc_allocator *a;
    tkc_buf bytes;
    piece *pieces;
    size_t n, cap;
    size_t listed; /* how many of the bytes stand in pieces */
    uint64_t size;
};

/* ---- files ---- */

enum { AHEAD = 4 << 20 };

/* Has the system fetch what comes next, so that reading it does not wait for the disk. */
static void look_ahead(const tkc_upload *u, uint64_t at, uint64_t end)
{
    /* Once per AHEAD bytes, not at each read: it is a call of the system. */
    if (at == 0 || at / AHEAD != end / AHEAD)
        tkc_read_ahead(u->fd, (int64_t)((end / AHEAD + 1) * AHEAD), AHEAD);
}

static bool changed(const tkc_upload *u)
{
    struct stat st;
    return fstat(u->fd, &st) != 0 || (uint64_t)st.st_size != u->size ||
           st.st_mtim.tv_sec != u->changed.tv_sec || st.st_mtim.tv_nsec != u->changed.tv_nsec;
}

tkc_upload *tkc_upload_open(const tinkc_allocator *a, const char *path, tinkc_error *err)
{
    struct stat st;
    size_t size;
    tkc_upload *u = tkc_zalloc(a, sizeof *u, err);
    if (!u)
        return NULL;
    tkc_ref_init(&u->refs);
    u->a = a;
    u->fd = tkc_open_regular(path, &size, err);
    u->path = u->fd >= 0 ? tkc_copy_str(a, tkc_str(path), err) : NULL;
    if (u->path && fstat(u->fd, &st) != 0)
        tkc_fail_errno(err, "%s", path);
    if (tkc_failed(err)) {
        tkc_upload_drop(u);
        return NULL;
    }
    u->size = (uint64_t)st.st_size;
    u->changed = st.st_mtim;
    tkc_read_ahead(u->fd, 0, AHEAD);
    return u;
}

void tkc_upload_drop(tkc_upload *u)
{
    if (!u || !tkc_ref_drop(&u->refs))
        return;
    if (u->fd >= 0)
        close(u->fd);
    tkc_release_str(u->a, u->path);
    tkc_release(u->a, u, sizeof *u);
}

static size_t read_upload(const tkc_upload *u, uint64_t at, void *out, size_t cap, tinkc_error *err)
{
    ssize_t n;
    do
        n = pread(u->fd, out, cap, (off_t)at);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        tkc_fail_errno(err, "%s", u->path);
        return 0;
    }
    /* Looked at when it begins and when it ends: what lies between came from the same file. */
    if (n == 0 || ((at == 0 || at + (uint64_t)n >= u->size) && changed(u))) {
        tkc_fail(err, TINKC_E_FILE, "%s: changed while it was sent", u->path);
        return 0;
    }
    look_ahead(u, at, at + (uint64_t)n);
    return (size_t)n;
}

/* ---- pieces ---- */

tkc_body *tkc_body_new(const tinkc_allocator *a, tinkc_error *err)
{
    tkc_body *b = tkc_zalloc(a, sizeof *b, err);
    if (!b)
        return NULL;
    tkc_ref_init(&b->refs);
    b->a = a;
    tkc_buf_init(&b->bytes, a, TKC_BUF_NO_MAX);
    return b;
}

void tkc_body_keep(tkc_body *b)
{
    tkc_ref_keep(&b->refs);
}

void tkc_body_drop(tkc_body *b)
{
    if (!b || !tkc_ref_drop(&b->refs))
        return;
    for (size_t i = 0; i < b->n; i++)
        tkc_upload_drop(b->pieces[i].file);
    tkc_release(b->a, b->pieces, b->cap * sizeof *b->pieces);
    tkc_buf_free(&b->bytes);
    tkc_release(b->a, b, sizeof *b);
}

tkc_buf *tkc_body_bytes(tkc_body *b)
{
    return &b->bytes;
}

static bool add_piece(tkc_body *b, piece p, tinkc_error *err)
{
    piece *grown = tkc_grow(b->a, b->pieces, &b->cap, b->n + 1, sizeof *grown, err);
    if (!grown)
        return false;
    b->pieces = grown;
    p.begin = b->size;
    grown[b->n++] = p;
    b->size += p.size;
    return true;
}

bool tkc_body_close(tkc_body *b, tinkc_error *err)
{
    if (b->listed == b->bytes.len)
        return true;
    piece p = { .from = b->listed, .size = b->bytes.len - b->listed };
    b->listed = b->bytes.len;
    return add_piece(b, p, err);
}

bool tkc_body_file(tkc_body *b, tkc_upload *file, tinkc_error *err)
{
    if (!tkc_body_close(b, err))
        return false;
    if (file->size == 0)
        return true;
    if (!add_piece(b, (piece){ .file = file, .size = file->size }, err))
        return false;
    tkc_ref_keep(&file->refs);
    return true;
}

bool tkc_body_in_memory(const tkc_body *b, tinkc_bytes *view)
{
    *view = (tinkc_bytes){ 0 };
    for (size_t i = 0; i < b->n; i++)
        if (b->pieces[i].file)
            return false;
    *view = (tinkc_bytes){ (const unsigned char *)b->bytes.data, b->bytes.len };
    return true;
}

uint64_t tkc_body_size(const tkc_body *b)
{
    return b->size;
}

size_t tkc_body_read(const tkc_body *b, uint64_t at, void *out, size_t cap, tinkc_error *err)
{
    size_t i = 0;
    while (i < b->n && at >= b->pieces[i].begin + b->pieces[i].size)
        i++;
    if (i == b->n || cap == 0)
        return 0;
    const piece *p = &b->pieces[i];
    uint64_t offset = at - p->begin, left = p->size - offset;
    size_t n = left < cap ? (size_t)left : cap;
    if (p->file)
        return read_upload(p->file, offset, out, n, err);
    memcpy(out, b->bytes.data + p->from + offset, n);
    return n;
}

bool tkc_body_load(tkc_body *b, tinkc_error *err)
{
    tinkc_bytes view;
    if (tkc_body_in_memory(b, &view))
        return true;
    tkc_buf all;
    tkc_buf_init(&all, b->a, TKC_BUF_NO_MAX);
    char *at = b->size < TKC_BUF_NO_MAX ? tkc_buf_room(&all, (size_t)b->size, err) : NULL;
    if (!at)
        return tkc_fail_memory(err);
    while (all.len < b->size) {
        size_t n = tkc_body_read(b, all.len, at + all.len, (size_t)b->size - all.len, err);
        if (n == 0)
            break;
        all.len += n;
    }
    if (tkc_failed(err)) {
        tkc_buf_free(&all);
        return false;
    }
    for (size_t i = 0; i < b->n; i++)
        tkc_upload_drop(b->pieces[i].file);
    tkc_buf_free(&b->bytes);
    b->bytes = all;
    b->n = b->listed = 0;
    b->size = 0;
    return tkc_body_close(b, err);
}
