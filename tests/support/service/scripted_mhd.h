/* scripted_mhd.h - takes libmicrohttpd's place: keeps what the server would send on a connection.
 *
 * No socket and no thread of the library: a test calls the server as the library would and then looks at the record of the
 * connection. A table of functions that needs more (the connection's descriptor, a request's headers) is a copy with these
 * replaced.
 */
#ifndef TESTS_SCRIPTED_MHD_H
#define TESTS_SCRIPTED_MHD_H

#include "base/buf.h"
#include "service/http/http_server.h"

typedef struct mhd_record {
    bool queued, suspended;
    unsigned int status;
    char headers[2000];               /* "name: value\n" each */
    tkc_buf body;                     /* of an answer from memory, with a NUL behind it */
    uint64_t length;                  /* MHD_SIZE_UNKNOWN: not said */
    MHD_ContentReaderCallback reader; /* of an answer that is made while it is sent */
    void *reader_user;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* resumed */
    bool resumed;
} mhd_record;

extern mhd_record mhd_sent; /* of the connection NULL; others are pointers to their record */
extern const tke_mhd scripted_mhd;

/* Begins with nothing sent; frees what the record holds. */
void mhd_begin(mhd_record *);
void mhd_end(mhd_record *);
/* Waits until the connection was resumed; an answer that is queued will do, too, if or_queued. */
void mhd_await(mhd_record *, bool or_queued);

#endif
