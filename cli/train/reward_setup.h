/* reward_setup.h - --grader, --reward-cmd, --reward-url, --env-cmd: what they name, opened. */
#ifndef CLI_REWARD_SETUP_H
#define CLI_REWARD_SETUP_H

#include <tinkc/recipes.h>

#include "cli/models/weights.h"

typedef struct cli_rewards {
    tinkc_reward **items;
    size_t n;
    bool needs_answer;
    bool wants_model; /* a rubric: cli_rewards_connect opens it */
    double rubric_weight;
    char *rubric;
    cli_asked grader; /* the rubric's model */
    tinkc_env *env;   /* NULL = single answers */
} cli_rewards;

/* Makes all that needs no network. 0, or an exit code after reporting. */
int cli_rewards_open(cli_app *, cli_rewards *);
/* Opens the rubric's model, if there is one. */
int cli_rewards_connect(cli_app *, cli_rewards *);
void cli_rewards_close(cli_rewards *);

/* The options of episodes, from the command's; the tokenizer is the caller's. */
tinkc_rollout_options cli_rollout_options(const cli_app *, const cli_rewards *,
                                          const tinkc_tokenizer *, const char *renderer);

#endif
