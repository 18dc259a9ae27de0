/* adapter_start.h - --from-adapter: a PEFT adapter as what training starts from or answers come from. */
#ifndef CLI_ADAPTER_START_H
#define CLI_ADAPTER_START_H

#include "cli/main/app.h"

#define CLI_FROM_ADAPTER \
    OPT_DIR("from-adapter", "FOLDER", "start from this PEFT adapter (local engine only)")

/* Whether an adapter was named that nobody has taken in yet. */
bool cli_has_adapter(const cli_app *);
/* Before connecting: without -m, the model is the one that the adapter names. 0, or an exit code after
 * reporting. */
int cli_adapter_model(cli_app *);
/* After connecting: takes the adapter into the store. The path of its weights for training or for
 * sampling; yours. NULL with *bad an exit code after reporting. */
char *cli_adapter_path(cli_app *, bool training, int *bad);

#endif
