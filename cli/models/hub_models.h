/* hub_models.h - models by their names on a hub: in the cache, or pulled when the user agrees. */
#ifndef CLI_HUB_MODELS_H
#define CLI_HUB_MODELS_H

#include <pthread.h>
#include "cli/main/app.h"

/* A session with the configured token, --offline and --retry-for. Yours; NULL with err set. */
tinkc_hub *cli_hub_open(const cli_app *, tinkc_error *err);
/* The same with this token; NULL = the configured one. */
tinkc_hub *cli_hub_open_as(const cli_app *, const char *token, tinkc_error *err);
/* A failure of a call on the hub: as cli_fail_error, with hints about the hub. */
#define cli_fail_hub(app, err) cli_fail_hub_at((app), __FILE_NAME__, __LINE__, (err))
int cli_fail_hub_at(const cli_app *, const char *file, int line, const tinkc_error *);
/* A tinkc_hub_progress_fn; its user is a cli_progress. */
bool cli_hub_show(const tinkc_hub_progress *, void *bar);

/* --timeout for a transfer: from another thread, as every part of one may wait for the hub. */
typedef struct cli_hub_limit {
    tinkc_hub *hub;
    int64_t at_ms;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, ended, ran_out;
} cli_hub_limit;
void cli_hub_limit_begin(cli_hub_limit *, const cli_app *, tinkc_hub *);
/* True if the time ran out and the transfer was stopped. */
bool cli_hub_limit_end(cli_hub_limit *);
/* The values of a repeated option as a list; yours, the texts are not. */
const char **cli_values(const cli_app *, const char *name);
/* "NAME@REV" in two; both yours, *revision NULL = none was given. */
void cli_hub_split(const char *text, char **name, char **revision);
/* Pulls with a bar and signals. NULL with *bad an exit code after reporting. */
tinkc_hub_snapshot *cli_hub_pull(cli_app *, tinkc_hub *, tinkc_pull_options *, int *bad);
/* Whether a model is named as a hub names it ("org/name") and not as a file. */
bool cli_is_hub_name(const char *model);
/* The folder of a model on the hub: from the cache; else it is pulled after a question (--yes answers
 * it). Yours; NULL with *bad an exit code after reporting. */
char *cli_hub_model(cli_app *, const char *model, int *bad);
/* The folder of a base model: "nano", one that the store remembers, a folder, or a hub's name as above. Yours; NULL with *bad an exit
 * code after reporting. */
char *cli_base_folder(cli_app *, const char *name, int *bad);

#endif
