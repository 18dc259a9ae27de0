/* residence.h - which blocks are in the memory of a device that has its own, and which wait on the
 * host. For modules; the CPU's blocks are always where they are needed.
 *
 *     tke_residence_turn(r)          a call of the table begins
 *     tke_residence_use(r, block)    brings a block back; it stays until the next turn
 *     tke_residence_make_room(r)     memory is short: moves the block that was unused for longest
 *
 * Threads: the worker calls everything; add, remove, lock and unlock may come from any thread.
 * Under the lock a block does not move, so that another thread can read it where it is. */
#ifndef TKE_DEVICE_RESIDENCE_H
#define TKE_DEVICE_RESIDENCE_H

#include <pthread.h>
#include "base/err.h"

typedef struct tke_resident { /* first member of a block */
    struct tke_resident *prev, *next;
    uint64_t used; /* the turn of its last use */
    size_t bytes;
    bool away;
} tke_resident;

typedef struct tke_residence {
    /* Copies a block's numbers to the host and frees them on the device. The lock is held; on
     * failure the block stays. */
    bool (*leave)(tke_resident *, tinkc_error *err);
    /* The reverse, without the lock: it may have to make room. */
    bool (*come)(tke_resident *, tinkc_error *err);
    pthread_mutex_t lock;
    tke_resident *first;
    uint64_t turn;
    size_t away_bytes;
} tke_residence;

void tke_residence_init(tke_residence *, bool (*leave)(tke_resident *, tinkc_error *),
                        bool (*come)(tke_resident *, tinkc_error *));
void tke_residence_free(tke_residence *); /* remove all blocks before */
void tke_residence_turn(tke_residence *);
/* A block that is on the device; it counts as used. */
void tke_residence_add(tke_residence *, tke_resident *, size_t bytes);
void tke_residence_remove(tke_residence *, tke_resident *);
bool tke_residence_use(tke_residence *, tke_resident *, tinkc_error *err);
/* False: every block is in use or away, or the move failed. */
bool tke_residence_make_room(tke_residence *);
/* Bytes on the device that make_room could free; bytes that wait on the host. */
size_t tke_residence_idle(tke_residence *);
size_t tke_residence_away(tke_residence *);
void tke_residence_lock(tke_residence *);
void tke_residence_unlock(tke_residence *);

#endif
