/* test_http_redirects.c - where the transport follows a redirect, what it takes along and what not. */
#include "support/client/http_script.h"

TEST_WITH(redirects_are_followed, setup, teardown)
{
    static const char same[] = "X-API-Key: secret|Accept: a/b|Expect:|Content-Type:|\n";
    static const char foreign[] = "Accept: a/b|Expect:|Content-Type:|\n";
    static const struct {
        const char *method, *head, *to, *request, *headers;
    } rows[] = {
        { "GET", "HTTP/1.1 301 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", same },
        { "GET", "HTTP/1.1 302 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", same },
        { "GET", "HTTP/1.1 307 x\r\n\r\n", "http://o/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", foreign },
        { "GET", "HTTP/1.1 308 x\r\n\r\n", "https://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", foreign },
        { "GET", "HTTP/1.1 302 x\r\n\r\n", "http://h:81/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", foreign },
        { "HEAD", "HTTP/1.1 303 x\r\n\r\n", "http://h/q", "NOBODY=1\n", same },
        { "HEAD", "HTTP/1.1 301 x\r\n\r\n", "http://h/q", "NOBODY=1\n", same },
        { "DELETE", "HTTP/1.1 303 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", same },
        { "DELETE", "HTTP/1.1 302 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=DELETE\n", same },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t nth = scripted_added();
        exchange *x = sent(make(rows[i].method, "http://h", TINKC_POOL_TRAIN));
        target = rows[i].to;
        play(nth, answer_redirect, rows[i].head);
        assert_string_equal(x->log, "");
        assert_int_equal(scripted_added(), nth + 2);
        assert_memory_equal(settings(nth + 1), rows[i].request, strlen(rows[i].request));
        assert_non_null(strstr(settings(nth + 1), rows[i].headers));
        char url[64];
        (void)snprintf(url, sizeof url, "URL=%s\n", rows[i].to);
        assert_non_null(strstr(settings(nth + 1), url));
        play(nth + 1, head_and_end, "HTTP/1.1 200 OK\r\nA: b\r\n\r\n");
        assert_string_equal(x->log, "200;A=b;head;end;");
    }
}

/* Where another origin redirects to is its choice: the key is sent to nobody it names, not even back to us. */
TEST_WITH(a_key_does_not_come_back, setup, teardown)
{
    static const char *const ways[] = { "http://o/1", "http://o/2", "http://h/3" };
    open_with(&(tkc_http_options){ .proxy = "" });
    (void)sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    for (size_t i = 0; i < 3; i++) {
        target = ways[i];
        play(i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        assert_null(strstr(settings(i + 1), "secret"));
    }
    play(3, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
}

/* A request with a body: 301 to 303 make it a GET without it, 307 and 308 send it again. */
TEST_WITH(bodies_along_redirects, setup, teardown)
{
    static const char *const typed[] = { "Content-Type", "x/y", "Content-Encoding", "zstd", "Range", "r", NULL };
    static const struct {
        const char *method;
        int status;
        const char *request, *headers;
    } rows[] = {
        { "POST", 301, "HTTPGET=1\nCUSTOMREQUEST=GET\n", "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "POST", 302, "HTTPGET=1\nCUSTOMREQUEST=GET\n", "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "POST", 303, "HTTPGET=1\nCUSTOMREQUEST=GET\n", "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "PUT", 302, "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=PUT\n",
          "HTTPHEADER=Content-Type: x/y|Content-Encoding: zstd|Range: r|Expect:|\n" },
        { "PUT", 303, "HTTPGET=1\nCUSTOMREQUEST=GET\n", "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "POST", 307, "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=POST\n",
          "HTTPHEADER=Content-Type: x/y|Content-Encoding: zstd|Range: r|Expect:|\n" },
        { "POST", 308, "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=POST\n",
          "HTTPHEADER=Content-Type: x/y|Content-Encoding: zstd|Range: r|Expect:|\n" },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[64];
        exchange *x = make(rows[i].method, "http://h", TINKC_POOL_TRAIN);
        x->request.headers = typed;
        x->request.body = (tinkc_bytes){ (const unsigned char *)"abc", 3 };
        sent(x);
        target = "http://h/q";
        (void)snprintf(line, sizeof line, "HTTP/1.1 %d x\r\n\r\n", rows[i].status);
        play(2 * i, answer_redirect, line);
        assert_memory_equal(settings(2 * i + 1), rows[i].request, strlen(rows[i].request));
        assert_non_null(strstr(settings(2 * i + 1), rows[i].headers));
        play(2 * i + 1, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
        assert_string_equal(x->log, "200;head;end;");
    }
}

TEST_WITH(redirects_that_are_refused, setup, teardown)
{
    static const struct {
        const char *base, *to, *text;
    } rows[] = {
        { "http://h", "ftp://h/", "a redirect leads to something that is not http" },
        { "http://h", "http:///x", "a redirect leads to something that is not http" },
        { "https://h", "http://h/", "a redirect leads from https to http" },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    char want[100];
    for (size_t i = 0; i < 3; i++) {
        exchange *x = sent(make("GET", rows[i].base, TINKC_POOL_TRAIN));
        target = rows[i].to;
        play(i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        (void)snprintf(want, sizeof want, "fail %d %s;", TINKC_E_BAD_RESPONSE, rows[i].text);
        assert_string_equal(x->log, want);
    }
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    target = "http://h/again";
    for (size_t i = 0; i <= 10; i++) {
        assert_string_equal(x->log, "");
        play(3 + i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    }
    (void)snprintf(want, sizeof want, "fail %d too many redirects;", TINKC_E_BAD_RESPONSE);
    assert_string_equal(x->log, want);
    assert_int_equal(scripted_added(), 3 + 11);
    /* Once on another host, the way back brings no credential either. */
    size_t nth = scripted_added();
    sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    target = "http://o/";
    play(nth, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    target = "http://h/";
    play(nth + 1, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    assert_null(strstr(settings(nth + 2), "secret"));
    x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->request.no_redirects = true;
    nth = scripted_added();
    sent(x);
    play(nth, answer_redirect, "HTTP/1.1 302 x\r\nA: b\r\n\r\n");
    assert_string_equal(x->log, "302;A=b;head;end;");
}

static void answer_with_a_text(scripted_easy *e, const char *lines)
{
    (void)snprintf(e->error_text, CURL_ERROR_SIZE, "of the first");
    answer_redirect(e, lines);
}

TEST_WITH(redirects_that_break, setup, teardown)
{
    static const struct {
        const char *function, *text;
    } rows[] = { { "multi_add_handle", "libcurl refused the request" },
                 { "URL", "libcurl refused a setting" },
                 { "slist_append", "out of memory" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    target = "http://h/q";
    for (size_t i = 0; i < 3; i++) {
        size_t nth = scripted_added();
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        scripted_curl_fails = rows[i].function;
        play(nth, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        assert_null(scripted_curl_fails);
        assert_memory_equal(x->log, failed_as(TINKC_E_CONNECTION, ""), 6);
        assert_non_null(strstr(x->log, rows[i].text));
        assert_int_equal(scripted_added(), nth + 1);
        assert_int_equal(scripted_easies_open(), 0);
    }
    /* The second answer is one of its own. */
    static const struct {
        CURLcode result;
        const char *text;
    } ends_as[] = { { CURLE_OK, "the answer has no status" },
                    { CURLE_GOT_NOTHING, "the connection was closed before an answer: "
                                         "Server returned nothing (no headers, no data)" } };
    for (size_t i = 0; i < 2; i++) {
        size_t at = scripted_added();
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        play(at, answer_with_a_text, "HTTP/1.1 302 x\r\n\r\n");
        act a = { .task.run = end_now, .easy = scripted_nth(at + 1), .result = ends_as[i].result };
        tkc_loop_post(loop, &a.task);
        settle();
        assert_string_equal(x->log, failed_as(TINKC_E_CONNECTION, ends_as[i].text));
    }
    /* Silence counts from the second request, and a count of the first is forgotten. */
    size_t nth = scripted_added();
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    play(nth, see_progress, "5");
    advance(900);
    play(nth, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    play(nth + 1, be_connected, NULL);
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, failed_as(TINKC_E_NET_TIMEOUT, "the peer was silent for 1000 ms"));
}

/* The socket is the service's alone: a redirect elsewhere, and back, uses none. */
TEST_WITH(a_socket_is_not_followed_elsewhere, setup, teardown)
{
    static const char *const on_the_way[] = { "http://o/", "http://h/again" };
    open_with(&(tkc_http_options){ .proxy = "", .base_url = "http://h", .unix_socket = "/s" });
    sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    assert_non_null(strstr(settings(0), "UNIX_SOCKET_PATH=/s\n"));
    for (size_t i = 0; i < 2; i++) {
        target = on_the_way[i];
        play(i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        assert_null(strstr(settings(i + 1), "UNIX_SOCKET_PATH"));
    }
}

static void read_four(scripted_easy *e, const char *want)
{
    char to[4];
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 4);
    assert_memory_equal(to, want, 4);
}

/* A body that is read piece by piece is read from its beginning at each hop. */
TEST_WITH(a_body_is_read_again, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("POST", "http://h", TINKC_POOL_TRAIN);
    x->request.read_body = read_some;
    x->request.body_size = 10;
    sent(x);
    play(0, read_four, "0123");
    target = "http://h/q";
    play(0, answer_redirect, "HTTP/1.1 307 x\r\n\r\n");
    play(1, read_four, "0123");
    play(1, read_four, "4567");
}

/* What the first hop has sent and received says nothing about the second. */
TEST_WITH(each_hop_connects, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    play(0, see_progress, "5");
    target = "http://h/q";
    play(0, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    advance(1000); /* still connecting: that has its own limit */
    assert_string_equal(x->log, "");
    play(1, see_progress, "5"); /* as many as before: a sign of life all the same */
    play(1, be_connected, NULL);
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, failed_as(TINKC_E_NET_TIMEOUT, "the peer was silent for 1000 ms"));
}

/* Without memory for the next address the request ends. */
TEST_WITH(no_memory_for_the_next_address, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    target = "http://h/q";
    book.left = 0;
    play(0, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    book.left = -1;
    assert_string_equal(x->log, failed_as(TINKC_E_CONNECTION, "out of memory"));
    assert_int_equal(scripted_added(), 1);
}

int main(void)
{
    clear_environment();
    return test_cases_run(NULL, NULL);
}
