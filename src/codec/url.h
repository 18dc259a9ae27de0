/* url.h - the one place where URLs are parsed, normalised and joined. */
#ifndef TKC_CODEC_URL_H
#define TKC_CODEC_URL_H

#include "base/arena.h"
#include "base/buf.h"

/* All in the arena, terminated. */
typedef struct tkc_url {
    const char *scheme; /* lower case: "http" or "https" */
    const char *host;   /* lower case; an IPv6 address without its brackets */
    const char *path;   /* "/..."; never empty */
    const char *query;  /* without '?'; NULL = none */
    const char *origin; /* "https://h:8443": scheme and host lower case, default port left out;
                           equal for all URLs that share connections and limits */
    const char *text;   /* the whole URL, normalised, without user and fragment */
    int32_t port;
    bool has_userinfo; /* "user:password@" was present and was dropped */
} tkc_url;

/* http and https only. Errors: ARGUMENT, naming what is wrong; never a password. */
bool tkc_url_parse(tinkc_str text, tkc_arena *, tkc_url *out, tinkc_error *err);

/* Resolves a Location header against the URL it came from. NULL on error (ARGUMENT). */
const char *tkc_url_resolve(const char *from, const char *location, tkc_arena *, tinkc_error *err);

/* Same scheme, host and port. Both must parse. */
bool tkc_url_same_origin(const char *a, const char *b);

/* Appends an id as path segments. Unreserved characters, ':' and, with `slashes`, '/' stay; the
 * rest is percent-encoded. Errors: ARGUMENT (empty, '?', '#', control characters, "." or ".."
 * segments). */
bool tkc_segment_escape(const char *id, bool slashes, tkc_buf *out, tinkc_error *err);
/* For a server: the reverse. NULL if an escape is malformed, decodes to NUL or is not UTF-8. */
const char *tkc_percent_decode(tinkc_str text, tkc_arena *, tinkc_error *err);
/* The same for forms and queries, where '+' is a space. */
const char *tkc_form_decode(tinkc_str text, tkc_arena *, tinkc_error *err);

#endif
