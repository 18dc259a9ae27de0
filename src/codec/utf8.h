/* utf8.h - UTF-8 validation. */
#ifndef TKC_CODEC_UTF8_H
#define TKC_CODEC_UTF8_H

#include "base/str.h"

/* Strict: no overlong forms, surrogates, or code points above U+10FFFF. */
bool tkc_utf8_valid(const void *bytes, size_t len);
/* Length of the longest prefix of complete, valid characters. */
size_t tkc_utf8_prefix(const void *bytes, size_t len);

#endif
