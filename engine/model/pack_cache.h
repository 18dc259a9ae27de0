/* pack_cache.h - packed matrices in the user's cache, so that a model is packed once. */
#ifndef TKE_MODEL_PACK_CACHE_H
#define TKE_MODEL_PACK_CACHE_H

#include "model/model_pack.h"

/* Takes the model's packed matrices from the cache, which is filled first if it has none of them that can be
 * believed. False without an error: there is no cache here (no home, no room); pack in memory then.
 * Errors: MODEL (a number does not fit), CANCELLED. */
bool tke_pack_cached(tke_model *, tke_packer *, tke_tensor_file *cache);

#endif
