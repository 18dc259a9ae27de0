/* dl.c - dlopen and symbol lookup. */
#include "base/dl.h"

#include <assert.h>
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int note_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    tkc_dl_mark *mark = arg;
    (void)size;
    if (mark->n < TKC_DL_MAX_OBJECTS)
        mark->at[mark->n++] = (uintptr_t)info->dlpi_addr;
    return 0;
}

void tkc_dl_mark_now(tkc_dl_mark *mark)
{
    mark->n = 0;
    dl_iterate_phdr(note_object, mark);
}

static bool was_there(const tkc_dl_mark *mark, uintptr_t at)
{
    assert(mark->n <= TKC_DL_MAX_OBJECTS);
    for (size_t i = 0; i < mark->n; i++)
        if (mark->at[i] == at)
            return true;
    return mark->n == TKC_DL_MAX_OBJECTS; /* the list may be incomplete: release nothing */
}

/* Code that relocation has changed must not be read from the file again. */
static bool has_text_relocations(const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; d->d_tag != DT_NULL; d++)
            if (d->d_tag == DT_TEXTREL || (d->d_tag == DT_FLAGS && (d->d_un.d_val & DF_TEXTREL)))
                return true;
    }
    return false;
}

static int give_back(struct dl_phdr_info *info, size_t size, void *arg)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)size;
    if (was_there(arg, (uintptr_t)info->dlpi_addr) || has_text_relocations(info))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W))
            continue;
        uintptr_t begin = ((uintptr_t)info->dlpi_addr + p->p_vaddr) / page * page;
        uintptr_t end = ((uintptr_t)info->dlpi_addr + p->p_vaddr + p->p_filesz) / page * page;
        if (end > begin)
            (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    return 0;
}

void tkc_dl_give_back(const tkc_dl_mark *since)
{
    tkc_dl_mark mark = *since;
    dl_iterate_phdr(give_back, &mark);
}

static void *open_now(const char *soname)
{
    return dlopen(soname, RTLD_NOW | RTLD_LOCAL);
}

void tkc_dl_open(const char *soname)
{
    (void)open_now(soname);
}

bool tkc_dl_load(const char *const *sonames, const tkc_dl_symbol *symbols, void *table,
                 tinkc_error *err)
{
    void *library = NULL;
    assert(sonames[0]); /* errors name it */
    for (const char *const *name = sonames; *name && !library; name++)
        library = open_now(*name);
    if (!library)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "%s cannot be loaded; is it installed?",
                        sonames[0]);
    for (const tkc_dl_symbol *s = symbols; s->name; s++) {
        void *found = dlsym(library, s->name);
        if (!found)
            return tkc_fail(err, TINKC_E_UNSUPPORTED, "%s lacks %s", sonames[0], s->name);
        assert(s->offset % sizeof found == 0);
        memcpy((unsigned char *)table + s->offset, &found, sizeof found);
    }
    return true;
}
