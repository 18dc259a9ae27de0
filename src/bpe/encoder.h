/* encoder.h - one thread's encoding of one text: pieces into tokens through caches of words.
 *
 * A scratch holds an encoder's caches: it belongs to one encoder at a time and returns to the
 * tokenizer with its caches warm. Caches only repeat earlier results of BPE.
 */
#ifndef TKC_TOKENIZER_ENCODER_H
#define TKC_TOKENIZER_ENCODER_H

#include "base/buf.h"
#include "bpe/bpe.h"
#include "unicode/nfc.h"
#include "tokenizer/tokenizer_priv.h"

enum {
    TKC_WORD_BYTES = 15, /* longest key of the word cache */
    TKC_WORD_BITS = 16,  /* of its index: lines of two entries */
    TKC_WORD_IDS = 3,    /* most ids of an entry */
    TKC_SPLIT_BITS = 12, /* the same for words of more ids */
    TKC_SPLIT_IDS = 11,
    TKC_PHRASE_BYTES = 118, /* the same for the cache of longer ones */
    TKC_PHRASE_BITS = 12,
    TKC_PHRASE_IDS = 32
};

/* Two per cache line, the newer first. The last byte of the key is its length, so no key is all
 * zeros. */
typedef struct tkc_word_entry {
    uint64_t lo, hi;
    int32_t ids[TKC_WORD_IDS];
    uint32_t n;
} tkc_word_entry;

/* One per cache line. */
typedef struct tkc_split_entry {
    uint64_t lo, hi;
    int32_t ids[TKC_SPLIT_IDS];
    uint32_t n;
} tkc_split_entry;

typedef struct tkc_phrase_entry {
    uint64_t hash;
    uint8_t len, n;
    unsigned char key[TKC_PHRASE_BYTES];
    int32_t ids[TKC_PHRASE_IDS];
} tkc_phrase_entry;

/* One block, so that it needs few large pages: the first text pays for each page it touches. */
typedef struct tkc_caches {
    tkc_word_entry words[2 << TKC_WORD_BITS];
    tkc_split_entry splits[1 << TKC_SPLIT_BITS];
    tkc_phrase_entry phrases[1 << TKC_PHRASE_BITS];
    tkc_char_entry chars[TKC_BPE_CHARS];
} tkc_caches;

struct tkc_scratch {
    tkc_scratch *next; /* in the tokenizer's list of free ones */
    const tinkc_allocator *a;
    tkc_caches *caches;
    tkc_bpe_work work;
    tkc_buf normal; /* the normal form of a gap */
    tkc_origins origins;
};

/* Takes a scratch from the cache or makes one; puts it back. */
tkc_scratch *tkc_scratch_take(const tinkc_tokenizer *, tinkc_error *err);
void tkc_scratch_return(const tinkc_tokenizer *, tkc_scratch *);
void tkc_scratch_free(tkc_scratch *);

typedef struct tkc_encoder {
    const tinkc_tokenizer *tok;
    const tkc_tables *t;
    tkc_scratch *s;
    tinkc_tokens *out;
    tinkc_sizes *offsets;          /* NULL = not wanted */
    const unsigned char *readable; /* sixteen bytes can be read at any position before it */
    size_t base;                   /* offset of the current text */
    const tkc_origins *origins;    /* of the current text, if it was normalised; else NULL */
    tkc_regex_budget budget;       /* of the whole text */
    tinkc_error *err;
} tkc_encoder;

/* Room for n more ids in out. */
bool tkc_encoder_room(tkc_encoder *, size_t n);

/* Encodes text between added tokens: pre-tokenises it and appends its tokens. Well-formed UTF-8. */
bool tkc_encode_gap(tkc_encoder *, const unsigned char *p, size_t len);

#endif
