/* powerloss.h - a disk that loses power: records what a program writes below one folder, and builds
 * the folders that a power loss at any moment may leave behind.
 *
 * powerloss.c has the C library's functions for files under their own names. A test program that is
 * linked with it, or a program that it is preloaded into, writes through it, SQLite included. What
 * the disk promises is what POSIX does: the bytes of a file are there after fsync or fdatasync of the
 * file; its name is there after fsync of the folder; a rename happens wholly or not at all. All else
 * may be lost, kept, or kept in part.
 */
#ifndef TESTS_POWERLOSS_H
#define TESTS_POWERLOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What became of the writes and names that no sync covers. */
enum {
    POWERLOSS_LOST,  /* none of them is there */
    POWERLOSS_KEPT,  /* all are: what kill -9 leaves */
    POWERLOSS_NAMES, /* the names are there, the bytes are not: files end early */
    POWERLOSS_BYTES, /* the bytes are there, the names are not */
    POWERLOSS_MIXED, /* some of each, the last write torn; `seed` says which */
    POWERLOSS_WAYS
};

/* Begins, at an existing and empty folder; forgets what was recorded before. */
void powerloss_start(const char *folder);
void powerloss_stop(void);
/* From now on `promise` has been made. */
void powerloss_mark(int promise);
/* Syncs of paths that contain this text are not done (folders: their path ends with it). NULL = all
 * are. A program with such a hole must be caught. */
void powerloss_ignore(const char *path_part);

/* The moments at which power may be lost: before the first call, and after each. */
size_t powerloss_moments(void);
/* Is this the moment right after or right before a sync? */
bool powerloss_at_sync(size_t moment);
/* The last promise made before it; 0 = none. */
int powerloss_promised(size_t moment);
/* Makes the folder, which must not exist. */
void powerloss_build(size_t moment, int way, uint64_t seed, const char *folder);

#endif
