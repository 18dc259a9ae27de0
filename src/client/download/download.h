/* download.h - what downloads are made of: a source of bytes that survives broken connections, and
 * an unpacker. All of it runs on threads that may wait, never on the I/O thread.
 */
#ifndef TKC_API_DOWNLOAD_H
#define TKC_API_DOWNLOAD_H

#include "client/core/operation.h"
#include "client/call/body_stream.h"
#include "base/digest.h"
#include "base/file.h"
#include "tinkc/rest.h"

/* ---- stopping: one for each download, shared by the worker and the I/O thread ---- */

typedef struct tkc_stopper tkc_stopper;
struct tkc_stopper {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool stopped;
    tkc_pull *pull;    /* what the worker waits for now; NULL = nothing */
    tinkc_future *sub; /* likewise */
    struct {           /* a pause of the worker, on the client's clock */
        tinkc_client *client;
        tkc_task begin, end; /* arm and disarm the timer: the I/O thread's */
        tkc_timer timer;
        int64_t ms;
        bool over; /* by the timer */
        bool gone; /* `end` has run: nothing points here any more */
    } pause;
};

bool tkc_stopper_init(tkc_stopper *, tinkc_error *err);
void tkc_stopper_destroy(tkc_stopper *);
/* Wakes the worker whatever it waits for. Any thread. */
void tkc_stopper_stop(tkc_stopper *);
bool tkc_stopper_is_stopped(tkc_stopper *);
/* Sleeps on the client's clock; false if stopped. Not on the I/O thread. */
bool tkc_stopper_sleep(tkc_stopper *, tinkc_client *, int64_t ms);

/* Waits until f is done, or the stop, which cancels it. NULL is a failure. */
bool tkc_stopper_wait(tkc_stopper *, tinkc_future *f, tinkc_error *err);

/* ---- a descriptor of the caller's as the target ---- */

typedef struct tkc_fd_sink {
    int fd;       /* the caller's */
    int ready_fd; /* the same pipe or device, opened so that writing takes what fits; -1 = none */
    bool is_socket;
} tkc_fd_sink;
bool tkc_fd_sink_open(tkc_fd_sink *, int fd, tinkc_error *err);
void tkc_fd_sink_close(tkc_fd_sink *);
/* What fits now; 0 also for a failure, which the next _write then meets. Any thread. */
size_t tkc_fd_sink_try(const tkc_fd_sink *, const void *bytes, size_t len);
/* All of it, until stopped. */
bool tkc_fd_sink_write(const tkc_fd_sink *, tkc_stopper *, const void *bytes, size_t len,
                       tinkc_error *err);

/* ---- a source of bytes ---- */

/* Bytes of one address from a place on. A broken connection is taken up again with Range; an
 * address that is no longer good is asked for again. */
typedef struct tkc_source {
    tinkc_client *client;
    tkc_stopper *stop;
    tinkc_future *f;         /* whose progress it is; NULL = nobody's */
    const char *path;        /* tinker://...: where addresses come from; NULL = url is all */
    const char *file;        /* of external weights: which of their addresses; NULL = an archive */
    const tkc_fd_sink *sink; /* takes bytes that fit at once: they are not lent; NULL = all are */
    tkc_arena arena;
    char *url;         /* NULL = has to be asked for */
    int64_t before;    /* bytes of the files that came first, for the progress */
    int64_t pos;       /* of the next byte */
    int64_t total;     /* -1 = not known */
    int64_t travelled; /* bytes that came over the network */
    int64_t max_bytes; /* 0 = no limit */
    char etag[256];    /* "" = none; given by the owner for a resumed download */
    bool changed;      /* the other side has different bytes now: begin again */
    /* its own */
    tkc_pull *pull;
    int64_t skip;     /* bytes to drop: the other side does not know Range */
    int32_t failures; /* since the last byte */
    int64_t moved_ms; /* when that was */
} tkc_source;

void tkc_source_init(tkc_source *, tinkc_client *, tkc_stopper *, tinkc_future *f);
void tkc_source_end(tkc_source *);
/* Lends the next bytes until the next call; 0 = the end, all bytes have come; or an error. */
size_t tkc_source_next(tkc_source *, const void **bytes, tinkc_error *err);

/* ---- writing, on a thread of its own ---- */

/* Worth it where the producer has other work meanwhile: digests. NULL is a writer, too: it writes
 * at once. */
typedef struct tkc_writer tkc_writer;
tkc_writer *tkc_writer_new(const tinkc_allocator *, tinkc_error *err);
void tkc_writer_free(tkc_writer *, const tinkc_allocator *);
/* Takes the bytes over, waiting while too many are on their way. 0, or the errno of a write that
 * failed, this one or one before it. */
int tkc_writer_add(tkc_writer *, int fd, const void *bytes, size_t len);
/* Waits until all is written: before the file is closed, or another one begun. */
int tkc_writer_flush(tkc_writer *, int fd);

/* ---- unpacking ---- */

/* Files that have arrived whole. In the arena of the list. */
typedef struct tkc_file_list {
    tkc_arena *arena;
    bool no_digests; /* their sha256 is "" */
    tinkc_file **files;
    size_t n, cap;
} tkc_file_list;
bool tkc_file_list_add(tkc_file_list *, const char *name, const char *sha256, int64_t size,
                       tinkc_error *err);

/* Called where the unpacking could be taken up again: `offset` of the source, everything before it
 * is on disk and in the list. */
typedef bool tkc_mark_fn(void *user, int64_t offset, tinkc_error *err);

/* Unpacks a tar (plain or compressed) into the folder. Refuses links, devices and paths that lead
 * outside: UNSAFE_ARCHIVE. max_bytes 0 = no limit. */
bool tkc_unpack(tkc_source *, const char *folder, int64_t max_bytes, tkc_file_list *,
                tkc_mark_fn *mark, void *user, tinkc_error *err);

/* ---- decrypting ---- */

/* The file `from`, in the age format, into the file `to`; its digest and size are those of `to`. Checks every
 * chunk; CANCELLED when stopped. What is left of `to` after a failure is the caller's. */
bool tkc_age_decrypt(const char *from, const char *to, const char *const *identities, tkc_stopper *,
                     tkc_digest *, int64_t *size, tinkc_error *err);

/* False for an empty name, an absolute one, one with a ".." part or a control character. */
bool tkc_is_safe_name(const char *name);

#endif
