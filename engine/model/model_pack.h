/* model_pack.h - packs a model's layers in memory. */
#ifndef TKE_MODEL_MODEL_PACK_H
#define TKE_MODEL_MODEL_PACK_H

#include "model/model.h"

/* bits: 4 (NF4) or 8 (Q8_0). Packed matrices lie in the arena. */
bool tke_model_pack(tke_model *, int32_t bits, tkc_arena *, tinkc_error *err);

#endif
