/* folder_quant.h - weights that a model folder stores packed: NF4 of bitsandbytes, FP8 in squares of 128. Their
 * parts are tensors beside the weight. */
#ifndef TKE_MODEL_FOLDER_QUANT_H
#define TKE_MODEL_FOLDER_QUANT_H

#include "model/safetensors.h"

typedef struct tke_folder_quant {
    const tke_file_tensor *(*find)(void *files, const char *name); /* NULL = missing */
    void *files;
    tkc_arena *arena;
    const char *folder; /* for messages */
    tinkc_error *err;
} tke_folder_quant;

/* The weight that a stored tensor stands for: itself unless it is packed. NULL: err says what is
 * wrong. */
const tke_file_tensor *tke_folder_weight(const tke_folder_quant *, const tke_file_tensor *stored);

#endif
