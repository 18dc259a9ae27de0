/* script_steps.h - what scripts (client_script.h) of several programs do: answers of every kind, and the
 * first steps of trainers and samplers. */
#ifndef TESTS_SCRIPT_STEPS_H
#define TESTS_SCRIPT_STEPS_H

#include <stdio.h>
#include <string.h>

#include "support/client_script.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define API        "/api/v1/"
#define POLL       API "retrieve_future"
#define QUEUE(state, reason)                                                                       \
    "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"" state "\"" reason "}"

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8 };

/* What may become of a request. */
static const struct outcome {
    int32_t status, fault;
    const char *name, *value; /* of a header */
    const char *body;
} outcomes[] = {
    { 400, 0, NULL, NULL, "{\"detail\":\"bad\"}" },
    { 400, 0, NULL, NULL, "" },
    { 401, 0, NULL, NULL, "{\"error\":\"x\",\"category\":\"user\"}" },
    { 402, 0, NULL, NULL, "{\"detail\":\"pay\"}" },
    { 403, 0, NULL, NULL, "plain text" },
    { 404, 0, NULL, NULL, "" },
    { 408, 0, NULL, NULL, "" },
    { 409, 0, NULL, NULL, "" },
    { 410, 0, NULL, NULL, "" },
    { 413, 0, NULL, NULL, "" },
    { 422, 0, NULL, NULL, "{\"detail\":[{\"loc\":[\"body\",\"x\"],\"msg\":\"missing\"}]}" },
    { 425, 0, NULL, NULL, "" },
    { 429, 0, "Retry-After", "7", "" },
    { 429, 0, "Retry-After", "Thu, 01 Jan 2026 00:00:20 GMT", "" },
    { 429, 0, "retry-after-ms", "250", "" },
    { 429, 0, NULL, NULL, "" },
    { 500, 0, NULL, NULL, "tml-0123456789abcdef0123456789" },
    { 500, 0, "x-should-retry", "false", "" },
    { 404, 0, "x-should-retry", "true", "" },
    { 503, 0, "Retry-After", "61", "" },
    { 503, 0, "Retry-After", "-1", "" },
    { 529, 0, NULL, NULL, "" },
    { 599, 0, NULL, NULL, "" },
    { 600, 0, NULL, NULL, "" },
    { 302, 0, "Location", "/elsewhere", "" },
    { 199, 0, NULL, NULL, "" },
    { 299, 0, NULL, NULL, "{}" },
    { 300, 0, NULL, NULL, "" },
    { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
    { 0, TINKC_FAULT_DNS, NULL, NULL, NULL },
    { 0, TINKC_FAULT_TLS, NULL, NULL, NULL },
    { 200, TINKC_FAULT_RESET, NULL, NULL, "{\"status\":\"ok\"}" },
    { 200, TINKC_FAULT_TRUNCATED, NULL, NULL, "{\"status\":\"ok\"}" },
    { 200, TINKC_FAULT_SILENT, NULL, NULL, "{\"status\":\"ok\"}" },
    { 429, 0, "Retry-After-Ms", "1", "" },
    { 503, 0, "Retry-After", "7", "" },
    { 503, 0, "Retry-After", "60", "" },
    { 503, TINKC_FAULT_TRUNCATED, "Retry-After", "7", "{\"detail\":\"cut\"}" },
};
enum { N_OUTCOMES = sizeof outcomes / sizeof *outcomes };

/* The first client of a process with telemetry draws the process's own number: here, so that the
 * numbers of the scripts do not depend on which of them runs. */
static inline int prime(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *c =
        mock_client(mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON }, &err);
    tinkc_client_report(c, "first", NULL, TINKC_LOG_ERROR, &err);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    tinkc_mock_advance(mock, 10000);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    bool sent = tinkc_mock_count(mock, API "telemetry") == 1;
    tinkc_client_free(c);
    tinkc_mock_free(mock);
    return sent && !err.code ? 0 : -1;
}

static inline void answer_with(script *s, const char *path, const struct outcome *o)
{
    tinkc_mock_answer a = { .status = o->status,
                            .fault = o->fault,
                            .headers = o->name ? PAIRS(o->name, o->value) : NULL,
                            .body = o->body };
    assert_true(tinkc_mock_once(script_mock(s), NULL, path, &a, script_err(s)));
}

static inline tinkc_trainer *open_trainer(script *s, const tinkc_lora_options *o)
{
    static const tinkc_lora_options usual = { .base_model = "mock/nano" };
    tinkc_future *f =
        follow(s, "trainer", tinkc_trainer_open(script_client(s), o ? o : &usual, script_err(s)));
    finish_it(s, f, 100000);
    tinkc_trainer *t = tinkc_future_trainer(f, 0, script_err(s));
    assert_ok(script_err(s));
    let_go(s, f);
    return t;
}

static inline void show_pass(script *s, tinkc_future *f)
{
    const tinkc_fwdbwd *r = tinkc_future_fwdbwd(f, 0, script_err(s));
    if (!r) {
        *script_err(s) = (tinkc_error){ 0 };
        return;
    }
    note(s, "%zu examples, type %s", tinkc_fwdbwd_count(r), tinkc_fwdbwd_output_type(r));
    const tinkc_metrics *m = tinkc_fwdbwd_metrics(r);
    for (size_t i = 0; i < tinkc_metrics_count(m); i++)
        note(s, "%s = %.6g", tinkc_metrics_name(m, i), tinkc_metrics_value(m, i));
    for (size_t i = 0; i < tinkc_fwdbwd_count(r); i++)
        for (size_t k = 0; tinkc_fwdbwd_output_name(r, k); k++) {
            tinkc_f32s v =
                tinkc_tensor_f32s(tinkc_fwdbwd_output(r, i, tinkc_fwdbwd_output_name(r, k)));
            note(s, "%zu %s: %zu, %.6g %.6g", i, tinkc_fwdbwd_output_name(r, k), v.len,
                 v.len ? (double)v.data[0] : 0, v.len ? (double)v.data[v.len - 1] : 0);
        }
    for (size_t i = 0; i < tinkc_future_part_count(f); i++) {
        const tinkc_fwdbwd *part = tinkc_future_part(f, i, 0, script_err(s));
        note(s, "part %zu begins with %zu, has %zu", i, tinkc_fwdbwd_first(part),
             tinkc_fwdbwd_count(part));
    }
}

static inline tinkc_batch *examples(script *s, size_t n)
{
    tinkc_batch *b = tinkc_batch_new(script_client(s), script_err(s));
    for (size_t i = 0; i < n; i++)
        tinkc_batch_add_sft(b, ids, 4 + i % 3, 1 + i % 2, script_err(s));
    assert_ok(script_err(s));
    return b;
}

static inline void show_samples(script *s, tinkc_future *f)
{
    const tinkc_samples *r = tinkc_future_samples(f, 0, script_err(s));
    for (size_t i = 0; i < tinkc_samples_count(r); i++) {
        const tinkc_sequence *q = tinkc_samples_at(r, i);
        note(s, "answer %zu: %zu tokens, first %d, %zu log-probabilities, stop %d", i,
             q->tokens.len, q->tokens.len ? (int)q->tokens.data[0] : -1, q->logprobs.len,
             (int)q->stop_reason);
    }
    *script_err(s) = (tinkc_error){ 0 };
}

static inline tinkc_sampler *open_sampler(script *s, const tinkc_retry_options *retry)
{
    tinkc_future *f = follow(
        s, "sampler",
        tinkc_sampler_open(script_client(s),
                           &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = retry },
                           script_err(s)));
    finish_it(s, f, 100000);
    tinkc_sampler *sampler = tinkc_future_sampler(f, 0, script_err(s));
    assert_ok(script_err(s));
    let_go(s, f);
    return sampler;
}

static inline tinkc_future *sample_it(script *s, const char *name, tinkc_sampler *sampler, size_t n)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    return follow(s, name, tinkc_sample(sampler, ids, 4, n, &o, script_err(s)));
}

#endif
