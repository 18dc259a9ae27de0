/* model.c - opens a model folder: which file holds which tensor, shapes, small vectors to float.
 *
 * May touch: the folder's files. Must not: change anything after tke_model_open has returned, nor
 * widen a matrix.
 */
#include "model/model.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/digest.h"
#include "base/json_read.h"
#include "base/str.h"
#include "base/thread.h"

enum { INDEX_MAX = 64 << 20, MAX_FILES = 4096 };

typedef struct opened { /* what a tke_model stands in */
    tke_model m;        /* first */
    tkc_refs refs;
    tkc_arena arena; /* names, tables, small vectors */
    tke_tensor_file *files;
    size_t n_files;
    tkc_map file_of; /* tensor name -> tke_tensor_file; empty without an index */
} opened;

/* ---- files ---- */

/* A shard's name is untrusted: it must be a plain name in the same folder. */
static bool plain_name(tinkc_str name)
{
    return name.len > 0 && name.len < 256 && name.data[0] != '.' &&
           !memchr(name.data, '/', name.len) && !memchr(name.data, 0, name.len);
}

static tke_tensor_file *open_shard(opened *m, tkc_map *by_name, tinkc_str name, const char *index,
                                   tinkc_error *err)
{
    tke_tensor_file *file = tkc_map_get(by_name, name);
    if (file)
        return file;
    if (!plain_name(name)) {
        tkc_fail(err, TINKC_E_MODEL, "%s: '%.*s' is not a file name in this folder", index,
                 (int)(name.len < 60 ? name.len : 60), name.data);
        return NULL;
    }
    if (m->n_files == MAX_FILES) {
        tkc_fail(err, TINKC_E_MODEL, "%s: too many files", index);
        return NULL;
    }
    char *copy = tkc_arena_str(&m->arena, name, err);
    char *path = copy ? tkc_path_join(&m->arena, m->m.folder, copy, err) : NULL;
    if (!path)
        return NULL;
    if (!tkc_is_file(path)) {
        tkc_fail(err, TINKC_E_MODEL, "%s: the index names this file, but it does not exist", path);
        return NULL;
    }
    assert(m->files);
    file = &m->files[m->n_files];
    if (!tke_tensor_file_open(file, path, err))
        return NULL;
    m->n_files++;
    return tkc_map_set(by_name, name, file, NULL, err) ? file : NULL;
}

static bool read_weight_map(opened *m, tkc_json *j, const char *index, tinkc_error *err)
{
    tkc_map by_name;
    tinkc_str key;
    tkc_map_init(&by_name, NULL);
    if (tkc_json_object(j))
        while (tkc_json_key(j, &key)) {
            tinkc_str name = tkc_json_string(j);
            if (tkc_failed(err))
                break;
            tke_tensor_file *file = open_shard(m, &by_name, name, index, err);
            if (!file || !tkc_map_set(&m->file_of, key, file, NULL, err))
                break;
        }
    tkc_map_free(&by_name);
    return !tkc_failed(err);
}

static bool open_index(opened *m, const char *index, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    bool found = false;
    tinkc_bytes text = tkc_read_file(&m->arena, index, INDEX_MAX, err);
    if (tkc_failed(err))
        return false;
    m->files = tkc_arena_array(&m->arena, MAX_FILES, sizeof *m->files, err);
    if (!m->files)
        return false;
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &m->arena, err);
    j.code = TINKC_E_MODEL;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (!tkc_str_is(key, "weight_map")) {
                tkc_json_skip(&j);
            } else {
                found = true;
                if (!read_weight_map(m, &j, index, err))
                    return false;
            }
        }
    tkc_json_close(&j);
    if (!tkc_failed(err) && !found)
        tkc_fail(err, TINKC_E_MODEL, "%s: weight_map is missing", index);
    return !tkc_failed(err);
}

static bool open_files(opened *m, tinkc_error *err)
{
    char *single = tkc_path_join(&m->arena, m->m.folder, "model.safetensors", err);
    char *index = tkc_path_join(&m->arena, m->m.folder, "model.safetensors.index.json", err);
    if (!single || !index)
        return false;
    if (!tkc_is_file(single)) {
        if (tkc_is_file(index))
            return open_index(m, index, err);
        return tkc_fail(err, TINKC_E_MODEL, "%s: neither model.safetensors nor an index of shards",
                        m->m.folder);
    }
    m->files = tkc_arena_array(&m->arena, 1, sizeof *m->files, err);
    if (!m->files || !tke_tensor_file_open(&m->files[0], single, err))
        return false;
    m->n_files = 1;
    return true;
}

/* ---- tensors ---- */

/* Problems are collected, so that one message lists all. */
typedef struct finder {
    opened *m;
    char list[300];
    size_t used, n_bad;
    tinkc_error *err;
} finder;

static void complain(finder *f, const char *name, const char *fault)
{
    f->n_bad++;
    if (f->used < sizeof f->list - 1) {
        int n = snprintf(f->list + f->used, sizeof f->list - f->used, "%s%s (%s)",
                         f->used ? ", " : "", name, fault);
        f->used = n < 0 ? sizeof f->list : f->used + (size_t)n;
    }
}

static const tke_file_tensor *find(finder *f, const char *name, int32_t n_dims, size_t d0,
                                   size_t d1)
{
    opened *m = f->m;
    const tke_tensor_file *file =
        m->file_of.n_live ? tkc_map_get(&m->file_of, tkc_str(name)) : &m->files[0];
    const tke_file_tensor *t = file ? tke_tensor_file_find(file, name) : NULL;
    if (!t) {
        complain(f, name, "missing");
        return NULL;
    }
    if (!tke_tensor_is(t, n_dims, (int64_t)d0, (int64_t)d1)) {
        complain(f, name, "wrong shape");
        return NULL;
    }
    if (t->dtype > TKE_FILE_F16) {
        complain(f, name, "neither BF16, F16 nor F32");
        return NULL;
    }
    m->m.n_bytes += t->n_bytes;
    assert(tke_tensor_is_real(t) && t->data);
    return t;
}

static const tke_real *find_vector(finder *f, const char *name, size_t n)
{
    const tke_file_tensor *t = find(f, name, 1, n, 0);
    if (!t)
        return NULL;
    tke_real *out = tkc_arena_array(&f->m->arena, n, sizeof *out, f->err);
    if (out)
        tke_widen((tke_dtype)t->dtype, t->data, n, out);
    return out;
}

static void find_weight(finder *f, const char *path, size_t out, size_t in, bool bias,
                        tke_weight *w)
{
    char name[200];
    assert(out > 0 && in > 0 && strlen(path) + sizeof ".weight" <= sizeof name);
    snprintf(name, sizeof name, "%s.weight", path);
    const tke_file_tensor *t = find(f, name, 2, out, in);
    *w = (tke_weight){ .out = out, .in = in };
    w->path = tkc_arena_cstr(&f->m->arena, path, f->err);
    if (t)
        w->m = (tke_matrix){ t->data, (int64_t)in, (tke_dtype)t->dtype };
    if (bias) {
        snprintf(name, sizeof name, "%s.bias", path);
        w->bias = find_vector(f, name, out);
    }
}

typedef struct module { /* one matrix of a layer, by its name */
    const char *name;
    size_t out, in;
    bool bias;
} module;

/* The next group of a layer: matrices with one input, covered by one train flag. */
static const tke_group *add_group(finder *f, size_t i, uint32_t train, const module *list, size_t n)
{
    char path[160];
    tke_layer *layer = &f->m->m.layers[i];
    tke_group *g = &layer->groups[layer->n_groups];
    assert(layer->n_groups < TKE_LAYER_GROUPS && n <= TKE_GROUP_MAX);
    *g = (tke_group){ .index = f->m->m.n_groups, .slot = layer->n_groups, .train = train, .n = n };
    for (size_t k = 0; k < n; k++) {
        snprintf(path, sizeof path, "model.layers.%zu.%s", i, list[k].name);
        find_weight(f, path, list[k].out, list[k].in, list[k].bias, &g->w[k]);
    }
    layer->n_groups++;
    f->m->m.groups[f->m->m.n_groups++] = g;
    return g;
}

static const tke_real *layer_vector(finder *f, size_t i, const char *name, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "model.layers.%zu.%s.weight", i, name);
    return find_vector(f, path, n);
}

static void find_layer(finder *f, size_t i)
{
    const tke_config *c = &f->m->m.config;
    tke_layer *layer = &f->m->m.layers[i];
    size_t h = c->hidden, qd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    const module qkv[] = { { "self_attn.q_proj", qd, h, c->bias_qkv },
                           { "self_attn.k_proj", kd, h, c->bias_qkv },
                           { "self_attn.v_proj", kd, h, c->bias_qkv } };
    const module o[] = { { "self_attn.o_proj", h, qd, c->bias_o } };
    const module gate_up[] = { { "mlp.gate_proj", c->inner, h, c->bias_mlp },
                               { "mlp.up_proj", c->inner, h, c->bias_mlp } };
    const module down[] = { { "mlp.down_proj", h, c->inner, c->bias_mlp } };
    layer->groups = tkc_arena_array(&f->m->arena, TKE_LAYER_GROUPS, sizeof *layer->groups, f->err);
    if (!layer->groups)
        return;
    layer->qkv = add_group(f, i, TKE_TRAIN_ATTN, qkv, 3);
    layer->o = add_group(f, i, TKE_TRAIN_ATTN, o, 1);
    layer->gate_up = add_group(f, i, TKE_TRAIN_MLP, gate_up, 2);
    layer->down = add_group(f, i, TKE_TRAIN_MLP, down, 1);
    layer->norm_in = layer_vector(f, i, "input_layernorm", h);
    layer->norm_post = layer_vector(f, i, "post_attention_layernorm", h);
    if (c->qk_norm) {
        layer->q_norm = layer_vector(f, i, "self_attn.q_norm", c->head_dim);
        layer->k_norm = layer_vector(f, i, "self_attn.k_norm", c->head_dim);
    }
    if (c->window && (c->layer_slides ? c->layer_slides[i] : i >= c->first_window_layer))
        layer->window = c->window;
}

static void find_head(finder *f)
{
    tke_model *m = &f->m->m;
    m->head = (tke_group){ .index = m->n_groups, .train = TKE_TRAIN_UNEMBED, .n = 1 };
    if (m->config.tied)
        m->head.w[0] = m->embed;
    else
        find_weight(f, "lm_head", m->config.vocab, m->config.hidden, false, &m->head.w[0]);
    m->head.w[0].path = "lm_head";
    m->groups[m->n_groups++] = &m->head;
}

static bool find_tensors(opened *o, tinkc_error *err)
{
    tke_model *m = &o->m;
    const tke_config *c = &m->config;
    finder f = { .m = o, .err = err };
    m->layers = tkc_arena_array(&o->arena, c->n_layers, sizeof *m->layers, err);
    m->groups =
        tkc_arena_array(&o->arena, c->n_layers * TKE_LAYER_GROUPS + 1, sizeof *m->groups, err);
    if (!m->layers || !m->groups)
        return false;
    find_weight(&f, "model.embed_tokens", c->vocab, c->hidden, false, &m->embed);
    for (size_t i = 0; i < c->n_layers && !tkc_failed(err) && f.n_bad < 1000; i++)
        find_layer(&f, i);
    m->norm = find_vector(&f, "model.norm.weight", c->hidden);
    find_head(&f);
    if (f.n_bad)
        return tkc_fail(err, TINKC_E_MODEL, "%s: %zu tensors cannot be used: %s", m->folder,
                        f.n_bad, f.list);
    return !tkc_failed(err);
}

static bool make_rope(opened *o, tinkc_error *err)
{
    double *f = tkc_arena_array(&o->arena, o->m.config.head_dim / 2, sizeof *f, err);
    if (f)
        tke_rope_frequencies(&o->m.config, f, &o->m.rope_scale);
    o->m.rope_frequency = f;
    return f != NULL;
}

/* ---- fingerprint ---- */

static void add_file(tkc_digest *h, opened *m, const char *name, tinkc_error *err)
{
    char *path = tkc_path_join(&m->arena, m->m.folder, name, err);
    if (!path || !tkc_is_file(path))
        return;
    tkc_mapping map = { 0 };
    if (tkc_map_file(path, &map, err)) {
        tkc_digest_add(h, map.data, map.len);
        tkc_unmap_file(&map);
    }
}

/* The headers of the tensor files and 64 KiB at each end of their data: enough to tell fine-tunes
 * of one architecture apart without reading gigabytes. */
static bool make_fingerprint(opened *m, tinkc_error *err)
{
    enum { END = 64 << 10 };
    tkc_digest h;
    tkc_sha256_init(&h);
    add_file(&h, m, "config.json", err);
    add_file(&h, m, "model.safetensors.index.json", err);
    for (size_t i = 0; i < m->n_files; i++) {
        const tkc_mapping *map = &m->files[i].mapping;
        size_t head = map->len < END ? map->len : END;
        assert(map->data && head > 0); /* each was read */
        tkc_digest_add(&h, map->data, head);
        tkc_digest_add(&h, map->data + map->len - head, head);
    }
    tkc_digest_hex(&h, m->m.fingerprint);
    return !tkc_failed(err);
}

/* ---- life ---- */

static void model_free(opened *m)
{
    for (size_t i = 0; i < m->n_files; i++)
        tke_tensor_file_close(&m->files[i]);
    tkc_map_free(&m->file_of);
    tkc_arena_free(&m->arena);
    tkc_release(NULL, m, sizeof *m);
}

tke_model *tke_model_open(const char *folder, tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    if (!tkc_is_dir(folder)) {
        tkc_fail(err, TINKC_E_MODEL, "%s: not a folder", folder);
        return NULL;
    }
    opened *m = tkc_zalloc(NULL, sizeof *m, err);
    if (!m)
        return NULL;
    tkc_ref_init(&m->refs);
    tkc_arena_init(&m->arena, NULL, 0);
    tkc_map_init(&m->file_of, NULL);
    m->m.folder = tkc_arena_cstr(&m->arena, folder, err);
    if (m->m.folder && tke_config_load(&m->m.config, m->m.folder, &m->arena, err) &&
        open_files(m, err) && find_tensors(m, err) && make_rope(m, err) && make_fingerprint(m, err))
        return &m->m;
    model_free(m);
    return NULL;
}

tke_model *tke_model_keep(const tke_model *m)
{
    opened *mine = (opened *)(uintptr_t)m;
    tkc_ref_keep(&mine->refs);
    return &mine->m;
}

void tke_model_drop(tke_model *m)
{
    opened *mine = (opened *)m;
    if (mine && tkc_ref_drop(&mine->refs))
        model_free(mine);
}

bool tke_model_is_eos(const tke_model *m, int32_t token)
{
    for (size_t i = 0; i < m->config.n_eos; i++)
        if (m->config.eos[i] == token)
            return true;
    return false;
}
