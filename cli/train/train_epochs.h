/* train_epochs.h - a loop over examples in epochs, for recipes whose step is their own: dpo, and distill on
 * given texts. Evaluation, checkpoints, the run directory and signals are handled here. */
#ifndef CLI_TRAIN_EPOCHS_H
#define CLI_TRAIN_EPOCHS_H

#include "cli/train/train_job.h"

typedef struct cli_epochs {
    cli_job *job;
    size_t n, batch_size; /* examples; of a step */
    double rate;
    const char *watch; /* the metric of the status line */
    void *user;
    /* Trains on these examples at this rate and puts its metrics into the row. */
    bool (*step)(void *user, const size_t *which, size_t n, double rate, tkc_tree *row,
                 tinkc_error *err);
    /* Adds test/... to the row; NULL = nothing to evaluate on. */
    bool (*evaluate)(void *user, tkc_tree *row, tinkc_error *err);
    size_t *order;
    size_t order_epoch;
} cli_epochs;

/* Batches, epochs and steps from the options. 0, or an exit code after reporting. */
int cli_epochs_plan(cli_epochs *);
/* From job.step to the end. The exit code. */
int cli_epochs_run(cli_epochs *);

#endif
