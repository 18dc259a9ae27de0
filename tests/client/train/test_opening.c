/* test_opening.c - the ways to a trainer: a new model, one from a checkpoint, one that is live; what each asks for, in which order, and
 * what becomes of answers that make no sense. */
#include "support/client/client_scene.h"

#define PATH   "tinker://r/weights/c"
#define INFO   API "weights_info"
#define LORA_4 "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":4,\"train_mlp\":false}"
#define LORA_4_LION                                                                                                    \
    "{\"base_model\":\"mock/"                                                                                          \
    "nano\",\"is_lora\":true,\"lora_rank\":4,\"optimizer_config\":{\"type\":"                                          \
    "\"lion\"}}"
#define BY_LOAD "{\"create_model_via_load_weights\":true}"

/* A client that has its session already. */
static void begin_again(scene *s, const char *config, const tinkc_client_options *o)
{
    answer_always(s, CONFIG, 200, config);
    scene_renew(s, o);
    tinkc_sampler_free(open_sampler(s, NULL));
}

/* From a checkpoint: its description decides rank and layers of the new model, which then loads it; or the service does both. */
TEST(from_a_checkpoint)
{
    static const char *const metadata[] = { "k", "v", NULL };
    static const struct {
        tinkc_state_options o;
        const char *config, *info, *seen;
    } rows[] = {
        { { .path = PATH },
          "{}",
          LORA_4,
          "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; create_model "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"lora_config\":{\"rank\":4,\"train_unembed\":true,\"train_mlp\":false,\"train_"
          "attn\":true},\"type\":\"create_model\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; "
          "load_weights #1 "
          "{\"model_id\":\"mock-session:train:0\",\"seq_id\":1,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":false,\"type\":\"load_weights\"}; poll "
          "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; done" },
        { { .path = PATH,
            .base_model = "other",
            .access_token = "their",
            .with_optimizer = true,
            .user_metadata = metadata },
          "{}",
          "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":1,\"train_attn\":false}",
          "weights_info {X-API-Key: their} {\"tinker_path\":\"tinker://r/weights/c\"}; "
          "create_model "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"base_model\":\"other\",\"user_"
          "metadata\":{\"k\":\"v\"},\"lora_config\":{\"rank\":1,\"train_unembed\":true,\"train_"
          "mlp\":true,\"train_attn\":false},\"type\":\"create_model\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; "
          "load_weights #1 "
          "{\"model_id\":\"mock-session:train:0\",\"seq_id\":1,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":true,\"weights_access_token\":\"their\",\"type\":\"load_weights\"}; "
          "poll {\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; done" },
        { { .path = PATH, .optimizer = "dimuon" },
          "{}",
          LORA_4,
          "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; create_model "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"lora_config\":{\"rank\":4,\"train_unembed\":true,\"train_mlp\":false,\"train_"
          "attn\":true},\"optimizer_config\":{\"type\":\"dimuon\",\"version\":1},\"type\":\"create_"
          "model\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; "
          "load_weights #1 "
          "{\"model_id\":\"mock-session:train:0\",\"seq_id\":1,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":false,\"type\":\"load_weights\"}; poll "
          "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; done" },
        /* the checkpoint's optimizer is for who takes its state, too */
        { { .path = PATH },
          "{}",
          LORA_4_LION,
          "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; create_model "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"lora_config\":{\"rank\":4,\"train_unembed\":true,\"train_mlp\":true,\"train_"
          "attn\":true},\"type\":\"create_model\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; "
          "load_weights #1 "
          "{\"model_id\":\"mock-session:train:0\",\"seq_id\":1,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":false,\"type\":\"load_weights\"}; poll "
          "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; done" },
        { { .path = PATH, .with_optimizer = true },
          "{}",
          LORA_4_LION,
          "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; create_model "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"lora_config\":{\"rank\":4,\"train_unembed\":true,\"train_mlp\":true,\"train_"
          "attn\":true},\"optimizer_config\":{\"type\":\"lion\"},\"type\":\"create_model\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; "
          "load_weights #1 "
          "{\"model_id\":\"mock-session:train:0\",\"seq_id\":1,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":true,\"type\":\"load_weights\"}; poll "
          "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; done" },
        { { .path = PATH },
          "{}",
          "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":0}",
          "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; NOT_LORA \"path: "
          "tinker://r/weights/c is not a LoRA adapter or has no rank\"" },
        { { .path = PATH },
          "{}",
          "{\"base_model\":\"mock/nano\",\"is_lora\":false,\"lora_rank\":4}",
          "weights_info {\"tinker_path\":\"tinker://r/weights/c\"}; NOT_LORA \"path: "
          "tinker://r/weights/c is not a LoRA adapter or has no rank\"" },
        { { .path = PATH },
          BY_LOAD,
          NULL,
          "load_weights "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":false,\"type\":\"load_weights\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; done" },
        { { .path = PATH,
            .base_model = "other",
            .access_token = "their",
            .with_optimizer = true,
            .user_metadata = metadata },
          BY_LOAD,
          NULL,
          "load_weights "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"base_model\":\"other\",\"user_"
          "metadata\":{\"k\":\"v\"},\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":true,\"weights_access_token\":\"their\",\"type\":\"load_weights\"}; "
          "poll {\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; done" },
        { { .path = PATH, .optimizer = "lion" },
          BY_LOAD,
          NULL,
          "load_weights "
          "{\"session_id\":\"mock-session\",\"model_seq_id\":0,\"path\":\"tinker://r/weights/"
          "c\",\"optimizer\":false,\"optimizer_config\":{\"type\":\"lion\"},\"type\":\"load_"
          "weights\"}; poll "
          "{\"request_id\":\"mock-session:train:0:0\",\"allow_metadata_only\":true}; done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_shows(s, 0);
        begin_again(s, rows[i].config, NULL);
        if (rows[i].info)
            answer(s, INFO, 200, rows[i].info);
        scene_shows(s, SHOW_BODIES);
        complete(s, "", tinkc_trainer_open_from(scene_client(s), &rows[i].o, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* Each answer that makes no sense, on each way: new, from a checkpoint, live. */
TEST(each_answer_without_sense_fails_the_opening)
{
    static const struct {
        const char *path;
        int32_t status;
        const char *body;
        int way;
        const char *seen;
    } rows[] = {
        { INFO, 404, "{\"detail\":\"gone\"}", 1, "weights_info; open: NOT_FOUND 404 \"HTTP 404: gone\"" },
        { API "create_model", 422, "{\"detail\":\"no such model\"}", 0,
          "create_model; open: UNPROCESSABLE 422 \"HTTP 422: no such model\"" },
        { API "create_model", 422, "{\"detail\":\"no such model\"}", 1,
          "weights_info; create_model; open: UNPROCESSABLE 422 \"HTTP 422: no such model\"" },
        { API "create_model", 200, "{}", 0,
          "create_model; open: BAD_RESPONSE \"request_id: JSON: is missing at byte 2\"" },
        { API "load_weights", 403, "{\"detail\":\"not yours\"}", 1,
          "weights_info; create_model; poll; load_weights #1; open: FORBIDDEN 403 \"HTTP 403: not "
          "yours (model mock-session:train:0 was made)\"" },
        { API "load_weights", 200, "[]", 1,
          "weights_info; create_model; poll; load_weights #1; open: BAD_RESPONSE \"JSON: an object "
          "is needed at byte 0 (model mock-session:train:0 was made)\"" },
        { POLL, 200, "{\"error\":\"it failed\",\"category\":\"user\"}", 0,
          "create_model; poll; open: REQUEST_FAILED 200, by the caller, not retriable \"it "
          "failed\"" },
        { POLL, 200, "{\"error\":\"it failed\",\"category\":\"user\"}", 1,
          "weights_info; create_model; poll; open: REQUEST_FAILED 200, by the caller, not "
          "retriable \"it failed\"" },
        { POLL, 200, "{\"model_id\":\"\",\"type\":\"create_model\"}", 0,
          "create_model; poll; open: BAD_RESPONSE \"trainer_open: the answer names no model\"" },
        { API "get_info", 404, "{\"detail\":\"no model\"}", 2, "get_info; open: NOT_FOUND 404 \"HTTP 404: no model\"" },
        { API "get_info", 200, "not JSON", 2, "get_info; open: BAD_RESPONSE \"JSON: an object is needed at byte 0\"" },
        { API "get_info", 200, "{\"model_data\":{\"model_name\":\"m\"},\"model_id\":\"x\",\"next_seq_id\":9}", 2,
          "get_info; open: done; model/1; optim_step #9; step: NOT_FOUND 404 \"HTTP 404: no such "
          "model\"" },
        { API "get_info", 200, "{\"model_data\":{},\"model_id\":\"x\",\"model_name\":\"m\",\"next_seq_id\":0}", 2,
          "get_info; training_runs/model%2F1 {GET}; open: SEQUENCE \"the service does not say the "
          "model's next sequence number, and no checkpoint of it was saved: start again\"" },
        { API "get_info", 200, "{\"model_data\":{},\"model_id\":\"x\",\"next_seq_id\":-1}", 2,
          "get_info; training_runs/model%2F1 {GET}; open: SEQUENCE \"the service does not say the "
          "model's next sequence number, and no checkpoint of it was saved: start again\"" },
        { API "get_info", 200, "{\"model_data\":{},\"model_id\":\"x\"}", 2,
          "get_info; training_runs/model%2F1 {GET}; open: SEQUENCE \"the service does not say the "
          "model's next sequence number, and no checkpoint of it was saved: start again\"" },
    };
    const tinkc_client_options o = { .no_retries = true };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, INFO, 200, LORA_4);
    for (size_t i = 0; i < LEN(rows); i++) {
        begin_again(s, "{}", &o);
        tinkc_client *c = scene_client(s);
        answer(s, rows[i].path, rows[i].status, rows[i].body);
        tinkc_future *f =
            rows[i].way == 0   ? tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "mock/nano" }, scene_err(s))
            : rows[i].way == 1 ? tinkc_trainer_open_from(c, &(tinkc_state_options){ .path = PATH }, scene_err(s))
                               : tinkc_trainer_open_live(c, "model/1", scene_err(s));
        f = follow(s, "open", f);
        finish(s, f, 10000);
        tinkc_trainer *t = tinkc_future_trainer(f, 0, NULL);
        if (t) { /* its next number is what the service says */
            note(s, "%s", tinkc_trainer_id(t));
            finish(s, begin_step(s, t), 1000);
        }
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* Accepted, then failed: the future names the request that the service knows, and keeps what it said. */
TEST(a_failed_opening_names_its_request_and_keeps_the_answer)
{
    static const char failed[] = "{\"error\":\"it failed\",\"category\":\"user\"}";
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    begin_again(s, "{}", NULL);
    answer(s, POLL, 200, failed);
    tinkc_future *f =
        follow(s, "open",
               tinkc_trainer_open(scene_client(s), &(tinkc_lora_options){ .base_model = "mock/nano" }, scene_err(s)));
    finish(s, f, 10000);
    const tinkc_bytes said = tinkc_future_error_body(f);
    assert_non_null(strstr(tinkc_future_request_id(f), ":train:0:0"));
    assert_int_equal(said.len, sizeof failed - 1);
    assert_memory_equal(said.data, failed, said.len);
    scene_forget(s);
    scene_end(s);
}

/* A live model whose next number is unknown cannot be continued; the error says what it can be made from again. */
TEST(a_live_model_without_a_number)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    begin_again(s, "{}", NULL);
    answer(s, API "get_info", 200, "{\"model_data\":{},\"model_id\":\"x\"}");
    answer(s, API "training_runs/x", 200,
           "{\"training_run_id\":\"x\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"
           "\"last_request_time\":\"2026-01-03T00:00:00Z\",\"last_checkpoint\":{\"checkpoint_id\":"
           "\"weights/c\","
           "\"checkpoint_type\":\"training\",\"time\":\"2026-01-01T00:00:01Z\",\"tinker_path\":\"" PATH "\"}}");
    complete(s, "live", tinkc_trainer_open_live(scene_client(s), "x", scene_err(s)));
    EXPECT(s, "get_info; training_runs/x {GET}; live: SEQUENCE \"the service does not say the "
              "model's next sequence number: resume from tinker://r/weights/c\"");
    scene_end(s);
}

/* A model made by loading a checkpoint: a pause of the service's has its name; an answer without an id means the id that was asked for. */
TEST(made_by_loading)
{
    static const struct {
        const char *result, *id;
    } rows[] = {
        { "{\"path\":\"" PATH "\",\"type\":\"load_weights\"}", NULL },
        { "{\"path\":\"" PATH "\",\"model_id\":\"m-7\",\"type\":\"load_weights\"}", "m-7" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        begin_again(s, BY_LOAD, NULL);
        answer(s, POLL, 200, QUEUE("paused_capacity", ",\"queue_state_reason\":\"full\""));
        answer(s, POLL, 200, rows[i].result);
        tinkc_future *f = follow(
            s, "", tinkc_trainer_open_from(scene_client(s), &(tinkc_state_options){ .path = PATH }, scene_err(s)));
        finish(s, f, 4000);
        tinkc_trainer *t = tinkc_future_trainer(f, 0, scene_err(s));
        assert_ok(scene_err(s));
        if (rows[i].id)
            assert_string_equal(tinkc_trainer_id(t), rows[i].id);
        else
            assert_non_null(strstr(tinkc_trainer_id(t), ":train:0"));
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* Cancelled while it is at it: another one is not held up. */
TEST(a_cancelled_opening_does_not_hold_up_the_next)
{
    static const struct {
        const char *path, *seen;
    } rows[] = { { CONFIG, "client/config; open: CANCELLED \"trainer_open: cancelled\"; +60500 client/config again "
                           "(1); client/dynamic_config; create_session; create_model; poll; another: done" },
                 { API "create_model",
                   "client/config; client/dynamic_config; create_session; create_model; open: CANCELLED, "
                   "may have run \"trainer_open: cancelled\"; create_model; poll; another: done" },
                 { POLL, "client/config; client/dynamic_config; create_session; create_model; poll; open: "
                         "CANCELLED, may have run \"trainer_open: cancelled\"; create_model; poll; another: "
                         "done" } };
    const tinkc_lora_options nano = { .base_model = "mock/nano" };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, NULL);
        silence(s, rows[i].path);
        tinkc_future *f = follow(s, "open", tinkc_trainer_open(scene_client(s), &nano, scene_err(s)));
        tinkc_future_cancel(f);
        settle(s);
        complete(s, "another", tinkc_trainer_open(scene_client(s), &nano, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* tinkc_trainer_new waits for this future, so it ends at the same time with the same error. */
TEST(an_opening_ends_at_the_clients_limit_and_says_meanwhile_why_it_waits)
{
    const tinkc_lora_options nano = { .base_model = "mock/nano" };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &(tinkc_client_options){ .operation_timeout_ms = 800 });
    scene_shows(s, SHOW_STATUS);
    answer_always(s, POLL, 408, QUEUE("paused_capacity", ",\"queue_state_reason\":\"no room\""));
    tinkc_future *f = follow(s, "open", tinkc_trainer_open(scene_client(s), &nano, scene_err(s)));
    finish(s, f, 60000);
    EXPECT(s, "client/config; client/dynamic_config; create_session; create_model; poll; open is at stage 2, queue 3, 0 of 1, "
              "\"paused by the service: no room\"; +100 poll 1; +200 poll 2; +400 poll 3; +100 open is at stage 4, queue 3, 0 of 1, "
              "\"trainer_open: not complete within its time\"; open: DEADLINE, may have run \"trainer_open: not complete within its time\"");
    scene_end(s);
}
