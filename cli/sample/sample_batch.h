/* sample_batch.h - `tinkc sample --batch`: JSON lines in, JSON lines out. */
#ifndef CLI_SAMPLE_BATCH_H
#define CLI_SAMPLE_BATCH_H

#include "cli/sample/ask.h"

enum { CLI_MOST_JOBS = 2000 }; /* what the service takes at a time */

/* Before anything is asked: every line of the input that is not a JSON object is reported, where the input
 * is a file. 0, or an exit code after reporting. */
int cli_check_batch(cli_app *);
int cli_sample_batch(cli_app *, const cli_asked *);

#endif
