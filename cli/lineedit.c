/* lineedit.c - libedit through its readline face, opened with dlopen so that only chat pays. */
#include "lineedit.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"
#include "files.h"

static struct {
    char *(*readline)(const char *);
    int (*add_history)(const char *);
    int (*read_history)(const char *);
    int (*write_history)(const char *);
    int (*stifle_history)(int);
} edit;
static char *history;

static bool load(void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

void cli_edit_begin(const char *history_file)
{
    if (!isatty(STDIN_FILENO))
        return;
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    bool ok = library && load(library, "add_history", &edit.add_history) &&
              load(library, "read_history", &edit.read_history) &&
              load(library, "write_history", &edit.write_history) &&
              load(library, "stifle_history", (void *)&edit.stifle_history) &&
              load(library, "readline", &edit.readline);
    if (!ok) {
        edit.readline = NULL;
        return;
    }
    if (history_file) {
        history = strdup(history_file);
        (void)edit.read_history(history);
    }
}

static char *plain_line(const char *prompt)
{
    char *line = NULL;
    size_t cap = 0;
    if (isatty(STDIN_FILENO)) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
        clearerr(stdin);
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = '\0';
    return line;
}

char *cli_edit_line(const char *prompt, bool *interrupted)
{
    errno = 0;
    *interrupted = false;
    char *line = edit.readline ? edit.readline(prompt) : plain_line(prompt);
    if (cli_stop_signal()) {
        *interrupted = true;
        cli_forget_signal();
        free(line);
        return NULL;
    }
    if (line && line[0] && edit.readline)
        (void)edit.add_history(line);
    return line;
}

void cli_edit_end(void)
{
    if (history) {
        (void)cli_make_parents(history, 0700);
        (void)edit.stifle_history(1000);
        (void)edit.write_history(history);
        (void)chmod(history, 0600);
    }
    free(history);
    history = NULL;
}
