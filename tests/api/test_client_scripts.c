/* test_client_scripts.c - what a client does, request by request and word for word, in good days and
 * bad ones: start-up, heartbeats, retries, polls, training, sampling, tokens, telemetry. The records
 * are in tests/data/client; support/client_script.h says what they hold and how they are written. */
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
        if (i == 5) { /* it goes on as soon as the account can pay, and later pauses begin again */
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

/* Samples that nobody waits for any more: the service is told, where it wants to know. */
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
    return cmocka_run_group_tests(tests, NULL, NULL);
}
