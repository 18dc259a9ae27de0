/* tables_layout.h - the layout of the block of tables, in memory and on disk. */
#ifndef TKC_TOKENIZER_TABLES_LAYOUT_H
#define TKC_TOKENIZER_TABLES_LAYOUT_H

#include "bpe/tables.h"

/* The last byte is the version of the layout: change it with anything below, or with the meaning
 * of a table. */
#define TKC_BLOCK_MAGIC "TKCTOK\0\6"
#define TKC_BLOCK_ORDER 0x01020304u

enum {
    TKC_BLOCK_IGNORE_MERGES = 1,
    TKC_BLOCK_ALL_BYTES = 2,
    TKC_BLOCK_REGULAR = 4,
    TKC_BLOCK_PIECES = 8
};

enum {
    TKC_SEC_OFFSET,
    TKC_SEC_TEXT,
    TKC_SEC_FLAGS,
    TKC_SEC_BYTES,
    TKC_SEC_WORDS,
    TKC_SEC_PAIRS,
    TKC_SEC_FILTER,
    TKC_SEC_BYTE_PAIRS,
    TKC_SEC_MERGED,
    TKC_SEC_LEVELS, /* may be empty */
    TKC_SEC_SPLIT,
    TKC_SEC_NODES,
    TKC_SEC_LABELS,
    TKC_SEC_CUT_PAIRS,
    TKC_SEC_CUT_BYTES,
    TKC_SEC_META,
    TKC_SECTIONS
};

typedef struct tkc_block_section {
    uint64_t offset, len; /* offset: a multiple of 16; sections do not overlap, in this order */
} tkc_block_section;

typedef struct tkc_block_header {
    char magic[8];
    uint32_t byte_order, flags;
    uint64_t total;    /* bytes of the whole block */
    uint64_t checksum; /* of everything after the header */
    tkc_origin origin;
    uint32_t n, n_nodes, max_len, n_ranks;
    tkc_block_section sections[TKC_SECTIONS];
} tkc_block_header;

#endif
