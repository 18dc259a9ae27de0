/* tables.h - everything BPE needs, in one block of memory: built from a file's vocabulary, or
 * mapped from the compiled form of an earlier run.
 *
 * The block holds only offsets, no pointers. tkc_tables_attach checks every index before the block
 * is used, so a damaged or hostile file is an error and never a wild read. Immutable.
 */
#ifndef TKC_TOKENIZER_TABLES_H
#define TKC_TOKENIZER_TABLES_H

#include "base/arena.h"

enum {
    TKC_TOKEN_KNOWN = 1,     /* the id is in use */
    TKC_TOKEN_BYTES = 2,     /* text of the byte-level vocabulary: encoding may produce it */
    TKC_TOKEN_REACHABLE = 4, /* its own text merges into it */
    TKC_TOKEN_IRREGULAR = 8, /* reachable, but its merges are not in order of rank */
    TKC_TOKEN_WHOLE = 16,    /* a piece with exactly its text becomes this token */
    TKC_TOKEN_SOUND = 32     /* its text is well-formed by itself */
};

/* What a block was built from, to detect that it is stale. */
enum { TKC_ORIGIN_DIGEST = 32 };
typedef struct tkc_origin {
    uint64_t size, ctime_ns;
    unsigned char digest[TKC_ORIGIN_DIGEST]; /* SHA-256 */
} tkc_origin;

typedef struct tkc_word_slot {
    uint32_t tag; /* of the hash; 0 = free */
    int32_t id;
    uint32_t offset, len; /* of its text: copied from the offset table to save a lookup */
} tkc_word_slot;

/* A merge in eight bytes: left (20 bits), right (20), rank (24). All ones = a free slot. */
enum { TKC_MAX_IDS = (1 << 20) - 1, TKC_MAX_RANKS = (1 << 24) - 1 };
#define TKC_NO_PAIR UINT64_MAX
#define TKC_NO_RANK UINT32_MAX

typedef struct tkc_split {
    uint32_t left, right; /* the last merge of a reachable token; bytes: itself */
    uint32_t made;        /* rank of that merge + 1; bytes: 0 */
} tkc_split;

typedef struct tkc_trie_node {
    uint32_t child; /* the first child; children end where those of the next node begin */
    int32_t token;  /* reachable token that ends here, or -1 */
} tkc_trie_node;

typedef struct tkc_tables {
    uint32_t n;             /* ids are below it */
    uint32_t max_len;       /* of any token that encoding may produce */
    bool pieces; /* merging begins with characters; bytes stand for those without a token */
    bool ignore_merges;     /* a whole piece in the vocabulary wins over merges */
    bool all_bytes;         /* each byte has a token */
    bool regular;           /* no token is IRREGULAR */
    const uint32_t *offset; /* [n + 1] into text */
    const unsigned char *text;
    const uint8_t *flags;    /* [n] TKC_TOKEN_* */
    const int32_t *byte_ids; /* [256]; -1 = none */
    const tkc_word_slot *words;
    uint32_t word_shift; /* slot = hash >> shift */
    const uint64_t *pairs;
    uint32_t pair_shift;
    const uint64_t *pair_filter; /* one bit for the hash of each pair */
    uint32_t filter_shift;
    const uint32_t *byte_pairs; /* [65536] the rank of each two bytes; TKC_NO_RANK = none */
    const uint32_t *merged;     /* [n_ranks] what a merge makes */
    const uint32_t
        *levels; /* [n_ranks] merges of one level go from the left; NULL: each is its own */
    uint32_t n_ranks;
    const tkc_split *split;     /* [n] */
    const tkc_trie_node *nodes; /* [n_nodes + 1] in order of depth; 0 is the root */
    const uint8_t *labels;      /* [n_nodes] the byte that leads to a node */
    uint32_t n_nodes;
    const uint64_t *cut_pairs; /* one bit for the hash of each pair of characters inside a token */
    uint32_t cut_shift;
    const uint8_t *cut_bytes; /* [8192] a bit for each pair of bytes at a ragged edge */
    tinkc_str meta;           /* the rest of the tokenizer's file, as JSON */
    tkc_origin origin;

    /* Ownership of the block. */
    const void *block;
    size_t block_len;
    bool mapped;
} tkc_tables;

/* ---- building ---- */

typedef struct tkc_vocab_token {
    tinkc_str text; /* raw bytes */
    uint32_t id;
    bool is_bytes; /* false: literal text that encoding never produces */
} tkc_vocab_token;

typedef struct tkc_merge {
    uint32_t left, right, rank, id;
} tkc_merge;

/* Two steps, because merges refer to tokens by text: first the tokens are indexed, then the merges,
 * looked up with tkc_find_word in tkc_builder_tables, are passed in. All memory is from `temp`. */
typedef struct tkc_builder tkc_builder;
tkc_builder *tkc_builder_new(const tkc_vocab_token *tokens, size_t n, tkc_arena *temp,
                             tinkc_error *err);
/* Only words, texts and flags are set at this point. */
const tkc_tables *tkc_builder_tables(const tkc_builder *);

/* Adds tokens: `tokens` is the old list followed by tokens that encoding never produces. */
bool tkc_builder_add(tkc_builder *, const tkc_vocab_token *tokens, size_t n);

typedef struct tkc_merges {
    const tkc_merge *data; /* in order of rank; the last of equal pairs wins */
    size_t n;
    const uint32_t *levels; /* by rank, ascending; NULL = the rank itself */
    bool ignore_merges, pieces;
    tinkc_str meta;
    tkc_origin origin;
} tkc_merges;
/* Builds the block. Errors: TOKENIZER, MEMORY. */
bool tkc_builder_finish(tkc_builder *, const tkc_merges *, tkc_tables *out);

/* Checks a block and points into it. Takes ownership: tkc_tables_free releases it (munmap if
 * `mapped`). On failure the block stays the caller's. */
bool tkc_tables_attach(tkc_tables *, const void *block, size_t len, bool mapped, tinkc_error *err);
void tkc_tables_free(tkc_tables *);

/* A fast hash for our own files; not for untrusted keys. */
uint64_t tkc_block_hash(const void *data, size_t len);

/* ---- looking up ---- */

static inline uint64_t tkc_load64(const unsigned char *p)
{
    uint64_t v;
    __builtin_memcpy(&v, p, 8);
    return v;
}

uint64_t tkc_word_hash(const unsigned char *p, size_t len);
/* The token with exactly this text, regardless of its flags; -1 = none. */
int32_t tkc_find_word(const tkc_tables *, const unsigned char *p, size_t len);

static inline uint64_t tkc_pair_hash(uint32_t left, uint32_t right)
{
    uint64_t x = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    x ^= x >> 29;
    return x * UINT64_C(0xBF58476D1CE4E5B9);
}

static inline uint64_t tkc_pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 44 | (uint64_t)right << 24;
}

/* The rank of the merge of two tokens, or TKC_NO_RANK. The result is t->merged[rank]. */
static inline uint32_t tkc_pair_rank(const tkc_tables *t, uint32_t left, uint32_t right)
{
    uint64_t h = tkc_pair_hash(left, right), bit = h >> t->filter_shift;
    if (!(t->pair_filter[bit >> 6] >> (bit & 63) & 1))
        return TKC_NO_RANK;
    uint64_t mask = (UINT64_C(1) << (64 - t->pair_shift)) - 1, key = tkc_pair_key(left, right);
    for (uint64_t i = h >> t->pair_shift;; i = (i + 1) & mask) {
        if ((t->pairs[i] ^ key) >> 24 == 0)
            return (uint32_t)t->pairs[i] & TKC_MAX_RANKS;
        if (t->pairs[i] == TKC_NO_PAIR)
            return TKC_NO_RANK;
    }
}

/* Which merge comes first: the lowest level, then the leftmost. */
static inline uint32_t tkc_merge_level(const tkc_tables *t, uint32_t rank)
{
    return t->levels && rank != TKC_NO_RANK ? t->levels[rank] : rank;
}

static inline tinkc_bytes tkc_token_text(const tkc_tables *t, uint32_t id)
{
    return (tinkc_bytes){ t->text + t->offset[id], t->offset[id + 1] - t->offset[id] };
}

/* A token that is in the vocabulary as plain text, not as byte-level text. */
static inline bool tkc_is_literal(const tkc_tables *t, uint32_t id)
{
    return (t->flags[id] & (TKC_TOKEN_KNOWN | TKC_TOKEN_BYTES)) == TKC_TOKEN_KNOWN;
}

/* True if the merges of `left` and `right` side by side do not cross the border between them before
 * rank `limit` (UINT32_MAX: ever). Both must be reachable and regular. */
bool tkc_pair_stays(const tkc_tables *, uint32_t left, uint32_t right, uint32_t limit);

#endif
