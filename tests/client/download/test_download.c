/* test_download.c - checkpoints over a real connection to a server that breaks off, to the disk, to a descriptor and
 * to the caller. What is resumed, replaced and refused stands in the other files of this folder. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "support/client/api_support.h"
#include "support/client/stub_server.h"
#include "support/client/tar_write.h"

#define PATH "tinker://run:train:0/sampler_weights/final"
#define NAME "run:train:0_sampler_weights_final"

/* ---- the server ---- */

typedef struct service {
    tar archive;
    const char *etag; /* a whole header line, or NULL */
    size_t break_at;  /* the n-th next transfers end after so many bytes of body; 0 = never */
    int breaks, behaviour;
    bool no_range, no_length, missing;
    int archives, ranges;
    char seen_key[64];
    char url[128];
    char headers[512];
} service;

static stub_server *server;

static void serve_bytes(service *s, const stub_request *r, stub_answer *a)
{
    char range[64];
    size_t from = 0;
    stub_header(r, "Range", range, sizeof range);
    stub_header(r, "X-API-Key", s->seen_key, sizeof s->seen_key);
    s->headers[0] = 0;
    if (range[0] && !s->no_range) {
        from = (size_t)strtoull(range + 6, NULL, 10);
        s->ranges++;
        a->status = 206;
        snprintf(s->headers, sizeof s->headers, "Content-Range: bytes %zu-%zu/%zu\r\n", from, s->archive.len - 1,
                 s->archive.len);
    }
    if (s->etag)
        strcat(s->headers, s->etag);
    a->headers = s->headers;
    a->body = s->archive.data + from;
    a->body_len = s->archive.len - from;
    a->until_close = s->no_length;
    if (s->breaks > 0) {
        s->breaks--;
        a->behaviour = s->behaviour;
        a->after = s->break_at;
        a->drip_ms = 1;
    }
}

static void serve(const stub_request *r, stub_answer *a, void *user)
{
    service *s = user;
    a->headers = "Content-Type: application/json\r\n";
    if (strstr(r->path, "/client/config")) {
        a->body = "{}";
    } else if (strstr(r->path, "/archive")) {
        s->archives++;
        if (s->missing) {
            a->status = 404;
            return;
        }
        snprintf(s->url, sizeof s->url, "Location: %s/store/a.tar?sig=%d\r\n", stub_url(server), s->archives);
        a->status = 302;
        a->headers = s->url;
    } else if (strstr(r->path, "/store/")) {
        serve_bytes(s, r, a);
    } else {
        a->status = 404;
    }
}

/* ---- a world ---- */

typedef struct world {
    service s;
    tinkc_client *client;
    tinkc_error err;
    char dir[64];
    char big[300000];
} world;

static void open_world(world *w)
{
    memset(w, 0, sizeof *w);
    for (size_t i = 0; i < sizeof w->big; i++)
        w->big[i] = (char)(i * 31 + i / 251);
    tar_raw(&w->s.archive, "./", '5', NULL, NULL, 0);
    tar_raw(&w->s.archive, "adapter_config.json", '0', NULL, "{\"r\":8}", 7);
    tar_raw(&w->s.archive, "deep/er/model.bin", '0', NULL, w->big, sizeof w->big);
    tar_raw(&w->s.archive, "checkpoint_complete", '0', NULL, NULL, 0);
    tar_end(&w->s.archive);
    server = stub_start(NULL, serve, &w->s);
    snprintf(w->dir, sizeof w->dir, "/tmp/tinkc-download-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->client = tinkc_client_new(
        &(tinkc_client_options){
            .api_key = "tml-test", .base_url = stub_url(server), .proxy = "", .telemetry = TINKC_TELEMETRY_OFF },
        &w->err);
    assert_ok(&w->err);
}

static void close_world(world *w)
{
    char command[200];
    tinkc_client_free(w->client);
    stub_stop(server);
    free(w->s.archive.data);
    /* A worker whose client and future are both gone may still be writing down where it stopped. */
    snprintf(command, sizeof command,
             "for i in 1 2 3 4 5 6 7 8 9; do rm -rf %s 2>/dev/null && exit 0; sleep 0.1; done; exit 1", w->dir);
    assert_int_equal(system(command), 0);
}

static tinkc_future *download(world *w, tinkc_download_options o)
{
    o.dir = w->dir;
    tinkc_future *f = tinkc_checkpoint_download(w->client, PATH, &o, &w->err);
    if (f)
        tinkc_future_wait(f, PATIENCE_MS, &w->err);
    return f;
}

static bool there(world *w, const char *name)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", w->dir, name);
    return lstat(path, &st) == 0;
}

static void check_content(world *w, const char *name, const void *data, size_t len)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", w->dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *got = malloc(len + 1);
    assert_int_equal(fread(got, 1, len + 1, f), len);
    assert_memory_equal(got, data, len);
    free(got);
    fclose(f);
}

static void check_whole(world *w)
{
    assert_ok(&w->err);
    check_content(w, NAME "/adapter_config.json", "{\"r\":8}", 7);
    check_content(w, NAME "/deep/er/model.bin", w->big, sizeof w->big);
    check_content(w, NAME "/checkpoint_complete", "", 0);
    assert_false(there(w, NAME ".partial"));
    assert_false(there(w, NAME ".partial.state"));
}

/* ---- tests ---- */

TEST(unpacks_with_digests)
{
    static world w;
    char hex[TKC_SHA256_HEX];
    tkc_digest d;
    open_world(&w);
    tinkc_future *f = download(&w, (tinkc_download_options){ 0 });
    check_whole(&w);
    const tinkc_download *got = tinkc_future_download(f, 0, &w.err);
    assert_non_null(strstr(tinkc_download_target(got), "/" NAME));
    assert_int_equal(tinkc_download_bytes(got), w.s.archive.len);
    assert_int_equal(tinkc_download_count(got), 3);
    assert_string_equal(tinkc_download_at(got, 1)->name, "deep/er/model.bin");
    assert_int_equal(tinkc_download_at(got, 1)->size_bytes, sizeof w.big);
    tkc_sha256_init(&d);
    tkc_digest_add(&d, w.big, sizeof w.big);
    tkc_digest_hex(&d, hex);
    assert_string_equal(tinkc_download_at(got, 1)->sha256, hex);
    assert_null(tinkc_download_at(got, 3));
    int64_t done, total;
    tinkc_future_progress(f, &done, &total);
    assert_int_equal(done, w.s.archive.len);
    assert_int_equal(total, w.s.archive.len);
    assert_string_equal(w.s.seen_key, ""); /* the store never sees the credential */
    tinkc_future_free(f);
    close_world(&w);
}

/* Of a checkpoint that does not exist nothing stays, not even the folder; what was there before does. */
TEST(nothing_stays_of_what_is_missing)
{
    static world w;
    char deep[100];
    open_world(&w);
    w.s.missing = true;
    snprintf(deep, sizeof deep, "%s/new/deeper/", w.dir);
    for (int i = 0; i < 2; i++) {
        tinkc_future *f = tinkc_checkpoint_download(w.client, "tinker://run:train:0/weights/gone",
                                                    &(tinkc_download_options){ .dir = deep }, &w.err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &w.err));
        tinkc_future_free(f);
        assert_int_equal(w.err.code, TINKC_E_NOT_FOUND);
        w.err = (tinkc_error){ 0 };
        assert_false(there(&w, "new/deeper"));
        assert_int_equal(there(&w, "new"), i);
        snprintf(deep, sizeof deep, "%s/new", w.dir);
        assert_int_equal(i ? 0 : mkdir(deep, 0777), 0); /* the second time it was there before */
        snprintf(deep, sizeof deep, "%s/new/deeper", w.dir);
    }
    close_world(&w);
}

TEST(broken_connections_are_taken_up)
{
    static const int ways[] = { STUB_RESET, STUB_TRUNCATE };
    for (int i = 0; i < 8; i++) {
        static world w;
        open_world(&w);
        w.s.behaviour = ways[i % 2];
        w.s.breaks = 4;
        w.s.break_at = 70000;
        w.s.no_range = i & 2;
        w.s.etag = i & 4 ? "ETag: \"abc\"\r\n" : NULL;
        if (w.s.no_range)
            w.s.breaks = 2;
        tinkc_future *f = download(&w, (tinkc_download_options){ .keep_archive = i == 4 });
        assert_ok(&w.err);
        if (i == 4)
            check_content(&w, NAME ".tar", w.s.archive.data, w.s.archive.len);
        else
            check_whole(&w);
        assert_true(w.s.no_range ? w.s.ranges == 0 : w.s.ranges >= 3);
        tinkc_future_free(f);
        close_world(&w);
    }
}

static void compress_archive(world *w)
{
    char command[300];
    snprintf(command, sizeof command, "%s/x.tar", w->dir);
    FILE *f = fopen(command, "wb");
    fwrite(w->s.archive.data, 1, w->s.archive.len, f);
    fclose(f);
    snprintf(command, sizeof command, "gzip -f %s/x.tar", w->dir);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "%s/x.tar.gz", w->dir);
    f = fopen(command, "rb");
    w->s.archive.len = fread(w->s.archive.data, 1, w->s.archive.len, f);
    fclose(f);
}

/* max_bytes counts what an archive unpacks to, however small it is on its way. */
TEST(archives_that_swell)
{
    enum { LEN = 100000 };
    static const char zeros[LEN];
    static world w;
    open_world(&w);
    free(w.s.archive.data);
    w.s.archive = (tar){ 0 };
    tar_raw(&w.s.archive, "a", '0', NULL, zeros, LEN - 1);
    tar_raw(&w.s.archive, "b", '0', NULL, zeros, 1);
    tar_end(&w.s.archive);
    compress_archive(&w);
    assert_true(w.s.archive.len < LEN / 10);
    tinkc_future_free(download(&w, (tinkc_download_options){ .max_bytes = LEN - 1 }));
    assert_int_equal(w.err.code, TINKC_E_BAD_RESPONSE);
    assert_string_equal(w.err.message, "archive: unpacks to more than max_bytes");
    assert_false(there(&w, NAME));
    w.err = (tinkc_error){ 0 };
    tinkc_future_free(download(&w, (tinkc_download_options){ .max_bytes = LEN }));
    assert_ok(&w.err);
    assert_true(there(&w, NAME));
    close_world(&w);
}

TEST(a_compressed_archive_survives_broken_connections)
{
    static world w;
    open_world(&w);
    compress_archive(&w);
    w.s.break_at = 20000, w.s.breaks = 2, w.s.behaviour = STUB_RESET;
    tinkc_future_free(download(&w, (tinkc_download_options){ 0 }));
    check_whole(&w);
    close_world(&w);
}

typedef struct taken {
    char *data;
    size_t len, most; /* refuses what goes beyond `most`; 0 = takes all */
} taken;

static bool take(void *user, const void *data, size_t len)
{
    taken *t = user;
    if (t->most && t->len + len > t->most)
        return false;
    t->data = realloc(t->data, t->len + len);
    memcpy(t->data + t->len, data, len);
    t->len += len;
    return true;
}

TEST(bytes_go_to_the_caller)
{
    for (int i = 0; i < 3; i++) {
        static world w;
        taken t = { .most = i == 2 ? 1000 : 0 };
        open_world(&w);
        w.s.breaks = i == 1 ? 3 : 0;
        w.s.behaviour = STUB_RESET;
        w.s.break_at = 70000;
        tinkc_download_options o = { .write = take, .write_user = &t };
        tinkc_future *f = tinkc_checkpoint_download(w.client, PATH, &o, &w.err);
        bool ok = tinkc_future_wait(f, PATIENCE_MS, &w.err);
        if (i == 2) {
            assert_false(ok);
            assert_int_equal(w.err.code, TINKC_E_CANCELLED);
        } else {
            const tinkc_download *d = tinkc_future_download(f, 0, &w.err);
            assert_ok(&w.err);
            assert_string_equal(tinkc_download_target(d), "");
            assert_int_equal(tinkc_download_count(d), 0);
            assert_int_equal(t.len, w.s.archive.len);
            assert_memory_equal(t.data, w.s.archive.data, t.len);
        }
        assert_false(there(&w, NAME));
        assert_false(there(&w, NAME ".partial"));
        tinkc_future_free(f);
        w.err = (tinkc_error){ 0 };
        o.replace = true; /* of what? */
        assert_null(tinkc_checkpoint_download(w.client, PATH, &o, &w.err));
        assert_int_equal(w.err.code, TINKC_E_ARGUMENT);
        free(t.data);
        close_world(&w);
    }
}

/* The other end of a descriptor: reads until the end, in gulps of `gulp` bytes. */
typedef struct drain {
    pthread_t thread;
    int from, to; /* `to` is for the download */
    size_t gulp;
    char *data;
    size_t len;
} drain;

static void *read_to_the_end(void *arg)
{
    drain *d = arg;
    ssize_t n;
    do {
        d->data = realloc(d->data, d->len + d->gulp);
        n = read(d->from, d->data + d->len, d->gulp);
        d->len += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    return NULL;
}

static void open_drain(drain *d, bool socket, size_t gulp)
{
    int ends[2];
    assert_int_equal(socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
    *d = (drain){ .from = ends[0], .to = ends[1], .gulp = gulp };
    assert_int_equal(pthread_create(&d->thread, NULL, read_to_the_end, d), 0);
}

static void close_drain(drain *d)
{
    close(d->to);
    pthread_join(d->thread, NULL);
    close(d->from);
}

/* Downloads through a pipe or a socket and compares; with max_bytes it has to fail. */
static void fetch_through(world *w, bool socket, size_t gulp, int64_t max_bytes)
{
    drain d;
    open_drain(&d, socket, gulp);
    tinkc_download_options o = { .fd = d.to, .max_bytes = max_bytes };
    tinkc_future *f = tinkc_checkpoint_download(w->client, PATH, &o, &w->err);
    assert_int_equal(tinkc_future_wait(f, PATIENCE_MS, &w->err), max_bytes == 0);
    close_drain(&d);
    if (max_bytes) {
        assert_int_equal(w->err.code, TINKC_E_BAD_RESPONSE);
        assert_in_range(d.len, 0, max_bytes);
    } else {
        const tinkc_download *got = tinkc_future_download(f, 0, &w->err);
        assert_true(tinkc_download_bytes(got) >= (int64_t)d.len);
        assert_int_equal(d.len, w->s.archive.len);
        assert_memory_equal(d.data, w->s.archive.data, d.len);
    }
    free(d.data);
    tinkc_future_free(f);
    w->err = (tinkc_error){ 0 };
}

TEST(bytes_go_into_a_descriptor)
{
    static const size_t gulps[] = { 1 << 20, 1000 };
    for (int i = 0; i < 4; i++) {
        static world w;
        bool socket = i % 2;
        size_t gulp = gulps[i / 2], whole;
        open_world(&w);
        fetch_through(&w, socket, gulp, 0);
        whole = w.s.archive.len;
        w.s.archive.len = 300;
        w.s.behaviour = STUB_DRIP; /* byte by byte: between two of them everybody sleeps */
        w.s.breaks = 1;
        fetch_through(&w, socket, gulp, 0);
        w.s.archive.len = whole;
        w.s.behaviour = STUB_RESET;
        w.s.break_at = 70000, w.s.breaks = 3;
        fetch_through(&w, socket, gulp, 0);
        w.s.no_range = true; /* what was handed on already comes again, and is dropped */
        w.s.breaks = 3;
        fetch_through(&w, socket, gulp, 0);
        fetch_through(&w, socket, gulp, 100000);
        w.s.no_length = true;
        fetch_through(&w, socket, gulp, 0);
        fetch_through(&w, socket, gulp, 100000);
        close_world(&w);
    }
}

/* Nobody reads: stopping it must not wait for a reader, and the worker must end. */
TEST(a_pipe_that_nobody_reads)
{
    static world w;
    int ends[2];
    int64_t done = 0;
    open_world(&w);
    assert_int_equal(pipe(ends), 0);
    tinkc_download_options o = { .fd = ends[1] };
    tinkc_future *f = tinkc_checkpoint_download(w.client, PATH, &o, &w.err);
    while (done < 65536)
        tinkc_future_progress(f, &done, NULL);
    tinkc_future_cancel(f);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &w.err));
    assert_int_equal(w.err.code, TINKC_E_CANCELLED);
    tinkc_future_free(f);
    tinkc_client_free(w.client);
    w.client = NULL;
    close(ends[1]);
    /* The end is seen only once the worker has closed its own descriptor of the pipe. */
    char block[4096];
    while (read(ends[0], block, sizeof block) > 0)
        ;
    close(ends[0]);
    close_world(&w);
}

TEST(stopping_is_quick)
{
    for (int i = 0; i < 4; i++) {
        static world w;
        tinkc_error err = { 0 };
        open_world(&w);
        w.s.breaks = 100, w.s.behaviour = STUB_SILENT, w.s.break_at = 5000;
        tinkc_future *f = tinkc_checkpoint_download(w.client, PATH, &(tinkc_download_options){ .dir = w.dir }, &w.err);
        int64_t done = 0;
        while (done == 0 && !tinkc_future_wait(f, 5, NULL))
            tinkc_future_progress(f, &done, NULL);
        if (i == 0)
            tinkc_future_cancel(f);
        else if (i == 1)
            tinkc_client_close(w.client, 0, &w.err);
        else if (i == 2)
            tinkc_future_free(f);
        else {
            tinkc_client_free(w.client);
            w.client = NULL;
            tinkc_future_cancel(f);
        }
        if (i != 2) {
            assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
            assert_int_equal(err.code, i == 1 ? TINKC_E_CLOSED : TINKC_E_CANCELLED);
            tinkc_future_free(f);
        }
        close_world(&w);
    }
}
