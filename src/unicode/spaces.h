/* spaces.h - the normal form of a text whose vocabulary consists of pieces (SentencePiece).
 *
 * Such vocabularies write a space as U+2581. Here they are kept with spaces instead, so that a text needs
 * no change but the space that may come before it; a U+2581 in the text is a space as well.
 */
#ifndef TKC_UNICODE_SPACES_H
#define TKC_UNICODE_SPACES_H

#include "unicode/nfc.h"

/* Whether a text begins with a space or U+2581. */
bool tkc_begins_with_space(const unsigned char *text, size_t len);
/* As tkc_nfc. `prefix`: a space comes first; it has the origin of the first character. */
bool tkc_spaces(const unsigned char *text, size_t len, bool prefix, tkc_buf *out,
                tkc_origins *origins, bool *changes, tinkc_error *err);

#endif
