/* bulk.h - internal to the wire layer: shared by the readers of protobuf messages. */
#ifndef TKC_WIRE_BULK_H
#define TKC_WIRE_BULK_H

#include "codec/pb.h"
#include "wire/message_codec.h"

/* Element bytes are little-endian on the wire and are used as they are. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a big-endian machine needs swapping readers and writers here"
#endif

/* Where decoded data goes, and how errors name the message. */
typedef struct tkc_bulk {
    tkc_arena *arena;
    tinkc_error *err;
    int32_t code;
    const char *what; /* "forward_backward request" */
} tkc_bulk;

bool tkc_bulk_fail(const tkc_bulk *, const char *why);
/* After a loop over tkc_pb_next: fails if the bytes were malformed. */
bool tkc_bulk_done(const tkc_bulk *, const tkc_pb *);

/* A terminated copy; UTF-8 without NUL, or a failure and NULL. */
const char *tkc_bulk_str(const tkc_bulk *, tinkc_bytes);
/* The bytes themselves if they are aligned to `align`, else a copy. NULL only on failure: empty
 * bytes return a non-NULL pointer. */
const void *tkc_bulk_view(const tkc_bulk *, tinkc_bytes, size_t align);
bool tkc_bulk_i32s(const tkc_bulk *, tinkc_bytes, tinkc_i32s *out);
bool tkc_bulk_f32s(const tkc_bulk *, tinkc_bytes, tinkc_f32s *out);

/* How often a length-delimited field occurs in a message. */
size_t tkc_bulk_count(tinkc_bytes message, uint32_t field);
/* All values of a repeated int64, packed or not. */
bool tkc_bulk_varints(const tkc_bulk *, tinkc_bytes message, uint32_t field, tinkc_i64s *out);

/* {1: key, 2: value} of a map. A missing key is "". value.data NULL = missing. */
bool tkc_bulk_entry(const tkc_bulk *, tinkc_bytes entry, const char **key, tkc_pb *value);
/* A map<string, double>: the last of equal keys wins. */
bool tkc_bulk_numbers(const tkc_bulk *, tinkc_bytes message, uint32_t field, tkc_numbers *out);

/* Items of `size` bytes that begin with a `const char *name`: drops all but the last of equal
 * names, keeps the order, and returns how many are left; (size_t)-1 on failure. */
size_t tkc_bulk_unique(const tkc_bulk *, void *items, size_t n, size_t size);

/* ---- writing maps of numbers ---- */

size_t tkc_bulk_numbers_size(const tkc_numbers *);
unsigned char *tkc_bulk_put_numbers(unsigned char *at, uint32_t field, const tkc_numbers *);
size_t tkc_bulk_varints_size(tinkc_i64s);
unsigned char *tkc_bulk_put_varints(unsigned char *at, uint32_t field, tinkc_i64s);
/* False, with ARGUMENT, if text that becomes a protobuf string is not UTF-8. */
bool tkc_bulk_check_text(const char *text, const char *what, tinkc_error *err);

#endif
