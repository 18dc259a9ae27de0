/* test_server_http.c - the server over real sockets: keys, limits, events, archives, stopping. */
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "codec/zstd.h"
#include "support/check.h"
#include "support/service/raw_http.h"
#include "support/service/service_call.h"
#include "support/engine/tiny_model.h"

static char *folder, *scratch;
static tinkc_engine *engine;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    scratch = tiny_folder();
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 64 });
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", folder, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
    tiny_model_remove(scratch);
    return 0;
}

static tinkc_server *serve(const tinkc_serve_options *options)
{
    tinkc_error err = { 0 };
    tinkc_server *server = tinkc_engine_serve(engine, options, &err);
    assert_ok(err);
    return server;
}

/* The limit is the engine's: the next server must not find a small one. */
static void serve_default_limit(void)
{
    tinkc_server_free(serve(&(tinkc_serve_options){ .max_body_bytes = 1 << 30 }));
}

static int dial(const tinkc_server *server)
{
    return raw_dial(tinkc_server_url(server));
}

static tkc_buf talk(int fd, const char *head, const void *body, size_t len)
{
    return raw_talk(fd, "localhost", head, body, len);
}

static void expect(const tinkc_server *server, const char *head, const char *body, const char *status, const char *text)
{
    int fd = dial(server);
    tkc_buf got = talk(fd, head, body, strlen(body));
    char line[32];
    snprintf(line, sizeof line, "HTTP/1.1 %s", status);
    if (strncmp(got.data ? got.data : "", line, strlen(line)) != 0 || !strstr(got.data, text))
        fail_msg("%s: %s", head, got.data ? got.data : "nothing");
    tkc_buf_free(&got);
    close(fd);
}

/* A client replaces a token that is refused (RFC 6750); for a wrong key there is nothing to fetch. */
TEST(refused_tokens_say_so)
{
    const char *const keys[] = { "tml-one", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    static const char head[] = "POST /api/v1/create_session HTTP/1.1\r\nX-API-Key: ";
    static const struct {
        const char *key;
        bool token;
    } rows[] = { { "eyJhbGciOiJIUzI1NiJ9.e30.x", true }, { "tml-two", false } };
    for (size_t i = 0; i < 2; i++) {
        char text[200];
        int fd = dial(server);
        snprintf(text, sizeof text, "%s%s", head, rows[i].key);
        tkc_buf got = talk(fd, text, "{}", 2);
        assert_non_null(strstr(got.data, "HTTP/1.1 401"));
        assert_int_equal(strstr(got.data, "WWW-Authenticate: Bearer error=\"invalid_token\"") != NULL, rows[i].token);
        tkc_buf_free(&got);
        close(fd);
    }
    tinkc_server_free(server);
}

TEST(health_and_keys)
{
    const char *const keys[] = { "tml-one", "tml-two", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys, .metrics = true });
    expect(server, "GET /api/v1/healthz HTTP/1.1", "", "200", "\"ok\"");
    expect(server, "POST /api/v1/create_session HTTP/1.1", "{}", "401", "Invalid API key");
    expect(server, "POST /api/v1/create_session HTTP/1.1\r\nX-API-Key: tml-on", "{}", "401", "Invalid API key");
    expect(server, "POST /api/v1/create_session HTTP/1.1\r\nX-API-Key: tml-one", "{\"tags\":[],\"sdk_version\":\"x\"}",
           "200", "session_id");
    expect(server, "GET /metrics HTTP/1.1\r\nX-API-Key: tml-one", "", "200", "tinkc_requests_total");
    expect(server, "GET /api/v1/nothing HTTP/1.1\r\nX-API-Key: tml-two", "", "404", "unknown_endpoint");
    expect(server, "PUT /api/v1/asample HTTP/1.1\r\nX-API-Key: tml-two", "", "405", "method_not_allowed");
    tinkc_server_free(server);
}

TEST(owners_are_apart)
{
    const char *const keys[] = { "tml-one", "tml-two", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    int fd = dial(server);
    tkc_buf got = talk(fd, "POST /api/v1/create_session HTTP/1.1\r\nX-API-Key: tml-one",
                       "{\"tags\":[],\"sdk_version\":\"x\"}", 29);
    const char *session = hold(json_field(got.data, "session_id"));
    tkc_buf_free(&got);
    char body[300], head[300];
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":"
             "{\"rank\":4}}",
             session);
    got = talk(fd, "POST /api/v1/create_model HTTP/1.1\r\nX-API-Key: tml-one", body, strlen(body));
    const char *model = hold(json_field(got.data, "model_id"));
    const char *request = hold(json_field(got.data, "request_id"));
    tkc_buf_free(&got);
    close(fd);
    expect(server, "POST /api/v1/create_model HTTP/1.1\r\nX-API-Key: tml-two", body, "403", "Invalid session_id");
    snprintf(body, sizeof body, "{\"model_id\":\"%s\"}", model);
    expect(server, "POST /api/v1/get_info HTTP/1.1\r\nX-API-Key: tml-two", body, "403",
           "You do not have access to this model");
    expect(server, "POST /api/v1/get_info HTTP/1.1\r\nX-API-Key: tml-one", body, "200", "tiny");
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", request);
    expect(server, "POST /api/v1/retrieve_future HTTP/1.1\r\nX-API-Key: tml-two", body, "403",
           "You do not have access");
    snprintf(head, sizeof head, "GET /api/v1/training_runs/%s HTTP/1.1\r\nX-API-Key: tml-two", model);
    expect(server, head, "", "404", "No training run");
    snprintf(head, sizeof head, "GET /api/v1/sessions/%s HTTP/1.1\r\nX-API-Key: tml-two", session);
    expect(server, head, "", "404", "Unknown session");
    tinkc_server_free(server);
}

/* A field of the answer to a request with this key. */
static const char *field_of(const tinkc_server *server, const char *key, const char *path, const char *body,
                            const char *field)
{
    char head[200];
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nX-API-Key: %s", path, key);
    int fd = dial(server);
    tkc_buf got = talk(fd, head, body, strlen(body));
    const char *value = hold(json_field(got.data, field));
    tkc_buf_free(&got);
    close(fd);
    return value;
}

/* The id of a finished request's result. */
static const char *awaited(const tinkc_server *server, const char *key, const char *request, const char *field)
{
    char body[300];
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", request);
    return field_of(server, key, "/api/v1/retrieve_future", body, field);
}

/* Another key's loss can neither be made, nor asked for, nor used. */
TEST(custom_losses_are_apart)
{
    const char *const keys[] = { "tml-one", "tml-two", NULL };
    static const char create[] = "/api/v1/create_custom_loss";
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    const char *sessions[2], *models[2];
    char body[1200];
    for (int i = 0; i < 2; i++) {
        sessions[i] =
            field_of(server, keys[i], "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"x\"}", "session_id");
        snprintf(body, sizeof body,
                 "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":"
                 "{\"rank\":4}}",
                 sessions[i]);
        models[i] = field_of(server, keys[i], "/api/v1/create_model", body, "model_id");
    }
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"custom_loss_seq_id\":0,\"name\":\"mine\",\"inputs\":[{\"name\":"
             "\"logprobs\",\"rank\":1}],\"graph\":{\"format\":1,\"nodes\":[{\"op\":\"placeholder\","
             "\"name\":\"logprobs\",\"target\":\"logprobs\"},{\"op\":\"call_method\",\"name\":\"l\","
             "\"target\":\"sum\",\"args\":[{\"ref\":\"logprobs\"}]},{\"op\":\"output\",\"name\":\"o\","
             "\"target\":\"o\",\"args\":[{\"tuple\":[{\"ref\":\"l\"},{\"dict\":{}}]}]}]}}",
             sessions[0]);
    expect(server, "POST /api/v1/create_custom_loss HTTP/1.1\r\nX-API-Key: tml-two", body, "403", "Invalid session_id");
    const char *request = field_of(server, "tml-one", create, body, "request_id");
    const char *id = awaited(server, "tml-one", request, "loss_id");
    /* it exists now: that it is asked for again gives nothing away */
    expect(server, "POST /api/v1/create_custom_loss HTTP/1.1\r\nX-API-Key: tml-two", body, "403", "Invalid session_id");
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", request);
    expect(server, "POST /api/v1/retrieve_future HTTP/1.1\r\nX-API-Key: tml-two", body, "403",
           "You do not have access");
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body,
                 "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_input\":{\"loss_fn\":\"custom\","
                 "\"loss_fn_config\":{\"loss_id\":\"%s\"},\"data\":[{\"model_input\":{\"chunks\":[{"
                 "\"type\":\"encoded_text\",\"tokens\":[1,5]}]},\"loss_fn_inputs\":{\"target_tokens\":"
                 "{\"data\":[5,9],\"dtype\":\"int64\"}}}]}}",
                 models[i], id);
        request = field_of(server, keys[i], "/api/v1/forward", body, "request_id");
        snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", request);
        expect(server,
               i ? "POST /api/v1/retrieve_future HTTP/1.1\r\nX-API-Key: tml-two"
                 : "POST /api/v1/retrieve_future HTTP/1.1\r\nX-API-Key: tml-one",
               body, "200", i ? "the session of this model has no custom loss" : "\"loss:sum\"");
    }
    tinkc_server_free(server);
}

TEST(a_body_above_the_limit_is_refused)
{
    tinkc_error err = { 0 };
    tinkc_server *server = serve(&(tinkc_serve_options){ .max_body_bytes = 1000 });
    char big[2001];
    memset(big, ' ', 2000);
    big[2000] = '\0';
    expect(server, "POST /api/v1/telemetry HTTP/1.1", big, "413", "too large");
    big[900] = '\0';
    expect(server, "POST /api/v1/telemetry HTTP/1.1", big, "200", "accepted");
    /* A client that sends the whole body before it reads sees the refusal, not a reset. */
    enum { HUGE = 16 << 20 };
    char *huge = calloc(1, HUGE);
    assert_non_null(huge);
    int one = dial(server);
    tkc_buf seen = talk(one, "POST /api/v1/telemetry HTTP/1.1", huge, HUGE);
    assert_true(seen.data && strstr(seen.data, "413"));
    tkc_buf_free(&seen);
    close(one);
    free(huge);
    /* A small body that unpacks to a large one. */
    tkc_buf packed;
    tkc_buf_init(&packed, NULL, TKC_BUF_NO_MAX);
    memset(big, ' ', 2000);
    assert_true(tkc_zstd_compress(big, 2000, &packed, &err));
    int fd = dial(server);
    tkc_buf got = talk(fd, "POST /api/v1/forward_backward HTTP/1.1\r\nContent-Encoding: zstd", packed.data, packed.len);
    assert_non_null(strstr(got.data, "413"));
    tkc_buf_free(&got);
    close(fd);
    tkc_buf_free(&packed);
    tinkc_server_free(server);
    server = serve(&(tinkc_serve_options){ .max_body_bytes = 1 << 30 });
    tinkc_server_free(server);
    /* A head that never ends is refused, not stored. */
    server = serve(NULL);
    char *head = malloc(200100);
    strcpy(head, "GET /api/v1/healthz HTTP/1.1\r\nX-Long: ");
    memset(head + strlen(head), 'a', 200000 - strlen(head));
    head[200000] = '\0';
    fd = dial(server);
    ssize_t sent = send(fd, head, 200000, MSG_NOSIGNAL);
    (void)sent;
    char said[200] = "";
    ssize_t n = recv(fd, said, sizeof said - 1, 0);
    assert_true(n <= 0 || strstr(said, "HTTP/1.1 4") || strstr(said, "HTTP/1.0 4"));
    free(head);
    close(fd);
    tinkc_server_free(server);
}

TEST(ninety_headers_are_read)
{
    tinkc_server *server = serve(NULL);
    char head[8000] = "GET /api/v1/healthz HTTP/1.1";
    for (int i = 0; i < 90; i++)
        snprintf(head + strlen(head), 40, "\r\nX-Some-%d: a", i);
    expect(server, head, "", "200", "ok");
    for (int i = 0; i < 20; i++)
        snprintf(head + strlen(head), 40, "\r\nX-More-%d: a", i);
    expect(server, head, "", "431", "too_many_headers");
    tinkc_server_free(server);
}

/* Memory of a stranger's body is not spent: he hears it before he has sent much. */
TEST(keys_are_asked_for_first)
{
    const char *const keys[] = { "tml-one", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    const char head[] = "POST /api/v1/asample HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-no\r\n"
                        "Content-Length: 500000000\r\n\r\n";
    int fd = dial(server);
    char said[300] = "";
    assert_int_equal(send(fd, head, sizeof head - 1, MSG_NOSIGNAL), sizeof head - 1);
    assert_true(recv(fd, said, sizeof said - 1, 0) > 0);
    assert_non_null(strstr(said, "401"));
    close(fd);
    tinkc_server_free(server);
}

/* All of a body but its last byte. */
static int begin_body(const tinkc_server *server, const char *body, size_t len)
{
    char head[200];
    int fd = dial(server);
    snprintf(head, sizeof head,
             "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n",
             len);
    assert_int_equal(send(fd, head, strlen(head), MSG_NOSIGNAL), strlen(head));
    for (size_t sent = 0; sent < len - 1;) {
        ssize_t n = send(fd, body + sent, len - 1 - sent, MSG_NOSIGNAL);
        assert_true(n > 0);
        sent += (size_t)n;
    }
    return fd;
}

static void end_body(int fd, const char *status)
{
    char said[300] = "";
    assert_int_equal(send(fd, " ", 1, MSG_NOSIGNAL), 1);
    assert_true(recv(fd, said, sizeof said - 1, 0) > 0);
    if (!strstr(said, status))
        fail_msg("not %s: %s", status, said);
    close(fd);
}

/* Waits until a number in /metrics has this value. */
static void wait_for_metric(const tinkc_server *server, const char *name, size_t value)
{
    char line[100];
    snprintf(line, sizeof line, "\n%s ", name);
    int64_t began = patience_now_ms();
    do {
        int fd = dial(server);
        tkc_buf got = talk(fd, "GET /metrics HTTP/1.1", "", 0);
        const char *at = strstr(got.data, line);
        assert_non_null(at);
        bool there = strtoull(at + strlen(line), NULL, 10) == value;
        tkc_buf_free(&got);
        close(fd);
        if (there)
            return;
    } while (patience_lasts(began));
    fail_msg("%s is not %zu", name, value);
}

/* Waits until the server has read so much of bodies that have not ended. */
static void wait_for_bodies(const tinkc_server *server, size_t bytes)
{
    wait_for_metric(server, "tinkc_body_bytes", bytes);
}

/* Bodies that are being read are counted together: the third large one is one too many. */
TEST(large_bodies_at_once)
{
    enum { LARGE = 900000 };
    static char body[LARGE];
    tinkc_server *server = serve(&(tinkc_serve_options){ .max_body_bytes = 1000000, .metrics = true });
    memset(body, ' ', sizeof body);
    int one = begin_body(server, body, LARGE), two = begin_body(server, body, LARGE);
    wait_for_bodies(server, 2 * (LARGE - 1));
    end_body(begin_body(server, body, LARGE), "503");
    end_body(one, "accepted");
    wait_for_bodies(server, LARGE - 1);
    end_body(begin_body(server, body, LARGE), "accepted");
    end_body(two, "accepted");
    wait_for_bodies(server, 0);
    tinkc_server_free(server);
    serve_default_limit();
}

/* A pass whose body is refused has used its number up: what comes behind it is not held up. */
TEST(refused_bodies_use_their_number)
{
    tinkc_server *server = serve(&(tinkc_serve_options){ .max_body_bytes = 3000 });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    char body[8000] = { 0x0a, (char)strlen(model) };
    size_t head = 2 + strlen(model);
    memcpy(body + 2, model, strlen(model));
    body[head] = 0x10;
    static const struct {
        const char *status;
        size_t len;
    } how[] = { { "413", 5000 }, { "413", 7900 }, { "422", 900 } };
    for (size_t i = 0; i < 3; i++) {
        body[head + 1] = (char)(1 + 2 * i);
        memset(body + head + 2, 0x7f, how[i].len - head - 2);
        int fd = dial(server);
        tkc_buf got = talk(fd,
                           "POST /api/v1/forward_backward HTTP/1.1\r\nContent-Type: "
                           "application/x-protobuf",
                           body, how[i].len);
        if (!got.data || !strstr(got.data, how[i].status))
            fail_msg("%zu: %s", i, got.data ? got.data : "nothing");
        tkc_buf_free(&got);
        close(fd);
        service_wait(t, service_step(t, model, 2 + 2 * (int64_t)i, 1e-3));
    }
    tinkc_server_free(server);
    serve_default_limit();
}

/* Many that begin and do not continue cost the others nothing. */
TEST(slow_clients_cost_the_others_nothing)
{
    enum { SLOW = 200 };
    tinkc_server *server = serve(&(tinkc_serve_options){ .head_timeout_ms = 10 * PATIENCE_MS });
    int fds[SLOW];
    const char half[] = "POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nContent-Le";
    const char no_body[] = "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: 99\r\n"
                           "\r\n{";
    for (int i = 0; i < SLOW; i++) {
        const char *text = i % 2 ? half : no_body;
        fds[i] = dial(server);
        assert_int_equal(send(fds[i], text, strlen(text), MSG_NOSIGNAL), strlen(text));
    }
    for (int i = 0; i < 50; i++)
        expect(server, "GET /api/v1/healthz HTTP/1.1", "", "200", "ok");
    for (int i = 0; i < SLOW; i += 2)
        close(fds[i]);
    tinkc_error err = { 0 };
    assert_true(tinkc_server_stop(server, PATIENCE_MS, &err)); /* nor do they hold up the end */
    tinkc_server_free(server);
    for (int i = 1; i < SLOW; i += 2)
        close(fds[i]);
}

/* A thousand samples are under way; a sign of life is answered at once all the same. */
TEST(heartbeats_in_a_crowd)
{
    enum { SAMPLES = 1000 };
    tinkc_server *server = serve(NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *sampler = hold(json_field(
        service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                     "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"tiny\"}", session),
        "sampling_session_id"));
    static const char *ids[SAMPLES];
    char beat[200];
    snprintf(beat, sizeof beat, "{\"session_id\":\"%s\"}", session);
    for (int i = 0; i < SAMPLES; i++) {
        ids[i] = hold(json_field(service_json(t, 200, "POST", "/api/v1/asample",
                                              "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{"
                                              "\"type\":\"encoded_text\",\"tokens\":[%d,5]}]},\"sampling_params\":{"
                                              "\"max_tokens\":16,\"seed\":%d}}",
                                              sampler, i, i % 60 + 1, i),
                                 "request_id"));
        if (i % 20)
            continue;
        expect(server, "POST /api/v1/session_heartbeat HTTP/1.1", beat, "200", "heartbeat");
    }
    for (int i = 0; i < SAMPLES; i++)
        assert_non_null(strstr(service_wait(t, ids[i]), "tokens"));
    tinkc_server_free(server);
}

TEST(a_public_address_needs_keys)
{
    tinkc_error err = { 0 };
    assert_null(tinkc_engine_serve(engine, &(tinkc_serve_options){ .host = "0.0.0.0" }, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_non_null(strstr(err.message, "api_keys are required"));
    err = (tinkc_error){ 0 };
    tinkc_server *one = serve(NULL);
    int32_t port = (int32_t)strtol(strrchr(tinkc_server_url(one), ':') + 1, NULL, 10);
    assert_null(tinkc_engine_serve(engine, &(tinkc_serve_options){ .port = port }, &err));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_non_null(strstr(err.message, "in use"));
    tinkc_server_free(one);
    char path[200];
    snprintf(path, sizeof path, "%s/socket", scratch);
    one = serve(&(tinkc_serve_options){ .unix_socket = path });
    expect(one, "GET /api/v1/healthz HTTP/1.1", "", "200", "\"ok\"");
    tinkc_server_free(one);
    assert_int_not_equal(access(path, F_OK), 0);
}

static const char *make_sampler(const tinkc_transport *t)
{
    const char *made = service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                    "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                                    "\"base_model\":\"tiny\"}",
                                    service_session(t));
    return hold(json_field(made, "sampling_session_id"));
}

/* The tokens of a stream are those of the plain answer, bit for bit. */
TEST(a_stream_has_the_tokens_of_the_plain_answer)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *sampler = make_sampler(t);
    char body[400];
    snprintf(body, sizeof body,
             "{\"sampling_session_id\":\"%s\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"type\":"
             "\"encoded_text\",\"tokens\":[1,2,3]}]},\"sampling_params\":{\"max_tokens\":20,"
             "\"seed\":5,\"stop\":[]}}",
             sampler);
    const char *plain =
        service_wait(t, json_field(service_json(t, 200, "POST", "/api/v1/asample", "%s", body), "request_id"));
    tinkc_server *server = serve(NULL);
    int fd = dial(server);
    tkc_buf got = talk(fd, "POST /api/v1/stream_sample HTTP/1.1", body, strlen(body));
    close(fd);
    assert_non_null(strstr(got.data, "Content-Type: text/event-stream"));
    answer local = service_call(t, "POST", "/api/v1/stream_sample", NULL, body, strlen(body));
    assert_string_equal(local.type, "text/event-stream");
    const char *tokens = strstr(plain, "\"tokens\":[") + 10;
    const char *logprobs = strstr(plain, "\"logprobs\":[") + 12;
    const char *at = local.body.data, *over = got.data;
    for (int i = 0; i < 20; i++) {
        char event[200];
        snprintf(event, sizeof event, "\"token_id\":%ld,\"index\":%d,\"logprob\":%.*s}", strtol(tokens, NULL, 10), i,
                 (int)strcspn(logprobs, ",]"), logprobs);
        at = strstr(at, event);
        if (!at)
            fail_msg("%s is not in %s", event, local.body.data);
        over = strstr(over, event);
        assert_non_null(over);
        tokens += strcspn(tokens, ",]") + 1;
        logprobs += strcspn(logprobs, ",]") + 1;
    }
    assert_non_null(strstr(at, "event: done\ndata: {\"event_type\":\"done\",\"finish_reason\":"
                               "\"length\",\"total_tokens\":20}\n\n"));
    assert_non_null(strstr(over, "\"total_tokens\":20}"));
    answer_free(&local);
    tkc_buf_free(&got);
    tinkc_server_free(server);
}

TEST(an_archive_is_served_whole_and_in_parts)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 1));
    const char *promise = service_json(t, 200, "POST", "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model);
    service_wait(t, json_field(promise, "request_id"));
    tinkc_server *server = serve(NULL);
    char head[300];
    snprintf(head, sizeof head, "GET /api/v1/training_runs/%s/checkpoints/weights/a/archive HTTP/1.1", model);
    int fd = dial(server);
    tkc_buf got = talk(fd, head, "", 0);
    assert_non_null(strstr(got.data, "HTTP/1.1 302"));
    const char *at = strstr(got.data, "Location: http://localhost/api/v1/archives/");
    assert_non_null(at);
    char token[64];
    snprintf(token, sizeof token, "%.32s", at + strlen("Location: http://localhost/api/v1/archives/"));
    tkc_buf_free(&got);
    snprintf(head, sizeof head, "GET /api/v1/archives/%s HTTP/1.1", token);
    tkc_buf whole = talk(fd, head, "", 0);
    assert_non_null(strstr(whole.data, "HTTP/1.1 200"));
    const char *data = strstr(whole.data, "\r\n\r\n") + 4;
    size_t size = whole.len - (size_t)(data - whole.data);
    assert_int_equal(size % 512, 0);
    assert_string_equal(data, "adapter_config.json");
    assert_memory_equal(data + 257, "ustar", 5);
    snprintf(head, sizeof head, "GET /api/v1/archives/%s HTTP/1.1\r\nRange: bytes=500-1299", token);
    tkc_buf part = talk(fd, head, "", 0);
    assert_non_null(strstr(part.data, "HTTP/1.1 206"));
    assert_memory_equal(strstr(part.data, "\r\n\r\n") + 4, data + 500, 800);
    tkc_buf_free(&part);
    tkc_buf_free(&whole);
    close(fd);
    expect(server, "GET /api/v1/archives/00000000000000000000000000000000 HTTP/1.1", "", "404", "No such archive");
    tinkc_server_free(server);
}

/* A run with a checkpoint "a" of some megabytes. */
static const char *large_checkpoint(void)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 256, 1));
    const char *promise = service_json(t, 200, "POST", "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model);
    service_wait(t, json_field(promise, "request_id"));
    return model;
}

/* Over a socket with small buffers, so that a client that does not read holds its archive up. */
static tinkc_server *serve_archive(char path_of_archive[static 100])
{
    char path[200], head[300];
    const char *model = large_checkpoint();
    snprintf(path, sizeof path, "%s/socket", scratch);
    tinkc_server *server = serve(&(tinkc_serve_options){ .unix_socket = path });
    snprintf(head, sizeof head, "GET /api/v1/training_runs/%s/checkpoints/weights/a/archive HTTP/1.1", model);
    int fd = dial(server);
    tkc_buf got = talk(fd, head, "", 0);
    const char *at = strstr(got.data, "/api/v1/archives/");
    assert_non_null(at);
    snprintf(path_of_archive, 100, "%.*s", (int)strcspn(at, "\r\n"), at);
    tkc_buf_free(&got);
    close(fd);
    return server;
}

/* Asks for it and reads one byte of the answer. */
static int begin_to_read(const tinkc_server *server, const char *archive)
{
    char request[300], byte;
    int fd = dial(server);
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", archive);
    assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
    assert_int_equal(recv(fd, &byte, 1, 0), 1);
    return fd;
}

/* Those who begin a download and do not read on keep nobody else from his. */
TEST(slow_readers_keep_nobody_from_a_download)
{
    enum { SLOW = 5 };
    char archive[100], head[300];
    tinkc_server *server = serve_archive(archive);
    int fd = dial(server), slow[SLOW];
    for (int i = 0; i < SLOW; i++)
        slow[i] = begin_to_read(server, archive);
    snprintf(head, sizeof head, "GET %s HTTP/1.1", archive);
    tkc_buf got = talk(fd, head, "", 0);
    assert_true(got.len > 2 << 20);
    tkc_buf_free(&got);
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
    close(fd);
    tinkc_server_free(server);
}

static void send_json(int fd, const char *path, const char *body)
{
    char request[800];
    int n = snprintf(request, sizeof request,
                     "POST /api/v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     path, strlen(body), body);
    (void)!send(fd, request, (size_t)n, MSG_NOSIGNAL); /* the server may have closed it */
}

/* Polls do not keep a server from stopping. */
TEST(stops_with_open_polls)
{
    tinkc_error err = { 0 };
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 1));
    const char *parked = hold(service_step(t, model, 2, 1e-2));
    tinkc_server *server = serve(&(tinkc_serve_options){ .metrics = true });
    int fd = dial(server);
    char body[200];
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", parked);
    send_json(fd, "retrieve_future", body);
    wait_for_metric(server, "tinkc_open_polls", 1); /* other requests are answered while it hangs */
    assert_false(tinkc_server_wait(server, 0, &err));
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    err = (tinkc_error){ 0 };
    assert_true(tinkc_server_stop(server, 60000, &err));
    assert_true(tinkc_server_wait(server, 0, &err));
    char byte;
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
    tinkc_server_free(server);
}

/* ---- stopping under load ---- */

typedef struct asker {
    pthread_t thread;
    int fd;
    const char *sampler; /* NULL: it polls `parked` */
    const char *parked;
    _Atomic int *n_running;
    int number, n_answers;
    char wrong[300]; /* "" = nothing */
} asker;

/* One answer. True: it is whole, and *body its text. */
static bool read_answer(asker *k, int fd, char *text, size_t size, const char **body)
{
    size_t len = 0;
    for (ssize_t n; len + 1 < size && (n = recv(fd, text + len, size - 1 - len, 0)) > 0;) {
        text[len += (size_t)n] = '\0';
        const char *end = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");
        if (!end || !length)
            continue;
        *body = end + 4;
        size_t want = strtoul(length + 16, NULL, 10);
        if (len < (size_t)(*body - text) + want)
            continue;
        if (!want)
            snprintf(k->wrong, sizeof k->wrong, "an empty answer: %.200s", text);
        k->n_answers++;
        return want > 0;
    }
    text[len] = '\0';
    if (len)
        snprintf(k->wrong, sizeof k->wrong, "a part of an answer: %.200s", text);
    return false;
}

/* Samples and polls on one connection until the server has closed it. */
static void *ask(void *arg)
{
    asker *k = arg;
    char text[8000], request[600];
    const char *body = "";
    bool told = false;
    int fd = k->fd;
    for (int i = 0;; i++) {
        if (k->sampler) {
            snprintf(request, sizeof request,
                     "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{"
                     "\"type\":\"encoded_text\",\"tokens\":[3,5]}]},\"sampling_params\":{"
                     "\"max_tokens\":2,\"seed\":%d}}",
                     k->sampler, k->number * 100000 + i, i);
            send_json(fd, "asample", request);
            if (!read_answer(k, fd, text, sizeof text, &body) || !strstr(body, "\"request_id\":\""))
                break;
            const char *id = strstr(body, "\"request_id\":\"") + strlen("\"request_id\":\"");
            snprintf(request, sizeof request, "{\"request_id\":\"%.*s\"}", (int)strcspn(id, "\""), id);
        } else {
            snprintf(request, sizeof request, "{\"request_id\":\"%s\"}", k->parked);
        }
        if (!told)
            atomic_fetch_add(k->n_running, 1);
        told = true;
        send_json(fd, "retrieve_future", request);
        if (!read_answer(k, fd, text, sizeof text, &body))
            break;
    }
    if (!told)
        atomic_fetch_add(k->n_running, 1);
    close(fd);
    return NULL;
}

/* Whatever is under way when a server stops is answered whole, or its connection is closed without
 * a status line: never half an answer, and never an empty one. */
TEST(stops_between_answers)
{
    enum { ROUNDS = 30, ASKERS = 12 };
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 1));
    const char *parked = hold(service_step(t, model, 2, 1e-2));
    for (int round = 0; round < ROUNDS; round++) {
        tinkc_error err = { 0 };
        asker askers[ASKERS];
        _Atomic int n_running = 0;
        int n_answers = 0;
        tinkc_server *server = serve(NULL);
        const char *sampler = hold(
            json_field(service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                    "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,\"base_model\":\"tiny\"}",
                                    session, round),
                       "sampling_session_id"));
        for (int i = 0; i < ASKERS; i++) {
            askers[i] = (asker){ .fd = dial(server),
                                 .sampler = i % 3 ? sampler : NULL,
                                 .parked = parked,
                                 .n_running = &n_running,
                                 .number = i };
            assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
        }
        while (atomic_load(&n_running) < ASKERS)
            sched_yield();
        assert_true(tinkc_server_stop(server, 60000, &err));
        for (int i = 0; i < ASKERS; i++)
            pthread_join(askers[i].thread, NULL);
        for (int i = 0; i < ASKERS; i++) {
            if (askers[i].wrong[0])
                fail_msg("round %d: %s", round, askers[i].wrong);
            n_answers += askers[i].n_answers;
        }
        assert_true(n_answers > 0);
        tinkc_server_free(server);
    }
}

static void *stop_server(void *server)
{
    tinkc_error err = { 0 };
    return tinkc_server_stop(server, 120000, &err) ? server : NULL;
}

/* What has begun is finished; what comes now is refused. */
TEST(answers_while_it_stops)
{
    char archive[100], piece[4096];
    tinkc_server *server = serve_archive(archive);
    int slow = begin_to_read(server, archive);
    pthread_t stopper;
    void *clean;
    assert_int_equal(pthread_create(&stopper, NULL, stop_server, server), 0);
    for (bool stopping = false; !stopping;) {
        int fd = dial(server);
        tkc_buf got = talk(fd, "GET /api/v1/healthz HTTP/1.1", "", 0);
        stopping = strncmp(got.data, "HTTP/1.1 503", 12) == 0;
        assert_true(stopping || strncmp(got.data, "HTTP/1.1 200", 12) == 0);
        tkc_buf_free(&got);
        close(fd);
    }
    size_t len = 0;
    for (ssize_t n; (n = recv(slow, piece, sizeof piece, 0)) > 0;)
        len += (size_t)n;
    assert_true(len > 3 << 20); /* all of it */
    assert_int_equal(pthread_join(stopper, &clean), 0);
    assert_non_null(clean);
    close(slow);
    tinkc_server_free(server);
}

/* Threads of the HTTP library look at the listening descriptor until they have ended: the code that
 * takes it away from them before races with them. */
TEST(stops_while_the_threads_are_busy)
{
    enum { TIMES = 100, CONNECTIONS = 8 };
    static const char request[] = "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char path[200], url[300];
    snprintf(path, sizeof path, "%s/again", scratch);
    for (int i = 0; i < TIMES; i++) {
        tinkc_error err = { 0 };
        tinkc_server *server = serve(&(tinkc_serve_options){ .unix_socket = i % 2 ? path : NULL });
        int fds[CONNECTIONS];
        snprintf(url, sizeof url, "%s", tinkc_server_url(server));
        for (int k = 0; k < CONNECTIONS; k++) {
            fds[k] = dial(server);
            assert_true(send(fds[k], request, sizeof request - 1, MSG_NOSIGNAL) > 0);
        }
        assert_true(tinkc_server_stop(server, PATIENCE_MS, &err));
        assert_int_equal(raw_try_dial(url), -1);
        for (int k = 0; k < CONNECTIONS; k++)
            close(fds[k]);
        tinkc_server_free(server);
    }
}

RUN_TESTS(setup, teardown)
