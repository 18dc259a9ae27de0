/* train_log.h - a run's log directory, in the cookbook's layout.
 *
 *     config.json         all settings, rewritten at each start
 *     config.toml         the same to edit and to give to --config
 *     code.diff           the repository here and its local changes, rewritten at each start
 *     metrics.jsonl       one object a step
 *     checkpoints.jsonl   one object a checkpoint
 *     samples.jsonl       one object for each answer that was kept; made by the first
 *     timing_spans.jsonl  one object a step: what it spent its time on
 *     logs.log            the command line, then what was said
 *
 * Records are appended and synced; a torn last line is ignored on reading; NaN becomes null.
 */
#ifndef CLI_TRAIN_LOG_H
#define CLI_TRAIN_LOG_H

#include "cli/main/app.h"
#include "cli/main/child.h"

typedef struct cli_trainlog {
    char *folder;
    FILE *metrics, *checkpoints, *spans, *text;
    FILE *samples;               /* NULL = none yet */
    cli_child hook;              /* --hook: gets the events too */
    struct cli_exports *exports; /* --tensorboard, --wandb: get the metrics too; NULL = none */
} cli_trainlog;

/* A folder that this process alone writes a run into, until it is released. */
typedef struct cli_claim {
    int fd;
    bool made; /* it was not there before */
    bool held;
} cli_claim;
/* Makes the folder if need be. 0, or an exit code after reporting: a conflict where another process
 * has it. */
int cli_trainlog_claim(const cli_app *, const char *folder, cli_claim *out);
/* Also removes a folder that was made and into which nothing was written. */
void cli_trainlog_release(const cli_claim *, const char *folder);

/* Makes the folder and opens the files for appending. 0, or an exit code after reporting. */
int cli_trainlog_open(cli_app *, const char *folder, const char *hook, cli_trainlog *out);
/* A line in logs.log: WHAT TEXT. */
void cli_trainlog_info(cli_trainlog *, const char *what, const char *text);
/* Before it is opened: rows of steps from `step` on are taken out of metrics.jsonl, because they
 * are about to be trained again, and so is what a killed process left half-written. False with
 * errno set. */
bool cli_trainlog_rewind(const char *folder, size_t step);
void cli_trainlog_close(cli_trainlog *);
bool cli_trainlog_metrics(cli_trainlog *, const tkc_tree *);
bool cli_trainlog_spans(cli_trainlog *, const tkc_tree *);
bool cli_trainlog_checkpoint(cli_trainlog *, const tkc_tree *);
bool cli_trainlog_sample(cli_trainlog *, const tkc_tree *);
void cli_trainlog_event(const cli_app *, cli_trainlog *, const tkc_tree *);
/* Writes code.diff where there is a repository. 0, or an exit code after reporting. */
int cli_trainlog_code(const cli_app *, const char *folder);
/* 0, or an exit code after reporting. */
int cli_trainlog_config(const cli_app *, const char *folder, const tkc_tree *);
tkc_tree *cli_trainlog_read_config(tkc_arena *, const char *folder); /* NULL = none */

/* Records of checkpoints.jsonl that have `key`, oldest first. */
tkc_tree *cli_trainlog_records(tkc_arena *, const char *folder, const char *key);
bool cli_trainlog_exists(const char *folder);
/* Removes the files of a run; the folder stays. */
bool cli_trainlog_remove(const char *folder);

#endif
