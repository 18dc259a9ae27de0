/* dl.c - looking symbols of opened libraries up. */
#include "base/dl.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

#include "base/platform.h"

void tkc_dl_open(const char *soname)
{
    (void)tkc_library_open(soname);
}

bool tkc_dl_load(const char *const *sonames, const tkc_dl_symbol *symbols, void *table,
                 tinkc_error *err)
{
    void *library = NULL;
    assert(sonames[0]); /* errors name it */
    for (const char *const *name = sonames; *name && !library; name++)
        library = tkc_library_open(*name);
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
