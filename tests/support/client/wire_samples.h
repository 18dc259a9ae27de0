/* wire_samples.h - one full example of every JSON message, in the exact form in which we write it.
 * For tests and fuzzers. */
#ifndef TEST_WIRE_SAMPLES_H
#define TEST_WIRE_SAMPLES_H

#include "wire/messages.h"
#include "wire/sample_message.h"

typedef struct wire_sample {
    const tkc_message *type;
    const char *json;
} wire_sample;

#define CHECKPOINT                                                                                                     \
    "{\"checkpoint_id\":\"weights/step-100\",\"checkpoint_type\":\"training\","                                        \
    "\"time\":\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://9d2c61f0:train:0/weights/"                           \
    "step-100\",\"size_bytes\":52428800,\"public\":false,\"expires_at\":\"2027-03-04T05:06:07Z\","                     \
    "\"user_metadata\":{\"stage\":\"two\"}}"
#define RUN                                                                                                            \
    "{\"training_run_id\":\"9d2c61f0:train:0\",\"base_model\":\"acme/tiny-8b\",\"model_owner\":"                       \
    "\"ada\",\"is_lora\":true,\"corrupted\":false,\"lora_rank\":16,\"last_request_time\":"                             \
    "\"2026-03-04T05:06:07Z\",\"last_checkpoint\":" CHECKPOINT ",\"last_sampler_checkpoint\":" CHECKPOINT              \
    ",\"user_metadata\":{\"run\":\"b\"}}"
#define CURSOR "{\"offset\":0,\"limit\":20,\"total_count\":134}"

static const wire_sample wire_samples[] = {
    { &tkc_empty_type, "{}" },
    { &tkc_health_response_type, "{\"status\":\"ok\"}" },
    { &tkc_config_request_type, "{\"sdk_version\":\"0.25.0\"}" },
    { &tkc_config_response_type,
      "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\","
      "\"sample_dispatch_bytes_semaphore_size\":1,\"inflight_response_bytes_semaphore_size\":2,"
      "\"parallel_fwdbwd_chunks\":false,\"proto_compress_fwdbwd\":true,\"fwdbwd_max_chunk_len\":"
      "256,"
      "\"fwdbwd_max_chunk_bytes_count\":3,\"fwdbwd_dispatch_bytes_semaphore_size\":4,"
      "\"billing_exception_max_pause_duration_sec\":5,\"sample_no_retries\":true,"
      "\"sample_enable_stuck_detection\":false,\"sample_max_concurrent_requests\":6,"
      "\"use_pyqwest_transport\":false,\"create_model_via_load_weights\":true,"
      "\"proto_write_fwdbwd\":true,\"fwd_via_fwdbwd\":true}" },
    { &tkc_dynamic_config_response_type, "{\"refresh_interval_sec\":60,\"sample_cancel_enabled\":"
                                         "true,\"sample_cancel_max_batch_size\":8,"
                                         "\"sample_use_retrieve_futures\":true}" },
    { &tkc_auth_token_response_type, "{\"jwt\":\"eyJ.a.b\"}" },
    { &tkc_create_session_request_type,
      "{\"tags\":[\"nightly\"],\"user_metadata\":{\"team\":\"blue\"},\"sdk_version\":\"0.25.0\","
      "\"project_id\":\"p1\",\"display_name\":\"n\",\"type\":\"create_session\"}" },
    { &tkc_create_session_response_type,
      "{\"type\":\"create_session\",\"session_id\":\"9d2c61f0\",\"info_message\":\"i\","
      "\"warning_message\":\"maintenance at 18:00 UTC\",\"error_message\":\"e\"}" },
    { &tkc_heartbeat_request_type, "{\"session_id\":\"9d2c61f0\",\"type\":\"session_heartbeat\"}" },
    { &tkc_heartbeat_response_type, "{\"type\":\"session_heartbeat\"}" },
    { &tkc_create_sampling_session_request_type,
      "{\"session_id\":\"s\",\"sampling_session_seq_id\":3,\"base_model\":\"acme/tiny-8b\","
      "\"model_path\":\"tinker://r/sampler_weights/x\",\"type\":\"create_sampling_session\"}" },
    { &tkc_create_sampling_session_response_type,
      "{\"type\":\"create_sampling_session\",\"sampling_session_id\":\"s:sample:3\"}" },
    { &tkc_join_sampling_session_request_type,
      "{\"sampling_session_id\":\"s:sample:0\",\"type\":\"join_sampling_session\"}" },
    { &tkc_join_sampling_session_response_type, "{\"client_counter\":7,\"type\":\"join_sampling_session\"}" },
    { &tkc_sampler_response_type,
      "{\"sampler_id\":\"s:sample:3\",\"base_model\":\"acme/tiny-8b\",\"model_path\":\"tinker://r/"
      "sampler_weights/x\"}" },
    { &tkc_create_custom_loss_request_type, "{\"session_id\":\"9d2c61f0\",\"custom_loss_seq_id\":2,"
                                            "\"name\":\"grpo\",\"inputs\":[{\"name\":"
                                            "\"logprobs\",\"rank\":1}],\"graph\":{\"format\":1,"
                                            "\"nodes\":[]},\"type\":\"create_custom_loss\"}" },
    { &tkc_create_custom_loss_result_type, "{\"loss_id\":\"9d2c61f0:loss:2\",\"type\":\"create_custom_loss\"}" },
    { &tkc_create_model_request_type,
      "{\"session_id\":\"9d2c61f0\",\"model_seq_id\":0,\"base_model\":\"acme/tiny-8b\","
      "\"user_metadata\":{\"a\":\"b\"},\"lora_config\":{\"rank\":16,\"seed\":11,\"train_unembed\":"
      "true,\"train_mlp\":true,\"train_attn\":true},\"optimizer_config\":{\"type\":\"adamw\"},"
      "\"type\":\"create_model\"}" },
    { &tkc_cancel_future_request_type, "{\"request_id\":\"r\"}" },
    { &tkc_retrieve_futures_request_type, "{\"target\":{\"sampling_session_id\":\"s\",\"cloned_sampler_id\":2,"
                                          "\"type\":\"sampling_session\"},\"prev_cursor\":3,\"timeout\":1.5,"
                                          "\"retrieved_request_ids\":[\"r\"]}" },
    { &tkc_retrieve_futures_response_type, "{\"completions\":[{\"state\":\"finished\",\"request_id\":\"r\","
                                           "\"response_payload_uncompressed_size\":12}],\"cursor\":3}" },
    { &tkc_save_external_request_type,
      "{\"model_id\":\"m\",\"path\":\"hf\",\"seq_id\":4,\"ttl_seconds\":3600,"
      "\"age_encryption_recipients\":[\"age1x\"],\"type\":\"save_weights_external\"}" },
    { &tkc_save_external_result_type, "{\"path\":\"tinker://r/external_weights/hf\",\"size_bytes\":5,\"type\":"
                                      "\"save_weights_external\"}" },
    { &tkc_copy_weights_request_type,
      "{\"session_id\":\"s\",\"model_seq_id\":1,\"destination_project_id\":\"p\",\"source_path\":"
      "\"tinker://r/weights/a\",\"ttl_seconds\":3600}" },
    { &tkc_copy_weights_response_type, "{\"tinker_path\":\"tinker://n/weights/a\"}" },
    { &tkc_upload_start_request_type,
      "{\"base_model\":\"b\",\"lora_config\":{\"rank\":4,\"seed\":1,\"train_unembed\":true,"
      "\"train_mlp\":true,\"train_attn\":false},\"destination_project_id\":\"p\"}" },
    { &tkc_upload_start_response_type, "{\"upload_id\":\"u\",\"urls\":{\"config.json\":\"https://x/a\"},\"expires\":"
                                       "\"2027-03-04T05:06:07Z\"}" },
    { &tkc_upload_finish_request_type, "{\"upload_id\":\"u\"}" },
    { &tkc_upload_finish_response_type, "{\"tinker_path\":\"tinker://n/weights/a\"}" },
    { &tkc_external_urls_response_type,
      "{\"urls\":{\"config.json\":\"https://x/a\"},\"expires\":\"2027-03-04T05:06:07Z\"}" },
    { &tkc_finish_session_request_type, "{\"reason\":{\"type\":\"errored\"},\"detail\":\"d\"}" },
    { &tkc_search_cursor_type, "{\"last_created_at\":\"2026-03-04T05:06:07Z\",\"last_session_id\":\"s\"}" },
    { &tkc_search_request_type,
      "{\"session_id\":\"s\",\"project_ids\":[\"p\"],\"user_metadata\":{\"a\":\"b\"},"
      "\"display_name\":\"n\",\"owner\":{\"type\":\"user\",\"owner_urns\":[\"u\"]},\"statuses\":"
      "[{\"type\":\"client_finished\",\"reasons\":[\"success\"]}],\"limit\":7,\"cursor\":{\"x\":1}"
      "}" },
    { &tkc_search_response_type,
      "{\"sessions\":[{\"session_id\":\"s\",\"created_at\":\"2026-03-04T05:06:07Z\",\"owner\":"
      "\"u\","
      "\"project_id\":\"p\",\"status\":{\"type\":\"client_finished\",\"reason\":{\"type\":"
      "\"success\"},\"detail\":\"d\"},\"checkpoints_count\":2,\"display_name\":\"n\","
      "\"user_metadata\":{\"a\":\"b\"},\"checkpoint_storage_bytes\":9}],\"next_cursor\":{\"x\":1}"
      "}" },
    { &tkc_checkpoint_cursor_type, "{\"last_created_at\":\"2026-03-04T05:06:07Z\",\"last_checkpoint_uuid\":\"u\"}" },
    { &tkc_checkpoint_search_request_type,
      "{\"project_ids\":[\"p\"],\"user_metadata\":{\"a\":\"b\"},\"checkpoint_type\":\"sampler\","
      "\"owner\":{\"type\":\"user\",\"owner_urns\":[\"u\"]},\"base_models\":[\"m\"],\"limit\":7,"
      "\"cursor\":{\"x\":1}}" },
    { &tkc_checkpoint_search_response_type,
      "{\"checkpoints\":[{\"checkpoint_id\":\"weights/a\",\"checkpoint_type\":\"training\","
      "\"time\":\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://r/weights/a\",\"size_bytes\":9,"
      "\"public\":true,\"expires_at\":\"2026-04-04T05:06:07Z\",\"user_metadata\":{\"a\":\"b\"},"
      "\"base_model\":\"m\"}],\"next_cursor\":{\"x\":1}}" },
    { &tkc_storage_response_type,
      "{\"effective_rate_usd_per_gigabyte_month\":0.25,\"data\":[{\"project_id\":\"p\","
      "\"org_user_urn\":\"u\",\"user_email\":\"e\",\"user_name\":\"n\",\"checkpoint_count\":1,"
      "\"size_bytes\":2,\"size_gigabytes\":0.5,\"estimated_monthly_cost_usd\":1.5}]}" },
    { &tkc_create_model_result_type, "{\"model_id\":\"9d2c61f0:train:0\",\"type\":\"create_model\"}" },
    { &tkc_untyped_future_type, "{\"request_id\":\"req-000001\",\"model_id\":\"m\","
                                "\"sample_sequence_ids\":[\"s/0\"]}" },
    { &tkc_get_info_request_type, "{\"model_id\":\"m\",\"type\":\"get_info\"}" },
    { &tkc_get_info_response_type,
      "{\"model_id\":\"m\",\"model_data\":{\"arch\":\"llama\",\"model_name\":\"acme/tiny-8b\","
      "\"tokenizer_id\":\"acme/tok\"},\"is_lora\":true,\"lora_rank\":16,\"model_name\":\"n\","
      "\"next_seq_id\":4,\"type\":\"get_info\"}" },
    { &tkc_unload_model_request_type, "{\"model_id\":\"m\",\"type\":\"unload_model\"}" },
    { &tkc_unload_model_result_type, "{\"model_id\":\"m\",\"type\":\"unload_model\"}" },
    { &tkc_dimuon_step_request_type,
      "{\"optimizer_params\":{\"type\":\"dimuon\",\"learning_rate\":0.02,\"grad_clip_norm\":1.5,"
      "\"beta1\":0.9},\"model_id\":\"m\",\"seq_id\":3,\"type\":\"optim_step\"}" },
    { &tkc_optim_step_request_type,
      "{\"adam_params\":{\"learning_rate\":0.0001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12,"
      "\"weight_decay\":0.0,\"grad_clip_norm\":0.0},\"model_id\":\"m\",\"seq_id\":2,\"type\":"
      "\"optim_step\"}" },
    { &tkc_optim_step_result_type, "{\"metrics\":{\"grad_norm\":0.5,\"lr\":1e-05}}" },
    { &tkc_save_weights_request_type,
      "{\"model_id\":\"m\",\"path\":\"step-100\",\"seq_id\":3,\"ttl_seconds\":86400,\"overwrite\":"
      "true,\"user_metadata\":{\"a\":\"b\"},\"type\":\"save_weights\"}" },
    { &tkc_save_weights_result_type, "{\"path\":\"tinker://m/weights/step-100\",\"type\":\"save_weights\"}" },
    { &tkc_save_for_sampler_request_type,
      "{\"model_id\":\"m\",\"path\":\"final\",\"sampling_session_seq_id\":4,\"seq_id\":5,"
      "\"ttl_seconds\":6,\"overwrite\":true,\"user_metadata\":{\"a\":\"b\"},\"kind\":"
      "\"snapshot\",\"type\":\"save_weights_for_sampler\"}" },
    { &tkc_save_for_sampler_result_type,
      "{\"path\":\"tinker://m/sampler_weights/final\",\"sampling_session_id\":\"s:sample:4\","
      "\"type\":\"save_weights_for_sampler\"}" },
    { &tkc_load_weights_request_type,
      "{\"model_id\":\"m\",\"seq_id\":1,\"session_id\":\"9d2c61f0\",\"model_seq_id\":1,"
      "\"base_model\":\"b\",\"user_metadata\":{\"run\":\"b\"},\"path\":\"tinker://77aa:train:0/"
      "weights/step-100\",\"optimizer\":true,\"weights_access_token\":\"t\","
      "\"optimizer_config\":{\"type\":\"adamw\"},\"type\":\"load_weights\"}" },
    { &tkc_load_weights_result_type, "{\"path\":\"p\",\"model_id\":\"m\",\"type\":\"load_weights\"}" },
    { &tkc_weights_info_request_type, "{\"tinker_path\":\"tinker://r/weights/0001\"}" },
    { &tkc_weights_info_response_type, "{\"base_model\":\"b\",\"is_lora\":true,\"lora_rank\":8,\"train_unembed\":false,"
                                       "\"train_mlp\":true,\"train_attn\":true}" },
    { &tkc_retrieve_future_request_type, "{\"request_id\":\"req-17\",\"allow_metadata_only\":true}" },
    { &tkc_capabilities_response_type,
      "{\"supported_models\":[{\"model_name\":\"a/b\",\"max_context_length\":4096},{}]}" },
    { &tkc_cursor_type, CURSOR },
    { &tkc_checkpoint_type, CHECKPOINT },
    { &tkc_checkpoints_response_type, "{\"checkpoints\":[" CHECKPOINT "," CHECKPOINT "],\"cursor\":" CURSOR "}" },
    { &tkc_training_run_type, RUN },
    { &tkc_training_runs_response_type, "{\"training_runs\":[" RUN "],\"cursor\":" CURSOR "}" },
    { &tkc_ttl_request_type, "{\"ttl_seconds\":null}" },
    { &tkc_ttl_request_type, "{\"ttl_seconds\":86400}" },
    { &tkc_project_request_type, "{\"project_id\":\"p\"}" },
    { &tkc_archive_response_type, "{\"url\":\"https://h/x.tar\",\"expires\":\"2026-03-04T05:06:07Z\"}" },
    { &tkc_sessions_response_type, "{\"sessions\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}" },
    { &tkc_session_response_type, "{\"training_run_ids\":[\"r\"],\"sampler_ids\":[],\"user_"
                                  "metadata\":{\"a\":\"b\"},\"display_name\":\"n\"}" },
    { &tkc_trace_export_response_type, "{\"status\":\"failed\",\"url\":\"http://u\",\"error\":\"why\"}" },
    { &tkc_audit_response_type,
      "{\"entries\":[{\"timestamp\":\"2026-03-04T05:06:07Z\",\"event\":\"e\",\"model_id\":\"m\","
      "\"tinker_path\":\"t\",\"purpose\":\"p\"}]}" },
    { &tkc_usage_response_type,
      "{\"data\":[{\"bucket_start\":\"2026-07-13T00:00:00Z\",\"bucket_end\":\"2026-07-13T01:00:"
      "00Z\","
      "\"base_model\":\"b\",\"user_id\":\"u\",\"user_name\":\"n\",\"session_id\":\"s\","
      "\"project_id\":\"p\",\"event_info\":{\"type\":\"sampling_prefill\",\"cached\":true,"
      "\"token_count\":7}},{\"bucket_start\":\"2026-07-13T00:00:00Z\",\"bucket_end\":"
      "\"2026-07-13T01:00:00Z\",\"event_info\":{\"type\":\"storage\",\"gigabyte_hours\":1.5}}],"
      "\"sessions\":{\"s\":{\"user_metadata\":{\"a\":\"b\"}},\"t\":{}},"
      "\"cost_data_through\":\"2026-07-13T00:00:00Z\"}" },
    { &tkc_telemetry_request_type,
      "{\"events\":[{\"event\":\"SESSION_START\",\"event_id\":\"5f0c1f9e-6a53-4f0e-9b0e-"
      "6f6a0e2d9a11\",\"event_session_index\":0,\"severity\":\"INFO\",\"timestamp\":"
      "\"2026-03-04T05:06:07.089123Z\"},{\"event\":\"UNHANDLED_EXCEPTION\",\"event_id\":\"i\","
      "\"event_session_index\":1,\"severity\":\"ERROR\",\"timestamp\":\"2026-03-04T05:06:07Z\","
      "\"duration\":\"0:00:07.094560\",\"error_type\":\"t\",\"error_message\":\"m\",\"traceback\":"
      "\"b\",\"event_name\":\"n\",\"event_data\":{\"a\":null}}],\"platform\":\"Linux\","
      "\"sdk_version\":\"0.25.0\",\"session_id\":\"9d2c61f0\",\"process_uuid\":\"a4a7e6d2\"}" },
    { &tkc_telemetry_response_type, "{\"status\":\"accepted\"}" },
    { &tkc_sampling_params_type,
      "{\"max_tokens\":32,\"seed\":18446744073709551615,\"stop\":\"\\n\",\"temperature\":0.7,"
      "\"top_k\":-1,\"top_p\":0.95}" },
    { &tkc_sampling_params_type,
      "{\"seed\":-9223372036854775808,\"stop\":[1,2],\"temperature\":1.0,\"top_k\":5,\"top_p\":"
      "1.0}" },
    { &tkc_model_input_type,
      "{\"chunks\":[{\"tokens\":[1,2,3],\"type\":\"encoded_text\"},{\"format\":\"jpeg\","
      "\"location\":\"assets/cat.jpg\",\"expected_tokens\":256,\"type\":\"image_asset_pointer\"},"
      "{\"dmel\":\"BAKCAVA=\",\"type\":\"dmel\"},{\"data\":\"iVBORw0=\",\"format\":\"png\","
      "\"type\":\"image\"}]}" },
    { &tkc_sample_request_type, "{\"num_samples\":2,\"prompt\":{\"chunks\":[{\"tokens\":[101,7,9],\"type\":"
                                "\"encoded_text\"},{\"data\":\"iVBORw0=\",\"format\":\"png\",\"expected_tokens\":64,"
                                "\"type\":\"image\"}]},\"sampling_params\":{\"max_tokens\":32,\"seed\":7,\"stop\":"
                                "[\"\\n\\n\"],\"temperature\":0.7,\"top_k\":-1,\"top_p\":0.95},\"base_model\":\"b\","
                                "\"model_path\":\"p\",\"sampling_session_id\":\"9d2c61f0:sample:0\",\"seq_id\":12,"
                                "\"prompt_logprobs\":true,\"topk_prompt_logprobs\":4,\"topk_sample_logprobs\":5,"
                                "\"prompt_logprobs_last_n\":2,\"type\":\"sample\"}" },
    { &tkc_stream_event_type, "{\"event_type\":\"token\",\"token\":\" the\",\"token_id\":279,\"index\":0,\"logprob\":"
                              "-1.25}" },
    { &tkc_stream_event_type, "{\"event_type\":\"done\",\"finish_reason\":\"length\",\"total_tokens\":2}" },
    { &tkc_stream_event_type, "{\"event_type\":\"error\",\"token\":\"x\",\"error\":\"x\",\"category\":\"user\"}" },
};
enum { N_WIRE_SAMPLES = sizeof wire_samples / sizeof wire_samples[0] };

#endif
