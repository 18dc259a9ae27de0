/* adapter_export.h - shared by all export formats: the job, and merging row by row.
 * Private to engine/train. */
#ifndef TKE_TRAIN_ADAPTER_EXPORT_H
#define TKE_TRAIN_ADAPTER_EXPORT_H

#include "base/buf.h"
#include "tinkc/engine.h"
#include "train/adapter.h"

typedef struct tke_export {
    const tinkc_adapter_options *o;
    tinkc_progress_fn *progress;
    void *user;
    tkc_arena arena;
    tke_model *base;         /* NULL = not given */
    tke_tensor_file adapter; /* in our names (adapter_names.h); empty = none */
    tke_adapter_spec spec;
    int64_t done, total;
    int64_t written; /* bytes of tensors */
    tinkc_error *err;
} tke_export;

/* A name in a folder; in the job's arena. */
static inline char *tke_export_path(tke_export *j, const char *folder, const char *name)
{
    return tkc_path_join(&j->arena, folder, name, j->err);
}
/* Counts and reports progress; false if cancelled. */
bool tke_export_advance(tke_export *, size_t bytes);

/* A text of a folder; nothing if there is an error. */
tinkc_bytes tke_export_read(tke_export *, const char *folder, const char *name);
/* Writes JSON to the target, unless there is an error, and frees it. */
bool tke_export_write(tke_export *, const char *name, tkc_buf *text);

/* ---- adapter_merge.c ---- */

/* lora_A or lora_B of a matrix of the model, by its path, or of the output projection; NULL = none. */
const tke_file_tensor *tke_export_part(tke_export *, const char *path, const char *ab);
const tke_file_tensor *tke_export_head(tke_export *, const char *ab);

/* Adds scale B A to the rows of one matrix, in fp32. */
typedef struct tke_merge {
    const tke_file_tensor *b;
    size_t b_first; /* B's first element: of an expert */
    float *a;       /* [rank, cols], and room for a row of B */
    size_t rank, cols;
    float scale;
} tke_merge;
/* expert: which of a factor's copies, where it has some. */
bool tke_merge_begin(tke_merge *, tke_export *, const char *name, size_t rows, size_t cols,
                     const tke_file_tensor *a, const tke_file_tensor *b, size_t expert);
void tke_merge_row(const tke_merge *, size_t i, float *row);
void tke_merge_end(tke_merge *);

/* Copies a model's small files, config.json apart. */
bool tke_export_companions(tke_export *);
/* The base model with the adapter merged, as a model folder. */
bool tke_export_merged(tke_export *);

/* adapter_gguf.c: the base model, merged if there is an adapter, as one GGUF file. */
bool tke_export_gguf(tke_export *);

#endif
