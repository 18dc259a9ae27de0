/* jinja_test.c - the tests of `x is ...`. May touch: the run. */
#include "jinja/jinja_func.h"

#include <math.h>
#include <string.h>

static bool one_arg(tkc_jev *ev, const tkc_jargs *args, const char *what, tkc_jv *out)
{
    static const char *const params[] = { "other" };
    return tkc_j_bind(ev, args, what, params, 1, 1, out);
}

static tkc_jv result(tkc_jev *ev, bool b)
{
    return tkc_failed(ev->err) ? tkc_jv_fail : tkc_jv_bool(b);
}

#define KIND_TEST(name, condition)                                                                 \
    static tkc_jv test_##name(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)                 \
    {                                                                                              \
        return tkc_j_bind(ev, args, #name, NULL, 0, 0, NULL) ? tkc_jv_bool(condition)              \
                                                             : tkc_jv_fail;                        \
    }
KIND_TEST(defined, v->kind != TKC_JV_UNDEFINED)
KIND_TEST(undefined, v->kind == TKC_JV_UNDEFINED)
KIND_TEST(none, v->kind == TKC_JV_NONE)
KIND_TEST(boolean, v->kind == TKC_JV_BOOL)
KIND_TEST(true, v->kind == TKC_JV_BOOL && v->i)
KIND_TEST(false, v->kind == TKC_JV_BOOL && !v->i)
KIND_TEST(integer, v->kind == TKC_JV_INT || v->kind == TKC_JV_BIG)
KIND_TEST(float, v->kind == TKC_JV_FLOAT)
KIND_TEST(number, tkc_jv_is_number(*v))
KIND_TEST(string, v->kind == TKC_JV_STR)
KIND_TEST(mapping, v->kind == TKC_JV_DICT)
KIND_TEST(iterable, tkc_jv_iterable(*v))
KIND_TEST(sequence, (v->kind >= TKC_JV_STR && v->kind <= TKC_JV_DICT) || v->kind == TKC_JV_RANGE ||
                        v->kind == TKC_JV_UNDEFINED)
KIND_TEST(escaped, v->kind == TKC_JV_STR && (v->flag & TKC_JV_MARKUP))
KIND_TEST(callable, v->kind == TKC_JV_MACRO || v->kind == TKC_JV_METHOD ||
                        v->kind == TKC_JV_GLOBAL || v->kind == TKC_JV_LOOP ||
                        v->kind == TKC_JV_UNDEFINED)

/* The name of a filter or test: anything that could be a key of a table. */
static bool name_test(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    if (!tkc_jv_hashable(ev, *v))
        tkc_j_fail(ev, "unhashable type: '%s'", tkc_jv_type(*v));
    return tkc_j_bind(ev, args, "filter", NULL, 0, 0, NULL) && v->kind == TKC_JV_STR;
}
static tkc_jv test_filter(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return result(ev, name_test(ev, v, args) && tkc_j_find_filter(tkc_jv_text(*v)));
}
static tkc_jv test_test(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return result(ev, name_test(ev, v, args) && tkc_j_find_test(tkc_jv_text(*v)));
}

#define COMPARE_TEST(name, expression)                                                             \
    static tkc_jv test_##name(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)                 \
    {                                                                                              \
        tkc_jv o;                                                                                  \
        return one_arg(ev, args, #name, &o) ? result(ev, expression) : tkc_jv_fail;                \
    }
COMPARE_TEST(eq, tkc_jv_equal(ev, *v, o))
COMPARE_TEST(ne, !tkc_jv_equal(ev, *v, o))
COMPARE_TEST(lt, tkc_jv_less(ev, *v, o, "<", false))
COMPARE_TEST(le, tkc_jv_less(ev, *v, o, "<=", true))
COMPARE_TEST(gt, tkc_jv_less(ev, o, *v, ">", false))
COMPARE_TEST(ge, tkc_jv_less(ev, o, *v, ">=", true))
COMPARE_TEST(in, tkc_jv_contains(ev, o, *v))
COMPARE_TEST(sameas, tkc_jv_same(*v, o))

static tkc_jv remainder_is(tkc_jev *ev, tkc_jv v, tkc_jv divisor, int64_t wanted)
{
    tkc_jv rest = tkc_j_binary(ev, TKC_JOP_MOD, v, divisor);
    return tkc_jv_failed(rest) ? rest : result(ev, tkc_jv_equal(ev, rest, tkc_jv_int(wanted)));
}

static tkc_jv test_odd(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    if (!tkc_j_bind(ev, args, "odd", NULL, 0, 0, NULL))
        return tkc_jv_fail;
    return remainder_is(ev, *v, tkc_jv_int(2), 1);
}
static tkc_jv test_even(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    if (!tkc_j_bind(ev, args, "even", NULL, 0, 0, NULL))
        return tkc_jv_fail;
    return remainder_is(ev, *v, tkc_jv_int(2), 0);
}
static tkc_jv test_divisibleby(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jv o;
    return one_arg(ev, args, "divisibleby", &o) ? remainder_is(ev, *v, o, 0) : tkc_jv_fail;
}

static tkc_jv case_test(tkc_jev *ev, tkc_jv v, bool upper)
{
    v = tkc_jv_str(ev, v);
    return tkc_jv_failed(v) ? v : tkc_jv_is_case(ev, v, upper);
}
static tkc_jv test_lower(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    if (!tkc_j_bind(ev, args, "lower", NULL, 0, 0, NULL))
        return tkc_jv_fail;
    return case_test(ev, *v, false);
}
static tkc_jv test_upper(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    if (!tkc_j_bind(ev, args, "upper", NULL, 0, 0, NULL))
        return tkc_jv_fail;
    return case_test(ev, *v, true);
}

const tkc_jfunc *tkc_j_find_test(tinkc_str name)
{
    static const tkc_jfunc table[] = {
        /* sorted */
        { "!=", test_ne },
        { "<", test_lt },
        { "<=", test_le },
        { "==", test_eq },
        { ">", test_gt },
        { ">=", test_ge },
        { "boolean", test_boolean },
        { "callable", test_callable },
        { "defined", test_defined },
        { "divisibleby", test_divisibleby },
        { "eq", test_eq },
        { "equalto", test_eq },
        { "escaped", test_escaped },
        { "even", test_even },
        { "false", test_false },
        { "filter", test_filter },
        { "float", test_float },
        { "ge", test_ge },
        { "greaterthan", test_gt },
        { "gt", test_gt },
        { "in", test_in },
        { "integer", test_integer },
        { "iterable", test_iterable },
        { "le", test_le },
        { "lessthan", test_lt },
        { "lower", test_lower },
        { "lt", test_lt },
        { "mapping", test_mapping },
        { "ne", test_ne },
        { "none", test_none },
        { "number", test_number },
        { "odd", test_odd },
        { "sameas", test_sameas },
        { "sequence", test_sequence },
        { "string", test_string },
        { "test", test_test },
        { "true", test_true },
        { "undefined", test_undefined },
        { "upper", test_upper },
    };
    return tkc_j_find_func(table, sizeof table / sizeof *table, name);
}
