/* bpe.h - one piece of text into tokens, by merges only.
 *
 * Three algorithms with the same result: a simple one for short pieces, a walk in linear time, and
 * a heap for vocabularies that the walk cannot handle. Tests compare them. All write at most `len`
 * ids to out and return how many; bytes without a token are left out, and their neighbours may then
 * merge. Merging begins with bytes; in a vocabulary of pieces (SentencePiece), with characters, and
 * with the bytes of those that are not a piece.
 */
#ifndef TKC_TOKENIZER_BPE_H
#define TKC_TOKENIZER_BPE_H

#include "bpe/tables.h"

enum {
    TKC_BPE_SHORT = 48,       /* most bytes for the simple algorithm */
    TKC_BPE_LONG_TOKEN = 256, /* a vocabulary with longer tokens needs the heap */
    TKC_BPE_FAILED = -1       /* no memory: err is set */
};

/* Work memory for long pieces, reused by the next one. Zeroed = empty. */
typedef struct tkc_bpe_work {
    const tinkc_allocator *a;
    void *data;
    size_t cap;
} tkc_bpe_work;

void tkc_bpe_work_free(tkc_bpe_work *);

/* len <= TKC_BPE_SHORT. */
size_t tkc_bpe_short(const tkc_tables *, const unsigned char *p, size_t len, int32_t *out);
/* Cache entry: the tokens of a character by itself. Zeroed = empty. */
enum { TKC_BPE_CHARS = 1 << 14 };
typedef struct tkc_char_entry {
    uint32_t c, n; /* n: how many tokens */
    uint32_t ids[4];
    uint32_t made; /* highest rank of a merge inside it + 1 */
} tkc_char_entry;

/* The same for well-formed UTF-8, starting from whole characters, with a cache of TKC_BPE_CHARS
 * entries; needs a token for each byte. Exact only if no merge crosses the border between two
 * characters before both are complete; where that is not certain, it calls tkc_bpe_short. */
size_t tkc_bpe_chars(const tkc_tables *, tkc_char_entry *chars, const unsigned char *p, size_t len,
                     int32_t *out);
/* Any length below 2^31; O(n log n). */
int64_t tkc_bpe_heap(const tkc_tables *, tkc_bpe_work *, const unsigned char *p, size_t len,
                     int32_t *out, tinkc_error *err);
/* Any length below 2^31; needs t->max_len <= TKC_BPE_LONG_TOKEN, a token for each byte, and no
 * vocabulary of pieces. */
int64_t tkc_bpe_walk(const tkc_tables *, tkc_bpe_work *, const unsigned char *p, size_t len,
                     int32_t *out, tinkc_error *err);
/* Chooses the algorithm. */
int64_t tkc_bpe(const tkc_tables *, tkc_bpe_work *, const unsigned char *p, size_t len,
                int32_t *out, tinkc_error *err);

/* Whether some token holds these two bytes side by side at a border between two characters without
 * holding both characters completely. */
static inline bool tkc_is_ragged(const tkc_tables *t, unsigned char before, unsigned char at)
{
    uint32_t bytes = (uint32_t)before << 8 | at;
    return t->cut_bytes[bytes >> 3] >> (bytes & 7) & 1;
}

/* True if no token of the vocabulary crosses the border before p[at], so both sides can be merged
 * separately. Characters of well-formed UTF-8 begin at both `before` and `at`. */
static inline bool tkc_can_cut(const tkc_tables *t, uint32_t before_char, uint32_t at_char,
                               unsigned char before_byte, unsigned char at_byte)
{
    uint64_t bit = tkc_pair_hash(before_char, at_char) >> t->cut_shift;
    return !tkc_is_ragged(t, before_byte, at_byte) && !(t->cut_pairs[bit >> 6] >> (bit & 63) & 1);
}

#endif
