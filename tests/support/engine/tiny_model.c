/* tiny_model.c - writes config.json and random weights in the form that transformers writes. */
#include "support/engine/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "math/format.h"
#include "model/safetensors.h"

enum { MAX_TENSORS = 512, EXPERTS = 5, EXPERT_INNER = 20, SHARED_INNER = 12, ROUTED = 6 };

static const char tiny_nemotron_pattern[] = "ME*-MEM*"; /* as many of it as there are layers */

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
    char name[192];
    snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, module);
    add(m, name, out, in, 0.7f / sqrtf((float)in), 0);
    if (!bias)
        return;
    snprintf(name, sizeof name, "model.layers.%zu.%s.bias", layer, module);
    add(m, name, out, 0, 0.2f, 0);
}

static bool is(const maker *m, const char *family)
{
    return strcmp(m->t.family, family) == 0;
}

static void add_norm(maker *m, size_t layer, const char *which, size_t n)
{
    char name[128];
    bool from_one = strncmp(m->t.family, "qwen3_5", 7) == 0 && !strstr(which, "linear_attn"); /* weight - 1 is stored */
    snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, which);
    add(m, name, n, 0, 0.1f, from_one ? 0 : 1);
}

/* The last tensors, of one shape, become one of three dimensions. */
static void fuse(maker *m, size_t n, const char *name)
{
    tke_file_tensor *first = &m->tensors[m->n - n];
    unsigned char *data = malloc(n * first->n_bytes);
    char *copy = malloc(strlen(name) + 1);
    if (!data || !copy)
        stop("memory");
    memcpy(copy, name, strlen(name) + 1);
    for (size_t i = 0; i < n; i++) {
        memcpy(data + i * first->n_bytes, first[i].data, first->n_bytes);
        free((void *)(uintptr_t)first[i].data);
        free((void *)(uintptr_t)first[i].name);
    }
    first->dims[2] = first->dims[1];
    first->dims[1] = first->dims[0];
    first->dims[0] = (int64_t)n;
    first->n_dims = 3;
    first->data = data;
    first->name = copy;
    first->n_bytes *= n;
    m->n -= n - 1;
}

/* The same numbers in either layout. */
static void add_experts(maker *m, size_t i)
{
    char name[128];
    size_t h = m->t.hidden, f = EXPERT_INNER;
    add_linear(m, i, "mlp.gate", EXPERTS, h, false);
    for (size_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof name, "mlp.experts.%zu.gate_proj", e);
        add_linear(m, i, name, f, h, false);
        snprintf(name, sizeof name, "mlp.experts.%zu.up_proj", e);
        add_linear(m, i, name, f, h, false);
    }
    snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.gate_up_proj", i);
    if (m->t.fused) { /* [2 E, f, h] is [E, 2 f, h] */
        fuse(m, 2 * EXPERTS, name);
        m->tensors[m->n - 1].dims[0] = EXPERTS;
        m->tensors[m->n - 1].dims[1] = (int64_t)(2 * f);
    }
    for (size_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof name, "mlp.experts.%zu.down_proj", e);
        add_linear(m, i, name, h, f, false);
    }
    snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.down_proj", i);
    if (m->t.fused)
        fuse(m, EXPERTS, name);
}

static void add_tensor(maker *m, const char *name, int dtype, unsigned char *data, size_t n_dims, const size_t *dims)
{
    tke_file_tensor *t = &m->tensors[m->n++];
    char *copy = malloc(strlen(name) + 1);
    size_t count = 1;
    if (!copy || !data || m->n == MAX_TENSORS)
        stop("memory");
    memcpy(copy, name, strlen(name) + 1);
    *t = (tke_file_tensor){ .name = copy, .data = data, .dtype = dtype, .n_dims = (int32_t)n_dims };
    for (size_t i = 0; i < n_dims; i++) {
        t->dims[i] = (int64_t)dims[i];
        count *= dims[i];
    }
    t->n_bytes = count * tke_file_dtype_size(dtype);
}

/* The decoded numbers, [E, in, out]. */
static unsigned char *unpacked(const unsigned char *blocks, const unsigned char *scales, size_t out, size_t in)
{
    uint16_t *row = malloc(in * sizeof *row), *data = malloc(EXPERTS * out * in * sizeof *data);
    tke_matrix m = { blocks, (int64_t)in, TKE_MXFP4, scales, NULL };
    for (size_t r = 0; row && data && r < EXPERTS * out; r++) {
        tke_format_mxfp4.unpack[TKE_UNPACK_REF](&m, (int64_t)r, 0, (int64_t)in, row);
        for (size_t k = 0; k < in; k++)
            data[(r / out * in + k) * out + r % out] = row[k];
    }
    free(row);
    return (unsigned char *)data;
}

static void add_packed(maker *m, size_t i, const char *what, size_t out, size_t in)
{
    char name[128];
    size_t count = EXPERTS * out * in;
    unsigned char *blocks = malloc(count / 2), *scales = malloc(count / 32);
    if (!blocks || !scales)
        stop("memory");
    for (size_t k = 0; k < count / 2; k++)
        blocks[k] = (unsigned char)tiny_random(&m->random);
    for (size_t k = 0; k < count / 32; k++)
        scales[k] = (unsigned char)(122 + tiny_random(&m->random) % 3);
    if (m->t.mxfp4) {
        snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.%s_blocks", i, what);
        add_tensor(m, name, TKE_FILE_U8, blocks, 4, (size_t[]){ EXPERTS, out, in / 32, 16 });
        snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.%s_scales", i, what);
        add_tensor(m, name, TKE_FILE_U8, scales, 3, (size_t[]){ EXPERTS, out, in / 32 });
    } else {
        snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.%s", i, what);
        add_tensor(m, name, TKE_FILE_BF16, unpacked(blocks, scales, out, in), 3, (size_t[]){ EXPERTS, in, out });
        free(blocks);
        free(scales);
    }
    snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.%s_bias", i, what);
    add(m, name, EXPERTS, out, 0.3f, 0);
}

static void add_gpt_oss(maker *m, size_t i)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%zu.self_attn.sinks", i);
    add(m, name, m->t.heads, 0, 1, 0);
    add_linear(m, i, "mlp.router", EXPERTS, m->t.hidden, true);
    add_packed(m, i, "gate_up_proj", 2 * m->t.inner, m->t.hidden);
    add_packed(m, i, "down_proj", m->t.hidden, m->t.inner);
}

/* A tensor of the layer without ".weight" behind its name. */
static void add_bare(maker *m, size_t i, const char *which, size_t rows, size_t cols, float scale, float middle)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%zu.%s", i, which);
    add(m, name, rows, cols, scale, middle);
}

/* [channels, kernel] as files have it. */
static void add_conv(maker *m, size_t i, const char *name, size_t channels, size_t kernel)
{
    add_bare(m, i, name, channels, kernel, 0.5f, 0);
    tke_file_tensor *conv = &m->tensors[m->n - 1];
    conv->n_dims = 3;
    conv->dims[2] = conv->dims[1];
    conv->dims[1] = 1;
}

/* A state space: 6 heads of 5 in 2 groups, state 7, over the last 4 rows. */
static void add_space(maker *m, size_t i)
{
    size_t h = m->t.hidden, inner = 6 * 5, vectors = 2 * 7;
    add_linear(m, i, "mixer.in_proj", 2 * inner + 2 * vectors + 6, h, false);
    add_linear(m, i, "mixer.out_proj", h, inner, false);
    add_conv(m, i, "mixer.conv1d.weight", inner + 2 * vectors, 4);
    add_bare(m, i, "mixer.conv1d.bias", inner + 2 * vectors, 0, 0.3f, 0);
    add_bare(m, i, "mixer.A_log", 6, 0, 0.5f, -1);
    add_bare(m, i, "mixer.D", 6, 0, 0.5f, 0.5f);
    add_bare(m, i, "mixer.dt_bias", 6, 0, 0.5f, -1);
    add_norm(m, i, "mixer.norm", inner);
}

/* 6 experts in 3 groups, and one of every row. */
static void add_routed(maker *m, size_t i)
{
    char name[128];
    size_t h = m->t.hidden, f = EXPERT_INNER;
    add_linear(m, i, "mixer.gate", ROUTED, h, false);
    add_bare(m, i, "mixer.gate.e_score_correction_bias", ROUTED, 0, 0.1f, 2);
    for (int down = 0; down < 2; down++) {
        const char *leaf = down ? "down_proj" : "up_proj";
        for (size_t e = 0; e < ROUTED; e++) {
            snprintf(name, sizeof name, "mixer.experts.%zu.%s", e, leaf);
            add_linear(m, i, name, down ? h : f, down ? f : h, false);
        }
        snprintf(name, sizeof name, "model.layers.%zu.mixer.experts.%s", i, leaf);
        if (m->t.fused)
            fuse(m, ROUTED, name);
    }
    add_linear(m, i, "mixer.shared_experts.up_proj", SHARED_INNER, h, false);
    add_linear(m, i, "mixer.shared_experts.down_proj", h, SHARED_INNER, false);
}

static void add_nemotron(maker *m, size_t i)
{
    const tiny_model *t = &m->t;
    size_t qd = t->heads * t->head_dim, kd = t->kv_heads * t->head_dim;
    add_norm(m, i, "norm", t->hidden);
    switch (tiny_nemotron_pattern[i]) {
    case 'M':
        add_space(m, i);
        break;
    case 'E':
        add_routed(m, i);
        break;
    case '*':
        add_linear(m, i, "mixer.q_proj", qd, t->hidden, false);
        add_linear(m, i, "mixer.k_proj", kd, t->hidden, false);
        add_linear(m, i, "mixer.v_proj", kd, t->hidden, false);
        add_linear(m, i, "mixer.o_proj", t->hidden, qd, false);
        break;
    default:
        add_linear(m, i, "mixer.up_proj", t->inner, t->hidden, false);
        add_linear(m, i, "mixer.down_proj", t->hidden, t->inner, false);
    }
}

/* Published folders have other prefixes than "model.". */
static void rename_prefix(maker *m, const char *prefix)
{
    for (size_t i = 0; i < m->n; i++) {
        const char *old = m->tensors[i].name;
        size_t room = strlen(old) + strlen(prefix) + 1;
        char *name = malloc(room);
        if (!name)
            stop("memory");
        bool ours = strncmp(old, "model.", 6) == 0;
        snprintf(name, room, "%s%s", ours ? prefix : "", ours ? old + 6 : old);
        free((void *)(uintptr_t)old);
        m->tensors[i].name = name;
    }
}

/* Linear attention: 2 heads of keys of 8, 4 of values of 6, over the last 3 rows. */
static void add_delta(maker *m, size_t i)
{
    size_t h = m->t.hidden, keys = 2 * 8, values = 4 * 6, all = 2 * keys + values;
    add_linear(m, i, "linear_attn.in_proj_qkv", all, h, false);
    add_linear(m, i, "linear_attn.in_proj_z", values, h, false);
    add_linear(m, i, "linear_attn.in_proj_b", 4, h, false);
    add_linear(m, i, "linear_attn.in_proj_a", 4, h, false);
    add_linear(m, i, "linear_attn.out_proj", h, values, false);
    add_conv(m, i, "linear_attn.conv1d.weight", all, 3);
    add_bare(m, i, "linear_attn.A_log", 4, 0, 0.5f, -1);
    add_bare(m, i, "linear_attn.dt_bias", 4, 0, 0.5f, -1);
    add_norm(m, i, "linear_attn.norm", 6);
}

static void add_mlp(maker *m, size_t i, bool bias)
{
    add_linear(m, i, "mlp.gate_proj", m->t.inner, m->t.hidden, bias);
    add_linear(m, i, "mlp.up_proj", m->t.inner, m->t.hidden, bias);
    add_linear(m, i, "mlp.down_proj", m->t.hidden, m->t.inner, bias);
}

static void add_shared_experts(maker *m, size_t i)
{
    add_experts(m, i);
    add_linear(m, i, "mlp.shared_expert.gate_proj", SHARED_INNER, m->t.hidden, false);
    add_linear(m, i, "mlp.shared_expert.up_proj", SHARED_INNER, m->t.hidden, false);
    add_linear(m, i, "mlp.shared_expert.down_proj", m->t.hidden, SHARED_INNER, false);
    add_linear(m, i, "mlp.shared_expert_gate", 1, m->t.hidden, false);
}

static void add_layer(maker *m, size_t i)
{
    const tiny_model *t = &m->t;
    size_t qd = t->heads * t->head_dim, kd = t->kv_heads * t->head_dim;
    if (is(m, "nemotron_h")) {
        add_nemotron(m, i);
        return;
    }
    bool moe = is(m, "qwen3_5_moe_text"), gated = is(m, "qwen3_5_text") || moe;
    if (gated && i % 2 == 0) {
        add_norm(m, i, "input_layernorm", t->hidden);
        add_delta(m, i);
        add_norm(m, i, "post_attention_layernorm", t->hidden);
        if (moe)
            add_shared_experts(m, i);
        else
            add_mlp(m, i, false);
        return;
    }
    bool qwen2 = !strcmp(t->family, "qwen2"), llama = !strcmp(t->family, "llama");
    bool oss = is(m, "gpt_oss"), qkv = qwen2 || oss || t->bias, o = oss || (!qwen2 && t->bias), mlp = llama && t->bias;
    add_norm(m, i, "input_layernorm", t->hidden);
    add_linear(m, i, "self_attn.q_proj", gated ? 2 * qd : qd, t->hidden, qkv);
    add_linear(m, i, "self_attn.k_proj", kd, t->hidden, qkv);
    add_linear(m, i, "self_attn.v_proj", kd, t->hidden, qkv);
    add_linear(m, i, "self_attn.o_proj", t->hidden, qd, o);
    if (is(m, "qwen3") || is(m, "qwen3_moe") || gated) {
        add_norm(m, i, "self_attn.q_norm", t->head_dim);
        add_norm(m, i, "self_attn.k_norm", t->head_dim);
    }
    add_norm(m, i, "post_attention_layernorm", t->hidden);
    if (oss) {
        add_gpt_oss(m, i);
        return;
    }
    if (moe) {
        add_shared_experts(m, i);
        return;
    }
    if (is(m, "qwen3_moe") && i != 1) {
        add_experts(m, i);
        return;
    }
    add_mlp(m, i, mlp);
}

static const struct {
    const char *family, *name, *extra; /* extra: its own members of config.json */
} families[] = { { "llama", "LlamaForCausalLM", "" },
                 { "qwen2", "Qwen2ForCausalLM", "" },
                 { "qwen3", "Qwen3ForCausalLM", "" },
                 { "qwen3_moe", "Qwen3MoeForCausalLM",
                   ", \"num_experts\": 5, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, "
                   "\"moe_intermediate_size\": 20, \"mlp_only_layers\": [1]" },
                 { "gpt_oss", "GptOssForCausalLM",
                   ", \"num_local_experts\": 5, \"num_experts_per_tok\": 2, \"attention_bias\": true, "
                   "\"sliding_window\": 9, \"swiglu_limit\": 2.0" },
                 { "qwen3_5_text", "Qwen3_5ForCausalLM",
                   ", \"full_attention_interval\": 2, \"linear_num_key_heads\": 2, "
                   "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 8, "
                   "\"linear_value_head_dim\": 6, \"linear_conv_kernel_dim\": 3, "
                   "\"partial_rotary_factor\": 0.5" },
                 { "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM",
                   ", \"full_attention_interval\": 2, \"linear_num_key_heads\": 2, "
                   "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 8, "
                   "\"linear_value_head_dim\": 6, \"linear_conv_kernel_dim\": 3, "
                   "\"partial_rotary_factor\": 0.5, \"num_experts\": 5, \"num_experts_per_tok\": 2, "
                   "\"moe_intermediate_size\": 20, \"shared_expert_intermediate_size\": 12" },
                 { "nemotron_h", "NemotronHForCausalLM",
                   ", \"mamba_num_heads\": 6, \"mamba_head_dim\": 5, \"ssm_state_size\": 7, "
                   "\"n_groups\": 2, \"conv_kernel\": 4, \"time_step_limit\": [0.02, 1.5], "
                   "\"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"n_group\": 3, "
                   "\"topk_group\": 2, \"routed_scaling_factor\": 2.5, \"moe_intermediate_size\": 20, "
                   "\"moe_shared_expert_intermediate_size\": 12" } };

static size_t family_of(const char *family)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].family, family) == 0)
            return i;
    stop(family);
    return 0;
}

static void write_config(const maker *m)
{
    const tiny_model *t = &m->t;
    char text[3072], rope[512];
    size_t of = family_of(t->family);
    if (!t->rope)
        snprintf(rope, sizeof rope, "\"rope_theta\": 10000.0");
    else if (t->old_rope)
        snprintf(rope, sizeof rope, "\"rope_theta\": 500000.0, \"rope_scaling\": {%s}", t->rope);
    else
        snprintf(rope, sizeof rope, "\"rope_parameters\": {\"rope_theta\": 500000.0, %s}", t->rope);
    snprintf(text, sizeof text,
             "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": %zu, "
             "\"intermediate_size\": %zu, \"num_hidden_layers\": %zu, \"num_attention_heads\": %zu, "
             "\"num_key_value_heads\": %zu, \"head_dim\": %zu, \"vocab_size\": %zu, "
             "\"max_position_embeddings\": %zu, \"rms_norm_eps\": 1e-6, %s, \"hidden_act\": \"silu\", "
             "\"tie_word_embeddings\": %s, \"attention_bias\": %s, \"mlp_bias\": %s, "
             "\"eos_token_id\": 1%s%s%s}",
             families[of].name, t->family, t->hidden, t->inner, t->layers, t->heads, t->kv_heads, t->head_dim, t->vocab,
             t->context, rope, t->tied ? "true" : "false", t->bias ? "true" : "false", t->bias ? "true" : "false",
             families[of].extra, t->extra ? ", " : "", t->extra ? t->extra : "");
    if (t->mxfp4) /* before the last brace */
        snprintf(text + strlen(text) - 1, sizeof text - strlen(text),
                 ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}}");
    if (t->nested) {
        char inside[2048];
        memcpy(inside, text, sizeof inside - 1);
        inside[sizeof inside - 1] = 0;
        snprintf(text, sizeof text, "{\"architectures\": [\"%s\"], \"vision_config\": {}, \"text_config\": %s}",
                 is(m, "qwen3_5_text") ? "Qwen3_5ForConditionalGeneration" : "Qwen3_5MoeForConditionalGeneration",
                 inside);
    }
    if (is(m, "nemotron_h"))
        snprintf(text + strlen(text) - 1, sizeof text - strlen(text), ", \"hybrid_override_pattern\": \"%.*s\"}",
                 (int)t->layers, tiny_nemotron_pattern);
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
        used += (size_t)snprintf(index + used, 128 * 1024 - used, "%s\"%s\": \"model-0000%d-of-00002.safetensors\"",
                                 i ? ", " : "", m->tensors[i].name, i < half ? 1 : 2);
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
    if (is(m, "gpt_oss"))
        m->t.inner = (m->t.inner + 31) / 32 * 32;
    m->folder = tiny_folder();
    bool nemotron = is(m, "nemotron_h");
    add(m, nemotron ? "model.embeddings.weight" : "model.embed_tokens.weight", m->t.vocab, m->t.hidden, 0.5f, 0);
    for (size_t i = 0; i < m->t.layers; i++)
        add_layer(m, i);
    add(m, nemotron ? "model.norm_f.weight" : "model.norm.weight", m->t.hidden, 0, 0.1f, 1);
    if (!m->t.tied)
        add(m, "lm_head.weight", m->t.vocab, m->t.hidden, 1.5f / sqrtf((float)m->t.hidden), 0);
    if (nemotron && !m->t.fused)
        rename_prefix(m, "backbone.");
    if (m->t.nested) {
        rename_prefix(m, "model.language_model.");
        add(m, "model.visual.patch_embed.weight", 4, 4, 1, 0); /* passed over */
    }
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
