/* checksums.h - hashes of a checkpoint's files, to detect corruption.
 *
 * A text file named "checksums" in the folder, a line for each file: 32 hex digits (a 128-bit hash
 * of its bytes), its size, its name. It is written last but one, before checkpoint_complete. A
 * folder without one was written by an older version and is accepted.
 */
#ifndef TKE_SERVICE_CHECKSUMS_H
#define TKE_SERVICE_CHECKSUMS_H

#include "base/err.h"

#define TKE_SUMS_FILE "checksums"

bool tke_sums_write(const char *folder, tinkc_error *err);
/* False: MODEL, and err names the file that differs, is missing, or cannot be read. */
bool tke_sums_check(const char *folder, tinkc_error *err);

#endif
