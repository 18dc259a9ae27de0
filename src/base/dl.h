/* dl.h - libraries opened on first use, so that programs that never need them start fast.
 *
 * Each heavy dependency sits behind one file that fills a struct of function pointers with this.
 */
#ifndef TKC_BASE_DL_H
#define TKC_BASE_DL_H

#include <stdint.h>

#include "base/err.h"

typedef struct tkc_dl_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the table */
} tkc_dl_symbol;

/* Opens the first of `sonames` (a list) that exists and looks up all symbols (ended by a NULL
 * name). The library stays open for the life of the process. False: TINKC_E_UNSUPPORTED with the
 * reason. Thread-safe as long as the caller serialises writes to its own table. */
bool tkc_dl_load(const char *const *sonames, const tkc_dl_symbol *symbols, void *table,
                 tinkc_error *err);

/* Opens a library that others depend on, if it exists. */
void tkc_dl_open(const char *soname);

#endif
