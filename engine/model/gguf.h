/* gguf.h - writing GGUF files (version 3), the form that llama.cpp and ollama read.
 *
 * First all keys, then all tensors by name and shape, then the file is opened and the tensors' rows
 * are written in the same order. Keys and names are ours; values come from model folders and are
 * checked by the code that reads those.
 */
#ifndef TKE_MODEL_GGUF_H
#define TKE_MODEL_GGUF_H

#include "base/buf.h"
#include "base/gguf_read.h"
#include "model/model_config.h"

enum { /* element types, by their numbers in files */
       TKE_GGUF_F32 = 0,
       TKE_GGUF_F16 = 1,
       TKE_GGUF_Q4_0 = 2, /* blocks of 32: a scale in f16, 16 bytes */
       TKE_GGUF_Q8_0 = 8, /* blocks of 32: a scale in f16, 32 bytes */
       TKE_GGUF_BF16 = 30
};
enum { TKE_GGUF_BLOCK = 32 };

typedef struct tke_gguf {
    tkc_buf keys, tensors;
    uint64_t n_keys, n_tensors;
    uint64_t data_bytes; /* of the tensors declared so far, padding included */
    uint64_t written;    /* of the tensor at hand */
    const char *path;    /* borrowed */
    char *temp;          /* beside it; in the arena */
    int fd;              /* -1 = not open */
} tke_gguf;

void tke_gguf_init(tke_gguf *);
/* Frees it; an unfinished file is removed. */
void tke_gguf_end(tke_gguf *);

void tke_gguf_u32(tke_gguf *, const char *key, uint64_t value, tinkc_error *err);
void tke_gguf_f32(tke_gguf *, const char *key, double value, tinkc_error *err);
void tke_gguf_bool(tke_gguf *, const char *key, bool value, tinkc_error *err);
void tke_gguf_str(tke_gguf *, const char *key, tinkc_str value, tinkc_error *err);
void tke_gguf_strs(tke_gguf *, const char *key, const tinkc_str *values, size_t n,
                   tinkc_error *err);
void tke_gguf_i32s(tke_gguf *, const char *key, const int32_t *values, size_t n, tinkc_error *err);
/* As it stands in another file. */
void tke_gguf_value(tke_gguf *, const char *key, const tkc_gguf_value *, tinkc_error *err);

/* A tensor of n times `rows` rows of `cols` numbers; n 0 = a matrix, rows 0 = a vector. */
void tke_gguf_tensor(tke_gguf *, const char *name, int type, size_t n, size_t rows, size_t cols,
                     tinkc_error *err);

/* Opens a temporary file beside the final name and writes all that was declared. */
bool tke_gguf_open(tke_gguf *, const char *path, tkc_arena *, tinkc_error *err);
/* Writes the next row of the current tensor, rounded once to its type. MODEL: a value does not
 * fit. */
bool tke_gguf_row(tke_gguf *, int type, const float *row, size_t cols, const char *name,
                  tinkc_error *err);
/* All of the current tensor, as it is stored. */
bool tke_gguf_raw(tke_gguf *, const void *bytes, size_t n, tinkc_error *err);
/* Call after the last row of each tensor. */
bool tke_gguf_pad(tke_gguf *, tinkc_error *err);
/* Syncs and renames. */
bool tke_gguf_close(tke_gguf *, tinkc_error *err);

/* gguf_vocab.c: the tokenizer and the chat template of a model folder as keys. Only byte-level BPE
 * with a pre-tokenizer that llama.cpp knows; others are UNSUPPORTED, by name. */
bool tke_gguf_vocab(tke_gguf *, const char *folder, const tke_config *, tkc_arena *,
                    tinkc_error *err);

#endif
