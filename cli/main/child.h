/* child.h - a program that this one starts: --hook, git. It gets standard streams and the variables that
 * programs need, but no other descriptors and no credentials. */
#ifndef CLI_CHILD_H
#define CLI_CHILD_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "cli/main/app.h"

/* The option of every command that starts one. */
#define CLI_PASS_ENV \
    OPT_TEXT("pass-env", "NAME", "a variable of the environment that commands get too; may be repeated", \
             .repeats = true)

typedef struct cli_child {
    pid_t pid;
    FILE *pipe; /* its standard output, or its standard input; NULL = not started */
} cli_child;

enum { CLI_CHILD_READ, CLI_CHILD_WRITE, CLI_CHILD_QUIET = 2 /* its standard error is discarded */ };

/* What a child may see of our environment, with what --pass-env names and then `more` ("NAME=value",
 * ends with NULL). Yours to free, in one block; the texts are borrowed. NULL = no memory. */
char **cli_child_env(const cli_app *, const char *const *more);

/* Starts a program of the PATH; `how` is READ or WRITE, | QUIET. False with errno set. */
bool cli_child_start(cli_child *, const char *const *argv, char *const *env, unsigned how);
/* Closes the pipe and waits until it has ended; its wait status, or -1. */
int cli_child_end(cli_child *);

#endif
