/* logdirs.h - finds the runs under a list of folders, and what changed since the last scan.
 *
 * A run is a folder with metrics.jsonl, checkpoints.jsonl or config.json in it. A root that is one
 * is shown; below any other root folders are searched to a bounded depth, following no links. Runs
 * are identified by ids in a table: a client never passes a path. [one thread]
 */
#ifndef TKE_PAGE_LOGDIRS_H
#define TKE_PAGE_LOGDIRS_H

#include "base/map.h"
#include "service/page/jsonlines.h"

enum { TKE_RUN_ID = 17, TKE_MAX_RUNS = 1000 };

/* Files of a run that may be read, by these names and no others. */
enum {
    TKE_RUN_METRICS = 0,
    TKE_RUN_CHECKPOINTS,
    TKE_RUN_SAMPLES,
    TKE_RUN_CONFIG,
    TKE_RUN_LOG,
    TKE_RUN_FILES
};

typedef struct tke_run_file {
    uint64_t inode; /* 0 = it is not there */
    int64_t size;
    int64_t changed_us;
} tke_run_file;

typedef struct tke_logged_run {
    char id[TKE_RUN_ID];
    char *path; /* for opening it; any bytes */
    char *name; /* below its root; UTF-8 */
    tke_run_file files[TKE_RUN_FILES];
    char *config;     /* what the list shows of config.json: a JSON object; NULL = none */
    char *last;       /* the newest row of numbers, a JSON object; NULL = none */
    bool final;       /* its last checkpoint has been taken */
    bool found;       /* by the current scan */
    uint64_t version; /* of the change that was last noticed */
} tke_logged_run;

typedef struct tke_logdirs {
    const tinkc_allocator *a;
    char **roots;
    size_t n_roots, cap_roots; /* copied; places in the array */
    tkc_map runs;              /* id -> tke_logged_run */
    uint64_t version;          /* grows with every change */
    uint64_t removed;          /* version when a run was last found missing */
    bool too_many;             /* there are more than TKE_MAX_RUNS */
} tke_logdirs;

bool tke_logdirs_init(tke_logdirs *, const tinkc_allocator *, const char *const *roots,
                      tinkc_error *err);
void tke_logdirs_free(tke_logdirs *);
/* Scans every root and run; ignores what cannot be read. False: memory is short. */
bool tke_logdirs_scan(tke_logdirs *, tinkc_error *err);
/* NULL: unknown. Until the next scan. */
const tke_logged_run *tke_logdirs_run(const tke_logdirs *, tinkc_str id);
/* Opens one of its files; -1 if it does not exist. */
int tke_run_open(const tke_logged_run *, int file);
/* "metrics" and so on; -1 = none of them. */
int tke_run_file_named(tinkc_str name);
/* Makes a text fit to be shown: bytes that are not UTF-8, and control characters, become '?'. */
void tke_make_showable(char *text);
/* What a list shows of a run, as a JSON object. */
bool tke_run_describe(const tke_logged_run *, int64_t now_us, tkc_buf *out, tinkc_error *err);

#endif
