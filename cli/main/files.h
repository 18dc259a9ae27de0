/* files.h - folders made with their parents, and files that are written whole or not at all. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include <sys/types.h>

#include "cli/main/app.h"

/* Makes a folder and what is missing above it; one that is there is fine. False with errno set. */
bool cli_make_folder(const char *path, mode_t mode);
/* The same for everything above a file. */
bool cli_make_parents(const char *path, mode_t mode);

/* Whether no link in a folder, nor in what runs make there, leads out of it or to nothing: the folder may
 * have come with a repository, and what is written into it must stay there. option: what names another
 * folder. 0, or an exit code after reporting. */
int cli_check_links(const cli_app *, const char *folder, const char *option);

/* Whether other users can read or change a file with a secret; a pipe or a terminal has no mode. 0,
 * or an exit code after reporting. */
int cli_check_secret_file(const cli_app *, const char *path);

/* A file on its way: it appears under its name only when all of it was written. "-" is stdout, and
 * what is not a regular file (a pipe, a device) is written as it comes. */
typedef struct cli_save {
    FILE *f; /* NULL = it could not be opened; cli_save_end then says so */
    char *target, *beside;
    int fault; /* errno of what failed first */
} cli_save;
void cli_save_begin(cli_save *, const char *path, mode_t mode);
/* Ends it; `keep` false throws it away. 0, or an exit code after reporting. */
int cli_save_end(cli_save *, const cli_app *, bool keep);

/* Where a download goes: folder and name apart, as the library wants them; "-" is stdout, straight
 * from the network without a file in between. Must stay where it is while the download runs. */
typedef struct cli_place {
    char *copy;
    const char *dir, *name; /* dir NULL = here */
    bool piped;
} cli_place;
void cli_place_begin(cli_place *, const char *target, tinkc_download_options *);
/* After a download that failed: 0, or an exit code if stdout was the reason, which is then
 * reported. */
int cli_place_fault(const cli_app *, const cli_place *, const tinkc_error *);
void cli_place_free(cli_place *);

#endif
