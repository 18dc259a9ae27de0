/* gguf_model.h - a GGUF file (or several parts of one) as a model: its configuration, and its tensors
 * by the names that model folders use. */
#ifndef TKE_MODEL_GGUF_MODEL_H
#define TKE_MODEL_GGUF_MODEL_H

#include "base/file.h"
#include "base/gguf_read.h"
#include "model/model_config.h"
#include "model/safetensors.h"

typedef struct tke_gguf_part {
    tkc_mapping map;
    tkc_gguf g;
} tke_gguf_part;

typedef struct tke_gguf_files {
    tke_gguf_part *parts; /* the first has the keys */
    size_t n_parts;
    const tke_config *config; /* for the order of rows; set by tke_gguf_config */
    tkc_arena *arena;         /* of the model */
    tinkc_error *err;         /* of opening it */
} tke_gguf_files;

/* Reads the headers of all parts and checks every tensor: type, shape, place. `path` names any
 * part. Zeroed, it may be closed. Errors: MODEL, UNSUPPORTED, FILE; they name the key or tensor. */
bool tke_gguf_files_open(tke_gguf_files *, const char *path, tkc_arena *, tinkc_error *err);
/* The same for one file's bytes, which the caller keeps. */
bool tke_gguf_files_read(tke_gguf_files *, tinkc_bytes, const char *what, tkc_arena *,
                         tinkc_error *err);
void tke_gguf_files_close(tke_gguf_files *);

bool tke_gguf_config(tke_gguf_files *, tke_config *, tinkc_error *err);

/* A tensor by its name in model folders ("model.layers.0.mlp.up_proj.weight"); NULL = missing. */
const tke_file_tensor *tke_gguf_files_find(void *files, const char *name);

/* Divides the frequencies by the factors that the file has for them, if any. */
bool tke_gguf_frequencies(const tke_gguf_files *, double *frequencies, size_t n, tinkc_error *err);

#endif
