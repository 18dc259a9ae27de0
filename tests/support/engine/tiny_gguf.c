/* tiny_gguf.c - writes GGUF files without the engine's writer. */
#include "support/engine/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/str.h"
#include "math/format.h"
#include "model/model_config.h"
#include "model/safetensors.h"

enum { ALIGN = 32 };

static tinkc_error problem; /* memory: nobody looks */

/* ---- bytes ---- */

void gguf_bytes_init(gguf_bytes *g)
{
    *g = (gguf_bytes){ 0 };
    tkc_buf_init(&g->keys, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&g->tensors, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&g->data, NULL, TKC_BUF_NO_MAX);
}

void gguf_bytes_free(gguf_bytes *g)
{
    tkc_buf_free(&g->keys);
    tkc_buf_free(&g->tensors);
    tkc_buf_free(&g->data);
}

void gguf_put(tkc_buf *b, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        tkc_buf_char(b, (char)(value >> (8 * i)), &problem);
}

void gguf_put_text(tkc_buf *b, const char *text)
{
    gguf_put(b, strlen(text), 8);
    tkc_buf_add(b, text, strlen(text), &problem);
}

static void begin(gguf_bytes *g, const char *key, uint32_t kind)
{
    gguf_put_text(&g->keys, key);
    gguf_put(&g->keys, kind, 4);
    g->n_keys++;
}

void gguf_key_u32(gguf_bytes *g, const char *key, uint32_t value)
{
    begin(g, key, 4);
    gguf_put(&g->keys, value, 4);
}

void gguf_key_f32(gguf_bytes *g, const char *key, float value)
{
    begin(g, key, 6);
    gguf_put(&g->keys, tke_f32_to_bits(value), 4);
}

void gguf_key_bool(gguf_bytes *g, const char *key, bool value)
{
    begin(g, key, 7);
    gguf_put(&g->keys, value, 1);
}

void gguf_key_text(gguf_bytes *g, const char *key, const char *value)
{
    begin(g, key, 8);
    gguf_put_text(&g->keys, value);
}

void gguf_key_texts(gguf_bytes *g, const char *key, const char *const *values, size_t n)
{
    begin(g, key, 9);
    gguf_put(&g->keys, 8, 4);
    gguf_put(&g->keys, n, 8);
    for (size_t i = 0; i < n; i++)
        gguf_put_text(&g->keys, values[i]);
}

static void put_words(gguf_bytes *g, const char *key, uint32_t kind, const void *values, size_t n)
{
    begin(g, key, 9);
    gguf_put(&g->keys, kind, 4);
    gguf_put(&g->keys, n, 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)values + 4 * i, 4);
        gguf_put(&g->keys, word, 4);
    }
}

void gguf_key_i32s(gguf_bytes *g, const char *key, const int32_t *values, size_t n)
{
    put_words(g, key, 5, values, n);
}

void gguf_key_f32s(gguf_bytes *g, const char *key, const float *values, size_t n)
{
    put_words(g, key, 6, values, n);
}

void gguf_tensor(gguf_bytes *g, const char *name, uint32_t type, const uint64_t *dims, size_t n_dims, const void *data,
                 size_t bytes)
{
    gguf_put_text(&g->tensors, name);
    gguf_put(&g->tensors, n_dims, 4);
    for (size_t i = 0; i < n_dims; i++)
        gguf_put(&g->tensors, dims[i], 8);
    gguf_put(&g->tensors, type, 4);
    gguf_put(&g->tensors, g->data.len, 8);
    tkc_buf_add(&g->data, data, bytes, &problem);
    while (g->data.len % ALIGN)
        tkc_buf_char(&g->data, 0, &problem);
    g->n_tensors++;
}

void gguf_whole(const gguf_bytes *g, tkc_buf *out)
{
    tkc_buf_add(out, "GGUF", 4, &problem);
    gguf_put(out, 3, 4);
    gguf_put(out, g->n_tensors, 8);
    gguf_put(out, g->n_keys, 8);
    tkc_buf_add(out, g->keys.data, g->keys.len, &problem);
    tkc_buf_add(out, g->tensors.data, g->tensors.len, &problem);
    while (out->len % ALIGN)
        tkc_buf_char(out, 0, &problem);
    tkc_buf_add(out, g->data.data, g->data.len, &problem);
}

void gguf_save(const gguf_bytes *g, const char *path)
{
    tkc_buf out;
    tinkc_error err = { 0 };
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    gguf_whole(g, &out);
    if (!tkc_write_file(path, out.data, out.len, 0600, &err))
        abort();
    tkc_buf_free(&out);
}

/* ---- models ---- */

typedef struct maker {
    gguf_bytes file;
    tke_config config;
    tke_dtype format;
    bool paired; /* llama: rows of q and k */
    uint64_t random;
    tkc_arena arena; /* numbers of the folder */
} maker;

/* model.layers.N.REST -> blk.N.REST of GGUF. */
static void rename_tensor(const char *ours, char *out, size_t room)
{
    static const char *const names[][2] = {
        { "input_layernorm", "attn_norm" },    { "post_attention_layernorm", "ffn_norm" },
        { "self_attn.q_proj", "attn_q" },      { "self_attn.k_proj", "attn_k" },
        { "self_attn.v_proj", "attn_v" },      { "self_attn.o_proj", "attn_output" },
        { "self_attn.q_norm", "attn_q_norm" }, { "self_attn.k_norm", "attn_k_norm" },
        { "mlp.gate_proj", "ffn_gate" },       { "mlp.up_proj", "ffn_up" },
        { "mlp.down_proj", "ffn_down" },
    };
    int layer, used = 0;
    snprintf(out, room, "%s",
             !strcmp(ours, "model.embed_tokens.weight") ? "token_embd.weight"
             : !strcmp(ours, "model.norm.weight")       ? "output_norm.weight"
                                                        : "output.weight");
    if (sscanf(ours, "model.layers.%d.%n", &layer, &used) < 1 || !used)
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(ours + used, names[i][0], n) == 0 && ours[used + (int)n] == '.')
            snprintf(out, room, "blk.%d.%s%s", layer, names[i][1], ours + used + n);
    }
}

/* Random codes with scales around 1/256, so that the model's numbers stay small. */
static void fill_blocks(maker *m, const tke_format *f, unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)tiny_random(&m->random);
    for (size_t at = 0; at < bytes; at += (size_t)f->block_bytes) {
        unsigned char *b = data + at;
        size_t d = m->format == TKE_Q6_K ? 208 : 0;
        if (m->format == TKE_MXFP4_BLOCKS) {
            b[0] = (unsigned char)(120 + tiny_random(&m->random) % 3);
            continue;
        }
        unsigned half = 0x1c00u + (unsigned)(tiny_random(&m->random) % 0x400);
        b[d] = (unsigned char)half;
        b[d + 1] = (unsigned char)(half >> 8);
        if (f->block_bytes % 4 == 0) /* a second scale, or the least value */
            b[3] = 0x20;
    }
}

/* Row i of the file is this row of the folder. */
static size_t folder_row(const maker *m, const char *name, size_t i)
{
    if (!m->paired || (!strstr(name, "q_proj") && !strstr(name, "k_proj")))
        return i;
    size_t d = m->config.head_dim, at = i % d;
    return i - at + at % 2 * (d / 2) + at / 2;
}

static void add_matrix(maker *m, tke_file_tensor *t, const char *name)
{
    const tke_format *f = tke_format_of(m->format);
    size_t rows = (size_t)t->dims[0], cols = (size_t)t->dims[1];
    size_t row_bytes = tke_format_bytes(f, cols);
    unsigned char *blocks = tkc_arena_alloc(&m->arena, rows * row_bytes, &problem);
    uint16_t *numbers = tkc_arena_alloc(&m->arena, rows * cols * sizeof *numbers, &problem);
    tke_matrix packed = { .data = blocks, .ld = (int64_t)cols, .dtype = m->format };
    fill_blocks(m, f, blocks, rows * row_bytes);
    for (size_t i = 0; i < rows; i++)
        f->unpack[TKE_UNPACK_REF](&packed, (int64_t)i, 0, (int64_t)cols, numbers + folder_row(m, t->name, i) * cols);
    gguf_tensor(&m->file, name, (uint32_t)f->gguf, (uint64_t[]){ cols, rows }, 2, blocks, rows * row_bytes);
    t->data = (const unsigned char *)numbers;
}

static void add_vector(maker *m, const tke_file_tensor *t, const char *name)
{
    size_t n = (size_t)t->dims[0];
    float *numbers = tkc_arena_array(&m->arena, n, sizeof *numbers, &problem);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, t->data + 2 * folder_row(m, t->name, i), 2);
        numbers[i] = tke_bf16_to_f32(half);
    }
    gguf_tensor(&m->file, name, 0, (uint64_t[]){ n }, 1, numbers, n * sizeof *numbers);
}

static void add_keys(maker *m, const char *arch)
{
    char key[64];
    const tke_config *c = &m->config;
    const struct {
        const char *name;
        size_t value;
    } sizes[] = { { "block_count", c->n_layers },         { "context_length", c->context },
                  { "embedding_length", c->hidden },      { "feed_forward_length", c->inner },
                  { "attention.head_count", c->n_heads }, { "attention.head_count_kv", c->n_kv_heads },
                  { "attention.key_length", c->head_dim } };
    gguf_key_text(&m->file, "general.architecture", arch);
    gguf_key_u32(&m->file, "general.file_type", 7);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].name);
        gguf_key_u32(&m->file, key, (uint32_t)sizes[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_key_f32(&m->file, key, 1e-6f);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gguf_key_f32(&m->file, key, (float)c->rope_theta);
}

char *tiny_gguf_make(const tiny_model *what, tke_dtype format)
{
    tiny_model bf16 = *what;
    bf16.dtype = "BF16";
    bf16.extra = "\"rms_norm_eps\": 9.999999974752427e-07"; /* as a float has it */
    char *folder = tiny_model_make(&bf16), path[512], name[128];
    tinkc_error err = { 0 };
    tke_tensor_file weights = { 0 };
    maker m = { .format = format, .random = 77, .paired = !strcmp(what->family, "llama") };
    tkc_arena_init(&m.arena, NULL, 0);
    gguf_bytes_init(&m.file);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!tke_config_load(&m.config, folder, &m.arena, &err) || !tke_tensor_file_open(&weights, path, &err))
        abort();
    add_keys(&m, what->family);
    for (size_t i = 0; i < weights.n_tensors; i++) {
        tke_file_tensor *t = &weights.tensors[i];
        rename_tensor(t->name, name, sizeof name);
        if (t->n_dims == 2)
            add_matrix(&m, t, name);
        else
            add_vector(&m, t, name);
    }
    if (!tke_tensor_file_write(path, weights.tensors, weights.n_tensors, NULL, 0600, &err))
        abort();
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    gguf_save(&m.file, path);
    tke_tensor_file_close(&weights);
    gguf_bytes_free(&m.file);
    tkc_arena_free(&m.arena);
    return folder;
}
