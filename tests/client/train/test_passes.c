/* test_passes.c - what the operations of a trainer send, how a batch is cut and put together, losses of one's own, and what is too
 * large. What becomes of failures: test_trainer_order.c. */
#include <math.h>

#include "support/client/client_scene.h"

#define PASS API "forward_backward"

/* ---- bodies ---- */

/* Every operation with every option: what its request says. */
TEST(every_option_is_sent)
{
    const tinkc_adam adam = { 0.5, 0.25, 0.75, 1e-8, 0.125, 2, { 0 } };
    const tinkc_lora_options lora = { .base_model = "mock/nano",
                                      .user_metadata = PAIRS("k", "v"),
                                      .rank = 8,
                                      .freeze = TINKC_FREEZE_MLP,
                                      .seed = 7,
                                      .has_seed = true };
    const tinkc_save_options save = { .ttl_s = 100, .overwrite = true, .user_metadata = PAIRS("m", "n") };
    const tinkc_external_options external = { .ttl_s = 9, .recipients = PAIRS("age1xyz") };
    const tinkc_state_options load = { .path = "tinker://r/weights/one",
                                       .access_token = "other",
                                       .with_optimizer = true };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = scene_err(s);
    tinkc_trainer_free(open_trainer(s));
    scene_shows(s, SHOW_BODIES);
    tinkc_future *f = follow(s, "open", tinkc_trainer_open(scene_client(s), &lora, e));
    finish(s, f, 1000);
    tinkc_trainer *t = tinkc_future_trainer(f, 0, e);
    EXPECT(s, "create_model "
              "{\"session_id\":\"mock-session\",\"model_seq_id\":1,\"base_model\":\"mock/"
              "nano\",\"user_metadata\":{\"k\":\"v\"},\"lora_config\":{\"rank\":8,\"seed\":7,\"train_"
              "unembed\":true,\"train_mlp\":false,\"train_attn\":true},\"type\":\"create_model\"}; poll "
              "{\"request_id\":\"mock-session:train:1:0\",\"allow_metadata_only\":true}; open: done");
    complete(s, "step", tinkc_optim_step(t, &adam, e));
    EXPECT(s, "optim_step #1 "
              "{\"adam_params\":{\"learning_rate\":0.5,\"beta1\":0.25,\"beta2\":0.75,\"eps\":1e-08,"
              "\"weight_decay\":0.125,\"grad_clip_norm\":2.0},\"model_id\":\"mock-session:train:1\","
              "\"seq_id\":1,\"type\":\"optim_step\"}; poll "
              "{\"request_id\":\"mock-session:train:1:1\",\"allow_metadata_only\":true}; step: done");
    complete(s, "dimuon", tinkc_dimuon_step(t, &(tinkc_dimuon){ 0.5, 0.75, 3, { 0 } }, e));
    EXPECT(s, "optim_step #2 "
              "{\"optimizer_params\":{\"type\":\"dimuon\",\"learning_rate\":0.5,\"grad_clip_norm\":"
              "3.0,\"beta1\":0.75},\"model_id\":\"mock-session:train:1\",\"seq_id\":2,\"type\":"
              "\"optim_step\"}; dimuon: UNPROCESSABLE 422 \"HTTP 422: adam_params: JSON: is "
              "missing at byte 159\"");
    complete(s, "save", tinkc_trainer_save(t, "one", &save, e));
    EXPECT(s, "save_weights #2 "
              "{\"model_id\":\"mock-session:train:1\",\"path\":\"one\",\"seq_id\":2,\"ttl_seconds\":100,"
              "\"overwrite\":true,\"user_metadata\":{\"m\":\"n\"},\"type\":\"save_weights\"}; poll "
              "{\"request_id\":\"mock-session:train:1:2\",\"allow_metadata_only\":true}; save: done");
    complete(s, "save for sampler", tinkc_trainer_save_for_sampler(t, "two", NULL, e));
    EXPECT(s, "save_weights_for_sampler #3 "
              "{\"model_id\":\"mock-session:train:1\",\"path\":\"two\",\"seq_id\":3,\"type\":"
              "\"save_weights_for_sampler\"}; poll "
              "{\"request_id\":\"mock-session:train:1:3\",\"allow_metadata_only\":true}; save for "
              "sampler: done");
    complete(s, "external", tinkc_trainer_save_external(t, "three", &external, e));
    EXPECT(s, "save_weights_external #4 "
              "{\"model_id\":\"mock-session:train:1\",\"path\":\"three\",\"seq_id\":4,\"ttl_seconds\":9,"
              "\"age_encryption_recipients\":[\"age1xyz\"],\"type\":\"save_weights_external\"}; poll "
              "{\"request_id\":\"mock-session:train:1:4\",\"allow_metadata_only\":true}; external: done");
    complete(s, "load", tinkc_trainer_load(t, &load, e));
    EXPECT(s, "load_weights #5 "
              "{\"model_id\":\"mock-session:train:1\",\"seq_id\":5,\"path\":\"tinker://r/weights/"
              "one\",\"optimizer\":true,\"weights_access_token\":\"other\",\"type\":\"load_weights\"};"
              " poll {\"request_id\":\"mock-session:train:1:5\",\"allow_metadata_only\":true}; load: "
              "done");
    f = follow(s, "info", tinkc_trainer_info(t, e));
    finish(s, f, 1000);
    const tinkc_model_info *info = tinkc_future_model_info(f, 0, e);
    note(s, "%s, %s, %s, rank %d, lora %d", info->model_name, info->arch, info->tokenizer_id, (int)info->lora_rank,
         info->is_lora);
    EXPECT(s, "get_info {\"model_id\":\"mock-session:train:1\",\"type\":\"get_info\"}; info: done; "
              "mock/nano, mock, mock/nano, rank 8, lora 1");
    f = follow(s, "sampler", tinkc_trainer_open_sampler(t, NULL, e));
    finish(s, f, 1000);
    tinkc_sampler_free(tinkc_future_sampler(f, 0, e));
    EXPECT(s, "save_weights_for_sampler #6 "
              "{\"model_id\":\"mock-session:train:1\",\"sampling_session_seq_id\":0,\"seq_id\":6,"
              "\"type\":\"save_weights_for_sampler\"}; poll "
              "{\"request_id\":\"mock-session:train:1:6\",\"allow_metadata_only\":true}; sampler: done");
    complete(s, "unload", tinkc_trainer_unload(t, e));
    EXPECT(s, "unload_model {\"model_id\":\"mock-session:train:1\",\"type\":\"unload_model\"}; "
              "poll {\"request_id\":\"mock-session:train:1:unload\",\"allow_metadata_only\":true}; "
              "unload: done");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* ---- parts ---- */

static void show_parts(scene *s, tinkc_future *f)
{
    const tinkc_fwdbwd *r = tinkc_future_fwdbwd(f, 0, scene_err(s));
    assert_ok(scene_err(s));
    for (size_t i = 0; i < tinkc_future_part_count(f); i++) {
        const tinkc_fwdbwd *part = tinkc_future_part(f, i, 0, scene_err(s));
        note(s, "%zu from %zu", tinkc_fwdbwd_count(part), tinkc_fwdbwd_first(part));
    }
    for (size_t i = 0; i < tinkc_fwdbwd_count(r); i++) /* each example has its own outputs */
        assert_int_equal(tinkc_tensor_f32s(tinkc_fwdbwd_output(r, i, "logprobs")).len, 3 + i % 3);
}

/* How a batch of five is cut under each setting; the first part leaves last, and all at once unless the settings say otherwise. */
TEST(how_a_batch_is_cut)
{
    static const struct {
        const char *config, *seen;
    } rows[] = {
        { "{\"fwdbwd_max_chunk_len\":2}",
          "pass #2; pass #3; pass #1; poll; poll; poll; done; 2 from 0; 2 from 2; 1 from 4" },
        { "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":false}",
          "pass #1; pass #2; poll; pass #3; poll; poll; done; 2 from 0; 2 from 2; 1 from 4" },
        { "{\"fwdbwd_max_chunk_len\":2,\"proto_compress_fwdbwd\":true}",
          "pass #2 {Content-Encoding: zstd}; pass #3 {Content-Encoding: zstd}; pass #1 "
          "{Content-Encoding: zstd}; poll; poll; poll; done; 2 from 0; 2 from 2; 1 from 4" },
        { "{\"fwdbwd_max_chunk_bytes_count\":150}",
          "pass #2; pass #3; pass #1; poll; poll; poll; done; 2 from 0; 2 from 2; 1 from 4" },
        { "{\"fwdbwd_max_chunk_bytes_count\":1,\"fwdbwd_dispatch_bytes_semaphore_size\":150}",
          "pass #2; pass #3; pass #4; poll; poll; poll; pass #5; pass #1; poll; poll; done; 1 from "
          "0; 1 from 1; 1 from 2; 1 from 3; 1 from 4" },
        { "{\"fwdbwd_max_chunk_len\":5,\"fwdbwd_dispatch_bytes_semaphore_size\":1}", "pass #1; poll; done; 5 from 0" },
    };
    static const double values[] = { 0.25, 4 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer_always(s, CONFIG, 200, rows[i].config);
        scene_renew(s, NULL);
        tinkc_trainer *t = open_trainer(s);
        tinkc_batch *b = make_batch(s, 5);
        tinkc_future *f = follow(
            s, "",
            tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY,
                                   &(tinkc_loss_options){ .names = PAIRS("a", "b"), .values = values }, scene_err(s)));
        finish(s, f, 1000);
        show_parts(s, f);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_batch_free(b);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* A service that reads no protobuf reads nothing that is packed either. */
TEST(json_is_not_compressed)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, CONFIG, 200, "{\"proto_compress_fwdbwd\":true}");
    scene_renew(s, NULL);
    tinkc_trainer *t = open_trainer(s);
    tinkc_batch *b = make_batch(s, 1);
    answer(s, API "forward_backward", 415, "");
    complete(s, "", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    EXPECT(s, "pass #1 {Content-Encoding: zstd}; pass #1 {Content-Type: application/json}; "
              "UNPROCESSABLE 422 "
              "\"HTTP 422: not a forward_backward request\"");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* ---- losses of one's own ---- */

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

/* A forward pass, the function, a second pass with its gradients; what is behind goes in between, or waits where both passes belong
 * together. Where the function fails nothing more is sent, and what is behind continues. */
TEST(losses_of_ones_own)
{
    static const struct {
        char how[10];
        const char *apart, *together, *at_once; /* at_once: without a queue, all of it before the call returns */
    } rows[] = { { "well",
                   "pass #2; pass #1; poll; poll; optim_step #3; poll; step: done; 1 calls; pass #5; pass "
                   "#4; poll; poll; custom: done",
                   "pass #2; pass #1; poll; poll; 1 calls; pass #4; pass #3; poll; optim_step #5; poll; "
                   "poll; custom: done; step: done",
                   "pass #2; pass #1; poll; poll; pass #4; pass #3; poll; poll; custom: done" },
                 { "fails",
                   "pass #2; pass #1; poll; poll; optim_step #3; poll; step: done; 1 calls; custom: "
                   "CALLBACK \"the loss function failed\"",
                   "pass #2; pass #1; poll; poll; 1 calls; optim_step #3; poll; custom: CALLBACK \"the loss "
                   "function failed\"; step: done",
                   "custom: CALLBACK \"the loss function failed\"; pass #2; pass #1; poll; poll" },
                 { "says why",
                   "pass #2; pass #1; poll; poll; optim_step #3; poll; step: done; 1 calls; custom: "
                   "CALLBACK, cause ARGUMENT \"the loss function failed: my reason\"",
                   "pass #2; pass #1; poll; poll; 1 calls; optim_step #3; poll; custom: CALLBACK, cause "
                   "ARGUMENT \"the loss function failed: my reason\"; step: done",
                   "custom: CALLBACK, cause ARGUMENT \"the loss function failed: my reason\"; pass #2; pass "
                   "#1; poll; poll" },
                 { "unset",
                   "pass #2; pass #1; poll; poll; optim_step #3; poll; step: done; 1 calls; custom: "
                   "CALLBACK \"the loss function set no loss\"",
                   "pass #2; pass #1; poll; poll; 1 calls; optim_step #3; poll; custom: CALLBACK \"the loss "
                   "function set no loss\"; step: done",
                   "custom: CALLBACK \"the loss function set no loss\"; pass #2; pass #1; poll; poll" },
                 { "nan",
                   "pass #2; pass #1; poll; poll; optim_step #3; poll; step: done; 1 calls; custom: "
                   "CALLBACK \"the loss function left gradient 0 of example 0 non-finite\"",
                   "pass #2; pass #1; poll; poll; 1 calls; optim_step #3; poll; custom: CALLBACK \"the loss "
                   "function left gradient 0 of example 0 non-finite\"; step: done",
                   "custom: CALLBACK \"the loss function left gradient 0 of example 0 non-finite\"; pass "
                   "#2; pass #1; poll; poll" } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = scene_err(s);
    answer_always(s, CONFIG, 200, "{\"fwdbwd_max_chunk_len\":2}");
    for (size_t i = 0; i < LEN(rows); i++)
        for (int which = 0; which < 3; which++) {
            scene_renew(s, NULL);
            tinkc_trainer *t = open_trainer(s);
            tinkc_batch *b = make_batch(s, 3);
            tinkc_queue *q = tinkc_queue_new(scene_client(s), e);
            char *how = (char *)(uintptr_t)rows[i].how;
            tinkc_future *f = follow(
                s, "custom", tinkc_forward_backward_custom(t, b, which == 1, which < 2 ? q : NULL, half, how, e));
            if (which < 2) {
                tinkc_future *g = begin_step(s, t);
                note(s, "%zu calls", tinkc_queue_run(q, 0, e));
                finish(s, g, 1000);
                finish(s, f, 1000);
            }
            const tinkc_fwdbwd *r = f ? tinkc_future_fwdbwd(f, 0, e) : NULL;
            *e = (tinkc_error){ 0 };
            if (r)
                assert_float_equal(tinkc_metrics_get(tinkc_fwdbwd_metrics(r), "mine", 0), 2.5, 0);
            EXPECT_ROW(s, i, which == 0 ? rows[i].apart : which == 1 ? rows[i].together : rows[i].at_once);
            tinkc_queue_free(q);
            tinkc_batch_free(b);
            tinkc_trainer_free(t);
        }
    scene_end(s);
}

/* Cancelled, or refused by the service before or after the function ran. */
TEST(losses_that_end_early)
{
    static char well[] = "well";
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = scene_err(s);
    tinkc_trainer *t = open_trainer(s);
    tinkc_batch *b = make_batch(s, 2);
    tinkc_queue *q = tinkc_queue_new(scene_client(s), e);
    tinkc_future *f = follow(s, "custom", tinkc_forward_backward_custom(t, b, 0, q, half, well, e));
    tinkc_future_cancel(f);
    settle(s);
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    EXPECT(s, "pass #1; poll; custom: CANCELLED \"forward_backward_custom: cancelled\"; 0 calls");
    answer(s, PASS, 403, "{\"detail\":\"no\"}");
    follow(s, "custom", tinkc_forward_backward_custom(t, b, 0, q, half, well, e));
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    EXPECT(s, "pass #2; custom: FORBIDDEN 403 \"HTTP 403: no\"; 0 calls");
    f = follow(s, "custom", tinkc_forward_backward_custom(t, b, 0, q, half, well, e));
    answer(s, PASS, 403, "{\"detail\":\"later\"}");
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    finish(s, f, 1000);
    EXPECT(s, "pass #2; poll; 1 calls; pass #3; custom: FORBIDDEN 403 \"HTTP 403: later\"");
    tinkc_queue_free(q);
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* ---- large ---- */

/* A batch of more than a request may hold is cut; one that was cancelled while it was sent is sent again, as it was, before the next. */
TEST(a_large_batch_is_cut_into_requests)
{
    enum { LONG = 70000 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = scene_err(s);
    int32_t *prompt = calloc(LONG, sizeof *prompt);
    assert_non_null(prompt);
    tinkc_trainer *t = open_trainer(s);
    tinkc_batch *b = tinkc_batch_new(scene_client(s), e);
    for (int i = 0; i < 2; i++)
        tinkc_batch_add_sft(b, prompt, LONG, 1, e);
    complete(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, e));
    EXPECT(s, "pass #1; poll; pass: done");
    silence(s, PASS);
    tinkc_future *f = follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, e));
    tinkc_future_cancel(f);
    settle(s);
    finish(s, begin_step(s, t), 1000);
    EXPECT(s, "pass #2; pass: CANCELLED, may have run \"forward_backward: cancelled\"; pass #2; "
              "optim_step #3; poll; step: done");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    free(prompt);
    scene_end(s);
}

/* Answers up to max_response_bytes are read, larger ones are not. */
TEST(answers_up_to_max_response_bytes_are_read)
{
    enum { MOST = 3000000 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &(tinkc_client_options){ .max_response_bytes = MOST });
    static const char before[] = "{\"supported_models\":[{\"model_name\":\"", behind[] = "\"}]}";
    char *body = calloc(1, MOST + 2);
    assert_non_null(body);
    complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
    scene_forget(s);
    for (size_t over = 0; over < 2; over++) {
        memset(body, 'x', MOST + over);
        memcpy(body, before, strlen(before));
        memcpy(body + MOST + over - strlen(behind), behind, strlen(behind));
        answer(s, API "get_server_capabilities", 200, body);
        complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, over, over ? "models; BAD_RESPONSE 200 \"answer: larger than 3000000 bytes\"" : "models; done");
    }
    free(body);
    scene_end(s);
}
