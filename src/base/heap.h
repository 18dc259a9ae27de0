/* heap.h - memory of the whole process: secret pages, statistics, trimming. */
#ifndef TKC_BASE_HEAP_H
#define TKC_BASE_HEAP_H

#include "base/mem.h"

/* Zeroed pages for keys and tokens: left out of core dumps, kept from being swapped out where the
 * system allows it, wiped before they are released. */
void *tkc_secret_alloc(size_t size, tinkc_error *err);
void tkc_secret_free(void *ptr, size_t size); /* NULL allowed */

/* Returns memory that the C library holds unused to the system. Slow: call it only when idle. */
void tkc_heap_trim(void);
size_t tkc_heap_unused(void); /* held by the C library but not in use; 0 = not known */
typedef struct tkc_heap {
    size_t unused;         /* of tkc_heap_unused */
    size_t pages;          /* of tkc_alloc_pages, touched or not */
    size_t resident;       /* of the whole process, files that are mapped included; 0 = unknown */
    size_t resident_files; /* of that, pages of files */
} tkc_heap;
tkc_heap tkc_heap_now(void);
/* From now on large blocks are mapped separately, so that releasing one returns it to the system.
 * For programs, not for libraries: it affects the whole process. */
void tkc_heap_map_large(void);

#endif
