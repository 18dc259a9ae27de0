/* test_train_scripts.c - training, request by request and word for word: polls, passes and their parts,
 * operations that fail or are cancelled, losses of one's own. Records as in test_client_scripts.c. */
#include <math.h>
#include <stdlib.h>

#include "support/script_steps.h"

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

/* A pause of the service's queue is logged once a minute. */
static void queue_pauses(void **state)
{
    (void)state;
    static const int64_t gaps[] = { 0, 59999, 1, 59999, 1, 1 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    script *s = script_begin("queue_pauses", TINKC_MOCK_SERVICE, NULL);
    hush(s, true);
    tinkc_trainer *t = open_trainer(s, NULL);
    hush(s, false);
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        hush(s, true);
        pass(s, gaps[i]);
        hush(s, false);
        note(s, "%lld ms later", (long long)gaps[i]);
        answer_once(s, POLL, 408, NULL,
                    QUEUE("paused_capacity", ",\"queue_state_reason\":\"full\""));
        answer_once(s, POLL, 408, NULL,
                    QUEUE("paused_capacity", ",\"queue_state_reason\":\"full\""));
        answer_once(s, POLL, 408, NULL,
                    QUEUE("paused_capacity", ",\"queue_state_reason\":\"still full\""));
        tinkc_future *f = follow(s, "step", tinkc_optim_step(t, &adam, script_err(s)));
        while (!tinkc_future_done(
            f)) { /* polls that come at once are spaced: time stands still for the log */
            int64_t next = settle(s);
            if (tinkc_future_done(f))
                break;
            note(s, "next in %lld", (long long)next);
            tinkc_future_cancel(f);
            settle(s);
        }
        let_go(s, f);
        hush(s, true);
        for (int k = 0; k < 3; k++) { /* what was not used */
            f = follow(s, "rest",
                       tinkc_http_call(script_client(s),
                                       &(tinkc_http_options){
                                           .path = POLL, .any_status = true, .no_retries = true },
                                       script_err(s)));
            let_go(s, f);
        }
        hush(s, false);
    }
    tinkc_trainer_free(t);
    script_end(s);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(polls),         cmocka_unit_test(queue_pauses),
        cmocka_unit_test(training),      cmocka_unit_test(chunks),
        cmocka_unit_test(broken_passes), cmocka_unit_test(cancelled),
        cmocka_unit_test(operations),    cmocka_unit_test(refused_operations),
        cmocka_unit_test(custom),        cmocka_unit_test(large),
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
