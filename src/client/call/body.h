/* body.h - the body of a request: bytes in memory and whole files, one behind the other.
 *
 * Files are not held in memory: they are open, and read when they are sent, again for each attempt. A
 * file that has changed meanwhile is an error and not half of a body.
 */
#ifndef TKC_API_BODY_H
#define TKC_API_BODY_H

#include "base/buf.h"
#include "base/thread.h"

/* A file that is going to be sent. */
typedef struct tkc_upload tkc_upload;
tkc_upload *tkc_upload_open(const tinkc_allocator *a, const char *path, tinkc_error *err);
void tkc_upload_drop(tkc_upload *); /* NULL allowed */

/* Filled by one thread; constant once it is closed (and loaded), and then any thread's. */
typedef struct tkc_body tkc_body;
tkc_body *tkc_body_new(const tinkc_allocator *a, tinkc_error *err);
void tkc_body_keep(tkc_body *);
void tkc_body_drop(tkc_body *); /* NULL allowed */

/* Where bytes are appended; whatever was added before stands before them. */
tkc_buf *tkc_body_bytes(tkc_body *);
/* The file's contents come next; it is kept. */
bool tkc_body_file(tkc_body *, tkc_upload *, tinkc_error *err);
/* Nothing is added any more. */
bool tkc_body_close(tkc_body *, tinkc_error *err);

/* Reads the files now, for transports that take bytes only. Closed before and after. */
bool tkc_body_load(tkc_body *, tinkc_error *err);

/* True if all of it lies in memory: `view` is it. */
bool tkc_body_in_memory(const tkc_body *, tinkc_bytes *view);
uint64_t tkc_body_size(const tkc_body *);
/* Reads from byte `at` on, up to `cap` bytes and at least one before the end; 0 at the end or after
 * a failure (FILE, naming it). */
size_t tkc_body_read(const tkc_body *, uint64_t at, void *out, size_t cap, tinkc_error *err);

#endif
