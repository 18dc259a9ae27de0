/* dmel.h - the head of a serialised tensor (TensorContainer), as audio chunks carry it. */
#ifndef TKC_CODEC_DMEL_H
#define TKC_CODEC_DMEL_H

#include "base/err.h"

enum { TKC_DMEL_MAX_DIMS = 8 };

typedef struct tkc_dmel {
    bool constant; /* one value for all elements; the payload is left out */
    int32_t dtype; /* 0 to 7; 4 = uint8 */
    int32_t ndim;
    int64_t dims[TKC_DMEL_MAX_DIMS];
    size_t head; /* bytes before the payload */
} tkc_dmel;

/* Errors: TENSOR. dims[0] is the chunk's length in tokens; zero dimensions is an error. */
bool tkc_dmel_read(const void *bytes, size_t len, tkc_dmel *out, tinkc_error *err);

#endif
