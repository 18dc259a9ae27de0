/* adapter_export.h - shared by all export formats: the job, and merging row by row.
 * Private to engine/train. */
#ifndef TKE_TRAIN_ADAPTER_EXPORT_H
#define TKE_TRAIN_ADAPTER_EXPORT_H

#include "tinkc/engine.h"
#include "train/adapter.h"

typedef struct tke_export {
    const tinkc_adapter_options *o;
    tinkc_progress_fn *progress;
    void *user;
    tkc_arena arena;
    tke_tensor_file adapter; /* empty = none */
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

/* lora_A or lora_B of a base tensor ("model.layers.0.self_attn.q_proj.weight"), or of the output
 * projection under any of its names; NULL = none. */
const tke_file_tensor *tke_export_part(tke_export *, const char *base_name, const char *ab);
const tke_file_tensor *tke_export_head(tke_export *, const char *ab);

/* Adds scale B A to the rows of one matrix, in fp32. */
typedef struct tke_merge {
    const tke_file_tensor *b;
    float *a; /* [rank, cols], and room for a row of B */
    size_t rank, cols;
    float scale;
} tke_merge;
bool tke_merge_begin(tke_merge *, tke_export *, const char *name, size_t rows, size_t cols,
                     const tke_file_tensor *a, const tke_file_tensor *b);
void tke_merge_row(const tke_merge *, size_t i, float *row);
void tke_merge_end(tke_merge *);

/* adapter_gguf.c: the base model, merged if there is an adapter, as one GGUF file. */
bool tke_export_gguf(tke_export *);

#endif
