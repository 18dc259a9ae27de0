/* jsonlines.h - files of JSON lines, read from a byte offset on.
 *
 * A reader passes the offset up to which it has read and gets the complete lines after it. Nothing
 * is kept between calls, so readers cost no memory. Files are untrusted: a line that is too long or
 * not a JSON object is skipped and counted.
 */
#ifndef TKE_PAGE_JSONLINES_H
#define TKE_PAGE_JSONLINES_H

#include "base/arena.h"
#include "base/buf.h"

enum {
    TKE_LINES_CHUNK = 1 << 20,    /* bytes of a file that one call looks at */
    TKE_LINES_MAX = 256 * 1024,   /* bytes of one line */
    TKE_LINES_MAX_KEYS = 256,     /* numbers of one row */
    TKE_LINES_MAX_KEY_BYTES = 200 /* of a number's name */
};

typedef struct tke_lines {
    int64_t from;    /* where the rows begin: 0 if the file is shorter than the offset */
    int64_t next;    /* where the next call continues */
    int64_t size;    /* of the file, when it was looked at */
    size_t rows;     /* how many were written */
    size_t left_out; /* lines that are not a JSON object, or too long */
    bool more;       /* there are, or may be, more complete lines */
} tke_lines;

/* Opens a regular file below a folder, following no link in its last part and never waiting for a
 * pipe. -1 with errno set. */
int tke_lines_open(int folder, const char *name);

/* Calls `fn` with the rows from byte `from` on, each a JSON object on one line. numbers_only:
 * only the numbers of each row. False: memory is short, or the file cannot be read. */
typedef void tke_row_fn(tinkc_str row, void *user);
bool tke_lines_each(int fd, int64_t from, bool numbers_only, const tinkc_allocator *, tke_row_fn *,
                    void *user, tke_lines *place, tinkc_error *err);

/* Writes the rows from byte `from` on as a JSON array; otherwise as tke_lines_each. */
bool tke_lines_read(int fd, int64_t from, bool numbers_only, tkc_buf *out, tke_lines *place,
                    tinkc_error *err);

/* Calls `fn` with each whole line among the last 64 KiB, oldest first. */
typedef void tke_line_fn(tinkc_str line, void *user);
bool tke_lines_tail(int fd, const tinkc_allocator *a, tke_line_fn *fn, void *user,
                    tinkc_error *err);

/* One line as a row: false if it is not a JSON object or memory is short. NaN and Infinity, which
 * Python writes, become null. The text is in the arena. */
bool tke_line_row(tinkc_str line, bool numbers_only, tkc_arena *, tinkc_str *row);

#endif
