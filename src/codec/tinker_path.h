/* tinker_path.h - tinker:// paths. tinkc_path_parse and tinkc_path_join (tinkc/rest.h) are public
 * and implemented beside this header; this is the form for spans. */
#ifndef TKC_CODEC_TINKER_PATH_H
#define TKC_CODEC_TINKER_PATH_H

#include "base/str.h"
#include "tinkc/rest.h"

/* *out lies in `text`. Errors: PATH. */
bool tkc_tinker_path(tinkc_str text, tinkc_path *out, tinkc_error *err);
/* The same, and tinker://RUN/NAME, which open servers give to saves for a sampler: kind SAMPLER,
 * checkpoint_id NAME alone. For calls whose address is made from the parts. Errors: ARGUMENT
 * (NULL), PATH. */
bool tkc_tinker_path_any(const char *path, tinkc_path *out, tinkc_error *err);
/* Begins with tinker:// and names something. Where the service reads the path, its form is the
 * service's business: open servers also give out tinker://RUN/NAME. Errors: ARGUMENT, PATH. */
bool tkc_tinker_path_given(const char *path, tinkc_error *err);

#endif
