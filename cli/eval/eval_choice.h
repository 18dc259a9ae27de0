/* eval_choice.h - multiple choice by log-probability. */
#ifndef CLI_EVAL_CHOICE_H
#define CLI_EVAL_CHOICE_H

#include "cli/sample/prompts.h"
#include "cli/models/weights.h"

/* Asks for the log-probability of each choice behind the prompt; the line for trajectories.jsonl, yours.
 * NULL with err set. The row has "choices" (texts) and the right one: a number from 0, a letter, or a text,
 * under "answer" or the like. */
tkc_tree *cli_eval_choose(cli_app *, tkc_arena *, const cli_asked *, const tinkc_task *,
                          const char *benchmark, size_t index, const char *example_id,
                          tinkc_error *err);
/* Whether every row can be asked. 0, or an exit code after reporting each that cannot. */
int cli_eval_check_choices(cli_app *, const cli_prompts *);

#endif
