/* test_answer_counts.c - a service that answers with more or fewer than was asked for is not believed.
 *
 * Each list whose length the request decides has its rows: outputs of a pass, their log-probs,
 * sequences of a sample, log-probs and candidates of both prompt and sequences, tokens of a stream.
 */
#include <math.h>

#include "support/client/mock_fixture.h"
#include "wire/sample_message.h"

enum { PROMPT = 3, TARGETS = 2 };
static const int32_t prompt[PROMPT] = { 4, 5, 6 };

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock, NULL, &x->err);
    x->trainer = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano", .rank = 8 }, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    for (int i = 0; i < 2; i++)
        tinkc_batch_add_sft(x->batch, prompt, PROMPT, 1, &x->err);
    assert_ok(&x->err);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_sampler_free(x->sampler);
    tinkc_trainer_free(x->trainer);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

typedef struct row {
    const char *result;
    const char *message; /* part of the error's; NULL = the result is good */
} row;

/* The next result is this one. */
static void answer_with(fixture *x, const char *result)
{
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = result }, &x->err);
    assert_ok(&x->err);
}

static void expect(fixture *x, tinkc_future *f, const row *r)
{
    bool ok = tinkc_future_wait(f, PATIENCE_MS, &x->err);
    if (!r->message) {
        assert_ok(&x->err);
        assert_true(ok);
    } else {
        assert_false(ok);
        assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
        assert_non_null(strstr(x->err.message, r->message));
        assert_true(x->err.flags & TINKC_MAY_HAVE_RUN);
        x->err = (tinkc_error){ 0 };
    }
    tinkc_future_free(f);
}

#define TWO  "{\"logprobs\":{\"data\":[-1,-2],\"dtype\":\"float32\",\"shape\":[2]}}"
#define ONE  "{\"logprobs\":{\"data\":[-1],\"dtype\":\"float32\",\"shape\":[1]}}"
#define FOUR "{\"logprobs\":{\"data\":[-1,-2,-3,-4],\"dtype\":\"float32\",\"shape\":[4]}}"
#define OUTPUTS(list)                                                                                                  \
    "{\"loss_fn_output_type\":\"ArrayRecord\",\"loss_fn_outputs\":[" list "],\"metrics\":{\"loss:sum\":1.0}}"

TEST_WITH(outputs_of_a_pass, setup, teardown)
{
    fixture *x = *state;
    static const row rows[] = {
        { OUTPUTS(TWO "," TWO), NULL },
        { OUTPUTS(TWO), "1 outputs for 2 examples" },
        { OUTPUTS(TWO "," TWO "," TWO), "3 outputs for 2 examples" },
        { OUTPUTS(""), "0 outputs for 2 examples" },
        { OUTPUTS(TWO "," ONE), "example 1 has 2 targets and 1 log-probs" },
        { OUTPUTS(FOUR "," TWO), "example 0 has 2 targets and 4 log-probs" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer_with(x, rows[i].result);
        expect(x, tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err), &rows[i]);
    }
}

/* Targets count wherever they stand among an example's inputs. */
TEST_WITH(targets_behind_the_weights, setup, teardown)
{
    fixture *x = *state;
    static const int32_t two[] = { 1, 2 };
    tinkc_batch *b = tinkc_batch_new(x->client, &x->err);
    tinkc_batch_add_tokens(b, two, 2, &x->err);
    tinkc_batch_set_f32(b, "weights", (const float[]){ 1, 1 }, 2, &x->err);
    tinkc_batch_set_i64(b, "target_tokens", (const int64_t[]){ 2, 3 }, 2, &x->err);
    assert_ok(&x->err);
    answer_with(x, OUTPUTS(ONE));
    expect(x, tinkc_forward_backward(x->trainer, b, TINKC_CROSS_ENTROPY, NULL, &x->err),
           &(row){ NULL, "example 0 has 2 targets and 1 log-probs" });
    tinkc_batch_free(b);
}

static bool keep_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)err;
    *(size_t *)user += 1;
    tinkc_loss_set(loss, 0);
    return true;
}

/* The user's function indexes by its batch: it must not run on fewer outputs. */
TEST_WITH(outputs_for_a_custom_loss, setup, teardown)
{
    fixture *x = *state;
    size_t calls = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    answer_with(x, OUTPUTS(TWO));
    tinkc_future *f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, keep_loss, &calls, &x->err);
    expect(x, f, &(row){ NULL, "1 outputs for 2 examples" });
    assert_int_equal(calls, 0);
    tinkc_queue_free(queue);
}

/* Nor on outputs that are not log-probs. */
TEST_WITH(other_outputs_for_a_custom_loss, setup, teardown)
{
    fixture *x = *state;
#define WHOLE  "{\"logprobs\":{\"data\":[1,2],\"dtype\":\"int64\",\"shape\":[2]}}"
#define MATRIX "{\"logprobs\":{\"data\":[1,2,3,4],\"dtype\":\"float32\",\"shape\":[2,2]}}"
    static const char *const results[] = {
        OUTPUTS(WHOLE "," WHOLE),
        OUTPUTS("{},{}"),
        OUTPUTS(MATRIX "," MATRIX),
        OUTPUTS(TWO "," MATRIX),
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        size_t calls = 0;
        answer_with(x, results[i]);
        assert_null(tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, keep_loss, &calls, &x->err));
        assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
        assert_string_equal(x->err.message, i < 3 ? "the first pass gave no usable logprobs for example 0"
                                                  : "the first pass gave no usable logprobs for example 1");
        assert_int_equal(calls, 0);
        x->err = (tinkc_error){ 0 };
    }
}

TEST_WITH(lists_of_a_sample, setup, teardown)
{
    fixture *x = *state;
#define SEQ "{\"stop_reason\":\"length\",\"tokens\":[1,2],\"logprobs\":[-1,-2]}"
    static const row rows[] = {
        { "{\"sequences\":[" SEQ "," SEQ "],\"prompt_logprobs\":[null,-1,-1]}", NULL },
        { "{\"sequences\":[" SEQ "]}", "expected 2 sequences, got 1" },
        { "{\"sequences\":[" SEQ "," SEQ "," SEQ "]}", "expected 2 sequences, got 3" },
        { "{\"sequences\":[]}", "expected 2 sequences, got 0" },
        { "{\"sequences\":[" SEQ ",{\"tokens\":[1,2],\"logprobs\":[-1]}]}",
          "expected 2 log-probs of a sequence, got 1" },
        { "{\"sequences\":[" SEQ ",{\"tokens\":[1],\"logprobs\":[-1,-2]}]}",
          "expected 1 log-probs of a sequence, got 2" },
        { "{\"sequences\":[" SEQ "," SEQ "],\"prompt_logprobs\":[null,-1]}",
          "expected 3 log-probs of the prompt, got 2" },
        { "{\"sequences\":[" SEQ "," SEQ "],\"prompt_logprobs\":[null,-1,-1,-1]}",
          "expected 3 log-probs of the prompt, got 4" },
        { "{\"sequences\":[" SEQ "," SEQ "],\"topk_prompt_logprobs\":[null,[[1,-1]]]}",
          "expected 3 top-k rows of the prompt, got 2" },
        { "{\"sequences\":[" SEQ "," SEQ "],\"topk_prompt_logprobs\":[null,null,[[1,-1],[2,-2],"
          "[3,-3]]]}",
          "expected 2 candidates a token, got 3" },
        { "{\"sequences\":[" SEQ "," SEQ "],\"topk_prompt_logprobs\":[null,null,[[1,-1]]]}", NULL },
    };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    o.prompt_logprobs = true;
    o.topk_prompt_logprobs = 2;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer_with(x, rows[i].result);
        expect(x, tinkc_sample(x->sampler, prompt, PROMPT, 2, &o, &x->err), &rows[i]);
    }
    answer_with(x, "{\"sequences\":[" SEQ "],\"prompt_logprobs\":[null,-1]}");
    expect(x, tinkc_logprobs(x->sampler, prompt, PROMPT, &x->err),
           &(row){ NULL, "expected 3 log-probs of the prompt, got 2" });
}

/* Only the protobuf form has these. */
TEST_WITH(candidates_of_sampled_tokens, setup, teardown)
{
    fixture *x = *state;
    static const struct {
        uint32_t rows, k;
        const char *message;
    } cases[] = { { 2, 1, NULL },
                  { 1, 1, "expected 2 top-k rows of a sequence, got 1" },
                  { 3, 1, "expected 2 top-k rows of a sequence, got 3" },
                  { 2, 2, "expected 1 candidates a token, got 2" } };
    static const int32_t drawn[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static const float values[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    static const char *const type[] = { "Content-Type", "application/x-protobuf", NULL };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    o.topk_sample_logprobs = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t cells = (size_t)cases[i].rows * cases[i].k;
        tinkc_sequence sequence = { .tokens = { drawn, 2 }, .logprobs = { values, 2 } };
        tkc_topk topk = { { drawn, cells }, { values, cells }, cases[i].k, cases[i].rows };
        tkc_sample_response r = { .sampled_topk = &topk };
        tkc_buf bytes;
        r.sequences.data = &sequence;
        r.sequences.len = 1;
        tkc_buf_init(&bytes, NULL, 1 << 16);
        tkc_sample_response_to_pb(&r, &bytes, &x->err);
        tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future",
                        &(tinkc_mock_answer){ .headers = type, .body = bytes.data, .body_len = bytes.len }, &x->err);
        assert_ok(&x->err);
        tkc_buf_free(&bytes);
        expect(x, tinkc_sample(x->sampler, prompt, PROMPT, 1, &o, &x->err), &(row){ NULL, cases[i].message });
    }
}

TEST_WITH(drawn_a_stream, setup, teardown)
{
    fixture *x = *state;
#define TOKEN(id, index) "data: {\"event_type\":\"token\",\"token_id\":" #id ",\"index\":" #index "}\n\n"
#define DONE(n)          "data: {\"event_type\":\"done\",\"total_tokens\":" #n "}\n\n"
    static const row rows[] = {
        { TOKEN(7, 0) TOKEN(8, 1) DONE(2), NULL },
        { TOKEN(7, 0) DONE(2), "1 tokens came of 2" },
        { TOKEN(7, 0) TOKEN(8, 1) DONE(1), "2 tokens came of 1" },
        { TOKEN(7, 0) TOKEN(8, 2) DONE(2), "token 1 is out of order" },
        { TOKEN(7, 1) DONE(1), "token 0 is out of order" },
        { TOKEN(4294967303, 0) DONE(1), "token 0 is out of order or range" },
    };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_once(x->mock, NULL, "/api/v1/stream_sample", &(tinkc_mock_answer){ .body = rows[i].result },
                        &x->err);
        tinkc_deltas *d = tinkc_sample_stream(x->sampler, prompt, PROMPT, &o, &x->err);
        while (tinkc_deltas_next(d, PATIENCE_MS, &x->err) != NULL)
            ;
        if (rows[i].message) {
            assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
            assert_non_null(strstr(x->err.message, rows[i].message));
            x->err = (tinkc_error){ 0 };
        }
        assert_ok(&x->err);
        tinkc_deltas_free(d);
    }
}
