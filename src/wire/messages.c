/* messages.c - the tables of all JSON messages. Data only: each field's name, type and whether it
 * is required. wire/message_codec.c does the work. */
#include "wire/messages.h"

#include <stddef.h>

#include "tinkc/rest.h"

/* JSON name and member are the same unless a table says otherwise. In every table T is the struct
 * that it describes. */
#define FIELD(member, kind, flags)                                                                 \
    {                                                                                              \
#member, kind, flags, offsetof(T, member), NULL                                            \
    }
#define TYPED(member, kind, flags, of)                                                             \
    {                                                                                              \
#member, kind, flags, offsetof(T, member), of                                              \
    }
#define TAG(text, flags)                                                                           \
    {                                                                                              \
        "type", TKC_CONST, flags, 0, text                                                          \
    }
#define SELF                                                                                       \
    {                                                                                              \
        "", TKC_SELF, 0, offsetof(T, json), NULL                                                   \
    }
#define MESSAGE(fields, title, defaults)                                                           \
    {                                                                                              \
        title, sizeof(T), fields, sizeof fields / sizeof fields[0], defaults                       \
    }

#define MUST     TKC_MUST
#define NULLABLE TKC_NULLABLE

/* ---- start-up ---- */

const tkc_message tkc_empty_type = { "empty body", sizeof(tkc_empty), NULL, 0, NULL };

#define T tkc_health_response
static const tkc_field health_response[] = { FIELD(status, TKC_STR, MUST) };
const tkc_message tkc_health_response_type = MESSAGE(health_response, "health response", NULL);
#undef T

#define T tkc_config_request
static const tkc_field config_request[] = { FIELD(sdk_version, TKC_STR, MUST) };
const tkc_message tkc_config_request_type = MESSAGE(config_request, "config request", NULL);
#undef T

#define T tkc_config_response
static const T config_defaults = {
    .credential_default_source = "api_key",
    .sample_dispatch_bytes_semaphore_size = 10485760,
    .inflight_response_bytes_semaphore_size = 52428800,
    .parallel_fwdbwd_chunks = true,
    .fwdbwd_max_chunk_len = 1024,
    .fwdbwd_max_chunk_bytes_count = 5000000,
    .fwdbwd_dispatch_bytes_semaphore_size = 50000000,
    .billing_exception_max_pause_duration_sec = 3600,
    .sample_enable_stuck_detection = true,
    .sample_max_concurrent_requests = 2000,
    .use_pyqwest_transport = true,
};
static const tkc_field config_response[] = {
    FIELD(pjwt_auth_enabled, TKC_BOOL, 0),
    FIELD(credential_default_source, TKC_STR, 0),
    FIELD(sample_dispatch_bytes_semaphore_size, TKC_I64, 0),
    FIELD(inflight_response_bytes_semaphore_size, TKC_I64, 0),
    FIELD(parallel_fwdbwd_chunks, TKC_BOOL, 0),
    FIELD(proto_compress_fwdbwd, TKC_BOOL, 0),
    FIELD(fwdbwd_max_chunk_len, TKC_I64, 0),
    FIELD(fwdbwd_max_chunk_bytes_count, TKC_I64, 0),
    FIELD(fwdbwd_dispatch_bytes_semaphore_size, TKC_I64, 0),
    FIELD(billing_exception_max_pause_duration_sec, TKC_I64, 0),
    FIELD(sample_no_retries, TKC_BOOL, 0),
    FIELD(sample_enable_stuck_detection, TKC_BOOL, 0),
    FIELD(sample_max_concurrent_requests, TKC_I64, 0),
    FIELD(use_pyqwest_transport, TKC_BOOL, 0),
    FIELD(create_model_via_load_weights, TKC_BOOL, 0),
    FIELD(sample_join_sampling_session, TKC_OPT_BOOL, 0),
    FIELD(sample_use_retrieve_futures, TKC_OPT_BOOL, 0),
    FIELD(custom_loss_server_side, TKC_OPT_BOOL, 0),
    FIELD(serves_tokenizers, TKC_OPT_BOOL, 0),
    FIELD(proto_write_fwdbwd, TKC_OPT_BOOL, 0),
    FIELD(fwd_via_fwdbwd, TKC_OPT_BOOL, 0),
    SELF,
};
const tkc_message tkc_config_response_type =
    MESSAGE(config_response, "config response", &config_defaults);
#undef T

#define T tkc_dynamic_config_response
static const T dynamic_defaults = { .refresh_interval_sec = 300,
                                    .sample_cancel_max_batch_size = 64 };
static const tkc_field dynamic_response[] = {
    FIELD(refresh_interval_sec, TKC_I64, 0),
    FIELD(sample_cancel_enabled, TKC_BOOL, 0),
    FIELD(sample_cancel_max_batch_size, TKC_I64, 0),
    FIELD(sample_use_retrieve_futures, TKC_OPT_BOOL, 0),
    SELF,
};
const tkc_message tkc_dynamic_config_response_type =
    MESSAGE(dynamic_response, "dynamic config response", &dynamic_defaults);
#undef T

#define T tkc_auth_token_response
static const tkc_field auth_token_response[] = { FIELD(jwt, TKC_STR, MUST) };
const tkc_message tkc_auth_token_response_type =
    MESSAGE(auth_token_response, "auth token response", NULL);
#undef T

#define T tkc_create_session_request
static const tkc_field create_session_request[] = {
    FIELD(tags, TKC_STRS, MUST),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(sdk_version, TKC_STR, MUST),
    FIELD(project_id, TKC_STR, NULLABLE),
    FIELD(display_name, TKC_STR, NULLABLE),
    TAG("create_session", 0),
};
const tkc_message tkc_create_session_request_type =
    MESSAGE(create_session_request, "create_session request", NULL);
#undef T

#define T tkc_create_session_response
static const tkc_field create_session_response[] = {
    TAG("create_session", 0),
    FIELD(session_id, TKC_STR, MUST),
    FIELD(info_message, TKC_STR, NULLABLE),
    FIELD(warning_message, TKC_STR, NULLABLE),
    FIELD(error_message, TKC_STR, NULLABLE),
};
const tkc_message tkc_create_session_response_type =
    MESSAGE(create_session_response, "create_session response", NULL);
#undef T

#define T tkc_heartbeat_request
static const tkc_field heartbeat_request[] = {
    FIELD(session_id, TKC_STR, MUST),
    TAG("session_heartbeat", 0),
};
const tkc_message tkc_heartbeat_request_type =
    MESSAGE(heartbeat_request, "session_heartbeat request", NULL);
#undef T

#define T tkc_heartbeat_response
static const tkc_field heartbeat_response[] = { TAG("session_heartbeat", 0) };
const tkc_message tkc_heartbeat_response_type =
    MESSAGE(heartbeat_response, "session_heartbeat response", NULL);
#undef T

/* ---- samplers ---- */

#define T tkc_create_sampling_session_request
static const tkc_field create_sampling_session_request[] = {
    FIELD(session_id, TKC_STR, MUST),     FIELD(sampling_session_seq_id, TKC_I64, MUST),
    FIELD(base_model, TKC_STR, NULLABLE), FIELD(model_path, TKC_STR, NULLABLE),
    TAG("create_sampling_session", 0),
};
const tkc_message tkc_create_sampling_session_request_type =
    MESSAGE(create_sampling_session_request, "create_sampling_session request", NULL);
#undef T

#define T tkc_create_sampling_session_response
static const tkc_field create_sampling_session_response[] = {
    TAG("create_sampling_session", 0),
    FIELD(sampling_session_id, TKC_STR, MUST),
};
const tkc_message tkc_create_sampling_session_response_type =
    MESSAGE(create_sampling_session_response, "create_sampling_session response", NULL);
#undef T

#define T tkc_join_sampling_session_request
static const tkc_field join_sampling_session_request[] = {
    FIELD(sampling_session_id, TKC_STR, MUST),
    TAG("join_sampling_session", 0),
};
const tkc_message tkc_join_sampling_session_request_type =
    MESSAGE(join_sampling_session_request, "join_sampling_session request", NULL);
#undef T

#define T tkc_join_sampling_session_response
static const tkc_field join_sampling_session_response[] = {
    FIELD(client_counter, TKC_I64, MUST),
    TAG("join_sampling_session", NULLABLE),
};
const tkc_message tkc_join_sampling_session_response_type =
    MESSAGE(join_sampling_session_response, "join_sampling_session response", NULL);
#undef T

#define T tkc_sampler_response
static const tkc_field sampler_response[] = {
    FIELD(sampler_id, TKC_STR, MUST),
    FIELD(base_model, TKC_STR, MUST),
    FIELD(model_path, TKC_STR, NULLABLE),
    SELF,
};
const tkc_message tkc_sampler_response_type = MESSAGE(sampler_response, "sampler response", NULL);
#undef T

/* ---- models ---- */

#define T tkc_lora_config
static const T lora_defaults = { .train_unembed = true, .train_mlp = true, .train_attn = true };
static const tkc_field lora_config[] = {
    FIELD(rank, TKC_I64, MUST),        FIELD(seed, TKC_OPT_SEED, NULLABLE),
    FIELD(train_unembed, TKC_BOOL, 0), FIELD(train_mlp, TKC_BOOL, 0),
    FIELD(train_attn, TKC_BOOL, 0),
};
const tkc_message tkc_lora_config_type = MESSAGE(lora_config, "lora_config", &lora_defaults);
#undef T

#define T tkc_optimizer_config
static const tkc_field optimizer_config[] = {
    FIELD(type, TKC_STR, MUST),
    FIELD(version, TKC_OPT_I64, NULLABLE),
};
static const tkc_message optimizer_config_type =
    MESSAGE(optimizer_config, "optimizer_config", NULL);
#undef T

#define T tkc_custom_loss_input
static const tkc_field custom_loss_input[] = {
    FIELD(name, TKC_STR, MUST),
    FIELD(rank, TKC_I64, MUST),
};
const tkc_message tkc_custom_loss_input_type = MESSAGE(custom_loss_input, "input", NULL);
#undef T

#define T tkc_create_custom_loss_request
static const tkc_field create_custom_loss_request[] = {
    FIELD(session_id, TKC_STR, MUST), FIELD(custom_loss_seq_id, TKC_I64, MUST),
    FIELD(name, TKC_STR, MUST),       TYPED(inputs, TKC_OBJECTS, MUST, &tkc_custom_loss_input_type),
    FIELD(graph, TKC_RAW, MUST),      TAG("create_custom_loss", 0),
};
const tkc_message tkc_create_custom_loss_request_type =
    MESSAGE(create_custom_loss_request, "create_custom_loss request", NULL);
#undef T

#define T tkc_create_custom_loss_result
static const tkc_field create_custom_loss_result[] = {
    FIELD(loss_id, TKC_STR, MUST),
    TAG("create_custom_loss", NULLABLE),
};
const tkc_message tkc_create_custom_loss_result_type =
    MESSAGE(create_custom_loss_result, "create_custom_loss result", NULL);
#undef T

#define T tkc_create_model_request
static const tkc_field create_model_request[] = {
    FIELD(session_id, TKC_STR, MUST),
    FIELD(model_seq_id, TKC_I64, MUST),
    FIELD(base_model, TKC_STR, TKC_SENT | NULLABLE),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    TYPED(lora_config, TKC_OBJECT_PTR, NULLABLE, &tkc_lora_config_type),
    TYPED(optimizer_config, TKC_OBJECT_PTR, NULLABLE, &optimizer_config_type),
    TAG("create_model", 0),
};
const tkc_message tkc_create_model_request_type =
    MESSAGE(create_model_request, "create_model request", NULL);
#undef T

#define T tkc_create_model_result
static const tkc_field create_model_result[] = {
    FIELD(model_id, TKC_STR, MUST),
    TAG("create_model", 0),
};
const tkc_message tkc_create_model_result_type =
    MESSAGE(create_model_result, "create_model result", NULL);
#undef T

#define T tkc_untyped_future
static const tkc_field untyped_future[] = {
    FIELD(request_id, TKC_STR, MUST),
    FIELD(model_id, TKC_STR, NULLABLE),
    FIELD(sample_sequence_ids, TKC_STRS, NULLABLE),
};
const tkc_message tkc_untyped_future_type = MESSAGE(untyped_future, "future", NULL);
#undef T

#define T tkc_get_info_request
static const tkc_field get_info_request[] = {
    FIELD(model_id, TKC_STR, MUST),
    TAG("get_info", 0),
};
const tkc_message tkc_get_info_request_type = MESSAGE(get_info_request, "get_info request", NULL);
#undef T

#define T tkc_model_data
static const tkc_field model_data[] = {
    FIELD(arch, TKC_STR, NULLABLE),
    FIELD(model_name, TKC_STR, NULLABLE),
    FIELD(tokenizer_id, TKC_STR, NULLABLE),
};
const tkc_message tkc_model_data_type = MESSAGE(model_data, "model_data", NULL);
#undef T

#define T tkc_get_info_response
static const tkc_field get_info_response[] = {
    FIELD(model_id, TKC_STR, MUST),
    TYPED(model_data, TKC_OBJECT, MUST, &tkc_model_data_type),
    FIELD(is_lora, TKC_OPT_BOOL, NULLABLE),
    FIELD(lora_rank, TKC_OPT_I64, NULLABLE),
    FIELD(model_name, TKC_STR, NULLABLE),
    FIELD(next_seq_id, TKC_OPT_I64, NULLABLE),
    TAG("get_info", NULLABLE),
    SELF,
};
const tkc_message tkc_get_info_response_type =
    MESSAGE(get_info_response, "get_info response", NULL);
#undef T

#define T tkc_unload_model_request
static const tkc_field unload_model_request[] = {
    FIELD(model_id, TKC_STR, MUST),
    TAG("unload_model", 0),
};
const tkc_message tkc_unload_model_request_type =
    MESSAGE(unload_model_request, "unload_model request", NULL);
#undef T

#define T tkc_unload_model_result
static const tkc_field unload_model_result[] = {
    FIELD(model_id, TKC_STR, MUST),
    TAG("unload_model", NULLABLE),
};
const tkc_message tkc_unload_model_result_type =
    MESSAGE(unload_model_result, "unload_model result", NULL);
#undef T

/* ---- optimizer and weights ---- */

#define T tkc_adam_params
static const T adam_defaults = { 0.0001, 0.9, 0.95, 1e-12, 0.0, 0.0 };
static const tkc_field adam_params[] = {
    FIELD(learning_rate, TKC_F64, 0), FIELD(beta1, TKC_F64, 0),
    FIELD(beta2, TKC_F64, 0),         FIELD(eps, TKC_F64, 0),
    FIELD(weight_decay, TKC_F64, 0),  FIELD(grad_clip_norm, TKC_F64, 0),
};
const tkc_message tkc_adam_params_type = MESSAGE(adam_params, "adam_params", &adam_defaults);
#undef T

#define T tkc_optim_step_request
static const tkc_field optim_step_request[] = {
    TYPED(adam_params, TKC_OBJECT, MUST, &tkc_adam_params_type),
    FIELD(model_id, TKC_STR, MUST),
    FIELD(seq_id, TKC_OPT_I64, NULLABLE),
    TAG("optim_step", 0),
};
static const T optim_step_defaults = { .adam_params = { 0.0001, 0.9, 0.95, 1e-12, 0.0, 0.0 } };
const tkc_message tkc_optim_step_request_type =
    MESSAGE(optim_step_request, "optim_step request", &optim_step_defaults);
#undef T

#define T tkc_dimuon_params
static const T dimuon_defaults = { .beta1 = 0.9 };
static const tkc_field dimuon_params[] = {
    TAG("dimuon", 0),
    FIELD(learning_rate, TKC_F64, MUST),
    FIELD(grad_clip_norm, TKC_F64, 0),
    FIELD(beta1, TKC_F64, 0),
};
static const tkc_message dimuon_params_type =
    MESSAGE(dimuon_params, "optimizer_params", &dimuon_defaults);
#undef T

#define T tkc_dimuon_step_request
static const tkc_field dimuon_step_request[] = {
    TYPED(optimizer_params, TKC_OBJECT, MUST, &dimuon_params_type),
    FIELD(model_id, TKC_STR, MUST),
    FIELD(seq_id, TKC_OPT_I64, NULLABLE),
    TAG("optim_step", 0),
};
const tkc_message tkc_dimuon_step_request_type =
    MESSAGE(dimuon_step_request, "optim_step request", NULL);
#undef T

#define T tkc_optim_step_result
static const tkc_field optim_step_result[] = { FIELD(metrics, TKC_NUMBERS, NULLABLE) };
const tkc_message tkc_optim_step_result_type =
    MESSAGE(optim_step_result, "optim_step result", NULL);
#undef T

#define T tkc_save_weights_request
static const tkc_field save_weights_request[] = {
    FIELD(model_id, TKC_STR, MUST),
    FIELD(path, TKC_STR, NULLABLE),
    FIELD(seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(ttl_seconds, TKC_OPT_I64, NULLABLE),
    FIELD(overwrite, TKC_BOOL, 0),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    TAG("save_weights", 0),
};
const tkc_message tkc_save_weights_request_type =
    MESSAGE(save_weights_request, "save_weights request", NULL);
#undef T

#define T tkc_save_weights_result
static const tkc_field save_weights_result[] = {
    FIELD(path, TKC_STR, MUST),
    TAG("save_weights", NULLABLE),
};
const tkc_message tkc_save_weights_result_type =
    MESSAGE(save_weights_result, "save_weights result", NULL);
#undef T

#define T tkc_save_for_sampler_request
static const tkc_field save_for_sampler_request[] = {
    FIELD(model_id, TKC_STR, MUST),
    FIELD(path, TKC_STR, NULLABLE),
    FIELD(sampling_session_seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(ttl_seconds, TKC_OPT_I64, NULLABLE),
    FIELD(overwrite, TKC_OPT_BOOL, NULLABLE),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(kind, TKC_STR, NULLABLE),
    TAG("save_weights_for_sampler", 0),
};
const tkc_message tkc_save_for_sampler_request_type =
    MESSAGE(save_for_sampler_request, "save_weights_for_sampler request", NULL);
#undef T

#define T tkc_save_for_sampler_result
static const tkc_field save_for_sampler_result[] = {
    FIELD(path, TKC_STR, NULLABLE),
    FIELD(sampling_session_id, TKC_STR, NULLABLE),
    TAG("save_weights_for_sampler", NULLABLE),
};
const tkc_message tkc_save_for_sampler_result_type =
    MESSAGE(save_for_sampler_result, "save_weights_for_sampler result", NULL);
#undef T

#define T tkc_save_external_request
static const tkc_field save_external_request[] = {
    FIELD(model_id, TKC_STR, MUST),
    FIELD(path, TKC_STR, MUST),
    FIELD(seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(ttl_seconds, TKC_OPT_I64, NULLABLE),
    FIELD(age_encryption_recipients, TKC_STRS, NULLABLE),
    TAG("save_weights_external", 0),
};
const tkc_message tkc_save_external_request_type =
    MESSAGE(save_external_request, "save_weights_external request", NULL);
#undef T

#define T tkc_save_external_result
static const tkc_field save_external_result[] = {
    FIELD(path, TKC_STR, NULLABLE),
    FIELD(size_bytes, TKC_OPT_I64, NULLABLE),
    TAG("save_weights_external", NULLABLE),
};
const tkc_message tkc_save_external_result_type =
    MESSAGE(save_external_result, "save_weights_external result", NULL);
#undef T

#define T tkc_load_weights_request
static const tkc_field load_weights_request[] = {
    FIELD(model_id, TKC_STR, NULLABLE),
    FIELD(seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(session_id, TKC_STR, NULLABLE),
    FIELD(model_seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(base_model, TKC_STR, NULLABLE),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(path, TKC_STR, MUST),
    FIELD(optimizer, TKC_BOOL, MUST),
    FIELD(weights_access_token, TKC_STR, NULLABLE),
    TYPED(optimizer_config, TKC_OBJECT_PTR, NULLABLE, &optimizer_config_type),
    TAG("load_weights", 0),
};
const tkc_message tkc_load_weights_request_type =
    MESSAGE(load_weights_request, "load_weights request", NULL);
#undef T

#define T tkc_load_weights_result
static const tkc_field load_weights_result[] = {
    FIELD(path, TKC_STR, NULLABLE),
    FIELD(model_id, TKC_STR, NULLABLE),
    TAG("load_weights", NULLABLE),
};
const tkc_message tkc_load_weights_result_type =
    MESSAGE(load_weights_result, "load_weights result", NULL);
#undef T

#define T tkc_weights_info_request
static const tkc_field weights_info_request[] = { FIELD(tinker_path, TKC_STR, MUST) };
const tkc_message tkc_weights_info_request_type =
    MESSAGE(weights_info_request, "weights_info request", NULL);
#undef T

#define T tkc_weights_info_response
static const tkc_field weights_info_response[] = {
    FIELD(base_model, TKC_STR, MUST),
    FIELD(is_lora, TKC_BOOL, MUST),
    FIELD(lora_rank, TKC_OPT_I64, NULLABLE),
    FIELD(train_unembed, TKC_OPT_BOOL, NULLABLE),
    FIELD(train_mlp, TKC_OPT_BOOL, NULLABLE),
    FIELD(train_attn, TKC_OPT_BOOL, NULLABLE),
    TYPED(optimizer_config, TKC_OBJECT_PTR, NULLABLE, &optimizer_config_type),
    SELF,
};
const tkc_message tkc_weights_info_response_type =
    MESSAGE(weights_info_response, "weights_info response", NULL);
#undef T

#define T tkc_copy_weights_request
static const tkc_field copy_weights_request[] = {
    FIELD(session_id, TKC_STR, NULLABLE),
    FIELD(model_seq_id, TKC_OPT_I64, NULLABLE),
    FIELD(destination_project_id, TKC_STR, NULLABLE),
    FIELD(source_path, TKC_STR, MUST),
    FIELD(ttl_seconds, TKC_OPT_I64, NULLABLE),
};
const tkc_message tkc_copy_weights_request_type =
    MESSAGE(copy_weights_request, "copy_weights request", NULL);
#undef T

#define T tkc_copy_weights_response
static const tkc_field copy_weights_response[] = { FIELD(tinker_path, TKC_STR, MUST) };
const tkc_message tkc_copy_weights_response_type =
    MESSAGE(copy_weights_response, "copy_weights response", NULL);
#undef T

#define T tkc_upload_start_request
static const tkc_field upload_start_request[] = {
    FIELD(base_model, TKC_STR, MUST),
    TYPED(lora_config, TKC_OBJECT_PTR, MUST, &tkc_lora_config_type),
    FIELD(destination_project_id, TKC_STR, NULLABLE),
};
const tkc_message tkc_upload_start_request_type =
    MESSAGE(upload_start_request, "external_weights_upload_start request", NULL);
#undef T

#define T tkc_upload_start_response
static const tkc_field upload_start_response[] = {
    FIELD(upload_id, TKC_STR, MUST),
    FIELD(urls, TKC_METADATA, MUST),
    FIELD(expires, TKC_TIME, MUST),
};
const tkc_message tkc_upload_start_response_type =
    MESSAGE(upload_start_response, "external_weights_upload_start response", NULL);
#undef T

#define T tkc_upload_finish_request
static const tkc_field upload_finish_request[] = { FIELD(upload_id, TKC_STR, MUST) };
const tkc_message tkc_upload_finish_request_type =
    MESSAGE(upload_finish_request, "external_weights_upload_finish request", NULL);
#undef T

#define T tkc_upload_finish_response
static const tkc_field upload_finish_response[] = { FIELD(tinker_path, TKC_STR, MUST) };
const tkc_message tkc_upload_finish_response_type =
    MESSAGE(upload_finish_response, "external_weights_upload_finish response", NULL);
#undef T

/* ---- polling ---- */

#define T tkc_retrieve_future_request
static const tkc_field retrieve_future_request[] = {
    FIELD(request_id, TKC_STR, MUST),
    FIELD(allow_metadata_only, TKC_BOOL, 0),
};
const tkc_message tkc_retrieve_future_request_type =
    MESSAGE(retrieve_future_request, "retrieve_future request", NULL);
#undef T

#define T tkc_cancel_future_request
static const tkc_field cancel_future_request[] = { FIELD(request_id, TKC_STR, MUST) };
const tkc_message tkc_cancel_future_request_type =
    MESSAGE(cancel_future_request, "cancel_future request", NULL);
#undef T

#define T tkc_futures_target
static const tkc_field futures_target[] = {
    FIELD(sampling_session_id, TKC_STR, MUST),
    FIELD(cloned_sampler_id, TKC_I64, 0),
    TAG("sampling_session", 0),
};
static const tkc_message futures_target_type = MESSAGE(futures_target, "target", NULL);
#undef T

#define T tkc_retrieve_futures_request
static const tkc_field retrieve_futures_request[] = {
    TYPED(target, TKC_OBJECT, MUST, &futures_target_type),
    FIELD(prev_cursor, TKC_I64, 0),
    FIELD(timeout, TKC_OPT_F64, NULLABLE),
    FIELD(retrieved_request_ids, TKC_STRS, NULLABLE),
};
const tkc_message tkc_retrieve_futures_request_type =
    MESSAGE(retrieve_futures_request, "retrieve_futures request", NULL);
#undef T

#define T tkc_future_completion
static const tkc_field future_completion[] = {
    FIELD(state, TKC_STR, NULLABLE),
    FIELD(request_id, TKC_STR, MUST),
    FIELD(response_payload_uncompressed_size, TKC_OPT_I64, NULLABLE),
};
static const tkc_message future_completion_type = MESSAGE(future_completion, "completion", NULL);
#undef T

#define T tkc_retrieve_futures_response
static const tkc_field retrieve_futures_response[] = {
    TYPED(completions, TKC_OBJECTS, MUST, &future_completion_type),
    FIELD(cursor, TKC_I64, MUST),
};
const tkc_message tkc_retrieve_futures_response_type =
    MESSAGE(retrieve_futures_response, "retrieve_futures response", NULL);
#undef T

/* ---- records ---- */

#define T tkc_supported_model
static const tkc_field supported_model[] = {
    FIELD(model_name, TKC_STR, NULLABLE),
    FIELD(max_context_length, TKC_OPT_I64, NULLABLE),
    FIELD(trainable, TKC_OPT_BOOL, NULLABLE),
    FIELD(sampleable, TKC_OPT_BOOL, NULLABLE),
    SELF,
};
const tkc_message tkc_supported_model_type = MESSAGE(supported_model, "supported model", NULL);
#undef T

#define T tkc_capabilities_response
static const tkc_field capabilities_response[] = {
    TYPED(supported_models, TKC_OBJECTS, MUST, &tkc_supported_model_type),
    SELF,
};
const tkc_message tkc_capabilities_response_type =
    MESSAGE(capabilities_response, "capabilities response", NULL);
#undef T

#define T tkc_cursor
static const tkc_field cursor[] = {
    FIELD(offset, TKC_I64, MUST),
    FIELD(limit, TKC_I64, MUST),
    FIELD(total_count, TKC_I64, MUST),
};
const tkc_message tkc_cursor_type = MESSAGE(cursor, "cursor", NULL);
#undef T

const tkc_name tkc_checkpoint_kinds[] = {
    { "training", TINKC_CHECKPOINT_TRAINING },
    { "sampler", TINKC_CHECKPOINT_SAMPLER },
    { "external", TINKC_CHECKPOINT_EXTERNAL },
    { NULL, 0 },
};

#define T tkc_checkpoint
static const tkc_field checkpoint[] = {
    FIELD(checkpoint_id, TKC_STR, MUST),
    TYPED(checkpoint_type, TKC_NAME, MUST, tkc_checkpoint_kinds),
    FIELD(time, TKC_TIME, MUST),
    FIELD(tinker_path, TKC_STR, MUST),
    FIELD(size_bytes, TKC_OPT_I64, NULLABLE),
    { "public", TKC_BOOL, 0, offsetof(T, is_public), NULL },
    FIELD(expires_at, TKC_TIME, NULLABLE),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(base_model, TKC_STR, NULLABLE),
    SELF,
};
const tkc_message tkc_checkpoint_type = MESSAGE(checkpoint, "checkpoint", NULL);
#undef T

#define T tkc_checkpoints_response
static const tkc_field checkpoints_response[] = {
    TYPED(checkpoints, TKC_OBJECTS, MUST, &tkc_checkpoint_type),
    TYPED(cursor, TKC_OBJECT_PTR, NULLABLE, &tkc_cursor_type),
};
const tkc_message tkc_checkpoints_response_type =
    MESSAGE(checkpoints_response, "checkpoints response", NULL);
#undef T

#define T tkc_training_run
static const tkc_field training_run[] = {
    FIELD(training_run_id, TKC_STR, MUST),
    FIELD(base_model, TKC_STR, MUST),
    FIELD(model_owner, TKC_STR, MUST),
    FIELD(is_lora, TKC_BOOL, MUST),
    FIELD(corrupted, TKC_BOOL, 0),
    FIELD(lora_rank, TKC_OPT_I64, NULLABLE),
    FIELD(last_request_time, TKC_TIME, MUST),
    TYPED(last_checkpoint, TKC_OBJECT_PTR, NULLABLE, &tkc_checkpoint_type),
    TYPED(last_sampler_checkpoint, TKC_OBJECT_PTR, NULLABLE, &tkc_checkpoint_type),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    SELF,
};
const tkc_message tkc_training_run_type = MESSAGE(training_run, "training run", NULL);
#undef T

#define T tkc_training_runs_response
static const tkc_field training_runs_response[] = {
    TYPED(training_runs, TKC_OBJECTS, MUST, &tkc_training_run_type),
    TYPED(cursor, TKC_OBJECT_PTR, MUST, &tkc_cursor_type),
};
const tkc_message tkc_training_runs_response_type =
    MESSAGE(training_runs_response, "training_runs response", NULL);
#undef T

#define T tkc_ttl_request
static const tkc_field ttl_request[] = { FIELD(ttl_seconds, TKC_OPT_I64, MUST | NULLABLE) };
const tkc_message tkc_ttl_request_type = MESSAGE(ttl_request, "ttl request", NULL);
#undef T

#define T tkc_project_request
static const tkc_field project_request[] = { FIELD(project_id, TKC_STR, MUST) };
const tkc_message tkc_project_request_type = MESSAGE(project_request, "project request", NULL);
#undef T

#define T tkc_archive_response
static const tkc_field archive_response[] = {
    FIELD(url, TKC_STR, MUST),
    FIELD(expires, TKC_TIME, MUST),
};
const tkc_message tkc_archive_response_type = MESSAGE(archive_response, "archive response", NULL);
#undef T

#define T tkc_external_urls_response
static const tkc_field external_urls_response[] = {
    FIELD(urls, TKC_METADATA, MUST),
    FIELD(expires, TKC_TIME, MUST),
};
const tkc_message tkc_external_urls_response_type =
    MESSAGE(external_urls_response, "external_weights_urls response", NULL);
#undef T

#define T tkc_sessions_response
static const tkc_field sessions_response[] = { FIELD(sessions, TKC_STRS, MUST) };
const tkc_message tkc_sessions_response_type =
    MESSAGE(sessions_response, "sessions response", NULL);
#undef T

#define T tkc_session_response
static const tkc_field session_response[] = {
    FIELD(training_run_ids, TKC_STRS, MUST),
    FIELD(sampler_ids, TKC_STRS, MUST),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(display_name, TKC_STR, NULLABLE),
    SELF,
};
const tkc_message tkc_session_response_type = MESSAGE(session_response, "session response", NULL);
#undef T

#define T tkc_finish_reason
static const tkc_field finish_reason[] = { FIELD(type, TKC_STR, MUST) };
static const tkc_message finish_reason_type = MESSAGE(finish_reason, "reason", NULL);
#undef T

#define T tkc_finish_session_request
static const tkc_field finish_session_request[] = {
    TYPED(reason, TKC_OBJECT, MUST, &finish_reason_type),
    FIELD(detail, TKC_STR, NULLABLE),
};
const tkc_message tkc_finish_session_request_type =
    MESSAGE(finish_session_request, "finish request", NULL);
#undef T

#define T tkc_search_owner
static const tkc_field search_owner[] = {
    FIELD(type, TKC_STR, MUST),
    FIELD(owner_urns, TKC_STRS, NULLABLE),
};
static const tkc_message search_owner_type = MESSAGE(search_owner, "owner", NULL);
#undef T

#define T tkc_search_status
static const tkc_field search_status[] = {
    FIELD(type, TKC_STR, MUST),
    FIELD(reasons, TKC_STRS, NULLABLE),
};
static const tkc_message search_status_type = MESSAGE(search_status, "status", NULL);
#undef T

#define T tkc_search_cursor
static const tkc_field search_cursor[] = {
    FIELD(last_created_at, TKC_TIME, MUST),
    FIELD(last_session_id, TKC_STR, MUST),
};
const tkc_message tkc_search_cursor_type = MESSAGE(search_cursor, "cursor", NULL);
#undef T

#define T tkc_search_request
static const T search_defaults = { .owner = { .type = "own" }, .limit = 50 };
static const tkc_field search_request[] = {
    FIELD(session_id, TKC_STR, NULLABLE),
    FIELD(project_ids, TKC_STRS, NULLABLE),
    FIELD(user_metadata, TKC_METADATA, 0),
    FIELD(display_name, TKC_STR, NULLABLE),
    TYPED(owner, TKC_OBJECT, 0, &search_owner_type),
    TYPED(statuses, TKC_OBJECTS, NULLABLE, &search_status_type),
    FIELD(limit, TKC_I64, 0),
    FIELD(cursor, TKC_RAW, NULLABLE),
};
const tkc_message tkc_search_request_type =
    MESSAGE(search_request, "session search", &search_defaults);
#undef T

#define T tkc_checkpoint_cursor
static const tkc_field checkpoint_cursor[] = {
    FIELD(last_created_at, TKC_TIME, MUST),
    FIELD(last_checkpoint_uuid, TKC_STR, MUST),
};
const tkc_message tkc_checkpoint_cursor_type =
    MESSAGE(checkpoint_cursor, "checkpoint cursor", NULL);
#undef T

#define T tkc_checkpoint_search_request
static const T checkpoint_search_defaults = { .owner = { .type = "own" }, .limit = 50 };
static const tkc_field checkpoint_search_request[] = {
    FIELD(project_ids, TKC_STRS, NULLABLE),    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(checkpoint_type, TKC_STR, NULLABLE), TYPED(owner, TKC_OBJECT, 0, &search_owner_type),
    FIELD(base_models, TKC_STRS, NULLABLE),    FIELD(limit, TKC_I64, 0),
    FIELD(cursor, TKC_RAW, NULLABLE),
};
const tkc_message tkc_checkpoint_search_request_type =
    MESSAGE(checkpoint_search_request, "checkpoint search", &checkpoint_search_defaults);
#undef T

#define T tkc_checkpoint_search_response
static const tkc_field checkpoint_search_response[] = {
    TYPED(checkpoints, TKC_OBJECTS, MUST, &tkc_checkpoint_type),
    FIELD(next_cursor, TKC_RAW, NULLABLE),
};
const tkc_message tkc_checkpoint_search_response_type =
    MESSAGE(checkpoint_search_response, "checkpoint search response", NULL);
#undef T

#define T tkc_session_status
static const tkc_name session_states[] = {
    { "active", TINKC_SESSION_ACTIVE },
    { "cancelled", TINKC_SESSION_CANCELLED },
    { "failed", TINKC_SESSION_FAILED },
    { "client_finished", TINKC_SESSION_FINISHED },
    { NULL, 0 },
};
static const tkc_field session_status[] = {
    TYPED(type, TKC_NAME, MUST, session_states),
    TYPED(reason, TKC_OBJECT_PTR, NULLABLE, &finish_reason_type),
    FIELD(detail, TKC_STR, NULLABLE),
    SELF,
};
static const tkc_message session_status_type = MESSAGE(session_status, "status", NULL);
#undef T

#define T tkc_session_summary
static const tkc_field session_summary[] = {
    FIELD(session_id, TKC_STR, MUST),
    FIELD(created_at, TKC_TIME, MUST),
    FIELD(owner, TKC_STR, MUST),
    FIELD(project_id, TKC_STR, MUST),
    TYPED(status, TKC_OBJECT_PTR, NULLABLE, &session_status_type),
    FIELD(checkpoints_count, TKC_I64, MUST),
    FIELD(display_name, TKC_STR, NULLABLE),
    FIELD(user_metadata, TKC_METADATA, NULLABLE),
    FIELD(checkpoint_storage_bytes, TKC_OPT_I64, NULLABLE),
    SELF,
};
const tkc_message tkc_session_summary_type = MESSAGE(session_summary, "session", NULL);
#undef T

#define T tkc_search_response
static const tkc_field search_response[] = {
    TYPED(sessions, TKC_OBJECTS, MUST, &tkc_session_summary_type),
    FIELD(next_cursor, TKC_RAW, NULLABLE),
};
const tkc_message tkc_search_response_type = MESSAGE(search_response, "search response", NULL);
#undef T

#define T tkc_trace_export_response
static const tkc_name export_states[] = {
    { "pending", TKC_EXPORT_PENDING },
    { "ready", TKC_EXPORT_READY },
    { "failed", TKC_EXPORT_FAILED },
    { NULL, 0 },
};
static const tkc_field trace_export_response[] = {
    TYPED(status, TKC_NAME, MUST, export_states),
    FIELD(url, TKC_STR, NULLABLE),
    FIELD(error, TKC_STR, NULLABLE),
};
const tkc_message tkc_trace_export_response_type =
    MESSAGE(trace_export_response, "trace_export response", NULL);
#undef T

#define T tkc_audit_entry
static const tkc_field audit_entry[] = {
    FIELD(timestamp, TKC_TIME, MUST),   FIELD(event, TKC_STR, MUST),
    FIELD(model_id, TKC_STR, NULLABLE), FIELD(tinker_path, TKC_STR, NULLABLE),
    FIELD(purpose, TKC_STR, NULLABLE),  SELF,
};
const tkc_message tkc_audit_entry_type = MESSAGE(audit_entry, "audit entry", NULL);
#undef T

#define T tkc_audit_response
static const tkc_field audit_response[] = {
    TYPED(entries, TKC_OBJECTS, MUST, &tkc_audit_entry_type),
};
const tkc_message tkc_audit_response_type = MESSAGE(audit_response, "audit response", NULL);
#undef T

#define T tkc_usage_info
static const tkc_name usage_kinds[] = {
    { "training", TINKC_USAGE_TRAINING },      { "sampling_prefill", TINKC_USAGE_PREFILL },
    { "sampling_sample", TINKC_USAGE_SAMPLE }, { "checkpoint", TINKC_USAGE_CHECKPOINT },
    { "storage", TINKC_USAGE_STORAGE },        { NULL, 0 },
};
static const tkc_field usage_info[] = {
    TYPED(type, TKC_NAME, MUST, usage_kinds),     FIELD(cached, TKC_OPT_BOOL, NULLABLE),
    FIELD(token_count, TKC_OPT_I64, NULLABLE),    FIELD(count, TKC_OPT_I64, NULLABLE),
    FIELD(gigabyte_hours, TKC_OPT_F64, NULLABLE), SELF,
};
static const tkc_message usage_info_type = MESSAGE(usage_info, "event_info", NULL);
#undef T

#define T tkc_usage_event
static const tkc_field usage_event[] = {
    FIELD(bucket_start, TKC_TIME, MUST),
    FIELD(bucket_end, TKC_TIME, MUST),
    FIELD(base_model, TKC_STR, NULLABLE),
    FIELD(user_id, TKC_STR, NULLABLE),
    FIELD(user_name, TKC_STR, NULLABLE),
    FIELD(session_id, TKC_STR, NULLABLE),
    FIELD(project_id, TKC_STR, NULLABLE),
    TYPED(event_info, TKC_OBJECT, MUST, &usage_info_type),
    SELF,
};
const tkc_message tkc_usage_event_type = MESSAGE(usage_event, "usage event", NULL);
#undef T

#define T tkc_usage_session
static const tkc_field usage_session[] = { FIELD(user_metadata, TKC_METADATA, NULLABLE) };
static const tkc_message usage_session_type = MESSAGE(usage_session, "usage session", NULL);
#undef T

#define T tkc_usage_response
static const tkc_field usage_response[] = {
    TYPED(data, TKC_OBJECTS, MUST, &tkc_usage_event_type),
    TYPED(sessions, TKC_MAP, 0, &usage_session_type),
    FIELD(cost_data_through, TKC_TIME, NULLABLE),
};
const tkc_message tkc_usage_response_type = MESSAGE(usage_response, "usage response", NULL);
#undef T

#define T tkc_storage_item
static const tkc_field storage_item[] = {
    FIELD(project_id, TKC_STR, NULLABLE),
    FIELD(org_user_urn, TKC_STR, NULLABLE),
    FIELD(user_email, TKC_STR, NULLABLE),
    FIELD(user_name, TKC_STR, NULLABLE),
    FIELD(checkpoint_count, TKC_I64, MUST),
    FIELD(size_bytes, TKC_I64, MUST),
    FIELD(size_gigabytes, TKC_F64, MUST),
    FIELD(estimated_monthly_cost_usd, TKC_OPT_F64, NULLABLE),
    SELF,
};
static const tkc_message storage_item_type = MESSAGE(storage_item, "storage item", NULL);
#undef T

#define T tkc_storage_response
static const tkc_field storage_response[] = {
    FIELD(effective_rate_usd_per_gigabyte_month, TKC_OPT_F64, NULLABLE),
    TYPED(data, TKC_OBJECTS, MUST, &storage_item_type),
};
const tkc_message tkc_storage_response_type = MESSAGE(storage_response, "storage response", NULL);
#undef T

/* ---- telemetry ---- */

#define T tkc_telemetry_event
static const tkc_name event_kinds[] = {
    { "SESSION_START", TKC_EVENT_SESSION_START },
    { "SESSION_END", TKC_EVENT_SESSION_END },
    { "UNHANDLED_EXCEPTION", TKC_EVENT_EXCEPTION },
    { "GENERIC_EVENT", TKC_EVENT_GENERIC },
    { NULL, 0 },
};
static const tkc_name severities[] = {
    { "DEBUG", TKC_DEBUG }, { "INFO", TKC_INFO },         { "WARNING", TKC_WARNING },
    { "ERROR", TKC_ERROR }, { "CRITICAL", TKC_CRITICAL }, { NULL, 0 },
};
static const tkc_field telemetry_event[] = {
    TYPED(event, TKC_NAME, MUST, event_kinds), FIELD(event_id, TKC_STR, MUST),
    FIELD(event_session_index, TKC_I64, MUST), TYPED(severity, TKC_NAME, MUST, severities),
    FIELD(timestamp, TKC_TIME, MUST),          FIELD(duration, TKC_STR, NULLABLE),
    FIELD(error_type, TKC_STR, NULLABLE),      FIELD(error_message, TKC_STR, NULLABLE),
    FIELD(traceback, TKC_STR, NULLABLE),       FIELD(event_name, TKC_STR, NULLABLE),
    FIELD(event_data, TKC_RAW, NULLABLE),
};
const tkc_message tkc_telemetry_event_type = MESSAGE(telemetry_event, "telemetry event", NULL);
#undef T

#define T tkc_telemetry_request
static const tkc_field telemetry_request[] = {
    TYPED(events, TKC_OBJECTS, MUST, &tkc_telemetry_event_type),
    FIELD(platform, TKC_STR, MUST),
    FIELD(sdk_version, TKC_STR, MUST),
    FIELD(session_id, TKC_STR, MUST),
    FIELD(process_uuid, TKC_STR, MUST),
};
const tkc_message tkc_telemetry_request_type =
    MESSAGE(telemetry_request, "telemetry request", NULL);
#undef T

#define T tkc_telemetry_response
static const tkc_field telemetry_response[] = { FIELD(status, TKC_STR, MUST) };
const tkc_message tkc_telemetry_response_type =
    MESSAGE(telemetry_response, "telemetry response", NULL);
#undef T
