/* test_engine_overfit.c - the whole way on the model that ships: learn eight sequences by heart,
 * say them back, save, start again, load, continue with the same bits. */
#include <math.h>
#include <unistd.h>

#include "support/check.h"
#include "support/service/service_call.h"
#include "support/engine/tiny_model.h"

enum { SEQUENCES = 8, LENGTH = 12, PROMPT = 3, STEPS = 60, RANK = 8 };

static int text[SEQUENCES][LENGTH];

static void make_text(void)
{
    uint64_t state = 11;
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < LENGTH; i++)
            text[s][i] = i == 0 ? 300 + s : (int)(tiny_random(&state) % 4000) + 20;
}

static tinkc_engine *open_engine(const char *store)
{
    tinkc_error err = { 0 };
    const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_engine *engine = tinkc_engine_new(&(tinkc_engine_options){ .store = store, .settings = settings }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "nano", "models/nano", &err));
    return engine;
}

/* One batch of all sequences in one request; the first targets (inside the prompt) have weight 0.
 */
static const char *batch(const tinkc_transport *t, const char *model, int64_t seq)
{
    tinkc_error err = { 0 };
    tkc_buf b;
    tkc_buf_init(&b, NULL, TKC_BUF_NO_MAX);
    tkc_buf_printf(&b, &err,
                   "{\"model_id\":\"%s\",\"seq_id\":%lld,\"forward_backward_input\":{\"loss_fn\":"
                   "\"cross_entropy\",\"data\":[",
                   model, (long long)seq);
    for (int s = 0; s < SEQUENCES; s++) {
        tkc_buf_printf(&b, &err,
                       "%s{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\","
                       "\"tokens\":[",
                       s ? "," : "");
        for (int i = 0; i + 1 < LENGTH; i++)
            tkc_buf_printf(&b, &err, "%s%d", i ? "," : "", text[s][i]);
        tkc_buf_cstr(&b, "]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"dtype\":\"int64\",\"data\":[", &err);
        for (int i = 0; i + 1 < LENGTH; i++)
            tkc_buf_printf(&b, &err, "%s%d", i ? "," : "", text[s][i + 1]);
        tkc_buf_cstr(&b, "]},\"weights\":{\"dtype\":\"float32\",\"data\":[", &err);
        for (int i = 0; i + 1 < LENGTH; i++)
            tkc_buf_printf(&b, &err, "%s%d", i ? "," : "", i + 1 >= PROMPT);
        tkc_buf_cstr(&b, "]}}}", &err);
    }
    tkc_buf_cstr(&b, "]}}", &err);
    tkc_buf_terminate(&b, &err);
    const char *id = json_field(service_json(t, 200, "POST", "/api/v1/forward_backward", "%s", b.data), "request_id");
    tkc_buf_free(&b);
    return id;
}

/* Mean loss per trained token of the batch, then a step. */
static double learn(const tinkc_transport *t, const char *model, int64_t seq)
{
    const char *pass = hold(batch(t, model, seq));
    const char *step = service_step(t, model, seq + 1, 1e-3);
    double loss = json_number(service_wait(t, pass), "loss:sum");
    service_wait(t, step);
    return loss / (SEQUENCES * (LENGTH - PROMPT));
}

static void says_back(const tinkc_transport *t, const char *sampler)
{
    for (int s = 0; s < SEQUENCES; s++) {
        char expected[200] = "\"tokens\":[";
        size_t n = strlen(expected);
        for (int i = PROMPT; i < LENGTH; i++)
            n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%d", i > PROMPT ? "," : "", text[s][i]);
        snprintf(expected + n, sizeof expected - n, "]");
        const char *promise =
            service_json(t, 200, "POST", "/api/v1/asample",
                         "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{\"type\":"
                         "\"encoded_text\",\"tokens\":[%d,%d,%d]}]},\"sampling_params\":{\"max_tokens\":%d,"
                         "\"temperature\":0.0,\"stop\":[]}}",
                         sampler, s, text[s][0], text[s][1], text[s][2], LENGTH - PROMPT);
        const char *result = service_wait(t, json_field(promise, "request_id"));
        if (!strstr(result, expected))
            fail_msg("sequence %d: %s is not in %s", s, expected, result);
    }
}

TEST(learns_saves_and_goes_on)
{
    make_text();
    char *store = tiny_folder();
    tinkc_engine *engine = open_engine(store);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "nano", RANK, 5));
    double loss = 0;
    int64_t seq = 1;
    for (int i = 0; i < STEPS; i++, seq += 2)
        loss = learn(t, model, seq);
    print_message("after %d steps: %.4f nats per token\n", STEPS, loss);
    assert_true(loss < 0.05);

    const char *promise = service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                                       "{\"model_id\":\"%s\",\"seq_id\":%lld,"
                                       "\"sampling_session_seq_id\":0}",
                                       model, (long long)seq++);
    says_back(t, json_field(service_wait(t, json_field(promise, "request_id")), "sampling_session_id"));

    promise = service_json(t, 200, "POST", "/api/v1/save_weights",
                           "{\"model_id\":\"%s\",\"seq_id\":%lld,\"path\":\"learnt\"}", model, (long long)seq++);
    const char *path = hold(json_field(service_wait(t, json_field(promise, "request_id")), "path"));
    double next[3];
    for (int i = 0; i < 3; i++, seq += 2)
        next[i] = learn(t, model, seq);
    tinkc_engine_free(engine);

    engine = open_engine(store);
    t = tinkc_engine_transport(engine);
    const char *other = hold(service_model(t, service_session(t), 0, "nano", RANK, 99));
    promise = service_json(t, 200, "POST", "/api/v1/load_weights",
                           "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"%s\",\"optimizer\":true}", other, path);
    service_wait(t, json_field(promise, "request_id"));
    for (int i = 0; i < 3; i++)
        assert_true(learn(t, other, 2 + 2 * i) == next[i]);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}
