/* checkpoint_files.h - the files of a checkpoint, whatever the service calls them: an archive, or
 * external weights. */
#ifndef CLI_CHECKPOINT_FILES_H
#define CLI_CHECKPOINT_FILES_H

#include "cli/main/app.h"

/* What a path names: TINKC_CHECKPOINT_*; 0 = not a checkpoint's path. tinker://RUN/NAME, as SkyRL
 * writes it, is a sampler's. */
int32_t cli_path_kind(const char *path);

/* A checkpoint to download. */
typedef struct cli_wanted_files {
    const char *path;
    const char *training; /* the training checkpoint of the same step, if `path` is a sampler's that
                             the service does not give out; NULL = not known */
    bool external;        /* out: they came as external weights, without a mark of completeness */
} cli_wanted_files;

/* Downloads it; waits. A training checkpoint whose archive the service refuses is saved as external
 * weights of an hour's life, fetched from there, and those are deleted. The future is yours, NULL =
 * *err says why not. Needs a connection. */
tinkc_future *cli_fetch_files(cli_app *, cli_wanted_files *, const tinkc_download_options *,
                              tinkc_error *err);

#endif
