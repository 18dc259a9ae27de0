/* zstd.h - compressed bodies. The only file of the SDK's own that sees libzstd. */
#ifndef TKC_CODEC_ZSTD_H
#define TKC_CODEC_ZSTD_H

#include "base/buf.h"

enum { TKC_ZSTD_LEVEL = 3 };

/* Appends one frame: level 3, with content size, no checksum, no dictionary. */
bool tkc_zstd_compress(const void *bytes, size_t len, tkc_buf *out, tinkc_error *err);
/* Appends the contents of the frames, at most max bytes. Errors: BAD_RESPONSE (not zstd, cut off,
 * or more than max: then err->cause is TOO_LARGE). If the first frame's header announces more than
 * max, it is rejected before decompression. */
bool tkc_zstd_decompress(const void *bytes, size_t len, size_t max, tkc_buf *out, tinkc_error *err);

#endif
