/* stub_server.h - a small HTTP/1.1 server for tests, on loopback or a UNIX socket, that can also
 * misbehave in every way a network can.
 *
 * It runs one thread of its own. A function of the test computes each answer there.
 */
#ifndef TKC_TESTS_STUB_SERVER_H
#define TKC_TESTS_STUB_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct stub_server stub_server;

typedef struct stub_request {
    const char *method;
    const char *path;    /* with its query                                   */
    const char *headers; /* "Name: value\r\n" lines, terminated               */
    const char *body;
    size_t body_len;
    uint64_t index;      /* 0 for the first request the server saw           */
    uint64_t connection; /* 0 for the first connection it accepted           */
} stub_request;

enum {
    STUB_ANSWER = 0,
    STUB_RESET,     /* a TCP reset behind `after` bytes of body; 0 = before any byte */
    STUB_RESET_NOW, /* before the status line                                         */
    STUB_TRUNCATE,  /* closes behind `after` bytes although the length said more      */
    STUB_SILENT,    /* never another byte; head and `after` bytes of body if after > 0 */
    STUB_DRIP,      /* head at once, then one byte each drip_ms                       */
    STUB_GARBAGE,   /* bytes that are not HTTP                                        */
    STUB_ENDLESS    /* a chunked body that never ends, as fast as the client reads    */
};

typedef struct stub_answer {
    int status;          /* 0 = 200                                                     */
    const char *headers; /* more lines, each with its \r\n; NULL = none                 */
    const void *body;    /* copied                                                      */
    size_t body_len;     /* 0 with a body = it is text                                  */
    int behaviour;
    size_t after;
    int64_t delay_ms; /* before the head                                             */
    int64_t drip_ms;
    bool chunked;     /* instead of Content-Length                                   */
    bool until_close; /* neither length nor chunks: the end of the connection ends it */
    bool close;       /* Connection: close                                           */
} stub_answer;

/* On the server's thread. *answer starts as {0}; what it points to must stay until the next call
 * or be static. */
typedef void stub_fn(const stub_request *, stub_answer *answer, void *user);

/* unix_path NULL = a free port of 127.0.0.1. Ends the test program if it cannot start. */
stub_server *stub_start(const char *unix_path, stub_fn *fn, void *user);
void stub_stop(stub_server *);

const char *stub_url(const stub_server *); /* "http://127.0.0.1:PORT" */
int stub_port(const stub_server *);
uint64_t stub_requests(const stub_server *);    /* seen so far               */
uint64_t stub_connections(const stub_server *); /* accepted so far           */
uint64_t stub_most_open(const stub_server *);   /* at the same time, so far  */
uint64_t stub_sent(const stub_server *);        /* bytes written so far      */

/* A port of 127.0.0.1 where nobody listens, this program's until it ends. A server that the test starts
 * may listen there if it sets SO_REUSEADDR, as servers do. */
int stub_dead_port(void);

/* The value of a header in a request's lines, into out; "" if it is not there. */
const char *stub_header(const stub_request *, const char *name, char *out, size_t cap);

#endif
