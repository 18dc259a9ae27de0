/* template.c - the public API of the template engine: parse, render, free.
 * May touch: the engine's entry points (jinja.h). */
#include "chat/template.h"

#include "base/mem.h"

tinkc_template *tinkc_template_parse(const char *text, size_t len, const tinkc_allocator *a,
                                     tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!text && len) {
        tkc_fail(err, TINKC_E_ARGUMENT, "template_parse: text is NULL");
        return NULL;
    }
    tinkc_template *t = tkc_zalloc(a, sizeof *t, err);
    if (!t)
        return NULL;
    t->a = a;
    tkc_arena_init(&t->jinja.arena, a, 0);
    char *copy = tkc_arena_str(&t->jinja.arena, (tinkc_str){ text, len }, err);
    t->jinja.text = (tinkc_str){ copy, len };
    if (copy && tkc_jinja_parse(&t->jinja, t->jinja.text, err))
        return t;
    tinkc_template_free(t);
    return NULL;
}

void tinkc_template_free(tinkc_template *t)
{
    if (!t)
        return;
    tkc_arena_free(&t->jinja.arena);
    tkc_release(t->a, t, sizeof *t);
}

bool tinkc_template_render(const tinkc_template *t, const char *variables_json, int64_t now_us,
                           tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!t || !out)
        return tkc_fail(err, TINKC_E_ARGUMENT, "template_render: %s is NULL",
                        t ? "out" : "template");
    tkc_arena arena;
    tkc_jev ev;
    tkc_jlimits limits = { .now_us = now_us };
    tkc_arena_init(&arena, t->a, 0);
    tkc_jev_init(&ev, &t->jinja, &arena, &limits, err);
    tkc_jv vars = tkc_jv_from_json(&ev, tkc_str(variables_json ? variables_json : "{}"),
                                   TINKC_E_ARGUMENT, "variables");
    if (!tkc_jv_failed(vars) && vars.kind != TKC_JV_DICT)
        tkc_fail(err, TINKC_E_ARGUMENT, "variables: an object is needed");
    bool ok = !tkc_failed(err) && tkc_jev_run(&ev, vars.d) &&
              tinkc_text_append(out, ev.out.data ? ev.out.data : "", ev.out.len, err);
    tkc_jev_free(&ev);
    tkc_arena_free(&arena);
    return ok;
}
