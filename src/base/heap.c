/* heap.c - secret pages, and the C library's heap as a whole.
 *
 * May touch: the system's memory calls, /proc/self/statm. Must not: log, lock.
 */
#include "base/heap.h"

#include <fcntl.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"

static size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
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
    (void)madvise(got, n, MADV_DONTDUMP);
    (void)mlock(got, n); /* over RLIMIT_MEMLOCK the pages stay swappable */
    return got;
}

void tkc_secret_free(void *ptr, size_t size)
{
    if (!ptr)
        return;
    explicit_bzero(ptr, size);
    (void)munmap(ptr, whole_pages(size));
}

void tkc_heap_trim(void)
{
    (void)malloc_trim(0);
}

void tkc_heap_map_large(void)
{
    enum { LARGE = 1 << 18 };
    (void)mallopt(M_MMAP_THRESHOLD, LARGE); /* setting it also stops its automatic growth */
    (void)mallopt(M_TRIM_THRESHOLD, 4 * LARGE);
}

tkc_heap tkc_heap_now(void)
{
#ifdef __SANITIZE_THREAD__ /* its own allocator stands in, and the C library's may not be ready to be asked */
    struct mallinfo2 now = { 0 };
#else
    struct mallinfo2 now = mallinfo2();
#endif
    tkc_heap out = { .unused = now.fordblks, .pages = tkc_pages_held() };
    char text[128];
    uint64_t pages[3] = { 0 };
    tinkc_str rest, part;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    rest = tkc_str(text); /* size, resident, shared, in pages */
    for (size_t i = 0; i < 3 && tkc_str_cut(&rest, ' ', &part); i++)
        (void)tkc_parse_u64(part, &pages[i]);
    out.resident = (size_t)pages[1] * (size_t)sysconf(_SC_PAGESIZE);
    out.resident_files = (size_t)pages[2] * (size_t)sysconf(_SC_PAGESIZE);
    return out;
}
