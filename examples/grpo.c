/* grpo.c - reinforcement learning in sixty lines: groups of answers, a grader, step after step. */
#include <stdio.h>

#include <tinkc/engine.h>
#include <tinkc/recipes.h>
#include <tinkc/tinkc.h>

enum { STEPS = 8, TASKS = 64 };

/* Sums. Only a whole equation counts, and only the reward shows it. */
static void add_tasks(tinkc_rl *rl, tinkc_error *err)
{
    for (int i = 0; i < TASKS; i++) {
        int a = i * 31 % 90 + 10, b = i * 57 % 90 + 10;
        char prompt[96], answer[32];
        snprintf(prompt, sizeof prompt, "[{\"role\":\"user\",\"content\":\"What is %d + %d?\"}]", a,
                 b);
        snprintf(answer, sizeof answer, "%d + %d = %d", a, b, a + b);
        tinkc_task task = { .messages_json = prompt, .answer = answer };
        tinkc_rl_add(rl, &task, 0, err);
    }
}

int main(void)
{
    tinkc_error err = { 0 }; /* once set, every later call is a no-op: look once, at the end */
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_lora_options lora = { .base_model = "nano", .seed = 1, .has_seed = true };
    tinkc_trainer *trainer = tinkc_trainer_new(client, &lora, &err);
    tinkc_tokenizer *tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    tinkc_reward *grader = tinkc_reward_grader("exact", &err);

    tinkc_rl_options how = {
        .rollouts = { .tokenizer = tokenizer,
                      .temperature = 1,
                      .max_tokens = 16,
                      .rewards = &grader,
                      .n_rewards = 1 },
        .group_size = 8,       /* answers to each prompt, compared with each other */
        .groups_per_batch = 8, /* prompts in a step */
        .adam = TINKC_ADAM_INIT,
    };
    how.adam.learning_rate = 5e-4;
    tinkc_rl *rl = tinkc_rl_new(client, trainer, &how, NULL, &err);
    add_tasks(rl, &err);
    for (const tinkc_rl_report *r; !err.code && (r = tinkc_rl_step(rl, STEPS, &err));) {
        printf("step %zu  reward %.3f\n", r->step, r->reward);
        if (r->step + 1 == STEPS)
            break;
    }

    if (err.code)
        fprintf(stderr, "grpo: %s\n", err.message);
    tinkc_rl_free(rl);
    tinkc_reward_free(grader);
    tinkc_tokenizer_free(tokenizer);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return err.code != 0;
}
