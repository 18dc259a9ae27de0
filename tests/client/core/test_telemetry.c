/* test_telemetry.c - what is reported to the service, when, and what never is. */
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/client/api_support.h"

#define TELEMETRY "/api/v1/telemetry"
#define SECRET    "tml-AbCdEfGhIjKlMnOpQrStUvWx"

typedef struct world {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
} world;

static void open_world(world *w, int32_t telemetry)
{
    *w = (world){ 0 };
    w->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w->err);
    tinkc_mock_always(w->mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .body = "{\"status\":\"accepted\"}" }, &w->err);
    w->client = mock_client(w->mock, &(tinkc_client_options){ .api_key = SECRET, .telemetry = telemetry }, &w->err);
    assert_ok(&w->err);
}

static void close_world(world *w)
{
    tinkc_client_free(w->client);
    tinkc_mock_free(w->mock);
}

static const char *body(world *w, size_t i)
{
    const tinkc_request *q = nth_request(w->mock, TELEMETRY, i);
    return q ? (const char *)q->body.data : "";
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static size_t sent(world *w)
{
    return tinkc_mock_count(w->mock, TELEMETRY);
}

static void pass_ms(world *w, int64_t ms)
{
    tinkc_mock_settle(w->mock, PATIENCE_MS, &w->err);
    tinkc_mock_advance(w->mock, ms);
    tinkc_mock_settle(w->mock, PATIENCE_MS, &w->err);
    assert_ok(&w->err);
}

TEST(off_is_off)
{
    static const int32_t ways[] = { TINKC_TELEMETRY_OFF, TINKC_TELEMETRY_DEFAULT };
    unsetenv("TINKER_TELEMETRY");
    for (size_t i = 0; i < 2; i++) { /* a transport of one's own: off unless asked for */
        world w;
        open_world(&w, ways[i]);
        assert_non_null(tinkc_client_session_id(w.client, PATIENCE_MS, &w.err));
        assert_false(tinkc_client_report(w.client, "x", NULL, TINKC_LOG_INFO, &w.err));
        assert_ok(&w.err);
        pass_ms(&w, 11000);
        assert_true(tinkc_client_close(w.client, PATIENCE_MS, &w.err));
        assert_int_equal(sent(&w), 0);
        close_world(&w);
    }
}

TEST(a_session_begins_and_ends)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    assert_non_null(tinkc_client_session_id(w.client, PATIENCE_MS, &w.err));
    pass_ms(&w, 9000);
    assert_int_equal(sent(&w), 0);
    pass_ms(&w, 1000);
    assert_int_equal(sent(&w), 1);
    assert_non_null(strstr(body(&w, 0), "\"event\":\"SESSION_START\""));
    assert_non_null(strstr(body(&w, 0), "\"event_session_index\":0"));
    assert_non_null(strstr(body(&w, 0), "\"severity\":\"INFO\""));
    assert_non_null(strstr(body(&w, 0), "\"session_id\":\"mock-session-1\""));
    assert_non_null(strstr(body(&w, 0), "\"sdk_version\":\"0.25.0\""));
    assert_non_null(strstr(body(&w, 0), "\"platform\":\"Linux\""));
    assert_non_null(strstr(body(&w, 0), "\"process_uuid\":\""));
    pass_ms(&w, 30000); /* nothing more to say */
    assert_int_equal(sent(&w), 1);
    assert_true(tinkc_client_close(w.client, PATIENCE_MS, &w.err));
    assert_int_equal(sent(&w), 2);
    assert_non_null(strstr(body(&w, 1), "\"event\":\"SESSION_END\""));
    assert_non_null(strstr(body(&w, 1), "\"duration\":\"0:00:4"));
    tinkc_client_close(w.client, PATIENCE_MS, &w.err); /* once */
    assert_int_equal(sent(&w), 2);
    close_world(&w);
}

TEST(without_a_session_there_is_no_start_and_no_end)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    assert_true(tinkc_client_report(w.client, "hello", "{\"a\":null}", TINKC_LOG_WARN, &w.err));
    assert_true(tinkc_client_close(w.client, PATIENCE_MS, &w.err));
    assert_int_equal(sent(&w), 1);
    assert_non_null(strstr(body(&w, 0), "\"session_id\":\"sessionless-"));
    assert_non_null(strstr(body(&w, 0), "\"event_name\":\"hello\""));
    assert_non_null(strstr(body(&w, 0), "\"event_data\":{\"a\":null}"));
    assert_non_null(strstr(body(&w, 0), "\"severity\":\"WARNING\""));
    assert_null(strstr(body(&w, 0), "SESSION_"));
    close_world(&w);
}

TEST(batches_hold_a_hundred)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    for (int i = 0; i < 250; i++)
        assert_true(tinkc_client_report(w.client, "tick", NULL, TINKC_LOG_DEBUG, &w.err));
    pass_ms(&w, 10000);
    assert_int_equal(sent(&w), 3);
    assert_int_equal(count(body(&w, 0), "\"tick\""), 100);
    assert_int_equal(count(body(&w, 1), "\"tick\""), 100);
    assert_int_equal(count(body(&w, 2), "\"tick\""), 50);
    assert_non_null(strstr(body(&w, 2), "\"event_session_index\":249"));
    close_world(&w);
}

static void count_room(int32_t level, const char *line, void *user)
{
    if (level == TINKC_LOG_WARN && strstr(line, "no room"))
        ++*(int *)user;
}

TEST(the_queue_has_an_end)
{
    world w = { 0 };
    int kept = 0, said = 0;
    w.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w.err);
    w.client = mock_client(
        w.mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON, .log = count_room, .log_user = &said },
        &w.err);
    tinkc_mock_always(w.mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &w.err);
    for (int i = 0; i < 12000; i++)
        kept += tinkc_client_report(w.client, "tick", NULL, TINKC_LOG_DEBUG, &w.err);
    assert_ok(&w.err); /* dropping is not an error */
    assert_int_equal(kept, 10000);
    assert_int_equal(said, 1); /* and not two thousand times */
    close_world(&w);
}

TEST(a_broken_endpoint_costs_three_attempts)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_mock_always(w.mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .status = 500 }, &w.err);
    assert_true(tinkc_client_report(w.client, "first", NULL, TINKC_LOG_INFO, &w.err));
    pass_ms(&w, 10000);
    pass_ms(&w, 1000);
    pass_ms(&w, 1000);
    assert_int_equal(sent(&w), 3);
    assert_string_equal(body(&w, 0), body(&w, 2)); /* the same batch each time */
    pass_ms(&w, 60000);
    assert_int_equal(sent(&w), 3); /* given up */
    tinkc_mock_always(w.mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .body = "{}" }, &w.err);
    assert_true(tinkc_client_report(w.client, "second", NULL, TINKC_LOG_INFO, &w.err));
    pass_ms(&w, 10000);
    assert_int_equal(sent(&w), 4);
    assert_null(strstr(body(&w, 3), "first"));
    close_world(&w);
}

/* A batch that failed keeps its time: an error that comes meanwhile does not send it earlier. */
TEST(a_batch_waits_for_its_attempt)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_mock_once(w.mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .status = 500 }, &w.err);
    assert_true(tinkc_client_report(w.client, "first", NULL, TINKC_LOG_INFO, &w.err));
    pass_ms(&w, 10000);
    assert_int_equal(sent(&w), 1);
    assert_true(tinkc_client_report(w.client, "second", NULL, TINKC_LOG_ERROR, &w.err));
    tinkc_mock_once(w.mock, NULL, "/api/v1/training_runs/x*", &(tinkc_mock_answer){ .status = 404, .body = "{}" },
                    &w.err);
    tinkc_future *f = tinkc_run_get(w.client, "x", TINKC_OWNED, &w.err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, NULL));
    tinkc_future_free(f);
    pass_ms(&w, 999);
    assert_int_equal(sent(&w), 1);
    pass_ms(&w, 1);
    assert_int_equal(sent(&w), 3); /* the first batch, then what came meanwhile */
    assert_string_equal(body(&w, 0), body(&w, 1));
    assert_non_null(strstr(body(&w, 2), "second"));
    close_world(&w);
}

/* Events that were sent make room for others. */
TEST(the_queue_empties)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    for (size_t i = 1; i <= 2; i++) {
        for (int k = 0; k < 6000; k++)
            assert_true(tinkc_client_report(w.client, "tick", NULL, TINKC_LOG_DEBUG, &w.err));
        pass_ms(&w, 10000);
        assert_int_equal(sent(&w), 60 * i);
    }
    close_world(&w);
}

TEST(errors_are_told_at_once)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_mock_always(w.mock, NULL, "/api/v1/training_runs/x*",
                      &(tinkc_mock_answer){ .status = 404, .body = "{\"detail\":\"gone\"}" }, &w.err);
    tinkc_mock_always(w.mock, NULL, "/api/v1/training_runs/y*", &(tinkc_mock_answer){ .body = "[" }, &w.err);
    tinkc_future *f = tinkc_run_get(w.client, "x", TINKC_OWNED, &w.err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, NULL));
    tinkc_future_free(f);
    pass_ms(&w, 0);
    assert_int_equal(sent(&w), 1);
    assert_non_null(strstr(body(&w, 0), "\"event_name\":\"user_error\""));
    assert_non_null(strstr(body(&w, 0), "\"error_type\":\"TINKC_E_NOT_FOUND\""));
    assert_non_null(strstr(body(&w, 0), "\"status_code\":404"));
    assert_non_null(strstr(body(&w, 0), "\"operation\":\"run_get\""));
    assert_non_null(strstr(body(&w, 0), "\"body\":\"{\\\"detail\\\":\\\"gone\\\"}\""));
    assert_non_null(strstr(body(&w, 0), "\"severity\":\"WARNING\""));
    f = tinkc_run_get(w.client, "y", TINKC_OWNED, &w.err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, NULL));
    tinkc_future_free(f);
    pass_ms(&w, 0);
    assert_int_equal(sent(&w), 2);
    assert_non_null(strstr(body(&w, 1), "\"event\":\"UNHANDLED_EXCEPTION\""));
    assert_non_null(strstr(body(&w, 1), "\"error_type\":\"TINKC_E_BAD_RESPONSE\""));
    /* What the caller ends himself is nobody's business. */
    tinkc_mock_always(w.mock, NULL, "/api/v1/training_runs/z*", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &w.err);
    f = tinkc_run_get(w.client, "z", TINKC_OWNED, &w.err);
    tinkc_future_cancel(f);
    tinkc_future_wait(f, PATIENCE_MS, NULL);
    tinkc_future_free(f);
    pass_ms(&w, 20000);
    assert_int_equal(sent(&w), 2);
    close_world(&w);
}

/* Both on this thread; each says only what happened to itself, under its own session. */
TEST(c49_two_clients_tell_their_own_story)
{
    world w[2];
    static const char *const sessions[] = { "session-of-one", "session-of-two" };
    static const char *const names[] = { "said-by-one", "said-by-two" };
    for (size_t i = 0; i < 2; i++) {
        char answer[100];
        snprintf(answer, sizeof answer, "{\"session_id\":\"%s\",\"type\":\"create_session\"}", sessions[i]);
        open_world(&w[i], TINKC_TELEMETRY_ON);
        tinkc_mock_always(w[i].mock, NULL, "/api/v1/create_session", &(tinkc_mock_answer){ .body = answer }, &w[i].err);
    }
    for (size_t i = 0; i < 2; i++) {
        const char *id = tinkc_client_session_id(w[i].client, PATIENCE_MS, &w[i].err);
        assert_ok(&w[i].err);
        assert_string_equal(id, sessions[i]);
    }
    for (size_t i = 0; i < 2; i++)
        assert_true(tinkc_client_report(w[i].client, names[i], NULL, TINKC_LOG_INFO, &w[i].err));
    for (size_t i = 0; i < 2; i++) {
        assert_true(tinkc_client_close(w[i].client, PATIENCE_MS, &w[i].err));
        assert_int_equal(sent(&w[i]), 1);
        assert_non_null(strstr(body(&w[i], 0), sessions[i]));
        assert_null(strstr(body(&w[i], 0), sessions[1 - i]));
        assert_int_equal(count(body(&w[i], 0), names[i]), 1);
        assert_null(strstr(body(&w[i], 0), names[1 - i]));
        assert_int_equal(count(body(&w[i], 0), "\"event_session_index\":0,"), 1); /* its own */
        close_world(&w[i]);
    }
}

TEST(secrets_never_leave)
{
    static const char *const leaks[] = {
        "{\"detail\":\"bad key " SECRET " given\"}",
        "{\"detail\":\"Bearer abcdefghijklmnop\"}",
        "{\"detail\":\"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl\"}",
        "{\"detail\":\"see https://x/y?signature=deadbeefcafe&token=opensesame1\"}",
    };
    static const char *const words[] = { "AbCdEfGhIj", "abcdefghijklmnop", "c2lnbmF0dXJl", "opensesame1" };
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    for (size_t i = 0; i < 4; i++) {
        tinkc_mock_once(w.mock, NULL, "/api/v1/training_runs/x*",
                        &(tinkc_mock_answer){ .status = i % 2 ? 422 : 403, .body = leaks[i] }, &w.err);
        tinkc_future *f = tinkc_run_get(w.client, "x", TINKC_OWNED, &w.err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, NULL));
        tinkc_future_free(f);
    }
    tinkc_client_report(w.client, "mine", "{\"note\":\"" SECRET "\"}", TINKC_LOG_INFO, &w.err);
    assert_true(tinkc_client_close(w.client, PATIENCE_MS, &w.err));
    assert_true(sent(&w) > 0);
    for (size_t i = 0; i < sent(&w); i++)
        for (size_t k = 0; k < 4; k++)
            if (strstr(body(&w, i), words[k]))
                fail_msg("%s in %s", words[k], body(&w, i));
    close_world(&w);
}

TEST(a_silent_endpoint_does_not_hold_the_close)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_mock_always(w.mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &w.err);
    assert_non_null(tinkc_client_session_id(w.client, PATIENCE_MS, &w.err));
    tinkc_client_close(w.client, 50, &w.err);
    assert_ok(&w.err);
    close_world(&w);
    open_world(&w, TINKC_TELEMETRY_ON); /* and freeing without closing says nothing */
    tinkc_client_report(w.client, "x", NULL, TINKC_LOG_INFO, &w.err);
    tinkc_client_free(w.client);
    w.client = NULL;
    assert_int_equal(sent(&w), 0);
    close_world(&w);
}

TEST(wrong_reports_are_refused)
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    static const struct {
        const char *name, *data;
        int32_t severity;
    } rows[] = { { NULL, NULL, 0 },   { "", NULL, 0 },  { "x", "[]", 0 },      { "x", "{", 0 },
                 { "x", "{} {}", 0 }, { "x", NULL, 9 }, { "x", "{\"a\":}", 0 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_false(tinkc_client_report(w.client, rows[i].name, rows[i].data, rows[i].severity, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
    close_world(&w);
}

/* The first event of this name in what was sent; NULL = none. */
static const char *find_event(world *w, const char *name, size_t nth)
{
    for (size_t k = 0; k < sent(w); k++)
        for (const char *at = body(w, k); (at = strstr(at, name)); at++)
            if (nth-- == 0)
                return at;
    return NULL;
}

/* Each failed round of a call is reported, with its number and whether another follows. */
TEST(failed_calls_carry_their_fields)
{
    static const char event[] = "InternalClientHolder.execute_with_retries.exception";
    static const char *const fields[][2] = {
        { "\"is_retryable\":true,\"is_user_error\":false,\"attempt_count\":1,", "\"elapsed_time\":0.0}" },
        { "\"is_retryable\":true,\"is_user_error\":true,\"attempt_count\":2,", "\"elapsed_time\":1.0}" },
        { "\"is_retryable\":false,\"is_user_error\":true,\"attempt_count\":3,", "\"elapsed_time\":3.0}" },
    };
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_trainer *t = tinkc_trainer_new(w.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w.err);
    static const int32_t statuses[] = { 500, 429, 422 };
    for (size_t i = 0; i < 3; i++)
        tinkc_mock_once(w.mock, NULL, "/api/v1/save_weights", &(tinkc_mock_answer){ .status = statuses[i] }, &w.err);
    tinkc_future *f = tinkc_trainer_save(t, "a", NULL, &w.err);
    assert_true(run_until_done(w.mock, f, 60000));
    pass_ms(&w, 20000);
    for (size_t i = 0; i < 3; i++) {
        const char *at = find_event(&w, event, i);
        assert_non_null(at);
        const char *end = strstr(at, "\"elapsed_time\""), *status = strstr(at, "\"status_code\":");
        assert_true(end && status && status < end);
        assert_int_equal(atoi(status + strlen("\"status_code\":")), statuses[i]);
        const char *found = strstr(at, fields[i][0]);
        if (!found || found > end || strncmp(end, fields[i][1], strlen(fields[i][1])) != 0)
            fail_msg("event %zu: %.400s", i, at);
        assert_non_null(strstr(at, "\"func\":\"/api/v1/save_weights\""));
    }
    assert_null(find_event(&w, event, 3));
    tinkc_future_free(f);
    tinkc_trainer_free(t);
    close_world(&w);
}

/* A pause for billing is known at the service: polls in it are not reported. */
TEST(pauses_for_billing_are_not_told)
{
    world w;
    tinkc_adam adam = TINKC_ADAM_INIT;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_trainer *t = tinkc_trainer_new(w.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w.err);
    tinkc_mock_once(w.mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .status = 402 }, &w.err);
    tinkc_future *f = tinkc_optim_step(t, &adam, &w.err);
    assert_true(run_until_done(w.mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &w.err));
    pass_ms(&w, 20000);
    assert_null(find_event(&w, "APIFuture.result_async", 0));
    tinkc_future_free(f);
    tinkc_trainer_free(t);
    close_world(&w);
}

static void process_of(char out[64])
{
    world w;
    open_world(&w, TINKC_TELEMETRY_ON);
    tinkc_mock_seed(w.mock, (uint64_t)getpid()); /* two processes do not draw the same numbers */
    tinkc_client_report(w.client, "x", NULL, TINKC_LOG_INFO, &w.err);
    pass_ms(&w, 10000);
    const char *at = strstr(body(&w, 0), "\"process_uuid\":\"");
    assert_non_null(at);
    (void)snprintf(out, 64, "%.36s", at + strlen("\"process_uuid\":\""));
    close_world(&w);
}

/* All clients of a process have its identity; a forked child has one of its own. */
TEST(a_forked_child_is_another_process)
{
    char first[64], second[64], child[64] = "";
    int ends[2];
    process_of(first);
    process_of(second);
    assert_int_equal(strlen(first), 36);
    assert_string_equal(first, second);
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        process_of(child);
        _exit(write(ends[1], child, sizeof child) == sizeof child ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], child, sizeof child), sizeof child);
    close(ends[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(strlen(child), 36);
    assert_string_not_equal(first, child);
}

static atomic_int warnings, lost;

static void count_warnings(int32_t level, const char *line, void *user)
{
    (void)user;
    if (level == TINKC_LOG_WARN && strstr(line, "telemetry could not be sent")) {
        atomic_fetch_add(&warnings, 1);
        atomic_store(&lost, atoi(strchr(line, ';') + 1));
    }
}

/* What is lost is said, once a minute at most. Attempts are a second apart. */
TEST(lost_batches_are_logged)
{
    world w = { 0 };
    w.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w.err);
    tinkc_mock_always(w.mock, "POST", TELEMETRY, &(tinkc_mock_answer){ .status = 500 }, &w.err);
    w.client =
        mock_client(w.mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON, .log = count_warnings }, &w.err);
    atomic_store(&warnings, 0);
    /* The fifth is lost 59.999 s after the first, the tenth 60 s after the sixth. */
    static const int said[] = { 1, 1, 1, 1, 1, 2, 2, 2, 2, 3 }, dropped[] = { 1, 1, 1, 1, 1, 7, 7, 7, 7, 11 };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        for (size_t n = i == 5 ? 2 : 1; n; n--) /* the sixth batch has two events */
            tinkc_client_report(w.client, "x", NULL, TINKC_LOG_INFO, &w.err);
        pass_ms(&w, 10000);
        for (size_t k = 0; k < 2; k++) {
            assert_int_equal(tinkc_mock_settle(w.mock, PATIENCE_MS, &w.err), 1000); /* the next attempt */
            pass_ms(&w, 1000);
        }
        pass_ms(&w, i == 3 ? 2999 : 3000);
        assert_int_equal(sent(&w), 3 * (i + 1));
        assert_int_equal(atomic_load(&warnings), said[i]);
        assert_int_equal(atomic_load(&lost), dropped[i]);
    }
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(nth_request_ms(w.mock, TELEMETRY, i + 1) - nth_request_ms(w.mock, TELEMETRY, i), 1000);
    close_world(&w);
}

/* A poll that fails is reported with the fields that the Python SDK sends. */
TEST(failed_polls_carry_their_fields)
{
    static const struct {
        int32_t status, fault;
        const char *event, *fields[4];
    } cases[] = {
        { 429,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":429,", "\"kind\":\"retry_with_backoff\",\"should_retry\":true,", "\"is_user_error\":true,",
            "\"connection_error_retries\":0" } },
        { 500,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":500,", "\"kind\":\"retry\",\"should_retry\":true,", "\"is_user_error\":false,",
            "\"elapsed_time\":0.25," } },
        { 404,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":404,", "\"kind\":\"fatal\",\"should_retry\":false,", "\"request_type\":\"OptimStep\",",
            "\"iteration\":0," } },
        { 400,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":400,", "\"kind\":\"retry_if_budget\",\"should_retry\":true,", "\"is_user_error\":true,",
            "\"severity\":\"ERROR\"" } },
        { 408,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":408,", "\"kind\":\"retry\",\"should_retry\":true,", "\"is_user_error\":false,",
            "\"severity\":\"WARNING\"" } },
        { 410,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":410,", "\"kind\":\"retryable_exception\",\"should_retry\":true,",
            "\"is_user_error\":true,", "\"bad_request_retries\":0," } },
        { 499,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":499,", "\"kind\":\"fatal\",\"should_retry\":false,", "\"is_user_error\":true,",
            "\"severity\":\"ERROR\"" } },
        { 599,
          0,
          "APIFuture.result_async.api_status_error",
          { "\"status_code\":599,", "\"kind\":\"retry\",\"should_retry\":true,", "\"is_user_error\":false,",
            "\"severity\":\"WARNING\"" } },
        { 0,
          TINKC_FAULT_REFUSED,
          "APIFuture.result_async.connection_error",
          { "\"status_code\":0,", "\"kind\":\"retry_with_backoff\",", "\"detail\":\"connection refused",
            "\"bad_request_retries\":0," } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        open_world(&w, TINKC_TELEMETRY_ON);
        tinkc_adam adam = TINKC_ADAM_INIT;
        tinkc_trainer *t = tinkc_trainer_new(w.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w.err);
        tinkc_mock_once(w.mock, NULL, "/api/v1/retrieve_future",
                        &(tinkc_mock_answer){ .status = cases[i].status, .fault = cases[i].fault, .delay_ms = 250 },
                        &w.err);
        tinkc_future *f = tinkc_optim_step(t, &adam, &w.err);
        assert_true(run_until_done(w.mock, f, 60000));
        pass_ms(&w, 20000);
        bool found = false;
        for (size_t k = 0; k < sent(&w); k++) {
            const char *at = strstr(body(&w, k), cases[i].event);
            found |= at != NULL;
            for (size_t n = 0; at && n < 4; n++)
                if (!strstr(body(&w, k), cases[i].fields[n]))
                    fail_msg("no %s in %s", cases[i].fields[n], body(&w, k));
        }
        assert_true(found);
        tinkc_future_free(f);
        tinkc_trainer_free(t);
        close_world(&w);
    }
}

/* What the second poll in trouble says of the first, and who it was. */
TEST(failed_polls_count_those_before)
{
    static const struct {
        int32_t status, fault;
        const char *fields[4];
    } cases[] = {
        { 400,
          0,
          { "\"iteration\":1,", "\"bad_request_retries\":1,\"connection_error_retries\":0",
            "\"request_id\":\"mock-session-1:train:0:1\"", "\"exception_type\":\"TINKC_E_BAD_REQUEST\"" } },
        { 0,
          TINKC_FAULT_REFUSED,
          { "\"iteration\":1,", "\"bad_request_retries\":0,\"connection_error_retries\":1",
            "\"request_id\":\"mock-session-1:train:0:1\"", "\"exception_type\":\"TINKC_E_CONNECTION\"" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        tinkc_adam adam = TINKC_ADAM_INIT;
        open_world(&w, TINKC_TELEMETRY_ON);
        tinkc_trainer *t = tinkc_trainer_new(w.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w.err);
        for (int k = 0; k < 2; k++)
            tinkc_mock_once(
                w.mock, NULL, "/api/v1/retrieve_future",
                &(tinkc_mock_answer){ .status = cases[i].status, .fault = cases[i].fault, .body = "<html>" }, &w.err);
        tinkc_future *f = tinkc_optim_step(t, &adam, &w.err);
        assert_true(run_until_done(w.mock, f, 60000));
        assert_true(tinkc_future_wait(f, 0, &w.err));
        pass_ms(&w, 20000);
        for (size_t n = 0; n < 4; n++) {
            size_t found = 0;
            for (size_t k = 0; k < sent(&w); k++)
                found += count(body(&w, k), cases[i].fields[n]);
            if (found != (n < 2 ? 1 : 2))
                fail_msg("%zu times %s", found, cases[i].fields[n]);
        }
        tinkc_future_free(f);
        tinkc_trainer_free(t);
        close_world(&w);
    }
}

/* The caller's mistakes are warnings and counted as theirs; what may come right later is a warning; the rest is an error. */
TEST(failures_have_a_severity)
{
    static const struct {
        int32_t status, fault;
        const char *severity, *fields;
    } rows[] = {
        { 500, 0, "WARNING", "TINKC_E_SERVER\",\"status_code\":500,\"is_retryable\":true,\"is_user_error\":false" },
        { 403, 0, "WARNING", "TINKC_E_FORBIDDEN\",\"status_code\":403,\"is_retryable\":false,\"is_user_error\":true" },
        { 429, 0, "WARNING",
          "TINKC_E_RATE_LIMITED\",\"status_code\":429,\"is_retryable\":true,\"is_user_error\":"
          "true" },
        { 408, 0, "WARNING",
          "TINKC_E_REQUEST_TIMEOUT\",\"status_code\":408,\"is_retryable\":true,\"is_user_error\":"
          "false" },
        { 0, TINKC_FAULT_REFUSED, "WARNING", "TINKC_E_CONNECTION\",\"is_retryable\":true,\"is_user_error\":false" },
        { 302, 0, "ERROR", "TINKC_E_HTTP\",\"status_code\":302,\"is_retryable\":false,\"is_user_error\":false" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world w;
        open_world(&w, TINKC_TELEMETRY_ON);
        tinkc_trainer *trainer =
            tinkc_trainer_new(w.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &w.err);
        tinkc_mock_once(w.mock, NULL, "/api/v1/save_weights",
                        &(tinkc_mock_answer){ .status = rows[i].status, .fault = rows[i].fault }, &w.err);
        tinkc_future *f = tinkc_trainer_save(trainer, "a", NULL, &w.err);
        assert_true(run_until_done(w.mock, f, 60000));
        pass_ms(&w, 20000);
        const char *at = find_event(&w, "InternalClientHolder.execute_with_retries.exception", 0);
        const char *before = at;
        while (before && strncmp(before, "\"severity\":\"", 12) != 0)
            before--;
        if (!at || !strstr(at, rows[i].fields) || strncmp(before + 12, rows[i].severity, strlen(rows[i].severity)) != 0)
            fail_msg("row %zu: %.500s", i, at ? at : "nothing");
        tinkc_future_free(f);
        tinkc_trainer_free(trainer);
        close_world(&w);
    }
}
