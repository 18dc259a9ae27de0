/* adapter_file.c - adapters as folders: PEFT's layout out, PEFT's and the hosted service's in.
 *
 * May touch: files of the folder it is given. Must not: leave an adapter half replaced.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "math/format.h"
#include "train/adapter_names.h"
#include "train/adapter_state.h"

enum { NAME_MAX_LEN = 160, CONFIG_MAX = 1 << 20 };

static const char weights_file[] = TKE_WEIGHTS_FILE;
static const char optimizer_file[] = "optimizer.safetensors";
static const char config_file[] = "adapter_config.json";

/* ---- names ---- */

/* A tensor's name in our form (adapter_names.h). */
static void tensor_name(const tke_tensor_ref *ref, const char *prefix, char out[NAME_MAX_LEN])
{
    snprintf(out, NAME_MAX_LEN, "%sbase_model.model.%s.lora_%c.weight", prefix, ref->weight->path,
             "AB"[ref->is_b]);
}

/* Finds a layout's tensor in a file; NULL if missing. */
static const tke_file_tensor *find_tensor(const tke_tensor_file *f, const tke_tensor_ref *ref,
                                          const char *prefix)
{
    char name[NAME_MAX_LEN];
    tensor_name(ref, prefix, name);
    return tke_tensor_file_find(f, name);
}

/* ---- writing ---- */

typedef struct table { /* tensors for a file, growing */
    tkc_arena arena;
    tke_file_tensor *list;
    size_t n, cap;
} table;

static bool table_init(table *t, const tke_lora_layout *l, size_t blocks, tinkc_error *err)
{
    *t = (table){ .cap = l->n_groups * TKE_GROUP_MAX * 2 * blocks + 1 };
    tkc_arena_init(&t->arena, NULL, 0);
    t->list = tkc_arena_array(&t->arena, t->cap, sizeof *t->list, err);
    return t->list != NULL;
}

static void add_tensor(table *t, const tke_tensor_ref *ref, const tke_real *block,
                       const char *prefix, int32_t dtype, tinkc_error *err)
{
    char name[NAME_MAX_LEN];
    assert(t->n < t->cap && (dtype == TKE_F32 || dtype == TKE_BF16 || dtype == TKE_REAL));
    tke_file_tensor *out = &t->list[t->n];
    tensor_name(ref, prefix, name);
    *out = (tke_file_tensor){ .dtype = dtype };
    if (ref->copies)
        out->dims[out->n_dims++] = (int64_t)ref->copies;
    out->dims[out->n_dims++] = (int64_t)ref->rows;
    out->dims[out->n_dims++] = (int64_t)ref->cols;
    out->n_bytes = ref->count * tke_file_dtype_size(dtype);
    out->name = tkc_arena_cstr(&t->arena, name, err);
    out->data = (const unsigned char *)(block + ref->offset);
    t->n++;
    if (dtype == TKE_REAL)
        return;
    void *narrow = tkc_arena_alloc(&t->arena, out->n_bytes, err);
    if (narrow)
        tke_narrow((tke_dtype)dtype, block + ref->offset, ref->count, narrow);
    out->data = narrow;
}

static bool add_block(table *t, const tke_lora_layout *l, const tke_real *block, const char *prefix,
                      int32_t dtype, tinkc_error *err)
{
    tke_tensor_ref ref;
    for (size_t place = 0; !tkc_failed(err) && tke_layout_next(l, &place, &ref);)
        add_tensor(t, &ref, block, prefix, dtype, err);
    return !tkc_failed(err);
}

/* The file says whose names it has (NULL = neither's): a reader that expects others would leave out
 * the output layer without a word. */
static bool write_table(table *t, const char *folder, const char *name, const char *names,
                        tinkc_error *err)
{
    const char *const metadata[] = { "format", "pt", names ? "tensor_names" : NULL, names, NULL };
    char *path = tkc_path_join(&t->arena, folder, name, err);
    return path && tke_tensor_file_write(path, t->list, t->n, metadata, 0600, err);
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* The last parts of the matrices' names, each once, sorted; the output layer apart in hosted naming. */
static void write_targets(tkc_jsonw *w, const tke_lora_layout *l, int names)
{
    enum { MOST = 64 };
    const char *leaves[MOST];
    size_t n = 0;
    bool head = false;
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(l, &place, &ref);) {
        const char *dot = strrchr(ref.weight->path, '.'), *leaf = dot ? dot + 1 : ref.weight->path;
        bool known = ref.head && names == TKE_NAMES_HOSTED;
        head = head || ref.head;
        for (size_t i = 0; i < n && !known; i++)
            known = strcmp(leaves[i], leaf) == 0;
        if (!known && n < MOST)
            leaves[n++] = leaf;
    }
    qsort(leaves, n, sizeof *leaves, by_text);
    tkc_jsonw_key(w, "target_modules");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < n; i++)
        tkc_jsonw_cstr(w, leaves[i]);
    if (names == TKE_NAMES_HOSTED && head)
        tkc_jsonw_cstr(w, "unembed_tokens");
    tkc_jsonw_end(w);
}

static void write_empty_object(tkc_jsonw *w, const char *key)
{
    tkc_jsonw_key(w, key);
    tkc_jsonw_object(w);
    tkc_jsonw_end(w);
}

static void write_config_fields(tkc_jsonw *w, const tke_lora_layout *l,
                                const tke_adapter_spec *spec, const tke_adapter_save *save)
{
    tkc_jsonw_key(w, "peft_type");
    tkc_jsonw_cstr(w, "LORA");
    tkc_jsonw_key(w, "task_type");
    tkc_jsonw_cstr(w, "CAUSAL_LM");
    tkc_jsonw_key(w, "base_model_name_or_path");
    tkc_jsonw_cstr(w, save->base_name);
    tkc_jsonw_key(w, "r");
    tkc_jsonw_i64(w, spec->rank);
    tkc_jsonw_key(w, "lora_alpha");
    if (spec->alpha == (double)(int64_t)spec->alpha)
        tkc_jsonw_i64(w, (int64_t)spec->alpha);
    else
        tkc_jsonw_double(w, spec->alpha);
    tkc_jsonw_key(w, "lora_dropout");
    tkc_jsonw_double(w, 0);
    tkc_jsonw_key(w, "bias");
    tkc_jsonw_cstr(w, "none");
    tkc_jsonw_key(w, "fan_in_fan_out");
    tkc_jsonw_bool(w, false);
    tkc_jsonw_key(w, "inference_mode");
    tkc_jsonw_bool(w, true);
    tkc_jsonw_key(w, "init_lora_weights");
    tkc_jsonw_bool(w, true);
    tkc_jsonw_key(w, "modules_to_save");
    tkc_jsonw_null(w);
    tkc_jsonw_key(w, "auto_mapping");
    tkc_jsonw_null(w);
    write_empty_object(w, "rank_pattern");
    write_empty_object(w, "alpha_pattern");
    write_targets(w, l, save->names);
}

static bool write_config(const tke_lora_layout *l, const tke_adapter_spec *spec,
                         const tke_adapter_save *save, const char *folder, tinkc_error *err)
{
    tkc_arena arena;
    tkc_buf text;
    tkc_jsonw w;
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&text, NULL, CONFIG_MAX);
    tkc_jsonw_open(&w, &text, err);
    tkc_jsonw_object(&w);
    write_config_fields(&w, l, spec, save);
    tkc_jsonw_end(&w);
    tkc_buf_char(&text, '\n', err);
    char *path = tkc_path_join(&arena, folder, config_file, err);
    bool ok = path && !tkc_failed(err) && tkc_write_file(path, text.data, text.len, 0600, err);
    tkc_buf_free(&text);
    tkc_arena_free(&arena);
    return ok;
}

/* Experts stay in three dimensions here, whatever the names: two would repeat a factor for each. */
static bool spell_hosted(table *t, const tke_model *m, const tke_adapter_save *save,
                         tinkc_error *err)
{
    tke_spelling hosted = { .names = TKE_NAMES_HOSTED, .model = m };
    if (save->names == TKE_NAMES_HOSTED)
        t->list = tke_names_write(t->list, t->n, &hosted, &t->n, &t->arena, err);
    return t->list != NULL;
}

static bool write_weights(const tke_model *m, const tke_lora_layout *l, const tke_real *weights,
                          const tke_adapter_spec *spec, const char *folder,
                          const tke_adapter_save *save, tinkc_error *err)
{
    table t;
    bool ok = table_init(&t, l, 1, err) && add_block(&t, l, weights, "", save->dtype, err) &&
              spell_hosted(&t, m, save, err) &&
              write_table(&t, folder, weights_file,
                          save->names == TKE_NAMES_HOSTED ? "hosted" : "peft", err) &&
              write_config(l, spec, save, folder, err);
    tkc_arena_free(&t.arena);
    return ok;
}

bool tke_snapshot_write(const tke_snapshot *s, const char *folder, const tke_adapter_save *save,
                        tinkc_error *err)
{
    tke_view view;
    if (tkc_failed(err) || !tke_view_open(&view, s->device, s->weights, s->layout->n_floats, err))
        return false;
    bool ok = write_weights(s->model, s->layout, view.data, &s->spec, folder, save, err);
    return tke_view_close(&view, s->device, NULL, err) && ok;
}

static bool block_is_zero(const tke_lora_layout *l, const tke_real *block)
{
    for (size_t i = 0; i < l->n_floats; i++)
        if (block[i] != 0)
            return false;
    return true;
}

bool tke_state_write(const tke_state *s, const char *folder, const tke_adapter_save *save,
                     tinkc_error *err)
{
    table t;
    const tke_lora_layout *l = s->layout;
    int64_t counters[3] = { s->step, s->n_fwdbwd, s->n_tokens };
    tke_adapter_save exact = *save;
    exact.dtype = TKE_F32;
    if (tkc_failed(err) || !write_weights(s->model, l, s->weights, &s->spec, folder, &exact, err))
        return false;
    bool ok = table_init(&t, l, 3, err) && add_block(&t, l, s->m, "m.", TKE_F32, err) &&
              add_block(&t, l, s->v, "v.", TKE_F32, err);
    if (ok && (s->n_fwdbwd || !block_is_zero(l, s->grads)))
        ok = add_block(&t, l, s->grads, "g.", TKE_F32, err);
    if (ok) {
        t.list[t.n] = (tke_file_tensor){ .name = "counters",
                                         .data = (const unsigned char *)counters,
                                         .n_bytes = sizeof counters,
                                         .dtype = TKE_FILE_I64,
                                         .n_dims = 1 };
        t.list[t.n++].dims[0] = 3;
        ok = write_table(&t, folder, optimizer_file, NULL, err);
    }
    tkc_arena_free(&t.arena);
    return ok;
}

/* ---- reading ---- */

typedef struct folder {
    tkc_arena arena;
    const char *weights_path, *config_path, *optimizer_path;
    tke_tensor_file weights;
    tke_adapter_spec spec;
} folder;

static void folder_close(folder *f)
{
    tke_tensor_file_close(&f->weights);
    tkc_arena_free(&f->arena);
}

static void refuse_set(tkc_json *j, const char *key, const char *path, tinkc_error *err)
{
    bool set = tkc_json_peek(j) == TKC_JSON_TRUE;
    tinkc_str text = tkc_json_skip(j);
    if (text.len > 2 && (text.data[0] == '{' || text.data[0] == '['))
        set = true;
    if (set)
        tkc_fail(err, TINKC_E_UNSUPPORTED, "%s: %s is not supported", path, key);
}

/* Members that would change the adapter's meaning and are not supported. */
static const char *const refused[] = {
    "use_dora",   "modules_to_save",         "fan_in_fan_out",
    "lora_bias",  "layer_replication",       "target_parameters",
    "use_qalora", "trainable_token_indices", "alora_invocation_tokens",
    NULL
};

/* Requires that the member has this text. */
static void expect_text(tkc_json *j, const char *key, const char *want, const char *path,
                        tinkc_error *err)
{
    tinkc_str text = tkc_json_string(j);
    if (!tkc_failed(err) && !tkc_str_is_nocase(text, want))
        tkc_fail(err, TINKC_E_UNSUPPORTED, "%s: %s \"%.*s\" is not supported (\"%s\" is)", path,
                 key, (int)(text.len < 40 ? text.len : 40), text.data, want);
}

/* rank_pattern or alpha_pattern: only for stacked matrices, whose parts then have the usual rank and
 * scale. The pattern's value over the adapter's own must be how many parts there are. */
typedef struct pattern {
    double value; /* 0 = none */
    size_t parts;
} pattern;

static pattern read_pattern(tkc_json *j, const char *key, const char *path, tinkc_error *err)
{
    pattern p = { 0 };
    tinkc_str name;
    if (tkc_json_peek(j) != TKC_JSON_OBJECT) {
        refuse_set(j, key, path, err);
        return p;
    }
    tkc_json_object(j);
    while (tkc_json_key(j, &name)) {
        p.parts = tke_stacked_parts(name);
        if (!p.parts || p.value > 0)
            tkc_fail(err, TINKC_E_UNSUPPORTED, "%s: %s is not supported", path, key);
        else
            p.value = tkc_json_double(j);
    }
    return p;
}

static bool pattern_fits(pattern p, double own)
{
    return p.value <= 0 || p.value == own * (double)p.parts;
}

/* An error of the JSON reader, with the file that it was in. */
static void name_file(const folder *f, tinkc_error *err)
{
    tinkc_error seen = *err;
    if (!tkc_starts_with(tkc_str(seen.message), "JSON: "))
        return;
    *err = (tinkc_error){ 0 };
    tkc_fail(err, seen.code, "%.250s: %.200s", f->config_path, seen.message);
}

static bool read_config(folder *f, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    bool rslora = false;
    double rank = 0, alpha = 0;
    pattern ranks = { 0 }, alphas = { 0 };
    tinkc_bytes text = tkc_read_file(&f->arena, f->config_path, CONFIG_MAX, err);
    if (tkc_failed(err))
        return false;
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &f->arena, err);
    j.code = TINKC_E_MODEL;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            size_t i = 0;
            while (refused[i] && !tkc_str_is(key, refused[i]))
                i++;
            bool is_text = tkc_json_peek(&j) == TKC_JSON_STRING;
            if (tkc_str_is(key, "r"))
                rank = tkc_json_double(&j);
            else if (tkc_str_is(key, "lora_alpha"))
                alpha = tkc_json_double(&j);
            else if (tkc_str_is(key, "use_rslora"))
                rslora = tkc_json_peek(&j) == TKC_JSON_TRUE ? tkc_json_bool(&j)
                                                            : (tkc_json_skip(&j), false);
            else if (tkc_str_is(key, "rank_pattern"))
                ranks = read_pattern(&j, "rank_pattern", f->config_path, err);
            else if (tkc_str_is(key, "alpha_pattern"))
                alphas = read_pattern(&j, "alpha_pattern", f->config_path, err);
            else if (is_text && tkc_str_is(key, "peft_type"))
                expect_text(&j, "peft_type", "LORA", f->config_path, err);
            else if (is_text && tkc_str_is(key, "bias"))
                expect_text(&j, "bias", "none", f->config_path, err);
            else if (refused[i])
                refuse_set(&j, refused[i], f->config_path, err);
            else
                tkc_json_skip(&j);
        }
    tkc_json_close(&j);
    name_file(f, err);
    if (!(rank >= 1 && rank <= 65536) || !(alpha > 0 && alpha < 1e9))
        tkc_fail(err, TINKC_E_MODEL, "%s: r or lora_alpha is missing or out of range",
                 f->config_path); /* unless there is an error before */
    if (!pattern_fits(ranks, rank) || !pattern_fits(alphas, alpha) || ranks.parts != alphas.parts)
        tkc_fail(err, TINKC_E_UNSUPPORTED,
                 "%s: rank_pattern and alpha_pattern are not supported but for stacked matrices "
                 "whose parts have the usual rank",
                 f->config_path);
    if (rank != floor(rank))
        tkc_fail(err, TINKC_E_MODEL, "%s: r is not a whole number", f->config_path);
    if (tkc_failed(err))
        return false;
    f->spec.rank = (int32_t)rank;
    f->spec.alpha = rslora ? alpha * sqrt(rank) : alpha; /* alpha / sqrt(r) = alpha' / r */
    return true;
}

/* The flag of a tensor's matrix; 0 = not one of an adapter. */
static uint32_t flag_of(const char *name)
{
    static const struct {
        const char *part;
        uint32_t flag;
    } parts[] = { { ".self_attn.", TKE_TRAIN_ATTN },    { ".attn.", TKE_TRAIN_ATTN },
                  { ".linear_attn.", TKE_TRAIN_ATTN },  { ".mlp.", TKE_TRAIN_MLP },
                  { ".mixer.experts.", TKE_TRAIN_MLP }, { ".mixer.shared_experts.", TKE_TRAIN_MLP },
                  { ".mixer.up_proj.", TKE_TRAIN_MLP }, { ".mixer.down_proj.", TKE_TRAIN_MLP },
                  { ".mixer.", TKE_TRAIN_ATTN },        { "lm_head", TKE_TRAIN_UNEMBED },
                  { "embed_tokens", TKE_TRAIN_UNEMBED } }; /* unembed_tokens as well */
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i].part))
            return parts[i].flag;
    return 0;
}

/* Derives the flags from the tensor names of the file. */
static bool read_flags(folder *f, tinkc_error *err)
{
    for (size_t i = 0; i < f->weights.n_tensors; i++)
        f->spec.train |= flag_of(f->weights.tensors[i].name);
    if (!f->spec.train)
        return tkc_fail(err, TINKC_E_MODEL, "%s: no adapter tensors in it", f->weights_path);
    return true;
}

/* m NULL: names stay as they are in the file. */
static bool folder_open(folder *f, const tke_model *m, const char *path, tinkc_error *err)
{
    *f = (folder){ 0 };
    tkc_arena_init(&f->arena, NULL, 0);
    f->weights_path = tkc_path_join(&f->arena, path, weights_file, err);
    f->config_path = tkc_path_join(&f->arena, path, config_file, err);
    f->optimizer_path = tkc_path_join(&f->arena, path, optimizer_file, err);
    char *pickle = tkc_path_join(&f->arena, path, "adapter_model.bin", err);
    if (tkc_failed(err))
        return false;
    if (!tkc_is_file(f->weights_path) && tkc_is_file(pickle))
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "%s is a Python pickle: save the adapter as safetensors", pickle);
    if (!tkc_is_file(f->weights_path) || !tkc_is_file(f->config_path))
        return tkc_fail(err, TINKC_E_MODEL, "%s: %s or %s is missing", path, weights_file,
                        config_file);
    return read_config(f, err) && tke_tensor_file_open(&f->weights, f->weights_path, err) &&
           read_flags(f, err) &&
           (!m || tke_names_read(&f->weights, m, (size_t)f->spec.rank, f->weights_path, err));
}

static bool shape_fits(const tke_file_tensor *t, const tke_tensor_ref *ref)
{
    if (!ref->copies)
        return tke_tensor_is(t, 2, (int64_t)ref->rows, (int64_t)ref->cols);
    return t->n_dims == 3 && t->dims[0] == (int64_t)ref->copies &&
           t->dims[1] == (int64_t)ref->rows && t->dims[2] == (int64_t)ref->cols;
}

static bool wrong_shape(const tke_tensor_ref *ref, const char *path, const char *name,
                        tinkc_error *err)
{
    if (ref->copies)
        return tkc_fail(err, TINKC_E_MODEL,
                        "%s: tensor '%s' has a shape other than [%zu, %zu, %zu]", path, name,
                        ref->copies, ref->rows, ref->cols);
    return tkc_fail(err, TINKC_E_MODEL, "%s: tensor '%s' has a shape other than [%zu, %zu]", path,
                    name, ref->rows, ref->cols);
}

/* Reads one tensor into a block. A missing one is an error unless `partial`. */
static bool read_tensor(const tke_tensor_file *file, const tke_tensor_ref *ref, const char *prefix,
                        bool partial, const char *path, tke_real *block, bool *found,
                        tinkc_error *err)
{
    char name[NAME_MAX_LEN];
    const tke_file_tensor *t = find_tensor(file, ref, prefix);
    tensor_name(ref, prefix, name);
    *found = t != NULL;
    if (!t)
        return partial || tkc_fail(err, TINKC_E_MODEL, "%s: tensor '%s' is missing", path, name);
    if (!shape_fits(t, ref))
        return wrong_shape(ref, path, name, err);
    if (!tke_tensor_is_real(t))
        return tkc_fail(err, TINKC_E_MODEL, "%s: tensor '%s' is %s", path, name,
                        tke_file_dtype_name(t->dtype));
    tke_widen((tke_dtype)t->dtype, t->data, ref->count, block + ref->offset);
    for (size_t i = 0; i < ref->count; i++)
        if (!isfinite(block[ref->offset + i]))
            return tkc_fail(err, TINKC_E_MODEL, "%s: tensor '%s' holds NaN or infinity", path,
                            name);
    return true;
}

/* All tensors of a layout, and only them. */
static bool read_block(const tke_tensor_file *file, const tke_lora_layout *l, const char *prefix,
                       bool partial, const char *path, tke_real *block, size_t *n_found,
                       tinkc_error *err)
{
    tke_tensor_ref ref;
    *n_found = 0;
    for (size_t place = 0; tke_layout_next(l, &place, &ref);) {
        bool found;
        if (!read_tensor(file, &ref, prefix, partial, path, block, &found, err))
            return false;
        *n_found += found;
    }
    return true;
}

/* The output layer of the model, if the adapter has a part for it. */
static const tke_weight *trained_head(const tke_lora_layout *l)
{
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(l, &place, &ref);)
        if (ref.head)
            return ref.weight;
    return NULL;
}

/* PEFT saves the output layer itself beside an adapter of it. NULL = it has not. */
static const tke_file_tensor *saved_head(const tke_tensor_file *file, const tke_lora_layout *l)
{
    return trained_head(l)
               ? tke_tensor_file_find(file, "base_model.model.lm_head.base_layer.weight")
               : NULL;
}

/* Whether a tensor has the numbers of a layer, up to rounding to the 8 bits of bf16. */
static bool is_copy(const tke_file_tensor *t, const tke_weight *w)
{
    enum { PART = TKE_MAX_BLOCK };
    tke_real a[PART], b[PART];
    if (!tke_tensor_is_real(t) || !tke_tensor_is(t, 2, (int64_t)w->out, (int64_t)w->in))
        return false;
    size_t n = w->out * w->in, size = tke_dtype_size((tke_dtype)t->dtype);
    for (size_t at = 0, len; at < n; at += len) {
        size_t column = at % w->in; /* a part lies in one row */
        len = w->in - column < PART ? w->in - column : PART;
        tke_widen((tke_dtype)t->dtype, t->data + at * size, len, a);
        tke_matrix_row(&w->m, (int64_t)(at / w->in), (int64_t)column, (int64_t)len, b);
        for (size_t i = 0; i < len; i++)
            if (!(fabs((double)(a[i] - b[i])) <= fabs((double)b[i]) / 256 + 1e-7))
                return false;
    }
    return true;
}

/* Other numbers there would be a different model. Counts the tensor in *n. */
static bool check_saved_head(const folder *f, const tke_lora_layout *l, size_t *n, tinkc_error *err)
{
    const tke_file_tensor *t = saved_head(&f->weights, l);
    if (t && !is_copy(t, trained_head(l)))
        return tkc_fail(
            err, TINKC_E_MODEL,
            "%s: tensor '%s' differs from the model's output layer: the adapter belongs "
            "to another model, or was trained with a changed vocabulary",
            f->weights_path, t->name);
    *n += t != NULL;
    return true;
}

/* The first tensor of the file that is not in the layout. */
static const char *stray_tensor(const tke_tensor_file *file, const tke_lora_layout *l)
{
    const tke_file_tensor *saved = saved_head(file, l);
    for (size_t i = 0; i < file->n_tensors; i++) {
        tke_tensor_ref ref;
        bool known = &file->tensors[i] == saved;
        for (size_t place = 0; !known && tke_layout_next(l, &place, &ref);)
            known = find_tensor(file, &ref, "") == &file->tensors[i];
        if (!known)
            return file->tensors[i].name;
    }
    return "";
}

static bool read_weights(folder *f, const tke_lora_layout *l, bool partial, tke_real *block,
                         tinkc_error *err)
{
    size_t n;
    if (!read_block(&f->weights, l, "", partial, f->weights_path, block, &n, err) ||
        !check_saved_head(f, l, &n, err))
        return false;
    if (n != f->weights.n_tensors)
        return tkc_fail(
            err, TINKC_E_MODEL,
            "%s: %zu of its %zu tensors belong to no matrix of the model, such as '%.120s'",
            f->weights_path, f->weights.n_tensors - n, f->weights.n_tensors,
            stray_tensor(&f->weights, l));
    return true;
}

bool tke_adapter_probe(const tke_model *m, const char *path, tke_adapter_spec *out,
                       tinkc_error *err)
{
    folder f;
    (void)m;
    bool ok = folder_open(&f, NULL, path, err);
    if (ok)
        *out = f.spec;
    folder_close(&f);
    return ok;
}

tke_snapshot *tke_snapshot_read(tke_device *d, tke_model *m, const char *path, tinkc_error *err)
{
    folder f;
    tke_view view = { 0 };
    tke_snapshot *s = NULL;
    if (folder_open(&f, m, path, err))
        s = tke_snapshot_new(d, m, &f.spec, err);
    bool ok = s && tke_view_open(&view, d, s->weights, s->layout->n_floats, err) &&
              read_weights(&f, s->layout, true, view.data, err);
    ok = tke_view_close(&view, d, ok ? s->weights : NULL, err) && ok;
    if (!ok) {
        tke_snapshot_drop(s);
        s = NULL;
    }
    folder_close(&f);
    return s;
}

bool tke_adapter_check(const tke_model *m, const char *path, tinkc_error *err)
{
    folder f;
    tke_lora_layout *l = NULL;
    tke_real *reals = NULL;
    if (folder_open(&f, m, path, err))
        l = tke_layout_new(m, &f.spec, err);
    if (l)
        reals = tke_reals_new(l, err);
    bool ok = reals && read_weights(&f, l, true, reals, err);
    tkc_release_aligned(reals);
    tke_layout_free(l);
    folder_close(&f);
    return ok;
}

bool tke_adapter_convert(const tke_model *m, const char *from, const char *to, uint64_t seed,
                         const tke_adapter_save *save, tke_adapter_spec *spec, tinkc_error *err)
{
    folder f;
    tke_lora_layout *l = NULL;
    tke_real *reals = NULL;
    if (folder_open(&f, m, from, err)) {
        f.spec.seed = seed;
        l = tke_layout_new(m, &f.spec, err);
    }
    if (l)
        reals = tke_reals_new(l, err);
    if (reals)
        tke_layout_init(l, seed, reals);
    bool ok = reals && read_weights(&f, l, true, reals, err) &&
              write_weights(m, l, reals, &f.spec, to, save, err);
    *spec = f.spec;
    tkc_release_aligned(reals);
    tke_layout_free(l);
    folder_close(&f);
    return ok;
}

static const char *flags_text(uint32_t train)
{
    static const char *const texts[] = { "nothing",     "attn",
                                         "mlp",         "attn+mlp",
                                         "unembed",     "attn+unembed",
                                         "mlp+unembed", "attn+mlp+unembed" };
    return texts[train & 7u];
}

static bool fits(const tke_adapter *a, const folder *f, const char *path, tinkc_error *err)
{
    if (a->spec.rank == f->spec.rank && a->spec.train == f->spec.train)
        return true;
    return tkc_fail(err, TINKC_E_MODEL,
                    "%s: the checkpoint has rank %d and trains %s, the model has rank %d and "
                    "trains %s",
                    path, (int)f->spec.rank, flags_text(f->spec.train), (int)a->spec.rank,
                    flags_text(a->spec.train));
}

typedef struct loaded { /* everything that a load replaces; swapped in only when all is read */
    tke_real *weights, *grads, *m, *v;
    int64_t counters[3];
} loaded;

static bool read_optimizer(folder *f, const tke_lora_layout *l, loaded *out, tinkc_error *err)
{
    size_t n;
    tke_tensor_file file;
    if (!tkc_is_file(f->optimizer_path))
        return tkc_fail(err, TINKC_E_MODEL,
                        "%s is missing: sampler checkpoints hold no optimizer "
                        "state",
                        f->optimizer_path);
    if (!tke_tensor_file_open(&file, f->optimizer_path, err))
        return false;
    const tke_file_tensor *counters = tke_tensor_file_find(&file, "counters");
    bool ok = read_block(&file, l, "m.", false, f->optimizer_path, out->m, &n, err) &&
              read_block(&file, l, "v.", false, f->optimizer_path, out->v, &n, err);
    if (ok && (!counters || counters->dtype != TKE_FILE_I64 || !tke_tensor_is(counters, 1, 3, 0)))
        ok = tkc_fail(err, TINKC_E_MODEL, "%s: counters are missing", f->optimizer_path);
    if (ok)
        memcpy(out->counters, counters->data, sizeof out->counters);
    if (ok && out->counters[0] < 0)
        ok = tkc_fail(err, TINKC_E_MODEL, "%s: a negative step", f->optimizer_path);
    if (ok && file.n_tensors > 2 * n + 1)
        ok = read_block(&file, l, "g.", false, f->optimizer_path, out->grads, &n, err);
    tke_tensor_file_close(&file);
    return ok;
}

/* Reads into the new blocks, through host views. */
static bool read_blocks(folder *f, const tke_adapter *a, bool optimizer, tke_block *blocks[4],
                        loaded *in, tinkc_error *err)
{
    tke_view views[4] = { 0 };
    bool ok = true;
    for (size_t i = 0; i < 4; i++) {
        blocks[i] = a->device->ops->block_new(a->device, a->layout->n_floats, err);
        ok = ok && blocks[i] &&
             tke_view_open(&views[i], a->device, blocks[i], a->layout->n_floats, err);
    }
    in->weights = views[0].data;
    in->grads = views[1].data;
    in->m = views[2].data;
    in->v = views[3].data;
    ok = ok && read_weights(f, a->layout, false, in->weights, err) &&
         (!optimizer || read_optimizer(f, a->layout, in, err));
    for (size_t i = 0; i < 4; i++)
        ok = tke_view_close(&views[i], a->device, ok ? blocks[i] : NULL, err) && ok;
    return ok;
}

static void swap_in(tke_adapter *a, const loaded *in, tke_block *blocks[4])
{
    tke_block **mine[] = { &a->weights, &a->grads, &a->m, &a->v };
    for (size_t i = 0; i < 4; i++) {
        tke_block *old = *mine[i];
        *mine[i] = blocks[i];
        blocks[i] = old;
    }
    a->lora.weights = a->weights;
    a->step = in->counters[0];
    a->n_fwdbwd = in->counters[1];
    a->n_tokens = in->counters[2];
    a->n_failed = 0;
}

bool tke_adapter_load(tke_adapter *a, const char *path, bool optimizer, tinkc_error *err)
{
    folder f;
    loaded in = { 0 };
    tke_block *blocks[4] = { 0 };
    bool ok = folder_open(&f, a->model, path, err) && fits(a, &f, path, err) &&
              read_blocks(&f, a, optimizer, blocks, &in, err);
    if (ok) {
        swap_in(a, &in, blocks);
        a->spec.alpha = f.spec.alpha;
        a->lora.scale = (tke_real)(a->spec.alpha / (double)a->spec.rank);
    }
    for (size_t i = 0; i < 4; i++)
        a->device->ops->block_free(a->device, blocks[i]);
    folder_close(&f);
    return ok;
}
