/* GGUF files as models: the bits of the model they stand for, parts, and everything that is refused. */
#include "base/file.h"
#include "base/gguf_read.h"
#include "base/str.h"
#include "math/format.h"
#include "support/engine/one_pass.h"
#include "support/engine/tiny_gguf.h"
#include "support/test_case.h"
#include "tinkc/engine.h"

/* ---- the same bits as the folder ---- */

static void same_as_folder(const tiny_model *what, tke_dtype format, int32_t precision)
{
    char *folder = tiny_gguf_make(what, format), path[512];
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    (void)one_pass_same(path, folder, precision);
    tiny_model_remove(folder);
}

TEST(every_format_trains_like_its_bf16_folder)
{
    const tiny_model what = { .family = "llama",
                              .layers = 1,
                              .hidden = 256,
                              .inner = 256,
                              .heads = 4,
                              .head_dim = 64,
                              .kv_heads = 2,
                              .tied = true };
    for (int d = TKE_MXFP4_BLOCKS; d <= TKE_IQ4_NL; d++)
        same_as_folder(&what, (tke_dtype)d, TKE_PRECISION_F32);
    same_as_folder(&what, TKE_Q4_K, TKE_PRECISION_BF16);
}

TEST(every_architecture_trains_like_its_folder)
{
    static const char *const families[] = { "llama", "qwen2", "qwen3" };
    for (int i = 0; i < 3; i++)
        same_as_folder(
            &(tiny_model){ .family = families[i], .inner = 64, .head_dim = 16, .tied = i == 1, .bias = i == 0 },
            i == 2 ? TKE_Q5_1 : TKE_Q8_0, TKE_PRECISION_F32);
}

/* ---- what is refused ---- */

static const char *const tokens3[] = { "a", "b", "ab" };

/* A llama of one layer and three tokens; what is wrong with it is added by the test. */
static void small(gguf_bytes *g, const char *without)
{
    static const float zeros[64];
    static const struct {
        const char *name;
        uint64_t dims[2];
    } list[] = { { "token_embd.weight", { 8, 3 } },   { "blk.0.attn_norm.weight", { 8 } },
                 { "blk.0.attn_q.weight", { 8, 8 } }, { "blk.0.attn_k.weight", { 8, 8 } },
                 { "blk.0.attn_v.weight", { 8, 8 } }, { "blk.0.attn_output.weight", { 8, 8 } },
                 { "blk.0.ffn_norm.weight", { 8 } },  { "blk.0.ffn_gate.weight", { 8, 8 } },
                 { "blk.0.ffn_up.weight", { 8, 8 } }, { "blk.0.ffn_down.weight", { 8, 8 } },
                 { "output_norm.weight", { 8 } } };
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = { { "llama.block_count", 1 },          { "llama.context_length", 64 },
                    { "llama.embedding_length", 8 },     { "llama.feed_forward_length", 8 },
                    { "llama.attention.head_count", 1 }, { "tokenizer.ggml.eos_token_id", 2 } };
    gguf_bytes_init(g);
    if (strcmp(without, "general.architecture") != 0)
        gguf_key_text(g, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(without, numbers[i].key) != 0)
            gguf_key_u32(g, numbers[i].key, numbers[i].value);
    if (strcmp(without, "tokenizer.ggml.tokens") != 0)
        gguf_key_texts(g, "tokenizer.ggml.tokens", tokens3, 3);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        uint64_t rows = list[i].dims[1] ? list[i].dims[1] : 1;
        if (strcmp(without, list[i].name) != 0)
            gguf_tensor(g, list[i].name, 0, list[i].dims, list[i].dims[1] ? 2 : 1, zeros, 8 * rows * 4);
    }
}

static void opens(const char *path, const char *wanted)
{
    tinkc_error err = { 0 };
    tke_model *m = tke_model_open(path, &err);
    if (!wanted && !m)
        fail_msg("refused: %s", err.message);
    if (wanted && (m || !strstr(err.message, wanted)))
        fail_msg("wanted '%s', got '%s'", wanted, m ? "a model" : err.message);
    tke_model_drop(m);
}

/* Saves, opens, and looks for a text in the message; NULL = it opens. */
static void whole_opens(gguf_bytes *g, const char *wanted)
{
    char *folder = tiny_folder(), path[512];
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    gguf_save(g, path);
    opens(path, wanted);
    gguf_bytes_free(g);
    tiny_model_remove(folder);
}

/* The file with one run of bytes replaced. */
static void patched(size_t at, const void *bytes, size_t n, size_t keep, const char *wanted)
{
    gguf_bytes g;
    tkc_buf out;
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[512];
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    small(&g, "");
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    gguf_whole(&g, &out);
    memcpy(out.data + at, bytes, n);
    assert_true(tkc_write_file(path, out.data, keep && keep < out.len ? keep : out.len, 0600, &err));
    opens(path, wanted);
    tkc_buf_free(&out);
    gguf_bytes_free(&g);
    tiny_model_remove(folder);
}

TEST(wrong_headers_are_refused)
{
    static const unsigned char most[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };
    static const unsigned char million[8] = { 0x40, 0x42, 0x0f };
    patched(0, "GGUF", 4, 0, NULL);
    patched(0, "GGML", 4, 0, "does not begin with GGUF");
    patched(4, "\1", 1, 0, "version 1 is not supported; versions 2 and 3 are");
    patched(4, "\0\0\0\3", 4, 0, "big-endian");
    patched(8, most, 8, 0, "18446744073709551615 tensors do not fit");
    patched(16, most, 8, 0, "18446744073709551615 keys do not fit");
    patched(16, million, 8, 0, "1000000 keys do not fit");
    patched(24, most, 8, 0, "the name of a key is empty, too long, cut off");
    patched(0, "GGUF", 4, 30, "keys do not fit"); /* cut off in the keys */
    patched(0, "GGUF", 4, 8, "cut off");
}

TEST(wrong_keys_are_named)
{
    gguf_bytes g;
    static const char *const required[] = { "llama.block_count", "llama.embedding_length" };
    static const char *const reported[] = { "num_hidden_layers", "hidden_size" };
    for (int i = 0; i < 2; i++) {
        small(&g, required[i]);
        whole_opens(&g, reported[i]);
    }
    small(&g, "general.architecture");
    gguf_key_text(&g, "general.architecture", "mamba");
    whole_opens(&g, "'mamba' is not supported; supported are llama, qwen2");
    small(&g, "llama.block_count");
    gguf_key_text(&g, "llama.block_count", "1");
    whole_opens(&g, "key 'llama.block_count' is not a whole number");
    small(&g, "");
    gguf_key_u32(&g, "llama.block_count", 1);
    whole_opens(&g, "key 'llama.block_count': it occurs twice");
    small(&g, "");
    gguf_key_u32(&g, "general.alignment", 24);
    whole_opens(&g, "key 'general.alignment': not a power of two");
    small(&g, "");
    gguf_key_u32(&g, "llama.rope.dimension_count", 4);
    whole_opens(&g, "key 'llama.rope.dimension_count' is not the size of a head, 8");
    small(&g, "");
    gguf_key_f32(&g, "llama.logit_scale", 2);
    whole_opens(&g, "key 'llama.logit_scale' is not supported");
    small(&g, "tokenizer.ggml.tokens");
    gguf_key_texts(&g, "tokenizer.ggml.tokens", tokens3, 2);
    whole_opens(&g, "key 'tokenizer.ggml.tokens' has 2 tokens, but 'token_embd.weight' has 3 rows");
}

TEST(wrong_tensors_are_named)
{
    static const float zeros[64];
    gguf_bytes g;
    small(&g, "blk.0.ffn_up.weight");
    whole_opens(&g, "model.layers.0.mlp.up_proj.weight (missing)");
    small(&g, "blk.0.ffn_up.weight");
    gguf_tensor(&g, "blk.0.ffn_up.weight", 0, (uint64_t[]){ 4, 8 }, 2, zeros, 128);
    whole_opens(&g, "model.layers.0.mlp.up_proj.weight (wrong shape)");
    small(&g, "");
    gguf_tensor(&g, "x", 10, (uint64_t[]){ 256 }, 1, zeros, 84);
    whole_opens(&g, "tensor 'x': type 10 (Q2_K) is not supported; supported are F32");
    small(&g, "");
    gguf_tensor(&g, "x", 8, (uint64_t[]){ 33 }, 1, zeros, 64);
    whole_opens(&g, "tensor 'x': its rows are not whole blocks");
    small(&g, "");
    gguf_tensor(&g, "x", 0, (uint64_t[]){ 1u << 20 }, 1, zeros, 64);
    whole_opens(&g, "tensor 'x': its data lie outside the file");
    small(&g, "");
    gguf_tensor(&g, "x", 0, (uint64_t[]){ 1ull << 40, 1ull << 40 }, 2, zeros, 64);
    whole_opens(&g, "tensor 'x': its shape is empty or overflows");
    small(&g, "");
    gguf_tensor(&g, "output_norm.weight", 0, (uint64_t[]){ 8 }, 1, zeros, 32);
    whole_opens(&g, "tensor 'output_norm.weight': the name occurs twice");
    small(&g, "");
    g.data.len -= 32; /* the next begins inside the one before */
    gguf_tensor(&g, "x", 0, (uint64_t[]){ 8 }, 1, zeros, 32);
    whole_opens(&g, "its data overlap another tensor's");
}

TEST(frequencies_are_divided_by_the_factors_of_the_file)
{
    static const float factors[4] = { 1, 2, 4, 8 };
    double plain[4];
    for (int with = 0; with < 2; with++) {
        char *folder = tiny_folder(), path[512];
        tinkc_error err = { 0 };
        gguf_bytes g;
        small(&g, "");
        if (with)
            gguf_tensor(&g, "rope_freqs.weight", 0, (uint64_t[]){ 4 }, 1, factors, sizeof factors);
        snprintf(path, sizeof path, "%s/x.gguf", folder);
        gguf_save(&g, path);
        tke_model *m = tke_model_open(path, &err);
        assert_string_equal(err.message, "");
        for (int i = 0; i < 4; i++) {
            plain[i] = with ? plain[i] / (double)factors[i] : m->rope_frequency[i];
            assert_true(m->rope_frequency[i] == plain[i]);
        }
        tke_model_drop(m);
        gguf_bytes_free(&g);
        tiny_model_remove(folder);
    }
}

/* ---- parts ---- */

static void save_part(const char *folder, int i, const char *without, const char *only)
{
    static const float zeros[64];
    char path[512];
    gguf_bytes g;
    if (only) {
        gguf_bytes_init(&g);
        gguf_tensor(&g, only, 0, (uint64_t[]){ 8, 8 }, 2, zeros, 256);
    } else {
        small(&g, without);
    }
    gguf_key_u32(&g, "split.count", 2);
    gguf_key_u32(&g, "split.no", (uint32_t)i - 1);
    snprintf(path, sizeof path, "%s/m-0000%d-of-00002.gguf", folder, i);
    gguf_save(&g, path);
    gguf_bytes_free(&g);
}

TEST(parts_are_found_beside_the_one_that_is_named)
{
    char *folder = tiny_folder(), path[512];
    save_part(folder, 1, "blk.0.ffn_up.weight", NULL);
    snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", folder);
    opens(path, "m-00002-of-00002.gguf: file not found");
    save_part(folder, 2, NULL, "blk.0.ffn_up.weight");
    opens(path, NULL);
    snprintf(path, sizeof path, "%s/m-00002-of-00002.gguf", folder);
    opens(path, NULL);
    /* Exported, they are one file. */
    char whole[512];
    tinkc_error err = { 0 };
    tkc_mapping map = { 0 };
    tkc_gguf g = { 0 };
    snprintf(whole, sizeof whole, "%s/whole.gguf", folder);
    tinkc_adapter_options o = { .base_model = path, .target = whole, .format = TINKC_ADAPTER_GGUF };
    assert_true(tinkc_adapter_export(&o, NULL, NULL, &err));
    opens(whole, NULL);
    assert_true(tkc_map_file(whole, &map, &err) && tkc_gguf_read(&g, (tinkc_bytes){ map.data, map.len }, whole, &err));
    assert_int_equal(g.n_tensors, 11);
    assert_null(tkc_gguf_find(&g, "split.count"));
    assert_null(tkc_gguf_find(&g, "split.no"));
    assert_non_null(tkc_gguf_find(&g, "llama.block_count"));
    tkc_gguf_free(&g);
    tkc_unmap_file(&map);
    tiny_model_remove(folder);
}
