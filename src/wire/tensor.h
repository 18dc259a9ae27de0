/* tensor.h - internal to the wire layer: shared by the tensors of requests and of results. */
#ifndef TKC_WIRE_TENSOR_H
#define TKC_WIRE_TENSOR_H

#include "wire/bulk.h"
#include "wire/train_message.h"

/* The product; false if negative or too large. */
bool tkc_shape_count(tinkc_i64s shape, size_t *out);

/* TINKC_F32 or TINKC_I64: the type that users get for a wire type. */
int32_t tkc_wide_dtype(int32_t dtype);
/* The elements converted to that type, or `data` itself. */
const void *tkc_widen(const void *data, size_t count, int32_t dtype, tkc_arena *, tinkc_error *err);

/* {"data": [...], "dtype": "float32", "shape": [...], ...} */
void tkc_tensor_write(tkc_jsonw *, const tkc_tensor *);
void tkc_tensor_read(tkc_json *, tkc_tensor *);

/* The protobuf message Tensor: its size, writing, reading. */
size_t tkc_tensor_pb_size(const tkc_tensor *);
unsigned char *tkc_tensor_pb_put(unsigned char *at, const tkc_tensor *);
bool tkc_tensor_pb_read(const tkc_bulk *, tinkc_bytes, tkc_tensor *out);

#endif
