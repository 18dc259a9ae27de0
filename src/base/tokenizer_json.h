/* tokenizer_json.h - reads a tokenizer.json once, from front to back, for each of its users:
 * the tokenizer all of it, the service the bytes of each token, GGUF files the tables.
 *
 *     static const tkc_tokenizer_reader reader = { .token = keep_token };
 *     tkc_tokenizer_json file;
 *     tkc_json_open(&file.j, text, &arena, err);
 *     tkc_tokenizer_read(&file, &reader, &mine);
 *     tkc_tokenizer_added(&file, &arena, keep_added, &mine);
 *
 * What a reader does not ask for is skipped; what it refuses is its own affair. Errors have the code
 * file.j.code and name the byte or the merge.
 */
#ifndef TKC_BASE_TOKENIZER_JSON_H
#define TKC_BASE_TOKENIZER_JSON_H

#include "base/json_read.h"

/* ---- byte-level text ---- */

/* Vocabularies write each byte as a printable character: printable bytes stand for themselves, the
 * other 68 are mapped to U+0100 and up, in order. This is the way back; 256 = no byte. */
enum { TKC_BYTE_LETTERS = 0x144 };
void tkc_byte_letters(uint16_t map[TKC_BYTE_LETTERS]);
/* Text (UTF-8) to bytes, into out (room for text.len); how many, or SIZE_MAX if a character stands
 * for no byte. */
size_t tkc_from_letters(const uint16_t map[TKC_BYTE_LETTERS], tinkc_str text, unsigned char *out);

/* ---- pieces ---- */

/* Vocabularies of SentencePiece are plain text in which U+2581 stands for a space; <0x00> to <0xFF>
 * are bytes, for characters without a piece. This is the way back; out: room for text.len. */
size_t tkc_from_piece(tinkc_str text, unsigned char *out);
/* Which byte a piece stands for; -1 = it is text. */
int tkc_piece_byte(tinkc_str text);

/* ---- the file ---- */

/* Found in a text before any other processing. */
typedef struct tkc_added_token {
    const char *text; /* terminated; may hold NUL bytes, so len counts */
    size_t len;
    int32_t id;
    bool special, normalized, single_word, lstrip, rstrip;
} tkc_added_token;

/* What is called for the parts of the model. A function that returns false has failed, with an error.
 * NULL = skipped. */
typedef struct tkc_tokenizer_reader {
    bool (*token)(void *user, tinkc_str text, int64_t id);
    /* All tokens are known by then, wherever the merges are in the file. */
    bool (*merge)(void *user, tinkc_str left, tinkc_str right);
    /* Another member of the model, or of the file; reads or skips its value. A vocabulary that is not
     * an object and merges that are not a list are such members, too. */
    void (*option)(void *user, tkc_json *, tinkc_str key);
    void (*other)(void *user, tkc_json *, tinkc_str key);
} tkc_tokenizer_reader;

typedef struct tkc_tokenizer_json {
    tkc_json j;
    bool has_model, has_vocab, has_merges;
    bool
        pieces; /* tokens are pieces, not byte-level text: the decoder says so; known before they are read */
    size_t n_merges; /* read so far */
    /* As in the text; data NULL = absent. */
    tinkc_str added, normalizer, pre_tokenizer, post_processor, decoder;
} tkc_tokenizer_json;

/* file->j is open; it is closed, the other members are set here. */
bool tkc_tokenizer_read(tkc_tokenizer_json *file, const tkc_tokenizer_reader *, void *user);
/* A reader of one of the parts above; errors give positions in the whole file. */
void tkc_tokenizer_part(const tkc_tokenizer_json *file, tinkc_str part, tkc_json *j);
/* Its added tokens, in the order of the file; `id` as given there, or -1. Texts are in the arena. */
bool tkc_tokenizer_added(const tkc_tokenizer_json *file, tkc_arena *,
                         bool (*added)(void *user, tkc_added_token, int64_t id), void *user);
/* One object of the form {"content": ..., "special": ..., ...}. */
tkc_added_token tkc_read_added_token(tkc_json *, tkc_arena *, int64_t *id);

#endif
