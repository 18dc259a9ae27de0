/* test_pass_memory.c - what a training pass holds in memory, and that the batch is the caller's
 * again as soon as the call has returned. */
#include "support/client/api_support.h"
#include "support/counting.h"
#include "wire/train_message.h"

#define PASS "/api/v1/forward_backward"

enum { TOKENS = 60000, EXAMPLES = 24, CHUNK = 1000000, BUDGET = 3000000, SLACK = 400000 };

typedef struct fixture {
    tinkc_error err;
    counting memory;
    tinkc_allocator allocator;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_batch *batch;
} fixture;

static void add_example(fixture *x, int32_t id)
{
    int32_t *ids = malloc(TOKENS * sizeof *ids);
    for (size_t i = 0; i < TOKENS; i++)
        ids[i] = id;
    tinkc_batch_add_sft(x->batch, ids, TOKENS, 1, &x->err);
    free(ids);
}

static int setup_with(void **state, const char *more)
{
    fixture *x = calloc(1, sizeof *x);
    char config[200];
    x->allocator = counting_allocator(&x->memory);
    snprintf(config, sizeof config,
             "{\"fwdbwd_max_chunk_bytes_count\":%d,\"fwdbwd_dispatch_bytes_semaphore_size\":%d%s}", CHUNK, BUDGET,
             more);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client = mock_client(x->mock, &(tinkc_client_options){ .allocator = &x->allocator }, &x->err);
    x->trainer = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &x->err);
    tinkc_mock_always(x->mock, NULL, PASS, &(tinkc_mock_answer){ .delay_ms = 100, .body = "{\"request_id\":\"r\"}" },
                      &x->err);
    for (int i = 0; i < EXAMPLES; i++)
        add_example(x, i + 1);
    assert_ok(&x->err);
    *state = x;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, "");
}
static int setup_packed(void **state)
{
    return setup_with(state, ",\"proto_compress_fwdbwd\":true");
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_client_free(x->client);
    assert_true(counting_is_empty_soon(&x->memory));
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

static size_t now(fixture *x)
{
    return atomic_load(&x->memory.bytes);
}

/* Runs on until every chunk has been accepted, 100 ms for each handful. */
static void submit_all(fixture *x, size_t chunks)
{
    for (int i = 0; i < 200 && tinkc_mock_count(x->mock, "/api/v1/retrieve_future") < chunks; i++) {
        int64_t next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        tinkc_mock_advance(x->mock, next > 0 && next < 100 ? next : 100);
    }
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
}

static void check_what_a_pass_holds(fixture *x)
{
    size_t batch = tinkc_batch_bytes(x->batch);
    assert_true(batch > 20u * CHUNK && now(x) < batch + batch / 8);
    size_t before = now(x);
    atomic_store(&x->memory.peak, before);
    tinkc_mock_forget(x->mock);
    tinkc_future *f = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    assert_ok(&x->err);
    size_t chunks = tinkc_future_part_count(f);
    assert_int_equal(chunks, EXAMPLES);
    submit_all(x, chunks);
    assert_int_equal(tinkc_mock_count(x->mock, PASS), chunks);
    /* A budget may be overdrawn by one chunk; packing holds the plain and the packed form. */
    size_t most = atomic_load(&x->memory.peak) - before;
    if (most > BUDGET + 3 * CHUNK + SLACK)
        fail_msg("%zu bytes on top of a batch of %zu", most, batch);
    /* Accepted: nothing of the wire form is left. */
    assert_true(now(x) < before + SLACK);
    tinkc_batch_clear(x->batch);
    assert_true(now(x) < before + SLACK - batch + CHUNK + CHUNK);
    tinkc_future_free(f);
}

/* Returns the first token of each chunk that was sent, by its number. */
static void assert_sent(fixture *x, const int32_t *first_tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tkc_arena arena = { 0 };
        tkc_forward_backward_request q;
        tkc_forward_backward_from_pb(nth_request(x->mock, PASS, i)->body, TINKC_E_BAD_RESPONSE, &arena, &q, &x->err);
        assert_ok(&x->err);
        assert_in_range(q.seq_id, 1, n);
        assert_int_equal(q.data.data[0].chunks.data[0].tokens.data[TOKENS / 2], first_tokens[q.seq_id - 1]);
        tkc_arena_free(&arena);
    }
}

TEST_WITH(c35_a_pass_holds_its_batch_once, setup, teardown)
{
    check_what_a_pass_holds(*state);
}

TEST_WITH(c35_a_packed_pass_holds_its_batch_once, setup_packed, teardown)
{
    check_what_a_pass_holds(*state);
}

TEST_WITH(the_batch_may_change_while_its_pass_is_under_way, setup, teardown)
{
    fixture *x = *state;
    int32_t want[EXAMPLES];
    tinkc_mock_forget(x->mock);
    tinkc_future *f = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    tinkc_batch_set_f32(x->batch, "later", (float[]){ 1.0f }, 1, &x->err);
    add_example(x, 1000);
    tinkc_batch_clear(x->batch);
    for (int i = 0; i < EXAMPLES; i++) {
        want[i] = i + 1;
        add_example(x, 2000);
    }
    assert_ok(&x->err);
    tinkc_batch_free(x->batch);
    x->batch = NULL;
    submit_all(x, EXAMPLES);
    assert_int_equal(tinkc_mock_count(x->mock, PASS), EXAMPLES);
    assert_sent(x, want, EXAMPLES);
    tinkc_future_free(f);
}
