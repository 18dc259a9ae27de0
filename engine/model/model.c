/* model.c - opens a model folder or GGUF file: which file holds which tensor, the fingerprint, its life.
 *
 * May touch: the folder's files. Must not: change anything after tke_model_open has returned.
 */
#include "model/model.h"

#include <assert.h>
#include <string.h>
#include "base/digest.h"
#include "base/json_read.h"
#include "base/str.h"
#include "base/thread.h"
#include "model/folder_quant.h"
#include "model/gguf_model.h"
#include "model/model_build.h"
#include "model/model_pack.h"

enum { INDEX_MAX = 64 << 20, MAX_FILES = 4096 };

typedef struct opened { /* what a tke_model stands in */
    tke_model m;        /* first */
    tkc_refs refs;
    tkc_arena arena; /* names, tables, small vectors */
    tke_tensor_file *files;
    size_t n_files;
    tkc_map file_of;     /* tensor name -> tke_tensor_file; empty without an index */
    tke_gguf_files gguf; /* instead of files */
    tke_pack_options pack;  /* bits that layers are packed to; 0 = as stored */
    tke_tensor_file packed; /* what it is packed to, or empty */
    tinkc_error *err;    /* while it is opened */
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

static const tke_file_tensor *find_stored(void *files, const char *name)
{
    const opened *m = files;
    const tke_tensor_file *file =
        m->file_of.n_live ? tkc_map_get(&m->file_of, tkc_str(name)) : &m->files[0];
    return file ? tke_tensor_file_find(file, name) : NULL;
}

/* A weight may be stored in several tensors. */
static const tke_file_tensor *find_tensor(void *files, const char *name)
{
    opened *m = files;
    const tke_file_tensor *stored = find_stored(files, name);
    tke_folder_quant q = { .find = find_stored,
                           .files = files,
                           .arena = &m->arena,
                           .folder = m->m.folder,
                           .err = m->err };
    return stored ? tke_folder_weight(&q, stored) : NULL;
}

static bool find_tensors(opened *o, tinkc_error *err)
{
    o->err = err;
    tke_builder b = { .config = &o->m.config,
                      .model = &o->m,
                      .find = o->gguf.n_parts ? tke_gguf_files_find : find_tensor,
                      .files = o->gguf.n_parts ? (void *)&o->gguf : o,
                      .arena = &o->arena,
                      .err = err };
    return tke_build_model(&b) &&
           (!o->pack.bits || tke_model_pack(&o->m, &o->pack, &o->packed, &o->arena, err));
}

static bool make_rope(opened *o, tinkc_error *err)
{
    double *f = tkc_arena_array(&o->arena, o->m.config.rotary / 2 + 1, sizeof *f, err);
    if (f)
        tke_rope_frequencies(&o->m.config, f, &o->m.rope_scale);
    o->m.rope_frequency = f;
    return f &&
           (!o->gguf.n_parts || tke_gguf_frequencies(&o->gguf, f, o->m.config.rotary / 2, err));
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

enum { END = 64 << 10 };

static void add_ends(tkc_digest *h, const tkc_mapping *map)
{
    size_t head = map->len < END ? map->len : END;
    assert(map->data && head > 0); /* each was read */
    tkc_digest_add(h, map->data, head);
    tkc_digest_add(h, map->data + map->len - head, head);
}

enum { PACKING = 1 /* raise it when packing gives other numbers */, STEP = 1 << 20, SAMPLE = 512 };

static void add_samples(tkc_digest *h, const tkc_mapping *map)
{
    tkc_digest_add(h, &map->changed_ns, sizeof map->changed_ns);
    tkc_digest_add(h, &map->len, sizeof map->len);
    for (size_t at = 0; at < map->len; at += STEP) {
        size_t left = map->len - at;
        tkc_digest_add(h, map->data + at, left < SAMPLE ? left : SAMPLE);
    }
}

/* A fine-tune that changes a few layers may have its base's fingerprint, and a file that is written again in
 * its place, too: so also what lies in between, and when the files were written. */
static void make_pack_key(opened *m)
{
    tkc_digest h;
    int32_t packing = PACKING;
    tkc_sha256_init(&h);
    tkc_digest_add(&h, m->m.fingerprint, sizeof m->m.fingerprint); /* covers the bits */
    tkc_digest_add(&h, &packing, sizeof packing);
    for (size_t i = 0; i < m->n_files; i++)
        add_samples(&h, &m->files[i].mapping);
    for (size_t i = 0; i < m->gguf.n_parts; i++)
        add_samples(&h, &m->gguf.parts[i].map);
    tkc_digest_hex(&h, m->m.pack_key);
}

/* The headers of the tensor files and 64 KiB at each end of their data: enough to tell fine-tunes
 * of one architecture apart without reading gigabytes. */
static bool make_fingerprint(opened *m, tinkc_error *err)
{
    tkc_digest h;
    tkc_sha256_init(&h);
    add_file(&h, m, "config.json", err);
    add_file(&h, m, "model.safetensors.index.json", err);
    for (size_t i = 0; i < m->n_files; i++)
        add_ends(&h, &m->files[i].mapping);
    for (size_t i = 0; i < m->gguf.n_parts; i++)
        add_ends(&h, &m->gguf.parts[i].map);
    if (m->pack.bits)
        tkc_digest_add(&h, &m->pack.bits, sizeof m->pack.bits);
    tkc_digest_hex(&h, m->m.fingerprint);
    if (m->pack.bits)
        make_pack_key(m);
    return !tkc_failed(err);
}

/* ---- life ---- */

static void model_free(opened *m)
{
    for (size_t i = 0; i < m->n_files; i++)
        tke_tensor_file_close(&m->files[i]);
    tke_gguf_files_close(&m->gguf);
    tke_tensor_file_close(&m->packed);
    tkc_map_free(&m->file_of);
    tkc_arena_free(&m->arena);
    tkc_release(NULL, m, sizeof *m);
}

/* Configuration and files, of a folder or of a GGUF file. */
static bool open_source(opened *m, tinkc_error *err)
{
    if (tkc_is_dir(m->m.folder))
        return tke_config_load(&m->m.config, m->m.folder, &m->arena, err) && open_files(m, err);
    return tke_gguf_files_open(&m->gguf, m->m.folder, &m->arena, err) &&
           tke_gguf_config(&m->gguf, &m->m.config, err);
}

int32_t tke_model_bits(tinkc_str *name)
{
    int32_t bits = tkc_ends_with(*name, "#4bit") ? 4 : tkc_ends_with(*name, "#8bit") ? 8 : 0;
    name->len -= bits ? sizeof "#4bit" - 1 : 0;
    return bits;
}

/* Where it is, and whether there is anything like a model. */
static bool find_source(opened *m, const char *folder, tinkc_error *err)
{
    tinkc_str path = tkc_str(folder);
    m->pack.bits = tkc_is_dir(folder) ? 0 : tke_model_bits(&path); /* a folder of that very name wins */
    m->m.packed_bits = m->pack.bits;
    m->m.folder = tkc_arena_str(&m->arena, path, err);
    if (!m->m.folder)
        return false;
    return tkc_is_dir(m->m.folder) || (tkc_is_file(m->m.folder) && tkc_gguf_named(m->m.folder)) ||
           tkc_fail(err, TINKC_E_MODEL, "%s: not a folder", m->m.folder);
}

tke_model *tke_model_open(const char *folder, tinkc_error *err)
{
    return tke_model_open_watched(folder, NULL, NULL, err);
}

tke_model *tke_model_open_watched(const char *folder, tke_progress *progress, void *user,
                                  tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    opened *m = tkc_zalloc(NULL, sizeof *m, err);
    if (!m)
        return NULL;
    tkc_ref_init(&m->refs);
    tkc_arena_init(&m->arena, NULL, 0);
    tkc_map_init(&m->file_of, NULL);
    m->pack = (tke_pack_options){ .progress = progress, .user = user };
    if (find_source(m, folder, err) && open_source(m, err) && make_fingerprint(m, err) &&
        find_tensors(m, err) && make_rope(m, err)) {
        m->gguf.err = m->err = NULL;
        return &m->m;
    }
    model_free(m);
    return NULL;
}

tke_model *tke_model_keep(const tke_model *m)
{
    opened *mine = (opened *)(uintptr_t)m;
    tkc_ref_keep(&mine->refs);
    return &mine->m;
}

size_t tke_model_cache_numbers(const tke_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->config.n_layers; i++)
        if (m->layers[i].mixer == TKE_MIX_ATTENTION)
            n += 2 * m->layers[i].attn->n_kv_heads * m->layers[i].attn->head_dim;
    return n;
}

size_t tke_model_files(const tke_model *m, const tke_tensor_file **files)
{
    const opened *mine = (const opened *)m;
    *files = mine->files;
    return mine->n_files;
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
