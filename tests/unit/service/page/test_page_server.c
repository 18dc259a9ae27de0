/* test_page_server.c - the page over real sockets: who gets it, streams of events, stopping. */
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"
#include "support/service/raw_http.h"
#include "support/engine/tiny_model.h"
#include "tinkc/engine.h"

static char *model, *logs;
static tinkc_engine *engine;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    char run[600];
    (void)state;
    logs = tiny_folder();
    snprintf(run, sizeof run, "%s/first", logs);
    assert_int_equal(mkdir(run, 0700), 0);
    tiny_write(run, "metrics.jsonl", "{\"step\":0,\"loss\":2.5}\n");
    model = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 64 });
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", model, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    tiny_model_remove(model);
    tiny_model_remove(logs);
    return 0;
}

static tinkc_server *serve(const char *const *keys, bool page)
{
    tinkc_error err = { 0 };
    const char *folders[] = { logs, NULL };
    tinkc_server *server =
        tinkc_engine_serve(engine, &(tinkc_serve_options){ .page = page, .log_dirs = folders, .api_keys = keys }, &err);
    assert_ok(err);
    return server;
}

/* One request on a connection of its own; its answer must begin with the status and hold the text.
 */
static void expect(const tinkc_server *server, const char *host, const char *head, const char *status, const char *text)
{
    char line[40];
    int fd = raw_dial(tinkc_server_url(server));
    tkc_buf got = raw_talk(fd, host, head, "", 0);
    snprintf(line, sizeof line, "HTTP/1.1 %s", status);
    if (strncmp(got.data, line, strlen(line)) != 0 || !strstr(got.data, text))
        fail_msg("%s: not %s with %s but %s", head, status, text, got.data);
    tkc_buf_free(&got);
    close(fd);
}

static void send_head(int fd, const char *head)
{
    char text[300];
    int n = snprintf(text, sizeof text, "%s\r\nHost: localhost\r\n\r\n", head);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
}

/* Opens a stream and reads until this has come. */
static int open_stream(const tinkc_server *server, const char *head, const char *until)
{
    tinkc_error err = { 0 };
    tkc_buf all;
    char chunk[4096];
    int fd = raw_dial(tinkc_server_url(server));
    send_head(fd, head);
    tkc_buf_init(&all, NULL, TKC_BUF_NO_MAX);
    for (;;) {
        ssize_t n = recv(fd, chunk, sizeof chunk, 0);
        if (n <= 0)
            fail_msg("the stream ended before %s: %s", until, all.data);
        tkc_buf_add(&all, chunk, (size_t)n, &err);
        if (strstr(tkc_buf_terminate(&all, &err), until))
            break;
    }
    tkc_buf_free(&all);
    return fd;
}

TEST(the_page_and_its_headers)
{
    tinkc_server *server = serve(NULL, true);
    expect(server, "localhost", "GET / HTTP/1.1", "200", "<!doctype html>");
    expect(server, "localhost", "GET / HTTP/1.1", "200", "default-src 'none'; script-src 'self'");
    expect(server, "localhost", "GET /ui HTTP/1.1", "200", "frame-ancestors 'none'");
    expect(server, "localhost", "GET /ui/app.js HTTP/1.1", "200", "text/javascript");
    expect(server, "localhost", "GET /ui/app.css HTTP/1.1", "200", "nosniff");
    expect(server, "localhost", "POST /ui/app.js HTTP/1.1", "405", "Only GET");
    expect(server, "localhost", "GET /ui/../secret HTTP/1.1", "404", "no such address");
    expect(server, "localhost", "GET /ui/v1/models HTTP/1.1", "200", "\"tiny\"");
    expect(server, "localhost", "GET /v1/models HTTP/1.1", "404", ""); /* not asked for */
    tinkc_server_free(server);
    server = serve(NULL, false);
    expect(server, "localhost", "GET /ui/app.js HTTP/1.1", "404", "");
    tinkc_server_free(server);
}

TEST(an_unchanged_script_is_not_sent_again)
{
    tinkc_server *server = serve(NULL, true);
    char head[200];
    int fd = raw_dial(tinkc_server_url(server));
    tkc_buf got = raw_talk(fd, "localhost", "GET /ui/app.js HTTP/1.1", "", 0);
    const char *etag = strstr(got.data, "ETag: ");
    assert_non_null(etag);
    snprintf(head, sizeof head, "GET /ui/app.js HTTP/1.1\r\nIf-None-Match: %.18s", etag + 6);
    tkc_buf_free(&got);
    close(fd);
    expect(server, "localhost", head, "304", "");
    tinkc_server_free(server);
}

TEST(strangers_get_no_data)
{
    tinkc_server *server = serve(NULL, true);
    expect(server, "evil.example", "GET /ui/events HTTP/1.1", "403", "host_not_allowed");
    expect(server, "localhost", "GET /ui/events HTTP/1.1\r\nOrigin: http://evil.example", "403", "origin_not_allowed");
    expect(server, "localhost", "GET /ui/v1/models HTTP/1.1\r\nSec-Fetch-Site: cross-site", "403",
           "origin_not_allowed");
    tinkc_server_free(server);
    const char *const keys[] = { "tml-a", NULL };
    server = serve(keys, true);
    expect(server, "gpu.lan", "GET / HTTP/1.1", "200", "<!doctype html>");
    expect(server, "gpu.lan", "GET /ui/events HTTP/1.1", "401", "Invalid API key");
    expect(server, "gpu.lan", "GET /ui/runs/0123456789abcdef/metrics HTTP/1.1", "401", "");
    expect(server, "gpu.lan", "GET /ui/v1/models HTTP/1.1\r\nX-API-Key: tml-b", "401", "");
    close(open_stream(server, "GET /ui/events HTTP/1.1\r\nX-API-Key: tml-a", "event: status"));
    tinkc_server_free(server);
}

TEST(rows_of_a_run)
{
    tinkc_server *server = serve(NULL, true);
    char chunk[8192], head[200];
    int fd = raw_dial(tinkc_server_url(server));
    send_head(fd, "GET /ui/events HTTP/1.1");
    size_t len = 0;
    const char *id = NULL;
    while (!id) {
        ssize_t n = recv(fd, chunk + len, sizeof chunk - 1 - len, 0);
        assert_true(n > 0);
        len += (size_t)n;
        chunk[len] = '\0';
        id = strstr(chunk, "event: status") ? strstr(chunk, "[{\"id\":\"") : NULL;
    }
    snprintf(head, sizeof head, "GET /ui/runs/%.16s/metrics?from=0 HTTP/1.1", id + 8);
    expect(server, "localhost", head, "200", "\"rows\":[{\"step\":0,\"loss\":2.5}]");
    snprintf(head, sizeof head, "GET /ui/runs/%.16s/samples HTTP/1.1", id + 8);
    expect(server, "localhost", head, "404", "no such file");
    snprintf(head, sizeof head, "GET /ui/runs/%.16s/metrics?from=-1 HTTP/1.1", id + 8);
    expect(server, "localhost", head, "404", "no such address");
    snprintf(head, sizeof head, "GET /ui/runs/%.16s/..%%2fsecret HTTP/1.1", id + 8);
    expect(server, "localhost", head, "404", "no such address");
    expect(server, "localhost", "GET /ui/runs/0123456789abcdef/metrics HTTP/1.1", "404", "no such run");
    close(fd);
    tinkc_server_free(server);
}

/* A run that appears while a page is open is reported to it. */
TEST(new_runs_are_reported)
{
    tinkc_server *server = serve(NULL, true);
    char run[600], chunk[8192];
    int fd = open_stream(server, "GET /ui/events HTTP/1.1", "event: status");
    snprintf(run, sizeof run, "%s/second", logs);
    assert_int_equal(mkdir(run, 0700), 0);
    tiny_write(run, "config.json", "{\"model_name\":\"m\"}");
    size_t len = 0;
    do {
        ssize_t n = recv(fd, chunk + len, sizeof chunk - 1 - len, 0);
        assert_true(n > 0);
        len += (size_t)n;
        chunk[len] = '\0';
        assert_true(len < sizeof chunk - 1);
    } while (!strstr(chunk, "event: run\n") || !strstr(chunk, "\"name\":\"second\""));
    close(fd);
    tinkc_server_free(server);
}

/* Open streams hold up neither other requests nor the end, and there is a bound to them. */
TEST(streams_are_bounded_and_end)
{
    enum { MOST = 32 };
    tinkc_server *server = serve(NULL, true);
    tinkc_error err = { 0 };
    int fds[MOST];
    char chunk[4096];
    for (int i = 0; i < MOST; i++)
        fds[i] = open_stream(server, "GET /ui/events HTTP/1.1", "event: hello");
    expect(server, "localhost", "GET /ui/events HTTP/1.1", "503", "close one");
    expect(server, "localhost", "GET /api/v1/healthz HTTP/1.1", "200", "ok");
    assert_true(tinkc_server_stop(server, 60000, &err)); /* none had to be cut off */
    assert_ok(err);
    for (int i = 0; i < MOST; i++) {
        while (recv(fds[i], chunk, sizeof chunk, 0) > 0)
            ;
        close(fds[i]);
    }
    tinkc_server_free(server);
}

/* The place of a page that was closed is free again. */
TEST(closed_streams_make_room)
{
    enum { TIMES = 100 };
    tinkc_server *server = serve(NULL, true);
    for (int i = 0; i < TIMES; i++) {
        do { /* until the server has noticed that those before are gone */
            int fd = raw_dial(tinkc_server_url(server));
            char chunk[200];
            send_head(fd, "GET /ui/events HTTP/1.1");
            ssize_t n = recv(fd, chunk, sizeof chunk - 1, 0);
            assert_true(n > 12);
            chunk[n] = '\0';
            close(fd);
            if (strncmp(chunk, "HTTP/1.1 200", 12) == 0)
                break;
        } while (true);
    }
    tinkc_server_free(server);
}

RUN_TESTS(setup, teardown)
