/* weights.h - what -m names: a base model, sampler weights, a log directory, a local folder. */
#ifndef CLI_WEIGHTS_H
#define CLI_WEIGHTS_H

#include "cli/main/app.h"

/* The last sampler_path in DIR/checkpoints.jsonl; yours, NULL if it is not a log directory. */
char *cli_sampler_path_of(const char *folder);
/* The same for any member of the last record that has it ("state_path"). */
char *cli_last_record(const char *folder, const char *key);

/* A sampler and the tokenizer that goes with it, opened from -m, --base-model, --model-path. */
typedef struct cli_asked {
    tinkc_sampler *sampler;
    tinkc_tokenizer *tokenizer;
    char *base_model; /* NULL = not known */
    char *model_path; /* NULL = the base model itself */
    char *renderer;   /* --renderer, else the run's own, else the model's; NULL = its template */
    int64_t context;  /* tokens that the model can see; 0 = not asked yet, -1 = not known */
    bool chat;        /* has a chat format */
    bool raw;         /* a base model: plain text is continued unless asked not to */
} cli_asked;

/* The renderer that a path's run was trained with; yours. NULL = it does not say, or it is somebody
 * else's; err is set if the service cannot be asked. Needs a connection. */
char *cli_run_renderer(cli_app *, const char *path, tinkc_error *err);
/* Connects and opens. 0, or an exit code after reporting. */
int cli_open_sampler(cli_app *, cli_asked *out);
/* The same for a name that is not -m: a base model, a tinker:// path, a log directory. */
int cli_open_named(cli_app *, const char *name, cli_asked *out);
/* The model's longest context in tokens as the service reports it; 0 = it does not. Needs a
 * connection. */
int64_t cli_context_length(cli_app *, const char *model, tinkc_error *err);
void cli_asked_free(cli_asked *);

#endif
