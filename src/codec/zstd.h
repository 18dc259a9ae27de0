/* zstd.h - compressed bodies. The only file of the SDK's own that sees libzstd. */
#ifndef TKC_CODEC_ZSTD_H
#define TKC_CODEC_ZSTD_H

#include "base/buf.h"

enum { TKC_ZSTD_LEVEL = 3 };

/* Appends one frame: level 3, content size in it, no checksum, no dictionary. */
bool tkc_zstd_compress(const void *bytes, size_t len, tkc_buf *out, tinkc_error *err);
/* Appends what the frames hold, at most max bytes. Errors: BAD_RESPONSE (not zstd, cut off, or
 * more than max: then err->cause is TOO_LARGE). A frame that announces too much is refused before anything is unpacked. */
bool tkc_zstd_decompress(const void *bytes, size_t len, size_t max, tkc_buf *out, tinkc_error *err);

#endif
