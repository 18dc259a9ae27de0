/* service_world.h - what tests of an engine's service begin with: a tiny model for the whole
 * program, an engine on a store, a few training steps, and what they come to when nothing happens.
 * Hand setup and teardown to cmocka_run_group_tests. */
#ifndef TESTS_SERVICE_WORLD_H
#define TESTS_SERVICE_WORLD_H

#include "support/check.h"
#include "support/service/service_call.h"
#include "support/engine/tiny_model.h"

static const int text_a[] = { 1, 5, 9, 13, 17, 21, 25, 29 };
enum { N = 8 };

static char *model_folder;

static inline int setup(void **state)
{
    (void)state;
    model_folder = tiny_model_make(&(tiny_model){ .family = "qwen2", .vocab = 64, .context = 64 });
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    tiny_model_remove(model_folder);
    return 0;
}

/* Without a model. */
static inline tinkc_engine *world_open_bare(const char *store, int32_t durability, const char *const *settings)
{
    tinkc_error err = { 0 };
    tinkc_engine *engine = tinkc_engine_new(
        &(tinkc_engine_options){ .threads = 1, .store = store, .durability = durability, .settings = settings }, &err);
    assert_ok(err);
    return engine;
}

/* With other options. */
static inline tinkc_engine *world_open_with(tinkc_engine_options options)
{
    tinkc_error err = { 0 };
    options.threads = 1;
    tinkc_engine *engine = tinkc_engine_new(&options, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(engine, "tiny", model_folder, &err));
    return engine;
}

static inline tinkc_engine *world_open(const char *store, int32_t durability, const char *const *settings)
{
    tinkc_error err = { 0 };
    tinkc_engine *engine = world_open_bare(store, durability, settings);
    assert_true(tinkc_engine_add_model(engine, "tiny", model_folder, &err));
    return engine;
}

/* A number of the service's status. */
static inline double status_of(tinkc_engine *engine, const char *name)
{
    tinkc_error err = { 0 };
    tinkc_text status = { 0 };
    double n = json_number(tinkc_engine_status(engine, &status, &err), name);
    tinkc_text_free(&status);
    return n;
}

/* Copies a store as it is on disk at this moment: a machine that lost power. A copy that a file was
 * moved away from under does not matter: all is made again. */
static inline char *copy_store(const char *store)
{
    char *copy = tiny_folder();
    char command[700];
    int bad = 1;
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s' && cp -r '%s'/. '%s'/ && rm -f '%s/lock'", copy, copy,
             store, copy, copy);
    for (int tries = 0; bad && tries < 20; tries++)
        bad = system(command);
    assert_int_equal(bad, 0);
    return copy;
}

static inline void train(const tinkc_transport *t, const char *model, int64_t from, int steps)
{
    for (int i = 0; i < steps; i++) {
        service_pass(t, model, from + 2 * i, text_a, N, false);
        service_wait(t, service_step(t, model, from + 2 * i + 1, 1e-2));
    }
}

/* The loss after so many steps on an engine without a store. */
static inline double undisturbed(int steps)
{
    const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    train(t, model, 1, steps);
    double loss = service_loss(t, model, 2 * steps + 1, text_a, N);
    tinkc_engine_free(engine);
    return loss;
}

/* A request of a model's sequence; `rest` follows its number. The request id. */
static inline const char *post(const tinkc_transport *t, const char *path, const char *model, int64_t seq,
                               const char *rest)
{
    const char *promise =
        service_json(t, 200, "POST", path, "{\"model_id\":\"%s\",\"seq_id\":%lld%s}", model, (long long)seq, rest);
    return hold(json_field(promise, "request_id"));
}

#endif
