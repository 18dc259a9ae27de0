/* quantize.c - tinkc_quantize: a model's weights in fewer bits, in the user's cache, as a folder or as a GGUF file.
 *
 * A target is made beside its name and renamed. May touch: the model's folder, the target, the cache.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/str.h"
#include "math/format.h"
#include "train/quantize_folder.h"

enum { CACHE, FOLDER, GGUF_FILE };

typedef struct kind {
    const char *name;
    int where;
    int32_t bits;  /* whose default it is there; 0 = none's */
    double number; /* bits of a number, its share of scales and factors included */
} kind;

static const kind kinds[] = {
    { "nf4", CACHE, 4, 4.5 },       { "q8_0", CACHE, 8, 8.5 },
    { "nf4", FOLDER, 4, 4.5 },      { "fp8", FOLDER, 8, 8 + 32.0 / (128 * 128) },
    { "q4_0", GGUF_FILE, 4, 4.5 },  { "q8_0", GGUF_FILE, 8, 8.5 },
    { "f16", GGUF_FILE, 0, 16 },    { "bf16", GGUF_FILE, 0, 16 },
    { "f32", GGUF_FILE, 0, 32 },
};

static int where_of(const tinkc_quantize_options *o)
{
    return !o->target ? CACHE : tkc_ends_with(tkc_str(o->target), ".gguf") ? GGUF_FILE : FOLDER;
}

/* The format that was asked for, or the one that has these bits. */
static const kind *choose(const tinkc_quantize_options *o, tinkc_error *err)
{
    static const char *const can[] = { "in the cache: nf4, q8_0", "in a folder: nf4, fp8",
                                       "in a GGUF file: q4_0, q8_0, f16, bf16, f32" };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].where == where_of(o) &&
            (o->format ? strcmp(o->format, kinds[i].name) == 0 : o->bits == kinds[i].bits))
            return &kinds[i];
    tkc_fail(err, TINKC_E_ARGUMENT, "format '%.20s' is not one of those %s", o->format,
             can[where_of(o)]);
    return NULL;
}

static bool check_options(const tinkc_quantize_options *o, tinkc_error *err)
{
    if (!o || !o->model)
        return tkc_fail(err, TINKC_E_ARGUMENT, "model is required");
    if (!o->format && o->bits != 4 && o->bits != 8)
        return tkc_fail(err, TINKC_E_ARGUMENT, "bits must be 4 or 8");
    if (o->format && o->bits)
        return tkc_fail(err, TINKC_E_ARGUMENT, "bits and format exclude each other");
    if (o->reserved_int || !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved fields must be zero");
    if (o->target && (tkc_is_dir(o->target) || tkc_is_file(o->target)))
        return tkc_fail(err, TINKC_E_EXISTS, "%s: already exists", o->target);
    return true;
}

/* ---- targets ---- */

/* A new folder beside the target: of this call alone. */
static char *new_beside(tke_export *j, tinkc_str target)
{
    while (target.len > 1 && target.data[target.len - 1] == '/')
        target.len--;
    char *made = tkc_arena_printf(&j->arena, j->err, "%.*s.partial-XXXXXX", (int)target.len, target.data);
    char *parent = tkc_arena_str(&j->arena, target, j->err);
    char *slash = parent ? strrchr(parent, '/') : NULL;
    if (slash)
        *slash = '\0';
    if (tkc_failed(j->err) || (slash && *parent && !tkc_make_dirs(parent, j->err)))
        return NULL;
    if (mkdtemp(made))
        return made;
    tkc_fail_errno(j->err, "%.*s", (int)target.len, target.data);
    return NULL;
}

static bool make_folder(tke_export *j, const char *target, int32_t bits)
{
    tinkc_error ignored = { 0 };
    bool ok = tke_quantize_folder(j, bits);
    if (ok && rename(j->o->target, target) != 0)
        ok = tkc_fail_errno(j->err, "%s", target);
    ok = ok && tkc_sync_parent(target, j->err);
    if (!ok)
        tkc_remove_tree(j->o->target, &ignored);
    return ok;
}

static bool make_target(const tinkc_quantize_options *o, const kind *k, tke_model *plain,
                        tinkc_progress_fn *progress, void *user, tinkc_error *err)
{
    tinkc_adapter_options how = { .base_model = o->model, .target = o->target };
    tke_export j = { .o = &how, .progress = progress, .user = user, .base = plain, .err = err };
    bool ok;
    tkc_arena_init(&j.arena, NULL, 0);
    if (k->where == GGUF_FILE) {
        how.gguf_type = k->name;
        ok = tke_export_gguf(&j);
    } else {
        how.target = new_beside(&j, tkc_str(o->target));
        ok = how.target && make_folder(&j, o->target, k->bits);
    }
    tkc_arena_free(&j.arena);
    return ok;
}

/* ---- the call ---- */

/* What is now there, read as any other model: that it can be read is part of having made it. */
static tke_model *reopen(const tinkc_quantize_options *o, const kind *k,
                         tinkc_progress_fn *progress, void *user, tinkc_error *err)
{
    tkc_arena arena = { 0 };
    if (o->target)
        return tke_model_open(o->target, err);
    const char *name = tkc_arena_printf(&arena, err, "%s#%dbit", o->model, (int)k->bits);
    tke_model *m = name ? tke_model_open_watched(name, progress, user, err) : NULL;
    tkc_arena_free(&arena);
    return m;
}

static void measure(const tke_model *plain, const tke_model *m, const kind *k,
                    tinkc_quantize_result *out)
{
    const tke_matrix *first = &plain->groups[0]->w[0].m; /* the others have its width */
    double numbers = (double)plain->n_bytes / (double)tke_dtype_size(first->dtype);
    *out = (tinkc_quantize_result){ .bytes_before = (int64_t)plain->n_bytes,
                                    .bytes = (int64_t)m->n_bytes,
                                    .matrix_bits = k->number,
                                    .bits = (double)m->n_bytes * 8 / numbers };
}

bool tinkc_quantize(const tinkc_quantize_options *o, tinkc_progress_fn *progress, void *user,
                    tinkc_quantize_result *result, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(o, err))
        return false;
    const kind *k = choose(o, err);
    tke_model *plain = k ? tke_model_open(o->model, err) : NULL, *m = NULL;
    bool ok = plain && (!o->target || make_target(o, k, plain, progress, user, err));
    m = ok ? reopen(o, k, progress, user, err) : NULL;
    if (m && result)
        measure(plain, m, k, result);
    tke_model_drop(m);
    tke_model_drop(plain);
    return m != NULL;
}
