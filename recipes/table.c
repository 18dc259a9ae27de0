/* table.c - named numbers: the metrics of a rollout and of a step. Knows nothing of either. */
#include "recipes/table.h"

#include <math.h>

#include "base/str.h"

static tkr_entry *find(const tkr_table *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->names[i], name) == 0)
            return &t->entries[i];
    return NULL;
}

static tkr_entry *make(tkr_table *t, const char *name, tinkc_error *err)
{
    size_t names_cap = t->names_cap;
    const char **names = tkc_grow(NULL, t->names, &names_cap, t->n + 2, sizeof *names, err);
    if (!names)
        return NULL;
    t->names = names;
    t->names_cap = names_cap;
    double *values = tkc_grow(NULL, t->values, &t->values_cap, t->n + 1, sizeof *values, err);
    if (!values)
        return NULL;
    t->values = values;
    tkr_entry *entries = tkc_grow(NULL, t->entries, &t->cap, t->n + 1, sizeof *entries, err);
    char *copy = entries ? tkc_copy_str(NULL, tkc_str(name), err) : NULL;
    if (entries)
        t->entries = entries;
    if (!copy)
        return NULL;
    names[t->n] = copy;
    names[t->n + 1] = NULL;
    entries[t->n] = (tkr_entry){ 0 };
    return &entries[t->n++];
}

static bool put(tkr_table *t, const char *name, double value, double weight, bool replace,
                tinkc_error *err)
{
    tkr_entry *e = tkc_failed(err) ? NULL : find(t, name);
    if (!e && !tkc_failed(err))
        e = make(t, name, err);
    if (!e)
        return false;
    if (replace)
        *e = (tkr_entry){ 0 };
    e->sum += value * weight;
    e->weight += weight;
    t->values[e - t->entries] = e->weight > 0 ? e->sum / e->weight : NAN;
    return true;
}

bool tkr_table_set(tkr_table *t, const char *name, double value, tinkc_error *err)
{
    return put(t, name, value, 1, true, err);
}

bool tkr_table_mean(tkr_table *t, const char *name, double value, tinkc_error *err)
{
    return put(t, name, value, 1, false, err);
}

bool tkr_table_setf(tkr_table *t, double value, tinkc_error *err, const char *format, ...)
{
    char name[200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return tkr_table_set(t, name, value, err);
}

void tkr_table_free(tkr_table *t)
{
    for (size_t i = 0; i < t->n; i++)
        tkc_release_str(NULL, (char *)(uintptr_t)t->names[i]);
    tkc_release(NULL, t->names, t->names_cap * sizeof *t->names);
    tkc_release(NULL, t->values, t->values_cap * sizeof *t->values);
    tkc_release(NULL, t->entries, t->cap * sizeof *t->entries);
    *t = (tkr_table){ 0 };
}
