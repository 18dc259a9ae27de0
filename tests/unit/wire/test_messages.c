/* Every JSON message both ways, cut off at every byte, and the rules of the one codec. */
#include "support/check.h"
#include "support/ledger.h"
#include "support/scratch.h"
#include "support/client/wire_samples.h"

#include "base/clock.h"

static _Alignas(16) char msg[4096];

static bool decode(const tkc_message *type, const char *json, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    assert_true(type->size <= sizeof msg);
    return tkc_message_decode(type, tkc_str(json), TINKC_E_BAD_RESPONSE, &arena, msg, err);
}

static const char *encode(const tkc_message *type, const void *from, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    tkc_buf_clear(&out);
    if (!tkc_message_encode(type, from, &out, err))
        return NULL;
    return tkc_buf_terminate(&out, err);
}

TEST(every_message_survives_both_ways)
{
    tinkc_error err;
    for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
        const wire_sample *s = &wire_samples[i];
        if (!decode(s->type, s->json, &err))
            fail_msg("%s: %s", s->type->name, err.message);
        const char *text = encode(s->type, msg, &err);
        assert_ok(err);
        assert_string_equal(text, s->json);
    }
}

TEST(a_cut_off_message_is_refused)
{
    for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
        const wire_sample *s = &wire_samples[i];
        for (size_t n = 0; n < strlen(s->json); n++) {
            tinkc_error err = { 0 };
            char *copy = exact_copy(s->json, n);
            bool read = tkc_message_decode(s->type, tkc_strn(copy, n), TINKC_E_UNPROCESSABLE, &arena, msg, &err);
            free_copy(copy, n);
            assert_false(read);
            assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        }
        tkc_arena_reset(&arena);
    }
}

TEST(a_message_fits_the_mask_of_fields_seen)
{
    for (size_t i = 0; i < N_WIRE_SAMPLES; i++)
        assert_true(wire_samples[i].type->n_fields <= 64);
}

/* Each required field, taken away or null, is missed by name. */
TEST(required_fields_are_missed_by_name)
{
    tinkc_error err;
    assert_false(decode(&tkc_untyped_future_type, "{}", &err));
    assert_non_null(strstr(err.message, "request_id"));
    assert_false(decode(&tkc_untyped_future_type, "{\"request_id\":null}", &err));
    assert_false(decode(&tkc_untyped_future_type, "{\"request_id\":17}", &err));
    assert_non_null(strstr(err.message, "request_id: JSON: a string is needed"));
    assert_false(decode(&tkc_training_runs_response_type,
                        "{\"training_runs\":[],\"cursor\":{\"offset\":0,\"limit\":20}}", &err));
    assert_non_null(strstr(err.message, "cursor.total_count"));
    assert_false(decode(&tkc_training_runs_response_type, "{\"training_runs\":[]}", &err));
    assert_false(decode(&tkc_config_response_type, "{\"pjwt_auth_enabled\":null}", &err));
    tkc_create_model_request request = { .session_id = "s" };
    assert_null(encode(&tkc_create_model_request_type, &request, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, "create_model request: base_model is missing");
}

TEST(flags_that_are_missing_have_their_defaults)
{
    tinkc_error err;
    assert_true(decode(&tkc_config_response_type, "{\"fwdbwd_max_chunk_len\": 256, \"brand_new\": [1]}", &err));
    const tkc_config_response *c = (const void *)msg;
    assert_false(c->pjwt_auth_enabled);
    assert_string_equal(c->credential_default_source, "api_key");
    assert_int_equal(c->sample_dispatch_bytes_semaphore_size, 10485760);
    assert_int_equal(c->inflight_response_bytes_semaphore_size, 52428800);
    assert_true(c->parallel_fwdbwd_chunks);
    assert_false(c->proto_compress_fwdbwd);
    assert_int_equal(c->fwdbwd_max_chunk_len, 256);
    assert_int_equal(c->fwdbwd_max_chunk_bytes_count, 5000000);
    assert_int_equal(c->fwdbwd_dispatch_bytes_semaphore_size, 50000000);
    assert_int_equal(c->billing_exception_max_pause_duration_sec, 3600);
    assert_false(c->sample_no_retries);
    assert_true(c->sample_enable_stuck_detection);
    assert_int_equal(c->sample_max_concurrent_requests, 2000);
    assert_true(c->use_pyqwest_transport);
    assert_false(c->create_model_via_load_weights);
    assert_str(c->json, "{\"fwdbwd_max_chunk_len\": 256, \"brand_new\": [1]}");
    assert_true(decode(&tkc_dynamic_config_response_type, "{}", &err));
    assert_int_equal(((const tkc_dynamic_config_response *)(const void *)msg)->refresh_interval_sec, 300);
}

TEST(absent_null_and_value_are_three_things)
{
    tinkc_error err;
    tkc_ttl_request ttl = { 0 };
    assert_null(encode(&tkc_ttl_request_type, &ttl, &err));
    ttl.ttl_seconds.is = TKC_NULL;
    assert_string_equal(encode(&tkc_ttl_request_type, &ttl, &err), "{\"ttl_seconds\":null}");
    ttl.ttl_seconds = (tkc_opt_i64)TKC_SOME(5);
    assert_string_equal(encode(&tkc_ttl_request_type, &ttl, &err), "{\"ttl_seconds\":5}");
    assert_true(decode(&tkc_ttl_request_type, "{\"ttl_seconds\":null}", &err));
    assert_int_equal(((const tkc_ttl_request *)(const void *)msg)->ttl_seconds.is, TKC_NULL);
    assert_false(decode(&tkc_ttl_request_type, "{}", &err));

    const tkc_weights_info_response *w = (const void *)msg;
    assert_true(
        decode(&tkc_weights_info_response_type, "{\"base_model\":\"b\",\"is_lora\":true,\"lora_rank\":null}", &err));
    assert_int_equal(w->lora_rank.is, TKC_NULL);
    assert_int_equal(w->train_mlp.is, TKC_ABSENT);
}

TEST(unset_fields_are_left_out)
{
    tinkc_error err;
    tkc_create_session_request s = { .sdk_version = "0.25.0" };
    assert_string_equal(encode(&tkc_create_session_request_type, &s, &err),
                        "{\"tags\":[],\"sdk_version\":\"0.25.0\",\"type\":\"create_session\"}");
    s.user_metadata.pairs = (const char *const[]){ NULL };
    assert_string_equal(encode(&tkc_create_session_request_type, &s, &err),
                        "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":"
                        "\"create_session\"}");
    tkc_save_weights_request w = { .model_id = "m", .path = "n", .seq_id = TKC_SOME(1) };
    assert_string_equal(encode(&tkc_save_weights_request_type, &w, &err),
                        "{\"model_id\":\"m\",\"path\":\"n\",\"seq_id\":1,\"overwrite\":false,"
                        "\"type\":\"save_weights\"}");
    tkc_sample_request r;
    tkc_message_init(&tkc_sample_request_type, &r);
    assert_string_equal(encode(&tkc_sample_request_type, &r, &err),
                        "{\"num_samples\":1,\"prompt\":{\"chunks\":[]},\"sampling_params\":{"
                        "\"temperature\":1.0,\"top_k\":-1,\"top_p\":1.0},\"topk_prompt_logprobs\":"
                        "0,\"type\":\"sample\"}");
}

TEST(free_form_maps_keep_what_they_hold)
{
    tinkc_error err;
    const char *json = "{\"tags\":[],\"user_metadata\":{\"a\": null, \"b\":{\"c\":[1, 2]},\"d\":"
                       "\"\\u00e9\"},\"sdk_version\":\"x\"}";
    assert_true(decode(&tkc_create_session_request_type, json, &err));
    const tkc_create_session_request *r = (const void *)msg;
    const char *const *p = r->user_metadata.pairs;
    assert_string_equal(p[0], "a");
    assert_string_equal(p[1], "null");
    assert_string_equal(p[3], "{\"c\":[1, 2]}");
    assert_string_equal(p[5], "\xC3\xA9");
    assert_null(p[6]);
    assert_str(r->user_metadata.json, "{\"a\": null, \"b\":{\"c\":[1, 2]},\"d\":\"\\u00e9\"}");
    assert_non_null(strstr(encode(&tkc_create_session_request_type, msg, &err), "\"a\": null"));
}

TEST(unknown_names_and_fields_survive)
{
    tinkc_error err;
    const char *json = "{\"checkpoint_id\":\"i\",\"checkpoint_type\":\"novel\",\"time\":0,"
                       "\"tinker_path\":\"p\",\"extra\":{\"deep\":[true]}}";
    assert_true(decode(&tkc_checkpoint_type, json, &err));
    const tkc_checkpoint *c = (const void *)msg;
    assert_int_equal(c->checkpoint_type.value, TKC_UNKNOWN);
    assert_string_equal(c->checkpoint_type.text, "novel");
    assert_str(c->json, json);
    assert_true(decode(&tkc_dynamic_config_response_type, "{\"\":1}", &err)); /* a name like any */
    assert_true(decode(&tkc_usage_response_type,
                       "{\"data\":[{\"bucket_start\":\"a\",\"bucket_end\":\"b\",\"event_info\":{"
                       "\"type\":\"teleport\",\"miles\":9}}]}",
                       &err));
    const tkc_usage_response *u = (const void *)msg;
    assert_int_equal(u->data.data[0].event_info.type.value, TKC_UNKNOWN);
    assert_str(u->data.data[0].event_info.json, "{\"type\":\"teleport\",\"miles\":9}");
    assert_true(u->data.data[0].bucket_start.us == TINKC_NO_TIME);
}

TEST(times_are_read_in_both_forms)
{
    tinkc_error err;
    const tkc_archive_response *a = (const void *)msg;
    assert_true(decode(&tkc_archive_response_type, "{\"url\":\"u\",\"expires\":\"2026-03-04T05:06:07+01:00\"}", &err));
    assert_true(a->expires.us == 1772597167000000);
    assert_true(decode(&tkc_archive_response_type, "{\"url\":\"u\",\"expires\":1772597167.5}", &err));
    assert_true(a->expires.us == 1772597167500000);
    assert_string_equal(a->expires.text, "1772597167.5");
    assert_true(decode(&tkc_archive_response_type, "{\"url\":\"u\",\"expires\":1772597167500}", &err));
    assert_true(a->expires.us == 1772597167500000);
    assert_true(decode(&tkc_archive_response_type, "{\"url\":\"u\",\"expires\":1e300}", &err));
    assert_true(a->expires.us == TINKC_NO_TIME);
    tkc_archive_response made = { "u", { NULL, 1772597167000000 } };
    assert_string_equal(encode(&tkc_archive_response_type, &made, &err),
                        "{\"url\":\"u\",\"expires\":\"2026-03-04T04:06:07Z\"}");
    made.expires.us += 123456;
    assert_string_equal(encode(&tkc_archive_response_type, &made, &err),
                        "{\"url\":\"u\",\"expires\":\"2026-03-04T04:06:07.123456Z\"}");
}

TEST(numbers_are_read_leniently_but_not_loosely)
{
    tinkc_error err;
    const tkc_cursor *c = (const void *)msg;
    assert_true(decode(&tkc_cursor_type, "{\"offset\":\"3\",\"limit\":2.0,\"total_count\":1e2}", &err));
    assert_int_equal(c->offset, 3);
    assert_int_equal(c->limit, 2);
    assert_int_equal(c->total_count, 100);
    assert_false(decode(&tkc_cursor_type, "{\"offset\":1.5,\"limit\":2,\"total_count\":1}", &err));
    assert_false(decode(&tkc_cursor_type, "{\"offset\":true,\"limit\":2,\"total_count\":1}", &err));
    assert_false(decode(&tkc_cursor_type, "{\"offset\":\"x\",\"limit\":2,\"total_count\":1}", &err));
    assert_false(decode(&tkc_cursor_type, "{\"offset\":9223372036854775808,\"limit\":2,\"total_count\":1}", &err));
    assert_true(decode(&tkc_optim_step_result_type, "{\"metrics\":{\"n\":3}}", &err));
    const tkc_optim_step_result *o = (const void *)msg;
    assert_true(tkc_numbers_get(&o->metrics, "n", 0) == 3.0);
    assert_true(tkc_numbers_get(&o->metrics, "m", -1) == -1.0);
    assert_false(decode(&tkc_optim_step_result_type, "{\"metrics\":{\"n\":null}}", &err));
    assert_true(decode(&tkc_optim_step_result_type, "{}", &err));
    assert_true(decode(&tkc_optim_step_result_type, "{\"metrics\":null}", &err));
    assert_null(o->metrics.names);
}

TEST(stop_has_three_shapes)
{
    tinkc_error err;
    const tkc_sampling_params *p = (const void *)msg;
    assert_true(decode(&tkc_sampling_params_type, "{\"stop\":\"x\"}", &err));
    assert_int_equal(p->stop.kind, TKC_STOP_STRING);
    assert_string_equal(p->stop.strings[0], "x");
    assert_null(p->stop.strings[1]);
    assert_true(decode(&tkc_sampling_params_type, "{\"stop\":[]}", &err));
    assert_int_equal(p->stop.kind, TKC_STOP_STRINGS);
    assert_null(p->stop.strings[0]);
    assert_true(decode(&tkc_sampling_params_type, "{\"stop\":[7, 8]}", &err));
    assert_int_equal(p->stop.kind, TKC_STOP_TOKENS);
    assert_int_equal(p->stop.tokens.data[1], 8);
    assert_true(decode(&tkc_sampling_params_type, "{\"stop\":null}", &err));
    assert_int_equal(p->stop.kind, TKC_STOP_NONE);
    assert_false(decode(&tkc_sampling_params_type, "{\"stop\":[7,\"x\"]}", &err));
    assert_false(decode(&tkc_sampling_params_type, "{\"stop\":[\"x\",7]}", &err));
    assert_false(decode(&tkc_sampling_params_type, "{\"stop\":[2147483648]}", &err));
    assert_false(decode(&tkc_sampling_params_type, "{\"stop\":7}", &err));
    assert_true(p->temperature == 1.0f && p->top_k == -1 && p->top_p == 1.0f);
}

TEST(chunks_are_told_apart_by_their_type)
{
    tinkc_error err;
    const tkc_model_input *in = (const void *)msg;
    assert_true(
        decode(&tkc_model_input_type, "{\"chunks\":[{\"type\":\"dmel\",\"tokens\":[1],\"dmel\":\"AAE=\"}]}", &err));
    assert_int_equal(in->chunks.data[0].kind, TINKC_CHUNK_DMEL);
    assert_int_equal(in->chunks.data[0].bytes.len, 2);
    assert_int_equal(in->chunks.data[0].expected_tokens, -1);
    assert_false(decode(&tkc_model_input_type, "{\"chunks\":[{\"tokens\":[1]}]}", &err));
    assert_false(decode(&tkc_model_input_type, "{\"chunks\":[{\"type\":\"video\"}]}", &err));
    assert_false(decode(&tkc_model_input_type, "{\"chunks\":[{\"type\":\"video\",\"tokens\":[1]}]}", &err));
    assert_false(decode(&tkc_model_input_type, "{\"chunks\":[{\"type\":\"image\"}]}", &err));
    assert_false(decode(&tkc_model_input_type, "{\"chunks\":[{\"type\":\"dmel\",\"dmel\":\"A\"}]}", &err));
    assert_false(
        decode(&tkc_model_input_type, "{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[4294967296]}]}", &err));
    assert_false(decode(&tkc_model_input_type, "{}", &err));
    assert_false(decode(&tkc_model_input_type,
                        "{\"chunks\":[{\"type\":\"image\",\"data\":\"\",\"expected_tokens\":"
                        "2147483648}]}",
                        &err));
}

/* The n-th allocation fails, for every n: an error, no crash, nothing lost. */
TEST(running_out_of_memory_is_an_error)
{
    for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
        bool done = false;
        for (int n = 0; !done && n < 200; n++) {
            tinkc_error err = { 0 };
            ledger l = { .left = n };
            tinkc_allocator a = ledger_allocator(&l);
            tkc_arena small;
            tkc_buf text;
            tkc_arena_init(&small, &a, 0);
            tkc_buf_init(&text, &a, TKC_BUF_NO_MAX);
            done = tkc_message_decode(wire_samples[i].type, tkc_str(wire_samples[i].json), TINKC_E_BAD_RESPONSE, &small,
                                      msg, &err) &&
                   tkc_message_encode(wire_samples[i].type, msg, &text, &err);
            if (!done)
                assert_int_equal(err.code, TINKC_E_MEMORY);
            tkc_arena_free(&small);
            tkc_buf_free(&text);
            assert_true(l.blocks == 0 && l.bytes == 0);
        }
        assert_true(done);
    }
}

RUN_TESTS(set_up, tear_down)
