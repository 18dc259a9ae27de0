/* gitinfo.c - asks git, as a program. Must not: change the repository, or run what its settings
 * name (a monitor, an external diff, a text filter). */
#include "gitinfo.h"

#include <stdlib.h>
#include <string.h>

/* Nobody waits for long for what is only a note. */
#define GIT "timeout 10 git -c core.fsmonitor=false --no-pager "

enum { DIFF_MOST = 16 << 20 }; /* a diff that is longer is cut: it is for people to read */

/* The first line that a command prints; yours. NULL = it failed, or printed nothing. */
static char *first_line(const char *command)
{
    FILE *f = popen(command, "re");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = f ? getline(&line, &cap, f) : -1;
    int status = f ? pclose(f) : -1;
    if (status != 0 || n <= 1) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    return line;
}

char *cli_git_commit(void)
{
    return first_line(GIT "rev-parse --verify HEAD 2> /dev/null");
}

static void copy_diff(FILE *from, FILE *to)
{
    char piece[16384];
    size_t n, total = 0;
    while ((n = fread(piece, 1, sizeof piece, from)) > 0) {
        total += n;
        if (total <= DIFF_MOST)
            (void)fwrite(piece, 1, n, to);
    }
    if (total > DIFF_MOST)
        fputs("\n### cut here: the rest is left out\n", to);
}

bool cli_git_diff(FILE *to)
{
    char *commit = cli_git_commit();
    char *folder = commit ? first_line(GIT "rev-parse --show-toplevel 2> /dev/null") : NULL;
    FILE *diff =
        folder ? popen(GIT "diff --no-ext-diff --no-textconv --no-color HEAD 2> /dev/null", "re")
               : NULL;
    bool ok = diff != NULL;
    if (ok) {
        fprintf(to, "### repo: %s @ %s\n", folder, commit);
        copy_diff(diff, to);
        (void)pclose(diff);
    }
    free(folder);
    free(commit);
    return ok;
}
