/* adapter_state.h - the parts of an adapter. Private to engine/train. */
#ifndef TKE_TRAIN_ADAPTER_STATE_H
#define TKE_TRAIN_ADAPTER_STATE_H

#include "base/thread.h"
#include "train/adapter.h"

struct tke_adapter {
    tke_device *device;
    tke_model *model;
    tke_adapter_spec spec;
    tke_lora_layout *layout;
    tke_lora lora; /* the view of weights that passes read */
    tke_block *weights, *grads, *m, *v;
    tke_block *work; /* a copy of grads that a pass adds to; made on first use */
    int64_t step;    /* Adam's t */
    int64_t n_fwdbwd, n_tokens, n_failed; /* since the last step */
};

struct tke_snapshot {
    tkc_refs refs;
    uint64_t id;
    tke_device *device;
    tke_model *model;
    tke_adapter_spec spec;
    tke_lora_layout *layout;
    tke_lora lora;
    tke_block *weights;
};

struct tke_state {
    tke_model *model; /* the layout names its matrices */
    tke_adapter_spec spec;
    tke_lora_layout *layout;
    tke_real *weights, *grads, *m, *v; /* in host memory */
    int64_t step, n_fwdbwd, n_tokens;
};

/* The places of an adapter's tensors in a block. */
tke_lora_layout *tke_layout_new(const tke_model *, const tke_adapter_spec *, tinkc_error *err);
void tke_layout_free(tke_lora_layout *); /* NULL allowed */
/* Zeroed numbers of a layout in host memory; free with tkc_release_aligned. */
tke_real *tke_reals_new(const tke_lora_layout *, tinkc_error *err);
/* A snapshot whose weights are zero; alpha must be above 0. */
tke_snapshot *tke_snapshot_new(tke_device *, const tke_model *, const tke_adapter_spec *,
                               tinkc_error *err);

/* A fresh A of every matrix, into numbers of the layout in host memory. */
void tke_layout_init(const tke_lora_layout *, uint64_t seed, tke_real *reals);

/* Walks the tensors of a layout: A and B of every adapted matrix. */
typedef struct tke_tensor_ref {
    const tke_weight *weight; /* the matrix; its path names the tensor */
    bool head;                /* the output projection, which has three names in files */
    bool is_b;
    size_t copies;     /* 0 = a matrix; else the first of three dimensions: experts, or 1 */
    size_t rows, cols; /* [rank, in] or [out, rank] */
    size_t count;      /* numbers of all copies */
    size_t offset;     /* in a block */
} tke_tensor_ref;
/* Fills *ref and advances *place; false at the end. Start with 0. */
bool tke_layout_next(const tke_lora_layout *, size_t *place, tke_tensor_ref *ref);

#endif
