/* adapter_names.h - the forms that adapters have in files: the hosted service's and PEFT's, to and from
 * ours.
 *
 * Ours: base_model.model.PATH.lora_A.weight, where PATH is a matrix's path in the model
 * (tke_weight.path), experts in three dimensions with one shared factor. Others differ in prefixes,
 * in experts as two matrices each, and in matrices that are parts of one stacked matrix. Private to
 * engine/train.
 */
#ifndef TKE_TRAIN_ADAPTER_NAMES_H
#define TKE_TRAIN_ADAPTER_NAMES_H

#include "train/adapter.h"

/* Rewrites the list of an opened file into our form; what it makes lies in the file's arena. Without
 * a model (NULL) stacked matrices are UNSUPPORTED. `path` names the file in messages. */
bool tke_names_read(tke_tensor_file *, const tke_model *, size_t rank, const char *path,
                    tinkc_error *err);

/* A stacked matrix has several times the rank: how often, or 0 for other names. */
size_t tke_stacked_parts(tinkc_str leaf);

typedef struct tke_piece { /* rows of a stacked matrix: a part that has an adapter */
    char path[200];
    size_t rows;
} tke_piece;
enum { TKE_MAX_PIECES = 3 };
/* The parts of a stacked matrix of the model, in order from its first row; 0 = it is not one. */
size_t tke_names_pieces(const tke_model *, const char *path, tke_piece out[TKE_MAX_PIECES]);

typedef struct tke_spelling {
    int32_t names;          /* TKE_NAMES_* */
    const tke_model *model; /* NULL = unknown: then UNSUPPORTED where names depend on it */
    const char *stacked;    /* out: the stacked matrix in the list, or NULL */
} tke_spelling;

/* A list in our form in another one; data is shared where it can be. NULL = err. */
tke_file_tensor *tke_names_write(const tke_file_tensor *, size_t n, tke_spelling *, size_t *n_out,
                                 tkc_arena *, tinkc_error *err);

/* "q_proj" of "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". */
tinkc_str tke_names_leaf(const char *name);

#endif
