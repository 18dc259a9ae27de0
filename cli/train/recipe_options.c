/* recipe_options.c - option tables of the recipes: train rl, dpo, distill, sweep; eval; env.
 *
 * Tables only. Options that several recipes share are macros, so that they have one help text.
 */
#include "cli/main/child.h"
#include "cli/train/recipe_options.h"

#include "cli/models/model_folder.h"
#include "cli/train/adapter_start.h"
#include "cli/track/metric_exports.h"
#include "cli/train/train_samples.h"

/* clang-format off */

#define WHOLE(n, v, s, h)         { .name = n, .kind = CLI_COUNT, .value = v, .default_value = s, .help = h }
#define REAL(n, s, h)             { .name = n, .kind = CLI_NUMBER, .value = "X", .default_value = s, .help = h }
#define TEXT(n, v, h)             { .name = n, .kind = CLI_TEXT, .value = v, .help = h }
#define MANY(n, v, h)             { .name = n, .kind = CLI_TEXT, .value = v, .help = h, .repeats = true }
#define TIME(n, s, h)             { .name = n, .kind = CLI_DURATION, .value = "DURATION", .default_value = s, .help = h }
#define FLAG(n, h)                { .name = n, .kind = CLI_FLAG, .help = h }
#define ON(n, c, h)               { .name = n, .kind = CLI_FLAG, .default_value = "on", .cookbook = c, .help = h }
#define FIELD(n, k, v, s, c, h)   { .name = n, .kind = k, .value = v, .default_value = s, .cookbook = c, .help = h }

#define MODEL                                                                                      \
    { .name = "model", .letter = 'm', .kind = CLI_TEXT, .value = "M", .complete = "model",         \
      .cookbook = "model_name", .help = "base model, tinker:// path, log directory or local folder" }, \
    CLI_BASE_BITS,                                                                                 \
    FIELD("renderer", CLI_TEXT, "NAME", NULL, "renderer_name",                                     \
          "chat format; default: the run's own, else the model's")

/* The adapter, the optimizer, checkpoints and the log directory: as in train sft. */
#define TRAINING(rate, rate_help, rank)                                                            \
    FIELD("lr", CLI_NUMBER, "X", rate, "learning_rate", rate_help),                                \
    FIELD("lora-rank", CLI_COUNT, "N", rank, "lora_rank", "rank of the adapter"),                  \
    ON("train-mlp", "train_mlp", "adapt the MLPs"),                                                \
    ON("train-attn", "train_attn", "adapt attention"),                                             \
    ON("train-unembed", "train_unembed", "adapt the output layer"),                                \
    FIELD("adam-beta1", CLI_NUMBER, "X", "0.9", "adam_beta1", "Adam"),                             \
    FIELD("adam-beta2", CLI_NUMBER, "X", "0.95", "adam_beta2", "Adam"),                            \
    FIELD("adam-eps", CLI_NUMBER, "X", "1e-8", "adam_eps", "Adam"),                                \
    REAL("weight-decay", "0", "Adam"),                                                             \
    REAL("grad-clip", "0", "largest gradient norm; 0 = no limit"),                                 \
    FIELD("save-every", CLI_COUNT, "N", "20", "save_every", "steps between checkpoints; 0 = none"), \
    FIELD("save-every-tokens", CLI_COUNT, "N", "0", "save_every_tokens", "tokens between checkpoints; 0 = none"), \
    FIELD("save-every-seconds", CLI_COUNT, "N", "0", "save_every_seconds", "seconds between checkpoints; 0 = none"), \
    FIELD("ttl", CLI_TEXT, "DURATION", "7d", "ttl_seconds",                                        \
          "time until periodic checkpoints expire, or never"),                                     \
    FIELD("rolling-save-every", CLI_COUNT, "N", "0", "rolling_save_every",                         \
          "steps between rolling states"),                                                         \
    FIELD("rolling-ttl", CLI_DURATION, "DURATION", "2h", "rolling_ttl_seconds", "time until rolling states expire"), \
    { .name = "from", .kind = CLI_TEXT, .value = "PATH", .complete = "checkpoint",                 \
      .cookbook = "load_checkpoint_path", .help = "start from these weights" },                    \
    CLI_FROM_ADAPTER,                                                                              \
    FIELD("log-dir", CLI_DIR, "DIR", NULL, "log_path", "default: tinkc-runs/RUN_NAME"),            \
    { .name = "if-exists", .kind = CLI_CHOICE, .value = "WHAT",                                    \
      .choices = "ask|resume|delete|raise", .cookbook = "behavior_if_log_dir_exists",              \
      .help = "what to do if the log directory exists" },                                          \
    FLAG("resume", "--if-exists resume"),                                                          \
    WHOLE("seed", "N", NULL, "of the adapter and of sampling; default: a random one, kept with the run"), \
    FIELD("shuffle-seed", CLI_COUNT, "N", "0", "shuffle_seed", "order of the data"),               \
    MANY("metadata", "K=V", "kept with the run; may be repeated"),                                 \
    TEXT("hook", "CMD", "a program that gets the events on its standard input"),                   \
    CLI_PASS_ENV,                                                                                  \
    CLI_EXPORT_OPTIONS,                                                                            \
    { .name = "config", .kind = CLI_FILE, .value = "FILE",                                         \
      .help = "settings of an earlier run: its config.toml; options given here win" },             \
    { .name = "prices", .kind = CLI_FILE, .value = "FILE",                                         \
      .help = "prices for the estimate of --dry-run: lines MODEL PREFILL SAMPLE TRAIN in $ per million tokens" }, \
    FLAG("dry-run", "plan only, no network")

#define PROMPTS                                                                                    \
    { .name = "data", .kind = CLI_FILE, .value = "FILE", .repeats = true, .cookbook = "dataset",   \
      .help = "prompts; the same as an argument" },                                                \
    TEXT("prompt-field", "KEY", "where a row's prompt is; default: messages, prompt, question, problem or input"), \
    TEXT("answer-field", "KEY", "where its answer is; default: answer, solution, target or label"), \
    TEXT("system", "TEXT", "system message before every prompt"),                                  \
    TEXT("tag-field", "KEY", "metrics are also reported for each value of this member")

#define REWARDS                                                                                    \
    MANY("grader", "SPEC",                                                                         \
         "exact, contains, regex[:PATTERN], number, boxed-math, json-schema[:FILE], rubric; @W at its end is its weight; may be repeated"), \
    TEXT("reward-cmd", "CMD", "a command that grades: one JSON line for each rollout, one back"),  \
    WHOLE("reward-procs", "N", "4", "how many of it at once"),                                     \
    TEXT("reward-url", "URL", "the same by HTTP POST"),                                            \
    TIME("reward-timeout", "60s", "longest wait for a grade"),                                     \
    TEXT("rubric", "FILE", "what the rubric's model looks for; a row's own \"rubric\" wins"),      \
    TEXT("grader-model", "M", "the model that grades by the rubric")

#define EPISODES(tokens, temperature_default)                                                                     \
    FIELD("max-tokens", CLI_COUNT, "N", tokens, "max_tokens", "longest answer, in tokens"),        \
    FIELD("temperature", CLI_NUMBER, "X", temperature_default, "temperature", "0 = greedy"),                      \
    REAL("top-p", "1", "sample from the most likely tokens that make up this share"),              \
    TIME("sample-timeout", "300s", "longest wait for one answer"),                                 \
    TEXT("env-cmd", "CMD", "an environment of several turns: see docs/protocol.md"),               \
    WHOLE("env-procs", "N", "1", "how many of it at once"),                                        \
    TIME("env-timeout", "60s", "longest wait for one step of it"),                                 \
    WHOLE("max-turns", "N", "16", "longest episode, in answers"),                                  \
    WHOLE("max-episode-tokens", "N", "32768", "longest episode, in tokens")

const cli_option cli_train_rl_options[] = {
    MODEL,
    PROMPTS,
    FIELD("group-size", CLI_COUNT, "N", "4", "group_size", "answers to each prompt"),
    FIELD("groups-per-batch", CLI_COUNT, "N", "100", "groups_per_batch", "prompts in a step"),
    WHOLE("epochs", "N", "1", "times through the prompts"),
    FIELD("max-steps", CLI_COUNT, "N", NULL, "max_steps", "stop after so many"),
    REWARDS,
    EPISODES("256", "1"),
    WHOLE("max-concurrent", "N", "256", "episodes at once"),
    { .name = "loss", .kind = CLI_CHOICE, .value = "NAME", .default_value = "importance_sampling",
      .choices = "importance_sampling|ppo|cispo|dro|gspo", .cookbook = "loss_fn", .help = "loss" },
    MANY("loss-config", "K=X", "a setting of the loss, such as clip_low_threshold=0.8"),
    { .name = "advantage", .kind = CLI_CHOICE, .value = "HOW", .default_value = "mean",
      .choices = "mean|std|leave-one-out",
      .help = "reward less the group's mean; also divided by its deviation; or less the mean of the others" },
    FIELD("num-substeps", CLI_COUNT, "N", "1", "num_substeps", "optimizer steps for a batch"),
    FIELD("kl-coef", CLI_NUMBER, "X", "0", "kl_penalty_coef", "weight of the KL against the reference"),
    FIELD("kl-discount", CLI_NUMBER, "X", "0", "kl_discount_factor", "of the KL of later tokens"),
    TEXT("kl-reference", "M", "the reference; default: the weights that the run starts from"),
    FIELD("max-steps-off-policy", CLI_COUNT, "N", "1", "max_steps_off_policy",
          "steps that sampling runs ahead of training; 0 = none"),
    FIELD("remove-constant-groups", CLI_FLAG, NULL, NULL, "remove_constant_reward_groups",
          "leave groups out whose rewards are all equal"),
    { .name = "test-data", .kind = CLI_FILE, .value = "FILE", .help = "prompts to evaluate on" },
    WHOLE("test-size", "N", "0", "prompts held out"),
    FIELD("eval-every", CLI_COUNT, "N", "20", "eval_every", "steps between evaluations; 0 = none"),
    REAL("eval-temperature", "0", "temperature of evaluations"),
    TRAINING(NULL, "learning rate; default: a fifth of what sft takes for the model", "32"),
    { 0 }
};
const char *const cli_train_rl_examples[] = {
    "tinkc train rl sums.jsonl --grader number --group-size 8 --groups-per-batch 32",
    "tinkc train rl tasks.jsonl --reward-cmd 'python3 grade.py' --kl-coef 0.02",
    "tinkc train rl rows.jsonl --env-cmd build/examples/guess_env --max-turns 8", NULL
};

#define EPOCHS(batch, length)                                                                      \
    FIELD("batch-size", CLI_COUNT, "N", batch, "batch_size", "examples in a step"),                \
    FIELD("epochs", CLI_COUNT, "N", "1", "num_epochs", "times through the data"),                  \
    FIELD("max-steps", CLI_COUNT, "N", NULL, "max_steps", "stop after so many"),                   \
    FIELD("max-length", CLI_COUNT, "N", length, "max_length", "longest example in tokens"),        \
    { .name = "lr-schedule", .kind = CLI_CHOICE, .value = "HOW", .default_value = "linear",             \
      .choices = "linear|cosine|constant", .cookbook = "lr_schedule", .help = "learning-rate schedule" }, \
    WHOLE("warmup-steps", "N", "0", "steps that lead from 0 to the full rate, before the schedule"), \
    WHOLE("test-size", "N", "0", "examples held out")

const cli_option cli_train_dpo_options[] = {
    MODEL,
    { .name = "data", .kind = CLI_FILE, .value = "FILE", .repeats = true, .cookbook = "dataset",
      .help = "pairs; the same as an argument" },
    { .name = "loss", .kind = CLI_CHOICE, .value = "NAME", .default_value = "dpo", .choices = "dpo|ipo|kto",
      .help = "kto takes single examples that are marked good or bad" },
    FIELD("dpo-beta", CLI_NUMBER, "X", "0.1", "dpo_beta", "how far the model may move from the reference"),
    FLAG("length-normalized", "log-probabilities of an answer are divided by its length"),
    TEXT("reference", "M", "the reference; default: the weights that the run starts from"),
    EPOCHS("256", "8192"),
    FIELD("eval-every", CLI_COUNT, "N", "10", "eval_every", "steps between evaluations; 0 = none"),
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
    MANY("teacher", "M", "the model to learn from; with several, one for each file of prompts"),
    { .name = "context", .kind = CLI_FILE, .value = "FILE",
      .help = "a system prompt that the teacher alone sees: its effect is learnt" },
    FLAG("off-policy", "learn the teacher's most likely tokens on given conversations"),
    WHOLE("targets", "N", "20", "how many of them at each place, with --off-policy"),
    FIELD("group-size", CLI_COUNT, "N", "4", "group_size", "answers to each prompt"),
    FIELD("groups-per-batch", CLI_COUNT, "N", "1024", "groups_per_batch", "prompts in a step"),
    FIELD("kl-coef", CLI_NUMBER, "X", "1", "kl_penalty_coef", "weight of the distance from the teacher"),
    FIELD("kl-discount", CLI_NUMBER, "X", "0", "kl_discount_factor", "of the distance of later tokens"),
    EPISODES("4096", "1"),
    WHOLE("max-concurrent", "N", "256", "samples at once"),
    FIELD("num-substeps", CLI_COUNT, "N", "1", "num_substeps", "optimizer steps for a batch"),
    FIELD("max-steps-off-policy", CLI_COUNT, "N", "1", "max_steps_off_policy",
          "steps that sampling runs ahead of training; 0 = none"),
    EPOCHS("128", "16384"),
    REWARDS,
    { .name = "test-data", .kind = CLI_FILE, .value = "FILE", .help = "prompts to evaluate on" },
    FIELD("eval-every", CLI_COUNT, "N", "20", "eval_every", "steps between evaluations; 0 = none"),
    REAL("eval-temperature", "0", "temperature of evaluations"),
    TRAINING("1e-4", "learning rate", "128"),
    { 0 }
};
const char *const cli_train_distill_examples[] = {
    "tinkc train distill prompts.jsonl -m Qwen/Qwen3-8B-Base --teacher Qwen/Qwen3-8B",
    "tinkc train distill prompts.jsonl --teacher nano --context rules.txt",
    "tinkc train distill chats.jsonl --teacher Qwen/Qwen3-32B --off-policy", NULL
};

const cli_option cli_train_sweep_options[] = {
    MANY("grid", "OPTION=A,B", "values of an option of the recipe; with several, all combinations"),
    WHOLE("parallel", "N", "2", "runs at once, on one engine or service"),
    TEXT("metric", "KEY", "what the table is sorted by; default: the recipe's own"),
    { .name = "log-dir", .kind = CLI_DIR, .value = "DIR", .help = "default: tinkc-runs/sweep-TIME; one folder below it for each run" },
    FLAG("dry-run", "print the runs, start none"),
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
    { .name = "number", .letter = 'n', .kind = CLI_COUNT, .value = "N", .default_value = "1",
      .help = "answers to each prompt; more than one gives pass@k" },
    { .name = "concurrency", .letter = 'j', .kind = CLI_COUNT, .value = "N", .default_value = "64",
      .help = "episodes at once" },
    FLAG("multiple-choice", "rows have \"choices\" and the right one; the most likely one is the answer"),
    WHOLE("limit", "N", "0", "only the first N rows; 0 = all"),
    WHOLE("seed", "N", "0", "of sampling"),
    { .name = "save-dir", .kind = CLI_DIR, .value = "DIR", .help = "default: tinkc-evals/DATA-MODEL; a rerun continues there" },
    REAL("min-score", NULL, "fail (exit 12) if the score is below"),
    { 0 }
};
const char *const cli_eval_run_examples[] = {
    "tinkc eval run test.jsonl -m tinkc-runs/a --grader number --max-tokens 512",
    "tinkc eval run test.jsonl --grader boxed-math -n 8",
    "tinkc eval run quiz.jsonl --multiple-choice --min-score 0.6", NULL
};
const cli_option cli_eval_show_options[] = {
    WHOLE("number", "N", "5", "samples to show"),
    FLAG("wrong", "only those that are not right"),
    { 0 }
};
const char *const cli_eval_show_examples[] = { "tinkc eval show tinkc-evals/test-nano --wrong", NULL };
const cli_option cli_eval_compare_options[] = {
    WHOLE("number", "N", "10", "examples to show side by side"),
    FLAG("all", "also those on which both agree"),
    { 0 }
};
const char *const cli_eval_compare_examples[] = { "tinkc eval compare evals/before evals/after", NULL };

const cli_option cli_env_check_options[] = {
    TEXT("row", "JSON", "the row that episodes are reset with; default: {}"),
    TIME("timeout-each", "10s", "longest wait for an answer"),
    CLI_PASS_ENV,
    { 0 }
};
const char *const cli_env_check_examples[] = {
    "tinkc env check build/examples/guess_env", "tinkc env check 'python3 my_env.py' --row '{\"level\": 2}'", NULL
};
