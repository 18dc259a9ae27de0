/* gguf_read.h - reads untrusted GGUF files: their keys and their table of tensors.
 *
 *     tkc_gguf g = { 0 };
 *     if (tkc_gguf_read(&g, bytes, path, &err)) {
 *         uint64_t layers = tkc_gguf_u64(&g, "llama.block_count", 0, &err);
 *         ...
 *     }
 *     tkc_gguf_free(&g);
 *
 * Values stay in the bytes, which the caller keeps. All of the header is checked before anything is
 * used: counts, lengths, kinds, names that occur twice. What a tensor's type means, and so how many
 * bytes it has, is the engine's. Errors are TINKC_E_MODEL and name the file and the key.
 */
#ifndef TKC_BASE_GGUF_READ_H
#define TKC_BASE_GGUF_READ_H

#include "base/arena.h"
#include "base/map.h"

enum { TKC_GGUF_MAX_DIMS = 4 };

enum tkc_gguf_kind { /* of values, by their numbers in files */
                     TKC_GGUF_U8 = 0,
                     TKC_GGUF_I8,
                     TKC_GGUF_U16,
                     TKC_GGUF_I16,
                     TKC_GGUF_U32,
                     TKC_GGUF_I32,
                     TKC_GGUF_F32,
                     TKC_GGUF_BOOL,
                     TKC_GGUF_STRING,
                     TKC_GGUF_ARRAY,
                     TKC_GGUF_U64,
                     TKC_GGUF_I64,
                     TKC_GGUF_F64,
                     TKC_GGUF_KINDS
};

typedef struct tkc_gguf_value {
    uint32_t kind, item; /* item: of an array's items */
    uint64_t n;          /* items; 1 unless it is an array */
    const unsigned char *data;
    size_t bytes; /* of the data; texts with their lengths */
} tkc_gguf_value;

typedef struct tkc_gguf_tensor {
    const char *name;
    uint32_t type; /* of its elements, as in the file */
    int32_t n_dims;
    uint64_t dims[TKC_GGUF_MAX_DIMS]; /* fastest first; 1 from n_dims on */
    uint64_t offset;                  /* in data; a multiple of the alignment */
} tkc_gguf_tensor;

typedef struct tkc_gguf {
    const char *what; /* names the file in messages; borrowed */
    tkc_arena arena;
    tkc_map keys, names; /* -> tkc_gguf_value, tkc_gguf_tensor */
    tkc_gguf_tensor *tensors;
    size_t n_tensors;
    tinkc_bytes data; /* of the tensors */
} tkc_gguf;

/* Whether a path ends in ".gguf". */
bool tkc_gguf_named(const char *path);

/* Zeroed, it may be freed; after a failure nothing is held. */
bool tkc_gguf_read(tkc_gguf *, tinkc_bytes, const char *what, tinkc_error *err);
void tkc_gguf_free(tkc_gguf *);

/* ---- keys: missing gives `otherwise`; another kind fails with the key's name ---- */

const tkc_gguf_value *tkc_gguf_find(const tkc_gguf *, const char *key); /* NULL = missing */
/* An unsigned number of any width; negative ones are of the wrong kind. */
uint64_t tkc_gguf_u64(const tkc_gguf *, const char *key, uint64_t otherwise, tinkc_error *err);
double tkc_gguf_double(const tkc_gguf *, const char *key, double otherwise, tinkc_error *err);
bool tkc_gguf_bool(const tkc_gguf *, const char *key, bool otherwise, tinkc_error *err);
/* data NULL = missing. */
tinkc_str tkc_gguf_str(const tkc_gguf *, const char *key, tinkc_error *err);
/* The texts of an array, in the file's arena; NULL = missing, *n is 0 then. */
tinkc_str *tkc_gguf_strs(tkc_gguf *, const char *key, size_t *n, tinkc_error *err);
/* The integers of an array, likewise. */
int32_t *tkc_gguf_i32s(tkc_gguf *, const char *key, size_t *n, tinkc_error *err);
float *tkc_gguf_f32s(tkc_gguf *, const char *key, size_t *n, tinkc_error *err);

const tkc_gguf_tensor *tkc_gguf_tensor_find(const tkc_gguf *, const char *name);

#endif
