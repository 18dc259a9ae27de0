/* quantize_folder.c - a model folder with its layers packed as others read them: NF4 of bitsandbytes, FP8 in squares
 * of 128.
 *
 * Goes tensor by tensor, so a fused tensor stays one; everything else is copied. The result is one file of
 * weights, config.json with quantization_config, and the small files. May touch: the model's folder, the target.
 */
#include "train/quantize_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "math/format.h"
#include "model/model_pack.h"

enum { SIDE = TKE_FP8_SIDE, TEXT_MAX = 64 << 20, NAMES = 4 };

typedef struct part { /* of what a packed weight is stored in */
    tke_file_tensor t;
    const void *data; /* NULL = comes from packing */
} part;

typedef struct one { /* a tensor of the source */
    const tke_file_tensor *from;
    bool packed;
    size_t n; /* parts; a copy has one */
    part parts[NAMES];
} one;

typedef struct job {
    tke_export *j;
    tke_packer packer;
    const tke_format *format;
    const void **pointers; /* of the matrices to pack, ascending */
    one *list;
    size_t n, n_packed;
} job;

/* ---- which tensors ---- */

static int by_address(const void *a, const void *b)
{
    const unsigned char *const *x = a, *const *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Does a matrix of the layers begin in it? */
static bool holds_matrix(const job *q, const tke_file_tensor *t)
{
    size_t low = 0, high = q->packer.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if ((const unsigned char *)q->pointers[mid] < t->data)
            low = mid + 1;
        else
            high = mid;
    }
    return low < q->packer.n &&
           (const unsigned char *)q->pointers[low] < t->data + t->n_bytes;
}

static bool can_pack(const job *q, const tke_file_tensor *t)
{
    return t->n_dims == 2 && tkc_ends_with(tkc_str(t->name), ".weight") &&
           t->dims[1] % q->format->block == 0 && holds_matrix(q, t);
}

/* ---- the parts of a packed weight ---- */

static tke_file_tensor *add_part(job *q, one *o, const char *end, int32_t dtype, const void *data)
{
    part *p = &o->parts[o->n++];
    p->data = data;
    p->t = (tke_file_tensor){ .dtype = dtype, .n_dims = 1 };
    p->t.name = tkc_arena_printf(&q->j->arena, q->j->err, "%s%s", o->from->name, end);
    return &p->t;
}

static void shape(tke_file_tensor *t, int32_t n_dims, size_t rows, size_t cols)
{
    t->n_dims = n_dims;
    t->dims[0] = (int64_t)rows;
    t->dims[1] = (int64_t)cols;
    t->n_bytes = rows * (n_dims > 1 ? cols : 1) * tke_file_dtype_size(t->dtype);
}

static void add_nf4(job *q, one *o)
{
    size_t rows = (size_t)o->from->dims[0], cols = (size_t)o->from->dims[1], n = rows * cols;
    const char *state = tkc_arena_printf(
        &q->j->arena, q->j->err,
        "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [%zu, %zu]}",
        rows, cols);
    shape(add_part(q, o, "", TKE_FILE_U8, NULL), 2, n / 2, 1);
    shape(add_part(q, o, ".absmax", TKE_FILE_F32, NULL), 1, n / 64, 0);
    shape(add_part(q, o, ".quant_map", TKE_FILE_F32, tke_nf4_values), 1, 16, 0);
    shape(add_part(q, o, ".quant_state.bitsandbytes__nf4", TKE_FILE_U8, state), 1,
          state ? strlen(state) : 1, 0);
}

static void add_fp8(job *q, one *o)
{
    size_t rows = (size_t)o->from->dims[0], cols = (size_t)o->from->dims[1];
    shape(add_part(q, o, "", TKE_FILE_F8_E4M3, NULL), 2, rows, cols);
    shape(add_part(q, o, "_scale_inv", TKE_FILE_F32, NULL), 2, (rows + SIDE - 1) / SIDE,
          (cols + SIDE - 1) / SIDE);
}

static void add_tensor(job *q, const tke_file_tensor *t)
{
    one *o = &q->list[q->n++];
    *o = (one){ .from = t, .packed = can_pack(q, t) };
    q->n_packed += o->packed;
    if (!o->packed) {
        o->parts[o->n++] = (part){ .t = *t, .data = t->data };
    } else if (q->format == &tke_format_nf4) {
        add_nf4(q, o);
    } else {
        add_fp8(q, o);
    }
}

static bool list_tensors(job *q)
{
    const tke_tensor_file *files;
    tke_export *j = q->j;
    size_t n_files = tke_model_files(j->base, &files), n = 0;
    for (size_t i = 0; i < n_files; i++)
        n += files[i].n_tensors;
    q->list = tkc_arena_array(&j->arena, n + 1, sizeof *q->list, j->err);
    q->pointers = tkc_arena_array(&j->arena, q->packer.n + 1, sizeof *q->pointers, j->err);
    if (tkc_failed(j->err))
        return false;
    for (size_t i = 0; i < q->packer.n; i++)
        q->pointers[i] = q->packer.items[i].m->data;
    qsort(q->pointers, q->packer.n, sizeof *q->pointers, by_address);
    for (size_t i = 0; i < n_files; i++)
        for (size_t t = 0; t < files[i].n_tensors; t++)
            add_tensor(q, &files[i].tensors[t]);
    if (!q->n_packed && !tkc_failed(j->err))
        tkc_fail(j->err, TINKC_E_UNSUPPORTED,
                 "%s: its layers' matrices lie in tensors of three dimensions, which have no packed "
                 "form in folders; use --base-bits",
                 j->o->base_model);
    return !tkc_failed(j->err);
}

/* ---- writing ---- */

static bool pack(job *q, const one *o, uint8_t *codes, float *factors)
{
    tke_matrix m = { .data = o->from->data,
                     .ld = o->from->dims[1],
                     .dtype = (tke_dtype)o->from->dtype };
    tke_pack_item item = { .m = &m, .rows = (size_t)o->from->dims[0], .path = o->from->name };
    if (q->format == &tke_format_nf4)
        return tke_pack_matrix(&q->packer, &item, codes, factors);
    return tke_pack_squares(&q->packer, &item, codes, factors);
}

static bool write_packed(job *q, const one *o, tke_tensor_writer *w)
{
    size_t n_codes = o->parts[0].t.n_bytes, n_factors = o->parts[1].t.n_bytes;
    unsigned char *block = tkc_alloc(NULL, n_factors + n_codes, q->j->err);
    float *factors = (float *)(void *)block;
    bool ok = block && pack(q, o, block + n_factors, factors) &&
              tke_tensor_writer_put(w, &o->parts[0].t, block + n_factors) &&
              tke_tensor_writer_put(w, &o->parts[1].t, factors);
    tkc_release(NULL, block, n_factors + n_codes);
    return ok;
}

static bool write_one(job *q, const one *o, tke_tensor_writer *w)
{
    bool ok = !o->packed || write_packed(q, o, w);
    for (size_t i = 0; ok && i < o->n; i++)
        if (o->parts[i].data)
            ok = tke_tensor_writer_put(w, &o->parts[i].t, o->parts[i].data);
    return ok && tke_export_advance(q->j, o->from->n_bytes);
}

static bool write_weights(job *q)
{
    static const char *const metadata[] = { "format", "pt", NULL };
    tke_export *j = q->j;
    tke_tensor_writer w;
    char *path = tke_export_path(j, j->o->target, "model.safetensors");
    tke_file_tensor *all = tkc_arena_array(&j->arena, q->n * NAMES, sizeof *all, j->err);
    size_t n = 0;
    for (size_t i = 0; all && i < q->n; i++)
        for (size_t k = 0; k < q->list[i].n; k++)
            all[n++] = q->list[i].parts[k].t;
    if (tkc_failed(j->err) || !tke_tensor_writer_open(&w, path, all, n, metadata, 0644, j->err))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < q->n; i++)
        ok = write_one(q, &q->list[i], &w);
    ok = ok && tke_tensor_writer_commit(&w);
    tke_tensor_writer_close(&w);
    return ok;
}

/* ---- config.json ---- */

/* Matrices that other readers would look for in packed form and that are not: by the names of their modules. */
static void write_skipped(const job *q, tkc_jsonw *to, const char *key)
{
    tkc_jsonw_key(to, key);
    tkc_jsonw_array(to);
    tkc_jsonw_cstr(to, "lm_head");
    for (size_t i = 0; i < q->n; i++) {
        tinkc_str name = tkc_str(q->list[i].from->name);
        if (q->list[i].packed || q->list[i].from->n_dims != 2 || !tkc_ends_with(name, ".weight") ||
            tkc_str_is(name, "lm_head.weight"))
            continue;
        name.len -= strlen(".weight");
        tkc_jsonw_str(to, name);
    }
    tkc_jsonw_end(to);
}

static void put_bool(tkc_jsonw *to, const char *key, bool value)
{
    tkc_jsonw_key(to, key);
    tkc_jsonw_bool(to, value);
}

static void put_text(tkc_jsonw *to, const char *key, const char *value)
{
    tkc_jsonw_key(to, key);
    tkc_jsonw_cstr(to, value);
}

static void write_method(const job *q, tkc_jsonw *to)
{
    tkc_jsonw_key(to, "quantization_config");
    tkc_jsonw_object(to);
    if (q->format == &tke_format_nf4) {
        put_text(to, "quant_method", "bitsandbytes");
        put_bool(to, "load_in_4bit", true);
        put_bool(to, "load_in_8bit", false);
        put_text(to, "bnb_4bit_quant_type", "nf4");
        put_bool(to, "bnb_4bit_use_double_quant", false);
        put_text(to, "bnb_4bit_compute_dtype", "bfloat16");
        put_text(to, "bnb_4bit_quant_storage", "uint8");
        write_skipped(q, to, "llm_int8_skip_modules");
    } else {
        put_text(to, "quant_method", "fp8");
        put_text(to, "activation_scheme", "dynamic");
        put_text(to, "fmt", "e4m3");
        tkc_jsonw_key(to, "weight_block_size");
        tkc_jsonw_i64s(to, (const int64_t[]){ SIDE, SIDE }, 2);
        write_skipped(q, to, "modules_to_not_convert");
    }
    tkc_jsonw_end(to);
}

static bool write_config(const job *q)
{
    tke_export *j = q->j;
    tkc_buf text;
    tkc_json from;
    tkc_jsonw to;
    tinkc_str key;
    tinkc_bytes old = tke_export_read(j, j->o->base_model, "config.json");
    tkc_buf_init(&text, NULL, TEXT_MAX);
    tkc_json_open(&from, tkc_strn((const char *)old.data, old.len), &j->arena, j->err);
    tkc_jsonw_open(&to, &text, j->err);
    tkc_jsonw_object(&to);
    if (tkc_json_object(&from))
        while (tkc_json_key(&from, &key)) {
            tkc_jsonw_key_str(&to, key);
            tkc_jsonw_raw(&to, tkc_json_skip(&from));
        }
    write_method(q, &to);
    tkc_jsonw_end(&to);
    return tke_export_write(j, "config.json", &text);
}

/* ---- the call ---- */

bool tke_quantize_folder(tke_export *j, int32_t bits)
{
    job q = { .j = j, .format = bits == 4 ? &tke_format_nf4 : &tke_format_fp8 };
    j->total = (int64_t)j->base->n_bytes;
    bool ok = tke_packer_open(&q.packer, j->base, q.format, j->err) && list_tensors(&q) &&
              write_weights(&q) && write_config(&q) && tke_export_companions(j);
    tke_packer_close(&q.packer);
    return ok;
}
