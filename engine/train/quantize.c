/* quantize.c - tinkc_quantize: a model's weights in fewer bits. */
#include <stdio.h>
#include "base/str.h"
#include "model/model.h"
#include "tinkc/engine.h"

static bool check_options(const tinkc_quantize_options *o, tinkc_error *err)
{
    if (!o || !o->model)
        return tkc_fail(err, TINKC_E_ARGUMENT, "model is required");
    if (o->bits != 4 && o->bits != 8)
        return tkc_fail(err, TINKC_E_ARGUMENT, "bits must be 4 or 8");
    if (o->reserved_int || !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved fields must be zero");
    if (o->target)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "a target cannot be written yet");
    return true;
}

static void measure(const tke_model *m, tinkc_quantize_result *out)
{
    double bits = (double)m->packed.bytes * 8, rest = (double)(m->n_bytes - m->packed.bytes);
    double width = (double)m->packed.before / (double)m->packed.numbers; /* of the rest, too */
    *out = (tinkc_quantize_result){
        .bytes = (int64_t)m->n_bytes,
        .bytes_before = (int64_t)(m->n_bytes - m->packed.bytes + m->packed.before),
        .matrix_bits = bits / (double)m->packed.numbers,
        .bits = (double)m->n_bytes * 8 / ((double)m->packed.numbers + rest / width)
    };
}

bool tinkc_quantize(const tinkc_quantize_options *o, tinkc_progress_fn *progress, void *user,
                    tinkc_quantize_result *result, tinkc_error *err)
{
    tinkc_error local;
    tkc_arena arena = { 0 };
    if (!tkc_enter(&err, &local) || !check_options(o, err))
        return false;
    const char *name = tkc_arena_printf(&arena, err, "%s#%dbit", o->model, (int)o->bits);
    tke_model *m = name ? tke_model_open_watched(name, progress, user, err) : NULL;
    if (m && result)
        measure(m, result);
    tke_model_drop(m);
    tkc_arena_free(&arena);
    return m != NULL;
}
