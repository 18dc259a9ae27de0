/* recipe_options.c - option tables of the recipes: train rl, dpo, distill, sweep; eval; env.
 *
 * Tables only. Options that several recipes share are macros, so that they have one help text.
 */
#include "cli/main/child.h"
#include "cli/main/option_rows.h"
#include "cli/train/recipe_options.h"

#include "cli/models/model_folder.h"
#include "cli/train/adapter_start.h"
#include "cli/track/metric_exports.h"
#include "cli/train/train_samples.h"

/* clang-format off */

#define MODEL MODEL_OPTION, CLI_BASE_BITS, RENDERER_OPTION

/* The adapter, the optimizer, checkpoints and the log directory: as in train sft. */
#define TRAINING(rate, rate_help, rank) \
    OPT_NUMBER("lr", "X", rate_help, rate, .cookbook = "learning_rate"), \
    ADAPTER_OPTIONS(rank), \
    SAVING_OPTIONS, \
    OPT_COUNT("seed", "N", "of the adapter and of sampling; default: a random one, kept with the run"), \
    OPT_COUNT("shuffle-seed", "N", "order of the data", "0", .cookbook = "shuffle_seed"), \
    OPT_TEXT("metadata", "K=V", "kept with the run; may be repeated", .repeats = true), \
    OPT_TEXT("hook", "CMD", "a program that gets the events on its standard input"), \
    CLI_PASS_ENV, \
    CLI_EXPORT_OPTIONS, \
    OPT_FILE("config", "FILE", "settings of an earlier run: its config.toml; options given here win"), \
    OPT_FILE("prices", "FILE", \
             "prices for the estimate of --dry-run: lines MODEL PREFILL SAMPLE TRAIN in $ per million tokens"), \
    OPT_FLAG("dry-run", "plan only, no network")

#define PROMPTS \
    OPT_FILE("data", "FILE", "prompts; the same as an argument", .repeats = true, .cookbook = "dataset"), \
    OPT_TEXT("prompt-field", "KEY", \
             "where a row's prompt is; default: messages, prompt, question, problem or input"), \
    OPT_TEXT("answer-field", "KEY", "where its answer is; default: answer, solution, target or label"), \
    OPT_TEXT("system", "TEXT", "system message before every prompt"), \
    OPT_TEXT("tag-field", "KEY", "metrics are also reported for each value of this member")

#define REWARDS \
    OPT_TEXT("grader", "SPEC", \
             "exact, contains, regex[:PATTERN], number, boxed-math, json-schema[:FILE], rubric; @W at its end is its weight; may be repeated", \
             .repeats = true), \
    OPT_TEXT("reward-cmd", "CMD", "a command that grades: one JSON line for each rollout, one back"), \
    OPT_COUNT("reward-procs", "N", "how many of it at once", "4"), \
    OPT_TEXT("reward-url", "URL", "the same by HTTP POST"), \
    OPT_DURATION("reward-timeout", "DURATION", "longest wait for a grade", "60s"), \
    OPT_TEXT("rubric", "FILE", "what the rubric's model looks for; a row's own \"rubric\" wins"), \
    OPT_TEXT("grader-model", "M", "the model that grades by the rubric")

#define EPISODES(tokens, temperature_default) \
    OPT_COUNT("max-tokens", "N", "longest answer, in tokens", tokens, .cookbook = "max_tokens"), \
    OPT_NUMBER("temperature", "X", "0 = greedy", temperature_default, .cookbook = "temperature"), \
    OPT_NUMBER("top-p", "X", "sample from the most likely tokens that make up this share", "1"), \
    OPT_DURATION("sample-timeout", "DURATION", "longest wait for one answer", "300s"), \
    OPT_TEXT("env-cmd", "CMD", "an environment of several turns: see docs/protocol.md"), \
    OPT_COUNT("env-procs", "N", "how many of it at once", "1"), \
    OPT_DURATION("env-timeout", "DURATION", "longest wait for one step of it", "60s"), \
    OPT_COUNT("max-turns", "N", "longest episode, in answers", "16"), \
    OPT_COUNT("max-episode-tokens", "N", "longest episode, in tokens", "32768")

const cli_option cli_train_rl_options[] = {
    MODEL,
    PROMPTS,
    OPT_COUNT("group-size", "N", "answers to each prompt", "4", .cookbook = "group_size"),
    OPT_COUNT("groups-per-batch", "N", "prompts in a step", "100", .cookbook = "groups_per_batch"),
    OPT_COUNT("epochs", "N", "times through the prompts", "1"),
    OPT_COUNT("max-steps", "N", "stop after so many", .cookbook = "max_steps"),
    REWARDS,
    EPISODES("256", "1"),
    OPT_COUNT("max-concurrent", "N", "episodes at once", "256"),
    OPT_CHOICE("loss", "NAME", "importance_sampling|ppo|cispo|dro|gspo", "loss", "importance_sampling",
               .cookbook = "loss_fn"),
    OPT_TEXT("loss-config", "K=X", "a setting of the loss, such as clip_low_threshold=0.8", .repeats = true),
    OPT_CHOICE("advantage", "HOW", "mean|std|leave-one-out",
               "reward less the group's mean; also divided by its deviation; or less the mean of the others",
               "mean"),
    OPT_COUNT("num-substeps", "N", "optimizer steps for a batch", "1", .cookbook = "num_substeps"),
    OPT_NUMBER("kl-coef", "X", "weight of the KL against the reference", "0", .cookbook = "kl_penalty_coef"),
    OPT_NUMBER("kl-discount", "X", "of the KL of later tokens", "0", .cookbook = "kl_discount_factor"),
    OPT_TEXT("kl-reference", "M", "the reference; default: the weights that the run starts from"),
    OPT_COUNT("max-steps-off-policy", "N", "steps that sampling runs ahead of training; 0 = none", "1",
              .cookbook = "max_steps_off_policy"),
    OPT_FLAG("remove-constant-groups", "leave groups out whose rewards are all equal",
             .cookbook = "remove_constant_reward_groups"),
    OPT_FILE("test-data", "FILE", "prompts to evaluate on"),
    OPT_COUNT("test-size", "N", "prompts held out", "0"),
    OPT_COUNT("eval-every", "N", "steps between evaluations; 0 = none", "20", .cookbook = "eval_every"),
    OPT_NUMBER("eval-temperature", "X", "temperature of evaluations", "0"),
    TRAINING(NULL, "learning rate; default: a fifth of what sft takes for the model", "32"),
    { 0 }
};
const char *const cli_train_rl_examples[] = {
    "tinkc train rl sums.jsonl --grader number --group-size 8 --groups-per-batch 32",
    "tinkc train rl tasks.jsonl --reward-cmd 'python3 grade.py' --kl-coef 0.02",
    "tinkc train rl rows.jsonl --env-cmd build/examples/guess_env --max-turns 8", NULL
};

#define EPOCHS(batch, length) \
    OPT_COUNT("batch-size", "N", "examples in a step", batch, .cookbook = "batch_size"), \
    OPT_COUNT("epochs", "N", "times through the data", "1", .cookbook = "num_epochs"), \
    OPT_COUNT("max-steps", "N", "stop after so many", .cookbook = "max_steps"), \
    OPT_COUNT("max-length", "N", "longest example in tokens", length, .cookbook = "max_length"), \
    OPT_CHOICE("lr-schedule", "HOW", "linear|cosine|constant", "learning-rate schedule", "linear", \
               .cookbook = "lr_schedule"), \
    OPT_COUNT("warmup-steps", "N", "steps that lead from 0 to the full rate, before the schedule", "0"), \
    OPT_COUNT("test-size", "N", "examples held out", "0")

const cli_option cli_train_dpo_options[] = {
    MODEL,
    OPT_FILE("data", "FILE", "pairs; the same as an argument", .repeats = true, .cookbook = "dataset"),
    OPT_CHOICE("loss", "NAME", "dpo|ipo|kto", "kto takes single examples that are marked good or bad", "dpo"),
    OPT_NUMBER("dpo-beta", "X", "how far the model may move from the reference", "0.1", .cookbook = "dpo_beta"),
    OPT_FLAG("length-normalized", "log-probabilities of an answer are divided by its length"),
    OPT_TEXT("reference", "M", "the reference; default: the weights that the run starts from"),
    EPOCHS("256", "8192"),
    OPT_COUNT("eval-every", "N", "steps between evaluations; 0 = none", "10", .cookbook = "eval_every"),
    CLI_SAMPLE_OPTIONS,
    TRAINING(NULL, "learning rate; default: a tenth of what sft takes for the model", "32"),
    { 0 }
};
const char *const cli_train_dpo_examples[] = {
    "tinkc train dpo pairs.jsonl --batch-size 32 --test-size 100",
    "tinkc train dpo thumbs.jsonl --loss kto", NULL
};

const cli_option cli_train_distill_options[] = {
    MODEL,
    PROMPTS,
    OPT_TEXT("teacher", "M", "the model to learn from; with several, one for each file of prompts", .repeats = true),
    OPT_FILE("context", "FILE", "a system prompt that the teacher alone sees: its effect is learnt"),
    OPT_FLAG("off-policy", "learn the teacher's most likely tokens on given conversations"),
    OPT_COUNT("targets", "N", "how many of them at each place, with --off-policy", "20"),
    OPT_COUNT("group-size", "N", "answers to each prompt", "4", .cookbook = "group_size"),
    OPT_COUNT("groups-per-batch", "N", "prompts in a step", "1024", .cookbook = "groups_per_batch"),
    OPT_NUMBER("kl-coef", "X", "weight of the distance from the teacher", "1", .cookbook = "kl_penalty_coef"),
    OPT_NUMBER("kl-discount", "X", "of the distance of later tokens", "0", .cookbook = "kl_discount_factor"),
    EPISODES("4096", "1"),
    OPT_COUNT("max-concurrent", "N", "samples at once", "256"),
    OPT_COUNT("num-substeps", "N", "optimizer steps for a batch", "1", .cookbook = "num_substeps"),
    OPT_COUNT("max-steps-off-policy", "N", "steps that sampling runs ahead of training; 0 = none", "1",
              .cookbook = "max_steps_off_policy"),
    EPOCHS("128", "16384"),
    REWARDS,
    OPT_FILE("test-data", "FILE", "prompts to evaluate on"),
    OPT_COUNT("eval-every", "N", "steps between evaluations; 0 = none", "20", .cookbook = "eval_every"),
    OPT_NUMBER("eval-temperature", "X", "temperature of evaluations", "0"),
    TRAINING("1e-4", "learning rate", "128"),
    { 0 }
};
const char *const cli_train_distill_examples[] = {
    "tinkc train distill prompts.jsonl -m Qwen/Qwen3-8B-Base --teacher Qwen/Qwen3-8B",
    "tinkc train distill prompts.jsonl --teacher nano --context rules.txt",
    "tinkc train distill chats.jsonl --teacher Qwen/Qwen3-32B --off-policy", NULL
};

const cli_option cli_train_sweep_options[] = {
    OPT_TEXT("grid", "OPTION=A,B", "values of an option of the recipe; with several, all combinations",
             .repeats = true),
    OPT_COUNT("parallel", "N", "runs at once, on one engine or service", "2"),
    OPT_TEXT("metric", "KEY", "what the table is sorted by; default: the recipe's own"),
    OPT_DIR("log-dir", "DIR", "default: tinkc-runs/sweep-TIME; one folder below it for each run"),
    OPT_FLAG("dry-run", "print the runs, start none"),
    { 0 }
};
const char *const cli_train_sweep_examples[] = {
    "tinkc train sweep --grid lr=1e-4,3e-4,1e-3 --grid lora-rank=8,32 -- sft data.jsonl",
    "tinkc train sweep --grid lr=1e-5,4e-5 -- rl sums.jsonl --grader number", NULL
};

const cli_option cli_eval_run_options[] = {
    MODEL,
    PROMPTS,
    REWARDS,
    EPISODES("32768", "0.6"),
    CLI_PASS_ENV,
    OPT_COUNT("number", "N", "answers to each prompt; more than one gives pass@k", "1", .letter = 'n'),
    OPT_COUNT("concurrency", "N", "episodes at once", "64", .letter = 'j'),
    OPT_FLAG("multiple-choice", "rows have \"choices\" and the right one; the most likely one is the answer"),
    OPT_COUNT("limit", "N", "only the first N rows; 0 = all", "0"),
    OPT_COUNT("seed", "N", "of sampling", "0"),
    OPT_DIR("save-dir", "DIR", "default: tinkc-evals/DATA-MODEL; a rerun continues there"),
    OPT_NUMBER("min-score", "X", "fail (exit 12) if the score is below"),
    { 0 }
};
const char *const cli_eval_run_examples[] = {
    "tinkc eval run test.jsonl -m tinkc-runs/a --grader number --max-tokens 512",
    "tinkc eval run test.jsonl --grader boxed-math -n 8",
    "tinkc eval run quiz.jsonl --multiple-choice --min-score 0.6", NULL
};
const cli_option cli_eval_show_options[] = {
    OPT_COUNT("number", "N", "samples to show", "5"),
    OPT_FLAG("wrong", "only those that are not right"),
    { 0 }
};
const char *const cli_eval_show_examples[] = { "tinkc eval show tinkc-evals/test-nano --wrong", NULL };
const cli_option cli_eval_compare_options[] = {
    OPT_COUNT("number", "N", "examples to show side by side", "10"),
    OPT_FLAG("all", "also those on which both agree"),
    { 0 }
};
const char *const cli_eval_compare_examples[] = { "tinkc eval compare evals/before evals/after", NULL };

const cli_option cli_env_check_options[] = {
    OPT_TEXT("row", "JSON", "the row that episodes are reset with; default: {}"),
    OPT_DURATION("timeout-each", "DURATION", "longest wait for an answer", "10s"),
    CLI_PASS_ENV,
    { 0 }
};
const char *const cli_env_check_examples[] = {
    "tinkc env check build/examples/guess_env", "tinkc env check 'python3 my_env.py' --row '{\"level\": 2}'", NULL
};
