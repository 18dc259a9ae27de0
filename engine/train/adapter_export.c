/* adapter_export.c - tinkc_adapter_export: converts a downloaded adapter to other tensor names, or
 * merges it into its base model.
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

static bool is_unembed(const char *name)
{
    return strstr(name, "lm_head.") || strstr(name, "embed_tokens."); /* unembed_tokens. as well */
}

/* The name in the requested naming. */
static const char *spelt(tke_export *j, const char *name)
{
    const char *ab = strstr(name, "lora_A") ? "lora_A" : "lora_B";
    if (!is_unembed(name))
        return name;
    return tkc_arena_printf(
        &j->arena, j->err, "base_model.model.%s.%s.weight",
        j->o->format == TINKC_ADAPTER_HOSTED ? "model.unembed_tokens" : "lm_head", ab);
}

static bool write_tensors(tke_export *j)
{
    static const char *const metadata[] = { "format", "pt", NULL };
    size_t n = 0, all = j->adapter.n_tensors;
    tke_file_tensor *list = tkc_arena_array(&j->arena, all + 1, sizeof *list, j->err);
    for (size_t i = 0; list && i < all; i++) {
        const tke_file_tensor *t = &j->adapter.tensors[i];
        if (j->o->drop_unembed && is_unembed(t->name))
            continue;
        list[n] = *t;
        list[n++].name = spelt(j, t->name);
    }
    char *path = tke_export_path(j, j->o->target, "adapter_model.safetensors");
    if (tkc_failed(j->err))
        return false;
    if (!n)
        return tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                        "without its unembedding nothing is left of %s", j->o->adapter);
    return tke_tensor_file_write(path, list, n, metadata, 0644, j->err) &&
           tke_export_advance(j, j->adapter.mapping.len);
}

/* Writes target_modules in the new naming; copies every other member. */
static void copy_targets(tke_export *j, tkc_json *from, tkc_jsonw *to)
{
    if (tkc_json_peek(from) != TKC_JSON_ARRAY) {
        tkc_jsonw_raw(to, tkc_json_skip(from));
        return;
    }
    tkc_json_array(from);
    tkc_jsonw_array(to);
    while (tkc_json_item(from)) {
        tinkc_str name = tkc_json_string(from);
        bool head = tkc_str_is(name, "lm_head") || tkc_str_is(name, "unembed_tokens");
        if (!head)
            tkc_jsonw_str(to, name);
        else if (!j->o->drop_unembed)
            tkc_jsonw_cstr(to, j->o->format == TINKC_ADAPTER_HOSTED ? "unembed_tokens" : "lm_head");
    }
    tkc_jsonw_end(to);
}

/* A text of a folder; nothing if there is an error. */
static tinkc_bytes read_text(tke_export *j, const char *folder, const char *name)
{
    char *path = tke_export_path(j, folder, name);
    return path ? tkc_read_file(&j->arena, path, TEXT_MAX, j->err) : (tinkc_bytes){ 0 };
}

/* Writes JSON to the target, unless there is an error, and frees it. */
static bool write_text(tke_export *j, const char *name, tkc_buf *text)
{
    char *path = tke_export_path(j, j->o->target, name);
    tkc_buf_char(text, '\n', j->err);
    bool ok = !tkc_failed(j->err) && tkc_write_file(path, text->data, text->len, 0644, j->err);
    tkc_buf_free(text);
    return ok;
}

static bool write_config(tke_export *j)
{
    tkc_buf text;
    tkc_json from;
    tkc_jsonw to;
    tinkc_str key;
    tinkc_bytes old = read_text(j, j->o->adapter, "adapter_config.json");
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_json_open(&from, tkc_strn((const char *)old.data, old.len), &j->arena, j->err);
    tkc_jsonw_open(&to, &text, j->err);
    tkc_jsonw_object(&to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            tkc_jsonw_key_str(&to, key);
            if (tkc_str_is(key, "target_modules"))
                copy_targets(j, &from, &to);
            else
                tkc_jsonw_raw(&to, tkc_json_skip(&from));
        }
    tkc_jsonw_end(&to);
    return write_text(j, "adapter_config.json", &text);
}

/* ---- merging ---- */

/* A and B of a base tensor, or NULL: "model.layers.0.self_attn.q_proj.weight". */
const tke_file_tensor *tke_export_part(tke_export *j, const char *base_name, const char *ab)
{
    if (!tkc_ends_with(tkc_str(base_name), ".weight"))
        return NULL;
    const char *name =
        tkc_arena_printf(&j->arena, j->err, "base_model.model.%.*s.%s.weight",
                         (int)(strlen(base_name) - strlen(".weight")), base_name, ab);
    return name ? tke_tensor_file_find(&j->adapter, name) : NULL;
}

const tke_file_tensor *tke_export_head(tke_export *j, const char *ab)
{
    static const char *const names[] = { "lm_head", "model.unembed_tokens", "model.embed_tokens" };
    for (size_t i = 0; i < 3; i++) {
        const char *name =
            tkc_arena_printf(&j->arena, j->err, "base_model.model.%s.%s.weight", names[i], ab);
        const tke_file_tensor *t = name ? tke_tensor_file_find(&j->adapter, name) : NULL;
        if (t)
            return t;
    }
    return NULL;
}

/* ---- W + scale B A, row by row in fp32 ---- */

bool tke_merge_begin(tke_merge *m, tke_export *j, const char *name, size_t rows, size_t cols,
                     const tke_file_tensor *a, const tke_file_tensor *b)
{
    size_t rank = (size_t)j->spec.rank;
    *m = (tke_merge){ .b = b, .rank = rank, .cols = cols };
    m->scale = (float)(j->spec.alpha / j->spec.rank);
    assert(tke_tensor_is_real(a) && tke_tensor_is_real(b)); /* tke_adapter_check saw them */
    if (!tke_tensor_is(a, 2, (int64_t)rank, (int64_t)cols) ||
        !tke_tensor_is(b, 2, (int64_t)rows, (int64_t)rank))
        return tkc_fail(j->err, TINKC_E_MODEL, "%s: '%s' does not fit '%s'", j->o->adapter, a->name,
                        name);
    m->a = tkc_alloc(NULL, (rank * cols + rank) * sizeof *m->a, j->err);
    if (m->a)
        tke_widen((tke_dtype)a->dtype, a->data, rank * cols, m->a);
    return m->a != NULL;
}

void tke_merge_row(const tke_merge *m, size_t i, float *row)
{
    float *bs = m->a + m->rank * m->cols;
    tke_widen((tke_dtype)m->b->dtype, m->b->data + i * m->rank * tke_file_dtype_size(m->b->dtype),
              m->rank, bs);
    for (size_t r = 0; r < m->rank; r++)
        for (size_t c = 0; c < m->cols; c++)
            row[c] += m->scale * bs[r] * m->a[r * m->cols + c];
}

void tke_merge_end(tke_merge *m)
{
    tkc_release(NULL, m->a, (m->rank * m->cols + m->rank) * sizeof *m->a);
}

/* Rounded once to W's type. */
static void merge_rows(tke_export *j, const tke_file_tensor *w, const tke_file_tensor *a,
                       const tke_file_tensor *b, unsigned char *out)
{
    tke_merge m;
    size_t rows = (size_t)w->dims[0], cols = (size_t)w->dims[1];
    size_t row_bytes = cols * tke_file_dtype_size(w->dtype);
    float *row = tkc_alloc(NULL, cols * sizeof *row, j->err);
    bool ok = row && tke_merge_begin(&m, j, w->name, rows, cols, a, b);
    for (size_t i = 0; ok && i < rows; i++) {
        tke_widen((tke_dtype)w->dtype, w->data + i * row_bytes, cols, row);
        tke_merge_row(&m, i, row);
        tke_narrow((tke_dtype)w->dtype, row, cols, out + i * row_bytes);
    }
    if (ok)
        tke_merge_end(&m);
    tkc_release(NULL, row, cols * sizeof *row);
}

typedef struct merged { /* one file of the base model being written to the target */
    tke_tensor_file from;
    tke_file_tensor *list;
    size_t n;
    tkc_arena data;
} merged;

/* The model's own matrices have been checked; but a shard may hold others of the same names. */
static void merge_tensor(tke_export *j, merged *m, const tke_file_tensor *w,
                         const tke_file_tensor *a, const tke_file_tensor *b, const char *name)
{
    tke_file_tensor *t = &m->list[m->n++];
    *t = *w;
    t->name = name;
    if (!a || !b)
        return;
    if (w->n_dims != 2 || !tke_tensor_is_real(w)) {
        tkc_fail(j->err, TINKC_E_MODEL, "%s: '%s' is not a matrix of numbers", j->o->base_model,
                 w->name);
        return;
    }
    unsigned char *out = tkc_arena_alloc(&m->data, w->n_bytes, j->err);
    t->data = out;
    if (out)
        merge_rows(j, w, a, b, out);
}

/* untie: the embedding stays unchanged, and a separate head is written. */
static void merge_file(tke_export *j, const char *name, bool untie)
{
    static const char *const metadata[] = { "format", "pt", NULL };
    merged m = { 0 };
    size_t read = 0;
    char *source = tke_export_path(j, j->o->base_model, name),
         *target = tke_export_path(j, j->o->target, name);
    if (!source || !target || !tke_tensor_file_open(&m.from, source, j->err))
        return;
    tkc_arena_init(&m.data, NULL, 0);
    m.list = tkc_arena_array(&m.data, m.from.n_tensors + 1, sizeof *m.list, j->err);
    for (size_t i = 0; m.list && i < m.from.n_tensors && !tkc_failed(j->err); i++) {
        const tke_file_tensor *w = &m.from.tensors[i];
        read += w->n_bytes;
        bool embed = strcmp(w->name, "model.embed_tokens.weight") == 0;
        bool head = strcmp(w->name, "lm_head.weight") == 0;
        if (head && untie)
            continue; /* tied: the file's own head is not used */
        if (embed && untie)
            merge_tensor(j, &m, w, tke_export_head(j, "lora_A"), tke_export_head(j, "lora_B"),
                         "lm_head.weight");
        if (embed)
            merge_tensor(j, &m, w, NULL, NULL, w->name);
        else if (head)
            merge_tensor(j, &m, w, tke_export_head(j, "lora_A"), tke_export_head(j, "lora_B"),
                         w->name);
        else
            merge_tensor(j, &m, w, tke_export_part(j, w->name, "lora_A"),
                         tke_export_part(j, w->name, "lora_B"), w->name);
    }
    for (size_t i = 0; i < m.n; i++)
        j->written += (int64_t)m.list[i].n_bytes;
    if (!tkc_failed(j->err) && tke_tensor_file_write(target, m.list, m.n, metadata, 0644, j->err))
        tke_export_advance(j, read);
    tkc_arena_free(&m.data);
    tke_tensor_file_close(&m.from);
}

/* config.json with tie_word_embeddings false. */
static bool write_untied_config(tke_export *j)
{
    tkc_buf text;
    tkc_json from;
    tkc_jsonw to;
    tinkc_str key;
    tinkc_bytes old = read_text(j, j->o->base_model, "config.json");
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_json_open(&from, tkc_strn((const char *)old.data, old.len), &j->arena, j->err);
    tkc_jsonw_open(&to, &text, j->err);
    tkc_jsonw_object(&to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            tinkc_str value = tkc_json_skip(&from);
            if (tkc_str_is(key, "tie_word_embeddings"))
                continue;
            tkc_jsonw_key_str(&to, key);
            tkc_jsonw_raw(&to, value);
        }
    tkc_jsonw_key(&to, "tie_word_embeddings");
    tkc_jsonw_bool(&to, false);
    tkc_jsonw_end(&to);
    return write_text(j, "config.json", &text);
}

static bool copy_file(tke_export *j, const char *name)
{
    char *source = tke_export_path(j, j->o->base_model, name),
         *target = tke_export_path(j, j->o->target, name);
    if (!source || !target || !tkc_is_file(source))
        return !tkc_failed(j->err);
    tinkc_bytes bytes = tkc_read_file(&j->arena, source, TEXT_MAX, j->err);
    return !tkc_failed(j->err) && tkc_write_file(target, bytes.data, bytes.len, 0644, j->err);
}

/* The index, with the new head beside the embedding when it was untied. */
static void merge_shards(tke_export *j, const char *index, bool untie)
{
    tkc_json from;
    tkc_jsonw to;
    tkc_buf text;
    tkc_map seen;
    tinkc_str key, tensor;
    tinkc_bytes old = tkc_read_file(&j->arena, index, TEXT_MAX, j->err);
    tkc_map_init(&seen, NULL);
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_json_open(&from, tkc_strn((const char *)old.data, old.len), &j->arena, j->err);
    tkc_jsonw_open(&to, &text, j->err);
    tkc_jsonw_object(&to);
    tkc_jsonw_key(&to, "weight_map");
    tkc_jsonw_object(&to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            if (!tkc_str_is(key, "weight_map")) {
                tkc_json_skip(&from);
                continue;
            }
            tkc_json_object(&from);
            while (tkc_json_key(&from, &tensor)) {
                tinkc_str file = tkc_json_string(&from);
                if (untie && tkc_str_is(tensor, "lm_head.weight"))
                    continue;
                tkc_jsonw_key_str(&to, tensor);
                tkc_jsonw_str(&to, file);
                if (untie && tkc_str_is(tensor, "model.embed_tokens.weight")) {
                    tkc_jsonw_key(&to, "lm_head.weight");
                    tkc_jsonw_str(&to, file);
                }
                char *name = tkc_arena_str(&j->arena, file, j->err);
                if (name && !tkc_map_has(&seen, file) &&
                    tkc_map_set(&seen, file, name, NULL, j->err))
                    merge_file(j, name, untie);
            }
        }
    tkc_jsonw_end(&to);
    tkc_jsonw_key(&to, "metadata"); /* Python readers require it */
    tkc_jsonw_object(&to);
    tkc_jsonw_key(&to, "total_size");
    tkc_jsonw_i64(&to, j->written);
    tkc_jsonw_end(&to);
    tkc_jsonw_end(&to);
    char *target = tke_export_path(j, j->o->target, "model.safetensors.index.json");
    if (!tkc_failed(j->err))
        tkc_write_file(target, text.data, text.len, 0644, j->err);
    tkc_buf_free(&text);
    tkc_map_free(&seen);
}

static bool merge(tke_export *j)
{
    static const char *const others[] = {
        "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "vocab.json",     "merges.txt",
        "chat_template.jinja"
    };
    tke_model *base = tke_model_open(j->o->base_model, j->err);
    if (!base)
        return false;
    tke_adapter_check(base, j->o->adapter, j->err); /* every name and shape */
    bool untie =
        tke_model_config(base)->tied && tke_export_head(j, "lora_A") && !j->o->drop_unembed;
    j->total = (int64_t)base->n_bytes;
    tke_model_drop(base);
    char *index = tke_export_path(j, j->o->base_model, "model.safetensors.index.json");
    char *single = tke_export_path(j, j->o->base_model, "model.safetensors");
    if (tkc_failed(j->err))
        return false;
    if (tkc_is_file(single))
        merge_file(j, "model.safetensors", untie);
    else
        merge_shards(j, index, untie);
    bool ok = !tkc_failed(j->err) && (untie ? write_untied_config(j) : copy_file(j, "config.json"));
    for (size_t i = 0; ok && i < sizeof others / sizeof *others; i++)
        ok = copy_file(j, others[i]);
    return ok;
}

/* ---- the call ---- */

static bool check_options(const tinkc_adapter_options *o, tinkc_error *err)
{
    bool plain = o && o->format == TINKC_ADAPTER_GGUF; /* GGUF works without an adapter */
    if (!o || (!o->adapter && !plain) || !o->target)
        return tkc_fail(err, TINKC_E_ARGUMENT, "adapter and target are required");
    if (o->format < TINKC_ADAPTER_PEFT || o->format > TINKC_ADAPTER_GGUF)
        return tkc_fail(err, TINKC_E_ARGUMENT, "format is none of TINKC_ADAPTER_*");
    if (!tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) ||
        !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved fields must be zero");
    if (o->format >= TINKC_ADAPTER_MERGED && !o->base_model)
        return tkc_fail(err, TINKC_E_ARGUMENT, "base_model is required for merging");
    if (o->gguf_type && !plain)
        return tkc_fail(err, TINKC_E_ARGUMENT, "gguf_type is for GGUF alone");
    if (tkc_is_dir(o->target) || tkc_is_file(o->target))
        return tkc_fail(err, TINKC_E_EXISTS, "%s: already exists", o->target);
    return true;
}

static bool open_adapter(tke_export *j)
{
    char *path = tke_export_path(j, j->o->adapter, "adapter_model.safetensors");
    return path && tke_adapter_probe(NULL, j->o->adapter, &j->spec, j->err) &&
           tke_tensor_file_open(&j->adapter, path, j->err);
}

/* Experts' factors of three dimensions have other names in PEFT's form, and other places in a
 * merged model. */
static bool refuse_experts(tke_export *j)
{
    for (size_t i = 0; i < j->adapter.n_tensors; i++)
        if (j->adapter.tensors[i].n_dims == 3)
            return tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                            "%s: '%s' belongs to experts; adapters of experts can be exported in "
                            "the hosted form only (for now neither PEFT's nor merged)",
                            j->o->adapter, j->adapter.tensors[i].name);
    return true;
}

/* Adapters of q, k and v are parts of one tensor in a merged model. */
static bool refuse_linear_attention(tke_export *j)
{
    for (size_t i = 0; i < j->adapter.n_tensors; i++)
        if (strstr(j->adapter.tensors[i].name, ".linear_attn.in_proj_"))
            return tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                            "%s: '%s' belongs to linear attention; such adapters can be exported "
                            "as adapters only (for now not merged)",
                            j->o->adapter, j->adapter.tensors[i].name);
    return true;
}

static bool make_folder(tke_export *j)
{
    if (j->o->format != TINKC_ADAPTER_HOSTED && !refuse_experts(j))
        return false;
    if (j->o->format == TINKC_ADAPTER_MERGED && !refuse_linear_attention(j))
        return false;
    j->total = (int64_t)j->adapter.mapping.len;
    if (!tkc_make_dirs(j->o->target, j->err))
        return false;
    bool ok = j->o->format == TINKC_ADAPTER_MERGED ? merge(j) : write_tensors(j) && write_config(j);
    if (!ok) {
        tinkc_error ignored = { 0 };
        tkc_remove_tree(j->o->target, &ignored);
    }
    return ok;
}

static bool run(tke_export *j)
{
    if (j->o->adapter && !open_adapter(j))
        return false;
    if (j->o->format >= TINKC_ADAPTER_MERGED && j->o->drop_unembed && tke_export_head(j, "lora_A"))
        return tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                        "merging without the unembedding is not supported");
    return j->o->format == TINKC_ADAPTER_GGUF ? tke_export_gguf(j) : make_folder(j);
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
    tkc_arena_free(&j.arena);
    return ok;
}
