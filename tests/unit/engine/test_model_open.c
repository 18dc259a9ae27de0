/* test_model_open.c - model folders: configurations old and new, shards, element types, faults. */
#include <math.h>
#include <unistd.h>

#include "model/model.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"

static tkc_arena arena;

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"                                             \
    "\"num_attention_heads\":4,\"vocab_size\":160,\"max_position_embeddings\":256"
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES

static bool parse(const char *text, const char *generation, tke_config *c, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    return tke_config_parse(c, (tinkc_str){ text, strlen(text) }, (tinkc_str){ generation, strlen(generation) },
                            "config.json", &arena, err);
}

static void refused(const char *text, int32_t code, const char *what)
{
    tke_config c;
    tinkc_error err;
    if (parse(text, "", &c, &err) || err.code != code || !strstr(err.message, what))
        fail_msg("wanted %d '%s', got %d '%s'", code, what, err.code, err.message);
}

TEST(missing_keys_have_defaults)
{
    tke_config c;
    tinkc_error err;
    assert_true(parse(LLAMA "}", "", &c, &err));
    assert_string_equal(c.arch, "llama");
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rms_eps == 1e-6 && c.rope_theta == 10000 && !c.tied && !c.bias_qkv);
    assert_true(parse("{\"model_type\":\"qwen3\"," SIZES "}", "", &c, &err));
    assert_int_equal(c.head_dim, 128);
    assert_true(c.qk_norm && !c.bias_qkv);
    assert_true(parse("{\"model_type\":\"qwen2\"," SIZES ",\"eos_token_id\":7}", "{\"eos_token_id\":[3,4]}", &c, &err));
    assert_true(c.bias_qkv && !c.bias_o);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 4);
    assert_true(parse(LLAMA ",\"eos_token_id\":null}", "{}", &c, &err));
    assert_int_equal(c.n_eos, 0);
}

TEST(what_is_not_supported_is_refused_by_name)
{
    refused("{\"architectures\":[\"MambaForCausalLM\"]," SIZES "}", TINKC_E_UNSUPPORTED, "Mamba");
    refused("{" SIZES "}", TINKC_E_UNSUPPORTED, "architecture");
    refused(LLAMA ",\"quantization_config\":{\"bits\":4}}", TINKC_E_UNSUPPORTED, "quantization");
    refused(LLAMA ",\"hidden_act\":\"gelu\"}", TINKC_E_UNSUPPORTED, "gelu");
    refused(LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", TINKC_E_UNSUPPORTED, "dynamic");
    refused(LLAMA ",\"num_key_value_heads\":3}", TINKC_E_MODEL, "multiple");
    refused(LLAMA ",\"num_key_value_heads\":0}", TINKC_E_MODEL, "num_key_value_heads");
    refused(LLAMA ",\"head_dim\":7}", TINKC_E_MODEL, "odd");
    refused(LLAMA ",\"head_dim\":9999999}", TINKC_E_MODEL, "head_dim");
    /* What the attention kernels have no room for. */
    refused(LLAMA ",\"head_dim\":258}", TINKC_E_MODEL, "head_dim");
    refused(LLAMA ",\"num_attention_heads\":253,\"num_key_value_heads\":1,\"head_dim\":8}", TINKC_E_MODEL,
            "num_key_value_heads");
    refused(LLAMA ",\"rms_norm_eps\":0}", TINKC_E_MODEL, "rms_norm_eps");
    refused(LLAMA ",\"rope_theta\":-1}", TINKC_E_MODEL, "rope_theta");
    refused(LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", TINKC_E_MODEL, "low_freq_factor");
    refused("{\"model_type\":\"llama\",\"hidden_size\":64}", TINKC_E_MODEL, "num_hidden_layers");
    refused("{\"model_type\":\"llama\",\"hidden_size\":9999999999999}", TINKC_E_MODEL, "hidden_size");
    refused("[1]", TINKC_E_MODEL, "");
    refused("", TINKC_E_MODEL, "");
}

/* The three branches of llama3 scaling, as the formula has them. */
TEST(llama3_rope_scaling_has_three_branches)
{
    tke_config c;
    tinkc_error err;
    double f[8], plain[8], scale;
    const char *scaled = LLAMA ",\"head_dim\":8,\"rope_parameters\":{\"rope_type\":\"llama3\","
                               "\"rope_theta\":500000.0,\"factor\":8.0,\"low_freq_factor\":1.0,"
                               "\"high_freq_factor\":4.0,"
                               "\"original_max_position_embeddings\":256}}";
    assert_true(parse(scaled, "", &c, &err));
    tke_rope_frequencies(&c, f, &scale);
    for (int j = 0; j < 4; j++)
        plain[j] = pow(500000.0, -2.0 * j / 8);
    assert_true(f[0] == plain[0]);                       /* short waves stay */
    assert_true(f[1] < plain[1] && f[1] > plain[1] / 8); /* in between */
    assert_true(f[2] == plain[2] / 8 && f[3] == plain[3] / 8);
    assert_true(scale == 1);
    double wave = 2 * M_PI / plain[1], t = (256 / wave - 1) / 3;
    assert_true(fabs(f[1] - ((1 - t) * plain[1] / 8 + t * plain[1])) < 1e-15);
    assert_true(parse(LLAMA ",\"rope_theta\":500000.0,\"head_dim\":8,\"rope_scaling\":{\"type\":"
                            "\"linear\",\"factor\":4.0}}",
                      "", &c, &err));
    tke_rope_frequencies(&c, f, &scale);
    assert_true(f[3] == plain[3] / 4);
    assert_true(parse(LLAMA ",\"head_dim\":16,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
                            "\"original_max_position_embeddings\":64}}",
                      "", &c, &err));
    tke_rope_frequencies(&c, f, &scale);
    assert_true(fabs(scale - (0.1 * log(4.0) + 1)) < 1e-15);
    assert_true(f[0] == 1.0);
    assert_true(fabs(f[7] - pow(10000.0, -14.0 / 16) / 4) < 1e-15);
    assert_true(parse(LLAMA ",\"head_dim\":16,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}", "", &c, &err));
    assert_true(c.rope_original == (double)c.context);
}

/* ---- folders ---- */

TEST(a_folder_whose_name_ends_as_bits_do_is_opened_as_it_is)
{
    tinkc_error err = { 0 };
    char *folder = tiny_model_make(&(tiny_model){ .family = "llama" }), named[300];
    snprintf(named, sizeof named, "%s#4bit", folder);
    assert_int_equal(rename(folder, named), 0);
    tke_model *m = tke_model_open(named, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(m->packed_bits, 0);
    tke_model_drop(m);
    assert_int_equal(rename(named, folder), 0);
    tiny_model_remove(folder);
}

/* A fine-tune may differ from its base in the last layers alone, or in a number of its configuration. */
TEST(the_fingerprint_covers_the_configuration_and_both_ends_of_the_weights)
{
    char *folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 2000, .hidden = 64 });
    char path[512], seen[4][65];
    for (int i = 0; i < 4; i++) {
        tinkc_error err = { 0 };
        snprintf(path, sizeof path, "%s/%s", folder, i == 3 ? "config.json" : "model.safetensors");
        FILE *f = fopen(path, i == 3 ? "a" : "r+");
        assert_non_null(f);
        static const unsigned char one[4] = { 0, 0, 0x80, 0x3f }; /* the number 1 */
        assert_true(i == 3 || fseek(f, i == 2 ? -4 : -(256 << 10), SEEK_END) == 0);
        if (i)
            assert_true(i == 3 ? fputs(" ", f) >= 0 : fwrite(one, 1, 4, f) == 4);
        assert_int_equal(fclose(f), 0);
        tke_model *m = tke_model_open(folder, &err);
        assert_string_equal(err.message, "");
        memcpy(seen[i], m->fingerprint, 65);
        tke_model_drop(m);
    }
    assert_string_equal(seen[0], seen[1]); /* between the ends */
    assert_string_not_equal(seen[1], seen[2]);
    assert_string_not_equal(seen[2], seen[3]);
    tiny_model_remove(folder);
}

TEST(shards_equal_one_file)
{
    tinkc_error err = { 0 };
    char *one = tiny_model_make(&(tiny_model){ .family = "qwen2", .seed = 3 });
    char *two = tiny_model_make(&(tiny_model){ .family = "qwen2", .seed = 3, .shards = true });
    tke_model *a = tke_model_open(one, &err), *b = tke_model_open(two, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(a->n_bytes, b->n_bytes);
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < a->layers[l].n_groups * TKE_GROUP_MAX; i++) {
            const tke_group *g = &a->layers[l].groups[i / TKE_GROUP_MAX];
            if (i % TKE_GROUP_MAX >= g->n)
                continue;
            const tke_weight *x = &g->w[i % TKE_GROUP_MAX];
            const tke_weight *y = &b->layers[l].groups[i / TKE_GROUP_MAX].w[i % TKE_GROUP_MAX];
            assert_memory_equal(x->m.data, y->m.data, x->in * x->out * 4);
            assert_string_equal(x->path, y->path);
            assert_int_equal(x->bias != NULL, g == a->layers[l].attn->qkv);
        }
    assert_string_not_equal(a->fingerprint, b->fingerprint);
    assert_int_equal(strlen(a->fingerprint), 64);
    assert_true(tke_model_is_eos(a, 1));
    assert_false(tke_model_is_eos(a, 2));
    tke_model *again = tke_model_keep(a);
    tke_model_drop(a);
    assert_int_equal(tke_model_config(again)->hidden, 32);
    tke_model_drop(again);
    tke_model_drop(b);
    tiny_model_remove(one);
    tiny_model_remove(two);
}

TEST(tied_wins_over_a_head_in_the_file)
{
    tinkc_error err = { 0 };
    char *folder = tiny_model_make(&(tiny_model){ .family = "llama", .extra = "\"tie_word_embeddings\": true" });
    tke_model *m = tke_model_open(folder, &err);
    assert_string_equal(err.message, "");
    assert_ptr_equal(m->head.w[0].m.data, m->embed.m.data);
    tke_model_drop(m);
    tiny_model_remove(folder);
}

TEST(each_element_type_is_opened)
{
    static const char *const names[3] = { "F32", "BF16", "F16" };
    static const tke_dtype types[3] = { TKE_F32, TKE_BF16, TKE_F16 };
    for (int i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        char *folder = tiny_model_make(&(tiny_model){ .family = "qwen3", .tied = true, .dtype = names[i] });
        tke_model *m = tke_model_open(folder, &err);
        assert_string_equal(err.message, "");
        assert_int_equal(m->embed.m.dtype, types[i]);
        assert_true(fabsf(m->norm[0] - 1) < 0.5f);
        assert_non_null(m->layers[1].attn->q_norm);
        tke_model_drop(m);
        tiny_model_remove(folder);
    }
}

static void opening_fails(const char *folder, int32_t code, const char *what, const char *also)
{
    tinkc_error err = { 0 };
    assert_null(tke_model_open(folder, &err));
    if (err.code != code || !strstr(err.message, what) || !strstr(err.message, also))
        fail_msg("wanted %d '%s' '%s', got %d '%s'", code, what, also, err.code, err.message);
}

TEST(a_faulty_folder_is_named_with_its_fault)
{
    char path[512];
    opening_fails("/nowhere/at/all", TINKC_E_MODEL, "not a folder", "/nowhere");
    char *folder = tiny_folder();
    opening_fails(folder, TINKC_E_MODEL, "config.json", "file not found");
    tiny_write(folder, "config.json", LLAMA "}");
    opening_fails(folder, TINKC_E_MODEL, "neither", folder);
    tiny_write(folder, "model.safetensors", "short");
    opening_fails(folder, TINKC_E_MODEL, "model.safetensors", "too short");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    tiny_write(folder, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}");
    opening_fails(folder, TINKC_E_MODEL, "not a file name", "../../etc");
    tiny_write(folder, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"gone.st\"}}");
    opening_fails(folder, TINKC_E_MODEL, "gone.st", "does not exist");
    tiny_write(folder, "model.safetensors.index.json", "{}");
    opening_fails(folder, TINKC_E_MODEL, "weight_map", "index.json");
    tiny_model_remove(folder);
}

TEST(missing_and_misshaped_tensors)
{
    char *folder = tiny_model_make(&(tiny_model){ .family = "llama" });
    tiny_write(folder, "config.json",
               "{\"model_type\":\"qwen3\",\"hidden_size\":32,\"intermediate_size\":50,"
               "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
               "\"head_dim\":8,\"vocab_size\":101,\"max_position_embeddings\":64}");
    opening_fails(folder, TINKC_E_MODEL, "q_norm.weight (missing)", "gate_proj.weight (wrong shape)");
    tiny_model_remove(folder);
}

int main(void)
{
    tkc_arena_init(&arena, NULL, 0);
    int failed = test_cases_run(NULL, NULL);
    tkc_arena_free(&arena);
    return failed;
}
