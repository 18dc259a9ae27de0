/* adapter_export.c - tinkc_adapter_export: converts a downloaded adapter to other tensor names, or
 * merges it into its base model (adapter_merge.c, adapter_gguf.c).
 *
 * Works only on files, tensor by tensor, and never widens a whole tensor. An incomplete target is
 * removed. May touch: the three folders of its options.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "tinkc/engine.h"
#include "train/adapter_export.h"
#include "train/adapter_names.h"

enum { TEXT_MAX = 64 << 20 };

bool tke_export_advance(tke_export *j, size_t bytes)
{
    j->done += (int64_t)bytes;
    if (j->done > j->total)
        j->done = j->total; /* files may hold tensors that the model does not use */
    if (j->progress && !j->progress(j->done, j->total, j->user))
        return tkc_fail(j->err, TINKC_E_CANCELLED, "the export was stopped");
    return true;
}

static bool is_head(const tke_file_tensor *t)
{
    return strstr(t->name, ".lm_head.") != NULL;
}

/* The adapter's tensors but for an output layer that is not wanted. */
static tke_file_tensor *wanted(tke_export *j, size_t *n)
{
    size_t all = j->adapter.n_tensors;
    tke_file_tensor *list = tkc_arena_array(&j->arena, all + 1, sizeof *list, j->err);
    *n = 0;
    for (size_t i = 0; list && i < all; i++)
        if (!j->o->drop_unembed || !is_head(&j->adapter.tensors[i]))
            list[(*n)++] = j->adapter.tensors[i];
    if (list && !*n)
        tkc_fail(j->err, TINKC_E_UNSUPPORTED, "without its unembedding nothing is left of %s",
                 j->o->adapter);
    return list;
}

static bool write_tensors(tke_export *j, const tke_file_tensor *list, size_t n)
{
    static const char *const metadata[] = { "format", "pt", NULL };
    char *path = tke_export_path(j, j->o->target, "adapter_model.safetensors");
    return path && tke_tensor_file_write(path, list, n, metadata, 0644, j->err) &&
           tke_export_advance(j, j->adapter.mapping.len);
}

/* ---- adapter_config.json ---- */

enum { MAX_LEAVES = 64 };
typedef struct leaves { /* last parts of the matrices' names, each once */
    tinkc_str at[MAX_LEAVES];
    size_t n;
} leaves;

static bool leaf_known(const leaves *l, tinkc_str leaf)
{
    bool known = false;
    for (size_t i = 0; i < l->n; i++)
        known = known || tkc_str_eq(l->at[i], leaf);
    return known;
}

static void collect_leaves(const tke_file_tensor *list, size_t n, leaves *out)
{
    out->n = 0;
    for (size_t i = 0; i < n; i++) {
        tinkc_str leaf = tke_names_leaf(list[i].name);
        if (leaf.len && out->n < MAX_LEAVES && !leaf_known(out, leaf))
            out->at[out->n++] = leaf;
    }
}

/* Writes those of the old list that are still there, in its order, then the new ones. */
static void copy_targets(tke_export *j, const leaves *now, tkc_json *from, tkc_jsonw *to)
{
    leaves done = { .n = 0 };
    if (tkc_json_peek(from) != TKC_JSON_ARRAY) {
        tkc_jsonw_raw(to, tkc_json_skip(from));
        return;
    }
    tkc_json_array(from);
    tkc_jsonw_array(to);
    while (tkc_json_item(from)) {
        tinkc_str name = tkc_json_string(from);
        if (tkc_str_is(name, "lm_head") || tkc_str_is(name, "unembed_tokens"))
            name = tkc_str(j->o->format == TINKC_ADAPTER_HOSTED ? "unembed_tokens" : "lm_head");
        if (!leaf_known(now, name) || done.n == MAX_LEAVES)
            continue;
        done.at[done.n++] = name;
        tkc_jsonw_str(to, name);
    }
    for (size_t i = 0; i < now->n; i++)
        if (!leaf_known(&done, now->at[i]))
            tkc_jsonw_str(to, now->at[i]);
    tkc_jsonw_end(to);
}

/* Other programs know the model by its name without "#4bit". */
static void copy_base(tkc_json *from, tkc_jsonw *to)
{
    if (tkc_json_peek(from) != TKC_JSON_STRING) {
        tkc_jsonw_raw(to, tkc_json_skip(from));
        return;
    }
    tinkc_str name = tkc_json_string(from);
    (void)tke_model_bits(&name);
    tkc_jsonw_str(to, name);
}

/* {} or {"in_proj": value}: a stacked matrix has its parts' rank and alpha together. */
static void write_pattern(tkc_jsonw *to, const char *stacked, double value)
{
    tkc_jsonw_object(to);
    if (stacked) {
        value *= (double)tke_stacked_parts(tkc_str(stacked));
        tkc_jsonw_key(to, stacked);
        if (value == (double)(int64_t)value)
            tkc_jsonw_i64(to, (int64_t)value);
        else
            tkc_jsonw_double(to, value);
    }
    tkc_jsonw_end(to);
}

tinkc_bytes tke_export_read(tke_export *j, const char *folder, const char *name)
{
    char *path = tke_export_path(j, folder, name);
    return path ? tkc_read_file(&j->arena, path, TEXT_MAX, j->err) : (tinkc_bytes){ 0 };
}

bool tke_export_write(tke_export *j, const char *name, tkc_buf *text)
{
    char *path = tke_export_path(j, j->o->target, name);
    tkc_buf_char(text, '\n', j->err);
    bool ok = !tkc_failed(j->err) && tkc_write_file(path, text->data, text->len, 0644, j->err);
    tkc_buf_free(text);
    return ok;
}

static bool write_config(tke_export *j, const leaves *now, const char *stacked)
{
    static const char *const names[2] = { "rank_pattern", "alpha_pattern" };
    const double own[2] = { (double)j->spec.rank, j->spec.alpha };
    bool written[2] = { false, false };
    tkc_buf text;
    tkc_json from;
    tkc_jsonw to;
    tinkc_str key;
    tinkc_bytes old = tke_export_read(j, j->o->adapter, "adapter_config.json");
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_json_open(&from, tkc_strn((const char *)old.data, old.len), &j->arena, j->err);
    tkc_jsonw_open(&to, &text, j->err);
    tkc_jsonw_object(&to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            int pattern = tkc_str_is(key, names[0]) ? 0 : tkc_str_is(key, names[1]) ? 1 : -1;
            tkc_jsonw_key_str(&to, key);
            if (tkc_str_is(key, "target_modules"))
                copy_targets(j, now, &from, &to);
            else if (tkc_str_is(key, "base_model_name_or_path"))
                copy_base(&from, &to);
            else if (pattern < 0)
                tkc_jsonw_raw(&to, tkc_json_skip(&from));
            else {
                tkc_json_skip(&from);
                write_pattern(&to, stacked, own[pattern]);
                written[pattern] = true;
            }
        }
    for (int i = 0; stacked && i < 2; i++)
        if (!written[i]) {
            tkc_jsonw_key(&to, names[i]);
            write_pattern(&to, stacked, own[i]);
        }
    tkc_jsonw_end(&to);
    return tke_export_write(j, "adapter_config.json", &text);
}

/* The adapter in other names. */
static bool rename_adapter(tke_export *j)
{
    size_t n, n_out = 0;
    leaves now;
    tke_spelling s = { .names =
                           j->o->format == TINKC_ADAPTER_HOSTED ? TKE_NAMES_HOSTED : TKE_NAMES_PEFT,
                       .model = j->base };
    tke_file_tensor *list = wanted(j, &n);
    list = tkc_failed(j->err) ? NULL : tke_names_write(list, n, &s, &n_out, &j->arena, j->err);
    if (!list)
        return false;
    collect_leaves(list, n_out, &now);
    return write_tensors(j, list, n_out) && write_config(j, &now, s.stacked);
}

/* ---- the call ---- */

static bool check_options(const tinkc_adapter_options *o, tinkc_error *err)
{
    bool plain = o && o->format == TINKC_ADAPTER_GGUF; /* GGUF works without an adapter */
    if (!o || (!o->adapter && !plain) || !o->target)
        return tkc_fail(err, TINKC_E_ARGUMENT, "adapter and target are required");
    if (o->format < TINKC_ADAPTER_PEFT || o->format > TINKC_ADAPTER_GGUF_LORA)
        return tkc_fail(err, TINKC_E_ARGUMENT, "format is none of TINKC_ADAPTER_*");
    if (!tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) ||
        !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved fields must be zero");
    if (o->format >= TINKC_ADAPTER_MERGED && !o->base_model)
        return tkc_fail(err, TINKC_E_ARGUMENT, "base_model is required for merging");
    if (o->gguf_type && !plain && o->format != TINKC_ADAPTER_GGUF_LORA)
        return tkc_fail(err, TINKC_E_ARGUMENT, "gguf_type is for GGUF alone");
    if (tkc_is_dir(o->target) || tkc_is_file(o->target))
        return tkc_fail(err, TINKC_E_EXISTS, "%s: already exists", o->target);
    return true;
}

static bool open_adapter(tke_export *j)
{
    char *path = tke_export_path(j, j->o->adapter, "adapter_model.safetensors");
    return path && tke_adapter_probe(NULL, j->o->adapter, &j->spec, j->err) &&
           tke_tensor_file_open(&j->adapter, path, j->err) &&
           tke_names_read(&j->adapter, j->base, (size_t)j->spec.rank, path, j->err);
}

static bool make_folder(tke_export *j)
{
    j->total = (int64_t)j->adapter.mapping.len;
    if (!tkc_make_dirs(j->o->target, j->err))
        return false;
    bool ok = j->o->format == TINKC_ADAPTER_MERGED ? tke_export_merged(j) : rename_adapter(j);
    if (!ok) {
        tinkc_error ignored = { 0 };
        tkc_remove_tree(j->o->target, &ignored);
    }
    return ok;
}

static bool run(tke_export *j)
{
    bool merges = j->o->format == TINKC_ADAPTER_MERGED || j->o->format == TINKC_ADAPTER_GGUF;
    if (j->o->base_model && !(j->base = tke_model_open(j->o->base_model, j->err)))
        return false;
    if (j->o->adapter && !open_adapter(j))
        return false;
    if (j->o->format >= TINKC_ADAPTER_MERGED && j->o->adapter &&
        !tke_adapter_check(j->base, j->o->adapter, j->err)) /* every name and shape */
        return false;
    if (j->o->format == TINKC_ADAPTER_MERGED && !tkc_is_dir(j->base->folder))
        return tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                        "%s: a GGUF file is merged into a GGUF file, not into a folder: export to gguf",
                        j->o->base_model);
    if (merges && j->o->drop_unembed && tke_export_head(j, "lora_A"))
        return tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                        "merging without the unembedding is not supported");
    return j->o->format >= TINKC_ADAPTER_GGUF ? tke_export_gguf(j) : make_folder(j);
}

bool tinkc_adapter_export(const tinkc_adapter_options *o, tinkc_progress_fn *progress, void *user,
                          tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(o, err))
        return false;
    tke_export j = { .o = o, .progress = progress, .user = user, .err = err };
    tkc_arena_init(&j.arena, NULL, 0);
    bool ok = run(&j);
    tke_tensor_file_close(&j.adapter);
    tke_model_drop(j.base);
    tkc_arena_free(&j.arena);
    return ok;
}
