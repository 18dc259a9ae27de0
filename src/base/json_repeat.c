/* json_repeat.c - finds a name that an object of a JSON text has twice. May touch: the text and the
 * arena it was given.
 *
 * The names of all open objects are on one stack, so small objects cost no allocation. Few names
 * are compared with each other; many are sorted, because a hostile text may have a million.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/str.h"

enum { USUAL_NAMES = 64 }; /* of all open objects of a usual request */

typedef struct walk {
    tkc_json j;
    tinkc_str usual[USUAL_NAMES], *names;
    size_t n, room;
    tinkc_str found; /* data != NULL: found */
} walk;

static int by_bytes(const void *a, const void *b)
{
    return tkc_str_compare(*(const tinkc_str *)a, *(const tinkc_str *)b);
}

tinkc_str tkc_repeated_name(tinkc_str *names, size_t n)
{
    enum { FEW = 12 };
    for (size_t i = 1; n <= FEW && i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (tkc_str_eq(names[i], names[k]))
                return names[i];
    if (n <= FEW)
        return (tinkc_str){ NULL, 0 };
    qsort(names, n, sizeof *names, by_bytes);
    for (size_t i = 1; i < n; i++)
        if (tkc_str_eq(names[i - 1], names[i]))
            return names[i];
    return (tinkc_str){ NULL, 0 };
}

static bool push_name(walk *w, tinkc_str name)
{
    if (w->n == w->room) {
        size_t room = w->room * 2;
        tinkc_str *more = tkc_arena_array(w->j.arena, room, sizeof *more, w->j.err);
        if (!more)
            return false;
        memcpy(more, w->names, w->n * sizeof *more);
        w->names = more;
        w->room = room;
    }
    assert(name.data); /* NULL means "none" in the result */
    w->names[w->n++] = name;
    return true;
}

static void walk_value(walk *w);

static void walk_object(walk *w)
{
    const size_t mine = w->n;
    tinkc_str name;
    (void)tkc_json_object(&w->j);
    while (!w->found.data && tkc_json_key(&w->j, &name) && push_name(w, name))
        walk_value(w);
    if (!w->found.data && !tkc_failed(w->j.err))
        w->found = tkc_repeated_name(w->names + mine, w->n - mine);
    w->n = mine;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Bytes of numbers, and between them. */
static const bool of_numbers[256] = {
    [' '] = true, ['\n'] = true, ['\r'] = true, ['\t'] = true, [','] = true,
    ['+'] = true, ['-'] = true,  ['.'] = true,  ['e'] = true,  ['E'] = true,
    ['0'] = true, ['1'] = true,  ['2'] = true,  ['3'] = true,  ['4'] = true,
    ['5'] = true, ['6'] = true,  ['7'] = true,  ['8'] = true,  ['9'] = true,
};

/* Long arrays are of numbers: what cannot hold a name is passed over without being parsed, up to
 * the bracket or to the comma before something else. */
static void skip_numbers(tkc_json *j)
{
    const char *from = j->at, *p = from;
    while (p < j->end && of_numbers[(unsigned char)*p])
        p++;
    while (p > from && is_space(p[-1]))
        p--;
    if (p > from && p[-1] == ',')
        p--;
    assert(p > from); /* it began with a number */
    j->at = p;
}

/* A text that is not a name is neither checked nor copied, up to the quote that ends it: the first
 * with an even number of backslashes before it. */
static void skip_text(tkc_json *j)
{
    const char *from = ++j->at;
    for (;;) {
        const char *quote = memchr(j->at, '"', (size_t)(j->end - j->at));
        if (!quote) {
            (void)tkc_json_fail(j, "a string without end");
            return;
        }
        const char *p = quote;
        while (p > from && p[-1] == '\\')
            p--;
        j->at = quote + 1;
        if ((quote - p) % 2 == 0)
            return;
    }
}

static void walk_array(walk *w)
{
    tkc_json *j = &w->j;
    (void)tkc_json_array(j);
    while (!w->found.data && tkc_json_item(j)) {
        if (tkc_json_peek(j) == TKC_JSON_NUMBER)
            skip_numbers(j);
        else
            walk_value(w);
    }
}

/* Recursion is bounded by TKC_JSON_MAX_DEPTH. */
static void walk_value(walk *w)
{
    switch (tkc_json_peek(&w->j)) {
    case TKC_JSON_OBJECT:
        walk_object(w);
        break;
    case TKC_JSON_ARRAY:
        walk_array(w);
        break;
    case TKC_JSON_STRING:
        skip_text(&w->j);
        break;
    default:
        tkc_json_skip(&w->j);
        break;
    }
}

tinkc_str tkc_json_repeated(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    tinkc_error bad = { 0 };
    walk w;
    w.names = w.usual;
    w.n = 0;
    w.room = USUAL_NAMES;
    w.found = (tinkc_str){ NULL, 0 };
    tkc_json_open(&w.j, text, arena, &bad);
    walk_value(&w);
    if (bad.code == TINKC_E_MEMORY)
        tkc_error_copy(err, &bad);
    return w.found;
}
