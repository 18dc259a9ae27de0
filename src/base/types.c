/* types.c - the growable arrays and version functions of the public headers. May touch: mem. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "tinkc/error.h"

#ifndef TINKC_BUILD_COMMIT
#define TINKC_BUILD_COMMIT "unknown"
#endif
#ifndef TINKC_BUILD_DATE
#define TINKC_BUILD_DATE "unknown"
#endif

const char *tinkc_version(void)
{
    return TINKC_VERSION;
}

int32_t tinkc_version_number(void)
{
    return TINKC_VERSION_MAJOR * 1000000 + TINKC_VERSION_MINOR * 1000 + TINKC_VERSION_PATCH;
}

const char *tinkc_version_tinker(void)
{
    return TINKC_TINKER_VERSION;
}

const char *tinkc_version_detail(const char *name)
{
    static const char *const details[][2] = {
        { "commit", TINKC_BUILD_COMMIT },
        { "date", TINKC_BUILD_DATE },
        { "compiler", __VERSION__ },
        { "features", "http2 zstd"
#ifdef TINKC_WITH_TOKENIZER
                      " tokenizer pcre2-jit"
#endif
        },
    };
    for (size_t i = 0; i < sizeof details / sizeof *details; i++)
        if (tkc_cstr_eq(name, details[i][0]))
            return details[i][1];
    return NULL;
}

/* Grows the array by `more` items and returns where they go. Each public array has the same first
 * three fields but a different item type, so the callers pass them one by one. */
static void *append_room(const tinkc_allocator *a, void *data, size_t *cap, size_t len, size_t more,
                         size_t item, tinkc_error *err)
{
    size_t need;
    if (!tkc_add_size(len, more, &need)) {
        tkc_fail_memory(err);
        return NULL;
    }
    void *room = tkc_grow(a, data, cap, need, item, err);
    assert(!room || *cap >= need);
    return room;
}

bool tinkc_tokens_append(tinkc_tokens *t, const int32_t *ids, size_t len, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!t || (!ids && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "tokens_append: %s is NULL", t ? "ids" : "tokens");
    int32_t *grown = append_room(t->a, t->data, &t->cap, t->len, len, sizeof *grown, err);
    if (!grown)
        return false;
    t->data = grown;
    if (len)
        memcpy(grown + t->len, ids, len * sizeof *ids);
    t->len += len;
    return true;
}

bool tinkc_floats_append(tinkc_floats *f, const float *values, size_t len, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!f || (!values && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "floats_append: %s is NULL",
                        f ? "values" : "floats");
    float *grown = append_room(f->a, f->data, &f->cap, f->len, len, sizeof *grown, err);
    if (!grown)
        return false;
    f->data = grown;
    if (len)
        memcpy(grown + f->len, values, len * sizeof *values);
    f->len += len;
    return true;
}

bool tinkc_text_append(tinkc_text *t, const char *bytes, size_t len, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!t || (!bytes && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "text_append: %s is NULL", t ? "bytes" : "text");
    size_t with_nul;
    if (!tkc_add_size(len, 1, &with_nul))
        return tkc_fail_memory(err);
    char *grown = append_room(t->a, t->data, &t->cap, t->len, with_nul, 1, err);
    if (!grown)
        return false;
    t->data = grown;
    if (len)
        memcpy(grown + t->len, bytes, len);
    t->len += len;
    grown[t->len] = '\0';
    return true;
}

void tinkc_tokens_free(tinkc_tokens *t)
{
    if (!t)
        return;
    tkc_release(t->a, t->data, t->cap * sizeof *t->data);
    *t = (tinkc_tokens){ .a = t->a };
}

void tinkc_floats_free(tinkc_floats *f)
{
    if (!f)
        return;
    tkc_release(f->a, f->data, f->cap * sizeof *f->data);
    *f = (tinkc_floats){ .a = f->a };
}

void tinkc_sizes_free(tinkc_sizes *s)
{
    if (!s)
        return;
    tkc_release(s->a, s->data, s->cap * sizeof *s->data);
    *s = (tinkc_sizes){ .a = s->a };
}

void tinkc_text_free(tinkc_text *t)
{
    if (!t)
        return;
    tkc_release(t->a, t->data, t->cap);
    *t = (tinkc_text){ .a = t->a };
}
