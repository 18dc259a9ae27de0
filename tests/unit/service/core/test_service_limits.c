/* test_service_limits.c - settings that keep a server small: max_context, max_batch_tokens,
 * max_models. */
#include "support/service/service_world.h"

static tinkc_engine *open_with(const char *name, const char *value)
{
    const char *const settings[] = { name, value, "long_poll_s", "0", "disk_reserve", "0", NULL };
    return world_open(NULL, 0, settings);
}

static const char *sample(const tinkc_transport *t, int32_t status, const char *prompt, const char *params)
{
    static int seq;
    return service_json(t, status, "POST", "/api/v1/asample",
                        "{\"base_model\":\"tiny\",\"seq_id\":%d,\"num_samples\":3,"
                        "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[%s]}]},"
                        "\"sampling_params\":{\"seed\":5%s}}",
                        seq++, prompt, params);
}

static const char *sampled(const tinkc_transport *t, const char *prompt, const char *params)
{
    return service_wait(t, hold(json_field(sample(t, 200, prompt, params), "request_id")));
}

static double runs_in_memory(const tinkc_transport *t)
{
    answer a = service_call(t, "GET", "/api/v1/status", NULL, NULL, 0);
    double n = json_number(a.body.data, "runs_in_memory");
    answer_free(&a);
    return n;
}

/* ---- max_context ---- */

static double offered(const tinkc_transport *t)
{
    answer a = service_call(t, "GET", "/api/v1/get_server_capabilities", NULL, NULL, 0);
    double n = json_number(a.body.data, "max_context_length");
    answer_free(&a);
    return n;
}

TEST(a_shorter_context)
{
    const int ids[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }; /* the last is a target alone */
    tinkc_engine *engine = open_with("max_context", "8");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    assert_true(offered(t) == 8);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    service_wait(t, service_pass(t, model, 1, ids, 9, false));
    service_wait_failure(t, service_pass(t, model, 2, ids, 10, false), "user", "has 9 tokens, the context is 8");
    sampled(t, "1,2,3,4,5", ",\"max_tokens\":3");
    assert_non_null(strstr(sample(t, 400, "1,2,3,4,5", ",\"max_tokens\":4"), "5 + 4 > 8"));
    assert_non_null(strstr(sample(t, 400, "1,2,3,4,5,6,7,8,9", ""), "9 + 0 > 8"));
    tinkc_engine_free(engine);
}

TEST(never_longer_than_the_models)
{
    static const char *const values[] = { "0", "64", "1000000" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_engine *engine = open_with("max_context", values[i]);
        assert_true(offered(tinkc_engine_transport(engine)) == 64);
        tinkc_engine_free(engine);
    }
}

/* What was accepted before the limit was set is done again all the same. */
TEST(a_journal_is_not_cut)
{
    char *store = tiny_folder();
    const char *const free[] = { "disk_reserve", "0", NULL };
    const char *const tight[] = { "disk_reserve", "0", "max_context", "4", NULL };
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, free);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, 3);
    char *copy = copy_store(store);
    tinkc_engine_free(engine);
    tiny_model_remove(store);

    engine = world_open(copy, TINKC_DURABILITY_JOURNAL, tight);
    t = tinkc_engine_transport(engine);
    service_wait_failure(t, service_pass(t, model, 7, text_a, N, true), "user", "context is 4");
    tinkc_engine_free(engine);
    engine = world_open(copy, TINKC_DURABILITY_JOURNAL, free);
    t = tinkc_engine_transport(engine);
    assert_true(service_loss(t, model, 8, text_a, N) == undisturbed(3));
    tinkc_engine_free(engine);
    tiny_model_remove(copy);
}

/* ---- learning rates ---- */

/* The step leaves numbers, but ones that nothing can be computed with: it is said at the step, and what
 * fails later is not the server's fault. */
TEST(a_ruinous_learning_rate_is_named)
{
    tinkc_engine *engine = open_with("max_context", "0");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    service_pass(t, model, 1, text_a, N, false);
    const char *fine = service_wait(t, service_step(t, model, 2, 1e-2));
    assert_null(strstr(fine, "weights_too_large"));
    service_pass(t, model, 3, text_a, N, false);
    const char *ruined = service_wait(t, service_step(t, model, 4, 1e30));
    assert_true(json_number(ruined, "optim/weights_too_large") > 1e3);
    service_wait_failure(t, service_pass(t, model, 5, text_a, N, false), "user",
                         "an earlier learning_rate was too high");
    tinkc_engine_free(engine);
}

/* ---- max_batch_tokens ---- */

TEST(small_batches_change_no_bit)
{
    static const char *const values[] = { "0", "1", "3", "1000" };
    const char *first = NULL;
    double loss = undisturbed(3);
    for (size_t i = 0; i < 4; i++) {
        tinkc_engine *engine = open_with("max_batch_tokens", values[i]);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
        train(t, model, 1, 3);
        assert_true(service_loss(t, model, 7, text_a, N) == loss);
        const char *got = hold(sampled(t, "1,2,3,4,5,6,7", ",\"max_tokens\":9"));
        assert_non_null(strstr(got, "\"tokens\""));
        first = first ? first : got;
        assert_string_equal(got, first);
        tinkc_engine_free(engine);
    }
}

/* ---- max_models ---- */

static const char *create(const tinkc_transport *t, const char *session, int number)
{
    const char *promise = service_json(t, 200, "POST", "/api/v1/create_model",
                                       "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":"
                                       "\"tiny\",\"lora_config\":{\"rank\":4,\"seed\":7}}",
                                       session, number);
    return hold(json_field(promise, "request_id"));
}

TEST(idle_models_give_way)
{
    enum { MODELS = 4 };
    const char *models[MODELS];
    tinkc_engine *engine = open_with("max_models", "2");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    for (int i = 0; i < MODELS; i++) {
        models[i] = hold(service_model(t, session, i, "tiny", 4, 7));
        train(t, models[i], 1, 1);
        assert_true(runs_in_memory(t) == (i < 1 ? 1 : 2));
    }
    for (int step = 1; step < 3; step++)
        for (int i = 0; i < MODELS; i++) {
            train(t, models[i], 1 + 2 * step, 1);
            assert_true(runs_in_memory(t) <= 2);
        }
    double loss = undisturbed(3);
    for (int i = 0; i < MODELS; i++)
        assert_true(service_loss(t, models[i], 7, text_a, N) == loss);
    tinkc_engine_free(engine);
}

TEST(busy_models_do_not)
{
    tinkc_engine *engine = open_with("max_models", "1");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *busy = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *parked = hold(service_step(t, busy, 2, 0.0)); /* waits for 1: it is not idle */
    const char *waiting = create(t, session, 1);
    service_wait_paused(t, waiting, "max_models");
    assert_true(runs_in_memory(t) == 1);
    service_step(t, busy, 1, 0.0);
    service_wait(t, parked);
    assert_non_null(strstr(service_wait(t, waiting), "model_id"));
    assert_true(runs_in_memory(t) == 1);
    tinkc_engine_free(engine);
}

/* Who waits for a place keeps nobody from work that is there already. */
TEST(work_goes_on_beside_one_that_waits)
{
    enum { LONG = 60, PASSES = 1500 }; /* longer than until the waiting one is looked at again */
    int ids[LONG];
    for (int i = 0; i < LONG; i++)
        ids[i] = i;
    tinkc_engine *engine = open_with("max_models", "1");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *sleeper = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *busy = hold(service_model(t, session, 1, "tiny", 4, 7));
    for (int64_t i = 2; i <= PASSES; i++) /* all wait for the first */
        service_pass(t, busy, i, ids, LONG, false);
    const char *last = hold(service_step(t, busy, PASSES + 1, 0.0));
    const char *waiting = hold(service_step(t, sleeper, 1, 0.0));
    service_pass(t, busy, 1, ids, LONG, false);
    assert_true(json_number(service_wait(t, last), "optim/num_fwdbwd") == PASSES);
    assert_true(json_number(service_wait(t, waiting), "optim/step") == 1);
    tinkc_engine_free(engine);
}

/* Two that always have work share one place, and neither notices more than a pause. */
TEST(busy_models_take_turns)
{
    const char *models[2], *last[2];
    tinkc_engine *engine = open_with("max_models", "1");
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    for (int i = 0; i < 2; i++) {
        models[i] = hold(service_model(t, session, i, "tiny", 4, 7));
        train(t, models[i], 1, 1);
    }
    for (int i = 0; i < 2; i++) { /* 5 is missing: who has come so far is never idle */
        service_pass(t, models[i], 3, text_a, N, false);
        last[i] = hold(service_step(t, models[i], 4, 1e-2));
        service_step(t, models[i], 6, 1e-2);
    }
    for (int i = 0; i < 2; i++)
        assert_true(json_number(service_wait(t, last[i]), "optim/step") == 2);
    assert_non_null(strstr(service_wait(t, create(t, session, 2)), "model_id"));
    for (int i = 0; i < 2; i++)
        service_pass(t, models[i], 5, text_a, N, false);
    double loss = undisturbed(3);
    for (int i = 0; i < 2; i++)
        assert_true(service_loss(t, models[i], 7, text_a, N) == loss);
    assert_true(runs_in_memory(t) == 1);
    tinkc_engine_free(engine);
}

/* ---- wrong values ---- */

RUN_TESTS(setup, teardown)
