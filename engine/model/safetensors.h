/* safetensors.h - reads untrusted tensor files, and writes them atomically.
 *
 * A file is mapped, never copied. Everything the header says is checked before anything is used:
 * lengths, shapes, products, bounds, overlaps, holes, names. Errors are TINKC_E_MODEL and name the
 * file and the problem.
 */
#ifndef TKE_MODEL_SAFETENSORS_H
#define TKE_MODEL_SAFETENSORS_H

#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "math/dtype.h"

enum tke_file_dtype { /* element types of files */
                      TKE_FILE_F32 = 0,
                      TKE_FILE_BF16,
                      TKE_FILE_F16,
                      TKE_FILE_F64,
                      TKE_FILE_I64,
                      TKE_FILE_I32,
                      TKE_FILE_I16,
                      TKE_FILE_I8,
                      TKE_FILE_U64,
                      TKE_FILE_U32,
                      TKE_FILE_U16,
                      TKE_FILE_U8,
                      TKE_FILE_BOOL,
                      TKE_FILE_F8_E4M3,
                      TKE_FILE_F8_E5M2,
                      TKE_FILE_DTYPES
};
/* The first four are tke_dtype's: TKE_F32, TKE_BF16, TKE_F16, TKE_F64. */
size_t tke_file_dtype_size(int dtype);
const char *tke_file_dtype_name(int dtype); /* "BF16" */

enum { TKE_MAX_DIMS = 8 };

typedef struct tke_file_tensor {
    const char *name;
    const unsigned char *data; /* into the mapping (or into what the writer is given) */
    size_t n_bytes;
    int32_t dtype;  /* TKE_FILE_* */
    int32_t n_dims; /* 0 = a scalar */
    int64_t dims[TKE_MAX_DIMS];
    /* 0, or the tke_dtype of a packed weight: dims are those of its numbers, dtype says nothing. */
    int32_t packed;
    const float *factors; /* of NF4 and FP8 */
} tke_file_tensor;

typedef struct tke_tensor_file {
    tkc_mapping mapping;
    tkc_arena arena; /* names, table */
    tkc_map names;   /* name -> tke_file_tensor */
    tke_file_tensor *tensors;
    size_t n_tensors;
} tke_tensor_file;

/* Zeroed, it may be closed. After a failure nothing is held. */
bool tke_tensor_file_open(tke_tensor_file *, const char *path, tinkc_error *err);
/* The same for bytes that the caller keeps; messages use `what` instead of a path. */
bool tke_tensor_file_read(tke_tensor_file *, tinkc_bytes bytes, const char *what, tinkc_error *err);
void tke_tensor_file_close(tke_tensor_file *);
const tke_file_tensor *tke_tensor_file_find(const tke_tensor_file *, const char *name);

/* Are its elements F32, BF16, F16 or F64? Then dtype is a tke_dtype and tke_widen reads it. */
static inline bool tke_tensor_is_real(const tke_file_tensor *t)
{
    return t->dtype <= TKE_FILE_F64;
}
size_t tke_tensor_count(const tke_file_tensor *); /* elements */
/* True if the shape is exactly this. */
bool tke_tensor_is(const tke_file_tensor *, int32_t n_dims, int64_t d0, int64_t d1);

/* A file whose tensors come one by one, in any order:
 *
 *     tke_tensor_writer w;
 *     if (tke_tensor_writer_open(&w, path, tensors, n, NULL, 0644, &err)) {
 *         tke_tensor_writer_put(&w, &tensors[0], data); ...
 *         tke_tensor_writer_commit(&w);
 *         tke_tensor_writer_close(&w);
 *     }
 *
 * The path never refers to an unfinished file: it is written beside it, and removed unless it is committed. */
typedef struct tke_tensor_writer {
    tkc_arena arena;
    tke_file_tensor *sorted;
    size_t *offsets, n, end;
    char *path, *temporary;
    int fd;
    tinkc_error *err;
} tke_tensor_writer;

/* Of the tensors, everything but their data is used. After a failure nothing is held. */
bool tke_tensor_writer_open(tke_tensor_writer *, const char *path, const tke_file_tensor *, size_t n,
                            const char *const *metadata, uint32_t mode, tinkc_error *err);
/* All bytes of a tensor; name and dtype tell which. */
bool tke_tensor_writer_put(tke_tensor_writer *, const tke_file_tensor *of, const void *data);
bool tke_tensor_writer_commit(tke_tensor_writer *);
void tke_tensor_writer_close(tke_tensor_writer *);

/* Writes a file beside its name, syncs it and renames. Tensors are sorted by element size and name;
 * data begins at a multiple of 64. metadata: pairs, may be NULL. mode: of the file, less the umask. */
bool tke_tensor_file_write(const char *path, const tke_file_tensor *tensors, size_t n,
                           const char *const *metadata, uint32_t mode, tinkc_error *err);

#endif
