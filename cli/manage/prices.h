/* prices.h - what a plan would cost at the hosted service. */
#ifndef CLI_PRICES_H
#define CLI_PRICES_H

#include "cli/main/app.h"

typedef struct cli_tokens_planned {
    int64_t prefill, sample, train;
} cli_tokens_planned;

/* Prints the tokens of the plan and, where a price is known, what they cost: --prices FILE, else the
 * configuration's `prices`. 0, or an exit code after reporting a table that cannot be read. */
int cli_show_cost(cli_app *, const char *model, const cli_tokens_planned *);

#endif
