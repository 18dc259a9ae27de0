/* pb.h - protobuf's wire form: a reader that gives views, and a writer into memory of known size.
 *
 * A reader never allocates and never reads outside its bytes; a malformed field stops it and sets
 * `bad`, and every later call returns false. The writer does not check for room: the caller has
 * measured with the tkc_pb_size_* functions, which mirror the writing ones.
 */
#ifndef TKC_CODEC_PB_H
#define TKC_CODEC_PB_H

#include <assert.h>
#include <string.h>
#include "base/err.h"

enum { TKC_PB_VARINT = 0, TKC_PB_FIXED64 = 1, TKC_PB_BYTES = 2, TKC_PB_FIXED32 = 5 };
#define TKC_PB_MAX_VARINT 10 /* bytes */

/* ---- reading ---- */

typedef struct tkc_pb {
    const unsigned char *at, *end;
    uint32_t field; /* number of the last field read */
    uint32_t wire;
    uint64_t number;   /* VARINT, FIXED */
    tinkc_bytes bytes; /* BYTES: a view */
    bool bad;
} tkc_pb;

void tkc_pb_open(tkc_pb *, tinkc_bytes);
/* Reads the next field whole: false at the end or when malformed. */
bool tkc_pb_next(tkc_pb *);
/* True if the last field read has this number and wire type. */
static inline bool tkc_pb_is(const tkc_pb *p, uint32_t field, uint32_t wire)
{
    return p->field == field && p->wire == wire;
}
/* Takes one varint off the front of *bytes: for packed arrays. False at the end or malformed. */
bool tkc_pb_varint(tinkc_bytes *bytes, uint64_t *out);

/* ---- writing ---- */

static inline size_t tkc_pb_size_varint(uint64_t v)
{
    size_t bits = 64u - (size_t)__builtin_clzll(v | 1);
    return (bits + 6) / 7;
}
/* Tag and length and `len` bytes; field numbers up to 15. */
static inline size_t tkc_pb_size_bytes(size_t len)
{
    return 1 + tkc_pb_size_varint(len) + len;
}
static inline unsigned char *tkc_pb_put_varint(unsigned char *at, uint64_t v)
{
    while (v >= 0x80) {
        *at++ = (unsigned char)(v | 0x80);
        v >>= 7;
    }
    *at++ = (unsigned char)v;
    return at;
}
static inline unsigned char *tkc_pb_put_tag(unsigned char *at, uint32_t field, uint32_t wire)
{
    assert(field >= 1 && wire <= 5);
    return tkc_pb_put_varint(at, (uint64_t)field << 3 | wire);
}
/* Tag and length: `len` bytes of contents must follow. */
static inline unsigned char *tkc_pb_put_head(unsigned char *at, uint32_t field, size_t len)
{
    return tkc_pb_put_varint(tkc_pb_put_tag(at, field, TKC_PB_BYTES), len);
}
static inline unsigned char *tkc_pb_put_bytes(unsigned char *at, uint32_t field, const void *bytes,
                                              size_t len)
{
    at = tkc_pb_put_head(at, field, len);
    assert(bytes || !len);
    if (len)
        memcpy(at, bytes, len);
    return at + len;
}

#endif
