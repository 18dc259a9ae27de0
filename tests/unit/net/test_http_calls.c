/* test_http_calls.c - what the transport asks of libcurl, setting by setting, and what it makes of
 * each answer and failure. */
#include "support/client/http_script.h"

#include <errno.h>

#define HEADERS "HTTPHEADER=X-API-Key: secret|Accept: a/b|Expect:|Content-Type:|\n"
#define ENDING                                                                                                         \
    "PROXY=\nNOPROXY=\nBUFFERSIZE=32768\nCONNECTTIMEOUT_MS=500\nACCEPT_ENCODING=\n" HEADERS "URL=http://h/p\n"
#define ENDING_TLS(more)                                                                                               \
    "PROXY=\nNOPROXY=\nSSL_VERIFYPEER=1\nSSL_VERIFYHOST=2\nSSLVERSION=6\n" more                                        \
    "BUFFERSIZE=32768\nCONNECTTIMEOUT_MS=500\nACCEPT_ENCODING=\n" HEADERS "URL=https://h/p\n"

TEST_WITH(each_method_has_its_settings, setup, teardown)
{
    static const struct {
        const char *method, *base, *body;
        int32_t pool;
        const char *want;
    } rows[] = {
        { "GET", "http://h", NULL, TINKC_POOL_RETRIEVE, "HTTPGET=1\nCUSTOMREQUEST=GET\n" ENDING },
        { "HEAD", "http://h", NULL, TINKC_POOL_RETRIEVE, "NOBODY=1\n" ENDING },
        { "POST", "http://h", NULL, TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=\nPOSTFIELDSIZE_LARGE=0\nCUSTOMREQUEST=POST\n" ENDING },
        { "PATCH", "http://h", NULL, TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=\nPOSTFIELDSIZE_LARGE=0\nCUSTOMREQUEST=PATCH\n" ENDING },
        { "PUT", "http://h", "abc", TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=PUT\n" ENDING },
        { "DELETE", "http://h", NULL, TINKC_POOL_RETRIEVE, "HTTPGET=1\nCUSTOMREQUEST=DELETE\n" ENDING },
        { "DELETE", "http://h", "{}", TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS={}\nPOSTFIELDSIZE_LARGE=2\nCUSTOMREQUEST=DELETE\n" ENDING },
        { "DELETE", "http://h", "0", TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=0\nPOSTFIELDSIZE_LARGE=1\nCUSTOMREQUEST=DELETE\n" ENDING },
        /* Over TLS requests wait for a connection that they can share, but for training. */
        { "GET", "https://h", NULL, TINKC_POOL_RETRIEVE, "HTTPGET=1\nCUSTOMREQUEST=GET\n" ENDING_TLS("PIPEWAIT=1\n") },
        { "GET", "https://h", NULL, TINKC_POOL_TRAIN, "HTTPGET=1\nCUSTOMREQUEST=GET\n" ENDING_TLS("") },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = make(rows[i].method, rows[i].base, rows[i].pool);
        if (rows[i].body)
            x->request.body = (tinkc_bytes){ (const unsigned char *)rows[i].body, strlen(rows[i].body) };
        sent(x);
        assert_string_equal(settings(i), rows[i].want);
    }
}

TEST_WITH(limits_become_settings, setup, teardown)
{
    static const struct {
        int64_t connect;
        const char *want;
    } rows[] = { { 1, "CONNECTTIMEOUT_MS=1\n" },
                 { 5000, "CONNECTTIMEOUT_MS=5000\n" },
                 { 0, "CONNECTTIMEOUT_MS=2147483647\n" },
                 { -1, "CONNECTTIMEOUT_MS=2147483647\n" },
                 { INT32_MAX, "CONNECTTIMEOUT_MS=2147483647\n" },
                 { INT64_C(1) << 40, "CONNECTTIMEOUT_MS=2147483647\n" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_SESSION);
        x->request.connect_timeout_ms = rows[i].connect;
        sent(x);
        assert_non_null(strstr(settings(i), rows[i].want));
    }
}

/* Few plain calls have large buffers; a crowd has small ones. */
TEST_WITH(buffers_shrink_in_a_crowd, setup, teardown)
{
    static const struct {
        size_t active;
        const char *want;
    } rows[] = { { 1, "BUFFERSIZE=65536\n" },
                 { 4, "BUFFERSIZE=65536\n" },
                 { 5, "BUFFERSIZE=32768\n" },
                 { 64, "BUFFERSIZE=32768\n" },
                 { 65, "BUFFERSIZE=2048\n" } };
    open_with(&(tkc_http_options){ .proxy = "", .max_connections = 100 * 16 });
    for (size_t i = 0; i < 65; i++)
        sent(make("GET", "http://h", TINKC_POOL_REST));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_non_null(strstr(scripted_nth(rows[i].active - 1)->settings, rows[i].want));
}

TEST_WITH(routes_become_settings, setup, teardown)
{
    open_with(&(tkc_http_options){
        .base_url = "http://service/api", .unix_socket = "/run/s", .proxy = "http://proxy", .ca_file = "/ca.pem" });
    sent(make("GET", "http://service/api/", TINKC_POOL_REST));
    assert_non_null(strstr(settings(0), "UNIX_SOCKET_PATH=/run/s\nPROXY=\nNOPROXY=\n"));
    assert_non_null(strstr(settings(0), "URL=http://service/api/p\n"));
    sent(make("GET", "http://other", TINKC_POOL_REST));
    assert_null(strstr(settings(1), "UNIX_SOCKET_PATH"));
    assert_non_null(strstr(settings(1), "PROXY=http://proxy\nNOPROXY=\n"));
    sent(make("GET", "HTTPS://other", TINKC_POOL_REST));
    assert_non_null(strstr(settings(2), "PROXY=http://proxy\nNOPROXY=\nSSL_VERIFYPEER=1\n"));
    assert_non_null(strstr(settings(2), "CAINFO=/ca.pem\n"));
    assert_null(strstr(settings(2), "CAPATH"));
    assert_null(strstr(settings(1), "CAINFO"));
}

TEST_WITH(the_environment_names_routes, setup, teardown)
{
    static const struct {
        const char *set[3][2];
        const char *plain, *tls;
    } rows[] = {
        { { { NULL } }, "PROXY=\nNOPROXY=\n", "PROXY=\nNOPROXY=\n" },
        { { { "all_proxy", "a" } }, "PROXY=a\nNOPROXY=\n", "PROXY=a\nNOPROXY=\n" },
        { { { "ALL_PROXY", "A" } }, "PROXY=A\nNOPROXY=\n", "PROXY=A\nNOPROXY=\n" },
        { { { "all_proxy", "a" }, { "ALL_PROXY", "A" } }, "PROXY=a\n", "PROXY=a\n" },
        { { { "all_proxy", "" }, { "ALL_PROXY", "A" } }, "PROXY=A\n", "PROXY=A\n" },
        { { { "http_proxy", "p" }, { "all_proxy", "a" } }, "PROXY=p\n", "PROXY=a\n" },
        { { { "https_proxy", "s" }, { "all_proxy", "a" } }, "PROXY=a\n", "PROXY=s\n" },
        { { { "HTTP_PROXY", "P" }, { "HTTPS_PROXY", "S" } }, "PROXY=P\n", "PROXY=S\n" },
        { { { "HTTP_PROXY", "P" }, { "REQUEST_METHOD", "GET" } }, "PROXY=\n", "PROXY=\n" },
        { { { "http_proxy", "p" }, { "REQUEST_METHOD", "GET" } }, "PROXY=p\n", "PROXY=\n" },
        { { { "no_proxy", "n" } }, "PROXY=\nNOPROXY=n\n", "PROXY=\nNOPROXY=n\n" },
        { { { "NO_PROXY", "N" } }, "PROXY=\nNOPROXY=N\n", "PROXY=\nNOPROXY=N\n" },
        { { { "SSL_CERT_FILE", "/f" } }, "PROXY=\n", "SSLVERSION=6\nCAINFO=/f\nPIPEWAIT=1\n" },
        { { { "SSL_CERT_DIR", "/d" } }, "PROXY=\n", "SSLVERSION=6\nCAPATH=/d\nPIPEWAIT=1\n" },
        { { { "SSL_CERT_FILE", "/f" }, { "SSL_CERT_DIR", "/d" } },
          "PROXY=\n",
          "SSLVERSION=6\nCAINFO=/f\nCAPATH=/d\nPIPEWAIT=1\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clear_environment();
        for (size_t k = 0; k < 3 && rows[i].set[k][0]; k++)
            setenv(rows[i].set[k][0], rows[i].set[k][1], 1);
        if (i)
            setup(NULL);
        open_with(&(tkc_http_options){ 0 });
        sent(make("GET", "http://h", TINKC_POOL_REST));
        sent(make("GET", "https://h", TINKC_POOL_REST));
        if (!strstr(settings(0), rows[i].plain) || !strstr(settings(1), rows[i].tls))
            fail_msg("row %zu: %s", i, settings(1));
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
    clear_environment();
}

/* ---- bodies that are read ---- */

static void check_reading(scripted_easy *e, const char *unused)
{
    char to[16];
    (void)unused;
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 4);
    assert_memory_equal(to, "0123", 4);
    assert_int_equal(e->read_fn(to, 2, 8, e->read_data), 6);
    assert_memory_equal(to, "456789", 6);
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 0); /* the end */
    assert_int_equal(e->seek_fn(e->seek_data, 7, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->read_fn(to, 1, 16, e->read_data), 3);
    assert_memory_equal(to, "789", 3);
    assert_int_equal(e->seek_fn(e->seek_data, 10, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->seek_fn(e->seek_data, 0, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->seek_fn(e->seek_data, 11, SEEK_SET), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->seek_fn(e->seek_data, -1, SEEK_SET), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->seek_fn(e->seek_data, 1, SEEK_CUR), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->read_fn(to, 1, 2, e->read_data), 2); /* refused ones moved nothing */
    assert_memory_equal(to, "01", 2);
}

static size_t read_nothing(const tinkc_request *r, uint64_t at, void *to, size_t cap)
{
    (void)r, (void)at, (void)to, (void)cap;
    return 0;
}

static void check_failed_reading(scripted_easy *e, const char *unused)
{
    char to[4];
    (void)unused;
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), CURL_READFUNC_ABORT);
}

TEST_WITH(large_bodies_are_read_piece_by_piece, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("POST", "http://h", TINKC_POOL_TRAIN);
    x->request.read_body = read_some;
    x->request.body_size = 10;
    sent(x);
    assert_string_equal(settings(0), "POST=1\nPOSTFIELDSIZE_LARGE=10\nCUSTOMREQUEST=POST\n" ENDING);
    play(0, check_reading, NULL);
    x = make("POST", "http://h", TINKC_POOL_TRAIN);
    x->request.read_body = read_nothing;
    x->request.body_size = 10;
    sent(x);
    play(1, check_failed_reading, NULL);
}

/* ---- headers of requests ---- */

TEST_WITH(headers_as_they_are_sent, setup, teardown)
{
    static const char *const own[] = { "accept-encoding", "zstd", "Content-Type", "x/y", "X-Empty", "", NULL };
    static const char *const ended[] = { "A", "b", NULL, "beyond", "C", "d", NULL };
    static const char *const bad[][3] = {
        { "A", "b\nc", NULL }, { "A", "b\rc", NULL }, { "A:", "b", NULL }, { "A\n", "b", NULL }, { "A\r", "b", NULL }
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.headers = own;
    sent(x);
    assert_non_null(strstr(settings(0), "CONNECTTIMEOUT_MS=500\nHTTPHEADER=accept-encoding: zstd|"
                                        "Content-Type: x/y|X-Empty;|Expect:|\n"));
    x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.headers = NULL;
    sent(x);
    assert_non_null(strstr(settings(1), "ACCEPT_ENCODING=\nHTTPHEADER=Expect:|Content-Type:|\n"));
    x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.headers = ended;
    sent(x);
    assert_non_null(strstr(settings(2), "\nHTTPHEADER=A: b|Expect:|Content-Type:|\n"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        x = make("GET", "http://h", TINKC_POOL_REST);
        x->request.headers = bad[i];
        sent(x);
        char want[64];
        (void)snprintf(want, sizeof want, "fail %d a header holds a line break;", TINKC_E_CONNECTION);
        assert_string_equal(x->log, want);
    }
    assert_int_equal(scripted_added(), 3);
}

/* ---- answers ---- */

TEST_WITH(answers_as_they_are_passed_on, setup, teardown)
{
    static const struct {
        int32_t pool;
        const char *head, *body, *want;
    } rows[] = {
        { TINKC_POOL_TRAIN, "HTTP/1.1 200 OK\r\nA: b\r\nC:d \r\n\r\n", "x", "200;A=b;C=d;head;body x;end;" },
        { TINKC_POOL_TRAIN, "HTTP/2 404\r\n\r\n", NULL, "404;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 100 Continue\r\nE: f\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\n\r\n", NULL,
          "200;A=b;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 199 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", NULL, "200;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 999 x\r\n\r\n", NULL, "999;head;end;" },
        /* a status line begins a head of its own */
        { TINKC_POOL_TRAIN, "HTTP/1.1 302 x\r\nA: b\r\nHTTP/1.1 200 OK\r\nC: d\r\n\r\n", NULL, "200;C=d;head;end;" },
        /* the lines after the head are a trailer; those without a name are dropped */
        { TINKC_POOL_TRAIN, "HTTP/1.1 200 OK\r\n: x\r\nno colon\r\nG:\r\n\r\nT: u\r\n", "y",
          "200;G=;head;body y;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 200 OK\r\nUrl: a:b:c\r\n\r\n", NULL, "200;Url=a:b:c;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 abc\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 99 x\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 1000 x\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 100 x\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "", NULL, "fail CODE the answer has no status;" },
        /* plain calls are given the address and the protocol as well */
        { TINKC_POOL_REST, "HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "x",
          "200;A=b;:url=http://h/p;:version=;head;body x;end;" },
        /* these statuses are not redirects, whatever Location says */
        { TINKC_POOL_TRAIN, "HTTP/1.1 300 x\r\nLocation: /y\r\n\r\n", NULL, "300;Location=/y;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 304 x\r\n\r\n", NULL, "304;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 305 x\r\n\r\n", NULL, "305;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 306 x\r\n\r\n", NULL, "306;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 309 x\r\n\r\n", NULL, "309;head;end;" },
        /* a redirect without a target is an answer, but its body is not kept */
        { TINKC_POOL_TRAIN, "HTTP/1.1 301 x\r\nA: b\r\nC: d\r\n\r\n", "z", "301;A=b;C=d;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 308 x\r\nA: b\r\n\r\n", NULL, "308;A=b;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 308 x\r\nA:\r\nC: d\r\nE:\r\n\r\n", NULL, "308;A=;C=d;E=;end;" },
    };
    char want[200], code[16];
    (void)snprintf(code, sizeof code, "%d", TINKC_E_CONNECTION);
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = sent(make("GET", "http://h", rows[i].pool));
        play(i, head_only, rows[i].head);
        if (rows[i].body)
            play(i, body_only, rows[i].body);
        play(i, end_well, NULL);
        const char *mark = strstr(rows[i].want, "CODE");
        (void)snprintf(want, sizeof want, "%.*s%s%s", mark ? (int)(mark - rows[i].want) : (int)strlen(rows[i].want),
                       rows[i].want, mark ? code : "", mark ? mark + 4 : "");
        assert_string_equal(x->log, want);
    }
}

static void give_version(scripted_easy *e, const char *version)
{
    e->http_version = atol(version);
    head_and_end(e, "HTTP/1.1 200 OK\r\n\r\n");
}

TEST_WITH(versions_have_names, setup, teardown)
{
    static const struct {
        long version;
        const char *want;
    } rows[] = { { CURL_HTTP_VERSION_1_0, "200;:url=http://h/p;:version=1.0;head;end;" },
                 { CURL_HTTP_VERSION_1_1, "200;:url=http://h/p;:version=1.1;head;end;" },
                 { CURL_HTTP_VERSION_2_0, "200;:url=http://h/p;:version=2;head;end;" },
                 { 30, "200;:url=http://h/p;:version=;head;end;" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 4; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%ld", rows[i].version);
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_REST));
        play(i, give_version, text);
        assert_string_equal(x->log, rows[i].want);
    }
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_REST));
    scripted_curl_fails = "easy_getinfo"; /* nobody knows */
    play(4, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    assert_string_equal(x->log, "200;:url=http://h/p;:version=;head;");
}

/* After a 400 the connection is not used again: it may concern the connection. */
TEST_WITH(a_400_forbids_reuse, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    for (int status = 399; status <= 401; status++) {
        char line[64];
        size_t nth = scripted_added();
        sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        (void)snprintf(line, sizeof line, "HTTP/1.1 %d x\r\n\r\n", status);
        play(nth, head_only, line);
        assert_int_equal(strstr(settings(nth), "FORBID_REUSE=1\n") != NULL, status == 400);
    }
}

static void refuse(scripted_easy *e, const char *what)
{
    if (strcmp(what, "head") == 0) {
        assert_false(scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n"));
    } else {
        assert_true(scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n"));
        assert_int_equal(scripted_body(e, "x"), 0);
    }
    scripted_end(e, CURLE_WRITE_ERROR);
}

TEST_WITH(unwanted_answers_end, setup, teardown)
{
    static const char *const what[] = { "head", "body" };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 2; i++) {
        char want[100];
        exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
        x->refuses_head = i == 0;
        x->refuses_body = i == 1;
        sent(x);
        play(i, refuse, what[i]);
        (void)snprintf(want, sizeof want, "200;head;%sfail %d the rest of the body was not wanted;", i ? "body x;" : "",
                       TINKC_E_BAD_RESPONSE);
        assert_string_equal(x->log, want);
    }
}

/* ---- failures ---- */

typedef struct failure {
    CURLcode result;
    const char *head;
    const char *detail; /* in libcurl's error buffer */
    long os_error;
    int32_t code;
    const char *text;
} failure;

static const failure *playing;
static void end_badly(scripted_easy *e, const char *unused)
{
    (void)unused;
    if (playing->head)
        (void)scripted_head(e, playing->head);
    (void)snprintf(e->error_text, CURL_ERROR_SIZE, "%s", playing->detail);
    e->os_error = playing->os_error;
    scripted_end(e, playing->result);
}

TEST_WITH(failures_have_codes_and_texts, setup, teardown)
{
    static const failure rows[] = {
        { CURLE_COULDNT_RESOLVE_HOST, NULL, "d", 0, TINKC_E_CONNECTION, "the name was not resolved (DNS): d" },
        { CURLE_COULDNT_RESOLVE_PROXY, NULL, "d", 0, TINKC_E_CONNECTION,
          "the name of the proxy was not resolved (DNS): d" },
        { CURLE_COULDNT_CONNECT, NULL, "d", 0, TINKC_E_CONNECTION, "no connection: d" },
        { CURLE_COULDNT_CONNECT, NULL, "d", ECONNREFUSED, TINKC_E_CONNECTION, "connection refused: d" },
        { CURLE_RECV_ERROR, NULL, "d", ECONNREFUSED, TINKC_E_CONNECTION,
          "the connection was reset before an answer: d" },
        { CURLE_SEND_ERROR, NULL, "d", 0, TINKC_E_CONNECTION, "the connection was reset before an answer: d" },
        { CURLE_RECV_ERROR, "HTTP/1.1 200 OK\r\n", "d", 0, TINKC_E_CONNECTION,
          "the connection was reset inside the answer: d" },
        { CURLE_SEND_ERROR, "HTTP/1.1 200 OK\r\n", "d", 0, TINKC_E_CONNECTION,
          "the connection was reset inside the answer: d" },
        { CURLE_PROXY, NULL, "d", 0, TINKC_E_CONNECTION, "the proxy failed: d" },
        { CURLE_SSL_CONNECT_ERROR, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_PEER_FAILED_VERIFICATION, NULL, "d", 0, TINKC_E_CONNECTION, "TLS: the certificate is not trusted: d" },
        { CURLE_SSL_CACERT_BADFILE, NULL, "d", 0, TINKC_E_CONNECTION, "TLS: the file of authorities is unusable: d" },
        { CURLE_SSL_CERTPROBLEM, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_SSL_CIPHER, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_SSL_ISSUER_ERROR, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_OPERATION_TIMEDOUT, NULL, "d", 0, TINKC_E_NET_TIMEOUT, "connecting took too long: d" },
        { CURLE_PARTIAL_FILE, NULL, "d", 0, TINKC_E_CONNECTION, "the connection ended inside the body: d" },
        { CURLE_GOT_NOTHING, NULL, "d", 0, TINKC_E_CONNECTION, "the connection was closed before an answer: d" },
        { CURLE_BAD_CONTENT_ENCODING, NULL, "d", 0, TINKC_E_BAD_RESPONSE, "the body's compression is broken: d" },
        { CURLE_WEIRD_SERVER_REPLY, NULL, "d", 0, TINKC_E_CONNECTION, "the answer is not HTTP: d" },
        { CURLE_UNSUPPORTED_PROTOCOL, NULL, "d", 0, TINKC_E_CONNECTION, "the answer is not HTTP: d" },
        { CURLE_HTTP2, NULL, "d", 0, TINKC_E_CONNECTION, "the connection failed (HTTP/2): d" },
        { CURLE_HTTP2_STREAM, NULL, "d", 0, TINKC_E_CONNECTION, "the stream failed (HTTP/2): d" },
        { CURLE_OUT_OF_MEMORY, NULL, "d", 0, TINKC_E_CONNECTION, "out of memory: d" },
        { CURLE_READ_ERROR, NULL,
          "a\tb\nc\x1F"
          "d e",
          0, TINKC_E_CONNECTION, "the transfer failed: a b c d e" },
        { CURLE_ABORTED_BY_CALLBACK, NULL, "", 0, TINKC_E_CONNECTION,
          "the transfer failed: Operation was aborted by an application callback" },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[200];
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        playing = &rows[i];
        play(i, end_badly, NULL);
        (void)snprintf(want, sizeof want, "%sfail %d %s;", rows[i].head ? "200;" : "", (int)rows[i].code, rows[i].text);
        assert_string_equal(x->log, want);
    }
}

/* What libcurl cannot do is the failure of that request alone. */
TEST_WITH(libcurls_own_failures, setup, teardown)
{
    static const struct {
        const char *function, *text;
    } rows[] = { { "multi_init", "out of memory" },
                 { "easy_init", "out of memory" },
                 { "slist_append", "out of memory" },
                 { "multi_add_handle", "libcurl refused the request" },
                 { "PROXY", "libcurl refused a setting" },
                 { "URL", "libcurl refused a setting" },
                 { "CUSTOMREQUEST", "libcurl refused a setting" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[100];
        scripted_curl_fails = rows[i].function;
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        (void)snprintf(want, sizeof want, "fail %d ", TINKC_E_CONNECTION);
        assert_memory_equal(x->log, want, strlen(want));
        if (!strstr(x->log, rows[i].text))
            fail_msg("%s: %s", rows[i].function, x->log);
        assert_null(scripted_curl_fails);
    }
    static const char *const addresses[] = { "", "h", "ftp://h", "http:///x", "https:///x", "http:/" };
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        char want[100];
        exchange *x = sent(make("GET", addresses[i], TINKC_POOL_TRAIN));
        (void)snprintf(want, sizeof want, "fail %d not an http or https address;", TINKC_E_CONNECTION);
        assert_string_equal(x->log, want);
    }
    assert_int_equal(scripted_added(), 0);
}

static void say_something_else(scripted_easy *e, const char *unused)
{
    (void)unused;
    scripted_end(e, CURLE_OK);
    e->message.msg = CURLMSG_NONE;
}

/* Only the end of a transfer is an end. */
TEST_WITH(other_messages_are_nothing, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    play(0, say_something_else, NULL);
    assert_string_equal(x->log, "");
    play(0, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    assert_string_equal(x->log, "200;head;end;");
}

/* ---- memory ---- */

/* Every place that runs out of memory ends the request and keeps nothing. */
TEST_WITH(memory_runs_out, setup, teardown)
{
    static const tkc_http_options full = {
        .base_url = "http://h", .unix_socket = "/s", .proxy = "http://p", .ca_file = "/c"
    };
    size_t blocks = book.blocks;
    for (book.left = 0;; book.left++) {
        tinkc_error err = { 0 };
        int left = book.left;
        http = tkc_http_new(&allocator, loop, &full, &err);
        book.left = left;
        if (http)
            break;
        assert_int_equal(err.code, TINKC_E_MEMORY);
        assert_int_equal(book.blocks, blocks);
    }
    assert_int_equal(book.left, 6); /* the transport and five texts */
    n_sent = 0;
    for (int left = 0;; left++) {
        book.left = left;
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        book.left = -1;
        if (!x->log[0])
            break;
        assert_string_equal(x->log, failed_as(TINKC_E_CONNECTION, "out of memory"));
        assert_int_equal(scripted_added(), 0);
    }
    play(0, head_only, "HTTP/1.1 200 OK\r\n");
    act a = { .task.run = act_now, .fn = head_only, .easy = scripted_nth(0), .arg = "A: b\r\n" };
    book.left = 0;
    tkc_loop_post(loop, &a.task);
    settle();
    book.left = -1;
    assert_string_equal(all[n_sent - 1].log, "200;"); /* the header is not passed on */
}

/* ---- addresses ---- */

TEST_WITH(addresses_are_joined, setup, teardown)
{
    static const char *const rows[][3] = { { "http://h", "/p", "URL=http://h/p\n" },
                                           { "http://h/", "p", "URL=http://h/p\n" },
                                           { "http://h/a///", "//p/", "URL=http://h/a/p/\n" },
                                           { "http://h", "", "URL=http://h/\n" } };
    open_with(&(tkc_http_options){ .proxy = "", .unix_socket = "/s" }); /* of no service */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = make("GET", rows[i][0], TINKC_POOL_TRAIN);
        x->request.path = rows[i][1];
        sent(x);
        assert_non_null(strstr(settings(i), rows[i][2]));
        assert_null(strstr(settings(i), "UNIX_SOCKET_PATH"));
    }
}

/* ---- long heads ---- */

static char long_line[(1 << 20) + 64];

static void give_long_heads(scripted_easy *e, const char *status)
{
    static const size_t most = (1 << 20) - 4; /* name, value and their two ends */
    bool held = strstr(status, "302") != NULL;
    for (size_t over = 0; over < 2; over++) {
        (void)scripted_head(e, status);
        memset(long_line, 'v', sizeof long_line);
        memcpy(long_line, "ab: ", 4);
        memcpy(long_line + 4 + most + over, "\r\n", 2);
        size_t len = 4 + most + over + 2;
        assert_int_equal(e->header_fn(long_line, 1, len, e->header_data), over ? 0 : len);
        if (over == 0) /* one that is held leaves no room */
            assert_int_equal(scripted_head(e, "c: d\r\n"), !held);
    }
}

/* Header lines are bounded: each by itself, those of a redirect together. */
TEST_WITH(long_heads_are_refused, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 2; i++) {
        sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        play(i, give_long_heads, i ? "HTTP/1.1 302 x\r\n" : "HTTP/1.1 200 x\r\n");
    }
}

/* ---- options ---- */

/* What is given counts, and of the environment nothing. */
TEST_WITH(options_outweigh_the_environment, setup, teardown)
{
    static const char *const set[] = { "all_proxy", "http_proxy",    "https_proxy",
                                       "no_proxy",  "SSL_CERT_FILE", "SSL_CERT_DIR" };
    for (size_t i = 0; i < 6; i++)
        setenv(set[i], "environment", 1);
    open_with(&(tkc_http_options){ .proxy = "http://p", .ca_file = "/ca" });
    sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    sent(make("GET", "https://h", TINKC_POOL_TRAIN));
    clear_environment();
    for (size_t i = 0; i < 2; i++) {
        assert_non_null(strstr(settings(i), "\nPROXY=http://p\nNOPROXY=\n"));
        assert_null(strstr(settings(i), "environment"));
    }
    assert_non_null(strstr(settings(1), "CAINFO=/ca\n"));
}

TEST(texts_of_failures)
{
    char text[64], cut[8];
    assert_int_equal(tkc_http_explain(CURLE_GOT_NOTHING, 0, "", false, text, sizeof text), TINKC_E_CONNECTION);
    assert_string_equal(text, "the connection was closed before an answer");
    assert_int_equal(tkc_http_explain(CURLE_OPERATION_TIMEDOUT, 0, "\x1f \x20\x7f", false, text, sizeof text),
                     TINKC_E_NET_TIMEOUT);
    assert_string_equal(text, "connecting took too long:   \x20\x7f");
    (void)tkc_http_explain(CURLE_SSL_CIPHER, 0, "x", false, cut, sizeof cut);
    assert_string_equal(cut, "TLS fai");
}

int main(void)
{
    clear_environment();
    return test_cases_run(NULL, NULL);
}
