/* train_run.h - one supervised run: settings, examples, the trainer, where it stands. */
#ifndef CLI_TRAIN_RUN_H
#define CLI_TRAIN_RUN_H

#include "cli/data/examples.h"
#include "cli/train/train_job.h"

enum { CLI_MOST_AHEAD = 8 }; /* steps that are sent before the oldest is waited for */

typedef struct cli_sft {
    cli_job job;
    cli_data_file *files;
    size_t n_files;
    cli_examples train, test;
    size_t *order;      /* of this epoch */
    size_t order_epoch; /* SIZE_MAX = none yet */
    size_t *kept;       /* examples that are not held out, in the order of the first shuffle */
    size_t n_kept;

    size_t n_turning; /* conversations in which the assistant speaks more than once */
    size_t batch_size;
    double rate;
    char rate_why[96]; /* of a default; "" = it was given */
    size_t max_length; /* tokens; 0 = no limit is known */
    double smooth_tokens_s;
    int64_t settled_ms; /* when the last step came back; 0 = none has */
} cli_sft;

/* Reads, checks, renders; settles batch size, steps and rate. 0, or an exit code. */
int cli_sft_prepare(cli_app *, cli_sft *);
void cli_sft_free(cli_sft *);
/* Prints what is going to happen. */
void cli_sft_show_plan(const cli_sft *);
/* The learning rate of a step: warm-up, then schedule. */
double cli_sft_rate(const cli_sft *, size_t step);
/* The examples of a step: indices into train.items. *n is how many. Borrowed until the next. */
const size_t *cli_sft_batch(cli_sft *, size_t step, size_t *n);
/* All settings as JSON for config.json. */
tkc_tree *cli_sft_config(const cli_sft *);

/* Trains from job.step on. 0, or an exit code. */
int cli_sft_run(cli_sft *);

#endif
