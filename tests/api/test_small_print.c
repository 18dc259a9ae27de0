/* test_small_print.c - rules about one element, one letter or one moment that the larger tests pass over: the last of
 * several, names of one letter, texts that differ at their end, what is refused at once and not later. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "support/mock_fixture.h"

enum { LISTEN_MS = 5 }; /* first answers come so late that a listener is there before them */

static int make(void **state, const char *path, const char *config)
{
    begin_fixture(state, path, config);
    open_work(*state, 3);
    return 0;
}

static int setup(void **state)
{
    return make(state, NULL, NULL);
}

static int setup_cancels(void **state)
{
    return make(state, API "client/dynamic_config", CONFIG_CANCELS);
}

static int setup_tokens(void **state)
{
    return make(state, API "client/config", CONFIG_TOKENS);
}

static tinkc_sampling three_tokens(void)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    return o;
}

/* ---- names and lists ---- */

static void names_of_one_letter(void **state)
{
    fixture *x = *state;
    tinkc_future *f =
        tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .base_model = "m" }, &x->err);
    settle(x);
    const tinkc_request *r = nth_request(x->mock, API "create_sampling_session", 0);
    assert_non_null(r);
    assert_non_null(memmem(r->body.data, r->body.len, "\"base_model\":\"m\"", 16));
    tinkc_future_free(f);
}

/* An example without targets may have any number of log-probs. */
static void examples_without_targets(void **state)
{
    fixture *x = *state;
    tinkc_batch *b = tinkc_batch_new(x->client, &x->err);
    assert_true(tinkc_batch_add_tokens(b, ids, 6, &x->err));
    once(x, API "forward_backward", 200, "{\"request_id\":\"r\"}");
    once(x, POLL, 200,
         "{\"loss_fn_output_type\":\"T\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":[1,2],"
         "\"dtype\":\"float32\",\"shape\":[2]}}],\"metrics\":{}}");
    tinkc_future *f = tinkc_forward_backward(x->trainer, b, "their_own", NULL, &x->err);
    assert_ok(&x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    const tinkc_fwdbwd *r = tinkc_future_fwdbwd(f, 0, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_tensor_f32s(tinkc_fwdbwd_output(r, 0, "logprobs")).len, 2);
    tinkc_future_free(f);
    tinkc_batch_free(b);
}

/* Every place of a list is looked at, the last one too. */
static void the_last_id_is_checked(void **state)
{
    fixture *x = *state;
    for (size_t i = 0; i < 3; i++) {
        int32_t some[] = { 1, 2, 3 };
        tinkc_sampling o = three_tokens();
        some[i] = -1;
        assert_null(tinkc_sample(x->sampler, some, 3, 1, &o, &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        x->err = (tinkc_error){ 0 };
        o.stop_tokens = some;
        o.n_stop_tokens = 3;
        assert_null(tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        x->err = (tinkc_error){ 0 };
    }
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
}

static bool spoil(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const size_t *at = user;
    (void)err;
    tinkc_loss_set(loss, 1);
    tinkc_loss_grad(loss, at[0])[at[1]] = NAN;
    return true;
}

static void each_gradient_is_checked(void **state)
{
    fixture *x = *state;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 5; k++) {
            size_t at[] = { i, k };
            char want[100];
            tinkc_future *f =
                tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, spoil, at, &x->err);
            if (f)
                (void)tinkc_future_wait(f, PATIENCE_MS, &x->err);
            (void)snprintf(want, sizeof want,
                           "the loss function left gradient %zu of example %zu non-finite", k, i);
            check_error(x, TINKC_E_CALLBACK, want);
            tinkc_future_free(f);
        }
}

static bool set_number(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const double *value = user;
    (void)err;
    if (value)
        tinkc_loss_set(loss, *value);
    return true;
}

static void the_loss_itself_is_checked(void **state)
{
    fixture *x = *state;
    static double numbers[] = { NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < 4; i++) {
        double *value = i < 3 ? &numbers[i] : NULL;
        assert_null(tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, set_number, value,
                                                  &x->err));
        check_error(x, TINKC_E_CALLBACK,
                    value ? "the loss function set no finite loss"
                          : "the loss function set no loss");
    }
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 4); /* the first passes */
}

/* ---- refused by the call itself ---- */

static void what_cannot_be_sent_is_refused_at_once(void **state)
{
    fixture *x = *state;
    static const float ones[] = { 1, 1, 1, 1, 1 };
    tinkc_array weights = { .data = ones, .count = 5, .dtype = TINKC_F32 };
    assert_true(tinkc_batch_set(x->batch, "odd \xff", &weights, &x->err));
    assert_null(tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "the name of a loss input is not UTF-8");
    static const char *const names[] = { "good", "odd \xff", NULL };
    static const double values[] = { 1, 2 };
    tinkc_batch_clear(x->batch);
    tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_null(tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY,
                                       &(tinkc_loss_options){ .names = names, .values = values },
                                       &x->err));
    check_error(x, TINKC_E_ARGUMENT, "a name in loss_fn_config is not UTF-8");
    assert_null(tinkc_forward_backward(x->trainer, x->batch, "odd \xff", NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "loss_fn is not UTF-8");
    assert_null(tinkc_tokenizer_fetch(x->client, "", NULL, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "model is empty");
    assert_null(tinkc_tokenizer_fetch(x->client, NULL, NULL, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "model is empty");
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
}

static void limits_below_zero_are_refused(void **state)
{
    fixture *x = *state;
    tinkc_sampling o = three_tokens();
    tinkc_mock_always(x->mock, NULL, API "asample", &silent, &x->err);
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    assert_true(tinkc_future_limit(f, 1000, &x->err));
    assert_false(tinkc_future_limit(f, -2, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    assert_true(tinkc_future_limit(f, TINKC_FOREVER, &x->err)); /* takes the limit back */
    settle(x);
    tinkc_mock_advance(x->mock, 1000);
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_future_free(f);
}

/* ---- cancelling ---- */

/* A pass behind another one has sent nothing: it did not run. The one before it may have. */
static void a_pass_that_never_left_did_not_run(void **state)
{
    fixture *x = *state;
    tinkc_error err = { 0 };
    tinkc_mock_always(x->mock, NULL, API "forward_backward", &silent, &x->err);
    tinkc_future *both[2];
    for (int i = 0; i < 2; i++)
        both[i] = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    settle(x);
    for (int i = 1; i >= 0; i--) {
        tinkc_future_cancel(both[i]);
        assert_false(tinkc_future_wait(both[i], PATIENCE_MS, &err));
        assert_int_equal(err.code, TINKC_E_CANCELLED);
        assert_int_equal(err.flags & TINKC_MAY_HAVE_RUN, i ? 0 : TINKC_MAY_HAVE_RUN);
        err = (tinkc_error){ 0 };
        tinkc_future_free(both[i]);
    }
}

/* A service that wants to hear of one cancelled sample at a time hears of each. */
static void cancels_one_at_a_time(void **state)
{
    fixture *x = *state;
    tinkc_sampling o = three_tokens();
    tinkc_future *f[3];
    tinkc_mock_always(x->mock, NULL, API "retrieve_future", &silent, &x->err);
    tinkc_mock_always(x->mock, NULL, API "cancel_future",
                      &(tinkc_mock_answer){ .body = "{}", .delay_ms = 1000 }, &x->err);
    for (size_t i = 0; i < 3; i++)
        f[i] = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    settle(x);
    for (size_t i = 0; i < 3; i++)
        tinkc_future_free(f[i]);
    for (size_t i = 1; i <= 3; i++) {
        settle(x);
        assert_int_equal(tinkc_mock_count(x->mock, API "cancel_future"), i);
        tinkc_mock_advance(x->mock, 1000);
    }
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, API "cancel_future"), 3);
}

static atomic_size_t received;

static bool receive(void *user, const void *data, size_t len)
{
    (void)user, (void)data;
    atomic_fetch_add(&received, len);
    return true;
}

/* A download that waits for its next byte ends when it is cancelled, and so does its thread. */
static void a_download_is_cancelled_while_nothing_comes(void **state)
{
    fixture *x = *state;
    tinkc_error err = { 0 };
    tinkc_mock_always(
        x->mock, NULL, "/store/x",
        &(tinkc_mock_answer){ .body = "0123456789", .fault = TINKC_FAULT_DRIP, .drip_ms = 1000 },
        &x->err);
    atomic_store(&received, 0);
    tinkc_future *f = tinkc_url_download(x->client, "https://files.test/store/x",
                                         &(tinkc_download_options){ .write = receive }, &x->err);
    wait_until(tinkc_mock_count(x->mock, "/store/x") == 1);
    settle(x);
    tinkc_mock_advance(x->mock, 1000);
    wait_until(atomic_load(&received) > 0);
    assert_true(atomic_load(&received) > 0);
    tinkc_future_cancel(f);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_true(tinkc_client_close(x->client, PATIENCE_MS, &x->err)); /* it waits for the thread */
    tinkc_future_free(f);
}

/* ---- answers ---- */

static void scores_that_are_not_there(void **state)
{
    fixture *x = *state;
    tinkc_input *input = tinkc_input_new(x->client, &x->err);
    tinkc_input_add_tokens(input, ids, 3, &x->err);
    for (int i = 0; i < 2; i++) {
        tinkc_mock_once(
            x->mock, NULL, API "retrieve_future",
            &(tinkc_mock_answer){ .body = "{\"sequences\":[{\"tokens\":[1],\"logprobs\":[-1],"
                                          "\"stop_reason\":\"length\"}]}" },
            &x->err);
        tinkc_future *f = i ? tinkc_logprobs_input(x->sampler, input, &x->err)
                            : tinkc_logprobs(x->sampler, ids, 3, &x->err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        assert_int_equal(x->err.flags & (TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN),
                         TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN);
        check_error(x, TINKC_E_BAD_RESPONSE, "the answer holds no prompt log-probabilities");
        tinkc_future_free(f);
    }
    tinkc_input_free(input);
}

/* What a stage says of itself is not said any more in the next one. */
static void the_status_ends_with_its_stage(void **state)
{
    fixture *x = *state;
    static const char *const wait[] = { "Retry-After", "3", NULL };
    tinkc_text text = { 0 };
    tinkc_sampling o = three_tokens();
    tinkc_mock_once(x->mock, NULL, API "asample",
                    &(tinkc_mock_answer){ .status = 429, .headers = wait, .body = "{}" }, &x->err);
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    settle(x);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_QUEUED);
    assert_string_equal(tinkc_future_status(f, &text, &x->err), "rate limited, next try in 3.0 s");
    tinkc_mock_always(x->mock, NULL, API "asample", &silent, &x->err);
    tinkc_mock_advance(x->mock, 3250);
    settle(x);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_SENDING);
    assert_string_equal(tinkc_future_status(f, &text, &x->err), "is being sent");
    tinkc_text_free(&text);
    tinkc_future_free(f);
}

/* ---- passes as JSON ---- */

#define PASS API "forward_backward"

static const char *type_of(fixture *x, size_t i)
{
    return request_header(nth_request(x->mock, PASS, i), "Content-Type");
}

/* A service that fails at JSON, too, is broken: it does not get protobuf once more. */
static void json_that_fails_is_final(void **state)
{
    fixture *x = *state;
    static const struct {
        int32_t json; /* its status for JSON */
        size_t requests;
    } rows[] = { { 400, 3 }, { 499, 3 }, { 500, 2 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        const int32_t statuses[] = { 500, rows[i].json, 403 };
        tinkc_client *client = mock_client(x->mock,
                                           &(tinkc_client_options){ .api_key = "tml-key",
                                                                    .max_retries = TINKC_ZERO,
                                                                    .retry_window_ms = TINKC_ZERO },
                                           &x->err);
        tinkc_trainer *t = tinkc_trainer_new(client, &lora, &x->err);
        tinkc_mock_forget(x->mock);
        for (size_t k = 0; k < rows[i].requests; k++)
            tinkc_mock_once(x->mock, NULL, PASS,
                            &(tinkc_mock_answer){ .status = statuses[k], .body = "{}" }, &x->err);
        tinkc_future *f = tinkc_forward_backward(t, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
        assert_true(run_until_done(x->mock, f, 3600 * 1000));
        assert_false(tinkc_future_wait(f, 0, &err));
        assert_int_equal(err.http_status, statuses[rows[i].requests - 1]);
        assert_int_equal(tinkc_mock_count(x->mock, PASS), rows[i].requests);
        for (size_t k = 0; k < rows[i].requests; k++)
            assert_string_equal(type_of(x, k),
                                k == 1 ? "application/json" : "application/x-protobuf");
        assert_ok(&x->err);
        tinkc_future_free(f);
        tinkc_trainer_free(t);
        tinkc_client_free(client);
    }
}

static void count_queue_event(const tinkc_event *e, void *user)
{
    assert_int_equal(e->kind, TINKC_EVENT_QUEUE);
    ++*(int *)user;
}

/* A pause is news when its reason changes within the 159 bytes that are kept of it. */
static void reasons_that_differ_at_their_end(void **state)
{
    fixture *x = *state;
    static const struct {
        size_t at; /* where this reason has another letter than the first */
        int news;
    } rows[] = { { 500, 1 }, { 158, 1 }, { 158, 0 }, { 159, 1 }, { 300, 0 } };
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char reason[320], body[500];
        memset(reason, 'a', sizeof reason - 1);
        reason[sizeof reason - 1] = '\0';
        if (rows[i].at < sizeof reason - 1)
            reason[rows[i].at] = 'b';
        (void)snprintf(body, sizeof body,
                       "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":"
                       "\"paused_capacity\",\"queue_state_reason\":\"%s\"}",
                       reason);
        tinkc_mock_once(x->mock, NULL, API "retrieve_future",
                        &(tinkc_mock_answer){ .body = body, .delay_ms = i ? 0 : LISTEN_MS },
                        &x->err);
    }
    tinkc_sampling o = three_tokens();
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    tinkc_future_on_event(f, queue, TINKC_EVENT_QUEUE, count_queue_event, &n, &x->err);
    settle(x);
    tinkc_mock_advance(x->mock, LISTEN_MS);
    size_t polls = 0;
    for (int64_t next; !tinkc_future_done(f); tinkc_mock_advance(x->mock, next)) {
        next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_true(next != TINKC_FOREVER && !x->err.code);
        n = 0;
        while (tinkc_queue_run(queue, 0, &x->err) > 0)
            ;
        size_t now = tinkc_mock_count(x->mock, API "retrieve_future");
        if (now > polls && now <= sizeof rows / sizeof *rows)
            assert_int_equal(n, rows[now - 1].news);
        polls = now;
    }
    assert_true(tinkc_mock_count(x->mock, API "retrieve_future") > sizeof rows / sizeof *rows);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

/* ---- events ---- */

static void take_event(const tinkc_event *e, void *user)
{
    (void)e;
    ++*(int *)user;
}

/* A queue that is freed takes the client's events with it. */
static void events_end_with_their_queue(void **state)
{
    fixture *x = *state;
    int n = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(
        tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, take_event, &n, &x->err));
    for (int i = 0; i < 2; i++) {
        tinkc_future *f = tinkc_health_check(x->client, &x->err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        tinkc_future_free(f);
        settle(x);
        if (i == 0) {
            while (tinkc_queue_run(queue, 0, &x->err) > 0)
                ;
            assert_true(n > 0);
            tinkc_queue_free(queue);
        }
    }
    assert_ok(&x->err);
}

static void count_ready(tinkc_stream *s, void *user)
{
    (void)s;
    ++*(int *)user;
}

/* Who reads events is called again when more has come, as who reads bytes is. */
static void events_call_the_listener_again(void **state)
{
    fixture *x = *state;
    static const char body[] = "data: 1\n\ndata: 2\n\n";
    int calls = 0, events = 0;
    tinkc_mock_always(
        x->mock, NULL, "/x",
        &(tinkc_mock_answer){ .body = body, .fault = TINKC_FAULT_DRIP, .drip_ms = 100 }, &x->err);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_stream *s = tinkc_stream_open(x->client, &(tinkc_http_options){ .path = "/x" }, &x->err);
    assert_true(tinkc_stream_on_ready(s, queue, count_ready, &calls, &x->err));
    settle(x);
    for (size_t i = 0; i < sizeof body - 1; i++) {
        calls = 0;
        tinkc_mock_advance(x->mock, 100);
        settle(x);
        while (tinkc_queue_run(queue, 0, &x->err) > 0)
            ;
        assert_true(calls > 0);
        tinkc_error none = { 0 };
        if (tinkc_stream_event(s, 0, &none))
            events++;
    }
    assert_int_equal(events, 2);
    tinkc_stream_free(s);
    tinkc_queue_free(queue);
}

static void count_retry(const tinkc_event *e, void *user)
{
    assert_int_equal(e->kind, TINKC_EVENT_RETRY);
    assert_string_equal(e->operation, "trainer_open_from");
    assert_int_equal(e->wait_ms, 2000);
    ++*(int *)user;
}

/* Somebody else's key is exchanged for a token first: what that meets shows at the future. */
static void the_exchange_of_a_key_is_seen(void **state)
{
    fixture *x = *state;
    static const char *const wait[] = { "Retry-After", "2", NULL };
    int n = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_mock_once(
        x->mock, NULL, API "auth/token",
        &(tinkc_mock_answer){ .status = 503, .headers = wait, .body = "{}", .delay_ms = LISTEN_MS },
        &x->err);
    tinkc_future *f = tinkc_trainer_open_from(
        x->client,
        &(tinkc_state_options){ .path = "tinker://r/weights/a", .access_token = "tml-theirs" },
        &x->err);
    tinkc_future_on_event(f, queue, TINKC_EVENT_RETRY, count_retry, &n, &x->err);
    settle(x);
    tinkc_mock_advance(x->mock, LISTEN_MS);
    settle(x);
    while (tinkc_queue_run(queue, 0, &x->err) > 0)
        ;
    assert_int_equal(n, 1);
    assert_string_equal(request_header(nth_request(x->mock, API "auth/token", 0), "X-API-Key"),
                        "tml-theirs");
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 1);
    tinkc_mock_advance(x->mock, 2000);
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 2);
    assert_int_equal(tinkc_mock_count(x->mock, API "weights_info"), 1);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

/* ---- what the service gets to know ---- */

static void the_machine_has_its_usual_name(void **state)
{
    fixture *x = *state;
    struct utsname machine;
    assert_int_equal(uname(&machine), 0);
    const char *want = strcmp(machine.machine, "x86_64") == 0    ? "x64"
                       : strcmp(machine.machine, "aarch64") == 0 ? "arm64"
                                                                 : machine.machine;
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    assert_string_equal(request_header(tinkc_mock_request(x->mock, 0), "X-Stainless-Arch"), want);
}

/* As Python writes them. */
static void sessions_of_days(void **state)
{
    (void)state;
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = { { 86399000, "\"duration\":\"23:59:59\"" },
                 { 86400000, "\"duration\":\"1 day, 0:00:00\"" },
                 { 172800000 + 3 * 3600000 + 4 * 60000 + 5006,
                   "\"duration\":\"2 days, 3:04:05.006000\"" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client *client =
            mock_client(mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON }, &err);
        assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        tinkc_mock_advance(mock, rows[i].ms); /* in one step: no timer in between */
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        (void)tinkc_client_close(client, PATIENCE_MS, &err);
        size_t n = tinkc_mock_count(mock, API "telemetry");
        const tinkc_request *last = n ? nth_request(mock, API "telemetry", n - 1) : NULL;
        assert_non_null(last);
        assert_non_null(
            memmem(last->body.data, last->body.len, rows[i].text, strlen(rows[i].text)));
        assert_ok(&err);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}

/* A copy made by a newer library may hold members that this one does not know. */
static void copies_with_unknown_members(void **state)
{
    fixture *x = *state;
    tinkc_text text = { 0 };
    char newer[4096];
    tinkc_client_options options = { .transport = tinkc_mock_transport(x->mock),
                                     .clock = tinkc_mock_clock(x->mock) };
    const char *exported = tinkc_sampler_export(x->sampler, &text, &x->err);
    assert_ok(&x->err);
    assert_int_equal(exported[0], '{');
    (void)snprintf(newer, sizeof newer, "{\"later\":{\"a\":[1,\"}\"]},%s", exported + 1);
    tinkc_sampler *copy = tinkc_sampler_import(newer, &options, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_sampler_id(copy), tinkc_sampler_id(x->sampler));
    tinkc_sampler_free(copy);
    tinkc_text_free(&text);
}

#define WITH(test, how) cmocka_unit_test_setup_teardown(test, how, end_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(names_of_one_letter, setup),
        WITH(examples_without_targets, setup),
        WITH(the_last_id_is_checked, setup),
        WITH(each_gradient_is_checked, setup),
        WITH(the_loss_itself_is_checked, setup),
        WITH(what_cannot_be_sent_is_refused_at_once, setup),
        WITH(limits_below_zero_are_refused, setup),
        WITH(a_pass_that_never_left_did_not_run, setup),
        WITH(cancels_one_at_a_time, setup_cancels),
        WITH(a_download_is_cancelled_while_nothing_comes, setup),
        WITH(scores_that_are_not_there, setup),
        WITH(the_status_ends_with_its_stage, setup),
        WITH(json_that_fails_is_final, setup),
        WITH(reasons_that_differ_at_their_end, setup),
        WITH(events_end_with_their_queue, setup),
        WITH(events_call_the_listener_again, setup),
        WITH(the_exchange_of_a_key_is_seen, setup_tokens),
        WITH(the_machine_has_its_usual_name, setup),
        cmocka_unit_test(sessions_of_days),
        WITH(copies_with_unknown_members, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
