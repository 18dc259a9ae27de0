/* sample_message.h - the bulk messages of sampling: asample requests (JSON) and their results
 * (protobuf, or JSON for older clients). The rules of wire/train_message.h about views apply here
 * too. */
#ifndef TKC_WIRE_SAMPLE_MESSAGE_H
#define TKC_WIRE_SAMPLE_MESSAGE_H

#include "tinkc/sample.h"
#include "wire/train_message.h"

enum { TKC_STOP_NONE = 0, TKC_STOP_STRING, TKC_STOP_STRINGS, TKC_STOP_TOKENS };

/* `stop` has three shapes on the wire. An empty array reads as STRINGS. */
typedef struct tkc_stop {
    int32_t kind;               /* TKC_STOP_* */
    const char *const *strings; /* a list; one for STRING */
    tinkc_i32s tokens;
} tkc_stop;

typedef struct tkc_sampling_params {
    tkc_opt_i64 max_tokens;
    tkc_opt_seed seed;
    tkc_stop stop;
    float temperature; /* 1 by default */
    int64_t top_k;     /* -1 by default */
    float top_p;       /* 1 by default */
} tkc_sampling_params;
extern const tkc_message tkc_sampling_params_type;

typedef struct tkc_sample_request {
    int64_t num_samples; /* 1 by default */
    tkc_model_input prompt;
    tkc_sampling_params sampling_params;
    const char *base_model;
    const char *model_path;
    const char *sampling_session_id;
    tkc_opt_i64 seq_id;
    tkc_opt_bool prompt_logprobs;
    int64_t topk_prompt_logprobs;
    tkc_opt_i64 topk_sample_logprobs; /* this and the next: from 0.36 on, sent when used */
    tkc_opt_i64 prompt_logprobs_last_n;
    tkc_tensor target_prompt_logprobs; /* ids to score, [prompt - 1, K]; dtype 0 = none */
    tkc_opt_i64 prompt_alt_tokens_k;
    tkc_opt_bool record_stability_info;
} tkc_sample_request;
extern const tkc_message tkc_sample_request_type;

/* The size that the client's dispatch budget counts: 10 per text token, the bytes of images and
 * dmel, the length of image pointers. */
size_t tkc_model_input_estimate(const tinkc_chunk *chunks, size_t n);

/* ---- results ---- */

/* An unused cell holds token 0 in the ids and this value in the logprobs. */
#define TKC_TOPK_NONE (-99999.0f)

/* The best k candidates at each of `rows` positions, row by row. */
typedef struct tkc_topk {
    tinkc_i32s ids;      /* rows * k; data NULL = not asked for */
    tinkc_f32s logprobs; /* likewise */
    uint32_t k, rows;
} tkc_topk;

typedef struct tkc_sample_response {
    TKC_ARRAY(tinkc_sequence) sequences;
    const tkc_topk *sampled_topk; /* one for each sequence; NULL = for none */
    tinkc_f32s prompt_logprobs;   /* NaN = none; data NULL = not asked for */
    tkc_topk topk;                /* of the prompt */
    int32_t prompt_cache_hit_tokens;
    tkc_tensor target_prompt_logprobs; /* dtype 0 = not asked for, as for the next two */
    tkc_tensor alt_tokens, alt_logprobs;
} tkc_sample_response;

bool tkc_sample_response_to_pb(const tkc_sample_response *, tkc_buf *out, tinkc_error *err);
bool tkc_sample_response_from_pb(tinkc_bytes, tkc_arena *, tkc_sample_response *, tinkc_error *err);
bool tkc_sample_response_to_json(const tkc_sample_response *, tkc_buf *out, tinkc_error *err);
bool tkc_sample_response_from_json(tinkc_str, tkc_arena *, tkc_sample_response *, tinkc_error *err);

/* How many candidates row i holds: 0 = not computed; trailing unused cells do not count. */
size_t tkc_topk_row(const tkc_topk *, size_t i, const int32_t **ids, const float **logprobs);

/* ---- one event of stream_sample (docs/stream.md) ---- */

enum { TKC_STREAM_TOKEN = 1, TKC_STREAM_DONE, TKC_STREAM_ERROR };
enum { TKC_FINISH_STOP = 1, TKC_FINISH_LENGTH }; /* one more than TINKC_STOP, TINKC_STOP_LENGTH */

typedef struct tkc_stream_event {
    tkc_name event_type; /* TKC_STREAM_* */
    const char *token;   /* TOKEN: its text */
    tkc_opt_i64 token_id;
    tkc_opt_i64 index;
    tkc_opt_f32 logprob;
    tkc_name finish_reason; /* DONE: TKC_FINISH_* */
    tkc_opt_i64 total_tokens;
    const char *error; /* ERROR */
    tkc_name category; /* TKC_CATEGORY_* */
} tkc_stream_event;
extern const tkc_message tkc_stream_event_type;

#endif
