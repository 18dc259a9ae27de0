/* chunks.c - see chunks.h. May touch: memory. Must not: lock, wait. */
#include "base/chunks.h"

#include <assert.h>
#include <string.h>

enum { SMALLEST = 4 * 1024, USUAL_MOST = 256 * 1024 };

struct tkc_chunk {
    tkc_chunk *next;
    size_t cap, from, to; /* from..to of data is held */
    char data[];
};

void tkc_chunks_init(tkc_chunks *q, const tinkc_allocator *a)
{
    *q = (tkc_chunks){ .a = a };
}

static void release(tkc_chunks *q, tkc_chunk *c)
{
    assert(!c || c->to <= c->cap);
    if (c)
        tkc_release(q->a, c, sizeof *c + c->cap);
}

void tkc_chunks_free(tkc_chunks *q)
{
    while (q->first) {
        tkc_chunk *next = q->first->next;
        release(q, q->first);
        q->first = next;
    }
    release(q, q->spare);
    tkc_chunks_init(q, q->a);
}

/* A piece for at least `len` bytes. Pieces grow with the amount held: a short answer costs little,
 * a long one is passed on in long runs. */
static tkc_chunk *new_piece(tkc_chunks *q, size_t len, tinkc_error *err)
{
    size_t cap = q->len * 2, whole;
    tkc_chunk *c = q->spare;
    cap = cap < SMALLEST ? SMALLEST : cap > USUAL_MOST ? USUAL_MOST : cap;
    cap = cap < len ? len : cap;
    if (c && c->cap >= len) {
        q->spare = NULL;
    } else {
        c = tkc_add_size(sizeof *c, cap, &whole) ? tkc_alloc(q->a, whole, err) : NULL;
        if (!c)
            return NULL;
        c->cap = cap;
    }
    c->from = c->to = 0;
    c->next = NULL;
    return c;
}

static void fill_chunk(tkc_chunk *c, const char *bytes, size_t len)
{
    assert(len <= c->cap - c->to);
    if (len)
        memcpy(c->data + c->to, bytes, len);
    c->to += len;
}

bool tkc_chunks_add(tkc_chunks *q, const void *bytes, size_t len, tinkc_error *err)
{
    assert(!q->first == !q->last && (bytes || !len));
    const char *from = bytes;
    size_t room = q->last ? q->last->cap - q->last->to : 0, here = len < room ? len : room;
    tkc_chunk *fresh = NULL;
    if (len > here && !(fresh = new_piece(q, len - here, err)))
        return false;
    if (here)
        fill_chunk(q->last, from, here);
    if (fresh) {
        fill_chunk(fresh, from + here, len - here);
        if (q->last)
            q->last->next = fresh;
        else
            q->first = fresh;
        q->last = fresh;
    }
    q->len += len;
    return true;
}

/* Releases the first piece once it is read to its end; the last piece is reused from its start. */
static void leave_first(tkc_chunks *q)
{
    tkc_chunk *c = q->first;
    assert(c->from == c->to);
    if (c == q->last) {
        c->from = c->to = 0;
        return;
    }
    q->first = c->next;
    if (q->spare && q->spare->cap >= c->cap) {
        release(q, c);
    } else {
        release(q, q->spare);
        q->spare = c;
    }
}

size_t tkc_chunks_peek(tkc_chunks *q, const void **bytes)
{
    if (!q->len)
        return 0;
    assert(q->first->from < q->first->to); /* empty pieces are released at once */
    *bytes = q->first->data + q->first->from;
    return q->first->to - q->first->from;
}

void tkc_chunks_drop(tkc_chunks *q, size_t n)
{
    if (!n)
        return;
    assert(q->first && n <= q->first->to - q->first->from && n <= q->len);
    q->first->from += n;
    q->len -= n;
    if (q->first->from == q->first->to)
        leave_first(q);
}
