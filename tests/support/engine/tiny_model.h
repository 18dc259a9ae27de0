/* tiny_model.h - makes small random model folders for tests of the engine. */
#ifndef TESTS_TINY_MODEL_H
#define TESTS_TINY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tiny_model {
    const char *family; /* "llama", "qwen2", "qwen3", "qwen3_moe" (its layer 1 is dense),
                         * "gpt_oss" (even layers have a window of 9),
                         * "qwen3_5_text" (every second layer attends),
                         * "nemotron_h" (ME*-M..., at most 8 layers; "backbone." unless fused) */
    size_t hidden, inner, layers, heads, kv_heads, head_dim, vocab, context; /* 0 = default */
    bool tied;
    bool bias;         /* llama, qwen3: attention_bias; llama: mlp_bias too */
    bool mxfp4;        /* gpt_oss: experts packed; the numbers are the same */
    bool fused;        /* experts in tensors of three dimensions */
    bool nested;       /* qwen3_5: the keys in text_config, as published, and a vision tower */
    bool shards;       /* several files and an index */
    bool old_rope;     /* rope_theta and rope_scaling instead of rope_parameters */
    const char *rope;  /* JSON members of the rope object, or NULL = default, theta 10000 */
    const char *extra; /* more JSON members of config.json, or NULL */
    const char *dtype; /* "F32" (default), "BF16", "F16" */
    uint64_t seed;
} tiny_model;

/* Makes the folder under the system's place for temporary files; returns its path, which the caller
 * frees with tiny_model_remove. Ends the test on failure. */
char *tiny_model_make(const tiny_model *);
void tiny_model_remove(char *folder);
/* An empty folder for a test's files; end it with tiny_model_remove. */
char *tiny_folder(void);
/* Writes text into folder/name, replacing it. */
void tiny_write(const char *folder, const char *name, const char *text);

/* The permissions of a file. */
unsigned tiny_mode(const char *path);

/* A small random stream for tests: the same everywhere. */
uint64_t tiny_random(uint64_t *state);
float tiny_normal(uint64_t *state); /* about N(0, 1) */

#endif
