/* Model folders with packed weights (NF4 of bitsandbytes, FP8 in squares), and folders that are packed while
 * they are opened: the bits of the bf16 model that they stand for. */
#include <math.h>

#include "base/file.h"
#include "math/format.h"
#include "support/engine/one_pass.h"
#include "support/test_case.h"

enum { MOST = 400 };

static tinkc_error problem; /* memory: nobody looks */

/* ---- two folders from one: packed, and what that stands for ---- */

typedef struct twins {
    char *packed, *plain;
    tke_tensor_file source;
    tke_file_tensor a[MOST], b[MOST]; /* of the two folders */
    size_t n_a, n_b;
    tkc_arena arena;
    uint64_t random;
    const char *skip; /* a part that is left out */
} twins;

static bool in_layer(const tke_file_tensor *t)
{
    return t->n_dims == 2 && strncmp(t->name, "model.layers.", 13) == 0;
}

static void add_part(twins *w, const char *name, const char *end, int dtype, const void *data, size_t n)
{
    tke_file_tensor *t = &w->a[w->n_a];
    if (w->skip && strcmp(end, w->skip) == 0)
        return;
    *t = (tke_file_tensor){ .name = tkc_arena_printf(&w->arena, &problem, "%s%s", name, end),
                            .data = data,
                            .n_bytes = n * tke_file_dtype_size(dtype),
                            .dtype = dtype,
                            .n_dims = 1,
                            .dims = { (int64_t)n } };
    w->n_a++;
}

static void add_plain(twins *w, const tke_file_tensor *t, const tke_matrix *m)
{
    tke_file_tensor *out = &w->b[w->n_b++];
    int64_t rows = t->dims[0], cols = t->dims[1];
    uint16_t *numbers = tkc_arena_alloc(&w->arena, (size_t)(rows * cols) * 2, &problem);
    for (int64_t i = 0; i < rows; i++)
        tke_format_of(m->dtype)->unpack[TKE_UNPACK_REF](m, i, 0, cols, numbers + i * cols);
    *out = *t;
    out->data = (const unsigned char *)numbers;
}

static unsigned char *random_bytes(twins *w, size_t n)
{
    unsigned char *out = tkc_arena_alloc(&w->arena, n, &problem);
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)tiny_random(&w->random);
    return out;
}

/* Factors of 1/8 at most: code / 256 * large + offset. */
static void pack_nf4(twins *w, const tke_file_tensor *t)
{
    static const float values[16] = { -1.0f,
                                      -0.6961928009986877f,
                                      -0.5250730514526367f,
                                      -0.39491748809814453f,
                                      -0.28444138169288635f,
                                      -0.18477343022823334f,
                                      -0.09105003625154495f,
                                      0.0f,
                                      0.07958029955625534f,
                                      0.16093020141124725f,
                                      0.24611230194568634f,
                                      0.33791524171829224f,
                                      0.44070982933044434f,
                                      0.5626170039176941f,
                                      0.7229568362236023f,
                                      1.0f };
    static float map[256];
    size_t n = (size_t)(t->dims[0] * t->dims[1]), blocks = n / 64, groups = (blocks + 255) / 256;
    unsigned char *codes = random_bytes(w, n / 2), *absmax = random_bytes(w, blocks);
    float *large = tkc_arena_array(&w->arena, groups, sizeof *large, &problem);
    float *factors = tkc_arena_array(&w->arena, blocks, sizeof *factors, &problem);
    for (int i = 0; i < 256; i++)
        map[i] = (float)i / 256 - 0.5f;
    for (size_t i = 0; i < groups; i++)
        large[i] = 0.1f + (float)i / 100;
    for (size_t i = 0; i < blocks; i++) {
        float product = map[absmax[i]] * large[i / 256];
        factors[i] = product + 0.0625f;
    }
    char *state =
        tkc_arena_printf(&w->arena, &problem,
                         "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [%d, "
                         "%d], "
                         "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": 0.0625}",
                         (int)t->dims[0], (int)t->dims[1]);
    add_part(w, t->name, "", TKE_FILE_U8, codes, n / 2);
    add_part(w, t->name, ".absmax", TKE_FILE_U8, absmax, blocks);
    add_part(w, t->name, ".nested_absmax", TKE_FILE_F32, large, groups);
    add_part(w, t->name, ".nested_quant_map", TKE_FILE_F32, map, 256);
    add_part(w, t->name, ".quant_map", TKE_FILE_F32, values, 16);
    add_part(w, t->name, ".quant_state.bitsandbytes__nf4", TKE_FILE_U8, state, strlen(state));
    add_plain(w, t, &(tke_matrix){ .data = codes, .ld = t->dims[1], .dtype = TKE_NF4, .factors = factors });
}

static void pack_fp8(twins *w, const tke_file_tensor *t)
{
    size_t n = (size_t)(t->dims[0] * t->dims[1]);
    size_t squares = (size_t)((t->dims[0] + 127) / 128 * ((t->dims[1] + 127) / 128));
    unsigned char *codes = random_bytes(w, n);
    float *factors = tkc_arena_array(&w->arena, squares, sizeof *factors, &problem);
    for (size_t i = 0; i < n; i++)
        codes[i] = (codes[i] & 0x7f) > 0x40 ? codes[i] & 0x9f : codes[i];
    for (size_t i = 0; i < squares; i++)
        factors[i] = 0.05f + (float)i / 100;
    add_part(w, t->name, "", TKE_FILE_F8_E4M3, codes, n);
    w->a[w->n_a - 1].n_dims = 2;
    memcpy(w->a[w->n_a - 1].dims, t->dims, sizeof t->dims);
    add_part(w, t->name, "_scale_inv", TKE_FILE_F32, factors, squares);
    add_plain(w, t, &(tke_matrix){ .data = codes, .ld = t->dims[1], .dtype = TKE_FP8, .factors = factors });
}

/* As tke_model_open("...#4bit") does it. */
static void pack_all(twins *w, const tke_file_tensor *t, const tke_format *f)
{
    size_t n = (size_t)(t->dims[0] * t->dims[1]), blocks = n / (size_t)f->block;
    uint8_t *codes = tkc_arena_alloc(&w->arena, tke_format_bytes(f, n), &problem);
    float *factors = tkc_arena_array(&w->arena, blocks, sizeof *factors, &problem);
    tke_real wide[TKE_MAX_BLOCK];
    for (size_t i = 0; i < blocks; i++) {
        tke_widen(TKE_BF16, t->data + i * (size_t)f->block * 2, (size_t)f->block, wide);
        assert_true(f->pack(wide, codes + i * (size_t)f->block_bytes, &factors[i]));
    }
    add_plain(w, t, &(tke_matrix){ .data = codes, .ld = t->dims[1], .dtype = tke_format_dtype(f), .factors = factors });
}

static void save(const char *folder, const tke_file_tensor *list, size_t n)
{
    char path[512];
    tinkc_error err = { 0 };
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!tke_tensor_file_write(path, list, n, NULL, 0600, &err))
        fail_msg("%s", err.message);
}

static void open_twins(twins *w, size_t hidden, const char *config)
{
    char path[512];
    tinkc_error err = { 0 };
    tiny_model what = { .family = "qwen3",
                        .layers = 1,
                        .hidden = hidden,
                        .inner = hidden,
                        .heads = 4,
                        .head_dim = hidden / 4,
                        .dtype = "BF16",
                        .tied = true };
    tkc_arena_init(&w->arena, NULL, 0);
    w->random = 31;
    w->plain = tiny_model_make(&what);
    what.extra = config;
    w->packed = tiny_model_make(&what);
    snprintf(path, sizeof path, "%s/model.safetensors", w->plain);
    assert_true(tke_tensor_file_open(&w->source, path, &err));
}

static void fill(twins *w, void (*pack)(twins *, const tke_file_tensor *))
{
    for (size_t i = 0; i < w->source.n_tensors; i++) {
        const tke_file_tensor *t = &w->source.tensors[i];
        if (in_layer(t))
            pack(w, t);
        else
            w->a[w->n_a++] = w->b[w->n_b++] = *t;
    }
    save(w->packed, w->a, w->n_a);
    save(w->plain, w->b, w->n_b);
}

static void close_twins(twins *w)
{
    tke_tensor_file_close(&w->source);
    tkc_arena_free(&w->arena);
    tiny_model_remove(w->packed);
    tiny_model_remove(w->plain);
    free(w);
}

#define NF4_CONFIG                                                                                                     \
    "\"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, "                           \
    "\"bnb_4bit_quant_type\": \"nf4\", \"bnb_4bit_use_double_quant\": true}"
#define FP8_CONFIG "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"

TEST(nf4_folders_train_like_the_numbers_they_stand_for)
{
    twins *w = calloc(1, sizeof *w);
    open_twins(w, 192, NF4_CONFIG); /* three groups of factors */
    fill(w, pack_nf4);
    assert_true(one_pass_same(w->packed, w->plain, TKE_PRECISION_F32) > 0);
    close_twins(w);
}

TEST(fp8_folders_train_like_the_numbers_they_stand_for)
{
    twins *w = calloc(1, sizeof *w);
    open_twins(w, 160, FP8_CONFIG); /* squares that end with the matrix */
    fill(w, pack_fp8);
    assert_true(one_pass_same(w->packed, w->plain, TKE_PRECISION_F32) > 0);
    close_twins(w);
}

TEST(missing_parts_of_a_weight_are_named)
{
    static const struct {
        const char *skip, *wanted;
    } rows[] = { { ".absmax", "absmax or what belongs to it is missing" },
                 { ".nested_absmax", "absmax or what belongs to it is missing" },
                 { ".quant_map", "quant_map is missing" },
                 { "_scale_inv", "weight_scale_inv with a factor for each 128 x 128 is missing" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        twins *w = calloc(1, sizeof *w);
        bool fp8 = rows[i].skip[0] == '_';
        open_twins(w, 128, fp8 ? FP8_CONFIG : NF4_CONFIG);
        w->skip = rows[i].skip;
        fill(w, fp8 ? pack_fp8 : pack_nf4);
        tke_model *m = tke_model_open(w->packed, &err);
        if (m || !strstr(err.message, rows[i].wanted) || !strstr(err.message, "model.layers.0"))
            fail_msg("%s: %s", rows[i].skip, err.message);
        close_twins(w);
    }
}

/* ---- packed while it is opened ---- */

static void pack_4(twins *w, const tke_file_tensor *t)
{
    pack_all(w, t, &tke_format_nf4);
}

static void pack_8(twins *w, const tke_file_tensor *t)
{
    pack_all(w, t, &tke_format_q8_0);
}

TEST(a_folder_can_be_packed_to_4_or_8_bits)
{
    for (int bits = 4; bits <= 8; bits += 4) {
        twins *w = calloc(1, sizeof *w);
        char name[512];
        open_twins(w, 128, NULL);
        snprintf(name, sizeof name, "%s#%dbit", w->packed, bits);
        for (size_t i = 0; i < w->source.n_tensors; i++)
            w->a[i] = w->source.tensors[i]; /* the packed one begins as the same numbers */
        save(w->packed, w->a, w->source.n_tensors);
        w->n_a = 0;
        for (size_t i = 0; i < w->source.n_tensors; i++) {
            const tke_file_tensor *t = &w->source.tensors[i];
            if (in_layer(t))
                (bits == 4 ? pack_4 : pack_8)(w, t);
            else
                w->b[w->n_b++] = *t;
        }
        save(w->plain, w->b, w->n_b);
        int64_t saved = one_pass_same(name, w->plain, TKE_PRECISION_F32);
        int64_t plain = 7 * 128 * 128 * 2 - 2 * 128 * 64 * 2; /* k and v have half the rows */
        assert_int_equal(saved, bits == 4 ? plain - plain / 16 * 9 / 2 : plain - plain / 64 * 34);
        close_twins(w);
    }
}

/* The largest error of a block is known: half a step, or half the widest gap of the values. */
TEST(packing_is_to_the_nearest_code)
{
    static const struct {
        const tke_format *f;
        float most; /* relative to the largest number of a block */
    } rows[] = { { &tke_format_q8_0, 0.0045f }, { &tke_format_q4_0, 0.13f }, { &tke_format_nf4, 0.1525f } };
    uint64_t random = 5;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (int n = 0; n < 200; n++) {
            const tke_format *f = rows[k].f;
            float x[TKE_MAX_BLOCK], factor, most = 0;
            uint8_t codes[TKE_MAX_BLOCK];
            uint16_t out[TKE_MAX_BLOCK];
            for (int i = 0; i < f->block; i++) {
                x[i] = tiny_normal(&random);
                most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
            }
            assert_true(f->pack(x, codes, &factor));
            tke_matrix m = { .data = codes, .ld = f->block, .dtype = tke_format_dtype(f), .factors = &factor };
            f->unpack[TKE_UNPACK_REF](&m, 0, 0, f->block, out);
            for (int i = 0; i < f->block; i++)
                if (fabsf(tke_bf16_to_f32(out[i]) - x[i]) > (rows[k].most + 0.004f) * most)
                    fail_msg("%s: %g became %g", f->name, (double)x[i], (double)tke_bf16_to_f32(out[i]));
        }
}

/* The user's cache is test_pack_cache.c's. */
static int without_cache(void **state)
{
    (void)state;
    return setenv("XDG_CACHE_HOME", "/dev/null/none", 1);
}

RUN_TESTS(without_cache, NULL)
