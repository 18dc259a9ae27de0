/* commands.c - the table: every command, option, default and example of the program.
 *
 * Pure data, and long because all of it is in one place. The order of rows is the order of help.
 * If you add a command here, add its function to commands.h; nothing else needs to know.
 */
#include "cli/main/child.h"
#include "cli/models/model_folder.h"
#include "cli/train/adapter_start.h"
#include "cli/main/commands.h"
#include "cli/track/metric_exports.h"
#include "cli/train/train_samples.h"
#include "cli/train/recipe_options.h"

#include <string.h>

/* ---- options that several commands share ---- */

#define TRAIN_ON                                                                                   \
    "all_assistant_messages|last_assistant_message|last_assistant_turn|all_messages|all_tokens|"   \
    "all_user_and_system_messages|customized"

#define MODEL_OPTION                                                                               \
    {                                                                                              \
        .name = "model", .letter = 'm', .kind = CLI_TEXT, .value = "M", .complete = "model",       \
        .cookbook = "model_name",                                                                  \
        .help = "base model, tinker:// path, log directory or local folder"                        \
    }
#define RENDERER_OPTION                                                                            \
    {                                                                                              \
        .name = "renderer", .kind = CLI_TEXT, .value = "NAME", .cookbook = "renderer_name",        \
        .help = "chat format; default: the run's own, else the model's"                            \
    }
#define LIST_OPTIONS                                                                               \
    { .name = "limit",                                                                             \
      .kind = CLI_COUNT,                                                                           \
      .value = "N",                                                                                \
      .default_value = "20",                                                                       \
      .help = "how many to show; 0 = all" },                                                       \
        { .name = "offset",                                                                        \
          .kind = CLI_COUNT,                                                                       \
          .value = "N",                                                                            \
          .default_value = "0",                                                                    \
          .help = "where to begin" },                                                              \
        { .name = "columns",                                                                       \
          .letter = 'c',                                                                           \
          .kind = CLI_TEXT,                                                                        \
          .value = "LIST",                                                                         \
          .complete = "column",                                                                    \
          .help = "comma-separated columns; help lists them" },                                    \
        { .name = "sort", .kind = CLI_TEXT, .value = "KEY", .help = "sort by a JSON field" },      \
        { .name = "reverse", .kind = CLI_FLAG, .help = "reverse the order" },                      \
    {                                                                                              \
        .name = "filter", .kind = CLI_TEXT, .value = "EXPR", .repeats = true,                      \
        .help = "KEY=VALUE, also != < > and ~ for globs; may be repeated"                          \
    }
#define SCOPE_OPTION                                                                               \
    {                                                                                              \
        .name = "access-scope", .kind = CLI_CHOICE, .choices = "owned|accessible",                 \
        .value = "SCOPE", .default_value = "owned", .help = "whose"                                \
    }
#define SAMPLING_OPTIONS(tokens, temperature_default, p)                                           \
    { .name = "max-tokens",                                                                        \
      .kind = CLI_COUNT,                                                                           \
      .value = "N",                                                                                \
      .default_value = tokens,                                                                     \
      .cookbook = "max_tokens",                                                                    \
      .help = "longest answer, in tokens" },                                                       \
        { .name = "temperature",                                                                   \
          .kind = CLI_NUMBER,                                                                      \
          .value = "X",                                                                            \
          .default_value = temperature_default,                                                    \
          .cookbook = "temperature",                                                               \
          .help = "0 = always the likeliest token" },                                              \
        { .name = "top-p",                                                                         \
          .kind = CLI_NUMBER,                                                                      \
          .value = "X",                                                                            \
          .default_value = p,                                                                      \
          .cookbook = "top_p",                                                                     \
          .help = "sample from the likeliest tokens of this mass" },                               \
        { .name = "top-k",                                                                         \
          .kind = CLI_INT,                                                                         \
          .value = "N",                                                                            \
          .default_value = "-1",                                                                   \
          .cookbook = "top_k",                                                                     \
          .help = "sample from this many tokens; -1 = all" },                                      \
    {                                                                                              \
        .name = "seed", .kind = CLI_COUNT, .value = "N",                                           \
        .help = "the same seed gives the same answer"                                              \
    }

const cli_option cli_globals[] = {
    { .name = "format",
      .letter = 'f',
      .kind = CLI_CHOICE,
      .value = "FMT",
      .choices = "table|json|jsonl|csv|tsv|id",
      .env = "TINKC_FORMAT",
      .help = "table on a terminal, tsv in a pipe" },
    { .name = "json",
      .kind = CLI_TEXT,
      .value = "FIELDS",
      .optional_value = true,
      .help = "--format json; with fields, only those" },
    { .name = "quiet",
      .letter = 'q',
      .kind = CLI_FLAG,
      .env = "TINKC_QUIET",
      .help = "errors only, no progress" },
    { .name = "verbose",
      .letter = 'v',
      .kind = CLI_FLAG,
      .repeats = true,
      .help = "show each call and retry; -vv headers" },
    { .name = "color",
      .kind = CLI_CHOICE,
      .value = "WHEN",
      .choices = "auto|always|never",
      .default_value = "auto",
      .help = "colours" },
    { .name = "no-progress",
      .kind = CLI_FLAG,
      .env = "TINKC_NO_PROGRESS",
      .help = "no bars, no status lines" },
    { .name = "no-headers", .kind = CLI_FLAG, .help = "tables without a header" },
    { .name = "no-trunc", .kind = CLI_FLAG, .help = "do not cut table cells" },
    { .name = "time",
      .kind = CLI_CHOICE,
      .value = "STYLE",
      .choices = "relative|iso|local|epoch",
      .env = "TINKC_TIME",
      .help = "format of times" },
    { .name = "profile",
      .kind = CLI_TEXT,
      .value = "NAME",
      .env = "TINKC_PROFILE",
      .complete = "profile",
      .help = "which profile of the configuration" },
    { .name = "config-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .env = "TINKC_CONFIG_FILE",
      .help = "use only this configuration file" },
    { .name = "no-config", .kind = CLI_FLAG, .help = "use no configuration file" },
    { .name = "base-url",
      .kind = CLI_TEXT,
      .value = "URL",
      .env = "TINKER_BASE_URL",
      .cookbook = "base_url",
      .help = "the service; local: is the engine in this program" },
    { .name = "local", .kind = CLI_FLAG, .help = "--base-url local:" },
    { .name = "device",
      .kind = CLI_TEXT,
      .value = "D",
      .env = "TINKC_DEVICE",
      .help = "where the local engine computes: auto, cpu, cuda, cuda:N" },
    { .name = "dtype",
      .kind = CLI_CHOICE,
      .value = "T",
      .choices = "auto|f32|bf16",
      .env = "TINKC_DTYPE",
      .help = "of its products on a CPU; auto: bf16 where that is faster" },
    { .name = "api-key-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "read the key from a file or -" },
    { .name = "project",
      .kind = CLI_TEXT,
      .value = "ID",
      .env = "TINKER_PROJECT_ID",
      .help = "project of new sessions, filter of lists" },
    { .name = "timeout",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .env = "TINKC_TIMEOUT",
      .help = "deadline of the whole command (exit 124)" },
    { .name = "retry-for",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .env = "TINKC_RETRY_FOR",
      .help = "how long to retry; 30s to manage, 5m to work" },
    { .name = "offline",
      .kind = CLI_FLAG,
      .env = "TINKC_OFFLINE",
      .help = "any use of the network is an error" },
    { .name = "yes", .letter = 'y', .kind = CLI_FLAG, .help = "answer yes" },
    { .name = "help", .letter = 'h', .kind = CLI_FLAG, .help = "this help" },
    { .name = "version", .letter = 'V', .kind = CLI_FLAG, .help = "the version" },
    { 0 }
};

/* ---- manage ---- */

static const cli_option run_list_options[] = { LIST_OPTIONS, SCOPE_OPTION, { 0 } };
static const char *const run_list_examples[] = {
    "tinkc run list --limit 0 --json=training_run_id,base_model",
    "tinkc run list -c id,model,checkpoint", NULL
};

static const cli_option run_info_options[] = {
    SCOPE_OPTION,
    { .name = "checkpoints", .kind = CLI_FLAG, .help = "add the run's checkpoints" },
    { 0 }
};
static const char *const run_info_examples[] = { "tinkc run info b89f6676:train:0 --checkpoints",
                                                 NULL };

static const cli_option run_delete_options[] = {
    { .name = "published",
      .kind = CLI_FLAG,
      .help = "also checkpoints that others may use, because they are published" },
    { .name = "dry-run", .kind = CLI_FLAG, .help = "only show what would be deleted" },
    { 0 }
};
static const char *const run_delete_examples[] = { "tinkc run delete faq --dry-run",
                                                   "tinkc run delete b89f6676:train:0 --yes", NULL };

static const cli_option checkpoint_list_options[] = {
    { .name = "run-id",
      .kind = CLI_TEXT,
      .value = "ID",
      .complete = "run",
      .help = "only of this run" },
    { .name = "type",
      .kind = CLI_CHOICE,
      .value = "KIND",
      .choices = "weights|sampler_weights|external_weights|training|sampler|external",
      .help = "only this kind" },
    { .name = "before", .kind = CLI_DATE, .value = "DATE", .help = "created before" },
    { .name = "after", .kind = CLI_DATE, .value = "DATE", .help = "created after" },
    LIST_OPTIONS,
    { 0 }
};
static const char *const checkpoint_list_examples[] = {
    "tinkc checkpoint list --run-id R", "tinkc checkpoint list --type sampler --before=-30d -f id",
    NULL
};

static const cli_option checkpoint_search_options[] = {
    { .name = "base-model",
      .kind = CLI_TEXT,
      .value = "MODEL",
      .repeats = true,
      .help = "only of this model; again for more" },
    { .name = "type",
      .kind = CLI_CHOICE,
      .value = "KIND",
      .choices = "weights|sampler_weights|external_weights|training|sampler|external",
      .help = "only this kind" },
    { .name = "metadata",
      .kind = CLI_TEXT,
      .value = "NAME=VALUE",
      .repeats = true,
      .help = "saved with this; all that are given must match" },
    { .name = "project",
      .kind = CLI_TEXT,
      .value = "ID",
      .repeats = true,
      .help = "only of this project; again for more" },
    { .name = "owner",
      .kind = CLI_TEXT,
      .value = "URN",
      .repeats = true,
      .help = "of this user; again for up to 10" },
    { .name = "accessible", .kind = CLI_FLAG, .help = "all that you may read, not only your own" },
    { .name = "before", .kind = CLI_DATE, .value = "DATE", .help = "created before" },
    { .name = "after", .kind = CLI_DATE, .value = "DATE", .help = "created after" },
    LIST_OPTIONS,
    { 0 }
};
static const char *const checkpoint_search_examples[] = {
    "tinkc checkpoint search --base-model Qwen/Qwen3-8B --type sampler",
    "tinkc checkpoint search --metadata recipe=sft --limit 0", NULL
};

static const char *const checkpoint_info_examples[] = {
    "tinkc checkpoint info tinker://RUN/weights/0001", NULL
};

static const char *const checkpoint_publish_examples[] = {
    "tinkc checkpoint publish tinker://RUN/sampler_weights/final", NULL
};

static const char *const checkpoint_unpublish_examples[] = {
    "tinkc checkpoint unpublish tinker://RUN/sampler_weights/final", NULL
};

static const cli_option checkpoint_set_ttl_options[] = {
    { .name = "ttl",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .help = "delete it after this time" },
    { .name = "remove", .kind = CLI_FLAG, .help = "keep it without a limit" },
    { 0 }
};
static const char *const checkpoint_set_ttl_examples[] = {
    "tinkc checkpoint set-ttl tinker://RUN/weights/0001 --ttl 7d", NULL
};

static const cli_option checkpoint_delete_options[] = {
    { .name = "run-id",
      .kind = CLI_TEXT,
      .value = "ID",
      .complete = "run",
      .help = "all of this run, narrowed by the filters" },
    { .name = "type",
      .kind = CLI_CHOICE,
      .value = "KIND",
      .choices = "weights|sampler_weights|external_weights|training|sampler|external",
      .help = "only this kind" },
    { .name = "before", .kind = CLI_DATE, .value = "DATE", .help = "created before" },
    { .name = "after", .kind = CLI_DATE, .value = "DATE", .help = "created after" },
    { .name = "keep-last",
      .kind = CLI_COUNT,
      .value = "N",
      .help = "keep the newest N of each run" },
    { .name = "dry-run", .kind = CLI_FLAG, .help = "only show what would be deleted" },
    { .name = "jobs",
      .letter = 'j',
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "32",
      .help = "how many at once" },
    { 0 }
};
static const char *const checkpoint_delete_examples[] = {
    "tinkc checkpoint delete tinker://RUN/weights/0001",
    "tinkc checkpoint delete --run-id R --before=-30d --dry-run", NULL
};

static const cli_option checkpoint_download_options[] = {
    { .name = "output",
      .letter = 'o',
      .kind = CLI_DIR,
      .value = "DIR",
      .default_value = ".",
      .help = "where its folder is made" },
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "replace an existing folder when the download is complete" },
    { .name = "archive",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "keep the tar instead of unpacking it" },
    { .name = "flat", .kind = CLI_FLAG, .help = "unpack into the output folder itself" },
    { .name = "name", .kind = CLI_TEXT, .value = "NAME", .help = "name of the folder" },
    { .name = "portable-names", .kind = CLI_FLAG, .help = "no colons in the folder's name" },
    { 0 }
};
static const char *const checkpoint_download_examples[] = {
    "tinkc checkpoint download tinker://RUN/sampler_weights/final -o out", NULL
};

static const char *const checkpoint_url_examples[] = {
    "curl -o a.tar \"$(tinkc checkpoint url tinker://RUN/weights/0001)\"", NULL
};

static const cli_option checkpoint_copy_options[] = {
    { .name = "name", .kind = CLI_TEXT, .value = "NAME", .help = "name of the copy" },
    { .name = "kind",
      .kind = CLI_CHOICE,
      .value = "KIND",
      .default_value = "sampler",
      .choices = "sampler|training",
      .help = "what is saved" },
    { .name = "source-token-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "token of the account that owns the source" },
    { 0 }
};
static const char *const checkpoint_copy_examples[] = {
    "tinkc checkpoint copy tinker://RUN/weights/final --name mine", NULL
};

static const cli_option checkpoint_upload_options[] = {
    { .name = "model",
      .letter = 'm',
      .kind = CLI_TEXT,
      .value = "NAME",
      .help = "base model; default: what the adapter's configuration names" },
    { .name = "project", .kind = CLI_TEXT, .value = "ID", .help = "project that owns it" },
    { 0 }
};
static const char *const checkpoint_upload_examples[] = {
    "tinkc checkpoint upload ./adapter -m Qwen/Qwen3-8B", NULL
};

static const cli_option session_list_options[] = { LIST_OPTIONS, SCOPE_OPTION, { 0 } };
static const char *const session_list_examples[] = { "tinkc session list", NULL };

static const cli_option session_info_options[] = { SCOPE_OPTION, { 0 } };
static const char *const session_info_examples[] = { "tinkc session info S", NULL };

static const char *const session_move_examples[] = { "tinkc session move S --project P", NULL };

static const cli_option session_export_trace_options[] = {
    { .name = "output",
      .letter = 'o',
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "default: ./SESSION_ID.pftrace" },
    { .name = "url-only", .kind = CLI_FLAG, .help = "print the signed address and stop" },
    { 0 }
};
static const char *const session_export_trace_examples[] = {
    "tinkc session export-trace S -o trace.pftrace", NULL
};

static const cli_option model_list_options[] = {
    LIST_OPTIONS,
    { .name = "supported", .kind = CLI_FLAG, .help = "only models that tinkc knows" },
    { 0 }
};
static const char *const model_list_examples[] = { "tinkc model list --json",
                                                   "tinkc model list qwen3", NULL };

static const cli_option model_info_options[] = { { .name = "rank",
                                                   .kind = CLI_COUNT,
                                                   .value = "N",
                                                   .default_value = "32",
                                                   .help = "LoRA rank to count parameters for" },
                                                 { 0 } };
static const char *const model_add_examples[] = { "tinkc model add /old/place/mine ./mine", NULL };
static const char *const model_info_examples[] = { "tinkc model info Qwen/Qwen3-8B",
                                                   "tinkc model info ./my-model", NULL };

static const char *const sampler_info_examples[] = { "tinkc sampler info ID", NULL };

static const cli_option billing_usage_options[] = {
    { .name = "csv",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "usage rows as CSV; - is standard output" },
    { .name = "sessions-csv", .kind = CLI_FILE, .value = "FILE", .help = "the sessions as CSV" },
    { .name = "group-by", .kind = CLI_TEXT, .value = "FIELDS", .help = "sum by these fields" },
    { .name = "columns",
      .letter = 'c',
      .kind = CLI_TEXT,
      .value = "LIST",
      .complete = "column",
      .help = "comma-separated columns" },
    { 0 }
};
static const cli_option billing_storage_options[] = {
    { .name = "project-id", .kind = CLI_TEXT, .value = "ID", .help = "only of this project" },
    { .name = "csv",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "rows as CSV; - is standard output" },
    { .name = "columns",
      .letter = 'c',
      .kind = CLI_TEXT,
      .value = "LIST",
      .complete = "column",
      .help = "comma-separated columns" },
    { 0 }
};
static const char *const billing_storage_examples[] = { "tinkc billing checkpoint-storage --json",
                                                        NULL };

static const char *const billing_usage_examples[] = {
    "tinkc billing usage -- -7d now --group-by base_model", NULL
};

static const cli_option audit_list_options[] = {
    { .name = "day",
      .kind = CLI_DATE,
      .value = "DAY",
      .default_value = "today",
      .help = "a UTC day" },
    { .name = "type",
      .kind = CLI_CHOICE,
      .value = "TYPE",
      .default_value = "all",
      .choices = "all|checkpoints|projects|teams|organizations",
      .help = "which events" },
    { .name = "columns",
      .letter = 'c',
      .kind = CLI_TEXT,
      .value = "LIST",
      .complete = "column",
      .help = "comma-separated columns" },
    { 0 }
};
static const char *const audit_list_examples[] = { "tinkc audit list --day yesterday", NULL };

static const cli_option audit_sync_options[] = {
    { .name = "output",
      .letter = 'o',
      .kind = CLI_DIR,
      .value = "DIR",
      .default_value = "audit_logs",
      .help = "where" },
    { .name = "backfill-days",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "7",
      .help = "how far back" },
    { .name = "every",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .help = "repeat at this interval" },
    { .name = "type",
      .kind = CLI_CHOICE,
      .value = "TYPE",
      .default_value = "all",
      .choices = "all|checkpoints|projects|teams|organizations",
      .help = "which events" },
    { 0 }
};
static const char *const audit_sync_examples[] = { "tinkc audit sync -o audit --every 1h", NULL };

static const cli_option auth_login_options[] = {
    { .name = "credential-cmd",
      .kind = CLI_TEXT,
      .value = "CMD",
      .help = "a command that prints the credential" },
    { .name = "no-check", .kind = CLI_FLAG, .help = "store it without asking the service" },
    { 0 }
};
static const char *const auth_login_examples[] = {
    "tinkc auth login", "pass tinker | tinkc auth login --api-key-file -", NULL
};

static const cli_option auth_status_options[] = {
    { .name = "no-check", .kind = CLI_FLAG, .help = "do not ask the service" }, { 0 }
};
static const char *const auth_status_examples[] = { "tinkc auth status --json", NULL };

static const char *const auth_logout_examples[] = { "tinkc auth logout --profile work", NULL };

static const cli_option auth_token_options[] = {
    { .name = "export", .kind = CLI_FLAG, .help = "as a line for the shell" }, { 0 }
};
static const char *const auth_token_examples[] = { "eval \"$(tinkc auth token --export)\"", NULL };

static const char *const auth_whoami_examples[] = { "tinkc auth whoami --json", NULL };
static const char *const whoami_examples[] = { "tinkc whoami --json", NULL };

/* ---- work ---- */

static const cli_option sample_options[] = {
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "load the model even if it does not fit into memory" },
    MODEL_OPTION,
    CLI_BASE_BITS,
    CLI_FROM_ADAPTER,
    { .name = "base-model",
      .kind = CLI_TEXT,
      .value = "ID",
      .complete = "model",
      .cookbook = "base_model",
      .help = "base model, spelled out" },
    { .name = "model-path",
      .kind = CLI_TEXT,
      .value = "PATH",
      .complete = "checkpoint",
      .cookbook = "model_path",
      .help = "sampler weights, spelled out" },
    { .name = "prompt", .letter = 'p', .kind = CLI_TEXT, .value = "TEXT", .help = "the prompt" },
    { .name = "prompt-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "the prompt from a file; also a JSON array of ids" },
    { .name = "messages", .kind = CLI_FILE, .value = "FILE", .help = "JSON messages" },
    { .name = "system",
      .letter = 's',
      .kind = CLI_TEXT,
      .value = "TEXT",
      .help = "system message" },
    { .name = "raw", .kind = CLI_FLAG, .help = "continue the text as it is" },
    RENDERER_OPTION,
    { .name = "num-samples",
      .letter = 'n',
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "1",
      .help = "how many answers" },
    SAMPLING_OPTIONS("512", "1.0", "1.0"),
    { .name = "stop",
      .kind = CLI_TEXT,
      .value = "TEXT",
      .repeats = true,
      .help = "end the answer here; may be repeated" },
    { .name = "stop-token",
      .kind = CLI_COUNT,
      .value = "ID",
      .repeats = true,
      .help = "end at this token; may be repeated" },
    { .name = "logprobs", .kind = CLI_FLAG, .help = "show log-probabilities" },
    { .name = "prompt-logprobs", .kind = CLI_FLAG, .help = "of the prompt too" },
    { .name = "topk-prompt-logprobs",
      .kind = CLI_COUNT,
      .value = "K",
      .default_value = "0",
      .help = "and the likeliest K for each of its tokens" },
    { .name = "thinking",
      .kind = CLI_CHOICE,
      .value = "HOW",
      .default_value = "show",
      .choices = "show|hide|only",
      .help = "reasoning in the answer" },
    { .name = "stream", .kind = CLI_FLAG, .help = "print as it comes; default on a terminal" },
    { .name = "output",
      .letter = 'o',
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "instead of standard output" },
    { .name = "batch", .kind = CLI_FILE, .value = "FILE", .help = "JSON lines in, JSON lines out" },
    { .name = "jobs",
      .letter = 'j',
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "64",
      .help = "requests in flight with --batch" },
    { .name = "unordered", .kind = CLI_FLAG, .help = "--batch: as they finish" },
    { .name = "resume", .kind = CLI_FLAG, .help = "--batch: skip ids that the output has" },
    { .name = "as-conversation", .kind = CLI_FLAG, .help = "--batch: write a training file" },
    { .name = "drop-system",
      .kind = CLI_FLAG,
      .help = "--as-conversation: without system messages" },
    { 0 }
};
static const char *const sample_examples[] = {
    "tinkc sample \"What is 7 + 5?\"", "tinkc sample -m Qwen/Qwen3-8B -n 4 --json < prompt.txt",
    "tinkc sample --batch in.jsonl -o out.jsonl", NULL
};

static const cli_option chat_options[] = {
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "load the model even if it does not fit into memory" },
    MODEL_OPTION,
    CLI_BASE_BITS,
    CLI_FROM_ADAPTER,
    { .name = "system",
      .letter = 's',
      .kind = CLI_TEXT,
      .value = "TEXT",
      .help = "system message" },
    RENDERER_OPTION,
    SAMPLING_OPTIONS("512", "0.7", "0.9"),
    { .name = "thinking",
      .kind = CLI_CHOICE,
      .value = "HOW",
      .default_value = "dim",
      .choices = "show|dim|hide",
      .help = "reasoning on the screen" },
    { .name = "load", .kind = CLI_FILE, .value = "FILE", .help = "begin with this conversation" },
    { .name = "save",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "save the conversation at the end" },
    { .name = "turns",
      .kind = CLI_FLAG,
      .help = "without a terminal: each line is a message of its own" },
    { .name = "no-history", .kind = CLI_FLAG, .help = "do not keep the lines you type" },
    { 0 }
};
static const char *const chat_examples[] = { "tinkc chat",
                                             "tinkc chat -m tinkc-runs/a -s \"You are a pirate.\"",
                                             "tinkc chat --turns --json < questions.txt", NULL };

static const cli_option logprobs_options[] = {
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "load the model even if it does not fit into memory" },
    MODEL_OPTION,
    CLI_BASE_BITS,
    CLI_FROM_ADAPTER,
    RENDERER_OPTION,
    { .name = "text", .kind = CLI_TEXT, .value = "TEXT", .help = "the text itself" },
    { .name = "messages", .kind = CLI_FLAG, .help = "the input is JSON messages" },
    { .name = "tokens", .kind = CLI_FLAG, .help = "the input is token ids" },
    { .name = "sum", .kind = CLI_FLAG, .help = "only the sum" },
    { .name = "bpb", .kind = CLI_FLAG, .help = "only bits per byte" },
    { 0 }
};
static const char *const logprobs_examples[] = { "echo \"the cat sat\" | tinkc logprobs --sum",
                                                 NULL };

static const cli_option train_sft_options[] = {
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "load the model even if it does not fit into memory" },
    MODEL_OPTION,
    CLI_BASE_BITS,
    { .name = "data",
      .kind = CLI_FILE,
      .value = "FILE",
      .repeats = true,
      .cookbook = "dataset",
      .help = "training data; the same as an argument" },
    { .name = "test-data",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "separate file to evaluate on" },
    RENDERER_OPTION,
    { .name = "train-on",
      .kind = CLI_CHOICE,
      .value = "WHAT",
      .default_value = "all_assistant_messages",
      .choices = TRAIN_ON,
      .cookbook = "train_on_what",
      .help = "which tokens are learnt" },
    { .name = "split-turns", .kind = CLI_FLAG, .help = "one example for each answer" },
    { .name = "max-length",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "16384",
      .cookbook = "max_length",
      .help = "longest example in tokens; 0 = the model's limit" },
    { .name = "batch-size",
      .kind = CLI_TEXT,
      .value = "N",
      .default_value = "auto",
      .cookbook = "batch_size",
      .help = "examples in a step" },
    { .name = "keep-last", .kind = CLI_FLAG, .help = "keep the smaller last batch of an epoch" },
    { .name = "epochs",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "1",
      .cookbook = "num_epochs",
      .help = "times through the data" },
    { .name = "max-steps",
      .kind = CLI_COUNT,
      .value = "N",
      .cookbook = "max_steps",
      .help = "stop after this many steps" },
    { .name = "lr",
      .kind = CLI_TEXT,
      .value = "X",
      .default_value = "auto",
      .cookbook = "learning_rate",
      .help = "learning rate" },
    { .name = "lr-schedule",
      .kind = CLI_CHOICE,
      .value = "HOW",
      .default_value = "linear",
      .choices = "linear|cosine|constant",
      .cookbook = "lr_schedule",
      .help = "learning-rate schedule" },
    { .name = "warmup-steps",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .help = "steps that lead from 0 to the full rate, before the schedule" },
    { .name = "lora-rank",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "32",
      .cookbook = "lora_rank",
      .help = "rank of the adapter" },
    { .name = "train-mlp",
      .kind = CLI_FLAG,
      .default_value = "on",
      .cookbook = "train_mlp",
      .help = "adapt the MLPs" },
    { .name = "train-attn",
      .kind = CLI_FLAG,
      .default_value = "on",
      .cookbook = "train_attn",
      .help = "adapt attention" },
    { .name = "train-unembed",
      .kind = CLI_FLAG,
      .default_value = "on",
      .cookbook = "train_unembed",
      .help = "adapt the output layer" },
    { .name = "adam-beta1",
      .kind = CLI_NUMBER,
      .value = "X",
      .default_value = "0.9",
      .cookbook = "adam_beta1",
      .help = "Adam" },
    { .name = "adam-beta2",
      .kind = CLI_NUMBER,
      .value = "X",
      .default_value = "0.95",
      .cookbook = "adam_beta2",
      .help = "Adam" },
    { .name = "adam-eps",
      .kind = CLI_NUMBER,
      .value = "X",
      .default_value = "1e-8",
      .cookbook = "adam_eps",
      .help = "Adam" },
    { .name = "weight-decay",
      .kind = CLI_NUMBER,
      .value = "X",
      .default_value = "0",
      .help = "Adam" },
    { .name = "grad-clip",
      .kind = CLI_NUMBER,
      .value = "X",
      .default_value = "0",
      .help = "largest gradient norm; 0 = no limit" },
    { .name = "reduction",
      .kind = CLI_CHOICE,
      .value = "HOW",
      .default_value = "mean",
      .choices = "mean|none",
      .help = "mean: each example weighs the same" },
    { .name = "test-size",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .cookbook = "test_size",
      .help = "examples held out" },
    { .name = "eval-every",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "20",
      .cookbook = "eval_every",
      .help = "steps between evaluations; 0 = none" },
    { .name = "save-every",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "20",
      .cookbook = "save_every",
      .help = "steps between checkpoints; 0 = none" },
    { .name = "save-every-tokens",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .cookbook = "save_every_tokens",
      .help = "tokens between checkpoints; 0 = none" },
    { .name = "save-every-seconds",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .cookbook = "save_every_seconds",
      .help = "seconds between checkpoints; 0 = none" },
    { .name = "ttl",
      .kind = CLI_TEXT,
      .value = "DURATION",
      .default_value = "7d",
      .cookbook = "ttl_seconds",
      .help = "time until periodic checkpoints expire, or never" },
    { .name = "rolling-save-every",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .cookbook = "rolling_save_every",
      .help = "steps between rolling states" },
    { .name = "rolling-ttl",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .default_value = "2h",
      .cookbook = "rolling_ttl_seconds",
      .help = "time until rolling states expire" },
    { .name = "from",
      .kind = CLI_TEXT,
      .value = "PATH",
      .complete = "checkpoint",
      .cookbook = "load_checkpoint_path",
      .help = "start from these weights" },
    CLI_FROM_ADAPTER,
    { .name = "log-dir",
      .kind = CLI_DIR,
      .value = "DIR",
      .cookbook = "log_path",
      .help = "default: tinkc-runs/RUN_NAME" },
    { .name = "if-exists",
      .kind = CLI_CHOICE,
      .value = "WHAT",
      .choices = "ask|resume|delete|raise",
      .cookbook = "behavior_if_log_dir_exists",
      .help = "what to do if the log directory exists" },
    { .name = "resume", .kind = CLI_FLAG, .help = "--if-exists resume" },
    { .name = "seed",
      .kind = CLI_COUNT,
      .value = "N",
      .help = "of the adapter; default: a random one, kept with the run" },
    { .name = "shuffle-seed",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .cookbook = "shuffle_seed",
      .help = "order of the data" },
    { .name = "submit-ahead",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "1",
      .cookbook = "submit_ahead",
      .help = "steps sent before waiting, at most 8" },
    { .name = "metadata",
      .kind = CLI_TEXT,
      .value = "K=V",
      .repeats = true,
      .help = "kept with the run; may be repeated" },
    { .name = "preview",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .help = "print N rendered examples first" },
    { .name = "hook",
      .kind = CLI_TEXT,
      .value = "CMD",
      .help = "a program that gets the events on its standard input" },
    CLI_PASS_ENV,
    CLI_EXPORT_OPTIONS,
    CLI_SAMPLE_OPTIONS,
    { .name = "config",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "settings of an earlier run: its config.toml; options given here win" },
    { .name = "dry-run", .kind = CLI_FLAG, .help = "plan only, no network" },
    { 0 }
};
static const char *const train_sft_examples[] = {
    "tinkc train sft data.jsonl --epochs 3",
    "tinkc train sft d.jsonl -m Qwen/Qwen3-8B --log-dir runs/a --resume",
    "tinkc train sft model_name=Qwen/Qwen3-8B dataset=d.jsonl learning_rate=5e-4", NULL
};

static const cli_option train_resume_options[] = {
    { .name = "max-steps", .kind = CLI_COUNT, .value = "N", .help = "stop after this many steps" },
    { 0 }
};
static const char *const train_resume_examples[] = { "tinkc train resume tinkc-runs/a", NULL };

static const cli_option data_check_options[] = { MODEL_OPTION,
                                                 RENDERER_OPTION,
                                                 { .name = "max-length",
                                                   .kind = CLI_COUNT,
                                                   .value = "N",
                                                   .default_value = "16384",
                                                   .help = "longest example in tokens" },
                                                 { .name = "train-on",
                                                   .kind = CLI_CHOICE,
                                                   .choices = TRAIN_ON,
                                                   .value = "WHAT",
                                                   .default_value = "all_assistant_messages",
                                                   .help = "which tokens are learnt" },
                                                 { 0 } };
static const char *const data_check_examples[] = { "tinkc data check d.jsonl",
                                                   "tinkc data check d.jsonl -m Qwen/Qwen3-8B",
                                                   NULL };

static const cli_option data_stats_options[] = { MODEL_OPTION,
                                                 RENDERER_OPTION,
                                                 { .name = "train-on",
                                                   .kind = CLI_CHOICE,
                                                   .choices = TRAIN_ON,
                                                   .value = "WHAT",
                                                   .default_value = "all_assistant_messages",
                                                   .help = "which tokens are learnt" },
                                                 { 0 } };
static const char *const data_stats_examples[] = { "tinkc data stats d.jsonl", NULL };

static const cli_option data_preview_options[] = { MODEL_OPTION,
                                                   RENDERER_OPTION,
                                                   { .name = "number",
                                                     .letter = 'n',
                                                     .kind = CLI_COUNT,
                                                     .value = "N",
                                                     .default_value = "3",
                                                     .help = "how many" },
                                                   { .name = "train-on",
                                                     .kind = CLI_CHOICE,
                                                     .choices = TRAIN_ON,
                                                     .value = "WHAT",
                                                     .default_value = "all_assistant_messages",
                                                     .help = "which tokens are learnt" },
                                                   { 0 } };
static const char *const data_preview_examples[] = { "tinkc data preview d.jsonl -n 1", NULL };

static const cli_option data_split_options[] = {
    { .name = "test", .kind = CLI_COUNT, .value = "N", .help = "examples to hold out" },
    { .name = "seed", .kind = CLI_COUNT, .value = "N", .default_value = "0", .help = "which ones" },
    { .name = "output",
      .letter = 'o',
      .kind = CLI_DIR,
      .value = "DIR",
      .default_value = ".",
      .help = "where the two files go" },
    { 0 }
};
static const char *const data_split_examples[] = { "tinkc data split d.jsonl --test 100 -o out",
                                                   NULL };

static const cli_option data_convert_options[] = { { .name = "from",
                                                     .kind = CLI_CHOICE,
                                                     .value = "FORM",
                                                     .default_value = "auto",
                                                     .choices =
                                                         "auto|openai|sharegpt|alpaca|"
                                                         "completion|preference|verl|pairs|text",
                                                     .help = "form of its rows" },
                                                   { .name = "output",
                                                     .letter = 'o',
                                                     .kind = CLI_FILE,
                                                     .value = "FILE",
                                                     .default_value = "-",
                                                     .help = "output file" },
                                                   { 0 } };
static const char *const data_convert_examples[] = {
    "tinkc data convert s.json -o d.jsonl", "tinkc data convert s.json --from sharegpt -o d.jsonl",
    NULL
};

static const cli_option logs_show_options[] = {
    { .name = "metric",
      .kind = CLI_TEXT,
      .value = "KEYS",
      .help = "comma-separated; default: the usual ones" },
    { .name = "last",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "20",
      .help = "rows; 0 = all" },
    { .name = "checkpoints", .kind = CLI_FLAG, .help = "its checkpoints instead" },
    { 0 }
};
static const char *const logs_show_examples[] = { "tinkc logs show tinkc-runs/a", NULL };

static const cli_option logs_tail_options[] = {
    { .name = "metric", .kind = CLI_TEXT, .value = "KEYS", .help = "comma-separated" }, { 0 }
};
static const char *const logs_tail_examples[] = { "tinkc logs tail tinkc-runs/a", NULL };

static const cli_option logs_plot_options[] = {
    { .name = "metric",
      .kind = CLI_TEXT,
      .value = "KEY",
      .help = "what to draw; default: the run's loss or reward" },
    { .name = "height", .kind = CLI_COUNT, .value = "N", .default_value = "15", .help = "rows" },
    { 0 }
};
static const char *const logs_plot_examples[] = { "tinkc logs plot tinkc-runs/a --metric test/nll",
                                                  NULL };

static const cli_option logs_trace_options[] = {
    { .name = "output",
      .letter = 'o',
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "where it goes; DIR/trace.json if not given, - is standard output" },
    { 0 }
};
static const char *const logs_trace_examples[] = { "tinkc logs trace tinkc-runs/a -o a.json",
                                                   NULL };

static const cli_option logs_report_options[] = { { .name = "output",
                                                    .letter = 'o',
                                                    .kind = CLI_FILE,
                                                    .value = "FILE",
                                                    .default_value = "report.html",
                                                    .help = "where it goes; - is standard output" },
                                                  { 0 } };
static const char *const logs_report_examples[] = { "tinkc logs report tinkc-runs/a -o a.html",
                                                    "tinkc logs report tinkc-runs", NULL };

static const cli_option tokenizer_encode_options[] = {
    MODEL_OPTION,
    { .name = "file", .kind = CLI_FILE, .value = "FILE", .help = "text from a file" },
    { .name = "special", .kind = CLI_FLAG, .help = "special tokens in the text are understood" },
    { .name = "bos", .kind = CLI_FLAG, .help = "add the begin and end marks" },
    { .name = "pieces", .kind = CLI_FLAG, .help = "id and piece, one a line" },
    { .name = "lines", .kind = CLI_FLAG, .help = "one id a line" },
    { 0 }
};
static const char *const tokenizer_encode_examples[] = {
    "tinkc tokenizer encode -m models/nano \"hello\"", NULL
};

static const cli_option tokenizer_decode_options[] = {
    MODEL_OPTION,
    { .name = "skip-special", .kind = CLI_FLAG, .help = "leave special tokens out" },
    { .name = "bytes", .kind = CLI_FLAG, .help = "exact bytes, also where they are not UTF-8" },
    { 0 }
};
static const char *const tokenizer_decode_examples[] = {
    "tinkc tokenizer decode -m models/nano 1 2 3", NULL
};

static const cli_option tokenizer_count_options[] = { MODEL_OPTION, { 0 } };
static const char *const tokenizer_count_examples[] = {
    "tinkc tokenizer count -m models/nano *.txt", NULL
};

static const cli_option tokenizer_chat_template_options[] = {
    MODEL_OPTION,
    RENDERER_OPTION,
    { .name = "no-generation-prompt",
      .kind = CLI_FLAG,
      .help = "do not end where the assistant speaks" },
    { .name = "tools", .kind = CLI_FILE, .value = "FILE", .help = "JSON array of tools" },
    { .name = "train-on",
      .kind = CLI_CHOICE,
      .choices = TRAIN_ON,
      .value = "WHAT",
      .help = "with --weights: which tokens are learnt" },
    { .name = "weights", .kind = CLI_FLAG, .help = "mark the learnt tokens" },
    { .name = "text", .kind = CLI_FLAG, .help = "as text, the default" },
    { .name = "ids", .kind = CLI_FLAG, .help = "as token ids" },
    { 0 }
};
static const char *const tokenizer_chat_template_examples[] = {
    "tinkc tokenizer chat-template -m models/nano < messages.json", NULL
};

static const cli_option tokenizer_info_options[] = { MODEL_OPTION, { 0 } };
static const char *const tokenizer_info_examples[] = { "tinkc tokenizer info -m models/nano",
                                                       NULL };

/* ---- local ---- */

static const cli_option serve_options[] = {
    { .name = "force",
      .kind = CLI_FLAG,
      .help = "load the models even if one does not fit into memory" },
    { .name = "model",
      .letter = 'm',
      .kind = CLI_TEXT,
      .value = "M",
      .repeats = true,
      .help = "folder, or NAME=FOLDER; may be repeated" },
    CLI_BASE_BITS,
    { .name = "host",
      .kind = CLI_TEXT,
      .value = "ADDR",
      .default_value = "127.0.0.1",
      .help = "address to listen on" },
    { .name = "port",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "8000",
      .help = "0 = any that is free" },
    { .name = "unix", .kind = CLI_FILE, .value = "PATH", .help = "a UNIX socket instead" },
    { .name = "allow-host",
      .kind = CLI_TEXT,
      .value = "NAME",
      .repeats = true,
      .help = "a further name of this server, or of pages that may use it; may be repeated" },
    { .name = "auth-token-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "keys that clients must send, one a line; read again on SIGHUP" },
    { .name = "threads",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .help = "0 = all cores" },
    { .name = "memory",
      .kind = CLI_SIZE,
      .value = "SIZE",
      .default_value = "0",
      .help = "budget; 0 = most of what is free" },
    { .name = "store",
      .kind = CLI_DIR,
      .value = "DIR",
      .help = "checkpoints and sessions; none = the user's data folder" },
    { .name = "durability",
      .kind = CLI_CHOICE,
      .value = "LEVEL",
      .choices = "checkpoint|snapshot|journal",
      .help = "what survives a crash; default: journal if the store is shared, else snapshot" },
    { .name = "session-timeout",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .default_value = "300",
      .help = "without heartbeat" },
    { .name = "max-rank",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "256",
      .help = "largest LoRA rank" },
    { .name = "max-context",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .help = "longest text in tokens; 0 = the model's own" },
    { .name = "max-batch-tokens",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .help = "most tokens computed at once; 0 = the engine's own" },
    { .name = "max-adapters",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "0",
      .help = "most training runs in memory; 0 = what fits" },
    { .name = "log", .kind = CLI_FILE, .value = "FILE", .help = "access log; - is standard error" },
    { .name = "metrics", .kind = CLI_FLAG, .help = "Prometheus text at /metrics" },
    { .name = "chat-apis",
      .kind = CLI_FLAG,
      .help = "also OpenAI's API under /v1, Anthropic's under /anthropic/api" },
    { .name = "openai", .kind = CLI_FLAG, .help = "the same as --chat-apis" },
    { .name = "page", .kind = CLI_FLAG, .default_value = "on", .help = "a page for browsers at /" },
    { .name = "log-dir",
      .kind = CLI_DIR,
      .value = "DIR",
      .repeats = true,
      .help = "runs that the page shows; ./tinkc-runs if none is given and no keys are needed" },
    { .name = "set",
      .kind = CLI_TEXT,
      .value = "NAME=VALUE",
      .repeats = true,
      .help = "a setting of the engine (docs/server.md); may be repeated" },
    { .name = "ready-fd",
      .kind = CLI_COUNT,
      .value = "N",
      .help = "write the address there when ready" },
    { .name = "stop-fd",
      .kind = CLI_COUNT,
      .value = "N",
      .help = "stop when this descriptor ends: the other side of a pipe is closed, or its process "
              "has ended" },
    { 0 }
};
static const cli_option ui_options[] = {
    { .name = "host",
      .kind = CLI_TEXT,
      .value = "ADDR",
      .default_value = "127.0.0.1",
      .help = "address to listen on" },
    { .name = "port",
      .kind = CLI_COUNT,
      .value = "N",
      .default_value = "8080",
      .help = "0 = any that is free" },
    { .name = "auth-token-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "keys that the page asks for, one a line" },
    { .name = "open", .kind = CLI_FLAG, .help = "start a browser" },
    { .name = "ready-fd",
      .kind = CLI_COUNT,
      .value = "N",
      .help = "write the address there when ready" },
    { 0 }
};
static const char *const ui_examples[] = { "tinkc ui", "tinkc ui runs/a runs/b --open", NULL };

static const char *const serve_examples[] = { "tinkc serve", "tinkc serve ./Qwen3-0.6B --port 9000",
                                              NULL };

static const cli_option doctor_options[] = {
    { .name = "online",
      .kind = CLI_FLAG,
      .help = "ask the service whatever is configured; no credential is then a failure" },
    { 0 }
};
static const char *const doctor_examples[] = { "tinkc doctor --json", "tinkc doctor --online",
                                               NULL };

static const char *const store_check_examples[] = { "tinkc store check", "tinkc store check DIR -v",
                                                    NULL };
static const cli_option store_repair_options[] = {
    { .name = "key-file",
      .kind = CLI_FILE,
      .value = "FILE",
      .help = "its first word is the key whose runs a rebuilt store holds; none = a server without "
              "keys" },
    { 0 }
};
static const char *const store_repair_examples[] = { "tinkc store repair DIR", NULL };
static const char *const store_usage_examples[] = { "tinkc store usage", "tinkc store usage DIR --json",
                                                    NULL };
static const cli_option store_gc_options[] = {
    { .name = "delete", .kind = CLI_FLAG, .help = "do it; without it, what would go is shown" },
    { .name = "silent",
      .kind = CLI_DURATION,
      .value = "DURATION",
      .default_value = "7d",
      .help = "a run whose client has sent nothing for so long is finished" },
    { .name = "steps",
      .kind = CLI_FLAG,
      .help = "also checkpoints that training named by their step, where the run has a final one" },
    { 0 }
};
static const char *const store_gc_examples[] = { "tinkc store gc", "tinkc store gc --steps --delete",
                                                 NULL };

/* ---- tool ---- */

static const cli_option config_list_options[] = {
    { .name = "show-origin", .kind = CLI_FLAG, .help = "say where each comes from" },
    { .name = "columns",
      .letter = 'c',
      .kind = CLI_TEXT,
      .value = "LIST",
      .complete = "column",
      .help = "comma-separated columns" },
    { 0 }
};
static const char *const config_list_examples[] = { "tinkc config list --show-origin", NULL };

static const char *const config_get_examples[] = { "tinkc config get model", NULL };

static const char *const config_set_examples[] = { "tinkc config set model Qwen/Qwen3-8B", NULL };

static const char *const config_unset_examples[] = { "tinkc config unset model", NULL };

static const char *const config_path_examples[] = { "tinkc config path", NULL };

static const char *const config_edit_examples[] = { "tinkc config edit", NULL };

static const char *const config_use_profile_examples[] = { "tinkc config use-profile work", NULL };

static const char *const config_profiles_examples[] = { "tinkc config profiles", NULL };

static const cli_option api_options[] = {
    { .name = "field",
      .letter = 'F',
      .kind = CLI_TEXT,
      .value = "K=V",
      .repeats = true,
      .help = "member of the JSON body, or query of a GET" },
    { .name = "input", .kind = CLI_FILE, .value = "FILE", .help = "body from a file or -" },
    { .name = "paginate", .kind = CLI_FLAG, .help = "follow pages" },
    { .name = "include", .letter = 'i', .kind = CLI_FLAG, .help = "show the answer's headers" },
    { 0 }
};
static const char *const api_examples[] = { "tinkc api GET /api/v1/get_server_capabilities", NULL };

static const char *const completion_examples[] = { "source <(tinkc completion bash)", NULL };

static const cli_option man_options[] = {
    { .name = "list", .kind = CLI_FLAG, .help = "names of all pages" },
    { .name = "all", .kind = CLI_DIR, .value = "DIR", .help = "write all pages into a folder" },
    { 0 }
};
static const char *const man_examples[] = { "tinkc man checkpoint | man -l -", NULL };

static const char *const help_examples[] = { "tinkc help checkpoint delete",
                                             "tinkc help exit-codes", NULL };

static const char *const version_examples[] = { "tinkc version --json", NULL };

const cli_command cli_commands[] = {
    { .noun = "run",
      .verb = "list",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "list training runs",
      .options = run_list_options,
      .examples = run_list_examples,
      .columns = cli_run_columns,
      .run = cli_run_list },
    { .noun = "run",
      .verb = "info",
      .args = "RUN_ID",
      .min_args = 1,
      .max_args = 1,
      .summary = "show one training run",
      .options = run_info_options,
      .examples = run_info_examples,
      .run = cli_run_info,
      .arg_kind = "run" },
    { .noun = "run",
      .verb = "delete",
      .args = "RUN...",
      .min_args = 1,
      .max_args = -1,
      .summary = "delete training runs with all their checkpoints",
      .options = run_delete_options,
      .examples = run_delete_examples,
      .run = cli_run_delete,
      .arg_kind = "run" },
    { .noun = "checkpoint",
      .verb = "list",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "list checkpoints, newest first",
      .options = checkpoint_list_options,
      .examples = checkpoint_list_examples,
      .columns = cli_checkpoint_columns,
      .run = cli_checkpoint_list },
    { .noun = "checkpoint",
      .verb = "search",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "find checkpoints by model, kind and metadata, newest first",
      .options = checkpoint_search_options,
      .examples = checkpoint_search_examples,
      .columns = cli_checkpoint_columns,
      .run = cli_checkpoint_search },
    { .noun = "checkpoint",
      .verb = "info",
      .args = "PATH",
      .min_args = 1,
      .max_args = 1,
      .summary = "show one checkpoint",
      .options = NULL,
      .examples = checkpoint_info_examples,
      .run = cli_checkpoint_info,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "publish",
      .args = "PATH...",
      .min_args = 1,
      .max_args = -1,
      .summary = "let everybody read checkpoints",
      .options = NULL,
      .examples = checkpoint_publish_examples,
      .run = cli_checkpoint_publish,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "unpublish",
      .args = "PATH...",
      .min_args = 1,
      .max_args = -1,
      .summary = "make checkpoints private again",
      .options = NULL,
      .examples = checkpoint_unpublish_examples,
      .run = cli_checkpoint_unpublish,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "set-ttl",
      .args = "PATH...",
      .min_args = 1,
      .max_args = -1,
      .summary = "set or remove the time to live",
      .options = checkpoint_set_ttl_options,
      .examples = checkpoint_set_ttl_examples,
      .run = cli_checkpoint_set_ttl,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "delete",
      .args = "[PATH]...",
      .min_args = 0,
      .max_args = -1,
      .summary = "delete checkpoints for good",
      .options = checkpoint_delete_options,
      .examples = checkpoint_delete_examples,
      .run = cli_checkpoint_delete,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "download",
      .args = "PATH",
      .min_args = 1,
      .max_args = 1,
      .summary = "download and unpack a checkpoint",
      .options = checkpoint_download_options,
      .examples = checkpoint_download_examples,
      .run = cli_checkpoint_download,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "push-hf",
      .args = "PATH|DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "upload an adapter or a merged model to a hub",
      .details =
          "DIR is a log directory, a downloaded checkpoint, or any folder with an adapter or a\n"
          "model.\n"
          "The hub is HF_ENDPOINT, else https://huggingface.co; the token (HF_TOKEN,\n"
          "HF_TOKEN_PATH, hf_token in the configuration) must be allowed to write.\n\n"
          "Repositories are made private unless --public is given.\n"
          "Large files go in pieces, and a push that was stopped sends only what is missing.\n"
          "Without a README.md a model card is made.",
      .options = cli_push_options,
      .examples = cli_push_examples,
      .run = cli_checkpoint_push_hf,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "url",
      .args = "PATH",
      .min_args = 1,
      .max_args = 1,
      .summary = "print the signed address of the archive",
      .details =
          "External weights have an address for each file: one line each, name, tab, address.",
      .options = NULL,
      .examples = checkpoint_url_examples,
      .run = cli_checkpoint_url,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "copy",
      .args = "PATH",
      .min_args = 1,
      .max_args = 1,
      .summary = "copy weights into a new run of yours",
      .options = checkpoint_copy_options,
      .examples = checkpoint_copy_examples,
      .run = cli_checkpoint_copy,
      .arg_kind = "checkpoint" },
    { .noun = "checkpoint",
      .verb = "upload",
      .args = "DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "make a checkpoint of an adapter in a folder",
      .details = "DIR holds adapter_config.json and adapter_model.safetensors, as PEFT and `tinkc "
                 "checkpoint\n"
                 "download` write them.\n"
                 "The service checks every tensor against the base model.",
      .options = checkpoint_upload_options,
      .examples = checkpoint_upload_examples,
      .run = cli_checkpoint_upload },
    { .noun = "checkpoint",
      .verb = "export",
      .args = "PATH|DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "turn a checkpoint into an adapter or a model for other tools",
      .details = "DIR is a log directory or a downloaded checkpoint; with --to gguf it may also be "
                 "a model\n"
                 "without an adapter.\n"
                 "peft: an adapter for PEFT and vLLM.\n"
                 "merged: a model folder for transformers.\n"
                 "gguf: one file for llama.cpp and ollama.\n"
                 "gguf-lora: the adapter alone, for llama.cpp's --lora.\n"
                 "hosted: the names that the hosted service gives an adapter's tensors.",
      .options = cli_export_options,
      .examples = cli_export_examples,
      .run = cli_checkpoint_export,
      .arg_kind = "checkpoint" },
    { .noun = "session",
      .verb = "list",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "list sessions",
      .options = session_list_options,
      .examples = session_list_examples,
      .columns = cli_session_columns,
      .run = cli_session_list },
    { .noun = "session",
      .verb = "info",
      .args = "SESSION_ID",
      .min_args = 1,
      .max_args = 1,
      .summary = "show a session's runs and samplers",
      .options = session_info_options,
      .examples = session_info_examples,
      .run = cli_session_info },
    { .noun = "session",
      .verb = "move",
      .args = "SESSION_ID",
      .min_args = 1,
      .max_args = 1,
      .summary = "move a session to a project",
      .options = NULL,
      .examples = session_move_examples,
      .run = cli_session_move },
    { .noun = "session",
      .verb = "export-trace",
      .args = "SESSION_ID",
      .min_args = 1,
      .max_args = 1,
      .summary = "download a session's trace",
      .options = session_export_trace_options,
      .examples = session_export_trace_examples,
      .run = cli_session_export_trace },
    { .noun = "model",
      .verb = "list",
      .args = "[SUBSTRING]",
      .min_args = 0,
      .max_args = 1,
      .summary = "list the models the service offers, or those whose name has SUBSTRING",
      .options = model_list_options,
      .examples = model_list_examples,
      .columns = cli_model_columns,
      .run = cli_model_list },
    { .noun = "model",
      .verb = "info",
      .args = "NAME",
      .min_args = 1,
      .max_args = 1,
      .summary = "show details of a model",
      .options = model_info_options,
      .examples = model_info_examples,
      .run = cli_model_info,
      .arg_kind = "model" },
    { .noun = "model",
      .verb = "add",
      .args = "NAME FOLDER",
      .min_args = 2,
      .max_args = 2,
      .summary = "tell the local engine where a base model lies",
      .options = NULL,
      .examples = model_add_examples,
      .run = cli_model_add },
    { .noun = "sampler",
      .verb = "info",
      .args = "SAMPLER_ID",
      .min_args = 1,
      .max_args = 1,
      .summary = "show a sampler's base model and weights",
      .options = NULL,
      .examples = sampler_info_examples,
      .run = cli_sampler_info },
    { .noun = "billing",
      .verb = "usage",
      .args = "[STARTING_ON] [ENDING_BEFORE]",
      .min_args = 0,
      .max_args = 2,
      .summary = "show usage, hour by hour",
      .options = billing_usage_options,
      .examples = billing_usage_examples,
      .run = cli_billing_usage },
    { .noun = "billing",
      .verb = "checkpoint-storage",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show what all checkpoints take up now, by project and owner",
      .options = billing_storage_options,
      .examples = billing_storage_examples,
      .columns = cli_storage_columns,
      .run = cli_billing_storage },
    { .noun = "audit",
      .verb = "list",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show one day of the audit log",
      .options = audit_list_options,
      .examples = audit_list_examples,
      .columns = cli_audit_columns,
      .run = cli_audit_list },
    { .noun = "audit",
      .verb = "sync",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "keep the audit log as files, one a day",
      .options = audit_sync_options,
      .examples = audit_sync_examples,
      .run = cli_audit_sync },
    { .noun = "auth",
      .any_profile = true,
      .verb = "login",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "store a credential in the profile",
      .options = auth_login_options,
      .examples = auth_login_examples,
      .run = cli_auth_login },
    { .noun = "auth",
      .verb = "status",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show which credential is used, and whether it works",
      .options = auth_status_options,
      .examples = auth_status_examples,
      .run = cli_auth_status },
    { .noun = "auth",
      .verb = "logout",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "forget the profile's credential",
      .options = NULL,
      .examples = auth_logout_examples,
      .run = cli_auth_logout },
    { .noun = "auth",
      .verb = "token",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "print a fresh short-lived token",
      .options = auth_token_options,
      .examples = auth_token_examples,
      .run = cli_auth_token },
    { .noun = "auth",
      .verb = "whoami",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show who you are",
      .options = NULL,
      .examples = auth_whoami_examples,
      .run = cli_whoami },
    { .noun = "whoami",
      .verb = NULL,
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show who you are",
      .options = NULL,
      .examples = whoami_examples,
      .run = cli_whoami },
    { .noun = "sample",
      .verb = NULL,
      .args = "[PROMPT|-]",
      .min_args = 0,
      .max_args = 1,
      .summary = "ask a model",
      .options = sample_options,
      .examples = sample_examples,
      .run = cli_sample },
    { .noun = "chat",
      .verb = NULL,
      .args = "",
      .min_args = 0,
      .max_args = -1,
      .summary = "talk with a model",
      .options = chat_options,
      .examples = chat_examples,
      .run = cli_chat,
      .fields = true },
    { .noun = "logprobs",
      .verb = NULL,
      .args = "[FILE|-]",
      .min_args = 0,
      .max_args = 1,
      .summary = "score a text token by token",
      .options = logprobs_options,
      .examples = logprobs_examples,
      .run = cli_logprobs },
    { .noun = "train",
      .verb = "sft",
      .args = "DATA...",
      .min_args = 0,
      .max_args = -1,
      .summary = "fine-tune a model on conversations",
      .options = train_sft_options,
      .examples = train_sft_examples,
      .run = cli_train_sft,
      .fields = true },
    { .noun = "train",
      .verb = "rl",
      .args = "PROMPTS...",
      .min_args = 0,
      .max_args = -1,
      .summary = "reinforcement learning: sample answers, grade them, train on the better ones",
      .options = cli_train_rl_options,
      .examples = cli_train_rl_examples,
      .run = cli_train_rl,
      .fields = true },
    { .noun = "train",
      .verb = "dpo",
      .args = "PAIRS...",
      .min_args = 0,
      .max_args = -1,
      .summary = "train on preferences: DPO, IPO, KTO",
      .options = cli_train_dpo_options,
      .examples = cli_train_dpo_examples,
      .run = cli_train_dpo,
      .fields = true },
    { .noun = "train",
      .verb = "distill",
      .args = "PROMPTS...",
      .min_args = 0,
      .max_args = -1,
      .summary = "learn from a teacher, on its own samples or on given texts",
      .options = cli_train_distill_options,
      .examples = cli_train_distill_examples,
      .run = cli_train_distill,
      .fields = true },
    { .noun = "train",
      .verb = "sweep",
      .args = "RECIPE [ARG...]",
      .min_args = 1,
      .max_args = -1,
      .summary = "run a recipe over a grid of settings",
      .options = cli_train_sweep_options,
      .examples = cli_train_sweep_examples,
      .run = cli_train_sweep },
    { .noun = "train",
      .verb = "resume",
      .args = "LOG_DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "continue where a run stopped",
      .options = train_resume_options,
      .examples = train_resume_examples,
      .run = cli_train_resume },
    { .noun = "data",
      .verb = "check",
      .args = "FILE...",
      .min_args = 1,
      .max_args = -1,
      .summary = "check conversation files, line by line",
      .options = data_check_options,
      .examples = data_check_examples,
      .more = cli_data_forms,
      .run = cli_data_check },
    { .noun = "data",
      .verb = "stats",
      .args = "FILE...",
      .min_args = 1,
      .max_args = -1,
      .summary = "count conversations, turns, tokens",
      .options = data_stats_options,
      .examples = data_stats_examples,
      .run = cli_data_stats },
    { .noun = "data",
      .verb = "preview",
      .args = "FILE",
      .min_args = 1,
      .max_args = 1,
      .summary = "show examples as the model sees them",
      .options = data_preview_options,
      .examples = data_preview_examples,
      .run = cli_data_preview },
    { .noun = "data",
      .verb = "split",
      .args = "FILE",
      .min_args = 1,
      .max_args = 1,
      .summary = "split into train and test files",
      .options = data_split_options,
      .examples = data_split_examples,
      .run = cli_data_split },
    { .noun = "data",
      .verb = "convert",
      .args = "FILE",
      .min_args = 1,
      .max_args = 1,
      .summary = "convert other formats to conversations",
      .options = data_convert_options,
      .examples = data_convert_examples,
      .more = cli_data_forms,
      .run = cli_data_convert },
    { .noun = "eval",
      .verb = "run",
      .args = "DATA...",
      .min_args = 0,
      .max_args = -1,
      .summary = "grade a model on a file of prompts",
      .options = cli_eval_run_options,
      .examples = cli_eval_run_examples,
      .run = cli_eval_run },
    { .noun = "eval",
      .verb = "show",
      .args = "DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "show an evaluation and its samples",
      .options = cli_eval_show_options,
      .examples = cli_eval_show_examples,
      .run = cli_eval_show },
    { .noun = "eval",
      .verb = "compare",
      .args = "DIR DIR",
      .min_args = 2,
      .max_args = 2,
      .summary = "compare two evaluations by example",
      .options = cli_eval_compare_options,
      .examples = cli_eval_compare_examples,
      .run = cli_eval_compare },
    { .noun = "env",
      .verb = "check",
      .args = "CMD",
      .min_args = 1,
      .max_args = 1,
      .summary = "test a command against the environment protocol",
      .options = cli_env_check_options,
      .examples = cli_env_check_examples,
      .run = cli_env_check },
    { .noun = "logs",
      .verb = "show",
      .args = "DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "show a run's metrics",
      .options = logs_show_options,
      .examples = logs_show_examples,
      .run = cli_logs_show },
    { .noun = "logs",
      .verb = "tail",
      .args = "DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "follow a run's metrics",
      .options = logs_tail_options,
      .examples = logs_tail_examples,
      .run = cli_logs_tail },
    { .noun = "logs",
      .verb = "plot",
      .args = "DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "draw a metric in the terminal",
      .options = logs_plot_options,
      .examples = logs_plot_examples,
      .run = cli_logs_plot },
    { .noun = "logs",
      .verb = "trace",
      .args = "DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "turn a run's timings into a Chrome trace",
      .options = logs_trace_options,
      .examples = logs_trace_examples,
      .run = cli_logs_trace },
    { .noun = "logs",
      .verb = "report",
      .args = "DIR...",
      .min_args = 1,
      .max_args = -1,
      .summary = "curves and samples of runs as one HTML file",
      .options = logs_report_options,
      .examples = logs_report_examples,
      .run = cli_logs_report },
    { .noun = "tokenizer",
      .verb = "encode",
      .args = "[TEXT|-]",
      .min_args = 0,
      .max_args = 1,
      .summary = "text to token ids",
      .options = tokenizer_encode_options,
      .examples = tokenizer_encode_examples,
      .run = cli_tokenizer_encode },
    { .noun = "tokenizer",
      .verb = "decode",
      .args = "[ID...|-]",
      .min_args = 0,
      .max_args = -1,
      .summary = "token ids to text",
      .options = tokenizer_decode_options,
      .examples = tokenizer_decode_examples,
      .run = cli_tokenizer_decode },
    { .noun = "tokenizer",
      .verb = "count",
      .args = "[FILE...|-]",
      .min_args = 0,
      .max_args = -1,
      .summary = "count tokens, like wc",
      .options = tokenizer_count_options,
      .examples = tokenizer_count_examples,
      .run = cli_tokenizer_count },
    { .noun = "tokenizer",
      .verb = "chat-template",
      .args = "[FILE|-]",
      .min_args = 0,
      .max_args = 1,
      .summary = "messages to a prompt",
      .options = tokenizer_chat_template_options,
      .examples = tokenizer_chat_template_examples,
      .run = cli_tokenizer_chat_template },
    { .noun = "tokenizer",
      .verb = "info",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show what a tokenizer is",
      .options = tokenizer_info_options,
      .examples = tokenizer_info_examples,
      .run = cli_tokenizer_info },
    { .noun = "pull",
      .verb = NULL,
      .args = "NAME[@REV]",
      .min_args = 1,
      .max_args = 1,
      .summary = "download a model or tokenizer from a hub",
      .details =
          "The hub is HF_ENDPOINT, else https://huggingface.co.\n"
          "HF_TOKEN, or the configuration key hf_token, lets it read private and gated\n"
          "models.\n"
          "Files go into the cache of Python's huggingface_hub (HF_HUB_CACHE, HF_HOME), so\n"
          "both find the same ones.\n\n"
          "Without --include, --exclude or --all, weights that are there as safetensors are\n"
          "not downloaded in other forms.\n"
          "A pull that was stopped continues where it stopped.\n"
          "Every file is checked against its checksum.",
      .options = cli_pull_options,
      .examples = cli_pull_examples,
      .run = cli_pull,
      .arg_kind = "model" },
    { .noun = "export",
      .verb = NULL,
      .args = "PATH|DIR",
      .min_args = 1,
      .max_args = 1,
      .summary = "turn a checkpoint into an adapter or a model for other tools",
      .details = "DIR is a log directory or a downloaded checkpoint; with --to gguf it may also be "
                 "a model\n"
                 "without an adapter.\n"
                 "peft: an adapter for PEFT and vLLM.\n"
                 "merged: a model folder for transformers.\n"
                 "gguf: one file for llama.cpp and ollama.\n"
                 "hosted: the names that the hosted service gives an adapter's tensors.",
      .options = cli_export_options,
      .examples = cli_export_examples,
      .run = cli_checkpoint_export,
      .arg_kind = "checkpoint" },
    { .noun = "quantize",
      .verb = NULL,
      .args = "MODEL [OUT]",
      .min_args = 1,
      .max_args = 2,
      .summary = "write a model in fewer bits, and say what that costs",
      .details = "OUT is a folder that transformers, PEFT and vLLM read, or a .gguf file for llama.cpp and "
                 "ollama;\n"
                 "tinkc reads both, and trains on them.\n"
                 "Without OUT the model is packed into the user's cache, where --base-bits finds it.",
      .options = cli_quantize_options,
      .examples = cli_quantize_examples,
      .run = cli_quantize,
      .arg_kind = "model" },
    { .noun = "serve",
      .verb = NULL,
      .args = "[MODEL]...",
      .min_args = 0,
      .max_args = -1,
      .summary = "run the engine as a Tinker server",
      .options = serve_options,
      .examples = serve_examples,
      .run = cli_serve,
      .arg_kind = "model" },
    { .noun = "ui",
      .any_profile = true,
      .verb = NULL,
      .args = "[LOGDIR...]",
      .min_args = 0,
      .max_args = -1,
      .summary = "show runs in a browser",
      .options = ui_options,
      .examples = ui_examples,
      .run = cli_ui },
    { .noun = "doctor",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "check installation, credentials, network, machine",
      .options = doctor_options,
      .examples = doctor_examples,
      .run = cli_doctor },
    { .noun = "store",
      .any_profile = true,
      .verb = "check",
      .args = "[DIR]",
      .min_args = 0,
      .max_args = 1,
      .summary = "read every checkpoint of a store and compare it with its checksums",
      .options = NULL,
      .examples = store_check_examples,
      .run = cli_store_check },
    { .noun = "store",
      .any_profile = true,
      .verb = "repair",
      .args = "[DIR]",
      .min_args = 0,
      .max_args = 1,
      .summary = "move damaged checkpoints aside, rebuild a lost database from the files",
      .options = store_repair_options,
      .examples = store_repair_examples,
      .run = cli_store_repair },
    { .noun = "store",
      .any_profile = true,
      .verb = "usage",
      .args = "[DIR]",
      .min_args = 0,
      .max_args = 1,
      .summary = "show what a store holds, run by run",
      .examples = store_usage_examples,
      .columns = cli_usage_columns,
      .run = cli_store_usage },
    { .noun = "store",
      .any_profile = true,
      .verb = "gc",
      .args = "[DIR]",
      .min_args = 0,
      .max_args = 1,
      .summary = "show, or delete, what nobody needs: images of finished runs, what has expired",
      .options = store_gc_options,
      .examples = store_gc_examples,
      .run = cli_store_gc },
    { .noun = "config",
      .any_profile = true,
      .verb = "list",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show all settings",
      .options = config_list_options,
      .examples = config_list_examples,
      .run = cli_config_list },
    { .noun = "config",
      .any_profile = true,
      .verb = "get",
      .args = "KEY",
      .min_args = 1,
      .max_args = 1,
      .summary = "show one setting",
      .options = NULL,
      .examples = config_get_examples,
      .run = cli_config_get_command },
    { .noun = "config",
      .any_profile = true,
      .verb = "set",
      .args = "KEY VALUE",
      .min_args = 2,
      .max_args = 2,
      .summary = "change a setting of the profile",
      .options = NULL,
      .examples = config_set_examples,
      .run = cli_config_set },
    { .noun = "config",
      .any_profile = true,
      .verb = "unset",
      .args = "KEY",
      .min_args = 1,
      .max_args = 1,
      .summary = "remove a setting of the profile",
      .options = NULL,
      .examples = config_unset_examples,
      .run = cli_config_unset },
    { .noun = "config",
      .any_profile = true,
      .any_config = true,
      .verb = "path",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show which files are read",
      .options = NULL,
      .examples = config_path_examples,
      .run = cli_config_show_path },
    { .noun = "config",
      .any_profile = true,
      .any_config = true,
      .verb = "edit",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "open the configuration in $EDITOR",
      .options = NULL,
      .examples = config_edit_examples,
      .run = cli_config_edit },
    { .noun = "config",
      .any_profile = true,
      .verb = "use-profile",
      .args = "NAME",
      .min_args = 1,
      .max_args = 1,
      .summary = "make a profile the default",
      .options = NULL,
      .examples = config_use_profile_examples,
      .run = cli_config_use_profile,
      .arg_kind = "profile" },
    { .noun = "config",
      .any_profile = true,
      .verb = "profiles",
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "list profiles",
      .options = NULL,
      .examples = config_profiles_examples,
      .run = cli_config_profiles },
    { .noun = "api",
      .verb = NULL,
      .args = "METHOD PATH",
      .min_args = 2,
      .max_args = 2,
      .summary = "send any request to the service",
      .options = api_options,
      .examples = api_examples,
      .run = cli_api },
    { .noun = "completion",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "bash|zsh|fish",
      .min_args = 1,
      .max_args = 1,
      .summary = "print a completion script",
      .options = NULL,
      .examples = completion_examples,
      .run = cli_completion },
    { .noun = "man",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "[PAGE]",
      .min_args = 0,
      .max_args = 1,
      .summary = "print a manual page (roff)",
      .options = man_options,
      .examples = man_examples,
      .run = cli_man },
    { .noun = "help",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "[COMMAND...]",
      .min_args = 0,
      .max_args = 2,
      .summary = "help on a command or topic",
      .options = NULL,
      .examples = help_examples,
      .run = cli_help },
    { .noun = "version",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "",
      .min_args = 0,
      .max_args = 0,
      .summary = "show the version",
      .options = NULL,
      .examples = version_examples,
      .run = cli_version },
    { .noun = "__store-host",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "STORE FD DEVICE",
      .min_args = 3,
      .max_args = 3,
      .summary = "share a store between commands",
      .options = NULL,
      .examples = NULL,
      .run = cli_store_host_main,
      .hidden = true },
    { .noun = "__complete",
      .any_profile = true,
      .any_config = true,
      .verb = NULL,
      .args = "",
      .min_args = 0,
      .max_args = -1,
      .summary = "answer a shell's completion",
      .options = NULL,
      .examples = NULL,
      .run = cli_complete,
      .hidden = true },
    { 0 }
};

const char *cli_noun_summary(const char *noun)
{
    static const char *const nouns[][2] = {
        { "run", "training runs" },
        { "checkpoint", "saved weights: list, publish, delete, download, export" },
        { "session", "sessions and their traces" },
        { "model", "models the service offers" },
        { "sampler", "samplers" },
        { "billing", "usage and storage" },
        { "audit", "the audit log" },
        { "auth", "credentials" },
        { "train", "fine-tune: sft, rl, dpo, distill; sweep, resume" },
        { "data", "training files: check, count, show, split, convert" },
        { "eval", "grade models, compare results" },
        { "env", "check an environment for reinforcement learning" },
        { "logs", "metrics of a training run: show, plot, report" },
        { "tokenizer", "text, tokens, chat templates" },
        { "store", "what the engine keeps on disk: its size, its state, what can go" },
        { "config", "settings and profiles" },
    };
    for (size_t i = 0; i < sizeof nouns / sizeof *nouns; i++)
        if (strcmp(nouns[i][0], noun) == 0)
            return nouns[i][1];
    return NULL;
}
