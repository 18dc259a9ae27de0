/* chunks.h - a queue of bytes between a writer and a reader, in pieces that never move.
 *
 * The owner's lock guards every call. Bytes from tkc_chunks_peek may be read without the lock until
 * tkc_chunks_drop: adding never touches or moves bytes that are held. Memory use follows the amount
 * held; one spare piece is kept.
 */
#ifndef TKC_BASE_CHUNKS_H
#define TKC_BASE_CHUNKS_H

#include "base/mem.h"

typedef struct tkc_chunk tkc_chunk;

typedef struct tkc_chunks {
    const tinkc_allocator *a;
    tkc_chunk *first, *last, *spare;
    size_t len; /* bytes held */
} tkc_chunks;

/* Allocates nothing yet. */
void tkc_chunks_init(tkc_chunks *, const tinkc_allocator *a);
void tkc_chunks_free(tkc_chunks *);

/* All of it, or nothing and an error. */
bool tkc_chunks_add(tkc_chunks *, const void *bytes, size_t len, tinkc_error *err);
/* The oldest bytes, as many as are contiguous; 0 = none are held. */
size_t tkc_chunks_peek(tkc_chunks *, const void **bytes);
/* Releases the oldest n bytes; n is at most what was peeked. */
void tkc_chunks_drop(tkc_chunks *, size_t n);

#endif
