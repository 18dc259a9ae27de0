/* dl.c - dlopen behind one function. */
#include "base/dl.h"

#include <dlfcn.h>
#include <string.h>

bool tkc_dl_load(const char *const *sonames, const tkc_dl_symbol *symbols, void *table,
                 tinkc_error *err)
{
    void *library = NULL;
    for (const char *const *name = sonames; *name && !library; name++)
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "%s cannot be loaded; is it installed?",
                        sonames[0]);
    for (const tkc_dl_symbol *s = symbols; s->name; s++) {
        void *found = dlsym(library, s->name);
        if (!found)
            return tkc_fail(err, TINKC_E_UNSUPPORTED, "%s lacks %s", sonames[0], s->name);
        memcpy((unsigned char *)table + s->offset, &found, sizeof found);
    }
    return true;
}
