/* test_fetch_calls.c - what the fetcher asks of libcurl, and what it makes of each answer, on a
 * scripted libcurl. */
#include "support/check.h"
#include "support/ledger.h"
#include "support/client/scripted_curl.h"

#include <errno.h>
#include <unistd.h>

#include "net/curl_lib.h"
#include "net/fetch.h"

static atomic_bool stop;
static ledger book;
static tinkc_allocator allocator;
static tkc_fetcher_options options;
static tkc_fetcher *fetcher;
static tkc_fetch r;
static tinkc_error err;

/* One answer of the script after another; the last one is repeated. */
typedef struct answer {
    const char *head, *body;
    CURLcode result;
} answer;
static const answer *script;
static size_t n_script, played;
static bool was_wanted;
static const char *detail; /* in libcurl's error buffer */
static bool detail_once;   /* of the first answer alone */
static long os_error;

static void perform(scripted_easy *e)
{
    const answer *a = &script[played < n_script ? played : n_script - 1];
    played++;
    was_wanted = scripted_head(e, a->head) && (!a->body || scripted_body(e, a->body) == strlen(a->body));
    if (detail && (!detail_once || played == 1))
        (void)snprintf(e->error_text, CURL_ERROR_SIZE, "%s", detail);
    e->os_error = os_error;
    scripted_end(e, was_wanted ? a->result : CURLE_WRITE_ERROR);
}

static int setup(void **state)
{
    (void)state;
    scripted_curl_start();
    scripted_curl_performs = perform;
    atomic_store(&stop, false);
    options = (tkc_fetcher_options){ .proxy = "", .connect_ms = 700, .idle_ms = 5000, .stop = &stop };
    err = (tinkc_error){ 0 };
    book = (ledger){ .left = -1 };
    allocator = ledger_allocator(&book);
    fetcher = tkc_fetcher_new(&allocator, &options, &err);
    assert_non_null(fetcher);
    tkc_fetch_init(&r, &allocator);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tkc_fetch_end(&r);
    tkc_fetcher_free(fetcher);
    return scripted_easies_open() == 0 && scripted_multis_open() == 0 && scripted_lists_open() == 0 &&
                   scripted_misuses() == 0 && book.blocks == 0 && book.bytes == 0
               ? 0
               : 1;
}

static bool run(const char *method, const char *url, const answer *answers, size_t n)
{
    err = (tinkc_error){ 0 };
    r.method = method;
    r.url = url;
    script = answers;
    n_script = n;
    played = 0;
    return tkc_fetch_run(fetcher, &r, &err);
}

static const answer fine = { "HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "hello", CURLE_OK };

#define ALWAYS                                                                                                         \
    "PROXY=\nSSLVERSION=6\nNOSIGNAL=1\nTCP_KEEPALIVE=1\nSUPPRESS_CONNECT_HEADERS=1\n"                                  \
    "HTTP_VERSION=4\nBUFFERSIZE=131072\nCONNECTTIMEOUT_MS=700\nLOW_SPEED_LIMIT=1\n"                                    \
    "LOW_SPEED_TIME=5\nHTTPHEADER=Expect:|\n"

TEST_WITH(each_request_has_its_settings, setup, teardown)
{
    static const struct {
        const char *method, *body, *want;
        int fd;
    } rows[] = {
        { "GET", NULL, "URL=http://h/\nHTTPGET=1\n" ALWAYS, -1 },
        { "HEAD", NULL, "URL=http://h/\nNOBODY=1\n" ALWAYS, -1 },
        { "POST", "ab",
          "URL=http://h/"
          "\nPOST=1\nPOSTFIELDS=ab\nPOSTFIELDSIZE_LARGE=2\nCUSTOMREQUEST=POST\n" ALWAYS,
          -1 },
        { "PATCH", NULL, "URL=http://h/\nPOST=1\nPOSTFIELDS=\nPOSTFIELDSIZE_LARGE=0\nCUSTOMREQUEST=PATCH\n" ALWAYS,
          -1 },
        { "PUT", "ab",
          "URL=http://h/"
          "\nPOST=1\nPOSTFIELDS=ab\nPOSTFIELDSIZE_LARGE=2\nCUSTOMREQUEST=PUT\n" ALWAYS,
          -1 },
        { "PUT", NULL, "URL=http://h/\nUPLOAD=1\nINFILESIZE_LARGE=9\n" ALWAYS, 0 },
        { "POST", NULL, "URL=http://h/\nPOST=1\nPOSTFIELDSIZE_LARGE=9\n" ALWAYS, 0 },
    };
    assert_int_equal(r.body_fd, -1); /* nothing is read, unless the caller says so */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        r.body = (tinkc_bytes){ (const unsigned char *)rows[i].body, rows[i].body ? strlen(rows[i].body) : 0 };
        r.body_fd = rows[i].fd;
        r.body_size = 9;
        assert_true(run(rows[i].method, "http://h/", &fine, 1));
        assert_string_equal(scripted_nth(i)->settings, rows[i].want);
    }
}

TEST_WITH(options_become_settings, setup, teardown)
{
    static const struct {
        const char *proxy, *ca_file;
        int64_t idle;
        const char *want, *unwanted;
    } rows[] = { { NULL, NULL, 5001, "LOW_SPEED_TIME=6\n", "PROXY=" },
                 { "http://p", "/ca", 1, "\nPROXY=http://p\nCAINFO=/ca\nSSLVERSION=6\n", "?" },
                 { "", NULL, 1000, "LOW_SPEED_TIME=1\n", "CAINFO" } };
    for (size_t i = 0; i < 3; i++) {
        options.proxy = rows[i].proxy;
        options.ca_file = rows[i].ca_file;
        options.idle_ms = rows[i].idle;
        assert_true(run("GET", "http://h/", &fine, 1));
        assert_non_null(strstr(scripted_nth(i)->settings, rows[i].want));
        assert_null(strstr(scripted_nth(i)->settings, rows[i].unwanted));
    }
}

/* Headers of one origin; to another go only those that describe the transfer. */
TEST_WITH(headers_along_a_redirect, setup, teardown)
{
    static const char *const headers[] = {
        "X-Own", "1",      "range", "r",  "Accept-Encoding", "e", "USER-AGENT", "u", "Content-Type",
        "t",     "Cookie", "c",     NULL, "beyond",          "x", NULL
    };
    static const answer there[] = { { "HTTP/1.1 302 x\r\nLocation: http://o/y\r\n\r\n", NULL, CURLE_OK },
                                    { "HTTP/1.1 200 OK\r\n\r\n", NULL, CURLE_OK } };
    static const answer here[] = { { "HTTP/1.1 302 x\r\nLocation: /y\r\n\r\n", NULL, CURLE_OK },
                                   { "HTTP/1.1 200 OK\r\n\r\n", NULL, CURLE_OK } };
    r.headers = headers;
    r.token = "secret";
    assert_true(run("GET", "http://h/x", there, 2));
    static const char some[] = "HTTPHEADER=range: r|Accept-Encoding: e|USER-AGENT: u|Content-Type: t|Expect:|\n";
    static const char every[] = "HTTPHEADER=X-Own: 1|range: r|Accept-Encoding: e|USER-AGENT: u|Content-Type: t|"
                                "Cookie: c|Authorization: Bearer secret|Expect:|\n";
    assert_non_null(strstr(scripted_nth(1)->settings, some));
    assert_memory_equal(scripted_nth(1)->settings, "URL=http://o/y\n", 15);
    assert_true(run("GET", "http://h/x", here, 2));
    assert_non_null(strstr(scripted_nth(3)->settings, every));
    assert_memory_equal(scripted_nth(3)->settings, "URL=http://h/y\n", 15);
}

TEST_WITH(redirects_that_are_refused, setup, teardown)
{
    static const answer down = { "HTTP/1.1 302 x\r\nLocation: http://h/\r\n\r\n", NULL, CURLE_OK };
    assert_false(run("GET", "https://h/", &down, 1));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    assert_string_equal(err.message, "a redirect leads from https to http");
    assert_int_equal(played, 1);
    static const answer up[] = { { "HTTP/1.1 302 x\r\nLocation: https://h/\r\n\r\n", NULL, CURLE_OK },
                                 { "HTTP/1.1 200 OK\r\n\r\n", NULL, CURLE_OK } };
    assert_true(run("GET", "http://h/", up, 2));
    assert_int_equal(r.status, 200);
    assert_true(run("GET", "https://h/", up, 2)); /* from https to https */
    assert_int_equal(r.status, 200);
    assert_int_equal(played, 2);
    assert_false(run("GET", "http://h/", &down, 1)); /* ten are followed */
    assert_string_equal(err.message, "too many redirects");
    assert_int_equal(played, 11);
    static const answer nowhere = { "HTTP/1.1 302 x\r\nLocation: ftp://h/\r\n\r\n", NULL, CURLE_OK };
    assert_false(run("GET", "http://h/", &nowhere, 1));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
}

static int heads;
static bool on_head(tkc_fetch *f, tinkc_error *e)
{
    (void)f, (void)e;
    heads++;
    return true;
}
static bool on_take(tkc_fetch *f, const void *bytes, size_t len, tinkc_error *e)
{
    (void)f, (void)bytes, (void)len, (void)e;
    return true;
}

/* Statuses from 200 to 299 go to the caller; the text of others is kept. */
TEST_WITH(statuses_are_told_apart, setup, teardown)
{
    static const struct {
        const char *line;
        int32_t status;
        bool good;
    } rows[] = { { "HTTP/1.1 199 x\r\n\r\n", 199, false }, { "HTTP/1.1 200 x\r\n\r\n", 200, true },
                 { "HTTP/2 299\r\n\r\n", 299, true },      { "HTTP/1.1 300 x\r\n\r\n", 300, false },
                 { "HTTP/1.1 100 x\r\n\r\n", 100, false }, { "HTTP/1.1 999 x\r\n\r\n", 999, false } };
    r.head = on_head;
    r.take = on_take;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer a = { rows[i].line, "text", CURLE_OK };
        heads = 0;
        assert_true(run("GET", "http://h/", &a, 1));
        assert_int_equal(r.status, rows[i].status);
        assert_int_equal(heads, rows[i].good);
        assert_int_equal(r.text.len, rows[i].good ? 0 : 4);
    }
    static const char *const none[] = { "HTTP/1.1 99 x\r\n\r\n", "HTTP/1.1 1000 x\r\n\r\n", "HTTP/1.1\r\n\r\n",
                                        "HTTP/1.1 x\r\n\r\n", "" };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        answer a = { none[i], NULL, CURLE_OK };
        assert_false(run("GET", "http://h/", &a, 1));
        assert_int_equal(err.code, TINKC_E_CONNECTION);
        assert_string_equal(err.message, "the answer has no status");
    }
}

TEST_WITH(headers_of_answers, setup, teardown)
{
    static const answer a = { "HTTP/1.1 100 x\r\nOld: 1\r\n\r\nHTTP/1.1 200 OK\r\nA : b \r\nE:\r\nnone\r\n"
                              ": x\r\nU: p:q\r\nN:v\r\n\r\n",
                              NULL, CURLE_OK };
    assert_true(run("GET", "http://h/", &a, 1));
    assert_string_equal(tkc_fetch_header(&r, "a"), "b");
    assert_string_equal(tkc_fetch_header(&r, "E"), "");
    assert_string_equal(tkc_fetch_header(&r, "u"), "p:q");
    assert_null(tkc_fetch_header(&r, "Old")); /* of the interim answer */
    assert_null(tkc_fetch_header(&r, "none"));
    assert_null(tkc_fetch_header(&r, ""));
    assert_int_equal(r.pairs.len, strlen("A.b.E..U.p:q.N.v."));
    assert_memory_equal(r.pairs.data, "A\0b\0E\0\0U\0p:q\0N\0v\0", r.pairs.len);
}

static void reads_its_file(scripted_easy *e)
{
    char to[16];
    assert_int_equal(e->read_fn(to, 1, 3, e->read_data), 3);
    assert_memory_equal(to, "234", 3);
    assert_int_equal(e->read_fn(to, 4, 4, e->read_data), 2);
    assert_memory_equal(to, "56", 2);
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 0);
    assert_int_equal(e->seek_fn(e->seek_data, 4, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 1);
    assert_memory_equal(to, "6", 1);
    assert_int_equal(e->seek_fn(e->seek_data, 5, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->seek_fn(e->seek_data, 0, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->seek_fn(e->seek_data, 6, SEEK_SET), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->seek_fn(e->seek_data, -1, SEEK_SET), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->seek_fn(e->seek_data, 0, SEEK_END), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->read_fn(to, 1, 1, e->read_data), 1);
    assert_memory_equal(to, "2", 1);
    perform(e);
}

TEST_WITH(files_are_read_from_their_place, setup, teardown)
{
    char path[] = "/tmp/tinkc-fetch-XXXXXX";
    r.body_fd = mkstemp(path);
    assert_true(r.body_fd >= 0);
    unlink(path);
    assert_int_equal(write(r.body_fd, "0123456789", 10), 10);
    r.body_from = 2;
    r.body_size = 5;
    scripted_curl_performs = reads_its_file;
    assert_true(run("PUT", "http://h/", &fine, 1));
    close(r.body_fd);
}

TEST_WITH(failures_are_explained, setup, teardown)
{
    static const struct {
        answer a;
        int32_t code;
        const char *text;
        bool nobody_there;
    } rows[] = {
        { { "", NULL, CURLE_COULDNT_CONNECT }, TINKC_E_CONNECTION, "no connection: ", true },
        { { "", NULL, CURLE_COULDNT_RESOLVE_HOST }, TINKC_E_CONNECTION, "the name was not resolved (DNS): ", true },
        { { "", NULL, CURLE_COULDNT_RESOLVE_PROXY },
          TINKC_E_CONNECTION,
          "the name of the proxy was not resolved (DNS): ",
          true },
        { { "", NULL, CURLE_OPERATION_TIMEDOUT }, TINKC_E_NET_TIMEOUT, "connecting took too long: ", true },
        { { "", NULL, CURLE_RECV_ERROR }, TINKC_E_CONNECTION, "the connection was reset before an answer: ", false },
        { { "HTTP/1.1 200 OK\r\n\r\n", NULL, CURLE_RECV_ERROR },
          TINKC_E_CONNECTION,
          "the connection was reset inside the answer: ",
          false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_false(run("GET", "http://h/", &rows[i].a, 1));
        assert_int_equal(err.code, rows[i].code);
        assert_memory_equal(err.message, rows[i].text, strlen(rows[i].text));
        assert_true(strlen(err.message) > strlen(rows[i].text)); /* libcurl's words follow */
        assert_int_equal(r.nobody_there, rows[i].nobody_there);
    }
    detail = "d";
    assert_false(run("GET", "http://h/", &rows[0].a, 1));
    assert_string_equal(err.message, "no connection: d");
    os_error = ECONNREFUSED;
    assert_false(run("GET", "http://h/", &rows[0].a, 1));
    assert_string_equal(err.message, "connection refused: d");
    os_error = 0;
    detail = NULL;
    assert_false(run("GET", "http://h/", &rows[0].a, 1)); /* of the one before nothing is left */
    assert_string_equal(err.message, "no connection: Couldn't connect to server");
    static const answer hops[] = { { "HTTP/1.1 302 x\r\nLocation: /y\r\n\r\n", NULL, CURLE_OK },
                                   { "", NULL, CURLE_OK },
                                   { "", NULL, CURLE_RECV_ERROR } };
    assert_false(run("GET", "http://h/", hops, 2));
    assert_string_equal(err.message, "the answer has no status");
    static const answer broken[] = { { "HTTP/1.1 302 x\r\nLocation: /y\r\n\r\n", NULL, CURLE_OK },
                                     { "", NULL, CURLE_COULDNT_CONNECT } };
    detail = "of the first", detail_once = true;
    assert_false(run("GET", "http://h/", broken, 2)); /* nor of the address before a redirect */
    assert_string_equal(err.message, "no connection: Couldn't connect to server");
    detail = NULL, detail_once = false;
    assert_int_equal(r.status, 0);
    const answer lost[] = { hops[0], hops[2] };
    assert_false(run("GET", "http://h/", lost, 2));
    assert_memory_equal(err.message, "the connection was reset before an answer", 41);
    assert_null(tkc_fetch_header(&r, "location")); /* that was the first hop's */
}

static int64_t connected_us; /* when the connection was made; 0 = never */

static void end_after_a_while(scripted_easy *e)
{
    e->pretransfer = connected_us;
    e->total = 10000999;
    perform(e);
}

/* Nobody is there if the name is not found or no connection comes about, in whatever time; a server that took the request is. */
TEST_WITH(nobody_is_there, setup, teardown)
{
    static const struct {
        CURLcode result;
        int64_t connected_us;
        bool nobody;
    } rows[] = {
        { CURLE_COULDNT_RESOLVE_HOST, 0, true }, { CURLE_COULDNT_RESOLVE_PROXY, 0, true },
        { CURLE_COULDNT_CONNECT, 0, true },      { CURLE_OPERATION_TIMEDOUT, 0, true },
        { CURLE_OPERATION_TIMEDOUT, 1, false },  { CURLE_RECV_ERROR, 0, false },
    };
    scripted_curl_performs = end_after_a_while;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer a = { "", NULL, rows[i].result };
        connected_us = rows[i].connected_us;
        assert_false(run("GET", "https://h/", &a, 1));
        assert_int_equal(r.nobody_there, rows[i].nobody);
        assert_int_equal(r.took_ms, 10000);
    }
    assert_true(run("GET", "https://h/", &fine, 1));
    assert_false(r.nobody_there);
    assert_int_equal(r.took_ms, 0);
}

TEST_WITH(libcurls_own_failures, setup, teardown)
{
    static const struct {
        const char *function;
        int32_t code;
        const char *text;
    } rows[] = { { "URL", TINKC_E_CONNECTION, "libcurl rejected a setting" },
                 { "PROXY", TINKC_E_CONNECTION, "libcurl rejected a setting" },
                 { "multi_perform", TINKC_E_CONNECTION, "libcurl failed" },
                 { "slist_append", TINKC_E_MEMORY, "out of memory" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scripted_curl_fails = rows[i].function;
        assert_false(run("GET", "http://h/", &fine, 1));
        assert_int_equal(err.code, rows[i].code);
        assert_string_equal(err.message, rows[i].text);
    }
    static const char *const headers[] = { "A", "b", NULL };
    r.headers = headers;
    scripted_curl_fails = "slist_append";
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    assert_string_equal(err.message, "out of memory");
    r.headers = NULL;
    scripted_curl_fails = "multi_add_handle";
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_int_equal(played, 0);
    static const char *const made[] = { "easy_init", "multi_init" };
    for (size_t i = 0; i < 2; i++) {
        err = (tinkc_error){ 0 };
        scripted_curl_fails = made[i];
        assert_null(tkc_fetcher_new(&allocator, &options, &err));
        assert_int_equal(err.code, TINKC_E_MEMORY);
    }
    assert_int_equal(scripted_easies_open(), 1);
}

/* A good text beyond the bound is refused, of another one the beginning is kept; the usual bound is 64 KiB. */
TEST_WITH(texts_are_bounded, setup, teardown)
{
    assert_int_equal(r.max_text, 65536);
    static const answer bad = { "HTTP/1.1 500 x\r\n\r\n", "hello", CURLE_OK };
    static const struct {
        const answer *a;
        size_t bound;
        bool done;
        size_t kept;
    } rows[] = { { &fine, 5, true, 5 }, { &fine, 4, false, 0 }, { &bad, 5, true, 5 }, { &bad, 4, true, 0 } };
    for (size_t i = 0; i < 4; i++) {
        r.max_text = rows[i].bound;
        assert_int_equal(run("GET", "http://h/", rows[i].a, 1), rows[i].done);
        assert_int_equal(r.text.len, rows[i].kept);
    }
    r.max_text = 4;
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    assert_string_equal(err.message, "the answer is longer than 4 bytes");
    static const answer one_byte = { "HTTP/1.1 200 OK\r\n\r\n", "x", CURLE_OK };
    r.max_text = 0;
    assert_false(run("GET", "http://h/", &one_byte, 1));
    assert_false(was_wanted); /* libcurl is stopped */
    assert_string_equal(err.message, "the answer is longer than 0 bytes");
    tkc_fetch_end(&r); /* no room is left from before */
    tkc_fetch_init(&r, &allocator);
    book.left = 0;
    assert_false(run("GET", "http://h/", &one_byte, 1));
    assert_false(was_wanted);
    assert_int_equal(err.code, TINKC_E_MEMORY);
    book.left = -1;
}

static void set_stop(scripted_easy *e)
{
    (void)e;
    atomic_store(&stop, true);
}

TEST_WITH(a_stop_is_seen, setup, teardown)
{
    scripted_curl_performs = set_stop;
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_string_equal(err.message, "the transfer was stopped");
    assert_int_equal(scripted_added(), 1);
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_int_equal(scripted_added(), 1);
}

/* ---- redirects, by method and status ---- */

TEST_WITH(statuses_that_lead_on, setup, teardown)
{
    static const struct {
        const char *method;
        int status;
        bool followed;
    } rows[] = { { "GET", 300, false }, { "GET", 301, true },   { "GET", 302, true },   { "GET", 303, true },
                 { "GET", 304, false }, { "GET", 305, false },  { "GET", 306, false },  { "GET", 307, true },
                 { "GET", 308, true },  { "GET", 309, false },  { "HEAD", 301, true },  { "HEAD", 302, true },
                 { "HEAD", 303, true }, { "POST", 301, false }, { "POST", 302, false }, { "POST", 303, false },
                 { "POST", 307, true }, { "POST", 308, true },  { "GET", 200, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char head[100];
        (void)snprintf(head, sizeof head, "HTTP/1.1 %d x\r\nLOCATION: /y\r\n\r\n", rows[i].status);
        answer both[] = { { head, NULL, CURLE_OK }, { "HTTP/1.1 204 x\r\n\r\n", NULL, CURLE_OK } };
        assert_true(run(rows[i].method, "http://h/x", both, 2));
        assert_int_equal(r.status, rows[i].followed ? 204 : rows[i].status);
        assert_int_equal(played, rows[i].followed ? 2 : 1);
    }
    static const answer nowhere = { "HTTP/1.1 302 x\r\n\r\n", NULL, CURLE_OK };
    assert_true(run("GET", "http://h/x", &nowhere, 1));
    assert_int_equal(r.status, 302);
}

/* Once on another host, the way back brings no token either. */
TEST_WITH(a_token_is_not_taken_up_again, setup, teardown)
{
    static const answer there_and_back[] = { { "HTTP/1.1 302 x\r\nLocation: http://o/\r\n\r\n", "gone", CURLE_OK },
                                             { "HTTP/1.1 302 x\r\nLocation: http://h/\r\n\r\n", "gone", CURLE_OK },
                                             { "HTTP/1.1 200 x\r\n\r\n", "here", CURLE_OK } };
    r.token = "secret";
    assert_true(run("GET", "http://h/x", there_and_back, 3));
    assert_non_null(strstr(scripted_nth(2)->settings, "HTTPHEADER=Expect:|\n"));
    assert_int_equal(r.text.len, 4); /* of the last answer alone */
    assert_memory_equal(r.text.data, "here", 4);
    assert_null(tkc_fetch_header(&r, "location"));
}

/* ---- headers ---- */

TEST_WITH(bad_headers_are_refused, setup, teardown)
{
    static const char *const rows[][3] = { { "A", "b\nc", NULL }, { "A", "b\rc", NULL }, { "A\n", "b", NULL } };
    for (size_t i = 0; i < 3; i++) {
        r.headers = rows[i];
        assert_false(run("GET", "http://h/", &fine, 1));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_non_null(strstr(err.message, "the header A"));
        assert_non_null(strstr(err.message, " holds a line break"));
    }
    r.headers = NULL;
    r.token = "a\nb";
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_string_equal(err.message, "the header Authorization holds a line break");
    assert_int_equal(scripted_added(), 0);
}

static size_t long_len;
static void give_long_head(scripted_easy *e)
{
    static char line[300 * 1024];
    memset(line, 'v', sizeof line);
    memcpy(line, "a:", 2);
    assert_true(scripted_head(e, "HTTP/1.1 200 OK\r\n"));
    bool taken = e->header_fn(line, 1, long_len, e->header_data) == long_len;
    char odd[] = "x\0y: z\r\n"; /* a NUL inside: not kept */
    assert_int_equal(e->header_fn(odd, 1, 8, e->header_data), taken ? 8 : 0);
    scripted_end(e, taken ? CURLE_OK : CURLE_WRITE_ERROR);
}

/* 256 KiB of headers are kept, and no more. */
TEST_WITH(heads_are_bounded, setup, teardown)
{
    scripted_curl_performs = give_long_head;
    long_len = 2 + 256 * 1024 - 3; /* without "a:", with the ends of name and value and the name */
    assert_true(run("GET", "http://h/", &fine, 1));
    assert_int_equal(r.pairs.len, 256 * 1024);
    assert_int_equal(strlen(tkc_fetch_header(&r, "A")), 256 * 1024 - 3);
    long_len++;
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_true(err.code != 0);
}

/* ---- what the caller takes ---- */

static char taken[64];
static bool refuse_head, refuse_body;
static bool note_head(tkc_fetch *f, tinkc_error *e)
{
    assert_int_equal(f->status, 200);
    (void)strcat(taken, "head;");
    return !refuse_head || tkc_fail(e, TINKC_E_FILE, "no head");
}
static bool note_take(tkc_fetch *f, const void *bytes, size_t len, tinkc_error *e)
{
    (void)f;
    (void)strncat(taken, bytes, len);
    (void)strcat(taken, ";");
    return !refuse_body || tkc_fail(e, TINKC_E_FILE, "no body");
}

TEST_WITH(the_caller_takes_it, setup, teardown)
{
    static const answer empty = { "HTTP/1.1 200 OK\r\n\r\n", NULL, CURLE_OK };
    static const answer short_one = { "HTTP/1.1 200 OK\r\n\r\n", "x", CURLE_OK };
    static const struct {
        const answer *a;
        bool refuse_head, refuse_body;
        const char *taken, *message;
    } rows[] = {
        { &fine, false, false, "head;hello;", "" },        { &empty, false, false, "head;", "" },
        { &fine, true, false, "head;", "no head" },        { &empty, true, false, "head;", "no head" },
        { &fine, false, true, "head;hello;", "no body" },  { &short_one, true, false, "head;", "no head" },
        { &short_one, false, true, "head;x;", "no body" },
    };
    r.head = note_head;
    r.take = note_take;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        taken[0] = 0;
        refuse_head = rows[i].refuse_head;
        refuse_body = rows[i].refuse_body;
        assert_int_equal(run("GET", "http://h/", rows[i].a, 1), !rows[i].message[0]);
        assert_string_equal(taken, rows[i].taken);
        assert_int_equal(was_wanted, !rows[i].message[0] || rows[i].a == &empty);
        assert_string_equal(err.message, rows[i].message);
        assert_int_equal(r.text.len, 0);
    }
    static const answer moved[] = {
        { "HTTP/1.1 302 Found\r\nLocation: /to\r\n\r\n", "it is there", CURLE_OK },
        { "HTTP/1.1 200 OK\r\n\r\n", "hello", CURLE_OK },
    };
    taken[0] = 0;
    refuse_head = refuse_body = false;
    assert_true(run("GET", "http://h/", moved, 2)); /* of a redirect they see only where it leads */
    assert_string_equal(taken, "head;hello;");
    r.head = NULL; /* without them the text is kept */
    r.take = NULL;
    assert_true(run("GET", "http://h/", &fine, 1));
    assert_int_equal(r.text.len, 5);
}

/* ---- files ---- */

static int64_t sent_to[8];
static size_t n_sent_to;
static void note_sent(tkc_fetch *f, int64_t at)
{
    assert_ptr_equal(f, &r);
    sent_to[n_sent_to++] = at;
}

static void reads_in_pieces(scripted_easy *e)
{
    char to[8];
    while (e->read_fn(to, 1, 2, e->read_data) == 2)
        ;
    perform(e);
}

static void reads_too_far(scripted_easy *e)
{
    char to[16];
    assert_int_equal(e->read_fn(to, 1, 16, e->read_data), 10);
    assert_int_equal(e->read_fn(to, 1, 16, e->read_data), CURL_READFUNC_ABORT);
    scripted_end(e, CURLE_ABORTED_BY_CALLBACK);
}

static void reads_nothing(scripted_easy *e)
{
    char to[16];
    assert_int_equal(e->read_fn(to, 1, 16, e->read_data), CURL_READFUNC_ABORT);
    scripted_end(e, CURLE_ABORTED_BY_CALLBACK);
}

TEST_WITH(uploads_count_and_fail, setup, teardown)
{
    static const answer again[] = { { "HTTP/1.1 307 x\r\nLocation: /y\r\n\r\n", NULL, CURLE_OK },
                                    { "HTTP/1.1 200 OK\r\n\r\n", NULL, CURLE_OK } };
    static const int64_t want[] = { 2, 4, 5, 2, 4, 5 };
    char path[] = "/tmp/tinkc-fetch-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(write(fd, "0123456789", 10), 10);
    r.body_fd = fd;
    r.body_size = 5;
    r.sent = note_sent;
    n_sent_to = 0;
    scripted_curl_performs = reads_in_pieces;
    assert_true(run("PUT", "http://h/", again, 2)); /* from its beginning again after a redirect */
    assert_int_equal(n_sent_to, 6);
    assert_memory_equal(sent_to, want, sizeof want);
    r.sent = NULL;
    r.body_size = 11;
    scripted_curl_performs = reads_too_far;
    assert_false(run("PUT", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_string_equal(err.message, "the file to upload has become shorter");
    close(fd);
    scripted_curl_performs = reads_nothing;
    r.body_fd = fd;
    assert_false(run("PUT", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_memory_equal(err.message, "the file to upload: ", 20);
    r.body_fd = -1;
}

/* ---- the way a transfer ends ---- */

static int rounds_left;
static void ends_late(scripted_easy *e)
{
    if (rounds_left-- == 0)
        perform(e);
}

static void ends_in_pieces(scripted_easy *e)
{
    static const char *const pieces[] = { "ab", "c", "def" };
    assert_true(scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n"));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(scripted_body(e, pieces[i]), strlen(pieces[i]));
    scripted_end(e, CURLE_OK);
}

static void ends_without_a_word(scripted_easy *e)
{
    scripted_end(e, CURLE_OK);
    e->message.msg = CURLMSG_NONE;
}

TEST_WITH(transfers_take_several_rounds, setup, teardown)
{
    rounds_left = 3;
    scripted_curl_performs = ends_late;
    assert_true(run("GET", "http://h/", &fine, 1));
    assert_int_equal(rounds_left, -1);
    assert_int_equal(r.text.len, 5);
    long waited;
    assert_int_equal(scripted_polls(&waited), 3); /* between the rounds */
    assert_int_equal(waited, 3 * 100);            /* a stop is seen that soon */
    scripted_curl_performs = ends_in_pieces;
    assert_true(run("GET", "http://h/", &fine, 1));
    assert_int_equal(r.text.len, 6);
    assert_memory_equal(r.text.data, "abcdef", 6);
    scripted_curl_performs = ends_without_a_word;
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    atomic_store(&stop, true); /* seen before the first hop, and said over what failed before */
    err = (tinkc_error){ 0 };
    assert_false(run("GET", "http://h/", &fine, 1));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
}

/* ---- the library itself ---- */

static curl_version_info_data version;
static curl_version_info_data *give_version(CURLversion which)
{
    (void)which;
    return &version;
}

TEST(libraries_that_will_do)
{
    enum { BOTH = CURL_VERSION_ASYNCHDNS | CURL_VERSION_SSL };
    static const struct {
        unsigned number;
        int features;
        const char *message;
    } rows[] = {
        { 0x074300, BOTH, "" },
        { 0x080000, BOTH | CURL_VERSION_HTTP2, "" },
        { 0x0742FF, BOTH, "libcurl 7.x is too old, 7.67 is needed" },
        { 0x074300, CURL_VERSION_SSL, "libcurl 7.x was built without asynchronous name resolution" },
        { 0x074300, CURL_VERSION_ASYNCHDNS, "libcurl 7.x was built without TLS" },
    };
    const tkc_curl table = { .version_info = give_version };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error why = { 0 };
        version =
            (curl_version_info_data){ .version = "7.x", .version_num = rows[i].number, .features = rows[i].features };
        assert_int_equal(tkc_curl_check(&table, &why), !rows[i].message[0]);
        assert_string_equal(why.message, rows[i].message);
        assert_int_equal(why.code, rows[i].message[0] ? TINKC_E_UNSUPPORTED : 0);
    }
}
