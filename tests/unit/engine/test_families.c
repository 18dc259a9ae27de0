/* test_families.c - rules of single model families: layouts of files, counts, refusals. What holds for
 * all of them is in test_train_bits.c and test_infer_bits.c. */
#include <math.h>

#include "cpu/part.h"
#include "math/format.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/engine/tiny_world.h"
#include "support/test_case.h"
#include "train/adapter_state.h"
#include "train/training.h"

enum { LEN = 40 };

/* ---- helpers ---- */

static tke_adapter *adapter_of(const tiny_world *w, uint32_t train)
{
    tinkc_error err = { 0 };
    uint64_t r = 3;
    tke_adapter_spec spec = { .rank = 3, .train = train, .seed = 5 };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    assert_non_null(a);
    for (size_t i = 0; i < a->layout->n_floats; i++)
        adapter_weights(a)[i] += 0.05f * tiny_normal(&r);
    return a;
}

/* One pass over n tokens; log-probs go to out, gradients stay in the adapter. */
static void train(const tiny_world *w, tke_adapter *a, size_t n, float *out)
{
    static int32_t tokens[LEN];
    static int64_t targets[LEN];
    static float weights[LEN];
    tinkc_error err = { 0 };
    uint64_t r = 9;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(tiny_random(&r) % 101);
        targets[i] = (int64_t)(tiny_random(&r) % 101);
        weights[i] = 1;
    }
    tke_trainer *t = tke_trainer_new(w->loaded, &(tke_trainer_options){ 0 }, &err);
    tke_datum d = { .tokens = tokens, .n = n, .k = 1, .targets = targets, .weights = weights };
    tke_pass p = { .adapter = a, .backward = true, .data = &d, .n_data = 1 }, *list[1] = { &p };
    assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    memcpy(out, p.out.logprobs, n * sizeof *out);
    tke_pass_free(&p);
    tke_trainer_free(t);
}

/* Two models that must compute the same. */
static void same_bits(const tiny_model *x, const tiny_model *y)
{
    float got[2][LEN];
    tke_real *grads[2] = { NULL, NULL };
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        tiny_world w = tiny_world_open(i ? y : x, 2);
        tke_adapter *a = adapter_of(&w, 7);
        train(&w, a, LEN, got[i]);
        n = a->layout->n_floats * sizeof *grads[i];
        grads[i] = test_malloc(n);
        memcpy(grads[i], adapter_grads(a), n);
        tke_adapter_free(a);
        tiny_world_close(&w);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_equal(grads[0], grads[1], n);
    test_free(grads[0]);
    test_free(grads[1]);
}

static void refused(const char *text, int32_t code, const char *what)
{
    tke_config c;
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    bool ok = tke_config_parse(&c, tkc_str(text), tkc_str(""), "config.json", &arena, &err);
    tkc_arena_free(&arena);
    if (ok || err.code != code || !strstr(err.message, what))
        fail_msg("%s: wanted %d '%s', got %d '%s'", text, code, what, err.code, err.message);
}

/* ---- experts ---- */

TEST(separate_and_fused_experts_give_the_same_bits)
{
    same_bits(&(tiny_model){ .family = "qwen3_moe", .seed = 1, .dtype = "BF16" },
              &(tiny_model){ .family = "qwen3_moe", .seed = 1, .dtype = "BF16", .fused = true });
}

static const tiny_model one_layer = { .family = "qwen3_moe", .layers = 1, .extra = "\"mlp_only_layers\": []" };

/* One token reaches two of five experts; the factors of the others get exactly nothing. */
TEST(an_expert_without_tokens_has_no_gradient)
{
    float unused[LEN];
    tiny_world w = tiny_world_open(&one_layer, 1);
    tke_adapter *a = adapter_of(&w, TKE_TRAIN_MLP);
    train(&w, a, 1, unused);
    size_t touched = 0, copies = 0;
    tke_tensor_ref ref;
    for (size_t place = 0; tke_layout_next(a->layout, &place, &ref);) {
        for (size_t e = 0; ref.copies > 1 && e < ref.copies; e++) {
            bool any = false;
            const tke_real *g = adapter_grads(a) + ref.offset + e * ref.rows * ref.cols;
            for (size_t i = 0; i < ref.rows * ref.cols; i++)
                any = any || g[i] != 0;
            touched += any;
            copies++;
        }
    }
    assert_int_equal(copies, 3 * 5); /* B of gate and up, A of down */
    assert_int_equal(touched, 3 * 2);
    tke_adapter_free(a);
    tiny_world_close(&w);
}

/* Of a layer of experts: 3 (H + E f) for each unit of rank. */
TEST(experts_share_one_factor)
{
    tiny_world w = tiny_world_open(&one_layer, 1);
    tke_adapter *a = adapter_of(&w, TKE_TRAIN_MLP);
    assert_int_equal(tke_adapter_n_params(a), 3 * 3 * (32 + 5 * 20));
    tke_adapter_free(a);
    tiny_world_close(&w);
}

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"                                            \
    "\"num_attention_heads\":4,\"vocab_size\":160,\"max_position_embeddings\":256"
#define MOE(rest) "{\"model_type\":\"qwen3_moe\"," SIZES rest "}"
#define EXPERTS   ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32"

TEST(experts_that_do_not_fit_are_refused)
{
    refused(MOE(",\"num_experts_per_tok\":2,\"moe_intermediate_size\":32"), TINKC_E_MODEL, "num_experts");
    refused(MOE(EXPERTS ",\"num_local_experts\":9"), TINKC_E_MODEL, "num_local_experts");
    refused(MOE(EXPERTS ",\"num_experts_per_tok\":9"), TINKC_E_MODEL, "num_experts_per_tok");
    refused(MOE(EXPERTS ",\"moe_intermediate_size\":0"), TINKC_E_MODEL, "moe_intermediate_size");
    refused(MOE(EXPERTS ",\"mlp_only_layers\":[2]"), TINKC_E_MODEL, "mlp_only_layers");
    refused(MOE(EXPERTS ",\"mlp_only_layers\":[\"a\"]"), TINKC_E_MODEL, "mlp_only_layers");
    refused(MOE(EXPERTS ",\"decoder_sparse_step\":0"), TINKC_E_MODEL, "decoder_sparse_step");
    refused(MOE(EXPERTS ",\"hidden_act\":\"gelu\""), TINKC_E_UNSUPPORTED, "gelu");
    refused(MOE(EXPERTS ",\"quantization_config\":{\"quant_method\":\"fp8\"}"), TINKC_E_UNSUPPORTED, "fp8");
}

/* With a step of 2, layers 1, 3 and so on (counted from 0) have experts: this folder has them in layer 0. */
TEST(every_second_layer_has_experts)
{
    tinkc_error err = { 0 };
    char *folder = tiny_model_make(&(tiny_model){ .family = "qwen3_moe",
                                                  .layers = 2,
                                                  .extra = "\"decoder_sparse_step\": 2, \"mlp_only_layers\": []" });
    assert_null(tke_model_open(folder, &err));
    if (!strstr(err.message, "layers.0.mlp.gate_proj"))
        fail_msg("%s", err.message);
    tiny_model_remove(folder);
}

/* ---- gpt-oss ---- */

TEST(packed_experts_give_the_bits_of_their_bf16_twin)
{
    static const size_t widths[] = { 32, 96 };
    for (int i = 0; i < 2; i++)
        same_bits(&(tiny_model){ .family = "gpt_oss", .hidden = widths[i], .dtype = "BF16" },
                  &(tiny_model){ .family = "gpt_oss", .hidden = widths[i], .dtype = "BF16", .mxfp4 = true });
}

/* Each byte holds two codes, the first in its low half; the scale is a power of two. */
TEST(every_packed_byte_is_decoded_exactly)
{
    static const float codes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    static const uint8_t scales[] = { 0, 1, 100, 127, 128, 252 };
    for (size_t s = 0; s < sizeof scales; s++)
        for (int byte = 0; byte < 256; byte++) {
            uint8_t block[16];
            uint16_t out[32];
            memset(block, byte, sizeof block);
            tke_matrix m = { block, 32, TKE_MXFP4, &scales[s], NULL };
            tke_format_mxfp4.unpack[TKE_UNPACK_REF](&m, 0, 0, 32, out);
            for (int i = 0; i < 32; i++) {
                int code = i % 2 ? byte >> 4 : byte & 15;
                float want = ldexpf(codes[code & 7], scales[s] - 127);
                assert_true(tke_bf16_to_f32(out[i]) == (code & 8 ? -want : want));
            }
        }
}

#define OSS(rest) "{\"model_type\":\"gpt_oss\"," SIZES ",\"num_local_experts\":4,\"num_experts_per_tok\":2" rest "}"

TEST(gpt_oss_that_does_not_fit_is_refused)
{
    refused(OSS(",\"quantization_config\":{\"quant_method\":\"fp8\"}"), TINKC_E_UNSUPPORTED, "fp8");
    refused(OSS(",\"quantization_config\":{\"quant_method\":\"mxfp4\"},\"intermediate_size\":33"), TINKC_E_MODEL,
            "multiple of 32");
    refused(OSS(",\"layer_types\":[\"full_attention\",\"chunked_attention\"]"), TINKC_E_UNSUPPORTED,
            "chunked_attention");
    refused(OSS(",\"layer_types\":[\"full_attention\"]"), TINKC_E_MODEL, "layer_types");
    refused(OSS(",\"swiglu_limit\":0"), TINKC_E_MODEL, "swiglu_limit");
    refused(OSS(",\"sliding_window\":0"), TINKC_E_MODEL, "sliding_window");
    refused(OSS(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"mscale\":1}"), TINKC_E_UNSUPPORTED, "mscale");
    refused(OSS(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}"), TINKC_E_UNSUPPORTED, "longrope");
}

/* Per unit of rank, q, k: H + kd; v, z, out: H + vd (kd 16, vd 24); nothing on strength and decay. */
TEST(linear_attention_has_five_adapters)
{
    tiny_world w = tiny_world_open(&(tiny_model){ .family = "qwen3_5_text", .layers = 1 }, 1);
    tke_adapter *a = adapter_of(&w, TKE_TRAIN_ATTN);
    assert_int_equal(tke_adapter_n_params(a), 3 * (2 * (32 + 16) + 3 * (32 + 24)));
    tke_adapter_free(a);
    tiny_world_close(&w);
}

#define LINEAR(rest) "{\"model_type\":\"qwen3_5_text\",\"head_dim\":16," SIZES rest "}"

TEST(linear_attention_that_does_not_fit_is_refused)
{
    refused(LINEAR(",\"layer_types\":[\"linear_attention\"]"), TINKC_E_MODEL, "layer_types");
    refused(LINEAR(",\"layer_types\":[\"linear_attention\",\"chunked\"]"), TINKC_E_UNSUPPORTED, "chunked");
    refused(LINEAR(",\"full_attention_interval\":0"), TINKC_E_MODEL, "full_attention_interval");
    refused(LINEAR(",\"linear_num_value_heads\":24"), TINKC_E_MODEL, "linear_num_value_heads");
    refused(LINEAR(",\"linear_key_head_dim\":512"), TINKC_E_MODEL, "linear_key_head_dim");
    refused(LINEAR(",\"linear_conv_kernel_dim\":9"), TINKC_E_MODEL, "linear_conv_kernel_dim");
    refused(LINEAR(",\"attn_output_gate\":false"), TINKC_E_UNSUPPORTED, "attn_output_gate");
    refused(LINEAR(",\"output_gate_type\":\"tanh\""), TINKC_E_UNSUPPORTED, "tanh");
    refused(LINEAR(",\"partial_rotary_factor\":0.2"), TINKC_E_MODEL, "rotates");
    refused(LINEAR(",\"partial_rotary_factor\":1.5"), TINKC_E_MODEL, "partial_rotary_factor");
    refused("{\"model_type\":\"qwen3_next\"," SIZES "}", TINKC_E_UNSUPPORTED, "qwen3_next");
}

#define SHARED(rest)                                                                                                   \
    "{\"model_type\":\"qwen3_5_moe_text\"," SIZES EXPERTS                                                              \
    ",\"shared_expert_intermediate_size\":16,\"linear_num_value_heads\":16" rest "}"

TEST(experts_of_qwen3_5_that_do_not_fit_are_refused)
{
    refused("{\"model_type\":\"qwen3_5_moe_text\"," SIZES EXPERTS "}", TINKC_E_MODEL,
            "shared_expert_intermediate_size");
    refused(SHARED(",\"norm_topk_prob\":false"), TINKC_E_UNSUPPORTED, "norm_topk_prob");
    refused(SHARED(",\"mlp_only_layers\":[1]"), TINKC_E_UNSUPPORTED, "mlp_only_layers");
    refused(SHARED(",\"decoder_sparse_step\":2"), TINKC_E_UNSUPPORTED, "decoder_sparse_step");
}

/* ---- Nemotron-H ---- */

/* Published folders: "backbone.", separate experts; saved again: "model.", fused ones. */
TEST(both_forms_of_nemotron_files_give_the_same_bits)
{
    same_bits(&(tiny_model){ .family = "nemotron_h", .layers = 5, .dtype = "BF16" },
              &(tiny_model){ .family = "nemotron_h", .layers = 5, .dtype = "BF16", .fused = true });
}

/* A pattern as letters or as a list; chunk_size and initial time steps; ways to write infinity. */
TEST(spellings_of_nemotron_give_the_same_bits)
{
    static const char *const pairs[][2] = {
        { "\"layers_block_type\": [\"mamba\",\"moe\",\"attention\",\"mlp\",\"mamba\"]",
          "\"layer_types\": [\"linear_attention\",\"moe\",\"full_attention\",\"mlp\",\"mamba\"]" },
        { "\"chunk_size\": 256, \"time_step_min\": 0.7", "\"mamba_chunk_size\": 64" },
        { "\"time_step_limit\": [0.0, Infinity]", "\"time_step_limit\": null" },
        { "\"time_step_limit\": [0.0, {\"__float__\": \"Infinity\"}]", "\"time_step_limit\": [0, null]" },
        { "\"n_group\": 1, \"topk_group\": 1", "\"n_group\": 3, \"topk_group\": 3" },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        same_bits(&(tiny_model){ .family = "nemotron_h", .layers = 5, .extra = pairs[i][0] },
                  &(tiny_model){ .family = "nemotron_h", .layers = 5, .extra = pairs[i][1] });
}

/* Per unit of rank: M 3 (H + inner), E 2 (H + E f) + 2 (H + fs), * 2 (H + nd) + 2 (H + kd),
 * - 2 (H + I). */
TEST(nemotron_has_the_hosted_adapters)
{
    tiny_world w = tiny_world_open(&(tiny_model){ .family = "nemotron_h", .layers = 4 }, 1);
    tke_adapter *attn = adapter_of(&w, TKE_TRAIN_ATTN), *mlp = adapter_of(&w, TKE_TRAIN_MLP);
    assert_int_equal(tke_adapter_n_params(attn), 3 * (3 * (32 + 30) + 2 * (32 + 32) + 2 * (32 + 16)));
    assert_int_equal(tke_adapter_n_params(mlp), 3 * (2 * (32 + 6 * 20) + 2 * (32 + 12) + 2 * (32 + 48)));
    tke_adapter_free(attn);
    tke_adapter_free(mlp);
    tiny_world_close(&w);
}

#define HYBRID(rest)                                                                                                   \
    "{\"model_type\":\"nemotron_h\"," SIZES ",\"head_dim\":16,"                                                        \
    "\"hybrid_override_pattern\":\"ME\",\"mamba_num_heads\":6,\"mamba_head_dim\":4,"                                   \
    "\"ssm_state_size\":8,\"n_groups\":2,\"n_routed_experts\":8,\"num_experts_per_tok\":2,"                            \
    "\"moe_intermediate_size\":32,\"moe_shared_expert_intermediate_size\":16" rest "}"

TEST(nemotron_that_does_not_fit_is_refused)
{
    static const struct {
        const char *text;
        int32_t code;
        const char *named;
    } cases[] = {
        { HYBRID(",\"hybrid_override_pattern\":\"MX\""), TINKC_E_UNSUPPORTED, "MX" },
        { HYBRID(",\"hybrid_override_pattern\":\"MEM\""), TINKC_E_MODEL, "num_hidden_layers" },
        { HYBRID(",\"hybrid_override_pattern\":7"), TINKC_E_MODEL, "hybrid_override_pattern" },
        { HYBRID(",\"layer_types\":[\"mamba\",\"mlp\"]"), TINKC_E_MODEL, "layer_types differ" },
        { HYBRID(",\"layers_block_type\":[\"mamba\",\"conv\"]"), TINKC_E_UNSUPPORTED, "conv" },
        { HYBRID(",\"mamba_num_heads\":5"), TINKC_E_MODEL, "n_groups" },
        { HYBRID(",\"mamba_num_heads\":null"), TINKC_E_MODEL, "mamba_num_heads" },
        { HYBRID(",\"mamba_head_dim\":512"), TINKC_E_MODEL, "mamba_head_dim" },
        { HYBRID(",\"ssm_state_size\":0"), TINKC_E_MODEL, "ssm_state_size" },
        { HYBRID(",\"mamba_n_groups\":3"), TINKC_E_MODEL, "mamba_n_groups" },
        { HYBRID(",\"conv_kernel\":9"), TINKC_E_MODEL, "conv_kernel" },
        { HYBRID(",\"time_step_limit\":[1,0.5]"), TINKC_E_MODEL, "time_step_limit" },
        { HYBRID(",\"time_step_limit\":[-1,2]"), TINKC_E_MODEL, "time_step_limit" },
        { HYBRID(",\"time_step_limit\":[1]"), TINKC_E_MODEL, "time_step_limit" },
        { HYBRID(",\"time_step_limit\":[0,\"a\"]"), TINKC_E_MODEL, "time_step_limit" },
        { HYBRID(",\"time_step_limit\":[0,{\"__float__\":\"NaN\"}]"), TINKC_E_MODEL, "time_step_limit" },
        { HYBRID(",\"layer_norm_epsilon\":0"), TINKC_E_MODEL, "layer_norm_epsilon" },
        { HYBRID(",\"n_routed_experts\":null"), TINKC_E_MODEL, "n_routed_experts" },
        { HYBRID(",\"num_experts_per_tok\":9"), TINKC_E_MODEL, "num_experts_per_tok" },
        { HYBRID(",\"n_group\":3"), TINKC_E_MODEL, "n_group" },
        { HYBRID(",\"n_group\":8"), TINKC_E_MODEL, "n_group" },
        { HYBRID(",\"n_group\":4,\"topk_group\":5"), TINKC_E_MODEL, "topk_group" },
        { HYBRID(",\"n_group\":4,\"num_experts_per_tok\":3"), TINKC_E_MODEL, "topk_group" },
        { HYBRID(",\"n_shared_experts\":2"), TINKC_E_UNSUPPORTED, "n_shared_experts" },
        { HYBRID(",\"routed_scaling_factor\":0"), TINKC_E_MODEL, "routed_scaling_factor" },
        { HYBRID(",\"mlp_hidden_act\":\"silu\""), TINKC_E_UNSUPPORTED, "mlp_hidden_act" },
        { HYBRID(",\"mamba_hidden_act\":\"gelu\""), TINKC_E_UNSUPPORTED, "mamba_hidden_act" },
        { HYBRID(",\"use_bias\":true"), TINKC_E_UNSUPPORTED, "use_bias" },
        { HYBRID(",\"mamba_proj_bias\":true"), TINKC_E_UNSUPPORTED, "mamba_proj_bias" },
        { HYBRID(",\"moe_latent_size\":64"), TINKC_E_UNSUPPORTED, "moe_latent_size" },
        { HYBRID(",\"sliding_window\":64"), TINKC_E_UNSUPPORTED, "sliding_window" },
        { HYBRID(",\"vision_config\":{}"), TINKC_E_UNSUPPORTED, "vision_config" },
        { HYBRID(",\"tie_word_embeddings\":true"), TINKC_E_UNSUPPORTED, "tie_word_embeddings" },
        { HYBRID(",\"quantization_config\":{\"quant_method\":\"modelopt\"}"), TINKC_E_UNSUPPORTED, "modelopt" },
        { HYBRID(",\"architectures\":[\"NemotronHForCausalLM\"],\"model_type\":\"nemotron_h_puzzle\""),
          TINKC_E_UNSUPPORTED, "nemotron_h_puzzle" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i].text, cases[i].code, cases[i].named);
}

TEST(keys_of_nemotron_reach_the_layers)
{
    static const struct {
        const char *extra;
        bool normalised;
        double scale;
    } rows[] = { { "\"norm_topk_prob\": false, \"routed_scaling_factor\": 1.5, \"use_conv_bias\": false", false, 1.5 },
                 { "\"norm_topk_prob\": true, \"use_conv_bias\": true", true, 2.5 } };
    for (size_t k = 0; k < 2; k++) {
        tiny_world w = tiny_world_open(&(tiny_model){ .family = "nemotron_h", .layers = 5, .extra = rows[k].extra }, 1);
        size_t n = 0;
        for (size_t i = 0; i < w.model->config.n_layers; i++) {
            const tke_experts *x = w.model->layers[i].experts;
            const tke_space *space = w.model->layers[i].space;
            n += x != NULL;
            assert_true(!space || (space->conv_bias != NULL) == rows[k].normalised);
            assert_true(!x || (x->sigmoid.normalised == rows[k].normalised && x->sigmoid.scale == rows[k].scale));
        }
        assert_true(n > 0);
        tiny_world_close(&w);
    }
}

/* A quarter of each head rotates and nothing has a bias, unless the folder says otherwise. */
TEST(keys_that_qwen3_5_may_leave_out)
{
    static const struct {
        const char *text;
        size_t rotary;
        bool bias;
    } rows[] = { { LINEAR(""), 4, false },
                 { LINEAR(",\"partial_rotary_factor\":0.5,\"attention_bias\":true"), 8, true } };
    for (size_t i = 0; i < 2; i++) {
        tke_config c;
        tinkc_error err = { 0 };
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        assert_true(tke_config_parse(&c, tkc_str(rows[i].text), tkc_str(""), "config.json", &arena, &err));
        assert_int_equal(c.rotary, rows[i].rotary);
        assert_true(c.bias_qkv == rows[i].bias && c.bias_o == rows[i].bias);
        tkc_arena_free(&arena);
    }
}

/* What the plan of memory counts is what the device keeps: layers of linear attention have no keys. */
TEST(the_plan_counts_the_layers_that_attend)
{
    static const char *const families[] = { "qwen3", "gpt_oss", "qwen3_5_text", "nemotron_h" };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        tiny_world w = tiny_world_open(&(tiny_model){ .family = families[f], .layers = 4 }, 1);
        size_t kept = 0, attending = 0;
        for (size_t i = 0; i < w.model->config.n_layers; i++) {
            kept += tke_layer_cache_reals(&w.model->layers[i]);
            attending += w.model->layers[i].mixer == TKE_MIX_ATTENTION;
        }
        assert_int_equal(TKE_BLOCK_TOKENS * tke_model_cache_numbers(w.model), kept);
        assert_int_equal(attending < w.model->config.n_layers, f >= 2);
        tiny_world_close(&w);
    }
}
