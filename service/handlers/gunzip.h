/* gunzip.h - gzip bodies, through libarchive, which is opened on first use. */
#ifndef TKE_SERVICE_GUNZIP_H
#define TKE_SERVICE_GUNZIP_H

#include "base/buf.h"

/* Appends at most max bytes. Errors: UNPROCESSABLE (not gzip, truncated, or more than max: then
 * err->cause is TOO_LARGE), UNSUPPORTED (no libarchive). */
bool tke_gunzip(tinkc_bytes packed, size_t max, tkc_buf *out, tinkc_error *err);

#endif
