/* model_pack.h - packs the matrices of a model's layers: as a model is opened, or into files. */
#ifndef TKE_MODEL_MODEL_PACK_H
#define TKE_MODEL_MODEL_PACK_H

#include "math/threads.h"
#include "model/model.h"

struct tke_format;

typedef struct tke_pack_item { /* a matrix of a layer */
    tke_matrix *m;
    size_t rows;
    const char *path;
    size_t bytes, n_factors; /* of codes; of what NF4 keeps apart */
} tke_pack_item;

typedef struct tke_packer {
    const struct tke_format *format;
    tke_threads *threads;
    tke_pack_item *items; /* in the order of the model */
    size_t n, cap;
    tke_progress *progress; /* NULL = none */
    void *user;
    const char *what; /* for messages */
    tinkc_error *err;
} tke_packer;

/* Lists what can be packed; UNSUPPORTED if nothing can, or if weights are packed
 * already. Close it in any case. */
bool tke_packer_open(tke_packer *, tke_model *, const struct tke_format *, tinkc_error *err);
void tke_packer_close(tke_packer *);
/* On all threads. MODEL: a number does not fit. */
bool tke_pack_matrix(const tke_packer *, const tke_pack_item *, uint8_t *codes, float *factors);
/* The same for FP8 in squares; factors: [rows / 128][columns / 128]. */
bool tke_pack_squares(const tke_packer *, const tke_pack_item *, uint8_t *codes, float *factors);
/* The model uses these numbers from now on. */
void tke_pack_replace(tke_model *, const tke_packer *, const tke_pack_item *, const uint8_t *codes,
                      const float *factors);

typedef struct tke_pack_options {
    int32_t bits;
    tke_progress *progress; /* NULL = none */
    void *user;
} tke_pack_options;

/* Packs all of a model that is being opened and has its pack_key. *cache is the file that the packed
 * matrices lie in, and must live as long as the model; it is closed if they lie in the arena. */
bool tke_model_pack(tke_model *, const tke_pack_options *, tke_tensor_file *cache, tkc_arena *,
                    tinkc_error *err);

#endif
