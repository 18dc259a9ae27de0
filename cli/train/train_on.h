/* train_on.h - the cookbook's names for what a conversation teaches. */
#ifndef CLI_TRAIN_ON_H
#define CLI_TRAIN_ON_H

#include "cli/main/app.h"

/* TINKC_TRAIN_* of a name. 0, or an exit code after reporting. */
int cli_train_on(const cli_app *, const char *name, int32_t *out);

#endif
