/* test_validation.c - what is refused, with which status and which words. */
#include "base/clock.h"
#include "support/check.h"
#include "support/service/service_call.h"
#include "support/engine/tiny_model.h"

typedef struct fixture {
    char *folder;
    tinkc_engine *engine;
    const tinkc_transport *t;
    const char *session, *model, *sampler;
} fixture;

static fixture f;

static tinkc_engine *open_engine(bool strict, const char *folder)
{
    tinkc_error err = { 0 };
    const tinkc_engine_options options = { .threads = 1, .strict = strict };
    tinkc_engine *engine = tinkc_engine_new(&options, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "org/tiny", folder, &err));
    return engine;
}

static int setup(void **state)
{
    (void)state;
    f.folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 32 });
    f.engine = open_engine(false, f.folder);
    f.t = tinkc_engine_transport(f.engine);
    f.session = hold(service_session(f.t));
    f.model = hold(service_model(f.t, f.session, 0, "org/tiny", 4, 1));
    const char *made = service_json(f.t, 200, "POST", "/api/v1/create_sampling_session",
                                    "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                                    "\"base_model\":\"org/tiny\"}",
                                    f.session);
    f.sampler = hold(json_field(made, "sampling_session_id"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(f.engine);
    tiny_model_remove(f.folder);
    return 0;
}

static void refused(const char *path, int32_t status, const char *detail, const char *body)
{
    const char *text = service_json(f.t, status, "POST", path, "%s", body);
    if (!strstr(text, detail))
        fail_msg("%s %s: says %s, not %s", path, body, text, detail);
    assert_non_null(strstr(text, "\"code\":\""));
}

/* ---- create_model ---- */

static void create(int32_t status, const char *detail, const char *more)
{
    char body[600];
    snprintf(body, sizeof body, "{\"session_id\":\"%s\",\"model_seq_id\":77,%s}", f.session, more);
    refused("/api/v1/create_model", status, detail, body);
}

TEST(create_model_rules)
{
    create(400, "base_model is required", "\"base_model\":\"\",\"lora_config\":{\"rank\":4}");
    create(400, "base_model is required", "\"lora_config\":{\"rank\":4}");
    create(400, "base_model is required", "\"base_model\":null,\"lora_config\":{\"rank\":4}");
    create(400, "lora_config.rank must be positive",
           "\"base_model\":\"org/tiny\",\"lora_config\":{\"rank\":0}");
    create(400, "lora_config.rank must be at most 256",
           "\"base_model\":\"org/tiny\",\"lora_config\":{\"rank\":257}");
    create(400, "At least one of train_unembed, train_mlp, or train_attn must be True",
           "\"base_model\":\"org/tiny\",\"lora_config\":{\"rank\":4,\"train_attn\":false,"
           "\"train_mlp\":false,\"train_unembed\":false}");
    create(400, "Unknown base model 'nope'. Available: org/tiny",
           "\"base_model\":\"nope\",\"lora_config\":{\"rank\":4}");
    refused("/api/v1/create_model", 404, "Unknown session 'none'",
            "{\"session_id\":\"none\",\"model_seq_id\":0,\"base_model\":\"org/tiny\","
            "\"lora_config\":{\"rank\":4}}");
    refused("/api/v1/create_model", 422, "detail", "{\"session_id\":");
}

TEST(create_model_replays)
{
    const char *again = service_json(
        f.t, 200, "POST", "/api/v1/create_model",
        "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"org/tiny\",\"lora_config\":"
        "{\"rank\":4,\"seed\":1}}",
        f.session);
    assert_string_equal(json_field(again, "model_id"), f.model);
    const char *other = service_json(
        f.t, 400, "POST", "/api/v1/create_model",
        "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"org/tiny\",\"lora_config\":"
        "{\"rank\":8,\"seed\":1}}",
        f.session);
    assert_non_null(strstr(other, "model_seq_id was reused with different parameters"));
}

/* ---- training requests fail in their futures, never at submission ---- */

static int64_t next_seq = 1;

static void pass_fails(const char *text, const char *input)
{
    const char *promise = service_json(f.t, 200, "POST", "/api/v1/forward_backward",
                                       "{\"model_id\":\"%s\",\"seq_id\":%lld,"
                                       "\"forward_backward_input\":%s}",
                                       f.model, (long long)next_seq++, input);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", text);
}

#define INPUT(tokens)                                                                              \
    "\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":" tokens "}]}"
#define TARGETS  "\"target_tokens\":{\"data\":[1,2],\"dtype\":\"int64\"}"
#define WEIGHTS  "\"weights\":{\"data\":[1,1],\"dtype\":\"float32\"}"
#define CE(data) "{\"loss_fn\":\"cross_entropy\",\"data\":[{" data "}]}"

TEST(a_pass_without_sense_is_refused)
{
    pass_fails("data is empty", "{\"loss_fn\":\"cross_entropy\",\"data\":[]}");
    pass_fails("nope", "{\"loss_fn\":\"nope\",\"data\":[{" INPUT(
                           "[1,2]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS "}}]}");
    pass_fails("weights", CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS "}"));
    pass_fails("target_tokens",
               CE(INPUT("[1,2,3]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS "}"));
    pass_fails("extra", CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS
                                          ",\"extra\":{\"data\":[1,1],\"dtype\":\"float32\"}}"));
    pass_fails("vocabulary", CE(INPUT("[1,64]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS "}"));
    pass_fails("chunk 0 is an image; this model accepts text only",
               "{\"loss_fn\":\"cross_entropy\",\"data\":[{\"model_input\":{\"chunks\":[{\"type\":"
               "\"image\",\"data\":\"aGk=\",\"format\":\"png\"}]},\"loss_fn_inputs\":{" TARGETS
               "," WEIGHTS "}}]}");
    pass_fails("clip",
               "{\"loss_fn\":\"cross_entropy\",\"loss_fn_config\":{\"clip\":1},\"data\":[{" INPUT(
                   "[1,2]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS "}}]}");
    pass_fails("weights", CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS
                                            ",\"weights\":{\"data\":[1,1],\"dtype\":\"int64\"}}"));
    pass_fails("model_input is empty",
               CE(INPUT("[]") ",\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[],\"dtype\":"
                              "\"int64\"},\"weights\":{\"data\":[],\"dtype\":\"float32\"}}"));
    pass_fails("weights",
               CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS
                                 ",\"weights\":{\"data\":[1,1e39],\"dtype\":\"float32\"}}"));
    pass_fails("the loss (weight times log-prob) at position 1 is not finite",
               CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS
                                 ",\"weights\":{\"data\":[1,3e38],\"dtype\":\"float32\"}}"));
    pass_fails("vocabulary",
               CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[1,64],"
                                 "\"dtype\":\"int64\"}," WEIGHTS "}"));
}

/* What looks wrong and is allowed: a target nobody weighs, and the cookbook's own mask. */
TEST(a_target_without_weight_and_a_mask_are_allowed)
{
    static const char *const fine[] = {
        CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[1,-100],\"dtype\":"
                          "\"int64\"},\"weights\":{\"data\":[1,0],\"dtype\":\"float32\"}}"),
        CE(INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS
                          ",\"mask\":{\"data\":[1,1],\"dtype\":\"float32\"}}"),
    };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        const char *promise = service_json(f.t, 200, "POST", "/api/v1/forward_backward",
                                           "{\"model_id\":\"%s\",\"seq_id\":%lld,"
                                           "\"forward_backward_input\":%s}",
                                           f.model, (long long)next_seq++, fine[i]);
        assert_non_null(strstr(service_wait(f.t, json_field(promise, "request_id")), "loss:sum"));
    }
}

TEST(a_sequence_beyond_the_context_is_refused)
{
    int tokens[40];
    for (int i = 0; i < 40; i++)
        tokens[i] = 1;
    service_wait_failure(f.t, service_pass(f.t, f.model, next_seq++, tokens, 40, false), "user",
                         "32");
}

TEST(a_step_out_of_range_is_refused)
{
    static const char *const bad[][2] = {
        { "\"learning_rate\":-1", "learning_rate" },
        { "\"beta1\":1.0", "beta1" },
        { "\"beta2\":-0.1", "beta2" },
        { "\"eps\":0", "eps" },
        { "\"weight_decay\":-1", "weight_decay" },
        { "\"grad_clip_norm\":-1", "grad_clip_norm" },
        { "\"beta1\":-0.5", "beta1" },
        { "\"beta2\":1.5", "beta2" },
        { "\"eps\":-1e-8", "eps" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *promise =
            service_json(f.t, 200, "POST", "/api/v1/optim_step",
                         "{\"model_id\":\"%s\",\"seq_id\":%lld,\"adam_params\":{%s}}", f.model,
                         (long long)next_seq++, bad[i][0]);
        service_wait_failure(f.t, json_field(promise, "request_id"), "user", bad[i][1]);
    }
}

/* What newer clients can ask for and whose formula nobody has published: refused by its name. */
TEST(losses_without_a_published_formula_are_refused)
{
    static const char *const losses[] = { "stable_reinforce", "custom" };
    for (size_t i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"loss_fn\":\"%s\",\"data\":[{" INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS
                                                                  "," WEIGHTS "}}]}",
                 losses[i]);
        pass_fails(losses[i], body);
    }
    const char *session = service_session(f.t);
    const char *said = service_json(f.t, 400, "POST", "/api/v1/create_model",
                                    "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":"
                                    "\"tiny\",\"lora_config\":{\"rank\":4},"
                                    "\"optimizer_config\":{\"type\":\"dimuon\",\"version\":1}}",
                                    session);
    assert_non_null(strstr(said, "dimuon"));
    const char *promise = service_json(
        f.t, 200, "POST", "/api/v1/optim_step",
        "{\"model_id\":\"%s\",\"seq_id\":%lld,\"optimizer_params\":{\"type\":\"dimuon\","
        "\"learning_rate\":0.001}}",
        f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", "optimizer_params");
}

TEST(names_of_checkpoints_are_checked)
{
    static const char *const names[] = { "../etc", "a/b", "", ".hidden", "a..b", "sp ace" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *promise = service_json(f.t, 200, "POST", "/api/v1/save_weights",
                                           "{\"model_id\":\"%s\",\"seq_id\":%lld,\"path\":\"%s\"}",
                                           f.model, (long long)next_seq++, names[i]);
        service_wait_failure(f.t, json_field(promise, "request_id"), "user",
                             "Invalid checkpoint name");
    }
    const char *promise = service_json(f.t, 200, "POST", "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":%lld,\"path\":\"a\","
                                       "\"ttl_seconds\":3599}",
                                       f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user",
                         "ttl_seconds must be at least 3600 (one hour)");
    promise = service_json(f.t, 200, "POST", "/api/v1/save_weights",
                           "{\"model_id\":\"%s\",\"seq_id\":%lld,\"path\":\"a\","
                           "\"ttl_seconds\":315619201}",
                           f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user",
                         "ttl_seconds must be at most 315619200 (ten years)");
    promise = service_json(f.t, 200, "POST", "/api/v1/save_weights_for_sampler",
                           "{\"model_id\":\"%s\",\"seq_id\":%lld}", f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", "exactly one of");
    promise = service_json(f.t, 200, "POST", "/api/v1/load_weights",
                           "{\"model_id\":\"%s\",\"seq_id\":%lld,\"path\":\"tinker://x/weights/y\","
                           "\"optimizer\":false}",
                           f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", "does not exist");
    promise = service_json(f.t, 200, "POST", "/api/v1/load_weights",
                           "{\"model_id\":\"%s\",\"seq_id\":%lld,\"path\":\"nonsense\","
                           "\"optimizer\":false}",
                           f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", "tinker://");
    promise = service_json(f.t, 200, "POST", "/api/v1/load_weights",
                           "{\"model_id\":\"%s\",\"seq_id\":%lld,"
                           "\"path\":\"tinker://x/sampler_weights/y\",\"optimizer\":true}",
                           f.model, (long long)next_seq++);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user",
                         "sampler checkpoints hold no optimizer state");
}

/* The name that clients know stands in the text, and no folder of ours. */
TEST(checkpoints_that_do_not_fit)
{
    const char *one = hold(service_model(f.t, f.session, 40, "org/tiny", 4, 1));
    const char *two = hold(service_model(f.t, f.session, 41, "org/tiny", 8, 1));
    const char *saved = service_json(f.t, 200, "POST", "/api/v1/save_weights",
                                     "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"x\"}", one);
    service_wait(f.t, json_field(saved, "request_id"));
    char text[300];
    snprintf(text, sizeof text, "\"error\":\"tinker://%s/weights/x: the checkpoint has rank 4",
             one);
    const char *promise = service_json(f.t, 200, "POST", "/api/v1/load_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"optimizer\":true,"
                                       "\"path\":\"tinker://%s/weights/x\"}",
                                       two, one);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", text);
}

TEST(content_type_and_encoding_are_checked)
{
    const char *const octets[] = { "Content-Type", "text/plain", NULL };
    const char *const pb[] = { "Content-Type", "application/x-protobuf", NULL };
    const char *const zstd[] = { "Content-Type", "application/x-protobuf", "Content-Encoding",
                                 "zstd", NULL };
    const char *const gzip[] = { "Content-Encoding", "gzip", NULL };
    const char *const br[] = { "Content-Encoding", "br", NULL };
    const struct {
        const char *const *headers;
        int32_t status;
    } cases[] = { { octets, 415 }, { pb, 422 }, { zstd, 422 }, { gzip, 422 }, { br, 415 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        answer a = service_call(f.t, "POST", "/api/v1/forward_backward", cases[i].headers,
                                "\xff\xff\xff", 3);
        assert_int_equal(a.status, cases[i].status);
        assert_non_null(strstr(a.body.data, "\"detail\":\""));
        answer_free(&a);
    }
    /* Names of types have no case, and their parameters do not count. */
    static const struct {
        const char *type, *path, *text;
        int32_t status;
    } types[] = {
        { "Application/JSON", "forward", "'nobody'", 404 },
        { "application/vnd.x+JSON ; q=1", "forward", "'nobody'", 404 },
        { "Application/X-Protobuf;q=1", "forward", "malformed protobuf", 422 },
        { "application/protobuf", "forward_backward", "malformed protobuf", 422 },
        { "application/x-protobuf", "optim_step", "not protobuf", 415 },
        { "application/protobuf", "get_info", "not protobuf", 415 },
        { "application/json;t=application/x-protobuf", "get_info", "'model_id' twice", 400 },
        { "", "get_info", "'model_id' twice", 400 },
    };
    static const char twice[] = "{\"model_id\":\"nobody\",\"model_id\":\"x\"}",
                      once[] = "{\"model_id\":\"nobody\",\"seq_id\":1,\"forward_input\":{"
                               "\"loss_fn\":\"cross_entropy\",\"data\":[]}}";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *const headers[] = { "Content-Type", types[i].type, NULL };
        const char *text = strcmp(types[i].path, "get_info") == 0 ? twice : once;
        char path[40];
        snprintf(path, sizeof path, "/api/v1/%s", types[i].path);
        answer a = service_call(f.t, "POST", path, headers, text, strlen(text));
        if (a.status != types[i].status || !strstr(a.body.data, types[i].text))
            fail_msg("%s %s: %d %s", types[i].path, types[i].type, (int)a.status, a.body.data);
        answer_free(&a);
    }
    refused("/api/v1/forward_backward", 404, "Unknown model 'x'",
            "{\"model_id\":\"x\",\"seq_id\":1,\"forward_backward_input\":{\"loss_fn\":"
            "\"cross_entropy\",\"data\":[]}}");
    char body[300];
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":-3,\"adam_params\":{}}", f.model);
    refused("/api/v1/optim_step", 400, "seq_id must be positive", body);
    refused("/api/v1/get_info", 404, "Unknown model", "{\"model_id\":\"x\"}");
    refused("/api/v1/session_heartbeat", 404, "Unknown session", "{\"session_id\":\"x\"}");
    refused("/api/v1/retrieve_future", 404, "ever made", "{\"request_id\":\"17\"}");
    refused("/api/v1/retrieve_future", 404, "ever made", "{\"request_id\":\"1-nobody:5\"}");
    refused("/api/v1/nothing", 404, "no such endpoint", "{}");
    refused("/api/v1/weights_info", 400, "Invalid path", "{\"tinker_path\":\"tinker://a/b\"}");
    refused("/api/v1/weights_info", 404, "No checkpoint",
            "{\"tinker_path\":\"tinker://a/weights/b\"}");
}

/* The number of a body that is refused, or that says nonsense, counts as used: the request behind
 * it has its turn. */
static void step_runs(const char *model, int seq)
{
    const char *step = service_wait(f.t, service_step(f.t, model, seq, 0.0));
    assert_non_null(strstr(step, "\"type\":\"optim_step\""));
    assert_non_null(strstr(step, "optim/step"));
}

static void fails_at_its_turn(const char *path, const char *text, const char *body)
{
    const char *promise = service_json(f.t, 200, "POST", path, "%s", body);
    service_wait_failure(f.t, json_field(promise, "request_id"), "user", text);
}

TEST(a_refused_request_leaves_no_hole)
{
    const char *m = hold(service_model(f.t, f.session, 30, "org/tiny", 4, 1));
    char body[500];
    snprintf(body, sizeof body,
             "{\"model_id\":\"%s\",\"seq_id\":1,\"adam_params\":{\"learning_rate\":\"abc\"}}", m);
    fails_at_its_turn("/api/v1/optim_step", "adam_params.learning_rate", body);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":2}", m);
    fails_at_its_turn("/api/v1/optim_step", "adam_params", body);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":7}", m);
    fails_at_its_turn("/api/v1/save_weights", "path", body);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":4,\"path\":[]}", m);
    fails_at_its_turn("/api/v1/save_weights_for_sampler", "path", body);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":5,\"optimizer\":\"x\"}", m);
    fails_at_its_turn("/api/v1/load_weights", "optimizer", body);
    snprintf(
        body, sizeof body,
        "{\"model_id\":\"%s\",\"seq_id\":6,\"forward_backward_input\":{\"loss_fn\":"
        "\"cross_entropy\",\"data\":[{" INPUT("[1]") ",\"loss_fn_inputs\":{\"target_tokens\":{"
                                                     "\"data\":[1],\"dtype\":\"complex64\"}}}]}}",
        m);
    fails_at_its_turn("/api/v1/forward_backward", "dtype", body);
    /* unparsable, but the number can be read */
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":7,\"adam_params\":{\"eps\":NaN}}",
             m);
    refused("/api/v1/optim_step", 422, "adam_params.eps", body);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":8,\"forward_", m);
    const char *const text[] = { "Content-Type", "text/plain", NULL };
    answer a = service_call(f.t, "POST", "/api/v1/forward_backward", text, body, strlen(body));
    assert_int_equal(a.status, 415);
    answer_free(&a);
    step_runs(m, 9);
    /* whose it is cannot be read: nothing counts as used */
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":{},\"adam_params\":{}}", m);
    refused("/api/v1/optim_step", 422, "seq_id", body);
    step_runs(m, 10);
}

/* protobuf: a chunk of a kind that nobody knows is inside; a body that is cut off is not. */
TEST(no_holes_in_protobuf)
{
    const char *m = hold(service_model(f.t, f.session, 31, "org/tiny", 4, 1));
    const char *const pb[] = { "Content-Type", "application/x-protobuf", NULL };
    char body[200];
    size_t n =
        (size_t)snprintf(body, sizeof body, "\n%c%s\x10\x01\x1a\x04\n\x02\"", (int)strlen(m), m);
    body[n++] = '\0';
    answer a = service_call(f.t, "POST", "/api/v1/forward_backward", pb, body, n);
    assert_int_equal(a.status, 200);
    service_wait_failure(f.t, json_field(a.body.data, "request_id"), "user", "chunk");
    answer_free(&a);
    n = (size_t)snprintf(body, sizeof body, "\n%c%s\x10\x02\x1a\x7f", (int)strlen(m), m);
    a = service_call(f.t, "POST", "/api/v1/forward_backward", pb, body, n);
    assert_int_equal(a.status, 422);
    answer_free(&a);
    step_runs(m, 3);
    /* behind a fault anything may seem to be a model or a number */
    n = (size_t)snprintf(body, sizeof body, "\n%c%s\x10\x04\n\x01x\x10\x30\x1a\x7f", (int)strlen(m),
                         m);
    a = service_call(f.t, "POST", "/api/v1/forward_backward", pb, body, n);
    assert_int_equal(a.status, 422);
    answer_free(&a);
    step_runs(m, 5);
}

TEST(unknown_fields_of_protobuf)
{
    static const struct {
        const char *bytes, *error;
    } rows[] = {
        { "\x48\x01", "the protobuf field 9 of the request" },
        { "\x1a\x02\x28\x01", "the protobuf field 5 of a datum" },
        { "\x1a\x04\n\x02\x20\x01", "the protobuf field 4 of a chunk" },
        { "\x1a\x06\n\x04\n\x02\x10\x01", "the protobuf field 2 of a text chunk" },
        { "\x1a\x04\x12\x02\x18\x01", "the protobuf field 3 of a loss input" },
        { "\x1a\x06\x12\x04\x12\x02\x28\x01", "the protobuf field 5 of a tensor" },
        { "\x1a\x03\x22\x01x", "loss_fn" }, /* where its tokens come from: known */
    };
    const char *m = hold(service_model(f.t, f.session, 77, "org/tiny", 4, 1));
    const char *const pb[] = { "Content-Type", "application/x-protobuf", NULL };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[200];
        size_t n = (size_t)snprintf(body, sizeof body, "\n%c%s\x10%c%s", (int)strlen(m), m,
                                    (int)i + 1, rows[i].bytes);
        answer a = service_call(f.t, "POST", "/api/v1/forward_backward", pb, body, n);
        assert_int_equal(a.status, 200);
        service_wait_failure(f.t, json_field(a.body.data, "request_id"), "user", rows[i].error);
        answer_free(&a);
    }
}

/* What is not made for large bodies takes none; what has nonsense in large numbers is quick. */
TEST(large_bodies_without_sense_are_refused_quickly)
{
    enum { NAMES = 100000 };
    const char *m = hold(service_model(f.t, f.session, 33, "org/tiny", 4, 1));
    char *body = malloc(4 << 20);
    size_t n = (size_t)snprintf(body, 100, "{\"tags\":[\"");
    memset(body + n, 'x', 2 << 20);
    n += 2 << 20;
    n += (size_t)snprintf(body + n, 100, "\"],\"sdk_version\":\"x\"}");
    answer a = service_call(f.t, "POST", "/api/v1/create_session", NULL, body, n);
    assert_int_equal(a.status, 413);
    answer_free(&a);
    n = (size_t)snprintf(
        body, 400,
        "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"loss_fn\":"
        "\"cross_entropy\",\"data\":[],\"loss_fn_config\":{\"a\":1",
        m);
    for (int i = 0; i < NAMES; i++)
        n += (size_t)snprintf(body + n, 40, ",\"name-%d\":1", i);
    n += (size_t)snprintf(body + n, 10, "}}}");
    int64_t before = tkc_monotonic_ns();
    a = service_call(f.t, "POST", "/api/v1/forward_backward", NULL, body, n);
    assert_int_equal(a.status, 200);
    service_wait_failure(f.t, json_field(a.body.data, "request_id"), "user", "data is empty");
    assert_true(tkc_monotonic_ns() - before < (int64_t)10 * 1000000000); /* was minutes */
    answer_free(&a);
    free(body);
}

/* A pass that is sent to /forward leaves no gradient, whatever its body calls itself. */
TEST(forward_is_forward)
{
    const char *m = hold(service_model(f.t, f.session, 32, "org/tiny", 4, 1));
    char body[500];
    snprintf(body, sizeof body,
             "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":" CE(
                 INPUT("[1,2]") ",\"loss_fn_inputs\":{" TARGETS "," WEIGHTS "}") "}",
             m);
    const char *promise = service_json(f.t, 200, "POST", "/api/v1/forward", "%s", body);
    service_wait(f.t, json_field(promise, "request_id"));
    const char *step = service_wait(f.t, service_step(f.t, m, 2, 0.0));
    assert_true(json_number(step, "optim/num_fwdbwd") == 0.0);
}

/* ---- sampling ---- */

static void sample_refused(const char *detail, const char *prompt, const char *params,
                           const char *more)
{
    char body[900];
    snprintf(body, sizeof body,
             "{\"sampling_session_id\":\"%s\",\"seq_id\":1000,\"prompt\":{\"chunks\":[{\"type\":"
             "\"encoded_text\",\"tokens\":%s}]},\"sampling_params\":{%s}%s}",
             f.sampler, prompt, params, more);
    refused("/api/v1/asample", 400, detail, body);
}

TEST(a_sample_out_of_range_is_refused)
{
    sample_refused("Prompt length plus max_tokens exceeds the model's context window: 3 + 30 > 32",
                   "[1,2,3]", "\"max_tokens\":30", "");
    sample_refused("num_samples must be from 1 to 1024", "[1]", "\"max_tokens\":1",
                   ",\"num_samples\":0");
    sample_refused("num_samples must be from 1 to 1024", "[1]", "\"max_tokens\":1",
                   ",\"num_samples\":1025");
    sample_refused("temperature", "[1]", "\"temperature\":-0.5", "");
    sample_refused("top_p", "[1]", "\"top_p\":0.0", "");
    sample_refused("top_p", "[1]", "\"top_p\":1.5", "");
    sample_refused("top_k", "[1]", "\"top_k\":-2", "");
    sample_refused("The prompt is empty", "[]", "\"max_tokens\":1", "");
    sample_refused("the vocabulary has 64 tokens", "[64]", "\"max_tokens\":1", "");
    sample_refused("topk_sample_logprobs must be from 0 to 128", "[1]", "\"max_tokens\":1",
                   ",\"topk_sample_logprobs\":129");
    sample_refused("prompt_logprobs_last_n must be", "[1,2]", "\"max_tokens\":1",
                   ",\"prompt_logprobs\":true,\"prompt_logprobs_last_n\":2");
    sample_refused("prompt_logprobs_last_n must be", "[1,2]", "\"max_tokens\":1",
                   ",\"prompt_logprobs\":true,\"prompt_logprobs_last_n\":0");
    sample_refused("topk_prompt_logprobs must be from 0 to 128", "[1]", "\"max_tokens\":1",
                   ",\"topk_prompt_logprobs\":129");
    sample_refused("topk_prompt_logprobs must be from 0 to 128", "[1]", "\"max_tokens\":1",
                   ",\"topk_prompt_logprobs\":-1");
    sample_refused("Prompt length plus max_tokens exceeds the model's context window: 3 + "
                   "9223372036854775807 > 32",
                   "[1,2,3]", "\"max_tokens\":9223372036854775807", "");
    sample_refused("finite", "[1]", "\"temperature\":1e39", "");
    sample_refused("stop", "[1]", "\"stop\":[\"a\",1]", "");
    sample_refused("stop token 0 is -1; the vocabulary has 64 tokens", "[1]", "\"stop\":[-1]", "");
    sample_refused("stop token 1 is 64; the vocabulary has 64 tokens", "[1]", "\"stop\":[63,64]",
                   "");
    sample_refused("32 bits", "[1099511627776]", "\"max_tokens\":1", "");
    refused("/api/v1/asample", 422, "JSON", "{\"sampling_session_id\":\"x\",");
    sample_refused("stop strings need tokenizer.json in the model folder", "[1]",
                   "\"stop\":[\"x\"]", "");
    refused("/api/v1/asample", 404, "Unknown sampling session",
            "{\"sampling_session_id\":\"x\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"type\":"
            "\"encoded_text\",\"tokens\":[1]}]},\"sampling_params\":{}}");
    char body[300];
    snprintf(body, sizeof body, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":9}", f.session);
    refused("/api/v1/create_sampling_session", 400, "One of base_model and model_path", body);
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":9,\"model_path\":"
             "\"tinker://a/weights/b\"}",
             f.session);
    refused("/api/v1/create_sampling_session", 404, "does not exist", body);
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":9,\"base_model\":\"nope\"}",
             f.session);
    refused("/api/v1/create_sampling_session", 400, "Unknown base model 'nope'", body);
    refused("/api/v1/stream_sample", 404, "Unknown sampling session",
            "{\"sampling_session_id\":\"x\",\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\","
            "\"tokens\":[1]}]},\"sampling_params\":{}}");
}

TEST(requests_of_sessions_are_checked)
{
    char path[200];
    snprintf(path, sizeof path, "/api/v1/sessions/%s/project", f.session);
    service_json(f.t, 400, "PUT", path, "%s", "{\"project_id\":\"\"}");
    service_json(f.t, 404, "PUT", "/api/v1/sessions/nobody/project", "%s",
                 "{\"project_id\":\"p\"}");
    service_json(f.t, 200, "PUT", path, "%s", "{\"project_id\":\"p\"}");
    snprintf(path, sizeof path, "/api/v1/sessions/%s/trace_export", f.session);
    answer a = service_call(f.t, "GET", path, NULL, NULL, 0);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"status\":\"failed\""));
    answer_free(&a);
}

TEST(an_unloaded_model_takes_no_requests)
{
    const char *model = hold(service_model(f.t, f.session, 3, "org/tiny", 4, 1));
    char body[300];
    snprintf(body, sizeof body, "{\"model_id\":\"%s\"}", model);
    service_wait(f.t, json_field(service_json(f.t, 200, "POST", "/api/v1/unload_model", "%s", body),
                                 "request_id"));
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":1,\"adam_params\":{}}", model);
    refused("/api/v1/optim_step", 404, "Model was unloaded", body);
}

TEST(a_repeated_sample_has_the_first_ones_answer)
{
    const char *body = "{\"sampling_session_id\":\"%s\",\"seq_id\":5,\"prompt\":{\"chunks\":[{"
                       "\"type\":\"encoded_text\",\"tokens\":[%d]}]},\"sampling_params\":{"
                       "\"max_tokens\":2}}";
    char text[400];
    snprintf(text, sizeof text, body, f.sampler, 1);
    const char *one =
        json_field(service_json(f.t, 200, "POST", "/api/v1/asample", "%s", text), "request_id");
    const char *two =
        json_field(service_json(f.t, 200, "POST", "/api/v1/asample", "%s", text), "request_id");
    assert_string_equal(one, two);
    snprintf(text, sizeof text, body, f.sampler, 2);
    refused("/api/v1/asample", 400, "seq_id 5 was already used for a different request", text);
    assert_non_null(strstr(service_wait(f.t, one), "\"sequences\":"));
}

TEST(strict_steps_refuse_a_step_without_gradients)
{
    tinkc_engine *strict = open_engine(true, f.folder);
    const tinkc_transport *t = tinkc_engine_transport(strict);
    const char *session = service_session(t);
    const char *text = service_json(
        t, 400, "POST", "/api/v1/create_model",
        "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"org/tiny\",\"lora_config\":"
        "{\"rank\":3}}",
        session);
    assert_non_null(strstr(text, "lora_config.rank must be a power of 2"));
    const char *model = service_model(t, session, 1, "org/tiny", 4, 1);
    service_wait(t, service_step(t, model, 1, 0.0));
    const char *promise = service_json(t, 200, "POST", "/api/v1/load_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":"
                                       "\"tinker://x/weights/y\",\"optimizer\":false}",
                                       model);
    service_wait_failure(t, json_field(promise, "request_id"), "user",
                         "LoadWeights is not permitted with seq_id 2");
    tinkc_engine_free(strict);
}

RUN_TESTS(setup, teardown)
