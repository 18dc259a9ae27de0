/* test_recipes_memory.c - the n-th allocation of the thread that runs a recipe fails, for n = 1, 1 +
 * STRIDE, ...: malloc itself (the linker puts ours in its place). Nothing may crash or hang, and what fails
 * says so; a leak shows in a build with AddressSanitizer. The engine's own threads are left alone. */
#include "support/check.h"
#include "tinkc/engine.h"
#include "tinkc/recipes.h"

enum { STRIDE = 5 };

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
void *__wrap_malloc(size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_realloc(void *, size_t);

static _Thread_local long countdown; /* 0 = never */
static long failed;

static bool fails(void)
{
    if (countdown == 0 || --countdown != 0)
        return false;
    failed++;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static tinkc_engine *engine;
static tinkc_client *client;
static tinkc_tokenizer *tokenizer;
static tinkc_trainer *trainer;
static tinkc_sampler *sampler;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    tinkc_engine_add_model(engine, "nano", "models/nano", &err);
    client = tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "nano", .rank = 2 }, &err);
    sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    assert_ok(err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_sampler_free(sampler);
    tinkc_trainer_free(trainer);
    tinkc_tokenizer_free(tokenizer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return 0;
}

static const tinkc_task sum = { .messages_json = "[{\"role\":\"user\",\"content\":\"What is 12 + 30?\"}]",
                                .answer = "42",
                                .row_json = "{\"schema\":{\"type\":\"object\",\"required\":[\"a\"]}}",
                                .where = "sums.jsonl:1" };

typedef void scenario_fn(tinkc_error *err);

/* Rollouts with two graders, kept as text and read back. */
static void roll(tinkc_error *err)
{
    tinkc_text text = { 0 };
    tinkc_reward *rewards[] = { tinkc_reward_grader("boxed-math", err), tinkc_reward_grader("json-schema", err) };
    tinkc_rollout_options o = {
        .tokenizer = tokenizer, .temperature = 1, .max_tokens = 2, .rewards = rewards, .n_rewards = 2
    };
    tinkc_rollouts *p = tinkc_rollouts_new(client, &o, err);
    tinkc_rollouts_add(p, sampler, &sum, 2, 3, 99, err);
    tinkc_group *g = p ? tinkc_rollouts_next(p, 60000, err) : NULL;
    assert_true(g || err->code);
    if (g && tinkc_group_write(g, &text, err)) {
        size_t len = text.len;
        tinkc_group *again = tinkc_group_read(text.data, &len, err);
        assert_true(again || err->code);
        tinkc_group_free(again);
    }
    tinkc_group_free(g);
    tinkc_rollouts_free(p);
    tinkc_text_free(&text);
    tinkc_reward_free(rewards[0]);
    tinkc_reward_free(rewards[1]);
}

/* A step of reinforcement learning against a reference. */
static void learn(tinkc_error *err)
{
    tinkc_reward *r = tinkc_reward_grader("regex:[13579]$", err);
    tinkc_rl_options o = {
        .rollouts = { .tokenizer = tokenizer, .temperature = 1, .max_tokens = 2, .rewards = &r, .n_rewards = 1 },
        .references = &sampler,
        .n_references = 1,
        .kl_coef = 0.1,
        .adam = TINKC_ADAM_INIT,
        .group_size = 2,
        .groups_per_batch = 1
    };
    tinkc_rl *rl = tinkc_rl_new(client, trainer, &o, NULL, err);
    tinkc_rl_add(rl, &sum, 0, err);
    const tinkc_rl_report *report = rl && !err->code ? tinkc_rl_step(rl, 1, err) : NULL;
    assert_true(report || err->code);
    tinkc_rl_free(rl);
    tinkc_reward_free(r);
}

/* Runs it with every STRIDE-th allocation failing in turn, until one run needs no more. */
static void torment(scenario_fn *run)
{
    for (long n = 1;; n += STRIDE) {
        tinkc_error err = { 0 };
        long before = failed;
        countdown = n;
        run(&err);
        countdown = 0;
        if (failed == before) {
            assert_ok(err);
            assert_true(n > 100);
            return;
        }
        if (err.code && !err.message[0])
            fail_msg("allocation %ld fails: nothing says so", n);
    }
}

TEST(rollouts_survive_every_failed_allocation)
{
    torment(roll);
}

TEST(learning_survives_every_failed_allocation)
{
    torment(learn);
}

int main(void)
{
    return test_cases_run(setup, teardown);
}
