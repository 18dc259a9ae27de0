/* batch.h - `tinkc sample --batch`: JSON lines in, JSON lines out. */
#ifndef CLI_BATCH_H
#define CLI_BATCH_H

#include "ask.h"

int cli_sample_batch(cli_app *, const cli_asked *);

#endif
