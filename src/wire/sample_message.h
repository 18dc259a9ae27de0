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

enum { TKC_STREAM_TOKEN = 1, TKC_STREAM_DONE, TKC_STREAM_ERROR };
enum { TKC_FINISH_STOP = 1, TKC_FINISH_LENGTH }; /* one more than TINKC_STOP, TINKC_STOP_LENGTH */

/* tkc_sampling_params, tkc_sample_request, tkc_stream_event */
#define TKC_LIST "wire/sample_messages.inc"
#include "wire/fields_as_structs.h"

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

#endif
