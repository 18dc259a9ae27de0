/* gitinfo.h - which code a run was started from: the working directory's git repository. */
#ifndef CLI_GITINFO_H
#define CLI_GITINFO_H

#include <stdbool.h>
#include <stdio.h>

/* The commit that is checked out here; yours. NULL = no repository, or no git. */
char *cli_git_commit(void);
/* "### repo: FOLDER @ COMMIT", then what differs from that commit. False = nothing to write. */
bool cli_git_diff(FILE *to);

#endif
