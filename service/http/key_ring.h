/* key_ring.h - the keys that a server accepts, their owners and quotas.
 *
 * Keys are in memory that core dumps exclude, and are wiped when removed. They can be replaced
 * while the server runs. A token names the id and generation of the key it was exchanged for:
 * removing the key invalidates its tokens, and adding it again does not restore them.
 */
#ifndef TKE_SERVER_KEY_RING_H
#define TKE_SERVER_KEY_RING_H

#include "service/core/service.h"

typedef struct tke_key_ring tke_key_ring;

/* lines: "KEY [requests=N] [tokens=N] [storage=N] [email=ADDRESS]", ended by NULL; NULL = no keys,
 * no authentication. The address is what whoami returns; nothing is sent to it.
 * Errors: ARGUMENT names the line, never the key. */
tke_key_ring *tke_key_ring_new(tke_service *, const char *const *lines, tinkc_error *err);
void tke_key_ring_free(tke_key_ring *); /* NULL allowed */
/* Replaces all keys. On failure the old ones stay. Any thread. */
bool tke_key_ring_replace(tke_key_ring *, const char *const *lines, tinkc_error *err);
bool tke_key_ring_is_empty(tke_key_ring *);

typedef struct tke_identity {
    char owner[32];
    char key_id[TKE_KEY_ID];
    uint64_t generation;
    char email[TKE_EMAIL]; /* "" = none given */
} tke_identity;

/* Finds the owner of a key or token; NULL = none was given. False: not valid. Any thread. */
bool tke_key_ring_identify(tke_key_ring *, const char *given, tke_identity *out);

#endif
