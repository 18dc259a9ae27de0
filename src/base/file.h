/* file.h - whole files, maps of files, folders. Errors are TINKC_E_FILE and name the path. */
#ifndef TKC_BASE_FILE_H
#define TKC_BASE_FILE_H

#include "base/arena.h"

/* Opens a regular file for reading; *size is its length. -1 with err set. */
int tkc_open_regular(const char *path, size_t *size, tinkc_error *err);
/* Reads a regular file of at most max bytes and appends a NUL that is not counted. */
tinkc_bytes tkc_read_file(tkc_arena *, const char *path, size_t max, tinkc_error *err);

/* Writes beside the target, syncs, renames: the name never refers to a partial file. mode as in
 * open. */
bool tkc_write_file(const char *path, const void *data, size_t len, uint32_t mode,
                    tinkc_error *err);
/* Syncs the folder a path lies in, so that a rename survives a power cut. */
bool tkc_sync_parent(const char *path, tinkc_error *err);

/* A file in memory, read-only and shared. An empty file has data NULL. */
typedef struct tkc_mapping {
    const unsigned char *data;
    size_t len;
    int64_t changed_ns; /* when the file was last written, since 1970; 0 = no file */
} tkc_mapping;
bool tkc_map_file(const char *path, tkc_mapping *out, tinkc_error *err);
void tkc_unmap_file(tkc_mapping *);

bool tkc_is_file(const char *path);
bool tkc_is_dir(const char *path);
/* Makes a folder and its parents (mode 0700). An existing folder is not an error. */
bool tkc_make_dirs(const char *path, tinkc_error *err);
/* The same, and syncs, so that each new name survives a power loss. */
bool tkc_make_lasting_dirs(const char *path, tinkc_error *err);
/* Removes a folder and everything in it, following no links. A missing folder is not an error. */
bool tkc_remove_tree(const char *path, tinkc_error *err);
/* "a/b" from "a" and "b"; an absolute b wins. */
char *tkc_path_join(tkc_arena *, const char *a, const char *b, tinkc_error *err);

bool tkc_write_all(int fd, const void *data, size_t len); /* false: errno is set */

#endif
