/* child_env.h - what a command that a recipe starts gets of this process: few variables, no descriptors. */
#ifndef TKR_CHILD_ENV_H
#define TKR_CHILD_ENV_H

#include "tinkc/recipes.h"

/* The variables that a command gets: a list for posix_spawn with borrowed texts, in one block of
 * *size bytes that is yours. `pass` names more than the usual ones. NULL with err set. */
char **tkr_child_env(char *const *pass, size_t n_pass, size_t *size, tinkc_error *err);

#endif
