/* sse.h - event streams. The reader is public: tinkc_sse_new, _feed, _next, _free (tinkc/rest.h)
 * are implemented in sse.c. This header adds the internal functions. */
#ifndef TKC_CODEC_SSE_H
#define TKC_CODEC_SSE_H

#include "base/buf.h"
#include "tinkc/rest.h"

/* The stream has ended: with `flush`, input without a final blank line becomes an event too;
 * otherwise it is dropped. Call tinkc_sse_next afterwards. */
bool tkc_sse_end(tinkc_sse_parser *, bool flush, tinkc_error *err);

/* For a server: appends one event; event and id NULL = none. Line ends in data start new data
 * lines. Errors: ARGUMENT (line ends or NUL in event or id). */
bool tkc_sse_write(tkc_buf *out, const char *event, const char *id, tinkc_str data,
                   tinkc_error *err);

#endif
