/* row_turns.h - turns of conversations in the spellings that are in use, as messages. */
#ifndef CLI_ROW_TURNS_H
#define CLI_ROW_TURNS_H

#include <stdbool.h>

#include "base/json_tree.h"

/* Why a row cannot be used; "" = nothing to say. */
typedef struct cli_row_fault {
    char text[224];
} cli_row_fault;

/* Notes a fault, unless there is one: the first is of the form that comes first. NULL. */
__attribute__((format(printf, 2, 3))) tkc_tree *cli_row_fault_set(cli_row_fault *,
                                                                  const char *format, ...);

/* A text or a number by this role, a turn, or a list of turns, as messages. NULL = none of
 * these. A text that begins as those of hh-rlhf do, with "\n\nHuman:", is a list of turns.
 * `openai`: the roles are templates' own, but for "function". */
tkc_tree *cli_turns_of(tkc_arena *, const tkc_tree *, const char *role, bool openai);
/* Who speaks first; "" = nobody. */
const char *cli_turns_begin(const tkc_tree *messages);
/* The tools that a row offers, as templates take them: NULL = none or a fault. */
tkc_tree *cli_turns_tools(tkc_arena *, const tkc_tree *row, cli_row_fault *why);

#endif
