/* mem.c - the one file that calls malloc. May touch: the C library. Must not: log, lock. */
#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/platform.h"

bool tkc_add_size(size_t x, size_t y, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(x, y, &sum))
        return false;
    *out = sum;
    return true;
}

bool tkc_mul_size(size_t x, size_t y, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(x, y, &product))
        return false;
    *out = product;
    return true;
}

void *tkc_alloc(const tinkc_allocator *a, size_t size, tinkc_error *err)
{
    /* So that NULL always means that there is no memory. */
    size_t n = size ? size : 1;
    void *ptr = a ? a->alloc(n, a->user) : malloc(n);
    if (!ptr)
        tkc_fail_memory(err);
    return ptr;
}

void *tkc_zalloc(const tinkc_allocator *a, size_t size, tinkc_error *err)
{
    if (!a) { /* large blocks come zeroed from the system, page by page as they are used */
        void *zeroed = calloc(1, size ? size : 1);
        if (!zeroed)
            tkc_fail_memory(err);
        return zeroed;
    }
    void *ptr = tkc_alloc(a, size, err);
    if (ptr)
        memset(ptr, 0, size ? size : 1);
    return ptr;
}

void *tkc_resize(const tinkc_allocator *a, void *ptr, size_t old_size, size_t new_size,
                 tinkc_error *err)
{
    if (!ptr)
        return tkc_alloc(a, new_size, err);
    size_t old_n = old_size ? old_size : 1, new_n = new_size ? new_size : 1;
    void *moved = a ? a->resize(ptr, old_n, new_n, a->user) : realloc(ptr, new_n);
    if (!moved)
        tkc_fail_memory(err);
    return moved;
}

void tkc_release(const tinkc_allocator *a, void *ptr, size_t size)
{
    if (!ptr)
        return;
    if (a)
        a->release(ptr, size ? size : 1, a->user);
    else
        free(ptr);
}

void *tkc_grow(const tinkc_allocator *a, void *data, size_t *cap, size_t need, size_t item,
               tinkc_error *err)
{
    assert(item > 0);
    if (data && need <= *cap)
        return data;
    size_t wanted = *cap < 8 ? 8 : *cap;
    if (!tkc_add_size(wanted, *cap / 2, &wanted) || wanted < need)
        wanted = need > 8 ? need : 8;
    assert(wanted >= need && wanted >= *cap);
    size_t bytes;
    if (!tkc_mul_size(wanted, item, &bytes)) {
        tkc_fail_memory(err);
        return NULL;
    }
    void *grown = tkc_resize(a, data, *cap * item, bytes, err);
    if (grown)
        *cap = wanted;
    return grown;
}

char *tkc_copy_str(const tinkc_allocator *a, tinkc_str s, tinkc_error *err)
{
    size_t size;
    if (!tkc_add_size(s.len, 1, &size)) {
        tkc_fail_memory(err);
        return NULL;
    }
    assert(s.data || !s.len);
    char *copy = tkc_alloc(a, size, err);
    if (!copy)
        return NULL;
    if (s.len)
        memcpy(copy, s.data, s.len);
    copy[s.len] = '\0';
    return copy;
}

void tkc_release_str(const tinkc_allocator *a, char *s)
{
    if (s)
        tkc_release(a, s, strlen(s) + 1);
}

void *tkc_alloc_aligned(size_t alignment, size_t size, tinkc_error *err)
{
    assert(alignment >= sizeof(void *) && (alignment & (alignment - 1)) == 0);
    void *ptr = NULL;
    if (posix_memalign(&ptr, alignment, size ? size : 1) != 0) {
        tkc_fail_memory(err);
        return NULL;
    }
    return ptr;
}

void tkc_release_aligned(void *ptr)
{
    free(ptr);
}

enum { LARGE_PAGE = 2 << 20 };

static _Atomic size_t pages_held;

size_t tkc_page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t size)
{
    size_t page = tkc_page_size();
    return (size + page - 1) / page * page;
}

static void *map_pages(size_t size, int flags, tinkc_error *err)
{
    /* Over-allocate, so that the part that is kept begins at a large page. */
    size_t wide;
    if (!tkc_add_size(size, LARGE_PAGE, &wide)) {
        tkc_fail_memory(err);
        return NULL;
    }
    char *got =
        mmap(NULL, wide, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (got == MAP_FAILED) {
        tkc_fail_memory(err);
        return NULL;
    }
    size_t skip = (LARGE_PAGE - (uintptr_t)got % LARGE_PAGE) % LARGE_PAGE;
    if (skip)
        munmap(got, skip);
    size_t kept = whole_pages(size);
    assert(kept >= size && kept <= wide - skip);
    if (wide - skip > kept)
        munmap(got + skip + kept, wide - skip - kept);
    tkc_pages_advise(got + skip, kept, TKC_PAGES_LARGE);
    return got + skip;
}

void *tkc_alloc_pages(size_t size, tinkc_error *err)
{
    void *got = map_pages(size, 0, err);
    if (got)
        atomic_fetch_add(&pages_held, whole_pages(size));
    return got;
}

void tkc_release_pages(void *ptr, size_t size)
{
    size_t kept = whole_pages(size);
    if (!ptr)
        return;
    munmap(ptr, kept);
    atomic_fetch_sub(&pages_held, kept);
}

void *tkc_reserve_pages(size_t size, tinkc_error *err)
{
    return map_pages(size, MAP_NORESERVE, err);
}

void tkc_commit_pages(size_t size)
{
    atomic_fetch_add(&pages_held, size);
}

/* A page that the part shares with its neighbours stays. */
void tkc_decommit_pages(void *part, size_t size)
{
    uintptr_t page = tkc_page_size();
    uintptr_t begin = ((uintptr_t)part + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)part + size) / page * page;
    if (end > begin)
        tkc_pages_advise((void *)begin, end - begin, TKC_PAGES_DROP);
    atomic_fetch_sub(&pages_held, size);
}

void tkc_unreserve_pages(void *ptr, size_t size, size_t committed)
{
    if (ptr)
        munmap(ptr, whole_pages(size));
    atomic_fetch_sub(&pages_held, committed);
}

size_t tkc_pages_held(void)
{
    return atomic_load(&pages_held);
}

bool tkc_all_zero(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < len; i++)
        if (p[i])
            return false;
    return true;
}
