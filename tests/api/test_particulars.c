/* test_particulars.c - what a client says of its waiting, what it copies of its caller's memory and from whose memory, and
 * counts that begin again: each rule alone, on the mock. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/api_support.h"
#include "support/counting.h"

#define API  "/api/v1/"
#define POLL API "retrieve_future"

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };
static const tinkc_mock_answer silent = { .fault = TINKC_FAULT_SILENT };

/* Lines of the log, written by the client's thread. */
typedef struct notes {
    pthread_mutex_t lock;
    char text[4000];
} notes;

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
    tinkc_batch *batch;
    counting memory;
    tinkc_allocator allocator;
    notes log;
} fixture;

static void on_log(int32_t level, const char *line, void *user)
{
    notes *n = user;
    pthread_mutex_lock(&n->lock);
    size_t used = strlen(n->text);
    (void)snprintf(n->text + used, sizeof n->text - used, "%d %s\n", (int)level, line);
    pthread_mutex_unlock(&n->lock);
}

static bool was_logged(fixture *x, const char *what)
{
    pthread_mutex_lock(&x->log.lock);
    bool found = strstr(x->log.text, what) != NULL;
    pthread_mutex_unlock(&x->log.lock);
    return found;
}

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    pthread_mutex_init(&x->log.lock, NULL);
    x->allocator = counting_allocator(&x->memory);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock,
                            &(tinkc_client_options){ .api_key = "tml-key",
                                                     .allocator = &x->allocator,
                                                     .billing_pause_ms = TINKC_FOREVER,
                                                     .log = on_log,
                                                     .log_user = &x->log },
                            &x->err);
    x->trainer =
        tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                   &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    bool empty = counting_is_empty_soon(&x->memory);
    pthread_mutex_destroy(&x->log.lock);
    free(x);
    return empty ? 0 : -1;
}

static void once(fixture *x, const char *path, int32_t status, const char *body)
{
    tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body },
                    &x->err);
    assert_ok(&x->err);
}

static bool contains(const tinkc_request *r, const char *text)
{
    return r && memmem(r->body.data, r->body.len, text, strlen(text));
}

static tinkc_future *sample(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    assert_ok(&x->err);
    return f;
}

static void complete(fixture *x, tinkc_future *f)
{
    assert_true(run_until_done(x->mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    tinkc_future_free(f);
}

/* ---- what is said while the service lets us wait ---- */

static void pauses_in_the_log(void **state)
{
    static const char paused[] = "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":"
                                 "\"paused_capacity\",\"queue_state_reason\":\"full house\"}";
    fixture *x = *state;
    char want[300];
    once(x, POLL, 200, paused);
    complete(x, sample(x));
    (void)snprintf(want, sizeof want, "Sampling is paused for sampler %s. Reason: full house\n",
                   tinkc_sampler_id(x->sampler));
    assert_true(was_logged(x, want));
    once(x, POLL, 200, paused);
    complete(x, tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err));
    (void)snprintf(want, sizeof want, "Training for %s is paused. Reason: full house.\n",
                   tinkc_trainer_id(x->trainer));
    assert_true(was_logged(x, want));
    once(x, POLL, 200, paused);
    complete(x, tinkc_trainer_open(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" },
                                   &x->err));
    assert_true(was_logged(x, "Model creation for mock/nano is paused. Reason: full house.\n"));
}

static void never_called(const tinkc_event *e, void *user)
{
    (void)e, (void)user;
    fail_msg("an event of a queue that was freed");
}

/* Events for a queue that was freed are dropped, and their memory with them. */
static void events_for_a_freed_queue(void **state)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, UINT32_MAX, never_called, NULL, &x->err));
    tinkc_future *f = sample(x);
    assert_true(tinkc_future_on_event(f, queue, UINT32_MAX, never_called, NULL, &x->err));
    tinkc_queue_free(queue);
    complete(x, f);
}

/* An error of an accepted request names it: support can find it by that. */
static void failures_name_their_request(void **state)
{
    fixture *x = *state;
    once(x, POLL, 200, "{\"error\":\"bad luck\",\"category\":\"user\"}");
    tinkc_future *f =
        tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_REQUEST_FAILED);
    char want[100];
    assert_true(x->err.request_id[0]);
    (void)snprintf(want, sizeof want, "\"request_id\":\"%s\"", x->err.request_id);
    assert_true(contains(nth_request(x->mock, POLL, 0), want));
    tinkc_future_free(f);
}

/* Three answers of a proxy in a row are forgiven, and as many again after a word of the service itself. */
static void forgiven_answers_begin_again(void **state)
{
    fixture *x = *state;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++)
            once(x, POLL, 400, "<html>");
        if (i == 0)
            once(x, POLL, 408,
                 "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":\"active\"}");
    }
    complete(x, sample(x));
    for (int k = 0; k < 4; k++)
        once(x, POLL, 400, "<html>");
    tinkc_future *f = sample(x);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.http_status, 400);
    tinkc_future_free(f);
}

/* However long it waits: polls leave nothing behind in memory. */
static void waiting_takes_no_memory(void **state)
{
    enum { POLLS = 200 };
    fixture *x = *state;
    char body[1200];
    (void)snprintf(body, sizeof body,
                   "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":\"active\","
                   "\"queue_state_reason\":\"%01000d\"}",
                   0);
    for (int i = 0; i < POLLS; i++)
        once(x, POLL, 200, body);
    tinkc_future *f = sample(x);
    size_t early = 0, late = 0;
    while (!tinkc_future_done(f)) {
        int64_t next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        size_t polls = tinkc_mock_count(x->mock, POLL), now = atomic_load(&x->memory.bytes);
        early = polls == 5 ? now : early;
        late = polls == POLLS - 5 ? now : late;
        if (!tinkc_future_done(f))
            tinkc_mock_advance(x->mock, next);
    }
    assert_true(early && late);
    assert_true(late < early + 50000); /* what 190 answers hold is four times that */
    tinkc_future_free(f);
}

/* ---- billing ---- */

typedef struct billing {
    size_t text_len;
    int64_t elapsed_ms;
    int n;
} billing;

static void on_billing(const tinkc_event *e, void *user)
{
    billing *b = user;
    assert_int_equal(e->kind, TINKC_EVENT_BILLING);
    assert_int_equal(e->http_status, 402);
    assert_int_equal(e->left_ms, TINKC_FOREVER);
    assert_int_equal(e->wait_ms, 5000);
    b->text_len = strlen(e->text);
    b->elapsed_ms = e->elapsed_ms;
    b->n++;
}

/* One pause for five minutes, counted from the last word about it; then another begins. */
static void pauses_for_billing(void **state)
{
    static const struct {
        int64_t later_ms, elapsed_ms;
    } rows[] = { { 0, 0 }, { 300000, 300000 }, { 300001, 0 } };
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    char body[400];
    billing b;
    tinkc_client_on_event(x->client, queue, TINKC_EVENT_BILLING, on_billing, &b, &x->err);
    (void)snprintf(body, sizeof body, "{\"detail\":\"%0300d\"}", 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        b = (billing){ 0 };
        if (i)
            tinkc_mock_advance(x->mock, rows[i].later_ms - 5000); /* of which the retry took five */
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        once(x, API "get_server_capabilities", 402, body);
        tinkc_future *f = tinkc_capabilities_get(x->client, &x->err);
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        tinkc_mock_advance(x->mock, 5000);
        complete(x, f);
        tinkc_queue_run(queue, 0, &x->err);
        assert_int_equal(b.n, 1);
        assert_int_equal(b.text_len, 199);
        assert_int_equal(b.elapsed_ms, rows[i].elapsed_ms);
        assert_ok(&x->err);
    }
    tinkc_queue_free(queue);
}

/* ---- the caller's memory ---- */

/* Pages are asked for after the call: nothing of its arguments may be needed then. */
static void searches_keep_their_question(void **state)
{
    fixture *x = *state;
    char texts[7][8] = { "sess-1", "name-2", "proj-3", "key-4", "val-5", "owner-6", "owner-7" };
    const char *projects[] = { texts[2], NULL }, *metadata[] = { texts[3], texts[4], NULL };
    const char *owners[] = { texts[5], texts[6], NULL };
    tinkc_search_options o = { .session_id = texts[0],
                               .display_name = texts[1],
                               .project_ids = projects,
                               .user_metadata = metadata,
                               .owners = owners };
    tinkc_search *list = tinkc_search_list(x->client, &o, &x->err);
    assert_ok(&x->err);
    memset(texts, '#', sizeof texts);
    projects[0] = metadata[0] = owners[0] = NULL;
    tinkc_future *f = tinkc_search_fetch(list, &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    static const char *const wanted[] = { "sess-1", "name-2",  "proj-3", "key-4",
                                          "val-5",  "owner-6", "owner-7" };
    const tinkc_request *r = tinkc_mock_request(x->mock, 0);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!contains(r, wanted[i]))
            fail_msg("%s is not in %.*s", wanted[i], (int)r->body.len, (const char *)r->body.data);
    tinkc_future_free(f);
    tinkc_search_free(list);
}

/* Inputs are made of the client's memory. */
static void inputs_take_the_clients_memory(void **state)
{
    enum { N = 50000 };
    static int32_t many[N];
    fixture *x = *state;
    tinkc_input *input = tinkc_input_new(x->client, &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    size_t before = atomic_load(&x->memory.bytes);
    assert_true(tinkc_input_add_tokens(input, many, N, &x->err));
    assert_true(atomic_load(&x->memory.bytes) >= before + sizeof many);
    tinkc_input_free(input);
}

static void an_empty_body_is_one(void **state)
{
    static const struct {
        tinkc_http_options o;
        const char *method;
    } rows[] = { { { .path = "/x" }, "GET" }, { { .path = "/x", .body = "" }, "POST" } };
    fixture *x = *state;
    for (size_t i = 0; i < 2; i++) {
        tinkc_future *f = tinkc_http_call(x->client, &rows[i].o, &x->err);
        (void)run_until_done(x->mock, f, 60000);
        assert_string_equal(nth_request(x->mock, "/x", i)->method, rows[i].method);
        tinkc_future_free(f);
    }
    static const tinkc_http_options bad = { .path = "/x", .body_len = 1 };
    assert_null(tinkc_http_call(x->client, &bad, &x->err));
    assert_string_equal(x->err.message, "body is NULL but body_len is not 0");
    x->err = (tinkc_error){ 0 };
}

static void token_zero_may_stop(void **state)
{
    static const int32_t stop[] = { 0 };
    fixture *x = *state;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    o.stop_tokens = stop;
    o.n_stop_tokens = 1;
    complete(x, tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err));
    assert_true(contains(nth_request(x->mock, API "asample", 0), "\"stop\":[0]"));
}

/* ---- lists ---- */

#define RUN                                                                                        \
    "{\"training_run_id\":\"r\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"      \
    "\"last_request_time\":\"2026-01-01T00:00:00Z\"}"

/* What the service says of the whole is believed, 0 too. */
static void lists_with_a_total_of_zero(void **state)
{
    static const char *const bodies[] = {
        "{\"training_runs\":[],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":0}}",
        "{\"training_runs\":[" RUN "],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":0}}",
    };
    fixture *x = *state;
    for (int i = 0; i < 2; i++) {
        tinkc_mock_forget(x->mock);
        once(x, API "training_runs", 200, bodies[i]);
        tinkc_runs *list = tinkc_runs_list(x->client, NULL, &x->err);
        assert_int_equal(tinkc_runs_total(list), -1);
        tinkc_future *f = tinkc_runs_fetch(list, &x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        assert_int_equal(tinkc_runs_total(list), 0);
        tinkc_future_free(f);
        for (int k = 0; k < i; k++)
            assert_string_equal(tinkc_runs_next(list, &x->err)->id, "r");
        assert_null(tinkc_runs_next(list, &x->err));
        assert_ok(&x->err);
        assert_int_equal(tinkc_mock_count(x->mock, NULL), 1);
        tinkc_runs_free(list);
    }
}

/* ---- what ends otherwise ---- */

static bool never(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)loss;
    (void)user;
    tinkc_error_set(err, TINKC_E_STATE, "it must not run");
    return false;
}

/* A loss whose queue is gone when its turn comes cannot run. */
static void a_loss_without_its_queue(void **state)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *f =
        tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, never, NULL, &x->err);
    assert_ok(&x->err);
    tinkc_queue_free(queue);
    assert_true(run_until_done(x->mock, f, 60000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CANCELLED);
    assert_string_equal(x->err.message, "the queue was freed before the loss function could run");
    tinkc_future_free(f);
}

static void other_texts_are_no_samplers(void **state)
{
    fixture *x = *state;
    tinkc_text text = { 0 };
    tinkc_client_options o = { .transport = tinkc_mock_transport(x->mock),
                               .clock = tinkc_mock_clock(x->mock) };
    assert_null(
        tinkc_sampler_import(tinkc_client_snapshot(x->client, &text, &x->err), &o, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    assert_string_equal(x->err.message, "exported: not from tinkc_sampler_export");
    tinkc_text_free(&text);
}

/* An end is not a failure to renew the token, and is not reported as one. */
static void ends_are_not_failed_renewals(void **state)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config",
                      &(tinkc_mock_answer){ .body = "{\"pjwt_auth_enabled\":true}" }, &x->err);
    tinkc_mock_always(x->mock, NULL, API "auth/token", &silent, &x->err);
    tinkc_client *client = mock_client(x->mock,
                                       &(tinkc_client_options){ .api_key = "tml-key",
                                                                .log = on_log,
                                                                .log_user = &x->log,
                                                                .log_level = TINKC_LOG_DEBUG },
                                       &x->err);
    tinkc_future *f = tinkc_capabilities_get(client, &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 1);
    (void)tinkc_client_close(client, 0, &x->err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &(tinkc_error){ 0 }));
    tinkc_future_free(f);
    tinkc_client_free(client); /* waits for its thread */
    assert_false(was_logged(x, "renewed"));
    x->err = (tinkc_error){ 0 };
}

/* The query of the client's options is for the service alone. */
static void queries_stay_with_the_service(void **state)
{
    static const char *const query[] = { "key", "secret", NULL };
    static const struct {
        const char *url, *path;
    } rows[] = { { "https://elsewhere.example/far?x=1", "/far?x=1" },
                 { "/near?x=1", "/near?x=1&key=secret" },
                 { "/near", "/near?key=secret" } };
    fixture *x = *state;
    tinkc_client *client = mock_client(
        x->mock, &(tinkc_client_options){ .api_key = "tml-key", .query = query }, &x->err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &x->err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_forget(x->mock);
        tinkc_future *f =
            tinkc_http_call(client, &(tinkc_http_options){ .path = rows[i].url }, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_string_equal(tinkc_mock_request(x->mock, 0)->path, rows[i].path);
        tinkc_future_free(f);
    }
    tinkc_client_free(client);
}

/* A copy brings its account along: none of these may be given beside it. */
static void options_beside_a_copy(void **state)
{
    static const char *const list[] = { "a", "b", NULL };
    static const tinkc_client_options rows[] = {
        { .api_key = "tml-x" },     { .credential_cmd = "true" },
        { .base_url = "http://x" }, { .project_id = "p" },
        { .tags = list },           { .user_metadata = list },
        { .headers = list },        { .snapshot = "{}" },
    };
    fixture *x = *state;
    tinkc_text text = { 0 };
    const char *exported = tinkc_sampler_export(x->sampler, &text, &x->err);
    assert_ok(&x->err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_client_options o = rows[i];
        o.transport = tinkc_mock_transport(x->mock);
        o.clock = tinkc_mock_clock(x->mock);
        assert_null(tinkc_sampler_import(exported, &o, &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        assert_memory_equal(x->err.message, "options: what the exported text has", 35);
        x->err = (tinkc_error){ 0 };
    }
    tinkc_text_free(&text);
}

static void days_that_do_not_exist(void **state)
{
    static const char *const days[] = { "2026-02-29", "2026-02-30", "2026-04-31", "2026-13-01",
                                        "2026-00-01", "2026-01-00", "2026-1-011", "2026-01-1" };
    fixture *x = *state;
    for (size_t i = 0; i < sizeof days / sizeof *days; i++) {
        assert_null(tinkc_audit_get(x->client, NULL, days[i], &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        assert_string_equal(x->err.message, "day must have the form YYYY-MM-DD");
        x->err = (tinkc_error){ 0 };
    }
    tinkc_future *f = tinkc_audit_get(x->client, NULL, "2028-02-29", &x->err);
    assert_ok(&x->err);
    tinkc_future_free(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pauses_in_the_log),
        TEST(events_for_a_freed_queue),
        TEST(failures_name_their_request),
        TEST(forgiven_answers_begin_again),
        TEST(waiting_takes_no_memory),
        TEST(pauses_for_billing),
        TEST(searches_keep_their_question),
        TEST(inputs_take_the_clients_memory),
        TEST(an_empty_body_is_one),
        TEST(token_zero_may_stop),
        TEST(lists_with_a_total_of_zero),
        TEST(a_loss_without_its_queue),
        TEST(other_texts_are_no_samplers),
        TEST(ends_are_not_failed_renewals),
        TEST(queries_stay_with_the_service),
        TEST(options_beside_a_copy),
        TEST(days_that_do_not_exist),
    };
    return cmocka_run_group_tests_name("particulars", tests, NULL, NULL);
}
