/* test_own_calls.c - calls and streams of the program's own, over the client's connection: what is sent, what is repeated, what comes back
 * and in which pieces. */
#include "support/client/client_scene.h"

static void show_response(scene *s, tinkc_future *f)
{
    tinkc_error e = { 0 };
    const tinkc_response *r = f ? tinkc_future_response(f, 0, &e) : NULL;
    if (r)
        note(s, "%d %.*s from %s, X-A %s, %lld ms, %d retries", (int)tinkc_response_status(r),
             (int)tinkc_response_body(r).len, (const char *)tinkc_response_body(r).data, tinkc_response_url(r),
             tinkc_response_header(r, "X-a"), (long long)tinkc_response_elapsed_ms(r), (int)tinkc_response_retries(r));
}

/* A 503 that passes, and a 418 that does not. */
TEST(a_call_of_the_callers_own_is_retried_like_any_other)
{
    const struct {
        tinkc_http_options o;
        const char *passes, *stays;
    } rows[] = {
        { { .path = "/api/v1/x", .query = (const char *const[]){ "a", "1 2", "b", "", NULL } },
          "x?a=1+2 {GET} {pool rest} {to https://example.test/}; +5 x?a=1+2 (1) {GET} {pool rest} "
          "{to https://example.test/}; done; 200 hello from , X-A 1, 5 ms, 1 retries",
          "x?a=1+2 {GET} {pool rest} {to https://example.test/}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "/api/v1/x", .body = "{}", .body_len = 2 },
          "x {pool rest} {to https://example.test/}; +5 x again (1) {pool rest} {to "
          "https://example.test/}; done; 200 hello from , X-A 1, 5 ms, 1 retries",
          "x {pool rest} {to https://example.test/}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "/api/v1/x",
            .method = "PUT",
            .body = "abc",
            .body_len = 3,
            .content_type = "text/plain",
            .idempotency_key = "mine",
            .headers = (const char *const[]){ "X-Y", "z", "User-Agent", "", NULL },
            .idle_timeout_ms = 7,
            .no_redirects = true },
          "x {key mine} {PUT} {pool rest} {silence 7} {no redirects} {to https://example.test/} "
          "{X-Y: z} {Content-Type: text/plain} {no User-Agent}; +5 x {key mine} (1) {PUT} {pool "
          "rest} {silence 7} {no redirects} {to https://example.test/} {X-Y: z} {Content-Type: "
          "text/plain} {no User-Agent}; done; 200 hello from , X-A 1, 5 ms, 1 retries",
          "x {key mine} {PUT} {pool rest} {silence 7} {no redirects} {to https://example.test/} "
          "{X-Y: z} {Content-Type: text/plain} {no User-Agent}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "/api/v1/x", .method = "DELETE", .no_retries = true },
          "x {DELETE} {pool rest} {to https://example.test/} {Content-Type: application/json}; "
          "SERVER 503, may have run, after 5 \"HTTP 503: busy\"",
          "x {DELETE} {pool rest} {to https://example.test/} {Content-Type: application/json}; "
          "HTTP 418 \"HTTP 418: no\"" },
        { { .path = "/api/v1/x", .any_status = true, .max_retries = TINKC_ZERO },
          "x {GET} {pool rest} {to https://example.test/}; +1000 x {GET} {pool rest} {to "
          "https://example.test/}; done; 200 hello from , X-A 1, 1000 ms, 1 retries",
          "x {GET} {pool rest} {to https://example.test/}; done; 418 no from , X-A (null), 0 ms, 0 "
          "retries" },
        { { .path = "/api/v1/x", .max_retries = 2 },
          "x {GET} {pool rest} {to https://example.test/}; +5 x (1) {GET} {pool rest} {to "
          "https://example.test/}; done; 200 hello from , X-A 1, 5 ms, 1 retries",
          "x {GET} {pool rest} {to https://example.test/}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "https://elsewhere.test/y?z=1" },
          "/y?z=1 {Accept: application/json}; +5 /y?z=1 {Accept: application/json}; done; 200 "
          "hello from , X-A 1, 5 ms, 1 retries",
          "/y?z=1 {Accept: application/json}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "https://elsewhere.test/y", .body = "{}", .body_len = 2 }, /* without a key, too */
          "/y {Accept: application/json} {Content-Type: application/json} {pool rest} {to "
          "https://elsewhere.test} {no User-Agent}; +5 /y {Accept: application/json} "
          "{Content-Type: "
          "application/json} {pool rest} {to https://elsewhere.test} {no User-Agent}; done; 200 "
          "hello from , X-A 1, 5 ms, 1 retries",
          "/y {Accept: application/json} {Content-Type: application/json} {pool rest} {to "
          "https://elsewhere.test} {no User-Agent}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "https://example.test/y" },
          "/y {GET} {pool rest} {to https://example.test}; +5 /y (1) {GET} {pool rest} {to "
          "https://example.test}; done; 200 hello from , X-A 1, 5 ms, 1 retries",
          "/y {GET} {pool rest} {to https://example.test}; HTTP 418 \"HTTP 418: no\"" },
        { { .path = "y" },
          "ARGUMENT \"path must begin with one slash or be a whole URL\"",
          "ARGUMENT \"path must begin with one slash or be a whole URL\"" },
        { { .path = "" },
          "ARGUMENT \"path must begin with one slash or be a whole URL\"",
          "ARGUMENT \"path must begin with one slash or be a whole URL\"" },
        { { .path = "/api/../x" }, "ARGUMENT \"path leads elsewhere\"", "ARGUMENT \"path leads elsewhere\"" },
        { { .path = "/a b" },
          "ARGUMENT \"path: a character in it needs escaping\"",
          "ARGUMENT \"path: a character in it needs escaping\"" },
        { { .path = "/api/v1/x", .method = "G T" },
          "ARGUMENT \"method \"G T\" is not known\"",
          "ARGUMENT \"method \"G T\" is not known\"" },
        { { .path = "/api/v1/x", .headers = (const char *const[]){ "a", NULL } },
          "ARGUMENT \"headers: \"a\" has no value\"",
          "ARGUMENT \"headers: \"a\" has no value\"" },
        { { .path = "/api/v1/x", .headers = (const char *const[]){ "a", "b\nc", NULL } },
          "ARGUMENT \"headers: the value of a holds a control character\"",
          "ARGUMENT \"headers: the value of a holds a control character\"" },
        { { .path = "/api/v1/x", .query = (const char *const[]){ "a", NULL } },
          "ARGUMENT \"query: \"a\" has no value\"",
          "ARGUMENT \"query: \"a\" has no value\"" },
        { { .path = "/api/v1/x", .body = "a", .body_len = 1, .body_file = "/dev/null" },
          "ARGUMENT \"body, body_file and form: more than one is given\"",
          "ARGUMENT \"body, body_file and form: more than one is given\"" },
        { { .path = "/api/v1/x", .idle_timeout_ms = -5 },
          "ARGUMENT \"idle_timeout_ms: must not be negative\"",
          "ARGUMENT \"idle_timeout_ms: must not be negative\"" },
        { { .path = "/api/v1/x", .max_retries = -1 },
          "ARGUMENT \"max_retries: TINKC_FOREVER makes no sense here\"",
          "ARGUMENT \"max_retries: TINKC_FOREVER makes no sense here\"" },
        { { .path = "/api/v1/x", .reserved = { 1 } },
          "ARGUMENT \"call options: reserved must be zero\"",
          "ARGUMENT \"call options: reserved must be zero\"" },
        { { .path = "/api/v1/x", .body_file = "/nonexistent/file" },
          "FILE \"/nonexistent/file: No such file or directory\"",
          "FILE \"/nonexistent/file: No such file or directory\"" },
    };
    scene *s =
        scene_new(TINKC_MOCK_EMPTY, &(tinkc_client_options){ .base_url = "https://example.test", .api_key = "tml-x" });
    answer_always(s, CONFIG, 200, "{}");
    complete(
        s, "",
        tinkc_http_call(scene_client(s), &(tinkc_http_options){ .path = "/first", .any_status = true }, scene_err(s)));
    scene_forget(s);
    for (size_t i = 0; i < LEN(rows); i++)
        for (int stays = 0; stays < 2; stays++) {
            if (!stays) {
                answer_headers(s, "*", 503, PAIRS("Retry-After-Ms", "5"), "{\"detail\":\"busy\"}");
                answer_headers(s, "*", 200, PAIRS("X-A", "1", "x-a", "2", "Content-Type", "text/plain"), "hello");
            } else {
                answer_headers(s, "*", 418, PAIRS("X-B", "3"), "no");
            }
            tinkc_future *f = follow(s, "", tinkc_http_call(scene_client(s), &rows[i].o, scene_err(s)));
            finish(s, f, 100000);
            show_response(s, f);
            EXPECT_ROW(s, i, stays ? rows[i].stays : rows[i].passes);
            use_up(s, "/rest");
        }
    scene_end(s);
}

static void count_ready(tinkc_stream *stream, void *user)
{
    (void)stream;
    ++*(int *)user;
}

/* How far a stream is: its head, and what can be read of it now. */
static bool read_stream(scene *s, tinkc_stream *stream, size_t cap)
{
    char buf[32] = "";
    tinkc_error e = { 0 };
    size_t n = tinkc_stream_read(stream, buf, cap, 0, &e);
    if (n)
        note(s, "read %.*s", (int)n, buf);
    else if (e.code == TINKC_E_TIMEOUT)
        note(s, "nothing yet");
    else
        note(s, "%s %s", e.code ? tinkc_code_name(e.code) + 8 : "the end", e.message);
    return n || e.code == TINKC_E_TIMEOUT;
}

TEST(a_body_is_streamed_as_it_is_read)
{
    static const struct {
        tinkc_mock_answer answer;
        bool any;
        const char *seen;
    } rows[] = {
        { { .body = "0123456789" }, false, "/x {GET} {pool rest}; head 200; ready; read 012; read 3456789; the end " },
        { { .body = "01", .fault = TINKC_FAULT_DRIP, .drip_ms = 10 },
          false,
          "/x {GET} {pool rest}; head 200; ready; read 0; +10 read 1; +10 the end " },
        { { .body = "0123456789", .fault = TINKC_FAULT_RESET, .fault_after = 4 },
          false,
          "/x {GET} {pool rest}; head 200; ready; read 012; read 3; CONNECTION connection reset" },
        { { .body = "0123456789", .fault = TINKC_FAULT_TRUNCATED, .fault_after = 4 },
          false,
          "/x {GET} {pool rest}; head 200; ready; read 012; read 34; CONNECTION the answer ended "
          "early" },
        { { .status = 404, .body = "{\"detail\":\"none\"}" },
          false,
          "/x {GET} {pool rest}; head 0; ready; NOT_FOUND HTTP 404: none" },
        { { .status = 404, .body = "{\"detail\":\"none\"}" },
          true,
          "/x {GET} {pool rest}; head 404; ready; read {\"d; read etail\":\"none\"}; the end " },
        { { .status = 204 }, false, "/x {GET} {pool rest}; head 204; ready; the end " },
        { { .fault = TINKC_FAULT_REFUSED },
          false,
          "/x {GET} {pool rest}; head 0; not ready; nothing yet; +500 /x (1) {GET} {pool rest}; "
          "NOT_FOUND HTTP 404: gone" },
        { { .status = 503, .body = "x" },
          true,
          "/x {GET} {pool rest}; head 0; not ready; nothing yet; nothing yet; nothing yet; nothing "
          "yet; nothing yet; nothing yet" },
    };
    scene *s = scene_new(TINKC_MOCK_EMPTY, &(tinkc_client_options){ .max_retries = 1 });
    tinkc_error *e = scene_err(s);
    answer_always(s, CONFIG, 200, "{}");
    answer_always(s, "/x", 404, "gone");
    complete(s, "", tinkc_http_call(scene_client(s), &(tinkc_http_options){ .path = "/first", .any_status = true }, e));
    for (size_t i = 0; i < LEN(rows); i++) {
        int calls = 0;
        tinkc_queue *q = tinkc_queue_new(scene_client(s), e);
        scene_forget(s);
        assert_true(tinkc_mock_once(scene_mock(s), NULL, "/x", &rows[i].answer, e));
        tinkc_stream *stream =
            tinkc_stream_open(scene_client(s), &(tinkc_http_options){ .path = "/x", .any_status = rows[i].any }, e);
        assert_ok(e);
        tinkc_stream_on_ready(stream, q, count_ready, &calls, e);
        settle(s);
        for (int k = 0; k < 6; k++) {
            tinkc_error why = { 0 };
            const tinkc_response *head = tinkc_stream_head(stream, 0, &why);
            if (k == 0)
                note(s, "head %d", (int)tinkc_response_status(head));
            calls = 0;
            tinkc_queue_run(q, 0, e);
            if (k == 0)
                note(s, calls ? "ready" : "not ready");
            if (!read_stream(s, stream, k == 0 ? 3 : 32))
                break;
            if (rows[i].answer.fault == TINKC_FAULT_DRIP || rows[i].answer.fault == TINKC_FAULT_REFUSED)
                pass(s, rows[i].answer.drip_ms ? 10 : 500);
        }
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_stream_free(stream);
        tinkc_queue_free(q);
        settle(s);
    }
    scene_end(s);
}

TEST(events_are_read_one_by_one)
{
    static const struct {
        const char *body, *seen;
    } rows[] = {
        { "event: a\ndata: 1\nid: 7\n\ndata: 2\ndata: 3\nretry: 50\n\n: note\n\ndata: cut",
          "/x {GET} {pool rest}; \"a\" of 1 bytes, id 7, retry -1; \"\" of 3 bytes, id 7, retry "
          "50; the end" },
        { "data: \xff\n\n", "/x {GET} {pool rest}; event stream: not UTF-8" },
        { "", "/x {GET} {pool rest}; the end" },
    };
    scene *s = scene_new(TINKC_MOCK_EMPTY, NULL);
    answer_always(s, CONFIG, 200, "{}");
    complete(
        s, "",
        tinkc_http_call(scene_client(s), &(tinkc_http_options){ .path = "/first", .any_status = true }, scene_err(s)));
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_forget(s);
        answer(s, "/x", 200, rows[i].body);
        tinkc_stream *stream = tinkc_stream_open(scene_client(s), &(tinkc_http_options){ .path = "/x" }, scene_err(s));
        settle(s);
        tinkc_error e = { 0 };
        const tinkc_sse *x;
        while ((x = tinkc_stream_event(stream, 0, &e)) != NULL)
            note(s, "\"%s\" of %zu bytes, id %s, retry %lld", x->event, x->data_len, x->id, (long long)x->retry_ms);
        note(s, "%s", e.code ? e.message : "the end");
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_stream_free(stream);
    }
    scene_end(s);
}
