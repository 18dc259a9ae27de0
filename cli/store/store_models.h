/* store_models.h - which folder each base model of a store came from.
 *
 * A run knows its base model by name alone. Models that were given as a folder, or pulled from a hub,
 * are written down in the store (models.json), so that any later command finds them again.
 */
#ifndef CLI_STORE_MODELS_H
#define CLI_STORE_MODELS_H

#include "cli/main/app.h"

/* Remembers that a model lies in a folder. False with errno set. */
bool cli_store_models_set(const char *store, const char *name, const char *folder);
/* The folder of a name; yours, NULL = not remembered. */
char *cli_store_models_get(const char *store, const char *name);
/* Adds all that are remembered and still there to an engine. */
void cli_store_models_restore(tinkc_engine *, const char *store);
/* The shipped model, then those. False if the shipped one fails. store may be NULL. */
bool cli_store_models_add(tinkc_engine *, const char *store, tinkc_error *err);

#endif
