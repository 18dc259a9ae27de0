/* pager.c - walks a list page by page: asks, waits, leaves doubles out, knows the end.
 *
 * A list by offset asks at offset = number received and ends when the limit or the newest total is
 * reached or a page brings nothing new; a short page does not end it, because services cut pages
 * for reasons of their own. A list by cursor ends with the page that has none. Items that a moving
 * list gives twice are recognised by their id and left out, which also ends a list whose service
 * sends the same page forever. [one thread]
 *
 * May touch: futures, the kind's ask. Must not: know an endpoint or a message.
 */
#include "client/rest/pager.h"

#include "client/core/client_priv.h"
#include "base/str.h"

/* Items that move while they are listed may fill a page with what was given before; not so many in a row. */
enum { STALE_PAGES = 100 };

/* ---- making one ---- */

tkc_page *tkc_page_new(tinkc_future *f, size_t n, size_t item_size, const char ***ids,
                       unsigned char **items, tinkc_error *err)
{
    tkc_page *p = tkc_arena_zalloc(&f->arena, sizeof *p, err);
    *ids = p ? tkc_arena_array(&f->arena, n, sizeof **ids, err) : NULL;
    *items = *ids ? tkc_arena_array(&f->arena, n, item_size, err) : NULL;
    if (!*items)
        return NULL;
    *p = (tkc_page){ .n = n, .item_size = item_size, .items = *items, .ids = *ids, .total = -1 };
    f->result = p;
    return p;
}

tkc_pager *tkc_pager_new(tinkc_client *client, const tkc_list_kind *kind, int64_t limit,
                         int64_t offset, int64_t page_size, tinkc_error *err)
{
    tkc_pager *p = tkc_client_check(client, err) ? tkc_zalloc(client->a, sizeof *p, err) : NULL;
    if (!p)
        return NULL;
    tkc_client_keep(client);
    p->client = client;
    p->kind = kind;
    p->total = -1;
    p->limit = limit;
    p->offset = offset;
    p->page_size = page_size ? page_size : kind->page_size;
    tkc_arena_init(&p->texts, client->a, 0);
    tkc_map_init(&p->seen, client->a);
    return p;
}

static void drop_future(tinkc_future **f)
{
    if (*f)
        tkc_future_drop(*f);
    *f = NULL;
}

void tkc_pager_free(tkc_pager *p)
{
    if (!p || tkc_client_forked(p->client))
        return;
    tinkc_client *client = p->client;
    drop_future(&p->now);
    drop_future(&p->next);
    tkc_map_free(&p->seen);
    tkc_arena_free(&p->texts);
    tkc_release(client->a, p, sizeof *p);
    tkc_client_drop(client);
}

/* ---- pages ---- */

static int64_t to_ask(const tkc_pager *p)
{
    int64_t left = p->limit ? p->limit - p->given : p->page_size;
    return left < p->page_size ? left : p->page_size;
}

static bool list_is_over(const tkc_pager *p)
{
    return p->ended || (p->limit && p->given >= p->limit);
}

tinkc_str tkc_pager_cursor(const tkc_pager *p)
{
    return p->now ? ((const tkc_page *)p->now->result)->cursor : (tinkc_str){ NULL, 0 };
}

/* Starts on the next page: two references, the pager's and the one returned. */
static tinkc_future *ask_page(tkc_pager *p, tinkc_error *err)
{
    p->next = p->kind->ask(p, to_ask(p), err);
    if (p->next)
        tkc_future_keep(p->next);
    return p->next;
}

/* A page is here: it becomes the one at hand. */
static void absorb(tkc_pager *p)
{
    const tkc_page *got = p->next->result;
    drop_future(&p->now);
    p->now = p->next;
    p->next = NULL;
    p->at = 0;
    p->page_gave = false;
    p->received += (int64_t)got->n;
    if (got->total >= 0)
        p->total = got->total;
    if (got->n == 0 || p->kind->single_page || (p->kind->by_cursor && !got->cursor.len) ||
        (p->total >= 0 && p->offset + p->received >= p->total))
        p->ended = true;
    if (p->kind->single_page && p->total < 0)
        p->total = (int64_t)got->n;
}

/* The next item of the page at hand that was not given before; false = the page is used up. */
static bool take_item(tkc_pager *p, const tkc_page *pg, size_t *index, tinkc_error *err)
{
    while (p->at < pg->n) {
        tinkc_str id = tkc_str(pg->ids[p->at]);
        size_t here = p->at++;
        if (p->kind->single_page && p->offset > (int64_t)here)
            continue; /* the service does not skip for us */
        if (tkc_map_has(&p->seen, id))
            continue;
        if (!tkc_map_set(&p->seen, id, p, NULL, err))
            return false;
        p->given++;
        p->page_gave = true;
        *index = here;
        return true;
    }
    return false;
}

/* Waits for the page that was asked for. A fetch that the caller cancelled is asked for again. */
static bool await_page(tkc_pager *p, tinkc_error *err)
{
    while (true) {
        tinkc_error why = { 0 };
        bool callers = p->next != NULL; /* one that _fetch has given away; the next is ours */
        if (!callers) {
            tinkc_future *f = ask_page(p, err);
            if (!f)
                return false;
            tkc_future_drop(f); /* the pager's own reference is enough */
        }
        if (tinkc_future_wait(p->next, TINKC_FOREVER, &why))
            return true;
        drop_future(&p->next);
        if (!callers || why.code != TINKC_E_CANCELLED) {
            tkc_error_copy(err, &why);
            return false;
        }
    }
}

static bool check_list(const tkc_pager *p, tinkc_error *err)
{
    if (!p)
        return tkc_fail(err, TINKC_E_ARGUMENT, "the list is NULL");
    return tkc_client_check(p->client, err);
}

/* The page and the index of the next item; NULL = the end or an error. */
const tkc_page *tkc_pager_next(tkc_pager *p, size_t *index, tinkc_error *err)
{
    if (!check_list(p, err))
        return NULL;
    for (;;) {
        if (p->limit && p->given >= p->limit)
            return NULL;
        if (p->now && take_item(p, p->now->result, index, err))
            return p->now->result;
        if (tkc_failed(err))
            return NULL;
        /* Pages that bring nothing new: the service does not move on. */
        p->stale = p->now && !p->page_gave ? p->stale + 1 : 0;
        if (p->stale && (p->total < 0 || p->stale == STALE_PAGES))
            p->ended = true;
        if (list_is_over(p) && !p->next)
            return NULL;
        if (!await_page(p, err))
            return NULL;
        absorb(p);
    }
}

/* ---- for a loop of the caller's own ---- */

static void finish_at_once(tinkc_future *f)
{
    tkc_op_finish(f, NULL);
}

/* A future even at the end, so that a loop that only fetches need not know where it is. */
static const tkc_op_class nothing_class = { "list_end",     "nothing",     0,
                                            finish_at_once, tkc_op_finish, NULL };

tinkc_future *tkc_pager_fetch(tkc_pager *p, tinkc_error *err)
{
    if (!check_list(p, err))
        return NULL;
    /* One that has failed is asked for again: a loop that only fetches would never get past it. */
    if (p->next && tinkc_future_done(p->next) && !tinkc_future_wait(p->next, 0, NULL))
        drop_future(&p->next);
    if (p->next) {
        tkc_future_keep(p->next);
        return p->next;
    }
    if (list_is_over(p)) {
        tinkc_future *f = tkc_op_new(p->client, &nothing_class, err);
        return f ? tkc_op_submit(f) : NULL;
    }
    return ask_page(p, err);
}

static size_t fresh_in(const tkc_pager *p, const tinkc_future *f, size_t from)
{
    const tkc_page *pg = f->result;
    size_t n = 0;
    for (size_t i = from; i < pg->n; i++)
        if (!tkc_map_has(&p->seen, tkc_str(pg->ids[i])) &&
            !(p->kind->single_page && p->offset > (int64_t)i))
            n++;
    return n;
}

size_t tkc_pager_ready(const tkc_pager *p)
{
    if (!p)
        return 0;
    size_t n = p->now ? fresh_in(p, p->now, p->at) : 0;
    if (p->next && tinkc_future_done(p->next) && tinkc_future_wait(p->next, 0, NULL))
        n += fresh_in(p, p->next, 0);
    if (p->limit && (int64_t)n > p->limit - p->given)
        n = (size_t)(p->limit - p->given);
    return n;
}

int64_t tkc_pager_total(const tkc_pager *p)
{
    if (!p)
        return -1;
    if (p->next && tinkc_future_done(p->next) && tinkc_future_wait(p->next, 0, NULL)) {
        const tkc_page *pg = p->next->result;
        if (pg->total >= 0)
            return pg->total;
    }
    return p->total;
}
