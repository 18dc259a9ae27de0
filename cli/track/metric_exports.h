/* metric_exports.h - --tensorboard and --wandb: a run's rows for other people's tools too.
 *
 * Every recipe writes its rows through cli_trainlog_metrics, which hands them on to here. A file
 * that cannot be written warns once and is given up: the training is worth more.
 */
#ifndef CLI_METRIC_EXPORTS_H
#define CLI_METRIC_EXPORTS_H

#include "cli/main/app.h"

/* The options of every command that trains. */
#define CLI_EXPORT_OPTIONS \
    OPT_FLAG("tensorboard", "also write event files for TensorBoard, in LOG_DIR/tensorboard"), \
    OPT_FLAG("wandb", "also write an offline run for Weights & Biases, in LOG_DIR/wandb"), \
    OPT_TEXT("wandb-project", "NAME", "--wandb, for this project", .cookbook = "wandb_project")

typedef struct cli_exports cli_exports;

/* What the options ask for; *out NULL = nothing. Rows that the run has already are written again
 * where the format wants them. step: the next one that is trained. 0, or an exit code after
 * reporting. */
int cli_exports_open(const cli_app *, const char *folder, const tkc_tree *config, size_t step,
                     cli_exports **out);
/* Removes what earlier runs in this folder left. */
void cli_exports_remove(const char *folder);
void cli_exports_row(cli_exports *, const tkc_tree *row); /* NULL allowed */
void cli_exports_close(cli_exports *);                  /* NULL allowed */

#endif
