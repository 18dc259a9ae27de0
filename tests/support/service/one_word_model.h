/* one_word_model.h - a model folder whose weights say one word forever, whatever the prompt is: each hidden state is all ones,
 * and of the output rows only the word's is not zero. Its vocabulary is nano's and the word. For rules about when an answer ends. */
#ifndef TINKC_TESTS_ONE_WORD_MODEL_H
#define TINKC_TESTS_ONE_WORD_MODEL_H

#include "base/file.h"
#include "model/safetensors.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"

enum { WORD = 4096, WORD_VOCAB = WORD + 1, WORD_HIDDEN = 16 };

static inline void one_word_weights(const char *model)
{
    static float ones[WORD_VOCAB * WORD_HIDDEN], zeros[WORD_VOCAB * WORD_HIDDEN], head[WORD_VOCAB * WORD_HIDDEN];
    const struct {
        const char *name;
        const float *data;
        int64_t rows; /* of WORD_HIDDEN; 0 = one dimension */
    } rows[] = { { "model.embed_tokens.weight", ones, WORD_VOCAB },
                 { "lm_head.weight", head, WORD_VOCAB },
                 { "model.norm.weight", ones, 0 },
                 { "model.layers.0.input_layernorm.weight", ones, 0 },
                 { "model.layers.0.post_attention_layernorm.weight", ones, 0 },
                 { "model.layers.0.self_attn.q_proj.weight", zeros, WORD_HIDDEN },
                 { "model.layers.0.self_attn.k_proj.weight", zeros, WORD_HIDDEN },
                 { "model.layers.0.self_attn.v_proj.weight", zeros, WORD_HIDDEN },
                 { "model.layers.0.self_attn.o_proj.weight", zeros, WORD_HIDDEN },
                 { "model.layers.0.mlp.gate_proj.weight", zeros, WORD_HIDDEN },
                 { "model.layers.0.mlp.up_proj.weight", zeros, WORD_HIDDEN },
                 { "model.layers.0.mlp.down_proj.weight", zeros, WORD_HIDDEN } };
    enum { N = sizeof rows / sizeof *rows };
    tke_file_tensor tensors[N];
    tinkc_error err = { 0 };
    char path[400];
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        ones[i] = 1;
    for (size_t i = 0; i < WORD_HIDDEN; i++)
        head[WORD * WORD_HIDDEN + i] = 9; /* no draw takes another */
    for (size_t i = 0; i < N; i++) {
        size_t n = (size_t)(rows[i].rows ? rows[i].rows : 1) * WORD_HIDDEN;
        tensors[i] = (tke_file_tensor){ .name = rows[i].name, .data = (const unsigned char *)rows[i].data, .n_bytes = 4 * n,
                                        .dtype = TKE_FILE_F32, .n_dims = rows[i].rows ? 2 : 1,
                                        .dims = { rows[i].rows ? rows[i].rows : WORD_HIDDEN, WORD_HIDDEN } };
    }
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    assert_true(tke_tensor_file_write(path, tensors, N, NULL, 0644, &err));
}

/* word: as JSON. The template is JSON, too. Freed with tiny_model_remove. */
static inline char *one_word_model(const char *word, const char *template)
{
    static const char last[] = "\"<|im_end|>\""; /* of the added tokens, which are numbered in their order */
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *model = tiny_folder();
    tkc_arena_init(&arena, NULL, 8 << 20);
    tiny_write(model, "config.json",
               "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":16,"
               "\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":1,"
               "\"num_key_value_heads\":1,\"head_dim\":16,\"vocab_size\":4097,\"max_position_embeddings\":2048,"
               "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"hidden_act\":\"silu\","
               "\"eos_token_id\":4095}");
    tinkc_bytes nano = tkc_read_file(&arena, "models/nano/tokenizer.json", 1 << 20, &err);
    const char *text = tkc_arena_str(&arena, tkc_strn((const char *)nano.data, nano.len), &err);
    const char *at = text ? strstr(text, last) : NULL;
    at = at ? strchr(at, '}') + 1 : NULL;
    assert_non_null(at);
    tiny_write(model, "tokenizer.json",
               tkc_arena_printf(&arena, &err, "%.*s,{\"id\":%d,\"content\":%s,\"single_word\":false,\"lstrip\":false,"
                                "\"rstrip\":false,\"normalized\":false,\"special\":false}%s",
                                (int)(at - text), text, WORD, word, at));
    tiny_write(model, "tokenizer_config.json",
               tkc_arena_printf(&arena, &err, "{\"eos_token\":\"<|im_end|>\",\"chat_template\":%s}", template));
    assert_ok(err);
    tkc_arena_free(&arena);
    one_word_weights(model);
    return model;
}

#endif
