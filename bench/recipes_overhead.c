/* recipes_overhead.c - what the loops cost beside the engine's own work.
 *
 *     build/bench/recipes_overhead [MODEL]
 *
 * Three figures. The loop's share: CPU time of the thread that runs 64 concurrent episodes of RL on the engine,
 * beside that of the whole process. Memory: what 10,000 rollouts in flight hold, on a sampler that never answers. A
 * full batch: during an evaluation of 1,000 prompts, by the engine's own counters: steps of sampling, tokens in a
 * step, and how often the worker found nothing to do (an idle step).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <tinkc/engine.h>
#include <tinkc/recipes.h>
#include <tinkc/tinkc.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static long resident_kb(void)
{
    long pages = 0, skipped = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &skipped, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * 4;
}

typedef struct stand {
    tinkc_engine *engine;
    tinkc_client *client;
    tinkc_tokenizer *tokenizer;
    tinkc_reward *grader;
} stand;

static tinkc_rollout_options options_of(stand *s, int at_once)
{
    return (tinkc_rollout_options){ .tokenizer = s->tokenizer,
                                    .rewards = &s->grader,
                                    .n_rewards = 1,
                                    .temperature = 1,
                                    .max_tokens = 24,
                                    .max_concurrent = at_once };
}

static tinkc_task task_of(char prompt[96], int i)
{
    snprintf(prompt, 96, "[{\"role\":\"user\",\"content\":\"What is %d + %d?\"}]", i % 90 + 10,
             i * 7 % 90 + 10);
    return (tinkc_task){ .messages_json = prompt, .answer = "42" };
}

/* ---- the loop's share ---- */

static void measure_share(stand *s, tinkc_error *err)
{
    char prompt[96];
    tinkc_trainer *trainer =
        tinkc_trainer_new(s->client, &(tinkc_lora_options){ .base_model = "nano", .rank = 8 }, err);
    tinkc_rl_options o = { .rollouts = options_of(s, 64),
                           .adam = TINKC_ADAM_INIT,
                           .group_size = 8,
                           .groups_per_batch = 16 };
    tinkc_rl *rl = tinkc_rl_new(s->client, trainer, &o, NULL, err);
    for (int i = 0; i < 64; i++) {
        tinkc_task t = task_of(prompt, i);
        tinkc_rl_add(rl, &t, 0, err);
    }
    double thread = seconds_of(CLOCK_THREAD_CPUTIME_ID), all = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 4 && !err->code; i++)
        tinkc_rl_step(rl, 4, err);
    thread = seconds_of(CLOCK_THREAD_CPUTIME_ID) - thread;
    all = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - all;
    printf("rl, 64 episodes at once: loop %.3f s of %.2f s CPU, %.2f %% (goal: below 3 %%)\n",
           thread, all, 100 * thread / all);
    tinkc_rl_free(rl);
    tinkc_trainer_free(trainer);
}

/* ---- memory ---- */

static void measure_memory(stand *s, tinkc_error *err)
{
    enum { GROUPS = 625, SIZE = 16 };
    char prompt[96];
    tinkc_rollout_options o = options_of(s, GROUPS * SIZE);
    tinkc_sampler *sampler =
        tinkc_sampler_new(s->client, &(tinkc_sampler_options){ .base_model = "nano" }, err);
    tinkc_rollouts *p = tinkc_rollouts_new(s->client, &o, err);
    long before = resident_kb();
    for (int i = 0; i < GROUPS && !err->code; i++) {
        tinkc_task t = task_of(prompt, i);
        tinkc_rollouts_add(p, sampler, &t, SIZE, (uint64_t)i, (uint64_t)i, err);
    }
    tinkc_rollouts_run(p, 0, err);
    long grown = resident_kb() - before;
    printf("%zu rollouts in flight: %ld MB (goal: below 200 MB), engine's queue included\n",
           tinkc_rollouts_running(p), grown / 1024);
    tinkc_rollouts_free(p);
    tinkc_sampler_free(sampler);
}

/* ---- a full batch ---- */

typedef struct counters {
    double steps, waits, tokens;
} counters;

/* The first number behind "key": in the engine's status; -1 = none. */
static double number_of(const char *json, const char *key)
{
    const char *at = strstr(json, key);
    return at ? strtod(at + strlen(key), NULL) : -1;
}

static counters read_counters(tinkc_engine *engine, tinkc_error *err)
{
    tinkc_text text = { 0 };
    const char *json = tinkc_engine_status(engine, &text, err);
    counters c = { number_of(json, "\"sample_steps_total\":"),
                   number_of(json, "\"worker_waits_total\":"),
                   number_of(json, "\"sampled_tokens_total\":") };
    tinkc_text_free(&text);
    return c;
}

static void measure_batch(stand *s, tinkc_error *err)
{
    enum { PROMPTS = 1000, AT_ONCE = 64 };
    char prompt[96];
    tinkc_rollout_options o = options_of(s, AT_ONCE);
    tinkc_sampler *sampler =
        tinkc_sampler_new(s->client, &(tinkc_sampler_options){ .base_model = "nano" }, err);
    tinkc_rollouts *p = tinkc_rollouts_new(s->client, &o, err);
    for (int i = 0; i < PROMPTS && !err->code; i++) {
        tinkc_task t = task_of(prompt, i);
        tinkc_rollouts_add(p, sampler, &t, 1, (uint64_t)i, (uint64_t)i, err);
    }
    counters before = read_counters(s->engine, err);
    double wall = seconds_of(CLOCK_MONOTONIC);
    for (tinkc_group *g; (g = tinkc_rollouts_next(p, TINKC_FOREVER, err));)
        tinkc_group_free(g);
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    counters after = read_counters(s->engine, err);
    double steps = after.steps - before.steps, waits = after.waits - before.waits;
    printf(
        "eval, 1000 prompts, %d at once: %.1f s, %.0f steps of %.0f tokens on average, %.0f idle "
        "(%.1f %%, goal: below 5 %%)\n",
        AT_ONCE, wall, steps, steps > 0 ? (after.tokens - before.tokens) / steps : 0, waits,
        100 * waits / (steps + waits));
    tinkc_rollouts_free(p);
    tinkc_sampler_free(sampler);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    const char *folder = argc > 1 ? argv[1] : "models/nano";
    stand s = { .engine = tinkc_engine_new(NULL, &err) };
    tinkc_engine_add_model(s.engine, "nano", folder, &err);
    s.client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(s.engine) }, &err);
    s.tokenizer = tinkc_tokenizer_open(folder, NULL, &err);
    s.grader = tinkc_reward_grader("number", &err);
    if (!err.code)
        measure_share(&s, &err);
    if (!err.code)
        measure_batch(&s, &err);
    if (!err.code)
        measure_memory(&s, &err);
    if (err.code)
        fprintf(stderr, "recipes: %s\n", err.message);
    tinkc_reward_free(s.grader);
    tinkc_tokenizer_free(s.tokenizer);
    tinkc_client_free(s.client);
    tinkc_engine_free(s.engine);
    return err.code != 0;
}
