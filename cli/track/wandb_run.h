/* wandb_run.h - a run's numbers as an offline run of Weights & Biases, for `wandb sync`.
 *
 *     FOLDER/wandb/offline-run-YYYYMMDD_HHMMSS-ID/run-ID.wandb
 *
 * A run that continues keeps its ID: its rows so far are written again into a new folder, which
 * replaces the old one.
 */
#ifndef CLI_WANDB_RUN_H
#define CLI_WANDB_RUN_H

#include <stdio.h>

#include "base/json_tree.h"
#include "cli/track/pb_write.h"

enum { CLI_WANDB_ID = 8 };

typedef struct cli_wandb {
    FILE *f;
    char *folder; /* of this offline run */
    char id[CLI_WANDB_ID + 1];
    size_t at; /* bytes in the file */
    int64_t n_records, begun_us;
    cli_pb item, part, record; /* kept for the next record */
    bool bad;
} cli_wandb;

/* project, name: NULL = none. config: an object. False with errno set. */
bool cli_wandb_open(cli_wandb *, const char *folder, const char *project, const char *name,
                    const tkc_tree *config);
/* Every number of the row at its "step". */
bool cli_wandb_row(cli_wandb *, const tkc_tree *row);
bool cli_wandb_close(cli_wandb *);
/* Removes what earlier runs in FOLDER left. */
void cli_wandb_remove(const char *folder);

#endif
