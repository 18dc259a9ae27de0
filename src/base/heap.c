/* heap.c - secret pages, and the memory of the process as a whole.
 *
 * May touch: the system's memory calls. Must not: log, lock.
 */
#include "base/heap.h"

#include <sys/mman.h>

#include "base/platform.h"

static size_t whole_pages(size_t size)
{
    size_t page = tkc_page_size();
    return (size + page) / page * page; /* at least one */
}

void *tkc_secret_alloc(size_t size, tinkc_error *err)
{
    size_t n = whole_pages(size);
    void *got = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) {
        tkc_fail_memory(err);
        return NULL;
    }
    tkc_pages_advise(got, n, TKC_PAGES_NOT_DUMPED);
    (void)mlock(got, n); /* over RLIMIT_MEMLOCK the pages stay swappable */
    return got;
}

void tkc_secret_free(void *ptr, size_t size)
{
    if (!ptr)
        return;
    tkc_wipe(ptr, size);
    (void)munmap(ptr, whole_pages(size));
}

tkc_heap tkc_heap_now(void)
{
    uint64_t resident, files;
    tkc_resident_memory(&resident, &files);
    return (tkc_heap){ .unused = tkc_heap_unused(),
                       .pages = tkc_pages_held(),
                       .resident = (size_t)resident,
                       .resident_files = (size_t)files };
}
