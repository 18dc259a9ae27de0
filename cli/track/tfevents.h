/* tfevents.h - a run's numbers as an event file of TensorBoard.
 *
 * One file for each start of a run; its first records are the format's version and, where a run
 * continues, the step from which what earlier files say counts no more.
 */
#ifndef CLI_TFEVENTS_H
#define CLI_TFEVENTS_H

#include <stdio.h>

#include "base/json_tree.h"
#include "cli/track/pb_write.h"

typedef struct cli_tfevents {
    FILE *f;
    cli_pb value, summary, event; /* kept for the next record */
    int64_t now_us;               /* of the last record; never goes back */
} cli_tfevents;

/* Makes FOLDER/tensorboard/events.out.tfevents.TIME.HOST.PID.tinkc. step: the next one that is trained. False with
 * errno set. */
bool cli_tfevents_open(cli_tfevents *, const char *folder, size_t step);
/* Every number of the row at its "step", in one record. */
bool cli_tfevents_row(cli_tfevents *, const tkc_tree *row);
/* Each record was written when it was made: nothing is left that could fail. */
void cli_tfevents_close(cli_tfevents *);
/* Removes what earlier runs in FOLDER left. */
void cli_tfevents_remove(const char *folder);

/* CRC-32C as TFRecord wants it: rotated, and moved by a constant. */
uint32_t cli_masked_crc32c(const void *data, size_t len);

#endif
