/* residence.c - least recently used blocks make room for others.
 *
 * May touch: the list and its blocks' heads. Must not: know what a block holds or how it is copied.
 */
#include "device/residence.h"

#include <assert.h>

void tke_residence_init(tke_residence *r, bool (*leave)(tke_resident *, tinkc_error *),
                        bool (*come)(tke_resident *, tinkc_error *))
{
    *r = (tke_residence){ .leave = leave, .come = come };
    pthread_mutex_init(&r->lock, NULL);
}

void tke_residence_free(tke_residence *r)
{
    assert(!r->first);
    pthread_mutex_destroy(&r->lock);
}

void tke_residence_lock(tke_residence *r)
{
    pthread_mutex_lock(&r->lock);
}

void tke_residence_unlock(tke_residence *r)
{
    pthread_mutex_unlock(&r->lock);
}

void tke_residence_turn(tke_residence *r)
{
    tke_residence_lock(r);
    r->turn++;
    tke_residence_unlock(r);
}

void tke_residence_add(tke_residence *r, tke_resident *b, size_t bytes)
{
    tke_residence_lock(r);
    *b = (tke_resident){ .next = r->first, .used = r->turn, .bytes = bytes };
    if (r->first)
        r->first->prev = b;
    r->first = b;
    tke_residence_unlock(r);
}

void tke_residence_remove(tke_residence *r, tke_resident *b)
{
    tke_residence_lock(r);
    if (b->prev)
        b->prev->next = b->next;
    else
        r->first = b->next;
    if (b->next)
        b->next->prev = b->prev;
    if (b->away)
        r->away_bytes -= b->bytes;
    tke_residence_unlock(r);
}

/* Only the worker moves blocks, so `away` does not change between the check and the move. */
bool tke_residence_use(tke_residence *r, tke_resident *b, tinkc_error *err)
{
    tke_residence_lock(r);
    b->used = r->turn;
    tke_residence_unlock(r);
    if (!b->away)
        return true;
    if (!r->come(b, err))
        return false;
    tke_residence_lock(r);
    b->away = false;
    r->away_bytes -= b->bytes;
    tke_residence_unlock(r);
    return true;
}

static bool is_idle(const tke_residence *r, const tke_resident *b)
{
    return !b->away && b->used != r->turn;
}

bool tke_residence_make_room(tke_residence *r)
{
    tinkc_error ignored = { 0 };
    tke_resident *oldest = NULL;
    tke_residence_lock(r);
    for (tke_resident *b = r->first; b; b = b->next)
        if (is_idle(r, b) && (!oldest || b->used <= oldest->used))
            oldest = b; /* of equals the one made first */
    bool moved = oldest && r->leave(oldest, &ignored);
    if (moved) {
        oldest->away = true;
        r->away_bytes += oldest->bytes;
    }
    tke_residence_unlock(r);
    return moved;
}

size_t tke_residence_idle(tke_residence *r)
{
    size_t bytes = 0;
    tke_residence_lock(r);
    for (const tke_resident *b = r->first; b; b = b->next)
        bytes += is_idle(r, b) ? b->bytes : 0;
    tke_residence_unlock(r);
    return bytes;
}

size_t tke_residence_away(tke_residence *r)
{
    tke_residence_lock(r);
    size_t bytes = r->away_bytes;
    tke_residence_unlock(r);
    return bytes;
}
