/* mock_service.c - a small service for tests and examples: it accepts everything that makes sense
 * and answers plausibly, at once, the same every time.
 *
 * Losses fall with every optimizer step, samples depend only on prompt and seed, checkpoints and
 * runs are listed after they were made. There is no model behind it. Why not the engine's service:
 * a test moves the clock when all clients are at rest, so an answer must come from inside `send`
 * and not from a worker that is still computing; the out-of-memory tests run it thousands of times;
 * and the SDK's tests run in builds without the engine. Tests of the engine's answers use the
 * engine (tests/unit/engine, tests/client/test_engine_client.c).
 *
 * May touch: base, codec and wire. The mock serialises its calls.
 */
#include "mock/mock_service.h"

#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/str.h"
#include "codec/base64.h"
#include "codec/query.h"
#include "codec/retry.h"
#include "codec/sse.h"
#include "codec/zstd.h"
#include "wire/answer.h"
#include "wire/endpoint.h"
#include "wire/messages.h"
#include "wire/sample_message.h"
#include "wire/train_message.h"

enum { VOCABULARY = 256, CONTEXT = 32768, MAX_BODY = 1 << 28, DEFAULT_TOKENS = 16 };
#define BASE_MODEL "mock/nano"

typedef struct mock_model {
    const char *id, *base_model;
    int64_t rank, steps;
    tkc_metadata metadata;
} mock_model;

typedef struct mock_checkpoint {
    const char *run, *id, *path; /* id: "weights/NAME" */
    int64_t made_us, ttl_s;
    bool sampler, is_public, deleted;
} mock_checkpoint;

typedef struct mock_sampler {
    const char *id, *base_model, *model_path;
} mock_sampler;

typedef struct mock_result {
    char *bytes;
    size_t len;
    bool protobuf;
} mock_result;

struct tkc_mock_service {
    tkc_arena memory; /* of everything that is kept */
    tkc_map models, samplers, results, checkpoints, sessions;
    int64_t n_sessions, n_requests, n_unnamed;
};

/* One request being answered. */
typedef struct exchange {
    tkc_mock_service *s;
    const tinkc_request *request;
    const tkc_route *route;
    tkc_arena arena;
    tinkc_error err;
    tkc_buf *out;
    const char *type;
    int64_t wall_us;
    int32_t status;
    tinkc_str body;
} exchange;

/* ---- answering ---- */

static void refuse(exchange *x, int32_t status, const char *detail)
{
    x->status = status;
    tkc_buf_clear(x->out);
    tkc_error_body_write(&(tkc_error_body){ .detail = detail }, x->out, &x->err);
}

static void answer(exchange *x, const tkc_message *type, const void *message)
{
    tkc_message_encode(type, message, x->out, &x->err);
}

/* The request's message, or NULL after a refusal. */
static void *read_request(exchange *x)
{
    const tkc_message *type = x->route->endpoint->request;
    void *message = tkc_arena_zalloc(&x->arena, type->size, &x->err);
    if (message &&
        tkc_message_decode(type, x->body, TINKC_E_UNPROCESSABLE, &x->arena, message, &x->err))
        return message;
    if (x->err.code == TINKC_E_UNPROCESSABLE) {
        char *detail = tkc_arena_cstr(&x->arena, x->err.message, &(tinkc_error){ 0 });
        x->err = (tinkc_error){ 0 };
        refuse(x, 422, detail);
    }
    return NULL;
}

static const char *keep(exchange *x, const char *text)
{
    return tkc_arena_cstr(&x->s->memory, text ? text : "", &x->err);
}

/* Keeps a finished result under its request id and answers with the promise. */
static void promise(exchange *x, const char *request_id, tkc_buf *result, bool protobuf)
{
    if (!tkc_map_has(&x->s->results, tkc_str(request_id))) {
        mock_result *r = tkc_arena_zalloc(&x->s->memory, sizeof *r, &x->err);
        char *bytes = tkc_arena_str(&x->s->memory, tkc_buf_view(result), &x->err);
        if (r && bytes) {
            *r = (mock_result){ bytes, result->len, protobuf };
            tkc_map_set(&x->s->results, tkc_str(request_id), r, NULL, &x->err);
        }
    }
    answer(x, &tkc_untyped_future_type, &(tkc_untyped_future){ .request_id = request_id });
}

static void promise_message(exchange *x, const char *request_id, const void *message)
{
    tkc_buf result;
    tkc_buf_init(&result, NULL, MAX_BODY);
    tkc_message_encode(x->route->endpoint->result, message, &result, &x->err);
    promise(x, request_id, &result, false);
    tkc_buf_free(&result);
}

static const char *sequenced_id(exchange *x, const char *model_id, int64_t seq)
{
    return tkc_arena_printf(&x->arena, &x->err, "%s:%lld", model_id ? model_id : "",
                            (long long)seq);
}

static mock_model *find_model(exchange *x, const char *id)
{
    mock_model *m = id ? tkc_map_get(&x->s->models, tkc_str(id)) : NULL;
    if (!m)
        refuse(x, 404, "no such model");
    return m;
}

/* ---- start-up ---- */

static void create_session(exchange *x)
{
    if (!read_request(x))
        return;
    const char *id = tkc_arena_printf(&x->s->memory, &x->err, "mock-session-%lld",
                                      (long long)++x->s->n_sessions);
    if (id)
        tkc_map_set(&x->s->sessions, tkc_str(id), (void *)id, NULL, &x->err);
    answer(x, &tkc_create_session_response_type,
           &(tkc_create_session_response){ .session_id = id });
}

static void auth_token(exchange *x)
{
    char *claims = tkc_arena_printf(&x->arena, &x->err,
                                    "{\"sub\":\"user:mock\",\"email\":\"mock@example.org\","
                                    "\"iss\":\"passport-mock\",\"exp\":%lld}",
                                    (long long)(x->wall_us / 1000000 + 3600));
    tkc_buf token;
    tkc_buf_init(&token, NULL, 4096);
    tkc_buf_cstr(&token, "eyJhbGciOiJub25lIn0.", &x->err);
    size_t len = claims ? tkc_base64_length(strlen(claims)) : 0;
    char *at = claims ? tkc_buf_room(&token, len, &x->err) : NULL;
    if (at) {
        tkc_base64_encode(claims, strlen(claims), at);
        for (size_t i = 0; i < len; i++) /* the URL alphabet; readers accept the padding */
            at[i] = at[i] == '+' ? '-' : at[i] == '/' ? '_' : at[i];
        token.len += len;
    }
    tkc_buf_cstr(&token, ".bW9jaw", &x->err);
    answer(x, &tkc_auth_token_response_type,
           &(tkc_auth_token_response){ .jwt = tkc_buf_terminate(&token, &x->err) });
    tkc_buf_free(&token);
}

static void defaults(exchange *x, const tkc_message *type)
{
    void *message = tkc_arena_zalloc(&x->arena, type->size, &x->err);
    if (!message)
        return;
    tkc_message_init(type, message);
    answer(x, type, message);
}

static void client_config(exchange *x)
{
    defaults(x, &tkc_config_response_type);
}

static void dynamic_config(exchange *x)
{
    defaults(x, &tkc_dynamic_config_response_type);
}

/* ---- models ---- */

static mock_model *add_model(exchange *x, const char *session, int64_t seq, const char *base,
                             int64_t rank)
{
    const char *id = tkc_arena_printf(&x->s->memory, &x->err, "%s:train:%lld",
                                      session ? session : "", (long long)seq);
    mock_model *m = tkc_arena_zalloc(&x->s->memory, sizeof *m, &x->err);
    if (!id || !m)
        return NULL;
    *m = (mock_model){ .id = id, .base_model = keep(x, base ? base : BASE_MODEL), .rank = rank };
    tkc_map_set(&x->s->models, tkc_str(id), m, NULL, &x->err);
    return m;
}

static void create_model(exchange *x)
{
    const tkc_create_model_request *q = read_request(x);
    if (!q)
        return;
    mock_model *m = add_model(x, q->session_id, q->model_seq_id, q->base_model,
                              q->lora_config ? q->lora_config->rank : 32);
    if (m)
        promise_message(x, sequenced_id(x, m->id, 0), &(tkc_create_model_result){ m->id });
}

static void get_info(exchange *x)
{
    const tkc_get_info_request *q = read_request(x);
    mock_model *m = q ? find_model(x, q->model_id) : NULL;
    if (!m)
        return;
    answer(x, &tkc_get_info_response_type,
           &(tkc_get_info_response){ .model_id = m->id,
                                     .model_data = { .arch = "mock",
                                                     .model_name = m->base_model,
                                                     .tokenizer_id = m->base_model },
                                     .is_lora = TKC_SOME(true),
                                     .lora_rank = TKC_SOME(m->rank),
                                     .model_name = m->base_model });
}

static void unload_model(exchange *x)
{
    const tkc_unload_model_request *q = read_request(x);
    mock_model *m = q ? find_model(x, q->model_id) : NULL;
    if (!m)
        return;
    promise_message(x, tkc_arena_printf(&x->arena, &x->err, "%s:unload", m->id),
                    &(tkc_unload_model_result){ m->id });
    tkc_map_remove(&x->s->models, tkc_str(m->id));
}

/* ---- passes ---- */

/* A number in [0, 1) that depends on two others. */
static double noise(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9E3779B97F4A7C15u ^ (b + 0x632BE59BD9B4E019u) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 29) * 0x94D049BB133111EBu;
    return (double)(z >> 11) * 0x1p-53;
}

/* Falls from about ln(256) towards 0.2 with the steps taken. */
static float logprob_of(const mock_model *m, int64_t token, size_t position)
{
    double level = 0.2 + 5.3 / (1.0 + 0.25 * (double)m->steps);
    return (float)(-level * (0.75 + 0.5 * noise((uint64_t)token, position)));
}

/* Log-probabilities in the shape of target_tokens, and the weighted sum of the losses. */
static bool fill_row(exchange *x, const mock_model *m, const tkc_datum *datum, tkc_output_row *row,
                     double *loss)
{
    const tkc_tensor *targets = tkc_datum_input(datum, "target_tokens");
    const tkc_tensor *weights = tkc_datum_input(datum, "weights");
    tinkc_tensor ids, w = { 0 };
    if (!targets || !tkc_tensor_check(targets, "target_tokens", &x->err) ||
        !tkc_tensor_dense(targets, &x->arena, &ids, &x->err))
        return false;
    if (weights && (!tkc_tensor_check(weights, "weights", &x->err) ||
                    !tkc_tensor_dense(weights, &x->arena, &w, &x->err)))
        return false;
    tinkc_i64s id = tinkc_tensor_i64s(&ids);
    tinkc_f32s weight = tinkc_tensor_f32s(&w);
    float *values = tkc_arena_array(&x->arena, id.len, sizeof *values, &x->err);
    tkc_named_tensor *field = tkc_arena_zalloc(&x->arena, sizeof *field, &x->err);
    if (!values || !field)
        return false;
    for (size_t i = 0; i < id.len; i++) {
        values[i] = logprob_of(m, id.data[i], i);
        *loss -= (double)values[i] * (i < weight.len ? (double)weight.data[i] : 1.0);
    }
    field->name = "logprobs";
    field->tensor = (tkc_tensor){ .data = values,
                                  .count = id.len,
                                  .dtype = TINKC_F32,
                                  .shape = { ids.shape, (size_t)ids.ndim } };
    row->fields.data = field;
    row->fields.len = 1;
    return true;
}

static void run_pass(exchange *x, const tkc_forward_backward_request *q)
{
    mock_model *m = find_model(x, q->model_id);
    size_t n = q->data.len;
    tkc_output_row *rows = tkc_arena_array(&x->arena, n, sizeof *rows, &x->err);
    double values[1] = { 0 };
    if (!m || !rows)
        return;
    for (size_t i = 0; i < n; i++)
        if (!fill_row(x, m, &q->data.data[i], &rows[i], &values[0])) {
            if (x->err.code != TINKC_E_MEMORY) {
                x->err = (tinkc_error){ 0 };
                refuse(x, 400, "a datum without usable target_tokens");
            }
            return;
        }
    static const char *const names[] = { "loss:sum", NULL };
    tkc_forward_backward_output out = { 0 };
    tkc_buf bytes;
    tkc_buf_init(&bytes, NULL, MAX_BODY);
    tkc_output_from_rows(rows, n, &x->arena, &out, &x->err);
    out.type = "ArrayRecord";
    out.metrics = (tkc_numbers){ names, values, 1 };
    tkc_output_to_pb(&out, &bytes, &x->err);
    promise(x, sequenced_id(x, m->id, q->seq_id), &bytes, true);
    tkc_buf_free(&bytes);
}

static void forward_backward(exchange *x)
{
    tkc_forward_backward_request q = { 0 };
    const char *encoding = tkc_header(x->request->headers, "content-encoding");
    tkc_buf plain;
    tkc_buf_init(&plain, NULL, MAX_BODY);
    if (encoding && strcmp(encoding, "zstd") == 0) {
        tkc_zstd_decompress(x->body.data, x->body.len, MAX_BODY, &plain, &x->err);
        x->body = tkc_buf_view(&plain);
    }
    tinkc_bytes bytes = { (const unsigned char *)x->body.data, x->body.len };
    if (tkc_forward_backward_from_pb(bytes, TINKC_E_UNPROCESSABLE, &x->arena, &q, &x->err)) {
        run_pass(x, &q);
    } else if (x->err.code != TINKC_E_MEMORY) {
        x->err = (tinkc_error){ 0 };
        refuse(x, 422, "not a forward_backward request");
    }
    tkc_buf_free(&plain);
}

static void optim_step(exchange *x)
{
    static const char *const names[] = { "learning_rate:unique", NULL };
    const tkc_optim_step_request *q = read_request(x);
    mock_model *m = q ? find_model(x, q->model_id) : NULL;
    if (!m)
        return;
    const char *id = sequenced_id(x, m->id, q->seq_id.value);
    m->steps += id && !tkc_map_has(&x->s->results, tkc_str(id));
    promise_message(
        x, id, &(tkc_optim_step_result){ .metrics = { names, &q->adam_params.learning_rate, 1 } });
}

/* ---- checkpoints ---- */

static mock_checkpoint *add_checkpoint(exchange *x, const mock_model *m, bool sampler,
                                       const char *name, int64_t ttl_s)
{
    mock_checkpoint *c = tkc_arena_zalloc(&x->s->memory, sizeof *c, &x->err);
    const char *id = tkc_arena_printf(&x->s->memory, &x->err, "%s/%s",
                                      sampler ? "sampler_weights" : "weights", name);
    const char *path =
        tkc_arena_printf(&x->s->memory, &x->err, "tinker://%s/%s", m->id, id ? id : "");
    if (!c || !id || !path)
        return NULL;
    *c = (mock_checkpoint){ .run = m->id,
                            .id = id,
                            .path = path,
                            .made_us = x->wall_us,
                            .ttl_s = ttl_s,
                            .sampler = sampler };
    tkc_map_set(&x->s->checkpoints, tkc_str(path), c, NULL, &x->err);
    return c;
}

static void save_weights(exchange *x)
{
    const tkc_save_weights_request *q = read_request(x);
    mock_model *m = q ? find_model(x, q->model_id) : NULL;
    if (!m)
        return;
    mock_checkpoint *c = add_checkpoint(x, m, false, q->path ? q->path : "", q->ttl_seconds.value);
    if (c)
        promise_message(x, sequenced_id(x, m->id, q->seq_id.value),
                        &(tkc_save_weights_result){ c->path });
}

static mock_sampler *add_sampler(exchange *x, const char *id, const char *base, const char *path)
{
    mock_sampler *s = tkc_arena_zalloc(&x->s->memory, sizeof *s, &x->err);
    if (!s || !id)
        return NULL;
    *s = (mock_sampler){ .id = id,
                         .base_model = keep(x, base ? base : BASE_MODEL),
                         .model_path = path ? keep(x, path) : NULL };
    tkc_map_set(&x->s->samplers, tkc_str(id), s, NULL, &x->err);
    return s;
}

static void save_for_sampler(exchange *x)
{
    const tkc_save_for_sampler_request *q = read_request(x);
    mock_model *m = q ? find_model(x, q->model_id) : NULL;
    if (!m)
        return;
    tkc_save_for_sampler_result r = { 0 };
    if (q->path) {
        mock_checkpoint *c = add_checkpoint(x, m, true, q->path, q->ttl_seconds.value);
        r.path = c ? c->path : NULL;
    } else {
        const char *id = tkc_arena_printf(&x->s->memory, &x->err, "%s:sample:%lld", m->id,
                                          (long long)q->sampling_session_seq_id.value);
        mock_sampler *s = add_sampler(x, id, m->base_model, NULL);
        r.sampling_session_id = s ? s->id : NULL;
    }
    promise_message(x, sequenced_id(x, m->id, q->seq_id.value), &r);
}

static void save_external(exchange *x)
{
    const tkc_save_external_request *q = read_request(x);
    mock_model *m = q ? find_model(x, q->model_id) : NULL;
    if (!m)
        return;
    tkc_save_external_result r = { .path = tkc_arena_printf(&x->s->memory, &x->err,
                                                            "tinker://%s/external_weights/%s",
                                                            m->id, q->path) };
    promise_message(x, sequenced_id(x, m->id, q->seq_id.value), &r);
}

static void load_weights(exchange *x)
{
    const tkc_load_weights_request *q = read_request(x);
    if (!q)
        return;
    mock_model *m = q->model_id
                        ? find_model(x, q->model_id)
                        : add_model(x, q->session_id, q->model_seq_id.value, q->base_model, 32);
    if (m)
        promise_message(x, sequenced_id(x, m->id, q->seq_id.value),
                        &(tkc_load_weights_result){ .path = q->path, .model_id = m->id });
}

static void weights_info(exchange *x)
{
    const tkc_weights_info_request *q = read_request(x);
    mock_checkpoint *c =
        q && q->tinker_path ? tkc_map_get(&x->s->checkpoints, tkc_str(q->tinker_path)) : NULL;
    if (!q)
        return;
    if (!c || c->deleted) {
        refuse(x, 404, "no such checkpoint");
        return;
    }
    mock_model *m = tkc_map_get(&x->s->models, tkc_str(c->run));
    answer(x, &tkc_weights_info_response_type,
           &(tkc_weights_info_response){ .base_model = m ? m->base_model : BASE_MODEL,
                                         .is_lora = true,
                                         .lora_rank = TKC_SOME(m ? m->rank : 32) });
}

/* ---- samples ---- */

static void create_sampling_session(exchange *x)
{
    const tkc_create_sampling_session_request *q = read_request(x);
    if (!q)
        return;
    const char *id =
        tkc_arena_printf(&x->s->memory, &x->err, "%s:sample:%lld",
                         q->session_id ? q->session_id : "", (long long)q->sampling_session_seq_id);
    mock_sampler *s = add_sampler(x, id, q->base_model, q->model_path);
    if (s)
        answer(x, &tkc_create_sampling_session_response_type,
               &(tkc_create_sampling_session_response){ s->id });
}

static void get_sampler(exchange *x)
{
    mock_sampler *s = x->route->id ? tkc_map_get(&x->s->samplers, tkc_str(x->route->id)) : NULL;
    if (!s) {
        refuse(x, 404, "no such sampler");
        return;
    }
    answer(x, &tkc_sampler_response_type,
           &(tkc_sampler_response){
               .sampler_id = s->id, .base_model = s->base_model, .model_path = s->model_path });
}

static int64_t token_at(const tkc_sample_request *q, size_t sample, size_t i, size_t prompt_len)
{
    uint64_t seed = q->sampling_params.seed.is == TKC_GIVEN ? q->sampling_params.seed.value : 7;
    return (int64_t)(noise(seed + 31 * sample, i + 977 * prompt_len) * (double)VOCABULARY);
}

static size_t prompt_length(const tkc_sample_request *q)
{
    size_t n = 0;
    for (size_t i = 0; i < q->prompt.chunks.len; i++)
        n += q->prompt.chunks.data[i].kind == TINKC_CHUNK_TOKENS
                 ? q->prompt.chunks.data[i].tokens.len
                 : 1;
    return n;
}

static size_t answer_length(const tkc_sample_request *q)
{
    bool given = q->sampling_params.max_tokens.is == TKC_GIVEN;
    int64_t n = given ? q->sampling_params.max_tokens.value : DEFAULT_TOKENS;
    return n < 0 ? 0 : n > CONTEXT ? CONTEXT : (size_t)n;
}

/* Made-up candidates, k for each of n positions; the first `none` positions have none. */
static bool fill_topk(exchange *x, size_t n, size_t k, size_t none, tkc_topk *out)
{
    int32_t *ids = tkc_arena_array(&x->arena, n * k, sizeof *ids, &x->err);
    float *values = tkc_arena_array(&x->arena, n * k, sizeof *values, &x->err);
    if (!ids || !values)
        return false;
    for (size_t i = 0; i < n * k; i++) {
        ids[i] = i < none * k ? 0 : (int32_t)((i * 7) % VOCABULARY);
        values[i] = i < none * k ? TKC_TOPK_NONE : -0.1f - (float)(i % k);
    }
    *out = (tkc_topk){ { ids, n * k }, { values, n * k }, (uint32_t)k, (uint32_t)n };
    return true;
}

static bool fill_sequence(exchange *x, const tkc_sample_request *q, size_t k, tinkc_sequence *out)
{
    size_t n = answer_length(q), prompt = prompt_length(q);
    int32_t *tokens = tkc_arena_array(&x->arena, n, sizeof *tokens, &x->err);
    float *logprobs = tkc_arena_array(&x->arena, n, sizeof *logprobs, &x->err);
    if (!tokens || !logprobs)
        return false;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)token_at(q, k, i, prompt);
        logprobs[i] = (float)-noise((uint64_t)tokens[i], i) - 0.01f;
    }
    *out = (tinkc_sequence){ .tokens = { tokens, n },
                             .logprobs = { logprobs, n },
                             .stop_reason = TINKC_STOP_LENGTH };
    return true;
}

static bool scored(const tkc_sample_request *q, size_t i, size_t n)
{
    int64_t last = q->prompt_logprobs_last_n.value;
    return last <= 0 || i + (uint64_t)last >= n;
}

static bool fill_prompt_numbers(exchange *x, const tkc_sample_request *q, tkc_sample_response *r)
{
    size_t n = prompt_length(q), k = (size_t)q->topk_prompt_logprobs;
    if (q->prompt_logprobs.value && n) {
        float *p = tkc_arena_array(&x->arena, n, sizeof *p, &x->err);
        if (!p)
            return false;
        for (size_t i = 0; i < n; i++)
            p[i] = i && scored(q, i, n) ? (float)-noise(i, n) : NAN;
        r->prompt_logprobs = (tinkc_f32s){ p, n };
    }
    if (k == 0 || k > VOCABULARY || n == 0)
        return true;
    return fill_topk(x, n, k, 1, &r->topk); /* nothing comes before the first token */
}

static bool fill_sampled_topk(exchange *x, const tkc_sample_request *q, tkc_sample_response *r)
{
    int64_t k = q->topk_sample_logprobs.value;
    if (k <= 0 || k > VOCABULARY)
        return true;
    tkc_topk *all = tkc_arena_array(&x->arena, r->sequences.len, sizeof *all, &x->err);
    for (size_t i = 0; all && i < r->sequences.len; i++)
        if (!fill_topk(x, r->sequences.data[i].tokens.len, (size_t)k, 0, &all[i]))
            return false;
    r->sampled_topk = all;
    return all != NULL;
}

static void sample(exchange *x)
{
    const tkc_sample_request *q = read_request(x);
    if (!q)
        return;
    if (q->sampling_session_id && !tkc_map_has(&x->s->samplers, tkc_str(q->sampling_session_id))) {
        refuse(x, 404, "no such sampling session");
        return;
    }
    if (q->num_samples < 1 || q->num_samples > 1024) {
        refuse(x, 400, "num_samples: must be from 1 to 1024");
        return;
    }
    tkc_sample_response r = { 0 };
    size_t n = (size_t)q->num_samples;
    tinkc_sequence *sequences = tkc_arena_array(&x->arena, n, sizeof *sequences, &x->err);
    for (size_t k = 0; sequences && k < n; k++)
        if (!fill_sequence(x, q, k, &sequences[k]))
            return;
    r.sequences.data = sequences;
    r.sequences.len = n;
    if (!sequences || !fill_prompt_numbers(x, q, &r) || !fill_sampled_topk(x, q, &r))
        return;
    tkc_buf bytes;
    tkc_buf_init(&bytes, NULL, MAX_BODY);
    tkc_sample_response_to_pb(&r, &bytes, &x->err);
    promise(
        x, tkc_arena_printf(&x->arena, &x->err, "mock-request-%lld", (long long)++x->s->n_requests),
        &bytes, true);
    tkc_buf_free(&bytes);
}

static void stream_event(exchange *x, const char *name, const tkc_stream_event *event)
{
    tkc_buf data;
    tkc_buf_init(&data, NULL, 1 << 16);
    tkc_message_encode(&tkc_stream_event_type, event, &data, &x->err);
    tkc_sse_write(x->out, name, NULL, tkc_buf_view(&data), &x->err);
    tkc_buf_free(&data);
}

static void stream_sample(exchange *x)
{
    const tkc_sample_request *q = read_request(x);
    tinkc_sequence sequence;
    if (!q || !fill_sequence(x, q, 0, &sequence))
        return;
    x->type = "text/event-stream";
    for (size_t i = 0; i < sequence.tokens.len; i++)
        stream_event(x, "token",
                     &(tkc_stream_event){ .event_type = { .value = TKC_STREAM_TOKEN },
                                          .token = "",
                                          .token_id = TKC_SOME(sequence.tokens.data[i]),
                                          .index = TKC_SOME((int64_t)i),
                                          .logprob = TKC_SOME(sequence.logprobs.data[i]) });
    stream_event(x, "done",
                 &(tkc_stream_event){ .event_type = { .value = TKC_STREAM_DONE },
                                      .finish_reason = { .value = TKC_FINISH_LENGTH },
                                      .total_tokens = TKC_SOME((int64_t)sequence.tokens.len) });
}

static void retrieve(exchange *x)
{
    const tkc_retrieve_future_request *q = read_request(x);
    mock_result *r =
        q && q->request_id ? tkc_map_get(&x->s->results, tkc_str(q->request_id)) : NULL;
    if (!q)
        return;
    if (!r) {
        refuse(x, 404, "no such request");
        return;
    }
    x->type = r->protobuf ? TKC_TYPE_PROTOBUF : TKC_TYPE_JSON;
    tkc_buf_add(x->out, r->bytes, r->len, &x->err);
}

/* Names the requests since the cursor, of any session: all of them are finished. */
static void retrieve_futures(exchange *x)
{
    const tkc_retrieve_futures_request *q = read_request(x);
    const tkc_map_entry *e;
    int64_t number = 0;
    size_t n = 0;
    tkc_future_completion *all =
        tkc_arena_array(&x->arena, x->s->results.n_live + 1, sizeof *all, &x->err);
    for (size_t at = 0; q && all && (e = tkc_map_next(&x->s->results, &at));)
        if (++number > q->prev_cursor)
            all[n++] = (tkc_future_completion){ .state = "finished", .request_id = e->key };
    tkc_retrieve_futures_response r = { .cursor = number };
    r.completions.data = all;
    r.completions.len = n;
    if (q && n)
        answer(x, &tkc_retrieve_futures_response_type, &r);
    else if (q)
        refuse(x, 408, "nothing has ended since");
}

/* ---- records ---- */

static tkc_checkpoint as_record(const mock_checkpoint *c)
{
    tkc_checkpoint r = { .checkpoint_id = c->id,
                         .checkpoint_type = { .value = c->sampler ? TINKC_CHECKPOINT_SAMPLER
                                                                  : TINKC_CHECKPOINT_TRAINING },
                         .time = { .us = c->made_us },
                         .tinker_path = c->path,
                         .size_bytes = TKC_SOME(4096),
                         .is_public = c->is_public };
    if (c->ttl_s > 0)
        r.expires_at.us = c->made_us + c->ttl_s * 1000000;
    return r;
}

/* limit and offset of the query. */
static void page_of(exchange *x, int64_t *limit, int64_t *offset, int64_t if_absent)
{
    tinkc_str path = tkc_str(x->request->path), query = { 0 };
    size_t mark = tkc_str_find(path, '?');
    if (mark < path.len)
        query = tkc_strn(path.data + mark + 1, path.len - mark - 1);
    const char *l = tkc_query_find(query, "limit", &x->arena, &x->err);
    const char *o = tkc_query_find(query, "offset", &x->arena, &x->err);
    if (!l || !tkc_parse_i64(tkc_str(l), limit) || *limit < 0)
        *limit = if_absent;
    if (!o || !tkc_parse_i64(tkc_str(o), offset) || *offset < 0)
        *offset = 0;
}

static void list_checkpoints(exchange *x)
{
    const char *run = x->route->id; /* NULL = of all runs */
    int64_t limit, offset, total = 0;
    size_t place = 0, n = 0;
    page_of(x, &limit, &offset, run ? INT64_MAX : 100);
    tkc_checkpoint *list =
        tkc_arena_array(&x->arena, x->s->checkpoints.n_live + 1, sizeof *list, &x->err);
    const tkc_map_entry *e;
    while (list && (e = tkc_map_next(&x->s->checkpoints, &place)) != NULL) {
        const mock_checkpoint *c = e->value;
        if (c->deleted || (run && strcmp(run, c->run) != 0))
            continue;
        if (total >= offset && (int64_t)n < limit)
            list[n++] = as_record(c);
        total++;
    }
    tkc_cursor cursor = { .offset = offset, .limit = run ? total : limit, .total_count = total };
    tkc_checkpoints_response r = { .cursor = &cursor };
    r.checkpoints.data = list;
    r.checkpoints.len = n;
    answer(x, &tkc_checkpoints_response_type, &r);
}

static tkc_training_run run_record(const exchange *x, const mock_model *m)
{
    static const char *const none[] = { NULL };
    return (tkc_training_run){ .training_run_id = m->id,
                               .base_model = m->base_model,
                               .model_owner = "user:mock",
                               .is_lora = true,
                               .lora_rank = TKC_SOME(m->rank),
                               .last_request_time = { .us = x->wall_us },
                               .user_metadata = { .pairs = none } };
}

static void list_runs(exchange *x)
{
    int64_t limit, offset, i = 0;
    size_t place = 0, n = 0;
    page_of(x, &limit, &offset, 20);
    tkc_training_run *list =
        tkc_arena_array(&x->arena, x->s->models.n_live + 1, sizeof *list, &x->err);
    const tkc_map_entry *e;
    while (list && (e = tkc_map_next(&x->s->models, &place)) != NULL) {
        if (i >= offset && (int64_t)n < limit)
            list[n++] = run_record(x, e->value);
        i++;
    }
    tkc_cursor cursor = { .offset = offset, .limit = limit, .total_count = i };
    tkc_training_runs_response r = { .cursor = &cursor };
    r.training_runs.data = list;
    r.training_runs.len = n;
    answer(x, &tkc_training_runs_response_type, &r);
}

static void get_run(exchange *x)
{
    mock_model *m = find_model(x, x->route->id);
    if (!m)
        return;
    tkc_training_run r = run_record(x, m);
    answer(x, &tkc_training_run_type, &r);
}

static mock_checkpoint *route_checkpoint(exchange *x)
{
    const char *path =
        tkc_arena_printf(&x->arena, &x->err, "tinker://%s/%s", x->route->id ? x->route->id : "",
                         x->route->ckpt ? x->route->ckpt : "");
    mock_checkpoint *c = path ? tkc_map_get(&x->s->checkpoints, tkc_str(path)) : NULL;
    if (c && !c->deleted)
        return c;
    refuse(x, 404, "no such checkpoint");
    return NULL;
}

static void change_checkpoint(exchange *x)
{
    mock_checkpoint *c = route_checkpoint(x);
    if (!c)
        return;
    int32_t id = x->route->endpoint->id;
    if (id == TKC_EP_DELETE_CHECKPOINT) {
        c->deleted = true;
    } else if (id == TKC_EP_SET_TTL) {
        const tkc_ttl_request *q = read_request(x);
        if (!q)
            return;
        c->ttl_s = q->ttl_seconds.is == TKC_GIVEN ? q->ttl_seconds.value : 0;
    } else if (c->is_public == (id == TKC_EP_PUBLISH)) {
        refuse(x, 409, "it is so already");
        return;
    } else {
        c->is_public = id == TKC_EP_PUBLISH;
    }
    answer(x, &tkc_empty_type, &(tkc_empty){ 0 });
}

static void list_sessions(exchange *x)
{
    int64_t limit, offset, i = 0;
    size_t place = 0, n = 0;
    page_of(x, &limit, &offset, 20);
    const char **list =
        tkc_arena_array(&x->arena, x->s->sessions.n_live + 1, sizeof *list, &x->err);
    const tkc_map_entry *e;
    while (list && (e = tkc_map_next(&x->s->sessions, &place)) != NULL) {
        if (i >= offset && (int64_t)n < limit)
            list[n++] = e->key;
        i++;
    }
    answer(x, &tkc_sessions_response_type, &(tkc_sessions_response){ (const char *const *)list });
}

static const char *const *ids_of(exchange *x, const tkc_map *map, const char *session)
{
    size_t place = 0, n = 0;
    const char **list = tkc_arena_array(&x->arena, map->n_live + 1, sizeof *list, &x->err);
    const tkc_map_entry *e;
    while (list && (e = tkc_map_next(map, &place)) != NULL)
        if (tkc_starts_with(tkc_str(e->key), session))
            list[n++] = e->key;
    return (const char *const *)list;
}

static void get_session(exchange *x)
{
    if (!x->route->id || !tkc_map_has(&x->s->sessions, tkc_str(x->route->id))) {
        refuse(x, 404, "no such session");
        return;
    }
    answer(x, &tkc_session_response_type,
           &(tkc_session_response){ .training_run_ids = ids_of(x, &x->s->models, x->route->id),
                                    .sampler_ids = ids_of(x, &x->s->samplers, x->route->id) });
}

static void capabilities(exchange *x)
{
    tkc_supported_model model = { .model_name = BASE_MODEL,
                                  .max_context_length = TKC_SOME(CONTEXT) };
    tkc_capabilities_response r = { 0 };
    r.supported_models.data = &model;
    r.supported_models.len = 1;
    answer(x, &tkc_capabilities_response_type, &r);
}

static void archive(exchange *x)
{
    if (route_checkpoint(x))
        tkc_buf_cstr(x->out,
                     "{\"url\":\"https://mock.invalid/archive.tar\","
                     "\"expires\":\"2026-01-02T00:00:00Z\"}",
                     &x->err);
}

/* ---- dispatch ---- */

typedef struct handler {
    void (*run)(exchange *);
    const char *text; /* instead: always this */
} handler;

static const handler handlers[TKC_EP_COUNT] = {
    [TKC_EP_HEALTH] = { NULL, "{\"status\":\"ok\"}" },
    [TKC_EP_CLIENT_CONFIG] = { client_config, NULL },
    [TKC_EP_DYNAMIC_CONFIG] = { dynamic_config, NULL },
    [TKC_EP_AUTH_TOKEN] = { auth_token, NULL },
    [TKC_EP_CREATE_SESSION] = { create_session, NULL },
    [TKC_EP_HEARTBEAT] = { NULL, "{}" },
    [TKC_EP_CREATE_SAMPLING_SESSION] = { create_sampling_session, NULL },
    [TKC_EP_SAMPLER] = { get_sampler, NULL },
    [TKC_EP_CREATE_MODEL] = { create_model, NULL },
    [TKC_EP_GET_INFO] = { get_info, NULL },
    [TKC_EP_UNLOAD_MODEL] = { unload_model, NULL },
    [TKC_EP_FORWARD_BACKWARD] = { forward_backward, NULL },
    [TKC_EP_OPTIM_STEP] = { optim_step, NULL },
    [TKC_EP_SAVE_WEIGHTS] = { save_weights, NULL },
    [TKC_EP_SAVE_FOR_SAMPLER] = { save_for_sampler, NULL },
    [TKC_EP_SAVE_EXTERNAL] = { save_external, NULL },
    [TKC_EP_LOAD_WEIGHTS] = { load_weights, NULL },
    [TKC_EP_SAMPLE] = { sample, NULL },
    [TKC_EP_STREAM_SAMPLE] = { stream_sample, NULL },
    [TKC_EP_RETRIEVE_FUTURE] = { retrieve, NULL },
    [TKC_EP_RETRIEVE_FUTURES] = { retrieve_futures, NULL },
    [TKC_EP_CAPABILITIES] = { capabilities, NULL },
    [TKC_EP_TRAINING_RUN] = { get_run, NULL },
    [TKC_EP_TRAINING_RUNS] = { list_runs, NULL },
    [TKC_EP_WEIGHTS_INFO] = { weights_info, NULL },
    [TKC_EP_RUN_CHECKPOINTS] = { list_checkpoints, NULL },
    [TKC_EP_CHECKPOINTS] = { list_checkpoints, NULL },
    [TKC_EP_DELETE_CHECKPOINT] = { change_checkpoint, NULL },
    [TKC_EP_PUBLISH] = { change_checkpoint, NULL },
    [TKC_EP_UNPUBLISH] = { change_checkpoint, NULL },
    [TKC_EP_SET_TTL] = { change_checkpoint, NULL },
    [TKC_EP_ARCHIVE] = { archive, NULL },
    [TKC_EP_EXTERNAL_URLS] = { NULL,
                               "{\"urls\":{\"model.safetensors\":\"https://mock.invalid/model\"},"
                               "\"expires\":\"2030-01-01T00:00:00Z\"}" },
    [TKC_EP_UPLOAD_START] = { NULL, "{\"upload_id\":\"mock-upload\",\"urls\":{"
                                    "\"adapter_config.json\":\"https://mock.invalid/config\"},"
                                    "\"expires\":\"2030-01-01T00:00:00Z\"}" },
    [TKC_EP_UPLOAD_FINISH] = { NULL, "{\"tinker_path\":\"tinker://mock-upload/weights/uploaded\"}" },
    [TKC_EP_COPY_WEIGHTS] = { NULL, "{\"tinker_path\":\"tinker://mock-copy/weights/copy\"}" },
    [TKC_EP_SESSIONS] = { list_sessions, NULL },
    [TKC_EP_SESSION] = { get_session, NULL },
    [TKC_EP_SEARCH_SESSIONS] = { NULL, "{\"sessions\":[]}" },
    [TKC_EP_SEARCH_CHECKPOINTS] = { NULL, "{\"checkpoints\":[]}" },
    [TKC_EP_FINISH_SESSION] = { NULL, "{}" },
    [TKC_EP_ASSIGN_PROJECT] = { NULL, "{}" },
    [TKC_EP_TRACE_EXPORT] = { NULL, "{\"status\":\"ready\",\"url\":\"https://mock.invalid/"
                                    "trace.json\"}" },
    [TKC_EP_TELEMETRY] = { NULL, "{\"status\":\"accepted\"}" },
    [TKC_EP_AUDIT] = { NULL, "{\"entries\":[]}" },
    [TKC_EP_USAGE] = { NULL, "{\"data\":[],\"sessions\":{}}" },
    [TKC_EP_STORAGE] = { NULL, "{\"data\":[]}" },
};

static void dispatch(exchange *x)
{
    const handler *h = &handlers[x->route->endpoint->id];
    if (h->run)
        h->run(x);
    else if (h->text)
        tkc_buf_cstr(x->out, h->text, &x->err);
    else
        refuse(x, 404, "not part of the mock service");
}

int32_t tkc_mock_service_answer(tkc_mock_service *s, const tinkc_request *request, int64_t wall_us,
                                tkc_buf *body, const char **type)
{
    exchange x = { .s = s,
                   .request = request,
                   .out = body,
                   .type = TKC_TYPE_JSON,
                   .status = 200,
                   .wall_us = wall_us,
                   .body = { (const char *)request->body.data, request->body.len } };
    tkc_route route = { 0 };
    tinkc_str path = tkc_str(request->path);
    path.len = tkc_str_find(path, '?');
    tkc_arena_init(&x.arena, NULL, 0);
    x.route = &route;
    tkc_route_find(tkc_str(request->method), path, &x.arena, &route, &x.err);
    if (!tkc_failed(&x.err)) {
        if (route.endpoint)
            dispatch(&x);
        else
            refuse(&x, route.status ? route.status : 404, "no such endpoint");
    }
    if (tkc_failed(&x.err)) { /* out of memory, or a message of ours that cannot be written */
        char text[sizeof x.err.message];
        memcpy(text, x.err.message, sizeof text);
        x.err = (tinkc_error){ 0 };
        refuse(&x, 500, text);
    }
    tkc_arena_free(&x.arena);
    *type = x.type;
    return x.status;
}

tkc_mock_service *tkc_mock_service_new(tinkc_error *err)
{
    tkc_mock_service *s = tkc_zalloc(NULL, sizeof *s, err);
    if (!s)
        return NULL;
    tkc_arena_init(&s->memory, NULL, 0);
    tkc_map_init(&s->models, NULL);
    tkc_map_init(&s->samplers, NULL);
    tkc_map_init(&s->results, NULL);
    tkc_map_init(&s->checkpoints, NULL);
    tkc_map_init(&s->sessions, NULL);
    return s;
}

void tkc_mock_service_free(tkc_mock_service *s)
{
    if (!s)
        return;
    tkc_map_free(&s->models);
    tkc_map_free(&s->samplers);
    tkc_map_free(&s->results);
    tkc_map_free(&s->checkpoints);
    tkc_map_free(&s->sessions);
    tkc_arena_free(&s->memory);
    tkc_release(NULL, s, sizeof *s);
}
