/* load.h - from files to a tokenizer: the readers and what they pass to each other. */
#ifndef TKC_TOKENIZER_LOAD_H
#define TKC_TOKENIZER_LOAD_H

#include "base/json_read.h"
#include "tokenizer/tokenizer_priv.h"

enum {
    TKC_MAX_TOKENIZER_FILE = 1 << 30, /* uncompressed */
    TKC_MAX_CONFIG_FILE = 64 << 20
};

/* ---- byte-level text ---- */

/* Byte-level text back to bytes, into out (room for text.len); how many, or SIZE_MAX if a
 * character does not map to a byte. */
size_t tkc_from_byte_level(tinkc_str text, unsigned char *out);

/* ---- vocabularies into tables ---- */

/* tokenizer.json. Everything but the model goes into the block's meta, added tokens with their
 * ids. */
bool tkc_read_tokenizer_json(tinkc_str text, tkc_origin origin, tkc_tables *out, tkc_arena *temp,
                             tinkc_error *err);
/* A tiktoken rank file. */
bool tkc_read_tiktoken(tinkc_str text, tkc_origin origin, tkc_tables *out, tkc_arena *temp,
                       tinkc_error *err);

/* vocab.json and merges.txt in a folder without a tokenizer.json. *defaults: a config with the
 * default special tokens of such models. */
bool tkc_read_legacy(const char *folder, tkc_tables *out, const char **defaults, tkc_arena *temp,
                     tinkc_error *err);
/* Whether there are such files. */
bool tkc_is_legacy(const char *folder, tkc_arena *temp, tinkc_error *err);

/* ---- the rest ---- */

/* Added tokens, normalizer, pre-tokenizer, post-processor, decoder: from the tables' meta. */
bool tkc_read_meta(tinkc_tokenizer *, tinkc_error *err);

/* Files in the format of tokenizer_config.json; each overrides the one before; data NULL = absent.
 * Read before the added tokens are indexed, because they may add some. */
typedef struct tkc_configs {
    tinkc_str defaults, special_map, config; /* special_map: special_tokens_map.json */
    tinkc_str generation;                    /* generation_config.json */
} tkc_configs;
bool tkc_read_config(tinkc_tokenizer *, const tkc_configs *, tinkc_error *err);
/* Sets what a tiktoken file does not contain: pattern and special tokens, from its size and the
 * config's added tokens (raw JSON, or empty). */
bool tkc_set_up_tiktoken(tinkc_tokenizer *, tinkc_str added_tokens_decoder, tinkc_error *err);

/* Adds a token that is not in the vocabulary files, with the next free id, unless it exists. */
tkc_added_token *tkc_add_token(tinkc_tokenizer *, tkc_added_token token, tinkc_error *err);
/* Makes tkc_spelled_id fast, for many lookups. */
bool tkc_index_literals(tinkc_tokenizer *, tinkc_error *err);
tkc_added_token *tkc_find_added(const tinkc_tokenizer *, tinkc_str text);
bool tkc_add_template(tinkc_tokenizer *, tinkc_str name, tinkc_str text, tinkc_error *err);

/* Indexes the added tokens; nothing is added afterwards. */
bool tkc_finish_tokenizer(tinkc_tokenizer *, tinkc_error *err);

/* ---- the compiled form ---- */

/* Tables from the compiled form of `source`, if there is one that is not stale. Never an error:
 * false = none. */
bool tkc_cache_read(const char *source, const char *user_cache, tkc_tables *out);
/* Writes it into the user's cache folder; silent if that is not possible. */
void tkc_cache_write(const char *source, const char *user_cache, const tkc_tables *tables);
/* Size and change time of a file, without its digest; false if it does not exist. */
bool tkc_origin_of(const char *source, tkc_origin *out);
void tkc_origin_digest(const void *data, size_t len, unsigned char out[TKC_ORIGIN_DIGEST]);

#endif
