/* arena.h - memory that is released all at once: one arena for each request, response, batch.
 *
 * Blocks grow geometrically; single allocations are never released, so most code that works on an
 * arena needs no cleanup. An arena has a maximum, because its size often depends on outside input.
 * [one thread]
 */
#ifndef TKC_BASE_ARENA_H
#define TKC_BASE_ARENA_H

#include "base/mem.h"

typedef struct tkc_arena_block tkc_arena_block;

typedef struct tkc_arena {
    const tinkc_allocator *a;
    tkc_arena_block *blocks; /* newest first */
    unsigned char *at, *end; /* free part of the newest block */
    size_t taken;            /* bytes of all blocks */
    size_t max;
    bool failed; /* something was not allocated, since init, free or reset */
} tkc_arena;

/* Allocates nothing yet; max 0 = no limit. An arena of all zero bytes is empty and unlimited. */
void tkc_arena_init(tkc_arena *, const tinkc_allocator *a, size_t max);
/* Releases everything; the arena may be used again. */
void tkc_arena_free(tkc_arena *);
/* Empties it but keeps its largest block for reuse. */
void tkc_arena_reset(tkc_arena *);

/* Aligned to 16 bytes; contents undefined. Over `max`: TINKC_E_MEMORY; the message says so. */
void *tkc_arena_alloc(tkc_arena *, size_t size, tinkc_error *err);
void *tkc_arena_zalloc(tkc_arena *, size_t size, tinkc_error *err);
/* n items of `size` bytes, zeroed; the product is checked. */
void *tkc_arena_array(tkc_arena *, size_t n, size_t size, tinkc_error *err);

/* NUL-terminated copies. */
char *tkc_arena_str(tkc_arena *, tinkc_str s, tinkc_error *err);
char *tkc_arena_cstr(tkc_arena *, const char *s, tinkc_error *err);
char *tkc_arena_printf(tkc_arena *, tinkc_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
