/* heap.h - memory as the whole process sees it: secrets, what is held, giving it back. */
#ifndef TKC_BASE_HEAP_H
#define TKC_BASE_HEAP_H

#include "base/mem.h"

/* Zeroed pages for keys and tokens: left out of core dumps, kept from being swapped out where the
 * system allows it, wiped before they are given back. */
void *tkc_secret_alloc(size_t size, tinkc_error *err);
void tkc_secret_free(void *ptr, size_t size); /* NULL allowed */

/* Gives memory that the C library holds without need back to the system. Slow: when idle only. */
void tkc_heap_trim(void);
typedef struct tkc_heap {
    size_t unused;         /* held by the C library, in use by nobody */
    size_t pages;          /* of tkc_alloc_pages, touched or not */
    size_t resident;       /* of the whole process, files that are mapped included; 0 = unknown */
    size_t resident_files; /* of that, pages of files */
} tkc_heap;
tkc_heap tkc_heap_now(void);
/* From now on large blocks are mapped one by one, so that they go back when they are released. For
 * programs, not for libraries: it holds for the whole process. */
void tkc_heap_map_large(void);

#endif
