/* journal.c - the request log of a run: requests that were accepted and are not yet in an image.
 *
 * A record is appended and synced before its request is acknowledged, so an acknowledged request
 * can be executed again after a crash. Reading stops at the first incomplete record: only the last
 * append can be torn, because each one is synced before the next. Hence a failed append must not
 * leave bytes behind. Only the store's writer thread appends and trims, so the two never overlap.
 *
 * May touch: only runs/RUN/journal.
 */
#include "service/store/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/platform.h"
#include "base/str.h"
#include "service/store/failpoint.h"

/* Follows the length and the checksum, both u32. All little-endian, the host's order. */
typedef struct head {
    int64_t seq;
    uint64_t hash_lo, hash_hi;
    uint32_t epoch;
    uint8_t kind, is_pb, forward, zero;
} head;

static void put_record(tkc_buf *out, const tke_journal_record *r, tinkc_error *err)
{
    head h = {
        r->seq, r->hash.lo, r->hash.hi, r->epoch, (uint8_t)r->kind, r->is_pb, r->forward, 0
    };
    assert(r->seq >= 1 && r->kind > 0 && r->kind <= UINT8_MAX);
    uint32_t len = (uint32_t)(sizeof h + r->body.len);
    uint32_t crc = tke_crc32c(tke_crc32c(0, &h, sizeof h), r->body.data, r->body.len);
    tkc_buf_add(out, &len, sizeof len, err);
    tkc_buf_add(out, &crc, sizeof crc, err);
    tkc_buf_add(out, &h, sizeof h, err);
    tkc_buf_str(out, r->body, err);
}

/* Takes the next complete record off *rest. Length and checksum come from disk: both are checked
 * before the body is used. */
static bool take_record(tinkc_str *rest, tke_journal_record *r)
{
    uint32_t len, crc;
    head h;
    if (rest->len < sizeof len + sizeof crc + sizeof h)
        return false;
    memcpy(&len, rest->data, sizeof len);
    memcpy(&crc, rest->data + sizeof len, sizeof crc);
    const size_t before = sizeof len + sizeof crc;
    const tinkc_str left = tkc_strn(rest->data + before, rest->len - before);
    if (len < sizeof h || len > left.len || tke_crc32c(0, left.data, len) != crc)
        return false;
    memcpy(&h, left.data, sizeof h);
    *r = (tke_journal_record){ h.seq,
                               h.kind,
                               h.epoch,
                               h.is_pb != 0,
                               h.forward != 0,
                               { h.hash_lo, h.hash_hi },
                               tkc_strn(left.data + sizeof h, len - sizeof h) };
    *rest = tkc_strn(left.data + len, left.len - len);
    return true;
}

bool tke_journal_append(tke_store *s, const char *run, const tke_journal_record *r,
                        tinkc_error *err)
{
    tkc_arena arena;
    tkc_buf bytes;
    int fd = -1;
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&bytes, NULL, TKC_BUF_NO_MAX);
    char *folder = tke_store_run_path(s, &arena, run, NULL, err);
    char *path = tke_store_run_path(s, &arena, run, "journal", err);
    put_record(&bytes, r, err);
    if (tkc_failed(err) || !tkc_make_lasting_dirs(folder, err) ||
        !TKE_FAILPOINT("journal.begun", err))
        goto done;
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        tkc_fail_errno(err, "%s", path);
        goto done;
    }
    if (!tkc_write_all(fd, bytes.data, bytes.len) || !TKE_FAILPOINT("journal.written", err) ||
        tkc_sync_data(fd) != 0) {
        tkc_fail_errno(err, "%s", path);
        /* A partial record would hide all later ones. */
        if (ftruncate(fd, st.st_size) != 0)
            tkc_fail_errno(err, "%s", path);
    } else if (st.st_size == 0) { /* new: its name must survive a power loss too */
        /* Asked of the size, not of who created the file: a first append that failed leaves an
         * empty file whose name was never synced. */
        tkc_sync_parent(path, err);
    }
done:
    if (fd >= 0)
        close(fd);
    tkc_buf_free(&bytes);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

/* ---- what follows the last record that can be read ---- */

/* The length alone is not enough: a flipped bit in it must not hide the records after it. */
static bool is_record(tinkc_str at)
{
    head h;
    tke_journal_record ignored;
    if (at.len < 2 * sizeof(uint32_t) + sizeof h)
        return false;
    memcpy(&h, at.data + 2 * sizeof(uint32_t), sizeof h);
    return h.kind && h.is_pb <= 1 && h.forward <= 1 && !h.zero && h.seq >= 1 &&
           h.seq <= INT32_MAX && take_record(&at, &ignored);
}

/* An interrupted append leaves an incomplete record, or one whose last bytes were never written;
 * and nothing after it, since each append is synced before the next. */
static bool is_torn(tinkc_str rest)
{
    uint32_t len = 0;
    const size_t before = 2 * sizeof len; /* of the body: its checksum too */
    for (size_t i = 1; i < rest.len; i++)
        if (is_record(tkc_strn(rest.data + i, rest.len - i)))
            return false;
    if (rest.len < before)
        return true;
    memcpy(&len, rest.data, sizeof len);
    return len > rest.len - before || rest.data[rest.len - 1] == '\0';
}

static void describe_file(tinkc_str bytes, tke_journal_file *out)
{
    tke_journal_record ignored;
    tinkc_str rest = bytes;
    *out = (tke_journal_file){ 0 };
    while (take_record(&rest, &ignored))
        out->n_records++;
    out->whole_bytes = bytes.len - rest.len;
    out->torn = rest.len && is_torn(rest);
    out->damaged = rest.len && !out->torn;
}

bool tke_journal_scan(const char *path, tke_journal_file *out, tinkc_error *err)
{
    tkc_mapping file;
    if (!tkc_map_file(path, &file, err))
        return false;
    describe_file(tkc_strn((const char *)file.data, file.len), out);
    tkc_unmap_file(&file);
    return true;
}

/* Requests that were acknowledged must not vanish without a trace. */
static bool keep_damaged(const char *path, const tkc_mapping *file, tinkc_error *err)
{
    tkc_arena arena;
    tke_journal_file found;
    describe_file(tkc_strn((const char *)file->data, file->len), &found);
    if (!found.damaged)
        return true;
    tkc_arena_init(&arena, NULL, 0);
    char *aside = tkc_arena_printf(&arena, err, "%s.damaged", path);
    bool ok = aside && tkc_write_file(aside, file->data, file->len, 0600, err);
    tkc_arena_free(&arena);
    return ok;
}

static bool read_records(const char *path, tke_journal_fn *fn, void *user, tinkc_error *err)
{
    tkc_mapping file;
    tke_journal_record r;
    if (!tkc_map_file(path, &file, err))
        return false;
    tinkc_str rest = tkc_strn((const char *)file.data, file.len);
    while (!tkc_failed(err) && take_record(&rest, &r))
        if (!fn(&r, user, err) && !tkc_failed(err))
            tkc_fail(err, TINKC_E_STORE, "%s: record %lld cannot be used", path, (long long)r.seq);
    /* Records appended after a torn one would never be read: cuts it off. */
    size_t whole = file.len - rest.len;
    /* The copy is on disk before the rest is cut off: a crash between the two leaves both. */
    if (!tkc_failed(err) && rest.len)
        keep_damaged(path, &file, err);
    tkc_unmap_file(&file);
    if (!tkc_failed(err) && rest.len && truncate(path, (off_t)whole) != 0)
        tkc_fail_errno(err, "%s", path);
    return !tkc_failed(err);
}

bool tke_journal_read(tke_store *s, const char *run, tke_journal_fn *fn, void *user,
                      tinkc_error *err)
{
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    char *path = tke_store_run_path(s, &arena, run, "journal", err);
    if (path && tkc_is_file(path))
        read_records(path, fn, user, err);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

typedef struct trimming {
    int64_t from;
    tkc_buf kept;
} trimming;

static bool keep_newer(const tke_journal_record *r, void *user, tinkc_error *err)
{
    trimming *t = user;
    if (r->seq >= t->from)
        put_record(&t->kept, r, err);
    return !tkc_failed(err);
}

/* Replaces the file by rename: at every moment the name has a complete journal. */
bool tke_journal_trim(tke_store *s, const char *run, int64_t seq, tinkc_error *err)
{
    tkc_arena arena;
    trimming t = { .from = seq };
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&t.kept, NULL, TKC_BUF_NO_MAX);
    char *path = tke_store_run_path(s, &arena, run, "journal", err);
    if (path && tkc_is_file(path) && read_records(path, keep_newer, &t, err) &&
        TKE_FAILPOINT("journal.kept", err))
        tkc_write_file(path, t.kept.data ? t.kept.data : "", t.kept.len, 0600, err);
    tkc_buf_free(&t.kept);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}
