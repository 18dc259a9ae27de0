/* gunzip.h - gzip bodies, through libarchive, which is opened on first use. */
#ifndef TKE_SERVICE_GUNZIP_H
#define TKE_SERVICE_GUNZIP_H

#include "base/buf.h"

/* Appends at most max bytes. Errors: UNPROCESSABLE (not gzip, cut off, more than max),
 * UNSUPPORTED (no libarchive). */
bool tke_gunzip(tinkc_bytes packed, size_t max, tkc_buf *out, tinkc_error *err);

#endif
