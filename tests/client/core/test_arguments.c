/* test_arguments.c - wrong arguments are refused by name before anything is sent. */
#include <math.h>

#include "support/client/api_support.h"

static tinkc_mock *mock;
static tinkc_client *client;
static tinkc_trainer *trainer;
static tinkc_sampler *sampler;
static tinkc_batch *batch;
static tinkc_input *input;
static tinkc_error err;
static const int32_t ids[] = { 1, 2, 3, 4 }, negative[] = { 1, -2, 3, 4 };
static const float numbers[] = { 1, 1, 1, 1 };

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    client = mock_client(mock, NULL, &err);
    trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "m" }, &err);
    sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "m" }, &err);
    batch = tinkc_batch_new(client, &err);
    input = tinkc_input_new(client, &err);
    tinkc_mock_forget(mock);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_input_free(input);
    tinkc_batch_free(batch);
    tinkc_sampler_free(sampler);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return 0;
}

/* The call must have failed with this code and a message that begins with the argument's name. */
static void refused_as(bool failed, int32_t code, const char *name, int line)
{
    if (failed && err.code == code && strncmp(err.message, name, strlen(name)) == 0) {
        err = (tinkc_error){ 0 };
        return;
    }
    print_error("line %d: wanted %s (%d), got %d %s\n", line, name, (int)code, (int)err.code, err.message);
    fail();
}
#define REFUSED(call, code, name) refused_as(!(call), TINKC_E_##code, name, __LINE__)

TEST_WITH(arguments_of_batches_are_checked, setup, teardown)
{
    const float nan_at_2[] = { 1, 1, NAN, 1 };
    REFUSED(tinkc_batch_add_sft(NULL, ids, 4, 1, &err), ARGUMENT, "batch");
    REFUSED(tinkc_batch_add_sft(batch, NULL, 4, 1, &err), ARGUMENT, "ids");
    REFUSED(tinkc_batch_add_sft(batch, ids, 1, 0, &err), ARGUMENT, "len");
    REFUSED(tinkc_batch_add_sft(batch, negative, 4, 1, &err), ARGUMENT, "ids");
    REFUSED(tinkc_batch_add_sft(batch, ids, 4, 4, &err), ARGUMENT, "context");
    REFUSED(tinkc_batch_add_weighted(batch, ids, 1, numbers, &err), ARGUMENT, "len");
    REFUSED(tinkc_batch_add_weighted(batch, ids, 4, NULL, &err), ARGUMENT, "weights");
    REFUSED(tinkc_batch_add_weighted(batch, ids, 4, nan_at_2, &err), ARGUMENT, "weights");
    REFUSED(tinkc_batch_add_rl(batch, ids, 1, 1, numbers, numbers, &err), ARGUMENT, "len");
    REFUSED(tinkc_batch_add_rl(batch, ids, 4, 0, numbers, numbers, &err), ARGUMENT, "context");
    REFUSED(tinkc_batch_add_rl(batch, ids, 4, 1, nan_at_2, numbers, &err), ARGUMENT, "logprobs");
    REFUSED(tinkc_batch_add_rl(batch, ids, 4, 1, numbers, NULL, &err), ARGUMENT, "advantages");
    REFUSED(tinkc_batch_add(batch, NULL, &err), ARGUMENT, "input");
    REFUSED(tinkc_batch_add(batch, input, &err), ARGUMENT, "input");
    REFUSED(tinkc_batch_set_f32(batch, "w", numbers, 4, &err), ARGUMENT, "batch");
    assert_int_equal(tinkc_batch_count(batch), 0);
    assert_true(tinkc_batch_add_tokens(batch, ids, 4, &err));
    REFUSED(tinkc_batch_set_f32(batch, "", numbers, 4, &err), ARGUMENT, "name");
    assert_true(tinkc_batch_set_f32(batch, "w", numbers, 4, &err));
    REFUSED(tinkc_batch_set_f32(batch, "w", numbers, 4, &err), ARGUMENT, "name");
    REFUSED(tinkc_batch_set_f32(batch, "n", nan_at_2, 4, &err), TENSOR, "n: number 2");
    REFUSED(tinkc_batch_set(batch, "n",
                            &(tinkc_array){ .data = (double[]){ 1, INFINITY }, .count = 2, .dtype = TINKC_F64 }, &err),
            TENSOR, "n: number 1");
    const int64_t shape[] = { 3, 2 }, row_ptr[] = { 0, 1, 2 }, col[] = { 0, 9 };
    tinkc_array wrong_shape = { .data = numbers, .count = 4, .shape = shape, .ndim = 2, .dtype = TINKC_F32 };
    REFUSED(tinkc_batch_set(batch, "s", &wrong_shape, &err), TENSOR, "");
    tinkc_array wrong_col = { .data = numbers,
                              .count = 2,
                              .shape = (int64_t[]){ 2, 4 },
                              .ndim = 2,
                              .row_ptr = row_ptr,
                              .col = col,
                              .dtype = TINKC_F32 };
    REFUSED(tinkc_batch_set(batch, "s", &wrong_col, &err), TENSOR, "");
    wrong_col.col = NULL;
    REFUSED(tinkc_batch_set(batch, "s", &wrong_col, &err), TENSOR, "s");
}

TEST_WITH(arguments_of_inputs_are_checked, setup, teardown)
{
    REFUSED(tinkc_input_add_tokens(input, negative, 4, &err), ARGUMENT, "ids");
    REFUSED(tinkc_input_add_image(input, "x", 1, "gif", -1, &err), ARGUMENT, "format");
    REFUSED(tinkc_input_add_image(input, "", 0, "png", -1, &err), ARGUMENT, "data");
    REFUSED(tinkc_input_add_image(input, "x", 1, "png", -2, &err), ARGUMENT, "expected_tokens");
    REFUSED(tinkc_input_add_image_pointer(input, "", "png", -1, &err), ARGUMENT, "location");
    REFUSED(tinkc_input_add_dmel(input, "\x08\x02\x01\x50", 4, &err), TENSOR, "");
    assert_true(tinkc_input_add_dmel(input, "\x04\x02\x01\x50", 4, &err));
    assert_int_equal(tinkc_input_length(input), 1);
}

TEST_WITH(arguments_of_sampling_are_checked, setup, teardown)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT, zeroed = { 0 };
    const char *const stop[] = { "x", NULL };
    REFUSED(tinkc_sample(NULL, ids, 4, 1, &o, &err), ARGUMENT, "sampler");
    REFUSED(tinkc_sample(sampler, ids, 0, 1, &o, &err), ARGUMENT, "prompt");
    REFUSED(tinkc_sample(sampler, negative, 4, 1, &o, &err), ARGUMENT, "prompt");
    REFUSED(tinkc_sample(sampler, negative, 2, 1, &o, &err), ARGUMENT, "prompt: token 1"); /* the last */
    REFUSED(tinkc_sample(sampler, ids, 4, 0, &o, &err), ARGUMENT, "n_samples");
    REFUSED(tinkc_sample(sampler, ids, 4, 1, NULL, &err), ARGUMENT, "sampling");
    REFUSED(tinkc_sample(sampler, ids, 4, 1, &zeroed, &err), ARGUMENT, "top_p");
    o.temperature = NAN;
    REFUSED(tinkc_sample(sampler, ids, 4, 1, &o, &err), ARGUMENT, "temperature");
    o.temperature = 1;
    o.stop = stop;
    o.stop_tokens = ids;
    o.n_stop_tokens = 1;
    REFUSED(tinkc_sample(sampler, ids, 4, 1, &o, &err), ARGUMENT, "stop");
    o.stop = NULL;
    o.never_stop = true;
    REFUSED(tinkc_sample(sampler, ids, 4, 1, &o, &err), ARGUMENT, "never_stop");
    REFUSED(tinkc_sample_input(sampler, input, 1, &o, &err), ARGUMENT, "prompt");
    REFUSED(tinkc_sampler_open(client, &(tinkc_sampler_options){ 0 }, &err), ARGUMENT, "base_model");
    REFUSED(tinkc_sampler_open(client, &(tinkc_sampler_options){ .model_path = "x" }, &err), PATH, "model_path");
    tinkc_retry_options retry = { .delay_base_ms = -1 };
    REFUSED(tinkc_sampler_open(client, &(tinkc_sampler_options){ .base_model = "m", .retry = &retry }, &err), ARGUMENT,
            "delay_base_ms");
    REFUSED(tinkc_sampler_import("{}", NULL, &err), ARGUMENT, "exported");
    assert_int_equal(tinkc_mock_count(mock, NULL), 0);
}

/* The _INIT macros and their functions agree in every byte, whatever was there before. */
TEST(functions_for_macros)
{
    static const tinkc_adam adam = TINKC_ADAM_INIT;
    static const tinkc_dimuon dimuon = TINKC_DIMUON_INIT;
    static const tinkc_sampling sampling = TINKC_SAMPLING_INIT;
    tinkc_adam a;
    tinkc_dimuon d;
    tinkc_sampling s;
    memset(&a, 0xA5, sizeof a);
    memset(&d, 0xA5, sizeof d);
    memset(&s, 0xA5, sizeof s);
    tinkc_adam_init(&a);
    tinkc_dimuon_init(&d);
    tinkc_sampling_init(&s);
    assert_memory_equal(&a, &adam, sizeof a);
    assert_memory_equal(&d, &dimuon, sizeof d);
    assert_memory_equal(&s, &sampling, sizeof s);
    tinkc_adam_init(NULL);
    tinkc_dimuon_init(NULL);
    tinkc_sampling_init(NULL);
    /* The numbers are those of the Python SDK. */
    assert_true(a.learning_rate == 1e-4 && a.beta1 == 0.9 && a.beta2 == 0.95 && a.eps == 1e-12);
    assert_true(a.weight_decay == 0 && a.grad_clip_norm == 0);
    assert_true(d.beta1 == 0.9 && d.grad_clip_norm == 0);
    assert_true(s.temperature == 1 && s.top_p == 1 && s.top_k == -1 && s.max_tokens == -1);
    assert_true(!s.has_seed && !s.stop && !s.prompt_logprobs && s.topk_prompt_logprobs == 0);
}
