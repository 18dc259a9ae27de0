/* jinja_func.h - shared by the files with built-in functions. */
#ifndef TKC_TOKENIZER_JINJA_FUNC_H
#define TKC_TOKENIZER_JINJA_FUNC_H

#include "jinja/jinja.h"

/* In a table sorted by name. */
const tkc_jfunc *tkc_j_find_func(const tkc_jfunc *table, size_t n, tinkc_str name);
/* A function that Jinja or Python has and no chat template uses: calling it is an error that names
 * it. */
#define TKC_J_LEFT_OUT(prefix, kind, name)                                                         \
    static tkc_jv prefix##_##name(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)          \
    {                                                                                              \
        (void)self;                                                                                \
        (void)args;                                                                                \
        return tkc_j_fail(ev, "the %s '%s' is not supported", kind, #name);                        \
    }

const tkc_jfunc *tkc_j_str_method(tinkc_str name);
/* The filters that take or return lists: jinja_filter_list.c. */
const tkc_jfunc *tkc_j_list_filter(tinkc_str name);

tkc_jv tkc_jv_is_case(tkc_jev *, tkc_jv s, bool upper);
tkc_jv tkc_j_splitlines(tkc_jev *, tkc_jv s, bool keep_ends);
tkc_jv tkc_j_replace(tkc_jev *, tkc_jv s, tkc_jv from, tkc_jv to, int64_t limit);
tkc_jv tkc_j_pad(tkc_jev *, tkc_jv s, int64_t left, int64_t right, tinkc_str fill);
/* Text in lower case, for case-insensitive comparison; other values unchanged. */
tkc_jv tkc_j_ignore_case(tkc_jev *, tkc_jv v);

#endif
