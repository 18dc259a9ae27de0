/* test_client_scripts.c - what a client does, request by request and word for word, in good days and
 * bad ones: start-up, heartbeats, retries, polls, training, sampling, tokens, telemetry. The records
 * are in tests/data/client; support/client_script.h says what they hold and how they are written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/client_script.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define API        "/api/v1/"
#define POLL       API "retrieve_future"

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8 };

/* ---- start-up and session ---- */

static void start_up(void **state)
{
    (void)state;
    tinkc_client_options o = { .api_key = "tml-key",
                               .base_url = "https://example.test/base",
                               .project_id = "p-1",
                               .tags = PAIRS("a", "b"),
                               .user_metadata = PAIRS("k", "v", "l", ""),
                               .headers = PAIRS("X-Own", "1", "user-agent", "mine",
                                                "X-Stainless-OS", "", "Accept", "text/x"),
                               .query = PAIRS("q", "1 2", "r", "a&b"),
                               .display_name = "a name",
                               .connect_timeout_ms = 1234,
                               .idle_timeout_ms = 4321 };
    script *s = script_begin("start_up", TINKC_MOCK_SERVICE, &o);
    answer_once(s, API "client/config", 503, PAIRS("Retry-After", "3"), "busy");
    answer_once(s, API "client/config", 500, NULL, "{\"detail\":\"broken\\nin two\"}");
    answer_once(s, API "client/dynamic_config", 500, PAIRS("Retry-After-Ms", "1500"), "");
    answer_once(s, API "client/dynamic_config", 429, NULL, "");
    answer_once(s, API "create_session", 502, NULL, "");
    answer_once(s, API "create_session", 200, NULL,
                "{\"type\":\"create_session\",\"session_id\":\"s-1\",\"info_message\":\"an info\","
                "\"warning_message\":\"a warning\",\"error_message\":\"an error\"}");
    tinkc_future *f = follow(
        s, "open",
        tinkc_sampler_open(script_client(s), &(tinkc_sampler_options){ .base_model = "mock/nano" },
                           script_err(s)));
    finish_it(s, f, 600000);
    note(s, "%s", tinkc_client_base_url(script_client(s)));
    note(s, "%s", tinkc_client_session_id(script_client(s), PATIENCE_MS, script_err(s)));
    f = follow(s, "health", tinkc_health_check(script_client(s), script_err(s)));
    finish_it(s, f, 1000);
    script_end(s);
}

/* What the settings may say, and what the start-up makes of it. */
static void settings(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int32_t status;
        const char *body;
    } rows[] = {
        { API "client/config", 200, "{\"fwdbwd_max_chunk_len\":0}" },
        { API "client/config", 200, "{\"fwdbwd_max_chunk_len\":-1}" },
        { API "client/config", 200, "{\"sample_max_concurrent_requests\":0}" },
        { API "client/config", 200, "no JSON" },
        { API "client/config", 200, "" },
        { API "client/config", 404, "{\"detail\":\"nothing here\"}" },
        { API "client/config", 401, "{\"detail\":\"who are you\"}" },
        { API "client/dynamic_config", 404, "" },
        { API "client/dynamic_config", 401, "" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":\"x\"}" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":45}" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":2}" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":1000001}" },
        { API "create_session", 200, "{}" },
        { API "create_session", 403, "{\"detail\":\"no more sessions\"}" },
        { API "create_session", 409, "" },
    };
    script *s = script_begin("settings", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu: %s %d %s", i, rows[i].path, (int)rows[i].status, rows[i].body);
        for (int k = 0; k < (rows[i].status == 409 ? 12 : 1); k++)
            answer_once(s, rows[i].path, rows[i].status, NULL, rows[i].body);
        tinkc_future *f =
            follow(s, "open",
                   tinkc_sampler_open(script_client(s),
                                      &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                      script_err(s)));
        finish_it(s, f, 200000);
        note(s, "next timer in %lld", (long long)settle(s));
        if (i == 0) { /* after a failure the next one begins again */
            f = follow(s, "again",
                       tinkc_sampler_open(script_client(s),
                                          &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                          script_err(s)));
            finish_it(s, f, 1000);
        }
        script_renew(s, NULL);
    }
    script_end(s);
}

static void heartbeats(void **state)
{
    (void)state;
    script *s = script_begin("heartbeats", TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/dynamic_config", 200, NULL, "{\"refresh_interval_sec\":100}");
    tinkc_future *f = follow(
        s, "open",
        tinkc_sampler_open(script_client(s), &(tinkc_sampler_options){ .base_model = "mock/nano" },
                           script_err(s)));
    finish_it(s, f, 1000);
    live(s, 25000);
    note(s, "they fail");
    answer_always(s, API "session_heartbeat", 503, PAIRS("Retry-After", "1"),
                  "{\"detail\":\"down\"}");
    live(s, 160000);
    fault_once(s, API "session_heartbeat", TINKC_FAULT_REFUSED);
    answer_once(s, API "session_heartbeat", 200, NULL, "{}");
    live(s, 30000);
    note(s, "the settings change");
    answer_always(s, API "session_heartbeat", 200, NULL, "{}");
    answer_once(s, API "client/dynamic_config", 500, PAIRS("Retry-After", "7"), "");
    answer_once(s, API "client/dynamic_config", 200, NULL, "{\"refresh_interval_sec\":1}");
    answer_once(s, API "client/dynamic_config", 200, NULL, "bad");
    live(s, 260000);
    note(s, "the session is over");
    answer_once(s, API "session_heartbeat", 410, NULL, "{\"detail\":\"ended\"}");
    live(s, 40000);
    script_end(s);
}

/* ---- one call, all outcomes ---- */

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
};
enum { N_OUTCOMES = sizeof outcomes / sizeof *outcomes };

static void answer_with(script *s, const char *path, const struct outcome *o)
{
    tinkc_mock_answer a = { .status = o->status,
                            .fault = o->fault,
                            .headers = o->name ? PAIRS(o->name, o->value) : NULL,
                            .body = o->body };
    assert_true(tinkc_mock_once(script_mock(s), NULL, path, &a, script_err(s)));
}

static void warm_up(script *s)
{
    tinkc_future *f = follow(s, "warm-up", tinkc_health_check(script_client(s), script_err(s)));
    finish_it(s, f, 1000);
    let_go(s, f);
}

/* Each outcome once, then success: on a read with both layers, a write, and one with attempts only. */
static void outcomes_once(void **state)
{
    (void)state;
    static const char *const paths[] = { API "healthz", API "get_server_capabilities",
                                         API "sessions/s-1/project" };
    script *s = script_begin("outcomes_once", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_OFF });
    warm_up(s);
    for (size_t i = 0; i < N_OUTCOMES; i++)
        for (size_t k = 0; k < 3; k++) {
            tinkc_client *c = script_client(s);
            tinkc_error *e = script_err(s);
            note(s, "outcome %zu: %d, fault %d, %s %s %s", i, (int)outcomes[i].status,
                 (int)outcomes[i].fault, outcomes[i].name ? outcomes[i].name : "-",
                 outcomes[i].value ? outcomes[i].value : "-",
                 outcomes[i].body ? outcomes[i].body : "-");
            answer_with(s, paths[k], &outcomes[i]);
            tinkc_future *f = k == 0   ? tinkc_health_check(c, e)
                              : k == 1 ? tinkc_capabilities_get(c, e)
                                       : tinkc_session_assign(c, "s-1", "p-2", e);
            f = follow(s, paths[k], f);
            finish_it(s, f, 4000000);
            let_go(s, f);
        }
    script_end(s);
}

/* Again and again: both layers to their ends. */
static void outcomes_always(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 500, 0, NULL, NULL, "" },
        { 503, 0, "Retry-After", "40", "" },
        { 429, 0, "Retry-After-Ms", "20", "" },
        { 409, 0, NULL, NULL, "" },
        { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
        { 400, 0, NULL, NULL, "" },
    };
    script *s = script_begin("outcomes_always", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_OFF });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        warm_up(s);
        tinkc_mock_answer a = { .status = rows[i].status,
                                .fault = rows[i].fault,
                                .headers = rows[i].name ? PAIRS(rows[i].name, rows[i].value) : NULL,
                                .body = rows[i].body };
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "get_server_capabilities", &a,
                                      script_err(s)));
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "healthz", &a, script_err(s)));
        tinkc_future *f =
            follow(s, "both", tinkc_capabilities_get(script_client(s), script_err(s)));
        finish_it(s, f, 4000000);
        f = follow(s, "attempts", tinkc_health_check(script_client(s), script_err(s)));
        finish_it(s, f, 4000000);
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "healthz",
                                      &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}" },
                                      script_err(s)));
        static const tinkc_client_options others[] = {
            { .telemetry = TINKC_TELEMETRY_OFF, .max_retries = 2, .retry_window_ms = 5000 },
            { .telemetry = TINKC_TELEMETRY_OFF,
              .max_retries = TINKC_ZERO,
              .retry_window_ms = 100000 },
            { .telemetry = TINKC_TELEMETRY_OFF, .retry_window_ms = TINKC_ZERO },
            { .telemetry = TINKC_TELEMETRY_OFF, .no_retries = true },
            { .telemetry = TINKC_TELEMETRY_OFF,
              .retry_window_ms = TINKC_FOREVER,
              .operation_timeout_ms = 90000 },
            { 0 },
        };
        script_renew(s, &others[i]);
    }
    script_end(s);
}

/* ---- billing ---- */

static void billing(void **state)
{
    (void)state;
    static const struct {
        tinkc_client_options o;
        const char *config;
    } rows[] = {
        { { 0 }, "{\"billing_exception_max_pause_duration_sec\":12}" },
        { { 0 }, "{\"billing_exception_max_pause_duration_sec\":0}" },
        { { 0 }, "{\"billing_exception_max_pause_duration_sec\":-1}" },
        { { .billing_pause_ms = 7000 }, "{}" },
        { { .billing_pause_ms = TINKC_ZERO }, "{}" },
        { { .billing_pause_ms = TINKC_FOREVER, .operation_timeout_ms = 400000 }, "{}" },
        { { .no_retries = true }, "{}" },
    };
    script *s = script_begin("billing", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        script_renew(s, &rows[i].o);
        answer_always(s, API "client/config", 200, NULL, rows[i].config);
        answer_always(s, API "get_server_capabilities", 402, NULL,
                      "{\"detail\":\"no credit left\"}");
        tinkc_future *f =
            follow(s, "refused", tinkc_capabilities_get(script_client(s), script_err(s)));
        finish_it(s, f, 100000);
        if (i ==
            5) { /* it continues as soon as the account can pay, and later pauses begin again */
            answer_always(s, API "get_server_capabilities", 200, NULL, "{\"supported_models\":[]}");
            finish_it(s, f, 100000);
            answer_once(s, API "get_server_capabilities", 402, NULL, "{\"detail\":\"again\"}");
            f = follow(s, "later", tinkc_capabilities_get(script_client(s), script_err(s)));
            finish_it(s, f, 100000);
        }
    }
    script_end(s);
}

/* ---- polls ---- */

static tinkc_trainer *open_trainer(script *s, const tinkc_lora_options *o)
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

#define QUEUE(state, reason)                                                                       \
    "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"" state "\"" reason "}"

static void polls(void **state)
{
    (void)state;
    static const struct outcome more[] = {
        { 408, 0, NULL, NULL, QUEUE("active", "") },
        { 408, 0, NULL, NULL, QUEUE("paused_rate_limit", "") },
        { 200, 0, NULL, NULL, QUEUE("paused_capacity", "") },
        { 200, 0, NULL, NULL, QUEUE("paused_capacity", ",\"queue_state_reason\":\"a reason\"") },
        { 200, 0, NULL, NULL, QUEUE("unheard_of", "") },
        { 200, 0, NULL, NULL, "" },
        { 200, 0, NULL, NULL, "not JSON" },
        { 200, 0, NULL, NULL, "{\"error\":\"it failed\",\"category\":\"user\"}" },
        { 200, 0, NULL, NULL, "{\"error\":\"it\\nfailed\",\"category\":\"server\"}" },
        { 200, 0, NULL, NULL, "{\"error\":\"it failed\",\"category\":\"unknown\"}" },
        { 200, 0, NULL, NULL, "{\"status\":\"complete_metadata\",\"response_payload_size\":1000}" },
        { 200, 0, "Content-Type", "application/x-protobuf", "\x08" },
    };
    tinkc_adam adam = TINKC_ADAM_INIT;
    script *s = script_begin("polls", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON });
    tinkc_trainer *t = open_trainer(s, NULL);
    for (size_t i = 0; i < N_OUTCOMES + sizeof more / sizeof *more; i++) {
        const struct outcome *o = i < N_OUTCOMES ? &outcomes[i] : &more[i - N_OUTCOMES];
        note(s, "outcome %zu: %d, fault %d, %s %s %s", i, (int)o->status, (int)o->fault,
             o->name ? o->name : "-", o->value ? o->value : "-", o->body ? o->body : "-");
        answer_with(s, POLL, o);
        tinkc_future *f = follow(s, "step", tinkc_optim_step(t, &adam, script_err(s)));
        finish_it(s, f, 200000);
        let_go(s, f);
    }
    note(s, "one after the other");
    for (size_t i = 0; i < 9; i++)
        answer_with(s, POLL, &outcomes[28]);
    answer_with(s, POLL, &more[0]);
    answer_with(s, POLL, &outcomes[28]);
    answer_with(s, POLL, &outcomes[16]);
    answer_with(s, POLL, &outcomes[28]);
    answer_with(s, POLL, &more[1]);
    answer_with(s, POLL, &more[1]);
    tinkc_future *f = follow(s, "step", tinkc_optim_step(t, &adam, script_err(s)));
    finish_it(s, f, 400000);
    note(s, "a proxy's 400s: a budget for each request and for each pool");
    for (size_t i = 0; i < 24; i++)
        answer_once(s, POLL, 400, NULL, i < 20 ? "" : "<html>");
    f = follow(s, "step", tinkc_optim_step(t, &adam, script_err(s)));
    finish_it(s, f, 4000000);
    live(s, 61000); /* warnings of pauses are not repeated within a minute */
    answer_with(s, POLL, &more[1]);
    f = follow(s, "step", tinkc_optim_step(t, &adam, script_err(s)));
    finish_it(s, f, 400000);
    tinkc_trainer_free(t);
    script_end(s);
}

/* ---- training ---- */

static void show_pass(script *s, tinkc_future *f)
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

static tinkc_batch *examples(script *s, size_t n)
{
    tinkc_batch *b = tinkc_batch_new(script_client(s), script_err(s));
    for (size_t i = 0; i < n; i++)
        tinkc_batch_add_sft(b, ids, 4 + i % 3, 1 + i % 2, script_err(s));
    assert_ok(script_err(s));
    return b;
}

static void pass_over(script *s, tinkc_trainer *t, size_t n)
{
    static const double values[] = { 0.25, 4 };
    tinkc_batch *b = examples(s, n);
    tinkc_future *f = follow(
        s, "pass",
        tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY,
                               &(tinkc_loss_options){ .names = PAIRS("a", "b"), .values = values },
                               script_err(s)));
    finish_it(s, f, 900000);
    show_pass(s, f);
    let_go(s, f);
    tinkc_batch_free(b);
}

/* A whole life of a model. */
static void training(void **state)
{
    (void)state;
    tinkc_adam adam = { 0.5, 0.25, 0.75, 1e-8, 0.125, 2, { 0 } };
    script *s = script_begin("training", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    tinkc_trainer *t = open_trainer(s, &(tinkc_lora_options){ .base_model = "mock/nano",
                                                              .user_metadata = PAIRS("k", "v"),
                                                              .rank = 8,
                                                              .freeze = TINKC_FREEZE_MLP,
                                                              .seed = 7,
                                                              .has_seed = true });
    note(s, "%s", tinkc_trainer_id(t));
    pass_over(s, t, 3);
    tinkc_batch *b = examples(s, 2);
    tinkc_future *f = follow(s, "forward", tinkc_forward(t, b, TINKC_CROSS_ENTROPY, NULL, e));
    finish_it(s, f, 1000);
    show_pass(s, f);
    tinkc_batch_free(b);
    f = follow(s, "step", tinkc_optim_step(t, &adam, e));
    finish_it(s, f, 1000);
    f = follow(s, "save",
               tinkc_trainer_save(t, "one",
                                  &(tinkc_save_options){ .ttl_s = 100,
                                                         .overwrite = true,
                                                         .user_metadata = PAIRS("m", "n") },
                                  e));
    finish_it(s, f, 1000);
    note(s, "%s", tinkc_future_path(f, 0, e));
    f = follow(s, "save for sampler", tinkc_trainer_save_for_sampler(t, "two", NULL, e));
    finish_it(s, f, 1000);
    note(s, "%s", tinkc_future_path(f, 0, e));
    f = follow(s, "external",
               tinkc_trainer_save_external(
                   t, "three",
                   &(tinkc_external_options){ .ttl_s = 9, .recipients = PAIRS("age1xyz") }, e));
    finish_it(s, f, 1000);
    f = follow(s, "load",
               tinkc_trainer_load(t,
                                  &(tinkc_state_options){ .path = "tinker://r/weights/one",
                                                          .access_token = "other",
                                                          .with_optimizer = true },
                                  e));
    finish_it(s, f, 1000);
    f = follow(s, "info", tinkc_trainer_info(t, e));
    finish_it(s, f, 1000);
    const tinkc_model_info *info = tinkc_future_model_info(f, 0, e);
    assert_non_null(info);
    note(s, "%s, %s, %s, %s, %d, %d", info->model_id, info->model_name, info->arch,
         info->tokenizer_id, (int)info->lora_rank, info->is_lora);
    f = follow(s, "sampler", tinkc_trainer_open_sampler(t, NULL, e));
    finish_it(s, f, 1000);
    tinkc_sampler *sampler = tinkc_future_sampler(f, 0, e);
    note(s, "%s", tinkc_sampler_id(sampler));
    tinkc_sampler_free(sampler);
    f = follow(s, "dimuon", tinkc_dimuon_step(t, &(tinkc_dimuon){ 0.5, 0.75, 3, { 0 } }, e));
    finish_it(s, f, 1000);
    f = follow(s, "unload", tinkc_trainer_unload(t, e));
    finish_it(s, f, 1000);
    follow(s, "after it", tinkc_optim_step(t, &adam, e));
    tinkc_trainer_free(t);
    f = follow(
        s, "from",
        tinkc_trainer_open_from(script_client(s),
                                &(tinkc_state_options){ .path = "tinker://model-1/weights/one",
                                                        .base_model = "mock/nano",
                                                        .with_optimizer = true,
                                                        .user_metadata = PAIRS("a", "b") },
                                e));
    finish_it(s, f, 1000);
    f = follow(s, "live", tinkc_trainer_open_live(script_client(s), "model-1", e));
    finish_it(s, f, 1000);
    script_end(s);
}

/* How a batch is cut, sent and put together under each setting of the service. */
static void chunks(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"fwdbwd_max_chunk_len\":2}",
        "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":false}",
        "{\"fwdbwd_max_chunk_len\":2,\"proto_compress_fwdbwd\":true}",
        "{\"fwdbwd_max_chunk_bytes_count\":150}",
        "{\"fwdbwd_max_chunk_bytes_count\":1,\"fwdbwd_dispatch_bytes_semaphore_size\":150}",
        "{\"fwdbwd_max_chunk_len\":5,\"fwdbwd_dispatch_bytes_semaphore_size\":1}",
    };
    script *s = script_begin("chunks", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        note(s, "%s", configs[i]);
        answer_always(s, API "client/config", 200, NULL, configs[i]);
        hush(s, true);
        script_renew(s, NULL);
        tinkc_trainer *t = open_trainer(s, NULL);
        hush(s, false);
        pass_over(s, t, 5);
        tinkc_trainer_free(t);
    }
    script_end(s);
}

/* Passes that fail at each of their parts, and what becomes of the numbers and of those behind. */
static void broken_passes(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 400, 0, NULL, NULL, "{\"detail\":\"bad\"}" },
        { 403, 0, NULL, NULL, "" },
        { 415, 0, NULL, NULL, "" },
        { 500, 0, NULL, NULL, "" },
        { 429, 0, "Retry-After", "2", "" },
        { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
        { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" },
        { 200, 0, NULL, NULL, "{}" },
        { 413, 0, NULL, NULL, "" },
    };
    tinkc_adam adam = TINKC_ADAM_INIT;
    script *s = script_begin("broken_passes", TINKC_MOCK_SERVICE, NULL);
    for (int parallel = 0; parallel < 2; parallel++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int which = 0; which < 2; which++) {
                note(s, "row %zu, parallel %d, request %d", i, parallel, which);
                answer_always(
                    s, API "client/config", 200, NULL,
                    parallel ? "{\"fwdbwd_max_chunk_len\":1}"
                             : "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false}");
                hush(s, true);
                script_renew(s,
                             &(tinkc_client_options){ .max_retries = 1, .retry_window_ms = 1500 });
                tinkc_trainer *t = open_trainer(s, NULL);
                hush(s, false);
                if (which) {
                    tinkc_mock_answer good = { .body = "{\"request_id\":\"r-0\"}" };
                    assert_true(tinkc_mock_once(script_mock(s), NULL, API "forward_backward", &good,
                                                script_err(s)));
                }
                for (int k = 0; k < 4; k++)
                    answer_with(s, API "forward_backward", &rows[i]);
                answer_once(s, POLL, 408, NULL, "");
                tinkc_batch *b = examples(s, 3);
                tinkc_future *f =
                    follow(s, "pass",
                           tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, script_err(s)));
                tinkc_future *g = follow(s, "behind", tinkc_optim_step(t, &adam, script_err(s)));
                live(s, 4000);
                show_pass(s, f);
                tinkc_future *h = follow(s, "later", tinkc_optim_step(t, &adam, script_err(s)));
                live(s, 3000);
                let_go(s, f);
                let_go(s, g);
                let_go(s, h);
                tinkc_batch_free(b);
                tinkc_trainer_free(t);
            }
    script_end(s);
}

/* Cancelled at every stage. */
static void cancelled(void **state)
{
    (void)state;
    tinkc_adam adam = TINKC_ADAM_INIT;
    script *s = script_begin("cancelled", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    tinkc_trainer *t = open_trainer(s, NULL);
    tinkc_mock *m = script_mock(s);
    note(s, "while it is sent");
    assert_true(tinkc_mock_once(m, NULL, API "optim_step",
                                &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    tinkc_future *f = follow(s, "sent", tinkc_optim_step(t, &adam, e));
    tinkc_future *g = follow(s, "behind", tinkc_optim_step(t, &adam, e));
    tinkc_future *h = follow(s, "behind that", tinkc_optim_step(t, &adam, e));
    tinkc_future_cancel(g);
    settle(s);
    tinkc_future_cancel(f);
    settle(s);
    finish_it(s, h, 1000);
    note(s, "between two attempts");
    answer_once(s, API "optim_step", 503, NULL, "");
    f = follow(s, "between", tinkc_optim_step(t, &adam, e));
    tinkc_future_cancel(f);
    settle(s);
    f = follow(s, "after", tinkc_optim_step(t, &adam, e));
    finish_it(s, f, 1000);
    note(s, "while it is polled");
    assert_true(
        tinkc_mock_once(m, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    f = follow(s, "polled", tinkc_optim_step(t, &adam, e));
    tinkc_future_cancel(f);
    settle(s);
    note(s, "by its limit");
    assert_true(
        tinkc_mock_once(m, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    f = follow(s, "limited", tinkc_optim_step(t, &adam, e));
    tinkc_future_limit(f, 777, e);
    finish_it(s, f, 10000);
    note(s, "a call");
    assert_true(tinkc_mock_once(m, NULL, API "get_server_capabilities",
                                &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    f = follow(s, "read", tinkc_capabilities_get(script_client(s), e));
    tinkc_future_cancel(f);
    settle(s);
    assert_true(tinkc_mock_once(m, NULL, API "sessions/s-1/project",
                                &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    f = follow(s, "write", tinkc_session_assign(script_client(s), "s-1", "p", e));
    tinkc_future_cancel(f);
    settle(s);
    note(s, "by the end of the client");
    assert_true(
        tinkc_mock_once(m, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    answer_once(s, API "healthz", 503, NULL, "");
    follow(s, "polled", tinkc_optim_step(t, &adam, e));
    follow(s, "waits", tinkc_health_check(script_client(s), e));
    tinkc_trainer_free(t);
    script_end(s);
}

/* ---- sampling ---- */

static void show_samples(script *s, tinkc_future *f)
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

static tinkc_sampler *open_sampler(script *s, const tinkc_retry_options *retry)
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

static tinkc_future *sample_it(script *s, const char *name, tinkc_sampler *sampler, size_t n)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    return follow(s, name, tinkc_sample(sampler, ids, 4, n, &o, script_err(s)));
}

/* Each outcome of a submit, then of a poll. */
static void samples(void **state)
{
    (void)state;
    script *s = script_begin("samples", TINKC_MOCK_SERVICE, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_future *f = sample_it(s, "plain", sampler, 2);
    finish_it(s, f, 1000);
    show_samples(s, f);
    f = follow(s, "scores", tinkc_logprobs(sampler, ids, 5, script_err(s)));
    finish_it(s, f, 1000);
    tinkc_f32s p = tinkc_future_logprobs(f, 0, script_err(s));
    note(s, "%zu scores, last %.6g", p.len, (double)p.data[p.len - 1]);
    for (size_t i = 0; i < N_OUTCOMES; i++)
        for (int poll = 0; poll < 2; poll++) {
            note(s, "outcome %zu: %d of a %s", i, (int)outcomes[i].status,
                 poll ? "poll" : "submit");
            answer_with(s, poll ? POLL : API "asample", &outcomes[i]);
            f = sample_it(s, "sample", sampler, 1);
            finish_it(s, f, 300000);
            let_go(s, f);
        }
    tinkc_sampler_free(sampler);
    script_end(s);
}

/* The shared back-off: how long, for whom, and how many may go while it is recent. */
static void slow_down(void **state)
{
    (void)state;
    script *s = script_begin("slow_down", TINKC_MOCK_SERVICE, NULL);
    answer_always(
        s, API "client/config", 200, NULL,
        "{\"sample_dispatch_bytes_semaphore_size\":1000,\"sample_max_concurrent_requests\":14}");
    tinkc_sampler *sampler = open_sampler(s, NULL);
    for (int round = 0; round < 3; round++) {
        note(s, "round %d", round);
        answer_once(s, API "asample", 429, round == 1 ? PAIRS("Retry-After", "4") : NULL,
                    "{\"detail\":\"full\"}");
        tinkc_future *f = sample_it(s, "first", sampler, 1);
        tinkc_future *g = sample_it(s, "second", sampler, 1);
        finish_it(s, f, 100000);
        finish_it(s, g, 100000);
        if (round == 1)
            live(s, 9000);
    }
    note(s, "many, while the service is silent");
    tinkc_mock_always(script_mock(s), NULL, API "asample",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, script_err(s));
    tinkc_future *many[18];
    for (size_t i = 0; i < 18; i++) {
        char name[20];
        (void)snprintf(name, sizeof name, "one of many %zu", i);
        many[i] = sample_it(s, name, sampler, 1);
    }
    note(s, "%zu submits", tinkc_mock_count(script_mock(s), API "asample"));
    for (size_t i = 0; i < 18; i += 2) {
        tinkc_future_cancel(many[i]);
        settle(s);
    }
    note(s, "%zu submits", tinkc_mock_count(script_mock(s), API "asample"));
    tinkc_sampler_free(sampler);
    script_end(s);
}

/* How samples are repeated: pauses, attempts, progress. */
static void repeats(void **state)
{
    (void)state;
    static const struct {
        tinkc_retry_options o;
        const char *config;
    } rows[] = {
        { { .max_attempts = 3 }, "{}" },
        { { .delay_base_ms = 100, .delay_max_ms = 350, .max_attempts = 5 }, "{}" },
        { { .delay_base_ms = 1000,
            .delay_max_ms = 1000,
            .max_attempts = 4,
            .jitter = 0.9,
            .has_jitter = true },
          "{}" },
        { { .delay_base_ms = TINKC_ZERO, .max_attempts = 3 }, "{}" },
        { { .has_jitter = true, .max_attempts = 9 }, "{}" },
        { { .progress_timeout_ms = 20000 }, "{}" },
        { { .progress_timeout_ms = 20000, .no_stuck_detection = true, .max_attempts = 8 }, "{}" },
        { { .progress_timeout_ms = 20000, .max_attempts = 8 },
          "{\"sample_enable_stuck_detection\":false}" },
        { { .no_retries = true }, "{}" },
        { { .max_attempts = 3 }, "{\"sample_no_retries\":true}" },
    };
    script *s = script_begin("repeats", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        answer_always(s, API "client/config", 200, NULL, rows[i].config);
        hush(s, true);
        script_renew(
            s, &(tinkc_client_options){ .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO });
        tinkc_sampler *sampler = open_sampler(s, &rows[i].o);
        hush(s, false);
        answer_always(s, API "asample", 500, NULL, "{\"detail\":\"no\"}");
        tinkc_future *f = sample_it(s, "sample", sampler, 1);
        finish_it(s, f, 100000);
        f = follow(s, "scores", tinkc_logprobs(sampler, ids, 5, script_err(s)));
        finish_it(s, f, 100000);
        tinkc_sampler_free(sampler);
    }
    script_end(s);
}

/* Samples that nobody waits for any more: the service learns of it where it wants to. */
static void forgotten(void **state)
{
    (void)state;
    script *s = script_begin("forgotten", TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/dynamic_config", 200, NULL,
                  "{\"refresh_interval_sec\":50,\"sample_cancel_enabled\":true,\"sample_cancel_max_"
                  "batch_size\":2}");
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_mock_always(script_mock(s), NULL, POLL,
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, script_err(s));
    tinkc_mock_always(script_mock(s), NULL, API "cancel_future",
                      &(tinkc_mock_answer){ .body = "{}", .delay_ms = 100 }, script_err(s));
    tinkc_future *f[6];
    for (size_t i = 0; i < 6; i++) {
        char name[20];
        (void)snprintf(name, sizeof name, "sample %zu", i);
        f[i] = sample_it(s, name, sampler, 1);
    }
    for (size_t i = 0; i < 5; i++) {
        tinkc_future_cancel(f[i]);
        settle(s);
    }
    live(s, 1000);
    note(s, "refused");
    answer_once(s, API "cancel_future", 500, NULL, "");
    tinkc_future_cancel(f[5]);
    live(s, 3000);
    note(s, "no longer wanted");
    answer_always(s, API "client/dynamic_config", 200, NULL,
                  "{\"refresh_interval_sec\":50,\"sample_cancel_enabled\":false}");
    live(s, 50000);
    f[0] = sample_it(s, "sample", sampler, 1);
    tinkc_future_cancel(f[0]);
    settle(s);
    tinkc_sampler_free(sampler);
    script_end(s);
}

/* ---- tokens ---- */

#define CLAIMS_600                                                                                 \
    "eyJhIjoxfQ.eyJzdWIiOiJ1c2VyOmEiLCJleHAiOjE3NjcyMjYyMDB9.one" /* 600 s from the beginning */
#define CLAIMS_900  "eyJhIjoxfQ.eyJzdWIiOiJ1c2VyOmEiLCJleHAiOjE3NjcyMjY1MDB9.two"   /* 900 s */
#define CLAIMS_3600 "eyJhIjoxfQ.eyJzdWIiOiJ1c2VyOmEiLCJleHAiOjE3NjcyMjkyMDB9.three" /* an hour */
#define JWT(claims) "{\"jwt\":\"" claims "\"}"

static void tokens(void **state)
{
    (void)state;
    script *s =
        script_begin("tokens", TINKC_MOCK_SERVICE, &(tinkc_client_options){ .api_key = "tml-key" });
    tinkc_error *e = script_err(s);
    answer_always(s, API "client/config", 200, NULL, "{\"pjwt_auth_enabled\":true}");
    answer_once(s, API "auth/token", 500, PAIRS("Retry-After", "2"), "");
    answer_once(s, API "auth/token", 200, NULL, JWT(CLAIMS_600));
    answer_once(s, API "auth/token", 200, NULL, JWT(CLAIMS_900));
    answer_once(s, API "auth/token", 401, NULL, "{\"detail\":\"no\"}");
    answer_once(s, API "auth/token", 200, NULL, "{}");
    answer_once(s, API "auth/token", 200, NULL, "{\"jwt\":\"\"}");
    answer_once(s, API "auth/token", 200, NULL, JWT("opaque"));
    answer_once(s, API "auth/token", 200, NULL, JWT(CLAIMS_3600));
    tinkc_future *f = follow(s, "first", tinkc_health_check(script_client(s), e));
    finish_it(s, f, 10000);
    f = follow(s, "identity", tinkc_identity_get(script_client(s), e));
    finish_it(s, f, 10000);
    f = follow(s, "token", tinkc_token_get(script_client(s), e));
    finish_it(s, f, 10000);
    note(s, "expires at %lld", (long long)tinkc_future_token(f, 0, e)->expires_us);
    for (int i = 0; i < 9; i++) {
        note(s, "later %d", i);
        live(s, 100000);
        f = follow(s, "call", tinkc_health_check(script_client(s), e));
        finish_it(s, f, 10000);
        let_go(s, f);
    }
    live(s, 2300000);
    for (int i = 0; i < 4; i++)
        fault_once(s, API "auth/token", TINKC_FAULT_REFUSED);
    pass(s, 500000); /* too late to be renewed ahead: a call waits for it */
    f = follow(s, "late", tinkc_health_check(script_client(s), e));
    finish_it(s, f, 100000);
    tinkc_text saved = { 0 };
    note(s, "%s", tinkc_client_snapshot(script_client(s), &saved, e));
    tinkc_text_free(&saved);
    note(s, "the first exchange fails");
    static const struct outcome rows[] = {
        { 401, 0, NULL, NULL, "{\"detail\":\"no\"}" },
        { 200, 0, NULL, NULL, "{\"jwt\":\"\"}" },
        { 200, 0, NULL, NULL, "nothing" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        script_renew(s, &(tinkc_client_options){
                            .api_key = "tml-key", .max_retries = 1, .retry_window_ms = 1000 });
        answer_with(s, API "auth/token", &rows[i]);
        f = follow(s, "first", tinkc_health_check(script_client(s), e));
        finish_it(s, f, 10000);
    }
    script_renew(s, &(tinkc_client_options){
                        .api_key = "tml-key", .max_retries = 1, .retry_window_ms = 1000 });
    assert_true(tinkc_mock_always(script_mock(s), NULL, API "auth/token",
                                  &(tinkc_mock_answer){ .fault = TINKC_FAULT_REFUSED }, e));
    f = follow(s, "unreachable", tinkc_health_check(script_client(s), e));
    finish_it(s, f, 10000);
    script_end(s);
}

/* ---- operations of a trainer, and what may become of them ---- */

enum { N_OPS = 9 };
static const char *const op_paths[N_OPS] = { API "optim_step",
                                             API "optim_step",
                                             API "save_weights",
                                             API "save_weights_for_sampler",
                                             API "save_weights_external",
                                             API "load_weights",
                                             API "save_weights_for_sampler",
                                             API "get_info",
                                             API "unload_model" };

static tinkc_future *op_nr(script *s, tinkc_trainer *t, int nr)
{
    static const tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_error *e = script_err(s);
    switch (nr) {
    case 0:
        return tinkc_optim_step(t, &adam, e);
    case 1:
        return tinkc_dimuon_step(t, &(tinkc_dimuon){ 0.5, 0.5, 0, { 0 } }, e);
    case 2:
        return tinkc_trainer_save(t, "n", NULL, e);
    case 3:
        return tinkc_trainer_save_for_sampler(t, "n", &(tinkc_save_options){ .ttl_s = 1 }, e);
    case 4:
        return tinkc_trainer_save_external(t, "n", NULL, e);
    case 5:
        return tinkc_trainer_load(t, &(tinkc_state_options){ .path = "tinker://r/weights/n" }, e);
    case 6:
        return tinkc_trainer_open_sampler(t, NULL, e);
    case 7:
        return tinkc_trainer_info(t, e);
    default:
        return tinkc_trainer_unload(t, e);
    }
}

static void operations(void **state)
{
    (void)state;
    static const struct {
        bool poll;
        struct outcome o[2]; /* a status of 0 and no fault: none */
    } rows[] = {
        { false, { { 403, 0, NULL, NULL, "{\"detail\":\"no\"}" } } },
        { false, { { 409, 0, NULL, NULL, "{\"detail\":\"taken\"}" } } },
        { false, { { 500, 0, NULL, NULL, "" }, { 409, 0, NULL, NULL, "" } } },
        { false, { { 500, 0, NULL, NULL, "" }, { 422, 0, NULL, NULL, "" } } },
        { false, { { 500, 0, NULL, NULL, "" }, { 403, 0, NULL, NULL, "" } } },
        { false, { { 200, 0, NULL, NULL, "[]" } } },
        { false, { { 200, 0, NULL, NULL, "{}" } } },
        { true, { { 200, 0, NULL, NULL, "{}" } } },
        { true, { { 200, 0, NULL, NULL, "{\"path\":\"\",\"metrics\":5}" } } },
        { true, { { 200, 0, NULL, NULL, "{\"error\":\"no\",\"category\":\"user\"}" } } },
        { true, { { 404, 0, NULL, NULL, "{\"detail\":\"lost\"}" } } },
    };
    script *s = script_begin("operations", TINKC_MOCK_SERVICE, NULL);
    for (int recovery = 0; recovery < 2; recovery++)
        for (int nr = 0; nr < N_OPS; nr++) {
            if (recovery && (nr < 2 || nr > 4))
                continue;
            hush(s, true);
            script_renew(s, &(tinkc_client_options){ .conflict_recovery = recovery,
                                                     .max_retries = 1,
                                                     .retry_window_ms = TINKC_ZERO });
            tinkc_trainer *t = open_trainer(s, NULL);
            hush(s, false);
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                if ((nr == 7 && rows[i].poll) || (nr == 8 && i > 6))
                    break; /* nothing of it is polled; the model is gone */
                note(s, "operation %d, row %zu, recovery %d", nr, i, recovery);
                for (int k = 0; k < 2 && rows[i].o[k].status; k++)
                    answer_with(s, rows[i].poll ? POLL : op_paths[nr], &rows[i].o[k]);
                tinkc_future *f = follow(s, "op", op_nr(s, t, nr));
                finish_it(s, f, 10000);
                if (f)
                    let_go(s, f);
                static const tinkc_adam adam = TINKC_ADAM_INIT;
                f = follow(s, "next", tinkc_optim_step(t, &adam, script_err(s)));
                finish_it(s, f, 10000);
                if (f)
                    let_go(s, f);
            }
            tinkc_trainer_free(t);
        }
    script_end(s);
}

/* What operations refuse before they are sent. */
static void refused_operations(void **state)
{
    (void)state;
    script *s = script_begin("refused_operations", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    hush(s, true);
    tinkc_trainer *t = open_trainer(s, NULL);
    hush(s, false);
    static const char *const names[] = { NULL, "", "a/b", ".", "..", "a\x1f", "a\x7f", "..." };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        follow(s, "save", tinkc_trainer_save(t, names[i], NULL, e));
    follow(s, "sampler",
           tinkc_trainer_save_for_sampler(t, "a", &(tinkc_save_options){ .overwrite = true }, e));
    follow(s, "sampler",
           tinkc_trainer_save_for_sampler(t, "a", &(tinkc_save_options){ .ttl_s = -1 }, e));
    follow(s, "save",
           tinkc_trainer_save(t, "a", &(tinkc_save_options){ .reserved = { 0, 0, 1 } }, e));
    follow(s, "save",
           tinkc_trainer_save(t, "a", &(tinkc_save_options){ .reserved_bools = { true } }, e));
    follow(s, "save",
           tinkc_trainer_save(t, "a", &(tinkc_save_options){ .user_metadata = PAIRS("a") }, e));
    follow(s, "external", tinkc_trainer_save_external(t, "/", NULL, e));
    follow(s, "external",
           tinkc_trainer_save_external(t, "a", &(tinkc_external_options){ .ttl_s = -1 }, e));
    follow(s, "external",
           tinkc_trainer_save_external(t, "a", &(tinkc_external_options){ .reserved = { 1 } }, e));
    follow(
        s, "external",
        tinkc_trainer_save_external(
            t, "a", &(tinkc_external_options){ .recipients = (const char *const[]){ NULL } }, e));
    follow(s, "external",
           tinkc_trainer_save_external(
               t, "a", &(tinkc_external_options){ .recipients = PAIRS("a", "") }, e));
    follow(s, "ten",
           tinkc_trainer_save_external(
               t, "a",
               &(tinkc_external_options){
                   .recipients = PAIRS("1", "2", "3", "4", "5", "6", "7", "8", "9", "10") },
               e));
    follow(s, "eleven",
           tinkc_trainer_save_external(
               t, "a",
               &(tinkc_external_options){
                   .recipients = PAIRS("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11") },
               e));
    static const tinkc_adam adams[] = {
        { 0, 0, 0.5, 0, 0, 0, { 0 } },  { 0, 1, 0.5, 0, 0, 0, { 0 } },
        { 0, 0.5, 1, 0, 0, 0, { 0 } },  { 0, 0.5, 0, 0, 0, 0, { 0 } },
        { -1, 0, 0.5, 0, 0, 0, { 0 } }, { 0, -1, 0.5, 0, 0, 0, { 0 } },
        { 0, 0, -1, 0, 0, 0, { 0 } },   { 0, 0, 0.5, -1, 0, 0, { 0 } },
        { 0, 0, 0.5, 0, -1, 0, { 0 } }, { 0, 0, 0.5, 0, 0, -1, { 0 } },
        { 0, 0, 0.5, 0, 0, 0, { 1 } },
    };
    for (size_t i = 0; i < sizeof adams / sizeof *adams; i++)
        follow(s, "adam", tinkc_optim_step(t, &adams[i], e));
    follow(s, "adam", tinkc_optim_step(t, NULL, e));
    static const tinkc_dimuon dimuons[] = {
        { 0, 0, 0, { 0 } },  { -1, 0, 0, { 0 } }, { 0, 1, 0, { 0 } },
        { 0, -1, 0, { 0 } }, { 0, 0, -1, { 0 } }, { 0, 0, 0, { 1 } },
    };
    for (size_t i = 0; i < sizeof dimuons / sizeof *dimuons; i++)
        follow(s, "dimuon", tinkc_dimuon_step(t, &dimuons[i], e));
    follow(s, "dimuon", tinkc_dimuon_step(t, NULL, e));
    follow(s, "load", tinkc_trainer_load(t, &(tinkc_state_options){ .path = "x" }, e));
    follow(s, "sampler",
           tinkc_trainer_open_sampler(t, &(tinkc_sampler_options){ .reserved = { 1 } }, e));
    static const tinkc_retry_options retries[] = {
        { .progress_timeout_ms = -1 },
        { .delay_base_ms = -1 },
        { .delay_max_ms = -1 },
        { .max_attempts = -1 },
        { .jitter = 2, .has_jitter = true },
        { .jitter = -1, .has_jitter = true },
        { .reserved = { 1 } },
        { .reserved_bools = { true } },
        { .jitter = 1, .has_jitter = true },
        { .progress_timeout_ms = TINKC_ZERO },
        { .jitter = 0.5 },
    };
    for (size_t i = 0; i < sizeof retries / sizeof *retries; i++)
        follow(s, "retry",
               tinkc_trainer_open_sampler(t, &(tinkc_sampler_options){ .retry = &retries[i] }, e));
    tinkc_batch *b = examples(s, 1);
    static const double infinite[] = { INFINITY };
    follow(s, "loss", tinkc_forward_backward(t, b, "", NULL, e));
    follow(s, "loss", tinkc_forward_backward(t, b, NULL, NULL, e));
    follow(s, "loss",
           tinkc_forward_backward(t, b, "x", &(tinkc_loss_options){ .names = PAIRS("a") }, e));
    follow(s, "loss",
           tinkc_forward_backward(
               t, b, "x", &(tinkc_loss_options){ .names = PAIRS("a"), .values = infinite }, e));
    follow(s, "loss",
           tinkc_forward_backward(t, b, "x", &(tinkc_loss_options){ .reserved = { 1 } }, e));
    tinkc_batch_clear(b);
    follow(s, "loss", tinkc_forward_backward(t, b, "x", NULL, e));
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    script_end(s);
}

/* ---- a loss of one's own ---- */

static bool half(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const char *how = user;
    double sum = 0;
    for (size_t i = 0; tinkc_loss_grad(loss, i); i++) {
        tinkc_f32s p = tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i));
        for (size_t k = 0; k < p.len; k++) {
            tinkc_loss_grad(loss, i)[k] = strcmp(how, "nan") == 0 ? NAN : 0.5f;
            sum += (double)p.data[k];
        }
    }
    if (strcmp(how, "fails") == 0)
        return false;
    if (strcmp(how, "says why") == 0)
        tinkc_error_set(err, TINKC_E_ARGUMENT, "my reason");
    if (strcmp(how, "unset") != 0)
        tinkc_loss_set(loss, sum);
    tinkc_loss_metric(loss, "mine", 2.5, err);
    return true;
}

static void custom(void **state)
{
    (void)state;
    static const char *const ways[] = { "well", "fails", "says why", "unset", "nan" };
    tinkc_adam adam = TINKC_ADAM_INIT;
    script *s = script_begin("custom", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    answer_always(s, API "client/config", 200, NULL, "{\"fwdbwd_max_chunk_len\":2}");
    hush(s, true);
    tinkc_trainer *t = open_trainer(s, NULL);
    hush(s, false);
    tinkc_queue *q = tinkc_queue_new(script_client(s), e);
    tinkc_batch *b = examples(s, 3);
    for (uint32_t together = 0; together < 2; together++)
        for (size_t i = 0; i < 5; i++) {
            note(s, "%s, together %u", ways[i], (unsigned)together);
            char *how = (char *)(uintptr_t)ways[i];
            tinkc_future *f =
                follow(s, "custom", tinkc_forward_backward_custom(t, b, together, q, half, how, e));
            tinkc_future *g = follow(s, "behind", tinkc_optim_step(t, &adam, e));
            note(s, "%zu calls", tinkc_queue_run(q, 0, e));
        settle(s);
            settle(s);
            show_pass(s, f);
            let_go(s, f);
            let_go(s, g);
        }
    note(s, "without a queue");
    for (uint32_t together = 0; together < 2; together++)
        for (size_t i = 0; i < 5; i++) {
            char *how = (char *)(uintptr_t)ways[i];
            tinkc_future *f = follow(
                s, "custom", tinkc_forward_backward_custom(t, b, together, NULL, half, how, e));
            if (f) {
                show_pass(s, f);
                let_go(s, f);
            }
        }
    note(s, "refused, and ended");
    follow(s, "custom", tinkc_forward_backward_custom(t, b, 2, q, half, NULL, e));
    follow(s, "custom", tinkc_forward_backward_custom(t, b, 0, q, NULL, NULL, e));
    for (uint32_t together = 0; together < 2; together++) {
        tinkc_future *f = follow(
            s, "custom",
            tinkc_forward_backward_custom(t, b, together, q, half, (void *)(uintptr_t) "well", e));
        tinkc_future_cancel(f);
        settle(s);
        note(s, "%zu calls", tinkc_queue_run(q, 0, e));
        settle(s);
        answer_once(s, API "forward_backward", 403, NULL, "{\"detail\":\"no\"}");
        f = follow(
            s, "custom",
            tinkc_forward_backward_custom(t, b, together, q, half, (void *)(uintptr_t) "well", e));
        note(s, "%zu calls", tinkc_queue_run(q, 0, e));
        settle(s);
        f = follow(
            s, "custom",
            tinkc_forward_backward_custom(t, b, together, q, half, (void *)(uintptr_t) "well", e));
        answer_once(s, API "forward_backward", 403, NULL, "{\"detail\":\"later\"}");
        note(s, "%zu calls", tinkc_queue_run(q, 0, e));
        settle(s);
        finish_it(s, f, 1000);
    }
    tinkc_batch_set_f32(b, "advantages", (const float[]){ 1, 1, 1, 1, 1 }, 5, e);
    follow(s, "inputs", tinkc_forward_backward_custom(t, b, 0, q, half, NULL, e));
    tinkc_batch_free(b);
    tinkc_queue_free(q);
    tinkc_trainer_free(t);
    script_end(s);
}

/* ---- sessions of samplers ---- */

static void opened_samplers(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 404, 0, NULL, NULL, "{\"detail\":\"no model\"}" },
        { 200, 0, NULL, NULL, "{}" },
        { 200, 0, NULL, NULL, "" },
        { 409, 0, NULL, NULL, "" },
        { 0, TINKC_FAULT_SILENT, NULL, NULL, NULL },
    };
    script *s = script_begin("opened_samplers", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .max_retries = 1 });
    tinkc_error *e = script_err(s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        answer_with(s, API "create_sampling_session", &rows[i]);
        tinkc_future *f = follow(
            s, "open",
            tinkc_sampler_open(script_client(s),
                               &(tinkc_sampler_options){
                                   .base_model = i ? "mock/nano" : "",
                                   .model_path = i < 2 ? "tinker://r/sampler_weights/a" : NULL },
                               e));
        if (rows[i].fault)
            tinkc_future_cancel(f);
        finish_it(s, f, 5000);
    }
    script_end(s);
}

/* ---- large bodies: written and read by helpers ---- */

static void large(void **state)
{
    (void)state;
    enum { LONG = 70000 };
    script *s = script_begin("large", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .max_response_bytes = 3000000 });
    tinkc_error *e = script_err(s);
    int32_t *prompt = calloc(LONG, sizeof *prompt);
    assert_non_null(prompt);
    for (int i = 0; i < LONG; i++)
        prompt[i] = 100 + i % 100;
    tinkc_trainer *t = open_trainer(s, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_future *f = follow(s, "scores", tinkc_logprobs(sampler, prompt, LONG, e));
    finish_it(s, f, 1000);
    note(s, "%zu scores", tinkc_future_logprobs(f, 0, e).len);
    let_go(s, f);
    tinkc_batch *b = tinkc_batch_new(script_client(s), e);
    for (int i = 0; i < 2; i++)
        tinkc_batch_add_sft(b, prompt, LONG, 1, e);
    f = follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, e));
    finish_it(s, f, 1000);
    show_pass(s, f);
    let_go(s, f);
    note(s, "it breaks, and is sent again at the next one's turn");
    assert_true(tinkc_mock_once(script_mock(s), NULL, API "forward_backward",
                                &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, e));
    f = follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, e));
    tinkc_future_cancel(f);
    settle(s);
    let_go(s, f);
    tinkc_adam adam = TINKC_ADAM_INIT;
    f = follow(s, "behind", tinkc_optim_step(t, &adam, e));
    finish_it(s, f, 1000);
    note(s, "a large answer, and one that is too large");
    char *body = calloc(1, 3100000);
    assert_non_null(body);
    (void)snprintf(body, 3100000, "{\"supported_models\":[{\"model_name\":\"%0300000d\"}]}", 7);
    answer_once(s, API "get_server_capabilities", 200, NULL, body);
    f = follow(s, "large", tinkc_capabilities_get(script_client(s), e));
    finish_it(s, f, 1000);
    note(s, "%zu models", tinkc_capabilities_count(tinkc_future_capabilities(f, 0, e)));
    (void)snprintf(body, 3100000, "{\"supported_models\":[{\"model_name\":\"%03000000d\"}]}", 7);
    answer_once(s, API "get_server_capabilities", 200, NULL, body);
    f = follow(s, "too large", tinkc_capabilities_get(script_client(s), e));
    finish_it(s, f, 1000);
    free(body);
    free(prompt);
    tinkc_batch_free(b);
    tinkc_sampler_free(sampler);
    tinkc_trainer_free(t);
    script_end(s);
}

/* ---- telemetry ---- */

static void reports(void **state)
{
    (void)state;
    script *s = script_begin("reports", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON });
    tinkc_error *e = script_err(s);
    static const char *const data[] = { NULL, "{\"a\":1}", "[]", "bad",
                                        "{\"key\":\"tml-0123456789abcdef0123456789abcdef\"}" };
    for (int32_t level = -1; level < 6; level++) {
        note(s, "level %d: %d", (int)level,
             tinkc_client_report(script_client(s), "my event", data[(level + 1) % 5], level, e));
        if (e->code)
            note(s, "%s", e->message);
        *e = (tinkc_error){ 0 };
        settle(s);
    }
    note(s, "no name: %d %d", tinkc_client_report(script_client(s), "", NULL, 3, NULL),
         tinkc_client_report(script_client(s), NULL, NULL, 3, NULL));
    live(s, 10000);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    live(s, 10000);
    note(s, "the endpoint fails");
    answer_always(s, API "telemetry", 500, PAIRS("Retry-After", "30"), "");
    for (int i = 0; i < 130; i++) {
        tinkc_client_report(script_client(s), "one of many", NULL, TINKC_LOG_INFO, e);
        settle(s);
    }
    live(s, 16000);
    answer_always(s, API "telemetry", 200, NULL, "{}");
    tinkc_client_report(script_client(s), "at last", NULL, TINKC_LOG_ERROR, e);
    live(s, 12000);
    tinkc_sampler_free(sampler);
    tinkc_client_report(script_client(s), "left over", NULL, TINKC_LOG_WARN, e);
    script_end(s);
}

/* ---- the environment ---- */

static void environment(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *values[7];
    } rows[] = {
        { "TINKER_API_KEY", { "tml-env", "eyJ.env", "sk-no", "" } },
        { "TINKER_BASE_URL", { "https://env.test/a", "env.test", "ftp://x", "" } },
        { "TINKER_PROJECT_ID", { "p-env", "" } },
        { "TINKER_TAGS", { "a,b", " a , ,b,a,", ",", "" } },
        { "TINKER_TELEMETRY", { "1", "TRUE", "yes", "On", "0", "" } },
        { "TINKER_LOG", { "debug", "INFO", "warn", "error", "odd", "" } },
        { "CLOUDFLARE_ACCESS_CLIENT_ID", { "cf-id", "two\nlines", "" } },
        { "CLOUDFLARE_ACCESS_CLIENT_SECRET", { "cf-secret", "" } },
    };
    script *s = script_begin("environment", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < 7 && rows[i].values[k]; k++) {
            note(s, "%s=%s", rows[i].name, rows[i].values[k]);
            setenv(rows[i].name, rows[i].values[k], 1);
            for (int given = 0; given < 2; given++) {
                script_renew(s,
                             &(tinkc_client_options){
                                 .api_key = given ? "tml-given" : NULL,
                                 .base_url = given ? "https://given.test" : NULL,
                                 .project_id = given ? "p-given" : NULL,
                                 .tags = given ? PAIRS("given") : NULL,
                                 .telemetry = given ? TINKC_TELEMETRY_OFF : TINKC_TELEMETRY_DEFAULT,
                                 .headers = given ? PAIRS("CF-Access-Client-Id", "given",
                                                          "cf-access-client-secret", "")
                                                  : NULL });
                setenv(rows[i].name, "changed-later", 1); /* it is read once */
                if (script_client(s)) {
                    tinkc_client_report(script_client(s), "x", NULL, TINKC_LOG_ERROR,
                                        script_err(s));
                    tinkc_future *f = follow(
                        s, "open",
                        tinkc_sampler_open(script_client(s),
                                           &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                           script_err(s)));
                    finish_it(s, f, 1000);
                }
                setenv(rows[i].name, rows[i].values[k], 1);
            }
        }
        unsetenv(rows[i].name);
    }
    script_end(s);
}

/* The first client of a process with telemetry draws the process's own number: here, so that the
 * numbers of the scripts do not depend on which of them runs. */
static int prime(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_up),        cmocka_unit_test(settings),
        cmocka_unit_test(heartbeats),      cmocka_unit_test(outcomes_once),
        cmocka_unit_test(outcomes_always), cmocka_unit_test(billing),
        cmocka_unit_test(polls),           cmocka_unit_test(training),
        cmocka_unit_test(chunks),          cmocka_unit_test(broken_passes),
        cmocka_unit_test(cancelled),       cmocka_unit_test(samples),
        cmocka_unit_test(slow_down),       cmocka_unit_test(repeats),
        cmocka_unit_test(forgotten),       cmocka_unit_test(tokens),
        cmocka_unit_test(operations),      cmocka_unit_test(refused_operations),
        cmocka_unit_test(custom),          cmocka_unit_test(opened_samplers),
        cmocka_unit_test(large),           cmocka_unit_test(reports),
        cmocka_unit_test(environment),
    };
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_BASE_URL");
    unsetenv("TINKER_TELEMETRY");
    unsetenv("TINKER_LOG");
    unsetenv("TINKER_TAGS");
    unsetenv("TINKER_PROJECT_ID");
    unsetenv("TINKER_CREDENTIAL_CMD");
    unsetenv("CLOUDFLARE_ACCESS_CLIENT_ID");
    unsetenv("CLOUDFLARE_ACCESS_CLIENT_SECRET");
    return cmocka_run_group_tests(tests, prime, NULL);
}
