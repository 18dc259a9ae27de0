/* test_edges.c - messages at their edges: what holds when a field is missing, limits to the last
 * value, exact texts of refusals, and memory that ends at every place in turn. */
#include "support/check.h"
#include "support/scratch.h"

#include <math.h>

#include "wire/answer.h"
#include "wire/messages.h"
#include "wire/sample_message.h"
#include "wire/tensor.h"

/* ---- what holds when nothing is said ---- */

static void decode(const tkc_message *type, const char *json, void *msg)
{
    tinkc_error err = { 0 };
    tkc_message_decode(type, tkc_str(json), TINKC_E_BAD_RESPONSE, &arena, msg, &err);
    assert_ok(err);
}

TEST_WITH(defaults_of_the_service, set_up, tear_down)
{
    tkc_config_response c;
    decode(&tkc_config_response_type, "{}", &c);
    assert_false(c.pjwt_auth_enabled);
    assert_string_equal(c.credential_default_source, "api_key");
    assert_int_equal(c.sample_dispatch_bytes_semaphore_size, 10485760);
    assert_int_equal(c.inflight_response_bytes_semaphore_size, 52428800);
    assert_true(c.parallel_fwdbwd_chunks);
    assert_false(c.proto_compress_fwdbwd);
    assert_int_equal(c.fwdbwd_max_chunk_len, 1024);
    assert_int_equal(c.fwdbwd_max_chunk_bytes_count, 5000000);
    assert_int_equal(c.fwdbwd_dispatch_bytes_semaphore_size, 50000000);
    assert_int_equal(c.billing_exception_max_pause_duration_sec, 3600);
    assert_false(c.sample_no_retries);
    assert_true(c.sample_enable_stuck_detection);
    assert_int_equal(c.sample_max_concurrent_requests, 2000);
    assert_true(c.use_pyqwest_transport);
    assert_false(c.create_model_via_load_weights);
    tkc_dynamic_config_response d;
    decode(&tkc_dynamic_config_response_type, "{}", &d);
    assert_int_equal(d.refresh_interval_sec, 300);
    assert_false(d.sample_cancel_enabled);
    assert_int_equal(d.sample_cancel_max_batch_size, 64);
}

static void assert_adam(const tkc_adam_params *p)
{
    assert_true(p->learning_rate == 0.0001 && p->beta1 == 0.9 && p->beta2 == 0.95 && p->eps == 1e-12 &&
                p->weight_decay == 0 && p->grad_clip_norm == 0);
}

TEST_WITH(defaults_of_requests, set_up, tear_down)
{
    tkc_adam_params adam;
    tkc_optim_step_request step;
    tkc_lora_config lora;
    tkc_sampling_params sampling;
    decode(&tkc_adam_params_type, "{}", &adam);
    assert_adam(&adam);
    tkc_message_init(&tkc_optim_step_request_type, &step);
    assert_adam(&step.adam_params);
    decode(&tkc_lora_config_type, "{\"rank\":1}", &lora);
    assert_true(lora.train_unembed && lora.train_mlp && lora.train_attn);
    assert_int_equal(lora.seed.is, TKC_ABSENT);
    decode(&tkc_sampling_params_type, "{}", &sampling);
    assert_true(sampling.temperature == 1 && sampling.top_k == -1 && sampling.top_p == 1);
    assert_int_equal(sampling.max_tokens.is, TKC_ABSENT);
    assert_int_equal(sampling.seed.is, TKC_ABSENT);
    assert_int_equal(sampling.stop.kind, TKC_STOP_NONE);
    tkc_search_request search;
    decode(&tkc_search_request_type, "{}", &search);
    assert_int_equal(search.limit, 50);
    assert_string_equal(search.owner.type, "own");
}

/* Seconds, or milliseconds where seconds would be centuries away; what no clock holds has no time. */
TEST_WITH(times_as_numbers, set_up, tear_down)
{
    static const struct {
        const char *text;
        int64_t want;
    } rows[] = { { "0", 0 },
                 { "1.5", 1500000 },
                 { "-1.5", -1500000 },
                 { "20000000000", INT64_C(20000000000000000) },
                 { "20000000001", INT64_C(20000000001000) },
                 { "-20000000000", INT64_C(-20000000000000000) },
                 { "-20000000001", INT64_C(-20000000001000) },
                 { "8.9e15", INT64_C(8900000000000000000) },
                 { "-8.9e15", INT64_C(-8900000000000000000) },
                 { "9e15", TINKC_NO_TIME },
                 { "-9e15", TINKC_NO_TIME },
                 { "9.1e15", TINKC_NO_TIME },
                 { "1e300", TINKC_NO_TIME },
                 { "\"no time\"", TINKC_NO_TIME } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200];
        tkc_telemetry_event e;
        (void)snprintf(text, sizeof text,
                       "{\"event\":\"GENERIC_EVENT\",\"event_id\":\"i\",\"event_session_index\":0,"
                       "\"severity\":\"INFO\",\"event_data\":null,\"timestamp\":%s}",
                       rows[i].text);
        decode(&tkc_telemetry_event_type, text, &e);
        if (e.timestamp.us != rows[i].want)
            fail_msg("%s: %lld", rows[i].text, (long long)e.timestamp.us);
    }
}

/* U+0000 ends a text of C: where it would cut a name short, it is refused. */
TEST_WITH(names_with_a_zero, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_request r;
    tkc_forward_backward_output o;
    assert_false(tkc_forward_backward_from_json(
        tkc_str("{\"model_id\":\"m\",\"forward_input\":{\"data\":[{\"model_input\":{\"chunks\":[]},"
                "\"loss_fn_inputs\":{\"a\\u0000b\":{\"data\":[1],\"dtype\":\"int64\"}}}],"
                "\"loss_fn\":\"x\"}}"),
        TINKC_E_BAD_RESPONSE, &arena, &r, NULL, &err));
    assert_non_null(strstr(err.message, "U+0000 in a key"));
    err = (tinkc_error){ 0 };
    assert_false(tkc_output_from_json(
        tkc_str("{\"loss_fn_output_type\":\"t\",\"metrics\":{},\"loss_fn_outputs\":[{\"a\\u0000b\":"
                "{\"data\":[1],\"dtype\":\"int64\"}}]}"),
        &arena, &o, &err));
    assert_non_null(strstr(err.message, "U+0000 in a key"));
}

/* The name of every output is looked at before anything is written. */
TEST_WITH(names_that_cannot_be_sent, set_up, tear_down)
{
    tkc_batched_tensor fields[] = { { .name = "a", .dtype = TINKC_I64 }, { .name = "b", .dtype = TINKC_I64 } };
    for (size_t bad = 0; bad < 3; bad++) {
        tinkc_error err = { 0 };
        tkc_array_record record = { .fields = { fields, 2 } };
        tkc_forward_backward_output o = { .type = "t", .records = { &record, 1 } };
        fields[0].name = bad == 0 ? "a\xFF" : "a";
        fields[1].name = bad == 1 ? "b\xFF" : "b";
        tkc_buf_clear(&out);
        assert_int_equal(tkc_output_to_pb(&o, &out, &err), bad == 2);
        if (bad < 2)
            assert_non_null(strstr(err.message, "the name of an output"));
    }
}

/* ---- members that may be null ---- */

TEST_WITH(null_is_not_a_value, set_up, tear_down)
{
    tkc_lora_config lora;
    tkc_stream_event e;
    tkc_supported_model m;
    decode(&tkc_lora_config_type, "{\"rank\":1,\"seed\":null}", &lora);
    assert_int_equal(lora.seed.is, TKC_NULL);
    decode(&tkc_lora_config_type, "{\"rank\":1,\"seed\":0}", &lora);
    assert_true(lora.seed.is == TKC_GIVEN && lora.seed.value == 0 && !lora.seed.negative);
    decode(&tkc_lora_config_type, "{\"rank\":1,\"seed\":-1}", &lora);
    assert_true(lora.seed.is == TKC_GIVEN && lora.seed.negative);
    decode(&tkc_stream_event_type, "{\"event_type\":\"token\",\"logprob\":null,\"index\":null}", &e);
    assert_int_equal(e.logprob.is, TKC_NULL);
    assert_int_equal(e.index.is, TKC_NULL);
    assert_int_equal(e.token_id.is, TKC_ABSENT);
    decode(&tkc_supported_model_type, "{\"trainable\":null,\"sampleable\":true}", &m);
    assert_int_equal(m.trainable.is, TKC_NULL);
    assert_true(m.sampleable.is == TKC_GIVEN && m.sampleable.value);
}

/* ---- notes of users ---- */

TEST_WITH(metadata_is_written, set_up, tear_down)
{
    static const struct {
        const char *pairs[5];
        const char *want; /* NULL = refused */
    } rows[] = { { { "a", "1", "b", "2", NULL }, "{\"a\":\"1\",\"b\":\"2\"}" },
                 { { "a", "", NULL }, "{\"a\":\"\"}" },
                 { { NULL }, "{}" },
                 { { "a", NULL }, "{}" },
                 { { "a\xFF", "1", NULL }, NULL },
                 { { "a", "\xFF", NULL }, NULL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        static const char *const no_tags[] = { NULL };
        tkc_create_session_request r;
        tkc_message_init(&tkc_create_session_request_type, &r);
        r.tags = no_tags;
        r.sdk_version = "v";
        r.user_metadata.pairs = rows[i].pairs;
        tkc_buf_clear(&out);
        bool done = tkc_message_encode(&tkc_create_session_request_type, &r, &out, &err);
        assert_int_equal(done, rows[i].want != NULL);
        if (!done) {
            assert_int_equal(err.code, TINKC_E_ARGUMENT);
            assert_string_equal(err.message, "text to be sent is not UTF-8");
            continue;
        }
        const char *text = tkc_buf_terminate(&out, &err);
        char want[100];
        (void)snprintf(want, sizeof want,
                       "{\"tags\":[],\"user_metadata\":%s,\"sdk_version\":\"v\","
                       "\"type\":\"create_session\"}",
                       rows[i].want);
        assert_string_equal(text, want);
    }
}

/* ---- results of samples ---- */

/* Scored targets and alternative tokens of the prompt, in both forms. */
TEST_WITH(prompt_work_travels, set_up, tear_down)
{
    static const char json[] =
        "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[5]}],"
        "\"target_prompt_logprobs\":{\"data\":[-0.5,-1.0],\"dtype\":\"float32\",\"shape\":[2,1]},"
        "\"prompt_alt_tokens\":{\"tokens\":{\"data\":[7,8],\"dtype\":\"int64\",\"shape\":[1,2]},"
        "\"logprobs\":{\"data\":[-2.0,-3.0],\"dtype\":\"float32\",\"shape\":[1,2]}},"
        "\"prompt_cache_hit_tokens\":4}";
    tinkc_error err = { 0 };
    tkc_sample_response r, again;
    assert_true(tkc_sample_response_from_json(tkc_str(json), &arena, &r, &err));
    tkc_buf_clear(&out);
    assert_true(tkc_sample_response_to_pb(&r, &out, &err));
    tinkc_bytes bytes = { (const unsigned char *)exact_copy(out.data, out.len), out.len };
    assert_true(tkc_sample_response_from_pb(bytes, &arena, &again, &err));
    assert_int_equal(again.target_prompt_logprobs.count, 2);
    assert_int_equal(again.alt_tokens.count, 2);
    assert_int_equal(again.alt_logprobs.count, 2);
    tkc_buf_clear(&out);
    assert_true(tkc_sample_response_to_json(&again, &out, &err));
    assert_ok(err);
    assert_str(tkc_buf_view(&out), json);
    free_copy((char *)(uintptr_t)bytes.data, bytes.len);
    /* null and members that are not known are passed over */
    assert_true(tkc_sample_response_from_json(
        tkc_str("{\"sequences\":[],\"target_prompt_logprobs\":null,\"prompt_alt_tokens\":null,"
                "\"prompt_cache_hit_tokens\":null,\"topk_prompt_logprobs\":null,\"new\":[1]}"),
        &arena, &r, &err));
    assert_true(!r.target_prompt_logprobs.dtype && !r.alt_tokens.dtype && !r.topk.ids.data);
    assert_int_equal(r.prompt_cache_hit_tokens, 0);
    assert_true(tkc_sample_response_from_json(
        tkc_str("{\"sequences\":[{\"tokens\":[],\"new\":{}}],\"prompt_alt_tokens\":{\"new\":1}}"), &arena, &r, &err));
    assert_ok(err);
}

TEST_WITH(sample_results_that_are_refused, set_up, tear_down)
{
    static const char *const rows[][2] = {
        { "{}", "a sample result without sequences" },
        { "{\"sequences\":[{}]}", "a sequence without tokens" },
        { "{\"sequences\":[],\"topk_prompt_logprobs\":[[[2147483648,-1]]]}", "a token that does not fit 32 bits" },
        { "{\"sequences\":[],\"topk_prompt_logprobs\":[[[-2147483649,-1]]]}", "a token that does not fit 32 bits" },
        { "{\"sequences\":[],\"topk_prompt_logprobs\":[[[1]]]}", "a candidate without log-probability" },
        { "{\"sequences\":[],\"topk_prompt_logprobs\":[[[1,2,3]]]}", "a candidate of more than two numbers" },
        { "{\"sequences\":[],\"target_prompt_logprobs\":{\"data\":[1]}}", "a tensor needs data and dtype" },
        { "{\"sequences\":[],\"target_prompt_logprobs\":{\"dtype\":\"int64\"}}", "a tensor needs data and dtype" },
        { "{\"sequences\":[],\"target_prompt_logprobs\":{\"data\":[1],\"dtype\":\"int8\"}}",
          "dtype must be float32 or int64" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_sample_response r;
        assert_false(tkc_sample_response_from_json(tkc_str(rows[i][0]), &arena, &r, &err));
        if (!strstr(err.message, rows[i][1]))
            fail_msg("row %zu: %s", i, err.message);
    }
}

/* 32 bits hold from -2^31 to 2^31 - 1; cached tokens are held within 0 and that. */
TEST_WITH(numbers_of_samples, set_up, tear_down)
{
    static const struct {
        const char *text;
        int32_t want;
    } cached[] = { { "-1", 0 }, { "0", 0 }, { "1", 1 }, { "2147483647", INT32_MAX }, { "9999999999", INT32_MAX } };
    tinkc_error err = { 0 };
    tkc_sample_response r;
    const int32_t *ids;
    const float *logprobs;
    assert_true(tkc_sample_response_from_json(
        tkc_str("{\"sequences\":[],\"topk_prompt_logprobs\":[[[2147483647,-1],[-2147483648,-2]],[],"
                "null,[[3,-3]]]}"),
        &arena, &r, &err));
    assert_true(r.topk.k == 2 && r.topk.rows == 4);
    assert_int_equal(tkc_topk_row(&r.topk, 0, &ids, &logprobs), 2);
    assert_true(ids[0] == INT32_MAX && ids[1] == INT32_MIN && logprobs[1] == -2);
    assert_int_equal(tkc_topk_row(&r.topk, 1, &ids, &logprobs), 0);
    assert_int_equal(tkc_topk_row(&r.topk, 3, &ids, &logprobs), 1);
    assert_true(tkc_sample_response_from_json(tkc_str("{\"sequences\":[],\"topk_prompt_logprobs\":[[],null,[]]}"),
                                              &arena, &r, &err));
    assert_true(r.topk.k == 0 && r.topk.rows == 0 && !r.topk.ids.data); /* nobody has any */
    for (size_t i = 0; i < sizeof cached / sizeof *cached; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "{\"sequences\":[],\"prompt_cache_hit_tokens\":%s}", cached[i].text);
        assert_true(tkc_sample_response_from_json(tkc_str(text), &arena, &r, &err));
        assert_int_equal(r.prompt_cache_hit_tokens, cached[i].want);
    }
    assert_ok(err);
}

/* A row ends where unused cells begin; one that begins with an unused cell was not computed. */
TEST_WITH(rows_of_candidates, set_up, tear_down)
{
    static const struct {
        int32_t ids[3];
        float logprobs[3];
        size_t want;
    } rows[] = {
        { { 1, 2, 3 }, { -1, -2, -3 }, 3 },
        { { 1, 2, 0 }, { -1, -2, TKC_TOPK_NONE }, 2 },
        { { 1, 0, 0 }, { -1, TKC_TOPK_NONE, TKC_TOPK_NONE }, 1 },
        { { 0, 0, 0 }, { TKC_TOPK_NONE, TKC_TOPK_NONE, TKC_TOPK_NONE }, 0 },
        { { 0, 2, 3 }, { TKC_TOPK_NONE, -2, -3 }, 0 },
        { { 0, 2, 3 }, { -1, -2, -3 }, 3 },            /* token 0 is a token */
        { { 1, 2, 3 }, { TKC_TOPK_NONE, -2, -3 }, 3 }, /* and this a log-probability */
        { { 1, 2, 0 }, { -1, -2, -3 }, 3 },
        { { 1, 2, 3 }, { -1, -2, TKC_TOPK_NONE }, 3 },
        { { 1, 0, 3 }, { -1, TKC_TOPK_NONE, -3 }, 3 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int32_t *ids;
        const float *logprobs;
        tkc_topk t = { { rows[i].ids, 3 }, { rows[i].logprobs, 3 }, 3, 1 };
        if (tkc_topk_row(&t, 0, &ids, &logprobs) != rows[i].want)
            fail_msg("row %zu", i);
        assert_int_equal(tkc_topk_row(&t, 1, &ids, &logprobs), 0);
    }
}

/* ---- tensors ---- */

TEST_WITH(sparse_tensors_are_checked, set_up, tear_down)
{
    static const struct {
        int64_t shape[3];
        size_t n_shape;
        int64_t crow[4];
        size_t n_crow;
        int64_t col[3];
        size_t n_col, count;
        const char *why; /* NULL = fine */
    } rows[] = {
        { { 2, 3 }, 2, { 0, 1, 2 }, 3, { 0, 2 }, 2, 2, NULL },
        { { 0, 0 }, 2, { 0 }, 1, { 0 }, 0, 0, NULL },
        { { 1, 0 }, 2, { 0, 0 }, 2, { 0 }, 0, 0, NULL },
        { { 0, 3 }, 2, { 0 }, 1, { 0 }, 0, 0, NULL },
        { { 2 }, 1, { 0, 1, 2 }, 3, { 0, 2 }, 2, 2, "a sparse tensor needs a shape of two dimensions" },
        { { 1, 2, 3 }, 3, { 0, 1 }, 2, { 0 }, 1, 1, "a sparse tensor needs a shape of two dimensions" },
        { { 1, 3 }, 2, { 0, 1, 2 }, 3, { 0, 2 }, 2, 2, "it needs one row pointer more than rows" },
        { { 3, 3 }, 2, { 0, 1, 2 }, 3, { 0, 2 }, 2, 2, "it needs one row pointer more than rows" },
        { { 0, 3 }, 2, { 0 }, 0, { 0 }, 0, 0, "it needs one row pointer more than rows" },
        { { 2, 3 }, 2, { 0, 1, 2 }, 3, { 0 }, 1, 2, "it needs as many column numbers as values" },
        { { 2, 3 },
          2,
          { 1, 1, 2 },
          3,
          { 0, 2 },
          2,
          2,
          "its row pointers must begin at 0 and end at the number of values" },
        { { 2, 3 },
          2,
          { 0, 1, 1 },
          3,
          { 0, 2 },
          2,
          2,
          "its row pointers must begin at 0 and end at the number of values" },
        { { 3, 3 }, 2, { 0, 2, 1, 2 }, 4, { 0, 2 }, 2, 2, "its row pointers must not fall" },
        { { 2, 3 }, 2, { 0, 1, 2 }, 3, { 0, 3 }, 2, 2, "a column number lies outside its shape" },
        { { 2, 3 }, 2, { 0, 1, 2 }, 3, { -1, 2 }, 2, 2, "a column number lies outside its shape" },
        { { -1, 3 }, 2, { 0 }, 1, { 0 }, 0, 0, "its shape is negative or too large" },
    };
    static const float values[3] = { 1, 2, 3 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        char want[100] = "";
        tkc_tensor t = { .data = values,
                         .count = rows[i].count,
                         .shape = { rows[i].shape, rows[i].n_shape },
                         .crow = { rows[i].crow, rows[i].n_crow },
                         .col = { rows[i].col, rows[i].n_col },
                         .dtype = TINKC_F32,
                         .sparse = true };
        bool fine = tkc_tensor_check(&t, "x", &err);
        if (rows[i].why)
            (void)snprintf(want, sizeof want, "x: %s", rows[i].why);
        if (fine != !rows[i].why || strcmp(err.message, want) != 0)
            fail_msg("row %zu: %s", i, err.message);
        assert_int_equal(err.code, fine ? 0 : TINKC_E_TENSOR);
    }
}

TEST_WITH(a_tensor_is_dense_or_sparse, set_up, tear_down)
{
    tinkc_error err = { 0 };
    static const float values[] = { 1, 2 };
    static const int64_t shape[] = { 2, 3 }, crow[] = { 0, 1, 2 }, col[] = { 1, 2 };
    tinkc_tensor dense;
    tkc_tensor flat = { .data = values, .count = 2, .dtype = TINKC_F32 };
    assert_true(tkc_tensor_dense(&flat, &arena, &dense, &err));
    assert_true(dense.ndim == 1 && dense.shape[0] == 2 && dense.count == 2 && dense.data == values);
    tkc_tensor sparse = { .data = values,
                          .count = 2,
                          .shape = { shape, 2 },
                          .crow = { crow, 3 },
                          .col = { col, 2 },
                          .dtype = TINKC_F32,
                          .sparse = true };
    assert_true(tkc_tensor_dense(&sparse, &arena, &dense, &err));
    static const float unfolded[] = { 0, 1, 0, 0, 0, 2 };
    assert_true(dense.ndim == 2 && dense.count == 6 && dense.dtype == TINKC_F32);
    assert_memory_equal(dense.data, unfolded, sizeof unfolded);
    tkc_buf_clear(&out);
    tkc_jsonw w;
    tkc_jsonw_open(&w, &out, &err);
    tkc_tensor narrow = { .data = values, .count = 2, .dtype = TINKC_BF16 };
    tkc_tensor_write(&w, &narrow);
    assert_int_equal(err.code, TINKC_E_TENSOR);
    assert_string_equal(err.message, "JSON carries float32 and int64 only");
}

/* The text of a message begins with its brace, whatever stands before it. */
TEST_WITH(texts_of_messages, set_up, tear_down)
{
    static const char run[] = "{ \"training_run_id\":\"q\",\"base_model\":\"m\",\"model_owner\":\"o\","
                              "\"is_lora\":false,\"last_request_time\":\"2026-01-03T00:00:00Z\" }";
    char json[400];
    tkc_training_runs_response r;
    (void)snprintf(json, sizeof json,
                   "{\"training_runs\":[ \n%s ],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":1}}", run);
    decode(&tkc_training_runs_response_type, json, &r);
    assert_int_equal(r.training_runs.len, 1);
    assert_int_equal(r.training_runs.data[0].json.len, sizeof run - 1);
    assert_memory_equal(r.training_runs.data[0].json.data, run, sizeof run - 1);
}

/* A sparse tensor that was written is whole when it is read. */
TEST_WITH(sparse_tensors_travel, set_up, tear_down)
{
    tinkc_error err = { 0 };
    static const float values[] = { 1, 2 };
    static const int64_t shape[] = { 2, 3 }, crow[] = { 0, 1, 2 }, col[] = { 1, 2 };
    static const int32_t ids[] = { 1 };
    tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS, .expected_tokens = -1, .tokens = { ids, 1 } };
    tkc_named_tensor input = { "weights",
                               { .data = values,
                                 .count = 2,
                                 .shape = { shape, 2 },
                                 .crow = { crow, 3 },
                                 .col = { col, 2 },
                                 .dtype = TINKC_F32,
                                 .sparse = true } };
    tkc_datum datum = { .chunks = { &chunk, 1 }, .inputs = { &input, 1 } };
    tkc_forward_backward_request r = { .model_id = "m", .loss_fn = "l", .data = { &datum, 1 } }, back;
    tkc_buf_clear(&out);
    assert_true(tkc_forward_backward_to_pb(&r, &out, &err));
    assert_true(tkc_forward_backward_from_pb((tinkc_bytes){ (void *)out.data, out.len }, TINKC_E_BAD_RESPONSE, &arena,
                                             &back, &err));
    assert_ok(err);
    const tkc_tensor *t = tkc_datum_input(&back.data.data[0], "weights");
    assert_true(t->sparse && !t->ragged && t->count == 2 && t->crow.len == 3 && t->col.len == 2);
    assert_memory_equal(t->data, values, sizeof values);
    assert_memory_equal(t->crow.data, crow, sizeof crow);
    assert_memory_equal(t->col.data, col, sizeof col);
}

TEST_WITH(each_element_type_has_a_size_and_a_name, set_up, tear_down)
{
    static const struct {
        int32_t type;
        size_t size;
        const char *name;
    } rows[] = { { -1, 0, "" },
                 { 0, 0, "" },
                 { TINKC_F32, 4, "float32" },
                 { TINKC_I64, 8, "int64" },
                 { TINKC_I32, 4, "int32" },
                 { TINKC_BF16, 2, "bfloat16" },
                 { TINKC_F16, 2, "" }, /* not on the wire, but their size is known */
                 { TINKC_F64, 8, "" },
                 { TINKC_F64 + 1, 0, "" },
                 { 1000, 0, "" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(tkc_dtype_size(rows[i].type), rows[i].size);
        assert_string_equal(tkc_dtype_name(rows[i].type), rows[i].name);
        if (rows[i].name[0])
            assert_int_equal(tkc_dtype_of(tkc_str(rows[i].name)), rows[i].type);
    }
    assert_int_equal(tkc_dtype_of(tkc_str("float")), 0);
    assert_int_equal(tkc_dtype_of(tkc_str("")), 0);
}

/* In JSON integers of any width are read as 64 bits, the others as 32 bits. */
TEST_WITH(element_types_in_json, set_up, tear_down)
{
    static const struct {
        const char *json;
        int32_t want;
    } rows[] = { { "{\"data\":[1,2],\"dtype\":\"int64\"}", TINKC_I64 },
                 { "{\"data\":[1,2],\"dtype\":\"int32\"}", TINKC_I64 },
                 { "{\"data\":[1,2],\"dtype\":\"float32\"}", TINKC_F32 },
                 { "{\"dtype\":\"bfloat16\",\"data\":[1,2]}", TINKC_F32 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_json j;
        tkc_tensor t;
        tkc_json_open(&j, tkc_str(rows[i].json), &arena, &err);
        tkc_tensor_read(&j, &t);
        assert_true(tkc_json_close(&j));
        assert_int_equal(t.dtype, rows[i].want);
        assert_int_equal(t.count, 2);
        if (rows[i].want == TINKC_I64)
            assert_true(((const int64_t *)t.data)[1] == 2);
        else
            assert_true(((const float *)t.data)[1] == 2);
    }
}

/* ---- requests of passes ---- */

/* Below 0 stands for "not said", in both forms. */
TEST_WITH(expected_tokens_of_images, set_up, tear_down)
{
    static const struct {
        const char *json, *hex; /* the member in the image, field 3 */
        int32_t want;
    } rows[] = { { "0", "1800", 0 },
                 { "1", "1801", 1 },
                 { "2147483647", "18ffffffff07", INT32_MAX },
                 { "-1", "18ffffffffffffffffff01", -1 },
                 { "-5", "18fbffffffffffffffff01", -1 },
                 { "null", "", -1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        char text[300];
        (void)snprintf(text, sizeof text,
                       "{\"model_id\":\"m\",\"forward_input\":{\"data\":[{\"model_input\":{\"chunks\":[{"
                       "\"type\":\"image\",\"data\":\"\",\"format\":\"png\",\"expected_tokens\":%s}]},"
                       "\"loss_fn_inputs\":{}}],\"loss_fn\":\"x\"}}",
                       rows[i].json);
        tkc_forward_backward_from_json(tkc_str(text), TINKC_E_BAD_RESPONSE, &arena, &r, NULL, &err);
        assert_ok(err);
        assert_int_equal(r.data.data[0].chunks.data[0].expected_tokens, rows[i].want);
        size_t n = strlen(rows[i].hex) / 2;
        (void)snprintf(text, sizeof text, "1a%02zx0a%02zx12%02zx%s", n + 4, n + 2, n, rows[i].hex);
        tkc_forward_backward_from_pb(unhex(&arena, text), TINKC_E_BAD_RESPONSE, &arena, &r, &err);
        assert_ok(err);
        assert_int_equal(r.data.data[0].chunks.data[0].kind, TINKC_CHUNK_IMAGE);
        assert_int_equal(r.data.data[0].chunks.data[0].expected_tokens, rows[i].want);
    }
}

/* The last of a chunk's three members counts; others, and a number in their place, are nothing. */
TEST_WITH(members_of_chunks, set_up, tear_down)
{
    static const struct {
        const char *hex;
        int32_t want; /* 0 = refused */
    } rows[] = { { "0a00", TINKC_CHUNK_TOKENS },
                 { "1200", TINKC_CHUNK_IMAGE },
                 { "1a00", TINKC_CHUNK_DMEL },
                 { "0a001200", TINKC_CHUNK_IMAGE },
                 { "0a002200", TINKC_CHUNK_TOKENS }, /* field 4 */
                 { "12000805", TINKC_CHUNK_IMAGE },  /* field 1, a number */
                 { "12001805", TINKC_CHUNK_IMAGE },
                 { "0805", 0 },
                 { "2200", 0 },
                 { "", 0 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        char text[100];
        size_t n = strlen(rows[i].hex) / 2;
        (void)snprintf(text, sizeof text, "1a%02zx0a%02zx%s", n + 2, n, rows[i].hex);
        bool read = tkc_forward_backward_from_pb(unhex(&arena, text), TINKC_E_BAD_RESPONSE, &arena, &r, &err);
        if (read != (rows[i].want != 0))
            fail_msg("row %zu: %s", i, err.message);
        if (read)
            assert_int_equal(r.data.data[0].chunks.data[0].kind, rows[i].want);
        else
            assert_non_null(strstr(err.message, "a chunk of no known kind"));
    }
}

TEST_WITH(passes_in_json_that_are_refused, set_up, tear_down)
{
    static const char *const rows[][2] = {
        { "{\"forward_input\":{\"data\":[],\"loss_fn\":\"x\"}}", "model_id: JSON: is missing" },
        { "{\"model_id\":\"m\",\"forward_input\":{\"loss_fn\":\"x\"}}", "forward_input.data: JSON: is missing" },
        { "{\"model_id\":\"m\",\"forward_input\":{\"data\":[]}}", "forward_input.loss_fn: JSON: is missing" },
        { "{\"model_id\":\"m\",\"forward_input\":{\"data\":[{\"loss_fn_inputs\":{}}],\"loss_fn\":"
          "\"x\"}}",
          "forward_input.data.model_input: JSON: is missing" },
        { "{\"model_id\":\"m\",\"forward_input\":{\"data\":[{\"model_input\":{\"chunks\":[]}}],"
          "\"loss_fn\":\"x\"}}",
          "forward_input.data.loss_fn_inputs: JSON: is missing" },
        { "{\"model_id\":\"m\",\"forward_input\":{\"data\":[{\"model_input\":{\"chunks\":[{"
          "\"type\":\"new\"}]},"
          "\"loss_fn_inputs\":{}}],\"loss_fn\":\"x\"}}",
          "a chunk of unknown type" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        assert_false(tkc_forward_backward_from_json(tkc_str(rows[i][0]), TINKC_E_BAD_RESPONSE, &arena, &r, NULL, &err));
        if (!strstr(err.message, rows[i][1]))
            fail_msg("row %zu: %s", i, err.message);
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    }
    tinkc_error err = { 0 };
    tkc_forward_backward_request r;
    assert_true(tkc_forward_backward_from_json(
        tkc_str("{\"model_id\":\"m\",\"seq_id\":null,\"forward_backward_input\":null,\"forward_input\":"
                "{\"data\":[],\"loss_fn\":\"x\",\"loss_fn_config\":null}}"),
        TINKC_E_BAD_RESPONSE, &arena, &r, NULL, &err));
    assert_true(r.forward_only && r.seq_id == 0 && r.loss_fn_config.len == 0);
}

/* Since 0.36 the configuration comes a second time, in field 7, where a value may be a text: that is refused. */
TEST_WITH(texts_in_a_configuration, set_up, tear_down)
{
    static const struct {
        const char *bytes;
        bool fine;
    } rows[] = {
        { "0a016d"
          "2201783a0a0a016112051dcdcccc3d",
          true }, /* {"a": a number} */
        { "0a016d"
          "22017832080a016112031201"
          "62",
          true }, /* the same entry in field 6 means nothing */
        { "0a016d"
          "2201783a080a016112031201"
          "62",
          false }, /* {"a": "b"} */
        { "0a016d"
          "2201783a080a01611a031201"
          "62",
          true }, /* a member that is not known */
        { "0a016d"
          "2201783a080a016112031a01"
          "62",
          true }, /* a kind of value that is not known */
        { "0a016d"
          "2201783a00",
          true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        bool read = tkc_forward_backward_from_pb(unhex(&arena, rows[i].bytes), TINKC_E_BAD_RESPONSE, &arena, &r, &err);
        if (read != rows[i].fine)
            fail_msg("row %zu: %s", i, err.message);
        if (!read)
            assert_string_equal(err.message, "forward_backward request: loss_fn_config has texts: "
                                             "the losses here take numbers");
    }
}

/* ---- memory that ends ---- */

typedef bool decoder(tinkc_bytes, tkc_arena *, tinkc_error *);

static bool request_pb(tinkc_bytes b, tkc_arena *a, tinkc_error *err)
{
    tkc_forward_backward_request r;
    bool done = tkc_forward_backward_from_pb(b, TINKC_E_BAD_RESPONSE, a, &r, err);
    assert_true(!done || (r.data.len == 1 && r.loss_fn_config.len == 2));
    return done;
}
static bool request_json(tinkc_bytes b, tkc_arena *a, tinkc_error *err)
{
    tkc_forward_backward_request r;
    bool done =
        tkc_forward_backward_from_json(tkc_strn((const char *)b.data, b.len), TINKC_E_BAD_RESPONSE, a, &r, NULL, err);
    assert_true(!done || (r.data.len == 1 && r.loss_fn_config.len == 2));
    return done;
}
static bool output_pb(tinkc_bytes b, tkc_arena *a, tinkc_error *err)
{
    tkc_forward_backward_output r;
    bool done = tkc_output_from_pb(b, a, &r, err);
    assert_true(!done ||
                (r.n_datums == 2 && r.records.len == 1 && r.metrics.len == 1 && r.records.data[0].fields.len == 2));
    return done;
}
static bool output_json(tinkc_bytes b, tkc_arena *a, tinkc_error *err)
{
    tkc_forward_backward_output r;
    bool done = tkc_output_from_json(tkc_strn((const char *)b.data, b.len), a, &r, err);
    assert_true(!done ||
                (r.n_datums == 2 && r.records.len == 1 && r.metrics.len == 1 && r.records.data[0].fields.len == 2));
    return done;
}
static bool sample_pb(tinkc_bytes b, tkc_arena *a, tinkc_error *err)
{
    tkc_sample_response r;
    bool done = tkc_sample_response_from_pb(b, a, &r, err);
    assert_true(!done || (r.sequences.len == 2 && r.topk.rows == 2));
    return done;
}
static bool sample_json(tinkc_bytes b, tkc_arena *a, tinkc_error *err)
{
    tkc_sample_response r;
    bool done = tkc_sample_response_from_json(tkc_strn((const char *)b.data, b.len), a, &r, err);
    assert_true(!done || (r.sequences.len == 2 && r.topk.rows == 2));
    return done;
}

static tinkc_bytes kept(void)
{
    tinkc_error err = { 0 };
    char *copy = tkc_arena_str(&arena, tkc_buf_view(&out), &err);
    assert_ok(err);
    return (tinkc_bytes){ (const unsigned char *)copy, out.len };
}

/* With every size of memory below what it needs, reading fails with MEMORY, and says so. */
static void assert_needs_memory(decoder *read, tinkc_bytes bytes, const char *what)
{
    tinkc_error err = { 0 };
    for (size_t max = 16; max < 64 * 1024; max += 16) {
        tkc_arena small;
        err = (tinkc_error){ 0 };
        tkc_arena_init(&small, NULL, max);
        bool done = read(bytes, &small, &err);
        tkc_arena_free(&small);
        if (done) {
            assert_ok(err);
            return;
        }
        if (err.code != TINKC_E_MEMORY)
            fail_msg("%s in %zu bytes: %s", what, max, err.message);
    }
    fail_msg("%s: %s", what, err.message);
}

TEST_WITH(memory_that_ends, set_up, tear_down)
{
    tinkc_error err = { 0 };
    static const char request[] =
        "{\"model_id\":\"m\",\"seq_id\":1,\"forward_backward_input\":{\"loss_fn\":\"x\","
        "\"loss_fn_config\":{\"a\":1,\"b\":2},\"data\":[{\"model_input\":{\"chunks\":[{\"type\":"
        "\"encoded_text\",\"tokens\":[5,6,7]},{\"type\":\"image\",\"data\":\"AAEC\",\"format\":"
        "\"png\"}]},"
        "\"loss_fn_inputs\":{\"t\":{\"data\":[6,7,8],\"dtype\":\"int64\",\"shape\":[3]},\"s\":{"
        "\"data\":[1.5],"
        "\"dtype\":\"float32\",\"shape\":[1,2],\"sparse_crow_indices\":[0,1],\"sparse_col_"
        "indices\":[1]}}}]}}";
    tkc_forward_backward_request r;
    tinkc_bytes text = { (const unsigned char *)request, sizeof request - 1 };
    assert_needs_memory(request_json, text, "a request in JSON");
    tkc_forward_backward_from_json(tkc_str(request), TINKC_E_BAD_RESPONSE, &arena, &r, NULL, &err);
    tkc_buf_clear(&out);
    tkc_forward_backward_to_pb(&r, &out, &err);
    assert_ok(err);
    assert_needs_memory(request_pb, kept(), "a request");

    static const char output[] =
        "{\"loss_fn_output_type\":\"T\",\"loss_fn_outputs\":[{\"lp\":{\"data\":[1.5,2.5],\"dtype\":"
        "\"float32\","
        "\"shape\":[2]},\"n\":{\"data\":[3],\"dtype\":\"int64\",\"shape\":[1]}},{\"lp\":{\"data\":["
        "0.5],\"dtype\":"
        "\"float32\",\"shape\":[1]},\"n\":{\"data\":[],\"dtype\":\"int64\",\"shape\":[0]}}],"
        "\"metrics\":{\"loss:mean\":1.5}}";
    tkc_forward_backward_output o;
    text = (tinkc_bytes){ (const unsigned char *)output, sizeof output - 1 };
    assert_needs_memory(output_json, text, "a result in JSON");
    tkc_output_from_json(tkc_str(output), &arena, &o, &err);
    tkc_buf_clear(&out);
    tkc_output_to_pb(&o, &out, &err);
    assert_ok(err);
    assert_needs_memory(output_pb, kept(), "a result");

    static const char sample[] = "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[5,6],\"logprobs\":[-1,-2]},{"
                                 "\"tokens\":[7]}],"
                                 "\"prompt_logprobs\":[null,-2],\"topk_prompt_logprobs\":[null,[[9,-0.25],[4,-1.5]]],"
                                 "\"target_prompt_logprobs\":{\"data\":[-0.5],\"dtype\":\"float32\",\"shape\":[1,1]},"
                                 "\"prompt_alt_tokens\":{\"tokens\":{\"data\":[7],\"dtype\":\"int64\",\"shape\":[1,1]},"
                                 "\"logprobs\":{\"data\":[-2.0],\"dtype\":\"float32\",\"shape\":[1,1]}}}";
    tkc_sample_response s;
    text = (tinkc_bytes){ (const unsigned char *)sample, sizeof sample - 1 };
    assert_needs_memory(sample_json, text, "a sample in JSON");
    tkc_sample_response_from_json(tkc_str(sample), &arena, &s, &err);
    tkc_buf_clear(&out);
    tkc_sample_response_to_pb(&s, &out, &err);
    assert_ok(err);
    assert_needs_memory(sample_pb, kept(), "a sample");
}

/* A tensor of a result is converted when it is asked for: it is whole, or there is an error. */
TEST_WITH(memory_that_ends_at_a_tensor, set_up, tear_down)
{
    static const uint16_t halves[] = { 0x3F80, 0x4000 };
    static const int64_t offsets[] = { 0, 4 };
    const tkc_batched_tensor field = {
        .name = "f", .data = { (const void *)halves, 4 }, .offsets = { offsets, 2 }, .dtype = TINKC_BF16
    };
    const tkc_array_record record = { .type_tag = "", .fields = { &field, 1 }, .n_datums = 1 };
    const tkc_forward_backward_output o = { .type = "t", .records = { &record, 1 }, .n_datums = 1 };
    bool done = false;
    for (size_t max = 1; !done && max < 64 * 1024; max++) {
        tinkc_error err = { 0 };
        tkc_arena small;
        tinkc_tensor t;
        tkc_arena_init(&small, NULL, max);
        done = tkc_output_tensor(&o, 0, "f", &small, &t, &err);
        assert_int_equal(err.code, done ? 0 : TINKC_E_MEMORY);
        if (done)
            assert_true(t.count == 2 && ((const float *)t.data)[1] == 2 && t.ndim == 1 && t.shape[0] == 2);
        tkc_arena_free(&small);
    }
    assert_true(done);
}
