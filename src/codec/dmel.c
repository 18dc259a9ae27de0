/* dmel.c - the head of a serialised tensor. Pure. */
#include "codec/dmel.h"

#include <assert.h>

#include "codec/pb.h"

enum { CONSTANT = 0xFE, LAST_DTYPE = 7 };

static bool bad_head(const char *why, tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_TENSOR, "the head of an audio tensor cannot be read: %s", why);
}

bool tkc_dmel_read(const void *bytes, size_t len, tkc_dmel *out, tinkc_error *err)
{
    tinkc_bytes rest = { bytes, len };
    uint64_t value;
    *out = (tkc_dmel){ 0 };
    if (rest.len && rest.data[0] == CONSTANT) {
        out->constant = true;
        rest = (tinkc_bytes){ rest.data + 1, rest.len - 1 };
    }
    if (rest.len == 0)
        return bad_head("it is empty", err);
    if (rest.data[0] > LAST_DTYPE)
        return bad_head("an element type that is not known", err);
    out->dtype = rest.data[0];
    rest = (tinkc_bytes){ rest.data + 1, rest.len - 1 };
    if (!tkc_pb_varint(&rest, &value))
        return bad_head("it ends early", err);
    if (value == 0 || value > TKC_DMEL_MAX_DIMS)
        return bad_head("it needs from 1 to 8 dimensions", err);
    out->ndim = (int32_t)value;
    for (int32_t i = 0; i < out->ndim; i++) {
        if (!tkc_pb_varint(&rest, &value))
            return bad_head("it ends early", err);
        if (value > INT64_MAX)
            return bad_head("a dimension is too large", err);
        out->dims[i] = (int64_t)value;
    }
    assert(rest.len < len && out->ndim >= 1);
    out->head = len - rest.len;
    return true;
}
