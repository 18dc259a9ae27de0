/* pages.c - start-up reads far more of a program than a small command needs: the tables by which it
 * and its libraries are bound. Before a connection brings more of the kind, they are given back. */
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/main/app.h"

/* Clean pages of code and tables; those that are needed come back from the page cache. */
static int give_back(struct dl_phdr_info *info, size_t size, void *arg)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)size;
    (void)arg;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t begin = ((uintptr_t)info->dlpi_addr + p->p_vaddr) / page * page;
        if (p->p_type == PT_LOAD && !(p->p_flags & PF_W))
            (void)madvise((void *)begin, p->p_filesz, MADV_DONTNEED);
    }
    return 0;
}

void cli_give_back_pages(void)
{
    dl_iterate_phdr(give_back, NULL);
}
