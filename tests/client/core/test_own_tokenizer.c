/* test_own_tokenizer.c - the tokenizers of trainers and samplers: the service names the model, each asks once, and what
 * cannot be found is an error of that call. No hub is asked: tokenizers are registered, or the hub is switched off. */
#include "support/client/api_support.h"
#include "tinkc/tokenizer.h"

#define API "/api/v1/"

static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
    "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
    "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
    "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":"
    "[\"a b\"]}}";

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
} fixture;

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    setenv("HF_HUB_OFFLINE", "1", 1); /* read by the client when it is made */
    setenv("HF_HUB_CACHE", "/tmp/tinkc-no-such-cache", 1);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock, &(tinkc_client_options){ .api_key = "tml-key" }, &x->err);
    unsetenv("HF_HUB_OFFLINE");
    unsetenv("HF_HUB_CACHE");
    x->trainer = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

static void register_one(fixture *x, const char *model)
{
    tinkc_tokenizer *t = tinkc_tokenizer_parse(tokenizer_json, strlen(tokenizer_json), NULL, 0, NULL, &x->err);
    assert_ok(&x->err);
    assert_true(tinkc_tokenizer_register(x->client, model, t, &x->err));
    tinkc_tokenizer_free(t);
}

static void check_works(fixture *x, const tinkc_tokenizer *t)
{
    tinkc_tokens ids = { 0 };
    assert_ok(&x->err);
    assert_non_null(t);
    assert_true(tinkc_encode(t, "aba", &ids, &x->err));
    assert_int_equal(ids.len, 2);
    assert_int_equal(ids.data[0], 2);
    tinkc_tokens_free(&ids);
}

TEST_WITH(each_asks_once, setup, teardown)
{
    fixture *x = *state;
    register_one(x, "mock/nano");
    const tinkc_tokenizer *first = tinkc_trainer_tokenizer(x->trainer, &x->err);
    check_works(x, first);
    assert_ptr_equal(tinkc_trainer_tokenizer(x->trainer, &x->err), first);
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 1);
    assert_int_equal(tinkc_mock_count(x->mock, API "get_info"), 1);
    const tinkc_tokenizer *second = tinkc_sampler_tokenizer(x->sampler, &x->err);
    check_works(x, second);
    assert_ptr_equal(tinkc_sampler_tokenizer(x->sampler, &x->err), second);
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 2);
    const tinkc_request *r = tinkc_mock_request(x->mock, 1);
    assert_memory_equal(r->path, API "samplers/", strlen(API "samplers/"));
}

/* What the service answers, and how the call then ends. */
TEST_WITH(models_without_a_tokenizer, setup, teardown)
{
    static const struct {
        const char *body;
        int32_t status, code;
        const char *message;
    } rows[] = {
        { "{\"model_id\":\"m\",\"model_data\":{\"model_name\":\"\"}}", 200, TINKC_E_TOKENIZER,
          "the service does not say which model this is" },
        { "{\"model_id\":\"m\",\"model_data\":{\"model_name\":\"org/one\"}}", 200, TINKC_E_OFFLINE,
          "the tokenizer of org/one is not in " },
        { "{\"model_id\":\"m\",\"model_data\":{\"model_name\":\"org/one\",\"tokenizer_id\":\"\"}}", 200,
          TINKC_E_OFFLINE, "the tokenizer of org/one is not in " },
        { "{\"model_id\":\"m\",\"model_data\":{\"model_name\":\"org/one\",\"tokenizer_id\":"
          "\"org/two\"}}",
          200, TINKC_E_OFFLINE, "the tokenizer of org/two is not in " },
        { "{\"model_id\":\"m\",\"model_data\":{\"model_name\":\"org/one\",\"tokenizer_id\":\"t\"}}", 200,
          TINKC_E_OFFLINE, "the tokenizer of t is not in " },
        { "{}", 404, TINKC_E_NOT_FOUND, "HTTP 404" },
    };
    fixture *x = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_once(x->mock, NULL, API "get_info",
                        &(tinkc_mock_answer){ .status = rows[i].status, .body = rows[i].body }, &x->err);
        assert_ok(&x->err);
        assert_null(tinkc_trainer_tokenizer(x->trainer, &x->err));
        assert_int_equal(x->err.code, rows[i].code);
        assert_memory_equal(x->err.message, rows[i].message, strlen(rows[i].message));
        x->err = (tinkc_error){ 0 };
    }
    assert_null(tinkc_sampler_tokenizer(x->sampler, &x->err));
    assert_int_equal(x->err.code, TINKC_E_OFFLINE);
    assert_memory_equal(x->err.message, "the tokenizer of mock/nano is not in ", 37);
    x->err = (tinkc_error){ 0 };
    register_one(x, "mock/nano"); /* a failure is not kept */
    check_works(x, tinkc_trainer_tokenizer(x->trainer, &x->err));
    check_works(x, tinkc_sampler_tokenizer(x->sampler, &x->err));
}

/* On the client's own thread: waiting there would never end. */
static void on_log(int32_t level, const char *line, void *user)
{
    fixture *x = user;
    (void)level;
    (void)line;
    if (x->err.code)
        return;
    assert_null(x->trainer ? tinkc_trainer_tokenizer(x->trainer, &x->err)
                           : tinkc_sampler_tokenizer(x->sampler, &x->err));
}

TEST_WITH(wrong_arguments_and_threads, setup, teardown)
{
    fixture *x = *state;
    assert_null(tinkc_trainer_tokenizer(NULL, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    assert_string_equal(x->err.message, "trainer: must not be NULL");
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_sampler_tokenizer(NULL, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    assert_string_equal(x->err.message, "sampler: must not be NULL");
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_tokenizer_fetch(NULL, "mock/nano", NULL, NULL, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    for (int i = 0; i < 2; i++) {
        fixture own = { .err.code = TINKC_E_STATE }; /* nothing is asked yet */
        tinkc_client *client =
            mock_client(x->mock,
                        &(tinkc_client_options){
                            .api_key = "tml-key", .log = on_log, .log_user = &own, .log_level = TINKC_LOG_DEBUG },
                        &x->err);
        tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
        tinkc_sampler *sampler =
            tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
        assert_ok(&x->err);
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        own = (fixture){ .trainer = i ? NULL : trainer, .sampler = sampler };
        tinkc_mock_once(x->mock, NULL, API "healthz", &(tinkc_mock_answer){ .status = 503 }, &x->err);
        tinkc_future *f = tinkc_health_check(client, &x->err); /* its next attempt is logged */
        assert_true(run_until_done(x->mock, f, 60000));
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        assert_int_equal(own.err.code, TINKC_E_THREAD);
        tinkc_future_free(f);
        tinkc_trainer_free(trainer);
        tinkc_sampler_free(sampler);
        tinkc_client_free(client);
    }
}
