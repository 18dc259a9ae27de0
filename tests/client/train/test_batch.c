/* Batches: the examples that each way of adding makes, arrays of every element type, sparse and
 * packed ones, and what is refused with nothing changed. */
#include <math.h>

#include "client/train/train_batch.h"
#include "support/client/api_support.h"
#include "support/scarce.h"
#include "tinkc/train.h"

static tinkc_mock *mock;
static tinkc_client *client;
static tinkc_batch *batch;
static tinkc_error err;
static const int32_t ids[] = { 10, 11, 12, 13, 14 };

static int open_batch(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    client = mock_client(mock, NULL, &err);
    batch = tinkc_batch_new(client, &err);
    assert_int_equal(err.code, 0);
    return 0;
}

static int close_batch(void **state)
{
    (void)state;
    tinkc_batch_free(batch);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return 0;
}

static void assert_f32s(size_t i, const char *name, const float *wanted, size_t n)
{
    const tinkc_tensor *t = tinkc_batch_tensor(batch, i, name);
    assert_non_null(t);
    tinkc_f32s found = tinkc_tensor_f32s(t);
    assert_int_equal(found.len, n);
    assert_memory_equal(found.data, wanted, n * sizeof *wanted);
    assert_int_equal(tinkc_tensor_i64s(t).len, 0);
}

static void assert_i64s(size_t i, const char *name, const int64_t *wanted, size_t n)
{
    const tinkc_tensor *t = tinkc_batch_tensor(batch, i, name);
    assert_non_null(t);
    tinkc_i64s found = tinkc_tensor_i64s(t);
    assert_int_equal(found.len, n);
    assert_memory_equal(found.data, wanted, n * sizeof *wanted);
    assert_int_equal(tinkc_tensor_f32s(t).len, 0);
}

static void assert_reads(size_t i, const int32_t *wanted, size_t n)
{
    tinkc_tokens found = { 0 };
    assert_true(tinkc_input_tokens(tinkc_batch_input(batch, i), &found, &err));
    assert_int_equal(found.len, n);
    assert_memory_equal(found.data, wanted, n * sizeof *wanted);
    tinkc_tokens_free(&found);
}

static void refused(bool done, int32_t code, const char *says)
{
    assert_false(done);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, says))
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    err = (tinkc_error){ 0 };
}

TEST_WITH(next_tokens_are_learnt_after_the_context, open_batch, close_batch)
{
    static const int64_t targets[] = { 11, 12, 13, 14 };
    assert_true(tinkc_batch_add_sft(batch, ids, 5, 2, &err));
    assert_true(tinkc_batch_add_sft(batch, ids, 5, 0, &err));
    assert_true(tinkc_batch_add_sft(batch, ids, 2, 1, &err));
    assert_int_equal(tinkc_batch_count(batch), 3);
    assert_reads(0, ids, 4);
    assert_i64s(0, "target_tokens", targets, 4);
    assert_f32s(0, "weights", (float[]){ 0, 1, 1, 1 }, 4);
    assert_f32s(1, "weights", (float[]){ 1, 1, 1, 1 }, 4);
    assert_reads(2, ids, 1);
    assert_int_equal(batch->examples[2].chunks[0].expected_tokens, -1);
    assert_i64s(2, "target_tokens", targets, 1);
    assert_f32s(2, "weights", (float[]){ 1 }, 1);
    assert_null(tinkc_batch_tensor(batch, 0, "logprobs"));
    assert_null(tinkc_batch_tensor(batch, 3, "weights"));
    assert_null(tinkc_batch_tensor(batch, 0, NULL));
    assert_null(tinkc_batch_input(batch, 3));
    refused(tinkc_batch_add_sft(batch, ids, 5, 5, &err), TINKC_E_ARGUMENT, "context");
    refused(tinkc_batch_add_sft(batch, ids, 1, 0, &err), TINKC_E_ARGUMENT, "at least 2");
    refused(tinkc_batch_add_sft(batch, NULL, 5, 0, &err), TINKC_E_ARGUMENT, "ids");
    refused(tinkc_batch_add_sft(batch, (int32_t[]){ 1, 2, -3 }, 3, 0, &err), TINKC_E_ARGUMENT, "token 2");
    assert_int_equal(tinkc_batch_count(batch), 3);
}

TEST_WITH(weights_belong_to_the_tokens_learnt, open_batch, close_batch)
{
    static const float weights[] = { 9, 0.5f, -1, 0, 2 };
    assert_true(tinkc_batch_add_weighted(batch, ids, 5, weights, &err));
    assert_f32s(0, "weights", weights + 1, 4);
    assert_reads(0, ids, 4);
    assert_true(tinkc_batch_add_weighted(batch, ids, 2, weights, &err));
    assert_f32s(1, "weights", weights + 1, 1);
    refused(tinkc_batch_add_weighted(batch, ids, 5, NULL, &err), TINKC_E_ARGUMENT, "weights");
    refused(tinkc_batch_add_weighted(batch, ids, 3, (float[]){ 1, 1, INFINITY }, &err), TINKC_E_ARGUMENT,
            "number 2 is not finite");
    assert_int_equal(tinkc_batch_count(batch), 2);
}

/* Over the prompt both are zero; the first sampled token is the target of the last prompt token. */
TEST_WITH(sampled_answers_carry_logprobs_and_advantages, open_batch, close_batch)
{
    static const float logprobs[] = { -0.5f, -1.5f }, advantages[] = { 2, -3 };
    static const int64_t targets[] = { 11, 12, 13, 14 };
    assert_true(tinkc_batch_add_rl(batch, ids, 5, 3, logprobs, advantages, &err));
    assert_reads(0, ids, 4);
    assert_i64s(0, "target_tokens", targets, 4);
    assert_f32s(0, "logprobs", (float[]){ 0, 0, -0.5f, -1.5f }, 4);
    assert_f32s(0, "advantages", (float[]){ 0, 0, 2, -3 }, 4);
    assert_true(tinkc_batch_add_rl(batch, ids, 2, 1, logprobs, advantages, &err));
    assert_f32s(1, "logprobs", logprobs, 1);
    assert_f32s(1, "advantages", advantages, 1);
    refused(tinkc_batch_add_rl(batch, ids, 5, 0, logprobs, advantages, &err), TINKC_E_ARGUMENT, "context");
    refused(tinkc_batch_add_rl(batch, ids, 5, 5, logprobs, advantages, &err), TINKC_E_ARGUMENT, "context");
    refused(tinkc_batch_add_rl(batch, ids, 5, 3, NULL, advantages, &err), TINKC_E_ARGUMENT, "logprobs");
    refused(tinkc_batch_add_rl(batch, ids, 5, 3, logprobs, (float[]){ 1, NAN }, &err), TINKC_E_ARGUMENT,
            "advantages: number 1");
    assert_int_equal(tinkc_batch_count(batch), 2);
}

/* Each way of adding checks its tokens. */
TEST_WITH(tokens_that_will_not_do, open_batch, close_batch)
{
    static const float ones[] = { 1, 1, 1 };
    static const int32_t negative[] = { 1, 2, -3 };
    for (int i = 0; i < 3; i++) {
        const int32_t *given = i == 0 ? NULL : i == 1 ? negative : ids;
        size_t len = i == 2 ? 0 : 3;
        const char *says = i == 0 ? "ids: must not be NULL" : i == 1 ? "token 2 is negative" : "len: at least";
        refused(tinkc_batch_add_tokens(batch, given, len, &err), TINKC_E_ARGUMENT, says);
        refused(tinkc_batch_add_sft(batch, given, len, 1, &err), TINKC_E_ARGUMENT, says);
        refused(tinkc_batch_add_weighted(batch, given, len, ones, &err), TINKC_E_ARGUMENT, says);
        refused(tinkc_batch_add_rl(batch, given, len, 1, ones, ones, &err), TINKC_E_ARGUMENT, says);
    }
    assert_int_equal(tinkc_batch_count(batch), 0);
    assert_true(tinkc_batch_add_tokens(batch, (int32_t[]){ 0 }, 1, &err)); /* token 0 is one */
    assert_reads(0, (int32_t[]){ 0 }, 1);
}

/* Floats of every width travel as 32-bit, integers as 64-bit. */
TEST_WITH(every_element_type_is_read, open_batch, close_batch)
{
    static const double wide[] = { 0.5, -2, 1e-3 };
    static const uint16_t bf16[] = { 0x3F80, 0xC040, 0 }; /* 1, -3, 0 */
    static const uint16_t f16[] = { 0x3C00, 0xC200, 0x0001, 0x8000, 0x7BFF };
    static const int32_t narrow[] = { -7, 2147483647 };
    assert_true(tinkc_batch_add_tokens(batch, ids, 3, &err));
    assert_true(tinkc_batch_set(batch, "f64", &(tinkc_array){ .data = wide, .count = 3, .dtype = TINKC_F64 }, &err));
    assert_true(tinkc_batch_set(batch, "bf16", &(tinkc_array){ .data = bf16, .count = 3, .dtype = TINKC_BF16 }, &err));
    assert_true(tinkc_batch_set(batch, "f16", &(tinkc_array){ .data = f16, .count = 5, .dtype = TINKC_F16 }, &err));
    assert_true(tinkc_batch_set(batch, "i32", &(tinkc_array){ .data = narrow, .count = 2, .dtype = TINKC_I32 }, &err));
    assert_true(tinkc_batch_set_i64(batch, "i64", (int64_t[]){ INT64_MIN, 1 }, 2, &err));
    assert_true(tinkc_batch_set_f32(batch, "f32", (float[]){ 0.25f }, 1, &err));
    assert_f32s(0, "f64", (float[]){ 0.5f, -2, 1e-3f }, 3);
    assert_f32s(0, "bf16", (float[]){ 1, -3, 0 }, 3);
    assert_f32s(0, "f16", (float[]){ 1, -3, 0x1p-24f, -0.0f, 65504 }, 5);
    assert_i64s(0, "i32", (int64_t[]){ -7, 2147483647 }, 2);
    assert_i64s(0, "i64", (int64_t[]){ INT64_MIN, 1 }, 2);
    assert_f32s(0, "f32", (float[]){ 0.25f }, 1);
    refused(tinkc_batch_set(batch, "big",
                            &(tinkc_array){ .data = (double[]){ 0, 1e39 }, .count = 2, .dtype = TINKC_F64 }, &err),
            TINKC_E_TENSOR, "number 1 does not fit 32 bits");
    refused(tinkc_batch_set(batch, "nan",
                            &(tinkc_array){ .data = (uint16_t[]){ 0x7E00 }, .count = 1, .dtype = TINKC_F16 }, &err),
            TINKC_E_TENSOR, "number 0 is not finite");
    refused(tinkc_batch_set(batch, "inf",
                            &(tinkc_array){ .data = (uint16_t[]){ 0x7C00 }, .count = 1, .dtype = TINKC_F16 }, &err),
            TINKC_E_TENSOR, "number 0 is not finite");
    refused(tinkc_batch_set_f32(batch, "f32", (float[]){ 1 }, 1, &err), TINKC_E_ARGUMENT, "f32 is set already");
}

/* Stored values and places make the dense matrix that is shown, whether the caller or the library packed it. */
TEST_WITH(sparse_and_packed_arrays_are_shown_dense, open_batch, close_batch)
{
    static const int64_t shape[] = { 3, 4 }, row_ptr[] = { 0, 1, 1, 3 }, col[] = { 2, 0, 3 };
    static const float values[] = { 5, 6, 7 };
    static const float dense[] = { 0, 0, 5, 0, 0, 0, 0, 0, 6, 0, 0, 7 };
    static const int64_t whole[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0 };
    static const float full[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3 };
    assert_true(tinkc_batch_add_tokens(batch, ids, 3, &err));
    tinkc_array sparse = {
        .data = values, .count = 3, .shape = shape, .ndim = 2, .row_ptr = row_ptr, .col = col, .dtype = TINKC_F32
    };
    assert_true(tinkc_batch_set(batch, "sparse", &sparse, &err));
    size_t before = tinkc_batch_bytes(batch);
    tinkc_array plain = { .data = dense, .count = 12, .shape = shape, .ndim = 2, .dtype = TINKC_F32, .may_pack = true };
    assert_true(tinkc_batch_set(batch, "packed", &plain, &err));
    assert_int_equal(tinkc_batch_bytes(batch) - before, 3 * 4 + 8 * (4 + 3));
    before = tinkc_batch_bytes(batch);
    plain.may_pack = false;
    assert_true(tinkc_batch_set(batch, "plain", &plain, &err));
    assert_int_equal(tinkc_batch_bytes(batch) - before, 12 * 4);
    before = tinkc_batch_bytes(batch);
    plain.data = full; /* packing would not make it smaller */
    plain.may_pack = true;
    assert_true(tinkc_batch_set(batch, "full", &plain, &err));
    assert_int_equal(tinkc_batch_bytes(batch) - before, 12 * 4);
    tinkc_array integers = {
        .data = whole, .count = 12, .shape = shape, .ndim = 2, .dtype = TINKC_I64, .may_pack = true
    };
    before = tinkc_batch_bytes(batch);
    assert_true(tinkc_batch_set(batch, "integers", &integers, &err));
    assert_int_equal(tinkc_batch_bytes(batch) - before, 8 + 8 * (4 + 1));
    /* (rows + 1) + 2 nnz < rows * cols: 5 of 6, and 7 of 6 */
    static const int64_t small[] = { 2, 3 };
    static const float one[] = { 0, 0, 0, 0, 8, 0 }, two[] = { 0, 9, 0, 0, 8, 0 };
    plain = (tinkc_array){ .data = one, .count = 6, .shape = small, .ndim = 2, .dtype = TINKC_F32, .may_pack = true };
    before = tinkc_batch_bytes(batch);
    assert_true(tinkc_batch_set(batch, "one", &plain, &err));
    assert_int_equal(tinkc_batch_bytes(batch) - before, 4 + 8 * (3 + 1));
    before = tinkc_batch_bytes(batch);
    plain.data = two;
    assert_true(tinkc_batch_set(batch, "two", &plain, &err));
    assert_int_equal(tinkc_batch_bytes(batch) - before, 6 * 4);
    assert_f32s(0, "one", one, 6);
    assert_f32s(0, "two", two, 6);
    assert_f32s(0, "sparse", dense, 12);
    assert_f32s(0, "packed", dense, 12);
    assert_f32s(0, "plain", dense, 12);
    assert_f32s(0, "full", full, 12);
    assert_i64s(0, "integers", whole, 12);
    const tinkc_tensor *t = tinkc_batch_tensor(batch, 0, "packed");
    assert_int_equal(t->ndim, 2);
    assert_memory_equal(t->shape, shape, sizeof shape);
    assert_ptr_equal(t, tinkc_batch_tensor(batch, 0, "packed"));
}

TEST_WITH(arrays_that_do_not_fit_are_refused, open_batch, close_batch)
{
    static const float v[9] = { 0 };
    static const int64_t shape[] = { 3, 3, 1, 1, 1, 1, 1, 1, 1 }, rows[] = { 0, 1, 1, 1 }, col[] = { 0 };
    static const int64_t below[] = { 3, -3 }, above[] = { 3, (int64_t)INT32_MAX + 1 };
    tinkc_array good = { .data = v, .count = 9, .shape = shape, .ndim = 2, .dtype = TINKC_F32 }, a;
    refused(tinkc_batch_set(batch, "x", &good, &err), TINKC_E_ARGUMENT, "no example");
    assert_true(tinkc_batch_add_tokens(batch, ids, 1, &err));
    size_t before = tinkc_batch_bytes(batch);
#define REFUSED(code, says, ...)                                                                                       \
    do {                                                                                                               \
        a = good;                                                                                                      \
        __VA_ARGS__;                                                                                                   \
        refused(tinkc_batch_set(batch, "x", &a, &err), code, says);                                                    \
    } while (0)
    REFUSED(TINKC_E_ARGUMENT, "reserved", a.reserved[3] = 1);
    REFUSED(TINKC_E_ARGUMENT, "reserved", a.reserved_bools[2] = true);
    REFUSED(TINKC_E_TENSOR, "element type: 0", a.dtype = 0);
    REFUSED(TINKC_E_TENSOR, "element type", a.dtype = TINKC_F64 + 1);
    REFUSED(TINKC_E_ARGUMENT, "data must not be NULL", a.data = NULL);
    REFUSED(TINKC_E_TENSOR, "ndim", a.ndim = 0);
    REFUSED(TINKC_E_TENSOR, "ndim", a.ndim = 9);
    REFUSED(TINKC_E_TENSOR, "dimension 1", a.shape = below);
    REFUSED(TINKC_E_TENSOR, "x", a.count = 8);
    REFUSED(TINKC_E_TENSOR, "both dimensions", a.row_ptr = rows; a.col = col; a.shape = NULL);
    REFUSED(TINKC_E_TENSOR, "both dimensions", a.row_ptr = rows; a.col = col; a.ndim = 3);
    REFUSED(TINKC_E_TENSOR, "row_ptr without col", a.row_ptr = rows; a.count = 1);
    REFUSED(TINKC_E_TENSOR, "dimension 1", a.row_ptr = rows; a.col = col; a.count = 1; a.shape = above);
    refused(tinkc_batch_set(batch, "", &good, &err), TINKC_E_ARGUMENT, "name");
    refused(tinkc_batch_set(batch, NULL, &good, &err), TINKC_E_ARGUMENT, "name");
    refused(tinkc_batch_set(batch, "x", NULL, &err), TINKC_E_ARGUMENT, "array");
    assert_int_equal(tinkc_batch_bytes(batch), before);
    assert_null(tinkc_batch_tensor(batch, 0, "x"));
    tinkc_array none = { .shape = (int64_t[]){ 0, 3 }, .ndim = 2, .dtype = TINKC_F32 };
    assert_true(tinkc_batch_set(batch, "none", &none, &err)); /* no rows are a shape */
    assert_int_equal(tinkc_batch_tensor(batch, 0, "none")->shape[1], 3);
    good.ndim = 8; /* as many as there may be */
    assert_true(tinkc_batch_set(batch, "x", &good, &err));
    assert_int_equal(tinkc_batch_tensor(batch, 0, "x")->ndim, 8);
}

/* What stands beside the targets must speak for as many positions. */
TEST_WITH(numbers_beside_the_targets_are_counted, open_batch, close_batch)
{
    static const char *const names[] = { "weights", "logprobs", "advantages" };
    static const int64_t targets[] = { 1, 2, 3 };
    static const float v[3] = { 0 };
    refused(tkc_batch_check(batch, &err), TINKC_E_ARGUMENT, "empty");
    refused(tkc_batch_check(NULL, &err), TINKC_E_ARGUMENT, "NULL");
    for (size_t i = 0; i < 3; i++) {
        tinkc_batch_clear(batch);
        assert_true(tinkc_batch_add_sft(batch, ids, 5, 1, &err));
        assert_true(tinkc_batch_add_tokens(batch, ids, 3, &err));
        assert_true(tinkc_batch_set_i64(batch, "target_tokens", targets, 3, &err));
        assert_true(tkc_batch_check(batch, &err));
        assert_true(tinkc_batch_set_f32(batch, names[i], v, 2, &err));
        refused(tkc_batch_check(batch, &err), TINKC_E_TENSOR, "example 1 has 2");
        assert_int_equal(tinkc_batch_count(batch), 2);
    }
    tinkc_batch_clear(batch);
    assert_int_equal(tinkc_batch_count(batch), 0);
    assert_int_equal(tinkc_batch_bytes(batch), 0);
    assert_true(tinkc_batch_add_tokens(batch, ids, 3, &err));
    assert_true(tinkc_batch_set_f32(batch, "others", v, 2, &err)); /* any other name, any length */
    assert_true(tkc_batch_check(batch, &err));
    assert_int_equal(tinkc_batch_count(NULL), 0);
    assert_int_equal(tinkc_batch_bytes(NULL), 0);
}

/* ---- examples of more than tokens ---- */

/* What chunking counts: 4 for a token, the bytes of images and audio, of tensors, 8 for each number of a
 * sparse one's rows and columns. The batch keeps its own copy. */
TEST_WITH(inputs_become_examples, open_batch, close_batch)
{
    static const char audio[] = "\x04\x02\x01\x50";
    char image[] = "abc";
    tinkc_input *input = tinkc_input_new(client, &err);
    tinkc_input_add_tokens(input, ids, 3, &err);
    tinkc_input_add_image(input, image, 3, "png", 5, &err);
    tinkc_input_add_dmel(input, audio, 4, &err);
    tinkc_input_add_tokens(input, ids, 2, &err);
    assert_true(tinkc_batch_add(batch, input, &err));
    assert_true(tinkc_batch_add(batch, input, &err));
    assert_ok(&err);
    memset(image, 'z', 3);
    tinkc_input_free(input);
    assert_int_equal(tinkc_batch_count(batch), 2);
    for (size_t i = 0; i < 2; i++) {
        const tkc_example *e = &batch->examples[i];
        assert_int_equal(e->n_chunks, 4);
        assert_int_equal(e->bytes, 3 * 4 + 3 + 4 + 2 * 4);
        assert_int_equal(e->chunks[0].kind, TINKC_CHUNK_TOKENS);
        assert_memory_equal(e->chunks[0].tokens.data, ids, 3 * sizeof *ids);
        assert_int_equal(e->chunks[1].kind, TINKC_CHUNK_IMAGE);
        assert_memory_equal(e->chunks[1].bytes.data, "abc", 3);
        assert_int_equal(e->chunks[1].bytes.len, 3);
        assert_int_equal(e->chunks[1].expected_tokens, 5);
        assert_memory_equal(e->chunks[2].bytes.data, audio, 4);
        assert_int_equal(e->chunks[3].tokens.len, 2);
        assert_memory_equal(e->chunks[3].tokens.data, ids, 2 * sizeof *ids);
    }
    assert_int_equal(tinkc_batch_bytes(batch), 2 * 27);
    const float numbers[] = { 1, 2, 3 };
    const int64_t shape[] = { 1, 4 }, rows[] = { 0, 2 }, columns[] = { 0, 3 };
    assert_true(tinkc_batch_set_f32(batch, "n", numbers, 3, &err));
    assert_int_equal(batch->examples[1].bytes, 27 + 3 * 4);
    tinkc_array sparse = {
        .data = numbers, .count = 2, .shape = shape, .ndim = 2, .row_ptr = rows, .col = columns, .dtype = TINKC_F32
    };
    assert_true(tinkc_batch_set(batch, "s", &sparse, &err));
    assert_int_equal(batch->examples[1].bytes, 27 + 3 * 4 + 2 * 4 + 4 * 8);
    assert_int_equal(batch->examples[0].bytes, 27);
    assert_ok(&err);
}

TEST_WITH(pointers_to_images_cannot_be_trained_on, open_batch, close_batch)
{
    tinkc_input *input = tinkc_input_new(client, &err);
    tinkc_input_add_tokens(input, ids, 1, &err);
    tinkc_input_add_image_pointer(input, "place", "png", -1, &err);
    assert_false(tinkc_batch_add(batch, input, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_string_equal(err.message, "input: chunk 1 is a pointer to an image, which cannot be trained on");
    assert_int_equal(tinkc_batch_count(batch), 0);
    tinkc_input_free(input);
}

/* ---- the same examples for other passes ---- */

TEST_WITH(other_batches_of_the_same_examples, open_batch, close_batch)
{
    assert_true(tinkc_batch_add_sft(batch, ids, 4, 1, &err));
    assert_true(tinkc_batch_add_tokens(batch, ids, 3, &err));
    assert_true(tinkc_batch_set_i64(batch, "target_tokens", (int64_t[]){ 1, 2, 3 }, 3, &err));
    tinkc_batch *from = batch, *shared = tkc_batch_share(from, &err);
    float *fresh[2] = { NULL, NULL };
    tinkc_batch *kept = tkc_batch_with_weights(from, NULL, &err);
    tinkc_batch *zeroed = tkc_batch_with_weights(from, fresh, &err);
    assert_ok(&err);
    size_t bytes = tinkc_batch_bytes(from);
    tinkc_batch_clear(from); /* what was made of it stays */
    assert_int_equal(tinkc_batch_count(from), 0);
    assert_int_equal(tinkc_batch_count(shared), 2);
    assert_int_equal(tinkc_batch_bytes(shared), bytes);
    batch = shared;
    assert_reads(0, ids, 3);
    assert_reads(1, ids, 3);
    assert_f32s(0, "weights", (float[]){ 1, 1, 1 }, 3);
    assert_null(tinkc_batch_tensor(batch, 1, "weights"));
    assert_null(tinkc_batch_tensor(batch, 2, "weights"));
    assert_null(tinkc_batch_tensor(NULL, 0, "weights"));
    assert_null(tinkc_batch_tensor(batch, 0, NULL));
    batch = kept;
    assert_reads(1, ids, 3);
    assert_f32s(0, "weights", (float[]){ 1, 1, 1 }, 3);
    assert_f32s(1, "weights", (float[]){ 0, 0, 0 }, 3);
    assert_i64s(1, "target_tokens", (int64_t[]){ 1, 2, 3 }, 3);
    fresh[1][2] = 0.5f;
    batch = zeroed;
    assert_f32s(0, "weights", (float[]){ 0, 0, 0 }, 3);
    assert_f32s(1, "weights", (float[]){ 0, 0, 0.5f }, 3);
    assert_reads(0, ids, 3);
    assert_int_equal(tinkc_batch_count(batch), 2);
    assert_int_equal(batch->examples[0].bytes, 3 * 4 + 3 * 8 + 3 * 4);
    batch = from;
    tinkc_batch_free(shared);
    tinkc_batch_free(kept);
    tinkc_batch_free(zeroed);
}

/* What is shown of one lies in its own memory: it stays good when the other is freed. */
TEST_WITH(views_of_a_shared_example_are_its_own, open_batch, close_batch)
{
    assert_true(tinkc_batch_add_sft(batch, ids, 4, 1, &err));
    assert_f32s(0, "weights", (float[]){ 1, 1, 1 }, 3);
    const tinkc_input *input = tinkc_batch_input(batch, 0);
    tinkc_batch *from = batch, *shared = tkc_batch_share(from, &err);
    assert_non_null(shared);
    assert_ptr_not_equal(tinkc_batch_input(shared, 0), input);
    batch = shared;
    assert_reads(0, ids, 3);
    assert_i64s(0, "target_tokens", (int64_t[]){ 11, 12, 13 }, 3);
    assert_true(tinkc_batch_set_f32(shared, "more", (float[]){ 7 }, 1, &err));
    assert_true(tinkc_batch_set_f32(from, "other", (float[]){ 8 }, 1, &err));
    assert_f32s(0, "more", (float[]){ 7 }, 1);
    batch = from;
    tinkc_batch_free(shared);
    assert_null(tinkc_batch_tensor(from, 0, "more"));
    assert_reads(0, ids, 3);
    assert_i64s(0, "target_tokens", (int64_t[]){ 11, 12, 13 }, 3);
}

/* Weights that are made have the shape of the targets, written out. */
TEST_WITH(weights_for_sparse_targets, open_batch, close_batch)
{
    static const int64_t shape[] = { 2, 3 }, rows[] = { 0, 1, 2 }, col[] = { 2, 0 };
    static const int64_t values[] = { 5, 6 };
    assert_true(tinkc_batch_add_tokens(batch, ids, 2, &err));
    tinkc_array targets = {
        .data = values, .count = 2, .shape = shape, .ndim = 2, .row_ptr = rows, .col = col, .dtype = TINKC_I64
    };
    assert_true(tinkc_batch_set(batch, "target_tokens", &targets, &err));
    tinkc_batch *from = batch;
    batch = tkc_batch_with_weights(from, NULL, &err);
    assert_ok(&err);
    assert_i64s(0, "target_tokens", (int64_t[]){ 0, 0, 5, 6, 0, 0 }, 6);
    assert_f32s(0, "weights", (float[6]){ 0 }, 6);
    assert_memory_equal(tinkc_batch_tensor(batch, 0, "weights")->shape, shape, sizeof shape);
    tinkc_batch_free(batch);
    batch = from;
}

/* ---- memory that ends in the middle ---- */

static tinkc_input *prompt;

static bool add_prompt(void)
{
    return tinkc_batch_add(batch, prompt, &err);
}

static bool add_tokens(void)
{
    return tinkc_batch_add_tokens(batch, ids, 5, &err);
}

static bool add_sft(void)
{
    return tinkc_batch_add_sft(batch, ids, 5, 2, &err);
}

static bool add_rl(void)
{
    static const float some[] = { 1, 2, 3 };
    return tinkc_batch_add_rl(batch, ids, 5, 2, some, some, &err);
}

static bool set_numbers(void)
{
    return tinkc_batch_set_f32(batch, "numbers", (float[]){ 1, 2, 3 }, 3, &err);
}

static bool set_integers(void)
{
    return tinkc_batch_set_i64(batch, "integers", (int64_t[]){ 1, 2, 3 }, 3, &err);
}

static bool set_sparse(void)
{
    static const int64_t shape[] = { 2, 9 }, rows[] = { 0, 1, 2 }, col[] = { 8, 0 };
    return tinkc_batch_set(batch, "sparse",
                           &(tinkc_array){ .data = (float[]){ 1, 2 },
                                           .count = 2,
                                           .shape = shape,
                                           .ndim = 2,
                                           .row_ptr = rows,
                                           .col = col,
                                           .dtype = TINKC_F32 },
                           &err);
}

static bool set_packed(void)
{
    static const int64_t shape[] = { 2, 9 };
    return tinkc_batch_set(
        batch, "packed",
        &(tinkc_array){
            .data = (float[18]){ 0, 3 }, .count = 18, .shape = shape, .ndim = 2, .dtype = TINKC_F32, .may_pack = true },
        &err);
}

static bool show_it(void)
{
    return tkc_batch_show(batch, 0, "weights", &err) != NULL;
}

/* Wherever memory ends, the call fails and the batch is what it was; with room it then succeeds. */
TEST_WITH(memory_that_ends, open_batch, close_batch)
{
    static bool (*const actions[])(void) = { add_prompt,   add_tokens, add_sft,    add_rl, set_numbers,
                                             set_integers, set_sparse, set_packed, show_it };
    prompt = tinkc_input_new(client, &err);
    tinkc_input_add_tokens(prompt, ids, 5, &err);
    tinkc_input_add_image(prompt, "abc", 3, "png", -1, &err);
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        tinkc_batch_clear(batch);
        assert_true(tinkc_batch_add_sft(batch, ids, 5, 1, &err));
        tkc_arena *arena = &batch->store->arena;
        (void)tkc_arena_alloc(arena, 4096, &err);
        assert_ok(&err);
        arena->max = arena->taken;
        size_t room = 0, n = tinkc_batch_count(batch), bytes = tinkc_batch_bytes(batch);
        for (;; room += 16) {
            assert_true(room < 4096);
            arena->at = arena->end - room; /* of the 4096 bytes */
            if (actions[i]())
                break;
            assert_int_equal(err.code, TINKC_E_MEMORY);
            assert_int_equal(tinkc_batch_count(batch), n);
            assert_int_equal(tinkc_batch_bytes(batch), bytes);
            err = (tinkc_error){ 0 };
        }
        assert_ok(&err);
        assert_true(room > 0);
        arena->max = 0;
    }
    tinkc_input_free(prompt);
}

/* The batches made of another: whichever allocation fails, there is none. */
TEST_WITH(no_memory_for_another_batch, open_batch, close_batch)
{
    enum { MOST = 280 };
    scarce s = { .thread = pthread_self() };
    tinkc_allocator allocator = scarce_allocator(&s);
    tinkc_client *lean = mock_client(mock, &(tinkc_client_options){ .allocator = &allocator }, &err);
    int64_t targets[MOST] = { 0 };
    for (size_t len = 1; len < MOST; len += 4) { /* a block ends at each place in turn */
        tinkc_batch *from = tinkc_batch_new(lean, &err);
        assert_true(tinkc_batch_add_tokens(from, ids, 2, &err));
        assert_true(tinkc_batch_set_i64(from, "target_tokens", targets, len, &err));
        for (int64_t until = 1; until < 8; until++) {
            s.until = until;
            s.failed = false;
            tinkc_batch *made = until % 2 ? tkc_batch_with_weights(from, NULL, &err) : tkc_batch_share(from, &err);
            s.until = 0;
            assert_int_equal(made == NULL, s.failed);
            assert_int_equal(err.code, s.failed ? TINKC_E_MEMORY : 0);
            err = (tinkc_error){ 0 };
            tinkc_batch_free(made);
        }
        tinkc_batch_free(from);
    }
    tinkc_client_free(lean);
    assert_true(counting_is_empty_soon(&s.all));
}
