/* prompts.h - files of prompts: JSON lines with a prompt and, for graders, an answer. */
#ifndef CLI_PROMPTS_H
#define CLI_PROMPTS_H

#include <tinkc/recipes.h>

#include "cli/main/app.h"

typedef struct cli_prompts {
    tinkc_task *items; /* texts are owned by the set */
    size_t *file;      /* which of the files each came from */
    size_t n, cap;
    char **paths;
    size_t n_paths;
    const char *dataset; /* base name of the first file */
} cli_prompts;

typedef struct cli_prompt_options {
    bool need_answer; /* a row without one is an error */
    bool need_prompt; /* likewise; false: the environment makes it */
} cli_prompt_options;

/* Reads the files of the command line (arguments and --data), or one file. 0, or an exit code after
 * reporting every bad line. */
int cli_prompts_read(cli_app *, const cli_prompt_options *, cli_prompts *out);
int cli_prompts_read_file(cli_app *, const char *path, const cli_prompt_options *,
                          cli_prompts *out);
/* In an order that depends on the seed alone. */
bool cli_prompts_shuffle(cli_prompts *, uint64_t seed);
/* Moves the last n into another set. */
bool cli_prompts_split(cli_prompts *, size_t n, cli_prompts *out);
void cli_prompts_free(cli_prompts *);

#endif
