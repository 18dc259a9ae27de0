/* key_ring.h - the keys that a server accepts, whose they are, and what each may use.
 *
 * Keys lie in pages that a core dump leaves out and are wiped when they go. They can be replaced
 * while the server runs. A token that was exchanged for a key names the key's id and generation: when
 * the key goes, so do its tokens, and a key that comes back does not bring them back.
 */
#ifndef TKE_SERVER_KEY_RING_H
#define TKE_SERVER_KEY_RING_H

#include "service/service.h"

typedef struct tke_key_ring tke_key_ring;

/* lines: "KEY [requests=N] [tokens=N] [storage=N] [email=ADDRESS]", ended by NULL; NULL = no keys,
 * anyone may come. The address is what whoami answers; nothing is sent to it.
 * Errors: ARGUMENT names the line, never the key. */
tke_key_ring *tke_key_ring_new(tke_service *, const char *const *lines, tinkc_error *err);
void tke_key_ring_free(tke_key_ring *); /* NULL allowed */
/* The same later. On failure the old ones stay. Any thread. */
bool tke_key_ring_replace(tke_key_ring *, const char *const *lines, tinkc_error *err);
bool tke_key_ring_is_empty(tke_key_ring *);

typedef struct tke_identity {
    char owner[32];
    char key_id[TKE_KEY_ID];
    uint64_t generation;
    char email[TKE_EMAIL]; /* "" = none given */
} tke_identity;

/* Whose key or token this is; NULL = none was given. False: nobody's. Any thread. */
bool tke_key_ring_identify(tke_key_ring *, const char *given, tke_identity *out);

#endif
