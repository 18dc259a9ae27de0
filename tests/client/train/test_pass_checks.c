/* test_pass_checks.c - what is checked of a pass, before it is sent and when it comes back. */
#include <math.h>
#include <stdatomic.h>
#include <sys/utsname.h>
#include "support/client/mock_fixture.h"

TEST_WITH(names_of_one_letter, begin_work, end_fixture)
{
    fixture *x = *state;
    tinkc_future *f = tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .base_model = "m" }, &x->err);
    settle(x);
    const tinkc_request *r = nth_request(x->mock, API "create_sampling_session", 0);
    assert_non_null(r);
    assert_non_null(memmem(r->body.data, r->body.len, "\"base_model\":\"m\"", 16));
    tinkc_future_free(f);
}

/* An example without targets may have any number of log-probs. */
TEST_WITH(examples_without_targets, begin_work, end_fixture)
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
TEST_WITH(the_last_id_is_checked, begin_work, end_fixture)
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

TEST_WITH(each_gradient_is_checked, begin_work, end_fixture)
{
    fixture *x = *state;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 5; k++) {
            size_t at[] = { i, k };
            char want[100];
            tinkc_future *f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, spoil, at, &x->err);
            if (f)
                (void)tinkc_future_wait(f, PATIENCE_MS, &x->err);
            (void)snprintf(want, sizeof want, "the loss function left gradient %zu of example %zu non-finite", k, i);
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

TEST_WITH(the_loss_itself_is_checked, begin_work, end_fixture)
{
    fixture *x = *state;
    static double numbers[] = { NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < 4; i++) {
        double *value = i < 3 ? &numbers[i] : NULL;
        assert_null(tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, set_number, value, &x->err));
        check_error(x, TINKC_E_CALLBACK,
                    value ? "the loss function set no finite loss" : "the loss function set no loss");
    }
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 4); /* the first passes */
}

TEST_WITH(what_cannot_be_sent_is_refused_at_once, begin_work, end_fixture)
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
                                       &(tinkc_loss_options){ .names = names, .values = values }, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "a name in loss_fn_config is not UTF-8");
    assert_null(tinkc_forward_backward(x->trainer, x->batch, "odd \xff", NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "loss_fn is not UTF-8");
    assert_null(tinkc_tokenizer_fetch(x->client, "", NULL, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "model is empty");
    assert_null(tinkc_tokenizer_fetch(x->client, NULL, NULL, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "model is empty");
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
}

/* A pass behind another one has sent nothing: it did not run. The one before it may have. */
TEST_WITH(a_pass_that_never_left_did_not_run, begin_work, end_fixture)
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

TEST_WITH(scores_that_are_not_there, begin_work, end_fixture)
{
    fixture *x = *state;
    tinkc_input *input = tinkc_input_new(x->client, &x->err);
    tinkc_input_add_tokens(input, ids, 3, &x->err);
    for (int i = 0; i < 2; i++) {
        tinkc_mock_once(x->mock, NULL, API "retrieve_future",
                        &(tinkc_mock_answer){ .body = "{\"sequences\":[{\"tokens\":[1],\"logprobs\":[-1],"
                                                      "\"stop_reason\":\"length\"}]}" },
                        &x->err);
        tinkc_future *f =
            i ? tinkc_logprobs_input(x->sampler, input, &x->err) : tinkc_logprobs(x->sampler, ids, 3, &x->err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        assert_int_equal(x->err.flags & (TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN),
                         TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN);
        check_error(x, TINKC_E_BAD_RESPONSE, "the answer holds no prompt log-probabilities");
        tinkc_future_free(f);
    }
    tinkc_input_free(input);
}

#define PASS API "forward_backward"

static const char *type_of(fixture *x, size_t i)
{
    return request_header(nth_request(x->mock, PASS, i), "Content-Type");
}

/* A service that fails at JSON, too, is broken: it does not get protobuf once more. */
TEST_WITH(json_that_fails_is_final, begin_work, end_fixture)
{
    fixture *x = *state;
    static const struct {
        int32_t json; /* its status for JSON */
        size_t requests;
    } rows[] = { { 400, 3 }, { 499, 3 }, { 500, 2 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        const int32_t statuses[] = { 500, rows[i].json, 403 };
        tinkc_client *client = mock_client(
            x->mock,
            &(tinkc_client_options){ .api_key = "tml-key", .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO },
            &x->err);
        tinkc_trainer *t = tinkc_trainer_new(client, &lora, &x->err);
        tinkc_mock_forget(x->mock);
        for (size_t k = 0; k < rows[i].requests; k++)
            tinkc_mock_once(x->mock, NULL, PASS, &(tinkc_mock_answer){ .status = statuses[k], .body = "{}" }, &x->err);
        tinkc_future *f = tinkc_forward_backward(t, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
        assert_true(run_until_done(x->mock, f, 3600 * 1000));
        assert_false(tinkc_future_wait(f, 0, &err));
        assert_int_equal(err.http_status, statuses[rows[i].requests - 1]);
        assert_int_equal(tinkc_mock_count(x->mock, PASS), rows[i].requests);
        for (size_t k = 0; k < rows[i].requests; k++)
            assert_string_equal(type_of(x, k), k == 1 ? "application/json" : "application/x-protobuf");
        assert_ok(&x->err);
        tinkc_future_free(f);
        tinkc_trainer_free(t);
        tinkc_client_free(client);
    }
}
