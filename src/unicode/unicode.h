/* unicode.h - UTF-8 and the character classes that pre-tokenisation needs.
 *
 * Tables: unicode_data.c (Unicode 16.0, written by tools/unicode-tables).
 */
#ifndef TKC_TOKENIZER_UNICODE_H
#define TKC_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bits of a class. A letter has one of the first three; Lm and Lo are neither upper nor lower. */
enum {
    TKC_UPPER = 1, /* Lu, Lt */
    TKC_LOWER = 2, /* Ll */
    TKC_OTHER_LETTER = 4,
    TKC_LETTER = 7,
    TKC_MARK = 8,
    TKC_NUMBER = 16,
    TKC_PUNCT = 32, /* P and S */
    TKC_SPACE = 64, /* White_Space */
    TKC_HAN = 128   /* the script, in any category */
};

enum { TKC_NFC_CHECK = 1, TKC_NFC_YOUNG = 2 };

extern const uint8_t tkc_class_index[8704];
extern const uint8_t tkc_class_blocks[][128];
extern const uint8_t tkc_nfc_index[8704];
extern const uint8_t tkc_nfc_blocks[][128];

static inline uint8_t tkc_class_of(uint32_t c)
{
    return tkc_class_blocks[tkc_class_index[c >> 7]][c & 127];
}

static inline uint8_t tkc_nfc_of(uint32_t c)
{
    return tkc_nfc_blocks[tkc_nfc_index[c >> 7]][c & 127];
}

/* The character at *p, which must be well-formed; moves *p past it. */
static inline uint32_t tkc_next_char(const unsigned char **p)
{
    const unsigned char *s = *p;
    if (s[0] < 0x80) {
        *p = s + 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *p = s + 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3Fu);
    }
    if (s[0] < 0xF0) {
        *p = s + 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3Fu);
    }
    *p = s + 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
           (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3Fu);
}

static inline size_t tkc_char_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Where the character before p begins; p must follow a complete character. */
static inline const unsigned char *tkc_char_before(const unsigned char *p)
{
    do
        p--;
    while ((*p & 0xC0) == 0x80);
    return p;
}

/* \w as the reference uses it around single_word tokens: letters, marks, digits, numbers that are
 * letters, circled letters, connecting punctuation, joiners. */
bool tkc_is_word_char(uint32_t c);

/* Characters that may be missing from PCRE2's tables. */
typedef struct tkc_young_range {
    uint32_t from, to;
    char category[3];
    uint8_t han;
} tkc_young_range;

/* The next of them after `last` (NULL = the first) that has a property ("L", "Lu", "Nd", "Han"). */
const tkc_young_range *tkc_young_next(const tkc_young_range *last, const char *property);

/* Writes c as UTF-8 and returns its length. */
size_t tkc_put_char(unsigned char out[4], uint32_t c);

/* Length of the longest well-formed prefix. *needs_nfc (may be NULL) is set if a character in it
 * may change under NFC. */
size_t tkc_utf8_sound(const unsigned char *p, size_t len, bool *needs_nfc);
/* Length of the longest prefix of well-formed text with no character that may change under NFC. */
size_t tkc_nfc_prefix(const unsigned char *p, size_t len);
/* The ill-formed sequence at p: how many bytes one U+FFFD replaces (the maximal subpart), 1 to 3.
 * *may_go_on: the input ends inside the sequence, and more bytes could complete it. */
size_t tkc_utf8_broken(const unsigned char *p, size_t len, bool *may_go_on);

#endif
