/* raw_http.h - a server over a real socket, byte by byte: for tests of what a client library hides. */
#ifndef TEST_RAW_HTTP_H
#define TEST_RAW_HTTP_H

#include "base/buf.h"

/* A connection to "http://127.0.0.1:PORT" or "unix:PATH", or -1. */
int raw_try_dial(const char *url);
/* The same; fails the test where nobody listens. Reads give up after 30 s. */
int raw_dial(const char *url);
/* Sends a request; reads until the connection is closed, Content-Length is satisfied or the last
 * chunk has come. `head`: the request line and headers, without Host and Content-Length. */
tkc_buf raw_talk(int fd, const char *host, const char *head, const void *body, size_t len);

#endif
