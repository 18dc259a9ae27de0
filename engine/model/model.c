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

struct tke_model {
    tkc_refs refs;
    tkc_arena arena; /* names, tables, small vectors */
    tke_config config;
    const char *folder;
    tke_tensor_file *files;
    size_t n_files;
    tkc_map file_of; /* tensor name -> tke_tensor_file; empty without an index */
    tke_layer *layers;
    tke_weight embed, head;
    const tke_real *norm;
    size_t n_bytes;
    char fingerprint[TKC_SHA256_HEX];
};

const char *tke_module_path(int module)
{
    static const char *const paths[TKE_MODULES] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
    };
    return module >= 0 && module < TKE_MODULES ? paths[module] : "";
}

/* ---- files ---- */

/* A shard's name comes from outside: it must be a plain name in the same folder. */
static bool plain_name(tinkc_str name)
{
    return name.len > 0 && name.len < 256 && name.data[0] != '.' &&
           !memchr(name.data, '/', name.len) && !memchr(name.data, 0, name.len);
}

static tke_tensor_file *open_shard(tke_model *m, tkc_map *by_name, tinkc_str name,
                                   const char *index, tinkc_error *err)
{
    tke_tensor_file *file = tkc_map_get(by_name, name);
    if (file)
        return file;
    if (!plain_name(name)) {
        tkc_fail(err, TINKC_E_MODEL, "%s: '%.*s' is no file name", index,
                 (int)(name.len < 60 ? name.len : 60), name.data);
        return NULL;
    }
    if (m->n_files == MAX_FILES) {
        tkc_fail(err, TINKC_E_MODEL, "%s: too many files", index);
        return NULL;
    }
    char *copy = tkc_arena_str(&m->arena, name, err);
    char *path = copy ? tkc_path_join(&m->arena, m->folder, copy, err) : NULL;
    if (!path)
        return NULL;
    if (!tkc_is_file(path)) {
        tkc_fail(err, TINKC_E_MODEL, "%s: there is no such file, but the index names it", path);
        return NULL;
    }
    assert(m->files);
    file = &m->files[m->n_files];
    if (!tke_tensor_file_open(file, path, err))
        return NULL;
    m->n_files++;
    return tkc_map_set(by_name, name, file, NULL, err) ? file : NULL;
}

static bool read_weight_map(tke_model *m, tkc_json *j, const char *index, tinkc_error *err)
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

static bool open_index(tke_model *m, const char *index, tinkc_error *err)
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

static bool open_files(tke_model *m, tinkc_error *err)
{
    char *single = tkc_path_join(&m->arena, m->folder, "model.safetensors", err);
    char *index = tkc_path_join(&m->arena, m->folder, "model.safetensors.index.json", err);
    if (!single || !index)
        return false;
    if (!tkc_is_file(single)) {
        if (tkc_is_file(index))
            return open_index(m, index, err);
        return tkc_fail(err, TINKC_E_MODEL, "%s: neither model.safetensors nor an index of shards",
                        m->folder);
    }
    m->files = tkc_arena_array(&m->arena, 1, sizeof *m->files, err);
    if (!m->files || !tke_tensor_file_open(&m->files[0], single, err))
        return false;
    m->n_files = 1;
    return true;
}

/* ---- tensors ---- */

/* What is missing or wrong is collected, so that one message tells all. */
typedef struct finder {
    tke_model *m;
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
    tke_model *m = f->m;
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
    m->n_bytes += t->n_bytes;
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
    if (t)
        w->m = (tke_matrix){ t->data, (int64_t)in, (tke_dtype)t->dtype };
    if (bias) {
        snprintf(name, sizeof name, "%s.bias", path);
        w->bias = find_vector(f, name, out);
    }
}

static void find_layer(finder *f, size_t i)
{
    const tke_config *c = &f->m->config;
    tke_layer *layer = &f->m->layers[i];
    size_t qd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    size_t out[TKE_MODULES] = { qd, kd, kd, c->hidden, c->inner, c->inner, c->hidden };
    size_t in[TKE_MODULES] = {
        c->hidden, c->hidden, c->hidden, qd, c->hidden, c->hidden, c->inner
    };
    char name[160];
    for (int k = 0; k < TKE_MODULES; k++) {
        bool bias = k == TKE_O ? c->bias_o : k < TKE_O ? c->bias_qkv : c->bias_mlp;
        snprintf(name, sizeof name, "model.layers.%zu.%s", i, tke_module_path(k));
        find_weight(f, name, out[k], in[k], bias, &layer->module[k]);
    }
    snprintf(name, sizeof name, "model.layers.%zu.input_layernorm.weight", i);
    layer->norm_in = find_vector(f, name, c->hidden);
    snprintf(name, sizeof name, "model.layers.%zu.post_attention_layernorm.weight", i);
    layer->norm_post = find_vector(f, name, c->hidden);
    if (c->qk_norm) {
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.q_norm.weight", i);
        layer->q_norm = find_vector(f, name, c->head_dim);
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.k_norm.weight", i);
        layer->k_norm = find_vector(f, name, c->head_dim);
    }
    if (c->window && (c->layer_slides ? c->layer_slides[i] : i >= c->first_window_layer))
        layer->window = c->window;
}

static bool find_tensors(tke_model *m, tinkc_error *err)
{
    const tke_config *c = &m->config;
    finder f = { .m = m, .err = err };
    m->layers = tkc_arena_array(&m->arena, c->n_layers, sizeof *m->layers, err);
    if (!m->layers)
        return false;
    find_weight(&f, "model.embed_tokens", c->vocab, c->hidden, false, &m->embed);
    for (size_t i = 0; i < c->n_layers && !tkc_failed(err) && f.n_bad < 1000; i++)
        find_layer(&f, i);
    m->norm = find_vector(&f, "model.norm.weight", c->hidden);
    if (c->tied)
        m->head = m->embed;
    else
        find_weight(&f, "lm_head", c->vocab, c->hidden, false, &m->head);
    if (f.n_bad)
        return tkc_fail(err, TINKC_E_MODEL, "%s: %zu tensors cannot be used: %s", m->folder,
                        f.n_bad, f.list);
    return !tkc_failed(err);
}

/* ---- fingerprint ---- */

static void add_file(tkc_digest *h, tke_model *m, const char *name, tinkc_error *err)
{
    char *path = tkc_path_join(&m->arena, m->folder, name, err);
    if (!path || !tkc_is_file(path))
        return;
    tkc_mapping map = { 0 };
    if (tkc_map_file(path, &map, err)) {
        tkc_digest_add(h, map.data, map.len);
        tkc_unmap_file(&map);
    }
}

/* The heads of the tensor files and 64 KiB of each end of their data: enough to tell fine-tunes of
 * one architecture apart without reading gigabytes. */
static bool make_fingerprint(tke_model *m, tinkc_error *err)
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
    tkc_digest_hex(&h, m->fingerprint);
    return !tkc_failed(err);
}

/* ---- life ---- */

static void model_free(tke_model *m)
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
    tke_model *m = tkc_zalloc(NULL, sizeof *m, err);
    if (!m)
        return NULL;
    tkc_ref_init(&m->refs);
    tkc_arena_init(&m->arena, NULL, 0);
    tkc_map_init(&m->file_of, NULL);
    m->folder = tkc_arena_cstr(&m->arena, folder, err);
    if (m->folder && tke_config_load(&m->config, m->folder, &m->arena, err) && open_files(m, err) &&
        find_tensors(m, err) && make_fingerprint(m, err))
        return m;
    model_free(m);
    return NULL;
}

tke_model *tke_model_keep(const tke_model *m)
{
    tke_model *mine = (tke_model *)(uintptr_t)m;
    tkc_ref_keep(&mine->refs);
    return mine;
}

void tke_model_drop(tke_model *m)
{
    if (m && tkc_ref_drop(&m->refs))
        model_free(m);
}

/* ---- getters ---- */

const tke_config *tke_model_config(const tke_model *m)
{
    return &m->config;
}

const tke_layer *tke_model_layer(const tke_model *m, size_t layer)
{
    assert(layer < m->config.n_layers);
    return &m->layers[layer];
}

const tke_weight *tke_model_embed(const tke_model *m)
{
    return &m->embed;
}

const tke_weight *tke_model_head(const tke_model *m)
{
    return &m->head;
}

const tke_real *tke_model_norm(const tke_model *m)
{
    return m->norm;
}

const char *tke_model_folder(const tke_model *m)
{
    return m->folder;
}

size_t tke_model_bytes(const tke_model *m)
{
    return m->n_bytes;
}

const char *tke_model_fingerprint(const tke_model *m)
{
    return m->fingerprint;
}

bool tke_model_is_eos(const tke_model *m, int32_t token)
{
    for (size_t i = 0; i < m->config.n_eos; i++)
        if (m->config.eos[i] == token)
            return true;
    return false;
}
