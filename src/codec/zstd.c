/* zstd.c - compressed bodies through libzstd. May touch: the buffer it was given.
 *
 * Memory for libzstd's contexts comes from libzstd itself; it is released before returning.
 */
#include "codec/zstd.h"

#include <assert.h>
#include <zstd.h>

bool tkc_zstd_compress(const void *bytes, size_t len, tkc_buf *out, tinkc_error *err)
{
    char *room = tkc_buf_room(out, ZSTD_compressBound(len), err);
    if (!room)
        return false;
    size_t n = ZSTD_compress(room, ZSTD_compressBound(len), bytes, len, TKC_ZSTD_LEVEL);
    if (ZSTD_isError(n))
        return tkc_fail(err, TINKC_E_MEMORY, "zstd: %s", ZSTD_getErrorName(n));
    assert(n <= ZSTD_compressBound(len) && out->len + n <= out->cap);
    out->len += n;
    return true;
}

static bool too_large(size_t max, tinkc_error *err)
{
    tkc_fail(err, TINKC_E_BAD_RESPONSE, "zstd: more than the %zu bytes allowed here", max);
    err->cause = TINKC_E_TOO_LARGE;
    return false;
}

/* Decompresses in pieces, so that memory follows the actual data, not the size a frame claims. */
static bool unpack_frames(ZSTD_DStream *stream, ZSTD_inBuffer in, size_t max, tkc_buf *out,
                          tinkc_error *err)
{
    size_t step = ZSTD_DStreamOutSize(), total = 0, left = 1;
    while (in.pos < in.size || left != 0) {
        char *room = tkc_buf_room(out, step, err);
        if (!room)
            return false;
        ZSTD_outBuffer piece = { room, step, 0 };
        size_t before = in.pos;
        left = ZSTD_decompressStream(stream, &piece, &in);
        if (ZSTD_isError(left))
            return tkc_fail(err, TINKC_E_BAD_RESPONSE, "zstd: %s", ZSTD_getErrorName(left));
        total += piece.pos;
        if (total > max)
            return too_large(max, err);
        assert(piece.pos <= step && in.pos <= in.size && in.pos >= before);
        out->len += piece.pos;
        if (left != 0 && piece.pos == 0 && in.pos == before && in.pos == in.size)
            return tkc_fail(err, TINKC_E_BAD_RESPONSE, "zstd: ends early");
    }
    return true;
}

bool tkc_zstd_decompress(const void *bytes, size_t len, size_t max, tkc_buf *out, tinkc_error *err)
{
    if (tkc_failed(err))
        return false;
    unsigned long long said = ZSTD_getFrameContentSize(bytes, len);
    if (said == ZSTD_CONTENTSIZE_ERROR)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "zstd: not a frame");
    if (said != ZSTD_CONTENTSIZE_UNKNOWN && said > max)
        return too_large(max, err);
    ZSTD_DStream *stream = ZSTD_createDStream();
    if (!stream)
        return tkc_fail_memory(err);
    (void)ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, 27); /* 128 MiB, libzstd's usual */
    bool done = unpack_frames(stream, (ZSTD_inBuffer){ bytes, len, 0 }, max, out, err);
    ZSTD_freeDStream(stream);
    return done;
}
