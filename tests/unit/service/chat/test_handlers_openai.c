/* test_handlers_openai.c - /v1/: events and whole answers say the same; keys and clients that go away, over
 * HTTP. On models/nano, which knows a little arithmetic. What is asked and answered in OpenAI's form, and what is
 * refused, stands in tests/data/service_rules. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"
#include "support/json_trees.h"
#include "support/service/service_call.h"
#include "tinkc/tokenizer.h"

static const char nano[] = "models/nano";
static const char question[] = "[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}]";

static tinkc_engine *engine;
static const tinkc_transport *t;

static tinkc_engine *open_engine(const char *const *settings)
{
    tinkc_error err = { 0 };
    tinkc_engine *e = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(e, "nano", nano, &err));
    return e;
}

static int setup(void **state)
{
    static const char *const on[] = { "openai", "true", "max_num_samples", "8", NULL };
    (void)state;
    engine = open_engine(on);
    t = tinkc_engine_transport(engine);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    return 0;
}

/* ---- helpers ---- */

static tkc_tree *parse(const char *text)
{
    tkc_tree *v = json_of(text);
    assert_non_null(v);
    return v;
}

static tkc_tree *ask(const char *path, const char *body)
{
    return parse(service_json(t, 200, "POST", path, "%s", body));
}

static const char *text_at(tkc_tree *got, size_t i)
{
    tkc_tree *choice = tkc_tree_at(tkc_tree_get(got, "choices"), i);
    tkc_tree *message = tkc_tree_get(choice, "message");
    return tkc_tree_text(message ? tkc_tree_get(message, "content") : tkc_tree_get(choice, "text"));
}

static const char *finish_at(tkc_tree *got, size_t i)
{
    tkc_tree *choice = tkc_tree_at(tkc_tree_get(got, "choices"), i);
    return tkc_tree_get_text(choice, "finish_reason");
}

static int64_t usage(tkc_tree *got, const char *what)
{
    return tkc_tree_get_i64(tkc_tree_get(got, "usage"), what);
}

typedef struct events {
    char text[2000];
    char finish[20];
    size_t n_events;
    int64_t total_tokens; /* 0 = not said */
    bool role, done;
} events;

static void take_event(events *e, const char *line)
{
    if (strcmp(line, "[DONE]") == 0) {
        e->done = true;
        return;
    }
    assert_false(e->done);
    e->n_events++;
    tkc_tree *v = parse(line);
    tkc_tree *choice = tkc_tree_at(tkc_tree_get(v, "choices"), 0);
    tkc_tree *delta = tkc_tree_get(choice, "delta");
    tkc_tree *text = tkc_tree_get(delta ? delta : choice, delta ? "content" : "text");
    tkc_tree *finish = tkc_tree_get(choice, "finish_reason");
    e->role |= tkc_tree_get(delta, "role") != NULL;
    if (text)
        strncat(e->text, tkc_tree_text(text), sizeof e->text - strlen(e->text) - 1);
    if (tkc_tree_is_text(finish))
        snprintf(e->finish, sizeof e->finish, "%s", tkc_tree_text(finish));
    if (tkc_tree_is_object(tkc_tree_get(v, "usage")))
        e->total_tokens = usage(v, "total_tokens");
}

static events ask_events(const char *path, const char *body)
{
    events e = { .n_events = 0 };
    answer a = service_call(t, "POST", path, NULL, body, strlen(body));
    assert_int_equal(a.status, 200);
    assert_string_equal(a.type, "text/event-stream");
    char *rest = NULL;
    for (char *line = strtok_r(a.body.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (line[0] != ':') {
            assert_memory_equal(line, "data: ", 6);
            take_event(&e, line + 6);
        }
    answer_free(&a);
    return e;
}

/* ---- tests ---- */

TEST(events_add_up)
{
    const char *rest = "\"model\":\"nano\",\"prompt\":\"What is\",\"temperature\":1,\"max_tokens\":60";
    for (int seed = 1; seed <= 12; seed++) {
        char body[300];
        snprintf(body, sizeof body, "{%s,\"seed\":%d}", rest, seed);
        tkc_tree *v = ask("/v1/completions", body);
        snprintf(body, sizeof body, "{%s,\"seed\":%d,\"stream\":true}", rest, seed);
        events e = ask_events("/v1/completions", body);
        assert_string_equal(e.text, text_at(v, 0));
        assert_string_equal(e.finish, finish_at(v, 0));
        assert_true(e.done);
        assert_int_equal(e.total_tokens, 0);
    }
}

TEST(each_penalty_changes_the_text)
{
    static const char *const rows[] = { "0,\"frequency_penalty\":0", "2,\"frequency_penalty\":0",
                                        "0,\"frequency_penalty\":2" };
    char texts[3][200];
    for (size_t i = 0; i < 3; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"model\":\"nano\",\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0,"
                 "\"presence_penalty\":%s}",
                 rows[i]);
        tkc_tree *v = ask("/v1/completions", body);
        snprintf(texts[i], sizeof texts[i], "%s", text_at(v, 0));
    }
    assert_string_not_equal(texts[0], texts[1]);
    assert_string_not_equal(texts[0], texts[2]);
}

TEST(stop_strings_are_cut_off)
{
    tkc_tree *whole = ask("/v1/completions", "{\"model\":\"nano\",\"prompt\":\"What is\",\"temperature\":0}");
    const char *text = text_at(whole, 0);
    assert_true(strlen(text) > 10);
    /* every place, as one string and beside another that never comes; pieces go across tokens */
    for (size_t at = 0; at + 4 <= strlen(text); at++) {
        char stop[8], body[300], want[200];
        snprintf(stop, sizeof stop, "%.4s", text + at);
        snprintf(want, sizeof want, "%.*s", (int)(strstr(text, stop) - text), text);
        snprintf(body, sizeof body, "{\"model\":\"nano\",\"prompt\":\"What is\",\"temperature\":0,\"stop\":\"%s\"}",
                 stop);
        tkc_tree *v = ask("/v1/completions", body);
        assert_string_equal(text_at(v, 0), want);
        assert_string_equal(finish_at(v, 0), "stop");
        snprintf(body, sizeof body,
                 "{\"model\":\"nano\",\"prompt\":\"What is\",\"temperature\":0,\"stream\":true,"
                 "\"stop\":[\"%.3szzz\",\"%s\"]}",
                 text + at, stop);
        events e = ask_events("/v1/completions", body);
        assert_string_equal(e.text, want);
        assert_string_equal(e.finish, "stop");
    }
    /* what was held back for a stop that did not come is sent in the end */
    char body[300];
    snprintf(body, sizeof body,
             "{\"model\":\"nano\",\"prompt\":\"What is\",\"temperature\":0,\"stream\":true,"
             "\"stop\":[\"%szzz\"]}",
             text + strlen(text) - 3);
    assert_string_equal(ask_events("/v1/completions", body).text, text);
}

/* Several prompts, as texts and as tokens: each prompt's choices as if it had come alone. */
TEST(several_prompts_are_answered_as_each_alone)
{
    static const char *const prompts[] = { "\"What is\"", "\"Name the\"", "\"What is\"" };
    static const char rest[] = "\"model\":\"nano\",\"n\":2,\"seed\":3,\"max_tokens\":9";
    char body[400], want[6][200];
    int64_t total = 0;
    for (size_t i = 0; i < 3; i++) {
        snprintf(body, sizeof body, "{%s,\"prompt\":%s}", rest, prompts[i]);
        tkc_tree *v = ask("/v1/completions", body);
        for (size_t k = 0; k < 2; k++)
            snprintf(want[2 * i + k], sizeof want[0], "%s", text_at(v, k));
        total += usage(v, "total_tokens");
    }
    snprintf(body, sizeof body, "{%s,\"prompt\":[%s,%s,%s]}", rest, prompts[0], prompts[1], prompts[2]);
    tkc_tree *v = ask("/v1/completions", body);
    assert_int_equal(tkc_tree_length(tkc_tree_get(v, "choices")), 6);
    for (size_t i = 0; i < 6; i++) {
        tkc_tree *choice = tkc_tree_at(tkc_tree_get(v, "choices"), i);
        assert_int_equal(tkc_tree_get_i64(choice, "index"), i);
        assert_string_equal(text_at(v, i), want[i]);
    }
    assert_int_equal(usage(v, "total_tokens"), total);

    snprintf(body, sizeof body,
             "{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"prompt\":[%s,%s,%s]}", rest, prompts[0],
             prompts[1], prompts[2]);
    answer a = service_call(t, "POST", "/v1/completions", NULL, body, strlen(body));
    char got[6][200] = { "" }, *place = NULL;
    size_t ends = 0;
    for (char *line = strtok_r(a.body.data, "\n", &place); line; line = strtok_r(NULL, "\n", &place)) {
        if (strcmp(line, "data: [DONE]") == 0)
            break;
        v = parse(line + 6);
        tkc_tree *choice = tkc_tree_at(tkc_tree_get(v, "choices"), 0);
        size_t i = (size_t)tkc_tree_get_i64(choice, "index");
        if (choice)
            strncat(got[i], tkc_tree_get_text(choice, "text"), 100);
        else
            assert_int_equal(usage(v, "total_tokens"), total);
        ends += tkc_tree_is_text(tkc_tree_get(choice, "finish_reason"));
    }
    assert_non_null(place); /* it ended with [DONE] */
    assert_int_equal(ends, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(got[i], want[i]);
    answer_free(&a);
    v = ask("/v1/completions", "{\"model\":\"nano\",\"prompt\":[[5],[7,9]],\"max_tokens\":1}");
    assert_int_equal(usage(v, "prompt_tokens"), 3);
}

/* ---- over HTTP ---- */

static int dial(const char *url)
{
    int port = 0;
    assert_int_equal(sscanf(url, "http://127.0.0.1:%d", &port), 1);
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)(void *)&to, sizeof to), 0);
    return fd;
}

static void send_post(int fd, const char *header, const char *body)
{
    char text[1000];
    int n = snprintf(text, sizeof text,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     header, strlen(body), body);
    assert_int_equal(write(fd, text, (size_t)n), n);
}

static void read_all(int fd, char *text, size_t size)
{
    size_t n = 0;
    for (ssize_t got; n + 1 < size && (got = read(fd, text + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(fd);
}

TEST(keys_as_bearer)
{
    static const char *const keys[] = { "tml-right", NULL };
    static const char *const headers[] = { "", "Authorization: Bearer tml-wrong\r\n",
                                           "Authorization: Bearer tml-right\r\n", "X-API-Key: tml-right\r\n" };
    tinkc_error err = { 0 };
    tinkc_server *server = tinkc_engine_serve(engine, &(tinkc_serve_options){ .api_keys = keys }, &err);
    assert_ok(err);
    char body[300], text[4000];
    snprintf(body, sizeof body, "{\"model\":\"nano\",\"temperature\":0,\"messages\":%s}", question);
    for (size_t i = 0; i < 4; i++) {
        int fd = dial(tinkc_server_url(server));
        send_post(fd, headers[i], body);
        read_all(fd, text, sizeof text);
        assert_non_null(strstr(text, i < 2 ? "HTTP/1.1 401" : "HTTP/1.1 200"));
        assert_non_null(strstr(text, i < 2 ? "\"authentication_error\"" : "\"content\":\"12\""));
    }
    tinkc_server_stop(server, PATIENCE_MS, NULL);
    tinkc_server_free(server);
}

static void expect_models(tinkc_engine *e, bool option, const char *status)
{
    static const char get[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    tinkc_error err = { 0 };
    char text[4000];
    tinkc_server *server = tinkc_engine_serve(e, &(tinkc_serve_options){ .openai = option }, &err);
    assert_ok(err);
    int fd = dial(tinkc_server_url(server));
    assert_int_equal(write(fd, get, strlen(get)), strlen(get));
    read_all(fd, text, sizeof text);
    assert_non_null(strstr(text, status));
    tinkc_server_free(server);
}

/* A server has them by its own option; the engine's setting gives them to all. */
TEST(on_by_option_or_setting)
{
    tinkc_engine *plain = open_engine(NULL);
    expect_models(plain, false, "HTTP/1.1 404");
    expect_models(plain, true, "HTTP/1.1 200");
    expect_models(plain, false, "HTTP/1.1 404");
    service_json(tinkc_engine_transport(plain), 404, "GET", "/v1/models", "%s", "");
    tinkc_engine_free(plain);
    expect_models(engine, false, "HTTP/1.1 200");
}

static double count_of(const tinkc_transport *p, const char *what)
{
    return json_number(service_json(p, 200, "GET", "/status", "%s", ""), what);
}

/* Nothing is written to a client that waits for a whole answer; that it has gone is seen all the
 * same, and ends what it asked for: tokens of samples that were cancelled are not counted. */
TEST(a_client_that_goes_away)
{
    static const char *const on[] = { "openai", "true", NULL };
    tinkc_error err = { 0 };
    tinkc_engine *e = open_engine(on);
    const tinkc_transport *p = tinkc_engine_transport(e);
    tinkc_server *server = tinkc_engine_serve(e, &(tinkc_serve_options){ .port = 0 }, &err);
    assert_ok(err);
    char body[400];
    snprintf(body, sizeof body, /* no sample ends by itself: the end of a turn cannot be drawn */
             "{\"model\":\"nano\",\"logit_bias\":{\"4093\":-100,\"4095\":-100},\"n\":128,\"messages\":%s}", question);
    int fd = dial(tinkc_server_url(server));
    send_post(fd, "", body);
    wait_until(count_of(p, "samples_in_flight") != 0);
    close(fd);
    wait_until(count_of(p, "samples_in_flight") == 0);
    assert_true(count_of(p, "samples_in_flight") == 0);
    assert_true(count_of(p, "sampled_tokens_total") == 0);
    tinkc_server_stop(server, PATIENCE_MS, NULL);
    tinkc_server_free(server);
    tinkc_engine_free(e);
}

/* ---- the queue's limits and cancelling, in process ---- */

typedef struct pending {
    tinkc_reply reply;
    _Atomic int32_t status;
    _Atomic int over; /* 1 = ended, 2 = failed */
    char body[400];
} pending;

static void on_status(tinkc_reply *r, int32_t status)
{
    ((pending *)(void *)r)->status = status;
}

static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    (void)r, (void)name, (void)value;
}

static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    pending *p = (void *)r;
    strncat(p->body, data, len < 300 ? len : 300);
    return true;
}

static void on_end(tinkc_reply *r)
{
    ((pending *)(void *)r)->over = 1;
}

static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code, (void)message;
    ((pending *)(void *)r)->over = 2;
}

TEST(cancelled_and_too_many)
{
    static const char *const one[] = { "openai", "true", "max_sample_queue", "1", NULL };
    tinkc_engine *e = open_engine(one);
    const tinkc_transport *p = tinkc_engine_transport(e);
    char body[400];
    snprintf(body, sizeof body,
             "{\"model\":\"nano\",\"logit_bias\":{\"4093\":-100,\"4095\":-100},\"n\":128,\"messages\":%s}", question);
    pending w = { .reply = {
                      .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail } };
    const tinkc_request request = {
        .method = "POST",
        .path = "/v1/chat/completions",
        .base_url = "",
        .body = { (const unsigned char *)body, strlen(body) },
    };
    p->send(p->self, &request, &w.reply);
    assert_int_equal(w.over, 0);
    assert_int_equal(w.status, 0);                    /* nothing goes out before its end */
    wait_until(count_of(p, "samples_in_flight") > 0); /* its text is read elsewhere */
    const char *text = service_json(p, 429, "POST", "/v1/completions", "%s", "{\"model\":\"nano\",\"prompt\":\"a\"}");
    assert_non_null(strstr(text, "\"rate_limit_error\""));
    service_json(p, 429, "POST", "/v1/completions", "%s", "{\"model\":\"nano\",\"prompt\":\"a\",\"stream\":true}");
    p->cancel(p->self, &w.reply);
    wait_until(w.over); /* its handler may just be returning */
    assert_int_equal(w.over, 2);
    int status = 429; /* until the worker has seen it */
    int64_t began = patience_now_ms();
    do {
        static const char next[] = "{\"model\":\"nano\",\"prompt\":\"a\",\"max_tokens\":1}";
        answer a = service_call(p, "POST", "/v1/completions", NULL, next, strlen(next));
        status = a.status;
        answer_free(&a);
    } while (status == 429 && patience_lasts(began));
    assert_int_equal(status, 200);
    tinkc_engine_free(e);
}

int main(void)
{
    if (access("models/nano/config.json", R_OK) != 0) {
        print_message("models/nano is not here: skipped\n");
        return 77;
    }
    static const char *const on[] = { "openai", "on", NULL };
    tinkc_error err = { 0 };
    tinkc_engine_free(tinkc_engine_new(&(tinkc_engine_options){ .settings = on }, &err));
    if (err.code == TINKC_E_UNSUPPORTED) {
        print_message("%s: skipped\n", err.message);
        return 77;
    }
    return test_cases_run(setup, teardown);
}
