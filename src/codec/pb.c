/* pb.c - reads protobuf's wire form. May touch: only the reader. */
#include "codec/pb.h"

#include <assert.h>

void tkc_pb_open(tkc_pb *p, tinkc_bytes bytes)
{
    *p = (tkc_pb){ .at = bytes.data, .end = bytes.data ? bytes.data + bytes.len : bytes.data };
}

bool tkc_pb_varint(tinkc_bytes *bytes, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes->len && i < TKC_PB_MAX_VARINT; i++) {
        unsigned char c = bytes->data[i];
        if (i == TKC_PB_MAX_VARINT - 1 && c > 1)
            return false;
        value |= (uint64_t)(c & 0x7F) << (7 * i);
        if (c < 0x80) {
            *out = value;
            bytes->data += i + 1;
            bytes->len -= i + 1;
            return true;
        }
    }
    return false;
}

static bool take_varint(tkc_pb *p, uint64_t *out)
{
    tinkc_bytes left = { p->at, (size_t)(p->end - p->at) };
    if (!tkc_pb_varint(&left, out))
        return false;
    p->at = left.data;
    return true;
}

static bool take_fixed(tkc_pb *p, size_t size)
{
    assert(size <= sizeof p->number);
    if ((size_t)(p->end - p->at) < size)
        return false;
    p->number = 0;
    for (size_t i = 0; i < size; i++)
        p->number |= (uint64_t)p->at[i] << (8 * i);
    p->at += size;
    return true;
}

static bool take_bytes(tkc_pb *p)
{
    uint64_t len;
    if (!take_varint(p, &len) || len > (uint64_t)(p->end - p->at))
        return false;
    p->bytes = (tinkc_bytes){ p->at, (size_t)len };
    p->at += len;
    assert(p->at <= p->end);
    return true;
}

/* Groups (wire types 3 and 4) are obsolete and rejected. */
static bool take_value(tkc_pb *p)
{
    switch (p->wire) {
    case TKC_PB_VARINT:
        return take_varint(p, &p->number);
    case TKC_PB_FIXED64:
        return take_fixed(p, 8);
    case TKC_PB_BYTES:
        return take_bytes(p);
    case TKC_PB_FIXED32:
        return take_fixed(p, 4);
    default:
        return false;
    }
}

bool tkc_pb_next(tkc_pb *p)
{
    uint64_t tag;
    if (p->bad || p->at == p->end)
        return false;
    p->bad = !take_varint(p, &tag) || tag >> 3 == 0 || tag > UINT32_MAX;
    if (!p->bad) {
        p->field = (uint32_t)(tag >> 3);
        p->wire = (uint32_t)(tag & 7);
        p->bad = !take_value(p);
    }
    return !p->bad;
}
