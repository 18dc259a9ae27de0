/* jinja_func.h - what the files with built-in functions share. */
#ifndef TKC_TOKENIZER_JINJA_FUNC_H
#define TKC_TOKENIZER_JINJA_FUNC_H

#include "tokenizer/jinja.h"

/* In a table sorted by name. */
const tkc_jfunc *tkc_j_find_func(const tkc_jfunc *table, size_t n, tinkc_str name);
/* A function that Jinja or Python has and no chat template uses: refused by its name, when called. */
#define TKC_J_LEFT_OUT(prefix, kind, name)                                                         \
    static tkc_jv prefix##_##name(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)          \
    {                                                                                              \
        (void)self;                                                                                \
        (void)args;                                                                                \
        return tkc_j_fail(ev, "the %s '%s' is not supported", kind, #name);                        \
    }

const tkc_jfunc *tkc_j_str_method(tinkc_str name);
/* The filters that take or give lists: jinja_filter_list.c. */
const tkc_jfunc *tkc_j_list_filter(tinkc_str name);

tkc_jv tkc_jv_is_case(tkc_jev *, tkc_jv s, bool upper);
tkc_jv tkc_j_splitlines(tkc_jev *, tkc_jv s, bool keep_ends);
tkc_jv tkc_j_replace(tkc_jev *, tkc_jv s, tkc_jv from, tkc_jv to, int64_t limit);
tkc_jv tkc_j_pad(tkc_jev *, tkc_jv s, int64_t left, int64_t right, tinkc_str fill);
/* Text without upper case, for comparing without regard to it; other values as they are. */
tkc_jv tkc_j_ignore_case(tkc_jev *, tkc_jv v);

#endif
