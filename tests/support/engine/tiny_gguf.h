/* tiny_gguf.h - small GGUF files for tests, written byte by byte, and the model folder that such a
 * file stands for. */
#ifndef TESTS_TINY_GGUF_H
#define TESTS_TINY_GGUF_H

#include "base/buf.h"
#include "math/dtype.h"
#include "support/engine/tiny_model.h"

/* ---- bytes ---- */

typedef struct gguf_bytes {
    tkc_buf keys, tensors, data;
    uint64_t n_keys, n_tensors;
} gguf_bytes;

void gguf_bytes_init(gguf_bytes *);
void gguf_bytes_free(gguf_bytes *);
void gguf_put(tkc_buf *, uint64_t value, size_t bytes);
void gguf_put_text(tkc_buf *, const char *text);
void gguf_key_u32(gguf_bytes *, const char *key, uint32_t value);
void gguf_key_f32(gguf_bytes *, const char *key, float value);
void gguf_key_bool(gguf_bytes *, const char *key, bool value);
void gguf_key_text(gguf_bytes *, const char *key, const char *value);
void gguf_key_texts(gguf_bytes *, const char *key, const char *const *values, size_t n);
void gguf_key_i32s(gguf_bytes *, const char *key, const int32_t *values, size_t n);
void gguf_key_f32s(gguf_bytes *, const char *key, const float *values, size_t n);
/* dims fastest first. */
void gguf_tensor(gguf_bytes *, const char *name, uint32_t type, const uint64_t *dims, size_t n_dims, const void *data,
                 size_t bytes);
/* The file: header, keys, tensors, data. */
void gguf_whole(const gguf_bytes *, tkc_buf *out);
void gguf_save(const gguf_bytes *, const char *path);

/* ---- models ---- */

/* A GGUF file whose matrices are random blocks of a format, folder/model.gguf, and beside it the
 * folder of the bf16 model that it stands for. The caller ends it with tiny_model_remove. */
char *tiny_gguf_make(const tiny_model *, tke_dtype format);

#endif
