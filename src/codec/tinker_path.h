/* tinker_path.h - tinker:// paths. tinkc_path_parse and tinkc_path_join (tinkc/rest.h) are public
 * and implemented in tinker_path.c; this header adds the functions for spans. */
#ifndef TKC_CODEC_TINKER_PATH_H
#define TKC_CODEC_TINKER_PATH_H

#include "base/str.h"
#include "tinkc/rest.h"

/* *out points into `text`. Errors: PATH. */
bool tkc_tinker_path(tinkc_str text, tinkc_path *out, tinkc_error *err);
/* The same, and tinker://RUN/NAME, which open-source servers return for sampler saves: kind
 * SAMPLER, checkpoint_id NAME alone. For calls whose URL is built from the parts. Errors: ARGUMENT
 * (NULL), PATH. */
bool tkc_tinker_path_any(const char *path, tinkc_path *out, tinkc_error *err);
/* True if it begins with tinker:// and more follows. For paths that are passed to the service,
 * which defines the rest: open-source servers also return tinker://RUN/NAME. Errors: ARGUMENT,
 * PATH. */
bool tkc_tinker_path_given(const char *path, tinkc_error *err);

#endif
