/* multipart.h - multipart/form-data bodies, written part by part. */
#ifndef TKC_CODEC_MULTIPART_H
#define TKC_CODEC_MULTIPART_H

#include "base/arena.h"
#include "base/buf.h"
#include "tinkc/sys/transport.h"

typedef struct tkc_multipart {
    tkc_buf *out;
    tinkc_error *err;
    char boundary[36]; /* 32 hex digits, terminated; or the caller's, shorter than 36 */
} tkc_multipart;

/* The boundary is random, from the clock's random numbers. */
void tkc_multipart_open(tkc_multipart *, tkc_buf *out, const tinkc_clock *, tinkc_error *err);
/* "multipart/form-data; boundary=..." */
bool tkc_multipart_type(const tkc_multipart *, tkc_buf *out, tinkc_error *err);

void tkc_multipart_text(tkc_multipart *, const char *name, tinkc_str value);
/* content_type NULL = application/octet-stream. */
void tkc_multipart_bytes(tkc_multipart *, const char *name, const char *filename,
                         const char *content_type, const void *data, size_t len);
/* For content that is sent separately: the head, then the caller's bytes, then the tail. */
void tkc_multipart_head(tkc_multipart *, const char *name, const char *filename,
                        const char *content_type);
void tkc_multipart_tail(tkc_multipart *);
/* Ends the body after the last part. */
bool tkc_multipart_close(tkc_multipart *);

#endif
