/* http_guard.c - checks Host, Origin, fetch metadata, and the headers that give a body's length. */
#include "service/http/http_guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <strings.h>

static tke_verdict refuse(int32_t status, const char *code, const char *format, ...)
{
    tke_verdict v = { .status = status, .code = code };
    va_list args;
    va_start(args, format);
    (void)vsnprintf(v.detail, sizeof v.detail, format, args);
    va_end(args);
    return v;
}

/* ---- names ---- */

/* "host" of "host:port" or "[::1]:port"; empty if invalid. */
static tinkc_str host_alone(const char *host)
{
    size_t n = strlen(host), end;
    if (host[0] == '[') {
        end = strcspn(host, "]");
        if (end == n || (host[end + 1] && host[end + 1] != ':'))
            return tkc_strn("", 0);
        end++;
    } else {
        end = strcspn(host, ":");
    }
    if (end < n && strspn(host + end + 1, "0123456789") != n - end - 1)
        return tkc_strn("", 0);
    /* Only what names and addresses consist of: the host is copied into the links of answers. */
    for (size_t i = 0; i < end; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]",
                    host[i]))
            return tkc_strn("", 0);
    return tkc_strn(host, end);
}

static bool is_ipv4_loopback(tinkc_str host)
{
    size_t dots = 0;
    for (size_t i = 0; i < host.len; i++) {
        dots += host.data[i] == '.';
        if (host.data[i] != '.' && (host.data[i] < '0' || host.data[i] > '9'))
            return false;
    }
    /* Digits and dots only: '127.0.0.1.example.com' is a name of somebody else, which may lead
     * here. */
    return dots == 3 && tkc_starts_with(host, "127.");
}

static bool is_allowed(const tke_guard *g, const char *host, tinkc_str alone)
{
    for (char **p = g->allowed; p && *p; p++)
        if (strcasecmp(*p, host) == 0 || tkc_str_is_nocase(alone, *p))
            return true;
    return false;
}

bool tke_guard_knows(const tke_guard *g, const char *host)
{
    tinkc_str alone = host_alone(host);
    if (!alone.len)
        return false;
    if (tkc_str_is_nocase(alone, "localhost") || tkc_str_is(alone, "[::1]") ||
        is_ipv4_loopback(alone))
        return true;
    tinkc_str bare = alone.data[0] == '[' ? tkc_strn(alone.data + 1, alone.len - 2) : alone;
    /* A server that listens on all addresses does not know its names; they come from
     * --allow-host. */
    bool any = g->bound && (strcmp(g->bound, "0.0.0.0") == 0 || strcmp(g->bound, "::") == 0);
    return (g->bound && !any && tkc_str_is_nocase(bare, g->bound)) || is_allowed(g, host, alone);
}

/* ---- the origin of a page ---- */

/* Is the page ours, or from an allowed origin? */
static bool origin_ok(const tke_guard *g, const char *origin, const char *host)
{
    const char *rest = strstr(origin, "://");
    if (!rest) /* "null": an opaque origin */
        return false;
    rest += 3;
    return (host && strcasecmp(rest, host) == 0) || is_allowed(g, rest, host_alone(rest));
}

static tke_verdict check_page(const tke_guard *g, const tke_head_values *h)
{
    bool reads = strcmp(h->method, "GET") == 0 || strcmp(h->method, "HEAD") == 0;
    bool follows_link = reads && h->fetch_mode && strcmp(h->fetch_mode, "navigate") == 0;
    if (h->origin && !origin_ok(g, h->origin, h->host))
        return refuse(403, "origin_not_allowed",
                      "Requests from pages of '%.60s' are refused; --allow-host allows them",
                      h->origin);
    /* Browsers send it with requests that have no Origin, such as images and scripts of another
     * page; programs send neither. */
    bool foreign = h->fetch_site && strcmp(h->fetch_site, "same-origin") != 0 &&
                   strcmp(h->fetch_site, "none") != 0;
    if (foreign && !h->origin && !follows_link)
        return refuse(403, "origin_not_allowed", "Requests from pages of other sites are refused");
    return (tke_verdict){ 0 };
}

/* ---- the length of a body ---- */

bool tke_header_name_ok(const char *name)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return *name && strspn(name, token) == strlen(name);
}

bool tke_header_value_ok(const char *value)
{
    for (; *value; value++)
        if (((unsigned char)*value < 0x20 && *value != '\t') || *value == 0x7f)
            return false;
    return true;
}

/* A proxy and libmicrohttpd may choose different ones of two lengths (request smuggling), so a
 * request with an ambiguous length is refused. */
static tke_verdict check_length(const tke_head_values *h)
{
    if (h->bad_name)
        return refuse(400, "bad_request", "A header name has invalid characters");
    if (h->bad_value)
        return refuse(400, "bad_request", "A header value has control characters");
    if (h->bad_lines)
        return refuse(400, "bad_request",
                      "A line of the head does not end with CR LF, is continued, or has a NUL");
    if (h->n_content_length > 1 || h->n_transfer_encoding > 1 ||
        (h->n_content_length && h->n_transfer_encoding))
        return refuse(400, "bad_request", "The request gives its length more than once");
    /* Eighteen digits fit into 64 bits; a proxy may cut or wrap what is longer. */
    if (h->content_length && (!*h->content_length || strlen(h->content_length) > 18 ||
                              strspn(h->content_length, "0123456789") != strlen(h->content_length)))
        return refuse(400, "bad_request", "Content-Length is not a number");
    if (h->transfer_encoding && strcasecmp(h->transfer_encoding, "chunked") != 0)
        return refuse(400, "bad_request", "Transfer-Encoding must be 'chunked'");
    return (tke_verdict){ 0 };
}

tke_verdict tke_guard_check(const tke_guard *g, const tke_head_values *h)
{
    tke_verdict v = check_length(h);
    if (v.status)
        return v;
    bool needs_host = h->version && strcmp(h->version, "HTTP/1.1") == 0;
    if (h->n_host > 1 || (needs_host && h->n_host == 0))
        return refuse(400, "bad_request", "A request must have exactly one Host header");
    if (h->host && *h->host && !host_alone(h->host).len)
        return refuse(400, "bad_request", "Host is not a name or an address");
    /* Against DNS rebinding: a web page whose name suddenly leads to 127.0.0.1 still sends its own
     * name as Host. */
    if (g->bound && g->needs_known_host && h->host && !tke_guard_knows(g, h->host))
        return refuse(403, "host_not_allowed",
                      "'%.60s' is not a name of this server; --allow-host allows it", h->host);
    return check_page(g, h);
}

bool tke_guard_type_ok(const char *type)
{
    tinkc_str rest = tkc_str(type), name;
    if (!type || !tkc_str_cut(&rest, ';', &name))
        return false;
    while (name.len && name.data[name.len - 1] == ' ')
        name.len--;
    /* The types that a form of a web page can send without asking are not among them. */
    return tkc_str_is_nocase(name, "application/json") ||
           tkc_str_is_nocase(name, "application/x-protobuf") ||
           tkc_str_is_nocase(name, "application/protobuf") ||
           (name.len > 17 && tkc_starts_with(name, "application/") && tkc_ends_with(name, "+json"));
}
