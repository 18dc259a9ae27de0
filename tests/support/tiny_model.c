/* tiny_model.c - writes config.json and random weights in the form that transformers writes. */
#include "support/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "model/safetensors.h"

enum { MAX_TENSORS = 512 };

typedef struct maker {
    tiny_model t;
    char *folder;
    tke_file_tensor tensors[MAX_TENSORS];
    size_t n;
    uint64_t random;
} maker;

static void stop(const char *what)
{
    fprintf(stderr, "tiny_model: %s\n", what);
    abort();
}

uint64_t tiny_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

float tiny_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (double)(tiny_random(state) >> 11) * 0x1p-53 - 0.5;
    return (float)(sum * sqrt(2.0));
}

char *tiny_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *path = malloc(256);
    if (!path)
        stop("memory");
    snprintf(path, 256, "%s/tinkc-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(path))
        stop("no temporary folder");
    return path;
}

unsigned tiny_mode(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        stop(path);
    return st.st_mode & 07777;
}

void tiny_model_remove(char *folder)
{
    tinkc_error err = { 0 };
    if (folder)
        tkc_remove_tree(folder, &err);
    free(folder);
}

void tiny_write(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, strlen(text), f) != strlen(text) || fclose(f))
        stop("cannot write a file");
}

static void add(maker *m, const char *name, size_t rows, size_t cols, float scale, float offset)
{
    tke_file_tensor *t = &m->tensors[m->n++];
    size_t count = rows * (cols ? cols : 1);
    int dtype = !m->t.dtype || !strcmp(m->t.dtype, "F32") ? TKE_FILE_F32
                : !strcmp(m->t.dtype, "BF16")             ? TKE_FILE_BF16
                                                          : TKE_FILE_F16;
    size_t size = tke_file_dtype_size(dtype);
    unsigned char *data = malloc(count * size);
    char *copy = malloc(strlen(name) + 1);
    if (!data || !copy || m->n == MAX_TENSORS)
        stop("memory");
    memcpy(copy, name, strlen(name) + 1);
    for (size_t i = 0; i < count; i++) {
        float x = offset + scale * tiny_normal(&m->random);
        uint16_t half = dtype == TKE_FILE_BF16 ? tke_f32_to_bf16(x) : tke_f32_to_f16(x);
        if (dtype == TKE_FILE_F32)
            memcpy(data + 4 * i, &x, 4);
        else
            memcpy(data + 2 * i, &half, 2);
    }
    *t = (tke_file_tensor){
        .name = copy, .data = data, .n_bytes = count * size, .dtype = dtype, .n_dims = cols ? 2 : 1
    };
    t->dims[0] = (int64_t)rows;
    t->dims[1] = (int64_t)cols;
}

static void add_linear(maker *m, size_t layer, const char *module, size_t out, size_t in, bool bias)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, module);
    add(m, name, out, in, 0.7f / sqrtf((float)in), 0);
    if (!bias)
        return;
    snprintf(name, sizeof name, "model.layers.%zu.%s.bias", layer, module);
    add(m, name, out, 0, 0.2f, 0);
}

static void add_norm(maker *m, size_t layer, const char *which, size_t n)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, which);
    add(m, name, n, 0, 0.1f, 1);
}

static void add_layer(maker *m, size_t i)
{
    const tiny_model *t = &m->t;
    size_t qd = t->heads * t->head_dim, kd = t->kv_heads * t->head_dim;
    bool qwen2 = !strcmp(t->family, "qwen2"), llama = !strcmp(t->family, "llama");
    bool qkv = qwen2 || t->bias, o = !qwen2 && t->bias, mlp = llama && t->bias;
    add_norm(m, i, "input_layernorm", t->hidden);
    add_linear(m, i, "self_attn.q_proj", qd, t->hidden, qkv);
    add_linear(m, i, "self_attn.k_proj", kd, t->hidden, qkv);
    add_linear(m, i, "self_attn.v_proj", kd, t->hidden, qkv);
    add_linear(m, i, "self_attn.o_proj", t->hidden, qd, o);
    if (!strcmp(t->family, "qwen3")) {
        add_norm(m, i, "self_attn.q_norm", t->head_dim);
        add_norm(m, i, "self_attn.k_norm", t->head_dim);
    }
    add_norm(m, i, "post_attention_layernorm", t->hidden);
    add_linear(m, i, "mlp.gate_proj", t->inner, t->hidden, mlp);
    add_linear(m, i, "mlp.up_proj", t->inner, t->hidden, mlp);
    add_linear(m, i, "mlp.down_proj", t->hidden, t->inner, mlp);
}

static void write_config(const maker *m)
{
    const tiny_model *t = &m->t;
    char text[2048], rope[512];
    const char *name = !strcmp(t->family, "llama")   ? "LlamaForCausalLM"
                       : !strcmp(t->family, "qwen2") ? "Qwen2ForCausalLM"
                                                     : "Qwen3ForCausalLM";
    if (!t->rope)
        snprintf(rope, sizeof rope, "\"rope_theta\": 10000.0");
    else if (t->old_rope)
        snprintf(rope, sizeof rope, "\"rope_theta\": 500000.0, \"rope_scaling\": {%s}", t->rope);
    else
        snprintf(rope, sizeof rope, "\"rope_parameters\": {\"rope_theta\": 500000.0, %s}", t->rope);
    snprintf(
        text, sizeof text,
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": %zu, "
        "\"intermediate_size\": %zu, \"num_hidden_layers\": %zu, \"num_attention_heads\": %zu, "
        "\"num_key_value_heads\": %zu, \"head_dim\": %zu, \"vocab_size\": %zu, "
        "\"max_position_embeddings\": %zu, \"rms_norm_eps\": 1e-6, %s, \"hidden_act\": \"silu\", "
        "\"tie_word_embeddings\": %s, \"attention_bias\": %s, \"mlp_bias\": %s, "
        "\"eos_token_id\": 1%s%s}",
        name, t->family, t->hidden, t->inner, t->layers, t->heads, t->kv_heads, t->head_dim,
        t->vocab, t->context, rope, t->tied ? "true" : "false", t->bias ? "true" : "false",
        t->bias ? "true" : "false", t->extra ? ", " : "", t->extra ? t->extra : "");
    tiny_write(m->folder, "config.json", text);
}

static void write_shards(const maker *m)
{
    tinkc_error err = { 0 };
    char path[512], *index = malloc(128 * 1024);
    size_t half = m->n / 2, used;
    if (!index)
        stop("memory");
    used = (size_t)snprintf(index, 128 * 1024, "{\"metadata\": {}, \"weight_map\": {");
    for (size_t i = 0; i < m->n; i++)
        used += (size_t)snprintf(index + used, 128 * 1024 - used,
                                 "%s\"%s\": \"model-0000%d-of-00002.safetensors\"", i ? ", " : "",
                                 m->tensors[i].name, i < half ? 1 : 2);
    snprintf(index + used, 128 * 1024 - used, "}}");
    tiny_write(m->folder, "model.safetensors.index.json", index);
    free(index);
    snprintf(path, sizeof path, "%s/model-00001-of-00002.safetensors", m->folder);
    tke_tensor_file_write(path, m->tensors, half, NULL, 0644, &err);
    snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", m->folder);
    tke_tensor_file_write(path, m->tensors + half, m->n - half, NULL, 0644, &err);
    if (err.code)
        stop(err.message);
}

char *tiny_model_make(const tiny_model *t)
{
    maker *m = calloc(1, sizeof *m);
    tinkc_error err = { 0 };
    if (!m)
        stop("memory");
    m->t = *t;
    m->random = t->seed + 1;
    const size_t defaults[8] = { 32, 48, 2, 4, 2, 8, 101, 256 };
    size_t *fields[8] = { &m->t.hidden,   &m->t.inner,    &m->t.layers, &m->t.heads,
                          &m->t.kv_heads, &m->t.head_dim, &m->t.vocab,  &m->t.context };
    for (int i = 0; i < 8; i++)
        if (!*fields[i])
            *fields[i] = defaults[i];
    m->folder = tiny_folder();
    add(m, "model.embed_tokens.weight", m->t.vocab, m->t.hidden, 0.5f, 0);
    for (size_t i = 0; i < m->t.layers; i++)
        add_layer(m, i);
    add(m, "model.norm.weight", m->t.hidden, 0, 0.1f, 1);
    if (!m->t.tied)
        add(m, "lm_head.weight", m->t.vocab, m->t.hidden, 1.5f / sqrtf((float)m->t.hidden), 0);
    write_config(m);
    if (m->t.shards) {
        write_shards(m);
    } else {
        char path[512];
        snprintf(path, sizeof path, "%s/model.safetensors", m->folder);
        if (!tke_tensor_file_write(path, m->tensors, m->n, NULL, 0644, &err))
            stop(err.message);
    }
    for (size_t i = 0; i < m->n; i++) {
        free((void *)(uintptr_t)m->tensors[i].data);
        free((void *)(uintptr_t)m->tensors[i].name);
    }
    char *folder = m->folder;
    free(m);
    return folder;
}
