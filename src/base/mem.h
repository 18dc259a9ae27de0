/* mem.h - all memory comes from here: allocator hooks, growth, checked sizes.
 *
 * `a` NULL means malloc, realloc and free. Releasing takes the size, because it is passed to the
 * caller's allocator. Every failure is TINKC_E_MEMORY in err.
 */
#ifndef TKC_BASE_MEM_H
#define TKC_BASE_MEM_H

#include "base/err.h"

/* Size 0 returns a valid block, not NULL. */
void *tkc_alloc(const tinkc_allocator *a, size_t size, tinkc_error *err);
void *tkc_zalloc(const tinkc_allocator *a, size_t size, tinkc_error *err);
/* NULL on failure; the old block is then unchanged. */
void *tkc_resize(const tinkc_allocator *a, void *ptr, size_t old_size, size_t new_size,
                 tinkc_error *err);
void tkc_release(const tinkc_allocator *a, void *ptr, size_t size);

/* For growable arrays: makes room for `need` items of `item` bytes, growing by half at least
 * (exactly to `need` if that is more).
 * Returns the block (moved or not), or NULL with the old block untouched:
 *
 *     T *grown = tkc_grow(a, v->data, &v->cap, v->len + 1, sizeof *grown, err);
 *     if (!grown)
 *         return false;
 *     v->data = grown;
 */
void *tkc_grow(const tinkc_allocator *a, void *data, size_t *cap, size_t need, size_t item,
               tinkc_error *err);

/* A NUL-terminated copy; release it with its length + 1 (tkc_release_str does). */
char *tkc_copy_str(const tinkc_allocator *a, tinkc_str s, tinkc_error *err);
void tkc_release_str(const tinkc_allocator *a, char *s);

/* Aligned blocks for numbers (alignment: a power of two); straight from the system, no hook. */
void *tkc_alloc_aligned(size_t alignment, size_t size, tinkc_error *err);
void tkc_release_aligned(void *ptr);

/* Zeroed pages straight from the system, backed as they are touched: for large tables with random
 * access, which benefit from large pages. No hook. */
void *tkc_alloc_pages(size_t size, tinkc_error *err);
void tkc_release_pages(void *ptr, size_t size);
size_t tkc_page_size(void);  /* of the system */
size_t tkc_pages_held(void); /* bytes, in the whole process */
/* Address space alone, for a table that grows in parts: a part is committed before it is touched,
 * and decommitted (its contents are lost) when its memory is wanted elsewhere. */
void *tkc_reserve_pages(size_t size, tinkc_error *err);
void tkc_commit_pages(size_t size); /* counts it: the system backs pages as they are touched */
void tkc_decommit_pages(void *part, size_t size);
void tkc_unreserve_pages(void *ptr, size_t size, size_t committed);

/* False on overflow, and *out is then untouched. */
bool tkc_add_size(size_t x, size_t y, size_t *out);
bool tkc_mul_size(size_t x, size_t y, size_t *out);

/* True if every byte is zero: how `reserved` fields are checked. */
bool tkc_all_zero(const void *bytes, size_t len);

#endif
