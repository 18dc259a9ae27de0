/* test_train.c - trainers on the mock: batches, passes, order, saves, custom losses. */
#include <math.h>

#include "support/client/api_support.h"
#include "wire/train_message.h"

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_batch *batch;
} fixture;

static const tinkc_lora_options lora = { .base_model = "mock/nano", .rank = 8 };

static void add_examples(fixture *x, size_t n, size_t len)
{
    int32_t ids[64];
    for (size_t k = 0; k < n; k++) {
        for (size_t i = 0; i < len; i++)
            ids[i] = (int32_t)(1 + (i * 7 + k) % 200);
        tinkc_batch_add_sft(x->batch, ids, len, 1, &x->err);
    }
}

static int make(void **state, const char *config)
{
    fixture *x = calloc(1, sizeof *x);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    if (config)
        tinkc_mock_always(x->mock, "POST", "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client = mock_client(x->mock, NULL, &x->err);
    x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    assert_ok(&x->err);
    *state = x;
    return 0;
}

static int setup(void **state)
{
    return make(state, NULL);
}
static int setup_chunks(void **state)
{
    return make(state, "{\"fwdbwd_max_chunk_len\":2}");
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

TEST_WITH(c38_trains_and_the_loss_falls, setup, teardown)
{
    fixture *x = *state;
    double losses[3];
    add_examples(x, 4, 10);
    for (int i = 0; i < 3; i++) {
        tinkc_future *pass = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
        tinkc_adam adam = TINKC_ADAM_INIT;
        tinkc_future *step = tinkc_optim_step(x->trainer, &adam, &x->err);
        const tinkc_fwdbwd *out = tinkc_future_fwdbwd(pass, PATIENCE_MS, &x->err);
        losses[i] = tinkc_fwdbwd_metric(out, "loss:sum", NAN);
        assert_int_equal(tinkc_fwdbwd_count(out), 4);
        assert_int_equal(tinkc_fwdbwd_output(out, 3, "logprobs")->count, 9);
        assert_non_null(tinkc_future_step(step, PATIENCE_MS, &x->err));
        assert_ok(&x->err);
        tinkc_future_free(pass);
        tinkc_future_free(step);
    }
    assert_true(losses[1] < losses[0] && losses[2] < losses[1]);
    const tinkc_request *r = nth_request(x->mock, "/api/v1/optim_step", 0);
    assert_string_equal((const char *)r->body.data,
                        "{\"adam_params\":{\"learning_rate\":0.0001,\"beta1\":0.9,\"beta2\":0.95,"
                        "\"eps\":1e-12,\"weight_decay\":0.0,\"grad_clip_norm\":0.0},\"model_id\":"
                        "\"mock-session-1:train:0\",\"seq_id\":2,\"type\":\"optim_step\"}");
}

TEST_WITH(saves_and_loads, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *save = tinkc_trainer_save(x->trainer, "first", NULL, &x->err);
    tinkc_future *sampler =
        tinkc_trainer_save_for_sampler(x->trainer, "s1", &(tinkc_save_options){ .ttl_s = 60 }, &x->err);
    const char *path = tinkc_future_path(save, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_string_equal(path, "tinker://mock-session-1:train:0/weights/first");
    assert_string_equal(tinkc_future_path(sampler, PATIENCE_MS, &x->err),
                        "tinker://mock-session-1:train:0/sampler_weights/s1");
    tinkc_future *load = tinkc_trainer_load(x->trainer, &(tinkc_state_options){ .path = path }, &x->err);
    assert_string_equal(tinkc_future_path(load, PATIENCE_MS, &x->err), path);
    const tinkc_request *asked = nth_request(x->mock, "/api/v1/load_weights", 0);
    assert_non_null(memmem(asked->body.data, asked->body.len, "\"optimizer\":false", 17));
    tinkc_trainer *again =
        tinkc_trainer_new_from(x->client, &(tinkc_state_options){ .path = path, .with_optimizer = true }, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_trainer_id(again), "mock-session-1:train:1");
    tinkc_future *info = tinkc_trainer_info(again, &x->err);
    assert_int_equal(tinkc_future_model_info(info, PATIENCE_MS, &x->err)->lora_rank, 8);
    tinkc_future *gone = tinkc_trainer_unload(again, &x->err);
    assert_true(tinkc_future_wait(gone, PATIENCE_MS, &x->err));
    assert_null(tinkc_trainer_info(again, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CLOSED);
    x->err = (tinkc_error){ 0 };
    tinkc_future *all[] = { save, sampler, load, info, gone };
    for (size_t i = 0; i < 5; i++)
        tinkc_future_free(all[i]);
    tinkc_trainer_free(again);
}

TEST_WITH(paths_of_other_servers, setup, teardown)
{
    fixture *x = *state;
    const tinkc_state_options short_path = { .path = "tinker://model_1/final" };
    tinkc_future *load = tinkc_trainer_load(x->trainer, &short_path, &x->err);
    assert_string_equal(tinkc_future_path(load, PATIENCE_MS, &x->err), short_path.path);
    tinkc_future *info = tinkc_checkpoint_get(x->client, short_path.path, &x->err);
    assert_null(tinkc_future_weights(info, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_NOT_FOUND); /* it was asked */
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_trainer_load(x->trainer, &(tinkc_state_options){ .path = "final" }, &x->err));
    assert_int_equal(x->err.code, TINKC_E_PATH);
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_trainer_open_from(x->client, &(tinkc_state_options){ .path = "tinker://" }, &x->err));
    assert_int_equal(x->err.code, TINKC_E_PATH);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(load);
    tinkc_future_free(info);
}

/* ---- custom losses ---- */

static bool plain_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    double *scale = user, sum = 0;
    for (size_t i = 0; i < tinkc_batch_count(tinkc_loss_batch(loss)); i++) {
        tinkc_f32s p = tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i));
        for (size_t k = 0; k < p.len; k++) {
            sum -= *scale * (double)p.data[k];
            tinkc_loss_grad(loss, i)[k] = (float)-*scale;
        }
    }
    tinkc_loss_set(loss, sum);
    return tinkc_loss_metric(loss, "mine", sum, err);
}

static void check_custom(fixture *x, tinkc_future *f)
{
    const tinkc_fwdbwd *out = tinkc_future_fwdbwd(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_true(tinkc_fwdbwd_metric(out, "mine", 0) > 0);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/forward_backward"), 2);
    tkc_arena arena = { 0 };
    tkc_forward_backward_request q;
    tkc_forward_backward_from_pb(nth_request(x->mock, "/api/v1/forward_backward", 1)->body, TINKC_E_BAD_RESPONSE,
                                 &arena, &q, &x->err);
    assert_ok(&x->err);
    assert_false(q.forward_only);
    const tkc_tensor *w = tkc_datum_input(&q.data.data[0], "weights");
    assert_true(((const float *)w->data)[0] == 2.0f); /* minus the gradient */
    tkc_arena_free(&arena);
    tinkc_future_free(f);
}

TEST_WITH(custom_loss_on_this_thread, setup, teardown)
{
    fixture *x = *state;
    double scale = 2;
    add_examples(x, 2, 8);
    check_custom(x, tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, plain_loss, &scale, &x->err));
}

/* Its passes are futures of their own: what they meet shows at the one the caller has. */
TEST_WITH(a_custom_loss_shows_how_its_passes_go, setup, teardown)
{
    fixture *x = *state;
    double scale = 2;
    int32_t attempts;
    tinkc_text text = { 0 };
    add_examples(x, 2, 8);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    for (int i = 0; i < 2; i++)
        tinkc_mock_once(x->mock, "POST", "/api/v1/retrieve_future", &(tinkc_mock_answer){ .status = 503 }, &x->err);
    tinkc_future *f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, plain_loss, &scale, &x->err);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), TINKC_E_SERVER);
    assert_int_equal(attempts, 1);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_ACCEPTED);
    assert_non_null(strstr(tinkc_future_status(f, &text, &x->err), "503"));
    tinkc_mock_advance(x->mock, 1000);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_mock_advance(x->mock, 1000);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), TINKC_OK);
    assert_non_null(strstr(tinkc_future_status(f, &text, &x->err), "loss function"));
    assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &x->err), 1);
    check_custom(x, f);
    tinkc_text_free(&text);
    tinkc_queue_free(queue);
}

static bool bad_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)loss, (void)user;
    tinkc_error_set(err, TINKC_E_ARGUMENT, "no such thing");
    return false;
}

static void assert_parts(fixture *x, tinkc_future *f)
{
    for (size_t i = 0; i < 3; i++) {
        const tinkc_fwdbwd *part = tinkc_future_part(f, i, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        assert_int_equal(tinkc_fwdbwd_first(part), 2 * i);
        assert_int_equal(tinkc_fwdbwd_count(part), i < 2 ? 2 : 1);
    }
    assert_int_equal(tinkc_future_part_count(f), 3);
    assert_null(tinkc_future_part(f, 3, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    assert_int_equal(tinkc_fwdbwd_count(tinkc_future_fwdbwd(f, PATIENCE_MS, &x->err)), 5);
    assert_ok(&x->err);
    tinkc_future_free(f);
}

TEST_WITH(custom_losses_have_parts_too, setup_chunks, teardown)
{
    fixture *x = *state;
    double scale = 2;
    add_examples(x, 5, 8);
    assert_parts(x, tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, plain_loss, &scale, &x->err));
    assert_parts(x, tinkc_forward_backward_custom(x->trainer, x->batch, TINKC_CUSTOM_TOGETHER, NULL, plain_loss, &scale,
                                                  &x->err));
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, plain_loss, &scale, &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    /* Before the loss function has run there is no second pass. */
    assert_int_equal(tinkc_future_part_count(f), 0);
    assert_null(tinkc_future_part(f, 0, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_TIMEOUT);
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_future_part(f, 0, 5, &x->err));
    assert_int_equal(x->err.code, TINKC_E_TIMEOUT);
    x->err = (tinkc_error){ 0 };
    assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &x->err), 1);
    assert_parts(x, f);
    f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, bad_loss, NULL, &x->err);
    assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &x->err), 1);
    assert_null(tinkc_future_part(f, 0, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CALLBACK);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

TEST_WITH(freed_queue_ends_a_custom_loss, setup, teardown)
{
    fixture *x = *state;
    double scale = 2;
    add_examples(x, 2, 8);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *f =
        tinkc_forward_backward_custom(x->trainer, x->batch, TINKC_CUSTOM_TOGETHER, queue, plain_loss, &scale, &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_queue_free(queue);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CANCELLED);
    x->err = (tinkc_error){ 0 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_future *step = tinkc_optim_step(x->trainer, &adam, &x->err);
    assert_true(tinkc_future_wait(step, PATIENCE_MS, &x->err));
    tinkc_future_free(step);
    tinkc_future_free(f);
}

/* ---- from checkpoints ---- */

static int setup_via_load(void **state)
{
    return make(state, "{\"create_model_via_load_weights\":true}");
}

/* Nothing is sent: an option that has no effect is an error that names it. */
TEST_WITH(options_of_another_call_are_refused, setup_via_load, teardown)
{
    fixture *x = *state;
    static const char *const pairs[] = { "a", "b", NULL };
    static const struct {
        tinkc_state_options how;
        const char *name;
    } rows[] = {
        { { .path = "tinker://r/weights/a", .base_model = "m" }, "base_model" },
        { { .path = "tinker://r/weights/a", .user_metadata = pairs }, "user_metadata" },
        { { .path = "tinker://r/weights/a", .optimizer = "dimuon" }, "optimizer" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_null(tinkc_trainer_load(x->trainer, &rows[i].how, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_int_equal(strncmp(err.message, rows[i].name, strlen(rows[i].name)), 0);
    }
    tinkc_sampler_options of[] = { { .base_model = "m" }, { .model_path = "tinker://r/s/a" } };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        assert_null(tinkc_trainer_open_sampler(x->trainer, &of[i], &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_non_null(strstr(err.message, i ? "model_path" : "base_model"));
    }
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/load_weights"), 0);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/save_weights_for_sampler"), 0);
}

/* ---- events ---- */

typedef struct parts_seen {
    size_t n, part[8];
} parts_seen;

static void take_part(const tinkc_event *event, void *user)
{
    parts_seen *seen = user;
    assert_int_equal(event->kind, TINKC_EVENT_PART);
    assert_true(event->request_id[0] != '\0');
    if (seen->n < 8)
        seen->part[seen->n++] = event->part;
}

/* An event loop learns of each part when it is there, of a loss of one's own too. */
TEST_WITH(parts_are_events, setup_chunks, teardown)
{
    fixture *x = *state;
    parts_seen seen = { 0 };
    add_examples(x, 5, 8);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_PART, take_part, &seen, &x->err));
    tinkc_future *f = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    while (seen.n < 3 && tinkc_queue_run(queue, PATIENCE_MS, &x->err))
        ;
    assert_ok(&x->err);
    assert_int_equal(seen.n, 3);
    bool there[3] = { false };
    for (size_t i = 0; i < 3; i++) {
        assert_true(seen.part[i] < 3);
        there[seen.part[i]] = true;
        const tinkc_fwdbwd *part = tinkc_future_part(f, seen.part[i], 0, &x->err);
        assert_ok(&x->err); /* without waiting */
        assert_int_equal(tinkc_fwdbwd_first(part), 2 * seen.part[i]);
    }
    assert_true(there[0] && there[1] && there[2]);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

static bool zero_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user, (void)err;
    tinkc_loss_set(loss, 0);
    return true;
}

TEST_WITH(parts_of_a_custom_loss_are_events_of_its_future, setup_chunks, teardown)
{
    fixture *x = *state;
    parts_seen seen = { 0 };
    add_examples(x, 3, 8);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, zero_loss, NULL, &x->err);
    assert_true(tinkc_future_on_event(f, queue, TINKC_EVENT_PART, take_part, &seen, &x->err));
    while (seen.n < 2 && tinkc_queue_run(queue, PATIENCE_MS, &x->err))
        ;
    assert_ok(&x->err);
    assert_int_equal(seen.n, 2); /* of the second pass alone */
    assert_non_null(tinkc_future_part(f, seen.part[1], 0, &x->err));
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

/* ---- services that know JSON alone ---- */

#define PASS    "/api/v1/forward_backward"
#define FORWARD "/api/v1/forward"

typedef struct json_service {
    int32_t refuses; /* status for protobuf */
    const char *says;
    size_t protobuf, json;
} json_service;

static bool refuse_protobuf(const tinkc_request *request, tinkc_mock_answer *answer, void *user)
{
    json_service *s = user;
    if (strcmp(request->path, PASS) != 0 && strcmp(request->path, FORWARD) != 0)
        return false;
    const char *type = request_header(request, "Content-Type");
    if (strcmp(type, "application/json") != 0) {
        s->protobuf++;
        *answer = (tinkc_mock_answer){ .status = s->refuses, .body = s->says };
        return true;
    }
    s->json++;
    assert_null(request_header(request, "Content-Encoding"));
    *answer = (tinkc_mock_answer){ .body = "{\"request_id\":\"json-1\"}" };
    return true;
}

/* ---- where tokens come from ---- */

static const tinkc_span two_spans[] = {
    { .sequence_id = "p", .offset = 2, .length = 3, .kind = TINKC_SPAN_PROMPT },
    { .sequence_id = "s/0", .length = 4, .kind = TINKC_SPAN_SAMPLED },
};

/* In protobuf as in JSON: both lists of each example that has them, in a custom loss' second pass too. */
TEST_WITH(spans_travel_with_their_example, setup, teardown)
{
    fixture *x = *state;
    static const char one[] = "\x0a\x07\x0a\x01p\x10\x02\x18\x03";
    double scale = 1;
    json_service s = { .refuses = 415, .says = "JSON, please" };
    add_examples(x, 2, 8);
    size_t before = tinkc_batch_bytes(x->batch);
    assert_true(tinkc_batch_set_provenance(x->batch, two_spans, 2, two_spans + 1, 0, &x->err) == false);
    assert_string_equal(x->err.message, "targets: the spans cover 0 of 7 tokens");
    x->err = (tinkc_error){ 0 };
    assert_int_equal(tinkc_batch_bytes(x->batch), before); /* nothing of it stays */
    assert_true(tinkc_batch_set_provenance(x->batch, two_spans, 2, two_spans, 2, &x->err));
    assert_int_equal(tinkc_batch_bytes(x->batch), before + 104); /* four spans with their names */
    for (int k = 0; k < 2; k++) {
        tinkc_future *f = k ? tinkc_forward_backward_custom(x->trainer, x->batch, 0, NULL, plain_loss, &scale, &x->err)
                            : tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        tinkc_future_free(f);
    }
    assert_int_equal(tinkc_mock_count(x->mock, PASS), 3);
    for (size_t i = 0; i < 3; i++) {
        tinkc_bytes b = nth_request(x->mock, PASS, i)->body;
        const void *first = memmem(b.data, b.len, one, sizeof one - 1);
        assert_non_null(first);
        const char *at = first;
        assert_true(at[-1] == 9 && at[-2] == 0x1a); /* field 3, then 4 */
        assert_memory_equal(at + 9, "\x1a\x09\x12\x07\x0a\x03s/0\x18\x04", 11);
        assert_memory_equal(at + 20, "\x22\x09\x0a\x07\x0a\x01p\x10\x02\x18\x03", 11);
        assert_memory_equal(at + 31, "\x22\x09\x12\x07\x0a\x03s/0\x18\x04", 11);
        assert_null(memmem(at + 42, b.len - (size_t)(at + 42 - (const char *)b.data), "s/0", 3));
    }
    tinkc_client *client = mock_client(x->mock, NULL, &x->err);
    tinkc_trainer *t = tinkc_trainer_new(client, &lora, &x->err);
    tinkc_mock_forget(x->mock);
    tinkc_mock_compute(x->mock, refuse_protobuf, &s, &x->err);
    tinkc_future *f = tinkc_forward_backward(t, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &x->err);
    x->err = (tinkc_error){ 0 };
    const char *json = (const char *)nth_request(x->mock, PASS, 1)->body.data;
    assert_non_null(strstr(json, "\"model_input_spans\":[{\"prompt_tokens\":{\"sequence_id\":\"p\",\"offset\":2,"
                                 "\"length\":3}},{\"sampled_tokens\":{\"sequence_id\":\"s/0\",\"offset\":0,"
                                 "\"length\":4}}],\"loss_fn_input_spans\":[{\"prompt_tokens\":"));
    tinkc_future_free(f);
    tinkc_mock_compute(x->mock, NULL, NULL, &x->err);
    tinkc_trainer_free(t);
    tinkc_client_free(client);
}

static void refuse_spans(fixture *x, const tinkc_span *input, size_t n, const tinkc_span *targets, size_t n_targets,
                         const char *message)
{
    assert_false(tinkc_batch_set_provenance(x->batch, input, n, targets, n_targets, &x->err));
    assert_string_equal(x->err.message, message);
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
}

TEST_WITH(spans_are_checked, setup, teardown)
{
    fixture *x = *state;
    static const int64_t five[] = { 1, 2, 3, 4, 5 };
    static const float weights[] = { 1, 1, 1, 1, 1 };
    refuse_spans(x, two_spans, 2, two_spans, 2, "batch: has no example to set provenance of");
    add_examples(x, 1, 8);
    const struct {
        tinkc_span span;
        const char *message;
    } bad[] = {
        { { .sequence_id = "s", .length = 7 }, "input: span 0 has no kind" },
        { { .sequence_id = "s", .length = 7, .kind = 3 }, "input: span 0 has no kind" },
        { { .length = 7, .kind = 1 }, "input: span 0: sequence_id must not be empty" },
        { { .sequence_id = "", .length = 7, .kind = 1 }, "input: span 0: sequence_id must not be empty" },
        { { .sequence_id = "s", .offset = -1, .length = 7, .kind = 1 }, "input: span 0: offset must not be negative" },
        { { .sequence_id = "s", .length = -7, .kind = 2 }, "input: span 0: length must not be negative" },
        { { .sequence_id = "s", .length = 6, .kind = 2 }, "input: the spans cover 6 of 7 tokens" },
        { { .sequence_id = "s", .length = 8, .kind = 2 }, "input: the spans cover 8 of 7 tokens" },
        { { .sequence_id = "s", .length = 7, .kind = 2, .reserved_int = 1 }, "input: span 0: reserved must be zero" },
        { { .sequence_id = "s", .length = 7, .kind = 2, .reserved = { 0, 1 } },
          "input: span 0: reserved must be zero" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse_spans(x, &bad[i].span, 1, two_spans, 2, bad[i].message);
    const tinkc_span huge[] = { { .sequence_id = "s", .length = INT64_MAX, .kind = 1 },
                                { .sequence_id = "s", .length = INT64_MAX, .kind = 1 } };
    refuse_spans(x, huge, 2, two_spans, 2, "input: the spans cover 9223372036854775807 of 7 tokens");
    refuse_spans(x, two_spans, 2, &bad[5].span, 1, "targets: span 0: length must not be negative");
    refuse_spans(x, two_spans, 2, NULL, 0, "targets: must not be NULL");
    refuse_spans(x, NULL, 0, two_spans, 2, "input: must not be NULL");
    refuse_spans(x, two_spans, 2, two_spans, 1, "targets: the spans cover 3 of 7 tokens");
    assert_true(tinkc_batch_set_provenance(x->batch, two_spans, 2, two_spans, 2, &x->err));
    refuse_spans(x, two_spans, 2, two_spans, 2, "provenance: is set already");

    /* Targets that come later are compared when the batch is used. */
    tinkc_batch_clear(x->batch);
    tinkc_batch_add_tokens(x->batch, (const int32_t[]){ 1, 2, 3, 4, 5, 6, 7 }, 7, &x->err);
    assert_true(tinkc_batch_set_provenance(x->batch, two_spans, 2, two_spans, 2, &x->err));
    assert_true(tinkc_batch_set_i64(x->batch, "target_tokens", five, 5, &x->err));
    assert_true(tinkc_batch_set_f32(x->batch, "weights", weights, 5, &x->err));
    assert_null(tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err));
    assert_string_equal(x->err.message, "targets: the spans cover 7 of 5 tokens");
    x->err = (tinkc_error){ 0 };

    /* An image needs a length to be covered. */
    tinkc_input *input = tinkc_input_new(x->client, &x->err);
    tinkc_input_add_image(input, "\x89PNG", 4, "png", -1, &x->err);
    tinkc_batch_clear(x->batch);
    tinkc_batch_add(x->batch, input, &x->err);
    refuse_spans(x, two_spans, 2, two_spans, 2,
                 "input: spans need the length of every chunk: give images expected_tokens");
    tinkc_input_free(input);
}

TEST_WITH(passes_fall_back_to_json, setup, teardown)
{
    fixture *x = *state;
    static const char result[] =
        "{\"loss_fn_output_type\":\"ArrayRecord\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":"
        "[-1,-1,-1,-1,-1,-1,-1],\"dtype\":\"float32\",\"shape\":[7]}}],\"metrics\":{\"loss:sum\":7}"
        "}";
    static const json_service services[] = {
        { .refuses = 415, .says = "Unsupported Media Type" },
        { .refuses = 500, .says = "Internal Server Error" },
        { .refuses = 422,
          .says = "{\"detail\":[{\"type\":\"model_attributes_type\",\"loc\":[\"body\"],"
                  "\"msg\":\"Input should be a valid dictionary\"}]}" },
        { .refuses = 422, .says = "{\"detail\":[{\"type\":\"json_invalid\",\"loc\":[\"body\",0]}]}" },
    };
    add_examples(x, 1, 8);
    for (size_t k = 0; k < sizeof services / sizeof *services; k++) {
        json_service s = services[k];
        tinkc_client *client = mock_client(x->mock, NULL, &x->err); /* a limit record of its own */
        tinkc_trainer *t = tinkc_trainer_new(client, &lora, &x->err);
        tinkc_mock_compute(x->mock, refuse_protobuf, &s, &x->err);
        for (size_t i = 0; i < 3; i++) {
            tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = result }, &x->err);
            tinkc_future *f = i == 1 ? tinkc_forward(t, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err)
                                     : tinkc_forward_backward(t, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
            const tinkc_fwdbwd *out = tinkc_future_fwdbwd(f, PATIENCE_MS, &x->err); /* at once */
            assert_ok(&x->err);
            assert_true(tinkc_fwdbwd_metric(out, "loss:sum", 0) == 7);
            tinkc_future_free(f);
        }
        assert_int_equal(s.protobuf, 1); /* and never again */
        assert_int_equal(s.json, 3);
        assert_int_equal(tinkc_mock_count(x->mock, FORWARD), k + 1);
        const tinkc_request *r = nth_request(x->mock, PASS, 3 * k + 1);
        assert_non_null(strstr((const char *)r->body.data, "\"forward_backward_input\":"));
        assert_non_null(strstr((const char *)r->body.data, "\"seq_id\":1"));
        tinkc_mock_compute(x->mock, NULL, NULL, &x->err);
        tinkc_trainer_free(t);
        tinkc_client_free(client);
    }
}

/* Any other 422 is about what the request says: it is final, and sent once. */
TEST_WITH(a_422_about_a_field_is_final, setup, teardown)
{
    fixture *x = *state;
    json_service s = { .refuses = 422,
                       .says = "{\"detail\":[{\"type\":\"missing\",\"loc\":[\"body\",\"loss_fn\"],"
                               "\"msg\":\"Field required\"}]}" };
    add_examples(x, 1, 8);
    tinkc_mock_compute(x->mock, refuse_protobuf, &s, &x->err);
    tinkc_future *f = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    assert_false(tinkc_future_wait(f, 5000, &x->err));
    assert_int_equal(x->err.http_status, 422);
    assert_non_null(strstr(x->err.message, "Field required"));
    assert_int_equal(s.protobuf, 1);
    assert_int_equal(s.json, 0);
    tinkc_future_free(f);
    tinkc_mock_compute(x->mock, NULL, NULL, &(tinkc_error){ 0 });
}
