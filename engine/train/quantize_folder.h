/* quantize_folder.h - a packed model folder. Private to engine/train. */
#ifndef TKE_TRAIN_QUANTIZE_FOLDER_H
#define TKE_TRAIN_QUANTIZE_FOLDER_H

#include "train/adapter_export.h"

/* Writes j->base, of a folder, to j's target, which is there and empty. bits: 4 (NF4) or 8 (FP8). */
bool tke_quantize_folder(tke_export *, int32_t bits);

#endif
