/* test_partial_results.c - what is there before the rest is: parts of a pass, tokens of a stream, samples beside
 * each other, bytes of a pass that ends before it was sent.
 *
 * The mock's clock stands still, so what is not there yet does not come by itself; a reader that sleeps
 * is a thread of its own.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "support/client/mock_fixture.h"

#define PASS   "/api/v1/forward_backward"
#define SAMPLE "/api/v1/asample"
#define STREAM "/api/v1/stream_sample"

static void open_scene(fixture *x, const char *config, size_t examples)
{
    open_client(x, config ? API "client/config" : NULL, config, NULL);
    open_work(x, examples);
}

static bool says(const tinkc_request *r, const char *text)
{
    return memmem(r->body.data, r->body.len, text, strlen(text)) != NULL;
}

static tinkc_future *pass(fixture *x)
{
    return tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
}

/* ---- parts of a pass ---- */

/* The chunk with number 2 never gets its result. */
static bool second_is_silent(const tinkc_request *r, tinkc_mock_answer *answer, void *user)
{
    (void)user;
    if (strcmp(r->path, POLL) != 0 || !says(r, ":train:0:2\""))
        return false;
    answer->fault = TINKC_FAULT_SILENT;
    return true;
}

static void note_part(const tinkc_event *event, void *user)
{
    *(size_t *)user |= (size_t)1 << event->part;
}

TEST(parts_are_there_before_the_pass_ends)
{
    fixture x;
    size_t seen = 0;
    int64_t done, total;
    open_scene(&x, "{\"fwdbwd_max_chunk_len\":1}", 3);
    tinkc_queue *queue = tinkc_queue_new(x.client, &x.err);
    tinkc_client_on_event(x.client, queue, TINKC_EVENT_PART, note_part, &seen, &x.err);
    tinkc_mock_compute(x.mock, second_is_silent, NULL, &x.err);
    tinkc_future *f = pass(&x);
    settle(&x);
    while (tinkc_queue_run(queue, 0, &x.err))
        ;
    assert_int_equal(seen, 1 | 4);
    assert_false(tinkc_future_done(f));
    tinkc_future_progress(f, &done, &total);
    assert_true(done == 2 && total == 3);
    for (size_t i = 0; i < 3; i += 2) {
        const tinkc_fwdbwd *part = tinkc_future_part(f, i, 0, &x.err);
        assert_ok(&x.err);
        assert_int_equal(tinkc_fwdbwd_first(part), i);
    }
    assert_null(tinkc_future_part(f, 1, 0, &x.err));
    assert_int_equal(x.err.code, TINKC_E_TIMEOUT);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
    close_all(&x);
}

/* ---- readers that sleep ---- */

typedef struct reader {
    pthread_t thread;
    tinkc_future *pass;
    tinkc_deltas *deltas;
    size_t got; /* which part, or how many tokens */
    tinkc_error err;
    atomic_bool back;
} reader;

static void *read_part(void *arg)
{
    reader *r = arg;
    const tinkc_fwdbwd *part = tinkc_future_part(r->pass, 2, TINKC_FOREVER, &r->err);
    r->got = part ? tinkc_fwdbwd_first(part) : 0;
    atomic_store(&r->back, true);
    return NULL;
}

static void *read_tokens(void *arg)
{
    reader *r = arg;
    const tinkc_delta *delta = tinkc_deltas_next(r->deltas, TINKC_FOREVER, &r->err);
    r->got = delta ? delta->tokens.len : 0;
    atomic_store(&r->back, true);
    return NULL;
}

static void await_reader(reader *r)
{
    wait_until(atomic_load(&r->back));
    assert_true(atomic_load(&r->back));
    pthread_join(r->thread, NULL);
    assert_ok(&r->err);
}

static bool third_is_there(const tinkc_request *r, tinkc_mock_answer *answer, void *user)
{
    (void)user;
    if (strcmp(r->path, POLL) != 0)
        return false;
    if (says(r, "third"))
        answer->body = "{\"loss_fn_output_type\":\"x\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":"
                       "[1,2,3,4,5],\"dtype\":\"float32\",\"shape\":[5]}}],\"metrics\":{}}";
    else
        answer->fault = TINKC_FAULT_SILENT;
    return true;
}

/* Chunks 2 and 3 are accepted in a second; the first is not sent before. */
TEST(a_part_wakes_those_who_wait_for_it)
{
    fixture x;
    open_scene(&x, "{\"fwdbwd_max_chunk_len\":1}", 3);
    tinkc_mock_always(x.mock, NULL, PASS, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x.err);
    tinkc_mock_once(x.mock, NULL, PASS, &(tinkc_mock_answer){ .delay_ms = 1000, .body = "{\"request_id\":\"second\"}" },
                    &x.err);
    tinkc_mock_once(x.mock, NULL, PASS, &(tinkc_mock_answer){ .delay_ms = 1000, .body = "{\"request_id\":\"third\"}" },
                    &x.err);
    tinkc_mock_compute(x.mock, third_is_there, NULL, &x.err);
    reader r = { .pass = pass(&x) };
    settle(&x);
    assert_int_equal(pthread_create(&r.thread, NULL, read_part, &r), 0);
    tinkc_mock_advance(x.mock, 1000);
    await_reader(&r);
    assert_int_equal(r.got, 2);
    assert_false(tinkc_future_done(r.pass));
    tinkc_future_free(r.pass);
    close_all(&x);
}

/* The first event is there, the second is half there, and the stream is not over. */
TEST(tokens_wake_those_who_wait_for_them)
{
    static const char first[] = "data: {\"event_type\":\"token\",\"token_id\":7}\n\n";
    static const char body[] = "data: {\"event_type\":\"token\",\"token_id\":7}\n\n"
                               "data: {\"event_type\":\"token\",\"token_id\":8}\n\n"
                               "data: {\"event_type\":\"done\",\"finish_reason\":\"stop\"}\n\n";
    fixture x;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    open_scene(&x, NULL, 0);
    tinkc_mock_always(x.mock, NULL, STREAM, &(tinkc_mock_answer){ .body = body, .drip_ms = 10 }, &x.err);
    reader r = { .deltas = tinkc_sample_stream(x.sampler, ids, 6, &o, &x.err) };
    settle(&x);
    assert_int_equal(pthread_create(&r.thread, NULL, read_tokens, &r), 0);
    for (size_t i = 0; i < sizeof first + 20; i++) {
        settle(&x);
        tinkc_mock_advance(x.mock, 10);
    }
    await_reader(&r);
    assert_int_equal(r.got, 1);
    assert_null(tinkc_deltas_next(r.deltas, 0, &x.err));
    assert_int_equal(x.err.code, TINKC_E_TIMEOUT); /* it continues */
    tinkc_deltas_free(r.deltas);
    close_all(&x);
}

/* ---- samples ---- */

/* None of them is answered, and all of them are out; the polls of those that are, too. */
TEST(samples_do_not_wait_for_each_other)
{
    enum { MANY = 300 };
    fixture x;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_future *all[MANY];
    open_scene(&x, NULL, 0);
    tinkc_mock_always(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .delay_ms = 1000, .body = "{\"request_id\":\"r\"}" },
                      &x.err);
    tinkc_mock_always(x.mock, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x.err);
    for (size_t i = 0; i < MANY; i++)
        all[i] = tinkc_sample(x.sampler, ids, 6, 1, &o, &x.err);
    settle(&x);
    assert_int_equal(tinkc_mock_count(x.mock, SAMPLE), MANY);
    tinkc_mock_advance(x.mock, 1000);
    settle(&x);
    assert_int_equal(tinkc_mock_count(x.mock, POLL), MANY);
    for (size_t i = 0; i < MANY; i++)
        tinkc_future_free(all[i]);
    close_all(&x);
}

/* ---- a pass that waits for its bytes ---- */

/* Chunks that wait for the budget when their pass is cancelled never leave; what was held is free. */
TEST(a_cancelled_pass_leaves_the_budget)
{
    fixture x;
    open_scene(&x, "{\"fwdbwd_max_chunk_len\":1,\"fwdbwd_dispatch_bytes_semaphore_size\":80}", 6);
    tinkc_mock_once(x.mock, NULL, PASS, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x.err);
    tinkc_mock_once(x.mock, NULL, PASS, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x.err);
    tinkc_future *f = pass(&x);
    settle(&x);
    size_t out = tinkc_mock_count(x.mock, PASS);
    assert_true(out >= 1 && out < 6);
    tinkc_future_cancel(f);
    settle(&x);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    assert_int_equal(x.err.code, TINKC_E_CANCELLED);
    assert_int_equal(tinkc_mock_count(x.mock, PASS), out);
    tinkc_future_free(f);
    x.err = (tinkc_error){ 0 };
    f = pass(&x);
    assert_true(run_until_done(x.mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    tinkc_future_free(f);
    close_all(&x);
}
