/* test_gguf.c - GGUF files, read back byte by byte with a reader of the test's own: every key, the
 * table of tensors, and every number against the model and the adapter. */
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "math/format.h"
#include "model/gguf_model.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_gguf.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "tinkc/engine.h"

enum { MOST_TENSORS = 64, TEXT = 16384 };
enum { F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };

typedef struct tensor {
    char name[64];
    uint64_t dims[3];
    uint32_t n_dims, type;
    const unsigned char *data;
} tensor;

typedef struct gguf {
    unsigned char *bytes;
    size_t len, at;
    char keys[TEXT]; /* "key=value" lines */
    tensor tensors[MOST_TENSORS];
    size_t n;
} gguf;

/* ---- the reader ---- */

static uint64_t number(gguf *g, size_t bytes)
{
    uint64_t value = 0;
    assert_true(g->at + bytes <= g->len);
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)g->bytes[g->at++] << (8 * i);
    return value;
}

static void text(gguf *g, char *out, size_t room)
{
    size_t len = number(g, 8);
    assert_true(len < room && g->at + len <= g->len);
    memcpy(out, g->bytes + g->at, len);
    out[len] = '\0';
    g->at += len;
}

static void say(gguf *g, const char *format, ...)
{
    va_list args;
    size_t used = strlen(g->keys);
    va_start(args, format);
    int n = vsnprintf(g->keys + used, TEXT - used, format, args);
    va_end(args);
    assert_true(n >= 0 && used + (size_t)n < TEXT);
}

static void value(gguf *g, uint64_t type)
{
    char s[512];
    uint32_t bits;
    float f;
    switch (type) {
    case 4:
        say(g, "%u", (unsigned)number(g, 4));
        break;
    case 5:
        say(g, "%d", (int)(int32_t)number(g, 4));
        break;
    case 6:
        bits = (uint32_t)number(g, 4);
        memcpy(&f, &bits, 4);
        say(g, "%.7g", (double)f);
        break;
    case 7:
        say(g, number(g, 1) ? "true" : "false");
        break;
    case 8:
        text(g, s, sizeof s);
        say(g, "%s", s);
        break;
    default:
        fail_msg("a key of type %llu", (unsigned long long)type);
    }
}

static void key(gguf *g)
{
    char name[128];
    text(g, name, sizeof name);
    uint64_t type = number(g, 4);
    say(g, "%s=", name);
    if (type != 9) {
        value(g, type);
    } else {
        uint64_t inner = number(g, 4), n = number(g, 8);
        say(g, "[%llu]", (unsigned long long)n);
        for (uint64_t i = 0; i < n; i++) {
            bool shown = i < 12; /* the rest of a vocabulary is gaps */
            size_t used = strlen(g->keys);
            say(g, " ");
            value(g, inner);
            if (!shown)
                g->keys[used] = '\0';
        }
    }
    say(g, "\n");
}

static size_t bytes_of(const tensor *t)
{
    uint64_t cols = t->dims[0], rows = t->n_dims >= 2 ? t->dims[1] : 1;
    rows *= t->n_dims == 3 ? t->dims[2] : 1;
    return t->type == F32 ? rows * cols * 4 : t->type == Q8_0 ? rows * cols / 32 * 34 : rows * cols * 2;
}

/* Reads all of it; places must follow each other, padded to 32, up to the end of the file. */
static gguf *gguf_read(const char *path)
{
    gguf *g = test_calloc(1, sizeof *g);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    g->bytes = test_malloc(4 << 20);
    g->len = fread(g->bytes, 1, 4 << 20, f);
    fclose(f);
    assert_memory_equal(g->bytes, "GGUF", 4);
    g->at = 4;
    assert_int_equal(number(g, 4), 3);
    g->n = number(g, 8);
    assert_true(g->n <= MOST_TENSORS);
    for (uint64_t n = number(g, 8); n > 0; n--)
        key(g);
    uint64_t offsets[MOST_TENSORS], end = 0;
    for (size_t i = 0; i < g->n; i++) {
        tensor *t = &g->tensors[i];
        text(g, t->name, sizeof t->name);
        t->n_dims = (uint32_t)number(g, 4);
        assert_in_range(t->n_dims, 1, 3);
        for (uint32_t d = 0; d < t->n_dims; d++)
            t->dims[d] = number(g, 8);
        t->type = (uint32_t)number(g, 4);
        offsets[i] = number(g, 8);
        assert_int_equal(offsets[i], end);
        end += (bytes_of(t) + 31) / 32 * 32;
    }
    g->at = (g->at + 31) / 32 * 32;
    assert_int_equal(g->len, g->at + end);
    for (size_t i = 0; i < g->n; i++)
        g->tensors[i].data = g->bytes + g->at + offsets[i];
    return g;
}

static void gguf_free(gguf *g)
{
    test_free(g->bytes);
    test_free(g);
}

static const tensor *find(const gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    return NULL;
}

/* ---- models to write ---- */

#define REGEX(digits)                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits                                     \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const char llama_tokenizer[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 4, \"content\": \"<s>\", \"special\": true},"
    "{\"id\": 5, \"content\": \"<tool>\", \"special\": false}],"
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" REGEX(
        "\\\\p{N}{1,3}") "\"}, \"behavior\": "
                         "\"Isolated\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]},"
                         "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": "
                         "\"ByteLevel\"},"
                         "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
                         "{\"id\": \"<s>\", "
                         "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\"}}]}]},"
                         "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": "
                         "2, \"c\": 3, "
                         "\"<s>\": 4, \"abc\": 6}, \"merges\": [\"a b\", [\"ab\", \"c\"]]}}";
static const char qwen_tokenizer[] =
    "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" REGEX(
        "\\\\p{N}") "\"}}, "
                    "{\"type\": \"ByteLevel\"}]}, \"post_processor\": null, \"model\": {\"type\": "
                    "\"BPE\", "
                    "\"vocab\": {\"x\": 0, \"y\": 1, \"xy\": 7}, \"merges\": [\"x y\"]}, "
                    "\"added_tokens\": [{\"id\": 1, \"content\": \"y\", \"special\": true}]}";
static const char plain_tokenizer[] =
    "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": "
    "{\"x\": 0}, \"merges\": []}}";

static char *llama_folder(void)
{
    char *folder = tiny_model_make(
        &(tiny_model){ .family = "llama",
                       .bias = true,
                       .layers = 1,
                       .inner = 64,
                       .seed = 4,
                       .rope = "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                               "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 1024" });
    tiny_write(folder, "tokenizer.json", llama_tokenizer);
    tiny_write(folder, "tokenizer_config.json",
               "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"abc\", \"pad_token\": null, "
               "\"unk_token\": \"c\", \"add_bos_token\": false, \"chat_template\": [{\"name\": "
               "\"tool\", \"template\": \"no\"}, {\"name\": \"default\", \"template\": \"yes\"}]}");
    return folder;
}

static char *qwen_folder(const char *rope)
{
    char *folder = tiny_model_make(
        &(tiny_model){ .family = "qwen3", .tied = true, .layers = 1, .head_dim = 16, .seed = 5, .rope = rope });
    tiny_write(folder, "tokenizer.json", qwen_tokenizer);
    return folder;
}

/* ---- the calls ---- */

typedef struct seen { /* by the progress function */
    int64_t calls, done, total;
    int64_t stop_at; /* call that answers false; 0 = none */
} seen;

static bool progress(int64_t done, int64_t total, void *user)
{
    seen *s = user;
    s->calls++;
    assert_true(done > s->done && done <= total);
    assert_true(s->calls == 1 || total == s->total);
    s->done = done;
    s->total = total;
    return s->calls != s->stop_at;
}

static void path_in(char out[512], const char *folder)
{
    snprintf(out, 512, "%s/out.gguf", folder);
}

static gguf *written(const char *model, const char *adapter, const char *type)
{
    char path[512], *room = tiny_folder();
    tinkc_error err = { 0 };
    seen s = { 0 };
    path_in(path, room);
    tinkc_adapter_options o = {
        .adapter = adapter, .base_model = model, .target = path, .format = TINKC_ADAPTER_GGUF, .gguf_type = type
    };
    bool ok = tinkc_adapter_export(&o, progress, &s, &err);
    assert_string_equal(err.message, "");
    assert_true(ok);
    gguf *g = gguf_read(path);
    assert_int_equal(s.calls, g->n); /* one for each tensor */
    size_t sum = 0;
    for (size_t i = 0; i < g->n; i++)
        sum += bytes_of(&g->tensors[i]);
    assert_int_equal(s.done, sum);
    tiny_model_remove(room);
    return g;
}

/* Refused with this message, and nothing is left beside the target. */
static void refused(const char *model, const char *adapter, const char *type, int64_t stop_at, int32_t code,
                    const char *message)
{
    char path[512], partial[600], *room = tiny_folder();
    tinkc_error err = { 0 };
    seen s = { .stop_at = stop_at };
    path_in(path, room);
    tinkc_adapter_options o = {
        .adapter = adapter, .base_model = model, .target = path, .format = TINKC_ADAPTER_GGUF, .gguf_type = type
    };
    assert_false(tinkc_adapter_export(&o, progress, &s, &err));
    if (err.code != code || !strstr(err.message, message))
        fail_msg("wanted %d '%s', got %d '%s'", code, message, err.code, err.message);
    snprintf(partial, sizeof partial, "%s.partial", path);
    assert_false(tkc_is_file(path));
    assert_false(tkc_is_file(partial));
    tiny_model_remove(room);
}

static const char *name_of(const char *folder)
{
    return strrchr(folder, '/') + 1;
}

static void same_keys(const gguf *g, const char *folder, const char *format)
{
    char want[TEXT];
    snprintf(want, sizeof want, format, name_of(folder));
    assert_string_equal(g->keys, want);
}

/* ---- keys ---- */

TEST(keys_of_llama)
{
    char *folder = llama_folder(), slashed[600];
    gguf *g = written(folder, NULL, NULL);
    static const char want[] =
        "general.architecture=llama\n"
        "general.type=model\n"
        "general.name=%s\n"
        "general.file_type=1\n"
        "general.quantization_version=2\n"
        "llama.block_count=1\n"
        "llama.context_length=256\n"
        "llama.embedding_length=32\n"
        "llama.feed_forward_length=64\n"
        "llama.attention.head_count=4\n"
        "llama.attention.head_count_kv=2\n"
        "llama.attention.key_length=8\n"
        "llama.attention.value_length=8\n"
        "llama.vocab_size=101\n"
        "llama.attention.layer_norm_rms_epsilon=1e-06\n"
        "llama.rope.freq_base=500000\n"
        "llama.rope.dimension_count=8\n"
        "tokenizer.ggml.model=gpt2\n"
        "tokenizer.ggml.pre=llama-bpe\n"
        "tokenizer.ggml.tokens=[101] a b ab c <s> <tool> abc [PAD7] [PAD8] [PAD9] [PAD10] [PAD11]\n"
        "tokenizer.ggml.token_type=[101] 1 1 1 1 3 4 1 5 5 5 5 5\n"
        "tokenizer.ggml.merges=[2] a b ab c\n"
        "tokenizer.ggml.bos_token_id=4\n"
        "tokenizer.ggml.eos_token_id=6\n"
        "tokenizer.ggml.unknown_token_id=3\n"
        "tokenizer.ggml.add_bos_token=true\n"
        "tokenizer.chat_template=yes\n";
    same_keys(g, folder, want);
    gguf_free(g);
    snprintf(slashed, sizeof slashed, "%s//", folder); /* the name is the last part all the same */
    tiny_write(folder, "chat_template.jinja", "yes");
    g = written(slashed, NULL, "f16");
    same_keys(g, folder, want);
    gguf_free(g);
    tiny_model_remove(folder);
}

TEST(keys_of_qwen)
{
    char *folder = qwen_folder("\"rope_type\": \"yarn\", \"factor\": 4.0, "
                               "\"original_max_position_embeddings\": 64");
    gguf *g = written(folder, NULL, "q8_0");
    same_keys(g, folder,
              "general.architecture=qwen3\n"
              "general.type=model\n"
              "general.name=%s\n"
              "general.file_type=7\n"
              "general.quantization_version=2\n"
              "qwen3.block_count=1\n"
              "qwen3.context_length=256\n"
              "qwen3.embedding_length=32\n"
              "qwen3.feed_forward_length=48\n"
              "qwen3.attention.head_count=4\n"
              "qwen3.attention.head_count_kv=2\n"
              "qwen3.attention.key_length=16\n"
              "qwen3.attention.value_length=16\n"
              "qwen3.vocab_size=101\n"
              "qwen3.attention.layer_norm_rms_epsilon=1e-06\n"
              "qwen3.rope.freq_base=500000\n"
              "qwen3.rope.dimension_count=16\n"
              "qwen3.rope.scaling.type=yarn\n"
              "qwen3.rope.scaling.factor=4\n"
              "qwen3.rope.scaling.original_context_length=64\n"
              "tokenizer.ggml.model=gpt2\n"
              "tokenizer.ggml.pre=qwen2\n"
              "tokenizer.ggml.tokens=[101] x y [PAD2] [PAD3] [PAD4] [PAD5] [PAD6] xy [PAD8] [PAD9] "
              "[PAD10] [PAD11]\n"
              "tokenizer.ggml.token_type=[101] 1 3 5 5 5 5 5 1 5 5 5 5\n"
              "tokenizer.ggml.merges=[1] x y\n"
              "tokenizer.ggml.eos_token_id=1\n"
              "tokenizer.ggml.add_bos_token=false\n");
    gguf_free(g);
    tiny_model_remove(folder);
    folder = qwen_folder("\"rope_type\": \"linear\", \"factor\": 2.0");
    tiny_write(folder, "tokenizer.json", plain_tokenizer);
    g = written(folder, NULL, "bf16");
    assert_non_null(strstr(g->keys, "general.file_type=32\n"));
    assert_non_null(strstr(g->keys, "rope.scaling.type=linear\nqwen3.rope.scaling.factor=2\ntok"));
    assert_non_null(strstr(g->keys, "tokenizer.ggml.pre=gpt-2\n"));
    gguf_free(g);
    g = written(folder, NULL, "f32");
    assert_non_null(strstr(g->keys, "general.file_type=0\n"));
    gguf_free(g);
    tiny_model_remove(folder);
}

/* ---- numbers ---- */

/* What the file must hold: the model's row, with scale B A added, in llama.cpp's order of rows. */
typedef struct matrix {
    const char *name;
    const tke_weight *w;
    size_t heads;     /* > 0: rows of a head are interleaved */
    size_t group, at; /* the adapter's */
} matrix;

/* What the adapter adds to a number, rows in the model's order. */
static double lora_part(const matrix *m, tke_adapter *a, size_t row, size_t c)
{
    const tke_lora_group *g = &tke_adapter_lora(a)->layout->groups[m->group];
    double x = 0;
    for (size_t r = 0; r < g->rank; r++) {
        double b = (double)adapter_weights(a)[g->b[m->at] + row * g->rank + r];
        double low = (double)adapter_weights(a)[g->a + (m->at * g->rank + r) * g->in + c];
        x += (double)tke_adapter_lora(a)->scale * b * low;
    }
    return x;
}

static double element(const matrix *m, tke_adapter *a, size_t i, size_t c)
{
    size_t row = i;
    if (m->heads) {
        size_t d = m->w->out / m->heads, half = d / 2;
        row = i / d * d + (i % d % 2 ? half : 0) + i % d / 2;
    }
    double x = (double)((const float *)m->w->m.data)[row * (size_t)m->w->m.ld + c];
    return a ? x + lora_part(m, a, row, c) : x;
}

static double stored(const tensor *t, size_t i)
{
    uint16_t half;
    float f;
    switch (t->type) {
    case F32:
        memcpy(&f, t->data + 4 * i, 4);
        return (double)f;
    case F16:
        memcpy(&half, t->data + 2 * i, 2);
        return (double)tke_f16_to_f32(half);
    case BF16:
        memcpy(&half, t->data + 2 * i, 2);
        return (double)tke_bf16_to_f32(half);
    default:
        memcpy(&half, t->data + i / 32 * 34, 2);
        return (double)tke_f16_to_f32(half) * (double)(signed char)t->data[i / 32 * 34 + 2 + i % 32];
    }
}

static void same_matrix(const gguf *g, const matrix *m, tke_adapter *a, uint32_t type, double off)
{
    const tensor *t = find(g, m->name);
    assert_non_null(t);
    assert_int_equal(t->type, type);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], m->w->in);
    assert_int_equal(t->dims[1], m->w->out);
    for (size_t i = 0; i < m->w->out * m->w->in; i++) {
        double want = element(m, a, i / m->w->in, i % m->w->in), got = stored(t, i);
        if (!(fabs(got - want) <= off * (type == Q8_0 ? 1 : fabs(want) + 0.1)))
            fail_msg("%s[%zu] is %g, not %g", m->name, i, got, want);
    }
}

static void same_vector(const gguf *g, const char *name, const float *want, size_t n, size_t heads)
{
    const tensor *t = find(g, name);
    assert_non_null(t);
    assert_int_equal(t->type, F32);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dims[0], n);
    for (size_t i = 0; i < n; i++) {
        size_t d = heads ? n / heads : n, from = i;
        if (heads)
            from = i / d * d + (i % d % 2 ? d / 2 : 0) + i % d / 2;
        assert_true(stored(t, i) == (double)want[from]);
    }
}

static tke_adapter *adapter_of(tke_device *d, tke_model *m, uint32_t train)
{
    tinkc_error err = { 0 };
    uint64_t r = 9;
    tke_adapter *a =
        tke_adapter_new(d, m, &(tke_adapter_spec){ .rank = 3, .train = train, .alpha = 5, .seed = 1 }, &err);
    assert_non_null(a);
    for (size_t i = 0; i < tke_adapter_lora(a)->layout->n_floats; i++)
        adapter_weights(a)[i] = 0.2f * tiny_normal(&r);
    return a;
}

static char *save(const tke_adapter *a)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder();
    tke_snapshot *s = tke_snapshot_take(a, &err);
    assert_true(tke_snapshot_write(s, folder, &(tke_adapter_save){ .base_name = "t" }, &err));
    tke_snapshot_drop(s);
    return folder;
}

static size_t matrices_of(const tke_model *m, matrix out[9])
{
    const tke_layer *l = &m->layers[0];
    bool llama = !strcmp(m->config.arch, "llama");
    size_t q = llama ? m->config.n_heads : 0, k = llama ? m->config.n_kv_heads : 0;
    const matrix all[9] = { { "blk.0.attn_q.weight", &l->attn->qkv->w[0], q, l->attn->qkv->index, 0 },
                            { "blk.0.attn_k.weight", &l->attn->qkv->w[1], k, l->attn->qkv->index, 1 },
                            { "blk.0.attn_v.weight", &l->attn->qkv->w[2], 0, l->attn->qkv->index, 2 },
                            { "blk.0.attn_output.weight", &l->attn->o->w[0], 0, l->attn->o->index, 0 },
                            { "blk.0.ffn_gate.weight", &l->dense->gate_up->w[0], 0, l->dense->gate_up->index, 0 },
                            { "blk.0.ffn_up.weight", &l->dense->gate_up->w[1], 0, l->dense->gate_up->index, 1 },
                            { "blk.0.ffn_down.weight", &l->dense->down->w[0], 0, l->dense->down->index, 0 },
                            { "output.weight", &m->head.w[0], 0, m->head.index, 0 },
                            { "token_embd.weight", &m->embed, 0, 0, 0 } };
    memcpy(out, all, sizeof all);
    return 9;
}

TEST(numbers_of_llama)
{
    static const struct {
        const char *name;
        uint32_t type;
        double off;
    } types[] = { { "f32", F32, 1e-6 }, { "f16", F16, 5e-4 }, { "bf16", BF16, 4e-3 }, { "q8_0", Q8_0, 2e-2 } };
    tinkc_error err = { 0 };
    char *folder = llama_folder();
    tke_model *m = tke_model_open(folder, &err);
    tke_device *d = device_cpu(1);
    tke_adapter *a = adapter_of(d, m, 7);
    char *adapter = save(a);
    const tke_layer *l = &m->layers[0];
    matrix list[9];
    size_t n = matrices_of(m, list);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        gguf *g = written(folder, adapter, types[t].name);
        assert_int_equal(g->n, n + 4 + 7);
        for (size_t i = 0; i < n; i++)
            same_matrix(g, &list[i], i == n - 1 ? NULL : a, types[t].type, types[t].off);
        same_vector(g, "blk.0.attn_norm.weight", l->mixer_norm, 32, 0);
        same_vector(g, "blk.0.ffn_norm.weight", l->feed_norm, 32, 0);
        same_vector(g, "output_norm.weight", m->norm, 32, 0);
        same_vector(g, "blk.0.attn_q.bias", l->attn->qkv->w[0].bias, 32, 4);
        same_vector(g, "blk.0.attn_k.bias", l->attn->qkv->w[1].bias, 16, 2);
        same_vector(g, "blk.0.attn_v.bias", l->attn->qkv->w[2].bias, 16, 0);
        same_vector(g, "blk.0.attn_output.bias", l->attn->o->w[0].bias, 32, 0);
        same_vector(g, "blk.0.ffn_gate.bias", l->dense->gate_up->w[0].bias, 64, 0);
        same_vector(g, "blk.0.ffn_up.bias", l->dense->gate_up->w[1].bias, 64, 0);
        same_vector(g, "blk.0.ffn_down.bias", l->dense->down->w[0].bias, 32, 0);
        const tensor *f = find(g, "rope_freqs.weight");
        assert_non_null(f);
        assert_int_equal(f->dims[0], 4);
        for (size_t i = 0; i < 4; i++) { /* plain frequency / factor = the model's */
            double plain = pow(500000, -(double)i / 4);
            assert_true(fabs(plain / stored(f, i) / m->rope_frequency[i] - 1) < 1e-6);
        }
        gguf_free(g);
    }
    tke_adapter_free(a);
    tke_device_close(d);
    tke_model_drop(m);
    tiny_model_remove(adapter);
    tiny_model_remove(folder);
}

/* What llama.cpp computes with both files: base + alpha / rank * B A. */
TEST(an_adapter_alone_and_the_base_make_the_merged_file)
{
    tinkc_error err = { 0 };
    char *folder = llama_folder(), path[512], *room = tiny_folder();
    tke_model *m = tke_model_open(folder, &err);
    tke_device *d = device_cpu(1);
    tke_adapter *a = adapter_of(d, m, 7);
    char *adapter = save(a);
    matrix list[9];
    size_t n = matrices_of(m, list) - 1; /* the embedding has none */
    path_in(path, room);
    tinkc_adapter_options o = {
        .adapter = adapter, .base_model = folder, .target = path, .format = TINKC_ADAPTER_GGUF_LORA, .gguf_type = "f32"
    };
    assert_true(tinkc_adapter_export(&o, NULL, NULL, &err));
    gguf *lora = gguf_read(path), *base = written(folder, NULL, "f32"), *merged = written(folder, adapter, "f32");
    assert_int_equal(lora->n, 2 * n);
    assert_non_null(strstr(lora->keys, "general.type=adapter\n"));
    assert_non_null(strstr(lora->keys, "adapter.type=lora\nadapter.lora.alpha=5"));
    for (size_t i = 0; i < n; i++) {
        char names[2][80];
        snprintf(names[0], sizeof names[0], "%s.lora_a", list[i].name);
        snprintf(names[1], sizeof names[1], "%s.lora_b", list[i].name);
        const tensor *ta = find(lora, names[0]), *tb = find(lora, names[1]);
        const tensor *from = find(base, list[i].name), *to = find(merged, list[i].name);
        size_t in = list[i].w->in;
        assert_true(ta && tb && from && to);
        assert_true(ta->dims[0] == in && ta->dims[1] == 3 && tb->dims[0] == 3 && tb->dims[1] == list[i].w->out);
        for (size_t k = 0; k < in * list[i].w->out; k++) {
            double sum = 0;
            for (size_t r = 0; r < 3; r++)
                sum += stored(tb, k / in * 3 + r) * stored(ta, r * in + k % in);
            double want = stored(from, k) + 5.0 / 3 * sum;
            if (fabs(stored(to, k) - want) > 1e-5)
                fail_msg("%s[%zu] is %g, not %g", list[i].name, k, stored(to, k), want);
        }
    }
    gguf_free(lora);
    assert_int_equal(unlink(path), 0);
    o.drop_unembed = true;
    assert_true(tinkc_adapter_export(&o, NULL, NULL, &err));
    lora = gguf_read(path);
    assert_int_equal(lora->n, 2 * (n - 1));
    assert_null(find(lora, "output.weight.lora_a"));
    gguf_free(lora);
    gguf_free(base);
    gguf_free(merged);
    tke_adapter_free(a);
    tke_device_close(d);
    tke_model_drop(m);
    tiny_model_remove(adapter);
    tiny_model_remove(room);
    tiny_model_remove(folder);
}

/* ---- a base in GGUF ---- */

static char *base_file(const char *folder)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    return path;
}

/* All of both files but the matrices with an adapter, whose names are counted. */
static size_t compare_files(const char *base, const char *merged, bool types_too)
{
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    tke_gguf_files files[2] = { { 0 }, { 0 } };
    size_t packed_again = 0;
    assert_true(tke_gguf_files_open(&files[0], base, &arena, &err) && tke_gguf_files_open(&files[1], merged, &arena, &err));
    const tkc_gguf *a = &files[0].parts[0].g, *b = &files[1].parts[0].g;
    const tkc_map_entry *key;
    for (size_t at = 0; types_too && (key = tkc_map_next(&a->keys, &at));) {
        const tkc_gguf_value *x = key->value, *y = tkc_gguf_find(b, key->key);
        if (!y || x->kind != y->kind || x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0)
            fail_msg("key %s differs", key->key);
    }
    assert_true(b->n_tensors >= a->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const tkc_gguf_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        assert_string_equal(x->name, y->name);
        assert_memory_equal(x->dims, y->dims, sizeof x->dims);
        assert_true(x->type == y->type || !types_too);
        size_t bytes = tke_format_bytes(tke_format_of_gguf(x->type), (size_t)x->dims[0]) * (size_t)x->dims[1];
        packed_again += x->type != y->type || memcmp(a->data.data + x->offset, b->data.data + y->offset, bytes) != 0;
    }
    tke_gguf_files_close(&files[0]);
    tke_gguf_files_close(&files[1]);
    tkc_arena_free(&arena);
    return packed_again;
}

/* How far the rows of a merged matrix are from base and adapter, beside their size. */
static double distance(const tke_model *base, const tke_model *merged, tke_adapter *a, size_t which)
{
    matrix from[9], to[9];
    double left = 0, all = 0;
    matrices_of(base, from);
    matrices_of(merged, to);
    const tke_weight *w = from[which].w;
    for (size_t i = 0; i < w->out; i++) {
        tke_real before[256], after[256];
        tke_matrix_row(&w->m, (int64_t)i, 0, 256, before);
        tke_matrix_row(&to[which].w->m, (int64_t)i, 0, 256, after);
        for (size_t k = 0; k < 256; k++) {
            double want = (double)before[k] + lora_part(&from[which], a, i, k), off = (double)after[k] - want;
            left += off * off;
            all += want * want;
        }
    }
    return sqrt(left / all);
}

TEST(what_is_merged_into_a_gguf_file_keeps_the_types_and_all_else_of_it)
{
    static const struct {
        tke_dtype dtype;
        double loss;
    } rows[] = { { TKE_Q8_0, 0.01 }, { TKE_Q4_0, 0.13 }, { TKE_Q4_1, 0.11 }, { TKE_Q5_0, 0.07 },  { TKE_Q5_1, 0.06 },
                 { TKE_Q4_K, 0.1 },  { TKE_Q5_K, 0.05 }, { TKE_Q6_K, 0.03 }, { TKE_IQ4_NL, 0.11 } };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        tinkc_error err = { 0 };
        char path[512], *room = tiny_folder();
        char *folder = tiny_gguf_make(&(tiny_model){ .family = "llama", .layers = 1, .hidden = 256, .inner = 256, .heads = 4,
                                                     .head_dim = 64, .kv_heads = 2, .tied = r != 1 }, rows[r].dtype);
        tke_model *m = tke_model_open(base_file(folder), &err);
        tke_device *d = device_cpu(1);
        tke_adapter *a = adapter_of(d, m, r > 1 ? TKE_TRAIN_ATTN | TKE_TRAIN_MLP : 7);
        char *adapter = save(a);
        path_in(path, room);
        tinkc_adapter_options o = { .adapter = adapter, .base_model = base_file(folder), .target = path, .format = TINKC_ADAPTER_GGUF };
        if (!tinkc_adapter_export(&o, NULL, NULL, &err))
            fail_msg("%s", err.message);
        assert_int_equal(compare_files(base_file(folder), path, true), r == 1 ? 8 : 7); /* q, k, v, o, gate, up, down, output */
        tke_model *merged = tke_model_open(path, &err);
        assert_non_null(merged);
        assert_true(merged->config.tied == (r > 1)); /* the base may lack the output layer that an adapter has */
        assert_true(merged->head.w[0].m.dtype == rows[r].dtype);
        for (size_t i = 0; i < (r > 1 ? 7 : 8); i++)
            if (!(distance(m, merged, a, i) < rows[r].loss))
                fail_msg("%s, matrix %zu: %g", tke_format_of(rows[r].dtype)->name, i, distance(m, merged, a, i));
        tke_model_drop(merged);
        assert_int_equal(unlink(path), 0);
        o.gguf_type = "bf16"; /* another type, but the keys of the file: it may have no folder */
        assert_true(tinkc_adapter_export(&o, NULL, NULL, &err));
        assert_int_equal(compare_files(base_file(folder), path, false), r == 1 ? 9 : 8); /* the embedding, too */
        gguf *g = gguf_read(path);
        assert_non_null(strstr(g->keys, "general.file_type=32\n"));
        gguf_free(g);
        assert_int_equal(unlink(path), 0);
        o.format = TINKC_ADAPTER_MERGED;
        o.gguf_type = NULL;
        assert_false(tinkc_adapter_export(&o, NULL, NULL, &err));
        assert_non_null(strstr(err.message, "a GGUF file is merged into a GGUF file"));
        tke_adapter_free(a);
        tke_device_close(d);
        tke_model_drop(m);
        tiny_model_remove(adapter);
        tiny_model_remove(room);
        tiny_model_remove(folder);
    }
}

/* Two bits and a sign would lose what is merged. */
TEST(what_is_merged_into_mxfp4_becomes_bf16)
{
    tinkc_error err = { 0 };
    char path[512], *room = tiny_folder();
    char *folder = tiny_gguf_make(&(tiny_model){ .family = "llama", .layers = 1, .inner = 64, .head_dim = 16, .tied = true }, TKE_MXFP4_BLOCKS);
    tke_model *m = tke_model_open(base_file(folder), &err);
    tke_device *d = device_cpu(1);
    tke_adapter *a = adapter_of(d, m, TKE_TRAIN_ATTN);
    char *adapter = save(a);
    path_in(path, room);
    tinkc_adapter_options o = { .adapter = adapter, .base_model = base_file(folder), .target = path, .format = TINKC_ADAPTER_GGUF };
    assert_true(tinkc_adapter_export(&o, NULL, NULL, &err));
    tke_model *merged = tke_model_open(path, &err);
    assert_int_equal(m->layers[0].attn->qkv->w[0].m.dtype, TKE_MXFP4_BLOCKS);
    assert_int_equal(merged->layers[0].attn->qkv->w[0].m.dtype, TKE_BF16);
    assert_int_equal(merged->layers[0].dense->down->w[0].m.dtype, m->layers[0].dense->down->w[0].m.dtype);
    tke_model_drop(merged);
    tke_adapter_free(a);
    tke_device_close(d);
    tke_model_drop(m);
    tiny_model_remove(adapter);
    tiny_model_remove(room);
    tiny_model_remove(folder);
}

TEST(own_types_need_a_base_in_gguf)
{
    char *folder = llama_folder();
    refused(folder, NULL, "base", 0, TINKC_E_ARGUMENT, "gguf_type \"base\" is for merging into a base in a GGUF file");
    tiny_model_remove(folder);
}

/* Tied: the head is written only where the adapter changed it. Rows of 48 have no blocks of 32. */
TEST(numbers_of_qwen)
{
    tinkc_error err = { 0 };
    char *folder = qwen_folder(NULL);
    tke_model *m = tke_model_open(folder, &err);
    tke_device *d = device_cpu(1);
    matrix list[9];
    size_t n = matrices_of(m, list);
    for (int head = 0; head < 2; head++) {
        tke_adapter *a = adapter_of(d, m, head ? 7 : TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
        char *adapter = save(a);
        gguf *g = written(folder, adapter, "q8_0");
        assert_int_equal(g->n, n - 1 + (size_t)head + 5);
        for (size_t i = 0; i < n; i++) {
            bool down = i == 6;
            if (i == 7 && !head)
                assert_null(find(g, "output.weight"));
            else
                same_matrix(g, &list[i], i == n - 1 ? NULL : a, down ? F16 : Q8_0, down ? 5e-4 : 2e-2);
        }
        same_vector(g, "blk.0.attn_q_norm.weight", m->layers[0].attn->q_norm, 16, 0);
        same_vector(g, "blk.0.attn_k_norm.weight", m->layers[0].attn->k_norm, 16, 0);
        gguf_free(g);
        tiny_model_remove(adapter);
        tke_adapter_free(a);
    }
    tke_device_close(d);
    tke_model_drop(m);
    tiny_model_remove(folder);
}

/* ---- what is refused ---- */

TEST(what_cannot_be_exported_is_refused)
{
    char *folder = qwen_folder(NULL), *other = llama_folder(), *bare = tiny_folder();
    tinkc_error err = { 0 };
    refused(folder, NULL, "q4_1", 0, TINKC_E_ARGUMENT, "\"q4_1\" is none of base, f16, bf16, q8_0, q4_0, f32");
    refused(folder, NULL, NULL, 2, TINKC_E_CANCELLED, "stopped");
    refused(bare, NULL, NULL, 0, TINKC_E_MODEL, "config.json");
    tke_model *m = tke_model_open(other, &err);
    tke_device *d = device_cpu(1);
    tke_adapter *a = adapter_of(d, m, 7);
    char *adapter = save(a);
    refused(folder, adapter, NULL, 0, TINKC_E_MODEL, "shape"); /* made for another model */
    tke_adapter_free(a);
    tke_device_close(d);
    tke_model_drop(m);
    static const struct {
        const char *json, *message;
        int32_t code;
    } tokenizers[] = {
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"x\": 101}}}",
          "token 101 is beyond the model's vocabulary of 101", TINKC_E_MODEL },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"x\": -1}}}", "token -1 is beyond", TINKC_E_MODEL },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": [[\"a\"]]}}", "merge 0: it is not two tokens",
          TINKC_E_MODEL },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": [[\"a\", \"b\", \"c\"]]}}",
          "merge 0: it is not two tokens", TINKC_E_MODEL },
        { "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"Unigram\"}}", "byte-level BPE only",
          TINKC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"Metaspace\"}, \"model\": {\"type\": \"BPE\"}}", "byte-level BPE only",
          TINKC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
          "\"byte_fallback\": true}}",
          "byte-level BPE only", TINKC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": false}, \"model\": "
          "{\"type\": \"BPE\"}}",
          "qwen2, llama-bpe and gpt-2 only", TINKC_E_UNSUPPORTED },
        { "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"pattern\": {\"Regex\": \"x\"}}, "
          "\"model\": {\"type\": \"BPE\"}}",
          "qwen2, llama-bpe and gpt-2 only", TINKC_E_UNSUPPORTED },
        { "[", "tokenizer.json: ", TINKC_E_MODEL },
    };
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        tiny_write(folder, "tokenizer.json", tokenizers[i].json);
        refused(folder, NULL, NULL, 0, tokenizers[i].code, tokenizers[i].message);
    }
    tiny_write(folder, "tokenizer.json", "");
    refused(folder, NULL, NULL, 0, TINKC_E_MODEL, "GGUF files hold their tokenizer");
    tiny_write(folder, "tokenizer.json", qwen_tokenizer);
    tiny_write(folder, "tokenizer_config.json", "[]");
    refused(folder, NULL, NULL, 0, TINKC_E_MODEL, "tokenizer_config.json: ");
    tiny_model_remove(folder);
    static const char *const ropes[] = { "\"beta_fast\": 33.0", "\"beta_fast\": 31.0", "\"beta_slow\": 2.0",
                                         "\"beta_slow\": 0.5", "\"attention_factor\": 1.5" };
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) {
        char rope[200];
        snprintf(rope, sizeof rope,
                 "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": "
                 "64, %s",
                 ropes[i]);
        folder = qwen_folder(rope);
        refused(folder, NULL, NULL, 0, TINKC_E_UNSUPPORTED, "betas of its own has no GGUF form");
        tiny_model_remove(folder);
    }
    tiny_model_remove(adapter);
    tiny_model_remove(other);
    tiny_model_remove(bare);
}

/* An f16 ends at 65504: what rounds beyond it is refused, in plain and in quantized form. */
TEST(numbers_that_do_not_fit)
{
    tinkc_error err = { 0 };
    char *folder = qwen_folder(NULL);
    tke_model *m = tke_model_open(folder, &err);
    tke_device *d = device_cpu(1);
    tke_adapter *a = adapter_of(d, m, TKE_TRAIN_UNEMBED);
    const tke_lora_group *g = &tke_adapter_lora(a)->layout->groups[m->head.index];
    adapter_weights(a)[g->a] = 1e4f;
    adapter_weights(a)[g->b[0]] = 1e3f;
    char *adapter = save(a);
    static const char *const narrow[] = { "f16", "q8_0" };
    for (int i = 0; i < 2; i++)
        refused(folder, adapter, narrow[i], 0, TINKC_E_MODEL, "output.weight has numbers that this type cannot hold");
    gguf_free(written(folder, adapter, "bf16"));
    tiny_model_remove(adapter);
    tke_adapter_free(a);
    tke_device_close(d);
    tke_model_drop(m);
    tiny_model_remove(folder);
}

/* ---- experts ---- */

static char *experts_folder(const char *family, bool mxfp4, const char *extra)
{
    char *folder =
        tiny_model_make(&(tiny_model){ .family = family, .layers = 1, .seed = 6, .mxfp4 = mxfp4, .extra = extra });
    tiny_write(folder, "tokenizer.json", qwen_tokenizer);
    return folder;
}

static const char every_layer[] = "\"mlp_only_layers\": []";
static const char published[] = "\"swiglu_limit\": 7.0";

/* An expert's number W[row][col], however the stack is stored. */
static double stack_number(const tke_stack *s, size_t e, size_t row, size_t col)
{
    const tke_matrix *m = &s->m[e];
    size_t at = s->transposed ? col * (size_t)m->ld + row : row * (size_t)m->ld + col;
    float x;
    tke_widen(m->dtype, (const unsigned char *)m->data + at * tke_dtype_size(m->dtype), 1, &x);
    return (double)x;
}

/* 32 / rank B_e A_e of a matrix of a group: one of the factors has one copy. */
static double change(const tke_adapter *a, const tke_group *of, size_t which, size_t e, size_t row, size_t col)
{
    const tke_lora_group *g = &a->layout->groups[of->index];
    const tke_real *x = a->device->ops->block_host(a->device, a->weights);
    double sum = 0;
    for (size_t r = 0; r < g->rank; r++)
        sum += (double)x[g->b[which] + ((g->n_b > 1 ? e : 0) * g->out[which] + row) * g->rank + r] *
               (double)x[g->a + ((g->n_a > 1 ? e : 0) * g->rank + which * g->rank + r) * g->in + col];
    return 32.0 / (double)g->rank * sum;
}

static void check_stack(const gguf *g, const char *name, const tke_adapter *a, const tke_stack *s, const tke_group *of,
                        size_t which, bool paired)
{
    const tensor *t = find(g, name);
    assert_non_null(t);
    size_t rows = paired ? s->out / 2 : s->out, n = of->n_experts;
    assert_true(t->n_dims == 3 && t->dims[0] == s->in && t->dims[1] == rows && t->dims[2] == n);
    for (size_t e = 0; e < n; e++)
        for (size_t row = 0; row < rows; row++)
            for (size_t col = 0; col < s->in; col++) {
                float got;
                memcpy(&got, t->data + 4 * ((e * rows + row) * s->in + col), 4);
                double want =
                    stack_number(s, e, paired ? 2 * row + which : row, col) + change(a, of, which, e, row, col);
                assert_true(fabs((double)got - want) < 1e-5);
            }
}

TEST(experts_are_stacked_and_merged)
{
    for (int oss = 0; oss < 2; oss++) {
        tinkc_error err = { 0 };
        char *folder =
            oss ? experts_folder("gpt_oss", false, published) : experts_folder("qwen3_moe", false, every_layer);
        char *saved = tiny_folder();
        uint64_t random = 3;
        tke_device *device = device_cpu(1);
        tke_model *m = tke_model_open(folder, &err);
        tke_adapter *a = tke_adapter_new(device, m, &(tke_adapter_spec){ .rank = 4, .train = 7, .seed = 1 }, &err);
        for (size_t i = 0; i < a->layout->n_floats; i++)
            adapter_weights(a)[i] += 0.05f * tiny_normal(&random);
        tke_snapshot *shot = tke_snapshot_take(a, &err);
        assert_true(tke_snapshot_write(shot, saved, &(tke_adapter_save){ .base_name = "x", .dtype = TKE_F32 }, &err));
        gguf *g = written(folder, saved, "f32");
        const tke_experts *x = m->layers[0].experts;
        check_stack(g, "blk.0.ffn_gate_exps.weight", a, &x->gate, x->gate_up, 0, oss);
        check_stack(g, "blk.0.ffn_up_exps.weight", a, oss ? &x->gate : &x->up, x->gate_up, 1, oss);
        check_stack(g, "blk.0.ffn_down_exps.weight", a, &x->out, x->down, 0, false);
        assert_non_null(strstr(g->keys, oss ? "gpt-oss.expert_count=5\ngpt-oss.expert_used_count=2\n"
                                              "gpt-oss.expert_feed_forward_length=64\n"
                                              "gpt-oss.attention.sliding_window=9\n"
                                            : "qwen3moe.expert_count=5\n"
                                              "qwen3moe.expert_used_count=2\n"
                                              "qwen3moe.expert_feed_forward_length=20\n"));
        gguf_free(g);
        tke_snapshot_drop(shot);
        tke_adapter_free(a);
        tke_model_drop(m);
        tke_device_close(device);
        tiny_model_remove(saved);
        tiny_model_remove(folder);
    }
}

/* Sinks, biases of experts, both of their halves: the packed model's file is that of its BF16 twin. */
TEST(packed_experts_are_those_of_their_twin)
{
    char *packed = experts_folder("gpt_oss", true, published), *plain = experts_folder("gpt_oss", false, published);
    gguf *x = written(packed, NULL, "f16"), *y = written(plain, NULL, "f16");
    static const char *const wanted[] = { "blk.0.attn_sinks.weight",          "blk.0.ffn_gate_inp.bias",
                                          "blk.0.ffn_gate_exps.bias",         "blk.0.ffn_up_exps.bias",
                                          "blk.0.ffn_down_exps.bias",         "blk.0.attn_output.bias",
                                          "blk.0.post_attention_norm.weight", "output.weight" };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_non_null(find(x, wanted[i]));
    assert_int_equal(x->n, y->n);
    for (size_t i = 0; i < x->n; i++)
        assert_memory_equal(x->tensors[i].data, y->tensors[i].data, bytes_of(&x->tensors[i]));
    float gates[2], ups[2];
    tinkc_error err = { 0 };
    tke_model *m = tke_model_open(plain, &err);
    const tke_real *bias = m->layers[0].experts->gate.bias;
    memcpy(gates, find(x, "blk.0.ffn_gate_exps.bias")->data, sizeof gates);
    memcpy(ups, find(x, "blk.0.ffn_up_exps.bias")->data, sizeof ups);
    assert_true(gates[0] == bias[0] && gates[1] == bias[2] && ups[0] == bias[1] && ups[1] == bias[3]);
    tke_model_drop(m);
    gguf_free(x);
    gguf_free(y);
    tiny_model_remove(packed);
    tiny_model_remove(plain);
}

TEST(experts_without_a_gguf_form)
{
    static const struct {
        const char *family, *extra, *named;
    } cases[] = {
        { "gpt_oss", NULL, "swiglu_limit" },
        { "gpt_oss", "\"swiglu_limit\": 7.0, \"layer_types\": [\"full_attention\"]", "window" },
        { "qwen3_moe", "\"mlp_only_layers\": [], \"norm_topk_prob\": false", "norm_topk_prob" },
        { "qwen3_5_text", NULL, "qwen3_5 models cannot be written yet" },
        { "nemotron_h", NULL, "nemotron_h models cannot be written yet" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *folder = experts_folder(cases[i].family, false, cases[i].extra);
        refused(folder, NULL, NULL, 0, TINKC_E_UNSUPPORTED, cases[i].named);
        tiny_model_remove(folder);
    }
}

/* Not left out: the file would do less than the adapter. */
TEST(an_adapter_of_experts_has_no_file_of_its_own)
{
    tinkc_error err = { 0 };
    char *folder = experts_folder("qwen3_moe", false, every_layer), *room = tiny_folder(), path[512];
    tke_model *m = tke_model_open(folder, &err);
    tke_device *d = device_cpu(1);
    tke_adapter *a = adapter_of(d, m, 3);
    char *adapter = save(a);
    path_in(path, room);
    tinkc_adapter_options o = {
        .adapter = adapter, .base_model = folder, .target = path, .format = TINKC_ADAPTER_GGUF_LORA, .gguf_type = "f32"
    };
    assert_false(tinkc_adapter_export(&o, NULL, NULL, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "an adapter of experts alone has no GGUF form"));
    assert_int_equal(access(path, F_OK), -1);
    tke_adapter_free(a);
    tke_device_close(d);
    tke_model_drop(m);
    tiny_model_remove(adapter);
    tiny_model_remove(folder);
    tiny_model_remove(room);
}
