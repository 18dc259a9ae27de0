/* pager.h - an iterator over a list that the service gives in pages.
 *
 * One pager serves every list; what differs is its kind: how a page is asked for and how an answer
 * becomes an array of items. A page is an ordinary future whose arena holds the items, so the page
 * at hand is kept by keeping that future.
 */
#ifndef TKC_API_PAGER_H
#define TKC_API_PAGER_H

#include "client/rest/rest_priv.h"
#include "base/map.h"

/* What a page's future has as its result. Lives in the future's arena. */
typedef struct tkc_page {
    size_t n;
    size_t item_size;
    const unsigned char *items;
    const char *const *ids; /* n of them */
    int64_t total;          /* -1 = the answer does not say */
    tinkc_str cursor;       /* where the next page begins; empty = the last page, or by offset */
} tkc_page;

typedef struct tkc_pager tkc_pager;

typedef struct tkc_list_kind {
    int32_t page_size;
    bool single_page; /* the service sends everything at once and knows neither limit nor offset */
    bool by_cursor;   /* pages are linked: the next one is asked for with the cursor of the last */
    /* Starts the request for the next page, `limit` items long. */
    tinkc_future *(*ask)(tkc_pager *, int64_t limit, tinkc_error *err);
} tkc_list_kind;

/* [one thread] Fields up to `offset` are constant after tkc_pager_new. */
struct tkc_pager {
    tinkc_client *client;
    const tkc_list_kind *kind;
    tkc_arena texts;      /* what `question` and its strings lie in */
    const void *question; /* the kind's own: what is asked for */
    int64_t limit, offset, page_size;

    int64_t received; /* by all pages, doubles included: the next offset */
    int64_t given;
    int64_t total; /* -1 = not known */
    int32_t stale; /* pages in a row that brought nothing new */
    bool ended;
    tkc_map seen;

    tinkc_future *now; /* its page holds the items at hand; a reference */
    size_t at;
    bool page_gave;     /* an item that was new */
    tinkc_future *next; /* the page being fetched; a reference */
};

/* limit 0 = all, page_size 0 = the kind's. The caller fills `question` from p->texts. */
tkc_pager *tkc_pager_new(tinkc_client *, const tkc_list_kind *, int64_t limit, int64_t offset,
                         int64_t page_size, tinkc_error *err);
void tkc_pager_free(tkc_pager *);

/* An empty page of n items as the result of f; ids and items are the caller's to fill. */
tkc_page *tkc_page_new(tinkc_future *f, size_t n, size_t item_size, const char ***ids,
                       unsigned char **items, tinkc_error *err);
/* Where the page after the one at hand begins; empty for the first. */
tinkc_str tkc_pager_cursor(const tkc_pager *);

/* What the public functions of every list do. The list may be NULL: an error, or "none". */
const tkc_page *tkc_pager_next(tkc_pager *, size_t *index, tinkc_error *err);
tinkc_future *tkc_pager_fetch(tkc_pager *, tinkc_error *err);
size_t tkc_pager_ready(const tkc_pager *);
int64_t tkc_pager_total(const tkc_pager *);

#endif
