/* assets.h - the files of ui/, as they were when the library was built (tools/embed.cmake). */
#ifndef TKE_PAGE_ASSETS_H
#define TKE_PAGE_ASSETS_H

#include <stddef.h>

typedef struct tke_asset {
    const char *name; /* "app.js" */
    const char *type; /* its Content-Type */
    const char *etag; /* quoted */
    const unsigned char *data;
    size_t len;
} tke_asset;

extern const tke_asset tke_assets[]; /* ended by one without a name */

/* NULL if there is no such file. */
const tke_asset *tke_asset_find(const char *name, size_t len);

#endif
