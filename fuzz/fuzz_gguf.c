/* fuzz_gguf.c - GGUF files: keys, tensors, configuration and tokenizer. Every tensor that is handed out must
 * lie inside the bytes, and every refusal must say why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "codec/gguf_tokenizer.h"
#include "model/gguf_model.h"

static void said(const tinkc_error *err)
{
    if (!err->code || !err->message[0])
        abort();
}

static void try_tokenizer(const uint8_t *data, size_t size)
{
    tinkc_error err = { 0 };
    tkc_gguf g = { 0 };
    tkc_buf out;
    tkc_buf_init(&out, NULL, 64 << 20);
    if (!tkc_gguf_read(&g, (tinkc_bytes){ data, size }, "x", &err) ||
        !tkc_gguf_tokenizer_json(&g, &out, &err) || !tkc_gguf_tokenizer_config(&g, &out, &err))
        said(&err);
    tkc_gguf_free(&g);
    tkc_buf_free(&out);
}

static void read_tensors(tke_gguf_files *f, const tke_config *c)
{
    static const char *const names[] = { "self_attn.q_proj.weight", "self_attn.k_proj.bias",
                                         "mlp.up_proj.weight", "mlp.experts.1.up_proj.weight",
                                         "mlp.experts.1.up_proj.bias", "self_attn.sinks",
                                         "mlp.router.weight" };
    char name[100];
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "model.layers.0.%s", names[i]);
        const tke_file_tensor *t = tke_gguf_files_find(f, name);
        for (size_t k = 0; t && k < t->n_bytes; k++)
            sum += t->data[k];
    }
    double frequencies[2048], scale;
    tinkc_error err = { 0 };
    tke_rope_frequencies(c, frequencies, &scale);
    if (!tke_gguf_frequencies(f, frequencies, c->rotary / 2, &err))
        said(&err);
    (void)sum;
}

static void try_model(const uint8_t *data, size_t size)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tke_gguf_files f = { 0 };
    tke_config c;
    tkc_arena_init(&arena, NULL, 64 << 20);
    if (tke_gguf_files_read(&f, (tinkc_bytes){ data, size }, "x", &arena, &err) &&
        tke_gguf_config(&f, &c, &err))
        read_tensors(&f, &c);
    else
        said(&err);
    tke_gguf_files_close(&f);
    tkc_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_tokenizer(data, size);
    try_model(data, size);
    return 0;
}
