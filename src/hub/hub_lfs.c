/* hub_lfs.c - the large files of a commit: Git LFS's batch call, then their bytes in pieces.
 *
 * A file is one piece (basic transfer) or many (the hub's multipart transfer). Threads take pieces from
 * one queue; the one that sends a file's last piece completes and verifies it. Which pieces of a
 * multipart file have arrived is noted in CACHE/.uploads/DIGEST, so that an interrupted push can
 * resume; the hub itself knows which files are complete. URLs of pieces are signed: no token is
 * sent to them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "base/thread.h"
#include "codec/url.h"
#include "hub/hub_priv.h"

#define LFS_JSON "application/vnd.git-lfs+json"

enum { SHOW_MS = 100, PARTS_MAX = 20000, NOTE_MAX = 64 * 1024 * 1024, NOTE_AGE_S = 12 * 3600 };

typedef struct object { /* one file being uploaded */
    tkc_hub_upload *file;
    const char *href, *verify; /* of the upload (basic) or of its completion; verify NULL = none */
    const char **header;       /* pairs of the basic upload */
    int64_t part_size;         /* 0 = basic */
    size_t n_parts, n_left;
    const char **urls, **etags; /* by part; etag NULL = not sent yet */
    const char *note;           /* path of the note */
    bool resumed;               /* urls come from the note and may have expired */
} object;

typedef struct sending {
    tkc_hub_push *p;
    object *objects;
    size_t n;

    pthread_mutex_t lock; /* guards the rest and the parts of objects; a leaf */
    pthread_cond_t changed;
    size_t at_object, at_part;
    int32_t running, done_files;
    int64_t done, moved;
    const char *current;
    bool stale; /* URLs of a note had expired: ask the hub again */
    tinkc_error err;
} sending;

/* ---- the batch call ---- */

static void write_batch(tkc_hub_push *p, tkc_buf *text, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, text, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "operation");
    tkc_jsonw_cstr(&w, "upload");
    tkc_jsonw_key(&w, "transfers");
    tkc_jsonw_array(&w);
    tkc_jsonw_cstr(&w, "basic");
    tkc_jsonw_cstr(&w, "multipart");
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "objects");
    tkc_jsonw_array(&w);
    for (size_t i = 0; i < p->n; i++) {
        const tkc_hub_upload *f = &p->files[i];
        if (!f->is_lfs || f->same || f->ignored)
            continue;
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "oid");
        tkc_jsonw_cstr(&w, f->sha256);
        tkc_jsonw_key(&w, "size");
        tkc_jsonw_i64(&w, f->size);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "hash_algo");
    tkc_jsonw_cstr(&w, "sha256");
    tkc_jsonw_key(&w, "ref");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "name");
    tkc_jsonw_cstr(&w, p->repo.revision);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
}

static bool is_address(const char *url)
{
    return strncmp(url, "https://", 8) == 0 || strncmp(url, "http://", 7) == 0;
}

/* header of an upload: "chunk_size" and "00001", "00002"... of a multipart transfer, else the
 * headers of a basic one. Parts are numbered from 1 without a gap. */
static void read_header(sending *s, object *o, tkc_json *j, tinkc_error *err)
{
    tkc_arena *arena = s->p->repo.arena;
    tinkc_str key;
    int64_t number, chunk = 0;
    size_t n = 0, pairs = 0;
    const char **urls = tkc_arena_array(arena, PARTS_MAX + 1, sizeof *urls, err);
    o->header = tkc_arena_array(arena, 33, sizeof *o->header, err);
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        bool text = tkc_json_peek(j) == TKC_JSON_STRING;
        tinkc_str value = text ? tkc_json_string(j) : tkc_json_skip(j);
        if (tkc_failed(err))
            return;
        if (tkc_str_is(key, "chunk_size")) {
            if (!tkc_parse_i64(value, &chunk) || chunk <= 0)
                tkc_json_fail(j, "chunk_size is not a positive number");
        } else if (key.len <= 6 && key.data[0] >= '0' && key.data[0] <= '9') {
            while (key.len > 1 && key.data[0] == '0')
                key = tkc_strn(key.data + 1, key.len - 1);
            if (!tkc_parse_i64(key, &number) || number < 1 || number > PARTS_MAX)
                tkc_json_fail(j, "a part has no usable number");
            else
                urls[number - 1] = tkc_arena_str(arena, value, err);
            n++;
        } else if (text && pairs < 32) {
            o->header[pairs++] = tkc_arena_str(arena, key, err);
            o->header[pairs++] = tkc_arena_str(arena, value, err);
        }
    }
    if (!chunk)
        return;
    o->part_size = chunk;
    o->n_parts = n;
    o->urls = urls;
}

/* "upload" and "verify": { "href": ..., "header": {...} } */
static void read_action(sending *s, object *o, tkc_json *j, bool verify, tinkc_error *err)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "href")) {
            const char *href = tkc_arena_str(s->p->repo.arena, tkc_json_string(j), err);
            if (href && !is_address(href))
                tkc_json_fail(j, "href is not an address");
            *(verify ? &o->verify : &o->href) = href;
        } else if (!verify && tkc_str_is(key, "header") && tkc_json_peek(j) == TKC_JSON_OBJECT) {
            read_header(s, o, j, err);
        } else {
            tkc_json_skip(j);
        }
    }
}

/* { "message": ... } of an object that the hub rejects. */
static void read_refusal(tkc_json *j, tinkc_str oid, tinkc_error *err)
{
    tinkc_str key, text = { 0 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "message"))
            text = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    tkc_fail(err, TINKC_E_REQUEST_FAILED, "the hub does not take object %.*s: %.*s",
             (int)(oid.len < 64 ? oid.len : 64), oid.data ? oid.data : "",
             (int)(text.len < 200 ? text.len : 200), text.data ? text.data : "");
}

static tkc_hub_upload *find_object(tkc_hub_push *p, tinkc_str oid)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->files[i].is_lfs && tkc_str_is(oid, p->files[i].sha256))
            return &p->files[i];
    return NULL;
}

static bool check_parts(const object *o, tinkc_error *err)
{
    bool ok = o->href != NULL;
    if (ok && o->part_size) {
        ok = o->n_parts == (size_t)((o->file->size + o->part_size - 1) / o->part_size);
        for (size_t i = 0; ok && i < o->n_parts; i++)
            ok = o->urls[i] && is_address(o->urls[i]);
    }
    return ok ||
           tkc_fail(err, TINKC_E_BAD_RESPONSE,
                    "%s: the hub's addresses for the upload do not fit the file", o->file->path);
}

static void read_object(sending *s, tkc_json *j, tinkc_error *err)
{
    object o = { 0 };
    tinkc_str key, action, oid = { 0 };
    bool has_actions = false;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "oid")) {
            oid = tkc_json_string(j);
        } else if (tkc_str_is(key, "error") && tkc_json_peek(j) == TKC_JSON_OBJECT) {
            read_refusal(j, oid, err);
        } else if (tkc_str_is(key, "actions") && tkc_json_peek(j) == TKC_JSON_OBJECT) {
            tkc_json_object(j);
            while (tkc_json_key(j, &action)) {
                bool upload = tkc_str_is(action, "upload"), verify = tkc_str_is(action, "verify");
                has_actions = has_actions || upload;
                if (upload || verify)
                    read_action(s, &o, j, verify, err);
                else
                    tkc_json_skip(j);
            }
        } else {
            tkc_json_skip(j);
        }
    }
    o.file = tkc_failed(err) ? NULL : find_object(s->p, oid);
    if (tkc_failed(err) || !o.file || !has_actions) /* without actions: the hub has it already */
        return;
    if (check_parts(&o, err)) {
        o.n_parts = o.part_size ? o.n_parts : 1;
        s->objects[s->n++] = o;
    }
}

static bool ask_batch(sending *s, tinkc_error *err)
{
    tkc_hub_push *p = s->p;
    tkc_fetch r;
    tkc_buf text;
    tkc_json j;
    tinkc_str key;
    const char *headers[] = { "Accept", LFS_JSON, "Content-Type", LFS_JSON, NULL };
    tkc_buf_init(&text, p->repo.hub->a, TKC_BUF_NO_MAX);
    write_batch(p, &text, err);
    tkc_fetch_init(&r, p->repo.hub->a);
    r.method = "POST";
    r.headers = headers;
    r.max_text = NOTE_MAX;
    r.body = (tinkc_bytes){ (const unsigned char *)text.data, text.len };
    r.url = tkc_arena_printf(p->repo.arena, err, "%s/%s.git/info/lfs/objects/batch",
                             p->repo.hub->url, p->repo.name);
    s->n = 0;
    s->objects = tkc_arena_array(p->repo.arena, p->n + 1, sizeof *s->objects, err);
    if (!tkc_failed(err) && tkc_hub_call(p->repo.hub, p->fetcher, &r, p->repo.name, err)) {
        tkc_json_open(&j, tkc_buf_view(&r.text), p->repo.arena, err);
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                if (!tkc_str_is(key, "objects")) {
                    tkc_json_skip(&j);
                    continue;
                }
                tkc_json_array(&j);
                while (tkc_json_item(&j) && s->n < p->n)
                    read_object(s, &j, err);
            }
    }
    tkc_fetch_end(&r);
    tkc_buf_free(&text);
    return !tkc_failed(err);
}

/* ---- notes: which parts of a multipart file have arrived ----
 *
 *     tinkc-upload 1 REPO SIZE PART_SIZE
 *     href ADDRESS
 *     verify ADDRESS
 *     url ADDRESS          one for each part, in order
 *     etag NUMBER ETAG     as they arrive
 */

static bool write_note(const object *o, const tkc_hub_push *p, tinkc_error *err)
{
    tkc_buf text;
    tkc_buf_init(&text, p->repo.hub->a, NOTE_MAX);
    tkc_buf_printf(&text, err, "tinkc-upload 1 %s %lld %lld\nhref %s\nverify %s\n", p->repo.name,
                   (long long)o->file->size, (long long)o->part_size, o->href,
                   o->verify ? o->verify : "");
    for (size_t i = 0; i < o->n_parts; i++)
        tkc_buf_printf(&text, err, "url %s\n", o->urls[i]);
    bool ok = !tkc_failed(err) && tkc_write_file(o->note, text.data, text.len, 0600, err);
    tkc_buf_free(&text);
    return ok;
}

/* Appends to the note. If the line is lost, the part is sent again. */
static void note_part(const object *o, size_t part, const char *etag)
{
    char line[600];
    int n = snprintf(line, sizeof line, "etag %zu %s\n", part, etag);
    int fd = n > 0 && (size_t)n < sizeof line ? open(o->note, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    (void)!write(fd, line, (size_t)n);
    close(fd);
}

static const char *after(tkc_arena *arena, tinkc_str line, const char *word, tinkc_error *err)
{
    size_t len = strlen(word);
    return tkc_starts_with(line, word)
               ? tkc_arena_str(arena, tkc_strn(line.data + len, line.len - len), err)
               : NULL;
}

static void read_etag(object *o, tkc_arena *arena, tinkc_str line, tinkc_error *err)
{
    int64_t part;
    tinkc_str rest = tkc_strn(line.data + 5, line.len - 5);
    size_t space = tkc_str_find(rest, ' ');
    if (space < rest.len && tkc_parse_i64(tkc_strn(rest.data, space), &part) && part >= 0 &&
        part < (int64_t)o->n_parts && rest.len > space + 1)
        o->etags[part] =
            tkc_arena_str(arena, tkc_strn(rest.data + space + 1, rest.len - space - 1), err);
}

/* Takes URLs and finished parts of an earlier push, if its note is for this file and recent. */
static bool read_note(object *o, const tkc_hub_push *p, tinkc_error *err)
{
    struct stat st;
    tinkc_error ignored = { 0 };
    tkc_arena *arena = p->repo.arena;
    if (stat(o->note, &st) != 0 || time(NULL) - st.st_mtime > NOTE_AGE_S)
        return false;
    tinkc_bytes bytes = tkc_read_file(arena, o->note, NOTE_MAX, &ignored);
    tinkc_str rest = tkc_strn((const char *)bytes.data, bytes.data ? bytes.len : 0), line;
    const char *head = tkc_arena_printf(arena, err, "tinkc-upload 1 %s %lld %lld", p->repo.name,
                                        (long long)o->file->size, (long long)o->part_size);
    if (!head || !tkc_str_cut(&rest, '\n', &line) || !tkc_str_is(line, head))
        return false;
    object old = { .file = o->file, .part_size = o->part_size, .n_parts = o->n_parts };
    old.urls = tkc_arena_array(arena, o->n_parts + 1, sizeof *old.urls, err);
    old.etags = tkc_arena_array(arena, o->n_parts + 1, sizeof *old.etags, err);
    size_t n = 0;
    while (!tkc_failed(err) && tkc_str_cut(&rest, '\n', &line) &&
           rest.data) { /* the last line may be incomplete */
        const char *url = after(arena, line, "url ", err);
        if (url && n < o->n_parts)
            old.urls[n++] = url;
        else if (tkc_starts_with(line, "href "))
            old.href = after(arena, line, "href ", err);
        else if (tkc_starts_with(line, "verify ") && line.len > 7)
            old.verify = after(arena, line, "verify ", err);
        else if (tkc_starts_with(line, "etag "))
            read_etag(&old, arena, line, err);
    }
    if (tkc_failed(err) || n != o->n_parts || !check_parts(&old, &ignored))
        return false;
    old.note = o->note;
    old.resumed = true;
    *o = old;
    return true;
}

static bool prepare(sending *s, object *o, tinkc_error *err)
{
    tkc_hub_push *p = s->p;
    tkc_arena *arena = p->repo.arena;
    if (o->part_size) {
        const char *folder = tkc_path_join(arena, p->repo.hub->cache, ".uploads", err);
        o->note = folder ? tkc_path_join(arena, folder, o->file->sha256, err) : NULL;
        o->etags = tkc_arena_array(arena, o->n_parts + 1, sizeof *o->etags, err);
        if (tkc_failed(err) || !tkc_make_dirs(folder, err))
            return false;
        if ((s->stale || !read_note(o, p, err)) && (tkc_failed(err) || !write_note(o, p, err)))
            return false;
    }
    o->n_left = 0;
    for (size_t i = 0; i < o->n_parts; i++)
        o->n_left += !(o->etags && o->etags[i]);
    for (size_t i = 0; o->etags && i < o->n_parts; i++)
        if (o->etags[i])
            s->done +=
                i + 1 < o->n_parts ? o->part_size : o->file->size - (int64_t)i * o->part_size;
    return true;
}

/* ---- pieces ---- */

typedef struct piece {
    sending *s;
    object *o;
    size_t part;
    int64_t counted; /* bytes already added to the progress */
} piece;

static void count(piece *x, int64_t sent)
{
    pthread_mutex_lock(&x->s->lock);
    x->s->done += sent - x->counted;
    x->s->moved += sent > x->counted ? sent - x->counted : 0;
    x->counted = sent;
    pthread_mutex_unlock(&x->s->lock);
}

static void on_sent(tkc_fetch *r, int64_t bytes)
{
    count(r->user, bytes);
}

/* One request to a URL from the batch call: no token, unless the hub itself verifies. */
static bool call(sending *s, tkc_fetcher *f, tkc_fetch *r, const char *what, bool with_token,
                 tinkc_error *err)
{
    tinkc_hub *hub = s->p->repo.hub;
    tkc_hub_patience patience = { 0 };
    r->token = with_token && tkc_url_same_origin(r->url, hub->url) ? hub->token : NULL;
    do {
        tkc_fetch_run(f, r, err);
        tkc_hub_explain(hub, r, what, err);
    } while (tkc_failed(err) && tkc_hub_try_again(hub, &patience, r, err));
    return !tkc_failed(err);
}

static bool put_piece(piece *x, tkc_fetcher *f, tinkc_error *err)
{
    const object *o = x->o;
    tkc_fetch r;
    tkc_fetch_init(&r, x->s->p->repo.hub->a);
    r.method = "PUT";
    r.url = o->part_size ? o->urls[x->part] : o->href;
    r.headers = o->part_size ? NULL : o->header;
    r.body_from = (int64_t)x->part * o->part_size;
    r.body_size = o->file->size - r.body_from;
    if (o->part_size && r.body_size > o->part_size)
        r.body_size = o->part_size;
    r.sent = on_sent;
    r.user = x;
    r.body_fd = open(o->file->full, O_RDONLY | O_CLOEXEC);
    if (r.body_fd < 0)
        tkc_fail_errno(err, "%s", o->file->full);
    else
        call(x->s, f, &r, o->file->path, false, err);
    if (r.body_fd >= 0)
        close(r.body_fd);
    const char *etag = tkc_fetch_header(&r, "etag");
    if (!tkc_failed(err) && o->part_size && !etag)
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "%s: a part was taken without an ETag", o->file->path);
    pthread_mutex_lock(&x->s->lock);
    if (!tkc_failed(err) && o->part_size) {
        o->etags[x->part] = tkc_arena_cstr(x->s->p->repo.arena, etag, err);
        note_part(o, x->part, etag);
    }
    pthread_mutex_unlock(&x->s->lock);
    tkc_fetch_end(&r);
    return !tkc_failed(err);
}

static bool post_json(sending *s, tkc_fetcher *f, const char *url, const tkc_buf *text,
                      const char *what, bool with_token, tinkc_error *err)
{
    tkc_fetch r;
    const char *headers[] = { "Accept", LFS_JSON, "Content-Type", LFS_JSON, NULL };
    tkc_fetch_init(&r, s->p->repo.hub->a);
    r.method = "POST";
    r.url = url;
    r.headers = headers;
    r.body = (tinkc_bytes){ (const unsigned char *)text->data, text->len };
    bool ok = !tkc_failed(err) && call(s, f, &r, what, with_token, err);
    tkc_fetch_end(&r);
    return ok;
}

/* All parts have arrived: completes the object, then asks the hub to verify it. */
static bool complete(sending *s, object *o, tkc_fetcher *f, tinkc_error *err)
{
    tkc_buf text;
    tkc_jsonw w;
    tkc_buf_init(&text, s->p->repo.hub->a, NOTE_MAX);
    tkc_jsonw_open(&w, &text, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "oid");
    tkc_jsonw_cstr(&w, o->file->sha256);
    tkc_jsonw_key(&w, "parts");
    tkc_jsonw_array(&w);
    for (size_t i = 0; i < o->n_parts && o->part_size; i++) {
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "partNumber");
        tkc_jsonw_i64(&w, (int64_t)i + 1);
        tkc_jsonw_key(&w, "etag");
        tkc_jsonw_cstr(&w, o->etags[i]);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    bool ok = !o->part_size || post_json(s, f, o->href, &text, o->file->path, false, err);
    tkc_buf_clear(&text);
    tkc_buf_printf(&text, err, "{\"oid\":\"%s\",\"size\":%lld}", o->file->sha256,
                   (long long)o->file->size);
    ok = ok && (!o->verify || post_json(s, f, o->verify, &text, o->file->path, true, err));
    tkc_buf_free(&text);
    if (ok && o->note)
        (void)unlink(o->note);
    return ok;
}

/* ---- workers ---- */

static bool take_piece(sending *s, piece *x)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    while (!found && !s->err.code && s->at_object < s->n) {
        object *o = &s->objects[s->at_object];
        if (s->at_part >= o->n_parts) {
            s->at_object++;
            s->at_part = 0;
            continue;
        }
        size_t part = s->at_part++;
        if (o->etags && o->etags[part])
            continue;
        *x = (piece){ .s = s, .o = o, .part = part };
        s->current = o->file->path;
        found = true;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* True if the piece was its object's last. */
static bool finish_piece(piece *x)
{
    pthread_mutex_lock(&x->s->lock);
    bool last = --x->o->n_left == 0;
    pthread_mutex_unlock(&x->s->lock);
    return last;
}

static void finish_worker(sending *s, const piece *x, const tinkc_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (err->code && x->o && x->o->resumed && err->http_status >= 400 && err->http_status < 500)
        s->stale = true;
    tkc_error_copy(&s->err, err);
    s->running--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *work(void *arg)
{
    sending *s = arg;
    tinkc_error err = { 0 };
    piece x = { 0 };
    tkc_fetcher *f = tkc_fetcher_new(s->p->repo.hub->a, &s->p->repo.hub->fetch, &err);
    while (f && !err.code && take_piece(s, &x))
        if (put_piece(&x, f, &err) && finish_piece(&x) && complete(s, x.o, f, &err)) {
            pthread_mutex_lock(&s->lock);
            s->done_files++;
            pthread_mutex_unlock(&s->lock);
        }
    tkc_fetcher_free(f);
    finish_worker(s, &x, &err);
    return NULL;
}

static void watch(sending *s)
{
    bool more = true;
    tinkc_error stopped = { 0 };
    while (more) {
        pthread_mutex_lock(&s->lock);
        if (s->running)
            tkc_cond_wait_until(&s->changed, &s->lock, tkc_deadline_ns(SHOW_MS));
        more = s->running > 0;
        tinkc_hub_progress *now = &s->p->now;
        now->file = s->current ? s->current : "";
        now->done_bytes = s->done;
        now->moved_bytes = s->moved;
        now->done_files = s->done_files;
        pthread_mutex_unlock(&s->lock);
        tkc_hub_push_show(s->p, &stopped);
    }
}

static bool run_workers(sending *s, tinkc_error *err)
{
    pthread_t threads[TKC_HUB_MAX_JOBS];
    tinkc_error ignored = { 0 };
    int32_t n = 0, jobs = s->p->repo.hub->jobs;
    if (!tkc_cond_init(&s->changed, err))
        return false;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_lock(&s->lock);
    for (; n < jobs; n++, s->running++)
        if (!tkc_thread_start(&threads[n], work, s, "tinkc-hub", n ? &ignored : err))
            break;
    pthread_mutex_unlock(&s->lock);
    watch(s);
    for (int32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    tkc_error_copy(err, &s->err);
    return !tkc_failed(err);
}

/* Objects whose parts all arrived before an earlier push stopped: only completion is missing. */
static bool complete_old(sending *s, tinkc_error *err)
{
    for (size_t i = 0; i < s->n && !tkc_failed(err); i++)
        if (s->objects[i].n_left == 0 && !complete(s, &s->objects[i], s->p->fetcher, err) &&
            err->http_status >= 400 && err->http_status < 500)
            s->stale = true;
    return !tkc_failed(err);
}

static bool send_once(tkc_hub_push *p, bool *stale, tinkc_error *err)
{
    sending s = { .p = p, .stale = *stale };
    bool ok = ask_batch(&s, err);
    for (size_t i = 0; i < p->n; i++) /* files that need no transfer count as done */
        s.done += p->files[i].size;
    for (size_t i = 0; ok && i < s.n; i++)
        s.done -= s.objects[i].file->size;
    for (size_t i = 0; ok && i < s.n; i++)
        ok = prepare(&s, &s.objects[i], err);
    s.done_files = (int32_t)(p->n - s.n);
    s.stale = false;
    ok = ok && complete_old(&s, err) && (s.n == 0 || run_workers(&s, err));
    p->moved += s.moved;
    *stale = s.stale;
    return ok;
}

bool tkc_hub_send_objects(tkc_hub_push *p, tinkc_error *err)
{
    bool needed = false, stale = false;
    for (size_t i = 0; i < p->n; i++)
        needed = needed || (p->files[i].is_lfs && !p->files[i].same && !p->files[i].ignored);
    if (!needed || send_once(p, &stale, err))
        return !tkc_failed(err);
    if (!stale)
        return false;
    *err = (tinkc_error){ 0 }; /* URLs of the earlier push have expired */
    return send_once(p, &stale, err);
}
