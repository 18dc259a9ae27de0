/* user_cache.h - files that can be made again, in this user's cache folder.
 *
 * What lies there is used as it is, so it must be the user's own: a model's folder may come from a hub, and a
 * file in it that claims to be made from its neighbours proves nothing.
 */
#ifndef TKC_BASE_USER_CACHE_H
#define TKC_BASE_USER_CACHE_H

#include "base/arena.h"

/* PART of tinkc's folder in $XDG_CACHE_HOME, else in ~/.cache; "" = neither is set. NULL if memory is
 * exhausted. It may not exist yet. */
const char *tkc_cache_folder(tkc_arena *, const char *part, tinkc_error *err);

/* Are both the folder and the file in it ours, and writable by no one else? Follows no link to the file. */
bool tkc_cache_trusted(const char *path, const char *folder);

#endif
