/* page_gate.c - same origin only: checks of Host, Origin and Sec-Fetch-Site. */
#include "service/http/page_gate.h"

#include <string.h>

#include "base/str.h"

bool tke_gate_is_ui(const char *uri)
{
    tinkc_str path = tkc_strn(uri, strcspn(uri, "?"));
    return tkc_str_is(path, "/") || tkc_str_is(path, "/ui") || tkc_starts_with(path, "/ui/");
}

/* "127.0.0.1:80" -> "127.0.0.1", "[::1]:80" -> "[::1]" */
static tinkc_str without_port(tinkc_str host)
{
    size_t bracket = tkc_str_find(host, ']');
    size_t from = bracket < host.len ? bracket : 0;
    size_t colon = from + tkc_str_find(tkc_strn(host.data + from, host.len - from), ':');
    return tkc_strn(host.data, colon < host.len ? colon : host.len);
}

static bool is_this_machine(tinkc_str name, const char *own_url)
{
    tinkc_str own = tkc_str(own_url);
    if (tkc_starts_with(own, "http://"))
        own = without_port(tkc_strn(own.data + 7, own.len - 7));
    return tkc_str_is_nocase(name, "localhost") || tkc_str_is(name, "127.0.0.1") ||
           tkc_str_is(name, "[::1]") || tkc_str_eq(name, own);
}

bool tke_gate_allows(const tke_gate_request *r, const char *own_url, bool keys)
{
    tinkc_str host = tkc_str(r->host), origin = tkc_str(r->origin);
    bool is_unix = tkc_starts_with(tkc_str(own_url), "unix:");
    if (r->fetch_site && !tkc_cstr_eq(r->fetch_site, "same-origin") &&
        !tkc_cstr_eq(r->fetch_site, "none"))
        return false;
    if (r->origin) { /* "http://HOST", or https where a proxy stands in front */
        size_t skip = tkc_starts_with(origin, "http://")    ? 7
                      : tkc_starts_with(origin, "https://") ? 8
                                                            : 0;
        if (!skip || !tkc_str_eq(tkc_strn(origin.data + skip, origin.len - skip), host))
            return false;
    }
    /* With keys the key decides; without, the Host must be this machine, or a page elsewhere could
     * reach it by DNS rebinding. */
    return keys || is_unix || (r->host && is_this_machine(without_port(host), own_url));
}

const char *const *tke_gate_headers(void)
{
    static const char *const headers[] = {
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options",
        "nosniff",
        "X-Frame-Options",
        "DENY",
        "Referrer-Policy",
        "no-referrer",
        "Cross-Origin-Resource-Policy",
        "same-origin",
        "Cross-Origin-Opener-Policy",
        "same-origin",
        NULL,
    };
    return headers;
}
