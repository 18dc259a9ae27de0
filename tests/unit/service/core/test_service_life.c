/* test_service_life.c - sessions that end, checkpoints that expire, memory and disks that run
 * short, what was used and by whom. */
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "service/core/service_state.h"
#include "service/handlers/downloads.h"
#include "service/handlers/long_requests.h"
#include "service/worker/results.h"
#include "tinkc/sys/mock.h"
#include "support/service/service_world.h"

static double runs_in_memory(tinkc_engine *engine)
{
    return status_of(engine, "runs_in_memory");
}

/* Waits, in small steps of real time, for what another thread is about to do. */
static void await(bool (*done)(tinkc_engine *), tinkc_engine *engine, const char *what)
{
    wait_until(done(engine));
    if (!done(engine))
        fail_msg("%s did not happen", what);
}

static bool nothing_in_memory(tinkc_engine *engine)
{
    return runs_in_memory(engine) == 0;
}

TEST(sessions_end_and_come_back)
{
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_engine *engine = world_open_with(
        (tinkc_engine_options){ .clock = tinkc_mock_clock(mock), .store = store, .settings = settings });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *sleeper = hold(service_model(t, session, 0, "tiny", 4, 7));
    train(t, sleeper, 1, 2);
    service_pass(t, sleeper, 5, text_a, N, false); /* a gradient sleeps along */
    service_wait(t, service_pass(t, sleeper, 6, text_a, N, true));
    assert_true(runs_in_memory(engine) == 1);
    tinkc_mock_advance(mock, 301000);
    await(nothing_in_memory, engine, "going to sleep");
    service_wait(t, service_step(t, sleeper, 7, 1e-2));
    train(t, sleeper, 8, 1);
    double woken = service_loss(t, sleeper, 10, text_a, N);
    const char *awake = hold(service_model(t, session, 1, "tiny", 4, 7));
    train(t, awake, 1, 2);
    service_pass(t, awake, 5, text_a, N, false);
    service_wait(t, service_step(t, awake, 6, 1e-2));
    train(t, awake, 7, 1);
    assert_true(service_loss(t, awake, 9, text_a, N) == woken);
    tinkc_engine_free(engine);
    tinkc_mock_free(mock);
    tiny_model_remove(store);
}

static double sessions_known(tinkc_engine *engine)
{
    return status_of(engine, "sessions");
}

/* Sessions are forgotten once a minute, and a thread that is late may have released one only now: a
 * minute passes now and then, but not so many that the others end, too. */
static void await_sessions(tinkc_engine *engine, tinkc_mock *mock, double n)
{
    int64_t began = patience_now_ms();
    for (int tries = 0; sessions_known(engine) != n && patience_lasts(began); tries++)
        if (tries % 1000 == 0)
            tinkc_mock_advance(mock, 61000);
    assert_true(sessions_known(engine) == n);
}

static const char *sampling_session(const tinkc_transport *t, const char *session)
{
    return hold(json_field(service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"tiny\"}",
                                        session),
                           "sampling_session_id"));
}

static const char *sample(const tinkc_transport *t, int32_t status, const char *sampler)
{
    return service_json(t, status, "POST", "/api/v1/asample",
                        "{\"sampling_session_id\":\"%s\",\"seq_id\":0,\"num_samples\":1,\"prompt\":{"
                        "\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2]}]},"
                        "\"sampling_params\":{\"max_tokens\":2,\"seed\":1}}",
                        sampler);
}

/* Sessions that never trained are forgotten when they are too many or silent for too long; one that
 * has a run, a result to be fetched, or a sign of life is not. */
TEST(silent_sessions_are_forgotten)
{
    enum { MANY = 60 };
    tinkc_error err = { 0 };
    char *store = tiny_folder();
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    const char *const settings[] = { "disk_reserve", "0", "session_keep_s", "5000", "max_idle_sessions", "20", NULL };
    const tinkc_engine_options options = {
        .clock = tinkc_mock_clock(mock), .store = store, .durability = TINKC_DURABILITY_JOURNAL, .settings = settings
    };
    tinkc_engine *engine = world_open_with(options);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *trained = hold(service_session(t)), *samplers[MANY];
    const char *model = hold(service_model(t, trained, 0, "tiny", 4, 7));
    train(t, model, 1, 1);
    const char *waiting = hold(service_session(t));
    const char *unfetched = hold(json_field(sample(t, 200, sampling_session(t, waiting)), "request_id"));
    for (int i = 0; i < MANY; i++) {
        samplers[i] = sampling_session(t, service_session(t));
        tinkc_mock_advance(mock, 10);
    }
    assert_true(sessions_known(engine) == MANY + 2);
    tinkc_mock_advance(mock, 370000);
    await_sessions(engine, mock, 20 + 2);
    const char *text = sample(t, 404, samplers[MANY - 21]); /* the newest stay */
    assert_non_null(strstr(text, "Unknown sampling session"));
    service_wait(t, json_field(sample(t, 200, samplers[MANY - 20]), "request_id"));
    service_json(t, 404, "POST", "/api/v1/session_heartbeat", "{\"session_id\":\"%.36s\"}", samplers[0]);
    service_json(t, 404, "POST", "/api/v1/create_sampling_session",
                 "{\"session_id\":\"%.36s\",\"sampling_session_seq_id\":1,\"base_model\":\"tiny\"}", samplers[0]);
    char path[100];
    snprintf(path, sizeof path, "/api/v1/samplers/%s", samplers[0]);
    service_json(t, 404, "GET", path, "%s", "");

    for (int i = 0; i < 16; i++) { /* one gives signs of life */
        tinkc_mock_advance(mock, 320000);
        service_json(t, 200, "POST", "/api/v1/session_heartbeat", "{\"session_id\":\"%.36s\"}", samplers[MANY - 1]);
    }
    tinkc_mock_advance(mock, 100000);
    await_sessions(engine, mock, 3);
    service_wait(t, unfetched);
    tinkc_mock_advance(mock, 310000); /* long enough after it was fetched */
    await_sessions(engine, mock, 2);
    train(t, model, 3, 1);
    tinkc_engine_free(engine);

    engine = world_open_with(options);
    t = tinkc_engine_transport(engine);
    assert_true(sessions_known(engine) == 2);
    assert_non_null(strstr(service_json(t, 200, "GET", "/api/v1/sessions", "%s", ""), trained));
    sample(t, 404, samplers[0]);
    service_wait(t, json_field(sample(t, 200, samplers[MANY - 1]), "request_id"));
    train(t, model, 5, 1);
    tinkc_engine_free(engine);
    tinkc_mock_free(mock);
    tiny_model_remove(store);
}

static const char *create_loss(const tinkc_transport *t, const char *session, int number)
{
    return hold(
        json_field(service_json(t, 200, "POST", "/api/v1/create_custom_loss",
                                "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"mine\",\"inputs\":[{"
                                "\"name\":\"logprobs\",\"rank\":1}],\"graph\":{\"format\":1,\"nodes\":[{\"op\":"
                                "\"placeholder\",\"name\":\"logprobs\",\"target\":\"logprobs\"},{\"op\":"
                                "\"call_method\",\"name\":\"l\",\"target\":\"sum\",\"args\":[{\"ref\":\"logprobs\"}]},"
                                "{\"op\":\"output\",\"name\":\"o\",\"target\":\"o\",\"args\":[{\"tuple\":[{\"ref\":"
                                "\"l\"},{\"dict\":{}}]}]}]}}",
                                session, number),
                   "request_id"));
}

/* A loss is a sign of life of its session. Its answer counts as one, expires as one, and can be had
 * again by asking for the same loss. */
TEST(losses_outlive_their_answers)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    const char *const settings[] = { "max_idle_sessions", "0", NULL };
    tinkc_engine *engine =
        world_open_with((tinkc_engine_options){ .clock = tinkc_mock_clock(mock), .settings = settings });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *quiet = hold(service_session(t)), *busy = hold(service_session(t));
    assert_true(status_of(engine, "custom_losses") == 0);
    create_loss(t, quiet, 0);
    const char *promise = create_loss(t, busy, 0);
    double memory = status_of(engine, "custom_losses");
    assert_true(memory > 0);
    double two = status_of(engine, "result_bytes");
    assert_true(two > 0);
    const char *id = hold(json_field(service_wait(t, promise), "loss_id"));
    for (int i = 1; i <= 2; i++) {
        tinkc_mock_advance(mock, 200000);
        create_loss(t, busy, i);
    }
    await_sessions(engine, mock, 1);
    assert_true(status_of(engine, "custom_losses") == 1.5 * memory);
    wait_until(status_of(engine, "result_bytes") <= 1.5 * two); /* what was fetched goes */
    assert_true(status_of(engine, "result_bytes") == 1.5 * two);
    assert_string_equal(create_loss(t, busy, 0), promise);
    assert_true(status_of(engine, "result_bytes") == 2 * two);
    assert_string_equal(json_field(service_wait(t, promise), "loss_id"), id);
    tinkc_engine_free(engine);
    tinkc_mock_free(mock);
}

static const char *post_save(const tinkc_transport *t, const char *endpoint, const char *model, int64_t seq,
                             const char *rest)
{
    const char *promise =
        service_json(t, 200, "POST", endpoint, "{\"model_id\":\"%s\",\"seq_id\":%lld,%s}", model, (long long)seq, rest);
    return hold(json_field(promise, "request_id"));
}

/* Clients write their base address with a slash at its end or without. */
TEST(links_have_single_slashes)
{
    static const char *const bases[] = { "http://h:1", "http://h:1/", "http://h:1//", "http://h:1/x/" };
    tinkc_engine *engine = world_open_with((tinkc_engine_options){ 0 });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, hold(service_session(t)), 0, "tiny", 4, 7));
    char path[300];
    service_wait(t, post_save(t, "/api/v1/save_weights", model, 1, "\"path\":\"w\""));
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/w/archive", model);
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        service_base_url = bases[i];
        answer a = service_call(t, "GET", path, NULL, NULL, 0);
        assert_int_equal(a.status, 302);
        const char *wanted = i < 3 ? "http://h:1/api/v1/archives/" : "http://h:1/x/api/v1/archives/";
        assert_ptr_equal(strstr(a.location, wanted), a.location);
        answer_free(&a);
    }
    service_base_url = "";
    tinkc_engine_free(engine);
}

/* Millions of tokens: it ends only when it is cancelled. */
static const char *long_sample(const tinkc_transport *t, const char *sampler, int seq, int32_t status)
{
    return hold(service_json(t, status, "POST", "/api/v1/asample",
                             "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"num_samples\":1024,"
                             "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2]}]},"
                             "\"sampling_params\":{\"max_tokens\":16000,\"stop\":[]}}",
                             sampler, seq));
}

TEST(too_many_samples)
{
    tinkc_error err = { 0 };
    const char *const settings[] = { "max_sample_queue", "1", NULL };
    char *roomy = tiny_model_make(&(tiny_model){ .family = "qwen3", .vocab = 64, .context = 16384 });
    tinkc_engine *engine = world_open_with((tinkc_engine_options){ .settings = settings });
    assert_true(tinkc_engine_add_model(engine, "roomy", roomy, &err));
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *made = service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                    "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                                    "\"base_model\":\"roomy\"}",
                                    session);
    const char *sampler = hold(json_field(made, "sampling_session_id"));
    const char *first = hold(json_field(long_sample(t, sampler, 0, 200), "request_id"));
    assert_non_null(strstr(long_sample(t, sampler, 1, 429), "slow down"));
    /* Heartbeats do not wait for the computation. */
    service_json(t, 200, "POST", "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    assert_true(status_of(engine, "samples_in_flight") > 0);
    service_json(t, 200, "POST", "/api/v1/cancel_future", "{\"request_id\":\"%s\"}", first);
    service_wait_failure(t, first, "user", "cancel");
    service_json(t, 200, "POST", "/api/v1/asample",
                 "{\"sampling_session_id\":\"%s\",\"seq_id\":1,\"prompt\":{\"chunks\":[{\"type\":"
                 "\"encoded_text\",\"tokens\":[1,2]}]},\"sampling_params\":{\"max_tokens\":1}}",
                 sampler);
    tinkc_engine_free(engine);
    tiny_model_remove(roomy);
}

TEST(too_little_memory)
{
    tinkc_error err = { 0 };
    tinkc_engine *probe = world_open_with((tinkc_engine_options){ 0 });
    service_model(tinkc_engine_transport(probe), service_session(tinkc_engine_transport(probe)), 0, "tiny", 4, 7);
    tinkc_text status = { 0 };
    double one = json_number(tinkc_engine_status(probe, &status, &err), "adapter_bytes");
    assert_non_null(strstr(tinkc_engine_status(probe, &status, &err), "\"durability\":\"none\""));
    tinkc_text_free(&status);
    tinkc_engine_free(probe);
    const char *const settings[] = { "long_poll_s", "0", "train_memory_bytes", "100000000", NULL };
    tinkc_engine *engine =
        world_open_with((tinkc_engine_options){ .memory_bytes = (int64_t)(one * 1.5), .settings = settings });
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    assert_non_null(strstr(service_json(t, 400, "POST", "/api/v1/create_model",
                                        "{\"session_id\":\"%s\",\"model_seq_id\":5,\"base_model\":"
                                        "\"tiny\",\"lora_config\":{\"rank\":64}}",
                                        session),
                           "this server has"));
    const char *busy = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *parked = hold(service_step(t, busy, 2, 0.0)); /* waits for 1: the model is not idle */
    const char *promise =
        service_json(t, 200, "POST", "/api/v1/create_model",
                     "{\"session_id\":\"%s\",\"model_seq_id\":1,\"base_model\":\"tiny\",\"lora_config\":"
                     "{\"rank\":4}}",
                     session);
    const char *waiting = hold(json_field(promise, "request_id"));
    service_wait_paused(t, waiting, "memory is taken by other models");
    service_step(t, busy, 1, 0.0);
    service_wait(t, parked); /* now it is idle, sleeps, and makes room */
    assert_non_null(strstr(service_wait(t, waiting), "model_id"));
    service_wait(t, service_step(t, busy, 3, 0.0)); /* and wakes in its turn */
    tinkc_engine_free(engine);
}

/* ---- threads ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
} door = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void wait_at_door(tkc_job *job)
{
    (void)job;
    pthread_mutex_lock(&door.lock);
    while (!door.open)
        pthread_cond_wait(&door.changed, &door.lock);
    pthread_mutex_unlock(&door.lock);
}

static size_t threads_named(const char *name)
{
    size_t n = 0;
    DIR *all = opendir("/proc/self/task");
    assert_non_null(all);
    for (struct dirent *e; (e = readdir(all));) {
        char path[400], line[40] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (f && fgets(line, sizeof line, f))
            n += strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == '\n';
        if (f)
            fclose(f);
    }
    closedir(all);
    return n;
}

static bool worker_waits(tinkc_engine *engine)
{
    return status_of(engine, "worker_waits_total") > 0;
}

/* One thread for files, or saves and deletes of a name would overtake each other; however much
 * there is to do, no pool has more threads than it should. */
TEST(pools_have_their_number_of_threads)
{
    enum { MANY = TKE_MAX_DOWNLOADS + 2 };
    static tkc_job jobs[4][MANY];
    tinkc_error err = { 0 };
    tinkc_engine *engine = world_open_with((tinkc_engine_options){ 0 });
    const tke_service *svc = tke_engine_service(engine);
    const struct {
        tkc_pool *pool;
        const char *name;
        size_t n;
    } rows[] = { { svc->files, "tinkc-files", 1 },
                 { svc->results->readers, "tinkc-results", 1 },
                 { svc->long_requests->threads, "tinkc-texts", 2 },
                 { svc->downloads->threads, "tinkc-archives", 64 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < MANY; k++) {
            jobs[i][k].run = wait_at_door;
            assert_true(tkc_pool_submit(rows[i].pool, &jobs[i][k], &err));
        }
        assert_int_equal(threads_named(rows[i].name), rows[i].n);
    }
    assert_int_equal(threads_named("tinkc-worker"), 1);
    await(worker_waits, engine, "a look for work in vain");
    pthread_mutex_lock(&door.lock);
    door.open = true;
    pthread_cond_broadcast(&door.changed);
    pthread_mutex_unlock(&door.lock);
    tinkc_engine_free(engine);
}

RUN_TESTS(setup, teardown)
