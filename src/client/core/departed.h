/* departed.h - clients that the program has freed, until their I/O threads have ended.
 *
 * Futures, trainers and samplers that are freed later end on the I/O thread, so it may drop the last reference after
 * tinkc_client_free has returned. If the process exits meanwhile, its exit handlers first end these clients and wait
 * for their threads.
 */
#ifndef TKC_API_DEPARTED_H
#define TKC_API_DEPARTED_H

#include "client/core/client_priv.h"

/* A client is made: from now on the end of the process is watched. */
void tkc_departed_watch(void);

/* The program frees its handle; the caller still has that reference. While exit handlers run, ends the client at once:
 * no handler will come any more. */
void tkc_departed_add(tinkc_client *);

/* The last reference is gone: the caller, or the I/O thread, frees the client now. */
void tkc_departed_ending(tinkc_client *);
/* It has been freed. */
void tkc_departed_ended(void);

#endif
