/* test_service_memory.c - memory and disk that a service gives back: work space when it is idle,
 * ephemeral saves that nobody uses; and that status names all of it. */
#include <time.h>
#include <unistd.h>

#include "base/heap.h"
#include "service/worker/memory_budget.h"
#include "tinkc/sys/mock.h"
#include "support/service/service_world.h"

/* Waits, in small steps of real time, for what another thread is about to do. */
static void await(tinkc_engine *engine, const char *name, double value)
{
    wait_until(status_of(engine, name) == value);
    if (status_of(engine, name) != value)
        fail_msg("%s is %g, not %g", name, status_of(engine, name), value);
}

static const char *save(const tinkc_transport *t, const char *model, int seq, int number)
{
    const char *promise =
        service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                     "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":%d}", model, seq, number);
    const char *saved = service_wait(t, hold(json_field(promise, "request_id")));
    return hold(json_field(saved, "sampling_session_id"));
}

static const char *sample(const tinkc_transport *t, const char *sampler)
{
    const char *promise =
        service_json(t, 200, "POST", "/api/v1/asample",
                     "{\"sampling_session_id\":\"%s\",\"num_samples\":1,\"prompt\":{\"chunks\":[{\"type\":"
                     "\"encoded_text\",\"tokens\":[1,2,3]}]},\"sampling_params\":{\"max_tokens\":3,\"seed\":1}}",
                     sampler);
    return hold(json_field(promise, "request_id"));
}

TEST(work_space_goes_back)
{
    const char *const settings[] = { "idle_release_s", "0", NULL };
    tinkc_engine *engine = world_open_with((tinkc_engine_options){ .settings = settings });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    size_t before = tkc_pages_held();
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    double first = 0;
    for (int round = 0; round < 2; round++) {
        double loss = service_loss(t, model, 1 + 2 * round, text_a, N);
        service_wait(t, sample(t, save(t, model, 2 + 2 * round, round)));
        await(engine, "work_space", (double)before);
        assert_true(round == 0 || loss == first); /* what is made again computes the same */
        first = loss;
    }
    /* Everything has a name. */
    static const char *const names[] = { "adapters", "snapshots", "results",  "queued_requests", "unused_heap",
                                         "other",    "resident",  "database", "custom_losses" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(status_of(engine, names[i]) >= 0);
    assert_true(status_of(engine, "resident") > 1 << 20);
    tinkc_engine_free(engine);
}

static size_t folders_in(const char *path)
{
    char command[600];
    snprintf(command, sizeof command, "find '%s' -path '*ephemeral/*' -maxdepth 5 -type d | wc -l", path);
    FILE *pipe = popen(command, "r");
    size_t n = 0;
    assert_int_equal(fscanf(pipe, "%zu", &n), 1);
    pclose(pipe);
    return n;
}

/* A client that saves at every step and lives on: only what is used, and the newest, stays. */
TEST(ephemeral_saves_expire)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    const char *const settings[] = {
        "max_ephemeral", "3", "ephemeral_idle_s", "100000", "session_timeout_s", "1000000", "disk_reserve", "0", NULL
    };
    tinkc_engine *engine = world_open_with(
        (tinkc_engine_options){ .clock = tinkc_mock_clock(mock), .store = store, .settings = settings });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *samplers[8];
    for (int i = 0; i < 8; i++) {
        samplers[i] = save(t, model, i + 1, i);
        tinkc_mock_advance(mock, 10000);
        service_wait(t, sample(t, samplers[0])); /* the reference that everything is held against */
    }
    assert_int_equal(folders_in(store), 8); /* all of them may still be in use */
    tinkc_mock_advance(mock, 100000);
    service_wait(t, sample(t, samplers[0]));
    int64_t began = patience_now_ms(); /* looked after once a minute, which passes now and then */
    for (int tries = 0; folders_in(store) > 4 && patience_lasts(began); tries++)
        if (tries % 200 == 0)
            tinkc_mock_advance(mock, 61000);
    assert_true(folders_in(store) <= 4 && folders_in(store) >= 3);
    service_wait(t, sample(t, samplers[0]));
    service_wait(t, sample(t, samplers[7]));
    service_wait_failure(t, sample(t, samplers[2]), "user", "save under a name");
    tinkc_engine_free(engine);
    tinkc_mock_free(mock);
    tiny_model_remove(store);
}

TEST(a_budget_holds)
{
    tinkc_error err = { 0 };
    tke_budget budget;
    tke_budget_init(&budget, NULL, 1000);
    const tinkc_allocator *a = &budget.allocator;
    void *one = tkc_alloc(a, 600, &err), *two = tkc_alloc(a, 400, &err);
    assert_true(one && two && !err.code);
    assert_null(tkc_alloc(a, 1, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    err = (tinkc_error){ 0 };
    assert_null(tkc_resize(a, one, 600, 601, &err));
    err = (tinkc_error){ 0 };
    one = tkc_resize(a, one, 600, 100, &err);
    assert_int_equal(tke_budget_used(&budget), 500);
    assert_null(tkc_alloc(a, SIZE_MAX, &err)); /* no overflow */
    tkc_release(a, one, 100);
    tkc_release(a, two, 400);
    assert_int_equal(tke_budget_used(&budget), 0);
}

RUN_TESTS(setup, teardown)
