/* messages.h - every JSON request and response of the protocol except the bulk ones.
 *
 * `X` is described by the table X_type: tkc_message_encode(&tkc_create_session_request_type, ...).
 * Members are in the order in which the official client sends them. Bulk messages are in
 * wire/train_message.h and wire/sample_message.h; answers of retrieve_future and error bodies in
 * wire/answer.h.
 */
#ifndef TKC_WIRE_MESSAGES_H
#define TKC_WIRE_MESSAGES_H

#include "wire/message_codec.h"

/* {}: for empty bodies, and for answers whose contents are not read. */
typedef struct tkc_empty {
    char unused;
} tkc_empty;
extern const tkc_message tkc_empty_type;

/* ---- start-up ---- */

typedef struct tkc_health_response {
    const char *status; /* "ok" */
} tkc_health_response;
extern const tkc_message tkc_health_response_type;

/* client/config and client/dynamic_config */
typedef struct tkc_config_request {
    const char *sdk_version;
} tkc_config_request;
extern const tkc_message tkc_config_request_type;

typedef struct tkc_config_response {
    bool pjwt_auth_enabled;
    const char *credential_default_source; /* never NULL after decoding */
    int64_t sample_dispatch_bytes_semaphore_size;
    int64_t inflight_response_bytes_semaphore_size;
    bool parallel_fwdbwd_chunks;
    bool proto_compress_fwdbwd;
    int64_t fwdbwd_max_chunk_len;
    int64_t fwdbwd_max_chunk_bytes_count;
    int64_t fwdbwd_dispatch_bytes_semaphore_size;
    int64_t billing_exception_max_pause_duration_sec;
    bool sample_no_retries;
    bool sample_enable_stuck_detection;
    int64_t sample_max_concurrent_requests;
    bool use_pyqwest_transport;
    bool create_model_via_load_weights;
    tkc_opt_bool sample_join_sampling_session; /* a copy of a sampler asks for its numbers */
    tkc_opt_bool sample_use_retrieve_futures;  /* one poll for all samples of a sampler */
    tkc_opt_bool custom_loss_server_side;      /* losses of one's own run there; written only */
    tkc_opt_bool serves_tokenizers;            /* of its models, at the paths of a hub; ours alone */
    tkc_opt_bool proto_write_fwdbwd;           /* these two are for older clients only */
    tkc_opt_bool fwd_via_fwdbwd;
    tinkc_str json;
} tkc_config_response;
extern const tkc_message tkc_config_response_type;

typedef struct tkc_dynamic_config_response {
    int64_t refresh_interval_sec;
    bool sample_cancel_enabled; /* notify the service of samples that are no longer awaited */
    int64_t sample_cancel_max_batch_size;
    tkc_opt_bool sample_use_retrieve_futures; /* replaces what client/config said */
    tinkc_str json;
} tkc_dynamic_config_response;
extern const tkc_message tkc_dynamic_config_response_type;

typedef struct tkc_auth_token_response {
    const char *jwt;
} tkc_auth_token_response;
extern const tkc_message tkc_auth_token_response_type;

typedef struct tkc_create_session_request {
    const char *const *tags; /* NULL is sent as [] */
    tkc_metadata user_metadata;
    const char *sdk_version;
    const char *project_id;
    const char *display_name;
} tkc_create_session_request;
extern const tkc_message tkc_create_session_request_type;

typedef struct tkc_create_session_response {
    const char *session_id;
    const char *info_message, *warning_message, *error_message;
} tkc_create_session_response;
extern const tkc_message tkc_create_session_response_type;

typedef struct tkc_heartbeat_request {
    const char *session_id;
} tkc_heartbeat_request;
extern const tkc_message tkc_heartbeat_request_type;

typedef struct tkc_heartbeat_response {
    char unused;
} tkc_heartbeat_response;
extern const tkc_message tkc_heartbeat_response_type;

/* ---- samplers ---- */

typedef struct tkc_create_sampling_session_request {
    const char *session_id;
    int64_t sampling_session_seq_id;
    const char *base_model;
    const char *model_path;
} tkc_create_sampling_session_request;
extern const tkc_message tkc_create_sampling_session_request_type;

typedef struct tkc_create_sampling_session_response {
    const char *sampling_session_id;
} tkc_create_sampling_session_response;
extern const tkc_message tkc_create_sampling_session_response_type;

typedef struct tkc_join_sampling_session_request {
    const char *sampling_session_id;
} tkc_join_sampling_session_request;
extern const tkc_message tkc_join_sampling_session_request_type;

typedef struct tkc_join_sampling_session_response {
    int64_t client_counter; /* 0 is the original */
} tkc_join_sampling_session_response;
extern const tkc_message tkc_join_sampling_session_response_type;

typedef struct tkc_sampler_response {
    const char *sampler_id;
    const char *base_model;
    const char *model_path;
    tinkc_str json;
} tkc_sampler_response;
extern const tkc_message tkc_sampler_response_type;

/* ---- models ---- */

typedef struct tkc_lora_config {
    int64_t rank;
    tkc_opt_seed seed;
    bool train_unembed, train_mlp, train_attn; /* true by default */
} tkc_lora_config;
extern const tkc_message tkc_lora_config_type;

/* Sent by newer clients; absent = Adam. */
typedef struct tkc_optimizer_config {
    const char *type; /* adamw, dimuon */
    tkc_opt_i64 version;
} tkc_optimizer_config;

/* create_custom_loss */
typedef struct tkc_custom_loss_input {
    const char *name;
    int64_t rank;
} tkc_custom_loss_input;
extern const tkc_message tkc_custom_loss_input_type;

typedef struct tkc_create_custom_loss_request {
    const char *session_id;
    int64_t custom_loss_seq_id;
    const char *name;
    TKC_ARRAY(tkc_custom_loss_input) inputs;
    tinkc_str graph; /* JSON: read by the engine's own reader */
} tkc_create_custom_loss_request;
extern const tkc_message tkc_create_custom_loss_request_type;

typedef struct tkc_create_custom_loss_result {
    const char *loss_id;
} tkc_create_custom_loss_result;
extern const tkc_message tkc_create_custom_loss_result_type;

typedef struct tkc_create_model_request {
    const char *session_id;
    int64_t model_seq_id;
    const char *base_model;
    tkc_metadata user_metadata;
    const tkc_lora_config *lora_config;
    const tkc_optimizer_config *optimizer_config;
} tkc_create_model_request;
extern const tkc_message tkc_create_model_request_type;

typedef struct tkc_create_model_result {
    const char *model_id;
} tkc_create_model_result;
extern const tkc_message tkc_create_model_result_type;

/* The answer to every request whose result is fetched later. */
typedef struct tkc_untyped_future {
    const char *request_id;
    const char *model_id;
    const char *const *sample_sequence_ids; /* of samples: one for each sequence; NULL = none */
} tkc_untyped_future;
extern const tkc_message tkc_untyped_future_type;

typedef struct tkc_get_info_request {
    const char *model_id;
} tkc_get_info_request;
extern const tkc_message tkc_get_info_request_type;

typedef struct tkc_model_data {
    const char *arch;
    const char *model_name;
    const char *tokenizer_id;
} tkc_model_data;
extern const tkc_message tkc_model_data_type;

typedef struct tkc_get_info_response {
    const char *model_id;
    tkc_model_data model_data;
    tkc_opt_bool is_lora;
    tkc_opt_i64 lora_rank;
    const char *model_name;
    tkc_opt_i64
        next_seq_id; /* of this server alone: of the next request, if none is missing before */
    tinkc_str json;
} tkc_get_info_response;
extern const tkc_message tkc_get_info_response_type;

typedef struct tkc_unload_model_request {
    const char *model_id;
} tkc_unload_model_request;
extern const tkc_message tkc_unload_model_request_type;

typedef struct tkc_unload_model_result {
    const char *model_id;
} tkc_unload_model_result;
extern const tkc_message tkc_unload_model_result_type;

/* ---- optimizer and weights ---- */

typedef struct tkc_adam_params {
    double learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm;
} tkc_adam_params;
extern const tkc_message tkc_adam_params_type;

typedef struct tkc_optim_step_request {
    tkc_adam_params adam_params;
    const char *model_id;
    tkc_opt_i64 seq_id;
} tkc_optim_step_request;
extern const tkc_message tkc_optim_step_request_type;

/* The same call for an optimizer other than Adam. */
typedef struct tkc_dimuon_params {
    double learning_rate, grad_clip_norm, beta1;
} tkc_dimuon_params;

typedef struct tkc_dimuon_step_request {
    tkc_dimuon_params optimizer_params;
    const char *model_id;
    tkc_opt_i64 seq_id;
} tkc_dimuon_step_request;
extern const tkc_message tkc_dimuon_step_request_type;

typedef struct tkc_optim_step_result {
    tkc_numbers metrics;
} tkc_optim_step_result;
extern const tkc_message tkc_optim_step_result_type;

typedef struct tkc_save_weights_request {
    const char *model_id;
    const char *path; /* the checkpoint's name */
    tkc_opt_i64 seq_id;
    tkc_opt_i64 ttl_seconds;
    bool overwrite;
    tkc_metadata user_metadata;
} tkc_save_weights_request;
extern const tkc_message tkc_save_weights_request_type;

typedef struct tkc_save_weights_result {
    const char *path; /* tinker://RUN/weights/NAME */
} tkc_save_weights_result;
extern const tkc_message tkc_save_weights_result_type;

typedef struct tkc_save_for_sampler_request {
    const char *model_id;
    const char *path;                    /* named form */
    tkc_opt_i64 sampling_session_seq_id; /* unnamed form */
    tkc_opt_i64 seq_id;
    tkc_opt_i64 ttl_seconds;
    tkc_opt_bool overwrite; /* not sent by the official SDK */
    tkc_metadata user_metadata;
    const char *kind; /* "snapshot" (NULL: the same) or "inflight" */
} tkc_save_for_sampler_request;
extern const tkc_message tkc_save_for_sampler_request_type;

typedef struct tkc_save_for_sampler_result {
    const char *path;
    const char *sampling_session_id;
} tkc_save_for_sampler_result;
extern const tkc_message tkc_save_for_sampler_result_type;

/* Weights in a format that other programs read. */
typedef struct tkc_save_external_request {
    const char *model_id;
    const char *path; /* the checkpoint's name */
    tkc_opt_i64 seq_id;
    tkc_opt_i64 ttl_seconds;
    const char *const *age_encryption_recipients;
} tkc_save_external_request;
extern const tkc_message tkc_save_external_request_type;

typedef struct tkc_save_external_result {
    const char *path; /* tinker://RUN/external_weights/NAME */
    tkc_opt_i64 size_bytes;
} tkc_save_external_result;
extern const tkc_message tkc_save_external_result_type;

typedef struct tkc_load_weights_request {
    const char *model_id; /* these two, or the next two */
    tkc_opt_i64 seq_id;
    const char *session_id;
    tkc_opt_i64 model_seq_id;
    const char *base_model;
    tkc_metadata user_metadata;
    const char *path;
    bool optimizer;
    const char *weights_access_token;
    const tkc_optimizer_config *optimizer_config;
} tkc_load_weights_request;
extern const tkc_message tkc_load_weights_request_type;

typedef struct tkc_load_weights_result {
    const char *path;
    const char *model_id;
} tkc_load_weights_result;
extern const tkc_message tkc_load_weights_result_type;

typedef struct tkc_weights_info_request {
    const char *tinker_path;
} tkc_weights_info_request;
extern const tkc_message tkc_weights_info_request_type;

typedef struct tkc_weights_info_response {
    const char *base_model;
    bool is_lora;
    tkc_opt_i64 lora_rank;
    tkc_opt_bool train_unembed, train_mlp, train_attn;
    const tkc_optimizer_config *optimizer_config;
    tinkc_str json;
} tkc_weights_info_response;
extern const tkc_message tkc_weights_info_response_type;

/* To a project, or to a slot of a session. */
typedef struct tkc_copy_weights_request {
    const char *session_id;
    tkc_opt_i64 model_seq_id;
    const char *destination_project_id;
    const char *source_path;
    tkc_opt_i64 ttl_seconds;
} tkc_copy_weights_request;
extern const tkc_message tkc_copy_weights_request_type;

typedef struct tkc_copy_weights_response {
    const char *tinker_path;
} tkc_copy_weights_response;
extern const tkc_message tkc_copy_weights_response_type;

/* Adapters made elsewhere: start names an address for each file, finish makes a checkpoint. */
typedef struct tkc_upload_start_request {
    const char *base_model;
    const tkc_lora_config *lora_config;
    const char *destination_project_id;
} tkc_upload_start_request;
extern const tkc_message tkc_upload_start_request_type;

typedef struct tkc_upload_start_response {
    const char *upload_id;
    tkc_metadata urls;
    tkc_time expires;
} tkc_upload_start_response;
extern const tkc_message tkc_upload_start_response_type;

typedef struct tkc_upload_finish_request {
    const char *upload_id;
} tkc_upload_finish_request;
extern const tkc_message tkc_upload_finish_request_type;

typedef struct tkc_upload_finish_response {
    const char *tinker_path;
} tkc_upload_finish_response;
extern const tkc_message tkc_upload_finish_response_type;

/* ---- polling ---- */

typedef struct tkc_retrieve_future_request {
    const char *request_id;
    bool allow_metadata_only;
} tkc_retrieve_future_request;
extern const tkc_message tkc_retrieve_future_request_type;

typedef struct tkc_cancel_future_request {
    const char *request_id;
} tkc_cancel_future_request;
extern const tkc_message tkc_cancel_future_request_type;

typedef struct tkc_futures_target {
    const char *sampling_session_id;
    int64_t cloned_sampler_id;
} tkc_futures_target;

typedef struct tkc_retrieve_futures_request {
    tkc_futures_target target;
    int64_t prev_cursor;
    tkc_opt_f64
        timeout; /* neither sent nor used: the server's setting says how long polls are held */
    const char *const *retrieved_request_ids;
} tkc_retrieve_futures_request;
extern const tkc_message tkc_retrieve_futures_request_type;

typedef struct tkc_future_completion {
    const char *state; /* finished, failed */
    const char *request_id;
    tkc_opt_i64 response_payload_uncompressed_size;
} tkc_future_completion;

typedef struct tkc_retrieve_futures_response {
    TKC_ARRAY(tkc_future_completion) completions;
    int64_t cursor;
} tkc_retrieve_futures_response;
extern const tkc_message tkc_retrieve_futures_response_type;

/* ---- records ---- */

typedef struct tkc_supported_model {
    const char *model_name;
    tkc_opt_i64 max_context_length;
    tkc_opt_bool trainable, sampleable;
    tinkc_str json;
} tkc_supported_model;
extern const tkc_message tkc_supported_model_type;

typedef struct tkc_capabilities_response {
    TKC_ARRAY(tkc_supported_model) supported_models;
    tinkc_str json;
} tkc_capabilities_response;
extern const tkc_message tkc_capabilities_response_type;

/* If there is a cursor, offset, limit and total are all required. */
typedef struct tkc_cursor {
    int64_t offset, limit, total_count;
} tkc_cursor;
extern const tkc_message tkc_cursor_type;

extern const tkc_name tkc_checkpoint_kinds[]; /* training, sampler, external: TINKC_CHECKPOINT_* */

typedef struct tkc_checkpoint {
    const char *checkpoint_id;
    tkc_name checkpoint_type;
    tkc_time time;
    const char *tinker_path;
    tkc_opt_i64 size_bytes;
    bool is_public; /* "public" */
    tkc_time expires_at;
    tkc_metadata user_metadata;
    const char *base_model; /* NULL = not said */
    tinkc_str json;
} tkc_checkpoint;
extern const tkc_message tkc_checkpoint_type;

typedef struct tkc_checkpoints_response {
    TKC_ARRAY(tkc_checkpoint) checkpoints;
    const tkc_cursor *cursor;
} tkc_checkpoints_response;
extern const tkc_message tkc_checkpoints_response_type;

typedef struct tkc_training_run {
    const char *training_run_id;
    const char *base_model;
    const char *model_owner;
    bool is_lora;
    bool corrupted;
    tkc_opt_i64 lora_rank;
    tkc_time last_request_time;
    const tkc_checkpoint *last_checkpoint;
    const tkc_checkpoint *last_sampler_checkpoint;
    tkc_metadata user_metadata;
    tinkc_str json;
} tkc_training_run;
extern const tkc_message tkc_training_run_type;

typedef struct tkc_training_runs_response {
    TKC_ARRAY(tkc_training_run) training_runs;
    const tkc_cursor *cursor; /* never NULL after decoding */
} tkc_training_runs_response;
extern const tkc_message tkc_training_runs_response_type;

typedef struct tkc_ttl_request {
    tkc_opt_i64 ttl_seconds; /* TKC_NULL clears it */
} tkc_ttl_request;
extern const tkc_message tkc_ttl_request_type;

typedef struct tkc_project_request {
    const char *project_id;
} tkc_project_request;
extern const tkc_message tkc_project_request_type;

typedef struct tkc_archive_response {
    const char *url;
    tkc_time expires;
} tkc_archive_response;
extern const tkc_message tkc_archive_response_type;

/* The URL of each file of external weights. */
typedef struct tkc_external_urls_response {
    tkc_metadata urls; /* file to URL */
    tkc_time expires;
} tkc_external_urls_response;
extern const tkc_message tkc_external_urls_response_type;

typedef struct tkc_sessions_response {
    const char *const *sessions; /* a list */
} tkc_sessions_response;
extern const tkc_message tkc_sessions_response_type;

typedef struct tkc_session_response {
    const char *const *training_run_ids;
    const char *const *sampler_ids;
    tkc_metadata user_metadata;
    const char *display_name;
    tinkc_str json;
} tkc_session_response;
extern const tkc_message tkc_session_response_type;

typedef struct tkc_finish_reason {
    const char *type; /* success, errored, interrupted */
} tkc_finish_reason;

typedef struct tkc_finish_session_request {
    tkc_finish_reason reason;
    const char *detail;
} tkc_finish_session_request;
extern const tkc_message tkc_finish_session_request_type;

typedef struct tkc_search_owner {
    const char *type; /* own, accessible, user */
    const char *const *owner_urns;
} tkc_search_owner;

typedef struct tkc_search_status {
    const char *type; /* active, cancelled, failed, client_finished */
    const char *const *reasons;
} tkc_search_status;

/* Where the next page begins. A client passes it back unchanged. */
typedef struct tkc_search_cursor {
    tkc_time last_created_at;
    const char *last_session_id;
} tkc_search_cursor;
extern const tkc_message tkc_search_cursor_type;

typedef struct tkc_search_request {
    const char *session_id;
    const char *const *project_ids;
    tkc_metadata user_metadata;
    const char *display_name;
    tkc_search_owner owner;
    TKC_ARRAY(tkc_search_status) statuses; /* none = any */
    int64_t limit;
    tinkc_str cursor; /* a tkc_search_cursor as JSON */
} tkc_search_request;
extern const tkc_message tkc_search_request_type;

typedef struct tkc_checkpoint_cursor {
    tkc_time last_created_at;
    const char *last_checkpoint_uuid;
} tkc_checkpoint_cursor;
extern const tkc_message tkc_checkpoint_cursor_type;

typedef struct tkc_checkpoint_search_request {
    const char *const *project_ids; /* NULL = all that may be listed */
    tkc_metadata user_metadata;
    const char *checkpoint_type; /* training, sampler, external */
    tkc_search_owner owner;
    const char *const *base_models; /* NULL = any; an empty list matches none */
    int64_t limit;
    tinkc_str cursor; /* a tkc_checkpoint_cursor as JSON */
} tkc_checkpoint_search_request;
extern const tkc_message tkc_checkpoint_search_request_type;

typedef struct tkc_checkpoint_search_response {
    TKC_ARRAY(tkc_checkpoint) checkpoints;
    tinkc_str next_cursor; /* empty = last page */
} tkc_checkpoint_search_response;
extern const tkc_message tkc_checkpoint_search_response_type;

typedef struct tkc_session_status {
    tkc_name type; /* TINKC_SESSION_* */
    const tkc_finish_reason *reason;
    const char *detail;
    tinkc_str json;
} tkc_session_status;

typedef struct tkc_session_summary {
    const char *session_id;
    tkc_time created_at;
    const char *owner;
    const char *project_id;
    const tkc_session_status *status; /* NULL = not ended and not known to be running */
    int64_t checkpoints_count;
    const char *display_name;
    tkc_metadata user_metadata;
    tkc_opt_i64 checkpoint_storage_bytes;
    tinkc_str json;
} tkc_session_summary;
extern const tkc_message tkc_session_summary_type;

typedef struct tkc_search_response {
    TKC_ARRAY(tkc_session_summary) sessions;
    tinkc_str next_cursor; /* empty = last page */
} tkc_search_response;
extern const tkc_message tkc_search_response_type;

enum { TKC_EXPORT_PENDING = 1, TKC_EXPORT_READY, TKC_EXPORT_FAILED };

typedef struct tkc_trace_export_response {
    tkc_name status; /* TKC_EXPORT_* */
    const char *url;
    const char *error;
} tkc_trace_export_response;
extern const tkc_message tkc_trace_export_response_type;

typedef struct tkc_audit_entry {
    tkc_time timestamp;
    const char *event;
    const char *model_id, *tinker_path, *purpose;
    tinkc_str json;
} tkc_audit_entry;
extern const tkc_message tkc_audit_entry_type;

typedef struct tkc_audit_response {
    TKC_ARRAY(tkc_audit_entry) entries;
} tkc_audit_response;
extern const tkc_message tkc_audit_response_type;

/* `type` (TINKC_USAGE_*) says which members are valid. */
typedef struct tkc_usage_info {
    tkc_name type;
    tkc_opt_bool cached;
    tkc_opt_i64 token_count;
    tkc_opt_i64 count;
    tkc_opt_f64 gigabyte_hours;
    tinkc_str json;
} tkc_usage_info;

typedef struct tkc_usage_event {
    tkc_time bucket_start, bucket_end;
    const char *base_model, *user_id, *user_name, *session_id, *project_id;
    tkc_usage_info event_info;
    tinkc_str json;
} tkc_usage_event;
extern const tkc_message tkc_usage_event_type;

typedef struct tkc_usage_session {
    const char *session_id;
    tkc_metadata user_metadata;
} tkc_usage_session;

typedef struct tkc_usage_response {
    TKC_ARRAY(tkc_usage_event) data;
    TKC_ARRAY(tkc_usage_session) sessions;
    tkc_time cost_data_through; /* until when costs are known; absent = not said */
} tkc_usage_response;
extern const tkc_message tkc_usage_response_type;

/* What the service stores now, by project and owner. */
typedef struct tkc_storage_item {
    const char *project_id, *org_user_urn, *user_email, *user_name;
    int64_t checkpoint_count, size_bytes;
    double size_gigabytes;
    tkc_opt_f64 estimated_monthly_cost_usd;
    tinkc_str json;
} tkc_storage_item;

typedef struct tkc_storage_response {
    tkc_opt_f64 effective_rate_usd_per_gigabyte_month;
    TKC_ARRAY(tkc_storage_item) data;
} tkc_storage_response;
extern const tkc_message tkc_storage_response_type;

/* ---- telemetry ---- */

enum { TKC_EVENT_SESSION_START = 1, TKC_EVENT_SESSION_END, TKC_EVENT_EXCEPTION, TKC_EVENT_GENERIC };
enum { TKC_DEBUG = 1, TKC_INFO, TKC_WARNING, TKC_ERROR, TKC_CRITICAL };

/* Members after `timestamp` belong to some kinds of event only. */
typedef struct tkc_telemetry_event {
    tkc_name event; /* TKC_EVENT_* */
    const char *event_id;
    int64_t event_session_index;
    tkc_name severity;    /* TKC_DEBUG ... TKC_CRITICAL */
    tkc_time timestamp;   /* written with microseconds unless text is given */
    const char *duration; /* session end */
    const char *error_type, *error_message, *traceback;
    const char *event_name;
    tinkc_str event_data; /* a JSON object */
} tkc_telemetry_event;
extern const tkc_message tkc_telemetry_event_type;

typedef struct tkc_telemetry_request {
    TKC_ARRAY(tkc_telemetry_event) events;
    const char *platform, *sdk_version, *session_id, *process_uuid;
} tkc_telemetry_request;
extern const tkc_message tkc_telemetry_request_type;

typedef struct tkc_telemetry_response {
    const char *status; /* "accepted" */
} tkc_telemetry_response;
extern const tkc_message tkc_telemetry_response_type;

#endif
