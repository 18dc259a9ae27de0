/* http_guard.h - refuses requests forged by foreign web pages or by proxies that parse HTTP
 * differently. Pure functions of header values; no sockets.
 *
 * A page in a browser can send requests to addresses that only its user can reach, but it cannot
 * hide its origin: Host names the server it believes to talk to (its own name, after DNS
 * rebinding), Origin and Sec-Fetch-Site tell whose page it is.
 */
#ifndef TKE_SERVER_HTTP_GUARD_H
#define TKE_SERVER_HTTP_GUARD_H

#include "base/str.h"

typedef struct tke_guard {
    const char *bound;     /* the address we listen on, as it was given; NULL = a unix socket */
    char **allowed;        /* further names, ended by NULL: "host" or "host:port" */
    bool needs_known_host; /* no keys, or names were given: other hosts are refused */
} tke_guard;

typedef struct tke_head_values { /* NULL = the header is not there */
    const char *method, *version;
    const char *host, *origin, *fetch_site, *fetch_mode;
    const char *content_length, *transfer_encoding;
    size_t n_host, n_content_length, n_transfer_encoding;
    bool bad_name;  /* a header has an invalid name */
    bool bad_value; /* a value has a control character: a bare CR is a line's end to some */
    bool bad_lines; /* a line does not end with CR LF, is continued, or has a NUL */
} tke_head_values;

typedef struct tke_verdict {
    int32_t status; /* 0 = let through */
    const char *code;
    char detail[200];
} tke_verdict;

/* Is this one of our names? host may have a port. */
bool tke_guard_knows(const tke_guard *, const char *host);
tke_verdict tke_guard_check(const tke_guard *, const tke_head_values *);
/* Is it JSON or protobuf? NULL = no header. */
bool tke_guard_type_ok(const char *content_type);
bool tke_header_value_ok(const char *value);
bool tke_header_name_ok(const char *name);

#endif
