/* recipe_options.h - option tables of the recipes, for commands.c, and the rows that all that train share. */
#ifndef CLI_RECIPE_OPTIONS_H
#define CLI_RECIPE_OPTIONS_H

#include "cli/main/option_rows.h"

/* clang-format off */
#define ADAPTER_OPTIONS(rank) \
    OPT_COUNT("lora-rank", "N", "rank of the adapter", rank, .cookbook = "lora_rank"), \
    OPT_FLAG("train-mlp", "adapt the MLPs", "on", .cookbook = "train_mlp"), \
    OPT_FLAG("train-attn", "adapt attention", "on", .cookbook = "train_attn"), \
    OPT_FLAG("train-unembed", "adapt the output layer", "on", .cookbook = "train_unembed"), \
    OPT_NUMBER("adam-beta1", "X", "Adam", "0.9", .cookbook = "adam_beta1"), \
    OPT_NUMBER("adam-beta2", "X", "Adam", "0.95", .cookbook = "adam_beta2"), \
    OPT_NUMBER("adam-eps", "X", "Adam", "1e-8", .cookbook = "adam_eps"), \
    OPT_NUMBER("weight-decay", "X", "Adam", "0"), \
    OPT_NUMBER("grad-clip", "X", "largest gradient norm; 0 = no limit", "0")
#define SAVING_OPTIONS \
    OPT_COUNT("save-every", "N", "steps between checkpoints; 0 = none", "20", .cookbook = "save_every"), \
    OPT_COUNT("save-every-tokens", "N", "tokens between checkpoints; 0 = none", "0", \
              .cookbook = "save_every_tokens"), \
    OPT_COUNT("save-every-seconds", "N", "seconds between checkpoints; 0 = none", "0", \
              .cookbook = "save_every_seconds"), \
    OPT_TEXT("ttl", "DURATION", "time until periodic checkpoints expire, or never", "7d", .cookbook = "ttl_seconds"), \
    OPT_COUNT("rolling-save-every", "N", "steps between rolling states", "0", .cookbook = "rolling_save_every"), \
    OPT_DURATION("rolling-ttl", "DURATION", "time until rolling states expire", "2h", \
                 .cookbook = "rolling_ttl_seconds"), \
    OPT_TEXT("from", "PATH", "start from these weights", .complete = "checkpoint", \
             .cookbook = "load_checkpoint_path"), \
    CLI_FROM_ADAPTER, \
    OPT_DIR("log-dir", "DIR", "default: tinkc-runs/RUN_NAME", .cookbook = "log_path"), \
    OPT_CHOICE("if-exists", "WHAT", "ask|resume|delete|raise", "what to do if the log directory exists", \
               .cookbook = "behavior_if_log_dir_exists"), \
    OPT_FLAG("resume", "--if-exists resume")
/* clang-format on */

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
