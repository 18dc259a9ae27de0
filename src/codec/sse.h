/* sse.h - event streams. The reader is public: tinkc_sse_new, _feed, _next, _free (tinkc/rest.h)
 * are implemented beside this header. Here is what only we need. */
#ifndef TKC_CODEC_SSE_H
#define TKC_CODEC_SSE_H

#include "base/buf.h"
#include "tinkc/rest.h"

/* The stream has ended: what was fed without a blank line behind it becomes an event too if
 * `flush`, else it is dropped. Call tinkc_sse_next afterwards. */
bool tkc_sse_end(tinkc_sse_parser *, bool flush, tinkc_error *err);

/* For a server: appends one event; event and id NULL = none. Line ends in data begin new data
 * lines. Errors: ARGUMENT (line ends or NUL in event or id). */
bool tkc_sse_write(tkc_buf *out, const char *event, const char *id, tinkc_str data,
                   tinkc_error *err);

#endif
