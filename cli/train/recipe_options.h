/* recipe_options.h - option tables of the recipes, for commands.c; all but one macro each are shared. */
#ifndef CLI_RECIPE_OPTIONS_H
#define CLI_RECIPE_OPTIONS_H

#include "cli/main/command_table.h"

extern const cli_option cli_train_rl_options[], cli_train_dpo_options[],
    cli_train_distill_options[], cli_train_sweep_options[], cli_eval_run_options[],
    cli_eval_show_options[], cli_eval_compare_options[], cli_env_check_options[];
extern const char *const cli_train_rl_examples[],
    *const cli_train_dpo_examples[], *const cli_train_distill_examples[],
                                         *const cli_train_sweep_examples[],
                                             *const cli_eval_run_examples[],
                                                 *const cli_eval_show_examples[],
                                                     *const cli_eval_compare_examples[],
                                                         *const cli_env_check_examples[];

#endif
