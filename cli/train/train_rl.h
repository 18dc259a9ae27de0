/* train_rl.h - a run of the RL loop: `train rl`, and `train distill` on the student's own samples. */
#ifndef CLI_TRAIN_RL_H
#define CLI_TRAIN_RL_H

#include "cli/sample/prompts.h"
#include "cli/train/reward_setup.h"
#include "cli/train/train_job.h"

enum { CLI_MOST_TEACHERS = 16 };

typedef struct cli_rl {
    cli_job job;
    cli_rewards rewards;
    cli_prompts prompts, test;
    size_t groups_per_batch, group_size;
    tinkc_rl_options how;
    tinkc_rl *rl;
    char *recalled; /* what the last recall read */
    cli_asked references[CLI_MOST_TEACHERS];
    tinkc_sampler *samplers[CLI_MOST_TEACHERS];
    size_t n_references;
    char *context; /* for the teacher alone; NULL = none */
    const char **loss_names;
    double *loss_values;
    double last_watched, last_eval; /* the reward of the last step, or its KL; of the last evaluation */
} cli_rl;

/* Settles what both commands share: options, model, prompts, steps. 0, or an exit code. */
int cli_rl_prepare(cli_app *, cli_rl *);
/* Opens trainer, references and loop, and trains to the end. `rl->how` holds what differs. */
int cli_rl_run(cli_rl *, tkc_tree *config);
void cli_rl_free(cli_rl *);
/* 0, or an exit code after reporting that the same text becomes other tokens than the job's model has. */
int cli_check_same_tokens(const cli_job *, const tinkc_tokenizer *other, const char *name);
/* Opens a reference or teacher by name and checks that it reads the same tokens. */
int cli_rl_add_reference(cli_rl *, const char *name);
/* tinkc-runs/..., with what the recipe puts behind the rate. Yours. */
char *cli_rl_log_dir(const cli_rl *, const char *what);

#endif
