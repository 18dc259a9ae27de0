/* train_message.h - the bulk messages of training: forward_backward requests and their results.
 *
 * Both are sent as protobuf; the JSON forms serve older clients and curl. Encoding copies each
 * payload once, into a buffer of exactly the right size. Decoding returns views into the bytes
 * where they are aligned for their type and copies in the arena where they are not, so the bytes
 * must live as long as the message. Element bytes are little-endian, as on this machine.
 */
#ifndef TKC_WIRE_TRAIN_MESSAGE_H
#define TKC_WIRE_TRAIN_MESSAGE_H

#include "tinkc/train.h"
#include "wire/message_codec.h"

/* 0 if the type is unknown. */
size_t tkc_dtype_size(int32_t dtype);
/* "float32", "int64" and, beyond the JSON protocol, "int32", "bfloat16"; "" and 0 if unknown. */
const char *tkc_dtype_name(int32_t dtype);
int32_t tkc_dtype_of(tinkc_str name);

/* A tensor of a datum. Dense, or CSR if `crow` has data: then `data` holds the stored values, and
 * shape both dense dimensions. An empty shape means one dimension. */
typedef struct tkc_tensor {
    const void *data; /* count elements, aligned for the type */
    size_t count;
    tinkc_i64s shape;
    tinkc_i64s crow; /* rows + 1 */
    tinkc_i64s col;  /* count */
    int32_t dtype;   /* TINKC_F32, _I64, _I32, _BF16 */
    bool sparse;
    bool ragged; /* the bytes read did not end on an element boundary */
} tkc_tensor;

typedef struct tkc_named_tensor {
    const char *name;
    tkc_tensor tensor;
} tkc_named_tensor;

typedef struct tkc_datum {
    TKC_ARRAY(tinkc_chunk) chunks;
    TKC_ARRAY(tkc_named_tensor) inputs; /* each name once */
    TKC_ARRAY(tinkc_span)
    input_spans, target_spans; /* written, not read: servers do not use them */
} tkc_datum;

typedef struct tkc_forward_backward_request {
    const char *model_id;
    int64_t seq_id; /* int32 on the wire; 0 = none */
    TKC_ARRAY(tkc_datum) data;
    const char *loss_fn;
    tkc_numbers loss_fn_config;
    const char *loss_id; /* the only text in loss_fn_config: of a custom loss; NULL = none */
    bool forward_only;
} tkc_forward_backward_request;

/* NULL if absent. */
const tkc_tensor *tkc_datum_input(const tkc_datum *, const char *name);

/* Checks one tensor by itself: known type, shape against count, row pointers and columns in range.
 * Errors: TENSOR, naming `name`. Decoders do NOT call it: a server reports it in the future. */
bool tkc_tensor_check(const tkc_tensor *, const char *name, tinkc_error *err);
/* The dense elements of any tensor, as f32 (F32, BF16) or i64 (I64, I32) in the arena, or a view
 * if it is dense already. The tensor must have passed tkc_tensor_check; a few bytes of CSR can
 * unfold to 1 GiB, so a server compares the shape with what it expects first. */
bool tkc_tensor_dense(const tkc_tensor *, tkc_arena *, tinkc_tensor *out, tinkc_error *err);

/* Whether it can be encoded; the writers check it too. Errors: UNSUPPORTED (image pointer),
 * ARGUMENT, TENSOR. */
bool tkc_forward_backward_check(const tkc_forward_backward_request *, tinkc_error *err);
size_t tkc_forward_backward_pb_size(const tkc_forward_backward_request *);
bool tkc_forward_backward_to_pb(const tkc_forward_backward_request *, tkc_buf *out,
                                tinkc_error *err);
bool tkc_forward_backward_from_pb(tinkc_bytes, int32_t code, tkc_arena *,
                                  tkc_forward_backward_request *, tinkc_error *err);
/* forward_only chooses between the keys forward_input and forward_backward_input; reading accepts
 * either and sets it. */
bool tkc_forward_backward_to_json(const tkc_forward_backward_request *, tkc_buf *out,
                                  tinkc_error *err);
/* unknown: as in tkc_message_decode_noting, or NULL. */
bool tkc_forward_backward_from_json(tinkc_str, int32_t code, tkc_arena *,
                                    tkc_forward_backward_request *, const char **unknown,
                                    tinkc_error *err);

/* ---- results ---- */

/* One field of several datums, back to back. */
typedef struct tkc_batched_tensor {
    const char *name;
    tinkc_bytes data;    /* aligned for the type */
    tinkc_i64s offsets;  /* byte offsets, n_datums + 1 of them */
    tinkc_i64s trailing; /* shape of one datum without its first dimension */
    int32_t dtype;
} tkc_batched_tensor;

typedef struct tkc_array_record {
    const char *type_tag; /* "" = none */
    TKC_ARRAY(tkc_batched_tensor) fields;
    int64_t n_datums;
} tkc_array_record;

typedef struct tkc_forward_backward_output {
    const char *type; /* "TorchLossReturn"; after decoding, the part after the last ':' */
    TKC_ARRAY(tkc_array_record) records;
    tkc_numbers metrics;
    size_t n_datums; /* of all records */
} tkc_forward_backward_output;

bool tkc_output_to_pb(const tkc_forward_backward_output *, tkc_buf *out, tinkc_error *err);
/* Checks everything: offsets, element sizes, the same fields in every record. */
bool tkc_output_from_pb(tinkc_bytes, tkc_arena *, tkc_forward_backward_output *, tinkc_error *err);
/* {"loss_fn_output_type", "loss_fn_outputs": [{name: {data, dtype, shape}}], "metrics"} */
bool tkc_output_to_json(const tkc_forward_backward_output *, tkc_buf *out, tinkc_error *err);
bool tkc_output_from_json(tinkc_str, tkc_arena *, tkc_forward_backward_output *, tinkc_error *err);

/* Field `name` of datum i: converted to f32 or i64, with its shape, in the arena or a view. False
 * without an error if there is no such field. */
bool tkc_output_tensor(const tkc_forward_backward_output *, size_t i, const char *name, tkc_arena *,
                       tinkc_tensor *out, tinkc_error *err);

/* For a server: the fields of one datum, dense. Rows are then grouped into records: as few as
 * differences in type and trailing shape allow. Elements are copied into the arena. */
typedef struct tkc_output_row {
    TKC_ARRAY(tkc_named_tensor) fields;
} tkc_output_row;
bool tkc_output_from_rows(const tkc_output_row *rows, size_t n, tkc_arena *,
                          tkc_forward_backward_output *, tinkc_error *err);

/* ---- shared with wire/sample_message.h ---- */

/* {"chunks": [...]}: a model's input, in JSON. */
typedef struct tkc_model_input {
    TKC_ARRAY(tinkc_chunk) chunks;
} tkc_model_input;
extern const tkc_message tkc_model_input_type;

#endif
