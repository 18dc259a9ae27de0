/* test_cancellation.c - every operation, ended in every way at every stage of its life.
 *
 * A stage is "the k-th request of this operation is out and silent" or "it has failed and the next
 * attempt is being waited for", for every k until the operation completes by itself; and the moment
 * right after the call. At each of them the future is cancelled, limited or freed, or the client is
 * closed. Then: one completion and no second, the next operation of the same kind works, and
 * nothing is left of the client's memory. And every operation while each of its allocations fails in turn. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/client/api_support.h"
#include "support/counting.h"

#define CKPT "tinker://run:train:0/weights/0001"

/* An allocator of which one allocation fails, whichever thread it is for. */
typedef struct shortage {
    counting memory; /* first: released as counting.h does it */
    atomic_long countdown;
    atomic_bool struck;
} shortage;

static bool is_short(shortage *s)
{
    if (atomic_fetch_sub(&s->countdown, 1) != 1)
        return false;
    atomic_store(&s->struck, true);
    return true;
}

static void *shortage_alloc(size_t size, void *user)
{
    return is_short(user) ? NULL : counting_alloc(size, user);
}

static void *shortage_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    return is_short(user) ? NULL : counting_resize(ptr, old_size, new_size, user);
}

typedef struct world {
    tinkc_error err;
    shortage memory;
    tinkc_allocator allocator;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
    tinkc_batch *batch;
    tinkc_input *input;
    tinkc_queue *queue;
    tinkc_runs *runs;
    int completions;
    /* the weather; the client's thread reads it */
    atomic_int seen, strikes_at;
    tinkc_mock_answer strike;
} world;

/* ---- what is begun ---- */

typedef tinkc_future *begin_fn(world *x);

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };
static const tinkc_lora_options lora = { .base_model = "mock/nano" };
static const tinkc_sampler_options nano = { .base_model = "mock/nano" };
static const tinkc_state_options loaded = { .path = CKPT };

static tinkc_future *b_health(world *x)
{
    return tinkc_health_check(x->client, &x->err);
}
static tinkc_future *b_capabilities(world *x)
{
    return tinkc_capabilities_get(x->client, &x->err);
}
static tinkc_future *b_runs(world *x)
{
    tinkc_runs_free(x->runs);
    x->runs = tinkc_runs_list(x->client, NULL, &x->err);
    return tinkc_runs_fetch(x->runs, &x->err);
}
static tinkc_future *b_run_get(world *x)
{
    return tinkc_run_get(x->client, "run:train:0", TINKC_OWNED, &x->err);
}
static tinkc_future *b_checkpoint_get(world *x)
{
    return tinkc_checkpoint_get(x->client, CKPT, &x->err);
}
static tinkc_future *b_publish(world *x)
{
    return tinkc_checkpoint_publish(x->client, CKPT, &x->err);
}
static tinkc_future *b_set_ttl(world *x)
{
    return tinkc_checkpoint_set_ttl(x->client, CKPT, 60, &x->err);
}
static tinkc_future *b_archive(world *x)
{
    return tinkc_checkpoint_archive(x->client, CKPT, &x->err);
}
static tinkc_future *b_session_get(world *x)
{
    return tinkc_session_get(x->client, "s-1", TINKC_OWNED, &x->err);
}
static tinkc_future *b_trace(world *x)
{
    return tinkc_session_trace(x->client, "s-1", &x->err);
}
static tinkc_future *b_audit(world *x)
{
    return tinkc_audit_get(x->client, NULL, "2026-01-01", &x->err);
}
static tinkc_future *b_usage(world *x)
{
    return tinkc_usage_get(x->client, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", &x->err);
}
static tinkc_future *b_copy(world *x)
{
    return tinkc_checkpoint_copy(x->client, CKPT, &(tinkc_copy_options){ .project_id = "p" }, &x->err);
}
static tinkc_future *b_links(world *x)
{
    return tinkc_checkpoint_links(x->client, "tinker://r/external_weights/a", &x->err);
}
static tinkc_future *b_storage(world *x)
{
    return tinkc_storage_get(x->client, NULL, &x->err);
}
static tinkc_future *b_search(world *x)
{
    tinkc_search *list = tinkc_search_list(x->client, NULL, &x->err);
    tinkc_future *f = tinkc_search_fetch(list, &x->err);
    tinkc_search_free(list);
    return f;
}
static tinkc_future *b_finish(world *x)
{
    return tinkc_session_finish(x->client, "s-1", TINKC_FINISH_SUCCESS, NULL, &x->err);
}
static tinkc_future *b_call(world *x)
{
    return tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/api/v1/healthz" }, &x->err);
}
static tinkc_future *b_trainer_open(world *x)
{
    return tinkc_trainer_open(x->client, &lora, &x->err);
}
static tinkc_future *b_trainer_open_from(world *x)
{
    return tinkc_trainer_open_from(x->client, &loaded, &x->err);
}
static tinkc_future *b_trainer_open_theirs(world *x)
{
    return tinkc_trainer_open_from(x->client, &(tinkc_state_options){ .path = CKPT, .access_token = "tml-theirs" },
                                   &x->err);
}
static tinkc_future *b_trainer_open_live(world *x)
{
    return tinkc_trainer_open_live(x->client, "run:train:0", &x->err);
}
static tinkc_future *b_sampler_open(world *x)
{
    return tinkc_sampler_open(x->client, &nano, &x->err);
}
static tinkc_future *b_info(world *x)
{
    return tinkc_trainer_info(x->trainer, &x->err);
}
static tinkc_future *b_unload(world *x)
{
    return tinkc_trainer_unload(x->trainer, &x->err);
}
static tinkc_future *b_pass(world *x)
{
    return tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
}
static tinkc_future *b_forward(world *x)
{
    return tinkc_forward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
}
static tinkc_future *b_step(world *x)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return tinkc_optim_step(x->trainer, &adam, &x->err);
}
static tinkc_future *b_save(world *x)
{
    return tinkc_trainer_save(x->trainer, "a", NULL, &x->err);
}
static tinkc_future *b_save_for_sampler(world *x)
{
    return tinkc_trainer_save_for_sampler(x->trainer, "a", NULL, &x->err);
}
static tinkc_future *b_save_external(world *x)
{
    return tinkc_trainer_save_external(x->trainer, "a", NULL, &x->err);
}
static tinkc_future *b_load(world *x)
{
    return tinkc_trainer_load(x->trainer, &loaded, &x->err);
}
static tinkc_future *b_own_sampler(world *x)
{
    return tinkc_trainer_open_sampler(x->trainer, NULL, &x->err);
}
static bool own_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user, (void)err;
    tinkc_loss_grad(loss, 0)[0] = 1;
    tinkc_loss_set(loss, 1);
    return true;
}
static tinkc_future *b_custom(world *x)
{
    return tinkc_forward_backward_custom(x->trainer, x->batch, 0, x->queue, own_loss, NULL, &x->err);
}
static tinkc_future *b_custom_together(world *x)
{
    return tinkc_forward_backward_custom(x->trainer, x->batch, TINKC_CUSTOM_TOGETHER, x->queue, own_loss, NULL,
                                         &x->err);
}
static tinkc_future *b_sample(world *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    return tinkc_sample(x->sampler, ids, 6, 1, &o, &x->err);
}
static tinkc_future *b_sample_input(world *x)
{
    static const char *const stop[] = { "a", "b", NULL };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.stop = stop;
    o.prompt_logprobs = true;
    return tinkc_sample_input(x->sampler, x->input, 1, &o, &x->err);
}
static tinkc_future *b_logprobs(world *x)
{
    return tinkc_logprobs(x->sampler, ids, 6, &x->err);
}
static tinkc_future *b_sampler_info(world *x)
{
    return tinkc_sampler_info(x->sampler, &x->err);
}

enum { NEEDS_NOTHING, NEEDS_TRAINER, NEEDS_SAMPLER };

static const struct kind {
    const char *name;
    begin_fn *begin;
    int needs;
    bool last; /* the trainer takes nothing after it */
} kinds[] = {
    { "health", b_health, NEEDS_NOTHING, false },
    { "capabilities", b_capabilities, NEEDS_NOTHING, false },
    { "runs_fetch", b_runs, NEEDS_NOTHING, false },
    { "run_get", b_run_get, NEEDS_NOTHING, false },
    { "checkpoint_get", b_checkpoint_get, NEEDS_NOTHING, false },
    { "checkpoint_publish", b_publish, NEEDS_NOTHING, false },
    { "checkpoint_set_ttl", b_set_ttl, NEEDS_NOTHING, false },
    { "checkpoint_archive", b_archive, NEEDS_NOTHING, false },
    { "session_get", b_session_get, NEEDS_NOTHING, false },
    { "session_trace", b_trace, NEEDS_NOTHING, false },
    { "audit_get", b_audit, NEEDS_NOTHING, false },
    { "usage_get", b_usage, NEEDS_NOTHING, false },
    { "checkpoint_copy", b_copy, NEEDS_NOTHING, false },
    { "checkpoint_links", b_links, NEEDS_NOTHING, false },
    { "storage_get", b_storage, NEEDS_NOTHING, false },
    { "session_search", b_search, NEEDS_NOTHING, false },
    { "session_finish", b_finish, NEEDS_NOTHING, false },
    { "call", b_call, NEEDS_NOTHING, false },
    { "trainer_open", b_trainer_open, NEEDS_NOTHING, false },
    { "trainer_open_from", b_trainer_open_from, NEEDS_NOTHING, false },
    { "trainer_open_from theirs", b_trainer_open_theirs, NEEDS_NOTHING, false },
    { "trainer_open_live", b_trainer_open_live, NEEDS_NOTHING, false },
    { "sampler_open", b_sampler_open, NEEDS_NOTHING, false },
    { "trainer_info", b_info, NEEDS_TRAINER, false },
    { "trainer_unload", b_unload, NEEDS_TRAINER, true },
    { "forward_backward", b_pass, NEEDS_TRAINER, false },
    { "forward", b_forward, NEEDS_TRAINER, false },
    { "optim_step", b_step, NEEDS_TRAINER, false },
    { "trainer_save", b_save, NEEDS_TRAINER, false },
    { "trainer_save_for_sampler", b_save_for_sampler, NEEDS_TRAINER, false },
    { "trainer_save_external", b_save_external, NEEDS_TRAINER, false },
    { "trainer_load", b_load, NEEDS_TRAINER, false },
    { "trainer_open_sampler", b_own_sampler, NEEDS_TRAINER, false },
    { "custom", b_custom, NEEDS_TRAINER, false },
    { "custom together", b_custom_together, NEEDS_TRAINER, false },
    { "sample", b_sample, NEEDS_SAMPLER, false },
    { "sample_input", b_sample_input, NEEDS_SAMPLER, false },
    { "logprobs", b_logprobs, NEEDS_SAMPLER, false },
    { "sampler_info", b_sampler_info, NEEDS_SAMPLER, false },
};

/* ---- the world ---- */

/* One request of the operation meets the weather; what the client does by itself does not count. */
static bool weather(const tinkc_request *r, tinkc_mock_answer *answer, void *user)
{
    world *x = user;
    if (strcmp(r->path, "/api/v1/session_heartbeat") == 0 ||
        atomic_fetch_add(&x->seen, 1) + 1 != atomic_load(&x->strikes_at))
        return false;
    *answer = x->strike;
    return true;
}

static world *make(int needs, const char *config)
{
    world *x = calloc(1, sizeof *x);
    x->allocator = (tinkc_allocator){ shortage_alloc, shortage_resize, counting_release, &x->memory };
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    tinkc_mock_compute(x->mock, weather, x, &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client =
        mock_client(x->mock, &(tinkc_client_options){ .allocator = &x->allocator, .api_key = "tml-key" }, &x->err);
    x->queue = tinkc_queue_new(x->client, &x->err);
    if (needs == NEEDS_TRAINER) {
        x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
        x->batch = tinkc_batch_new(x->client, &x->err);
        for (int i = 0; i < 6; i++)
            tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    } else if (needs == NEEDS_SAMPLER) {
        x->sampler = tinkc_sampler_new(x->client, &nano, &x->err);
        x->input = tinkc_input_new(x->client, &x->err);
        tinkc_input_add_tokens(x->input, ids, 6, &x->err);
    }
    assert_ok(&x->err);
    return x;
}

static void end_world(world *x, const char *name, const char *where, const char *end)
{
    tinkc_runs_free(x->runs);
    tinkc_input_free(x->input);
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_queue_free(x->queue);
    tinkc_client_free(x->client);
    if (!counting_is_empty_soon(&x->memory.memory))
        fail_msg("%s, %s, %s: %zu bytes are left", name, where, end, atomic_load(&x->memory.memory.bytes));
    tinkc_mock_free(x->mock);
    free(x);
}

static void count_done(tinkc_future *f, void *user)
{
    (void)f;
    ++*(int *)user;
}

/* Runs queue and clock until f is complete; false = it never will be. */
static bool drive(world *x, tinkc_future *f, int64_t limit_ms)
{
    tinkc_error err = { 0 };
    for (;;) {
        int64_t next = tinkc_mock_settle(x->mock, PATIENCE_MS, &err);
        if (tinkc_queue_run(x->queue, 0, &err) > 0)
            continue;
        if (tinkc_future_done(f) || err.code || next == TINKC_FOREVER || next > limit_ms)
            return tinkc_future_done(f);
        tinkc_mock_advance(x->mock, next);
        limit_ms -= next;
    }
}

/* As far as it gets without time passing. */
static void run_up_to_the_weather(world *x)
{
    do
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    while (tinkc_queue_run(x->queue, 0, &x->err) > 0);
    assert_ok(&x->err);
}

/* ---- how it ends ---- */

enum { CANCEL, LIMIT, FREE, CLOSE, N_ENDS };
static const char *const end_names[] = { "cancel", "limit", "free", "close" };

/* racing: the service may have had its word first, a result or that there is no such thing. */
static void check_end(world *x, const struct kind *k, tinkc_future *f, int how, bool racing, const char *where)
{
    static const int32_t codes[] = { TINKC_E_CANCELLED, TINKC_E_DEADLINE, 0, TINKC_E_CLOSED };
    tinkc_error err = { 0 };
    bool was_done = tinkc_future_done(f);
    if (how == FREE) {
        tinkc_future_free(f);
        return;
    }
    if (how == CANCEL)
        tinkc_future_cancel(f);
    else if (how == LIMIT)
        tinkc_future_limit(f, 0, &x->err);
    else
        (void)tinkc_client_close(x->client, 0, &x->err);
    assert_ok(&x->err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &err);
    bool answered = was_done || (racing && err.code == TINKC_E_NOT_FOUND);
    if (!answered && err.code && err.code != codes[how])
        fail_msg("%s, %s, %s: %s", k->name, where, end_names[how], err.message);
    if (err.code == TINKC_E_TIMEOUT)
        fail_msg("%s, %s, %s: never completes", k->name, where, end_names[how]);
    while (how != CLOSE && x->completions == 0 && tinkc_queue_run(x->queue, PATIENCE_MS, &x->err) > 0)
        ;
    while (tinkc_queue_run(x->queue, 0, &x->err) > 0)
        ;
    if (x->completions != 1)
        fail_msg("%s, %s, %s: %d completions", k->name, where, end_names[how], x->completions);
    tinkc_error again = { 0 };
    (void)tinkc_future_wait(f, 0, &again);
    assert_int_equal(again.code, err.code);
    tinkc_future_free(f);
}

/* The next one of its kind, in fair weather, gets the service's word: a result, or that there is no
 * such thing. */
static void check_next(world *x, const struct kind *k, int how, const char *where)
{
    tinkc_error err = { 0 };
    tinkc_future *f = k->begin(x);
    assert_ok(&x->err);
    bool done = drive(x, f, 3600 * 1000);
    if (!done || (!tinkc_future_wait(f, 0, &err) && err.code != TINKC_E_NOT_FOUND))
        fail_msg("%s after one that ended (%s, %s): %s", k->name, where, end_names[how],
                 err.code ? err.message : "hangs");
    tinkc_future_free(f);
}

/* strikes_at 0: ended right behind the call, while the other thread begins. False: there is no
 * such stage. */
static bool one_life(const struct kind *k, const char *config, int strikes_at, const tinkc_mock_answer *strike, int how)
{
    char where[80];
    world *x = make(k->needs, config);
    snprintf(where, sizeof where, "request %d %s", strikes_at, strike->status ? "refused for now" : "silent");
    x->strike = *strike;
    atomic_store(&x->seen, 0);
    atomic_store(&x->strikes_at, strikes_at);
    tinkc_future *f = k->begin(x);
    assert_ok(&x->err);
    tinkc_future_on_done(f, x->queue, count_done, &x->completions, &x->err);
    if (strikes_at)
        run_up_to_the_weather(x);
    bool reached = !strikes_at || atomic_load(&x->seen) >= strikes_at;
    check_end(x, k, f, how, !strikes_at, where);
    atomic_store(&x->strikes_at, 0);
    if (how != CLOSE && !k->last)
        check_next(x, k, how, where);
    end_world(x, k->name, where, end_names[how]);
    return reached;
}

static const char serial[] = "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":false}";
static const char parallel[] =
    "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":true,\"create_model_via_load_weights\":"
    "true,\"sample_use_retrieve_futures\":true}";

static void all_lives(const char *config, const tinkc_mock_answer *strike)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int how = 0; how < N_ENDS; how++) {
            int stage = 0;
            while (one_life(&kinds[i], config, stage, strike, how))
                stage++;
            assert_true(stage > 1);
        }
}

TEST(ended_while_an_answer_is_awaited)
{
    all_lives(serial, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT });
}

TEST(ended_while_the_next_attempt_is_awaited)
{
    all_lives(parallel, &(tinkc_mock_answer){ .status = 503, .body = "{}" });
}

/* ---- without memory ---- */

/* The n-th allocation of the operation fails: it says so, or succeeds without it. True while there is an n-th. */
static bool one_shortage(const struct kind *k, const char *config, long n, int32_t usual)
{
    char where[40];
    tinkc_error err = { 0 };
    world *x = make(k->needs, config);
    snprintf(where, sizeof where, "allocation %ld", n);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    atomic_store(&x->memory.countdown, n);
    tinkc_future *f = k->begin(x);
    if (f && !drive(x, f, 3600 * 1000))
        fail_msg("%s, %s: never completes", k->name, where);
    (void)tinkc_future_wait(f, 0, &err);
    bool struck = atomic_load(&x->memory.struck);
    const tinkc_error *e = f ? &err : &x->err;
    if (e->code != usual && !(struck && (e->code == TINKC_E_MEMORY || e->cause == TINKC_E_MEMORY)))
        fail_msg("%s, %s: %s", k->name, where, e->message);
    atomic_store(&x->memory.countdown, 0);
    tinkc_future_free(f);
    end_world(x, k->name, where, "free");
    return struck;
}

/* The code that it ends with while there is memory. */
static int32_t usual_code(const struct kind *k, const char *config)
{
    world *x = make(k->needs, config);
    tinkc_error err = { 0 };
    tinkc_future *f = k->begin(x);
    assert_ok(&x->err);
    drive(x, f, 3600 * 1000);
    (void)tinkc_future_wait(f, 0, &err);
    tinkc_future_free(f);
    end_world(x, k->name, "all allocations", "free");
    return err.code;
}

static void memory_runs_out(int needs)
{
    static const char tokens[] = "{\"pjwt_auth_enabled\":true}";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int k = 0; kinds[i].needs == needs && k < (needs == NEEDS_TRAINER ? 1 : 2); k++) {
            const char *config = k ? tokens : parallel;
            int32_t usual = usual_code(&kinds[i], config);
            long n = 1;
            while (one_shortage(&kinds[i], config, n, usual))
                n++;
            assert_true(n > 3);
        }
}

TEST(memory_runs_out_for_calls)
{
    memory_runs_out(NEEDS_NOTHING);
}

TEST(memory_runs_out_for_trainers)
{
    memory_runs_out(NEEDS_TRAINER);
}

TEST(memory_runs_out_for_samplers)
{
    memory_runs_out(NEEDS_SAMPLER);
}

/* ---- while somebody else still has it in his hands ---- */

static const tinkc_mock_answer silent = { .fault = TINKC_FAULT_SILENT };

/* Two samples want room for large results: the newer one has it, the older one waits. Closing ends
 * the newer one first, which lets the older one in at the very moment it ends too. */
TEST(closed_while_room_is_being_granted)
{
    static const char metadata[] = "{\"status\":\"complete_metadata\",\"response_payload_size\":1000}";
    static const char try_again[] = "{\"type\":\"try_again\"}";
    world *x = make(NEEDS_SAMPLER, "{\"inflight_response_bytes_semaphore_size\":10}");
    const char *polls = "/api/v1/retrieve_future";
    tinkc_mock_once(x->mock, NULL, polls, &(tinkc_mock_answer){ .body = try_again }, &x->err);
    tinkc_mock_once(x->mock, NULL, polls, &(tinkc_mock_answer){ .body = metadata }, &x->err);
    tinkc_mock_once(x->mock, NULL, polls, &silent, &x->err);
    tinkc_mock_once(x->mock, NULL, polls, &(tinkc_mock_answer){ .body = metadata }, &x->err);
    tinkc_mock_always(x->mock, NULL, polls, &silent, &x->err);
    tinkc_future *older = b_sample(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_future *newer = b_sample(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_mock_advance(x->mock, 1000);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(tinkc_mock_count(x->mock, polls), 4);
    (void)tinkc_client_close(x->client, 0, &x->err);
    assert_ok(&x->err);
    tinkc_future_free(older);
    tinkc_future_free(newer);
    end_world(x, "sample", "room", "close");
}

/* An allocator at which the client's helpers stop until they are released. */
typedef struct gate {
    counting memory;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool shut;
    int waiting;
} gate;

static void pass_gate(gate *g)
{
    char name[16] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    if (strncmp(name, "tinkc-help", 10) != 0)
        return;
    pthread_mutex_lock(&g->lock);
    g->waiting++;
    pthread_cond_broadcast(&g->cond);
    while (g->shut)
        pthread_cond_wait(&g->cond, &g->lock);
    g->waiting--;
    pthread_mutex_unlock(&g->lock);
}

static void *gate_alloc(size_t size, void *user)
{
    pass_gate(user);
    return counting_alloc(size, &((gate *)user)->memory);
}

static void *gate_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    pass_gate(user);
    return counting_resize(ptr, old_size, new_size, &((gate *)user)->memory);
}

static void gate_release(void *ptr, size_t size, void *user)
{
    counting_release(ptr, size, &((gate *)user)->memory);
}

static void gate_move(gate *g, bool shut)
{
    pthread_mutex_lock(&g->lock);
    g->shut = shut;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

static void wait_at_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->waiting)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* An answer that is long enough for a helper to read it, and that needs memory. */
static void answer_at_length(tinkc_mock *mock, char *text, size_t size, tinkc_error *err)
{
    static const char head[] = "{\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[1";
    static const char tail[] = "]}]}";
    size_t at = sizeof head - 1;
    memcpy(text, head, at);
    for (; at + sizeof tail + 2 <= size; at += 2)
        memcpy(text + at, ",1", 2);
    memcpy(text + at, tail, sizeof tail);
    tinkc_mock_always(mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = text }, err);
}

/* A sample whose prompt is so long that a helper writes it, or whose answer, that a helper reads it: ended while the
 * helper is at it. From the answer on the error says that the sample may have run, and nothing is left to cancel. */
static void ended_under_a_helper(int how, bool reads)
{
    enum { LONG = 70000 };
    gate g = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
    tinkc_allocator allocator = { gate_alloc, gate_resize, gate_release, &g };
    tinkc_error err = { 0 }, why = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/dynamic_config",
                      &(tinkc_mock_answer){ .body = "{\"refresh_interval_sec\":300,"
                                                    "\"sample_cancel_enabled\":true,"
                                                    "\"sample_cancel_max_batch_size\":9}" },
                      &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .allocator = &allocator }, &err);
    tinkc_retry_options retry = { .progress_timeout_ms = 1000 };
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = &retry }, &err);
    int32_t *prompt = calloc(LONG, sizeof *prompt);
    char *answer = malloc(LONG * sizeof *prompt);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    answer_at_length(mock, answer, LONG * sizeof *prompt, &err);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    gate_move(&g, true);
    tinkc_future *f = tinkc_sample(sampler, prompt, reads ? 3 : LONG, 1, &o, &err);
    wait_at_gate(&g);
    if (how == CANCEL)
        tinkc_future_cancel(f);
    else if (how == LIMIT)
        tinkc_mock_advance(mock, 2000); /* nothing has finished for so long */
    else
        (void)tinkc_client_close(client, 0, &err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &why);
    assert_int_equal(why.code, how == CANCEL ? TINKC_E_CANCELLED : how == LIMIT ? TINKC_E_NO_PROGRESS : TINKC_E_CLOSED);
    assert_int_equal(why.flags & TINKC_MAY_HAVE_RUN, reads || how == LIMIT ? TINKC_MAY_HAVE_RUN : 0);
    gate_move(&g, false);
    tinkc_future_free(f);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    assert_true(counting_is_empty_soon(&g.memory));
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/asample"), reads);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/cancel_future"), 0);
    tinkc_mock_free(mock);
    free(prompt);
    free(answer);
}

TEST(cancelled_under_a_helper)
{
    ended_under_a_helper(CANCEL, false);
    ended_under_a_helper(CANCEL, true);
}
TEST(given_up_under_a_helper)
{
    ended_under_a_helper(LIMIT, false);
    ended_under_a_helper(LIMIT, true);
}
TEST(closed_under_a_helper)
{
    ended_under_a_helper(CLOSE, false);
    ended_under_a_helper(CLOSE, true);
}
