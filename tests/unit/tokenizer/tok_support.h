/* tok_support.h - what the tokenizer's tests share: opening, encoding, random text. */
#ifndef TOK_SUPPORT_H
#define TOK_SUPPORT_H

#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/str.h"
#include "support/test_case.h"
#include "tinkc/tinkc.h"
#include "unicode/unicode.h"

#define TINY     "tests/data/tokenizer/tiny"
#define TINY_NFC "tests/data/tokenizer/tiny-nfc"
#define SHARED   "../shared/data/tokenizers"

static inline tinkc_tokenizer *open_tokenizer(const char *path)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer_options o = { .no_compiled_cache = true };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(path, &o, &err);
    if (!tok)
        fail_msg("%s: %s", path, err.message);
    return tok;
}

static inline tinkc_tokens encode_all(const tinkc_tokenizer *tok, const void *text, size_t len)
{
    tinkc_error err = { 0 };
    tinkc_tokens out = { 0 };
    if (!tinkc_encode_span(tok, text, len, NULL, &out, NULL, &err))
        fail_msg("%s", err.message);
    return out;
}

static inline void assert_same_ids(const tinkc_tokens *got, const int32_t *want, size_t n)
{
    assert_int_equal(got->len, n);
    if (n)
        assert_memory_equal(got->data, want, n * sizeof *want);
}

/* xorshift: the same text on every run. */
typedef struct dice {
    uint64_t state;
} dice;

static inline uint32_t roll(dice *d, uint32_t below)
{
    d->state ^= d->state << 13;
    d->state ^= d->state >> 7;
    d->state ^= d->state << 17;
    return (uint32_t)((d->state >> 11) % below);
}

/* Ranges of characters that tell families apart. */
static inline uint32_t random_char(dice *d)
{
    static const uint32_t ranges[][2] = {
        { 'a', 26 },       { 'A', 26 },      { '0', 10 },     { ' ', 1 },       { ' ', 1 },     { '\t', 5 },
        { '!', 15 },       { ':', 7 },       { '[', 6 },      { '\'', 1 },      { 0xA0, 95 },   { 0x100, 256 },
        { 0x300, 112 },    { 0x370, 300 },   { 0x5D0, 27 },   { 0x660, 10 },    { 0x900, 128 }, { 0xE00, 90 },
        { 0x1100, 200 },   { 0x2000, 48 },   { 0x2028, 2 },   { 0x2150, 60 },   { 0x3000, 64 }, { 0x3040, 190 },
        { 0x4E00, 20000 }, { 0xAC00, 2000 }, { 0x1F600, 64 }, { 0x20000, 500 }, { 0, 32 },      { 0x1C4, 9 },
        { 0x17F, 1 },      { 0x2E80, 100 },  { 0xFF10, 60 },  { 0x10400, 80 },  { 0x85, 1 },
    };
    uint32_t i = roll(d, sizeof ranges / sizeof *ranges);
    return ranges[i][0] + roll(d, ranges[i][1]);
}

/* Up to `chars` random characters into out (room for four bytes each); returns the length. */
static inline size_t random_text(dice *d, unsigned char *out, uint32_t chars)
{
    size_t n = 0;
    for (uint32_t i = roll(d, chars) + 1; i > 0; i--) {
        uint32_t c = random_char(d);
        for (uint32_t times = roll(d, 4) ? 1 : roll(d, 5) + 1; times > 0 && i > 0; times--, i--)
            n += tkc_put_char(out + n, c);
        if (i == 0)
            break;
    }
    return n;
}

#endif
