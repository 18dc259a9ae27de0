/* hub.h - tokenizers by model name: registered, cached on disk, or downloaded from a hub.
 *
 * One hub belongs to one client and is made with it, because it reads the environment.
 */
#ifndef TKC_API_HUB_H
#define TKC_API_HUB_H

#include "base/arena.h"
#include "tinkc/tokenizer.h"

typedef struct tkc_hub tkc_hub;

tkc_hub *tkc_hub_new(tinkc_client *, tinkc_error *err);
/* Once the I/O thread has ended. NULL allowed. */
void tkc_hub_free(tkc_hub *);

/* ---- hub_files.c: one repository in the cache of Hugging Face's own layout ---- */

typedef struct tkc_hub_place {
    const char *cache;    /* .../hub */
    const char *endpoint; /* "https://host", without a slash at its end */
    const char *token;    /* NULL = none */
    bool offline;
} tkc_hub_place;

/* What the environment says; texts in the arena. */
bool tkc_hub_place_read(tkc_hub_place *, tkc_arena *, tinkc_error *err);

struct tkc_stopper;
/* The folder with a repository's tokenizer files, downloaded if it is not there; in the arena.
 * revision "" = the newest. Waits. Errors: TOKENIZER, OFFLINE, CONNECTION, FILE. */
const char *tkc_hub_folder(tinkc_client *, struct tkc_stopper *, const tkc_hub_place *,
                           const char *repo, const char *revision, tkc_arena *, tinkc_error *err);

#endif
