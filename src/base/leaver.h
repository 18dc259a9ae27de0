/* leaver.h - threads that end by themselves, with nobody waiting for them.
 *
 * They are joined all the same: when another one is expected to leave, or before the process takes its libraries apart. A
 * thread that ended beside that, or later, would free its thread-local data of libraries that have freed it already.
 */
#ifndef TKC_BASE_LEAVER_H
#define TKC_BASE_LEAVER_H

#include <pthread.h>

typedef struct tkc_leaver tkc_leaver;

/* Joins those that have left. NULL: too many are leaving; detach the thread then. */
tkc_leaver *tkc_leaver_new(pthread_t);
void tkc_leaver_free(tkc_leaver *); /* instead of expecting it */
/* The thread runs, or has run, to its end and is joined by others from now on. */
void tkc_leaver_expect(tkc_leaver *);
/* The last call that the thread makes, before or after it is expected. Does nothing for NULL. */
void tkc_leaver_leaves(tkc_leaver *);

#endif
