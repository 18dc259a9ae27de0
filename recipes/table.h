/* table.h - named numbers, in the order in which they first came. */
#ifndef TKR_TABLE_H
#define TKR_TABLE_H

#include <stdio.h>

#include "base/mem.h"

typedef struct tkr_entry {
    double sum, weight;
} tkr_entry;

typedef struct tkr_table { /* starts from {0} */
    const char **names;    /* a list */
    double *values;
    tkr_entry *entries;
    size_t n, cap, names_cap, values_cap;
} tkr_table;

bool tkr_table_set(tkr_table *, const char *name, double value, tinkc_error *err);
/* The value becomes the mean of all that were given under the name. */
bool tkr_table_mean(tkr_table *, const char *name, double value, tinkc_error *err);
bool tkr_table_setf(tkr_table *, double value, tinkc_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void tkr_table_free(tkr_table *);

#endif
