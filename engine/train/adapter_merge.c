/* adapter_merge.c - a base model with an adapter merged into it, as a model folder: W + scale B A, row by
 * row in fp32, rounded once to W's type.
 *
 * Works file by file. Experts in MXFP4 become BF16, since a small change would be lost in their two
 * bits. May touch: the model's folder, the adapter, the target.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "math/format.h"
#include "model/family.h"
#include "train/adapter_export.h"
#include "train/adapter_names.h"

enum { TEXT_MAX = 64 << 20, PATH_LEN = 200 };

/* ---- W + scale B A ---- */

const tke_file_tensor *tke_export_part(tke_export *j, const char *path, const char *ab)
{
    const char *name =
        tkc_arena_printf(&j->arena, j->err, "base_model.model.%s.%s.weight", path, ab);
    return name && j->adapter.n_tensors ? tke_tensor_file_find(&j->adapter, name) : NULL;
}

const tke_file_tensor *tke_export_head(tke_export *j, const char *ab)
{
    return tke_export_part(j, "lm_head", ab);
}

/* The shape of one copy, or of a matrix; false if it is another. */
static bool is_factor(const tke_file_tensor *t, size_t rows, size_t cols)
{
    return t->n_dims >= 2 && t->n_dims <= 3 && t->dims[t->n_dims - 2] == (int64_t)rows &&
           t->dims[t->n_dims - 1] == (int64_t)cols;
}

/* The first element of an expert's copy; a factor that all share has one. */
static size_t copy_at(const tke_file_tensor *t, size_t expert)
{
    bool own = t->n_dims == 3 && t->dims[0] > 1;
    assert(!own || expert < (size_t)t->dims[0]);
    return own ? expert * (size_t)(t->dims[1] * t->dims[2]) : 0;
}

bool tke_merge_begin(tke_merge *m, tke_export *j, const char *name, size_t rows, size_t cols,
                     const tke_file_tensor *a, const tke_file_tensor *b, size_t expert)
{
    size_t rank = (size_t)j->spec.rank;
    *m = (tke_merge){ .b = b, .rank = rank, .cols = cols };
    m->scale = (float)(j->spec.alpha / j->spec.rank);
    assert(tke_tensor_is_real(a) && tke_tensor_is_real(b)); /* tke_adapter_check saw them */
    if (!is_factor(a, rank, cols) || !is_factor(b, rows, rank))
        return tkc_fail(j->err, TINKC_E_MODEL, "%s: '%s' does not fit '%s'", j->o->adapter, a->name,
                        name);
    m->b_first = copy_at(b, expert);
    m->a = tkc_alloc(NULL, (rank * cols + rank) * sizeof *m->a, j->err);
    if (m->a)
        tke_widen((tke_dtype)a->dtype, a->data + copy_at(a, expert) * tke_file_dtype_size(a->dtype),
                  rank * cols, m->a);
    return m->a != NULL;
}

void tke_merge_row(const tke_merge *m, size_t i, float *row)
{
    float *bs = m->a + m->rank * m->cols;
    tke_widen((tke_dtype)m->b->dtype,
              m->b->data + (m->b_first + i * m->rank) * tke_file_dtype_size(m->b->dtype), m->rank,
              bs);
    for (size_t r = 0; r < m->rank; r++)
        for (size_t c = 0; c < m->cols; c++)
            row[c] += m->scale * bs[r] * m->a[r * m->cols + c];
}

void tke_merge_end(tke_merge *m)
{
    tkc_release(NULL, m->a, (m->rank * m->cols + m->rank) * sizeof *m->a);
}

/* ---- one tensor ---- */

typedef struct numbers { /* numbers that become merged, in place */
    tke_export *j;
    const char *name; /* of the base tensor */
    int32_t dtype;
    unsigned char *data;
} numbers;

/* Elements of row i lie `step` apart, from `first + i * row_step` on. */
typedef struct view {
    size_t rows, cols, first, row_step, step;
} view;

static void copy_row(const numbers *t, const view *v, size_t i, bool out, float *row)
{
    size_t size = tke_file_dtype_size(t->dtype);
    unsigned char *at = t->data + (v->first + i * v->row_step) * size;
    size_t n = v->step == 1 ? v->cols : 1;
    for (size_t c = 0; c < v->cols; c += n, at += n * v->step * size) {
        if (out)
            tke_narrow((tke_dtype)t->dtype, row + c, n, at);
        else
            tke_widen((tke_dtype)t->dtype, at, n, row + c);
    }
}

/* Adds the adapter of a matrix, if it has one. */
static void merge_view(const numbers *t, const char *path, size_t expert, const view *v)
{
    tke_merge m;
    const tke_file_tensor *a = tke_export_part(t->j, path, "lora_A"),
                          *b = tke_export_part(t->j, path, "lora_B");
    if (!a || !b || tkc_failed(t->j->err))
        return;
    float *row = tkc_alloc(NULL, v->cols * sizeof *row, t->j->err);
    bool ok = row && tke_merge_begin(&m, t->j, t->name, v->rows, v->cols, a, b, expert);
    for (size_t i = 0; ok && i < v->rows; i++) {
        copy_row(t, v, i, false, row);
        tke_merge_row(&m, i, row);
        copy_row(t, v, i, true, row);
    }
    if (ok)
        tke_merge_end(&m);
    tkc_release(NULL, row, v->cols * sizeof *row);
}

/* ---- experts ---- */

/* Which layer's experts a path is about; NULL = none. */
static const tke_experts *experts_of(const tke_export *j, const char *path)
{
    unsigned layer = 0;
    const char *at = path + strlen("model.layers.");
    if (strncmp(path, "model.layers.", strlen("model.layers.")) != 0 || !strstr(path, ".experts."))
        return NULL;
    for (; *at >= '0' && *at <= '9' && layer < TKE_MAX_LAYERS; at++)
        layer = layer * 10 + (unsigned)(*at - '0');
    return layer < j->base->config.n_layers ? j->base->layers[layer].experts : NULL;
}

/* "model.layers.0.mlp.experts.w1" from "model.layers.0.mlp.experts.gate_up_proj". */
static const char *expert_path(const char *path, const char *w, char out[PATH_LEN])
{
    const char *at = strstr(path, ".experts.");
    snprintf(out, PATH_LEN, "%.*s.experts.%s", (int)(at - path), path, w);
    return out;
}

/* A tensor of all experts: [E, rows, cols], or [E, cols, rows] with gates and ups in turn. */
static void merge_stack(const numbers *t, const tke_experts *x, const char *path)
{
    char of[PATH_LEN];
    bool down = strstr(path, ".down_proj") != NULL, turned = x->paired;
    size_t h = x->out.out, f = x->inner, parts = down || x->squared ? 1 : 2;
    size_t rows = down ? h : f, cols = down ? f : h;
    for (size_t e = 0; e < x->n; e++)
        for (size_t k = 0; k < parts; k++) {
            size_t at = e * parts * rows * cols;
            view v = turned ? (view){ rows, cols, at + k, parts, parts * rows }
                            : (view){ rows, cols, at + k * rows * cols, cols, 1 };
            merge_view(t, expert_path(path, down ? "w2" : k ? "w3" : "w1", of), e, &v);
        }
}

/* experts.E.up_proj and so on. */
static void merge_expert(const numbers *t, const tke_experts *x, const char *path)
{
    char of[PATH_LEN];
    size_t e = 0, h = x->out.out, f = x->inner;
    const char *at = strstr(path, ".experts.") + strlen(".experts."), *leaf = strchr(at, '.') + 1;
    bool down = strcmp(leaf, "down_proj") == 0, up = strcmp(leaf, "up_proj") == 0;
    for (; *at >= '0' && *at <= '9' && e < x->n; at++)
        e = e * 10 + (size_t)(*at - '0');
    const char *w = down ? "w2" : up && !x->squared ? "w3" : "w1";
    if (e < x->n)
        merge_view(t, expert_path(path, w, of), e,
                   &(view){ down ? h : f, down ? f : h, 0, down ? f : h, 1 });
}

/* The packed numbers of all experts as BF16, [E, in, out]. */
static unsigned char *unpack(tke_export *j, const tke_experts *x, const tke_stack *s,
                             tkc_arena *arena)
{
    uint16_t *out = tkc_arena_alloc(arena, x->n * s->out * s->in * sizeof *out, j->err);
    uint16_t *row = tkc_alloc(NULL, s->in * sizeof *row, j->err);
    for (size_t e = 0; out && row && e < x->n; e++)
        for (size_t r = 0; r < s->out; r++) {
            tke_format_mxfp4.unpack[TKE_UNPACK_REF](&s->m[e], (int64_t)r, 0, (int64_t)s->in, row);
            for (size_t c = 0; c < s->in; c++)
                out[(e * s->in + c) * s->out + r] = row[c];
        }
    tkc_release(NULL, row, s->in * sizeof *row);
    return (unsigned char *)out;
}

/* ---- one file ---- */

typedef struct merged { /* a file of the base model being written to the target */
    tke_tensor_file from;
    tke_file_tensor *list;
    size_t n;
    tkc_arena data;
    bool untie;    /* the embedding stays unchanged, and a separate head is written */
    bool unpacked; /* experts are written as BF16 */
} merged;

/* The path of a matrix in the model, from its name in the files; without ".weight". */
static const char *our_path(tke_export *j, const char *name, char out[PATH_LEN])
{
    const char *prefix = j->base->config.prefix;
    size_t skip = strncmp(name, prefix, strlen(prefix)) == 0 ? strlen(prefix) : 0;
    tinkc_str rest = tkc_str(name + skip);
    if (tkc_ends_with(rest, ".weight"))
        rest.len -= strlen(".weight");
    snprintf(out, PATH_LEN, "%s%.*s", skip ? "model." : "", (int)rest.len, rest.data);
    return out;
}

/* Merges all adapters that concern a tensor, whose numbers are in t. */
static void merge_numbers(const numbers *t, const tke_file_tensor *w, const char *path)
{
    const tke_experts *x = experts_of(t->j, path);
    tke_piece pieces[TKE_MAX_PIECES];
    size_t n = tke_names_pieces(t->j->base, path, pieces), cols = (size_t)w->dims[w->n_dims - 1];
    if (x && w->n_dims == 3)
        merge_stack(t, x, path);
    else if (x && w->n_dims == 2 && strchr(strstr(path, ".experts.") + 9, '.'))
        merge_expert(t, x, path);
    else if (w->n_dims == 2 && n)
        for (size_t i = 0, row = 0; i < n; row += pieces[i++].rows)
            merge_view(t, pieces[i].path, 0, &(view){ pieces[i].rows, cols, row * cols, cols, 1 });
    else if (w->n_dims == 2 && !x)
        merge_view(t, path, 0, &(view){ (size_t)w->dims[0], cols, 0, cols, 1 });
}

/* Does the adapter have a part for something in this tensor? */
static bool concerned(tke_export *j, const char *path)
{
    char of[PATH_LEN];
    tke_piece pieces[TKE_MAX_PIECES];
    if (experts_of(j, path))
        return tke_export_part(j, expert_path(path, "w1", of), "lora_A") ||
               tke_export_part(j, expert_path(path, "w2", of), "lora_A");
    if (tke_names_pieces(j->base, path, pieces))
        return tke_export_part(j, pieces[0].path, "lora_A") != NULL;
    return tke_export_part(j, path, "lora_A") != NULL;
}

/* path: whose adapter is merged; NULL = none. */
static void add_tensor(tke_export *j, merged *m, const tke_file_tensor *w, const char *path,
                       const char *name)
{
    tke_file_tensor *t = &m->list[m->n++];
    *t = *w;
    t->name = name;
    if (!path || !concerned(j, path))
        return;
    if (!tke_tensor_is_real(w) || w->n_dims < 2) {
        tkc_fail(j->err, TINKC_E_MODEL, "%s: '%s' is not a matrix of numbers", j->o->base_model,
                 w->name);
        return;
    }
    numbers out = { j, w->name, w->dtype, tkc_arena_alloc(&m->data, w->n_bytes, j->err) };
    t->data = out.data;
    if (!out.data)
        return;
    memcpy(out.data, w->data, w->n_bytes);
    merge_numbers(&out, w, path);
}

/* "..._blocks" and "..._scales" become one tensor in BF16. */
static bool add_unpacked(tke_export *j, merged *m, const tke_file_tensor *w, const char *path)
{
    const tke_experts *x = m->unpacked ? experts_of(j, path) : NULL;
    tinkc_str name = tkc_str(w->name);
    bool blocks = tkc_ends_with(name, "_blocks");
    if (!x || !x->paired || !(blocks || tkc_ends_with(name, "_scales")))
        return false;
    if (!blocks)
        return true;
    char of[PATH_LEN];
    const tke_stack *s = strstr(path, ".down_proj") ? &x->out : &x->gate;
    tke_file_tensor t = { .dtype = TKE_FILE_BF16, .n_dims = 3 };
    t.name = tkc_arena_str(&m->data, tkc_strn(name.data, name.len - strlen("_blocks")), j->err);
    t.dims[0] = (int64_t)x->n;
    t.dims[1] = (int64_t)s->in;
    t.dims[2] = (int64_t)s->out;
    t.n_bytes = x->n * s->in * s->out * 2;
    unsigned char *data = unpack(j, x, s, &m->data);
    snprintf(of, sizeof of, "%.*s", (int)(strlen(path) - strlen("_blocks")), path);
    numbers out = { j, t.name, t.dtype, data };
    if (data && t.name)
        merge_stack(&out, x, of);
    t.data = data;
    m->list[m->n++] = t;
    return true;
}

static void add_one(tke_export *j, merged *m, const tke_file_tensor *w)
{
    char path[PATH_LEN];
    our_path(j, w->name, path);
    bool embed = strcmp(path, j->base->embed.path) == 0, head = strcmp(path, "lm_head") == 0;
    if (head && m->untie)
        return; /* tied: the file's own head is not used */
    if (embed && m->untie)
        add_tensor(j, m, w, "lm_head", "lm_head.weight");
    if (!add_unpacked(j, m, w, path))
        add_tensor(j, m, w, embed ? NULL : path, w->name);
}

/* index: the file's tensors are added to it, unless it is NULL. */
static void merge_file(tke_export *j, const char *name, const merged *how, tkc_jsonw *index)
{
    static const char *const metadata[] = { "format", "pt", NULL };
    merged m = *how;
    size_t read = 0;
    char *source = tke_export_path(j, j->o->base_model, name),
         *target = tke_export_path(j, j->o->target, name);
    if (!source || !target || !tke_tensor_file_open(&m.from, source, j->err))
        return;
    tkc_arena_init(&m.data, NULL, 0);
    m.list = tkc_arena_array(&m.data, m.from.n_tensors + 1, sizeof *m.list, j->err);
    for (size_t i = 0; m.list && i < m.from.n_tensors && !tkc_failed(j->err); i++) {
        read += m.from.tensors[i].n_bytes;
        add_one(j, &m, &m.from.tensors[i]);
    }
    for (size_t i = 0; i < m.n && !tkc_failed(j->err); i++) {
        j->written += (int64_t)m.list[i].n_bytes;
        if (index) {
            tkc_jsonw_key(index, m.list[i].name);
            tkc_jsonw_cstr(index, name);
        }
    }
    if (!tkc_failed(j->err) && tke_tensor_file_write(target, m.list, m.n, metadata, 0644, j->err))
        tke_export_advance(j, read);
    tkc_arena_free(&m.data);
    tke_tensor_file_close(&m.from);
}

/* ---- the folder ---- */

/* Each file that the index names, once. */
static void merge_listed(tke_export *j, tkc_json *from, const merged *how, tkc_jsonw *to)
{
    tkc_map seen;
    tinkc_str tensor;
    tkc_map_init(&seen, NULL);
    tkc_json_object(from);
    while (tkc_json_key(from, &tensor)) {
        tinkc_str file = tkc_json_string(from);
        char *name = tkc_arena_str(&j->arena, file, j->err);
        if (name && !tkc_map_has(&seen, file) && tkc_map_set(&seen, file, name, NULL, j->err))
            merge_file(j, name, how, to);
    }
    tkc_map_free(&seen);
}

static void merge_shards(tke_export *j, const char *index, const merged *how)
{
    tkc_json from;
    tkc_jsonw to;
    tkc_buf text;
    tinkc_str key;
    tinkc_bytes old = tkc_read_file(&j->arena, index, TEXT_MAX, j->err);
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_json_open(&from, tkc_strn((const char *)old.data, old.len), &j->arena, j->err);
    tkc_jsonw_open(&to, &text, j->err);
    tkc_jsonw_object(&to);
    tkc_jsonw_key(&to, "weight_map");
    tkc_jsonw_object(&to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            if (tkc_str_is(key, "weight_map"))
                merge_listed(j, &from, how, &to);
            else
                tkc_json_skip(&from);
        }
    tkc_jsonw_end(&to);
    tkc_jsonw_key(&to, "metadata"); /* Python readers require it */
    tkc_jsonw_object(&to);
    tkc_jsonw_key(&to, "total_size");
    tkc_jsonw_i64(&to, j->written);
    tkc_jsonw_end(&to);
    tkc_jsonw_end(&to);
    tke_export_write(j, "model.safetensors.index.json", &text);
}

/* The members of config.json, or of text_config inside, with what has changed. */
static void copy_config(tke_export *j, tinkc_str json, const merged *how, tkc_jsonw *to)
{
    tkc_json from;
    tinkc_str key;
    tkc_json_open(&from, json, &j->arena, j->err);
    tkc_jsonw_object(to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            tinkc_str value = tkc_json_skip(&from);
            if ((how->untie && tkc_str_is(key, "tie_word_embeddings")) ||
                (how->unpacked && tkc_str_is(key, "quantization_config")))
                continue;
            tkc_jsonw_key_str(to, key);
            if (tkc_str_is(key, "text_config") && value.len && value.data[0] == '{')
                copy_config(j, value, how, to);
            else
                tkc_jsonw_raw(to, value);
        }
    if (how->untie) {
        tkc_jsonw_key(to, "tie_word_embeddings");
        tkc_jsonw_bool(to, false);
    }
    tkc_jsonw_end(to);
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

bool tke_export_companions(tke_export *j)
{
    static const char *const others[] = { "generation_config.json",
                                          "tokenizer.json",
                                          "tokenizer_config.json",
                                          "special_tokens_map.json",
                                          "vocab.json",
                                          "merges.txt",
                                          "chat_template.jinja",
                                          "preprocessor_config.json" };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof others / sizeof *others; i++)
        ok = copy_file(j, others[i]);
    return ok;
}

static bool write_model_config(tke_export *j, const merged *how)
{
    tkc_buf text;
    tkc_jsonw to;
    if (!how->untie && !how->unpacked)
        return copy_file(j, "config.json");
    tinkc_bytes old = tke_export_read(j, j->o->base_model, "config.json");
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_jsonw_open(&to, &text, j->err);
    copy_config(j, tkc_strn((const char *)old.data, old.len), how, &to);
    return tke_export_write(j, "config.json", &text);
}

/* Are the model's experts packed, and does the adapter change them? */
static bool unpacks(tke_export *j)
{
    for (size_t i = 0; i < j->base->config.n_layers; i++) {
        const tke_experts *x = j->base->layers[i].experts;
        if (x && x->gate.m[0].dtype == TKE_MXFP4)
            return tke_export_part(j, x->gate_up->w[0].path, "lora_A") != NULL;
    }
    return false;
}

bool tke_export_merged(tke_export *j)
{
    merged how = { .untie =
                       j->base->config.tied && tke_export_head(j, "lora_A") && !j->o->drop_unembed,
                   .unpacked = unpacks(j) };
    j->total = (int64_t)j->base->n_bytes;
    char *index = tke_export_path(j, j->o->base_model, "model.safetensors.index.json");
    char *single = tke_export_path(j, j->o->base_model, "model.safetensors");
    if (tkc_failed(j->err))
        return false;
    if (tkc_is_file(single))
        merge_file(j, "model.safetensors", &how, NULL);
    else
        merge_shards(j, index, &how);
    return !tkc_failed(j->err) && write_model_config(j, &how) && tke_export_companions(j);
}
