/* page_gate.h - access control of the page, and the headers of its answers. No I/O, no state. */
#ifndef TKE_SERVER_PAGE_GATE_H
#define TKE_SERVER_PAGE_GATE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tke_gate_request { /* headers of a request; NULL = not sent */
    const char *host;
    const char *origin;
    const char *fetch_site;
} tke_gate_request;

/* Is this path the page's, or an OpenAI request of the page? */
bool tke_gate_is_ui(const char *uri);

/* May a request be answered? Pages of other origins may not. Without keys the Host must
 * name this machine; otherwise a foreign DNS name that resolves to it could read everything. */
bool tke_gate_allows(const tke_gate_request *, const char *own_url, bool keys);

/* Pairs of names and values for every answer below /ui, ended by NULL. */
const char *const *tke_gate_headers(void);

#endif
