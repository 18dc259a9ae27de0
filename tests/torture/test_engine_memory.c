/* test_engine_memory.c - the n-th allocation of an engine fails, for n = 1, 2, 3, ...: whatever was
 * asked for is answered with an error or a result, nothing hangs, nothing is lost. */
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "support/check.h"
#include "support/service/service_call.h"
#include "support/engine/tiny_model.h"

static char *folder;
static atomic_long countdown; /* 0 = never */
static atomic_long live, failed;

static bool fails(void)
{
    if (atomic_load(&countdown) > 0 && atomic_fetch_sub(&countdown, 1) == 1) {
        atomic_fetch_add(&failed, 1);
        return true;
    }
    return false;
}

static void *alloc(size_t size, void *user)
{
    (void)user;
    if (fails())
        return NULL;
    atomic_fetch_add(&live, 1);
    return malloc(size ? size : 1);
}

static void *resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    (void)old_size, (void)user;
    if (fails())
        return NULL;
    if (!ptr)
        atomic_fetch_add(&live, 1);
    return realloc(ptr, new_size ? new_size : 1);
}

static void release(void *ptr, size_t size, void *user)
{
    (void)size, (void)user;
    if (ptr)
        atomic_fetch_sub(&live, 1);
    free(ptr);
}

static const tinkc_allocator allocator = { alloc, resize, release, NULL };

/* Calls; copies what is behind "key": into out, "" if it is not there. */
static void ask(const tinkc_transport *t, const char *method, const char *path, const char *body, const char *key,
                char out[200])
{
    char mark[60];
    answer a = service_call(t, method, path, NULL, body, strlen(body));
    snprintf(mark, sizeof mark, "\"%s\":\"", key);
    const char *at = a.body.data ? strstr(a.body.data, mark) : NULL;
    out[0] = '\0';
    if (at)
        snprintf(out, 200, "%.*s", (int)strcspn(at + strlen(mark), "\""), at + strlen(mark));
    answer_free(&a);
}

/* Until there is an answer of any kind. */
static void settle(const tinkc_transport *t, const char *request_id)
{
    char body[300];
    if (!request_id[0])
        return;
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", request_id);
    int64_t give_up = tkc_monotonic_ns() + (int64_t)60 * 1000000000;
    while (tkc_monotonic_ns() < give_up) {
        answer a = service_call(t, "POST", "/api/v1/retrieve_future", NULL, body, strlen(body));
        int32_t status = a.status;
        answer_free(&a);
        if (status != 408 && status != 503)
            return;
        sched_yield();
    }
    fail_msg("%s never ends", request_id);
}

static void live_a_life(const tinkc_transport *t)
{
    char session[200], model[200], id[200], sampler[200], body[900];
    ask(t, "POST", "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"x\"}", "session_id", session);
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":"
             "{\"rank\":2}}",
             session);
    ask(t, "POST", "/api/v1/create_model", body, "request_id", id);
    settle(t, id);
    snprintf(model, sizeof model, "%.100s:train:0", session);
    snprintf(body, sizeof body,
             "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"loss_fn\":"
             "\"cross_entropy\",\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\","
             "\"tokens\":[1,2]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"dtype\":\"int64\","
             "\"data\":[2,3]},\"weights\":{\"dtype\":\"float32\",\"data\":[1,1]}}}]}}",
             model);
    ask(t, "POST", "/api/v1/forward_backward", body, "request_id", id);
    settle(t, id);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":2,\"adam_params\":{}}", model);
    ask(t, "POST", "/api/v1/optim_step", body, "request_id", id);
    /* Where the first one was refused the second waits for it: unload ends that. */
    snprintf(body, sizeof body, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"tiny\"}",
             session);
    ask(t, "POST", "/api/v1/create_sampling_session", body, "sampling_session_id", sampler);
    snprintf(body, sizeof body,
             "{\"sampling_session_id\":\"%s\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"type\":"
             "\"encoded_text\",\"tokens\":[1,2]}]},\"sampling_params\":{\"max_tokens\":2}}",
             sampler);
    ask(t, "POST", "/api/v1/asample", body, "request_id", id);
    settle(t, id);
    ask(t, "POST", "/api/v1/stream_sample", body, "event_type", id);
    snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"x\"}", model);
    ask(t, "POST", "/api/v1/save_weights", body, "request_id", id);
    ask(t, "GET", "/api/v1/training_runs", "", "training_run_id", id);
    ask(t, "GET", "/api/v1/checkpoints", "", "path", id);
}

static bool once(long n)
{
    tinkc_error err = { 0 };
    const char *const settings[] = { "long_poll_s", "0", NULL };
    atomic_store(&live, 0);
    atomic_store(&failed, 0);
    atomic_store(&countdown, n);
    tinkc_engine *engine =
        tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .allocator = &allocator, .settings = settings }, &err);
    if (engine) {
        tinkc_error ignored = { 0 };
        tinkc_engine_add_model(engine, "tiny", folder, &ignored);
        live_a_life(tinkc_engine_transport(engine));
        tinkc_engine_free(engine);
    } else {
        assert_int_equal(err.code, TINKC_E_MEMORY);
    }
    if (atomic_load(&live) != 0)
        fail_msg("allocation %ld failed: %ld blocks were not given back", n, atomic_load(&live));
    return atomic_load(&failed) == 0; /* it took fewer than n */
}

TEST(every_allocation_fails_once)
{
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 16, .context = 16 });
    const char *from = getenv("TINKC_TORTURE_FROM");
    long n = from ? strtol(from, NULL, 10) : 1;
    assert_true(once(0));
    while (!once(n))
        n++;
    print_message("%ld allocations, each failed once\n", n - 1);
    tiny_model_remove(folder);
}
